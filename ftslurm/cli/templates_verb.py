"""`ftslurm templates`: write the batch scripts for users who call sbatch themselves."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from ftslurm.cli.parser import Parser
from ftslurm.config.schema import shipped
from ftslurm.errors import EnvironmentProblem
from ftslurm.words import listed

HELP = """\
example
  ftslurm templates sbatch
  sbatch --nodes=4 sbatch/steps.sbatch job.script=train.py       one job, a group on each node
  sbatch --array=0-3 sbatch/array.sbatch job.script=train.py     a group in each task of an array

The scripts start ftslurm with the Python that writes them. Change them as you like."""
PYTHON = "python=python3\n"  # the line of the scripts that gets the path


def main(words: list[str]) -> int:
    """Write the scripts.

    Raises:
        EnvironmentProblem: one is there already, or they cannot be written.
    """
    about = "Write steps.sbatch and array.sbatch into a folder, to be submitted with sbatch."
    parser = Parser(
        prog="ftslurm templates",
        description=about,
        epilog=HELP,
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="it is made if it is missing; no file is overwritten")
    folder: Path = parser.parse_args(words).folder
    texts = {
        folder / path.name: path.read_text(encoding="utf-8").replace(PYTHON, f"python={shlex.quote(sys.executable)}\n")
        for path in sorted(shipped("sbatch").glob("*.sbatch"))
    }
    if there := [str(path) for path in texts if path.exists() or path.is_symlink()]:
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
