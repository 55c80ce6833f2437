"""The commands of health.preflight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftslurm.config.node_commands import check_preflight, commands
from ftslurm.config.receivers import check_receivers
from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError
from ftslurm.security import programs


def config(*entries: Any, kind: str = "slurm") -> Config:
    made = Config()
    made.health.preflight, made.cluster.kind = list(entries), kind
    return made


def test_commands_are_lists_of_words_and_the_shipped_one_needs_no_path() -> None:
    made = config(["ftslurm-preflight", "--min-shm-gb", 1], "check", ["/opt/site/check", "--quick"])
    shipped = tuple(programs.module("ftslurm.checks", "--min-shm-gb", "1"))
    assert commands(made) == [shipped, ("check",), ("/opt/site/check", "--quick")]
    check_preflight(made)


@pytest.mark.parametrize("entry", [[], {}, [""], [["a"]], [True], 3, None])
def test_what_is_no_command_is_refused_by_name(entry: Any) -> None:
    with pytest.raises(ConfigError, match=r"health\.preflight: .* is no command"):
        check_preflight(config(entry))


def test_on_this_machine_a_missing_program_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match=r"health\.preflight: .*no program that can be run"):
        check_preflight(config(["no-such-check"], kind="local"))
    check_preflight(config(["no-such-check"]))  # a compute node may have it


def test_a_program_in_this_folder_is_refused_with_how_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("note.sh").touch(0o700)
    made = config(["note.sh"], kind="local")
    made.hooks.on_event = [["note.sh"]]
    for check in (check_preflight, check_receivers):
        with pytest.raises(ConfigError, match=r"note\.sh is no program .*\(\./NAME for one in this folder\)"):
            check(made)
    made.health.preflight = made.hooks.on_event = [["./note.sh"]]
    for check in (check_preflight, check_receivers):
        check(made)
