"""What a guard concludes from the processes of its run on its node."""

from __future__ import annotations

import os
import signal

import pytest

from ftslurm.guard import processes

STEPS = ("group-0001/0", "group-0001/2", "group-0001/10", "group-0002/11", "standby-000/1", "group-0001", "")
THERE = [(1000 + pid, {"FTSLURM_STEP": step}) for pid, step in enumerate(STEPS)]


@pytest.mark.parametrize(
    ("step", "newer", "killed"),
    [
        ("group-0001/2", 10, [1000]),
        ("group-0001/10", None, [1000, 1001]),
        ("group-0003/0", None, []),
        ("standby-000/2", None, []),  # the earlier one may be a live group
        ("group-0001", None, []),
    ],
)
def test_one_look_at_the_processes_shows_newer_attempts_and_what_earlier_ones_left(
    step: str, newer: int | None, killed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kills: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: kills.append((pid, number)))
    monkeypatch.setattr(os, "listdir", lambda path: pytest.fail(f"{path} is read again"))
    environ = {"FTSLURM_STEP": step}
    assert processes.newer_attempt(environ, THERE) == newer
    processes.fence(environ, THERE)
    assert kills == [(pid, signal.SIGKILL) for pid in killed]


def test_beside_a_process_that_names_no_run_is_nothing() -> None:
    assert processes.beside({}) == []
