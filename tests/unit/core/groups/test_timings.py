"""The duration of each phase of a recovery, from the marks of an attempt and in the history of a run."""

from __future__ import annotations

import pytest
import said
from histories import RUNNING, STARTED, config, killed, play, ready, stepped, store
from steps import ANN, B0, B1, B2, B3

from ftslurm.core.groups.reports import NAMES, phases
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Evidence, Marks

NOTHING = dict.fromkeys(NAMES)
WHOLE = Marks(9.5, noticed=10, ended=11, launched=13, hello=16, ready=20, begun=25, quorum=31, joined=38)


@pytest.mark.parametrize(
    ("marks", "known"),
    [
        pytest.param(Marks(), {}, id="nothing is known"),
        pytest.param(Marks(10, 10, away=4), {"earlier": 6}, id="tries before"),
        pytest.param(Marks(10, 10, away=10), {}, id="the first try"),
        pytest.param(
            WHOLE,
            {"detect": 0.5, "end": 1, "wait": 2, "start": 3, "import": 4, "assign": 5, "join": 6, "commit": 7},
            id="the whole way",
        ),
        pytest.param(Marks(launched=3, hello=4, ready=6.1234567), {"start": 1, "import": 2.123}, id="a first start"),
        pytest.param(Marks(noticed=3, ended=4), {"end": 1}, id="not launched yet"),
        pytest.param(Marks(launched=9, hello=9, ready=9), {"start": 0, "import": 0}, id="a warm standby"),
        pytest.param(Marks(begun=9, quorum=8.9), {"join": 0}, id="never less than nothing"),
        pytest.param(Marks(begun=9, joined=12), {}, id="a mark is missing between"),
    ],
)
def test_the_phases_of(marks: Marks, known: dict[str, float]) -> None:
    assert phases(marks) == NOTHING | known


def test_a_first_start_has_nothing_before_its_launch() -> None:
    story = play(*STARTED, (4, said.first_quorum(B0)), (5, stepped(B0, 1)))
    (joined,) = story.records("group_joined")
    known = {"start": 2, "import": 0, "assign": 1, "join": 1, "commit": 1}
    assert joined["phases"] == NOTHING | known


def test_the_way_back_of_a_group_in_all_its_phases() -> None:
    story = play(
        *RUNNING,
        (30, ev.TaskFailed(B0, Evidence(0, None, signal=9))),
        (30.3, ev.Ended(B0, 137)),
        (32, said.hello(B1, 0, "n2")),
        (35, said.ready(B1, 0)),
        (36, store(B1)),
        (36.5, said.first_quorum(B1)),
        (36.8, said.first_quorum(B1)),  # only the first counts
        (38, stepped(B1, 40)),
    )
    (joined,) = story.records("group_joined", since=30)
    times = {"end": 0.3, "wait": 0, "start": 1.7, "import": 3, "assign": 1, "join": 0.5, "commit": 1.5}
    assert joined["phases"] == NOTHING | times
    assert joined["recovery_s"] == 8  # the sum


@pytest.mark.parametrize(
    "fails",
    [
        pytest.param([(30.2, killed(B0))], id="its worker says so"),
        pytest.param([(30.2, ev.Ended(B0, None, signal=9))], id="its step is gone without a word"),
    ],
)
def test_of_a_drill_it_is_known_how_long_it_went_unnoticed(fails: list[tuple[float, object]]) -> None:
    back = (31, ready(B1)), (32, store(B1)), (33, stepped(B1, 40))
    story = play(*RUNNING, (30, ev.Asked("inject", ANN, "c", 1, 0, fault="kill")), *fails, *back)
    (joined,) = story.records("group_joined", since=30)
    assert (joined["phases"]["earlier"], joined["phases"]["detect"]) == (None, 0.2)
    assert joined["recovery_s"] == 3  # from its death
    assert [r["down_s"] for r in story.records("step_launched", since=30)] == [0.2]
    assert [(r["noticed"], r["away_since"]) for r in story.records("step_exited")] == [(30.2, 30)]


def test_a_failure_long_after_a_drill_is_not_put_down_to_it() -> None:
    back = (301, ready(B1)), (302, store(B1)), (303, stepped(B1, 40))
    story = play(*RUNNING, (30, ev.Asked("inject", ANN, "c", 1, 0, fault="kill")), (300, killed(B0)), *back)
    assert story.records("group_joined", since=30)[0]["phases"]["detect"] is None


def test_a_group_that_fails_on_its_way_back_was_away_since_its_last_committed_step() -> None:
    quick = config(restart={"backoff_s": 0.0})
    tries = (30, killed(B0)), (32, ready(B1)), (33, store(B1)), (34, killed(B1)), (36, ready(B2)), (37, store(B2))
    again = (38, said.first_quorum(B2)), (40, stepped(B2, 60)), (90, killed(B2)), (91, ready(B3)), (92, stepped(B3, 99))
    story = play(*RUNNING, *tries, *again, config=quick)
    first, second = story.records("group_joined", since=30)
    assert (first["recovery_s"], first["phases"]["earlier"]) == (10, 4)
    known = [seconds for name, seconds in first["phases"].items() if name != "detect" and seconds is not None]
    assert sum(known) == 10
    assert (second["recovery_s"], second["phases"]["earlier"]) == (2, None)
    assert [r["away_since"] for r in story.records("step_exited")] == [30, 30, 90]
