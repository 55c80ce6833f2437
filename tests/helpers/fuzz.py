"""Arbitrary input for the property-based tests of every border (hypothesis).

The examples are always the same (derandomize), so a test that fails here fails everywhere.
"""

from __future__ import annotations

import os
import string
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


ALL = "FTSLURM_EXAMPLES" in os.environ  # `make nightly`; else a quarter


def tried(examples: int) -> settings:
    """Return hypothesis settings with so many examples at night, the same every time."""
    count = examples if ALL else examples // 4
    return settings(max_examples=count, derandomize=True, deadline=None, database=None, suppress_health_check=slow)


def numbers(by_day: int, at_night: int) -> list[Any]:
    """Return the numbers below `at_night` for parametrize; those from `by_day` on are for `make nightly`."""
    night = (pytest.param(number, marks=pytest.mark.nightly) for number in range(by_day, at_night))
    return [*range(by_day), *night]


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
