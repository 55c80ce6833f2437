"""What the Lighthouse's log says of the controller's orders and of groups that are set aside, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ftslurm.protocol.messages import Evict, GroupAside, GuardsSilent, Member, NewHistory, SilentGroup

Order: TypeAlias = Member | Evict | GuardsSilent | NewHistory

NAMED = 8  # groups that a line names


def order(message: Order) -> str:
    """Return the sentence for an order of the controller."""
    match message:
        case Member(group, attempt, store):
            return f"group {group} attempt {attempt} may take part, its store is {store}"
        case Evict(group, attempt, finished=finished):
            over = "has finished" if finished else "is over"
            return f"group {group} attempt {attempt} {over}: the next quorums are formed without it"
        case GuardsSilent(groups, after_s):
            return _silent(groups, after_s)
        case NewHistory(step):
            return f"all groups start over, {f'from the checkpoint of step {step}' if step else 'from step 0'}"


def aside(change: GroupAside) -> str:
    """Return the sentence for an attempt that is set aside, or is heard again."""
    who = f"group {change.group} attempt {change.attempt}"
    if change.aside:
        return f"{who} has been silent for {change.seconds:.1f} s: quorums are formed without it for now"
    return f"{who} is heard again after {change.seconds:.1f} s: it takes part again"


def _silent(groups: Sequence[SilentGroup], after_s: float) -> str:
    said = []
    if whole := [one for one in groups if not one.sure]:
        once = f"once their managers have been silent for {after_s:g} s"
        said.append(f"nothing is heard of {_named(whole)}: quorums are formed without them {once}")
    if part := [one for one in groups if one.sure]:
        said.append(f"nothing is heard of a node of {_named(part)}: quorums are formed without them")
    return "; ".join(said) or "all groups are heard again"


def _named(groups: Sequence[SilentGroup]) -> str:
    more = f" and {len(groups) - NAMED} more" if len(groups) > NAMED else ""
    return ", ".join(f"group {one.group} attempt {one.attempt}" for one in groups[:NAMED]) + more
