"""What sbatch, or a site's wrapper of it, answers to a submission."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from programs import Programs

from ftslurm.errors import EnvironmentProblem
from ftslurm.slurm.parse import read_job_id
from ftslurm.submission.submitit_adapter import SbatchRefused, submit_script

ANSWERS = [
    "81",
    "81;wice",
    "Submitted batch job 81",
    "Submitted batch job 81 on cluster wice",
    "This is job 3 of your 10.\n81\n",
    "Welcome to 2026\nSubmitted batch job 81\nYou have 12 jobs left\n",
    "sbatch: job 7 is before yours\n  81;a-b.c  \n\n",
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_job_is_the_one_that_sbatch_names(answer: str, programs: Programs, tmp_path: Path) -> None:
    programs.add("sbatch", body=f"cat <<'END'\n{answer}\nEND")
    assert submit_script(tmp_path, "true") == "81"


@pytest.mark.parametrize("answer", ["", "job 3 of your 10", "thank you", "Submitted", "81x", "8 1"])
def test_a_job_that_is_accepted_is_never_told_as_refused(answer: str, programs: Programs, tmp_path: Path) -> None:
    programs.add("sbatch", body=f"echo '{answer}'")
    assert read_job_id(answer) is None
    with pytest.raises(EnvironmentProblem, match="has accepted the job") as told:
        submit_script(tmp_path, "true")
    assert not isinstance(told.value, SbatchRefused)


def test_a_refusal_is_told_in_the_words_of_sbatch(programs: Programs, tmp_path: Path) -> None:
    programs.add("sbatch", body="echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1")
    with pytest.raises(SbatchRefused, match="Invalid account"):
        submit_script(tmp_path, "true")


def test_sbatch_and_its_job_get_nothing_of_the_job_or_run_in_which_it_is_called(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs.add("sbatch", body=f"env > {tmp_path}/env; echo 81")
    outer = ("SLURM_ARRAY_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_CPU_BIND", "SLURM_NEW_ONE", "FTSLURM_HOOK", "SRUN_X")
    for name in outer:
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("SLURM_CONF", os.environ.get("SLURM_CONF", "/etc/slurm/slurm.conf"))
    monkeypatch.setenv("SLURM_CLUSTERS", "wice")
    assert submit_script(tmp_path, "true") == "81"
    got = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert got.isdisjoint(outer)
    assert got >= {"SLURM_CONF", "SLURM_CLUSTERS", "PATH"}
    assert os.environ["SLURM_ARRAY_JOB_ID"] == "7"
