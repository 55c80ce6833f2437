"""What ps and top say of a process of a run."""

from __future__ import annotations

import subprocess

import pytest

from ftslurm.security import programs

NAMED = """
import subprocess, sys, os
from ftslurm.security import process_title
process_title.of_run(sys.argv[1], sys.argv[2])
print(subprocess.run(["ps", "-ww", "-o", "comm=,args=", "-p", str(os.getpid())], capture_output=True, text=True).stdout)
"""


@pytest.mark.parametrize("role", ["controller", "keeper", "pilot", "Lighthouse"])
def test_a_process_is_named_by_its_role_and_its_run(role: str) -> None:
    command = programs.code(NAMED, role, "ddp-20261126-1f2e")
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    short, _, title = said.partition(" ")
    assert short == f"ft:{role.lower()}"
    assert title.strip().startswith(f"ftslurm {role}: ddp-20261126-1f2e")
