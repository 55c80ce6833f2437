"""The checks of gpu.py of states and models as large as the GPU takes: heals, saves, and what a step costs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from false_alarms import GPUS
from gpu_runs import NotPossible, back, need, phases, run, says, trains

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness import PATIENCE_S, Run
from overhead import HOSTED

SMALL = 1.0 if GPUS else 1 / 16  # without a GPU the kit itself is tried, with small states
GB = 2**30
MODEL = Path(__file__).with_name("gpu_model.py")
PATIENT = ("torchft.timeout_s=300", "job.args.patience=300", "health.hang_after_s=600", "restart.backoff_s=0")
STOPPED_S = 20.0
AMORTISED = 100  # health.compare_every of job=ddp


def healing(gigabytes: float, *words: str) -> str:
    """A group heals a state; beside it another run heals an empty one: the difference is the transfer.

    The two runs train side by side, and their groups are killed one after the other.
    """
    gigabytes *= SMALL
    _need_memory(2 * gigabytes, host=4 * gigabytes)
    with (
        run("restart.backoff_s=0", *words) as empty,
        run(f"job.args.gigabytes={gigabytes}", *PATIENT, *words) as full,
    ):
        trains(empty, 0, 1)
        trains(full, 0, 1)
        empty.kill(1)
        _, parts = phases(empty, 1)
        at_rest = _longest(full, 0)
        full.kill(1)
        said = back(full, 1)
        _, with_state = phases(full, 1)
        says(full, "the state of .* GB is whole, on (cuda|cpu)", 1, 1)
        transfer = with_state["join"] - parts["join"]
        speed = f", {gigabytes / transfer:.2f} GB/s" if transfer > 0.2 else ": too short to tell its speed"
        donor = max(0.0, _longest(full, 0, at_rest[0])[1])
        return (
            f"{said}\n"
            f"'join' of an empty state takes {parts['join']:.2f} s, "
            f"so the transfer of {gigabytes:g} GB {transfer:.2f} s{speed}\n"
            f"the donor's longest step meanwhile: {donor:.2f} s; "
            f"peaks of host memory: donor {_peak_mb(full.pid(0))} MB, healer {_peak_mb(full.pid(1, 0, 1))} MB"
        )


def stopped_healer(gigabytes: float = 4.0) -> str:
    """A healer stands still (SIGSTOP) in the middle of its transfer, and must get the state all the same."""
    gigabytes *= SMALL
    _need_memory(2 * gigabytes, host=4 * gigabytes)
    with run(f"job.args.gigabytes={gigabytes}", *PATIENT) as training:
        trains(training, 0, 1)
        training.kill(1)
        pid = training.pid(1, 0, 1)
        begun = _rss(pid) + 0.1 * gigabytes * GB
        training.until(lambda: _rss(pid) > begun, "the healer receives")
        os.kill(pid, signal.SIGSTOP)
        try:
            joined = training.named("group_joined", group=1, attempt=1)
            before = _longest(training, 0)[0]
            time.sleep(STOPPED_S)
        finally:
            os.kill(pid, signal.SIGCONT)
        if joined:
            raise NotPossible("the transfer was over before the healer could be stopped")
        said = back(training, 1)
        says(training, "is whole", 1, 1)
        return f"stopped for {STOPPED_S:g} s; {said}; the donor's longest step {_longest(training, 0, before)[1]:.1f} s"


def saving(gigabytes: float) -> str:
    """How long a step waits when a save begins; the writing goes on beside the training and is not waited for."""
    gigabytes *= SMALL
    _need_memory(2 * gigabytes, host=2 * gigabytes, disk=1.2 * gigabytes)
    with run(f"job.args.gigabytes={gigabytes}", *PATIENT) as training:
        trains(training, 0, 1)
        command = [sys.executable, "-m", "ftslurm", "save", str(training.dir)]
        with subprocess.Popen(
            command, env=training.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as asked:
            try:
                waited = says(training, r"the step waited ([\d.]+) s", 0)[1]
                peak = _peak_mb(training.pid(0))
            finally:
                asked.kill()
        return f"{gigabytes:g} GB: the step waited {waited} s; peak of host memory {peak} MB"


def model(blocks: int = 2) -> str:
    """A model of 1B: plain torchft, ftslurm without digests, and with one every 10 steps, in turns."""
    plain, without, beside, bare = list[float](), list[float](), list[float](), list[float]()
    for _ in range(blocks):
        found, mb, size = _plain_steps()
        plain += found.values()
        found, mb_without, size = _steps_with_ftslurm("health.compare_every=0")
        without += found.values()
        found, mb_beside, size = _steps_with_ftslurm("health.compare_every=10")
        beside += [s for step, s in found.items() if step % 10 == 0]
        bare += [s for step, s in found.items() if step % 10]
    middle = {name: statistics.median(one) for name, one in (("plain", plain), ("off", without), ("on", bare))}
    one = statistics.median(beside) - middle["on"]
    return (
        f"{size / 1e9:.2f}B parameters; a step of plain torchft {middle['plain'] * 1e3:.1f} ms, "
        f"of ftslurm {middle['off'] * 1e3:.1f} ms ({100 * (middle['off'] / middle['plain'] - 1):+.1f} %)\n"
        f"a step beside a digest takes {one * 1e3:+.1f} ms: {_share(one, middle['on'])}\n"
        f"torch's peak on the GPU: plain {mb:.0f} MB, ftslurm {mb_without:.0f} MB, with digests {mb_beside:.0f} MB"
    )


def graphs() -> str:
    """A training captures a CUDA graph in every step while a digest of every step is taken in a thread."""
    need(1)
    with run("job.args.graph=true", "health.compare_every=1", "job.args.gigabytes=1") as training:
        trains(training, 0, 1)
        time.sleep(10)
        compared = training.progress
        assert not training.named("replicas_differ"), training.named("replicas_differ")
        told = [one for one in training.named("warning") if "compare" in str(one["text"])]
        assert not told, told
        last = max((int(str(one.get("step") or 0)) for one in compared), default=0)
        return f"{last} steps, each with a graph and a digest: no capture has failed, no digest was wrong"


# --- their parts ------------------------------------------------------------------------------------------------------


def _share(cost_s: float, step_s: float, every: int = AMORTISED) -> str:
    """Return what a digest costs a training, by the time that one adds to its step."""
    return (
        f"{100 * cost_s / (every * step_s):.2f} % of the time if every {every}th step is compared, "
        f"1 % if every {max(1, round(100 * cost_s / step_s))}th is"
    )


def _need_memory(gpu: float, host: float, disk: float = 0.0) -> None:
    """Raise NotPossible if so many GB do not fit, with some room for what else is there."""
    info = Path("/proc/meminfo").read_text()
    available = int(re.findall(r"MemAvailable:\s+(\d+)", info)[0]) / 2**20
    free = os.statvfs(tempfile.gettempdir())
    has = {"host": (host + 4 * SMALL, available), "disk": (disk, free.f_bavail * free.f_frsize / GB)}
    if GPUS:
        has["GPU"] = (gpu + 8, torch.cuda.get_device_properties(0).total_memory / GB)
    for name, (wanted, there) in has.items():
        if wanted > there:
            raise NotPossible(f"it needs {wanted:.0f} GB of the {name}, and there are {there:.0f}")


def _longest(training: Run, group: int, since: int = 0) -> tuple[int, float]:
    """Return how many slow steps a group has told of, and the longest of those since some number of them."""
    found = [float(s) for s in re.findall(r"came after ([\d.]+) s", training.rank_log(group))]
    return len(found), max(found[since:], default=0.0)


def _peak_mb(pid: int) -> int:
    return int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) // 1024


def _rss(pid: int) -> float:
    return 1024 * float(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0])


def _measured(text: str) -> tuple[dict[int, float], float, float]:
    """Return the seconds of the steps that a training has printed, but the first ones; the MB, the parameters."""
    found = re.search(r"^steps: (.*)$", text, re.MULTILINE)
    assert found, text[-3000:]
    said = json.loads(found[1])
    return {int(step): s for step, s in said["s"].items() if int(step) > 10}, said["MB"], said["parameters"]


def _steps_with_ftslurm(*words: str) -> tuple[dict[int, float], float, float]:
    with run(*words, groups=1, between="nccl" if GPUS else "gloo", script=MODEL) as training:
        training.until(lambda: training.process.poll() is not None, "the end", 2 * PATIENCE_S)
        return _measured(training.rank_log(0))


def _plain_steps() -> tuple[dict[int, float], float, float]:
    with _lighthouse() as address, tempfile.TemporaryDirectory(prefix="ftslurm-gpu-") as folder:
        environ = os.environ | {"TORCHFT_LIGHTHOUSE": address, "RUST_LOG": "error", "OMP_NUM_THREADS": "1"}
        environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "REPLICA_GROUP_ID": "0"}
        environ |= {"NUM_REPLICA_GROUPS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        done = subprocess.run(
            [sys.executable, "-c", HOSTED, str(MODEL)],
            env=environ, cwd=folder, capture_output=True, text=True, timeout=2 * PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return _measured(done.stdout)


@contextlib.contextmanager
def _lighthouse() -> Iterator[str]:
    """Start torchft's Lighthouse; it ends with the block."""
    port = _free_port()
    command = [str(Path(sys.executable).with_name("torchft_lighthouse")), f"--bind=127.0.0.1:{port}"]
    command += ["--min_replicas=1", "--join_timeout_ms=1000"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _until(lambda: _answers(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _until(true: Callable[[], bool], patience_s: float = 30.0) -> None:
    deadline = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < deadline, "torchft's Lighthouse does not start"
        time.sleep(0.05)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
