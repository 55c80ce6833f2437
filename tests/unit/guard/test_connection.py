"""A step outlives its controller: a successor attaches to its guards, gets all messages, and commands them."""

from __future__ import annotations

import hashlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from guarded import PATIENCE_S, Attached, Step, attached, key_of, step
from meanwhile import repeated

from ftslurm.guard import connection, processes
from ftslurm.guard.connection import STOOD_S
from ftslurm.guard.gateway import Gateway, pair
from ftslurm.guard.guard import Guard, Task, options
from ftslurm.protocol import messages
from ftslurm.protocol.exit_codes import ExitCode
from ftslurm.worker import patch_fit

WAITING = "import time\nprint('now', flush=True)\ntime.sleep(1000)"
# Sends a worker's progress messages through the pipe of its reports.
COMMITS = """
import sys, time
from ftslurm.protocol import messages, outbox as tell
print("now", flush=True)
while True:
    tell.say(messages.Progress(7, 0, 0, 6, 0, gap_s=time.time()))
    time.sleep(0.01)
"""


# Prints the pipes of which a worker holds both ends: from them it would never hear that the guard is gone.
BOTH_ENDS = """
import os, time
ends = {}
for fd in os.listdir("/proc/self/fd"):
    try:
        name = os.readlink(f"/proc/self/fd/{fd}")
        mode = int(open(f"/proc/self/fdinfo/{fd}").read().split()[3], 8) & os.O_ACCMODE
    except OSError:
        continue
    if name.startswith("pipe:"):
        ends.setdefault(name, set()).add(mode)
print(sum(len(modes) > 1 for modes in ends.values()), "of", len(ends), flush=True)
time.sleep(1000)
"""


def adopted(there: Attached) -> dict[str, object]:
    """Return the guard's first report, without the fields that differ each time."""
    assert there.until("hello")["host"] == "n1"
    message = there.until("adopted")
    return {name: value for name, value in message.items() if name not in ("type", "task", "host")}


def test_a_new_controller_hears_all_and_commands_and_the_old_one_does_no_longer(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with step(folder, "--adoptable=1") as task:
        task.begin(COMMITS)
        task.send("ping", reached=5)
        task.until("progress")
        with attached(folder) as there:
            known = {"ready": True, "group": 0, "attempt": 0, "lighthouse": "http://x:1", "begun": True}
            known |= {"store": ["127.0.0.1", 1], "floor": 0, "step": 0, "torchft": patch_fit.torchft()}
            assert adopted(there) == known
            late = [there.until("progress") for _ in range(20)]
            assert time.time() - late[-1]["gap_s"] < 3.0  # 0.2 ms on an idle machine
            assert all(json.loads(line) for line in there.lines)  # whole lines, each of them
            there.send("where")
            assert there.until("alive")["state"] in "SR"
            heard = len(task.lines)
            task.send("kill")  # the old controller, which does not know yet
            there.send("dump")
            there.until("dumped")
            assert len(task.lines) == heard
            there.send("kill")
            assert task.process.wait(PATIENCE_S) == 137
            assert there.process.wait(PATIENCE_S) == ExitCode.DETACHED


@pytest.mark.parametrize("flags", [(), ("--adoptable=1",)])
def test_a_worker_has_no_end_of_a_pipe_that_is_the_guards(flags: tuple[str, ...], tmp_path: Path) -> None:
    with step(tmp_path / "run", *flags) as task:
        task.begin(BOTH_ENDS)
        assert task.log().split()[0] == "0", task.log()
        assert int(task.log().split()[2]) >= 2


@pytest.mark.parametrize("assigned", [False, True])
def test_one_that_has_not_begun_goes_on_from_where_it_is(assigned: bool, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = {"group": 3, "attempt": 2, "lighthouse": "http://x:1", "module": None, "args": [], "run_id": "x"}
    words |= {"ranks": [{"rank": 0, "node": "n1", "local_rank": 0, "node_rank": 0}], "groups": 1, "max_restarts": 3}
    (tmp_path / "script.py").write_text("import os; print(os.environ['MASTER_PORT'], flush=True)")
    words |= {"script": str(tmp_path / "script.py")}
    with step(folder, "--adoptable=1", env={"FTSLURM_STEP": "standby-001/4"}) as task:
        task.get_ready()
        if assigned:
            task.send("assign", **words)
            task.until("store")
        with attached(folder, step="standby-001/4") as there:
            said = adopted(there)
            assert (said["ready"], said["begun"], said["step"]) == (True, False, None)
            assert (said["group"], said["attempt"]) == ((3, 2) if assigned else (None, None))
            assert said["store"] == (["127.0.0.1", 1] if assigned else None)
            there.send("assign", **words)  # a second time, or the first
            if not assigned:
                there.until("store")
            there.send("store", addr="127.0.0.1", port=4711)
            assert there.until("exited")["code"] == 0
            assert there.process.wait(PATIENCE_S) == 0
        assert (folder / "rank-0.log").read_text().strip().isdigit()  # a door of its guard's


def test_a_worker_that_ends_while_nobody_leads_has_its_end_told_to_who_attaches(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with step(folder, "--adoptable=1") as task:
        task.begin("import time\nprint('now', flush=True)\ntime.sleep(0.3)\nraise ValueError('nine')")
        task.until("exited")
        assert task.process.wait(PATIENCE_S) == 1  # the receiver may have been about to exit
        for _ in range(2):
            with attached(folder) as there:
                assert adopted(there)["begun"] is True
                assert there.until("failed")["error"] == "ValueError: nine"
                assert there.until("exited")["code"] == 1
                assert there.process.wait(PATIENCE_S) == ExitCode.END_REPORTED


def test_a_worker_that_is_killed_for_its_failure_has_told_it_before(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with step(folder, "--adoptable=1") as task:
        task.begin("print('now', flush=True)\nraise ValueError('nine')")
        task.until("failed")
        task.process.kill()  # as Slurm does when the controller that heard it has the step ended
        task.process.wait()
    with attached(folder) as there:
        assert adopted(there)["begun"] is True
        assert there.until("failed")["error"] == "ValueError: nine"
        assert there.process.wait(PATIENCE_S) == ExitCode.END_REPORTED


@pytest.mark.parametrize("heard", [False, True])
def test_a_guard_that_ends_as_somebody_attaches_is_heard_or_read(heard: bool, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with step(folder, "--adoptable=1") as task:
        task.begin(WAITING)
        os.kill(task.process.pid, signal.SIGSTOP)
        with attached(folder) as there:
            task.wait(lambda: connection.address(key_of(folder), "group-0000/0", 0) in connected(), "a connection")
            if heard:
                connection.write_end_file(
                    connection.end_file(str(folder), 0), [messages.encode_report(messages.Exited(5, None, False), 0)]
                )
            task.process.kill()
            assert there.process.wait(PATIENCE_S) == (ExitCode.END_REPORTED if heard else ExitCode.DETACHED)
            assert not heard or there.until("exited")["code"] == 5


def connected() -> set[bytes]:
    """Return the names of the abstract sockets with a connection."""
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    return {b"\0" + row[7][1:].encode() for row in rows if len(row) > 7 and row[5] in ("02", "03") and row[7][0] == "@"}


def test_an_end_that_cannot_be_kept_is_complained_of(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with step(folder, "--adoptable=1") as task:
        (folder / "task-0.end").mkdir()
        task.begin("print('now', flush=True)")
        task.until("exited")
        assert task.process.wait(PATIENCE_S) == 0
        assert "cannot write how this task has ended, for a new controller" in task.step_log()


def test_one_that_attaches_ends_when_the_guard_does(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with step(folder, "--adoptable=1") as task:
        task.begin(WAITING)
        with attached(folder) as there:
            adopted(there)
            os.kill(task.pid, signal.SIGKILL)
            assert there.until("exited")["signal"] == signal.SIGKILL
            assert there.process.wait(PATIENCE_S) == ExitCode.END_REPORTED
            assert task.process.wait(PATIENCE_S) == -signal.SIGKILL


def test_the_latest_of_two_commands_and_when_it_dies_the_step_lives_on_for_a_third(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with step(folder, "--adoptable=1") as task:
        task.begin(WAITING)
        with attached(folder) as first:
            adopted(first)
            with attached(folder) as second:
                adopted(second)
                assert first.process.wait(PATIENCE_S) == ExitCode.DETACHED
                assert "another controller has attached" in first.step_log()
        with attached(folder) as third:
            adopted(third)
            third.send("where")
            assert third.until("alive")["state"] in "RSD"


def pinged(task: Step) -> AbstractContextManager[None]:
    """Let the controller of a step be heard for the time of a `with`."""
    return repeated(lambda: task.send("ping"), 0.05)


def test_without_a_controller_a_step_and_who_had_attached_end_after_a_while_and_not_before(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with step(folder, "--adoptable=1", "--orphan-after-s=1.0") as task, ExitStack() as pings:
        pings.enter_context(pinged(task))
        task.begin(WAITING)
        with attached(folder, "--orphan-after-s=0.5") as there:
            pings.enter_context(pinged(there))
            adopted(there)
            pings.close()
            since = time.monotonic()
            assert there.process.wait(PATIENCE_S) == ExitCode.ORPHANED
            assert time.monotonic() - since > 0.4
            assert task.process.wait(PATIENCE_S) == ExitCode.ORPHANED
            assert time.monotonic() - since > 0.9
        assert not [pid for pid in (task.pid,) if processes.state(pid) not in (None, "Z")]


def test_where_there_is_no_guard_it_says_so_and_ends_with_a_code_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with step(folder) as task:  # not adoptable
        task.get_ready()
        with attached(folder, "--patience-s=0.3") as there:
            assert there.process.wait(PATIENCE_S) == ExitCode.NO_GUARD
            said = there.step_log()
    assert "task 0 of step group-0000/0 on " in said
    assert "cannot be adopted: its guard does not answer (Connection refused)" in said


def test_a_name_that_somebody_else_holds_is_no_way_in(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    squatter = socket.socket(socket.AF_UNIX)
    squatter.bind(connection.address(key_of(folder), "group-0000/0", 0))
    with squatter, step(folder, "--adoptable=1") as task:
        task.get_ready()
        task.begin("print('now', flush=True)")  # it trains all the same
        assert "the name of its socket is taken" in task.step_log()
        assert task.until("exited")["code"] == 0
        assert task.process.wait(PATIENCE_S) == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_another_user_gets_no_hearing_on_either_side(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    other = """
import os, socket, sys
os.setuid(65534)
near = socket.socket(socket.AF_UNIX)
name = bytes.fromhex(sys.argv[2])
if sys.argv[1] == "connect":
    near.connect(name)
    print(near.recv(100))
    again = socket.socket(socket.AF_UNIX)
    again.connect(name)
    again.recv(100)
else:
    near.bind(name)
    near.listen(1)
    print("listens", flush=True)
    near.accept()[0].recv(100)
"""
    name = connection.address(key_of(folder), "group-0000/0", 0).hex()
    with step(folder, "--adoptable=1") as task:
        task.begin(WAITING)
        assert not guessed(str(folder)) & names(), "what a stranger knows of a step gives its name away"
        said = subprocess.run(
            [sys.executable, "-c", other, "connect", name], capture_output=True, text=True, timeout=20
        )
        assert said.stdout == "b''\n", said.stderr
        assert task.step_log().count("refused: user 65534, who tried to control this task") == 1
    with subprocess.Popen([sys.executable, "-c", other, "bind", name], stdout=subprocess.PIPE) as squatter:
        assert squatter.stdout
        squatter.stdout.readline()
        with attached(folder) as there:
            assert there.process.wait(PATIENCE_S) == ExitCode.NO_GUARD
            assert "user 65534 holds the name of its socket" in there.step_log()
        squatter.kill()


def names() -> set[str]:
    """Return the abstract names on this machine, which all users can see."""
    return {line.split()[7][1:] for line in Path("/proc/net/unix").read_text().splitlines()[1:] if " @" in line}


def guessed(run: str) -> set[str]:
    """Return the names that can be made of what is public of a step: its folder, its name, its task, its user."""
    words = "\0".join((run, "group-0000/0", "0", str(os.getuid()))).encode()
    return {f"ftslurm-{hashlib.sha256(words).hexdigest()[:40]}"}


def test_names_differ_by_run_step_and_task() -> None:
    names = {connection.address(key, s, task) for key in (b"a", b"b") for s in ("g/0", "g/1") for task in (0, 1)}
    assert len(names) == 8
    assert all(len(name) < 100 and name.startswith(b"\0") for name in names)


def test_credentials_are_read_as_the_kernel_writes_them() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert connection.peer_uid(left) == os.getuid()
    assert struct.calcsize("iII") == 12


def test_messages_that_have_come_are_read_before_the_silence_is_judged() -> None:
    ours, theirs = pair()
    task = Task(0, 0, "n1", options(["--log-dir=/nowhere", "--heartbeat-s=1", "--orphan-after-s=60"]), Gateway(theirs))
    reports, written = os.pipe()
    guard = Guard(task, 0, ours, 1, reports)
    guard.selector.unregister(0)  # the tests' own stdin
    assert not guard.channel.is_silent(60.0)
    guard.channel.heard -= 3600.0
    assert guard.channel.is_silent(60.0)
    there, here = socket.socketpair()
    guard.selector.register(here, selectors.EVENT_READ, lambda _: guard.channel._hear(here.recv(100)))
    there.send(b"\n")
    assert not guard.channel.is_silent(60.0)
    for end in (there, here, ours):
        end.close()
    for fd in (reports, written):
        os.close(fd)


@pytest.mark.parametrize(
    ("started", "kills", "ago_s", "oom"),
    [(True, 1, 0, True), (True, 1, 20, True), (True, 1, 60, False), (True, 0, 0, False), (False, 1, 0, False)],
)
def test_an_error_just_after_a_child_was_killed_for_want_of_memory_has_that_cause(
    started: bool, kills: int, ago_s: float, oom: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script reads "DataLoader worker (pid 7) is killed by signal: Killed"."""
    counted, clock = [3], [1000.0]
    monkeypatch.setattr(processes, "oom_kills", lambda: counted[0])  # in a cgroup that a test cannot make everywhere
    task = Task(
        0, 0, "n1", options(["--log-dir=/nowhere", "--heartbeat-s=1", "--orphan-after-s=60"]), Gateway(pair()[1])
    )
    reports, written = os.pipe()
    guard = Guard(task, 0, pair()[0], 1, reports)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    assert not guard.ran_out_of_memory()
    counted[0] += kills
    guard.ran_out_of_memory()  # as once a second
    clock[0] += ago_s
    for line in messages.encode_report(messages.Failed("RuntimeError: killed", started), 0).splitlines():
        told = messages.Report.decode(messages.parse(guard.channel._with_evidence(line) or line))
        assert isinstance(told, messages.Failed)
        assert (told.error, told.started, told.oom) == ("RuntimeError: killed", started, oom)
    for fd in (reports, written):
        os.close(fd)


@pytest.mark.nightly
def test_the_time_in_which_a_guard_and_its_controller_stood_is_no_silence(tmp_path: Path) -> None:
    """As with `scontrol suspend`: both sides stand still for longer than orphan_after_s, and go on."""
    with step(tmp_path, "--orphan-after-s=3") as task:
        task.begin(WAITING)
        os.kill(task.process.pid, signal.SIGSTOP)
        time.sleep(STOOD_S + 1)
        os.kill(task.process.pid, signal.SIGCONT)
        time.sleep(1)  # less than orphan_after_s
        assert task.process.poll() is None
        assert task.process.wait(PATIENCE_S) == ExitCode.ORPHANED  # but it does not wait for ever
