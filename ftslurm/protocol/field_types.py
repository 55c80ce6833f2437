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


def _whole(least: int = 0, most: int = MOST - 1) -> Check:
    def read(value: object) -> int:
        if not is_whole(value) or not least <= value <= most:
            raise ValueError(f"not a whole number from {least} to {most}: {brief(value)}")
        return value

    return Check(f"a whole number from {least}" + (f" to {most}" if most < MOST - 1 else ""), read)


def _plain(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"not a text: {brief(value)}")
    return value


def _text(value: object, keep: str = "") -> str:
    """A text without the escape sequences of a script, which would end up on people's terminals."""
    text = _ESCAPE.sub("", _plain(value)[:MOST_TEXT])
    return "".join(char for char in text if char.isprintable() or char in keep)


def _url(value: object) -> str:
    text = _text(value)
    try:
        parts = urlsplit(text)
        known = text == value and parts.hostname is not None and parts.port is not None
    except ValueError:
        known = False
    if not known:
        raise ValueError(f"not an address: {brief(value)}")
    return text


def _node(value: object) -> str:
    if not is_node(value):
        raise ValueError(f"not the name of a node: {brief(value)}")
    return str(value)


def _slurm_step(value: object) -> str:
    if not is_step(value):
        raise ValueError(f"not a Slurm step: {brief(value)}")
    return str(value)


def _seconds(value: object) -> float:
    if not is_finite(value) or not 0 <= value < 1e9:
        raise ValueError(f"not a number of seconds: {brief(value)}")
    return float(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"neither true nor false: {brief(value)}")
    return value


def _letter(value: object) -> str:
    return _plain(value)[:1] or "?"


def _key(value: object) -> str:
    if not _KEY.fullmatch(_plain(value)):
        raise ValueError("not 64 hexadecimal digits")  # never shown: it may be the key with a small mistake
    return _plain(value)


def _hexadecimal(value: object) -> str:
    if not _DIGEST.fullmatch(_plain(value)):
        raise ValueError(f"not 16 hexadecimal digits: {brief(value)}")
    return _plain(value)


def _store(value: object) -> tuple[str, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"not a host and a port: {brief(value)}")
    return _text(value[0]), _PORT.read(value[1])


_COUNT, _PORT = _whole(), _whole(1, 65535)

Count = Annotated[int, _COUNT]
QuorumId = Annotated[int, _whole(-1)]  # torchft's manager has -1 before its first quorum
Port = Annotated[int, _PORT]
ExitStatus = Annotated[int, _whole(0, 255)]
SignalNumber = Annotated[int, _whole(1, 64)]
Hexadecimal = Annotated[str, Check("16 hexadecimal digits", _hexadecimal)]
Truth = Annotated[bool, Check("true or false", bool)]
Text = Annotated[str, Check("a text", _text)]
Multiline = Annotated[str, Check("a text of several lines", lambda value: _text(value, keep="\n"))]
Url = Annotated[str, Check("scheme://HOST:PORT", _url)]
Node = Annotated[str, Check("the name of a node", _node)]
StoreAddress = Annotated[tuple[str, int], Check("a list of a host and a port", _store)]

# Lenient types. The first two are for fields that only people read, or that tell no more than is known.
AnyCount = Annotated[int | None, Lenient(_COUNT.meaning, _COUNT.read, None)]
AnyText = Annotated[str | None, Lenient("a text", _text, None)]
AnySeconds = Annotated[float | None, Lenient("seconds", _seconds, None)]
SecondsOrZero = Annotated[float, Lenient("seconds", _seconds, 0.0)]
SlurmStep = Annotated[str | None, Lenient("JOB.STEP", _slurm_step, None)]
AnyStage = Annotated[Stage | None, Lenient("a stage of a step", lambda value: Stage(_COUNT.read(value)), None)]
ProcessState = Annotated[str, Lenient("the letter of a process's state in /proc", _letter, "?")]
Presence = Annotated[bool | None, Lenient("true or false", _flag, None)]

# For what the controller sends to its own workers: not shortened or cleaned, because paths may be any text.
Plain = Annotated[str, Check("a text", _plain)]
Key = Annotated[str, Check("64 hexadecimal digits", _key)]
