"""Train a small byte-level GPT on the source of Python's standard library, with torchft.

A run is several replica groups, each a copy of the model that trains on other batches of the text. The groups average
their gradients through torchft's Manager, which finds out at every step who is there: when a group dies, the others
leave it out and go on; when it comes back, it copies weights, optimizer and step from a live group. A group may have
several workers (WORLD_SIZE > 1).

Every batch is trained on exactly once and in order: those of a step are numbered by how many were committed before it
and by the group's place in its quorum, so a group that dies leaves no gap and one that comes back repeats nothing. A
restart of all groups goes back to the checkpoint, with the weights and with the batches.

--active N: N groups train, the others are spares that compute along without being counted, until one of the N dies
and a spare takes its place at once: the loss of a group does not change what is learnt. Start it with
`groups.count=N+spares groups.min=N job.args.active=N`.

Plain torchft: whoever launches this sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT as torchrun does,
for each group on its own, and REPLICA_GROUP_ID, NUM_REPLICA_GROUPS and TORCHFT_LIGHTHOUSE. The Checkpointer is of
ftslurm, and does nothing where FTSLURM_CHECKPOINT_DIR is not set.
"""

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
from torchft import DistributedDataParallel, Manager, Optimizer
from torchft.manager import WorldSizeMode

from ftslurm.checkpoint import Checkpointer


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=120)
    options.add_argument("--active", type=int, help="this many groups train, the others are spares; default: all train")
    options.add_argument("--eval-every", type=int, default=20, help="steps between two looks at the held-out text")
    options.add_argument("--print-every", type=int, default=5)
    args = options.parse_args()
    if args.active and args.active > GROUPS:
        options.error(f"--active={args.active} groups are to train, and there are {GROUPS}")

    device, backend = pick_device(args.backend)
    text = Text(args, device)
    model = GPT(args).to(device)

    def state_dict() -> dict:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load_state_dict(state: dict) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=process_group(backend, timeout=timedelta(seconds=30)),
        min_replica_size=args.active or 1,
        world_size_mode=WorldSizeMode.FIXED_WITH_SPARES if args.active else WorldSizeMode.DYNAMIC,
        # The group's batch depends on the quorum, so there is nothing to compute before it is known; and a group that
        # joins has the weights before it computes, so its first step counts.
        use_async_quorum=False,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"train_ddp_{GROUP}",
        timeout=timedelta(seconds=30),
    )
    ddp = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, adamw(model, args))
    if WORLD_SIZE > 1:
        dist.init_process_group(backend_within_group())
    checkpointer = Checkpointer(manager, {"model": model, "optimizer": optimizer})
    checkpointer.restore()  # does nothing without a checkpoint, or if live groups have a newer state

    started = time.monotonic()
    size = sum(p.numel() for p in model.parameters())
    log(f"{size:,} parameters, {len(text.train):,} blocks of text, {device}, {backend}")
    while (before := manager.current_step()) < args.steps:
        optimizer.zero_grad()  # finds the quorum of this step; a group without the state copies it from a live one
        step, rank = manager.current_step(), manager.participating_rank()
        if step > before:
            log(f"step {step} | joined: weights and optimizer copied from a live group")
        if RANK == 0 and step % args.eval_every == 0 and rank == 0:
            log(f"step {step} | held-out loss {held_out_loss(model, text):.3f}")

        batch = manager.batches_committed() + (rank or 0)  # a spare has no rank; its gradients count as nothing
        loss = ddp(text.batch(batch))
        loss.backward()  # averages the gradients of rank r over all groups ...
        average_within_group(model)  # ... and then over the ranks of the group: now all gradients are equal
        optimizer.step()  # only if the whole group averaged without an error; else the step is repeated
        checkpointer.step()  # saves when due: every FTSLURM_CHECKPOINT_EVERY steps, or on request

        now = manager.current_step()
        if now == step:
            here = manager.num_participants()
            few = (
                f"{here} of {args.active} groups are here"
                if args.active and here < args.active
                else "a peer has failed"
            )
            log(f"step {step} | not committed, once more: {few}")
            continue
        text.note(manager, [batch])
        if now % args.print_every == 0:
            took = time.monotonic() - started
            log(f"step {now} | loss {loss.item():.3f} | {manager.num_participants()} groups | {took:.1f} s")

    if RANK == 0:
        log(f"step {manager.current_step()} | held-out loss {held_out_loss(model, text):.3f} | final")
    log(f"weights sha256={digest(model.parameters())}")
    checkpointer.close()
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
