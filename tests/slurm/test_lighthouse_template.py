"""sbatch/lighthouse.sbatch by hand: a Lighthouse for groups that the user starts without ftslurm."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from cluster import Cluster
from harness import SCRIPTS
from torchft.coordination import LighthouseClient

pytestmark = pytest.mark.slurm
TEMPLATE = Path(__file__).parents[2] / "sbatch/lighthouse.sbatch"
# What torchrun would do for a group of one worker.
GROUP = """
import os, runpy, sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port), RANK="0", WORLD_SIZE="1")
os.environ.update(REPLICA_GROUP_ID=os.environ["SLURM_PROCID"])
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_unmodified_scripts_train_with_it(slurm_cluster: Cluster, tmp_path: Path) -> None:
    environ = slurm_cluster.environ() | {"PYTHON": sys.executable, "TOY_DDP": "0"}
    command = ["sbatch", "--parsable", str(TEMPLATE), "min_replicas=2"]
    job = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True).stdout.strip()
    url = tmp_path / f"lighthouse-{job}.url"
    wait_until(url.exists, tmp_path)
    address = re.fullmatch(r"http://([\w-]{43})@([^:]+:\d+)", url.read_text().strip())
    assert address is not None
    token, port = address.groups()
    assert url.stat().st_mode & 0o777 == 0o600
    client = LighthouseClient(f"http://{port}", connect_timeout=timedelta(seconds=10))
    with pytest.raises(RuntimeError, match="Unauthenticated"):
        client.quorum("stranger", timeout=timedelta(seconds=10), step=10**6)

    (tmp_path / "group.py").write_text(GROUP)
    training = subprocess.run(
        ["srun", "--nodes=2", "--ntasks=2", "--label", sys.executable, "group.py", SCRIPTS / "toy.py", "--steps=10"],
        cwd=tmp_path,
        env=environ | {"TORCHFT_LIGHTHOUSE": url.read_text().strip()},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert training.returncode == 0, training.stderr
    digests = re.findall(r"^(\d): weights sha256=(\w+)", training.stdout, re.MULTILINE)
    assert {rank for rank, _ in digests} == {"0", "1"}
    assert len({digest for _, digest in digests}) == 1
    assert "participants 2" in training.stdout

    slurm_cluster.run(["scancel", job])
    wait_until(lambda: "told to end" in output(tmp_path), tmp_path)
    assert not url.exists()
    assert token not in output(tmp_path)  # which others may read
    assert "clear text" in output(tmp_path)


def output(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("lighthouse-*.out"))


def wait_until(true: object, folder: Path) -> None:
    assert callable(true)
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, output(folder)
        time.sleep(0.05)
