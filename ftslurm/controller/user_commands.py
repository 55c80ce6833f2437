"""Translates the commands of users in the inbox to requests to the core. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftslurm.controller.translate import requester
from ftslurm.core.reduce import REQUESTS
from ftslurm.core.state.events import Asked, ScaleAsked
from ftslurm.protocol.field_types import MOST_TEXT
from ftslurm.security.json_text import is_whole


def user_request(command: Mapping[str, Any]) -> Asked | ScaleAsked | None:
    """Translate a command from the inbox; None: it is another one, or invalid."""
    what, group, rank, node = command["what"], command.get("group"), command.get("rank"), command.get("node")
    if what == "scale" and is_whole(command.get("groups")):
        return ScaleAsked(command["groups"], requester(command))
    if what not in REQUESTS or (rank is not None and not is_whole(rank)):
        return None
    asked = Asked(what, requester(command), str(command.get("id"))[:100])
    match what:
        case "restart" | "stacks":
            return replace(asked, group=group, rank=rank) if is_whole(group) else None
        case "drain" | "undrain":
            return replace(asked, node=node[:MOST_TEXT]) if isinstance(node, str) else None
    return asked
