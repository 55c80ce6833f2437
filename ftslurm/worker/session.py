"""The worker: import everything first, say ready, learn who one is, and run the user's script.

Started early, assigned late: what takes long happens before the assignment is known.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

from ftslurm import channel
from ftslurm.worker import script
from ftslurm.worker.guard import Task

_kept: list[Any] = []  # the TCPStore lives as long as the process


def main(task: Task, orders: int, reports: int) -> NoReturn:
    """One worker from its first import to its end.

    Args:
        task: who we are in the step.
        orders: file descriptor of the guard's messages: assign, then store.
        reports: file descriptor that leads to the controller.
    """

    ours = os.fstat(reports)

    def say(kind: str, **fields: object) -> None:
        with contextlib.suppress(OSError):  # the controller is gone; the guard will notice
            if os.path.samestat(os.fstat(reports), ours):  # a script that closes all it finds may reuse the number
                os.write(reports, channel.encode_short(kind, task=task.index, **fields))

    try:
        choose_gpus(task.options.gpus)
        observer = import_everything(lambda fields: say("progress", **fields))
        say("ready")
        receive = _receiver(orders)
        assign = receive("assign")
        me = assign["ranks"][task.index]
        os.environ.update(environment(assign, me))
        open_log(os.path.join(task.options.log_dir, f"rank-{me['rank']}.log"))
        if me["rank"] == 0:
            store = host_store(local=os.environ.get("FTSLURM_CLUSTER") == "local")
            say("store", addr=store.host, port=store.port)
        begin = receive("store")  # also the word that the script may start
        os.close(orders)
        os.environ |= {"MASTER_ADDR": str(begin["addr"]), "MASTER_PORT": str(begin["port"])}
        if me["rank"] != 0:
            observer.report = lambda _: None  # one voice per group
    except BaseException as error:  # whatever it is, the controller must hear of it
        traceback.print_exc()
        tail = traceback.format_exc()[-600:]
        say("failed", error=f"{type(error).__name__}: {error}", traceback_tail=tail, step=None, started=False)
        os._exit(1)

    def failed(error: str, tail: str) -> None:
        observer.flush()
        say("failed", error=error, traceback_tail=tail, step=observer.step, started=True)

    def finished() -> bool:
        observer.flush()
        say("done", step=observer.step)
        leave_together(me["rank"], len(assign["ranks"]))
        return not observer.waits_for_quorum

    script.run(assign["script"], assign["module"], assign["args"], on_failure=failed, on_success=finished)


def _receiver(orders: int) -> Callable[[str], channel.Message]:
    """A function that waits for the next message of a kind."""
    lines = channel.Lines()
    waiting: list[channel.Message] = []

    def receive(kind: str) -> channel.Message:
        while True:
            while waiting:
                message = waiting.pop(0)
                if message["type"] == kind:
                    return message
            data = os.read(orders, 65536)
            if not data:
                os._exit(1)  # the guard is gone, and we with it
            waiting.extend(m for m in map(channel.decode, lines.feed(data)) if m is not None)

    return receive


def import_everything(report: Callable[[dict[str, object]], None]) -> Any:
    """torch, torchft, the patches torchft 0.2.0 needs, and the observer; returns the observer."""
    from ftslurm.worker import compat, observe

    compat.before_import()
    import torch.distributed  # noqa: F401 the script will want it; here it is early
    import torchft  # noqa: F401

    compat.after_import()
    observer = observe.Observer(report)
    observer.install()
    return observer


def choose_gpus(wanted: str | None) -> None:
    """Narrow the visible GPUs to this step's share: entries FIRST to FIRST+COUNT-1 of what Slurm shows on this node.

    Not srun's --gpu-bind: its masks count the node's GPUs on some clusters and the job's on others, and on a node
    where the job holds only some of the GPUs a mask is dropped without a word (measured on Slurm 22.05).

    Raises:
        RuntimeError: fewer GPUs are visible than the share needs.
    """
    if wanted is None:
        return
    first, count = (int(part) for part in wanted.split(":"))
    for variable in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
        visible = [gpu for gpu in os.environ.get(variable, "").split(",") if gpu]
        if not visible and variable != "CUDA_VISIBLE_DEVICES":
            continue
        share = visible[first : first + count]
        if len(share) < count:
            raise RuntimeError(
                f"this node shows {len(visible)} GPUs ({variable}={','.join(visible)!r}), the group's share is number "
                f"{first} to {first + count - 1}: lower groups.gpus or groups.per_node, or ask for more GPUs per node"
            )
        os.environ[variable] = ",".join(share)


def environment(assign: channel.Message, me: dict[str, Any]) -> dict[str, str]:
    """The variables of design contract 6, as torchrun and torchft's examples name them."""
    ranks = assign["ranks"]
    world, group, attempt = len(ranks), int(assign["group"]), int(assign["attempt"])
    local_world = sum(r["node"] == me["node"] for r in ranks)
    nodes = len({r["node"] for r in ranks})
    return {
        "RANK": str(me["rank"]),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(me["local_rank"]),
        "LOCAL_WORLD_SIZE": str(local_world),
        "GROUP_RANK": str(me["node_rank"]),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_RANK": str(me["rank"]),
        "ROLE_WORLD_SIZE": str(world),
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": str(assign["run_id"]),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(assign["max_restarts"]),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "REPLICA_GROUP_ID": str(group),
        "NUM_REPLICA_GROUPS": str(assign["groups"]),
        "TORCHFT_LIGHTHOUSE": str(assign["lighthouse"]),
        "FTSLURM_ATTEMPT": str(attempt),
        "FTSLURM_GLOBAL_RANK": str(group * world + me["rank"]),
        "FTSLURM_GLOBAL_WORLD_SIZE": str(int(assign["groups"]) * world),
    }


def open_log(path: str) -> None:
    """From here on what the script prints goes to its own file, unbuffered, so that a SIGKILL loses nothing."""
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]


def host_store(local: bool) -> Any:
    """Host the group's TCPStore on any free port; on a local run only loopback can reach it."""
    from torch.distributed import TCPStore

    host = "127.0.0.1" if local else socket.gethostname()
    listener = None
    if local:
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    store = TCPStore(
        host,
        listener.getsockname()[1] if listener else 0,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach() if listener else None,
    )
    _kept.append(store)
    return store


def leave_together(rank: int, world: int) -> None:
    """Rank 0 hosts the store, so it stays until the group's other ranks have finished too, as torchrun's agent does."""
    if world == 1:
        return
    from torch.distributed import TCPStore

    if rank != 0:
        store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        store.set(f"ftslurm/finished/{rank}", b"1")
        return
    keys = [f"ftslurm/finished/{other}" for other in range(1, world)]
    _kept[0].wait(keys, timedelta(days=365))  # a rank that dies instead takes the whole step down, and us with it
