"""Trains on ids with ftslurm.data, and writes which of them each group gives to each step: helpers/trained_ids.py.

OUT-GROUP gets a line when a history begins, one before each vote and one for each commit. OUT-end has the last step.
DIE_IN_HEAL  this attempt of group 1 dies while it copies the state
DIE_AT_VOTE  at this step the first attempt of group 1 dies when it has averaged
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torchft import Manager, ProcessGroupGloo

from ftslurm.checkpoint import Checkpointer
from ftslurm.data import Batches

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from trained_ids import SEED, loader

GROUP, ATTEMPT = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["FTSLURM_ATTEMPT"])

options = argparse.ArgumentParser()
options.add_argument("--out", required=True)
options.add_argument("--batch-size", type=int, default=4)
args = options.parse_args()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


print("pid", os.getpid(), flush=True)
torch.manual_seed(0)
model = torch.nn.Linear(2, 2)


def load(state: dict[str, Any]) -> None:
    if os.environ.get("DIE_IN_HEAL") == str(ATTEMPT) and GROUP == 1:
        die()
    model.load_state_dict(state)


manager = Manager(
    pg=ProcessGroupGloo(),
    state_dict=model.state_dict,
    load_state_dict=load,
    min_replica_size=1,
    init_sync=False,
    use_async_quorum=False,
    replica_id=f"group_{GROUP}",
)
batches = Batches(loader(args.batch_size, num_workers=1), manager, seed=SEED)
checkpointer = Checkpointer(manager)
restored = checkpointer.restore()
end = Path(f"{args.out}-end")

with open(f"{args.out}-{GROUP}", "a", buffering=1) as lines:

    def write(**line: Any) -> None:
        history = f"{os.environ['TORCHELASTIC_RUN_ID']} {os.environ['FTSLURM_HISTORY']}"
        lines.write(json.dumps({"time": time.time(), "history": history, **line}) + "\n")

    if os.environ.get("FTSLURM_HEALS") != "1":
        write(began=restored)
    while not end.exists() or manager.current_step() < int(end.read_text()):
        time.sleep(0.03)
        manager.start_quorum()
        vote = [manager.current_step() + 1, manager._quorum_id]
        write(vote=[*vote, manager.participating_rank(), GROUP, None, [int(one) for one in batches.take()[0]]])
        manager.allreduce(torch.ones(2)).wait()
        if os.environ.get("DIE_AT_VOTE") == str(vote[0]) and GROUP == 1 and ATTEMPT == 0:
            die()
        if manager.should_commit():
            write(committed=vote)
        checkpointer.step()
checkpointer.close()
manager.shutdown(wait=False)
os._exit(0)
