"""The table and the picture of recovery.py, from its JSON."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from recovery_arms import Fault
from results import Bar, bars, spread, table, told

LONGEST_BAR_S = 10.0  # so that one arm of a minute does not make all others dots
Rows = list[dict[str, Any]]
HEADER = (
    "",
    "n",
    "back, s",
    "x bare start",
    "the others' pause, s",
    "others restarted",
    "steps undone",
    "not overcome",
)


def write(path: Path, data: dict[str, Any]) -> None:
    """Write the Markdown and the picture beside the JSON file."""
    path.with_suffix(".md").write_text(markdown(data))
    path.with_suffix(".svg").write_text(picture(data))


def markdown(data: dict[str, Any]) -> str:
    """Return all tables with their conditions."""
    bare = _values(_of(data, "bare", Fault.ONE), "back_s")
    four = _values(_of(data, "bare", Fault.FOUR), "back_s")
    plan = data["plan"]
    out = [
        "# How long a failure lasts, and what the others lose",
        f"Medians (least-greatest). {plan['groups']} replicas of one process, steps that sleep {plan['step_s']} s. "
        f"Back: from the kill to the first step that the last killed replica commits. {_load(data)}",
        told(data["conditions"]) + ".",
    ]
    for values, compared in (
        (bare, "one at a time"),
        (four, "four at once, to which four killed at once are compared"),
    ):
        if values:
            shown = f"{spread(values)} s (n={len(values)})"
            out.append(f"A bare start, from `python training.py` to its first committed step, {compared}: {shown}.")
    for fault in Fault:
        rows = {arm: _of(data, arm, fault) for arm in data["arms"]}
        alone = four if fault is Fault.FOUR else bare
        lines = [_line(arm, found, statistics.median(alone) if alone else None) for arm, found in rows.items() if found]
        if lines:
            out += [f"## {fault.told[0].upper() + fault.told[1:]}", table(HEADER, lines) + _notes(rows)]
    out.append("## The contenders, and what differs from their published form")
    for arm, facts in data["arms"].items():
        versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
        about = [f"**{arm}**: {facts['what']}{f' ({versions})' if versions else ''}."]
        about += [f"Not run: {facts['missing']}."] if facts["missing"] else []
        out.append("\n".join([*about, *(f"- {line}" for line in facts["adaptations"])]))
    return "\n\n".join(out) + "\n"


def picture(data: dict[str, Any]) -> str:
    """Return the picture: one replica killed, its way back and the others' pause in each arm."""
    found: list[Bar] = []
    for arm in data["arms"]:
        rows = _of(data, arm, Fault.ONE)
        ours = not data["arms"][arm]["contender"]
        if rows or data["arms"][arm]["missing"]:
            note = data["arms"][arm]["missing"] or "not back"
            for label, key in ((f"{arm}: back", "back_s"), ("the others' pause", "pause_s")):
                values = tuple(_values(rows, key))
                cut = ", bar cut" if values and statistics.median(values) > LONGEST_BAR_S else ""
                found.append(Bar(label, values, f"s{cut}" if rows else note, ours))
    scale = min(LONGEST_BAR_S, max((value for bar in found for value in bar.values), default=1.0))
    return bars("One replica is killed", "seconds, medians; lines from the least to the greatest", scale, found)


def _of(data: dict[str, Any], arm: str, fault: Fault) -> Rows:
    return [row for row in data["rows"] if row["arm"] == arm and row["fault"] == fault.value]


def _values(rows: Rows, key: str) -> list[float]:
    return [row[key] for row in rows if row[key] is not None]


def _line(arm: str, rows: Rows, bare: float | None) -> list[str]:
    back, lost = _values(rows, "back_s"), sum(bool(row["note"]) for row in rows)
    whole = [
        f"{statistics.median(values):g}" if (values := _values(rows, key)) else "-" for key in ("restarted", "undone")
    ]
    return [
        arm,
        str(len(rows)),
        spread(back) if back else "-",
        f"{statistics.median(back) / bare:.2f}" if back and bare else "-",
        spread(pauses) if (pauses := _values(rows, "pause_s")) else "-",
        *whole,
        f"{lost} of {len(rows)}" if lost else "",
    ]


def _notes(rows: dict[str, Rows]) -> str:
    """Return how faults were not overcome, each way once."""
    said = {
        f"- {arm}: {row['note'].splitlines()[0]}": None for arm, found in rows.items() for row in found if row["note"]
    }
    return "\n" + "\n".join(said) + "\n" if said else ""


def _load(data: dict[str, Any]) -> str:
    loads = [row["load"] for row in data["rows"]]
    return f"Load average during the measurements: {spread(loads, '.1f')}." if loads else ""
