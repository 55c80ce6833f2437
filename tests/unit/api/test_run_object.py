"""`import ftslurm`: quick, lazy; and what a Run tells about a run that is over."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import example_journal as ex
import pytest

import ftslurm
from ftslurm.api.steered import _read
from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.errors import EnvironmentProblem, NotDone, RunNotFound
from ftslurm.protocol.records import RunFinished, RunStarted, StacksTaken
from ftslurm.protocol.traces import STACKS
from ftslurm.run.directory import RunDir


@pytest.fixture
def run(tmp_path: Path) -> ftslurm.Run:
    """A local run that has succeeded."""
    files = ex.new_run(tmp_path, ex.one_kill())
    config = Config()
    config.job.script, config.run.name, config.cluster.kind = "train.py", "ddp", "local"
    files.config.write_text(compose.dump(config))
    return ftslurm.Run(files.root)


def test_importing_the_package_imports_nothing_else_of_it() -> None:
    code = "import sys, ftslurm; assert not [m for m in sys.modules if m.startswith('ftslurm.')]; ftslurm.Run"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert "Run" in dir(ftslurm)
    with pytest.raises(AttributeError, match="has no attribute 'runn'"):
        _ = ftslurm.runn


def test_a_run_tells_its_status_and_its_typed_journal(run: ftslurm.Run) -> None:
    assert run.value() is None
    run.files.results.mkdir(exist_ok=True)  # runs of earlier versions have none
    (run.files.results / "group-0000").write_text("0.5")
    assert run.value() == [0.5]
    assert run.id == run.dir.name
    assert run.status()["outcome"] == "succeeded"
    first, *_, last = run.events()
    assert isinstance(first, RunStarted)
    assert isinstance(last, RunFinished)


def test_a_run_that_is_over_takes_no_commands(run: ftslurm.Run) -> None:
    with pytest.raises(EnvironmentProblem, match="is over: succeeded"):
        run.inject("kill")
    with pytest.raises(EnvironmentProblem, match="is over"):
        run.scale(2)
    assert "is over already" in run.stop()


def test_a_folder_without_a_configuration_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match=r"holds no config\.yaml"):
        ftslurm.Run(tmp_path)


def test_stacks_are_those_that_the_command_has_asked_for_without_what_follows(tmp_path: Path) -> None:
    run, said = RunDir(tmp_path), f"{STACKS}rank 3, pid 7; asked for by ftslurm stacks 'c'\nin innermost\n"
    log = run.rank_log("group-0001", 2, 3)
    log.parent.mkdir(parents=True)
    taken = StacksTaken(command="c", group=1, attempt=2, rank=3, node="n1", size=len(said))
    with pytest.raises(NotDone, match="not at the end of"):
        _read(run, taken)
    other = f"{STACKS}rank 3, pid 7; asked for by the controller\nin another\n"
    log.write_text(f"{other}{said}a later line\n{other}")
    assert _read(run, taken).text == said
    with pytest.raises(NotDone, match="not at the end of"):
        _read(run, replace(taken, command="d"))
    with pytest.raises(NotDone, match="not at the end of"):
        _read(run, replace(taken, size=None))
