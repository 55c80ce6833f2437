"""The CPUs to which workers are bound, on made-up machines, and the affinity of a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ftslurm.worker import cpu_binding, topology
from ftslurm.worker.cpu_binding import Binding, Seat, near_gpus, visible, without_gpus
from ftslurm.worker.topology import Machine

UUID = "GPU-0000000{}-aaaa-bbbb-cccc-123456789abc"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def tree(root: Path, nodes: Mapping[int, str], gpus: Sequence[int] = (), threads: int = 0) -> Path:
    """Make up a machine: the CPUs of its NUMA nodes, the NUMA node of each NVIDIA GPU.

    Args:
        threads: CPU n and CPU n + threads are hardware threads of one core; 0: each CPU is a core.
    """
    for node, cpus in nodes.items():
        write(root / f"sys/devices/system/node/node{node}/cpulist", cpus)
        for cpu in topology.numbers(cpus):
            siblings = f"{cpu % threads},{cpu % threads + threads}" if threads else str(cpu)
            write(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings)
    for number, node in enumerate(gpus):
        address = f"0000:{16 + number:02x}:00.0"
        minor = len(gpus) - 1 - number  # the driver's numbers need not follow the bus
        about = f"Model: \t\t NVIDIA H100\nGPU UUID: \t {UUID.format(number)}\nDevice Minor: \t {minor}"
        write(root / f"proc/driver/nvidia/gpus/{address}/information", about)
        write(root / f"sys/bus/pci/devices/{address}/numa_node", str(node))
        write(root / f"dev/nvidia{minor}", "")
    return root


def two_sockets(root: Path, allowed: str = "0-15", gpus: Sequence[int] = (0, 0, 1, 1)) -> Machine:
    return topology.machine(topology.numbers(allowed), tree(root, {0: "0-7", 1: "8-15"}, gpus))


def masks(found: Sequence[Binding]) -> list[str]:
    return ["-" if one.cpus is None else topology.written(one.cpus) for one in found]


def on_gpus(machine: Machine, seat: Seat, shown: str) -> list[str]:
    """Return the CPUs of each worker of a group that sees these GPUs."""
    gpus = visible({"CUDA_VISIBLE_DEVICES": shown}, machine.gpus)
    return masks([near_gpus(machine, seat, rank, gpus) for rank in range(seat.workers)])


def on_cpus(machine: Machine, mode: str, total: int, first: int = 0) -> list[str]:
    seat = Seat(mode, first, total, total)
    return masks([without_gpus(machine, seat, index) for index in range(total - first)])


# --- with GPUs --------------------------------------------------------------------------------------------------------


def test_a_worker_is_bound_to_the_numa_node_of_its_gpu(tmp_path: Path) -> None:
    machine = two_sockets(tmp_path)
    assert on_gpus(machine, Seat("auto", 0, 4, 4), "0,1,2,3") == ["0-7", "0-7", "8-15", "8-15"]
    assert on_gpus(machine, Seat("auto", 0, 4, 4), "3,2,1,0") == ["8-15", "8-15", "0-7", "0-7"]
    names = ",".join(UUID.format(number) for number in (2, 0))
    assert on_gpus(machine, Seat("auto", 0, 4, 2), names) == ["8-15", "0-7"]
    said = near_gpus(machine, Seat("auto", 0, 4, 4), 2, machine.gpus).text
    assert said == "bound to CPUs 8-15 (NUMA node 1, GPU 2 at 0000:12:00.0)"


def test_cores_are_shared_by_no_two_workers_of_the_groups_on_a_node(tmp_path: Path) -> None:
    machine = two_sockets(tmp_path)
    first = on_gpus(machine, Seat("cores", 0, 4, 2), "0,1")
    second = on_gpus(machine, Seat("cores", 2, 4, 2), "2,3")
    assert first + second == ["0-3", "4-7", "8-11", "12-15"]
    assert on_gpus(machine, Seat("cores", 0, 8, 8), "0,1,2,3")[::4] == ["0-1", "2-3"]  # two workers on each GPU
    assert on_gpus(machine, Seat("cores", 0, 1, 1), "1,2") == ["4-11"]  # one worker with two GPUs
    assert on_gpus(machine, Seat("cores", 0, 2, 2), "0,1,2,3") == ["-", "-"]  # which GPUs each of them uses, who knows


def test_hardware_threads_of_a_core_stay_together(tmp_path: Path) -> None:
    root = tree(tmp_path, {0: "0-3,8-11", 1: "4-7,12-15"}, gpus=(0, 0), threads=8)
    machine = topology.machine(range(16), root)
    assert on_gpus(machine, Seat("cores", 0, 2, 2), "0,1") == ["0-1,8-9", "2-3,10-11"]
    assert on_cpus(machine, "cores", 4) == ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]


def test_only_what_slurm_has_given_the_job_is_used(tmp_path: Path) -> None:
    machine = two_sockets(tmp_path, allowed="4-11")
    assert on_gpus(machine, Seat("auto", 0, 4, 4), "0,1,2,3") == ["4-7", "4-7", "8-11", "8-11"]
    (tmp_path / "dev/nvidia3").unlink()  # the cgroup hides the first GPU of the bus: CUDA counts without it
    hidden = two_sockets_of(tmp_path, "0-15")
    assert [gpu.numa_node for gpu in hidden.gpus] == [0, 1, 1]
    assert on_gpus(hidden, Seat("auto", 0, 3, 3), "0,1,2") == ["0-7", "8-15", "8-15"]


def two_sockets_of(root: Path, allowed: str) -> Machine:
    return topology.machine(topology.numbers(allowed), root)


@pytest.mark.parametrize(
    ("allowed", "says"), [("0-7", "none of its CPUs"), ("0-8", "only CPUs 8 for 2 workers")], ids=["none", "too few"]
)
def test_a_worker_whose_gpu_is_far_from_the_jobs_cpus_is_not_bound(tmp_path: Path, allowed: str, says: str) -> None:
    machine = two_sockets(tmp_path, allowed)
    found = near_gpus(machine, Seat("auto", 0, 4, 4), 3, machine.gpus)
    assert found.cpus is None
    assert says in found.text
    assert "GPU 0000:13:00.0 is at NUMA node 1" in found.text


def test_a_worker_is_not_bound_where_the_place_of_its_gpu_is_unknown(tmp_path: Path) -> None:
    machine = two_sockets(tmp_path, gpus=(0, -1))
    mig = "MIG-5a1e2c3d-0000-1111-2222-123456789abc"
    for shown in ("1", "7", mig, f"0,{mig}"):
        assert on_gpus(machine, Seat("auto", 0, 1, 1), shown) == ["-"]
    assert near_gpus(machine, Seat("auto", 0, 1, 1), 0, [None]) == Binding(None)
    assert "not known" in near_gpus(machine, Seat("cores", 0, 1, 1), 0, [None]).text
    assert on_gpus(machine, Seat("auto", 0, 1, 1), f"MIG-{UUID.format(0)}/1/0") == ["0-7"]


def test_gpus_of_amd_are_found_too(tmp_path: Path) -> None:
    tree(tmp_path, {0: "0-7", 1: "8-15"})
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    write(nodes / "0/properties", "cpu_cores_count 16\ndrm_render_minor 0")
    for number, (minor, near) in enumerate(((129, 1), (128, 0))):
        write(nodes / f"{number + 9}/properties", f"unique_id {number + 10}\ndrm_render_minor {minor}")
        device = tmp_path / f"sys/devices/pci0000:00/0000:0{number}:00.0"
        write(device / "numa_node", str(near))
        card = tmp_path / f"sys/class/drm/renderD{minor}"
        card.mkdir(parents=True)
        (card / "device").symlink_to(device)
        write(tmp_path / f"dev/dri/renderD{minor}", "")
    machine = topology.machine(range(16), tmp_path)
    shown = visible({"ROCR_VISIBLE_DEVICES": "GPU-000000000000000b,0", "CUDA_VISIBLE_DEVICES": "5"}, machine.gpus)
    assert masks([near_gpus(machine, Seat("auto", 0, 2, 2), rank, shown) for rank in range(2)]) == ["0-7", "8-15"]


# --- without ----------------------------------------------------------------------------------------------------------


def test_workers_without_gpus_are_divided_among_numa_nodes_if_that_is_even(tmp_path: Path) -> None:
    machine = two_sockets(tmp_path, gpus=())
    assert on_cpus(machine, "auto", 4) == ["0-7", "0-7", "8-15", "8-15"]
    assert on_cpus(machine, "auto", 4, first=2) == ["8-15", "8-15"]  # the second group of a node
    assert on_cpus(machine, "auto", 1) == ["-"]
    assert on_cpus(machine, "auto", 3) == ["-", "-", "-"]
    assert on_cpus(two_sockets_of(tmp_path, "0-9"), "auto", 2) == ["-", "-"]
    assert on_cpus(two_sockets_of(tmp_path, "0-7"), "auto", 2) == ["-", "-"]


def test_cores_without_gpus_are_slices_of_all_cpus(tmp_path: Path) -> None:
    machine = two_sockets(tmp_path, gpus=())
    assert on_cpus(machine, "cores", 3) == ["0-4", "5-9", "10-15"]
    assert on_cpus(machine, "cores", 16)[::5] == ["0", "5", "10", "15"]
    assert set(on_cpus(machine, "cores", 17)) == {"-"}
    assert "16 CPUs for 17 workers" in without_gpus(machine, Seat("cores", 0, 17, 1), 0).text


def test_nothing_is_bound_where_the_machine_tells_nothing(tmp_path: Path) -> None:
    machine = topology.machine(range(4), tmp_path)
    assert (machine.numa_nodes, machine.gpus) == ({}, ())
    assert on_cpus(machine, "auto", 2) == ["-", "-"]
    assert on_cpus(machine, "cores", 2) == ["0-1", "2-3"]
    write(tmp_path / "sys/devices/system/node/node0/cpulist", "what is this?")
    assert topology.machine(range(4), tmp_path).numa_nodes == {}


# --- a real process ---------------------------------------------------------------------------------------------------

BIND = """
import os, sys, threading
from ftslurm.worker import cpu_binding
wait = threading.Event()
threading.Thread(target=wait.wait, daemon=True).start()
print(cpu_binding.bind(sys.argv[1], 0, 0))
print(*({tuple(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task")}), sep="|")
"""


@pytest.mark.parametrize("allocated", ["", "1"], ids=["confined", "not confined"])
def test_all_threads_of_a_process_are_bound_unless_slurm_confines_no_job(allocated: str) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    env = {**os.environ, "SLURM_CPUS_ON_NODE": allocated}
    seat = str(Seat("cores", 0, len(cpus), 1))
    out = subprocess.run(
        [sys.executable, "-c", BIND, seat], env=env, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    if allocated:
        assert "the job has 1 of the" in out[0]
        assert out[1] == str(tuple(cpus))
    else:
        assert out[0].startswith("bound to CPUs ")
        assert out[1] == f"({cpus[0]},)"
    assert cpu_binding.Seat.of(seat) == Seat("cores", 0, len(cpus), 1)
