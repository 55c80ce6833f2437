"""Copies the state of a training to host memory; writes and reads such copies with torch.distributed.checkpoint (DCP).

A state is a tree: dicts, lists and tuples, with tensors and other objects in them. DCP stores the tensors, each under
its path in the tree, and of DTensors each rank's shard. The rest of the tree is pickled, with the path in place of each
tensor: types, integer keys and the like come back as they were, which DCP's own flattening does not promise.

A plain tensor that is equal on all ranks of the group is stored once; one that differs is stored for each rank.
Everything read here is a pickle; how its writer is checked, files.py says.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor, zeros
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ftslurm.checkpoint.consensus import GroupFailed, RankGroup
from ftslurm.checkpoint.files import Files

Tree = Mapping[str, Any]
Params = Mapping[str, list[torch.Tensor]]  # the parameters of each optimizer, by the optimizer's name in the tree
TREE = "tree"  # tree.pickle, or tree-0003.pickle for each rank when they differ
_PLAIN = (torch.Tensor, torch.nn.Parameter)  # a subclass may be more than its data: it is pickled with the tree

# A group of one rank saves without a process group, and DCP warns of that at every save and load.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


@dataclass(frozen=True)
class Slot:
    """One tensor of the tree: its name in DCP's files, and its placements if it was a DTensor."""

    name: str
    placements: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class Piece:
    """This rank's part of a tensor: all of it, or a shard."""

    tensor: torch.Tensor
    size: torch.Size
    offsets: torch.Size
    first: bool  # whether this rank writes it if other ranks of the device mesh have the same piece


@dataclass(frozen=True)
class Snapshot:
    """A consistent copy of one rank's state in host memory."""

    tree: bytes
    slots: dict[str, Slot]  # by path in the tree
    pieces: dict[str, Piece]  # by path in the tree


class Stage:
    """Host memory that is kept from one save to the next: pinning it anew would take longer than copying."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def copy(self, tree: Tree) -> Snapshot:
        """Copy the state, overwriting the copy before. When this returns, the training may change its tensors."""
        tensors = tensors_by_path(tree)
        slots: dict[str, Slot] = {}
        pieces: dict[str, Piece] = {}
        on_accelerator = False
        for path, tensor in tensors.items():
            local, offsets, placements, first = tensor, torch.Size([0] * tensor.dim()), None, True
            if isinstance(tensor, DTensor):
                placements = tuple(tensor.placements)
                at = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)[1]
                local, offsets = tensor.to_local(), torch.Size(at)
                along = zip(placements, tensor.device_mesh.get_coordinate() or (), strict=False)
                first = not any(at for one, at in along if one.is_replicate() or one.is_partial())
            on_accelerator |= local.device.type != "cpu"
            buffer = self._buffer(path, local)
            buffer.copy_(local.detach(), non_blocking=True)
            slots[path] = Slot(path, placements)
            pieces[path] = Piece(buffer, tensor.size(), offsets, first)
        paths = {id(tensor): path for path, tensor in tensors.items()}
        tree_bytes = _pickle(tree, lambda leaf: paths.get(id(leaf)) if isinstance(leaf, torch.Tensor) else None)
        if on_accelerator:
            torch.accelerator.synchronize()
        return Snapshot(tree_bytes, slots, pieces)

    def _buffer(self, path: str, like: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers.get(path)
        if buffer is None or (buffer.size(), buffer.dtype) != (like.size(), like.dtype):
            buffer = torch.empty(like.size(), dtype=like.dtype, pin_memory=like.device.type == "cuda")
            self._buffers[path] = buffer
        return buffer


def tensors_by_path(tree: object) -> dict[str, torch.Tensor]:
    """Return the tensors of a tree by their paths, such as `optimizer.state.0.exp_avg`."""
    found: dict[str, torch.Tensor] = {}

    def walk(node: Any, path: str) -> None:
        if isinstance(node, DTensor) or (type(node) in _PLAIN and node.layout == torch.strided):
            while path in found:  # {"a.b": x} beside {"a": {"b": y}}
                path += "'"
            found[path] = node
        elif isinstance(node, Mapping):
            for key, value in node.items():
                walk(value, f"{path}.{key}" if path else str(key))
        elif isinstance(node, (list, tuple)):
            for index, value in enumerate(node):
                walk(value, f"{path}.{index}")

    walk(tree, "")
    return found


# --- writing ----------------------------------------------------------------------------------------------------------


def write(snapshot: Snapshot, place: str, group: RankGroup) -> tuple[dict[str, int], dict[str, list[int]]]:
    """Write a snapshot into an empty place, all ranks together, and flush it to disk.

    Returns:
        The size in bytes, and the checksums of the blocks, of each file by its name.

    Raises:
        GroupFailed: writing failed on at least one rank; the files there are unusable.
    """
    there = Files(place)
    slots, own_tree = _name_tensors(snapshot, group)
    mine = {
        slots[path].name: piece
        for path, piece in snapshot.pieces.items()
        if piece.first and (slots[path] != Slot(path) or zlib.crc32(path.encode()) % group.size == group.rank)
    }
    tree_file = f"{TREE}-{group.rank:04d}.pickle" if own_tree else f"{TREE}.pickle"
    writes_tree = own_tree or group.rank == 0

    def write_tree() -> None:
        if writes_tree:  # slots as plain tuples: a class would be found again only where its module lies today
            content = {path: (slot.name, slot.placements) for path, slot in slots.items()}
            there.write(tree_file, _pickle({"slots": content, "tree": snapshot.tree, "ranks": group.size}))

    group.run(write_tree)
    _write_tensors(mine, there, group)
    facts = {name: one for each in group.agree(there.written, list) for name, one in each.items()}
    return {name: size for name, (size, _) in facts.items()}, {name: crc32 for name, (_, crc32) in facts.items()}


def _name_tensors(snapshot: Snapshot, group: RankGroup) -> tuple[dict[str, Slot], bool]:
    """Return the slots with the names of the tensors in the files, and whether each rank writes a tree of its own."""
    if group.size == 1:
        return snapshot.slots, False
    plain = [path for path, slot in snapshot.slots.items() if slot.placements is None]
    digests = {path: _digest(snapshot.pieces[path].tensor) for path in plain}
    own = [digests, hashlib.sha256(snapshot.tree).hexdigest()]
    same, differ = group.agree(own, _compare)
    slots = dict(snapshot.slots)
    for path in plain:
        if path not in same:
            slots[path] = replace(slots[path], name=f"{path}@{group.rank}")
    return slots, group.agree(differ or slots != snapshot.slots, any)


def _compare(everyone: list[Any]) -> tuple[list[str], bool]:
    """Return which tensors are equal on all ranks, and whether the trees differ."""
    (first, tree), *others = everyone
    same = [path for path, digest in first.items() if all(other.get(path) == digest for other, _ in others)]
    return same, any(other != tree for _, other in others)


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy(), usedforsecurity=False).hexdigest()


def _write_tensors(pieces: Mapping[str, Piece], there: Files, group: RankGroup) -> None:
    """Do what dcp.save does, which would send pickles over Gloo. No two ranks have the same piece.

    Raises:
        GroupFailed: writing failed on at least one rank.
    """
    writer, planner = there.writer(), _SavePlanner()
    planner.set_up_planner(pieces)
    writer.set_up_storage_writer(group.rank == 0)
    facts = {name: (name, str(p.tensor.dtype)[6:], p.tensor.size(), p.offsets, p.size) for name, p in pieces.items()}
    written: list[Any] = []  # on rank 0

    def write_own() -> list[Any]:
        plan = writer.prepare_local_plan(SavePlan([_item(*one) for one in facts.values()]))
        plan = writer.prepare_global_plan([plan] * group.size)[group.rank]
        done = writer.write_data(planner.finish_plan(plan), planner).wait()
        return [(facts[one.index.fqn], one.size_in_bytes, vars(one.storage_data)) for one in done]

    def finish() -> None:
        items = [[(_item(*fact), size, _StorageInfo(**where)) for fact, size, where in each] for each in written]
        _, metadata = planner.create_global_plan([SavePlan([item for item, _, _ in each]) for each in items])
        writer.finish(
            metadata, [[WriteResult(item.index, size, where) for item, size, where in each] for each in items]
        )

    group.agree(group.run(write_own), written.extend)
    group.run_on_first(finish)


def _item(name: str, dtype: str, sizes: Sequence[int], offsets: Sequence[int], size: Sequence[int]) -> WriteItem:
    chunk = ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes))
    data = TensorWriteData(chunk, TensorProperties(getattr(torch, dtype)), torch.Size(size))
    return WriteItem(MetadataIndex(name, torch.Size(offsets)), WriteItemType.SHARD, tensor_data=data)


class _SavePlanner(DefaultSavePlanner):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        piece: Piece = self.state_dict[index.fqn]
        return piece.tensor


# --- reading ----------------------------------------------------------------------------------------------------------


def read(place: str, live: Tree, params: Params, group: RankGroup) -> dict[str, Any]:
    """Read the tree that was written, all ranks together. Tensors that `live` has too are overwritten in place.

    Args:
        live: the present state, which shows where tensors lie (device, shards).
        params: a fresh optimizer has no state yet; what is read for it is placed as its parameters are.

    Raises:
        GroupFailed: at least one rank cannot read it; `live` may have been changed in part.
    """
    there = Files(place)
    content, targets = group.run(lambda: _plan(there, live, params, group))
    slots: dict[str, Slot] = content["slots"]
    request = {slots[path].name: target for path, target in targets.items()}

    def read_tensors() -> None:
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        dcp.load(request, storage_reader=there.reader(), planner=planner, no_dist=True)  # each rank reads for itself

    group.run(read_tensors)
    loaded: dict[str, Any] = group.run(_TreeUnpickler(io.BytesIO(content["tree"]), targets).load)
    return loaded


def _plan(there: Files, live: Tree, params: Params, group: RankGroup) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the content of this rank's tree file, and the tensors to read into, by path."""
    own = f"{TREE}-{group.rank:04d}.pickle"
    tree_file = own if own in there.expected else f"{TREE}.pickle"
    if tree_file not in there.expected:
        raise GroupFailed(f"it has nothing for rank {group.rank}: it was saved by groups of fewer ranks")
    with there.open(tree_file) as file:
        content = pickle.load(file)  # noqa: S301 files.py has checked whose it is
    slots = {path: Slot(*slot) for path, slot in content["slots"].items()}
    if content["ranks"] != group.size and any("@" in slot.name for slot in slots.values()):
        raise GroupFailed(f"it holds tensors of each of {content['ranks']} ranks, and the group has {group.size} now")
    known = there.reader().read_metadata().state_dict_metadata
    have = tensors_by_path(live)
    targets = {path: _target(path, slot, known[slot.name], have.get(path), params) for path, slot in slots.items()}
    return {**content, "slots": slots}, targets


def _target(
    path: str, slot: Slot, known: TensorStorageMetadata, live: torch.Tensor | None, params: Params
) -> torch.Tensor:
    """Return the tensor to read into: the live one, or a new one placed as its optimizer's parameter is."""
    if live is not None and live.size() == known.size:
        return live.detach()
    dtype = known.properties.dtype
    param = _param_of(path, params)
    if slot.placements is None or (param is not None and not isinstance(param, DTensor)):
        return torch.empty(known.size, dtype=dtype)
    if param is None:
        raise GroupFailed(f"{path} was sharded over the group, and nothing shows how it is to be now")
    placements = param.placements if param.size() == known.size else slot.placements
    return zeros(known.size, dtype=dtype, device_mesh=param.device_mesh, placements=placements)


def _param_of(path: str, params: Params) -> Any:
    """Return the parameter to which `optimizer.state.7.exp_avg` belongs; None if it is not of an optimizer's state."""
    for name, parameters in params.items():
        index = path.removeprefix(f"{name}.state.").partition(".")[0]
        if path.startswith(f"{name}.state.") and index.isdigit() and int(index) < len(parameters):
            return parameters[int(index)]
    return None


def _pickle(content: object, path_of: Callable[[object], str | None] = lambda _: None) -> bytes:
    class Pickler(pickle.Pickler):
        def persistent_id(self, leaf: object) -> str | None:
            return path_of(leaf)

    out = io.BytesIO()
    Pickler(out).dump(content)
    return out.getvalue()


class _TreeUnpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, path: str) -> torch.Tensor:
        return self.tensors[path]
