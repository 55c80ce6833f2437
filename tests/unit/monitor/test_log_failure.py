"""`ftslurm logs --failure` goes to the evidence of the last failure."""

from __future__ import annotations

from io import BytesIO

import example_journal as ex
import pytest

from ftslurm.monitor.log_failure import last_failure, show_failure
from ftslurm.monitor.log_files import Wanted
from ftslurm.monitor.log_page import View
from ftslurm.run.directory import RunDir


@pytest.fixture
def run(tmp_path):  # type: ignore[no-untyped-def]
    run = ex.new_run(tmp_path)
    folder = run.attempt("group-0001", 0)
    folder.mkdir(parents=True)
    (folder / "rank-0.log").write_text("".join(f"step {n}\n" for n in range(100)) + "\x1b[2Jlast\n")
    (folder / "rank-2.log").write_text("rank 2\nKeyError: 'lr'\n")
    (folder / "step.log").write_text("srun: error: n2: task 2: Exited with exit code 1\n")
    failed = {"code": 1, "node": "n2", "rank": 2, "error": "KeyError: 'lr'"}
    ex.write(
        run,
        [
            ex.exited(5, 0, cause="killed", signal=9),
            ex.exited(
                7, 1, cause="user_error", log="/else/where/rank-2.log",
                evidence=["task 2: KeyError", "task 0: exit code 1"],
                traceback="Traceback (most recent call last):\n  main()\nKeyError: 'lr'", **failed,
            ),
            ex.exited(9, 0, attempt=1, cause="cancelled"),
            ex.exited(9, 1, attempt=1, cause="ok"),
        ],
    )  # fmt: skip
    return run


def shown(run: RunDir, wanted: Wanted, view: View = View()) -> str:  # noqa: B008
    out, failure = BytesIO(), last_failure(run, wanted)
    assert failure is not None
    show_failure(run, wanted, failure, out, view)
    return out.getvalue().decode()


def test_the_last_failure_has_its_signs_srun_and_the_log_of_its_rank(run: RunDir) -> None:
    first, *lines = shown(run, Wanted()).splitlines()
    assert first.endswith("group 1 attempt 0 died: the script failed (exit code 1) on n2, rank 2: KeyError: 'lr'")
    log = run.rank_log("group-0001", 0, 2)
    assert lines == [
        "  task 2: KeyError",
        "  task 0: exit code 1",
        "",
        f"the end of {log}:",
        "rank 2",
        "KeyError: 'lr'",
        "",
        "what the launcher and the guards said:",
        "  srun: error: n2: task 2: Exited with exit code 1",
    ]


def test_of_another_rank_the_traceback_comes_from_the_journal_and_nothing_steers_a_terminal(run: RunDir) -> None:
    text = shown(run, Wanted(rank=0), View(tail=2))
    assert "\nthe end of the traceback:\n  Traceback (most recent call last):\n    main()\n  KeyError: 'lr'\n" in text
    assert "\nstep 99\n\\x1b[2Jlast\n\nwhat the launcher" in text


def test_stacks_are_shown_from_their_heading_on(run: RunDir) -> None:
    stacks = "ftslurm: stacks of rank 2, pid 1\n" + "  File x\n" * 100
    run.rank_log("group-0001", 0, 2).write_text("step 1\n" * 50 + stacks)
    text = shown(run, Wanted())
    assert text.count("  File x") == 100
    assert "step 1" not in text


def test_another_group_and_another_attempt_have_failures_of_their_own(run: RunDir) -> None:
    assert "group 0 attempt 0 died: killed (signal 9)" in shown(run, Wanted(group=0))
    assert f"there is no {run.rank_log('group-0000', 0, 0)}" in shown(run, Wanted(group=0))
    assert last_failure(run, Wanted(group=1, attempt=1)) is None


def test_a_failure_before_the_time_that_is_asked_for_is_none(run: RunDir) -> None:
    failure = last_failure(run, Wanted())
    assert failure is not None
    assert last_failure(run, Wanted(), since=failure.time) == failure
    assert last_failure(run, Wanted(), since=failure.time + 0.001) is None
