"""Hooks get the events they have chosen, each once, whatever the other hooks do."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from example_journal import event, exited, finished, joined, launched, ready, started
from observed import PATIENCE_S, Observed, observed, until

from ftslurm.config import receivers
from ftslurm.config.schema import Config, HookConfig
from ftslurm.config.validate import check
from ftslurm.errors import ConfigError
from ftslurm.guard import processes
from ftslurm.observer.hook_command import MARK, HookCommand
from ftslurm.observer.sinks import MOST_WAITING, Sink


def program(tmp_path: Path, name: str, text: str) -> list[str]:
    """Write a shell script and return its command."""
    path = tmp_path / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return [str(path)]


def heard(tmp_path: Path, name: str = "heard") -> list[dict[str, object]]:
    """Return the events that a hook has written into a file."""
    path = tmp_path / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def short_run(run: Observed) -> None:
    """Write the journal of a run of which group 1 fails once."""
    run.write(started(2), *(launched(1, g) for g in (0, 1)), *(ready(2, g) for g in (0, 1)))
    run.write(*(joined(3, g, 1) for g in (0, 1)), exited(9, 1), launched(10, 1, 1), joined(11, 1, 8, 1, recovery_s=2.0))
    run.write(finished(20))


def test_a_hook_is_told_which_step_a_checkpoint_has(tmp_path: Path) -> None:
    run = observed(tmp_path, hooks={"on_event": [program(tmp_path, "note.sh", f"cat >> {tmp_path}/heard")]})
    saved = event(8, "checkpoint_saved", group=0, attempt=0, step=7, path="/c/step-7", seconds=0.1)
    run.write(started(2), saved, finished(20))
    run.observe()
    assert "checkpoint of step 7 saved in /c/step-7" in [one["text"] for one in heard(tmp_path)]


def test_a_hook_gets_the_events_of_interest_as_json(tmp_path: Path) -> None:
    run = observed(tmp_path, hooks={"on_event": [program(tmp_path, "note.sh", f"cat >> {tmp_path}/heard")]})
    short_run(run)
    run.observe()
    kinds = ["run_started", "group_failed", "group_restarted", "run_finished"]
    assert [one["kind"] for one in heard(tmp_path)] == kinds
    failed = heard(tmp_path)[1]
    assert failed["run_id"] == "run"
    assert failed["run_dir"] == str(run.run.root)
    assert "group 1" in str(failed["text"])
    assert "killed" in str(failed["text"])
    assert failed["event"]["event"] == "step_exited"  # type: ignore[index]
    assert (run.told["hook note.sh"].done, run.told["hook note.sh"].failed) == (4, 0)


def test_a_hook_with_events_of_its_own_gets_these_alone(tmp_path: Path) -> None:
    note = program(tmp_path, "note.sh", f"cat >> {tmp_path}/heard")
    run = observed(tmp_path, hooks={"on_event": [{"command": note, "events": ["group_starting", "quorum_refused"]}]})
    short_run(run)
    run.write(event(30, "quorum_refused", reason="of no group"))
    run.observe()
    assert [one["kind"] for one in heard(tmp_path)] == [*["group_starting"] * 3, "quorum_refused"]


STREAM = """echo $$ >> {0}/processes
while read -r line; do
    printf '%s\\n' "$line" >> {0}/heard
    case $line in
        *group_restarted*) printf 'no route to host\\nand more\\n' ;;
        *group_failed*) echo "a word beside it" >&2; echo ;;
        *full_restart*) echo broken >&2; exec >&-; sleep 0.3; exit 7 ;;
        *checkpoint_saved*) head -c 3000000 /dev/zero | tr '\\0' x >&2; echo ;;
        *) echo ;;
    esac
done"""


def test_a_hook_that_streams_is_one_process_that_answers_each_event_with_a_line(tmp_path: Path) -> None:
    stream = program(tmp_path, "stream.sh", STREAM.format(tmp_path))
    run = observed(tmp_path, hooks={"on_event": [{"command": stream, "stream": True}]})
    run.write(started(2), exited(9, 1), event(10, "checkpoint_saved", group=0, attempt=0, step=7, path="/c" * 300_000))
    run.write(joined(11, 1, 8, 1, recovery_s=2.0), event(12, "full_restart", step=8), finished(20))
    run.observe()
    kinds = ["run_started", "group_failed", "checkpoint_saved", "group_restarted", "full_restart", "run_finished"]
    assert [one["kind"] for one in heard(tmp_path)] == kinds
    told = run.told["hook stream.sh"]
    assert (told.done, told.failed, told.last_error) == (6, 2, "exit code 7: broken")
    assert len(set((tmp_path / "processes").read_text().split())) == 2  # the one that has ended, and the next
    log = run.run.observer_log.read_text()
    assert "hook stream.sh: a word beside it" in log
    assert "hook stream.sh, at group_restarted: no route to host" in log
    assert not list(processes.having(MARK, str(run.run.root)))


@pytest.mark.nightly
def test_a_hook_that_streams_and_hangs_is_killed_although_a_child_of_it_lives_on(tmp_path: Path) -> None:
    text = f"setsid sleep 60 &\nread -r line; echo\nread -r line; read -r line < {tmp_path}/never"
    os.mkfifo(tmp_path / "never")
    command = program(tmp_path, "hangs.sh", text)
    run = observed(tmp_path, hooks={"on_event": [{"command": command, "stream": True}]})
    run.write(started(2), exited(9, 1))
    with run.observer():
        until(lambda: run.told and run.told["hook hangs.sh"].done == 2, "the second event is given up")
    assert run.told["hook hangs.sh"].last_error == "killed after 10 s"
    for pid, _ in processes.having(MARK, str(run.run.root)):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("exec <&-; sleep 0.3", None),  # it reads nothing
        ("exec >&- 2>&-; cat > /dev/null; sleep 0.3", None),  # it prints nothing
        ("sleep 30 & exit 0", None),  # a child holds its output
        ("kill -9 $$", "ended by signal 9"),
    ],
)
def test_a_hook_may_close_what_it_does_not_need_and_leave_children(text: str, why: str | None, tmp_path: Path) -> None:
    run = observed(tmp_path, hooks={"on_event": [program(tmp_path, "odd.sh", text)]})
    large = event(10, "warning", group=None, text="x" * 300_000)  # more than a pipe holds
    run.write(large)
    run.observe()
    told = run.told["hook odd.sh"]
    assert (told.done, told.last_error) == (1, why)  # and not: killed after 10 s
    for pid, _ in processes.having(MARK, str(run.run.root)):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.nightly
def test_each_bad_hook_costs_its_own_events_only(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    hangs = f"read line < {tmp_path}/never"
    slow = {
        "hangs.sh": hangs,
        "floods.sh": f"head -c 3000000 /dev/zero | tr '\\0' x\n{hangs}",  # more than a pipe holds
    }
    hooks = [
        *({"command": program(tmp_path, name, text), "events": ["group_failed"]} for name, text in slow.items()),
        program(tmp_path, "fails.sh", "echo no route to host; exit 3"),
        [str(tmp_path / "missing.sh")],
        program(tmp_path, "note.sh", f"cat >> {tmp_path}/heard"),
    ]
    run = observed(tmp_path, hooks={"on_event": hooks})
    short_run(run)
    run.observe()
    assert len(heard(tmp_path)) == 4
    told = run.told
    assert (told["hook fails.sh"].done, told["hook fails.sh"].failed) == (4, 4)
    assert told["hook fails.sh"].last_error == "exit code 3: no route to host"
    for name in slow:
        assert (told[f"hook {name}"].done, told[f"hook {name}"].failed) == (1, 1)
        assert "killed after 10 s" in str(told[f"hook {name}"].last_error)
    assert "cannot be started" in str(told["hook missing.sh"].last_error)
    assert "hook fails.sh, at group_failed: exit code 3" in run.run.observer_log.read_text()
    assert not list(processes.having(MARK, str(run.run.root)))


def test_a_hook_sees_neither_secrets_nor_ftslurms_own_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hidden")
    monkeypatch.setenv("RUN_WEBHOOK", "https://chat.example")
    monkeypatch.setenv("FTSLURM_STEP", "group-0000/0")
    show = program(tmp_path, "show.sh", f"env > {tmp_path}/env")
    run = observed(tmp_path, hooks={"on_event": [show]}, job={"secrets": ["WANDB_API_KEY"]})
    run.write(finished(20))
    run.observe()
    env = (tmp_path / "env").read_text()
    assert "hidden" not in env
    assert "FTSLURM_STEP" not in env
    assert "RUN_WEBHOOK=https://chat.example" in env


def test_the_next_observer_goes_on_after_the_last_finished_event(tmp_path: Path) -> None:
    run = observed(tmp_path, hooks={"on_event": [program(tmp_path, "note.sh", f"cat >> {tmp_path}/heard")]})
    run.write(started(2), launched(1, 0))
    run.observe()
    run.write(ready(2, 0), exited(9, 0), finished(20))
    run.observe()
    run.observe()
    assert [one["kind"] for one in heard(tmp_path)] == ["run_started", "group_failed", "run_finished"]
    assert run.told["hook note.sh"].done == 3


def test_the_event_of_a_killed_observer_is_told_again(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    slow = f"cat >> {tmp_path}/begun; read line < {tmp_path}/go; echo done >> {tmp_path}/ended"
    run = observed(tmp_path, hooks={"on_event": [program(tmp_path, "slow.sh", slow)]})
    run.write(started(2))
    with run.observer() as first:
        until(lambda: heard(tmp_path, "begun"), "the hook begins")
        first.kill()
    with run.observer():
        until(lambda: len(heard(tmp_path, "begun")) == 2, "the hook begins again")
        with (tmp_path / "go").open("w") as go:
            go.write("go\n")
        until(lambda: run.told, "the event is noted")
    assert [one["kind"] for one in heard(tmp_path, "begun")] == ["run_started"] * 2
    assert (tmp_path / "ended").read_text() == "done\n"  # the first one was killed by the second observer
    assert run.told["hook slow.sh"].done == 1


def test_an_observer_ends_when_another_controller_leads(tmp_path: Path) -> None:
    run = observed(tmp_path, hooks={"on_event": [["true"]]})
    run.run.leaders.mkdir(mode=0o700)
    (run.run.leaders / "0001").touch()
    with run.observer("1") as process:
        until(lambda: run.run.observer_log.exists(), "it is up")
        (run.run.leaders / "0002").touch()
        until(lambda: process.poll() is not None, "it ends")
        assert process.returncode == 0


class Waits(HookCommand):
    """A receiver that takes each event once the test lets it."""

    name, events = "slow", frozenset({"warning"})

    def __init__(self) -> None:
        self.begun, self.go, self.got = threading.Event(), threading.Event(), list[object]()

    def deliver(self, message: Mapping[str, object]) -> None:
        self.begun.set()
        assert self.go.wait(PATIENCE_S)
        self.got.append(message["number"])

    def kill(self) -> None:
        """Nothing runs any more."""


@pytest.mark.parametrize("within_s", [PATIENCE_S, 0.0], ids=["there is time", "only the last one can be told"])
def test_a_flood_of_events_drops_the_oldest_and_counts_them(within_s: float) -> None:
    receiver = Waits()
    sink = Sink(receiver, None, lambda: None)
    for number in range(1, 1501):
        sink.put({"kind": "warning", "number": number}, number)
        assert receiver.begun.wait(PATIENCE_S)  # with the first one
    sink.finish(within_s, drops=True)
    receiver.go.set()
    sink.join(PATIENCE_S)
    last = MOST_WAITING if within_s else 1
    assert receiver.got == [1, *range(1501 - last, 1501)]
    assert (sink.delivery.done, sink.delivery.dropped) == (1 + last, 1499 - last)


@pytest.mark.nightly
def test_a_hook_that_hangs_in_a_flood_of_events_costs_the_oldest(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    hangs = program(tmp_path, "hangs.sh", f"read line < {tmp_path}/never")
    run = observed(tmp_path, hooks={"on_event": [hangs]})
    run.write(*(event(n, "warning", group=None, text=f"warning {n}") for n in range(1500)), finished(2000))
    run.observe()
    delivery = run.told["hook hangs.sh"]
    assert delivery.dropped >= 500
    assert delivery.done + delivery.dropped == 1501


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"command": ["cat"], "stream": 2}, r"\.stream=2: must be true or false"),
        ({"command": ["cat"], "steam": True}, r"\.steam; hooks.on_event may have command, events, stream"),
        ({"stream": True}, r": `command` is missing"),
        ({"command": []}, r": a command is empty"),
        ({"command": ["cat"], "events": {"run_finished": 1}}, r"\.events: must be a list"),
        ({"command": ["cat"], "events": ["run_finishd"]}, r"'run_finishd' is no event; did you mean run_finished"),
        ({"command": [["cat"]]}, r"\.command\[0\]: must be text"),
        (7, ": 7 is no program"),
        ([], "a command is empty"),
    ],
)
def test_a_hook_that_is_written_wrongly_is_refused(entry: Any, words: str) -> None:
    config = Config()
    config.job.script = __file__
    config.hooks.on_event = [entry]
    with pytest.raises(ConfigError, match=f"hooks.on_event.*{words}"):
        check(config)


def test_two_hooks_of_one_program_have_names_of_their_own() -> None:
    config = Config()
    config.hooks.on_event, config.hooks.callbacks = [["mail"], ["./mail", "b"], HookConfig("other")], ["mine.Notes"]
    made = receivers.hooks(config)
    assert [hook.name for hook in made] == ["hook mail", "hook mail-2", "hook other", "callback mine.Notes"]
    assert [hook.stream for hook in made] == [False, False, False, True]
