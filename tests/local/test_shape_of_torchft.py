"""What a worker does on a torchft of another shape: the installed one, with something taken out of it."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from types import SimpleNamespace
import torch, torchft.checkpointing.http_transport, torchft.manager, torchft.parameter_server, torchft.process_group
modules = {m.__name__: m for m in (torchft.checkpointing.http_transport, torchft.ddp, torchft.manager,
                                   torchft.parameter_server, torchft.process_group)}
for name in sys.argv[1:]:
    module, _, path = name.partition(":")
    owner, *rest = [modules["torchft." + module], *path.split(".")[:-1]]
    for part in rest:
        owner = getattr(owner, part)
    if hasattr(owner, path.split(".")[-1]):
        delattr(owner, path.split(".")[-1])
from ftslurm.worker import session
from ftslurm.protocol.position import Position
task = SimpleNamespace(gateway=SimpleNamespace(), position=Position())
*_, left_out = session.import_everything(lambda *_, **__: None, lambda _: None, task)
for words in left_out:
    print("left out:", words)
print("goes on")
"""


def start(*missing: str) -> str:
    """Import everything, as a worker does, where these names are missing; what it says."""
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, *missing]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


def test_every_patch_fits_the_installed_torchft() -> None:
    assert start() == "goes on\n"


@pytest.mark.parametrize(
    ("missing", "patch", "means"),
    [
        ("process_group:create_store_client", "broken", "survivors may wait"),
        ("manager:Manager._apply_pending_state_dict", "history", "only the Lighthouse keeps"),
        ("manager:Manager.allreduce", "observe", "steps, quorums and hangs are not seen"),
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


def test_a_process_group_may_not_host_a_store(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT + HOST], capture_output=True, text=True, timeout=120, check=False
    )
    assert said.stdout.splitlines()[-1] == "refused", said.stdout + said.stderr


HOST = """
try:
    torchft.process_group.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
except RuntimeError as error:
    print("refused" if "strangers" in str(error) else error)
"""


HANDLE = """
from ftslurm.worker import closed_servers
group = torchft.process_group.ProcessGroupGloo()
if hasattr(group, "get_reconfigure_handle"):
    closed_servers.begin("127.0.0.1:5", "n1:7/store")
    print("handle:", group.get_reconfigure_handle())
"""


@pytest.mark.skipif(
    not hasattr(importlib.import_module("torchft.process_group"), "_rendezvous"), reason="only in torchft's nightly"
)
def test_a_process_group_of_the_nightly_meets_the_others_in_the_groups_store() -> None:
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT + HANDLE],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    handle = json.loads(said.stdout.partition("handle: ")[2])
    assert handle["store"] == f"n1:7/store/{handle['id']}"
