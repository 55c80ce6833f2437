"""Resumes a run that is over, from its newest checkpoint, as a new run that names its parent."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ftslurm.checkpoint.handing_on import hand_on
from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.core.state.model import Saved
from ftslurm.errors import Distrusted, EnvironmentProblem
from ftslurm.protocol.records import FullRestart, ReplicasDiffer
from ftslurm.run import configuration, facts, stored_checkpoints
from ftslurm.run.directory import RunDir
from ftslurm.run.journal import JournalReader
from ftslurm.run.journal_lines import read
from ftslurm.submission import code_of_run, submit


@dataclass(frozen=True)
class Resumption:
    """A run that resumes another one, before it is submitted."""

    config: Config
    begins: str  # where the training begins, for a person
    source: Path | None  # the folder whose checkpoints it is given; None: it shares a folder, or begins anew
    code: code_of_run.GiveCode | None  # gives it the copy of the parent; None: it takes the code as it is now

    def create(self, config: Config) -> RunDir:
        """Create the run directory, with the checkpoints of the parent.

        Raises:
            FtslurmError: it cannot be created, or the checkpoints cannot be handed on.
        """
        run = submit.create(config, self.code or code_of_run.take)
        if self.source is None:
            return run
        target = run.checkpoints if stored_checkpoints.url(config) else Path(config.checkpoint.dir or run.checkpoints)
        try:
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            hand_on(self.source, target)
        except (OSError, Distrusted) as error:
            shutil.rmtree(run.root, ignore_errors=True)
            raise EnvironmentProblem(
                f"the checkpoints in {self.source} cannot be given to {target}: {error}"
            ) from error
        return run


def resume(
    parent: RunDir, overrides: Sequence[str] = (), from_scratch: bool = False, new_code: bool = False
) -> Resumption:
    """Compose the configuration of a run that resumes this one.

    Args:
        overrides: changes, as on the command line; a preset replaces its section.
        from_scratch: begin at step 0, whatever has been saved.
        new_code: take the code as it is now, and not the parent's copy.

    Raises:
        EnvironmentProblem: the run is not over, or has nothing to resume from, or its code has changed.
        ConfigError: an override is wrong.
    """
    before = configuration.of_run(parent)
    _check_over(before, parent)
    saved, source = stored_checkpoints.newest(before, parent), before.checkpoint.dir or str(parent.checkpoints)
    if not from_scratch:
        _check_saved(before, parent, saved)
    config = _configure(before, parent, overrides)
    code = code_of_run.inherit(before, config, parent, new_code)
    if from_scratch or saved is None:
        if config.checkpoint.dir == before.checkpoint.dir:
            config.checkpoint.dir = None  # nothing of that folder is to be found
        return Resumption(config, "step 0 (--from-scratch)", None, code)
    if saved.step is None:  # the script's own format: only the script knows which files belong together
        if config.checkpoint.dir not in (None, source) and stored_checkpoints.newest(config, parent) is None:
            raise EnvironmentProblem(
                f"checkpoint.dir={config.checkpoint.dir} has no checkpoint, so the script would begin anew: copy "
                f"what it has saved in {source} there first, or leave checkpoint.dir out to go on in that folder"
            )
        config.checkpoint.dir = config.checkpoint.dir or source
        return Resumption(config, f"what its script finds in {config.checkpoint.dir}, where it also saves", None, code)
    step = f"step {saved.step}{_in_doubt(parent, saved.step)}"
    if config.checkpoint.dir == source:
        positions = parent.checkpoints if stored_checkpoints.url(config) and parent.checkpoints.is_dir() else None
        return Resumption(config, f"{step}, checkpoint.dir={source} as before", positions, code)
    if stored_checkpoints.url(config) or stored_checkpoints.url(before):
        raise EnvironmentProblem(
            f"checkpoint.dir={config.checkpoint.dir}, and the checkpoints are in {source}: they are not copied to or "
            f"from an object store; leave checkpoint.dir out, or copy them and start a new run"
        )
    if config.checkpoint.dir is not None and (there := stored_checkpoints.newest(config, parent)) is not None:
        raise EnvironmentProblem(
            f"checkpoint.dir={config.checkpoint.dir} has checkpoints already ({there.path}): name an empty folder"
        )
    return Resumption(config, f"{step} ({saved.path})", Path(source), code)


def _in_doubt(run: RunDir, step: int) -> str:
    """Return why nobody knows whether what was saved at a step is right: groups differed (health.compare_every)."""
    found: ReplicasDiffer | None = None
    for record in map(read, JournalReader(run.events).iter_new()):
        if isinstance(record, ReplicasDiffer) and record.equal == 0:
            found = found or record
        elif isinstance(record, FullRestart) and found is not None and (record.checkpoint_step or 0) <= found.since:
            found = None  # what differed is undone
    return f" (warning: {found.reason})" if found is not None and found.since < step else ""


def _configure(before: Config, parent: RunDir, overrides: Sequence[str]) -> Config:
    """Return the parent's configuration with the overrides, and without what belongs to the parent alone."""
    before.run.dir, before.internal.parent, before.internal.pilots = None, str(parent.root), None
    before.faults.plan = []
    before.cluster.controller = "job"  # the allocation in which the parent's has run is gone
    return compose.to_config(compose.compose(overrides, before))


def _check_over(config: Config, run: RunDir) -> None:
    """Refuse a run that goes on, or may go on: two runs would train the same thing.

    Raises:
        EnvironmentProblem: it may.
    """
    found = facts.look(config, run, ended=True)
    if found.going:
        note = f": {found.note}" if found.note else ""
        stop = f"ftslurm stop {run.root}"
        raise EnvironmentProblem(f"{run.root.name} is not over{note}; to resume it, end it first: {stop}")


def _check_saved(config: Config, run: RunDir, saved: Saved | None) -> None:
    """Refuse a run without a usable checkpoint.

    Raises:
        EnvironmentProblem: there is none.
    """
    if saved is not None and saved.damaged is None:
        return
    why = "has saved no checkpoint" if saved is None else f"has no complete checkpoint ({saved.path}: {saved.damaged})"
    if saved is None and (found := facts.look(config, run)).never:
        why = f"never started ({found.why}), so nothing is lost"
    anew = f"ftslurm resume {run.root} --from-scratch"
    raise EnvironmentProblem(f"{run.root.name} {why}; this begins the same training at step 0: {anew}")
