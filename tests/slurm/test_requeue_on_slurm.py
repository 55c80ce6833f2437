"""A job that requeues itself while Slurm already ends its processes, the one that asks for it among them."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import pytest
from cluster import PATIENCE_S, Cluster
from programs import script

pytestmark = pytest.mark.slurm
ASK = """
import os, signal
from ftslurm.submission.requeue import requeue
signal.signal(signal.SIGTERM, lambda *_: None)  # as in the controller
print("refused:", requeue(os.environ), flush=True)
"""


def test_a_job_whose_scontrol_is_killed_by_the_requeue_it_asked_for_is_requeued(
    slurm_cluster: Cluster, tmp_path: Path
) -> None:
    """Slurm sends SIGTERM to all processes of the job before a slow scontrol has its answer."""
    real = shutil.which("scontrol", path=slurm_cluster.env["PATH"])
    script(tmp_path / "bin/scontrol", f'{real} "$@"; echo $? >> {tmp_path}/scontrol; sleep 60')
    output, job, ask = tmp_path / "output", tmp_path / "job.sh", tmp_path / "ask.py"
    ask.write_text(ASK)
    script(job, f"export PATH={tmp_path}/bin:$PATH\nexec {sys.executable} {ask}")
    slurm_cluster.run(["sbatch", "--requeue", f"--output={output}", "--open-mode=append", job])
    deadline = time.monotonic() + PATIENCE_S
    while "refused:" not in (said := output.read_text() if output.exists() else ""):
        assert time.monotonic() < deadline, said
        time.sleep(0.1)
    assert (tmp_path / "scontrol").read_text() == "0\n"
    assert "refused: None\n" in said
