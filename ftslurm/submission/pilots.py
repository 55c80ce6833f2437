"""Jobs that give a group its nodes: how they are submitted, and what runs in them, which is nearly nothing.

In array mode these are the pilots, tasks of one array each; in steps mode satellites, for lost nodes. The controller
starts the group's step in them with `srun --jobid`. It submits them through a process of its own (`python -m
ftslurm.submission.pilots`), because sbatch may take its time.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ftslurm.config.schema import Config
from ftslurm.errors import Distrusted, EnvironmentProblem, FtslurmError
from ftslurm.guard import pilot_presence, processes
from ftslurm.run import configuration, inbox, leadership, liveness
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import last_event
from ftslurm.security import run_key
from ftslurm.slurm import client, commands
from ftslurm.submission import submitit_adapter
from ftslurm.submission.candidate import Candidate
from ftslurm.submission.submit import PILOT, batch_command, sbatch_parameters
from ftslurm.submission.submit import submit as submit_controller

LOOK_S = 15.0  # how often a pilot looks whether the run is over
ALONE_S = 600.0  # without a controller a pilot gives its nodes back after this long, or ten times health.orphan_after_s
TIMES, AGAIN_S = 5, 1.0  # that a job is about to end is said so often, and so long apart
LINGERS_S = 60.0  # after its group has left it waits so long for Slurm or the controller to end or requeue it
NOT_AVAILABLE = "Requested node configuration is not available"  # of sbatch --test-only: too large, or all are down
UP = ("idle", "mixed", "allocated", "completing", "planned", "reserved")
TOO_MANY = "Invalid job array specification"  # more tasks than the site's MaxArraySize


def parameters(config: Config, run: RunDir, pool: int, exclude: Sequence[str] = ()) -> dict[str, Any]:
    """What submitit is told about the jobs of one pool.

    Without --no-kill: a job that has lost a node is of no use, and Slurm requeues it by itself (measured on 22.05: with
    --no-kill it would stay, and a node that returns is not given back to it).
    """
    told = sbatch_parameters(config, run, group=True)
    options = told["additional_parameters"]
    options["comment"] = f"{run.mark()}:{pool}"
    if pool:
        own = config.cluster.ranges[pool - 1]
        for key in ("partition", "account", "qos", "time", "constraint", "exclude", "nodelist", "reservation"):
            if getattr(own, key) is not None:
                options[key] = getattr(own, key)
        options |= {key.replace("_", "-"): value for key, value in own.sbatch.items()}
    if exclude:
        options["exclude"] = ",".join([*([str(options["exclude"])] if options.get("exclude") else []), *exclude])
    return told


def submit(config: Config, run: RunDir, pool: int, count: int, exclude: Sequence[str] = ()) -> list[str]:
    """Submit jobs of one pool as one array; their names, as Slurm shows them.

    Raises:
        EnvironmentProblem: sbatch refused all of them; its message is passed on.
    """
    told = parameters(config, run, pool, exclude)
    try:
        job = submitit_adapter.submit_batch(run.submitit, batch_command(run, PILOT), told, tasks=count)
    except submitit_adapter.SbatchRefused as error:
        if TOO_MANY not in str(error) or count == 1:
            raise EnvironmentProblem(f"sbatch refused {count} jobs for groups: {error}") from error
        names = submit(config, run, pool, count // 2, exclude)  # the site's MaxArraySize, found without scontrol
        with suppress(EnvironmentProblem):  # some are better than none; the rest is asked for again
            names += submit(config, run, pool, count - count // 2, exclude)
        return names
    return [f"{job}_{task}" for task in range(count)] if count > 1 else [job]


def sbatch_script(config: Config, run: RunDir, pool: int, count: int) -> str:
    """Return the sbatch script of so many jobs of a pool, for `ftslurm plan`."""
    told = parameters(config, run, pool)
    return submitit_adapter.sbatch_script(run.submitit, batch_command(run, PILOT), told, tasks=count)


def try_out(config: Config, run: RunDir) -> None:
    """Ask Slurm whether it would take the jobs of every pool, before anything is submitted.

    Raises:
        EnvironmentProblem: it would not.
    """
    for pool in range(len(config.cluster.ranges) + 1):
        text = submitit_adapter.sbatch_script(run.submitit, "true", parameters(config, run, pool))
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
            script.write(text)
            script.flush()
            answer = client.call(commands.try_submission(script.name))
        if answer.failure in (None, client.Failure.NOT_STARTED, client.Failure.TIMED_OUT):
            continue
        words = [line.partition("error: ")[2] or line for line in answer.err.splitlines() if line.strip()]
        # Busy or drained nodes are no reason to refuse the run: its jobs wait for them.
        waits = any("currently not available" in word.lower() for word in words)
        waits = waits or (any(NOT_AVAILABLE in word for word in words) and _some_nodes_are_down())
        if not waits:
            where = f" of cluster.ranges[{pool - 1}]" if pool else ""
            raise EnvironmentProblem(f"sbatch would refuse the jobs for groups{where}: {'; '.join(words)}")


def _some_nodes_are_down() -> bool:
    """Whether there are nodes that cannot start a job now, but may later: sbatch --test-only does not count on them."""
    return any(state.strip() not in UP for state in client.call(commands.node_states()).out.splitlines())


def name() -> str:
    """What Slurm calls the job that this process is the batch process of."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ["SLURM_JOB_ID"]


def announce(run: RunDir) -> None:
    """Tell the controller that these nodes are there; it would else learn it at the next look at the queue."""
    ends = os.environ.get("SLURM_JOB_END_TIME", "")
    nodes = os.environ.get("SLURM_JOB_NODELIST", "")
    told = {"name": name(), "job": os.environ["SLURM_JOB_ID"], "nodes": nodes, "ends": int(ends) if ends else None}
    with suppress(EnvironmentProblem):  # squeue will show it
        inbox.put(run.inbox, "pilot", **told)


def hold(run: RunDir, batch: bool = True) -> int:
    """What a pilot runs; returns its exit code. It may carry the controller, too, if that has lost its own job.

    Args:
        batch: False: the job has lost its batch process, and Slurm has not noticed; it does not end with us.

    Raises:
        FtslurmError: the run directory cannot be read, or may be somebody else's work.
    """
    config = configuration.of_run(run)
    may_lead = config.cluster.mode == "array" and (config.cluster.controller == "job" or config.cluster.pilots)
    held = stay(config, run, Candidate(config, run, os.environ["SLURM_JOB_ID"]) if may_lead else None)
    if held and not batch:
        client.cancel(name())
    return 0


def stay(config: Config, run: RunDir, candidate: Candidate | None) -> bool:
    """Hold the nodes of this job until the run is over or Slurm wants them back, and pass that on.

    Returns False if the job has another pilot.

    At Slurm's warning before the time limit (USR2) and at SIGTERM (preemption) the controller is told, whose group
    leaves; if we went at once, Slurm would kill the group's step with us.
    """
    seen = list[int]()
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, lambda caught, _: seen.append(caught))
    with suppress(OSError):
        (run.released / name()).unlink()  # an earlier life of this job was not needed
    announce(run)
    here = _Post(run)
    look_s = LOOK_S if candidate is None else candidate.every_s
    next_look, until = time.monotonic() + look_s, float("inf")
    sign, word, watch = None, _Word(run), liveness.Watch()
    while time.monotonic() < until and here.hold():
        signal.sigtimedwait([], 0.5)
        while seen and until == float("inf"):
            sign = signal.Signals(seen.pop(0))
            if sign != signal.SIGUSR2:  # else the time limit is near; there is time to find its group another place
                until = time.monotonic() + config.stop.grace_s + LINGERS_S
                if candidate is not None:
                    candidate.make_way()
        if candidate is not None:
            candidate.tend()
        if sign is not None and not (candidate and candidate.makes_way):
            word.say(sign)
        if until < float("inf") and not any(True for _ in _group_here(run)) and _ends():
            break  # Slurm is ending us: the sooner we go, the sooner the nodes are free
        if time.monotonic() >= next_look:
            next_look = time.monotonic() + look_s
            if over(run, config, watch) or ((run.released / name()).exists() and not (candidate and candidate.leads)):
                break
    if candidate is not None:
        candidate.finish()
    return here.held is not None or not run.key.exists()


class _Post:
    """Shows the guards in this job that its pilot is there (worker/post.py), from when the run has its key."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.held: socket.socket | None = None

    def hold(self) -> bool:
        """Hold the post; False: another pilot does, so this one is not needed."""
        if self.held is None and self.run.key.exists():
            with suppress(OSError, Distrusted):
                self.held = pilot_presence.hold(run_key.load_or_make(self.run.key), os.environ["SLURM_JOB_ID"])
                return self.held is not None
        return True


class _Word:
    """That this job is about to end, and why: told to each that leads from now on, until it is sure to know the job."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.told: tuple[int, signal.Signals] | None = None
        self.times, self.next = 0, 0.0

    def say(self, sign: signal.Signals) -> None:
        """Say it, if it is time to."""
        with suppress(OSError, EnvironmentProblem):
            now = leadership.newest(self.run), sign
            if now != self.told:
                self.told, self.times, self.next = now, TIMES, 0.0
            if self.times and time.monotonic() >= self.next:
                inbox.put(self.run.inbox, "leaving", name=name(), signal=sign.name)
                self.times, self.next = self.times - 1, time.monotonic() + AGAIN_S


def over(run: RunDir, config: Config, watch: liveness.Watch) -> bool:
    """Whether nobody needs this job any more: the run has ended, or `watch` has seen no controller for long."""
    if last_event(run.events) == "run_finished" or not run.root.exists():
        return True
    silent_s = watch.silent_s(run.alive)
    return silent_s is not None and silent_s > max(ALONE_S, 10 * config.health.orphan_after_s)


def _group_here(run: RunDir) -> Iterator[int]:
    """What still runs of the group in this job, on this node."""
    job = os.environ["SLURM_JOB_ID"]
    return (pid for pid, theirs in processes.of_run(str(run.root)) if theirs.get("SLURM_JOB_ID") == job)


def _ends() -> bool:
    """Whether Slurm has begun to end this job. (One task of an array has the array's own id, which means all.)"""
    return client.job_state(name())[0] not in ("RUNNING", "UNKNOWN", "")


def main(words: Sequence[str]) -> int:
    """RUN POOL COUNT NODE,NODE...: submit jobs, print their names as JSON, or why not. RUN: a controller's job."""
    run = RunDir(Path(words[0]))
    try:
        if len(words) == 1:
            submit_controller(configuration.of_run(run), run, hand_over=True)
            return 0
        bad = [node for node in words[3].split(",") if node]
        names = submit(configuration.of_run(run), run, int(words[1]), int(words[2]), bad)
        run.remember(names, int(words[1]))
    except FtslurmError as error:
        print(error)
        return 2
    print(json.dumps(names))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
