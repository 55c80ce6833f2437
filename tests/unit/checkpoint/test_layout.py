"""The names of checkpoints, and what their manifests may say."""

import json

import pytest

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.layout import Writer

ME = Writer("run-1", 3, 2)
PART = layout.part_name(8, ME, 12)
GOOD = layout.manifest(8, ME, PART, {"a": (5, [7])})


def test_a_manifest_says_what_was_written() -> None:
    assert layout.parse(GOOD, 8) == layout.Manifest("run-1", PART, {"a": (5, [7])})


NOT_GIVEN = (
    *("step-7.json", "step-٠٠٠٠٠٣٠٠.json", "step--0000005.json", "step-00000005", "step-.json"),
    *("step-00000005.json.part", "step-000000005.json", ".step-00000005.json"),
)


@pytest.mark.parametrize("name", NOT_GIVEN)
def test_only_the_name_that_is_given_to_a_step_is_a_manifests(name: str) -> None:
    assert layout.step_of(name) is None
    assert layout.step_of(layout.name_of(5)) == 5
    assert layout.step_of(layout.name_of(10**12)) == 10**12


@pytest.mark.parametrize("text", [b"", b'{"format": ', b"[" * 100_000, b"\x80", b"[1, 2]", b"null", b"8", GOOD[:-1]])
def test_what_is_no_json_of_ours_is_no_manifest(text: bytes) -> None:
    with pytest.raises(ValueError, match="no manifest of this step and this version of ftslurm"):
        layout.parse(text, 8)


STRANGE: list[object] = [
    None,
    7,
    -1,
    1e999,
    "",
    "x",
    "../x",
    [],
    [1],
    ["a"],
    {},
    {"a": 5},
    {"a": [1]},
    {"a": ["x", 2]},
    {"": {}},
]


@pytest.mark.parametrize("field", ["format", "step", "folder", "files"])
@pytest.mark.parametrize("value", STRANGE, ids=repr)
def test_a_field_that_makes_no_sense_makes_it_none(field: str, value: object) -> None:
    with pytest.raises(ValueError, match="no manifest of this step"):
        layout.parse(json.dumps(json.loads(GOOD) | {field: value}).encode(), 8)


@pytest.mark.parametrize("field", ["format", "step", "run", "folder", "files"])
def test_a_field_that_is_missing_makes_it_none(field: str) -> None:
    said = json.loads(GOOD)
    del said[field]
    with pytest.raises(ValueError, match="no manifest of this step"):
        layout.parse(json.dumps(said).encode(), 8)


def test_what_is_wrong_with_the_files_is_named() -> None:
    assert layout.damage({"a": (5, [7])}, {"a": 5, "more": 1}) is None
    assert layout.damage({"a": (5, [7])}, {"a": 4}) == "a has 4 bytes, 5 were written"
    assert layout.damage({"../a": (5, [7])}, {"a": 5}) == "../a is missing"


def test_a_step_is_due_at_multiples_and_when_the_newest_is_too_old() -> None:
    due = [step for step in range(1, 31) if layout.is_due(step, 10, step // 10 * 10)]
    assert due == [10, 20, 30]
    assert layout.is_due(21, 10, 10)  # the rank that was saving step 20 has died
    assert not layout.is_due(19, 10, 10)


def test_only_what_nobody_writes_any_more_is_dead() -> None:
    def dead(writer: Writer, age_s: float = 0.0) -> bool:
        part = layout.PART.fullmatch(layout.part_name(7, writer, 10**18))
        assert part is not None
        return layout.is_dead(part, ME, 10**18 + int(age_s * 1e9))

    assert dead(Writer("run-1", 3, 1))
    assert not dead(ME)
    assert not dead(Writer("run-1", 2, 0))  # possibly alive
    assert not dead(Writer("run-1", 2, 0), age_s=layout.ABANDONED_S - 1)
    assert dead(Writer("run-1", 2, 0), age_s=layout.ABANDONED_S + 1)
    assert not dead(Writer("another/run 9", 3, 1))
    assert dead(Writer("another/run 9", 3, 1), age_s=layout.ABANDONED_S + 1)
