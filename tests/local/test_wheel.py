"""The sdist and the wheel: complete, equal, and at work without the sources, in an environment of their own."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

from ftslurm import __version__

SOURCES = Path(__file__).parents[2]
LEFT_OUT = ("__pycache__", ".*", "*.egg-info", "runs", "build", "dist", "site")
PATIENCE_S = 120.0  # a bound for a hang, not a claim about speed


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command without any way to the sources; return its output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel made of it, offline, from a copy: a build leaves folders in its sources."""
    folder = tmp_path_factory.mktemp("built")
    copy = folder / "sources"
    shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", copy, cwd=folder)
    return folder / "dist"


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with this wheel, and with torch and the others from the tests' environment."""
    folder = tmp_path_factory.mktemp("env")
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin/python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    # A .pth file adds folders but does not read theirs, and the editable install of the sources is one of those.
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "tests-environment.pth").write_text("\n".join(site.getsitepackages()))
    return python


def test_the_wheel_holds_every_preset_example_and_sbatch_script(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    shipped = [path for folder in ("conf", "examples", "sbatch") for path in (SOURCES / folder).rglob("*.*")]
    code = (SOURCES / "ftslurm").rglob("*.py")
    expected = {f"ftslurm/{path.relative_to(SOURCES)}" for path in shipped if path.suffix != ".pyc"}
    expected |= {str(path.relative_to(SOURCES)) for path in code} | {"ftslurm/py.typed"}
    assert expected - inside == set()
    assert {name.split("/")[0] for name in inside if ".dist-info/" not in name} == {"ftslurm"}


@pytest.mark.nightly
def test_a_wheel_built_without_the_sdist_is_the_same(built: Path, wheel: Path, tmp_path: Path) -> None:
    run(
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        built.parent / "sources",
        "-o",
        tmp_path,
        cwd=tmp_path,
    )
    (other,) = (zipfile.ZipFile(path) for path in tmp_path.glob("*.whl"))
    one = zipfile.ZipFile(wheel)
    assert {name: one.read(name) for name in one.namelist()} == {name: other.read(name) for name in other.namelist()}


def test_the_sdist_has_what_make_needs_and_nothing_of_a_working_folder(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"Makefile", "constraints.txt", "mkdocs.yml", "setup.py", "CHANGELOG.md", "SECURITY.md", "CITATION.cff"}
    assert {
        *needed,
        "tests/cluster.py",
        "tests/install-slurm.sh",
        "docs/follow.svg",
        "benchmarks/recovery.py",
    } <= inside
    assert [name for name in inside if name.endswith(".pyc") or "__pycache__" in name] == []


def test_an_index_would_take_both_and_show_the_readme(built: Path, wheel: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir(), cwd=built)
    inside = zipfile.ZipFile(wheel)
    (metadata,) = (inside.read(name).decode() for name in inside.namelist() if name.endswith(".dist-info/METADATA"))
    targets = re.findall(r"\]\(([^)\s]+)\)", metadata)
    assert [
        target for target in targets if not target.startswith(("https://", "#"))
    ] == []  # there are no files beside it
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in inside.namelist())


def test_the_version_of_the_citation_is_that_of_the_package() -> None:
    citation = yaml.safe_load((SOURCES / "CITATION.cff").read_text())
    assert citation["version"] == __version__


def test_the_wheel_is_what_runs_and_not_the_sources(python: Path, tmp_path: Path) -> None:
    found = Path(run(python, "-c", "import ftslurm; print(ftslurm.__file__)", cwd=tmp_path).strip())
    assert found.is_relative_to(python.parents[1])
    code = "import sys; print(sys.path, sys.meta_path, sep='\\n')"
    path, finders = run(python, "-c", code, cwd=tmp_path).splitlines()
    assert repr(str(SOURCES)) not in path  # the tests' environment may lie in the sources, as .venv does
    assert "ftslurm" not in finders  # nor does an editable install lead there


def test_the_wheel_writes_the_scripts_for_sbatch_with_its_python(python: Path, tmp_path: Path) -> None:
    run(python.parent / "ftslurm", "templates", "sbatch", cwd=tmp_path)
    written = sorted((tmp_path / "sbatch").iterdir())
    assert [path.name for path in written] == sorted(path.name for path in (SOURCES / "sbatch").iterdir())
    for path in written:
        assert f"\npython={shlex.quote(str(python))}\n" in path.read_text()


def test_presets_and_examples_are_found_in_the_wheel(python: Path, tmp_path: Path) -> None:
    shown = run(python, "-m", "ftslurm", "plan", "job=ddp", "cluster=local", cwd=tmp_path)
    script = shown.split("\n")[0].split()[1]
    assert Path(script).is_relative_to(python.parents[1])
    assert Path(script).is_file()
    assert list(tmp_path.iterdir()) == []


def test_help_prints_the_pages_that_come_with_the_wheel(python: Path, tmp_path: Path) -> None:
    listed = run(python, "-m", "ftslurm", "help", cwd=tmp_path)
    assert {path.stem for path in (SOURCES / "docs").glob("*.md")} <= set(listed.split())
    page = (SOURCES / "docs/checkpoints.md").read_text()
    assert run(python, "-m", "ftslurm", "help", "checkpoints", cwd=tmp_path) == page


def test_the_command_is_installed_too(python: Path, tmp_path: Path) -> None:
    version = run(python, "-c", "from importlib.metadata import version; print(version('ftslurm'))", cwd=tmp_path)
    assert run(python.parent / "ftslurm", "--version", cwd=tmp_path) == f"ftslurm {version}"


@pytest.mark.nightly
def test_the_demo_runs_from_the_wheel_in_an_empty_folder(python: Path, tmp_path: Path) -> None:
    """The command of `make demo`, which has no Makefile here; shorter."""
    demo = ("job=ddp", "groups.count=3", "faults=kill_one", "cluster=local", "job.args.steps=60", "checkpoint.every=50")
    run(python.parent / "ftslurm", *demo, cwd=tmp_path)
    (journal,) = tmp_path.glob("runs/*/events.jsonl")
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [e["outcome"] for e in events if e["event"] == "run_finished"] == ["succeeded"]
    again = [e["group"] for e in events if e["event"] == "step_launched" and e.get("attempt") == 1]
    assert [group for group in again if group is not None] == [1]  # the others are standbys
    assert f"{python.parents[1]}/" in (journal.parent / "config.yaml").read_text()  # the example of the wheel
    assert list(tmp_path.iterdir()) == [tmp_path / "runs"]
