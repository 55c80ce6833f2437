"""Read and check the settings of those who are told about a run: hooks, callbacks and the outputs of metrics."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path, PurePath
from typing import Any

from ftslurm.config.node_commands import absolute, check_program, words_of
from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError
from ftslurm.protocol.occurrences import DEFAULT_EVENTS, EVENTS
from ftslurm.words import meant, nearest

_HOOK = "'hooks.on_event=[[./notify.sh, --chat]]'"
_LONGEST_SOCKET = 107  # bytes of a Unix socket's path
_LOOPBACK = "must be HOST:PORT with a host of loopback, as 127.0.0.1:9400, or unix:PATH"


@dataclass(frozen=True)
class Hook:
    """A command that is told of events."""

    name: str  # of the program; the second of two has -2
    command: tuple[str, ...]
    events: frozenset[str]


def needed(config: Config) -> bool:
    """Return whether the run has an observer: somebody is to be told about it."""
    return bool(config.hooks.on_event or config.hooks.callbacks or config.metrics.textfile or config.metrics.listen)


def hooks(config: Config) -> list[Hook]:
    """Return the hooks.

    Raises:
        ConfigError: an entry is no hook.
    """
    found: list[Hook] = []
    for entry in config.hooks.on_event:
        command, events = _entry(entry)
        base = PurePath(command[0]).name or command[0]
        same = sum(hook.name == base or hook.name.startswith(f"{base}-") for hook in found)
        found.append(Hook(f"{base}-{same + 1}" if same else base, command, frozenset(events)))
    return found


def _entry(entry: Any) -> tuple[tuple[str, ...], list[str]]:
    command, events = entry, list(DEFAULT_EVENTS)
    if isinstance(entry, dict):
        command, events = entry.get("command"), entry.get("events", events)
        if unknown := entry.keys() - {"command", "events"}:
            raise ConfigError(f"hooks.on_event: {sorted(unknown)[0]!r}: a hook has command and events only")
    return absolute(words_of(command, _HOOK)), _checked(events)


def _checked(events: Any) -> list[str]:
    if not isinstance(events, list) or not events:
        raise ConfigError("hooks.on_event: `events` must be a list of events, as [group_failed, run_finished]")
    for event in events:
        if event not in EVENTS:
            near = nearest(str(event), EVENTS)
            hint = meant(near) if near else "the page running has the list (ftslurm help running)"
            raise ConfigError(f"hooks.on_event: {event!r} is no event; {hint}")
    return events


def check_receivers(config: Config) -> None:
    """Refuse hooks, callbacks and outputs of metrics that cannot work.

    Raises:
        ConfigError: the message names the setting.
    """
    for hook in hooks(config):
        # What cluster.setup loads is not there yet.
        if not config.cluster.setup:
            check_program(hook.command, _HOOK)
    for name in config.hooks.callbacks:
        if not all(part.isidentifier() for part in name.split(".")) or "." not in name:
            raise ConfigError(f"hooks.callbacks: {name!r} is no class; write module.Class, as my_package.MyCallback")
    textfile = config.metrics.textfile
    if textfile is not None and not textfile.endswith(".prom"):
        raise ConfigError(f"metrics.textfile={textfile}: must end in .prom, or node_exporter does not read it")
    if config.metrics.listen is not None:
        endpoint(config.metrics.listen)


def endpoint(listen: str) -> tuple[str, int] | str:
    """Return host and port, or the path of a Unix socket; empty: one in the run directory.

    Raises:
        ConfigError: it is neither.
    """
    if listen.startswith("unix:"):
        path = listen.removeprefix("unix:")
        if len(os.fsencode(path)) > _LONGEST_SOCKET or (path and not path.startswith("/")):
            raise ConfigError(f"metrics.listen={listen}: an absolute path of at most {_LONGEST_SOCKET} bytes")
        return path
    host, _, port = listen.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.strip("[]")
    try:
        loopback = ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"metrics.listen={listen}: {_LOOPBACK}")
    return host, int(port)


def folders_of_imports(config: Config) -> Iterator[str]:
    """Yield the folders in which the modules of callbacks are looked for, beside PYTHONPATH."""
    if config.job.script is not None:
        yield str(Path(config.job.script).absolute().parent)
    yield str(Path.cwd())
