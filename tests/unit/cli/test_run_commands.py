"""inject: its refusals, its request to the controller, its report of the answer. status: failed parts of a run."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands_left
import example_journal as ex
import pytest
from json_schema import check_status

from ftslurm.api import answers
from ftslurm.api.run import Run
from ftslurm.cli.main import main
from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.errors import EnvironmentProblem
from ftslurm.run.directory import RunDir

Answers = list[ex.Line]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run of three groups of two ranks, at step 61, without a controller."""
    run = ex.new_run(tmp_path, [line for line in ex.one_kill() if line["time"] < ex.START + 15.2])
    config = Config()
    config.job.script, config.run.name = "train.py", "ddp"
    config.cluster.kind, config.groups.count, config.groups.workers = "local", 3, 2
    run.config.write_text(compose.dump(config))
    run.inbox.mkdir()
    run.alive.touch()
    return run


@pytest.fixture
def answering(run: RunDir) -> Callable[[Callable[[dict[str, Any]], Answers]], list[dict[str, Any]]]:
    """A function that answers the first command as a controller does and returns the list that receives it."""

    def play(answer: Callable[[dict[str, Any]], Answers]) -> list[dict[str, Any]]:
        taken: list[dict[str, Any]] = []

        def controller() -> None:
            deadline = time.monotonic() + 20
            while not taken and time.monotonic() < deadline:
                taken.extend(commands_left.take(run.inbox))
                time.sleep(0.01)
            for command in taken:
                ex.write(run, answer(command))

        threading.Thread(target=controller, daemon=True).start()
        return taken

    return play


def test_it_tells_what_the_controller_did(run: RunDir, answering: Any, capsys: pytest.CaptureFixture[str]) -> None:
    others = [ex.injected(20, "stop", 0, rank=1, by="faults.plan"), ex.injected(20, "kill", 1, rank=1, by=os.getuid())]
    mine = ex.injected(21, "stop", 1, rank=1, step=61, by=os.getuid())
    taken = answering(lambda _: [ex.event(20, "command", what="inject stop", by=os.getuid()), *others, mine])
    assert main(["inject", str(run.root), "stop", "--group", "1", "--rank", "1"]) == 0
    told = capsys.readouterr()
    assert told.out == "drill: SIGSTOP of rank 1 of group 1 at step 61\n"
    assert told.err == ""
    (command,) = taken
    assert command.items() >= {"what": "inject", "kind": "stop", "group": 1, "rank": 1, "by": os.getuid()}.items()


def test_what_is_left_open_the_controller_chooses(
    run: RunDir, answering: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = answering(lambda command: [ex.injected(21, command["kind"], 2, step=61)])
    assert main(["inject", "kill", "--root", str(run.root.parent)]) == 0
    assert capsys.readouterr() == ("drill: SIGKILL of rank 0 of group 2 at step 61\n", "")
    assert taken[0].items() >= {"kind": "kill", "group": None, "rank": 0}.items()


def test_a_refusal_is_told_and_is_a_failure(run: RunDir, answering: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answering(lambda _: [ex.event(21, "fault_refused", kind="node", group=1, rank=0, reason="group 1 is not running")])
    assert main(["inject", str(run.root), "--group=1", "node"]) == 1
    why = "drill refused, loss of the node of rank 0 of group 1: group 1 is not running"
    assert capsys.readouterr() == ("", f"ftslurm: {why}\n")


def test_the_lighthouse_needs_no_group(run: RunDir, answering: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answering(lambda _: [ex.injected(21, "lighthouse", None)])
    assert main(["inject", str(run.root), "lighthouse"]) == 0
    assert capsys.readouterr().out == "drill: the Lighthouse killed\n"


def test_a_run_that_ends_meanwhile_was_not_harmed(
    run: RunDir, answering: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(lambda _: [ex.finished(21)])
    assert main(["inject", str(run.root), "kill"]) == 1
    assert "succeeded before it could do that" in capsys.readouterr().err


def test_silence_is_told_with_the_log_to_look_into(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(answers, "ANSWER_S", 0.1)
    assert main(["inject", str(run.root), "kill"]) == 1
    assert str(run.controller_log) in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--group", "0"], ["--group=0", "--attempt=1"]])
def test_a_failure_that_is_not_there_is_not_denied_for_the_whole_run(
    words: list[str], run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", str(run.root), "--failure", *words]) == 1
    assert capsys.readouterr().err == f"ftslurm: nothing of what is asked for has failed in run {run.root.name}\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["inject", "kill", "--group", "3"], ["no group 3", "3 groups, numbered from 0"]),
        (["inject", "kill", "--group=-1"], ["no group -1"]),
        (["inject", "kill", "--rank", "2"], ["no rank 2", "only 2 ranks, numbered from 0"]),
        (["inject", "lighthouse", "--group", "0"], ["belongs to no group"]),
        (["inject", "cancel", "--rank", "0"], ["whole step", "rank"]),
        (["restart", "--group", "3"], ["no group 3", "3 groups, numbered from 0"]),
        (["stacks", "--group", "3"], ["no group 3", "3 groups, numbered from 0"]),
        (["stacks", "--group", "0", "--rank", "2"], ["no rank 2", "only 2 ranks, numbered from 0"]),
    ],
)
def test_what_the_run_does_not_have_is_refused(
    words: list[str], says: list[str], run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([words[0], str(run.root), *words[1:]]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert [part for part in says if part not in said.err] == [], said.err
    assert list(run.inbox.iterdir()) == []


@pytest.mark.parametrize("words", [["kill", "RUN"], ["RUN", "kill9"], ["explode"]])
def test_what_is_no_fault_is_refused(words: list[str], run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["inject", *(str(run.root) if word == "RUN" else word for word in words)])
    assert ended.value.code == 2
    assert re.match(r"ftslurm: FAULT: invalid choice: .+ \(choose from '?kill'?, ", capsys.readouterr().err)
    with pytest.raises(EnvironmentProblem, match="'kill9' is no fault; did you mean kill"):
        Run(run.root).inject("kill9")


def test_a_run_that_is_over_or_gone_is_refused(
    run: RunDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.node", lambda: "n1")  # the machine of its controller
    run.submitit.mkdir()
    (run.submitit / "job_id").write_text(str(2**22 + 1))  # no process can have this id
    assert main(["inject", str(run.root), "kill"]) == 2
    assert "its controller is gone" in capsys.readouterr().err
    ex.write(run, [ex.finished(22, "stopped")])
    assert main(["inject", str(run.root), "kill"]) == 2
    assert "is over: was stopped" in capsys.readouterr().err
    assert list(run.inbox.iterdir()) == []


def test_a_run_that_waits_in_the_queue_is_refused(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    run.events.unlink()
    assert main(["inject", str(run.root), "kill"]) == 2
    assert "has not started yet" in capsys.readouterr().err


def test_status_shows_why_a_group_is_down(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(run.root)]) == 0
    assert "signal 9" not in capsys.readouterr().out
    ex.write(run, [ex.exited(15.3, 1, traceback="Traceback ...\nRuntimeError: [gone]")])
    assert main(["status", str(run.root)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-5:] == [
        "",
        "group 1: killed (signal 9) on n2",
        "  Traceback ...",
        "  RuntimeError: [gone]",
        "  log: logs/group-0001/attempt-000/rank-0.log",
    ]
    assert main(["status", str(run.root), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    check_status(status)
    group = status["groups"][1]
    assert group["last_evidence"] == ["the guard of task 0: signal 9"]
    assert group["last_traceback"].endswith("RuntimeError: [gone]")


def test_the_status_of_a_run_that_is_over_ends_with_what_it_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ex.new_run(tmp_path, ex.one_kill())
    config = Config()
    config.job.script, config.run.name, config.cluster.kind = "train.py", "ddp", "local"
    run.config.write_text(compose.dump(config))
    assert main(["status", str(run.root)]) == 0
    said = capsys.readouterr().out
    for words in ("run ddp-0930-k3 succeeded", "back after", "killed (signal 9) on n2"):
        assert words in said


def scaled(groups: int, command: str) -> ex.Line:
    return ex.event(21, "scaled", groups=groups, by=os.getuid(), command=command)


def may_grow(run: RunDir, most: int) -> None:
    config = compose.load(run.config)
    config.groups.max = most
    run.config.write_text(compose.dump(config))


def test_scale_asks_for_as_many_groups_and_tells_the_answer(
    run: RunDir, answering: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    may_grow(run, 8)
    taken = answering(lambda command: [scaled(4, "other"), scaled(command["groups"], command["id"])])
    assert main(["scale", str(run.root), "5"]) == 0
    assert capsys.readouterr().out == "the run has 5 groups from now on (ftslurm scale)\n"
    assert taken[0].items() >= {"what": "scale", "groups": 5, "by": os.getuid()}.items()


def test_a_scale_that_the_controller_refuses_is_a_failure(
    run: RunDir, answering: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    why, by = "a group has finished already", os.getuid()
    answering(lambda asked: [ex.event(21, "command_refused", command=asked["id"], what="scale", by=by, reason=why)])
    assert main(["scale", "2", "--root", str(run.root.parent)]) == 1
    assert capsys.readouterr() == ("", "ftslurm: scale refused: a group has finished already\n")


@pytest.mark.parametrize("words", [["scale", "9"], ["drain", "n9"]])
def test_what_can_never_be_is_bad_input(
    words: list[str], run: RunDir, answering: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    about = {"what": words[0], "by": os.getuid(), "reason": "it can never be", "wrong": True}
    answering(lambda asked: [ex.event(21, "command_refused", command=asked["id"], **about)])
    assert main([words[0], str(run.root), words[1]]) == 2
    assert capsys.readouterr() == ("", f"ftslurm: {words[0]} refused: it can never be\n")


def test_a_drill_may_aim_at_a_group_that_scale_has_brought(run: RunDir, answering: Any) -> None:
    may_grow(run, 8)
    assert main(["inject", str(run.root), "kill", "--group", "4"]) == 2
    ex.write(run, [scaled(5, "other")])
    answering(lambda _: [ex.injected(21, "kill", 4, step=61)])
    assert main(["inject", str(run.root), "kill", "--group", "4"]) == 0
    assert main(["inject", str(run.root), "kill", "--group", "5"]) == 2
