"""Runs torchft's own tests of its Lighthouse, from its wheel, against ours.

benchmarks/upstream.py runs all of torchft's tests and writes a table.
"""

from __future__ import annotations

import sys
import unittest
from collections.abc import Callable
from pathlib import Path

import pytest
from upstream_lighthouse import Served

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import upstream as bench

pytestmark = pytest.mark.nightly
upstream = pytest.importorskip("torchft.lighthouse_test")
GOES_BACK = "test_lighthouse_client_behavior"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], unittest.TestResult]:
    """A function that runs one of torchft's tests with our Lighthouse."""

    def run_one(test: str) -> unittest.TestResult:
        monkeypatch.setattr(Served, "folder", tmp_path, raising=False)
        monkeypatch.setattr(Served, "started", [], raising=False)
        monkeypatch.setattr(upstream, "LighthouseServer", Served)
        result = unittest.TestResult()
        try:
            upstream.TestLighthouse(test).run(result)
        finally:
            for one in Served.started:  # torchft's tests leave some running
                one.shutdown()
        assert result.testsRun == 1
        return result

    return run_one


@pytest.mark.parametrize(
    "test", sorted({*unittest.defaultTestLoader.getTestCaseNames(upstream.TestLighthouse)} - {GOES_BACK})
)
def test_it_passes_torchfts_own_tests(test: str, run: Callable[[str], unittest.TestResult]) -> None:
    result = run(test)
    assert result.wasSuccessful(), result.errors + result.failures


def test_a_client_that_goes_back_a_step_gets_no_quorum(run: Callable[[str], unittest.TestResult]) -> None:
    """torchft's test asks with step 1, then with step 0."""
    ((_, error),) = run(GOES_BACK).errors
    assert "TimeoutError" in error


def test_the_table_of_torchfts_own_tests_has_each_with_each_lighthouse() -> None:
    outcomes = [one for arm in ("torchft", "patches") for one in bench.run("lighthouse_test", arm, 60, 120)]
    assert {one.test for one in outcomes if one.outcome != "passed"} == {
        "TestLighthouse.test_lighthouse_client_behavior"
    }
    table = bench.table(outcomes)
    assert "| lighthouse_test | TestLighthouse.test_heartbeat_round_trip | passed |  | passed |" in table
    assert "| torchft | 4 | 0 | 0 |" in table
    assert "| patches | 3 | 1 | 0 |" in table
