"""Starts a worker from the node's own copy of its Python environment: `node_copy.py ARCHIVE FOLDER NAME ARGUMENT...`.

Thousands of small files are slow to open on a shared file system, and every worker opens them at every start. With
job.stage_python the environment is one archive (staging.py). The first worker that starts on a node unpacks it into a
folder of the node, the others wait for that, and each becomes the interpreter NAME of the copy.

    FOLDER/ftslurm-UID/     mode 0700; another user's folder of that name is refused
        KEY/                the copy. It gets this name when it is whole, and ends with the boot of the node
        KEY.unpack          locked by the one process that looks at the copy, unpacks or removes it; the others wait
        KEY.lock            locked, shared, by each worker that runs from the copy. Nobody ever waits for this lock

Copies are kept for later attempts and runs. After unpacking, all but the KEPT last used are removed, unless a worker
runs from them. Cleaners of /tmp remove files that are some days old, but systemd-tmpfiles none below a folder that is
locked, as that of a copy is by its workers. So the files of a copy that is older than a day are counted. A copy that
lacks some, or has lost its mark or its interpreter, is unpacked again, but not while a worker runs from it.
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
KEPT = 2
_BOOT = ".ftslurm-boot"  # in a copy: the boot of its node (a crash may damage what is older), and how many files it has
_OLD_S = 86400.0  # age at which the files of a copy are counted


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
        os.environ[NOT_STAGED] = _told(error)
    os.execv(sys.executable, [sys.executable, *command])  # noqa: S606


def _told(error: Exception) -> str:
    reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    return reason[:500]


@contextlib.contextmanager
def ready(archive: str, folder: str, name: str) -> Iterator[str]:
    """Give the path of the copy, which is unpacked if need be. Its lock is released at the end, but not by `execv`.

    Raises:
        Unusable, OSError: there is none.
    """
    place = own_folder(folder or os.environ.get("SLURM_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 see own_folder
    copy = os.path.join(place, os.path.basename(archive).removesuffix(".tar"))
    begun = time.time()
    with _opened(f"{copy}.lock") as use:
        with _opened(f"{copy}.unpack") as unpack:
            fcntl.flock(unpack, fcntl.LOCK_EX)
            if not _is_whole(copy, name):
                if _is_used(use):
                    raise Unusable(f"{copy} is damaged, and cannot be replaced while other workers run from it")
                _try_to_unpack(unpack, archive, copy, begun)
                _remove_unused(place, os.path.basename(copy))
            fcntl.flock(use, fcntl.LOCK_SH | fcntl.LOCK_NB)  # no other process has it exclusively
        os.utime(use)  # the last use
        os.set_inheritable(use, True)
        folder_fd = os.open(copy, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(BlockingIOError):  # a cleaner looks at it just now
                fcntl.flock(folder_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.set_inheritable(folder_fd, True)
            yield copy
        finally:
            os.close(folder_fd)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    """Open a file for locks, which end with it. Programs that this process starts do not get it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_used(use: int) -> bool:
    """Whether a worker runs from the copy. This process has locked KEY.unpack, so no other one begins to."""
    try:
        fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(use, fcntl.LOCK_UN)
    return False


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
    if os.statvfs(place).f_flag & os.ST_NOEXEC:
        raise Unusable(f"no program may run from {place} (mounted noexec)")
    own = os.path.join(place, f"ftslurm-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(own, 0o700)
    found = os.lstat(own)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise Unusable(f"{own} is not a folder of this user alone (uid {found.st_uid}, mode {found.st_mode:o})")
    return own


def _is_whole(copy: str, name: str) -> bool:
    if not os.path.lexists(os.path.join(copy, "bin", name)):
        return False
    try:
        with open(os.path.join(copy, _BOOT)) as file:
            boot, _, count = file.read().rpartition("\n")
            made = os.fstat(file.fileno()).st_mtime
        return boot == _boot() and (abs(time.time() - made) < _OLD_S or _files(copy) >= int(count))
    except (OSError, ValueError):
        return False


def _remove(folder: str) -> None:
    """Remove a folder with all in it, read-only folders too."""
    import shutil

    for path, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _files(folder: str) -> int:
    """Count the files, without those that Python writes at any time (__pycache__)."""
    return sum(len(files) for path, _, files in os.walk(folder) if not path.endswith("/__pycache__"))


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _try_to_unpack(unpack: int, archive: str, copy: str, begun: float) -> None:
    """Unpack the archive. What went wrong is left in the file `unpack`: those who waited meanwhile do not try it again.

    Args:
        begun: when this process began to wait.
    """
    if os.fstat(unpack).st_mtime >= begun and (reason := os.pread(unpack, 1000, 0)):
        raise Unusable(reason.decode(errors="replace"))
    os.ftruncate(unpack, 0)
    try:
        _unpack(archive, copy)
    except (Unusable, OSError) as error:
        with contextlib.suppress(OSError):
            os.pwrite(unpack, _told(error).encode(errors="replace"), 0)
        raise


def _unpack(archive: str, copy: str) -> None:
    """Unpack the archive, which must be this user's. This process has locked KEY.unpack."""
    import subprocess

    begun, half = time.monotonic(), f"{copy}.half"
    for left in (half, copy):  # of a process that was killed, or of an earlier boot
        _remove(left)
    fd = os.open(archive, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Unusable(f"another user may have written {archive}")
        os.mkdir(half, 0o700)
        command = ["tar", "--extract", "--file=-", "--no-same-owner", "--preserve-permissions", f"--directory={half}"]
        done = subprocess.run(command, stdin=fd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
            raise Unusable(f"{archive} cannot be unpacked into {os.path.dirname(copy)}: {lines[0]}")
        os.chmod(half, 0o700)  # the archive's top folder may be read-only
        with open(os.path.join(half, _BOOT), "w") as file:
            file.write(f"{_boot()}\n{_files(half)}")
        os.rename(half, copy)
    except BaseException:
        _remove(half)
        raise
    finally:
        os.close(fd)
    print(f"ftslurm: the Python environment is in {copy} ({time.monotonic() - begun:.1f} s)", file=sys.stderr)


def _remove_unused(place: str, new: str) -> None:
    """Remove copies beyond the KEPT last used ones, unless a worker runs from them."""
    locks = [entry for entry in os.scandir(place) if entry.name.endswith(".lock") and entry.name != f"{new}.lock"]
    locks = [entry for entry in locks if os.path.isdir(entry.path.removesuffix(".lock"))]
    for entry in sorted(locks, key=lambda entry: entry.stat().st_mtime, reverse=True)[KEPT - 1 :]:
        copy = entry.path.removesuffix(".lock")
        with contextlib.suppress(BlockingIOError), _opened(entry.path) as use, _opened(f"{copy}.unpack") as unpack:
            fcntl.flock(unpack, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_used(use):
                _remove(copy)


if __name__ == "__main__":
    main(sys.argv[1:])
