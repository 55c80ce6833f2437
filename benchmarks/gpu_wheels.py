"""Collect what a machine with torch, but without a network, lacks to run gpu.py.

    python benchmarks/gpu_wheels.py .wheels 3.12      into this folder, for this Python; default: that which runs this

The packages are those that ftslurm and its tests have here, in the same versions, without torch and what torch brings.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TESTS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "setuptools", "wheel")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64",
             "manylinux1_x86_64", "manylinux_2_5_x86_64")  # fmt: skip


def closure(*names: str) -> set[str]:
    """Return these packages and all that they need, as they are installed here."""
    found, todo = set[str](), [canonicalize_name(name) for name in names]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        try:
            needs = [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:  # for another platform
            continue
        found.add(name)
        todo += [
            canonicalize_name(need.name) for need in needs if not need.marker or need.marker.evaluate({"extra": ""})
        ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("python", nargs="?", default=platform.python_version(), help="the version of Python")
    args = parser.parse_args()
    folder, python = args.folder, args.python
    folder.mkdir(exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    for name in sorted(closure("ftslurm", *TESTS) - closure("torch") - {"ftslurm"}):
        wanted = f"{name}=={version(name)}"
        tags = [f"--platform={one}" for one in PLATFORMS] + [f"--python-version={python}", "--implementation=cp"]
        download = [*pip, "download", "--no-deps", "--only-binary=:all:", f"--dest={folder}", *tags, wanted]
        if subprocess.run(download, stderr=subprocess.DEVNULL).returncode:  # there is no wheel of it
            subprocess.run([*pip, "wheel", "--no-deps", f"--wheel-dir={folder}", wanted], check=True)
    size = sum(path.stat().st_size for path in folder.glob("*.whl")) / 1e6
    print(f"==> {folder}: {len([*folder.glob('*.whl')])} wheels for Python {python}, {size:.0f} MB")


if __name__ == "__main__":
    main()
