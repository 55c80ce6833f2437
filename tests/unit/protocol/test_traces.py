"""The tracebacks of several ranks of one attempt."""

from __future__ import annotations

from functools import reduce

from ftslurm.protocol.traces import LINES, LONGEST, MOST_RANKS, Traces, added, told

KEY = "Traceback (most recent call last):\n  main()\nKeyError: 'lr'"
CLOSED = "Traceback (most recent call last):\n  step()\nRuntimeError: Connection closed by peer"


def of(*pieces: tuple[int, str]) -> Traces:
    return reduce(lambda traces, piece: added(traces, *piece), pieces, ())


def test_pieces_of_two_ranks_that_arrive_mixed_are_put_together_by_rank() -> None:
    traces = of((0, KEY[:20]), (1, CLOSED[:30]), (0, KEY[20:]), (1, CLOSED[30:]))
    assert [told(traces, rank) for rank in (0, 1, 2, None)] == [KEY, CLOSED, None, None]
    assert told((), 0) is None


def test_the_last_lines_are_told() -> None:
    long = [f"line {n}" for n in range(50)]
    assert told(of((1, "\n".join(long))), 1) == "\n".join(long[-LINES:])


def test_no_more_is_kept_than_a_few_ranks_with_a_few_thousand_characters() -> None:
    traces = of(*((rank, "x" * 3 * LONGEST) for rank in range(2 * MOST_RANKS)), (0, "end"))
    assert [rank for rank, _ in traces] == list(range(MOST_RANKS))
    assert all(len(text) == LONGEST for _, text in traces)
    assert traces[0][1].endswith("end")
