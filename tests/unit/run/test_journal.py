"""The journal: lines survive a killed writer, and readers never see half of one."""

from __future__ import annotations

import errno
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from raw_record import RawRecord

from ftslurm.errors import EnvironmentProblem
from ftslurm.run.journal import CALM_S, RETRY_S, Journal, JournalReader, last_event


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
    os.dup2(closed, fd)
    assert not journal.flush()
    assert "cannot be written (Bad file descriptor)" in journal.complaint
    os.close(closed)
    time.sleep(RETRY_S)
    assert journal.flush()
    assert [r["event"] for r in JournalReader(path).read_new()] == ["a"]


class Disk:
    """Stands in for the calls that write a journal: each may fail with one of the errors of a file system, or halfway.

    A call that has failed halfway has written a part of its data.
    """

    def __init__(self, dice: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dice, self.fails, real = dice, 0.0, SimpleNamespace(**{n: getattr(os, n) for n in CALLS})

        def stand_in(name: str) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                number = dice.choice(ERRORS)
                if dice.random() < self.fails:
                    if name == "write" and dice.random() < 0.5:
                        real.write(args[0], bytes(args[1])[: dice.randrange(len(args[1]))])
                    raise OSError(number, os.strerror(number))
                if name == "write" and dice.random() < 0.2:  # fewer bytes than there are is no error
                    return real.write(args[0], bytes(args[1])[: dice.randrange(1, len(args[1]) + 1)])
                return getattr(real, name)(*args, **kwargs)

            return call

        for name in CALLS:
            monkeypatch.setattr(os, name, stand_in(name))


CALLS = ("write", "fsync", "ftruncate", "dup2")
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)


@pytest.mark.parametrize("seed", range(40))
def test_after_any_errors_each_line_is_there_once_and_readers_saw_no_other(
    path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    now, dice = [0.0], random.Random(seed)
    disk, journal, reader = Disk(dice, monkeypatch), Journal(path, clock=lambda: now[0]), JournalReader(path)
    written, read = [], []
    for _ in range(300):
        if dice.random() < 0.05:
            disk.fails = dice.choice([0.0, 0.2, 1.0])
        written.append(journal.append(RawRecord(dice.choice(["progress", "other"]), x="y" * dice.randrange(2000))))
        journal.flush(sync=dice.random() < 0.5)
        now[0] += dice.random()
        read += reader.read_new()
    disk.fails = 0.0
    now[0] += RETRY_S
    assert journal.flush()
    assert JournalReader(path).read_new() == written
    assert [*read, *reader.read_new()] == written
    now[0] += CALM_S
    journal.flush()
    assert journal.complaint == ""


def test_of_lines_that_wait_the_oldest_progress_goes_first_and_is_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftslurm.run.journal.MOST_WAITING", 10_000)
    now = [0.0]
    disk = Disk(random.Random(1), monkeypatch)
    journal = Journal(path, clock=lambda: now[0])
    disk.fails = 1.0
    for number in range(300):
        journal.append(RawRecord("progress" if number % 10 else "other", number=number, x="y" * 100))
        journal.flush()
        now[0] += RETRY_S
    disk.fails = 0.0
    assert journal.flush()
    kept = [line["number"] for line in JournalReader(path).read_new()]
    assert journal.lost == 300 - len(kept)
    assert f"{journal.lost} of its lines are lost" in journal.loss
    assert {number for number in range(300) if number % 10 == 0} <= set(kept)
    progress = [number for number in kept if number % 10]
    assert progress == [number for number in range(300) if number % 10][-len(progress) :]
    assert path.stat().st_size < 11_000


def test_another_controllers_lines_are_not_cut_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    disk, journal = Disk(random.Random(1), monkeypatch), Journal(path, lambda: now[0], leads=lambda: False)
    journal.append(RawRecord("old"))
    disk.fails = 1.0
    journal.flush()
    disk.fails = 0.0
    with Journal(path) as other:
        other.append(RawRecord("new"))
    now[0] += RETRY_S
    assert not journal.flush()
    assert [line["event"] for line in JournalReader(path).read_new()] == ["new"]


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
