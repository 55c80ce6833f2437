"""A script that fails at the same step after each restart from its checkpoint is not restarted again and again."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import SCRIPTS, Backend, light

SCRIPT = f"""\
import runpy, sys
sys.path.insert(0, {str(SCRIPTS)!r})
import light_worker
real = light_worker.Manager.should_commit
def should_commit(manager):
    if manager.current_step() == 12:
        raise FloatingPointError("the loss is nan")
    return real(manager)
light_worker.Manager.should_commit = should_commit
sys.argv[0] = {str(SCRIPTS / "light_saving.py")!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("backend", ["local"], indirect=True)
@pytest.mark.parametrize("groups", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_the_same_error_at_the_same_step_from_the_same_checkpoint_ends_the_run(
    backend: Backend, tmp_path: Path, groups: int
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = (light(), f"groups.count={groups}", "checkpoint.every=5", "restart.backoff_s=0.1")
    run = backend.start(*words, script=tmp_path / "train.py", args={"steps": 50})
    run.finish(1)
    assert {event["step"] for event in run.named("step_exited", cause="user_error")} == {12}
    given_up = [str(event["reason"]) for event in run.named("group_given_up")]
    assert len(given_up) == groups
    for reason in given_up:
        assert "the same error at the same step (12), again after the checkpoint of step 10: it is the script" in reason
    assert [event["restarts"] for event in run.named("run_finished")] == [groups]
