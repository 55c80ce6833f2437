"""Compose presets and overrides with Hydra.

Only this module uses Hydra, and all that is private of it here is how it reads a file; pyproject.toml bounds Hydra's
version to those with which it was tried (docs/versions.md).

Hydra composes presets to plain mappings, which our loader has read (`read_yaml`): it knows neither our keys nor
our types, and gets no override of a setting.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from ftslurm.config.notation import in_quotes
from ftslurm.config.typed_values import PLAIN
from ftslurm.errors import ConfigError

# What Hydra and its plugins raise of what they cannot understand.
_BY_ACCIDENT = (AttributeError, TypeError, KeyError, ImportError, AssertionError, RecursionError)
_YAML = "tag:yaml.org,2002:"
_ALONE = threading.RLock()  # Hydra's state belongs to the whole process


@contextmanager
def opened(
    defaults: Mapping[str, Any], name: str, folders: Sequence[Path], given: Sequence[str]
) -> Iterator[Callable[..., dict[str, Any]]]:
    """Yield a function of overrides that choose presets. It returns what they compose, not resolved, never modified.

    Args:
        defaults: the configuration without presets and overrides.
        name: of the file of conf/ that says which presets it begins with.
        folders: those of presets.
        given: all overrides, for a message.

    Raises:
        ConfigError: Hydra has refused something.
    """
    from hydra import compose, initialize_config_dir
    from hydra._internal.sources_registry import SourcesRegistry
    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    Plugins.instance()  # registers Hydra's own sources when it is first asked for
    store, sources = ConfigStore.instance(), SourcesRegistry.instance()
    own = [f"hydra.searchpath=[{in_quotes(f'file://{folder}')}]" for folder in folders[1:]]

    @cache
    def composed(*words: str) -> Any:
        return OmegaConf.to_container(compose(name, [*own, *words]), resolve=False)

    with _ALONE:
        before = dict(store.repo), dict(sources.types)
        try:
            sources.types["file"] = _files()
            store.store(name="schema", node=dict(defaults))
            with initialize_config_dir(str(folders[0]), "ftslurm", "1.3"):
                yield composed
        except (HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError, *_BY_ACCIDENT) as error:
            line = " ".join(" ".join(given).split())  # one line, whatever a value holds
            raise ConfigError(f"{_why(error)} (given: {line})") from error
        finally:
            store.repo, sources.types = before


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
