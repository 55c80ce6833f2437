"""Modules of a copied tree come from the copy, by whatever way Python finds them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ftslurm.code import record
from ftslurm.code.record import CodeRecord
from ftslurm.code.running import RunCode

PROGRAM = """
import os, subprocess, sys
from ftslurm.code import record
from ftslurm.code.running import RunCode
tree, link, run = sys.argv[1:]
record.write(run, record.CodeRecord(tree, "train.py"))
code = RunCode(run)
sys.path.insert(0, link + "/src")
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
class Editable:
    def find_spec(name, path=None, target=None):
        if name == "hooked":
            where = tree + "/far/hooked"
            return spec_from_file_location(name, where + "/__init__.py", submodule_search_locations=[where])
sys.meta_path.append(Editable)
code.enter(os.environ)
sys.path.append(tree)  # as a script may
import in_src, hooked.sub, json, space.inner, at_top, vendored
print(in_src.FROM, hooked.sub.FROM, space.inner.FROM, at_top.FROM, vendored.FROM)
child = "import in_src, hooked.sub; print(in_src.FROM, hooked.sub.FROM)"
sys.stdout.flush()
subprocess.run([sys.executable, "-c", child], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, check=True)
print(os.environ["PYTHONPATH"])
"""


def fill(folder: Path, said: str) -> None:
    for path in ("src/in_src.py", "far/hooked/__init__.py", "far/hooked/sub.py", "space/inner.py", "at_top.py"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"FROM = {said!r}\n")


def test_they_do_for_every_way_of_finding_a_module_and_for_child_processes(tmp_path: Path) -> None:
    tree, run, link = tmp_path / "tree", tmp_path / "run", tmp_path / "link"
    fill(tree, "live")
    fill(run / "code", "copy")
    (tree / "vendored.py").write_text("FROM = 'live'\n")
    (run / "code/vendored.py").symlink_to(tree / "vendored.py")  # git ignores it
    link.symlink_to(tree)
    environ = os.environ | {"PYTHONPATH": f"{link}/far:/elsewhere"}
    command = [sys.executable, "-c", PROGRAM, str(tree), str(link), str(run)]
    said = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    assert lines[0] == "copy copy copy copy live"
    assert lines[1] == "copy copy"
    assert lines[2] == f"{run}/code/far:/elsewhere"


def test_the_script_is_that_of_the_copy_and_other_paths_stay(tmp_path: Path) -> None:
    (tmp_path / "code/sub").mkdir(parents=True)
    (tmp_path / "code/data").symlink_to("/usr")
    record.write(tmp_path, CodeRecord("/t", "sub/train.py"))
    code = RunCode(str(tmp_path))
    assert code.script("/t/sub/train.py") == str(tmp_path / "code/sub/train.py")
    assert code.place("/t") == str(tmp_path / "code")
    assert code.place("/t/sub") == str(tmp_path / "code/sub")
    for outside in ("/t/data", "/t/data/lib", "/t/none", "/tt/sub", "/t/../etc", ""):
        assert code.place(outside) == outside
    (tmp_path / record.NAME).unlink()
    none = RunCode(str(tmp_path))
    assert (none.script("/t/a.py"), none.place("/t/sub")) == ("/t/a.py", "/t/sub")
