"""Train the small GPT of train_ddp.py with HSDP: sharded inside each replica group, replicated across the groups.

FSDP2 (`fully_shard`) cuts weights, gradients and optimizer over the workers of a group, which may be spread over
several nodes. After every reduce-scatter inside the group each worker averages its shard of the gradients through
torchft's Manager with the workers of the same rank in the other groups. A group that has lost one worker has lost a
part of the model, so it is relaunched whole; the others go on, and it copies its shards from one of them, rank by rank.

Every batch is trained on exactly once and in order, as in train_ddp.py; a restart of all groups goes back to the
checkpoint, with the weights and with the batches.

Plain torchft; the environment is that of train_ddp.py.
"""

import time
from datetime import timedelta

import torch.distributed as dist
from gpt import (
    GPT,
    GROUP,
    RANK,
    WORLD_SIZE,
    Text,
    adamw,
    digest,
    held_out_loss,
    log,
    parser,
    pick_device,
    process_group,
)
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torchft import Manager, Optimizer

from ftslurm.checkpoint import Checkpointer


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=120)
    options.add_argument("--eval-every", type=int, default=20, help="steps between two looks at the held-out text")
    options.add_argument("--print-every", type=int, default=5)
    args = options.parse_args()

    device, backend = pick_device(args.backend)
    text = Text(args, device)
    model = GPT(args).to(device)

    # The mesh inside the group, also for a group of one worker: FSDP can shard over one.
    dist.init_process_group("cuda:nccl,cpu:gloo" if device.type == "cuda" else "gloo")
    mesh = init_device_mesh(device.type, (WORLD_SIZE,), mesh_dim_names=("shard",))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)

    def state_dict() -> dict:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load_state_dict(state: dict) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=process_group(backend, timeout=timedelta(seconds=30)),
        min_replica_size=1,
        # When a peer heals from this worker, torchft calls state_dict() in the thread that asks for the quorum. FSDP's
        # state_dict() reshards the model: if that happened during the forward or backward pass, as by torchft's
        # default, the storage of the weights could vanish under it ("out of bounds for storage of size 0").
        use_async_quorum=False,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"train_hsdp_{GROUP}",
        timeout=timedelta(seconds=30),
    )
    optimizer = Optimizer(manager, adamw(model, args))

    def average_across_groups(shard: Tensor) -> None:
        manager.allreduce(shard).wait()  # never raises: the manager keeps an error and then refuses to commit

    checkpointer = Checkpointer(manager, {"model": model, "optimizer": optimizer})
    checkpointer.restore()  # does nothing without a checkpoint, or if live groups have a newer state

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_all_reduce_hook(average_across_groups)

    started = time.monotonic()
    size, own = (sum(p.numel() for p in part) for part in (model.parameters(), shards(model)))
    log(f"{size:,} parameters, {own:,} of them here, {len(text.train):,} blocks of text, {device}, {backend}")
    while (before := manager.current_step()) < args.steps:
        optimizer.zero_grad()  # finds the quorum of this step; a group without the state copies it from a live one
        step, rank = manager.current_step(), manager.participating_rank()
        if step > before:
            log(f"step {step} | joined: shards of weights and optimizer copied from a live group")
        if step % args.eval_every == 0 and rank == 0:  # on all workers of the group: each has only its shard
            loss = held_out_loss(model, text)
            if RANK == 0:
                log(f"step {step} | held-out loss {loss:.3f}")

        batch = manager.batches_committed() + (rank or 0)
        loss = model(text.batch(batch))
        loss.backward()  # averages each shard of the gradients within the group, then across the groups
        optimizer.step()  # only if the whole group averaged without an error; else the step is repeated
        checkpointer.step()  # saves when due: every FTSLURM_CHECKPOINT_EVERY steps, or on request

        now = manager.current_step()
        if now == step:
            log(f"step {step} | not committed, once more: a peer has failed")
            continue
        text.note(manager, [batch])
        if now % args.print_every == 0:
            took = time.monotonic() - started
            log(f"step {now} | loss {loss.item():.3f} | {manager.num_participants()} groups | {took:.1f} s")

    loss = held_out_loss(model, text)
    if RANK == 0:
        log(f"step {manager.current_step()} | held-out loss {loss:.3f} | final")
    log(f"weights sha256={digest(shards(model))}")  # of this worker's shards
    checkpointer.close()
    manager.shutdown(wait=False)
    dist.destroy_process_group()


def shards(model: FSDPModule) -> list[Tensor]:
    """This worker's part of each weight."""
    return [weight.to_local() for weight in model.state_dict().values()]


if __name__ == "__main__":
    main()
