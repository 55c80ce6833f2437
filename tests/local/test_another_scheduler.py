"""Another scheduler than Slurm behind ftslurm.launchers.scheduler: each job is a process of this machine."""

# ruff: noqa: ARG002

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from harness import LIGHT_WORKER, SCRIPTS, Run, quoted

from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.controller.loop import Controller
from ftslurm.core.state.actions import Ask, AskJobs, AskNodes, Attach, CancelJobs, Launch, Probe, RequestJobs
from ftslurm.core.state.events import Event, JobsSeen, Looked, NodeFate, Submitted
from ftslurm.core.state.model import Allocation, Job
from ftslurm.core.state.run_state import RunState
from ftslurm.guard import processes
from ftslurm.launchers import step_command
from ftslurm.launchers.scheduler import Answer, Command, Request
from ftslurm.run.directory import RunDir
from ftslurm.submission import submit

# --- the scheduler ---------------------------------------------------------------------------------------------------


class Jobs:
    """A job is a process that sleeps. Its name is its pid, and it has one node."""

    direct = True
    job: str | None = None
    state: RunState | None = None

    def __init__(self, config: Config, run: RunDir) -> None:
        self.config, self.run, self.jobs = config, run, list[str]()

    def allocation(self) -> Allocation:
        return Allocation(platform.node(), ())

    def leaves(self) -> Mapping[str, str]:
        return {}

    def start(self, launch: Launch, log_dir: Path) -> list[Command]:
        argv = step_command.command(self.config, launch, log_dir, local=True, state=self.state)
        env = step_command.environment(self.config, self.run, launch, os.environ, local=True)
        (node, *_) = (*launch.place.nodes, platform.node())  # the Lighthouse has no job
        task = {"FTSLURM_TASK": "0", "FTSLURM_LOCAL_TASK": "0", "FTSLURM_NODE": node}
        return [Command(argv, env | task)]

    def attach(self, attach: Attach) -> Command:
        raise NotImplementedError

    def printed(self, line: str) -> Sequence[Event]:
        return []

    def request(self, ask: Ask, now: float) -> Request[Jobs, Any]:
        return REQUESTS[type(ask)](self, ask, now)

    def reported(self, command: Mapping[str, Any], now: float) -> Sequence[Event]:
        return []

    def end(self, jobs: Sequence[str]) -> None:
        subprocess.run(["kill", "-9", *jobs], check=False)


class Submit(Request[Jobs, RequestJobs]):
    def argv(self) -> list[str]:
        many = 'for n in $(seq "$1"); do sleep 600 > /dev/null & echo $!; done'
        return ["sh", "-c", many, "sh", str(self.action.count)]

    def read(self, answer: Answer) -> list[Event]:
        self.scheduler.jobs += answer.text.split()
        return [Submitted(self.action.pool, tuple(answer.text.split()))]


class List(Request[Jobs, AskJobs]):
    def argv(self) -> list[str]:
        alive = 'for job; do grep -q "^State:.[^Z]" "/proc/$job/status" && echo "$job"; done 2> /dev/null; true'
        return ["sh", "-c", alive, "sh", *self.scheduler.jobs]

    def read(self, answer: Answer) -> list[Event]:
        alive = tuple(Job(name, state="RUNNING", id=name, nodes=(f"node{name}",)) for name in answer.text.split())
        return [JobsSeen(alive, self.asked)]


class Cancel(Request[Jobs, CancelJobs]):
    def argv(self) -> list[str]:
        return ["kill", "-9", *self.action.names]


class Nodes(Request[Jobs, AskNodes]):
    def argv(self) -> list[str]:
        return ["true"]

    def read(self, answer: Answer) -> list[Event]:
        return [NodeFate(node, down=False) for node in self.action.nodes]


class Ping(Request[Jobs, Probe]):
    def argv(self) -> list[str]:
        return ["true"]

    def read(self, answer: Answer) -> list[Event]:
        return [Looked(self.action.node, reachable=True)]


REQUESTS: dict[type, type[Request[Jobs, Any]]] = {
    RequestJobs: Submit, AskJobs: List, CancelJobs: Cancel, AskNodes: Nodes, Probe: Ping
}  # fmt: skip


# --- the drill -------------------------------------------------------------------------------------------------------


def main(words: list[str]) -> None:
    """Control a run in this process, as `ftslurm.submission.controller_process` does."""
    (config,) = compose.compose(words)
    config.cluster.kind = "array"  # each group has a job of its own
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
