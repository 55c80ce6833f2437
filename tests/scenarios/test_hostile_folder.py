"""A run that is started in a folder of strangers, and one that the hook of another run starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import SLURM_BY_DAY, Backend, light, quoted
from observed import until

pytestmark = pytest.mark.light
FTSLURM = Path(sys.executable).with_name("ftslurm")
HOSTILE = (
    "ftslurm",
    "submitit",
    "torch",
    "json",
    "types",
    "logging",
    "queue",
    "random",
    "typing",
    "runpy",
    "subprocess",
)


def test_a_run_imports_nothing_from_the_folder_in_which_it_is_started(backend: Backend) -> None:
    folder, harm = backend.tmp_path / "shared", backend.tmp_path / "harm"
    folder.mkdir()
    for name in HOSTILE:
        (folder / f"{name}.py").write_text(f"open({str(harm)!r}, 'a').write(__name__ + ' ')\n")
    done = subprocess.run(
        [FTSLURM, *words(backend), "hooks.on_event=[[cat]]",
         *("health.preflight=[[ftslurm-preflight]]", "standby.count=1")],
        cwd=folder, env=os.environ | backend.environ, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not harm.exists(), harm.read_text()


@SLURM_BY_DAY
def test_a_run_that_a_hook_has_started_is_not_ended_with_it(backend: Backend) -> None:
    log, other = backend.tmp_path / "hook.txt", backend.tmp_path / "other"
    starts = backend.script(
        f"#!{sys.executable}\n"
        "import subprocess, sys\n"
        f"subprocess.Popen({[str(FTSLURM), *words(backend, other, 100), 'follow=false']!r},"
        f" stdin=subprocess.DEVNULL, stdout=open({str(log)!r}, 'a'), stderr=subprocess.STDOUT)\n",
        name="starts.py",
    )
    starts.chmod(0o700)
    first = backend.start(
        f"hooks.on_event=[{{command: [{quoted(starts)}], events: [run_started]}}]",
        args={"steps": 50, "step-time": 0.1},
    )  # fmt: skip
    assert first.process.wait(120) == 0
    (journal,) = other.glob("*/events.jsonl")
    until(lambda: '"run_finished"' in journal.read_text(), "the other run is over")
    assert '"outcome":"succeeded"' in journal.read_text().splitlines()[-1], log.read_text()


def words(backend: Backend, root: Path | None = None, steps: int = 5) -> list[str]:
    """Return the arguments of a short run."""
    steps_file = backend.tmp_path / f"steps-{steps}"
    return [
        *("run", f"cluster={backend.name}", f"run.root={quoted(root or backend.tmp_path / 'mine')}"),
        *(f"job.script={quoted(Path(__file__).parents[1] / 'scripts/light.py')}", "groups.count=2", "groups.gpus=0"),
        *(f"job.args.steps={steps}", f"job.args.steps-file={quoted(steps_file)}", "job.args.step-time=0.05"),
        *(light(), "job.snapshot=none"),
    ]
