"""The parser of every verb's options; `run` and `plan` have Hydra's (ftslurm.config.hydra_adapter)."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from ftslurm.config import option_names


class Parser(argparse.ArgumentParser):
    """Parses the words of one verb. What is wrong with them, it says in one paragraph, and which option is meant.

    Args:
        epilog: what the help has below the options, with its own line breaks.
    """

    takes_settings = False  # the verb takes settings too

    def __init__(self, epilog: str | None = None, **options: Any) -> None:
        super().__init__(epilog=epilog, **options)
        if epilog:
            self.formatter_class = argparse.RawDescriptionHelpFormatter
        self.register("type", int, _whole)

    def error(self, message: str) -> NoReturn:
        """As argparse's, without the usage above it."""
        self.exit(2, f"ftslurm: {message.removeprefix('argument ')} ({self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, with a hint at what is meant. parse_args() calls it."""
        self._check_options(args)
        return super().parse_known_args(args, namespace)

    def parse_known_intermixed_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, with a hint at what is meant. parse_intermixed_args() calls it."""
        self._check_options(args)
        return super().parse_known_intermixed_args(args, namespace)

    def _check_options(self, words: list[str]) -> None:
        names = list(self._option_string_actions)
        unclear = option_names.unclear(words, names)
        if unclear is None:
            return
        if self.takes_settings:
            from ftslurm.config import setting_names

            setting_names.check_option(unclear, names)
        name = unclear.partition("=")[0]
        self.error(f"there is no option {name}{option_names.likely(name, names)}")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
