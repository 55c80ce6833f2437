"""Every program that ftslurm starts, in a folder with modules that have the names of ours and of Python's."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ftslurm
from ftslurm.checks import node_facts
from ftslurm.security import programs

PACKAGE = Path(ftslurm.__file__).parent
HOSTILE = (
    *("ftslurm", "submitit", "torch", "json", "types", "logging", "queue", "random", "runpy", "argparse", "signal"),
    *("typing", "dataclasses", "subprocess", "pathlib", "hydra", "omegaconf", "code", "enum", "re", "importlib"),
)


def started_modules() -> set[str]:
    """Return the modules that some line of ftslurm starts as a program."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "programs.module":
                first = node.args[0].value.elts[0] if isinstance(node.args[0], ast.Starred) else node.args[0]  # type: ignore[attr-defined]
                if isinstance(first, ast.Name):  # a constant of that file
                    names = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
                    found.add(getattr(importlib.import_module(names), first.id))
                else:
                    found.add(ast.literal_eval(first))
    return found


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a folder with modules that leave a file behind when they are imported."""
    for name in HOSTILE:
        text = f"open({str(tmp_path / 'imported')!r}, 'a').write('{name} ')\n"
        (tmp_path / f"{name}.py").write_text(text)
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    return tmp_path


def run(command: list[str], folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(
        command, cwd=folder, env=kept | environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("module", sorted(started_modules()))
@pytest.mark.parametrize("safe", ["", "1"])
def test_no_program_of_ours_imports_from_the_folder_in_which_it_starts(module: str, safe: str, hostile: Path) -> None:
    done = run(programs.module(module, "--no-such-option"), hostile, PYTHONSAFEPATH=safe)
    assert not (hostile / "imported").exists(), (hostile / "imported").read_text()
    assert "ModuleNotFoundError" not in done.stderr, done.stderr


CODE = {
    "imports": node_facts.IMPORT,
}


@pytest.mark.parametrize("name", CODE)
def test_no_program_as_text_does_either(name: str, hostile: Path) -> None:
    word = "zlib" if name == "imports" else str(hostile / "x")
    done = run(programs.code(CODE[name], word), hostile)
    assert not (hostile / "imported").exists(), (hostile / "imported").read_text()
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("verb", [["--help"], ["plan", "job=ddp", "cluster=local"], ["status"], ["list"]])
def test_the_command_line_itself_does_not(verb: list[str], hostile: Path) -> None:
    for name in ("ftslurm",):  # Python finds `-m ftslurm` in the working directory before anything of ours has begun
        (hostile / name / "__init__.py").unlink()
        (hostile / name).rmdir()
        (hostile / f"{name}.py").unlink()
    run([sys.executable, "-m", "ftslurm", *verb], hostile, COLUMNS="100")
    assert not (hostile / "imported").exists(), (hostile / "imported").read_text()


def test_no_line_of_the_package_starts_python_in_another_way() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path.name != "programs.py":
            assert '"-m", "ftslurm' not in path.read_text(), path
            assert 'executable, "-m"' not in path.read_text(), path


def test_a_program_gets_its_words_as_with_python_m(tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text("import sys; print(sys.argv, sys.path[0], __name__)")
    done = run(programs.module("shown", "a b", "-x"), tmp_path, PYTHONPATH=str(tmp_path))
    assert done.stdout.split(" ", 1)[1].strip() == f"'a b', '-x'] {tmp_path} __main__"
    done = run(programs.code("import sys; print(sys.argv[1:])", "a b", "-x"), tmp_path)
    assert done.stdout.strip() == "['a b', '-x']"


@pytest.mark.parametrize("name", ["FTSLURM_HOOK", "FTSLURM_RUN_DIR", "FTSLURM_NEW", "SUBMITIT_EXECUTOR"])
def test_a_new_run_gets_nothing_of_the_run_in_whose_hook_it_is_submitted(name: str) -> None:
    assert programs.of_a_new_run({name: "1", "PATH": "/bin"}) == {"PATH": "/bin"}
