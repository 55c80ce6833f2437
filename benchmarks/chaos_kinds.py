"""The kinds of faults of the chaos campaign: how each is injected from outside, and its permitted consequences."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from random import Random

from chaos_scene import HANG_AFTER_S, LOST_AFTER_S, Process, Scene

LIMIT_S = 60.0  # a longer recovery counts as failed
NODE_LIMIT_S = 150.0  # the same where Slurm may have to find another node
KILLED = frozenset({"killed"})
ALL = frozenset({"steps", "standby", "wide", "array"})
STEPS = frozenset({"steps", "standby", "wide"})
ARRAY = frozenset({"array"})
HOSTS = frozenset({"hosts", "hosts-array"})


@dataclass
class Blow:
    """One injected fault and its permitted consequences."""

    hit: set[int] = field(default_factory=set)  # groups that must come back in a new attempt
    may: set[int] = field(default_factory=set)  # groups that may come back in a new attempt
    causes: frozenset[str] = KILLED  # the permitted causes of the end of their attempts
    attempts: int = 1  # most new attempts of each group in `hit`
    later: list[tuple[float, Callable[[], object]]] = field(default_factory=list)  # (delay in seconds, action)
    units: set[str] = field(default_factory=set)  # other units that must be launched again
    led: bool = True  # the leader stays; False: another controller must take the lead
    told: str = ""  # the target, for the report


@dataclass(frozen=True)
class Kind:
    """A kind of fault: the function that injects it, its modes, and the time after which recovery has failed."""

    act: Callable[[Scene, Random], Blow]
    modes: frozenset[str] = ALL
    limit_s: float = LIMIT_S


def _unit(group: int) -> str:
    return f"group-{group:04d}"


def _some(scene: Scene, rng: Random, count: int = 1) -> list[int]:
    return sorted(rng.sample(list(scene.groups), count))


def _kill(processes: list[Process]) -> None:
    for process in processes:
        process.send(signal.SIGKILL)


def _kill_ranks(scene: Scene, rng: Random, groups: list[int]) -> None:
    """Kill a random rank of each group, all at once."""
    _kill([rng.choice(scene.tasks(_unit(group))[1]) for group in groups])


# --- one group --------------------------------------------------------------------------------------------------------


def rank(scene: Scene, rng: Random) -> Blow:
    groups = _some(scene, rng)
    _kill_ranks(scene, rng, groups)
    return Blow(set(groups), told=f"group {groups[0]}")


def guard(scene: Scene, rng: Random) -> Blow:
    (group,) = _some(scene, rng)
    _kill([rng.choice(scene.tasks(_unit(group))[0])])
    return Blow({group}, told=f"group {group}")


def srun_main(scene: Scene, rng: Random) -> Blow:
    (group,) = _some(scene, rng)
    _kill(scene.sruns(_unit(group))[0])
    return Blow({group}, told=f"group {group}")


def srun_helper(scene: Scene, rng: Random) -> Blow:
    """Kill srun's helper, which only watches the main process: the step runs on without it."""
    (group,) = _some(scene, rng)
    _kill(scene.sruns(_unit(group))[1])
    return Blow(may={group}, told=f"group {group}")


def srun_both(scene: Scene, rng: Random) -> Blow:
    (group,) = _some(scene, rng)
    mains, helpers = scene.sruns(_unit(group))
    _kill(helpers + mains)
    return Blow({group}, told=f"group {group}")


def stepd(scene: Scene, rng: Random) -> Blow:
    (group,) = _some(scene, rng)
    os.kill(rng.choice(scene.tasks(_unit(group))[0]).parent, signal.SIGKILL)
    return Blow({group}, causes=frozenset({"killed", "unknown", "node_lost"}), told=f"group {group}")


def cancel_step(scene: Scene, rng: Random) -> Blow:
    (group,) = _some(scene, rng)
    scene.cluster.run(["scancel", scene.slurm_step(_unit(group))])
    return Blow({group}, causes=frozenset({"cancelled"}), told=f"group {group}")


def stop(scene: Scene, rng: Random, who: str, seconds: float | None) -> Blow:
    """Stop a rank, a guard or a whole step for some seconds, or (None) until ftslurm ends it.

    Whether a short stop ends the attempt is chance.
    """
    (group,) = _some(scene, rng)
    guards, workers = scene.tasks(_unit(group))
    scene.stop({"rank": [rng.choice(workers)], "guard": [rng.choice(guards)], "step": guards + workers}[who])
    blow = Blow(causes=frozenset({"hang"}), told=f"group {group} for {seconds or 'ever'}")
    if seconds is None:
        blow.hit = {group}
    else:
        blow.may = {group}
        blow.later = [(seconds, scene.free)]
    return blow


# --- nodes and Slurm --------------------------------------------------------------------------------------------------


def node(scene: Scene, rng: Random, back_s: float | None) -> Blow:
    """Lose a node with a group, not the controller's; it comes back after back_s, or (None) after the recovery."""
    mine = scene.controllers_node
    nodes = sorted({node for group in scene.groups for node in scene.nodes_of(group)} - {mine})
    lost = rng.choice(nodes)
    groups = scene.groups_on(lost)
    scene.lose(lost)
    blow = Blow(groups, causes=frozenset({"node_lost"}), told=f"{lost} with groups {sorted(groups)}")
    if back_s is not None:  # a node back before its loss is noticed looks like a killed slurmstepd
        blow.causes |= KILLED if back_s < LOST_AFTER_S else frozenset()
        blow.later = [(back_s, scene.bring_back)]
    return blow


def slurmctld(scene: Scene, rng: Random) -> Blow:
    """Restart slurmctld at once."""
    scene.cluster.stop_slurmctld()
    scene.cluster.start_slurmctld()
    return Blow()


def slurmctld_away(scene: Scene, rng: Random) -> Blow:
    """Stop slurmctld for 3 to 8 s, with no other fault meanwhile."""
    scene.cluster.stop_slurmctld()
    return Blow(later=[(rng.uniform(3, 8), scene.cluster.start_slurmctld)])


def slurmctld_and_rank(scene: Scene, rng: Random) -> Blow:
    scene.cluster.stop_slurmctld()
    blow = rank(scene, rng)
    blow.later = [(rng.uniform(3, 8), scene.cluster.start_slurmctld)]
    return blow


# --- pilots -----------------------------------------------------------------------------------------------------------


def _pilot(scene: Scene, rng: Random, causes: set[str]) -> tuple[Blow, Process]:
    (group,) = _some(scene, rng)
    found = scene.pilot(group)
    assert found is not None
    led = scene.controllers_node != found.environ["SLURMD_NODENAME"]
    return Blow({group}, causes=frozenset(causes), led=led, told=f"of group {group}"), found


def _job(pilot: Process) -> str:
    """Return the job id for Slurm's commands. (The raw id of one array task is the array's: it means all tasks.)"""
    env = pilot.environ
    if "SLURM_ARRAY_TASK_ID" in env:
        return f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
    return env["SLURM_JOB_ID"]


def pilot_kill(scene: Scene, rng: Random) -> Blow:
    """Kill a pilot: its job ends with it, and so does the step in that job."""
    blow, found = _pilot(scene, rng, {"killed", "cancelled"})
    found.send(signal.SIGKILL)
    return blow


def pilot_cancel(scene: Scene, rng: Random) -> Blow:
    blow, found = _pilot(scene, rng, {"cancelled"})
    scene.cluster.run(["scancel", _job(found)])
    return blow


def pilot_requeue(scene: Scene, rng: Random) -> Blow:
    blow, found = _pilot(scene, rng, {"preempted", "cancelled"})
    scene.cluster.run(["scontrol", "requeue", _job(found)])
    return blow


# --- the controller ---------------------------------------------------------------------------------------------------


def _leader(scene: Scene) -> Process:
    leader = scene.controller
    assert leader is not None
    return leader


def controller(scene: Scene, rng: Random) -> Blow:
    _leader(scene).send(signal.SIGKILL)
    return Blow(led=False)


def controller_abort(scene: Scene, rng: Random) -> Blow:
    """Send SIGABRT to the leader, as a failed check in C code does."""
    _leader(scene).send(signal.SIGABRT)
    return Blow(led=False)


def controller_memory(scene: Scene, rng: Random) -> Blow:
    """Deny the leader new memory for two seconds; its new child processes get none either, so no other unit is hit."""
    pid = _leader(scene).pid
    was = resource.prlimit(pid, resource.RLIMIT_AS, (0, resource.RLIM_INFINITY))

    def again() -> None:
        if scene.controller is not None and scene.controller.pid == pid:
            resource.prlimit(pid, resource.RLIMIT_AS, was)

    return Blow(later=[(2.0, again)])


def controller_stop(scene: Scene, rng: Random, seconds: float) -> Blow:
    scene.stop([_leader(scene)])
    return Blow(later=[(seconds, scene.free)])


def controller_and_rank(scene: Scene, rng: Random) -> Blow:
    leader, groups = _leader(scene), _some(scene, rng)
    victims = [rng.choice(scene.tasks(_unit(groups[0]))[1]), leader]
    rng.shuffle(victims)
    _kill(victims)
    return Blow(set(groups), led=False, told=f"group {groups[0]}")


def controller_and_node(scene: Scene, rng: Random) -> Blow:
    leader = _leader(scene)
    blow = node(scene, rng, None)
    leader.send(signal.SIGKILL)
    blow.led = False
    return blow


def controllers_node(scene: Scene, rng: Random) -> Blow:
    """Lose the leader's node and the groups on it; another pilot takes the lead."""
    lost = scene.controllers_node
    groups = scene.groups_on(lost)
    scene.lose(lost)
    causes = frozenset({"node_lost"})
    return Blow(groups, causes=causes, led=False, told=f"{lost} with groups {sorted(groups)}")


# --- the Lighthouse and standbys --------------------------------------------------------------------------------------


def lighthouse(scene: Scene, rng: Random) -> Blow:
    _kill(scene.tasks("lighthouse")[1])
    return Blow(units={"lighthouse"})


def lighthouse_guard(scene: Scene, rng: Random) -> Blow:
    _kill(scene.tasks("lighthouse")[0])
    return Blow(units={"lighthouse"})


def lighthouse_stop_3(scene: Scene, rng: Random) -> Blow:
    scene.stop(scene.tasks("lighthouse")[1])
    return Blow(later=[(3.0, scene.free)])


def lighthouse_stop(scene: Scene, rng: Random) -> Blow:
    """Stop the Lighthouse until ftslurm ends it."""
    scene.stop(scene.tasks("lighthouse")[1])
    return Blow(units={"lighthouse"})


def lighthouse_and_rank(scene: Scene, rng: Random) -> Blow:
    groups = _some(scene, rng)
    _kill([*scene.tasks("lighthouse")[1], rng.choice(scene.tasks(_unit(groups[0]))[1])])
    return Blow(set(groups), units={"lighthouse"}, told=f"group {groups[0]}")


def standby(scene: Scene, rng: Random) -> Blow:
    unit = next(unit for unit in scene.live() if unit.startswith("standby"))
    _kill(scene.tasks(unit)[1])
    return Blow(units={unit}, told=unit)


# --- more than one ----------------------------------------------------------------------------------------------------


def two(scene: Scene, rng: Random) -> Blow:
    groups = _some(scene, rng, 2)
    _kill_ranks(scene, rng, groups)
    return Blow(set(groups), told=f"groups {groups}")


def half(scene: Scene, rng: Random) -> Blow:
    groups = _some(scene, rng, (scene.mode.groups + 1) // 2)
    _kill_ranks(scene, rng, groups)
    return Blow(set(groups), told=f"groups {groups}")


def everyone(scene: Scene, rng: Random) -> Blow:
    """Kill all groups: all start over from the checkpoint. A group found dead first may already be launched again when
    the last is found dead; it is then stopped and launched once more."""
    _kill_ranks(scene, rng, list(scene.groups))
    return Blow(set(scene.groups), causes=KILLED | {"cancelled"}, attempts=2, told="all groups")


def again_same(scene: Scene, rng: Random) -> Blow:
    """Kill a group a second time within two seconds, at any stage of its recovery."""
    blow = rank(scene, rng)
    (group,) = blow.hit
    time.sleep(rng.uniform(0.1, 2.0))
    if _unit(group) in scene.live():
        guards, workers = scene.tasks(_unit(group))
        _kill(workers or guards)
    return Blow({group}, causes=KILLED | {"start_failed"}, attempts=2, told=blow.told)


def again_other(scene: Scene, rng: Random) -> Blow:
    """Kill a group, and another within two seconds."""
    groups = rng.sample(list(scene.groups), 2)
    _kill_ranks(scene, rng, groups[:1])
    time.sleep(rng.uniform(0.1, 2.0))
    if _unit(groups[1]) in scene.live():
        _kill_ranks(scene, rng, groups[1:])
    return Blow(set(groups), told=f"groups {groups}")


# --- cables of hosts -------------------------------------------------------------------------------------------------


def _host(scene: Scene, rng: Random) -> tuple[int, str]:
    """Choose a group whose host is not the controller's."""
    group = rng.choice([group for group in scene.groups if scene.nodes_of(group)[0] != scene.controllers_node])
    return group, scene.nodes_of(group)[0]


APART = frozenset({"network", "node_lost"})  # the latter if the controller's host is one of them


def _mended(scene: Scene) -> None:
    scene.network.callback(scene.cluster.mend, *scene.cluster.nodes)


def cut(scene: Scene, rng: Random, seconds: float | None, times: int = 1) -> Blow:
    """Cut a host off, perhaps several times with pauses as long, or (None) until the recovery."""
    group, node = _host(scene, rng)
    _mended(scene)
    scene.cluster.cut(node)
    blow = Blow({group}, causes=APART, told=f"{node} of group {group}")
    if seconds is not None:
        blow.hit = set()
        acts = (partial(scene.cluster.mend, node), partial(scene.cluster.cut, node))
        blow.later = [(seconds * (turn + 1), acts[turn % 2]) for turn in range(2 * times - 1)]
    return blow


def cut_controller(scene: Scene, rng: Random) -> Blow:
    """Cut the controller's host off for 20 s: it trains on, or another one leads; no group but its own ends twice."""
    node = scene.controllers_node
    _mended(scene)
    scene.cluster.cut(node)
    causes = frozenset({"node_lost", "network", "cancelled", "killed", "hang", "failed"})
    return Blow(may=set(scene.groups), causes=causes, later=[(20.0, partial(scene.cluster.mend, node))], told=node)


def apart(scene: Scene, rng: Random, seconds: float | None) -> Blow:
    """Keep two hosts of groups apart for some seconds, or (None) until the recovery: one of the groups leaves."""
    groups = _some(scene, rng, 2)
    pair = [scene.nodes_of(group)[0] for group in groups]
    _mended(scene)
    scene.cluster.apart(*pair)
    # Two that are no neighbours in the ring of an allreduce do not notice it.
    blow = Blow(may=set(groups), causes=APART, told=" and ".join(pair))
    if seconds is not None:
        blow.may = set()
        blow.later = [(seconds, partial(scene.cluster.mend, *pair))]
    return blow


def one_way(scene: Scene, rng: Random) -> Blow:
    """Lose what the host of a group sends to that of another one."""
    groups = rng.sample(list(scene.groups), 2)
    source, target = (scene.nodes_of(group)[0] for group in groups)
    scene.network.enter_context(scene.cluster.one_way(source, target))
    return Blow(may=set(groups), causes=APART, told=f"{source} to {target}")


def halves(scene: Scene, rng: Random) -> Blow:
    """Keep the hosts of two groups apart from those of the other two for 10 s."""
    first = _some(scene, rng, 2)
    ours, theirs = (
        [scene.nodes_of(group)[0] for group in scene.groups if (group in first) is side] for side in (True, False)
    )
    for one, other in product(ours, theirs):
        scene.network.enter_context(scene.cluster.one_way(one, other))
        scene.network.enter_context(scene.cluster.one_way(other, one))
    mended: list[tuple[float, Callable[[], object]]] = [(10.0, scene.network.close)]  # there may be no other two nodes
    return Blow(may=set(scene.groups), causes=APART, later=mended, told=f"{' '.join(ours)} from {' '.join(theirs)}")


def slow(scene: Scene, rng: Random) -> Blow:
    """Limit a host to 1 % of a usual link for 8 s."""
    group, node = _host(scene, rng)
    _mended(scene)
    scene.cluster.slow(node, "10mbit")
    return Blow(later=[(8.0, partial(scene.cluster.mend, node))], told=f"{node} of group {group}")


def moved(scene: Scene, rng: Random) -> Blow:
    """Change the address of a host until the recovery."""
    group, node = _host(scene, rng)
    scene.network.enter_context(scene.cluster.another_address(node))
    return Blow({group}, causes=APART, told=f"{node} of group {group}")


KINDS = {
    "cut": Kind(partial(cut, seconds=None), HOSTS, NODE_LIMIT_S),
    "cut 1.5 s": Kind(partial(cut, seconds=1.5), HOSTS),
    "flapping": Kind(partial(cut, seconds=1.0, times=4), HOSTS),
    "cut controller 20 s": Kind(cut_controller, HOSTS, NODE_LIMIT_S),
    "apart": Kind(partial(apart, seconds=None), HOSTS, NODE_LIMIT_S),
    "apart 1.5 s": Kind(partial(apart, seconds=1.5), HOSTS),
    "one way": Kind(one_way, HOSTS, NODE_LIMIT_S),
    "two against two": Kind(halves, HOSTS, NODE_LIMIT_S),
    "slow link": Kind(slow, HOSTS),
    "another address": Kind(moved, HOSTS, NODE_LIMIT_S),
    "rank": Kind(rank, ALL | HOSTS),
    "guard": Kind(guard),
    "srun main": Kind(srun_main),
    "srun helper": Kind(srun_helper),
    "srun both": Kind(srun_both),
    "slurmstepd": Kind(stepd),
    "scancel step": Kind(cancel_step),
    "stop rank 2 s": Kind(partial(stop, who="rank", seconds=2.0)),
    "stop rank": Kind(partial(stop, who="rank", seconds=None)),
    "stop guard 2 s": Kind(partial(stop, who="guard", seconds=2.0)),
    "stop guard": Kind(partial(stop, who="guard", seconds=None)),
    "stop step 13 s": Kind(partial(stop, who="step", seconds=HANG_AFTER_S + 3)),
    "node": Kind(partial(node, back_s=None), limit_s=NODE_LIMIT_S),
    "node 5 s": Kind(partial(node, back_s=5.0), limit_s=NODE_LIMIT_S),
    "node 40 s": Kind(partial(node, back_s=40.0), limit_s=NODE_LIMIT_S),
    "slurmctld": Kind(slurmctld),
    "slurmctld away": Kind(slurmctld_away),
    "slurmctld and rank": Kind(slurmctld_and_rank),
    "pilot": Kind(pilot_kill, ARRAY),
    "pilot scancel": Kind(pilot_cancel, ARRAY),
    "pilot requeue": Kind(pilot_requeue, ARRAY),
    "controller": Kind(controller, ALL | HOSTS),
    "controller abort": Kind(controller_abort),
    "controller memory": Kind(controller_memory),
    "controller stop 5 s": Kind(partial(controller_stop, seconds=5.0)),
    "controller stop 20 s": Kind(partial(controller_stop, seconds=20.0)),
    "controller and rank": Kind(controller_and_rank),
    "controller and node": Kind(controller_and_node, limit_s=NODE_LIMIT_S),
    "controller's node": Kind(controllers_node, ARRAY, limit_s=NODE_LIMIT_S),
    "lighthouse": Kind(lighthouse),
    "lighthouse guard": Kind(lighthouse_guard),
    "lighthouse stop 3 s": Kind(lighthouse_stop_3),
    "lighthouse stop": Kind(lighthouse_stop),
    "lighthouse and rank": Kind(lighthouse_and_rank),
    "standby": Kind(standby, frozenset({"standby"})),
    "two": Kind(two, ALL | HOSTS),
    "half": Kind(half),
    "all": Kind(everyone),
    "again same": Kind(again_same),
    "again other": Kind(again_other),
}
