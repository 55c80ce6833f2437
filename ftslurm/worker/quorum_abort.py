"""Ends waits for a member that a quorum has lost: what waits for it in that quorum is aborted.

torchft's survivors detect the death of a group when its connections close. In two cases no connection closes, and
they wait for torchft's time-out of 60 s:

* A group may die after it has asked for a quorum and before it has connected to the others in it, for instance when it
  is killed a moment after another one, whose death has caused that quorum. Gloo waits for its address in the store
  (measured with a time-out of 10 s: survivors stalled for 10.3 s).
* The node of a group may vanish in the middle of a collective, without closing its connections.

The controller learns of the death, and ftslurm's own Lighthouse knows the quorums of the dead group. Every worker is
sent the number of the broken quorum. (torchft's own Lighthouse has no such message.) Numbers only grow, and a broken
quorum is never issued again, so aborting one cannot harm another.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from ftslurm.checkpoint.devices import on_this_device
from ftslurm.errors import complain
from ftslurm.protocol import messages
from ftslurm.protocol.position import Position
from ftslurm.protocol.stages import Stage
from ftslurm.worker import group_end

T = TypeVar("T")
Receive = Callable[[type[messages.Broken]], messages.Broken]

POLL_S = 0.001
COLLECTIVE_S = 0.5  # time for a collective of a broken quorum to end by itself, with or without an error


class Broken(RuntimeError):
    """A process group cannot be set up because a member of its quorum is gone."""


class BrokenQuorums:
    """The broken quorums that this process has been sent.

    Args:
        managers: the Managers of this process.
        position: the worker's step and stage.
    """

    def __init__(self, managers: Iterable[Any], position: Position) -> None:
        self.managers = managers
        self.position = position
        self.broken = -1  # this quorum and all earlier ones are broken
        self.receive: Receive | None = None
        self.changed = threading.Condition()
        self.joined = threading.local()  # its `quorum` is the one that a Manager has joined in this thread, from 1 on

    def install(self) -> None:
        """Have clients of the store of a broken quorum give up, and cover all process groups, also within others."""
        module = group_end.module()
        connect, make = module.create_store_client, module.ProcessGroupWrapper.__init__

        @functools.wraps(connect)
        def create_store_client(*args: Any, **kwargs: Any) -> Any:
            return self.unless_broken(lambda: connect(*args, **kwargs))

        @functools.wraps(make)
        def init(group: Any, *args: Any, **kwargs: Any) -> None:
            make(group, *args, **kwargs)
            self.cover(group)

        module.create_store_client, module.ProcessGroupWrapper.__init__ = create_store_client, init

    def cover(self, group: Any) -> None:
        """Abort the set-up of a process group if the quorum breaks that a Manager has joined in this thread.

        What blocks is `_create_pg`, in which each kind connects to its peers, torchft's or the script's. One in a child
        process (baby) is set up there, and this process waits for its answer.
        """
        group = group_end.innermost(group)
        name, is_baby = "_create_pg", group_end.has_child(group)
        if is_baby:
            name = "configure" if hasattr(group, "configure") else "reconfigure"  # of torchft 0.3
        set_up = getattr(group, name, None)
        if set_up is None or name in vars(group):
            return  # it connects to nobody, or another Manager had it

        def made(*args: Any, **kwargs: Any) -> Any:
            quorum = getattr(self.joined, "quorum", 0)
            try:
                return self.unless_broken(lambda: self._connected(group, set_up(*args, **kwargs), quorum))
            except Broken:
                if is_baby:
                    group_end.end(group)  # it would wait for the others until its time-out
                raise

        setattr(group, name, made)

    def _connected(self, group: Any, made: Any, quorum: int) -> Any:
        """Wait until all are connected, the quorum breaks or the group's time-out is over.

        With NCCL the member that makes the communicator's id waits for the others in its first collective alone, on the
        GPU. It is polled: to wait for it would stall the stream of the script, for good if a member dies.

        Raises:
            Broken: not all are connected. The communicator is aborted.
        """
        if hasattr(group, "_errored"):  # a group of GPUs
            import torch

            work = made.allreduce([torch.zeros(1, device=torch.accelerator.current_accelerator())])
            until = time.monotonic() + group._timeout.total_seconds()
            while not work.is_completed():
                if time.monotonic() > until or self.broken >= quorum > 0:
                    group_end.start_abort(made)  # else it would wait on the GPU for good
                    raise Broken(f"not all members of quorum {quorum} have connected")
                time.sleep(POLL_S)
            work.wait()  # raises its error
        return made

    def unless_broken(self, make: Callable[[], T]) -> T:
        """Run `make` in a thread of its own, which is abandoned if this thread's quorum breaks. Return its result.

        Raises:
            Broken: the quorum has broken. torchft aborts the step and asks for another quorum.
            Exception: `make` has raised it.
        """
        quorum: int = getattr(self.joined, "quorum", 0)
        if not quorum:
            return make()
        self._listen()
        made: Future[T] = Future()

        def run() -> None:
            try:
                made.set_result(make())
            except BaseException as error:
                made.set_exception(error)
            with self.changed:
                self.changed.notify_all()

        name = f"{group_end.IN_TORCH}connect"
        threading.Thread(target=on_this_device(run), name=name, daemon=True).start()
        with self.changed:
            self.changed.wait_for(lambda: made.done() or self.broken >= quorum)
        if not made.done():
            raise Broken(f"a member of quorum {quorum} is gone before all had connected")
        return made.result()

    def listen_to(self, receive: Receive) -> None:
        """Set what waits for the guard's next message of a type.

        A thread starts to wait at the first process group: a script without torchft needs none.
        """
        self.receive = receive

    def _listen(self) -> None:
        receive, self.receive = self.receive, None
        if receive is not None:
            hear = on_this_device(self._hear)
            threading.Thread(target=hear, args=(receive,), name="ftslurm_orders", daemon=True).start()

    def _hear(self, receive: Receive) -> None:
        with suppress(OSError):  # the script has closed the pipe
            while True:
                self.tell(receive(messages.Broken).quorum)

    def tell(self, quorum: int) -> None:
        """Handle that a quorum has lost a member."""
        with self.changed:
            if quorum <= self.broken:
                return  # the same node is silent first, and given up later
            self.broken = quorum
            self.changed.notify_all()
        watch = on_this_device(self._watch)
        threading.Thread(target=watch, args=(quorum,), name="ftslurm_abort", daemon=True).start()

    def _watch(self, quorum: int) -> None:
        """Until there is another quorum, end collectives that wait for the lost member.

        One that does not end by itself is aborted: its callers get an error, and torchft aborts the step. A
        worker that is told in the middle of a long step enters the collective later.
        """
        word, since = self.position.word, time.monotonic()
        while self.broken <= quorum and self._managers_in(quorum):
            time.sleep(COLLECTIVE_S / 5)
            if word != self.position.word:
                word, since = self.position.word, time.monotonic()
            elif time.monotonic() >= since + COLLECTIVE_S and (stuck := self._stuck(quorum)):
                since = float("inf")  # not again, as long as nothing changes
                for manager in stuck:
                    self._abort(manager)

    def _stuck(self, quorum: int) -> list[Any]:
        """Return the Managers that may wait in a collective, and have not found the error themselves."""
        if self.position.stage not in (Stage.COLLECTIVE, Stage.VOTING):
            return []
        return [m for m in self._managers_in(quorum) if m._errored is None]

    def _managers_in(self, quorum: int) -> list[Any]:
        """Return the Managers that have no later quorum yet."""
        return [m for m in list(self.managers) if m._quorum_id <= quorum]

    def _abort(self, manager: Any) -> None:
        group_end.end(manager._pg)  # at once: while a slow disk takes the line below, the next quorum may set it up
        complain(f"a member of quorum {self.broken} is gone: its collective is aborted")
