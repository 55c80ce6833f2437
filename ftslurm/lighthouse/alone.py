"""A Lighthouse without a controller (sbatch/lighthouse.sbatch): for groups that are started by other means.

`python -m ftslurm.lighthouse [min_replicas=2] [port=29510] [name=lighthouse] ...`: its address is in NAME.url while it
serves; what it has to remember is in the folder NAME, and one that is started again with the same name goes on there.

Any manager is let in, as by torchft's own. What remains is the memory: quorum ids never go back, and as long as
anybody is there who may have it, a training is not begun anew by a group that has not healed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ftslurm.config import LighthouseConfig
from ftslurm.errors import ConfigError
from ftslurm.lighthouse.output import flush, log
from ftslurm.lighthouse.server import Server, now, open_server
from ftslurm.rundir import replace_text

_DEFAULT = LighthouseConfig()
SETTINGS: dict[str, int] = {
    "min_replicas": 1,  # fewest groups that may step
    "port": 0,  # 0: any free one
    "join_timeout_ms": _DEFAULT.join_timeout_ms,
    "heartbeat_timeout_ms": _DEFAULT.heartbeat_timeout_ms,
    "quorum_tick_ms": _DEFAULT.quorum_tick_ms,
    # When nobody has been heard for so long, nobody has the state any more: who comes then may begin anew, from an
    # older checkpoint, say. In a run of ftslurm the controller knows that.
    "forget_after_ms": 60_000,
}


def read(words: Sequence[str]) -> tuple[str, dict[str, int]]:
    """The name and the settings from a command line of KEY=VALUE.

    Raises:
        ConfigError: it names the word and what there is.
    """
    name, settings = "lighthouse", dict(SETTINGS)
    for word in words:
        key, equals, value = word.partition("=")
        if key == "name" and value:
            name = value
        elif not equals or key not in settings:
            raise ConfigError(f"{word!r}: there are name=NAME and {', '.join(f'{k}=N' for k in settings)}")
        elif not value.isdigit():
            raise ConfigError(f"{word!r}: must be a whole number")
        else:
            settings[key] = int(value)
    if settings["min_replicas"] < 1 or settings["quorum_tick_ms"] < 1 or settings["port"] > 65535:
        raise ConfigError("min_replicas and quorum_tick_ms must be at least 1, port at most 65535")
    return name, settings


def main(words: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT; the exit code is 0 then, and 2 if it cannot serve as it was told."""
    try:
        name, settings = read(words)
        Path(name).mkdir(mode=0o700, parents=True, exist_ok=True)
        asyncio.run(_serve(name, settings))
    except (ConfigError, OSError, ValueError, RuntimeError) as error:
        flush()
        print(f"lighthouse: {error}", file=sys.stderr)
        return 2
    except asyncio.CancelledError:
        log("told to end")
    flush()
    return 0


async def _serve(name: str, settings: dict[str, int]) -> NoReturn:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    url_file = Path(f"{name}.url")

    def report(kind: str, **fields: object) -> None:
        if kind == "address":
            replace_text(url_file, f"{fields['url']}\n")

    options = settings | {"local": False, "may_move": False, "folder": os.path.abspath(name)}
    server = await open_server(options, report)
    forgetting = asyncio.create_task(_forget(server, settings["forget_after_ms"] / 1000))
    try:
        await server.tick()
    finally:
        forgetting.cancel()
        with suppress(OSError):
            url_file.unlink()
        server.keep.write_state(server.keep.snapshot(server.book.memory))
        await server.server.stop(None)


async def _forget(server: Server, after_s: float) -> NoReturn:
    """Let a new history begin once nobody is left of the old one."""
    heard = now()
    while True:
        await asyncio.sleep(min(1.0, after_s / 4))
        book = server.book
        heard = max([heard, *book.beats.values()])
        if now() - heard >= after_s and book.memory.highest > 0:
            log(f"nobody has been heard for {after_s:g} s: who comes now may begin anew")
            book.new_history(0)
            server.keep.forget_quorum()
            server.save()
