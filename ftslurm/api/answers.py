"""Gives a command to the controller of a run, and waits for its answer.

A command is a file in the run's inbox. The controller answers it with a line in the journal. Nothing is printed here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ftslurm.errors import EnvironmentProblem, NotDone
from ftslurm.monitor import sentences
from ftslurm.monitor.status_fold import StatusFold
from ftslurm.monitor.story import Story
from ftslurm.protocol.records import CommandRefused, JournalRecord, StacksTaken
from ftslurm.run import configuration, facts, inbox
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import Event
from ftslurm.run.journal_lines import read
from ftslurm.security.terminal import readable
from ftslurm.words import plural

ANSWER_S = 10.0  # longest wait for an answer; the controller reads its inbox four times a second
POLL_S = 0.05
Done = TypeVar("Done", bound=JournalRecord)


@dataclass(frozen=True)
class Answer(Generic[Done]):
    """What a command has led to: the journal's record, and its sentence for a person."""

    record: Done
    text: str

    def __str__(self) -> str:
        return self.text


class Conversation:
    """Commands to the controller of a run, and the wait for its answers."""

    def __init__(self, run: RunDir) -> None:
        """Read how the run stands."""
        self.run, self.config = run, configuration.to_steer(run)
        self._watcher = facts.Watcher(self.config, run)
        self._found = self._watcher.look()
        story = Story(run)
        self.status, self._reader = story.status, story.reader.journal
        self._folding = StatusFold(self.status)
        self.ranks = self.config.groups.nodes * self.config.groups.workers  # of each group

    def check(self, **asked: object) -> None:
        """Refuse a run that has no controller, or not the `group` or `rank` that is asked for.

        Raises:
            EnvironmentProblem: it is over, has not started, has lost its controller, or has no such group or rank.
        """
        name = self.run.root.name
        if self.status.outcome != "running":
            raise EnvironmentProblem(f"{name} is over: {sentences.ended(self.status.outcome)}")
        if not self._found.going or self.status.started is None:
            note = "it has not started yet" if self._found.going else self._found.note
            raise EnvironmentProblem(f"{name} {note if self._found.never else f'does not run: {note}'}")
        for what, count in (("group", len(self.status.groups)), ("rank", self.ranks)):
            if asked.get(what) not in (None, *range(count)):
                raise EnvironmentProblem(
                    f"there is no {what} {asked[what]}, only {plural(count, what)}, numbered from 0"
                )

    def ask(
        self,
        what: str,
        done: type[Done],
        timeout_s: float | None = None,
        refused: type[JournalRecord] = CommandRefused,
        **fields: object,
    ) -> Answer[Done]:
        """Give the command, and wait for the answer: the record that has its id, or says again what it has asked for.

        Args:
            done: the record that says it is done.
            refused: the record that refuses it.

        Raises:
            EnvironmentProblem: as `check`, or the controller finds that it can never be.
            NotDone: the controller refuses, has not answered, or the run has ended meanwhile.
        """
        self.check(**fields)
        asked = {"command": inbox.put(self.run.inbox, what, **fields), "by": os.getuid(), **fields}

        def is_answer(record: JournalRecord) -> bool:
            same = (getattr(record, name, None) in (None, value) for name, value in asked.items() if value is not None)
            return isinstance(record, (done, refused)) and all(same)

        wait_s = ANSWER_S if timeout_s is None else timeout_s
        event = self._next(is_answer, wait_s)
        if event is None:
            raise NotDone(self._unanswered(wait_s))
        record, text = read(event), sentences.describe(event, self.status) or ""
        if not isinstance(record, done):
            raise (EnvironmentProblem if getattr(record, "wrong", False) else NotDone)(text)
        return Answer(record, text)

    def stacks(self, command: str, count: int, timeout_s: float) -> list[StacksTaken]:
        """Return the stacks that a command has asked for: at most `count`, fewer if time is up."""
        found = list[StacksTaken]()

        def is_last(record: JournalRecord) -> bool:
            if isinstance(record, StacksTaken) and record.command == command:
                found.append(record)
            return len(found) == count

        self._next(is_last, timeout_s)
        return found

    def _next(self, is_wanted: Callable[[JournalRecord], bool], wait_s: float) -> Event | None:
        """Wait for a line of the journal, until the run has ended or is heard no more, or `wait_s` seconds have passed.

        Whether it is heard is asked once a second.
        """
        deadline, next_look, heard = time.monotonic() + wait_s, time.monotonic() + 1.0, True
        while heard and self.status.outcome == "running" and time.monotonic() < deadline:
            if time.monotonic() >= next_look:
                heard, next_look = self._is_heard(), time.monotonic() + 1.0
            for event in map(readable, self._reader.iter_new()):
                self._folding.apply(event)
                if is_wanted(read(event)):
                    return event
            time.sleep(POLL_S)
        return None

    def _is_heard(self) -> bool:
        """Return whether the controller may still answer."""
        self._found = self._watcher.look()
        return self._found.going and self._found.state != "silent"

    def _unanswered(self, wait_s: float) -> str:
        name = self.run.root.name
        if self.status.outcome != "running":
            return f"{name} {sentences.ended(self.status.outcome)} before it could do that"
        if not self._is_heard():
            not_done = "has not done that yet, and may still do it" if self._found.going else "could not do that"
            return f"{name} {not_done}: {self._found.note}"
        return (
            f"the controller of {name} has not answered within {wait_s:g} s, and may still do it; what it does is in "
            f"{self.run.controller_log}"
        )
