"""`ftslurm completion`: print the code with which a shell completes ftslurm's words."""

from __future__ import annotations

import argparse

from argcomplete.shell_integration import shellcode


def main(args: argparse.Namespace) -> int:
    """Print the code."""
    print(shellcode(["ftslurm"], shell=args.shell))
    return 0
