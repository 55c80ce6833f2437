"""NVML's answers as values, with a made-up NVML; on a node with GPUs, with the real one."""

from __future__ import annotations

import glob
from types import SimpleNamespace
from typing import Any

import pytest

from ftslurm.preflight import gpu_readings
from ftslurm.preflight.gpu_readings import GpuReading, NoNvml
from ftslurm.preflight.shipped_check import main


class NVMLError(Exception):
    """As pynvml's."""


class MadeUpNvml:
    """Stands for the module pynvml: two GPUs; `broken` names the questions that are not supported."""

    NVMLError = NVMLError
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, NVML_TEMPERATURE_GPU, NVML_NVLINK_MAX_LINKS = 1, 0, 0, 36

    def __init__(self, *broken: str) -> None:
        self.broken = broken
        self.answers: dict[str, Any] = {
            "Count": 2,
            "HandleByIndex": lambda index: index,
            "UUID": lambda device: f"GPU-{device}abc",
            "Name": lambda _: b"NVIDIA H200",
            "MemoryInfo": lambda _: SimpleNamespace(used=600 << 20),
            "RemappedRows": lambda _: (3, 1, 0, 0),
            "RetiredPagesPendingStatus": lambda _: 1,
            "ComputeRunningProcesses": lambda _: [SimpleNamespace(pid=17)],
            "CurrentClocksEventReasons": lambda _: 0x40 | 0x1,
            "TotalEccErrors": lambda device, *_: 4 * device,
            "Temperature": lambda *_: 41,
        }

    def __getattr__(self, name: str) -> Any:
        question = name.removeprefix("nvmlDeviceGet")
        if question in self.broken:
            raise NVMLError("Not Supported")
        if question == "Count":
            return lambda: self.answers["Count"]
        if question == "NvLinkState":
            return self.link
        return self.answers[question]

    def link(self, device: int, number: int) -> int:
        if number >= 4:
            raise NVMLError("Invalid Argument")
        return int(number != device)


def test_all_that_nvml_says_becomes_a_value() -> None:
    first, second = gpu_readings.read(MadeUpNvml(), None)
    assert first == GpuReading(
        *(0, "GPU-0abc", "NVIDIA H200"),
        used_mb=600,
        processes=(17,),
        ecc=0,
        rows=(3, 1, False, False),
        links=(False, True, True, True),
        celsius=41,
        slowed=("heat",),
    )
    assert (second.ecc, second.links) == (4, (True, False, True, True))


def test_what_a_gpu_does_not_support_is_none() -> None:
    asked = ("MemoryInfo", "RemappedRows", "ComputeRunningProcesses", "CurrentClocksEventReasons", "TotalEccErrors")
    (gpu, _) = gpu_readings.read(MadeUpNvml(*asked, "NvLinkState", "Temperature"), None)
    assert gpu == GpuReading(0, "GPU-0abc", "NVIDIA H200", pages_pending=True)


def test_a_gpu_that_does_not_answer_is_one_with_a_problem() -> None:
    assert [gpu.problem for gpu in gpu_readings.read(MadeUpNvml("UUID"), None)] == ["Not Supported"] * 2
    with pytest.raises(NoNvml, match="Not Supported"):
        gpu_readings.read(MadeUpNvml("Count"), None)


@pytest.mark.parametrize(
    ("visible", "found"), [("1", [1]), ("0,1", [0, 1]), ("", []), ("GPU-0a", [0]), ("MIG-3", [0, 1]), (None, [0, 1])]
)
def test_only_the_gpus_of_the_job_count(visible: str | None, found: list[int]) -> None:
    assert [gpu.index for gpu in gpu_readings.read(MadeUpNvml(), visible)] == found


@pytest.mark.gpu
@pytest.mark.skipif(not glob.glob("/dev/nvidia[0-9]*"), reason="not run: no GPU")
def test_the_real_gpus_of_this_machine_pass(capsys: pytest.CaptureFixture[str]) -> None:
    gpus = gpu_readings.read(gpu_readings.load(), None)
    assert all(gpu.uuid.startswith("GPU-") and gpu.used_mb is not None for gpu in gpus)
    code = main(["--allow-busy", f"--gpus={len(gpus)}", "--min-shm-gb=0.01", "--min-disk-gb=/:0.01", "--skip=kernel"])
    said = capsys.readouterr().out
    assert (code, "ok    matmul" in said) == (0, True), said
