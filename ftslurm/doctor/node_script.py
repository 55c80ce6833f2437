"""Runs on a compute node for `ftslurm doctor`: answers the questions that arrive on stdin, one JSON object a line.

It is started as `python -c SOURCE FOLDER`, so that it works also where ftslurm is missing, and imports nothing else at
its start. When stdin ends, because doctor has finished or was killed, it removes FOLDER and exits.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

LIFE_S = 280
IMPORT_S = 120.0
SHORT_S = 10.0
IMPORT = """
import sys
sys.path[:1] = filter(None, sys.path[:1])  # as security/programs.py
import time, json
begun, found = time.monotonic(), {}
import MODULE as module
found["seconds"] = time.monotonic() - begun
try:
    from importlib.metadata import version
    found["version"] = version("MODULE")
except Exception:
    found["version"] = str(getattr(module, "__version__", ""))
if "MODULE" == "torch":
    found["version"] = str(module.__version__)
    kinds = (("CUDA", "cuda"), ("ROCm", "hip"))
    found["build"] = " ".join(f"{kind} {getattr(module.version, name, None)}" for kind, name in kinds
                              if getattr(module.version, name, None))
    found["devices"] = module.cuda.device_count()
    if found["devices"]:
        try:
            module.zeros(8, device="cuda").sum().item()
        except Exception as error:
            found["cuda_error"] = str(error).splitlines()[0][:300]
print(json.dumps(found))
"""


def facts() -> dict[str, Any]:
    """Return what is installed here, GPUs, network and limits."""
    return {
        "host": socket.gethostname(),
        "python": sys.executable,
        "python_version": "{}.{}.{}".format(*sys.version_info[:3]),
        "imports": {name: imported(name) for name in ("torch", "torchft", "ftslurm")},
        "gpu_files": len([name for name in os.listdir("/dev") if re.fullmatch("nvidia[0-9]+", name)]),
        "other_gpus": int(os.environ.get("SLURM_GPUS_ON_NODE") or os.path.exists("/dev/kfd")),  # known to Slurm, AMD's
        "uptime_s": time.clock_gettime(time.CLOCK_MONOTONIC),
        **network(),
        "infiniband": sorted(os.listdir("/sys/class/infiniband")) if os.path.isdir("/sys/class/infiniband") else [],
        "ports": ports(),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "locked_kb": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] // 1024,
        "unlimited": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY,
    }


def imported(name: str) -> dict[str, Any]:
    """Return how long the import of a module takes and its version, or its error. Another process imports it."""
    command = [sys.executable, "-c", IMPORT.replace("MODULE", name)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=IMPORT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not imported within {IMPORT_S:g} s"}
    try:
        return dict(json.loads(done.stdout.decode().splitlines()[-1]))
    except (ValueError, IndexError):
        last = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        return {"error": last[-1][:300]}


def network() -> dict[str, Any]:
    """Return the address that this machine's name stands for, and those of its interfaces; {}: ftslurm is missing."""
    try:
        from ftslurm.guard import interfaces as known
    except ImportError:
        return {}
    own = sorted(known.resolve(socket.gethostname()), key=known.is_loopback)
    there = {name: its[0] for name, its in known.known().items() if its and not known.is_loopback(its[0])}
    return {"address": own[0] if own else "", "interfaces": there}


def ports() -> dict[str, int]:
    """Return how many ports the kernel hands out, and how many of 64 sockets get one."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        low, high = map(int, file.read().split())
    held = []
    try:
        for _ in range(64):
            held.append(socket.socket())
            held[-1].bind(("", 0))
        bound = 64
    except OSError:
        bound = len(held) - 1
    for sock in held:
        sock.close()
    return {"range": high - low + 1, "bound": bound}


def wait_for(check: Callable[[], bool], seconds: float) -> float | None:
    """Return after how many seconds a check is true, or None if it is not within the given time."""
    begun = time.monotonic()
    while not check():
        if time.monotonic() - begun > seconds:
            return None
        time.sleep(0.002)
    return time.monotonic() - begun


def see(folder: str, name: str, seconds: float) -> dict[str, Any]:
    """Return after how many seconds a new file appears in the listing of a folder that has been listed before."""
    return {"seconds": wait_for(lambda: name in os.listdir(folder), seconds)}


def create(path: str) -> dict[str, Any]:
    """Make a file that must not exist; return whether that worked."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return {"made": False}
    return {"made": True}


def lock(path: str) -> dict[str, Any]:
    """Try to lock a file; return whether the lock was free."""
    with open(path, "r+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return {"free": False}
        return {"free": True}


def append(path: str, text: str) -> dict[str, Any]:
    with open(path, "a") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return {}


def fsync(path: str) -> dict[str, Any]:
    """Return the median and the longest time of a durable append, as the journal needs one for each decision."""
    taken = []
    with open(path, "a") as file:
        for _ in range(20):
            begun = time.monotonic()
            file.write("x" * 200 + "\n")
            file.flush()
            os.fsync(file.fileno())
            taken.append(time.monotonic() - begun)
    return {"median": statistics.median(taken), "longest": max(taken)}


def ran(command: list[str], environ: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a command that ends by itself; return its exit code and what it has printed."""
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return {"code": done.returncode, "said": (done.stdout + done.stderr).decode(errors="replace")}


LISTENING: list[socket.socket] = []


def listen() -> dict[str, Any]:
    """Open a port for the other nodes; they only connect, so that nothing needs to be accepted."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    sock = socket.create_server(("", 0), family=family, backlog=64, dualstack_ipv6=both)
    LISTENING.append(sock)
    return {"port": sock.getsockname()[1], "host": socket.gethostname()}


def connect(host: str, port: int) -> dict[str, Any]:
    begun = time.monotonic()
    with socket.create_connection((host, port), timeout=SHORT_S):
        return {"seconds": time.monotonic() - begun}


ANSWERS: dict[str, Callable[..., dict[str, Any]]] = {
    "clock": lambda: {"time": time.time()},
    "exists": lambda path: {"exists": os.path.exists(path)},
    "list": lambda folder: {"count": len(os.listdir(folder))},
    "facts": facts,
    "see": see,
    "create": create,
    "lock": lock,
    "append": append,
    "fsync": fsync,
    "ran": ran,
    "listen": listen,
    "connect": connect,
}


def say(**answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main(folder: str) -> None:
    """Say hello, answer questions until stdin ends, and remove the folder."""

    def end(*_: object) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGALRM):  # from scancel; from the next line
        signal.signal(number, end)
    signal.alarm(LIFE_S)  # no end of stdin arrives if srun's whole process group is killed
    say(hello=os.environ.get("SLURMD_NODENAME", socket.gethostname()), job=os.environ.get("SLURM_JOB_ID", ""))
    for line in sys.stdin:
        question = json.loads(line)
        try:
            say(**ANSWERS[question.pop("do")](**question))
        except OSError as error:
            say(error=f"{type(error).__name__}: {error}"[:300])
    end()


if __name__ == "__main__":
    main(sys.argv[1])
