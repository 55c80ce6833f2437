"""Run pytest; tests that failed run once more, alone, after all others.

    python tests/suite.py [--name WORD] [--retries N] PYTEST-ARGS

Some tests depend on the machine's speed and fail at times beside others. If all of them pass in the second run, the
suite passes, and each is listed on a line that begins with `flaky:`. The second run is a fresh process without
pytest-xdist, which replaces the first one. Only failures of tests are retried: not errors of collection, errors in a
teardown (another test may have left the cause), crashed workers, pytest-timeout's time-outs or interrupts. Nothing is
retried after a run that stopped early (-x), or with more failures than --retries: that is not flakiness.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

import pytest

RETRIES = 5
CRASHED = "???"  # report.when in pytest-xdist's report of a crashed worker


class Recorder:
    """The failed tests of a run, and whether it may be retried."""

    def __init__(self) -> None:
        self.failed: dict[str, str] = {}  # test id -> reason
        self.passed: set[str] = set()
        self.final = False  # a failure that must not be retried

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.final |= report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.setdefault(report.nodeid, reason(report))
            self.final |= report.when in ("teardown", CRASHED) or "Timeout (>" in self.failed[report.nodeid]
        elif report.passed and report.when == "call":
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.final |= bool(session.shouldfail or session.shouldstop)


class Only:
    """Deselect all tests but these."""

    def __init__(self, wanted: dict[str, str]) -> None:
        self.wanted = wanted

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self.wanted])
        items[:] = [item for item in items if item.nodeid in self.wanted]


def reason(report: pytest.TestReport) -> str:
    """Return the reason of a failure, in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = crash.message.splitlines()[:1] if crash else report.longreprtext.splitlines()[-1:]
    return lines[0][:300] if lines else "no reason given"


def together(words: list[str], retries: int, ours: list[str]) -> int:
    """Run all tests; return pytest's exit code, or replace this process by the second run, which gets `ours`."""
    recorder = Recorder()
    code = int(pytest.main(words, plugins=[recorder]))
    count = 0 if recorder.final or code != pytest.ExitCode.TESTS_FAILED else len(recorder.failed)
    if count > retries:
        print(f"==> {count} tests failed: not retried, at most {retries} are (--retries)")
    elif count:
        print(f"==> once more, alone: {count} {'test' if count == 1 else 'tests'}", flush=True)
        os.execv(sys.executable, [sys.executable, __file__, "--alone", json.dumps(recorder.failed), *ours, *words])
    return code


def alone(words: list[str], first: dict[str, str]) -> int:
    """Run the failed tests again; print the results of both runs and return the exit code."""
    recorder = Recorder()
    code = int(pytest.main([*words, "-n0", "--maxfail=0"], plugins=[recorder, Only(first)]))
    for test, why in sorted(first.items()):
        if test in recorder.failed:
            print(f"failed twice: {test} (first: {why}; then: {recorder.failed[test]})")
        elif test in recorder.passed:
            print(f"flaky: {test} (first: {why}; then: passed)")
        else:
            print(f"failed: {test} (first: {why}; then: it did not run)")
    return code or int(not recorder.passed >= first.keys())


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--name", default="tests")
    parser.add_argument("--begun", type=float, default=time.time())
    parser.add_argument("--retries", type=int, default=RETRIES)
    parser.add_argument("--alone", type=json.loads)  # the failures of the first run, as JSON
    args, words = parser.parse_known_args(words)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # thousands of processes would compile ftslurm each for itself
    words = ["--durations=20", *words]
    if args.alone is None:
        code = together(words, args.retries, [f"--name={args.name}", f"--begun={args.begun}"])
    else:
        code = alone(words, args.alone)
    if code == 0:
        print(f"==> {args.name}: passed ({time.time() - args.begun:.0f} s)")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
