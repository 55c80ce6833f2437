"""The program that runs the commands of health.preflight on a node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from ftslurm.guard import node_check, processes


def check(folder: Path, *commands: list[str], timeout_s: float = 30.0) -> dict[str, object]:
    """Run the program as srun does, in a run directory; return its answer."""
    (folder / "logs").mkdir(exist_ok=True)
    env = os.environ | {"FTSLURM_RUN_DIR": str(folder), "FTSLURM_NODE": "n1"}
    words = [f"--timeout-s={timeout_s}", f"--sent={time.time() - 5}", "--gpus=2", json.dumps(commands)]
    command = [sys.executable, "-m", "ftslurm.guard.node_check", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    return dict(json.loads(done.stdout))


def shell(text: str) -> list[str]:
    return ["sh", "-c", text]


def test_all_commands_run_and_their_output_is_kept(tmp_path: Path) -> None:
    told = shell("echo $FTSLURM_NODE $FTSLURM_PREFLIGHT_GPUS $FTSLURM_PREFLIGHT_SKEW_S")
    answer = check(tmp_path, told, shell("echo second >&2"))
    assert (answer["node"], answer["reason"], answer["log"]) == ("n1", None, "logs/preflight-n1-0.log")
    lines = (tmp_path / "logs/preflight-n1-0.log").read_text().splitlines()
    assert lines[1].startswith("n1 2 5.")
    assert lines[2:] == ["$ sh -c 'echo second >&2'", "second"]
    assert check(tmp_path, ["true"])["log"] == "logs/preflight-n1-1.log"  # the earlier one stays
    assert (tmp_path / "logs/preflight-n1-0.log").stat().st_mode & 0o777 == 0o600


def test_the_first_failure_ends_the_check_and_its_last_line_is_the_reason(tmp_path: Path) -> None:
    answer = check(tmp_path, shell("echo fine; echo GPU 3 is lost; exit 4"), shell("touch never"))
    assert str(answer["reason"]).endswith("exit code 4: GPU 3 is lost")
    assert "cannot be started" in str(check(tmp_path, ["/no/such/program"])["reason"])
    assert "ended by signal 9" in str(check(tmp_path, shell("kill -9 $$"))["reason"])


def test_a_check_that_hangs_is_killed_with_all_that_it_has_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    hangs = shell(f"setsid sleep 600 & echo $! > {pid}; echo waiting; trap '' TERM; sleep 600")
    begun = time.monotonic()
    answer = check(tmp_path, hangs, timeout_s=1.0)
    assert "not done after 1 s, killed: waiting" in str(answer["reason"])
    assert time.monotonic() - begun < 30
    assert processes.state(int(pid.read_text())) in (None, "Z")


def test_a_command_that_leaves_a_child_with_its_output_does_not_hold_the_check(tmp_path: Path) -> None:
    assert check(tmp_path, shell("sleep 600 & exit 0"))["reason"] is None


def test_a_long_log_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    log = node_check.Log(str(tmp_path), "n1", 1)
    log.write(b"begin\n")
    for _ in range(40):
        log.write(b"x" * (1 << 16) + b"\n")
    log.write(b"the end\n")
    text = Path(log.path).read_bytes()
    assert (text.startswith(b"begin\n"), text.endswith(b"\nthe end\n")) == (True, True)
    assert len(text) < 2 << 20
    assert b"bytes of this log were dropped here" in text
    assert log.last_line() == "the end"


def test_without_a_log_the_check_goes_on(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("no folder")
    words = [f"--sent={time.time()}", json.dumps([shell("echo GPU 3 is lost; exit 4")])]
    env = os.environ | {"FTSLURM_RUN_DIR": str(tmp_path), "FTSLURM_NODE": "n1"}
    command = [sys.executable, "-m", "ftslurm.guard.node_check", *words]
    answer = json.loads(subprocess.run(command, env=env, capture_output=True, timeout=60, check=True).stdout)
    assert answer["log"] == ""
    assert answer["reason"].endswith("exit code 4: GPU 3 is lost")
