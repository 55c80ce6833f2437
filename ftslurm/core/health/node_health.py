"""Decide whether a silent node is lost or its group hangs, from heartbeats and the answer of a probe.

Silence is not enough evidence: a stopped or starved process is silent too. So after three tenths of
health.lost_after_s the port of slurmd on the node is dialled. A kernel answers there, or refuses, whatever its
processes do. A node without power, network or kernel does not: it is lost at once, unless another of its steps is
heard, or the Lighthouse hears it. Halfway to health.lost_after_s a probe, a separate Slurm step, is started on a node
that is still silent. Its answer distinguishes the cases:

    no answer from the node                     lost: excluded, its groups are placed elsewhere
    answer, but our processes are gone          the step died unreported (its slurmstepd was killed)
    answer, and a process of ours is stopped    hang
    answer, and all processes are there         starved: hang after six times health.lost_after_s

What Slurm says of the nodes is asked when a group has failed, before its next attempt. An administrator who drains a
node wants it back, mostly because it is bad: a group that starts again goes elsewhere, if it can. What runs there goes
on. A node that fails its check (health.preflight) is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ftslurm.config.schema import Config
from ftslurm.core.groups.restart import WINDOW_S
from ftslurm.core.groups.verdict import silent_siblings
from ftslurm.core.jobs import supply
from ftslurm.core.state import errands
from ftslurm.core.state.actions import AskNodes, Dial, NoteBroken, Probe, ProbeLost
from ftslurm.core.state.events import Alive, Looked, NodeFate
from ftslurm.core.state.model import RUNS, Evidence, Look, Nodes, Out, Phase, Pulse, Trait, Unit, replace
from ftslurm.core.state.transitions import stop
from ftslurm.core.state.turn import Turn
from ftslurm.protocol import messages, records
from ftslurm.protocol.causes import Cause
from ftslurm.words import few

LOOK_AGAIN_S = 30.0  # between two probes of a lost node
DIALLED = 0.3  # of health.lost_after_s: the silence after which a node is dialled
DIAL_EVERY_S = 0.5  # nodes that fall silent together are dialled together
JITTER_S = 0.25  # times this close are the same moment: the delay of messages varies
REFUSED_AGAIN_S = 2.0  # a probe that Slurm refused is sent again after this long
FEW_STARTS = 8  # so many sruns at the same time do not delay each other; each further one may by EACH_START_S
EACH_START_S = 0.1
LIGHTHOUSE_STALL_S = 5.0  # a Lighthouse that stands still for longer is relaunched: every group waits for it
FRESH = 3  # heartbeats without a message after which a task is silent
_ALONE = 3  # if at least this many nodes are silent and no other is heard, the controller's node is cut off


class Silence(NamedTuple):
    """The silence of a unit on one of its nodes."""

    unit: Unit
    node: str
    since: float  # when the unit was last heard from the node, else when it was launched


def silences(unit: Unit) -> Iterator[Silence]:
    """Yield for each node of a unit that should send heartbeats when it last did."""
    if unit.phase in RUNS and unit.marks.launched is not None:
        for node in dict.fromkeys(unit.place.nodes):
            if unit.task_on(node) in unit.current.done:
                continue  # the first task of a node reports for it, and has succeeded: the others may still end
            heard = unit.last_pulse(node)
            yield Silence(unit, node, unit.marks.launched if heard is None else heard)


def _over(unit: Unit) -> float | None:
    """Return when a unit whose tasks have all succeeded was last heard; None: not all have."""
    if unit.phase is not Phase.RUNNING or not unit.current.hosts or len(unit.current.done) < len(unit.current.hosts):
        return None
    return max((pulse.time for pulse in unit.pulses if pulse is not None), default=unit.marks.launched)


def _probe_patience_s(turn: Turn) -> float:
    """Return how long to wait for the answer of a probe.

    Half of health.lost_after_s, and more while many steps start or many nodes are probed: then the probe waits for the
    other sruns. Without this, starts that take long lose their nodes, and the restarts and probes that follow delay
    each other again, for ever.
    """
    starting = turn.table.count(Phase.STARTING) + len(turn.nodes.looks)
    return turn.config.health.lost_after_s / 2 + EACH_START_S * max(0, starting - FEW_STARTS)


def watch(turn: Turn) -> None:
    """Probe silent nodes; stop the units on lost nodes and those whose processes are dead, stopped or starved."""
    _forget(turn)
    if not turn.goes_on:
        return
    _restore(turn)
    lost_after_s, attended = turn.config.health.lost_after_s, turn.attended()
    for unit in attended:
        over = _over(unit)
        if over is not None and turn.due(over + lost_after_s, unit.name):  # its srun waits for a lost node
            stop(turn, unit, None)
    silent = _quiet(turn, [unit.name for unit in attended])
    _dial(turn, silent)
    looks = _probe(turn, [one for one in silent if turn.due(one.since + lost_after_s / 2, one.unit.name)])
    dead = [silence for silence in silent if _is_dead(turn, silence)]
    late = dead or [silence for silence in silent if turn.due(silence.since + lost_after_s)]
    if not late or _cut_off(turn):
        return
    for silence in late:
        unit, node = turn.unit(silence.unit.name), silence.node
        if unit.phase not in RUNS:
            continue
        who = "its slurmd's port does not answer" if turn.config.one_job else "no other node reaches it"
        words = f"nothing heard of {node} for {turn.now - silence.since:.0f} s, and {who}"
        evidence = lost(unit.task_on(node), node, words) if dead else _judge(turn, silence, looks[node])
        if evidence is not None:
            condemn(turn, unit, evidence, silence.since)


def _dial(turn: Turn, silent: list[Silence]) -> None:
    """Dial the silent nodes, once in each silence, from where their steps were started: there the port is reached.

    In array mode it may be closed from this node, and would never answer: there other nodes dial (partition.py).
    """
    nodes, new = turn.nodes, set[str]()
    for unit, node, since in silent if turn.config.one_job or turn.config.job_per_group else ():
        if nodes.of(node).dialled <= since and turn.due(nodes.dialled + DIAL_EVERY_S, unit.name):
            new.add(node)
    if new:
        turn.set_nodes(dialled=turn.now)
        turn.node(*new, dialled=turn.now, no_answer=False)
        if turn.config.one_job:
            turn.do(Dial(tuple(sorted(new))))
        else:
            turn.set(reached=replace(turn.state.reached, next=turn.now))


def _is_dead(turn: Turn, silence: Silence) -> bool:
    """Return whether a node has not answered, and nobody hears it: the controller no step, our Lighthouse no manager.

    A Lighthouse that is away, or misses most groups, has set nobody aside: then this takes as long as for a busy node.
    """
    name, node = silence.node, turn.nodes.of(silence.node)
    told = turn.config.lighthouse.kind == "ftslurm"
    for unit in turn.table.near(name) if node.no_answer else ():
        manages = told and unit.joined and unit.current.hosts[0] == name
        if (unit.last_pulse(name) or 0.0) > node.dialled or (manages and unit.current.aside != turn.lighthouse.id):
            return False
    return node.no_answer


def _probe(turn: Turn, quiet: list[Silence]) -> dict[str, Look]:
    """Probe the silent nodes, and again if a probe is old; return what is known of each node."""
    looks = turn.nodes.looks
    for silence in {silence.node: silence for silence in reversed(quiet)}.values():
        node, since, look = silence.node, silence.since, looks.get(silence.node)
        if look is None:
            turn.do(records.NodeSilent(node=node, seconds=round(turn.now - since, 3)))
        if look is None or stale(turn, look):
            look = Look(since, turn.now) if look is None else Look(look.since, turn.now, heard=look.heard)
            turn.do(Probe(node, _allocation(turn, node)))
        looks[node] = replace(look, heard=last_heard(turn, node, look))
        turn.node(node, look=looks[node])
    return looks


def _forget(turn: Turn) -> None:
    """Drop what was asked of nodes that are no longer suspicious: their units are heard again, or are stopped."""
    looks, dialled = turn.nodes.looks, turn.nodes.those(lambda node: node.dialled)
    if not looks and not dialled:
        return
    silent, half = _quiet(turn, ()) if turn.goes_on else [], turn.config.health.lost_after_s / 2
    turn.node(*(dialled - {silence.node for silence in silent}), dialled=0.0, no_answer=False)
    quiet = {silence.node for silence in silent if turn.due(silence.since + half)}
    stopping = turn.table.stopping()
    quiet |= {node for unit in stopping for node in silent_siblings(unit)}  # lost_connections.py waits for the answer
    turn.node(*(looks.keys() - quiet), look=None)


def _quiet(turn: Turn, names: Iterable[str]) -> list[Silence]:
    """Return the silences that are long enough to be suspicious, the longest first.

    Only the given units and all units on suspicious nodes are examined, every other one once its silence would be
    suspicious.
    """
    suspicious = turn.nodes.those(lambda node: node.look is not None or node.dialled)
    known = {unit.name for unit in turn.table.near(*suspicious)}
    limit, units = DIALLED * turn.config.health.lost_after_s, turn.table.named({*names, *known})
    found = (silence for unit in units for silence in silences(unit) if turn.due(silence.since + limit, unit.name))
    return sorted(found, key=lambda silence: silence.since)


def _allocation(turn: Turn, node: str) -> str | None:
    """Return the job that holds a node; None: the controller's own allocation, or no known job."""
    if node in turn.state.allocation.nodes:
        return None
    jobs = (job.name for job in turn.jobs if node in job.nodes)
    places = (u.place.allocation for u in turn.table.near(node))
    return next((name for name in (*jobs, *places) if name is not None), None)


def stale(turn: Turn, look: Look) -> bool:
    """Return whether to repeat a probe: it is old, Slurm refused it, or slurmctld was down."""
    lost_after_s = turn.config.health.lost_after_s
    if look.again is not None:
        return turn.due(look.again)
    if look.answered is not None:
        return turn.due(look.answered + lost_after_s)
    return look.slurm is None and turn.due(look.asked + lost_after_s)


def unreached(turn: Turn, look: Look, patience_s: float) -> bool:
    """Return whether a probe without an answer shows that its node is lost.

    While slurmctld is away or refuses steps a probe shows nothing, and nothing can be launched elsewhere.
    """
    return look.again is None and look.slurm is not None and turn.due(look.slurm + patience_s)


def last_heard(turn: Turn, node: str, look: Look) -> float | None:
    """Return when a suspicious node was last heard, also from steps that have ended since; None: never."""
    times = (look.heard, *(unit.last_pulse(node) for unit in turn.table.near(node)))
    return max((time for time in times if time is not None), default=None)


def _judge(turn: Turn, silence: Silence, look: Look) -> Evidence | None:
    """Return the evidence against a unit that was silent for health.lost_after_s; None: none yet."""
    unit, node, since = silence
    lost_after_s, seconds = turn.config.health.lost_after_s, turn.now - since
    task = unit.task_on(node)
    # Another step on the node was heard.
    elsewhere = look.heard is not None and not turn.due(look.heard + lost_after_s / 2)
    if look.answered is None and not elsewhere:
        if not unreached(turn, look, _probe_patience_s(turn)):
            return None
        return lost(task, node, f"nothing heard of {node} for {seconds:.0f} s, and a probe does not reach it")
    if look.answered is not None and not look.reachable and not elsewhere:
        return lost(task, node, f"nothing heard of {node} for {seconds:.0f} s, and Slurm cannot start a step there")
    letters = look.letters(unit.id)
    if task is None and (letters != "" or not turn.due(since + 2 * lost_after_s)):
        return None  # no hello yet: a container may start slowly, and health.start_timeout_s limits that
    if letters == "":
        return gone(task, node)
    if letters is not None and "T" in letters:
        error = f"its process on {node} is stopped (SIGSTOP), nothing heard of it for {seconds:.0f} s"
        return Evidence(task, node, error=error, cause=Cause.HANG)
    if not turn.due(since + turn.config.orphan_after_s):
        return None
    error = f"{node} answers, but nothing was heard of its guard for {seconds:.0f} s (six times health.lost_after_s)"
    return Evidence(task, node, error=error, cause=Cause.HANG)


def lost(task: int | None, node: str, error: str) -> Evidence:
    return Evidence(task, node, node_lost=True, error=error, stuck=True)


def gone(task: int | None, node: str) -> Evidence:
    error = f"its processes are gone from {node}, which answers: something killed its slurmstepd"
    return Evidence(task, node, error=error, cause=Cause.KILLED, stuck=True)


def _cut_off(turn: Turn) -> bool:
    """Return whether the controller's node has probably lost its network: all other nodes, several, are silent."""
    here = turn.state.allocation.nodes[:1]
    limit, patience = DIALLED * turn.config.health.lost_after_s, turn.config.orphan_after_s
    last = dict[str, float]()
    for unit in turn.table:
        for silence in silences(unit):
            if silence.node in here:
                continue
            if not turn.due(silence.since + limit):
                return False  # usually at the first unit, so this loop is short
            last[silence.node] = max(silence.since, last.get(silence.node, silence.since))
    return len(last) >= _ALONE and not any(turn.due(since + patience) for since in last.values())


def condemn(turn: Turn, unit: Unit, evidence: Evidence, since: float) -> None:
    """Stop a unit because of the evidence; exclude the node if it is lost."""
    stop(turn, unit, evidence.cause, evidence, died=since)
    if evidence.node_lost:
        assert evidence.node is not None
        exclude(turn, evidence.node, evidence.error or "lost")


def exclude(turn: Turn, node: str, reason: str) -> None:
    """Exclude a lost node until a probe reaches it.

    A suspected node becomes a lost one: what its group does elsewhere no longer restores it.
    """
    if turn.local or turn.nodes.of(node).out not in (None, Out.BLAMED):
        return
    turn.node(node, out=Out.LOST, since=turn.now, next_look=turn.now + LOOK_AGAIN_S)
    turn.do(records.NodeExcluded(node=node, reason=reason))


def mind_lighthouse(turn: Turn) -> None:
    """Stop a Lighthouse whose guard answers, but whose process is stopped or whose event loop stands still."""
    unit = turn.lighthouse
    pulse = unit.pulse
    if not turn.goes_on or unit.phase is not Phase.RUNNING or pulse is None:
        return
    stood = pulse.time - pulse.moved
    # Seen twice: of the processes of a node that was stopped and goes on, the guard may be the first.
    stopped = pulse.stopped is not None and pulse.time >= pulse.stopped + turn.config.heartbeat_s / 2
    if not stopped and (pulse.step is None or stood < LIGHTHOUSE_STALL_S):
        return
    how = "is stopped (SIGSTOP)" if stopped else f"has stood still for {stood:.0f} s"
    error = f"the Lighthouse {how}, every group waits for it"
    condemn(turn, unit, Evidence(0, unit.current.hosts[0], error=error, cause=Cause.HANG), pulse.moved)


def _restore(turn: Turn) -> None:
    """Probe the lost nodes in the run's jobs.

    Lost nodes outside the run's jobs are usable again after WINDOW_S.
    """
    now = turn.now
    for name, node in turn.nodes.by_name.items():
        if node.out is not Out.LOST or not turn.due(node.next_look):
            continue
        where = next((job.name for job in turn.jobs if job.alive and name in job.nodes), None)
        if where is not None or name in turn.state.allocation.nodes:
            turn.do(ProbeLost(name, where))
        elif turn.state.job_pool.polled and now >= node.since + WINDOW_S:  # Slurm hands it out only if it is up
            turn.take_back(name, "it was left out an hour ago, and is in no job of the run")
            continue
        turn.node(name, next_look=now + LOOK_AGAIN_S)


def looked(turn: Turn, answer: Looked) -> None:
    """Apply the answer of a probe of a suspicious or a lost node, or that a suspicious one does not answer."""
    name, node, now = answer.node, turn.nodes.of(answer.node), turn.now
    if answer.silent:
        turn.node(name, no_answer=node.dialled > 0)
        return
    if (look := node.look) is not None:
        known = replace(look, answered=now, reachable=answer.reachable, steps=answer.steps)
        turn.node(name, look=replace(look, again=now + REFUSED_AGAIN_S) if answer.refused else known)
    if answer.reachable and node.out is Out.LOST:
        turn.take_back(name, "a step can be started there again")


def heard(turn: Turn, events: Iterable[Alive]) -> None:
    """Apply heartbeats of living steps. No rule examines a unit because of one: a heartbeat is good news."""
    beating = dict[str, Unit]()
    for event in events:
        unit = turn.table.living(event.id)
        if unit is None:
            continue  # a late message of an attempt that has ended
        beating[unit.name] = beat(beating.get(unit.name, unit), event, turn.config)
    if beating:
        turn.set(table=turn.table.put_unnoticed(beating.values()))


def beat(unit: Unit, event: Alive, config: Config) -> Unit:
    """Return the unit after a heartbeat of one of its tasks.

    While its guard is silent no task stands still: the whole node may have been stopped. The next heartbeat tells.
    """
    pulses, task = unit.pulses or (None,) * len(unit.current.hosts), event.task
    if task >= len(pulses):
        return unit
    old, moved, stopped = pulses[task], event.time - event.since_s, None
    if old is not None and event.time > old.time + FRESH * config.heartbeat_s:
        moved, old = event.time, old._replace(stopped=None)
    if old is not None and old.step == event.step and old.stage == event.stage and abs(old.moved - moved) < JITTER_S:
        moved = old.moved
    if event.state == "T":
        stopped = event.time if old is None or old.stopped is None else old.stopped
    pulse = Pulse(event.time, event.state, event.step, event.stage, moved, stopped)
    return replace(unit, pulses=(*pulses[:task], pulse, *pulses[task + 1 :]))


# --- what Slurm says, and what the checks do --------------------------------------------------------------------------


MOST_NAMED = 3  # nodes that have failed their check
ASK_AGAIN_S = 60.0  # while a group waits and Slurm drains a node, which may be resumed
ANSWER_S = 1.0  # a group that has failed waits at most this long for Slurm's answer


def ask(turn: Turn) -> None:
    """Ask once after each failure, and now and then while a group waits that could run on a drained node."""
    nodes = turn.nodes
    if not (turn.config.one_job or turn.config.job_per_group) or not turn.goes_on:
        return
    held_up = nodes.those(lambda node: node.shunned) and turn.having(Trait.WAITING)
    again = held_up and turn.due(nodes.asked + ASK_AGAIN_S)
    if again or any(_failed(unit) > nodes.asked for unit in turn.attended()):
        about = nodes.those(lambda node: node.shunned).union(
            *(allocation.nodes for allocation in turn.state.allocations())
        )
        turn.set_nodes(asked=turn.now, unanswered=bool(about))
        if about:
            turn.do(AskNodes(tuple(sorted(about))))
    elif nodes.unanswered and turn.due(nodes.asked + ANSWER_S):
        turn.set_nodes(unanswered=False)


def _failed(unit: Unit) -> float:
    """Return when the failure of a group that is to start again was noticed; 0: there is none."""
    marks = {Phase.STOPPING: unit.current.failing, Phase.PENDING: unit.marks}.get(unit.phase)
    return 0.0 if marks is None or unit.group is None else marks.noticed or 0.0


def told(turn: Turn, event: NodeFate) -> None:
    """Apply Slurm's state of a node.

    A node that is down gets no further step. Neither does a drained one where another job may be submitted; else only
    if no other is free: Slurm still starts the job's steps there, but the administrator wants it back.
    """
    node = event.node
    if event.drained is not None and event.drained is not turn.nodes.of(node).shunned:
        turn.do((records.NodeShunned if event.drained else records.NodeUnshunned)(node=node, reason=event.why))
        turn.node(node, shunned=event.drained)
    turn.set_nodes(unanswered=False)
    if event.down:
        exclude(turn, node, event.why)


def checked(turn: Turn, said: messages.NodeCheck) -> str | None:
    """Apply the result of a node's check, which a guard may repeat. Return why the node has failed; None: it has not.

    A node that fails is excluded for the rest of the run, unless a user asks to check it again (`ftslurm undrain`). If
    no other is left of a run none of whose nodes has passed, the run ends.
    """
    nodes, node = turn.nodes, said.node
    if said.error is None:
        if node not in nodes.passed:
            turn.set_nodes(passed=nodes.passed | {node})
            turn.do(records.NodeCheckPassed(node=node, seconds=said.seconds, log=said.log))
        return None
    why = f"{said.error}; see {said.log}" if said.log else said.error
    if nodes.of(node).out is Out.UNFIT:
        return why
    turn.node(node, out=Out.UNFIT, since=turn.now, why=why)
    turn.do(records.NodeCheckFailed(node=node, reason=said.error, seconds=said.seconds, log=said.log))
    errands.add(turn, NoteBroken(node, said.error))
    supply.told_to_avoid(turn)
    groups, nodes, failed = turn.config.groups, turn.nodes, turn.nodes.out(Out.UNFIT)
    needed, fresh = groups.nodes * -(-groups.count // groups.per_node), not (nodes.passed or turn.lineage.step)
    others = {node for allocation in turn.state.allocations() for node in allocation.nodes} - failed
    if turn.goes_on and fresh and not others and len(failed) >= needed:
        what = "none of the run's nodes has passed its check (health.preflight)"
        turn.fail(f"{what}: {unfit(nodes)}; mend the nodes, or change the commands of health.preflight")
    return why


def unfit(nodes: Nodes) -> str:
    """Name the nodes that have failed their check, with the reasons; empty: there are none."""
    failed = [f"{name}: {nodes.of(name).why}" for name in sorted(nodes.out(Out.UNFIT))]
    return few(failed, MOST_NAMED, between="; ") if failed else ""
