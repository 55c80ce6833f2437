"""An error in the handling of one message does not end the controller: the message is dropped, the error is recorded.

Whatever a worker, srun, Slurm, a file or a user says may meet a bug of ours. Who handles one such thing does it inside
`Mishaps.survived`. A rule that fails on the state alone, without anything new, is another matter: that would happen
again and again, so it ends the controller.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ftslurm.config.schema import Config
from ftslurm.core import rules as core
from ftslurm.core.state.actions import Action
from ftslurm.core.state.events import Event, Granted
from ftslurm.core.state.model import RunState
from ftslurm.launchers.background import Answered
from ftslurm.launchers.step_processes import Complained, Gone, News, Said
from ftslurm.run.leadership import Superseded
from ftslurm.security.json_text import brief

EVERY_S = 60.0  # the same error is recorded at most this often
_LONGEST = 500  # characters of an error
log = logging.getLogger("ftslurm.controller.loop")


class Mishaps:
    """Records the errors that are survived."""

    def __init__(self, record: Callable[..., None], clock: Callable[[], float]) -> None:
        """Begin.

        Args:
            record: writes a line of the journal, given its fields.
            clock: the time in seconds; it never goes back.
        """
        self._record, self._clock = record, clock
        self._recorded: dict[str, float] = {}  # place in the code -> when an error there was last recorded

    @contextmanager
    def survived(self, where: str, what: object) -> Iterator[None]:
        """Handle one thing; an error in that is recorded, and what is left to do with the thing is not done.

        Args:
            where: what kind of thing it is, for a person: "a message of group-0001/2".
            what: the thing itself.
        """
        try:
            yield
        except Superseded:
            raise
        except Exception as error:
            self._note(where, what, error)

    def _note(self, where: str, what: object, error: Exception) -> None:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place, now = f"{last.filename}:{last.lineno} {type(error).__name__}", self._clock()
        if now < self._recorded.get(place, -EVERY_S) + EVERY_S:
            return
        self._recorded[place] = now
        log.error("an error in the handling of %s is survived: %s", where, brief(what), exc_info=error)
        self._record("controller_error", where=where, error=f"{type(error).__name__}: {error}"[:_LONGEST])


def decide(
    state: RunState, events: Sequence[Event], now: float, config: Config, mishaps: Mishaps
) -> tuple[RunState, list[Action]]:
    """Decide as core.decide does; if that fails, without those events with which it fails.

    Raises:
        Exception: it fails without any event, too, or the run cannot even begin.
    """
    try:
        return core.decide(state, events, now, config)
    except Exception:
        if any(isinstance(event, Granted) for event in events):
            raise
    state, actions = core.decide(state, [], now, config)
    for event in events:
        with mishaps.survived(f"an event ({type(event).__name__})", event):
            state, more = core.decide(state, [event], now, config)
            actions += more
    return state, actions


def described(news: News) -> str:
    """What has come in, for a person who reads of an error in its handling."""
    if isinstance(news, Answered):
        return f"an answer of Slurm's ({news.what})"
    words = {Said: "a message of", Complained: "a line of the launcher of", Gone: "the end of"}
    return f"{words[type(news)]} {news.id}"
