"""Reads the history of a run for a controller that takes it over, without reading the whole journal.

Every few minutes the controller saves in RUN/past.json the folded journal and the byte up to which it was read. Its
successor reads the journal from there; or from the start, if that file is damaged, of another version or of another
journal, or belongs to another user.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress

from ftslurm.controller.stored_values import pack, unpack
from ftslurm.core.state.past import Past
from ftslurm.errors import EnvironmentProblem
from ftslurm.monitor.status import RunStatus
from ftslurm.monitor.status_fold import StatusFold
from ftslurm.run.directory import RunDir, replace_text
from ftslurm.run.journal import Event, JournalReader, integer
from ftslurm.run.journal_filter import Skim
from ftslurm.run.replay import Reading
from ftslurm.security import owned_files
from ftslurm.security.json_text import read_object
from ftslurm.security.terminal import readable

VERSION = 1  # of the file; a file of another version is ignored
SAVE_S = 300.0
LONG = 1 << 22  # after reading so many bytes of journal the file is saved at once
_LINE = 1 << 16  # no line of ours is longer


class Story:
    """A run's journal, folded. Each `read` reads only what has been added."""

    def __init__(self, run: RunDir) -> None:
        """Load the saved file. The journal is not read yet."""
        self._run, self.journal, self._skim = run, JournalReader(run.events), Skim()
        self._reading, self.status = Reading(), RunStatus()
        self._saved = 0  # offset in the journal when the file was saved last
        with suppress(OSError, ValueError, RecursionError):
            self._restore(json.loads(owned_files.read_text(run.past, own=True)))
        self._next = time.monotonic() + SAVE_S

    def read(self) -> tuple[Past | None, str | None]:
        """Return what the run's controllers have done, and the outcome if the run is over. Also update `status`.

        Raises:
            EnvironmentProblem: the journal cannot be read.
        """
        folding = StatusFold(self.status)
        for event in self._skim.read(self.journal):
            self._reading.fold(event)
            folding.apply(event)
        self.status = folding.status
        return self._reading.past, self._reading.outcome

    def shown(self) -> RunStatus:
        """Return the status without control characters, which could steer a terminal."""
        return unpack(RunStatus, readable(pack(self.status)))

    def told(self, tell: Callable[[Event], None]) -> Callable[[Event], None]:
        """Return a function that passes each event of the journal to `tell` and saves the file when it is due.

        For the controller alone: others may read the journal, and write nothing.
        """
        if self.journal.offset - self._saved >= LONG:
            self._save()

        def also(event: Event) -> None:
            tell(event)
            if time.monotonic() >= self._next:
                with suppress(EnvironmentProblem):  # the journal's writer reports it
                    self.read()
                    self._save()

        return also

    def _save(self) -> None:
        self._next, self._saved = time.monotonic() + SAVE_S, self.journal.offset
        seq = _seq_before(self._run, self._saved)
        known = {"version": VERSION, "offset": self._saved, "seq": seq}
        with suppress(OSError):  # a full disk: the successor reads the whole journal
            replace_text(
                self._run.past, json.dumps({**known, "past": pack(self._reading), "status": pack(self.status)})
            )

    def _restore(self, file: object) -> None:
        if not isinstance(file, dict) or file.get("version") != VERSION:
            return
        offset, seq = integer(file, "offset"), integer(file, "seq")
        if offset is None or seq is None or seq != _seq_before(self._run, offset):
            return
        reading, status = unpack(Reading, file.get("past")), unpack(RunStatus, file.get("status"))
        self._reading, self.status, self._saved = reading, status, offset
        self.journal.offset, self._skim = offset, Skim(group.group for group in status.groups)


def _seq_before(run: RunDir, offset: int) -> int | None:
    """Return the `seq` of the line that ends at this offset, None if no line ends there."""
    with suppress(OSError, IndexError), owned_files.open_file(run.events) as file:
        start = max(0, offset - _LINE)
        text = os.pread(file.fileno(), offset - start, start)
        if text.endswith(b"\n") and len(text) == offset - start:
            return integer(read_object(text[:-1].split(b"\n")[-1]) or {}, "seq")
    return None
