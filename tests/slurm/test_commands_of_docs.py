"""Every command that README and docs show is taken: run for real, or planned where it would train for hours.

A command that starts a run is planned on a Slurm of eight nodes with eight GPUs; the words of one on a run are parsed
by its verb. What is neither run nor planned is named below, with the reason: a new command fails until it has a place.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path

import pytest
from cluster import Cluster
from doc_commands import ROOT, Command, block_of, shown, unlike

from ftslurm.cli import main
from ftslurm.cli.verbs import parser_of

PATIENCE_S = 120.0
STARTS = ("run", "plan")
ON_A_RUN = (
    *("list", "status", "report", "logs", "help", "completion", "save", "stacks", "restart", "drain", "undrain"),
    *("inject", "scale", "stop", "resume", "events", "wait", "prune", "templates"),
)
COMPOSED = {  # planned only as far as the settings go: `--cfg job`
    "container_image": "the cluster of the tests has no pyxis (tests/slurm/test_containers.py)",
    "apptainer": "there is no apptainer",
    "run.share": "there is no group lab",
    "s3://": "there is no such bucket (tests/local/test_object_store.py)",
    "job=torchtitan": "torchtitan is not among the packages of the tests",
}
SKIPPED = {
    r"git clone|git checkout|source |eval ": "the shell's own, no program of ftslurm",
    r"(.venv/bin/)?pytest ": "the tests themselves",
    r"pip (install|uninstall)(?! '?ftslurm)": "the network's; packages of others",
    r"python (script|train)\.py|python -m (pkg|torchtitan)": "stands for the reader's own script",
    r"python -m ftslurm\.": "a process of a run, started by ftslurm alone",
    r"ftslurm attach": "needs a terminal (tests/local/test_steering.py)",
    r"ftslurm doctor --python": "needs a container (tests/slurm/test_containers.py)",
    r"ftslurm VERB|ftslurm\.": "a form, not a command",
    r"srun -w n2": "eight GPUs of NVIDIA (tests/slurm/test_preflight_on_slurm.py)",
}
COMMANDS = [one for one in shown() if not any(re.match(pattern, one.text) for pattern in SKIPPED)]

pytestmark = pytest.mark.slurm


def verb_of(command: Command) -> str:
    """Return the verb of a command of ftslurm: run, if none is written; "" for another program."""
    words = command.words
    if words[0] != "ftslurm":
        return ""
    return words[1] if words[1] in main.VERBS else "--version" if words[1] == "--version" else "run"


def of(*verbs: str) -> list[Command]:
    return [one for one in COMMANDS if verb_of(one) in verbs and "--help" not in one.words]


def called(words: list[str], codes: tuple[int, ...] = (0,)) -> None:
    """Run ftslurm's command line in this process."""
    try:
        code = main.main(words)
    except SystemExit as ended:  # argparse
        code = int(ended.code or 0)
    assert code in codes, words


@pytest.fixture(scope="module")
def large_cluster(cluster_folder: Path) -> Iterator[Cluster]:
    cluster = Cluster.start(cluster_folder / "docs", nodes=8, gpus=8, cpus=16)
    yield cluster
    cluster.stop()


@pytest.fixture(autouse=True)
def _at_the_cluster(large_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in large_cluster.environ().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the commands name."""
    for name in ("train.py", "train_ddp.py", "plain_ddp.py"):
        source = ROOT / "examples" / ("train_ddp.py" if name == "train.py" else name)
        (tmp_path / name).write_text(source.read_text())
    (tmp_path / "my_package.py").write_text("import ftslurm\n\nclass MyCallback(ftslurm.RunCallback):\n    pass\n")
    (tmp_path / "notify.sh").touch(0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    return tmp_path


@pytest.mark.parametrize("command", of(*STARTS), ids=str)
def test_a_run_that_a_page_shows_can_be_planned(command: Command, desk: Path, large_cluster: Cluster) -> None:
    words = [word.replace("/home/me", str(desk)) for word in command.words[1:] if word not in ("...", *STARTS)]
    if not any(re.match(r"job=|job\.(script|module)=", word) for word in words):
        words.append("job=ddp")  # the text around it is about another setting
    if any(piece in command.text for piece in COMPOSED):
        words += ["--cfg", "job"]
    called(["run" if "--cfg" in words else "plan", *words])


@pytest.mark.parametrize("command", of(*ON_A_RUN), ids=str)
def test_the_parser_of_a_verb_takes_the_words_of_a_page(command: Command) -> None:
    """What the verbs do to a run is tested elsewhere, with real runs (tests/slurm/test_steering_on_slurm.py, ...)."""
    values = {"N": "1", "R": "0", "FAULT": "kill"}
    verb, *words = [values.get(word.strip("[]"), word) for word in command.words[1:]]
    parser_of(main.VERBS[verb]).parse_intermixed_args(words)


@pytest.mark.parametrize("command", [one for one in COMMANDS if "--help" in one.words], ids=str)
def test_help_that_a_page_names_is_there(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    called(command.words[1:])
    assert f"ftslurm {command.words[1]}" in capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.parametrize("command", of("doctor", "--version"), ids=str)
def test_doctor_looks_at_a_cluster_as_the_pages_say(command: Command, desk: Path, large_cluster: Cluster) -> None:
    called(command.words[1:], (0, 1))  # 1: of what it finds on this cluster, something fails


@pytest.mark.nightly
def test_doctor_prints_lines_like_those_of_the_page(
    desk: Path, large_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    called(["doctor"], (0, 1))
    assert unlike(block_of(ROOT / "docs" / "admin.md", "ok "), capsys.readouterr().out) == []


def starting(*programs: str) -> list[Command]:
    return [one for one in COMMANDS if one.words[0].removeprefix(".venv/bin/") in programs]


@pytest.mark.parametrize("command", starting("sbatch"), ids=str)
def test_slurm_takes_a_batch_script_as_a_page_shows_it(command: Command, desk: Path, large_cluster: Cluster) -> None:
    called(["templates", "jobs"])
    words = [word.replace("=...", "=0-1").replace("jobs/", f"{desk}/jobs/") for word in command.words[1:]]
    large_cluster.run(["sbatch", "--test-only", f"--chdir={desk}", *words])


@pytest.mark.parametrize("command", starting("make"), ids=str)
def test_make_knows_a_target_that_a_page_shows(command: Command) -> None:
    subprocess.run([*command.words, "--dry-run"], cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE_S)


@pytest.mark.parametrize("command", starting("pip"), ids=str)
def test_an_extra_that_a_page_names_exists(command: Command) -> None:
    named = set(re.findall(r"ftslurm\[(\w+)\]", command.text))
    assert named <= set(metadata("ftslurm").get_all("Provides-Extra") or ())


@pytest.mark.parametrize("command", starting("python"), ids=str)
def test_a_program_of_this_repository_takes_its_arguments(command: Command, desk: Path) -> None:
    """With --help behind them: a measurement takes minutes, and a page would be written anew."""
    words = command.words[1:]
    if words[0] not in ("-c", "-m"):
        assert (ROOT / words[0]).exists()
        words = [str(ROOT / words[0]), *words[1:]]
    tail = [] if words[0] == "-c" else ["--help"]
    if words[0].endswith("tests/cluster.py"):
        tail = ["true"]  # a command in the cluster, instead of a shell
    subprocess.run([sys.executable, *words, *tail], check=True, capture_output=True, timeout=PATIENCE_S)


def test_every_command_of_the_pages_has_its_place() -> None:
    """Every one is run by a test of this file, or is left out for a reason that still has a command."""
    run = {*of(*STARTS, *ON_A_RUN, "doctor", "--version"), *starting("sbatch", "make", "pip", "python")}
    run |= {one for one in COMMANDS if "--help" in one.words}
    assert [str(one) for one in COMMANDS if one not in run] == []
    assert [pattern for pattern in SKIPPED if not any(re.match(pattern, one.text) for one in shown())] == []
    assert [piece for piece in COMPOSED if not any(piece in one.text for one in shown())] == []
