"""The time-outs of a run in order, and which of them contradict each other.

Each layer mends what the layers below it cannot. A lower one whose time-out is longer, or a higher one whose time-out
is shorter, ends what the other would have mended. Most follow from job.longest_step_s and health.lost_after_s, and
cannot contradict each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ftslurm.config.process_groups import HEARTBEAT, HEARTBEAT_S, nccl_variables, uses_nccl
from ftslurm.config.schema import AUTO, Config
from ftslurm.config.typed_values import written

WATCHDOG_S = 600.0  # torch's default for collectives of NCCL: init_process_group(timeout=...)
STEP, LOST = "from job.longest_step_s", "from health.lost_after_s"
# Which rung must be longer than which, else what: the run takes longer, or more than needed is restarted.
_KILLED = "torch would kill the worker before torchft gives the collective up"
ORDERS = (
    ("hang", "torchft", "a group would be restarted for a collective that torchft ends by itself"),
    ("watchdog", "torchft", _KILLED),
    ("monitor", "torchft", _KILLED),
    ("watchdog", "hang", "torch would kill the ranks that wait before it is known which one hangs"),
    ("kill_wait", "grace", "Slurm would kill scripts of a job that it ends before their time is over"),
    ("signal", "ending", "no time would be left to save a checkpoint before the job ends"),
)


class Rung(NamedTuple):
    """One time-out: the setting that it is or follows from, or what it is called elsewhere."""

    name: str
    seconds: float
    ends: str  # what happens after it; empty: it is no time-out of its own


def rungs(config: Config, kill_wait_s: float | None = None) -> list[Rung]:
    """Return the time-outs of a run, shortest first."""
    found = _named(config, kill_wait_s).values()
    return sorted((rung for rung in found if rung.ends), key=lambda rung: rung.seconds)


def contradictions(config: Config, kill_wait_s: float | None = None) -> Iterator[str]:
    """Yield lines about two time-outs in the wrong order."""
    found = _named(config, kill_wait_s)
    for high, low, why in ORDERS:
        if high in found and low in found and found[high].seconds <= found[low].seconds:
            upper, lower = (f"{name} ({seconds:g} s)" for name, seconds, _ in (found[high], found[low]))
            yield f"{upper} must be longer than {lower}, else {why}"


def _named(config: Config, kill_wait_s: float | None) -> dict[str, Rung]:
    lost_s, timeout_s, hang_s = config.health.lost_after_s, config.torchft.timeout_s, config.health.hang_after_s
    grace_s, signal_s = config.stop.grace_s, config.cluster.signal_s
    found = {
        "lost": Rung(f"health.lost_after_s={lost_s:g}", lost_s, "its node is lost"),
        "torchft": Rung(f"torchft.timeout_s={timeout_s}", timeout_s, "torchft gives up a collective"),
        "quorum": Rung(f"quorum, {STEP}", config.quorum_timeout_s, "a group that has found no quorum ends"),
        "orphan": Rung(f"orphan, {LOST}", config.orphan_after_s, "a worker without a controller ends itself"),
        "join": Rung(f"join, {STEP}", config.join_timeout_s, "a group that commits no step is launched again"),
        "grace": Rung(f"stop.grace_s={grace_s:g}", grace_s, "scripts that were asked to end are killed"),
    }
    if hang_s:
        limit_s, least = (config.hang_least_s, ", at least") if hang_s == AUTO else (hang_s, "")
        name = f"health.hang_after_s={written(hang_s)}{least}"
        found["hang"] = Rung(name, limit_s, "a group that stands still restarts")
    if config.lighthouse.kind != "none":
        found["silent"] = Rung(f"silent, {LOST}", config.silent_after_s, "a quorum forms without a silent group")
        found["late"] = Rung(f"late, {STEP}", config.late_after_s, "a quorum forms without a late group")
    if uses_nccl(config):
        told = nccl_variables(config)[HEARTBEAT]
        monitor_s = float(told) if told.isdecimal() else HEARTBEAT_S  # torch, too, refuses what is no number
        found["monitor"] = Rung(f"{HEARTBEAT}={monitor_s:g}", monitor_s, "torch kills a worker whose watchdog is stuck")
        found["watchdog"] = Rung("NCCL's watchdog", WATCHDOG_S, "torch kills a worker in a collective of its group")
    if config.cluster.kind != "local":
        found["signal"] = Rung(f"cluster.signal_s={signal_s}", signal_s, "before the time limit: save")
    if config.cluster.kind != "local" and kill_wait_s is not None:
        found["kill_wait"] = Rung("Slurm's KillWait", kill_wait_s, "Slurm kills the steps of a job that it ends")
        found["ending"] = Rung("stop.grace_s and Slurm's KillWait", grace_s + kill_wait_s, "")
    return found
