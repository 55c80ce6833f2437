"""Checks the names of jobs, Slurm steps and nodes before they become part of a command.

A name that begins with a dash would be an option to scancel, one with a slash another path.
"""

from __future__ import annotations

import re

_JOB = re.compile(r"\d{1,20}(_\d{1,20})?", re.ASCII)
_STEP = re.compile(r"\d{1,20}([_+]\d{1,20})?\.\d{1,20}(\+\d{1,20})?", re.ASCII)
NODE = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}"
_NODE = re.compile(NODE)


def is_job(name: object) -> bool:
    """Whether this looks like a job of Slurm's: 81, or 81_2 for a task of an array; also a process's number."""
    return isinstance(name, str) and _JOB.fullmatch(name) is not None


def is_step(name: object) -> bool:
    """Whether this looks like a step of Slurm's: 81.0, 81_2.0 in a task of an array, 81+1.0 in a part of a job."""
    return isinstance(name, str) and _STEP.fullmatch(name) is not None


def is_node(name: object) -> bool:
    """Whether this looks like the name of one machine."""
    return isinstance(name, str) and _NODE.fullmatch(name) is not None
