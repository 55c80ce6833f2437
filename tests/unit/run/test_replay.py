"""A controller's view of the past: the work of an earlier controller, and the owner of the checkpoints."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import example_journal as ex
import pytest
from checkpoints import save

from ftslurm.checkpoint.layout import OWNER, Writer, name_of
from ftslurm.checkpoint.places import Folders
from ftslurm.config.schema import Config
from ftslurm.controller.loop import UNSYNCED
from ftslurm.core.state.model import Evidence, Exit, Node, Out, Pace, Place, Saved, StepId
from ftslurm.core.state.past import Live, Scheduled
from ftslurm.protocol.causes import Cause
from ftslurm.run.directory import RunDir
from ftslurm.run.replay import read_past
from ftslurm.run.stored_checkpoints import begin_with, newest


def test_an_earlier_controllers_work_is_read_from_its_journal(tmp_path: Path) -> None:
    lines = [line for line in ex.one_kill() if line["time"] < ex.START + 20]
    past = read_past(ex.new_run(tmp_path, lines))
    assert past is not None
    assert past.attempts == {"lighthouse": 0, "group-0000": 0, "group-0001": 1, "group-0002": 0}
    assert past.step > 61
    saved = {"event": "checkpoint_saved", "time": ex.START + 21, "group": 0, "attempt": 0, "step": past.step + 7}
    assert read_past(ex.new_run(tmp_path / "b", [*lines, saved])) == replace(past, step=past.step + 7, saved=True)
    back: ex.Line = {"event": "full_restart", "time": ex.START + 22, "step": past.step, "checkpoint_step": 60}
    over = read_past(ex.new_run(tmp_path / "c", [*lines, back]))
    undone = {unit: replace(step, step=None) for unit, step in past.live.items()}
    assert over == replace(past, history=1, resuming=60, equal=60, undone={*undone}, live=undone, time=back["time"])
    late = [ex.exited(26, 2, step=past.step), ex.progress(27, 0, 63, 1)]  # an attempt of before takes its time to end
    again = [ex.exited(23, 0, step=past.step), ex.launched(24, 0, 1), ex.joined(25, 0, 61, 1), *late]
    for run in (
        ex.new_run(tmp_path / "d", [*lines, back, *again]),
        ex.new_run(tmp_path / "e", [*lines, back, *again[:-1]]),
    ):
        new = read_past(run)
        assert new is not None
        assert (new.step, new.resuming) == (63 if run.root.parent.name == "d" else 61, None)


def test_the_end_of_an_attempt_tells_how_far_the_run_had_come(tmp_path: Path) -> None:
    ended = [ex.exited(20, 1, step=95), ex.exited(20.1, 2, step=None)]
    past = read_past(ex.new_run(tmp_path, [ex.started(), *(ex.launched(1, g) for g in (1, 2)), *ended]))
    assert past is not None
    assert past.step == 95


def test_what_was_learnt_for_hangs_is_read_back(tmp_path: Path) -> None:
    lines: list[ex.Line] = [
        line("run_started", job_id="80"),
        line("hang_limit", in_step_s=300.0, between_s=600.0, steps=20, longest_s=2.0),
        line("hang_limit", in_step_s=300.0, between_s=1200.0, steps=99, longest_s=400.0),
    ]
    past = read_past(ex.new_run(tmp_path, lines))
    assert past is not None
    assert (past.longest_s, past.seen) == (400.0, 99)


@pytest.mark.parametrize("slow", [True, False])
def test_what_was_told_of_a_slow_group_is_known_to_the_next_controller(tmp_path: Path, slow: bool) -> None:
    pace = {"slow": slow, "step": 90, "own_s": 0.4, "others_s": 0.2, "step_s": 0.5}
    lines = [ex.started(), ex.launched(1, 1), line("group_slow", group=1, attempt=0, nodes=["n2"], **pace)]
    past = read_past(ex.new_run(tmp_path, lines))
    assert past is not None
    assert past.live["group-0001"].pace == Pace(0.4, 0.5, 2.0 if slow else None)


def line(event: str, **fields: object) -> ex.Line:
    return {"event": event, "time": ex.START} | fields


def launched(unit: str, attempt: int, node: str, allocation: str = "81_0", **fields: object) -> ex.Line:
    group = int(unit[-4:]) if unit.startswith("group-") else None
    known: ex.Line = {"unit": unit, "group": group, "attempt": attempt, "nodes": [node], "slot": 0}
    known["hosts"] = [node, node]
    return line("step_launched", **known, allocation=allocation, standby=None) | fields


ARRAY = [
    line("run_started", job_id="80", mode="array", host="h1", requeues=0),
    launched("lighthouse", 0, "n9", "80", nodes=[], hosts=[]),
    *(launched(f"group-000{n}", 0, f"n{n}", f"81_{n}") for n in range(4)),
    launched("standby-000", 0, "n7", "81_7"),
    line("step_ready", unit="group-0000", attempt=0, slurm_step="91.0"),
    line("step_ready", unit="group-0000", attempt=0, slurm_step="--me"),  # no step has this name
    line("group_joined", group=0, attempt=0, step=1),
    line("step_ready", unit="standby-000", attempt=0, slurm_step="97.0"),
    line("step_exited", unit="group-0001", group=1, attempt=0, cause="killed", noticed=ex.START - 1, away_since=1.5),
    launched("group-0001", 1, "n7", "81_7", standby="standby-000/0"),
    line("step_exited", unit="group-0002", group=2, attempt=0, cause="ok"),
    line("step_exited", unit="group-0003", group=3, attempt=0, cause="user_error"),
    line("group_given_up", group=3, reason="x"),
    line("fault_injected", by="faults.plan"),
    line("scaled", groups=4),
]


def test_a_lost_controllers_journal_tells_what_ran_and_what_was_over(tmp_path: Path) -> None:
    past = read_past(ex.new_run(tmp_path, ARRAY))
    assert past is not None
    first = Place(("n0",), 0, "81_0")
    taken = Place(("n7",), 0, "81_7")
    assert tuple(past.live.values()) == (
        Live("lighthouse", StepId("lighthouse", 0), 0, Place(()), (), ex.START, home="h1"),
        Live("group-0000", StepId("group-0000", 0), 0, first, ("n0", "n0"), ex.START, "91.0", None, ex.START),
        Live("group-0001", StepId("standby-000", 0), 1, taken, ("n7", "n7"), ex.START, "97.0", ex.START - 1, away=1.5),
    )
    assert past.over == {"group-0002": None, "group-0003": "x"}
    assert (past.drilled, past.groups) == (1, 4)


def test_the_next_controller_needs_no_line_for_whose_disk_this_one_does_not_wait(tmp_path: Path) -> None:
    """Progress is in another file, and the workers have newer."""
    assert {record.event for record in UNSYNCED} == {"progress", "script_begun"}
    begun = [line("script_begun", unit=f"group-000{n}", group=n, attempt=0) for n in range(4)]
    for at in (5, 9, len(ARRAY)):
        before, lines = read_past(ex.new_run(tmp_path / f"a{at}", ARRAY)), [*ARRAY[:at], *begun, *ARRAY[at:]]
        assert read_past(ex.new_run(tmp_path / f"b{at}", lines)) == before


@pytest.mark.parametrize(
    ("progress", "step"),
    [
        (ex.progress(3, 1, 9, attempt=1), 9),
        (ex.progress(3, 1, 9, attempt=1, committed=0), None),
        (ex.progress(3, 1, 9, attempt=0), None),
        (ex.progress(3, 0, 9), None),
    ],
)
def test_how_far_an_attempt_had_come_that_still_runs_is_known(
    progress: ex.Line, step: int | None, tmp_path: Path
) -> None:
    lines = [ex.started(), ex.launched(1, 1, attempt=1), ex.joined(2, 1, 7, attempt=1), progress]
    past = read_past(ex.new_run(tmp_path, lines))
    assert past is not None
    assert past.live["group-0001"].step == step


@pytest.mark.parametrize("equal", [0, 2])
def test_a_group_that_differs_from_a_majority_is_known_until_it_has_ended(tmp_path: Path, equal: int) -> None:
    found = line("replicas_differ", step=40, rank=1, groups=[0], nodes=["n0"], equal=equal, reason="other weights")
    past = read_past(ex.new_run(tmp_path / "a", [*ARRAY, found]))
    assert past is not None
    step = past.live["group-0000"]
    sign = Evidence(1, "n0", error="other weights", cause=Cause.DIVERGED)
    assert (step.diverged, step.recalled) == ((sign, "other weights") if equal else (None, None))
    assert past.live["group-0001"].diverged is None
    again = [line("step_exited", unit="group-0000", group=0, attempt=0, cause="diverged")]
    past = read_past(ex.new_run(tmp_path / "b", [*ARRAY, found, *again, launched("group-0000", 1, "n0")]))
    assert past is not None
    assert past.live["group-0000"].diverged is None


def test_how_far_groups_were_equal_is_known_until_a_full_restart(tmp_path: Path) -> None:
    saved = [line("checkpoint_saved", group=0, attempt=0, step=step, path="p", equal=step - 3) for step in (10, 20)]
    past = read_past(ex.new_run(tmp_path / "a", [*ARRAY, *saved]))
    assert past is not None
    assert past.equal == 17
    again = line("full_restart", reason="x", step=20, checkpoint="p", checkpoint_step=10)
    past = read_past(ex.new_run(tmp_path / "b", [*ARRAY, *saved, again]))
    assert past is not None
    assert past.equal == 10


def test_drained_nodes_are_read_until_slurm_drains_them_no_longer(tmp_path: Path) -> None:
    drained = [line("node_shunned", node=node, reason="Slurm says draining") for node in ("n2", "n1")]
    past = read_past(ex.new_run(tmp_path / "a", [*ARRAY, *drained]))
    assert past is not None
    assert past.nodes.by_name.keys() == {"n1", "n2"}
    past = read_past(ex.new_run(tmp_path / "b", [*ARRAY, *drained, line("node_unshunned", node="n2", reason="x")]))
    assert past is not None
    assert past.nodes.those(lambda node: node.shunned) == {"n1"}


def test_the_checks_of_nodes_are_read_as_long_as_the_allocation_is_the_same(tmp_path: Path) -> None:
    first = line("run_started", job_id="7", requeues=0, mode="steps", groups=2)
    checks = [line("node_check_passed", node=node, log="a.log") for node in ("n1", "n2")]
    checks += [line("node_check_failed", node="n3", reason="bad GPU"), line("node_excluded", node="n2", reason="x")]
    past = read_past(ex.new_run(tmp_path / "a", [first, *checks, first]))
    assert past is not None
    assert past.nodes.passed == {"n1"}
    assert past.nodes.by_name == {"n3": Node(Out.UNFIT, ex.START, "bad GPU"), "n2": Node(Out.LOST, ex.START)}
    past = read_past(ex.new_run(tmp_path / "b", [first, *checks, first | {"requeues": 1}]))
    assert past is not None
    assert past.nodes.passed == frozenset()


def test_how_attempts_ended_and_which_nodes_were_left_out_are_read_too(tmp_path: Path) -> None:
    out = line("node_excluded", node="n1", group=1, reason="x")
    more = [out, line("node_excluded", node="n2", reason="x"), line("node_excluded", node="n3", reason="x")]
    failed = line("step_exited", unit="group-0001", group=1, attempt=1, cause="user_error", node="n7", error="E")
    failed |= {"healthy_s": 4.5, "code": 1, "step": 9}
    never = line("step_exited", unit="group-0000", attempt=1, cause="start_failed", launched=False)
    past = read_past(ex.new_run(tmp_path, [*ARRAY, *more, line("node_restored", node="n2"), failed, never]))
    assert past is not None
    assert past.nodes.by_name == {"n1": Node(Out.BLAMED, ex.START, group=1), "n3": Node(Out.LOST, ex.START)}
    exits = past.exits
    assert [e.cause for unit in sorted(exits) for e in exits[unit]] == [
        Cause.START_FAILED,
        Cause.KILLED,
        Cause.USER_ERROR,
        Cause.OK,
        Cause.USER_ERROR,
    ]
    assert exits["group-0000"][0].launched is False
    ran_as = StepId("standby-000", 0)
    assert exits["group-0001"] == (
        Exit(0, ex.START, Cause.KILLED, ("n1",)),
        Exit(1, ex.START, Cause.USER_ERROR, ("n7",), 1, node="n7", error="E", step=9, healthy_s=4.5, ran_as=ran_as),
    )


def test_steps_in_the_controllers_own_job_live_as_long_as_that_does(tmp_path: Path) -> None:
    began = line("run_started", job_id="80", mode="steps", host="h1", requeues=1)
    past = read_past(ex.new_run(tmp_path, [began, launched("group-0000", 0, "n1", "80")]))
    assert past is not None
    (step,) = past.live.values()
    assert (step.place.allocation, step.home, past.home) == (None, "80.1", "80.1")
    older = line("run_started", job_id="80")  # as written before these were known: then nothing can be adopted
    past = read_past(ex.new_run(tmp_path / "b", [older, launched("group-0000", 0, "n1", "80")]))
    assert past is not None
    assert next(iter(past.live.values())).home == ""


def test_a_group_in_the_controllers_own_job_has_a_job_of_its_own(
    tmp_path: Path,
) -> None:
    began = line("run_started", job_id="85", mode="array", host="h1", requeues=0)  # a pilot that has replaced another
    past = read_past(ex.new_run(tmp_path, [began, launched("group-0000", 0, "n1", "85")]))
    assert past is not None
    assert [(step.place.allocation, step.home) for step in past.live.values()] == [("85", None)]


def test_a_lighthouse_that_was_ended_by_its_controller_is_not_looked_for(tmp_path: Path) -> None:
    past = read_past(ex.new_run(tmp_path, [*ARRAY, line("controller_left", leader=1)]))
    assert past is not None
    assert [step.home for step in past.live.values() if step.unit == "lighthouse"] == [""]


def test_launches_in_another_job_are_counted_apart_from_restarts(tmp_path: Path) -> None:
    one = [ex.started(2), ex.launched(1, 0), ex.launched(1, 1), ex.launched(5, 1, attempt=1)]
    two = [ex.started(2), ex.launched(11, 0, attempt=1), ex.launched(11, 1, attempt=2), ex.launched(12, 0, attempt=2)]
    past = read_past(ex.new_run(tmp_path, [*one, *two]))
    assert past is not None
    assert (past.attempts, past.restarts) == ({"group-0000": 2, "group-0001": 2}, 0)


def test_a_restart_that_was_due_is_read_and_counts_as_one_whoever_launches_it(tmp_path: Path) -> None:
    failed = [ex.exited(5, 1), ex.event(5, "restart_scheduled", group=1, attempt=1, due=ex.START + 15, reason="x")]
    one = [ex.started(2), ex.launched(1, 0), ex.launched(1, 1), *failed]
    past = read_past(ex.new_run(tmp_path / "a", one))
    assert past is not None
    assert tuple(past.scheduled.values()) == (Scheduled("group-0001", ex.START + 15, "x", None),)
    two = [*one, ex.started(9), ex.launched(15, 1, attempt=1), ex.exited(16, 0), ex.launched(17, 0, attempt=1)]
    past = read_past(ex.new_run(tmp_path / "b", two))
    assert past is not None
    assert (past.scheduled, past.restarts) == ({}, 2)


def test_a_line_that_is_not_ours_is_no_reason_to_stop(tmp_path: Path) -> None:
    run = ex.new_run(tmp_path, [*ARRAY, launched("group-0003", 7, "n3") | {"hosts": [None, "n3"]}])
    with run.events.open("a") as journal:
        journal.write("[" * 100_000 + '\n{"event": "step_exited", "unit": "group-0003", "attempt": 7, "time": 1e999}\n')
        journal.write('{"event": "group_joined", "group": 0, "time": ' + "9" * 400 + "}\n")
    past = read_past(run)
    assert past is not None
    assert past.attempts["group-0003"] == 7


def test_of_a_run_that_has_not_begun_there_is_no_past(tmp_path: Path) -> None:
    assert read_past(RunDir(tmp_path / "nowhere")) is None


def test_two_live_runs_do_not_share_their_checkpoints(tmp_path: Path) -> None:
    lines = [line for line in ex.one_kill() if line["time"] < ex.START + 20]
    first, second = ex.new_run(tmp_path / "a", lines), ex.new_run(tmp_path / "b", lines)
    config = Config()
    assert begin_with(config, first)[1] is None
    config.checkpoint.dir = str(tmp_path / "ckpt")
    assert begin_with(config, first)[1] is None
    assert begin_with(config, second)[1] is None  # the first has never sent a message
    assert begin_with(config, first)[1] is None
    for run in (first, second):
        run.alive.touch()
    assert begin_with(config, first)[1] is None  # its own, when it was requeued
    why = begin_with(config, second)[1]
    assert why is not None
    assert first.root.name in why
    server = time.time() - 3600.0  # its clock; we touch a file there, and compare
    os.utime(first.alive, (server, server))
    os.utime(second.alive, (server + 20, server + 20))
    assert begin_with(config, second)[1] == why
    os.utime(second.alive, (server + 40, server + 40))
    assert begin_with(config, second)[1] is None


def test_who_asks_for_the_newest_checkpoint_reads_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[str]()
    cat_file = Folders.cat_file
    monkeypatch.setattr(Folders, "cat_file", lambda files, path: (read.append(path), cat_file(files, path))[1])
    config, run = Config(), ex.new_run(tmp_path / "a")
    config.checkpoint.dir = str(tmp_path / "ckpt")
    assert begin_with(config, run) == (None, None)
    assert [Path(path).name for path in read] == [OWNER]
    save(tmp_path / "ckpt", 7, Writer("a", 0, 0))
    read.clear()
    assert newest(config, run) == Saved(f"{tmp_path}/ckpt/{name_of(7)}", 7)
    assert OWNER not in [Path(path).name for path in read]


def test_the_checkpoints_of_a_run_that_is_over_may_be_used_at_once(tmp_path: Path) -> None:
    first, second = ex.new_run(tmp_path / "a", ex.one_kill()), ex.new_run(tmp_path / "b", [])
    config = Config()
    config.checkpoint.dir = str(tmp_path / "ckpt")
    assert begin_with(config, first)[1] is None
    for run in (first, second):
        run.alive.touch()
    assert begin_with(config, second)[1] is None


def test_a_refused_launch_was_no_attempt(tmp_path: Path) -> None:
    tries = [
        launched("group-0001", 2, "n1"),
        line("launch_refused", unit="group-0001", group=1, attempt=2, again_s=2.0),
    ]
    ended = line("step_exited", unit="group-0001", group=1, attempt=1, cause="killed", noticed=7.0, away_since=5.0)
    past = read_past(ex.new_run(tmp_path, [*ARRAY, ended, *tries]))
    assert past is not None
    assert (past.attempts["group-0001"], past.restarts) == (1, 1)  # one that had been launched
    assert "group-0001" not in [step.unit for step in past.live.values()]
    assert tuple(past.scheduled.values()) == (Scheduled("group-0001", ex.START + 2, "start", 7.0, 5.0),)
