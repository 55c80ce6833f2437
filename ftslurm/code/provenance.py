"""What a run was made of, for whoever wants to repeat it: RUN/provenance.json.

It is written at submission. Secrets that are known by name or value are masked. What cannot be found out is left out;
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

NAME = "provenance.json"
_SEARCHED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")  # where programs, modules and libraries are looked for


def write(config: Config, run: Path, git: Mapping[str, Any] | None) -> None:
    """Write what the run is made of into its directory. Never raises.

    Args:
        git: what git says of the code; None: it is in no git tree.
    """
    command = interpreter(config.job, sys.executable)
    known = config.cluster.container_image is None and command == [sys.executable]
    found: dict[str, Any] = {
        "submitted": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "user": user_name(),
        "host": platform.node(),
        "directory": os.getcwd(),
        "environment": {name: os.environ.get(name) for name in _SEARCHED},
        "python": {"version": platform.python_version(), "command": command},
        "ftslurm": own_copy.this(),
        "git": git,
        "packages": packages(metadata.distributions()) if known else None,  # as the workers have them
    }
    text = without_passwords(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    values = [os.environ[name] for name in config.job.secrets if os.environ.get(name)]
    with contextlib.suppress(OSError):
        content = without_values(text.encode(errors="surrogateescape"), values)
        owned_files.write_file(run / NAME, content, durable=False)


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
    return _read(parent).get("git")


def changed(parent: Path, config: Config) -> list[str]:
    """Return a note about each variable of an earlier run's shell that is another one in this shell."""
    return [
        f"{name} is not as it was for {parent.name}: the new run gets that of this shell. To keep the old one: "
        f"{shlex.quote(f'job.env.{name}={value or str()}')}"
        for name, value in _read(parent).get("environment", {}).items()
        if name in _SEARCHED and name not in config.job.env and (value or "") != os.environ.get(name, "")
    ]


def _read(parent: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(owned_files.read_text(parent / NAME, own=True)))
    return {}


def packages(found: Iterable[metadata.Distribution]) -> list[str]:
    """Return one line for each package, as `pip freeze` does: name==version, and where it comes from if of no index."""
    lines: dict[str, str] = {}
    for one in found:
        origin = " ".join((one.read_text("direct_url.json") or "").split())
        # The first of two wins, as for an import.
        lines.setdefault(one.name, f"{one.name}=={one.version}" + (f"  # {origin}" if origin else ""))
    return sorted(lines.values(), key=str.lower)
