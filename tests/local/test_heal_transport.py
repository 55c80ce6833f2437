"""A group heals by the transport that the run is set to, and then has the weights of the others."""

from __future__ import annotations

import pytest
from harness import Backend

KINDS = [  # by TCP heals every training of the other tests
    ("local", "process_group", "PGTransport"),
    pytest.param("local", "tcp", "RunTransport", marks=pytest.mark.nightly),
    pytest.param("slurm", "process_group", "PGTransport", marks=[pytest.mark.nightly, pytest.mark.slurm]),
]


@pytest.mark.parametrize(("backend", "setting", "used"), KINDS, indirect=["backend"])
def test_a_group_that_comes_back_heals_by_the_transport_of_the_run(backend: Backend, setting: str, used: str) -> None:
    run = backend.start("groups.count=2", f"torchft.transport={setting}", args={"open-end": True, "step-time": 0.1})
    run.wait_for_steps(5, 2)
    run.kill(1)
    run.wait_until_back(1)
    last = run.end_soon()
    run.finish()
    run.check_training(last, survivors={0}, returned={1})
    for group, attempt in ((0, 0), (1, 0), (1, 1)):
        assert f"heals by {used}" in run.rank_log(group, attempt=attempt)
