"""Another user scans all ports of a training and sends whatever torchft's own programs send.

Each attack tries every port and is refused, the training continues unchanged, and the log reports the refusal once.

At last the stranger waits for a part of the run to die, takes its port, and reads the connections to it. He answers as
a checkpoint server, or relays the greeting of a live gate and the answer to it. He learns nothing, none of his data is
unpickled, and no gate lets him in.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from harness import Run
from ports import Answer
from stranger import FLOODS
from victim import (
    MOST_LOGS,
    Stranger,
    gloo_ports,
    latest,
    learnt_nothing,
    logs_size,
    nothing_said,
    own_ports,
    pid_name,
    ranks,
    squat,
    told_once,
    unnoticed,
)

LATE = 10**6  # a step that no group has reached
LAST = 2**62  # a step beyond which no other step would count
FLOOD_S = 2.0
CONNECTIONS = 2000


@pytest.fixture
def loot(tmp_path: Path) -> Path:
    """A folder of the run's owner that the stranger cannot write to."""
    path = tmp_path / "loot"
    path.mkdir(mode=0o755)
    return path


def test_no_port_tells_a_stranger_anything(run: Run, stranger: Stranger) -> None:
    gloo = gloo_ports(run)
    with unnoticed(run):
        answers = [Answer.from_json(fields) for fields in stranger.attack("look")]
    assert {answer.port for answer in answers} >= set(own_ports(run))
    nothing_said(run, answers, gloo)
    assert len(gloo) <= 2, "one for each rank"
    told_once(run)


def test_a_stranger_with_a_stock_manager_is_no_donor_if_he_is_far_ahead_nor_sent_the_model_if_he_has_just_begun(
    run: Run, stranger: Stranger, loot: Path
) -> None:
    with unnoticed(run):
        attacks = [stranger.begin("join", step=step, folder=str(loot)) for step in (LATE, 0)]
        for found in [attack.result() for attack in attacks]:  # he reads no store of a group, and cannot know any
            assert (found["received"], found["stores"], found["quorums"]) == ([], {}, []), found
        assert not list(loot.iterdir()), f"code of the stranger ran as uid {next(loot.iterdir()).stat().st_uid}"
    told_once(run)


def test_a_stranger_who_guesses_stores_gets_no_quorum(run: Run, stranger: Stranger) -> None:
    with unnoticed(run):
        told = stranger.attack("guess", step=LAST)
        stranger.attack("say_and_hang_up", step=LAST)
    assert not [line for line in told if not line.partition(": ")[2].startswith(("UNAVAILABLE", "DEADLINE"))], told
    assert not run.named("quorum_refused")
    told_once(run)


def test_a_stranger_cannot_end_a_manager(run: Run, stranger: Stranger) -> None:
    with unnoticed(run):
        answers = stranger.attack("kill")
    assert not [answer for answer in answers.values() if not answer.startswith(("UNAVAILABLE", "DEADLINE"))], answers
    told_once(run)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "heartbeats" else pytest.mark.nightly) for kind in FLOODS]
)
def test_a_flood_of_connections_does_not_slow_the_training_nor_fill_its_logs(
    run: Run, stranger: Stranger, kind: str
) -> None:
    targets = sorted(set(own_ports(run)) - set(gloo_ports(run)))
    quiet = [pace_of(run, FLOOD_S)]
    with unnoticed(run):
        flood = stranger.begin("flood", kind=kind, seconds=FLOOD_S, connections=CONNECTIONS, only=targets)
        flood.wait_until_ready()
        before, begun, size = len(run.steps(0)), time.monotonic(), logs_size(run)
        while flood.goes_on:
            assert logs_size(run) - size < MOST_LOGS, f"{logs_size(run) - size} bytes of logs so far"
            time.sleep(0.1)
        pace = (len(run.steps(0)) - before) / (time.monotonic() - begun)
        done = flood.result()
    quiet.append(pace_of(run, FLOOD_S))
    assert done["opened"] > 0
    assert pace >= min(quiet) / 4, f"{pace:.1f} steps a second, before and after it {quiet}: {done}"  # others compute
    told_once(run)


def pace_of(run: Run, seconds: float) -> float:
    """Return the steps per second of group 0 without an attack."""
    before = len(run.steps(0))
    time.sleep(seconds)
    return (len(run.steps(0)) - before) / seconds


def test_who_takes_the_ports_of_a_dead_group_learns_nothing_and_what_was_guessed_before_has_left_no_poison(
    run: Run, stranger: Stranger, tmp_path: Path
) -> None:
    ports = {port for port, pid in own_ports(run).items() if "group-0001" in pid_name(pid)}
    attack = squat(stranger, tmp_path / "loot", ports)
    attempt = latest(run)[1]
    run.kill(group=1)
    run.wait_until_back(1, attempt=attempt + 1)
    assert max(int(s["step"]) for s in run.steps(1)) < LATE
    assert not run.named("quorum_refused")
    learnt_nothing(attack.result(), tmp_path / "loot")
    going_on(run)


@pytest.mark.nightly
def test_who_takes_the_port_of_a_dead_lighthouse_learns_nothing(run: Run, stranger: Stranger, tmp_path: Path) -> None:
    lighthouse = {port for port, pid in own_ports(run).items() if "lighthouse" in pid_name(pid)}
    assert lighthouse
    attack = squat(stranger, tmp_path / "loot", lighthouse)
    run.kill_lighthouse()
    run.wait_for("step_ready", unit="lighthouse", attempt=1)
    learnt_nothing(attack.result(), tmp_path / "loot")
    going_on(run)
    assert not run.named("step_exited", group=0)


def going_on(run: Run) -> None:
    """Wait until both groups train together."""
    assert len(ranks(run)) == 2
    before = [len(run.steps(group)) for group in (0, 1)]
    run.until(lambda: all(len(run.steps(g)) >= n + 5 for g, n in enumerate(before)), "the training goes on", 20.0)
    assert {run.steps(group)[-1]["participants"] for group in (0, 1)} == {2}


def test_when_they_have_given_up_the_training_ends_as_if_nothing_had_been(run: Run) -> None:
    steps = run.end_soon()
    run.finish()
    assert {int(run.steps(group)[-1]["step"]) for group in (0, 1)} == {steps}
    assert len(set(run.weights().values())) == 1, run.weights()
