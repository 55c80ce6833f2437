"""What must be done once, whoever leads: it is repeated until it is known to be done.

An errand, outside the run, is in the state until the event ErrandDone, so the next controller carries it out if this
one cannot. A request to guards is in the state until they have answered, and the next controller repeats it.
"""

from __future__ import annotations

from ftslurm.core.state.actions import Cancel, Errand, NoteBroken
from ftslurm.core.state.model import Unit, replace
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.units import tasks_of
from ftslurm.protocol import messages, records

AGAIN_S = 100.0  # longer than an object store takes to refuse


def add(turn: Turn, errand: Errand) -> None:
    """Carry out an errand. A word about a node replaces an earlier one."""
    for other in tuple(turn.state.errands):
        if isinstance(errand, NoteBroken) and isinstance(other, NoteBroken) and other.node == errand.node:
            done(turn, other)
    _carry_out(turn, errand)


def done(turn: Turn, errand: Errand) -> None:
    """Forget an errand."""
    errands = turn.state.errands
    turn.set(errands=errands.delete(errand) if errand in errands else errands)


def repeat(turn: Turn) -> None:
    """Carry all out again: nobody knows whether an earlier controller has."""
    for errand in turn.state.errands:
        _carry_out(turn, errand)


def carry_out(turn: Turn) -> None:
    """Carry out again what is not known to be done."""
    for errand, again in turn.state.errands.items() if not turn.state.finished else ():
        if turn.due(again):
            _carry_out(turn, errand)


def are_open(turn: Turn) -> bool:
    """Return whether the end of the run waits for an errand: each gets one more chance."""
    return any(not turn.due(again) for again in turn.state.errands.values())


def _carry_out(turn: Turn, errand: Errand) -> None:
    turn.set(errands=turn.state.errands.set(errand, turn.now + AGAIN_S))
    turn.do(errand)


def tell_undone(turn: Turn) -> None:
    """Say at the end of the run what could not be done."""
    for errand in turn.state.errands:
        turn.do(records.Warned(group=None, text=f"could not be done, see controller.log: {errand}"))


# --- requests to guards -----------------------------------------------------------------------------------------------


def request(turn: Turn, unit: Unit, wanted: messages.Request) -> None:
    """Request something of the guards of a step, once."""
    of_all = isinstance(wanted, messages.Dump) and wanted.task is None
    each = [replace(wanted, task=task) for task in range(tasks_of(unit, turn.config))] if of_all else [wanted]
    turn.attempt(unit, unanswered=unit.current.unanswered.union(each))
    if not unit.adopting:  # else once its guards have reported
        _send(turn, unit, wanted)


def answered(turn: Turn, unit: Unit, wanted: messages.Request) -> None:
    """Note that a guard has answered."""
    turn.attempt(unit, unanswered=unit.current.unanswered - {wanted})


def request_again(turn: Turn, unit: Unit) -> None:
    """Repeat what was not answered: nobody knows whether an earlier controller has sent it."""
    for wanted in unit.current.unanswered:
        _send(turn, unit, wanted)


def _send(turn: Turn, unit: Unit, wanted: messages.Request) -> None:
    if isinstance(wanted, messages.Inject) and wanted.fault == "cancel":
        turn.do(Cancel(unit.id))
    else:
        turn.send(unit, wanted)
