"""The output about the jobs that give groups their nodes: lines, table and JSON."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import example_journal as ex
import pytest
from folded import fold
from rich.console import Console

from ftslurm.monitor.sentences import HINTS, describe, hint
from ftslurm.monitor.status import JobStatus, RunStatus
from ftslurm.monitor.status_fold import StatusFold
from ftslurm.monitor.status_json import to_json
from ftslurm.monitor.table import render


def requested(time: float, count: int, pool: int = 0, exclude: tuple[str, ...] = ()) -> ex.Line:
    return ex.event(time, "allocation_requested", pool=pool, count=count, exclude=list(exclude))


def waits(time: float, group: int, job: str | None = None, reason: str = "a job of its own") -> ex.Line:
    return ex.event(time, "group_waits", group=group, reason=reason, allocation=job)


def pending(time: float, job: str, reason: str, pool: int = 0) -> ex.Line:
    return ex.event(time, "allocation_pending", allocation=job, reason=reason, pool=pool)


def granted(time: float, job: str, node: str, ends: float | None = None) -> ex.Line:
    end = None if ends is None else ex.START + ends
    return ex.event(time, "allocation_granted", allocation=job, nodes=[node], pool=0, ends=end)


def lost(time: float, job: str, reason: str, state: str | None) -> ex.Line:
    return ex.event(time, "allocation_lost", allocation=job, nodes=["n2"], reason=reason, state=state)


def array_start(groups: int = 3) -> ex.Line:
    return ex.started(groups) | {"mode": "array", "cluster": "slurm", "job_id": "81"}


def running(groups: int = 3) -> list[ex.Line]:
    """Return a journal of groups in tasks of job array 82, each limited to an hour, at step 10 after ten seconds."""
    lines = [array_start(groups), *(waits(0.1, g) for g in range(groups)), requested(0.2, groups)]
    lines += [waits(0.9, g, f"82_{g}", f"Slurm job 82_{g} (pending)") for g in range(groups)]
    lines += [granted(2, f"82_{g}", f"n{g + 1}", 3600) for g in range(groups)]
    lines += [ex.launched(2, g, allocation=f"82_{g}") for g in range(groups)]
    lines += [ex.ready(4, g) for g in range(groups)]
    lines += [ex.joined(5, g, 1, participants=groups) for g in range(groups)]
    return [*lines, *(ex.progress(10, g, 10, participants=groups) for g in range(groups))]


def told(lines: list[ex.Line]) -> list[str]:
    folding, said = StatusFold(), []
    for line in lines:
        folding.apply(line)
        words = describe(line, folding.status)
        if words is not None:
            said.append(words)
    return said


def after(*lines: ex.Line, groups: int = 3) -> RunStatus:
    return fold(RunStatus(), *[*running(groups), *lines])


def drawn(status: RunStatus, time: float, width: int = 80, height: int = 40) -> list[str]:
    console = Console(file=StringIO(), width=width, height=height, _environ={})
    console.print(render(status, ex.START + time, width, height))
    assert isinstance(console.file, StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_sixty_four_groups_that_get_their_jobs_say_four_lines() -> None:
    said = told(running(64))
    assert said == [
        "run ddp-0930-k3 starts: 64 groups of 1 worker, Slurm job 81",
        "asked for 64 jobs for groups",
        "all 64 groups launched on n1, n2, n3 and 61 more",
        "training: step 1 committed, 2.4 s after the launch (64 groups in the quorum)",
    ]


def test_sixty_four_groups_that_wait_say_once_for_what_and_what_to_do() -> None:
    lines = [array_start(64), *(waits(0.1, g) for g in range(64)), requested(0.2, 64)]
    lines += [pending(3, f"82_{g}", "Priority" if g else "Resources") for g in range(64)]
    lines += [waits(3, g, f"82_{g}", f"Slurm job 82_{g} (pending: Priority)") for g in range(64)]
    lines += [pending(60, f"82_{g}", "QOSMaxJobsPerUserLimit") for g in range(10, 64)]
    said = told(lines)[2:]
    assert said == [
        "job 82_0 waits in the queue: Resources",
        "job 82_1 waits in the queue: Priority",
        f"job 82_10 waits in the queue: QOSMaxJobsPerUserLimit ({HINTS['QOS']})",
    ]
    status = fold(RunStatus(), *lines)
    lines_ = drawn(status, 61, 100, 30)
    assert len(lines_) <= 30
    assert "jobs of groups: 0 running, 64 waiting" in lines_
    assert "  82_1 and 8 more: Priority" in lines_
    assert any(line.startswith("  82_10 and 53 more: QOSMaxJobsPerUserLimit - a limit of your QOS") for line in lines_)


def test_the_table_shows_the_job_of_a_group_its_time_left_and_what_one_waits_for() -> None:
    lines = [ex.exited(11, 1, cause="cancelled", error="Slurm cancelled the step (scancel)")]
    lines += [lost(12, "82_1", "Slurm job CANCELLED", "CANCELLED"), requested(12, 1)]
    lines += [pending(14, "83", "JobHeldUser"), waits(14, 1, "83", "Slurm job 83 (pending: JobHeldUser)")]
    table = drawn(after(*lines), 15)
    assert [line for line in table if re.match(r" +\d (RUN|PEND)", line)] == [
        "    0 RUNNING   10      3        0 n1 job 82_0, 60 min left",
        "    1 PENDING   10      -        0 job 83: JobHeldUser, 4 s",
        "    2 RUNNING   10      3        0 n3 job 82_2, 60 min left",
    ]
    assert table[-2:] == [
        "jobs of groups: 2 running, 1 waiting",
        "  83: JobHeldUser - it is held: scontrol release 83",
    ]


SCANCEL = "Slurm cancelled the step (scancel)"
ENDED = "group 1 was stopped"
REQUEUED = "Slurm cancelled the step due to job requeue"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([ex.exited(11, 1, cause="cancelled", error=SCANCEL)], f"{ENDED}: {SCANCEL} (at step 10)"),
        ([ex.exited(11, 1, cause="cancelled", error=REQUEUED)], f"{ENDED}: {REQUEUED} (at step 10)"),
        ([ex.exited(11, 1, cause="preempted")], "group 1 was preempted (at step 10)"),
        ([ex.exited(11, 1, cause="time_limit")], "group 1 was stopped: time limit (at step 10)"),
        ([ex.exited(11, 1, cause="cancelled")], "group 1 was stopped (at step 10)"),
        ([lost(11, "82_1", "Slurm has requeued it (preempted)", "PENDING")],
         "job 82_1 is back in the queue: Slurm has requeued it (preempted)"),
        ([lost(11, "82_1", "Slurm job TIMEOUT", "TIMEOUT")], "job 82_1 is lost: Slurm job TIMEOUT"),
        ([ex.exited(11, 1, cause="ok"), lost(11, "82_1", "it is not needed any more", None)], None),
        ([ex.exited(11, 1, cause="node_lost"), lost(11, "82_1", "n2 is lost or bad", None)],
         "job 82_1 is given up: n2 is lost or bad"),
        ([ex.event(11, "scaled", groups=1, by=0), ex.exited(12, 2, cause="cancelled"),
          lost(13, "82_2", "it is not needed any more", None)], None),
        ([ex.event(11, "allocation_leaving", allocation="82_1", cause="preempted", reason="Slurm sent SIGTERM to it")],
         "job 82_1 is about to end, its group leaves it: Slurm sent SIGTERM to it"),
        ([ex.event(11, "allocation_requeued", allocation="82_1", reason="time_limit")],
         "job 82_1 is put back into the queue: its group has left it"),
        ([requested(11, 1)], "asked for 1 job for groups"),
        ([requested(11, 2, pool=1)], "asked for 2 jobs for groups of cluster.ranges[0]"),
        ([ex.event(11, "allocation_refused", pool=0, reason="Invalid qos", again_s=15.0), requested(26, 1)], None),
        ([ex.event(11, "allocation_refused", pool=0, reason="Invalid qos", again_s=15.0)],
         "sbatch refuses jobs for groups: Invalid qos; it is asked again in 15 s, later at most every 5 minutes"),
        ([pending(11, "82_1", "Priority"), pending(12, "82_2", "Priority")], None),
        ([ex.event(11, "scaled", groups=2, by=1000)], "the run has 2 groups from now on (ftslurm scale)"),
        ([ex.event(11, "scaled", groups=1, by=1000)], "the run has 1 group from now on (ftslurm scale)"),
        ([ex.event(11, "command_refused", command="c1", what="scale", by=1000, reason="9 is above groups.max=4")],
         "scale refused: 9 is above groups.max=4"),
        ([waits(11, 1, "82_1", "Slurm job 82_1 (pending)")], None),
        ([ex.event(11, "allocation_ends", allocation="82_1", ends=ex.START + 900)], None),
    ],
)  # fmt: skip
def test_each_event_about_jobs_has_its_words(lines: list[ex.Line], words: str | None) -> None:
    assert describe(lines[-1], after(*lines)) == words


def test_a_new_job_is_told_where_no_other_line_tells_it() -> None:
    status = after(granted(20, "83", "n9"))
    assert describe(granted(20, "83", "n9"), status) == "job 83 has n9"
    assert describe(ex.event(0, "allocation_granted", allocation="7", nodes=["n1", "n2"]), RunStatus()) == (
        "allocation 7: n1, n2"
    )


def test_in_steps_mode_a_group_says_what_it_waits_for_until_a_job_is_asked_for() -> None:
    lines = [ex.started(2), *(ex.launched(1, g) for g in range(2)), ex.exited(5, 1, cause="node_lost", node="n2")]
    lines += [waits(5, 1, reason="a free node: n2 left out"), requested(5, 1, exclude=("n2",))]
    lines += [waits(6, 1, "95", "Slurm job 95 (pending)"), pending(9, "95", "ReqNodeNotAvail, May be reserved")]
    assert told(lines)[-3:] == [
        "group 1 waits for a free node: n2 left out",
        "asked for 1 job for groups",
        f"job 95 waits in the queue: ReqNodeNotAvail, May be reserved ({HINTS['ReqNodeNotAvail']})",
    ]


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("JobHeldUser", "scontrol release 81_2"),
        ("JobHeldAdmin", "ask them"),
        ("launch_failed_requeued_held", "scontrol release 81_2"),
        ("job_requeued_in_held_state", "scontrol release 81_2"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-3]", "sinfo -R"),
        ("QOSMaxJobsPerUserLimit", "cluster.sbatch.qos"),
        ("QOSGrpNodeLimit", "cluster.sbatch.qos"),
        ("AssocMaxJobsLimit", "cluster.account"),
        ("PartitionTimeLimit", "cluster.time"),
        ("PartitionNodeLimit", "groups.nodes"),
        ("PartitionDown", "cluster.partition"),
        ("BadConstraints", "cluster.sbatch.constraint"),
        *((reason, None) for reason in ("Resources", "Priority", "BeginTime", "None", None, "SomethingNew")),
    ],
)
def test_what_helps_a_job_that_waits_is_told_where_it_is_known(reason: str | None, word: str | None) -> None:
    found = hint(reason, "81_2")
    assert found is None if word is None else (found is not None and word in found)


def test_a_refusal_stands_in_the_table_until_a_job_comes() -> None:
    refusal = ex.event(11, "allocation_refused", pool=0, reason="Invalid qos", again_s=15.0)
    assert "  sbatch refuses jobs for groups: Invalid qos" in drawn(after(refusal), 12)
    assert not [line for line in drawn(after(refusal, granted(30, "83", "n9")), 31) if "refuses" in line]


def test_a_group_that_has_left_did_not_die() -> None:
    lines = [ex.exited(11, 1, cause="preempted"), lost(12, "82_1", "Slurm has requeued it", "PENDING")]
    lines += [granted(20, "82_1", "n5"), ex.launched(20, 1, attempt=1, node="n5", allocation="82_1", down_s=9.0)]
    lines += [ex.joined(23, 1, 40, attempt=1, recovery_s=12.0)]
    assert told([*running(), *lines])[-2:] == [
        "group 1 relaunched as attempt 1 on n5, 9.0 s after attempt 0 ended",
        "group 1 is back: first step 40 committed 12 s after it left",
    ]


def test_the_end_of_a_job_that_becomes_known_later_is_shown() -> None:
    late = ex.event(11, "allocation_ends", allocation="82_1", ends=ex.START + 900)
    assert any(line.endswith("n2 job 82_1, 15 min left") for line in drawn(after(late), 12))


def test_a_group_cut_by_scale_disappears_and_a_new_one_has_not_been_restarted() -> None:
    smaller = [ex.event(11, "scaled", groups=1, by=1000), ex.exited(12, 1, cause="cancelled", step=12)]
    during = after(*smaller)
    assert [g.leaves for g in during.groups] == [False, True, True]  # their numbers have no gaps
    left = ex.exited(13, 2, cause="cancelled", step=12)
    assert [g.group for g in after(*smaller, left).groups] == [0]
    assert describe(left, after(*smaller, left)) == "group 2 has left the run (at step 12)"
    again = [left, ex.event(20, "scaled", groups=2, by=1000)]
    assert after(*smaller, *again).groups[1].waiting_for == "a job of its own"
    again += [granted(24, "83", "n2"), ex.launched(25, 1, attempt=1, allocation="83")]
    again += [ex.joined(28, 1, 40, attempt=1, participants=2)]
    status = after(*smaller, *again)
    assert (status.restarts, status.groups[1].restarts, status.groups[1].attempt) == (0, 0, 1)
    assert told([*running(), *smaller, *again])[-2:] == [
        "the run has 2 groups from now on (ftslurm scale)",
        "group 1 has joined at step 40 (2 groups in the quorum)",
    ]


def test_the_json_has_the_jobs() -> None:
    found: Any = to_json(after(), ex.START + 12)
    end = ex.START + 3600
    assert found["jobs"][0] == {"name": "82_0", "pool": 0, "nodes": ["n1"], "reason": None, "ends": end}
    assert found["jobs_refused"] == {}
    assert found["groups"][1]["job"] == "82_1"


@pytest.mark.parametrize(("ends", "left"), [(None, None), (1060.0, 60.0), (1000.0 + 365 * 86400, None)])
def test_a_job_without_a_time_limit_has_none_though_slurm_names_an_end_in_a_year(
    ends: float | None, left: float | None
) -> None:
    assert JobStatus("81_0", ends=ends).left(1000.0) == left
