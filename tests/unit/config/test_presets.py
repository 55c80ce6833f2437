"""Every preset composes, is valid, and differs from the defaults only as documented."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

from ftslurm.config.compose import compose, to_config
from ftslurm.config.schema import AUTO, Config, Fault, shipped
from ftslurm.errors import ConfigError

PRESETS = sorted(path for path in shipped("conf").glob("*/*.yaml"))
JOB = ("job.script=" + __file__, "job.total_steps=100")  # faults=kill_one needs to know how long the run is


@cache  # no test changes it
def composed(*words: str) -> Config:
    return to_config(compose(words))


# Together, because Hydra takes a fifth of a second; these jobs set something in other sections, so each is alone.
ALONE = ("diloco", "hsdp", "localsgd")
TOGETHER = [
    "job=ddp cluster=array faults=kill_one lighthouse=ftslurm restart=never standby=none",
    "job=torchtitan cluster=auto faults=none lighthouse=torchft restart=on_failure standby=one",
    "job=script cluster=local faults=kill_one standby=auto",
    "job=parameter_server cluster=slurm lighthouse=none standby=each",
    *(f"job={kind}" for kind in ALONE),
]


@pytest.mark.parametrize("words", TOGETHER)
def test_every_preset_composes_and_sets_what_it_holds(words: str) -> None:
    config = composed(*words.split(), *(JOB if "job=script" in words else ()))
    for section, _, name in (word.partition("=") for word in words.split()):
        text = (shipped("conf") / section / f"{name}.yaml").read_text()
        held = yaml.safe_load(text)
        held.pop("defaults", None)
        assert held
        for key, value in flat(held if text.startswith("# @package _global_") else {section: held}):
            is_plain = isinstance(value, (int, float, str)) and "${" not in str(value)
            if is_plain and key not in ("job.script",):
                assert attrgetter(key)(config) == value


def test_no_preset_is_left_out_of_that() -> None:
    assert {f"{path.parent.name}={path.stem}" for path in PRESETS} == set(" ".join(TOGETHER).split())


def flat(held: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((f"{section}.{key}", value) for section, keys in held.items() for key, value in keys.items())


def test_a_preset_says_in_its_first_line_what_it_is_for() -> None:
    texts = [path.read_text().removeprefix("# @package _global_\n") for path in PRESETS]
    assert [text for text in texts if not text.startswith("# ")] == []


def changed(config: Config, section: str) -> dict[str, Any]:
    default = vars(getattr(Config(), section))
    return {key: value for key, value in vars(getattr(config, section)).items() if value != default[key]}


def test_without_a_word_no_drill_and_no_standby_and_a_limit_for_hangs_that_is_learnt() -> None:
    config = composed(*JOB)
    assert [changed(config, section) for section in ("health", "standby", "faults", "restart")] == [{}] * 4
    assert config.health.hang_after_s == AUTO


def test_the_presets_for_what_fails_switch_it_on() -> None:
    config = composed(*JOB, "standby=one", "faults=kill_one")
    assert changed(config, "standby") == {"count": 1}
    assert changed(config, "faults") == {"plan": [Fault(group=1, at=0.5)]}
    (fault,) = composed(*JOB, "faults=kill_one").faults.plan
    assert (fault.kind, fault.group, fault.at, fault.rank) == ("kill", 1, 0.5, 0)


@pytest.mark.parametrize("kind", ["localsgd", "diloco"])
def test_groups_that_meet_rarely_are_given_the_time_they_need_between_two_syncs(kind: str) -> None:
    config = composed(f"job={kind}")
    assert changed(config, "health") == {"compare_every": 10}
    assert config.health.hang_after_s == AUTO  # learnt from the time between two syncs
    assert (config.quorum_timeout_s, config.join_timeout_s, config.late_after_s) == (3600, 7200, 600)
    assert str(config.job.total_steps) == config.job.args["steps"]


@pytest.mark.parametrize("kind", ALONE)
def test_what_a_job_preset_sets_elsewhere_is_only_a_default(kind: str) -> None:
    path = next(path for path in PRESETS if path.parent.name == "job" and path.stem == kind)
    elsewhere = [key for key, _ in flat(yaml.safe_load(path.read_text())) if not key.startswith(("job.", "run."))]
    assert elsewhere
    given = {key: "gloo" if key == "torchft.process_group" else 7 for key in elsewhere}
    config = composed(f"job={kind}", *(f"{key}={value}" for key, value in given.items()))
    assert {key: attrgetter(key)(config) for key in elsewhere} == given
    others = ("lighthouse=torchft", "restart=on_failure", "standby=one", "faults=kill_one")
    held = dict(flat(yaml.safe_load(path.read_text())))
    config = composed(f"job={kind}", *others)  # none of them undoes what the job needs
    assert [attrgetter(key)(config) for key in elsewhere] == [held[key] for key in elsewhere]


def test_torchtitan_saves_to_no_object_store() -> None:
    with pytest.raises(ConfigError, match="torchtitan saves in a format of its own, to folders"):
        composed("job=torchtitan", "checkpoint.dir=s3://bucket/run")


def test_presets_that_take_in_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job/a.yaml").write_text("defaults: [b]\n")
    (tmp_path / "job/b.yaml").write_text("defaults: [a]\n")
    with pytest.raises(ConfigError, match=r"^a preset has itself in its defaults.*given: job=a"):
        compose(["job=a"], config_dir=str(tmp_path))
