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
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from ftslurm.config import compose
from ftslurm.config.schema import Config, nodes_needed
from ftslurm.errors import EnvironmentProblem
from ftslurm.launchers import local
from ftslurm.run.directory import RunDir, replace_text
from ftslurm.security import owned_files
from ftslurm.submission.capabilities import cpus_per_node, gpus_per_node, last_line

CONTROLLER, SUCCESSOR, PILOT = "controller", "successor", "pilot"  # what a job may run (ftslurm.submission.entry)
PILOT_AGAIN = "pilot-again"  # a pilot that is no batch process, because the job has lost that
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
