"""When a pilot gives the nodes of its job back although nobody asks it to."""

from __future__ import annotations

from pathlib import Path

import led_run
import pytest

from ftslurm.config.schema import Config
from ftslurm.run import liveness
from ftslurm.submission import pilots


@pytest.mark.parametrize(("may_lead", "after_s"), [(True, pilots.ALONE_S), (False, Config().orphan_after_s)])
def test_it_waits_longer_for_a_controller_if_another_one_may_lead(
    may_lead: bool, after_s: float, tmp_path: Path
) -> None:
    run, config, now = led_run.new(tmp_path), Config(), [0.0]
    led_run.journal(run, "run_started")
    liveness.touch(run.alive)
    watch = liveness.Watch(lambda: now[0])
    for now[0], over in ((0.0, False), (after_s - 1, False), (after_s + 1, True)):
        assert pilots.over(run, config, watch, may_lead) is over
    led_run.journal(run, "run_finished")
    assert pilots.over(run, config, liveness.Watch(), may_lead)
