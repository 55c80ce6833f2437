"""Copies the state of a training to host memory; writes and reads such copies with torch.distributed.checkpoint (DCP).

A state is a tree: dicts, lists and tuples, with tensors and other objects in them. DCP stores the tensors, each under
its path in the tree, and of DTensors each rank's shard. The rest of the tree is pickled, with the path in place of each
tensor: types, integer keys and the like come back as they were, which DCP's own flattening does not promise.

A plain tensor that is equal on all ranks of the group is stored once; one that differs is stored for each rank.
Everything read here is a pickle; how its writer is checked, places.py says.
"""

from __future__ import annotations

import collections
import hashlib
import io
import itertools
import pickle
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.consensus import GroupFailed, RankGroup
from ftslurm.checkpoint.devices import synchronize
from ftslurm.checkpoint.files import Files
from ftslurm.checkpoint.store import Store
from ftslurm.checkpoint.trees import tensors_by_path

Tree = Mapping[str, Any]
Params = Mapping[str, list[torch.Tensor]]  # the parameters of each optimizer, by the optimizer's name in the tree
TREE = "tree"  # tree.pickle, or tree-0003.pickle for each rank when they differ

# A group of one rank saves without a process group, and DCP warns of that at every save and load.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


@dataclass(frozen=True)
class Piece:
    """This rank's part of a tensor: all of it, or a shard."""

    tensor: torch.Tensor
    size: torch.Size
    offsets: torch.Size
    first: bool  # whether this rank writes it if other ranks of the device mesh have the same piece
    placements: tuple[Any, ...] | None  # None: it is no DTensor


@dataclass(frozen=True)
class Snapshot:
    """A consistent copy of one rank's state in host memory."""

    tree: bytes
    pieces: dict[str, Piece]  # by path in the tree


def copy(tree: Tree, buffers: dict[str, torch.Tensor]) -> Snapshot:
    """Copy the state, overwriting the copy before. When this returns, the training may change its tensors.

    Args:
        buffers: host memory that is kept from one save to the next: pinning it anew would take longer than copying.
    """
    tensors = tensors_by_path(tree)
    synchronize(tensors.values())  # the optimizer may have a stream of its own
    pieces: dict[str, Piece] = {}
    for path, tensor in tensors.items():
        local, offsets, placements, first = tensor, torch.Size([0] * tensor.dim()), None, True
        if isinstance(tensor, DTensor):
            placements = tuple(tensor.placements)
            at = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)[1]
            local, offsets = tensor.to_local(), torch.Size(at)
            along = zip(placements, tensor.device_mesh.get_coordinate() or (), strict=False)
            first = not any(at for one, at in along if one.is_replicate() or one.is_partial())
        buffer = buffers.get(path)
        if buffer is None or (buffer.size(), buffer.dtype) != (local.size(), local.dtype):
            pinned = local.device.type == "cuda"
            buffer = buffers[path] = torch.empty(local.size(), dtype=local.dtype, pin_memory=pinned)
        buffer.copy_(local.detach(), non_blocking=True)
        pieces[path] = Piece(buffer, tensor.size(), offsets, first, placements)
    paths = {id(tensor): path for path, tensor in tensors.items()}

    class Pickler(pickle.Pickler):
        def persistent_id(self, leaf: object) -> str | None:
            return paths.get(id(leaf))

    out = io.BytesIO()
    Pickler(out).dump(tree)
    synchronize(tensors.values())  # now the copies are complete
    return Snapshot(out.getvalue(), pieces)


# --- writing ----------------------------------------------------------------------------------------------------------


def write(snapshot: Snapshot, store: Store, part: str, group: RankGroup) -> layout.Files:
    """Write a snapshot, all ranks together, and flush it to disk. Return what has been written, on rank 0.

    Raises:
        GroupFailed: writing failed on at least one rank; the files there are unusable.
    """
    there = Files(store, part)
    names, own_tree = _name_tensors(snapshot, group)
    mine = {
        names[path]: piece
        for path, piece in snapshot.pieces.items()
        if piece.first
        and (names[path] != path or piece.placements or zlib.crc32(path.encode()) % group.size == group.rank)
    }
    tree_file = f"{TREE}-{group.rank:04d}.pickle" if own_tree else f"{TREE}.pickle"
    writes_tree = own_tree or group.rank == 0

    def write_tree() -> None:
        if writes_tree:  # of plain types: a class would be found again only where its module lies today
            placements = {path: piece.placements for path, piece in snapshot.pieces.items()}
            content = {"names": names, "placements": placements, "tree": snapshot.tree, "ranks": group.size}
            with there.create_stream(tree_file, "wb") as stream:
                pickle.dump(content, stream)

    group.run(write_tree)
    _write_tensors(mine, there, group)
    return dict(collections.ChainMap(*group.gather(there.written)))


def _name_tensors(snapshot: Snapshot, group: RankGroup) -> tuple[dict[str, str], bool]:
    """Return the names of the tensors in the files, by path, and whether each rank writes a tree of its own."""
    names = {path: path for path in snapshot.pieces}
    if group.size == 1:
        return names, False
    digests = {path: _digest(piece.tensor) for path, piece in snapshot.pieces.items() if piece.placements is None}
    differ = {*group.agree(digests | {"": hashlib.sha256(snapshot.tree).hexdigest()}, _unequal)}
    names |= {path: f"{path}@{group.rank}" for path in differ & {*digests}}
    return names, group.agree("" in differ or any(name != path for path, name in names.items()), any)


def _unequal(everyone: list[dict[str, str]]) -> list[str]:
    """Return the keys, few as a rule, that do not have the same value on all ranks."""
    return [path for path in {*itertools.chain(*everyone)} if len({one.get(path) for one in everyone}) > 1]


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy(), usedforsecurity=False).hexdigest()


def _write_tensors(pieces: Mapping[str, Piece], there: Files, group: RankGroup) -> None:
    """Do what dcp.save does, which would send pickles over Gloo. No two ranks have the same piece.

    Raises:
        GroupFailed: writing failed on at least one rank.
    """
    writer, planner = there.writer(), _SavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner({name: piece.tensor for name, piece in pieces.items()})
    writer.set_up_storage_writer(group.rank == 0)
    facts = {name: (name, str(p.tensor.dtype)[6:], p.tensor.size(), p.offsets, p.size) for name, p in pieces.items()}

    def write_own() -> list[Any]:
        plan = writer.prepare_local_plan(SavePlan([_item(*one) for one in facts.values()]))
        plan = writer.prepare_global_plan([plan] * group.size)[group.rank]
        done = writer.write_data(planner.finish_plan(plan), planner).wait()
        return [(facts[one.index.fqn], one.size_in_bytes, vars(one.storage_data)) for one in done]

    written = group.gather(group.run(write_own))

    def finish() -> None:
        items = [[(_item(*fact), size, _StorageInfo(**where)) for fact, size, where in each] for each in written]
        _, metadata = planner.create_global_plan([SavePlan([item for item, _, _ in each]) for each in items])
        writer.finish(
            metadata, [[WriteResult(item.index, size, where) for item, size, where in each] for each in items]
        )

    group.run_on_first(finish)


def _item(name: str, dtype: str, sizes: Sequence[int], offsets: Sequence[int], size: Sequence[int]) -> WriteItem:
    chunk = ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes))
    data = TensorWriteData(chunk, TensorProperties(getattr(torch, dtype)), torch.Size(size))
    return WriteItem(MetadataIndex(name, torch.Size(offsets)), WriteItemType.SHARD, tensor_data=data)


class _SavePlanner(DefaultSavePlanner):  # type: ignore[misc]
    def lookup_object(self, index: MetadataIndex) -> Any:
        return self.state_dict[index.fqn]


# --- reading ----------------------------------------------------------------------------------------------------------


def read(store: Store, step: int, live: Tree, params: Params, group: RankGroup) -> dict[str, Any]:
    """Read the tree that was written, all ranks together. Tensors that `live` has too are overwritten in place.

    Args:
        live: the present state, which shows where tensors lie (device, shards).
        params: a fresh optimizer has no state yet; what is read for it is placed as its parameters are.

    Raises:
        GroupFailed: at least one rank cannot read it; `live` may have been changed in part.
    """
    manifest = group.run(lambda: store.manifest(step))
    if group.agree(manifest.part, lambda parts: len({*parts})) > 1:
        raise GroupFailed("it has just been replaced")
    there = Files(store, manifest.part, manifest.files)
    content, targets = group.run(lambda: _plan(there, live, params, group))
    request = {content["names"][path]: target for path, target in targets.items()}

    def read_tensors() -> None:
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        dcp.load(request, storage_reader=there.reader(), planner=planner, no_dist=True)  # each rank reads for itself

    group.run(read_tensors)

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, path: str) -> torch.Tensor:
            return targets[path]

    loaded: dict[str, Any] = group.run(Unpickler(io.BytesIO(content["tree"])).load)
    return loaded


def _plan(there: Files, live: Tree, params: Params, group: RankGroup) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the content of this rank's tree file, and the tensors to read into, by path."""
    own = f"{TREE}-{group.rank:04d}.pickle"
    tree_file = own if own in there.expected else f"{TREE}.pickle"
    if tree_file not in there.expected:
        raise GroupFailed(f"it has nothing for rank {group.rank}: it was saved by groups of fewer ranks")
    with there.create_stream(tree_file, "rb") as file:
        content = pickle.load(file)  # noqa: S301 places.py has checked whose it is
    names = content["names"]
    if content["ranks"] != group.size and any(name != path for path, name in names.items()):
        raise GroupFailed(f"it holds tensors of each of {content['ranks']} ranks, and the group has {group.size} now")
    known = there.reader().read_metadata().state_dict_metadata
    have = tensors_by_path(live)
    return content, {
        path: _target(path, placements, known[names[path]], have.get(path), params)
        for path, placements in content["placements"].items()
    }


def _target(
    path: str,
    placements: tuple[Any, ...] | None,
    known: TensorStorageMetadata,
    live: torch.Tensor | None,
    params: Params,
) -> torch.Tensor:
    """Return the tensor to read into: the live one, or a new one placed as its optimizer's parameter is."""
    if live is not None and live.size() == known.size:
        return live.detach()
    dtype = known.properties.dtype
    param = _param_of(path, params)
    if placements is None or (param is not None and not isinstance(param, DTensor)):
        return torch.empty(known.size, dtype=dtype)
    if param is None:
        raise GroupFailed(f"{path} was sharded over the group, and nothing shows how it is to be now")
    if param.size() == known.size:
        placements = param.placements
    return zeros(known.size, dtype=dtype, device_mesh=param.device_mesh, placements=placements)


def _param_of(path: str, params: Params) -> Any:
    """Return the parameter to which `optimizer.state.7.exp_avg` belongs; None if it is not of an optimizer's state."""
    for name, parameters in params.items():
        index = path.removeprefix(f"{name}.state.").partition(".")[0]
        if path.startswith(f"{name}.state.") and index.isdigit() and int(index) < len(parameters):
            return parameters[int(index)]
    return None
