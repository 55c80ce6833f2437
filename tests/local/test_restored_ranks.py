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
