"""The GPUs that a node has, whether or not Slurm knows of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_gpus import machine, write

from ftslurm.guard import gpus
from ftslurm.slurm.commands import GPU_VARIABLES
from ftslurm.worker import session


def node(root: Path, *devices: str, amd: tuple[int, ...] = ()) -> Path:
    for device in (*devices, *(f"dri/renderD{minor}" for minor in amd if minor)):
        (root / "dev" / device).parent.mkdir(parents=True, exist_ok=True)
        (root / "dev" / device).touch()
    for number, minor in enumerate(amd):
        folder = root / f"sys/class/kfd/kfd/topology/nodes/{number}"
        folder.mkdir(parents=True)
        (folder / "properties").write_text(f"cpu_cores_count 0\ndrm_render_minor {minor}\n")
    return root


def test_the_device_files_of_either_maker_are_counted(tmp_path: Path) -> None:
    nvidia = node(tmp_path / "a", "nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1")
    assert gpus.names(nvidia) == {"CUDA_VISIBLE_DEVICES": ["0", "1"]}
    amd = node(tmp_path / "b", "kfd", amd=(0, 128, 129, 130))
    assert gpus.names(amd) == {"ROCR_VISIBLE_DEVICES": ["0", "1", "2"]}
    assert gpus.names(tmp_path / "c") == {"ROCR_VISIBLE_DEVICES": []}


@pytest.mark.parametrize(("who", "given"), [("slurm", {}), ("node", {"ZE_AFFINITY_MASK": "4,5"}), ("node", {})])
def test_they_are_taken_only_where_slurm_gives_none(
    who: str, given: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = gpus.names(node(tmp_path, *(f"nvidia{number}" for number in range(4))))
    monkeypatch.setattr(gpus, "names", lambda: there)
    monkeypatch.setenv("FTSLURM_GPUS", who)
    for name in GPU_VARIABLES:
        monkeypatch.setenv(name, "")  # noted, so that what choose_gpus sets is undone
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    if who == "slurm":
        with pytest.raises(RuntimeError, match="shows 0 GPUs"):
            session.choose_gpus("1:1")
        return
    session.choose_gpus("1:1")
    shown = {name: value for name in GPU_VARIABLES if (value := session.os.environ.get(name))}
    assert shown == ({"ZE_AFFINITY_MASK": "5"} if given else {"CUDA_VISIBLE_DEVICES": "1"})


def test_the_driver_names_all_gpus_and_the_devices_show_which_this_process_may_use(tmp_path: Path) -> None:
    machine(tmp_path, ("0-7", "8-15"))
    lost = tmp_path / "proc/driver/nvidia/gpus/0000:AF:00.0/information"
    write(lost, "Model: \t NVIDIA H200")  # a GPU that is lost cannot be asked
    (tmp_path / "dev/nvidia0").unlink()  # of another job
    found = gpus.known(tmp_path)
    assert [(gpu.address, gpu.device, gpu.usable) for gpu in found] == [
        ("0000:10:00", "/dev/nvidia1", True),
        ("0000:11:00", "/dev/nvidia0", False),
    ]
    assert gpus.visible({"CUDA_VISIBLE_DEVICES": "0,1"}, found) == [found[0], None]
    assert gpus.known(tmp_path / "none") == []


@pytest.mark.parametrize("address", ["00000000:3B:00.0", "0000:3b:00.0", "0000:3b:00"])
def test_an_address_on_the_bus_has_one_form(address: str) -> None:
    assert gpus.pci(address) == "0000:3b:00"
