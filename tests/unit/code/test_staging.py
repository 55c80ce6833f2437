"""The archive of a Python environment (ftslurm.code.staging), and a node's copy of it (ftslurm.code.node_copy)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from full_disk import full_disk

from ftslurm.code import node_copy, staging
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
    first = config.job.staged_python
    (module(config).parent / "__pycache__").mkdir()
    (module(config).parent / "__pycache__/my_module.pyc").write_bytes(b"Python writes these at any time")
    assert staging.stage(config) == ""
    assert config.job.staged_python == first
    module(config).write_text("value = 22\n")
    assert staging.stage(config)
    assert config.job.staged_python != first
    assert started(config, "import my_module; print(my_module.value)")[0] == ["22"]


def test_of_many_workers_that_start_at_once_one_unpacks(config: Config) -> None:
    staging.stage(config)
    command = [*staging.start(config), "-c", WHERE]
    pipe = subprocess.PIPE
    all_of_them = [subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) for _ in range(6)]
    said = [process.communicate(timeout=60) for process in all_of_them]
    assert {out for out, _ in said} == {f"{copies(config)[0]}\n\n"}
    assert sum("is in" in err for _, err in said) == 1


@pytest.mark.parametrize("boot", [None, "the boot before"], ids=["killed while it unpacked", "before a crash"])
def test_a_copy_that_may_be_damaged_is_unpacked_again(config: Config, boot: str | None) -> None:
    staging.stage(config)
    started(config)
    (copy,) = copies(config)
    (module(config)).unlink()  # of the original; the archive has it
    copied = next(copy.glob("lib/python*/site-packages/my_module.py"))
    copied.write_text("value = 'half'\n")
    (copy / ".ftslurm-boot").write_text(boot) if boot else (copy / ".ftslurm-boot").unlink()
    assert started(config, "import my_module; print(my_module.value)")[0] == ["1"]


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
    archive = str(config.job.staged_python).rpartition(":")[0]
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
    assert "No space left on device" in problem


def test_who_has_waited_for_a_failed_unpacking_does_not_try_again(tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    with pytest.raises(FileNotFoundError):
        node_copy._try_to_unpack(lock, f"{tmp_path}/no.tar", f"{tmp_path}/copy", time.time())
    with pytest.raises(node_copy.Unusable, match=r"no\.tar: No such file"):
        node_copy._try_to_unpack(lock, f"{tmp_path}/no.tar", f"{tmp_path}/copy", time.time() - 10)  # waited for it
    with pytest.raises(FileNotFoundError):  # started later: it tries
        node_copy._try_to_unpack(lock, f"{tmp_path}/no.tar", f"{tmp_path}/copy", time.time() + 10)


def test_old_copies_are_removed_unless_a_worker_runs_from_them(config: Config) -> None:
    staging.stage(config)
    code = "import sys; print(sys.prefix, flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    worker = subprocess.Popen([*staging.start(config), "-c", code], stdin=pipe, stdout=pipe, text=True)
    assert worker.stdout
    in_use = Path(worker.stdout.readline().strip())
    seen = []
    for value in range(2, 2 + node_copy.KEPT + 1):
        module(config).write_text(f"value = {value}{'  #' * value}\n")
        staging.stage(config)
        seen.append(Path(started(config)[0][0]))
    worker.communicate("")
    assert in_use in copies(config)
    assert seen[0] not in copies(config)
    assert seen[-1] in copies(config)
    assert len(list(Path(config.run.root, staging.FOLDER).glob("*.tar"))) == staging.KEPT


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
