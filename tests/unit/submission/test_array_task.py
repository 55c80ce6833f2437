"""Job arrays submitted by hand: their tasks share a run and reach their time limit one by one."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from histories import with_units
from programs import script

from ftslurm.config.schema import Config
from ftslurm.core import leaving
from ftslurm.core.jobs.supply import HANDOVER_S
from ftslurm.core.rules import begin
from ftslurm.core.state.actions import Action, Send
from ftslurm.core.state.model import Allocation, Job, Phase, Place, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.turn import Turn
from ftslurm.errors import EnvironmentProblem
from ftslurm.protocol import messages
from ftslurm.protocol.causes import Cause
from ftslurm.submission import array_task

SBATCH = Path(__file__).parents[3] / "sbatch"
ENDS = 10_000.0


def stops(action: object) -> bool:
    return isinstance(action, Send) and isinstance(action.message, messages.Stop)


def by_hand(folder: Path = Path("runs"), groups: int = 3) -> Config:
    config = Config()
    config.run.name, config.run.root, config.groups.count = "toy", str(folder), groups
    config.cluster.kind, config.cluster.controller = "array", "here"
    config.internal.pilots = "81"
    return config


def test_all_tasks_find_one_run_directory_whoever_makes_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: array_task.join(by_hand(tmp_path)), range(4)))
    assert {run.root for run in found} == {tmp_path / "toy-81"}
    assert os.listdir(tmp_path) == ["toy-81"]
    assert found[0].config.read_text().count("pilots: '81'") == 1
    assert array_task.join(by_hand(tmp_path)).root == tmp_path / "toy-81"  # also when it is requeued

    other = by_hand(tmp_path)
    other.internal.pilots, other.run.dir = "90", str(tmp_path / "toy-81")
    with pytest.raises(EnvironmentProblem, match="exists already"):
        array_task.join(other)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"SLURM_ARRAY_TASK_COUNT": "2", "SLURM_JOB_NUM_NODES": "2"}, "sbatch --array=0-3"),
        ({"SLURM_ARRAY_TASK_COUNT": "4", "SLURM_JOB_NUM_NODES": "1"}, "sbatch --nodes=2"),
        ({"SLURM_ARRAY_TASK_COUNT": "4", "SLURM_JOB_NUM_NODES": "2"}, None),
    ],
)
def test_what_the_array_lacks_is_told_with_what_to_type(environ: dict[str, str], words: str | None) -> None:
    config = by_hand()
    config.groups.nodes, config.standby.count = 2, 1
    if words is None:
        array_task.check(config, environ)
    else:
        with pytest.raises(EnvironmentProblem, match=words):
            array_task.check(config, environ)


def test_a_process_is_a_task_of_the_run_only_where_the_groups_are_to_be_in_its_array() -> None:
    environ = {"SLURM_ARRAY_JOB_ID": "81", "SLURM_ARRAY_TASK_ID": "0"}
    config = by_hand()
    assert array_task.array_of(config, environ) == "81"
    assert array_task.array_of(config, {}) is None
    config.cluster.kind = "slurm"
    assert array_task.array_of(config, environ) is None


def training(config: Config) -> RunState:
    """Return a state with each group in its task, all with the same time limit."""
    state = begin(config)
    groups, jobs = [], []
    for unit in state.groups:
        task, node = f"81_{unit.group}", f"n{unit.group}"
        jobs.append(Job(task, state="RUNNING", id=str(unit.group), nodes=(node,), began=0.0, ends=ENDS))
        place = Place((node,), allocation=task)
        groups.append(replace(unit, phase=Phase.RUNNING, attempt=0, place=place, current=replace(unit.current, step=5)))
    serves = replace(state.lighthouse, phase=Phase.RUNNING, marks=replace(state.lighthouse.marks, begun=0.0))
    pool = replace(state.job_pool, by_name={job.name: job for job in jobs}, polled=True)
    return replace(with_units(state, serves, *groups), job_pool=pool, allocation=Allocation("81", ()))


def vacate(state: RunState, now: float, config: Config, *units: Unit) -> tuple[RunState, list[Action]]:
    """Apply the rule to the state with these units."""
    turn = Turn(state, now, config)
    for unit in units:
        turn.put(unit)
    leaving.vacate(turn)
    return turn.state, turn.actions


def test_before_their_time_limit_groups_leave_one_by_one() -> None:
    config = by_hand()
    now = ENDS - HANDOVER_S
    state, actions = vacate(training(config), now - 1, config)
    assert not actions
    state, actions = vacate(state, now, config)
    assert len([action for action in actions if stops(action)]) == 1
    assert [job.leaving for job in state.job_pool.jobs].count(Cause.TIME_LIMIT) == 1
    (left,) = [unit for unit in state.groups if unit.phase is Phase.STOPPING]
    again, actions = vacate(state, now + 100, config)
    assert not actions  # the others wait until it is back

    back = replace(left, phase=Phase.RUNNING, attempt=1, current=replace(left.current, step=None))
    jobs = (
        replace(job, leaving=None, began=now, ends=now + ENDS) if job.leaving else job for job in again.job_pool.jobs
    )
    pool = replace(again.job_pool, by_name={job.name: job for job in jobs})
    groups = tuple(back if unit.name == left.name else unit for unit in again.groups)
    again = replace(again, job_pool=pool)
    assert not vacate(again, now + 200, config, *groups)[1]  # it has yet to heal
    groups = tuple(replace(unit, current=replace(unit.current, step=9)) for unit in groups)
    state, actions = vacate(again, now + 200, config, *groups)
    assert [action.id.unit for action in actions if stops(action)] not in ([], [left.name])

    config.cluster.requeue = False  # then nothing brings a task back, and none leaves earlier than it must
    assert not vacate(training(config), now + 100, config)[1]


def test_the_batch_script_passes_on_what_it_is_given(weird_tmp_path: Path) -> None:
    folder = weird_tmp_path
    script(folder / "bin/python3", 'printf "%s\\n" "$0" "$@"')
    environ = {"SLURM_SUBMIT_DIR": str(folder), "SLURM_NNODES": "2", "SLURM_ARRAY_TASK_COUNT": "5"}
    environ |= {"PATH": f"{folder}/bin:{os.environ['PATH']}"}
    command = ["bash", SBATCH / "array.sbatch", "a b", "c='d'"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    array = ["-m", "ftslurm", "run", "cluster=array", "cluster.controller=here"]
    array += ["groups.count=5", "groups.nodes=2"]
    assert done.stdout.splitlines() == [f"{folder}/bin/python3", *array, "a b", "c='d'"]
