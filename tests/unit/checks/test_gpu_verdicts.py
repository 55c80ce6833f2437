"""What is judged of GPUs, from values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from ftslurm.checks import gpu_trial, gpu_verdicts
from ftslurm.checks.finding import Finding
from ftslurm.checks.gpu_readings import GpuReading

SOUND = GpuReading(0, "GPU-a", "H200", "580.159", 300, (), 0, is_pending=False, links=18)
OTHER = replace(SOUND, index=1, uuid="GPU-b")


def words(findings: Iterable[Finding]) -> list[str]:
    return [f"{one.level.value}: {one.what}" for one in findings]


def test_sound_gpus_pass_every_check() -> None:
    gpus = [SOUND, OTHER]
    assert words(gpu_verdicts.present(gpus, 2)) == ["ok: 2 GPUs answer (H200, driver 580.159)"]
    assert words(gpu_verdicts.idle(gpus, 2048)) == ["ok: nobody uses the GPUs"]
    assert words(gpu_verdicts.memory(gpus)) == ["ok: no uncorrected error and no pending repair of 2 GPUs"]
    assert words(gpu_verdicts.links(gpus)) == ["ok: 18 active NVLinks of each GPU"]


def test_missing_and_silent_gpus_are_named() -> None:
    lost = GpuReading(1, "", "", problem="GPU is lost")
    silent, few = words(gpu_verdicts.present([SOUND, lost], 2))
    assert silent == "fail: GPU 1 does not answer: GPU is lost"
    assert few == "fail: 1 of the 2 GPUs that the run uses on a node answers"
    assert words(gpu_verdicts.present([SOUND], 0)) == ["ok: 1 GPU answers (H200, driver 580.159)"]


def test_gpus_in_use_by_others_fail() -> None:
    seen, unseen = replace(SOUND, processes=(7, 8)), replace(OTHER, used_mb=9000)
    assert words(gpu_verdicts.idle([seen, unseen], 2048)) == [
        "fail: GPU 0 is in use by 2 other processes (PID 7, 8)",
        "fail: GPU 1 is in use by a process that is not seen (9000 MiB)",
    ]


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        (replace(SOUND, ecc=2), "fail: GPU 0 has had 2 uncorrected ECC errors since its last reset"),
        (replace(SOUND, is_pending=True, rows_failed=True), "fail: GPU 0: replacing a memory row has failed"),
        (replace(SOUND, ecc=None, is_pending=True), "fail: GPU 0 has to be reset to replace bad memory"),
    ],
)
def test_memory_errors_are_told_apart(gpu: GpuReading, said: str) -> None:
    assert words(gpu_verdicts.memory([gpu]))[0].startswith(said)


def test_a_gpu_with_fewer_links_than_the_others_fails_and_none_at_all_is_fine() -> None:
    broken = replace(OTHER, links=17)
    assert words(gpu_verdicts.links([SOUND, broken])) == ["fail: GPU 1 has 17 active NVLinks, others of the node 18"]
    pcie = [replace(SOUND, links=0), replace(OTHER, links=None)]
    assert words(gpu_verdicts.links(pcie)) == []


def test_wrong_and_slow_products_are_told_apart() -> None:
    fine = [(600.0, ""), (590.0, ""), (610.0, "")]
    assert [one.split(":")[0] for one in words(gpu_trial.judge(fine))] == ["ok"]
    (slow,) = words(gpu_trial.judge([(600.0, ""), (100.0, ""), (610.0, "")]))
    assert slow == "fail: GPU 1 is slow: 100 TFLOP/s, the others 600"
    (wrong,) = words(gpu_trial.judge([*fine[:2], (610.0, "the same product was not the same twice")]))
    assert wrong == "fail: GPU 2 has computed a wrong product: the same product was not the same twice"


@pytest.mark.nightly
def test_the_trial_multiplies_and_sums_with_real_processes() -> None:
    found = words(gpu_trial.run(2, [], 0.01, 200.0, device="cpu"))  # gloo in the place of NCCL
    assert "ok: the sum over the GPUs of the node is right" in found
    assert not [one for one in found if "wrong" in one]


def test_a_trial_that_takes_too_long_is_ended() -> None:
    (found,) = words(gpu_trial.run(2, [], 0.01, 0.01, device="cpu"))
    assert found.startswith("fail: GPU 0 has given no product within 0.01 s")
