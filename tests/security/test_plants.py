"""When another user replaces our run directory by theirs, no verb acts on it and none blocks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from victim import Stranger

PATIENCE_S = 60.0  # for a verb that does not wait
STARTED = '{"seq": 1, "time": 1.0, "event": "run_started", "run_id": "run-1", "groups": 2, "mode": "steps"}\n'


@pytest.fixture
def open_folder(public_path: Path) -> Path:
    """A folder that all users may write."""
    path = public_path / "open"
    path.mkdir()
    path.chmod(0o777)
    return path


@pytest.fixture
def loot(tmp_path: Path) -> Path:
    """A folder that only its owner can write: an entry proves an action as the owner."""
    path = tmp_path / "loot"
    path.mkdir(mode=0o755)
    return path


def ftslurm(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a verb in a folder; it must end."""
    command = [sys.executable, "-m", "ftslurm", *words]
    return subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S
    )


def refused(done: subprocess.CompletedProcess[str]) -> None:
    """Check that a verb was refused with a message for the user."""
    assert done.returncode == 2, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr


def verbs(first: str, *others: str) -> list[object]:
    """Return a parameter for each command; all but the first are for the nightly tests."""
    later = [pytest.param(words.split(), id=words.split()[0], marks=pytest.mark.nightly) for words in others]
    return [pytest.param(first.split(), id=first.split()[0]), *later]


def test_no_run_begins_where_a_stranger_could_swap_its_directory(open_folder: Path) -> None:
    script = open_folder.parent / "script.py"
    script.write_text("print('trained')")
    done = ftslurm(
        open_folder.parent, "run", "cluster=local", f"run.root={open_folder}", f"job.script={script}", "follow=true"
    )
    refused(done)
    assert not list(open_folder.iterdir()), "a run was made"


@pytest.mark.parametrize("verb", verbs("stop", "scale 2", "inject kill"))
def test_a_planted_run_is_not_acted_on(verb: list[str], open_folder: Path, loot: Path, stranger: Stranger) -> None:
    run = open_folder / "run-1"
    run.mkdir(mode=0o700)
    (run / "config.yaml").write_text("job: {script: ours.py}\n")
    evil = open_folder.parent / "evil.py"
    evil.write_text(f"import tempfile; tempfile.mkdtemp(prefix='ran-', dir={str(loot)!r})")
    files = {
        "config.yaml": ftslurm(
            loot, "run", "cluster=local", f"job.script={evil}", f"run.dir={run}", "--cfg", "job"
        ).stdout,
        "events.jsonl": STARTED,
        "submitit/job_id": "1",  # a process that lives
        "submitit/1_submitted.pkl": "PAYLOAD",
    }
    assert "config.yaml" in stranger.attack("plant", run=str(run), files=files, folder=str(loot), pipes=["inbox/order"])
    refused(ftslurm(loot, verb[0], str(run), *verb[1:]))
    assert not list(loot.iterdir()), "something of the stranger's was done"
    assert len(list((run / "inbox").iterdir())) == 1, "an order was left in a run of the stranger's"


@pytest.mark.parametrize("verb", verbs("status", "logs", "stop"))
def test_no_verb_waits_for_a_planted_pipe(verb: list[str], open_folder: Path, stranger: Stranger) -> None:
    run = open_folder / "run-1"
    pipes = ["config.yaml", "events.jsonl", "alive", "id", "submitit/job_id", "logs/controller.log"]
    stranger.attack("plant", run=str(run), files={}, folder="/", pipes=pipes)
    refused(ftslurm(open_folder, verb[0], str(run), *verb[1:]))
