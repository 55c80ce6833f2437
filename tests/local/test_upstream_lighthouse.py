"""Runs torchft's own tests of its Lighthouse, from its wheel, against ours without a controller."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from pathlib import Path

import pytest
from upstream_lighthouse import Served

upstream = pytest.importorskip("torchft.lighthouse_test")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], unittest.TestResult]:
    """A function that runs one of torchft's tests, with lineage on or off."""

    def run_one(test: str, lineage: str) -> unittest.TestResult:
        monkeypatch.setattr(Served, "folder", tmp_path, raising=False)
        monkeypatch.setattr(Served, "lineage", lineage, raising=False)
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


@pytest.mark.parametrize("test", unittest.defaultTestLoader.getTestCaseNames(upstream.TestLighthouse))
def test_with_lineage_off_it_passes_torchfts_own_tests(
    test: str, run: Callable[[str, str], unittest.TestResult]
) -> None:
    result = run(test, "off")
    assert result.wasSuccessful(), result.errors + result.failures


def test_with_lineage_on_a_client_that_goes_back_a_step_gets_no_quorum(
    run: Callable[[str, str], unittest.TestResult],
) -> None:
    """torchft's test asks with step 1, then with step 0."""
    ((_, error),) = run("test_lighthouse_client_behavior", "on").errors
    assert "TimeoutError" in error
