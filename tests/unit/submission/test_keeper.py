"""The keeper, a controller's parent: it starts another after a crash, and relays signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import led_run
import pytest
from histories import RUNNING, play
from raw_record import RawRecord

from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.run import kept_state, leadership
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import JournalReader
from ftslurm.run.journal_writer import Journal
from ftslurm.submission import keeper, lead


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return led_run.new(tmp_path)


# A controller that records its signals; its number decides whether it crashes.
CONTROLLER = """
import json, os, select, sys, time
given = json.loads(sys.argv[1])
number = given["number"]
with open(given["root"] + "/events.jsonl", "a") as file:
    file.write(json.dumps({"seq": 1, "time": time.time(), "event": "began", "after": given["after"]}))
    file.write("\\n")
if number == int(os.environ.get("BAD", 0)):
    sys.exit(2)
if number <= int(os.environ["CRASHES"]):
    os.kill(os.getpid(), 9)
select.select([given["signals"]], [], [])
told = list(os.read(given["signals"], 16))
with open(given["root"] + "/events.jsonl", "a") as file:
    file.write(json.dumps({"seq": 9, "time": time.time(), "event": "run_finished", "outcome": "stopped", "told": told}))
    file.write("\\n")
sys.exit(1)
"""
KEEPER = """
import sys
from pathlib import Path
from ftslurm.submission import keeper, lead
from ftslurm.run.directory import RunDir
lead.COMMAND = [sys.executable, "-c", Path(sys.argv[2]).read_text()]
sys.exit(keeper.keep(RunDir(Path(sys.argv[1]))))
"""


def kept(run: RunDir, crashes: int, bad: int = 0) -> subprocess.Popen[str]:
    script = run.root / "controller.py"
    script.write_text(CONTROLLER)
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    command = [sys.executable, "-c", KEEPER, str(run.root), str(script)]
    return subprocess.Popen(
        command, env=env | {"CRASHES": str(crashes), "BAD": str(bad)}, stderr=subprocess.PIPE, text=True
    )


def decided(run: RunDir) -> None:
    with closing(Journal(run)) as journal:
        journal.append(RawRecord("run_started"))
        journal.keep(play(*RUNNING).state)


def events(run: RunDir) -> list[dict[str, object]]:
    return list(JournalReader(run.events).iter_new())


def test_a_controller_that_is_killed_is_followed_by_another_which_hears_the_signals(run: RunDir) -> None:
    process = kept(run, crashes=2)
    until = time.monotonic() + 60
    while len(events(run)) < 3:
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    *began, end = events(run)
    assert [e["after"] for e in began] == ["", *["the controller was killed by SIGKILL"] * 2]
    assert end["told"] == [signal.SIGTERM]
    assert said.count("killed by SIGKILL") == 2
    assert leadership.newest(run) == 3


def test_one_that_crashes_again_and_again_ends_the_run_and_says_what_still_ran(run: RunDir) -> None:
    decided(run)
    process = kept(run, crashes=9)
    process.communicate(timeout=60)
    assert process.returncode == 1
    *_, lighthouse, first, second, end = events(run)
    for exited, unit in ((lighthouse, "lighthouse"), (first, "group-0000"), (second, "group-0001")):
        assert (exited["event"], exited["unit"], exited["cause"]) == ("step_exited", unit, "cancelled")
    assert (end["event"], end["outcome"]) == ("run_finished", "failed")
    assert "killed by SIGKILL, 3 times within 60 s" in str(end["reason"])


def test_a_run_whose_next_controller_cannot_begin_has_an_end_that_says_where_to_look(run: RunDir) -> None:
    decided(run)
    process = kept(run, crashes=1, bad=2)  # for instance, others can now write its config.yaml
    process.communicate(timeout=60)
    assert process.returncode == 1
    *_, end = events(run)
    assert (end["event"], end["outcome"]) == ("run_finished", "failed")
    assert str(run.submitit) in str(end["reason"])


@pytest.mark.parametrize("damage", [b"", b"x\n"])
def test_a_run_whose_state_is_damaged_is_ended_by_its_controller(run: RunDir, damage: bytes) -> None:
    """Without it the next one would fail as well: a candidate for the lead would try again for ever."""
    decided(run)
    run.kept(0).write_bytes(damage)
    run.config.write_text(compose.dump(Config()))
    with pytest.raises(kept_state.Damaged) as problem:
        kept_state.read(run)
    told = {"root": str(run.root), "number": 1, "pid": os.getpid(), "signals": None, "after": ""}
    done = subprocess.run([*lead.COMMAND, json.dumps(told)], capture_output=True, text=True, timeout=60, check=False)
    *_, end = events(run)
    assert (done.returncode, end["event"], end["outcome"]) == (1, "run_finished", "failed")
    assert end["reason"] == str(problem.value)
    assert f"ftslurm resume {run.root}" in str(end["reason"])
    assert done.stderr.count("ftslurm resume") == 1


def test_ctrl_c_is_told_by_the_exit_code_and_reaches_the_controller_once(run: RunDir) -> None:
    process = kept(run, crashes=0)
    until = time.monotonic() + 60
    while not events(run):
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == keeper.INTERRUPTED
    assert events(run)[-1]["told"] == [signal.SIGINT]


def test_a_keeper_whose_run_is_led_by_another_leaves_it_alone(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after its machine has stalled, and a requeued job leads."""
    monkeypatch.setattr(lead, "COMMAND", ["sh", "-c", f"touch {run.leaders}/0002; kill -9 $$"])
    monkeypatch.setattr(keeper, "Wakeup", lambda _: Still())
    assert keeper.keep(run) == 0
    assert leadership.newest(run) == 2


class Still:
    """Stands for the signal reader and never has a signal: only the main thread of a process can set handlers."""

    def __init__(self) -> None:
        self.fd, into = os.pipe()
        os.write(into, b"\0")  # nobody waits for it

    def drain(self) -> list[int]:
        return []


def test_a_keeper_imports_nothing_that_would_delay_the_controller() -> None:
    code = "import sys, ftslurm.submission.keeper; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {"omegaconf", "hydra", "rich", "submitit", "ftslurm.protocol.records", "ftslurm.run.kept_state"}
