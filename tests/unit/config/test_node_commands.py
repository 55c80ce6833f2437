"""The commands of health.preflight."""

from __future__ import annotations

from typing import Any

import pytest

from ftslurm.config.node_commands import check_preflight, commands
from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError
from ftslurm.security import programs


def config(*entries: Any, kind: str = "slurm") -> Config:
    made = Config()
    made.health.preflight, made.cluster.kind = list(entries), kind
    return made


def test_commands_are_lists_of_words_and_the_shipped_one_needs_no_path() -> None:
    made = config(["ftslurm-preflight", "--min-shm-gb", 1], "check", ["/opt/site/check", "--quick"])
    shipped = tuple(programs.module("ftslurm.preflight", "--min-shm-gb", "1"))
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
