"""Which lines of the logs are printed, and what stands before each."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from io import BytesIO
from pathlib import Path

import example_journal as ex
import pytest
from fuzz import tried
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.cli.option_types import since
from ftslurm.monitor.log_files import LogFile, LogReader, Wanted, pieces
from ftslurm.monitor.log_page import View, clock
from ftslurm.monitor.logs import show
from ftslurm.run.directory import RunDir

NOISE = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n"
T0 = 1_795_425_000.0


def wrote(run: RunDir, group: int, *marks: tuple[float, str]) -> Path:
    """Write a log with marks: (seconds after T0, text written until then)."""
    path = run.rank_log(f"group-{group:04d}", 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [text for _, text in marks]
    path.write_text("".join(texts))
    sizes = [len("".join(texts[: n + 1]).encode()) for n in range(len(texts))]
    times = "".join(f"{T0 + when} {size}\n" for (when, _), size in zip(marks, sizes, strict=True))
    path.with_suffix(".times").write_text(times)
    return path


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = ex.new_run(tmp_path)
    wrote(run, 0, (1, "a1\n" + NOISE), (3, "a3\nA3\n"), (5, "a5\n"))
    wrote(run, 1, (2, "b2\n"), (4, "b4\n" + NOISE + "B4\n"))
    return run


def printed(run: RunDir, view: View, wanted: Wanted = Wanted(), **more: bool) -> list[str]:  # noqa: B008
    out = BytesIO()
    show(run, wanted, out, view, until=lambda: True, poll_s=0, **more)  # type: ignore[arg-type]
    return [line.replace(".a0.r0", "") for line in out.getvalue().decode().splitlines()]


GREP = re.compile(b"[Aa]")
VIEWS = [
    (View(), ["[g0] a1", "[g1] b2", "[g0] a3", "[g0] A3", "[g1] b4", "[g1] B4", "[g0] a5"]),
    (View(since=T0 + 3), ["[g0] a3", "[g0] A3", "[g1] b4", "[g1] B4", "[g0] a5"]),
    (View(since=T0 + 9), []),
    (View(tail=2), ["[g1] B4", "[g0] a5"]),
    (View(tail=3), ["[g1] b4", "[g1] B4", "[g0] a5"]),
    (View(tail=0), []),
    (View(tail=99, since=T0 + 4), ["[g1] b4", "[g1] B4", "[g0] a5"]),
    (View(grep=GREP), ["[g0] a1", "[g0] a3", "[g0] A3", "[g0] a5"]),
    (View(grep=GREP, tail=2), ["[g0] A3", "[g0] a5"]),
]


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize(("view", "lines"), VIEWS)
def test_only_the_lines_that_were_asked_for_are_printed(
    run: RunDir, view: View, lines: list[str], follow: bool
) -> None:
    assert printed(run, view, follow=follow) == lines


def test_known_noise_is_counted_and_raw_prints_it(run: RunDir) -> None:
    assert show(run, Wanted(), BytesIO()) == 2
    assert sum("[Gloo]" in line for line in printed(run, View(raw=True))) == 2
    assert sum("[Gloo]" in line for line in printed(run, View(raw=True, tail=3))) == 1


def test_with_times_each_line_has_the_time_at_which_it_was_there(run: RunDir) -> None:
    one, two = clock(T0 + 1), clock(T0 + 2)
    assert re.fullmatch(r"\d\d-\d\d \d\d:\d\d:\d\d", one)
    assert printed(run, View(times=True))[:2] == [f"[{one} g0] a1", f"[{two} g1] b2"]
    assert printed(run, View(times=True), Wanted(group=0))[0] == f"[{one}] a1"


def test_following_one_file_searches_whole_lines(run: RunDir) -> None:
    path = run.rank_log("group-0000", 0, 0)

    def grow() -> Iterator[bool]:
        for text in ("loss", " 0.", "1\nlr 1\n", "lo"):
            with path.open("a") as log:
                log.write(text)
            yield False
        yield True

    rounds, out = grow(), BytesIO()
    one, view = Wanted(group=0, rank=0, attempt=0), View(grep=re.compile(b"lo"), tail=0)
    show(run, one, out, view, follow=True, until=lambda: next(rounds), poll_s=0)
    assert out.getvalue() == b"[g0.a0.r0] loss 0.1\n[g0.a0.r0] lo\n"


texts = st.lists(st.tuples(st.integers(0, 9), st.text("ab\n\r", max_size=6)), max_size=8)


@given(marks=texts, rest=st.text("ab\n\r", max_size=5), start=st.integers(0, 9))
@tried(200)
def test_the_lines_of_all_pieces_are_the_whole_log(
    tmp_path_factory: pytest.TempPathFactory, marks: list[tuple[int, str]], rest: str, start: int
) -> None:
    path = wrote(RunDir(tmp_path_factory.mktemp("run")), 0, *((float(when), text) for when, text in marks))
    with path.open("a") as log:
        log.write(rest)
    log_file, size = LogFile(path, "x"), path.stat().st_size
    with closing(LogReader()) as files:
        whole = [*pieces(log_file, files, size)]
        places = [place for piece in whole for place in piece.lines(files)]
        assert [*pieces(log_file, files, size, T0 + start)] == [one for one in whole if one.time >= T0 + start]
    assert [begin for begin, _ in places] + [size] == [0] + [end for _, end in places]
    assert all(path.read_bytes()[end - 1 : end] in (b"\n", b"\r") for _, end in places[:-1])


def test_the_last_lines_of_a_large_log_are_found_without_reading_it(run: RunDir) -> None:
    path = run.rank_log("group-0000", 0, 0)
    line = b"x" * 99 + b"\n"
    with path.open("wb") as log:
        log.truncate(1 << 30)  # zeros without a newline take no space
        log.seek(0, 2)
        log.write(b"\n" + line * 10_000)
    size = path.stat().st_size
    path.with_suffix(".times").write_text("".join(f"{T0 + n} {(1 << 30) + 100 * n}\n" for n in range(10_000)))
    began, out = time.monotonic(), BytesIO()
    show(run, Wanted(group=0), out, View(tail=20))
    assert out.getvalue() == line * 20
    assert path.stat().st_size == size
    assert time.monotonic() - began < 10


def test_a_time_is_so_long_ago_or_a_time_of_the_day_or_of_a_calendar() -> None:
    now = datetime.now()
    assert abs(since("10m") - (time.time() - 600)) < 60
    assert abs(since("2d") - (time.time() - 172_800)) < 60
    assert since("2026-01-02T03:04") == datetime(2026, 1, 2, 3, 4).timestamp()
    assert since("2026-01-02T03:04+00:00") == 1_767_323_040
    hour = (now - timedelta(hours=1)).strftime("%H:%M:%S")
    assert 3540 < time.time() - since(hour) < 3660
    coming = (now + timedelta(minutes=5)).strftime("%H:%M")
    assert since(coming) < time.time()


@pytest.mark.parametrize("text", ["", "10", "x", "25:00", "10 m", "99999999999999d", "2026-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"no time.*write 7d, 10m"):
        since(text)
