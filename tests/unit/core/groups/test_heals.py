"""A group that has fetched the state: what is journaled, and the warning where a faster network stands by."""

from __future__ import annotations

import pytest
from histories import RUNNING, play
from steps import B0

from ftslurm.core.state import events as ev
from ftslurm.protocol.messages import Healed

GB = 1 << 30


@pytest.mark.parametrize(
    ("size", "seconds", "interface", "fastest", "gbit", "warned"),
    [
        (16 * GB, 150.0, "eth0", "ib0", 200.0, "set cluster.interface=ib0"),
        (16 * GB, 150.0, "ib0", "ib0", 200.0, "ftslurm doctor --nodes LIST"),
        (16 * GB, 150.0, "eth0", "eth0", 1.0, ""),  # all that there is
        (16 * GB, 150.0, "eth0", "", 0.0, ""),  # the kernel knows no speed
        (1 << 20, 1.0, "eth0", "ib0", 200.0, ""),  # small
        (16 * GB, 0.0, None, "", 0.0, ""),
    ],
)
def test_a_slow_heal_names_the_faster_network(
    size: int, seconds: float, interface: str | None, fastest: str, gbit: float, warned: str
) -> None:
    story = play(*RUNNING, (30, ev.Heard(B0, Healed(7, size, seconds, "n1", interface, fastest, gbit))))
    (healed,) = story.records("group_healed")
    expected = {"step": 7, "size": size, "seconds": seconds, "donor": "n1", "interface": interface}
    assert healed == {"group": 1, "attempt": 0, **expected}
    texts = [str(record["text"]) for record in story.records("warning")]
    assert [warned in text for text in texts] == [True] * bool(warned)
