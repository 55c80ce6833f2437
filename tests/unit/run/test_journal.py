"""The journal: lines survive a killed writer, and readers never see half of one."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from failing_calls import Disk
from raw_record import RawRecord

from ftslurm.errors import EnvironmentProblem
from ftslurm.protocol.records import Progress
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import JournalReader, last_event
from ftslurm.run.journal_writer import CALM_S, RETRY_S, Journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_what_is_appended_and_flushed_is_read(path: Path) -> None:
    journal = Journal(RunDir(path.parent), clock=lambda: 12.5)
    record = journal.append(RawRecord("step_ready", unit="group-0001", attempt=0, seconds=1.5))
    journal.flush(sync=True)
    assert record == {"seq": 1, "time": 12.5, "event": "step_ready", "unit": "group-0001", "attempt": 0, "seconds": 1.5}
    assert list(JournalReader(path).iter_new()) == [record]


def test_nothing_is_written_before_the_flush_and_then_everything_in_order(path: Path) -> None:
    journal = Journal(RunDir(path.parent))
    journal.append(RawRecord("a"))
    journal.append(RawRecord("b"))
    assert path.read_bytes() == b""
    journal.flush(sync=False)
    assert [(r["seq"], r["event"]) for r in JournalReader(path).iter_new()] == [(1, "a"), (2, "b")]


def test_only_the_owner_may_read_it(path: Path) -> None:
    Journal(RunDir(path.parent)).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_second_writer_continues_the_numbers(path: Path) -> None:
    for event in ("a", "b"):
        with closing(Journal(RunDir(path.parent))) as journal:
            journal.append(RawRecord(event))
    assert [(r["seq"], r["event"]) for r in JournalReader(path).iter_new()] == [(1, "a"), (2, "b")]


@pytest.mark.parametrize(
    "torn", ['{"seq":2,"ti', '{"seq":2,"time":1,"event":"whole but for its newline"}', "x" * 200_000]
)
def test_a_second_writer_cuts_off_a_torn_last_line(path: Path, torn: str) -> None:
    with closing(Journal(RunDir(path.parent))) as journal:
        journal.append(RawRecord("a"))
    with path.open("a") as file:
        file.write(torn)
    with closing(Journal(RunDir(path.parent))) as journal:
        journal.append(RawRecord("b"))
    assert [(r["seq"], r["event"]) for r in JournalReader(path).iter_new()] == [(1, "a"), (2, "b")]


def test_a_journal_that_is_nothing_but_a_torn_line_begins_anew(path: Path) -> None:
    path.write_text('{"seq":1,')
    with closing(Journal(RunDir(path.parent))) as journal:
        assert journal.append(RawRecord("a"))["seq"] == 1
    assert len(list(JournalReader(path).iter_new())) == 1


def test_numbers_continue_after_very_long_lines_and_rubbish(path: Path) -> None:
    with closing(Journal(RunDir(path.parent))) as journal:
        journal.append(RawRecord("a", ranks="x" * 300_000))
    with path.open("ab") as file:
        file.write(b"\0" * 100_000 + b"\n[]\n")
    with closing(Journal(RunDir(path.parent))) as journal:
        assert journal.append(RawRecord("b"))["seq"] == 2
    assert [r["event"] for r in JournalReader(path).iter_new()] == ["a", "b"]


def test_fields_that_are_no_plain_text_are_still_one_line(path: Path) -> None:
    with closing(Journal(RunDir(path.parent))) as journal:
        journal.append(
            RawRecord("step_exited", log=Path("/a b"), error=os.fsdecode(b"caf\xe9\n\xe2\x80\xa8"), ratio=float("nan"))
        )
    (line,) = path.read_bytes().splitlines()
    assert json.loads(line)["log"] == "/a b"


def test_a_write_that_fails_is_kept_for_the_next_flush(path: Path) -> None:
    journal = Journal(RunDir(path.parent))
    journal.append(RawRecord("a"))
    fd = journal._events._fd
    closed = os.open(path, os.O_RDONLY)  # a descriptor that cannot be written stands for a full disk
    os.dup2(closed, fd)
    assert not journal.flush()
    assert "cannot be written (Bad file descriptor)" in journal.complaint
    os.close(closed)
    time.sleep(RETRY_S)
    assert journal.flush()
    assert [r["event"] for r in JournalReader(path).iter_new()] == ["a"]


@pytest.mark.parametrize("seed", range(40))
def test_after_any_errors_each_line_is_there_once_and_readers_saw_no_other(
    path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    now, dice = [0.0], random.Random(seed)
    disk, journal, reader = (
        Disk(dice, monkeypatch),
        Journal(RunDir(path.parent), clock=lambda: now[0]),
        JournalReader(path),
    )
    written, read = [], []
    for _ in range(300):
        if dice.random() < 0.05:
            disk.fails = dice.choice([0.0, 0.2, 1.0])
        written.append(journal.append(RawRecord(dice.choice(["progress", "other"]), x="y" * dice.randrange(2000))))
        journal.flush(sync=dice.random() < 0.5)
        now[0] += dice.random()
        read += list(reader.iter_new())
    disk.fails = 0.0
    now[0] += RETRY_S
    assert journal.flush()
    assert list(JournalReader(path).iter_new()) == written
    assert [*read, *reader.iter_new()] == written
    now[0] += CALM_S
    journal.flush()
    assert journal.complaint == ""


def of_progress(step: int, group: int = 0, **fields: Any) -> Progress:
    known = {"attempt": 0, "quorum_id": 1, "participants": 2, "committed": 1, "aborted": 0, "gap_s": 0.2}
    return Progress(group=group, step=step, **(known | fields))  # type: ignore[arg-type]


def test_progress_never_overtakes_the_event_that_it_follows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, run, dice = [0.0], RunDir(path.parent), random.Random(3)
    disk, journal = Disk(dice, monkeypatch), Journal(run, clock=lambda: now[0])
    events, progress = list[dict[str, object]](), list[dict[str, object]]()
    for number in range(300):
        disk.fails = dice.choice([0.0, 0.5, 1.0])
        if dice.random() < 0.7:
            progress.append(journal.append(of_progress(number)))
        else:
            events.append(journal.append(RawRecord("other")))
        journal.flush(sync=dice.random() < 0.5)
        now[0] += dice.random()
        disk.fails, failed = 0.0, journal.error is not None  # then events that were there may be cut off for a moment
        there = list(JournalReader(run.progress).iter_new())
        assert failed or [line["seq"] for line in there[-1:]] <= [len(list(JournalReader(run.events).iter_new()))]
    disk.fails = 0.0
    now[0] += RETRY_S
    assert journal.flush()
    assert (list(JournalReader(run.events).iter_new()), list(JournalReader(run.progress).iter_new())) == (
        events,
        progress,
    )


def make_link(there: Path) -> None:
    there.symlink_to("precious")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, make_link])
def test_where_progress_cannot_be_written_the_events_are_and_it_is_told(
    make: Callable[[Path], None], path: Path
) -> None:
    now, run = [0.0], RunDir(path.parent)
    (path.parent / "precious").write_text("")
    make(run.progress)
    journal = Journal(run, clock=lambda: now[0])
    line = journal.append(RawRecord("a"))
    journal.append(of_progress(1))
    assert journal.flush()
    assert str(run.progress) in journal.complaint
    assert list(JournalReader(path).iter_new()) == [line]
    (run.progress.rmdir if make is os.mkdir else run.progress.unlink)()
    now[0] += RETRY_S
    assert journal.flush()
    assert journal.mended == f"{run.progress} can be written again"
    assert [line["step"] for line in JournalReader(run.progress).iter_new()] == [1]
    assert (path.parent / "precious").read_text() == ""
    assert run.progress.stat().st_mode & 0o777 == 0o600
    journal.close()


def test_events_that_a_crash_has_taken_are_told_and_their_numbers_not_used_again(path: Path) -> None:
    run = RunDir(path.parent)
    with closing(Journal(run)) as journal:
        for _ in range(3):
            journal.append(RawRecord("a"))
        journal.append(of_progress(1))
        assert journal.damage == ""
    os.truncate(path, len(path.read_bytes()) // 2)
    with closing(Journal(run)) as journal:
        assert journal.damage == f"lines 2 to 3 of {path} are lost"
        assert journal.append(RawRecord("b"))["seq"] == 4


def test_another_controllers_lines_are_not_cut_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    disk, journal = (
        Disk(random.Random(1), monkeypatch),
        Journal(RunDir(path.parent), lambda: now[0], leads=lambda: False),
    )
    journal.append(RawRecord("old"))
    disk.fails = 1.0
    journal.flush()
    disk.fails = 0.0
    with closing(Journal(RunDir(path.parent))) as other:
        other.append(RawRecord("new"))
    now[0] += RETRY_S
    assert not journal.flush()
    assert [line["event"] for line in JournalReader(path).iter_new()] == ["new"]


def test_neither_reader_nor_writer_waits_for_a_pipe_or_follows_a_link(path: Path) -> None:
    (path.parent / "precious").write_text("")
    for make in (os.mkfifo, lambda there: os.symlink("precious", there)):
        make(path)
        with pytest.raises(EnvironmentProblem, match=r"the journal .* cannot be read"):
            list(JournalReader(path).iter_new())
        assert last_event(path) is None
        with pytest.raises(OSError, match=r"no file|symbolic links"):
            Journal(RunDir(path.parent))
        path.unlink()


def test_a_reader_waits_for_a_journal_that_does_not_exist_yet(path: Path) -> None:
    reader = JournalReader(path)
    assert list(reader.iter_new()) == []
    with closing(Journal(RunDir(path.parent))) as journal:
        journal.append(RawRecord("a"))
    assert [r["event"] for r in reader.iter_new()] == ["a"]
    assert list(reader.iter_new()) == []


def test_a_reader_shows_a_torn_line_once_it_is_whole(path: Path) -> None:
    path.write_text('{"seq":1,"event":"a"}\n{"seq":2,"eve')
    reader = JournalReader(path)
    assert [r["seq"] for r in reader.iter_new()] == [1]
    assert list(reader.iter_new()) == []
    with path.open("a") as file:
        file.write('nt":"b"}\n')
    assert [r["seq"] for r in reader.iter_new()] == [2]


def test_a_reader_goes_on_where_a_torn_line_was_cut_off(path: Path) -> None:
    path.write_text('{"seq":1,"event":"a"}\n{"seq":2,"event":"never finished')
    reader = JournalReader(path)
    list(reader.iter_new())
    with closing(Journal(RunDir(path.parent))) as journal:
        journal.append(RawRecord("b"))
    assert [(r["seq"], r["event"]) for r in reader.iter_new()] == [(2, "b")]


def test_a_reader_passes_over_lines_that_are_no_records(path: Path) -> None:
    path.write_bytes(b'{"seq":1}\n\0\0\0\n\nnonsense\n[1]\n"text"\n\xff\xfe\n{"seq":2}\n')
    assert [r["seq"] for r in JournalReader(path).iter_new()] == [1, 2]


def test_a_reader_takes_lines_longer_than_its_block(path: Path) -> None:
    with closing(Journal(RunDir(path.parent))) as journal:
        for n in range(3):
            journal.append(RawRecord("a", n=n, text="x" * 1_500_000))
    assert [r["n"] for r in JournalReader(path).iter_new()] == [0, 1, 2]


def test_a_reader_that_stops_midway_goes_on_there(path: Path) -> None:
    with closing(Journal(RunDir(path.parent))) as journal:
        for n in range(5):
            journal.append(RawRecord("a", n=n))
    reader = JournalReader(path)
    for record in reader.iter_new():
        if record["n"] == 1:
            break
    assert [r["n"] for r in reader.iter_new()] == [2, 3, 4]


def test_the_last_event_is_known_without_reading_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert last_event(path) is None
    with closing(Journal(RunDir(path.parent))) as journal:
        for step in range(1000):
            journal.append(RawRecord("progress", step=step))
        journal.append(RawRecord("run_finished", outcome="succeeded"))
    assert last_event(path) == "run_finished"
    with path.open("a") as file:
        file.write('{"event":"prog')
    assert last_event(path) is None


@pytest.mark.parametrize("length", [10, 4000, 4096, 4200, 20_000, 65_536, 900_000])
@pytest.mark.parametrize("before", [b"", b"\n", b'{"seq":1}\n', b'{"seq":1,"x":"' + b"y" * 5000 + b'"}\n'])
def test_a_last_line_of_any_length_is_read(path: Path, length: int, before: bytes) -> None:
    nodes = ", ".join(f"node{n:04}" for n in range(length // 10))
    path.write_bytes(before + json.dumps({"event": "run_finished", "reason": nodes}).encode() + b"\n")
    assert last_event(path) == "run_finished"


def test_of_a_last_line_that_is_no_record_only_a_megabyte_is_read(path: Path) -> None:
    path.write_text(json.dumps({"event": "run_finished", "reason": "x" * 3_000_000}) + "\n")
    assert last_event(path) is None
