"""What hooks have got is read from a file in which anything may be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fuzz import TEXTS, spoilt, tried
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.run import deliveries
from ftslurm.run.deliveries import Delivery
from ftslurm.run.directory import RunDir

KNOWN = {"name": "hook mail.sh", "offset": 100, "done": 12, "failed": 3, "dropped": 1, "last_error": "exit code 1"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    found = RunDir(tmp_path_factory.mktemp("run"))
    found.observer.mkdir()
    return found


def test_what_is_written_is_read_back(run: RunDir) -> None:
    written = (Delivery("hook mail.sh", 100, 12, 3, 1, "exit code 1"), Delivery("callback mine.Notes"))
    deliveries.write(run, written)
    assert deliveries.read(run) == written


def test_a_run_without_an_observer_has_none(tmp_path: Path) -> None:
    assert deliveries.read(RunDir(tmp_path)) == ()


def test_what_a_hook_has_printed_cannot_steer_the_terminal(run: RunDir) -> None:
    deliveries.write(run, [Delivery("hook a", failed=1, last_error="exit code 1: \x1b]0;title\x07")])
    assert deliveries.read(run)[0].last_error == "exit code 1: \\x1b]0;title\\x07"


@tried(200)
@given(row=spoilt(KNOWN))
def test_any_value_in_the_file_reads_as_a_delivery(run: RunDir, row: dict[str, Any]) -> None:
    text = json.dumps({"deliveries": [row]})
    (run.observer / "deliveries.json").write_text(text, errors="surrogatepass")
    for found in deliveries.read(run):
        assert isinstance(found.name, str)
        assert min(found.offset, found.done, found.failed, found.dropped) >= 0


@tried(100)
@given(text=st.one_of(TEXTS, st.sampled_from(["", "[]", "{}", '{"deliveries": 1}', '{"deliveries": [1, null]}'])))
def test_any_text_in_the_file_reads_as_no_delivery(run: RunDir, text: str) -> None:
    (run.observer / "deliveries.json").write_bytes(text.encode(errors="surrogatepass"))
    assert deliveries.read(run) == ()
