"""Handle the end of a step: its verdict, and the consequences for its unit and for the run."""

from __future__ import annotations

from ftslurm.config.schema import Config
from ftslurm.core.groups import fault_drills, placement, progress_lines, restart
from ftslurm.core.groups.timings import phases
from ftslurm.core.groups.verdict import classify, describe
from ftslurm.core.jobs import queue
from ftslurm.core.state.actions import Action, NoteBroken
from ftslurm.core.state.events import LAST_LINE, Ended
from ftslurm.core.state.model import LIVE, OVER, Ending, Exit, Marks, Phase, RunOutcome, Unit
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.transitions import give_up, succeed, wait_for_next
from ftslurm.core.state.unit_table import Trait
from ftslurm.core.state.units import independent, places, serves, swap, tasks_of
from ftslurm.core.state.values import replace
from ftslurm.protocol import records
from ftslurm.protocol.causes import Cause

Outcome = tuple[RunState, list[Action]]
PATIENT_STARTS = 3  # launches that reached no node before the same error from all groups ends the run
DUD_STARTS = 3  # starts in a row without an address after which the Lighthouse is given up
MOST_EXITS = 1000  # exits of one unit that are kept
MOST_SIGNS = 8  # pieces of evidence that are journaled
_STANDBYS = -1  # stands for all of them among the groups that have found a node suspect
TRIES = 2  # failed starts of every group, without any committed step, after which the run ends


def ended(event: Ended, state: RunState, unit: Unit, now: float, config: Config) -> Outcome:
    """Fold the end of a step into the state."""
    if unit.group is None and state.ending is not None:
        unit = replace(unit, current=replace(unit.current, intent=Cause.CANCELLED))  # scancel ends it with the rest
    if unit.current.recalled is not None and state.ending is None:
        unit = replace(unit, current=replace(unit.current, intent=Cause.REQUESTED))  # also if it ends with 0
    known = queue.job(state, unit.place.allocation) if unit.place is not None else None
    unit = replace(unit, current=replace(unit.current, intent=queue.why_told(unit, known, state.ending)))
    verdict = classify(unit, event, tasks_of(unit, config), now, _lighthouse_away(state, now, config))
    if _never_began(event, unit, verdict):
        return _refused(state, unit, verdict, event, now, config)
    if independent(config):
        verdict = _alone(verdict, state, unit, now, config)
    noticed = unit.current.failing.noticed if unit.phase is Phase.STOPPING else None
    failing = Marks(detect_s=fault_drills.since(unit, now), noticed=now) if noticed is None else unit.current.failing
    failing = replace(failing, ended=now, away=_away(unit, now if noticed is None else noticed))
    exited = records.StepExited(
        unit=unit.name,
        group=unit.group,
        attempt=unit.attempt,
        code=verdict.code,
        signal=verdict.signal,
        cause=verdict.cause.value,
        node=verdict.node,
        rank=verdict.rank,
        error=verdict.error,
        step=verdict.step,
        launched=verdict.launched,
        healthy_s=verdict.healthy_s,
        noticed=round(now if noticed is None else noticed, 3),
        away_since=failing.away,
        evidence=_signs(unit),
        traceback=None if verdict.cause is Cause.OK else verdict.traceback,
        phases=None if unit.marks.joined is not None else phases(unit.marks),
    )
    unit, actions = progress_lines.told(unit, now)
    actions.append(exited)
    exits = (*unit.exits, verdict)[-MOST_EXITS:]
    unit = replace(
        unit,
        exits=exits,
        marks=failing,
        current=replace(unit.current, step=None, ran_as=None, adoption=None, recalled=None),
    )
    if unit.current.intent is None and (event.launcher_failed or verdict.cause.row.with_job) and unit.place is not None:
        state = queue.doubt(state, unit.place.allocation, now)
    return _follows(state, unit, verdict, event, now, config, actions)


def _follows(
    state: RunState, unit: Unit, verdict: Exit, event: Ended, now: float, config: Config, actions: list[Action]
) -> Outcome:
    """Apply the consequences of a verdict to its unit and to the run."""
    if unit.is_lighthouse:
        return _lighthouse_ended(state, unit, verdict, now, config, actions)
    if unit.is_standby:
        return _standby_ended(state, unit, verdict, config, actions)
    if verdict.cause is Cause.OK:
        return swap(state, succeed(unit)), actions
    return _group_failed(
        replace(state, lineage=replace(state.lineage, checkpoint=event.checkpoint)), unit, verdict, config, actions
    )


def _never_began(event: Ended, unit: Unit, verdict: Exit) -> bool:
    """Return whether srun failed before there was a step: slurmctld was away, or has just restarted and refuses."""
    heard = any(host is not None for host in unit.current.hosts) or bool(unit.current.evidence)
    return event.launcher_failed and verdict.cause is Cause.START_FAILED and not heard and unit.current.adoption is None


def _refused(state: RunState, unit: Unit, verdict: Exit, event: Ended, now: float, config: Config) -> Outcome:
    """Handle a launch that Slurm has refused. It is no attempt: the next launch has its number, folder and reason."""
    number, reason = unit.attempt, unit.reason
    exits = (*unit.exits, verdict)[-MOST_EXITS:]
    marks = replace(unit.marks, launched=None)
    before = replace(
        unit, attempt=number - 1, exits=exits, marks=marks, pulses=(), current=replace(unit.current, hosts=())
    )
    state = queue.doubt(state, unit.place.allocation if unit.place is not None else None, now)
    state, actions = _follows(state, before, verdict, event, now, config, [])
    after = state.table.by_name[unit.name]
    again_s = round(after.due - now, 3) if after.phase is Phase.PENDING else None
    refused = records.LaunchRefused(
        unit=unit.name,
        group=unit.group,
        attempt=number,
        reason=verdict.error or "srun has failed without a word",
        again_s=again_s,
    )
    actions = [action for action in actions if not isinstance(action, records.RestartScheduled)]
    return swap(state, replace(after, reason=reason)), [refused, *actions]


def _away(unit: Unit, noticed: float) -> float:
    """Return since when a group has not worked: since an earlier failure, if the failed attempt never joined."""
    away = unit.marks.away if unit.marks.joined is None else None
    return round(noticed, 3) if away is None else away


def _signs(unit: Unit) -> tuple[str, ...]:
    """Return the evidence as texts without duplicates; a script's last output only if it has no better error."""
    told = {sign.task for sign in unit.current.evidence if sign.error and not sign.error.startswith(LAST_LINE)}
    signs = (s for s in unit.current.evidence if not (s.task in told and (s.error or "").startswith(LAST_LINE)))
    return tuple(dict.fromkeys(str(sign) for sign in signs))[:MOST_SIGNS]


def _alone(verdict: Exit, state: RunState, unit: Unit, now: float, config: Config) -> Exit:
    """Return the verdict on a group without a quorum.

    Its script works from its first line, and a server may not end before the groups that it serves.
    """
    begun = unit.marks.begun
    verdict = replace(verdict, healthy_s=0.0 if begun is None else round(now - begun, 3))
    others = [u for u in state.groups if not serves(u.group, config)]
    over = all(u.phase in OVER or len(u.current.done) == tasks_of(u, config) for u in others)
    if verdict.cause is not Cause.OK or over or not serves(unit.group, config):
        return verdict
    error = "it has ended although groups that it serves (groups.serve) have not finished"
    return replace(verdict, cause=Cause.USER_ERROR, code=0, error=error)


def _lighthouse_ended(
    state: RunState, unit: Unit, verdict: Exit, now: float, config: Config, actions: list[Action]
) -> Outcome:
    """Relaunch the Lighthouse at once, on the same address; groups keep running. Only a failed start has a backoff."""
    if state.ending is not None:
        return swap(state, give_up(unit)), actions
    if unit.current.ready:
        unit = replace(unit, exits=())  # it has been up: only failed starts in a row count
    patience_s = config.health.start_timeout_s if state.lineage.step > 0 else 0.0  # training has begun: more patience
    if len(unit.exits) >= DUD_STARTS and now - unit.exits[0].time >= patience_s:
        reason = f"the Lighthouse cannot start ({describe(verdict)}): see logs/lighthouse.log"
        state = replace(state, ending=Ending(RunOutcome.FAILED, reason))
        return swap(state, give_up(unit)), actions
    due = now + 1.0 if unit.exits else now
    return swap(state, wait_for_next(unit, due, f"restart: {describe(verdict)}")), actions


def _lighthouse_away(state: RunState, now: float, config: Config) -> bool:
    """Return whether the Lighthouse is down, or came back less than config.quorum_timeout_s ago."""
    lighthouse = state.lighthouse
    came_back = lighthouse.marks.launched if lighthouse.attempt > 0 else None
    recently = came_back is not None and now - came_back < config.quorum_timeout_s
    return not independent(config) and (lighthouse.phase is not Phase.RUNNING or recently)


def _standby_ended(state: RunState, unit: Unit, verdict: Exit, config: Config, actions: list[Action]) -> Outcome:
    """Handle the exit of a standby: launch it again as a group, on its own restart budget."""
    if state.ending is not None:
        return swap(state, give_up(unit)), actions
    if verdict.cause is Cause.HARDWARE:
        state, more = _blame(state, unit, config)
        actions += more
    own = [e for e in unit.exits if e.cause is not Cause.NODE_LOST or e is verdict]  # earlier lost nodes do not count
    answer = restart.judge(own, config.restart, config.health.start_timeout_s)
    if isinstance(answer, restart.GiveUp):
        record = records.StandbyGivenUp(unit=unit.name, reason=f"{describe(verdict)}; {answer.reason}")
        return swap(state, give_up(unit)), [*actions, record]
    due = max(answer.time, verdict.time + 1.0)
    return swap(state, wait_for_next(unit, due, f"restart: {describe(verdict)}")), actions


def _group_failed(state: RunState, unit: Unit, verdict: Exit, config: Config, actions: list[Action]) -> Outcome:
    """Schedule the next attempt of a group that has failed, or give it up; end the run if it cannot go on."""
    state = swap(state, give_up(unit))  # the default; a restart below replaces it
    if state.lineage.resuming and not state.table.count(*LIVE):
        # The Lighthouse may have seen a step whose state is lost: the new history is sent again.
        state = replace(state, lineage=replace(state.lineage, allowed_by=None))
    if state.ending is not None or unit.retired:
        return state, actions
    finished = [] if independent(config) else [unit.group_id for unit in state.table.in_phase(Phase.SUCCEEDED)]
    if finished:
        return given_up(state, unit, too_late(finished[0]), actions)
    state, more = _blame(state, unit, config)
    actions += more
    hopeless = None if _got_anywhere(state, config) else _same_start_error(state) or _no_start_at_all(state)
    if hopeless:
        return replace(state, ending=Ending(RunOutcome.FAILED, hopeless)), actions
    answer = restart.judge(unit.exits, config.restart, config.health.start_timeout_s)
    if isinstance(answer, restart.GiveUp):
        return given_up(state, unit, answer.reason, actions)
    reason = f"restart: {describe(verdict)}"
    scheduled = records.RestartScheduled(group=unit.group_id, attempt=unit.attempt + 1, due=answer.time, reason=reason)
    return swap(state, wait_for_next(unit, answer.time, reason)), [*actions, scheduled]


def _got_anywhere(state: RunState, config: Config) -> bool:
    """Return whether a step was ever committed or, without a quorum, a script ran for BACKOFF_MAX_S."""
    ran = (e.healthy_s for u in state.groups for e in u.exits) if independent(config) else ()
    return state.lineage.step > 0 or any(seconds >= restart.BACKOFF_MAX_S for seconds in ran)


def _same_start_error(state: RunState) -> str | None:
    """Return the reason to end the run if every group has failed before its first step with the same error."""
    if len(state.table.having_trait(Trait.HAS_FAILED)) < state.table.groups:
        return None
    groups = state.groups
    ends = [unit.exits[-1] for unit in groups]
    if len(ends) == 1:
        ends = list(groups[0].exits[-2:])  # a single failure of one group may be chance
    if not all(e.launched for e in ends) and min(len(unit.exits) for unit in groups) < PATIENT_STARTS:
        return None  # slurmctld may be away for a moment
    words = {e.error for e in ends}
    if len(ends) < 2 or len(words) > 1 or None in words or any(e.cause.row.hopeless != 1 for e in ends):
        return None
    return "every group failed before its first step, all in the same way"


def _no_start_at_all(state: RunState) -> str | None:
    """Return the reason to end the run if no group runs and each has failed TRIES times before its first step."""
    failed = len(state.table.having_trait(Trait.HAS_FAILED))
    if state.table.count(Phase.RUNNING) or failed < state.table.groups:
        return None
    for unit in state.table.all_groups():
        tries = [e for e in unit.exits if e.launched]
        if len(tries) < TRIES + (state.table.groups == 1) or not all(e.cause.row.hopeless for e in tries):
            return None
    return f"every group failed {TRIES} times or more before its first step: is it the script, or the nodes?"


def last_failure(state: RunState) -> str | None:
    """Return how the last group failed that did not come back, an exception without its place; None: none did."""
    last = (next((e for e in reversed(u.exits) if e.cause.row.failure or e.healthy_s), None) for u in state.groups)
    failed = [end for end in last if end is not None and end.cause.row.failure]
    if not failed:
        return None
    end = max(failed, key=lambda end: end.time)
    return end.error if end.cause is Cause.USER_ERROR and end.error else describe(end)


def _blame(state: RunState, unit: Unit, config: Config) -> Outcome:
    """Exclude a node with broken hardware, or the one on which a group keeps failing, if there are others.

    The latter is readmitted if the group fails elsewhere too. Both are used again when no other node is free.
    """
    if config.cluster.kind == "local" or state.allocation is None:
        return state, []  # local nodes are all this machine
    actions: list[Action] = []
    number = _STANDBYS if unit.group is None else unit.group
    last, broken = unit.exits[-1], {e.node for e in unit.exits if e.cause is Cause.HARDWARE}
    node = placement.suspect(unit.exits, restart.WINDOW_S)
    wrongly = [n for n, group in state.nodes.suspected if group == number and n != node and n not in broken]
    for other in wrongly:
        suspected = tuple(pair for pair in state.nodes.suspected if pair != (other, number))
        state = replace(state, nodes=replace(state.nodes, avoid=state.nodes.avoid - {other}, suspected=suspected))
        reason = f"group {unit.group} fails elsewhere too"
        actions += [records.NodeRestored(node=other, reason=reason), NoteBroken(other)]
    reason = f"group {unit.group} failed there {placement.TWICE} times, and nowhere else"
    if last.cause is Cause.HARDWARE and last.node is not None:
        node, reason = last.node, f"broken hardware: {last.error}"
    if node is None or node in state.nodes.avoid:
        return state, actions
    if node not in broken and not _is_place_without(state, unit, node, config):
        return state, actions
    actions += [records.NodeExcluded(node=node, group=unit.group, reason=reason), NoteBroken(node, reason)]
    suspected = (*state.nodes.suspected, (node, number))
    nodes = replace(state.nodes, avoid=state.nodes.avoid | {node}, suspected=suspected)
    return replace(state, nodes=nodes), actions


def _is_place_without(state: RunState, unit: Unit, node: str, config: Config) -> bool:
    """Return whether a group has a free place without this node."""
    groups = config.groups
    taken = places(state.groups, but=unit, phases=LIVE | {Phase.PENDING})  # groups that are down return to their places
    avoid = state.nodes.unusable | {node}
    return placement.place(groups.nodes, groups.per_node, state.allocations(), taken, avoid) is not None


def too_late(finished: int) -> str:
    """Return why a group gets no further attempt after group `finished` has ended."""
    return f"too late for another attempt: group {finished} had already finished; it may find no group to heal from"


def given_up(state: RunState, unit: Unit, reason: str, actions: list[Action]) -> Outcome:
    """Give a group up; these actions come before the record of it."""
    return swap(state, give_up(unit, reason)), [*actions, records.GroupGivenUp(group=unit.group_id, reason=reason)]
