"""Each record of the journal is taken in by the method of its name, or a reader has no use for it and that is known."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
from json_schema import MADE

from ftslurm.monitor import sentences
from ftslurm.monitor.status_fold import StatusFold
from ftslurm.protocol import records
from ftslurm.protocol.records import EVENTS, JournalRecord
from ftslurm.report.history_fold import HistoryFold
from ftslurm.run.journal_lines import Fold

ANSWERS = {records.CommandDone, records.CommandRefused, records.FaultRefused}
# What a reader does not need. Of a new event, think about what it means for each reader before it is named here.
IGNORED: dict[tuple[type[Fold], ...], set[type[JournalRecord]]] = {
    (StatusFold,): {
        *(*ANSWERS, records.ControllerLeft, records.RollOver, records.AllocationRequeued),
        *(records.AllocationRequested, records.AllocationLeaving),
        *(records.NodeSilent, records.NodeCheckPassed, records.StandbyGivenUp),
        *(records.StacksTaken, records.QuorumRefused, records.CheckpointFailed),
        *(records.FaultInjected, records.GroupHealed),
    },
    (HistoryFold,): {
        *(*ANSWERS, records.ControllerLeft, records.ControllerError, records.Command, records.RollOver, records.Warned),
        *(records.AllocationRequested, records.AllocationRefused, records.AllocationPending, records.AllocationEnds),
        *(records.AllocationLeaving, records.AllocationRequeued, records.NodeSilent),
        *(records.AllocationGranted, records.AllocationLost, records.NodeExcluded, records.NodeCheckFailed),
        *(records.NodeRestored, records.NodeShunned, records.NodeUnshunned, records.SlurmAsked),
        *(records.NodeCheckPassed, records.NodeDrained, records.NodeUndrained, records.StepStarting),
        *(records.ScriptBegun, records.StepAdopted, records.StepRecalled, records.StacksTaken, records.NoFirstStep),
        *(records.GroupWaits, records.StandbyGivenUp, records.GroupSetAside),
        *(records.GroupHeardAgain, records.HangLimit, records.QuorumRefused),
        *(records.CheckpointFailed, records.CheckpointRestored, records.CheckpointsDistrusted),
        *(records.CheckpointSaved, records.ReplicasDiffer, records.GroupHealed),
    },
}


@pytest.mark.parametrize("folds", IGNORED, ids=lambda folds: folds[0].__name__)
def test_each_record_is_taken_in_or_known_to_be_of_no_use(folds: tuple[type[Fold], ...]) -> None:
    taken = {record for record in EVENTS for fold in folds if hasattr(fold, record.event)}
    assert taken ^ IGNORED[folds] == set(EVENTS)
    assert not taken & IGNORED[folds]


def test_each_record_has_a_line_for_people_or_is_known_to_need_none() -> None:
    shown_otherwise = {  # by the table, by the line of what follows at once, or by the answer to the command
        *(records.Progress, records.CheckpointSaved, records.HangLimit, records.AllocationEnds),
        *(records.NodeCheckPassed, records.ScriptBegun, records.NodeDrained, records.NodeUndrained),
        records.SlurmAsked,
    }
    said = MADE["_handled"](sentences)
    assert {record for record in EVENTS if record.__name__ not in said} == shown_otherwise


@pytest.mark.parametrize("fold", [fold for folds in IGNORED for fold in folds])
def test_what_has_the_name_of_an_event_takes_its_record(fold: type[Fold]) -> None:
    for record in EVENTS:
        if (method := getattr(fold, record.event, None)) is not None:
            hints = get_type_hints(method)
            taken = hints.get("record", hints.get("_"))
            assert record in (get_args(taken) or (taken,)), record.event
