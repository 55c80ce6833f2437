"""The ranks of a step's tasks, from their nodes."""

from __future__ import annotations

import pytest

from ftslurm.core.groups.ranks import expected, table
from ftslurm.core.state.model import Place
from ftslurm.protocol.messages import Rank


@pytest.mark.parametrize(
    ("hosts", "ranks"),
    [
        pytest.param("a", [(0, 0, 0)], id="one task"),
        pytest.param("a a", [(0, 0, 0), (1, 1, 0)], id="one node"),
        pytest.param("a b", [(0, 0, 0), (1, 0, 1)], id="one task on each node"),
        pytest.param("a a b b", [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1)], id="in blocks, as Slurm is told to"),
        pytest.param("a b a b", [(0, 0, 0), (2, 0, 1), (1, 1, 0), (3, 1, 1)], id="cyclically"),
        pytest.param("b b a a", [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1)], id="nodes count as they appear"),
        pytest.param("a b b a b", [(0, 0, 0), (2, 0, 1), (3, 1, 1), (1, 1, 0), (4, 2, 1)], id="unevenly"),
    ],
)
def test_workers_of_a_node_are_neighbours_however_slurm_deals_out_the_tasks(
    hosts: str, ranks: list[tuple[int, int, int]]
) -> None:
    names = hosts.split()
    assert table(names) == tuple(Rank(r, node, local, n) for node, (r, local, n) in zip(names, ranks, strict=True))


def test_ranks_are_numbered_as_torchrun_numbers_them() -> None:
    for rank in table(["a", "b", "c"] * 4):
        assert rank.rank == rank.node_rank * 4 + rank.local_rank


def test_the_expected_table_is_that_of_blocks_on_the_nodes_of_the_place() -> None:
    assert expected(Place(("n3", "n7"), slot=1), 2) == ("n3", "n3", "n7", "n7")
