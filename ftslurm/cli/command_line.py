"""Explains how a script, or the command line of another launcher, as `torchrun train.py --lr 1`, is written here.

ftslurm takes settings; what stands behind a script are arguments of the script.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from ftslurm.errors import EnvironmentProblem

_LAUNCHERS = re.compile(r"(.*/)?(python[\d.]*|torchrun|accelerate|deepspeed|srun|mpirun|uv)")


def refuse(words: Sequence[str]) -> None:
    """Refuse words that start a script as another launcher would.

    Raises:
        EnvironmentProblem: they do; the message has the settings that are meant.
    """
    others = [word for word in words if "=" not in word]
    if not others or not (_LAUNCHERS.fullmatch(others[0]) or _is_script(others[0])):
        return
    script = next(filter(_is_script, others), "SCRIPT")
    raise EnvironmentProblem(
        f"ftslurm takes settings, key=value; to train with it: ftslurm job.script={shlex.quote(script)} "
        f"'job.args=[--lr,0.1]'; job.args has the script's own words, groups.count=N says how many groups there are, "
        f"groups.workers=M how many ranks in each"
    )


def _is_script(word: str) -> bool:
    return word.endswith(".py") or Path(word).is_file()
