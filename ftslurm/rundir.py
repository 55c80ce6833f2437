"""Where everything of a run lies. Every path of the run directory is built here and nowhere else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

LIGHTHOUSE = "lighthouse"


def group_unit(group: int) -> str:
    """The unit name of a replica group: 3 -> "group-0003"."""
    return f"group-{group:04d}"


@dataclass(frozen=True)
class RunDir:
    """One run's folder, mode 0700: nobody else reads its logs or writes into its inbox."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def inbox(self) -> Path:
        return self.root / "inbox"

    @property
    def submitit(self) -> Path:
        return self.root / "submitit"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def controller_log(self) -> Path:
        return self.logs / "controller.log"

    @property
    def lighthouse_log(self) -> Path:
        return self.logs / "lighthouse.log"

    def attempt(self, unit: str, attempt: int) -> Path:
        """The folder of one attempt of a group: logs/group-0003/attempt-002."""
        return self.logs / unit / f"attempt-{attempt:03d}"

    def rank_log(self, unit: str, attempt: int, rank: int) -> Path:
        """The script's stdout and stderr of one rank; the Lighthouse has one file for all its attempts."""
        if unit == LIGHTHOUSE:
            return self.lighthouse_log
        return self.attempt(unit, attempt) / f"rank-{rank}.log"

    def step_log(self, unit: str, attempt: int) -> Path:
        """What srun (or the local launcher) itself said about one step."""
        if unit == LIGHTHOUSE:
            return self.logs / "lighthouse-step.log"
        return self.attempt(unit, attempt) / "step.log"

    def create(self) -> None:
        """Make the folders, private to this user.

        Raises:
            OSError: the root cannot be written, or the run directory exists already.
        """
        self.root.parent.mkdir(parents=True, exist_ok=True)
        self.root.mkdir(mode=0o700)
        for folder in (self.logs, self.inbox, self.submitit, self.checkpoints):
            folder.mkdir(mode=0o700)


def replace_text(path: Path, text: str) -> None:
    """Write a whole file so that a reader, also one on another node, sees the old text or the new one, never half."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text)
    part.replace(path)
