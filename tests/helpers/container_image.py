"""A stand-in for pyxis (container_plugin.c), compiled for the Slurm of this machine, and an image for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).parent / "container_plugin.c"
HEADER = Path("/usr/include/slurm/spank.h")
FOLDERS = ("/usr", "/bin", "/lib", "/lib64", "/etc")


def missing() -> str:
    """Return what keeps the plugin from being used here, "" if nothing does."""
    if shutil.which("gcc") is None or not HEADER.exists():
        return "gcc or Slurm's headers are missing (Debian: apt install gcc libslurm-dev)"
    own = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"], capture_output=True)
    return "" if own.returncode == 0 else f"no user and mount namespace: {own.stderr.decode(errors='replace').strip()}"


def build(folder: Path) -> str:
    """Compile the plugin; return the lines of slurm.conf that load it."""
    plugin, stack = folder / "container_plugin.so", folder / "plugstack.conf"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", plugin, SOURCE], check=True)
    stack.write_text(f"required {plugin}\n")
    return f"PlugStackConfig={stack}"


def make_image(folder: Path, environ: Mapping[str, str]) -> Path:
    """Make an image with this machine's system, and Python with torch and torchft in /image/venv; without ftslurm."""
    (folder / "root").mkdir(parents=True)
    content = {path: path for path in (*FOLDERS, sys.base_prefix) if Path(path).exists()} | {sys.prefix: "/image/venv"}
    (folder / "content").write_text("".join(f"{source} {target}\n" for source, target in content.items()))
    settings = {"PATH": os.pathsep.join(["/image/venv/bin", "/usr/bin", "/bin"]), **environ}
    (folder / "environment").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return folder
