"""Brings the state of a live group to one that comes back, in place of torchft's HTTPTransport.

torchft's listens on all interfaces, sends the state to every client, and unpickles the data of every server. Here the
guards of both sides make each connection, over the network that cluster.interface names, and prove to each other that
they are of this run (guard/admission.py, guard/forwarder.py) before they give it to their workers. So no other process
gets the state, and nothing of another process is unpickled. The state itself goes directly from worker to worker, at
full speed, and is not encrypted.

A donor offers the state of a step from `send_checkpoint` to `disallow_checkpoint`. A client sends requests of four
integers: the kind, the step, and for bytes of tensors the first one and the one after the last. It gets a size and so
many bytes, or minus a size and why there are none. The bytes are those of several tensors, one after the other; which,
the kind says. The header is a pickle: the tree without its tensors, and what each of them is. Several streams fetch
pieces side by side; one that breaks goes on with a new connection where it has stopped. What is received lies in host
memory, whatever the device of the donor's: a heal that breaks off has changed nothing.

For a group that heals beside the training (catch_up.py) a donor keeps a copy, in host memory, as long as the connection
that has asked for it lives.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import pickle
import re
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum, auto
from typing import Any, ClassVar, TypeVar

import torch

from ftslurm.checkpoint.devices import on_this_device
from ftslurm.checkpoint.trees import is_sharded, is_tensor, local, tensors_by_path
from ftslurm.guard import interfaces
from ftslurm.guard.gateway import Gateway, taken
from ftslurm.guard.memory import available_mb
from ftslurm.guard.sockets import end_if_gone, end_if_silent
from ftslurm.protocol import addresses, messages, outbox
from ftslurm.worker import digest
from ftslurm.worker.closed_servers import GONE_S

STREAMS = 4
PIECE = 8 << 20  # bytes of a request
TRIES = 3  # connections that bring nothing, one after the other, before a stream gives up
_REQUEST, _SIZE = struct.Struct("<qqqq"), struct.Struct("<q")

Base: Any = importlib.import_module("torchft.checkpointing.http_transport").HTTPTransport
get_stream_context: Any = importlib.import_module("torchft.utils").get_stream_context
Transport: Any = importlib.import_module("torchft.checkpointing.transport").CheckpointTransport
T = TypeVar("T")


class Kind(IntEnum):
    """What is asked for."""

    HEADER = auto()
    KEEP = auto()  # the header; the donor keeps a copy of the tensors, which is given instead of them
    DIGEST = auto()  # of what optimizers train, and of their state
    ALL = auto()  # bytes of all tensors
    REST = auto()  # bytes of the tensors that no optimizer trains


class Refused(Exception):
    """The donor does not have what was asked for."""


class RunTransport(Transport[T]):  # type: ignore[misc]
    """Serves the state of this process, and fetches that of others. Arguments as of torchft's HTTPTransport.

    Attributes:
        trained: returns the addresses of what optimizers train, and of their state.
        receive: fetches the state in place of this class, from an address, a step, and in so many seconds; None: it
            does so itself.
    """

    gateway: ClassVar[Gateway]
    numbers = itertools.count()  # a process may have several
    trained: Callable[[], set[int]] = staticmethod(set)
    receive: Callable[[str, int, float], Any] | None = None

    def __init__(self, timeout: timedelta, num_chunks: int = 0) -> None:  # noqa: ARG002 there are always STREAMS
        self._timeout_s = timeout.total_seconds()
        self._changed = threading.Condition()  # holds what follows
        self._step = -1  # of what is offered
        self._read: Callable[[], Any] | None = None  # what reads it; None: it is over
        self._offer: Offer | None = None  # what has been read
        self._reading = 0  # requests that are being answered
        self._copies: dict[int, Copy] = {}  # by their steps
        service = f"{addresses.CHECKPOINT}{next(self.numbers)}"
        self._address = f"{self.gateway.reserve()}/{service}"
        self._admitted = self.gateway.take_over(service)
        threading.Thread(target=on_this_device(self._accept), name="ftslurm-state", daemon=True).start()

    def metadata(self) -> str:
        """Return the address at which others ask for the state."""
        return self._address

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: Any, timeout: timedelta) -> None:  # noqa: ARG002
        """Offer the state, which does not change until `disallow_checkpoint`."""
        self.opens(step, lambda: state_dict)

    def opens(self, step: int, read: Callable[[], Any]) -> None:
        """Offer the state until `disallow_checkpoint`; it is read when somebody asks for it."""
        with self._changed:
            self._step, self._read, self._offer = step, read, None
            self._changed.notify_all()

    def disallow_checkpoint(self) -> None:
        """Wait for the answers that are on their way, and give no more: the state changes."""
        with self._changed:
            self._read = None
            self._changed.wait_for(lambda: self._reading == 0, self._timeout_s)

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:  # noqa: ARG002
        """Fetch the state of a step.

        Raises:
            OSError, Refused: the donor is gone, or has another step.
        """
        patience_s = timeout.total_seconds()
        if self.receive is not None:
            return self.receive(metadata, step, patience_s)
        with self.dial(metadata, patience_s) as connection:
            header = Header.received(connection, Kind.HEADER, step)
        tensors = header.empty()
        self.fetch(metadata, step, tensors, patience_s)
        return header.build([header.whole(n, one) for n, one in enumerate(tensors)])

    def fetch(self, address: str, step: int, tensors: list[torch.Tensor], patience_s: float) -> None:
        """Fetch all tensors of a step, and report it.

        Raises:
            OSError, Refused: the donor is gone, or has another step.
        """
        began, own = time.monotonic(), ""

        def dial() -> socket.socket:
            nonlocal own
            connection = self.dial(address, patience_s)
            own = str(connection.getsockname()[0])
            return connection

        fetch = Fetch(dial, Kind.ALL, step, tensors)
        fetch.run()
        took_s, there = time.monotonic() - began, interfaces.known()
        speeds = {name: interfaces.speed(name) or 0.0 for name in there}
        fastest = max(speeds, key=lambda name: speeds[name], default="")
        donor, came_by = re.sub(":[0-9]+/.*", "", address), interfaces.of(own, there)
        outbox.say(messages.Healed(step, fetch.size, took_s, donor, came_by, fastest, speeds.get(fastest, 0.0)))

    def shutdown(self, wait: bool = True) -> None:  # noqa: ARG002 it is done at once
        """Serve no longer, but for copies."""
        with contextlib.suppress(OSError):
            self._admitted.shutdown(socket.SHUT_RDWR)

    def linger(self) -> None:
        """Wait until nobody fetches a copy any more."""
        with self._changed:
            self._changed.wait_for(lambda: not self._copies, self._timeout_s)

    def dial(self, address: str, patience_s: float) -> socket.socket:
        """Connect to another transport of the run.

        Raises:
            OSError: it is not there, or not of this run.
        """
        connection = self.gateway.dial(address, patience_s)
        end_if_silent(connection, GONE_S)
        connection.settimeout(patience_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _accept(self) -> None:
        with self._admitted, contextlib.suppress(OSError):
            while (connection := taken(self._admitted)[1]) is not None:
                threading.Thread(target=on_this_device(self._serve), args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError), contextlib.ExitStack() as kept:
            connection.setblocking(True)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end_if_gone(connection, GONE_S)
            while True:
                kind, step, first, last = _REQUEST.unpack(receive(connection, _REQUEST.size))
                try:
                    self._answer(connection, kept, Kind(kind), step, first, last)
                except Exception as error:
                    if isinstance(error, OSError):
                        raise
                    text = f"{error if isinstance(error, Refused) else repr(error)}".encode()
                    connection.sendall(_SIZE.pack(-len(text)) + text)

    def _answer(
        self, connection: socket.socket, kept: contextlib.ExitStack, kind: Kind, step: int, first: int, last: int
    ) -> None:
        with self._reads(step) as offer:
            if kind in (Kind.ALL, Kind.REST):
                connection.sendall(_SIZE.pack(last - first), socket.MSG_MORE)
                for part in parts(offer.of(kind), first, last):
                    connection.sendall(part.cpu().numpy(), socket.MSG_MORE)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # sends what waits for more
                return
            copy = kept.enter_context(self._keeps(offer)) if kind is Kind.KEEP else None
            answer = offer.digest().encode() if kind is Kind.DIGEST else offer.header
            connection.sendall(_SIZE.pack(len(answer)) + answer)
            if copy is not None and copy.begins.acquire(blocking=False):
                copy.take(offer)

    @contextlib.contextmanager
    def _reads(self, step: int) -> Iterator[Offer]:
        """Yield a copy, or the state of a step, which stays meanwhile; wait for it if it is to come.

        Raises:
            Refused: it is not offered.
        """
        with self._changed:
            self._changed.wait_for(lambda: step in self._copies or self._step >= step, self._timeout_s)
            copy = self._copies.get(step)
            if copy is None and (self._step != step or self._read is None):
                raise Refused(f"the state of step {step} is offered no longer")
            self._reading += copy is None
        if copy is not None:
            if not copy.complete.wait(self._timeout_s):
                raise Refused("there is no memory for a copy of the state")
            yield copy
            return
        try:
            with self._changed:
                if self._offer is None and self._read is not None:
                    self._offer = Offer(step, self._read(), self.trained())
                offer = self._offer
            assert offer is not None
            yield offer
        finally:
            with self._changed:
                self._reading -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def _keeps(self, offer: Offer) -> Iterator[Copy]:
        """Keep the copy of a state meanwhile.

        Raises:
            Refused: there is no memory for it.
        """
        with self._changed:
            if offer.step not in self._copies:
                if sum(map(len, offer.tensors)) > (available_mb() << 20) * 0.8:
                    raise Refused("there is no memory for a copy of the state")
                self._copies[offer.step] = Copy(offer)
            copy = self._copies[offer.step]
            copy.users += 1
        try:
            yield copy
        finally:
            with self._changed:
                copy.users -= 1
                if not copy.users:
                    del self._copies[offer.step]
                    self._changed.notify_all()


class Offer:
    """The state of a step, as others may fetch it: a header, and the bytes of the tensors, where they lie."""

    def __init__(self, step: int, state: Any, trained: set[int]) -> None:
        self.step = step
        found: dict[int, tuple[int, Any]] = {}  # by their ids

        class Pickler(pickle.Pickler):
            def persistent_id(self, leaf: Any) -> int | None:
                return found.setdefault(id(leaf), (len(found), leaf))[0] if is_tensor(leaf) else None

        tree = io.BytesIO()
        Pickler(tree).dump(state)
        paths = {id(one): path for path, one in tensors_by_path(state).items()}
        tensors = [one for _, one in found.values()]
        self._paths = [paths.get(id(one), "") for one in tensors]
        self._live = [local(one) for one in tensors]
        self._trained = [one.untyped_storage().data_ptr() in trained for one in self._live]
        self.tensors = [flat(one) for one in self._live]
        self.header = pickle.dumps(
            Header(
                tree.getvalue(),
                self._paths,
                [(one.dtype, one.shape) for one in self._live],
                [type(one) is torch.nn.Parameter for one in tensors],
                [
                    (one.device_mesh, one.placements, one.shape, one.stride()) if is_sharded(one) else None
                    for one in tensors
                ],
                self._trained,
            )
        )

    def of(self, kind: Kind) -> list[torch.Tensor]:
        """Return the bytes of the tensors that are asked for."""
        rest = kind is Kind.REST
        return [one for one, trained in zip(self.tensors, self._trained, strict=True) if not (rest and trained)]

    def digest(self) -> str:
        """Return the digest of what is trained."""
        live = zip(self._paths, self._live, self._trained, strict=True)
        return digest.digest({path: one for path, one, trained in live if trained})


class Copy(Offer):
    """A copy of a state in host memory."""

    def __init__(self, offer: Offer) -> None:
        self.step, self.header, self._paths, self._trained = offer.step, offer.header, offer._paths, offer._trained
        self.tensors = []
        self.users = 0
        self.begins, self.complete = threading.Lock(), threading.Event()

    def take(self, offer: Offer) -> None:
        """Copy the tensors, beside what the device does."""
        stream = torch.Stream() if torch.accelerator.is_available() else None
        if stream is not None:
            stream.wait_stream(torch.accelerator.current_stream())
        with get_stream_context(stream):
            for one in offer.tensors:
                there = torch.empty(len(one), dtype=torch.uint8, pin_memory=one.device.type == "cuda")
                self.tensors.append(there.copy_(one, non_blocking=True))
        if stream is not None:
            stream.synchronize()
        pairs = zip(self.tensors, offer._live, strict=True)
        self._live = [there.view(one.dtype).reshape(one.shape) for there, one in pairs]
        self.complete.set()


@dataclass(frozen=True)
class Header:
    """What a state is, but for the bytes of its tensors. Their lists are in one order."""

    tree: bytes
    paths: list[str]  # in the tree; "": it is in an object of its own
    shapes: list[tuple[torch.dtype, torch.Size]]  # of a sharded one this rank's part
    parameters: list[bool]
    shards: list[tuple[Any, ...] | None]
    trained: list[bool]  # whether an optimizer changes it

    @staticmethod
    def received(connection: socket.socket, kind: Kind, step: int) -> Header:
        """Fetch a header.

        Raises:
            OSError, Refused: the donor is gone, or has another step.
        """
        header: Header = pickle.loads(ask(connection, kind, step))  # noqa: S301 of this run
        return header

    def empty(self) -> list[torch.Tensor]:
        """Return memory for the tensors."""
        return [torch.empty(shape, dtype=dtype) for dtype, shape in self.shapes]

    def whole(self, number: int, one: torch.Tensor | None) -> torch.Tensor:
        """Return a tensor as it was, of this rank's part; None: there are zeros in it."""
        dtype, shape = self.shapes[number]
        one = torch.zeros(shape, dtype=dtype) if one is None else one
        if (shard := self.shards[number]) is not None:
            mesh, placements, size, stride = shard
            kind = importlib.import_module("torch.distributed.tensor").DTensor
            return kind.from_local(one, mesh, placements, run_check=False, shape=size, stride=stride)
        return torch.nn.Parameter(one) if self.parameters[number] else one

    def build(self, whole: list[Any]) -> Any:
        """Return the tree with these tensors."""

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, number: int) -> Any:
                return whole[number]

        return Unpickler(io.BytesIO(self.tree)).load()


class Fetch:
    """Fetches tensors of a step.

    Args:
        dial: connects to a donor.
        kind: which tensors.
        tensors: what they are written to.
    """

    def __init__(self, dial: Callable[[], socket.socket], kind: Kind, step: int, tensors: list[torch.Tensor]) -> None:
        self._dial, self._kind, self._step = dial, kind, step
        self._into = [flat(one) for one in tensors]
        self.size = sum(map(len, self._into))
        self._left = deque((first, min(first + PIECE, self.size)) for first in range(0, self.size, PIECE))

    def run(self) -> None:
        """Fetch all.

        Raises:
            OSError, Refused: the donor is gone, or has another step.
        """
        failed = [one.exception() for one in [in_background(self._stream) for _ in range(STREAMS)]]
        if self._left:
            raise next(filter(None, failed))

    def _stream(self) -> None:
        """Fetch one piece after the other, until all are fetched."""
        connection, tries = None, 0
        with contextlib.ExitStack() as opened:
            while piece := self._next():
                first, last = piece
                try:
                    connection = connection or opened.enter_context(self._dial())
                    begin(connection, self._kind, self._step, first, last)
                    for part in parts(self._into, *piece):
                        view = memoryview(part.numpy())
                        while count := connection.recv_into(view) if view else 0:
                            view, first = view[count:], first + count
                        if view:
                            raise ConnectionResetError("the donor has hung up")
                except BaseException as error:
                    self._left.appendleft((first, last))
                    connection, tries = None, 0 if first > piece[0] else tries + 1
                    if tries == TRIES or not isinstance(error, OSError) or isinstance(error, TimeoutError):
                        raise

    def _next(self) -> tuple[int, int] | None:
        try:
            return self._left.popleft()
        except IndexError:
            return None


def ask(connection: socket.socket, kind: Kind, step: int) -> bytes:
    """Return the answer to a request.

    Raises:
        OSError, Refused: the donor is gone, or has another step.
    """
    return receive(connection, begin(connection, kind, step, 0, 0))


def begin(connection: socket.socket, kind: Kind, step: int, first: int, last: int) -> int:
    """Send a request; return how many bytes come.

    Raises:
        OSError, Refused: the donor is gone, or has another step.
    """
    connection.sendall(_REQUEST.pack(kind, step, first, last))
    size = int(_SIZE.unpack(receive(connection, _SIZE.size))[0])
    if size < 0:
        raise Refused(receive(connection, -size).decode())
    return size


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, its own if it is contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def parts(tensors: list[torch.Tensor], first: int, last: int) -> Iterator[torch.Tensor]:
    """Yield the parts of tensors that hold these bytes of all."""
    for one in tensors:
        if first < len(one) and last > 0 and len(one):
            yield one[max(first, 0) : last]
        first, last = first - len(one), last - len(one)


def receive(connection: socket.socket, size: int) -> bytes:
    """Receive so many bytes.

    Raises:
        OSError: the connection is broken.
    """
    data = bytearray()
    while len(data) < size:
        if not (piece := connection.recv(size - len(data))):
            raise ConnectionResetError("the other side has hung up")
        data += piece
    return bytes(data)


def in_background(work: Callable[..., T], *args: Any) -> Future[T]:
    """Do something in a thread that does not hold up the end of the process."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work(*args))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=on_this_device(run), daemon=True).start()
    return done


def install(gateway: Gateway) -> None:
    """Put RunTransport in the place of torchft's class wherever a module has it by its name."""
    RunTransport.gateway = gateway
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("HTTPTransport") is Base:
            module.HTTPTransport = RunTransport  # type: ignore[attr-defined]
