"""What a run prints of a failure: where it was raised, when it happens; and one entry of it at the end."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from harness import SCRIPTS, Backend, light

RAISES = """\
def load(path):
    raise ValueError(f"no such layer: {path}")
load("encoder.9")
"""
# The last rank of group 1 fails in the eleventh step of its first attempt; all is over two steps later.
IN_A_STEP = f"""\
import os, runpy, signal, sys
sys.path.insert(0, {str(SCRIPTS)!r})
import light_worker
real = light_worker.Manager.should_commit
def fail():
    HOW
def should_commit(manager):
    if manager.current_step() == 11 and os.environ["REPLICA_GROUP_ID"] + os.environ["FTSLURM_ATTEMPT"] == "10":
        fail()
    return real(manager)
light_worker.Manager.should_commit = should_commit
sys.argv[0] = {str(SCRIPTS / "light.py")!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("backend", ["local"], indirect=True)
def test_an_error_of_all_groups_is_told_as_it_happens_and_once_at_the_end(backend: Backend) -> None:
    run = backend.start(light(), "groups.count=3", script=backend.script(RAISES))
    run.finish(1)
    lines, error = run.text.splitlines(), "ValueError: no such layer: encoder.9"
    died = [line for line in lines if " died before its first step: " in line]
    assert all("rank 0: script.py:2 in load: " + error in line for line in died)
    assert len([line for line in lines if error in line]) == len(died) + 1
    assert [line for line in lines if "groups 0, 1, 2: the script failed" in line] != []
    assert len([line for line in lines if "all in the same way" in line]) == 1
    listed = subprocess.run(
        [sys.executable, "-m", "ftslurm", "list", "--json", "--root", str(run.dir.parent)],
        capture_output=True,
        text=True,
    )
    assert [row["note"] for row in json.loads(listed.stdout)["runs"]] == [error]


@pytest.mark.parametrize("backend", ["local"], indirect=True)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed (signal 9) on local1, rank 0"),
        ("raise ValueError('x')", "the script failed on local1, rank 0: script.py:6 in fail: ValueError: x"),
    ],
)
def test_a_death_names_the_rank_and_the_step_that_its_group_had_reached(how: str, said: str, backend: Backend) -> None:
    script = backend.script(IN_A_STEP.replace("HOW", how))
    run = backend.start(light(), "groups.count=2", script=script, args={"steps": 13})
    run.finish(0)
    assert f"group 1 attempt 0 died at step 11: {said}" in run.text
    assert [event["step"] for event in run.named("step_exited", group=1, attempt=0)] == [11]
