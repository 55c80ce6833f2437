"""Every kind of training, undisturbed and with a killed group, on this machine and on a real Slurm.

Both use the same table. The group dies inside a collective that all others have begun (kill -9 of one rank).
"""

from __future__ import annotations

import itertools
import re
import signal
from typing import Any

import pytest
from harness import SCRIPTS, Backend, Run, quoted

from ftslurm.config.schema import shipped

SMALL = {"dim": 32, "layers": 1, "context": 32, "batch-size": 4, "max-mb": 0.3}
STEPS, KILLED, HELD = 24, 6, 10  # the step in which a rank dies, and before which the others wait for its return
SYNCS, EVERY, KILLED_SYNC, HELD_SYNC = 10, 4, 3, 5  # the same where steps are syncs; inner steps from one to the next
STREAMING: dict[str, object] = {"fragments": 2, "fragment_sync_delay": 1, "fragment_update_alpha": 0.3}


def train(backend: Backend, kind: str, *words: str, kill: str | None = None, hold: int = HELD, **args: object) -> Run:
    """Run `job=KIND` to its end, with a kill if given ("GROUP RANK STEP METHOD", see scripts/example.py)."""
    number = len(backend.runs)
    line = ["run", f"job={kind}", f"cluster={backend.name}", f"run.root={quoted(backend.tmp_path / f'runs{number}')}"]
    line += ["follow=true", "groups.gpus=0", "stop.grace_s=2", *words]
    args |= SMALL | {"samples": str(backend.tmp_path / f"samples{number}")}
    line += [f"job.args.{name.replace('_', '-')}={quoted(value)}" for name, value in args.items()]
    if kill is not None:
        example = shipped("examples") / f"train_{kind}.py"
        line += [f"job.script={quoted(SCRIPTS / 'example.py')}", f"job.env.EXAMPLE={quoted(example)}"]
        line += [f"job.env.KILL={quoted(kill)}", f'job.env.HOLD="{hold}"']
    run = backend.launch(*line, steps_file=backend.tmp_path / f"samples{number}").finish()
    if kill is None:
        assert [e["restarts"] for e in run.named("run_finished")] == [0], run.text
    elif not kill.startswith("all"):
        assert [e["restarts"] for e in run.named("run_finished")] == [1], run.text
        group, rank = (int(word) for word in kill.split()[:2])
        (ended,) = run.named("step_exited", group=group, attempt=0)
        assert (ended["cause"], ended["signal"], ended["rank"]) == ("killed", signal.SIGKILL, rank), ended
        assert len(run.named("step_launched", group=group)) == 2
        assert "joined" in run.rank_log(group, attempt=1)
    return run


def check_weights(run: Run, groups: int, ranks: int = 1) -> list[str]:
    """Check that all groups end with bit-equal weights; return the digest of each rank."""
    weights = run.weights()
    assert set(weights) == {(g, r) for g in range(groups) for r in range(ranks)}, weights
    found = [{weights[g, r] for g in range(groups)} for r in range(ranks)]
    assert [len(digests) for digests in found] == [1] * ranks, weights
    return [digests.pop() for digests in found]


def history(run: Run, group: int, rank: int = 0, restored: int | None = None) -> list[dict[str, Any]]:
    """Return the steps that a rank committed, without those undone by a full restart from step `restored`."""
    lines: list[dict[str, Any]] = []
    for line in run.steps(group, rank):
        if lines and line["step"] <= lines[-1]["step"]:
            assert line["step"] - 1 == restored, "a step was committed twice"
            lines = [other for other in lines if other["step"] < line["step"]]
        lines.append(line)
    return lines


def check_every_batch_once(run: Run, groups: int, steps: int, ranks: int = 1, restored: int | None = None) -> int:
    """Check that the surviving history has every batch once, in order; return the number of batches."""
    totals: dict[int, int] = {0: 0}
    for group, rank in itertools.product(range(groups), range(ranks)):
        for line in history(run, group, rank, restored):
            assert totals.setdefault(int(line["step"]), int(line["committed"])) == line["committed"]
    assert sorted(totals) == list(range(steps + 1)), "steps lost"
    for rank in range(ranks):
        trained: dict[int, list[int]] = {step: [] for step in totals}
        for group in range(groups):
            for line in history(run, group, rank, restored):
                trained[int(line["step"])] += line["batches"]
        for step in range(1, steps + 1):
            assert sorted(trained[step]) == list(range(totals[step - 1], totals[step])), f"step {step}"
    return totals[steps]


def restart_all(backend: Backend, kind: str, *words: str, at: int, every: int, **args: object) -> tuple[Run, int]:
    """Run a job with all groups killed at once; also return the step of the checkpoint of the restart."""
    settings = (f"checkpoint.every={every}", "checkpoint.keep=0", *words)
    run = train(backend, kind, *settings, kill=f"all 0 {at} should_commit", **args)
    (full,) = run.named("full_restart")
    assert f"full restart from the checkpoint of step {full['checkpoint_step']}" in run.text
    return run, int(str(full["checkpoint_step"]))


def check_windows(run: Run, groups: int, every: int, killed: int | None = None, restored: int | None = None) -> None:
    """Check that group g contributes its own batches to every sync, or that all groups but `killed` do.

    The killed group misses only the syncs from its death until it joined.
    """
    for group in range(groups):
        lines = history(run, group, restored=restored)
        windows = {int(line["step"]): line["batches"] for line in lines}
        skipped = {step for step in range(1, SYNCS + 1) if not windows.get(step)}
        for step in set(windows) - skipped:
            first = ((step - 1) * groups + group) * every
            assert windows[step] == list(range(first, first + every))
        if group != killed:
            assert not skipped
        else:
            (joined,) = (int(line["step"]) for line in lines if not line["batches"])
            assert skipped == set(range(KILLED_SYNC + 1, joined + 1))


def losses(run: Run, group: int) -> list[tuple[int, float]]:
    """Return the losses that a group's first attempt printed, by step."""
    found = re.findall(r"step (\d+) \| loss ([\d.]+)", run.rank_log(group))
    return [(int(step), float(loss)) for step, loss in found]


def final_loss(run: Run) -> float:
    """Return the held-out loss at the end, equal in all groups."""
    found = {re.search(r"held-out loss ([\d.]+) \| final", text) for text in (run.rank_log(0), run.rank_log(0, 0, 1))}
    (loss,) = (float(match[1]) for match in found if match)
    return loss


def check_curve(killed: Run, clean: Run) -> None:
    """Check for equal losses until the kill, and a similar final loss with fewer batches in some steps."""
    assert losses(killed, 0)[:KILLED] == losses(clean, 0)[:KILLED]
    assert len(losses(killed, 0)) == len(losses(clean, 0)) == STEPS
    assert abs(final_loss(killed) - final_loss(clean)) < 0.3


@pytest.mark.slurm
def test_ddp_with_a_spare_group_trains_on_every_batch_though_one_is_killed(slurm: Backend) -> None:
    spares = ("groups.count=3", "groups.min=2")
    spared = train(slurm, "ddp", *spares, steps=STEPS, active=2, kill=f"0 0 {KILLED} allreduce")
    assert check_every_batch_once(spared, groups=3, steps=STEPS) == 2 * STEPS
    assert len(check_weights(spared, groups=3)) == 1


@pytest.mark.nightly
def test_ddp_trains_on_every_batch_once_whoever_is_killed(local: Backend) -> None:
    clean = train(local, "ddp", steps=STEPS, print_every=1)
    (undisturbed,) = check_weights(clean, groups=2)
    assert check_every_batch_once(clean, groups=2, steps=STEPS) == 2 * STEPS

    killed = train(local, "ddp", steps=STEPS, print_every=1, kill=f"1 0 {KILLED} allreduce")
    assert check_weights(killed, groups=2) != [undisturbed]
    assert STEPS < check_every_batch_once(killed, groups=2, steps=STEPS) < 2 * STEPS
    assert "not committed, once more" in killed.rank_log(0)
    check_curve(killed, clean)

    everybody, step = restart_all(local, "ddp", at=KILLED, every=4, steps=STEPS)
    assert check_every_batch_once(everybody, groups=2, steps=STEPS, restored=step) == 2 * STEPS
    assert check_weights(everybody, groups=2) == [undisturbed]


HSDP_KILLED = f"1 1 {KILLED} allreduce"


@pytest.mark.slurm
def test_hsdp_relaunches_the_whole_group_of_a_killed_rank_and_heals_it_by_shards(slurm: Backend) -> None:
    nodes = ("groups.nodes=2", "groups.workers=1")
    killed = train(slurm, "hsdp", *nodes, steps=STEPS, print_every=1, kill=HSDP_KILLED)
    first, second = check_weights(killed, groups=2, ranks=2)
    assert first != second
    assert STEPS < check_every_batch_once(killed, groups=2, steps=STEPS, ranks=2) < 2 * STEPS


@pytest.mark.nightly
def test_hsdp_starts_over_with_the_weights_of_an_undisturbed_run(local: Backend) -> None:
    wide = "groups.workers=2"
    everybody, step = restart_all(local, "hsdp", wide, at=KILLED, every=4, steps=STEPS)
    assert check_every_batch_once(everybody, groups=2, steps=STEPS, ranks=2, restored=step) == 2 * STEPS
    restarted = check_weights(everybody, groups=2, ranks=2)
    clean = train(local, "hsdp", wide, steps=STEPS, print_every=1)
    assert check_weights(clean, groups=2, ranks=2) == restarted
    assert check_every_batch_once(clean, groups=2, steps=STEPS, ranks=2) == 2 * STEPS
    check_curve(train(local, "hsdp", wide, steps=STEPS, print_every=1, kill=HSDP_KILLED), clean)


KINDS = pytest.mark.parametrize(
    ("backend", "kind", "fragments"),
    [
        pytest.param("local", "localsgd", {}, marks=pytest.mark.nightly),
        pytest.param("local", "diloco", {}, marks=pytest.mark.nightly),
        pytest.param("slurm", "diloco", STREAMING, marks=pytest.mark.slurm),
    ],
    indirect=["backend"],
    ids=lambda value: value if isinstance(value, str) else "streaming" if value else "plain",
)


def windows(fragments: dict[str, object]) -> tuple[int, dict[str, object]]:
    """Return after how many inner steps groups meet, and the arguments of the training."""
    return EVERY // (2 if fragments else 1), {"steps": SYNCS, "sync_every": EVERY, **fragments}


@KINDS
def test_groups_that_meet_at_syncs_skip_only_what_a_killed_group_has_not_put_in(
    backend: Backend, kind: str, fragments: dict[str, object]
) -> None:
    every, args = windows(fragments)
    killed = train(backend, kind, kill=f"1 0 {KILLED_SYNC} allreduce", hold=HELD_SYNC, **args)
    check_weights(killed, groups=2)
    check_windows(killed, 2, every, killed=1)
    assert "not committed, once more" in killed.rank_log(0)
    assert [e["steps"] for e in killed.named("run_finished")] == [SYNCS]  # progress counts syncs


@pytest.mark.nightly
@KINDS
def test_groups_that_meet_at_syncs_start_over_from_a_checkpoint_of_one(
    backend: Backend, kind: str, fragments: dict[str, object]
) -> None:
    every, args = windows(fragments)
    everybody, step = restart_all(backend, kind, at=KILLED_SYNC, every=2, **args)
    check_weights(everybody, groups=2)
    check_windows(everybody, 2, every, restored=step)


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["local"], indirect=True)
def test_localsgd_ends_with_about_the_loss_of_an_undisturbed_run(backend: Backend) -> None:
    every, args = windows({})
    clean = train(backend, "localsgd", **args)
    check_weights(clean, groups=2)
    check_windows(clean, 2, every)
    killed = train(backend, "localsgd", kill=f"1 0 {KILLED_SYNC} allreduce", hold=HELD_SYNC, **args)
    assert abs(final_loss(killed) - final_loss(clean)) < 0.3
