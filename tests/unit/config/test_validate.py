"""Every check of the configuration: an invalid setting is refused by name."""

from __future__ import annotations

import dataclasses
import os
import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from ftslurm.config.schema import Config, Fault, Range
from ftslurm.config.validate import check
from ftslurm.errors import ConfigError


def config(**settings: Any) -> Config:
    """Return a valid configuration with changes: config(groups__count=3)."""
    made = Config()
    made.run.name, made.job.script = "ddp", __file__
    for key, value in settings.items():
        section, name = key.split("__")
        assert hasattr(getattr(made, section), name), key
        setattr(getattr(made, section), name, value)
    return made


SERVED = {"groups__roles": {"ps": 1, "work": 1}, "groups__serve": ["ps"], "lighthouse__kind": "none"}


def refusal(**settings: Any) -> str:
    with pytest.raises(ConfigError) as error:
        check(config(**settings))
    assert "\n" not in str(error.value)  # one paragraph for a person
    return str(error.value)


def test_the_defaults_are_sound() -> None:
    check(config())


@pytest.mark.parametrize(
    ("key", "value", "valid"),
    [
        ("groups.bind", "numa", "auto or none"),
        ("job.snapshot", "hash", "auto, copy or none"),
        ("cluster.kind", "pbs", "auto, local, slurm or array"),
        ("cluster.controller", "there", "job or here"),
        ("lighthouse.kind", "rust", "ftslurm, torchft or none"),
        ("restart.on_state_loss", "ignore", "fail or checkpoint"),
    ],
)
def test_a_choice_that_does_not_exist_is_answered_with_those_that_do(key: str, value: str, valid: str) -> None:
    assert refusal(**{key.replace(".", "__"): value}) == f"{key}={value}: must be {valid}"


@pytest.mark.parametrize(
    ("key", "least"),
    [
        ("groups.count", 1),
        ("groups.min", 1),
        ("groups.nodes", 1),
        ("groups.workers", 1),
        ("groups.per_node", 1),
        ("groups.gpus", 0),
        ("groups.cpus_per_worker", 1),
        ("cluster.spare_nodes", 0),
        ("cluster.signal_s", 1),
        ("job.longest_step_s", 1),
        ("torchft.timeout_s", 1),
        ("restart.max_per_group", 0),
        ("restart.backoff_s", 0),
        ("health.lost_after_s", 1),
        ("health.start_timeout_s", 1),
        ("job.total_steps", 1),
        ("checkpoint.every", 0),
        ("stop.grace_s", 0),
    ],
)
def test_a_number_may_be_as_small_as_makes_sense_and_no_smaller(key: str, least: float) -> None:
    name = key.replace(".", "__")
    check(config(**{name: least}))
    for value in (least - 1, float("nan")):
        assert key in refusal(**{name: value})


def test_every_number_of_the_configuration_has_a_smallest_value() -> None:
    for section in dataclasses.fields(Config):
        value = getattr(Config(), section.name)
        for field in dataclasses.fields(value) if dataclasses.is_dataclass(value) else ():
            if str(field.type).split(" ")[0] in ("int", "float"):
                assert f"{section.name}.{field.name}=-1" in refusal(**{f"{section.name}__{field.name}": -1})


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        # groups
        ({"groups__min": 3}, ["groups.min=3", "groups.count=2"]),
        ({"groups__mem": "64GB"}, ["groups.mem='64GB'", "64G"]),
        ({"groups__mem": "1.5G"}, ["groups.mem='1.5G'"]),
        ({"groups__mem": "-5G"}, ["groups.mem='-5G'"]),
        ({"groups__mem": ""}, ["groups.mem=''"]),
        # jobs
        ({"cluster__sbatch": {"array": "0-3"}}, ["cluster.sbatch.array", "leave it out"]),
        ({"cluster__sbatch": {"test_only": True}}, ["cluster.sbatch.test-only"]),
        ({"cluster__kind": "array", "cluster__ranges": [Range("1", sbatch={"wait": True})]}, ["cluster.sbatch.wait"]),
        # job
        ({"run__name": "my job"}, ["run.name='my job'"]),
        ({"run__name": ""}, ["run.name=''"]),
        ({"run__name": "../up"}, ["run.name='../up'"]),
        ({"run__name": "-x"}, ["run.name='-x'"]),
        ({"run__name": "x" * 65}, ["run.name"]),
        ({"run__name": "x\n"}, ["run.name"]),
        ({"job__module": "pkg.train"}, ["job.script", "job.module", "both are set"]),
        ({"job__script": None}, ["job.script", "job.module", "neither is set"]),
        ({"job__script": "no/such.py"}, ["job.script=no/such.py", "no such file", os.getcwd()]),
        ({"job__script": os.path.dirname(__file__)}, ["job.script", "is a folder"]),
        ({"job__args": "--lr 0.1"}, ["job.args=--lr 0.1", "list"]),
        ({"job__args": 7}, ["job.args=7"]),
        ({"job__python": ""}, ["job.python"]),
        ({"job__python": []}, ["job.python"]),
        ({"job__python": ["/opt/conda/bin/conda", "run", "-n", "env", "python"]}, ["--no-capture-output", "conda run"]),
        ({"job__python": {"a": 1}}, ["job.python: must be text or a list"]),
        ({"job__env": {"NO=PE": "1"}}, ["job.env.NO=PE"]),
        ({"job__env": {"1ST": "1"}}, ["job.env.1ST"]),
        ({"job__env": {"": "1"}}, ["job.env."]),
        # cluster
        # a group reports at most once a heartbeat
        ({"health__hang_after_s": 1.9}, ["health.hang_after_s=1.9", "at least 2"]),
        ({"health__hang_after_s": False}, ["health.hang_after_s=false"]),
        # roles
        (
            {"groups__roles": {"a": 1, "b": 2}, "lighthouse__kind": "none"},
            ["groups.roles (1 a + 2 b)", "groups.count=2"],
        ),
        ({"groups__roles": {"a": 1, "b": 1}}, ["groups.roles", "lighthouse.kind=ftslurm", "lighthouse=none"]),
        ({"groups__roles": {"a": 0, "b": 2}, "lighthouse__kind": "none"}, ["groups.roles.a=0"]),
        ({"groups__roles": {"a b": 2}, "lighthouse__kind": "none"}, ["groups.roles.a b=2"]),
        ({"groups__serve": ["ps"]}, ["groups.serve", "'ps'", "groups.roles"]),
        ({**SERVED, "groups__serve": ["ps", "x"]}, ["groups.serve", "'x'", "ps, work"]),
        ({**SERVED, "groups__serve": ["ps", "work"]}, ["groups.serve", "every role"]),
        ({**SERVED, "groups__min": 2}, ["groups.min=2", "groups.serve"]),
        # comparisons
        ({"lighthouse__kind": "none", "health__compare_every": 1}, ["health.compare_every=1", "lighthouse.kind=none"]),
        (
            {"faults__plan": [Fault(kind="corrupt", group=0, at=5)], "health__compare_every": 0},
            ["faults", "corrupt", "health.compare_every=0"],
        ),
        ({"health__on_divergence": "maybe"}, ["health.on_divergence=maybe"]),
        ({"health__buffers": "mean"}, ["health.buffers=mean"]),
        (
            {"lighthouse__kind": "none", "health__buffers": "average"},
            ["health.buffers=average", "lighthouse.kind=none"],
        ),
        ({"health__compare_every": -1}, ["health.compare_every=-1"]),
        # drills
        (
            {**SERVED, "faults__plan": [Fault(kind="lighthouse", at=5)]},
            ["faults", "lighthouse.kind=none"],
        ),
        ({"lighthouse__kind": "none", "faults__plan": [Fault(group=0, at=5)]}, ["faults.plan", "`ftslurm inject`"]),
        ({"faults__plan": [Fault(group=2, at=5)]}, ["faults.plan", "groups.count=2"]),
        ({"faults__plan": [Fault(group=-1, at=5)]}, ["faults.plan"]),
        ({"faults__plan": [Fault(group=0, at=5, rank=1)]}, ["faults.plan", "rank"]),
        ({"faults__plan": [Fault(group=0, at=0)]}, ["faults.plan", "job.total_steps"]),
        ({"faults__plan": [Fault(group=0, at=0.5)]}, ["faults.plan", "job.total_steps"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_makes_no_sense_is_refused_by_name(settings: dict[str, Any], names: list[str]) -> None:
    message = refusal(**settings)
    assert [name for name in names if name not in message] == []


@pytest.mark.parametrize(
    "settings",
    [
        {"groups__min": 2},
        {"lighthouse__kind": "none"},
        SERVED,
        {**SERVED, "faults__plan": [Fault(group=1, at=5)]},
        {"groups__roles": {"a": 1, "b": 1}, "lighthouse__kind": "none"},
        {"groups__per_node": 2},
        {"groups__mem": "64G"},
        {"job__script": None, "job__module": "pkg.train"},
        {"job__args": ["--lr", 0.1]},
        {"job__args": {"lr": 0.1}},
        {"job__python": ["apptainer", "exec", "img.sif", "python"]},
        {"job__env": {"_A1": "", "wandb_mode": "offline"}},
        {"run__name": "x" * 64},
        {"run__name": "1.2_three-four"},
        {"cluster__setup": ["module load cuda", "export X='a b'"]},
        {"faults__plan": [Fault(group=1, at=1)]},
        {"faults__plan": [Fault(group=1, at=0.5)], "job__total_steps": 100},
        {"faults__plan": [Fault(group=1, at=5, rank=3)], "groups__nodes": 2, "groups__workers": 2},
    ],
    ids=lambda value: "-".join(value),
)
def test_what_makes_sense_passes(settings: dict[str, Any]) -> None:
    check(config(**settings))


LAUNCHERS = ["torchrun", "accelerate", "deepspeed", "horovodrun"]
MODULES = ["torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"]
BEFORE = [
    [],
    ["apptainer", "exec", "--nv", "img.sif"],
    ["conda", "run", "--no-capture-output", "-n", "env"],
    ["numactl"],
]
AFTER = [[], ["launch"], ["--nproc-per-node", "8"]]


@pytest.mark.parametrize("before", BEFORE, ids=" ".join)
@pytest.mark.parametrize("after", AFTER, ids=" ".join)
@pytest.mark.parametrize("launcher", [*LAUNCHERS, *MODULES])
def test_what_starts_ranks_is_refused_as_an_interpreter(launcher: str, before: list[str], after: list[str]) -> None:
    called = ["python3", "-m", launcher] if launcher in MODULES else [launcher]
    for words in ([*before, *called, *after], [*before, *called[:-1], f"/opt/bin/{launcher}", *after]):
        for python in (words, " ".join(words)):
            said = refusal(job__python=python)
            assert said.startswith(f"job.python: {launcher} starts ranks, and ftslurm takes its place")
            assert {"job.script", "groups.workers", "groups.nodes"} <= {*re.findall(r"\w+\.\w+", said)}


@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize("option", ["-n", "--name", "-p"])
def test_a_name_like_that_of_a_launcher_is_none(name: str, option: str) -> None:
    check(config(job__python=["conda", "run", "--live-stream", option, name, "python"]))
    check(config(job__python=f"/envs/{name}/bin/python"))


def test_a_dotted_key_finds_its_value() -> None:
    assert attrgetter("groups.count")(config(groups__count=7)) == 7


def test_a_script_may_lie_in_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    check(config(job__script="~/train.py"))


@pytest.mark.parametrize("value", ["auto", None, "ib0", "eth0.100", ["ib0", "eth0"]])
def test_an_interface_is_auto_or_names(value: object) -> None:
    check(config(cluster__interface=value))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "must be auto"),
        ([], "must be auto"),
        ("ib0,eth0", "must be auto"),
        ("an-interface-of-16", "must be auto"),
        ({"ib0": 1}, "must be text or a list"),
        (["auto", "ib0"], "must be auto"),
    ],
)
def test_no_interface_can_have_another_name(value: object, words: str) -> None:
    assert words in refusal(cluster__interface=value)


def test_a_local_run_has_no_interface_to_choose() -> None:
    assert "a local run stays on loopback" in refusal(cluster__interface="ib0", cluster__kind="local")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"container_mounts": ["/data"]}, "cluster.container_mounts without cluster.container_image"),
        ({"container_image": "a.sqsh", "kind": "local"}, "cluster.container_image with cluster=local"),
        ({"container_image": ""}, "cluster.container_image='': must be one path or name"),
        ({"container_image": "a b"}, "cluster.container_image='a b': must be one path or name"),
        ({"container_image": "a", "container_mounts": ["data"]}, "'data' is not SOURCE or SOURCE:TARGET"),
        ({"container_image": "a", "container_mounts": ["/a:/b,/c:/d"]}, "no commas"),
        ({"container_image": "a", "container_mounts": ["/a b"]}, "no commas, no spaces"),
    ],
)
def test_a_container_that_cannot_be_is_refused(settings: dict[str, Any], words: str) -> None:
    assert words in refusal(**{f"cluster__{name}": value for name, value in settings.items()})


def test_images_and_mounts_as_pyxis_knows_them() -> None:
    for image in ("/images/a.sqsh", "nvcr.io#nvidia/pytorch:25.01-py3", "ann@registry#team/image"):
        mounts = ["/data", "/data:/data", "/data/set1:/d:ro+rprivate"]
        check(config(cluster__container_image=image, cluster__container_mounts=mounts))
