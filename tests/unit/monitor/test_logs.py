"""Logs are printed by time, in whole lines, without reading them into memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from threading import Timer

import example_journal as ex
import pytest

from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.core.state.unit_names import group_unit
from ftslurm.errors import RunNotFound
from ftslurm.guard.rank_log import RankLog
from ftslurm.monitor.log_files import Wanted, check, select
from ftslurm.monitor.log_page import View
from ftslurm.monitor.logs import show
from ftslurm.run.directory import RunDir

Mark = tuple[float, str]  # (time, text written until then)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return ex.new_run(tmp_path)


def wrote(run: RunDir, group: int, *marks: Mark, rank: int = 0, attempt: int = 0, rest: str = "") -> Path:
    """Write a log as a worker's watcher does; a mark is (time, text written until then)."""
    path = run.rank_log(group_unit(group), attempt, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    size, times = 0, ""
    with path.open("w") as log:
        for when, text in marks:
            size += len(text)
            times += f"{when} {size}\n"
            log.write(text)
        log.write(rest)
    if marks:
        path.with_suffix(".times").write_text(times)
    return path


def printed(run: RunDir) -> list[str]:
    out = BytesIO()
    show(run, Wanted(), out)
    return out.getvalue().decode().splitlines()


def test_lines_of_several_groups_come_in_time_order(run: RunDir) -> None:
    wrote(run, 0, (1, "a1\n"), (3, "a3\nA3\n"), (5, "a5\n"))
    wrote(run, 1, (2, "b2\n"), (4, "b4\n"))
    assert printed(run) == [
        *("[g0.a0.r0] a1", "[g1.a0.r0] b2", "[g0.a0.r0] a3", "[g0.a0.r0] A3", "[g1.a0.r0] b4", "[g0.a0.r0] a5"),
    ]


def test_what_follows_the_last_mark_is_as_old_as_the_file(run: RunDir) -> None:
    os.utime(wrote(run, 0, (1, "a1\n"), rest="a10\n"), (10, 10))
    wrote(run, 1, (2, "b2\n"), (11, "b11\n"))
    assert printed(run) == ["[g0.a0.r0] a1", "[g1.a0.r0] b2", "[g0.a0.r0] a10", "[g1.a0.r0] b11"]


def test_a_log_without_marks_is_as_old_as_its_last_change(run: RunDir) -> None:
    os.utime(wrote(run, 0, rest="old\n"), (3, 3))
    wrote(run, 1, (2, "b2\n"), (4, "b4\n"))
    assert printed(run) == ["[g1.a0.r0] b2", "[g0.a0.r0] old", "[g1.a0.r0] b4"]


def test_a_line_that_a_mark_cuts_in_two_is_printed_whole_at_its_end(run: RunDir) -> None:
    wrote(run, 0, (1, "whole\nhal"), (3, "f\n"))
    wrote(run, 1, (2, "b2\n"))
    assert printed(run) == ["[g0.a0.r0] whole", "[g1.a0.r0] b2", "[g0.a0.r0] half"]


def test_a_last_line_without_an_end_gets_one_before_the_next_file(run: RunDir) -> None:
    os.utime(wrote(run, 0, rest="last words"), (1, 1))
    os.utime(wrote(run, 1, rest="b\n"), (2, 2))
    assert printed(run) == ["[g0.a0.r0] last words", "[g1.a0.r0] b"]


def test_one_file_is_printed_without_labels_and_nothing_in_it_steers_a_terminal(run: RunDir) -> None:
    path = wrote(run, 3, (1, "a\n\n"))
    path.write_bytes(b"a\n\n\xff\x00\r50%\rlast \x1b[1mbold\x1b[2J")
    out = BytesIO()
    show(run, Wanted(group=3), out)
    assert out.getvalue() == rb"a||\xff\x00|50%|last \x1b[1mbold\x1b[2J|".replace(b"|", b"\n")
    out = BytesIO()
    show(run, Wanted(group=3), out, View(colours=True))
    assert out.getvalue().endswith(b"last \x1b[1mbold\\x1b[2J\n")


def test_among_others_each_line_that_a_progress_bar_has_been_has_its_label(run: RunDir) -> None:
    wrote(run, 0, (1, "10%\r[g1.a0.r0] forged\r\n"))
    wrote(run, 1, (2, "b\n"))
    assert printed(run) == ["[g0.a0.r0] 10%", "[g0.a0.r0] [g1.a0.r0] forged", "[g1.a0.r0] b"]


def test_rubbish_in_the_marks_does_not_hide_a_line(run: RunDir) -> None:
    path = wrote(run, 0, (1, "a\n"), (2, "b\n"))
    wrote(run, 1, (1.5, "between\n"))
    path.with_suffix(".times").write_bytes(b"1 2\n\0\0\n7 8 9\nnan\n1.7 99999\n0.5 1\n3")
    assert printed(run) == ["[g0.a0.r0] a", "[g1.a0.r0] between", "[g0.a0.r0] b"]


def test_a_clock_set_back_does_not_change_the_order_of_the_lines(run: RunDir) -> None:
    wrote(run, 0, (10, "first\n"), (5, "second\n"), (12, "third\n"))
    wrote(run, 1, (11, "between\n"))
    assert [line.split()[1] for line in printed(run)] == ["first", "second", "between", "third"]


@pytest.mark.parametrize(
    ("wanted", "labels"),
    [
        (Wanted(), ["g0.a0.r0", "g1.a0.r0", "g1.a1.r0", "g2.a0.r0"]),  # rank 0 of each group, every attempt
        (Wanted(group=1), ["g1.a0.r0", "g1.a0.r1", "g1.a1.r0", "g1.a1.r1"]),  # a group: all its ranks
        (Wanted(group=1, attempt=1), ["g1.a1.r0", "g1.a1.r1"]),
        (Wanted(group=1, rank=1), ["g1.a0.r1", "g1.a1.r1"]),
        (Wanted(rank=1), ["g0.a0.r1", "g1.a0.r1", "g1.a1.r1", "g2.a0.r1"]),
        (Wanted(attempt=1), ["g1.a1.r0"]),
        (Wanted(service="lighthouse"), ["lighthouse"]),
        (Wanted(service="controller"), ["controller"]),
    ],
)
def test_the_wanted_files_are_picked(run: RunDir, wanted: Wanted, labels: list[str]) -> None:
    for group, attempt in ((0, 0), (1, 0), (1, 1), (2, 0)):
        for rank in (0, 1):
            wrote(run, group, rank=rank, attempt=attempt)
        run.step_log(group_unit(group), attempt).write_text("srun: ...\n")
    run.lighthouse_log.write_text("")
    run.controller_log.write_text("")
    assert [log.label for log in select(run, wanted)] == labels


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        *(
            (asked, "no such log: there are those of groups 0-2, 5, attempts 0-1, ranks 0-1; logs are in")
            for asked in (Wanted(group=7), Wanted(attempt=2), Wanted(group=1, attempt=1, rank=1), Wanted(rank=3))
        ),
        (Wanted(service="lighthouse"), r"no lighthouse\.log; logs are in"),
    ],
)
def test_a_wrong_number_is_answered_with_those_that_exist(run: RunDir, wanted: Wanted, message: str) -> None:
    for group in (0, 1, 2, 5):
        wrote(run, group)
    wrote(run, 1, rank=1)
    wrote(run, 1, attempt=1)
    with pytest.raises(RunNotFound, match=message):
        show(run, wanted, BytesIO())


def test_a_run_without_any_log_says_where_to_look(run: RunDir) -> None:
    with pytest.raises(RunNotFound, match="no log of a worker; see `logs --controller`"):
        show(run, Wanted(), BytesIO())


class Sink(BytesIO):
    """A stream that counts its input and keeps nothing."""

    size = 0

    def write(self, data: object) -> int:
        assert isinstance(data, bytes)
        self.size += len(data)
        return len(data)


@pytest.mark.parametrize("line", [b"x" * 99 + b"\n", b"x" * 3_000_000], ids=["short lines", "two lines of 3 MB"])
@pytest.mark.parametrize("follow", [False, True])
def test_a_log_of_six_megabytes_is_streamed(run: RunDir, line: bytes, follow: bool) -> None:
    size = 6_000_000
    path = wrote(run, 0)
    path.write_bytes(line * (size // len(line)))
    path.with_suffix(".times").write_text("".join(f"{n} {n * 7000}\n" for n in range(size // 7000)))
    wrote(run, 1, (100, "x\n"))
    sink = Sink()
    tracemalloc.start()
    show(run, Wanted(), sink, follow=follow, until=lambda: True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sink.size >= size
    assert peak < 2_000_000


def test_hundreds_of_logs_need_few_open_files(run: RunDir) -> None:
    for n in range(300):
        wrote(run, n % 20, (n, f"{n}\n"), attempt=n // 20)
    most = 0

    def opened() -> int:  # of these logs: threads of other tests have files, too
        return len([one for one in Path("/proc/self/fd").iterdir() if os.path.realpath(one).startswith(str(run.root))])

    class Counting(BytesIO):
        def write(self, data: object) -> int:
            nonlocal most
            most = max(most, opened())
            assert isinstance(data, bytes)
            return super().write(data)

    out, before = Counting(), opened()
    show(run, Wanted(), out)
    assert [int(line.split()[1]) for line in out.getvalue().splitlines()] == list(range(300))
    assert 0 < most - before < 150
    assert opened() == before


def test_a_reader_that_goes_away_ends_it_quietly(run: RunDir) -> None:
    wrote(run, 0, (1, "x" * 200_000 + "\n"))
    run.config.write_text(compose.dump(Config()))
    piped = f"set -o pipefail; {sys.executable} -m ftslurm logs {run.root} | head -c 1"
    done = subprocess.run(["bash", "-c", piped], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"x", b"")


def stages(*actions: Callable[[], object]) -> Callable[[], bool]:
    """Return an `until` that takes one action per round and returns true after the last."""
    left = list(actions)

    def until() -> bool:
        if left:
            left.pop(0)()
        return not left

    return until


def add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def followed(run: RunDir, wanted: Wanted, *actions: Callable[[], object]) -> list[str]:
    out = BytesIO()
    show(run, wanted, out, follow=True, until=stages(*actions), poll_s=0)
    return out.getvalue().decode().splitlines()


def test_following_prints_what_is_there_in_time_order_and_then_what_arrives(run: RunDir) -> None:
    first, second = wrote(run, 0, (1, "a1\n"), (3, "a3\n")), wrote(run, 1, (2, "b2\n"))
    more = lambda: add(second, "b\n"), lambda: add(first, "a\n"), lambda: None
    assert [line.split()[1] for line in followed(run, Wanted(), *more)] == ["a1", "b2", "a3", "b", "a"]


def test_following_never_cuts_a_line_in_two(run: RunDir) -> None:
    first, second = wrote(run, 0, rest="hal"), wrote(run, 1)
    lines = followed(
        run,
        Wanted(),
        lambda: add(second, "b\n"),
        lambda: add(first, "f"),
        lambda: add(first, "\nand the last"),
        lambda: add(second, "c\n"),
        lambda: None,
    )
    assert lines == ["[g1.a0.r0] b", "[g0.a0.r0] half", "[g1.a0.r0] c", "[g0.a0.r0] and the last"]


@pytest.mark.parametrize("wanted", [Wanted(), Wanted(group=0, rank=0, attempt=0)], ids=["some", "one"])
@pytest.mark.parametrize("before", [True, False], ids=["before its states", "after them"])
def test_following_shows_a_state_of_a_progress_bar_as_soon_as_the_next_is_there(
    run: RunDir, wanted: Wanted, before: bool
) -> None:
    states = [f"\r{n}%" if before else f"{n}%\r" for n in (10, 20, 30)]
    path, out, seen = wrote(run, 0, rest=states[0]), BytesIO(), list[bytes]()
    rounds = (lambda: add(path, states[1]), lambda: seen.append(out.getvalue()), lambda: add(path, states[2] + "\n"))
    show(run, wanted, out, follow=True, until=stages(*rounds, lambda: None), poll_s=0)
    assert [line.split()[-1:] for line in seen[0].splitlines() if line.endswith(b"%")] == [[b"10%"]]
    assert [line.split()[-1] for line in out.getvalue().splitlines() if b"%" in line] == [b"10%", b"20%", b"30%"]


def numbered(first: int, count: int) -> str:
    return "".join(f"line {number:07} {'x' * 80}\n" for number in range(first, first + count))


@pytest.mark.parametrize("wanted", [Wanted(), Wanted(group=0, rank=0, attempt=0)], ids=["some", "one"])
def test_a_log_that_is_cut_is_followed_without_a_line_missing_or_twice(run: RunDir, wanted: Wanted) -> None:
    path = wrote(run, 0, rest=numbered(0, 11_000))
    watched = RankLog(str(path), 1)
    lines = followed(
        run,
        wanted,
        lambda: add(path, numbered(11_000, 1000)),
        watched.update,
        lambda: add(path, numbered(12_000, 9000)),
        watched.update,
        lambda: add(path, numbered(21_000, 10)),
        lambda: None,
    )
    assert [int(line.split("line ")[1][:7]) for line in lines] == list(range(21_010))


def test_who_follows_too_slowly_is_told_what_was_dropped(run: RunDir) -> None:
    path = wrote(run, 0, rest=numbered(0, 4000))

    def flood() -> None:
        add(path, numbered(4000, 20_000))
        RankLog(str(path), 1).update()

    lines = followed(run, Wanted(), flood, lambda: None)
    assert [line for line in lines if re.fullmatch(r"\[g0.a0.r0\] ftslurm: \d+ bytes of this log were .*", line)]
    numbers = [int(line.split("line ")[1][:7]) for line in lines if "line " in line]
    assert numbers[:4000] == list(range(4000))
    assert numbers[4000:] == list(range(numbers[4000], 24_000))


def test_a_log_that_was_cut_is_still_merged_in_time_order(run: RunDir) -> None:
    parts = [(float(when), numbered(1000 * when, 1000)) for when in range(1, 21)]
    path = wrote(run, 0, *parts)
    RankLog(str(path), 1).update()
    wrote(run, 1, (1.5, "early\n"), (19.5, "late\n"))
    lines = printed(run)
    early, late = lines.index("[g1.a0.r0] early"), lines.index("[g1.a0.r0] late")
    said = next(n for n, line in enumerate(lines) if "were dropped here" in line)
    assert "line 0001999" in lines[early - 1]
    assert "line 0019999" in lines[late - 1]
    assert early < said < late


def test_following_shows_new_attempts_and_ends_with_the_run(run: RunDir) -> None:
    wrote(run, 0, (1, "a\n"))

    def relaunch() -> None:
        wrote(run, 0, rest="again\n", attempt=1)

    def finish() -> None:
        add(run.rank_log(group_unit(0), 1, 0), "done\n")

    out = BytesIO()
    show(run, Wanted(group=0), out, follow=True, until=stages(relaunch, finish), poll_s=0)
    assert out.getvalue() == b"[g0.a0.r0] a\n[g0.a1.r0] again\n[g0.a1.r0] done\n"


def test_following_waits_for_a_run_that_has_not_written_anything_yet(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    later = Timer(0.05, lambda: wrote(run, 0, rest="hello\n"))
    later.start()
    out = BytesIO()
    show(run, Wanted(group=0), out, follow=True, until=lambda: not later.is_alive(), poll_s=0.01)
    later.join()
    assert out.getvalue() == b"[g0.a0.r0] hello\n"


@pytest.mark.parametrize("wanted", [Wanted(group=6), Wanted(rank=2)])
def test_nobody_waits_for_a_group_the_run_never_has(wanted: Wanted) -> None:
    config = Config()
    config.groups.count, config.groups.max, config.groups.nodes, config.groups.workers = 3, 6, 2, 1
    check(config, Wanted(group=5, rank=1))  # it may come by `ftslurm scale`
    with pytest.raises(RunNotFound, match="at most 6 groups of 2 workers, numbered from 0"):
        check(config, wanted)
