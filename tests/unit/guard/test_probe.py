"""The probe: the processes of a run that are still on a node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ftslurm.guard import processes

BARE = {name: value for name, value in os.environ.items() if not name.startswith(("FTSLURM", "SLURM"))}


def look(**env: str) -> dict[str, object]:
    command = [sys.executable, "-m", "ftslurm.guard.probe"]
    ran = subprocess.run(command, env=BARE | env, capture_output=True, text=True, check=True)
    (line,) = ran.stdout.splitlines()
    said: dict[str, object] = json.loads(line)
    return said


def test_the_steps_of_this_run_on_this_node_and_how_their_processes_are(tmp_path: Path) -> None:
    run, here = str(tmp_path), {"FTSLURM_RUN_DIR": str(tmp_path), "SLURMD_NODENAME": "n1"}
    started = [
        subprocess.Popen(["sleep", "60"], env=BARE | env)
        for env in (
            {**here, "FTSLURM_STEP": "group-0003/2"},
            {**here, "FTSLURM_STEP": "group-0003/2"},
            {**here, "FTSLURM_STEP": "lighthouse/0"},
            {**here, "FTSLURM_STEP": "group-0004/0"},
            {**here, "FTSLURM_STEP": "group-0005/0", "SLURMD_NODENAME": "n2"},
            {**here, "FTSLURM_STEP": "group-0006/0", "FTSLURM_RUN_DIR": run + "x"},
            {"FTSLURM_RUN_DIR": run, "FTSLURM_STEP": "group-0007/0"},  # an srun: on no node
            here,
        )
    ]
    try:
        started[1].send_signal(signal.SIGSTOP)
        started[3].kill()  # a zombie until it is waited for
        deadline, become = time.monotonic() + 20, ["S", "T", "S", "Z", *"SSSS"]
        while [processes.state(process.pid) for process in started] != become and time.monotonic() < deadline:
            time.sleep(0.01)
        said = look(FTSLURM_RUN_DIR=run, SLURMD_NODENAME="n1", FTSLURM_STEP="probe/0")
        assert (said["type"], said["node"]) == ("look", "n1")
        steps = said["steps"]
        assert isinstance(steps, dict)
        assert {step: sorted(letters) for step, letters in steps.items()} == {
            "group-0003/2": ["S", "T"],
            "lighthouse/0": ["S"],
        }
        assert "group-0007/0" in str(look(FTSLURM_RUN_DIR=run)["steps"])  # without a node all of this machine count
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_nothing_of_a_run_is_an_answer_too(tmp_path: Path) -> None:
    said = look(FTSLURM_RUN_DIR=str(tmp_path), SLURMD_NODENAME="n7")
    assert said == {"type": "look", "node": "n7", "steps": {}}
