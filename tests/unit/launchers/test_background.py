"""Commands in the background: what several of them change is in the end what was asked last."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest
from fuzz import numbers

from ftslurm.core.state.actions import Ask, AskNodes, CancelJobs, Exclude, RequestJobs
from ftslurm.core.state.budget import Calls
from ftslurm.launchers.background import BackgroundCommands
from ftslurm.launchers.scheduler import Request

WRITE = "import sys, time; time.sleep(float(sys.argv[1])); open(sys.argv[2], 'w').write(sys.argv[3])"


@pytest.mark.parametrize("seed", numbers(3, 20))
def test_whatever_is_asked_of_a_job_while_it_is_changed_the_last_word_counts(seed: int, tmp_path: Path) -> None:
    """The first commands are the slowest."""
    dice, commands = random.Random(seed), BackgroundCommands()
    last = dict[str, str]()
    asked = [(dice.choice("ab"), dice.choice("xyz")) for _ in range(dice.randint(2, 6))]
    for number, (job, node) in enumerate(asked):
        delay = str(0.1 * (len(asked) - number))
        argv = [sys.executable, "-c", WRITE, delay, str(tmp_path / job), node]
        commands.ask(Request(Exclude(job, (node,)), argv, lambda _: [], dict(os.environ)))
        last[job] = node
    while commands.running:
        pid, status = os.waitpid(next(iter(commands.running)), 0)
        commands.reaped(pid, os.waitstatus_to_exitcode(status))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == last


def test_questions_wait_for_room_and_orders_do_not() -> None:
    commands = BackgroundCommands()

    def ask(action: Ask) -> None:
        commands.ask(Request(action, ["true"], lambda _: [], dict(os.environ), rpcs=2))

    for number in range(30):
        ask(AskNodes((f"n{number}",)))
    assert commands.rpcs == 20  # below seven tenths of what is allowed in a minute
    for pool in range(6):
        ask(RequestJobs(pool, 1))
    ask(CancelJobs(("7",)))
    assert commands.rpcs == commands.most == 32
    assert set(commands.waiting) == {RequestJobs(5, 1), *(AskNodes((f"n{number}",)) for number in range(10, 30))}
    commands.told()
    commands.calls = Calls()  # as a minute later
    assert not list(commands.start_waiting())
    assert commands.rpcs == 20
    assert RequestJobs(5, 1) not in commands.waiting  # it is the most urgent
    for pid, one in list(commands.running.items()):
        assert commands.reaped(pid, one.process.wait()) is not None
