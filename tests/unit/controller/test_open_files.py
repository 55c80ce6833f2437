"""The controller raises its limit of open files to what a large run needs, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import logging, resource, sys
from ftslurm.controller.open_files import allow
resource.setrlimit(resource.RLIMIT_NOFILE, (300, int(sys.argv[1])))
logging.basicConfig(stream=sys.stdout, format="%(message)s")
allow(int(sys.argv[2]))
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def limit_after(hard: int, processes: int) -> str:
    command = [sys.executable, "-c", CODE, str(hard), str(processes)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_limit_that_is_enough_stays() -> None:
    assert limit_after(1000, 20) == "300"


def test_a_limit_that_is_too_low_is_raised_to_what_is_needed() -> None:
    assert limit_after(1000, 150) == "800"


def test_a_hard_limit_that_is_too_low_is_used_up_and_named() -> None:
    said = limit_after(1000, 500)
    assert said.startswith("the controller may open 1000 files, and this run needs about 2200")
    assert "ulimit -Hn" in said
    assert said.endswith("\n1000")
