"""Brings the state of a live group to one that comes back, in place of torchft's HTTPTransport.

torchft's listens on all interfaces, sends the state to every client, and unpickles the data of every server. Here the
guards of both sides make each connection, over the network that cluster.interface names, and prove to each other that
they are of this run (guard/admission.py, guard/forwarder.py) before they give it to their workers. So no other process
gets the state, and nothing of another process is unpickled. The state itself goes directly from worker to worker, at
full speed, and is not encrypted.

A donor offers the state of a step from `send_checkpoint` to `disallow_checkpoint`. A client sends requests of three
integers: the step, the first byte and the byte after the last one. It gets a size and so many bytes, or minus a size
and why there are none. The bytes are those of all tensors, one after the other. HEADER asks for a pickle: the tree
without its tensors, and the type and shape of each. Several streams fetch pieces side by side; one that breaks goes on
with a new connection where it has stopped. What is received lies in host memory, whatever the device of the donor's:
a heal that breaks off has changed nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import pickle
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

import torch

from ftslurm.checkpoint.devices import on_this_device
from ftslurm.guard.gateway import Gateway, taken
from ftslurm.guard.sockets import end_if_gone, end_if_silent
from ftslurm.protocol import addresses
from ftslurm.worker.closed_servers import GONE_S

STREAMS = 4
PIECE = 8 << 20  # bytes of a request
TRIES = 3  # connections that bring nothing, one after the other, before a stream gives up
HEADER = -1
_REQUEST, _SIZE = struct.Struct("<qqq"), struct.Struct("<q")
_PLAIN = (torch.Tensor, torch.nn.Parameter)  # a subclass may be more than its data: it is pickled with the tree

Base: Any = importlib.import_module("torchft.checkpointing.http_transport").HTTPTransport
Transport: Any = importlib.import_module("torchft.checkpointing.transport").CheckpointTransport
T = TypeVar("T")


class Refused(Exception):
    """The donor does not have what was asked for."""


class RunTransport(Transport[T]):  # type: ignore[misc]
    """Serves the state of this process, and fetches that of others. Arguments as of torchft's HTTPTransport."""

    gateway: ClassVar[Gateway]
    numbers = itertools.count()  # a process may have several

    def __init__(self, timeout: timedelta, num_chunks: int = 0) -> None:  # noqa: ARG002 there are always STREAMS
        self._timeout_s = timeout.total_seconds()
        self._changed = threading.Condition()  # holds what follows
        self._offer: Offer | None = None  # of the last step that this process has offered
        self._reading = 0  # requests that are being answered
        service = f"{addresses.CHECKPOINT}{next(self.numbers)}"
        self._address = f"{self.gateway.reserve()}/{service}"
        self._admitted = self.gateway.take_over(service)
        threading.Thread(target=on_this_device(self._accept), name="ftslurm-state", daemon=True).start()

    def metadata(self) -> str:
        """Return the address at which others ask for the state."""
        return self._address

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: Any, timeout: timedelta) -> None:  # noqa: ARG002
        """Offer the state, which does not change until `disallow_checkpoint`."""
        with self._changed:
            self._offer = Offer(step, state_dict)
            self._changed.notify_all()

    def disallow_checkpoint(self) -> None:
        """Wait for the answers that are on their way, and give no more: the state changes."""
        with self._changed:
            if self._offer is not None:
                self._offer.over = True
                self._changed.wait_for(lambda: self._reading == 0, self._timeout_s)

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:  # noqa: ARG002
        """Fetch the state of a step.

        Raises:
            OSError, Refused: the donor is gone, or has another step.
        """
        return Fetch(lambda: self.dial(metadata, timeout.total_seconds()), step).all()

    def shutdown(self, wait: bool = True) -> None:  # noqa: ARG002 it is done at once
        """Serve no longer."""
        with contextlib.suppress(OSError):
            self._admitted.shutdown(socket.SHUT_RDWR)

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
        with connection, contextlib.suppress(OSError):
            connection.setblocking(True)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end_if_gone(connection, GONE_S)
            while True:
                step, first, last = _REQUEST.unpack(receive(connection, _REQUEST.size))
                with self._reads(step) as offer:
                    if isinstance(offer, str):
                        connection.sendall(_SIZE.pack(-len(offer)) + offer.encode())
                    elif first == HEADER:
                        connection.sendall(_SIZE.pack(len(offer.header)) + offer.header)
                    else:
                        connection.sendall(_SIZE.pack(last - first), socket.MSG_MORE)
                        for part in parts(offer.tensors, first, last):
                            connection.sendall(part.cpu().numpy(), socket.MSG_MORE)
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # sends what waits for more

    @contextlib.contextmanager
    def _reads(self, step: int) -> Iterator[Offer | str]:
        """Yield the offer of a step, which stays meanwhile, or why there is none; wait for it if it is to come."""
        with self._changed:
            self._changed.wait_for(lambda: self._offer is not None and self._offer.step >= step, self._timeout_s)
            offer = self._offer
            if offer is None or offer.step != step or offer.over:
                yield f"the state of step {step} is offered no longer" if offer else "no state is offered"
                return
            self._reading += 1
        try:
            yield offer
        finally:
            with self._changed:
                self._reading -= 1
                self._changed.notify_all()


class Offer:
    """The state of a step, as others may fetch it: a header, and the bytes of the tensors, where they lie."""

    def __init__(self, step: int, state: Any) -> None:
        self.step, self.over = step, False
        found: dict[int, tuple[int, Any]] = {}  # by their ids
        sharded = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())

        class Pickler(pickle.Pickler):
            def persistent_id(self, leaf: Any) -> int | None:
                if isinstance(leaf, sharded) or (type(leaf) in _PLAIN and leaf.layout == torch.strided):
                    return found.setdefault(id(leaf), (len(found), leaf))[0]
                return None

        tree = io.BytesIO()
        Pickler(tree).dump(state)
        tensors = [one for _, one in found.values()]
        local = [one.to_local() if isinstance(one, sharded) else one for one in tensors]
        self.header = pickle.dumps(
            {
                "tree": tree.getvalue(),
                "shapes": [(one.dtype, one.shape) for one in local],
                "parameters": [type(one) is torch.nn.Parameter for one in tensors],
                "shards": [
                    (one.device_mesh, one.placements, one.shape, one.stride()) if isinstance(one, sharded) else None
                    for one in tensors
                ],
            }
        )
        self.tensors = [flat(one) for one in local]


class Fetch:
    """Fetches the state of a step.

    Args:
        dial: connects to a donor.
    """

    def __init__(self, dial: Callable[[], socket.socket], step: int) -> None:
        self._dial, self._step = dial, step
        self._left = deque[tuple[int, int]]()  # what is still to be fetched

    def all(self) -> Any:
        """Fetch everything.

        Raises:
            OSError, Refused: the donor is gone, or has another step.
        """
        with self._dial() as connection:
            header = pickle.loads(receive(connection, self._ask(connection, HEADER, 0)))  # noqa: S301 of this run
        tensors = [torch.empty(shape, dtype=dtype) for dtype, shape in header["shapes"]]
        self._into = [flat(one) for one in tensors]
        size = sum(len(one) for one in self._into)
        self._left.extend((first, min(first + PIECE, size)) for first in range(0, size, PIECE))
        streams = min(STREAMS, len(self._left))
        with ThreadPoolExecutor(max(1, streams)) as pool:
            failed = [future.exception() for future in [pool.submit(self._stream) for _ in range(streams)]]
        if self._left:
            raise next(filter(None, failed))

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, number: int) -> Any:
                return whole[number]

        whole = [
            of_shard(one, shard) if shard else torch.nn.Parameter(one) if parameter else one
            for one, shard, parameter in zip(tensors, header["shards"], header["parameters"], strict=True)
        ]
        return Unpickler(io.BytesIO(header["tree"])).load()

    def _stream(self) -> None:
        """Fetch one piece after the other, until all are fetched."""
        connection, tries = None, 0
        with contextlib.ExitStack() as opened:
            while piece := self._next():
                first, last = piece
                try:
                    connection = connection or opened.enter_context(self._dial())
                    self._ask(connection, first, last)
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

    def _ask(self, connection: socket.socket, first: int, last: int) -> int:
        connection.sendall(_REQUEST.pack(self._step, first, last))
        size = int(_SIZE.unpack(receive(connection, _SIZE.size))[0])
        if size < 0:
            raise Refused(receive(connection, -size).decode())
        return size


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, its own if it is contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def of_shard(local: torch.Tensor, shard: tuple[Any, ...]) -> Any:
    """Return a DTensor of this rank's part."""
    mesh, placements, shape, stride = shard
    kind = importlib.import_module("torch.distributed.tensor").DTensor
    return kind.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)


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


def install(gateway: Gateway) -> None:
    """Put RunTransport in the place of torchft's class wherever a module has it by its name."""
    RunTransport.gateway = gateway
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("HTTPTransport") is Base:
            module.HTTPTransport = RunTransport  # type: ignore[attr-defined]
