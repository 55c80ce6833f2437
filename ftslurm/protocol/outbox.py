"""How code in the script's own process talks with the controller. Outside of a worker nobody listens or asks."""

from __future__ import annotations

from collections.abc import Callable


def _nobody(kind: str, **fields: object) -> None:
    pass


def _nothing() -> int:
    return 0


say: Callable[..., None] = _nobody  # session.py replaces it; called as `tell.say("checkpoint", step=100)`
wanted: Callable[[], int] = _nothing  # the same; the step from which on a checkpoint is wanted: see position.py
