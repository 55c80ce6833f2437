"""The worker: import everything first, say ready, learn who one is, and run the user's script.

Started early, assigned late: what takes long happens before the assignment is known.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, MutableMapping
from datetime import timedelta
from typing import Any, NoReturn

from ftslurm.guard import faults, stacks
from ftslurm.guard.gateway import Gateway
from ftslurm.guard.guard import Task
from ftslurm.guard.publishing import publish
from ftslurm.protocol import addresses, messages, outbox
from ftslurm.protocol.stages import Stage
from ftslurm.security import secret_variables
from ftslurm.worker import closed_servers, closed_transport, parameter_sessions, script
from ftslurm.worker.arguments import fill

# With it torch.cuda.is_available() asks NVML. Without it it asks CUDA, which then never looks at CUDA_VISIBLE_DEVICES
# again: a standby could no longer take its share. (read in torch/cuda/__init__.py)
_CAREFUL = "PYTORCH_NVML_BASED_CUDA_CHECK"
_servers = parameter_sessions.Observer()
_kept: list[Any] = []  # the TCPStore lives as long as the process


def main(task: Task, orders: int, reports: int) -> NoReturn:
    """One worker from its first import to its end.

    Args:
        task: who we are in the step.
        orders: file descriptor of the guard's messages: assign, then store, then broken at any time.
        reports: file descriptor that leads to the controller.
    """

    ours = os.fstat(reports)

    def send(*lines: bytes) -> None:
        with contextlib.suppress(OSError):  # the controller is gone; the guard will notice
            for line in lines:
                if os.path.samestat(os.fstat(reports), ours):  # a script that closes all it finds may reuse the number
                    os.write(reports, line)

    def say(kind: str, **fields: object) -> None:
        send(messages.encode_short(kind, task=task.index, **fields))

    def say_failed(error: BaseException, step: int | None, started: bool) -> None:
        line, trace = describe(error)
        send(*messages.encode_pieces("trace", last_lines(trace), task=task.index))
        oom = ran_out_of_memory(error)
        say("failed", error=line, traceback_tail=trace[-600:], step=step, started=started, oom=oom)

    def tell_of(kind: str, **fields: Any) -> None:
        ours = os.path.dirname(str(fields.get("path"))) == os.environ["FTSLURM_CHECKPOINT_DIR"]
        if kind == "restored" and ours:  # an older one, if the newest could not be read
            past.floor = min(past.floor, int(fields["step"]))
        if os.environ["RANK"] == "0":  # one voice per group
            say(kind, **fields)

    def refuse(reason: str) -> NoReturn:
        """There is nobody to heal from; called before the step."""
        error = f"ended by ftslurm before it took a step: {reason}"
        print(error, file=sys.stderr, flush=True)
        refused = os.environ.get("FTSLURM_HEALS") == "1"
        say("failed", error=error, traceback_tail="", step=None, started=True, oom=False, refused=refused)
        os._exit(1)

    try:
        stacks.register(task.position, 2)
        if "FTSLURM_RUN_DIR" not in os.environ:  # whoever looks after this run finds its processes by it
            raise RuntimeError(
                "the environment of the step has not reached the worker: what stands before the interpreter in "
                "job.python must pass it on, as Apptainer does without --cleanenv and --containall"
            )
        secret_variables.check_worker(os.environ)
        choose_gpus(task.options.gpus)
        gpus_are_open = task.options.standby and _CAREFUL not in os.environ
        if gpus_are_open:
            os.environ[_CAREFUL] = "1"
        with no_garbage():
            observer, past, watch, quorums, left_out = import_everything(say, refuse, task)
            if task.options.standby:
                from ftslurm.worker import warmup

                warmup.warm([name for name in task.options.imports.split(",") if name])
                if task.options.cuda:
                    warmup.create_context(task.local_index)
        say("ready")
        receive = _receiver(orders)
        assign = receive("assign")
        me = assign["ranks"][task.index]
        if task.options.standby:
            choose_gpus(share(assign, me))
        if gpus_are_open:
            del os.environ[_CAREFUL]
        os.environ.update(environment(assign, me))
        if os.environ.get("FTSLURM_CLUSTER") == "local":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else Gloo listens where the machine's name leads
        reach_loopback(os.environ)
        open_log(os.path.join(assign.get("log_dir") or task.options.log_dir, f"rank-{me['rank']}.log"))
        stacks.register(task.position, 2)
        if me["rank"] == 0:
            host, port = host_store(task.gateway)
            say("store", addr=host, port=port)
            observer.on_quorum = lambda fields: say("quorum", **fields)
        begin = receive("store")  # also the word that the script may start
        os.environ |= {"MASTER_ADDR": str(begin["addr"]), "MASTER_PORT": str(begin["port"])}
        closed_servers.begin(f"{begin['addr']}:{begin['port']}", str(begin.get("public") or ""))
        heals, past.floor = bool(begin.get("heals")), int(begin.get("floor") or 0)
        os.environ["FTSLURM_HEALS"] = str(int(heals))
        for words in left_out:
            warn(words, say if me["rank"] == 0 else lambda *_, **__: None)
        if me["rank"] != 0:
            observer.report = lambda _: None  # one voice per group
        outbox.say, outbox.wanted = tell_of, lambda: task.position.wanted
        faults.install(task.position)
        quorums.listen_to(orders)
        watch.groups = int(assign["groups"]) if me["rank"] == 0 and assign["lighthouse"] else 0
        task.position.mark(0, Stage.COMPUTING)
    except BaseException as error:  # whatever it is, the controller must hear of it
        traceback.print_exc()
        say_failed(error, step=None, started=False)
        os._exit(1)

    def failed(error: BaseException) -> None:
        observer.flush()
        _servers.flush()
        say_failed(error, observer.step, started=True)

    def finished() -> bool:
        observer.flush()
        _servers.flush()
        watch.ended()
        say("done", step=observer.step)
        leave_together(me["rank"], len(assign["ranks"]))
        return not observer.waits_for_quorum and not quorums.connecting  # Python's end kills threads in mid-C++

    args = fill(assign["args"], os.environ)
    script.run(assign["script"], assign["module"], args, on_failure=failed, on_success=finished)


def _receiver(orders: int) -> Callable[[str], messages.Message]:
    """A function that waits for the next message of a kind."""
    lines = messages.Lines()
    waiting: list[messages.Message] = []

    def receive(kind: str) -> messages.Message:
        while True:
            while waiting:
                message = waiting.pop(0)
                if message["type"] == kind:
                    return message
            data = os.read(orders, 65536)
            if not data:
                os._exit(1)  # the guard is gone, and we with it
            waiting.extend(m for m in map(messages.decode, lines.feed(data)) if m is not None)

    return receive


def warn(words: str, say: Callable[..., None]) -> None:
    """Tell the user something: in the rank's log, and through the controller."""
    print(f"ftslurm: warning: {words}", file=sys.stderr, flush=True)
    say("warning", text=words)


def describe(error: BaseException) -> tuple[str, str]:
    """An exception as one line, and its traceback as Python prints it."""
    lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
    return lines[-1] if lines else type(error).__name__, "".join(traceback.format_exception(error))


def last_lines(text: str) -> str:
    """The end of a traceback: what fits on a screen, and no more than anybody wants to keep of a long message."""
    return "\n".join(text.rstrip().splitlines()[-20:])[-4000:]


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, the host's (MemoryError) or a GPU's (torch.OutOfMemoryError)."""
    return not {"MemoryError", "OutOfMemoryError"}.isdisjoint(kind.__name__ for kind in type(error).__mro__)


def import_everything(
    say: Callable[..., None], refuse: Callable[[str], object], task: Task
) -> tuple[Any, Any, Any, Any, list[str]]:
    """torch, torchft, the patches torchft needs, and those who watch it: observe, history, unhealed, broken.

    Also sentences for the user, about patches that do not fit the installed torchft.

    Raises:
        RuntimeError: the installed torchft cannot be closed to strangers.
    """
    from ftslurm.worker import lineage_guard, patch_fit, progress, quorum_abort, quorum_ids, torchft_patches, unhealed

    torchft_patches.before_import()
    import torch.distributed  # noqa: F401 the script will want it; here it is early
    import torchft  # noqa: F401

    left_out: list[str] = []
    torchft_patches.after_import(left_out)
    with patch_fit.indispensable("the managers, process groups and parameter servers"):
        closed_servers.install(task.gateway)
    with patch_fit.indispensable("the checkpoints' server"):
        closed_transport.install(task.gateway)
    position = task.position
    observer = progress.Observer(lambda fields: say("progress", **fields), position=position)
    past = lineage_guard.History(refuse, lambda: position.reached)
    if os.environ.get("FTSLURM_LIGHTHOUSE") == "torchft":
        past.then = quorum_ids.Repeats().tell_apart
    watch = unhealed.Watch(lambda words: warn(words, say))
    quorums = quorum_abort.Quorums(past.managers, position)
    for name, means, patch in (
        ("observe", "steps, quorums and hangs are not seen, or in part", observer),
        ("serve", "where the parameter servers are is not known", _servers),
        ("history", "only the Lighthouse keeps a group without the training's state from taking a step", past),
        ("unhealed", "nobody is warned that a script trains without torchft", watch),
        ("broken", "survivors may wait for a dead group until the process group's time-out", quorums),
    ):
        with patch_fit.optional(left_out, name, means):
            patch.install()
    return observer, past, watch, quorums, left_out


@contextlib.contextmanager
def no_garbage() -> Iterator[None]:
    """Import without looking for garbage again and again: a tenth less time (torch 2.13). What is imported stays, so no
    later collection looks at it either (gc.freeze)."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


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


def share(assign: messages.Message, me: dict[str, Any]) -> str | None:
    """A standby's share of the GPUs it sees, as the assignment says; locally all nodes' GPUs are this machine's.

    Raises:
        RuntimeError: the CUDA context is there already (standby.cuda), on another group's GPUs.
    """
    if not assign.get("gpus"):
        return None
    first, count = (int(part) for part in str(assign["gpus"]).split(":"))
    if os.environ.get("FTSLURM_CLUSTER") == "local":
        first += count * int(me["node_rank"])
    torch = sys.modules["torch"]
    if not torch.cuda.is_initialized():
        return f"{first}:{count}"
    if first != 0:
        raise RuntimeError(
            f"standby.cuda=true: this standby's CUDA context is on the node's first GPUs, the group's share starts at "
            f"number {first}; where groups share a node (groups.per_node), use standby.cuda=false"
        )
    return None  # the first GPUs are the first either way, and CUDA no longer looks


def environment(assign: messages.Message, me: dict[str, Any]) -> dict[str, str]:
    """The variables of design contract 6, as torchrun and torchft's examples name them."""
    ranks = assign["ranks"]
    world, group, attempt = len(ranks), int(assign["group"]), int(assign["attempt"])
    role = assign.get("role") or {"name": "default", "index": 0, "count": 1}
    lighthouse, servers = str(assign["lighthouse"]), [str(url) for url in assign.get("servers") or []]
    local_world = sum(r["node"] == me["node"] for r in ranks)
    nodes = len({r["node"] for r in ranks})
    step = {"FTSLURM_STEP": str(assign["step"])} if assign.get("step") else {}
    return {
        **step,
        **({"FTSLURM_ROLE": role["name"]} if assign.get("role") else {}),
        **({"FTSLURM_SERVER": servers[0], "FTSLURM_SERVERS": ",".join(servers)} if servers else {}),
        **({"TORCHFT_LIGHTHOUSE": lighthouse} if lighthouse else {}),
        "RANK": str(me["rank"]),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(me["local_rank"]),
        "LOCAL_WORLD_SIZE": str(local_world),
        "GROUP_RANK": str(me["node_rank"]),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_RANK": str(role["index"] * world + me["rank"]),
        "ROLE_WORLD_SIZE": str(role["count"] * world),
        "ROLE_NAME": str(role["name"]),
        "TORCHELASTIC_RUN_ID": str(assign["run_id"]),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(assign["max_restarts"]),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "REPLICA_GROUP_ID": str(group),
        "NUM_REPLICA_GROUPS": str(assign["groups"]),
        "FTSLURM_ATTEMPT": str(attempt),
        "FTSLURM_GLOBAL_RANK": str(group * world + me["rank"]),
        "FTSLURM_GLOBAL_WORLD_SIZE": str(int(assign["groups"]) * world),
    }


def reach_loopback(environ: MutableMapping[str, str]) -> None:
    """Keep Python's urllib, with which torchft asks a parameter server, from asking a proxy for this machine."""
    names = [name for name in ("no_proxy", "NO_PROXY") if environ.get(name)] or ["no_proxy"]
    if environ.get("FTSLURM_SERVERS") and any(environ.get(name) for name in ("http_proxy", "HTTP_PROXY", "all_proxy")):
        environ.update({name: ",".join(filter(None, (environ.get(name), "127.0.0.1"))) for name in names})


def open_log(path: str) -> None:
    """From here on what the script prints goes to its own file, unbuffered, so that a SIGKILL loses nothing."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]


def host_store(gateway: Gateway) -> tuple[str, int]:
    """Host the group's TCPStore on loopback, where only its guard can connect; returns where the guard lets the run in.

    Raises:
        OSError: the guard has no port for it.
    """
    from torch.distributed import TCPStore

    host, _, port = gateway.reserve().rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    here, mine = os.dup(listener.fileno()), listener.getsockname()[1]
    store = TCPStore("127.0.0.1", mine, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    _kept.append(store)
    publish(gateway, addresses.STORE, here, mine)
    os.close(here)
    empty(store)
    return host, int(port)


def empty(store: Any) -> None:
    """A stranger who was quicker than the filter may have left something: ranks would believe it (manager_addr).

    Raises:
        OSError: that cannot be undone with this torch.
    """
    if store.num_keys() and not hasattr(store, "list_keys"):
        raise OSError("a stranger has written to the group's store before it was closed to him")
    for key in store.list_keys() if store.num_keys() else ():
        store.delete_key(key)


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
