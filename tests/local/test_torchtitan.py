"""job=torchtitan without a GPU: torchtitan's own parser accepts its arguments in every group.

torchtitan is outside the tests' environment, with what it needs beside torch: packages for data and metrics, and the
compiler triton, without which it reads no argument (1.5 GB, most of it triton; a minute; kept in pytest's cache).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import Backend
from quick import ftslurm

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="torchtitan needs Python 3.11"),
]

TORCHTITAN = (
    *("torchtitan==0.3.0", "tyro==1.0.17", "docstring_parser==0.18.0", "typeguard==4.6.0", "spmd_types==0.2.3"),
    "torchdata==0.11.0",
)
PARTS = ("triton==3.9.0", "datasets==5.2.0", "tokenizers==0.23.3", "tensorboard==2.21.0")
PARSER = """
import json, os
from torchtitan.config import ConfigManager
config = ConfigManager().parse_args()
found = {"class": type(config).__qualname__, "steps": config.training.steps, "dump": config.dump_folder}
for section in ("fault_tolerance", "checkpoint"):
    fields = getattr(config, section)
    found[section] = {name: getattr(fields, name) for name in type(fields).__dataclass_fields__}
# Its Manager is made without these: torchft takes them from the environment.
found["lighthouse"] = os.environ["TORCHFT_LIGHTHOUSE"]
print("PARSED " + json.dumps(found, default=str), flush=True)
"""


def installed(request: pytest.FixtureRequest, name: str, *words: str) -> Path:
    """Return a folder with packages, which pytest's cache keeps."""
    assert request.config.cache is not None
    folder = request.config.cache.mkdir(name) / "-".join(words).replace("==", "-").lstrip("-")
    if not folder.exists():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        subprocess.run([*pip, "--target", str(part), *words], check=True, timeout=600)
        part.rename(folder)
    return folder


@pytest.fixture(scope="module")
def torchtitan(request: pytest.FixtureRequest) -> Path:
    """A folder with torchtitan and its parser, without what else it needs beside torch."""
    return installed(request, "torchtitan", "--no-deps", *TORCHTITAN)


@pytest.fixture(scope="module")
def parts(request: pytest.FixtureRequest) -> Path:
    """A folder with the rest, which it imports before it reads its arguments."""
    return installed(request, "parts-of-torchtitan", *PARTS)


def titan(*words: str, beside: tuple[Path, ...]) -> tuple[str, ...]:
    """Start `ftslurm run job=torchtitan` with folders of packages for the workers."""
    paths = [*map(str, beside), *os.environ.get("PYTHONPATH", "").split(":")]
    words = (*words, f'job.env.PYTHONPATH="{":".join(paths)}"')
    return ("run", "job=torchtitan", "cluster=local", "groups.gpus=0", "run.root=runs0", "follow=true", *words)


def test_torchtitans_own_parser_takes_the_arguments_of_each_group(
    local: Backend, torchtitan: Path, parts: Path
) -> None:
    local.script(PARSER, "parse_titan.py")
    run = local.launch(
        *titan("job.module=parse_titan", "groups.count=2", beside=(torchtitan, parts)),
        *("job.args.training.steps=7", "checkpoint.every=50", "job.args.fault_tolerance.semi_sync_method=None"),
    ).finish()
    for group in range(2):
        found = json.loads(run.rank_log(group).partition("PARSED ")[2].splitlines()[0])
        assert (found["class"], found["steps"]) == ("FaultTolerantTrainer.Config", 7)
        assert found["dump"] == f"{run.dir}/torchtitan"
        ft, checkpoint = found["fault_tolerance"], found["checkpoint"]
        assert ft["process_group"] == "gloo"  # said by torchft.process_group=auto: there is no GPU
        assert (ft["enable"], ft["replica_id"], ft["group_size"], ft["semi_sync_method"]) == (True, group, 2, None)
        assert (checkpoint["enable"], checkpoint["interval"], checkpoint["keep_latest_k"]) == (True, 50, 3)
        assert checkpoint["folder"] == f"{run.dir}/checkpoints"
        assert found["lighthouse"].startswith("http://127.0.0.1:")


def test_where_it_cannot_run_its_own_error_is_told(local: Backend, torchtitan: Path) -> None:
    run = local.launch(*titan("groups.count=1", beside=(torchtitan,))).finish(code=1)
    assert f"{torchtitan.name}/torchtitan/train.py" in run.rank_log(
        0
    )  # where pytest keeps its cache in a git tree: a copy
    (end,) = run.named("run_finished")
    assert end["failure"]


def test_without_torchtitan_nothing_is_submitted(tmp_path: Path) -> None:
    done = ftslurm("run", "job=torchtitan", "cluster=local", "groups.gpus=0", cwd=tmp_path)
    assert done.returncode == 2
    assert "no module named 'torchtitan.train'" in done.stderr
