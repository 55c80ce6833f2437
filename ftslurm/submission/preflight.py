"""Checks at submit what would otherwise fail after minutes in the queue: the script's syntax, what will be saved."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from ftslurm.config import torchtitan_preset
from ftslurm.config.schema import Config, JobConfig, interpreter
from ftslurm.errors import ConfigError
from ftslurm.security import programs
from ftslurm.submission import script_check

_ANSWER_S = 15.0  # how long another interpreter may take: its file system may be slow, and it decides nothing
_CONTAINERS = ("apptainer", "singularity")  # prefixes of job.python that can be run here without doing anything else
_ASK = "\nprint('ftslurm:' + complaint(*sys.argv[1:]))\n"


def check_script(config: Config) -> None:
    """Refuse a script that cannot run: one with a syntax error, or a module that is not there.

    It is judged by the interpreter that will run it. What cannot be judged here passes.

    Raises:
        ConfigError: the message has the file, the line and the place in it.
    """
    job = config.job
    if config.cluster.container_image is not None:
        return  # the interpreter that will run it is in the image
    if job.module is not None and (config.cluster.setup or "PYTHONPATH" in job.env):
        return  # it may be found only there
    said = _complaint(job, bool(config.cluster.setup))
    if said:
        raise ConfigError(f"{'job.script' if job.script else f'job.module={job.module}'}: {said}")
    if job.module == torchtitan_preset.MODULE:
        said = _complaint(replace(job, module=torchtitan_preset.TRAINER), bool(config.cluster.setup))
        if said:
            raise ConfigError(f"job=torchtitan cannot run here: {said}: {torchtitan_preset.INSTALL}")


def notes(config: Config) -> list[str]:
    """Return what the user should know about the run's checkpoints before it starts."""
    found = []
    if saves_nothing(config):
        found.append(f"no checkpoint is saved unless you ask for one (ftslurm save): {if_all_fail(config)}")
    folder = config.checkpoint.dir
    if folder and Path(folder).is_dir() and not os.access(folder, os.W_OK | os.X_OK):
        found.append(
            f"you cannot write checkpoint.dir={folder} on this machine; each node checks it when the run starts"
        )
    return found


def if_all_fail(config: Config) -> str:
    """Return what a run that saves nothing loses, and the settings that help."""
    if config.groups.count == 1:
        loss = "when its only group fails, all its work is lost"
    else:
        loss = "when all groups fail at once, all their work is lost"
    return (
        f"{loss}. Set checkpoint.every=N if the script uses ftslurm.checkpoint, or "
        "restart.on_state_loss=checkpoint if it resumes by itself"
    )


def saves_nothing(config: Config) -> bool:
    """Return whether no checkpoint will be written, as far as the configuration tells."""
    kept = config.checkpoint.every > 0 or config.restart.on_state_loss == "checkpoint"
    return not kept and config.lighthouse.kind != "none"  # without a Lighthouse there is no state in common


def _complaint(job: JobConfig, has_setup: bool) -> str:
    script, module, folder = job.script or "", job.module or "", str(Path.cwd())
    *prefix, python = interpreter(job, sys.executable)
    if not prefix and python == sys.executable:
        return script_check.complaint(script, module, folder)
    named = prefix[0] if prefix else python
    in_container = os.path.basename(named) in _CONTAINERS  # noqa: PTH119
    if (prefix and not in_container) or (in_container and module) or (has_setup and not os.path.isabs(named)):  # noqa: PTH117
        return ""  # it cannot be run here, or is another one than on the nodes
    ask = Path(script_check.__file__).read_text(encoding="utf-8") + _ASK
    try:
        done = subprocess.run(
            programs.code(ask, script, module, folder, python=[*prefix, python, "-B"]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return ""
    answer = done.stdout.decode(errors="replace")
    return answer.removeprefix("ftslurm:").strip() if done.returncode == 0 and answer.startswith("ftslurm:") else ""
