"""How the controller gets onto the cluster, or onto this machine: submitit's side of ftslurm."""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from ftslurm import compose
from ftslurm.cluster import cpus_per_node, gpus_per_node, last_line
from ftslurm.config import Config, nodes_needed
from ftslurm.errors import EnvironmentProblem
from ftslurm.journal import Event, Journal
from ftslurm.launchers import local, srun
from ftslurm.rundir import RunDir, replace_text

LIVE_STATES = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"} | {
    "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "STAGE_OUT", "UNKNOWN",
}  # fmt: skip
YEARS = 10 * 365 * 24 * 60  # minutes; submitit's local executor insists on a time limit


def create(config: Config) -> RunDir:
    """Make the run directory and write the resolved configuration into it.

    Raises:
        EnvironmentProblem: the place cannot be written, or is taken.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    default = Path(config.run.root) / f"{config.run.name}-{stamp}-{secrets.token_hex(2)}"
    run = RunDir(Path(config.run.dir) if config.run.dir else default)
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


def submit(config: Config, run: RunDir) -> Any:
    """Submit the controller with submitit and remember the job's id; returns submitit's job.

    Raises:
        EnvironmentProblem: sbatch refused; its message is passed on.
    """
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    token = run.submitit / "submitting"  # still there at the next look: we were killed in between
    token.touch()
    try:
        if config.cluster.kind == "local":
            executor: Any = submitit.LocalExecutor(run.submitit, python=shlex.quote(sys.executable))
            executor.update_parameters(timeout_min=YEARS, setup=config.cluster.setup, stderr_to_stdout=True)
            os.environ[local.GPUS] = ",".join(local.visible_gpus(os.environ))
            with _ignoring(signal.SIGINT, signal.SIGHUP):  # a Ctrl-C is for us alone; we tell the controller
                job = executor.submit(main, str(run.root))
        else:
            # exec: the batch process must be Python itself, or Slurm's warning signal only kills the shell before it.
            executor = submitit.SlurmExecutor(run.submitit, python=f"exec {shlex.quote(sys.executable)}")
            executor.update_parameters(**sbatch_parameters(config, run))
            with redirect_stderr(StringIO()):  # submitit prints what sbatch says when it refuses; so do we, once
                job = executor.submit(main, str(run.root))
    except (FailedJobError, FailedSubmissionError, subprocess.CalledProcessError) as error:
        shutil.rmtree(run.root, ignore_errors=True)  # nothing was submitted: nothing that looks like a run stays behind
        raise EnvironmentProblem(f"sbatch refused the job: {_refusal(error)}") from error
    replace_text(run.submitit / "job_id", str(job.job_id))
    token.unlink()
    return job


def sbatch_parameters(config: Config, run: RunDir) -> dict[str, Any]:
    """What submitit's SlurmExecutor is told.

    Nodes and tasks go through `additional_parameters`: given as submitit's own, its job would wait for the results of
    tasks that are never started. --no-kill keeps the job when a node is lost. `B:` sends Slurm's warning before the
    time limit to the controller; without it the training scripts get it, and die of it.
    """
    cluster, groups = config.cluster, config.groups
    options: dict[str, Any] = {
        "nodes": nodes_needed(config),
        "ntasks-per-node": 1,
        "cpus-per-task": cpus_per_node(config),
        "no-kill": True,
        "no-requeue": True,
        "signal": f"B:USR2@{cluster.signal_s}",
        "comment": f"ftslurm:{run.root.name}",
    }
    if gpus_per_node(config):
        options["gpus-per-node"] = gpus_per_node(config)
    if groups.mem is not None:
        number, unit = groups.mem.rstrip("KMGTkmgt"), groups.mem.lstrip("0123456789")
        options["mem"] = f"{int(number) * groups.per_node}{unit}"
    for key in ("partition", "account", "qos", "time", "constraint", "exclude", "nodelist", "reservation"):
        if getattr(cluster, key) is not None:
            options[key] = getattr(cluster, key)
    options |= {key.replace("_", "-"): value for key, value in cluster.sbatch.items()}
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


def sbatch_script(config: Config, run: RunDir) -> str:
    """The sbatch script that would be submitted, for `ftslurm plan`."""
    from submitit.slurm.slurm import _make_sbatch_string

    command = f"exec {shlex.quote(sys.executable)} -u -m submitit.core._submit {shlex.quote(str(run.submitit))}"
    return str(_make_sbatch_string(command, run.submitit, **sbatch_parameters(config, run)))


def _refusal(error: Exception) -> str:
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


def job_id(run: RunDir) -> str | None:
    """The id of the job that was submitted for this run; None if it was not, or not by submitit."""
    try:
        return (run.submitit / "job_id").read_text().strip()
    except OSError:
        return None


def still_there(config: Config, run: RunDir) -> Callable[[], bool]:
    """A function that says whether somebody is still going to write this run's journal.

    For a local run it looks at the process. For a job it asks Slurm, at most every 15 seconds, and only because a job
    can be cancelled before its controller has written a word.
    """
    asked, answer = time.monotonic(), True

    def ask() -> bool:
        nonlocal asked, answer
        job = job_id(run)
        if job is None:
            return True
        if config.cluster.kind == "local":
            return _process_lives(int(job))
        if time.monotonic() - asked >= 15.0:
            asked = time.monotonic()
            answer = job_state(job) in LIVE_STATES
        return answer

    return ask


def job_state(job: str) -> str:
    """Slurm's word for the job's state; "" if Slurm does not know it, "UNKNOWN" if it does not answer."""
    return _ask_squeue(job, "%T")


def abandoned(config: Config, run: RunDir) -> str | None:
    """Why nobody will write the end of this run's journal; None if somebody will, as far as can be told."""
    job = job_id(run)
    if job is None:
        return None  # cluster.controller=here: the allocation it ran in is not ours to know
    if config.cluster.kind == "local":
        return None if _process_lives(int(job)) else "its controller is gone; its workers have ended with it"
    state = job_state(job)
    return None if state in LIVE_STATES else f"its controller is gone: Slurm job {job} is {state or 'unknown to Slurm'}"


def in_queue(run: RunDir) -> str | None:
    """A line about a Slurm job whose controller has not begun: what it waits for, or how it ended; None: no job."""
    job = job_id(run)
    if job is None:
        return None
    state, _, reason = _ask_squeue(job, "%T %r").partition(" ")
    if state == "PENDING":
        return f"Slurm job {job} is waiting in the queue ({reason})"
    known = state not in ("", "UNKNOWN")
    return f"Slurm job {job} is {state}" if known else f"Slurm does not know job {job} (any more)"


def _ask_squeue(job: str, what: str) -> str:
    command = ["squeue", "--noheader", "--states=all", f"--jobs={job}", f"--format={what}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "UNKNOWN"
    if done.returncode != 0:
        return "" if "Invalid job id" in done.stderr else "UNKNOWN"
    return done.stdout.strip()


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


def main(run_dir: str) -> None:
    """What submitit runs: the controller, to its end. If the run does not succeed, neither does the Slurm job."""
    run = RunDir(Path(run_dir))
    code = control(compose.load(run.config), run)
    if code:
        sys.exit(code)


def control(config: Config, run: RunDir, tell: Callable[[Event], None] = lambda _: None) -> int:
    """Run the controller in this process.

    Args:
        tell: called with every event once it is in the journal.

    Returns:
        The exit code of the run: 0 it succeeded, 1 it did not.
    """
    from ftslurm.controller import Controller

    handler = logging.FileHandler(run.controller_log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("ftslurm")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        allocation = local.allocation(config) if config.cluster.kind == "local" else srun.allocation(os.environ)
        outcome = Controller(config, run, allocation, tell).run()
    except Exception:
        logger.exception("the controller failed; this is a bug in ftslurm")
        raise
    return 0 if outcome == "succeeded" else 1


def end_before_start(run: RunDir, reason: str) -> None:
    """Close the journal of a run whose job was cancelled in the queue, so that nobody goes on waiting for it."""
    with Journal(run.events) as journal:
        journal.append("run_finished", outcome="stopped", reason=reason, steps=0, restarts=0)
