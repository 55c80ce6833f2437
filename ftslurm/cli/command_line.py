"""Explains how a script, or the command line of another launcher, as `torchrun train.py --lr 1`, is written here.

ftslurm takes settings; what stands behind a script are arguments of the script. With the command that is named the
script gets exactly these arguments.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from ftslurm.errors import EnvironmentProblem

_LAUNCHERS = re.compile(r"(.*/)?(python[\d.]*|torchrun|accelerate|deepspeed|srun|mpirun|uv)")
_SETTING = re.compile(r"[~+]*([A-Za-z_]\w*)[\w./@-]*=.*", re.DOTALL)


def refuse(words: Sequence[str]) -> None:
    """Refuse words that start a script as another launcher would.

    Raises:
        EnvironmentProblem: they do; the message has the command that is meant.
    """
    settings = [word for word in words if _is_ours(word)]
    others = [word for word in words if not _is_ours(word)]
    if not others or not (_LAUNCHERS.fullmatch(others[0]) or _is_script(others[0])):
        return
    at = next((n for n, word in enumerate(others) if _is_script(word)), len(others))
    job, arguments = (others[at] if at < len(others) else "SCRIPT"), others[at + 1 :]
    if not any(word.startswith(("job=", "job.script=", "job.module=")) for word in settings):
        settings.insert(0, f"job.script={job}")
    if arguments:
        settings.append(f"job.args=[{','.join(map(_quoted, arguments))}]")
    raise EnvironmentProblem(
        f"ftslurm takes settings, key=value; to train with it: {shlex.join(['ftslurm', *settings])}; groups.count=N "
        f"says how many groups there are, groups.workers=M how many ranks in each"
    )


def _is_script(word: str) -> bool:
    return word.endswith(".py") or Path(word).is_file()


def _is_ours(word: str) -> bool:
    from ftslurm.config.schema import Config  # most command lines are no script's

    found = _SETTING.fullmatch(word)
    return found is not None and found[1] in Config.__dataclass_fields__


def _quoted(text: str) -> str:
    """Quote a text for Hydra, which removes the quotes, and for OmegaConf, which resolves ${...}."""
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    return '"' + re.sub(r'(\\*)("|$)', lambda end: end[1] * 2 + end[2].replace('"', '\\"'), text) + '"'
