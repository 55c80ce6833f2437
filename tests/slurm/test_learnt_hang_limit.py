"""The limit for hangs is learnt from the run's own steps, outlives the controller, and finds a group that hangs."""

from __future__ import annotations

import pytest
from harness import Backend

pytestmark = [pytest.mark.slurm, pytest.mark.light, pytest.mark.nightly]
LEAST_S = 10.0


def test_a_hang_is_found_by_a_limit_that_an_earlier_controller_has_learnt(slurm: Backend) -> None:
    run = slurm.start(
        *("groups.count=2", f"torchft.timeout_s={LEAST_S / 5:g}"),
        args={"open-end": True, "step-time": 0.1},
    )
    first = run.wait_for("hang_limit")
    assert float(str(first["longest_s"])) > 0.1
    assert float(str(first["in_step_s"])) >= LEAST_S
    run.kill_controller()
    run.until(lambda: len(run.named("run_started")) == 2, "another controller")
    run.wait_for("step_adopted", group=1)
    run.wait_for_steps(len(run.steps(0)) + 3, groups=1)
    run.tell("inject", "stop", "--group", "1")
    found = run.wait_for("step_exited", cause="hang")
    assert (found["group"], found["rank"]) == (1, 0)
    assert "health.hang_after_s=auto allows" in str(found["error"])
    code, said = run.ask("status")
    assert code == 0
    assert "hang limit" in said
    run.wait_until_back(1)
    run.end_soon()
    run.finish()
