"""The settings that depend on the capabilities of the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import Programs

from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError, EnvironmentProblem
from ftslurm.submission.capabilities import resolve


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    made = Config()
    made.job.script, made.run.name = "train.py", "train"
    made.cluster.kind = "local"
    return made


def test_where_nobody_could_be_asked_a_plan_is_still_shown(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    config.cluster.kind, config.standby.count = "slurm", 1
    assert "cannot check" in resolve(config, preview=True)[0]


@pytest.mark.parametrize("kind", ["nccl", "baby-nccl"])
def test_nccl_between_groups_without_gpus_is_refused(config: Config, kind: str) -> None:
    config.torchft.process_group, config.groups.gpus = kind, 0
    with pytest.raises(EnvironmentProblem, match=f"torchft.process_group={kind} needs GPUs"):
        resolve(config)


def test_a_path_that_cannot_be_mounted_is_refused(config: Config, tmp_path: Path, programs: Programs) -> None:
    programs.add("srun", body="echo '  --container-image=PATH'")
    config.cluster.kind, config.cluster.container_image, config.groups.gpus = "local", "/images/a.sqsh", 0
    config.run.root = str(tmp_path / "my runs")
    with pytest.raises(ConfigError, match="my runs has to be mounted into the container, and pyxis takes no spaces"):
        resolve(config)


@pytest.mark.parametrize(
    ("versions", "fits"),
    [
        ({"torch": "2.13.0+cpu", "torchft": "0.3.1"}, False),
        ({"torch": "2.14.1", "torchft": "0.2.0"}, False),
        ({"torch": "2.14.1", "torchft_nightly": "2026.9.30", "torchft": "0.2.0"}, False),
        ({"torch": "2.14.0+cu130", "torchft": "0.3.0"}, True),
        ({"torch": "3.0", "torchft_nightly": "2026.10.26", "torchft": "0.2.0"}, True),
    ],
)
def test_process_groups_of_torch_are_refused_where_it_has_none(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], fits: bool
) -> None:
    for name, version in ({"torchft_nightly": "2025.1.1"} | versions).items():  # found before the installed one
        (tmp_path / f"{name}-{version}.dist-info").mkdir()
        (tmp_path / f"{name}-{version}.dist-info/METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config.torchft.process_group, config.groups.gpus = "native", 0
    if fits:
        resolve(config)
        return
    with pytest.raises(EnvironmentProblem, match=rf"native needs torch 2\.14 .* torch {versions['torch'][:4]}"):
        resolve(config)
    config.job.python = "/another/python"  # nothing is known of it
    resolve(config)
