"""Tell the Lighthouse which attempts live, and the groups where the Lighthouse and the parameter servers are. Pure.

Level-triggered: what is wanted is compared with what was sent, so a relaunched Lighthouse gets all orders. Only our own
Lighthouse (`lighthouse.kind=ftslurm`) takes orders; either kind may change its address, as a restarted server does:
every group's guards forward to them (guard/forwarder.py).
"""

from __future__ import annotations

from typing import Any

from ftslurm.core.groups import fault_drills
from ftslurm.core.groups.reports import recovery
from ftslurm.core.state.actions import Send
from ftslurm.core.state.model import LIVE, Phase, Unit, replace
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.units import serves
from ftslurm.protocol import messages, records
from ftslurm.protocol.stages import Stage


def to_groups(turn: Turn) -> None:
    """Tell the Lighthouse which attempts live, and then the groups where it is."""
    _to_lighthouse(turn)
    _redirect(turn)


def _to_lighthouse(turn: Turn) -> None:
    """Send the orders that the Lighthouse has not received yet."""
    lighthouse = turn.lighthouse
    if turn.config.lighthouse.kind != "ftslurm" or lighthouse.phase is not Phase.RUNNING:
        return
    # A new Lighthouse hears of all live attempts first: a member that it does not know by then is over.
    for kind in (messages.Member, messages.Evict):
        for unit in turn.attended():
            order, told = _order(turn, unit), turn.state.told
            if order is not None and isinstance(order.message, kind) and not _same(order, told.get(unit.name)):
                turn.set(told=told.set(unit.name, order))
                turn.do(order)
    # After the evictions: a dead attempt may not be in the new history.
    if turn.lineage.resuming and turn.lineage.allowed_by != lighthouse.id:
        turn.send(lighthouse, messages.NewHistory(turn.lineage.resume_step))
        turn.set_lineage(allowed_by=lighthouse.id)


def _redirect(turn: Turn) -> None:
    """Send the Lighthouse's address to the groups that have another one."""
    url = turn.state.lighthouse_url
    for unit in turn.attended() if url is not None else ():
        if unit.phase in LIVE and unit.current.lighthouse not in (None, url):
            unit = turn.attempt(unit, lighthouse=url)
            turn.send(unit, messages.LighthouseMoved(str(url)))


def _order(turn: Turn, unit: Unit) -> Send | None:
    """Return the order for one group: the store of its live attempt, or the last attempt that is over.

    An attempt is over at the first sign of failure, before its step has ended: survivors wait until it is evicted.
    When the whole run ends, however, its groups may commit their last steps together.
    """
    if unit.group is None:
        return None
    # An address as in protocol/addresses.py.
    store = None if unit.current.store is None else f"{unit.current.store[0]}:{unit.current.store[1]}/store"
    # All its tasks have finished; Slurm may report that later.
    left = bool(unit.current.hosts) and len(unit.current.done) == len(unit.current.hosts)
    over = left or unit.phase not in LIVE or (unit.phase is Phase.STOPPING and turn.goes_on)
    if not over and store is not None:
        return Send(turn.lighthouse.id, messages.Member(unit.group, unit.attempt, store))
    last = unit.attempt if over else unit.attempt - 1
    if last < 0:
        return None
    # A script that is told to leave may end with 0 too, so only the judged end of its step says that it has finished.
    evict = messages.Evict(unit.group, last, store if over else None, unit.phase is Phase.SUCCEEDED)
    return Send(turn.lighthouse.id, evict)


def _same(order: Send, old: Send | None) -> bool:
    """Return whether an order says the same as one before; the store of an attempt that is over may be forgotten."""
    if old is not None and isinstance(order.message, messages.Evict) and isinstance(old.message, messages.Evict):
        order = replace(order, message=replace(order.message, store=old.message.store))
    return order == old


def aside(turn: Turn, said: messages.GroupAside) -> None:
    """Write down that the Lighthouse has set a group aside, or that it takes part again; not of one that is ending."""
    if not 0 <= said.group < turn.table.groups:
        return
    unit = turn.table.group(said.group)
    if unit.attempt != said.attempt or unit.phase not in LIVE:
        return  # it has ended meanwhile
    turn.attempt(unit, aside=turn.lighthouse.id if said.aside else None)
    ends = unit.pulse is not None and unit.pulse.stage is Stage.SHUT_DOWN
    if ends or unit.phase is Phase.STOPPING or unit.current.over or unit.current.done:
        return
    kind = records.GroupSetAside if said.aside else records.GroupHeardAgain
    turn.do(kind(**unit.of_group, seconds=said.seconds))


# --- parameter servers ------------------------------------------------------------------------------------------------


def urls(turn: Turn) -> tuple[str, ...]:
    """Return the address of each serving group's server, in the order of the groups; empty: down at the moment."""
    every = turn.state.groups if turn.config.groups.serve else ()
    serving = (unit for unit in every if serves(unit.group, turn.config))
    return tuple(unit.current.url or "" if unit.phase is Phase.RUNNING else "" for unit in serving)


def servers(turn: Turn) -> None:
    """Send the servers' current addresses to the groups that have other ones."""
    if not turn.config.groups.serve or not turn.goes_on:
        return
    there = urls(turn)
    for unit in turn.state.groups:  # few runs have servers
        if unit.phase in LIVE and unit.current.assigned and unit.current.servers != there:
            unit = turn.attempt(unit, servers=there)
            turn.send(unit, messages.Servers(there))


def server_said(turn: Turn, said: messages.Serving | messages.Served | messages.SessionOpened, unit: Unit) -> None:
    """Fold a message of a parameter server into the state; with a quorum, servers are the script's own: ignored."""
    if not turn.independent:
        return
    match said:
        case messages.Serving(url):
            turn.do(records.Serving(**unit.names, url=url, **_back(turn, unit)))
            turn.attempt(unit, url=url)
        case messages.Served(step):
            _served(turn, step, unit)
        case messages.SessionOpened():
            turn.do(records.SessionOpened(**unit.of_group, **_back(turn, unit)))


def _served(turn: Turn, step: int, unit: Unit) -> None:
    """Record a server's progress. The step of the run is the server's step, even if that decreases."""
    progress = records.Progress(
        **unit.of_group,
        step=step,
        quorum_id=None,
        participants=None,
        committed=None,
        aborted=None,
        gap_s=None,
    )
    turn.do(progress)
    if serves(unit.group, turn.config):
        turn.set_lineage(step=step)
        turn.attempt(unit, step=step)
        for group in turn.state.groups:
            fault_drills.inject_planned(turn, group, step)


def _back(turn: Turn, unit: Unit) -> dict[str, Any]:
    """Mark a unit as at work from now on, and return the durations of its recovery; empty: it was at work before."""
    return recovery(turn.mark(unit, joined=turn.now).marks, turn.now) if unit.marks.joined is None else {}
