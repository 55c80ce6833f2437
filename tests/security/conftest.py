"""Fixtures for attacks on a real training by another user, the stranger, both in one new network namespace."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import loaded
import pytest
from harness import Backend, Run
from own_network import own_network
from victim import Field, Stranger, begin_training

STRANGER = 54321  # the uid of nobody on this machine


def no_second_uid() -> str:
    """Return why this process cannot start one of another user; "": it can."""
    if os.geteuid() != 0:
        return (
            "only root can start a process of another user; without root, in a user namespace: "
            "unshare --map-root-user --map-auto .venv/bin/pytest tests/security (needs newuidmap)"
        )
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(OSError):
            os.setresuid(STRANGER, STRANGER, STRANGER)
            code = 0
        os._exit(code)
    return f"this user namespace has no uid {STRANGER}" if os.waitpid(pid, 0)[1] else ""


@pytest.fixture(scope="session")
def second_uid() -> int:
    """The stranger's uid; skip where there is none."""
    if why := no_second_uid():
        pytest.skip(why)
    return STRANGER


@pytest.fixture(scope="module")
def network(second_uid: int) -> Iterator[None]:
    """Run the tests of a module in a new network namespace."""
    namespace = own_network()
    loaded.get_ready()  # else the processes of all later tests would be in this namespace, too
    try:
        namespace.__enter__()
    except OSError as error:
        pytest.skip(f"no network namespace can be made here: {error}")
    yield
    namespace.__exit__(None, None, None)


@pytest.fixture
def stranger(second_uid: int, network: None, tmp_path: Path) -> Iterator[Stranger]:
    """The attacker, in the network of the module's run."""
    stranger = Stranger(second_uid, tmp_path)
    yield stranger
    stranger.stop()


@pytest.fixture(scope="module")
def battlefield(
    network: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Field]:
    """The runs of this module; its function `begin_run(backend)`, if any, starts them."""
    backend = Backend("local", {}, tmp_path_factory.mktemp("field"))
    field = Field(backend, getattr(request.module, "begin_run", begin_training))
    yield field
    for run in backend.runs:
        run.abandon()


@pytest.hookimpl(tryfirst=True, hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome: Any = yield
    if call.when == "call":
        item.stash[_FAILED] = outcome.get_result().failed


_FAILED = pytest.StashKey[bool]()


@pytest.fixture
def run(battlefield: Field, request: pytest.FixtureRequest) -> Iterator[Run]:
    """A healthy, training run."""
    yield battlefield.a_run()
    if request.node.stash.get(_FAILED, False):
        battlefield.spoilt()


@pytest.fixture
def public_path() -> Iterator[Path]:
    """A folder of ours that all users can read; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="ftslurm-public-") as name:
        path = Path(name).resolve()
        path.chmod(0o755)
        yield path
