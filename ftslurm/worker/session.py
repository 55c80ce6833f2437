"""The life of one worker: it imports everything, reports ready, gets its rank and runs the script.

Imports take seconds, so they come before the assignment is known; a standby has done them before it is needed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ftslurm.code import running
from ftslurm.errors import complain
from ftslurm.guard import gpus, interfaces, node_check, rank_log, stacks
from ftslurm.guard.gateway import Gateway
from ftslurm.guard.guard import Task
from ftslurm.protocol import addresses, messages, outbox
from ftslurm.protocol.exit_codes import ExitCode
from ftslurm.protocol.stages import Stage
from ftslurm.run import last_words
from ftslurm.security import process_title, secret_variables
from ftslurm.slurm.commands import GPU_VARIABLES
from ftslurm.words import listed
from ftslurm.worker import (
    checkpoint_folder,
    closed_servers,
    cpu_binding,
    extension_locks,
    group_end,
    parameter_sessions,
    patch_fit,
    script,
    torchft_patches,
)
from ftslurm.worker.commits import Commits
from ftslurm.worker.lineage_guard import LineageGuard
from ftslurm.worker.parameter_sessions import Sessions
from ftslurm.worker.private_names import Patch
from ftslurm.worker.progress import Observer
from ftslurm.worker.quorum_abort import BrokenQuorums
from ftslurm.worker.unhealed import Watch

if TYPE_CHECKING:
    from ftslurm.worker.catch_up import Beside
    from ftslurm.worker.comparison import Comparison

_MOST_ERROR = 300  # characters of an exception's first line
_kept: list[Any] = []  # the TCPStore lives as long as the process
M = TypeVar("M", bound=messages.Message)


@dataclass
class Watchers:
    """The watchers of torchft in this process."""

    progress: Observer
    lineage: LineageGuard
    unhealed: Watch
    commits: Commits
    quorums: BrokenQuorums
    sessions: Sessions
    compared: Comparison | None = None  # None: health.compare_every is 0, or this torchft does not fit
    beside: Beside | None = None  # None: torchft.heal=blocking, or this torchft does not fit
    left_out: list[str] = field(default_factory=list)  # sentences about what does not fit the installed torch, torchft
    bound: str = ""  # a line for the rank's log: the CPUs to which this process is bound
    opened: set[tuple[str, str]] = field(default_factory=set)  # the descriptors that a script may not close

    @property
    def waits_for_quorum(self) -> bool:
        """Return whether a thread of torchft is asking for a quorum: an ordinary exit would wait for its answer."""
        futures = [manager._quorum_future for manager in list(self.lineage.managers)]
        return any(future is not None and not future.done() for future in futures)

    def flush(self) -> None:
        """Send all pending reports."""
        self.progress.flush()
        self.sessions.flush()


def main(task: Task, orders: int, reports: int) -> NoReturn:
    """Run one worker until its end.

    Args:
        task: the task of the Slurm step.
        orders: file descriptor of the messages that the guard forwards: assign, then store, then broken at any time.
        reports: file descriptor that leads to the controller.
    """
    channel = Channel(task.index, orders, reports)
    try:
        stacks.register(task.position, 2)
        if task.options.standby:
            # torch.cuda.is_available() asks CUDA by default, which then never reads CUDA_VISIBLE_DEVICES again: the
            # standby could no longer be given its share of the GPUs (read in torch/cuda/__init__.py).
            os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        code, watchers = prepare(task, channel)
        channel.say(messages.Ready(patch_fit.torchft()))
        assign = channel.receive(messages.Assign)
        me = assign.ranks[task.index]
        if task.options.standby:
            choose_gpus(share(assign, me))
            watchers.bound = cpu_binding.bind(assign.bind, task.local_index) if assign.bind else ""
        take_rank(task, assign, me)
        if watchers.bound:
            complain(watchers.bound)
        join_group(task, channel, watchers, me.rank)
        watch_script(task, channel, watchers, assign, me.rank)
        if me.local_rank == 0 and (said := checkpoint_folder.complaint(os.environ)):
            channel.warn(said)
    except BaseException as error:  # the controller must get every error
        with contextlib.suppress(Exception):
            traceback.print_exc()
        channel.say_failed(error, started=False)
        os._exit(1)

    patience_s = float(os.environ.get("TORCHFT_QUORUM_TIMEOUT_SEC") or 60)  # the script may change it

    def failed(error: BaseException) -> None:
        watchers.flush()
        channel.say_failed(error, started=True)

    def finished() -> int | None:
        watchers.flush()
        if watchers.beside is not None:
            for manager in list(watchers.lineage.managers):
                watchers.beside.linger(manager)
        watchers.unhealed.ended()
        channel.say(messages.Done())
        if watchers.opened - descriptors():
            return ExitCode.CUT_OFF  # what torch does at an ordinary exit aborts the process
        while me.rank == 0 < len(assign.ranks) - 1 and not task.position.may_leave:
            time.sleep(0.01)  # this process hosts the group's store
        threading.Thread(target=end_at_last, args=(channel, patience_s), name="end at last", daemon=True).start()
        # An ordinary exit kills daemon threads in the middle of C++ code.
        return 0 if watchers.waits_for_quorum or group_end.hold_exit() else None

    args = script.fill(assign.args, os.environ)
    script.run(code.script(assign.script), assign.module, args, code.place(os.getcwd()), failed, finished)


def end_at_last(channel: Channel, patience_s: float) -> NoReturn:
    """End this process although something of the script goes on, for which Python waits: warn, and wait much longer."""
    time.sleep(patience_s)
    others = [one.name for one in threading.enumerate() if not one.daemon and one is not threading.main_thread()]
    whom = listed(sorted(others)) if others else "a child process or a function of atexit"
    left_s = 9 * patience_s
    channel.warn(
        f"the script has ended, and its process has not: Python waits for {whom}. In {left_s:g} s (nine times "
        "job.longest_step_s) it is ended with exit code 0"
    )
    time.sleep(left_s)
    os._exit(0)


def descriptors() -> set[tuple[str, str]]:
    """Return the sockets, pipes and the like that this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return {(name, what) for name, what in found if "[" in what and name not in "012"}


class Channel:
    """The worker's end of the control channel."""

    def __init__(self, task: int, orders: int, reports: int) -> None:
        """Arguments as for `main`."""
        self.task, self.orders, self.reports = task, orders, reports
        self._pipe, self._orders = os.fstat(reports), os.fstat(orders)
        self._lines = messages.Lines()
        self._waiting: list[messages.Order] = []

    def say(self, report: messages.Report) -> None:
        """Send one message to the controller."""
        self._send([messages.encode_report(report, self.task)])

    def say_failed(self, error: BaseException, started: bool) -> None:
        """Send the end of an exception's traceback, then the exception."""
        line, trace = describe(error)
        trace = "" if isinstance(error, SystemExit) else trace  # sys.exit("message"): the message says it all
        self._send(messages.encode_trace(last_lines(trace), self.task))
        self.say(messages.Failed(line, started, oom=ran_out_of_memory(error)))

    def warn(self, text: str) -> None:
        """Warn the user in the rank's log and through the controller."""
        complain(f"warning: {text}")
        self.say(messages.Notice(text))

    def receive(self, kind: type[M]) -> M:
        """Wait for the next message of a type, which may have come with an earlier one.

        Raises:
            OSError: the guard is gone.
        """
        while True:
            while self._waiting:
                if isinstance(order := self._waiting.pop(0), kind):
                    return order
            # A script that closes all descriptors may reuse the number for a file of its own.
            if not os.path.samestat(os.fstat(self.orders), self._orders) or not (data := os.read(self.orders, 65536)):
                raise OSError("the guard is gone")
            decoded = (messages.Order.decode(messages.parse(line)) for line in self._lines.feed(data))
            self._waiting += [order for order in decoded if order is not None]

    def _send(self, lines: list[bytes]) -> None:
        with contextlib.suppress(OSError):  # the controller is gone, which the guard detects
            for line in lines:
                # A script that closes all descriptors may reuse the number for a file of its own.
                if os.path.samestat(os.fstat(self.reports), self._pipe):
                    os.write(self.reports, line)


# --- the parts of main, in their order --------------------------------------------------------------------------------


def prepare(task: Task, channel: Channel) -> tuple[running.RunCode, Watchers]:
    """Do all work that needs no assignment: the way to the run's code, the imports, and a standby's warm-up.

    Raises:
        RuntimeError: the environment is incomplete, or the GPUs, the network or the installed torchft do not fit.
    """
    if "FTSLURM_RUN_DIR" not in os.environ:  # guards and controllers find a run's processes by this variable
        raise RuntimeError(
            "the environment of the step has not reached the worker: what stands before the interpreter in "
            "job.python must pass it on, as Apptainer does without --cleanenv and --containall"
        )
    secret_variables.check_worker(os.environ)
    code = running.RunCode(os.environ["FTSLURM_RUN_DIR"])
    code.enter(os.environ)
    choose_gpus(task.options.gpus)
    node_check.pass_or_end(task, channel.say)
    reach = task.gateway.reach = interfaces.reach(os.environ)
    if told := reach.variables(os.environ):
        os.environ.update(told)
        if task.local_index == 0:
            complain(f"{task.node} is announced as {reach.host}, and has {told} (cluster.interface)")
    bound = cpu_binding.bind(task.options.bind, task.local_index) if task.options.bind else ""
    with no_garbage():
        watchers = import_everything(task, channel)
        watchers.bound = bound
        if task.options.standby:
            from ftslurm.worker import warmup

            warmup.warm([name for name in task.options.imports.split(",") if name])
    return code, watchers


def import_everything(task: Task, channel: Channel) -> Watchers:
    """Import torch and torchft, patch torchft, and install its observers.

    Raises:
        RuntimeError: the installed torchft cannot be closed to strangers.
    """
    torchft_patches.before_import()
    import torch.distributed  # most scripts use it: imported before the assignment
    import torchft  # noqa: F401 the same

    importlib.import_module("encodings.idna")  # which the first look-up of a host's name would import

    extension_locks.install()
    trace = os.environ.get("TORCH_FR_DUMP_TEMP_FILE")
    if trace and torch.__version__.startswith(("2.8.", "2.9.")):  # these have other names for the Flight Recorder's
        os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", trace)
        os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")
    lineage = LineageGuard(lambda reason: end_before_step(channel, reason), lambda: task.position.reached)
    watchers = Watchers(
        progress=Observer(channel.say, position=task.position),
        lineage=lineage,
        unhealed=Watch(channel.warn),
        commits=Commits(channel.warn),
        quorums=BrokenQuorums(lineage.managers, task.position),
        sessions=Sessions(),
    )
    installs = torchft_patches.INSTALLS | {
        Patch.MANAGERS: lambda: closed_servers.close_managers(task.gateway),
        Patch.PROCESS_GROUPS: lambda: closed_servers.close_process_groups(task.gateway),
        Patch.PARAMETER_SERVERS: lambda: parameter_sessions.install(task.gateway, watchers.sessions),
        Patch.CHECKPOINTS: lambda: importlib.import_module("ftslurm.worker.transport").install(task.gateway),
        Patch.COMPARE: lambda: compare(watchers, task, channel),
        Patch.BESIDE: lambda: heal_beside(watchers, channel),
        Patch.MANAGER: lambda: importlib.import_module("ftslurm.worker.run_manager").install(watchers),
    }
    patch_fit.apply(installs, watchers.left_out)
    if torch.version.cuda is None and os.environ.get("CUDA_VISIBLE_DEVICES") and os.path.exists("/dev/nvidiactl"):
        watchers.left_out.append(
            f"the node's GPUs stay idle: torch {torch.__version__} in the workers' environment (job.python) is a build "
            "for CPUs. Install one for CUDA, or ask for no GPUs: groups.gpus=0"
        )
    return watchers


def compare(watchers: Watchers, task: Task, channel: Channel) -> None:
    """Begin to take this worker's digests, if groups are compared."""
    if "FTSLURM_COMPARE_EVERY" not in os.environ:
        return
    from ftslurm.worker.comparison import Comparison  # imports torch

    every, parts = os.environ["FTSLURM_COMPARE_EVERY"], os.environ["FTSLURM_COMPARE_PARTS"].split()
    warn = complain if every == "auto" else channel.warn  # what was not asked for may fail
    watchers.compared = Comparison(warn, task.position, None if every == "auto" else int(every), parts)


def heal_beside(watchers: Watchers, channel: Channel) -> None:
    """Heal this group beside the training, and let others do so, if the run does."""
    if os.environ.get("FTSLURM_HEAL") == "beside":
        watchers.beside = importlib.import_module("ftslurm.worker.catch_up").Beside(channel.warn)
        watchers.beside.install()


def end_before_step(channel: Channel, reason: str) -> NoReturn:
    """End this worker before it takes a step with weights that are not the training's."""
    error = f"ended by ftslurm before it took a step: {reason}"
    complain(error)
    refused = os.environ.get("FTSLURM_HEALS") == "1"
    channel.say(messages.Failed(error, started=True, refused=refused))
    os._exit(1)


def take_rank(task: Task, assign: messages.Assign, me: messages.Rank) -> None:
    """Set up the environment and the log of the assigned rank."""
    os.environ.update(environment(assign, me))
    process_title.of_rank(assign.script or assign.module or "", assign.group, me.rank, assign.attempt, guard=False)
    if os.environ.get("FTSLURM_CLUSTER") == "local":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else Gloo listens at the address of the machine's name
    rank_log.take_output(os.path.join(assign.log_dir or task.options.log_dir, f"rank-{me.rank}.log"))
    stacks.register(task.position, 2)


def join_group(task: Task, channel: Channel, watchers: Watchers, rank: int) -> None:
    """Join the group's other ranks: rank 0 hosts the store, and all ranks wait until the script may start."""
    place = None
    if rank == 0:
        place = host_store(task.gateway)
    elif task.local_index == 0:
        place = admission(task.gateway)
    watchers.opened = descriptors()  # before other ranks connect to the store: they close their connections at any time
    if place is not None:
        channel.say(messages.StoreUp(*place))
    if rank == 0:
        watchers.progress.on_quorum = channel.say
    begin = channel.receive(messages.Begin)
    os.environ |= {"MASTER_ADDR": begin.addr, "MASTER_PORT": str(begin.port)}
    closed_servers.begin(f"{begin.addr}:{begin.port}", begin.public)
    watchers.lineage.floor = begin.floor
    os.environ["FTSLURM_HEALS"] = str(int(begin.heals))
    os.environ["FTSLURM_HISTORY"] = str(begin.history)  # checkpoint/data_offsets.py reads it
    with contextlib.suppress(OSError):  # only `ftslurm attach` needs it
        os.pwrite(task.environment, b"\0".join(b"%s=%s" % pair for pair in os.environb.items()), 0)


def watch_script(task: Task, channel: Channel, watchers: Watchers, assign: messages.Assign, rank: int) -> None:
    """Connect the watchers to the channel; only rank 0 reports for the group."""
    for text in watchers.left_out:
        if rank == 0:
            channel.warn(text)
        else:
            complain(f"warning: {text}")
    if watchers.compared is not None:
        watchers.compared.report = lambda step, *told: channel.say(messages.Digest(step, rank, *told))
    if rank == 0:
        watchers.unhealed.before = dict(os.environ)
    else:
        watchers.progress.report = lambda _: None
    if rank != 0 or not assign.lighthouse:  # without a Lighthouse no script needs a Manager
        watchers.unhealed.over = True

    def say_for_group(report: messages.Report) -> None:
        if isinstance(report, messages.Restored):
            ours = os.path.dirname(str(report.path)) == os.environ["FTSLURM_CHECKPOINT_DIR"]
            if ours:  # it is an older checkpoint if the newest could not be read
                watchers.lineage.floor = min(watchers.lineage.floor, report.step)
        if rank == 0:
            channel.say(report)

    outbox.say, outbox.wanted = say_for_group, lambda: task.position.wanted
    watchers.quorums.listen_to(channel.receive)
    task.position.mark(0, Stage.COMPUTING)


# --- texts of exceptions ----------------------------------------------------------------------------------------------


def describe(error: BaseException) -> tuple[str, str]:
    """Return the first line of an exception, with that of its first cause, and its traceback as Python prints it."""
    lines = [last_words.first_line("".join(traceback.format_exception_only(one))) for one in causes(error)]
    line, first = lines[0], lines[-1]
    if first.partition(": ")[2] not in line:  # else it repeats what the cause says
        line = f"{last_words.shorten(line)}, caused by {first}"
    return line[:_MOST_ERROR] or type(error).__name__, "".join(traceback.format_exception(error))


def causes(error: BaseException) -> list[BaseException]:
    """Return an exception, what it was raised from, and so on."""
    found = [error]
    while (below := found[-1].__cause__) is not None and below not in found:
        found.append(below)
    return found


def last_lines(text: str) -> str:
    """Return the end of a traceback, without marks below its lines: at most 20 lines and 4,000 characters."""
    return "\n".join([line for line in text.rstrip().splitlines() if line.strip(" ^~|")][-20:])[-4000:]


def ran_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means out of memory, the host's (MemoryError) or a GPU's (torch.OutOfMemoryError)."""
    kinds = {kind.__name__ for one in causes(error) for kind in type(one).__mro__}
    return not {"MemoryError", "OutOfMemoryError"}.isdisjoint(kinds)


# --- environment, GPUs, log and store ---------------------------------------------------------------------------------


@contextlib.contextmanager
def no_garbage() -> Iterator[None]:
    """Import without garbage collection: a tenth less time (torch 2.13). Imported objects stay, so later collections
    ignore them (gc.freeze)."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


AMD = "/dev/kfd"
_OF_HIP = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")  # count those that ROCR shows


def choose_gpus(wanted: str | None) -> None:
    """Narrow the visible GPUs to this Slurm step's share: entries FIRST to FIRST+COUNT-1 of those visible here.

    srun's --gpu-bind cannot do this: its masks count the node's GPUs on some clusters and the job's on others, and on a
    node where the job holds only some of the GPUs a mask is silently dropped (measured on Slurm 22.05).

    Raises:
        RuntimeError: fewer GPUs are visible than the share needs.
    """
    if wanted is None:
        return
    first, count = (int(part) for part in wanted.split(":"))
    given = {name: [gpu for gpu in os.environ.get(name, "").split(",") if gpu] for name in GPU_VARIABLES}
    given = {name: visible for name, visible in given.items() if visible}
    if not given and os.environ.get("FTSLURM_GPUS") == "node":  # Slurm knows of none
        given = gpus.names()
    shown = min(map(len, given.values()), default=0)
    if shown < first + count:
        named = ", ".join(f"{name}={','.join(visible)}" for name, visible in given.items())
        raise RuntimeError(
            f"this node shows {shown} GPUs ({named or ', '.join(GPU_VARIABLES) + ': not set'}), the group's share is "
            f"{first} to {first + count - 1}: lower groups.gpus or groups.per_node, or ask for more GPUs per node"
        )
    for name, visible in given.items():
        counts_anew = "ROCR_VISIBLE_DEVICES" in given and name in _OF_HIP and os.path.exists(AMD)
        share = range(count) if counts_anew else visible[first : first + count]
        os.environ[name] = ",".join(map(str, share))


def share(assign: messages.Assign, me: messages.Rank) -> str | None:
    """Return a standby's share of its visible GPUs, FIRST:COUNT; None: it needs no narrowing.

    In a local run, the GPUs of all nodes are this machine's.

    Raises:
        RuntimeError: the standby has a CUDA context already, on another group's GPUs.
    """
    if not assign.gpus:
        return None
    first, count = (int(part) for part in assign.gpus.split(":"))
    if os.environ.get("FTSLURM_CLUSTER") == "local":
        first += count * me.node_rank
    torch = sys.modules["torch"]
    if not torch.cuda.is_initialized():
        return f"{first}:{count}"
    if first != 0:
        raise RuntimeError(
            f"the standby initialized CUDA on the node's first GPU before it got its own, which start at number "
            f"{first}: its log names the module to remove from standby.imports"
        )
    return None  # the share starts at the first GPU anyway, and CUDA no longer reads the variable


def environment(assign: messages.Assign, me: messages.Rank) -> dict[str, str]:
    """Return the variables for the script (docs/scripts.md), with the names of torchrun and of torchft's examples."""
    world, role = len(assign.ranks), assign.role or messages.Role("default", 0, 1)
    servers = assign.servers
    return {
        **({"FTSLURM_STEP": assign.step} if assign.step else {}),
        **({"FTSLURM_ROLE": role.name} if assign.role else {}),
        **({"FTSLURM_SERVER": servers[0], "FTSLURM_SERVERS": ",".join(servers)} if servers else {}),
        **({"TORCHFT_LIGHTHOUSE": assign.lighthouse} if assign.lighthouse else {}),
        "RANK": str(me.rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(me.local_rank),
        "LOCAL_WORLD_SIZE": str(sum(rank.node == me.node for rank in assign.ranks)),
        "GROUP_RANK": str(me.node_rank),
        "GROUP_WORLD_SIZE": str(len({rank.node for rank in assign.ranks})),
        "ROLE_RANK": str(role.index * world + me.rank),
        "ROLE_WORLD_SIZE": str(role.count * world),
        "ROLE_NAME": role.name,
        "TORCHELASTIC_RUN_ID": assign.run_id,
        "TORCHELASTIC_RESTART_COUNT": str(assign.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(assign.max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "REPLICA_GROUP_ID": str(assign.group),
        "NUM_REPLICA_GROUPS": str(assign.groups),
        "FTSLURM_ATTEMPT": str(assign.attempt),
        "FTSLURM_RESULT": os.path.join(os.environ.get("FTSLURM_RUN_DIR", ""), "results", f"group-{assign.group:04d}"),
        "FTSLURM_GLOBAL_RANK": str(assign.group * world + me.rank),
        "FTSLURM_GLOBAL_WORLD_SIZE": str(assign.groups * world),
        "FTSLURM_LEADER": str(int(assign.group == 0 and me.rank == 0)),
    }


def host_store(gateway: Gateway) -> tuple[str, int]:
    """Host the group's TCPStore on loopback, where only its guard can connect; return HOST and PORT of the guard.

    Raises:
        OSError: the guard has no port for it.
    """
    from torch.distributed import TCPStore

    place = admission(gateway)
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    mine = listener.getsockname()[1]
    store = TCPStore("127.0.0.1", mine, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    _kept.append(store)
    gateway.publish(addresses.STORE, mine)
    empty(store)
    return place


def admission(gateway: Gateway) -> tuple[str, int]:
    """Return HOST and PORT at which other nodes reach this worker's guard.

    Raises:
        OSError: the guard has no port for it.
    """
    host, _, port = gateway.reserve().rpartition(":")
    return host, int(port)


def empty(store: Any) -> None:
    """Delete keys that another user may have set before the filter was attached: ranks would trust them (manager_addr).

    Raises:
        OSError: there are such keys, and this torch cannot list them.
    """
    if store.num_keys() and not hasattr(store, "list_keys"):
        raise OSError("a stranger has written to the group's store before it was closed to him")
    for key in store.list_keys() if store.num_keys() else ():
        store.delete_key(key)
