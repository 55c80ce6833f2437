"""Compose presets and overrides with Hydra.

Only this module and our plugin of Hydra's (hydra_plugins/ftslurm_launcher) use Hydra, and this one its object for an
application, which is private: `hydra.compose` knows no sweeps and no folder of the user's. pyproject.toml bounds
Hydra's version to those with which it was tried (docs/versions.md).

Hydra composes presets to plain mappings, which our loader has read (`read_yaml`): it knows neither our keys nor
our types, and gets no override of a setting. A sweeper that chooses values gets those that it is to choose from.
"""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO, TypeAlias

from ftslurm.config.typed_values import PLAIN
from ftslurm.errors import ConfigError, FtslurmError

# What Hydra and its plugins raise of what they cannot understand.
_BY_ACCIDENT = (AttributeError, TypeError, KeyError, ImportError, AssertionError, RecursionError)
_YAML = "tag:yaml.org,2002:"
_ALONE = threading.RLock()  # Hydra's state belongs to the whole process


# What a script has reported: one number, one for each objective, or why there is none.
Value: TypeAlias = "float | list[float] | FtslurmError"


class Hydra:
    """One application of Hydra's. It knows presets, and what a sweep is; settings are changed elsewhere."""

    def __init__(self, application: Any, name: str) -> None:
        """Set the application, and the name of the file of conf/ that says which presets it begins with."""
        self._application, self._name = application, name
        self._compose = cache(self._composed)

    def compose(self, words: Sequence[str]) -> dict[str, Any]:
        """Return what these overrides compose, not resolved; nobody changes it."""
        return self._compose(*words)[0]

    def sweeper(self, words: Sequence[str]) -> str:
        """Return the name of the sweeper that these overrides choose."""
        return self._compose(*words)[1]

    def _composed(self, *words: str) -> tuple[dict[str, Any], str]:
        from hydra.types import RunMode
        from omegaconf import OmegaConf

        config = self._application.compose_config(self._name, list(words), RunMode.RUN)
        tree: Any = OmegaConf.to_container(config, resolve=False)
        return tree, tree.pop("hydra")["runtime"]["choices"]["hydra/sweeper"]

    def alternatives(self, word: str) -> list[str]:
        """Return the values of an override that has several, for a sweep of all combinations."""
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from hydra.core.override_parser.types import QuotedString

        parsed = OverridesParser.create(self._application.config_loader).parse_override(word)
        if parsed.is_interval_sweep():
            raise ConfigError(f"{word}: only a sweeper that chooses values takes an interval, as hydra/sweeper=optuna")
        return [one.text if isinstance(one, QuotedString) else str(one) for one in parsed.sweep_iterator()]

    def sweep(self, words: Sequence[str], run: Callable[[Sequence[Sequence[str]], int], Sequence[Value]]) -> str:
        """Have a sweeper choose combinations of overrides. Return what it says of the best, "" if it says nothing.

        Args:
            run: runs some, the first of which has this number.
        """
        from hydra.core.config_store import ConfigStore
        from hydra.core.plugins import Plugins
        from hydra.core.utils import JobReturn, JobStatus
        from omegaconf import OmegaConf

        from hydra_plugins.ftslurm_launcher import FtslurmLauncher

        def launch(combinations: Sequence[Sequence[str]], first: int) -> Sequence[Any]:
            return [
                JobReturn(words, status=JobStatus(1 + isinstance(value, FtslurmError)), _return_value=value)
                for words, value in zip(combinations, run(combinations, first), strict=True)
            ]

        Plugins.instance().register(FtslurmLauncher)  # an editable installation hides it from Hydra
        target = f"{FtslurmLauncher.__module__}.{FtslurmLauncher.__name__}"
        ConfigStore.instance().store(group="hydra/launcher", name="ftslurm", node={"_target_": target})
        with tempfile.TemporaryDirectory(prefix="ftslurm-") as scratch:
            # A sweep writes a multirun.yaml somewhere, and `plan` must leave nothing behind.
            own = [f"hydra.sweep.dir='{scratch}'", "hydra/launcher=ftslurm"]
            task = SimpleNamespace(launch=launch)
            self._application.multirun(self._name, task, [*own, *words], with_log_configuration=False)
            results = Path(scratch, "optimization_results.yaml")
            return OmegaConf.to_yaml(OmegaConf.load(results)) if results.exists() else ""


@contextmanager
def opened(defaults: Mapping[str, Any], name: str, folders: Sequence[Path], given: Sequence[str]) -> Iterator[Hydra]:
    """Yield an application.

    Args:
        defaults: the configuration without presets and overrides.
        name: of the file of conf/ that says which presets it begins with.
        folders: those of presets.
        given: all overrides, for a message.

    Raises:
        ConfigError: Hydra has refused something.
    """
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        with _ALONE, _application(folders) as application:
            ConfigStore.instance().store(name="schema", node=dict(defaults))
            yield Hydra(application, name)
    except (HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError, *_BY_ACCIDENT) as error:
        line = " ".join(" ".join(given).split())  # one line, whatever a value holds
        raise ConfigError(f"{_why(error)} (given: {line})") from error


def _why(error: Exception) -> str:
    """Return what Hydra refuses, in our words where it does not name what is wrong."""
    from hydra.errors import MissingConfigException

    if isinstance(error, MissingConfigException) and error.options and error.missing_cfg_file:
        section, _, name = error.missing_cfg_file.partition("/")
        there = ", ".join(error.options)
        return f"{section}={name}: there is no such preset; there are: {there} (your own: --config-dir DIR)"
    if isinstance(error, RecursionError):
        return "a preset has itself in its defaults, maybe by way of another one"
    return ": ".join(filter(None, map(first_lines, filter(None, [error, error.__cause__]))))


@contextmanager
def _application(folders: Sequence[Path]) -> Iterator[Any]:
    """Yield an application of Hydra's. The caller may be another one, or a notebook that uses Hydra: its global state
    is put away."""
    from hydra import version
    from hydra._internal.hydra import Hydra
    from hydra._internal.sources_registry import SourcesRegistry
    from hydra._internal.utils import create_config_search_path
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig

    settings, store, sources = HydraConfig.instance(), ConfigStore.instance(), SourcesRegistry.instance()
    path = create_config_search_path(str(folders[0]))
    before = GlobalHydra.instance().hydra, settings.cfg, dict(store.repo), dict(sources.types)
    for folder in folders[1:]:  # no override of hydra.searchpath: a folder may have any name
        path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
    GlobalHydra.instance().clear()
    version.setbase("1.3")
    sources.types["file"] = _files()
    try:
        yield Hydra.create_main_hydra2("ftslurm", path)
    finally:
        GlobalHydra.instance().hydra, settings.cfg, store.repo, sources.types = before


@cache
def _files() -> Any:
    """Return Hydra's source of files, with our reader for all but Hydra's own settings."""
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra.plugins.config_source import ConfigResult
    from omegaconf import OmegaConf

    class Files(FileConfigSource):
        def load_config(self, config_path: str) -> ConfigResult:
            path = Path(self.path, self._normalize_file_name(config_path))
            with path.open(encoding="utf-8") as file:
                tree = None if config_path.startswith("hydra/") else read_yaml(file)
            if not isinstance(tree, dict):
                return super().load_config(config_path)
            for name in {"hydra", "defaults"} & tree.keys():
                tree[name] = super().load_config(config_path).config[name]
            header = self._get_header_dict(path.read_text(encoding="utf-8"))
            return ConfigResult(self.provider, f"file://{self.path}", OmegaConf.create(tree), header)

    return Files


def read_yaml(source: str | TextIO) -> Any:
    """Return what YAML holds. Words without quotes keep their characters, as a setting's type says what they mean.

    YAML 1.1, which PyYAML reads, makes 43200 of 12:00:00, 1.1 of 1.10 and true of `on`.

    Raises:
        YAMLError: it is not YAML, or a mapping has a name twice.
    """
    import yaml

    return yaml.load(source, Loader=_loader())  # noqa: S506 it is derived from SafeLoader


@cache
def _loader() -> Any:
    from omegaconf._utils import get_yaml_loader

    loader = get_yaml_loader()  # a class of its own each time; it refuses a name that is there twice
    loader.yaml_implicit_resolvers = {}
    loader.add_constructor("!plain", lambda _, node: PLAIN[node.value])
    loader.add_constructor(f"{_YAML}merge", loader.construct_yaml_str)
    for tag, words, first in (("!plain", PLAIN, None), (f"{_YAML}null", [""], [""]), (f"{_YAML}merge", ["<<"], ["<"])):
        loader.add_implicit_resolver(tag, re.compile(f"({'|'.join(words)})$"), first)
    return loader


def first_lines(error: BaseException) -> str:
    """Return an error's message on one line, with the setting that OmegaConf means, without its indented internals."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("full_key:", "object_type=", "reference_type="))]
    said, key = " ".join(kept[:4]), getattr(error, "full_key", None) or ""
    return said if key in said else f"{key}: {said}"
