"""The command ftslurm-preflight on a node without GPUs, and what it judges beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import Programs

from ftslurm.checks import node_verdicts, shipped_check
from ftslurm.checks.node_facts import Hardware
from ftslurm.guard import gpus, kernel_log

SKIPS = ["--skip=gpus", "--skip=matmul", "--skip=allreduce", "--skip=kernel"]
XID = "6,1234,{},-;NVRM: Xid (PCI:0000:3b:00): 79, pid=123, GPU has fallen off the bus."


def words(findings: object) -> list[str]:
    return [f"{one.level.value}: {one.what}" for one in findings]  # type: ignore[attr-defined]


def test_a_sound_node_passes_and_each_check_has_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_verdicts, "LEAST_GB", 0)
    assert shipped_check.main(SKIPS) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [["ok", "shm"], ["ok", "disk"]]
    assert lines[-1] == "passed: 2 checks, 0 warnings"


def test_the_last_line_of_a_failed_check_has_every_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "scratch"
    monkeypatch.setattr(node_verdicts, "LEAST_GB", 1e6)
    monkeypatch.setenv("FTSLURM_RUN_DIR", str(missing))
    assert shipped_check.main(SKIPS) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("failed: /dev/shm has ")
    assert f"less than 1e+06; {missing}: No such file or directory" in last


def test_gpus_that_the_run_needs_and_the_node_lacks_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FTSLURM_PREFLIGHT_GPUS", "999")
    skips = [f"--skip={check}" for check in shipped_check.CHECKS if check != "gpus"]
    assert shipped_check.main(skips) == 1
    assert "of the 999 GPUs that the run uses on a node answer" in capsys.readouterr().out


def test_broken_hardware_in_the_kernel_log_fails_for_a_day() -> None:
    def told(*lines: str) -> list[str]:
        return words(node_verdicts.kernel(Hardware(kernel=kernel_log.parse(lines), uptime_s=400_000.0)))

    line = XID.format(390_000_000_000)
    assert told(line, line) == ["fail: XID 79 (GPU 0000:3b:00) in the kernel log: the GPU has fallen off the bus"]
    (old,) = told(XID.format(1_000_000))
    assert old.startswith("ok: no sign")
    assert told("6,1,5,-;usb 1-1: new device")[0].startswith("ok: no sign")
    assert "may not be read" in words(node_verdicts.kernel(Hardware()))[0]


@pytest.mark.parametrize(
    ("ahead_s", "level"), [(0.7, "ok"), (-0.4, "ok"), (-4.0, "warn"), (3.0, "warn"), (-31.0, "fail"), (40.0, "fail")]
)
def test_clocks_that_differ_much_fail(ahead_s: float, level: str) -> None:
    assert node_verdicts.clock(ahead_s).level.value == level


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            'case $1 in --query-gpu*) echo "0, GPU-a, H200, 580.1, 600, 0, No, No, [N/A]";; esac',
            "ok    gpus",
        ),
        (
            'echo "Failed to initialize NVML: Driver/library version mismatch"; exit 18',
            "fail  gpus            nvidia-smi fails",
        ),
    ],
)
def test_nvidia_smi_is_asked_on_a_node_with_gpus(
    body: str, said: str, programs: Programs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program stands in for NVIDIA's, which needs a GPU."""
    programs.add("nvidia-smi", body=body)
    monkeypatch.setattr(gpus, "names", lambda: {gpus.VARIABLES[0]: ["0"]})
    kept = ("gpus", "idle", "memory")
    code = shipped_check.main([f"--skip={check}" for check in shipped_check.CHECKS if check not in kept])
    assert said in capsys.readouterr().out
    assert code == int(said.startswith("fail"))
