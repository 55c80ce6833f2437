"""Callback classes are called for what happens, in processes of their own."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path
from typing import get_type_hints

import pytest
from example_journal import event, exited, finished, joined, launched, ready, started
from observed import Observed, observed, until

from ftslurm import RunCallback
from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError
from ftslurm.guard import processes
from ftslurm.observer.hook_command import MARK, check_callbacks
from ftslurm.protocol import records
from ftslurm.protocol.kinds import KINDS, kind
from ftslurm.run.journal_lines import members

MODULE = """
import os, time
from pathlib import Path
from ftslurm import RunCallback

HERE = Path(__file__).parent

class Notes(RunCallback):
    def on_event(self, kind, record, text):
        with (HERE / "notes").open("a") as notes:
            print(kind, self.run.id, file=notes)

    def on_group_failed(self, failed):
        with (HERE / "failed").open("a") as notes:
            print(failed, file=notes)
        print("a line of the callback")

class Raises(RunCallback):
    def on_group_failed(self, failed):
        raise RuntimeError("no route to host")

class Hangs(RunCallback):
    def on_group_failed(self, failed):
        open(HERE / "never").read()

class Dies(RunCallback):
    def on_event(self, kind, record, text):
        os._exit(7)

class Made(RunCallback):
    def __init__(self):
        (HERE / "made").touch()

class Other:
    pass
"""


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    """A folder with the module `mine`."""
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "train.py").touch()
    os.mkfifo(tmp_path / "never")
    return tmp_path


def with_callbacks(folder: Path, *names: str) -> Observed:
    callbacks = [f"mine.{name}" for name in names]
    hooks = {"callbacks": callbacks}
    return observed(folder, hooks=hooks, job={"script": str(folder / "train.py")})


def test_a_callback_is_told_what_happens_to_groups_and_run(classes: Path) -> None:
    run = with_callbacks(classes, "Notes")
    run.write(started(2), launched(1, 1), ready(2, 1), joined(3, 1, 1), exited(9, 1), launched(10, 1, 1))
    run.write(joined(11, 1, 8, 1, recovery_s=2.0), exited(19, 1, 1, "ok"), finished(20))
    run.observe()
    kinds = ["run_started", "group_starting", "group_started", "group_failed", "group_starting", "group_restarted"]
    assert (classes / "notes").read_text().split("\n")[:-1] == [
        f"{kind} run" for kind in [*kinds, "group_shut_down", "run_finished"]
    ]
    assert "cause='killed'" in (classes / "failed").read_text()
    assert "callback mine.Notes: a line of the callback" in run.run.observer_log.read_text()


@pytest.mark.nightly
def test_each_bad_callback_costs_its_own_events_only(classes: Path) -> None:
    run = with_callbacks(classes, "Raises", "Hangs", "Dies", "Missing", "Other", "Notes")
    run.write(started(2), exited(9, 1), finished(20))
    with run.observer():
        until(lambda: run.told.keys() >= {"callback mine.Notes"} and run.told["callback mine.Notes"].done == 3, "notes")
    assert (classes / "notes").read_text() == "run_started run\ngroup_failed run\nrun_finished run\n"
    errors = {name.removeprefix("callback mine."): str(one.last_error) for name, one in run.told.items()}
    assert run.told["callback mine.Dies"].failed == 3
    assert "exit code 7" in errors["Dies"]
    assert "killed after 10 s" in errors["Hangs"]
    assert "has no attribute 'Missing'" in errors["Missing"]
    assert "is no subclass of ftslurm.RunCallback" in errors["Other"]
    assert not list(processes.having(MARK, str(run.run.root)))


def test_an_exception_of_a_callback_is_its_failure_and_the_next_event_comes(classes: Path) -> None:
    run = with_callbacks(classes, "Raises")
    run.write(started(2), launched(1, 1), exited(9, 1), event(10, "warning", group=None, text="careful"), finished(20))
    run.observe()
    told = run.told["callback mine.Raises"]
    assert (told.done, told.failed, told.last_error) == (5, 1, "RuntimeError: no route to host")


def test_a_class_that_cannot_be_imported_is_refused_with_the_reason_and_none_is_made(classes: Path) -> None:
    def check(name: str) -> None:
        config = Config()
        config.job.script, config.hooks.callbacks = str(classes / "train.py"), [name]
        check_callbacks(config, os.environ)

    check("mine.Made")
    assert not (classes / "made").exists()
    for name, reason in {
        "mine.Missing": "has no attribute 'Missing'",
        "mine.Other": "no subclass of ftslurm.RunCallback",
        "absent.Notes": "No module named 'absent'",
        "mine.Notes.no": "No module named 'mine.Notes'",
    }.items():
        with pytest.raises(ConfigError, match=f"hooks.callbacks: {name}: .*{reason}"):
            check(name)


def test_the_base_class_has_a_method_for_every_kind_with_the_records_that_it_gets() -> None:
    methods = {name.removeprefix("on_"): getattr(RunCallback, name) for name in dir(RunCallback) if name[:3] == "on_"}
    assert methods.keys() == {*KINDS, "event"}
    told: dict[str, set[type]] = {name: set() for name in KINDS}
    decide = ("group", "standby", "recovery_s", "cause")
    for record in records.EVENTS:
        for fields in product((None, 1), (None, "standby-000/1"), (None, 2.0), ("killed", "ok")):
            made = object.__new__(record)
            vars(made).update(zip(decide, fields, strict=True), after=None, slow=True, equal=0)
            if (name := kind(made)) is not None:
                told[name].add(record)
    for name, found in told.items():
        (taken,) = (hint for field, hint in get_type_hints(methods[name]).items() if field != "return")
        assert found == set(members(taken)), name
