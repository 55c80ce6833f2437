"""Accelerate, transformers and Lightning survive kills in training, evaluations and saves, and one of all groups.

The groups end with the same weights, optimizer, schedule, callbacks and counters, and have evaluated the same.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest
from harness import SCRIPTS, Backend, Run, quoted

from ftslurm.config.schema import shipped

Args = dict[str, object]
EXAMPLES: dict[str, tuple[Args, list[int]]] = {  # example -> the steps of its evaluations, with two groups
    "train_accelerate.py": ({"epochs": 4, "batch-size": 32}, [8, 16, 24, 32]),
    "train_hf.py": ({"steps": 32, "batch-size": 8}, [8, 16, 24, 32]),
    "train_lightning.py": ({"steps": 32, "batch-size": 32}, [8, 16, 24, 32]),
}
FEATURES: dict[str, tuple[Args, list[int], str]] = {  # the same of scripts with other features, and what they write
    "features_accelerate.py": ({}, [9, 18, 27, 36], r"^weights .*"),
    "features_hf.py": ({"out": "{FTSLURM_RUN_DIR}/out"}, [7, 14, 21], r"^kept .*"),
    "features_lightning.py": ({"out": "{FTSLURM_RUN_DIR}/out"}, [4, 8, 13, 17, 22, 26, 31, 35], r"^best .*"),
}
FEW_LINES: dict[str, list[tuple[str, str]]] = {  # what makes plain scripts fault tolerant; without dropout, to compare
    "accelerate_loop.py": [
        (r"from accelerate import", "from ftslurm.frameworks.accelerate import"),
        (r"update, last = .*?set_epoch\(epoch\)", "for _ in accelerator.epochs(4, loader):"),
        (r"accelerator.skip_first_batches.*? else loader", "accelerator.batches()"),
        (r"        if accelerator.sync_gradients:\n            update.*?(?=    model.eval)", ""),
        (r"{update}: {loss.item\(\)}", "{accelerator.updates}: {accelerator.agree(loss.item())}"),
        (r"Dropout\(0.1\)", "Identity()"),
    ],
    "hf_trainer.py": [
        (r"    Trainer,\n", ""),
        (r"(?=\n\nclass Report)", "from ftslurm.frameworks.transformers import Trainer\n"),
        (r"wanted = .*?str\(last\)\)", "trainer.train()"),
        (r"bos_token_id", "attn_pdrop=0, embd_pdrop=0, resid_pdrop=0, bos_token_id"),
    ],
    "lightning_fit.py": [
        (r"(?=\n\nclass Data)", "from ftslurm.frameworks.lightning import FaultTolerantStrategy\n"),
        (r'"ddp"', "FaultTolerantStrategy()"),
        (r"last = .*", "trainer.fit(net, datamodule=Data())\n"),
    ],
}
SAID = re.compile(r"^evaluation at step (\d+): (\S+)$", re.MULTILINE)
HELD = re.compile(r"^held (\S+) (\w{64})$", re.MULTILINE)
NEVER = ("-1 0 0 allreduce", 10**9)

nightly = pytest.mark.nightly
locally = pytest.mark.parametrize("backend", ["local"], indirect=True)
each = pytest.mark.parametrize("example", EXAMPLES)
first, *others = EXAMPLES
one_by_day = pytest.mark.parametrize("example", [first, *(pytest.param(one, marks=nightly) for one in others)])


def begin(backend: Backend, script: Path, kill: str, hold: int, *words: str, **args: object) -> Run:
    """Start a script with two groups; for the kill see scripts/example.py."""
    env = {"EXAMPLE": str(script), "KILL": kill, "HOLD": str(hold), "OMP_NUM_THREADS": "1"}
    line = ["groups.count=2", *(f"job.env.{name}={quoted(value)}" for name, value in env.items()), *words]
    return backend.start(*line, script=SCRIPTS / "framework.py", args=args)


def train(backend: Backend, example: str, kill: str, hold: int, *words: str, **args: object) -> Run:
    """Run an example with two groups to its end."""
    script = shipped("examples") / example
    return begin(backend, Path(str(script)), kill, hold, *words, **{**EXAMPLES[example][0], **args}).finish()


def logs(folder: Path, groups: int = 2, ranks: int = 1) -> list[list[str]]:
    """Return what each rank has written, a text for each attempt."""
    found = [
        [path.read_text(errors="replace") for path in sorted(folder.glob(pattern))]
        for group in range(groups)
        for rank in range(ranks)
        for pattern in [f"logs/group-{group:04d}/attempt-*/rank-{rank}.log"]
    ]
    assert all(found)
    return found


def check_held(folder: Path, ranks: int = 1) -> None:
    """Check that all ranks hold the same at the end."""
    held = [dict(HELD.findall(texts[-1])) for texts in logs(folder, ranks=ranks)]
    assert held[0]
    assert all(one == held[0] for one in held)


def check(run: Run, steps: list[int], ranks: int = 1) -> None:
    """Check that all ranks hold the same at the end, and that no two evaluations of a step differ."""
    check_held(run.dir, ranks)
    assert [event["steps"] for event in run.named("run_finished")] >= steps[-1:]
    assert len({*run.weights().values()}) == 1
    said = [SAID.findall(text) for texts in logs(run.dir, ranks=ranks) for text in texts]
    losses = {(int(step), loss) for found in said for step, loss in found}
    assert sorted(step for step, _ in losses) == steps  # one loss for each
    assert max(len(found) for found in said) == len(steps) or run.named("full_restart")


@locally
@one_by_day
def test_a_group_that_dies_in_training_heals_to_the_same_state(backend: Backend, example: str) -> None:
    run = train(backend, example, "1 0 11 allreduce", 13)
    assert [event["restarts"] for event in run.named("run_finished")] == [1]
    check(run, EXAMPLES[example][1])


@nightly
@locally
@each
def test_a_group_that_dies_in_an_evaluation_stops_early_with_the_others(backend: Backend, example: str) -> None:
    """With next to no learning rate hardly any evaluation is better than those before it."""
    more = {"epochs": 9} if "epochs" in EXAMPLES[example][0] else {"steps": 99}
    run = train(backend, example, "1 0 -1 allreduce", 20, "job.env.EVALUATION='1 16'", lr="1e-10", **more)
    assert [event["restarts"] for event in run.named("run_finished")] == [1]
    steps = [int(step) for step, _ in SAID.findall(run.rank_log(0))]
    assert steps == list(range(8, 8 * len(steps) + 1, 8))
    assert 4 <= len(steps) < 9  # of the most that there could be
    check(run, steps)


@nightly
@locally
@each
def test_a_group_that_dies_while_it_saves_leaves_the_saving_to_another(backend: Backend, example: str) -> None:
    run = train(backend, example, "-1 0 0 allreduce", 20, "checkpoint.every=8", "job.env.SAVING=0")
    assert [event["restarts"] for event in run.named("run_finished")] == [1]
    saved = [event["step"] for event in run.named("checkpoint_saved")]
    assert saved[-1] == 32
    names = [path.name for path in (run.dir / "checkpoints").iterdir()]
    steps, data = (
        {match[1] for name in names if (match := re.match(rf"{kind}-(\d+)", name))} for kind in ("step", "data")
    )
    assert steps == data  # none is left of the save that did not end
    check(run, EXAMPLES[example][1])


@nightly
@locally
@each
def test_all_groups_go_on_from_a_checkpoint(backend: Backend, example: str) -> None:
    half = int(str(EXAMPLES[example][0]["batch-size"])) // 2  # twice as many workers, as many updates
    words = ("checkpoint.every=8", "groups.workers=2")
    run = train(backend, example, "all 0 21 should_commit", 25, *words, **{"batch-size": half})
    (full,) = run.named("full_restart")
    assert full["checkpoint_step"] == 16
    check(run, EXAMPLES[example][1], ranks=2)


@nightly
@pytest.mark.parametrize(
    ("backend", "example"),
    [
        *(("local", example) for example in EXAMPLES),
        *(pytest.param("slurm", example, marks=pytest.mark.slurm) for example in EXAMPLES),
    ],
    indirect=["backend"],
)
def test_a_training_that_is_stopped_goes_on_in_another_run(backend: Backend, example: str) -> None:
    length = "epochs" if "epochs" in EXAMPLES[example][0] else "steps"
    args = {**EXAMPLES[example][0], "patience": 10**6, length: 10**6}
    run = begin(backend, Path(str(shipped("examples") / example)), *NEVER, "job.env.PACE=0.1", **args)
    run.until(lambda: any(int(str(line.get("step", 0))) > 10 for line in run.progress), "ten steps")
    run.tell("stop", "--save")
    run.finish(1, outcome="stopped")
    parent, saved = run.dir, int(str(run.named("checkpoint_saved")[-1]["step"]))
    more = saved // 8 + 2
    code, said = run.ask("resume", f"job.args.{length}={more if length == 'epochs' else 8 * more}", "follow=true")
    assert code == 0, said
    (child,) = {path.parent for path in run.root.glob("*/config.yaml")} - {parent}
    check_held(child)
    found = [SAID.findall(text) for (text,) in logs(child)]
    assert found[0] == found[1]
    assert [int(step) for step, _ in found[0]] == [step for step in range(8, 8 * more + 1, 8) if step > saved]


@nightly
@locally
@pytest.mark.parametrize("script", FEATURES)
def test_other_features_heal_to_the_same_state(backend: Backend, script: str) -> None:
    args, steps, written = FEATURES[script]
    run = begin(backend, SCRIPTS / script, "1 0 11 allreduce", 13, **args).finish()
    assert [event["restarts"] for event in run.named("run_finished")] == [1]
    check(run, steps)
    first, second = ([*re.findall(written, texts[-1], re.MULTILINE)] for texts in logs(run.dir))
    assert first == second


@nightly
@locally
def test_an_update_that_is_repeated_repeats_no_evaluation(backend: Backend) -> None:
    """Half an epoch is 13 batches, which are four updates of three and a part of the next one."""
    args, steps, _ = FEATURES["features_lightning.py"]
    check(begin(backend, SCRIPTS / "features_lightning.py", "1 0 13 allreduce", 15, **args).finish(), steps)


@nightly
@locally
def test_a_schedule_by_a_metric_heals(backend: Backend) -> None:
    args, steps, _ = FEATURES["features_lightning.py"]
    words = {**args, "schedule": "plateau"}
    check(begin(backend, SCRIPTS / "features_lightning.py", "0 0 14 should_commit", 16, **words).finish(), steps)


@nightly
@locally
@pytest.mark.parametrize("framework", ["accelerate", "transformers", "lightning"])
def test_what_groups_cannot_share_is_refused_by_name(backend: Backend, framework: str) -> None:
    run = backend.start("groups.count=1", f"job.env.FRAMEWORK={framework}", script="mistakes.py")
    run.finish()
    said = run.rank_log(0)
    assert "NOT REFUSED" not in said
    refused = re.findall(r"refused .*", said)
    assert len(refused) == {"accelerate": 11, "transformers": 4, "lightning": 13}[framework]
    assert "tried all" in said


@nightly
@locally
@pytest.mark.parametrize("script", FEW_LINES)
def test_ten_lines_let_a_script_end_after_a_death_as_without_one(backend: Backend, script: str) -> None:
    """With groups.min=2 no update is of one group alone, so each has the same batches in both runs."""
    plain = text = (SCRIPTS / "plain" / script).read_text()
    for old, new in FEW_LINES[script]:
        text, found = re.subn(old, new, text, flags=re.DOTALL)
        assert found == 1, old
    assert sum(line.startswith("+ ") for line in difflib.ndiff(plain.splitlines(), text.splitlines())) <= 10
    ends = []
    for kill in ("1 0 7 allreduce", NEVER[0]):
        args = {"out": "{FTSLURM_RUN_DIR}/out"}
        run = begin(backend, backend.script(text), kill, NEVER[1], "groups.min=2", **args).finish()
        assert [event["restarts"] for event in run.named("run_finished")] == [kill != NEVER[0]]
        check_held(run.dir)
        said = {found for texts in logs(run.dir) for text in texts for found in SAID.findall(text)}
        ends.append((said, HELD.findall(logs(run.dir)[0][-1])))
    assert ends[0] == ends[1]


@nightly
@locally
@each
def test_an_evaluation_may_be_longer_than_a_time_out(backend: Backend, example: str) -> None:
    """As an evaluation of 75 s with a time-out of 60 s: group 1 evaluates for 7 s, with time-outs of 5 s."""
    words = ("torchft.timeout_s=5", "job.longest_step_s=60", "job.env.EVALUATION='1 16'", "job.env.SLOW=7")
    run = train(backend, example, *NEVER, *words)
    assert [event["restarts"] for event in run.named("run_finished")] == [0]
    check(run, EXAMPLES[example][1])
