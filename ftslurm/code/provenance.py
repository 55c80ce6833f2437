"""What a run was made of, for whoever wants to repeat it: RUN/provenance.json, RUN/pip-freeze.txt.

All is written at submission. Secrets that are known by name or value are masked. What cannot be found out is left out;
nothing here makes a run fail.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ftslurm.code import own_copy
from ftslurm.code.git_tree import first_line
from ftslurm.config.schema import Config, interpreter, user_name
from ftslurm.security import owned_files
from ftslurm.security.secret_variables import without_passwords, without_values

NAME, PACKAGES = "provenance.json", "pip-freeze.txt"
_SEARCHED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")  # where programs, modules and libraries are looked for


def write(config: Config, run: Path, git: Mapping[str, Any] | None) -> None:
    """Write what the run is made of into its directory. Never raises.

    Args:
        git: what git says of the code; None: it is in no git tree.
    """
    values = [os.environ[name] for name in config.job.secrets if os.environ.get(name)]
    packages = _packages(config)
    found: dict[str, Any] = {
        "submitted": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "user": user_name(),
        "host": platform.node(),
        "directory": os.getcwd(),
        "environment": {name: os.environ.get(name) for name in _SEARCHED},
        "python": {"version": platform.python_version(), "command": interpreter(config.job, sys.executable)},
        "ftslurm": own_copy.this(),
        "git": git,
        "packages": None if packages is None else PACKAGES,
    }
    files = {NAME: json.dumps(found, indent=1, ensure_ascii=False) + "\n"}
    if packages is not None:
        files[PACKAGES] = "".join(f"{without_passwords(line)}\n" for line in packages)
    for name, text in files.items():
        with contextlib.suppress(OSError):
            content = without_values(text.encode(errors="surrogateescape"), values)
            owned_files.write_file(run / name, content, durable=False)


def describe(root: str) -> dict[str, Any]:
    """Return the commit, branch and remote of a tree. What differs from the commit shows in the copy of the code."""
    return {
        "root": root,
        "commit": first_line(root, "rev-parse", "--verify", "-q", "HEAD"),
        "branch": first_line(root, "symbolic-ref", "--short", "-q", "HEAD"),
        "remote": without_passwords(first_line(root, "config", "--get", "remote.origin.url") or "") or None,
    }


def sentence(state: Mapping[str, Any]) -> str:
    """Return the commit for a person: "commit 1a2b3c4"."""
    return f"commit {str(state['commit'])[:9]}" if state["commit"] else "no commit yet"


def inherited(parent: Path) -> dict[str, Any] | None:
    """Return what an earlier run knows of its code."""
    return _read(parent, "git")


def changed(parent: Path, config: Config) -> list[str]:
    """Return a note about each variable of an earlier run's shell that is another one in this shell."""
    return [
        f"{name} is not as it was for {parent.name}: the new run gets that of this shell. To keep the old one: "
        f"{shlex.quote(f'job.env.{name}={value or str()}')}"
        for name, value in (_read(parent, "environment") or {}).items()
        if name in _SEARCHED and name not in config.job.env and (value or "") != os.environ.get(name, "")
    ]


def _read(parent: Path, name: str) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found = json.loads(owned_files.read_text(parent / NAME, own=True)).get(name)
        return found if isinstance(found, dict) else None
    return None


# --- packages ---------------------------------------------------------------------------------------------------------


def _packages(config: Config) -> list[str] | None:
    """Return the packages as `pip freeze` does; None: the workers have another interpreter, or an image."""
    if config.cluster.container_image is not None or interpreter(config.job, sys.executable) != [sys.executable]:
        return None
    return freeze((d.metadata["Name"], d.version, d.read_text("direct_url.json")) for d in metadata.distributions())


def freeze(found: Iterable[tuple[str | None, str | None, str | None]]) -> list[str]:
    """Return one line for each package: name==version, or where it was installed from.

    Args:
        found: name, version and direct_url.json of each.
    """
    lines: dict[str, str] = {}
    for name, version, direct in found:
        if name:  # the first of two wins, as for an import
            origin = " ".join((direct or "").split())  # of one that is of no index, as pip noted it
            line = f"{name}=={version or '?'}" + (f"  # {origin}" if origin else "")
            lines.setdefault(name.lower().replace("_", "-"), line)
    return [lines[key] for key in sorted(lines)]
