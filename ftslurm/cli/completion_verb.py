"""`ftslurm completion`: print the code with which a shell completes ftslurm's words."""

from __future__ import annotations

import argparse

from ftslurm.errors import EnvironmentProblem

try:
    from argcomplete.shell_integration import shellcode
except ModuleNotFoundError as error:  # the package was updated and its dependencies were not
    raise EnvironmentProblem(f"{error.name} is missing: install ftslurm again with pip") from error


def main(args: argparse.Namespace) -> int:
    """Print the code."""
    print(shellcode(["ftslurm"], shell=args.shell))
    return 0
