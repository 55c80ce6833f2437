"""The controller's dealings with Slurm's queue: questions and orders run aside, their answers become events."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

from ftslurm.config.schema import Config
from ftslurm.controller.translate import by
from ftslurm.core.jobs.supply import array
from ftslurm.core.state.actions import (
    Action,
    AskFate,
    AskJobs,
    CancelJobs,
    Exclude,
    RequestJobs,
    RequeueJob,
    StartNow,
    StartPilot,
)
from ftslurm.core.state.events import Event, JobLeaving, JobsSeen, JobsUnknown, RequeueRefused, ScaleAsked, Submitted
from ftslurm.core.state.model import Cause, Job, RunState
from ftslurm.launchers.background import Answered
from ftslurm.launchers.step_processes import Children
from ftslurm.run.directory import RunDir
from ftslurm.security.json_text import is_finite, is_whole
from ftslurm.security.names import is_job, is_node
from ftslurm.slurm import client, commands
from ftslurm.slurm.parse import expand_hosts, is_busy, read_node_fate, read_queue

QUEUE_ASKED, CANCEL, REQUEST, REQUEUE, START, EXCLUDE = "queue", "cancel ", "request ", "requeue ", "start ", "exclude "
PILOT_AGAIN = "pilot of "
# The pilot beside which the controller runs. Slurm's SIGTERM to its job could end our sruns, and with them the steps in
# other jobs; so it is told as if Slurm wanted its nodes, and another controller goes on, which requeues it.
PILOT = "FTSLURM_PILOT"
SUCCESSOR, FATE = "successor", "fate "
ENDS_S = 30.0  # so long an sbatch that is under way is waited for when the run is over
PATIENCE_S = 120.0  # Slurm's commands give up by themselves long before
NOT_NOW = ("Job is pending execution", "try again later")  # Slurm has requeued it just before us, or is about to
log = logging.getLogger("ftslurm.controller.loop")
CAUSES = {"SIGTERM": Cause.PREEMPTED, "SIGINT": Cause.PREEMPTED, "SIGUSR1": Cause.PREEMPTED}


class Jobs:
    """Every job of this run beside the controller's, as far as Slurm has to be asked or told."""

    def __init__(self, config: Config, run: RunDir, children: Children) -> None:
        self.config, self.run, self.children = config, run, children
        self.asked = self.asked_at = 0.0  # by the controller's clock, and by the one that measures
        self.early: dict[str, JobLeaving] = {}  # words of pilots that we do not know yet: we have only begun to lead
        self.mark = run.mark()
        self.pilots = 0  # how many were started again
        self.pools = run.pools()  # of the jobs we know; a site may take the comment away

    def act(self, action: Action, now: float) -> list[Event]:
        """Carry out an action if it is about jobs; what is known at once."""
        match action:
            case AskJobs():
                self.asked, self.asked_at = now, time.monotonic()
                self.children.asides.ask(QUEUE_ASKED, commands.queue(), env=_clean(), timeout_s=PATIENCE_S)
            case RequestJobs(pool, count, exclude):
                command = [sys.executable, "-m", "ftslurm.submission.pilots", str(self.run.root)]
                command += [str(pool), str(count), ",".join(exclude)]
                self.children.asides.ask(f"{REQUEST}{pool}", command, env=_clean(), timeout_s=5 * PATIENCE_S)
            case Exclude(name, nodes):
                out = ",".join(filter(None, (self.config.cluster.exclude, *nodes)))
                command = commands.exclude_nodes(name, out)
                self.children.asides.ask(EXCLUDE + name, command, timeout_s=PATIENCE_S)
            case AskFate(node):
                self.children.asides.ask(FATE + node, commands.node_record(node), timeout_s=PATIENCE_S)
            case CancelJobs(names):
                self.children.asides.ask(CANCEL + ",".join(names), self._cancel(names), timeout_s=PATIENCE_S)
            case RequeueJob(name) if name == _own_task() and PILOT in os.environ:
                with suppress(ProcessLookupError):
                    os.kill(int(os.environ[PILOT]), signal.SIGUSR1)
            case RequeueJob(name):
                if shutil.which("scontrol") is None:
                    return [RequeueRefused(name, "there is no scontrol here")]
                self.children.asides.ask(REQUEUE + name, commands.requeue(name), timeout_s=PATIENCE_S)
            case StartPilot(name, job, node):
                argv = [
                    *_srun(job, node),
                    sys.executable,
                    "-m",
                    "ftslurm.submission.entry",
                    "pilot-again",
                    str(self.run.root),
                ]
                before, self.pilots = f"{PILOT_AGAIN}{name} ", self.pilots + 1
                self.children.asides.forget(before)  # its srun waits for a node that was gone meanwhile
                self.children.asides.ask(f"{before}{self.pilots}", argv, env=_of_job(name), timeout_s=inf)
            case StartNow(name):
                command = commands.start_now(name)
                self.children.asides.ask(START + name, command, timeout_s=PATIENCE_S)
            case _:
                pass
        return []

    def answered(self, news: Answered) -> list[Event]:
        """What the answer to a question of ours tells."""
        if news.what == QUEUE_ASKED:
            took = time.monotonic() - self.asked_at
            if news.code != 0:
                return [JobsUnknown(took)]
            try:
                seen = read_queue(news.text, self.mark, self.config.cluster.pilots, self.pools)
            except ValueError as problem:
                log.warning("squeue's answer is not used: %s", problem)
                return [JobsUnknown(took)]
            self.pools |= {job.name: job.pool for job in seen}
            leaving = [self.early.pop(job.name) for job in seen if job.name in self.early]
            return [JobsSeen(tuple(seen), self.asked, took), *leaving]
        if news.what.startswith(REQUEST):
            pool, names = int(news.what.removeprefix(REQUEST)), list[str]()
            with suppress(ValueError, IndexError, RecursionError):
                said = json.loads(news.text.strip().splitlines()[-1])
                names = [name for name in said if is_job(name)] if isinstance(said, list) else []
            self.pools |= dict.fromkeys(names, pool)
            lines = [line for line in news.text.splitlines() if line.strip()]
            error = "" if names else (lines[-1] if lines else "sbatch has said nothing")
            return [Submitted(pool, tuple(names), error)]
        if news.what.startswith(PILOT_AGAIN):
            log.warning("the pilot of %s has ended: %s", news.what.removeprefix(PILOT_AGAIN), news.text.strip()[-1000:])
        if news.what.startswith(FATE):
            fate = read_node_fate(news.what.removeprefix(FATE), news.text)
            return [] if fate is None else [fate]
        if news.what.startswith(REQUEUE) and news.code != 0:
            text = " ".join(news.text.split()) or f"exit code {news.code}"
            if is_busy(text) or any(words in text for words in NOT_NOW):
                return []  # a look at the queue tells what became of it; if it still runs it is requeued again
            return [RequeueRefused(news.what.removeprefix(REQUEUE), text)]
        return []

    def told(self, command: Mapping[str, Any], now: float) -> list[Event]:
        """A command from the inbox: a pilot's word, or `ftslurm scale`."""
        name = command.get("name") if is_job(command.get("name")) else None
        if command["what"] == "scale" and is_whole(command.get("groups")):
            return [ScaleAsked(command["groups"], by(command))]
        if command["what"] == "leaving" and isinstance(name, str):
            sign = str(command.get("signal"))
            cause = CAUSES.get(sign, Cause.TIME_LIMIT)
            event = JobLeaving(name, cause, f"Slurm sent {sign} to it")
            if name in self.pools:
                return [event]
            self.early[name] = event
        if command["what"] == "pilot" and isinstance(name, str) and isinstance(command.get("nodes"), str):
            with suppress(ValueError):
                nodes, ends = tuple(expand_hosts(command["nodes"])), command.get("ends")
                ends = float(ends) if is_finite(ends) else None
                job = Job(name, self.pools.get(name, 0), "RUNNING", str(command.get("job")), nodes, ends=ends)
                sound = is_job(job.id) and all(is_node(node) for node in nodes)
                known = sound and (name in self.pools or name.startswith(f"{self.config.cluster.pilots}_"))
                return [JobsSeen((job,), now, whole=False)] if known else []  # else the next look at the queue tells
        return []

    def ask_successor(self) -> None:
        """Submit another job for the controller, which asks us to hand over when it is up (array mode)."""
        if self.config.cluster.controller == "job":
            command = [sys.executable, "-m", "ftslurm.submission.pilots", str(self.run.root)]
            self.children.asides.ask(SUCCESSOR, command, env=_clean(), timeout_s=PATIENCE_S)

    def end(self, names: tuple[str, ...]) -> None:
        """Cancel what is left of them when the run is over, also what sbatch is just being asked for."""
        self.children.asides.wait((REQUEST, SUCCESSOR), ENDS_S)
        new = tuple(name for name in self.run.pools() if name not in self.pools)
        if names or new:
            client.call(self._cancel((*names, *new)), PATIENCE_S)
        if (other := self._other_controller()) is not None:
            client.cancel(other, pending_only=True, timeout_s=PATIENCE_S)

    def _other_controller(self) -> str | None:
        """The job of a controller that would only find that the run is over: our successor's, or our predecessor's."""
        job = self.run.job()
        if array(self.config) and job is not None and job.isdigit() and job != os.environ.get("SLURM_JOB_ID"):
            return job
        return None

    def _cancel(self, names: tuple[str, ...]) -> list[str]:
        """The command that ends jobs. What was submitted by hand and runs is told to end, and counts as completed."""
        if self.config.cluster.pilots is None:
            return commands.cancel(*names)
        with suppress(OSError):
            self.run.released.mkdir(mode=0o700, exist_ok=True)
            for name in names:
                (self.run.released / name).touch(mode=0o600)
        return commands.cancel(*names, pending_only=True)


def srun_names(state: RunState) -> dict[str, str]:
    """What srun calls each job: the tasks of an array have an id of their own."""
    return {job.name: job.id or job.name for job in state.job_pool.jobs}


def _own_task() -> str | None:
    """What Slurm calls the task of an array in which we run; None: we do not."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else None


def _srun(job: str, node: str) -> list[str]:
    """The beginning of a command that runs on one node of a job, beside what runs there."""
    here = str(Path.cwd())
    return commands.srun_command(
        job=job, name="pilot", nodes=[node], tasks_per_node=1, gpus=False, chdir=here, extra=[]
    )


def _of_job(name: str) -> dict[str, str]:
    """The environment of a pilot that is no batch process: which task of an array its job is, srun does not tell."""
    env = {key: value for key, value in _clean().items() if not key.startswith("FTSLURM_")}
    array_job, _, task = name.partition("_")
    return env | ({"SLURM_ARRAY_JOB_ID": array_job, "SLURM_ARRAY_TASK_ID": task} if task else {})


def _clean() -> dict[str, str]:
    """An environment in which Slurm's commands do what they are told, and no more."""
    return {name: value for name, value in commands.scrubbed(os.environ).items() if not name.startswith("SQUEUE_")}
