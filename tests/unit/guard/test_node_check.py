"""The program that runs the commands of health.preflight on a node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from ftslurm.checks import shipped_check
from ftslurm.guard import processes

PROGRAM = """
import json, sys
from ftslurm.guard import guard, node_check
node_check.PREFLIGHT_S = float(sys.argv.pop(1))
task = guard.Task(0, int(sys.argv.pop(1)), "n1", guard.options(sys.argv[1:]), None)
node_check.pass_or_end(task, lambda said: print(json.dumps(vars(said)), flush=True))
print("the worker goes on")
"""


def told(
    folder: Path, *commands: list[str], timeout_s: float = 30.0, task: int = 0, nodes: str = "n1", max_mb: int = 0
) -> list[str]:
    """Run the checks as a worker of n1 does, in a run directory; return the lines that it prints."""
    env = os.environ | {"FTSLURM_RUN_DIR": str(folder), "FTSLURM_SECRETS": "API_KEY", "API_KEY": "hidden"}
    env["FTSLURM_STEP"] = "group-0001/0"
    check = {"nodes": [nodes], "gpus": 2, "commands": commands}
    words = [f"--check={json.dumps(check)}", "--log-dir=/nowhere", "--heartbeat-s=1", "--orphan-after-s=60"]
    words.append(f"--log-max-mb={max_mb}")
    command = [sys.executable, "-c", PROGRAM, str(timeout_s), str(task), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    lines = done.stdout.splitlines()
    assert (done.returncode, "the worker goes on" in lines) in [(0, True), (1, False)]
    return lines


def check(folder: Path, *commands: list[str], timeout_s: float = 30.0) -> dict[str, object]:
    """Return the answer of a check: the worker goes on if the node has passed, and only then."""
    (folder / "logs").mkdir(exist_ok=True) if not (folder / "logs").exists() else None
    answer, *goes_on = told(folder, *commands, timeout_s=timeout_s)
    said = dict(json.loads(answer))
    assert bool(goes_on) == (said["error"] is None)
    return said


def shell(text: str) -> list[str]:
    return ["sh", "-c", text]


def test_all_commands_run_and_their_output_is_kept(tmp_path: Path) -> None:
    says = shell("echo $FTSLURM_NODE $FTSLURM_PREFLIGHT_GPUS key=$API_KEY")
    answer = check(tmp_path, says, shell("echo second >&2"))
    assert (answer["node"], answer["error"], answer["log"]) == ("n1", None, "logs/preflight-n1-group-0001-0.log")
    lines = (tmp_path / "logs/preflight-n1-group-0001-0.log").read_text().splitlines()
    assert lines[1] == "n1 2 key="
    assert lines[2:] == ["$ sh -c 'echo second >&2'", "second"]
    check(tmp_path, ["true"])
    assert (tmp_path / "logs/preflight-n1-group-0001-0.log").read_text().splitlines()[:4] == lines  # it stays
    assert (tmp_path / "logs/preflight-n1-group-0001-0.log").stat().st_mode & 0o777 == 0o600


def test_the_first_failure_ends_the_check_and_its_last_line_is_the_reason(tmp_path: Path) -> None:
    answer = check(tmp_path, shell("echo fine; echo GPU 3 is lost; exit 4"), shell("touch never"))
    assert str(answer["error"]).endswith("exit code 4: GPU 3 is lost")
    assert "ended by signal 9" in str(check(tmp_path, shell("kill -9 $$"))["error"])


def test_a_command_that_the_node_cannot_run_is_told_from_one_that_fails(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    missing = check(tmp_path, ["/no/such/program"])
    assert (missing["error"], missing["unstarted"]) == (
        "/no/such/program: cannot be started (No such file or directory)",
        True,
    )
    for words in ([str(tmp_path / "text")], [str(tmp_path)], ["no-such-program"], shell("no-such-program"), ["a\0b"]):
        assert check(tmp_path, words)["unstarted"], words
    for words in (["false"], shell("exit 125"), shell("kill -9 $$")):
        assert not check(tmp_path, words)["unstarted"], words


def test_a_check_that_hangs_is_killed_with_all_that_it_has_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    hangs = shell(f"setsid sleep 600 & echo $! > {pid}; echo waiting; trap '' TERM; sleep 600")
    begun = time.monotonic()
    answer = check(tmp_path, hangs, timeout_s=1.0)
    assert "not done after 1 s, killed: waiting" in str(answer["error"])
    assert time.monotonic() - begun < 30
    assert processes.state(int(pid.read_text())) in (None, "Z")


def test_a_command_that_leaves_a_child_with_its_output_does_not_hold_the_check(tmp_path: Path) -> None:
    assert check(tmp_path, shell("sleep 600 & exit 0"))["error"] is None


def test_a_long_log_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    answer = json.loads(told(tmp_path, shell("echo begin; yes | head -c 3000000; echo the end; exit 4"), max_mb=1)[0])
    text = (tmp_path / str(answer["log"])).read_bytes()
    assert (b"\nbegin\n" in text[:100], text.endswith(b"\nthe end\n")) == (True, True)
    assert len(text) < 2 << 20
    assert b"bytes of this log were dropped here" in text
    assert str(answer["error"]).endswith("exit code 4: the end")


def test_without_a_log_the_check_goes_on(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("no folder")
    answer = check(tmp_path, shell("echo GPU 3 is lost; exit 4"))
    assert answer["log"] == ""
    assert str(answer["error"]).endswith("exit code 4")


def test_the_shipped_check_needs_no_path_and_what_a_check_leaves_is_no_child_of_the_worker(tmp_path: Path) -> None:
    words = [word for name in shipped_check.CHECKS for word in ("--skip", name)]
    assert check(tmp_path, ["ftslurm-preflight", *words])["error"] is None
    assert check(tmp_path, shell("setsid sleep 600 & exit 0"))["error"] is None
    assert [name for _, environ in processes.of_run(str(tmp_path)) for name in environ if name == "FTSLURM_NODE"] == []


def test_only_the_first_task_of_a_node_that_is_named_checks_it(tmp_path: Path) -> None:
    assert told(tmp_path, ["false"], task=1) == ["the worker goes on"]
    assert told(tmp_path, ["false"], nodes="n2") == ["the worker goes on"]
