"""The example's server, with real sessions, never resumes from step 0 once trained."""

from __future__ import annotations

import importlib.util
import json
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from ftslurm.config.schema import shipped

NEW = -1
ARGS = {"updates": 40, "batch_size": 4, "dim": 4, "lr": 0.1, "seed": 0, "batch_time": 0.0, "print_every": 1000}


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], ModuleType]:
    """The example as in an attempt of the server: two workers, a checkpoint every 10 updates."""

    def load(attempt: int) -> ModuleType:
        known = {"NUM_REPLICA_GROUPS": "3", "ROLE_NAME": "server", "ROLE_RANK": "0"}
        known |= {"FTSLURM_CHECKPOINT_DIR": str(tmp_path), "FTSLURM_CHECKPOINT_EVERY": "10"}
        for name, value in (known | {"TORCHELASTIC_RESTART_COUNT": str(attempt)}).items():
            monkeypatch.setenv(name, value)
        spec = importlib.util.spec_from_file_location("parameter_server", shipped("examples") / "parameter_server.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def server_of(module: ModuleType, samples: Path | None = None) -> Any:
    return module.Server(Namespace(**ARGS, samples=samples and str(samples)))


class Worker:
    """One session of a worker that holds weights of so many updates, or none."""

    def __init__(self, module: ModuleType, server: Any, worker: int, attempt: int, held: int) -> None:
        self.give, self.worker, self.holds = module.give, worker, False
        self.mine = module.untrained(server.task)
        self.session = module.Server.new_session(server.address())
        wanted = torch.zeros(1, dtype=torch.int64)
        self.give(self.session, 1, torch.tensor([worker, attempt, held]))
        self.give(self.session, 0, wanted)
        self.asked = bool(wanted)
        if self.asked:
            self.mine.counts[[0, 1 + worker]] = held
            self.mine.weights += held  # so that they can be recognised
            self.give(self.session, 1, self.mine.counts, self.mine.weights)

    def pull(self) -> int:
        """Return the number of updates in the server's current weights."""
        self.give(self.session, 0, self.mine.counts, self.mine.weights)
        self.holds = True
        return int(self.mine.counts[0])

    def push(self, batch: int) -> None:
        self.holds = False
        self.give(self.session, 1, torch.tensor([batch]), torch.ones_like(self.mine.weights))

    def train(self, updates: int) -> int:
        for _ in range(updates):
            if not self.holds:
                self.pull()
            self.push(int(self.mine.counts[1 + self.worker]))
        return self.pull()


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_first_attempt_begins_and_a_later_one_goes_on_from_the_checkpoint(
    example: Callable[[int], ModuleType],
) -> None:
    first = example(0)
    assert Worker(first, server_of(first), 0, 0, NEW).train(13) == 13
    second = example(1)
    server = server_of(second)
    worker = Worker(second, server, 0, 1, NEW)
    assert not worker.asked
    assert worker.pull() == 10
    assert server.step == 10


def test_a_worker_hands_over_newer_weights_until_others_were_built_upon(
    example: Callable[[int], ModuleType],
) -> None:
    module = example(0)
    server = server_of(module)
    first, further = Worker(module, server, 0, 0, 5), Worker(module, server, 1, 0, 9)
    assert (first.asked, further.asked) == (True, True)
    assert further.pull() == 9
    assert torch.equal(further.mine.weights, module.untrained(server.task).weights + 9)
    assert first.pull() in (5, 9)  # it may have pulled before the other came
    further.push(9)
    assert further.pull() == 10
    late = Worker(module, server, 0, 0, 30)
    assert not late.asked
    assert late.pull() == 10


@pytest.mark.parametrize(("attempt", "lost"), [(0, False), (1, True)])
def test_without_a_checkpoint_and_weights_it_begins_only_if_there_never_were_any(
    example: Callable[[int], ModuleType], attempt: int, lost: bool
) -> None:
    module = example(1)
    server = server_of(module)
    assert server.state is None
    Worker(module, server, 0, 0, NEW)
    time.sleep(0.2)
    assert server.state is None
    assert not server.lost  # the other may have them
    other = Worker(module, server, 1, attempt, NEW)
    until(lambda: server.lost or server.state)
    assert server.lost is lost
    if not lost:
        assert other.pull() == 0


def test_what_was_applied_is_not_applied_again_and_a_gap_is_refused(
    example: Callable[[int], ModuleType], tmp_path: Path
) -> None:
    module = example(0)
    server = server_of(module, tmp_path / "samples")
    worker = Worker(module, server, 1, 0, NEW)
    for batch in (0, 0, 2, 1):
        worker.pull()
        worker.push(batch)
    assert worker.pull() == 2
    assert worker.mine.counts.tolist() == [2, 0, 2]
    lines = [json.loads(line) for line in (tmp_path / "samples").read_text().splitlines()]
    assert lines == [{"update": n + 1, "worker": 1, "batch": n} for n in range(2)]


def test_the_last_update_is_on_disk_before_anybody_knows_of_it(example: Callable[[int], ModuleType]) -> None:
    module = example(0)
    server = server_of(module)
    server.every = 0
    workers = [Worker(module, server, number, 0, NEW) for number in (0, 1)]
    threads = [threading.Thread(target=worker.train, args=(19,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not server.path.exists()
    assert workers[0].train(2) == 40
    assert server_of(example(1)).step == 40


def test_a_checkpoint_that_cannot_be_written_is_a_reason_to_end(example: Callable[[int], ModuleType]) -> None:
    module = example(0)
    server = server_of(module)
    server.path = Path("/proc/nowhere/parameter_server.pt")
    worker = Worker(module, server, 0, 0, NEW)
    with pytest.raises(module.Gone):
        worker.train(10)
    assert "/proc/nowhere/parameter_server.pt cannot be written" in server.problem
    assert server.step == 9


def test_a_checkpoint_of_another_model_is_refused(example: Callable[[int], ModuleType]) -> None:
    module = example(0)
    server = server_of(module)
    server.save(module.State(torch.zeros(9, dtype=torch.int64), server.state.weights))
    with pytest.raises(SystemExit, match="another model, or of another number of workers"):
        server_of(module)
