"""job.stage_python: on each node the workers run from a copy of their Python environment."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from harness import SCRIPTS, Backend

import ftslurm

pytestmark = pytest.mark.slurm


def environment(folder: Path) -> Path:
    """Make a small environment that takes all packages from this one; return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    here = [Path(ftslurm.__file__).parents[1], sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    (packages / "all.pth").write_text("".join(f"{path}\n" for path in here))
    return folder / "bin/python"


def test_workers_run_from_the_copy_or_else_from_the_original_with_a_warning(slurm: Backend, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv")
    script = slurm.script(
        f"import runpy, sys\nprint('runs from', sys.prefix)\nrunpy.run_path('{SCRIPTS / 'toy.py'}')\n"
    )
    node = tmp_path / "node"
    node.mkdir()
    for mode, warns in ((0o700, False), (0o777, True)):
        node.chmod(mode)
        run = slurm.start(
            *("groups.count=2", f'job.python="{python}"', f'job.stage_python="{node}"'),
            script=script,
            args={"steps": 3},
        )
        run.wait_for("group_joined", group=0)
        run.finish(warns=warns)
        printed = run.rank_log(0)
        if warns:
            assert f"runs from {tmp_path / 'venv'}" in printed
            texts = " ".join(str(e["text"]) for e in run.named("warning"))
            assert f"other users can write into {node}" in texts
            assert any(n in texts for n in ("n1", "n2", "n3", "n4"))
        else:
            assert f"runs from {node}/ftslurm-" in printed
