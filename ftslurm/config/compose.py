"""Turn presets and overrides, or a config.yaml, into a checked Config."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

from ftslurm.config import hydra_adapter, merging, notation, site, sweep_names
from ftslurm.config.notation import Override
from ftslurm.config.schema import Config, Internal, shipped
from ftslurm.config.setting_names import INTERNAL, no_setting, paths
from ftslurm.config.store_url import is_url, plain
from ftslurm.config.typed_values import made
from ftslurm.config.validate import check
from ftslurm.errors import ConfigError
from ftslurm.security import owned_files, programs


def compose(words: Sequence[str], base: Config | None = None, *, config_dir: str | None = None) -> Config:
    """Compose the configuration of one run, with checked types.

    Args:
        base: the configuration that the overrides change, as that of an earlier run; a preset replaces its section.
        config_dir: a folder with presets of the user's own.

    Raises:
        ConfigError: unknown key or preset, or wrong type.
    """
    folders = _folders(config_dir)
    given = [notation.parse(word, folders) for word in words]
    for one in given:
        notation.check_single(one)
    (tree,) = _trees(words, [given], base, folders)
    return _typed(tree)


def sweep(words: Sequence[str], *, config_dir: str | None = None) -> list[Config]:
    """Compose the configuration of every combination of values, as `compose` does that of one run."""
    folders = _folders(config_dir)
    choices = [notation.alternatives(notation.parse(word, folders)) for word in words]
    combinations = list(product(*choices))
    if not combinations:
        raise ConfigError(f"{' '.join(words)}: there is no combination of these values, so nothing would run")
    runs: list[Config] = []
    for given, tree in zip(combinations, _trees(words, combinations, None, folders), strict=True):
        suffix = sweep_names.suffix([one for one, values in zip(given, choices, strict=True) if len(values) > 1])
        run = _typed(tree, suffix)
        if run.run.name in [other.run.name for other in runs]:
            run = _typed(tree, f"{len(runs)}-{suffix}")
        runs.append(run)
    _check_apart(runs)
    return runs


def _folders(config_dir: str | None) -> list[Path]:
    """Return the folders of presets."""
    folders = [shipped("conf"), *([] if config_dir is None else [Path(config_dir).absolute()])]
    if not os.path.isdir(folders[-1]):
        raise ConfigError(f"--config-dir {config_dir}: there is no such folder")
    return folders


def _trees(
    words: Sequence[str], combinations: Sequence[Sequence[Override]], base: Config | None, folders: Sequence[Path]
) -> list[dict[str, Any]]:
    """Compose presets and settings, which are not resolved yet, for each combination of overrides."""
    defaults = asdict(Config()) if base is None else _mapping(base)
    internal = defaults.pop(INTERNAL)
    site.read().put(defaults, resumed=base is not None)
    if base is not None:
        presets = [one.key for one in combinations[0] if not one.kinds]
        defaults = {name: value for name, value in defaults.items() if name not in presets}
    trees = []
    with hydra_adapter.opened(defaults, "config" if base is None else "resumed", folders, words) as presets_of:
        for given in combinations:
            tree = presets_of(*(one.word for one in given if not one.kinds))
            if INTERNAL in tree:
                raise no_setting(INTERNAL)
            for one in given:
                tree = merging.put(tree, one) if one.kinds else tree
            trees.append({**tree, INTERNAL: internal})
    return trees


def _check_apart(runs: Sequence[Config]) -> None:
    """Refuse runs of a sweep that share a folder.

    Raises:
        ConfigError: two do.
    """
    for key in ("run.dir", "checkpoint.dir"):
        found = [one for one in map(attrgetter(key), runs) if one is not None]
        if len({os.path.realpath(os.path.expanduser(one)) for one in found}) < len(found):
            raise ConfigError(
                f"{key}={found[-1]}: runs of this sweep would share it; give each a folder of its own, as in "
                f"'{key}={found[-1]}/${{run.name}}'"
            )


def _mapping(base: Config) -> dict[str, Any]:
    """Return a configuration as a mapping for Hydra; job.total_steps follows job.args.steps if the two are equal."""
    found: dict[str, Any] = _escaped(asdict(base))
    args, total = found["job"]["args"], found["job"]["total_steps"]
    if isinstance(args, dict) and args.get("steps") == str(total):
        found["job"]["total_steps"] = "${job.args.steps}"
    return found


def _typed(tree: Any, suffix: str = "") -> Config:
    """Convert what has been read and merged into a Config.

    Args:
        suffix: what to add to the name of the run.

    Raises:
        ConfigError: a key does not exist, or a value has the wrong type.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import GrammarParseError, InterpolationResolutionError, OmegaConfBaseException

    try:
        raw = OmegaConf.create(tree)
        if suffix:
            raw.run.name = sweep_names.joined(raw.run.name, suffix)
        values = OmegaConf.to_container(raw, resolve=True)
    except (OmegaConfBaseException, ValueError, TypeError, AttributeError, AssertionError, RecursionError) as error:
        refers = isinstance(error, (GrammarParseError, InterpolationResolutionError))
        hint = "; ${...} is the value of another setting: write \\${...} for the text" if refers else ""
        raise ConfigError(hydra_adapter.first_lines(error) + hint) from error
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
    from yaml import YAMLError

    try:
        tree = hydra_adapter.read_yaml(owned_files.read_text(path, own=own)) or {}
        return _typed(tree if isinstance(tree, dict) else [tree])
    except (OSError, ConfigError, ValueError, RecursionError, YAMLError) as error:
        why = error.strerror if isinstance(error, OSError) else hydra_adapter.first_lines(error)
        if path.with_name("provenance.json").is_file() and not path.with_name(programs.COPY).is_file():
            why = f"{why}; the run's copy of ftslurm is gone: install the version that provenance.json names there"
        raise ConfigError(f"{path}: cannot be read as a configuration of ftslurm: {why}") from error


def dump(config: Config) -> str:
    """Return the configuration as YAML, for config.yaml; and a preset, if the program has noted nothing in it."""
    import yaml
    from omegaconf._utils import get_omega_conf_dumper

    found = _escaped(asdict(config))
    if config.internal == Internal():
        del found[INTERNAL]

    def text(plain: bool) -> str:
        how = {"default_flow_style": False, "sort_keys": False, "allow_unicode": plain}
        return str(yaml.dump(found, Dumper=get_omega_conf_dumper(), **how))

    return "# @package _global_\n" + text(
        not set("\x85\u2028\u2029") & set(text(plain=True))
    )  # PyYAML would read others


def _escaped(value: Any) -> Any:
    """Escape every ${: what has been resolved once must not be resolved again when it is read."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return notation.without_references(value) if isinstance(value, str) else value
