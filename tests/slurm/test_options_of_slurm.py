"""The options of the installed Slurm are all in the table; a run keeps its own, and the user's comment."""

from __future__ import annotations

import re

import pytest
from cluster import Cluster
from harness import Backend

from ftslurm.config.slurm_options import SBATCH, SRUN

pytestmark = [pytest.mark.slurm, pytest.mark.light]


@pytest.mark.parametrize(("program", "table"), [("sbatch", SBATCH), ("srun", SRUN)])
def test_each_option_that_the_program_lists_is_in_the_table(
    program: str, table: dict[str, str], slurm_cluster: Cluster
) -> None:
    listed = re.findall(r"^ +(?:-\w,? +)?--([a-z0-9][a-z0-9-]*)", slurm_cluster.run([program, "--help"]), re.MULTILINE)
    assert len(listed) > 80
    assert sorted(set(listed) - set(table)) == []


# Each would end steps or jobs, or start them otherwise, where srun or sbatch could see it.
HARM = (
    *("SBATCH_SIGNAL=TERM@60", "SBATCH_NO_REQUEUE=1", "SBATCH_NO_KILL=off", "SBATCH_WAIT=1", "SBATCH_EXPORT=NONE"),
    *("SLURM_SIGNAL=TERM@60", "SLURM_KILL_BAD_EXIT=1", "SLURM_WAIT=1", "SLURM_EXPORT_ENV=NONE", "SRUN_EXPORT_ENV=NONE"),
    *("SLURM_TIMELIMIT=1", "SLURM_IMMEDIATE=1", "SLURM_EXACT=1", "SLURM_LABELIO=1", "SLURM_UNBUFFEREDIO=1"),
    *("SLURM_STDOUTMODE=none", "SLURM_STDINMODE=none", "SLURM_NTASKS=7", "SLURM_NO_KILL=1", "SLURM_EXCLUSIVE=1"),
)


def test_variables_that_carry_such_options_change_no_step_and_no_job(
    slurm: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in HARM:
        monkeypatch.setenv(*one.split("=", 1))
    setup = f"cluster.setup={[f'export {one}' for one in HARM]}"
    run = slurm.start("groups.count=2", "cluster.kind=array", setup, args={"steps": 20, "step-time": 0.1}).finish()
    assert "SBATCH_SIGNAL is not used: " in run.text
    assert "cluster.signal_s" in run.text


def test_a_signal_of_the_users_is_refused_and_a_comment_is_in_every_job(slurm: Backend, slurm_cluster: Cluster) -> None:
    for value in ("B:USR1@60", "TERM@60"):
        refused = slurm.start("groups.count=2", f"cluster.sbatch.signal={value}")
        assert refused.process.wait(60) == 2
        assert refused.text.startswith("ftslurm: cluster.sbatch.signal: "), refused.text
        assert "cluster.signal_s=N" in refused.text

    mine = "cluster.sbatch.comment=reaper-off|it is mine"
    run = slurm.start("groups.count=2", "cluster.kind=array", mine, args={"open-end": True, "step-time": 0.2})
    run.wait_for_steps(3, 2)
    shown = slurm_cluster.run(["squeue", "--noheader", "--array", "--Format=Comment:200"]).splitlines()
    (status,) = [slurm.launch("status", str(run.dir))]
    assert status.process.wait(60) == 0
    run.end_soon()
    run.finish()
    assert len(shown) == 3
    assert all(line.startswith("reaper-off|it is mine ftslurm:") for line in shown), shown
