"""The only module that runs Slurm's commands: time-outs, failures and the user's own defaults."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from programs import Programs

import ftslurm
from ftslurm.slurm import client
from ftslurm.slurm.client import call


@pytest.mark.parametrize(
    ("script", "ok", "transient"),
    [
        ("echo done", True, False),
        ("echo 'error: Unable to contact slurm controller (connect failure)' >&2; exit 1", False, True),
        ("echo 'error: Invalid job id specified' >&2; exit 1", False, False),
        ("exit 3", False, False),
        ("exec sleep 60", False, True),
        ("kill $$; sleep 60", False, True),
    ],
)
def test_a_failure_of_a_command_is_judged(script: str, ok: bool, transient: bool, programs: Programs) -> None:
    programs.add("squeue", body=script)
    answer = call(["squeue"], timeout_s=0.5 if "exec sleep" in script else 20.0)
    assert (answer.ok, answer.transient, answer.started) == (ok, transient, True)
    assert answer.text


def test_a_program_that_is_missing_is_a_failure_too(tmp_path: Path) -> None:
    answer = call([str(tmp_path / "squeue")])
    assert not answer.started
    assert "cannot be started: No such file" in answer.text


def test_defaults_that_a_user_has_set_for_slurms_commands_do_not_count(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCANCEL_INTERACTIVE", "1")  # scancel would ask for confirmation
    monkeypatch.setenv("SQUEUE_PARTITION", "debug")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    programs.add("scancel", body="env")
    assert {"SLURM_CONF=/etc/slurm.conf"} <= set(call(["scancel"]).out.splitlines())
    assert not any(line.startswith(("SCANCEL_", "SQUEUE_")) for line in call(["scancel"]).out.splitlines())


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ("echo 'PENDING|0|ReqNodeNotAvail, UnavailableNodes:n1|'", ("PENDING", "ReqNodeNotAvail, UnavailableNodes:n1")),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", ("", "")),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", ("UNKNOWN", "")),
    ],
)
def test_a_jobs_state_is_known_unknown_or_not_answered(script: str, state: tuple[str, str], programs: Programs) -> None:
    programs.add("squeue", body=script)
    assert client.job_state("7") == state


def test_nothing_to_cancel_needs_no_slurm(programs: Programs) -> None:
    programs.add("scancel", body="exit 1")
    assert client.cancel()
    assert not client.cancel("7")


def test_command_lines_of_slurm_are_built_in_one_folder() -> None:
    programs = {"squeue", "scontrol", "scancel", "sbatch", "sinfo", "srun"}
    root = Path(ftslurm.__file__).parent
    texts = {path: path.read_text() for path in set(root.rglob("*.py")) - set((root / "slurm").glob("*.py"))}
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)) if any(f'"{program}"' in text for program in programs) else ():
            if isinstance(node, ast.List) and node.elts and isinstance(node.elts[0], ast.Constant):
                assert node.elts[0].value not in programs, f"{path}:{node.lineno}"


def test_a_configuration_of_slurm_that_is_not_there_is_named(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sbatch", "srun", "sinfo"):
        programs.add(name)
    monkeypatch.setenv("SLURM_CONF", "/nowhere/slurm.conf")
    assert client.partitions() == ([], "there is no file SLURM_CONF=/nowhere/slurm.conf")
