"""Keys, types and presets are checked by the schema."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError


def composed(*words: str) -> Config:
    (config,) = compose.compose(["cluster=local", *words])
    return config


def refusal(words: list[str]) -> str:
    """Return why a command line is refused; -m stands before the words of a sweep."""
    sweep = words[0] == "-m"
    with pytest.raises(ConfigError) as refused:
        compose.compose(words[sweep:], multirun=sweep)
    return str(refused.value)


@pytest.mark.parametrize(
    ("words", "values"),  # words that do not touch each other are composed together: that takes a fifth of a second
    [
        (
            [
                *('groups.count="5"', "groups.max=null", "groups.roles.a=1", "groups.roles.b=1"),
                *("cluster.requeue=False", "cluster.sbatch={mail-type: END}"),
                *("health.lost_after_s=3", "health.hang_after_s=3"),
                *("run.name=3", "job.args={a: 1}", "job.args.b.c=2", "job.env.A=b", "standby.imports=[a,b]"),
            ],
            {
                "groups.count": 5,
                "groups.max": None,
                "groups.roles": {"a": 1, "b": 1},
                "cluster.requeue": False,
                "cluster.sbatch": {"mail-type": "END"},
                "health.lost_after_s": 3.0,
                "health.hang_after_s": 3.0,
                "run.name": "3",
                "job.args": {"a": 1, "b": {"c": 2}},
                "job.env": {"A": "b"},
                "standby.imports": ["a", "b"],
            },
        ),
        (
            ["+groups.count=3", "health.hang_after_s=auto", "job.args.z='\\${HOME}'"],  # escaped: no reference
            {"groups.count": 3, "health.hang_after_s": "auto", "job.args": {"z": "${HOME}"}},
        ),
        (["groups.count=${groups.min}", "job={script: a.py}"], {"groups.count": 1, "job.script": "a.py"}),
        (["groups.count=3", "~groups.count", "job=ddp.yaml"], {"groups.count": 2, "run.name": "ddp"}),
        (["groups={count: 3}", "job=[ddp]", "~faults"], {"groups.count": 3, "run.name": "ddp", "faults.plan": []}),
    ],
)
def test_an_override_has_the_type_that_the_schema_says(words: list[str], values: dict[str, Any]) -> None:
    config = composed(*words)
    got = {key: attrgetter(key)(config) for key in values}
    assert [(one, type(one)) for one in got.values()] == [(one, type(one)) for one in values.values()]


def test_an_element_of_a_list_may_be_changed() -> None:
    (fault,) = composed("job=ddp", "faults=kill_one", "faults.plan.0.at=5").faults.plan
    assert (fault.kind, fault.group, fault.at) == ("kill", 1, 5.0)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["groups.count=null"], "groups.count=null: must be a whole number"),
        (["groups.count=true"], "groups.count=true: must be a whole number"),
        (["groups.count=1.5"], "groups.count=1.5: must be a whole number"),
        (["-m", "groups.count=1,two"], "groups.count=two: must be a whole number"),
        (["cluster.requeue=maybe"], "cluster.requeue=maybe: must be true or false"),
        (["run.name=[a]"], "run.name: must be text, and not a list"),
        (["cluster.interface={a: b}"], "cluster.interface: must be text or a list, in square brackets: "),
        (["standby.count=true"], "standby.count=true: must be a whole number, auto or each"),
        (["faults.plan=[{at: 5, rank: []}]"], "faults.plan[0].rank: must be a whole number, and not a list"),
        (["groups=[1]"], "groups is a mapping"),
        (["job.env=3"], "job.env=3: must be a mapping, as in job.env.NAME=VALUE"),
        (["groups.roles.a=x"], "groups.roles.a=x: must be a whole number"),
        (["groups.count.x=1"], "groups.count: must be a whole number, and not a mapping"),
        (["~groups.cout"], "there is no setting groups.cout; did you mean groups.count?"),
        (["faults.plan.x=1"], "faults.plan.x=1 contradicts the job's own list: a list has no x"),
        (
            ["faults.plan=[{at: 5, grup: 1}]"],
            "there is no setting faults.plan[0].grup; faults.plan may have kind, group",
        ),
        (["faults.plan=[5]"], "faults.plan[0]=5: must be a mapping, as in 'faults.plan=[{kind: kill, group: 1, "),
        (["=3"], "'=3' is not in Hydra's notation"),
        (["-m", "job=ddp,nope"], "job=nope: there is no such preset; there are: ddp, "),
        (["job=../job/ddp/x"], "job=../job/ddp/x: there is no such preset"),
        (["job.args=[1]", "job.args={a: 1}"], "job.args is a list in this job"),
        (["run.name=${nope}"], "run.name: Interpolation key 'nope' not found"),
    ],
)
def test_what_the_schema_does_not_have_is_refused_by_its_key(words: list[str], says: str) -> None:
    said = refusal(words)
    assert said.startswith(says)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["job.args=[a]", "job.args.lr=1"], "job.args.lr=1 contradicts job.args=[a]: a list has no lr"),
        (["job.args.x=1", "job.args=[a]", "job=script"], "job.args is a mapping in this job"),
        (["job.args=[a]", "job.args.lr.x=1"], "job.args.lr.x=1 contradicts job.args=[a]: a list has no lr"),
        (
            ["job.args.b=[1,2]", "follow=true", "job.args.b.c=1"],
            "job.args.b.c=1 contradicts job.args.b=[1,2]: a list has",
        ),
        (["job.args={a: [1]}", "job.args.a.x=1"], "job.args.a.x=1 contradicts job.args={a: [1]}: a list has no x"),
        (["-m", "job.args=[a],[b]", "job.args.lr=1"], "job.args.lr=1 contradicts job.args=[a],[b]: a list has no lr"),
    ],
)
def test_overrides_that_contradict_each_other_are_both_named(words: list[str], says: str) -> None:
    assert refusal(words).startswith(says)


def test_a_name_in_the_list_of_the_run_that_is_resumed_is_refused_as_such() -> None:
    before = composed("job.script=train.py", "job.args=[a]")
    with pytest.raises(ConfigError, match=r"^job\.args\.lr=1 contradicts the job's own list: a list has no lr"):
        compose.compose(["job.args.lr=1"], before)


@pytest.mark.parametrize("key", ["job.secrets", "run.trust", "cluster.setup", "cluster.srun", "standby.imports"])
@pytest.mark.parametrize("inner", [["s3cr3t"], {"A": "s3cr3t"}])
def test_a_list_of_words_has_no_other_list_in_it(key: str, inner: Any, tmp_path: Path) -> None:
    section, name = key.split(".")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({section: {name: [inner]}}))
    for read in (lambda: compose.load(path), lambda: compose.compose([f"{key}=[{inner}]".replace("'", "")])):
        with pytest.raises(ConfigError, match=rf"{key}\[0\]: must be text, and not a (list|mapping)") as refused:
            read()
        assert "s3cr3t" not in str(refused.value)


def test_a_config_yaml_with_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("job: {scrpt: train.py}\n")
    with pytest.raises(ConfigError, match=r"config\.yaml: .* there is no setting job\.scrpt; did you mean job\.script"):
        compose.load(path)


def test_presets_of_an_own_search_path_are_left_to_hydra(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job/mine.yaml").write_text("script: mine.py\n")
    assert composed(f"hydra.searchpath=[file://{tmp_path}]", "job=mine").job.script == "mine.py"
