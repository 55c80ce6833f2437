"""The page of the control channel lists every message with its fields."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path

from ftslurm.protocol import messages

CHANNEL = Path(__file__).parents[3] / "docs" / "channel.py"


def test_every_message_is_on_the_page_with_its_fields() -> None:
    sections = re.split("^##+ ", runpy.run_path(str(CHANNEL))["page"](), flags=re.MULTILINE)
    shown = {(section.partition("\n")[0], frozenset(re.findall(r"^\| `(\w+)`", section, re.M))) for section in sections}
    for kind in (*messages.Report.known.values(), *messages.Order.known.values()):
        assert (f"`{kind.kind}`", frozenset(messages.plan(kind)[0]) - {"task"}) in shown


def test_every_message_is_in_a_vocabulary() -> None:
    known = {*messages.Report.known.values(), *messages.Order.known.values()}
    all_kinds = {
        kind for _, kind in inspect.getmembers(messages, inspect.isclass) if issubclass(kind, messages.Message)
    }
    bases = {messages.Message, messages.Report, messages.LighthouseReport, messages.Order}
    assert all_kinds - bases == known
    assert all(kind.kind and kind.__doc__ for kind in known)
