"""Arbitrary input for the property-based tests of every border (hypothesis).

The examples are always the same (derandomize), so a test that fails here fails everywhere.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

slow = HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much


def tried(examples: int) -> settings:
    """Return hypothesis settings with so many examples, the same every time."""
    return settings(
        max_examples=examples, derandomize=True, deadline=None, database=None, suppress_health_check=list(slow)
    )


NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**53 - 1, 2**53, 2**63, -(2**63), 10**30, 10**400, 99_999_999_999]),
    st.sampled_from([float("nan"), float("inf"), float("-inf"), 1e308, -0.0, 0.5, -1.5]),
    st.booleans(),
)
DEEP = '{"a":[' * 300 + "]}" * 300
TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["", "\x1b[31mred", "\udce9", "\0", "n[1-", "../..", "--me", "²", "٣", "x" * 100_000]),
    st.text(string.ascii_letters + string.digits + "-_./:[]", max_size=12),
)
SCALARS = st.one_of(st.none(), NUMBERS, TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def spoilt(known: Mapping[str, Any], others: st.SearchStrategy[Any] = VALUES) -> st.SearchStrategy[dict[str, Any]]:
    """Generate variants of a mapping: some fields have another value, or are missing."""
    changes = st.dictionaries(st.sampled_from(sorted(known) or ["x"]), others, min_size=1, max_size=3)
    gone = st.sets(st.sampled_from(sorted(known) or ["x"]), max_size=1)
    return st.builds(lambda c, g: {k: v for k, v in {**known, **c}.items() if k not in g}, changes, gone)
