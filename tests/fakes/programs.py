"""Shell scripts in place of Slurm's programs, for answers that a real Slurm cannot be made to give on demand.

They are first on the PATH and record their calls. The answers of the real programs to the same calls are tested on the
throwaway cluster: tests/slurm/ and tests/scenarios -k slurm.
"""

from __future__ import annotations

from pathlib import Path


def script(path: Path, body: str) -> None:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o700)


class Programs:
    """Fake programs in one folder, which the fixture `programs` puts at the front of the PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._calls = folder / "calls"
        folder.mkdir()

    def add(self, *names: str, body: str = "", record: str = '"$(basename "$0") $*"', delay_s: float = 0.0) -> None:
        """Add programs, or replace them.

        Args:
            names: Names of the programs.
            body: Shell code that prints the answer. The default is to succeed in silence.
            record: The record of a call, as shell words; the default is the name and the arguments.
            delay_s: Seconds that a call takes before it is recorded.
        """
        for name in names:
            script(self.folder / name, f"sleep {delay_s}\necho {record} >> '{self._calls}'\n{body or 'exit 0'}")

    def calls(self, name: str = "") -> list[str]:
        """Return the calls so far, in order, of one program or of all."""
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [line for line in lines if line.startswith(name)]

    def forget(self) -> None:
        """Forget the calls so far."""
        self._calls.unlink(missing_ok=True)
