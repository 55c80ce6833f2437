"""What a run knows of its code: RUN/code.json, written once at submission and read by every worker.

Standard library and ftslurm/security alone: every worker reads it before it imports torch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ftslurm.security import owned_files

COPY, NONE = "copy", "none"
NAME, FOLDER = "code.json", "code"


@dataclass(frozen=True)
class CodeRecord:
    """How the code of a run is kept.

    kind: copy (RUN/code) or none. root: the real path of the folder that was copied. script: its path in the copy; None
    for job.module. why: why it is not copied.
    """

    kind: str
    root: str = ""
    script: str | None = None
    why: str = ""


def write(run: str | Path, record: CodeRecord) -> None:
    """Write the record into a run directory.

    Raises:
        OSError: it cannot be written, or exists.
    """
    text = json.dumps(asdict(record), indent=1)
    owned_files.write_file(Path(run) / NAME, text.encode(errors="surrogateescape"), durable=False)


def read(run: str | Path, own: bool = True) -> CodeRecord:
    """Return the record of a run; if there is none, its code is as it lies there.

    Raises:
        OSError: it cannot be read, another user can have written it, or it is damaged.
    """
    path = Path(run) / NAME
    try:
        record = CodeRecord(**json.loads(owned_files.read_text(path, own=own)))
        if not all(isinstance(text, str) for text in (record.root, record.script or "")):
            raise ValueError("not the record of a run's code")
        if record.kind not in (COPY, NONE):
            raise ValueError(f"unknown kind {record.kind!r}")
    except FileNotFoundError:
        return CodeRecord(NONE)
    except (ValueError, TypeError, RecursionError) as error:
        raise OSError(f"{path} is damaged ({error}): the run does not know its code") from error
    return record
