"""The console output: plain lines into a pipe, a live table on a terminal, a summary at the end."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import example_journal as ex
import pytest
from folded import fold
from rich.console import Console, RenderableType

from ftslurm.monitor.status import RunStatus
from ftslurm.monitor.status_json import to_json
from ftslurm.monitor.summary import failures, summary
from ftslurm.monitor.table import follow, render
from ftslurm.run import deliveries
from ftslurm.run.deliveries import Delivery
from ftslurm.run.directory import RunDir

STAMP = re.compile(r"^\d\d:\d\d:\d\d ")


def terminal(width: int = 80, height: int = 24) -> Console:
    return Console(file=StringIO(), force_terminal=True, width=width, height=height, color_system=None, _environ={})


def pipe() -> Console:
    return Console(file=StringIO(), force_terminal=False, width=80, _environ={})


def output(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def drawn(what: RenderableType, width: int = 80) -> list[str]:
    console = Console(file=StringIO(), width=width, _environ={})
    console.print(what)
    return [line.rstrip() for line in output(console).splitlines()]


def at(time: float) -> RunStatus:
    return fold(RunStatus(), *(line for line in ex.one_kill() if line["time"] <= ex.START + time))


def many(groups: int = 64, total_steps: int | None = 100_000) -> RunStatus:
    """Return a status of 64 groups: 7 has died, 9 is given up, 60 to 63 are starting, the others train."""
    lines = [ex.started(groups, total_steps), *ex.lighthouse(0.2)]
    lines += [ex.launched(1, g, node=f"gpu-node-{g:03d}") for g in range(groups)]
    lines += [ex.ready(2, g) for g in range(60)]
    lines += [ex.joined(3, g, 31_000, participants=60) for g in range(60)]
    lines += [ex.progress(10, g, 31_234, participants=60) for g in range(60)]
    lines += [ex.exited(12, 7), ex.exited(12, 9), ex.event(12, "group_given_up", group=9, reason="4 failures in 600 s")]
    return fold(RunStatus(), *lines)


def test_the_table_and_the_summary_say_which_hooks_fail(tmp_path: Path) -> None:
    bad = Delivery("hook mail.sh", done=12, failed=3, last_error="exit code 1: no route to host")
    slow = Delivery("hook slow.sh", done=4, dropped=2)
    said = [
        "hook mail.sh: 3 of 12 failed, 0 dropped: exit code 1: no route to host (logs/observer.log)",
        "hook slow.sh: 0 of 4 failed, 2 dropped: it is too slow (logs/observer.log)",
    ]
    status = replace(at(16), hooks=(bad, Delivery("hook good.sh", done=12), slow))
    lines = drawn(render(status, ex.START + 16, 120), 120)
    assert [line for line in lines if "hook" in line] == said
    run = ex.new_run(tmp_path, ex.one_kill())
    run.observer.mkdir()
    deliveries.write(run, [bad, slow])
    summed_up = drawn(summary(at(1000), run), 200)
    assert [line.partition("  ")[2].strip() for line in summed_up if line.startswith("hooks")] == said


def test_a_pipe_gets_one_line_per_event_and_some_about_the_progress(tmp_path: Path) -> None:
    console = pipe()
    status = follow(ex.new_run(tmp_path, ex.one_kill()), console=console, until=lambda: False)
    lines = output(console).splitlines()
    assert all(STAMP.match(line) for line in lines)
    said = [STAMP.sub("", line) for line in lines]
    assert [line for line in said if line.startswith("step ")] == [
        "step 56/120, 3 groups, 5.0 steps/s",
        "step 106/120, 3 groups, 5.0 steps/s",
    ]
    assert said[-1] == "group 2 has finished"  # the summary that follows says how the run has ended
    assert len(said) == 14
    assert "\x1b" not in output(console)
    assert status.outcome == "succeeded"


def test_node_lists_are_not_taken_for_markup(tmp_path: Path) -> None:
    console = pipe()
    run = ex.new_run(tmp_path, [ex.event(0, "node_excluded", node="n[1-3]", reason="[red]lost")])
    follow(run, console=console, until=lambda: True)
    assert "node n[1-3] is left out: [red]lost" in output(console)


@pytest.mark.parametrize("console", [terminal(), pipe()], ids=["terminal", "pipe"])
def test_following_ends_when_the_controller_is_gone(console: Console, tmp_path: Path) -> None:
    run = ex.new_run(tmp_path, [ex.started()], torn='{"seq": 2, "event": "run_fin')
    rounds = iter([False, False, True])
    status = follow(run, console=console, until=lambda: next(rounds), poll_s=0)
    assert status.outcome == "running"
    assert len(status.groups) == 3


def test_what_was_written_before_the_controller_went_is_still_read(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")

    def gone() -> bool:
        ex.write(run, ex.one_kill())
        return True

    assert follow(run, console=pipe(), until=gone).outcome == "succeeded"


def test_a_run_without_a_journal_yet_is_waited_for(tmp_path: Path) -> None:
    run, waits = RunDir(tmp_path / "run"), []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            ex.write(run, ex.one_kill())

    assert follow(run, console=terminal(), until=lambda: False, poll_s=0.5, sleep=sleep).outcome == "succeeded"
    assert waits == [0.5] * 3


def test_someone_who_comes_late_is_told_the_last_events_only(tmp_path: Path) -> None:
    console = pipe()
    follow(ex.new_run(tmp_path, ex.one_kill()), console=console, until=lambda: True, history=2)
    assert [STAMP.sub("", line) for line in output(console).splitlines()] == [
        "group 1 has finished",
        "group 2 has finished",
    ]


def test_a_terminal_gets_events_above_a_live_table(tmp_path: Path) -> None:
    lines, console = ex.one_kill(), terminal()
    run, rest = ex.new_run(tmp_path, lines[:40]), [lines[40:]]

    def sleep(seconds: float) -> None:
        ex.write(run, rest.pop())

    follow(run, console=console, until=lambda: False, sleep=sleep, clock=lambda: ex.START + 16)
    text = output(console)
    assert "all 3 groups launched on n1, n2, n3" in text
    assert "0 RUNNING" in text
    assert "group 1 is back: first step 72 committed 2.1 s after it died" in text
    assert "logs/group-0001/attempt-000/rank-0.log\n" in text  # not broken into two lines


def test_control_c_is_passed_on_and_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    console = terminal()

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow(ex.new_run(tmp_path, [ex.started()]), console=console, until=lambda: False, sleep=interrupted)
    assert output(console).rfind("\x1b[?25h") > output(console).rfind("\x1b[?25l") >= 0  # the cursor is shown again


def test_the_live_table_at_eighty_columns() -> None:
    assert drawn(render(at(16), ex.START + 16)) == [
        "ddp-0930-k3                              2 of 3 groups stepping  1 restart  0:16",
        "━━━━━━━━━━━━━━━                 step 61/120  5.0 steps/s  0:12 left",
        "",
        "group phase    step groups restarts node",
        "    0 RUNNING    61      3        0 n1",
        "    1 STARTING   61      -        1 n2 waits for workers, 1 s",
        "    2 RUNNING    61      3        0 n3",
        "",
        "Lighthouse RUNNING on n1",
    ]


def test_a_run_of_unknown_length_counts_steps_instead() -> None:
    lines = drawn(render(many(total_steps=None), ex.START + 12))
    assert lines[1] == "step 31234  33.4 steps/s"


def test_a_run_of_which_nothing_is_known_yet_can_be_drawn() -> None:
    assert drawn(render(RunStatus(run_id="ddp"), 0.0))[0] == "ddp"
    assert drawn(summary(RunStatus(run_id="ddp"), RunDir(Path("/runs/ddp"))))[0] == "run ddp has not finished"


def test_sixty_four_groups_fit_into_a_low_terminal_those_that_do_not_step_first() -> None:
    lines = drawn(render(many(), ex.START + 12, 80, 17))
    assert len(lines) <= 16
    rows = [line.split()[:2] for line in lines if re.match(r" +\d+ [A-Z]", line)]
    assert rows[:3] == [["9", "FAILED"], ["7", "PENDING"], ["60", "STARTING"]]
    assert [phase for _, phase in rows[3:]] == ["STARTING"] * 3 + ["RUNNING"] * (len(rows) - 6)
    told = " ".join(" ".join(lines).split())
    assert "gpu-node-009 killed (signal 9) on n10; 4 failures in 600 s" in told
    assert f"... {64 - len(rows)} more RUNNING" in told


def test_when_not_even_those_fit_they_are_counted() -> None:
    lines = drawn(render(many(), ex.START + 12, 80, 12))
    assert len(lines) <= 11
    assert lines[-3] == "  ...  58 more RUNNING, 3 more STARTING"


def test_a_reason_that_does_not_fit_is_cut_and_the_most_urgent_group_is_still_there() -> None:
    words = "the script failed: " + "because of this and that, " * 40
    status = fold(many(), ex.event(13, "group_given_up", group=9, reason=words))
    for height in range(4, 30):
        lines = drawn(render(status, ex.START + 13, 80, height))
        assert any(line.startswith("    9 FAILED") for line in lines)
        assert any(line.endswith(("...", "…")) for line in lines)
        assert len(lines) < max(height, 12)


def test_columns_are_dropped_in_their_order_so_that_reasons_have_room() -> None:
    tables = [drawn(render(many(), ex.START + 12, width), width) for width in (120, 80, 44)]
    names = [next(line.split() for line in lines if line.startswith("group ")) for lines in tables]
    assert names[0] == ["group", "phase", "step", "groups", "attempt", "restarts", "steps/s", "node"]
    for wide, narrow in pairwise(names):
        assert set(narrow) < set(wide)
    assert {"group", "phase", "step", "node"} <= set(names[-1])


def test_sixty_four_groups_have_a_line_each_in_a_high_terminal() -> None:
    lines = drawn(render(many(), ex.START + 12, 80, 100))
    assert sum("gpu-node-" in line for line in lines) == 64


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
@pytest.mark.parametrize("height", [1, 5, 24])
def test_nothing_is_wider_or_higher_than_the_terminal_allows(width: int, height: int) -> None:
    console = terminal(width, height)
    console.print(render(many(), ex.START + 12, width, height))
    lines = output(console).splitlines()
    assert max(len(line) for line in lines) <= width
    assert len(lines) < max(height, 12)


def test_the_summary_says_how_it_ended_and_what_the_restart_cost() -> None:
    assert drawn(summary(at(30), RunDir(Path("/scratch/runs/ddp-0930-k3")))) == [
        "run ddp-0930-k3 succeeded: all 3 groups have finished",
        "",
        "steps     120/120 in 28 s",
        "restarts  1",
        "          group 1 attempt 1, back after 2.1 s: killed (signal 9) on n2",
        "logs      /scratch/runs/ddp-0930-k3/logs",
    ]


def test_the_summary_of_a_failed_run_names_the_groups_that_failed_and_their_logs() -> None:
    failed = ex.finished(13, "failed", reason="63 groups can not step (groups.min)", steps=31_234)
    text = "\n".join(drawn(summary(fold(many(), failed), RunDir(Path("/scratch/runs/x"))), 200))
    assert "failed: 63 groups can not step (groups.min)" in text
    assert text.count("4 failures in 600 s") == 1
    log = "logs/group-0007/attempt-000/rank-0.log"
    assert re.search(rf"groups 7, 9: killed \(signal 9\)\n  given up: .*\n  log: {log}\n", text)


def test_groups_that_were_given_up_for_the_same_failure_share_one_entry_of_the_summary() -> None:
    lines = [ex.started(1), *(ex.launched(1, g) for g in range(3))]
    for g, error in enumerate(("KeyError: '0xa3'", "KeyError: '0xb4'", "OSError: disk")):
        trace = f'  File "/x/train.py", line 7, in step\n    f({g})\n{error}'
        lines += [ex.exited(2, g, cause="user_error", node=f"n{g}", rank=g, error=error, traceback=trace)]
        lines += [ex.event(3, "group_given_up", group=g, reason=f"the same error on n{g}")]
    status = fold(RunStatus(), *[*lines, ex.finished(6, "failed", reason="too few groups")])
    said = drawn(summary(status, RunDir(Path("/x"))), 200)
    first = said.index("groups 0, 1: the script failed")
    assert said[first + 1 : first + 11] == [
        '    File "/x/train.py", line 7, in step',
        "      f(0)",
        "  KeyError: '0xa3'",
        "  given up: the same error on n0",
        "  log: logs/group-0000/attempt-000/rank-0.log",
        "group 2: the script failed on n2, rank 2",
        '    File "/x/train.py", line 7, in step',
        "      f(2)",
        "  OSError: disk",
        "  given up: the same error on n2",
    ]
    assert "\n".join(said).count("KeyError") == 1


def test_a_group_stopped_before_it_was_back_is_shown_with_its_failure() -> None:
    lines = [ex.started(2), *(ex.launched(1, g) for g in range(2)), *(ex.joined(2, g, 1) for g in range(2))]
    lines += [ex.exited(3, 1), ex.event(3, "restart_scheduled", group=1, attempt=1, due=3, reason="")]
    lines += [ex.launched(4, 1, 1), ex.exited(5, 1, 1, "cancelled"), ex.exited(5, 0, 0, "cancelled")]
    status = fold(RunStatus(), *[*lines, ex.finished(6, "failed", reason="too few groups")])
    text = drawn(summary(status, RunDir(Path("/x"))), 200)
    assert "group 1: killed (signal 9) on n2" in text
    assert "  log: logs/group-0001/attempt-000/rank-0.log" in text
    assert not any(line.startswith("group 0") for line in text)


def test_a_run_that_was_stopped_or_has_failed_says_how_it_is_continued() -> None:
    run, status = RunDir(Path("/scratch/my runs/x")), fold(RunStatus(), *[ex.started(1), ex.launched(1, 0)])
    command = "continue with: ftslurm resume '/scratch/my runs/x'"
    stopped = fold(status, ex.finished(6, "stopped"))
    assert drawn(summary(stopped, run), 200)[-1] == f"{command} (--from-scratch if it has saved no checkpoint)"
    saved = fold(status, ex.event(5, "checkpoint_saved", group=0, attempt=0, step=40), ex.finished(6, "failed"))
    assert drawn(summary(saved, run), 200)[-1] == f"{command} (from the checkpoint of step 40)"
    assert not any("continue" in line for line in drawn(summary(fold(status, ex.finished(6)), run)))


def test_who_continues_a_run_whose_script_has_failed_takes_the_new_code(tmp_path: Path) -> None:
    run, lines = RunDir(tmp_path), [ex.started(1), ex.launched(1, 0), ex.exited(2, 0, cause="user_error")]
    failed = fold(RunStatus(), *[*lines, ex.finished(3, "failed")])
    assert "--new-code" not in drawn(summary(failed, run), 200)[-1]  # it has no copy
    run.code.mkdir()
    assert drawn(summary(failed, run), 500)[-1] == (
        f"continue with: ftslurm resume {tmp_path} --new-code (--from-scratch if it has saved no checkpoint; "
        "with the code as it is now, without --new-code with the run's copy)"
    )


def test_standbys_are_one_line_of_the_live_table_while_the_run_goes_on() -> None:
    status = fold(RunStatus(), *ex.lost_node())
    lines = drawn(render(status, ex.START + 27))
    assert lines[-3:] == [
        "Lighthouse RUNNING on n1",
        "standbys: 0 of 2 ready",
        "left out: n2 (silent for 11 s, and no probe reaches it)",
    ]
    assert not any("standbys" in line for line in drawn(render(fold(status, ex.finished(28)), ex.START + 28)))


def test_what_failed_of_the_same_is_told_once_with_the_end_of_its_traceback() -> None:
    trace = "\n".join(["Traceback (most recent call last):", *(f"  line {n}" for n in range(30)), "ValueError: boom"])
    lines = [ex.started(3), *(ex.launched(1, g) for g in range(3))]
    for g in (0, 2):
        fields: dict[str, Any] = {"cause": "user_error", "code": 1, "error": "ValueError: boom", "node": "n1"}
        lines.append(ex.exited(2, g, traceback=trace, evidence=["[bold]exit code 1"], **fields))
    status = fold(RunStatus(), *lines)
    shown = failures(g for g in status.groups if g.down)
    assert shown is not None
    said = drawn(shown)
    assert said[0] == "groups 0, 2: the script failed (exit code 1)"
    assert said[1:-1] == [*(f"    line {n}" for n in range(23, 30)), "  ValueError: boom"]
    assert said[-1].startswith("  log: logs/group-0000/")
    assert failures(status.groups[1:2]) is None
    assert "  ValueError: boom" in drawn(summary(fold(status, ex.finished(3, "failed")), RunDir(Path("/x"))))


def test_what_the_core_says_of_an_exception_stands_above_its_traceback() -> None:
    trace = (
        'Traceback (most recent call last):\n  File "/x/manager.py", line 644, in wait\nTimeoutError: Timeout expired'
    )
    error = "the wait for the others has timed out: rank 0 of group 0 has taken no step for 61 s"
    lines = [ex.started(1), ex.launched(1, 1), ex.exited(2, 1, cause="user_error", error=error, traceback=trace)]
    text = drawn(summary(fold(RunStatus(), *lines, ex.finished(3, "failed")), RunDir(Path("/x"))), 200)
    first = next(n for n, line in enumerate(text) if line.startswith("group 1"))
    assert text[first].endswith(f": {error}")
    assert text[first + 3] == "  TimeoutError: Timeout expired"


def test_of_many_restarts_the_summary_lists_the_last() -> None:
    lines = [ex.started(1)]
    for n in range(50):
        lines += [ex.launched(n, 0, attempt=n), ex.exited(n + 0.5, 0, attempt=n, node=f"n{n}")]
    text = drawn(summary(fold(RunStatus(), *lines), RunDir(Path("/x"))))
    assert "restarts  49" in text
    assert sum("not back" in line for line in text) == 20


def test_groups_that_stand_still_say_for_how_long() -> None:
    lines = drawn(render(at(15.15), ex.START + 32))
    assert "0 of 3 groups stepping" in lines[0]
    assert lines[1].endswith("step 61/120")
    assert lines[4].split()[-5:] == ["n1", "still", "for", "17", "s"]


def test_a_warning_is_there_as_long_as_the_run_and_takes_one_line_of_a_low_terminal() -> None:
    words = "nothing heals a group that fails, " * 8
    status = fold(at(15.15), ex.event(15.2, "warning", group=0, text=words.strip()))
    shown = drawn(render(status, ex.START + 16))
    assert " ".join(" ".join(shown).split()).count("nothing heals a group") == 8
    low = drawn(render(status, ex.START + 16, height=24))
    assert low[1].startswith("warning: nothing heals a group that fails, nothing")
    assert low[1].endswith("…")
    assert len(low) == len(drawn(render(at(15.15), ex.START + 16, height=24))) + 1
    run = RunDir(Path("/scratch/runs/ddp-0930-k3"))
    over = fold(status, ex.finished(18))
    assert not any("warning" in line for line in drawn(render(over, ex.START + 18)))
    assert any(line.startswith("warning") for line in drawn(summary(over, run)))


def test_nodes_that_are_left_out_have_a_line() -> None:
    status = fold(at(15.15), ex.event(15.2, "node_excluded", node="n2", reason="lost"))
    assert drawn(render(status, ex.START + 16))[-1] == "left out: n2 (lost)"
    status = fold(status, ex.event(15.3, "node_restored", node="n2"))
    assert not any("left out" in line for line in drawn(render(status, ex.START + 16)))


def test_drained_nodes_are_shown_until_slurm_drains_them_no_longer() -> None:
    status = fold(at(15.15), ex.event(15.2, "node_shunned", node="n2", reason="Slurm says draining"))
    assert drawn(render(status, ex.START + 16))[-1] == "drained: n2 (Slurm says draining)"
    assert to_json(status, ex.START + 16)["drained_nodes"] == {"n2": "Slurm says draining"}
    both = fold(status, ex.event(15.2, "node_excluded", node="n1", reason="lost"))
    assert drawn(render(both, ex.START + 16))[-1] == "left out: n1 (lost); drained: n2 (Slurm says draining)"
    status = fold(status, ex.event(15.3, "node_unshunned", node="n2", reason="Slurm says idle"))
    assert not any("drained" in line for line in drawn(render(status, ex.START + 16)))
