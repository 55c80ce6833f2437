"""Every event has its sentence, and the sentences of a run are consistent."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import example_journal as ex
import pytest
from folded import fold

from ftslurm.monitor.sentences import describe, notes
from ftslurm.monitor.status import RunStatus
from ftslurm.protocol.records import EVENTS
from ftslurm.protocol.run_states import FAULTS
from ftslurm.words import clock, few, seconds

# What each drill is called, of rank 2 of group 1 on n2.
DRILLS = [
    ("kill", "SIGKILL of rank 2 of group 1"),
    ("term", "SIGTERM of rank 2 of group 1"),
    ("stop", "SIGSTOP of rank 2 of group 1"),
    ("corrupt", "a flipped bit of rank 2 of group 1"),
    ("node", "loss of the node n2 of rank 2 of group 1"),
    ("cancel", "scancel of the step of group 1"),
    ("meteor", "meteor of rank 2 of group 1"),
]


def told(lines: Iterable[ex.Line]) -> list[str]:
    """Return the lines that the user reads."""
    status, said = RunStatus(), []
    for line in lines:
        status = fold(status, line)
        words = describe(line, status)
        if words is not None:
            said.append(words)
    return said


def at(time: float) -> RunStatus:
    return fold(RunStatus(), *(line for line in ex.one_kill() if line["time"] <= ex.START + time))


def test_a_kill_reads_like_a_story() -> None:
    log = "logs/group-0001/attempt-000/rank-0.log"
    assert told(ex.one_kill()) == [
        "run ddp-0930-k3 starts: 3 groups of 1 worker, on this machine",
        "allocation local: n1, n2, n3",
        "the Lighthouse is up after 0.4 s",
        "all 3 groups launched on n1, n2, n3",
        "training: step 1 committed, 2.4 s after the launch (3 groups in the quorum)",
        "drill: SIGKILL of rank 0 of group 1 at step 61",
        f"group 1 attempt 0 died at step 61: killed (signal 9) on n2 - log: {log}",
        "group 1 relaunched as attempt 1 on n2, 0.1 s after attempt 0 failed",
        "group 1 is back: first step 72 committed 2.1 s after it died",
        "group 0 has finished",
        "group 1 has finished",
        "group 2 has finished",
        "the run succeeded (120 steps, 1 restart): all 3 groups have finished",
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            ex.exited(11, 1, cause="user_error", code=1, node="n2", error="ValueError: boom", log=None),
            "group 1 attempt 0 died at step 31: the script failed (exit code 1) on n2: ValueError: boom",
        ),
        (ex.exited(11, 1, cause="cancelled"), "group 1 was stopped (at step 31)"),
        (
            ex.exited(11, 1, cause="node_lost", log=None, node="n2"),
            "group 1 attempt 0 died at step 31: node lost on n2",
        ),
        (
            ex.exited(11, 1, cause="cosmic_ray", log=None),
            "group 1 attempt 0 died at step 31: ended for no known reason",
        ),
        (
            ex.event(11, "restart_scheduled", group=1, attempt=1, due=ex.START + 15, reason="killed"),
            "group 1: attempt 1 will start in 4.0 s (backoff)",
        ),
        (
            ex.event(11, "launch_refused", unit="group-0001", group=1, attempt=1, reason="srun: busy"),
            "group 1: Slurm refuses the launch: srun: busy",
        ),
        (
            ex.event(11, "node_excluded", node="n2", reason="silent for 10 s"),
            "node n2 is left out: silent for 10 s",
        ),
        (ex.event(11, "command", what="stop", by="ada", reason="enough"), "stop: enough"),
        (
            ex.event(11, "step_exited", unit="lighthouse", attempt=0, cause="killed", signal=9, node="n1"),
            "the Lighthouse attempt 0 died: killed (signal 9) on n1",
        ),
        (
            ex.finished(11, "stopped", reason="stop by uid 1000"),
            "the run was stopped (120 steps, 0 restarts): stop by uid 1000",
        ),
        (ex.event(11, "step_exited", unit="lighthouse", attempt=0, cause="cancelled"), None),
        (
            ex.event(11, "step_exited", unit="lighthouse", attempt=0, cause="cancelled", error="scancel"),
            "the Lighthouse was stopped: scancel",
        ),
        *((ex.injected(11, kind, 1, rank=2, step=31), f"drill: {said} at step 31") for kind, said in DRILLS),
        (ex.injected(11, "lighthouse"), "drill: the Lighthouse killed"),
        (
            ex.event(11, "fault_refused", kind="stop", group=1, rank=2, reason="group 1 is not running"),
            "drill refused, SIGSTOP of rank 2 of group 1: group 1 is not running",
        ),
        (
            ex.event(11, "fault_refused", kind="kill", group=None, rank=0, reason="no group is running"),
            "drill refused, SIGKILL: no group is running",
        ),
        (ex.event(11, "node_silent", node="n2", seconds=10.2), "nothing is heard of node n2 for 10 s: looking"),
        (ex.event(11, "warning", group=0, text="nothing heals it"), "warning: nothing heals it"),
        (ex.exited(11, 1, cause="hang", log=None, node="n2"), "group 1 attempt 0 died at step 31: hung on n2"),
        (ex.exited(11, 1, cause="preempted"), "group 1 was preempted (at step 31)"),
        (
            ex.exited(11, 1, cause="lighthouse_lost", log=None),
            "group 1 attempt 0 died at step 31: lost the Lighthouse",
        ),
        (
            ex.launched(11, 1, attempt=1, node="n4", standby="standby-000/0", down_s=0.05),
            "group 1 goes on as attempt 1 on n4 with the warm standby, 0.05 s after attempt 0 failed",
        ),
        (
            ex.event(11, "step_adopted", unit="group-0001", group=1, attempt=0, step=31),
            "group-0001 runs on under this controller, at step 31",
        ),
        (
            ex.event(11, "step_adopted", unit="standby-000", attempt=0, step=None),
            "standby-000 runs on under this controller",
        ),
        (
            ex.event(11, "quorum_refused", reason="no quorum for now, the run has reached step 31"),
            "the Lighthouse: no quorum for now, the run has reached step 31",
        ),
        (
            ex.event(11, "quorum_refused", reason="a second manager with the store 'n1:1/store' is refused"),
            "the Lighthouse: a second manager with the store 'n1:1/store' is refused",
        ),
        (ex.event(11, "controller_left", reason="time limit"), "this controller makes way: time limit"),
        (ex.standby(11)[0], None),
        (ex.standby(11, attempt=3)[0], None),
        (ex.progress(11, 1, 36), None),
        (ex.event(11, "invented_tomorrow"), None),
    ],
)
def test_each_event_has_its_words(line: ex.Line, words: str | None) -> None:
    assert describe(line, fold(at(10), line)) == words


def test_a_group_that_never_stepped_died_before_its_first_step() -> None:
    assert told([ex.started(), ex.launched(1, 1), ex.exited(2, 1, log=None)])[-1] == (
        "group 1 attempt 0 died before its first step: killed (signal 9) on n2"
    )


def test_a_group_that_comes_late_is_news_and_the_first_quorum_is_told_once() -> None:
    lines = [ex.started(), *(ex.launched(1, g) for g in range(3)), ex.joined(2, 0, 1, participants=2)]
    lines += [ex.joined(2.1, 1, 1, participants=2), ex.progress(8, 0, 30, participants=2), ex.joined(9, 2, 40)]
    assert told(lines)[2:] == [
        "training: step 1 committed, 2.4 s after the launch (2 groups in the quorum)",
        "group 2 has joined at step 40 (3 groups in the quorum)",
    ]


def test_a_launch_that_is_tried_again_is_not_the_launch_of_all_groups() -> None:
    refused = ex.event(2, "launch_refused", unit="group-0001", group=1, attempt=0, reason="srun: busy")
    said = told([ex.started(2), *(ex.launched(1, g) for g in (0, 1)), refused, ex.launched(4, 1)])
    assert sum("launched on" in line for line in said) == 1


def test_sixty_four_groups_start_in_three_lines() -> None:
    lines = [ex.started(64), *(ex.launched(1, g) for g in range(64)), *(ex.ready(2, g) for g in range(64))]
    said = told([*lines, *(ex.joined(3, g, 1, participants=64) for g in range(64))])
    assert said[1:] == [
        "all 64 groups launched on n1, n2, n3 and 61 more",
        "training: step 1 committed, 2.4 s after the launch (64 groups in the quorum)",
    ]


def test_a_lost_node_reads_like_a_story() -> None:
    log = "logs/group-0001/attempt-000/rank-0.log"
    said = told(ex.lost_node())
    assert "standby-000 is warm on n4 after 1.2 s" in said
    assert said[-5:] == [
        "nothing is heard of node n2 for 10 s: looking",
        "node n2 is left out: silent for 11 s, and no probe reaches it",
        f"group 1 attempt 0 died at step 61: node lost on n2 - log: {log}",
        "group 1 goes on as attempt 1 on n4 with the warm standby, 11 s after attempt 0 failed",
        "group 1 is back: first step 118 committed 12 s after it died",
    ]


@pytest.mark.parametrize(("commit", "where"), [(None, ""), (0.3, ""), (4.0, " (4.0 s in its first step)")])
def test_a_long_first_step_is_told_because_a_script_may_compile_in_it(commit: float | None, where: str) -> None:
    back = ex.joined(20, 1, 72, attempt=1, recovery_s=4.3, phases={"join": 0.2, "commit": commit})
    lines = [*ex.one_kill()[:-4], back]
    assert f"group 1 is back: first step 72 committed 4.3 s after it died{where}" in told(lines)


def test_every_fault_has_its_words() -> None:
    assert {*FAULTS} == {kind for kind, _ in DRILLS} - {"meteor"} | {"lighthouse"}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "-"),
        (0, "under 0.01 s"),
        (0.071, "0.071 s"),
        (0.31, "0.31 s"),
        (2.14, "2.1 s"),
        (48.4, "48 s"),
        (119.4, "119 s"),
        (200, "3 min 20 s"),
        (18_120, "5 h 2 min"),
    ],
)
def test_durations_are_as_precise_as_a_person_wants(value: float | None, words: str) -> None:
    assert seconds(value) == words


def test_clocks_and_lists_are_short() -> None:
    assert [clock(s) for s in (-1, 7, 760, 3723)] == ["0:00", "0:07", "12:40", "1:02:03"]
    assert [few(["a"] * n) for n in (0, 1, 4, 5)] == ["no node", "a", "a, a, a, a", "a, a, a and 2 more"]


def test_a_full_restart_reads_like_a_story() -> None:
    saved = {"group": 1, "attempt": 0, "step": 60, "path": "/r/checkpoints/step-00000060", "seconds": 0.4}
    lines: list[ex.Line] = [
        {"time": ex.START + 16, "event": "checkpoint_saved", **saved},
        {"time": ex.START + 17, "event": "checkpoint_failed", **saved, "error": "OSError: No space left on device"},
        {"time": ex.START + 18, "event": "full_restart", "reason": "group 2, the last that held the state, is down",
         "step": 73, "checkpoint": saved["path"], "checkpoint_step": 60},
        {"time": ex.START + 20, "event": "checkpoint_restored", "group": 1, "attempt": 1, "step": 60, "path": "/x"},
        {"time": ex.START + 21, "event": "run_requeued", "reason": "Slurm has requeued the job"},
        {"time": ex.START + 21, "event": "run_requeued", "reason": "the time limit is near", "steps": 99},
        {"time": ex.START + 20, "event": "roll_over", "reason": "the time limit is near", "seconds": 95.0},
    ]  # fmt: skip
    assert [describe(line, at(15)) for line in lines] == [
        None,
        "the checkpoint of step 60 could not be saved, the training goes on: OSError: No space left on device",
        "full restart from the checkpoint of step 60, 13 steps back or a little more: "
        "group 2, the last that held the state, is down",
        "group 1 resumes from the checkpoint of step 60",
        f"the run stops at step {at(15).step}: Slurm has requeued the job",
        "the run stops at step 99: the time limit is near",
        "a checkpoint is saved, within 95 s, and then the job is started again: the time limit is near",
    ]
    status = reduce(fold, lines, at(15))
    assert "newest checkpoint: step 60" in notes(status)
    assert not any("checkpoint" in line for line in notes(at(15)))


def test_a_hang_is_told_with_its_reason() -> None:
    reason = "rank 0 has not moved for 6 s, computing after step 31"
    died = ex.exited(12, 1, cause="hang", node="n2", rank=0, step=31, error=reason, log=None)
    said = describe(died, fold(at(10), died))
    assert said == f"group 1 attempt 0 died at step 31: hung on n2, rank 0: {reason}"


# What the table shows well enough. Of a new event, think about it before it is named here.
SILENT = {
    *("allocation_ends", "checkpoint_saved", "hang_limit", "node_check_passed", "node_drained", "node_undrained"),
    *("progress", "script_begun", "step_starting", "slurm_asked", "group_healed"),
    *(
        "allocation_lost",
        "group_waits",
        "restart_scheduled",
        "serving",
        "session_opened",
        "step_launched",
        "step_ready",
    ),  # mostly
}


def test_every_event_has_a_sentence_or_is_known_to_need_none() -> None:
    names = {"unit": "group-0001", "group": 1, "attempt": 0, "allocation": "7", "node": "n2", "rank": 0, "step": 31}
    lines = [ex.event(11, kind.event, **names, command="c", what="restart") for kind in EVENTS]
    assert {str(line["event"]) for line in lines if describe(line, fold(at(10), line)) is None} == SILENT
