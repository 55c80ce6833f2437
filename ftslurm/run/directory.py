"""Where everything of a run lies. Every path of the run directory is built here and nowhere else."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.security import owned_files
from ftslurm.security.names import is_job


@dataclass(frozen=True)
class RunDir:
    """One run's folder, mode 0700: nobody else reads its logs or writes into its inbox."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def id(self) -> Path:
        """A few random signs: another folder may have the same name, somewhere else."""
        return self.root / "id"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def past(self) -> Path:
        """What the journal has come to, up to some line of it (ftslurm.controller.resume_state)."""
        return self.root / "past.json"

    @property
    def key(self) -> Path:
        """What the run's processes prove to each other that they have (ftslurm.security.run_key); mode 0600."""
        return self.root / "key"

    @property
    def inbox(self) -> Path:
        return self.root / "inbox"

    @property
    def alive(self) -> Path:
        """Touched by the controller with every heartbeat: how old it is says how long nothing was heard of it."""
        return self.root / "alive"

    @property
    def leaders(self) -> Path:
        """Who has led the run, one file each, in order (ftslurm.run.leadership)."""
        return self.root / "leaders"

    @property
    def released(self) -> Path:
        """The tasks of an array submitted by hand that are not needed any more, a file each; they end by themselves."""
        return self.root / "released"

    @property
    def submitted(self) -> Path:
        """The jobs that were submitted to give groups their nodes, a file each, in it the job's pool."""
        return self.root / "submitted"

    def mark(self) -> str:
        """What tells this run's jobs from all others."""
        try:
            return f"ftslurm:{self.root.name}-{owned_files.read_text(self.id).strip()}"
        except OSError:
            return f"ftslurm:{self.root.name}"

    def pools(self) -> dict[str, int]:
        """The jobs that were submitted to give groups their nodes, and their pools."""
        found = dict[str, int]()
        with suppress(OSError):
            for path in self.submitted.iterdir():
                with suppress(OSError, ValueError):
                    found |= {path.name: int(owned_files.read_text(path))} if is_job(path.name) else {}
        return found

    def remember(self, names: Iterable[str], pool: int) -> None:
        """Note the names of jobs that were submitted for a pool: a site may take their comment away."""
        with suppress(OSError):
            self.submitted.mkdir(mode=0o700, exist_ok=True)
            for name in names:
                replace_text(self.submitted / name, str(pool))

    @property
    def submitit(self) -> Path:
        return self.root / "submitit"

    @property
    def job_id(self) -> Path:
        """The id of the job that its controller runs in, or is to run in; not there if that is no batch job."""
        return self.submitit / "job_id"

    def job(self) -> str | None:
        """What is in that file; None: its controller's is no batch job, or was not submitted yet."""
        try:
            job = owned_files.read_text(self.job_id).strip()
        except OSError:
            return None
        return job if is_job(job) else None

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

    def acted_on(self) -> list[Path]:
        """The folder and all in it that makes somebody do something, not only show it."""
        folders = [self.root, self.submitit, self.inbox, self.leaders, self.submitted, self.released]
        return [*folders, self.config, self.events, self.id, self.key, self.job_id]

    def create(self) -> None:
        """Make the folders, private to this user.

        Raises:
            OSError: the root cannot be written, or the run directory exists already.
        """
        owned_files.make_folders(self.root.parent)
        self.root.mkdir(mode=0o700)
        for folder in (self.logs, self.inbox, self.submitit, self.checkpoints):
            folder.mkdir(mode=0o700)
        owned_files.write_file(self.id, os.urandom(4).hex().encode())


def replace_text(path: Path, text: str) -> None:
    """Write a whole file so that a reader, also one on another node, sees the old text or the new one, never half.

    Nobody else may read it. It is written under a name that nobody can guess, so that nothing can wait there for us.

    Raises:
        OSError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        owned_files.write_file(part, text.encode(errors="surrogateescape"), durable=False)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
