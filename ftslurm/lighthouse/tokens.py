"""Where the token of a Lighthouse without a controller comes from, and files that only its owner may read."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Mapping

from ftslurm.errors import ConfigError

VARIABLE = "FTSLURM_LIGHTHOUSE_TOKEN"
_TOKEN = re.compile(r"[A-Za-z0-9._~-]{22,200}")  # what may stand in a URL as it is; 22 are 128 bits in base64


def token(path: str, environ: Mapping[str, str]) -> str:
    """The token in the environment, else the one in the file, which is made with a random one if it is missing.

    It is never in a command line, which every user of the machine can read.

    Raises:
        ConfigError: it is no token, or others may read or write its file.
    """
    if (given := environ.get(VARIABLE)) is not None:
        return _checked(given, VARIABLE)
    try:
        return _checked(_read(path), path)
    except FileNotFoundError:
        made = secrets.token_urlsafe(32)
        write_private(path, made + "\n")
        return made


def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd) as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise ConfigError(f"{path}: must be a file that is yours and that nobody else may read: chmod 600 {path}")
        return file.read(1024).strip()


def _checked(text: str, where: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise ConfigError(f"{where}: a token has 22 to 200 letters, digits or . _ ~ - (it becomes part of a URL)")
    return text


def write_private(path: str, text: str) -> None:
    """Write a whole file of mode 0600: readers see the old text or the new one, never half."""
    part = f"{path}.{secrets.token_hex(8)}.part"
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w") as file:
            file.write(text)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
