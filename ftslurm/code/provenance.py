"""What a run was made of, for whoever wants to repeat it: RUN/provenance.json, RUN/git.diff, RUN/pip-freeze.txt.

All is written at submission, except what only a node knows (the journal's run_started has the versions there). Secrets
that are known by name or value are masked. What cannot be found out is left out; nothing here makes a run fail.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ftslurm.code import git_tree
from ftslurm.code.git_tree import GitError
from ftslurm.code.selection import Rules
from ftslurm.config.schema import Config, interpreter, user_name
from ftslurm.run.metadata import nvidia_driver, torch_cuda
from ftslurm.security import owned_files
from ftslurm.security.secret_variables import masked, masked_patch, without_passwords, without_values
from ftslurm.slurm import client, commands
from ftslurm.words import plural

NAME, DIFF, PACKAGES = "provenance.json", "git.diff", "pip-freeze.txt"
MOST_DIFF_MB = 20
MOST_CHANGED = 1_000  # changed files that are named
_ANSWER_S = 15.0


def write(config: Config, run: Path, git: Mapping[str, Any] | None, diff: bytes | None) -> None:
    """Write what the run is made of into its directory. Never raises.

    Args:
        git: what git says of the code; None: it is in no git tree.
        diff: what is not committed of it.
    """
    values = [os.environ[name] for name in config.job.secrets if os.environ.get(name)]
    packages = _packages(config)
    found: dict[str, Any] = {
        "submitted": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "user": user_name(),
        "host": platform.node(),
        "directory": os.getcwd(),
        "command": [masked(word) for word in sys.argv],
        "python": {"version": platform.python_version(), "command": interpreter(config.job, sys.executable)},
        "git": git,
        "slurm": _slurm() if config.cluster.kind != "local" else None,
        "nvidia_driver": nvidia_driver(),
        "torch_cuda": torch_cuda(),
        "packages": None if packages is None else PACKAGES,
    }
    files = {NAME: json.dumps(found, indent=1, ensure_ascii=False) + "\n"}
    if packages is not None:
        files[PACKAGES] = "".join(f"{without_passwords(line)}\n" for line in packages)
    data = {name: text.encode(errors="surrogateescape") for name, text in files.items()}
    for name, content in (data | ({DIFF: diff} if diff else {})).items():
        with contextlib.suppress(OSError):
            owned_files.write_file(run / name, without_values(content, values), durable=False)


def of_tree(root: str, rules: Rules) -> tuple[dict[str, Any], bytes | None]:
    """Return what git says of a tree, and what is not committed of it, as a patch for `git apply`.

    Files that are no text, or that the rules keep out of the copy, as those of secrets, are named and left out. What
    looks like a secret in the others is masked.
    """
    state = describe(root)
    if not state.get("commit") or not state.get("changed"):
        return state, None
    words = ["diff", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--submodule=short"]
    try:
        changes = [line.split("\t", 2) for line in _lines(root, *words, "--numstat", "-z", "HEAD", sign="\0")]
        left_out = [path for added, _, path in changes if added == "-" or rules.excluded(path)]
        diff = git_tree.ask(root, *words, "HEAD", "--", ":/", *(f":(exclude,top,literal){path}" for path in left_out))
    except GitError as error:
        return state | {"diff": f"not kept: {error}"}, None
    if len(diff) > MOST_DIFF_MB << 20:
        return state | {"diff": f"not kept: it has more than {MOST_DIFF_MB} MB"}, None
    kept = masked_patch(diff)
    return state | {"diff": DIFF if diff else None, "left_out": left_out, "masked": kept != diff}, kept


def describe(root: str) -> dict[str, Any]:
    """Return the commit, branch, remote and changed files of a tree."""
    changed = _lines(root, "status", "--porcelain", "-z", "--no-renames", "--ignore-submodules=none", sign="\0")
    return {
        "root": root,
        "commit": _line(root, "rev-parse", "--verify", "-q", "HEAD"),
        "branch": _line(root, "symbolic-ref", "--short", "-q", "HEAD"),
        "remote": without_passwords(_line(root, "config", "--get", "remote.origin.url") or "") or None,
        "changed": [line[3:] for line in changed[:MOST_CHANGED]],
        "changed_count": len(changed),
    }


def sentence(state: Mapping[str, Any]) -> str:
    """Return commit and changes for a person: "commit 1a2b3c4, 2 files changed"."""
    commit, count = str(state["commit"] or ""), int(state["changed_count"])
    said = f"commit {commit[:9]}" if commit else "no commit yet"
    return f"{said}, {plural(count, 'file') if count else 'nothing'} changed"


def inherited(parent: Path) -> tuple[dict[str, Any] | None, bytes | None]:
    """Return what an earlier run knows of its code."""
    git: dict[str, Any] | None = None
    diff: bytes | None = None
    with contextlib.suppress(OSError, ValueError, AttributeError):
        git = json.loads(owned_files.read_text(parent / NAME, own=True)).get("git")
    with contextlib.suppress(OSError), owned_files.open_own(parent / DIFF) as file:
        diff = file.read()
    return git if isinstance(git, dict) else None, diff


def _line(root: str, *words: str) -> str | None:
    return next(iter(_lines(root, *words)), None)


def _lines(root: str, *words: str, sign: str = "\n") -> list[str]:
    try:
        said = os.fsdecode(git_tree.ask(root, *words))
    except GitError:
        return []
    return [line for line in said.split(sign) if line]


# --- packages and versions --------------------------------------------------------------------------------------------


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
            lines.setdefault(name.lower().replace("_", "-"), _requirement(name, version or "?", direct))
    return [lines[key] for key in sorted(lines)]


def _requirement(name: str, version: str, direct: str | None) -> str:
    try:
        origin = json.loads(direct or "{}")
        url = origin.get("url")
        commit = origin.get("vcs_info", {}).get("commit_id")
        editable = origin.get("dir_info", {}).get("editable")
    except (ValueError, AttributeError):
        url = commit = editable = None
    if not isinstance(url, str):
        return f"{name}=={version}"
    if editable:
        return f"-e {url.removeprefix('file://')}  # {name}=={version}"
    return f"{name} @ " + (f"git+{url}@{commit}" if commit else url)


def _slurm() -> str | None:
    answer = client.call(commands.VERSION, _ANSWER_S)
    return (answer.out.strip()[:200] or None) if answer.ok else None
