"""All that has happened in a run, for a controller that takes it over: the journal, read once, and not from its start.

The controller writes down now and then what the journal has come to (RUN/past.json), and up to where. Its successor
goes on from there; if that file is damaged, somebody else's, of another version or of another journal, from the start.
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

VERSION = 1  # of the file: another version's is passed over
SAVE_S = 300.0
LONG = 1 << 22  # bytes of journal that are worth a file at once
_LINE = 1 << 16  # no line of ours is longer


class Story:
    """A run's journal. Whoever asks again only reads what has been added."""

    def __init__(self, run: RunDir) -> None:
        """Begin; nothing of the journal is read yet."""
        self._run, self._journal, self._skim = run, JournalReader(run.events), Skim()
        self._reading, self.status = Reading(), RunStatus()
        self._saved = 0  # where in the journal, when it was written down last
        with suppress(OSError, ValueError, RecursionError):
            self._restore(json.loads(owned_files.read_text(run.past, own=True)))
        self._next = time.monotonic() + SAVE_S

    def read(self) -> tuple[Past | None, str | None]:
        """What the run's controllers have come to, and the outcome if it is over (past.read_past); and `status`.

        Raises:
            EnvironmentProblem: there is a journal, and it cannot be read.
        """
        folding = StatusFold(self.status)
        for event in self._skim.read(self._journal):
            self._reading.fold(event)
            folding.apply(event)
        self.status = folding.status
        if self._journal.offset - self._saved >= LONG:
            self._save()
        return self._reading.past, self._reading.outcome

    def shown(self) -> RunStatus:
        """The status for people: nothing in it steers their terminal."""
        return unpack(RunStatus, readable(pack(self.status)))

    def told(self, tell: Callable[[Event], None]) -> Callable[[Event], None]:
        """A function that is called with every event that is in the journal, as `tell` is, and writes the file."""

        def also(event: Event) -> None:
            tell(event)
            if time.monotonic() >= self._next:
                with suppress(EnvironmentProblem):  # the journal's own writer will say so
                    self.read()
                    self._save()

        return also

    def _save(self) -> None:
        self._next, self._saved = time.monotonic() + SAVE_S, self._journal.offset
        seq = _seq_before(self._run, self._saved)
        known = {"version": VERSION, "offset": self._saved, "seq": seq}
        with suppress(OSError):  # a full disk: the journal itself says all
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
        self._journal.offset, self._skim = offset, Skim(group.group for group in status.groups)


def _seq_before(run: RunDir, offset: int) -> int | None:
    """The number of the line that ends just before this offset; None: none does."""
    with suppress(OSError, IndexError), owned_files.open_file(run.events) as file:
        start = max(0, offset - _LINE)
        text = os.pread(file.fileno(), offset - start, start)
        if text.endswith(b"\n") and len(text) == offset - start:
            return integer(read_object(text[:-1].split(b"\n")[-1]) or {}, "seq")
    return None
