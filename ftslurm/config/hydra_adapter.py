"""Compose presets and overrides with Hydra.

Only this module and our plugin of Hydra's (hydra_plugins/ftslurm_launcher) use Hydra, and this one its object for an
application, which is private: `hydra.compose` knows no sweeps and no folder of the user's. pyproject.toml bounds
Hydra's version to those with which it was tried (docs/versions.md).

Hydra composes plain mappings: it knows neither our keys nor our types, which config/typed_values.py checks when all is
composed.
"""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ftslurm.config import sweep_names
from ftslurm.config.typed_values import as_in
from ftslurm.errors import ConfigError, FtslurmError

# What Hydra and its plugins raise of what they cannot understand.
_BY_ACCIDENT = (AttributeError, TypeError, KeyError, ImportError, AssertionError, RecursionError)
_ALONE = threading.RLock()  # Hydra's state belongs to the whole process


class Override(NamedTuple):
    """One override, as `groups.count=3`, `+job.args.lr=0.1` or `~faults`."""

    word: str  # as it was given
    key: str
    text: str  # what follows the "="
    sweeps: bool  # stands for several values, as 1,2 or interval(0,1)
    mapping: bool  # its value is one


Composed: TypeAlias = tuple[Any, list[str]]  # a configuration of OmegaConf, not resolved, with its overrides
# What a script has reported: one number, one for each objective, or why there is none.
Value: TypeAlias = "float | list[float] | FtslurmError"


@dataclass
class Task:
    """What Hydra calls with the configuration of each combination: keeps them, and runs what a sweeper asks for.

    Hydra's basic sweeper asks for all runs at once; they are started when all have been composed and checked. Another
    sweeper (Optuna, Ax) asks for a few at a time and wants their values before it asks for the next ones.
    """

    word: Callable[[str], str]  # makes an override that a sweeper has chosen one that Hydra takes
    fixed: Mapping[str, str]  # overrides with one value, by key; a sweeper need not write them back as they were
    evaluate: Callable[[Sequence[Composed], int], Sequence[Value]] | None  # runs some, the first with this number
    composed: list[Composed] = field(default_factory=list)  # what nobody has run
    asked: bool = False  # a sweeper has asked for values

    def __call__(self, config: Any) -> None:
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import OmegaConf

        given = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
        self.composed.append((config, [str(word) for word in given or []]))

    def launch(
        self, launch: Callable[..., Sequence[Any]], sweeper: str, combinations: Sequence[Sequence[str]], first: int
    ) -> Sequence[Any]:
        """Do what Hydra asks its launcher for (hydra_plugins/ftslurm_launcher): compose, and run if values are wanted.

        Args:
            launch: Hydra's own launcher, which calls this task for each combination of overrides.
        """
        from hydra.core.utils import JobStatus

        if sweeper == "basic":
            return launch(combinations, first)
        if self.evaluate is None:
            raise ConfigError(
                f"hydra/sweeper={sweeper}: which runs it asks for depends on the values of those before, and here "
                f"nothing is run; name one combination instead"
            )
        # The overrides that the sweeper has chosen, and the others as the user gave them.
        fixed, word = self.fixed, self.word
        chosen = [[word(one) for one in words if sweep_names.key(one) not in fixed] for words in combinations]
        returns = launch([[*fixed.values(), *words] for words in chosen], first)
        for one in returns:
            one.return_value  # noqa: B018 raises what went wrong while it was composed
        self.asked = True
        batch, self.composed = self.composed, []
        for one, value in zip(returns, self.evaluate(batch, first), strict=True):
            one.status = JobStatus.FAILED if isinstance(value, FtslurmError) else JobStatus.COMPLETED
            one.return_value = value
        return returns


def parse(word: str) -> Override:
    """Parse one override.

    Raises:
        ConfigError: it is not in Hydra's notation.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(word)
    except HydraException:
        parsed = None
    if parsed is None or not parsed.key_or_group:
        raise ConfigError(
            f"{word!r} is not in Hydra's notation: it wants key=value (a script is job.script=train.py), and quotes "
            f"around a value with spaces or signs such as ~ ( [ {{ , as in 'job.args.note=\"two words\"'"
        )
    sweeps = parsed.is_sweep_override()
    mapping = not sweeps and isinstance(parsed.value(), dict)
    return Override(word, parsed.key_or_group, word.partition("=")[2], sweeps, mapping)


def compose(
    words: Sequence[str],
    defaults: Mapping[str, Any],
    task: Task,
    name: str,
    sweeps: bool,
    folders: Sequence[Path],
) -> str:
    """Have the task called with every combination.

    Args:
        words: the overrides.
        defaults: the configuration without presets and overrides.
        name: of the file of conf/ that says which presets are applied if `words` choose no other ones.
        sweeps: there is to be more than one combination.
        folders: those of presets.

    Returns:
        What a sweeper says of its best runs, "" if it says nothing.

    Raises:
        ConfigError: Hydra refuses it.
        FtslurmError: what the task raised.
    """
    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        with _ALONE, _application(folders) as application, tempfile.TemporaryDirectory(prefix="ftslurm-") as scratch:
            store = ConfigStore.instance()
            store.store(name="schema", node=dict(defaults))
            if not sweeps:
                application.run(name, task, list(words), with_log_configuration=False)
                return ""
            from hydra_plugins.ftslurm_launcher import FtslurmLauncher

            Plugins.instance().register(FtslurmLauncher)  # an editable installation hides it from Hydra
            target = f"{FtslurmLauncher.__module__}.{FtslurmLauncher.__name__}"
            store.store(group="hydra/launcher", name="ftslurm", node={"_target_": target})
            # A sweep writes a multirun.yaml somewhere, and `plan` must leave nothing behind.
            own = [f"hydra.sweep.dir='{scratch}'", "hydra/launcher=ftslurm"]
            application.multirun(name, task, [*own, *words], with_log_configuration=False)
            results = Path(scratch, "optimization_results.yaml")
            return OmegaConf.to_yaml(OmegaConf.load(results)).replace("++", "") if results.exists() else ""
    except (HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError, *_BY_ACCIDENT) as error:
        if isinstance(error, _BY_ACCIDENT) and task.asked:
            raise  # it may be our own
        raise ConfigError(_why(error, words)) from error


def _why(error: Exception, words: Sequence[str]) -> str:
    """Return what Hydra refuses, in our words where it does not name what is wrong."""
    from hydra.errors import MissingConfigException
    from omegaconf.errors import ConfigTypeError

    if isinstance(error, MissingConfigException) and error.options and error.missing_cfg_file:
        section, _, name = error.missing_cfg_file.partition("/")
        there = ", ".join(error.options)
        return f"{section}={name}: there is no such preset; there are: {there} (your own: --config-dir DIR)"
    if isinstance(error, RecursionError):
        return "a preset has itself in its defaults, maybe by way of another one"
    if isinstance(error.__cause__, ConfigTypeError):
        key, is_mapping = error.__cause__.full_key or "", error.__cause__.object_type is dict
        how = f"mapping in this job: set its values one by one, as in {key}.NAME=VALUE"
        return f"{key} is a {how if is_mapping else f'list in this job: it must be a list{as_in(key)}'}"
    if found := re.search(r"(?:base 10: |Index )'(.+?)'", str(error)):  # there, too: it wants the index of a list
        one = next(word for word in words if f".{found[1]}" in word)
        lists = [word for word in words if one.startswith(f"{word.partition('=')[0]}.")] or ["the job's own list"]
        return f"{one} contradicts {lists[-1]}: a list has no {found[1]}".replace("++", "")
    return ": ".join(filter(None, map(first_lines, filter(None, [error, error.__cause__]))))


@contextmanager
def _application(folders: Sequence[Path]) -> Iterator[Any]:
    """Yield an application of Hydra's. The caller may be another one, or a notebook that uses Hydra: its global state
    is put away."""
    from hydra import version
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig

    settings, store = HydraConfig.instance(), ConfigStore.instance()
    before = GlobalHydra.instance().hydra, settings.cfg, dict(store.repo)
    path = create_config_search_path(str(folders[0]))
    for folder in folders[1:]:  # no override of hydra.searchpath: a folder may have any name
        path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
    GlobalHydra.instance().clear()
    version.setbase("1.3")
    try:
        yield Hydra.create_main_hydra2("ftslurm", path)
    finally:
        GlobalHydra.instance().hydra, settings.cfg, store.repo = before


def first_lines(error: BaseException) -> str:
    """Return an error's message on one line, with the setting that OmegaConf means, without its indented internals."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("full_key:", "object_type=", "reference_type="))]
    said, key = " ".join(kept[:4]), getattr(error, "full_key", None) or ""
    return said if key in said else f"{key}: {said}"
