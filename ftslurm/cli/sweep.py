"""Runs the runs of a sweep (-m), and tells a sweeper that optimizes what their scripts have reported."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ftslurm.api.run import Run
from ftslurm.api.state import look, wait
from ftslurm.config.hydra_adapter import Value
from ftslurm.config.schema import Config
from ftslurm.errors import EnvironmentProblem, FtslurmError, NotDone
from ftslurm.run import results
from ftslurm.run.directory import RunDir


class Sweep:
    """The runs of one `ftslurm run -m`: they have the same internal.sweep, by which `list` and `stop` know them."""

    def __init__(self, start: Callable[[Config, bool], int]) -> None:
        """Set what submits one run, and follows it if it is to be followed; it returns an exit code."""
        self._start = start
        self._id: str | None = None

    def run(self, config: Config) -> int:
        """Start a run of the sweep."""
        self._mark(config)
        return self._start(config, True)

    def values(self, configs: Sequence[Config]) -> list[Value]:
        """Run some, on Slurm at the same time, and return their values when all are over.

        Raises:
            FtslurmError: one cannot be started.
            KeyboardInterrupt: a local run is stopped then; runs on Slurm go on.
        """
        runs: list[RunDir] = []
        try:
            for config in configs:
                self._begin(config)
                runs.append(RunDir(Path(str(config.run.dir))))
                if config.cluster.kind == "local":  # one at a time: they would use the same GPUs
                    _wait(config, runs[-1])
            for config, run in zip(configs, runs, strict=True):
                _wait(config, run)
        except KeyboardInterrupt:
            for run in runs if configs[0].cluster.kind == "local" else ():
                with suppress(FtslurmError):
                    Run(run.root).stop()
            if configs[0].cluster.kind != "local":
                stop = f"ftslurm stop --sweep {self._id} --root {configs[0].run.root}"
                print(f"ftslurm: the sweep ends here, its runs go on; end them with: {stop}")
            raise
        return [_value(config, run) for config, run in zip(configs, runs, strict=True)]

    def conclude(self, best: str) -> None:
        """Print what the sweeper says of its runs."""
        print(f"sweep {self._id} is over")
        print("".join(f"  {line}\n" for line in best.splitlines()), end="", flush=True)

    def _begin(self, config: Config) -> None:
        self._mark(config)
        if self._start(config, True) == 130:
            raise KeyboardInterrupt

    def _mark(self, config: Config) -> None:
        """Give a run the name of the sweep."""
        if self._id is None:
            self._id = f"sweep-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
            print(f"sweep {self._id}; its runs: ftslurm list --sweep {self._id}", file=sys.stderr)
        config.internal.sweep = self._id


def _wait(config: Config, run: RunDir) -> None:
    try:
        wait(config, run, None)
    except EnvironmentProblem as error:  # its controller is gone: a run without a value
        print(f"ftslurm: {error}", file=sys.stderr)


def _value(config: Config, run: RunDir) -> Value:
    """Return what a run's script has reported, or an error that says why it counts as failed."""
    status = look(config, run).status
    if status.outcome != "succeeded":
        why = f": {status.reason}" if status.reason else ""
        return NotDone(f"run {run.root.name} of the sweep has {status.outcome}{why}. See {run.logs}")
    try:
        found = results.read(run)
    except ValueError as error:
        return NotDone(f"run {run.root.name} of the sweep has no value: {error}")
    if found is None:
        return NotDone(
            f"run {run.root.name} of the sweep has no value, which the sweeper wants: rank 0 of the script must write "
            f"a number to the file named by the variable FTSLURM_RESULT (ftslurm help scripts)"
        )
    return found[0] if len(found) == 1 else found
