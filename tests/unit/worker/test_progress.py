"""The Observer's reports on a history of quorums, commits, aborts and heals, with a fake of torchft."""

import gc
import logging
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from weakref import WeakSet

import pytest
import torch
from devices import Devices
from torchft_managers import fake_torchft, run_manager

from ftslurm.checkpoint.devices import on_this_device
from ftslurm.protocol import messages
from ftslurm.protocol.position import Position
from ftslurm.protocol.stages import Stage
from ftslurm.worker.commits import Commits
from ftslurm.worker.pace import STEPS
from ftslurm.worker.progress import Observer

KEYS = ["step", "quorum_id", "participants", "committed", "aborted", "gap_s"]


class Run:
    """One observed Manager and a clock that the test sets."""

    def __init__(self, report=None, every_s=1.0):
        self.now = 100.0
        self.reports = []
        self.position = Position()
        self.observer = Observer(
            report or self.reports.append, clock=lambda: self.now, every_s=every_s, position=self.position
        )
        lineage = SimpleNamespace(managers=WeakSet())
        watchers = SimpleNamespace(
            progress=self.observer, lineage=lineage, unhealed=SimpleNamespace(), compared=None, beside=None
        )
        watchers.commits = Commits(print)
        watchers.quorums = SimpleNamespace(cover=bool)
        self.Manager = run_manager(fake_torchft(), watchers)
        self.manager = self.Manager()

    def train(self, after_s=0.1, **step):
        self.now += after_s
        return self.manager.train(**step)

    def told(self, *keys):
        return [tuple(getattr(report, key) for key in keys) for report in self.reports]


def test_the_first_commit_is_reported_at_once_and_has_no_gap():
    run = Run()
    run.train()
    assert run.reports == [messages.Progress(*[1, 1, 2, 1, 0, None])]


def test_steady_commits_are_reported_once_a_second_with_the_longest_gap():
    run = Run()
    for after_s in [0.1, 0.25, 0.35, 0.45, 0.1, 0.2]:  # 1.05 s after the first report the fourth commit is due
        run.train(after_s)
    assert run.told("step", "gap_s") == [(1, None), (4, 0.45)]
    run.train(7.00004)
    assert run.told("step", "gap_s")[2:] == [(7, 7.0)]


def test_a_changed_quorum_is_reported_when_it_is_found_and_not_again_at_its_commit():
    run = Run()
    run.train(quorum=(1, 2))
    run.train(quorum=(2, 1))
    run.train(quorum=(2, 1))
    assert run.told("step", "quorum_id", "participants") == [(1, 1, 2), (1, 2, 1)]


def test_a_healed_peer_counts_without_a_new_quorum_id():
    run = Run()
    run.train(quorum=(3, 1))
    run.train(quorum=(3, 2))
    assert run.told("quorum_id", "participants") == [(3, 1), (3, 2)]


def test_an_aborted_step_is_reported_at_once_and_the_gap_spans_it():
    run = Run()
    run.train()
    assert run.train(commit=False) is False
    run.train(after_s=5)
    assert run.told("step", "committed", "aborted", "gap_s") == [(1, 1, 0, None), (1, 1, 1, None), (2, 2, 1, 5.1)]


def test_an_abort_before_the_first_commit_is_reported_and_the_first_commit_still_is():
    run = Run()
    run.train(commit=False)
    run.train()
    assert run.told("step", "committed", "aborted") == [(0, 0, 1), (1, 1, 1)]


def test_a_joining_group_reports_nothing_before_its_first_commit_and_that_is_a_healed_one():
    run = Run()
    run.train(quorum=(5, 1), heal_to=24)
    assert run.told("step", "participants", "committed") == [(25, 1, 1)]


def test_flush_reports_what_was_not_told_and_only_that():
    run = Run()
    run.observer.flush()
    run.train()
    run.observer.flush()
    run.train()
    run.observer.flush()
    run.observer.flush()
    assert run.told("step", "gap_s") == [(1, None), (2, 0.1)]


def test_two_managers_are_told_apart():
    run = Run(every_s=10)
    other = run.Manager()
    for _ in range(3):
        run.train(quorum=(1, 2))
        other.train(quorum=(7, 4))
    assert run.told("step", "quorum_id", "participants", "committed") == [(1, 1, 2, 1), (1, 7, 4, 2)]
    run.observer.flush()
    assert run.told("step", "quorum_id", "committed", "gap_s")[2:] == [(3, 7, 6, 0.1)]


def test_managers_in_many_threads_lose_no_commit():
    run = Run(every_s=0)
    managers = [run.Manager() for _ in range(4)]
    threads = [threading.Thread(target=lambda m=m: [m.train() for _ in range(200)]) for m in managers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = [report.committed for report in run.reports]
    assert counts == list(range(1, 801))


def test_a_forgotten_manager_is_not_kept_alive():
    run = Run()
    run.train()
    run.manager._executor.shutdown()
    run.manager = run.observer._unreported = None
    gc.collect()  # torchft's own has cycles, too
    assert len(run.observer._managers) == 0


@pytest.mark.parametrize(
    "error", [TimeoutError("no answer"), RuntimeError("exceeding max_retries"), KeyboardInterrupt()]
)
def test_an_exception_of_torchft_passes_through_unchanged_and_is_no_commit(error):
    run = Run()
    with pytest.raises(type(error)) as caught:
        run.train(commit=error)
    assert caught.value is error
    assert run.reports == []


def test_a_failing_report_is_noted_once_and_training_goes_on(caplog):
    def report(_):
        raise BrokenPipeError("the controller is gone")

    run = Run(report, every_s=0)
    with caplog.at_level(logging.WARNING):
        assert [run.train() for _ in range(3)] == [True, True, True]
        run.observer.flush()
    assert [record.message.count("the controller is gone") for record in caplog.records] == [1]


def on_gpu(index):
    return SimpleNamespace(device=torch.device("cuda", index))


@pytest.mark.parametrize("odd", [0.0, 0.2, 1.0])
def test_whatever_gpus_a_step_uses_and_however_they_fail_its_progress_is_reported(odd, monkeypatch):
    """The gradients' allreduce is called in the main thread or in a hook's, on its current device or another one."""
    for seed in range(10):
        dice = random.Random(seed)
        gpus = Devices(monkeypatch)
        gpus.odd = lambda dice=dice: dice.random() < odd
        run, used = Run(every_s=0), set()
        for _ in range(2 * STEPS):
            run.manager.start_quorum()
            for index in dice.choices(range(1, 4), k=dice.randrange(3)):
                hook = on_this_device(run.manager.allreduce) if dice.random() < 0.5 else run.manager.allreduce
                with ThreadPoolExecutor(1) as executor:
                    executor.submit(hook, on_gpu(index)).result()
                used.add(index)
            assert run.manager.should_commit()
            assert place(run) == (run.manager.current_step(), Stage.COMPUTING)
        assert run.told("step") == [(step,) for step in range(1, 2 * STEPS + 1)]
        assert gpus.contexts <= used  # and none on GPU 0, the current one


def test_the_clock_of_the_gpu_with_the_gradients_is_read_whatever_the_current_one_is(monkeypatch):
    gpus, run = Devices(monkeypatch), Run(every_s=0)
    for _ in range(STEPS + 2):
        run.manager.start_quorum()
        run.now, gpus.now = run.now + 0.01, gpus.now + 0.3
        run.manager.allreduce(on_gpu(2))
        run.now, gpus.now = run.now + 0.5, gpus.now + 0.2
        run.manager.should_commit()
    assert (run.reports[-1].own_s, run.reports[-1].step_s) == (0.3, 0.51)
    assert gpus.contexts == {2}


def test_a_report_of_a_long_run_is_small():
    run = Run()
    run.manager._step = 10**9
    run.train(quorum=(10**6, 10**4))
    run.train(after_s=123456.789)
    assert all(len(messages.encode_report(report, 9999)) < 300 for report in run.reports)


# --- the position ----------------------------------------------------------------------------------------------------


def place(run):
    found = run.position.read()
    return None if found is None else (found.step, Stage(found.stage))


def test_the_position_follows_every_step():
    run = Run()
    manager = run.manager
    assert place(run) is None
    release = threading.Event()
    manager._executor.submit(release.wait)  # the quorum has to wait
    manager.start_quorum()
    assert place(run) == (0, Stage.SEEKING_QUORUM)
    release.set()
    manager._quorum_future.result()
    assert place(run) == (0, Stage.HAS_QUORUM)
    manager.allreduce(torch.zeros(1))
    assert place(run) == (0, Stage.COLLECTIVE)
    manager.allreduce(torch.zeros(1))
    manager.should_commit()
    assert place(run) == (1, Stage.COMPUTING)
    manager.start_quorum(heal_to=24)
    manager._quorum_future.result()
    assert place(run) == (24, Stage.HAS_QUORUM)
    manager.should_commit(False)
    assert place(run) == (24, Stage.COMPUTING)


def test_an_allreduce_before_the_quorum_waits_for_it_and_then_is_one():
    run = Run()
    release = threading.Event()
    run.manager._executor.submit(release.wait)
    run.manager.start_quorum()
    thread = threading.Thread(target=run.manager.allreduce, args=(torch.zeros(1),))
    thread.start()
    while not run.observer._reducing:
        pass
    assert place(run) == (0, Stage.SEEKING_QUORUM)
    release.set()
    thread.join()
    assert place(run) == (0, Stage.COLLECTIVE)


def test_a_vote_that_never_returns_stays_a_vote():
    run = Run()
    run.train()
    with pytest.raises(TimeoutError):
        run.train(commit=TimeoutError("no answer"))
    assert place(run) == (1, Stage.VOTING)


def test_a_manager_of_a_class_of_the_scripts_own_is_seen_too():
    run = Run()

    class Mine(run.Manager):
        def should_commit(self, commit=True):
            return super().should_commit(commit)

    Mine().train()
    assert place(run) == (1, Stage.COMPUTING)


def test_the_first_quorum_is_told_once():
    run = Run()
    told = []
    run.observer.on_quorum = told.append
    run.train(quorum=(7, 3), heal_to=24)
    run.train(quorum=(8, 2))
    assert told == [messages.FirstQuorum()]
