"""A parameter server and its workers, without a Lighthouse: each restarts alone; no update is lost or repeated.

Drills kill them when the server has reached a step. Afterwards the record of updates is read as the surviving history:
of several lines with one number the last counts, because a server that resumes an older state repeats updates.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from harness import Backend, Run


def start(backend: Backend, updates: int, *overrides: str, kills: dict[int, list[int]]) -> tuple[Run, Path]:
    """Start the example with drills that kill these groups; return it and its record of updates."""
    number = len(backend.runs)
    samples = backend.tmp_path / f"samples{number}"
    plan = ",".join(f"{{group: {group}, at: {at}}}" for at, groups in kills.items() for group in groups)
    run = backend.launch(
        *("run", "job=parameter_server", f"cluster={backend.name}", f"run.root={backend.tmp_path / f'runs{number}'}"),
        *("follow=true", "groups.gpus=0", "stop.grace_s=5", "restart.backoff_s=0.1"),
        *(f"job.args.updates={updates}", f"job.args.samples={samples}", "job.args.batch-time=0.01"),
        *(f"faults.plan=[{plan}]", *overrides),
    )
    return run, samples


def check_history(samples: Path, updates: int) -> None:
    """Check that every update exists once and that each worker's batches were applied in order, all of them once."""
    last = {line["update"]: line for line in map(json.loads, samples.read_text().splitlines())}
    assert sorted(last) == list(range(1, updates + 1))
    for worker in (0, 1):
        batches = [last[n]["batch"] for n in sorted(last) if last[n]["worker"] == worker]
        assert batches == list(range(len(batches)))
        assert batches  # it has done its share


def launches(run: Run) -> list[int]:
    return [len(run.named("step_launched", group=group)) for group in range(3)]


def losses(run: Run, attempt: int = 0) -> list[float]:
    return [float(loss) for loss in re.findall(r"held-out loss ([0-9.]+)", run.rank_log(0, attempt=attempt))]


@pytest.mark.parametrize("backend", [pytest.param("slurm", marks=pytest.mark.slurm)], indirect=True)
def test_a_worker_comes_back_alone_and_so_does_the_server(backend: Backend) -> None:
    run, samples = start(backend, 800, "checkpoint.every=40", kills={60: [1], 220: [0]})
    run.finish()
    assert launches(run) == [2, 2, 1]
    assert not run.named("step_launched", unit="lighthouse")
    check_history(samples, 800)
    assert len(set(run.weights().values())) == 1
    assert set(run.weights()) == {
        (0, 0),
        (1, 0),
        (2, 0),
    }  # the workers left with the weights that the server ended with

    # The server went on from its checkpoint, and the worker that had further weights handed them over.
    resumed = re.search(r"goes on from its checkpoint of update (\d+)", run.rank_log(0, attempt=1))
    assert resumed
    assert int(resumed[1]) % 40 == 0
    assert int(resumed[1]) >= 200
    (loss, *_), (*_, final) = losses(run), losses(run, attempt=1)
    assert final < loss / 2  # it learns

    # The worker that was never touched was asked to wait, not to look elsewhere; the server had moved.
    first, second = (str(run.named("serving", attempt=attempt)[0]["url"]) for attempt in (0, 1))
    assert first != second
    _, gone, after = run.rank_log(2).partition("the server is gone")  # before it, it may have begun before the server
    assert gone
    # It tries again after 0.2 s as long as the dying one's guard lives; then it waits, and is let through.
    away_s = float(str(run.named("serving", attempt=1)[0]["recovery_s"]))
    assert 0.2 * after.count("no session") < away_s / 2

    for line in ("group 1 (worker) is back: it has a session", "group 0 (server) is back: it serves at"):
        assert line in run.text
    assert "Lighthouse" not in run.text
    assert "Traceback" not in run.rank_log(0)


@pytest.mark.parametrize("backend", ["local"], indirect=True)  # how they die and are launched again is tested above
@pytest.mark.nightly
def test_when_all_die_the_checkpoint_is_left_and_without_one_nothing_begins_anew(backend: Backend) -> None:
    run, samples = start(backend, 240, "checkpoint.every=50", kills={120: [0, 1, 2]})
    lost, _ = start(backend, 10**6, "checkpoint.every=0", "restart.max_per_group=2", kills={60: [0], 200: [0, 1, 2]})
    run.finish()
    assert launches(run) == [2, 2, 2]
    assert "goes on from its checkpoint of update" in run.rank_log(0, attempt=1)
    assert "with the weights that worker" not in run.rank_log(0, attempt=1)
    check_history(samples, 240)

    lost.finish(1)  # the first time a worker had the weights, the second time nobody
    assert re.search(r"goes on from update \d+, with the weights that worker \d had", lost.rank_log(0, attempt=1))
    assert launches(lost)[0] == 3
    (end,) = lost.named("run_finished")
    assert "group 0 was given up, and the others need it (groups.serve)" in str(end["reason"])
    assert "The weights are lost" in str(end["failure"])
