"""The time-outs of a run, the variables for NCCL, and what averages between groups."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_validate import config, refusal

from ftslurm.config import ladder
from ftslurm.config.process_groups import HEARTBEAT, nccl_variables, process_group
from ftslurm.config.schema import Config
from ftslurm.config.validate import check

GPUS = {"groups__gpus": 1}


NUMBERS = st.floats(1, 1e6)


@given(NUMBERS, NUMBERS, st.integers(1, 10_000), st.sampled_from(["ftslurm", "torchft"]))
def test_what_follows_from_other_settings_contradicts_nothing(
    longest_step_s: float, lost_after_s: float, timeout_s: int, lighthouse: str
) -> None:
    made = config(
        job__longest_step_s=longest_step_s, health__lost_after_s=lost_after_s, torchft__timeout_s=timeout_s,
        lighthouse__kind=lighthouse,
    )  # fmt: skip
    check(made)
    two_beats = 2 * made.heartbeat_s
    assert two_beats < made.silent_after_s or lighthouse == "torchft"  # guards are missed before the group's manager
    assert two_beats <= made.health.lost_after_s < made.orphan_after_s
    assert made.silent_after_s < made.quorum_timeout_s > made.late_after_s
    assert longest_step_s <= made.quorum_timeout_s < made.join_timeout_s
    assert longest_step_s < made.first_step_s
    assert two_beats < made.hang_least_s > timeout_s


def test_the_derived_time_limits_of_the_defaults_and_of_groups_that_sync_rarely() -> None:
    made = config()
    assert (made.heartbeat_s, made.orphan_after_s, made.silent_after_s, made.poll_s) == (1, 60, 3, 15)
    assert (made.quorum_timeout_s, made.late_after_s) == (60, 10)
    assert (made.join_timeout_s, made.first_step_s, made.hang_least_s) == (1800, 120, 300)
    assert config(lighthouse__kind="torchft").silent_after_s == 1
    rare = config(job__longest_step_s=3600.0, torchft__timeout_s=600)
    assert (rare.quorum_timeout_s, rare.late_after_s, rare.join_timeout_s) == (3600, 600, 7200)
    assert (rare.first_step_s, rare.hang_least_s) == (3660, 900)


def test_what_is_off_or_not_there_is_no_rung() -> None:
    def names(**settings: Any) -> str:
        return " ".join(rung.name for rung in ladder.rungs(config(**settings), 1.0))

    assert "hang" not in names(health__hang_after_s=0)
    assert "late" not in names(lighthouse__kind="none")
    assert "KillWait" not in names(cluster__kind="local")  # Slurm has no part in it


def test_the_rungs_are_in_order_and_name_what_slurm_and_torch_do() -> None:
    rungs = ladder.rungs(config(**GPUS), 30.0)
    assert [rung.seconds for rung in rungs] == sorted(rung.seconds for rung in rungs)
    names = " ".join(rung.name for rung in rungs)
    assert all(name in names for name in ("KillWait", HEARTBEAT, "NCCL's watchdog", "health.hang_after_s=auto"))
    on_cpus = " ".join(rung.name for rung in ladder.rungs(config(cluster__kind="local")))
    assert not any(name in on_cpus for name in ("KillWait", HEARTBEAT, "NCCL", "cluster.signal_s"))


# --- process groups ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "gpus", "kind"),
    [
        ("auto", 0, "gloo"),
        ("auto", None, "gloo"),
        ("auto", 2, "nccl"),
        ("gloo", 2, "gloo"),
        ("baby-nccl", 2, "baby-nccl"),
    ],
)
def test_auto_is_nccl_where_there_are_gpus(said: str, gpus: int | None, kind: str) -> None:
    assert process_group(config(torchft__process_group=said, groups__gpus=gpus)) == kind


def test_only_what_torchft_has_is_a_process_group() -> None:
    assert "auto, gloo, nccl, baby-nccl or native" in refusal(torchft__process_group="mpi")


def test_without_gpus_nccl_has_no_variables() -> None:
    assert nccl_variables(Config()) == {}


def test_torch_lets_torchft_finish_first_and_the_users_own_values_are_kept() -> None:
    found = nccl_variables(config(**GPUS, torchft__timeout_s=600, job__env={"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}))
    assert found[HEARTBEAT] == "1200"
    assert found["TORCH_NCCL_NONBLOCKING_TIMEOUT"] == "600"
    assert found["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "0"
    assert nccl_variables(config(**GPUS))[HEARTBEAT] == "480"
