"""What the Lighthouse's log says of the controller's orders and of groups that are set aside, for people."""

from __future__ import annotations

from typing import TypeAlias

from ftslurm.protocol.messages import Evict, GroupAside, Member, NewHistory

Order: TypeAlias = Member | Evict | NewHistory


def order(message: Order) -> str:
    """Return the sentence for an order of the controller."""
    match message:
        case Member(group, attempt, store):
            return f"group {group} attempt {attempt} may take part, its store is {store}"
        case Evict(group, attempt, finished=finished):
            over = "has finished" if finished else "is over"
            return f"group {group} attempt {attempt} {over}: the next quorums are formed without it"
        case NewHistory(step):
            return f"all groups start over, {f'from the checkpoint of step {step}' if step else 'from step 0'}"


def aside(change: GroupAside) -> str:
    """Return the sentence for an attempt that is set aside, or is heard again."""
    who = f"group {change.group} attempt {change.attempt}"
    if change.aside:
        return f"{who} has been silent for {change.seconds:.1f} s: quorums are formed without it for now"
    return f"{who} is heard again after {change.seconds:.1f} s: it takes part again"
