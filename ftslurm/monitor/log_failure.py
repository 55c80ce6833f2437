"""`ftslurm logs --failure`: the evidence of the last failure, from the journal and the logs of that attempt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ftslurm.core.groups.verdict import describe
from ftslurm.monitor import stack_text
from ftslurm.monitor.log_files import LogFile, Wanted
from ftslurm.monitor.log_page import Page, View, clock
from ftslurm.protocol.causes import is_failure
from ftslurm.protocol.records import CauseCorrected, StepExited
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import JournalReader, number
from ftslurm.run.journal_lines import read
from ftslurm.run.last_words import end_of
from ftslurm.run.log_noise import is_noise
from ftslurm.security.terminal import visible

LINES = 20  # lines of the log that are shown without --tail
_READ = 1 << 18  # bytes of a log that are searched
_MOST_STACKS = 200  # lines
_MOST_SAID = 10  # lines of srun


class Failure(NamedTuple):
    """A step that has failed, and when."""

    time: float
    step: StepExited


def last_failure(run: RunDir, wanted: Wanted, since: float = 0.0) -> Failure | None:
    """Return the last failure of the run, or of the wanted group and attempt; None: there is none since that time."""
    found = list[Failure]()
    for event in JournalReader(run.events).iter_new():
        record = read(event)
        if isinstance(record, CauseCorrected):  # it was none
            found = [one for one in found if (one.step.group, one.step.attempt) != (record.group, record.attempt)]
        if not isinstance(record, StepExited) or not is_failure(record.cause):
            continue
        if wanted.group in (None, record.group) and wanted.attempt in (None, record.attempt):
            found.append(Failure(number(event, "time") or 0.0, record))
    return found[-1] if found and found[-1].time >= since else None


def show_failure(run: RunDir, wanted: Wanted, failure: Failure, out: BinaryIO, view: View) -> int:
    """Print what is known about a failure. Return how many lines of known noise are left out.

    Args:
        view: its `tail` is how many lines of the log are printed; None: LINES, and all of the stacks at its end.
    """
    step = failure.step
    log = run.rank_log(step.unit, step.attempt, (step.rank or 0) if wanted.rank is None else wanted.rank)
    who = step.unit if step.group is None else f"group {step.group}"
    _print(
        out,
        f"{clock(failure.time)} {who} attempt {step.attempt} died: {describe(step)}",
        step.evidence[1:] and step.evidence,
    )
    page = Page(out, view, labels=False)
    _show_log(log, stack_text.told_lines(step.traceback or ""), page, failure.time)
    said = [line for line in _end(run.step_log(step.unit, step.attempt)) if view.raw or not is_noise(line.encode())]
    if said:
        _print(out, "\nwhat the launcher and the guards said:", said[-_MOST_SAID:])
    return page.left_out


def _show_log(log: Path, trace: Sequence[str], page: Page, when: float) -> None:
    """Print the traceback, unless the log's last lines have it, and the end of the log or its stacks."""
    out, view, end = page.out, page.view, _end(log)
    if trace and not any(trace[-1] in line for line in end[-LINES:]):
        _print(out, "\nthe end of the traceback:", trace)
    if not log.is_file():
        _print(out, f"\nthere is no {log}")
        return
    stacks = stack_text.last_stacks("\n".join(end))
    lines = len(stacks.splitlines())
    if 0 < lines <= _MOST_STACKS and not view.raw and view.tail is None:
        _print(out, f"\nat the end of {log} (--raw prints all of it):", stack_text.users_first(stacks))
        return
    _print(out, f"\nthe end of {log}:")
    tail = max(LINES, min(_MOST_STACKS, lines)) if view.tail is None else view.tail
    shown = page.pick(end_of(log, _READ))
    page.write(LogFile(log, log.stem), when, shown[max(0, len(shown) - tail) :])


def _print(out: BinaryIO, heading: str, lines: Sequence[str] = ()) -> None:
    text = "\n".join([heading, *(f"  {visible(line)}" for line in lines)])
    out.write(visible(text, lines=True).encode() + b"\n")


def _end(log: Path) -> list[str]:
    """Return the last lines of a log; none if it cannot be read."""
    return end_of(log, _READ).decode(errors="replace").splitlines()
