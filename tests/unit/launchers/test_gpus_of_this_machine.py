"""cluster=local: the GPUs of this machine, whoever made them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.guard.gpus import names
from ftslurm.launchers import local


@pytest.mark.parametrize(
    ("environ", "name", "count"),
    [
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, "ROCR_VISIBLE_DEVICES", 2),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "CUDA_VISIBLE_DEVICES", 1),
        ({}, "ROCR_VISIBLE_DEVICES", 2),
    ],
)
def test_the_gpus_of_another_maker_are_counted_and_named_by_its_variable(
    environ: dict[str, str], name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for number, minor in enumerate((0, 128, 129)):  # the first is the CPU
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "properties").write_text(f"simd_count 1\ndrm_render_minor {minor}\nunique_id 7\n")
        (tmp_path / "dev/dri").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"dev/dri/renderD{minor}").touch()
    monkeypatch.setattr(local, "names", lambda: names(tmp_path))
    found, gpus = local.visible_gpus(environ)
    assert (found, len(gpus)) == (name, count)
