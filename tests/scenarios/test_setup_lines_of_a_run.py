"""cluster.setup of a run on Slurm and on this machine: one shell, and no end before Python without its reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Backend

pytestmark = pytest.mark.light

PROFILE = """# a .bashrc as people have it
export FROM_PROFILE=1
source_of_this() { return 3; }
[ -n "$PS1" ] && echo interactive
grep -q nonexistent /etc/hostname
"""
SHOWS = "import os\nprint('SHOWN', os.environ.get('FROM_PROFILE'), os.environ.get('AFTER'), flush=True)\n"
SIZE = ("groups.count=1", "lighthouse=none")


@pytest.mark.parametrize("backend", [pytest.param("slurm", marks=pytest.mark.slurm), "local"], indirect=True)
def test_a_profile_is_read_and_a_line_that_fails_is_the_verdict(backend: Backend, tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    profile.write_text(PROFILE)
    setup = [f"source {profile}", "export AFTER=2  # a comment"]
    script = backend.script(SHOWS)
    run = backend.start(*SIZE, f"cluster.setup={setup}", script=script).finish()
    assert "SHOWN 1 2" in (run.dir / "logs/group-0000/attempt-000/rank-0.log").read_text()

    setup.append("module() { return 5; }; module load cuda")
    run = backend.start(*SIZE, f"cluster.setup={setup}", script=script)
    assert run.process.wait(60) == 1
    reason = f"exit code 5: cluster.setup, line 3: {setup[-1]}"
    assert reason in run.text
    status = backend.launch("status", str(run.dir))
    assert status.process.wait(60) == 0
    assert "never started: " in status.text
    assert reason in status.text

    run = backend.start(*SIZE, "cluster.setup=['echo \"one']", script=script)
    assert run.process.wait(60) == 2
    assert (
        run.text == 'ftslurm: cluster.setup, line 1: echo "one: bash: unexpected EOF while looking for matching `"\'\n'
    )
