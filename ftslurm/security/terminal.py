"""Makes text safe to print on a terminal: control characters are written out instead of sent.

A log, a journal or a file name may hold anything from a script, a node or another user's run directory: sequences that
retitle the window, overwrite printed text, or paste; characters that turn the direction of the text; line ends that
make one event look like two. Files on disk are not changed. Text is made safe where it is shown to a person: `readable`
for events, `visible` for text, `guarded_output` for all that the command line prints, `log_text` for logs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

# C0 and C1 without tab and newline; line separators; characters that turn the direction of text; lone surrogates,
# which cannot be printed.
_HARMFUL = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_IN_TEXT = re.compile(f"[{_HARMFUL}]")
_IN_LINE = re.compile(f"[\n{_HARMFUL}]")
_BUT_COLOURS = re.compile(rf"(?!\x1b\[[0-9;:]{{0,64}}m)[{_HARMFUL}]")
_SUSPECT = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f-\xff]")
_MANY_LINES = ("traceback", "last_traceback")  # fields of an event, or of a status, that have them


def visible(text: str, lines: bool = False) -> str:
    """Return the text with control characters written out: \\x1b, \\n, \\u202e. Tabs stay.

    Args:
        lines: whether newlines stay, too.
    """
    return (_IN_TEXT if lines else _IN_LINE).sub(_written_out, text)


def readable(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event of the journal with all control characters written out, so that one line stays one line."""
    return {visible(name): _readable(value, name in _MANY_LINES) for name, value in event.items()}


def _readable(value: Any, lines: bool) -> Any:
    if isinstance(value, str):
        return visible(value, lines)
    if isinstance(value, dict):
        return {visible(str(name)): _readable(inner, lines or name in _MANY_LINES) for name, inner in value.items()}
    if isinstance(value, list):
        return [_readable(inner, lines) for inner in value]
    return value


def _written_out(found: re.Match[str]) -> str:
    sign = found[0]
    if sign in "\n\r":
        return "\\n" if sign == "\n" else "\\r"
    return f"\\x{ord(sign):02x}" if ord(sign) < 0x100 else f"\\u{ord(sign):04x}"


def log_text(data: bytes, colours: bool = False) -> bytes:
    """Return whole lines of a log for people, made safe.

    A carriage return ends a line, so a progress bar is shown as one line for each of its states.

    Args:
        colours: pass on colour sequences (ESC [ ... m); all others are always written out.
    """
    if not _SUSPECT.search(data):
        return data
    text = re.sub("\r+\n?", "\n", data.decode(errors="backslashreplace"))
    return (_BUT_COLOURS if colours else _IN_TEXT).sub(_written_out, text).encode()


class _Guarded:
    """A stream that makes text safe before it writes it to the stream beneath."""

    def __init__(self, beneath: IO[str]) -> None:
        self.beneath = beneath

    def write(self, text: str) -> int:
        self.beneath.write(visible(text, lines=True))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


@contextmanager
def guarded_output() -> Iterator[None]:
    """Make everything safe that is printed to stdout and stderr in this context, also tracebacks that quote a file."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Guarded(before[0]), _Guarded(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def beneath(stream: Any) -> Any:
    """Return the stream itself, for callers that draw on a terminal and make their text safe themselves."""
    return stream.beneath if isinstance(stream, _Guarded) else stream
