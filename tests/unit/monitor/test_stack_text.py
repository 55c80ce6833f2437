"""Stacks as faulthandler writes them, of real threads: the user's calls come first."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.monitor.stack_text import told_lines, users_first

# Calls on the way to the script, the script's own, and torchft's below them; other threads of torchft and of the user.
PROGRAM = """
import faulthandler, sys, threading, time

def call(file, name, then):
    space = {"then": then}
    exec(compile(f"def {name}():\\n  then()\\n{name}()", file, "exec"), space)

def path(files, end):
    for file, name in reversed(files):
        end = (lambda file, name, end: lambda: call(file, name, end))(file, name, end)
    return end

SITE = "/opt/lib/python3.11/site-packages/"
stop, ready = threading.Event(), threading.Semaphore(0)
def wait():
    ready.release()
    stop.wait()
for n in range(int(sys.argv[1])):
    threading.Thread(target=path([(SITE + "torchft/server.py", f"serve{n}")], wait), daemon=True).start()
    threading.Thread(target=path([("/home/me/data.py", f"load{n}")], wait), daemon=True).start()
    ready.acquire(), ready.acquire()
ours = [(SITE + "ftslurm/worker/session.py", "main"), (SITE + "ftslurm/worker/script.py", "run")]
mine = [("/home/me/train.py", "train"), ("/home/me/net.py", "forward")]
inner = (SITE + "torchft/manager.py", "allreduce")
path([*ours, *mine, inner], lambda: faulthandler.dump_traceback(all_threads=True))()
"""


@pytest.mark.parametrize("threads", [0, 1, 5])
def test_the_main_thread_and_the_users_calls_come_first(threads: int) -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM, str(threads)], capture_output=True, text=True, check=True)
    heading, kernel = "ftslurm: stacks of rank 3, pid 7, state S", "ftslurm:   7 python S futex_wait"
    said = users_first(f"{heading}\n{kernel}\n{ran.stderr}")
    assert said[:2] == [heading, "its main thread is in net.py:2 in forward"]
    calls = [line for line in said if line.startswith("  File")]
    mine = [line for line in calls if "/home/me/" in line]
    assert "net.py" in mine[0]
    assert [line for line in calls if "ftslurm/worker" in line or "torchft/manager" in line] == []
    for n in range(threads):
        assert any(f"in load{n}" in line for line in mine)
        assert said.index(next(line for line in calls if f"in serve{n}" in line)) > said.index(mine[0])
    assert kernel in said


@given(st.text(max_size=400))
def test_what_is_no_stack_is_told_as_it_is(text: str) -> None:
    assert (
        "".join(users_first(text)).split() == "".join(line for line in text.splitlines() if line).split()
        or "0x" in text
    )
    told_lines(text)


def test_a_traceback_is_told_without_ftslurms_calls_and_marks() -> None:
    trace = (
        "Traceback (most recent call last):\n"
        '  File "/x/site-packages/ftslurm/checkpoint/files.py", line 7, in save\n    write(path)\n    ^^^^^^^^^^^\n'
        '  File "/home/me/train.py", line 3, in step\n    loss.backward()\n    ~~~~~~~~~~~~~^^\n'
        "ValueError: x\n"
    )
    assert told_lines(trace) == [
        "Traceback (most recent call last):",
        '  File "/home/me/train.py", line 3, in step',
        "    loss.backward()",
        "ValueError: x",
    ]
