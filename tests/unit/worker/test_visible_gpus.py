"""The GPUs that a node has, whether or not Slurm knows of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.worker import session, topology


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
    assert topology.visible_gpus(nvidia) == {"CUDA_VISIBLE_DEVICES": ["0", "1"]}
    amd = node(tmp_path / "b", "kfd", amd=(0, 128, 129, 130))
    assert topology.visible_gpus(amd) == {"ROCR_VISIBLE_DEVICES": ["0", "1", "2"]}
    assert topology.visible_gpus(tmp_path / "c") == {"ROCR_VISIBLE_DEVICES": []}


@pytest.mark.parametrize(("who", "given"), [("slurm", {}), ("node", {"ZE_AFFINITY_MASK": "4,5"}), ("node", {})])
def test_they_are_taken_only_where_slurm_gives_none(
    who: str, given: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = topology.visible_gpus(node(tmp_path, *(f"nvidia{number}" for number in range(4))))
    monkeypatch.setattr(topology, "visible_gpus", lambda: there)
    monkeypatch.setenv("FTSLURM_GPUS", who)
    for name in session.GPU_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    if who == "slurm":
        with pytest.raises(RuntimeError, match="shows 0 GPUs"):
            session.choose_gpus("1:1")
        return
    session.choose_gpus("1:1")
    shown = {name: value for name in session.GPU_VARIABLES if (value := session.os.environ.get(name))}
    assert shown == ({"ZE_AFFINITY_MASK": "5"} if given else {"CUDA_VISIBLE_DEVICES": "1"})
