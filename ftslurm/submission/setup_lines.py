"""The shell part of a batch script, also of a local run: the lines of cluster.setup, then Python in their place.

Each line is a command of bash by itself, or with the lines after it as far as bash needs them (if ... fi, a function, a
here-document). One that fails ends the job. Whatever ends the shell before Python runs: the last line of its output
says where and how, and `status` shows that line.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence

from ftslurm.errors import ConfigError

SHELL = "/bin/bash"
NEWLINE = "\n"  # Python 3.10 has no backslash inside an f-string
# The last command of a profile often fails ([ -n "$PS1" ] && ...), which says nothing of what was set before.
_SOURCES = re.compile(r"""\s*(?:source|\.)\s+("[^"]*"|'[^']*'|[^\s;&|<>#"'()]+)(?:\s[^;&|<>()]*)?""")


def commands(setup: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the commands that the lines make up, each with the number of its first line.

    Raises:
        ConfigError: bash does not understand a line.
    """
    end = 0
    while (first := end) < len(setup):
        ends = range(first + 1, len(setup) + 1)
        end = next((end for end in ends if not _complaint(setup[first:end], end == len(setup))), 0)
        if not end:
            why = _complaint(setup[first : first + 1], True)
            raise ConfigError(f"cluster.setup, line {first + 1}: {setup[first]}: {why}")
        yield first + 1, "\n".join(setup[first:end])


def _complaint(lines: Sequence[str], last: bool) -> str:
    """Return what bash says against these lines as a whole command; empty: nothing."""
    if not last and re.search(r"(?<!\\)(\\\\)*\\$", lines[-1]):
        return "it goes on in the next line"
    words = [SHELL, "-n", "-c", "\n".join(lines)]
    ran = subprocess.run(words, capture_output=True, text=True, errors="replace")
    return re.sub(r"^.*?line \d+: ", "bash: ", ran.stderr.partition(NEWLINE)[0])


def script(setup: Sequence[str]) -> list[str]:
    """Return the lines of the script before `exec PROGRAM || exit`."""
    lines = ["shopt -s execfail"]
    for number, command in commands(setup):
        lines += _at(f"cluster.setup, line {number}: {command.partition(NEWLINE)[0]}")
        source = _SOURCES.fullmatch(command)
        unless = f" || [ -r {source[1]} ]" if source else ""
        lines.append(f"eval {shlex.quote(command + NEWLINE)}{unless} || exit")
    python = _at("the start of Python")
    return [*lines, *(python if setup else python[:-1])]


def _at(where: str) -> list[str]:
    """Return lines that print what comes next; if the shell ends there it prints that again."""
    return [
        f"ftslurm_at={shlex.quote(where)}",
        """trap 'printf "ftslurm: exit code %s: %s\\n" "$?" "$ftslurm_at"' EXIT""",
        'printf "ftslurm: %s\\n" "$ftslurm_at"',
    ]
