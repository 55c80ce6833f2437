"""Read and check the settings of those who are told about a run: hooks, callbacks and the outputs of metrics."""

from __future__ import annotations

import os
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path, PurePath

from ftslurm.config import node_commands
from ftslurm.config.schema import Config, HookConfig, words
from ftslurm.errors import ConfigError
from ftslurm.protocol.kinds import DEFAULT_EVENTS, EVENTS, KINDS
from ftslurm.protocol.value_class import Value
from ftslurm.security import programs
from ftslurm.words import meant, nearest

_LOOPBACK = "must be HOST:PORT with a host of loopback, as 127.0.0.1:9400, or unix:PATH"
_LONGEST_SOCKET = 107  # bytes of a Unix socket's path


class Hook(Value):
    """A command that is told of events."""

    name: str  # hook, and that of the program; the second of two has -2. Or callback, and the class
    command: tuple[str, ...]
    events: frozenset[str]
    stream: bool  # one process gets a line for each event and answers it with one, empty if all is well


def needed(config: Config) -> bool:
    """Return whether the run has an observer: somebody is to be told about it."""
    return bool(config.hooks.on_event or config.hooks.callbacks or config.metrics.textfile or config.metrics.listen)


def _entries(config: Config) -> Iterator[HookConfig]:
    return (one if isinstance(one, HookConfig) else HookConfig(one) for one in config.hooks.on_event)


def hooks(config: Config) -> list[Hook]:
    """Return the hooks, and after them the callbacks, which are hooks that stream."""
    found: list[Hook] = []
    for entry in _entries(config):
        command = node_commands.absolute(words(entry.command))
        name = f"hook {PurePath(command[0]).name or command[0]}"
        same = sum(hook.name.startswith(name) for hook in found)
        name = f"{name}-{same + 1}" if same else name
        found.append(Hook(name, command, frozenset(entry.events or DEFAULT_EVENTS), entry.stream))
    return found + [callback(config, name) for name in config.hooks.callbacks]


def callback(config: Config, name: str) -> Hook:
    """Return the hook of a callback class. Its module is looked for beside the script, and here."""
    folders = [str(Path(config.job.script).absolute().parent)] if config.job.script is not None else []
    command = programs.module("ftslurm.observer.callback_process", name, *folders, str(Path.cwd()))
    return Hook(f"callback {name}", tuple(command), frozenset(KINDS), stream=True)


def check_receivers(config: Config) -> Iterator[str]:
    """Yield why hooks, callbacks and outputs of metrics cannot work."""
    for entry in _entries(config):
        # What cluster.setup loads is not there yet.
        yield from node_commands.wrong("hooks.on_event", words(entry.command), runs_here=not config.cluster.setup)
        for event in entry.events:
            if event not in EVENTS:
                near = nearest(event, EVENTS)
                hint = meant(near) if near else "the page running has the list (ftslurm help running)"
                yield f"hooks.on_event: {event!r} is no event; {hint}"
    for name in config.hooks.callbacks:
        if not all(part.isidentifier() for part in name.split(".")) or "." not in name:
            yield f"hooks.callbacks: {name!r} is no class; write module.Class, as my_package.MyCallback"
    textfile, listen = config.metrics.textfile, config.metrics.listen
    if textfile is not None and not textfile.endswith(".prom"):
        yield f"metrics.textfile={textfile}: must end in .prom, or node_exporter does not read it"
    if listen is not None:
        endpoint(listen)


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
