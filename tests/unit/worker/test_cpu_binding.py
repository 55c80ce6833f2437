"""The CPUs to which workers are bound, on made-up machines, and the affinity of a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
from made_up_gpus import machine, write

from ftslurm.guard import gpus
from ftslurm.worker.cpu_binding import near

TWO_SOCKETS = ("0-7", "0-7", "8-15", "8-15")


def bound(root: Path, shown: str, workers: int, cpus: Sequence[str] = TWO_SOCKETS, allowed: str = "0-15") -> list[str]:
    """Return the CPUs of each worker of a group that sees these GPUs of a machine."""
    there = [gpu for gpu in gpus.known(machine(root, cpus)) if gpu.usable]
    seen = gpus.visible({"CUDA_VISIBLE_DEVICES": shown}, there)
    found = [near(gpus.numbers(allowed), there, seen, workers, rank) for rank in range(workers)]
    return [written(mine) for mine, _ in found]


def test_a_worker_is_bound_to_the_cpus_near_its_gpu(tmp_path: Path) -> None:
    assert bound(tmp_path, "0,1,2,3", 4) == ["0-7", "0-7", "8-15", "8-15"]
    assert bound(tmp_path, "3,2,1,0", 4) == ["8-15", "8-15", "0-7", "0-7"]
    assert bound(tmp_path, "0,2", 4) == ["0-7", "8-15", "0-7", "8-15"]  # two workers on each GPU
    assert bound(tmp_path, "2,3", 1) == ["8-15"]  # one worker with two GPUs
    assert bound(tmp_path, "1,2", 1) == ["-"]  # near all CPUs
    seen = gpus.known(machine(tmp_path, TWO_SOCKETS))
    assert near(range(16), seen, seen, 4, 2)[1] == "near GPU 0000:12:00"


def test_only_what_slurm_has_given_the_job_is_used(tmp_path: Path) -> None:
    assert bound(tmp_path, "0,1,2,3", 4, allowed="4-11") == ["4-7", "4-7", "8-11", "8-11"]
    (tmp_path / "dev/nvidia3").unlink()  # the cgroup hides the first GPU of the bus: CUDA counts without it
    there = [gpu for gpu in gpus.known(tmp_path) if gpu.usable]
    seen = gpus.visible({}, there)
    assert [written(near(range(16), there, seen, 3, rank)[0]) for rank in range(3)] == ["0-7", "8-15", "8-15"]


@pytest.mark.parametrize(
    ("allowed", "says"), [("0-7", "has 0 CPUs near"), ("0-8", "has 1 CPUs near")], ids=["none", "too few"]
)
def test_a_worker_whose_gpu_is_far_from_the_jobs_cpus_is_not_bound(tmp_path: Path, allowed: str, says: str) -> None:
    there = gpus.known(machine(tmp_path, TWO_SOCKETS))
    found, said = near(gpus.numbers(allowed), there, there, 4, 3)
    assert not found
    assert f"this job {says} GPU 0000:13:00, where 2 of its GPUs are; ask Slurm" in said


def test_a_worker_is_not_bound_where_the_place_of_its_gpu_is_unknown(tmp_path: Path) -> None:
    mig = "MIG-5a1e2c3d-0000-1111-2222-123456789abc"
    for shown in ("1", "7", mig, f"0,{mig}", ""):
        assert bound(tmp_path, shown, 1, cpus=("0-7", "")) == ["-"]
    assert bound(tmp_path, "0", 1, cpus=("what is this?", "8-15")) == ["-"]
    assert bound(tmp_path, "0,1", 2, cpus=("0-15", "0-15")) == ["-", "-"]  # one NUMA node


def test_gpus_of_amd_are_found_too(tmp_path: Path) -> None:
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    write(nodes / "0/properties", "cpu_cores_count 16\ndrm_render_minor 0")
    for number, (minor, cpus) in enumerate(((129, "8-15"), (128, "0-7"))):
        write(nodes / f"{number + 9}/properties", f"unique_id {number + 10}\ndrm_render_minor {minor}")
        device = tmp_path / f"sys/devices/pci0000:00/0000:0{number}:00.0"
        write(device / "local_cpulist", cpus)
        card = tmp_path / f"sys/class/drm/renderD{minor}"
        card.mkdir(parents=True)
        (card / "device").symlink_to(device)
        write(tmp_path / f"dev/dri/renderD{minor}", "")
    there = gpus.known(tmp_path)
    assert [(gpu.address, gpu.device) for gpu in there] == [
        ("0000:00:00", "/dev/dri/renderD129"),
        ("0000:01:00", "/dev/dri/renderD128"),
    ]
    seen = gpus.visible({"ROCR_VISIBLE_DEVICES": "1,0", "CUDA_VISIBLE_DEVICES": "5"}, there)
    assert [written(near(range(16), there, seen, 2, rank)[0]) for rank in range(2)] == ["0-7", "8-15"]


def written(cpus: Collection[int]) -> str:
    """Write the CPUs of a machine with 16 as the kernel does."""
    return next((text for text in ("0-7", "8-15", "4-7", "8-11") if gpus.numbers(text) == cpus), "?" if cpus else "-")


BIND = """
import os, sys, threading
from pathlib import Path
from ftslurm.guard import gpus
from ftslurm.worker import cpu_binding
found = gpus.known(Path(sys.argv[1]))
gpus.known = lambda: found
wait = threading.Event()
threading.Thread(target=wait.wait, daemon=True).start()
print(cpu_binding.bind(2, 1))
print(*({tuple(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task")}), sep="|")
"""


def test_all_threads_of_a_process_are_bound(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    root = machine(tmp_path, (str(cpus[0]), ",".join(map(str, cpus[1:]))))
    environ = {name: value for name, value in os.environ.items() if name not in gpus.VARIABLES}
    out = subprocess.run([sys.executable, "-c", BIND, root], env=environ, capture_output=True, text=True, check=True)
    said, affinity = out.stdout.splitlines()
    bound, _, near_which = said.removeprefix("bound to CPUs ").partition(" ")
    assert (sorted(gpus.numbers(bound)), near_which) == (cpus[1:], "(near GPU 0000:11:00)")
    assert affinity == str(tuple(cpus[1:]))
