"""The lines of a plan about standbys and lost nodes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ftslurm.cli.plan_verb import plan
from ftslurm.config.schema import Config, Range


def said(kind: str = "slurm", spare: int = 0, standbys: int = 0, requeue: bool = False, **groups: int) -> list[str]:
    """Return the lines that begin with a standby or a node."""
    config = Config()
    config.run.name, config.job.script, config.groups.gpus = "ddp", "train.py", 0
    config.cluster.kind, config.cluster.spare_nodes, config.standby.count = kind, spare, standbys
    config.cluster.requeue = requeue
    for key, value in groups.items():
        assert hasattr(config.groups, key)
        setattr(config.groups, key, value)
    return [line for line in plan(config) if line.startswith(("standby-", "if "))]


ENDS = (
    "if node1 died   the controller and the Lighthouse are there: all ends after 60 s (from health.lost_after_s). "
    "It goes on from its newest checkpoint after ftslurm resume, or if Slurm finds the node lost before and requeues "
    "the job"
)


@pytest.mark.parametrize("settings", [{}, {"kind": "local"}, {"kind": "array"}], ids=["steps", "local", "array"])
def test_checks_of_nodes_are_in_the_steps_and_change_nothing_else(settings: dict[str, str]) -> None:
    config = Config()
    config.run.name, config.job.script, config.standby.count, config.groups.gpus = "ddp", "train.py", 1, 0
    config.cluster.kind = "slurm"
    for key, value in settings.items():
        setattr(config.cluster, key, value)
    without = list(plan(config))
    config.health.preflight = [["ftslurm-preflight", "--skip", "matmul"]]
    checked = [line for line in plan(config) if line not in without]
    assert all(line.startswith(("  group-", "  standby-")) for line in checked)
    assert all("ftslurm-preflight" in line and "matmul" in line for line in checked)
    assert len(list(plan(config))) == len(without)


def test_with_a_standby_it_takes_over() -> None:
    assert said(standbys=1, spare=1, count=3) == [
        "standby-000  on node4",
        ENDS,
        "if node2 died   the warm standby standby-000 on node4 takes group 1 over (likewise node3)",
        "if node4 died   no group is hit",
    ]


def test_with_a_spare_node_the_group_moves_there() -> None:
    assert said(spare=1) == [ENDS, "if node2 died   group 1 moves to node3", "if node3 died   no group is hit"]


def test_without_either_it_waits_as_long_as_enough_groups_are_left() -> None:
    assert said() == [ENDS, "if node2 died   group 1 waits for a node, the others go on (cluster.spare_nodes)"]
    (_, fails) = said(min=2)
    assert fails.startswith("if node2 died   the run would fail: ")
    assert "cluster.spare_nodes" in fails
    waits = "group 1 waits for a job that is asked for in its place (cluster.requeue), the others go on"
    assert said(requeue=True, min=2) == [ENDS, f"if node2 died   {waits}"]


def test_standbys_beyond_the_spare_nodes_sit_beside_the_groups() -> None:
    lines = said(standbys=3, spare=2, nodes=2)
    assert lines[0] == "standby-000  on node5, node6 (likewise standby-001, standby-002)"
    assert said(standbys=1)[0] == "standby-000  on node2"
    assert said(standbys=1, count=4, per_node=2)[0] == "standby-000  on node2"


def test_groups_that_share_a_node_lose_it_together() -> None:
    assert said(standbys=1, spare=1, count=4, per_node=2)[-2] == (
        "if node2 died   the warm standby standby-000 on node3 takes group 2 over; group 3 moves to node3"
    )


@pytest.mark.parametrize("count", [2, 3])
def test_on_this_machine_every_standby_has_a_name_of_its_own_to_sit_on(count: int) -> None:
    lines = said("local", standbys=2, count=count)
    assert lines[0] == f"standby-000  on local{count} (likewise standby-001)"
    takes = f"if local0 died   the warm standby standby-000 on local{count} takes group 0 over (likewise local1"
    assert lines[1].startswith(takes)


def test_on_this_machine_a_group_comes_back_where_it_was() -> None:
    assert "if local0 died   group 0 is launched there again (likewise local1)" in said("local", standbys=0, count=2)


def test_roles_are_shown_and_a_lighthouse_that_does_not_exist_is_not() -> None:
    config = Config()
    config.run.name, config.job.script, config.groups.gpus = "ps", "train.py", 0
    config.cluster.kind, config.lighthouse.kind = "slurm", "none"
    config.groups.count, config.groups.roles, config.groups.serve = 3, {"server": 1, "worker": 2}, ["server"]
    lines = list(plan(config))
    assert [line for line in lines if line.startswith("group ")] == [
        "group 0      server, on node1, 1 rank",
        "group 1      worker, on node2, 1 rank (likewise group 2)",
    ]
    assert not [line for line in lines if "lighthouse" in line.lower()]
    assert "if node1 died   the controller is there: all ends after" in "\n".join(lines)
    assert lines[-1].startswith("if node2 died   group 1 waits for a job that is asked for in its place")
    assert lines[-1].endswith("(likewise node3)")


def array_run(standbys: int = 0, **cluster: object) -> Config:
    config = Config()
    config.run.name, config.job.script, config.groups.gpus = "ddp", "train.py", 0
    config.cluster.kind = "array"
    config.groups.count, config.groups.nodes, config.standby.count = 3, 2, standbys
    for key, value in cluster.items():
        assert hasattr(config.cluster, key)
        setattr(config.cluster, key, value)
    return config


def test_in_array_mode_each_group_has_its_own_job_and_a_dead_node_costs_only_that() -> None:
    lines = list(plan(array_run(time="60", ranges=[Range("2-", partition="cheap", time="4:00:00")])))
    text = "\n".join(lines)
    assert "3 jobs of 2 nodes, submitted as needed; called here PILOT0, PILOT1, PILOT2" in text
    scripts = [line for line in lines if line.startswith("sbatch script")]
    whom = "submitted by the controller"
    assert scripts == [
        "sbatch script of the controller",
        f"sbatch script of the pilots, {whom}",
        f"sbatch script of the pilots for groups 2-, {whom}",
    ]
    controller, pilots, cheap = (text.split(words + "\n")[1].split("\n\nsbatch", 1)[0] for words in scripts)
    assert "--nodes=1\n" in controller
    assert "--no-kill" in controller
    assert "--array=0-1%2" in pilots
    assert "--nodes=2\n" in pilots
    assert "--no-kill" not in pilots
    assert "--partition=cheap" in cheap.split("\nsteps")[0]
    assert "--time=4:00:00" in cheap
    steps = [line for line in lines if line.startswith(("  group-", "  lighthouse"))]
    assert not [line for line in steps if "lighthouse" in line and "srun" in line]
    assert "srun --jobid=PILOT0 " in steps[1]
    assert "--nodelist=node1,node2 " in steps[1]
    waits = "waits for a job that is asked for in its place (cluster.requeue), the others go on"
    assert [line for line in lines if line.startswith("if node")] == [
        f"if node1 died   group 0 {waits} (likewise node2, node3, node4 and 2 more)"
    ]
    assert lines[lines.index(next(line for line in lines if line.startswith("if ")))].startswith(
        "if the controller's node died   the groups wait "
    )


def test_in_array_mode_a_standby_has_a_pilot_too() -> None:
    lines = list(plan(array_run(standbys=1)))
    assert "standby-000  on node7, node8" in lines
    takes = "the warm standby standby-000 on node7, node8 takes group 0 over (likewise node2, node3, node4 and 2 more)"
    assert f"if node1 died   {takes}" in lines


@pytest.mark.parametrize("nodes", [2, 3, 8, 64])
@pytest.mark.parametrize("changes", [{}, {"spare": 1}, {"standbys": 1}, {"min": 2}, {"per_node": 2}])
def test_a_plan_is_as_short_for_many_nodes_as_for_few(nodes: int, changes: dict[str, int]) -> None:
    lines = said(count=nodes * changes.get("per_node", 1), **changes)  # type: ignore[arg-type]
    assert len([line for line in lines if line.startswith("if ")]) <= 5
    assert len(lines) == len({re.sub(r"\(likewise.*|\d+", "", line) for line in lines})


def test_the_scripts_of_the_controller_and_of_the_pilots_leave_out_the_nodes_that_their_jobs_will(
    tmp_path: Path,
) -> None:
    config = Config()
    config.run.name, config.job.script, config.groups.gpus, config.cluster.kind = "ddp", "train.py", 0, "array"
    excluded = tmp_path / "excluded"
    excluded.write_text("n7\n")
    excluded.chmod(0o600)
    config.cluster.exclude_file = str(excluded)
    assert [line.strip() for line in plan(config) if "--exclude=" in line] == ["#SBATCH --exclude=n7"] * 2
