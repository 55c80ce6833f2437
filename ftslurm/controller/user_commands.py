"""Translates the commands of users in the inbox to requests to the core. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftslurm.controller.translate import requester
from ftslurm.core.state.events import RestartAsked, UserRequest
from ftslurm.security.json_text import is_whole


def user_request(command: Mapping[str, Any]) -> UserRequest | None:
    """Translate a command from the inbox; None: it is another one, or invalid."""
    by, name = requester(command), str(command.get("id"))[:100]
    group, rank = command.get("group"), command.get("rank")
    if rank is not None and not is_whole(rank):
        return None
    match command["what"]:
        case "restart" if is_whole(group):
            return RestartAsked(group, rank, by, name)
        case _:
            return None
