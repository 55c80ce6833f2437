"""A worker's position, read by another process while it changes."""

from __future__ import annotations

import os
import time
import timeit

from ftslurm.protocol.position import Position
from ftslurm.protocol.stages import Stage


def test_nothing_is_known_before_the_first_mark() -> None:
    assert Position().read() is None


def test_another_process_reads_what_was_written_last() -> None:
    position = Position()
    pid = os.fork()
    if pid == 0:
        position.mark(41, Stage.SEEKING_QUORUM)
        position.mark(10**9, Stage.VOTING)
        os._exit(0)
    os.waitpid(pid, 0)
    place = position.read()
    assert place is not None
    assert (place.step, place.stage) == (10**9, Stage.VOTING)
    assert 0 <= place.since_s < 5


def test_the_same_place_again_keeps_its_time() -> None:
    position = Position()
    position.mark(1, Stage.COLLECTIVE)
    time.sleep(0.02)
    position.mark(1, Stage.COLLECTIVE)
    place = position.read()
    assert place is not None
    assert place.since_s >= 0.02


def test_no_reader_ever_sees_half_of_a_mark() -> None:
    position = Position()
    pid = os.fork()
    if pid == 0:
        step = 0
        while True:
            step += 1
            position.mark(step << 20 | step, Stage(step % 5))
    try:
        seen = set()
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            place = position.read()
            if place is not None:
                low = place.step & 0xFFFFF
                assert place.step >> 20 == low
                assert place.stage == low % 5
                seen.add(low)
        assert seen
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_a_mark_costs_next_to_nothing() -> None:
    position = Position()
    numbers = iter(range(10**6))
    best = min(timeit.repeat(lambda: position.mark(next(numbers), Stage.SEEKING_QUORUM), number=1000, repeat=20)) / 1000
    assert best < 20e-6  # 0.5 microseconds on an idle machine; this one may be loaded


def test_the_numbers_beside_it_do_not_disturb_it() -> None:
    position = Position()
    position.mark(3, Stage.HAS_QUORUM)
    position.reached, position.log = 2, 77
    place = position.read()
    assert place is not None
    assert (place.step, position.reached, position.log) == (3, 2, 77)


def test_what_the_guard_writes_the_worker_reads() -> None:
    position = Position()
    pid = os.fork()
    if pid == 0:
        position.reached = 10**9
        os._exit(0)
    os.waitpid(pid, 0)
    assert (position.reached, position.log) == (10**9, 0)
    assert position.read() is None


def test_the_step_from_which_on_a_checkpoint_is_wanted_lies_beside_the_others() -> None:
    position = Position()
    position.mark(3, Stage.HAS_QUORUM)
    position.reached, position.wanted = 7, 9
    assert (position.reached, position.wanted, position.log) == (7, 9, 0)
