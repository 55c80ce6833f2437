"""What nvidia-smi says of the GPUs of a node, as values.

Readings that a GPU or driver does not support are None.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ftslurm.slurm import client

FIELDS = (
    *("index", "uuid", "name", "driver_version", "memory.used", "ecc.errors.uncorrected.volatile.total"),
    *("remapped_rows.pending", "remapped_rows.failure", "retired_pages.pending"),
)
GPUS = ("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
PROCESSES = ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader")
LINKS = ("nvidia-smi", "nvlink", "--status")
_LOST = re.compile(r"unknown error|lost|requires reset|err!", re.IGNORECASE)

_FLAG = re.compile(r"\b(?:(yes|true|1)|no|false|0)\b", re.IGNORECASE)  # as drivers spell them

ANSWER_S = 30.0


class NoAnswer(Exception):
    """nvidia-smi says nothing of the GPUs; the message says why."""


@dataclass(frozen=True)
class GpuReading:
    """One GPU."""

    index: int
    uuid: str
    name: str
    driver: str = ""
    used_mb: int | None = None  # memory in use
    processes: tuple[int, ...] = ()  # PIDs that compute on it
    ecc: int | None = None  # uncorrected errors since its last reset
    is_pending: bool | None = None  # rows or pages of memory will be replaced at its next reset
    rows_failed: bool | None = None  # replacing one has failed
    links: int | None = None  # active NVLinks
    problem: str = ""  # why it could not be read


def read(visible: str | None) -> list[GpuReading]:
    """Return the GPUs that this process may use.

    Args:
        visible: CUDA_VISIBLE_DEVICES; None: all.

    Raises:
        NoAnswer: nvidia-smi is missing, or fails.
    """
    answer = client.call(GPUS, ANSWER_S)
    rows = [row for line in answer.text.splitlines() if len(row := line.split(", ")) == len(FIELDS)]
    if not (answer.ok and rows):
        raise NoAnswer(" ".join(answer.text.split())[:300] or "it names no GPU")
    processes, links = (client.call(question, ANSWER_S) for question in (PROCESSES, LINKS))
    found = [_reading(row, processes.out, links.out) for row in rows]
    if visible is None or "MIG-" in visible:  # a share of a GPU has a name of its own
        return found
    wanted = visible.replace(" ", "").split(",")
    return [gpu for gpu in found if any(_is(gpu, word) for word in wanted)]


def _is(gpu: GpuReading, word: str) -> bool:
    return word == str(gpu.index) or (word.startswith("GPU-") and gpu.uuid.startswith(word))


def _reading(row: Sequence[str], processes: str, links: str) -> GpuReading:
    index, uuid, name, driver, *told = (word.strip() for word in row)
    used, ecc, pending, failed, pages = told
    pids = re.findall(rf"^{re.escape(uuid)}, (\d+)", processes, re.MULTILINE)
    return GpuReading(
        int(index),
        uuid,
        name,
        driver,
        _number(used),
        processes=tuple(map(int, pids)),
        ecc=_number(ecc),
        is_pending=_flag(f"{pending} {pages}"),
        rows_failed=_flag(failed),
        links=_active(links, uuid),
        problem=next((word.strip("[]") for word in told if _LOST.search(word)), ""),
    )


def _number(word: str) -> int | None:
    return int(word) if word.isdecimal() else None


def _flag(words: str) -> bool | None:
    """Return whether one of these words is a yes; None: each is unknown."""
    found = _FLAG.findall(words)
    return any(found) if found else None


def _active(links: str, uuid: str) -> int | None:
    """Return how many NVLinks of a GPU are active; None: it has none."""
    section = re.search(rf"\(UUID: {re.escape(uuid)}\)\n((?:\s+Link .*\n?)*)", links)
    lines = section[1].splitlines() if section is not None else []
    return sum("GB/s" in line for line in lines) if lines else None
