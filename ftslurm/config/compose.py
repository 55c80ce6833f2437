"""Turn presets and overrides, or a config.yaml, into a checked Config."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

from ftslurm.config import hydra_adapter, overrides, sweep_names
from ftslurm.config.hydra_adapter import Composed, Task, Value
from ftslurm.config.schema import Config, shipped
from ftslurm.config.setting_names import INTERNAL, paths
from ftslurm.config.store_url import is_url, plain
from ftslurm.config.typed_values import made
from ftslurm.config.validate import check
from ftslurm.errors import ConfigError
from ftslurm.security import owned_files


class Evaluation(Protocol):
    """What runs the runs of a sweep whose sweeper wants their values (hydra/sweeper=optuna)."""

    def values(self, configs: Sequence[Config]) -> Sequence[Value]:
        """Run some, and return what each script has reported."""

    def conclude(self, best: str) -> None:
        """End the sweep; `best` is what the sweeper says of its runs, "" if nothing."""


def compose(
    words: Sequence[str],
    base: Config | None = None,
    evaluation: Evaluation | None = None,
    *,
    config_dir: str | None = None,
    multirun: bool = False,
) -> list[Config]:
    """Compose the configuration of every combination, with checked types; without those that `evaluation` has run.

    Args:
        base: the configuration that the overrides change, as that of an earlier run; a preset replaces its section.
        evaluation: runs what a sweeper wants to know the value of.
        config_dir: a folder with presets of the user's own.
        multirun: there is one for each combination of values.

    Raises:
        ConfigError: unknown key or preset, or wrong type.
    """
    folders = [shipped("conf"), *([] if config_dir is None else [Path(config_dir).absolute()])]
    if not os.path.isdir(folders[-1]):
        raise ConfigError(f"--config-dir {config_dir}: there is no such folder")
    parsed = [hydra_adapter.parse(word) for word in words]
    given = overrides.for_hydra(parsed, folders, multirun)
    defaults = asdict(Config())
    del defaults[INTERNAL]
    if base is not None:
        presets = [one.key for one, word in zip(parsed, given, strict=True) if word == one.word]  # settings have a ++
        defaults |= {name: value for name, value in _mapping(base).items() if name not in presets}
    fixed = {
        sweep_names.key(word): word
        for one, word in zip(parsed, given, strict=True)
        if not one.sweeps and not one.key.startswith(("hydra.", "hydra/"))
    }

    def chosen(word: str) -> str:
        return overrides.for_hydra([hydra_adapter.parse(word)], folders, multirun)[0]

    def evaluate(composed: Sequence[Composed], first: int) -> Sequence[Value]:
        assert evaluation is not None
        return evaluation.values(
            [
                to_config(_typed(raw, sweep_names.suffix(told, fixed, first + number)))
                for number, (raw, told) in enumerate(composed)
            ]
        )

    task = Task(chosen, fixed, None if evaluation is None else evaluate)
    try:
        best = hydra_adapter.compose(given, defaults, task, "config" if base is None else "resumed", multirun, folders)
    except ConfigError as error:
        line = " ".join(" ".join(words).split())  # one line, whatever a value holds
        raise ConfigError(f"{error} (given: {line})".replace(" ++", " ")) from error
    if evaluation is not None and task.asked:
        evaluation.conclude(best)
    elif not task.composed:
        swept = " ".join(one.word for one in parsed if one.sweeps)
        raise ConfigError(f"{swept}: there is no combination of these values, so nothing would run")
    return [_typed(raw, sweep_names.suffix(told, fixed) if multirun else "") for raw, told in task.composed]


def _mapping(base: Config) -> dict[str, Any]:
    """Return a configuration as a mapping for Hydra; job.total_steps follows job.args.steps if the two are equal."""
    found: dict[str, Any] = _escaped(asdict(base))
    args, total = found["job"]["args"], found["job"]["total_steps"]
    if isinstance(args, dict) and total is not None and args.get("steps") == total:
        found["job"]["total_steps"] = "${job.args.steps}"
    return found


def _typed(raw: Any, suffix: str = "") -> Config:
    """Convert what OmegaConf has read into a Config.

    Args:
        suffix: what to add to the name of the run.

    Raises:
        ConfigError: a key does not exist, or a value has the wrong type.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        if suffix:
            raw.run.name = sweep_names.joined(raw.run.name, suffix)
        values = OmegaConf.to_container(raw, resolve=True)
    except (OmegaConfBaseException, ValueError, TypeError, AttributeError, AssertionError) as error:
        raise ConfigError(hydra_adapter.first_lines(error)) from error
    config: Config = made(Config, values)
    return config


def absolute(config: Config) -> Config:
    """Make the paths that other nodes and other working directories will see absolute, in place.

    Examples that ship with ftslurm are named `example:train_ddp.py` in conf/job/, so that they are found both in a
    checkout and in an installed wheel.
    """
    if config.job.script is not None and config.job.script.startswith("example:"):
        config.job.script = str(shipped("examples") / config.job.script.removeprefix("example:"))
    if (config.cluster.container_image or "").startswith(("./", "../", "~")):
        config.cluster.container_image = os.path.abspath(os.path.expanduser(config.cluster.container_image or ""))  # noqa: PTH100
    for key in paths():
        section, name = key.split(".")
        settings = getattr(config, section)
        value = getattr(settings, name)
        if section == "checkpoint" and value and is_url(value := plain(value)):
            config.checkpoint.dir = value.rstrip("/")
        elif value is not None and not is_url(value):
            setattr(settings, name, os.path.abspath(os.path.expanduser(value)))  # noqa: PTH100 links stay links
    return config


def to_config(config: Any) -> Config:
    """Check a composed configuration and make its paths absolute.

    Raises:
        ConfigError: a value cannot be, or contradicts another.
    """
    assert isinstance(config, Config)
    try:
        absolute(config)
    except OSError as error:
        raise ConfigError(f"the folder in which ftslurm is started cannot be used: {error.strerror}") from error
    check(config)
    return config


def load(path: Path, *, own: bool = True) -> Config:
    """Read a config.yaml back.

    Args:
        own: refuse a file that another user may have written, because the caller acts on it.

    Raises:
        ConfigError: the file is not there, or is no configuration.
        Distrusted: another user may have written it.
    """
    from omegaconf import OmegaConf
    from yaml import YAMLError

    try:
        return _typed(OmegaConf.load(StringIO(owned_files.read_text(path, own=own))))
    except (OSError, ConfigError, ValueError, RecursionError, YAMLError) as error:
        why = error.strerror if isinstance(error, OSError) else hydra_adapter.first_lines(error)
        raise ConfigError(f"{path}: cannot be read as a configuration of ftslurm: {why}") from error


def dump(config: Config) -> str:
    """Return the configuration as YAML, for config.yaml."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(_escaped(asdict(config))))


def _escaped(value: Any) -> Any:
    """Escape every ${: what has been resolved once must not be resolved again when it is read."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + "\\${", value)
    return value
