"""Another user tries to read the weights of a parameter server, which has no Lighthouse that could refuse."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from harness import Backend, Run
from ports import Answer
from victim import (
    NOTICED,
    Field,
    Stranger,
    gloo_ports,
    latest,
    learnt_nothing,
    nothing_said,
    own_ports,
    pid_name,
    ranks,
    squat,
    told_once,
)

pytestmark = pytest.mark.nightly


def begin_run(backend: Backend) -> Run:
    """Start a server and a worker, which train until the test ends."""
    number = len(backend.runs)
    run = backend.launch(
        *("run", "job=parameter_server", "cluster=local", f"run.root={backend.tmp_path / f'runs{number}'}"),
        *("follow=true", "groups.count=2", "groups.roles.worker=1", "groups.gpus=0", "restart.backoff_s=0.1"),
        "stop.grace_s=2",
        *("job.args.updates=1000000", "job.args.batch-time=0.05", "checkpoint.every=0"),
        *(f"job.args.samples={backend.tmp_path / f'samples{number}'}",),
    )
    run.until(lambda: updates(backend) >= 10, "the workers train")
    return run


def updates(backend: Backend) -> int:
    """Return the number of updates of the server of the newest run."""
    path = backend.tmp_path / f"samples{len(backend.runs) - 1}"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def trains(run: Run, backend: Backend) -> None:
    now = updates(backend)
    run.until(lambda: updates(backend) >= now + 10, "the training goes on", 30.0)


def test_a_parameter_server_gives_a_stranger_no_session(run: Run, stranger: Stranger, battlefield: Field) -> None:
    events, pids, doors, gloo = len(run.events), set(run.processes()), set(own_ports(run)), gloo_ports(run)
    answers = [Answer.from_json(fields) for fields in stranger.attack("look")]
    assert {answer.port for answer in answers} >= doors
    assert not [answer for answer in answers if b"store_addr" in answer.said], "a session was opened for a stranger"
    assert stranger.attack("read_stores") == {}
    nothing_said(run, answers, gloo)
    told_once(run)

    trains(run, battlefield.backend)
    assert set(run.processes()) == pids
    assert not [event for event in run.events[events:] if event["event"] in NOTICED]


def test_who_takes_the_port_of_a_dead_parameter_server_gets_no_worker(
    run: Run, stranger: Stranger, battlefield: Field, tmp_path: Path
) -> None:
    attempt = latest(run)[0]
    (server,) = {pid for pid in ranks(run) if "group-0000" in pid_name(pid)}
    attack = squat(stranger, tmp_path / "loot", (port for port, pid in own_ports(run).items() if pid == server))
    os.kill(server, signal.SIGKILL)
    run.wait_for("step_launched", group=0, attempt=attempt + 1)
    learnt_nothing(attack.result(), tmp_path / "loot")
    trains(run, battlefield.backend)
