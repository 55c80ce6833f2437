"""A Lighthouse without a controller (sbatch/lighthouse.sbatch), for groups that are started by other means.

`python -m ftslurm.lighthouse [min_replicas=2] [port=29510] [name=lighthouse] ...`: its address is in NAME.url while it
serves. Its state is in the folder NAME; a Lighthouse that is started again with the same name continues from there.

It lets in any manager with the token, which is part of the address; with open=true any manager, as torchft's own does.
Quorum ids never go back, and while any manager is heard that may have the training's state, no group starts the
training anew (lineage=off: any group may, as with torchft's own).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ftslurm.config.schema import LighthouseConfig
from ftslurm.errors import ConfigError, FtslurmError
from ftslurm.guard.gate import bind
from ftslurm.guard.sockets import raise_file_limit
from ftslurm.lighthouse.endpoint import bind_when_free
from ftslurm.lighthouse.grpc_server import Connection
from ftslurm.lighthouse.output import flush, log
from ftslurm.lighthouse.server import Server, now, open_server, prepare
from ftslurm.lighthouse.token_gate import VARIABLE, Door, token, write_private
from ftslurm.protocol import messages
from ftslurm.security.owned_files import check_own

_DEFAULT = LighthouseConfig()
SETTINGS: dict[str, int] = {
    "min_replicas": 1,  # fewest groups in a quorum
    "port": 0,  # 0: any free one
    "join_timeout_ms": _DEFAULT.join_timeout_ms,
    "heartbeat_timeout_ms": _DEFAULT.heartbeat_timeout_ms,
    "quorum_tick_ms": _DEFAULT.quorum_tick_ms,
    # After so long without a heartbeat of a manager with the state, all of them count as dead, and the next managers
    # may begin anew, for example from an older checkpoint. (In a run of ftslurm the controller decides that.) Managers
    # beat every 100 ms, and a crashed group is silent at once: a network outage of up to this length does not cost the
    # steps since the last checkpoint. It must be well below the 60 s after which torchft's managers give a quorum up.
    "forget_after_ms": 15_000,
}
NOT_PROTECTED = (
    "the token keeps others out of the quorum, but travels in clear text: who can listen on the network can read it",
    "the managers, stores and checkpoint servers of the groups stay as open as torchft makes them",
    "torchft's managers print the address, with the token, into their own log: keep it private, or set RUST_LOG=warn",
)
OPEN = "open=true: any manager that reaches the port is let in, also another user's, and can be taken for the training"
HELP = f"""\
python -m ftslurm.lighthouse [KEY=VALUE ...]: a torchft Lighthouse without a run of ftslurm

  name=NAME       its address is in NAME.url while it serves, what it remembers in the folder NAME (default: lighthouse)
  open=true       no token: any manager that reaches the port is let in, also another user's
  lineage=off     steps are not compared: any group may begin anew at any time, as with torchft's own Lighthouse
{{settings}}

The address has a token: http://TOKEN@host:port, in NAME.url, which only you may read. Give it to torchft's managers as
it is: export TORCHFT_LIGHTHOUSE=$(cat NAME.url). The token is that in the variable {VARIABLE}, else that
in the file NAME/token, else a random one, written there: it stays the same when the Lighthouse is started again.

What it does not protect:
  {NOT_PROTECTED[0]}
  {NOT_PROTECTED[1]}
  {NOT_PROTECTED[2]}

While anybody is heard who was in a quorum of the training, groups with an older state get no quorum: they heal, or
wait. When all of those have been silent for forget_after_ms, who comes may begin anew, from an older checkpoint. Who
was only suspended, or cut off, is refused once somebody has: its group has to be started again, and heals. With
lineage=off nobody waits, and a group at a lower step may carry the training on by itself.
"""


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    name: str = "lighthouse"
    open: bool = False  # without a token
    lineage: bool = True
    settings: Mapping[str, int] = field(default_factory=lambda: dict(SETTINGS))


def read(words: Sequence[str]) -> Options:
    """Parse a command line of KEY=VALUE words.

    Raises:
        ConfigError: the message names the wrong word and the known keys.
    """
    name, is_open, lineage, settings = "lighthouse", False, True, dict(SETTINGS)
    for word in words:
        key, equals, value = word.partition("=")
        if key == "name" and value:
            name = value
        elif key == "open" and value in ("true", "false"):
            is_open = value == "true"
        elif key == "lineage" and value in ("on", "off"):
            lineage = value == "on"
        elif key == "token":
            raise ConfigError(
                f"a token in a command line can be read by all users: put it into the variable {VARIABLE}"
            )
        elif not equals or key not in settings:
            known = ", ".join(f"{k}=N" for k in settings)
            raise ConfigError(f"{word!r}: there are name=NAME, open=true, lineage=off and {known}; --help says more")
        elif not (value.isascii() and value.isdigit()):
            raise ConfigError(f"{word!r}: must be a whole number")
        else:
            settings[key] = int(value)
    if settings["min_replicas"] < 1 or settings["quorum_tick_ms"] < 1 or settings["port"] > 65535:
        raise ConfigError("min_replicas and quorum_tick_ms must be at least 1, port at most 65535")
    return Options(name, is_open, lineage, settings)


def main(words: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT; the exit code is 0 then, and 2 after an error."""
    if "--help" in words or "-h" in words:
        print(HELP.format(settings="\n".join(f"  {key + '=N':<26}(default: {n})" for key, n in SETTINGS.items())))
        return 0
    try:
        options = read(words)
        folder = Path(options.name)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_own([folder, folder / "lighthouse.json", folder / "lighthouse.quorum"], "choose another with name=NAME")
        raise_file_limit()
        asyncio.run(_serve(options))
    except (FtslurmError, OSError, ValueError, RuntimeError) as error:
        flush()
        print(f"lighthouse: {error}", file=sys.stderr)
        return 2
    except asyncio.CancelledError:
        log("told to end")
    flush()
    return 0


async def _serve(options: Options) -> NoReturn:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    server, url = await (_open(options) if options.open else _with_token(options))
    url_file = Path(f"{options.name}.url")
    write_private(str(url_file), f"{url}\n")
    forgetting = (
        asyncio.create_task(_forget(server, options.settings["forget_after_ms"] / 1000)) if options.lineage else None
    )
    try:
        await server.tick()
    finally:
        if forgetting is not None:
            forgetting.cancel()
        with suppress(OSError):
            url_file.unlink()
        server.keep.write_state(server.keep.snapshot(server.book.memory))
        server.server.stop()


def _server_options(options: Options) -> dict[str, Any]:
    places = {"local": False, "may_move": False, "folder": os.path.abspath(options.name)}
    return {**options.settings, **places, "lineage": options.lineage}


async def _open(options: Options) -> tuple[Server, str]:
    """Open a server without a token. Return it and its address."""
    addresses: list[str] = []
    log(OPEN)

    def note(message: messages.Report) -> None:
        if isinstance(message, messages.LighthouseUp):
            addresses.append(message.url)

    server = await open_server(_server_options(options), note)
    return server, addresses[0]


async def _with_token(options: Options) -> tuple[Server, str]:
    """Open a server behind the token gate. Return it and its address with the token."""
    secret = token(os.path.join(options.name, "token"), os.environ)
    server = prepare(_server_options(options), lambda _: None)
    await server.server.start()
    host = socket.gethostname()
    listener = bind_when_free(partial(bind, host), options.settings["port"], setting="port=N; 0: any")
    port = listener.getsockname()[1]
    await Door(secret, partial(Connection, server.server)).open(listener)
    host = f"{host}:{port}"
    log(f"serving at http://TOKEN@{host}: the whole address is in {options.name}.url, which only you may read")
    for line in NOT_PROTECTED:
        log(f"note: {line}")
    if sys.stdout.isatty():  # else it is a file that other users may read
        print(f"http://{secret}@{host}", flush=True)
    return server, f"http://{secret}@{host}"


async def _forget(server: Server, after_s: float) -> NoReturn:
    """Let a new history begin when no manager that may have the old state was heard for `after_s` seconds.

    Time in which this process was stopped does not count: it received no heartbeats.
    """
    while True:
        before, pause = now(), min(1.0, max(0.05, after_s / 4))
        await asyncio.sleep(pause)
        book = server.book
        book.heard += max(0.0, now() - before - pause)
        if book.forsaken(now(), after_s):
            log(f"nobody who has the training's state was heard for {after_s:g} s: who comes now may begin anew")
            book.give_up()
            server.keep.forget_quorum()
            server.save()
