"""job.secrets: the values reach every attempt of the workers, and nothing that others can read."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import Cluster
from harness import Backend, Run

pytestmark = pytest.mark.light

SECRET = "s3cr3t-0123456789"
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()
SCRIPT = """
import hashlib, os, sys, time
print("pid", os.getpid(), hashlib.sha256(os.environ["MY_API_KEY"].encode()).hexdigest(), flush=True)
if "OTHER_TOKEN" in os.environ:
    print("OTHER_TOKEN=" + hashlib.sha256(os.environ["OTHER_TOKEN"].encode()).hexdigest(), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


@pytest.fixture
def secretive(backend: Backend) -> Backend:
    """Put a secret into the environment from which the backend starts runs."""
    backend.environ["MY_API_KEY"] = SECRET
    return backend


def start(backend: Backend, *words: str) -> Run:
    end = backend.tmp_path / "end"
    run = backend.start(
        "job.secrets=[MY_API_KEY]", "groups.count=2", *words, f"job.args=['{end}']", script=backend.script(SCRIPT)
    )
    run.until(lambda: all(DIGEST in run.rank_log(group) for group in range(2)), "the workers have the secret")
    return run


def who_has_it(run: Run) -> dict[str, bool]:
    """Return (program, has the secret in its environment) of each step process; check that no command line has it."""
    found = {}
    for pid in run.processes():
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert SECRET.encode() not in words
        if b"srun" not in words:
            what = re.findall(rb"\0(ftslurm\.[\w.]+)\0", words)[0].decode()
            found[what] = f"MY_API_KEY={SECRET}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    return found


def check_nothing_written(run: Run) -> None:
    files = [path for path in run.dir.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    assert "MY_API_KEY" in (run.dir / "config.yaml").read_text()
    assert SECRET not in run.text


def test_the_workers_have_them_again_after_a_restart_and_nobody_else_does(secretive: Backend) -> None:
    run = start(secretive, f"job.env.OTHER_TOKEN={SECRET}", f"job.env.PLAIN_TOKEN={SECRET[:3]}")
    assert SECRET.encode() not in Path(f"/proc/{run.process.pid}/cmdline").read_bytes()
    run.until(lambda: f"OTHER_TOKEN={DIGEST}" in run.rank_log(0), "the worker has the one of job.env")
    assert who_has_it(run) == {"ftslurm.worker": True, "ftslurm.lighthouse": False}
    run.kill(0)
    run.until(lambda: DIGEST in run.rank_log(0, attempt=1), "the next attempt has the secret")
    if secretive.name == "slurm":
        show = ["scontrol", "show", "job", "--details"]
        shown = subprocess.run(show, env=secretive.environ, capture_output=True, text=True, check=True).stdout
        assert "JobState=RUNNING" in shown
        assert SECRET not in shown
    (secretive.tmp_path / "end").touch()
    run.finish()
    check_nothing_written(run)


def test_a_worker_that_has_lost_one_ends_the_run_and_names_it(secretive: Backend) -> None:
    run = secretive.start(
        "job.secrets=[MY_API_KEY]",
        f"job.python=[env,-u,MY_API_KEY,'{sys.executable}']",
        script=secretive.script(SCRIPT),
    )
    run.finish(code=1)
    assert "job.secrets: MY_API_KEY has not reached the worker" in str(run.named("run_finished")[0]["failure"])
    check_nothing_written(run)


@pytest.mark.slurm
def test_in_array_mode_they_come_with_the_environment_of_the_controllers_job(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend], tmp_path: Path
) -> None:
    cluster = new_cluster(nodes=4, cpus=1)
    backend = slurm_on(cluster)
    backend.environ["MY_API_KEY"] = SECRET
    run = start(backend, "cluster.kind=array")
    assert who_has_it(run) == {"ftslurm.worker": True, "ftslurm.lighthouse": False}
    assert SECRET not in cluster.run(["scontrol", "show", "job", "--details"])
    (tmp_path / "end").touch()
    run.finish()
    check_nothing_written(run)
