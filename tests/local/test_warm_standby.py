"""A standby with torch: it warms up without side effects, and takes its first step almost at once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from guarded import Step, step

NIGHTLY = pytest.mark.nightly
TOY = Path(__file__).parents[1] / "scripts" / "toy.py"
LATE = """
import os, sys, torch
if os.fork() == 0:  # an autograd whose threads have started refuses to work in a forked child
    torch.ones(1, requires_grad=True).backward()
    os._exit(0)
print("FORKED", os.wait()[1], flush=True)
before = set(sys.modules)
import runpy
try:
    sys.argv = ["toy.py", "--steps", "2", "--step-time", "0"]
    runpy.run_path({toy!r}, run_name="__main__")
finally:
    late = set(sys.modules) - before - {{"runpy", "toy_options"}}
    print("LATE", len(late), sorted(late)[:20], flush=True)
"""


@pytest.fixture(scope="module")
def lighthouse() -> Iterator[str]:
    os.environ.setdefault("RUST_LOG", "warn")  # read when torchft is imported
    from torchft.coordination import LighthouseServer

    server = LighthouseServer("127.0.0.1:0", 1, join_timeout_ms=100, quorum_tick_ms=10, heartbeat_timeout_ms=1000)
    yield f"http://127.0.0.1:{server.address().rpartition(':')[2]}"
    server.shutdown()


def assign(task: Step, lighthouse: str, **assignment: object) -> float:
    """Let a worker with torch run toy.py for two steps; return the seconds from assignment to first commit."""
    task.get_ready()
    rank = {"rank": 0, "node": "n1", "local_rank": 0, "node_rank": 0}
    words: dict[str, object] = {"group": 0, "attempt": 0, "lighthouse": lighthouse, "module": None, "script": str(TOY)}
    words |= {"args": ["--steps", "2", "--step-time", "0"], "ranks": [rank], "run_id": "x", "groups": 1}
    start = time.monotonic()
    task.send("assign", **words | {"max_restarts": 3} | assignment)
    store = task.until("store")
    task.send("store", addr=store["addr"], port=store["port"])
    assert task.until("progress", 60)["step"] == 1
    return time.monotonic() - start


def test_a_standby_commits_its_first_step_much_sooner_than_a_cold_worker_and_imports_nothing_more(
    lighthouse: str, tmp_path: Path
) -> None:
    script = tmp_path / "late.py"
    script.write_text(LATE.format(toy=str(TOY)))
    took, logs = {}, {}
    for name, flags in (("cold", []), ("warm", ["--standby", "--imports=graphlib,wave"])):
        with step(tmp_path / name, *flags, worker="torch") as task:
            took[name] = assign(task, lighthouse, script=str(script))
            messages = [json.loads(line) for line in task.lines]
            assert task.until("exited", 60)["code"] == 0
        logs[name] = (tmp_path / name / "rank-0.log").read_text()
    weights = {re.search(r"weights sha256=\w+", log)[0] for log in logs.values()}  # type: ignore[index]
    assert len(weights) == 1  # warming up has left the random generators alone
    assert took["warm"] < took["cold"] / 4, took  # 0.07 s and 0.8 s on an idle machine
    assert "LATE 0 " in logs["warm"], logs["warm"]
    assert "FORKED 0\n" in logs["warm"]
    (quorum,) = [message for message in messages if message["type"] == "quorum"]
    assert quorum["task"] == 0


@NIGHTLY
@pytest.mark.parametrize("name", ["no_such_module", "broken", "leaves"])
def test_a_bad_module_in_standby_imports_is_named_with_the_setting(name: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "leaves.py").write_text("raise SystemExit('bye')")
    paths = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    with step(tmp_path / "run", "--standby", f"--imports=json,{name}", env=paths, worker="torch") as task:
        failed = task.until("failed", 60)
        assert f"standby.imports: {name!r} cannot be imported by {sys.executable}: " in failed["error"]
        assert failed["started"] is False
        assert task.until("exited")["code"] == 1


def test_what_a_standby_cannot_import_early_it_does_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ftslurm.worker import warmup

    monkeypatch.setattr(warmup, "LATE", ("torch.no_such_part",))
    warmup.warm([])
    assert "no_such_part" not in capsys.readouterr().err  # another version of torch may not have it


WARM_UP = """
import sys, torch, torchft
{stand_in}
from ftslurm.worker import warmup
warmup.warm(sys.argv[1:])
print("touched:", *touched, torch.cuda.is_initialized())
"""
STAND_IN = "import devices, pytest; touched = devices.Touched(pytest.MonkeyPatch())"
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def warm_up(stand_in: str, *imports: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Warm up in a fresh process, with a stand-in for the GPUs."""
    command = [sys.executable, "-c", WARM_UP.format(stand_in=stand_in), *imports]
    environ = os.environ | {"PYTHONPATH": ":".join([path, *sys.path])}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("stand_in", [STAND_IN, pytest.param("touched = []", marks=ON_GPU)])
def test_the_warm_up_touches_no_gpu_whatever_torch_does_in_it(stand_in: str) -> None:
    """A standby learns its GPUs later: a context on the node's first one would keep it from all groups but one."""
    done = warm_up(stand_in)
    assert done.stdout == "touched: False\n", done.stdout + done.stderr
    assert "standby:" not in done.stderr


def test_a_module_that_initializes_cuda_is_named(tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text("import torch; torch.cuda.is_initialized = lambda: True")
    done = warm_up("touched = []", "json", "greedy", "wave", path=str(tmp_path))
    assert re.findall("standby:.*", done.stderr) == [
        "standby: the import of greedy has initialized CUDA: remove it from standby.imports"
    ]


@NIGHTLY
def test_a_worker_that_hangs_in_a_step_says_where(lighthouse: str, tmp_path: Path) -> None:
    hang = ["--steps", "9", "--step-time", "0", "--fail-at", "1", "--fail-how", "hang"]
    with step(tmp_path / "run", worker="torch") as task:
        assign(task, lighthouse, args=hang)
        log = tmp_path / "run" / "rank-0.log"
        task.wait(lambda: "failing at step 1" in log.read_text(), "the hang")

        def place() -> tuple[object, ...]:
            task.send("where")
            alive = task.until("alive")
            return alive["state"], alive["step"], alive["stage"]

        task.wait(lambda: place() == ("S", 1, 2), "the quorum: it keeps the others waiting")
        task.send("dump")
        task.until("dumped")
        assert "step 1, computing, with a quorum for " in log.read_text()
        assert "in fail\n" in log.read_text()
