"""The commands that README and docs show, in blocks of shell code and in backquotes, and the output beside them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PROGRAM = re.compile(r"(ftslurm|ftslurm-preflight|(\.venv/bin/)?(python|pytest)|make|sbatch|srun|pip)(?=\s)")
SHELL = re.compile(r"git|source|export|until|eval|job=\$")  # further beginnings of lines that a shell runs


@dataclass(frozen=True)
class Command:
    """One command, as it is written."""

    page: str
    text: str

    @property
    def words(self) -> list[str]:
        """The words that the shell makes of it, without the comment."""
        return shlex.split(self.text, comments=True)

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.text.split())}"


def shown() -> list[Command]:
    """Return every command once. The name of a verb alone, as in "`ftslurm plan` shows", is none."""
    found = dict[str, Command]()
    for page in PAGES:
        text = page.read_text()
        blocks = [body for language, body in BLOCK.findall(text) if language in ("", "sh", "bash")]
        lines = [line for body in blocks for line in body.replace("\\\n", " ").splitlines()]
        typed = [line for line in lines if PROGRAM.match(line) or re.match(rf"({SHELL.pattern})\b", line)]
        quoted = re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
        typed += [code for code in quoted if PROGRAM.match(code) and not re.fullmatch(r"ftslurm [a-z]+", code)]
        for one in typed:
            command = Command(page.name, one)
            found.setdefault(" ".join(one.partition("  #")[0].split()), command)
    return list(found.values())


def block_of(page: Path, first: str) -> list[str]:
    """Return the lines of the block of a page that begins with these words."""
    (block,) = (body for _, body in BLOCK.findall(page.read_text()) if re.match(first, body))
    return [line for line in block.splitlines() if line]


def shape(line: str) -> re.Pattern[str]:
    """Return the pattern of a line of output: any numbers, seconds or minutes, any space, any end of a name."""
    words = [re.escape(word).replace(r"\.\.\.", r"\S+") for word in line.split()]
    numbers = [re.sub(r"\d+(\\\.\d+)?", r"\\d+(\\.\\d+)?", word) for word in words]
    minutes = [r"(\d+\s+min\s+)?" if re.match(r"s\b", after) else "" for after in (*words[1:], "")]
    return re.compile(r"\s+".join(map("".join, zip(minutes, numbers, strict=True))))


def unlike(block: list[str], output: str) -> list[str]:
    """Return the lines of a page that are like none of the output."""
    said = output.splitlines()
    return [line for line in block if not any(shape(line).search(one) for one in said)]
