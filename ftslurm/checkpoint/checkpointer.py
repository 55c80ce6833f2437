"""Saves and restores one replica group's part of a training. See docs/checkpoints.md.

checkpointer = Checkpointer(manager, {"model": model, "optimizer": optimizer})
checkpointer.restore()  # before the loop, on every rank
while manager.current_step() < steps:
    ...
    optimizer.step()
    checkpointer.step()  # after every step, committed or not, on every rank
checkpointer.close()

At each step one group saves: the one whose participating rank is 0. `step()` copies the state to host memory and
returns; a thread writes the copy. All ranks of the group decide together (consensus.py), so a rank that fails makes the
save fail on all of them and blocks none. A failed save is reported and never stops the training.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.consensus import AgreedStep, GroupFailed, RankGroup, describe
from ftslurm.checkpoint.data_offsets import DataPositions, say
from ftslurm.checkpoint.devices import on_this_device
from ftslurm.checkpoint.layout import Writer
from ftslurm.checkpoint.store import Candidate, FolderStore
from ftslurm.config.store_url import is_url, plain
from ftslurm.errors import FtslurmError
from ftslurm.protocol import messages, outbox
from ftslurm.words import rest

if TYPE_CHECKING:
    from ftslurm.checkpoint import snapshot
    from ftslurm.checkpoint.object_store import ObjectStore

__all__ = ["CheckpointError", "Checkpointer", "Manager", "Stateful"]

OWN = "torchft"  # the entry of the manager's state, and of what was registered with the manager
SAME_AS_GIVEN = ("default", "set_state_dict_fns")  # the keys under which torchft registers the script's own state
MOST_LISTED = 5  # unusable checkpoints that a message lists
TRIM_EVERY = 1000  # steps between trims of the positions in the data when `every` is 0
_INSTANCES = itertools.count()  # numbers the checkpointers of this process


class CheckpointError(FtslurmError):
    """An argument is invalid, no checkpoint can be used, or one holds other names than the script restores."""


class Stateful(Protocol):
    """A module, an optimizer, a scheduler, a data loader: anything with a state that can be read and set."""

    def state_dict(self) -> Any:
        """Return the state; tensors in it may be the live ones."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Set the state."""


class Manager(Stateful, Protocol):
    """The part of torchft.Manager that Checkpointer uses."""

    def current_step(self) -> int:
        """Return the number of committed steps."""

    def num_participants(self) -> int:
        """Return the number of groups in the present quorum, 0 before the first one."""

    def participating_rank(self) -> int | None:
        """Return this group's rank among the participants, None for a group that heals or is a spare."""


class Checkpointer:
    """Saves and restores the state of one rank. Every rank of every group makes one."""

    def __init__(
        self,
        manager: Manager,
        state: Mapping[str, Stateful] | None = None,
        data: Stateful | None = None,
        *,
        dir: str | os.PathLike[str] | None = None,
        every: int | None = None,
        keep: int | None = None,
    ) -> None:
        """Prepare to save and restore. In a group of several ranks, initialise torch.distributed first.

        Args:
            manager: torchft's. Its step and batches_committed are saved, and state registered with it beyond the
                script's own, as DiLoCo does.
            state: what to save, by name; the same in all groups. Default: what the script registered with the
                manager, which is what heals other groups.
            data: this rank's own position in the data, if manager.batches_committed() is not enough.
            dir: the folder of the checkpoints, or a URL that fsspec knows, as s3://bucket/folder. Default: the variable
                FTSLURM_CHECKPOINT_DIR, which ftslurm sets.
            every: steps between two checkpoints; 0: only when ftslurm asks. Default: FTSLURM_CHECKPOINT_EVERY.
            keep: how many checkpoints to keep; 0: all. Default: FTSLURM_CHECKPOINT_KEEP.

        Raises:
            CheckpointError: an argument is invalid.
        """
        folder = plain(os.fspath(dir or os.environ.get("FTSLURM_CHECKPOINT_DIR") or ""))
        self._store = _open(folder) if folder else None
        self._every = _number("FTSLURM_CHECKPOINT_EVERY", every, 0)
        self._keep = _number("FTSLURM_CHECKPOINT_KEEP", keep, 3)
        if self._every and not self._store:
            raise CheckpointError(f"every={self._every}, but no folder is set: give dir=, or every=0")
        self._manager, self._state = manager, state
        self._saving: Future[None] | None = None
        for name, item in (state or {}).items():
            if name == OWN or not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
                raise CheckpointError(f"{name!r} cannot be saved: it needs another name than {OWN!r}, and the methods "
                                      "state_dict and load_state_dict")  # fmt: skip
        environ = os.environ
        run = environ.get("FTSLURM_RUN_ID") or environ.get("TORCHELASTIC_RUN_ID", "")
        attempt = "FTSLURM_ATTEMPT" if "FTSLURM_ATTEMPT" in environ else "TORCHELASTIC_RESTART_COUNT"
        self._me = Writer(run, _number("REPLICA_GROUP_ID", None, 0), _number(attempt, None, 0))
        if self._store is None:
            return
        self._ranks = RankGroup()  # for the main thread
        if (ranks := environ.get("WORLD_SIZE", str(self._ranks.size))) != str(self._ranks.size):
            raise CheckpointError(
                f"WORLD_SIZE={ranks}, but torch.distributed has {self._ranks.size}: call init_process_group before, "
                "for the ranks of this replica group only"
            )
        self._writers = RankGroup()  # for the thread that writes
        self._requested = AgreedStep(self._ranks, f"save-{next(_INSTANCES)}")  # for what the controller asks for
        self._positions: DataPositions | None = None
        if data is not None:
            near = _folder_of_positions(folder)
            self._positions = DataPositions(near, self._me.group, self._ranks.rank, self._ranks.size, data)
        self._stage: snapshot.Stage | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ftslurm_checkpoint")
        self._last_step = manager.current_step()  # the last committed step
        self._was_saver = False  # whether this group was the one that saves at that step
        self._newest = 0  # the step of the newest checkpoint, or of the last attempt to save one
        self._broken = False  # the ranks of this group cannot agree any more: no further saves
        self._told_slow = False
        outbox.say(messages.CanSave())

    def restore(self) -> int:
        """Load the newest checkpoint that can be read. Call it before the first quorum, on every rank.

        With FTSLURM_HEALS=1 other groups have a newer state, which torchft will send: only the position in the data
        is read then.

        Returns:
            The step, 0 if there was no checkpoint or none was read.

        Raises:
            CheckpointError: there are checkpoints, and none of them can be used.
        """
        if self._store is None:
            return 0
        if self._manager.num_participants():
            raise CheckpointError(
                "restore() comes too late: torchft has asked for a quorum, and other groups rely on it"
            )
        heals = os.environ.get("FTSLURM_HEALS") == "1"
        self._sweep()
        step = 0 if heals else self._restore_state()
        self._last_step = self._manager.current_step()
        if self._positions:
            self._positions.restore(None if heals else step)
        return step

    def step(self) -> None:
        """Note the position in the data, and save if it is time or ftslurm has asked for it.

        Call it after every step, committed or not, on every rank.
        """
        if self._store is None:
            return
        now = self._manager.current_step()
        if now <= self._last_step:
            return  # not committed
        self._last_step = now
        rank = self._manager.participating_rank()
        if self._positions and rank is not None:
            self._positions.note(now, self._positions_to_keep(now))
        if self._broken:
            return
        try:
            if rank == 0 and not self._was_saver:  # the group that saved before may have died in the middle of it
                self._newest = self._ranks.run_on_first(partial(self._store.newest_step, now))
            self._was_saver = rank == 0
            due = self._every > 0 and layout.is_due(now, self._every, self._newest)
            if self._was_saver and (due or self._requested.due(outbox.wanted() > self._newest, now)):
                self._start_saving(now)
        except Exception as error:  # a rank of this group is gone; the training itself will fail on that soon
            self._broken = True
            say(f"no more checkpoints from this group: its ranks cannot agree: {describe(error)}")

    def close(self) -> None:
        """Wait for the save that is under way. Call it before the process group is destroyed."""
        if self._store is not None:
            self._thread.shutdown()
            if self._positions:
                self._positions.close()

    def _positions_to_keep(self, now: int) -> list[int]:
        """Return the steps whose positions to keep when it is time to trim, else none."""
        if now % (self._every or TRIM_EVERY):
            return []
        assert self._store
        return self._store.steps_of_positions(now, self._newest, self._every)

    # --- saving ----------------------------------------------------------------------------------------------------

    def _start_saving(self, now: int) -> None:
        """Copy the state and have the thread write it, unless the last save is still being written."""
        if self._ranks.agree(self._saving is not None and not self._saving.done(), any):
            if not self._told_slow and self._ranks.rank == 0:
                hint = "; raise checkpoint.every" if self._every else ""
                say(f"checkpoint of step {now} put off: the last one is still being written{hint}")
            self._told_slow = True
            return  # it stays due: the first committed step after the save will be saved
        self._told_slow = False
        self._newest = now
        self._requested.done()
        started = time.monotonic()
        staged: snapshot.Snapshot | Exception
        try:
            self._stage = self._stage or _snapshot().Stage()
            staged = self._stage.copy(self._tree())
        except Exception as error:  # reported to the other ranks by the thread
            staged = error
        self._saving = self._thread.submit(on_this_device(self._save), now, staged, started)

    def _save(self, step: int, staged: snapshot.Snapshot | Exception, started: float) -> None:
        """Write a checkpoint and report the outcome. Runs in the thread; no error here may stop the training."""
        assert self._store
        name = error = None
        try:
            name = self._publish(step, staged)
        except Exception as failure:
            error = describe(failure)
        if self._writers.rank != 0:
            return
        seconds = round(time.monotonic() - started, 3)
        if name is None:
            say(f"checkpoint of step {step} failed in {self._store.name}, training goes on: {error}")
        else:
            print(f"ftslurm: checkpoint of step {step} saved in {seconds:.2f} s: {name}", flush=True)
        outbox.say(messages.Checkpointed(step, name or self._store.name, seconds, error))
        if name is not None:
            try:
                self._store.prune(step, self._keep, self._me, name)
            except OSError as trouble:
                say(f"old checkpoints could not be removed: {trouble}")

    def _publish(self, step: int, staged: snapshot.Snapshot | Exception) -> str:
        """Write a checkpoint beside the others, and have the store make it one of them when it is complete.

        Raises:
            GroupFailed: there is no new checkpoint.
        """
        assert self._store
        store, ranks = self._store, self._writers
        copied = ranks.run(lambda: _unless_failed(staged))
        part = ranks.run_on_first(lambda: store.begin(step, self._me))
        try:
            files = _snapshot().write(copied, store.place(part), ranks)
            return str(ranks.run_on_first(lambda: store.finish(part, step, self._me, ranks.size, *files)))
        except BaseException:
            if ranks.rank == 0:
                store.abandon(part)
            raise

    def _sweep(self) -> None:
        """Delete what earlier attempts of this group have not finished."""
        if self._store and self._ranks.rank == 0:
            try:
                self._store.sweep(self._me)
            except OSError as error:
                say(f"what earlier attempts have not finished could not be removed: {error}")

    # --- the state -------------------------------------------------------------------------------------------------

    def _registered(self, functions: str) -> dict[str, Any]:
        """Return what others registered with the manager, as DiLoCo does; everything if the script gave no state."""
        by_key: Mapping[str, Any] = getattr(self._manager, functions, {})
        return {key: f for key, f in by_key.items() if self._state is None or key not in SAME_AS_GIVEN}

    def _tree(self) -> dict[str, Any]:
        tree = {name: item.state_dict() for name, item in (self._state or {}).items()}
        registered = {key: state_dict() for key, state_dict in self._registered("_user_state_dicts").items()}
        return {**tree, OWN: {"manager": self._manager.state_dict(), "registered": registered}}

    def _restore_state(self) -> int:
        """Load the newest checkpoint that all ranks can read and return its step; 0: there is none."""
        try:
            candidates, damaged = self._ranks.run_on_first(self._candidates)
        except GroupFailed as error:
            raise CheckpointError(f"{self._store.name if self._store else ''}: {error}") from None
        params = {
            name: [p for group in item.param_groups for p in group["params"]]
            for name, item in (self._state or {}).items()
            if hasattr(item, "param_groups")
        }
        failures: dict[int, str] = dict(damaged)
        for candidate in itertools.starmap(Candidate, candidates):
            try:
                tree = _snapshot().read(candidate.place, self._tree(), params, self._ranks)
                self._check_names(candidate.name, tree)
                self._ranks.run(partial(self._load, tree))
            except GroupFailed as error:
                why = failures[candidate.step] = f"{candidate.name}: {error}"
                if self._ranks.rank == 0:
                    say(f"THE CHECKPOINT OF STEP {candidate.step} CANNOT BE READ, trying an older one: {why}")
                continue
            self._manager.load_state_dict(tree[OWN]["manager"])
            self._newest = candidate.step
            skipped = sorted((step for step in failures if step > candidate.step), reverse=True)
            outbox.say(messages.Restored(candidate.step, candidate.name, tuple(skipped[:MOST_LISTED])))
            if self._ranks.rank == 0:
                print(f"ftslurm: restored the checkpoint of step {candidate.step}: {candidate.name}", flush=True)
            return candidate.step
        if failures:
            whys = _shortened([failures[step] for step in sorted(failures, reverse=True)])
            raise CheckpointError(
                "None of the checkpoints can be used, and a training that had some does not start from step 0: "
                f"{'; '.join(whys)}. To start anew, move them away or set another checkpoint.dir"
            )
        return 0

    def _candidates(self) -> tuple[list[tuple[int, str, str]], list[tuple[int, str]]]:
        """Return the complete checkpoints, and step and reason of those that are damaged; print what is ignored."""
        assert self._store
        complete, unusable = self._store.candidates()
        unusable.sort(key=lambda found: found.foreign)
        for line in _shortened([f"{found.name}: {found.reason}" for found in unusable]):
            say(f"ignored: {line}")
        damaged = [(found.step, f"{found.name}: {found.reason}") for found in unusable if not found.foreign]
        return [(found.step, found.name, found.place) for found in complete], damaged

    def _check_names(self, name: str, tree: Mapping[str, Any]) -> None:
        """Refuse a checkpoint that holds other names than this script restores."""
        saved = {*tree, *tree[OWN]["registered"]} - {OWN}
        wanted = {*(self._state or {}), *self._registered("_user_state_dicts")}
        if saved != wanted:
            raise CheckpointError(
                f"{name} holds {sorted(saved)}, this script restores {sorted(wanted)}: make them equal, and whatever "
                "registers itself with the manager (DiLoCo) before restore()"
            )

    def _load(self, tree: Mapping[str, Any]) -> None:
        for name, item in (self._state or {}).items():
            item.load_state_dict(tree[name])
        for key, load_state_dict in self._registered("_load_state_dict_fns").items():
            load_state_dict(tree[OWN]["registered"][key])


def _open(folder: str) -> FolderStore | ObjectStore:
    """Return the store of checkpoint.dir.

    Raises:
        CheckpointError: it is the URL of no object store, or the packages for it are missing.
    """
    if not is_url(folder):
        return FolderStore(Path(folder).absolute())
    from ftslurm.checkpoint.object_store import ObjectStore

    try:
        return ObjectStore(folder)
    except FtslurmError as error:
        raise CheckpointError(str(error)) from error


def _folder_of_positions(folder: str) -> Path:
    """Return where the positions in the data are kept: they are appended to after each step, as no object can be."""
    if not is_url(folder):
        return Path(folder).absolute()
    if (run := os.environ.get("FTSLURM_RUN_DIR")) is None:
        raise CheckpointError(
            f"{folder} cannot keep the place in the data (data=) outside of a run of ftslurm: use a folder"
        )
    return Path(run) / "checkpoints"


def _snapshot() -> ModuleType:
    """Import torch.distributed.checkpoint when it is needed: it takes 0.7 s, and usually there is nothing to read."""
    from ftslurm.checkpoint import snapshot

    return snapshot


def _shortened(lines: list[str]) -> list[str]:
    return [*lines[:MOST_LISTED], rest(lines, MOST_LISTED)] if len(lines) > MOST_LISTED else lines


def _unless_failed(staged: snapshot.Snapshot | Exception) -> snapshot.Snapshot:
    if isinstance(staged, Exception):
        raise staged
    return staged


def _number(variable: str, given: int | None, default: int) -> int:
    """Return an argument, else the variable, else the default; refuse what is no number of at least 0."""
    text = os.environ.get(variable, "") if given is None else str(given)
    try:
        number = int(text or default)
    except ValueError:
        number = -1
    if number < 0:
        name = variable.removeprefix("FTSLURM_CHECKPOINT_").lower() if given is not None else variable
        raise CheckpointError(f"{name}={text} is no number of at least 0")
    return number
