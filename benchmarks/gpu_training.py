"""The training of gpu.py: a replica group of one worker with a state of many GB on its GPU, of which little is trained.

It trains until it is stopped. A group that starts for the first time has a known state; one that was restarted has
zeros instead, which a heal or a checkpoint must replace: else it fails. Without a GPU all of this is on the CPU.
"""

import argparse
import os
import time
from datetime import timedelta

import torch
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.checkpointing.http_transport import HTTPTransport

from ftslurm.checkpoint import Checkpointer

GROUP, ATTEMPT = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
TENSORS, WIDTH = 64, 1024

parser = argparse.ArgumentParser()
parser.add_argument("--gigabytes", type=float, default=0.0, help="of state that is not trained")
parser.add_argument("--products", type=int, default=0, help="of matrices, in each step: it is the GPU's time")
parser.add_argument("--slow-group", type=int, help="it computes four times as many")
parser.add_argument(
    "--fail", nargs="*", default=[], choices=["memory", "assert", "address"], help="that of group 0, 1..."
)
parser.add_argument("--stream", action="store_true", help="heal as torchft does by default: HTTP in one stream")
parser.add_argument("--zeros", action="store_true", help="the state comes from a checkpoint")
parser.add_argument("--graph", action="store_true", help="capture a CUDA graph in each step, and replay it")
parser.add_argument("--patience", type=float, default=60, help="torchft's time-out in seconds")
args = parser.parse_args()
PATIENCE = timedelta(seconds=args.patience)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        known = not (ATTEMPT or args.zeros)
        for n in range(TENSORS):
            size = int(args.gigabytes * 2**30 / 4 / TENSORS)
            self.register_buffer(f"state{n}", torch.full((size,), float(n if known else 0), device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    def check(self) -> None:
        for n in range(TENSORS):
            state = self.get_buffer(f"state{n}")
            assert state.device.type == device.type, state.device
            assert bool((state == n).all()), f"state{n} has not come back"


def fail() -> None:
    """Fail as scripts on GPUs do."""
    kind = args.fail[GROUP]
    print("failing:", kind, flush=True)
    if kind == "memory":
        torch.empty(2**42, device=device)
    elif kind == "assert":
        torch.ones(1, device=device)[torch.tensor([10**6], device=device)].cpu()
    else:
        source = 'extern "C" __global__ void wrong(float* to) { to[1ll << 40] = 1; }'
        torch.cuda._compile_kernel(source, "wrong")(args=(torch.ones(1, device=device),))
        torch.cuda.synchronize()


def compute_in_a_graph() -> None:
    """Capture a step of a side model and replay it; torch allows no allocation or wait on a captured stream."""
    graph, x = torch.cuda.CUDAGraph(), torch.randn(8, WIDTH, device=device)
    with torch.cuda.graph(graph):
        y = x @ side
    graph.replay()
    torch.testing.assert_close(y, x @ side)


def state_dict() -> dict[str, object]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def load_state_dict(state: dict[str, object]) -> None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


torch.manual_seed(0)
print("pid", os.getpid(), flush=True)
model = Model().to(device)
manager = Manager(
    pg=ProcessGroupGloo(timeout=PATIENCE),
    min_replica_size=1,
    use_async_quorum=False,
    load_state_dict=load_state_dict,
    state_dict=state_dict,
    replica_id=f"gpu_{GROUP}",
    timeout=PATIENCE,
    **({"checkpoint_transport": HTTPTransport(timeout=PATIENCE, num_chunks=0)} if args.stream else {}),
)
ddp = DistributedDataParallel(manager, model.layer)
optimizer = Optimizer(manager, torch.optim.AdamW(model.layer.parameters(), lr=1e-4))
checkpointer = Checkpointer(manager, {"model": model, "optimizer": optimizer})
began = time.monotonic()
if restored := checkpointer.restore():
    model.check()
    print(f"restored step {restored} in {time.monotonic() - began:.2f} s", flush=True)
matrix = torch.randn(2 * [4096 if device.type == "cuda" else 256], device=device)
side = torch.randn(WIDTH, WIDTH, device=device)
checked = False
committed = time.monotonic()
while True:
    optimizer.zero_grad()
    for _ in range(args.products * (4 if args.slow_group == GROUP else 1)):
        matrix @ matrix
    if args.fail and not ATTEMPT and len(args.fail) > GROUP and manager.current_step() == 10:
        fail()
    if args.graph:
        compute_in_a_graph()
    ddp(torch.randn(8, WIDTH, device=device)).square().mean().backward()
    optimizer.step()
    began = time.monotonic()
    if checked and began > committed + 0.2:
        print(f"step {manager.current_step()} came after {began - committed:.2f} s", flush=True)
    committed = began
    checkpointer.step()
    if (blocked := time.monotonic() - began) > 0.005:
        print(f"the step waited {blocked:.3f} s for its checkpoint", flush=True)
    if manager.current_step() and not checked:
        model.check()
        checked = True
        print(f"step {manager.current_step()}: the state of {args.gigabytes:g} GB is whole, on {device}", flush=True)
