"""Another user scans all ports of a training and sends whatever torchft's own programs send.

Each attack tries every port and is refused, the training continues unchanged, and the log reports the refusal once.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from harness import Run
from ports import Answer
from stranger import FLOODS
from victim import MOST_LOGS, Stranger, gloo_ports, logs_size, nothing_said, own_ports, told_once, unnoticed

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


def test_a_stranger_with_a_stock_manager_that_is_far_ahead_is_no_donor(
    run: Run, stranger: Stranger, loot: Path
) -> None:
    with unnoticed(run):
        found = stranger.attack("join", step=LATE, folder=str(loot))
        assert not list(loot.iterdir()), (
            f"code of the stranger ran as uid {next(loot.iterdir()).stat().st_uid}: {found}"
        )
        assert (found["stores"], found["quorums"]) == ({}, []), found
    told_once(run)


def test_a_stranger_with_a_stock_manager_that_has_just_begun_is_not_sent_the_model(
    run: Run, stranger: Stranger, loot: Path
) -> None:
    with unnoticed(run):
        found = stranger.attack("join", step=0, folder=str(loot))
        assert found["received"] == [], found
        assert (found["stores"], found["quorums"]) == ({}, []), found
    told_once(run)


def test_a_stranger_neither_reads_nor_writes_the_stores_of_groups(run: Run, stranger: Stranger) -> None:
    with unnoticed(run):
        assert stranger.attack("read_stores", spoil=True) == {}
    told_once(run)


def test_a_stranger_who_guesses_stores_gets_no_quorum_and_leaves_no_poison(run: Run, stranger: Stranger) -> None:
    with unnoticed(run):
        told = stranger.attack("guess", step=LAST)
        stranger.attack("say_and_hang_up", step=LAST)
    assert not [line for line in told if not line.partition(": ")[2].startswith(("UNAVAILABLE", "DEADLINE"))], told
    run.kill(group=1)
    run.wait_until_back(1, attempt=max(int(str(e["attempt"])) for e in run.named("step_launched", group=1)) + 1)
    assert max(int(s["step"]) for s in run.steps(1)) < LATE
    assert not run.named("quorum_refused")
    told_once(run)


def test_a_stranger_cannot_end_a_manager(run: Run, stranger: Stranger) -> None:
    with unnoticed(run):
        answers = stranger.attack("kill")
    assert not [answer for answer in answers.values() if not answer.startswith(("UNAVAILABLE", "DEADLINE"))], answers
    told_once(run)


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_of_connections_does_not_slow_the_training_nor_fill_its_logs(
    run: Run, stranger: Stranger, kind: str
) -> None:
    targets = sorted(set(own_ports(run)) - set(gloo_ports(run)))
    quiet = pace_of(run, FLOOD_S)
    with unnoticed(run):
        flood = stranger.begin("flood", kind=kind, seconds=FLOOD_S, connections=CONNECTIONS, only=targets)
        flood.wait_until_ready()
        before, begun, size = len(run.steps(0)), time.monotonic(), logs_size(run)
        while flood.goes_on:
            assert logs_size(run) - size < MOST_LOGS, f"{logs_size(run) - size} bytes of logs so far"
            time.sleep(0.1)
        pace = (len(run.steps(0)) - before) / (time.monotonic() - begun)
        done = flood.result()
    assert done["opened"] > 0
    assert pace >= quiet / 2, f"{pace:.1f} steps a second, without it {quiet:.1f}: {done}"
    told_once(run)


def pace_of(run: Run, seconds: float) -> float:
    """Return the steps per second of group 0 without an attack."""
    before = len(run.steps(0))
    time.sleep(seconds)
    return (len(run.steps(0)) - before) / seconds


def test_when_they_have_given_up_the_training_ends_as_if_nothing_had_been(run: Run) -> None:
    steps = run.end_soon()
    run.finish()
    assert {int(run.steps(group)[-1]["step"]) for group in (0, 1)} == {steps}
    assert len(set(run.weights().values())) == 1, run.weights()
