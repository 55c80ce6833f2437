"""What must be done once, outside the run, whoever leads: it is repeated until it is known to be done.

An errand is in the state until the event ErrandDone, so the next controller carries it out if this one cannot.
"""

from __future__ import annotations

from ftslurm.core.state.actions import Errand, NoteBroken
from ftslurm.core.state.turn import Turn
from ftslurm.protocol import records

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
