"""The judge of the chaos campaign finds lost, redone and changed steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from chaos import since_the_last
from chaos_judge import judge


def launched(seq: int, group: int, attempt: int, time: float) -> dict[str, Any]:
    return {"seq": seq, "event": "step_launched", "time": time, "group": group, "attempt": attempt}


def step(group: int, attempt: int, number: int, digest: str = "", time: float | None = None) -> dict[str, Any]:
    at = float(number) if time is None else time
    line = {"time": at, "group": group, "rank": 0, "attempt": attempt, "step": number}
    return line | {"digest": digest or f"weights of step {number}"}


TWO = [launched(1, 0, 0, 0.0), launched(2, 1, 0, 0.0)]
BOTH = [step(group, 0, number) for group in (0, 1) for number in (1, 2, 3)]


def test_a_training_without_faults_is_fine() -> None:
    assert judge(TWO, BOTH).problems == []


def test_a_step_with_two_digests_is_found() -> None:
    steps = [*BOTH, step(0, 0, 4), step(1, 0, 4, "others"), step(0, 0, 5), step(1, 0, 5)]
    assert [p for p in judge(TWO, steps).problems if "step 4 was committed with different weights" in p]


def test_a_step_that_only_the_dead_had_committed_is_none_but_counted() -> None:
    exited = {"seq": 3, "event": "step_exited", "time": 4.1, "group": 0, "attempt": 0}
    steps = [*BOTH, step(0, 0, 4), step(1, 0, 4, "without group 0", time=4.5), step(1, 0, 5)]
    verdict = judge([*TWO, exited], steps)
    assert verdict.problems == []
    assert len(verdict.died_with) == 1
    assert judge(TWO, steps).problems, "it has not died"


def test_a_step_that_nobody_has_committed_is_found() -> None:
    assert "nobody has committed 1 steps, the first is 4" in judge(TWO, [*BOTH, step(0, 0, 5), step(1, 0, 5)]).problems


def test_a_new_attempt_that_begins_anew_is_found_also_with_the_same_weights() -> None:
    events = [*TWO, launched(3, 1, 1, 3.5)]
    problems = judge(events, [*BOTH, step(1, 1, 1, time=4.0), step(0, 0, 4)]).problems
    assert problems == ["(1, 1, 0) began with step 1, 3 was committed before it"]


def test_a_rank_that_commits_a_step_twice_is_found() -> None:
    assert judge(TWO, [*BOTH, step(0, 0, 3, time=3.5)]).problems == ["(0, 0, 0) has committed step 3 after 3"]


def test_after_a_full_restart_the_steps_since_the_checkpoint_are_taken_again() -> None:
    full = {"seq": 3, "event": "full_restart", "time": 4.0, "checkpoint_step": 2}
    events = [*TWO, full, launched(4, 0, 1, 5.0), launched(5, 1, 1, 5.0)]
    again = [step(group, 1, number, f"other weights {number}", 4.0 + number) for group in (0, 1) for number in (3, 4)]
    assert judge(events, [*BOTH, *again]).problems == []
    early = [*BOTH, *again, step(0, 1, 2, "too early", 6.5)]
    assert [p for p in judge(events, early).problems if "before the checkpoint of step 2" in p]


def test_a_group_that_ends_between_two_faults_is_found_unless_the_last_one_explains_it_and_a_crash_always() -> None:
    def ended(group: int | None, number: int = 9) -> dict[str, Any]:
        unit = "lighthouse" if group is None else f"group-{group:04d}"
        end = {"event": "step_exited", "unit": unit, "group": group, "attempt": 1, "cause": "killed", "error": "why"}
        return end | {"signal": number, "step": 3}

    scene: Any = SimpleNamespace(run=SimpleNamespace(events=[*TWO, ended(0), ended(1)]), judged=0, explained={0})
    assert since_the_last(scene) == ["after the last fault: group 1 ended of killed: why"]
    assert since_the_last(scene) == [], "once"
    scene.run.events += [ended(0, 11), ended(None, 6), ended(None)]
    assert [said.split(":")[0] for said in since_the_last(scene)] == [
        "group-0000 attempt 1 ended at step 3",
        "lighthouse attempt 1 ended at step 3",
    ]
