"""The runner of the tests (tests/suite.py) on a small project, and the signals ignored by children of tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PROJECT = """
import os, pathlib, pytest, time
HERE = pathlib.Path(__file__).parent

def for_the_first_time(name="x"):
    try:
        (HERE / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

def test_good(): (HERE / "good").open("a").write("x")
"""
FLAKY = """
@pytest.mark.parametrize("x", ["a b[", "::"])
def test_flaky(x):
    (HERE / f"worker {os.environ.get('PYTEST_XDIST_WORKER')}").touch()
    assert not for_the_first_time(x), "too slow\\nby far"
"""
FAILING = """
def test_failing(): raise RuntimeError(f"wrong, in process {os.getpid()}")
"""
TEARDOWN = """
@pytest.fixture
def litter():
    yield
    assert not for_the_first_time(), "something is left running"

def test_litter(litter): pass
"""
CRASHING = """
def test_crashing():
    if for_the_first_time(): os._exit(3)
"""
HANGING = """
@pytest.mark.timeout(1)
def test_hanging():
    if for_the_first_time(): time.sleep(60)
"""
UNCOLLECTED = """
assert not for_the_first_time()
"""


def suite(folder: Path, text: str, *args: str) -> tuple[int, str]:
    """Return exit code and output of the runner on a file of tests, two at a time."""
    folder.mkdir(exist_ok=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(PROJECT + text)
    words = ["-pxdist.plugin", "-ppytest_timeout", "-pno:cacheprovider", "-n2", "--dist=loadscope", *args]
    command = [sys.executable, str(TESTS / "suite.py"), *words]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # without the other plugins: a seventh of the CPU time
    done = subprocess.run(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
    )
    return done.returncode, done.stdout


@pytest.mark.nightly
def test_what_fails_beside_others_and_passes_alone_is_flaky_and_the_suite_passes(tmp_path: Path) -> None:
    code, output = suite(tmp_path, FLAKY)
    assert code == 0, output
    assert re.fullmatch(r"==> tests: passed \(\d+ s\)", output.splitlines()[-1])
    assert output.splitlines()[-3:-1] == [
        f"flaky: test_it.py::test_flaky[{x}] (first: AssertionError: too slow; then: passed)" for x in ("::", "a b[")
    ]
    assert (tmp_path / "worker None").exists()  # the second time without xdist
    assert (tmp_path / "good").read_text() == "x"  # and only the failed tests


@pytest.mark.nightly
def test_what_fails_alone_too_fails_the_suite_with_both_reasons(tmp_path: Path) -> None:
    code, output = suite(tmp_path, FLAKY + FAILING)
    assert code == 1, output
    reason = r"RuntimeError: wrong, in process (\d+)"
    told = re.findall(rf"^failed twice: test_it.py::test_failing \(first: {reason}; then: {reason}\)$", output, re.M)
    assert len(told) == 1
    assert len(set(told[0])) == 2
    assert output.count("\nflaky: ") == 2


@pytest.mark.nightly
@pytest.mark.parametrize(
    "text", [TEARDOWN, CRASHING, HANGING, UNCOLLECTED], ids=["teardown", "crash", "time-out", "collection"]
)
def test_what_is_no_failure_of_a_test_is_final(tmp_path: Path, text: str) -> None:
    code, output = suite(tmp_path, text)
    assert code != 0
    assert "once more" not in output
    assert (tmp_path / "x").exists()  # it would pass now


@pytest.mark.nightly
def test_a_suite_that_stops_early_or_fails_in_many_tests_is_not_retried(tmp_path: Path) -> None:
    code, output = suite(tmp_path, FLAKY, "--retries", "1")
    assert code == 1, output
    assert "2 tests failed: not retried, at most 1 are (--retries)" in output
    code, output = suite(tmp_path / "x", FLAKY, "-x", "-n0")
    assert code == 1, output
    assert "once more" not in output


@pytest.mark.nightly
def test_a_wrong_option_is_said_once(tmp_path: Path) -> None:
    code, output = suite(tmp_path, "", "--no-such-option")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert output.count("unrecognized arguments") == 1


def ignored_signals(pid: int | str) -> set[int]:
    """Return the signals that a process ignores."""
    (mask,) = re.findall(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return {number for number in (signal.SIGINT, signal.SIGHUP) if int(mask, 16) >> (number - 1) & 1}


def test_what_a_test_starts_ignores_no_signal() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert ignored_signals(child.pid) == set()
    finally:
        child.kill()
        child.wait()


@pytest.mark.nightly
@pytest.mark.parametrize("workers", ["0", "1"])
def test_nor_does_it_in_the_background_of_a_shell_script(tmp_path: Path, workers: str) -> None:
    words = ["-m", "pytest", f"-n{workers}", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inner'}"]
    name = test_what_a_test_starts_ignores_no_signal.__name__
    script = f"""trap "" INT HUP; exec "$@" {Path(__file__)}::{name}"""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = ["bash", "-c", script, "bash", sys.executable, *words]
    done = subprocess.run(command, cwd=TESTS.parent, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
