"""report.html in a real browser: it opens offline, shows what it should, and runs nothing that comes from the run."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import runpy
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import example_journal as ex
import pytest
from browser import Browser, browser, program

from ftslurm.cli import main as cli
from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.report.accounting import Weight, account
from ftslurm.report.history_fold import fold_history
from ftslurm.report.report_json import to_json
from ftslurm.report.report_page import page
from ftslurm.run.directory import RunDir

PICTURE = Path(__file__).parents[3] / "docs" / "report_picture.py"
EVIL = "</script><script>window.owned=1</script><img src=x onerror=window.owned=1>"


def in_browser(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs Chromium, which `make nightly` installs."""
    skips = pytest.mark.skipif(program() is None, reason="there is no Chromium (apt install chromium)")
    return pytest.mark.nightly(skips(test))


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as one:
        yield one


def written(folder: Path, lines: list[ex.Line], weight: Weight | None = None) -> Path:
    history = fold_history(lines)
    path = folder / "report.html"
    path.write_text(page(history, to_json(history, account(history), weight or Weight())))
    return path


def run_of(folder: Path, lines: list[ex.Line]) -> RunDir:
    run = ex.new_run(folder, lines)
    run.config.write_text(compose.dump(Config()))
    return run


def evil() -> list[ex.Line]:
    """Return a run whose nodes, errors, logs and names hold markup."""
    lines = [line for line in ex.one_kill() if line["time"] < ex.START + 15.3]
    lines += [ex.exited(15.3, 1, cause="user_error", node=EVIL, error=EVIL, log=EVIL)]
    lines += [ex.launched(15.4, 1, 1, node=EVIL), ex.joined(17, 1, 72, 1), ex.finished(30, "failed", reason=EVIL)]
    return [line | {"run_id": EVIL} if line["event"] == "run_started" else line for line in lines]


def many(groups: int, lines: int) -> list[ex.Line]:
    """Return a run of many groups, each of which fails again and again."""
    dice, now, out = random.Random(7), 4.0, [ex.started(groups)]
    out += [line for g in range(groups) for line in (ex.launched(1, g), ex.joined(3, g, 1, participants=groups))]
    attempts = [0] * groups
    while len(out) < lines:
        now += 5
        group = dice.randrange(groups)
        attempts[group] += 1
        again = attempts[group]
        node = f"node{dice.randrange(groups):04d}"
        out += [
            ex.progress(now, (group + 1) % groups, int(now), attempts[(group + 1) % groups], groups),
            ex.exited(now, group, again - 1, node=node),
            ex.launched(now + 1, group, again, node=node),
            ex.joined(now + 4, group, int(now), again, groups - 1),
        ]
    return [*sorted(out, key=lambda line: line["time"]), ex.finished(now + 60)]


def test_the_page_allows_only_its_own_script_and_style_to_run(tmp_path: Path) -> None:
    text = written(tmp_path, evil()).read_text()
    policy = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)[0]
    assert "default-src 'none'" in policy
    for name in ("style", "script"):
        body = re.findall(rf"<{name}>(.*?)</{name}>", text, re.DOTALL)
        assert len(body) == 1
        assert f"{name}-src 'sha256-{base64.b64encode(hashlib.sha256(body[0].encode()).digest()).decode()}'" in policy
    assert "<img" not in text
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")


def test_the_data_in_the_page_is_the_report(tmp_path: Path) -> None:
    text = written(tmp_path, ex.one_kill()).read_text()
    data = json.loads(re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)[0])
    assert data["report"]["failures"][0]["cause"] == "killed"
    lanes = data["lanes"]
    assert {lanes["phases"][n] for row in lanes["rows"] for n in row["spans"][2::6]} >= {"training", "import", "queued"}


def test_the_verb_writes_the_page_for_this_user_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path, ex.one_kill())
    assert cli.main(["report", str(run.root)]) == 0
    assert f"page: {run.report}" in capsys.readouterr().out
    assert stat.S_IMODE(run.report.stat().st_mode) == 0o600
    elsewhere = tmp_path / "nowhere" / "report.html"
    assert cli.main(["report", str(run.root), "--html", str(elsewhere)]) == 2
    assert f"{elsewhere} cannot be written" in capsys.readouterr().err


@in_browser
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("lines", [[], ex.one_kill(), ex.lost_node(), evil()], ids=["empty", "kill", "node", "evil"])
def test_the_page_opens_without_an_error_and_fits(
    lines: list[ex.Line], dark: bool, width: int, tab: Browser, tmp_path: Path
) -> None:
    tab.look(width, dark=dark, touch=width < 500)
    tab.open(written(tmp_path, lines))
    assert tab.run("document.documentElement.dataset.drawn !== undefined"), tab.errors()
    assert tab.errors() == []
    assert [url for url in tab.requests() if not url.endswith("/report.html")] == []
    assert tab.run("document.documentElement.scrollWidth <= innerWidth")
    assert tab.run("window.owned === undefined && document.querySelectorAll('img').length === 0")


@in_browser
@pytest.mark.parametrize(("outcome", "words"), [("running", "has not started yet"), ("stopped", "never started")])
def test_the_page_of_a_run_without_a_start_has_one_sentence(
    outcome: str, words: str, tab: Browser, tmp_path: Path
) -> None:
    history = replace(fold_history([]), run_id="wait-1", outcome=outcome, reason="Slurm job 81 ...")
    (tmp_path / "report.html").write_text(page(history, to_json(history, account(history), Weight())))
    tab.look(1400)
    tab.open(tmp_path / "report.html")
    assert (
        tab.run("document.querySelector('main').innerText.trim().split('\\n').at(-1)") == f"{words}: Slurm job 81 ..."
    )
    assert tab.errors() == []


@in_browser
@pytest.mark.parametrize("width", [390, 800, 1400])
def test_long_values_stay_within_their_cards(width: int, tab: Browser, tmp_path: Path) -> None:
    lines = [ex.started(total_steps=123_456_789_012), *ex.one_kill()[1:-1], ex.finished(28, steps=98_765_432_101)]
    tab.look(width)
    tab.open(written(tmp_path, lines))
    assert "/ 123,456,789,012" in tab.run("document.querySelector('.cards').textContent")
    wider = "[...document.querySelectorAll('.card')].filter((card) => card.scrollWidth > card.clientWidth)"
    assert tab.run(f"{wider}.map((card) => card.textContent)") == []


@in_browser
def test_little_lost_time_has_no_exponent_on_its_card(tab: Browser, tmp_path: Path) -> None:
    tab.look(1400)
    tab.open(written(tmp_path, ex.one_kill(), Weight("GPU-hours", 0.02)))
    assert "<0.01GPU-hours lost of <0.01" in tab.run("document.querySelector('.cards').textContent")


@in_browser
def test_the_arrow_keys_and_the_finger_show_a_failure(tab: Browser, tmp_path: Path) -> None:
    tab.look(1400)
    tab.open(written(tmp_path, ex.one_kill()))
    shown = "document.getElementById('tip').hidden ? null : document.getElementById('tip').textContent"
    assert tab.run(shown) is None
    tab.run("[...document.querySelectorAll('.plot')].at(-1).focus()")
    tab.press("ArrowRight")
    assert "group 1, attempt 0: killed (signal 9) on n2" in tab.run(shown)
    assert "back after" in tab.run(shown)
    tab.press("Escape")
    assert tab.run(shown) is None
    tab.look(390, touch=True)
    tab.open(tmp_path / "report.html")
    tab.run("[...document.querySelectorAll('.plot')].at(-1).scrollIntoView({block: 'center'})")
    box = tab.run("[...document.querySelectorAll('.plot')].at(-1).getBoundingClientRect().toJSON()")
    x, y = box["left"] + box["width"] / 2, box["top"] + 12
    tab.tap(x, y)
    assert "group 0, attempt 0: trains" in tab.run(shown)


@in_browser
def test_a_run_of_256_groups_and_10000_events_opens_in_two_seconds(tab: Browser, tmp_path: Path) -> None:
    tab.look(1400)
    path, took = written(tmp_path, many(256, 10_000)), []
    for _ in range(3):  # the machine may be busy
        tab.open(path)
        took.append(tab.run("Number(document.documentElement.dataset.drawn)"))
    assert tab.errors() == []
    assert min(took) < 2000, took


@in_browser
def test_the_picture_of_the_documentation_is_drawn_by_its_command(tmp_path: Path) -> None:
    run = run_of(tmp_path, ex.one_kill())
    runpy.run_path(str(PICTURE))["main"]([str(run.root), str(tmp_path / "report.png")])
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    assert (PICTURE.parent / "report.png").read_bytes().startswith(b"\x89PNG")
