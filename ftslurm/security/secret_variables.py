"""Environment variables with secrets: passed from environment to environment, never written to a file.

`job.secrets` names them. They pass only through environments: the submitter's, the job's (Slurm keeps it where only
root and its own user can read it), the controller's, the workers'. Only their names are in config.yaml. Workers are the
only Slurm steps that get them; the Lighthouse and the probes do not.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, MutableMapping, Sequence

from ftslurm.errors import EnvironmentProblem
from ftslurm.security import process_title

NAMES = "FTSLURM_SECRETS"  # the names of the variables that a worker must have
_TELLING = re.compile(
    r"(KEYS?|TOKEN|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASES?|CREDENTIALS?|BEARER)(?![A-Z])", re.IGNORECASE
)
_IN_A_URL = re.compile(r"(?<=://)[^\s/@\"']+:[^\s/@\"']*@|(?<=https://)[\w-]{16,}@")
# Beginnings of tokens of well-known services.
_TOKEN = re.compile(r"(?<![\w-])(sk-|hf_|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza|eyJ)[\w.-]{12,}")
_HARMLESS = re.compile(r"(?i)[-+.\d]{0,5}|true|false|yes|no|on|off|none|null|[~./].*|.{1,3}")
MASK = "***"
_LEAST = 6  # characters of a value that is masked wherever it stands


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable or argument is a secret, by its name or the form of its value."""
    return (_TELLING.search(name) is not None and not _HARMLESS.fullmatch(value)) or _TOKEN.fullmatch(value) is not None


def withdraw(env: MutableMapping[str, str], names: list[str], environ: MutableMapping[str, str]) -> list[str]:
    """Move secrets out of job.env into the environment and job.secrets, and hide them from ps. Return their names."""
    moved = [name for name, value in env.items() if is_secret(name, str(value)) or _IN_A_URL.search(str(value))]
    for name in moved:
        environ[name] = str(env.pop(name))
        names.append(name)
    process_title.hide(environ[name] for name in moved)
    return moved


def in_arguments(words: Sequence[str]) -> list[str]:
    """Return the arguments of a script that are secrets: --api-key 0123456789abcdef."""
    found = []
    for word, after in zip(words, [*words, ""][1:], strict=True):
        name, equals, value = word.partition("=")
        value = value if equals else after
        long = len(value) >= 12 and not value.startswith("-") and "{" not in value and any(map(str.isdigit, value))
        if name.startswith("-") and long and is_secret(name.lstrip("-"), value):
            found.append(name)
    return found


def without_passwords(text: str) -> str:
    """Return a text whose URLs have no passwords and tokens."""
    return _IN_A_URL.sub(f"{MASK}@", text)


def without_values(text: bytes, values: Iterable[str]) -> bytes:
    """Return a text without these values, also as JSON writes them."""
    for value in sorted((value for value in values if len(value) >= _LEAST), key=len, reverse=True):
        for form in (value, json.dumps(value)[1:-1]):
            text = text.replace(os.fsencode(form), MASK.encode())
    return text


def missing(names: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """Return the variables that are not set, or empty."""
    return [name for name in names if not environ.get(name)]


def check_submitter(names: Sequence[str], environ: Mapping[str, str]) -> None:
    """Refuse to submit a run whose workers would lack a secret.

    Raises:
        EnvironmentProblem: the message names the variable and what to do.
    """
    if lacks := missing(names, environ):
        raise EnvironmentProblem(
            f"job.secrets: {', '.join(lacks)} is not set in this environment, or empty: export it before you start the "
            f"run, or leave it out of job.secrets"
        )


def check_worker(environ: Mapping[str, str]) -> None:
    """Check that a worker has all secrets of the run.

    Raises:
        RuntimeError: the message names the missing ones and where they may have been lost.
    """
    if lacks := missing(filter(None, environ.get(NAMES, "").split(",")), environ):
        raise RuntimeError(
            f"job.secrets: {', '.join(lacks)} has not reached the worker: sbatch --export (cluster.sbatch), "
            f"srun --export (cluster.srun) or a prefix in job.python keeps the environment from it; let it pass there"
        )


def without(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the secrets."""
    hidden = set(names)
    return {name: value for name, value in environ.items() if name not in hidden}
