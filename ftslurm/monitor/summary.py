"""The summary of a run: outcome, duration, restarts, failures with their causes, and the folder of the logs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ftslurm.core.groups.verdict import describe, kind
from ftslurm.core.state.model import Phase
from ftslurm.monitor import sentences, stack_text
from ftslurm.monitor.status import GroupStatus, RunStatus
from ftslurm.protocol import traces
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.run_states import WITHOUT_GROUPS
from ftslurm.run import deliveries
from ftslurm.run.directory import RunDir
from ftslurm.words import few, rest, seconds

_OUTCOMES = {"succeeded": "bold green", "failed": "bold red", "stopped": "bold magenta"}
_RESTARTS_SHOWN = 20
_FAILURES_SHOWN = 4
_TRACEBACK_LINES = 8


def summary(status: RunStatus, run: RunDir, followed: bool = False) -> RenderableType:
    """Return the summary of a run, which is printed at the end of `follow`.

    Args:
        followed: the reader has had a line for each warning.
    """
    style = "bold yellow" if status.missing else _OUTCOMES.get(status.outcome, "bold yellow")
    head = Text.assemble("run ", (status.run_id, "bold"), " ", (sentences.ended(status.outcome), style))
    if status.reason:
        head.append(f": {status.reason}")
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    end = status.finished or status.updated
    took = f" in {seconds(end - status.started)}" if end and status.started else ""
    facts.add_row("steps", f"{sentences.of_total(status.step, status)}{took}")
    facts.add_row("restarts", str(status.restarts))
    known = {describe(group.last) for group in status.groups if group.down and group.last is not None}  # told above
    listed = [one for one in status.recoveries if one.seconds is not None or one.detail not in known]
    if len(listed) > _RESTARTS_SHOWN:
        facts.add_row("", f"{len(listed) - _RESTARTS_SHOWN} earlier ones, and")
    for one in listed[-_RESTARTS_SHOWN:]:
        back = "" if status.lighthouse is None else ", not back"  # without a quorum, a group need not report anything
        if one.seconds is not None:
            back = f", back after {seconds(one.seconds)}"
        facts.add_row("", Text(f"group {one.group} attempt {one.attempt}{back}: {one.detail}"))
    if status.full_restarts:
        facts.add_row("full restarts", str(status.full_restarts))
    if status.starts > 1 and status.job_id is not None:
        facts.add_row("job starts", f"{status.starts}, the last of Slurm job {status.job_id}")
    if status.checkpoint is not None:
        facts.add_row("checkpoint", f"step {status.checkpoint}")
    if (avoided := sentences.left_out(status)) is not None:
        facts.add_row("nodes", Text(avoided, "yellow"))
    if status.missing:
        words = f"without {_called([status.groups[n] for n in status.missing])}: exit code {WITHOUT_GROUPS}"
        facts.add_row("warning", Text(words, "yellow"))
    for words in () if followed else status.cautions:
        facts.add_row("warning", Text(words, "yellow"))
    for words in sentences.hook_lines(deliveries.read(run)):
        facts.add_row("hooks", Text(words, "yellow"))
    facts.add_row("logs", Text(str(run.logs)))
    signs = failures(status.groups, status.reason)
    parts: list[RenderableType] = [head, Text(), *([] if signs is None else [signs, Text()]), facts]
    if (command := next_command(status, run)) is not None:
        parts += [Text(), Text(command)]
    return Group(*parts)


def _called(groups: Sequence[GroupStatus]) -> str:
    if len(groups) == 1:
        return sentences.called(groups[0])
    return f"groups {few([str(g.group) for g in groups], 8)}"


def next_command(status: RunStatus, run: RunDir) -> str | None:
    """Return how a run that was stopped or has failed is continued; None: there is nothing to continue."""
    if status.outcome not in ("stopped", "failed", "lost"):
        return None
    command, step = f"continue with: ftslurm resume {shlex.quote(str(run.root))}", status.checkpoint
    begins = "--from-scratch if it has saved no checkpoint" if step is None else f"from the checkpoint of step {step}"
    ends = (group.last for group in status.groups if group.last is not None)
    # A person will probably mend the script before.
    if status.outcome == "failed" and run.code.is_dir() and any(end.cause == Cause.USER_ERROR for end in ends):
        command += " --new-code"
        begins += "; with the code as it is now, without --new-code with the run's copy"
    return f"{command} ({begins})"


def failing(groups: Iterable[GroupStatus]) -> list[list[GroupStatus]]:
    """Return those of these groups that have failed and are down; those with the same failure are together."""
    same: dict[object, list[GroupStatus]] = {}
    for group in groups:
        if group.down or group.phase is Phase.FAILED:
            same.setdefault(group.last and kind(group.last), []).append(group)
    return list(same.values())


def failures(groups: Iterable[GroupStatus], known: str = "") -> RenderableType | None:
    """Return why those of these groups are down that have failed; None: none has.

    An entry has the end of the traceback, else the signs of the failure, and the log. Groups with the same failure
    share it.

    Args:
        known: what the reader has been told.
    """
    kinds = failing(groups)
    parts = [_entry(alike, known) for alike in kinds[:_FAILURES_SHOWN]]
    if len(kinds) > _FAILURES_SHOWN:
        parts.append(Text(rest(kinds, _FAILURES_SHOWN, "failures of other kinds: see the journal"), "dim"))
    return Group(*parts) if parts else None


def _entry(alike: Sequence[GroupStatus], known: str) -> Text:
    end, given_up = alike[0].last, next((group.given_up for group in alike if group.given_up), None)
    if end is None:
        return Text(f"{_called(alike)}: {given_up or 'given up'}", "red")
    trace = _end(end.traceback or "")
    raised = (end.error or "").partition(":")[0]  # what the core says instead is told, too
    told = replace(end, traceback=None, error=None if raised in str(trace) else end.error) if trace else end
    if len(alike) > 1:
        told = replace(told, node=None, rank=None)
    lines = trace or [f"- {sign}" for sign in end.evidence if len(end.evidence) > 1]
    lines += [f"given up: {given_up}"] if given_up and given_up not in known else []
    lines += [f"log: {sentences.short_log(end.log)}"] if end.log else []
    text = Text(f"{_called(alike)}: {describe(told)}", "red")
    return text.append("".join(f"\n  {line}" for line in lines), "default")


def _end(traceback: str) -> list[str]:
    """Return the last calls of a traceback and its exception."""
    lines = stack_text.told_lines(traceback)
    end = lines[-_TRACEBACK_LINES:]
    begin = next((n for n, line in enumerate(end) if traces.frames(line)), 0)
    return end if end == lines else end[begin:]
