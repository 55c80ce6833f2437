"""The types of the fields of a message: what each may hold, checked where a message is decoded.

A type is an annotation with a `Check`, which turns a value of JSON into the field's value or raises ValueError. Whoever
has written the message may be broken or hostile, so texts are short and printable, and numbers have bounds.
"""

# The annotations of messages are values at run time: no `from __future__ import annotations` here and in messages.py.

import re
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from ftslurm.protocol.stages import Stage
from ftslurm.security.json_text import MOST, brief, is_finite, is_whole
from ftslurm.security.names import is_node, is_step

MOST_TEXT = 2000  # characters of a text that are kept: twice the longest line that a worker sends
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_KEY, _DIGEST = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{16}")


class Check(NamedTuple):
    """How a field is decoded."""

    meaning: str  # what the field may hold, for the page of docs/channel.py
    read: Callable[[object], Any]


class Lenient(NamedTuple):
    """A check that never spoils the message: any other value, or none, means `fallback`."""

    meaning: str
    read: Callable[[object], Any]
    fallback: object


def _fit(meaning: str, fits: Callable[[Any], object], read: Callable[[Any], Any] = lambda value: value) -> Check:
    """Return a check of values that fit."""

    def checked(value: object) -> Any:
        if not fits(value):
            raise ValueError(f"not {meaning}: {brief(value)}")
        return read(value)

    return Check(meaning, checked)


def _whole(least: int = 0, most: int = MOST - 1) -> Check:
    meaning = f"a whole number from {least}" + (f" to {most}" if most < MOST - 1 else "")
    return _fit(meaning, lambda value: is_whole(value) and least <= value <= most)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _cleaned(text: str, keep: str = "") -> str:
    """A text without the escape sequences of a script, which would end up on people's terminals."""
    return "".join(char for char in _ESCAPE.sub("", text[:MOST_TEXT]) if char.isprintable() or char in keep)


def _is_url(value: object) -> bool:
    try:
        parts = urlsplit(value) if isinstance(value, str) and _cleaned(value) == value else None
        return parts is not None and parts.hostname is not None and parts.port is not None
    except ValueError:
        return False


def _key(value: object) -> object:
    if not isinstance(value, str) or not _KEY.fullmatch(value):
        raise ValueError("not 64 hexadecimal digits")  # never shown: it may be the key with a small mistake
    return value


_COUNT, _PORT, _TEXT = _whole(), _whole(1, 65535), _fit("a text", _is_text, _cleaned)
_SECONDS = _fit("seconds", lambda value: is_finite(value) and 0 <= value < 1e9, float)

Count = Annotated[int, _COUNT]
QuorumId = Annotated[int, _whole(-1)]  # torchft's manager has -1 before its first quorum
Port = Annotated[int, _PORT]
ExitStatus = Annotated[int, _whole(0, 255)]
SignalNumber = Annotated[int, _whole(1, 64)]
Hexadecimal = Annotated[str, _fit("16 hexadecimal digits", lambda value: _is_text(value) and _DIGEST.fullmatch(value))]
Truth = Annotated[bool, Check("true or false", bool)]
Text = Annotated[str, _TEXT]
Multiline = Annotated[str, _fit("a text of several lines", _is_text, lambda value: _cleaned(value, keep="\n"))]
Url = Annotated[str, _fit("scheme://HOST:PORT", _is_url)]
Node = Annotated[str, _fit("the name of a node", is_node)]
StoreAddress = Annotated[
    tuple[str, int],
    _fit(
        "a list of a host and a port",
        lambda value: isinstance(value, list) and len(value) == 2,
        lambda value: (_TEXT.read(value[0]), _PORT.read(value[1])),
    ),
]

# Lenient types. The first two are for fields that only people read, or that tell no more than is known.
AnyCount = Annotated[int | None, Lenient(*_COUNT, None)]
AnyText = Annotated[str | None, Lenient(*_TEXT, None)]
AnySeconds = Annotated[float | None, Lenient(*_SECONDS, None)]
SecondsOrZero = Annotated[float, Lenient(*_SECONDS, 0.0)]
SlurmStep = Annotated[str | None, Lenient(*_fit("JOB.STEP", is_step), None)]
AnyStage = Annotated[Stage | None, Lenient("a stage of a step", lambda value: Stage(_COUNT.read(value)), None)]
ProcessState = Annotated[
    str, Lenient("the letter of a process's state in /proc", lambda value: _TEXT.read(value)[:1] or "?", "?")
]

# For what the controller sends to its own workers: not shortened or cleaned, because paths may be any text.
Plain = Annotated[str, _fit("a text", _is_text)]
Key = Annotated[str, Check("64 hexadecimal digits", _key)]
