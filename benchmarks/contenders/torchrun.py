"""torchrun with restarts and checkpoints: when a rank dies, all ranks start anew from the last checkpoint.

One launcher runs on each node of one allocation, with one rank of the plain loop; one on a spare node waits until
another node is lost. NVRx's launcher (nvrx.py) is started in the same way.
"""

from __future__ import annotations

import sys
from typing import ClassVar

import torch

from contenders.batch_job import SRUN, free_port, quoted_program, submit
from contenders.contender import Contender, Session
from contenders.scene import Scene

RESTARTS = 100000


class Torchrun(Contender):
    """torchrun --max-restarts on each node."""

    name = "torchrun"
    what = "torchrun --max-restarts on each node of one allocation; plain ranks, a checkpoint every 25 steps"
    adaptations: ClassVar[tuple[str, ...]] = (
        f"--max-restarts={RESTARTS}: the schedule kills more often than a run is meant to forgive",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: by default torch 2.13 keeps one store for all rounds, in which ranks "
        "that start again find addresses of dead ones; the first kill then ended in failed connections again and again",
        "--local-addr=127.0.0.1: all nodes are this machine",
    )
    environ: ClassVar[dict[str, str]] = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__}

    def launcher(self) -> list[str]:
        """Return the launcher's command, up to its options."""
        return [sys.executable, "-m", "torch.distributed.run"]

    def start(self, scene: Scene) -> Session:
        options = [
            *(f"--nnodes={scene.groups}", "--nproc-per-node=1", f"--max-restarts={RESTARTS}", "--rdzv-backend=c10d"),
            *(f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=training", "--local-addr=127.0.0.1"),
        ]
        program = quoted_program(*self.launcher(), *options, *scene.script("ddp"))
        nodes = len(scene.cluster.nodes) - 1  # those that other contenders need for a head or a standby stay empty
        return submit(
            scene, nodes, f"exec {SRUN} --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 {program}", **self.environ
        )
