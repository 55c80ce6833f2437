"""Groups of several nodes: a rank fails with a lost connection; the cause is found on the silent node."""

from __future__ import annotations

import pytest
import said
from histories import Moment, Story, beats, config, granted, is_a, merged, play, ready, stepped, store
from steps import A0, B0, B1, LIGHT0, URL

from ftslurm.core.reduce import DOUBTS_S
from ftslurm.core.state import actions as act
from ftslurm.core.state import events as ev
from ftslurm.core.state.model import Evidence
from ftslurm.protocol import messages as msg
from ftslurm.slurm.evidence import read_srun

GLOO = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.4]:21157"
WIDE = config({"orphan_after_s": 60.0}, groups={"nodes": 2}, health={"lost_after_s": 10.0})
UP: tuple[Moment, ...] = (
    (0, granted(6)),
    (1, said.hello(LIGHT0, 0, "n1"), said.lighthouse_up(LIGHT0, URL)),
    (2, ready(A0, "n1", "n2"), ready(B0, "n3", "n4")),
    (3, store(A0), store(B0)),
    (5, stepped(A0, 1), stepped(B0, 1)),
)
SLURM_IS_THERE = ev.NodesLeft(("n1", "n2", "n3", "n4", "n5", "n6"))


def echo(task: int = 0, error: str = GLOO) -> list[ev.Event]:
    """Return the reports of a rank whose sibling is gone, from the script and from its guard."""
    return [
        ev.TaskFailed(B0, Evidence(task, None, code=1, error=error)),
        ev.TaskFailed(B0, Evidence(task, None, code=1, error="its log says: bye")),
    ]


def at_20(*moments: Moment, error: str = GLOO, until: float = 26.0) -> Story:
    """Play group B on n3 and n4, whose rank 0 has raised at 20; n4 is silent."""
    heard = merged(beats({LIGHT0: until, A0: until}), beats({A0: until}, task=1))
    before = merged(beats({B0: 19.0}), beats({B0: 19.0}, task=1))
    return play(*merged(UP, before, heard, [(20, echo(error=error))], moments, [(until,)]), config=WIDE)


def verdict(story: Story) -> tuple[str, str | None]:
    (exited,) = story.records("step_exited")
    return exited["cause"], exited["node"]


def next_nodes(story: Story) -> tuple[str, ...]:
    (launch,) = (launch for launch in story.all(act.Launch) if launch.id == B1)
    return launch.place.nodes


@pytest.mark.parametrize(
    "words",
    [
        GLOO,
        "DistBackendError: NCCL error: ncclRemoteError: A call failed possibly due to a network error",
        "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed",
        "BrokenPipeError: [Errno 32] Broken pipe",
        'RuntimeError: status: Unknown, message: "h2 protocol error: error reading a body from connection"',
        'RuntimeError: status: Unavailable, message: "tcp connect error", details: []',
        'TimeoutError: status: Cancelled, message: "operation was canceled", details: []',
        "ConnectionResetError: [Errno 104] Connection reset by peer",
    ],
)
def test_at_a_lost_connection_the_silent_node_is_probed_and_nothing_is_killed_yet(words: str) -> None:
    story = at_20(error=words, until=20.5)
    assert [(time, action) for time, action in story.done if is_a(action, act.Probe)] == [(20.1, act.Probe("n4"))]
    assert story.ids(act.Kill) == []


def test_a_node_that_no_probe_reaches_is_lost_and_the_next_attempt_does_not_go_there() -> None:
    story = at_20((20.3, SLURM_IS_THERE), (22.1, ev.Ended(B0, 137)))
    assert story.times(act.Kill, B0)[0] == 21  # not later, whatever the probe's result
    assert [time for time, action in story.done if is_a(action, act.Launch) and action.id == B1] == [25.3]
    assert verdict(story) == ("node_lost", "n4")
    assert next_nodes(story) == ("n5", "n6")
    assert "n4" in story.state.nodes.out()


@pytest.mark.parametrize("refused_s", [0.0, 1.0, 3.5])
def test_while_slurmctld_is_away_or_refuses_steps_no_node_is_lost_through_a_lost_connection(refused_s: float) -> None:
    refused = ev.Looked("n4", reachable=False, refused=True)
    asks = [(23 + every / 2, SLURM_IS_THERE) for every in range(14)]
    refusals = [(23.1 + every, refused) for every in (0.0, 2.2) if every < refused_s]
    there = (23 + refused_s + 2.2, ev.Looked("n4", True, (("group-0001/0", "S"),)))
    story = at_20((21.3, ev.Ended(B0, 137)), *merged(asks, refusals, [there]), until=30)
    assert story.state.nodes.out() == frozenset()


def test_a_node_on_which_slurm_starts_nothing_is_lost_as_soon_as_it_says_so() -> None:
    story = at_20((20.4, ev.Looked("n4", False)), (20.8, ev.Ended(B0, 137)), until=21)
    assert story.times(act.Kill, B0)[0] == 20.4
    assert verdict(story) == ("node_lost", "n4")
    assert next_nodes(story) == ("n5", "n6")


def test_a_node_that_answers_without_its_processes_is_not_lost() -> None:
    gone = (20.4, ev.Looked("n4", True, (("group-0000/0", "S"),)))
    story = at_20(gone, (20.8, ev.Ended(B0, 137)), until=21)
    assert story.times(act.Kill, B0)[0] == 20.4
    assert verdict(story) == ("killed", "n4")
    assert next_nodes(story) == ("n3", "n4")


def test_a_sibling_whose_guard_answers_is_well_and_killed_at_once() -> None:
    answer = (20.15, ev.Alive(B0, 1, 20.15, "S"))
    story = at_20(answer, (20.3, ev.Ended(B0, 137)), until=21)
    assert [(time, action) for time, action in story.done if is_a(action, msg.Where)] == [
        (20.1, act.Send(B0, msg.Where()))
    ]
    assert story.times(act.Kill, B0) == [20.15]
    assert verdict(story) == ("user_error", "n3")
    assert next_nodes(story) == ("n3", "n4")


def test_a_heartbeat_that_was_sent_before_the_node_died_and_is_read_late_proves_nothing() -> None:
    late = (20.05, ev.Alive(B0, 1, 20.05, "S"))
    story = at_20(late, (20.5, ev.Looked("n4", False)), (20.8, ev.Ended(B0, 137)), until=21)
    assert verdict(story) == ("node_lost", "n4")


def test_a_worker_that_its_guard_has_not_reaped_yet_does_not_acquit_its_node() -> None:
    dying, gone = (20.3, ev.Alive(B0, 1, 20.3, "Z")), (20.6, ev.Looked("n4", True, (("group-0000/0", "S"),)))
    story = at_20(dying, gone, (20.8, ev.Ended(B0, 137)), until=21)
    assert story.times(act.Kill, B0)[0] == 20.6
    assert verdict(story) == ("killed", "n4")


@pytest.mark.parametrize(
    ("letters", "cause"), [((), "killed"), ((("group-0001/0", "S"),), "unknown"), (None, "unknown")]
)
def test_a_probe_that_answers_after_the_kill_does_not_acquit_a_node_whose_guard_was_silent(
    letters: tuple[tuple[str, str], ...] | None, cause: str
) -> None:
    late = (22, ev.Looked("n4", True, letters))
    story = at_20((21.3, ev.Ended(B0, 137)), late, until=23)
    assert story.times(act.Kill, B0)[0] == 21
    assert verdict(story) == (cause, "n4")


def test_a_guard_that_stays_silent_on_a_node_that_answers_makes_the_cause_unknown() -> None:
    there = (20.2, ev.Looked("n4", True, (("group-0001/0", "S"),)))
    story = at_20(there, (21.3, ev.Ended(B0, 137)), until=23)
    assert [time for time, action in story.done if is_a(action, act.Probe)] == [20.1]
    assert story.times(act.Kill, B0)[0] == 21
    assert verdict(story) == ("unknown", "n4")
    assert "guard" in story.records("step_exited")[0]["error"]


@pytest.mark.parametrize("later", [0.0, 0.05])
def test_a_rank_whose_guard_tells_of_its_death_costs_no_look_and_no_time(later: float) -> None:
    death = (20 + later, ev.TaskFailed(B0, Evidence(1, None, signal=9)))
    story = at_20(death, (20.2, ev.Ended(B0, 137)), until=21)
    assert story.all(act.Probe) == []
    assert story.times(act.Kill, B0)[0] == 20 + later
    assert verdict(story) == ("killed", "n4")


def test_nobody_is_looked_at_when_all_nodes_have_said_the_same() -> None:
    story = at_20((20.05, echo(task=1)), (20.2, ev.Ended(B0, 137)), until=21)
    assert story.all(act.Probe) == []
    assert verdict(story) == ("user_error", "n3")


def test_an_error_that_is_no_echo_brings_the_step_down_at_once() -> None:
    story = at_20((20.1, ev.Ended(B0, 1)), error="ValueError: no such layer", until=21)
    assert story.times(act.Kill, B0)[0] == 20
    assert story.all(act.Probe) == []
    assert verdict(story) == ("user_error", "n3")


def test_while_slurm_does_not_answer_no_node_is_lost_and_there_is_a_verdict() -> None:
    story = at_20((22.1, ev.Ended(B0, 137)), until=31)
    assert story.times(act.Kill, B0)[0] == 21
    (exited,) = [time for time, action in story.done if getattr(action, "event", "") == "step_exited"]
    assert exited == pytest.approx(30.1)
    assert verdict(story) == ("user_error", "n3")
    assert "n4" not in story.state.nodes.out()


IO_ERROR = "srun: error: step_launch_notify_io_failure: aborting, io error with slurmstepd on node 1"
CANCELLED = "slurmstepd-n3: error: *** STEP 1.3 ON n3 CANCELLED AT 2026-11-23T09:15:19 ***"
KILLED = "srun: error: n3: task 0: Killed"
NO_SLURMSTEPD = ev.Looked("n4", True, (("group-0000/0", "S"),))


def srun_says(*lines: str) -> list[ev.Event]:
    """Return the events of what srun prints about group B's step."""
    return [ev.TaskFailed(B0, sign) for line in lines if (sign := read_srun(line)) is not None]


def aborted_at_20(*moments: Moment, until: float = 26.0) -> Story:
    """Play group B on n3 and n4, whose srun speaks at 20 before any rank has raised; n4 is silent from then on."""
    heard = merged(beats({LIGHT0: until, A0: until}), beats({A0: until}, task=1))
    before = merged(beats({B0: 19.0}), beats({B0: 19.0}, task=1))
    return play(*merged(UP, before, heard, moments, [(until,)]), config=WIDE)


@pytest.mark.parametrize(
    "moments",
    [
        [(20, srun_says(IO_ERROR, CANCELLED, KILLED))],
        [(20, srun_says(IO_ERROR)), (20.01, srun_says(CANCELLED)), (20.02, srun_says(KILLED)), (20.05, echo())],
        [(20, srun_says(IO_ERROR, CANCELLED)), (20.01, ev.TaskFailed(B0, Evidence(0, None, signal=15)))],
        [(20, echo()), (20.01, srun_says(IO_ERROR, CANCELLED, KILLED))],
        [(20, srun_says(IO_ERROR))],  # the first node is lost: no slurmstepd says CANCELLED
    ],
)
@pytest.mark.parametrize(
    ("answer", "cause", "nodes"), [(ev.Looked("n4", False), "node_lost", ("n5", "n6")), (NO_SLURMSTEPD, "killed", ())]
)
def test_what_srun_ends_after_an_io_error_waits_for_a_look_at_the_silent_node(
    moments: list[Moment], answer: ev.Looked, cause: str, nodes: tuple[str, ...]
) -> None:
    late = (20.7, ev.Ended(B0, 137))  # srun's end, before the answer
    story = aborted_at_20(*moments, late, (20.9, answer), until=21)
    assert verdict(story) == (cause, "n4")
    told = [time for time, action in story.done if getattr(action, "event", "") == "step_exited"]
    assert told == [20.9]
    assert next_nodes(story) == (nodes or ("n3", "n4"))


def test_a_cancelled_step_whose_nodes_all_speak_counts_as_cancelled_once_it_is_known_that_the_job_goes_on() -> None:
    story = aborted_at_20(
        (20, srun_says(CANCELLED, KILLED, KILLED.replace("n3", "n4"))), (20.2, ev.Ended(B0, 137)), until=22
    )
    assert story.all(act.Probe) == []
    assert [time for time, action in story.done if getattr(action, "event", "") == "step_exited"] == [20 + DOUBTS_S]
    assert verdict(story)[0] == "cancelled"


def test_an_abort_whose_silent_node_is_well_is_no_fault_of_the_script() -> None:
    well = ev.Alive(B0, 1, 20.5, "S")
    story = aborted_at_20(
        (20, srun_says(IO_ERROR, CANCELLED, KILLED)), (20.5, well), (20.8, ev.Ended(B0, 137)), until=21
    )
    (exited,) = story.records("step_exited")
    assert exited["cause"] == "unknown"
    assert "io error with slurmstepd" in exited["error"]


def test_an_io_error_of_a_step_on_one_node_says_nothing() -> None:
    story = play(*UP[:1], (1, said.lighthouse_up(LIGHT0, URL)), (20, [ev.TaskFailed(A0, *map(read_srun, [IO_ERROR]))]))  # type: ignore[list-item]
    assert story.records("step_exited") == []
    assert story.ids(act.Kill) == []
