"""What a run knows of the copy of its code: RUN/code.json, written once at submission and read by every worker.

Standard library and ftslurm/security alone: every worker reads it before it imports torch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ftslurm.security import owned_files

NAME, FOLDER = "code.json", "code"
NEVER_COPIED = frozenset({"__pycache__", ".git"})


@dataclass(frozen=True)
class CodeRecord:
    """Where the copy in RUN/code comes from.

    root: the real path of the folder that was copied; "": nothing was. script: its path in the copy; None for
    job.module.
    """

    root: str = ""
    script: str | None = None


def write(run: str | Path, record: CodeRecord) -> None:
    """Write the record into a run directory.

    Raises:
        OSError: it cannot be written, or exists.
    """
    text = json.dumps(asdict(record), indent=1)
    owned_files.write_file(Path(run) / NAME, text.encode(errors="surrogateescape"), durable=False)


def written_since(run: Path) -> list[Path]:
    """Return the files that were written into the copy after it was made, by the script, say.

    Raises:
        OSError: the copy cannot be read.
    """
    if not (run / NAME).exists():
        return []
    made = (run / NAME).lstat().st_mtime
    below = (path for path in (run / FOLDER).rglob("*") if NEVER_COPIED.isdisjoint(path.relative_to(run).parts))
    return sorted(path for path in below if not path.is_dir() and path.lstat().st_mtime > made)


def read(run: str | Path) -> CodeRecord:
    """Return the record of a run; if there is none, its code is as it lies there.

    Raises:
        OSError: it cannot be read, another user can have written it, or it is damaged.
    """
    path = Path(run) / NAME
    try:
        return CodeRecord(**json.loads(owned_files.read_text(path, own=True)))
    except FileNotFoundError:
        return CodeRecord()
    except (ValueError, TypeError, RecursionError) as error:
        raise OSError(f"{path} is damaged ({error}): the run does not know its code") from error
