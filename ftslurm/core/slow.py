"""Find groups that make all others wait: those that need much longer for their own part of a step. Pure.

All groups end a step together, so the time between two commits shows no slow one. Each worker reports the median of its
own part of the last 50 steps (worker/pace.py), which ends where it begins to wait for the others.
"""

from __future__ import annotations

from ftslurm.config.schema import role_of
from ftslurm.core import leaving
from ftslurm.core.health.hangs import LOOK_S_PER_GROUP
from ftslurm.core.state.model import Pace, Trait, Unit, replace
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.units import pool_of
from ftslurm.protocol import messages, records

SLOW = 1.3  # times the median of the groups' own parts: slow
EVEN = 1.15  # and no longer slow
MATTERS = 0.05  # of a step: what it costs the others, else it is no matter
LEAST_S = 0.01  # nor is less than this: so much is noise of the machine
STEPS, SECONDS = 25, 30.0  # so long without a break, after the steps that the medians need: to begin, and to end
LOOK_S = 1.0  # between two comparisons; workers report once a second


def reported(turn: Turn, said: messages.Progress, unit: Unit) -> None:
    """Take in how fast a group is."""
    if said.own_s is None or said.step_s is None:
        return
    before = unit.current.pace or Pace(said.own_s, said.step_s)
    turn.attempt(unit, pace=replace(before, own_s=said.own_s, step_s=said.step_s))
    turn.set(paced=True)


def find(turn: Turn) -> None:
    """Compare the groups, and tell which ones are slow."""
    next_look = turn.state.compared + LOOK_S + LOOK_S_PER_GROUP * turn.table.groups
    if not turn.state.paced or not turn.due(next_look):
        return
    turn.set(paced=False, compared=turn.now)
    alike = dict[tuple[int, str], list[Unit]]()  # groups of the same hardware and script
    for unit in turn.having(Trait.JOINED):
        if unit.current.pace is not None:
            role = role_of(turn.config.groups.roles, unit.group_id)
            alike.setdefault((pool_of(unit.group, turn.config), role.name if role else ""), []).append(unit)
    for peers in alike.values():
        own = sorted(pace.own_s for unit in peers if (pace := unit.current.pace) is not None)
        middle = own[(len(own) - 1) // 2]  # of two the faster: what the other one needs
        for unit in peers if len(peers) > 1 else ():
            _judge(turn, unit, middle)


def times(own_s: float, others_s: float) -> float:
    """Return how many times the others' part of a step a group needs for its own."""
    return own_s / max(others_s, LEAST_S)


def _judge(turn: Turn, unit: Unit, others_s: float) -> None:
    pace, step = unit.current.pace, unit.current.step
    if pace is None or step is None:
        return
    factor = EVEN if pace.told else SLOW
    slow = pace.own_s > factor * others_s and pace.own_s - others_s > max(MATTERS * pace.step_s, LEAST_S)
    ratio, told, since = times(pace.own_s, others_s), pace.told, None
    if slow is (told is None) or (slow and told and not told / SLOW < ratio < told * SLOW):
        since = pace.since or (step, turn.now)
        if step - since[0] >= STEPS and turn.now - since[1] >= SECONDS:
            told, since = ratio if slow else None, None
    if (since, told) != (pace.since, pace.told):  # else every group would be looked at once a second
        turn.attempt(unit, pace=replace(pace, since=since, told=told))
    if told != pace.told:
        line = records.GroupSlow(
            **unit.of_group,
            nodes=unit.place.nodes,
            slow=told is not None,
            step=step,
            own_s=pace.own_s,
            others_s=round(others_s, 6),
            step_s=pace.step_s,
        )
        turn.do(line)
    if told and turn.config.health.on_slow == "drain":
        leaving.leave_out_slow(turn, unit)
