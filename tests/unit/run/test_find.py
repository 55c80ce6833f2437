"""The search for the run that RUN names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from closed import closed
from programs import Programs

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
    half = RunDir(root / ".run-9.0a1b2c3d.part")  # a task of an array makes its run directory under such a name
    half.create()
    half.config.write_text("")
    (root / "multirun").mkdir()
    (root / "notes.txt").write_text("")
    os.utime(root / "run-0", (9999, 9999))  # files come and go in an old run
    return root


def test_without_a_name_the_newest_run_is_meant(root: Path) -> None:
    assert find(None, root).root == root / "run-6"


def test_a_run_below_a_closed_folder_is_somebody_elses(root: Path) -> None:
    with closed(root.parent), pytest.raises(RunNotFound, match="run-2 belongs to another user and is not readable"):
        find(str(root / "run-2"), root)


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
    with pytest.raises(RunNotFound, match=r"'run' could be any of run-6, run-4, run-3, run-2, run-1, run-0"):
        find("run", root)


def test_the_slurm_job_of_its_controller_names_a_run_too(root: Path) -> None:
    for number, job in ((2, "81"), (4, "8")):
        RunDir(root / f"run-{number}").submitit.mkdir(exist_ok=True)
        RunDir(root / f"run-{number}").job_id.write_text(f"{job}\n")
    assert find("8", root).root == root / "run-4"
    assert find("81", root).root == root / "run-2"
    with pytest.raises(RunNotFound, match="no run '80'"):
        find("80", root)


@pytest.mark.parametrize("name", ["81", "81.0", "81.batch", "82", "82_1", "82_[1-3%2]", "82_1.4", "97"])
def test_every_id_that_slurm_shows_names_its_run_after_slurm_has_forgotten_it(
    root: Path, name: str, programs: Programs
) -> None:
    programs.add("squeue", body="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    run = RunDir(root / "run-2")
    run.job_id.write_text("81\n")
    run.remember(["82_1", "82_2"], pool=0)
    (run.submitit / "97_0_log.out").touch()  # of a controller before
    assert find(name, root).root == run.root
    for other in ("8", "811", "82_3", "9", "999", "8_7"):
        with pytest.raises(RunNotFound, match="no run"):
            find(other, root)


def test_squeue_leads_to_a_run_below_another_folder(root: Path, tmp_path: Path, programs: Programs) -> None:
    run = root / "run-3"
    script = f"{run}/submitit/submission_file_1.sh"
    programs.add("squeue", body=f'echo "82_1|90|RUNNING|None|me|{script}|(null)|"')
    assert find("90", tmp_path / "elsewhere").root == run


def test_the_process_of_a_local_run_is_no_slurm_job(root: Path) -> None:
    RunDir(root / "run-6").job_id.write_text("81")
    RunDir(root / "run-6").events.write_text('{"seq":1,"event":"run_started","run_id":"run-6","cluster":"local"}\n')
    with pytest.raises(RunNotFound, match="no run '81'"):
        find("81", root)
    RunDir(root / "run-1").job_id.write_text("81")
    assert find("81", root).root == root / "run-1"


def test_a_name_means_its_run_that_is_not_over_else_the_newest(root: Path) -> None:
    end = '{"seq":9,"event":"run_finished","outcome":"succeeded","reason":"","steps":1,"restarts":0}\n'
    for number in (3, 4, 5):
        folder = (root / f"run-{number}").rename(root / f"ddp-2026112{number}-231403-a1b2")
        RunDir(folder).events.write_text(end)
    assert find("ddp", root).root.name == "ddp-20261125-231403-a1b2"
    for number in (3, 4):
        RunDir(root / f"ddp-2026112{number}-231403-a1b2").events.write_text("")
        if number == 3:
            assert find("ddp", root).root.name == "ddp-20261123-231403-a1b2"
    with pytest.raises(RunNotFound, match=r"'ddp' is the name of 2 runs .*, ddp-20261124.*, ddp-20261123"):
        find("ddp", root)


def test_a_folder_that_is_no_run_is_called_so(root: Path) -> None:
    with pytest.raises(RunNotFound, match=r"no run 'multirun', with a config\.yaml, at .*/multirun"):
        find("multirun", root)


@pytest.mark.parametrize("run", [None, "ddp", "", ".", "x" * 300])
def test_an_empty_root_is_no_riddle(run: str | None, tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match=r"no run.*nowhere"):
        find(run, tmp_path / "nowhere")


def test_every_run_is_listed_newest_first(root: Path) -> None:
    assert [run.root.name for run in newest(root)] == [f"run-{n}" for n in (6, 5, 4, 3, 2, 1, 0)]
