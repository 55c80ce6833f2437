"""ftslurm's own Lighthouse (`lighthouse.kind=ftslurm`): torchft's gRPC service and the controller's orders.

There is one event loop and no lock. Requests and answers are bytes for grpc_server.py; a malformed request is refused
before it changes any state (registry.Book). There is no web page, no method that kills a group, and nothing beyond
torchft's API.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ftslurm.guard import interfaces, processes
from ftslurm.guard.gateway import Gateway, taken
from ftslurm.guard.guard import Task
from ftslurm.guard.rank_log import take_output
from ftslurm.guard.sockets import raise_file_limit
from ftslurm.lighthouse import protobuf, stock
from ftslurm.lighthouse.grpc_server import CallError, GrpcServer, Handler, Status
from ftslurm.lighthouse.last_quorum import LastQuorum
from ftslurm.lighthouse.output import flush, log
from ftslurm.lighthouse.quorum import Ask, Member, Quorum, Rules
from ftslurm.lighthouse.registry import OVER, Book, Refused
from ftslurm.lighthouse.stock import Report
from ftslurm.protocol import addresses, messages
from ftslurm.protocol.position import Position
from ftslurm.protocol.readiness import readable
from ftslurm.security import owned_files, process_title

UNKNOWN_FOR_S = 5.0  # how much later than the manager's first request the controller's announcement may arrive
ASK_AGAIN_S = 0.02  # such a request is tried again
STORES_TOLD = 16  # they must not fill the journal
TOLD_S = 0.5  # after the first one, a successor has been announced all live attempts
MAKES_WAY_S = 1.0  # a successor waits at most so long until no request waits
REDIRECT_S = 0.2  # until the groups' guards know where a successor is
ANSWERED_S = 0.005  # until answers are written
BEAT_EVERY_S = 0.25  # the guard reports the age of the last beat to the controller
PAUSE_S = 5e-6  # before a decision, for each group: several times what it takes
FEW = 32  # up to so many groups, a decision for each request takes less time than the shortest timer, a millisecond


class Server:
    """The gRPC service. All times are the event loop's, which never go back."""

    def __init__(self, book: Book, file: LastQuorum, tick_s: float, report: Report) -> None:
        self.book = book
        self.file = file
        self.tick_s = tick_s
        self.report = report
        self.waiting: dict[asyncio.Future[bytes], Ask] = {}
        self.told: set[str] = set()  # the stores whose refusal is reported
        self.decision_due = False
        self.closed = False  # a successor takes over
        self.evicted = False  # an attempt has been evicted since the last decision
        self.logged = 0  # the id of the last quorum in the log
        self.reported_refusal = ""
        methods: dict[str, Handler] = {"Quorum": self.quorum, "Heartbeat": self.heartbeat}
        self.server = GrpcServer({f"/{protobuf.SERVICE}/{name}": method for name, method in methods.items()})

    # --- the service -----------------------------------------------------------------------------------------------

    async def quorum(self, request: bytes) -> bytes:
        """Answer with the next quorum that has this manager. A hang-up or the deadline withdraws the request."""
        member = protobuf.read_request(request)
        answer = await self._let_in(member)
        if isinstance(answer, Refused):
            self._tell(answer, member.store_address)
            raise CallError(Status.FAILED_PRECONDITION, answer.reason)
        if isinstance(answer, Quorum):
            return protobuf.write_quorum(answer, time.time())
        return await self._answer(answer)

    async def _let_in(self, member: Member) -> Ask | Quorum | Refused:
        """Have the registry handle a request; one that may be let in soon is held for some seconds.

        The controller announces an attempt before its script starts, but the announcement may arrive after the request.
        And a script's second Manager may ask before the heartbeats of its first one, which has ended, count as missing.
        """
        until = now() + UNKNOWN_FOR_S + self.book.rules.heartbeat_timeout_s
        while True:
            answer = self.book.ask(member, now())
            if not isinstance(answer, Refused) or not answer.for_now or now() >= until:
                return answer
            await asyncio.sleep(ASK_AGAIN_S)

    def _tell(self, refused: Refused, store: str) -> None:
        """Log and report that a manager is refused, once for each store, if a person should know."""
        if refused.tell and store not in self.told and len(self.told) < STORES_TOLD:
            self.told.add(store)
            log(refused.reason)
            self.report(messages.QuorumRefused(refused.reason))

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

    def heartbeat(self, request: bytes) -> bytes:
        """Handle a heartbeat. The answer is an empty message."""
        self.book.beat(protobuf.read_heartbeat(request), now())
        return b""

    # --- quorums ---------------------------------------------------------------------------------------------------

    def decide_soon(self) -> None:
        """Schedule a decision for when all requests that have arrived are read.

        A decision takes time in proportion to the number of groups, and so does the pause before it: N requests do not
        cost N decisions on N groups. With few groups there is no pause.
        """
        if not self.decision_due:
            self.decision_due = True
            groups = len(self.book.beats)
            asyncio.get_running_loop().call_later(PAUSE_S * groups if groups > FEW else 0, self.decide)

    def decide(self, moment: float | None = None) -> None:
        """Decide; if there is a quorum, answer its members. The others keep waiting, as with torchft's own."""
        self.decision_due = False
        if self.closed:
            return
        moment = now() if moment is None else moment
        self._set_aside(moment)  # before a quorum without the silent is formed
        if self.evicted:
            self.evicted = False
            self._turn_away()
        quorum = self.book.form(moment)
        if quorum is None:
            self._report_refusal()
            return
        answer = protobuf.write_quorum(quorum, time.time())
        self.file.write(answer)
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
            self.report(messages.QuorumRefused(reason))

    async def tick(self) -> NoReturn:
        """Decide every tick_s seconds, and forget silent managers."""
        while True:
            await asyncio.sleep(self.tick_s)
            moment = now()  # one for both: whoever is forgotten was set aside before
            self.decide(moment)
            self.book.prune(moment)

    def succeeded(self, successor: socket.socket) -> None:
        """End when a successor asks for it."""
        successor.setblocking(False)
        self.successor = asyncio.ensure_future(self._make_way(successor))

    async def _make_way(self, successor: socket.socket) -> None:
        """End between two quorums, if no request waits for one soon. That closes the connection to the successor."""
        if not await asyncio.get_running_loop().sock_recv(successor, 1):
            return
        until = now() + MAKES_WAY_S
        while self.waiting and now() < until:
            await asyncio.sleep(ANSWERED_S)
        self.closed = True
        await asyncio.sleep(ANSWERED_S)
        log("a successor takes over")
        flush()
        os._exit(0)

    # --- the controller --------------------------------------------------------------------------------------------

    def order(self, message: messages.Order) -> None:
        """Carry out one order of the controller."""
        match message:
            case messages.Member(group, attempt, store):
                self.book.announce(group, attempt, store)
                if not self.book.told_all:
                    asyncio.get_running_loop().call_later(TOLD_S, self._has_been_told)
            case messages.Evict(group, attempt, evicted, finished):
                self.book.told_all = True  # those that live come before those that are over
                self.book.evict(group, attempt, evicted, finished)
                self.evicted = True
                self._tell_broken()
            case messages.NewHistory(step):
                self.book.new_history(step)
                self.file.forget()
            case _:
                return
        log(f"order: {message}")
        self.decide_soon()

    def _has_been_told(self) -> None:
        self.book.told_all = True
        self.decide_soon()

    def _set_aside(self, moment: float) -> None:
        """Set silent attempts aside, or let them take part again; tell the controller."""
        changes = self.book.set_aside(moment)
        for change in changes:
            then = "quorums are formed without it" if change.aside else "it is heard again"
            log(f"group {change.group} attempt {change.attempt} was silent for {change.seconds:.1f} s: {then}")
            self.report(change)
        if changes:
            self._tell_broken()
            self.decide_soon()

    def _tell_broken(self) -> None:
        if (broken := self.book.broken()) is not None:
            self.report(messages.QuorumBroken(broken))

    def _turn_away(self) -> None:
        """Refuse the waiting requests of evicted attempts, so that their managers do not wait for the deadline."""
        for future, ask in list(self.waiting.items()):
            if ask.member.replica_id in self.book.gone and not future.done():
                del self.waiting[future]
                future.set_exception(CallError(Status.FAILED_PRECONDITION, OVER))


now = time.monotonic  # the clock of the registry


def main(task: Task, orders: int, reports: int) -> NoReturn:
    """Serve until killed, with ftslurm's Lighthouse or torchft's. The launcher writes the options (step_command.py)."""
    options = json.loads(task.options.lighthouse) | {"folder": os.environ["FTSLURM_RUN_DIR"]}
    take_output(os.path.join(task.options.log_dir, "lighthouse.log"))
    raise_file_limit()
    process_title.of_run("Lighthouse", os.path.basename(options["folder"]))

    def report(message: messages.Report) -> None:
        with contextlib.suppress(OSError):  # the guard reads no more reports and will end this process
            os.write(reports, messages.encode_report(message, task.index))

    async def live() -> None:
        task.gateway.reach = interfaces.reach(os.environ)
        url = f"http://{task.gateway.reserve()}/{addresses.LIGHTHOUSE}"  # for the groups' guards, which forward to it
        chosen = stock.serve if options["kind"] == "torchft" else serve
        await asyncio.gather(beat(task.position), chosen(options, orders, report, task.gateway, url))

    try:
        asyncio.run(live())
    except Exception as error:
        log(f"the Lighthouse cannot go on: {error!r}")
        report(messages.Failed(str(error), started=False))
    flush()
    os._exit(1)


async def serve(options: dict[str, Any], orders: int, report: Report, gateway: Gateway, url: str) -> None:
    """Serve until cancelled, and go on with the predecessor's last quorum.

    Args:
        options: attempt (how many Lighthouses there were before), highest (no quorum may be below this step),
            folder (where the last quorum is kept) and the rules, times in milliseconds.
        orders: a pipe with the controller's orders.
        report: takes a message to the controller.
        gateway: connects to the guard, which lets only the run in.
        url: the address there.
    """
    join_s, silence_s = options["join_timeout_ms"] / 1000, options["heartbeat_timeout_ms"] / 1000
    rules = Rules(options["min_replicas"], join_s, silence_s)
    channel = gateway.take_over(addresses.LIGHTHOUSE)  # connections wait in it
    succeeds = ended_predecessor(options, orders, gateway, lambda: report(messages.LighthouseUp(url, serves=False)))
    if not succeeds:
        processes.fence(os.environ)
    file = LastQuorum(options["folder"])  # on another node it shows what was written before the predecessor closed it
    book = Book(rules, now(), options["attempt"], options["highest"], file.load(succeeds))
    server = Server(book, file, options["quorum_tick_ms"] / 1000, report)
    serve_from(channel, server.server.adopt)
    serve_from(gateway.take_over(addresses.SUCCESSOR), server.succeeded)
    after = "" if book.last is None else f", after quorum {book.last.id}"
    log(f"serving at {url}: quorums from {book.next_id} on{after}, highest step {book.highest}")
    report(messages.LighthouseUp(url))
    listen_to(orders, server.order)
    await server.tick()


def ended_predecessor(options: dict[str, Any], orders: int, gateway: Gateway, up: Callable[[], None]) -> bool:
    """Have the Lighthouse before this one end once the groups know this one: two never serve. Return whether it did.

    Args:
        options, orders, gateway: as for serve.
        up: called at once, or when the predecessor is reached.
    """
    place = Path(options["folder"], "lighthouse.address")
    try:
        if options["attempt"] == 0:
            return False
        before = gateway.dial(owned_files.read_text(place), MAKES_WAY_S)
    except OSError:
        return False
    finally:
        up()
        with contextlib.suppress(OSError):
            owned_files.replace_file(place, f"{gateway.reserve()}/{addresses.SUCCESSOR}".encode())
    with before, contextlib.suppress(OSError):
        readable(orders, MAKES_WAY_S)
        time.sleep(REDIRECT_S)
        before.settimeout(2 * MAKES_WAY_S)
        before.send(b"\0")
        return not before.recv(1)
    return False


def serve_from(channel: socket.socket, adopt: Callable[[socket.socket], object]) -> None:
    """Serve the connections that the guard has admitted: each comes as a descriptor over `channel`."""
    loop = asyncio.get_running_loop()
    channel.setblocking(False)

    def receive() -> None:
        data, connection = taken(channel)
        if connection is not None:
            adopt(connection)
        elif data:
            log("a connection is lost: this process may not open more files (ulimit -n)")
        else:
            loop.remove_reader(channel)  # the guard is gone, and will take this process with it

    loop.add_reader(channel, receive)


def listen_to(orders: int, obey: Callable[[messages.Order], None]) -> None:
    """Read the controller's orders from a pipe. An order that fails is logged, and the next one is carried out."""
    lines = messages.Lines()
    loop = asyncio.get_running_loop()

    def receive() -> None:
        data = os.read(orders, 65536)
        if not data:
            loop.remove_reader(orders)  # the guard is gone, and will take this process with it
        for line in lines.feed(data):
            try:
                message = messages.Order.decode(messages.parse(line))
                if message is not None:
                    obey(message)
            except Exception as error:
                log(f"an order cannot be carried out, {error!r}: {line!r}")

    loop.add_reader(orders, receive)


async def beat(position: Position) -> None:
    """Beat in the page of memory that the guard reads, as if each beat were a worker's step.

    So the `alive` message says how long the Lighthouse has not run: stopped, or blocked by a file system.
    """
    for number in itertools.count(1):
        position.mark(number, 0)
        await asyncio.sleep(BEAT_EVERY_S)
