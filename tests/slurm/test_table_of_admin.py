"""Each cell of the table "What you do to a run" in docs/admin.md, on real Slurm."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cluster import Cluster, ClusterError
from harness import Backend, Run
from test_array import ENDLESS, jobs, pilot_of

pytestmark = [pytest.mark.slurm, pytest.mark.light]
PAGE = Path(__file__).parents[2] / "docs" / "admin.md"
BY_DAY = {  # the other cells are run at night
    *(("hold", "its job"), ("requeue", "a group's"), ("cancel", "the controller's"), ("cancel", "all of them")),
    *(("drain", "its job"), ("partition down", "one that waits")),
}
ACTS = {
    "hold": "scontrol hold {jobs}",
    "requeuehold": "scontrol requeuehold {jobs}",
    "requeue": "scontrol requeue {jobs}",
    "suspend": "scontrol suspend {jobs}",
    "cancel": "scancel {jobs}",
    "drain": "scontrol update nodename={nodes} state=drain reason=disk",
    "maintenance": "scontrol create res nodes={nodes} flags=maint,ignore_jobs starttime=now duration=60 user=root",
    "cut its time": "scontrol update jobid={jobs} timelimit=1",
    "move it": "scontrol update jobid={jobs} partition=other",
    "change its account": "scontrol update jobid={jobs} account=other",
    "partition down": "scontrol update partitionname=gpu state=down",
}
TWICE = "PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP\nPartitionName=other Nodes=ALL State=UP"


def cells() -> Iterator[object]:
    """Read the table: what is done, to what, and what follows; `-`: it cannot be done."""
    table = re.search(r"^## What you do to a run\n[^|]*((?:\|.*\n)+)", PAGE.read_text(), re.MULTILINE)
    assert table
    head, _, *rows = (line.strip("|") for line in table[1].splitlines())
    _, *targets = (text.strip() for text in head.split("|"))
    for row in rows:
        act, *words = (text.strip() for text in row.split("|"))
        for target, follows in zip(targets, words, strict=True):
            if follows != "-":
                marks = [] if (act, target) in BY_DAY else [pytest.mark.nightly]
                yield pytest.param(act, target, follows, id=f"{act}, {target}", marks=marks)


def exits(run: Run) -> list[dict[str, object]]:
    return [e for e in run.named("step_exited") if e["group"] is not None]


def trains_on(_: Cluster, run: Run, __: list[str]) -> None:
    time.sleep(10)
    assert not exits(run)
    run.wait_for_steps(len(run.steps(0)) + 5, 1)


def start(cluster: Cluster, those: list[str]) -> None:
    """Skip the two minutes for which Slurm delays a requeued job."""
    for job in those:
        if jobs(cluster).get(job) == "PENDING":
            with suppress(ClusterError):  # it is starting
                cluster.run(["scontrol", "update", f"jobid={job}", "starttime=now"])


def comes_back(cluster: Cluster, run: Run, those: list[str]) -> None:
    def back() -> bool:
        time.sleep(2)
        start(cluster, those)
        return any(e["attempt"] for e in run.named("group_joined")) or run.named("checkpoint_restored")

    run.until(back, "a group is back")


def waits_for_release(cluster: Cluster, run: Run, held: list[str]) -> None:
    before = len(jobs(cluster))
    run.until(lambda: {jobs(cluster).get(job) for job in held} == {"PENDING"}, "they are held")
    time.sleep(15)
    assert len(jobs(cluster)) == before  # nothing was submitted around them
    for job in held:
        cluster.run(["scontrol", "release", job])
    comes_back(cluster, run, held)


def stands(cluster: Cluster, run: Run, those: list[str]) -> None:
    run.wait_for("step_exited", group=1)
    run.wait_for_steps(len(run.steps(0)) + 5, 1)
    for job in those:
        cluster.run(["scontrol", "resume", job])
    comes_back(cluster, run, those)


def leader(run: Run) -> str:
    return str(run.named("run_started")[-1]["job_id"])


def another_leads(_: Cluster, run: Run, those: list[str]) -> None:
    run.until(lambda: leader(run) not in those, "another one leads")
    run.wait_for_steps(run.steps(0)[-1]["step"] + 20, 0)


def ends(cluster: Cluster, run: Run, _: list[str]) -> None:
    run.until(lambda: run.named("run_finished"), "the end")
    assert run.named("run_finished")[0]["outcome"] == "stopped"
    run.until(lambda: set(jobs(cluster).values()) <= {"COMPLETING"}, "no job is left")


def waits(cluster: Cluster, run: Run, those: list[str]) -> None:
    trains_on(cluster, run, those)
    assert {jobs(cluster).get(job) for job in those} == {"PENDING"}


def is_replaced(cluster: Cluster, run: Run, those: list[str]) -> None:
    run.until(lambda: set(jobs(cluster)).isdisjoint(those), "they are gone")
    run.until(lambda: "PENDING" in jobs(cluster).values(), "another one waits")


FOLLOWS: dict[str, Callable[[Cluster, Run, list[str]], None]] = {
    "trains on": trains_on,
    "comes back": comes_back,
    "waits until it is released": waits_for_release,
    "waits until it is resumed": stands,
    "another job leads": another_leads,
    "ends": ends,
    "waits": waits,
    "is replaced": is_replaced,
}


@pytest.mark.parametrize(("act", "target", "follows"), [*cells()])
def test_what_follows(
    act: str,
    target: str,
    follows: str,
    new_cluster: Callable[..., Cluster],
    slurm_on: Callable[[Cluster], Backend],
) -> None:
    steps, pending = target == "its job", target == "one that waits"
    cluster = new_cluster(nodes=3 if pending else 5, cpus=1, extra_conf=TWICE)
    kind = ["checkpoint.every=1000000"] if steps else ["cluster.kind=array"]
    words = [*kind, f"groups.count={3 if pending else 2}", "health.lost_after_s=30"]  # busy nodes seem silent
    run = slurm_on(cluster).start(*words, script="light_saving.py", args=ENDLESS)
    run.wait_for_steps(3, 2)
    if steps:
        run.tell("save")
    own = (run.dir / "submitit" / "job_id").read_text().strip()
    if pending:
        run.until(lambda: "PENDING" in jobs(cluster).values(), "a job waits")
    if target == "the leader's":
        cluster.run(["scontrol", "requeue", own])
        run.until(lambda: leader(run) != own, "a group's job leads")
    those = {
        "its job": lambda: [own],
        "the controller's": lambda: [own],
        "the leader's": lambda: [leader(run)],
        "a group's": lambda: [pilot_of(run, 1)],
        "all of them": lambda: [*jobs(cluster)],
        "one that waits": lambda: [job for job, state in jobs(cluster).items() if state == "PENDING"],
    }[target]()
    nodes = cluster.run(["squeue", "--noheader", f"--jobs={','.join(those)}", "--format=%N"]).split()
    for job in those if "{jobs}" in ACTS[act] else [""]:
        cluster.run(ACTS[act].format(jobs=job, nodes=",".join(nodes)).split())
    try:
        FOLLOWS[follows](cluster, run, those)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{run.text}") from error
    finally:
        if not run.named("run_finished"):
            run.ask("stop")
