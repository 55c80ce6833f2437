"""Turn presets and overrides, or a config.yaml, into a checked Config."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

from ftslurm.config import hydra_adapter, overrides, sweep_names
from ftslurm.config.hydra_adapter import Arguments, Composed, Override, Sweep, Value
from ftslurm.config.schema import Config, absolute
from ftslurm.config.validate import check
from ftslurm.errors import ConfigError
from ftslurm.security import owned_files


class Evaluation(Protocol):
    """What runs the runs of a sweep whose sweeper wants their values (hydra/sweeper=optuna)."""

    def values(self, configs: Sequence[Config]) -> Sequence[Value]:
        """Run some, and return what each script has reported."""

    def conclude(self, best: str) -> None:
        """End the sweep; `best` is what the sweeper says of its runs, "" if nothing."""


def run_hydra(argv: Sequence[str], task: Callable[[Config], int], evaluation: Evaluation | None = None) -> int:
    """Run `task` on the configuration that Hydra composes from `argv`; with -m on each combination, in turn.

    --help, --cfg job, --info, --config-dir, -m and the rest are Hydra's and work as in every Hydra application. All
    combinations are composed and checked before the first task runs, unless a sweeper chooses them by the values of
    those before: `evaluation` runs these.

    Returns:
        The highest exit code of the tasks; 0 if Hydra only printed something. After Ctrl-C (130) no further task runs.

    Raises:
        ConfigError: unknown key or preset, wrong type, a value that contradicts another.
        FtslurmError: what the task raised; no further combination of a sweep is run then.
    """
    codes = [0]
    for config in [to_config(raw) for raw in compose(argv, evaluation=evaluation)]:
        codes.append(task(config))
        if codes[-1] == 130:
            break
    return max(codes)


def compose(argv: Sequence[str], base: Config | None = None, evaluation: Evaluation | None = None) -> list[Config]:
    """Compose the configuration of every combination, with checked types; none if Hydra only printed something.

    Args:
        base: the configuration that the overrides change, as that of an earlier run; a preset replaces its section.
        evaluation: runs what a sweeper wants to know the value of.

    Raises:
        ConfigError: unknown key or preset, or wrong type.
    """
    arguments = hydra_adapter.split(argv)
    overrides.check_option(arguments.unknown, arguments.known)
    parsed = [hydra_adapter.parse(word) for word in arguments.overrides]
    words = overrides.check_overrides(parsed, arguments)
    defaults = asdict(Config())
    del defaults[overrides.INTERNAL]
    if base is not None:
        presets = [one.key for one, word in zip(parsed, words, strict=True) if word == one.word]  # settings have a ++
        defaults |= {name: value for name, value in _mapping(base).items() if name not in presets}
    sweep = _sweep(parsed, words, arguments, evaluation)
    try:
        composed, best = hydra_adapter.compose([*words, *arguments.options], defaults, sweep, presets=base is None)
    except ConfigError as error:
        given = " ".join(" ".join(arguments.overrides).split())  # one line, whatever a value holds
        raise ConfigError(f"{error} (given: {given})".replace(" ++", " ")) from error
    if evaluation is not None and sweep.used:
        evaluation.conclude(best)
    names = sweep_names.suffixes([given for _, given in composed]) if arguments.multirun else [""] * len(composed)
    return [_typed(raw, name) for (raw, _), name in zip(composed, names, strict=True)]


def _sweep(
    parsed: Sequence[Override], words: Sequence[str], arguments: Arguments, evaluation: Evaluation | None
) -> Sweep:
    """Describe the sweep that may follow to Hydra's side of it."""
    own = [word for one, word in zip(parsed, words, strict=True) if one.key.startswith(("hydra.", "hydra/"))]
    fixed = [word for one, word in zip(parsed, words, strict=True) if not one.sweeps and word not in own]

    def checked(word: str) -> str:
        return overrides.check_overrides([hydra_adapter.parse(word)], arguments)[0]

    def evaluate(composed: Sequence[Composed], first: int) -> Sequence[Value]:
        names = [sweep_names.of_trial(first + number, given, fixed) for number, (_, given) in enumerate(composed)]
        configs = [to_config(_typed(raw, name)) for (raw, _), name in zip(composed, names, strict=True)]
        assert evaluation is not None
        with hydra_adapter.outside():
            return evaluation.values(configs)

    return Sweep(checked, fixed, None if evaluation is None else evaluate)


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
        # Checked with references resolved, converted as it is: what has been resolved must not be resolved again.
        if suffix:
            raw.run.name = sweep_names.joined(raw.run.name, suffix)
        overrides.check_value(Config, OmegaConf.to_container(raw, resolve=True))
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), raw))
    except (OmegaConfBaseException, ValueError, TypeError, AttributeError, AssertionError) as error:
        raise ConfigError(hydra_adapter.first_lines(error)) from error
    assert isinstance(config, Config)
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
    except OSError as error:
        raise ConfigError(f"{path} cannot be read as a configuration of ftslurm: {error.strerror}") from error
    except (ConfigError, ValueError, RecursionError, YAMLError) as error:
        raise ConfigError(
            f"{path}: cannot be read as a configuration of ftslurm: {hydra_adapter.first_lines(error)}"
        ) from error


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
