"""A worker's handling of its assignment and of exceptions, before and without torch."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftslurm.protocol import messages, outbox
from ftslurm.protocol.position import Position
from ftslurm.slurm.commands import GPU_VARIABLES
from ftslurm.worker import session

RANKS = tuple(messages.Rank(rank, "n1", rank, 0) for rank in range(2))


def assigned(**fields: Any) -> messages.Assign:
    """Return the assignment of group 2 of 4, in its second attempt."""
    known = messages.Assign(2, 1, "http://127.0.0.1:1", None, None, (), RANKS, "x", 4, 3)
    return replace(known, **fields)


def with_cuda(monkeypatch: pytest.MonkeyPatch, initialized: bool) -> None:
    cuda = SimpleNamespace(is_initialized=lambda: initialized)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


def test_what_is_imported_is_never_searched_for_garbage_and_what_comes_later_is() -> None:
    class Node:
        pass

    frozen = gc.get_freeze_count()
    try:
        with session.no_garbage():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > frozen + 1000
        node = Node()
        node.itself, gone = node, weakref.ref(node)  # type: ignore[attr-defined]
        del node
        gc.collect()
        assert gone() is None
    finally:
        gc.unfreeze()


@pytest.mark.parametrize(
    ("cluster", "gpus", "node_rank", "share"),
    [
        ("slurm", None, 0, None),
        ("slurm", "0:4", 1, "0:4"),
        ("slurm", "4:4", 1, "4:4"),
        ("local", "2:2", 0, "2:2"),
        ("local", "2:2", 1, "4:2"),  # the second node of pretence has the next GPUs of this machine
    ],
)
def test_a_standby_learns_its_share_of_the_gpus_when_it_is_assigned(
    cluster: str, gpus: str | None, node_rank: int, share: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cuda(monkeypatch, initialized=False)
    monkeypatch.setenv("FTSLURM_CLUSTER", cluster)
    assert session.share(assigned(gpus=gpus), messages.Rank(0, "n1", 0, node_rank)) == share


def test_a_cuda_context_that_is_there_already_must_be_on_the_right_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    with_cuda(monkeypatch, initialized=True)
    monkeypatch.setenv("FTSLURM_CLUSTER", "slurm")
    assert session.share(assigned(gpus="0:4"), RANKS[0]) is None
    with pytest.raises(RuntimeError, match=r"number 4.*standby\.imports"):
        session.share(assigned(gpus="4:4"), RANKS[0])


def test_narrowing_takes_the_share_out_of_what_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,GPU-4,GPU-5")
    session.choose_gpus("4:2")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-4,GPU-5"
    with pytest.raises(RuntimeError, match=r"shows 2 GPUs.*groups\.gpus"):
        session.choose_gpus("2:2")


@pytest.mark.parametrize("amd", [True, False])
@pytest.mark.parametrize(
    ("given", "narrowed"),
    [
        ({"ROCR_VISIBLE_DEVICES": "0,1,2,3"}, {"ROCR_VISIBLE_DEVICES": "2,3"}),
        ({"ZE_AFFINITY_MASK": "0.0,0.1,1.0,1.1"}, {"ZE_AFFINITY_MASK": "1.0,1.1"}),
        ({"GPU_DEVICE_ORDINAL": "4,5,6,7"}, {"GPU_DEVICE_ORDINAL": "6,7"}),
        ({"HIP_VISIBLE_DEVICES": "0,1,2,3", "ZE_AFFINITY_MASK": ""}, {"HIP_VISIBLE_DEVICES": "2,3"}),
        (
            {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "ROCR_VISIBLE_DEVICES": "4,5,6,7"},
            {"CUDA_VISIBLE_DEVICES": ("0,1", "2,3"), "ROCR_VISIBLE_DEVICES": "6,7"},
        ),
        (
            {"ROCR_VISIBLE_DEVICES": "0,1,2,3", "HIP_VISIBLE_DEVICES": "0,1,2,3"},
            {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": ("0,1", "2,3")},
        ),
    ],
)
def test_the_gpus_of_any_maker_are_narrowed_once(
    given: dict[str, str], narrowed: dict[str, Any], amd: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kfd").touch()
    monkeypatch.setattr(session, "AMD", str(tmp_path / "kfd" if amd else tmp_path / "none"))
    for name in GPU_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    session.choose_gpus("2:2")
    for name, value in narrowed.items():
        assert os.environ[name] == (value if isinstance(value, str) else value[not amd])


def test_a_node_that_names_no_gpus_is_told_with_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GPU_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match=r"shows 0 GPUs .*ROCR_VISIBLE_DEVICES.*not set"):
        session.choose_gpus("0:1")


def test_the_end_of_a_traceback_is_twenty_lines_and_no_more_than_anybody_reads() -> None:
    assert session.last_lines("".join(f"{n}\n" for n in range(50))) == "\n".join(str(n) for n in range(30, 50))
    assert session.last_lines("x" * 9000 + "end\n") == "x" * 3997 + "end"
    assert session.last_lines("") == ""


class OutOfMemoryError(RuntimeError):
    """Has the name of torch.OutOfMemoryError and, in older versions, torch.cuda.OutOfMemoryError."""


class TooLarge(MemoryError):
    """Stands for numpy's _ArrayMemoryError."""


@pytest.mark.parametrize(
    ("error", "oom"),
    [
        (OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (TooLarge(), True),
        (RuntimeError("out of memory"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_which_exceptions_say_that_memory_ran_out(error: BaseException, oom: bool) -> None:
    assert session.ran_out_of_memory(error) is oom


def test_an_exception_is_described_by_its_first_line_and_its_traceback() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        line, trace = session.describe(error)
    assert line == "ValueError: two"
    assert trace.startswith("Traceback (most recent call last):")
    assert trace.endswith("ValueError: two\nlines\n")


def raised(*errors: Exception) -> Exception:
    """Return the last of these, each raised from the one before."""
    for cause, error in pairwise(errors):
        error.__cause__ = cause
    return errors[-1]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (raised(OSError("no route"), RuntimeError("step 7")), "RuntimeError: step 7, caused by OSError: no route"),
        (raised(ValueError("a"), KeyError("b"), TypeError("c")), "TypeError: c, caused by ValueError: a"),
        (raised(ValueError("bad lr"), RuntimeError("config: bad lr")), "RuntimeError: config: bad lr"),
        (
            raised(ValueError("the first\nof two"), RuntimeError("x" * 500)),
            f"RuntimeError: {'x' * 103}..., caused by ValueError: the first",
        ),
    ],
)
def test_the_first_cause_of_an_exception_is_told(error: Exception, line: str) -> None:
    assert session.describe(error)[0] == line
    assert not session.ran_out_of_memory(error)
    assert session.ran_out_of_memory(raised(MemoryError("no"), error.__cause__ or error, error))


def test_causes_in_a_ring_end() -> None:
    error, other = ValueError("a"), KeyError("b")
    error.__cause__, other.__cause__ = other, error
    assert session.describe(error)[0] == "ValueError: a, caused by KeyError: 'b'"


LEAVES = {
    "raise SystemExit(3) from None": (3, None),
    "sys.exit(3)": (3, "ValueError: boom"),
    "sys.exit('no data')": (1, "SystemExit: no data"),
    "sys.exit()": (0, None),
    "sys.exit(0)": (0, None),
    "argparse.ArgumentParser().parse_args(['--nothing'])": (2, "ValueError: boom"),
}


@pytest.mark.parametrize("leave", LEAVES)
def test_an_exception_that_a_library_handles_before_it_leaves_is_the_cause(leave: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        f"import argparse, sys\ntry:\n    raise ValueError('boom')\nexcept ValueError:\n    {leave}\n"
    )
    run = (
        "from ftslurm.worker import script, session\n"
        "def print_error(error): print(session.describe(error)[0])\n"
        f"script.run('{tmp_path}/train.py', None, [], '', print_error, lambda: None)"
    )
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=False)
    code, error = LEAVES[leave]
    assert (done.returncode, done.stdout.strip()) == (code, error or "")


LIKE_ITS_GROUP = {"ROLE_NAME": "default", "ROLE_RANK": "1", "ROLE_WORLD_SIZE": "2"}


def told(**fields: Any) -> dict[str, str]:
    """Return the environment of rank 1 of 2."""
    return session.environment(assigned(**fields), RANKS[1])


def test_without_roles_a_worker_is_among_its_role_what_it_is_in_its_group() -> None:
    got = told()
    assert LIKE_ITS_GROUP.items() <= got.items()
    assert got["TORCHFT_LIGHTHOUSE"] == "http://127.0.0.1:1"
    assert not {"FTSLURM_ROLE", "FTSLURM_SERVER", "FTSLURM_SERVERS"} & got.keys()


def test_a_role_counts_the_workers_of_all_its_groups() -> None:
    got = told(lighthouse="", role=messages.Role("worker", 1, 3), servers=("http://a/x", "http://b/x"))
    assert {
        "ROLE_NAME": "worker",
        "FTSLURM_ROLE": "worker",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "6",
    }.items() <= got.items()
    assert got["FTSLURM_SERVER"] == "http://a/x"
    assert got["FTSLURM_SERVERS"] == "http://a/x,http://b/x"
    assert {"RANK": "1", "WORLD_SIZE": "2", "REPLICA_GROUP_ID": "2"}.items() <= got.items()
    assert "TORCHFT_LIGHTHOUSE" not in got


@pytest.mark.parametrize(("rank", "speaks"), [(0, True), (1, False)])
def test_only_the_first_rank_of_a_group_speaks_whatever_its_script_calls_it(
    rank: int, speaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("say", "wanted"):
        monkeypatch.setattr(outbox, name, getattr(outbox, name))
    out, into = os.pipe()
    os.set_blocking(out, False)
    task: Any = SimpleNamespace(position=Position())
    quorums = SimpleNamespace(listen_to=lambda _: None)
    watchers: Any = SimpleNamespace(
        compared=None, left_out=[], progress=SimpleNamespace(), unhealed=SimpleNamespace(), quorums=quorums
    )
    session.watch_script(task, session.Channel(0, out, into), watchers, assigned(), rank)
    monkeypatch.setenv("RANK", str(1 - rank))
    outbox.say(messages.Serving("http://n1:1"))
    os.close(into)
    assert (b"http://n1:1" in os.read(out, 999)) == speaks
