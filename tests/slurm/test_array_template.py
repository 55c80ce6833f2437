"""sbatch/array.sbatch by hand: a group in each task, and the controller in any of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster import Cluster
from harness import SCRIPTS, Run, light
from templates import written

pytestmark = pytest.mark.slurm
LOOK = "import json, sys, time\nprint(json.dumps(sys.argv[1:]), flush=True)\ntime.sleep(1)\n"
# `sbatch --wait` looks every 2, 4, 8 ... seconds.
WAIT = """
job=$(sbatch --parsable "$@") || exit
while squeue --noheader --jobs="$job" | grep -q .; do sleep 0.2; done
"""

Submit = Callable[..., Run]


@dataclass(frozen=True)
class Task:
    """A task of the array, as the queue shows it."""

    job: str  # its raw id
    state: str
    node: str


@pytest.fixture
def submit(tmp_path: Path) -> Iterator[Submit]:
    """A function that submits the template; `sbatch --wait` runs in the background until no task is left."""
    runs: list[Run] = []

    def start(cluster: Cluster, folder: Path, array: str, *words: str) -> Run:
        command = [
            "bash",
            "-c",
            WAIT,
            "bash",
            f"--array={array}",
            "--cpus-per-task=1",
            str(written() / "array.sbatch"),
            *words,
        ]
        environ = cluster.environ()
        with (tmp_path / "sbatch.out").open("w") as out:
            process = subprocess.Popen(command, cwd=folder, env=environ, stdout=out, stderr=out, text=True)
        runs.append(Run(process, tmp_path / "sbatch.out", folder / "runs", tmp_path / "steps", environ))
        return runs[-1]

    yield start
    for run in runs:
        print(*(path.read_text() for path in run.root.parent.glob("ftslurm-*.out")), sep="\n")
        run.abandon()


def tasks(cluster: Cluster) -> dict[str, Task]:
    """Return the tasks of all arrays by name, such as 81_0."""
    text = cluster.run(["squeue", "--noheader", "--array", "--states=all", "--format=%i|%A|%T|%N"])
    return {name: Task(*rest) for name, *rest in (line.split("|") for line in text.splitlines())}


def leader(cluster: Cluster, run: Run) -> str:
    """Return the task in which the leader runs."""
    job = run.named("run_started")[-1]["job_id"]
    return next(name for name in tasks(cluster) if name == job)


def group_in(run: Run, task: str) -> int:
    """Return the group that runs in a task."""
    last = {e["group"]: e["allocation"] for e in run.named("step_launched") if e["group"] is not None}
    return next(int(str(group)) for group, allocation in last.items() if allocation == task)


def go_on(run: Run, groups: set[int], steps: int = 6) -> None:
    """Wait until these groups have committed so many more steps."""
    before = {group: len(run.steps(group)) for group in groups}
    run.until(lambda: all(len(run.steps(g)) >= before[g] + steps for g in groups), f"{steps} steps more of {groups}")


def test_each_task_has_a_group_and_all_of_them_complete(
    slurm_cluster: Cluster, submit: Submit, weird_tmp_path: Path
) -> None:
    (weird_tmp_path / "my train.py").write_text(LOOK)
    (weird_tmp_path / "conf/job").mkdir(parents=True)
    (weird_tmp_path / "conf/job/mine.yaml").write_text(
        "# @package _global_\nrun: {name: mine}\njob: {script: my train.py}\n"
    )
    args = """job.args=["two words","it's",'a "quoted" $HOME `x` \\\\n *',0]"""
    run = submit(slurm_cluster, weird_tmp_path, "0-1", "--config-dir", "conf", "job=mine", args, light())
    run.finish()
    expected = json.dumps(["two words", "it's", 'a "quoted" $HOME `x` \\\\n *', "0"])
    assert [run.rank_log(group).splitlines() for group in range(2)] == [[expected]] * 2
    array = leader(slurm_cluster, run).partition("_")[0]
    states = [task.state for name, task in tasks(slurm_cluster).items() if name.startswith(f"{array}_")]
    assert states == ["COMPLETED"] * 2
    assert run.dir.name == f"mine-{array}"
    texts = [(weird_tmp_path / f"ftslurm-{array}_{task}.out").read_text() for task in range(2)]
    assert sum("succeeded: all groups finished" in text for text in texts) == 1  # in the leader's output
    ends = ("the run has succeeded", "this task ends, the run goes on")  # the second, if its group was done much sooner
    assert all(any(end in text for end in ends) for text in texts)


def test_no_task_takes_the_state_of_the_others_for_its_own(slurm_cluster: Cluster, tmp_path: Path) -> None:
    # The raw id of one task of an array is the array's own id, which means all tasks in Slurm's commands.
    look = tmp_path / "look.py"
    look.write_text(
        f"#!{sys.executable}\nimport time\n"
        "from ftslurm.submission import pilots\nprint(pilots._job_ends())\ntime.sleep(3)\n"
    )
    command = ["sbatch", "--array=0-1", "--wait", f"--output={tmp_path}/%a.out", str(look)]
    subprocess.run(command, env=slurm_cluster.environ(), check=True, capture_output=True)
    assert [(tmp_path / f"{task}.out").read_text() for task in range(2)] == ["False\n"] * 2


@pytest.mark.nightly
def test_whichever_task_is_lost_the_others_train_on(
    new_cluster: Callable[..., Cluster], submit: Submit, tmp_path: Path
) -> None:
    # As with proctrack/cgroup, Slurm signals the batch process alone, not its children.
    soon = "AuthInfo=socket=FOLDER/munge.sock,cred_expire=5"  # a requeued job is held back for so long
    cluster = new_cluster(nodes=4, cpus=1, extra_conf=f"ProctrackType=proctrack/pgid\n{soon}")
    words = [
        light(),
        f"job.script={SCRIPTS / 'light.py'}",
        f"job.args.steps-file={tmp_path / 'steps'}",
        "job.args.open-end=true",
    ]
    words += ["job.args.step-time=0.2", "health.lost_after_s=5"]
    run = submit(cluster, tmp_path, "0-2", *words, "stop.grace_s=2", "groups.gpus=0")
    go_on(run, {0, 1, 2})

    first = leader(cluster, run)
    lost = group_in(run, first)
    others = {0, 1, 2} - {lost}
    node = tasks(cluster)[first].node
    cluster.kill_node(node)
    for group in others:
        run.wait_for("step_adopted", group=group)
    go_on(run, others)
    assert leader(cluster, run) != first
    cluster.run(
        ["scontrol", "update", f"nodename={node}", "state=down", "reason=test"]
    )  # Slurm's own takes half a minute
    run.wait_until_back(lost)  # its task was requeued, and has another node
    assert node not in run.named("step_launched", group=lost, attempt=1)[0]["nodes"]  # type: ignore[operator]

    second = leader(cluster, run)
    moved = group_in(run, second)
    cluster.run(["scancel", "--batch", "--signal=USR2", second])  # as --signal=B:USR2@120 does
    run.until(lambda: len(run.named("controller_left")) == 1, "the hand-over")
    run.until(lambda: run.named("allocation_requeued", allocation=second), "the requeue")
    least = 1 if moved != lost else 2  # the next controller may launch it before Slurm has ended that job
    run.until(lambda: any(e["attempt"] >= least for e in run.named("group_joined", group=moved)), "the moved group")

    third = leader(cluster, run)
    assert third != second
    gone = group_in(run, third)
    cluster.run(["scancel", third])  # by hand: it does not come back
    run.until(lambda: len(run.named("run_started")) == 4, "the fourth controller")
    go_on(run, {0, 1, 2} - {gone})

    last = run.end_soon()
    run.finish()
    for group in {0, 1, 2} - {lost, moved}:  # no group is restarted but those whose task is lost
        numbers = [int(step["step"]) for step in run.steps(group)]
        assert numbers == list(range(numbers[0], (numbers[-1] if group == gone else last) + 1))
        assert [e["attempt"] for e in run.named("step_launched", group=group)] == [0]
    assert set(run.weights()) == {(group, 0) for group in {0, 1, 2} - {gone}}
    assert len(set(run.weights().values())) == 1
    ends = {name: task.state for name, task in tasks(cluster).items()}
    code = "FAILED" if run.named("run_finished")[0].get("missing") else "COMPLETED"  # `gone` may be far from the end
    assert ends.pop(third) == "CANCELLED"
    assert ends.pop(leader(cluster, run)) == code
    assert set(ends.values()) <= {code, "COMPLETED"}  # one whose group was done much sooner knows nothing of the end
    assert len(ends) == 1
