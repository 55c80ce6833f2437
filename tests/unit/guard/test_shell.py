"""`ftslurm attach`: a shell where a rank runs."""

from __future__ import annotations

import os
import subprocess

import pytest

from ftslurm.guard.shell import become_shell


def test_a_rank_that_has_ended_is_told_to_who_asks_for_a_shell_beside_it(capfd: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    with pytest.raises(SystemExit) as end:
        become_shell(gone.pid, dict(os.environ))
    assert end.value.code == 1
    assert "there is no way to where the rank runs: " in capfd.readouterr().err
