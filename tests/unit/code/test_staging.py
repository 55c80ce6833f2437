"""The archive of a Python environment (ftslurm.code.staging), and a node's copy of it (ftslurm.code.node_copy)."""

from __future__ import annotations

import fcntl
import os
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from full_disk import full_disk

from ftslurm.code import staging
from ftslurm.config.schema import Config
from ftslurm.config.validate import check
from ftslurm.errors import ConfigError

WHERE = "import os, sys; print(sys.prefix); print(os.environ.get('FTSLURM_NOT_STAGED', ''))"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A run whose environment has one module, staged into the folder `node`."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    packages = next(venv.glob("lib/python*/site-packages"))
    (packages / "my_module.py").write_text("value = 1\n")
    (tmp_path / "node").mkdir()
    config = Config()
    config.job.script = __file__
    config.job.python = str(venv / "bin/python")
    config.job.stage_python = str(tmp_path / "node")
    config.run.root = str(tmp_path / "runs")
    return config


def started(config: Config, code: str = WHERE) -> tuple[list[str], str]:
    """Start a worker's Python; return the lines it prints, and its stderr."""
    ran = subprocess.run([*staging.start(config), "-c", code], capture_output=True, text=True, check=True)
    return ran.stdout.splitlines(), ran.stderr


@contextmanager
def running(config: Config) -> Iterator[subprocess.Popen[str]]:
    """A worker that prints where it runs, and why not from the copy, and lives until the end."""
    code = "import os, sys; print(sys.prefix, os.environ.get('FTSLURM_NOT_STAGED', ''), sep='|', flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([*staging.start(config), "-c", code], stdin=pipe, stdout=pipe, text=True) as worker:
        try:
            yield worker
        finally:
            worker.kill()


def told(worker: subprocess.Popen[str]) -> tuple[str, str]:
    """Where the worker runs, and why not from the copy. It must say so within 20 seconds."""
    assert worker.stdout
    assert select.select([worker.stdout], [], [], 20)[0], "the worker still waits"
    prefix, _, problem = worker.stdout.readline().strip().partition("|")
    return prefix, problem


def original(config: Config) -> str:
    return str(Path(config.job.python).parents[1])


def is_free(lock: Path) -> bool:
    held = os.open(lock, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(held)
    return True


def lock_files(config: Config) -> list[Path]:
    """The lock of those who use the copy, which is its folder, and of those who unpack it."""
    return [*copies(config), Path(config.job.stage_python) / f"ftslurm-{os.geteuid()}/unpack.lock"]


def slow_tar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str) -> Path:
    """Make `tar` wait for `go_on`, then do `then`; return the file with a line for each call."""
    (tmp_path / "bin").mkdir()
    calls, go = tmp_path / "calls", tmp_path / "go"
    program = tmp_path / "bin/tar"
    waits = f"until test -e {shlex.quote(str(go))}; do sleep 0.02; done"
    program.write_text(f"#!/bin/sh\necho call >> {shlex.quote(str(calls))}\n{waits}\n{then}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return calls


def go_on(tmp_path: Path, *workers: subprocess.Popen[str]) -> None:
    """Let `tar` go on as soon as all workers wait for it, or have called it."""
    until = time.monotonic() + 20
    while not all(map(unpacks, workers)):
        assert time.monotonic() < until
        time.sleep(0.01)
    (tmp_path / "go").touch()


def unpacks(worker: subprocess.Popen[str]) -> bool:
    """Return whether a worker has opened the lock of those who unpack."""
    with suppress(OSError):
        return any(str(fd.readlink()).endswith("/unpack.lock") for fd in Path(f"/proc/{worker.pid}/fd").iterdir())
    return False


def copies(config: Config) -> list[Path]:
    return [path for path in (Path(config.job.stage_python) / f"ftslurm-{os.geteuid()}").iterdir() if path.is_dir()]


def module(config: Config) -> Path:
    return next(Path(config.job.python).parents[1].glob("lib/python*/site-packages/my_module.py"))


def test_a_worker_imports_from_the_copy_of_its_node_which_the_next_one_uses_again(config: Config) -> None:
    assert "archived in" in staging.stage(config)
    (prefix, problem), said = started(config)
    (copy,) = copies(config)
    assert (prefix, problem) == (str(copy), "")
    assert "is in" in said  # unpacked
    code = "import my_module, sys; print(my_module.__file__, my_module.value, sys.executable)"
    (line,), said = started(config, code)
    assert line == f"{copy / module(config).relative_to(Path(config.job.python).parents[1])} 1 {copy}/bin/python"
    assert said == ""


def test_an_archive_is_used_again_until_a_file_has_changed(config: Config) -> None:
    assert staging.stage(config)
    first = config.internal.staged_python
    (module(config).parent / "__pycache__").mkdir()
    (module(config).parent / "__pycache__/my_module.pyc").write_bytes(b"Python writes these at any time")
    assert staging.stage(config) == ""
    assert config.internal.staged_python == first
    module(config).write_text("value = 22\n")
    assert staging.stage(config)
    assert config.internal.staged_python != first
    assert started(config, "import my_module; print(my_module.value)")[0] == ["22"]


def test_of_many_workers_that_start_at_once_one_unpacks(config: Config) -> None:
    staging.stage(config)
    command = [*staging.start(config), "-c", WHERE]
    pipe = subprocess.PIPE
    all_of_them = [subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) for _ in range(6)]
    said = [process.communicate(timeout=60) for process in all_of_them]
    assert {out for out, _ in said} == {f"{copies(config)[0]}\n\n"}
    assert sum("is in" in err for _, err in said) == 1


def strange(folder: Path, how: str) -> Path:
    own = folder / f"ftslurm-{os.geteuid()}"
    if how == "a link":
        (folder / "elsewhere").mkdir(mode=0o700)
        own.symlink_to(folder / "elsewhere")
    elif how == "writable":
        own.mkdir()
        own.chmod(0o777)
    elif how == "replaceable":
        folder.chmod(0o777)
    else:
        own.mkdir(mode=0o700)
        os.chown(own, 12345, -1)
    return folder


@pytest.mark.parametrize(
    "how",
    [
        "a link",
        "writable",
        "replaceable",
        pytest.param("another's", marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")),
    ],
)
def test_a_folder_of_a_stranger_is_not_used(config: Config, how: str) -> None:
    staging.stage(config)
    strange(Path(config.job.stage_python), how)
    (prefix, problem), _ = started(config)
    assert prefix == str(Path(config.job.python).parents[1])
    assert config.job.stage_python in problem


def test_an_archive_that_a_stranger_may_have_written_is_not_unpacked(config: Config) -> None:
    staging.stage(config)
    archive = str(config.internal.staged_python).rpartition(":")[0]
    os.chmod(archive, 0o666)
    (_, problem), _ = started(config)
    assert "another user may have written" in problem
    assert copies(config) == []


def test_with_a_full_disk_the_worker_starts_from_the_shared_file_system(config: Config, tmp_path: Path) -> None:
    staging.stage(config)
    with full_disk(tmp_path / "full", kib=256) as folder:
        config.job.stage_python = str(folder)
        (prefix, problem), _ = started(config)
    assert prefix == str(Path(config.job.python).parents[1])
    assert "has no room for the " in problem


def test_workers_whose_copy_cannot_be_unpacked_fall_back_while_those_before_them_live(config: Config) -> None:
    staging.stage(config)
    os.unlink(str(config.internal.staged_python).rpartition(":")[0])
    with running(config) as first, running(config) as second:
        said = [told(first), told(second)]
        with running(config) as later:
            said.append(told(later))
        assert {prefix for prefix, _ in said} == {original(config)}
        assert all("No such file" in problem for _, problem in said)
        assert [is_free(lock) for lock in lock_files(config)] == [True]


def test_those_who_wait_for_an_unpacking_that_fails_fall_back_with_its_reason(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging.stage(config)
    slow_tar(tmp_path, monkeypatch, "echo tar: no space >&2; exit 2")
    with ExitStack() as stack:
        workers = [stack.enter_context(running(config)) for _ in range(4)]
        go_on(tmp_path, *workers)
        said = [told(worker) for worker in workers]
    assert {prefix for prefix, _ in said} == {original(config)}
    assert all("no space" in problem for _, problem in said), said


def test_those_who_wait_for_an_unpacking_run_from_its_copy(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging.stage(config)
    calls = slow_tar(tmp_path, monkeypatch, f'exec {shutil.which("tar")} "$@"')
    with running(config) as first, running(config) as second:
        go_on(tmp_path, first, second)
        said = [told(first), told(second)]
        (copy,) = copies(config)
        assert said == [(str(copy), "")] * 2
        used, unpack = lock_files(config)
        assert (is_free(used), is_free(unpack)) == (False, True)
    assert is_free(used)
    assert calls.read_text() == "call\n"


def test_a_worker_that_cannot_run_from_the_copy_does_not_keep_it_locked(config: Config) -> None:
    staging.stage(config)
    started(config)
    (copy,) = copies(config)
    python = copy / "bin/python"
    python.unlink()
    python.symlink_to("python-of-another-node")
    with running(config) as worker:
        prefix, problem = told(worker)
        assert prefix == original(config)
        assert f"No such file or directory: '{python}'" in problem
        assert [is_free(lock) for lock in lock_files(config)] == [True, True]


def test_a_copy_that_lost_its_interpreter_is_unpacked_again(config: Config) -> None:
    staging.stage(config)
    started(config)
    (copy,) = copies(config)
    (copy / "bin/python").unlink()
    assert started(config)[0] == [str(copy), ""]
    assert (copy / "bin/python").exists()


def test_other_copies_are_removed_unless_a_worker_runs_from_them(config: Config) -> None:
    staging.stage(config)
    code = "import sys; print(sys.prefix, flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    worker = subprocess.Popen([*staging.start(config), "-c", code], stdin=pipe, stdout=pipe, text=True)
    assert worker.stdout
    in_use = Path(worker.stdout.readline().strip())
    seen = []
    for value in range(2, 4 + staging.KEPT):
        module(config).write_text(f"value = {value}{'  #' * value}\n")
        staging.stage(config)
        seen.append(Path(started(config)[0][0]))
    worker.communicate("")
    assert in_use in copies(config)
    assert set(copies(config)) == {in_use, seen[-1]}
    assert len(list(Path(config.run.root, staging.FOLDER).glob("*.tar"))) == staging.KEPT


@pytest.mark.parametrize("when", [0, 2**33], ids=["long ago", "by a clock that went wrong"])
def test_an_old_copy_is_unpacked_again_also_with_read_only_folders(config: Config, when: int) -> None:
    """A cleaner of /tmp removes what was not read for some days."""
    packages = module(config).parent
    packages.chmod(0o555)
    staging.stage(config)
    started(config)
    (copy,) = copies(config)
    copied = next(copy.glob("lib/python*/site-packages/my_module.py"))
    copied.parent.chmod(0o755)
    copied.unlink()
    copied.parent.chmod(0o555)
    os.utime(copy, (when, when))
    assert started(config, "import my_module; print(my_module.value)")[0] == ["1"]
    packages.chmod(0o755)


def test_a_worker_locks_the_folder_of_its_copy_against_cleaners(config: Config) -> None:
    """As in tmpfiles.d(5): what is below a locked folder is left alone."""
    staging.stage(config)
    with running(config) as worker:
        folder = os.open(told(worker)[0], os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(folder)


def test_the_base_installation_is_not_staged(config: Config) -> None:
    config.job.python = os.path.realpath("/usr/bin/python3")
    if not os.path.exists(config.job.python):
        pytest.skip("there is no /usr/bin/python3")
    with pytest.raises(ConfigError, match="no virtual environment"):
        staging.stage(config)


def test_settings_that_contradict_it_are_refused(config: Config) -> None:
    config.run.name = "staged"
    config.job.stage_python = "scratch"
    with pytest.raises(ConfigError, match="absolute path"):
        check(config)
    config.job.stage_python = True
    config.cluster.container_image = "/images/train.sqsh"
    with pytest.raises(ConfigError, match="container_image"):
        check(config)
    config.cluster.container_image = None
    config.job.python = ["apptainer", "exec", "img.sif", "python"]
    with pytest.raises(ConfigError, match="plain interpreter"):
        check(config)
