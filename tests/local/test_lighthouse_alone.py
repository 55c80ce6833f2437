"""A Lighthouse without a controller, as sbatch/lighthouse.sbatch runs it, asked by torchft's own client."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore
from torchft.coordination import LighthouseClient, ManagerClient, ManagerServer

from ftslurm.errors import ConfigError
from ftslurm.lighthouse import standalone
from ftslurm.lighthouse.token_gate import MOST_UNPROVEN

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that starts a Lighthouse in the test's folder and returns when it serves."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ftslurm.lighthouse", "name=mine", *words]
        with (tmp_path / "log").open("a") as log_file:
            started.append(subprocess.Popen(command, cwd=tmp_path, stderr=log_file, text=True))
        deadline = time.monotonic() + 20
        while not (tmp_path / "mine.url").exists():
            assert started[-1].poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def quorum(folder: Path, name: str, step: int) -> int:
    """Ask for a quorum; return its id.

    Raises:
        TimeoutError: no quorum was issued.
    """
    client = LighthouseClient((folder / "mine.url").read_text().strip(), connect_timeout=timedelta(seconds=10))
    return int(client.quorum(name, timeout=timedelta(seconds=1), step=step, store_address=f"{name}:1").quorum_id)


def log(folder: Path) -> str:
    return (folder / "log").read_text()


def end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    assert process.wait(20) == 0


def test_it_goes_on_where_it_was_and_forgets_when_nobody_is_left(start: Start, tmp_path: Path) -> None:
    first = start("quorum_tick_ms=20")
    assert quorum(tmp_path, "a", 7) == 1
    end(first)
    assert not (tmp_path / "mine.url").exists()

    second = start("quorum_tick_ms=20", "heartbeat_timeout_ms=200", "forget_after_ms=1500")
    assert quorum(tmp_path, "a", 8) == 1  # the same members
    with pytest.raises(TimeoutError):
        quorum(tmp_path, "fresh", 3)  # some group may have the eight steps
    deadline = time.monotonic() + 20
    client = LighthouseClient((tmp_path / "mine.url").read_text().strip(), connect_timeout=timedelta(seconds=10))
    while "may begin anew" not in log(tmp_path):
        client.heartbeat("fresh")  # a group refused because of others keeps asking
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert quorum(tmp_path, "fresh", 3) > 1
    with pytest.raises(RuntimeError, match="begun anew"):
        quorum(tmp_path, "a", 8)  # a manager that was only suspended is not accepted beside them
    end(second)


@contextlib.contextmanager
def manager(folder: Path, group: str) -> Iterator[Callable[[int, float], int]]:
    """Run a group's ManagerServer with a new id and heartbeats; yield a function (step, seconds) -> quorum id."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    server = ManagerServer(
        replica_id=f"{group}:{store.port}",
        lighthouse_addr=(folder / "mine.url").read_text().strip(),
        hostname="127.0.0.1",
        bind="127.0.0.1:0",
        store_addr=f"127.0.0.1:{store.port}",
        world_size=1,
        heartbeat_interval=timedelta(seconds=0.1),
        connect_timeout=timedelta(seconds=10),
        quorum_retries=20,
    )
    client = ManagerClient(server.address(), connect_timeout=timedelta(seconds=10))

    def ask_for(step: int, patience_s: float) -> int:
        wants = {"group_rank": 0, "step": step, "checkpoint_metadata": "", "shrink_only": False, "init_sync": True}
        return int(client._quorum(**wants, timeout=timedelta(seconds=patience_s), commit_failures=0).quorum_id)

    try:
        yield ask_for
    finally:
        server.shutdown()


@pytest.mark.parametrize("restarted", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_after_a_crash_of_all_groups_from_an_older_checkpoint_get_in_by_themselves(
    restarted: bool, start: Start, tmp_path: Path
) -> None:
    """Real managers of torchft ask once, within the 60 s for which they wait for a quorum."""
    words = ("quorum_tick_ms=20", "min_replicas=2", "port=0", "heartbeat_timeout_ms=1000", "forget_after_ms=4000")
    process = start(*words)
    with ThreadPoolExecutor(2) as pool:

        def train(step: int) -> float:
            """Let both groups get a quorum at this step; return the seconds it took."""
            with manager(tmp_path, "a") as a, manager(tmp_path, "b") as b:
                began = time.monotonic()
                first, second = pool.map(lambda one: one(step, 60.0), (a, b))
                assert first == second
                return time.monotonic() - began

        train(100)
        if restarted:
            process.kill()
            process.wait()
            (tmp_path / "mine.url").unlink()
            process = start(*words)
        waited = train(90)
    assert 2.0 < waited < 13.0, f"{waited:.1f} s"  # 4 s; after a restart the 10 s in which the old ones might dial
    end(process)


def test_a_lighthouse_that_stood_still_itself_takes_nobody_for_gone(start: Start, tmp_path: Path) -> None:
    process = start("quorum_tick_ms=20", "heartbeat_timeout_ms=1000", "forget_after_ms=2000")
    with manager(tmp_path, "a") as a:
        assert a(100, 10.0) == 1
        process.send_signal(signal.SIGSTOP)
        time.sleep(4)
        process.send_signal(signal.SIGCONT)
        time.sleep(2)
        assert a(101, 10.0) == 1
    assert "may begin anew" not in log(tmp_path)
    end(process)


@pytest.mark.parametrize("word", ["min=2", "port", "port=x", "port=70000", "min_replicas=0", "open=1", "port=²"])
def test_what_is_no_setting_is_refused_by_name(word: str) -> None:
    with pytest.raises(ConfigError, match=r"min_replicas|port"):
        standalone.read([word])


# --- without a token --------------------------------------------------------------------------------------------------


def address(folder: Path) -> tuple[str, int]:
    """Return host and port of the Lighthouse."""
    host, _, port = (folder / "mine.url").read_text().strip().rpartition("@")[2].rpartition(":")
    return host, int(port)


def ask(url: str, wait_s: float = 0.0) -> int:
    """Ask for a quorum at once, or wait_s seconds after connecting; return its id."""
    client = LighthouseClient(url, connect_timeout=timedelta(seconds=10))
    time.sleep(wait_s)
    return int(client.quorum("a", timeout=timedelta(seconds=5), step=0, store_address="a:1").quorum_id)


def test_without_the_token_nobody_is_let_in_and_is_told_what_to_do(start: Start, tmp_path: Path) -> None:
    process = start("quorum_tick_ms=20")
    url, (host, port) = (tmp_path / "mine.url").read_text().strip(), address(tmp_path)
    token = (tmp_path / "mine/token").read_text().strip()
    assert url == f"http://{token}@{host}:{port}"
    for name in ("mine.url", "mine/token"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600, name
    for wrong in ("", f"{token[:-1]}@", f"{token}x@", f"x:{token}@", f"{token}@x@"):
        with pytest.raises(RuntimeError, match=r"Unauthenticated.*\.url file"):
            ask(f"http://{wrong}{host}:{port}")
    assert ask(url) == 1
    assert ask(url, wait_s=1.5) == 1  # closed because it was silent for too long: torchft dials again
    time.sleep(0.2)
    for why in ("it shows no token\n", "it shows another token", "it shows no token within"):
        assert log(tmp_path).count(why) == 1
    assert token not in log(tmp_path)
    end(process)
    again = start("quorum_tick_ms=20")
    assert (tmp_path / "mine.url").read_text().startswith(f"http://{token}@")  # the groups know no other
    end(again)


def test_with_open_anybody_is_let_in_and_it_says_so(start: Start, tmp_path: Path) -> None:
    process = start("quorum_tick_ms=20", "open=true")
    url = (tmp_path / "mine.url").read_text().strip()
    assert "@" not in url
    assert ask(url) == 1
    assert "open=true: any manager" in log(tmp_path)
    end(process)


def test_managers_of_torchft_train_with_the_address_as_it_is(start: Start, tmp_path: Path) -> None:
    process = start("quorum_tick_ms=20", "min_replicas=2")
    url = (tmp_path / "mine.url").read_text().strip()
    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(2)]
    servers = [
        ManagerServer(
            replica_id=f"g{number}",
            lighthouse_addr=url,
            hostname="127.0.0.1",
            bind="127.0.0.1:0",
            store_addr=f"127.0.0.1:{store.port}",
            world_size=1,
            heartbeat_interval=timedelta(seconds=3),  # longer than a connection may be silent
            connect_timeout=timedelta(seconds=10),
            quorum_retries=20,
        )
        for number, store in enumerate(stores)
    ]
    clients = [ManagerClient(server.address(), connect_timeout=timedelta(seconds=10)) for server in servers]

    def step(client: ManagerClient, number: int) -> int:
        return int(
            client._quorum(
                group_rank=0,
                step=number,
                checkpoint_metadata="",
                shrink_only=False,
                timeout=timedelta(seconds=20),
                init_sync=True,
                commit_failures=0,
            ).replica_world_size
        )

    with ThreadPoolExecutor(2) as pool:
        for number in range(20):
            assert list(pool.map(step, clients, [number] * 2)) == [2, 2]
            if number == 10:
                time.sleep(1.5)
    for server in servers:
        server.shutdown()
    end(process)


@pytest.mark.nightly
def test_a_flood_of_strangers_does_not_keep_the_owner_out(start: Start, tmp_path: Path) -> None:
    process = start("quorum_tick_ms=20")
    url, (host, port) = (tmp_path / "mine.url").read_text().strip(), address(tmp_path)
    over = threading.Event()
    made = [0, 0, 0]

    def flood(number: int) -> None:
        """Open as many connections as it can hold: silent, with an endless request, or with junk."""
        said = (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x20\1\0\0\0\0\1", b"\xff" * 5000)[number]
        held: list[socket.socket] = []
        while not over.is_set():
            with contextlib.suppress(OSError):
                held.append(socket.create_connection((host, port), timeout=5))
                made[number] += 1
                held[-1].sendall(said)
            if len(held) > 200:
                held.pop(0).close()
            time.sleep(0.001)
        for one in held:
            one.close()

    threads = [threading.Thread(target=flood, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(0.5)
        for _ in range(20):
            assert ask(url) == 1
        files = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert min(made) > 50, made
    assert files < MOST_UNPROVEN + 90
    assert len(log(tmp_path).splitlines()) < 20  # each kind of refusal once
    end(process)


def test_nothing_is_left_behind_however_it_ends(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    process = start("quorum_tick_ms=20")
    assert list((tmp_path / "tmp").iterdir()) == []
    process.kill()
    process.wait()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["log", "mine", "mine.url", "tmp"]


def test_help_says_what_is_not_protected() -> None:
    command = [sys.executable, "-m", "ftslurm.lighthouse", "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    for words in (
        "open=true",
        "lineage=off",
        "http://TOKEN@host:port",
        "clear text",
        "checkpoint servers",
        "min_replicas=N",
        "RUST_LOG=warn",
    ):
        assert words in told


@pytest.mark.parametrize("planted", ["mine", "mine/lighthouse.json", "mine/lighthouse.quorum"])
def test_a_memory_that_others_can_write_is_refused(planted: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    if planted != "mine":
        (tmp_path / planted).write_text("{}")
    (tmp_path / planted).chmod(0o777)
    command = [sys.executable, "-m", "ftslurm.lighthouse", "name=mine"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == f"lighthouse: {planted}: others can write into it (mode 0777); if nobody did: chmod -R go-w\n"


def test_a_token_in_the_command_line_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ftslurm.lighthouse", "token=abcdefghijklmnopqrstuvwxyz"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "FTSLURM_LIGHTHOUSE_TOKEN" in done.stderr
    assert "abcdef" not in done.stderr
    assert list(tmp_path.iterdir()) == []
