"""Runs the runs of a sweep (-m), and tells a sweeper that optimizes what their scripts have reported."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ftslurm.api.run import Run
from ftslurm.config.hydra_adapter import Value
from ftslurm.config.schema import Config
from ftslurm.errors import EnvironmentProblem, FtslurmError, NotDone


class Sweep:
    """The runs of one `ftslurm run -m`: they have the same internal.sweep, by which `list` and `stop` know them."""

    def __init__(self, start: Callable[[Config, bool], int]) -> None:
        """Set what submits one run, and follows it if it is to be followed; it returns an exit code."""
        self._start = start
        self._id: str | None = None

    def run(self, config: Config) -> int:
        """Start a run, which gets the name of the sweep."""
        if self._id is None:
            self._id = f"sweep-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
            print(f"sweep {self._id}; its runs: ftslurm list --sweep {self._id}", file=sys.stderr)
        config.internal.sweep = self._id
        return self._start(config, True)

    def values(self, configs: Sequence[Config]) -> list[Value]:
        """Run some, on Slurm at the same time, and return their values when all are over.

        Raises:
            FtslurmError: one cannot be started.
            KeyboardInterrupt: a local run is stopped then; runs on Slurm go on.
        """
        runs, values, local = list[Run](), list[Value](), configs[0].local
        try:
            for config in configs:
                if self.run(config) == 130:
                    raise KeyboardInterrupt
                runs.append(Run(str(config.run.dir)))
                if local:  # one at a time: they would use the same GPUs
                    values.append(_value(runs[-1]))
            return values or list(map(_value, runs))
        except KeyboardInterrupt:
            for run in runs if local else ():
                with suppress(FtslurmError):
                    run.stop()
            if not local:
                stop = f"ftslurm stop --sweep {self._id} --root {configs[0].run.root}"
                print(f"ftslurm: the sweep ends here, its runs go on; end them with: {stop}")
            raise

    def conclude(self, best: str) -> None:
        """Print what the sweeper says of its runs."""
        print(f"sweep {self._id} is over")
        print("".join(f"  {line}\n" for line in best.splitlines()), end="", flush=True)


def _value(run: Run) -> Value:
    """Wait for a run, and return what its script has reported, or an error that says why it counts as failed."""
    try:
        status = run.wait()
        found = run.value()
    except (EnvironmentProblem, ValueError) as error:  # its controller is gone, or these are no numbers
        return NotDone(f"run {run.id} of the sweep has no value: {error}")
    if status["outcome"] != "succeeded":
        why = status["reason"] or "no reason given"
        return NotDone(f"run {run.id} of the sweep has {status['outcome']}: {why}. See {run.files.logs}")
    if found is None:
        return NotDone(
            f"run {run.id} of the sweep has no value, which the sweeper wants: rank 0 of the script must write "
            f"a number to the file named by the variable FTSLURM_RESULT (ftslurm help scripts)"
        )
    return found[0] if len(found) == 1 else found
