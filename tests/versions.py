"""Try ftslurm with other versions of what it stands on: `make matrix`, or `python tests/versions.py ROW...`.

Each row of MATRIX gets a virtual environment of its own with the versions that it names, and the newest of all other
dependencies that fit them, whatever pyproject.toml says of the named ones. Then three groups train the example, one is
killed, comes back and heals (the drill of `make demo`), on this machine and on a throwaway Slurm in both modes; and the
tests that depend on these versions most run. Each row ends as one line for docs/versions.md. `--list` shows the rows.

    python tests/versions.py                                   all rows
    python tests/versions.py floors python3.13                 these
    python tests/versions.py torch==2.9.0 torchft==0.2.0       one row with versions of your own (--python: interpreter)

Interpreters are looked for as python3.X on PATH, then in pyenv's folder. A row whose interpreter, or whose Slurm, is
missing is not run, says so, and fails. `torchft-nightly==...` stands in for torchft. torch from PyPI brings its CUDA
libraries: 4 GB and some minutes for each row.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHOWN = (
    *("torch", "torchft", "torchft-nightly", "grpcio", "protobuf", "numpy", "submitit", "hydra-core", "rich", "hpack"),
)
REPLACES = {"torchft-nightly": "torchft"}
DRILL = ("job=ddp", "groups.count=3", "faults=kill_one")
DRILLS = {  # what the table says -> its settings
    "here": ("cluster=local",),
    "on Slurm": ("cluster=slurm", "follow=true"),
    "in array mode": ("cluster=slurm", "follow=true", "cluster.kind=array"),
}
TESTS = (
    *("tests/unit/guard", "tests/unit/worker", "tests/unit/lighthouse", "tests/unit/checkpoint", "tests/unit/config"),
    *("tests/unit/protocol", "tests/unit/submission", "tests/local/test_shape_of_torchft.py"),
    *("tests/local/test_broken_quorum.py", "tests/local/test_transport.py", "tests/local/test_lighthouse.py"),
    *("tests/local/test_history_in_torchft.py", "tests/local/test_torchft_compat.py", "tests/local/test_group_end.py"),
    *("tests/local/test_killed_manager.py", "tests/local/test_heal_transport.py", "tests/local/test_torchft_0_3.py"),
    "tests/scenarios/test_native_groups.py",
)
_ON_SLURM = """
    cluster worker_on_slurm array ladder adoption topology step_manager chaos doctor controller_dies filters list
    requeue_on_slurm steering_on_slurm time_limits
"""
SLURM_TESTS = ("tests/sites/test_sites.py", *(f"tests/slurm/test_{name}.py" for name in _ON_SLURM.split()))
# Packages of a root folder with another Slurm; python3-minimal's libraries serve the interpreter from outside.
PACKAGES = (
    *("slurm-wlm", "munge", "procps", "hostname", "git", "make", "gcc", "libc6-dev"),
    *("libssl3", "libffi8", "libsqlite3-0", "libbz2-1.0", "liblzma5", "libreadline8", "zlib1g", "libncursesw6"),
)


@dataclass(frozen=True)
class Row:
    """One set of versions. `release` is a Debian release whose Slurm the row runs on, in a root folder of its own."""

    name: str
    python: str
    packages: tuple[str, ...]
    release: str = ""


def pinned() -> tuple[str, ...]:
    """Return what CI installs."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


def floors() -> tuple[str, ...]:
    """Return the lowest version that pyproject.toml allows of each dependency."""
    text = re.search(r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    assert text
    return tuple(f"{name}=={low}" for name, low in re.findall(r'^ *"([\w.-]+)>=([\w.]+)', text[1], re.MULTILINE))


MATRIX = (
    Row("floors", "3.10", floors()),
    Row("ci", "3.11", pinned()),
    Row("python3.12", "3.12", ("torch==2.13.0", "torchft==0.2.0")),
    Row("python3.13", "3.13", ("torch==2.14.1", "torchft==0.2.0")),
    Row("newest", "3.13", ("torch==2.15.0", "torchft==0.2.0")),
    Row("nightly", "3.11", ("torch==2.15.0", "torchft-nightly==2026.10.26")),  # torchft 0.3 before its release
    Row("slurm-24.11", "3.11", pinned(), release="trixie"),
    Row("slurm-26.05", "3.11", pinned(), release="sid"),
)


def name_of(requirement: str) -> str:
    """Return the package name of a requirement."""
    found = re.match(r"[\w.-]+", requirement)
    if found is None:
        raise SystemExit(f"{requirement!r} names no package; write NAME==VERSION")
    return found[0].lower()


def requirements(pyproject: str, named: Iterable[str]) -> list[str]:
    """Return the named requirements, and all other dependencies of ftslurm and of its tests, but not its examples'."""
    taken = {name_of(one) for one in named}
    taken |= {REPLACES[one] for one in taken & REPLACES.keys()}
    lists = re.findall(r"^(?:dependencies|test|top) = \[(.*?)\](?: #.*)?$", pyproject, re.MULTILINE | re.DOTALL)
    declared = [one for text in lists for one in re.findall(r'"([^"]+)"', text)]
    return [*named, *(one for one in declared if name_of(one) not in taken and not one.startswith("ftslurm["))]


def interpreter(version: str) -> str | None:
    """Return a Python of this version: 3.12, or a path."""
    if "/" in version:
        return version
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        return sys.executable
    built = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    for candidate in (*map(str, built), f"python{version}"):
        found = shutil.which(candidate)
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    return None


def install(folder: Path, python: str, named: Iterable[str]) -> str:
    """Make a virtual environment with these versions, or bring it up to date; return its interpreter."""
    made = str(folder / "bin" / "python")
    if not Path(made).exists():
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
    pip = [made, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *requirements((ROOT / "pyproject.toml").read_text(), list(named))], check=True)
    subprocess.run([*pip, "--no-deps", "--editable", str(ROOT)], check=True)
    return made


def entered(root: Path | None, command: list[str], *shared: Path) -> list[str]:
    """Return the command; if a root folder is given, to run in it, with the project and `shared` at the same paths.

    It needs root. The mounts are private to the command and end with it.
    """
    if root is None:
        return command
    outside = {ROOT, *shared, Path(sys.prefix), Path(sys.base_prefix), Path.home() / ".pyenv"}
    # The root is a mount point, or nothing in it could unshare mounts; torchft and gloo look up this machine's name.
    script = ["R=$1; shift", 'mount --bind "$R" "$R"', 'touch "$R/etc/hosts"', 'mount --bind /etc/hosts "$R/etc/hosts"']
    for place in ("/proc", "/dev", *sorted(str(place) for place in outside if place.exists())):
        script += [f'mkdir -p "$R{place}"', f'mount --rbind "{place}" "$R{place}"']
    script.append('exec chroot "$R" "$@"')
    inside = ["env", "-C", str(ROOT), "LC_ALL=C.UTF-8", *command]
    private = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", "\n".join(script), "sh"]
    return [*private, str(root.resolve()), *inside]


def debian(release: str, folder: Path) -> Path | str:
    """Make a root folder of a Debian release with its Slurm, or reuse it; return it, or why there is none."""
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        return "it takes root and debootstrap (apt install debootstrap)"
    root = folder / release
    if not (root / "complete").exists():
        shutil.rmtree(root, ignore_errors=True)
        install = ["apt-get", "-qq", "-y", "--no-install-recommends", "install", *PACKAGES]
        with (folder / f"{release}.log").open("wb") as log:
            for command in (
                ["debootstrap", "--variant=minbase", release, str(root)],
                ["chroot", str(root), "env", "DEBIAN_FRONTEND=noninteractive", *install],
            ):
                if subprocess.run(command, stdout=log, stderr=log, check=False).returncode:
                    return f"{' '.join(command[:3])} failed, see {log.name}"
        (root / "complete").touch()
    return root


def drill(command: list[str], run: Path, limit_s: float) -> str:
    """Train three groups and kill one; return the result as text."""
    shutil.rmtree(run, ignore_errors=True)
    with run.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen([*command, *DRILL, f"run.dir={run}"], stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)
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


def versions_of(python: str) -> str:
    """Return the versions of an environment that docs/versions.md names."""
    listed = subprocess.check_output([python, "-m", "pip", "list", "--format=json"], text=True)
    found = {one["name"].lower(): one["version"] for one in json.loads(listed)}
    return ", ".join(f"{name} {found[name]}" for name in SHOWN if name in found)


def try_row(row: Row, folder: Path, limit_s: float) -> tuple[bool, str]:
    """Return whether a row passed, and its line of the table."""
    python, root = interpreter(row.python), debian(row.release, folder) if row.release else None
    if python is None:
        return False, f"| {row.name} | {row.python} | not run: there is no python{row.python} | | |"
    if isinstance(root, str):
        return False, f"| {row.name} | {row.python} | not run: {root} | | |"
    place = folder / row.name
    place.mkdir(exist_ok=True)
    made = install(place / "venv", python, row.packages)
    release = subprocess.check_output([made, "-V"], text=True).split()[1]
    slurm = subprocess.check_output(entered(root, ["slurmctld", "-V"]), text=True).split()[1]
    drilled = dict[str, str]()
    for number, (where, settings) in enumerate(DRILLS.items()):
        cluster = ["tests/cluster.py", made] if "cluster=slurm" in settings else []
        command = [made, *cluster, "-m", "ftslurm", *settings]
        # A run directory in this folder is seen by a Slurm in another root, too.
        drilled[where] = drill(entered(root, command, folder), place / f"drill-{number}", limit_s)
    tests = SLURM_TESTS if row.release else TESTS
    words = [made, "tests/suite.py", "-q", "-n", "2", "-p", "no:cacheprovider", *tests]
    tested = subprocess.run(entered(root, words, folder), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    (place / "tests.log").write_text(tested.stdout)
    counts = re.findall(r"^=* ?((?:\d+ \w+, )*\d+ \w+) in ", tested.stdout, re.MULTILINE)
    again = "; alone: ".join(counts) or "no test ran"
    passed = {*drilled.values()} == {"passed"} and tested.returncode == 0
    told = ", ".join(f"{where} {how}" for where, how in drilled.items())
    shown = f"{versions_of(made)}, Slurm {slurm}"
    return passed, f"| {row.name} | {release} | {shown} | {told} | {again} |"


def main() -> int:
    """Return 0 if every row passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW | NAME==VERSION")
    parser.add_argument("--list", action="store_true", help="show the rows, run nothing")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of a row of your own")
    parser.add_argument("--folder", type=Path, help="where environments, runs and logs stay for another time")
    parser.add_argument("--limit-s", type=float, default=300.0, help="how long a drill may take, in seconds")
    told = parser.parse_args()
    known = {row.name: row for row in MATRIX}
    if told.list:
        print("\n".join(f"{row.name}: Python {row.python}, {' '.join(row.packages)} {row.release}" for row in MATRIX))
        return 0
    own = tuple(word for word in told.rows if "==" in word)
    if unknown := [word for word in told.rows if word not in known and word not in own]:
        parser.error(f"there is no row {', '.join(unknown)}; there are: {', '.join(known)}")
    chosen = [known[word] for word in told.rows if word in known] or ([] if own else list(MATRIX))
    rows = [*chosen, *([Row("own", str(Path(told.python).resolve()), own)] if own else [])]
    folder = (told.folder or Path(tempfile.mkdtemp(prefix="ftslurm-versions-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        failed = 0
        print("| row | Python | versions | drill | tests |\n|---|---|---|---|---|", flush=True)
        for row in rows:
            passed, line = try_row(row, folder, told.limit_s)
            failed += not passed
            print(line, flush=True)
        print(f"==> matrix: {len(rows) - failed} of {len(rows)} rows passed")
        return int(failed > 0)
    finally:
        if told.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
