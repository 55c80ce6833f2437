"""The built wheel works without the sources, installed into its own environment."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

SOURCES = Path(__file__).parents[2]
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
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built offline from a copy of the sources: a build leaves folders in its source folder."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "sources"
    copy.mkdir()
    for name in ("ftslurm", "conf", "docs", "examples", "sbatch"):
        shutil.copytree(SOURCES / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(SOURCES / name, copy)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, copy, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


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


def test_the_wheel_is_what_runs_and_not_the_sources(python: Path, tmp_path: Path) -> None:
    found = Path(run(python, "-c", "import ftslurm; print(ftslurm.__file__)", cwd=tmp_path).strip())
    assert found.is_relative_to(python.parents[1])
    code = "import sys; print(sys.path, sys.meta_path, sep='\\n')"
    path, finders = run(python, "-c", code, cwd=tmp_path).splitlines()
    assert repr(str(SOURCES)) not in path  # the tests' environment may lie in the sources, as .venv does
    assert "ftslurm" not in finders  # nor does an editable install lead there


def test_presets_and_examples_are_found_in_the_wheel(python: Path, tmp_path: Path) -> None:
    config = yaml.safe_load(run(python, "-m", "ftslurm", "job=ddp", "--cfg", "job", cwd=tmp_path))
    assert config["job"]["name"] == "ddp"
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


def test_a_run_from_the_wheel_succeeds(python: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import ftslurm, sys\nprint('ran in', ftslurm.__file__)\n")
    run(python, "-m", "ftslurm", "cluster=local", "job.script=train.py", "groups.count=1", cwd=tmp_path)
    (journal,) = tmp_path.glob("runs/*/events.jsonl")
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [e["outcome"] for e in events if e["event"] == "run_finished"] == ["succeeded"]
    (log,) = tmp_path.glob("runs/*/logs/group-0000/attempt-000/rank-0.log")
    assert f"ran in {python.parents[1]}/" in log.read_text()
