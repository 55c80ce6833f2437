"""From conf/, presets and overrides to a checked Config: Hydra's side of ftslurm."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from ftslurm.config.schema import Config, absolute, shipped
from ftslurm.config.validate import check
from ftslurm.errors import ConfigError
from ftslurm.security import owned_files

# Mappings whose keys are the user's own, one by one or all at once.
FREE = tuple(
    name + mark
    for name in ("job.args", "job.env", "cluster.sbatch", "cluster.controller_sbatch")
    for mark in (".", "=")
)


def load(path: Path, *, own: bool = True) -> Config:
    """Read a config.yaml back.

    Args:
        own: it is acted on, so nobody but us can have written it; else it may be anybody's.

    Raises:
        ConfigError: the file is not there, is no configuration, or may be somebody else's work.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        text = owned_files.read_text(path, own=own)
        merged = OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.load(StringIO(text)))
        config = OmegaConf.to_object(merged)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read as a configuration of ftslurm: {error.strerror}") from error
    except (
        OmegaConfBaseException,
        ValueError,
        TypeError,
        AttributeError,
        AssertionError,
        RecursionError,
        YAMLError,
    ) as error:
        raise ConfigError(f"{path}: cannot be read as a configuration of ftslurm: {_first_lines(error)}") from error
    assert isinstance(config, Config)
    return config


def dump(config: Config) -> str:
    """The configuration as YAML, for config.yaml."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(_escaped(asdict(config))))


def _escaped(value: Any) -> Any:
    """The same with every ${ escaped: what has been resolved once must not be resolved again when it is read."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + "\\${", value)
    return value


def free_keys(overrides: Sequence[str]) -> list[str]:
    """Let job.args.lr=0.1 and job.env.NAME=x add a key, which Hydra would want written as ++job.args.lr=0.1."""
    return [f"++{word}" if word.startswith(FREE) and "=" in word else word for word in overrides]


def run_hydra(argv: Sequence[str], task: Callable[[Config], int]) -> int:
    """Run `task` on the configuration that Hydra makes of `argv`; with -m on each of them, in turn.

    --help, --cfg job, --info, --config-dir, -m and the rest are Hydra's and work as in every Hydra application. All
    combinations are composed and checked before the first task runs.

    Returns:
        The highest of the tasks' return values; 0 if Hydra only printed something. After a Ctrl-C (130) no more run.

    Raises:
        ConfigError: unknown key or preset, wrong type, a value that contradicts another.
        FtslurmError: what the task raised; no further combination of a sweep is run then.
    """
    codes = [0]
    for config in [to_config(raw) for raw in _compose(argv)]:
        codes.append(task(config))
        if codes[-1] == 130:
            break
    return max(codes)


def _compose(argv: Sequence[str]) -> list[Any]:
    """The configuration of every combination; none if Hydra only printed something."""
    import os
    import sys
    import tempfile

    import hydra
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    ConfigStore.instance().store(name="schema", node=Config)
    composed: list[DictConfig] = []
    before = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise, instead of printing and leaving with 1
    try:
        with _silent_deprecations(), tempfile.TemporaryDirectory(prefix="ftslurm-") as scratch:
            # A sweep writes a multirun.yaml somewhere, and `plan` must leave nothing behind.
            sys.argv = ["ftslurm", *options_last([f"hydra.sweep.dir='{scratch}'", *free_keys(argv)])]
            hydra.main(version_base="1.3", config_path=str(shipped("conf")), config_name="config")(composed.append)()
        # Merged into the schema once more, because +key=value adds keys that are none of ours.
        schema = OmegaConf.structured(Config)
        return [OmegaConf.to_object(OmegaConf.merge(schema, OmegaConf.to_container(raw))) for raw in composed]
    except BrokenPipeError:
        raise  # `--help | head`: nothing is wrong with the configuration
    except (HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError) as error:
        raise ConfigError(explain(error, argv)) from error
    finally:
        sys.argv = before[0]
        if before[1] is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)


def options_last(words: Sequence[str]) -> list[str]:
    """The same words, Hydra's options after the overrides: its parser refuses overrides on both sides of an option."""
    from hydra._internal.utils import get_args_parser  # the very parser that hydra.main will use

    parser = get_args_parser()
    parser.prog = "ftslurm"
    known, others = parser.parse_known_args(words)
    if unknown := next((word for word in others if word.startswith("-")), None):
        raise ConfigError(
            f"there is no option {unknown.partition('=')[0]}; settings are written key=value, {_near(unknown)}"
        )
    options, overrides = list(words), [*known.overrides, *others]
    for word in overrides:
        options.remove(word)
    return [*overrides, *options]


@contextmanager
def _silent_deprecations() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=DeprecationWarning)
        yield


def to_config(config: Any) -> Config:
    """Check a composed configuration and make its paths absolute.

    Raises:
        ConfigError: it makes no sense.
    """
    assert isinstance(config, Config)
    try:
        absolute(config)
    except OSError as error:
        raise ConfigError(f"the folder in which ftslurm is started cannot be used: {error.strerror}") from error
    check(config)
    return config


def explain(error: Exception, overrides: Sequence[str]) -> str:
    """Hydra's complaint as one paragraph that names the key and the nearest one that exists."""
    from hydra.errors import OverrideParseException

    if isinstance(error, OverrideParseException):
        given = (error.override or "").removeprefix("++")
        return (
            f"{given!r} is not in Hydra's notation: it wants key=value, and quotes around a value with spaces "
            f"or signs such as ~ ( [ {{ , as in 'job.args.note=\"two words\"'"
        )
    text, whole = _first_lines(error), f"{error}\n{error.__cause__}"
    if wrong := _wrong_value(whole, overrides):
        return wrong
    if unknown := re.search(r"Key '([^']+)' (?:is not in struct|not in '\w+')|Could not override '([^']+)'", whole):
        full = re.search(r"full_key: (\S+)", whole)
        key = max(unknown[1] or "", unknown[2] or "", full[1] if full else "", key=len)
        close = _close(key)
        if close == key.split("[")[0]:  # the key is right, something inside it is not
            return f"{key}: {text}; what it may hold is in ftslurm/config/schema.py"
        hint = f"did you mean {close}?" if close else f"near it there are {key_like(key)}"
        if not close and "." not in key:  # of no section
            hint = f"if it is an argument of your script, write job.args.{key}; there are {key_like(key)}"
        return f"there is no setting {key}; {hint}"
    if section := re.search(r"Error merging override (\w+=\S*)\s+Invalid type assigned", whole):
        return f"{section[1]}: that is a section of settings: {key_like(section[1].partition('=')[0])}, ..."
    if missing := re.search(r"Could not find '([\w-]+)/([^']+)'", str(error)):
        presets = re.search(r"Available options in '[^']*':\s*((?:\S+\s*)+?)(?:Config search path|$)", str(error))
        found = ", ".join(presets[1].split()) if presets else "see conf/"
        return f"{missing[1]}={missing[2]}: there is no such preset; there are: {found} (your own: --config-dir DIR)"
    if "Cannot merge DictConfig with ListConfig" in f"{error} {error.__cause__}":
        return "job.args is a mapping in this job: set its arguments one by one, as in job.args.lr=0.1"
    if error.__cause__ is not None and str(error.__cause__):
        text += f": {_first_lines(error.__cause__)}"
    given = " ".join(" ".join(overrides).split())  # one line, whatever a value holds
    return f"{text} (given: {given})".replace("++", "")


def _close(key: str) -> str | None:
    """The setting that may be meant, if there is one."""
    names, last = list(keys()), key.rpartition(".")[2]
    if key in names:
        return key
    close = [n for n in names if n.endswith(f".{last}")] or difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    return close[0] if close else None


def _near(option: str) -> str:
    """For somebody who wrote --count=4: how it is to be written."""
    key, _, value = option.lstrip("-").partition("=")
    key = key.replace("-", "_")
    if key not in {name.partition(".")[0] for name in keys()} and (close := _close(key)) is not None:
        return f"without dashes: {close}={value or 'VALUE'}"
    return f"without dashes; there are {key_like(key)}"


_WANTED = {"Float": "a number", "Integer": "a whole number", "Boolean": "true or false"}
_MISSING = re.compile(r"Structured config of type `(\w+)` has missing mandatory value: (\w+)")
_EXAMPLES = {"faults.plan": "'faults.plan=[{kind: kill, group: 1, at: 50}]'"}


def _wrong_value(whole: str, overrides: Sequence[str]) -> str | None:
    """A sentence about a value of the wrong kind, which names its key; None: something else is wrong."""
    if missing := _MISSING.search(whole):
        key = "faults.plan" if missing[1] == "Fault" else missing[1]
        hint = f", as in {_EXAMPLES[key]}" if key in _EXAMPLES else ""
        return f"{key}: `{missing[2]}` is missing{hint}"
    given = dict(word.lstrip("+").split("=", 1) for word in overrides if "=" in word)
    if "Cannot merge DictConfig with ListConfig" in whole or "is not a ListConfig, list or tuple" in whole:
        for key, value in given.items():
            if key in keys(lists=True) and not value.strip().startswith("["):
                like = _EXAMPLES.get(key, f"'{key}=[{value}]'")
                return f"{key}={value}: must be a list, in square brackets: {like}"
    merging = re.search(r"Error merging override \+*([\w.]+)=", whole)
    found = re.search(r"Value '(.*)' of type '\w+' could not be converted to (\w+)", whole)
    if merging is None or found is None or found[2] not in _WANTED:
        return None
    key, value, wanted = merging[1], found[1], _WANTED[found[2]]
    return f"{key}={value}: must be {wanted}" if given.get(key) == value else f"{key}: {value!r} must be {wanted}"


def _first_lines(error: BaseException) -> str:
    """What Hydra says without its indented internals."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("full_key:", "object_type=", "reference_type="))]
    return " ".join(kept[:4])


def keys(section: Any = Config, prefix: str = "", lists: bool = False) -> Iterator[str]:
    """Every setting there is, dotted; or only those that are lists."""
    for item in fields(section):
        kind = item.default_factory if is_dataclass(item.default_factory) else None
        if kind is not None:
            yield from keys(kind, f"{prefix}{item.name}.", lists)
        elif not lists or str(item.type).startswith("list["):
            yield f"{prefix}{item.name}"


def key_like(key: str) -> str:
    """A few keys of the same section, for a hint."""
    section = key.split(".")[0]
    same = [name for name in keys() if name.startswith(f"{section}.")]
    return ", ".join(same[:6]) if same else ", ".join(sorted({name.split(".")[0] for name in keys()}))
