"""Restores a small state and prints it: `restoring.py FOLDER`, one process per rank. With `--save` it saves one."""

import json
import os
import sys
from typing import Any

import torch

from ftslurm.checkpoint import Checkpointer


class Manager:
    """The part of torchft's Manager that a Checkpointer needs."""

    def __init__(self) -> None:
        self.committed = 0

    def current_step(self) -> int:
        return self.committed

    def num_participants(self) -> int:
        return 0

    def participating_rank(self) -> int:
        return 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.committed, "batches_committed": self.committed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.committed = state["step"]


class Dict:
    """A state that is one dict."""

    def __init__(self, **content: Any) -> None:
        self.content = content

    def state_dict(self) -> dict[str, Any]:
        return self.content

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.content = state


folder, save = sys.argv[1], sys.argv[2:] == ["--save"]
if os.environ["WORLD_SIZE"] != "1":
    torch.distributed.init_process_group("gloo")
rank = int(os.environ.get("RANK", "0")) if save else -1
torch.manual_seed(0 if save else 1)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
own, data, manager = Dict(rank=torch.full((2,), float(rank)), number=rank), Dict(at=0), Manager()
checkpointer = Checkpointer(manager, {"model": model, "optimizer": optimizer, "own": own}, data, dir=folder, every=5)
if save:
    for step in range(1, 6):
        optimizer.zero_grad()
        model(torch.ones(1, 3) * step).square().sum().backward()
        optimizer.step()
        data.content["at"] += 2
        manager.committed = step
        checkpointer.step()
else:
    print("GOT", json.dumps({
        "step": checkpointer.restore(),
        "weight": model.weight.tolist(),
        "exp_avg": [optimizer.state_dict()["state"][index]["exp_avg"].tolist() for index in (0, 1)],
        "rank": own.content["rank"].tolist(),
        "number": own.content["number"],
        "data": data.content,
    }))  # fmt: skip
checkpointer.close()
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
