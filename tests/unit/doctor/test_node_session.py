"""The program of doctor, run on this machine: it answers, ignores nothing it is asked, and removes its folder."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import pytest
from programs import Programs

from ftslurm.doctor import examine
from ftslurm.doctor.examine import Options
from ftslurm.doctor.node_checks import NodeFacts
from ftslurm.doctor.node_session import NodeSession, Silent, program
from ftslurm.preflight.gpu_readings import GpuReading

PATIENCE_S = 60.0
OFF_THE_BUS = "[1.2] NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus."
TORCH = """
from types import SimpleNamespace
__version__, version, cuda = "2.9", SimpleNamespace(cuda=None), SimpleNamespace(device_count=lambda: 0)
"""  # the import of the real one takes seconds


def options(root: Path) -> Options:
    return Options(root, [sys.executable])


def test_the_folder_of_this_machine_is_shared_with_itself(tmp_path: Path) -> None:
    with (
        examine.scratch_folder(tmp_path) as folder,
        examine.sessions_on([("here", [])], options(tmp_path), folder) as (session,),
    ):
        assert session.hello(PATIENCE_S)
        found = examine.measure_folder(session, folder)
    assert (found.shared, found.exclusive, found.locks, found.problem) == (True, True, True, "")
    assert found.listing_s is not None
    assert found.size_s is not None
    assert found.fsync_longest_s >= found.fsync_s > 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_the_node_does_not_have_is_not_shared(tmp_path: Path) -> None:
    with examine.sessions_on([("here", [])], options(tmp_path), tmp_path / "x") as (session,):
        assert session.hello(PATIENCE_S)
        (tmp_path / "x").mkdir()
        os.rename(tmp_path / "x", tmp_path / "y")
        assert session.ask("exists", path=str(tmp_path / "x")) == {"exists": False}


def test_other_nodes_reach_its_port_over_ipv4_and_over_ipv6(tmp_path: Path) -> None:
    with examine.sessions_on([("here", [])], options(tmp_path), tmp_path / "x") as (session,):
        assert session.hello(PATIENCE_S)
        port = int(str(session.ask("listen")["port"]))
        for host in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
            assert float(str(session.ask("connect", host=host, port=port)["seconds"])) >= 0


def test_the_program_removes_the_folder_when_nobody_listens_any_more(tmp_path: Path) -> None:
    folder = tmp_path / "left"
    session = NodeSession("here", program([sys.executable], folder), dict(os.environ))
    assert session.hello(PATIENCE_S)
    folder.mkdir()
    session.close()
    assert not folder.exists()


def test_an_old_folder_of_a_killed_doctor_is_removed_and_a_new_one_is_not(tmp_path: Path) -> None:
    old, new = tmp_path / f"{examine.PREFIX}old", tmp_path / f"{examine.PREFIX}new"
    for path in (old, new):
        path.mkdir()
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    with examine.scratch_folder(tmp_path / "runs" / "deeper"):
        assert not old.exists()
        assert new.exists()


def test_what_a_profile_prints_is_ignored_and_a_failed_question_is_named(tmp_path: Path) -> None:
    noisy = ["sh", "-c", 'echo welcome; echo "[1]"; exec "$@"', "sh", *program([sys.executable], tmp_path / "x")]
    session = NodeSession("here", noisy, dict(os.environ))
    assert session.hello(PATIENCE_S)
    with pytest.raises(Silent, match="FileNotFoundError"):
        session.ask("lock", path=str(tmp_path / "missing"))
    session.close()


def test_an_interpreter_that_is_missing_is_named_with_sruns_words(tmp_path: Path) -> None:
    session = NodeSession("here", ["sh", "-c", "echo execve: No such file >&2; exit 2"], dict(os.environ))
    with pytest.raises(Silent, match="execve: No such file"):
        session.hello(PATIENCE_S)
    session.close()


def test_what_nvidia_smi_and_the_kernel_say_is_passed_on(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "torchft.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    row = "0, GPU-a, NVIDIA A100, 550.54.15, 4, 3, 0, No, No, [N/A], 31, 0x1"
    programs.add("nvidia-smi", body=f"case $1 in --query-gpu*) echo '{row}';; esac")
    programs.add("dmesg", body=f"echo '{OFF_THE_BUS}'")
    with examine.sessions_on([("here", [])], options(tmp_path), tmp_path / "x") as (session,):
        assert session.hello(PATIENCE_S)
        (facts,) = examine.measure_nodes([session], options(tmp_path))
        gpus = NodeFacts("here", {"gpu_files": 1})
        examine.measure_hardware(session, gpus)
    assert (facts.problem, facts.kernel) == ("", [OFF_THE_BUS])
    assert gpus.gpus == [GpuReading(0, "GPU-a", "NVIDIA A100", "550.54.15", 4, ecc=3, rows=0, celsius=31)]
    assert facts.said["imports"]["torch"].items() >= {"version": "2.9", "build": "", "devices": 0}.items()
    assert "error" not in facts.said["imports"]["torchft"]
    assert facts.ahead_s is not None
    assert abs(facts.ahead_s) < 1
