"""The base class of callbacks: `ftslurm.RunCallback`."""

from __future__ import annotations

from pathlib import Path

from ftslurm.protocol import records
from ftslurm.protocol.value_class import Value


class ObservedRun(Value):
    """The run that a callback is called for."""

    id: str
    dir: Path


class RunCallback:
    """Told what happens in a run; a class of yours overrides what it wants to know (hooks.callbacks=[module.Class]).

    One object is made for a run, without arguments, in a process of its own beside the controller. Its methods are
    called one after the other, in the order of the events, with the record of the journal (ftslurm.protocol.records).
    One that raises or takes longer than ten seconds is told no more of that event; after a time-out the process is
    killed and a new object is made.
    """

    run: ObservedRun  # set before the first call

    def on_event(self, kind: str, record: records.JournalRecord, text: str) -> None:
        """Called for every event, before its own method `on_KIND`; `text` is its line in `ftslurm events`."""

    def on_run_started(self, started: records.RunStarted) -> None:
        """The run starts, or goes on in its next Slurm job."""

    def on_run_requeued(self, requeued: records.RunRequeued) -> None:
        """The run stops here and goes on in another Slurm job."""

    def on_run_finished(self, finished: records.RunFinished) -> None:
        """The run is over."""

    def on_group_starting(self, launched: records.StepLaunched) -> None:
        """An attempt of a group is launched."""

    def on_group_started(self, started: records.StepLaunched | records.StepReady) -> None:
        """All workers of an attempt are up."""

    def on_group_restarted(self, restarted: records.GroupJoined | records.Serving | records.SessionOpened) -> None:
        """A group that failed, or had to move, is back at work."""

    def on_group_failed(self, failed: records.StepExited) -> None:
        """An attempt of a group has failed."""

    def on_group_shut_down(self, shut_down: records.StepExited) -> None:
        """An attempt of a group has ended in order."""

    def on_group_given_up(self, given_up: records.GroupGivenUp) -> None:
        """A group gets no further attempt."""

    def on_full_restart(self, restart: records.FullRestart) -> None:
        """All groups start again from a checkpoint."""

    def on_checkpoint_saved(self, saved: records.CheckpointSaved) -> None:
        """A checkpoint is complete."""

    def on_node_excluded(self, excluded: records.NodeExcluded | records.NodeCheckFailed) -> None:
        """No further step is placed on a node."""

    def on_replicas_differ(self, differ: records.ReplicasDiffer) -> None:
        """Groups have other weights than each other, and no majority shows which are wrong."""

    def on_group_slow(self, slow: records.GroupSlow) -> None:
        """A group makes the others wait in each step."""

    def on_warning(self, warned: records.Warned) -> None:
        """There is something that the user should know."""
