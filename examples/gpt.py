"""What the trainings here have in common: a small byte-level GPT, text to train it on, and their command line.

The text is the source of Python's standard library, so that nothing has to be downloaded. It is cut into batches that
have one order, the same in every group; which of them a group trains on, and when, is up to the training.
"""

import argparse
import hashlib
import json
import os
import sysconfig
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torchft import Manager, ProcessGroupBabyNCCL, ProcessGroupGloo, ProcessGroupNCCL

GROUP = int(os.environ.get("REPLICA_GROUP_ID", 0))
GROUPS = int(os.environ.get("NUM_REPLICA_GROUPS", 1))
RANK = int(os.environ.get("RANK", 0))  # within the group
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", 1))


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all trainings have."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--batch-size", type=int, default=16, help="blocks of text per worker and batch")
    options.add_argument("--context", type=int, default=128, help="bytes per block")
    options.add_argument("--dim", type=int, default=128)
    options.add_argument("--layers", type=int, default=3)
    options.add_argument("--heads", type=int, default=4)
    options.add_argument("--lr", type=float, default=3e-3)
    options.add_argument("--weight-decay", type=float, default=1e-2)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--max-mb", type=float, default=8, help="how much of the standard library to read")
    options.add_argument(
        "--backend",
        choices=["gloo", "nccl", "baby-nccl", "native"],
        help="what averages between groups; default: FTSLURM_PROCESS_GROUP, else nccl if every group has its own GPUs",
    )
    options.add_argument(
        "--samples", help="a JSON line per committed step and the batches in it, to SAMPLES-GROUP-RANK"
    )
    return options


def log(text: str) -> None:
    print(f"group {GROUP} rank {RANK} | {text}", flush=True)


def pick_device(backend: str | None) -> tuple[torch.device, str]:
    """This worker's device, and what the groups talk to each other with: `backend`, or what suits the device."""
    wanted = backend or os.environ.get("FTSLURM_PROCESS_GROUP")  # torchft.process_group
    if not torch.cuda.is_available():
        return torch.device("cpu"), backend or ("native" if wanted == "native" else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device, wanted or ("nccl" if owns_gpu() else "gloo")


def owns_gpu() -> bool:
    """Groups that see all GPUs of the machine use the same ones, and NCCL refuses to share a GPU."""
    return torch.cuda.is_available() and ("CUDA_VISIBLE_DEVICES" in os.environ or GROUPS == 1)


def process_group(backend: str, timeout: timedelta) -> ProcessGroup:
    """What averages the tensors between the groups."""
    if backend == "native":  # torch's own, which torchft 0.3 takes
        from ftslurm.worker.native_group import native_group

        return native_group("nccl2" if owns_gpu() else "gloo", timeout)
    kinds = {"gloo": ProcessGroupGloo, "nccl": ProcessGroupNCCL, "baby-nccl": ProcessGroupBabyNCCL}
    return kinds[backend](timeout=timeout)


def backend_within_group() -> str:
    """What `dist.init_process_group` gets: the ranks of a group talk to each other without torchft."""
    return "cuda:nccl,cpu:gloo" if owns_gpu() else "gloo"


class Text:
    """The batches, the same ones in every group; numbered without end, for the text is read round and round."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.device, self.batch_size, self.samples = device, args.batch_size, args.samples
        self.train, held_out = load_text(args.context, args.max_mb * 1e6)
        self.held_out = held_out.to(device)
        self.order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(args.seed))

    def batch(self, number: int) -> Tensor:
        """This worker's part of a batch, which the workers of a group share out among themselves."""
        first = (number * WORLD_SIZE + RANK) * self.batch_size
        blocks = self.order[torch.arange(first, first + self.batch_size) % len(self.order)]
        return self.train[blocks].to(self.device)

    def note(self, manager: Manager, batches: list[int]) -> None:
        """Write down, for --samples, which batches of this group are in the step that was just committed."""
        if self.samples:
            line = {"step": manager.current_step(), "committed": manager.batches_committed()}
            line |= {"batches": batches if manager.is_participating() else []}
            with Path(f"{self.samples}-{GROUP}-{RANK}").open("a") as file:
                file.write(json.dumps(line) + "\n")


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
    def __init__(self, args: argparse.Namespace) -> None:
        """Its first weights follow from --seed alone, so that all groups begin with the same."""
        super().__init__()
        torch.manual_seed(args.seed)
        self.byte, self.position = nn.Embedding(256, args.dim), nn.Embedding(args.context, args.dim)
        self.blocks = nn.Sequential(*(Block(args.dim, args.heads) for _ in range(args.layers)))
        self.norm, self.head = nn.LayerNorm(args.dim), nn.Linear(args.dim, 256, bias=False)

    def forward(self, blocks: Tensor) -> Tensor:
        """The loss, in nats per byte, of predicting each byte of the blocks from those before it."""
        x, y = blocks[:, :-1].int(), blocks[:, 1:].long()
        x = self.blocks(self.byte(x) + self.position.weight[: x.shape[1]])
        return cross_entropy(self.head(self.norm(x)).flatten(0, 1), y.flatten())


def adamw(model: nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    return keep_settings(torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay))


def keep_settings(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Have what a checkpoint or a peer brings change the moments alone: the settings stay those of the command line."""
    optimizer.register_load_state_dict_pre_hook(
        lambda own, state: {**state, "param_groups": own.state_dict()["param_groups"]}
    )
    return optimizer


def average_within_group(model: nn.Module) -> None:
    """Average the gradients over the workers of this group."""
    if WORLD_SIZE > 1:
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= WORLD_SIZE


@torch.no_grad()
def held_out_loss(model: nn.Module, text: Text) -> float:
    return model(text.held_out).item()


def digest(weights: Iterable[Tensor]) -> str:
    """A fingerprint of the weights, bit for bit."""
    sha = hashlib.sha256()
    for tensor in weights:
        sha.update(bytes(tensor.detach().cpu().contiguous().view(torch.uint8).flatten().tolist()))
    return sha.hexdigest()
