"""The settings that depend on the capabilities of the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import Programs

from ftslurm.config.schema import Config, Range
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


FORMS = {  # sbatch(1): each notation of a time limit, and how long 7 in its places is
    "{0}": (60,),
    "{0}:{1}": (60, 1),
    "{0}:{1}:{2}": (3600, 60, 1),
    "{0}-{1}": (86400, 3600),
    "{0}-{1}:{2}": (86400, 3600, 60),
    "{0}-{1}:{2}:{3}": (86400, 3600, 60, 1),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("numbers", ["1 0 0 0", "2 0 0 0", "02 00 00 00", "3 0 0 0", "1 59 9 9", "0 2 1 0", "0 0 0 0"])
@pytest.mark.parametrize("place", ["cluster.time", "cluster.sbatch.time", "SBATCH_TIMELIMIT", "cluster.ranges"])
def test_a_time_limit_is_longer_than_the_warning_before_it(
    form: str, numbers: str, place: str, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    config.cluster.kind, text = "array", form.format(*numbers.split())
    match place:
        case "SBATCH_TIMELIMIT":
            monkeypatch.setenv(place, text)
        case "cluster.time":
            config.cluster.time = text
        case "cluster.sbatch.time":
            config.cluster.sbatch["time"] = text
        case _:
            config.cluster.ranges = [Range("1", time=text)]
    seconds = sum(int(number) * unit for number, unit in zip(numbers.split(), FORMS[form], strict=False))
    if 0 < seconds <= config.cluster.signal_s and form.count("-") == 0:
        with pytest.raises(ConfigError, match=rf"cluster\.time={text} is not longer than cluster\.signal_s=120"):
            resolve(config, preview=True)
        config.cluster.signal_s = seconds - 1
    resolve(config, preview=True)


@pytest.mark.parametrize("text", ["UNLIMITED", "infinite", "-1", "soon", "1-", ":1", ""])
def test_a_limit_that_is_none_or_unknown_is_left_to_sbatch(
    text: str, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    config.cluster.kind, config.cluster.time = "slurm", text
    resolve(config, preview=True)


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
