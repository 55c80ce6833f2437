"""Checks the names of jobs, Slurm steps and nodes before they become part of a command.

A name that begins with a dash would be an option to scancel; one with a slash would lead to another path.
"""

from __future__ import annotations

import re

_JOB = re.compile(r"\d{1,20}(_\d{1,20})?", re.ASCII)
_STEP = re.compile(r"\d{1,20}([_+]\d{1,20})?\.\d{1,20}(\+\d{1,20})?", re.ASCII)
NODE = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}"
_NODE = re.compile(NODE)


def is_job(name: object) -> bool:
    """Return whether this is the form of a Slurm job: 81, or 81_2 for a task of an array; also of a process id."""
    return isinstance(name, str) and _JOB.fullmatch(name) is not None


def is_step(name: object) -> bool:
    """Return whether this is the form of a Slurm step: 81.0, 81_2.0 in an array task, 81+1.0 in a part of a job."""
    return isinstance(name, str) and _STEP.fullmatch(name) is not None


def is_node(name: object) -> bool:
    """Return whether this is the form of one machine's name."""
    return isinstance(name, str) and _NODE.fullmatch(name) is not None
