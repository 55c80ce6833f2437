"""How long does the training script take by itself? The baseline of recovery.py: one group and its own Lighthouse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from training import Settings

from ftslurm.lighthouse.stock import load_native

TRAINING = Path(__file__).with_name("training.py")
LIMIT_S = 120.0


def bare_start(count: int = 1) -> float | None:
    """Return the seconds from starting so many independent trainings at once to the last one's first committed step.

    Returns None if that takes longer than LIMIT_S.
    """
    with ExitStack() as stack:
        folders = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(count)]
        environs = [_environ(stack) for _ in folders]
        began = time.time()
        for folder, environ in zip(folders, environs, strict=True):
            words = Settings(folder, step_s=0.1).arguments()
            command = [sys.executable, str(TRAINING), "--loop=torchft", *words]
            process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
        commits = [_first_commit(Path(folder) / "lines-0", began + LIMIT_S) for folder in folders]
        return None if None in commits else max(time for time in commits if time) - began


def _environ(stack: ExitStack) -> dict[str, str]:
    os.environ["RUST_LOG"] = "error"  # the Lighthouse would print a line a second
    server = load_native().LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100, quorum_tick_ms=20, heartbeat_timeout_ms=1000
    )
    stack.callback(server.shutdown)
    return os.environ | {
        "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "REPLICA_GROUP_ID": "0", "NUM_REPLICA_GROUPS": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(stack.enter_context(_store())), "OMP_NUM_THREADS": "1",
        "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{server.address().rsplit(':', 1)[1]}",
        "TORCHELASTIC_USE_AGENT_STORE": "True", "RUST_LOG": "error",
    }  # fmt: skip


def _first_commit(lines: Path, deadline: float) -> float | None:
    while time.time() < deadline:
        written = lines.read_text().splitlines() if lines.exists() else []
        if len(written) > 1:  # the first line says that the script has started
            return float(json.loads(written[1])["time"])
        time.sleep(0.02)
    return None


@contextmanager
def _store() -> Iterator[int]:
    """Host a TCPStore in its own process, as torchrun's agent does."""
    code = (
        "import sys, torch.distributed as d; s = d.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False);"
        "print(s.port, flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    yield int(process.stdout.readline())
    process.communicate("")
