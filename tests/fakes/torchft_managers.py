"""Fakes of torchft's Manager, without a network, controlled by the test, and ftslurm's RunManager over a fake.

That the real Manager has the same attributes is tested in tests/local/test_shape_of_torchft.py; what it does, in
test_history_in_torchft.py and test_torchft_compat.py.
"""

from __future__ import annotations

import importlib.util
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch  # noqa: F401  else the first one to import it does so below, where it is forgotten again

Quorum = tuple[int, int]  # its id and its size
Commit = bool | BaseException  # what the vote says, or raises


def run_manager(torchft: Any, watchers: Any) -> Any:
    """Return RunManager over a fake."""
    spec = importlib.util.find_spec("ftslurm.worker.run_manager")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {"torchft.manager": torchft}):
        spec.loader.exec_module(module)
    module.RunManager._ftslurm = watchers
    return module.RunManager


def fake_torchft() -> SimpleNamespace:
    """Return a module whose Manager trains: a quorum, perhaps a heal, and a commit each step."""

    class Manager:
        def __init__(self) -> None:
            self._client = self._pg = None
            self._quorum_id = -1
            self._quorum_future: Future[None] | None = None
            self._participating_replica_world_size = 0
            self._healing = False
            self._pending_state_dict: object = None
            self._step = 0
            self._executor = ThreadPoolExecutor(max_workers=1)

        def train(self, quorum: Quorum = (1, 2), commit: Commit = True, heal_to: int | None = None) -> bool:
            """Run one step of a training loop; the quorum is found in another thread, as in torchft."""
            self._quorum_future = self._executor.submit(self._async_quorum, quorum, heal_to)
            if heal_to is not None:
                self._quorum_future.result()
                self._apply_pending_state_dict()
            return self.should_commit(commit)

        def start_quorum(self, quorum: Quorum = (1, 2), heal_to: int | None = None) -> None:
            self._quorum_future = self._executor.submit(self._async_quorum, quorum, heal_to)

        def allreduce(self, gradients: object) -> object:
            assert self._quorum_future is not None
            self._quorum_future.result()
            return gradients

        def _async_quorum(self, quorum: Quorum, heal_to: int | None = None) -> None:
            self._quorum_id, self._participating_replica_world_size = quorum
            if heal_to is not None:
                self._pending_state_dict = {"weights": 1}
                self._step = heal_to

        def _apply_pending_state_dict(self) -> None:
            self._pending_state_dict = None

        def should_commit(self, commit: Commit = True) -> bool:
            """The docstring of should_commit."""
            assert self._quorum_future is not None
            self._quorum_future.result()
            if isinstance(commit, BaseException):
                raise commit
            self._step += commit
            return commit

        def current_step(self) -> int:
            return self._step

    return SimpleNamespace(Manager=Manager)


def fake_torchft_client(answer: dict[str, Any], step: int = 0) -> Any:
    """Return a module whose Manager only asks for quorums and gets this answer."""

    class Manager:
        _step, _quorum_id, _quorum_future, _pg, applied = step, -1, None, None, 0
        _healing, _pending_state_dict = False, None
        _client: Any = SimpleNamespace(
            _quorum=lambda: SimpleNamespace(quorum_id=1, **answer, store_address="n1:4711"),
            should_commit=lambda: "as before",
        )

        def _async_quorum(self, allow_heal: bool) -> None:
            self.allowed = allow_heal
            self.got = self._client._quorum()

        def start_quorum(self, **options: Any) -> None:
            self.options = options

        def _apply_pending_state_dict(self) -> None:
            self.applied += 1

    return SimpleNamespace(Manager=Manager)
