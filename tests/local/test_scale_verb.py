"""`ftslurm scale` during a training."""

from __future__ import annotations

import pytest
from harness import Backend
from quick import ask

pytestmark = pytest.mark.light


def test_a_run_grows_to_four_groups_and_back_and_the_first_two_miss_no_step(local: Backend) -> None:
    open_end: dict[str, object] = {"open-end": True, "step-time": 0.1}
    run = local.start("groups.count=2", "groups.max=4", args=open_end)
    run.wait_for_steps(5, 2)
    code, said = ask(run, "scale", "5")
    assert code == 2
    assert "5 is above groups.max=4" in said
    assert ask(run, "scale", "4") == (0, "the run has 4 groups from now on (ftslurm scale)\n")
    run.wait_for("group_joined", group=2)
    run.wait_for("group_joined", group=3)
    assert ask(run, "scale", "2")[0] == 0
    for group in (2, 3):
        assert run.wait_for("step_exited", group=group)["cause"] == "cancelled"
    assert ask(run, "scale", "3")[0] == 0  # the same number again is its next attempt
    run.wait_until_back(2, attempt=1)
    last = run.end_soon()
    run.finish()
    for group in (0, 1):
        steps = [int(s["step"]) for s in run.steps(group)]
        assert steps == list(range(1, last + 1))
        assert {s["attempt"] for s in run.steps(group)} == {0}
    weights = run.weights()
    assert {group for group, _ in weights} == {0, 1, 2}
    assert len(set(weights.values())) == 1, weights
    text = run.text
    assert "group 3 has joined at step" in text
    assert "group 3 has left the run (at step" in text
    assert "is back" not in text  # nothing had failed
