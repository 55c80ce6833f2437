"""Sends the controller's requests to Slurm in the background and turns the answers into events of the core.

This module also reads the commands of pilots and `ftslurm scale` in the run's inbox.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from typing import Any

from typing_extensions import assert_never

from ftslurm.config.schema import Config, sbatch_options
from ftslurm.controller.translate import requester
from ftslurm.core.jobs.supply import array
from ftslurm.core.state.actions import (
    AskJobs,
    AskNodes,
    CancelJobs,
    Exclude,
    JobAction,
    NoteBroken,
    RequestJobs,
    RequeueJob,
    StartNow,
    StartPilot,
)
from ftslurm.core.state.events import (
    Event,
    JobLeaving,
    JobsSeen,
    JobsUnknown,
    NodesLeft,
    NodesNoted,
    RequeueRefused,
    ScaleAsked,
    Submitted,
)
from ftslurm.core.state.model import Job
from ftslurm.core.state.run_state import RunState
from ftslurm.launchers.background import PATIENCE_S, Answered, BackgroundCommands
from ftslurm.launchers.job_command import JobRole, job_command, submit_pilots_command, submit_successor_command
from ftslurm.protocol.causes import Cause
from ftslurm.run import exclude_file
from ftslurm.run.directory import RunDir
from ftslurm.security.json_text import is_finite, is_whole
from ftslurm.security.names import is_job, is_node
from ftslurm.slurm import client, commands, evidence
from ftslurm.slurm.hosts import expand_hosts
from ftslurm.slurm.parse import is_busy, read_rows
from ftslurm.slurm.questions import (
    AskNodeRecords,
    AskOwnNodes,
    AskOwnState,
    AskQueue,
    CancelNamed,
    ExcludeNodes,
    ProbeNode,
    Question,
    Requeue,
    RunNodeChecks,
    RunPilot,
    StartAtOnce,
    SubmitPilots,
    SubmitSuccessor,
)

# PID of the pilot beside which the controller runs. The controller must not requeue the job that it runs in: Slurm's
# SIGTERM could end its sruns, and with them the steps in other jobs. Instead this pilot gets SIGUSR1, as if Slurm
# wanted its nodes back; another controller takes over and requeues the job.
PILOT = "FTSLURM_PILOT"
END_WAIT_S = 30.0  # longest wait for a running sbatch when the run is over
NOT_NOW = ("Job is pending execution", "try again later")  # Slurm itself has just requeued the job, or is about to
CAUSES = {"SIGTERM": Cause.PREEMPTED, "SIGINT": Cause.PREEMPTED, "SIGUSR1": Cause.PREEMPTED}  # else: time limit
log = logging.getLogger("ftslurm.controller.loop")


class SlurmRequests:
    """Runs Slurm commands in the background and reads their answers."""

    def __init__(self, config: Config, run: RunDir, background: BackgroundCommands) -> None:
        self.config, self.run, self.background = config, run, background
        self.mark = run.mark()
        self.pools = run.pools()  # pool of each known job, by name; a site may remove the jobs' comments
        self.early: dict[str, JobLeaving] = {}  # reports of pilots whose jobs this new controller does not know yet
        self.pilots_started = 0
        self.unread = False  # whether squeue's last answer had lines that could not be read
        self.noted: list[str] = []  # the nodes of cluster.exclude_file that sbatch has excluded last, the newest first

    # --- requests ----------------------------------------------------------------------------------------------------

    def carry_out(self, action: JobAction, now: float) -> list[Event]:
        """Start the request of an action. Return the events that are known at once."""
        match action:
            case AskJobs():
                self._ask(AskQueue(now, time.monotonic()), commands.queue())
            case AskNodes(nodes):
                self._ask(AskNodeRecords(nodes), commands.node_records(nodes))
                return self.read_notes()
            case NoteBroken(node, reason):
                exclude_file.write(self.config, self.run, node, reason)
            case RequestJobs(pool, count, exclude):
                command = submit_pilots_command(self.run, pool, count, exclude)
                self._ask(SubmitPilots(pool), command, timeout_s=5 * PATIENCE_S)
            case Exclude(name, nodes):
                noted = self.noted[: max(0, len(self.noted) - len(nodes))]  # no more in all than sbatch has accepted
                out = ",".join(filter(None, (sbatch_options(self.config.cluster).get("exclude"), *nodes, *noted)))
                self._ask(ExcludeNodes(name), commands.exclude_nodes(name, out))
            case CancelJobs(names):
                self._ask(CancelNamed(names), self._cancel(names))
            case StartNow(name):
                self._ask(StartAtOnce(name), commands.start_now(name))
            case RequeueJob(name):
                return self._requeue(name)
            case StartPilot(name, job, node):
                self._start_pilot(name, job, node)
            case _:
                assert_never(action)
        return []

    def ask_own_state(self, job: str, timeout_s: float = PATIENCE_S) -> None:
        """Ask Slurm why it ends the controller's own job."""
        self._ask(AskOwnState(), commands.job_state(job), timeout_s=timeout_s)

    def ask_own_nodes(self, job: str) -> None:
        """Ask Slurm which nodes the controller's own job still has."""
        self._ask(AskOwnNodes(), commands.job_nodes(job))

    def submit_successor(self) -> None:
        """Submit another job for the controller (array mode); the new controller asks this one to hand over."""
        if self.config.cluster.controller == "job":
            self._ask(SubmitSuccessor(), submit_successor_command(self.run))

    def end(self, names: tuple[str, ...]) -> None:
        """Cancel the run's remaining jobs when the run is over, also those of an sbatch in progress."""
        self.background.wait(lambda asked: isinstance(asked, SubmitPilots | SubmitSuccessor), END_WAIT_S)
        new = tuple(name for name in self.run.pools() if name not in self.pools)
        if names or new:
            client.call(self._cancel((*names, *new)), PATIENCE_S)
        if (other := self._other_controller()) is not None:
            client.cancel(other, pending_only=True, timeout_s=PATIENCE_S)

    def _ask(self, question: Question, argv: list[str], **options: Any) -> None:
        self.background.ask(question, argv, **{"env": _clean(), **options})

    def _requeue(self, name: str) -> list[Event]:
        if PILOT in os.environ and name == commands.job_name(os.environ):
            with suppress(ProcessLookupError):
                os.kill(int(os.environ[PILOT]), signal.SIGUSR1)
            return []
        command = commands.requeue(name)
        if shutil.which(command[0]) is None:
            return [RequeueRefused(name, f"there is no {command[0]} here")]
        self._ask(Requeue(name), command)
        return []

    def _start_pilot(self, name: str, job: str, node: str) -> None:
        """Start a pilot through srun. Kill the srun of an earlier one, which may hang at a node that was lost."""
        self.background.kill(lambda asked: isinstance(asked, RunPilot) and asked.name == name)
        self.pilots_started += 1
        srun = commands.beside(job, "pilot", node, self.config.cluster.srun)
        argv = [*srun, *job_command(self.run, JobRole.EXTRA_PILOT)]
        self._ask(RunPilot(name, self.pilots_started), argv, env=_pilot_environment(name), timeout_s=inf)

    def _cancel(self, names: tuple[str, ...]) -> list[str]:
        """Return the command that ends jobs. Release the running tasks of an array submitted by hand: they complete."""
        if self.config.internal.pilots is None:
            return commands.cancel(*names)
        with suppress(OSError):
            self.run.released.mkdir(mode=0o700, exist_ok=True)
            for name in names:
                (self.run.released / name).touch(mode=0o600)
        return commands.cancel(*names, pending_only=True)

    def _other_controller(self) -> str | None:
        """Return the job of the successor or predecessor, which the end of the run makes useless; None: no such job."""
        job = self.run.job()
        if array(self.config) and job is not None and job.isdigit() and job != os.environ.get("SLURM_JOB_ID"):
            return job
        return None

    def read_notes(self) -> list[Event]:
        """Return what other runs have found broken (cluster.exclude_file)."""
        if self.config.cluster.exclude_file is None:
            return []
        nodes, said = exclude_file.read(self.config, self.run)
        return [NodesNoted(frozenset(nodes), said)]

    # --- answers -----------------------------------------------------------------------------------------------------

    def answered(self, answer: Answered) -> list[Event]:
        """Translate an answer of Slurm into events."""
        code, text = answer.code, answer.text
        match answer.question:
            case AskQueue(asked, asked_monotonic):
                return self._queue_answered(code, text, asked, time.monotonic() - asked_monotonic)
            case AskOwnNodes():
                with suppress(ValueError):
                    nodes = tuple(node for row in read_rows(text, 3)[0] for node in expand_hosts(row[1]))
                    return [NodesLeft(nodes)] if code == 0 and nodes and all(map(is_node, nodes)) else []
            case AskNodeRecords():
                return [*evidence.read_node_fates(text)]
            case ProbeNode(node):
                return [evidence.read_probe(node, text)]
            case RunNodeChecks(nodes):
                return [evidence.read_node_checks(nodes, text, self.config.cluster.kind == "local")]
            case SubmitPilots(pool):
                return [self._submitted(pool, text)]
            case Requeue(name) if code != 0:
                words = " ".join(text.split()) or f"exit code {code}"
                if is_busy(words) or any(hint in words for hint in NOT_NOW):
                    return []  # the next AskQueue shows the job; if it still runs it is requeued again
                return [RequeueRefused(name, words)]
            case RunPilot(name):
                log.warning("the pilot of %s has ended: %s", name, text.strip()[-1000:])
            case _ if code:
                log.warning("%s has failed (exit code %d): %s", answer.question, code, text.strip()[-1000:])
        return []

    def _queue_answered(self, code: int, text: str, asked: float, took_s: float) -> list[Event]:
        if code != 0:
            return [JobsUnknown(took_s)]
        seen, unread = evidence.read_queue(text, self.mark, self.config.internal.pilots, self.pools)
        if unread and not self.unread:
            asked_with = shlex.join(commands.queue())
            log.warning("not understood, so no job counts as gone: %.200r, printed by %s", unread[0], asked_with)
        self.unread = bool(unread)
        self.pools |= {job.name: job.pool for job in seen}
        leaving = [self.early.pop(job.name) for job in seen if job.name in self.early]
        unknown = [JobsUnknown(took_s)] if unread else []
        return [JobsSeen(tuple(seen), asked, took_s, whole=not unread), *unknown, *leaving]

    def _submitted(self, pool: int, text: str) -> Event:
        """Read the last line of ftslurm.submission.pilot_jobs: the jobs and excluded nodes as JSON, or an error."""
        lines, names = [line for line in text.splitlines() if line.strip()], list[str]()
        with suppress(ValueError, IndexError, TypeError, RecursionError):
            printed, noted = json.loads(lines[-1])
            names = [name for name in printed if is_job(name)]
            self.noted = [node for node in noted if is_node(node)]
        self.pools |= dict.fromkeys(names, pool)
        error = "" if names else (lines[-1] if lines else "sbatch has said nothing")
        return Submitted(pool, tuple(names), error)

    # --- the inbox ---------------------------------------------------------------------------------------------------

    def commanded(self, command: Mapping[str, Any], now: float) -> list[Event]:
        """Read a command from the inbox: `scale`, `pilot` or `leaving`."""
        if command["what"] == "scale":
            return [ScaleAsked(command["groups"], requester(command))] if is_whole(command.get("groups")) else []
        name = command.get("name")
        if not isinstance(name, str) or not is_job(name):
            return []
        return self._leaving(name, command) if command["what"] == "leaving" else self._pilot(name, command, now)

    def _leaving(self, name: str, command: Mapping[str, Any]) -> list[Event]:
        """Handle a pilot's report that its job is about to end."""
        sign = str(command.get("signal"))
        event = JobLeaving(name, CAUSES.get(sign, Cause.TIME_LIMIT), f"Slurm sent {sign} to it")
        if name in self.pools:
            return [event]
        self.early[name] = event
        return []

    def _pilot(self, name: str, command: Mapping[str, Any], now: float) -> list[Event]:
        """Handle a pilot's report of its nodes. Drop an invalid one: the next answer to AskQueue has the nodes."""
        try:
            nodes, ends = tuple(expand_hosts(str(command["nodes"]))), command.get("ends")
        except (KeyError, ValueError):
            return []
        end = float(ends) if is_finite(ends) else None
        job = Job(name, self.pools.get(name, 0), "RUNNING", str(command.get("job")), nodes, ends=end)
        known = name in self.pools or name.startswith(f"{self.config.internal.pilots}_")
        sound = is_job(job.id) and all(is_node(node) for node in nodes)
        return [JobsSeen((job,), now, whole=False)] if sound and known else []


def srun_names(state: RunState) -> dict[str, str]:
    """Return the id of each job, by name: srun needs it, because a task of an array has an id of its own."""
    return {job.name: job.id or job.name for job in state.job_pool.jobs}


def _pilot_environment(name: str) -> dict[str, str]:
    """Return the environment of a pilot under srun, which does not set the array task of its job."""
    env = {key: value for key, value in _clean().items() if not key.startswith("FTSLURM_")}
    array_job, _, task = name.partition("_")
    return env | ({"SLURM_ARRAY_JOB_ID": array_job, "SLURM_ARRAY_TASK_ID": task} if task else {})


def _clean() -> dict[str, str]:
    """Return this process's environment without options of its own job and the user's defaults for questions."""
    defaults = ("SQUEUE_", "SINFO_")
    return {name: value for name, value in commands.scrubbed(os.environ).items() if not name.startswith(defaults)}
