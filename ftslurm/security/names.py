"""Checks the names of jobs, Slurm steps and nodes before they become part of a command.

A name that begins with a dash would be an option to scancel; one with a slash would lead to another path.
"""

from __future__ import annotations

import re
from collections.abc import Callable

NODE = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}"


def _form(pattern: str) -> Callable[[object], bool]:
    """Return what tells whether something is a name of this form."""
    form = re.compile(pattern, re.ASCII)
    return lambda name: isinstance(name, str) and form.fullmatch(name) is not None


is_job = _form(r"\d{1,20}(_\d{1,20})?")  # a Slurm job: 81, or 81_2 for a task of an array; also a process id
is_step = _form(r"\d{1,20}([_+]\d{1,20})?\.\d{1,20}(\+\d{1,20})?")  # 81.0, 81_2.0 in an array task, 81+1.0 in a part
is_node = _form(NODE)  # one machine
