"""The guard: it reports, relays messages, and ends processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from cluster import unanswered
from guarded import PATIENCE_S, RANK0, step

from ftslurm.guard import processes
from ftslurm.guard.gateway import Gateway, pair
from ftslurm.guard.guard import Guard, Task, options
from ftslurm.protocol import messages
from ftslurm.protocol.messages import LONGEST

WAITING = """
import time
print("now", flush=True)
time.sleep(1000)
"""


def test_alive_says_nothing_of_a_place_before_the_script_and_its_place_after(tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.get_ready()
        message = task.until("alive")
        assert (message["step"], message["stage"], message["since_s"]) == (None, None, None)
        task.begin(WAITING)
        task.send("where")
        while (message := task.until("alive"))["step"] is None:
            pass  # an older one
        assert (message["state"], message["step"], message["stage"]) == ("S", 0, 0)
        assert 0 <= message["since_s"] < 10


def test_every_task_answers_where_and_only_one_of_a_node_says_alive_unasked(tmp_path: Path) -> None:
    with step(tmp_path / "run", env={"FTSLURM_TASK": "3", "FTSLURM_LOCAL_TASK": "1"}) as task:
        task.get_ready()
        time.sleep(0.5)
        assert not [line for line in task.lines if b'"alive"' in line]
        task.send("where")
        assert task.until("alive")["task"] == 3


def test_the_assignment_says_where_the_log_goes_and_what_the_step_is_called(tmp_path: Path) -> None:
    log_dir = tmp_path / "logs" / "group-0003" / "attempt-002"
    with step(tmp_path / "run", "--log-dir=/nowhere", env={"FTSLURM_STEP": "standby-001/4"}) as task:
        task.begin(
            "import os; print(os.environ['FTSLURM_STEP'], flush=True)", log_dir=str(log_dir), step="group-0003/2"
        )
        assert task.until("exited")["code"] == 0
    assert (log_dir / "rank-0.log").read_text() == "group-0003/2\n"
    assert (log_dir / "rank-0.times").read_text()


def test_the_node_that_cannot_reach_the_lighthouse_says_so_in_its_log_and_to_the_controller(tmp_path: Path) -> None:
    script = """
import os, socket, time
from urllib.parse import urlsplit
print("now", flush=True)
door = urlsplit(os.environ["TORCHFT_LIGHTHOUSE"])
waits = socket.create_connection((door.hostname, door.port))
time.sleep(1000)
"""
    with step(tmp_path / "run") as task:
        begun = time.monotonic()
        task.begin(script, lighthouse="http://no-such-node.invalid:4711/lighthouse")
        words = str(task.until("warning")["text"])
        assert time.monotonic() - begun < 12
        assert words.startswith("n1 cannot reach http://no-such-node.invalid:4711/lighthouse (")
        assert "cluster.interface=" in words
        assert words in task.step_log()


@pytest.mark.parametrize("name", ["train.py", "a name with spaces and ü" + "x" * 150 + ".py"])
def test_guard_and_worker_say_in_ps_and_top_what_they_are(name: str, tmp_path: Path) -> None:
    script = "import subprocess, time; print('now', flush=True); subprocess.run(['sleep', '1000'])"
    flags = [f"--imports={'x' * 300}"] * (len(name) > 50)
    rank3 = [RANK0 | {"rank": 3}]
    with step(tmp_path / "run", *flags) as task:
        task.get_ready()
        path = tmp_path / name
        path.write_text(script)
        words = {"group": 7, "attempt": 2, "lighthouse": "", "module": None, "args": [], "script": str(path)}
        task.send("assign", **words, ranks=rank3, run_id="x", groups=1, max_restarts=3)
        task.send("store", addr="127.0.0.1", port=1)
        log = tmp_path / "run/rank-3.log"
        task.wait(lambda: log.exists() and "now" in log.read_text(), "the script to print")
        guard, worker = (task.process.pid, "ftslurm guard", "7.3:guard"), (task.pid, "ftslurm", f"7.3:{name}")
        for pid, part, short in (guard, worker):
            seen = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True).stdout
            assert seen.startswith(f"{part}: {name} group 7 rank 3 attempt 2 ")
            assert "guarded.py" in seen
            assert Path(f"/proc/{pid}/comm").read_bytes().rstrip(b"\n") == short.replace(" ", "_").encode()[:15]
            found = subprocess.run(
                ["pgrep", "-f", f"{part}: .* group 7 rank 3 attempt 2"], capture_output=True, text=True
            )
            assert str(pid) in found.stdout.split()
            assert not Path(f"/proc/{pid}/environ").read_bytes().startswith(b"\0")
        assert {**dict(processes.of_run(str(tmp_path / "run")))}.keys() >= {task.process.pid, task.pid}
        (below,) = processes.descendants(task.pid)
        assert Path(f"/proc/{below}/cmdline").read_bytes().startswith(b"sleep\0")


def test_without_them_it_is_as_it_was_started(tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.begin("import os; print(os.environ['FTSLURM_STEP'], flush=True)")
        task.until("exited")
        assert task.log() == "group-0000/0\n"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_patch_that_was_left_out_is_in_each_ranks_log_and_told_once_a_group(rank: int, tmp_path: Path) -> None:
    ranks = [{**RANK0, "rank": rank}]
    with step(tmp_path / "run", env={"LEFT_OUT": "the patch x"}) as task:
        task.get_ready()
        task.send(
            "assign",
            group=0,
            attempt=0,
            lighthouse="",
            script="none.py",
            module=None,
            args=[],
            ranks=ranks,
            run_id="x",
            groups=1,
            max_restarts=3,
        )
        if rank == 0:
            task.until("store")
        task.send("store", addr="127.0.0.1", port=1)
        told = []
        while not told or told[-1]["type"] != "failed":  # there is no such script
            told.append(task.messages.get(timeout=PATIENCE_S))
        assert [m["text"] for m in told if m["type"] == "warning"] == ["the patch x"][rank:]
        log = (tmp_path / "run" / f"rank-{rank}.log").read_text()
        assert log.startswith("ftslurm: warning: the patch x\n")


def test_an_exception_is_told_in_pieces_before_it_is_told_in_short(tmp_path: Path) -> None:
    script = "print('now')\ndef deep(n):\n  if not n: raise ValueError('größer ' * 400)\n  deep(n - 1)\ndeep(30)"
    with step(tmp_path / "run") as task:
        task.begin(script)
        assert task.until("exited")["code"] == 1
        told = [json.loads(line) for line in task.lines]
        assert all(len(line) <= LONGEST for line in task.lines)
    kinds = [message["type"] for message in told if message["type"] in ("trace", "failed")]
    assert kinds == ["trace"] * (len(kinds) - 1) + ["failed"]
    text = "".join(message["text"] for message in told if message["type"] == "trace")
    assert text in "\n".join(line for line in task.log().splitlines() if line.strip(" ^~"))
    assert text.endswith("größer")
    assert 2000 < len(text) <= 4000
    (failed,) = [message for message in told if message["type"] == "failed"]
    assert (failed["started"], failed["oom"]) == (True, False)


@pytest.mark.parametrize(
    "kind", ["MemoryError", "type('OutOfMemoryError', (RuntimeError,), {})", "type('E', (MemoryError,), {})"]
)
def test_an_exception_that_says_memory_is_told_as_such(kind: str, tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.begin(f"print('now', flush=True)\nraise {kind}('1.2 GiB')")
        assert task.until("failed")["oom"] is True


@pytest.mark.parametrize("how", ["raise SystemExit(1)", "import os; os.abort()"])
def test_broken_hardware_in_the_last_lines_is_told_with_its_gpu(how: str, tmp_path: Path) -> None:
    words = "CUDA error: uncorrectable ECC error encountered"
    with step(tmp_path / "run", env={"CUDA_VISIBLE_DEVICES": "3"}) as task:
        task.begin(f"print('{words}\\nand then the end', flush=True)\n{how}")
        assert task.until("exited")["hardware"] == f"local rank 0: {words}"


def test_a_warning_about_hardware_and_an_end_by_order_tell_nothing(tmp_path: Path) -> None:
    words = "UserWarning: CUDA initialization: CUDA driver initialization failed, you might not have a CUDA gpu."
    with step(tmp_path / "run") as task:
        task.begin(f"print('{words}', flush=True)\nraise SystemExit(1)")
        assert task.until("exited")["hardware"] is None


@pytest.mark.parametrize("ends", [True, False], ids=["it fails", "it hangs, and is killed by order"])
def test_what_the_kernel_says_about_a_gpu_while_the_worker_runs_is_told(ends: bool, tmp_path: Path) -> None:
    kernel = tmp_path / "kmsg"
    kernel.write_text("3,1,1000000,-;NVRM: Xid (PCI:0000:af:00): 48, pid=9, an earlier one of another job\n")
    xid = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    script = "import os, time\nprint('now', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nos.abort()"
    with step(tmp_path / "run", env={"KERNEL_LOG": str(kernel)}) as task:
        task.begin(script)
        with kernel.open("a") as log:
            log.write(f"3,2,2000000,-;{xid}\n")
        if ends:
            (tmp_path / "run" / "go").touch()
        else:
            task.send("kill")
        told = task.until("exited")
    assert told["hardware"] == "GPU 0000:3b:00: XID 79, the GPU has fallen off the bus"
    assert told["signal"] == (signal.SIGABRT if ends else signal.SIGKILL)


def test_a_worker_that_hangs_with_broken_hardware_is_told_as_that_when_it_is_killed(tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.begin("import time\nprint('CUDA error: uncorrectable ECC error encountered', flush=True)\ntime.sleep(99)")
        task.send("kill")
        told = task.until("exited")
        assert (told["signal"], told["hardware"][:12]) == (signal.SIGKILL, "local rank 0")


FLOOD = """
import ctypes, os, subprocess, time
print("first", flush=True)
for _ in range(300):
    os.write(1, b"flood " * 1000 + b"\\n")
    time.sleep(0.002)
subprocess.run(["echo", "a child"])
libc = ctypes.CDLL(None)
libc.write(1, b"C code\\n", 7)
print("last", flush=True)
time.sleep(1000)
"""


def test_a_log_that_its_script_floods_is_kept_below_the_cap_while_it_runs(tmp_path: Path) -> None:
    with step(tmp_path / "run", "--log-max-mb=1") as task:
        task.begin(FLOOD)
        log = task.log_path
        task.wait(lambda: task.log().endswith("\nlast\n"), "the end of the flood")
        task.wait(lambda: log.stat().st_size <= 1 << 20 and log.with_suffix(".times").exists(), "the cut")
        text = task.log()
        assert text.startswith("first\nflood")
        assert text.endswith("flood \na child\nC code\nlast\n")
        assert re.search(r"^ftslurm: \d+ bytes of this log were dropped here \(logs.max_mb=1\)$", text, re.MULTILINE)
        marks = [int(mark.split()[1]) for mark in log.with_suffix(".times").read_text().splitlines()]
        assert marks == sorted(marks)


def test_the_end_of_stdin_alone_does_not_end_a_worker(tmp_path: Path) -> None:
    with step(tmp_path / "run", "--adoptable=1") as task:
        task.begin(WAITING)
        assert task.process.stdin
        task.process.stdin.close()
        task.until("alive")
        time.sleep(0.5)
        assert task.until("alive")["state"] in "RSD"


def test_the_end_of_both_pipes_does_at_once(tmp_path: Path) -> None:
    with step(tmp_path / "run", "--adoptable=1") as task:
        task.begin("import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)\n" + WAITING)
        below = processes.descendants(task.process.pid)
        assert len(below) == 2
        os.kill(task.process.pid, signal.SIGSTOP)  # both ends are gone when it looks, as when slurmstepd dies
        assert task.process.stdin
        task.process.stdin.close()
        _close_reader(task.process)
        os.kill(task.process.pid, signal.SIGCONT)
        assert task.process.wait(2) == 75
        assert not [pid for pid in below if processes.state(pid) not in (None, "Z")]
        assert "slurmstepd is gone" in task.step_log()


def test_a_worker_that_was_dead_before_it_was_to_be_killed_has_its_end_told_all_the_same(tmp_path: Path) -> None:
    with step(tmp_path) as task:
        task.begin("import time\nprint('here', flush=True)\ntime.sleep(600)")
        os.kill(task.process.pid, signal.SIGSTOP)  # a guard that does not get a core in time
        os.kill(task.pid, signal.SIGKILL)
        task.wait(lambda: processes.is_ending(task.pid), "the worker's end")
        task.send("kill")  # because of a sibling's message
        os.kill(task.process.pid, signal.SIGCONT)
        assert task.until("exited")["signal"] == signal.SIGKILL
        assert task.process.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_worker_that_is_killed_by_order_says_nothing_of_its_end(tmp_path: Path) -> None:
    with step(tmp_path) as task:
        task.begin("import time\nprint('here', flush=True)\ntime.sleep(600)")
        task.send("kill")
        assert task.process.wait(PATIENCE_S) == 137
        task.wait(lambda: processes.state(task.pid) in (None, "Z"), "the worker's end")
        assert b'"exited"' not in b"".join(task.lines)


def _close_reader(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe under the thread that reads it."""
    assert process.stdout
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, process.stdout.fileno())
    os.close(null)


@pytest.mark.parametrize(
    ("ours", "fence", "killed"),
    [
        ("group-0001/2", "", {"group-0001/0", "group-0001/1"}),
        ("group-0001/2", "standby-000/5,standby-001/2", {"group-0001/0", "group-0001/1", "standby-000/5"}),
        ("standby-000/6", "", set()),
        ("standby-000/6", "group-0001/0,standby-000/5", {"group-0001/0", "standby-000/5"}),
    ],
)
def test_what_earlier_attempts_left_is_killed_and_nothing_else(
    ours: str, fence: str, killed: set[str], tmp_path: Path
) -> None:
    run = {"FTSLURM_RUN_DIR": str(tmp_path / "run")}
    steps = ["group-0001/0", "group-0001/1", "group-0001/2", "group-0002/0", "standby-000/4", "standby-000/5"]
    left = {name: _sleeper({**run, "FTSLURM_STEP": name}) for name in steps}
    foreign = _sleeper({"FTSLURM_RUN_DIR": "/other", "FTSLURM_STEP": "group-0001/0"})
    with step(tmp_path / "run", env={"FTSLURM_STEP": ours, "FTSLURM_FENCE": fence}) as task:
        task.get_ready()
        gone = _gone(left, killed)
        survived = foreign.poll() is None
    for process in (*left.values(), foreign):
        process.kill()
        process.wait()
    assert gone == killed
    assert survived


def test_a_standby_fences_as_the_group_it_becomes(tmp_path: Path) -> None:
    run = {"FTSLURM_RUN_DIR": str(tmp_path / "run")}
    steps = ["group-0001/1", "group-0001/2", "group-0001/3", "standby-000/3", "standby-000/4"]
    steps += ["standby-001/4", "standby-001/5", "standby-002/0"]
    left = {name: _sleeper({**run, "FTSLURM_STEP": name}) for name in steps}
    with step(tmp_path / "run", env={"FTSLURM_STEP": "standby-001/5"}) as task:
        task.begin(WAITING, step="group-0001/2", fence=["standby-000/3"])
        gone = _gone(left, {"group-0001/1", "standby-000/3"})
        assert processes.state(task.pid) in ("R", "S", "D")
    for process in left.values():
        process.kill()
        process.wait()
    assert gone == {"group-0001/1", "standby-000/3"}


def test_the_next_attempt_survives_the_late_start_of_the_one_before(tmp_path: Path) -> None:
    with step(tmp_path / "run", env={"FTSLURM_STEP": "group-0001/1"}) as newer:
        newer.begin(WAITING)
        with step(tmp_path / "run", env={"FTSLURM_STEP": "group-0001/0"}) as late:
            late.until("hello")
        newer.send("where")
        assert newer.until("alive")["state"] == "S"


@pytest.mark.parametrize(
    "other",
    [
        {"FTSLURM_STEP": "group-0002/5"},
        {"FTSLURM_STEP": "standby-000/5"},
        {"FTSLURM_STEP": "group-0001/1"},
        {"FTSLURM_STEP": "group-0001"},
        {"FTSLURM_STEP": "group-0001/5", "FTSLURM_RUN_DIR": "/other"},
    ],
)
def test_other_units_runs_and_tasks_neither_end_a_guard_nor_are_fenced(other: dict[str, str], tmp_path: Path) -> None:
    there = _sleeper({"FTSLURM_RUN_DIR": str(tmp_path / "run"), **other})
    with step(tmp_path / "run", env={"FTSLURM_STEP": "group-0001/1"}) as task:
        task.get_ready()
        gone = _gone({"there": there}, set())
    there.kill()
    there.wait()
    assert gone == set()


def _sleeper(env: dict[str, str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["sleep", "60"], env=os.environ | env, start_new_session=True)
    marks = {f"{name}={value}".encode() for name, value in env.items()}
    while not marks <= set(Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")):
        time.sleep(0.001)  # the kernel shows it a moment after exec
    return process


def _gone(left: dict[str, subprocess.Popen[bytes]], expected: set[str]) -> set[str]:
    """Wait until the expected processes have ended, and a moment more; return all that have ended."""
    deadline = time.monotonic() + PATIENCE_S
    while any(left[name].poll() is None for name in expected) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    return {name for name, process in left.items() if process.poll() is not None}


def test_ranks_are_named_by_their_rank_not_by_their_task(tmp_path: Path) -> None:
    with step(tmp_path / "run") as task:
        task.get_ready()
        task.begin(WAITING, ranks=[{**RANK0, "rank": 0}])
        task.send("dump")
        task.until("dumped")
        assert "stacks of rank 0" in task.log()


def test_rank_0_dials_other_nodes_and_names_those_where_nothing_answers(tmp_path: Path) -> None:
    silent, up, ended = unanswered(0), socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    ports = [("127.0.0.1", one.getsockname()[1]) for one in (silent[0], up, ended)]
    ended.close()  # its kernel refuses: the node is reached
    with step(tmp_path / "run") as task:
        task.begin(WAITING)
        task.send("reach", number=7, nodes=["n2", "n3", "n4", "n5"], ports=[*ports, ("no-such-host.invalid", 1)])
        sent = time.monotonic()
        task.send("where")
        task.until("alive")
        assert time.monotonic() - sent < 1.4, "the guard waits for its own dials"
        said = task.until("unreached")
        assert (said["number"], said["nodes"]) == (7, ["n2"])
        task.send("reach", number=8, nodes=[f"n{i}" for i in range(40)], ports=[ports[0]] * 40)
        assert len(task.until("unreached")["nodes"]) == 12
        assert max(map(len, task.lines)) <= LONGEST
    for one in (*silent, up):
        one.close()


ASKS = """
import os, socket, urllib.request
print(os.environ.get("TORCHFT_LIGHTHOUSE"), os.environ["FTSLURM_SERVERS"].count(","), flush=True)
answers = 0
while answers < 2:
    try:
        print(urllib.request.urlopen(os.environ["FTSLURM_SERVER"]).read().decode(), flush=True)
        answers += 1
    except OSError:
        pass  # it has moved while it was asked
"""


def test_a_script_finds_a_server_under_one_address_wherever_it_is_meanwhile(tmp_path: Path) -> None:
    def answer(listener: socket.socket, word: bytes) -> bytes:
        near, _ = listener.accept()
        with near:
            asked = near.recv(4096).splitlines()[0]
            near.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + word)
        return asked

    with step(tmp_path / "run") as task, _listener() as first, _listener() as second:
        urls = [f"http://127.0.0.1:{listener.getsockname()[1]}/new_session" for listener in (first, second)]
        task.begin(ASKS, lighthouse="", servers=["", urls[1]])
        assert task.log() == "None 1\n"
        time.sleep(0.2)
        assert task.log() == "None 1\n"  # it waits, and is not refused
        task.send("servers", urls=[urls[0], ""])
        assert answer(first, b"one") == b"GET /new_session HTTP/1.1"
        task.wait(lambda: "\none\n" in task.log(), "the answer")
        task.send("servers", urls=[urls[1], ""])
        assert answer(second, b"two") == b"GET /new_session HTTP/1.1"
        assert task.until("exited")["code"] == 0
        assert task.log() == "None 1\none\ntwo\n"


def _listener() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(20)
    return listener


def test_the_worker_can_see_how_far_the_run_is_and_a_standby_forgets_it_when_it_becomes_a_group() -> None:
    task = Task(
        0, 0, "n0", options(["--log-dir=/nowhere", "--heartbeat-s=1", "--orphan-after-s=9"]), Gateway(pair()[1])
    )
    reports, _ = os.pipe()
    guard = Guard(task, worker=0, requests=pair()[0], orders=os.open(os.devnull, os.O_WRONLY), reports=reports)
    place = messages.Rank(**RANK0)
    assign = messages.Assign(0, 0, "http://127.0.0.1:1", "x.py", None, (), (place,), "x", 1, 3)
    guard.obey(messages.Ping(41))
    assert task.position.reached == 41
    guard.obey(assign)
    assert task.position.reached == 0
    guard.obey(messages.Ping(7))
    guard.obey(messages.Ping())  # the state is lost: all groups start over
    assert task.position.reached == 0


@pytest.mark.parametrize(
    "function", ["time.sleep(60)", "os._exit(0)", "os.kill(os.getpid(), 9)", "re.match('(a+)+$', 40 * 'a' + 'b')"]
)
def test_an_exception_is_reported_whatever_atexit_functions_do(tmp_path: Path, function: str) -> None:
    """The last of them holds the GIL."""
    script = f"""
import atexit, os, re, time
print("now", flush=True)
atexit.register(lambda: {function})
raise RuntimeError("the reason that a user wants to see")
"""
    with step(tmp_path / "run") as task:
        task.begin(script)
        assert task.until("failed", 5)["error"] == "RuntimeError: the reason that a user wants to see"


def test_atexit_functions_end_although_the_controller_kills_the_step(tmp_path: Path) -> None:
    script = """
import atexit, time
print("now", flush=True)
atexit.register(print, "flushed", flush=True)
atexit.register(time.sleep, 0.2)
raise RuntimeError
"""
    with step(tmp_path / "run") as task:
        task.begin(script)
        task.until("failed")
        task.send("kill")
        assert task.until("exited")["code"] == 1
        assert "flushed" in task.log()
