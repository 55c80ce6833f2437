"""The summary of a run: outcome, duration, restarts, failures with their causes, and the folder of the logs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from statistics import median

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ftslurm.code import record
from ftslurm.config import compose
from ftslurm.core.state.model import Phase, Saved
from ftslurm.errors import FtslurmError
from ftslurm.monitor import sentences
from ftslurm.monitor.status import PHASES, GroupStatus, Recovery, RunStatus, with_hooks
from ftslurm.run.directory import RunDir
from ftslurm.run.replay import newest_checkpoint
from ftslurm.security.terminal import visible

_OUTCOMES = {"succeeded": "bold green", "failed": "bold red", "stopped": "bold magenta"}
_RESTARTS_SHOWN = 20
_FAILURES_SHOWN = 4
_TRACEBACK_LINES = 8
_ALIKE = 40  # characters; an exception is cut off elsewhere
_FRAME = re.compile(r'^ *File "([^"\n]+)", line (\d{1,9})', re.MULTILINE)  # of a traceback
_RANK = re.compile(r"rank \d{1,9}:")  # above the traceback of a rank
_ARGUMENTS = re.compile(r": error: (unrecognized arguments|the following arguments|argument )")  # of argparse


def outcome_style(status: RunStatus) -> str:
    """Return the colour for the outcome of a run."""
    return _OUTCOMES.get(status.outcome, "bold yellow")


def summary(status: RunStatus, run: RunDir) -> RenderableType:
    """Return the summary of a run, which is printed at the end of `follow`."""
    head = Text.assemble("run ", (status.run_id, "bold"), " ", (sentences.ended(status.outcome), outcome_style(status)))
    if status.reason:
        head.append(f": {status.reason}")
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    end = status.finished or status.updated
    took = f" in {sentences.seconds(end - status.started)}" if end and status.started else ""
    facts.add_row("steps", f"{sentences.of_total(status.step, status)}{took}")
    if status.parent is not None:
        facts.add_row("resumes", status.parent)
    facts.add_row("restarts", str(status.restarts))
    undone = [(step, back) for step, back in status.full_restarts if back is None or back < step]  # else: a new job
    for step, back in undone[-_FAILURES_SHOWN:]:
        to = "" if back is None else f" of step {back}"
        facts.add_row("full restart", f"of all groups, at step {step}, from the checkpoint{to}")
    if status.jobs.asked:
        lost = f", {status.jobs.lost} taken away" if status.jobs.lost else ""
        facts.add_row("jobs", f"{status.jobs.asked} asked for{lost}")
    if status.starts > 1 and status.job_id is not None:
        facts.add_row("job starts", f"{status.starts}, the last of Slurm job {status.job_id}")
    if status.checkpoint is not None:
        facts.add_row("checkpoint", f"step {status.checkpoint}")
    if status.longest_gap is not None:
        gap, group = status.longest_gap
        facts.add_row("longest gap", f"{sentences.seconds(gap)} between two commits of a live group (group {group})")
    if status.excluded_nodes:
        facts.add_row("nodes left out", sentences.few(status.excluded_nodes, 8))
    for words in sentences.unfit(status):
        facts.add_row("", Text(words, "yellow"))
    if drained := sentences.drained(status):
        facts.add_row("drained nodes", sentences.few(drained, 8))
    for names, words in _failed_first(status):
        facts.add_row(names, Text(words, "red"))
    for words in status.cautions:
        facts.add_row("warning", Text(words, "yellow"))
    for words in sentences.hook_lines(with_hooks(status, run)):
        facts.add_row("hooks", Text(words, "yellow"))
    facts.add_row("logs", Text(str(run.logs)))
    parts: list[RenderableType] = [head, Text(), facts]
    if status.recoveries:
        parts += [Text(), _restarts(status)]
    timed = [r for r in status.recoveries if r.phases and r.seconds is not None]
    if timed:
        of = f" (medians of {len(timed)})" if len(timed) > 1 else ""
        parts.append(Text(f"recovery{of}: {sentences.phases(typical(timed))}"))
    signs = failures(status.groups)
    parts += [Text(), signs] if signs is not None else []
    following = list(filter(None, (_to_mend(status, run), next_command(status, run))))
    return Group(*parts, *([Text(), *map(Text, following)] if following else []))


def _failed_first(status: RunStatus) -> list[tuple[str, str]]:
    """Return the first errors of groups that have not succeeded, where a later one ended them, in the same way."""
    same: dict[str, list[GroupStatus]] = {}
    for g in status.groups if status.outcome == "failed" else ():
        if g.phase is not Phase.SUCCEEDED and g.first_error and g.first_log != g.last_log:
            same.setdefault(g.first_error, []).append(g)
    return [(_called(gs), f"failed first: {error}{_log(gs[0].first_log)}") for error, gs in same.items()]


def _called(groups: Sequence[GroupStatus]) -> str:
    if len(groups) == 1:
        return sentences.called(groups[0])
    return f"groups {sentences.few([str(g.group) for g in groups], 8)}"


def next_command(status: RunStatus, run: RunDir) -> str | None:
    """Return how a run that was stopped or has failed is continued; None: there is nothing to continue."""
    if status.outcome not in ("stopped", "failed", "lost"):
        return None
    command, code = f"continue with: ftslurm resume {shlex.quote(str(run.root))}", ""
    if _script_failed(status) and run.code.is_dir():
        command += " --new-code"
        code = "; with the code as it is now, without --new-code with the run's copy"
    if status.checkpoint is not None:
        return f"{command} (from the checkpoint of step {status.checkpoint}{code})"
    if (saved := _saved(run)) is not None and saved.damaged is None:
        what = "what its script finds in" if saved.step is None else f"the checkpoint of step {saved.step},"
        return f"{command} (from {what} {saved.path}{code})"
    return f"{command} --from-scratch (from step 0: it has saved no checkpoint{code})"


def _script_failed(status: RunStatus) -> bool:
    """Return whether a person will probably mend the script before the run is continued."""
    return status.outcome == "failed" and any(group.last_cause == "user_error" for group in status.groups)


def _to_mend(status: RunStatus, run: RunDir) -> str | None:
    """Return what a person mends: the script's arguments, or the script, if the traceback names the run's copy."""
    if not _script_failed(status):
        return None
    if any(_ARGUMENTS.search(group.last_error or "") for group in status.groups):
        return "mend: its arguments; resume takes job.args.NAME=VALUE for another value, '~job.args.NAME' for none"
    traces = [group.last_traceback or "" for group in status.groups if group.last_cause == "user_error"]
    try:
        code = record.read(run.root, own=False)
    except OSError:
        return None
    for path, line in reversed(_FRAME.findall("\n".join(traces[:1]))):
        roots = dict.fromkeys((str(run.root.absolute()), str(run.root.resolve())))
        for file in (record.original(path, root, code) for root in roots if code is not None):
            if file is not None:
                return f"mend: {visible(file)}, line {line} (the traceback names the run's copy)"
    return None


def _saved(run: RunDir) -> Saved | None:
    """Return what a run has saved that its journal does not tell of: the script's own files."""
    try:
        return newest_checkpoint(compose.load(run.config, own=False), run)
    except (FtslurmError, OSError):
        return None


def _log(path: str | None) -> str:
    return f" - log: {sentences.short_log(path)}" if path else ""


def failures(groups: Iterable[GroupStatus]) -> RenderableType | None:
    """Return why those of these groups are down that have failed; None: none has.

    An entry has the error of a group, what its signs and the end of its traceback say beyond that, and its log. Groups
    with the same failure share it.
    """
    same: dict[tuple[str | None, str | None], list[GroupStatus]] = {}
    for g in groups:
        if g.down or g.phase is Phase.FAILED:
            same.setdefault((g.last_cause, g.last_traceback or g.last_error), []).append(g)
    parts = []
    for alike in list(same.values())[:_FAILURES_SHOWN]:
        one = alike[0]
        error, trace = one.last_error or "given up", _end(one.last_traceback or "")
        exception = trace[-1].strip() if trace else error
        if trace:
            error = error.partition(f": {exception[:_ALIKE]}")[0]
        text = Text(f"{_called(alike)}: {error}", "red")
        lines = [f"- {sign}" for sign in one.last_evidence if exception[:_ALIKE] not in sign] + trace
        lines += [f"log: {sentences.short_log(one.last_log)}"] if one.last_log else []
        text.append("".join(f"\n  {line}" for line in lines), "default")
        parts.append(text)
    if len(same) > _FAILURES_SHOWN:
        parts.append(Text(f"and {len(same) - _FAILURES_SHOWN} failures of other kinds: see the journal", "dim"))
    return Group(*parts) if parts else None


def _end(traceback: str) -> list[str]:
    """Return the last lines of tracebacks; none whose heading, the name of its rank, is left out."""
    lines = traceback.rstrip().splitlines()
    end = lines[-_TRACEBACK_LINES:]
    headed = [n for n, line in enumerate(end) if _RANK.fullmatch(line)]
    return end[headed[0] :] if headed else end


def typical(recoveries: Sequence[Recovery]) -> dict[str, float | None]:
    """Return the seconds of each recovery phase, in order: the median of the recoveries that completed it."""
    took: dict[str, list[float]] = {}
    for recovery in recoveries:
        for name, seconds in (recovery.phases or {}).items():
            if seconds is not None:
                took.setdefault(name, []).append(seconds)
    order = [*(name for name in PHASES if name in took), *(name for name in took if name not in PHASES)]
    return {name: median(took[name]) for name in order}


def _restarts(status: RunStatus) -> Table:
    recoveries = status.recoveries
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("group", justify="right")
    table.add_column("attempt", justify="right")
    table.add_column("back after", justify="right", no_wrap=True)
    table.add_column("reason", overflow="fold")
    earlier = len(recoveries) - _RESTARTS_SHOWN
    if earlier > 0:
        table.add_row("...", "...", "...", f"{earlier} earlier restarts")
    for r in recoveries[-_RESTARTS_SHOWN:]:
        # Without a quorum, a group need not report anything when it is back.
        away = "not back" if r.seconds is None and status.lighthouse is not None else sentences.seconds(r.seconds)
        table.add_row(str(r.group), str(r.attempt), away, Text(r.detail))
    return table
