"""What a contender trains on: a throwaway Slurm of its own, a folder, and the lines that its training processes write.

The processes tell who they are themselves (benchmarks/training.py), so that a scene finds and kills the process of any
replica in the same way whoever has launched it. Slurm's commands are counted by wrappers first in the PATH of whatever
the contender starts; jobs inherit it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cluster import PATH, Cluster
from goodput_measures import Commit, Kill
from training import Settings

TRAINING = Path(__file__).parents[1] / "training.py"
_ERROR = re.compile(r"[\w.]+(Error|Exception)\b")  # the line of a traceback that names it
COMMANDS = ("sbatch", "srun", "salloc", "squeue", "scontrol", "sinfo", "scancel", "sacct", "sstat")


@dataclass
class Scene:
    """One contender's place: `groups` replicas of one process each, on a Slurm with one node more than that."""

    cluster: Cluster
    folder: Path  # exists and is empty; its path has no space
    groups: int
    settings: Settings
    _read: dict[int, int] = field(default_factory=dict)  # replica -> bytes read
    _commits: list[Commit] = field(default_factory=list)
    _processes: dict[int, tuple[int, int]] = field(default_factory=dict)  # replica -> its last process: pid, start time

    @classmethod
    def prepare(cls, cluster: Cluster, folder: Path, groups: int, **settings: float) -> Scene:
        """Make the folders and the counting wrappers."""
        for name in ("bin", "lines"):
            (folder / name).mkdir(parents=True)
        scene = cls(cluster, folder, groups, Settings(str(folder / "lines"), **settings))  # type: ignore[arg-type]
        for name in COMMANDS:
            if real := shutil.which(name, path=PATH):
                wrapper = folder / "bin" / name
                wrapper.write_text(f'#!/bin/sh\necho "{name} $1" >> {folder}/calls\nexec {real} "$@"\n')
                wrapper.chmod(0o755)
        return scene

    @property
    def environ(self) -> dict[str, str]:
        """The environment of whatever the contender starts: of this Slurm only, and with its calls counted."""
        return self.cluster.environ() | {"PATH": f"{self.folder}/bin{os.pathsep}{PATH}", "OMP_NUM_THREADS": "1"}

    def script(self, loop: str) -> list[str]:
        """Return the training's script and its arguments, without the interpreter. loop: torchft or ddp."""
        return [str(TRAINING), f"--loop={loop}", *self.settings.arguments()]

    def start(self, command: Sequence[str | Path], **more: str) -> subprocess.Popen[bytes]:
        """Start a program as a user does on the login node; its output goes to driver.log."""
        with (self.folder / "driver.log").open("ab") as log:
            return subprocess.Popen(
                command, env=self.environ | more, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def log_tail(self, lines: int = 15) -> str:
        """Return the end of driver.log."""
        path = self.folder / "driver.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def last_error(self) -> str:
        """Return the last error in driver.log and the line after it; without one, the last two lines."""
        lines = self.log_tail(1000).splitlines()
        at = next((n for n in range(len(lines) - 1, -1, -1) if _ERROR.match(lines[n])), len(lines) - 2)
        return "\n".join(lines[max(0, at) : at + 2])

    def commits(self) -> list[Commit]:
        """Return all steps committed so far, each as often as processes have reported it."""
        for path in Path(self.settings.folder).glob("lines-*"):
            self._take(int(path.name.rpartition("-")[2]), path)
        return self._commits

    def pid(self, replica: int) -> int | None:
        """Return the process that runs the training script as this replica now, or None."""
        self.commits()
        pid, started = self._processes.get(replica, (0, 0))
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX" and int(fields[19]) == started:
                return pid
        return None

    def kill(self, replica: int) -> Kill | None:
        """Kill the training process of a replica with SIGKILL; return None if there is no process."""
        pid = self.pid(replica)
        with suppress(ProcessLookupError):
            if pid is not None:
                kill = Kill(time.time(), replica, pid)
                os.kill(pid, signal.SIGKILL)
                return kill
        return None

    def calls(self) -> Counter[str]:
        """Return how often each Slurm command was called so far."""
        return Counter(line.split()[0] for line in self._call_lines())

    def jobs_submitted(self) -> int:
        """Return how often a job was put into Slurm's queue: by sbatch, salloc, or a requeue."""
        asks = ("--version", "-V", "--help", "--test-only")
        lines = [line.split() for line in self._call_lines()]
        return sum(
            (words[0] in ("sbatch", "salloc") and not set(words) & set(asks)) or words == ["scontrol", "requeue"]
            for words in lines
        )

    def wait(self, true: Callable[[], object], patience_s: float) -> bool:
        """Wait until a condition holds; return whether it does."""
        deadline = time.monotonic() + patience_s
        while not (holds := bool(true())) and time.monotonic() < deadline:
            time.sleep(0.1)
        return holds

    def _call_lines(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def _take(self, replica: int, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self._read.get(replica, 0))
            new = file.read().rpartition(b"\n")[0]
        self._read[replica] = self._read.get(replica, 0) + len(new) + bool(new)
        for line in map(json.loads, new.splitlines()):
            if "started" in line:
                self._processes[replica] = line["pid"], line["started"]
            else:
                self._commits.append(Commit(**line))
