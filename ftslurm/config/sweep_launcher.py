"""Takes the place of Hydra's launcher in a sweep: composes the runs that a sweeper asks for, and may run them.

Hydra's basic sweeper asks for all runs at once; they are started when all have been composed and checked. Another
sweeper (Optuna, Ax) asks for a few at a time and wants their values before it asks for the next ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, run_job
from hydra.plugins.launcher import Launcher
from omegaconf import OmegaConf, open_dict

from ftslurm.config.hydra_adapter import BASIC, Composed, Sweep, check_launcher
from ftslurm.errors import ConfigError, FtslurmError


@contextmanager
def in_place(sweep: Sweep, composed: list[Composed]) -> Iterator[None]:
    """Have sweepers use our launcher, whatever is installed. `composed` gets what nobody has run."""
    plugins = Plugins.instance()

    def ours(*, hydra_context: Any, task_function: Any, config: Any) -> Launcher:
        launcher = _Launcher(sweep, composed)
        launcher.setup(hydra_context=hydra_context, task_function=task_function, config=config)
        return launcher

    plugins.instantiate_launcher = ours  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del plugins.instantiate_launcher


class _Launcher(Launcher):
    def __init__(self, sweep: Sweep, composed: list[Composed]) -> None:
        self.sweep, self.composed = sweep, composed

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        choices = config.hydra.runtime.choices
        check_launcher(choices.get("hydra/launcher"))
        self.sweeper = str(choices.get("hydra/sweeper"))
        if self.sweeper != BASIC and self.sweep.evaluate is None:
            raise ConfigError(
                f"hydra/sweeper={self.sweeper}: which runs it asks for depends on the values of those before, and here "
                f"nothing is run; name one combination instead"
            )
        self.context, self.task, self.config = hydra_context, task_function, config
        self.fixed = {word.partition("=")[0].lstrip("+"): word for word in self.sweep.fixed}

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        optimizes, before = self.sweeper != BASIC, len(self.composed)
        returns = [
            self._compose(self._restored(words) if optimizes else words, initial_job_idx + number)
            for number, words in enumerate(job_overrides)
        ]
        if optimizes and self.sweep.evaluate is not None:
            for one in returns:
                one.return_value  # noqa: B018 raises what went wrong while it was composed
            self.sweep.used = True
            batch = self.composed[before:]
            del self.composed[before:]
            for one, value in zip(returns, self.sweep.evaluate(batch, initial_job_idx), strict=True):
                one.status = JobStatus.FAILED if isinstance(value, FtslurmError) else JobStatus.COMPLETED
                one.return_value = value
        return returns

    def _restored(self, words: Sequence[str]) -> list[str]:
        """Return the overrides of a run: those that the sweeper has chosen, and the others as the user gave them."""
        keys = {word.partition("=")[0].lstrip("+"): word for word in words}
        chosen = [self.sweep.word(word) for key, word in keys.items() if key not in self.fixed]
        return [*self.sweep.fixed, *chosen]

    def _compose(self, words: Sequence[str], number: int) -> JobReturn:
        config = self.context.config_loader.load_sweep_config(self.config, list(words))
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        return run_job(
            hydra_context=self.context,
            task_function=self.task,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )


def results(folder: str) -> str:
    """Return what a sweeper has written about its best runs, "" if it is none that does."""
    try:
        found = OmegaConf.load(Path(folder) / "optimization_results.yaml")
    except OSError:
        return ""
    return OmegaConf.to_yaml(found).replace("++", "")
