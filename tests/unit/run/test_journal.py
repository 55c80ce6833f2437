"""The journal: lines survive a killed writer, and readers never see half of one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from raw_record import RawRecord

from ftslurm.errors import EnvironmentProblem
from ftslurm.run.journal import Journal, JournalReader, last_event


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_what_is_appended_and_flushed_is_read(path: Path) -> None:
    journal = Journal(path, clock=lambda: 12.5)
    record = journal.append(RawRecord("step_ready", unit="group-0001", attempt=0, seconds=1.5))
    journal.flush(sync=True)
    assert record == {"seq": 1, "time": 12.5, "event": "step_ready", "unit": "group-0001", "attempt": 0, "seconds": 1.5}
    assert JournalReader(path).read_new() == [record]


def test_nothing_is_written_before_the_flush_and_then_everything_in_order(path: Path) -> None:
    journal = Journal(path)
    journal.append(RawRecord("a"))
    journal.append(RawRecord("b"))
    assert path.read_bytes() == b""
    journal.flush(sync=False)
    assert [(r["seq"], r["event"]) for r in JournalReader(path).read_new()] == [(1, "a"), (2, "b")]


def test_only_the_owner_may_read_it(path: Path) -> None:
    Journal(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_second_writer_continues_the_numbers(path: Path) -> None:
    for event in ("a", "b"):
        with Journal(path) as journal:
            journal.append(RawRecord(event))
    assert [(r["seq"], r["event"]) for r in JournalReader(path).read_new()] == [(1, "a"), (2, "b")]


@pytest.mark.parametrize(
    "torn", ['{"seq":2,"ti', '{"seq":2,"time":1,"event":"whole but for its newline"}', "x" * 200_000]
)
def test_a_second_writer_cuts_off_a_torn_last_line(path: Path, torn: str) -> None:
    with Journal(path) as journal:
        journal.append(RawRecord("a"))
    with path.open("a") as file:
        file.write(torn)
    with Journal(path) as journal:
        journal.append(RawRecord("b"))
    assert [(r["seq"], r["event"]) for r in JournalReader(path).read_new()] == [(1, "a"), (2, "b")]


def test_a_journal_that_is_nothing_but_a_torn_line_begins_anew(path: Path) -> None:
    path.write_text('{"seq":1,')
    with Journal(path) as journal:
        assert journal.append(RawRecord("a"))["seq"] == 1
    assert len(JournalReader(path).read_new()) == 1


def test_numbers_continue_after_very_long_lines_and_rubbish(path: Path) -> None:
    with Journal(path) as journal:
        journal.append(RawRecord("a", ranks="x" * 300_000))
    with path.open("ab") as file:
        file.write(b"\0" * 100_000 + b"\n[]\n")
    with Journal(path) as journal:
        assert journal.append(RawRecord("b"))["seq"] == 2
    assert [r["event"] for r in JournalReader(path).read_new()] == ["a", "b"]


def test_fields_that_are_no_plain_text_are_still_one_line(path: Path) -> None:
    with Journal(path) as journal:
        journal.append(
            RawRecord("step_exited", log=Path("/a b"), error=os.fsdecode(b"caf\xe9\n\xe2\x80\xa8"), ratio=float("nan"))
        )
    (line,) = path.read_bytes().splitlines()
    assert json.loads(line)["log"] == "/a b"


def test_a_write_that_fails_is_kept_for_the_next_flush(path: Path) -> None:
    journal = Journal(path)
    journal.append(RawRecord("a"))
    fd, closed = journal._fd, os.open(path, os.O_RDONLY)  # a descriptor that cannot be written stands for a full disk
    journal._fd = closed
    with pytest.raises(OSError, match="Bad file"):
        journal.flush(sync=True)
    journal._fd = fd
    journal.flush(sync=True)
    os.close(closed)
    assert [r["event"] for r in JournalReader(path).read_new()] == ["a"]


def test_neither_reader_nor_writer_waits_for_a_pipe_or_follows_a_link(path: Path) -> None:
    (path.parent / "precious").write_text("")
    for make in (os.mkfifo, lambda there: os.symlink("precious", there)):
        make(path)
        with pytest.raises(EnvironmentProblem, match=r"the journal .* cannot be read"):
            JournalReader(path).read_new()
        assert last_event(path) is None
        with pytest.raises(OSError, match=r"no file|symbolic links"):
            Journal(path)
        path.unlink()


def test_a_reader_waits_for_a_journal_that_does_not_exist_yet(path: Path) -> None:
    reader = JournalReader(path)
    assert reader.read_new() == []
    with Journal(path) as journal:
        journal.append(RawRecord("a"))
    assert [r["event"] for r in reader.read_new()] == ["a"]
    assert reader.read_new() == []


def test_a_reader_shows_a_torn_line_once_it_is_whole(path: Path) -> None:
    path.write_text('{"seq":1,"event":"a"}\n{"seq":2,"eve')
    reader = JournalReader(path)
    assert [r["seq"] for r in reader.read_new()] == [1]
    assert reader.read_new() == []
    with path.open("a") as file:
        file.write('nt":"b"}\n')
    assert [r["seq"] for r in reader.read_new()] == [2]


def test_a_reader_goes_on_where_a_torn_line_was_cut_off(path: Path) -> None:
    path.write_text('{"seq":1,"event":"a"}\n{"seq":2,"event":"never finished')
    reader = JournalReader(path)
    reader.read_new()
    with Journal(path) as journal:
        journal.append(RawRecord("b"))
    assert [(r["seq"], r["event"]) for r in reader.read_new()] == [(2, "b")]


def test_a_reader_passes_over_lines_that_are_no_records(path: Path) -> None:
    path.write_bytes(b'{"seq":1}\n\0\0\0\n\nnonsense\n[1]\n"text"\n\xff\xfe\n{"seq":2}\n')
    assert [r["seq"] for r in JournalReader(path).read_new()] == [1, 2]


def test_a_reader_takes_lines_longer_than_its_block(path: Path) -> None:
    with Journal(path) as journal:
        for n in range(3):
            journal.append(RawRecord("a", n=n, text="x" * 1_500_000))
    assert [r["n"] for r in JournalReader(path).read_new()] == [0, 1, 2]


def test_a_reader_that_stops_midway_goes_on_there(path: Path) -> None:
    with Journal(path) as journal:
        for n in range(5):
            journal.append(RawRecord("a", n=n))
    reader = JournalReader(path)
    for record in reader.iter_new():
        if record["n"] == 1:
            break
    assert [r["n"] for r in reader.read_new()] == [2, 3, 4]


def test_the_last_event_is_known_without_reading_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert last_event(path) is None
    with Journal(path) as journal:
        for step in range(1000):
            journal.append(RawRecord("progress", step=step))
        journal.append(RawRecord("run_finished", outcome="succeeded"))
    assert last_event(path) == "run_finished"
    with path.open("a") as file:
        file.write('{"event":"prog')
    assert last_event(path) is None
