"""Contains errors in the handling of one input or action: the error is recorded, and the run goes on.

Any input from workers, srun, Slurm, a file or a user may meet a bug of ftslurm. Each input, and each action, is handled
inside `ErrorBoundary.contain`. A rule that fails on the state alone, without any event, is not contained: it would fail
again and again, so it ends the controller, whose parent starts the next one.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ftslurm.config.schema import Config
from ftslurm.core import rules as core
from ftslurm.core.state.actions import Action
from ftslurm.core.state.events import Ended, Event, Granted, Heard
from ftslurm.core.state.model import StepId, replace
from ftslurm.core.state.run_state import RunState
from ftslurm.protocol.records import ControllerError, JournalRecord
from ftslurm.run.leadership import Superseded
from ftslurm.security.json_text import brief

EVERY_S = 60.0  # the same error is recorded at most this often
_LONGEST = 500  # characters of an error
log = logging.getLogger("ftslurm.controller.loop")


class ErrorBoundary:
    """Contains errors and records them."""

    def __init__(self, record: Callable[[JournalRecord], None], clock: Callable[[], float]) -> None:
        """Start with no recorded errors.

        Args:
            record: writes a record into the journal.
            clock: the time in seconds; it never goes back.
        """
        self._record, self._clock = record, clock
        self._recorded: dict[str, float] = {}  # place in the code -> when an error there was last recorded

    @contextmanager
    def contain(self, what: str, value: object) -> Iterator[None]:
        """Record an error of the `with` block and suppress it.

        Args:
            what: the kind of input or action, for a person: "a message of group-0001/2".
            value: the input or action itself.

        Raises:
            Superseded: another controller leads; that is no error.
        """
        try:
            yield
        except Superseded:
            raise
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place, now = f"{last.filename}:{last.lineno} {type(error).__name__}", self._clock()
            if now >= self._recorded.get(place, -EVERY_S) + EVERY_S:
                self._recorded[place] = now
                log.error("error in the handling of %s, the run goes on: %s", what, brief(value), exc_info=error)
                self._record(ControllerError(where=what, error=f"{type(error).__name__}: {error}"[:_LONGEST]))


def decide(
    state: RunState, events: Sequence[Event], now: float, config: Config, errors: ErrorBoundary
) -> tuple[RunState, list[Action]]:
    """Call core.decide. If it fails, call it for each event alone and drop the events with which it fails.

    The end of a step is never dropped, else its unit would be brought down for ever: it is decided on without what is
    known of the attempt.

    Raises:
        Exception: it also fails without any event, or the run cannot begin.
    """
    try:
        return core.decide(state, events, now, config)
    except Exception:
        if any(isinstance(event, Granted) for event in events):
            raise
    state, actions = core.decide(state, [], now, config)
    for event in events:
        what = event.message if isinstance(event, Heard) else event
        with errors.contain(f"an event ({type(what).__name__})", event):
            state, more = core.decide(state, [event], now, config)
            actions += more
            continue
        if isinstance(event, Ended):
            with errors.contain(f"the end of {event.id}", event):
                end = Ended(event.id, None, checkpoint=state.lineage.checkpoint)
                state, more = core.decide(_without_signs(state, event.id), [end], now, config)
                actions += more
    return state, actions


def _without_signs(state: RunState, step: StepId) -> RunState:
    """Return the state without what is known of how a step has failed."""
    unit = state.table.living(step)
    if unit is None:
        return state
    plain = replace(unit.current, evidence=(), traces=())
    return replace(state, table=state.table.put(replace(unit, current=plain)))
