"""The parser of every verb's words."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from ftslurm.words import meant, nearest


class Parser(argparse.ArgumentParser):
    """Parses the words of one verb. What is wrong with them, it says in one paragraph, and which option is meant."""

    def error(self, message: str) -> NoReturn:
        """As argparse's, without the usage above it."""
        self.exit(2, f"ftslurm: {message.removeprefix('argument ')} ({self.prog} --help)\n")

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse words, options and others in any order.

        Raises:
            ConfigError: the verb takes settings, and what is no option may be one.
        """
        known = {one.lstrip("-"): one for one in self._option_string_actions if one.startswith("--")}
        for word, after in zip(words, [*words, "-"][1:], strict=True):
            name = word.partition("=")[0]
            if word == "--":
                break
            if name.startswith("--") and name not in known.values():
                near = nearest(name.lstrip("-"), known)
                hint = f" ({meant(known[near])})" if near else ""
                if not any(one.dest == "overrides" for one in self._actions):
                    self.error(f"there is no option {name}{hint}")
                from ftslurm.config import setting_names  # most command lines have no such option

                raise setting_names.no_option(
                    word if "=" in word + after or after.startswith("-") else f"{word}={after}", hint
                )
        return self.parse_intermixed_args(words)
