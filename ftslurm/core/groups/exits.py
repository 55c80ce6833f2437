"""Handle the end of a step: its verdict, and the consequences for its unit and for the run."""

from __future__ import annotations

from typing import Any

from ftslurm.config.store_url import is_url
from ftslurm.core.groups import fault_drills, finishing, placement, reports, restart
from ftslurm.core.groups.launching import has_room
from ftslurm.core.groups.verdict import classify, describe, kind
from ftslurm.core.jobs import queue
from ftslurm.core.state import errands
from ftslurm.core.state.actions import DistrustCheckpoints, NoteBroken
from ftslurm.core.state.events import Ended
from ftslurm.core.state.model import LIVE, OVER, Exit, Marks, Out, Phase, Trait, Unit, replace
from ftslurm.core.state.run_state import RunState
from ftslurm.core.state.transitions import give_up, stop, succeed, wait_for_next
from ftslurm.core.state.turn import Turn
from ftslurm.core.state.units import pool_of, serves, tasks_of
from ftslurm.protocol import messages, records
from ftslurm.protocol.causes import Blame, Cause, Says

TOO_LATE = "too late for another attempt"
PATIENT_STARTS = 3  # launches that reached no node before the same error from all groups ends the run
DUD_STARTS = 3  # starts in a row without an address after which the Lighthouse is given up
MOST_EXITS = 1000  # exits of one unit that are kept
MOST_SIGNS = 8  # pieces of evidence that are journaled


def ended(turn: Turn, event: Ended, unit: Unit) -> None:
    """Fold the end of a step into the state."""
    unit = _with_intent(turn, unit)
    if sign := finishing.left_early(turn, unit):  # first: it knows more than one from before
        unit = turn.attempt(unit, evidence=(sign, *unit.current.evidence))
    verdict = classify(unit, event, tasks_of(unit, turn.config), turn.now, _lighthouse_away(turn))
    if _never_began(event, unit, verdict):
        _refused(turn, unit, verdict, event)
        return
    if turn.independent:
        verdict = _alone(turn, verdict, unit)
    unit = reports.told(turn, unit)
    unit = _written(turn, unit, verdict)
    if unit.current.agreed is not None:
        distrust(turn, unit.group_id, unit.attempt, unit.current.agreed)
    unit = turn.attempt(unit, step=None, ran_as=None, adoption=None, recalled=None)
    if unit.current.intent is None and (event.launcher_failed or verdict.cause.row.with_job):
        queue.doubt(turn, unit)
    revoke(turn)  # a group that this one has trained on without has not finished
    _follows(turn, unit, verdict, event)


def distrust(turn: Turn, group: int, attempt: int, after: int) -> None:
    """Have nobody restore what a group that had diverged has saved after a step, in this attempt or one before."""
    turn.do(records.CheckpointsDistrusted(group=group, attempt=attempt, step=after))
    errands.add(turn, DistrustCheckpoints(group, attempt, after))


def _with_intent(turn: Turn, unit: Unit) -> Unit:
    """Set the cause of an end that the core, a user or the end of the job has decided."""
    if unit.current.agreed is not None and turn.goes_on:
        unit = turn.attempt(unit, intent=Cause.DIVERGED)
    elif unit.current.recalled is not None and turn.goes_on:
        unit = turn.attempt(unit, intent=Cause.REQUESTED)  # also if it ends with 0
    elif turn.state.ending is not None and unit.place.allocation is None:
        cancelled = Cause.CANCELLED in {unit.current.intent, *(sign.cause for sign in unit.current.evidence)}
        if cancelled or unit.group is None:  # with the rest of its job
            return turn.attempt(unit, intent=turn.state.ending.cause)
    return unit


def _written(turn: Turn, unit: Unit, verdict: Exit) -> Unit:
    """Journal the end of an attempt, and keep its verdict and its times."""
    failing = unit.current.failing if unit.phase is Phase.STOPPING else Marks()
    noticed = failing.noticed or turn.now
    died = failing.died or fault_drills.struck(unit, noticed)
    # A group that has never joined has not worked since an earlier failure.
    earlier = unit.marks.away if unit.group is not None and unit.marks.joined is None else None
    failing = Marks(died, noticed, earlier or round(died, 3), ended=turn.now)
    turn.do(exited(unit, verdict, noticed, away_since=failing.away, evidence=_signs(unit)))
    if not turn.lineage.resuming:  # its last steps may not have been reported
        turn.set_lineage(step=max(turn.lineage.step, verdict.step or 0))
    return turn.change(unit, exits=_exits_with(unit, verdict), marks=failing)


def exited(unit: Unit, verdict: Exit, noticed: float, **more: Any) -> records.StepExited:
    """Return the journal record of the end of an attempt."""
    return records.StepExited(
        **unit.names,
        code=verdict.code,
        signal=verdict.signal,
        cause=verdict.cause.value,
        node=verdict.node,
        rank=verdict.rank,
        error=verdict.error,
        step=verdict.step,
        launched=verdict.launched,
        healthy_s=verdict.healthy_s,
        noticed=round(noticed, 3),
        traceback=None if verdict.cause is Cause.OK else verdict.traceback,
        **more,
    )


def _exits_with(unit: Unit, verdict: Exit) -> tuple[Exit, ...]:
    """Return the exits of a unit with a further one."""
    return (*unit.exits, verdict)[-MOST_EXITS:]


def _follows(turn: Turn, unit: Unit, verdict: Exit, event: Ended) -> None:
    """Apply the consequences of a verdict to its unit and to the run."""
    if unit.is_lighthouse:
        _lighthouse_ended(turn, unit, verdict)
    elif unit.is_standby:
        _standby_ended(turn, unit, verdict)
    elif verdict.cause is Cause.OK:
        succeed(turn, unit)
    else:
        if not is_url(turn.config.checkpoint.dir or ""):  # else a group has told of each (lineage/rollover.py)
            turn.set_lineage(checkpoint=event.checkpoint)
        _group_failed(turn, unit, verdict)


def _never_began(event: Ended, unit: Unit, verdict: Exit) -> bool:
    """Return whether srun failed before there was a step: slurmctld was away, or has just restarted and refuses."""
    heard = any(host is not None for host in unit.current.hosts) or bool(unit.current.evidence)
    return event.launcher_failed and verdict.cause is Cause.START_FAILED and not heard and not unit.adopting


def _refused(turn: Turn, unit: Unit, verdict: Exit, event: Ended) -> None:
    """Handle a launch that Slurm has refused. It is no attempt: the next launch has its number, folder and reason."""
    number, reason = unit.attempt, unit.reason
    why = verdict.error or "srun has failed without a word"
    turn.do(records.LaunchRefused(unit=unit.name, group=unit.group, attempt=number, reason=why))
    marks = replace(unit.marks, launched=None)
    unit = turn.change(unit, attempt=number - 1, exits=_exits_with(unit, verdict), marks=marks, pulses=())
    unit = turn.attempt(unit, hosts=())
    turn.set(retries=max(1, turn.state.retries))
    queue.doubt(turn, unit)
    _follows(turn, unit, verdict, event)
    turn.change(unit, reason=reason)


def _signs(unit: Unit) -> tuple[str, ...]:
    """Return the evidence as texts without duplicates; a script's last output only if it has no better error."""
    told = {sign.task for sign in unit.current.evidence if sign.error and Says.PRINTED not in sign.says}
    signs = (s for s in unit.current.evidence if not (s.task in told and Says.PRINTED in s.says))
    return tuple(dict.fromkeys(str(sign) for sign in signs))[:MOST_SIGNS]


def _alone(turn: Turn, verdict: Exit, unit: Unit) -> Exit:
    """Return the verdict on a group without a quorum.

    Its script works from its first line, and a server may not end before the groups that it serves.
    """
    begun, config = unit.marks.begun, turn.config
    verdict = replace(verdict, healthy_s=0.0 if begun is None else round(turn.now - begun, 3))
    others = [u for u in turn.state.groups if not serves(u.group, config)]
    over = all(u.phase in OVER or len(u.current.done) == tasks_of(u, config) for u in others)
    if verdict.cause is not Cause.OK or over or not serves(unit.group, config):
        return verdict
    error = "it has ended although groups that it serves (groups.serve) have not finished"
    return replace(verdict, cause=Cause.USER_ERROR, code=0, error=error)


def revoke(turn: Turn) -> None:
    """Give groups another attempt that had seemed to finish, although the others train on."""
    for unit in finishing.left_behind(turn):
        end = unit.exits[-1]
        error = f"{finishing.words(turn, end.step)}, and the others have trained on to step {turn.lineage.step}"
        verdict = replace(end, cause=Cause.LEFT_EARLY, code=0, error=error, time=turn.now)
        turn.do(exited(unit, verdict, turn.now, away_since=end.time, evidence=()))
        _group_failed(turn, turn.change(unit, exits=(*unit.exits[:-1], verdict)), verdict)


def part(turn: Turn) -> None:
    """Bring the groups down that some of their ranks have left early. While that is open, ask where the others are.

    The others have their grace: one may be writing a file. Rank 0, if it has left, ends: its guard knows of a SIGTERM.
    """
    for unit in turn.having(Trait.PARTED):
        if sign := finishing.left_early(turn, unit):
            turn.send(unit, messages.MayLeave())
            stop(turn, unit, None, sign, due=turn.now + turn.config.stop.grace_s)
        elif turn.due(unit.current.asked + finishing.TOGETHER_S):
            turn.attempt(unit, asked=turn.now)
            turn.send(unit, messages.Where())


def _lighthouse_ended(turn: Turn, unit: Unit, verdict: Exit) -> None:
    """Relaunch the Lighthouse at once; groups keep running. Only a failed start has a backoff."""
    if not turn.goes_on:
        give_up(turn, unit)
        return
    if unit.current.ready:
        unit = turn.change(unit, exits=())  # it has been up: only failed starts in a row count
    patience_s = turn.config.health.start_timeout_s if turn.lineage.step > 0 else 0.0  # training has begun
    if len(unit.exits) >= DUD_STARTS and turn.now - unit.exits[0].time >= patience_s:
        turn.fail(f"the Lighthouse cannot start ({describe(verdict)}): see logs/lighthouse.log")
        give_up(turn, unit)
        return
    due = turn.now + 1.0 if unit.exits else turn.now
    wait_for_next(turn, unit, due, f"restart: {describe(verdict)}")


def _lighthouse_away(turn: Turn) -> bool:
    """Return whether the Lighthouse is down, or came back less than config.quorum_timeout_s ago."""
    lighthouse = turn.lighthouse
    came_back = lighthouse.marks.launched if lighthouse.attempt > 0 else None
    recently = came_back is not None and turn.now - came_back < turn.config.quorum_timeout_s
    return not turn.independent and (lighthouse.phase is not Phase.RUNNING or recently)


def _standby_ended(turn: Turn, unit: Unit, verdict: Exit) -> None:
    """Handle the exit of a standby: launch it again as a group, on its own restart budget."""
    if not turn.goes_on:
        give_up(turn, unit)
        return
    if verdict.cause.row.blame is Blame.BROKEN:
        _blame(turn, unit)
    match restart.judge(unit.exits, turn.config.restart, turn.config.health.start_timeout_s):
        case restart.GiveUp(why):
            turn.do(records.StandbyGivenUp(unit=unit.name, reason=f"{describe(verdict)}; {why}"))
            give_up(turn, unit)
        case restart.RestartAt(time):
            wait_for_next(turn, unit, max(time, verdict.time + 1.0), f"restart: {describe(verdict)}")


def _group_failed(turn: Turn, unit: Unit, verdict: Exit) -> None:
    """Schedule the next attempt of a group that has failed, or give it up; end the run if it cannot go on."""
    unit = give_up(turn, unit)  # the default; a restart below replaces it
    if turn.lineage.resuming and not turn.table.count(*LIVE):
        # The Lighthouse may have seen a step whose state is lost: the new history is sent again.
        turn.set_lineage(allowed_by=None)
    if not turn.goes_on or unit.retired:
        return
    if finishing.answer(turn, unit, finishing.End.FAILED) is finishing.Answer.TOO_LATE:
        given_up(turn, unit, too_late(turn))
        return
    if not _got_anywhere(turn) and _all_failed_alike(turn.state):  # it is no node's fault
        for node in sorted(turn.nodes.out(Out.BLAMED)):
            errands.add(turn, NoteBroken(node))
        turn.fail("every group failed before its first step, all in the same way")
        return
    _blame(turn, unit)
    match restart.judge(unit.exits, turn.config.restart, turn.config.health.start_timeout_s):
        case restart.GiveUp(why):
            given_up(turn, unit, why)
        case restart.RestartAt(due):
            reason, number = f"restart: {describe(verdict)}", unit.attempt + 1
            # Else its launch was refused, and is no attempt; or whether all start over is not decided yet.
            if verdict.attempt == unit.attempt and turn.lineage.lost is None:
                turn.do(records.RestartScheduled(group=unit.group_id, attempt=number, due=due, reason=reason))
            wait_for_next(turn, unit, due, reason)


def _got_anywhere(turn: Turn) -> bool:
    """Return whether a step was ever committed or, without a quorum, a script ran for BACKOFF_MAX_S."""
    longest = max(e.healthy_s for u in turn.state.groups for e in u.exits)
    return turn.lineage.step > 0 or longest >= restart.BACKOFF_MAX_S


def _all_failed_alike(state: RunState) -> bool:
    """Return whether all groups have failed alike, in a way that another attempt is not likely to mend."""
    groups = state.groups
    ends = [e for unit in groups for e in unit.exits[-1 if len(groups) > 1 else -2 :]]  # one of one may be chance
    fewest = min(len(unit.exits) for unit in groups)
    if fewest < (1 if all(e.launched for e in ends) else PATIENT_STARTS):  # slurmctld may be away for a moment
        return False
    return len(ends) > 1 and len({kind(e) for e in ends}) == 1 and ends[0].cause.row.hopeless


def last_failure(state: RunState) -> str | None:
    """Return how the last group failed that did not come back, an exception without its place; None: none did."""
    last = (next((e for e in reversed(u.exits) if e.cause.row.failure or e.healthy_s), None) for u in state.groups)
    failed = (end for end in last if end is not None and end.cause.row.failure)
    end = max(failed, key=lambda end: end.time, default=None)
    if end is None:
        return None
    return end.error if end.cause is Cause.USER_ERROR and end.error else describe(end)


def _blame(turn: Turn, unit: Unit) -> None:
    """Exclude a node with broken hardware, or the one on which a group keeps failing, if there are others.

    The latter is readmitted if a group fails elsewhere too. Both are used again when no other node is free.
    """
    if turn.local:
        return
    last, groups = unit.exits[-1], turn.state.groups
    broken, node, reason = last.cause.row.blame is Blame.BROKEN, last.node, f"{last.cause.row.words}: {last.error}"
    if last.cause.row.blame is Blame.IF_AGAIN:
        node = placement.suspect(unit, groups, restart.WINDOW_S)
        reason = f"group {unit.group} failed there {placement.TWICE} times, and nowhere else"
        for other in sorted(turn.nodes.out(Out.BLAMED)):
            suspects = (placement.suspect(group, groups, restart.WINDOW_S) for group in groups)
            if not turn.nodes.of(other).why and other not in suspects:
                turn.take_back(other, f"group {unit.group} fails elsewhere too")
                errands.add(turn, NoteBroken(other))
    elif not broken:
        return
    if node is None or turn.nodes.of(node).out:
        return
    # Does the script work? Then a step was taken, or another group has lived for longer than this one's last attempt.
    lives = (u.marks.hello or turn.now for u in turn.table.in_phase(Phase.STARTING, Phase.RUNNING))
    works = broken or _got_anywhere(turn) or min(lives, default=turn.now) < unit.exits[-2].time
    others = turn.table.in_phase(*LIVE, Phase.PENDING)  # groups that are down return to their places
    beside = (other for other in others if other.name != unit.name)
    if works and (broken or has_room(turn, pool_of(unit.group, turn.config), beside, avoid=node)):
        turn.do(records.NodeExcluded(node=node, group=unit.group, reason=reason))
        if unit.current.drilled is None:  # a drill says nothing about the node to other runs
            errands.add(turn, NoteBroken(node, reason))
        turn.node(node, out=Out.BLAMED, since=turn.now, why=reason if broken else "")


def too_late(turn: Turn) -> str:
    """Return why a group gets no further attempt when no group trains any more."""
    finished = turn.table.in_phase(Phase.SUCCEEDED)[0].group
    return f"{TOO_LATE}: group {finished} had already finished; it may find no group to heal from"


def missed(turn: Turn) -> tuple[int, ...]:
    """Return the groups without which the run has trained: they were given up in time, or were not near its end."""
    failed = [u for u in turn.table.in_phase(Phase.FAILED) if not u.retired and not serves(u.group, turn.config)]
    near = max(1, turn.lineage.step - finishing.BEYOND)
    return tuple(
        unit.group_id
        for unit in failed
        if not unit.reason.startswith(TOO_LATE) or max((end.step or 0 for end in unit.exits), default=0) < near
    )


def given_up(turn: Turn, unit: Unit, reason: str) -> None:
    """Give a group up, and say why."""
    give_up(turn, unit, reason)
    turn.do(records.GroupGivenUp(group=unit.group_id, reason=reason))
