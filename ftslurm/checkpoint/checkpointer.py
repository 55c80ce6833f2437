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
import secrets
import shutil
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
from ftslurm.checkpoint.layout import Ignored, Saved, Writer
from ftslurm.errors import FtslurmError
from ftslurm.protocol import messages, outbox
from ftslurm.security import owned_files

if TYPE_CHECKING:
    from ftslurm.checkpoint import snapshot

__all__ = ["CheckpointError", "Checkpointer", "Manager", "Stateful"]

OWN = "torchft"  # the entry of the manager's state, and of what was registered with the manager
SAME_AS_GIVEN = ("default", "set_state_dict_fns")  # the keys under which torchft registers the script's own state
IDLE_S = 3600.0  # an unfinished checkpoint of another group that has not changed for this long is abandoned
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
            dir: the folder of the checkpoints. Default: the variable FTSLURM_CHECKPOINT_DIR, which ftslurm sets.
            every: steps between two checkpoints; 0: only when ftslurm asks. Default: FTSLURM_CHECKPOINT_EVERY.
            keep: how many checkpoints to keep; 0: all. Default: FTSLURM_CHECKPOINT_KEEP.

        Raises:
            CheckpointError: an argument is invalid.
        """
        folder = dir or os.environ.get("FTSLURM_CHECKPOINT_DIR")
        self._folder = Path(folder).absolute() if folder else None
        self._every = _number("FTSLURM_CHECKPOINT_EVERY", every, 0)
        self._keep = _number("FTSLURM_CHECKPOINT_KEEP", keep, 3)
        if self._every and not self._folder:
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
        if self._folder is None:
            return
        self._ranks = RankGroup()  # for the main thread
        if (ranks := environ.get("WORLD_SIZE", str(self._ranks.size))) != str(self._ranks.size):
            raise CheckpointError(
                f"WORLD_SIZE={ranks}, but torch.distributed has {self._ranks.size}: call init_process_group before, "
                "for the ranks of this replica group only"
            )
        self._writers = RankGroup()  # for the thread that writes
        self._requested = AgreedStep(self._ranks, f"save-{next(_INSTANCES)}")  # for what the controller asks for
        place = (self._folder, self._me.group, self._ranks.rank, self._ranks.size)
        self._positions = DataPositions(*place, data) if data is not None else None
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
        if self._folder is None:
            return 0
        if self._manager.num_participants():
            raise CheckpointError(
                "restore() comes too late: torchft has asked for a quorum, and other groups rely on it"
            )
        heals = os.environ.get("FTSLURM_HEALS") == "1"
        if self._ranks.rank == 0:
            self._sweep(idle_since=None)
        step = 0 if heals else self._restore_state()
        self._last_step = self._manager.current_step()
        if self._positions:
            self._positions.restore(None if heals else step)
        return step

    def step(self) -> None:
        """Note the position in the data, and save if it is time or ftslurm has asked for it.

        Call it after every step, committed or not, on every rank.
        """
        if self._folder is None:
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
                self._newest = self._ranks.run_on_first(lambda: self._newest_step(now))
            self._was_saver = rank == 0
            due = self._every > 0 and layout.is_due(now, self._every, self._newest)
            if self._was_saver and (due or self._requested.due(outbox.wanted() > self._newest, now)):
                self._start_saving(now)
        except Exception as error:  # a rank of this group is gone; the training itself will fail on that soon
            self._broken = True
            say(f"no more checkpoints from this group: its ranks cannot agree: {describe(error)}")

    def close(self) -> None:
        """Wait for the save that is under way. Call it before the process group is destroyed."""
        if self._folder is not None:
            self._thread.shutdown()
            if self._positions:
                self._positions.close()

    def _positions_to_keep(self, now: int) -> list[int]:
        """Return the steps whose positions to keep when it is time to trim, else none."""
        if now % (self._every or TRIM_EVERY):
            return []
        assert self._folder
        kept = [step for step in layout.steps(self._folder) if step <= now]
        return kept if self._every else [*kept, self._newest, now]  # _newest may be being saved

    # --- saving ----------------------------------------------------------------------------------------------------

    def _newest_step(self, now: int) -> int:
        assert self._folder
        found = layout.newest(self._folder, upto=now)
        return found.step if found else 0

    def _start_saving(self, now: int) -> None:
        """Copy the state and have the thread write it, unless the last save is still being written."""
        if any(self._ranks.all_gather(self._saving is not None and not self._saving.done())):
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
        self._saving = self._thread.submit(self._save, now, staged, started)

    def _save(self, step: int, staged: snapshot.Snapshot | Exception, started: float) -> None:
        """Write a checkpoint and report the outcome. Runs in the thread; no error here may stop the training."""
        path = error = None
        try:
            path = self._publish(step, staged)
        except Exception as failure:
            error = describe(failure)
        if self._writers.rank != 0:
            return
        seconds = round(time.monotonic() - started, 3)
        if path is None:
            say(f"checkpoint of step {step} failed in {self._folder}, training goes on: {error}")
        else:
            print(f"ftslurm: checkpoint of step {step} saved in {seconds:.2f} s: {path}", flush=True)
        outbox.say(messages.Checkpointed(step, str(path or self._folder), seconds, error))
        if path is not None:
            try:
                self._prune(step, path)
            except OSError as trouble:
                say(f"old checkpoints could not be removed: {trouble}")

    def _publish(self, step: int, staged: snapshot.Snapshot | Exception) -> Path:
        """Write a checkpoint into a dot folder and rename that when it is complete.

        Raises:
            GroupFailed: there is no new checkpoint.
        """
        assert self._folder
        folder, ranks = self._folder, self._writers

        def begin() -> str:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = folder / layout.saving_name(step, self._me, secrets.token_hex(4))
            part.mkdir(mode=0o700)
            return part.name

        def finish() -> None:
            owned_files.write_file(part / layout.MANIFEST, layout.manifest(step, self._me, ranks.size, *files))
            if why := owned_files.distrust(part.stat()):  # a file system without owners: it could never be loaded
                raise GroupFailed(f"{folder} cannot hold checkpoints, files written there do not stay ours: {why}")
            layout.sync(part)
            if os.path.lexists(path):
                self._move_away(path, step)
            part.rename(path)
            layout.sync(folder)

        copied = ranks.run(lambda: _unless_failed(staged))
        part, path = folder / ranks.run_on_first(begin), folder / layout.name_of(step)
        try:
            files = _snapshot().write(copied, part, ranks)
            ranks.run_on_first(finish)
        except BaseException:
            if ranks.rank == 0:
                shutil.rmtree(part, ignore_errors=True)
            raise
        return path

    def _move_away(self, path: Path, step: int) -> None:
        """Remove an earlier checkpoint of the same step: its history has been undone by a full restart."""
        found = layout.look(path, step)
        if isinstance(found, Ignored) and (found.foreign or found.doubtful):
            raise GroupFailed(f"{path} exists and is not a checkpoint of ftslurm: {found.reason}")
        path.rename(path.with_name(f".removed-{path.name}-{secrets.token_hex(4)}"))

    def _prune(self, step: int, path: Path) -> None:
        assert self._folder
        complete = [found for found in layout.survey(self._folder, upto=step) if isinstance(found, Saved)]
        for old in layout.to_prune(complete, step, self._keep):
            old.path.rename(self._folder / f".removed-{old.path.name}-{secrets.token_hex(4)}")
        self._sweep(idle_since=path.stat().st_mtime)

    def _sweep(self, idle_since: float | None) -> None:
        """Delete the dot folders of attempts that are over.

        Args:
            idle_since: the file system's own time now (clocks may differ). None: delete only those of
                earlier attempts of this group.
        """
        assert self._folder
        for path in self._folder.glob(".*") if self._folder.is_dir() else ():
            idle_s = 0.0
            try:
                if idle_since is not None:
                    idle_s = idle_since - max(p.stat().st_mtime for p in [path, *path.iterdir()])
            except OSError:
                continue  # another group has just deleted it
            if layout.is_dead(path.name, self._me, idle_s, IDLE_S):
                shutil.rmtree(path, ignore_errors=True)

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
            raise CheckpointError(f"{self._folder}: {error}") from None
        params = {
            name: [p for group in item.param_groups for p in group["params"]]
            for name, item in (self._state or {}).items()
            if hasattr(item, "param_groups")
        }
        failures = {layout.step_of(found.path.name) or 0: f"{found.path}: {found.reason}" for found in damaged}
        for candidate in candidates:
            try:
                tree = _snapshot().read(candidate.path, self._tree(), params, self._ranks)
                self._check_names(candidate.path, tree)
                self._ranks.run(partial(self._load, tree))
            except GroupFailed as error:
                why = failures[candidate.step] = f"{candidate.path}: {error}"
                if self._ranks.rank == 0:
                    say(f"THE CHECKPOINT OF STEP {candidate.step} CANNOT BE READ, trying an older one: {why}")
                continue
            self._manager.load_state_dict(tree[OWN]["manager"])
            self._newest = candidate.step
            skipped = sorted((step for step in failures if step > candidate.step), reverse=True)
            outbox.say(messages.Restored(candidate.step, str(candidate.path), tuple(skipped[:MOST_LISTED])))
            if self._ranks.rank == 0:
                print(f"ftslurm: restored the checkpoint of step {candidate.step}: {candidate.path}", flush=True)
            return candidate.step
        if failures:
            whys = _shortened([failures[step] for step in sorted(failures, reverse=True)])
            raise CheckpointError(
                "None of the checkpoints can be used, and a training that had some does not start from step 0: "
                f"{'; '.join(whys)}. To start anew, move them away or set another checkpoint.dir"
            )
        return 0

    def _candidates(self) -> tuple[list[Saved], list[Ignored]]:
        """Return the complete checkpoints, and those of ftslurm that are damaged; print why others are ignored."""
        assert self._folder
        complete, ignored = [], []
        for found in layout.survey(self._folder):
            if isinstance(found, Ignored):
                ignored.append(found)
            elif why := owned_files.distrust(found.path.stat()):
                raise GroupFailed(f"{found.path} is not loaded: {why}")
            else:
                complete.append(found)
        damaged = [found for found in ignored if not found.foreign]
        foreign = [found for found in ignored if found.foreign]
        for line in _shortened([f"{found.path}: {found.reason}" for found in [*damaged, *foreign]]):
            say(f"ignored: {line}")
        return complete, damaged

    def _check_names(self, path: Path, tree: Mapping[str, Any]) -> None:
        """Refuse a checkpoint that holds other names than this script restores."""
        saved = {*tree, *tree[OWN]["registered"]} - {OWN}
        wanted = {*(self._state or {}), *self._registered("_user_state_dicts")}
        if saved != wanted:
            raise CheckpointError(
                f"{path} holds {sorted(saved)}, this script restores {sorted(wanted)}: make them equal, and whatever "
                "registers itself with the manager (DiLoCo) before restore()"
            )

    def _load(self, tree: Mapping[str, Any]) -> None:
        for name, item in (self._state or {}).items():
            item.load_state_dict(tree[name])
        for key, load_state_dict in self._registered("_load_state_dict_fns").items():
            load_state_dict(tree[OWN]["registered"][key])


def _snapshot() -> ModuleType:
    """Import torch.distributed.checkpoint when it is needed: it takes 0.7 s, and usually there is nothing to read."""
    from ftslurm.checkpoint import snapshot

    return snapshot


def _shortened(lines: list[str]) -> list[str]:
    return [*lines[:MOST_LISTED], f"and {len(lines) - MOST_LISTED} more"] if len(lines) > MOST_LISTED else lines


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
