"""Try ftslurm with versions of its dependencies: `python tests/versions.py torch==2.8.0 torchft==0.2.0`.

In a new virtual environment: install the versions named, and the newest of all other dependencies that fit them,
whatever pyproject.toml says of the named ones; then run the drill of `make demo` (three groups train, one is killed,
comes back and heals), and the tests that depend on torch and torchft most. Prints one line for docs/versions.md.

`torchft-nightly==2026.10.26` stands in for torchft. torch from PyPI brings its CUDA libraries: 4 GB, minutes.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = (
    *("tests/unit/guard", "tests/unit/worker", "tests/unit/lighthouse", "tests/local/test_shape_of_torchft.py"),
    *("tests/local/test_broken_quorum.py", "tests/local/test_closed_transport.py", "tests/local/test_lighthouse.py"),
)
SHOWN = (
    "torch",
    "torchft",
    "torchft-nightly",
    "grpcio",
    "protobuf",
    "numpy",
    "submitit",
    "hydra-core",
    "rich",
    "hpack",
)
REPLACES = {"torchft-nightly": "torchft"}
DRILL = ("job=ddp", "groups.count=3", "faults=kill_one", "cluster=local")


def name_of(requirement: str) -> str:
    """Return the package name of a requirement."""
    found = re.match(r"[\w.-]+", requirement)
    if found is None:
        raise SystemExit(f"{requirement!r} names no package; write NAME==VERSION")
    return found[0].lower()


def requirements(pyproject: str, named: list[str]) -> list[str]:
    """Return the requirements: the named, and all other dependencies of ftslurm and of its tests."""
    taken = {name_of(one) for one in named}
    taken |= {REPLACES[one] for one in taken & REPLACES.keys()}
    lists = re.findall(r"^(?:dependencies|test) = \[(.*?)\](?: #.*)?$", pyproject, re.MULTILINE | re.DOTALL)
    declared = [one for text in lists for one in re.findall(r'"([^"]+)"', text)]
    return [*named, *(one for one in declared if name_of(one) not in taken)]


def install(folder: Path, interpreter: str, named: list[str]) -> str:
    """Make a virtual environment with these versions, or reuse it; return its interpreter."""
    if folder.exists():
        return str(folder / "bin" / "python")
    subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *requirements((ROOT / "pyproject.toml").read_text(), named)], check=True)
    subprocess.run([*pip, "--no-deps", "--editable", str(ROOT)], check=True)
    return python


def drill(python: str, run: Path, limit_s: float) -> str:
    """Train three groups and kill one; return the result as text."""
    command = [python, "-m", "ftslurm", *DRILL, f"run.dir={run}"]
    with run.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait(60)
            return f"no end after {limit_s:g} s, see {log.name}"
    if code != 0:
        return f"exit code {code}, see {log.name}"
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    back = [event for event in events if event["event"] == "group_joined" and event["attempt"] > 0]
    warnings = [str(event["text"]) for event in events if event["event"] == "warning"]
    if len(back) != 1 or warnings:
        return f"{len(back)} recoveries, warnings: {warnings}"
    return "passed"


def main() -> int:
    """Return 0 if the drill and the tests passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="NAME==VERSION")
    parser.add_argument("--python", default=sys.executable, help="the interpreter to try it with")
    parser.add_argument("--folder", type=Path, help="where to put the environment and the run, which then stay there")
    parser.add_argument("--limit-s", type=float, default=300.0, help="how long the drill may take, in seconds")
    told = parser.parse_args()
    folder = told.folder or Path(tempfile.mkdtemp(prefix="ftslurm-versions-"))
    folder.mkdir(exist_ok=True)
    try:
        python = install(folder / "venv", told.python, told.versions)
        listed = subprocess.check_output([python, "-m", "pip", "list", "--format=json"], text=True)
        found = {one["name"].lower(): one["version"] for one in json.loads(listed)}
        interpreter = subprocess.check_output([python, "-V"], text=True).strip()
        drilled = drill(python, folder / "run", told.limit_s)
        words = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
        tested = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        (folder / "tests.log").write_text(tested.stdout)
        last = tested.stdout.strip().splitlines()[-1:] or ["no test ran"]
        shown = ", ".join(f"{name} {found[name]}" for name in SHOWN if name in found)
        print(f"{interpreter}, {shown}: drill {drilled}; tests: {last[0].strip('= ')}")
        return int(drilled != "passed" or tested.returncode != 0)
    finally:
        if told.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
