"""Another scheduler than Slurm behind ftslurm.launchers.scheduler: each job is a process of this machine."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from harness import LIGHT_WORKER, SCRIPTS, Run, quoted

from ftslurm.config import compose
from ftslurm.config.schema import JOB_PER_GROUP, Config
from ftslurm.controller.loop import Controller
from ftslurm.core.state.actions import Ask, AskJobs, AskNodes, CancelJobs, Launch, Probe, RequestJobs
from ftslurm.core.state.events import Event, JobsSeen, Looked, NodeFate, Submitted
from ftslurm.core.state.model import Allocation, Job
from ftslurm.guard import processes
from ftslurm.launchers import step_command
from ftslurm.launchers.scheduler import Answer, Command, Request, Scheduler
from ftslurm.run.directory import RunDir
from ftslurm.submission import submit

# --- the scheduler ---------------------------------------------------------------------------------------------------


class Jobs(Scheduler):
    """A job is a process that sleeps. Its name is its pid, and it has one node."""

    direct = True

    def __init__(self, config: Config, run: RunDir) -> None:
        self.config, self.run, self.jobs, self.job = config, run, list[str](), "the job of the controller"

    def allocation(self) -> Allocation:
        return Allocation(platform.node(), ())

    def start(self, launch: Launch, log_dir: Path) -> list[Command]:
        argv = step_command.command(self.config, launch, log_dir, local=True, state=self.state)
        env = step_command.environment(self.config, self.run, launch, os.environ, local=True)
        (node, *_) = (*launch.place.nodes, platform.node())  # the Lighthouse has no job
        task = {"FTSLURM_TASK": "0", "FTSLURM_LOCAL_TASK": "0", "FTSLURM_NODE": node}
        return [Command(argv, env | task)]

    def request(self, ask: Ask) -> Request:
        match ask:
            case RequestJobs(pool, count):
                many = 'for n in $(seq "$1"); do sleep 600 > /dev/null & echo $!; done'
                return Request(ask, ["sh", "-c", many, "sh", str(count)], partial(self.submitted, pool))
            case AskJobs(now):
                alive = 'for job; do grep -q "^State:.[^Z]" "/proc/$job/status" && echo "$job"; done 2> /dev/null; true'
                return Request(ask, ["sh", "-c", alive, "sh", *self.jobs], partial(seen, now))
            case CancelJobs(names):
                return Request(ask, ["kill", "-9", *names])
            case AskNodes(nodes):
                return Request(ask, ["true"], lambda _: [NodeFate(node, down=False) for node in nodes])
            case Probe(node):
                return Request(ask, ["true"], lambda _: [Looked(node, reachable=True)])
        raise NotImplementedError

    def submitted(self, pool: int, answer: Answer) -> list[Event]:
        self.jobs += answer.text.split()
        return [Submitted(pool, tuple(answer.text.split()))]

    def end(self, jobs: Sequence[str]) -> None:
        subprocess.run(["kill", "-9", *jobs], check=False)


def seen(asked: float, answer: Answer) -> list[Event]:
    alive = tuple(Job(name, state="RUNNING", id=name, nodes=(f"node{name}",)) for name in answer.text.split())
    return [JobsSeen(alive, asked)]


# --- the drill -------------------------------------------------------------------------------------------------------


def main(words: list[str]) -> None:
    """Control a run in this process, as `ftslurm.submission.controller_process` does."""
    config = compose.compose(words)
    JOB_PER_GROUP.add("processes")
    config.cluster.kind = "processes"  # type: ignore[assignment]
    run = submit.create(config)
    Controller(config, run, Jobs(config, run), lambda _: None).run()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    steps, out = tmp_path / "steps", tmp_path / "out.txt"
    words = [
        *("cluster=local", f"run.root={quoted(tmp_path / 'runs')}", f"job.script={quoted(SCRIPTS / 'light.py')}"),
        *("groups.count=2", "groups.gpus=0", "stop.grace_s=2", "job.snapshot=none", "standby=none"),
        *(f"job.python=[{quoted(sys.executable)},{quoted(LIGHT_WORKER)}]", "job.longest_step_s=30"),
        *("health.lost_after_s=2", f"job.args.steps-file={quoted(steps)}", "job.args.open-end=true"),
        "job.args.step-time=0.1",
    ]
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    with out.open("w") as sink:
        process = subprocess.Popen(
            [sys.executable, __file__, *words], stdout=sink, stderr=sink, env=environ, cwd=tmp_path, text=True
        )
    run = Run(process, out, tmp_path / "runs", steps, environ)
    yield run
    run.abandon()


def test_groups_come_back_in_jobs_of_their_own_that_are_none_of_slurms(run: Run) -> None:
    def job_of(group: int, attempt: int) -> str:
        (launched,) = run.named("step_launched", group=group, attempt=attempt)
        assert launched["nodes"] == [f"node{launched['allocation']}"]
        return str(launched["allocation"])

    run.wait_for_steps(5, groups=2)
    run.kill(1)
    run.wait_until_back(1)
    assert job_of(1, 1) == job_of(1, 0) != job_of(0, 0)  # its job is still there

    os.kill(int(job_of(0, 0)), signal.SIGKILL)
    run.wait_until_back(0)
    assert job_of(0, 1) not in (job_of(0, 0), job_of(1, 1))
    assert run.named("allocation_lost", allocation=job_of(0, 0))

    last = run.end_soon()
    run.finish().check_training(last, survivors=set(), returned={0, 1})
    jobs = [int(job_of(group, 1)) for group in (0, 1)]
    run.until(lambda: all(processes.state(job) in (None, "Z") for job in jobs), "the jobs are cancelled")


if __name__ == "__main__":
    main(sys.argv[1:])
