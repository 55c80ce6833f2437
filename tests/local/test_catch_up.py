"""A group heals beside the training: others do not wait for it, and it ends with their weights."""

from __future__ import annotations

import pytest
from harness import SCRIPTS, Backend, Run

TRAIN = {"open-end": True, "step-time": 0.1, "layers": 30}
BESIDE = ("torchft.heal=beside", "restart.backoff_s=0.2", "restart.max_per_group=50")
# The state takes some steps to come. AFTER is executed in a group that comes back, when its optimizer steps.
SLOW = f"""
import importlib, os, runpy, time
from ftslurm.worker import transport
transport.PIECE = 1 << 12
following = transport.Fetch._next
def slow(fetch):
    time.sleep(0.05)
    return following(fetch)
transport.Fetch._next = slow
AFTER = os.environ.get("AFTER")
if AFTER and os.environ["FTSLURM_HEALS"] == "1":
    hooks = importlib.import_module("torch.optim.optimizer")
    hooks.register_optimizer_step_post_hook(lambda optimizer, *_: exec(AFTER))
if os.environ.get("EVALUATES"):  # before it reads its weights at the end
    import torch
    read = torch.nn.utils.parameters_to_vector
    torch.nn.utils.parameters_to_vector = lambda parameters: (torch.nn.Linear(1, 1).eval(), read(parameters))[1]
runpy.run_path({str(SCRIPTS / "toy.py")!r}, run_name="__main__")
"""


@pytest.fixture(autouse=True)
def with_an_optimizer_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_DDP", "1")


def until_said(run: Run, text: str, group: int = 1, attempt: int = 1, rank: int = 0) -> None:
    run.until(lambda: text in run.rank_log(group, rank, attempt=attempt), text)


def ends(run: Run, warns: bool = False, **counts: int) -> None:
    last = run.end_soon()
    run.finish(warns=warns)
    run.check_training(last, survivors={0}, returned={1}, **counts)


@pytest.mark.parametrize("backend", ["local"], indirect=True)
@pytest.mark.parametrize(
    "settings",
    [(), pytest.param(("lighthouse=torchft",), marks=pytest.mark.nightly), ("groups.workers=2",)],
    ids=["ours", "torchft's", "two workers"],
)
def test_a_group_that_comes_back_catches_up_beside_the_training(backend: Backend, settings: tuple[str, ...]) -> None:
    run = backend.start("groups.count=2", *BESIDE, *settings, script=backend.script(SLOW, "toy.py"), args=TRAIN)
    run.wait_for_steps(5, 2)
    run.kill(1)
    ranks = 2 if "groups.workers=2" in settings else 1
    for rank in range(ranks):
        until_said(run, "caught up at step", rank=rank)
    came = run.wait_for("group_healed", group=1, attempt=1)
    assert came["size"] > 0
    ends(run, ranks=ranks)
    assert "heals by blocking" not in run.rank_log(1, attempt=1)


@pytest.mark.parametrize("backend", ["local"], indirect=True)
@pytest.mark.parametrize(
    ("after", "by_hand", "why"),
    [
        ("", True, "the script has no optimizer of torch in torchft's Optimizer"),
        ("optimizer.param_groups[0]['params'][0].data.add_(1)", False, "differs from a donor's"),
    ],
)
def test_what_does_not_fit_heals_by_blocking_and_says_why(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, after: str, by_hand: bool, why: str
) -> None:
    monkeypatch.setenv("AFTER", after)
    monkeypatch.setenv("TOY_DDP", str(int(not by_hand)))
    run = backend.start("groups.count=2", *BESIDE, script=backend.script(SLOW, "toy.py"), args=TRAIN)
    run.wait_for_steps(5, 2)
    run.kill(1)
    until_said(run, why)
    run.wait_until_back(1)
    until_said(run, "participants 2")
    if not after:
        ends(run, warns=True)


@pytest.mark.parametrize("backend", ["local"], indirect=True)
def test_a_group_that_has_not_caught_up_by_the_end_ends_with_the_weights_of_the_others(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALUATES", "1")
    run = backend.start("groups.count=2", *BESIDE, script=backend.script(SLOW, "toy.py"), args=TRAIN | {"layers": 200})
    run.wait_for_steps(5, 2)
    run.kill(1)
    run.until(lambda: "\nstep " in run.rank_log(1, attempt=1), "its first step")
    ends(run)
    assert "caught up at step" not in run.rank_log(1, attempt=1)


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["local"], indirect=True)
def test_a_group_whose_donor_dies_begins_anew(backend: Backend) -> None:
    run = backend.start("groups.count=3", *BESIDE, script=backend.script(SLOW, "toy.py"), args=TRAIN | {"layers": 90})
    run.wait_for_steps(5, 3)
    run.kill(2)
    run.until(lambda: "step" in run.rank_log(2, attempt=1), "its first step")
    run.kill(1)
    until_said(run, "caught up at step", 2)
    until_said(run, "caught up at step", 1)
    last = run.end_soon()
    run.finish()
    run.check_training(last, survivors={0}, returned={1, 2})
