"""The guard of one worker: a small parent process that never imports torch.

It holds the control channel, so a worker that is stuck in C code or holds the GIL still answers; it sees how the
worker ends, exactly, where srun would say 137; it is the reaper of everything the worker spawns, so the tree dies
whole whatever sessions and daemons the script made; and it ends everything when the controller falls silent, which
on Slurm no end-of-file tells (measured: tasks of an srun that was killed get none).

                      srun / the local launcher
                        | stdin          ^ stdout
    guard  <------------+                |   hello, alive, exited
      | pipe: assign, store              |
    worker (session.py) -----------------+   ready, store, progress, failed, done
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from ftslurm import channel

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
KILLED_BY_ORDER = 137  # 128 + SIGKILL, as a shell would say it
ORPHANED = 75  # EX_TEMPFAIL: nothing wrong with the script, the controller is gone


@dataclass(frozen=True)
class Task:
    """Who this process is before it knows its group: its index in the step, and the step's settings."""

    index: int
    local_index: int
    node: str
    options: argparse.Namespace


def options(argv: list[str]) -> argparse.Namespace:
    """The command line that the launchers write; users never do."""
    parser = argparse.ArgumentParser(prog="python -m ftslurm.worker", description="One task of a step of ftslurm.")
    parser.add_argument("--log-dir", required=True, help="where rank-N.log goes")
    parser.add_argument("--heartbeat-s", type=float, required=True)
    parser.add_argument("--orphan-after-s", type=float, required=True)
    parser.add_argument("--eof-ends", action="store_true", help="end-of-file on stdin ends everything at once")
    parser.add_argument("--gpus", default=None, metavar="FIRST:COUNT", help="which of the visible GPUs are this step's")
    parser.add_argument("--lighthouse", default=None, help="the Lighthouse's settings as JSON, in its own step")
    return parser.parse_args(argv)


def main(worker: str) -> NoReturn:
    """Fork the worker and guard it until it ends.

    Args:
        worker: the module whose `main(task, orders, reports)` the forked child runs; `orders` is the file descriptor
            the guard passes messages on to, `reports` the one that leads to the controller.
    """
    env = os.environ
    task = Task(
        index=int(env.get("FTSLURM_TASK") or env.get("SLURM_PROCID") or 0),
        local_index=int(env.get("FTSLURM_LOCAL_TASK") or env.get("SLURM_LOCALID") or 0),
        node=env.get("FTSLURM_NODE") or env.get("SLURMD_NODENAME") or os.uname().nodename,
        options=options(sys.argv[1:]),
    )
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    fence(env)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # Slurm signals the whole step; the worker has its own say
    orders_out, orders_in = os.pipe()
    guard_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(orders_in)
        _become_worker(guard_pid)
        importlib.import_module(worker).main(task, orders_out, _take_stdio())
        os._exit(0)
    os.close(orders_out)
    Guard(task, pid, orders_in).watch()


def _become_worker(guard_pid: int) -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard_pid:
        os._exit(KILLED_BY_ORDER)  # the guard died before the line above took effect
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _take_stdio() -> int:
    """Free stdin and stdout for the script; the descriptor returned leads to the controller. Not inherited by exec."""
    reports = os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)  # until the rank log is open, what is printed belongs into step.log
    ours = [reports]

    def let_go() -> None:  # in the script's forked children; once, for theirs may have reused the number
        while ours:
            os.close(ours.pop())

    os.register_at_fork(after_in_child=let_go)
    return reports


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class Guard:
    """Watches one worker; see the module's docstring."""

    def __init__(self, task: Task, worker: int, orders: int) -> None:
        self.task = task
        self.worker = worker
        self.orders: int | None = orders
        self.lines = channel.Lines()
        self.heard = time.monotonic()
        self.log: tuple[str, str] | None = None  # the rank's log and the file of its time marks
        self.log_size = 0
        self.stdin_open = True
        self.oom_kills = _oom_kills()  # earlier ones, of whoever was in this cgroup before

    def watch(self) -> NoReturn:
        """Serve the channel until the worker has ended; then end as it did, with nothing of it left behind."""
        wake_out, wake_in = os.pipe()
        for fd in (wake_out, wake_in):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_in)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.say("hello", host=self.task.node, pid=self.worker, slurm_step=_slurm_step())
        options = self.task.options
        next_alive = next_mark = 0.0
        while True:
            status = self.reap()
            if status is not None:
                self.end_like(status)
            now = time.monotonic()
            if now - self.heard > options.orphan_after_s:
                self.orphaned(f"no word from the controller for {options.orphan_after_s:g} s (health.orphan_after_s)")
            if now >= next_alive and self.task.local_index == 0:
                next_alive = now + options.heartbeat_s
                self.say("alive")
            if now >= next_mark:
                next_mark = now + 1.0
                self.mark_log()
            sources = [wake_out, 0] if self.stdin_open else [wake_out]
            readable, _, _ = select.select(sources, [], [], min(1.0, options.heartbeat_s))
            if wake_out in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_out, 512)
            if 0 in readable:
                self.receive(os.read(0, 65536))

    def receive(self, data: bytes) -> None:
        if not data:
            self.stdin_open = False
            if self.task.options.eof_ends:
                self.orphaned("the controller is gone")
            return
        self.heard = time.monotonic()
        for line in self.lines.feed(data):
            message = channel.decode(line)
            if message is None:
                continue
            match message["type"]:
                case "ping":
                    pass
                case "stop":
                    self.signal_worker(signal.SIGTERM)
                case "kill":
                    self.end_tree(KILLED_BY_ORDER)
                case "inject" if message.get("task") == self.task.index:
                    self.signal_worker(signal.SIGKILL)
                case _:
                    self.pass_on(line, message)

    def pass_on(self, line: bytes, message: channel.Message) -> None:
        """What only the worker understands; the assignment also tells where its log is."""
        if message["type"] == "assign":
            rank = message["ranks"][self.task.index]["rank"]
            log = os.path.join(self.task.options.log_dir, f"rank-{rank}.log")
            self.log = (log, log.removesuffix(".log") + ".times")
        if self.orders is not None:
            with contextlib.suppress(BrokenPipeError):  # the worker has ended, or takes no more orders
                os.write(self.orders, line + b"\n")

    def signal_worker(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.worker, number)

    def reap(self) -> int | None:
        """Collect every dead child, adopted ones too; the worker's wait status once it is among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid == 0:
                return None
            if pid == self.worker:
                return status

    def end_like(self, status: int) -> NoReturn:
        """The worker has ended: say how, leave nothing of it running, and end the same way."""
        code = os.waitstatus_to_exitcode(status)
        self.mark_log()
        killed = code < 0
        words = self.last_words() if code > 0 else ""
        oom = killed and _oom_kills() > self.oom_kills
        self.say("exited", code=None if killed else code, signal=-code if killed else None, oom=oom, error=words)
        self.kill_descendants(grace_s=0.2)  # Python's resource tracker tidies up when its parent dies: let it
        if not killed:
            os._exit(code)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file is enough
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        os._exit(128 - code)  # the signal does not end processes by default

    def last_words(self) -> str:
        """The last line the script printed: an argument it does not know, the message of a sys.exit."""
        if self.log is None:
            return ""
        try:
            with open(self.log[0], "rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - 4096))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip()[-300:] for line in reversed(lines) if line.strip()), "")

    def orphaned(self, why: str) -> NoReturn:
        with contextlib.suppress(OSError):
            os.write(2, f"ftslurm: {self.task.node} task {self.task.index}: {why}; ending the worker\n".encode())
        self.end_tree(ORPHANED)

    def end_tree(self, code: int) -> NoReturn:
        self.kill_descendants()
        os._exit(code)

    def kill_descendants(self, grace_s: float = 0.0) -> None:
        """SIGKILL to everything below us until nothing is: orphans become our children, so no one escapes."""
        start = time.monotonic()
        while time.monotonic() < start + grace_s + 5.0:  # one in uninterruptible sleep dies when the kernel lets it
            below = descendants(os.getpid())
            if not below:
                return
            if time.monotonic() >= start + grace_s:
                for pid in below:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
            self.reap()
            time.sleep(0.005)

    def mark_log(self) -> None:
        """Note when the log had which size, so that `ftslurm logs` can merge ranks in time order."""
        if self.log is None:
            return
        with contextlib.suppress(OSError):
            size = os.stat(self.log[0]).st_size
            if size != self.log_size:
                self.log_size = size
                with open(self.log[1], "a") as marks:
                    marks.write(f"{time.time():.3f} {size}\n")

    def say(self, kind: str, **fields: object) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more: the silence rule will end us
            os.write(1, channel.encode_short(kind, task=self.task.index, **fields))


def descendants(root: int, depth: int = 1 << 20) -> list[int]:
    """Every process below `root`, at most `depth` generations, zombies left out."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as stat:
                state, parent = stat.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue  # gone between listing and reading
        if state != b"Z":
            children.setdefault(int(parent), []).append(int(entry))
    found: list[int] = []
    generation = [root]
    while generation and depth > 0:
        generation = [child for parent in generation for child in children.get(parent, [])]
        found += generation
        depth -= 1
    return found


def fence(environ: Mapping[str, str]) -> None:
    """Kill what earlier attempts of this group have left on this node: never two of one group.

    Slurm and our controller have ended them; this is for what escaped both, as daemons do where Slurm tracks
    processes by their parents. Only processes that carry this very run and group in their environment are touched.
    """
    run, (unit, _, attempt) = environ.get("FTSLURM_RUN_DIR", ""), environ.get("FTSLURM_STEP", "").partition("/")
    if not run or not attempt:
        return
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                theirs = file.read().split(b"\0")
        except OSError:
            continue  # no process, gone, or somebody else's
        if f"FTSLURM_RUN_DIR={run}".encode() not in theirs:
            continue
        steps = [word.partition(b"=")[2].decode() for word in theirs if word.startswith(b"FTSLURM_STEP=")]
        if steps and steps[0].partition("/")[0] == unit and steps[0] != f"{unit}/{attempt}":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(entry), signal.SIGKILL)


def _slurm_step() -> str | None:
    job, step = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_STEP_ID")
    return f"{job}.{step}" if job and step else None


def _oom_kills() -> int:
    """How often the kernel has killed something in our memory cgroup for want of memory."""
    try:
        with open("/proc/self/cgroup") as groups:
            lines = [line.strip().split(":", 2) for line in groups]
    except OSError:
        return 0
    kills = 0
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers in ("", "memory"):
            base = "/sys/fs/cgroup" + ("" if controllers == "" else "/memory") + path
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError), open(f"{base}/{name}") as events:
                    kills += sum(int(line.split()[1]) for line in events if line.startswith("oom_kill "))
    return kills
