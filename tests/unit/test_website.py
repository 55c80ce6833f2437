"""The web site of the documentation: it builds without a warning, has every page, and all its links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

pytestmark = pytest.mark.nightly  # needs mkdocs
ROOT = Path(__file__).parents[2]
BASE = "https://ftslurm.github.io/ftslurm/"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("website")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        build, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_and_every_section_of_the_readme_is_on_the_site(site: Path) -> None:
    assert [page.stem for page in (ROOT / "docs").glob("*.md") if not (site / page.stem / "index.html").exists()] == []
    first = (site / "index.html").read_text()
    headings = re.findall("^## (.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(headings) > 5
    assert [heading for heading in headings if heading not in first] == []


def test_every_link_of_the_site_leads_to_a_file_and_an_anchor(site: Path) -> None:
    anchors = {page: set(re.findall(r'\sid="([^"]+)"', page.read_text())) for page in site.rglob("*.html")}
    for page in anchors:
        if page.name == "404.html":  # its links begin at the site's root
            continue
        for link in re.findall(r'(?:href|src)="([^"]+)"', page.read_text()):
            path, anchor = urldefrag(unquote(link))
            if path.startswith(BASE) or ("://" not in path and not path.startswith("data:")):
                target = site / path.removeprefix(BASE) if path.startswith(BASE) else page.parent / path
                target = (target / "index.html" if target.is_dir() else target).resolve() if path else page
                assert target.exists(), (page, link)
                assert not anchor or anchor in anchors[target] or anchor == "__skip", (page, link)


def test_links_to_other_files_lead_to_files_of_the_repository(site: Path) -> None:
    blob = re.compile(r'href="https://github\.com/ftslurm/ftslurm/(?:blob|tree)/main/([^"#]+)')
    linked = {file for page in site.rglob("*.html") for file in blob.findall(page.read_text())}
    assert {"examples/train_ddp.py", "conf/job", "LICENSE"} & linked
    assert [file for file in sorted(linked) if not (ROOT / file).exists()] == []
