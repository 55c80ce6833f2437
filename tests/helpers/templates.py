"""The batch scripts as `ftslurm templates` writes them, with the Python of the tests."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from ftslurm.cli.main import main


@cache
def written() -> Path:
    """Return a folder that has them; every process of the tests has one of its own."""
    folder = Path(tempfile.mkdtemp(prefix="ftslurm-templates-"))
    main(["templates", str(folder)])
    return folder
