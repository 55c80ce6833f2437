"""`ftslurm restart` and its kin during a training on this machine."""

from __future__ import annotations

from pathlib import Path

from harness import Backend


def test_a_group_restarts_on_request_and_the_others_miss_no_step(tmp_path: Path) -> None:
    backend = Backend("local", {"COLUMNS": "200"}, tmp_path)
    run = backend.start("groups.count=2", "restart.policy=never", args={"open-end": True, "step-time": 0.1})
    try:
        run.wait_for_steps(5, 2)
        code, said = run.ask("restart", "--group", "7")
        assert (code, said) == (1, "ftslurm: restart refused: there is no group 7; the run has groups 0 to 1\n")
        code, said = run.ask("restart", "--group", "1", "--rank", "0")
        assert (code, said) == (0, "restart: group 1 is asked to leave, and starts again as attempt 1\n")
        run.wait_until_back(1)
        last = run.end_soon()
        run.finish()
    finally:
        run.abandon()
    (exited,) = run.named("step_exited", group=1, attempt=0)
    assert exited["cause"] == "requested"
    assert [int(s["step"]) for s in run.steps(0)] == list(range(1, last + 1))
    assert len(set(run.weights().values())) == 1
    assert "group 1 is asked to leave its nodes: asked for with ftslurm restart, for rank 0 on" in run.text
