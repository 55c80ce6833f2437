"""docs/channel.md lists every message with its fields."""

from __future__ import annotations

import inspect
import runpy
from pathlib import Path

from ftslurm.protocol import messages

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_of_the_channel_is_made_from_the_types() -> None:
    made = runpy.run_path(str(DOCS / "channel.py"))["page"]()
    assert (DOCS / "channel.md").read_text() == made, "run `python docs/channel.py`"


def test_every_message_is_in_a_vocabulary() -> None:
    known = {*messages.FROM_WORKER.types.values(), *messages.FROM_LIGHTHOUSE.types.values()}
    known |= set(messages.ORDERS.types.values())
    all_kinds = {
        kind for _, kind in inspect.getmembers(messages, inspect.isclass) if issubclass(kind, messages.Message)
    }
    assert all_kinds - {messages.Message, messages.Report} == known
    assert all(kind.kind and kind.__doc__ for kind in known)
