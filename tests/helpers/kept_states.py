"""Whether a state is kept: decoded or merged from JSON, it is the same but for what is heard again."""

from __future__ import annotations

import json
from typing import Any

from immutables import Map
from made_values import changed, of

from ftslurm.core.state.kept import ANEW, changes, decode, encode, merge
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.unit_table import UnitTable
from ftslurm.protocol.value_class import Value


def forgotten(value: Any) -> Any:
    """Return the value with the defaults of all fields that are not kept."""
    return changed(
        value, {kind: {one.name: one.default for one in of(kind) if one.name in ANEW[kind]} for kind in ANEW}
    )


def through(text: Any) -> Any:
    """Return JSON as it comes back from a file."""
    return json.loads(json.dumps(text))


def check_same(here: Any, there: Any, where: str = "state") -> None:
    """Check that two values are equal, of the same types, in the same order, with the same index."""
    numbers = {bool, int, float}  # an equal default is left out
    assert type(here) is type(there) or {type(here), type(there)} <= numbers, where
    if isinstance(here, UnitTable):
        assert here.index == there.index, f"{where}: another index"
    if isinstance(here, Value):
        for one in of(type(here)):
            check_same(getattr(here, one.name), getattr(there, one.name), f"{where}.{one.name}")
    elif isinstance(here, Map):
        check_same(dict(sorted(here.items(), key=repr)), dict(sorted(there.items(), key=repr)), where)
    elif isinstance(here, dict):
        assert [*here] == [*there], where
        check_same(tuple(here.values()), tuple(there.values()), where)
    elif isinstance(here, tuple):
        assert len(here) == len(there), where
        for number, (one, other) in enumerate(zip(here, there, strict=True)):
            check_same(one, other, f"{where}[{number}]")
    else:
        assert here == there or repr(here) == repr(there), where  # nan


def check_kept(state: RunState) -> None:
    check_same(decode(through(encode(state))), forgotten(state))


def check_merged(before: RunState, after: RunState) -> None:
    """Check the changes between two states, of which the first has been kept."""
    check_same(merge(forgotten(before), through(changes(before, after))), forgotten(after))
