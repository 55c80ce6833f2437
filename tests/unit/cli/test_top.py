"""`ftslurm top`, driven by textual's pilot: what it shows, its keys, and how fast it draws."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import example_journal as ex
import pytest
from screen import Screen
from textual.pilot import Pilot
from textual.widgets import RichLog

from ftslurm.cli import main as cli
from ftslurm.cli import top_screens
from ftslurm.cli.top_screens import Grid, Groups, Runs, Top
from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.monitor.status import RunStatus
from ftslurm.run.directory import RunDir

EVIL = "\x1b]0;owned\x07[red]\u202e"


def a_run(folder: Path, groups: int = 3, name: str = "ddp-0930-k3") -> RunDir:
    """Return a run without a controller: group 1 is given up, the others train; each has a log."""
    began = time.time() - 60 - ex.START
    lines = [ex.started(groups) | {"run_id": name}, *ex.lighthouse(0.2)]
    lines += [ex.launched(1, g) for g in range(groups)]
    lines += [ex.joined(3, g, 1) for g in range(groups)]
    lines += [ex.exited(7, 1), ex.event(7, "group_given_up", group=1, reason=f"6 failures {EVIL}")]
    lines += [ex.progress(59, g, 60) for g in range(groups) if g != 1]
    run = ex.write(RunDir(folder / name), [{**line, "time": line["time"] + began} for line in lines])
    config = Config()
    config.job.script, config.run.name, config.cluster.kind = "train.py", "ddp", "local"
    run.config.write_text(compose.dump(config))
    for group in range(min(groups, 3)):
        log = run.rank_log(f"group-{group:04d}", 0, 0)
        log.parent.mkdir(parents=True)
        log.write_text("".join(f"line {n} of {group}\n" for n in range(300)) + f"the end of {group} {EVIL}\n")
    return run


def drive(top: Top, steps: Callable[[Pilot[Any]], Awaitable[None]]) -> None:
    """Run the screens without a terminal, 80 columns wide, with these steps of a user."""

    async def driven() -> None:
        async with top.run_test(size=(80, 24), notifications=True) as pilot:
            await steps(pilot)

    asyncio.run(driven())


async def until(pilot: Pilot[Any], true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, f"{what}: {screen(pilot)}"
        await pilot.pause(0.05)


def screen(pilot: Pilot[Any]) -> str:
    """Return the text on the screen."""
    lines = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(piece.text for piece in strip) for strip in lines)


def keys(pilot: Pilot[Any]) -> list[str]:
    """Return the keys of the rows, in the order on the screen."""
    return [str(row.key.value) for row in pilot.app.screen.query_one(Grid).ordered_rows]


async def shows(pilot: Pilot[Any], words: str) -> None:
    await until(pilot, lambda: words in screen(pilot), words)


def test_runs_are_sorted_opened_and_left_by_keys(tmp_path: Path) -> None:
    first, second = a_run(tmp_path), a_run(tmp_path, name="another-1")

    async def steps(pilot: Pilot[Any]) -> None:
        await shows(pilot, "another-1")
        # Where the folder's name is long, the title wraps, for which the screen is laid out once more.
        await until(pilot, lambda: f"{tmp_path}:2silent" in "".join(screen(pilot).split()), "the title")
        await pilot.press("s", "s")  # by name
        await until(pilot, lambda: keys(pilot) == [str(second.root), str(first.root)], "sorted by name")
        pilot.app.screen.query_one(Grid).move_cursor(row=1)
        await pilot.press("enter")
        await shows(pilot, "Lighthouse RUNNING on n1")
        assert screen(pilot).startswith("ddp-0930-k3")
        await pilot.press("escape")
        await shows(pilot, "another-1")
        assert pilot.app.screen.query_one(Grid).marked == str(first.root)
        await pilot.press("q")

    drive(Top(tmp_path, None), steps)


def test_the_groups_of_a_run_are_sorted_and_the_marked_one_keeps_its_mark(tmp_path: Path) -> None:
    async def steps(pilot: Pilot[Any]) -> None:
        await shows(pilot, "the end of 0")
        assert keys(pilot) == ["0", "1", "2"]
        await pilot.press("down", "down")
        await shows(pilot, "the end of 2")
        await pilot.press("s")
        await until(pilot, lambda: keys(pilot) == ["1", "0", "2"], "the failed group first")
        assert pilot.app.screen.query_one(Grid).marked == "2"
        await pilot.press("up", "up")
        await shows(pilot, "the end of 1")
        await until(pilot, lambda: "given up" in screen(pilot) or "6 failures" in screen(pilot), "the whole reason")
        await pilot.press("l")
        await until(pilot, lambda: "the end of 1" not in screen(pilot), "no log")
        await pilot.press("escape")

    drive(Top(tmp_path, a_run(tmp_path)), steps)


def test_the_log_grows_and_stands_still_while_the_user_reads_further_up(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    log = run.rank_log("group-0000", 0, 0)

    async def steps(pilot: Pilot[Any]) -> None:
        await shows(pilot, "the end of 0")
        with log.open("a") as out:
            out.write("one more line\n")
        await shows(pilot, "one more line")
        pane = pilot.app.screen.query_one(RichLog)
        pane.scroll_to(y=100, animate=False, immediate=True)
        await shows(pilot, "line 100 of 0")
        with log.open("a") as out:
            out.write("unseen\n")
        await pilot.pause(1)
        assert "line 100 of 0" in screen(pilot)
        pane.scroll_end(animate=False, immediate=True)
        await shows(pilot, "unseen")

    drive(Top(tmp_path, run), steps)


def test_nothing_of_a_run_steers_the_terminal_or_is_taken_for_markup(tmp_path: Path) -> None:
    run = a_run(tmp_path, name=f"ddp-{EVIL}")

    async def steps(pilot: Pilot[Any]) -> None:
        await shows(pilot, "ddp-\\x1b]0;owned\\x07[red]\\u202e")
        assert "\x1b" not in screen(pilot)
        await pilot.press("enter")
        await shows(pilot, "the end of 0 \\x1b]0;owned\\x07[red]\\u202e")
        await pilot.press("down")
        await shows(pilot, "6 failures \\x1b]0;owned\\x07[red]\\u202e")
        assert not set("\x1b\x07\u202e") & set(screen(pilot))
        await pilot.press("q")

    assert run.root.is_dir()
    drive(Top(tmp_path, None), steps)


def test_a_run_whose_settings_cannot_be_read_is_told_and_the_list_stays(tmp_path: Path) -> None:
    a_run(tmp_path).config.write_text("no: settings: of [ours\n")

    async def steps(pilot: Pilot[Any]) -> None:
        await shows(pilot, "ddp-0930-k3")
        await pilot.press("enter")
        told = pilot.app._notifications  # on the screen for some seconds only, and wrapped
        await until(pilot, lambda: any("cannot be read as a" in one.message for one in told), "what is wrong")
        assert isinstance(pilot.app.screen, Runs)
        await pilot.press("q")

    drive(Top(tmp_path, None), steps)


def test_a_thousand_groups_whose_steps_all_change_are_drawn_four_times_a_second(tmp_path: Path) -> None:
    took: list[float] = []

    async def steps(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: len(keys(pilot)) == 1000, "all groups")
        groups = pilot.app.screen
        assert isinstance(groups, Groups)
        groups.on_unmount()  # ends its thread
        await pilot.pause(0.5)
        for n in range(8):
            assert groups.seen is not None
            status = groups.seen.status
            moved = tuple(replace(g, step=(g.step or 0) + 1, steps_per_s=1 + n / 7) for g in status.groups)
            groups.seen = groups.seen._replace(status=replace(status, groups=moved))
            began = time.process_time()
            groups.draw()
            await pilot.pause()
            took.append(time.process_time() - began)
        await pilot.press("q")

    drive(Top(tmp_path, a_run(tmp_path, groups=1000)), steps)
    assert median(took) < 0.25


def test_a_status_is_copied_only_if_there_is_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[RunStatus] = []

    def copy(status: RunStatus) -> RunStatus:
        copied.append(status)
        return deepcopy(status)

    monkeypatch.setattr(top_screens, "deepcopy", copy)
    monkeypatch.setattr(top_screens.table, "NOTE_S", 3600.0)
    run = a_run(tmp_path)
    groups = Groups(run)
    seen = [groups.look() for _ in range(3)]
    assert len(copied) == 1
    ex.write(run, [ex.event(0, "warning", text="new") | {"time": time.time()}])
    seen.append(groups.look())
    assert len(copied) == 2
    assert [one.status.warnings for one in seen] == [[], [], [], ["new"]]


@pytest.mark.parametrize(("words", "said"), [([], "needs a terminal"), (["--root", "nowhere"], "no folder 'nowhere'")])
def test_without_a_terminal_or_a_folder_it_says_so(words: list[str], said: str) -> None:
    done = subprocess.run([sys.executable, "-m", "ftslurm", "top", *words], capture_output=True, text=True, input="")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_textual_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("ftslurm.cli.top_verb.find_spec", lambda _: None)
    assert cli.main(["top"]) == 2
    assert capsys.readouterr().err == (
        "ftslurm: top needs textual: pip install 'ftslurm[top]'; without it there is status -w\n"
    )


def test_in_a_real_terminal_it_draws_leaves_by_its_key_and_restores_the_terminal(tmp_path: Path) -> None:
    a_run(tmp_path)
    terminal = Screen(["top", "--root", str(tmp_path)], columns=80)
    try:
        terminal.shows("ddp-0930-k3")
        terminal.press("\r")
        terminal.shows("Lighthouse RUNNING")
        terminal.press("q")
        terminal.until(lambda: terminal.process.poll() is not None, "the end")
        assert terminal.process.returncode == 0
        assert terminal.restored()
        assert not terminal.screen.cursor.hidden
    finally:
        terminal.close()
