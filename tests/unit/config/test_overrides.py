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
    return compose.compose(["cluster=local", *words])


def refusal(words: list[str]) -> str:
    """Return why a command line is refused; -m stands before the words of a sweep."""
    sweep = words[0] == "-m"
    with pytest.raises(ConfigError) as refused:
        (compose.sweep if sweep else compose.compose)(words[sweep:])
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
                "job.args": {"a": "1", "b": {"c": "2"}},
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
        (["cluster.setup=a"], "cluster.setup=a: must be a list, in square brackets"),
        (["job.env=[a]"], "job.env=[a]: must be a mapping, as in job.env.NAME=VALUE"),
        (["standby.count=true"], "standby.count=true: must be a whole number, auto or each"),
        (["faults.plan=[{at: 5, rank: []}]"], "faults.plan[0].rank=[]: must be a whole number"),
        (["groups=[1]"], "groups=[1]: that is a section of settings: groups.count, "),
        (["job.env=3"], "job.env=3: must be a mapping, as in job.env.NAME=VALUE"),
        (["groups.roles.a=x"], "groups.roles.a=x: must be a whole number"),
        (["groups.count.x=1"], "there is no setting groups.count.x; did you mean groups.count?"),
        (["~groups.cout"], "there is no setting groups.cout; did you mean groups.count?"),
        (["faults.plan.x=1"], "faults.plan.x=1: faults.plan is a list; it has "),
        (
            ["faults.plan=[{at: 5, grup: 1}]"],
            "there is no setting faults.plan[0].grup; faults.plan may have kind, group",
        ),
        (["faults.plan=[5]"], "faults.plan[0]=5: must be a mapping, as in 'faults.plan=[{kind: kill, group: 1, "),
        (["=3"], "'=3' is no setting: write key=value, "),
        (["-m", "job=ddp,nope"], "job=nope: there is no such preset; there are: ddp, "),
        (["job=../job/ddp/x"], "job=../job/ddp/x: there is no such preset"),
        (["job.args=[1]", "job.args={a: 1}"], "job.args is a list in this job"),
        (
            ["run.name=${nope}"],
            "run.name: Interpolation key 'nope' not found; ${...} is the value of another setting: ",
        ),
        (["run.name=a-${b"], "run.name: "),
        (["groups.count=2,3"], "groups.count=2,3 has several values: add --multirun (-m) for one run with each"),
        (["job.args=[a(,b]"], "job.args: brackets do not match, or nothing is between two commas: [a(,b];"),
        (["job.args=[a,,b]"], "job.args: brackets do not match, or nothing is between two commas: a,,b; put quotes"),
        (["-m", "job.args.x=a(,b"], "job.args.x: brackets do not match"),
        (["internal.sweep=x"], "there is no setting internal.sweep"),
    ],
)
def test_what_the_schema_does_not_have_is_refused_by_its_key(words: list[str], says: str) -> None:
    said = refusal(words)
    assert said.startswith(says)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["job.args=[a]", "job.args.lr=1"], "job.args.lr=1: job.args is a list; it has job.args.0=a"),
        (["job.args.x=1", "job.args=[a]", "job=script"], "job.args is a mapping in this job"),
        (["job.args=[a]", "job.args.lr.x=1"], "job.args.lr.x=1: job.args is a list; it has job.args.0=a"),
        (
            ["job.args.b=[1,2]", "follow=true", "job.args.b.c=1"],
            "job.args.b.c=1: job.args.b is a list; it has job.args.b.0=1, job.args.b.1=2",
        ),
        (["job.args={a: [1]}", "job.args.a.x=1"], "job.args.a.x=1: job.args.a is a list; it has job.args.a.0=1"),
        (["-m", "job.args=[a],[b]", "job.args.lr=1"], "job.args.lr=1: job.args is a list; it has job.args.0=a"),
    ],
)
def test_a_name_in_a_list_is_refused_with_what_the_list_has(words: list[str], says: str) -> None:
    assert refusal(words).startswith(says)


def test_a_name_in_the_list_of_the_run_that_is_resumed_is_refused_as_such() -> None:
    before = composed("job.script=train.py", "job.args=[a]")
    with pytest.raises(ConfigError, match=r"^job\.args\.lr=1: job\.args is a list; it has job\.args\.0=a"):
        compose.compose(["job.args.lr=1"], before)


@pytest.mark.parametrize("key", ["job.secrets", "run.trust", "cluster.setup", "cluster.srun", "standby.imports"])
@pytest.mark.parametrize("inner", [["s3cr3t"], {"A": "s3cr3t"}])
def test_a_list_of_words_has_no_other_list_in_it(key: str, inner: Any, tmp_path: Path) -> None:
    section, name = key.split(".")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({section: {name: [inner]}}))
    with pytest.raises(ConfigError, match=rf"{key}\[0\]: must be text, and not a (list|mapping)") as refused:
        compose.load(path)
    assert "s3cr3t" not in str(refused.value)


def test_a_config_yaml_with_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("job: {scrpt: train.py}\n")
    with pytest.raises(ConfigError, match=r"config\.yaml: .* there is no setting job\.scrpt; did you mean job\.script"):
        compose.load(path)


def test_a_word_of_a_list_is_changed_by_its_place() -> None:
    before = composed("job.script=train.py", "job.args=[--lr,0.1,--amp]")
    assert compose.compose(["job.args.1=0.2"], before).job.args == ["--lr", "0.2", "--amp"]
    assert compose.compose(["~job.args.2"], before).job.args == ["--lr", "0.1"]
    runs = compose.sweep(["job.script=train.py", "job.args=[--lr,0.1,--amp]", "job.args.1=0.2,0.3"])
    assert [run.job.args[1] for run in runs] == ["0.2", "0.3"]


@pytest.mark.parametrize("note", ["internal: {sweep: hello}", "internal: null"])
def test_a_preset_cannot_set_what_the_program_notes(note: str, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job/mine.yaml").write_text(f"# @package _global_\n{note}\n")
    with pytest.raises(ConfigError, match="there is no setting internal"):
        compose.compose(["job=mine"], config_dir=str(tmp_path))
    assert "internal" not in compose.dump(composed())


@pytest.mark.parametrize("setting", ["checkpoint.dir", "run.dir"])
def test_runs_of_a_sweep_share_no_folder(setting: str, tmp_path: Path) -> None:
    sweep = ["job.args.x=1,2", f"run.root={tmp_path}"]
    for words in ([*sweep, f"{setting}={tmp_path}/a"], [sweep[1], f"{setting}={tmp_path}/a,{tmp_path}/b/../a"]):
        assert f"{setting}={tmp_path}" in refusal(["-m", *words])
        assert "runs of this sweep would share it; give each a folder of its own" in refusal(["-m", *words])
    assert len(compose.sweep([*sweep, f"{setting}={tmp_path}/${{run.name}}"])) == 2


def test_runs_of_a_sweep_have_names_of_their_own() -> None:
    long = "x" * 100
    for values in (f"{long}1,{long}2,{long}3", "a b,a/b,a_b", '"","",a'):
        names = [run.run.name for run in compose.sweep([f"job.args.note={values}"])]
        assert len({*names}) == 3
        assert all(len(name) <= 64 for name in names)
