"""The reports about a real parameter server and its sessions, which cannot harm them."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
from torchft import parameter_server
from torchft.process_group import ProcessGroupGloo

from ftslurm.protocol import messages, outbox
from ftslurm.worker import parameter_sessions, patch_fit


def wait_for(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[messages.Report]]:
    """The messages to the controller."""
    lines: list[messages.Report] = []
    monkeypatch.setattr(outbox, "say", lines.append)
    monkeypatch.setattr(parameter_sessions, "EVERY_S", 0.05)
    monkeypatch.setenv("RANK", "0")
    importlib.reload(parameter_server)
    yield lines
    importlib.reload(parameter_server)


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


def test_a_server_and_its_sessions_are_told(said: list[messages.Report]) -> None:
    parameter_sessions.Observer().install()
    kind = server_class()
    server = kind(0)
    assert said[0] == messages.Serving(server.address())
    kind(0)  # a second one of the same process
    wait_for(lambda: messages.Served(0, None) in said)
    session = kind.new_session(server.address())
    assert messages.SessionOpened(1) in said
    wait_for(lambda: messages.Served(1, None) in said)
    for _ in range(3):
        session.broadcast_one(torch.ones(1), root=1).wait()
    wait_for(lambda: messages.Served(0, 2) in said)
    assert sum(isinstance(report, messages.Serving) for report in said) == 1


def test_a_controller_that_cannot_be_told_does_not_harm_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(report: messages.Report) -> None:
        raise OSError(report)

    monkeypatch.setattr(outbox, "say", broken)
    importlib.reload(parameter_server)
    parameter_sessions.Observer().install()
    kind = server_class()
    session = kind.new_session(kind(0).address())
    for _ in range(3):
        session.broadcast_one(torch.ones(1), root=1).wait()
    importlib.reload(parameter_server)


def test_a_torchft_of_another_shape_is_named() -> None:
    with pytest.raises(patch_fit.Misfit, match="ParameterServer"):
        parameter_sessions.Observer().install(object())
