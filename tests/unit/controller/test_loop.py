"""The controller's loop, with an error in one action."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.layout import Writer
from ftslurm.config.schema import Config
from ftslurm.controller.loop import ENDS_S, SETTLES_S, Controller
from ftslurm.controller.signals import SIGNALS
from ftslurm.core.rules import begin
from ftslurm.core.state.actions import Attach, DistrustCheckpoints, Kill, Launch, NoteBroken
from ftslurm.core.state.events import Asked, Ended, ErrandDone, Event, Explained, Granted, StopAsked, TaskFailed
from ftslurm.core.state.model import Phase, Place, Saved, StepId
from ftslurm.launchers.local import ThisMachine
from ftslurm.launchers.scheduler import AskOwnState
from ftslurm.launchers.step_processes import LauncherPrinted
from ftslurm.protocol import records
from ftslurm.run import inbox, kept_state, stored_checkpoints
from ftslurm.run.directory import RunDir
from ftslurm.run.kept_state import Kept
from ftslurm.slurm.evidence import read_srun

STEP = StepId("group-0000", 0)
PLACE = Place(("local0",))
STORE = "s3://bucket/folder"


@pytest.fixture
def process() -> Iterator[None]:
    """Restore what a controller has changed in this process."""
    handlers = [(number, signal.getsignal(number)) for number in (*SIGNALS, signal.SIGCHLD)]
    wakeup = signal.set_wakeup_fd(-1)
    yield
    for number, handler in handlers:
        signal.signal(number, handler)
    signal.set_wakeup_fd(wakeup)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.create()
    return made


def made(run: RunDir, kept: Kept | None = None) -> Controller:
    """Return the controller of a local run that has not begun."""
    config = Config()
    config.cluster.kind = "local"
    config.checkpoint.dir = STORE if kept is not None else None
    return Controller(config, run, ThisMachine(config, run), lambda _: None, kept)


@pytest.fixture
def controller(run: RunDir, process: None) -> Controller:
    return made(run)


def test_an_error_in_one_action_is_recorded_and_the_others_are_carried_out(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(controller.scheduler, "start", broken)
    killed: list[tuple[StepId, int]] = []
    monkeypatch.setattr(controller.children, "kill", lambda step, first, **_: killed.append((step, first)))
    controller.events = []
    controller._act([Launch(STEP, 0, PLACE), Kill(STEP)])
    failed, ended = controller.events
    assert isinstance(failed, TaskFailed)
    assert isinstance(ended, Ended)  # the core does not wait for the end of a step that has not begun
    assert killed == [(STEP, signal.SIGTERM)]
    controller._write([])
    (line,) = [json.loads(line) for line in controller.run_dir.events.read_text().splitlines()]
    assert (line["event"], line["where"], line["error"]) == ("controller_error", "an action (Launch)", "KeyError: 'x'")


@pytest.mark.parametrize("lines", list(permutations([
    "slurmstepd-n1: error: execve(): nosuchpython: No such file or directory",
    "srun: error: n1: task 0: Exited with exit code 2",
    "srun: error: n2: tasks 1-3: Exited with exit code 2",
    "srun: error: n3: task 4: Killed",
])))  # fmt: skip
def test_what_srun_says_of_a_tasks_end_hides_no_other_line(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, lines: Sequence[str]
) -> None:
    monkeypatch.setattr(controller.scheduler, "printed", lambda line: filter(None, [read_srun(line)]))
    controller.events = []
    for line in lines:
        controller._heard(LauncherPrinted(STEP, line))
    assert controller.last_printed[STEP].startswith("slurmstepd-n1")
    assert len(controller.events) == 3  # the others are evidence


def test_no_line_follows_that_of_the_end(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller.scheduler, "start", lambda *_: 1 / 0)
    controller.events = []
    controller._write([records.RunFinished(outcome="failed", reason="x", steps=1, restarts=0)])
    controller._act([Launch(STEP, 0, PLACE)])
    controller._write([])
    (line,) = [json.loads(line) for line in controller.run_dir.events.read_text().splitlines()]
    assert line["event"] == "run_finished"  # who reads the last line knows that the run is over


def test_a_script_begins_before_its_line_is_on_disk_but_not_before_it_is_written(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller._write([records.QuorumRefused(reason="x")])
    controller._flush(sync=True)
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    controller._write([records.ScriptBegun(unit="group-0000", group=0, attempt=0)])
    assert "script_begun" in controller.run_dir.events.read_text()
    assert synced == []
    controller._write([records.QuorumRefused(reason="x")])
    assert len(synced) == 1  # of the state


def test_a_cancelled_job_without_groups_ends_when_slurm_has_answered_and_waits_for_no_other_answer(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[AskOwnState] = []
    monkeypatch.setattr(controller.executor, "ask", lambda ask: asked.append(ask) or [])
    controller.separate_jobs, controller.config.cluster.kind = True, "array"
    controller._signalled(signal.SIGTERM)
    controller._own_job_ends([Explained(ask.signalled) for ask in asked])
    controller._decide()
    assert controller.state.ending is not None
    assert controller.state.ending.until < controller.now()


def test_a_request_by_which_a_group_leaves_waits_until_it_is_known_what_runs(controller: Controller) -> None:
    for what in ("restart", "save", "stop"):
        inbox.put(controller.run_dir.inbox, what, group=0)
    controller._gather(0.0)
    assert [event for event in controller.events if isinstance(event, Asked)] == []
    assert [type(event) for event in controller.events[-1:]] == [StopAsked]
    controller.events = []  # as after the first decision, of a run without steps to adopt
    controller.next_inbox = 0.0
    controller._gather(0.0)
    assert [event.what for event in controller.events if isinstance(event, Asked)] == ["restart", "save"]


def test_a_job_of_which_slurm_does_not_answer_leaves_the_run_to_another_controller(controller: Controller) -> None:
    controller.separate_jobs, controller.config.cluster.kind = True, "array"
    controller._own_job_ends([Explained(True, answered=False)])
    assert controller.leaving is not None
    controller._decide()
    assert controller.state.ending is None


def test_an_error_while_a_step_is_adopted_ends_the_controller_because_the_step_may_run(controller: Controller) -> None:
    with pytest.raises(NotImplementedError):  # a local run adopts nothing
        controller._act([Attach(STEP, PLACE)])


def test_who_is_warned_leads_on_for_a_moment_and_until_what_ends_has_ended(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(controller, "now", lambda: now)
    controller.separate_jobs = True
    assert not controller._leaves()
    controller._signalled(signal.SIGUSR2)
    assert not controller._leaves()
    now += SETTLES_S
    assert controller._leaves()
    group = replace(controller.state.groups[0], phase=Phase.STOPPING)
    controller.state = replace(controller.state, table=controller.state.table.put(group))
    assert not controller._leaves()
    now += ENDS_S
    assert controller._leaves()


def test_a_controller_goes_on_with_the_state_and_never_before_the_time_of_the_one_before(
    run: RunDir, process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store that is away at this moment is no reason to end a run."""
    monkeypatch.setattr(stored_checkpoints, "_ask", lambda *_: 1 / 0)
    newest, ahead = Saved(f"{STORE}/step-00000040", 40), time.time() + 100
    state = begin(Config())
    state = replace(state, restarts=7, lineage=replace(state.lineage, checkpoint=newest))
    controller = made(run, Kept(state, 5, ahead))
    (granted,) = controller.events
    assert isinstance(granted, Granted)
    assert (granted.resumed, granted.refused, granted.checkpoint) == (ahead, None, newest)
    assert controller.state == state
    assert controller.start.groups == 2
    assert controller.now() >= ahead
    assert controller.journal.append(records.QuorumRefused(reason="x"))["seq"] == 6


def refused(_: int) -> None:
    raise OSError(errno.ENOSPC, "full")


def test_a_command_stays_in_the_inbox_until_what_came_of_it_is_on_disk(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = controller.run_dir
    command = inbox.put(run.inbox, "save")  # which is answered when it is saved: no line tells of it at once
    controller._gather(0.0)
    asked = [event for event in controller.events if isinstance(event, Asked)]
    assert [event.command for event in asked] == [command]
    controller.next_inbox = 0.0
    controller._gather(0.0)
    assert [event for event in controller.events if isinstance(event, Asked)] == asked, "it is read once"
    controller.tell_at_once = lambda _: None
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refused)
        controller._write([])
    assert len(list(run.inbox.iterdir())) == 1
    controller.journal._state.failed = 0.0  # the time to try again
    controller._write([])
    assert list(run.inbox.iterdir()) == []
    assert run.kept(0).exists()


def test_a_stop_carries_the_id_of_its_command(controller: Controller) -> None:
    command = inbox.put(controller.run_dir.inbox, "stop")
    controller._gather(0.0)
    assert [event.command for event in controller.events if isinstance(event, StopAsked)] == [command]


def test_the_last_line_of_one_that_leaves_says_so_and_nothing_is_carried_out(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller.executor, "carry_out", lambda action: pytest.fail(str(action)))
    controller.number, controller.leaving = 3, "its job ends"
    controller.events = []
    assert controller._end() == "left"
    *_, line = [json.loads(line) for line in controller.run_dir.events.read_text().splitlines()]
    assert (line["event"], line["reason"], line["leader"]) == ("controller_left", "its job ends", 3)
    assert kept_state.read(controller.run_dir, 1) is not None


def test_one_whose_disk_stalls_is_seen_to_live_for_a_while(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Config, "heartbeat_s", 0.05)
    monkeypatch.setattr(Config, "orphan_after_s", 4.0)
    alive, began, stalls = controller.run_dir.alive, time.monotonic(), threading.Event()
    monkeypatch.setattr(os, "fsync", lambda _: stalls.wait(30))
    threading.Thread(target=controller._beat_while_writing, daemon=True).start()
    writing = threading.Thread(target=controller._write, args=([records.QuorumRefused(reason="x")],))
    first = alive.stat().st_mtime_ns
    time.sleep(0.3)
    assert alive.stat().st_mtime_ns == first, "the loop itself does it otherwise"
    writing.start()
    last = first
    while alive.stat().st_mtime_ns != last or time.monotonic() < began + 1:
        last = alive.stat().st_mtime_ns
        time.sleep(0.5)
        assert time.monotonic() < began + 30
    assert last > first
    assert last / 1e9 - first / 1e9 < 10
    stalls.set()
    writing.join()
    controller.closed.set()


KILLED = """
import os, sys
from ftslurm.controller import kill_switch
lines = [{"seq": 7, "event": "step_exited", "unit": "group-0001"}]
for before in (True, False):
    print(before, flush=True)
    kill_switch.pull(lines, before)
print("lives")
"""


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("", "True False lives"),
        ("step_exited", "True False"),
        ("step_exited:group-0001", "True False"),
        ("step_exited:group-0001:before", "True"),
        ("7", "True False"),
        ("7:before", "True"),
        ("step_exited:group-0002", "True False lives"),
        ("step", "True False lives"),
        ("1", "True False lives"),
    ],
)
def test_a_test_can_kill_a_controller_once_at_a_record(tmp_path: Path, when: str, said: str) -> None:
    order = tmp_path / "when"

    def once() -> str:
        command, env = [sys.executable, "-c", KILLED], {**os.environ, "FTSLURM_TEST_KILL": str(order)}
        return " ".join(subprocess.run(command, env=env, capture_output=True, text=True).stdout.split())

    assert once() == "True False lives"
    order.write_text(when)
    assert once() == said
    assert order.exists() is said.endswith("lives")
    order.unlink(missing_ok=True)
    assert once() == "True False lives"


# --- errands ---------------------------------------------------------------------------------------------------------


def answer(controller: Controller) -> list[Event]:
    """Wait for the answer of what runs in the background."""
    until = time.monotonic() + 60
    while controller.children.background.running and time.monotonic() < until:
        for news in controller.children.listen(0.1):
            controller._heard(news)
    return [event for event in controller.events if isinstance(event, ErrandDone)]


def test_checkpoints_are_distrusted_in_the_background_and_again_after_a_failure(
    controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    errand, run = DistrustCheckpoints(1, 2, after=10), controller.run_dir
    part = run.checkpoints / layout.part_name(20, Writer(run.root.name, 1, 2), 1)
    part.write_text("in the way")
    controller.events = []
    for _ in range(2):
        assert controller.executor.carry_out(errand) == []
        assert answer(controller) == []
    assert caplog.text.count("has failed and is tried again") == 1
    part.unlink()
    part.mkdir()
    controller.executor.carry_out(errand)
    assert answer(controller) == [ErrandDone(errand)]
    assert (part / layout.DISTRUSTED).exists()


def test_an_object_store_is_asked_with_the_credentials_of_the_job(controller: Controller) -> None:
    controller.config.checkpoint.dir, controller.config.job.env = STORE, {"AWS_PROFILE": "x"}
    request = controller.executor._distrust(DistrustCheckpoints(1, 2, after=10))
    assert request.argv[-6:] == ["distrust", STORE, controller.run_dir.root.name, "1", "2", "10"]
    assert request.env is not None
    assert request.env["AWS_PROFILE"] == "x"


def test_a_word_about_a_broken_node_is_done_at_once_or_not(controller: Controller, tmp_path: Path) -> None:
    errand = NoteBroken("n1", "GPU lost")
    assert controller.executor.carry_out(errand) == [ErrandDone(errand)]  # nobody wants to know
    file = tmp_path / "broken.jsonl"
    controller.config.cluster.exclude_file = str(file)
    file.mkdir()
    assert controller.executor.carry_out(errand) == []
    file.rmdir()
    assert controller.executor.carry_out(errand) == [ErrandDone(errand)]
    assert "GPU lost" in file.read_text()
