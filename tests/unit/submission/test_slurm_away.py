"""Where Slurm is installed and does not answer, nothing decides for this machine, whatever the way of silence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import Programs

from ftslurm.api import start
from ftslurm.checks.finding import Level
from ftslurm.cli import doctor_verb
from ftslurm.cli.main import main
from ftslurm.cli.verbs import VERBS, parser_of
from ftslurm.errors import EnvironmentProblem
from ftslurm.slurm import client

SAY = "echo '{}' >&2; exit 1"
SILENCES = {
    "refused": SAY.format("slurm_load_partitions: Unable to contact slurm controller (connect failure)"),
    "timed out": SAY.format("slurm_load_partitions: Socket timed out on send/recv operation"),
    "no munge": SAY.format('sinfo: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2"'),
    "no configuration": SAY.format("sinfo: fatal: Could not establish a configuration source"),
    "unreadable configuration": SAY.format("sinfo: fatal: Unable to process configuration file"),
    "a library is missing": "echo 'sinfo: error while loading shared libraries: libslurmfull.so' >&2; exit 127",
    "killed": "kill -9 $$",
    "hangs": "sleep 30",
    "no word": "exit 1",
    "an empty answer": "exit 0",
    "another answer": "echo '<html>503</html>'",
}


@pytest.fixture
def slurm(programs: Programs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Programs:
    """Slurm's programs; none has an answer yet."""
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setattr(client, "PATIENCE_S", 0.3)
    monkeypatch.setattr(client, "AGAIN_S", 0.1)
    monkeypatch.setattr(client, "PARTITIONS_S", 0.5)
    for name in ("sbatch", "srun", "sinfo"):
        programs.add(name)
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return programs


@pytest.mark.parametrize("silence", SILENCES.values(), ids=SILENCES)
def test_no_way_of_silence_means_this_machine(
    silence: str, slurm: Programs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.add("sinfo", body=silence)
    assert main(["run", "job.script=train.py", "follow=false"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("ftslurm: cluster=auto, but Slurm does not answer: ")
    assert said.endswith("or cluster=local if you mean this machine\n")
    assert said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("silence", SILENCES)
def test_doctor_warns_of_a_machine_that_is_no_part_of_a_cluster(silence: str, slurm: Programs) -> None:
    slurm.add("sinfo", body=SILENCES[silence])
    first = next(doctor_verb._findings(parser_of(VERBS["doctor"]).parse_args([])))
    assert first.check == "slurm"
    assert first.level == (Level.WARN if silence == "no configuration" else Level.FAIL)


@pytest.mark.parametrize("missing", ["sbatch", "srun", "sinfo"])
def test_an_installation_with_a_program_missing_is_one(
    missing: str, slurm: Programs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (slurm.folder / missing).unlink()
    monkeypatch.setenv("PATH", str(slurm.folder))
    assert main(["plan", "job.script=train.py"]) == 2
    assert f"Slurm does not answer: {missing} is not on PATH" in capsys.readouterr().err


def test_a_configuration_that_is_not_there_is_no_answer(
    slurm: Programs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_CONF", "/nowhere/slurm.conf")
    assert main(["plan", "job.script=train.py"]) == 2
    assert "there is no file SLURM_CONF=/nowhere/slurm.conf" in capsys.readouterr().err
    assert slurm.calls() == []


def by_command(*words: str) -> Callable[[], int]:
    return lambda: main([*words, "job.script=train.py"])


def by_program() -> int:
    with pytest.raises(EnvironmentProblem):
        start.submit(["job.script=train.py"])
    return 2


DECISIONS = {
    "run": by_command("run", "follow=false"),
    "plan": by_command("plan"),
    "sweep": by_command("run", "-m", "groups.count=1,2"),
    "array": by_command("run", "cluster.kind=array"),
    "array template": by_command("run", "cluster=array", "cluster.controller=here"),
    "steps template": by_command("run", "cluster=slurm", "cluster.controller=here"),
    "slurm": by_command("run", "cluster=slurm"),
    "python": by_program,
}


@pytest.mark.parametrize("decide", DECISIONS.values(), ids=DECISIONS)
def test_every_place_that_decides_refuses(decide: Callable[[], int], slurm: Programs, tmp_path: Path) -> None:
    slurm.add("sinfo", body=SILENCES["timed out"])
    assert decide() == 2
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("train.py", "fake-programs")] == []
    assert slurm.calls("sbatch") == []


def test_slurm_that_comes_back_within_seconds_is_used(
    slurm: Programs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("PATIENCE_S", "PARTITIONS_S"):  # it answers at once, however long a busy machine takes for that
        monkeypatch.setattr(client, name, 60.0)
    slurm.add("sinfo", body=f"[ -e {slurm.folder}/again ] || {{ touch {slurm.folder}/again; {SILENCES['refused']}; }}")
    with (slurm.folder / "sinfo").open("a") as file:
        file.write("echo 'gpu*|up|4|8|(null)'\n")
    assert main(["plan", "job.script=train.py"]) == 0
    assert capsys.readouterr().err.startswith("ftslurm: Slurm answers: cluster=slurm\n")
    assert len(slurm.calls("sinfo")) == 2


def test_doctor_says_that_it_fails(slurm: Programs, capsys: pytest.CaptureFixture[str]) -> None:
    slurm.add("sinfo", body=SILENCES["refused"])
    assert main(["doctor", "--json"]) == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    (found,) = [check for check in checks if check["check"] == "slurm"]
    assert found["level"] == "fail"
    assert "Unable to contact slurm controller" in found["what"]
