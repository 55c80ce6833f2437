"""The whole job again: all ranks in one submitit job of plain processes with checkpoints."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from contenders.contender import Contender, Session
from contenders.scene import Scene


@dataclass
class LoopSession(Session):
    """The loop on the login node that submits the job again."""

    scene: Scene
    loop: subprocess.Popen[bytes]

    def ended(self) -> str | None:
        code = self.loop.poll()
        return None if code is None else f"the loop exited with {code}: {self.scene.log_tail(3)}"

    def end(self) -> None:
        self.loop.kill()
        self.loop.wait()


class SubmititRequeue(Contender):
    """One job, submitted again when a rank has failed; resumes from the last checkpoint."""

    name = "submitit-requeue"
    what = "one submitit job of plain processes, rank 0 saves checkpoints; after any failure the whole job starts again"
    adaptations = (
        "submitit itself requeues only jobs that are preempted or reach their time limit: a loop of ours on the login "
        "node looks for a failed rank every second, and for the job every 3 s, and submits it again",
        "--kill-on-bad-exit=1: else the ranks that still start when one is killed wait for it for 30 minutes",
        "the nodes of this Slurm are free again at once: on a busy cluster each of these submissions would queue",
        "MASTER_ADDR is 127.0.0.1: the names of this Slurm's nodes are in no DNS",
    )

    def versions(self) -> dict[str, str]:
        return {"submitit": importlib.metadata.version("submitit")}

    def start(self, scene: Scene) -> Session:
        here = Path(__file__).parent
        settings = [f"{name}={value}" for name, value in asdict(scene.settings).items()]
        command = [sys.executable, f"{here}/submitit_loop.py", f"{scene.folder}/submitit", str(scene.groups), *settings]
        return LoopSession(scene, scene.start(command, PYTHONPATH=str(here.parent)))
