"""A silent controller: which process may end the job, what stop does, what status says."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import commands_left
import example_journal as ex
import pytest
from full_disk import fill, full_disk, make_room
from meanwhile import repeated
from programs import Programs

from ftslurm.api import answers
from ftslurm.cli.main import main
from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.guard import orphan
from ftslurm.run import facts, liveness
from ftslurm.run.directory import RunDir

QUEUE = """
state=${STATE:-RUNNING}
case "$*" in
*UserName*) echo "77|77|$state|None|me|/runs/ddp/submitit/x.sh|ftslurm:ddp|"; printf "%b" "$EXTRA" ;;
*) echo "$state|0|None|" ;;
esac
"""


@pytest.fixture
def slurm(programs: Programs) -> Programs:
    """Fakes: squeue shows job 77, in $STATE, and $EXTRA; scancel only records its calls."""
    programs.add("squeue", body=QUEUE)
    programs.add("scancel")
    return programs


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A started run on Slurm, as job 77, without a controller."""
    run = ex.new_run(tmp_path, [line for line in ex.one_kill() if line["time"] < ex.START + 15.2])
    config = Config()
    config.job.script, config.run.name, config.cluster.kind = "train.py", "ddp", "slurm"
    config.groups.count, config.health.lost_after_s = 3, 1.0
    run.config.write_text(compose.dump(config))
    run.inbox.mkdir()
    run.submitit.mkdir()
    (run.submitit / "job_id").write_text("77")
    run.alive.touch()
    return run


def silent_for(run: RunDir, seconds: float) -> None:
    run.alive.touch()
    os.utime(run.alive, (time.time() - seconds, time.time() - seconds))


@contextmanager
def heard(run: RunDir, ahead_s: float) -> Iterator[None]:
    """Touch the run's sign of life again and again, on a file server whose clock is ahead_s ahead."""
    run.alive.touch()
    with repeated(lambda: os.utime(run.alive, (time.time() + ahead_s, time.time() + ahead_s)), 0.02):
        yield


def orphan_of(run: RunDir, after_s: float) -> None:
    orphan.end_job({"SLURM_JOB_ID": "77", "FTSLURM_RUN_DIR": str(run.root)}, after_s)


def settled(text: str) -> str:
    """Return the text as if no time had passed since the test began."""
    return re.sub(r"for 1\d\d s", "for 100 s", text)


def test_an_orphan_ends_the_job_of_a_controller_that_has_died(run: RunDir, slurm: Programs) -> None:
    for seconds in (40.0, -40.0):  # as the clock of its file server says
        silent_for(run, seconds)
        orphan_of(run, 0.2)
        assert slurm.calls() == ["scancel 77"]
        slurm.forget()


def test_an_orphan_leaves_alone_what_a_living_controller_has_or_nothing_is_known_of(
    run: RunDir, slurm: Programs
) -> None:
    run.alive.unlink()
    orphan_of(run, 30.0)  # no such file
    silent_for(run, 20.0)
    touch = threading.Timer(0.2, run.alive.touch)
    touch.start()
    orphan_of(run, 30.0)
    with heard(run, -3600.0):
        orphan_of(run, 1.0)
    orphan.end_job({"FTSLURM_RUN_DIR": str(run.root)}, 1.0)  # in no job
    assert slurm.calls() == []
    touch.join()


def test_an_orphan_that_knows_at_once_waits_until_the_silence_is_long_enough(run: RunDir, slurm: Programs) -> None:
    silent_for(run, 29.7)  # as when srun dies with the controller's node, and slurmstepd closes our stdout
    began = time.monotonic()
    orphan_of(run, 0.3)
    assert time.monotonic() - began >= 0.3
    assert slurm.calls() == ["scancel 77"]


def test_an_orphan_of_a_run_that_is_over_goes_at_once(tmp_path: Path, slurm: Programs) -> None:
    run = ex.new_run(tmp_path, ex.one_kill())
    text = run.events.read_text().replace('": ', '":').replace(', "', ',"')
    run.events.write_text(text)  # as the controller writes it
    silent_for(run, 1)
    began = time.monotonic()
    orphan_of(run, 30.0)
    assert time.monotonic() - began < 5
    assert slurm.calls() == []


def test_between_two_jobs_status_says_what_it_waits_for_and_the_next_hears_stop(
    run: RunDir, slurm: Programs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ex.write(run, [ex.event(20, "run_requeued", reason="the time limit is near")])
    run.alive.touch()
    monkeypatch.setenv("STATE", "PENDING")
    main(["status", str(run.root)])
    said = capsys.readouterr().out
    assert "the run goes on in its next job: Slurm job 77 is waiting in the queue" in said
    monkeypatch.setenv("STATE", "COMPLETING")
    assert main(["stop", str(run.root)]) == 0
    assert "does not run now: it stops as soon as its controller starts" in capsys.readouterr().out
    assert len(list(run.inbox.iterdir())) == 1
    assert not slurm.calls("scancel")


def test_stop_cancels_the_groups_jobs_too_and_nobody_elses(
    run: RunDir, slurm: Programs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = compose.load(run.config)
    config.cluster.kind = "array"
    run.config.write_text(compose.dump(config))
    end = "RUNNING|None|me|/x.sh|ftslurm"
    monkeypatch.setenv("EXTRA", rf"80_1|81|{end}:ddp-0930-k3:0|\n90|90|{end}:other:0|\n91|91|{end}:ddp-0930-k3-2:0|\n")
    silent_for(run, 100)
    assert main(["stop", str(run.root)]) == 0
    assert "Cancelled: Slurm job 77, 80_1\n" in capsys.readouterr().out
    assert "scancel 77 80_1" in slurm.calls()


def test_stop_cancels_the_job_of_a_controller_that_is_not_heard(
    run: RunDir, slurm: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    silent_for(run, 100)
    assert main(["stop", str(run.root)]) == 0
    assert "has not been heard for 100 s. Cancelled: Slurm job 77" in settled(capsys.readouterr().out)
    assert slurm.calls()[-1] == "scancel 77"
    assert [command["what"] for command in commands_left.take(run.inbox)] == ["stop"]  # for one that Slurm starts again


@pytest.mark.usefixtures("slurm")
def test_stop_says_when_nobody_answers(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(answers, "ANSWER_S", 0.1)
    silent_for(run, 1)
    assert main(["stop", str(run.root)]) == 1
    assert "has not answered within 0.1 s" in (said := capsys.readouterr().err)
    assert "scancel 77" in said
    assert [command["what"] for command in commands_left.take(run.inbox)] == ["stop"]


def test_stop_of_a_job_that_ends_meanwhile_says_so(
    run: RunDir, slurm: Programs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(answers, "ANSWER_S", 1.0)
    monkeypatch.setenv("STATE", "COMPLETING")
    first = 'test $(wc -l < "$(dirname "$0")/calls") -gt 1 && STATE=FAILED\n'
    slurm.add("squeue", body=first + QUEUE)
    assert main(["stop", str(run.root)]) == 0
    assert "its controller is gone: Slurm job 77 is FAILED" in capsys.readouterr().out


@pytest.mark.usefixtures("slurm")
def test_stop_waits_for_the_answer(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    def controller() -> None:
        while not commands_left.take(run.inbox):
            time.sleep(0.01)
        ex.write(run, [ex.event(20, "command", what="stop", by=os.getuid())])

    threading.Thread(target=controller, daemon=True).start()
    assert main(["stop", str(run.root)]) == 0
    assert "is stopping" in capsys.readouterr().out


@pytest.mark.usefixtures("slurm")
def test_status_says_it(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    said = "its controller on n1 has not been heard for 100 s; ftslurm stop cancels Slurm job 77"
    silent_for(run, 100)
    assert main(["status", str(run.root)]) == 0
    assert said in settled(table := capsys.readouterr().out)
    assert "Lighthouse" in table
    assert main(["status", "--json", str(run.root)]) == 0
    assert settled(json.loads(capsys.readouterr().out)["note"]) == said
    silent_for(run, 20)
    main(["status", "--json", str(run.root)])
    assert json.loads(capsys.readouterr().out)["note"] is None


def test_a_file_server_whose_clock_is_behind_makes_no_living_controller_silent(
    run: RunDir, slurm: Programs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(answers, "ANSWER_S", 0.1)
    config = compose.load(run.config)
    config.health.lost_after_s = 50.0
    run.config.write_text(compose.dump(config))
    with heard(run, -100.0):
        assert main(["status", "--json", str(run.root)]) == 0
        assert json.loads(capsys.readouterr().out)["note"] is None
        assert main(["stop", str(run.root)]) == 1  # it does not answer
    assert not slurm.calls("scancel")
    assert [command["what"] for command in commands_left.take(run.inbox)] == ["stop"]


def test_who_follows_a_run_sees_silence_by_his_own_clock(run: RunDir) -> None:
    config, now = compose.load(run.config), 0.0
    watch = liveness.Watch(lambda: now)

    def seen() -> str:
        return facts.look(config, run, facts.Queue(), watch=watch, wait=False).state

    silent_for(run, -3600.0)
    assert seen() == "running"
    now = 31.0
    assert seen() == "silent"
    run.alive.touch()
    assert seen() == "running"


@pytest.mark.usefixtures("slurm")
def test_a_controller_that_has_left_no_sign_of_life_is_not_heard(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    run.alive.unlink()
    main(["status", "--json", str(run.root)])
    assert "is not heard;" in json.loads(capsys.readouterr().out)["note"]


def test_a_complaint_replaces_the_one_before_on_a_full_disk(tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk") as disk:
        make_room(disk)
        run = RunDir(disk)
        liveness.touch(run.alive)
        assert liveness.complaint(run) is None
        fill(disk)
        for said in ("events.jsonl cannot be written (No space left on device)", "it has ended, \x1b[31mstopped", ""):
            liveness.touch(run.alive, said)
            assert (liveness.complaint(run) or "") == said.replace("\x1b", "\\x1b")
        liveness.touch(run.alive, "x" * 5000)
        assert 0 < len(liveness.complaint(run) or "") < 5000
