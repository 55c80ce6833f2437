"""Find what is meant by an option that does not exist, for every parser of the command line."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ftslurm.words import meant, nearest


def unclear(words: Sequence[str], names: Collection[str]) -> str | None:
    """Return the first word that is a long option, but none of the names, and that begins not exactly one of them.

    argparse takes the beginning of an option for that option. What follows it may be its value: --lr 0.1 is --lr=0.1.
    """
    for word, after in zip(words, [*words, "-"][1:], strict=True):
        if word == "--":
            return None
        name = word.partition("=")[0]
        if name.startswith("--") and name not in names and len(_begin_so(name, names)) != 1:
            return word if "=" in word + after or after.startswith("-") else f"{word}={after}"
    return None


def likely(name: str, names: Collection[str]) -> str:
    """Ask whether other options are meant, those that begin so or else the nearest: " (did you mean --json?)" or ""."""
    bare = {one.lstrip("-"): one for one in names if one.startswith("--")}
    near = nearest(name.lstrip("-"), bare)
    found = _begin_so(name, names) or ([bare[near]] if near else [])
    return f" ({meant(*found)})" if found else ""


def _begin_so(name: str, names: Collection[str]) -> list[str]:
    return [one for one in names if one.startswith(name)]
