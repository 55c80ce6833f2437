"""Train the small GPT of train_ddp.py with LocalSGD: every group on its own, its weights averaged now and then.

Each group takes --sync-every steps of its own optimizer (inner steps), then the groups average their weights (a sync)
and all go on from the average. `manager.current_step()` counts the syncs, and so does --steps. Only at a sync the
groups meet: there a dead group is left out, and one that has come back is let in.

Which batches: at sync s group g puts in what it has learnt from --sync-every batches that are its own, so no batch is
trained on twice. Skipped are the batches of a group that takes no part in a sync: who takes part is known only when
they have been trained on, and with the group its weights are gone. A restart of all groups goes back to the checkpoint,
with the weights and with the batches.

Plain torchft; the environment is that of train_ddp.py.
"""

import os
import time
from datetime import timedelta

import torch.distributed as dist
from gpt import (
    GPT,
    GROUP,
    GROUPS,
    RANK,
    WORLD_SIZE,
    Text,
    adamw,
    average_within_group,
    backend_within_group,
    digest,
    held_out_loss,
    log,
    parser,
    pick_device,
    process_group,
)
from torchft import Manager
from torchft.local_sgd import LocalSGD

from ftslurm.checkpoint import Checkpointer


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=20, help="syncs")
    options.add_argument("--sync-every", type=int, default=10, help="inner steps from one sync to the next")
    args = options.parse_args()

    device, backend = pick_device(args.backend)
    text = Text(args, device)
    model = GPT(args).to(device)
    optimizer = adamw(model, args)

    def state_dict() -> dict:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load_state_dict(state: dict) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=process_group(backend, timeout=timedelta(seconds=30)),
        min_replica_size=1,
        # With a synchronous quorum a group that joins would copy the weights of a live group before the average and
        # contribute them as its own: they would count twice. So it contributes nothing and takes the average.
        use_async_quorum=True,
        # All groups start with the same weights (--seed). If the first sync copied the weights, all groups but one
        # would contribute nothing and still be counted: the average would be half of the weights, or less.
        init_sync=False,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"train_localsgd_{GROUP}",
        timeout=timedelta(seconds=30),
        quorum_timeout=timedelta(hours=1),  # a group waits at a sync until the others reach it
    )
    if WORLD_SIZE > 1:
        dist.init_process_group(backend_within_group())
    checkpointer = Checkpointer(manager, {"model": model, "optimizer": optimizer})
    checkpointer.restore()  # does nothing without a checkpoint, or if live groups have a newer state

    started = time.monotonic()
    size = sum(p.numel() for p in model.parameters())
    log(f"{size:,} parameters, {len(text.train):,} blocks of text, {device}, {backend}")
    with LocalSGD(manager, model, optimizer, args.sync_every) as local_sgd:
        # With FTSLURM_HEALS=1 other groups hold the state: what this group learns before it joins would be discarded.
        joins = os.environ.get("FTSLURM_HEALS") == "1"
        while (step := manager.current_step()) < args.steps:
            first = (step * GROUPS + GROUP) * args.sync_every
            batches = [] if joins else list(range(first, first + args.sync_every))
            for batch in batches:
                optimizer.zero_grad()
                loss = model(text.batch(batch))
                loss.backward()
                average_within_group(model)
                optimizer.step()  # the last of them also syncs
            while manager.current_step() == step:
                if not joins:
                    log(f"sync {step} | not committed, once more: a peer has failed")
                local_sgd.sync()  # nothing is undone: this group's progress is averaged with the others'
            checkpointer.step()  # saves when due: every FTSLURM_CHECKPOINT_EVERY syncs, or on request

            now = manager.current_step()
            text.note(manager, batches)
            if joins or now > step + 1:
                log(f"sync {now} | joined: weights and optimizer copied from a live group")
            else:
                took = time.monotonic() - started
                log(f"sync {now} | loss {loss.item():.3f} | {manager.num_participants()} groups | {took:.1f} s")
            joins = False

    if RANK == 0:
        log(f"sync {manager.current_step()} | held-out loss {held_out_loss(model, text):.3f} | final")
    log(f"weights sha256={digest(model.parameters())}")
    checkpointer.close()
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
