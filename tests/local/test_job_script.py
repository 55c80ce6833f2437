"""job=script with modules, arguments, environments, interpreters and command prefixes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from harness import LIGHT_WORKER, Backend

TRAIN = """
import json, os, sys
from pkg import helper
names = ("REPLICA_GROUP_ID", "RANK", "FLAVOUR", "SECRET", "FTSLURM_RUN_DIR", "NICE")
seen = {"argv": sys.argv[1:], "name": __name__, "package": __package__, "cwd": os.getcwd(), "nice": os.nice(0)}
print("SEEN " + json.dumps(seen | {name: os.environ.get(name) for name in names}), flush=True)
"""
# As an image's entry point may: another folder, and of the host's variables only those that it knows to be the job's.
ENTRY = """#!/bin/sh
cd / && exec env -i $(env | grep -E '^(PATH|PYTHONPATH|FLAVOUR|OMP_|SLURM|FTSLURM_|TORCHFT_)') "$@"
"""


@pytest.fixture
def local(local: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """A backend whose folder holds only a package and an entry point."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").write_text("")
    (tmp_path / "pkg/helper.py").write_text("")
    (tmp_path / "pkg/train.py").write_text(TRAIN)
    (tmp_path / "entry").write_text(ENTRY)
    (tmp_path / "entry").chmod(0o755)
    monkeypatch.setenv("SECRET", "of the host")
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", "") + f":{tmp_path}")
    return local


def launch(local: Backend, *words: str) -> tuple[str, ...]:
    number = len(local.runs)
    return ("run", "cluster=local", "groups.gpus=0", f"run.root=runs{number}", "follow=true", *words)


def test_a_module_with_arguments_and_environment_behind_a_containers_entry_point(local: Backend) -> None:
    run = local.launch(
        *launch(local, "job.module=pkg.train", "job.env.FLAVOUR=vanilla", "groups.count=2"),
        f"job.python=[env,'NICE=1',nice,-n,5,{local.tmp_path}/entry,'{sys.executable}','{LIGHT_WORKER}']",
        "job.args.id={REPLICA_GROUP_ID}",
        'job.args.of="group-{REPLICA_GROUP_ID}-of-{NUM_REPLICA_GROUPS}"',
        """job.args.json='{"rank": {RANK}, "other": {}}'""",
        "job.args.flag=true",
    ).finish()
    for group in range(2):
        seen = json.loads(run.rank_log(group).partition("SEEN ")[2].splitlines()[0])
        id_and_name = ["--id", str(group), "--of", f"group-{group}-of-2"]
        assert seen["argv"] == [*id_and_name, "--json", '{"rank": 0, "other": {}}', "--flag"]
        assert (seen["name"], seen["package"]) == ("__main__", "pkg")
        assert (seen["cwd"], seen["nice"]) == ("/", min(os.nice(0) + 5, 19))  # the entry point's, the prefix's
        assert (seen["FLAVOUR"], seen["SECRET"], seen["NICE"]) == ("vanilla", None, None)
        assert seen["FTSLURM_RUN_DIR"] == str(run.dir)


@pytest.mark.nightly
def test_a_prefix_that_takes_the_environment_away_is_told_so(local: Backend) -> None:
    path = f'"PATH={os.environ["PATH"]}","PYTHONPATH={os.environ.get("PYTHONPATH", "")}"'
    run = local.launch(
        *launch(
            local,
            "job.module=pkg.train",
            "groups.count=1",
            f"job.python=[env,-i,{path},'{sys.executable}','{LIGHT_WORKER}']",
        )
    ).finish(code=1)
    (end,) = run.named("run_finished")
    assert "the environment of the step has not reached the worker" in str(end["failure"])
    assert "job.python" in str(end["failure"])
