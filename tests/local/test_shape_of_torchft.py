"""A worker with another version of torchft, simulated by removing names from the installed one.

Each case is its own process, because a removed name stays removed; a fork server saves them the imports.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import tempfile
import warnings
from types import SimpleNamespace

import pytest
from loaded import LOADED


def worker(missing: tuple[str, ...], then: str, output: str) -> None:
    """Import everything, as a worker does, without these names; then run more code."""
    file = os.open(output, os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    warnings.simplefilter("ignore")
    os.environ |= {"FTSLURM_COMPARE_EVERY": "1", "FTSLURM_COMPARE_PARTS": ""}
    for name in missing:
        module, _, path = name.partition(":")
        *parts, last = path.split(".")
        owner = importlib.import_module("torchft." + module)
        for part in parts:
            owner = getattr(owner, part)
        if hasattr(owner, last):
            delattr(owner, last)
    from ftslurm.guard.interfaces import Reach
    from ftslurm.protocol.position import Position
    from ftslurm.worker import session

    task = SimpleNamespace(gateway=SimpleNamespace(), position=Position())
    channel = SimpleNamespace(say=lambda _: None, warn=lambda _: None)
    for words in session.import_everything(task, channel, Reach("127.0.0.1", "127.0.0.1")).left_out:
        print("left out:", words)
    print("goes on", flush=True)
    exec(then, {"torchft": importlib.import_module("torchft")})


def start(*missing: str, then: str = "") -> str:
    """Run a worker without these names of torchft; return its output."""
    with tempfile.NamedTemporaryFile("r") as output:
        process = LOADED.Process(target=worker, args=(missing, then, output.name))
        process.start()
        process.join(120)
        process.kill()
        return output.read()


def test_every_patch_fits_the_installed_torchft() -> None:
    assert start() == "goes on\n"


@pytest.mark.parametrize(
    ("missing", "patch", "means"),
    [
        ("process_group:create_store_client", "broken", "survivors may wait"),
        ("manager:Manager._apply_pending_state_dict", "history", "only the Lighthouse keeps"),
        ("manager:Manager.allreduce", "observe", "steps, quorums and hangs are not seen"),
        ("manager:Manager.disallow_state_dict_read", "compare", "groups are not compared"),
        ("manager:Manager.report_error", "abort-on-error", "may wait for the process group's time-out"),
        ("ddp:DistributedDataParallel._comm_hook", "ddp-comm-hook", "may end the scripts of the others"),
    ],
)
def test_a_patch_that_does_not_fit_is_left_out_and_said(missing: str, patch: str, means: str) -> None:
    said = start(missing)
    (words,) = [line for line in said.splitlines() if f"the patch {patch};" in line]
    assert words.startswith("left out: left out for torchft")
    assert means in words
    assert re.split(r"[:.]", missing)[-1] in words
    assert said.endswith("goes on\n")


@pytest.mark.parametrize(
    "missing",
    [
        "manager:ManagerServer",
        "manager:ManagerClient",
        "checkpointing.http_transport:_IPv6HTTPServer",
        "checkpointing.http_transport:urllib",
        "parameter_server:ParameterServer._handle_session",
        "parameter_server:_IPv6HTTPServer",
        "process_group:ProcessGroup.configure process_group:_rendezvous",  # of 0.2.0, of the nightly
    ],
)
def test_a_torchft_that_cannot_be_closed_to_strangers_is_refused(missing: str) -> None:
    said = start(*missing.split())
    assert "goes on" not in said
    assert "cannot be closed to strangers" in said
    assert re.search(rf"has no .*{re.split(r'[:.]', missing)[-1]}", said)
    assert "Install torchft 0.2.0" in said


def test_a_process_group_may_not_host_a_store() -> None:
    said = start(then=HOST)
    assert said.splitlines()[-1] == "refused", said


HOST = """
try:
    torchft.process_group.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
except RuntimeError as error:
    print("refused" if "strangers" in str(error) else error, flush=True)
"""


HANDLE = """
from ftslurm.worker import closed_servers
group = torchft.process_group.ProcessGroupGloo()
if hasattr(group, "get_reconfigure_handle"):
    closed_servers.begin("127.0.0.1:5", "n1:7/store")
    print("handle:", group.get_reconfigure_handle(), flush=True)
"""


@pytest.mark.skipif(
    not hasattr(importlib.import_module("torchft.process_group"), "_rendezvous"), reason="only in torchft's nightly"
)
def test_a_process_group_of_the_nightly_meets_the_others_in_the_groups_store() -> None:
    handle = json.loads(start(then=HANDLE).partition("handle: ")[2])
    assert handle["store"] == f"n1:7/store/{handle['id']}"
