"""nvidia-smi's answers as values: as those of real GPUs were recorded, and from the real one on a node with GPUs."""

from __future__ import annotations

import glob
import itertools
import shlex
from collections.abc import Callable

import pytest
from programs import Programs

from ftslurm.checks import gpu_readings, gpu_verdicts
from ftslurm.checks.finding import Level
from ftslurm.checks.gpu_readings import GpuReading, NoAnswer
from ftslurm.checks.shipped_check import main

H200 = "GPU-abea1163-fb23-4074-3f4f-bb40c5e3878f"
OTHER = "GPU-0abc1163-fb23-4074-3f4f-bb40c5e3878f"
SOUND = f"0, {H200}, NVIDIA H200, 580.159.04, 600, 0, No, No, [N/A]\n"
WORN = f"1, {OTHER}, NVIDIA A100-SXM4-80GB, 580.159.04, 4, 4, Yes, Yes, [N/A]\n"
OLD = f"0, {H200}, Tesla V100, 470.57, 4, [N/A], [N/A], [N/A], Yes\n"
LOST = f"1, {OTHER}, NVIDIA H200, 580.159.04, [GPU is lost], [Unknown Error], No, No, [N/A]\n"
NVLINKS = f"""GPU 0: NVIDIA H200 (UUID: {H200})
\t Link 0: 26.562 GB/s
\t Link 1: 26.562 GB/s
GPU 1: NVIDIA A100-SXM4-80GB (UUID: {OTHER})
\t Link 0: 25 GB/s
\t Link 1: <inactive>
"""


Read = Callable[..., list[GpuReading]]


@pytest.fixture
def read(programs: Programs) -> Read:
    """Read what a stand-in for NVIDIA's program says, which needs a GPU."""

    def reading(
        gpus: str, visible: str | None = None, processes: str = "", links: str = "", code: int = 0
    ) -> list[GpuReading]:
        answers = {"--query-gpu": gpus, "--query-compute-apps": processes, "nvlink": links}
        cases = "".join(f"{word}*) printf %s {shlex.quote(text)};; " for word, text in answers.items())
        programs.add("nvidia-smi", body=f"case $1 in {cases} esac; exit {code}")
        return gpu_readings.read(visible)

    return reading


def test_all_that_nvidia_smi_says_becomes_a_value(read: Read) -> None:
    first, second = read(SOUND + WORN, processes=f"{OTHER}, 17\n{H200}, 9\n{OTHER}, 18\n", links=NVLINKS)
    sound = {"ecc": 0, "is_pending": False, "rows_failed": False}
    assert first == GpuReading(*(0, H200, "NVIDIA H200", "580.159.04", 600), processes=(9,), links=2, **sound)
    assert second == GpuReading(
        *(1, OTHER, "NVIDIA A100-SXM4-80GB", "580.159.04", 4),
        processes=(17, 18),
        ecc=4,
        is_pending=True,
        rows_failed=True,
        links=1,
    )


def test_what_a_gpu_does_not_support_is_none(read: Read) -> None:
    assert read(OLD) == [GpuReading(0, H200, "Tesla V100", "470.57", 4, is_pending=True)]


SPELLINGS: dict[str, bool | None] = {
    "Yes": True,
    "yes": True,
    "1": True,
    "TRUE": True,
    "No": False,
    "0": False,
    "false": False,
}
SPELLINGS |= {"[N/A]": None, "N/A": None, "[Not Supported]": None, "?": None, "2": None}


def test_yes_and_no_are_understood_however_a_driver_spells_them_and_what_is_unknown_is_not_sound(read: Read) -> None:
    cases = list(itertools.product(SPELLINGS, SPELLINGS, SPELLINGS))
    lines = [f"{n}, {H200}, NVIDIA H200, 580, 600, 0, {', '.join(words)}\n" for n, words in enumerate(cases)]
    found = read("".join(lines))
    assert len(found) == len(cases)
    for gpu, (rows, failed, pages) in zip(found, cases, strict=True):
        known = {SPELLINGS[rows], SPELLINGS[pages]} - {None}
        assert (gpu.is_pending, gpu.rows_failed) == (True in known if known else None, SPELLINGS[failed])
        told = [finding.level for finding in gpu_verdicts.memory([gpu])]
        bad = SPELLINGS[failed] or True in known
        assert told == ([Level.FAIL] if bad else [Level.OK] if known else [])


def test_a_gpu_that_does_not_answer_is_one_with_a_problem(read: Read) -> None:
    assert [gpu.problem for gpu in read(SOUND + LOST)] == ["", "GPU is lost"]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error\n", 255),
        ("Failed to initialize NVML: Driver/library version mismatch\n", 18),
        ('Field "nosuch.field" is not a valid field to query.\n\n', 2),
        ("No devices were found\n", 0),
        (SOUND + "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.\n", 15),
        ("", 1),
    ],
)
def test_what_nvidia_smi_says_instead_is_the_reason(said: str, code: int, read: Read) -> None:
    with pytest.raises(NoAnswer, match=" ".join(said.split())[-30:] or "exit code 1"):
        read(said, code=code)


@pytest.mark.parametrize(
    ("visible", "found"), [("1", [1]), ("0,1", [0, 1]), ("", []), ("GPU-0a", [1]), ("MIG-3", [0, 1]), (None, [0, 1])]
)
def test_only_the_gpus_of_the_job_count(visible: str | None, found: list[int], read: Read) -> None:
    assert [gpu.index for gpu in read(SOUND + WORN, visible)] == found


@pytest.mark.gpu
@pytest.mark.skipif(not glob.glob("/dev/nvidia[0-9]*"), reason="not run: no GPU")
def test_the_real_gpus_of_this_machine_pass(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--gpus=1", *(f"--skip={check}" for check in ("idle", "kernel", "shm", "disk"))])
    said = capsys.readouterr().out
    assert (code, "ok    gpus" in said, "ok    memory" in said, "ok    matmul" in said) == (0, True, True, True), said
