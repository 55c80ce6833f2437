"""The time-outs of a run in order: each layer mends what those below it, whose time-outs are shorter, cannot."""

from __future__ import annotations

from typing import NamedTuple

from ftslurm.config.process_groups import HEARTBEAT, HEARTBEAT_S, nccl_variables
from ftslurm.config.schema import AUTO, Config
from ftslurm.config.typed_values import written

WATCHDOG_S = 600.0  # torch's default for collectives of NCCL: init_process_group(timeout=...)
STEP, LOST = "from job.longest_step_s", "from health.lost_after_s"


class Rung(NamedTuple):
    """One time-out: the setting that it is or follows from, or what it is called elsewhere."""

    name: str
    seconds: float
    ends: str  # what happens after it


def rungs(config: Config, kill_wait_s: float | None = None) -> list[Rung]:
    """Return the time-outs of a run, shortest first.

    Args:
        kill_wait_s: Slurm's KillWait; None: not known.
    """
    lost_s, timeout_s, hang_s = config.health.lost_after_s, config.torchft.timeout_s, config.health.hang_after_s
    grace_s, signal_s = config.stop.grace_s, config.cluster.signal_s
    found = [
        Rung(f"health.lost_after_s={lost_s:g}", lost_s, "its node is lost"),
        Rung(f"torchft.timeout_s={timeout_s}", timeout_s, "torchft gives up a collective"),
        Rung(f"quorum, {STEP}", config.quorum_timeout_s, "a group that has found no quorum ends"),
        Rung(f"orphan, {LOST}", config.orphan_after_s, "a worker without a controller ends itself"),
        Rung(f"join, {STEP}", config.join_timeout_s, "a group that commits no step is launched again"),
        Rung(f"stop.grace_s={grace_s:g}", grace_s, "scripts that were asked to end are killed"),
    ]
    if hang_s:
        limit_s, least = (config.hang_least_s, ", at least") if hang_s == AUTO else (hang_s, "")
        found.append(
            Rung(f"health.hang_after_s={written(hang_s)}{least}", limit_s, "a group that stands still restarts")
        )
    if not config.independent:
        found.append(Rung(f"silent, {LOST}", config.silent_after_s, "a quorum forms without a silent group"))
        found.append(Rung(f"late, {STEP}", config.late_after_s, "a quorum forms without a late group"))
    if config.groups.gpus:  # then workers may use NCCL
        told = nccl_variables(config)[HEARTBEAT]
        monitor_s = float(told) if told.isdecimal() else HEARTBEAT_S  # torch, too, refuses what is no number
        found.append(Rung(f"{HEARTBEAT}={monitor_s:g}", monitor_s, "torch kills a worker whose watchdog is stuck"))
        found.append(Rung("NCCL's watchdog", WATCHDOG_S, "torch kills a worker in a collective of its group"))
    if not config.local:
        found.append(Rung(f"cluster.signal_s={signal_s}", signal_s, "before the time limit: save"))
        if kill_wait_s is not None:
            found.append(Rung("Slurm's KillWait", kill_wait_s, "Slurm kills the steps of a job that it ends"))
    return sorted(found, key=lambda rung: rung.seconds)
