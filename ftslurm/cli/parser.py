"""The parser of every verb's words."""

from __future__ import annotations

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Parses the words of one verb. What is wrong with them, it says in one paragraph."""

    def error(self, message: str) -> NoReturn:
        """As argparse's, without the usage above it; settings and arguments of a script may look like options."""
        takes_settings = any(one.dest == "overrides" for one in self._actions)
        if message.startswith("unrecognized") and takes_settings:
            message += "; settings are written key=value, without dashes, those of a script follow after --"
        self.exit(2, f"ftslurm: {message.removeprefix('argument ')} ({self.prog} --help)\n")
