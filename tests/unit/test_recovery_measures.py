"""What one fault has cost, computed from lines of commits."""

from __future__ import annotations

from goodput_measures import Commit
from recovery_measures import cost, quiet_again


def commits(
    replica: int, pid: int, first: int, times: list[float], lineage: int = 7, together: int = 3
) -> list[Commit]:
    """Return one step for each time, numbered from `first` on."""
    return [Commit(t, replica, pid, first + i, lineage, together, 8 * together) for i, t in enumerate(times)]


def test_one_replica_comes_back_while_the_others_go_on() -> None:
    lines = [
        *commits(0, 100, 1, [1.0, 2.0, 3.0, 4.5, 5.5, 6.5]),
        *commits(1, 101, 1, [1.0, 2.0]),
        *commits(2, 102, 1, [1.0, 2.0, 3.0, 4.2, 5.5, 6.5]),
        *commits(1, 201, 5, [5.5, 6.5]),
    ]
    found = cost(lines, at=2.5, victims=(1,), until=7.0)
    assert found.back_s == 3.0
    assert found.pause_s == 1.5
    assert (found.restarted, found.undone) == (0, 0)


def test_a_commit_of_the_killed_process_is_not_taken_for_its_return() -> None:
    lines = [*commits(0, 100, 1, [1.0, 2.0, 3.0]), *commits(1, 101, 1, [1.0, 2.6])]
    assert cost(lines, at=2.5, victims=(1,), until=4.0).back_s is None


def test_all_killed_replicas_must_be_back_and_the_last_one_counts() -> None:
    lines = [
        *commits(0, 100, 1, [1.0, 2.0, 3.0, 4.0, 5.0]),
        *commits(1, 101, 1, [1.0]),
        *commits(2, 102, 1, [1.0]),
        *commits(1, 201, 3, [3.0, 4.0, 5.0]),
    ]
    assert cost(lines, at=1.5, victims=(1, 2), until=6.0).back_s is None
    assert cost([*lines, *commits(2, 202, 5, [5.0])], at=1.5, victims=(1, 2), until=6.0).back_s == 3.5


def test_a_job_that_starts_again_as_a_whole_restarts_the_others_and_undoes_steps() -> None:
    lines = [
        *(line for replica in range(3) for line in commits(replica, 100 + replica, 1, [1.0, 2.0, 3.0, 4.0])),
        *(line for replica in range(3) for line in commits(replica, 200 + replica, 3, [9.0, 10.0, 11.0], lineage=8)),
    ]
    found = cost(lines, at=4.5, victims=(1,), until=11.5)
    assert found.back_s == 4.5
    assert found.pause_s == 5.0
    assert found.restarted == 2
    assert found.undone == 2  # steps 3 and 4


def test_a_killed_replica_that_dies_again_before_the_end_counts_as_restarted() -> None:
    lines = [*commits(0, 100, 1, [1.0, 2.0, 3.0]), *commits(1, 101, 1, [1.0]), *commits(1, 201, 3, [3.0])]
    assert cost(lines, at=1.5, victims=(1,), until=6.0).restarted == 0
    assert cost([*lines, *commits(1, 301, 5, [5.0])], at=1.5, victims=(1,), until=6.0).restarted == 1


def test_ranks_of_one_group_have_lineages_of_their_own_and_nothing_is_undone() -> None:
    ranks = [
        commits(replica, 100 + 10 * lineage + replica, 1, [1.0, 2.0, 3.0], lineage)
        for replica in (0, 1)
        for lineage in (7, 8)
    ]
    assert cost([line for rank in ranks for line in rank], at=1.5, victims=(), until=4.0).undone == 0


def test_who_never_commits_again_pauses_until_now() -> None:
    assert cost(commits(0, 100, 1, [1.0, 2.0]), at=2.5, victims=(), until=60.0).pause_s == 58.0


def test_a_training_is_quiet_again_when_all_replicas_have_committed_together() -> None:
    alone = commits(0, 100, 5, [3.0, 4.0], together=2)
    whole = [line for replica in range(3) for line in commits(replica, 100 + replica, 7, [5.0, 6.0])]
    assert not quiet_again(alone, since=2.0, replicas=3, steps=2)
    assert quiet_again(alone + whole, since=2.0, replicas=3, steps=2)
    assert not quiet_again(alone + whole, since=5.5, replicas=3, steps=2)
