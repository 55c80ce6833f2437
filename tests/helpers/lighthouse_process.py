"""Our Lighthouse in its own process, with a port that is open to all: orders on stdin, reports on stdout."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ftslurm.guard.gateway import Gateway, pair
from ftslurm.protocol import addresses


class LighthouseProcess:
    """One Lighthouse, which a test starts, orders, kills and restarts."""

    def __init__(self, folder: Path, log: Path | None = None, /, **options: Any) -> None:
        self.options: dict[str, Any] = {"attempt": -1, "highest": 0, "port": 0, "min_replicas": 1}
        self.options |= {"folder": str(folder), "quorum_tick_ms": 20, "join_timeout_ms": 10_000}
        self.options |= {"heartbeat_timeout_ms": 5000, **options}
        self.log = log or folder / "log"
        self.reports: list[dict[str, Any]] = []
        self.members: dict[int, dict[str, Any]] = {}  # the last order about each group's live attempt
        self.start()

    def start(self) -> None:
        """Start the Lighthouse, on its previous port if it had one; return when it serves and knows who lives."""
        self.reports.clear()
        self.options["attempt"] += 1
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, json.dumps(self.options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()
        self.url: str = self.wait_for("address")["url"].removesuffix(f"/{addresses.LIGHTHOUSE}")
        self.options["port"] = int(self.url.rpartition(":")[2])
        for group, fields in [*self.members.items()]:
            self.order("member", **{**fields, "group": group})

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout
        for line in process.stdout:
            self.reports.append(json.loads(line))

    def wait_for(self, kind: str, patience_s: float = 20.0) -> dict[str, Any]:
        """Wait for a report of this kind; return the newest."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            for report in self.reports[::-1]:
                if report["type"] == kind:
                    return report
            time.sleep(0.002)
        raise AssertionError(f"no {kind} report; {self.reports}\n{self.log.read_text()}")

    def wait_for_line(self, text: str, patience_s: float = 20.0) -> None:
        """Wait until the log has this text; a thread writes it, after the matching reports."""
        self.wait_for_text(self.log, text, patience_s)

    def wait_for_text(self, path: Path, text: str, patience_s: float = 20.0) -> None:
        """Wait until a file exists and has this text."""
        deadline = time.monotonic() + patience_s
        while not path.exists() or text not in path.read_text():
            assert time.monotonic() < deadline, f"{text!r} is not in {path}; the log:\n{self.log.read_text()}"
            time.sleep(0.01)

    def order(self, kind: str, **fields: Any) -> None:
        """Send an order, as the controller does."""
        if kind == "member":
            self.members[fields["group"]] = fields
        elif kind == "evict":
            self.members.pop(fields["group"], None)
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"type": kind, **fields}).encode() + b"\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Kill the Lighthouse with SIGKILL."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                assert pipe
                pipe.close()

    def memory_mb(self) -> float:
        """Return its resident memory in MB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / 1e6


class OpenPort(Gateway):
    """Stands for the guard: hands the connections of a port on, without asking who they are from."""

    def __init__(self, port: int) -> None:
        super().__init__(socket.socket())  # of no guard
        self._listener = socket.create_server(("127.0.0.1", port), backlog=1024)

    def reserve(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def dial(self, address: str, patience_s: float) -> socket.socket:  # noqa: ARG002 nobody is there
        raise ConnectionRefusedError(f"{address}: the Lighthouse before has been killed")

    def take_over(self, service: str) -> socket.socket:
        ours, theirs = pair()
        if service == addresses.SUCCESSOR:  # nobody comes after it
            self._silent = theirs
            return ours

        def hand_on() -> None:
            while True:
                connected, _ = self._listener.accept()
                with connected:
                    socket.send_fds(theirs, [b"\0"], [connected.fileno()])

        threading.Thread(target=hand_on, daemon=True).start()
        return ours


if __name__ == "__main__":
    from ftslurm.lighthouse.server import serve
    from ftslurm.protocol import messages

    def say(report: messages.Report) -> None:
        print(messages.encode_report(report, 0).decode(), end="", flush=True)

    options = json.loads(sys.argv[1])
    port = OpenPort(options["port"])
    asyncio.run(serve(options, 0, say, port, f"http://{port.reserve()}/lighthouse"))
