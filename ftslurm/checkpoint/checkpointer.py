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
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.consensus import AgreedStep, GroupFailed, RankGroup, describe
from ftslurm.checkpoint.data_offsets import DataPositions
from ftslurm.checkpoint.devices import on_this_device
from ftslurm.checkpoint.layout import Writer
from ftslurm.checkpoint.store import Checkpoint, Store
from ftslurm.config.store_url import is_url, plain
from ftslurm.errors import FtslurmError, complain
from ftslurm.protocol import messages, outbox
from ftslurm.words import few

if TYPE_CHECKING:
    from ftslurm.checkpoint import snapshot

__all__ = ["CheckpointError", "Checkpointer", "Manager", "Stateful"]

OWN = "torchft"  # the entry of the manager's state; those of what was registered with the manager begin with it
SAME_AS_GIVEN = ("default", "set_state_dict_fns")  # the keys under which torchft registers the script's own state
MOST_LISTED = 5  # damaged checkpoints that a message lists
TRIM_EVERY = 1000  # steps between trims of the positions in the data when `every` is 0


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
            EnvironmentProblem: dir is the URL of no object store, or the packages for it are missing.
        """
        folder = plain(os.fspath(dir or os.environ.get("FTSLURM_CHECKPOINT_DIR") or ""))
        self._on = bool(folder)
        self._every = _number("FTSLURM_CHECKPOINT_EVERY", every, 0)
        self._keep = _number("FTSLURM_CHECKPOINT_KEEP", keep, 3)
        if self._every and not folder:
            raise CheckpointError(f"every={self._every}, but no folder is set: give dir=, or every=0")
        self._manager, self._state = manager, state
        self._saving: Future[None] | None = None
        for name, item in (state or {}).items():
            if name.startswith(OWN) or not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
                raise CheckpointError(f"{name!r} cannot be saved: it needs a name that does not begin with {OWN!r}, "
                                      "and the methods state_dict and load_state_dict")  # fmt: skip
        environ = os.environ
        run, attempt = environ.get("TORCHELASTIC_RUN_ID", ""), _number("TORCHELASTIC_RESTART_COUNT", None, 0)
        self._history = layout.history_of(run, _number("FTSLURM_HISTORY", None, 0))
        self._me = Writer(run, _number("REPLICA_GROUP_ID", None, 0), attempt)
        if not folder:
            return
        self._store = Store(folder)
        self._ranks = RankGroup()  # for the main thread
        if (ranks := environ.get("WORLD_SIZE", str(self._ranks.size))) != str(self._ranks.size):
            raise CheckpointError(
                f"WORLD_SIZE={ranks}, but torch.distributed has {self._ranks.size}: call init_process_group before, "
                "for the ranks of this replica group only"
            )
        self._writers = RankGroup()  # for the thread that writes
        self._requested = AgreedStep(self._ranks)  # for what the controller asks for
        self._positions = None if data is None else self._data_positions(folder, data)
        self._buffers: dict[str, Any] = {}  # of the copies of the state
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ftslurm_checkpoint")
        self._last_step = manager.current_step()  # the last committed step
        self._was_saver = False  # whether this group was the one that saves at that step
        self._newest = 0  # the step of the newest checkpoint, or of the last attempt to save one
        self._broken = False  # the ranks of this group cannot agree any more: no further saves
        self._put_off = False
        self._kept: list[int] = []  # the steps of the checkpoints, as they were when they were last listed
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
        if not self._on:
            return 0
        if self._manager.num_participants():
            raise CheckpointError(
                "restore() comes too late: torchft has asked for a quorum, and other groups rely on it"
            )
        heals = os.environ.get("FTSLURM_HEALS") == "1"
        if self._ranks.rank == 0:
            try:
                self._store.sweep(self._me)
            except OSError as error:
                complain(f"what earlier attempts have not finished could not be removed: {error}")
        step = 0 if heals else self._restore_state()
        self._last_step = self._manager.current_step()
        if self._positions:
            self._positions.restore(None if heals else step)
        return step

    def step(self) -> None:
        """Note the position in the data, and save if it is time or ftslurm has asked for it.

        Call it after every step, committed or not, on every rank.
        """
        if not self._on:
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
                newest = self._ranks.run_on_first(partial(self._store.newest, now))
                self._newest = newest[0] if newest else 0
            self._was_saver = rank == 0
            due = self._every > 0 and layout.is_due(now, self._every, self._newest)
            if self._was_saver and (due or self._requested.due(outbox.wanted() > self._newest, now)):
                self._start_saving(now)
        except Exception as error:  # a rank of this group is gone; the training itself will fail on that soon
            self._broken = True
            complain(f"no more checkpoints from this group: its ranks cannot agree: {describe(error)}")

    def close(self) -> None:
        """Wait for the save under way, and save what it has put off. Call it before the process group is destroyed.

        After a last step whose save was put off there is no other one that would save it.
        """
        if self._on:
            if self._put_off and self._was_saver and not self._broken and self._saving is not None:
                wait([self._saving])
                try:
                    self._start_saving(self._last_step)
                except GroupFailed as error:  # a rank of this group is gone
                    complain(f"no checkpoint of step {self._last_step}: {error}")
            self._thread.shutdown()
            if self._positions:
                self._positions.close()

    def _positions_to_keep(self, now: int) -> list[int]:
        """Return the steps whose positions to keep when it is time to trim, else none."""
        if now % (self._every or TRIM_EVERY):
            return []
        kept = [step for step in self._kept if step <= now]
        self._thread.submit(self._list, now)  # for the next time: a training does not wait for a store
        return kept

    def _list(self, now: int) -> None:
        with suppress(OSError):
            self._kept = self._store.steps() + ([] if self._every else [now])

    def _data_positions(self, folder: str, data: Stateful) -> DataPositions:
        """Return what keeps this rank's place in the data, in the folder of the checkpoints.

        Raises:
            CheckpointError: it is an object store, and there is no run directory.
        """
        if is_url(folder):  # they are appended to after each step, as no object can be
            if "FTSLURM_RUN_DIR" not in os.environ:
                raise CheckpointError(
                    f"{folder} cannot keep the place in the data (data=) outside of a run of ftslurm: use a folder"
                )
            folder = f"{os.environ['FTSLURM_RUN_DIR']}/checkpoints"
        place = Path(folder).absolute()
        return DataPositions(place, self._me.group, self._ranks.rank, self._ranks.size, data, self._history)

    # --- saving ----------------------------------------------------------------------------------------------------

    def _start_saving(self, now: int) -> None:
        """Copy the state and have the thread write it, unless the last save is still being written."""
        if self._ranks.agree(self._saving is not None and not self._saving.done(), any):
            if not self._put_off and self._ranks.rank == 0:
                hint = "; raise checkpoint.every" if self._every else ""
                complain(f"checkpoint of step {now} put off: the last one is still being written{hint}")
            self._put_off = True
            return  # it stays due: the first committed step after the save will be saved
        self._put_off = False
        self._newest = now
        self._requested.done()
        started = time.monotonic()
        staged: Future[snapshot.Snapshot] = Future()
        try:
            staged.set_result(_snapshot().copy(self._tree(), self._buffers))
        except Exception as error:  # reported to the other ranks by the thread
            staged.set_exception(error)
        self._saving = self._thread.submit(on_this_device(self._save), now, staged, started)

    def _save(self, step: int, staged: Future[snapshot.Snapshot], started: float) -> None:
        """Write a checkpoint and report the outcome. Runs in the thread; no error here may stop the training."""
        name = error = None
        try:
            name = self._publish(step, staged)
        except Exception as failure:
            error = describe(failure)
        if self._writers.rank != 0:
            return
        seconds = round(time.monotonic() - started, 3)
        if name is None:
            complain(f"checkpoint of step {step} failed in {self._store.name}, training goes on: {error}")
        else:
            complain(f"checkpoint of step {step} saved in {seconds:.2f} s: {name}")
        outbox.say(messages.Checkpointed(step, name or self._store.name, seconds, error))
        if name is not None:
            try:
                self._store.prune(step, self._keep, self._me)
            except OSError as trouble:
                complain(f"old checkpoints could not be removed: {trouble}")

    def _publish(self, step: int, staged: Future[snapshot.Snapshot]) -> str:
        """Write a checkpoint beside the others, have the store make it one of them, and return its name.

        Raises:
            GroupFailed: there is no new checkpoint.
        """
        store, ranks = self._store, self._writers
        copied = ranks.run(staged.result)
        part = ranks.agree(layout.part_name(step, self._me, time.time_ns()), min)
        try:
            files = _snapshot().write(copied, store, part, ranks)
            return str(ranks.run_on_first(lambda: store.finish(step, part, self._me, files)))
        except BaseException:
            if ranks.rank == 0:
                with suppress(OSError):
                    store.remove(part)
            raise

    # --- the state -------------------------------------------------------------------------------------------------

    def _parts(self) -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
        """Return how to read and how to set each part of the state, by its name.

        What others registered with the manager, as DiLoCo does, belongs to it; all of it if the script gave no state.
        """
        parts = {name: (item.state_dict, item.load_state_dict) for name, item in (self._state or {}).items()}
        gets, sets = (getattr(self._manager, name, {}) for name in ("_user_state_dicts", "_load_state_dict_fns"))
        for key, get in gets.items():
            if self._state is None or key not in SAME_AS_GIVEN:
                parts[f"{OWN}.{key}"] = (get, sets[key])
        return {**parts, OWN: (self._manager.state_dict, self._manager.load_state_dict)}

    def _tree(self) -> dict[str, Any]:
        return {name: get() for name, (get, _) in self._parts().items()}

    def _restore_state(self) -> int:
        """Load the newest checkpoint that all ranks can read and return its step; 0: there is none."""
        try:
            found = self._ranks.run_on_first(lambda: list(self._store.survey()))
        except GroupFailed as error:
            raise CheckpointError(f"{self._store.name}: {error}") from None
        failures: dict[int, str] = {}
        for one in itertools.starmap(Checkpoint, found):
            try:
                self._load(one)
            except GroupFailed as error:
                why = failures[one.step] = f"{one.name}: {error}"
                if self._ranks.rank == 0 and len(failures) <= MOST_LISTED:
                    complain(f"THE CHECKPOINT OF STEP {one.step} CANNOT BE READ, trying an older one: {why}")
                continue
            self._newest = one.step
            outbox.say(messages.Restored(one.step, one.name))
            if self._ranks.rank == 0:
                complain(f"restored the checkpoint of step {one.step}: {one.name}")
            return one.step
        if failures:
            raise CheckpointError(
                "None of the checkpoints can be used, and a training that had some does not start from step 0: "
                f"{few([*failures.values()], MOST_LISTED, between='; ')}. To start anew, move them away or set another "
                "checkpoint.dir"
            )
        return 0

    def _load(self, one: Checkpoint) -> None:
        """Load a checkpoint.

        Raises:
            GroupFailed: at least one rank cannot read it.
            CheckpointError: it holds other names than this script restores.
        """
        if one.damage:
            raise GroupFailed(one.damage)
        params = {
            name: [p for group in item.param_groups for p in group["params"]]
            for name, item in (self._state or {}).items()
            if hasattr(item, "param_groups")
        }
        tree, parts = _snapshot().read(self._store, one.step, self._tree(), params, self._ranks), self._parts()
        if tree.keys() != parts.keys():
            raise CheckpointError(
                f"{one.name} holds {sorted(tree)}, this script restores {sorted(parts)}: make them equal, and whatever "
                "registers itself with the manager (DiLoCo) before restore()"
            )

        def load() -> None:
            for name, (_, load_state_dict) in parts.items():
                load_state_dict(tree[name])

        self._ranks.run(load)


def _snapshot() -> ModuleType:
    """Import torch.distributed.checkpoint when it is needed: it takes 0.7 s, and usually there is nothing to read."""
    from ftslurm.checkpoint import snapshot

    return snapshot


def _number(variable: str, given: int | None, default: int) -> int:
    """Return an argument, else the variable, else the default; refuse what is no number of at least 0."""
    text = os.environ.get(variable, "") if given is None else str(given)
    if not (text or "0").isdecimal():
        name = variable.removeprefix("FTSLURM_CHECKPOINT_").lower() if given is not None else variable
        raise CheckpointError(f"{name}={text} is no number of at least 0")
    return int(text or default)
