"""The search for the run that RUN names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftslurm.errors import RunNotFound
from ftslurm.run.directory import RunDir
from ftslurm.run.find import find, newest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with seven runs, run-0 the oldest, and entries that are no run."""
    root = tmp_path / "my 'runs'"
    for n in range(7):
        run = RunDir(root / f"run-{n}")
        run.create()
        run.config.write_text("")
        os.utime(run.config, (1000 + n, 1000 + n))
    (root / "multirun").mkdir()
    (root / "notes.txt").write_text("")
    os.utime(root / "run-0", (9999, 9999))  # files come and go in an old run
    return root


def test_without_a_name_the_newest_run_is_meant(root: Path) -> None:
    assert find(None, root).root == root / "run-6"


def test_a_run_id_is_looked_for_under_the_root(root: Path) -> None:
    assert find("run-2", root).root == root / "run-2"


def test_a_run_directory_may_lie_anywhere(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    assert find(str(root / "run-3"), elsewhere).root == root / "run-3"
    monkeypatch.chdir(root)
    assert find("run-3", elsewhere).root == root / "run-3"
    monkeypatch.chdir(root / "run-3")
    assert find(".", elsewhere).root == root / "run-3"


def test_a_wrong_name_is_answered_with_the_newest_runs(root: Path) -> None:
    with pytest.raises(RunNotFound, match=r"no run 'run-9'.*run-6, run-5, run-4, run-3, run-2 and 2 older"):
        find("run-9", root)


def test_the_beginning_of_an_id_is_enough_if_only_one_run_begins_so(root: Path) -> None:
    (root / "run-5").rename(root / "ddp-20261121-231403-a1b2")
    assert find("ddp", root).root == root / "ddp-20261121-231403-a1b2"
    with pytest.raises(RunNotFound, match=r"'run' could be any of run-6, run-4, run-3, run-2, run-1 and 1 older"):
        find("run", root)


def test_the_slurm_job_of_its_controller_names_a_run_too(root: Path) -> None:
    for number, job in ((2, "81"), (4, "8")):
        RunDir(root / f"run-{number}").submitit.mkdir(exist_ok=True)
        RunDir(root / f"run-{number}").job_id.write_text(f"{job}\n")
    assert find("8", root).root == root / "run-4"
    assert find("81", root).root == root / "run-2"
    with pytest.raises(RunNotFound, match="no run '80'"):
        find("80", root)


def test_a_folder_that_is_no_run_is_called_so(root: Path) -> None:
    with pytest.raises(RunNotFound, match=r"multirun is no run directory, it holds no config\.yaml"):
        find("multirun", root)


@pytest.mark.parametrize("run", [None, "ddp", "", ".", "x" * 300])
def test_an_empty_root_is_no_riddle(run: str | None, tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match=r"no run.*nowhere"):
        find(run, tmp_path / "nowhere")


def test_every_run_is_listed_newest_first(root: Path) -> None:
    assert [run.root.name for run in newest(root)] == [f"run-{n}" for n in (6, 5, 4, 3, 2, 1, 0)]
