"""Workers in containers, on a real Slurm with a stand-in for pyxis that gives each task a root of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import Cluster
from container_image import build, make_image, missing
from harness import Backend
from terminal_session import Terminal

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(missing()), reason=missing())]


@pytest.mark.nightly
def test_groups_standbys_and_shells_are_in_the_image_which_has_no_ftslurm(
    new_cluster: Callable[..., Cluster],
    slurm_on: Callable[[Cluster], Backend],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = new_cluster(nodes=3, gpus=0, extra_conf=build(tmp_path))
    image = make_image(tmp_path / "image", {"MINE": "of the image", "THEIRS": "of the image"})
    inside = [f"--container-image={image}", "python3", "-c"]
    assert cluster.run(["srun", *inside, "import torch, sys; print(sys.prefix)"]) == "/image/venv\n"
    assert "No module named 'ftslurm'" in cluster.run(["srun", *inside, ASK_FTSLURM])
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "words").write_text("some data")
    monkeypatch.setenv("THEIRS", "of the host")
    monkeypatch.setenv("PYXIS_CONTAINER_IMAGE", "/nowhere")
    slurm = slurm_on(cluster)
    run = slurm.start(
        *("groups.count=2", "cluster.spare_nodes=1", "standby.count=1", "job.env.MINE=of the run"),
        *(f"cluster.container_image={image}", f"cluster.container_mounts=['{tmp_path}/data:/data:ro']"),
        args={"open-end": True, "step-time": 0.1},
    )
    run.wait_for_steps(3, 2)
    run.wait_for("step_ready", unit="standby-000")
    run.kill(1)
    run.wait_until_back(1)
    (launched,) = run.named("step_launched", group=1, attempt=1)
    assert launched["standby"] == "standby-000/0"
    words = [sys.executable, "-m", "ftslurm", "attach", str(run.dir), "--group=1"]
    shell = Terminal(words, run.environ)
    shell.until("a shell beside rank 0 of group 1")
    shell.type("echo IT=$REPLICA_GROUP_ID.$MINE.$THEIRS.$(cat /data/words).$(command -v python3).$(pwd).")
    shell.until(f"IT=1.of the run.of the image.some data./image/venv/bin/python3.{tmp_path}.")
    shell.type("touch /data/new || exit 7")
    assert shell.exit_code() == 7
    leaders = run.kill_controller()
    run.until(lambda: len(run.named("run_started")) > leaders, "another controller leads")
    run.wait_for("step_adopted", group=1)
    run.end_soon()
    run.finish()
    assert len(set(run.weights().values())) == 1


ASK_FTSLURM = """
try:
    import ftslurm
except ImportError as error:
    print(error)
"""


def test_a_slurm_without_containers_is_told_before_anything_is_submitted(slurm: Backend, tmp_path: Path) -> None:
    words = ["job=ddp", "cluster=slurm", "cluster.container_image=/images/a.sqsh", f"run.root={tmp_path}/runs"]
    command = [sys.executable, "-m", "ftslurm", "run", *words]
    done = subprocess.run(command, env=os.environ | slurm.environ, capture_output=True, text=True)
    assert done.returncode == 2
    assert "this Slurm has no pyxis: srun knows no --container-image" in done.stderr
    assert not (tmp_path / "runs").exists()
