"""The base class of callbacks: `ftslurm.RunCallback`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ftslurm.protocol import occurrences


@dataclass(frozen=True)
class ObservedRun:
    """The run that a callback is called for."""

    id: str
    dir: Path


class RunCallback:
    """Told what happens in a run; a class of yours overrides what it wants to know (hooks.callbacks=[module.Class]).

    One object is made for a run, without arguments, in a process of its own beside the controller. Its methods are
    called one after the other, in the order of the events. One that raises or takes longer than ten seconds is told
    no more of that event; after a time-out the process is killed and a new object is made.
    """

    run: ObservedRun  # set before the first call

    def on_event(self, occurrence: occurrences.Occurrence, text: str) -> None:
        """Called for every occurrence, before its own method; `text` is the line that `ftslurm status` shows."""

    def on_run_started(self, begins: occurrences.RunBegins) -> None:
        """The run starts, or goes on in its next Slurm job."""

    def on_run_requeued(self, pauses: occurrences.RunPauses) -> None:
        """The run stops here and goes on in another Slurm job."""

    def on_run_finished(self, ends: occurrences.RunEnds) -> None:
        """The run is over."""

    def on_group_starting(self, starting: occurrences.GroupStarting) -> None:
        """An attempt of a group is launched."""

    def on_group_started(self, started: occurrences.GroupStarted) -> None:
        """All workers of an attempt are up."""

    def on_group_restarted(self, restarted: occurrences.GroupRestarted) -> None:
        """A group that failed, or had to move, is back at work."""

    def on_group_failed(self, failed: occurrences.GroupFailed) -> None:
        """An attempt of a group has failed."""

    def on_group_shut_down(self, shut_down: occurrences.GroupShutDown) -> None:
        """An attempt of a group has ended in order."""

    def on_group_given_up(self, given_up: occurrences.GroupGivenUp) -> None:
        """A group gets no further attempt."""

    def on_replicas_differ(self, differ: occurrences.GroupsDiffer) -> None:
        """Groups have other weights than each other, and no majority shows which are wrong."""

    def on_full_restart(self, restart: occurrences.AllRestart) -> None:
        """All groups start again from a checkpoint."""

    def on_checkpoint_saved(self, saved: occurrences.SavedCheckpoint) -> None:
        """A checkpoint is complete."""

    def on_node_excluded(self, left_out: occurrences.NodeLeftOut) -> None:
        """No further step is placed on a node."""

    def on_warning(self, caution: occurrences.Caution) -> None:
        """There is something that the user should know."""
