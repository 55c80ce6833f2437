"""The layout of a run directory: all of its paths are built here."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ftslurm.core.state.unit_names import LIGHTHOUSE
from ftslurm.protocol.value_class import Value
from ftslurm.security import owned_files, programs, sharing
from ftslurm.security.names import is_job

IGNORED = b"*\n"  # the .gitignore of a run directory: git leaves it out of the tree in which it may lie


class _Place:
    """The path of a file or folder below the root of a run directory."""

    def __init__(self, below: str) -> None:
        self._below = below

    def __get__(self, run: RunDir, _: object) -> Path:
        return run.root / self._below


class RunDir(Value):
    """A run directory. Its mode is 0700: other users can neither read its logs nor write to its inbox.

    With run.share a group can (security/sharing.py).
    """

    root: Path

    config = _Place("config.yaml")
    id = _Place("id")  # random characters that distinguish the run from one of the same name elsewhere
    events = _Place("events.jsonl")
    progress = _Place("progress.jsonl")  # how far the groups are, beside what happens (ftslurm.run.journal)
    state = _Place("state")  # the state of the run as its controllers keep it, a file for each (ftslurm.run.kept_state)
    # The secret with which the run's processes authenticate each other (ftslurm.security.run_key); mode 0600.
    key = _Place("key")
    inbox = _Place("inbox")
    # Touched by the controller with every heartbeat; holds its complaint, if it has one (ftslurm.run.liveness).
    alive = _Place("alive")
    leaders = _Place("leaders")  # one numbered file for each leader of the run (ftslurm.run.leadership)
    # The folder of the observer: what has been told to hooks (ftslurm.run.deliveries), and its lock.
    observer = _Place("observer")
    observer_log = _Place("logs/observer.log")
    # One file for each task of an array submitted by hand that is no longer needed; these tasks end themselves.
    released = _Place("released")
    # One file for each Slurm job that was submitted for groups; it contains the job's pool.
    submitted = _Place("submitted")
    report = _Place("report.html")  # where the time of the run went, as a page (ftslurm.report)
    package = _Place(programs.COPY)  # the copy of ftslurm that the run uses (ftslurm.code.own_copy)
    code = _Place("code")  # the copy of the code that every attempt runs (ftslurm.code)
    code_record = _Place("code.json")  # how the code is kept (ftslurm.code.record)
    submitit = _Place("submitit")
    # Holds the id of the controller's Slurm job; missing if the controller does not run in a batch job.
    job_id = _Place("submitit/job_id")
    checkpoints = _Place("checkpoints")
    # Where scripts write the value of the run, one file for each group (ftslurm.run.results).
    results = _Place("results")
    logs = _Place("logs")
    controller_log = _Place("logs/controller.log")
    lighthouse_log = _Place("logs/lighthouse.log")

    def mark(self) -> str:
        """Return the comment that identifies this run's Slurm jobs."""
        try:
            return f"ftslurm:{self.root.name}-{owned_files.read_text(self.id).strip()}"
        except OSError:
            return f"ftslurm:{self.root.name}"

    def pools(self) -> dict[str, int]:
        """Return the names of the Slurm jobs that were submitted for groups, and their pools."""
        found = dict[str, int]()
        with suppress(OSError):
            for path in self.submitted.iterdir():
                with suppress(OSError, ValueError):
                    found |= {path.name: int(owned_files.read_text(path))} if is_job(path.name) else {}
        return found

    def remember(self, names: Iterable[str], pool: int) -> None:
        """Record the names of jobs that were submitted for a pool: a site may remove the jobs' comments."""
        with suppress(OSError):
            sharing.make_folder(self.submitted)
            for name in names:
                replace_text(self.submitted / name, str(pool))

    def job(self) -> str | None:
        """Return the id of the controller's Slurm job; None: it is no batch job, or not submitted yet."""
        try:
            job = owned_files.read_text(self.job_id).strip()
        except OSError:
            return None
        return job if is_job(job) else None

    def output(self, job: str) -> Path:
        """Return the output of a job's batch script (of a local controller: of this process); Slurm or we make it."""
        return self.submitit / f"{job}_0_log.out"

    def attempt(self, unit: str, attempt: int) -> Path:
        """Return the folder of an attempt: logs/group-0003/attempt-002."""
        return self.logs / unit / f"attempt-{attempt:03d}"

    def rank_log(self, unit: str, attempt: int, rank: int) -> Path:
        """Return the log of a rank's stdout and stderr; the Lighthouse has one file for all its attempts."""
        if unit == LIGHTHOUSE:
            return self.lighthouse_log
        return self.attempt(unit, attempt) / f"rank-{rank}.log"

    def step_log(self, unit: str, attempt: int) -> Path:
        """Return the log of what srun or the local launcher itself printed about an attempt's step."""
        if unit == LIGHTHOUSE:
            return self.logs / "lighthouse-step.log"
        return self.attempt(unit, attempt) / "step.log"

    def kept(self, number: int) -> Path:
        """Return the file in which a controller keeps the state; 0: it has no leader number."""
        return self.state / f"{number:04d}.jsonl"

    def acted_on(self) -> list[Path]:
        """Return the folders and files on which programs act, as opposed to only showing them.

        The inbox of a run that a group may steer is open for it; who has left a command is checked with each.
        """
        inbox = [] if sharing.is_steerable(self.inbox) and not sharing.may_steer(self.inbox) else [self.inbox]
        folders = [self.root, self.submitit, *inbox, self.leaders, self.submitted, self.released, self.observer]
        files = [
            self.config,
            self.events,
            self.progress,
            self.id,
            self.key,
            self.job_id,
            self.code_record,
            self.package,
        ]
        return [*folders, self.state, self.code, *files]

    def create(self, group: int | None = None, steer: bool = False) -> None:
        """Make the folders, private to this user.

        Args:
            group: the id of a group that may read the run, all but its checkpoints and secrets.
            steer: it may also leave commands.

        Raises:
            OSError: the root cannot be written or given to the group, or the run directory exists already.
        """
        owned_files.make_folders(self.root.parent)
        self.root.mkdir(mode=0o700)
        if group is not None:
            sharing.share(self.root, group)
        owned_files.write_file(self.root / ".gitignore", IGNORED, durable=False)
        for folder in (self.logs, self.submitit, self.results):
            sharing.make_folder(folder)
        for folder in (self.inbox, self.checkpoints, self.state):
            folder.mkdir(mode=0o700)
        if steer and group is not None:
            sharing.share(self.inbox, group, sharing.INBOX)
        owned_files.write_file(self.id, os.urandom(4).hex().encode())


def replace_text(path: Path, text: str) -> None:
    """Replace a file atomically by a text (owned_files.replace_file).

    Raises:
        OSError: it cannot be written.
    """
    owned_files.replace_file(path, text.encode(errors="surrogateescape"))
