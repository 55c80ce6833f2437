"""A group heals by the transport that the run is set to, and then has the weights of the others."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
from harness import Backend
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torchft.checkpointing import HTTPTransport

from ftslurm.worker import heal_transport

KINDS = [  # by HTTP heals every training of the other tests
    ("local", "process_group", "WatchedPGTransport"),
    pytest.param("local", "http", "HTTPTransport", marks=pytest.mark.nightly),
    pytest.param("slurm", "process_group", "WatchedPGTransport", marks=[pytest.mark.nightly, pytest.mark.slurm]),
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


SOON = timedelta(seconds=10)


@settings(max_examples=15, deadline=None)
@given(parts=st.integers(0, heal_transport.CHUNKS), tensors=st.integers(1, 3 * heal_transport.CHUNKS))
@example(parts=0, tensors=3)  # torchft's own
@example(parts=heal_transport.CHUNKS - 1, tensors=2 * heal_transport.CHUNKS)
def test_a_group_heals_from_a_donor_that_has_fewer_parts_or_none(parts: int, tensors: int) -> None:
    """So it is where a script gives some Managers a transport, or where the Manager of one group stays torchft's."""
    state = {str(number): torch.full((2,), float(number)) for number in range(tensors)} | {"step": 7}
    donor, healer = HTTPTransport(SOON, parts), heal_transport.transport(None, SOON)
    try:
        donor.send_checkpoint([1], 7, state, SOON)
        got = healer.recv_checkpoint(0, donor.metadata(), 7, SOON)
        assert {name: value.tolist() for name, value in got.items() if name != "step"} == {
            str(number): [number] * 2 for number in range(tensors)
        }
        assert got["step"] == 7
    finally:
        donor.shutdown()
        healer.shutdown()
