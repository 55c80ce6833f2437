"""The page of the control channel, from the types in ftslurm/protocol/messages.py: `python docs/channel.py`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from ftslurm.protocol import messages
from ftslurm.protocol.field_types import Lenient

BEGIN = """\
# The control channel

The controller and the tasks of its steps exchange messages, one JSON object on each line, over the standard input and
output of the step. `type` names the message; unknown types and fields are ignored, so versions can differ. Messages to
the controller have at most {longest} bytes and a field `task`, the index of the task in its step. "Guard" says that the
guard of the worker sends or obeys a message itself, whatever the worker is doing.

A message with a field that is missing or has another value than the table says is logged and ignored. If a field
marked "lenient" has another value, only that field is ignored and counts as not known.
"""
TO_LIGHTHOUSE = {messages.Member, messages.Evict, messages.NewHistory}


def page() -> str:
    """Return the page."""
    reports, orders = messages.Report.known.values(), messages.Order.known.values()
    sections = {
        "From a worker or its guard": [kind for kind in reports if not issubclass(kind, messages.LighthouseReport)],
        "From the Lighthouse": [kind for kind in reports if issubclass(kind, messages.LighthouseReport)],
        "To a worker or its guard": [kind for kind in orders if kind not in TO_LIGHTHOUSE],
        "To the Lighthouse": [kind for kind in orders if kind in TO_LIGHTHOUSE],
    }
    text = BEGIN.format(longest=messages.LONGEST)
    for title, kinds in sections.items():
        text += f"\n## {title}\n"
        for kind in kinds:
            text += f"\n### `{kind.kind}`\n\n{inspect.getdoc(kind)}\n" + "".join(rows(kind))
    return text


def rows(kind: Any) -> Iterator[str]:
    """The table of a message's fields."""
    checks, defaults = messages.plan(kind)
    fields = {name: check for name, check in checks.items() if name != "task"}
    if fields:
        yield "\n| field | value |\n|---|---|\n"
    for name, check in fields.items():
        lenient = "; lenient" if isinstance(check, Lenient) else "; may be missing" if name in defaults else ""
        yield f"| `{name}` | {check.meaning}{lenient} |\n"


if __name__ == "__main__":
    print(page(), end="")
