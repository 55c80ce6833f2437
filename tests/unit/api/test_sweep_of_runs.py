"""The runs of a sweep: their values, their place in a list, and their common end."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import example_journal as ex
import pytest
from rich.console import Console

from ftslurm.api.brief import Brief
from ftslurm.cli.list_table import render
from ftslurm.cli.main import main
from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.run import results
from ftslurm.run.directory import RunDir


def row(name: str, sweep: str | None = None, **more: object) -> Brief:
    return replace(Brief(name, f"/runs/{name}", "ann", "succeeded", time.time(), sweep=sweep), **more)  # type: ignore[arg-type]


def run_of(root: Path, name: str, *lines: ex.Line, sweep: str | None = None) -> RunDir:
    run, config = RunDir(root / name), Config()
    run.create()
    config.cluster.kind, config.internal.sweep, config.run.name = "local", sweep, "toy"
    run.config.write_text(compose.dump(config))
    begun, *rest = lines or [None]
    return ex.write(run, [begun | {"sweep": sweep}, *rest]) if begun is not None else run


@pytest.mark.parametrize(
    ("text", "numbers"), [("0.25\n", [0.25]), ("1, 2e-3", [1.0, 0.002]), ("-inf", [float("-inf")])]
)
def test_the_value_of_a_run_is_what_the_last_group_has_written(tmp_path: Path, text: str, numbers: list[float]) -> None:
    run = run_of(tmp_path, "a")
    assert results.read(run) is None
    (run.results / "group-0003").write_text("7")
    time.sleep(0.02)  # the clock of the file system
    (run.results / "group-0001").write_text(text)
    assert results.read(run) == numbers


@pytest.mark.parametrize("text", ["", "low", "1 " * 17, "0.1 low"])
def test_what_is_no_number_is_said(tmp_path: Path, text: str) -> None:
    run = run_of(tmp_path, "a")
    (run.results / "group-0000").write_text(text)
    with pytest.raises(ValueError, match=r"group-0000 has .*not a number"):
        results.read(run)


def test_the_runs_of_a_sweep_have_its_name_and_their_values() -> None:
    rows = [row("d"), row("c", "lr", value=[0.123456789]), row("a", "lr", value=[None])]
    console = Console(width=100, record=True)
    console.print(render(rows, 100))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert [line[0] for line in lines] == ["run", "d", "c", "a"]
    assert [line[-2:] for line in (lines[0], *lines[2:])] == [["value", "sweep"], ["0.123457", "lr"], ["-", "lr"]]


def test_a_list_and_a_stop_of_one_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    over = run_of(tmp_path, "a", ex.started(), ex.finished(60), sweep="lr")
    (over.results / "group-0000").write_text("nan")
    run_of(tmp_path, "b", ex.started(), ex.finished(60), sweep="other")
    run_of(tmp_path, "c", sweep="lr")  # it never began: only its configuration names the sweep
    assert main(["list", "--root", str(tmp_path), "--sweep", "lr", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["runs"]
    assert {(one["id"], one["state"], str(one["value"])) for one in rows} == {
        ("a", "succeeded", "[None]"),
        ("c", "waiting", "None"),
    }
    assert main(["stop", "--root", str(tmp_path), "--sweep", "lr"]) == 0
    assert capsys.readouterr().out.startswith("c ")
    assert main(["stop", "--root", str(tmp_path), "--sweep", "other"]) == 0
    assert capsys.readouterr().out == "all 1 runs of other are over already\n"
    assert main(["stop", "--root", str(tmp_path), "--sweep", "nope"]) == 2
    assert "there is no run of a sweep 'nope'" in capsys.readouterr().err
