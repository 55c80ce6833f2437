"""Names the runs of a sweep after their overrides: `-m job=ddp job.args.lr=0.1,0.2` makes ddp-lr_0.1 and ddp-lr_0.2."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
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
    varied = [word.lstrip("+") for word in given if key(word) not in (*fixed, *_IN_THE_NAME)]
    lasts = Counter(_last(word) for word in varied)
    return "-".join([*([] if number is None else [str(number)]), *(_brief(_rounded(word), lasts) for word in varied)])


def joined(name: str, suffix: str) -> str:
    """Return a run's name with a suffix; one that is too long is cut and keeps a digest, so that names differ."""
    whole = f"{name}-{suffix}"
    if len(whole) <= LONGEST:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
    return f"{whole[: LONGEST - len(digest) - 1].rstrip('-')}-{digest}"


def _rounded(word: str) -> str:
    """Shorten 0.0123456789012345, as samplers choose it."""
    name, _, value = word.partition("=")
    return f"{name}={float(value):.4g}" if re.fullmatch(r"-?\d+\.\d{5,}(e-?\d+)?", value) else word


def _last(word: str) -> str:
    return re.split(r"[./@]", key(word))[-1]


def _brief(word: str, lasts: Counter[str]) -> str:
    """Return key and value in characters that are safe in a path; the whole key if another one ends alike."""
    shown = _last(word) if lasts[_last(word)] == 1 else key(word)
    return "_".join(re.sub(r"[^A-Za-z0-9.-]+", "_", part).strip("_.") for part in (shown, word.partition("=")[2]))
