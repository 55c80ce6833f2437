"""Reads the processes of this machine from /proc: states, trees, those of a run. Imports only the standard library."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PF_EXITING, PF_FORKNOEXEC = 0x4, 0x40  # linux/sched.h
TRACKER_S = 1.0  # Python's resource tracker removes shared memory and ends: in 0.05 s, or more on a busy machine
HELPERS_S = 0.3  # other programs, such as wandb-core; some never end by themselves
END_S = 5.0  # a killed process in uninterruptible sleep ends later
SCANS = 5  # so many in a row must find nobody, 10 ms apart: one may miss an orphan whose parent has just died
STUCK_S = 1.0  # longest wait for the environment of one process


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def state(pid: int) -> str | None:
    """Return the letter of a process's state: R runs, S sleeps, D is inside the kernel, T is stopped, Z has ended."""
    found = _stat(pid)
    return found[1] if found else None


def is_ending(pid: int) -> bool:
    """Return whether a process is exiting, or has exited and is not reaped yet."""
    found = _stat(pid)
    return found is not None and bool(found[3] & PF_EXITING)


def has_exec(pid: int) -> bool:
    """Return whether a forked process has replaced its program since (execve)."""
    found = _stat(pid)
    return found is not None and not found[3] & PF_FORKNOEXEC


def _stat(pid: int | str) -> tuple[str, str, int, int] | None:
    """Return name, state, parent and flags of a process; None: it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            name, _, rest = stat.read().partition(b"(")[2].rpartition(b")")
    except OSError:
        return None  # it never existed, or has been reaped meanwhile
    letter, parent, _, _, _, _, flags = rest.split()[:7]
    return name.decode(errors="replace"), letter.decode(), int(parent), int(flags)


def descendants(root: int, depth: int = 1 << 20) -> list[int]:
    """Return every process below `root`, at most `depth` generations, without zombies."""
    children: dict[int, list[int]] = {}
    for entry in _pids():
        found = _stat(entry)
        if found is not None and found[1] != "Z":
            children.setdefault(found[2], []).append(entry)
    below: list[int] = []
    generation = [root]
    while generation and depth > 0:
        generation = [child for parent in generation for child in children.get(parent, [])]
        below += generation
        depth -= 1
    return below


def kill(pid: int) -> None:
    """Send SIGKILL to a process, if it is there and this user's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_descendants(*dead: int) -> None:
    """End all descendants of this process by SIGKILL, each after the time in which it may end by itself.

    Orphans become children of a subreaper: none escapes. Removes the shared memory that torch has named after them.

    Args:
        dead: descendants that have ended already.
    """
    start, pids, empty = time.monotonic(), set(dead), 0
    # The kernel says at once that no child is left, unless a debugger traces one: it keeps the zombie.
    with contextlib.suppress(ChildProcessError):
        while empty < SCANS and (passed := time.monotonic() - start) < END_S:
            below = descendants(os.getpid())
            pids.update(below)
            empty = 0 if below else empty + 1
            for pid in below:
                if passed >= _grace_s(pid):
                    kill(pid)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.01)
    for path in glob.glob("/dev/shm/torch_*_*"):  # noqa: S108 torch_shm_manager would do so in two seconds
        if path.split("_")[1] in map(str, pids):
            with contextlib.suppress(OSError):
                os.unlink(path)


def _grace_s(pid: int) -> float:
    """Return how long a descendant may live on: helpers clean up when the process that they serve has gone."""
    line = read(f"/proc/{pid}/cmdline")
    if "resource_tracker" in line:
        return TRACKER_S
    # Forks of this process, as the worker is, compute; all have the same addresses, which exec draws anew.
    forked = read(f"/proc/{pid}/auxv") == read("/proc/self/auxv")
    return 0.0 if forked or "multiprocessing" in line or "torch_shm_manager" in line else HELPERS_S


def holds(pid: int, inode: int) -> bool:
    """Return whether a process has a socket open."""
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as open_files:
        return any(os.readlink(one.path) == f"socket:[{inode}]" for one in open_files)
    return False


def ancestors(pid: int) -> Iterator[tuple[int, str]]:
    """Yield (pid, name) of every process above this one, the nearest first, without process 1."""
    while (found := _stat(pid)) is not None and found[2] > 1:
        pid = found[2]
        above = _stat(pid)
        if above is None:
            return
        yield pid, above[0]


def of_run(run: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (pid, environment at its start) of every process of this user and this run on this machine."""
    return having("FTSLURM_RUN_DIR", run)


def having(name: str, value: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (pid, environment at its start) of every process of this user with this variable on this machine.

    Leaves out a process whose memory is locked (by a driver or a file server that does not answer): reading its
    environment would block as long. The thread that has tried stays behind.
    """
    todo, found = _pids(), list[tuple[int, dict[str, str]]]()
    left = len(todo) + 1

    def look() -> None:
        with contextlib.suppress(IndexError):  # another thread has taken the last one
            while todo:
                pid = todo.pop()
                if (environ := _environ(pid)).get(name) == value:
                    found.append((pid, environ))

    while left:
        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        while thread.is_alive() and len(todo) < left:  # it gets on; it is gone before the guard forks
            left = len(todo)
            thread.join(STUCK_S)
        left = len(todo)
    yield from found


def _environ(pid: int) -> dict[str, str]:
    """Return a process's environment; empty: it is gone, unreadable or another user's."""
    with contextlib.suppress(OSError):
        if os.stat(f"/proc/{pid}").st_uid == os.geteuid():
            with open(f"/proc/{pid}/environ", "rb") as file:
                return variables(file.read())
    return {}


def variables(data: bytes) -> dict[str, str]:
    """Return the environment in a block of memory."""
    return dict(os.fsdecode(word).partition("=")[::2] for word in data.split(b"\0") if word)


def node_of(environ: Mapping[str, str]) -> str | None:
    """Return the node in a process's environment. In a local run, several nodes are this machine."""
    return environ.get("FTSLURM_NODE") or environ.get("SLURMD_NODENAME")


def fence(environ: Mapping[str, str], spare: str = "") -> None:
    """Kill the processes of this run on this machine that earlier attempts of this unit have left.

    Slurm and the controller have ended those attempts; this is for processes that escaped both, as daemons do where
    Slurm tracks processes by their parents. Kills only processes whose environment names either a lower attempt of the
    same unit, or one of the Slurm steps in FTSLURM_FENCE. Spares an earlier standby of the same name: it may be a live
    group by now. Spares higher attempts: a guard may start late, when its own attempt is over.

    Args:
        environ: names this attempt. A standby that becomes a group's attempt fences again, as that attempt.
        spare: the Slurm step that the standby was started as.
    """
    unit, mine = _attempt(environ)
    if mine is None or "FTSLURM_RUN_DIR" not in environ:
        return
    named = {word for word in environ.get("FTSLURM_FENCE", "").split(",") if word}
    named -= {environ["FTSLURM_STEP"], spare}
    for pid, theirs in of_run(environ["FTSLURM_RUN_DIR"]):
        other, number = _attempt(theirs)
        if other != unit or unit.startswith("standby-"):
            number = None
        if (number is not None and number < mine) or theirs.get("FTSLURM_STEP") in named:
            kill(pid)


def _attempt(environ: Mapping[str, str]) -> tuple[str, int | None]:
    """Return unit and attempt of the Slurm step in a process's environment; attempt None: it names none."""
    unit, _, number = environ.get("FTSLURM_STEP", "").partition("/")
    return unit, int(number) if number.isdecimal() else None


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal; without one, a real-time signal would end it."""
    _, _, caught = read(f"/proc/{pid}/status").partition("SigCgt:")
    return bool(caught) and bool(int(caught.split()[0], 16) >> (number - 1) & 1)


def threads(pid: int) -> list[str]:
    """Return a line for each set of equal threads of a process: their number, name, state and place in the kernel."""
    seen: Counter[tuple[str, str, str]] = Counter()
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            found = _stat(f"{pid}/task/{thread}")
            if found is not None:
                seen[found[0], found[1], read(f"/proc/{pid}/task/{thread}/wchan").strip() or "0"] += 1
    return [
        f"{count} x {name}: {letter}" + (f" in {wchan}" if wchan != "0" else "")
        for (name, letter, wchan), count in seen.most_common()
    ]


def oom_kills() -> int:
    """Return how many out-of-memory kills there were in this process's memory cgroup."""
    kills = 0
    for base in memory_cgroups()[:1]:
        for name in ("memory.events", "memory.oom_control"):
            lines = read(f"{base}/{name}").splitlines()
            kills += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return kills


def memory_cgroups(root: str = "/sys/fs/cgroup") -> list[str]:
    """Return the folders of the memory cgroups (v1 or v2) of this process, the innermost first."""
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        base = root if controllers == "" else f"{root}/memory"
        if controllers not in ("", "memory") or not os.path.isdir(base + path):
            continue
        if os.path.exists(f"{base}{path}/memory.events") or os.path.exists(f"{base}{path}/memory.oom_control"):
            parts = [part for part in path.split("/") if part]
            return [f"{base}/{'/'.join(parts[:n])}" for n in range(len(parts), 0, -1)] or [base]
    return []


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def read(path: str | os.PathLike[str]) -> str:
    """Return the text of a file in /proc or /sys; "": it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def task_of(environ: Mapping[str, str], name: str = "FTSLURM_TASK", slurm: str = "SLURM_PROCID") -> int:
    """Return the index of a task in its step."""
    return int(environ.get(name) or environ.get(slurm) or 0)


def leave_signals_to_the_script() -> None:
    """Ignore signals from now on: Slurm signals the whole step."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
