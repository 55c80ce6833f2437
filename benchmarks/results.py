"""What the benchmarks write: JSON, a Markdown table, a picture, and the conditions under which they were measured."""

from __future__ import annotations

import html
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ftslurm

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from cluster import PATH

FOLDER = Path(__file__).parent / "results"


def conditions() -> dict[str, object]:
    """Return where and when something is measured: machine, versions, and what else the machine does."""
    names = ("torch", *importlib.metadata.packages_distributions()["torchft"], "submitit")
    slurm = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, env={"PATH": PATH}, check=True)
    root = Path(__file__).parents[1]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True)
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cores": os.cpu_count(),
        "load_1m_5m_15m": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "slurm": slurm.stdout.split()[-1],
        "ftslurm": f"{ftslurm.__version__} {commit.stdout.strip()}".strip(),
        **{name: importlib.metadata.version(name) for name in names},
    }


def told(conditions: dict[str, Any]) -> str:
    """Return the conditions as one line."""
    load = "/".join(f"{value:g}" for value in conditions["load_1m_5m_15m"])
    rest = {name: value for name, value in conditions.items() if name not in ("date", "cores", "load_1m_5m_15m")}
    words = ", ".join(f"{name} {value}" for name, value in rest.items() if value)
    return f"{conditions['date']}, {conditions['cores']} cores, load average at the start {load}; {words}"


def save(path: Path, data: object) -> None:
    """Write JSON so that no reader and no interruption ever finds half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(data, indent=1) + "\n")
    part.replace(path)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are aligned right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Return the median, and the least and greatest of several values."""
    middle = f"{statistics.median(values):{form}}"
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}}-{max(values):{form}})"


@dataclass(frozen=True)
class Bar:
    """One bar of a picture: the median, with a line from the least to the greatest value."""

    label: str
    values: tuple[float, ...]  # empty: nothing was measured, and `note` says why
    note: str = ""
    ours: bool = False


def bars(title: str, subtitle: str, scale: float, rows: Sequence[Bar]) -> str:
    """Return an SVG with a horizontal bar for each row; the axis ends at `scale`."""
    left, width, height, top = 190, 430, 26, 58
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{top + height * len(rows) + 14}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="22" font-size="15" font-weight="bold">{html.escape(title)}</text>',
        f'<text x="12" y="42" fill="#555">{html.escape(subtitle)}</text>',
    ]
    for number, row in enumerate(rows):
        y = top + number * height
        out.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{html.escape(row.label)}</text>')
        if not row.values:
            out.append(f'<text x="{left}" y="{y + 14}" fill="#555">{html.escape(row.note)}</text>')
            continue
        low, middle, high = (
            left + width * min(1.0, max(0.0, value) / scale)
            for value in (min(row.values), statistics.median(row.values), max(row.values))
        )
        out.append(
            f'<rect x="{left}" y="{y + 2}" width="{middle - left:.1f}" height="{height - 9}" '
            f'fill="{"#2a7a4b" if row.ours else "#8a9aa8"}"/>'
            f'<path d="M{low:.1f} {y + 10}H{high:.1f}" stroke="black"/>'
            f'<text x="{max(middle, high) + 6:.1f}" y="{y + 14}">{statistics.median(row.values):.2f} '
            f"{html.escape(row.note)}</text>"
        )
    return "\n".join([*out, "</svg>"]) + "\n"
