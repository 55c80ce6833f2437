"""The verbs that tell a running controller something: stop, scale, and inject for drills."""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ftslurm.config.schema import Config, most_groups
from ftslurm.config.validate import FAULTS
from ftslurm.errors import EnvironmentProblem
from ftslurm.monitor.status import RunStatus, fold
from ftslurm.run import configuration
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import Event, JournalReader, last_event
from ftslurm.run.journal_filter import Skim
from ftslurm.security.terminal import readable

ANSWER_S = 10.0  # the controller looks into its inbox four times a second
HARM = {
    "kill": "SIGKILL to one rank, as the kernel or an admin would do it",
    "term": "SIGTERM to one rank",
    "stop": "SIGSTOP to one rank: it stands still until its group is found to hang (health.hang_after_s)",
    "exit": "one rank ends with an error, as after an exception in the script",
    "oom": "one rank runs out of memory",
    "hang": "one rank computes for ever and steps no more (health.hang_after_s)",
    "node": "the node of one rank is lost: all that this run has there stops at once (locally it is back at once)",
    "cancel": "scancel of the whole step of one group; a local run has none and refuses",
    "lighthouse": "SIGKILL to the Lighthouse; no group should notice more than a pause",
}

SCALE = """\
example
  ftslurm run groups.count=2 groups.max=4 ...    start with two groups; up to four may be asked for later
  ftslurm scale 4                                two more: each gets its nodes, starts, and heals from a live group
  ftslurm scale 2                                groups 3 and 2 are told to stop (stop.grace_s), their nodes are free

Groups are numbered 0 to groups.max - 1 for the whole run, which scripts see as NUM_REPLICA_GROUPS; so groups.max is set
when the run starts. The last groups leave first, and never so many that fewer than groups.min are left.
Exit code: 0 it is done, 1 the controller refuses or does not answer, 2 this run can never have so many groups.
"""


def parser_for(verb: str, about: str) -> argparse.ArgumentParser:
    """What all verbs on a run take."""
    parser = argparse.ArgumentParser(prog=f"ftslurm {verb}", description=about)
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="directory, id (or its beginning), Slurm job; default: newest"
    )
    parser.add_argument("--root", default="runs", help="where runs lie (run.root; default: runs)")
    return parser


def find(args: argparse.Namespace) -> RunDir:
    """The run that is meant."""
    from ftslurm.run import find

    return find.find(args.run, Path(args.root))


def stop_verb(words: list[str]) -> int:
    """Ask the controller to end the run; without a controller, ask Slurm to end the job."""
    args = parser_for("stop", "End a run: SIGTERM to the scripts, SIGKILL after stop.grace_s.").parse_args(words)
    run = find(args)

    from ftslurm.monitor import sentences
    from ftslurm.run import inbox, liveness
    from ftslurm.submission import requeue, submit

    config, job = configuration.of_run(run), run.job()
    now, reader = RunStatus(), JournalReader(run.events)
    for event in map(readable, Skim().read(reader)):
        now = fold(now, event)
    on_slurm = job is not None and config.cluster.kind == "slurm"
    began = now.started is not None and now.outcome in ("running", "stopped")
    # It was requeued, and nobody hears us; in array mode another one may lead meanwhile.
    array = config.cluster.mode == "array"
    silent = liveness.silent_s(config, run) if began and (array or now.outcome == "running") else None
    unheard = not array or silent is not None
    if job is not None and on_slurm and began and unheard and submit.take_out_of_queue(job):
        submit.cancel(config, run)
        requeue.end_journal(run, f"stopped in the queue: Slurm job {job} was cancelled")
        print(f"{run.root.name} was waiting in the queue to go on: Slurm job {job} is cancelled")
        return 0
    if now.outcome != "running":
        print(f"{run.root.name} is over already: {now.outcome}")
        return 0
    why = submit.abandoned(config, run)
    if why is not None and run.events.exists():
        print(f"{run.root.name} cannot be stopped: {why}")
        return 0
    on_slurm = config.cluster.kind == "slurm" and (job is not None or config.cluster.mode == "array")
    if silent is not None and on_slurm and (ended := submit.cancel(config, run)):
        what = f"Slurm job {', '.join(ended)} is cancelled"
        what = what if len(ended) == 1 else f"Slurm jobs {', '.join(ended)} are cancelled"
        print(f"the controller of {run.root.name} has not been heard for {sentences.seconds(silent)}: {what}")
        return 0
    inbox.put(run.inbox, "stop")
    if last_event(run.events) == "run_requeued":
        print(f"{run.root.name} is between two jobs: it stops as soon as the next one starts")
        return 0
    if now.started is None and job is not None and config.cluster.kind == "slurm":
        # No controller yet to read its inbox; --state leaves alone one that has started in the meantime.
        subprocess.run(["scancel", "--state=PENDING", job], check=False)
        if submit.job_state(job) == "CANCELLED" and not run.events.exists():
            requeue.end_journal(run, f"stopped in the queue: Slurm job {job} was cancelled before it started")
            print(f"{run.root.name} had not started: Slurm job {job} is cancelled")
        else:
            print(f"{run.root.name} had not started: Slurm job {job} stops as soon as it starts")
        return 0
    if now.started is not None and not _stops(reader, now):
        why = submit.abandoned(config, run)  # meanwhile
        if why is not None:
            print(f"{run.root.name} cannot be stopped: {why}")
            return 0
        by_hand = f"scancel {job}" if job and config.cluster.kind == "slurm" else f"see {run.controller_log}"
        print(
            f"the controller of {run.root.name} has not answered within {ANSWER_S:g} s. It will stop when it reads "
            f"{run.inbox}; if it is gone, {by_hand}",
            file=sys.stderr,
        )
        return 1
    print(f"{run.root.name} is stopping")
    return 0


def _stops(reader: JournalReader, now: RunStatus) -> bool:
    """Wait until the journal says that the run has been told to stop, or is over."""
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        for event in reader.iter_new():
            now = fold(now, event)
            if now.outcome != "running" or (event.get("event") == "command" and event.get("what") == "stop"):
                return True
        time.sleep(0.05)
    return False


def inject_verb(words: list[str]) -> int:
    """Ask the controller to do real harm, and tell what became of it."""
    parser = parser_for("inject", "Do a running run real harm, on purpose, to see it recover. Nothing is asked twice.")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("fault", metavar="FAULT", help="one of those below")
    parser.add_argument("--group", type=int, metavar="N", help="of this group (default: the lowest one that runs)")
    parser.add_argument("--rank", type=int, metavar="R", help="this rank of the group, or its node (default: 0)")
    parser.epilog = "faults\n" + "\n".join(f"  {name:<11} {HARM[name]}" for name in FAULTS)
    args = parser.parse_intermixed_args(words)
    fault = _checked(args.fault)
    run = find(args)

    from ftslurm.run import inbox

    config, reader = configuration.of_run(run), JournalReader(run.events)
    _check_target(config, fault, args.group, args.rank)
    now = _running(config, run, reader, "there is nothing to harm")
    inbox.put(run.inbox, "inject", fault=fault, group=args.group, rank=args.rank or 0)
    code = _tell_answer(
        run, reader, now, lambda event: _answers(event, fault, args.group, args.rank or 0), "fault_injected"
    )
    if code == 0 and fault in ("stop", "hang") and config.health.hang_after_s == 0:
        print(
            "all groups may wait for it, and nobody looks for who hangs (health.hang_after_s=0; a run that is started "
            "with health=hangs finds it by itself): ftslurm inject kill on the same rank ends it",
            file=sys.stderr,
        )
    return code


def scale_verb(words: list[str]) -> int:
    """Ask the controller for more groups, or fewer, and tell what became of it."""
    parser = parser_for("scale", "Give a running run more groups, or fewer. The others train on meanwhile.")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("groups", type=int, metavar="N", help="how many groups the run is to have from now on")
    parser.epilog = SCALE
    args = parser.parse_intermixed_args(words)
    run = find(args)

    from ftslurm.core.jobs.scale import refused
    from ftslurm.run import inbox

    config, reader = configuration.of_run(run), JournalReader(run.events)
    why_not = refused(args.groups, config)
    if why_not is not None:
        raise EnvironmentProblem(f"{run.root.name} cannot have {args.groups} groups: {why_not}")
    now = _running(config, run, reader, "it cannot become larger or smaller")
    inbox.put(run.inbox, "scale", groups=args.groups)
    return _tell_answer(run, reader, now, lambda event: _answers_scale(event, args.groups), "scaled")


def _answers_scale(event: Event, groups: int) -> bool:
    mine = event.get("by") in (None, os.getuid()) and event.get("groups") == groups
    return mine and event.get("event") in ("scaled", "scale_refused")


def _running(config: Config, run: RunDir, reader: JournalReader, else_: str) -> RunStatus:
    """How a run stands that somebody controls.

    Raises:
        EnvironmentProblem: it is over, or nobody controls it.
    """
    from ftslurm.monitor import sentences
    from ftslurm.submission import submit

    now = RunStatus()
    for event in map(readable, Skim().read(reader)):
        now = fold(now, event)
    if now.outcome != "running":
        raise EnvironmentProblem(f"{run.root.name} is over: {sentences.ended(now.outcome)}; {else_}")
    why = submit.abandoned(config, run)
    if why is not None or now.started is None:
        raise EnvironmentProblem(f"{run.root.name} does not run: {why or 'it has not started yet'}")
    return now


def _tell_answer(
    run: RunDir, reader: JournalReader, now: RunStatus, answers: Callable[[Event], bool], good: str
) -> int:
    """Wait for the line that answers a command, and print it; 0 if it is a good one, else 1."""
    from ftslurm.monitor import sentences

    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        for event in map(readable, reader.iter_new()):
            now = fold(now, event)
            if answers(event):
                print(sentences.describe(event, now))
                return 0 if event["event"] == good else 1
        if now.outcome != "running":
            print(f"{run.root.name} {sentences.ended(now.outcome)} before it could do that", file=sys.stderr)
            return 1
        time.sleep(0.05)
    print(
        f"the controller of {run.root.name} has not answered within {ANSWER_S:g} s; what it does is in "
        f"{run.controller_log}",
        file=sys.stderr,
    )
    return 1


def _checked(fault: str) -> str:
    if fault not in FAULTS:
        near = difflib.get_close_matches(fault.lower(), FAULTS, n=1)
        hint = f"did you mean {near[0]}? There" if near else "there"
        raise EnvironmentProblem(f"{fault!r} is no fault; {hint} are {', '.join(FAULTS)} (ftslurm inject --help)")
    return fault


def _check_target(config: Config, fault: str, group: int | None, rank: int | None) -> None:
    """Refuse what the run does not have."""
    if fault == "lighthouse" and (group is not None or rank is not None):
        raise EnvironmentProblem("the Lighthouse belongs to no group: leave out --group and --rank")
    if fault == "cancel" and rank is not None:
        raise EnvironmentProblem("cancel ends the whole step of a group: leave out --rank")
    groups, size = most_groups(config), config.groups.nodes * config.groups.workers
    if group is not None and not 0 <= group < groups:
        raise EnvironmentProblem(f"--group {group}: there is no such group; this run has {_numbered(groups, 'group')}")
    if rank is not None and not 0 <= rank < size:
        raise EnvironmentProblem(
            f"--rank {rank}: there is no such rank; a group of this run has {_numbered(size, 'rank')}"
        )


def _numbered(count: int, noun: str) -> str:
    return f"one {noun}, number 0" if count == 1 else f"{noun}s 0 to {count - 1}"


def _answers(event: Event, fault: str, group: int | None, rank: int) -> bool:
    """Whether this line says what became of our command, and not of another drill."""
    if event.get("event") not in ("fault_injected", "fault_refused") or event.get("kind") != fault:
        return False
    if event.get("by") not in (None, os.getuid()):
        return False
    if fault == "lighthouse":
        return True
    return group in (None, event.get("group")) and (fault == "cancel" or event.get("rank", rank) == rank)
