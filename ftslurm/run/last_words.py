"""Chooses the line of a script's output that says best why it has ended.

The latest of these counts: the first line of an exception whose traceback is printed, or a line that reports an error.
A warning is never chosen: libraries print many while a process ends. Nor is any other line: it may be one of progress.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ftslurm.protocol import traces
from ftslurm.run import log_noise
from ftslurm.security import owned_files
from ftslurm.security.terminal import visible

LONGEST = 120  # characters of a line that is quoted
_TAIL = 16_384  # bytes of a log that are looked at
_STACKS = 1 << 20  # bytes that are read for it: a crash leaves the stacks of all threads
_RANK = re.compile(r"^\[rank\d+\]: ?")  # torch puts it before a traceback
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):$")
_EXCEPTION = re.compile(r"^(?:[\s|]*\|\s*)?[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Expired|Failure)(?::|$)")
_WARNING = re.compile(r"(?i)\bwarn(?:ing)?s?\b|\b\w+Warning\b|^\[W\d{4} ")
_ERROR = re.compile(
    r"(?:[Ee]rror|ERROR|Exception|Interrupt)\b(?:[:(\]]|$)|\bERROR\b|\b(?:FATAL|[Ff]atal)\b|^\[E\d{4} "
    r"|[Tt]erminate called after|^\s*what\(\):|Segmentation fault|[Oo]ut of memory|\bOOM\b|[Aa]ssertion .*failed"
    r"|panicked at|No space left on device|\b(?:free|malloc|realloc)\(\): |\bdouble free\b"
)
# What faulthandler writes when a process crashes: the error, the stacks of all threads, names of modules.
_CRASH = re.compile(
    r"^(Fatal Python error: .*)\n"
    r"((?:\n|  .*\n|(?:Current thread|Thread|<).*\n|Extension modules: .*(?:\n|\Z))+)",
    re.MULTILINE,
)
_ABORTED = "Fatal Python error: Aborted"  # what aborts a process says why just before
_NO_ERROR = re.compile(r"^\s*frame #\d+: |^Exception raised from |(?i:\b(?:no|0|without) errors?\b)")


def choose(text: str) -> str:
    """Return the line to quote from the end of a script's output; empty: there is none."""
    error = ""
    lines = _telling(_CRASH.sub(_crashed, text))
    for line in lines:
        if _TRACEBACK.search(line):
            error = _exception_below(lines) or error
        elif is_warning(line):
            continue
        elif line.startswith(_ABORTED):
            error = error or line
        elif is_error(line):
            error = line
    return shorten(error.strip())


def of_log(log: str | Path) -> str:
    """Return the line of a log to quote; empty if it has none or cannot be read."""
    return visible(choose(telling_end(log)))[:LONGEST]


def telling_end(log: str | Path) -> str:
    """Return the end of a log, in which the stacks of a crash are one line: behind them would be no room for more."""
    return _CRASH.sub(_crashed, end_of(log, _STACKS).decode(errors="replace"))[-_TAIL:]


def shorten(line: str) -> str:
    """Return a line cut to the length of a quotation."""
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def first_line(error: str) -> str:
    """Return the first line of an exception as traceback.format_exception_only prints it.

    A SyntaxError prints its source before, indented; notes and a message of many lines come after.
    """
    lines = [line for line in error.splitlines() if line.strip()]
    first = next((i for i, line in enumerate(lines) if not line[0].isspace()), 0)
    if not lines:
        return ""
    empty = lines[first].rstrip().endswith(":") and first + 1 < len(lines)  # a message that begins with a newline
    return f"{lines[first].rstrip()} {lines[first + 1].strip()}" if empty else lines[first].rstrip()


def is_error(line: str) -> bool:
    """Return whether a line of a log reports an error."""
    return not is_warning(line) and _ERROR.search(line) is not None and _NO_ERROR.search(line) is None


def is_warning(line: str) -> bool:
    return _EXCEPTION.match(line) is None and _WARNING.search(line) is not None


def _crashed(crash: re.Match[str]) -> str:
    """Return the line for a crash: the error, and the innermost call of the user's code in the thread that crashed."""
    stack = crash[2].partition("Current thread")[2].partition("\n\n")[0]
    where = next((f", in {frame}" for frame in traces.frames(stack) if frame.users), "")
    return f"{crash[1]}{where}\n"


def _telling(text: str) -> Iterator[str]:
    """Yield the lines that are neither empty nor known noise, nor the source that Python prints below a warning."""
    warned = False
    for raw in re.split(r"[\r\n]+", text):
        line = _RANK.sub("", raw.rstrip())
        skip = (warned and line.startswith("  ")) or not line or log_noise.is_noise(line.encode(errors="replace"))
        warned = is_warning(line) and not line.startswith(" ")
        if not skip:
            yield line


def _exception_below(lines: Iterator[str]) -> str:
    """Return the line that follows the frames of a traceback; of an exception group, the line inside its frame."""
    for line in lines:
        if line[0] not in " \t":
            return line
        if line.lstrip().startswith("|") and _EXCEPTION.match(line):
            return line.lstrip(" |")
    return ""


def end_of(log: str | Path, most: int) -> bytes:
    """Return the end of a file; empty if it cannot be read. A script may have put a link or a pipe in its place."""
    with suppress(OSError), owned_files.open_file(Path(log)) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most)
    return b""
