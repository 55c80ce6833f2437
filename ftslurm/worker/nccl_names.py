"""The names that older versions of torch have for the variables of the Flight Recorder."""

from __future__ import annotations

from collections.abc import MutableMapping

NEW = "TORCH_FR_DUMP_TEMP_FILE"
SINCE = (2, 10)  # torch versions that know the new names; with those the old ones lead to a warning
OLD = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
SIZE, EVENTS = "TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"  # what newer versions keep by default


def adapt(environ: MutableMapping[str, str], torch_version: str) -> None:
    """Set the old names, too, for a torch that knows no others. Call it before a process group is made."""
    major, minor = (int(part) for part in torch_version.split(".")[:2])
    if NEW in environ and (major, minor) < SINCE:
        environ.setdefault(OLD, environ[NEW])
        environ.setdefault(SIZE, EVENTS)
