"""One flipped bit in the weights of a group is found, and the group heals elsewhere; what is well is never accused."""

from __future__ import annotations

import re

import pytest
from harness import SCRIPTS, Backend, Run, quoted

from ftslurm.checkpoint.store import Store
from ftslurm.config.schema import shipped

pytestmark = pytest.mark.nightly
SMALL = {"dim": 32, "layers": 1, "context": 32, "batch-size": 4, "max-mb": 0.3}
STEPS, EVERY, DRILL, HOLD = 24, 5, 7, 16
KILLS = 8


def train(backend: Backend, kind: str, *words: str, hold: int | None = None, pace: float = 0.3, **args: object) -> Run:
    """Start `job=KIND`.

    Args:
        hold: from this step on the others wait for the group that comes back (scripts/example.py).
        pace: with `hold`: seconds that each step takes longer.
    """
    number = len(backend.runs)
    line = ["run", f"job={kind}", f"cluster={backend.name}", f"run.root={quoted(backend.tmp_path / f'runs{number}')}"]
    line += ["follow=true", "groups.gpus=0", "stop.grace_s=2", "standby=none", *words]
    line += [f"job.args.{name}={quoted(value)}" for name, value in (SMALL | args).items()]
    if hold is not None:
        example = shipped("examples") / f"train_{kind}.py"
        line += [f"job.script={quoted(SCRIPTS / 'example.py')}", f"job.env.EXAMPLE={quoted(example)}"]
        line += ["job.env.KILL='none 0 0 allreduce'", f'job.env.HOLD="{hold}"', f'job.env.PACE="{pace}"']
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
def test_what_the_wrong_group_has_saved_is_not_restored(backend: Backend) -> None:
    """Group 0 is the one that saves."""
    drill = f"faults.plan=[{{kind: corrupt, group: 0, at: {DRILL}}}]"
    words = ["groups.count=3", f"health.compare_every={EVERY}", "checkpoint.every=1", "checkpoint.keep=0", drill]
    run = train(backend, "ddp", *words, hold=HOLD, steps=STEPS).finish()
    (found,) = run.named("replicas_differ")
    (distrusted,) = run.named("checkpoints_distrusted")
    good = int(str(distrusted["step"]))
    assert found["groups"] == [0]
    assert good == int(str(found["step"])) - EVERY
    damaged = {one.step: one.damage for one in Store(str(run.dir / "checkpoints")).survey() if one.damage}
    assert damaged
    assert min(damaged) == good + 1
    assert all("other weights" in str(why) for why in damaged.values())
    assert len(set(run.weights().values())) == 1
    assert len(run.weights()) == 3


@pytest.mark.parametrize("script", ["ddp", "spares", "asynchronous"])
@pytest.mark.parametrize("backend", ["local"], indirect=True)
def test_groups_that_are_well_are_never_accused_whoever_dies_meanwhile(backend: Backend, script: str) -> None:
    """Each step is compared, while a group at a time is killed and heals. A drill at the end shows that it was."""
    words = ["groups.count=3", "health.compare_every=1", "restart.max_per_group=1000", "restart.backoff_s=0"]
    if script == "asynchronous":  # a group that heals computes beside it
        run = backend.start(*words, 'job.env.TOY_DDP="1"', args={"open-end": True, "step-time": 0.02, "beside": True})
    else:
        active = {"active": 2} if script == "spares" else {}
        words += ["groups.min=2"] if active else []
        run = train(backend, "ddp", *words, hold=10**6, steps=10**6, pace=0.02, **active)
    for back in range(3, 3 + KILLS + 1):
        run.until(lambda back=back: len(run.named("group_joined")) >= back, f"{back} groups have joined")
        fault = "kill" if back < 3 + KILLS else "corrupt"
        assert run.named("replicas_differ") == []
        run.tell("inject", fault, "--group", str(back % 3), "--yes")
    (drill,) = run.named("fault_injected", kind="corrupt")
    found = run.wait_for("replicas_differ")
    assert (found["groups"], found["equal"]) == ([drill["group"]], 2)
    killed = [e for e in run.named("step_exited") if e["cause"] == "killed"]
    print(f"{script}: {found['step']} steps of 3 groups compared, {len(killed)} deaths, one bit found")
    assert len(killed) == KILLS
    run.tell("stop")
    run.process.wait(60)
    assert [e["outcome"] for e in run.named("run_finished")] == ["stopped"]
    assert len(run.named("replicas_differ")) == 1


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


@pytest.mark.parametrize("kind", ["localsgd", "diloco", "streaming"])
@pytest.mark.parametrize("backend", ["local"], indirect=True)
def test_groups_that_train_apart_are_compared_at_their_syncs(backend: Backend, kind: str) -> None:
    """Group 1 is killed and heals, which accuses nobody; later one bit of it flips, which is found."""
    args = {"steps": STEPS, "sync-every": 4} | ({"fragments": 2} if kind == "streaming" else {})
    faults = "faults.plan=[{kind: kill, group: 1, at: 3}, {kind: corrupt, group: 1, at: 12}]"
    words = ["groups.count=3", "health.compare_every=1", "restart.backoff_s=0", faults]
    name = "localsgd" if kind == "localsgd" else "diloco"
    run = train(backend, name, *words, hold=8, **args)
    run.finish(4 if run.process.wait(300) == 4 else 0)  # group 1 may come too late on a busy machine
    (found,) = run.named("replicas_differ")
    (injected,) = run.named("fault_injected", kind="corrupt")
    assert (found["groups"], found["equal"]) == ([1], 2)
    assert int(str(found["step"])) <= int(str(injected["step"])) + 3
    assert [e["cause"] for e in run.named("step_exited", group=1)][:2] == ["killed", "diverged"]
