"""What is asked of Slurm in the background: for each request its command line, and how the answer is read.

Malformed lines are skipped: no output can harm the controller. The texts were recorded on Slurm 22.05.8, 24.11.5 and
26.05.5. The command lines are built in slurm/commands.py.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ftslurm.config.schema import sbatch_options
from ftslurm.core.state.actions import (
    AskJobs,
    AskNodes,
    CancelJobs,
    Dial,
    Exclude,
    Probe,
    RequestJobs,
    RequeueJob,
    StartNow,
)
from ftslurm.core.state.events import (
    Event,
    Explained,
    JobsSeen,
    JobsUnknown,
    Looked,
    NodesLeft,
    RequeueRefused,
    Submitted,
)
from ftslurm.core.state.model import Job, Place
from ftslurm.launchers.scheduler import (
    PATIENCE_S,
    A,
    Answer,
    AskOwnNodes,
    AskOwnState,
    CancelStep,
    Request,
    SubmitSuccessor,
)
from ftslurm.security import programs
from ftslurm.security.names import is_job, is_node
from ftslurm.slurm import client, commands
from ftslurm.slurm.evidence import asked_by_slurm, node_fate, read_probe, time_of
from ftslurm.slurm.hosts import expand_hosts
from ftslurm.slurm.parse import NO_OUTPUT, STATES, is_busy, read_rows, read_state, running

if TYPE_CHECKING:
    from ftslurm.launchers.srun import Slurm

# PID of the pilot beside which the controller runs. The controller must not requeue the job that it runs in: Slurm's
# SIGTERM could end its sruns, and with them the steps in other jobs. Instead this pilot gets SIGUSR1, as if Slurm
# wanted its nodes back; another controller takes over and requeues the job.
PILOT = "FTSLURM_PILOT"
SUBMITS = "ftslurm.submission.pilot_jobs"
PROBE_S = 60.0  # srun itself gives up after 10 to 20 s if a node does not answer
NOT_NOW = ("Job is pending execution", "try again later")  # Slurm itself has just requeued the job, or is about to
log = logging.getLogger("ftslurm.controller.loop")


class SlurmRequest(Request["Slurm", A]):
    def env(self) -> Mapping[str, str] | None:
        """Return this process's environment without options of its own job and the user's defaults."""
        known = commands.scrubbed(os.environ)
        return {name: value for name, value in known.items() if not name.startswith(client.DEFAULTS)}


class OnNodes(SlurmRequest[A]):
    """A request for which srun runs a program of ours."""

    def env(self) -> Mapping[str, str]:
        return self.scheduler.environ()


# --- jobs ------------------------------------------------------------------------------------------------------------


class Queue(SlurmRequest[AskJobs]):
    def argv(self) -> list[str]:
        return commands.queue()

    def read(self, answer: Answer) -> list[Event]:
        slurm, took_s = self.scheduler, time.monotonic() - self.began
        if answer.code != 0:
            return [JobsUnknown(took_s)]
        seen, unread = self._jobs(answer.text)
        if unread and not slurm.unread:
            asked_with = shlex.join(self.argv())
            log.warning("not understood, so no job counts as gone: %.200r, printed by %s", unread[0], asked_with)
        slurm.unread = bool(unread)
        slurm.pools |= {job.name: job.pool for job in seen}
        unknown = [JobsUnknown(took_s)] if unread else []
        return [JobsSeen(tuple(seen), self.asked, took_s, whole=not unread), *unknown]

    def _jobs(self, text: str) -> tuple[list[Job], list[str]]:
        """Return the jobs that provide the run's groups with nodes.

        Return also the lines that cannot be read and may be of such a job: no job is gone because it is not shown then.

        The run's id in a job's comment identifies the run's jobs, or the names of those that it has submitted; or they
        are the tasks of an array that was submitted by hand. If a job has no time limit, only PreemptTime shows that it
        is preempted: squeue then hides its new, near end.
        """
        slurm, out = self.scheduler, list[Job]()
        rows, unread = read_rows(text, len(commands.QUEUE_FIELDS), is_job)
        for row in rows:
            name, job, state, reason, nodes, began, ends, cut, base, comment = row
            mark, _, pool = comment.removesuffix("|").rpartition(":")
            if mark == slurm.mark and re.fullmatch("[0-9]{1,9}", pool):
                number = int(pool)
            elif name in slurm.pools or (base == self.scheduler.config.internal.pilots and name != base):
                number = slurm.pools.get(name, 0)
            else:
                continue
            state = running(state)
            runs, unwritten = state == "RUNNING", state == "FAILED" and reason.startswith(NO_OUTPUT)
            try:
                hosts = tuple(expand_hosts(nodes)) if runs or unwritten else ()
            except ValueError:
                hosts = ()
            if not STATES.fullmatch(state) or not is_job(job) or runs > bool(hosts) or not all(map(is_node, hosts)):
                unread.append("|".join(row))
                continue
            waits = reason if state == "PENDING" else ""
            start, end, told = (time_of(began), time_of(ends), time_of(cut)) if runs else (None, None, None)
            preempted = start is not None and told is not None and told >= start  # else: before it was requeued
            job = job if runs else ""
            out.append(Job(name, number, state, job, hosts, waits, began=start, ends=end, preempted=preempted))
        return out, unread


class Submit(SlurmRequest[RequestJobs]):
    timeout_s = 5 * PATIENCE_S

    @property
    def key(self) -> tuple[type, int]:
        return RequestJobs, self.action.pool

    def argv(self) -> list[str]:
        words = (self.scheduler.run.root, self.action.pool, self.action.count, ",".join(self.action.exclude))
        return programs.module(SUBMITS, *map(str, words))

    def read(self, answer: Answer) -> list[Event]:
        """Read the last line of ftslurm.submission.pilot_jobs: the jobs and excluded nodes as JSON, or an error."""
        lines, names = [line for line in answer.text.splitlines() if line.strip()], list[str]()
        with suppress(ValueError, IndexError, TypeError, RecursionError):
            printed, noted = json.loads(lines[-1])
            names = [name for name in printed if is_job(name)]
            self.scheduler.noted = [node for node in noted if is_node(node)]
        self.scheduler.pools |= dict.fromkeys(names, self.action.pool)
        error = "" if names else (lines[-1] if lines else "sbatch has said nothing")
        return [Submitted(self.action.pool, tuple(names), error)]


class ExcludeNodes(SlurmRequest[Exclude]):
    def argv(self) -> list[str]:
        name, nodes, noted = self.action.name, self.action.nodes, self.scheduler.noted
        noted = noted[: max(0, len(noted) - len(nodes))]  # no more in all than sbatch has accepted
        out = ",".join(filter(None, (sbatch_options(self.scheduler.config.cluster).get("exclude"), *nodes, *noted)))
        return commands.exclude_nodes(name, out)


class Cancel(SlurmRequest[CancelJobs]):
    def argv(self) -> list[str]:
        return self.scheduler.cancel(self.action.names)


class Requeue(SlurmRequest[RequeueJob]):
    def argv(self) -> list[str]:
        if PILOT in os.environ and self.action.name == commands.job_name(os.environ):
            return ["sh", "-c", 'kill -USR1 "$0"; true', os.environ[PILOT]]
        return commands.requeue(self.action.name)

    def read(self, answer: Answer) -> list[Event]:
        words = " ".join(answer.text.split()) or f"exit code {answer.code}"
        if answer.code == 0 or is_busy(words) or any(hint in words for hint in NOT_NOW):
            return []  # the next Queue shows the job; if it still runs it is requeued again
        return [RequeueRefused(self.action.name, words)]


class StartAtOnce(SlurmRequest[StartNow]):
    def argv(self) -> list[str]:
        return commands.start_now(self.action.name)


# --- nodes and steps -------------------------------------------------------------------------------------------------


class NodeRecords(SlurmRequest[AskNodes]):
    def argv(self) -> list[str]:
        return commands.node_records(self.action.nodes)

    def read(self, answer: Answer) -> list[Event]:
        fates = list[Event]()
        for line in answer.text.splitlines():
            pairs = (word.partition("=")[::2] for word in reversed(line.split()))  # reversed: the first of two counts
            words = dict(pairs)
            node, state = words.get("NodeName", ""), words.get("State", "")
            why = re.match(r"(.*?) \[([^\s@]+)@(\S+)\]", line.partition(" Reason=")[2])
            reason = f"{why[1]} ({why[2]}, {why[3]})" if why else ""
            fates += [node_fate(node, state, reason)] if state and is_node(node) else []
        return fates


class ProbeNode(OnNodes[Probe]):
    timeout_s = PROBE_S

    def argv(self) -> list[str]:
        srun = self.scheduler.srun("look", Place((self.action.node,), allocation=self.action.allocation))
        return [*srun, *programs.module("ftslurm.guard.probe")]

    def read(self, answer: Answer) -> list[Event]:
        return [read_probe(self.action.node, answer.text)]


class DialNodes(SlurmRequest[Dial]):
    def argv(self) -> list[str]:
        return programs.module("ftslurm.slurm.dial", *commands.slurmds(self.action.nodes))

    def read(self, answer: Answer) -> list[Event]:
        with suppress(ValueError, TypeError):
            return [Looked(node, False, silent=True) for node in json.loads(answer.text) if node in self.action.nodes]
        return []


class EndStep(SlurmRequest[CancelStep]):
    def argv(self) -> list[str]:
        return commands.cancel(self.action.name)


# --- the controller's own job ----------------------------------------------------------------------------------------


class OwnState(SlurmRequest[AskOwnState]):
    def __init__(self, slurm: Slurm, action: AskOwnState, now: float) -> None:
        super().__init__(slurm, action, now)
        self.timeout_s = action.patience_s

    def argv(self) -> list[str]:
        return commands.job_state(self.scheduler.job or "")

    def read(self, answer: Answer) -> list[Event]:
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", 0))
        batch = commands.is_batch(os.environ)
        return [
            *asked_by_slurm(read_state(answer.text), self.scheduler.config, restarts, batch),
            Explained(self.action.signalled),
        ]


class OwnNodes(SlurmRequest[AskOwnNodes]):
    def argv(self) -> list[str]:
        return commands.job_nodes(self.scheduler.job or "")

    def read(self, answer: Answer) -> list[Event]:
        with suppress(ValueError):
            nodes = tuple(node for row in read_rows(answer.text, 3)[0] for node in expand_hosts(row[1]))
            return [NodesLeft(nodes)] if answer.code == 0 and nodes and all(map(is_node, nodes)) else []
        return []


class Successor(SlurmRequest[SubmitSuccessor]):
    def argv(self) -> list[str]:
        return programs.module(SUBMITS, str(self.scheduler.run.root))


REQUESTS: Mapping[type, type[SlurmRequest[Any]]] = {
    AskJobs: Queue,
    RequestJobs: Submit,
    Exclude: ExcludeNodes,
    CancelJobs: Cancel,
    RequeueJob: Requeue,
    StartNow: StartAtOnce,
    AskNodes: NodeRecords,
    Probe: ProbeNode,
    Dial: DialNodes,
    CancelStep: EndStep,
    AskOwnState: OwnState,
    AskOwnNodes: OwnNodes,
    SubmitSuccessor: Successor,
}
