"""The meaning of a signal to the controller, given the job's state in squeue."""

from __future__ import annotations

import signal

import pytest

from ftslurm.config.schema import Config
from ftslurm.controller.translate import asked_by_signal
from ftslurm.core.state.events import JobEnds, StopAsked
from ftslurm.core.state.model import RunOutcome
from ftslurm.protocol.causes import Cause
from ftslurm.slurm.evidence import asked_by_slurm
from ftslurm.slurm.parse import read_state


def settings(**cluster: object) -> Config:
    config = Config()
    config.cluster.kind = "slurm"
    for key, value in cluster.items():
        setattr(config.cluster, key, value)
    return config


@pytest.mark.parametrize(
    ("signal_s", "grace_s", "left_s"),
    [(120, 10.0, 95.0), (60, 10.0, 35.0), (20, 5.0, 10.0), (10, 10.0, 0.0)],
)
def test_at_the_warning_the_checkpoint_has_the_time_that_groups_and_requeue_leave(
    signal_s: int, grace_s: float, left_s: float
) -> None:
    config = settings(signal_s=signal_s)
    config.stop.grace_s = grace_s
    told = asked_by_signal(signal.SIGUSR2, config, batch=True)
    assert isinstance(told, JobEnds)
    assert (told.cause, told.left_s) == (Cause.TIME_LIMIT, left_s)


@pytest.mark.parametrize(("requeue", "batch", "word"), [(False, True, "cluster.time"), (True, False, "batch job")])
def test_a_run_that_is_not_to_be_requeued_or_cannot_be_is_stopped(requeue: bool, batch: bool, word: str) -> None:
    told = asked_by_signal(signal.SIGUSR2, settings(requeue=requeue), batch)
    assert isinstance(told, StopAsked)
    assert told.outcome == "stopped"
    assert word in told.reason


@pytest.mark.parametrize(
    ("said", "requeue", "outcome"),
    [
        ("COMPLETING|1|None|", True, RunOutcome.REQUEUED),  # by Slurm, whatever we would do
        ("COMPLETING|1|None|", False, RunOutcome.REQUEUED),
        ("COMPLETING|0|TimeLimit|", True, RunOutcome.GOES_ON),
        ("COMPLETING|0|TimeLimit|", False, "stopped"),
        ("TIMEOUT|0|TimeLimit|", True, RunOutcome.GOES_ON),
        ("PREEMPTED|0|None|", True, "stopped"),
        ("COMPLETING|0|None|", True, None),  # scancel
        ("", True, None),
    ],
)
def test_why_slurm_ends_the_job_is_read_from_state_restarts_and_reason(
    said: str, requeue: bool, outcome: str | None
) -> None:
    told = asked_by_slurm(read_state(said), settings(requeue=requeue), batch=True)
    assert [event.outcome for event in told] == ([] if outcome is None else [outcome])
