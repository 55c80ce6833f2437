"""Train a small byte-level GPT on the source of Python's standard library, with torchft.

A run is several replica groups, each a copy of the model with its own shard of the text. The groups average their
gradients through torchft's Manager, which finds out at every step who is there: when a group dies, the others leave it
out and go on; when it comes back, it copies weights, optimizer and step from a live group. A group may have several
workers (WORLD_SIZE > 1).

Plain torchft: whoever launches this sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT as torchrun does,
for each group on its own, and REPLICA_GROUP_ID, NUM_REPLICA_GROUPS and TORCHFT_LIGHTHOUSE.
"""

import argparse
import hashlib
import os
import sysconfig
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo, ProcessGroupNCCL

GROUP = int(os.environ.get("REPLICA_GROUP_ID", 0))
GROUPS = int(os.environ.get("NUM_REPLICA_GROUPS", 1))
RANK = int(os.environ.get("RANK", 0))  # within the group
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", 1))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=16, help="blocks of text per worker and step")
    parser.add_argument("--context", type=int, default=128, help="bytes per block")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eval-every", type=int, default=20, help="steps between two looks at the held-out text")
    parser.add_argument("--print-every", type=int, default=5)
    parser.add_argument("--max-mb", type=float, default=8, help="how much of the standard library to read")
    parser.add_argument("--backend", choices=["gloo", "nccl"], help="default: nccl if every group has GPUs of its own")
    return parser.parse_args()


def load_text(context: int, max_bytes: float) -> tuple[Tensor, Tensor]:
    """The same blocks of text, to train on and held out, in every worker. Every twentieth file is held out."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(path.relative_to(root) for path in [*root.glob("*.py"), *root.glob("*/*.py")])
    files = [path for path in files if path.parts[0] not in ("site-packages", "dist-packages", "test")]
    train_text, held_out_text = bytearray(), bytearray()
    for i, path in enumerate(files):
        (held_out_text if i % 20 == 0 else train_text).extend((root / path).read_bytes())
        if len(train_text) + len(held_out_text) >= max_bytes:
            break
    texts = [torch.frombuffer(text, dtype=torch.uint8) for text in (train_text, held_out_text)]
    train, held_out = (text.unfold(0, context + 1, context) for text in texts)
    return train, held_out[:: max(1, len(held_out) // 64)][:64]


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, context: int, dim: int, layers: int, heads: int) -> None:
        super().__init__()
        self.byte, self.position = nn.Embedding(256, dim), nn.Embedding(context, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 256, bias=False)

    def forward(self, blocks: Tensor) -> Tensor:
        """The loss, in nats per byte, of predicting each byte of the blocks from those before it."""
        x, y = blocks[:, :-1].int(), blocks[:, 1:].long()
        x = self.blocks(self.byte(x) + self.position.weight[: x.shape[1]])
        return cross_entropy(self.head(self.norm(x)).flatten(0, 1), y.flatten())


def main() -> None:
    args = parse_args()

    def log(text: str) -> None:
        print(f"group {GROUP} rank {RANK} | {text}", flush=True)

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    # Groups that see all GPUs of the machine take the same ones, and NCCL refuses to share a GPU.
    own_gpu = device.type == "cuda" and ("CUDA_VISIBLE_DEVICES" in os.environ or GROUPS == 1)
    backend = args.backend or ("nccl" if own_gpu else "gloo")

    train, held_out = load_text(args.context, args.max_mb * 1e6)
    held_out = held_out.to(device)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(args.seed))

    def batch(step: int) -> Tensor:
        """The blocks of this worker at this step. The step is all there is to remember, and torchft remembers it."""
        first = ((step * GROUPS + GROUP) * WORLD_SIZE + RANK) * args.batch_size
        return train[order[torch.arange(first, first + args.batch_size) % len(order)]].to(device)

    torch.manual_seed(args.seed)
    model = GPT(args.context, args.dim, args.layers, args.heads).to(device)

    def state_dict() -> dict:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load_state_dict(state: dict) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    process_group = ProcessGroupNCCL if backend == "nccl" else ProcessGroupGloo
    manager = Manager(
        pg=process_group(timeout=timedelta(seconds=30)),
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"train_ddp_{GROUP}",
        timeout=timedelta(seconds=30),
    )
    ddp = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, torch.optim.AdamW(model.parameters(), lr=args.lr))
    if WORLD_SIZE > 1:
        dist.init_process_group(backend)

    @torch.no_grad()
    def held_out_loss() -> float:
        return model(held_out).item()

    started = time.monotonic()
    size = sum(p.numel() for p in model.parameters())
    log(f"{size:,} parameters, {len(train):,} blocks of text, {device}, {backend}")
    while (step := manager.current_step()) < args.steps:
        optimizer.zero_grad()  # starts the quorum of this step
        if RANK == 0 and step % args.eval_every == 0 and manager.participating_rank() == 0:
            log(f"step {step} | held-out loss {held_out_loss():.3f}")

        loss = ddp(batch(step))
        loss.backward()  # averages the gradients of rank r over all groups ...
        if WORLD_SIZE > 1:  # ... and this over the ranks of the group: all gradients are equal now
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= WORLD_SIZE
        optimizer.step()  # only if the whole group has averaged without an error; otherwise the step is tried again

        now = manager.current_step()
        if now == step:
            log(f"step {step} | not committed, once more: a peer has failed")
        elif now > step + 1:
            log(f"step {now} | joined: weights and optimizer copied from a live group")
        elif now % args.print_every == 0:
            took = time.monotonic() - started
            log(f"step {now} | loss {loss.item():.3f} | {manager.num_participants()} groups | {took:.1f} s")

    if RANK == 0:
        log(f"step {manager.current_step()} | held-out loss {held_out_loss():.3f} | final")
    weights = nn.utils.parameters_to_vector(model.parameters()).detach().cpu()
    log(f"weights sha256={hashlib.sha256(bytes(weights.view(torch.uint8).tolist())).hexdigest()}")
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
