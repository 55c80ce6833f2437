"""Tells which process of a run may log, and hands it the metrics of every committed step, once.

The leader may die after a step and before it has logged it. So all processes keep the metrics of the last steps, the
leader notes in a file how far it has logged, and the next leader begins there.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, SupportsFloat

from ftslurm.errors import complain
from ftslurm.security import owned_files

KEPT = 1000  # steps whose metrics a process keeps for the case that it must log them
MARK = "logged-steps"  # the file in the run directory
_DIGITS = 20  # of the number in it, so that a write replaces it whole


class Manager(Protocol):
    """The part of torchft.Manager that this folder uses."""

    def current_step(self) -> int:
        """Return the number of committed steps."""

    def participating_rank(self) -> int | None:
        """Return this group's rank among the participants, None for a group that heals or is a spare."""


def is_leader(manager: Manager) -> bool:
    """Return whether this process leads at the present step: rank 0 of the group whose participating rank is 0.

    One process of the run leads in each quorum. When its group dies, the next quorum has another leader. Before the
    first quorum nobody leads.
    """
    return os.environ.get("RANK", "0") == "0" and manager.participating_rank() == 0


class StepMetrics:
    """The metrics of the steps that were committed last. Every rank of every group makes one."""

    def __init__(self, manager: Manager, path: str | os.PathLike[str] | None = None, *, settle_s: float = 0.0) -> None:
        """Prepare to hand out metrics.

        Args:
            manager: torchft's.
            path: the file that holds the last step logged; all groups must reach it. Default: a file in the run
                directory. Outside ftslurm, without a path, it is kept in memory only.
            settle_s: how long after it was given a step the tracker may lose it with its process. The steps of the last
                so many seconds before the death of the leader are logged once more by the next one.
        """
        self._settle_s = settle_s
        self._settling: deque[tuple[float, int]] = deque()  # when a step was logged, and the step; not noted yet
        folder = os.environ.get("FTSLURM_RUN_DIR")
        self._path = Path(path) if path else Path(folder, MARK) if folder else None
        self._run = os.environ.get("FTSLURM_RUN_ID", "")
        self._manager = manager
        self._kept: dict[int, dict[str, float]] = {}  # by step, ascending
        self._logged: int | None = None  # the last step logged by anybody; None: the file must be read
        self._failing = False
        self.leads = False  # whether this process led at the step of the last call

    def committed(self, **values: SupportsFloat) -> Iterator[tuple[int, dict[str, float]]]:
        """Keep the metrics of the step that was just committed; in the leader, return what is to be logged now.

        Call it after every committed step (manager.current_step() has risen since the quorum), on all ranks. The values
        must be the same in all groups, so average them: another group may have to log them.

        Returns:
            Steps and their metrics, ascending, and nothing in processes that do not lead. A step counts as logged when
            the loop asks for the next one or ends; if the tracker raises an exception, it is returned again.
        """
        step = self._manager.current_step()
        if step > max(self._kept, default=0):
            self._kept[step] = {name: float(value) for name, value in values.items()}
        while len(self._kept) > KEPT:
            del self._kept[min(self._kept)]
        led, self.leads = self.leads, is_leader(self._manager)
        if self.leads and not led:
            self._logged = None
            self._settling.clear()
        return self._due() if self.leads else iter(())

    def state_dict(self) -> dict[str, Any]:
        """Return the metrics of the last steps: what a group that heals may have to log."""
        return {"run": self._run, "steps": [(step, dict(values)) for step, values in self._kept.items()]}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take over the metrics of the last steps; those of another run have been logged there."""
        self._kept = {step: dict(values) for step, values in state["steps"]} if state["run"] == self._run else {}

    def _due(self) -> Iterator[tuple[int, dict[str, float]]]:
        if self._logged is None:
            self._logged = self._read()
        for step in [step for step in self._kept if step > self._logged]:
            yield step, dict(self._kept[step])
            self._logged = step
            settled, now = None, time.monotonic()
            self._settling.append((now, step))
            while self._settling and now - self._settling[0][0] >= self._settle_s:
                _, settled = self._settling.popleft()
            if settled is not None:  # the tracker cannot lose it any more
                self._write(settled)

    def _read(self) -> int:
        """Return the last step that was logged, 0 if none was or the file cannot be used."""
        if self._path is None:
            return 0
        try:
            return int(owned_files.read_text(self._path, own=True))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            self._complain(error, "steps may be logged twice")
            return 0

    def _write(self, step: int) -> None:
        """Note a step; the file is closed each time, so that other nodes see it on NFS, too."""
        if self._path is None:
            return
        try:
            number = owned_files.open_fd(self._path, os.O_WRONLY | os.O_CREAT)
            try:
                os.pwrite(number, b"%0*d\n" % (_DIGITS, step), 0)
            finally:
                os.close(number)
            self._failing = False
        except OSError as error:
            self._complain(error, "if another group must log, it logs steps twice")

    def _complain(self, error: Exception, effect: str) -> None:
        if not self._failing:
            reason = error.strerror if isinstance(error, OSError) else error
            complain(f"{self._path}: {reason}; {effect}")
        self._failing = True
