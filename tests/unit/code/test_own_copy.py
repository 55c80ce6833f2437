"""The copy of ftslurm in a run directory: what it has, how it is recognized, and who may use it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import ftslurm
from ftslurm.code import own_copy
from ftslurm.run.directory import RunDir
from ftslurm.security import programs

PACKAGE = Path(ftslurm.__file__).parent


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "it's a run")
    made.create()
    own_copy.write(made.package, made.package)
    return made


def said(run: RunDir, text: str, **environ: str) -> str:
    """Return what a program says that imports from the copy."""
    command = programs.code(text, archive=str(run.package))
    done = subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, cwd=run.root, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_has_every_module_compiled_and_all_that_they_read(run: RunDir) -> None:
    with zipfile.ZipFile(run.package) as archive:
        names = set(archive.namelist())
    for path in PACKAGE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            name = str(path.relative_to(PACKAGE.parent))
            assert name in names
            assert path.suffix != ".py" or f"{name}c" in names
    assert {"conf/job/ddp.yaml", "conf/cluster/array.yaml"} <= names


def test_processes_import_it_and_start_others_with_it(run: RunDir) -> None:
    text = "from ftslurm.security import programs as p; import sys; print(p.__file__); print(p.module('x')[2])"
    where, start = said(run, text).splitlines()
    assert where == f"{run.package}/ftslurm/security/programs.pyc"
    assert repr(str(run.package)) in start


def test_it_composes_presets_and_writes_pages(run: RunDir) -> None:
    text = "from ftslurm.config import compose; print(compose.compose(['cluster=array']).cluster.kind)"
    assert said(run, text).strip() == "array"
    text = "from importlib import resources; print((resources.files('ftslurm.report') / 'page.html').read_text())"
    assert said(run, text).strip() == (PACKAGE / "report/page.html").read_text().strip()


def test_a_copy_of_a_copy_is_the_same(run: RunDir) -> None:
    other = run.root / "other.zip"
    text = f"from ftslurm.code import own_copy as o; from pathlib import Path as P; o.write(P({str(other)!r}), P('x'))"
    said(run, text)
    assert other.read_bytes() == run.package.read_bytes()


def test_tracebacks_name_the_copy_and_show_its_lines(run: RunDir) -> None:
    text = (
        "import sys, traceback\nfrom ftslurm.words import listed\n"
        "try:\n    listed(None, 'or')\nexcept Exception:\n    print(traceback.format_exc())"
    )
    shown = said(run, text)
    assert f'File "{run.package}/ftslurm/words.py", line' in shown
    assert "    return" in shown or "    if" in shown or "    *" in shown, shown


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    commands = list[list[str]]()
    monkeypatch.setattr(own_copy, "replace", commands.append)
    return commands


def test_only_a_run_of_another_ftslurm_is_handed_over(
    run: RunDir, handed_over: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_copy.hand_over(run, ["status", "x"])
    assert not handed_over
    version = ftslurm.__version__
    monkeypatch.setattr(own_copy, "_digest", lambda: "another")
    monkeypatch.setattr(ftslurm, "__version__", "99.0")
    monkeypatch.setattr(own_copy, "first_line", lambda *_: "1a2b3c4")
    own_copy.hand_over(run, ["status", "x"])
    (command,) = handed_over
    assert command[-2:] == ["status", "x"]
    assert f"its own copy of ftslurm {version}" in (told := capsys.readouterr().err)
    assert "ftslurm 99.0 (1a2b3c4)" in told


@pytest.mark.parametrize(
    "damage", ["missing", "empty", "cut", "others may write it", "others may write the run", "link"]
)
def test_a_copy_that_is_damaged_or_may_be_somebody_elses_is_not_used(
    damage: str, run: RunDir, handed_over: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_copy, "_digest", lambda: "another")
    content = run.package.read_bytes()
    if damage == "others may write it":
        run.package.chmod(0o666)
    elif damage == "others may write the run":
        run.root.chmod(0o777)
    else:
        run.package.unlink()
        if damage == "link":
            (run.root / "elsewhere").write_bytes(content)
            run.package.symlink_to(run.root / "elsewhere")
        elif damage != "missing":
            run.package.write_bytes(b"" if damage == "empty" else content[:-40])
    own_copy.hand_over(run, ["status"])
    assert not handed_over


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user")
def test_a_copy_of_another_user_is_not_imported(run: RunDir) -> None:
    os.chown(run.package, 12345, -1)
    command = [sys.executable, *programs.code("print('imported')", archive=str(run.package))[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert "is not yours" in done.stderr
