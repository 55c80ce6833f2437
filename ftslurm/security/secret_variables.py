"""Environment variables with secrets: passed from environment to environment, never written to a file.

`job.secrets` names them. They pass only through environments: the submitter's, the job's (Slurm keeps it where only
root and its own user can read it), the controller's, the workers'. Only their names are in config.yaml. Workers are the
only Slurm steps that get them; the Lighthouse and the probes do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from ftslurm.errors import EnvironmentProblem

NAMES = "FTSLURM_SECRETS"  # the names of the variables that a worker must have
_TELLING = re.compile(r"(KEYS?|TOKEN|SECRETS?|PASSWORDS?|PASSWD|CREDENTIALS?)(?![A-Z])", re.IGNORECASE)
_IN_A_MAPPING = re.compile(r"[{,]\s*['\"]?(\w+)['\"]?\s*:")


def exposed(words: Iterable[str]) -> list[str]:
    """Return the variables that a command line sets with job.env and that are secrets by their names."""
    found: dict[str, None] = {}
    for word in words:
        key, _, value = word.lstrip("+").partition("=")
        names = _IN_A_MAPPING.findall(value) if key == "job.env" else [key.removeprefix("job.env.")]
        if key == "job.env" or key.startswith("job.env."):
            found |= dict.fromkeys(name for name in names if _TELLING.search(name))
    return list(found)


def is_telling(name: str) -> bool:
    """Return whether a variable is a secret by its name."""
    return _TELLING.search(name) is not None


def warning(names: Sequence[str]) -> str:
    """Return the warning about exposed variables, without their values."""
    what = ", ".join(f"job.env.{name}" for name in names)
    return (
        f"warning: {what} on a command line can be read by other users (ps, scontrol show job) and is written to the "
        f"run's config.yaml; export it instead, and pass it on with job.secrets=[{','.join(names)}]"
    )


def missing(names: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """Return the variables that are not set, or empty."""
    return [name for name in names if not environ.get(name)]


def check_submitter(names: Sequence[str], environ: Mapping[str, str], export: str | None) -> None:
    """Refuse to submit a run whose workers would lack a secret.

    Args:
        export: sbatch's option --export, which limits the environment it passes on; None: all.

    Raises:
        EnvironmentProblem: the message names the variable and what to do.
    """
    if lacks := missing(names, environ):
        raise EnvironmentProblem(
            f"job.secrets: {', '.join(lacks)} is not set in this environment, or empty: export it before you start the "
            f"run, or leave it out of job.secrets"
        )
    parts = [part.strip() for part in (export or "ALL").split(",")]
    if "ALL" not in parts and (lost := [name for name in names if name not in parts]):
        raise EnvironmentProblem(
            f"job.secrets: {', '.join(lost)} would not reach the job, sbatch is told --export={export}: add the name "
            f"there (cluster.sbatch.export, or SBATCH_EXPORT in this environment), or leave --export out"
        )


def check_worker(environ: Mapping[str, str]) -> None:
    """Check that a worker has all secrets of the run.

    Raises:
        RuntimeError: the message names the missing ones and where they may have been lost.
    """
    if lacks := missing(filter(None, environ.get(NAMES, "").split(",")), environ):
        raise RuntimeError(
            f"job.secrets: {', '.join(lacks)} has not reached the worker: sbatch --export (SBATCH_EXPORT), "
            f"srun --export (cluster.srun) or a prefix in job.python keeps the environment from it; let it pass there"
        )


def without(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the secrets."""
    hidden = set(names)
    return {name: value for name, value in environ.items() if name not in hidden}
