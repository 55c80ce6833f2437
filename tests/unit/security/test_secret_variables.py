"""Secrets are recognised by name, checked before submission, and passed to the workers only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.config.validate import check
from ftslurm.core.state.actions import Attach, Launch, Probe
from ftslurm.core.state.model import Place, StepId
from ftslurm.errors import ConfigError, EnvironmentProblem
from ftslurm.launchers.local import ThisMachine
from ftslurm.launchers.srun import Slurm
from ftslurm.run.directory import RunDir
from ftslurm.security.secret_variables import (
    check_submitter,
    check_worker,
    in_arguments,
    is_secret,
    withdraw,
    without_passwords,
    without_values,
)

SECRET = "s3cr3t-value"

NAMES = ["WANDB_API_KEY", "HF_TOKEN", "aws_secret_access_key", "DB_PASSWORD", "PGPASSWD", "MY_CREDENTIALS", "SECRET2"]


@pytest.mark.parametrize("name", NAMES)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert is_secret(name, SECRET)


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "TOKENIZERS_PARALLELISM", "KEYBOARD", "MAX_TOKENS"])
def test_other_variables_are_none(name: str) -> None:
    assert not is_secret(name, SECRET)


def test_secrets_in_the_settings_move_into_the_environment() -> None:
    plain = {
        "NCCL_DEBUG": "INFO",
        "HF_TOKEN_PATH": "/home/me/.token",
        "USE_TOKEN": "true",
        "NUM_KEYS": "16",
        "A_KEY": "",
    }
    token = "hf_abcdefghijklmnop"
    url = "postgresql://me:abc@host/runs"
    env = plain | {"DB_PASSWORD": SECRET, "NICE": token, "PIN_SECRET": "20261231", "STORE": url}
    names, environ = ["OTHER"], dict[str, str]()
    assert withdraw(env, names, environ) == ["DB_PASSWORD", "NICE", "PIN_SECRET", "STORE"]
    assert env == plain
    assert names == ["OTHER", "DB_PASSWORD", "NICE", "PIN_SECRET", "STORE"]
    assert environ == {"DB_PASSWORD": SECRET, "NICE": token, "PIN_SECRET": "20261231", "STORE": url}


def test_known_values_and_passwords_in_urls_are_masked_too() -> None:
    text = b'a "s3\\"t-v\\u00fc" s3"t-v short'
    assert without_values(text, ['s3"t-v\u00fc', 's3"t-v', "short"]) == b'a "***" *** short'
    assert without_passwords("x @ git+https://u:p@h/x and https://ghp_0123456789abcdef@h") == (
        "x @ git+https://***@h/x and https://***@h"
    )


def test_arguments_that_look_like_secrets_are_named() -> None:
    words = [
        "--api-key",
        "0123456789abcdef",
        "--token=abcdef0123456789",
        "--token",
        "{FTSLURM_RUN_ID}",
        "--key-dim",
        "128",
    ]
    assert in_arguments(words) == ["--api-key", "--token"]
    assert in_arguments(["--max-tokens", "123456789012345", "--token"]) == []
    assert in_arguments([]) == []


def test_one_that_is_not_set_or_empty_is_refused_before_anything_is_submitted() -> None:
    check_submitter(["A", "B"], {"A": "1", "B": "2"})
    for environ in ({"A": "1"}, {"A": "1", "B": ""}):
        with pytest.raises(EnvironmentProblem, match=r"job\.secrets: B is not set in this environment, or empty"):
            check_submitter(["A", "B"], environ)


def test_a_worker_without_one_does_not_start() -> None:
    check_worker({})
    check_worker({"FTSLURM_SECRETS": "A,B", "A": "1", "B": "2"})
    with pytest.raises(RuntimeError, match=r"job\.secrets: B has not reached the worker"):
        check_worker({"FTSLURM_SECRETS": "A,B", "A": "1"})


@pytest.mark.parametrize("name", ["9LIVES", f"API_KEY={SECRET}", "SLURM_JWT", "FTSLURM_X", "HOME_PAGE"])
def test_names_that_cannot_be_passed_on_are_refused(name: str, tmp_path: Path) -> None:
    config = Config()
    config.job.script, config.run.name = str(tmp_path / "x.py"), "x"
    (tmp_path / "x.py").write_text("")
    config.job.env = {"HOME_PAGE": "x"}
    config.job.secrets = ["GOOD", name]
    with pytest.raises(ConfigError, match=r"job\.secrets") as refused:
        check(config)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("local", [True, False])
def test_only_the_workers_are_given_them(local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", SECRET)
    monkeypatch.setenv("OTHER", "x")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    config, run = Config(), RunDir(Path("/runs/x"))
    config.job.script, config.job.secrets = "x.py", ["MY_API_KEY"]
    launcher = (ThisMachine if local else Slurm)(config, run)
    place = Place(("n1",))
    for unit, group in (("group-0000", 0), ("standby-000", None)):
        (command,) = launcher.start(Launch(StepId(unit, 0), group, place), Path("/logs"))
        assert (command.env["MY_API_KEY"], command.env["FTSLURM_SECRETS"]) == (SECRET, "MY_API_KEY")
        assert SECRET not in " ".join(command.argv)
    others = launcher.start(Launch(StepId("lighthouse", 0), None, place), Path("/logs"))
    probe = launcher.request(Probe("n1"))
    if isinstance(launcher, Slurm):
        others.append(launcher.attach(Attach(StepId("group-0000", 0), place)))
        config.cluster.kind = "array"
        others += launcher.start(Launch(StepId("lighthouse", 0), None, place), Path("/logs"))
    for env in (probe.env or {}, *(command.env for command in others)):
        assert env["OTHER"] == "x"
        assert not {"MY_API_KEY", "FTSLURM_SECRETS"} & set(env)
    assert SECRET not in compose.dump(config)
    assert os.environ["MY_API_KEY"] == SECRET
