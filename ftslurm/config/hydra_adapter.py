"""Compose presets and overrides with Hydra.

Only this module and config/sweep_launcher.py use Hydra, and this one two private functions of it: the parser of its
command line, to tell options from overrides before Hydra sees them, and the conversion of an override's value.
pyproject.toml bounds Hydra's version to those with which both were tried (docs/versions.md).

Hydra composes plain mappings: it knows neither our keys nor our types, which config/overrides.py checks before and
after. `hydra.main` is used rather than `hydra.compose`, because --help, --cfg, --info and -m are its own.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from ftslurm.config import option_names
from ftslurm.config.schema import shipped
from ftslurm.errors import ConfigError, FtslurmError

_BY_ACCIDENT = (AttributeError, TypeError, KeyError, ImportError)  # Hydra and plugins, of what they cannot understand
BASIC = "basic"  # Hydra's own launcher, and its own sweeper
_ALONE = threading.RLock()  # Hydra's state and sys.argv belong to the whole process


@dataclass(frozen=True)
class Arguments:
    """A command line of Hydra's."""

    options: list[str]  # with their values
    overrides: list[str]
    unknown: str | None  # an option that Hydra does not have, or that may be several of its options
    known: list[str]  # the names of Hydra's options
    config_dir: str | None
    multirun: bool
    own_config: bool  # the presets come from elsewhere (--config-path, --config-name), or no run is meant


@dataclass(frozen=True)
class Override:
    """One override, as `groups.count=3`, `+job.args.lr=0.1` or `~faults`."""

    word: str  # as it was given
    key: str
    text: str  # what follows the "="
    values: tuple[Any, ...]  # one, several in a sweep, none if it deletes the key or if they are not known yet
    deletes: bool = False
    sweeps: bool = False  # stands for several values, as 1,2 or interval(0,1)


Composed: TypeAlias = tuple[Any, list[str]]  # a configuration of OmegaConf, not resolved, with its overrides
# What a script has reported: one number, one for each objective, or why there is none.
Value: TypeAlias = "float | list[float] | FtslurmError"


@dataclass
class Sweep:
    """How the runs that a sweeper asks for become runs of ftslurm (config/sweep_launcher.py)."""

    word: Callable[[str], str]  # makes an override that a sweeper has chosen one that Hydra takes
    fixed: Sequence[str]  # overrides with one value; a sweeper need not write them back as they were
    evaluate: Callable[[Sequence[Composed], int], Sequence[Value]] | None  # runs some, the first with this number
    used: bool = False  # a sweeper has asked for values


def split(words: Sequence[str]) -> Arguments:
    """Tell Hydra's options from overrides.

    Raises:
        ConfigError: an option lacks its value, or has a wrong one.
    """
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    parser.prog = "ftslurm"
    vars(parser)["error"] = _refuse  # argparse's prints all of the usage
    names = list(parser._option_string_actions)
    if unclear := option_names.unclear(words, names):
        return Arguments([], [], unclear, names, config_dir=None, multirun=False, own_config=False)
    known, rest = parser.parse_known_args(words)
    options, overrides = list(words), [*known.overrides, *rest]
    for word in overrides:
        options.remove(word)
    return Arguments(
        options,
        overrides,
        unknown=next((word for word in rest if word.startswith("-")), None),
        known=names,
        config_dir=known.config_dir,
        multirun=known.multirun,
        own_config=bool(known.config_path or known.config_name or known.shell_completion or known.experimental_rerun),
    )


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{message.removeprefix('argument ')} (ftslurm run --help has the options)")


def parse(word: str) -> Override:
    """Parse one override.

    Raises:
        ConfigError: it is not in Hydra's notation.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Override as Parsed
    from hydra.core.override_parser.types import ValueType
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(word)
    except HydraException:
        parsed = None
    if parsed is None or not parsed.key_or_group:
        raise ConfigError(
            f"{word!r} is not in Hydra's notation: it wants key=value, and quotes around a value with spaces "
            f"or signs such as ~ ( [ {{ , as in 'job.args.note=\"two words\"'"
        )
    values: list[Any] = []
    if parsed.is_delete() or parsed.value_type in (ValueType.GLOB_CHOICE_SWEEP, ValueType.INTERVAL_SWEEP):
        pass
    elif parsed.is_sweep_override():
        values = [Parsed._convert_value(value) for value in parsed.sweep_iterator()]
    else:
        values = [parsed.value()]
    text, sweeps = word.partition("=")[2], parsed.is_sweep_override()
    return Override(word, parsed.key_or_group, text, tuple(values), parsed.is_delete(), sweeps)


def check_launcher(name: object) -> None:
    """Refuse a launcher of Hydra's: it would run ftslurm in a job, and ftslurm submits jobs.

    Raises:
        ConfigError: it is not the basic one.
    """
    if name not in (BASIC, None):
        raise ConfigError(
            f"hydra/launcher={name}: ftslurm submits each run itself, to Slurm where there is one; leave the launcher "
            f"out. With -m it makes a run of each combination, and what a launcher would ask of Slurm are settings "
            f"here: cluster.partition, cluster.time, groups.nodes, groups.gpus, ... (ftslurm help scripts)"
        )


def compose(
    words: Sequence[str], defaults: Mapping[str, Any], sweep: Sweep, presets: bool = True
) -> tuple[list[Composed], str]:
    """Compose the configuration of every combination; none if Hydra only printed something, or the sweep has run them.

    Args:
        words: overrides first, then options: Hydra's parser refuses overrides on both sides of an option.
        defaults: the configuration without presets and overrides.
        presets: apply the presets of conf/config.yaml; else only those that `words` choose.

    Returns:
        Configurations of OmegaConf, not resolved, each with its overrides; and what a sweeper says of its best runs.

    Raises:
        ConfigError: Hydra refuses it.
        FtslurmError: what the sweep raised.
    """
    import hydra
    from hydra.core.config_store import ConfigStore
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import ConfigTypeError, OmegaConfBaseException
    from yaml import YAMLError

    from ftslurm.config import sweep_launcher

    composed: list[Composed] = []

    def keep(config: Any) -> None:
        check_launcher(HydraConfig.get().runtime.choices.get("hydra/launcher"))
        given = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
        composed.append((config, [str(word) for word in given or []]))

    start = hydra.main(version_base="1.3", config_path=str(shipped("conf")), config_name=_primary(presets))
    run = start(keep)
    try:
        with (
            _ALONE,
            _hydra_of_the_caller_kept(),
            # A sweep writes a multirun.yaml somewhere, and `plan` must leave nothing behind.
            tempfile.TemporaryDirectory(prefix="ftslurm-") as scratch,
            _command_line(["ftslurm", f"hydra.sweep.dir='{scratch}'", *words]),
        ):
            ConfigStore.instance().store(name="schema", node=dict(defaults))
            ConfigStore.instance().store(name=_primary(presets=False), node=_without_presets(defaults))
            with sweep_launcher.in_place(sweep, composed):
                run()
            return composed, sweep_launcher.results(scratch)
    except BrokenPipeError:
        raise  # `--help | head`: nothing is wrong with the configuration
    except (HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError, *_BY_ACCIDENT) as error:
        if isinstance(error, _BY_ACCIDENT) and sweep.used:
            raise  # it may be our own
        if isinstance(error.__cause__, ConfigTypeError):  # only in what has no type: job.args
            key, is_mapping = error.__cause__.full_key, error.__cause__.object_type is dict
            how = f"mapping in this job: set its arguments one by one, as in {key}.lr=0.1"
            raise ConfigError(f"{key} is a {how if is_mapping else 'list in this job: give a list'}") from error
        if name := re.search(r"(?:base 10: |Index )'(.+?)'", str(error)):  # there, too: it wants the index of a list
            one = next(word for word in words if f".{name[1]}" in word)
            lists = [word for word in words if one.startswith(f"{word.partition('=')[0]}.")] or ["the job's own list"]
            raise ConfigError(f"{one} contradicts {lists[-1]}: a list has no {name[1]}".replace("++", "")) from error
        causes = [error] if error.__cause__ is None else [error, error.__cause__]
        raise ConfigError(": ".join(filter(None, map(first_lines, causes)))) from error


def _primary(presets: bool) -> str:
    return "config" if presets else "config_without_presets"


def _without_presets(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return conf/config.yaml without its presets: each section may still be given one."""
    logging = [{f"override hydra/{name}": "none"} for name in ("job_logging", "hydra_logging")]
    sections: list[Any] = [{name: None} for name in defaults if (shipped("conf") / name).is_dir() and name != "job"]
    quiet = {"output_subdir": None, "run": {"dir": "."}, "job": {"chdir": False}}
    return {"defaults": ["schema", *sections, {"job": None}, "_self_", *logging], "hydra": quiet}


@contextmanager
def _hydra_of_the_caller_kept() -> Iterator[None]:
    """Put Hydra's global state away: the caller may be an application of Hydra, or a notebook that uses it."""
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig

    application, settings, store = GlobalHydra.instance(), HydraConfig.instance(), ConfigStore.instance()
    before = application.hydra, settings.cfg, dict(store.repo)
    application.clear()
    try:
        yield
    finally:
        application.hydra, settings.cfg, store.repo = before


@contextmanager
def outside() -> Iterator[None]:
    """Undo for a while what Hydra needs: processes that are started inherit the environment."""
    kept = os.environ.pop("HYDRA_FULL_ERROR", None)
    try:
        yield
    finally:
        if kept is not None:
            os.environ["HYDRA_FULL_ERROR"] = kept


@contextmanager
def _command_line(argv: list[str]) -> Iterator[None]:
    """Set sys.argv; make Hydra raise its errors instead of printing them, and silence its deprecation warnings."""
    argv_before, full_error_before = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = argv, "1"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=DeprecationWarning)
            yield
    finally:
        sys.argv = argv_before
        if full_error_before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error_before


def first_lines(error: BaseException) -> str:
    """Return an error's message on one line, without OmegaConf's indented internals."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("full_key:", "object_type=", "reference_type="))]
    return " ".join(kept[:4])
