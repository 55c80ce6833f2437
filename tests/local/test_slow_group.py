"""A group whose steps take longer than those of the others, with torchft's own Manager."""

from __future__ import annotations

import pytest
from harness import Backend


@pytest.mark.nightly
@pytest.mark.parametrize("beside", [False, True])  # whether the script waits for the quorum before it computes
def test_a_slow_group_is_told_by_name_and_even_ones_are_not(local: Backend, beside: bool) -> None:
    args = {"open-end": True, "step-time": 0.1, "slow-group": 1} | ({"beside": True} if beside else {})
    run = local.start("groups.count=3", "standby=none", args=args)
    told = run.wait_for("group_slow")
    assert (told["group"], told["slow"]) == (1, True)
    assert (
        int(str(told["step"])) <= 450
    )  # ten to warm up, 50 measured, 30 s in a row, and up to a second for the report
    assert 1.3 < float(str(told["own_s"])) / float(str(told["others_s"])) < 1.5
    run.end_soon()
    run.finish()
    assert len(run.named("group_slow")) == 1
    assert "group 1 is slow" in run.text
