"""What is asked of Slurm in the background: for each request its command line, and how the answer is read.

Malformed lines are skipped: no output can harm the controller. The texts were recorded on Slurm 22.05.8, 24.11.5 and
26.05.5. The command lines are built in slurm/commands.py.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from ftslurm.config.schema import sbatch_options
from ftslurm.core.state.actions import (
    Ask,
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
    Looked,
    NodesLeft,
    RequeueRefused,
    Submitted,
)
from ftslurm.core.state.model import Job, Place
from ftslurm.launchers.scheduler import (
    ANSWER_S,
    PATIENCE_S,
    Answer,
    AskOwnNodes,
    AskOwnState,
    CancelStep,
    Request,
)
from ftslurm.security import programs
from ftslurm.security.names import is_job, is_node
from ftslurm.slurm import client, commands
from ftslurm.slurm.evidence import asked_by_slurm, node_fate, read_probe, time_of
from ftslurm.slurm.hosts import expand_hosts
from ftslurm.slurm.parse import NO_OUTPUT, STATES, is_busy, read_mark, read_rows, read_state, running

if TYPE_CHECKING:
    from ftslurm.launchers.srun import Slurm

SUBMITS = "ftslurm.submission.pilot_jobs"
PROBE_S = 60.0  # srun itself gives up after 10 to 20 s if a node does not answer
NOT_NOW = ("Job is pending execution", "try again later")  # Slurm itself has just requeued the job, or is about to
log = logging.getLogger("ftslurm.controller.loop")


def request(slurm: Slurm, ask: Ask) -> Request:
    """Return the command that asks this of Slurm, without the options of its own job and the user's defaults."""
    known = commands.scrubbed(os.environ)
    env = {name: value for name, value in known.items() if not name.startswith(client.DEFAULTS)}
    asked, job = partial(Request, ask, env=env, rpcs=1), slurm.job or ""
    match ask:
        case AskJobs(when):
            return asked(commands.queue(), partial(_jobs_seen, slurm, when), rpcs=2)
        case RequestJobs(pool, count, exclude):
            argv = programs.module(SUBMITS, str(slurm.run.root), str(pool), str(count), ",".join(exclude))
            return asked(argv, partial(_submitted, slurm, pool), timeout_s=5 * PATIENCE_S)
        case Exclude(name, nodes):
            noted = slurm.noted[: max(0, len(slurm.noted) - len(nodes))]  # no more in all than sbatch has accepted
            always = sbatch_options(slurm.config.cluster).get("exclude")
            return asked(commands.exclude_nodes(name, ",".join(filter(None, (always, *nodes, *noted)))))
        case CancelJobs(names):
            return asked(slurm.cancel(names))
        case RequeueJob(name):
            return asked(commands.requeue(name), partial(_requeued, name))
        case StartNow(name):
            return asked(commands.start_now(name))
        case AskNodes(nodes):
            return asked(commands.node_records(nodes), _node_fates, rpcs=2)
        case Probe(node, allocation):
            srun = slurm.srun("look", Place((node,), allocation=allocation))
            argv = [*srun, *programs.module("ftslurm.guard.probe")]
            return Request(ask, argv, lambda answer: [read_probe(node, answer.text)], slurm.environ(), PROBE_S, rpcs=2)
        case Dial(nodes):
            argv = programs.module("ftslurm.slurm.dial", *commands.slurmds(nodes))
            return asked(argv, partial(_dialled, nodes), rpcs=2)
        case CancelStep(name):
            return asked(commands.cancel(name))
        case AskOwnState(signalled):
            return asked(commands.job_state(job), partial(_own_state, slurm, signalled), timeout_s=ANSWER_S, rpcs=2)
        case AskOwnNodes():
            return asked(commands.job_nodes(job), _own_nodes, rpcs=2)
    raise NotImplementedError(f"{ask} cannot be asked of Slurm")


# --- jobs ------------------------------------------------------------------------------------------------------------


def _jobs_seen(slurm: Slurm, asked: float, answer: Answer) -> list[Event]:
    if answer.code != 0:
        return [JobsSeen((), asked, answer.took_s, whole=False)]
    seen, unread = _jobs(slurm, answer.text)
    if unread and not slurm.unread:
        asked_with = shlex.join(commands.queue())
        log.warning("not understood, so no job counts as gone: %.200r, printed by %s", unread[0], asked_with)
    slurm.unread = bool(unread)
    slurm.pools |= {job.name: job.pool for job in seen}
    return [JobsSeen(tuple(seen), asked, answer.took_s, whole=not unread)]


def _jobs(slurm: Slurm, text: str) -> tuple[list[Job], list[str]]:
    """Return the jobs that provide the run's groups with nodes.

    Return also the lines that cannot be read and may be of such a job: no job is gone because it is not shown then.

    The run's id in a job's comment identifies the run's jobs, or the names of those that it has submitted; or they
    are the tasks of an array that was submitted by hand. If a job has no time limit, only PreemptTime shows that it
    is preempted: squeue then hides its new, near end.
    """
    out = list[Job]()
    rows, unread = read_rows(text, len(commands.QUEUE_FIELDS), is_job)
    for row in rows:
        name, job, state, reason, nodes, began, ends, cut, base, comment = row
        mark, pool = read_mark(comment)
        if mark == slurm.mark and pool is not None:
            number = pool
        elif name in slurm.pools or (base == slurm.config.internal.pilots and name != base):
            number = slurm.pools.get(name, 0)
        else:
            continue
        state = running(state)
        runs = state == "RUNNING"
        # Slurm 22.05 has this reason also for each batch script that a signal has ended, but that one has an output.
        unwritten = state == "FAILED" and reason.startswith(NO_OUTPUT) and not slurm.run.output(name).exists()
        try:
            hosts = tuple(expand_hosts(nodes)) if runs or unwritten else ()
        except ValueError:
            hosts = ()
        if not STATES.fullmatch(state) or not is_job(job) or runs > bool(hosts) or not all(map(is_node, hosts)):
            unread.append("|".join(row))
            continue
        waits = reason if state == "PENDING" and reason != "None" else ""
        start, end, told = (time_of(began), time_of(ends), time_of(cut)) if runs else (None, None, None)
        preempted = start is not None and told is not None and told >= start  # else: before it was requeued
        job = job if runs else ""
        out.append(Job(name, number, state, job, hosts, waits, began=start, ends=end, preempted=preempted))
    return out, unread


def _submitted(slurm: Slurm, pool: int, answer: Answer) -> list[Event]:
    """Read the last line of ftslurm.submission.pilot_jobs: the jobs and excluded nodes as JSON, or an error."""
    lines, names = [line for line in answer.text.splitlines() if line.strip()], list[str]()
    with suppress(ValueError, IndexError, TypeError, RecursionError):
        printed, noted = json.loads(lines[-1])
        names = [name for name in printed if is_job(name)]
        slurm.noted = [node for node in noted if is_node(node)]
    slurm.pools |= dict.fromkeys(names, pool)
    error = "" if names else (lines[-1] if lines else "sbatch has said nothing")
    return [Submitted(pool, tuple(names), error)]


def _requeued(name: str, answer: Answer) -> list[Event]:
    words = " ".join(answer.text.split()) or f"exit code {answer.code}"
    if answer.code == 0 or is_busy(words) or any(hint in words for hint in NOT_NOW):
        return []  # the next answer of squeue shows the job; if it still runs it is requeued again
    return [RequeueRefused(name, words)]


# --- nodes -----------------------------------------------------------------------------------------------------------


def _node_fates(answer: Answer) -> list[Event]:
    fates = list[Event]()
    for line in answer.text.splitlines():
        words = dict(word.partition("=")[::2] for word in reversed(line.split()))  # reversed: the first of two counts
        node, state = words.get("NodeName", ""), words.get("State", "")
        if state and is_node(node):
            reason = "".join(line.partition(" Reason=")[2].rpartition("]")[:2])  # it ends with [user@time]
            fates.append(node_fate(node, state, reason))
    return fates


def _dialled(nodes: Sequence[str], answer: Answer) -> list[Event]:
    with suppress(ValueError, TypeError):
        return [Looked(node, False, silent=True) for node in json.loads(answer.text) if node in nodes]
    return []


# --- the controller's own job ----------------------------------------------------------------------------------------


def _own_state(slurm: Slurm, signalled: bool, answer: Answer) -> list[Event]:
    restarts = int(os.environ.get("SLURM_RESTART_COUNT", 0))
    batch = commands.is_batch(os.environ)
    state = read_state(answer.text if answer.code == 0 else "")
    return [*asked_by_slurm(state, slurm.config, restarts, batch), Explained(signalled, answered=bool(state[0]))]


def _own_nodes(answer: Answer) -> list[Event]:
    with suppress(ValueError):
        nodes = tuple(node for row in read_rows(answer.text, 3)[0] for node in expand_hosts(row[1]))
        return [NodesLeft(nodes)] if answer.code == 0 and nodes and all(map(is_node, nodes)) else []
    return []
