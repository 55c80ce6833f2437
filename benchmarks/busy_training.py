"""The training of busy_step.py: steps that are all quorum, allreduce and vote, as fast as they come while a file asks.

Without the file `busy` in the run directory a step takes a fifth of a second more, so that the training beside it has
the machine. When the file `end` is there, it prints when each of its busy steps began and how long it took.
"""

import json
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
from torchft import Manager, ProcessGroupGloo

PATIENCE = timedelta(seconds=30)
weights = torch.zeros(64)
manager = Manager(
    pg=ProcessGroupGloo(timeout=PATIENCE),
    min_replica_size=int(os.environ["NUM_REPLICA_GROUPS"]),
    use_async_quorum=False,
    load_state_dict=lambda state: weights.copy_(state["weights"]),
    state_dict=lambda: {"weights": weights},
    replica_id=f"busy_{os.environ['REPLICA_GROUP_ID']}",
    timeout=PATIENCE,
)
folder = Path(os.environ["FTSLURM_RUN_DIR"])
took: list[tuple[float, float]] = []
last = None
while last is None or manager.current_step() < last:
    if not (busy := (folder / "busy").exists()):
        time.sleep(0.2)
    if last is None and (folder / "end").exists():
        last = manager.current_step() + 100  # both groups have seen it by then
    began = time.monotonic()
    manager.start_quorum()
    gradient = torch.ones(64)
    manager.allreduce(gradient).wait()
    if manager.should_commit():
        weights += gradient
        took += [(began, time.monotonic() - began)] * busy
print(f"steps: {json.dumps(took)}", flush=True)
manager.shutdown(wait=False)
