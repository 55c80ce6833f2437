"""A typical user script: torchft's public train_ddp.py with a small net, and habits that a launcher must not disturb.

Data loader workers are spawned, which imports this file again; stdin is read; progress is printed without a newline;
SIGTERM is handled; the script ends with sys.exit.
"""

import logging
import os
import signal
import sys
from datetime import timedelta

import torch
from torch import nn, optim
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader, TensorDataset
from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo, ProcessGroupNCCL

logging.basicConfig(level=logging.INFO)


def on_sigterm(signum: int, frame: object) -> None:
    print("\nsaw SIGTERM", flush=True)
    sys.exit(0)


@record  # type: ignore[untyped-decorator]
def main() -> None:
    replica_group_id = int(os.environ.get("REPLICA_GROUP_ID", 0))
    num_replica_groups = int(os.environ.get("NUM_REPLICA_GROUPS", 2))
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20

    signal.signal(signal.SIGTERM, on_sigterm)
    print(f"stdin: {sys.stdin.read()!r}")

    x = torch.randn(4096, 8, generator=torch.Generator().manual_seed(0))
    trainset = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = DistributedSampler(
        trainset,
        replica_rank=replica_group_id,
        num_replica_groups=num_replica_groups,
        group_rank=0,
        num_replicas=1,
        shuffle=True,
    )
    trainloader = DataLoader(trainset, batch_size=16, num_workers=2, sampler=sampler, multiprocessing_context="spawn")

    def load_state_dict(state_dict: dict[str, object]) -> None:
        m.load_state_dict(state_dict["model"])
        optimizer.load_state_dict(state_dict["optim"])

    def state_dict() -> dict[str, object]:
        return {
            "model": m.state_dict(),
            "optim": optimizer.state_dict(),
        }

    device = "cuda" if torch.cuda.is_available() else "cpu"
    pg = (ProcessGroupNCCL if device == "cuda" else ProcessGroupGloo)(timeout=timedelta(seconds=5))
    manager = Manager(
        pg=pg,
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"train_ddp_{replica_group_id}",
        timeout=timedelta(seconds=10),
    )

    m = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
    m = DistributedDataParallel(manager, m)
    optimizer = Optimizer(manager, optim.AdamW(m.parameters()))
    criterion = nn.MSELoss()

    while manager.current_step() < steps:
        for inputs, targets in trainloader:
            optimizer.zero_grad()
            loss = criterion(m(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
            print(f"[{manager.current_step()}] loss = {loss.item():.3f} ", end="", flush=True)
            if manager.current_step() >= steps:
                break

    manager.shutdown(wait=False)
    sys.exit(0)


if __name__ == "__main__":
    main()
