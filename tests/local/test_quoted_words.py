"""What the journal quotes from scripts that end badly, each in its own way."""

from __future__ import annotations

import pytest
from harness import Backend

from ftslurm.core.groups.verdict import LONGEST

pytestmark = pytest.mark.light

SCRIPT = """
import os, sys
group = int(os.environ["REPLICA_GROUP_ID"])
if group == 0:
    sys.exit("no data in /data")
if group == 1:
    raise ValueError("first" + " and long" * 40 + "\\nsecond")
print("ERROR: no data\\nx.py:1: UserWarning: w" if group == 2 else "  what():  bad access", flush=True)
sys.exit(3) if group == 2 else os.abort()
"""


@pytest.mark.parametrize("backend", ["local"], indirect=True)
def test_the_journal_quotes_the_line_that_says_why_each_group_ended(backend: Backend) -> None:
    run = backend.start("groups.count=4", "restart=never", script=backend.script(SCRIPT)).finish(1)
    said = {exited["group"]: str(exited["error"]) for exited in run.named("step_exited") if exited["group"] is not None}
    assert (said[0], said[2], said[3]) == (
        "SystemExit: no data in /data",
        "its log says: ERROR: no data",
        "its log says: what():  bad access",
    )
    assert said[1] == f"ValueError: first{' and long' * 40}"[: LONGEST - 3] + "..."
