"""Parsing and building of Slurm's text: recorded lines, and tables."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from programs import Programs
from slurm_answers import read_node_fates

import ftslurm
from ftslurm.config.schema import Config
from ftslurm.core.state.events import NodeFate
from ftslurm.core.state.model import Evidence, RunOutcome
from ftslurm.protocol.causes import Cause
from ftslurm.slurm import client, commands
from ftslurm.slurm.commands import scrubbed, srun_command
from ftslurm.slurm.evidence import asked_by_slurm, job_ends, no_job, read_srun
from ftslurm.slurm.hosts import expand_hosts
from ftslurm.slurm.parse import (
    UNKNOWN,
    Partition,
    partition_names,
    read_gpus,
    read_gpus_of_job,
    read_partitions,
    read_topology,
)

# --- host lists ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1 n2"),
        ("n[1-3]", "n1 n2 n3"),
        ("n[1,3,7]", "n1 n3 n7"),
        ("n[01-03,7],m1", "n01 n02 n03 n7 m1"),
        ("n[08-11]", "n08 n09 n10 n11"),  # zeros are kept
        ("n[098-102]", "n098 n099 n100 n101 n102"),
        ("n[1-2]-ib", "n1-ib n2-ib"),  # with a suffix
        ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),  # two dimensions
        ("r[1,3]c[0-1]-gpu,login", "r1c0-gpu r1c1-gpu r3c0-gpu r3c1-gpu login"),
        ("gpu-node-07.cluster.example", "gpu-node-07.cluster.example"),
        ("a[1-2],b[3-4],c", "a1 a2 b3 b4 c"),
        (" n[1-2]\n", "n1 n2"),  # as squeue prints it
        ("", ""),
    ],
)
def test_a_host_list_is_written_out_in_its_order(text: str, hosts: str) -> None:
    assert expand_hosts(text) == hosts.split()


@pytest.mark.parametrize("text", ["n[1-3", "n1-3]", "n[a-b]", "n[-]", "n[1-]x[", "n[1,,2]"])
def test_what_is_no_host_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"host list|invalid literal"):
        expand_hosts(text)


@pytest.mark.parametrize("text", ["n[0-99999999999]", "n[0-2000000]", "n[0-9999]x[0-9999]", "n[1-1000000,1-1000000]"])
def test_a_host_list_of_more_nodes_than_there_can_be_is_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match="too many hosts"):
        expand_hosts(text)


# --- messages of srun ------------------------------------------------------------------------------------------------

CANCELLED = "CANCELLED AT 2026-11-20T19:42:55"
OOM = Evidence(None, None, out_of_memory=True)
NOT_LAUNCHED = Evidence(0, None, error="Slurm cannot start task 0: Unspecified error", started=False)


def by_hand() -> Evidence:
    return Evidence(None, "n3", cause=Cause.CANCELLED, error="Slurm cancelled the step (scancel)")


def ended(why: str, cause: str = "cancelled") -> Evidence:
    return Evidence(None, "n3", cause=Cause(cause), error=f"Slurm cancelled the step due to {why}")


@pytest.mark.parametrize(
    ("line", "evidence"),
    [
        # Recorded on 22.05.8 and 24.11.5.
        ("srun: error: n4: task 2: Exited with exit code 3", Evidence(2, "n4", code=3)),
        ("srun: error: n3: task 2: Killed", Evidence(2, "n3", signal=signal.SIGKILL)),
        ("srun: error: n3: task 2: Segmentation fault", Evidence(2, "n3", signal=signal.SIGSEGV)),
        ("srun: error: n3: task 2: Out Of Memory", Evidence(2, "n3", out_of_memory=True, error="Out Of Memory")),
        (
            "srun: error: Node failure on n3",
            Evidence(None, "n3", node_lost=True, error="srun: error: Node failure on n3"),
        ),
        # Of the same kind.
        ("srun: error: n3: task 0: Segmentation fault (core dumped)", Evidence(0, "n3", signal=signal.SIGSEGV)),
        ("srun: error: n3: tasks 0-3: Terminated", Evidence(0, "n3", signal=signal.SIGTERM)),
        ("srun: error: n3: tasks 1,3: Aborted (core dumped)", Evidence(1, "n3", signal=signal.SIGABRT)),
        ("srun: error: n3: task 12: Exited with exit code 137", Evidence(12, "n3", code=137)),
        ("srun: error: n3: task 0: Bus error", Evidence(0, "n3", signal=signal.SIGBUS)),
        ("srun: error: n3: task 0: User defined signal 1", Evidence(0, "n3", signal=10)),
        ("srun: error: gpu-07.x: task 1: Killed\n", Evidence(1, "gpu-07.x", signal=signal.SIGKILL)),
        ("srun: error: task 0 launch failed: Unspecified error", NOT_LAUNCHED),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.",
            OOM,
        ),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0. Some of your processes may have been", OOM),
        (f"slurmstepd: error: *** STEP 7.0 ON n3 {CANCELLED} ***", by_hand()),
        (
            f"slurmstepd: error: *** STEP 7.0 ON n3 {CANCELLED} DUE to SIGNAL Terminated ***",
            by_hand(),
        ),  # 25.05 and later
        (f"srun: error: *** JOB 7 ON n3 {CANCELLED} due to SIGNAL Kill ***", by_hand()),
        (f"slurmstepd: error: *** STEP 7.0 ON n3 {CANCELLED} DUE TO PREEMPTION ***", ended("preemption", "preempted")),
        (f"slurmstepd: error: *** STEP 7.0 ON n3 {CANCELLED} DUE TO SOME NEW RULE ***", ended("some new rule")),
        (f"slurmstepd: error: *** STEP 7.0 ON n3 {CANCELLED} DUE TO TASK FAILURE ***", None),
    ],
)
def test_a_line_of_srun_names_the_task_the_node_and_the_end(line: str, evidence: Evidence | None) -> None:
    found = read_srun(line)
    if evidence is OOM:
        assert found is not None
        assert found.out_of_memory
    else:
        assert found == evidence


@pytest.mark.parametrize(
    "line",
    [
        "",
        "srun: job 7 queued and waiting for resources",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        "srun: error: Timed out waiting for job step to complete",
        "srun: error: Unable to create step for job 7: Requested node configuration is not available",
        "srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller",
        "srun: Step creation temporarily disabled, retrying (Requested nodes are busy)",
        "Traceback (most recent call last):",
        # What a script may print before its output goes to its log.
        "srun: error: Node failure on n[",
        "srun: error: Node failure on ,",
        "srun: error: Node failure on n[0-99999999999]",
        "srun: error: Node failure on --me",
        "srun: error: n1: task -: Killed",
        f"srun: error: n1: task {'9' * 5000}: Killed",
        "srun: error: --me: task 0: Killed",
        "srun: error: n1;x: task 0: Killed",
    ],
)
def test_a_line_that_tells_of_no_task_is_no_evidence(line: str) -> None:
    assert read_srun(line) is None


# --- sinfo -----------------------------------------------------------------------------------------------------------


def test_the_rows_of_sinfo() -> None:
    text = "\n".join(
        [
            "gpu*|up|12|64|gpu:a100:4(S:0-1),nvme:1",
            "cpu|up|200|128+|(null)",
            "debug|down|2|4|gpu:2",
            "drained|drain|1|4|",
            "hidden|up|0|0|n/a",
            "large|inact|4294967294|65534|gpu:4294967294",
            "cut|up|4",
            "odd|up|1.2K|many|gpu:",
            "sinfo: something that is no row",
            "",
        ]
    )
    assert read_partitions(text) == [
        Partition("gpu", default=True, gpus=4),
        Partition("cpu", default=False, gpus=0),
        Partition("debug", default=False, gpus=2),
        Partition("drained", default=False, gpus=UNKNOWN),
        Partition("hidden", default=False, gpus=UNKNOWN),
        Partition("large", default=False, gpus=UNKNOWN),
        Partition("cut", default=False, gpus=UNKNOWN),
        Partition("odd", default=False, gpus=UNKNOWN),
    ]
    assert partition_names(read_partitions(text)[:4]) == "gpu, cpu, debug, drained"


def test_a_partition_with_nodes_of_two_kinds_is_named_once() -> None:
    rows = read_partitions("gpu*|up|4|64|gpu:4\ngpu*|up|2|64|gpu:8")
    assert partition_names(rows) == "gpu"
    assert partition_names([]) == "none"


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", 0),
        ("", 0),
        ("gpu", 1),
        ("gpu:4", 4),
        ("gpu:a100", 1),
        ("gpu:a100:4", 4),
        ("gpu:a100:4(S:0-1)", 4),
        ("gpu:a100:2(IDX:0,3),gpu:v100:1(IDX:2)", 3),
        ("nvme:1,gpu:h100:8(S:0-1),shard:80", 8),
        ("craynetwork:4", 0),
        ("gpu:1g.5gb:7", 7),
        ("gpu:no_consume:4", 4),
        ("gpu:4294967294", UNKNOWN),
        ("nvme:1,gpu:", UNKNOWN),
    ],
)
def test_the_gpus_of_a_node(gres: str, gpus: float) -> None:
    assert read_gpus(gres) == gpus


@pytest.mark.parametrize(
    ("record", "gpus"),
    [
        ("JOB_GRES=gpu:8   Nodes=n[1-2] CPU_IDs=0 Mem=8000 GRES=gpu:4(IDX:0-3) MinCPUsNode=1", 4),
        (
            "Nodes=n1 CPU_IDs=0 Mem=1 GRES=gpu:a:2(IDX:0,3) Nodes=n2 CPU_IDs=1,3 Mem=1 GRES=gpu:a:1(IDX:0)",
            1,
        ),
        ("JOB_GRES=gpu:2 Nodes=n1 CPU_IDs=0 Mem=1 GRES=gpu:2(IDX:0-1) Nodes=n2 CPU_IDs=0 Mem=1 GRES=", 0),
        ("JOB_GRES=(null) Nodes=n1 CPU_IDs=0 Mem=8000 GRES= MinCPUsNode=1", 0),
        ("Nodes=n1 CPU_IDs=0 Mem=8000 GRES=gpu:4294967294 Network=(null)", UNKNOWN),
        ("JobId=7 JobState=PENDING TresPerNode=gres:gpu:2", UNKNOWN),
        ("slurm_load_jobs error: Invalid job id specified", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_the_gpus_that_a_job_has_on_each_node(record: str, gpus: float) -> None:
    assert read_gpus_of_job(record) == gpus


# --- the clean slate -------------------------------------------------------------------------------------------------


def test_what_an_enclosing_job_left_in_the_environment_is_scrubbed() -> None:
    left = """
        SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_MEM_PER_NODE SLURM_NTASKS SLURM_NTASKS_PER_NODE SLURM_CPUS_PER_TASK
        SLURM_GPUS_PER_NODE SLURM_TRES_PER_TASK SLURM_EXIT_ERROR SRUN_CPUS_PER_TASK SBATCH_EXPORT SLURMD_NODENAME
        SUBMITIT_EXECUTOR CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL ROCR_VISIBLE_DEVICES ZE_AFFINITY_MASK
    """
    kept = {
        "PATH": "/bin",
        "HOME": "/root",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_CONF_SERVER": "ctl",
        "MY_SLURM_JOB": "1",
        "CUDA_HOME": "/usr/local/cuda",
        "OMP_NUM_THREADS": "4",
        "LD_LIBRARY_PATH": "/opt",
    }
    assert scrubbed({**dict.fromkeys(left.split(), "x"), **kept}) == kept


# --- the srun line ---------------------------------------------------------------------------------------------------


def line(**changes: object) -> list[str]:
    known = {
        "job": "7",
        "name": "group-0001",
        "nodes": ["n3", "n4"],
        "tasks_per_node": 4,
        "gpus": True,
        "chdir": "/work",
    }
    return srun_command(**{**known, "extra": [], **changes})  # type: ignore[arg-type]


def test_a_step_says_where_it_runs_and_how_many_tasks_it_has() -> None:
    words = {"--jobid=7", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--nodelist=n3,n4", "--distribution=block"}
    assert words | {"--job-name=group-0001", "--chdir=/work"} <= set(line())
    assert line()[0] == "srun"


def test_a_step_overlaps_and_asks_for_nothing_because_exact_steps_can_block() -> None:
    assert {"--overlap", "--mem=0", "--cpu-bind=none"} <= set(line())
    forbidden = ("--exact", "--exclusive", "-c", "--cpus-per-task", "-r", "--relative", "--export", "--gpus")
    assert not [word for word in line() if word.startswith(forbidden)]


def test_bringing_a_step_down_is_left_to_the_controller() -> None:
    assert {"--kill-on-bad-exit=0", "--wait=0"} <= set(line())


def test_the_channel_is_no_terminal_and_goes_to_every_task() -> None:
    forbidden = ("-u", "--unbuffered", "--pty", "--input", "--output", "--error", "--label", "-l")
    assert not [word for word in line() if word.startswith(forbidden)]


def test_a_step_without_gpus_sees_none_and_one_with_gpus_sees_all_of_the_jobs() -> None:
    assert "--gres=none" in line(gpus=False)
    assert not [word for word in line() if word.startswith(("--gres", "--gpu"))]


def test_the_users_own_arguments_come_last_so_that_they_win() -> None:
    assert line(extra=["--mpi=none", "--cpu-bind=cores"])[-2:] == ["--mpi=none", "--cpu-bind=cores"]


def test_one_word_is_one_argument_whatever_it_holds() -> None:
    chdir = """/home/ann/it's a "run" $HOME dir"""
    assert f"--chdir={chdir}" in line(chdir=chdir)


@pytest.mark.parametrize(
    ("job", "why", "outcome"),
    [
        *(("7", " DUE TO TIME LIMIT", RunOutcome.GOES_ON), ("17", " DUE TO TIME LIMIT", None), ("7", "", None)),
        *(("7", " DUE TO JOB REQUEUE", RunOutcome.REQUEUED), ("71", " DUE TO JOB REQUEUE", None)),
        *(("7", " DUE TO NODE FAILURE", None), ("7", " DUE TO SOMETHING NEW", None)),
    ],
)
def test_srun_knows_first_that_the_job_ends(job: str, why: str, outcome: RunOutcome | None) -> None:
    line = f"slurmstepd: error: *** STEP 7.12 ON n1 CANCELLED AT 2026-11-20T19:42:55{why} ***"
    config = Config()
    config.cluster.kind, config.cluster.requeue = "slurm", True
    ends = job_ends(line, job)
    asked = [] if ends is None else asked_by_slurm(ends, config, batch=True)
    assert [stop.outcome for stop in asked] == ([] if outcome is None else [outcome])


@pytest.mark.parametrize(
    ("state", "down"),
    [
        *(("IDLE", False), ("MIXED+DRAIN", False), ("DOWN*", True), ("IDLE*", True), ("DOWN+DRAIN", True)),
        *(("IDLE+POWERED_DOWN", True), ("FAILING", True)),
    ],
)
def test_what_slurm_says_of_a_node_tells_whether_it_is_down(state: str, down: bool) -> None:
    (fate,) = read_node_fates(f"NodeName=n2 Arch=x86_64 OS=Linux 6.1 State={state} Weight=1 Extra=x\n")
    assert (fate.node, fate.down, fate.why) == ("n2", down, f"Slurm says {state.lower()}")
    assert read_node_fates("slurm_load_node error: Unable to contact slurm controller") == []
    two = "NodeName=n2 State=DOWN BootTime=None SlurmdStartTime=None\nNodeName=n3 State=MIXED+DRAIN Comment=State=IDLE "
    two += "Reason=bad disk | State=IDLE [x] [root@2026-11-25T22:10:00] Comment=x\n"
    reason = "bad disk | State=IDLE [x] [root@2026-11-25T22:10:00]"
    assert read_node_fates(two) == [
        NodeFate("n2", True, None, "Slurm says down"),
        NodeFate("n3", False, True, f"Slurm says mixed+drain: {reason}"),
    ]


# --- the topology ----------------------------------------------------------------------------------------------------

TREE = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[2-3],gpu-7
SwitchName=top Level=1 LinkSpeed=1 Nodes=gpu-7,n[1-3] Switches=s[0-1]
"""
BLOCK = """\
BlockName=b1 BlockIndex=0 Nodes=n[1-4] BlockSize=4
BlockName=b2 BlockIndex=1 Nodes=n[5-8] BlockSize=4
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TREE, {"n1": "s0", "n2": "s0", "n3": "s1", "gpu-7": "s1"}),
        (BLOCK, {f"n{i}": "b1" if i < 5 else "b2" for i in range(1, 9)}),  # of 24.11.5
        ("", {}),
        ("SwitchName=-x Level=0 LinkSpeed=1 Nodes=n1\nSwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[2\n", {}),
    ],
)
def test_the_leaf_of_each_node_is_read_from_the_topology(text: str, expected: dict[str, str]) -> None:
    assert read_topology(text) == expected


# --- hidden partitions and several clusters ---------------------------------------------------------------------------


def test_each_question_sees_hidden_partitions() -> None:
    for path in Path(ftslurm.__file__).parent.rglob("*.py"):
        questions = re.findall(r'"(?:squeue|sinfo)", ("[^"]*")', path.read_text())
        assert set(questions) <= {'"--all"'}, path
    assert "--all" in commands.job_state("7")


def test_the_heading_of_a_cluster_is_no_row(programs: Programs) -> None:
    programs.add("squeue", body="printf 'CLUSTER: wice\\nRUNNING|0|None|\\n'")
    assert client.job_state("7") == ("RUNNING", "None")
    programs.add("sinfo", body="printf 'CLUSTER: a\\ngpu*|up|4|64|gpu:4\\nCLUSTER: b\\ncpu|up|2|64|(null)\\n'")
    assert [row.name for row in read_partitions(client.call(commands.PARTITIONS).out)] == ["gpu", "cpu"]


@pytest.mark.parametrize(
    "word", ["--gres=gpu:a100:1", "--gpus=2", "--gpus-per-task=1", "-G1", "--tres-per-node=gres/gpu:1"]
)
def test_a_job_of_doctors_asks_for_gpus_once(word: str) -> None:
    asked = commands.srun_alone("", "", True, ["--account=physics", word])
    assert not any(other.startswith("--gpus-per-node") for other in asked)
    assert "--gpus-per-node=1" in commands.srun_alone("", "", True, ["--account=physics"])


@pytest.mark.parametrize(("step", "batch"), [(None, True), ("-5", True), ("0", False), ("7", False), ("-6", False)])
def test_a_batch_script_is_recognised_whether_or_not_slurm_names_its_step(step: str | None, batch: bool) -> None:
    environ = {"ENVIRONMENT": "BATCH", "SLURM_JOB_ID": "7", commands.BATCH_PROCESS: "0"}
    assert commands.is_batch(environ | ({} if step is None else {"SLURM_STEP_ID": step})) is batch


@pytest.mark.parametrize(
    ("words", "ended"),
    [
        ("srun: error: Slurm job 71 has expired.", True),
        ("srun: error: Slurm job 71_2 has expired", True),
        ("srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 71", False),  # slurmctld may be away
        ("srun: error: Unable to confirm allocation for job 71: Invalid job id specified", True),
        ("scancel: error: Kill job error on job id 71: Job/step already completing or completed", True),
        ("srun: error: Task launch for StepId=71.3 failed on node n2: Job credential expired", False),
        ("srun: error: Munge decode failed: Expired credential", False),
        ("srun: error: Unable to create step for job 71: Password has expired", False),
        ("", False),
    ],
)
def test_only_an_expired_job_is_no_job(words: str, ended: bool) -> None:
    assert no_job(words) is ended
