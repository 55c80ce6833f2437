"""How the controller gets onto the cluster, or onto this machine: submitit's side of ftslurm."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

from ftslurm.config import compose
from ftslurm.config.schema import Config, nodes_needed
from ftslurm.errors import EnvironmentProblem
from ftslurm.launchers import local
from ftslurm.monitor.sentences import seconds
from ftslurm.run import liveness
from ftslurm.run.directory import RunDir, replace_text
from ftslurm.run.journal import last_event
from ftslurm.security import owned_files
from ftslurm.slurm import commands
from ftslurm.submission.capabilities import cpus_per_node, gpus_per_node, last_line

LIVE_STATES = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"} | {
    "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "STAGE_OUT", "UNKNOWN",
}  # fmt: skip
CONTROLLER, SUCCESSOR, PILOT = "controller", "successor", "pilot"  # what a job may run (ftslurm.submission.entry)
PILOT_AGAIN = "pilot-again"  # a pilot that is no batch process, because the job has lost that
QUEUE_S = 15.0  # how often Slurm is asked what a job waits for
YEARS = 10 * 365 * 24 * 60  # minutes; submitit's local executor insists on a time limit


def create(config: Config) -> RunDir:
    """Make the run directory and write the resolved configuration into it.

    Raises:
        EnvironmentProblem: the place cannot be written, or is taken.
        Distrusted: others could put another run directory in its place.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    default = Path(config.run.root) / f"{config.run.name}-{stamp}-{secrets.token_hex(2)}"
    run = RunDir(Path(config.run.dir) if config.run.dir else default)
    owned_files.check_way(run.root, config.run.trust)
    try:
        run.create()
        config.run.dir = str(run.root)
        replace_text(run.config, compose.dump(config))
    except FileExistsError as error:
        raise EnvironmentProblem(
            f"run.dir={run.root} exists already: every run needs a directory of its own"
        ) from error
    except OSError as error:
        raise EnvironmentProblem(
            f"the run directory {run.root} cannot be made: {error.strerror}; choose a place you may write, and that "
            f"all nodes see, with run.root=DIR"
        ) from error
    return run


def submit(config: Config, run: RunDir, after: str | None = None, hand_over: bool = False) -> Any:
    """Submit the controller with submitit and remember the job's id; returns submitit's job.

    The job gets a command, and no pickled function: who could change that file could run what he likes in it.

    Args:
        after: a job of this run that must have ended before: two controllers never overlap.
        hand_over: the controller that leads now makes way for it as soon as it is up (array mode).

    Raises:
        EnvironmentProblem: sbatch refused; its message is passed on.
    """
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    token = run.submitit / "submitting"  # still there at the next look: we were killed in between
    token.touch()
    try:
        if config.cluster.kind == "local":
            executor: Any = submitit.LocalExecutor(run.submitit)
            executor.update_parameters(timeout_min=YEARS, setup=config.cluster.setup, stderr_to_stdout=True)
            os.environ[local.GPUS] = ",".join(local.visible_gpus(os.environ))
            with _ignoring(signal.SIGINT, signal.SIGHUP):  # a Ctrl-C is for us alone; we tell the controller
                job = executor._submit_command(command(run, CONTROLLER))
        else:
            executor = submitit.SlurmExecutor(run.submitit)
            parameters = sbatch_parameters(config, run)
            if after is not None:
                parameters["additional_parameters"] |= {"dependency": f"afterany:{after}"}
            executor.update_parameters(**parameters)
            with redirect_stderr(StringIO()):  # submitit prints what sbatch says when it refuses; so do we, once
                what = SUCCESSOR if hand_over else CONTROLLER
                job = executor._submit_command(batch_command(run, what))
    except (FailedJobError, FailedSubmissionError, subprocess.CalledProcessError) as error:
        if after is None and not hand_over:  # nothing was submitted: nothing that looks like a run stays behind
            shutil.rmtree(run.root, ignore_errors=True)
        raise EnvironmentProblem(f"sbatch refused the job: {refusal(error)}") from error
    replace_text(run.job_id, str(job.job_id))
    token.unlink()
    return job


def unless_refused(run: RunDir, ask: Callable[[], None]) -> None:
    """Do something that may fail before anything is submitted: then nothing that looks like a run stays behind."""
    try:
        ask()
    except EnvironmentProblem:
        shutil.rmtree(run.root, ignore_errors=True)
        raise


def sbatch_parameters(config: Config, run: RunDir, group: bool = False) -> dict[str, Any]:
    """What submitit's SlurmExecutor is told about the controller's job, or about one that gives a group its nodes.

    Nodes and tasks go through `additional_parameters`: given as submitit's own, its job would wait for the results of
    tasks that are never started. --no-kill keeps the job when a node is lost. `B:` sends Slurm's warning before the
    time limit to the controller; without it the training scripts get it, and die of it.
    """
    cluster, groups = config.cluster, config.groups
    alone = cluster.mode == "array" and not group  # the controller needs next to nothing
    options: dict[str, Any] = {
        "nodes": 1 if alone else groups.nodes if group else nodes_needed(config),
        "ntasks-per-node": 1,
        "cpus-per-task": 1 if alone else cpus_per_node(config),
        "no-kill": not group,
        "requeue" if cluster.requeue else "no-requeue": True,
        "signal": f"B:USR2@{cluster.signal_s}",
        "comment": run.mark(),
    }
    if gpus_per_node(config) and not alone:
        options["gpus-per-node"] = gpus_per_node(config)
    if alone:
        options["mem"] = "1G"
    elif groups.mem is not None:
        number, unit = groups.mem.rstrip("KMGTkmgt"), groups.mem.lstrip("0123456789")
        options["mem"] = f"{int(number) * groups.per_node}{unit}"
    for key in ("partition", "account", "qos", "time", "constraint", "exclude", "nodelist", "reservation"):
        if getattr(cluster, key) is not None:
            options[key] = getattr(cluster, key)
    more = cluster.sbatch | (cluster.controller_sbatch if alone else {})
    options |= {key.replace("_", "-"): value for key, value in more.items()}
    for key in [key for key, value in options.items() if value is None or value is False]:
        del options[key]  # cluster.sbatch.no-requeue=false takes an option back
    return {
        "use_srun": False,
        "job_name": config.run.name,
        "time": None,  # submitit's default would be five minutes
        "wckey": None,
        "setup": ["set -e", *cluster.setup, "set +e"] if cluster.setup else [],  # a line that fails ends the job
        "stderr_to_stdout": True,
        "additional_parameters": options,
    }


def exported(config: Config, environ: Mapping[str, str]) -> str | None:
    """What sbatch will be told to pass on of the environment; None: all, or no job is submitted."""
    if config.cluster.kind == "local" or config.cluster.controller == "here":
        return None
    options = config.cluster.sbatch | (config.cluster.controller_sbatch if config.cluster.mode == "array" else {})
    told = environ.get("SBATCH_EXPORT") or options.get("export")  # sbatch heeds the first before lines of a script
    return None if told is None else str(told)


def sbatch_script(config: Config, run: RunDir) -> str:
    """The sbatch script that would be submitted, for `ftslurm plan`."""
    from submitit.slurm.slurm import _make_sbatch_string

    return str(_make_sbatch_string(batch_command(run, CONTROLLER), run.submitit, **sbatch_parameters(config, run)))


def command(run: RunDir, what: str) -> str:
    """The shell command that a job runs; see ftslurm.submission.entry."""
    return shlex.join([sys.executable, "-u", "-m", "ftslurm.submission.entry", what, str(run.root)])


def batch_command(run: RunDir, what: str) -> str:
    """The same for a batch script, whose process must be Python itself: Slurm's warning would only kill a shell."""
    return f"exec {command(run, what)}"


def refusal(error: Exception) -> str:
    """What sbatch said, without what submitit says about it."""
    text = str(getattr(error, "stderr", None) or error)
    lines = [line.removeprefix("sbatch: ") for line in text.splitlines() if line.startswith("sbatch: ")]
    return "; ".join(line.removeprefix("error: ").strip() for line in lines) or last_line(text)


@contextmanager
def _ignoring(*numbers: int) -> Iterator[None]:
    """Children started meanwhile ignore these signals from their first instruction on."""
    before: list[tuple[int, Any]] = [(number, signal.signal(number, signal.SIG_IGN)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def still_there(config: Config, run: RunDir) -> Callable[[], bool]:
    """A function that says whether somebody is still going to write this run's journal.

    For a local run it looks at the process. For a job it asks Slurm, at most every 15 seconds, and only because a job
    can be cancelled before its controller has written a word.
    """
    asked, answer = time.monotonic(), True

    def ask() -> bool:
        nonlocal asked, answer
        job = run.job()
        if job is None:
            return True
        if config.cluster.kind == "local":
            return _process_lives(int(job))
        if time.monotonic() - asked >= 15.0:
            asked = time.monotonic()
            array = config.cluster.mode == "array"
            answer = abandoned(config, run) is None if array else job_state(job) in LIVE_STATES
        return answer

    return ask


def job_state(job: str) -> str:
    """Slurm's word for the job's state; "" if Slurm does not know it, "UNKNOWN" if it does not answer."""
    return _ask_squeue(job, "%T")


def abandoned(config: Config, run: RunDir) -> str | None:
    """Why nobody will write the end of this run's journal; None if somebody will, as far as can be told."""
    job = run.job()
    if job is None:
        return None  # cluster.controller=here: the allocation it ran in is not ours to know
    if config.cluster.kind == "local":
        return None if _process_lives(int(job)) else "its controller is gone; its workers have ended with it"
    if config.cluster.mode == "array":  # whoever leads: its job may be a pilot's
        age = liveness.age_s(run.alive)
        left = jobs_of(config, run) if age is None or age > liveness.SILENT_S else None  # it spares asking Slurm
        return "none of its Slurm jobs is left" if left == [] else None
    state = job_state(job)
    return None if state in LIVE_STATES else f"its controller is gone: Slurm job {job} is {state or 'unknown to Slurm'}"


def silence(config: Config, run: RunDir, watch: liveness.Watch | None = None) -> str | None:
    """That the controller is not heard any more, and what to do; None: it is. `watch`: see heard.silent_s."""
    if config.cluster.kind == "slurm" and last_event(run.events) == "run_requeued":
        return f"the run goes on in its next job: {_in_queue_at(run, int(time.monotonic() / QUEUE_S))}"
    silent, job = liveness.silent_s(config, run, watch), run.job()
    if silent is None:
        return None
    ends = f"; ftslurm stop cancels Slurm job {job}" if job is not None and config.cluster.kind == "slurm" else ""
    return f"the controller has not been heard for {seconds(silent)}{ends}"


def jobs_of(config: Config, run: RunDir) -> list[str] | None:
    """Every job of this run that waits or runs, its controller's and those of its groups; None: Slurm does not say."""
    try:
        done = subprocess.run(commands.QUEUE, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    own = run.job()
    groups = commands.read_queue(
        done.stdout, run.mark(), config.cluster.pilots, run.pools() | ({own: 0} if own else {})
    )
    return [job.name for job in groups if job.state in LIVE_STATES]


def cancel(config: Config, run: RunDir) -> list[str]:
    """End every job of a run whose controller is not heard; those that Slurm has been told to."""
    left = jobs_of(config, run)
    try:
        done = subprocess.run(["scancel", *left], capture_output=True, timeout=60, check=False) if left else None
    except (OSError, subprocess.TimeoutExpired):
        return []
    return left or [] if done is not None and done.returncode == 0 else []


def take_out_of_queue(job: str) -> bool:
    """Cancel a job that waits in Slurm's queue; whether it did, and is no more."""
    if job_state(job) != "PENDING":
        return False
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(["scancel", "--state=PENDING", job], capture_output=True, timeout=60, check=False)
    return job_state(job) in ("CANCELLED", "")


def in_queue(run: RunDir) -> str | None:
    """A line about a Slurm job whose controller has not begun: what it waits for, or how it ended; None: no job."""
    job = run.job()
    if job is None:
        return None
    state, _, reason = _ask_squeue(job, "%T %r").partition(" ")
    if state == "PENDING":
        reason += ": Slurm holds a requeued job for two minutes" if reason == "BeginTime" else ""
        return f"Slurm job {job} is waiting in the queue" + (f" ({reason})" if reason not in ("", "None") else "")
    known = state not in ("", "UNKNOWN")
    return f"Slurm job {job} is {state}" if known else f"Slurm does not know job {job} (any more)"


@lru_cache(maxsize=1)
def _in_queue_at(run: RunDir, moment: int) -> str | None:  # noqa: ARG001 the same answer for some seconds
    return in_queue(run)


def _ask_squeue(job: str, what: str) -> str:
    command = ["squeue", "--noheader", "--states=all", f"--jobs={job}", f"--format={what}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "UNKNOWN"
    unknown = "" if "Invalid job id" in done.stderr else "UNKNOWN"
    return unknown if done.returncode else done.stdout.strip()


def _process_lives(pid: int) -> bool:
    try:
        done, _ = os.waitpid(pid, os.WNOHANG)  # ours, if we submitted it
        return done == 0
    except ChildProcessError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
