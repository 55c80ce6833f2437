"""The page of the metrics, from ftslurm/observer/metrics.py: `python docs/metrics.py`."""

from __future__ import annotations

from ftslurm.observer.metrics import METRICS, RECOVERY, RECOVERY_HELP

BEGIN = """\
# The metrics

What a run gives to Prometheus ([how](running.md#metrics)). Each metric has the label `run`, the run's id. Times are in
seconds, moments in unix seconds. Counters count over the whole run, whichever controller leads it.

| metric | type | further labels | meaning |
|---|---|---|---|
"""


def page() -> str:
    """Return the page."""
    rows = [(one.name, one.kind, ", ".join(f"`{label}`" for label in one.labels), one.help) for one in METRICS]
    rows.append((RECOVERY, "histogram", "", RECOVERY_HELP))
    return BEGIN + "".join(f"| `{name}` | {kind} | {labels} | {about} |\n" for name, kind, labels, about in rows)


if __name__ == "__main__":
    print(page(), end="")
