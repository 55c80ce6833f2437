"""Our Lighthouse in the place of torchft's, for torchft's own tests; as a pytest plugin: `-p upstream_lighthouse`.

Options, as environment variables: UPSTREAM_LIGHTHOUSE=1 replaces torchft's LighthouseServer; UPSTREAM_PATCHES=1 applies
ftslurm/worker/torchft_patches.py and its RunManager.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import watched
from lighthouse_process import LighthouseProcess


class Served:
    """A stand-in for torchft's LighthouseServer, with its defaults: our Lighthouse in its own process."""

    folder: Path
    started: list[Served]

    def __init__(self, bind: str, min_replicas: int, **settings: int) -> None:  # noqa: ARG002 it is "[::]:0"
        folder = self.folder / f"lighthouse{len(self.started)}"
        folder.mkdir()
        options = {"join_timeout_ms": 100, **settings}
        self.process = LighthouseProcess(folder, min_replicas=min_replicas, **options)
        self.started.append(self)

    def address(self) -> str:
        return self.process.url

    def shutdown(self) -> None:
        self.process.kill()


def pytest_configure(config: Any) -> None:
    """Replace what the options ask for, before pytest imports a test."""
    if os.environ.get("UPSTREAM_PATCHES"):
        from ftslurm.worker import torchft_patches

        torchft_patches.before_import()
        from ftslurm.worker import run_manager

        run_manager.install(watched.watchers())
        print("patches left out:", watched.mend())
    if os.environ.get("UPSTREAM_LIGHTHOUSE"):
        from torchft import _torchft, coordination

        folder = tempfile.TemporaryDirectory()
        config.add_cleanup(folder.cleanup)
        Served.folder, Served.started = Path(folder.name), []
        _torchft.LighthouseServer = coordination.LighthouseServer = Served


def pytest_unconfigure() -> None:
    """Stop what torchft's tests leave running."""
    for one in getattr(Served, "started", []):
        one.shutdown()
