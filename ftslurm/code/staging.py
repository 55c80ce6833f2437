"""Archives the Python environment of the workers when a run is submitted (job.stage_python).

Each node unpacks the archive once (node_copy.py). The archive lies beside the runs, in ROOT/.python, and later runs use
it as long as no file of the environment has changed: its name is a hash of the names, sizes and times of the files.
The last KEPT are kept: a run whose archive is gone starts from the shared file system on nodes that have no copy yet.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ftslurm.code import node_copy
from ftslurm.config.schema import Config, interpreter
from ftslurm.errors import ConfigError
from ftslurm.security import owned_files, programs

FOLDER = ".python"
KEPT = 5  # archives; each use of one counts anew
_ASK_S = 120.0  # for the interpreter, which may lie on a slow file system
_ASK = "import json, sys; print(json.dumps([sys.prefix, sys.executable]))"
_SYSTEM = ("/", "/usr", "/usr/local")
_OTHERS = ("pkgs", "envs")  # in a conda installation: packages as they were downloaded, and other environments
_CACHE = "__pycache__"  # Python writes there at any time, so it is archived but does not name the archive


@dataclass(frozen=True)
class Environment:
    """A virtual environment or conda environment: its folder, and the name of its interpreter in bin/."""

    prefix: str
    name: str

    @property
    def left_out(self) -> tuple[str, ...]:
        return _OTHERS if os.path.isdir(os.path.join(self.prefix, "conda-meta")) else ()

    @cached_property
    def files(self) -> list[tuple[str, int, int]]:
        """Return name, size and time of modification (ns) of every file."""
        return sorted(self._walk(self.prefix, self.left_out))

    def _walk(self, folder: str, left_out: tuple[str, ...] = ()) -> Iterator[tuple[str, int, int]]:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name in left_out:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    yield from self._walk(entry.path)
                    continue
                found = entry.stat(follow_symlinks=False)
                yield entry.path, found.st_size, found.st_mtime_ns

    @property
    def key(self) -> str:
        """Return the name of the archive."""
        named = [f"{path}\0{size}\0{time}\n" for path, size, time in self.files if f"/{_CACHE}/" not in path]
        return hashlib.sha256("".join(named).encode(errors="surrogateescape")).hexdigest()[:24]

    def sentence(self) -> str:
        """Return its size, for a person."""
        size = sum(size for _, size, _ in self.files)
        return f"{self.prefix}: {size / 1e6:,.0f} MB in {len(self.files):,} files"


def environment(config: Config) -> Environment:
    """Return the environment of job.python.

    Raises:
        ConfigError: it cannot be staged.
    """
    python = interpreter(config.job, sys.executable)[0]
    try:
        asked = subprocess.run(programs.code(_ASK, python=[python]), capture_output=True, timeout=_ASK_S, check=True)
        prefix, executable = (str(part) for part in json.loads(asked.stdout))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ConfigError(f"job.stage_python: {python} cannot be asked for its environment: {error}") from error
    if prefix in _SYSTEM or os.path.dirname(executable) != os.path.join(prefix, "bin"):
        raise ConfigError(
            f"job.stage_python: {python} belongs to {prefix}, which is no virtual environment and no conda "
            f"environment; set job.python to the interpreter of one, or leave job.stage_python out"
        )
    return Environment(prefix, os.path.basename(executable))


def stage(config: Config) -> str:
    """Archive the environment, unless there is an archive of it; note it in `internal`. Return a line about it, or "".

    A full disk is no error: the workers then start from the shared file system.

    Raises:
        ConfigError: the environment cannot be staged.
        Distrusted: other users could replace the archive.
    """
    config.internal.staged_python = None
    found, begun = environment(config), time.monotonic()
    folder = (Path(config.run.dir).parent if config.run.dir else Path(config.run.root)) / FOLDER
    try:
        owned_files.make_folders(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        owned_files.check_own([folder])
        owned_files.check_way(folder, config.run.trust, made=True)
        archive = folder / f"{found.key}.tar"
        new = not owned_files.is_own(archive)
        if new:
            _write(found, archive)
        os.utime(archive)  # the last use
        _remove_unused(folder)
    except OSError as error:
        why = error.strerror or str(error)
        return f"job.stage_python: workers start from {found.prefix}, which could not be archived in {folder}: {why}"
    config.internal.staged_python = f"{archive}:{found.name}"
    took = f"archived in {archive} ({time.monotonic() - begun:.1f} s); later runs use it again"
    return f"Python environment {found.sentence()}, {took}" if new else ""


def _write(found: Environment, archive: Path) -> None:
    half = archive.with_suffix(f".{os.getpid()}.half")
    left_out = [f"--exclude=./{name}" for name in found.left_out]
    command = ["tar", "--create", f"--file={half}", f"--directory={found.prefix}", *left_out, "."]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, umask=0o077, check=False)
        if done.returncode:  # 1: a file has changed meanwhile
            lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
            raise OSError(lines[0])
        half.rename(archive)
    finally:
        with suppress(OSError):
            half.unlink(missing_ok=True)


def _remove_unused(folder: Path) -> None:
    for path in sorted(folder.glob("*.tar"), key=os.path.getmtime)[:-KEPT]:
        path.unlink(missing_ok=True)


def start(config: Config) -> list[str]:
    """Return the command that starts the Python of a worker, as a list to which its arguments are added."""
    python = interpreter(config.job, sys.executable)
    if config.internal.staged_python is None:
        return python
    archive, _, name = config.internal.staged_python.rpartition(":")
    folder = config.job.stage_python if isinstance(config.job.stage_python, str) else ""
    program = shutil.which(python[0]) or python[0]
    return [program, "-I", "-S", str(Path(node_copy.__file__).resolve()), archive, folder, name]
