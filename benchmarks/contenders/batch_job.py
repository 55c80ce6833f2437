"""One batch job that a contender submits with sbatch, and all that its script starts."""

from __future__ import annotations

import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cluster import ClusterError

from contenders.contender import Session
from contenders.scene import Scene

# Each srun says where its tasks run, and a task that fails ends no other: the launchers decide that themselves.
SRUN = "srun --overlap --mem=0 --cpu-bind=none --kill-on-bad-exit=0 --unbuffered"


@dataclass
class JobSession(Session):
    """A training inside one Slurm job; it has ended when the job has."""

    scene: Scene
    job: str

    def ended(self) -> str | None:
        try:
            state = self.scene.cluster.run(["squeue", "--noheader", f"--jobs={self.job}", "--format=%T"]).strip()
        except ClusterError as error:
            state = "" if "Invalid job id" in str(error) else "RUNNING"  # a slurmctld that does not answer says nothing
        return None if state in ("PENDING", "RUNNING", "CONFIGURING") else f"the job ended: {self.scene.last_error()}"

    def end(self) -> None:
        self.scene.cluster.run(["scancel", "--full", "--signal=KILL", self.job])


def submit(scene: Scene, nodes: int, *lines: str, **environ: str) -> JobSession:
    """Submit a job of so many nodes whose script has these lines; its output goes to driver.log.

    A lost node does not end it (--no-kill), and Slurm does not run it again (--no-requeue).
    """
    path = scene.folder / "job.sh"
    path.write_text("\n".join(("#!/bin/bash", *lines, "")))
    path.chmod(0o755)
    command: list[str | Path] = [
        "sbatch",
        "--parsable",
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        "--no-kill",
        "--no-requeue",
    ]
    command += [f"--output={scene.folder}/driver.log", "--open-mode=append", path]
    asked = subprocess.run(
        command, env=scene.environ | environ, cwd=scene.folder, capture_output=True, text=True, check=True, timeout=60
    )
    return JobSession(scene, asked.stdout.strip())


def free_port() -> int:
    """Return a port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def quoted_program(python: Path | str, *words: str) -> str:
    """Return a command line for a script; no word of a scene has a blank."""
    line = " ".join((str(python), *words))
    assert not set(line) & set("'\"$`\\;&|<>"), line
    return line
