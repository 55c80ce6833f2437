"""A hook of mkdocs (mkdocs.yml): makes pages of README.md, CONTRIBUTING.md and CHANGELOG.md, without a second copy.

README.md becomes several pages, cut at its headings. Links to files that are no page lead to the repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import normpath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
# The pages of README.md, each with the headings that it has; the first one has all headings that no other names.
CUT = {
    "index.md": ("", "Documentation"),
    "your-script.md": ("Your script",),
    "common-settings.md": ("Settings", "Checkpoints"),
    "failures.md": ("What happens when something fails",),
    "operating.md": ("Operating a run", "Drills"),
    "measured.md": ("How fast", "Compared", "What it does not do", "Versions", "Tests"),
}
WHOLE = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md", "security-policy.md": "SECURITY.md"}
PICTURE = re.compile(r"!\[[^]]*\]\((benchmarks/[^)]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that are made of files beside docs/, and their pictures."""
    pages = {**readme_pages(), **{name: (ROOT / file).read_text() for name, file in WHOLE.items()}}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for name in sorted(set(PICTURE.findall((ROOT / "README.md").read_text()))):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Lead the links of a page to the pages of the site, and to the repository where there is none."""
    name = page.file.src_uri
    folder = "" if name in CUT or name in WHOLE else "docs"
    known = {*files.src_uris, *CUT, *WHOLE}
    pieces = FENCE.split(markdown)
    pieces[::2] = [_led(piece, name, folder, known, config.repo_url) for piece in pieces[::2]]
    return "".join(pieces)


def _led(text: str, page: str, folder: str, known: set[str], repository: str) -> str:
    """Return a text with its links changed.

    Args:
        page: the page that has it.
        folder: the folder of its file in the repository.
        known: the pages and other files of the site.
        repository: its address.
    """

    def led(found: re.Match[str]) -> str:
        path, hash_, anchor = found[1].partition("#")
        if "://" in path:
            return found[0]
        file = normpath(f"{folder}/{path}".lstrip("/")) if path else ""
        if file == "README.md" or (not file and page in CUT):
            return f"]({page_of(anchor)}{hash_}{anchor})"
        for target, whole in WHOLE.items():
            if file == whole:
                return f"]({target}{hash_}{anchor})"
        if not file or file.removeprefix("docs/") in known:
            return f"]({file.removeprefix('docs/')}{hash_}{anchor})"
        kind = "tree" if (ROOT / file).is_dir() else "blob"
        return f"]({repository}/{kind}/main/{file}{hash_}{anchor})"

    return re.sub(r"\]\(([^)\s]+)\)", led, text)


def readme_pages() -> dict[str, str]:
    """Return the pages made of README.md. The only heading of a page is left out: the site shows the page's title."""
    parts = sections()
    pages = dict[str, str]()
    for page, headings in CUT.items():
        own = [heading for heading in parts if page_with(heading) == page]
        titles = {heading: f"## {heading}\n" if heading and len(headings) > 1 else "" for heading in own}
        pages[page] = "".join(titles[heading] + parts[heading] for heading in own)
    return pages


def sections() -> dict[str, str]:
    """Return the text of README.md below each heading of the second level; "" for what is before the first."""
    first, *rest = re.split(r"^## ", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    return {"": first} | {part.partition("\n")[0]: part.partition("\n")[2] for part in rest}


def page_with(heading: str) -> str:
    """Return the page that has a section of README.md."""
    return next((page for page, headings in CUT.items() if heading in headings), "index.md")


def page_of(anchor: str) -> str:
    """Return the page that has the heading with an anchor."""
    for heading, text in sections().items():
        titles = [heading, *re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)]
        if anchor in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}:
            return page_with(heading)
    return "index.md"
