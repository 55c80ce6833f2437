"""The state on disk: what a controller has decided is known to the next one, wherever the first was killed."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from failing_calls import Disk
from full_disk import fill, full_disk, make_room
from histories import RUNNING, play
from kept_states import forgotten
from raw_record import RawRecord

from ftslurm.config.schema import Config
from ftslurm.core.rules import begin
from ftslurm.core.state.model import Phase, StepId
from ftslurm.core.state.run_state import RunState
from ftslurm.errors import EnvironmentProblem
from ftslurm.protocol.records import Progress, RunFinished, ScriptBegun
from ftslurm.run import journal_writer, kept_state
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import JournalReader
from ftslurm.run.journal_writer import RETRY_S, Journal

START = begin(Config())
OF_PROGRESS = Progress(group=0, attempt=0, step=7, quorum_id=1, participants=2, committed=1, aborted=0, gap_s=0.2)
BEGUN = ScriptBegun(unit="group-0000", group=0, attempt=0)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.create()
    return made


def state(number: int) -> RunState:
    """Return a state that is like no other."""
    return replace(START, restarts=number, warnings=frozenset({f"w{number}"}))


def decided(journal: Journal, number: int, lines: int = 1) -> None:
    for _ in range(lines):
        journal.append(RawRecord("decided", number=number))
    assert journal.keep(state(number))


def events(run: RunDir) -> list[dict[str, Any]]:
    return list(JournalReader(run.events).iter_new())


def files(run: RunDir) -> list[str]:
    return sorted(path.name for path in run.state.iterdir())


def ends_of_lines(data: bytes) -> list[int]:
    return [index + 1 for index, byte in enumerate(data) if byte == ord("\n")]


def read(run: RunDir, below: int = 99) -> kept_state.Kept:
    found = kept_state.read(run, below)
    assert found is not None
    return found


def test_a_real_history_is_read_as_it_was_kept(run: RunDir) -> None:
    with closing(Journal(run, number=1)) as journal:
        for end in range(1, len(RUNNING) + 1):
            story = play(*RUNNING[:end])
            journal.append(RawRecord("decided"))
            journal.keep(story.state)
            journal.flush()
            assert read(run).state == forgotten(story.state)
    assert run.kept(1).stat().st_mode & 0o777 == 0o600


def test_nothing_is_written_without_a_record_that_a_controller_needs(run: RunDir) -> None:
    with closing(Journal(run, number=1)) as journal:
        journal.append(OF_PROGRESS)
        journal.append(BEGUN)
        assert not journal.keep(state(1))
        journal.flush()
        assert files(run) == []
        assert journal.keep(state(1), always=True)
        journal.flush()
    assert read(run).seq == 1


def test_a_script_that_has_begun_may_be_in_the_journal_alone(run: RunDir) -> None:
    with closing(Journal(run, number=1)) as journal:
        decided(journal, 1)
        for _ in range(1000):  # more than are read at once
            journal.append(BEGUN)
        journal.flush()
        assert len(events(run)) == 1001
    found = read(run)
    assert (found.state, found.seq, found.lines) == (state(1), 1, ())
    with closing(Journal(run, number=2, kept=found)) as journal:
        decided(journal, 2)
    assert [line["seq"] for line in events(run)] == list(range(1, 1003))
    assert read(run).state == state(2)


def test_lines_between_two_decisions_are_known_to_the_next_controller_before_they_are_in_the_journal(
    run: RunDir,
) -> None:
    with closing(Journal(run, number=1)) as journal:
        decided(journal, 1)
        for seq in range(2, 5):
            journal.append(RawRecord("warned"))
            journal.flush(sync=False)
            assert (read(run).state, read(run).seq, events(run)[-1]["seq"]) == (state(1), seq, seq)


def test_no_controller_has_begun(run: RunDir) -> None:
    assert kept_state.read(run) is None


def test_a_decision_is_on_disk_after_one_sync_and_its_events_after_another(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[str]()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name))
    journal = Journal(run, number=1)
    decided(journal, 1)
    assert not journal.flush(sync=False)
    assert (synced, len(events(run))) == (["0001.jsonl"], 1)
    assert journal.flush(sync=True)
    assert synced == ["0001.jsonl", "events.jsonl"]


# --- killed anywhere -------------------------------------------------------------------------------------------------


def test_wherever_the_state_file_is_cut_the_last_whole_line_counts(run: RunDir) -> None:
    with closing(Journal(run, number=1)) as journal:
        decided(journal, 1)
    whole = run.kept(1).read_bytes()
    with closing(Journal(run, number=2, kept=read(run))) as journal:
        for number in range(2, 6):
            decided(journal, number, lines=2)
    run.kept(1).write_bytes(whole)  # it is removed when the first line of the next file is there
    data = run.kept(2).read_bytes()
    ends = ends_of_lines(data)
    written = events(run)
    run.events.write_bytes(b"")  # none of the lines had reached the journal
    for size in range(len(data) + 1):
        run.kept(2).write_bytes(data[:size])
        number = 1 + sum(end <= size for end in ends)
        found = read(run)
        assert found.state == state(number)
        assert list(found.lines) == [line for line in written if min(number, 2) <= line["number"] <= number]


@pytest.mark.parametrize("seed", range(30))
def test_controllers_that_are_killed_anywhere_hand_on_all_that_was_promised(run: RunDir, seed: int) -> None:
    """The machine crashes: each file ends where it was synced, or anywhere later."""
    dice, number, promised = random.Random(seed), 0, 0
    kept: kept_state.Kept | None = None
    for leader in range(1, 8):
        journal = Journal(run, number=leader, kept=kept)
        for _ in range(dice.randrange(6)):
            number += 1
            for _ in range(dice.randrange(3)):
                journal.append(BEGUN)
                journal.flush(sync=False)
            decided(journal, number, lines=dice.randrange(1, 4))
            journal.flush(sync=False)  # then its actions are carried out
            promised = number
            if dice.random() < 0.5:
                journal.flush(sync=True)
        os.truncate(run.events, dice.randint(journal._events._size, run.events.stat().st_size))
        if dice.random() < 0.5:  # it is killed while it writes one more decision
            decided(journal, number + 1, lines=2)
            data = b"".join(journal._state._lines)
            with run.kept(leader).open("ab") as file:
                file.write(data[: dice.choice([len(data), dice.randint(0, len(data))])])
        kept = kept_state.read(run, leader + 1)
        assert (kept.state.restarts if kept else 0) in (promised, number + 1)
        number = promised = kept.state.restarts if kept else 0
        there = [line["seq"] for line in events(run)]
        there += [line["seq"] for line in (kept.lines if kept else ()) if line["seq"] > len(there)]
        assert there == list(range(1, len(there) + 1))
    with closing(Journal(run, kept=kept)) as journal:
        assert not journal.damage
    assert [line["seq"] for line in events(run)] == there


def test_lines_that_were_promised_are_promised_by_the_next_controller_too(run: RunDir) -> None:
    journal = Journal(run, number=1)
    decided(journal, 1, lines=3)
    journal.flush(sync=False)
    run.events.write_bytes(b"")  # the machine has crashed
    journal = Journal(run, number=2, kept=read(run))
    decided(journal, 2)
    journal.flush(sync=False)
    assert files(run) == ["0002.jsonl"]
    run.events.write_bytes(b"")
    assert [line["seq"] for line in read(run).lines] == [1, 2, 3, 4]


# --- a disk that fails -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["state", "events", "progress"])
def test_no_file_overtakes_the_one_before_it(run: RunDir, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {"state": run.kept(1), "events": run.events, "progress": run.progress}
    now, disk = [0.0], Disk(random.Random(1), monkeypatch, paths[broken])
    journal = Journal(run, lambda: now[0], number=1)
    decided(journal, 1)
    journal.append(OF_PROGRESS)
    assert journal.flush()
    size, disk.fails = {name: path.stat().st_size for name, path in paths.items()}, 1.0
    for number in (2, 3):
        decided(journal, number)
        journal.append(OF_PROGRESS)
        assert journal.flush() == (broken == "progress")
        assert str(paths[broken]) in journal.complaint
        assert journal.is_kept == (broken != "state")
        now[0] += RETRY_S
    order = list(paths)
    for name in order[order.index(broken) + 1 :]:
        assert paths[name].stat().st_size == size[name], f"{name} has overtaken"
    for name in order[: order.index(broken)]:
        assert paths[name].stat().st_size > size[name], f"{name} waits for another"
    disk.fails = 0.0
    now[0] += RETRY_S
    assert journal.flush()
    assert journal.mended == f"{paths[broken]} can be written again"
    assert [line["number"] for line in events(run)] == [1, 2, 3]
    assert len(list(JournalReader(run.progress).iter_new())) == 3
    assert read(run).state == state(3)


@pytest.mark.parametrize("seed", range(30))
def test_after_any_errors_no_line_of_events_is_there_whose_state_is_not(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    now, dice = [0.0], random.Random(seed)
    disk, journal = Disk(dice, monkeypatch), Journal(run, lambda: now[0], number=1)
    for number in range(1, 200):
        if dice.random() < 0.1:
            disk.fails = dice.choice([0.0, 0.2, 1.0])
        if dice.random() < 0.3:
            journal.append(RawRecord("warned", number=number - 1))
            journal.flush(sync=False)
        decided(journal, number, lines=dice.randrange(1, 3))
        journal.flush(sync=dice.random() < 0.5)
        now[0] += dice.random()
        fails, disk.fails = disk.fails, 0.0
        if there := [line["number"] for line in events(run)]:
            assert there == sorted(there)
            assert read(run).state.restarts >= there[-1]
        disk.fails = fails
    disk.fails = 0.0
    now[0] += RETRY_S
    assert journal.flush()
    assert read(run).state == state(199)
    assert [line["seq"] for line in events(run)] == list(range(1, 1 + len(events(run))))


def test_on_a_full_disk_the_state_waits_in_memory_and_is_whole_when_there_is_room(tmp_path: Path) -> None:
    now = [0.0]
    with full_disk(tmp_path / "disk") as disk:
        make_room(disk)
        run = RunDir(disk / "run")
        run.create()
        journal = Journal(run, lambda: now[0], number=1)
        fill(disk)
        for number in range(1, 4):
            decided(journal, number)
            assert not journal.flush()
            assert not journal.is_kept
        make_room(disk)
        now[0] += RETRY_S
        assert journal.flush()
        assert read(run).state == state(3)
        journal.close()


def test_a_state_file_that_is_gone_on_a_file_server_is_told(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    now, disk = [0.0], Disk(random.Random(1), monkeypatch)
    journal = Journal(run, lambda: now[0], number=1)
    decided(journal, 1)
    journal.flush()
    run.kept(1).unlink()
    disk.fails = 1.0  # stale
    decided(journal, 2)
    journal.flush()
    disk.fails = 0.0
    now[0] += RETRY_S
    assert not journal.flush()
    assert str(run.kept(1)) in journal.complaint


# --- several controllers ---------------------------------------------------------------------------------------------


def test_one_that_was_replaced_writes_where_nobody_reads(run: RunDir) -> None:
    old = Journal(run, number=1)
    decided(old, 1)
    old.flush()
    with closing(Journal(run, number=2, kept=read(run, 2))) as new:
        assert files(run) == ["0001.jsonl"]  # until the next file is there
        decided(new, 2)
        new.flush()
        assert files(run) == ["0002.jsonl"]
        decided(old, 99)
        old.flush()
    assert read(run, 3).state == state(2)


def test_one_that_dies_before_it_has_decided_leaves_the_state_of_the_one_before(run: RunDir) -> None:
    with closing(Journal(run, number=1)) as journal:
        decided(journal, 1)
    with closing(Journal(run, number=2, kept=read(run, 2))) as journal:
        journal.append(RawRecord("began"))
    assert read(run, 3).state == state(1)


def test_a_journal_has_no_line_without_a_state_so_the_first_controller_may_die_at_any_time(run: RunDir) -> None:
    journal = Journal(run, number=1)
    journal.append(RawRecord("began"))
    assert not journal.flush()
    assert events(run) == []
    assert kept_state.read(run, 2) is None
    journal.keep(state(1))
    assert journal.flush()
    assert len(events(run)) == 1


def test_a_local_run_that_is_started_again_goes_on_in_its_file(run: RunDir) -> None:
    for number in (1, 2):
        with closing(Journal(run, kept=kept_state.read(run))) as journal:
            decided(journal, number)
    assert files(run) == ["0000.jsonl"]
    assert read(run).state == state(2)


def test_what_was_kept_long_ago_is_not_read_again(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_writer, "MOST_CHANGES", 500)
    with closing(Journal(run, number=1)) as journal:
        for number in range(1, 100):
            decided(journal, number)
            journal.flush()
    lines = [json.loads(line.partition(" ")[2]) for line in run.kept(1).read_text().splitlines()]
    whole = [index for index, line in enumerate(lines) if "state" in line]
    assert 2 < len(whole) < 50
    damaged = b"x\n" + run.kept(1).read_bytes()
    run.kept(1).write_bytes(damaged)
    assert read(run).state == state(99)


def test_the_time_is_that_of_the_last_line_of_any_file(run: RunDir) -> None:
    now = [100.0]
    with closing(Journal(run, lambda: now[0], number=1)) as journal:
        decided(journal, 1)
        now[0] = 150.0
        journal.append(OF_PROGRESS)
    assert read(run).time == 150.0


# --- unreadable ------------------------------------------------------------------------------------------------------


def written(text: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(kept_state.checked(text) + b"\n")


def damaged() -> Iterator[Any]:
    yield pytest.param(lambda path: path.unlink(), id="missing")
    yield pytest.param(lambda path: path.write_bytes(b""), id="empty")
    yield pytest.param(lambda path: path.write_bytes(path.read_bytes()[:50]), id="half a first line")
    yield pytest.param(lambda path: path.write_bytes(bytes(200) + b"\n"), id="zeros")
    yield pytest.param(lambda path: path.write_bytes(path.read_bytes()[9:]), id="no checksum")
    yield pytest.param(lambda path: path.chmod(0o666), id="others may write it")
    yield pytest.param(written(b"[]"), id="a list")
    yield pytest.param(written(b"{}"), id="no state")
    yield pytest.param(written(b'{"state":3,"seq":1,"time":1,"lines":[]}'), id="another type")
    yield pytest.param(written(b"[" * 100_000), id="deep")


@pytest.mark.parametrize("damage", list(damaged()))
def test_a_journal_without_a_state_that_can_be_read_says_what_to_do(run: RunDir, damage: Any) -> None:
    with closing(Journal(run, number=1)) as journal:
        decided(journal, 1)
    damage(run.kept(1))
    with pytest.raises(EnvironmentProblem, match=rf"{run.state} .*ftslurm resume {run.root}"):
        kept_state.read(run, 2)


def several(run: RunDir) -> bytes:
    """Write some decisions and their lines of the journal. Return the file of the state."""
    with closing(Journal(run, number=1)) as journal:
        for number in range(1, 4):
            decided(journal, number, lines=2)
            journal.flush()
        journal.append(BEGUN)
    return run.kept(1).read_bytes()


def test_lines_of_the_state_that_are_lost_are_missed_by_the_journal(run: RunDir) -> None:
    data = several(run)
    for size in (*range(0, len(data), 5), *ends_of_lines(data)[:-1], len(data) - 1):
        run.kept(1).write_bytes(data[:size])
        with pytest.raises(EnvironmentProblem, match=rf"{run.state} .*ftslurm resume {run.root}"):
            kept_state.read(run)
    for size in range(0, data.index(b"\n"), 10):
        run.kept(1).write_bytes(data + data[:size])  # a half line was not acted upon, and the journal lacks it too
        assert read(run).state == state(3)


def test_no_bit_of_the_state_can_be_another_unnoticed(run: RunDir) -> None:
    data = several(run)
    right, places, refused = read(run), range(0, 8 * len(data), 7), 0
    for place in places:
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        run.kept(1).write_bytes(flipped)
        try:
            assert read(run) == right
        except EnvironmentProblem:
            refused += 1
    assert refused > 0.9 * len(places)


def test_who_ends_the_run_of_a_lost_controller_keeps_no_state(run: RunDir) -> None:
    several(run)
    with closing(Journal(run, kept=read(run))) as journal:
        journal.append(RunFinished(outcome="stopped", reason="the job could not be requeued", steps=1, restarts=0))
    assert read(run).state == state(3)


def test_a_step_whose_folder_was_never_made_was_not_started(run: RunDir) -> None:
    units = [replace(unit, phase=Phase.STARTING, attempt=3) for unit in START.units]
    table = START.table
    for unit in units:
        table = table.put(unit)
    run.attempt("group-0001", 3).mkdir(parents=True)
    assert kept_state.unmade(run, replace(START, table=table)) == {StepId("group-0000", 3)}
