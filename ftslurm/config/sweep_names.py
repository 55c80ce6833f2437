"""Names the runs of a sweep after their overrides: `-m job=ddp job.args.lr=0.1,0.2` makes ddp-lr_0.1 and ddp-lr_0.2."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence

LONGEST = 64  # of a run's name
_IN_THE_NAME = ("run.name", "job")  # the name has these already


def suffixes(combinations: Sequence[Sequence[str]]) -> list[str]:
    """Return for each combination a text of those of its overrides that are not in all others, "" for a single one."""
    words = [[word.lstrip("+") for word in given if not word.startswith("~")] for given in combinations]
    counts = Counter(word for given in words for word in set(given))
    varied = [
        [word for word in given if counts[word] < len(words) and _key(word) not in _IN_THE_NAME] for given in words
    ]
    lasts = Counter(_last(key) for key in {_key(word) for given in varied for word in given})
    return ["-".join(_brief(word, lasts) for word in given) for given in varied]


def of_trial(number: int, given: Sequence[str], fixed: Sequence[str]) -> str:
    """Return the number of a sweeper's trial, with those of its overrides that are not the same in all trials."""
    same = {word.lstrip("+") for word in fixed}
    words = [word.lstrip("+") for word in given if not word.startswith("~")]
    varied = [word for word in words if word not in same and _key(word) not in _IN_THE_NAME]
    lasts = Counter(_last(_key(word)) for word in varied)
    return "-".join([str(number), *(_brief(_rounded(word), lasts) for word in varied)])


def joined(name: str, suffix: str) -> str:
    """Return a run's name with a suffix; one that is too long is cut and keeps a digest, so that names differ."""
    whole = f"{name}-{suffix}"
    if len(whole) <= LONGEST:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
    return f"{whole[: LONGEST - len(digest) - 1].rstrip('-')}-{digest}"


def _rounded(word: str) -> str:
    """Shorten 0.0123456789012345, as samplers choose it."""
    key, _, value = word.partition("=")
    return f"{key}={float(value):.4g}" if re.fullmatch(r"-?\d+\.\d{5,}(e-?\d+)?", value) else word


def _key(word: str) -> str:
    return word.partition("=")[0]


def _last(key: str) -> str:
    return re.split(r"[./@]", key)[-1]


def _brief(word: str, lasts: Counter[str]) -> str:
    """Return key and value in characters that are safe in a path; the whole key if another one ends alike."""
    key, _, value = word.partition("=")
    shown = _last(key) if lasts[_last(key)] == 1 else key
    return "_".join(re.sub(r"[^A-Za-z0-9.-]+", "_", part).strip("_.") for part in (shown, value))
