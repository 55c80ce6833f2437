"""`ftslurm help`: list the pages of the documentation, or print one."""

from __future__ import annotations

import argparse
from pathlib import Path

from ftslurm.cli import main as command_line
from ftslurm.cli import settings_help
from ftslurm.cli.verbs import VERBS
from ftslurm.config.schema import shipped
from ftslurm.errors import EnvironmentProblem
from ftslurm.words import offer


def main(args: argparse.Namespace) -> int:
    """Print a page, the help of a verb, or the list of pages.

    Raises:
        EnvironmentProblem: there is no such page, or it has no sections.
    """
    page = args.page
    if page == "settings":
        print(*settings_help.pages(args.section), sep="\n\n")
        return 0
    if args.section is not None:
        raise EnvironmentProblem(f"only the page settings has sections: ftslurm help {page}")
    if page in VERBS:
        return command_line.main([page, "--help"])
    pages = documented()
    if page is None:
        width = max(map(len, pages))
        print(*(f"{name:<{width}}  {_title(path)}" for name, path in pages.items()), sep="\n")
        print("\nftslurm help PAGE prints one. ftslurm --help lists the verbs.")
        return 0
    if page not in pages:
        raise EnvironmentProblem(f"there is no page {page!r}; {offer(page, pages)}")
    print(pages[page].read_text(encoding="utf-8"), end="")
    return 0


def documented() -> dict[str, Path]:
    """Return the pages of the documentation, by name."""
    return {path.stem: path for path in sorted(shipped("docs").glob("*.md"))}


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as page:
        return page.readline().lstrip("# ").rstrip()
