"""What the ranks of a group have saved together is restored, shared and own parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import loaded
import pytest
from harness import SCRIPTS
from torch.distributed import TCPStore

WEIGHT = [[0.07330141961574554, 0.385772705078125, -0.3952118158340454],
          [-0.26249098777770996, -0.06097589433193207, 0.31433162093162537]]  # fmt: skip


def run(folder: Path, ranks: int, *words: str) -> list[dict[str, Any]]:
    """Return the output of restoring.py, by rank."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(ranks)}
    environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    script = SCRIPTS / "restoring.py"
    started = [loaded.start(script, str(folder), *words, RANK=str(rank), **environ) for rank in range(ranks)]
    done = [one.result() for one in started]
    assert [one.returncode for one in done] == [0] * ranks, done
    lines = [line for one in done for line in one.stdout.splitlines()]
    return [json.loads(line.removeprefix("GOT ")) for line in lines if line.startswith("GOT ")]


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_rank_gets_back_what_it_has_saved(ranks: int, tmp_path: Path) -> None:
    run(tmp_path, ranks, "--save")
    found = run(tmp_path, ranks)
    assert len(found) == ranks
    for rank, got in enumerate(found):
        assert (got["step"], got["number"], got["rank"], got["data"]) == (5, rank, [rank, rank], {"at": 10})
        assert got["weight"] == [pytest.approx(row, rel=1e-5) for row in WEIGHT]  # the last bits depend on the CPU
        assert got["exp_avg"] == found[0]["exp_avg"]


MESH = """
import json, sys
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from ftslurm.checkpoint import layout
from ftslurm.checkpoint.consensus import RankGroup
from ftslurm.checkpoint.snapshot import copy, read, write
from ftslurm.checkpoint.store import Store

torch.distributed.init_process_group("gloo")
mesh, full = init_device_mesh("cpu", (2, 2)), torch.arange(24.0).reshape(4, 6)
layouts = {"both": (Shard(0), Shard(1)), "hsdp": (Replicate(), Shard(0)), "other": (Shard(1), Replicate()),
           "none": (Replicate(), Replicate())}
def tree(scale):
    made = {name: distribute_tensor(full * scale, mesh, how) for name, how in layouts.items()}
    return made | {"plain": torch.ones(3) * scale}
group, store, me = RankGroup(), Store(sys.argv[1]), layout.Writer("r", 0, 0)
part = layout.part_name(1, me, 0)
files = write(copy(tree(1.0), {}), store, part, group)
if group.rank == 0:
    store.finish(1, part, me, files)
torch.distributed.barrier()
live = tree(0.0)
read(store, 1, live, {}, group)
equal = [bool((live[name].full_tensor() == full).all()) for name in layouts]
print("GOT", json.dumps([equal, live["plain"].tolist(), sum(n for name, (n, _) in files.items() if "distcp" in name)]))
torch.distributed.destroy_process_group()
"""


def test_pieces_that_several_ranks_have_are_written_once_and_all_are_found_again(tmp_path: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "4"}
    environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    started = [loaded.start(MESH, str(tmp_path / "x"), RANK=str(rank), **environ) for rank in range(4)]
    done = [one.result() for one in started]
    assert [one.returncode for one in done] == [0] * 4, done
    for one in done:
        equal, plain, size = json.loads(one.stdout.partition("GOT ")[2].splitlines()[0])
        assert (equal, plain) == ([True] * 4, [1.0] * 3)
        assert size < 1_700 * 10  # so many pieces there are
