"""The copy of ftslurm that a run keeps, and that all of its processes import: RUN/ftslurm.zip.

An upgrade of ftslurm, a `git pull` below an editable install or a removed environment changes nothing for a run that
has been submitted. A command that meets a run of another ftslurm hands over to the run's copy, so no version has to
read what another one has written.

It is one file, because file systems limit the number of files. Importing from it takes as long as from a folder. The
comment of the archive identifies it.
"""

from __future__ import annotations

import hashlib
import io
import json
import marshal
import os
import sys
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType
from typing import Any, BinaryIO, NoReturn
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

import ftslurm
from ftslurm.code.git_tree import first_line
from ftslurm.config.schema import shipped
from ftslurm.errors import complain
from ftslurm.run.directory import RunDir
from ftslurm.security import owned_files, programs

ELSEWHERE = ("__pycache__", "conf", "docs", "examples", "sbatch")  # folders of an installed package that are not code
UNCHECKED = (1).to_bytes(4, "little") + bytes(8)  # flags and hash of a .pyc that is never compared with its source
MAIN = "import sys; from ftslurm.cli.main import main; sys.exit(main())"


def write(path: Path, final: Path) -> None:
    """Write the ftslurm of this process into a run directory.

    Args:
        path: of the new file.
        final: where it will be when the run begins: tracebacks name it.

    Raises:
        OSError: it cannot be written.
    """
    owned_files.write_file(path, Path(programs.ARCHIVE).read_bytes() if programs.ARCHIVE else _packed(final))


def restore(copy: BinaryIO, path: Path) -> None:
    """Write a run's copy again, from the open file of the one that somebody has removed.

    Raises:
        OSError: it cannot be written.
    """
    copy.seek(0)
    owned_files.replace_file(path, copy.read())


def hand_over(run: RunDir, words: list[str]) -> None:
    """Continue a command with the run's copy of ftslurm, if that is another one; else return.

    Only with that of a run of this user: it would be the program of somebody else.
    """
    copy = _described(run.package) if owned_files.is_own(run.root) else None
    if copy is not None and copy["is"] != _digest():
        complain(f"{run.root.name} keeps its own copy of {_name(copy)}, not the installed {_name(this())}: using it")
        replace(programs.code(MAIN, *words, archive=str(run.package)))


def replace(command: list[str]) -> NoReturn:
    """Replace this process by another one of the run."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)  # noqa: S606 (a program of ours)


def _described(path: Path) -> dict[str, Any] | None:
    """Return the comment of a run's copy, or None if it is missing, damaged or another user's."""
    with suppress(OSError, ValueError, BadZipFile), owned_files.open_own(path) as file:
        return dict(json.loads(ZipFile(file).comment))
    return None


def _digest() -> str:
    """Return what identifies the ftslurm of this process: every command compares it, so no file is read."""
    if programs.ARCHIVE and (found := _described(Path(programs.ARCHIVE))) is not None:
        return str(found["is"])
    digest = hashlib.sha256()
    for name, path in _files().items():
        file = path.stat()
        digest.update(f"{name} {file.st_size} {file.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def this() -> dict[str, Any]:
    """Return the version and the commit of this process's ftslurm."""
    root = Path(ftslurm.__file__).parents[1]
    commit = first_line(str(root), "rev-parse", "--short", "HEAD") if (root / ".git").exists() else None
    return {"version": ftslurm.__version__, "commit": commit}


def _name(copy: dict[str, Any]) -> str:
    commit = copy.get("commit")
    return f"ftslurm {copy.get('version')}" + (f" ({commit})" if commit else "")


def _files() -> dict[str, Path]:
    """Return the files of the package and of conf/, by their names in an archive, sorted."""
    found = dict[str, Path]()
    for prefix, folder in (("ftslurm", Path(ftslurm.__file__).parent), ("conf", shipped("conf"))):
        for where, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if name not in ELSEWHERE]
            below = Path(where).relative_to(folder)
            found |= {str(prefix / below / name): Path(where, name) for name in names}
    return dict(sorted(found.items()))


def _packed(final: Path) -> bytes:
    """Return an archive of all files and of their compiled code, whose tracebacks name the path `final`."""
    data = io.BytesIO()
    with ZipFile(data, "w", ZIP_DEFLATED, compresslevel=1) as archive:
        archive.comment = json.dumps({"is": _digest(), **this()}).encode()
        for name, path in _files().items():
            archive.writestr(name, path.read_bytes())
            if path.suffix == ".py":
                code = SourceFileLoader(name, str(path)).get_code(name)
                assert code is not None
                compiled = marshal.dumps(_placed(code, str(final / name)))
                archive.writestr(f"{name}c", MAGIC_NUMBER + UNCHECKED + compiled)
    return data.getvalue()


def _placed(code: CodeType, path: str) -> CodeType:
    """Return code whose file is at a path."""
    consts = (_placed(one, path) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=path, co_consts=tuple(consts))
