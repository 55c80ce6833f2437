"""Everything that README and docs name exists: modules, commands, make targets, links, and the rules in order."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest
from test_dependencies import FOLDERS

from ftslurm.cli import help_verb, main
from ftslurm.config.setting_names import every_key, within
from ftslurm.core import rules

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(params=PAGES, ids=lambda page: page.name)
def page(request: pytest.FixtureRequest) -> Path:
    assert isinstance(request.param, Path)
    return request.param


def commands(page: Path) -> str:
    """Return a page's code, one piece per line: the lines of its blocks, and the text in backquotes."""
    text = page.read_text()
    return "\n".join([*FENCE.findall(text), *re.findall(r"`([^`\n]+)`", FENCE.sub("", text))])


def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(
        r"\b(?<!/etc/)(?:ftslurm|tests|examples|sbatch|conf|benchmarks|docs)/[\w./*-]*\w/?",
        re.sub(r"https://[^)\s]+", "", page.read_text()),
    )
    assert [name for name in named if not any(ROOT.glob(name.rstrip("/")))] == []


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in link]
    for link in links:
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_command_that_a_page_shows_exists(page: Path) -> None:
    typed = re.findall(r"^(?:ftslurm|python -m ftslurm) ([a-z]+)(?=\s|$)", commands(page), re.MULTILINE)
    assert set(typed) <= set(main.VERBS)


def test_messages_name_a_page_by_ftslurm_help_and_not_by_its_path() -> None:
    """Users of the wheel have no folder docs/: messages say `ftslurm help PAGE`, and only pages that exist."""
    named = dict[str, list[str]]()
    for path in sorted((ROOT / "ftslurm").rglob("*.py")):
        if not re.search("docs/|ftslurm help", text := path.read_text()):
            continue
        tree = ast.parse(text)
        comments = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in comments]
        named[str(path)] = [text for text in texts if isinstance(text, str) and re.search(r"docs/", text)]
        pages = [
            page for text in texts if isinstance(text, str) for page in re.findall("ftslurm help ([a-z][a-z-]*)", text)
        ]
        assert set(pages) <= {*help_verb.documented(), *main.VERBS, "settings"}, path
    named.pop(str(ROOT / "ftslurm/cli/help_verb.py"))  # it takes a path for its page
    assert {path: texts for path, texts in named.items() if texts} == {}
    for path in [*(ROOT / "conf").rglob("*.yaml"), *(ROOT / "sbatch").iterdir(), *(ROOT / "examples").glob("*.py")]:
        assert "docs/" not in path.read_text(), path


def test_every_make_target_that_a_page_shows_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z]+)", commands(page), re.MULTILINE)) <= targets


def test_the_architecture_lists_the_folders_in_the_order_of_imports() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    listed = [name.replace("/", ".") for name in re.findall(r"^\| `ftslurm/([\w/]+)/` \|", text, re.MULTILINE)]
    assert ["errors", "words", *listed] == FOLDERS


def test_the_architecture_lists_the_rules_in_their_order() -> None:
    table = (ROOT / "docs" / "architecture.md").read_text().partition("## The rules, in order")[2].partition("\n## ")[0]
    modules = [rule.__module__.rpartition(".")[2] for rule in rules.RULES]
    names = [f"{module}.{rule.__name__}" for module, rule in zip(modules, rules.RULES, strict=True)]
    listed = re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE)
    assert listed == [name.removeprefix("rules.") for name in names]


def test_the_script_that_draws_the_picture_imports_what_there_is() -> None:
    assert "main" in runpy.run_path(str(ROOT / "docs" / "picture.py"))


def test_no_cell_of_a_table_has_more_than_twelve_words(page: Path) -> None:
    rows = re.findall(r"^\|(.*)\|$", FENCE.sub("", page.read_text()), re.MULTILINE)
    cells = [re.sub(r"\]\([^)]*\)", "]", cell) for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    assert [cell for cell in cells if len(cell.split()) > 12] == []


SECTIONS = {key.partition(".")[0] for key in every_key() if "." in key}
NO_SETTINGS = {  # files in which settings that do not exist are tried
    *("tests/unit/config/test_overrides.py", "tests/unit/config/test_base.py"),
    *("tests/local/test_cli.py", "tests/local/test_python_door.py"),
}
WRITTEN = [
    *("README.md", "CONTRIBUTING.md", "Makefile", "docs/*.md", "docs/*.py", "examples/*", "sbatch/*", "conf/**/*.yaml"),
    *(
        ".github/**/*.yml",
        "benchmarks/**/*.py",
        "benchmarks/*.md",
        "tests/**/*.py",
        "tests/**/*.yaml",
        "ftslurm/**/*.py",
    ),
]
SETTING = re.compile(r"(?<![\w./_-])((?:{})\.[a-z_]+(?:\.[a-z-]+)*)=(?![=\s])".format("|".join(sorted(SECTIONS))))


def test_every_setting_that_is_written_anywhere_exists() -> None:
    """In every page, example, template, benchmark and test: a word section.name=value."""
    wrong = []
    for path in (path for pattern in WRITTEN for path in ROOT.glob(pattern) if path.is_file()):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            for key in SETTING.findall(line):
                if f"{path.relative_to(ROOT)}" not in NO_SETTINGS and not any(
                    within(key, one) or within(one, key) for one in every_key()
                ):
                    wrong.append(f"{path.relative_to(ROOT)}:{number}: {key}")
    assert wrong == []


SELECTS = re.compile(r"set_device\(|pick_device\(\w")
USES_CUDA = re.compile(r" Manager\(|init_process_group\(|\.to\(device")  # torchft's Manager makes streams


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_every_example_selects_its_gpu_before_anything_uses_cuda(example: Path) -> None:
    text = example.read_text()
    first = USES_CUDA.search(text)
    if first and "cuda" in text:
        assert SELECTS.search(text[: first.start()]), f"{example.name}: torch.cuda.set_device comes late, or is missing"


def test_every_snippet_for_a_gpu_selects_it(page: Path) -> None:
    for block in FENCE.findall(page.read_text()):
        if re.search(r"""["'`]cuda["':].*LOCAL_RANK""", block):
            assert SELECTS.search(block), block


def test_every_page_has_its_place_on_the_web_site() -> None:
    places = (ROOT / "mkdocs.yml").read_text()
    names = [path.name for path in (ROOT / "docs").glob("*.md")]
    assert [name for name in names if not re.search(rf"[- ]{name}$", places, re.MULTILINE)] == []
