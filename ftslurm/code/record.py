"""What a run knows of its code: RUN/code.json, written once at submission and read by every worker.

Standard library and ftslurm/security alone: every worker reads it before it imports torch.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ftslurm.security import owned_files

COPY, HASH, NONE = "copy", "hash", "none"
NAME, FOLDER, LIBRARIES = "code.json", "code", "code-libraries"
MOST_NAMED = 3  # files in a sentence


@dataclass(frozen=True)
class CodeRecord:
    """How the code of a run is kept.

    kind: copy (RUN/code), hash (the files are only compared) or none. root: the folder that was copied. spellings: how
    its path is written in PYTHONPATH and elsewhere, links among it. script: its path in the copy; None for job.module.
    others: other copied trees, and where they lie in the run directory. why: why it is not copied. hashes: SHA-256 of
    files, by absolute path.
    """

    kind: str
    root: str = ""
    spellings: tuple[str, ...] = ()
    script: str | None = None
    others: dict[str, str] = field(default_factory=dict)
    why: str = ""
    files: int = 0
    bytes: int = 0
    linked: int = 0
    hashes: dict[str, str] = field(default_factory=dict)


def write(run: str | Path, record: CodeRecord) -> None:
    """Write the record into a run directory.

    Raises:
        OSError: it cannot be written, or exists.
    """
    text = json.dumps(asdict(record), indent=1)
    owned_files.write_file(Path(run) / NAME, text.encode(errors="surrogateescape"), durable=False)


def read(run: str | Path, own: bool = True) -> CodeRecord | None:
    """Return the record of a run; None: an older ftslurm has submitted it, and its code is as it lies there.

    Raises:
        OSError: it cannot be read, another user can have written it, or it is damaged.
    """
    path = Path(run) / NAME
    try:
        text = owned_files.read_text(path, own=own)
    except FileNotFoundError:
        return None
    try:
        return _checked(json.loads(text))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise OSError(f"{path} is damaged ({error}): the run does not know its code") from error


def _checked(found: dict[str, Any]) -> CodeRecord:
    """Return the record of a JSON object; fields of a later version are ignored."""
    known = {name: found[name] for name in CodeRecord.__dataclass_fields__ if name in found}
    known["spellings"] = tuple(str(one) for one in known.get("spellings", ()))
    record = CodeRecord(**known)
    texts = (record.kind, record.root, record.script or "", *record.hashes, *record.hashes.values())
    texts += (*record.others, *record.others.values())
    if not all(isinstance(text, str) for text in texts) or record.kind not in (COPY, HASH, NONE):
        raise ValueError("not the record of a run's code")
    return record


def digest(path: str | Path) -> str:
    """Return the SHA-256 of a file's content; "missing" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return "missing"


def changed(record: CodeRecord) -> list[str]:
    """Return the files whose content is no longer that of the submission."""
    return [path for path, was in record.hashes.items() if digest(path) != was]


def complaint(paths: list[str], why: str) -> str:
    """Return what a person is told about changed files of a run that has no copy of them."""
    return f"{few(paths)} changed after the run was submitted, and no copy was kept ({why})"


def few(paths: Sequence[str]) -> str:
    """Return the names of some files for a sentence."""
    more = f" and {len(paths) - MOST_NAMED} more" if len(paths) > MOST_NAMED else ""
    return ", ".join(paths[:MOST_NAMED]) + more


def trees(run: str, record: CodeRecord) -> list[tuple[tuple[str, ...], str]]:
    """Return the copied trees: how their paths are written, and their copies."""
    if record.kind != COPY:
        return []
    others = [((root,), os.path.join(run, folder)) for root, folder in record.others.items()]
    return [(record.spellings, os.path.join(run, FOLDER)), *others]


def original(path: str, run: str, record: CodeRecord) -> str | None:
    """Return of which file a file of the run directory is the copy; None: it is none."""
    for spellings, copy in trees(run, record):
        if spellings and path.startswith(f"{copy}/"):
            return os.path.join(spellings[0], os.path.relpath(path, copy))
    return None


def counterpart(path: str, spellings: tuple[str, ...], copy: str) -> str | None:
    """Return where a path lies in the copy; None: outside, or not copied (links lead back to the original)."""
    for root in spellings:
        if path == root or path.startswith(root.rstrip("/") + "/"):
            found = os.path.normpath(os.path.join(copy, os.path.relpath(path, root)))
            real = os.path.realpath(copy)
            if os.path.exists(found) and (os.path.realpath(found) + "/").startswith(real + "/"):
                return found
    return None
