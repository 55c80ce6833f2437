"""The jobs of a run are recognised, also beside a run of the same folder name or where a site removes comments."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest
from programs import Programs
from slurm_answers import read, read_queue

from ftslurm.config.schema import Config
from ftslurm.controller.execution import Executor
from ftslurm.core.rules import begin
from ftslurm.core.state.actions import (
    Ask,
    AskJobs,
    AskNodes,
    CancelJobs,
    Dial,
    DistrustCheckpoints,
    Exclude,
    Probe,
    RequestJobs,
    RequeueJob,
    StartNow,
)
from ftslurm.core.state.events import Explained, JobsSeen, Looked, RequeueRefused
from ftslurm.core.state.model import Job, replace
from ftslurm.guard import processes
from ftslurm.launchers.background import Answered, BackgroundCommands
from ftslurm.launchers.scheduler import Answer, AskOwnNodes, AskOwnState, CancelStep
from ftslurm.launchers.srun import Slurm
from ftslurm.launchers.step_processes import Children, News
from ftslurm.run.directory import RunDir
from ftslurm.slurm.parse import NO_OUTPUT


def new(folder: Path) -> RunDir:
    run = RunDir(folder / "run")
    run.create()
    return run


def line(name: str, comment: str) -> str:
    return f"{name}|{name}|RUNNING|None|n1|N/A|N/A|N/A|{name}|{comment}|\n"


def test_two_runs_whose_folders_have_the_same_name_do_not_take_each_others_jobs(tmp_path: Path) -> None:
    one, other = new(tmp_path / "a"), new(tmp_path / "b")
    text = line("7", f"{one.mark()}:0") + line("8", f"{other.mark()}:1")
    assert [job.name for job in read_queue(text, one.mark())[0]] == ["7"]
    assert [(job.name, job.pool) for job in read_queue(text, other.mark())[0]] == [("8", 1)]


def test_a_later_controller_knows_the_jobs_of_the_earlier_one_without_their_comments(tmp_path: Path) -> None:
    run = new(tmp_path)
    run.remember(["7_0", "7_1"], 0)
    run.remember(["9"], 2)
    (seen,) = read(AskJobs(), line("7_1", "x") + line("9", "") + line("10", "x"), slurm=Slurm(Config(), run))
    assert [(job.name, job.pool) for job in seen.jobs] == [("7_1", 0), ("9", 2)]


@pytest.mark.parametrize(
    ("state", "start", "told", "preempted"),
    [
        ("RUNNING", "2026-11-22T06:44:44", "2026-11-22T06:44:45", True),  # measured: without a limit its end is hidden
        ("RUNNING", "2026-11-22T06:44:44", "N/A", False),
        ("RUNNING", "2026-11-22T06:44:44", "2026-11-22T06:40:00", False),  # before it was requeued
        ("COMPLETING", "2026-11-22T06:44:44", "2026-11-22T06:44:45", False),
        ("PENDING", "N/A", "2026-11-22T06:44:45", False),
    ],
)
def test_that_a_job_is_preempted_is_known_also_if_its_end_is_not(
    state: str, start: str, told: str, preempted: bool, tmp_path: Path
) -> None:
    run = new(tmp_path)
    text = f"7|7|{state}|None|n1|{start}|NONE|{told}|7|{run.mark()}:0|\n"
    ((job,), _) = read_queue(text, run.mark())
    assert job.ends is None
    assert job.preempted is preempted


def test_a_run_directory_of_an_earlier_version_is_known_by_its_name(tmp_path: Path) -> None:
    assert RunDir(tmp_path / "ddp-1").mark() == "ftslurm:ddp-1"


@pytest.mark.parametrize(("name", "known"), [("81_2", True), ("81_3", False), (["81_2"], False), (None, False)])
def test_only_jobs_of_the_run_are_about_to_end(name: object, known: bool, tmp_path: Path) -> None:
    slurm = Slurm(Config(), new(tmp_path))
    slurm.pools = {"81_2": 0}
    assert bool(slurm.reported({"what": "leaving", "name": name, "signal": "SIGTERM"})) is known


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("Job is pending execution for job 6", False),  # measured: Slurm was faster, the job was preempted
        ("Unable to contact slurm controller (connect failure)", False),
        ("Requested operation is presently disabled for job 6", True),
    ],
)
def test_only_what_slurm_will_never_requeue_is_given_up(words: str, refused: bool) -> None:
    news = read(RequeueJob("6"), f"slurm_requeue error: {words}\n", code=1)
    assert news == ([RequeueRefused("6", f"slurm_requeue error: {words}")] if refused else [])


def test_what_sbatch_is_being_asked_for_when_the_run_ends_does_not_stay_in_the_queue(
    tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new(tmp_path)
    programs.add("scancel")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    run.job_id.write_text("6")  # the controller's own job
    config = Config()
    config.cluster.kind = "array"
    slurm = Slurm(config, run)
    run.submitted.mkdir()
    command = ["sh", "-c", f"sleep 0.3; echo 0 > {run.submitted}/9_0"]
    submit = replace(slurm.request(RequestJobs(0, 1)), argv=command)
    executor = Executor(config, run, Children(run.root, slurm))
    executor.children.background.ask(submit)
    state = begin(config)
    executor.end(
        replace(state, job_pool=replace(state.job_pool, by_name={"7": Job("7", state="RUNNING", nodes=("n1",))}))
    )
    assert programs.calls() == ["scancel 7 9_0", "scancel --state=PENDING 6"]


def test_an_answer_of_squeue_has_the_time_of_its_question_not_of_a_later_one(
    tmp_path: Path, programs: Programs
) -> None:
    programs.add("squeue", delay_s=0.3)
    slurm = Slurm(Config(), new(tmp_path))
    children = Children(slurm.run.root, slurm)
    for now in (1.0, 2.0):
        children.background.ask(slurm.request(AskJobs(now)))
    assert len(children.background.running) == 1
    news: list[News] = []
    until = time.monotonic() + 20
    while not news and time.monotonic() < until:
        news = list(children.listen(0.1))
    (answer,) = news
    assert isinstance(answer, Answered)
    (event,) = answer.request.read(answer.answer)
    assert isinstance(event, JobsSeen)
    assert event.asked == 1.0


ANSWERS = {
    AskJobs(): [JobsSeen],
    AskNodes(("n1",)): [],
    Probe("n1"): [Looked],
    Exclude("6", ("n1",)): [],
    CancelJobs(("6",)): [],
    RequeueJob("6"): [RequeueRefused],
    StartNow("6"): [],
    CancelStep("6.0"): [],
    AskOwnState(): [Explained],
    AskOwnNodes(): [],
}


@pytest.mark.parametrize("ask", ANSWERS, ids=str)
def test_what_cannot_be_asked_is_answered_at_once(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm, background = Slurm(Config(), new(tmp_path)), BackgroundCommands()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [type(event) for event in background.ask(slurm.request(ask))] == ANSWERS[ask]
    assert not background.running


@pytest.mark.parametrize(
    ("ask", "text", "warns"),
    [
        (CancelStep("6.0"), "Kill job error on job step id 6.0: Invalid job id specified", False),
        (CancelJobs(("6",)), "Kill job error on job id 6: Job/step already completing or completed", False),
        (CancelStep("6.0"), "Kill job error on job step id 6.0: Access/permission denied", True),
    ],
)
def test_what_is_gone_already_is_cancelled(
    ask: Ask, text: str, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert Slurm(Config(), new(tmp_path)).request(ask).read(Answer(225, text)) == []
    assert bool(caplog.records) == warns


def test_an_sbatch_that_hangs_is_killed_with_the_program_that_waits_for_it(programs: Programs, tmp_path: Path) -> None:
    programs.add("sbatch", body=f"echo $$ > {tmp_path}/hangs; exec sleep 60")
    waits = "import os; from ftslurm.slurm import client; client.call(['sbatch'], None, dict(os.environ))"
    background = BackgroundCommands()
    request = replace(Slurm(Config(), new(tmp_path)).request(RequestJobs(0, 1)), argv=[sys.executable, "-c", waits])
    assert not background.ask(replace(request, timeout_s=0.0))
    until = time.monotonic() + 60
    while not (tmp_path / "hangs").is_file() or not (tmp_path / "hangs").read_text():
        assert time.monotonic() < until
        time.sleep(0.02)
    background.kill_overdue()
    (command,) = background.running.values()
    assert command.process.wait(60) == -signal.SIGKILL
    sbatch = int((tmp_path / "hangs").read_text())
    while processes.state(sbatch) not in (None, "Z"):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_slurm_can_be_asked_all_that_the_core_and_the_controller_ask() -> None:
    of_ours = {RequestJobs(0, 1), Dial(("n1",))}  # programs that are always there
    of_all = {DistrustCheckpoints}  # every scheduler's run asks it in the same way (controller/execution.py)
    assert set(Ask.__subclasses__()) - of_all == {type(ask) for ask in (*ANSWERS, *of_ours)}
    slurm = Slurm(Config(), RunDir(Path("/nowhere/run")))
    assert all(slurm.request(ask).argv for ask in of_ours)


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ('["n1"]', ("n1",)),
        ("[]", ()),
        ('["n3", "n2", 7]', ("n2",)),
        ("", ()),
        ("7", ()),
        ("Traceback", ()),
    ],
)
def test_of_what_dialling_prints_only_nodes_that_were_dialled_count(
    text: str, nodes: tuple[str, ...], tmp_path: Path
) -> None:
    request = Slurm(Config(), new(tmp_path)).request(Dial(("n1", "n2")))
    assert request.read(Answer(0, text)) == [Looked(node, False, silent=True) for node in nodes]


@pytest.mark.parametrize("name", ["7", "7_1"])
@pytest.mark.parametrize("reason", NO_OUTPUT)
def test_only_a_job_without_an_output_has_a_node_that_could_not_make_it(reason: str, name: str, tmp_path: Path) -> None:
    slurm = Slurm(Config(), new(tmp_path))
    slurm.pools = {name: 0}
    text = f"{name}|8|FAILED|{reason}|n1|N/A|N/A|N/A|7||\n"
    assert read(AskJobs(), text, slurm=slurm)[0].jobs[0].nodes == ("n1",)
    slurm.run.output(name).touch()  # Slurm 22.05: a signal has ended its batch script
    assert read(AskJobs(), text, slurm=slurm)[0].jobs[0].nodes == ()
