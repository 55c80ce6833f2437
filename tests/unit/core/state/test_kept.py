"""The state of a run survives JSON, whole and as changes: whatever its fields are, and whatever happens in a run."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING
from typing import Any

import pytest
from fuzz import VALUES, tried
from histories import config
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map
from kept_states import check_kept, check_merged, check_same, forgotten, through
from made_values import SEEDS, Field, changed, fields_below, made, of, others, table

from ftslurm.core.rules import begin
from ftslurm.core.state import kept
from ftslurm.core.state.actions import DistrustCheckpoints, NoteBroken
from ftslurm.core.state.kept import ANEW, Unreadable, changes, decode, encode, merge
from ftslurm.core.state.model import Job, Node, Phase, replace
from ftslurm.core.state.run_state import RunState
from ftslurm.protocol.causes import Says
from ftslurm.protocol.messages import Order
from ftslurm.protocol.value_class import Value

FIELDS = fields_below(RunState)
# What the names and numbers of units are follows from their table.
OF_THE_TABLE = {"UnitTable.by_name", "UnitTable.groups", "UnitTable.standbys", "Unit.name", "Unit.group"}
FULL = [made(RunState, seed) for seed in SEEDS]


# --- every field ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", FULL)
def test_a_state_without_defaults_is_kept(state: RunState) -> None:
    check_kept(state)


@pytest.mark.parametrize("state", FULL[1:])
def test_one_state_is_made_of_another_by_its_changes(state: RunState) -> None:
    check_merged(FULL[0], state)
    check_merged(state, begin(config()))
    check_merged(begin(config()), state)


@pytest.mark.parametrize("field", [one for one in FIELDS if str(one) not in OF_THE_TABLE], ids=str)
def test_a_change_of_any_field_is_kept_unless_it_is_heard_again(field: Field) -> None:
    pairs = ((state, changed(state, {field.kind: {field.name: new}})) for state in FULL for new in others(field))
    anew = field.name in ANEW.get(field.kind, ())
    pairs = ((before, after) for before, after in pairs if before != after)
    before, after = next(pair for pair in pairs if anew or forgotten(pair[0]) != forgotten(pair[1]))
    check_kept(after)
    check_merged(before, after)
    check_merged(after, before)
    assert bool(changes(before, after)) is not anew
    for new in others(field):
        check_merged(after, changed(after, {field.kind: {field.name: new}}))


def test_what_is_not_kept_is_a_field_with_a_default_and_stays_as_it_was() -> None:
    for kind, names in ANEW.items():
        fields = {one.name: one for one in of(kind)}
        assert all(fields[name].default is not MISSING for name in names)
    before, after = FULL[:2]
    merged = merge(before, through(changes(before, after)))
    assert merged.told == before.told
    assert merged.comparisons.steps == before.comparisons.steps
    assert [unit.pulses for unit in merged.table] == [unit.pulses for unit in before.table]
    assert forgotten(merged) == forgotten(after)


# --- types that a field may have tomorrow -----------------------------------------------------------------------------


class Tomorrow(Value):
    errands: tuple[NoteBroken | DistrustCheckpoints, ...] = ()
    order: Order | None = None
    either: NoteBroken | DistrustCheckpoints | None = None
    maps: Mapping[str, Map[tuple[str, int], Node]] | None = None
    inside: Map[str, Mapping[Phase, frozenset[Says] | None]] = Map()


@pytest.mark.parametrize(("before", "after"), [*itertools.permutations(range(5), 2)])
def test_unions_bases_and_mappings_of_mappings_are_kept(before: int, after: int) -> None:
    read = kept._reader(Tomorrow)
    some = [Tomorrow(), *(made(Tomorrow, seed) for seed in range(4))]
    difference = kept._difference(some[before], some[after])
    check_same(read(through(difference), some[before]), some[after])
    check_same(read(through(kept._difference(MISSING, some[after])), MISSING), some[after])


@pytest.mark.parametrize("kind", [list[int], dict[str, int], Callable[[], int], Any, object, Node | Phase, int | Node])
def test_a_type_without_a_notation_is_an_error_at_once(kind: Any) -> None:
    with pytest.raises(TypeError):
        kept._reader(kind)


# --- order ------------------------------------------------------------------------------------------------------------


@given(st.permutations("abcd"), st.permutations("abcdef"), st.integers(0, 4), st.integers(0, 6))
@tried(400)
def test_a_mapping_keeps_its_order(some: list[str], others: list[str], one: int, other: int) -> None:
    before, after = (with_jobs(begin(config()), names) for names in (some[:one], others[:other]))
    check_kept(after)
    check_merged(before, after)


def with_jobs(state: RunState, names: list[str]) -> RunState:
    jobs = {name: Job(name) for name in names}
    return replace(state, job_pool=replace(state.job_pool, by_name=jobs))


def test_a_new_job_is_one_entry() -> None:
    before = with_jobs(begin(config()), [*"abcdefgh"])
    after = with_jobs(before, [*"abcdefghi"])
    assert len(json.dumps(changes(before, after))) < 100


@given(*(st.integers(0, 4) for _ in range(4)))
@tried(100)
def test_groups_and_standbys_come_and_go(groups: int, later: int, standbys: int, more: int) -> None:
    before = replace(FULL[0], table=table(1, groups, standbys))
    after = replace(FULL[0], table=table(1, later, standbys + more))
    check_kept(after)
    check_merged(before, after)
    removed = after
    for _ in range(later):
        removed = replace(removed, table=removed.table.without_last_group())
    check_merged(after, removed)


def test_only_the_unit_that_has_changed_is_written() -> None:
    state = replace(FULL[0], table=table(1, groups=50))
    unit = replace(state.table.group(7), reason="another")
    after = replace(state, table=state.table.put(unit))
    assert changes(state, after) == {"table": {"by_name": [[], [["group-0007", {"reason": "another"}]]]}}


# --- what is refused --------------------------------------------------------------------------------------------------

BEGUN = begin(config())
WHOLE = encode(FULL[0])
CHANGES = changes(BEGUN, FULL[0])
Read = Callable[[Any], RunState]
Spot = tuple[Any, ...]  # keys and indices from the outside to the inside


def spots(part: Any, here: Spot = ()) -> Iterator[Spot]:
    yield here
    inside = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, one in inside:
        yield from spots(one, (*here, key))


def at(whole: Any, spot: Spot) -> Any:
    for key in spot:
        whole = whole[key]
    return whole


def with_another(whole: Any, spot: Spot, other: Any) -> Any:
    if not spot:
        return other
    copy = whole.copy()
    copy[spot[0]] = with_another(whole[spot[0]], spot[1:], other)
    return copy


def spoilt(part: Any) -> list[Any]:
    """Return what cannot be there instead of a part."""
    if isinstance(part, dict):
        return ["x", 7, [], {**part, "unheard_of": 1}, {**part, "is": "RunState2"}]
    if isinstance(part, list):
        return ["x", 7, {}, [*part, []], [*part, {}, 1]]
    return [[], {}, object]


def read_whole(json: Any) -> RunState:
    return decode(json)


def read_changes(json: Any) -> RunState:
    return merge(BEGUN, json)


BOTH = pytest.mark.parametrize(
    ("whole", "read"), [(WHOLE, read_whole), (CHANGES, read_changes)], ids=["whole", "changes"]
)


@BOTH
def test_every_part_has_its_type(whole: Any, read: Read) -> None:
    read(whole)
    for spot in spots(whole):
        for other in spoilt(at(whole, spot)):
            with pytest.raises(Unreadable):
                read(with_another(whole, spot, other))


def read_or_refused(read: Read, damaged: Any) -> None:
    """Check that JSON is refused, or gives a state that can be kept like any other."""
    try:
        state = read(damaged)
    except Unreadable:
        return
    check_same(decode(encode(state)), state)


@BOTH
def test_no_part_may_be_missing_unless_it_has_a_default(whole: Any, read: Read) -> None:
    for spot in spots(whole):
        part = at(whole, spot)
        for key in range(len(part)) if isinstance(part, list) else [*part] if isinstance(part, dict) else ():
            less = part.copy()
            del less[key]
            read_or_refused(read, with_another(whole, spot, less))


@given(st.sampled_from([*spots(WHOLE)]), VALUES)
@tried(2000)
def test_anything_anywhere_is_refused_or_read(spot: Spot, other: Any) -> None:
    read_or_refused(read_whole, with_another(WHOLE, spot, other))


@given(st.sampled_from([*spots(CHANGES)]), VALUES)
@tried(2000)
def test_any_changes_are_refused_or_merged(spot: Spot, other: Any) -> None:
    read_or_refused(read_changes, with_another(CHANGES, spot, other))
