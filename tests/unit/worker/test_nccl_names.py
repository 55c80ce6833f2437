"""Older names of the Flight Recorder's variables."""

from __future__ import annotations

import pytest

from ftslurm.worker.nccl_names import NEW, OLD, SIZE, adapt


@pytest.mark.parametrize(
    ("torch", "names"), [("2.8.0+cu128", {NEW, OLD, SIZE}), ("2.10.0", {NEW}), ("2.13.0a0", {NEW})]
)
def test_only_a_torch_that_lacks_the_new_names_gets_the_old_ones(torch: str, names: set[str]) -> None:
    environ = {NEW: "/logs/nccl-trace-rank-"}
    adapt(environ, torch)
    assert set(environ) == names


def test_what_the_user_has_set_is_kept_and_nothing_is_set_without_gpus() -> None:
    environ = {NEW: "/logs/a", OLD: "/mine"}
    adapt(environ, "2.8.0")
    assert environ[OLD] == "/mine"
    empty: dict[str, str] = {}
    adapt(empty, "2.8.0")
    assert empty == {}
