"""Slurm's notation for many hosts. Guards import it, so it imports nothing heavy."""

from __future__ import annotations

import re

_MOST_HOSTS = 1 << 16  # more than any cluster has
_LONGEST_NAME = 255
_HOSTS = re.compile(r"([^\[\],\s]|\[[0-9]{1,18}(-[0-9]{1,18})?(,[0-9]{1,18}(-[0-9]{1,18})?)*\])*")


def expand_hosts(text: str) -> list[str]:
    """Expand Slurm's host list: "n[01-03,7],m1" -> n01 n02 n03 n7 m1.

    Raises:
        ValueError: unbalanced brackets, an invalid range, or more names than any cluster has.
    """
    out: list[str] = []
    for part in re.split(r",(?![^\[\]]*\])", text.strip()):
        if not _HOSTS.fullmatch(part):
            raise ValueError(f"not a host list: {text!r:.80}")
        names = [""]
        for literal, ranges in re.findall(r"([^\[\]]+)|\[([^\[\]]+)\]", part):
            ends = [literal] if literal else _numbers(ranges, _MOST_HOSTS // len(names))
            names = [name + end for name in names for end in ends]
            if len(names[0]) > _LONGEST_NAME:
                raise ValueError(f"not a host list: {text!r:.80}")
        out += names if part else []
        if len(out) > _MOST_HOSTS:
            raise ValueError(f"too many hosts: {text!r:.80}")
    return out


def _numbers(ranges: str, most: int) -> list[str]:
    out = list[str]()
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        span = range(int(low), int(high or low) + 1)
        if not span:
            raise ValueError(f"not a range of hosts: {part!r}")
        if len(out) + len(span) > most:
            raise ValueError(f"too many hosts: {ranges!r:.60}")
        out += [str(n).zfill(len(low)) for n in span]
    return out
