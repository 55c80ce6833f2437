"""Translates the commands of users in the inbox to requests to the core. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftslurm.controller.translate import requester
from ftslurm.core.state.events import CheckpointAsked, DrainAsked, RestartAsked, StacksAsked, UndrainAsked, UserRequest
from ftslurm.protocol.field_types import MOST_TEXT
from ftslurm.security.json_text import is_whole


def user_request(command: Mapping[str, Any]) -> UserRequest | None:
    """Translate a command from the inbox; None: it is another one, or invalid."""
    by, name = requester(command), str(command.get("id"))[:100]
    node, group, rank = command.get("node"), command.get("group"), command.get("rank")
    if rank is not None and not is_whole(rank):
        return None
    match command["what"]:
        case "stacks" if is_whole(group):
            return StacksAsked(group, rank, by, name)
        case "save":
            return CheckpointAsked(by, name)
        case "drain" if isinstance(node, str):
            return DrainAsked(node[:MOST_TEXT], by, name)
        case "undrain" if isinstance(node, str):
            return UndrainAsked(node[:MOST_TEXT], by, name)
        case "restart" if is_whole(group):
            return RestartAsked(group, rank, by, name)
        case _:
            return None
