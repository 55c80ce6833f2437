"""The variables that give options to sbatch become settings of the run; no sbatch of ours has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from programs import Programs

from ftslurm.cli.main import main
from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError
from ftslurm.run.directory import RunDir
from ftslurm.slurm import client
from ftslurm.slurm.sbatch_variables import take
from ftslurm.submission import pilot_jobs, submit, submitit_adapter

TAKEN = ["ACCOUNT", "CLUSTERS", "CONSTRAINT", "EXCLUDE", "NETWORK", "PARTITION", "QOS", "RESERVATION", "WCKEY"]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    made = Config()
    made.job.script, made.run.name, made.cluster.kind = __file__, "train", "slurm"
    made.run.root = str(tmp_path)
    return made


def asked(config: Config, group: bool = False) -> dict[str, object]:
    """Return the options of an sbatch of this run."""
    return submit.job_options(config, RunDir(Path("/runs/a")), group)


@pytest.mark.parametrize("name", TAKEN)
def test_a_variable_becomes_the_option_of_its_name(name: str, config: Config) -> None:
    before = asked(config)
    (said,) = take(config, {f"SBATCH_{name}": "x7", "SLURM_CONF": "/x", "PATH": "/bin"})
    assert said.startswith(f"SBATCH_{name} becomes cluster.")
    assert asked(config) == before | {name.lower(): "x7"}


@pytest.mark.parametrize(
    ("variable", "value", "option", "result"),
    [
        ("SBATCH_REQ_SWITCH", "2@10:00", "switches", "2@10:00"),
        ("SBATCH_SEGMENT_SIZE", "1", "segment", "1"),
        ("SBATCH_ACCOUNT", "", "account", None),
        ("SBATCH_LMOD_HOOK", "1", "lmod-hook", None),
        ("SBATCH_", "1", "", None),
    ],
)
def test_values_are_read_as_sbatch_reads_them(
    variable: str, value: str, option: str, result: object, config: Config
) -> None:
    take(config, {variable: value})
    assert str(asked(config).get(option)) == str(result)
    assert str(asked(config, group=True).get(option)) == str(result)


@pytest.mark.parametrize(
    ("variable", "value", "key", "own"),
    [
        ("SBATCH_TIMELIMIT", "7", "cluster.time", "120"),
        ("SBATCH_PARTITION", "debug", "cluster.partition", "gpu"),
        ("SBATCH_PARTITION", "debug", "cluster.sbatch", {"partition": "gpu"}),
        ("SBATCH_SEGMENT_SIZE", "2", "cluster.sbatch", {"segment": 1}),
    ],
)
def test_a_setting_wins_and_the_variable_is_named(
    variable: str, value: str, key: str, own: object, config: Config
) -> None:
    section, _, name = key.partition(".")
    setattr(getattr(config, section), name, own)
    before = asked(config)
    (said,) = take(config, {variable: value})
    assert said.startswith(f"{variable}={value} is not used: a setting says ")
    assert asked(config) == before


def test_a_value_of_a_variable_of_the_environment_is_neither_kept_nor_shown(config: Config) -> None:
    """It may be secret, and settings are in files that others may read (run.share)."""
    (said,) = take(config, {"SBATCH_EXPORT": "ALL,WANDB_API_KEY=0123456789abcdef"})
    assert "SBATCH_EXPORT is not used" in said
    assert "0123" not in said
    assert "export" not in asked(config)


def test_what_a_setting_says_too_needs_no_word(config: Config) -> None:
    config.cluster.account = "me"
    assert take(config, {"SBATCH_ACCOUNT": "me"}) == []


@pytest.mark.parametrize("value", ["a\nb", "\udce9", "x\x1b[31m", "\0", "a\r"])
def test_a_value_that_no_option_has_is_refused(value: str, config: Config) -> None:
    with pytest.raises(ConfigError, match=r"^SBATCH_ACCOUNT=.*no option of sbatch"):
        take(config, {"SBATCH_ACCOUNT": value})


def test_no_sbatch_has_any_of_them_and_this_process_keeps_them(
    config: Config, programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However they are called, in all three ways in which we start it."""
    seen = tmp_path / "seen"
    programs.add("sbatch", body=f"env | grep ^SBATCH_ >> {seen}; echo called >> {seen}; echo Submitted batch job 7")
    names = ("SBATCH_ACCOUNT", "SBATCH_TIMELIMIT", "SBATCH_OF_A_LATER_SLURM", "SBATCH_")
    for name in names:
        monkeypatch.setenv(name, "1")
    run = RunDir(tmp_path / "run")
    run.submitit.mkdir(parents=True)
    assert submitit_adapter.submit_script(run.submitit, "true") == "7"
    assert client.call(["sbatch", "--version"]).ok
    pilot_jobs.try_out(config, run, lead=True)
    programs.add("sbatch", body=f"env | grep ^SBATCH_ >> {seen}; echo called >> {seen}; exit 1")
    with pytest.raises(submitit_adapter.SbatchRefused):
        submitit_adapter.submit_script(run.submitit, "true")
    assert seen.read_text() == "called\n" * 4
    assert [os.environ[name] for name in names] == ["1"] * 4


def test_plan_and_run_name_them(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.add("sinfo", body="echo 'gpu*|up|4|8|(null)'; echo 'debug|up|4|8|(null)'")
    programs.add("sbatch", body="case $1 in --test-only) exit 0;; esac; echo refused >&2; exit 1")
    programs.add("srun", "squeue", "scontrol")
    monkeypatch.setenv("SBATCH_PARTITION", "debug")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "7")
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    told = "ftslurm: SBATCH_PARTITION becomes cluster.partition=debug\n"
    told += "ftslurm: SBATCH_TIMELIMIT=7 is not used: a setting says time=120\n"
    for verb in ("plan", "run"):
        assert main([verb, "job.script=train.py", "cluster.time=120"]) == (0 if verb == "plan" else 2)
        shown = capsys.readouterr()
        assert told in shown.err
        assert verb == "run" or "#SBATCH --partition=debug\n  #SBATCH --requeue" in shown.out
        assert "--time=7" not in shown.out


def test_a_local_run_takes_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("SBATCH_TIMELIMIT", "soon")
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "job.script=train.py", "cluster=local"]) == 0
    assert "SBATCH" not in capsys.readouterr().err


def test_in_an_allocation_that_of_the_job_comes_before(
    config: Config, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the jobs that replace a lost node: the job may have been given other options than the variables'."""
    from ftslurm.submission.capabilities import resolve

    programs.add("sinfo", body="echo 'gpu*|up|4|8|(null)'")
    programs.add("srun", "sbatch")
    config.cluster.controller = "here"
    for name, value in (("SLURM_JOB_ACCOUNT", "job"), ("SBATCH_ACCOUNT", "variable"), ("SBATCH_QOS", "high")):
        monkeypatch.setenv(name, value)
    resolve(config)
    assert (config.cluster.account, config.cluster.sbatch) == ("job", {"qos": "high"})
