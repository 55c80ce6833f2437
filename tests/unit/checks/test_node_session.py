"""The program of doctor, run on this machine: it tells what is here, ends with doctor, and removes its folder."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from programs import Programs

from ftslurm.checks import gpu_readings, node_facts, node_session
from ftslurm.checks.gpu_readings import GpuReading
from ftslurm.checks.node_facts import FolderFacts, NodeFacts
from ftslurm.checks.node_session import NodeSession, scratch_folder
from ftslurm.errors import EnvironmentProblem
from ftslurm.guard import gpus, kernel_log

PATIENCE_S = 60.0
OFF_THE_BUS = "[1.2] NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus."
TORCH = """
from types import SimpleNamespace
__version__, version, cuda = "2.9", SimpleNamespace(cuda=None), SimpleNamespace(device_count=lambda: 0)
"""  # the import of the real one takes seconds


@pytest.fixture(autouse=True)
def _light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "light").mkdir()
    (tmp_path / "light/torch.py").write_text(TORCH)
    (tmp_path / "light/torchft.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "light"))


@contextmanager
def session(root: Path, *prefix: str) -> Iterator[NodeSession]:
    root.mkdir(exist_ok=True)
    with scratch_folder(root) as folder:
        only = NodeSession("here", prefix, [sys.executable], folder, [[], []])
        with closing(only):
            yield only
    assert list(root.iterdir()) == []


def looked(root: Path, *prefix: str) -> NodeFacts:
    with session(root, *prefix) as only:
        return only.look(PATIENCE_S)


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_this_machine_is_known_by_one_answer(tmp_path: Path) -> None:
    with session(tmp_path / "runs") as only:
        node = only.look(PATIENCE_S)
        only.reach(node)
    assert (node.problem, node.reached) == ("", {node.name: ""})
    assert abs(node.ahead_s) < 5
    folder = node.folder
    assert folder is not None
    assert (folder.shared, folder.exclusive, folder.problem) == (True, True, "")
    assert folder.size_s is not None
    assert folder.fsync_longest_s >= folder.fsync_s > 0
    assert node.facts is not None
    assert node.facts.imports["torch"].items() >= {"version": "2.9", "build": "", "devices": 0}.items()
    assert not [found["error"] for found in node.facts.imports.values() if "error" in found]


def test_a_node_with_another_folder_of_that_name_does_not_share_it(tmp_path: Path) -> None:
    runs = str(tmp_path / "runs")
    elsewhere = f'exec "$1" "$2" "$3" "$4" "$(echo "$5" | sed s,{runs}/,{runs}/../other/,)" "$6" "$7"'
    node = looked(tmp_path / "runs", "sh", "-c", elsewhere, "sh")
    assert node.folder == FolderFacts(f"{runs}/../other")


def test_other_nodes_reach_its_port_over_ipv4_and_over_ipv6(tmp_path: Path) -> None:
    with session(tmp_path / "runs") as only:
        port = int(only.look(PATIENCE_S).place[1])
        for host in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
            socket.create_connection((host, port), PATIENCE_S).close()
        only.reach(NodeFacts("closed", place=["127.0.0.1", 1]))
        assert "ConnectionRefusedError" in only.known.reached["closed"]


def test_the_program_removes_the_folder_when_nobody_listens_any_more(tmp_path: Path) -> None:
    folder = tmp_path / "left"
    only = NodeSession("here", [], [sys.executable], folder, [[], []])
    assert only._answer()["job"] == ""
    folder.mkdir()
    only._process.stdin.close()  # type: ignore[union-attr]  # as when doctor is killed
    until(lambda: not folder.exists(), "the folder is removed")
    assert only._process.wait(PATIENCE_S) == 0


def test_what_a_profile_prints_is_ignored(tmp_path: Path) -> None:
    noisy = """echo welcome; echo '[1]'; echo '{"time": "now"}'; exec "$@\""""
    node = looked(tmp_path / "runs", "sh", "-c", noisy, "sh")
    assert (node.problem, node.facts is None) == ("", False)


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("echo execve: No such file >&2; exit 2", "execve: No such file"),
        ("exit 7", "exit code: 7"),
        ("yes '{\"time\": 1.5}' | head; cat", node_session.OTHER_VERSION),
        ('yes \'{"time": 1.5, "shared": false, "folder": {"new": 1}}\'', node_session.OTHER_VERSION),
    ],
)
def test_what_answers_otherwise_is_named(does: str, words: str, tmp_path: Path) -> None:
    assert words in looked(tmp_path / "runs", "sh", "-c", does).problem


def test_an_interpreter_without_ftslurm_is_told_as_such(tmp_path: Path) -> None:
    python = tmp_path / "bare"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o700)
    with scratch_folder(tmp_path) as folder, closing(NodeSession("here", [], [str(python)], folder, [[], []])) as only:
        assert "No module named 'ftslurm" in only.look(PATIENCE_S).problem


def test_what_nvidia_smi_and_the_kernel_say_are_facts(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program stands in for NVIDIA's, which needs a GPU; the log of this machine's kernel has no such line."""
    row = "0, GPU-a, NVIDIA A100, 550.54.15, 4, 3, 0, No, No, [N/A]"
    programs.add("nvidia-smi", body=f"case $1 in --query-gpu*) echo '{row}';; esac")
    monkeypatch.setattr(gpus, "names", lambda: {gpus.VARIABLES[0]: ["0"]})
    monkeypatch.setattr(kernel_log, "read", lambda: [OFF_THE_BUS, "[1.3] usb 1-1: new device"])
    found = node_facts.of_hardware(None)
    assert found.readings == [GpuReading(0, "GPU-a", "NVIDIA A100", "550.54.15", 4, ecc=3, rows=0)]
    assert (found.gpus, found.kernel) == (1, [OFF_THE_BUS])
    programs.add("nvidia-smi", body="echo no driver; exit 9")
    assert node_facts.of_hardware(None).readings == "no driver"
    assert gpu_readings.ANSWER_S < 60  # a hung driver costs a check of a node half of its time at most


def test_an_interpreter_that_is_not_there_is_a_bad_argument(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="no-such-python cannot be started: No such file"):
        NodeSession("here", [], ["no-such-python"], tmp_path, [[], []])
