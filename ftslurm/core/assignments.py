"""Assign ranks to steps and start their scripts.

A step is assigned its ranks once all its tasks are ready, and its script begins once its store is up. At the first
start and at a full restart the groups begin together: a group that begins alone commits steps alone, and the others
have to heal from it. So every group waits until each other group has its store or has failed once.
"""

from __future__ import annotations

from ftslurm.config.schema import Config
from ftslurm.core import orders
from ftslurm.core.groups import ranks, reports
from ftslurm.core.groups.launching import fence, store_within_s
from ftslurm.core.lineage import continuity
from ftslurm.core.state.actions import Assign
from ftslurm.core.state.model import Evidence, Phase, Unit
from ftslurm.core.state.transitions import run, stop
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.units import tasks_of
from ftslurm.protocol import messages, records
from ftslurm.protocol.causes import Cause


def assign(turn: Turn) -> None:
    """Assign ranks to the steps whose tasks are all ready, then start the scripts that may begin."""
    if not turn.goes_on:
        return
    url, waiting = turn.state.lighthouse_url, [unit for unit in turn.attended() if _is_ready(unit, turn.config)]
    servers = orders.urls(turn) if waiting else ()
    for unit in waiting if url is not None else ():
        earlier = fence(unit) if unit.current.ran_as is not None else ()
        turn.do(
            Assign(unit.id, unit.group_id, ranks.of(unit), str(url), unit.attempt, unit.place.slot, earlier, servers)
        )
        unit = turn.attempt(unit, assigned=True, lighthouse=url, servers=servers)
        turn.change(unit, due=turn.now + store_within_s(unit, turn.config))
    if not turn.state.released:
        turn.set(released=turn.independent or reports.awaited(turn) is None)
    if turn.state.released:
        _begin(turn)


def _is_ready(unit: Unit, config: Config) -> bool:
    """Return whether every task of a group's step waits for its assignment."""
    if unit.phase is not Phase.STARTING or unit.group is None or unit.current.assigned or unit.adopting:
        return False
    return len(unit.current.ready) == tasks_of(unit, config) and None not in unit.current.hosts


def _mixed(turn: Turn, unit: Unit) -> Evidence | None:
    """Return the sign that a group has another torchft than the Lighthouse or a group that trains; None: it has not."""
    trains = next(iter(turn.table.names(Phase.RUNNING)), unit.name)
    sides = [
        (version, one.current.hosts[task], "the Lighthouse" if one.is_lighthouse else f"group {one.group}")
        for one in (unit, turn.table.by_name[trains], turn.lighthouse)
        for task, version in one.current.ready.items()
        if version
    ]
    for version, node, who in sides:
        mine, here, _ = sides[0]
        if version != mine:
            error = f"group {unit.group} has {mine} on {here}, and {who} {version} on {node}"
            return Evidence(None, here, error=error, cause=Cause.OTHER_VERSION)
    return None


def _begin(turn: Turn) -> None:
    """Start the scripts of the steps whose stores are up."""
    for unit in turn.attended():
        store = unit.current.store
        if unit.phase is not Phase.STARTING or unit.group is None or store is None or unit.adopting:
            continue
        if not turn.independent and (mixed := _mixed(turn, unit)):
            stop(turn, unit, mixed.cause, mixed)
            continue
        reached = continuity.reached(turn.state, turn.config)
        floor = reached or (turn.lineage.resume_step if turn.lineage.resuming else 0)
        turn.do(records.ScriptBegun(**unit.names))
        turn.send(unit, messages.Begin(*store, reached > 0, floor, history=turn.lineage.history))
        unit = turn.attempt(unit, floor=floor)
        unit = turn.mark(unit, begun=turn.now)
        run(turn, unit)
        turn.set_lineage(advanced=turn.lineage.advanced or turn.independent)
