"""The state of a training, staged in memory, written to and read from a folder with torch.distributed.checkpoint (DCP).

A state is a tree: dicts, lists and tuples, with tensors and other objects in them. DCP gets the tensors, under the
names of their places, and of DTensors each rank's shard. The rest of the tree is pickled with names in the tensors'
places, so that types, integer keys and the like come back as they were, which DCP's own flattening does not promise.

A plain tensor that is equal on all ranks of the group is stored once. One that differs is stored for each rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import os
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, TypeVar

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor, zeros
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.consensus import Failed, Ranks
from ftslurm.security import owned_files

T = TypeVar("T")
Tree = Mapping[str, Any]
TREE = "tree"  # tree.pickle, or tree-0003.pickle for each rank when they differ

# Alone in its group is an ordinary thing to be; DCP says so at every save and load.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


@dataclass(frozen=True)
class Slot:
    """One tensor of the tree: its name, and how it was sharded over the group, if it was a DTensor."""

    name: str
    placements: tuple[Any, ...] | None = None


class Piece:
    """What this rank holds of a tensor: all of it, or a shard. DCP asks it what there is to write."""

    def __init__(self, tensor: torch.Tensor, size: torch.Size, offsets: torch.Size) -> None:
        self.tensor, self.size, self.offsets = tensor, size, offsets

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        chunk = ChunkStorageMetadata(offsets=self.offsets, sizes=self.tensor.size())
        data = TensorWriteData(chunk, TensorProperties.create_from_tensor(self.tensor), self.size)
        return [WriteItem(MetadataIndex(name, self.offsets), WriteItemType.SHARD, tensor_data=data)]


@dataclass(frozen=True)
class Snapshot:
    """A consistent copy of the state in host memory, as one rank has it."""

    tree: bytes
    slots: dict[str, Slot]  # by place
    pieces: dict[str, Piece]  # by place


class Stage:
    """Host memory that is kept from one save to the next: pinning it anew would take longer than copying."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def copy(self, tree: Tree) -> Snapshot:
        """Copy the state; when this returns, the training may change its tensors. The last copy is overwritten."""
        tensors = places(tree)
        slots: dict[str, Slot] = {}
        pieces: dict[str, Piece] = {}
        on_accelerator = False
        for place, tensor in tensors.items():
            local, offsets, placements = tensor, torch.Size([0] * tensor.dim()), None
            if isinstance(tensor, DTensor):
                placements = tuple(tensor.placements)
                at = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)[1]
                local, offsets = tensor.to_local(), torch.Size(at)
            on_accelerator |= local.device.type != "cpu"
            buffer = self._buffer(place, local)
            buffer.copy_(local.detach(), non_blocking=True)
            slots[place] = Slot(place, placements)
            pieces[place] = Piece(buffer, tensor.size(), offsets)
        names = {id(tensor): place for place, tensor in tensors.items()}
        tree_bytes = _pickle(tree, lambda leaf: names.get(id(leaf)) if isinstance(leaf, torch.Tensor) else None)
        if on_accelerator:
            torch.accelerator.synchronize()
        return Snapshot(tree_bytes, slots, pieces)

    def _buffer(self, place: str, like: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers.get(place)
        if buffer is None or (buffer.size(), buffer.dtype) != (like.size(), like.dtype):
            buffer = torch.empty(like.size(), dtype=like.dtype, pin_memory=like.device.type == "cuda")
            self._buffers[place] = buffer
        return buffer


def write(snapshot: Snapshot, folder: Path, ranks: Ranks) -> tuple[dict[str, int], dict[str, int]]:
    """Write it, all ranks together, into a folder that exists; sizes and checksums of its files, now on disk.

    Raises:
        Failed: what is in the folder is of no use.
    """
    slots, own_tree = _name(snapshot, ranks)
    pieces = {slots[place].name: piece for place, piece in snapshot.pieces.items()}
    name = f"{TREE}-{ranks.rank:04d}.pickle" if own_tree else f"{TREE}.pickle"

    # What dcp.save() does, but for its object collectives, which need NumPy.
    planner, writer = _Planner(), dcp.FileSystemWriter(folder, overwrite=True)  # a folder of our own, and empty

    def plan() -> Any:
        planner.set_up_planner(pieces, writer.storage_meta(), ranks.rank == 0)
        writer.set_up_storage_writer(ranks.rank == 0)
        return writer.prepare_local_plan(planner.create_local_plan())

    def put() -> Any:
        if own_tree or ranks.rank == 0:
            owned_files.write_file(
                folder / name, _pickle({"slots": slots, "tree": snapshot.tree, "ranks": ranks.count})
            )
        return writer.write_data(
            planner.finish_plan(writer.prepare_global_plan(global_plans)[ranks.rank]), planner
        ).wait()

    def look() -> dict[str, tuple[int, int]]:
        # Each rank looks at its own files: those of another node may not be in sight yet.
        mine = [path for path in folder.iterdir() if path.name.startswith(f"__{ranks.rank}_")]
        mine += [folder / name] if own_tree or ranks.rank == 0 else []
        mine += [folder / ".metadata"] if ranks.rank == 0 else []
        for path in mine:
            path.chmod(0o600)
        return {path.name: (path.stat().st_size, layout.checksum(path)) for path in mine}

    plans = ranks.collect(plan)
    global_plans, metadata = ranks.do(lambda: planner.create_global_plan(plans))
    written = ranks.collect(put)
    ranks.first(lambda: writer.finish(metadata, written))
    files = {name: facts for found in ranks.collect(look) for name, facts in found.items()}
    return {name: size for name, (size, _) in files.items()}, {name: crc32 for name, (_, crc32) in files.items()}


def read(folder: Path, live: Tree, params: Mapping[str, list[torch.Tensor]], ranks: Ranks) -> dict[str, Any]:
    """The tree that was written, all ranks together. Tensors that `live` has are read in place: it is changed.

    Args:
        live: the present state, which shows where tensors lie (device, shards).
        params: the parameters of each optimizer, by its name; a fresh one has no state yet, which then is placed as its
            parameters are.

    Raises:
        Failed: it cannot be read, on one of the ranks at least; `live` may have been changed in part.
    """
    ranks.do(lambda: _verify(folder, ranks))
    content, targets = ranks.do(lambda: _plan(folder, live, params, ranks))
    slots: dict[str, Slot] = content["slots"]
    request = {slots[place].name: target for place, target in targets.items()}

    def fetch() -> None:
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        reader = _Reader(folder)
        dcp.load(request, storage_reader=reader, planner=planner, no_dist=True)  # reading needs nobody else

    ranks.do(fetch)
    loaded: dict[str, Any] = ranks.do(_Unpickler(io.BytesIO(content["tree"]), targets).load)
    return loaded


def _verify(folder: Path, ranks: Ranks) -> None:
    if why := layout.altered(folder, ranks.rank, ranks.count):
        raise Failed(why)


def _plan(
    folder: Path, live: Tree, params: Mapping[str, list[torch.Tensor]], ranks: Ranks
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """What this rank's tree file holds, and the tensors to read into, by place."""
    own = folder / f"{TREE}-{ranks.rank:04d}.pickle"
    path = own if own.exists() else folder / f"{TREE}.pickle"
    if not path.exists():
        raise Failed(f"it has nothing for rank {ranks.rank}: it was saved by groups of fewer ranks")
    with _open(path) as file:
        content = pickle.load(file)  # noqa: S301 nobody but us can have written it: _open has looked
    slots: dict[str, Slot] = content["slots"]
    if content["ranks"] != ranks.count and any("@" in slot.name for slot in slots.values()):
        raise Failed(f"it holds tensors of each of {content['ranks']} ranks, and the group has {ranks.count} now")
    known = _Reader(folder).read_metadata().state_dict_metadata
    have = places(live)
    return content, {
        place: _target(place, slot, known[slot.name], have.get(place), params) for place, slot in slots.items()
    }


def places(tree: object) -> dict[str, torch.Tensor]:
    """The tensors of a tree by the names of their places, such as `optimizer.state.0.exp_avg`."""
    found: dict[str, torch.Tensor] = {}

    def walk(node: Any, place: str) -> None:
        if isinstance(node, DTensor) or (type(node) in _PLAIN and node.layout == torch.strided):
            while place in found:  # {"a.b": x} beside {"a": {"b": y}}
                place += "'"
            found[place] = node
        elif isinstance(node, Mapping):
            for key, value in node.items():
                walk(value, f"{place}.{key}" if place else str(key))
        elif isinstance(node, (list, tuple)):
            for index, value in enumerate(node):
                walk(value, f"{place}.{index}")

    walk(tree, "")
    return found


_PLAIN = (torch.Tensor, torch.nn.Parameter)  # a subclass may be more than its data: it is pickled with the tree


def _name(snapshot: Snapshot, ranks: Ranks) -> tuple[dict[str, Slot], bool]:
    """What each tensor is called in the files, and whether each rank has a tree of its own."""
    if ranks.count == 1:
        return snapshot.slots, False
    plain = [place for place, slot in snapshot.slots.items() if slot.placements is None]
    digests = {place: _digest(snapshot.pieces[place].tensor) for place in plain}
    everyone = ranks.gather((digests, hashlib.sha256(snapshot.tree).digest()))
    same = {place for place, digest in digests.items() if all(other.get(place) == digest for other, _ in everyone)}
    slots = dict(snapshot.slots)
    for place in plain:
        if place not in same:
            slots[place] = replace(slots[place], name=f"{place}@{ranks.rank}")
    differ = len({tree for _, tree in everyone}) > 1
    return slots, any(ranks.gather(differ or slots != snapshot.slots))


def _digest(tensor: torch.Tensor) -> bytes:
    size = tensor.nbytes
    data = (ctypes.c_char * size).from_address(tensor.data_ptr()) if size else b""
    return hashlib.sha256(data, usedforsecurity=False).digest()


def _target(
    place: str,
    slot: Slot,
    known: TensorStorageMetadata,
    live: torch.Tensor | None,
    params: Mapping[str, list[torch.Tensor]],
) -> torch.Tensor:
    """Where a tensor is read into: the live one, or a new one placed as its optimizer's parameter is."""
    if live is not None and live.size() == known.size:
        return live.detach()
    dtype = known.properties.dtype
    param = _param_of(place, params)
    if slot.placements is None or (param is not None and not isinstance(param, DTensor)):
        return torch.empty(known.size, dtype=dtype)
    if param is None:
        raise Failed(f"{place} was sharded over the group, and nothing shows how it is to be now")
    placements = param.placements if param.size() == known.size else slot.placements
    return zeros(known.size, dtype=dtype, device_mesh=param.device_mesh, placements=placements)


def _param_of(place: str, params: Mapping[str, list[torch.Tensor]]) -> Any:
    """The parameter to which `optimizer.state.7.exp_avg` belongs; None if it is not of an optimizer's state."""
    for name, parameters in params.items():
        index = place.removeprefix(f"{name}.state.").partition(".")[0]
        if place.startswith(f"{name}.state.") and index.isdigit() and int(index) < len(parameters):
            return parameters[int(index)]
    return None


class _Planner(DefaultSavePlanner):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        piece: Piece = self.state_dict[index.fqn]
        return piece.tensor


class _Reader(dcp.FileSystemReader):  # type: ignore[misc]
    """Opens only files that nobody else can have written: DCP's metadata is a pickle."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fs = _OwnFiles()


class _OwnFiles(FileSystem):  # type: ignore[misc]
    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[IO[bytes]]:
        assert mode == "rb"
        with _open(Path(path)) as file:
            yield file


def _open(path: Path) -> IO[bytes]:
    file = owned_files.open_file(path)
    if why := owned_files.distrust(os.fstat(file.fileno())):
        file.close()
        raise Failed(f"{path.name}: {why}")
    return file


def _pickle(content: object, name_of: Callable[[object], str | None] = lambda _: None) -> bytes:
    class Pickler(pickle.Pickler):
        def persistent_id(self, leaf: object) -> str | None:
            return name_of(leaf)

    out = io.BytesIO()
    Pickler(out).dump(content)
    return out.getvalue()


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, place: str) -> torch.Tensor:
        return self.tensors[place]
