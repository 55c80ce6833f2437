"""What a user was told will be done is done, at whichever record of the journal the controller dies.

Each promise is made once without a death. That tells which kinds of records follow it; then it is made again for each
of them, with a controller that dies just before or just after it is on disk.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from harness import Backend, Run
from test_controller_dies import die

pytestmark = [pytest.mark.slurm, pytest.mark.light]
Facts = dict[str, object]  # what is the same whoever has led


class Promise(NamedTuple):
    """A command, and what follows from it."""

    words: tuple[str, ...]
    until: tuple[str, dict[str, object]]  # the record that shows that it is kept
    ends: bool = False  # it ends the run


PROMISES = {
    "stop": Promise(("stop",), ("run_finished", {}), ends=True),
    "stop after a save": Promise(("stop", "--save"), ("run_finished", {}), ends=True),
    "save": Promise(("save",), ("checkpoint_saved", {})),
    "restart": Promise(("restart", "--group", "1"), ("group_joined", {"group": 1, "attempt": 1})),
    "drain": Promise(("drain", "NODE"), ("group_joined", {"group": 1, "attempt": 1})),
    "more groups": Promise(("scale", "3"), ("group_joined", {"group": 2})),
    "fewer groups": Promise(("scale", "1"), ("step_exited", {"group": 1})),
    "drill": Promise(("inject", "kill", "--group", "1"), ("group_joined", {"group": 1, "attempt": 1})),
}


def keep(backend: Backend, mode: str, promise: Promise, when: str | None) -> tuple[Facts, Run, int]:
    """Make a promise and wait until it is kept. Return what followed, the run, and the last record before.

    Args:
        when: the record at which the controller dies; None: it lives.
    """
    settings = (f"cluster.kind={mode}", "groups.count=2", "groups.max=3", f"cluster.spare_nodes={int(mode == 'slurm')}")
    backend.environ["FTSLURM_TEST_KILL"] = str(backend.tmp_path / "when")
    run = backend.start(*settings, script="light_saving.py", args={"open-end": True, "step-time": 0.1})
    run.wait_until_back(0, 1, attempt=0)
    node = run.node_of(1, 0)
    seq = int(str(run.events[-1]["seq"]))
    if when is not None:
        die(backend, when)
    code, said = run.ask(*(node if word == "NODE" else word for word in promise.words))
    assert code == 0, said
    event, fields = promise.until
    run.wait_for(event, **fields)
    if not promise.ends:
        run.end_soon()
    run.finish(promise.ends, "stopped" if promise.ends else "succeeded")
    if when is not None:
        assert not (backend.tmp_path / "when").exists(), f"no controller has died at {when}"
    assert [line["seq"] for line in run.events] == list(range(1, 1 + len(run.events)))
    facts = facts_of(run) | {
        "saved": bool(run.named("checkpoint_saved")),
        "left the node": promise.words[0] == "drain" and run.node_of(1, 1) != node,
    }
    return facts, run, seq


def facts_of(run: Run) -> Facts:
    """Return what came of any run."""
    groups = [line for line in run.named("step_exited") if line["group"] is not None]
    return {
        "exits": sorted((line["group"], line["attempt"], line["cause"]) for line in groups),
        "drills": [(line["kind"], line["group"]) for line in run.named("fault_injected")],
        "refused": [line["reason"] for name in ("fault_refused", "command_refused") for line in run.named(name)],
        "digests": len(set(run.weights().values())),
    }


def kinds_after(run: Run, seq: int, promise: Promise) -> list[str]:
    """Return the kinds of records that a promise has led to, until it was kept."""
    last = int(str(run.named(promise.until[0], **promise.until[1])[-1]["seq"]))
    new = [line for line in run.events if seq < int(str(line["seq"])) <= last]
    names = (f"{line['event']}:{line['unit']}" if "unit" in line else str(line["event"]) for line in new)
    return list(dict.fromkeys(names))


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["slurm", "array"])
@pytest.mark.parametrize("name", PROMISES)
def test_a_promise_is_kept_whoever_leads(name: str, mode: str, slurm: Backend) -> None:
    expected, run, seq = keep(slurm, mode, PROMISES[name], None)
    kinds = kinds_after(run, seq, PROMISES[name])
    assert kinds
    for kind in kinds:
        for when in (kind, f"{kind}:before") if mode == "slurm" else (kind,):
            assert keep(slurm, mode, PROMISES[name], when)[0] == expected, when


@pytest.mark.parametrize(
    ("name", "when", "exits"),
    [
        ("drill", "fault_injected", [(0, 0, "ok"), (1, 0, "killed"), (1, 1, "ok")]),
        ("stop after a save", "command_done", [(0, 0, "cancelled"), (1, 0, "cancelled")]),
        ("drain", "node_drained:before", [(0, 0, "ok"), (1, 0, "requested"), (1, 1, "ok")]),
    ],
)
def test_some_promises_are_kept_by_day(name: str, when: str, exits: list[tuple[int, int, str]], slurm: Backend) -> None:
    found, _, _ = keep(slurm, "slurm", PROMISES[name], when)
    assert (found["exits"], found["refused"]) == (exits, [])
    assert found["digests"] == (name != "stop after a save")
    assert found["saved"] is (name == "stop after a save")
    assert found["left the node"] is (name == "drain")
