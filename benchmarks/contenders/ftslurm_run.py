"""ftslurm itself: one allocation, a Slurm step for each replica group, restarted one by one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar

import ftslurm
from contenders.contender import Contender, Session
from contenders.scene import Scene


@dataclass
class FtslurmSession(Session):
    """`ftslurm run follow=true` in the background."""

    scene: Scene
    process: subprocess.Popen[bytes]

    def ended(self) -> str | None:
        code = self.process.poll()
        return None if code is None else f"ftslurm exited with {code}: {self.scene.log_tail(3)}"

    def end(self) -> None:
        for run in (self.scene.folder / "runs").glob("*/config.yaml"):
            stop = [sys.executable, "-m", "ftslurm", "stop", str(run.parent)]
            subprocess.run(stop, env=self.scene.environ, capture_output=True, timeout=60, check=False)
        self.process.kill()
        self.process.wait()


class Cold(Contender):
    """A failed group is launched again from nothing."""

    name = "ftslurm-cold"
    what = "ftslurm with standby=none: a failed replica group is launched again as a new Slurm step of the allocation"
    adaptations = (
        "restart.max_per_group=100000, restart.backoff_s=0: the schedule kills more often than a run is meant to "
        "forgive, and no other contender waits before a restart either",
        "job.snapshot=none: the script lies in this repository, which would be copied at each start",
    )
    settings: ClassVar[tuple[str, ...]] = ("standby=none",)

    def versions(self) -> dict[str, str]:
        return {"ftslurm": ftslurm.__version__}

    def start(self, scene: Scene) -> Session:
        script, *arguments = scene.script("torchft")
        command = [
            *(sys.executable, "-m", "ftslurm", "run", "cluster=slurm", "follow=true"),
            *(f"run.root={scene.folder}/runs", f"job.script={script}", f"groups.count={scene.groups}"),
            *("groups.gpus=0", "restart.max_per_group=100000", "restart.backoff_s=0", "job.snapshot=none"),
            *self.settings,
            *(f"job.args.{argument.removeprefix('--')}" for argument in arguments),
        ]
        return FtslurmSession(scene, scene.start(command))


class Warm(Cold):
    """A warm standby takes over."""

    name = "ftslurm-warm"
    what = (
        "ftslurm with standby=each, which is its default where a node has memory to spare: beside each replica group "
        "a process has imported everything and becomes the next attempt"
    )
    settings = ("standby=each",)
