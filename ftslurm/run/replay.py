"""What there is when a controller begins, or when a step has ended: a checkpoint, an earlier controller's work."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ftslurm.checkpoint import layout
from ftslurm.config.schema import Config
from ftslurm.core.groups.exits import MOST_EXITS
from ftslurm.core.state.model import Cause, Exit, Job, Phase, Place, Saved, StepId
from ftslurm.core.state.past import LeftOut, Live, Past, Scheduled
from ftslurm.core.state.unit_names import GROUP, LIGHTHOUSE, group_unit
from ftslurm.errors import EnvironmentProblem
from ftslurm.run import liveness
from ftslurm.run.directory import RunDir, replace_text
from ftslurm.run.journal import Event, JournalReader, integer, names, text
from ftslurm.run.journal import number as decimal
from ftslurm.run.journal_filter import Skim
from ftslurm.security import owned_files
from ftslurm.security.names import is_step

OWNER = ".owner"  # in checkpoint.dir: the run directory of the run that saves there


def newest_checkpoint(config: Config, run: RunDir) -> Saved | None:
    """What the script could resume from: the newest complete checkpoint, else what is there instead."""
    folder = Path(config.checkpoint.dir or run.checkpoints)
    found = layout.newest(folder)
    if found is not None:
        return Saved(str(found.path), found.step)
    if layout.only_foreign(folder):
        return Saved(str(folder), None)
    torn = layout.damaged(folder)
    return None if torn is None else Saved(str(torn.path), None, torn.reason)


def claim(config: Config, run: RunDir) -> str | None:
    """Take checkpoint.dir for this run; why it cannot be had: two live runs would take each other's checkpoints.

    Our `alive` has just been touched: that of the other run is compared with it, by the clock of their file server.
    """
    if config.checkpoint.dir is None:
        return None
    folder = Path(config.checkpoint.dir)
    with suppress(OSError, EnvironmentProblem):
        other = RunDir(Path(owned_files.read_text(folder / OWNER, own=True)))
        ours = run.alive if run.alive.exists() else None
        age = liveness.age_s(other.alive, than=ours) if other.root != run.root else None
        if age is not None and age < liveness.SILENT_S and read_past(other)[1] is None:
            return (
                f"checkpoint.dir={folder} is in use by {other.root.name}, which is running: name another folder, or "
                f"stop that run with: ftslurm stop {other.root}"
            )
    with suppress(OSError):  # who saves there will say what is wrong with it
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_text(folder / OWNER, str(run.root))
    return None


def read_past(run: RunDir) -> tuple[Past | None, str | None]:
    """What an earlier controller of this run had come to, and the outcome if it had come to its end.

    The run's step goes back at a full restart.
    """
    found = Reading()
    for event in Skim().read(JournalReader(run.events)):
        found.fold(event)
    return found.past, found.outcome


def home(job: object, requeues: object) -> str:
    """One life of a Slurm job: its id, and how often it had been requeued; empty: not known."""
    return f"{job}.{requeues}" if job is not None and requeues is not None else ""


@dataclass
class Reading:
    """The journal so far."""

    began: bool = False
    outcome: str | None = None
    own: str | None = None  # the controller's allocation, if groups may run in it
    home: str = ""  # see core/past.py
    host: str = ""
    step: int = 0
    resuming: int | None = None
    attempts: dict[str, int] = field(default_factory=dict)
    live: dict[str, Live] = field(default_factory=dict)
    over: dict[str, str] = field(default_factory=dict)
    saved: bool = False
    drilled: int = 0
    groups: int | None = None
    moving: set[str] = field(default_factory=set)  # units whose next launch is due to another job
    planned: int = 0
    count: int = 0  # of the groups
    noticed: dict[str, float | None] = field(default_factory=dict)  # unit -> when its last end was
    away: dict[str, float | None] = field(default_factory=dict)  # unit -> as in Marks
    exits: dict[str, list[Exit]] = field(default_factory=dict)
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    leaving: dict[str, Job] = field(default_factory=dict)
    scheduled: dict[str, Scheduled] = field(default_factory=dict)

    @property
    def past(self) -> Past | None:
        if not self.began:
            return None
        return Past(
            attempts=tuple(self.attempts.items()),
            step=self.step,
            live=tuple(self.live.values()),
            over=tuple(self.over.items()),
            resuming=self.resuming,
            saved=self.saved,
            drilled=self.drilled,
            groups=self.groups,
            planned=self.planned,
            exits=tuple((unit, tuple(ends[-MOST_EXITS:])) for unit, ends in self.exits.items()),
            left_out=tuple(self.left_out.values()),
            leaving=tuple(self.leaving.values()),
            scheduled=tuple(self.scheduled.values()),
            home=self.home,
            host=self.host,
        )

    def fold(self, event: Event) -> None:
        unit, number, attempt = text(event, "unit"), integer(event, "step"), integer(event, "attempt")
        match event.get("event"):
            case "run_started":
                self.began, self.outcome = True, None
                self.own = text(event, "job_id") if text(event, "mode") != "array" else None
                self.home, self.host = home(event.get("job_id"), event.get("requeues")), text(event, "host") or ""
                self.moving = set(self.attempts) - self.scheduled.keys()
                self.count = integer(event, "groups") or 0
            case "step_launched" if unit is not None and attempt is not None:
                self._launched(event, unit, attempt)
            case "step_ready" | "step_adopted" if unit in self.live:
                self._is_up(event, self.live[unit])
                self.moving.discard(unit)
            case "step_exited" if unit is not None:
                if unit != LIGHTHOUSE and attempt is not None:
                    self.exits.setdefault(unit, []).append(_exit(event, attempt, self.live.get(unit)))
                self.noticed[unit], self.away[unit] = decimal(event, "noticed"), decimal(event, "away_since")
                if event.get("with_job") is not True:
                    self.moving.discard(unit)  # its next launch answers that
                self.live.pop(unit, None)
                if text(event, "cause") == "ok" and integer(event, "group") is not None:
                    self.over[unit] = Phase.SUCCEEDED.value
            case "launch_refused" if unit is not None and attempt is not None:
                self._refused(event, unit, attempt)
            case "group_joined" if (group := integer(event, "group")) is not None and group_unit(group) in self.live:
                joined = decimal(event, "time") or 0.0
                self.live[group_unit(group)] = replace(self.live[group_unit(group)], joined=joined)
            case "restart_scheduled" if (group := integer(event, "group")) is not None:
                name, due = group_unit(group), decimal(event, "due") or 0.0
                why, noticed, away = text(event, "reason") or "start", self.noticed.get(name), self.away.get(name)
                self.scheduled[name] = Scheduled(name, due, why, noticed, away)
            case "group_given_up" if (group := integer(event, "group")) is not None:
                self.scheduled.pop(group_unit(group), None)
                self.over[group_unit(group)] = Phase.FAILED.value
            case "standby_given_up" if unit is not None:
                self.over[unit] = Phase.FAILED.value
            case "full_restart":
                self.resuming = integer(event, "checkpoint_step") or 0
            case "progress" if number is not None and integer(event, "committed"):
                self.step, self.resuming = number if self.resuming is not None else max(self.step, number), None
            case "checkpoint_saved":
                self.saved = True
                if number is not None and self.resuming is None:
                    self.step = max(self.step, number)
            case "fault_injected" if event.get("by") == "faults.plan":
                self.drilled += 1
            case "scaled":
                self.groups = integer(event, "groups") or 1
                self.moving |= {group_unit(n) for n in range(self.count, self.groups)} & self.attempts.keys()
                self.count = self.groups
            case "allocation_leaving" if (job := text(event, "allocation")) is not None:
                self.leaving[job] = Job(job, leaving=_cause(event), since=decimal(event, "time") or 0.0)
            case "allocation_granted" | "allocation_lost" if (job := text(event, "allocation")) is not None:
                self.leaving.pop(job, None)
            case "node_excluded" if (node := text(event, "node")) is not None:
                self.left_out[node] = LeftOut(node, decimal(event, "time") or 0.0, integer(event, "group"))
            case "node_restored" if (node := text(event, "node")) is not None:
                self.left_out.pop(node, None)
            case "controller_left" if LIGHTHOUSE in self.live:  # it ends its Lighthouse
                self.live[LIGHTHOUSE] = replace(self.live[LIGHTHOUSE], home="")
            case "run_finished":
                self.outcome = text(event, "outcome")

    def _launched(self, event: Event, unit: str, attempt: int) -> None:
        self.attempts[unit] = attempt
        self.planned += unit in self.moving and unit.startswith(GROUP)
        self.moving.discard(unit)
        self.over.pop(unit, None)
        self.scheduled.pop(unit, None)
        where, (name, _, number) = text(event, "allocation"), (text(event, "standby") or "").partition("/")
        taken = self.live.pop(name, None)  # a standby's step goes on as this one
        ran_as = StepId(name, int(number)) if re.fullmatch("[0-9]{1,9}", number) else StepId(unit, attempt)
        beside = unit == LIGHTHOUSE or where == self.own  # in the controller's job, or on its machine
        place = Place(names(event, "nodes"), integer(event, "slot") or 0, None if beside else where)
        stays = None if not beside else self.home if self.own is not None else self.host
        launched, slurm_step = decimal(event, "time") or 0.0, taken.slurm_step if taken else None
        noticed, away, hosts = self.noticed.get(unit), self.away.get(unit), _hosts(event)
        self.live[unit] = Live(unit, ran_as, attempt, place, hosts, launched, slurm_step, noticed, None, stays, away)

    def _refused(self, event: Event, unit: str, attempt: int) -> None:
        """Slurm has not let it begin: it is no attempt, and what it was to answer is still to be answered."""
        self.live.pop(unit, None)
        self.attempts[unit] = attempt - 1
        if attempt > 0 and unit.startswith(GROUP):
            due = (decimal(event, "time") or 0.0) + (decimal(event, "again_s") or 0.0)
            why = text(event, "reason") or "start"
            self.scheduled[unit] = Scheduled(unit, due, why, self.noticed.get(unit), self.away.get(unit))

    def _is_up(self, event: Event, step: Live) -> None:
        hosts, slurm_step = _hosts(event) or step.hosts, text(event, "slurm_step")
        slurm_step = slurm_step if is_step(slurm_step) else step.slurm_step
        self.live[step.unit] = replace(step, hosts=hosts, slurm_step=slurm_step)


def _exit(event: Event, attempt: int, step: Live | None) -> Exit:
    """What the budgets need of an exit; the script's traceback stays in the journal."""
    return Exit(
        attempt,
        decimal(event, "time") or 0.0,
        _cause(event),
        step.place.nodes if step is not None else (),
        code=integer(event, "code"),
        signal=integer(event, "signal"),
        node=text(event, "node"),
        rank=integer(event, "rank"),
        error=text(event, "error"),
        step=integer(event, "step"),
        launched=event.get("launched") is not False,
        healthy_s=decimal(event, "healthy_s") or 0.0,
        ran_as=None if step is None or step.id == StepId(step.unit, attempt) else step.id,
    )


def _cause(event: Event) -> Cause:
    word = text(event, "cause")
    return Cause(word) if word in {cause.value for cause in Cause} else Cause.UNKNOWN


def _hosts(event: Event) -> tuple[str, ...]:
    """The node of each task, by the rank table of a line."""
    ranks = event.get("ranks")
    table = [rank.get("node") for rank in ranks if isinstance(rank, dict)] if isinstance(ranks, list) else []
    return tuple(str(node) for node in table)
