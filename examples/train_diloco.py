"""Train the small GPT of train_ddp.py with DiLoCo, plain or streaming: the groups meet rarely, an outer optimizer acts.

Each group takes inner steps of its own optimizer. At a sync the groups average how far each has moved since the last
one, and an outer optimizer moves the weights that all have in common that way. With --fragments N the model is cut into
N fragments with a sync of their own, in turn: N times as often, each for one N-th of the model (streaming DiLoCo). With
--fragment-sync-delay D the groups go on for D inner steps while a fragment is averaged, and --fragment-update-alpha A
mixes that much of a group's own weights into the outcome.

`manager.current_step()` counts the syncs of fragments, and so does --steps. Only at a sync the groups meet: there a
dead group is left out, and one that has come back is let in.

Which batches: for sync s group g trains on --sync-every / --fragments batches that are its own. A sync that fails
undoes what the fragment has learnt since its last one, and the same batches are trained on once more: with one fragment
this is all there was, with several the others learn from these batches twice. Skipped are the batches of a group that
takes no part in a sync. One that joins puts in a copy of what a live group has learnt, whose batches count twice there:
torchft can have it no other way. A restart of all groups goes back to the checkpoint, with the weights and the batches.

Plain torchft; the environment is that of train_ddp.py.
"""

import copy
import itertools
import time
from datetime import timedelta

import torch
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
    keep_settings,
    log,
    parser,
    pick_device,
    process_group,
)
from torch import nn
from torchft import Manager
from torchft.local_sgd import DiLoCo

from ftslurm.checkpoint import Checkpointer


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=20, help="syncs, of one fragment each")
    options.add_argument(
        "--sync-every", type=int, default=10, help="inner steps from one sync of a fragment to its next"
    )
    options.add_argument("--fragments", type=int, default=1)
    options.add_argument("--fragment-sync-delay", type=int, default=0, help="inner steps while a fragment is averaged")
    options.add_argument("--fragment-update-alpha", type=float, default=0.0, help="how much remains of the own weights")
    options.add_argument("--outer-lr", type=float, default=0.7)
    args = options.parse_args()
    if args.sync_every % args.fragments or args.fragment_sync_delay >= args.sync_every // args.fragments:
        options.error(
            f"--sync-every={args.sync_every} must be a multiple of --fragments={args.fragments}, and "
            f"--fragment-sync-delay={args.fragment_sync_delay} below their quotient"
        )

    device, backend = pick_device(args.backend)
    text = Text(args, device)
    model = GPT(args).to(device)
    inner = adamw(model, args)
    parts = fragments(model, args.fragments)
    # One outer optimizer for each fragment: torchft keeps its state with the fragment, and steps it at the sync.
    outer = [torch.optim.SGD(part.parameters(), lr=args.outer_lr, momentum=0.9, nesterov=True) for part in parts]
    for optimizer in outer:
        keep_settings(optimizer)

    def state_dict() -> dict:
        # A copy: with --fragment-sync-delay this group trains on while a group that joins fetches it.
        return copy.deepcopy({"model": model.state_dict(), "inner": inner.state_dict()})

    def load_state_dict(state: dict) -> None:  # torchft itself adds the common weights and the outer state
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["inner"])

    manager = Manager(
        pg=process_group(backend, timeout=timedelta(seconds=30)),
        min_replica_size=1,
        use_async_quorum=False,  # DiLoCo requires it
        # All groups start with the same weights (--seed). If the first sync copied the weights, all groups but one
        # would lose what they have learnt before it.
        init_sync=False,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"train_diloco_{GROUP}",
        timeout=timedelta(seconds=30),
        quorum_timeout=timedelta(hours=1),  # a group waits at a sync until the others reach it
    )
    if WORLD_SIZE > 1:
        dist.init_process_group(backend_within_group())
    diloco = DiLoCo(
        manager,
        parts,
        inner,
        outer,
        args.sync_every,
        fragment_sync_delay=args.fragment_sync_delay,
        fragment_update_alpha=args.fragment_update_alpha,
    )
    # After DiLoCo has registered the common weights and the outer state with the manager, so that they are saved too.
    checkpointer = Checkpointer(manager, {"model": model, "inner": inner})
    checkpointer.restore()  # does nothing without a checkpoint, or if live groups have a newer state

    started = time.monotonic()
    size = sum(p.numel() for p in model.parameters())
    log(f"{size:,} parameters in {len(parts)} fragments, {len(text.train):,} blocks of text, {device}, {backend}")
    inner_steps = args.sync_every // args.fragments
    with diloco:
        while (before := manager.current_step()) < args.steps:
            batches = []
            for i in range(inner_steps):
                step = manager.current_step()  # a group that joins gets the step only when the sync begins
                batches.append((step * GROUPS + GROUP) * inner_steps + i)
                inner.zero_grad()
                loss = model(text.batch(batches[-1]))
                loss.backward()
                average_within_group(model)
                inner.step()  # also begins and ends a sync when it is due
            checkpointer.step()  # saves when due: every FTSLURM_CHECKPOINT_EVERY syncs, or on request

            now = manager.current_step()
            if now == before:
                log(f"sync {now} | not committed, once more: a peer has failed")
                continue
            text.note(manager, batches if now == before + 1 else [])
            if now > before + 1:
                log(f"sync {now} | joined: all weights and optimizers copied from a live group")
            else:
                took = time.monotonic() - started
                log(f"sync {now} | loss {loss.item():.3f} | {manager.num_participants()} groups | {took:.1f} s")

    diloco._restore_parameters()  # the common weights, without this group's later inner steps
    if RANK == 0:
        log(f"sync {manager.current_step()} | held-out loss {held_out_loss(model, text):.3f} | final")
    log(f"weights sha256={digest(model.parameters())}")
    checkpointer.close()
    manager.shutdown(wait=False)


def fragments(model: GPT, count: int) -> list[nn.Module]:
    """The model in parts with about equally many layers; each weight is in exactly one."""
    layers = [model.byte, model.position, *model.blocks, model.norm, model.head]
    ends = [len(layers) * i // count for i in range(count + 1)]
    return [nn.ModuleList(layers[a:b]) for a, b in itertools.pairwise(ends)]


if __name__ == "__main__":
    main()
