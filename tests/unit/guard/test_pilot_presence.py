"""A pilot counts as alive only while a process of its own user holds its name."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from ftslurm.guard.connection import address
from ftslurm.guard.pilot_presence import Presence, is_held

SQUAT = """
import os, socket, sys
os.setuid(65534)
held = socket.socket(socket.AF_UNIX, getattr(socket, sys.argv[2]))
held.bind(bytes.fromhex(sys.argv[1]))
if sys.argv[2] != "SOCK_DGRAM":
    held.listen(1)
print("held", flush=True)
sys.stdin.read()
"""


def key(seed: int) -> bytes:
    return os.urandom(16) + bytes([seed])


def test_it_is_seen_however_often_it_is_asked_for_and_gone_at_once() -> None:
    mine = key(0)
    assert (is_held(mine, "7"), is_held(b"", "7"), is_held(mine, None)) == (False, None, None)
    shown = Presence(mine, "7")
    for _ in range(5):
        assert {is_held(mine, "7") for _ in range(100)} == {True}
        shown.tend()
    assert is_held(mine, "8") is False
    with pytest.raises(OSError, match="in use"):
        Presence(mine, "7")
    del shown
    gc.collect()
    assert is_held(mine, "7") is False


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("kind", ["SOCK_SEQPACKET", "SOCK_STREAM", "SOCK_DGRAM"])
def test_a_stranger_who_takes_the_name_of_a_dead_pilot_is_none(kind: str) -> None:
    mine = key(1)
    words = [sys.executable, "-c", SQUAT, address(mine, "pilot", "7").hex(), kind]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as squatter:
        assert squatter.stdout
        assert squatter.stdout.readline() == "held\n"
        assert not is_held(mine, "7")
        assert squatter.stdin
        squatter.stdin.close()
