"""The text for a single event."""

from __future__ import annotations

import pytest

from ftslurm.monitor.event_text import no_first_step
from ftslurm.protocol.records import NoFirstStep
from ftslurm.run.journal_lines import read


def sentence(line: dict[str, object]) -> str:
    record = read(line)
    assert isinstance(record, NoFirstStep)
    return no_first_step(record)


def test_people_read_the_reason_and_some_groups() -> None:
    groups: list[dict[str, object]] = [
        {"group": n, "attempt": 0, "stage": n, "last": "x" if n else ""} for n in range(5)
    ]
    groups[2]["stage"] = None
    assert sentence({"event": "no_first_step", "seconds": 120.2, "reason": "because", "groups": groups}) == (
        "no step has been committed 120 s after all scripts had begun: because; group 0 is computing; "
        'group 1 is asking for a quorum or healing, its last line: "x"; '
        'group 2 has not asked for a quorum, its last line: "x"; '
        "and 2 more: see the logs"
    )


@pytest.mark.parametrize("groups", [None, 7, [7], [{"group": "x", "stage": 99, "last": 3}]])
def test_a_damaged_record_is_still_a_sentence(groups: object) -> None:
    assert sentence({"event": "no_first_step", "groups": groups}).startswith("no step has been committed")
