"""Tells which process logs a step: `from ftslurm.tracking import StepMetrics, is_leader`. See docs/trackers.md."""

from ftslurm.tracking.leader import is_leader
from ftslurm.tracking.step_metrics import StepMetrics

__all__ = ["StepMetrics", "is_leader"]
