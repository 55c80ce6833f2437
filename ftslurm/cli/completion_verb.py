"""`ftslurm completion`: print the code with which a shell completes ftslurm's words."""

from __future__ import annotations

from ftslurm.cli.parser import Parser
from ftslurm.errors import EnvironmentProblem

try:
    from argcomplete.shell_integration import shellcode

    from ftslurm.cli.completion import SHELLS
except ModuleNotFoundError as error:  # the package was updated and its dependencies were not
    raise EnvironmentProblem(f"{error.name} is missing: install ftslurm again with pip") from error

EPILOG = """\
set-up
  bash   echo 'eval "$(ftslurm completion bash)"' >> ~/.bashrc
  zsh    echo 'eval "$(ftslurm completion zsh)"' >> ~/.zshrc      (after compinit)
  fish   ftslurm completion fish > ~/.config/fish/completions/ftslurm.fish

A TAB then completes verbs, options, run ids, settings (groups.co), presets (job=) and values."""


def main(words: list[str]) -> int:
    """Print the code."""
    parser = Parser(
        prog="ftslurm completion",
        description="Print the code with which a shell completes ftslurm's words.",
        epilog=EPILOG,
    )
    parser.add_argument("shell", choices=SHELLS)
    print(shellcode(["ftslurm"], shell=parser.parse_args(words).shell))
    return 0
