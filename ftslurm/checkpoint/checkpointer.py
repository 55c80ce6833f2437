"""Checkpoints for a training with torchft: the one module of ftslurm that a script may import. See docs/checkpoints.md.

checkpointer = Checkpointer(manager, {"model": model, "optimizer": optimizer})
checkpointer.restore()  # before the loop, on every rank
while manager.current_step() < steps:
    ...
    optimizer.step()
    checkpointer.step()  # after every step, committed or not, on every rank
checkpointer.close()
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.consensus import Failed, Ranks, Together, describe
from ftslurm.checkpoint.data_offsets import Positions, say
from ftslurm.checkpoint.layout import Ignored, Saved, Writer
from ftslurm.errors import FtslurmError
from ftslurm.protocol import messages, outbox
from ftslurm.security import owned_files

if TYPE_CHECKING:
    from ftslurm.checkpoint import snapshot

OWN = "torchft"  # what the helper saves by itself: the manager's state, and what was registered with the manager
SAME_AS_GIVEN = ("default", "set_state_dict_fns")  # the keys under which torchft registers the script's own state
IDLE_S = 3600.0  # a half-written checkpoint of somebody else into which nothing was written for so long is a leftover
AT_MOST = 5  # checkpoints that cannot be used are told of by name; thousands would drown the rest
_NUMBERS = itertools.count()  # of the checkpointers of this process
TRIM_EVERY = 1000  # steps, for the file of the data position when no checkpoints are saved


class CheckpointError(FtslurmError):
    """There are checkpoints and none can be used, or this script asks for something else than they hold."""


class Stateful(Protocol):
    """A module, an optimizer, a scheduler, a loader: whatever gives its state and takes it back."""

    def state_dict(self) -> Any:
        """The state; tensors in it may be the live ones."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Go back to such a state."""


class Checkpointer:
    """Saves and restores a replica group's part in a training; every rank of every group has one."""

    def __init__(
        self,
        manager: Any,
        state: Mapping[str, Stateful] | None = None,
        data: Stateful | None = None,
        *,
        dir: str | os.PathLike[str] | None = None,
        every: int | None = None,
        keep: int | None = None,
    ) -> None:
        """Prepare; torch.distributed must be initialised by now in a group of several ranks.

        Args:
            manager: torchft's. Its step and batches_committed are saved, and state registered with it beyond the
                script's own, as DiLoCo does.
            state: what to save, by name. All groups have the same. Default: what the script registered with the
                manager, which is what heals other groups.
            data: this rank's own position in the data, if it is more than manager.batches_committed() can tell.
            dir, every, keep: where, every how many steps (0: only when ftslurm asks), how many to keep (0: all).
                Default: the variables FTSLURM_CHECKPOINT_DIR, _EVERY and _KEEP, which ftslurm sets.

        Raises:
            CheckpointError: the arguments make no sense.
        """
        folder = dir or os.environ.get("FTSLURM_CHECKPOINT_DIR")
        self._folder = Path(folder).absolute() if folder else None
        self._every = _number("FTSLURM_CHECKPOINT_EVERY", every, 0)
        self._keep = _number("FTSLURM_CHECKPOINT_KEEP", keep, 3)
        if self._every and not self._folder:
            raise CheckpointError(f"every={self._every}, but nothing says where to save: give dir=, or every=0")
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
        self._talk = Ranks()  # for the main thread
        if (ranks := environ.get("WORLD_SIZE", str(self._talk.count))) != str(self._talk.count):
            raise CheckpointError(
                f"WORLD_SIZE={ranks}, but torch.distributed knows of {self._talk.count}: call init_process_group "
                "before, for the ranks of this replica group only"
            )
        self._write = Ranks()  # for the thread that writes
        self._asked = Together(self._talk, f"save-{next(_NUMBERS)}")  # for what the controller asks for
        place = (self._folder, self._me.group, self._talk.rank, self._talk.count)
        self._positions = Positions(*place, data) if data is not None else None
        self._stage: snapshot.Stage | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ftslurm_checkpoint")
        self._seen = manager.current_step()  # the last committed step
        self._led = False  # whether we were the group that saves at that step
        self._done = 0  # the step of the newest checkpoint, or of our last try
        self._told: set[str] = set()  # troubles that last, and that were told

    def restore(self) -> int:
        """Go back to the newest checkpoint that can be read; call it before the first quorum, on every rank.

        With FTSLURM_HEALS=1 there are groups with a newer state, which torchft will send: no weights are read,
        only the position in the data.

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
        if self._talk.rank == 0:
            self._sweep(idle_since=None)
        step = 0 if heals else self._restore_state()
        self._seen = self._manager.current_step()
        if self._positions:
            self._positions.restore(None if heals else step)
        return step

    def step(self) -> None:
        """Save if it is time, or if ftslurm has asked for it, and note the position in the data.

        Call it after every step, on every rank.
        """
        if self._folder is None:
            return
        now = self._manager.current_step()
        if now <= self._seen:
            return  # not committed
        self._seen = now
        rank = self._manager.participating_rank()  # None: we heal, or are a spare
        if self._positions and rank is not None:
            self._positions.note(now, self._positions_to_keep(now))
        if "broken" in self._told:
            return
        try:
            if rank == 0 and not self._led:  # another group may have died in the middle of its save
                self._done = self._talk.first(lambda: self._newest_step(now))
            self._led = rank == 0
            due = self._every > 0 and layout.is_due(now, self._every, self._done)
            if self._led and (due or self._asked.due(outbox.wanted() > self._done, now)):
                self._start_saving(now)
        except Exception as error:  # a rank of our own group is gone; the training will notice soon enough
            self._told.add("broken")
            say(f"no more checkpoints from this group: its ranks cannot agree: {describe(error)}")

    def close(self) -> None:
        """Wait for the save that is under way; call it before the process group is destroyed."""
        if self._folder is not None:
            self._thread.shutdown()
            if self._positions:
                self._positions.close()

    def _positions_to_keep(self, now: int) -> list[int]:
        """From time to time the steps whose positions are worth keeping, else none."""
        if now % (self._every or TRIM_EVERY):
            return []
        assert self._folder
        kept = [step for step in layout.steps(self._folder) if step <= now]
        return kept if self._every else [*kept, self._done, now]  # _done: it may be being saved

    # --- saving ----------------------------------------------------------------------------------------------------

    def _newest_step(self, now: int) -> int:
        assert self._folder
        found = layout.newest(self._folder, upto=now)
        return found.step if found else 0

    def _start_saving(self, now: int) -> None:
        if any(self._talk.gather(self._saving is not None and not self._saving.done())):
            if "slow" not in self._told and self._talk.rank == 0:
                hint = "; raise checkpoint.every" if self._every else ""
                say(f"checkpoint of step {now} put off: the last one is still being written{hint}")
            self._told.add("slow")
            return  # it stays due: the first committed step after the save will be saved
        self._told.discard("slow")
        self._done = now
        self._asked.done()
        started = time.monotonic()
        staged: snapshot.Snapshot | Exception
        try:
            self._stage = self._stage or _dcp().Stage()
            staged = self._stage.copy(self._tree())
        except Exception as error:  # the other ranks learn of it from the thread
            staged = error
        self._saving = self._thread.submit(self._save, now, staged, started)

    def _save(self, step: int, staged: snapshot.Snapshot | Exception, started: float) -> None:
        """In the thread; nothing that happens here may stop the training."""
        path = error = None
        try:
            path = self._publish(step, staged)
        except Exception as failure:
            error = str(failure) if isinstance(failure, Failed) else describe(failure)
        if self._write.rank != 0:
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
        ranks = self._write
        assert self._folder
        folder = self._folder

        def begin() -> str:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = folder / layout.saving_name(step, self._me, secrets.token_hex(4))
            part.mkdir(mode=0o700)
            return part.name

        def finish() -> None:
            owned_files.write_file(part / layout.MANIFEST, layout.manifest(step, self._me, ranks.count, *files))
            if why := owned_files.distrust(
                part.stat()
            ):  # a file system without owners: nothing of it could ever be loaded
                raise Failed(f"{folder} is no place for checkpoints: what we write there does not stay ours: {why}")
            layout.sync(part)
            if os.path.lexists(path):
                self._make_way(path, step)
            part.rename(path)
            layout.sync(folder)

        ready = ranks.do(lambda: _unless_failed(staged))
        part, path = folder / ranks.first(begin), folder / layout.name_of(step)
        try:
            files = _dcp().write(ready, part, ranks)
            ranks.first(finish)
        except BaseException:
            if ranks.rank == 0:
                shutil.rmtree(part, ignore_errors=True)
            raise
        return path

    def _make_way(self, path: Path, step: int) -> None:
        """The history in which this step was saved before has been undone."""
        found = layout.look(path, step)
        if isinstance(found, Ignored) and (found.foreign or found.doubtful):
            raise Failed(f"{path} is there already, and not ours: {found.reason}")
        path.rename(path.with_name(f".removed-{path.name}-{secrets.token_hex(4)}"))

    def _prune(self, step: int, path: Path) -> None:
        assert self._folder
        complete = [found for found in layout.survey(self._folder, upto=step) if isinstance(found, Saved)]
        for old in layout.to_prune(complete, step, self._keep):
            old.path.rename(self._folder / f".removed-{old.path.name}-{secrets.token_hex(4)}")
        self._sweep(idle_since=path.stat().st_mtime)

    def _sweep(self, idle_since: float | None) -> None:
        """Delete what dead attempts have left; by the file system's own clock, of which another may be the master."""
        assert self._folder
        for path in self._folder.glob(".*") if self._folder.is_dir() else ():
            try:
                idle = (
                    0.0 if idle_since is None else idle_since - max(p.stat().st_mtime for p in [path, *path.iterdir()])
                )
            except OSError:
                continue  # somebody else has just deleted it
            if layout.is_dead(path.name, self._me, idle, IDLE_S):
                shutil.rmtree(path, ignore_errors=True)

    # --- the state -------------------------------------------------------------------------------------------------

    def _registered(self, functions: str) -> dict[str, Any]:
        """State that others registered with the manager, as DiLoCo does; all of it if the script gave none itself."""
        by_key: Mapping[str, Any] = getattr(self._manager, functions, {})
        return {key: f for key, f in by_key.items() if self._state is None or key not in SAME_AS_GIVEN}

    def _tree(self) -> dict[str, Any]:
        tree = {name: item.state_dict() for name, item in (self._state or {}).items()}
        registered = {key: state_dict() for key, state_dict in self._registered("_user_state_dicts").items()}
        return {**tree, OWN: {"manager": self._manager.state_dict(), "registered": registered}}

    def _restore_state(self) -> int:
        try:
            candidates, damaged = self._talk.first(self._candidates)
        except Failed as error:
            raise CheckpointError(f"{self._folder}: {error}") from None
        params = {
            name: [p for group in item.param_groups for p in group["params"]]
            for name, item in (self._state or {}).items()
            if hasattr(item, "param_groups")
        }
        failures = {layout.step_of(found.path.name) or 0: f"{found.path}: {found.reason}" for found in damaged}
        for candidate in candidates:
            try:
                tree = _dcp().read(candidate.path, self._tree(), params, self._talk)
                self._check_names(candidate.path, tree)
                self._talk.do(lambda tree=tree: self._load(tree))  # type: ignore[misc]
            except Failed as error:
                why = failures[candidate.step] = f"{candidate.path}: {error}"
                if self._talk.rank == 0:
                    say(f"THE CHECKPOINT OF STEP {candidate.step} CANNOT BE READ, trying an older one: {why}")
                continue
            self._manager.load_state_dict(tree[OWN]["manager"])
            self._done = candidate.step
            skipped = sorted((step for step in failures if step > candidate.step), reverse=True)
            outbox.say(messages.Restored(candidate.step, str(candidate.path), tuple(skipped[:AT_MOST])))
            if self._talk.rank == 0:
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
        """Those that are complete, and those of ours that are damaged."""
        assert self._folder
        complete, ignored = [], []
        for found in layout.survey(self._folder):
            if isinstance(found, Ignored):
                ignored.append(found)
            elif why := owned_files.distrust(found.path.stat()):
                raise Failed(f"{found.path} is not loaded: {why}")
            else:
                complete.append(found)
        damaged = [found for found in ignored if not found.foreign]
        foreign = [found for found in ignored if found.foreign]
        for line in _shortened([f"{found.path}: {found.reason}" for found in [*damaged, *foreign]]):
            say(f"ignored: {line}")
        return complete, damaged

    def _check_names(self, path: Path, tree: Mapping[str, Any]) -> None:
        there = {*tree, *tree[OWN]["registered"]} - {OWN}
        asked = {*(self._state or {}), *self._registered("_user_state_dicts")}
        if there != asked:
            raise CheckpointError(
                f"{path} holds {sorted(there)}, this script restores {sorted(asked)}: make them equal, and whatever "
                "registers itself with the manager (DiLoCo) before restore()"
            )

    def _load(self, tree: Mapping[str, Any]) -> None:
        for name, item in (self._state or {}).items():
            item.load_state_dict(tree[name])
        for key, load_state_dict in self._registered("_load_state_dict_fns").items():
            load_state_dict(tree[OWN]["registered"][key])


def _dcp() -> Any:
    """torch's checkpoints take 0.7 s to import, and most of the time there is none to read."""
    from ftslurm.checkpoint import snapshot

    return snapshot


def _shortened(lines: list[str]) -> list[str]:
    return [*lines[:AT_MOST], f"and {len(lines) - AT_MOST} more"] if len(lines) > AT_MOST else lines


def _unless_failed(staged: snapshot.Snapshot | Exception) -> snapshot.Snapshot:
    if isinstance(staged, Exception):
        raise staged
    return staged


def _number(variable: str, given: int | None, default: int) -> int:
    text = os.environ.get(variable, "") if given is None else str(given)
    try:
        number = int(text or default)
    except ValueError:
        number = -1
    if number < 0:
        name = variable.removeprefix("FTSLURM_CHECKPOINT_").lower() if given is not None else variable
        raise CheckpointError(f"{name}={text} is no number of at least 0")
    return number
