"""The guard of one worker: a small parent process that never imports torch.

- It holds the control channel, so the controller gets answers while the worker is stuck in C code or holds the GIL.
- It sees the exact exit status of the worker, where srun reports 137.
- It is the subreaper of everything the worker starts, so the whole process tree ends with the worker.
- It ends everything when the controller is silent for too long. End-of-file is no sign: tasks of an srun that was
  killed get none (measured).
- All connections between the worker and the run's servers lead through it; it admits only processes of the run
  (network.py, in a thread of its own).

    srun / the local launcher
      | stdin                         ^ stdout: hello, alive, dumped, injected, exited, and what the worker reports
    guard
      | pipe: assign, store, broken   ^ pipe: ready, store, quorum, progress, trace, failed, done
      | socket pair: gateway.py       | a page of memory: position
    worker (session.py)

In a step that may outlive its controller (--adoptable), the guard sends the
reports to the controller that has attached last (connection.py). Any other step ends with its standard input.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import resource
import selectors
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from math import inf
from typing import NoReturn

from ftslurm.errors import complain
from ftslurm.guard import broken_hardware, faults, memory, processes, stacks
from ftslurm.guard.connection import ControlChannel, address, end_file, slurm_step
from ftslurm.guard.gateway import Gateway, pair
from ftslurm.guard.kernel_log import Tail
from ftslurm.guard.processes import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, prctl
from ftslurm.guard.rank_log import RankLog
from ftslurm.protocol import messages
from ftslurm.protocol.exit_codes import ExitCode
from ftslurm.protocol.position import Position
from ftslurm.protocol.readiness import writable
from ftslurm.run import full_disk, last_words
from ftslurm.security import process_title

ENVIRONMENT = "ftslurm-environment"  # name of the memory in which a guard keeps its worker's environment
CUT_OFF = (
    "the script of rank {} has closed descriptors that it had not opened (os.closerange?): what it did after that was "
    "not seen. It has ended well; let it close only its own"
)
REPLACED = "the script of rank {} has replaced its process (os.exec): ftslurm cannot see any steps from now on"
OOM_S = 30.0  # the kill of a child explains for so long why its script fails
MOST_UNREACHED = 12  # nodes in a message, which has a longest length
DYING_S = 0.5  # longest time a process needs to end: freeing much memory on a busy machine is slow


@dataclass(frozen=True)
class Task:
    """One task of a step, before its group is known: its index and the settings of the step."""

    index: int
    local_index: int
    node: str
    options: argparse.Namespace
    gateway: Gateway  # the worker's requests to its guard
    position: Position = field(default_factory=Position)  # shared by the worker and its guard
    environment: int = field(default_factory=partial(os.memfd_create, ENVIRONMENT))  # the script's, for shell.py


def options(argv: list[str]) -> argparse.Namespace:
    """Parse the command line, which only launchers write."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--log-dir", required=True)  # where rank-N.log goes
    parser.add_argument("--log-max-mb", type=int, default=0)  # no log grows beyond this (0: no cap)
    parser.add_argument("--heartbeat-s", type=float, required=True)
    parser.add_argument("--orphan-after-s", type=float, required=True)
    # Another controller may attach to the step; else end-of-file on stdin ends everything at once.
    parser.add_argument("--adoptable", type=int, default=0)
    parser.add_argument("--keeper", type=int)  # end when this process ends
    parser.add_argument("--ends-job", action="store_true")  # cancel the Slurm job if the controller is gone
    parser.add_argument("--gpus")  # FIRST:COUNT: which of the visible GPUs are this step's
    parser.add_argument("--bind", type=int)  # bind each of so many workers to the CPUs near its GPU
    parser.add_argument("--lighthouse")  # the Lighthouse's settings as JSON, in its own step
    parser.add_argument("--check")  # nodes to check first, as JSON (node_check.py)
    parser.add_argument("--standby", action="store_true")  # warm up before saying ready; assigned late
    parser.add_argument("--imports", default="")  # further modules a standby imports: A,B
    return parser.parse_args(argv)


def main(worker: str) -> NoReturn:
    """Fork the worker and guard it until it ends.

    Args:
        worker: the module whose `main(task, orders, reports)` the forked child runs; `orders` is the file descriptor
            from which it reads the guard's messages, `reports` the one to which it writes its own.
    """
    env = os.environ
    requests, questions = pair()
    task = Task(
        index=processes.task_of(env),
        local_index=processes.task_of(env, "FTSLURM_LOCAL_TASK", "SLURM_LOCALID"),
        node=processes.node_of(env) or os.uname().nodename,
        options=options(sys.argv[1:]),
        gateway=Gateway(questions),
    )
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    if not task.options.lighthouse:  # which takes over from the one before
        processes.fence(env)
    processes.leave_signals_to_the_script()
    orders_out, orders_in = os.pipe()
    reports_out, reports_in = os.pipe()
    guard_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(orders_in)
        os.close(reports_out)
        requests.close()
        task.gateway.keep()
        _become_worker(guard_pid)
        importlib.import_module(worker).main(task, orders_out, _take_stdio(reports_in))
        os._exit(0)
    os.close(orders_out)
    os.close(reports_in)
    questions.close()
    Guard(task, pid, requests, orders_in, reports_out).watch()


def _become_worker(guard_pid: int) -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard_pid:
        os._exit(ExitCode.KILLED_BY_ORDER)  # the guard died before the line above took effect
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _take_stdio(reports: int) -> int:
    """Free stdin and stdout for the script; return the descriptor to the guard, which exec does not inherit."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)  # until the rank log is open, output goes to step.log
    full_disk.outlive()
    ours = [reports]

    def let_go() -> None:  # in the script's forked children; only once, because they may reuse the number
        while ours:
            os.close(ours.pop())

    os.register_at_fork(after_in_child=let_go)
    return reports


class Guard:
    """The guard of one worker; see the module's docstring."""

    def __init__(self, task: Task, worker: int, requests: socket.socket, orders: int, reports: int) -> None:
        self.task = task
        self.worker = worker
        self.orders = orders
        self.log: RankLog | None = None  # that of the rank, or the Lighthouse's
        if task.options.lighthouse:
            self.log = RankLog(os.path.join(task.options.log_dir, "lighthouse.log"), task.options.log_max_mb)
        self.over = False  # the worker has ended, and only its end is still to be reported
        self.rank: int | None = None
        self.kernel = broken_hardware.KernelWatch(Tail())
        self.imported_mb = 0  # private memory of the worker when it had imported everything
        self.told_room = False
        self.oom_kills, self.oom_at = processes.oom_kills(), -inf  # in this cgroup, and when the last was noticed
        self.stopping = False  # a controller has told its group to stop
        self.term = False  # the worker was sent SIGTERM: by this guard, or with the whole step
        self.replaced = False  # the worker is another program by now
        self.unreached: list[messages.Unreached] = []  # what a thread has found
        self.selector = selectors.PollSelector()  # unlike epoll it takes any kind of stdin
        end = end_file(task.options.log_dir, task.index) if task.options.adoptable else None
        self.channel = ControlChannel(self, reports, end)
        from ftslurm.guard.network import Network  # asyncio: not before the worker is forked, which has its own imports

        self.network = Network(requests, worker)

    def watch(self) -> NoReturn:
        """Serve the channel until the worker has ended, kill its remaining processes, and exit as it did."""
        wake_out, wake_in = os.pipe()
        os.set_blocking(wake_in, False)
        signal.set_wakeup_fd(wake_in)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "term", True))
        self.selector.register(wake_out, selectors.EVENT_READ, lambda _: os.read(wake_out, 512))
        self.channel.say(self.hello())
        options = self.task.options
        next_alive, next_mark = float("inf") if self.task.local_index else 0.0, 0.0
        while True:
            status = self.reap()
            if status is not None:
                self.exit_like(status)
            now = time.monotonic()
            if self.channel.is_silent(options.orphan_after_s):
                self.exit_orphaned(
                    f"no word from the controller for {options.orphan_after_s:g} s (six times health.lost_after_s)"
                )
            if options.keeper is None and self.channel.is_cut():
                self.exit_orphaned("slurmstepd is gone")
            if options.keeper is not None and processes.state(options.keeper) in (None, "Z"):
                self.exit_orphaned("the process beside which the controller ran has ended")
            while self.unreached:
                self.say(self.unreached.pop())
            if now >= next_alive:
                next_alive = now + options.heartbeat_s
                self.say_alive()
            if now >= next_mark:
                next_mark = now + 1.0
                if self.log is not None:
                    self.channel.files.start(self.log.update)
                self.kernel.update()
                self.ran_out_of_memory()
                self.tell_room()
                self.mind_program()
                while self.network.warnings:
                    self.warn(self.network.warnings.popleft())
            wait_s = min(1.0, next_alive - time.monotonic())  # two heartbeats that are late count as missing
            for key, events in self.selector.select(max(0.0, wait_s)):
                key.data(events)

    def obey(self, order: messages.Order) -> None:
        """Carry out one message of the controller, or forward it to the worker."""
        if self.over:
            return
        match order:
            case messages.Ping(reached):
                self.task.position.reached = reached
            case messages.Save(step):  # never lower: the ranks would not agree (checkpoint/consensus.py)
                self.task.position.wanted = max(self.task.position.wanted, step)
            case messages.MayLeave():
                self.task.position.may_leave = 1
            case messages.Stop():
                if not self.stopping:  # else the controller before this one has said so
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self.worker, signal.SIGTERM)
                self.stopping = self.term = True
            case messages.Kill():
                self.obey_kill()
            case messages.Where():
                self.say_alive()
            case messages.Dump(command, task):
                if task in (None, self.task.index):
                    self.dump(command)
            case messages.Inject(fault, task):
                if task == self.task.index:
                    self.inject(fault)
            case messages.Reach() if self.task.local_index == 0:
                threading.Thread(target=self.reach, args=(order,), daemon=True).start()
            case messages.RunKey(key):
                self.network.learn(key)
                self.channel.listen(address(self.network.key, os.environ.get("FTSLURM_STEP"), self.task.index))
            case messages.LighthouseMoved(url):
                self.network.moved(url)
            case messages.Servers(urls):
                self.network.serving(urls)
            case messages.Assign():
                self.assign(order)
            case messages.Begin():
                self.channel.notes.begin = order
                self.pass_on(self.network.begun(order))
            case messages.Broken():
                self.pass_on(order, may_drop=True)  # a script without torchft does not read these
            case messages.Member() | messages.Evict() | messages.NewHistory():
                self.pass_on(order)  # the worker is the Lighthouse

    def dump(self, command: str) -> None:
        """Write the worker's stacks into its log; `command`: of the user who asks, "": the controller does."""
        who = f"rank {self.rank}" if self.rank is not None else f"task {self.task.index}"
        log, by = self.log.path if self.log else None, f"ftslurm stacks {command!a}" if command else "the controller"
        dump = partial(stacks.dump, self.worker, self.task.position, log, who, by)
        self.say(messages.Dumped(command, self.channel.files.result(dump, None)))

    def assign(self, assign: messages.Assign) -> None:
        """Give the worker its assignment, and maintain its log from now on."""
        if self.channel.notes.assign is not None:
            return  # a repetition: a new controller does not know what the previous one has sent
        self.channel.notes.assign = assign
        self.imported_mb = memory.private_mb(self.worker)
        self.task.position.reached = 0  # a standby may have the value of an earlier lineage
        self.task.position.wanted = 0
        self.rank = assign.ranks[self.task.index].rank
        process_title.of_rank(assign.script or assign.module or "", assign.group, self.rank, assign.attempt, guard=True)
        path = os.path.join(assign.log_dir or self.task.options.log_dir, f"rank-{self.rank}.log")
        self.log = RankLog(path, self.task.options.log_max_mb)
        self.pass_on(self.network.assigned(assign))
        if assign.step:  # a standby becomes this group
            became = {"FTSLURM_STEP": assign.step, "FTSLURM_FENCE": ",".join(assign.fence)}
            processes.fence({**os.environ, **became}, spare=os.environ.get("FTSLURM_STEP", ""))

    def pass_on(self, order: messages.Order, may_drop: bool = False) -> None:
        """Write a message into the worker's pipe. may_drop: drop it if the pipe is full, instead of blocking."""
        if may_drop and not writable(self.orders):
            return
        with contextlib.suppress(BrokenPipeError):  # the worker has ended, or reads no more messages
            os.write(self.orders, messages.encode(order))

    def reach(self, order: messages.Reach) -> None:
        """Dial other nodes; called in a thread."""
        from ftslurm.slurm.dial import is_silent  # few guards need it

        with ThreadPoolExecutor(len(order.nodes)) as pool:
            silent = pool.map(is_silent, *zip(*order.ports, strict=True))
        self.unreached.append(messages.Unreached(order.number, tuple(compress(order.nodes, silent))[:MOST_UNREACHED]))
        signal.raise_signal(signal.SIGCHLD)  # wakes the guard

    def inject(self, fault: str) -> None:
        """Inject a fault into the worker. A fault that also ends the guard is answered before."""
        if fault == "node":
            self.say(messages.Injected(fault))
            time.sleep(0.2)  # slurmstepd passes the answer on before it is killed
            faults.lose_node(dict(os.environ))
        if fault == "corrupt":  # the worker does it to itself, between two steps
            self.task.position.corrupt = 1
            self.say(messages.Injected(fault))
            return
        self.term = self.term or fault == "term"
        self.say(messages.Injected(fault, faults.inflict(fault, self.worker)))

    def reap(self) -> int | None:
        """Reap all children that have ended. Return the worker's wait status if it is among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid == 0:
                return None
            if pid == self.worker:
                return status

    def exit_like(self, status: int) -> NoReturn:
        """Report how the worker has ended, kill its remaining processes, and exit in the same way."""
        code = os.waitstatus_to_exitcode(status)
        self.over = True
        self.channel.pass_reports()
        if code == ExitCode.CUT_OFF:
            code = 0
            self.say(messages.Notice(CUT_OFF.format(self.rank)))
        killed = code < 0
        crashed = code > 0 or -code in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
        words = self.channel.files.result(partial(self.close_log, crashed), "")
        if -code == signal.SIGBUS:
            words = "; ".join(filter(None, (words, broken_hardware.shared_memory())))
        oom = killed and self.ran_out_of_memory()
        broken = self.broken_hardware() if code != 0 else None
        if code != 0:
            self.say_alive()  # the step that it has reached
        place = self.task.position.read()
        step = place and place.step
        self.say(
            messages.Exited(None if killed else code, -code if killed else None, oom, words, broken, self.term, step)
        )
        self.network.close()  # other groups must see at once that the worker is gone
        processes.kill_descendants(self.worker)
        self.channel.finish()
        if not killed:
            os._exit(code)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file is enough
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        os._exit(128 - code)  # the signal does not end processes by default

    def close_log(self, crashed: bool) -> str:
        """Write the last time mark of the log; return its line to quote."""
        if self.log is not None:
            self.log.update(last=True)
        return last_words.of_log(self.log.path) if crashed and self.log else ""

    def exit_orphaned(self, why: str) -> NoReturn:
        complain(f"{self.task.node} task {self.task.index}: {why}; ending the worker")
        processes.kill_descendants(self.worker)
        options = self.task.options
        if options.ends_job and self.task.index == 0:
            from ftslurm.guard import orphan

            orphan.end_job(os.environ, options.orphan_after_s / 2)
        os._exit(ExitCode.ORPHANED)

    def obey_kill(self) -> NoReturn:
        """End everything.

        If the worker is already ending, its own end is reported first. Its siblings lose their connections to it before
        it is dead, and the error that one of them raises may be why the controller kills the step. One that has
        reported an exception still calls its atexit functions.
        """
        status, deadline = self.reap(), time.monotonic() + DYING_S
        failed = messages.Failed.kind in self.channel.notes.kept
        while status is None and (failed or processes.is_ending(self.worker)) and time.monotonic() < deadline:
            time.sleep(0.002)
            status = self.reap()
        if status is not None:
            self.exit_like(status)
        broken = self.broken_hardware(broken_hardware.LONG_AGO_S)
        if broken is not None:  # a worker whose GPU is lost may hang
            self.say(messages.Exited(None, signal.SIGKILL, False, None, broken))
        processes.kill_descendants(self.worker)
        os._exit(ExitCode.KILLED_BY_ORDER)

    def broken_hardware(self, seconds: float = broken_hardware.RECENT_S) -> str | None:
        """Return what blames the node's hardware for the worker's end; None: nothing, or its log cannot be read."""
        return self.channel.files.result(partial(self._broken_hardware, seconds), None)

    def _broken_hardware(self, seconds: float) -> str | None:
        """Return what blames the node's hardware for the worker's end, in its log or the kernel's; None: nothing."""
        environ = {**os.environ, **processes.variables(os.pread(self.task.environment, 1 << 20, 0))}
        assign, log = self.channel.notes.assign, self.log.path if self.log else None
        local_rank = None if assign is None else assign.ranks[self.task.index].local_rank
        return broken_hardware.report(self.kernel, seconds, log, local_rank, environ) or None

    def say_alive(self) -> None:
        """Report the state of the worker's process and the position of its training."""
        place = self.task.position.read()
        state = processes.state(self.worker) or "?"
        if place is None:
            self.say(messages.Alive(state, None, None, None))
        else:
            self.say(messages.Alive(state, place.step, place.stage, round(place.since_s, 3)))

    def ran_out_of_memory(self) -> bool:
        """Return whether the kernel has just killed a process in this cgroup for want of memory: the worker or a child.

        A script may survive the kill of a child, and fail for another reason later.
        """
        kills, now = processes.oom_kills(), time.monotonic()
        if kills > self.oom_kills:
            self.oom_kills, self.oom_at = kills, now
        return now - self.oom_at < OOM_S

    def tell_room(self) -> None:
        """Report, after the first committed step, how much memory the node has left: for a standby beside the group."""
        place = None if self.told_room or self.task.local_index else self.task.position.read()
        if place is not None and place.step > 0:
            self.told_room = True
            self.say(messages.Room(memory.available_mb(), self.imported_mb))

    def mind_program(self) -> None:
        """Refuse a training in another program than the worker, and warn of another program: ftslurm cannot see it."""
        if self.network.outsider:
            self.say(messages.Failed(self.network.outsider.format(self.rank), started=True))
        elif self.rank is not None and not self.replaced and processes.has_exec(self.worker):
            self.replaced = True
            self.warn(REPLACED.format(self.rank))

    def hello(self) -> bytes:
        return self.line(messages.Hello(self.task.node, self.worker, slurm_step()))

    def say(self, report: messages.Report) -> None:
        self.channel.say(self.line(report))

    def line(self, report: messages.Report) -> bytes:
        return messages.encode_report(report, self.task.index)

    def warn(self, words: str) -> None:
        """Tell the user something, in the step's log and through the controller."""
        words = f"{self.task.node} {words}"
        complain(words)
        self.say(messages.Notice(words))

    def takeover(self) -> list[bytes]:
        """Return all messages that a new controller needs to take over this task."""
        place, told = self.task.position.read(), self.channel.notes
        return [
            self.hello(),
            self.line(told.adopted(place and place.step)),
            *told.kept.values(),
        ]
