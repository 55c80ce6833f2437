"""Stands in for the calls that write a file: each may fail with one of the errors of a file system, or halfway."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

CALLS = ("write", "fsync", "ftruncate", "dup2")
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)


class Disk:
    """A call that has failed halfway has written a part of its data."""

    def __init__(self, dice: random.Random, monkeypatch: pytest.MonkeyPatch, only: Path | None = None) -> None:
        """Args:
        only: the one file whose calls fail.
        """
        self.dice, self.fails, real = dice, 0.0, SimpleNamespace(**{n: getattr(os, n) for n in CALLS})

        def stand_in(name: str) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                number = dice.choice(ERRORS)
                mine = only is None or os.readlink(f"/proc/self/fd/{args[0]}") == str(only)
                if mine and dice.random() < self.fails:
                    if name == "write" and dice.random() < 0.5:
                        real.write(args[0], bytes(args[1])[: dice.randrange(len(args[1]))])
                    raise OSError(number, os.strerror(number))
                if name == "write" and dice.random() < 0.2:  # fewer bytes than there are is no error
                    return real.write(args[0], bytes(args[1])[: dice.randrange(1, len(args[1]) + 1)])
                return getattr(real, name)(*args, **kwargs)

            return call

        for name in CALLS:
            monkeypatch.setattr(os, name, stand_in(name))
