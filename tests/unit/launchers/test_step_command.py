"""The command lines and environments of steps, for both launchers."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftslurm.config.schema import Config
from ftslurm.core.rules import begin
from ftslurm.core.state.actions import Attach, Launch
from ftslurm.core.state.model import Place, StepId
from ftslurm.errors import EnvironmentProblem
from ftslurm.guard.guard import options
from ftslurm.launchers import srun, step_command
from ftslurm.launchers.local import ThisMachine, visible_gpus
from ftslurm.launchers.scheduler import Command
from ftslurm.launchers.srun import Slurm
from ftslurm.launchers.step_processes import Children
from ftslurm.run.directory import RunDir
from ftslurm.security import programs

RUN = RunDir(Path("/scratch/it's a run/ddp-1"))
LIGHTHOUSE = Launch(StepId("lighthouse", 1), None, Place(("n1",)))
STANDBY = Launch(StepId("standby-000", 4), None, Place(("n5",)))
SECRET = "wandb-key-0123456789"


def group(number: int = 1, nodes: Sequence[str] = ("n3", "n4"), slot: int = 0) -> Launch:
    return Launch(StepId(f"group-{number:04d}", 2), number, Place(tuple(nodes), slot))


def config(**groups: Any) -> Config:
    made = Config()
    made.run.name, made.job.script, made.job.env = "ddp", "/home/ann/train.py", {"WANDB_API_KEY": SECRET}
    for key, value in groups.items():
        assert hasattr(made.groups, key)
        setattr(made.groups, key, value)
    return made


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment of a batch process."""
    for name in [name for name in os.environ if name.startswith(("SLURM", "FTSLURM", "TORCHFT", "CUDA", "OMP"))]:
        monkeypatch.delenv(name)
    for name, value in {
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_NODELIST": "n[1,3-4]",
        "SLURM_MEM_PER_NODE": "4000",
        "SLURM_NTASKS": "3",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SUBMITIT_EXECUTOR": "slurm",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }.items():
        monkeypatch.setenv(name, value)


def understood(argv: list[str]) -> Any:
    """Return the command line as the worker parses it."""
    return options(argv[argv.index("-c") + 3 :])


# --- the program -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("here", [True, False])
def test_a_worker_understands_its_command_line(here: bool) -> None:
    argv = step_command.command(config(), group(), Path("/logs/a b"), local=here)
    assert argv[:4] == programs.module("ftslurm.worker")
    got = understood(argv)
    assert (got.log_dir, got.heartbeat_s, got.orphan_after_s, got.gpus) == ("/logs/a b", 1.0, 60.0, None)
    assert got.adoptable == (not here)  # through srun an end-of-file has no meaning
    assert got.lighthouse is None


def test_the_interpreter_may_have_a_prefix() -> None:
    made = config()
    made.job.python = ["apptainer", "exec", "img.sif", "python"]
    argv = step_command.command(made, group(), Path("/logs"), local=False)
    assert argv[:7] == programs.module("ftslurm.worker", python=made.job.python)


def test_the_lighthouse_runs_in_our_own_interpreter_and_knows_its_settings() -> None:
    made = config(min=2)
    made.job.python = "/opt/other/python"
    argv = step_command.command(made, LIGHTHOUSE, Path("/logs"), local=False)
    assert argv[:4] == programs.module("ftslurm.lighthouse")
    assert json.loads(understood(argv).lighthouse) == {
        "min_replicas": 2,
        "join_timeout_ms": 10_000,
        "kind": "ftslurm",
        "attempt": 1,
        "highest": 0,
        "heartbeat_timeout_ms": 3000,
        "quorum_tick_ms": 20,
    }


def test_a_lighthouse_knows_how_far_the_run_is() -> None:
    made = config()
    state = begin(made)
    state = replace(state, lineage=replace(state.lineage, step=30))
    argv = step_command.command(made, LIGHTHOUSE, Path("/l"), local=False, state=state)
    assert json.loads(understood(argv).lighthouse)["highest"] == 29


def test_groups_that_share_a_node_are_told_their_share_of_its_gpus() -> None:
    shares = [
        understood(step_command.command(config(gpus=4), group(slot=slot), Path("/l"), local=False)).gpus
        for slot in (0, 1)
    ]
    assert shares == ["0:4", "4:4"]


def test_workers_with_gpus_are_told_to_bind_themselves_and_how_many_share_them() -> None:
    made = config(workers=4, per_node=2, gpus=4, count=3, nodes=2)
    made.cluster.kind = "slurm"
    assert understood(step_command.command(made, group(slot=1), Path("/l"), local=False)).bind == 4
    assert understood(step_command.command(made, STANDBY, Path("/l"), local=False)).bind is None
    made.cluster.srun = ["--cpu-bind=cores"]
    assert "--bind" not in " ".join(step_command.command(made, group(), Path("/l"), local=False))
    made.cluster.srun, made.groups.bind = [], "none"
    assert step_command.bind(made) is None
    made.groups.gpus, made.groups.bind = 0, "auto"
    assert step_command.bind(made) is None


def test_a_standby_is_a_worker_that_warms_up_and_learns_its_share_of_the_gpus_later() -> None:
    made = config(gpus=4, workers=2)
    for imports in ([], ["transformers", "my.data"]):
        made.standby.imports = imports
        argv = step_command.command(made, STANDBY, Path("/logs"), local=False)
        assert argv[:4] == programs.module("ftslurm.worker")
        got = understood(argv)
        assert (got.standby, got.imports, got.gpus) == (True, ",".join(imports), None)
    assert not understood(step_command.command(made, group(), Path("/logs"), local=False)).standby


# --- the environment -------------------------------------------------------------------------------------------------


def environment(made: Config | None = None, base: dict[str, str] | None = None, here: bool = False) -> dict[str, str]:
    return step_command.environment(made or config(), RUN, group(), base or {}, local=here)


def test_with_gpus_nccl_writes_its_traces_beside_the_logs_unless_the_environment_says_otherwise() -> None:
    made = config(gpus=2)
    env = step_command.environment(made, RUN, group(), {"TORCH_NCCL_ENABLE_MONITORING": "0"}, local=False)
    assert env["TORCH_FR_DUMP_TEMP_FILE"] == str(RUN.attempt("group-0001", 2) / "nccl-trace-rank-")
    assert env["TORCH_NCCL_ENABLE_MONITORING"] == "0"
    assert env["FTSLURM_PROCESS_GROUP"] == "nccl"


def test_every_task_knows_its_run_and_torchfts_time_outs() -> None:
    known = {
        "TORCHFT_TIMEOUT_SEC": "60",
        "TORCHFT_QUORUM_TIMEOUT_SEC": "60",
        "TORCHFT_CONNECT_TIMEOUT_SEC": "60",
        "TORCHFT_QUORUM_RETRIES": "600",
        "FTSLURM_CLUSTER": "slurm",
        "FTSLURM_RUN_DIR": "/scratch/it's a run/ddp-1",
        "FTSLURM_RUN_ID": "ddp-1",
        "FTSLURM_STEP": "group-0001/2",
        "FTSLURM_LIGHTHOUSE": "ftslurm",
        "FTSLURM_MANAGER_HEARTBEAT_MS": "1000",
        "FTSLURM_PROCESS_GROUP": "gloo",
        "FTSLURM_TRANSPORT": "tcp",
        "FTSLURM_HEAL": "blocking",
        "FTSLURM_GPUS": "slurm",
        "FTSLURM_INTERFACE": "auto",
        "FTSLURM_CHECKPOINT_DIR": "/scratch/it's a run/ddp-1/checkpoints",
        "FTSLURM_CHECKPOINT_KEEP": "3",
        "FTSLURM_CHECKPOINT_EVERY": "0",
        "FTSLURM_COMPARE_EVERY": "auto",
        "FTSLURM_COMPARE_PARTS": "",
        "FTSLURM_BUFFERS": "report",
        "OMP_NUM_THREADS": "1",
        "WANDB_API_KEY": SECRET,
    }
    assert environment() == known
    made = config()
    made.cluster.interface = ["ib0", "eth0"]
    assert environment(made)["FTSLURM_INTERFACE"] == "ib0,eth0"
    made.cluster.interface = None
    del known["FTSLURM_INTERFACE"]
    assert environment(made) == known
    assert environment(here=True) == {**known, "FTSLURM_CLUSTER": "local"}


@pytest.mark.parametrize(("lost_after_s", "interval_ms"), [(120.0, "1000"), (10.0, "1000"), (4.0, "400"), (1.0, "100")])
def test_managers_send_five_heartbeats_in_the_time_out_of_our_lighthouse(lost_after_s: float, interval_ms: str) -> None:
    made = config()
    made.health.lost_after_s = lost_after_s
    assert environment(made)["FTSLURM_MANAGER_HEARTBEAT_MS"] == interval_ms
    made.lighthouse.kind = "torchft"
    assert "FTSLURM_MANAGER_HEARTBEAT_MS" not in environment(made)


def test_the_users_variables_win_over_ours_and_over_those_we_were_started_with() -> None:
    made = config(cpus_per_worker=4)
    made.job.env |= {"OMP_NUM_THREADS": "7", "TORCHFT_TIMEOUT_SEC": "9", "PATH": "/opt/bin"}
    got = environment(made, {"PATH": "/bin", "OMP_NUM_THREADS": "2", "HOME": "/root"})
    want = {"OMP_NUM_THREADS": "7", "TORCHFT_TIMEOUT_SEC": "9", "PATH": "/opt/bin", "HOME": "/root"}
    assert want.items() <= got.items()


def test_but_not_over_what_tells_the_worker_which_step_it_is() -> None:
    made = config()
    made.job.env |= {"FTSLURM_STEP": "other/0", "FTSLURM_RUN_DIR": "/tmp"}
    assert environment(made)["FTSLURM_STEP"] == "group-0001/2"
    assert environment(made)["FTSLURM_RUN_DIR"] == str(RUN.root)


def test_threads_are_those_of_one_worker_unless_somebody_has_said_otherwise() -> None:
    made = config(cpus_per_worker=4)
    assert environment(made)["OMP_NUM_THREADS"] == "4"
    assert environment(made, {"OMP_NUM_THREADS": "2"})["OMP_NUM_THREADS"] == "2"


def test_a_checkpoint_folder_of_the_users_is_offered_instead() -> None:
    made = config()
    made.checkpoint.dir, made.checkpoint.every = "/ckpt", 50
    got = environment(made)
    assert (got["FTSLURM_CHECKPOINT_DIR"], got["FTSLURM_CHECKPOINT_EVERY"]) == ("/ckpt", "50")


def test_every_value_is_text() -> None:
    made = config()
    made.job.env |= {"DEBUG": 1}  # type: ignore[dict-item] YAML has numbers
    assert all(isinstance(value, str) for value in environment(made).values())


def test_steps_of_which_nothing_may_be_left_are_named() -> None:
    launch = replace(group(), fence=(StepId("standby-000", 5), StepId("standby-001", 2)))
    got = step_command.environment(config(), RUN, launch, {"FTSLURM_FENCE": "group-0000/0"}, local=False)
    assert got["FTSLURM_FENCE"] == "standby-000/5,standby-001/2"
    assert "FTSLURM_FENCE" not in environment(base={"FTSLURM_FENCE": "group-0000/0"})


# --- through srun ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("job")
def test_a_group_is_one_srun_over_all_its_nodes() -> None:
    (command,) = Slurm(config(nodes=2, workers=4, gpus=4), RUN).start(group(), Path("/logs"))
    words = [
        "--jobid=77",
        "--nodes=2",
        "--ntasks=8",
        "--ntasks-per-node=4",
        "--nodelist=n3,n4",
        "--job-name=group-0001",
    ]
    assert set(words) <= set(command.argv)
    assert os.path.basename(command.argv[0]) == "srun"
    assert understood(command.argv).gpus == "0:4"
    assert not [word for word in command.argv if word.startswith("--gres")]


@pytest.mark.usefixtures("job")
def test_the_lighthouse_is_one_task_without_gpus_and_the_users_srun_arguments() -> None:
    made = config(nodes=2, workers=4, gpus=4)
    made.cluster.srun = ["--mpi=none"]
    (command,) = Slurm(made, RUN).start(LIGHTHOUSE, Path("/logs"))
    assert {"--ntasks=1", "--nodelist=n1", "--gres=none"} <= set(command.argv)
    assert "--mpi=none" not in command.argv
    assert "--mpi=none" in Slurm(made, RUN).start(group(), Path("/logs"))[0].argv


@pytest.mark.usefixtures("job")
def test_a_standby_has_a_groups_tasks_and_sees_every_gpu_of_its_node() -> None:
    made = config(workers=4, gpus=4)
    made.cluster.srun = ["--mpi=none"]
    (command,) = Slurm(made, RUN).start(STANDBY, Path("/logs"))
    assert {"--ntasks=4", "--nodelist=n5", "--job-name=standby-000", "--mpi=none"} <= set(command.argv)
    assert not [word for word in command.argv if word.startswith("--gres")]
    assert command.env["FTSLURM_STEP"] == "standby-000/4"


HANDLES_SIGPIPE = """
import os, signal, sys
signal.signal(signal.SIGPIPE, lambda *_: open(sys.argv[1], "a").write("ends its step "))
print("up", flush=True)
sys.stdin.read()
try:
    os.write(1, b"x")
except BrokenPipeError:
    open(sys.argv[1], "a").write("goes on")
"""


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("role", ["launches", "adopts"])
def test_an_srun_that_handles_sigpipe_goes_on_when_its_controller_is_killed(role: str, tmp_path: Path) -> None:
    launcher, launch, told = Slurm(config(), RUN), group(), tmp_path / "told"
    made = {
        "launches": launcher.start(launch, tmp_path)[0],
        "adopts": launcher.attach(Attach(launch.id, launch.place, "77.1")),
    }
    command = replace(made[role], argv=[sys.executable, "-c", HANDLES_SIGPIPE, str(told)], env=dict(os.environ))
    children = Children(tmp_path, launcher)
    assert children.launch(launch.id, [command], tmp_path / "step.log") is None
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
    (child,) = children.by_pid.values()
    assert child.process.stdout is not None
    os.set_blocking(child.process.stdout.fileno(), True)
    assert child.process.stdout.readline() == b"up\n"
    for pipe in (child.process.stdout, child.process.stderr, child.process.stdin):  # as the death of a process does
        pipe.close()  # type: ignore[union-attr]
    assert child.process.wait() == 0
    assert told.read_text() == "goes on"


@pytest.mark.usefixtures("job")
def test_srun_starts_from_a_clean_slate_and_tells_its_own_failures_apart() -> None:
    (command,) = Slurm(config(), RUN).start(group(), Path("/logs"))
    left = {name: value for name, value in command.env.items() if name.startswith(("SLURM", "SUBMITIT", "CUDA_V"))}
    assert left == {"SLURM_CONF": "/etc/slurm/slurm.conf", "SLURM_EXIT_ERROR": "78"}
    assert command.env["WANDB_API_KEY"] == SECRET
    assert command.env["PATH"] == os.environ["PATH"]


@pytest.mark.usefixtures("job")
def test_the_allocation_is_the_one_we_run_in() -> None:
    got = srun.allocation(Config(), os.environ)
    assert (got.name, got.nodes) == ("77", ("n1", "n3", "n4"))


@pytest.mark.parametrize("environ", [{}, {"SLURM_JOB_ID": "7"}, {"SLURM_JOB_NODELIST": "n1"}])
def test_outside_an_allocation_we_say_what_to_do(environ: dict[str, str]) -> None:
    with pytest.raises(EnvironmentProblem, match=r"cluster\.controller=here"):
        srun.allocation(Config(), environ)


# --- on this machine -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("job")
def test_a_group_is_one_process_per_worker_on_nodes_of_pretence() -> None:
    commands = ThisMachine(config(nodes=2, workers=2), RUN).start(group(nodes=("local2", "local3")), Path("/logs"))
    got = [(c.env["FTSLURM_TASK"], c.env["FTSLURM_LOCAL_TASK"], c.env["FTSLURM_NODE"]) for c in commands]
    assert got == [("0", "0", "local2"), ("1", "1", "local2"), ("2", "0", "local3"), ("3", "1", "local3")]
    assert {tuple(c.argv) for c in commands} == {tuple(commands[0].argv)}


@pytest.mark.usefixtures("job")
def test_gpus_of_this_machine_are_shared_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,GPU-7")
    launcher = ThisMachine(config(nodes=2, workers=2, gpus=2), RUN)
    shares = [
        [command.env["CUDA_VISIBLE_DEVICES"] for command in launcher.start(group(number), Path("/logs"))]
        for number in (0, 1)
    ]
    assert shares == [["0,1", "0,1", "2,3", "2,3"], ["4,5", "4,5", "6,GPU-7", "6,GPU-7"]]
    assert launcher.start(LIGHTHOUSE, Path("/logs"))[0].env["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.usefixtures("job")
def test_a_standby_on_this_machine_sees_every_gpu_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    commands = ThisMachine(config(workers=2, gpus=2), RUN).start(STANDBY, Path("/logs"))
    assert [command.env["CUDA_VISIBLE_DEVICES"] for command in commands] == ["0,1,2,3"] * 2


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, ["2", "3"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_the_gpus_that_may_be_used(environ: dict[str, str], gpus: list[str]) -> None:
    assert visible_gpus(environ)[1] == gpus


def test_this_machine_has_a_name_for_every_node_the_groups_need() -> None:
    made = config(count=2, nodes=2)
    made.cluster.spare_nodes = 1
    assert ThisMachine(made, RUN).allocation().nodes == ("local0", "local1", "local2", "local3", "local4")


# --- secrets ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("job")
def test_no_value_of_job_env_is_on_a_command_line() -> None:
    made = config(nodes=2, workers=2)
    commands: list[Command] = []
    for launcher in (Slurm(made, RUN), ThisMachine(made, RUN)):
        for launch in (group(), LIGHTHOUSE):
            commands += launcher.start(launch, Path("/logs"))
    assert len(commands) == 1 + 1 + 4 + 1
    for command in commands:
        assert command.env["WANDB_API_KEY"] == SECRET
        assert not [word for word in command.argv if SECRET in word]


def test_workers_learn_what_is_compared_and_how_often_only_if_it_is() -> None:
    made = config()
    assert environment(made)["FTSLURM_COMPARE_EVERY"] == "auto"
    made.lighthouse.kind = "none"
    assert [name for name in environment(made) if "COMPARE" in name] == []
    made.lighthouse.kind, made.health.compare_every = "ftslurm", 0
    assert [name for name in environment(made) if "COMPARE" in name] == []
    made.health.compare_every, made.health.compare_parts = 50, ["*.model.*", "ema"]
    got = environment(made)
    assert (got["FTSLURM_COMPARE_EVERY"], got["FTSLURM_COMPARE_PARTS"]) == ("50", "*.model.* ema")
