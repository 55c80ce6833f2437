"""Tells which process logs a step: `from ftslurm.tracking import StepMetrics, is_leader`. See docs/trackers.md."""

from ftslurm.tracking.step_metrics import StepMetrics, is_leader

__all__ = ["StepMetrics", "is_leader"]
