"""Send the Lighthouse the live attempts, and the groups the address of the Lighthouse. Pure.

Level-triggered: the wanted orders are compared with those already sent, so a relaunched Lighthouse gets all of them.
Only our own Lighthouse (`lighthouse.kind=ftslurm`) takes orders; either kind may change its address.
"""

from __future__ import annotations

from ftslurm.config.schema import Config
from ftslurm.core.state.actions import Action, Announce, Evict, NewHistory, Redirect
from ftslurm.core.state.model import LIVE, Phase, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.units import swap
from ftslurm.core.state.values import replace


def orders(state: RunState, now: float, config: Config) -> tuple[RunState, list[Action]]:
    """Send the orders that the Lighthouse has not received yet."""
    lighthouse = state.lighthouse
    if config.lighthouse.kind != "ftslurm" or lighthouse.phase is not Phase.RUNNING:
        return state, []
    actions: list[Action] = []  # evictions first: a dead attempt may not be in the new history
    told = state.told.mutate()
    for unit in state.attended():
        order = _order(unit, state) if unit.group is not None else None
        if order is not None and not _same(order, state.told.get(unit.name)):
            told[unit.name] = order
            actions.append(order)
    if actions:
        state = replace(state, told=told.finish())
    if state.lineage.resuming and state.lineage.allowed_by != lighthouse.id:
        actions.append(NewHistory(lighthouse.id, state.lineage.resume_step))
        state = replace(state, lineage=replace(state.lineage, allowed_by=lighthouse.id))
    return state, actions


def redirect(state: RunState, now: float, config: Config) -> tuple[RunState, list[Action]]:
    """Send the Lighthouse's address to the groups that have another one."""
    actions: list[Action] = []
    url = state.lighthouse_url
    for unit in state.attended() if url is not None else ():
        if unit.group is not None and unit.phase in LIVE and unit.current.lighthouse not in (None, url):
            state = swap(state, replace(unit, current=replace(unit.current, lighthouse=url)))
            actions.append(Redirect(unit.id, str(url)))
    return state, actions


def _order(unit: Unit, state: RunState) -> Announce | Evict | None:
    """Return the order for one group: the store of its live attempt, or the last attempt that is over.

    An attempt is over at the first sign of failure, before its step has ended: survivors wait until it is evicted.
    When the whole run ends, however, its groups may commit their last steps together.
    """
    assert unit.group is not None
    # An address as in protocol/addresses.py.
    store = None if unit.current.store is None else f"{unit.current.store[0]}:{unit.current.store[1]}/store"
    # All its tasks have finished; Slurm may report that later.
    left = bool(unit.current.hosts) and len(unit.current.done) == len(unit.current.hosts)
    over = left or unit.phase not in LIVE or (unit.phase is Phase.STOPPING and state.ending is None)
    if not over and store is not None:
        return Announce(state.lighthouse.id, unit.group, unit.attempt, store)
    last = unit.attempt if over else unit.attempt - 1
    if last < 0:
        return None
    finished = unit.phase is Phase.SUCCEEDED or (left and unit.phase is Phase.RUNNING)
    return Evict(state.lighthouse.id, unit.group, last, store if over else None, finished)


def _same(order: Announce | Evict, old: Announce | Evict | None) -> bool:
    if isinstance(order, Evict) and isinstance(old, Evict):
        return (order.id, order.attempt, order.finished) == (old.id, old.attempt, old.finished)
    return order == old
