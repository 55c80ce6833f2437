"""A rank that is killed leaves nothing in /dev/shm, whatever shares memory there: its helpers have time to clean up."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from guarded import Step, step
from harness import SCRIPTS, Backend

from ftslurm.guard import processes

PARTS = {  # what a script may share, and with whom
    "named": "keep += [shared_memory.SharedMemory(f'ftslurm-test-{os.getpid()}', create=True, size=1 << 20)]",
    "unnamed": "keep += [shared_memory.SharedMemory(create=True, size=1 << 20) for _ in range(3)]",
    "semaphores": "keep += [mp.Queue(), mp.get_context('spawn').Lock(), mp.get_context('spawn').Queue()]",
    "manager": "keep += [SharedMemoryManager()]; keep[-1].start(); keep[-1].SharedMemory(1 << 20)",
    "fork": "keep += [mp.get_context('fork').Process(target=works)]; keep[-1].start()",
    "spawn": "keep += [mp.get_context('spawn').Process(target=time.sleep, args=(600,))]; keep[-1].start()",
    "forkserver": "keep += [mp.get_context('forkserver').Process(target=time.sleep, args=(600,))]; keep[-1].start()",
    "program": "keep += [subprocess.Popen(['sleep', '600'])]",
    "descriptors": "share('file_descriptor'); keep += [torch.ones(9).share_memory_()]",
    "files": "share('file_system'); keep += [torch.ones(9).share_memory_()]",
    "loader": "keep += [iter(DataLoader(range(99), num_workers=2, persistent_workers=True))]; next(keep[-1])",
}
SCRIPT = """
import multiprocessing as mp, os, subprocess, time
from multiprocessing import shared_memory
from multiprocessing.managers import SharedMemoryManager
from ftslurm.guard.processes import descendants
def works():
    own = shared_memory.SharedMemory(create=True, size=4096)
    time.sleep(600)
if __name__ == "__main__":
    import torch
    from torch.multiprocessing import set_sharing_strategy as share
    from torch.utils.data import DataLoader
    keep = []
    {parts}
    time.sleep(0.5)  # forks have shared theirs
    found = set()
    tree = [os.getpid(), *descendants(os.getpid())]
    for pid in tree:
        with open(f"/proc/{{pid}}/maps") as maps:
            found |= {{line.split()[-1] for line in maps if " /dev/shm/" in line and "deleted" not in line}}
    import json
    print(json.dumps([sorted(tree), sorted(found)]), flush=True)
    time.sleep(600)
"""
DRAWS = [random.Random(seed).sample(sorted(PARTS), 4) for seed in range(12)]


@pytest.fixture
def task(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Step]:
    with step(tmp_path / "run") as made:
        made.begin(SCRIPT.format(parts="\n    ".join(PARTS[name] for name in request.param)))
        made.wait(lambda: "]]\n" in made.log(), "what it shares")
        yield made


@pytest.mark.parametrize(
    ("task", "how"),
    [
        pytest.param(names, how, id=f"{'-'.join(names)}-{how}", marks=[] if number < 4 else [pytest.mark.nightly])
        for number, (names, how) in enumerate(
            (names, ("the rank", "its order", "the controller")[seed % 3]) for seed, names in enumerate(DRAWS)
        )
    ],
    indirect=["task"],
)
def test_nothing_stays_in_shared_memory(task: Step, how: str) -> None:
    tree, shared = json.loads(next(line for line in task.log().splitlines() if line.endswith("]]")))
    assert all(os.path.exists(path) for path in shared)
    begun = time.monotonic()
    if how == "the rank":
        os.kill(task.pid, signal.SIGKILL)
    elif how == "its order":
        task.send("kill")
    else:
        assert task.process.stdin
        task.process.stdin.close()
    task.process.wait(20)
    assert time.monotonic() - begun < 5
    assert [path for path in shared if os.path.exists(path)] == []
    assert [pid for pid in tree if processes.state(pid) not in (None, "Z")] == []


NAMED = """
import os, runpy
from multiprocessing import shared_memory
table = shared_memory.SharedMemory(
    f"ftslurm-{os.environ['FTSLURM_RUN_ID']}-{os.environ['REPLICA_GROUP_ID']}-{os.environ['RANK']}",
    create=True, size=1 << 20,
)
"""


@pytest.mark.light
@pytest.mark.parametrize("backend", ["local", pytest.param("slurm", marks=pytest.mark.slurm)], indirect=True)
def test_a_group_whose_ranks_name_their_shared_memory_comes_back(backend: Backend) -> None:
    text = f"{NAMED}import sys\nsys.path.insert(0, {str(SCRIPTS)!r})\n"
    text += f"runpy.run_path({str(SCRIPTS / 'light.py')!r}, run_name='__main__')\n"
    script = backend.script(text, "light.py")
    run = backend.start("groups.count=2", "groups.workers=3", script=script, args={"open-end": True, "step-time": 0.1})
    run.wait_for_steps(5, 2)
    for attempt, rank in enumerate((1, 0, 2), 1):
        run.kill(1, rank)
        run.wait_until_back(1, attempt=attempt)
    run.end_soon()
    run.finish()
    assert [path for path in os.listdir("/dev/shm") if run.dir.name in path] == []
