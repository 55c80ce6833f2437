"""ftslurm's own Lighthouse (`lighthouse.kind=ftslurm`): torchft's gRPC service and the controller's orders.

There is one event loop and no lock. Requests and answers are bytes for grpc_server.py; a malformed request is refused
before it changes any state (registry.Book). There is no web page, no method that kills a group, and nothing beyond
torchft's API.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any, NoReturn

from ftslurm.guard.gateway import Gateway
from ftslurm.guard.guard import Task
from ftslurm.guard.sockets import raise_file_limit
from ftslurm.lighthouse import endpoint, protobuf, stock
from ftslurm.lighthouse.grpc_server import CallError, GrpcServer, Handler, Status
from ftslurm.lighthouse.output import BEAT_EVERY_S, Pulse, flush, log, redirect
from ftslurm.lighthouse.persistence import BLOCK, Keep
from ftslurm.lighthouse.quorum import Ask, Member, Quorum, Rules
from ftslurm.lighthouse.registry import OVER, Book, Refused, Taken, Unknown
from ftslurm.lighthouse.stock import Report
from ftslurm.protocol import addresses, messages
from ftslurm.security import process_title

UNKNOWN_FOR_S = 5.0  # how much later than the manager's first request the controller's announcement may arrive
ASK_AGAIN_S = 0.02  # such a request is tried again
WAITING_ROOM = 1000  # most requests of unknown managers that are held meanwhile
AT_ONCE = 8  # connections taken over, before those that are there get their turn
SAVE_EVERY_S = 10.0  # between two saves of the highest step
PAUSE, SHORT_S = 4, 0.001  # see decide_soon; a pause below 1 ms is not worth a timer

Waits = Unknown | Taken

STRANGERS_TOLD = 3  # reports of stores that the controller has not announced; they must not fill the journal


def _words(answer: Refused | Waits) -> str:
    if isinstance(answer, Refused):
        return answer.reason
    if isinstance(answer, Unknown):
        return (
            f"a manager with the store {answer.store[:40]!a} is refused, no attempt of this run has that store: a "
            "script that gives its Manager a store of its own (store_addr) needs torchft's Lighthouse, "
            "lighthouse=torchft"
        )
    return (
        f"a second manager with the store {answer.store[:40]!a} is refused while the first one "
        f"({answer.holder[:60]!a}) lives: a group has one Manager at a time"
    )


class Server:
    """The gRPC service. All times are the event loop's, which never go back."""

    def __init__(self, book: Book, keep: Keep, tick_s: float, report: Report) -> None:
        self.book = book
        self.keep = keep
        self.tick_s = tick_s
        self.report = report
        self.waiting: dict[asyncio.Future[bytes], Ask] = {}
        self.strangers = 0  # requests in the waiting room
        self.told: set[str] = set()  # the stores whose refusal is reported
        self.strangers_told = 0
        self.decision_due = False
        self.next_decision_at = 0.0  # no decision before this time
        self.evicted = False  # an attempt has been evicted since the last decision
        self.logged = 0  # the id of the last quorum in the log
        self.reported_refusal = ""
        self.saving: asyncio.Future[None] | None = None
        self.save_again = False
        self.saved: tuple[str, float] = ("", 0.0)
        self.save_error = ""  # why lighthouse.json could not be written the last time
        methods: dict[str, Handler] = {"Quorum": self.quorum, "Heartbeat": self.heartbeat}
        self.server = GrpcServer({f"/{protobuf.SERVICE}/{name}": method for name, method in methods.items()})

    # --- the service -----------------------------------------------------------------------------------------------

    async def quorum(self, request: bytes) -> bytes:
        """Answer with the next quorum that has this manager. A hang-up or the deadline withdraws the request."""
        try:
            member = protobuf.read_request(request)
        except protobuf.Malformed as error:
            raise CallError(Status.INVALID_ARGUMENT, str(error)) from None
        answer = self.book.ask(member, now())
        if isinstance(answer, Waits):
            answer = await self._hold(member, answer)
        if isinstance(answer, Refused | Waits):
            raise self._refusal(answer, member.store_address)
        if isinstance(answer, Quorum):
            return protobuf.write_quorum(answer, time.time())
        return await self._answer(answer)

    def _refusal(self, answer: Refused | Waits, store: str) -> CallError:
        """Return why a manager is refused; log and report it, once for each store, if a person should know."""
        reason, known = _words(answer), store in self.book.memory.stores
        tell = (not isinstance(answer, Refused) or answer.tell) and store not in self.told
        if tell and (known or self.strangers_told < STRANGERS_TOLD):
            self.told.add(store)
            self.strangers_told += not known
            log(reason)
            self.report(messages.QuorumRefused(reason, self.book.memory.highest))
        return CallError(
            Status.PERMISSION_DENIED if isinstance(answer, Unknown) else Status.FAILED_PRECONDITION, reason
        )

    async def _answer(self, ask: Ask) -> bytes:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.waiting[future] = ask
        self.decide_soon()
        try:
            return await future
        finally:
            held = self.waiting.pop(future, None)
            if held is not None:  # the manager has hung up, or its deadline has passed
                self.book.withdraw(held)

    async def _hold(self, member: Member, answer: Waits) -> Ask | Quorum | Refused | Waits:
        """Hold a request that may be let in soon.

        The controller announces an attempt before its script starts, but the announcement may arrive after the request.
        And a script's second Manager may ask before the heartbeats of its first one, which has ended, count as missing.
        """
        until = now() + UNKNOWN_FOR_S
        if isinstance(answer, Taken):
            until += self.book.rules.heartbeat_timeout_s
        if self.strangers >= WAITING_ROOM:
            return answer
        self.strangers += 1
        result: Ask | Quorum | Refused | Waits = answer
        try:
            while isinstance(result, Waits) and now() < until:
                await asyncio.sleep(ASK_AGAIN_S)
                result = self.book.ask(member, now())
        finally:
            self.strangers -= 1
        return result

    def heartbeat(self, request: bytes) -> bytes:
        """Handle a heartbeat. The answer is an empty message."""
        try:
            name = protobuf.read_heartbeat(request)
        except protobuf.Malformed as error:
            raise CallError(Status.INVALID_ARGUMENT, str(error)) from None
        self.book.beat(name, now())
        return b""

    # --- quorums ---------------------------------------------------------------------------------------------------

    def decide_soon(self) -> None:
        """Schedule a decision for when all requests that have arrived are read.

        A decision takes time in proportion to the number of groups. After one without a quorum the next decision, also
        that of `tick`, waits PAUSE times as long as it took, so that N requests do not cost N decisions on N groups.
        """
        if not self.decision_due:
            self.decision_due = True
            asyncio.get_running_loop().call_at(self.next_decision_at, self._decide_as_scheduled)

    def _decide_as_scheduled(self) -> None:
        self.decision_due = False
        if now() < self.next_decision_at:  # `tick` has decided in between
            self.decide_soon()
        else:
            self.decide()

    def decide(self) -> None:
        """Decide; if there is a quorum, answer its members. The others keep waiting, as with torchft's own."""
        moment = now()
        self._set_aside(moment)  # before a quorum without the silent is formed
        if self.evicted:
            self.evicted = False
            self._turn_away()
        if self.book.asking and self.book.memory.next_id >= self.keep.reserved and not self.save_error:
            self.save()  # all reserved ids are used: decide again when the thread has reserved more
            return
        quorum = self.book.form(moment)
        if quorum is None:
            took_s = now() - moment
            self.next_decision_at = now() + PAUSE * took_s if PAUSE * took_s > SHORT_S else 0.0
            self._report_refusal()
            return
        self.next_decision_at = 0.0
        answer = protobuf.write_quorum(quorum, time.time())
        self.keep.write_quorum(answer)
        ids = set(quorum.ids)
        for future, ask in list(self.waiting.items()):
            if ask.member.replica_id in ids:
                del self.waiting[future]
                if not future.done():
                    future.set_result(answer)
        self.reported_refusal = ""
        if quorum.id != self.logged:
            self.logged, members = quorum.id, quorum.members
            log(f"quorum {quorum.id}: {len(members)} members, step {max(member.step for member in members)}")

    def _report_refusal(self) -> None:
        """Report once that a quorum is refused because none of its members has the training's state."""
        why = self.book.why
        if why is not None and why.poisoned and why.reason != self.reported_refusal:
            self.reported_refusal = why.reason
            reason = f"no quorum for now, {why.reason}"
            log(reason)
            self.report(messages.QuorumRefused(reason, self.book.memory.highest))

    async def tick(self) -> NoReturn:
        """Decide every tick_s seconds; every second forget silent managers and save what has changed."""
        next_prune = 0.0
        while True:
            await asyncio.sleep(self.tick_s)
            moment = now()
            if moment >= self.next_decision_at:
                self.decide()
            if moment >= next_prune:
                next_prune = moment + 1.0
                self.book.prune(moment)
                if moment - self.saved[1] >= SAVE_EVERY_S or self.book.memory.next_id > self.keep.reserved - BLOCK // 2:
                    self.save()

    # --- the controller --------------------------------------------------------------------------------------------

    def order(self, message: messages.ToWorker) -> None:
        """Carry out one order of the controller."""
        match message:
            case messages.Member(group, attempt, store):
                self.book.announce(group, attempt, store)
            case messages.Evict(group, attempt, evicted, finished):
                self.book.evict(group, attempt, evicted, finished)
                self.evicted = True
                if (broken := self.book.broken()) is not None:
                    self.report(messages.QuorumBroken(broken))
            case messages.NewHistory(step):
                self.book.new_history(step)
                self.keep.forget_quorum()
            case _:
                return
        log(f"order: {message}")
        self.decide_soon()
        self.save()

    def _set_aside(self, moment: float) -> None:
        """Set silent attempts aside, or let them take part again; tell the controller."""
        changes = self.book.set_aside(moment)
        for change in changes:
            silence = f"was silent for {change.seconds:.1f} s"
            what = f"{silence}: quorums are formed without it" if change.aside else f"{silence}, and is heard again"
            log(f"group {change.group} attempt {change.attempt} {what}")
            self.report(change)
        if any(change.aside for change in changes) and (broken := self.book.broken()) is not None:
            self.report(messages.QuorumBroken(broken))
        if changes:
            self.decide_soon()

    def _turn_away(self) -> None:
        """Refuse the waiting requests of evicted attempts, so that their managers do not wait for the deadline."""
        for future, ask in list(self.waiting.items()):
            if ask.member.replica_id in self.book.gone and not future.done():
                del self.waiting[future]
                future.set_exception(CallError(Status.FAILED_PRECONDITION, OVER))

    def save(self) -> None:
        """Write lighthouse.json if its content has changed. A thread writes, one save at a time."""
        if self.saving is not None and not self.saving.done():
            self.save_again = True
            return
        self.save_again = False
        text = self.keep.snapshot(self.book.memory)
        if text == self.saved[0]:
            return
        self.saved = (text, now())
        self.saving = asyncio.ensure_future(asyncio.to_thread(self.keep.write_state, text))
        self.saving.add_done_callback(self._saved)

    def _saved(self, saving: asyncio.Future[None]) -> None:
        """Log a failed save once. `tick` tries again."""
        failure = None if saving.cancelled() else saving.exception()
        error = "" if failure is None else str(failure) or repr(failure)
        if error:
            self.saved = ("", self.saved[1])
        if error != self.save_error:
            self.save_error = error
            log(f"what has to outlive this process cannot be written: {error}" if error else "all is written again")
        self.decide_soon()
        if self.save_again:
            self.save()


def now() -> float:
    """Return the time by the clock of the registry."""
    return time.monotonic()


def main(task: Task, orders: int, reports: int) -> NoReturn:
    """Serve until killed, with ftslurm's Lighthouse or torchft's. The launcher writes the options (step_command.py)."""
    options = json.loads(task.options.lighthouse) | {"folder": os.environ["FTSLURM_RUN_DIR"]}
    redirect(task)
    raise_file_limit()
    process_title.of_run("Lighthouse", os.path.basename(options["folder"]))

    def report(message: messages.Report) -> None:
        with contextlib.suppress(OSError):  # the guard reads no more reports and will end this process
            os.write(reports, messages.encode_report(message, task.index))

    async def live() -> None:
        chosen = stock.serve if options["kind"] == "torchft" else serve
        await asyncio.gather(beat(Pulse(task.position)), chosen(options, orders, report, task.gateway))

    try:
        asyncio.run(live())
    except Exception as error:
        log(f"the Lighthouse cannot go on: {error!r}")
        report(messages.Failed(str(error), None, None, started=False))
    flush()
    os._exit(1)


async def serve(options: dict[str, Any], orders: int, report: Report, gateway: Gateway) -> None:
    """Serve until cancelled, with the state of the predecessor.

    Args:
        options: port, folder (where the state is kept) and the rules, times in milliseconds.
        orders: a pipe with the controller's orders.
        report: takes a message to the controller.
        gateway: connects to the guard, which lets only the run in.
    """
    join_s, silence_s = options["join_timeout_ms"] / 1000, options["heartbeat_timeout_ms"] / 1000
    keep = Keep(options["folder"])
    book = Book(Rules(options["min_replicas"], join_s, silence_s), keep.load(), now())
    server = Server(book, keep, options["quorum_tick_ms"] / 1000, report)
    server.save()
    url = endpoint.reserve(gateway, options["port"])
    serve_from(gateway.take_over(addresses.LIGHTHOUSE), server.server)
    memory = book.memory
    after = "" if memory.last is None else f", after quorum {memory.last.id}"
    log(f"serving at {url}: quorums from {memory.next_id} on{after}, highest step {memory.highest}")
    report(messages.LighthouseUp(url))
    listen_to(orders, server.order)
    await server.tick()


def serve_from(channel: socket.socket, server: GrpcServer) -> None:
    """Serve the connections that the guard has admitted: each comes as a descriptor over `channel`."""
    loop = asyncio.get_running_loop()
    channel.setblocking(False)

    def receive() -> None:
        for _ in range(AT_ONCE):
            try:
                data, descriptors, _, _ = socket.recv_fds(channel, 1, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            if not data:
                loop.remove_reader(channel)  # the guard is gone, and will take this process with it
                return
            if not descriptors:
                log("a connection is lost: this process may not open more files (ulimit -n)")
            for descriptor in descriptors:
                server.adopt(socket.socket(fileno=descriptor))

    loop.add_reader(channel, receive)


def listen_to(orders: int, obey: Callable[[messages.ToWorker], None]) -> None:
    """Read the controller's orders from a pipe. An order that fails is logged, and the next one is carried out."""
    lines = messages.Lines()
    loop = asyncio.get_running_loop()

    def receive() -> None:
        data = os.read(orders, 65536)
        if not data:
            loop.remove_reader(orders)  # the guard is gone, and will take this process with it
        for line in lines.feed(data):
            try:
                message = messages.ORDERS.decode(messages.parse(line))
                if message is not None:
                    obey(message)
            except Exception as error:
                log(f"an order cannot be carried out, {error!r}: {line!r}")

    loop.add_reader(orders, receive)


async def beat(pulse: Pulse) -> NoReturn:
    """Beat while the event loop runs."""
    while True:
        pulse.beat()
        await asyncio.sleep(BEAT_EVERY_S)
