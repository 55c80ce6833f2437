"""The commands of health.preflight."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ftslurm.config.node_commands import check_preflight, commands
from ftslurm.config.receivers import check_receivers
from ftslurm.config.schema import Config
from ftslurm.config.validate import check
from ftslurm.errors import ConfigError


def config(*entries: Any, kind: str = "slurm") -> Config:
    made = Config()
    made.job.script = __file__
    made.health.preflight, made.cluster.kind = list(entries), kind
    return made


def test_commands_are_lists_of_words_and_the_shipped_one_needs_no_path() -> None:
    made = config(["ftslurm-preflight", "--gpus", "1"], "check", ["/opt/site/check", "--quick"])
    shipped = ("ftslurm-preflight", "--gpus", "1")
    assert commands(made) == [shipped, ("check",), ("/opt/site/check", "--quick")]
    check(made)


@pytest.mark.parametrize("entry", [[], {}, [""], [["a"]], None])
def test_what_is_no_command_is_refused_by_name(entry: Any) -> None:
    with pytest.raises(ConfigError, match=r"health\.preflight.*(: a command is empty|: must be text)"):
        check(config(entry))


def test_on_this_machine_a_missing_program_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match=r"health\.preflight: .*no program that can be run"):
        check(config(["no-such-check"], kind="local"))
    check(config(["no-such-check"]))  # a compute node may have it
    check(config(["ftslurm-preflight"], kind="local"))  # every node has it, on PATH or not


def test_a_program_in_this_folder_is_refused_with_how_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("note.sh").touch(0o700)
    made = config(["note.sh"], kind="local")
    made.hooks.on_event = [["note.sh"]]
    for rule in (check_preflight, check_receivers):
        (problem,) = rule(made)
        assert re.search(r"note\.sh is no program .*\(\./NAME for one in this folder\)", problem)
    made.health.preflight = made.hooks.on_event = [["./note.sh"]]
    check(made)
