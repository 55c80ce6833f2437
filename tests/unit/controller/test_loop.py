"""The controller's loop, with an error in one action."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ftslurm.config.schema import Config
from ftslurm.controller.loop import ENDS_S, SETTLES_S, Controller
from ftslurm.controller.signals import SIGNALS
from ftslurm.core.state.actions import Attach, Kill, Launch
from ftslurm.core.state.events import Ended, Explained, TaskFailed
from ftslurm.core.state.model import Phase, Place, StepId
from ftslurm.launchers.local import ThisMachine
from ftslurm.launchers.scheduler import AskOwnState
from ftslurm.protocol import records
from ftslurm.run.directory import RunDir

STEP = StepId("group-0000", 0)
PLACE = Place(("local0",))


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    """Return the controller of a local run that has not begun."""
    handlers = [(number, signal.getsignal(number)) for number in (*SIGNALS, signal.SIGCHLD)]
    wakeup = signal.set_wakeup_fd(-1)
    config = Config()
    config.cluster.kind = "local"
    run = RunDir(tmp_path / "run")
    run.create()
    yield Controller(config, run, ThisMachine(config, run), lambda _: None)
    for number, handler in handlers:
        signal.signal(number, handler)
    signal.set_wakeup_fd(wakeup)


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
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    controller._write([records.ScriptBegun(unit="group-0000", group=0, attempt=0)])
    assert "script_begun" in controller.run_dir.events.read_text()
    assert synced == []
    controller._write([records.QuorumRefused(reason="x")])
    assert len(synced) == 1


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
