"""Verbs that change a run take one that was not named only if it is the only one that goes on."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import example_journal as ex
import pytest
from terminal_session import Terminal

from ftslurm.api import start
from ftslurm.cli.main import main
from ftslurm.cli.verbs import NEWEST, ONLY, VERBS
from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.errors import RunNotFound
from ftslurm.run.directory import RunDir, replace_text

READERS = {"status", "logs", "events", "report", "wait", "attach", "stacks", "resume"}  # they take the newest
MORE = {"drain": ["n1"], "undrain": ["n1"], "scale": ["2"], "restart": ["--group", "0"], "inject": ["kill", "--yes"]}
STEERING = [verb.name for verb in VERBS.values() if verb.run == ONLY]
GONE = 2**22 + 1  # no process can have this id


def run_of(root: Path, name: str, process: int = 0, *lines: ex.Line) -> RunDir:
    """Make a run of a local controller: this process (0), or another."""
    run = RunDir(root / name)
    run.create()
    config = Config()
    config.job.script, config.run.name, config.cluster.kind = __file__, "ddp", "local"
    config.groups.count = 3
    run.config.write_text(compose.dump(config))
    replace_text(run.job_id, str(process or os.getpid()))
    run.alive.touch()
    return ex.write(run, [ex.started() | {"host": platform.node(), "pid": process or os.getpid()}, *lines])


def test_each_verb_that_takes_a_run_either_reads_it_or_must_not_guess() -> None:
    assert {verb.name for verb in VERBS.values() if verb.run == NEWEST} == READERS
    assert {verb.name for verb in VERBS.values() if verb.method} <= set(STEERING)


@pytest.mark.parametrize("verb", STEERING)
def test_of_several_none_is_touched_and_all_are_listed(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older, newer = run_of(tmp_path, "older"), run_of(tmp_path, "newer")
    over = run_of(tmp_path, "over", 0, ex.finished(9))
    assert main([verb, *MORE.get(verb, []), "--root", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"ftslurm: 2 runs of yours are going under {tmp_path}: name the one that is meant\n")
    assert f"  {older.root} (" in said
    assert f"  {newer.root} (" in said
    assert str(over.root) not in said
    assert [list(run.inbox.iterdir()) for run in (older, newer, over)] == [[], [], []]


@pytest.mark.parametrize("verb", STEERING)
def test_without_one_that_goes_on_nothing_is_done(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    over, lost = run_of(tmp_path, "over", 0, ex.finished(9)), run_of(tmp_path, "lost", GONE)
    before = [run.events.read_bytes() for run in (over, lost)]
    assert main([verb, *MORE.get(verb, []), "--root", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said == f"ftslurm: no run of yours is going under {tmp_path}\n"
    assert [run.events.read_bytes() for run in (over, lost)] == before
    assert [list(run.inbox.iterdir()) for run in (over, lost)] == [[], []]


def test_the_only_one_that_goes_on_is_taken_though_others_are_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = run_of(tmp_path, "a")
    run_of(tmp_path, "b", 0, ex.finished(9))
    run_of(tmp_path, "c", GONE)
    assert start.only_run(None, tmp_path).dir == mine.root
    assert start.find(None, tmp_path).dir != mine.root
    waits = run_of(tmp_path, "d")
    waits.events.unlink()  # its controller starts
    with pytest.raises(RunNotFound, match=r"d \(waiting\)"):
        start.only_run(None, tmp_path)
    assert start.only_run("d", tmp_path).dir == waits.root
    monkeypatch.setattr("ftslurm.security.owned_files.is_own", lambda path: path != waits.root)
    assert start.only_run(None, tmp_path).dir == mine.root


@pytest.mark.parametrize(
    ("answer", "does"),
    [("", False), ("n", False), ("yes please", False), pytest.param("y", True, marks=pytest.mark.nightly)],
)
def test_on_a_terminal_inject_asks_first(answer: str, does: bool, tmp_path: Path) -> None:
    run = run_of(tmp_path, "a")
    words = [sys.executable, "-m", "ftslurm", "inject", str(run.root), "kill"]
    shell = Terminal(words, dict(os.environ))
    shell.until(f"{run.root}: kill (SIGKILL to one rank, as the kernel or an admin would do it)? [y/N] ")
    shell.type(answer)
    if does:
        shell.until("has not answered within")  # no controller reads it
        assert len(list(run.inbox.iterdir())) == 1
    else:
        shell.until("ftslurm: nothing is done")
        assert list(run.inbox.iterdir()) == []
    assert shell.exit_code() == 1
