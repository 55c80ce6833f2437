"""The metrics of a run for Prometheus, made from its status. docs/metrics.py makes a page of METRICS."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ftslurm.core.state.model import Phase
from ftslurm.monitor.status import GroupStatus, RunStatus, aged
from ftslurm.protocol.value_class import Value

OUTCOMES = ("running", "succeeded", "failed", "stopped", "lost")
BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)  # of recoveries
Sample = tuple[tuple[str, ...], float]  # values of the labels, and the value


class Described(Value):
    """One metric: all have the label `run`, the run's id, in front of these labels."""

    name: str
    help: str
    value: Callable[[RunStatus], float | Iterable[Sample] | None]  # None: it is not known now
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Return its type; the name tells it, by Prometheus's conventions."""
        return "counter" if self.name.endswith("_total") else "gauge"


def _of_groups(name: str, help_: str, value: Callable[[GroupStatus], float | None]) -> Described:
    """Return a metric of each group for which its value is known."""

    def samples(status: RunStatus) -> Iterator[Sample]:
        return (((str(g.group),), found) for g in status.groups if (found := value(g)) is not None)

    return Described(name, help_, samples, ("group",))


def _counted(counts: Mapping[str, int]) -> Iterator[Sample]:
    return (((name,), count) for name, count in counts.items())


def _deliveries(status: RunStatus) -> Iterator[Sample]:
    for one in status.hooks:
        for result, count in (("done", one.done - one.failed), ("failed", one.failed), ("dropped", one.dropped)):
            yield (one.name, result), count


METRICS = (
    Described(
        "ftslurm_run_info",
        "The run; always 1.",
        lambda s: [((s.name, s.job_id or "", s.mode), 1)],
        ("name", "job_id", "mode"),
    ),
    Described(
        "ftslurm_run_outcome",
        "1 for the present outcome: running, succeeded, failed, stopped or lost (no controller); 0 for the others.",
        lambda s: _counted({outcome: int(s.outcome == outcome) for outcome in OUTCOMES}),
        ("outcome",),
    ),
    Described("ftslurm_run_start_timestamp_seconds", "When the run started.", lambda s: s.started),
    Described("ftslurm_journal_timestamp_seconds", "Time of the journal's last line.", lambda s: s.updated),
    Described("ftslurm_training_step", "The last committed step; a full restart sets it back.", lambda s: s.step),
    Described("ftslurm_training_steps_per_second", "Median of the groups, over 10 s.", lambda s: s.steps_per_s or 0.0),
    Described("ftslurm_checkpoint_step", "Step of the newest checkpoint.", lambda s: s.checkpoint),
    Described(
        "ftslurm_groups",
        "Number of replica groups in each phase.",
        lambda s: _counted({p.name.lower(): sum(g.phase is p for g in s.groups) for p in Phase}),
        ("phase",),
    ),
    Described("ftslurm_groups_stepping", "Number of replica groups that commit steps.", lambda s: s.at_work),
    _of_groups("ftslurm_group_step", "The last step that a group has committed.", lambda g: g.step),
    _of_groups("ftslurm_group_stepping", "1 if a group commits steps, else 0.", lambda g: int(g.stepping)),
    _of_groups(
        "ftslurm_group_slow_ratio",
        "Its own part of a step, by that of the others; only of groups that make the others wait.",
        lambda g: g.slow,
    ),
    _of_groups("ftslurm_group_restarts_total", "Restarts of a group.", lambda g: g.restarts),
    Described(
        "ftslurm_restarts_total",
        "Restarts of groups, by the cause of the failure, as in step_exited of the journal.",
        lambda s: _counted(Counter(r.cause for r in s.recoveries)),
        ("cause",),
    ),
    Described("ftslurm_full_restarts_total", "Restarts of all groups.", lambda s: s.full_restarts),
    Described("ftslurm_nodes_excluded", "Nodes that get no step for now.", lambda s: len(s.excluded_nodes)),
    Described("ftslurm_nodes_drained", "Nodes that a user or Slurm drains.", lambda s: len(s.drained_nodes)),
    Described(
        "ftslurm_hook_events_total",
        "Events of each hook and callback, and outputs of metrics: done, failed or dropped.",
        _deliveries,
        ("receiver", "result"),
    ),
)
RECOVERY = "ftslurm_recovery_seconds"
RECOVERY_HELP = "Time from the death of a group to its first committed step afterwards."


class RunCollector(Collector):
    """Makes the metrics of a status, as of now."""

    def __init__(self, run_id: str, status: RunStatus, now: float | None = None) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # of a histogram that is made each time
        self._run_id, self._status = run_id, aged(status, time.time() if now is None else now)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with their samples."""
        for one in METRICS:
            family = CounterMetricFamily if one.kind == "counter" else GaugeMetricFamily
            metric = family(one.name, one.help, labels=["run", *one.labels])
            found = one.value(self._status)
            samples = found if isinstance(found, Iterable) else [] if found is None else [((), found)]
            for labels, value in samples:
                metric.add_metric([self._run_id, *labels], value)
            yield metric
        yield from self._recoveries()

    def _recoveries(self) -> Iterable[Metric]:
        histogram = Histogram(RECOVERY, RECOVERY_HELP, ["run"], registry=None, buckets=BUCKETS_S)
        mine = histogram.labels(self._run_id)
        for one in self._status.recoveries:
            if one.seconds is not None:
                mine.observe(one.seconds)
        return histogram.collect()
