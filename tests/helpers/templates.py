"""The batch scripts as `ftslurm templates` writes them, with the Python of the tests."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from ftslurm.cli.main import main

_folder = tempfile.TemporaryDirectory(prefix="ftslurm-templates-")  # it goes when this process of the tests ends


@cache
def written() -> Path:
    """Return a folder that has them; every process of the tests has one of its own."""
    main(["templates", _folder.name])
    return Path(_folder.name)
