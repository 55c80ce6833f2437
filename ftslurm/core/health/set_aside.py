"""Have a group whose guards are silent left out of the next quorums, before its node counts as lost. Pure.

When a node vanishes (a power failure, a broken cable), no connection closes: the other groups wait in a collective, or
for the next quorum, until config.silent_after_s. The guards of the group are missed earlier, after two
heartbeats. The Lighthouse is sent the list of such groups. It sets a group aside if it does not hear the group's
manager either: the quorum is broken, as after a death, and the next ones are formed without the group. The attempt is
not ended: as soon as its manager is heard again the group takes part again, and heals if it is behind.

In a group of several nodes one of the others may be silent, while the manager lives and waits for it. Then there is no
second witness, so that node must be silent for longer while the manager's node is heard.

Silence is no evidence if the controller itself did not run, or has lost its network. So silence from before the
controller was late does not count, and a group is set aside only if at least as many others are heard, and with those
that have finished groups.min.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from ftslurm.config.schema import Config
from ftslurm.core.groups import ranks
from ftslurm.core.groups.exits import Outcome
from ftslurm.core.health.hang_limit import LOOK_S_PER_GROUP
from ftslurm.core.health.silence import silences
from ftslurm.core.state.actions import Action, SetAside
from ftslurm.core.state.events import GroupAside
from ftslurm.core.state.model import LIVE, Phase, SilentGroup, SilentGuards, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.unit_table import Trait
from ftslurm.core.state.values import replace
from ftslurm.protocol import records

HEARTBEATS = 2  # of a guard that are missing when it counts as silent
MANAGER_S = 1.5  # a manager is silent after this time: it sends a heartbeat once a second at least
ALONE = 1.25  # times as long if the group's manager is on another node, which is heard
LATE_S = 0.5  # a look that comes later than this shows that the controller did not run
AGAIN_S = 0.25  # between looks while a group is silent
MOST = 500  # groups that are set aside at the same time: more is no failure of nodes


def watch(state: RunState, now: float, config: Config) -> Outcome:
    """Send our Lighthouse the groups whose guards are silent, whenever the list has changed."""
    lighthouse, silent = state.lighthouse, state.silent
    if not _can_watch(state, config):
        return state, []
    if now >= silent.next_look or (silent.next_look == inf and state.table.having_trait(Trait.JOINED)):
        silent = _look(state, now, config)
    actions: list[Action] = []
    if silent.groups != _told(silent, state):
        actions.append(SetAside(lighthouse.id, silent.groups, MANAGER_S))
        silent = replace(silent, told=silent.groups, told_to=lighthouse.id)
    return (state if silent == state.silent else replace(state, silent=silent)), actions


def _can_watch(state: RunState, config: Config) -> bool:
    """Return whether there is a Lighthouse that takes the list."""
    if config.lighthouse.kind != "ftslurm" or config.health.lost_after_s == inf:
        return False
    return state.lighthouse.phase is Phase.RUNNING and state.ending is None


def _told(silent: SilentGuards, state: RunState) -> tuple[SilentGroup, ...] | None:
    """Return the list that the Lighthouse has; None: one of the controller before."""
    if silent.told_to == state.lighthouse.id:
        return silent.told
    return None if state.lighthouse.reason == "adopted" else ()


class _Finding(NamedTuple):
    """One group: how it is to be set aside, if it is silent, and when to look at it again if it stays silent."""

    silent: SilentGroup | None
    heard: bool
    next_look: float


def _look(state: RunState, now: float, config: Config) -> SilentGuards:
    """Compare the last heartbeats of all groups that train, or may heal, with the clock."""
    before = state.silent
    was_late = before.next_look == inf or now > before.next_look + LATE_S
    awake = now if was_late else before.awake
    told = {(one.group, one.attempt) for one in before.groups}  # they stay silent until they are heard
    groups = state.table.in_phase(Phase.RUNNING)  # the Lighthouse knows which of them have a manager
    found = [_judge(unit, now, 0.0 if (unit.group, unit.attempt) in told else awake, config) for unit in groups]
    silent = [one.silent for one in found if one.silent is not None]
    heard = sum(one.heard for one in found)
    known = set(before.groups)
    least = config.groups.min - state.table.count(Phase.SUCCEEDED)
    if heard < max(len(silent), least) or len(silent) > MOST:
        silent = [group for group in silent if group in known]  # more at a time is no failure of nodes
    next_look = min((one.next_look for one in found), default=inf)
    if next_look == inf:
        awake = now
    else:
        next_look = max(next_look, now + LOOK_S_PER_GROUP * state.table.groups, now + LATE_S / 10)
    return replace(before, next_look=next_look, awake=awake, groups=tuple(silent))


def _judge(unit: Unit, now: float, awake: float, config: Config) -> _Finding:
    limit = HEARTBEATS * config.heartbeat_s
    since = {silence.node: max(silence.since, awake) for silence in silences(unit)}
    oldest = min(since.values(), default=inf)
    if now < oldest + limit:
        return _Finding(None, True, oldest + limit)
    managers = next(row.node for row in ranks.table([str(host) for host in unit.current.hosts]) if row.rank == 0)
    manager_since = since.get(managers, now)
    if now >= manager_since + limit:
        return _Finding(SilentGroup(unit.group_id, unit.attempt, sure=False), False, now + AGAIN_S)
    sure = now >= oldest + ALONE * limit and now < manager_since + limit * (ALONE - 0.5)
    silent = SilentGroup(unit.group_id, unit.attempt, sure=True) if sure else None
    return _Finding(silent, False, now + AGAIN_S)


def deadlines(state: RunState, config: Config) -> Iterator[float]:
    """Yield the time at which `watch` must run again without an event."""
    if _can_watch(state, config):
        yield state.silent.next_look


def told_of(state: RunState, event: GroupAside) -> Outcome:
    """Write down that the Lighthouse has set a group aside, or that it takes part again."""
    if not 0 <= event.group < state.table.groups:
        return state, []
    unit = state.table.group(event.group)
    if unit.attempt != event.attempt or unit.phase not in LIVE:
        return state, []  # it has ended meanwhile
    if not event.aside:
        return state, [records.GroupHeardAgain(group=event.group, attempt=event.attempt, seconds=event.seconds)]
    silence = min(silences(unit), key=lambda one: one.since, default=None)
    node = None if silence is None else silence.node
    return state, [records.GroupSetAside(group=event.group, attempt=event.attempt, node=node, seconds=event.seconds)]
