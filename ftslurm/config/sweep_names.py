"""Names the runs of a sweep after their overrides: `-m job=ddp job.args.lr=0.1,0.2` makes ddp-lr_0.1 and ddp-lr_0.2."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ftslurm.config.notation import Override

LONGEST = 64  # of a run's name
_IN_THE_NAME = ("run.name", "job")  # the name has these already


def suffix(varied: Iterable[Override]) -> str:
    """Return a text of those overrides of a run that are not the same in all runs of the sweep."""
    return "-".join(_brief(one) for one in varied if one.key not in _IN_THE_NAME)


def joined(name: str, suffix: str) -> str:
    """Return a run's name with a suffix; one that is too long is cut."""
    whole = f"{name}-{suffix}"
    return (whole if len(whole) <= LONGEST else f"{name[:40]}-{suffix}"[:LONGEST]).rstrip("-")


def _brief(one: Override) -> str:
    """Return the end of the key and the value in characters that are safe in a path."""
    parts = (re.split(r"[./@]", one.key)[-1], one.text)
    return "_".join(re.sub(r"[^A-Za-z0-9.-]+", "_", part).strip("_.") for part in parts)
