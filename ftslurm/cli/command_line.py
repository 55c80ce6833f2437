"""Explains how the command line of another launcher is written here, as `torchrun --nproc-per-node 8 train.py --lr 1`.

ftslurm takes settings; what stands behind a script are arguments of the script. With the command that is named the
script gets exactly these arguments.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from ftslurm.errors import EnvironmentProblem

_LAUNCHERS = re.compile(r"(.*/)?(python[\d.]*|torchrun|accelerate|deepspeed|srun|mpirun|uv)")
_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_SIZE = re.compile(r"--?(?:(nproc.per.node)|nnodes|num.machines)(?:=(.*))?")
_SETTING = re.compile(r"[~+]*([A-Za-z_]\w*)[\w./@-]*=.*", re.DOTALL)
_KEY = re.compile(r"--[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")
# What Hydra reads as the same text, or as the same number.
_PLAIN = re.compile(r"(?!(?:true|false|null|nan|inf)$)[A-Za-z/._][\w/.-]*|-?[1-9]?\d(\.\d+)?(e-?\d+)?", re.IGNORECASE)


def refuse(words: Sequence[str]) -> None:
    """Refuse words that start a script as another launcher would.

    Raises:
        EnvironmentProblem: they do; the message has the command that is meant.
    """
    at = next((n for n, word in enumerate(words) if not _SETTING.fullmatch(word)), None)
    if at is None:
        return
    known = (_LAUNCHERS.fullmatch, _SIZE.fullmatch, lambda word: word.endswith(".py"), os.path.isfile)
    if not any(is_one(words[at]) for is_one in known):
        return
    settings, others = list(words[:at]), list[str]()
    for word in words[at:]:
        (settings if _is_ours(word) else others).append(word)
    job, sizes, arguments = _divided(others)
    if any(word.startswith(("job=", "job.script=", "job.module=")) for word in settings):
        job = []
    more = "" if sizes else "; groups.count=N says how many groups there are, groups.workers=M how many ranks in each"
    meant = shlex.join(["ftslurm", *job, *_as_settings(arguments), *sizes, *settings])
    raise EnvironmentProblem(f"ftslurm takes settings, key=value; to train with it: {meant}{more}")


def _is_ours(word: str) -> bool:
    from ftslurm.config.schema import Config  # most command lines are no script's

    found = _SETTING.fullmatch(word)
    return found is not None and found[1] in Config.__dataclass_fields__


def _divided(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Divide the words into the job, the sizes that a launcher was given, both as settings, and what is left."""
    sizes = list[str]()
    while words:
        word = words.pop(0)
        if (size := _SIZE.fullmatch(word)) and (size[2] or words):
            number = re.search(r"\d+$", size[2] or words.pop(0))
            if number and (size[1] or number[0] != "1"):
                sizes.append(f"groups.{'workers' if size[1] else 'count'}={number[0]}")
        elif word in ("-m", "--module") and words:
            if (module := words.pop(0)) not in _MODULES:
                return [f"job.module={module}"], sizes, words
        elif word.endswith(".py") or not (words or word.startswith("-") or _LAUNCHERS.fullmatch(word)):
            return [f"job.script={word}"], sizes, words
    return ["job.script=SCRIPT"], sizes, words


def _as_settings(arguments: list[str]) -> list[str]:
    """Return the settings that give the script these arguments: one for each --key, else all in a list."""
    found, rest = dict[str, str](), list(arguments)
    while rest:
        name, given, value = rest.pop(0).partition("=")
        same = any(f"{name}.".startswith(f"{one}.") or one.startswith(f"{name}.") for one in found)
        if same or not _KEY.fullmatch(name) or value.startswith("-"):  # --a=-b is not --a -b
            return [f"job.args=[{','.join(map(_quoted, arguments))}]"]
        if not given and rest and not rest[0].startswith("--"):
            given, value = "=", rest.pop(0)
        found[name] = (value if _PLAIN.fullmatch(value) else _quoted(value)) if given else "true"
    return [f"job.args.{name[2:]}={text}" for name, text in found.items()]


def _quoted(text: str) -> str:
    """Quote a text for Hydra, which removes the quotes, and for OmegaConf, which resolves ${...}."""
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    return '"' + re.sub(r'(\\*)("|$)', lambda end: end[1] * 2 + end[2].replace('"', '\\"'), text) + '"'
