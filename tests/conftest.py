"""Fixtures for all tests: a throwaway Slurm, backends, fake programs. No process of a run or cluster stays behind."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import MISSING, OF_SLURM, Cluster, processes_in, scratch
from harness import Backend
from programs import Programs

NO_SLURM = f"Slurm is not installed: {', '.join(MISSING)} missing (Debian: apt install slurm-wlm munge)"

LONG = ("tests/security/", "tests/sites/", "tests/slurm/", "tests/scenarios/")
TOGETHER = (  # their tests share a fixture
    *("test_time_limits.py", "test_bad_input.py", "test_commands_of_docs.py"),
    *("test_strangers.py", "test_strangers_and_servers.py", "test_strangers_on_slurm.py"),
)

NUMBERS = itertools.count(1)


def pytest_sessionstart() -> None:
    # `timeout` and CI runners end a run with SIGTERM; fixtures must still tear down.
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("SIGTERM", returncode=128 + signal.SIGTERM))
    # In the background of a shell script, under nohup or cron some signals are ignored, and children inherit that. They
    # do not inherit a handler: with an empty one they start as from a terminal, and pytest still ignores the signals.
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    # Whoever runs the tests may be in a Slurm job, or have settings for the Slurm of the site.
    for name in filter(OF_SLURM.match, list(os.environ)):
        del os.environ[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the long tests first."""
    items.sort(key=lambda item: next((n for n, folder in enumerate(LONG) if item.nodeid.startswith(folder)), len(LONG)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With --dist=loadfile, give each file to one worker, but distribute the long tests one by one."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return nodeid if file.startswith(LONG) and not file.endswith(TOGETHER) else file

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if MISSING and item.get_closest_marker("slurm"):
        if os.environ.get("CI") == "true":
            pytest.fail(NO_SLURM, pytrace=False)
        pytest.skip(NO_SLURM)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.getreports("skipped") if NO_SLURM in str(report.longrepr)]
    if skipped:
        line = f"!!! {len(skipped)} SLURM TESTS DID NOT RUN. {NO_SLURM}"
        terminalreporter.write_line(line, red=True, bold=True)


@pytest.fixture(scope="session", autouse=True)
def cluster_folder() -> Iterator[Path]:
    """The folder of all clusters; none of their processes may run at the end of the session."""
    with scratch() as folder:
        yield folder
        left = processes_in(folder)
        assert not left, f"processes of the test clusters are left running: {left}"


@pytest.fixture(scope="session")
def slurm_cluster(cluster_folder: Path) -> Iterator[Cluster]:
    """A cluster of 4 nodes with 4 GPUs and 4 CPUs each, shared by all tests, idle again after each."""
    cluster = Cluster.start(cluster_folder / "shared")
    yield cluster
    cluster.stop()


@pytest.fixture(autouse=True)
def _clear_slurm_cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """End the jobs and start the dead nodes that a failed test leaves."""
    cluster = request.getfixturevalue("slurm_cluster") if "slurm_cluster" in request.fixturenames else None
    yield
    if cluster:
        cluster.clear()


@pytest.fixture
def backend_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str, dict[str, str]], Backend]]:
    """A function that makes a backend of this name and environment; all runs end with the test."""
    backends: list[Backend] = []
    light = request.node.get_closest_marker("light") is not None

    def make(name: str, environ: dict[str, str]) -> Backend:
        backends.append(Backend(name, dict(environ), tmp_path, light))
        return backends[-1]

    yield make
    for backend in backends:
        for run in backend.runs:
            run.abandon()


@pytest.fixture
def slurm_on(backend_of: Callable[..., Backend]) -> Callable[[Cluster], Backend]:
    """A function that makes a backend on a cluster of the test's own."""
    return lambda cluster: backend_of("slurm", cluster.env)


@pytest.fixture
def slurm(slurm_cluster: Cluster, slurm_on: Callable[[Cluster], Backend]) -> Backend:
    """A backend on the shared Slurm."""
    return slurm_on(slurm_cluster)


@pytest.fixture
def local(backend_of: Callable[..., Backend]) -> Backend:
    """A backend on this machine without Slurm."""
    return backend_of("local", {})


@pytest.fixture
def new_cluster(cluster_folder: Path) -> Iterator[Callable[..., Cluster]]:
    """A function that starts a cluster for this test, with the arguments of `Cluster.start` after the folder."""
    clusters: list[Cluster] = []

    def start(**options: object) -> Cluster:
        clusters.append(Cluster.start(cluster_folder / f"c{next(NUMBERS)}", **options))  # type: ignore[arg-type]
        return clusters[-1]

    yield start
    for cluster in clusters:
        cluster.stop()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Fake programs at the front of the PATH: none until `programs.add`."""
    fakes = Programs(tmp_path / "fake-programs")
    monkeypatch.setenv("PATH", f"{fakes.folder}{os.pathsep}{os.environ['PATH']}")
    return fakes


@pytest.fixture
def weird_tmp_path(tmp_path: Path) -> Path:
    """A path with spaces, both quotes and a dollar sign, on which bad quoting fails."""
    path = tmp_path / """it's a "run" $HOME dir"""
    path.mkdir()
    return path


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.slurm)])
def backend(request: pytest.FixtureRequest) -> Backend:
    """The backend of a scenario: this machine, then a real Slurm."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]
