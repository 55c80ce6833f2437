"""Read and check the settings of those who are told about a run: hooks, callbacks and the outputs of metrics."""

from __future__ import annotations

import os
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path, PurePath
from typing import Any

from ftslurm.config.node_commands import absolute, check_program, words_of
from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError
from ftslurm.protocol.kinds import DEFAULT_EVENTS, EVENTS, KINDS
from ftslurm.security import programs
from ftslurm.words import meant, nearest

_HOOK = "'hooks.on_event=[[./notify.sh, --chat]]'"
_LONGEST_SOCKET = 107  # bytes of a Unix socket's path
_LOOPBACK = "must be HOST:PORT with a host of loopback, as 127.0.0.1:9400, or unix:PATH"


@dataclass(frozen=True)
class Hook:
    """A command that is told of events."""

    name: str  # hook, and that of the program; the second of two has -2. Or callback, and the class
    command: tuple[str, ...]
    events: frozenset[str]
    stream: bool  # one process gets a line for each event and answers it with one, empty if all is well


def needed(config: Config) -> bool:
    """Return whether the run has an observer: somebody is to be told about it."""
    return bool(config.hooks.on_event or config.hooks.callbacks or config.metrics.textfile or config.metrics.listen)


def hooks(config: Config) -> list[Hook]:
    """Return the hooks, and after them the callbacks, which are hooks that stream.

    Raises:
        ConfigError: an entry is no hook.
    """
    found: list[Hook] = []
    for entry in config.hooks.on_event:
        given = entry if isinstance(entry, dict) else {"command": entry}
        command = absolute(words_of(given.get("command"), _HOOK))
        base = f"hook {PurePath(command[0]).name or command[0]}"
        same = sum(hook.name == base or hook.name.startswith(f"{base}-") for hook in found)
        name = f"{base}-{same + 1}" if same else base
        found.append(Hook(name, command, *_checked(given)))
    return found + [callback(config, name) for name in config.hooks.callbacks]


def callback(config: Config, name: str) -> Hook:
    """Return the hook of a callback class. Its module is looked for beside the script, and here."""
    folders = [str(Path(config.job.script).absolute().parent)] if config.job.script is not None else []
    command = programs.module("ftslurm.observer.callback_process", name, *folders, str(Path.cwd()))
    return Hook(f"callback {name}", tuple(command), frozenset(KINDS), stream=True)


def _checked(given: dict[Any, Any]) -> tuple[frozenset[str], bool]:
    """Return the events of a hook, and whether it streams."""
    if unknown := given.keys() - {"command", "events", "stream"}:
        raise ConfigError(f"hooks.on_event: {sorted(unknown)[0]!r}: a hook has command, events and stream only")
    events, stream = given.get("events", [*DEFAULT_EVENTS]), given.get("stream", False)
    if not isinstance(events, list) or not events:
        raise ConfigError("hooks.on_event: `events` must be a list of events, as [group_failed, run_finished]")
    if not isinstance(stream, bool):
        raise ConfigError("hooks.on_event: `stream` must be true or false")
    for event in events:
        if event not in EVENTS:
            near = nearest(str(event), EVENTS)
            hint = meant(near) if near else "the page running has the list (ftslurm help running)"
            raise ConfigError(f"hooks.on_event: {event!r} is no event; {hint}")
    return frozenset(events), stream


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
