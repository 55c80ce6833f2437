"""A run directory with a journal that tests write, and its observer as a process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import example_journal as ex
from example_journal import Line

from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.run import deliveries
from ftslurm.run.deliveries import Delivery
from ftslurm.run.directory import RunDir, replace_text

PATIENCE_S = 60.0  # a bound for a hang, not a claim about speed


@dataclass
class Observed:
    """A run with hooks, callbacks or metrics."""

    run: RunDir

    def write(self, *lines: Line) -> None:
        """Append these lines to the journal."""
        ex.write(self.run, lines)

    @contextmanager
    def observer(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start an observer; at the end of the block close its input, and wait until it has ended by itself."""
        process = subprocess.Popen(
            [sys.executable, "-m", "ftslurm.observer.observer", str(self.run.root), *options], stdin=subprocess.PIPE
        )
        try:
            yield process
            assert process.stdin is not None
            process.stdin.close()
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()

    def observe(self) -> None:
        """Tell all that is in the journal."""
        with self.observer() as process:
            pass
        assert process.returncode == 0

    @property
    def told(self) -> dict[str, Delivery]:
        """What each receiver has got."""
        return {one.name: one for one in deliveries.read(self.run)}


def observed(tmp_path: Path, **sections: dict[str, Any]) -> Observed:
    """Make a run directory whose configuration has these values: hooks={"timeout_s": 2.0}."""
    config, run = Config(), RunDir(tmp_path / "run")
    config.job.script, config.run.name = "train.py", "run"
    for section, values in sections.items():
        for key, value in values.items():
            setattr(getattr(config, section), key, value)
    run.create()
    replace_text(run.config, compose.dump(config))
    return Observed(run)


def until(true: Callable[[], object], what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
