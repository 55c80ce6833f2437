"""Checkpoints on disk as the controller sees them: which are complete, which are not, and why."""

import json
import os
import time
from pathlib import Path

import pytest

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.layout import Ignored, Saved, Writer
from ftslurm.security import owned_files

ME = Writer("run-1", 3, 2)


def save(folder: Path, step: int, **files: str) -> Path:
    """Write a complete checkpoint."""
    path = folder / layout.name_of(step)
    path.mkdir(parents=True)
    contents = files or {"a": "12345", "b": ""}
    for name, text in contents.items():
        (path / name).write_text(text)
    owned_files.write_file(
        path / layout.MANIFEST, layout.manifest(step, ME, 1, {n: len(t) for n, t in contents.items()}, {})
    )
    return path


def edit(path: Path, **fields: object) -> None:
    manifest = json.loads((path / layout.MANIFEST).read_text())
    (path / layout.MANIFEST).write_text(json.dumps(manifest | fields))


def reason(folder: Path) -> str:
    (found,) = layout.survey(folder)
    assert isinstance(found, Ignored), found
    return found.reason


def test_the_newest_complete_one_is_found_by_its_number(tmp_path: Path) -> None:
    for step in (5, 100, 20):
        save(tmp_path, step)
    for name in ("notes.txt", "step-7", "step-00000200.tmp", "step-٠٠٠٠٠٣٠٠", "step--0000005", "step-", ".saving-x"):
        (tmp_path / name).mkdir()
    assert layout.newest(tmp_path) == Saved(100, tmp_path / "step-00000100")
    assert layout.newest(tmp_path, upto=99) == Saved(20, tmp_path / "step-00000020")
    assert layout.newest(tmp_path, upto=4) is None
    assert sorted(layout.steps(tmp_path)) == [5, 20, 100]


def test_no_folder_holds_no_checkpoint(tmp_path: Path) -> None:
    assert layout.newest(tmp_path / "none") is None
    assert layout.newest(Path("/dev/null/x")) is None
    assert layout.steps(tmp_path / "none") == []
    assert not layout.only_foreign(tmp_path / "none")


def test_a_torn_one_is_passed_over_and_says_what_is_wrong(tmp_path: Path) -> None:
    path = save(tmp_path, 8, weights="x" * 100)
    (path / "weights").write_text("x" * 99)
    assert reason(tmp_path) == "weights has 99 bytes, 100 were written"
    (path / "weights").unlink()
    assert reason(tmp_path) == "weights is missing"
    (path / "weights").mkdir()
    assert reason(tmp_path) == "weights is not a regular file"
    save(tmp_path, 4)
    assert layout.newest(tmp_path) == Saved(4, tmp_path / "step-00000004")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not valid JSON"),
        ('{"format": ', "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("\x80", "not valid JSON"),
        ("[1, 2]", "another program"),
        ("null", "another program"),
        ('{"format": "ftslurm-checkpoint-99", "step": 8}', "another version"),
    ],
)
def test_a_manifest_that_is_not_ours_makes_it_foreign(tmp_path: Path, text: str, says: str) -> None:
    (save(tmp_path, 8) / layout.MANIFEST).write_text(text, encoding="latin-1")
    (found,) = layout.survey(tmp_path)
    assert isinstance(found, Ignored)
    assert found.foreign
    assert says in found.reason


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"step": 9}, "step 9"),
        ({"step": "8"}, "step '8'"),
        ({"files": {}}, "lists no files"),
        ({"files": ["a"]}, "lists no files"),
        ({"files": {"a": "5"}}, "gives a the size '5'"),
        ({"files": {"a": True}}, "gives a the size True"),
        ({"files": {"../x": 1}}, "names a file '../x'"),
        ({"files": {"": 1}}, "names a file ''"),
        ({"files": {"\0": 1}}, "names a file"),
        ({"files": {"\ud800": 1}}, "cannot be inspected"),
        ({"files": {"a" * 5000: 1}}, "cannot be inspected"),
    ],
)
def test_a_manifest_that_makes_no_sense_makes_it_torn(tmp_path: Path, fields: dict[str, object], says: str) -> None:
    edit(save(tmp_path, 8), **fields)
    (found,) = layout.survey(tmp_path)
    assert isinstance(found, Ignored)
    assert not found.foreign
    assert says in found.reason


@pytest.mark.parametrize("text", [None, "", '{"format": ', "\x80", '{"format": "ftslurm-checkpoint-99"}'])
def test_ours_stays_ours_when_its_manifest_is_lost(tmp_path: Path, text: str | None) -> None:
    path = save(tmp_path, 8, **{"tree-0001.pickle": "1"})
    (path / layout.MANIFEST).unlink()
    if text is not None:
        (path / layout.MANIFEST).write_text(text, encoding="latin-1")
    (found,) = layout.survey(tmp_path)
    assert isinstance(found, Ignored)
    assert (found.foreign, found.doubtful) == (False, False)
    assert layout.MANIFEST in found.reason
    assert not layout.only_foreign(tmp_path)


def test_what_may_be_ours_or_another_scripts_is_neither_passed_over_nor_claimed(tmp_path: Path) -> None:
    for step, name in ((1, ".metadata"), (2, "__0_0.distcp")):
        (tmp_path / layout.name_of(step)).mkdir()
        (tmp_path / layout.name_of(step) / name).touch()
    (tmp_path / layout.name_of(3)).symlink_to(save(tmp_path / "elsewhere", 3))
    found = [found for found in layout.survey(tmp_path) if isinstance(found, Ignored)]
    assert [(each.foreign, each.doubtful) for each in found] == [(False, True)] * 3
    assert "symbolic link" in found[0].reason
    assert layout.only_foreign(tmp_path)
    (tmp_path / layout.name_of(2) / layout.MANIFEST).write_text("{}")  # its own manifest and no other file of ours
    assert [found.foreign for found in layout.survey(tmp_path) if isinstance(found, Ignored)] == [False, True, False]


def test_the_newest_damaged_one_is_found_and_whose_one_is(tmp_path: Path) -> None:
    assert layout.damaged(tmp_path) is layout.damaged(tmp_path / "none") is layout.damaged(Path("/dev/null/x")) is None
    save(tmp_path, 5)
    (tmp_path / "step-00000099").mkdir()
    assert layout.damaged(tmp_path) is None
    for step in (7, 9):
        (save(tmp_path, step) / "a").unlink()
    found = layout.damaged(tmp_path)
    assert found == Ignored(tmp_path / "step-00000009", "a is missing", foreign=False)
    newest = layout.newest(tmp_path)
    assert newest is not None
    assert newest.run == "run-1"
    edit(newest.path, run=7)
    assert [found.run for found in layout.survey(tmp_path) if isinstance(found, Saved)] == [""]


def test_links_pipes_and_files_are_no_checkpoints_and_never_block(tmp_path: Path) -> None:
    real = save(tmp_path / "elsewhere", 1)
    (tmp_path / "step-00000001").symlink_to(real)
    (tmp_path / "step-00000002").write_text("a file")
    os.mkfifo(tmp_path / "step-00000003")
    (tmp_path / "step-00000004").mkdir()
    os.mkfifo(tmp_path / "step-00000004" / layout.MANIFEST)
    (save(tmp_path, 5) / "a").unlink()
    (tmp_path / "step-00000005" / "a").symlink_to(real / "a")
    assert [type(found) for found in layout.survey(tmp_path)] == [Ignored] * 5
    assert layout.newest(tmp_path) is None


def test_folders_may_vanish_while_it_looks(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    found = layout.survey(tmp_path)
    assert next(found) == Saved(3, tmp_path / "step-00000003")
    (tmp_path / "step-00000002").rename(tmp_path / ".removed-2")
    second = next(found)
    assert isinstance(second, Ignored)
    assert next(found) == Saved(1, tmp_path / "step-00000001")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_ignored(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2).chmod(0)
    assert layout.newest(tmp_path) == Saved(1, tmp_path / "step-00000001")


def test_thousands_of_entries_take_no_time(tmp_path: Path) -> None:
    save(tmp_path, 1)
    for step in range(2, 1500):
        (tmp_path / layout.name_of(step)).mkdir()
        (tmp_path / f"other-{step}").touch()
    started = time.monotonic()
    assert layout.newest(tmp_path) == Saved(1, tmp_path / "step-00000001")
    assert time.monotonic() - started < 2


def test_files_of_another_format_are_told_from_ours(tmp_path: Path) -> None:
    assert not layout.only_foreign(tmp_path)
    (tmp_path / ".saving-00000005-run-0-0-abc").mkdir()
    (tmp_path / layout.POSITIONS).mkdir()
    assert not layout.only_foreign(tmp_path)
    (tmp_path / "step-00000010").mkdir()
    (tmp_path / "model.pt").touch()
    assert layout.only_foreign(tmp_path)
    (save(tmp_path, 5) / "a").write_text("torn, and still ours")
    assert not layout.only_foreign(tmp_path)


def test_pruning_keeps_the_last_and_never_the_undone_ones_instead() -> None:
    all_ = [Saved(step, Path(str(step))) for step in (30, 10, 40, 20, 100)]
    assert [old.step for old in layout.to_prune(all_, 40, 2)] == [20, 10]
    assert [old.step for old in layout.to_prune(all_, 40, 1)] == [30, 20, 10]
    assert [old.step for old in layout.to_prune(all_, 40, 5)] == []
    assert layout.to_prune(all_, 40, 0) == []


def test_a_step_is_due_at_multiples_and_when_the_newest_is_too_old() -> None:
    due = [step for step in range(1, 31) if layout.is_due(step, 10, step // 10 * 10)]
    assert due == [10, 20, 30]
    assert layout.is_due(21, 10, 10)  # the rank that was saving step 20 has died
    assert not layout.is_due(19, 10, 10)


def test_only_what_nobody_writes_any_more_is_dead() -> None:
    def dead(writer: Writer, idle_s: float = 0.0) -> bool:
        return layout.is_dead(layout.saving_name(7, writer, "0a1b"), ME, idle_s, 3600.0)

    assert dead(Writer("run-1", 3, 1))
    assert not dead(ME)
    assert not dead(Writer("run-1", 2, 0))  # possibly alive
    assert dead(Writer("run-1", 2, 0), idle_s=4000)
    assert not dead(Writer("another/run 9", 3, 1))
    assert dead(Writer("another/run 9", 3, 1), idle_s=4000)
    assert layout.is_dead(".removed-step-00000005-0a1b", ME, 0, 3600)
    assert not layout.is_dead(".git", ME, 1e9, 3600)
    assert not layout.is_dead(".saving-my-own-notes", ME, 1e9, 3600)


def test_nothing_is_trusted_that_others_can_write(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    path.chmod(0o755)
    assert owned_files.distrust(path.stat()) is None
    path.chmod(0o775)
    assert "others can write into it (mode 0775)" in str(owned_files.distrust(path.stat()))
    others = os.stat_result((0o40700, 1, 1, 1, os.geteuid() + 1, 0, 0, 0, 0, 0))
    assert "belongs to another user" in str(owned_files.distrust(others))
