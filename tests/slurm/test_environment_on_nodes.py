"""The Python environment as one file that `sbcast` brings to every node (docs/scale.md)."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from harness import SCRIPTS, Backend

import ftslurm

pytestmark = pytest.mark.slurm


def environment(folder: Path) -> None:
    """Make a small environment that takes all packages from this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    here = [Path(ftslurm.__file__).parents[1], sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    (packages / "all.pth").write_text("".join(f"{path}\n" for path in here))


@pytest.mark.parametrize("kind", ["slurm", "array"])
def test_workers_run_from_the_environment_that_a_setup_line_has_unpacked(
    slurm: Backend, tmp_path: Path, kind: str
) -> None:
    environment(tmp_path / "env")
    archive, node = tmp_path / "env.tar", tmp_path / "node"
    subprocess.run(["tar", "--create", f"--file={archive}", f"--directory={tmp_path / 'env'}", "."], check=True)
    script = slurm.script(f"import runpy, sys\nprint('from', sys.prefix)\nrunpy.run_path('{SCRIPTS / 'toy.py'}')\n")
    on_all = "srun --overlap --ntasks-per-node=1"
    setup = [
        f"{on_all} mkdir -p {node}",
        f"sbcast --force {archive} {node}-$SLURM_JOB_ID.tar",
        # The nodes of this cluster have one file system.
        f"{on_all} flock {node} tar -xf {node}-$SLURM_JOB_ID.tar -C {node}",
    ]
    run = slurm.start(
        *("groups.count=1", "groups.nodes=2", f"cluster.kind={kind}", f'job.python="{node}/bin/python"'),
        f"cluster.setup={setup}",
        script=script,
        args={"steps": 3},
    )
    run.finish()
    logs = [path.read_text() for path in (run.dir / "logs/group-0000/attempt-000").glob("rank-*.log")]
    assert [f"from {node}\n" in log for log in logs] == [True, True]
