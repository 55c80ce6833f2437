"""When a controller is lost or makes way, its successor adopts the steps; the groups see at most a pause."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import Backend, Run, all_processes

from ftslurm.guard import processes

pytestmark = [pytest.mark.slurm, pytest.mark.light]


def successor(slurm: Backend, run: Run) -> subprocess.Popen[str]:
    """Start another controller of the run, as in another job; it takes the lead when it can."""
    with run.out.open("a") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "ftslurm.entry", "controller", str(run.dir)],
            env={"TOY_DDP": "0"} | os.environ | slurm.environ,
            cwd=slurm.tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            text=True,
            start_new_session=True,
        )


def leader(run: Run) -> int:
    """Return the leader's pid; its keeper is `run.process`."""
    return int(str(run.named("run_started")[-1]["pid"]))


def lose(run: Run) -> None:
    """Kill the controller, its sruns and its Lighthouse at once, as a lost node does."""
    mark = f"FTSLURM_RUN_DIR={run.dir}".encode()
    of_run = [(pid, env) for pid, _, env in all_processes() if mark in env]
    here = [pid for pid, env in of_run if not any(word.startswith(b"SLURM_PROCID=") for word in env)]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none sees another die
        for pid in (run.process.pid, leader(run), *here):
            with contextlib.suppress(ProcessLookupError):  # the controller ends with its keeper
                os.kill(pid, number)
    run.process.wait()


def guards(run: Run, step: str) -> list[int]:
    """Return the guard of each task of a step."""
    marks = {f"FTSLURM_RUN_DIR={run.dir}".encode(), f"FTSLURM_STEP={step}".encode()}
    inside = [pid for pid, _, env in all_processes() if marks < set(env) and any(b"SLURM_PROCID=" in w for w in env)]
    parents = {pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in inside}
    return [pid for pid in inside if parents[pid] not in inside]


def cut_off(run: Run, name: str) -> None:
    """Kill all processes of an srun at once, so that its step does not end with it."""
    mark, job_name = f"FTSLURM_RUN_DIR={run.dir}".encode(), f"--job-name={name}".encode()
    for pid, word, env in all_processes():
        with contextlib.suppress(OSError):
            if mark in env and word == "srun" and job_name in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                os.killpg(os.getpgid(pid), signal.SIGKILL)


def both_go_on(run: Run, steps: int = 8) -> None:
    """Wait until both groups have committed so many more steps."""
    before = [len(run.steps(group)) for group in (0, 1)]
    run.until(lambda: all(len(run.steps(g)) >= before[g] + steps for g in (0, 1)), f"{steps} steps more")


def adopted(run: Run, unit: str, times: int) -> dict[str, object]:
    run.until(lambda: len(run.named("step_adopted", unit=unit)) >= times, f"adoption number {times} of {unit}")
    return run.named("step_adopted", unit=unit)[times - 1]


@pytest.mark.nightly
def test_groups_train_on_whoever_leads_and_are_never_restarted_for_it(slurm: Backend) -> None:
    settings = [
        "cluster.kind=array",
        "cluster.controller=here",
        "groups.count=2",
        "groups.workers=2",
        "standby.count=1",
    ]
    run = slurm.start(*settings, "health.lost_after_s=5", args={"open-end": True, "step-time": 0.2})
    run.wait_for("step_ready", unit="standby-000")
    both_go_on(run)

    lose(run)
    for pid in guards(run, "standby-000/0"):
        os.kill(pid, signal.SIGKILL)  # the successor finds what has died meanwhile
    run.process = successor(slurm, run)
    first = adopted(run, "group-0001", 1)
    assert (first["attempt"], first["slurm_step"]) == (0, run.named("step_ready", unit="group-0001")[0]["slurm_step"])
    both_go_on(run)
    run.wait_for("step_ready", unit="standby-000", attempt=1)

    stopped, pids = run.process, (run.process.pid, leader(run))
    run.process = successor(slurm, run)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # as on a machine that stalls for a while
    adopted(run, "group-0001", 2)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    assert stopped.wait(60) == 0
    both_go_on(run)
    adopted(run, "standby-000", 1)

    leaders = run.named("run_started")
    assert len(leaders) == 3
    launched = [e for e in run.named("step_launched") if e["group"] is not None]
    assert [e["group"] for e in launched] == [0, 1]
    assert {e["unit"] for e in run.named("step_exited")} - {"lighthouse"} == {"standby-000"}

    worker = run.pid(1)
    cut_off(run, "adopt-group-0001")  # the step itself runs on, and must not beside the next attempt
    run.wait_until_back(1)
    assert processes.state(worker) in (None, "Z")
    steps = run.end_soon()
    run.finish()
    run.check_training(steps, survivors={0}, returned={1}, ranks=2)
    assert run.named("step_launched", group=1, attempt=1)[0]["standby"] == "standby-000/1"


# Files beside the script control the order of events.
TOLD = """
import os, pathlib, time
beside = pathlib.Path(__file__).parent
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
print("began", flush=True)
while not (beside / "end").exists():
    if first and os.environ["REPLICA_GROUP_ID"] == "1" and (beside / "fail").exists():
        raise ValueError("nine")
    time.sleep(0.05)
"""


def test_what_ends_while_nobody_leads_is_known_to_the_next_controller(slurm: Backend) -> None:
    settings = ["cluster.kind=array", "cluster.controller=here", "groups.count=2", "restart.backoff_s=0"]
    run = slurm.start(*settings, script=slurm.script(TOLD))

    def over_without_a_controller(word: str, *attempts: tuple[int, int]) -> None:
        folders = [run.dir / "logs" / f"group-{group:04d}" / f"attempt-{attempt:03d}" for group, attempt in attempts]
        logs = [folder / "rank-0.log" for folder in folders]
        run.until(lambda: all(log.exists() and "began" in log.read_text() for log in logs), "the scripts")
        if word == "fail":  # the controller alone is lost, its sruns live on
            run.process.kill()
            run.process.wait()
        else:
            lose(run)
        (slurm.tmp_path / word).touch()
        run.until(lambda: all((folder / "task-0.end").exists() for folder in folders), "the end of the scripts")
        run.process = successor(slurm, run)

    run.wait_for("step_ready", group=0)
    run.wait_for("step_ready", group=1)
    over_without_a_controller("fail", (1, 0))
    failed = run.wait_for("step_exited", group=1)
    assert (failed["cause"], failed["error"], failed["code"]) == ("user_error", "ValueError: nine", 1)
    run.wait_for("step_ready", group=1, attempt=1)
    assert [e["attempt"] for e in run.named("step_adopted", group=0)] == [0]
    over_without_a_controller("end", (0, 0), (1, 1))
    run.finish()
    assert [e["cause"] for e in run.named("step_exited", group=0)] == ["ok"]
    assert [e["cause"] for e in run.named("step_exited", group=1)] == ["user_error", "ok"]
