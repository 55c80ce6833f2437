"""Checkpoints saved by earlier versions of ftslurm (tests/data) can be restored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import loaded
import pytest
from harness import SCRIPTS
from torch.distributed import TCPStore

DATA = Path(__file__).parent.parent / "data"
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


def with_our_modes(folder: Path, to: Path) -> Path:
    """Copy with ftslurm's modes: git keeps none, and a checkpoint that others can write is refused."""
    shutil.copytree(folder, to)
    for path in (to, *to.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return to


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("written", ["before", "now"])
def test_a_checkpoint_of_the_version_before_is_restored_as_one_of_today(
    ranks: int, written: str, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    if written == "before":
        with_our_modes(DATA / f"checkpoint-of-{('one-rank', 'two-ranks')[ranks - 1]}", folder)
    else:
        run(folder, ranks, "--save")
    found = run(folder, ranks)
    assert len(found) == ranks
    for rank, got in enumerate(found):
        assert (got["step"], got["number"], got["rank"], got["data"]) == (5, rank, [rank, rank], {"at": 10})
        if written == "before":
            assert got["weight"] == WEIGHT
        else:  # the last bits depend on the CPU that has trained
            assert got["weight"] == [pytest.approx(row, rel=1e-5) for row in WEIGHT]
        assert got["exp_avg"] == found[0]["exp_avg"]
