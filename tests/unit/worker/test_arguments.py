"""Braces in job.args and their substitution."""

from __future__ import annotations

import pytest

from ftslurm.worker.script import fill

ENVIRON = {
    "REPLICA_GROUP_ID": "3",
    "NUM_REPLICA_GROUPS": "4",
    "RANK": "0",
    "MASTER_PORT": "29500",
    "TORCHFT_LIGHTHOUSE": "http://n1:29510",
    "FTSLURM_CHECKPOINT_DIR": "/runs/a {RANK} b",
    "HOME": "/home/ada",
}


@pytest.mark.parametrize(
    ("argument", "filled"),
    [
        ("{REPLICA_GROUP_ID}", "3"),
        ("--replica={REPLICA_GROUP_ID}/{NUM_REPLICA_GROUPS}", "--replica=3/4"),
        ("tcp://n1:{MASTER_PORT}", "tcp://n1:29500"),
        ("{TORCHFT_LIGHTHOUSE}", "http://n1:29510"),
        ("{FTSLURM_CHECKPOINT_DIR}/x", "/runs/a {RANK} b/x"),  # substituted values are not substituted again
        ("{{RANK}}", "{0}"),
        ('{"rank": {RANK}, "lr": {}}', '{"rank": 0, "lr": {}}'),
        ("{REPLICA_GROUP}", "{REPLICA_GROUP}"),  # unknown
        ("{HOME}", "{HOME}"),  # not the assignment's
        ("{rank}", "{rank}"),
        ("{ RANK }", "{ RANK }"),
        ("${RANK}", "$0"),
        ("{RANK", "{RANK"),
        ("", ""),
    ],
)
def test_known_names_are_filled_in_and_all_other_braces_stay(argument: str, filled: str) -> None:
    assert fill([argument, "plain"], ENVIRON) == [filled, "plain"]
