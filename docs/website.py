"""A hook of mkdocs (mkdocs.yml): makes the references from the code, and pages of README.md and its like.

Nothing of that is stored a second time. Links to files that are no page lead to the repository.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "index.md": "README.md",
    "measured.md": "benchmarks/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security-policy.md": "SECURITY.md",
}
REFERENCES = ("settings", "cli", "metrics", "journal", "channel")  # made by docs/NAME.py
SCHEMAS = ("events", "status", "report")
PICTURE = re.compile(r"!\[[^]]*\]\(([^)]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that are made of the code and of files beside docs/, with their pictures and schemas."""
    made = {name: runpy.run_path(str(ROOT / "docs" / f"{name}.py")) for name in REFERENCES}
    for name in REFERENCES:
        files.append(File.generated(config, f"{name}.md", content=made[name]["page"]()))
    for name in SCHEMAS:
        schema = made["journal"][f"{name}_schema"]()
        files.append(File.generated(config, f"schema/{name}.schema.json", content=schema))
    pictures = set[str]()
    for name, file in PAGES.items():
        text = (ROOT / file).read_text()
        files.append(File.generated(config, name, content=text))
        pictures |= {normpath(join(dirname(file), path)) for path in PICTURE.findall(text)}
    for name in sorted(name for name in pictures if not name.startswith("docs/")):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Lead the links of a page to the pages of the site, and to the repository where there is none."""
    folder = dirname(PAGES.get(page.file.src_uri, "docs/"))
    pieces = FENCE.split(markdown)
    pieces[::2] = [_led(piece, folder, set(files.src_uris), config.repo_url) for piece in pieces[::2]]
    return "".join(pieces)


def _led(text: str, folder: str, known: set[str], repository: str) -> str:
    """Return a text with its links changed.

    Args:
        folder: the folder of its file in the repository.
        known: the pages and other files of the site.
        repository: its address.
    """
    made = {file: name for name, file in PAGES.items()}

    def led(found: re.Match[str]) -> str:
        path, hash_, anchor = found[1].partition("#")
        if not path or "://" in path:
            return found[0]
        file = normpath(join(folder, path))
        name = made.get(file, file.removeprefix("docs/"))
        if name in known:
            return f"]({name}{hash_}{anchor})"
        kind = "tree" if (ROOT / file).is_dir() else "blob"
        return f"]({repository}/{kind}/main/{file}{hash_}{anchor})"

    return re.sub(r"\]\(([^)\s]+)\)", led, text)
