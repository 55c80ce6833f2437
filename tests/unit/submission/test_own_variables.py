"""Each variable of job.env either reaches the script or is refused before submission: none is ignored."""

from __future__ import annotations

import inspect
import json
import os
import re
from contextlib import suppress
from pathlib import Path

import pytest

from ftslurm.config.schema import Config
from ftslurm.config.setting_names import every_key
from ftslurm.core.state.actions import Assign, Launch
from ftslurm.core.state.model import Place, StepId
from ftslurm.errors import ConfigError
from ftslurm.launchers.assignment import assignment
from ftslurm.launchers.local import ThisMachine
from ftslurm.launchers.srun import Slurm
from ftslurm.protocol import messages
from ftslurm.run.directory import RunDir
from ftslurm.slurm.commands import GPU_VARIABLES
from ftslurm.submission.preflight import check_variables
from ftslurm.worker import session

RUN = RunDir(Path("/scratch/ddp-1"))
STEP = StepId("group-0001", 0)
MINE = "mine"
LIBRARIES = {"NCCL_DEBUG", "TORCH_LOGS", "HF_HOME", "RANKS", "MY_WORLD_SIZE", "TORCHFT_OF_TOMORROW"}


def config(kind: str, lighthouse: str = "ftslurm", **groups: object) -> Config:
    made = Config()
    made.job.script, made.cluster.kind, made.lighthouse.kind = "train.py", kind, lighthouse
    made.health.compare_every = 10
    for key, value in groups.items():
        setattr(made.groups, key, value)
    return made


def of_the_script(made: Config) -> dict[str, str]:
    """Return the environment of a script, from all that sets a part of it."""
    scheduler = (ThisMachine if made.local else Slurm)(made, RUN)
    (command,) = scheduler.start(Launch(STEP, 1, Place(("n1",))), Path("/logs"))
    url = "" if made.independent else "http://n1:1"
    line = assignment(made, RUN, Assign(STEP, 1, (messages.Rank(0, "n1", 0, 0),), url, servers=("http://n1:2",)))
    assign = messages.Assign.decode(json.loads(line))
    assert assign is not None
    source = inspect.getsource(session)
    begun = re.findall(r'os\.environ\["(\w+)"\] = ', source)
    begun += re.findall(r'"(\w+)":', "".join(re.findall(r"os\.environ \|= \{.*\}", source)))
    assert "MASTER_PORT" in begun
    return {**command.env, **session.environment(assign, assign.ranks[0]), **dict.fromkeys(begun, "ours")}


def is_refused(made: Config) -> bool:
    with suppress(ConfigError):
        check_variables(made)
        return False
    return True


@pytest.mark.parametrize("lighthouse", ["ftslurm", "torchft", "none"])
@pytest.mark.parametrize("kind", ["local", "slurm", "array"])
@pytest.mark.parametrize("count", [0, 2])
def test_a_variable_reaches_the_script_or_is_refused(
    kind: str, lighthouse: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    names = {*of_the_script(config(kind, lighthouse, gpus=count)), *os.environ, *LIBRARIES} - {*GPU_VARIABLES}
    for name in names:
        made = config(kind, lighthouse, gpus=count)
        made.job.env = {name: MINE}
        if not name.startswith(("SLURM_", "FTSLURM_")):  # of Slurm; ours are refused also where they are not set
            assert is_refused(made) == (of_the_script(made).get(name) != MINE), name


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("WORLD_SIZE", "groups.workers"),
        ("NUM_REPLICA_GROUPS", "groups.count"),
        ("FTSLURM_CHECKPOINT_DIR", "checkpoint.dir"),
        ("FTSLURM_TRANSPORT", "torchft.transport"),
        ("CUDA_VISIBLE_DEVICES", "groups.gpus"),
    ],
)
def test_the_settings_to_use_instead_are_named(name: str, key: str) -> None:
    made = config("local")
    made.job.env = {name: MINE}
    with pytest.raises(ConfigError, match=rf"^job\.env\.{name}: .* would be lost; ") as refused:
        check_variables(made)
    named = {*re.findall(r"\b[a-z]+\.[a-z_]+", str(refused.value).partition("; ")[2])}
    assert key in named
    assert named <= {*every_key()}


@pytest.mark.parametrize("name", GPU_VARIABLES)
def test_gpus_are_named_by_the_user_only_where_nobody_binds_them(name: str) -> None:
    made = config("slurm", gpus=2)
    made.job.env = {name: "1"}
    assert is_refused(made)
    made.cluster.sbatch["gpus-per-node"] = False  # the nodes' GPUs are not Slurm's: the worker's share is one of these
    assert not is_refused(made)
    assert not is_refused(config("slurm", gpus=0))
    made.cluster.kind = "local"
    assert is_refused(made)  # ftslurm chooses among those that its own environment names
