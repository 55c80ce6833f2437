"""`ftslurm stop`: end a run."""

from __future__ import annotations

from ftslurm.cli.run_argument import find_run, parser_for


def main(words: list[str]) -> int:
    """End a run."""
    args = parser_for("stop", "End a run: SIGTERM to the scripts, SIGKILL after stop.grace_s.").parse_args(words)
    print(find_run(args).stop())
    return 0
