"""Injects faults into one worker, for `ftslurm inject` and faults.plan.

The guard injects kill, term, stop and node itself. For the others it writes the number of the fault into the shared
page of memory and sends a real-time signal. Python's handler for it runs in the script's main thread, between lines:

exit    raises SystemExit(3) in the script, as if it had called sys.exit(3) there.
hang    blocks the main thread for ever in C code and keeps the GIL. No other thread of Python runs again, while
        torchft's own threads still send heartbeats to the Lighthouse.
oom     in a memory cgroup that Slurm made for this job, with a limit below the node's free memory, fills memory until
        the kernel kills this process (oom_score_adj selects it). Anywhere else the node would suffer too: there the
        limit is this process's own address space, and the script gets a MemoryError, but never inside torchft's code,
        which treats any Exception as a failed collective and goes on.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from ftslurm.guard import processes
from ftslurm.protocol.position import Position

SIGNAL = signal.SIGRTMIN + 6
EXIT_CODE = 3
INSIDE = ("exit", "hang", "oom")
OUTSIDE = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}
SCRIPT_RUNNER = "ftslurm.worker.script"  # the module below which a script's own frames lie
LAST_WORD_S = 3.0  # then a script that swallows the exception is ended
AGAIN_S = 0.002
MIB = 1 << 20


def inflict(fault: str, pid: int, position: Position) -> str | None:
    """Inject a fault other than `node`; called in the guard. Return why that is not possible, or None."""
    if processes.state(pid) in (None, "Z"):
        return "the worker has ended"
    number: int | None = OUTSIDE.get(fault)
    if fault in INSIDE:
        if not processes.catches(pid, SIGNAL):
            return "the script has not started, or it has taken the signal for itself"
        position.fault, number = INSIDE.index(fault), SIGNAL
    if number is None:
        return f"{fault!r} is no fault of a worker; there are {', '.join([*OUTSIDE, *INSIDE, 'node'])}"
    try:
        os.kill(pid, number)
    except OSError as error:
        return str(error)
    return None


def lose_node(environ: dict[str, str]) -> NoReturn:
    """Simulate the loss of this node, as far as permissions allow; called in the guard.

    Kills the slurmstepd above this process and a slurmd above that. On a cluster where Slurm runs as the same user
    (as in a container), srun then gets no report of the end, as after a power failure. Where they belong to root they
    survive, and srun reports the end of the processes at once. Then kills every process of this run on this node with
    its descendants, and this process last.
    """
    me, run, node = os.getpid(), environ.get("FTSLURM_RUN_DIR", ""), processes.node_of(environ)
    if environ.get("FTSLURM_CLUSTER") == "slurm":
        for pid in _daemons(me):
            _kill(pid)
    for _ in range(20):  # some may be forking right now
        there = {pid for pid, theirs in processes.of_run(run) if node is not None and processes.node_of(theirs) == node}
        spared = {me, *(pid for pid, _ in processes.ancestors(me))}
        doomed = {below for pid in there for below in [pid, *processes.descendants(pid)]} - spared
        doomed = {pid for pid in doomed if processes.state(pid) not in (None, "Z")}
        if not doomed:
            break
        for pid in doomed:
            _kill(pid)
    _kill(me)
    os._exit(128 + signal.SIGKILL)


def _daemons(pid: int) -> list[int]:
    """Return the slurmstepd and slurmd that a process descends from, never process 1."""
    chain = list(processes.ancestors(pid))
    nearest = next((n for n, (_, name) in enumerate(chain) if name == "slurmstepd"), None)
    return [] if nearest is None else [above for above, name in chain[nearest:] if name in ("slurmstepd", "slurmd")]


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


# --- in the worker ----------------------------------------------------------------------------------------------------


def install(position: Position) -> None:
    """Register the signal handler. Must be called in the worker's main thread before the script runs."""

    def suffer(_: int, frame: FrameType | None) -> None:
        fault = INSIDE[position.fault]
        if fault == "oom" and _in_torchft(frame):
            _later(AGAIN_S, lambda: os.kill(os.getpid(), SIGNAL))
        else:
            {"exit": _exit, "hang": _hang, "oom": _run_out_of_memory}[fault]()

    signal.signal(SIGNAL, suffer)


def _in_torchft(frame: FrameType | None) -> bool:
    """Return whether code of torchft or ftslurm runs: one of its frames lies between the script's and `frame`."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name == SCRIPT_RUNNER:
            return False
        if name.partition(".")[0] in ("torchft", "ftslurm"):
            return True
        frame = frame.f_back
    return False


def _later(seconds: float, what: Callable[[], object]) -> None:
    timer = threading.Timer(seconds, what)
    timer.daemon = True
    timer.start()


def _exit() -> NoReturn:
    _later(LAST_WORD_S, lambda: os._exit(EXIT_CODE))
    raise SystemExit(EXIT_CODE)


def _hang() -> NoReturn:
    c, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)  # PyDLL keeps the GIL during a call, CDLL does not
    c.pthread_mutex_lock(mutex)  # a mutex of zeros is a free one
    while True:
        c.pthread_mutex_lock(mutex)  # which no signal interrupts


def _run_out_of_memory() -> NoReturn:
    room = cgroup_room()
    if room is not None and room < _free_on_this_node() * 0.8:
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")  # the kernel kills this process, and no other in this cgroup
        _fill(room + 1024 * MIB)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 64 * MIB, limits[1]))  # other threads still get what they need
    with contextlib.suppress(MemoryError):
        bytearray(1024 * MIB)
    resource.setrlimit(resource.RLIMIT_AS, limits)  # reporting the error needs memory
    _later(LAST_WORD_S, lambda: _kill(os.getpid()))
    raise MemoryError("a fault that was injected")


def cgroup_room(root: str = "/sys/fs/cgroup") -> int | None:
    """Return the bytes left below the memory limit that Slurm set for this process's job; None: no limit."""
    folders = processes.memory_cgroups(root)
    outermost = next((n for n, path in enumerate(folders) if os.path.basename(path).startswith("job_")), None)
    rooms = []
    for folder in folders[: outermost + 1] if outermost is not None else []:
        for limit, used, cached in (
            ("memory.max", "memory.current", "file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
        ):
            with contextlib.suppress(OSError, ValueError):
                most, now, stat = (_text(f"{folder}/{name}") for name in (limit, used, "memory.stat"))
                cache = sum(int(line.split()[1]) for line in stat.splitlines() if line.startswith(f"{cached} "))
                rooms.append(int(most) - int(now) + cache)  # the kernel drops cached files first
    finite = [room for room in rooms if room < 1 << 60]
    return min(finite) if finite else None


def _text(path: str) -> str:
    with open(path) as file:
        return file.read()


def _free_on_this_node() -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))


def _fill(size: int) -> None:
    """Touch `size` bytes, in several threads: a node's memory is large, and one thread takes a second a gigabyte."""
    workers = min(8, len(os.sched_getaffinity(0)))

    def touch() -> None:
        kept = []
        for _ in range(size // workers // (64 * MIB) + 1):
            kept.append(mmap.mmap(-1, 64 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            ctypes.memset((ctypes.c_char * (64 * MIB)).from_buffer(kept[-1]), 1, 64 * MIB)

    threads = [threading.Thread(target=touch, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
