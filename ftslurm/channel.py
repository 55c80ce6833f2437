"""The messages between the controller and its workers: one JSON object per line (design contract 8).

They travel over the step's stdin and stdout, which Slurm authenticates and carries. Shared by both ends, so only the
standard library's lightest modules are imported here.
"""

from __future__ import annotations

import json
from typing import Any

Message = dict[str, Any]

# srun passes a task's output on in pieces of 1,024 bytes: longer lines of several tasks get mixed (measured on Slurm
# 22.05: no damaged line in 24,000 of up to 980 bytes from 8 tasks at once, a third of them damaged at 1,100).
LONGEST = 1000
_SHORTENED = ("traceback_tail", "error")


def encode(kind: str, **fields: object) -> bytes:
    """One message to a worker as a line; to a worker a line may be of any length."""
    return json.dumps({"type": kind, **fields}, separators=(",", ":")).encode() + b"\n"


def encode_short(kind: str, **fields: object) -> bytes:
    """One message from a worker as a line of at most LONGEST bytes; long texts lose their beginning."""
    fields = {name: str(text)[-LONGEST:] if name in _SHORTENED and text else text for name, text in fields.items()}
    line = encode(kind, **fields)
    for name in _SHORTENED:
        while len(line) > LONGEST and (text := str(fields.get(name) or "")):
            fields[name] = text[max(1, (len(line) - LONGEST) // 12) :]  # JSON takes up to twelve bytes a character
            line = encode(kind, **fields)
    return line


def decode(line: bytes) -> Message | None:
    """A line as a message; None if it is none (a library that printed before its output was redirected, say)."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and isinstance(message.get("type"), str) else None


class Lines:
    """Bytes as they come in, complete lines out."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their newline."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines
