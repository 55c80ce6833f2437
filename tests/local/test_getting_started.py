"""A reader who types what README and docs/getting-started.md show sees what they show, with other numbers and names."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from doc_commands import ROOT, block_of, shown, unlike

from ftslurm.config.schema import shipped

pytestmark = pytest.mark.nightly  # a run of a minute, and one that is looked at, broken and resumed
PATIENCE_S = 300.0  # a bound for a hang, not a claim about speed
GETTING_STARTED = ROOT / "docs" / "getting-started.md"
COMMANDS = {command.words[1]: command.words[1:] for command in shown() if command.page == GETTING_STARTED.name}


def ftslurm(folder: Path, words: list[str], codes: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ftslurm", *words],
        cwd=folder,
        env=os.environ | {"COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode in codes, (words, done.stdout, done.stderr)
    return done.stdout + done.stderr


def until(true: Callable[[], object], what: str) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < limit, what
        time.sleep(0.2)


def test_the_first_run_prints_what_readme_and_page_show(tmp_path: Path) -> None:
    make = (ROOT / "Makefile").read_text()
    (demo,) = re.findall(r"^demo:.*\n\t\$\(BIN\)/python -m ftslurm (.*)$", make, re.MULTILINE)
    (first,) = (words for name, words in COMMANDS.items() if name == "job=ddp")
    assert demo.split() == first
    output = ftslurm(tmp_path, first)
    warm = "standby-001 is warm" in output.partition("drill:")[0]  # not yet, on a busy machine: then it takes no part
    for page, begin in ((ROOT / "README.md", ""), (GETTING_STARTED, "run ddp-")):
        block = block_of(page, rf"\d\d:\d\d:\d\d {begin}")
        assert unlike([line for line in block if warm or "standby" not in line], output) == []
    assert unlike(["23:12:39 group 1 stays down"], output) == ["23:12:39 group 1 stays down"]
    (run,) = (tmp_path / "runs").iterdir()
    assert {"config.yaml", "events.jsonl", "logs", "checkpoints"} <= {path.name for path in run.iterdir()}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A folder with the reader's script, in which every run is ended at last."""
    for name in ("train_ddp.py", "gpt.py"):  # cp examples/train_ddp.py examples/gpt.py .
        shutil.copy(shipped("examples") / name, tmp_path)
    yield tmp_path
    for run in (tmp_path / "runs").iterdir():
        ftslurm(tmp_path, ["stop", str(run)], (0, 1, 2))


def test_the_script_is_looked_at_broken_stopped_and_resumed_as_the_page_says(project: Path) -> None:
    def status() -> dict[str, object]:
        known: dict[str, object] = json.loads(ftslurm(project, ["status", "--json"]))
        return known

    def step() -> int:
        return int(str(status()["step"] or 0))

    ftslurm(project, next(words for name, words in COMMANDS.items() if name == "job.script=train_ddp.py"))
    until(lambda: step() > 5, "no step was committed")
    assert re.search(r"^ +1 +RUNNING", ftslurm(project, COMMANDS["status"]), re.MULTILINE)
    (parent,) = (project / "runs").iterdir()

    following = subprocess.Popen(
        [sys.executable, "-m", "ftslurm", "logs", "-f"], cwd=project, stdout=subprocess.PIPE, text=True
    )
    assert following.stdout is not None
    try:
        assert re.match(r"\[g\d\.a\d\.r0\]", following.stdout.readline())
    finally:
        following.send_signal(signal.SIGINT)
        following.communicate(timeout=PATIENCE_S)

    ftslurm(project, COMMANDS["inject"])
    until(lambda: "group 1 is back" in ftslurm(project, COMMANDS["events"]), "group 1 did not come back")
    shown = block_of(GETTING_STARTED, "script-")  # with a standby that is warm again
    until(lambda: not unlike(shown, ftslurm(project, COMMANDS["status"])), "status does not print what the page shows")
    assert "signal 9" in ftslurm(project, ["logs", "--failure"])
    assert unlike(block_of(GETTING_STARTED, "run script-.* has"), ftslurm(project, COMMANDS["report"])) == []
    assert (parent / "report.html").exists()

    ftslurm(project, ["stop", "--save"])
    assert status()["outcome"] == "stopped"
    saved = int(str(status()["checkpoint"]))
    assert saved > 5
    resumed = subprocess.Popen(
        [sys.executable, "-m", "ftslurm", *COMMANDS["resume"], "follow=false"], cwd=project, stdout=subprocess.DEVNULL
    )
    assert resumed.wait(PATIENCE_S) == 0
    until(lambda: step() > saved, "the resumed run did not go on from the checkpoint")
    child = next(path for path in (project / "runs").iterdir() if path != parent)
    assert re.search(r"lr: '0\.001'", (child / "config.yaml").read_text())
    begins = block_of(GETTING_STARTED, r"\d\d:\d\d:\d\d run script-")
    assert unlike(begins, ftslurm(project, ["events", str(child)])) == []
    ftslurm(project, ["stop"])
    assert status()["outcome"] == "stopped"
