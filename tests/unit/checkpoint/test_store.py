"""The rules of checkpoints, the same in a folder and in an object store: which are complete, which are removed."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from checkpoints import ME, part_of, save, steps, write

from ftslurm.checkpoint import layout
from ftslurm.checkpoint import store as store_module
from ftslurm.checkpoint.layout import Writer
from ftslurm.checkpoint.store import Store
from ftslurm.config import store_url

KINDS = ("folder", "bucket")


def opened(kind: str, path: Path) -> Store:
    """Return an empty store in a folder, or in fsspec's memory."""
    return Store(str(path) if kind == "folder" else f"memory:/{path}")


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(store_url, "STORES", {"memory"})
    return opened(request.param, tmp_path / "checkpoints")


both = pytest.mark.parametrize("store", KINDS, indirect=True)


def put(store: Store, name: str, content: bytes = b"") -> None:
    store.files.pipe_file(store.path(name), content)


def parts(store: Store) -> int:
    return sum(name.startswith("data-") for name in store._names())


def reason(store: Store) -> str:
    (found,) = store.survey()
    assert found.damage
    return found.damage


@both
def test_an_empty_place_holds_nothing(store: Store) -> None:
    assert (list(store.survey()), store.newest(), store.summary(), store.owner()) == ([], None, None, "")


@both
def test_the_newest_complete_one_is_found_by_its_number(store: Store) -> None:
    saved = {step: save(store, step) for step in (5, 100, 20)}
    write(store, 200)
    assert steps(store) == store.steps() == [100, 20, 5]
    assert (store.newest(), store.newest(99), store.newest(4)) == (saved[100], saved[20], None)
    assert store.summary() == (f"{store.name}/step-00000100.json", 100, None)
    assert saved[5].run == "run-1"


@both
def test_a_torn_one_is_passed_over_and_says_what_is_wrong(store: Store) -> None:
    part = save(store, 8, weights=b"x" * 100).part
    put(store, f"{part}/weights", b"x" * 99)
    assert reason(store) == f"{part}/weights has 99 bytes, 100 were written"
    store.remove(part)
    assert reason(store) == f"{part}/weights is missing"
    assert store.summary() == (f"{store.name}/step-00000008.json", None, f"{part}/weights is missing")
    save(store, 4)
    assert (steps(store), store.summary()) == ([4], (f"{store.name}/step-00000004.json", 4, None))


@both
def test_what_is_not_as_it_was_written_becomes_no_checkpoint(store: Store) -> None:
    part, files = write(store, 5)
    with pytest.raises(OSError, match="a has 5 bytes, 6 were written"):
        store.finish(5, part, ME, files | {"a": (6, [1])})
    assert store.steps() == []


@both
def test_a_step_that_is_saved_again_replaces_its_files(store: Store) -> None:
    save(store, 5)
    again = save(store, 5)
    assert (list(store.survey()), parts(store)) == ([again], 1)


@both
@pytest.mark.parametrize("text", [b'{"format": "mine"}', b"", b'{"format": "ftslurm-checkpoint-99", "step": 5}'])
def test_a_manifest_that_is_not_ours_is_never_used_nor_replaced_nor_removed(store: Store, text: bytes) -> None:
    mine = [write(store, 5)[0] for _ in range(2)]  # as the other manifest may name them
    put(store, "step-00000005.json", text)
    for me in (Writer("run-1", 0, 0), Writer("run-1", 0, 1)):
        part, files = write(store, 5, me)
        with pytest.raises(OSError, match=r"step-00000005.json is not replaced: it is no manifest of"):
            store.finish(5, part, me, files)
        store.remove(part)
        save(store, 10, me)
        store.prune(10, 1, me)
    assert store.files.cat_file(store.path("step-00000005.json")) == text
    assert {*mine} <= {*store._names()}
    assert "no manifest of this step" in str([found.damage for found in store.survey() if found.step == 5])


@both
def test_the_newest_are_kept_and_higher_steps_are_not_counted(store: Store) -> None:
    for step in (5, 10, 20, 15):
        save(store, step)
    store.prune(15, 0, ME)
    assert (steps(store), parts(store)) == ([20, 15, 10, 5], 4)
    store.prune(15, 2, ME)
    assert (steps(store), parts(store)) == ([20, 15, 10], 3)


@both
def test_only_what_earlier_attempts_of_the_group_left_is_swept(store: Store) -> None:
    save(store, 5, Writer("run-1", 0, 0))
    for me in (Writer("run-1", 0, 0), Writer("run-1", 1, 0), Writer("run-2", 0, 0), Writer("run-1", 0, 1)):
        write(store, 9, me)
    store.sweep(Writer("run-1", 0, 1))
    assert (steps(store), parts(store)) == ([5], 4)


@both
def test_what_another_group_has_abandoned_is_removed_a_day_later(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = time.time_ns()
    with monkeypatch.context() as then:
        then.setattr(time, "time_ns", lambda: now_ns - int((layout.ABANDONED_S + 60) * 1e9))
        old, _ = write(store, 9, Writer("run-1", 1, 0))
        save(store, 1, Writer("run-2", 3, 0))
        save(store, 9, Writer("run-1", 2, 0))
    alive, _ = write(store, 9, Writer("run-1", 1, 0))
    save(store, 10)
    store.prune(10, 5, ME)
    assert steps(store) == [10, 9, 1]
    assert (old in store._names(), alive in store._names()) == (False, True)


@both
def test_files_of_another_format_are_told_from_ours(store: Store) -> None:
    write(store, 5)
    put(store, "positions/group-0000-rank-0")
    store.take("/runs/x")
    assert store.summary() is None
    put(store, "step-00000010/model.pt")
    assert store.summary() == (store.name, None, None)
    save(store, 5)
    assert store.summary() == (f"{store.name}/step-00000005.json", 5, None)


@both
def test_what_the_controller_is_told(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(what: str, *words: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["store", what, store.name, *words])
        store_module.main()
        return json.loads(capsys.readouterr().out)

    ask("take", "/runs/x")
    assert (ask("newest"), ask("owner")) == (None, "/runs/x")
    put(store, "step-00000003.json", b"[]")
    name, step, damage = ask("newest")
    assert (name, step) == (f"{store.name}/step-00000003.json", None)
    assert "no manifest" in damage


# --- of a folder alone -----------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_read_holds_no_checkpoint() -> None:
    assert Store("/dev/null/x").newest() is None
    with pytest.raises(OSError, match="Not a directory"):
        Store("/dev/null/x").summary()


def test_links_and_pipes_are_no_checkpoints_and_never_block(tmp_path: Path) -> None:
    real = save(tmp_path / "elsewhere", 1)
    (tmp_path / layout.name_of(1)).symlink_to(real.name)
    (tmp_path / real.part).symlink_to(tmp_path / "elsewhere" / real.part)
    os.mkfifo(tmp_path / layout.name_of(3))
    (tmp_path / layout.name_of(4)).mkdir()
    save(tmp_path, 5)
    (part_of(tmp_path, 5) / "a").unlink()
    (part_of(tmp_path, 5) / "a").symlink_to(tmp_path / "elsewhere" / real.part / "a")
    linked = save(tmp_path, 6)
    (tmp_path / linked.part).rename(tmp_path / "moved")
    (tmp_path / linked.part).symlink_to(tmp_path / "moved")
    found = list(Store(str(tmp_path)).survey())
    assert [(one.step, bool(one.damage)) for one in found] == [(step, True) for step in (6, 5, 4, 3, 1)]
    assert all("is neither a file nor a folder" in str(one.damage) for one in found[:2])


def test_checkpoints_may_vanish_while_it_looks(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    found = Store(str(tmp_path)).survey()
    assert next(found).step == 3
    (tmp_path / layout.name_of(2)).unlink()
    assert next(found).step == 1


def test_nothing_is_used_that_others_can_write(tmp_path: Path) -> None:
    saved = save(tmp_path, 1)
    for path in (Path(saved.name), tmp_path / saved.part, tmp_path / saved.part / "a"):
        mode = path.stat().st_mode & 0o777
        path.chmod(mode | 0o020)
        assert "others can write into it" in reason(Store(str(tmp_path)))
        path.chmod(mode)
        if os.geteuid() == 0:
            os.chown(path, 12345, 12345)
            assert "belongs to another user" in reason(Store(str(tmp_path)))
            os.chown(path, 0, 0)
    assert steps(tmp_path) == [1]


def test_thousands_of_entries_take_no_time(tmp_path: Path) -> None:
    save(tmp_path, 3000)
    for step in range(1, 1500):
        (tmp_path / layout.name_of(step)).touch()
        (tmp_path / f"other-{step}").touch()
    started = time.monotonic()
    assert Store(str(tmp_path)).newest() is not None
    assert time.monotonic() - started < 2


# --- histories -------------------------------------------------------------------------------------------------------


Contents = dict[int, bytes]  # of complete checkpoints, by step


class Killed(BaseException):
    """As a process that gets SIGKILL: nothing is cleaned up."""


class Mortal:
    """A store's files, for a process that is killed within its nth change to them."""

    def __init__(self, store: Store, chance: random.Random) -> None:
        self.files, self.chance, self.left = store.files, chance, 10**9

    def __getattr__(self, name: str) -> Any:
        def call(path: str, *words: Any, **more: Any) -> Any:
            if name in ("pipe_file", "rm"):
                self.left -= 1
            if self.left > 0:
                return getattr(self.files, name)(path, *words, **more)
            if name == "rm" and more["recursive"]:
                for one in self.files.ls(path, detail=False):
                    if self.chance.random() < 0.5:
                        self.files.rm(str(one), recursive=False)
            elif self.chance.random() < 0.5:
                getattr(self.files, name)(path, *words, **more)
            raise Killed

        return call


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_is_killed_when_no_checkpoint_is_lost_or_mixed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of two groups save in one place, are killed anywhere, and go back to earlier steps."""
    monkeypatch.setattr(store_url, "STORES", {"memory"})
    for seed in range(60):
        history = History(opened(kind, tmp_path / str(seed)), random.Random(seed))
        for _ in range(25):
            history.go_on()
            history.check()


class History:
    """What happens to one place, and what must be there."""

    def __init__(self, store: Store, chance: random.Random) -> None:
        self.store, self.chance, self.keep = store, chance, chance.choice([0, 1, 2])
        self.attempts = {(run, group): 0 for run in ("run-1", "run/2") for group in (0, 1)}
        self.writing: dict[Writer, tuple[int, str, layout.Files]] = {}
        self.complete: Contents = {}
        self.foreign = {"step-00000003.json": b"{}", "model.pt": b"mine", "data-mine/x": b"mine"}
        for name, content in self.foreign.items():
            put(store, name, content)

    def go_on(self) -> None:
        who = self.chance.choice([*self.attempts])
        me = Writer(*who, self.attempts[who])
        if self.chance.random() < 0.2:
            self.die(me)
        elif me not in self.writing:
            step, content = self.chance.randrange(1, 13), self.chance.randbytes(self.chance.randrange(1, 9))
            self.writing[me] = (step, *write(self.store, step, me, a=content, b=content))
        else:
            self.finish(me, *self.writing.pop(me))

    def finish(self, me: Writer, step: int, part: str, files: layout.Files) -> None:
        before = self.complete
        after = before | {step: self.store.files.cat_file(self.store.path(part, "a"))} if step != 3 else before
        upto = sorted((one for one in after if one <= step), reverse=True)
        gone = upto[self.keep :] if self.keep and step != 3 else []
        mortal = Mortal(self.store, self.chance)
        if self.chance.random() < 0.5:
            mortal.left = self.chance.randrange(1, 5)
        self.store.files, files_of_all = mortal, self.store.files
        killed, refused = False, ""
        try:
            self.store.finish(step, part, me, files)
            self.store.prune(step, self.keep, me)
        except OSError as error:
            refused = str(error)
        except Killed:
            killed = True
        assert (step == 3) == ("is not replaced" in refused) or killed
        self.store.files = files_of_all
        self.complete = found = self.found()
        left = {one: content for one, content in after.items() if one not in gone}
        assert found == left or (
            killed and (found == before or (found.items() <= after.items() and left.items() <= found.items()))
        )
        if killed or step == 3:
            self.die(me)

    def die(self, me: Writer) -> None:
        """Let the next attempt of the group begin, which removes what this one has left."""
        self.writing.pop(me, None)
        self.attempts[me.run, me.group] += 1
        self.store.sweep(Writer(me.run, me.group, me.attempt + 1))
        used = {one.part for one in self.store.survey()}
        left = [
            one
            for name in {*self.store._names()} - used
            if (one := layout.PART.fullmatch(name)) and int(one["step"]) != 3
        ]
        assert not [
            one for one in left if (one["run"], int(one["group"])) == (me.run.translate({45: 95, 47: 95}), me.group)
        ]

    def found(self) -> Contents:
        found = {}
        for one in self.store.survey():
            if one.damage:
                assert one.step == 3
                continue
            a, b = (self.store.files.cat_file(self.store.path(one.part, name)) for name in ("a", "b"))
            assert a == b
            found[one.step] = a
        return found

    def check(self) -> None:
        assert self.found() == self.complete
        for name, content in self.foreign.items():
            assert self.store.files.cat_file(self.store.path(name)) == content
        for _, part, files in self.writing.values():
            assert layout.damage(files, self.store._sizes(part)) is None


@both
def test_what_a_group_has_saved_while_it_had_diverged_is_not_restored(store: Store) -> None:
    other = Writer(ME.run, ME.group + 1, ME.attempt)
    first = save(store, 10)
    for step in (20, 30):
        save(store, step)
    saved = save(store, 25, me=other)
    again = save(store, 40, me=Writer(ME.run, ME.group, ME.attempt + 2))
    store.distrust(Writer(ME.run, ME.group, ME.attempt + 1), after=10)
    assert (store.newest(), store.newest(39), store.newest(24)) == (again, saved, first)
    assert [found.step for found in store.survey() if "other weights" in str(found.damage)] == [30, 20]
    assert store.summary() == (f"{store.name}/step-00000040.json", 40, None)
    mended = save(store, 30, me=other)  # the run comes there again
    assert store.newest(39) == mended
    store.distrust(Writer("another-run", other.group, other.attempt), after=0)
    assert store.newest(39) == mended
