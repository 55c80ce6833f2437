"""The reports about a real parameter server and its sessions, which cannot harm them."""

from __future__ import annotations

import importlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
from lighthouse_process import OpenPort
from torch.distributed import TCPStore
from torchft import parameter_server
from torchft.process_group import ProcessGroupGloo

from ftslurm.protocol import messages, outbox
from ftslurm.worker import closed_servers, parameter_sessions


def wait_for(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Gateway:
    """The worker's guard, to the server and the store of this process."""

    def __init__(self) -> None:
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.port = 0

    def reserve(self) -> str:
        return "guard:7"

    def take_over(self, service: str) -> socket.socket:
        assert service == "server"
        server = OpenPort(0)
        self.port = int(server.reserve().rpartition(":")[2])
        return server.take_over(service)

    def forwarder(self, address: str) -> str:
        port = {"guard:7/store": self.store.port, "http://guard:7/server": self.port}[address]
        return f"127.0.0.1:{port}"


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[parameter_sessions.Sessions]:
    """A process whose scripts get a ParameterServer of the run."""
    monkeypatch.setattr(parameter_sessions, "EVERY_S", 0.05)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # it must not be asked
    gateway: Any = Gateway()
    monkeypatch.setattr(closed_servers.store, "here", f"127.0.0.1:{gateway.store.port}")
    monkeypatch.setattr(closed_servers.store, "public", "guard:7/store")
    importlib.reload(parameter_server)
    made = parameter_sessions.Sessions()
    parameter_sessions.install(gateway, made)
    yield made
    importlib.reload(parameter_server)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[messages.Report]:
    """The messages to the controller."""
    lines: list[messages.Report] = []
    monkeypatch.setattr(outbox, "say", lines.append)
    return lines


def server_class() -> Any:
    class Server(parameter_server.ParameterServer):
        @classmethod
        def new_process_group(cls) -> ProcessGroupGloo:
            return ProcessGroupGloo(timeout=timedelta(seconds=5))

        def forward(self, _: str, pg: Any) -> None:
            for step in range(3):
                pg.broadcast_one(torch.ones(1), root=1).wait()
                self.step = step

    return Server


def use(server: Any) -> None:
    session = server.new_session(server.address())
    for _ in range(3):
        session.broadcast_one(torch.ones(1), root=1).wait()


def end_of_threads() -> None:
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            thread.join(20)


def test_a_server_and_its_sessions_are_told(
    said: list[messages.Report], sessions: parameter_sessions.Sessions, capfd: pytest.CaptureFixture[str]
) -> None:
    kind = server_class()
    server = kind(0)
    assert said[0] == messages.Serving("http://guard:7/server")
    use(server)
    wait_for(lambda: messages.Served(2) in said)
    use(kind(0))  # a second one of the same process
    assert [type(report) for report in said if not isinstance(report, messages.Served)] == [
        messages.Serving,
        messages.SessionOpened,
    ]
    end_of_threads()
    assert "Traceback" not in capfd.readouterr().err


def test_a_controller_that_cannot_be_told_does_not_harm_the_server(
    sessions: parameter_sessions.Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(report: messages.Report) -> None:
        raise OSError(report)

    monkeypatch.setattr(outbox, "say", broken)
    use(server_class()(0))


def test_the_end_of_a_session_of_torchft_alone_looks_like_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    """If this fails, torchft is fixed, and `handle_error` of its server can stay as it is."""
    importlib.reload(parameter_server)
    use(server_class()(0))
    end_of_threads()
    assert "I/O operation on closed file" in capfd.readouterr().err
