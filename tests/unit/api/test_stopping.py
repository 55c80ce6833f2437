"""What `ftslurm stop` says, and what a stopped run does not say."""

from __future__ import annotations

import os
import platform
import threading
import time
from pathlib import Path

import commands_left
import example_journal as ex
import pytest

from ftslurm.api.run import Run
from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.run.directory import RunDir, replace_text

BEGUN = [ex.started(1) | {"host": platform.node()}, ex.launched(1, 0), ex.ready(2, 0)]
JOINED = ex.joined(2.5, 0, 1)


def new_run(folder: Path, checkpoints: str | None, *lines: ex.Line) -> RunDir:
    run = RunDir(folder / "ddp-0930-k3")
    run.create()
    ex.write(run, [*BEGUN, *lines])
    config = Config()
    config.job.script, config.cluster.kind, config.checkpoint.dir = "train.py", "local", checkpoints
    run.config.write_text(compose.dump(config))
    run.alive.touch()
    replace_text(run.job_id, str(os.getpid()))
    return run


def stopped(run: RunDir, save: bool = False) -> str:
    """Stop a run whose controller answers, and return what is said after its name."""

    def controller() -> None:
        deadline, what = time.monotonic() + 20, ""
        while what != "stop" and time.monotonic() < deadline:
            for command in commands_left.take(run.inbox):
                what, asked = command["what"], {"command": command["id"], "by": os.getuid()}
                done = ex.event(19, "command_done", what=what, text="checkpoint of step 51: /c/step-51", **asked)
                ex.write(run, [done if what == "save" else ex.event(20, "command", what=what, by=os.getuid())])
            time.sleep(0.01)

    thread = threading.Thread(target=controller, daemon=True)
    thread.start()
    said = Run(run.root).stop(save)
    thread.join()
    return said.removeprefix(run.root.name)


def test_stop_reads_of_long_progress_only_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path, None, JOINED)
    ex.write(run, [ex.progress(second, 0, second) for second in range(3, 10_003)])
    read, real = [0], os.pread

    def pread(*args: int) -> bytes:
        data = real(*args)
        read[0] += len(data)
        return data

    monkeypatch.setattr(os, "pread", pread)
    assert stopped(run) == " is stopping"
    assert read[0] < 600_000 < run.progress.stat().st_size


@pytest.mark.parametrize("folder", [None, "s3://bucket/never-asked"])
def test_stop_tells_when_the_controller_has_heard_it(folder: str | None, tmp_path: Path) -> None:
    assert stopped(new_run(tmp_path, folder, JOINED, ex.progress(5, 0, 51))) == " is stopping"


def test_stop_names_the_checkpoint_that_it_has_saved(tmp_path: Path) -> None:
    said = stopped(new_run(tmp_path, None, JOINED, ex.progress(5, 0, 51)), save=True)
    assert said == " is stopping; saved: checkpoint of step 51: /c/step-51"
