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
    stages = ["script", "quorum", "step", "script", "script"]
    groups = [{"group": n, "attempt": 0, "stage": stage} for n, stage in enumerate(stages)]
    counts = {"script": 3, "quorum": 1, "step": 1}
    assert sentence({"event": "no_first_step", "seconds": 120.2, "stages": counts, "groups": groups}) == (
        "no step has been committed 120 s after all scripts had begun: 1 of 5 groups ask for a quorum and may wait for "
        "the others, which have not; group 0 waits for its script to begin training; "
        "group 1 waits for a quorum, or heals; group 2 waits for its first step; "
        "and 2 more: see the logs"
    )


@pytest.mark.parametrize("groups", [None, 7, [7], [{"group": "x", "stage": 99}]])
def test_a_damaged_record_is_still_a_sentence(groups: object) -> None:
    assert sentence({"event": "no_first_step", "groups": groups}).startswith("no step has been committed")
