"""Train a small network with Lightning's Trainer, made fault tolerant with torchft.

Lightning runs its loop in each replica group, over data of this group's own. The optimization is manual, because a step
is taken only if no group has failed since its quorum: `training_step` repeats the same batch until its step is
committed, so no batch is lost when another group dies.

The place in the data is that of torchdata's StatefulDataLoader. The Checkpointer stores it after every committed step:
a group that dies goes on behind the last batch that it committed, and after a restart of all groups each goes back to
its place at the checkpoint. To try it:

    ftslurm job.script=example:train_lightning.py job.args.steps=60 job.total_steps=60 groups.count=2 \
        checkpoint.every=20 faults=kill_one

Groups of several workers work, too: Lightning then averages inside the group with DDP.
"""

import argparse
import hashlib
import json
import os
from datetime import timedelta
from pathlib import Path

import lightning
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchft import Manager, Optimizer, ProcessGroupGloo, ProcessGroupNCCL

from ftslurm.checkpoint import Checkpointer

GROUP = int(os.environ.get("REPLICA_GROUP_ID", 0))
GROUPS = int(os.environ.get("NUM_REPLICA_GROUPS", 1))
RANK = int(os.environ.get("RANK", 0))  # within the group
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", 1))


class Circle(Dataset):
    """Numbered examples to learn from: points, inside or outside a circle."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, number: int) -> tuple[int, Tensor, int]:
        point = torch.rand(2, generator=torch.Generator().manual_seed(number)) * 2 - 1
        return number, point, int(point.norm() < 0.8)


class Share(Sampler):
    """The examples of this worker of this group: every n-th of one order of all."""

    def __init__(self, size: int) -> None:
        order = torch.randperm(size, generator=torch.Generator().manual_seed(0))
        self.numbers = order[GROUP * WORLD_SIZE + RANK :: GROUPS * WORLD_SIZE].tolist()

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self):
        return iter(self.numbers)


class FaultTolerant(lightning.LightningModule):
    def __init__(self, args: argparse.Namespace, loader: StatefulDataLoader) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2))
        self.steps, self.samples, self.loader = args.steps, args.samples, loader
        self.lr, self.weight_decay = args.lr, args.weight_decay

    def configure_optimizers(self) -> None:
        return None  # torchft's Optimizer takes no closure, so Lightning must not call it

    def on_fit_start(self) -> None:
        """Lightning has put the model on its device and joined the workers of the group."""
        adamw = torch.optim.AdamW(self.net.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        adamw.register_load_state_dict_pre_hook(  # whatever is loaded: --lr and --weight-decay stay
            lambda own, state: {**state, "param_groups": own.state_dict()["param_groups"]}
        )

        def state_dict() -> dict:
            return {"model": self.net.state_dict(), "optimizer": adamw.state_dict()}

        def load_state_dict(state: dict) -> None:
            self.net.load_state_dict(state["model"])
            adamw.load_state_dict(state["optimizer"])

        process_group = ProcessGroupNCCL if torch.cuda.is_available() else ProcessGroupGloo
        self.manager = Manager(
            pg=process_group(timeout=timedelta(seconds=30)),
            min_replica_size=1,
            use_async_quorum=False,  # a group that joins has the weights before it computes, so its first step counts
            init_sync=False,  # all groups begin with the same weights
            load_state_dict=load_state_dict,
            state_dict=state_dict,
            replica_id=f"train_lightning_{GROUP}",
            timeout=timedelta(seconds=30),
        )
        self.optimizer = Optimizer(self.manager, adamw)
        self.checkpointer = Checkpointer(self.manager, data=self.loader)
        self.checkpointer.restore()

    def training_step(self, batch: list[Tensor]) -> None:
        numbers, points, inside = batch
        before = committed = self.manager.current_step()
        while committed == before:  # once more, if another group has failed
            self.optimizer.zero_grad()  # finds the quorum; a group without the state copies it from a live one
            before = self.manager.current_step()
            loss = cross_entropy(self.net(points), inside)
            self.manual_backward(loss)
            for work in [self.manager.allreduce(p.grad) for p in self.net.parameters()]:
                work.wait()  # never raises: an error makes the step be repeated
            self.optimizer.step()
            committed = self.manager.current_step()
        self.checkpointer.step()
        self.tell(numbers, loss)
        self.trainer.should_stop = committed >= self.steps

    def tell(self, numbers: Tensor, loss: Tensor) -> None:
        step = self.manager.current_step()
        if step % 10 == 0:
            here = self.manager.num_participants()
            print(f"group {GROUP} rank {RANK} | step {step} | loss {loss.item():.3f} | {here} groups", flush=True)
        if self.samples:
            line = {"step": step, "examples": numbers.tolist()}
            with Path(f"{self.samples}-{GROUP}-{RANK}").open("a") as file:
                file.write(json.dumps(line) + "\n")

    def on_fit_end(self) -> None:
        sha = hashlib.sha256()
        for p in self.net.parameters():
            sha.update(bytes(p.detach().cpu().contiguous().view(torch.uint8).flatten().tolist()))
        print(f"weights sha256={sha.hexdigest()}", flush=True)
        self.checkpointer.close()
        self.manager.shutdown(wait=False)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--batch-size", type=int, default=32)
    options.add_argument("--lr", type=float, default=1e-2)
    options.add_argument("--weight-decay", type=float, default=1e-2)
    options.add_argument("--samples", help="a JSON line per committed step and its examples, to SAMPLES-GROUP-RANK")
    args = options.parse_args()

    lightning.seed_everything(0)  # the first weights, the same in all groups
    data = Circle()
    loader = StatefulDataLoader(data, args.batch_size, sampler=Share(len(data)), drop_last=True)
    trainer = lightning.Trainer(
        strategy="ddp" if WORLD_SIZE > 1 else "auto",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", 1)),
        use_distributed_sampler=False,  # the workers of a group share the data out as Share does
        max_epochs=-1,
        enable_checkpointing=False,  # the Checkpointer saves
        logger=False,  # each group would log its own run
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(FaultTolerant(args, loader), loader)


if __name__ == "__main__":
    main()
