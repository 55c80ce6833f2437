"""report.html: the report as one page that needs nothing else, neither a server nor a network.

The page holds the report as JSON; page.js draws it. Whatever comes from the run is text in that JSON and nowhere else
but in the title, so no name and no output of a script can become markup; the page's policy lets only these two pieces
of script and style run.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from itertools import chain, pairwise
from pathlib import Path

from ftslurm.report import wording
from ftslurm.report.history import History
from ftslurm.report.report_json import ReportJson
from ftslurm.security.terminal import readable, visible

_FOLDER = Path(__file__).parent
_MOST_POINTS, _RATE_POINTS = 3000, 240


def page(history: History, report: ReportJson) -> str:
    """Return the text of report.html."""
    style, script = ((_FOLDER / name).read_text() for name in ("page.css", "page.js"))
    data = json.dumps(readable(_data(history, report)), separators=(",", ":"), allow_nan=False)
    values = {
        "@POLICY@": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'",
        "@TITLE@": html.escape(f"{visible(history.run_id)}: ftslurm report"),
        "@STYLE@": style,
        "@SCRIPT@": script,
        "@DATA@": data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
    }
    parts = (_FOLDER / "page.html").read_text().split("@")
    return "".join(values.get(f"@{part}@", part) if n % 2 else part for n, part in enumerate(parts))


def _hash(text: str) -> str:
    """Return the source expression of a Content-Security-Policy that allows exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data(history: History, report: ReportJson) -> dict[str, object]:
    spans = [span for group in history.groups for span in group.spans]
    phases, causes = sorted({span.phase for span in spans}), sorted({span.cause for span in spans})
    nodes = sorted({"", *(" ".join(span.nodes) for span in spans)})
    index = [{name: n for n, name in enumerate(names)} for names in (phases, causes, nodes)]
    rows = [
        {
            "group": group.group,
            "role": group.role,
            "spans": list(
                chain.from_iterable(
                    (
                        round(span.begin - history.begin, 3),
                        round(span.end - history.begin, 3),
                        index[0][span.phase],
                        index[1][span.cause],
                        index[2][" ".join(span.nodes)],
                        span.attempt,
                    )
                    for span in group.spans
                )
            ),
        }
        for group in history.groups
    ]
    return {
        "report": report,
        "words": {"causes": wording.CAUSES, "phases": wording.PHASES},
        "lanes": {"phases": phases, "causes": causes, "nodes": nodes, "rows": rows},
        "quorum": _thinned(
            [(time - history.begin, size) for time, size in history.quorum], history.end - history.begin
        ),
        "rate": _rate(history),
    }


def _thinned(points: list[tuple[float, int]], seconds: float) -> list[tuple[float, int]]:
    """Return at most _MOST_POINTS points: the lowest of each interval, so that no loss of a group disappears."""
    if len(points) <= _MOST_POINTS:
        return [(round(time, 2), size) for time, size in points]
    lowest: dict[int, tuple[float, int]] = {}
    for time, size in points:
        place = int(time / max(seconds, 1e-9) * _MOST_POINTS)
        if place not in lowest or size < lowest[place][1]:
            lowest[place] = round(time, 2), size
    return list(lowest.values())


def _rate(history: History) -> list[tuple[float, float]]:
    """Return (time, steps per second), a mean over intervals of the same length; a step back counts as none."""
    points = history.reached
    if len(points) < 2:
        return []
    first, last = points[0][0], points[-1][0]
    count = int(min(_RATE_POINTS, max(1.0, (last - first) / max(2.0, 3 * (history.typical_step_s or 0.0)))))
    wide = max((last - first) / count, 1e-3)
    taken = [0.0] * (count + 1)
    for (begin, before), (end, after) in pairwise(points):
        steps, time = max(0, after - before), begin
        while steps and time < end:  # spread the steps over the intervals that they took
            place = min(count - 1, int((time - first) / wide))
            until = min(end, first + (place + 1) * wide) if place < count - 1 else end
            until = until if until > time else end
            taken[place] += steps * (until - time) / (end - begin)
            time = until
    start = first - history.begin
    return [(round(start + (n + 0.5) * wide, 2), round(steps / wide, 4)) for n, steps in enumerate(taken[:count])]
