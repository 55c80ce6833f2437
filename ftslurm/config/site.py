"""A site's file: defaults and limits of settings for everybody on a cluster, and whom to ask.

It is /etc/ftslurm/site.yaml, or what $FTSLURM_SITE names, and belongs to root or to the owner of the environment:

    defaults: {cluster.partition: gpu}                     # a preset or an override replaces them
    most: {cluster.time: 2-00:00:00, groups.count: 64}
    least: {health.lost_after_s: 10}
    fixed: {cluster.exclude_file: /shared/broken-nodes}
    words: ask hpc@example.org                             # shown where a run is refused
    controller_on_login_nodes: false                       # no cluster.controller=here outside of a job
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from ftslurm.config import hydra_adapter
from ftslurm.config.schema import OWN_OPTIONS, Config, Place, sbatch_options
from ftslurm.config.setting_names import declared, no_setting
from ftslurm.config.typed_values import made, written
from ftslurm.errors import ConfigError
from ftslurm.security import owned_files
from ftslurm.words import listed

VARIABLE, PLACE = "FTSLURM_SITE", "/etc/ftslurm/site.yaml"
SETTINGS, REST = ("defaults", "most", "least", "fixed"), ("words", "controller_on_login_nodes")
NOTHING: Mapping[str, Mapping[str, Any]] = {name: {} for name in SETTINGS}
# Slurm's notation of a time: minutes, minutes:seconds, hours:minutes:seconds, days-hours:minutes:seconds.
_TIME = re.compile(r"(?:(?P<d>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+))?(?::\d+)?|(?:(?P<h>\d+):(?=\d+:))?(?P<m>\d+)(?::\d+)?)")


class Site(NamedTuple):
    """What a site's file says. Without one nothing is set and all is allowed."""

    path: str = ""
    tree: Mapping[str, Mapping[str, Any]] = NOTHING  # as it stands there
    typed: Mapping[str, Mapping[str, Any]] = NOTHING
    words: str = ""
    login: bool = True  # a controller may run outside of a job

    def said(self, key: str = "") -> str:
        """Return what it says of a setting, or of all, for a person; empty: nothing."""
        found = [
            f"{name.removesuffix('s')} {one}={written(value)}"
            for name in SETTINGS
            for one, value in self.typed[name].items()
            if key in ("", one)
        ]
        return f"{self.path}: {', '.join(found)}" if found else ""

    def put(self, tree: dict[str, Any], resumed: bool = False) -> None:
        """Set the defaults in a tree of settings, in place; in that of a resumed run only what is fixed."""
        for key, value in {**({} if resumed else self.tree["defaults"]), **self.tree["fixed"]}.items():
            section, name = key.split(".") if "." in key else (None, key)
            (tree if section is None else tree[section])[name] = value

    def check(self, config: Config) -> None:
        """Refuse a run that the site does not allow.

        Raises:
            ConfigError: the message names the setting, the limit and the file.
        """
        for key, value in self.typed["fixed"].items():
            for have in _values(config, key):
                if have != value:
                    self._refuse(f"{key}={written(have)}: the site has set {written(value)}")
        for name, sign in (("most", 1), ("least", -1)):
            for key, limit in self.typed[name].items():
                for value in _values(config, key):
                    have, allowed = _number(value), _number(limit)
                    if have is not None and allowed is not None and sign * have > sign * allowed:
                        self._refuse(f"{key}={written(value)}: the site allows at {name} {written(limit)}")
        outside = config.cluster.controller == "here" and "SLURM_JOB_ID" not in os.environ
        if outside and not config.local and not self.login:
            self._refuse("cluster.controller=here: the site allows no controller outside of a job")

    def _refuse(self, why: str) -> None:
        raise ConfigError(f"{why} ({self.path}){f'; {self.words}' if self.words else ''}")


def read() -> Site:
    """Return what the site says.

    Raises:
        ConfigError: the file cannot be read or understood, or others can write it.
    """
    named = os.environ.get(VARIABLE)
    return _read(named or PLACE) if named or os.path.exists(PLACE) else Site()


@cache
def _read(path: str) -> Site:
    from yaml import YAMLError

    try:
        with owned_files.open_file(Path(path)) as file:
            found = os.fstat(file.fileno())
            if found.st_uid not in (0, Path(sys.prefix).stat().st_uid) or found.st_mode & 0o022:
                who = "root or the owner of the environment"
                raise ConfigError(f"it must belong to {who}, and nobody else may write it")
            tree = hydra_adapter.read_yaml(file.read().decode(errors="replace")) or {}
        return _site(path, tree)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror} (${VARIABLE})") from error
    except (ConfigError, YAMLError) as error:
        raise ConfigError(f"{path}: {hydra_adapter.first_lines(error)}") from error


def _site(path: str, tree: Any) -> Site:
    known = {one.key: one for one in declared()}
    sections = tree if isinstance(tree, dict) else {"": tree}
    for name, value in sections.items():
        if name not in (*SETTINGS, *REST) or (name in SETTINGS and not isinstance(value, dict)):
            raise ConfigError(f"{name}: there may be {listed(SETTINGS)}, each with settings, and {listed(REST)}")
        for key in value if name in SETTINGS else ():
            if key not in known:
                raise no_setting(f"{key}")
    typed = {
        name: {
            key: made(known[key].kind, value, key, known[key].field.metadata)
            for key, value in sections.get(name, {}).items()
        }
        for name in SETTINGS
    }
    for key, limit in (typed["most"] | typed["least"]).items():
        if _number(limit) is None:
            raise ConfigError(f"{key}={written(limit)}: most and least are numbers, or times; other values are fixed")
    words = made(str, sections.get("words", ""), "words")
    login = made(bool, sections.get("controller_on_login_nodes", True), "controller_on_login_nodes")
    return Site(path, {name: sections.get(name, {}) for name in SETTINGS}, typed, words, login)


def _values(config: Config, key: str) -> list[Any]:
    """Return all values that a setting may take: `scale`, cluster.sbatch and cluster.ranges give others."""
    if key == "groups.count":
        return [config.groups.count, config.groups.max]
    name = key.removeprefix("cluster.")
    places: list[Place] = [config.cluster, *config.cluster.ranges]
    given = [options[name] for place in places if name in (options := sbatch_options(place))]
    return given if given and name in OWN_OPTIONS else [attrgetter(key)(config)]


def _number(value: object) -> float | None:
    """Return a number, or a time in minutes, or None if the value is neither."""
    if str(value).upper() in ("INFINITE", "UNLIMITED"):
        return inf
    if isinstance(value, str) and (time := _TIME.fullmatch(value)):
        part = {name: int(number or 0) for name, number in time.groupdict().items()}
        return 1440 * part["d"] + 60 * (part["dh"] + part["h"]) + part["dm"] + part["m"]
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
