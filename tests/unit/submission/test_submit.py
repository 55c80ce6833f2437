"""The sbatch command of a run."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from observed import until
from programs import Programs

from ftslurm.config.schema import Config, Range
from ftslurm.guard import processes
from ftslurm.launchers.job_command import JobRole
from ftslurm.run.directory import RunDir
from ftslurm.slurm.parse import read_mark
from ftslurm.submission import pilot_jobs, submit, submitit_adapter
from ftslurm.submission.submit import job_options, submit_batch
from ftslurm.submission.submitit_adapter import sbatch_script

RUN = RunDir(Path("/scratch/it's a run/ddp-1"))


def config(**sections: dict[str, Any]) -> Config:
    made = Config()
    made.run.name = "ddp"
    for section, settings in sections.items():
        for key, value in settings.items():
            assert hasattr(getattr(made, section), key)
            setattr(getattr(made, section), key, value)
    return made


def options(**sections: dict[str, Any]) -> dict[str, Any]:
    return job_options(config(**sections), RUN)


def test_the_smallest_job() -> None:
    assert job_options(config(), RUN) == {
        "nodes": 2,
        "ntasks-per-node": 1,
        "cpus-per-task": 1,
        "no-kill": True,
        "requeue": True,
        "signal": "B:USR2@120",
        "comment": "ftslurm:ddp-1",
    }


def test_nodes_cpus_gpus_and_memory_are_for_all_groups_of_a_node() -> None:
    groups = {"count": 4, "nodes": 2, "workers": 4, "per_node": 2, "gpus": 4, "cpus_per_worker": 3, "mem": "64G"}
    got = options(groups=groups, cluster={"spare_nodes": 1})
    want = {"nodes": 5, "ntasks-per-node": 1, "cpus-per-task": 24, "gpus-per-node": 8, "mem": "128G"}
    assert want.items() <= got.items()


@pytest.mark.parametrize(
    ("mem", "per_node", "asked"), [("500", 2, "1000"), ("0", 2, "0"), ("1t", 1, "1t"), (None, 2, None)]
)
def test_memory_keeps_its_unit(mem: str | None, per_node: int, asked: str | None) -> None:
    assert options(groups={"mem": mem, "per_node": per_node}).get("mem") == asked


@pytest.mark.parametrize("gpus", [None, 0])
def test_no_gpus_are_not_asked_for(gpus: int | None) -> None:
    assert "gpus-per-node" not in options(groups={"gpus": gpus})


def test_the_cluster_section_passes_through() -> None:
    own = {"partition": "gpu", "account": "lab", "time": "1-12:00:00"}
    more = {"qos": "high", "constraint": "a100", "exclude": "n[1-2]", "nodelist": "n9", "reservation": "r"}
    asked = options(cluster={**own, "sbatch": {**more, "exclude": "n[1-2],n7"}})
    assert {**own, **more, "exclude": "n[1-2],n7"}.items() <= asked.items()


def test_what_is_not_set_is_not_passed() -> None:
    assert not {"partition", "account", "qos", "time", "mem", "switches", "segment"} & set(options())


def test_the_network_is_asked_for_by_the_jobs_of_groups_alone() -> None:
    made = config(cluster={"sbatch": {"switches": "1@10:00", "segment": 4}}, groups={"nodes": 2, "count": 4})
    of_all = job_options(made, RUN)
    assert (of_all["switches"], of_all["segment"]) == ("1@10:00", 4)
    of_one = job_options(made, RUN, group=True)
    assert (of_one["nodes"], of_one["switches"], of_one["segment"]) == (2, "1@10:00", 2)
    made.cluster.kind = "array"
    assert not {"switches", "segment"} & set(job_options(made, RUN))


def test_the_warning_goes_to_the_controller_alone_and_when_it_is_told_to() -> None:
    assert options(cluster={"signal_s": 300})["signal"] == "B:USR2@300"


@pytest.mark.parametrize(
    ("sbatch", "asked"),
    [
        ({"mail-type": "END", "exclusive": True}, {"mail-type": "END", "exclusive": True}),
        ({"mem": 0}, {"mem": 0}),  # all of the node's memory: zero is a value
        ({"nice": 0}, {"nice": 0}),
    ],
)
def test_further_options_are_the_users(sbatch: dict[str, Any], asked: dict[str, Any]) -> None:
    assert asked.items() <= options(cluster={"sbatch": sbatch}).items()


@pytest.mark.parametrize(
    "sbatch",
    [{"gres": "gpu:a100:4"}, {"exclusive": True}, {"mem_per_gpu": "10G"}, {"gpus_per_node": 4}, {"tres-per-node": "x"}],
)
def test_what_groups_need_of_a_node_is_not_asked_for_the_controllers_own_job(sbatch: dict[str, Any]) -> None:
    made = config(groups={"gpus": 4}, cluster={"kind": "array", "sbatch": sbatch | {"mail-type": "END"}})
    own = job_options(made, RUN)
    of_a_group = job_options(made, RUN, group=True)
    wanted = {key.replace("_", "-"): value for key, value in sbatch.items()}
    assert wanted.keys().isdisjoint(own)
    assert (own["mem"], own["mail-type"]) == ("1G", "END")
    assert wanted.items() <= of_a_group.items()
    assert ("gpus-per-node" in of_a_group) != ("gres" in sbatch)  # never two ways at once
    made.cluster.ranges = [Range("controller", partition="cpu", sbatch={"mem": "8G"})]
    assert job_options(made, RUN)["mem"] == "8G"
    assert job_options(made, RUN)["partition"] == "cpu"
    assert "partition" not in job_options(made, RUN, group=True)


def test_an_option_that_sbatch_does_not_know_is_explained_by_nothing_else() -> None:
    told = submit.explained("unrecognized option '--nonsense=1'", {"nodes": 2, "partition": "gpu"})
    assert told == "unrecognized option '--nonsense=1' (cluster.sbatch)"


@pytest.mark.parametrize("value", [False, None])
def test_an_option_can_be_taken_back(value: bool | None) -> None:
    more = {"groups": {"gpus": 2}, "cluster": {"sbatch": {"gpus-per-node": value, "mail_type": "END"}}}
    got = options(**more)
    assert "gpus-per-node" not in got
    assert (got["mail-type"], got["no-kill"]) == ("END", True)


def test_a_comment_stays_before_ours_in_every_job_and_is_read_back() -> None:
    ranges = [Range("1", sbatch={"comment": "cheap|1"}), Range("0")]
    made = config(cluster={"kind": "array", "sbatch": {"comment": "reaper: off"}, "ranges": ranges})
    said = [job_options(made, RUN)["comment"], *(pilot_jobs.options(made, RUN, pool)["comment"] for pool in range(3))]
    assert said == [
        f"reaper: off {RUN.mark()}:-1",
        *(f"{own} {RUN.mark()}:{pool}" for pool, own in enumerate(("reaper: off", "cheap|1", "reaper: off"))),
    ]
    assert [read_mark(comment) for comment in said] == [(RUN.mark(), pool) for pool in (-1, 0, 1, 2)]
    for strange in ("", "reaper: off", "xftslurm:a-1:0", "ftslurm", "a ftslurm"):
        assert read_mark(strange) == (None, None)


def test_what_delays_a_job_delays_only_the_first() -> None:
    made = config(cluster={"kind": "array", "sbatch": {"begin": "now+1hour", "hold": True, "nice": 5}})
    assert {"begin", "hold", "nice"} <= set(job_options(made, RUN))
    assert {"begin", "hold", "nice"} & set(pilot_jobs.options(made, RUN, 0)) == {"nice"}


def test_secrets_of_the_job_are_not_in_the_script_and_every_flag_is() -> None:
    made = config(job={"env": {"WANDB_API_KEY": "wandb-key-0123"}}, cluster={"sbatch": {"exclusive": True}})
    script = sbatch_script(made, RUN, JobRole.STEPS, job_options(made, RUN))
    assert "wandb-key-0123" not in script
    lines = script.splitlines()
    for flag in ("--nodes=2", "--ntasks-per-node=1", "--no-kill", "--requeue", "--exclusive", "--signal=B:USR2@120"):
        assert f"#SBATCH {flag}" in lines
    (command,) = [line for line in lines if "ftslurm.entry steps" in line]
    assert command.startswith("exec ")  # or Slurm's warning would only end the shell
    assert not [line for line in lines if "srun" in line.split()]
    assert not [line for line in lines if "--time" in line or "--wckey" in line]


def test_a_signal_while_a_process_is_started_waits_and_does_not_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at the worst moments: just before there is a child, and just after, when it has ignored nothing yet."""
    starting, seen = [True], list[list[int]]()

    def at_worst(event: str, _: object) -> None:
        if event == "subprocess.Popen" and starting.pop():
            signal.raise_signal(signal.SIGINT)

    def heeded(*_: object) -> None:
        seen.append(processes.descendants(os.getpid(), 1))
        for child in seen[-1]:
            os.kill(child, signal.SIGINT)

    waits = f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; touch {tmp_path}/ended"
    monkeypatch.setattr(submitit_adapter, "batch_command", lambda *_: f"exec sh -c '{waits}'")
    (tmp_path / "submitit").mkdir()
    before = signal.signal(signal.SIGINT, heeded)
    sys.addaudithook(lambda event, args: at_worst(event, args) if starting else None)
    try:
        started = submit._start_here(config(), RunDir(tmp_path))
    finally:
        (tmp_path / "go").touch()
        signal.signal(signal.SIGINT, before)
    assert [int(started) in children for children in seen] == [True]  # once, and not before there was a child
    until((tmp_path / "ended").exists, "the process goes on")


def test_nodes_that_other_runs_have_found_broken_are_excluded_and_the_oldest_give_way(
    programs: Programs, tmp_path: Path
) -> None:
    """sbatch refuses more than two excluded nodes here, as a partition of a few nodes does."""
    file = tmp_path / "broken.jsonl"
    rows = [{"node": f"n{number}", "reason": "XID 79", "run": "before", "time": time.time()} for number in range(1, 5)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    file.chmod(0o600)
    refusal = "Batch job submission failed: Requested node configuration is not available"
    programs.add("scontrol")
    programs.add(
        "sbatch",
        record='"$(grep -h -e --exclude= "${@: -1}")"',
        body=f"grep -q 'exclude=.*,.*,' \"${{@: -1}}\" && {{ echo 'sbatch: error: {refusal}' >&2; exit 1; }}\necho 81",
    )
    made = config(cluster={"sbatch": {"exclude": "n9"}, "exclude_file": str(file)})
    run = RunDir(tmp_path / "run")
    run.create()
    assert submit_batch(made, run, JobRole.STEPS, job_options(made, run)) == ("81", ["n4"])
    tried = [call.partition("=")[2] for call in programs.calls("#SBATCH --exclude=")]
    assert tried == ["n9,n4,n3,n2,n1", "n9,n4,n3,n2", "n9,n4,n3", "n9,n4"]
