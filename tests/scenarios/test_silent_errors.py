"""One flipped bit in the weights of a group is found, and the group heals elsewhere; what is well is never accused."""

from __future__ import annotations

import re

import pytest
from harness import SCRIPTS, Backend, Run, quoted

from ftslurm.config.schema import shipped

pytestmark = pytest.mark.nightly
SMALL = {"dim": 32, "layers": 1, "context": 32, "batch-size": 4, "max-mb": 0.3}
STEPS, EVERY, DRILL, HOLD = 24, 5, 7, 16


def train(backend: Backend, kind: str, *words: str, hold: int | None = None, **args: object) -> Run:
    """Start `job=KIND`. hold: from this step on the others wait for the group that comes back (scripts/example.py)."""
    number = len(backend.runs)
    line = ["run", f"job={kind}", f"cluster={backend.name}", f"run.root={quoted(backend.tmp_path / f'runs{number}')}"]
    line += ["follow=true", "groups.gpus=0", "stop.grace_s=2", "standby=none", *words]
    line += [f"job.args.{name}={quoted(value)}" for name, value in (SMALL | args).items()]
    if hold is not None:
        example = shipped("examples") / f"train_{kind}.py"
        line += [f"job.script={quoted(SCRIPTS / 'example.py')}", f"job.env.EXAMPLE={quoted(example)}"]
        line += ["job.env.KILL='none 0 0 allreduce'", f'job.env.HOLD="{hold}"', 'job.env.PACE="0.3"']
    return backend.launch(*line)


@pytest.mark.parametrize("backend", ["local", pytest.param("slurm", marks=pytest.mark.slurm)], indirect=True)
def test_a_flipped_bit_is_found_and_the_run_ends_with_the_weights_of_one_without(backend: Backend) -> None:
    """Group 2 is a spare, so the other two learn the same whether it is there or not."""
    shape = ["groups.count=3", "groups.min=2", f"health.compare_every={EVERY}"]
    shape += ["cluster.spare_nodes=1"] if backend.name == "slurm" else []
    drill = f"faults.plan=[{{kind: corrupt, group: 2, at: {DRILL}}}]"
    run = train(backend, "ddp", *shape, drill, hold=HOLD, steps=STEPS, active=2).finish()
    (injected,) = run.named("fault_injected")
    assert (injected["kind"], injected["group"]) == ("corrupt", 2)
    (found,) = run.named("replicas_differ")
    assert (found["groups"], found["equal"]) == ([2], 2)
    assert int(str(found["step"])) - int(str(injected["step"])) <= EVERY + 2  # what is told of steps is a second old
    (ended,) = run.named("step_exited", group=2, attempt=0)
    assert (ended["cause"], ended["rank"], ended["node"]) == ("diverged", 0, run.node_of(2, 0))
    flipped = re.search(r"drill: after step (\d+) one bit of \S+ is flipped", run.rank_log(2))
    assert flipped
    assert int(flipped[1]) == found["step"]
    if backend.name == "slurm":
        assert run.node_of(2, 1) != run.node_of(2, 0)
        assert [e["node"] for e in run.named("node_excluded")] == [run.node_of(2, 0)]
    assert {e["group"] for e in run.named("step_launched", attempt=1)} == {2}  # nobody else was restarted
    weights = run.weights()
    assert set(weights) == {(0, 0), (1, 0), (2, 0)}
    well = train(backend, "ddp", *shape, steps=STEPS, active=2).finish()
    assert well.named("replicas_differ") == []
    assert set(weights.values()) == set(well.weights().values())
    assert len(set(weights.values())) == 1


@pytest.mark.parametrize("backend", ["local"], indirect=True)
def test_the_rank_of_a_sharded_group_that_is_wrong_is_named_and_two_groups_are_both_told(backend: Backend) -> None:
    drill = f"faults.plan=[{{kind: corrupt, group: 1, at: {DRILL}, rank: 1}}]"
    run = train(
        backend, "hsdp", "groups.count=2", f"health.compare_every={EVERY}", drill, hold=10**6, steps=STEPS
    ).finish()
    (found,) = run.named("replicas_differ")
    assert (found["groups"], found["rank"], found["equal"]) == ([0, 1], 1, 0)
    assert {e["cause"] for e in run.named("step_exited") if e["group"] is not None} == {"ok"}
    assert "no majority" in run.text


@pytest.mark.parametrize("kind", ["localsgd", "diloco"])
@pytest.mark.parametrize("backend", ["local"], indirect=True)
def test_groups_that_train_apart_are_left_out_whatever_the_setting_says(backend: Backend, kind: str) -> None:
    args = {"steps": 6, "sync-every": 3}
    run = train(backend, kind, "groups.count=2", "health.compare_every=1", **args).finish(warns=True)
    assert run.named("replicas_differ") == []
    assert ["DiLoCo" in str(e["text"]) for e in run.named("warning")] == [True]
