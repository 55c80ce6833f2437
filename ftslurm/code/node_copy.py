"""Starts a worker from the node's own copy of its Python environment: `node_copy.py ARCHIVE FOLDER NAME ARGUMENT...`.

Thousands of small files are slow to open on a shared file system, and every worker opens them at every start. With
job.stage_python the environment is one archive (staging.py). The first worker that starts on a node unpacks it into a
folder of the node, the others wait for that, and each becomes the interpreter NAME of the copy.

    FOLDER/ftslurm-UID/     mode 0700; another user's folder of that name is refused
        unpack.lock         locked by the one process that looks at the copies, unpacks or removes one; the others wait
        KEY/                the copy. It gets this name when it is whole; each worker that runs from it has it locked

A copy is kept for later attempts and runs. One that no worker runs from is removed when another is unpacked, and is
unpacked again after a day: a cleaner of /tmp may have removed some of its files.
Whatever goes wrong, the worker starts from the shared file system, without any lock, and its run gets a warning.

Runs by itself, as `python -I -S`: what it imports comes from the shared file system, so it imports little.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
import time
from collections.abc import Iterator

NOT_STAGED = "FTSLURM_NOT_STAGED"  # variable: why a worker does not run from a copy (worker/session.py)
_OLD_S = 86400.0  # age at which a copy that nobody uses is not trusted any more


class Unusable(Exception):
    """The copy cannot be made or used; the message says why."""


def main(words: list[str]) -> None:
    archive, folder, name, *command = words
    try:
        with ready(archive, folder, name) as copy:
            os.environ.pop(NOT_STAGED, None)
            python = os.path.join(copy, "bin", name)
            os.stat(python)  # unlike that of execv, its error names the file
            os.execv(python, [python, *command])  # noqa: S606 an argument list
    except (Unusable, OSError) as error:
        os.environ[NOT_STAGED] = str(error)[:500]
    os.execv(sys.executable, [sys.executable, *command])  # noqa: S606


@contextlib.contextmanager
def ready(archive: str, folder: str, name: str) -> Iterator[str]:
    """Give the path of the copy, which is unpacked if need be. Its lock is released at the end, but not by `execv`.

    Raises:
        Unusable, OSError: there is none.
    """
    place = own_folder(folder or os.environ.get("SLURM_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 see own_folder
    copy = os.path.join(place, os.path.basename(archive).removesuffix(".tar"))
    with _opened(os.path.join(place, "unpack.lock"), os.O_RDWR | os.O_CREAT) as unpack:
        fcntl.flock(unpack, fcntl.LOCK_EX)
        if not _is_used(copy) and not _is_good(copy, name):
            for entry in list(os.scandir(place)):  # of a process that was killed, of other environments
                if entry.is_dir(follow_symlinks=False) and not _is_used(entry.path):
                    _remove(entry.path)
            _unpack(archive, copy)
        use = os.open(copy, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(use, fcntl.LOCK_SH)  # waits for a cleaner that looks at it just now
    try:
        os.set_inheritable(use, True)
        yield copy
    finally:
        os.close(use)


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    """Open a file or folder for locks, which end with it. Programs that this process starts do not get it."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_used(copy: str) -> bool:
    """Whether a worker runs from a copy. This process has locked unpack.lock, so no other one begins to."""
    with contextlib.suppress(FileNotFoundError), _opened(copy, os.O_RDONLY | os.O_DIRECTORY) as use:
        try:
            fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _is_good(copy: str, name: str) -> bool:
    """Whether a copy that nobody uses may be used again."""
    if not os.path.lexists(os.path.join(copy, "bin", name)):
        return False
    return abs(time.time() - os.stat(copy).st_mtime) < _OLD_S


def own_folder(folder: str) -> str:
    """Return this user's folder inside `folder`, made if need be.

    Raises:
        Unusable: another user owns it, or could replace it.
    """
    place = os.path.realpath(folder)
    above = place
    while True:
        found = os.stat(above)
        if found.st_uid not in (0, os.geteuid()):
            raise Unusable(f"{above} belongs to another user (uid {found.st_uid})")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
            raise Unusable(f"other users can write into {above}")
        if above == "/":
            break
        above = os.path.dirname(above)
    own = os.path.join(place, f"ftslurm-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(own, 0o700)
    found = os.lstat(own)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise Unusable(f"{own} is not a folder of this user alone (uid {found.st_uid}, mode {found.st_mode:o})")
    return own


def _remove(folder: str) -> None:
    """Remove a folder with all in it, read-only folders too."""
    import shutil

    for path, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _unpack(archive: str, copy: str) -> None:
    """Unpack the archive, which must be this user's. This process has locked unpack.lock."""
    import subprocess

    begun, half = time.monotonic(), f"{copy}.half"
    fd = os.open(archive, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Unusable(f"another user may have written {archive}")
        there = os.statvfs(os.path.dirname(copy))
        if there.f_bavail * there.f_frsize < found.st_size:
            raise Unusable(f"{os.path.dirname(copy)} has no room for the {found.st_size / 1e6:,.0f} MB of {archive}")
        os.mkdir(half, 0o700)
        command = ["tar", "--extract", "--file=-", "--no-same-owner", "--preserve-permissions", f"--directory={half}"]
        done = subprocess.run(command, stdin=fd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
            raise Unusable(f"{archive} cannot be unpacked into {os.path.dirname(copy)}: {lines[0]}")
        os.chmod(half, 0o700)  # the archive's top folder may be read-only
        os.utime(half)  # not the time of the environment's folder
        os.rename(half, copy)
    except BaseException:
        _remove(half)
        raise
    finally:
        os.close(fd)
    print(f"ftslurm: the Python environment is in {copy} ({time.monotonic() - begun:.1f} s)", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
