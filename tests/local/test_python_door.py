"""`ftslurm.submit` and the runs it returns, as programs and notebooks use them, with real training on this machine."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import SCRIPTS, all_processes, light, quoted

import ftslurm
from ftslurm.errors import ConfigError
from ftslurm.protocol.records import GroupJoined, RunFinished, RunStarted

LONG = ["job.args.steps=100000", "job.args.step-time=0.1"]


@pytest.fixture
def words(tmp_path: Path) -> Iterator[list[str]]:
    """Overrides of a short run of two groups; what they have started ends with the test."""
    script = [f"job.script={quoted(SCRIPTS / 'light.py')}", "job.args.steps=20", "stop.grace_s=2"]
    script += [light()]
    yield ["cluster=local", "groups.gpus=0", f"run.root={quoted(tmp_path / 'runs')}", *script]
    for run in ftslurm.runs(tmp_path / "runs"):
        if run.status()["outcome"] == "running":
            run.stop()
            run.wait(60)
        mark = f"FTSLURM_RUN_DIR={run.dir}".encode()
        assert not [pid for pid, _, environ in all_processes() if mark in environ]


def test_a_run_is_submitted_watched_and_awaited(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    argv, handler = list(sys.argv), signal.getsignal(signal.SIGINT)
    run = ftslurm.submit(words)
    records = list(run.events(follow=True))
    assert isinstance(records[0], RunStarted)
    assert isinstance(records[-1], RunFinished)
    assert {record.group for record in records if isinstance(record, GroupJoined)} == {0, 1}
    status = run.wait(60)
    assert (status["outcome"], status["step"]) == ("succeeded", 20)
    assert "weights sha256" in run.logs(group=1)
    assert ftslurm.find(run.id[:-2], root=run.dir.parent).dir == run.dir == ftslurm.runs(run.dir.parent)[0].dir
    assert (sys.argv, signal.getsignal(signal.SIGINT)) == (argv, handler)
    out, err = capfd.readouterr()  # servers of other tests of this process may write to stderr
    ours = [line for line in err.splitlines() if line.startswith(("ftslurm", "run ", "Slurm"))]
    assert (out, [line for line in ours if "took" not in line]) == ("", [])  # a slow file system is told of


def test_a_notebook_submits_from_threads_of_its_event_loop(words: list[str]) -> None:
    async def notebook() -> list[str]:
        runs = await asyncio.gather(*(asyncio.to_thread(ftslurm.submit, [*words, *LONG]) for _ in range(2)))
        with pytest.raises(TimeoutError, match="is not over after 0 s"):
            runs[0].wait(0)
        for run in runs:
            record = await asyncio.to_thread(next, (r for r in run.events(follow=True) if isinstance(r, GroupJoined)))
            assert record.step >= 1
        told = str(await asyncio.to_thread(runs[0].inject, "kill", 1))
        assert told.startswith("drill: SIGKILL of rank 0 of group 1")
        for run in runs:
            assert "is stopping" in await asyncio.to_thread(run.stop)
        return [(await asyncio.to_thread(run.wait, 60))["outcome"] for run in runs]

    assert asyncio.run(notebook()) == ["stopped", "stopped"]


def test_a_local_run_goes_on_when_the_program_ends(words: list[str]) -> None:
    code = f"import ftslurm; print(ftslurm.submit({[*words, *LONG]!r}).dir)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    run = ftslurm.Run(done.stdout.strip())
    assert any(isinstance(record, GroupJoined) for record in run.events(follow=True))
    run.stop()
    assert run.wait(60)["outcome"] == "stopped"


def test_an_application_of_hydra_keeps_its_own_state(words: list[str]) -> None:
    from hydra import compose, initialize
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra

    ConfigStore.instance().store(name="schema", node={"mine": 1})
    with initialize(version_base=None):
        mine = GlobalHydra.instance().hydra
        with pytest.raises(ConfigError, match=r"groups\.cout"):
            ftslurm.submit([*words, "groups.cout=3"])
        assert GlobalHydra.instance().hydra is mine
        assert compose("schema").mine == 1


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["groups.cout=3"], "groups.cout"),
        (["groups.count=2,3"], "groups.count"),
        (["--multirun"], "'--multirun' is no setting: write key=value"),
        (["cluster.controller=here"], "from Python leave it out"),
    ],
)
def test_bad_overrides_raise_and_nothing_is_started(words: list[str], more: list[str], says: str) -> None:
    before = set(threading.enumerate())
    with pytest.raises(ConfigError, match=says):
        ftslurm.submit([*words, *more])
    with pytest.raises(ConfigError, match="a list of texts"):
        ftslurm.submit("job=ddp")
    assert ftslurm.runs(Path(words[2].partition("=")[2].strip('"'))) == []
    assert not set(threading.enumerate()) - before
