"""Names the runs of a sweep after their overrides: `-m job=ddp job.args.lr=0.1,0.2` makes ddp-lr_0.1 and ddp-lr_0.2."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

LONGEST = 64  # of a run's name
_IN_THE_NAME = ("run.name", "job")  # the name has these already


def key(word: str) -> str:
    """Return the key of an override, without the signs before it that tell Hydra to add it."""
    return word.partition("=")[0].lstrip("+")


def suffix(given: Sequence[str], fixed: Collection[str], number: int | None = None) -> str:
    """Return a text of those overrides of a run that are not the same in all runs of the sweep.

    Args:
        fixed: the keys of those that are.
        number: of the run, if a sweeper chooses the values.
    """
    varied = [word for word in given if key(word) not in (*fixed, *_IN_THE_NAME)]
    return "-".join([*([] if number is None else [str(number)]), *map(_brief, varied)])


def joined(name: str, suffix: str) -> str:
    """Return a run's name with a suffix; one that is too long is cut."""
    whole = f"{name}-{suffix}"
    return (whole if len(whole) <= LONGEST else f"{name[:40]}-{suffix}"[:LONGEST]).rstrip("-")


def _brief(word: str) -> str:
    """Return the end of the key and the value in characters that are safe in a path."""
    parts = (re.split(r"[./@]", key(word))[-1], word.partition("=")[2])
    return "_".join(re.sub(r"[^A-Za-z0-9.-]+", "_", part).strip("_.") for part in parts)
