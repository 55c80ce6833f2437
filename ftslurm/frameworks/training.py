"""What the modules for frameworks share: the updates of all groups and their state.

An update is one step of the optimizer and one commit, however many batches its gradients are accumulated over. What
happens between two updates (an evaluation, a schedule, early stopping) belongs to the first one. A checkpoint is saved,
and a group that comes back copies the state, when the next one begins.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import torch
from packaging.specifiers import SpecifierSet
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchft import Manager
from torchft import process_group as process_groups

from ftslurm.checkpoint import Checkpointer, Stateful
from ftslurm.data import Batches
from ftslurm.data.batches import batches_per_epoch
from ftslurm.errors import FtslurmError, complain
from ftslurm.words import listed
from ftslurm.worker.native_group import native_group

GROUP = os.environ.get("REPLICA_GROUP_ID", "0")


class FrameworkError(FtslurmError):
    """The script uses something of its framework that replica groups cannot share."""


def check_version(package: str, tried: str) -> None:
    """Warn if the installed version of a framework has not been tried."""
    if (found := version(package)) not in SpecifierSet(tried):
        complain(f"{package} {found} has not been tried with ftslurm.frameworks: install {package}{tried}")


def tell_unheld(callbacks: Iterable[object]) -> None:
    """Name the callbacks of the script among those whose state is neither healed nor saved."""
    libraries = ("ftslurm", "transformers", "lightning")
    names = [type(one).__name__ for one in callbacks if type(one).__module__.partition(".")[0] not in libraries]
    if names:
        complain(f"neither healed nor saved: the state, if any, of {listed(names)}: ftslurm help fault-tolerant")


def updates_per_epoch(loader: DataLoader, per_update: int) -> int:
    """Return the number of updates that train on all of the data when all groups take part.

    Args:
        loader: the batches of this rank, as if there were one group.
        per_update: how many of them this rank adds to an update.

    Raises:
        DataError: the batches cannot be numbered.
    """
    return -(-batches_per_epoch(loader) // (per_update * int(os.environ.get("NUM_REPLICA_GROUPS", "1"))))


def refuse(found: Mapping[str, object]) -> None:
    """Raise an error if the script uses a feature that is not supported with replica groups.

    Args:
        found: features, each with what to do instead; true if the script uses it.

    Raises:
        FrameworkError: names those that it uses.
    """
    if used := [feature for feature, uses in found.items() if uses]:
        raise FrameworkError(f"not supported with replica groups: {'; '.join(used)} (ftslurm help fault-tolerant)")


def process_group(timeout: timedelta) -> tuple[Any, str]:
    """Return what averages tensors between groups (torchft.process_group), and the kind of device they must be on."""
    kind = os.environ.get("FTSLURM_PROCESS_GROUP", "gloo")
    device = "cuda" if kind != "gloo" and torch.cuda.is_available() else "cpu"
    if kind == "native":
        return native_group("nccl2" if device == "cuda" else "gloo", timeout), device
    names = {"gloo": "Gloo", "nccl": "NCCL", "baby-nccl": "BabyNCCL"}
    return getattr(process_groups, f"ProcessGroup{names[kind]}")(timeout=timeout), device


class Training:
    """The part of one process in a training of all groups."""

    _once = False  # whether this process has begun one

    def __init__(self, held: Mapping[str, Stateful], loader: DataLoader, per_update: int, seed: int) -> None:
        """Join the training. If all groups start, restore the newest checkpoint.

        Args:
            held: everything that decides about the updates, by name; it is healed and saved.
            loader, per_update, seed: as for Batches.

        Raises:
            FrameworkError: it is the second training of this process, or the loader's batches cannot be numbered.
        """
        refuse({"a second training in one process: make each a run": Training._once})
        self.updates_per_epoch = updates_per_epoch(loader, per_update)
        self._held = held
        self._models = {name: item for name, item in held.items() if isinstance(item, nn.Module)}
        self._settings = {name: settings(item) for name, item in held.items() if isinstance(item, Optimizer)}
        self._began = False  # there is a quorum whose batches have not been taken
        self._due = "take"  # of take, average, commit: each update has one of each, in this order
        timeout = timedelta(seconds=int(os.environ.get("TORCHFT_TIMEOUT_SEC", "60")))  # torchft.timeout_s
        group, self._device = process_group(timeout)
        self.manager = Manager(
            pg=group,
            min_replica_size=1,
            use_async_quorum=False,  # the batches depend on the quorum
            init_sync=False,  # all groups draw the same weights
            load_state_dict=self._load,
            state_dict=self._state,
            replica_id=f"group_{GROUP}",
            timeout=timeout,
        )
        Training._once = True
        self._batches = Batches(loader, self.manager, per_update, seed)
        self._checkpointer = Checkpointer(self.manager)
        self._checkpointer.restore()

    @property
    def updates(self) -> int:
        """The number of committed updates."""
        return int(self.manager.current_step())

    def begin(self) -> None:
        """Save a checkpoint if it is time, and find the other groups; a group without the state copies it."""
        if not self._began:
            self.save()
            self.manager.start_quorum()
        self._began = True

    def take(self) -> list[Any]:
        """Return the batches of this rank in the next update.

        Raises:
            FrameworkError: the last update has not ended.
        """
        self._expect("take")
        self._due = "average"
        self.begin()
        self._began = False
        self._before = [(buffer, buffer.clone()) for model in self._models.values() for buffer in model.buffers()]
        return self._batches.take()

    def average(self, model: nn.Module) -> None:
        """Average gradients and buffers over the groups. After an error the update will not be committed."""
        self._due = self._due.replace("average", "commit")
        tensors = [p.grad for p in model.parameters() if p.grad is not None]
        tensors += [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        if tensors and self._reduce(flat := torch.cat([tensor.detach().flatten() for tensor in tensors])):
            for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.data.copy_(mean.view_as(tensor))  # .data: another backward pass of this update may follow

    def commit(self) -> bool:
        """Return whether the groups take this update; if not, buffers are as before it.

        Raises:
            FrameworkError: it is not one update: its gradients are not averaged, or it has been voted on.
        """
        self._expect("commit")
        self._due = "take"
        committed = bool(self.manager.should_commit())
        if not committed:
            for buffer, before in self._before:
                buffer.copy_(before)
        return committed

    def agree(self, values: Sequence[float]) -> list[float]:
        """Return the means over the groups of what each has measured after this update.

        If a group dies meanwhile, the values of this one: equal weights give equal values.
        """
        means = torch.tensor(values, dtype=torch.float64, device=self._device)
        return means.tolist() if self._reduce(means) else [*values]

    def save(self) -> None:
        """Save a checkpoint if it is time."""
        self._checkpointer.step()

    def close(self) -> None:
        """Save the last checkpoint if it is time, and leave the other groups."""
        self.save()
        self._checkpointer.close()
        self.manager.shutdown(wait=False)

    def _expect(self, due: str) -> None:
        if self._due != due:
            raise FrameworkError(
                "an update is not its batches, a backward pass and one step of the optimizer, in this order: take the "
                "batches, compute gradients and accumulate them only by the framework's own methods and settings"
            )

    def _reduce(self, tensor: Tensor) -> bool:
        self.manager.allreduce(tensor).wait()  # never raises
        return not self.manager.errored()

    def _state(self) -> dict[str, Any]:
        held = {name: item.state_dict() for name, item in self._held.items()}
        for name, model in self._models.items():  # another group copies the state while this one computes
            held[name] = held[name] | {
                key: buffer.clone() for key, buffer in model.named_buffers() if key in held[name]
            }
        return {"held": held, "settings": self._settings}

    def _load(self, state: dict[str, Any]) -> None:
        for name, item in self._held.items():
            base = getattr(getattr(item, "scheduler", item), "base_lrs", None)  # Accelerate wraps a schedule
            item.load_state_dict(state["held"][name] | ({"base_lrs": base} if base else {}))
        for name, mine in self._settings.items():  # what the command line has changed counts
            for now, own, saved in zip(self._held[name].param_groups, mine, state["settings"][name], strict=True):  # type: ignore[attr-defined]
                changed = {key: value for key, value in own.items() if value != saved.get(key)}
                if "initial_lr" in changed and saved["initial_lr"]:  # there is a schedule
                    changed["lr"] = now["lr"] * own["initial_lr"] / saved["initial_lr"]
                now.update(changed)


def settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the settings of each group of parameters."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
