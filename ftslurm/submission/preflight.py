"""Checks at submit what would otherwise fail after minutes in the queue: the script's syntax, what will be saved."""

from __future__ import annotations

import re
import sys
import traceback
import warnings
from contextlib import suppress
from pathlib import Path

from ftslurm.code import module_file
from ftslurm.config.schema import Config, interpreter, slurm_knows_gpus
from ftslurm.errors import ConfigError
from ftslurm.slurm.commands import GPU_VARIABLES
from ftslurm.worker.script import OURS

_REQUEUE = re.compile(r"""^[^#]*\bscontrol["',\s]+requeue\b""")
_GPUS = (
    "groups.gpus=N gives each group N GPUs on a node; with cluster=local, export the variable before you start ftslurm "
    "to choose which GPUs it uses"
)
_FOLLOWS = (
    "leave it out, or set what it follows from: groups.count, groups.nodes, groups.workers (ranks and sizes), "
    "checkpoint.dir, .every and .keep, torchft.process_group, torchft.transport, or lighthouse=none"
)
IF_ALL_FAIL = (  # what a run that saves nothing loses, and the settings that help
    "when all groups fail at once, all their work is lost. Set checkpoint.every=N if the script uses "
    "ftslurm.checkpoint, or restart.on_state_loss=checkpoint if it resumes by itself"
)


def check_script(config: Config) -> None:
    """Refuse a script that cannot run: one with a syntax error, or a module that is not there.

    It is judged if the interpreter that will run it is this one. Nothing of it is executed.

    Raises:
        ConfigError: the message has the file, the line and the place in it.
    """
    job = config.job
    if config.cluster.container_image is not None or interpreter(job, sys.executable) != [sys.executable]:
        return
    if job.module is not None and (config.cluster.setup or "PYTHONPATH" in job.env):
        return  # it may be found only there
    path = job.script or module_file.find(config)
    if path is None:
        raise ConfigError(f"job.module={job.module}: no module named {job.module!r}, seen from {Path.cwd()}")
    if said := _complaint(path):
        raise ConfigError(f"{'job.script' if job.script else f'job.module={job.module}'}: {said}")


def check_variables(config: Config) -> None:
    """Refuse variables of job.env that ftslurm or Slurm sets later. Call it when groups.gpus is set.

    Raises:
        ConfigError: the message has the setting to use instead.
    """
    bound = GPU_VARIABLES if config.local or (config.groups.gpus and slurm_knows_gpus(config)) else ()
    for name in config.job.env:
        if name in bound or (OURS.fullmatch(name) and not (config.independent and name.startswith("TORCHFT_"))):
            raise ConfigError(
                f"job.env.{name}: ftslurm or Slurm sets this variable in every worker, and your value would be lost; "
                f"{_GPUS if name in bound else _FOLLOWS}"
            )


def own_requeue(config: Config) -> list[str]:
    """Note in the configuration where the script requeues its job, as its user's scripts did before. Return a warning.

    Only the script itself is read.
    """
    config.internal.requeues = None
    path = config.job.script
    if config.local or path is None:
        return []
    with suppress(OSError):
        for number, line in enumerate(Path(path).read_text(errors="replace").splitlines(), 1):
            if _REQUEUE.search(line):
                config.internal.requeues = f"{path}:{number}"
                return [
                    f"{path}:{number} requeues the job, which ends all groups: {line.strip():.120}. Remove it: ftslurm "
                    f"saves and requeues the job before its time limit, and restarts a group that has failed"
                ]
    return []


def notes(config: Config) -> list[str]:
    """Return what the user should know about the run's checkpoints before it starts."""
    if not saves_nothing(config):
        return []
    return [f"no checkpoint is saved unless you ask for one (ftslurm save): {IF_ALL_FAIL}"]


def saves_nothing(config: Config) -> bool:
    """Return whether no checkpoint will be written, as far as the configuration tells."""
    kept = config.checkpoint.every > 0 or config.restart.on_state_loss == "checkpoint"
    return not kept and not config.independent  # without a Lighthouse there is no state in common


def _complaint(path: str) -> str:
    """Return what is wrong with the script, or with the file of the module; "": nothing is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    except SyntaxError as error:
        if not path.endswith(".py"):
            return f"{path} is no Python: name the Python script that it starts; what comes before is cluster.setup"
        shown = "".join(traceback.format_exception_only(SyntaxError, error))
        return "\n".join([f"{path}: line {error.lineno}: {error.msg}", *shown.rstrip().splitlines()[1:-1]])
    except ValueError as error:  # null bytes
        return f"{path}: {error}"
    except (OSError, RecursionError, MemoryError):
        pass
    return ""
