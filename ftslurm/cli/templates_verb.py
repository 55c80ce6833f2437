"""`ftslurm templates`: write the batch scripts for users who call sbatch themselves."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from ftslurm.config.schema import shipped
from ftslurm.errors import EnvironmentProblem
from ftslurm.words import listed

PYTHON = "python=python3\n"  # the line of the scripts that gets the path


def main(args: argparse.Namespace) -> int:
    """Write the scripts.

    Raises:
        EnvironmentProblem: one is there already, or they cannot be written.
    """
    folder: Path = args.folder
    texts = {
        folder / path.name: path.read_text(encoding="utf-8").replace(PYTHON, f"python={shlex.quote(sys.executable)}\n")
        for path in sorted(shipped("sbatch").glob("*.sbatch"))
    }
    if there := [str(path) for path in texts if os.path.lexists(path)]:
        raise EnvironmentProblem(f"{listed(there)} exist already, and nothing is overwritten: name another DIR")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            with path.open("x", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
            print(f"wrote {path}")
    except OSError as error:
        raise EnvironmentProblem(f"{folder}: {error.strerror or error}; name another DIR") from error
    return 0
