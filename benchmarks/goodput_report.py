"""The table and the picture of goodput.py, from its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contenders.all import ALL
from goodput_measures import quantile
from results import Bar, bars, spread, table, told

HEADER = (
    "contender",
    "goodput",
    "step efficiency",
    "participation",
    "steps undone",
    "recovery p50 / p95, s",
    "longest pause, s",
    "kills (skipped)",
    "not back",
    "Slurm calls a min",
    "jobs submitted",
    "undisturbed steps/s",
    "load average",
)


def write(path: Path, data: dict[str, Any]) -> None:
    """Write the table and the picture beside the JSON file, in the order of contenders.all."""
    known = data["contenders"]
    data = data | {"contenders": {name: known[name] for name in sorted(known, key=[*ALL].index)}}
    path.with_suffix(".md").write_text(markdown(data))
    plan = data["plan"]
    rows = [_bar(name, facts, _of(data, name)) for name, facts in data["contenders"].items()]
    title = f"Goodput, {plan['groups']} replicas, a SIGKILL every {plan['mean_s']:g} s (mean)"
    path.with_suffix(".svg").write_text(bars(title, "samples that count, by those of the undisturbed time", 1.0, rows))


def markdown(data: dict[str, Any]) -> str:
    """Return the table, the conditions and all adaptations."""
    plan = data["plan"]
    text = [
        f"{plan['groups']} replicas of one process, steps of {plan['step_s']:g} s and more; SIGKILL of a random one "
        f"every {plan['mean_s']:g} s (mean, Poisson, seed {plan['seed']}); {plan['minutes']:g} minutes for each "
        f"contender in {plan['blocks']} interleaved blocks, {plan['quiet_s']:g} s undisturbed before each. Median "
        f"(least-greatest) of the blocks. Plain jobs save a checkpoint every {plan['checkpoint_every']} steps.",
        told(data["conditions"]),
        table(HEADER, [_row(name, _of(data, name)) for name in data["contenders"] if _of(data, name)]),
        *_notes(data),
        *_other_code(data),
        *_adaptations(data),
    ]
    return "\n\n".join(line.strip() for line in text) + "\n"


def _of(data: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [block for block in data["blocks"] if block["contender"] == name and block["measures"]]


def _row(name: str, blocks: Sequence[dict[str, Any]]) -> list[str]:
    measures = [block["measures"] for block in blocks]
    back = [seconds for m in measures for seconds in m["recoveries_s"]]
    shares = [m["participation"] for m in measures if m["participation"] is not None]
    minutes = sum(m["seconds"] for m in measures) / 60
    calls = sum(sum(block["calls"].values()) for block in blocks)
    return [
        name,
        spread([m["goodput"] for m in measures]),
        spread([m["step_efficiency"] for m in measures]),
        spread(shares, ".3f") if shares else "-",
        str(sum(m["undone_steps"] for m in measures)),
        f"{quantile(back, 0.5):.1f} / {quantile(back, 0.95):.1f}" if back else "-",
        f"{max(m['longest_pause_s'] for m in measures):.1f}",
        f"{sum(m['kills'] for m in measures)} ({sum(block['skipped'] for block in blocks)})",
        str(sum(m["not_back"] for m in measures)),
        f"{calls / minutes:.1f}",
        str(sum(block["jobs"] for block in blocks)),
        spread([m["quiet_steps_per_s"] for m in measures]),
        spread([load for block in blocks for load in block["load"]], ".0f"),
    ]


def _notes(data: dict[str, Any]) -> list[str]:
    """Return what did not run or did not last, as a list."""
    lines = [f"- {n}: not run: {facts['missing']}" for n, facts in data["contenders"].items() if facts["missing"]]
    for block in data["blocks"]:
        if block["note"]:
            lines.append(f"- {block['contender']}, block {block['block'] + 1}: {' '.join(block['note'].split())[:300]}")
    return ["Not run, or not to the end:", "\n".join(lines)] if lines else []


def _other_code(data: dict[str, Any]) -> list[str]:
    """Return which blocks were measured with another commit than the first one."""
    first = data["conditions"]["ftslurm"]
    lines = [
        f"- {block['contender']}, block {block['block'] + 1}: ftslurm {code}"
        for block in data["blocks"]
        if (code := block.get("code", first)) != first
    ]
    return ["Measured later, with another commit:", "\n".join(lines)] if lines else []


def _adaptations(data: dict[str, Any]) -> list[str]:
    lines = []
    for name, facts in data["contenders"].items():
        versions = ", ".join(f"{package} {version}" for package, version in facts["versions"].items())
        lines.append(f"- **{name}**: {facts['what']}" + (f" ({versions})" if versions else ""))
        lines += [f"  - {line}" for line in facts["adaptations"]]
    return ["What each is, and what differs from its published form:", "\n".join(lines)]


def _bar(name: str, facts: dict[str, Any], blocks: Sequence[dict[str, Any]]) -> Bar:
    if not blocks:
        return Bar(name, (), "not run" if facts["missing"] else "did not train")
    note = "ended early" if any(block["note"] for block in blocks) else ""
    return Bar(name, tuple(block["measures"]["goodput"] for block in blocks), note, name.startswith("ftslurm"))
