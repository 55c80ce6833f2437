"""Opens, writes and checks files so that other users of a shared machine cannot make ftslurm act on theirs.

Another user may have replaced a file: by a link, by a named pipe that blocks the process that opens it, by another
folder instead of a run directory. ftslurm acts only on regular files that it owns and no other user can write, reached
through folders that only it and root can change. Files that are only shown to people may belong to any user.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from ftslurm.errors import Distrusted
from ftslurm.security import sharing
from ftslurm.words import listed

MOST = 64 << 20  # bytes that are read of a file; none of ours is larger
REFUSED = (errno.EPERM, errno.EINVAL, errno.ELOOP)  # another user's, no file, a link: permanent errors
_MOST_LINKS = 40  # as the kernel follows
COPY = "if you trust it, copy it: cp -r"
_LOOK = (
    "only its owner can act on the run, and a group that its run.share=GROUP:steer names; others can read it with "
    "ftslurm status and logs"
)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def distrust(found: os.stat_result, advice: str = COPY) -> str | None:
    """Return why another user may have written a file or folder, None if no other user can have.

    Args:
        advice: what to do about one that belongs to another user.
    """
    if found.st_uid != os.geteuid():
        return f"it belongs to another user (uid {found.st_uid}); {advice}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        return f"others can write into it (mode {mode:04o}); if nobody did: chmod -R go-w"
    return None


# --- files ------------------------------------------------------------------------------------------------------------


def open_fd(path: Path, flags: int = _READ) -> int:
    """Open a regular file; a named pipe does not block, and a link is not followed.

    Args:
        flags: as for os.open; O_NOFOLLOW, O_NONBLOCK and O_CLOEXEC are added. O_CREAT makes files of mode 0600,
            in a folder that is shared with a group (sharing.py) 0640.

    Raises:
        OSError: it cannot be opened, is a symbolic link, or is no file.
    """
    number = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is no file", str(path))
    if flags & os.O_CREAT:
        sharing.follow(number, path)
    return number


def open_file(path: Path) -> IO[bytes]:
    """Open a regular file of any user for reading.

    Raises:
        OSError: it cannot be opened, is a symbolic link, or is no file.
    """
    return os.fdopen(open_fd(path), "rb")


def open_own(path: Path) -> IO[bytes]:
    """Open a regular file that no other user can have written.

    Raises:
        PermissionError: another user can have written it; the reason is its `strerror`.
        OSError: it cannot be opened, is a symbolic link, or is no file.
    """
    file = open_file(path)
    if why := distrust(os.fstat(file.fileno())):
        file.close()
        raise PermissionError(errno.EPERM, why, str(path))
    return file


def read_text(path: Path, *, own: bool = False, most: int = MOST) -> str:
    """Read the text of a regular file; bytes that are not UTF-8 become surrogates.

    Args:
        own: refuse a file that another user can have written.

    Raises:
        OSError: it cannot be read, is a symbolic link, no file or longer than `most`; PermissionError: not our own.
    """
    with open_own(path) if own else open_file(path) as file:
        text = file.read(most + 1)
    if len(text) > most:
        raise OSError(errno.EFBIG, f"it is longer than {most} bytes", str(path))
    return text.decode(errors="surrogateescape")


def write_file(path: Path, data: bytes, *, durable: bool = True, mode: int | None = None) -> None:
    """Write a new file.

    Args:
        mode: its mode; None: 0600, in a folder that is shared with a group (sharing.py) 0640.
        durable: sync it to disk before returning.

    Raises:
        OSError: it cannot be written, or exists.
    """
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(number, "wb") as file:
        if mode is None:
            sharing.follow(number, path)
        else:
            os.fchmod(number, mode)
        file.write(data)
        file.flush()
        if durable:
            os.fsync(number)


def replace_file(path: Path, data: bytes, *, durable: bool = False, mode: int | None = None) -> None:
    """Replace a file atomically: readers, also on other nodes, see either the old data or the new.

    The temporary file has a random name, so that nobody can place a file or link there; arguments as of `write_file`.
    A durable one is still there after a crash of the machine.

    Raises:
        OSError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        write_file(part, data, durable=durable, mode=mode)
        part.replace(path)
        if durable:
            sync(path.parent)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def sync(folder: Path) -> None:
    """Flush the entries of a folder to disk, where the file system can.

    Raises:
        OSError: that failed.
    """
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(number)


def make_folders(path: Path) -> None:
    """Make a folder and the missing ones above it, so that no other user may write them, with any umask.

    Raises:
        OSError: one of them cannot be made.
    """
    for folder in reversed([path, *path.parents]):
        try:
            folder.mkdir(mode=0o755)
        except FileExistsError as error:
            if not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error


def is_own(path: Path) -> bool:
    """Return whether a file or folder exists and no other user can have written it."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return not stat.S_ISLNK(found.st_mode) and distrust(found) is None


def check_own(paths: Sequence[Path], advice: str = _LOOK) -> None:
    """Refuse links, and files and folders of a run that another user may have written. Missing ones are accepted.

    Args:
        advice: what to do about one that belongs to another user.

    Raises:
        Distrusted: the message names it.
    """
    for path in paths:
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Distrusted(f"{path} cannot be looked at: {error.strerror}") from error
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            raise Distrusted(f"{path} is neither a file nor a folder, so it is not what ftslurm has made: remove it")
        if why := distrust(found, advice):
            raise Distrusted(f"{path}: {why}")


# --- the folders above ------------------------------------------------------------------------------------------------


class Doubt(NamedTuple):
    """A folder or link of a path that another user could replace."""

    words: str  # why, for a person
    who: tuple[str, ...]  # the users and groups that run.trust would have to name; none: everybody, never trusted


def doubt(path: Path, found: os.stat_result, users: frozenset[int], groups: frozenset[int]) -> Doubt | None:
    """Return which other users could replace the content of a folder or the target of a link, None if none can.

    In a sticky folder such as /tmp only the owner of an entry can replace it, and each entry is checked itself.

    Args:
        users, groups: ids that are trusted.
    """
    mode, why, who = stat.S_IMODE(found.st_mode), list[str](), list[str]()
    writable = 0 if stat.S_ISLNK(found.st_mode) or mode & stat.S_ISVTX else mode
    if found.st_uid not in users:
        who.append(user_name(found.st_uid))
        why.append(f"belongs to {who[0]}")
    if writable & stat.S_IWOTH:
        why.append(f"may be written by everybody (mode {mode:04o})")
    elif writable & stat.S_IWGRP and found.st_gid not in groups:
        who.append(_name(found.st_gid, grp.getgrgid))
        why.append(f"may be written by the group {who[-1]} (mode {mode:04o})")
    return Doubt(f"{path} {listed(why)}", () if writable & stat.S_IWOTH else tuple(who)) if why else None


def way(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield every folder and link through which a path is reached, from the root on, as far as they exist."""
    at, links = Path("/"), 0
    todo = str(path.absolute()).split("/")[::-1]
    yield at, at.lstat()
    while todo and links <= _MOST_LINKS:
        name = todo.pop()
        if name in ("", ".", ".."):
            at = at.parent if name == ".." else at
            continue
        there = at / name
        try:
            found = there.lstat()
            target = str(there.readlink()) if stat.S_ISLNK(found.st_mode) else None
        except OSError:
            return  # making or opening the path will report the error
        yield there, found
        if target is None:
            at = there
        else:
            at, links = Path("/") if target.startswith("/") else at, links + 1
            todo += target.split("/")[::-1]


def check_way(path: Path, trusted: Sequence[str], made: bool = False) -> None:
    """Refuse a run directory, or a file, that other users could write or replace by one of their own.

    Args:
        trusted: names or numbers of the users and groups that may (run.trust).
        made: whether it exists already.

    Raises:
        Distrusted: the message names the users and what to do.
    """
    users = frozenset({os.geteuid(), 0, *_outside(), *_ids(trusted, pwd.getpwnam)})
    groups = frozenset({0, *_private_group(), *_ids(trusted, grp.getgrnam)})
    doubts = [one for there, found in way(path) if (one := doubt(there, found, users, groups)) is not None]
    if doubts:
        raise Distrusted(_complaint(path, doubts, trusted, made))


def unknown(trusted: Sequence[str]) -> str | None:
    """Return the first word of run.trust that is neither a user nor a group of this machine, None if all are."""
    return next((one for one in trusted if not (_ids([one], pwd.getpwnam) or _ids([one], grp.getgrnam))), None)


def _complaint(path: Path, doubts: Sequence[Doubt], trusted: Sequence[str], made: bool) -> str:
    said = f"others could put another in the place of {path}: " + "; ".join(one.words for one in doubts)
    elsewhere = "" if made else "; or choose another place with run.root=DIR"
    said += f". Take the right away (chmod go-w, chown){elsewhere}"
    if not all(one.who for one in doubts):
        return said
    words = ",".join([*trusted, *dict.fromkeys(name for one in doubts for name in one.who)])
    setting = f"write trust: [{words}] under run: in its config.yaml" if made else f"set run.trust=[{words}]"
    return f"{said}; or, if you trust them all, {setting}"


def user_name(uid: int) -> str:
    """Return a user's name, or the number of a user without one."""
    return _name(uid, pwd.getpwuid)


def _name(number: int, look_up: Callable[[int], tuple[Any, ...]]) -> str:
    try:
        return str(look_up(number)[0])
    except KeyError:
        return str(number)


def _ids(words: Iterable[str], look_up: Callable[[str], tuple[Any, ...]]) -> set[int]:
    """Return the ids of the users or groups that words name, by name or number."""
    found = set[int]()
    for word in words:
        try:
            found.add(look_up(word)[2])  # pw_uid, gr_gid
        except KeyError:
            found |= {int(word)} if word.isdecimal() else set()
    return found


def _private_group() -> set[int]:
    """Return this user's private group, if any (same name, no other member): with umask 002 it may write most files."""
    try:
        me = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(me.pw_gid)
    except KeyError:
        return set()
    return {me.pw_gid} if group.gr_name == me.pw_name and set(group.gr_mem) <= {me.pw_name} else set()


def _outside() -> set[int]:
    """In a rootless container, return the uid that stands for all users outside of it, root among them."""
    try:
        mapped = Path("/proc/self/uid_map").read_text().split()
        return set() if mapped == ["0", "0", "4294967295"] else {int(Path("/proc/sys/kernel/overflowuid").read_text())}
    except (OSError, ValueError):
        return set()
