"""torchft's own way onto Slurm: its published runner.py, driven by torchx, and its Lighthouse with default settings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from contenders.contender import Contender, Session
from contenders.install import missing, python, versions
from contenders.scene import Scene

# What runner.py sets, without what only serves NCCL, wandb and torchtitan.
ENVIRONMENT = {
    "TORCH_SHARE_RDZV_TCP_STORE": "1",
    "TORCHFT_QUORUM_TIMEOUT_SEC": "900",
    "TORCHFT_TIMEOUT_SEC": "600",
    "TORCHFT_QUORUM_RETRIES": "0",
}


@dataclass
class RunnerSession(Session):
    """The Lighthouse and the loop, both started by hand on the login node, as the example's README asks."""

    scene: Scene
    lighthouse: subprocess.Popen[bytes]
    runner: subprocess.Popen[bytes]

    def ended(self) -> str | None:
        for name, process in (("runner.py", self.runner), ("the Lighthouse", self.lighthouse)):
            if process.poll() is not None:
                return f"{name} exited with {process.poll()}: {self.scene.log_tail(3)}"
        return None

    def end(self) -> None:
        for process in (self.runner, self.lighthouse):
            process.kill()
            process.wait()


class TorchftRunner(Contender):
    """One Slurm job for each replica group; a loop submits those again that do not run."""

    name = "torchft-runner"
    what = "torchft's published Slurm runner (one job a replica group, by torchx), and its Lighthouse at its defaults"
    adaptations = (
        "runner.py is the one in torchft's wheel; only _make_app is replaced, which starts a file of torchtitan that "
        "is no more: the same torchx component, 1x1, with this benchmark's script; its timeouts of torchft are kept",
        "torchx-nightly, because torchx 0.7.0 has no name in its list of jobs, which runner.py reads",
        "Slurm here keeps no accounting: with it, torchx's list of jobs has no names and every poll submits all again",
        "the Lighthouse listens on a free port of 127.0.0.1 instead of port 29510 of a head node; --min_replicas=1",
        "TORCH_CUDA_SANITIZER, NCCL_DEBUG and the levels of logs that runner.py sets are left out: they are for GPUs",
    )

    def missing(self) -> str | None:
        return missing("torchx")

    def versions(self) -> dict[str, str]:
        return versions("torchx", "torchft", "torchx-nightly")

    def start(self, scene: Scene) -> Session:
        program = Path(sys.executable).with_name("torchft_lighthouse")
        lighthouse = scene.start([program, "--min_replicas=1", "--bind=127.0.0.1:0"], RUST_LOG="info")
        listens = re.compile(r"listening on: http://[^:\s]+:(\d+)")
        scene.wait(lambda: listens.search(scene.log_tail()) or lighthouse.poll() is not None, 20)
        found = listens.search(scene.log_tail())
        if found is None:
            raise RuntimeError(f"torchft_lighthouse has not said where it listens: {scene.log_tail()}")
        environment = ENVIRONMENT | {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{found[1]}"}
        driver = str(Path(__file__).with_name("published_runner.py"))
        command = [str(python("torchx")), driver, str(scene.groups), json.dumps(environment), *scene.script("torchft")]
        # torchx starts `torchrun` by name: the job takes it from the PATH.
        path = f"{scene.environ['PATH']}:{python('torchx').parent}:{Path(sys.executable).parent}"
        return RunnerSession(scene, lighthouse, scene.start(command, PATH=path))
