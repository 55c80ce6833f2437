"""The package's description: README.md, with links that work outside of the repository. The rest: pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

BLOB = "https://github.com/ftslurm/ftslurm/blob/main/"
RAW = "https://raw.githubusercontent.com/ftslurm/ftslurm/main/"


def description() -> str:
    """Return the README with absolute links to its files and pictures."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^\]]*\]\()(?!\w+:|#)", rf"\1{RAW}", text)
    return re.sub(r"((?<!!)\[[^\]]*\]\()(?!\w+:|#)", rf"\1{BLOB}", text)


setup(long_description=description(), long_description_content_type="text/markdown")
