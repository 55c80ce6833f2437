"""The program of doctor, run on this machine: it tells what is here."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from programs import Programs

from ftslurm.checks import gpu_readings, node_facts, node_session, on_node
from ftslurm.checks.finding import Finding, Level
from ftslurm.checks.gpu_readings import GpuReading
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


def looked(root: Path, *prefix: str, python: str = sys.executable) -> dict[str, Finding]:
    """Return the findings by their checks."""
    (root / "scratch").mkdir(parents=True)
    found = node_session.look("here", prefix, [python], root / "scratch", [[], []], PATIENCE_S)
    return {one.check: one for one in found}


def test_this_machine_is_looked_at(tmp_path: Path) -> None:
    found = looked(tmp_path / "runs")
    assert {name: one.level for name, one in found.items()}.items() >= {
        **dict.fromkeys(("job", "folder", "caching", "latency", "python", "torch", "torchft", "ftslurm"), Level.OK)
    }.items()
    assert "torch 2.9, imported in" in found["torch"].what
    assert all(one.what.startswith(f"{socket.gethostname()}: ") for one in found.values())


def test_a_node_with_another_folder_of_that_name_does_not_share_it(tmp_path: Path) -> None:
    runs = str(tmp_path / "runs")
    elsewhere = f'exec "$1" "$2" "$3" "$4" "$(echo "$5" | sed s,{runs}/,{runs}/../other/,)" "$6" "$7" "$8"'
    folder = looked(tmp_path / "runs", "sh", "-c", elsewhere, "sh")["folder"]
    assert (folder.level, f"{runs}/../other is not the folder of this machine" in folder.what) == (Level.FAIL, True)


def test_a_folder_that_cannot_be_written_is_told_with_the_reason(tmp_path: Path) -> None:
    here = tmp_path / "runs/scratch/here"
    here.mkdir(parents=True)
    (found,) = on_node._folder(str(here))
    assert (found.level, found.what) == (Level.FAIL, f"{tmp_path}/runs cannot be used: {here}: Is a directory")


def test_what_a_profile_prints_is_ignored(tmp_path: Path) -> None:
    noisy = """echo welcome; echo '[1]'; echo '{"time": "now"}'; exec "$@\""""
    found = looked(tmp_path / "runs", "sh", "-c", noisy, "sh")
    assert ("node" in found, found["torch"].level) == (False, Level.OK)


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("echo execve: No such file >&2; exit 2", "execve: No such file"),
        ("exit 7", "exit code: 7"),
        ("yes '{\"time\": 1.5}' | head; cat", node_session.OTHER_VERSION),
        ('yes \'{"time": 1.5, "found": [["new"]]}\'', node_session.OTHER_VERSION),
    ],
)
def test_what_answers_otherwise_is_named(does: str, words: str, tmp_path: Path) -> None:
    (found,) = looked(tmp_path / "runs", "sh", "-c", does).values()
    assert (found.level, words in found.what) == (Level.FAIL, True)


def test_an_interpreter_without_ftslurm_is_told_as_such(tmp_path: Path) -> None:
    python = tmp_path / "bare"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o700)
    (found,) = looked(tmp_path / "runs", python=str(python)).values()
    assert (found.check, "No module named 'ftslurm" in found.what) == ("ftslurm", True)


def test_what_nvidia_smi_and_the_kernel_say_are_facts(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program stands in for NVIDIA's, which needs a GPU; the log of this machine's kernel has no such line."""
    row = "0, GPU-a, NVIDIA A100, 550.54.15, 4, 3, No, No, [N/A]"
    programs.add("nvidia-smi", body=f"case $1 in --query-gpu*) echo '{row}';; esac")
    monkeypatch.setattr(gpus, "names", lambda: {gpus.VARIABLES[0]: ["0"]})
    monkeypatch.setattr(kernel_log, "read", lambda: [OFF_THE_BUS, "[1.3] usb 1-1: new device"])
    found = node_facts.of_hardware(None)
    assert found.readings == [
        GpuReading(0, "GPU-a", "NVIDIA A100", "550.54.15", 4, (), 3, is_pending=False, rows_failed=False)
    ]
    assert (found.gpus, [one.sign.name for one in found.kernel or ()]) == (1, ["XID 79"])
    programs.add("nvidia-smi", body="echo no driver; exit 9")
    assert node_facts.of_hardware(None).readings == "no driver"
    assert gpu_readings.ANSWER_S < 60  # a hung driver costs a check of a node half of its time at most


def test_an_interpreter_that_is_not_there_is_a_bad_argument(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="No such file or directory: 'no-such-python'"):
        list(node_session.look("here", [], ["no-such-python"], tmp_path, [[], []], PATIENCE_S))
