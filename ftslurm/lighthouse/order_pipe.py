"""The controller's orders as they come in on a pipe."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from ftslurm.lighthouse.output import log
from ftslurm.protocol import messages


def listen_to(orders: int, obey: Callable[[messages.ToWorker], None]) -> None:
    """Have each order obeyed; one that cannot be, whatever the reason, is logged, and the next one still counts."""
    lines = messages.Lines()
    loop = asyncio.get_running_loop()

    def receive() -> None:
        data = os.read(orders, 65536)
        if not data:
            loop.remove_reader(orders)  # the guard is gone, and with it we shall be
        for line in lines.feed(data):
            try:
                message = messages.ORDERS.decode(messages.parse(line))
                if message is not None:
                    obey(message)
            except Exception as error:
                log(f"bad order {line!r}: {error!r}")

    loop.add_reader(orders, receive)
