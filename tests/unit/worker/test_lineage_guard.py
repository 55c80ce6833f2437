"""The quorums that a worker refuses, and the reasons as they are logged."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from torchft_managers import fake_torchft_client, run_manager

from ftslurm.worker.commits import Commits
from ftslurm.worker.lineage_guard import LineageGuard


class RefusedError(Exception):
    pass


def refuse(reason: str) -> None:
    raise RefusedError(reason)


@pytest.mark.parametrize(
    ("floor", "reached", "step", "max_step", "heal", "expected"),
    [
        pytest.param(0, 0, 0, 0, False, None, id="the beginning"),
        pytest.param(0, 0, 0, 0, True, None, id="the beginning, where all copy one"),
        pytest.param(9, 0, 0, 9, True, None, id="it heals"),
        pytest.param(9, 0, 0, 8, True, "step 9 or more, nobody in this quorum is beyond 8", id="from a stale group"),
        pytest.param(9, 0, 0, 0, False, "it would begin a new history", id="a fresh group alone"),
        pytest.param(9, 0, 5, 5, False, "nobody in this quorum is beyond 5", id="an old checkpoint"),
        pytest.param(9, 0, 9, 9, False, None, id="it has healed"),
        pytest.param(0, 9, 0, 0, False, "step 9 or more", id="others have begun while its script was slow"),
        pytest.param(0, 9, 5, 5, False, "step 9 or more", id="it was stopped while others went on"),
        pytest.param(9, 200, 100, 100, False, "step 200 or more", id="the later word counts"),
        pytest.param(9, 0, 0, 9, False, "counts as being at step 9", id="its group has healed without it"),
        pytest.param(9, 0, 9, 12, False, "this rank is at step 9", id="it is behind and will not heal"),
    ],
)
def test_what_is_refused_where_others_hold_the_state(
    floor: int, reached: int, step: int, max_step: int, heal: bool, expected: str | None, monkeypatch: Any
) -> None:
    monkeypatch.setenv("FTSLURM_HEALS", "1")
    check(LineageGuard(refuse, lambda: reached), floor, (step, max_step, heal), expected)


@pytest.mark.parametrize(
    ("floor", "reached", "step", "max_step", "heal", "expected"),
    [
        pytest.param(5, 0, 5, 5, False, None, id="it has resumed"),
        pytest.param(5, 0, 0, 5, True, None, id="it heals from one that has"),
        pytest.param(5, 0, 0, 0, False, "starts from the checkpoint of step 5, the script at step 0", id="nobody has"),
        pytest.param(5, 9, 5, 5, False, "has reached step 9 or more", id="the others went on meanwhile"),
    ],
)
def test_what_is_refused_where_all_start_from_a_checkpoint(
    floor: int, reached: int, step: int, max_step: int, heal: bool, expected: str | None, monkeypatch: Any
) -> None:
    monkeypatch.setenv("FTSLURM_HEALS", "0")
    check(LineageGuard(refuse, lambda: reached), floor, (step, max_step, heal), expected)


def check(history: LineageGuard, floor: int, quorum: tuple[int, int, bool], expected: str | None) -> None:
    history.floor = floor
    why = history.judge(*quorum)
    assert (why is None) if expected is None else (why is not None and expected in why), why


@pytest.mark.parametrize(
    ("heals", "quorum_id", "step", "max_members", "members", "refused"),
    [
        ("1", -1, 100, 1, 2, True),
        ("1", -1, 100, 1, 1, False),  # alone: the floor decides whether its step is high enough
        ("1", -1, 100, 2, 3, False),  # another group has the same step: it belongs to the training
        ("1", 7, 100, 1, 2, False),  # not its first quorum: the others are the joining groups
        ("1", -1, 0, 1, 2, False),
        ("0", -1, 100, 1, 2, False),  # all start from checkpoints, and this one could read the newest
    ],
)
def test_a_newcomer_that_is_ahead_of_everybody_has_loaded_something_else(
    heals: str, quorum_id: int, step: int, max_members: int, members: int, refused: bool, monkeypatch: Any
) -> None:
    monkeypatch.setenv("FTSLURM_HEALS", heals)
    answer = {"max_step": step, "heal": False, "max_world_size": max_members, "replica_world_size": members}
    manager = watched(answer, step=step)
    manager._quorum_id = quorum_id
    if refused:
        with pytest.raises(RefusedError, match="not of this history"):
            manager._async_quorum(True)
    else:
        manager._async_quorum(True)
        assert manager.got.max_step == step


def test_of_several_managers_in_a_process_nobody_knows_which_step_is_the_runs() -> None:
    one = watched({"max_step": 5, "heal": False, "max_world_size": 1, "replica_world_size": 1}, step=5, floor=9)
    other = type(one)()
    with pytest.raises(RefusedError):
        one._async_quorum(True)
    with pytest.raises(RefusedError):
        one._async_quorum(True)
    for manager in (other, one):
        manager._async_quorum(True)
        assert manager.got.max_step == 5


def test_a_second_manager_does_not_make_the_first_one_trust_weights_of_its_own() -> None:
    one = watched({"max_step": 9, "heal": False, "max_world_size": 1, "replica_world_size": 2}, step=5)
    other = type(one)()
    for manager in (one, other, one):
        with pytest.raises(RefusedError, match="weights of its own"):
            manager._async_quorum(True)


def test_healing_that_the_script_forbids_is_none() -> None:
    answer = {"max_step": 9, "heal": True, "max_world_size": 1, "replica_world_size": 2}
    watched(answer)._async_quorum(True)
    with pytest.raises(RefusedError, match="allow_heal=False"):
        watched(answer)._async_quorum(False)


@pytest.mark.parametrize(("kind", "place"), [("torchft", "n1:4711/5"), ("ftslurm", "n1:4711")])
def test_a_quorum_of_torchfts_lighthouse_whose_ids_begin_anew_meets_elsewhere_in_the_store_at_each_step(
    kind: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FTSLURM_LIGHTHOUSE", kind)
    manager = watched({"max_step": 5, "heal": False, "max_world_size": 2, "replica_world_size": 2}, step=5)
    manager._async_quorum(True)
    assert manager.got.store_address == place


def test_the_client_is_wrapped_once_and_is_otherwise_as_before() -> None:
    manager = watched({"max_step": 0, "heal": False, "max_world_size": 1, "replica_world_size": 1})
    client = manager._client
    for _ in range(3):
        manager._async_quorum(True)
    assert manager._client is client
    assert manager._client.should_commit() == "as before"


@pytest.mark.parametrize(
    ("healing", "pending", "applied"), [(True, {"user": 1}, 1), (True, None, 0), (False, {"user": 1}, 0)]
)
def test_a_state_that_was_fetched_is_loaded_before_the_next_quorum(healing: bool, pending: Any, applied: int) -> None:
    manager = watched({})
    manager._healing, manager._pending_state_dict = healing, pending
    manager._quorum_future = Future()
    manager._quorum_future.set_result(None)
    manager.start_quorum(allow_heal=True)
    assert manager.options == {"allow_heal": True}
    assert manager.applied == applied


def watched(answer: dict[str, Any], step: int = 0, floor: int = 0) -> Any:
    """Return a fake Manager under the lineage guard's watch, whose Lighthouse gives this answer."""
    history = LineageGuard(refuse)
    history.floor = floor
    progress = SimpleNamespace(seeks_quorum=bool, has_quorum=bool)
    watchers = SimpleNamespace(
        lineage=history, progress=progress, unhealed=SimpleNamespace(), compared=None, beside=None
    )
    watchers.commits = Commits(print)
    watchers.quorums = SimpleNamespace(cover=bool, joined=SimpleNamespace())
    return run_manager(fake_torchft_client(answer, step), watchers)()
