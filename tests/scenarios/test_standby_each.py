"""standby.count=each and auto: every group has a warm process of its own beside it."""

from __future__ import annotations

import pytest
from harness import SLURM_BY_DAY, Backend, Run

pytestmark = pytest.mark.light

EACH = "standby=each"
TOY: dict[str, object] = {"open-end": True, "step-time": 0.1}


def wait_until_warm(run: Run, *groups: int, times: int = 1) -> None:
    """Wait until the standbys of these groups have been ready so often."""
    for group in groups:
        unit = f"standby-{group:03d}"
        run.until(lambda u=unit: len(run.named("step_ready", unit=u)) >= times, f"{unit} is warm {times} times")


def came_back(run: Run, group: int, attempt: int) -> object:
    """Return the standby that a group's attempt came from."""
    return run.named("step_launched", group=group, attempt=attempt)[0]["standby"]


@SLURM_BY_DAY
def test_every_failure_comes_back_warm_alone_together_and_again(backend: Backend) -> None:
    run = backend.start(EACH, "groups.count=3", "restart.backoff_s=0", args=TOY)
    wait_until_warm(run, 0, 1, 2)
    assert not run.named("standby_given_up")
    run.kill(group=1)
    run.wait_until_back(1)
    assert came_back(run, 1, 1) == "standby-001/0"
    wait_until_warm(run, 1, times=2)
    for group in (1, 2):  # all but one at once, and group 1 for the second time
        run.kill(group)
    run.wait_until_back(1, attempt=2)
    run.wait_until_back(2)
    assert (came_back(run, 1, 2), came_back(run, 2, 1)) == ("standby-001/1", "standby-002/0")
    last = run.end_soon()
    run.finish()
    run.check_training(last, survivors={0}, returned={1, 2})
