"""`ftslurm prune` removes the run directories that it names, and never one that is needed, going, or not ours."""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from pathlib import Path

import example_journal as ex
import pytest
from terminal_session import Terminal

from ftslurm.api import pruning
from ftslurm.checkpoint.layout import OWNER
from ftslurm.cli.main import main
from ftslurm.code import record
from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.run.directory import RunDir

DAY = 86400.0


def make(root: Path, name: str, over: bool = True, kind: str = "local", age_s: float = DAY, **settings: str) -> RunDir:
    """Make a run with a checkpoint, a copy of the code and links that lead out of it."""
    run = RunDir(root / name)
    run.create()
    config = Config()
    config.job.script, config.run.name, config.cluster.kind = __file__, "ddp", kind
    config.internal.parent, config.checkpoint.dir = settings.get("parent"), settings.get("checkpoint_dir")
    run.config.write_text(compose.dump(config))
    os.utime(run.config, (0, ex.START + len(list(root.iterdir()))))
    step = run.checkpoints / "step-00000001"
    step.mkdir()
    (step / "model.pt").write_bytes(bytes(1000))
    (run.code / "pkg").mkdir(parents=True)
    (run.code / "pkg/data").symlink_to(root.parent / "outside")
    (run.root / "link").symlink_to(root.parent / "outside/precious")
    ended = {"time": time.time() - age_s}
    return ex.write(run, [ex.started(), *([ex.finished(9) | ended] if over else [])])


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/precious").write_text("precious")
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def prune(root: Path, *options: str) -> int:
    return main(["prune", str(root), "--yes", *(options or ["--keep", "0"])])


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def going(root: Path, name: str) -> None:
    make(root, name, over=False)


def just_ended(root: Path, name: str) -> None:
    make(root, name).alive.touch()


def of_slurm(root: Path, name: str) -> None:
    make(root, name, kind="slurm")  # nobody says whether its job is gone


def without_journal(root: Path, name: str) -> None:
    make(root, name).events.unlink()


def no_run(root: Path, name: str) -> None:
    (root / name / "checkpoints").mkdir(parents=True)


def a_link(root: Path, name: str) -> None:
    elsewhere = root.parent / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    (root / name).symlink_to(make(elsewhere, name).root)


def writable_by_others(root: Path, name: str) -> None:
    make(root, name).root.chmod(0o777)


def a_broken_config(root: Path, name: str) -> None:
    make(root, name).config.write_text("groups: [")


def a_config_of_others(root: Path, name: str) -> None:
    make(root, name).config.chmod(0o666)


def a_file(root: Path, name: str) -> None:
    (root / name).write_text("")


STAYS = (
    *(going, just_ended, of_slurm, without_journal, no_run, a_link),
    *(writable_by_others, a_broken_config, a_config_of_others, a_file),
)


@pytest.mark.parametrize("seed", [1, 2, 3, *[pytest.param(seed, marks=pytest.mark.nightly) for seed in range(4, 40)]])
def test_of_any_runs_exactly_those_that_nothing_keeps_are_removed(
    seed: int, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")  # no Slurm answers
    dice, stays, goes = random.Random(seed), set[str](), set[str]()
    for number in range(12):
        name = f"run-{number:02d}"
        made = dice.choice([*STAYS, None, None, None, None])
        if made is not None:
            made(runs, name)
            stays.add(name)
            continue
        on = dice.choice([None, None, *sorted(goes)]) if goes else None
        over, how = dice.random() < 0.6, dice.choice(["parent", "checkpoint_dir", "owner"])
        place = str(runs / str(on) / "checkpoints") if how == "checkpoint_dir" else str(runs / str(on))
        make(runs, name, over=over, **({how: place} if on and how != "owner" else {}))
        if on and how == "owner":
            (runs / on / "checkpoints" / OWNER).write_text(str(runs / name))
        (goes if over else stays).add(name)
        if not over and on and how != "owner":  # of several owners the last counts
            stays.add(on)
    needed = True
    while needed:  # what one that stays needs stays, too
        needed = {name for name in goes - stays if any(needs(runs, one, name) for one in stays)}
        stays |= needed
    assert prune(runs) == 0
    said = capsys.readouterr().out
    assert names(runs) == stays
    assert {line.split()[0] for line in said.splitlines() if line.startswith("run-") and " stays: " not in line} == (
        goes - stays
    )
    assert (runs.parent / "outside/precious").read_text() == "precious"
    if (runs.parent / "elsewhere").exists():
        assert all((path / "events.jsonl").exists() for path in (runs.parent / "elsewhere").iterdir())


def needs(root: Path, run: str, other: str) -> bool:
    """Return whether a run saves in another one's checkpoints."""
    owner, config = root / other / "checkpoints" / OWNER, root / run / "config.yaml"
    saves = owner.exists() and owner.read_text() == str(root / run)
    return saves or (config.is_file() and f"dir: {root / other}/checkpoints" in config.read_text())


def test_what_it_frees_is_what_no_other_run_has(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parent, child = make(runs, "a"), make(runs, "b")
    (child.checkpoints / "step-00000001/model.pt").unlink()
    os.link(parent.checkpoints / "step-00000001/model.pt", child.checkpoints / "step-00000001/model.pt")
    assert pruning.size([parent.root], pruning.BULK) == 0
    assert pruning.size([parent.root, child.root], pruning.BULK) == 1000
    assert prune(runs, "--keep", "1", "--keep-logs") == 0
    assert names(runs) == {"a", "b"}
    assert names(parent.root) >= {"events.jsonl", "config.yaml", "logs"}
    assert not {"checkpoints", "code"} & names(parent.root)
    assert (child.checkpoints / "step-00000001/model.pt").stat().st_size == 1000
    capsys.readouterr()
    assert prune(runs, "--keep", "1", "--keep-logs") == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_what_a_script_has_written_beside_its_code_is_never_removed(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two", "three"):
        run = make(runs, name)
        (run.code / "train.py").touch()
        record.write(run.root, record.CodeRecord("/home/ann"))
        os.utime(run.code_record, (time.time() + 1,) * 2)
    (runs / "two/code/pkg/model.pt").write_text("hours of work")
    (runs / "three/code/__pycache__").mkdir()
    (runs / "three/code/__pycache__/train.pyc").write_text("")
    for path in (runs / "two/code/pkg/model.pt", runs / "three/code/__pycache__/train.pyc"):
        os.utime(path, (time.time() + 9,) * 2)
    prune(runs)
    assert names(runs) == {"two"}
    said = capsys.readouterr().out
    assert f"two  stays: its script has written beside its code: move or remove {runs}/two/code/pkg/model.pt" in said


def test_only_those_that_ended_before_are_removed(runs: Path) -> None:
    make(runs, "old", age_s=8 * DAY)
    make(runs, "new", age_s=6 * DAY)
    assert prune(runs, "--older-than", "7d") == 0
    assert names(runs) == {"new"}


def test_without_a_terminal_nothing_is_removed(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make(runs, "a")
    monkeypatch.setattr(sys, "stdin", (runs / "a/config.yaml").open())
    assert main(["prune", str(runs)]) == 2
    assert "--yes" in capsys.readouterr().err
    assert names(runs) == {"a"}


@pytest.mark.parametrize(("answer", "left"), [("n", {"a"}), ("", {"a"}), ("y", set[str]())])
def test_on_a_terminal_it_asks(answer: str, left: set[str], runs: Path) -> None:
    make(runs, "a")
    shell = Terminal([sys.executable, "-m", "ftslurm", "prune", str(runs)], dict(os.environ))
    shell.until("remove them? [y/N] ")
    shell.type(answer)
    assert shell.exit_code() == (1 if left else 0)
    assert names(runs) == left


def test_yes_needs_words_that_say_which_runs_go(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(runs, "a")
    for options in ([], ["--keep-logs"]):
        assert main(["prune", str(runs), "--yes", *options]) == 2
        assert "could be resumed: name a run, or say which with --older-than or --keep" in capsys.readouterr().err
    assert names(runs) == {"a"}


def test_one_run_can_be_named(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b", "c"):
        make(runs, name)
    make(runs, "child", over=False, parent=str(runs / "c"))
    (runs.parent / "link").symlink_to(runs / "b")
    monkeypatch.chdir(runs)
    for word, left in {"a": {"b", "c", "child"}, str(runs.parent / "link"): {"c", "child"}}.items():
        assert main(["prune", word, "--yes"]) == 0
        assert names(runs) == left
    assert main(["prune", "c", "--yes"]) == 1
    assert "resumes from it" in capsys.readouterr().out
    assert names(runs) == {"c", "child"}


def test_a_run_that_was_resumed_while_the_user_thought_stays_and_is_told(runs: Path) -> None:
    make(runs, "a")
    make(runs, "b")
    shell = Terminal([sys.executable, "-m", "ftslurm", "prune", str(runs)], dict(os.environ))
    shell.until("remove them? [y/N] ")
    make(runs, "child", over=False, parent=str(runs / "a"))
    shell.type("y")
    shell.until(f"not all could be removed: {runs / 'a'}: {runs / 'child'} resumes from it")
    assert shell.exit_code() == 1
    assert names(runs) == {"a", "child"}


@pytest.mark.parametrize("swap", ["link", "folder"])
def test_a_folder_that_was_swapped_meanwhile_is_left_alone(swap: str, runs: Path) -> None:
    make(runs, "a")
    (judged,) = pruning.survey(runs, before=float("inf"))
    (runs / "a").rename(runs.parent / "away")
    if swap == "link":
        (runs / "a").symlink_to(runs.parent / "outside")
    else:
        shutil.copytree(runs.parent / "away", runs / "a", symlinks=True)
    with pytest.raises(OSError, match=r"another folder|Not a directory|Too many levels"):
        pruning.remove(judged)
    assert (runs.parent / "outside/precious").read_text() == "precious"
    assert (runs.parent / "away/checkpoints/step-00000001/model.pt").exists()
    assert swap == "link" or (runs / "a/events.jsonl").exists()


def test_the_removal_of_trees_is_safe_against_links() -> None:
    assert shutil.rmtree.avoids_symlink_attacks


def test_what_could_not_be_removed_is_told_and_can_be_removed_later(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make(runs, "a")

    def full(*_: object, **__: object) -> None:
        raise OSError("a file server is away")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", full)
        assert prune(runs) == 1
    assert f"{run.root}: a file server is away" in capsys.readouterr().err
    assert {"events.jsonl", "config.yaml"} <= names(run.root)  # it is still known as a run that is over
    assert prune(runs) == 0
    assert names(runs) == set()


def test_runs_behind_a_link_are_the_same_runs(runs: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(runs)
    make(runs, "parent")
    make(runs, "saved")
    make(runs, "child", over=False, parent=str(link / "parent"), checkpoint_dir=str(link / "saved/checkpoints"))
    make(runs, "old")
    assert prune(link) == 0
    assert names(runs) == {"parent", "saved", "child"}


def test_a_child_that_is_over_needs_its_parent_no_more(runs: Path) -> None:
    make(runs, "parent")
    make(runs, "child", parent=str(runs / "parent"))
    assert prune(runs, "--keep", "1") == 0
    assert names(runs) == {"child"}


def test_a_path_that_leads_nowhere_keeps_nothing_and_one_that_cannot_be_looked_at_does(runs: Path) -> None:
    loop = runs.parent / "loop"
    loop.symlink_to("loop")
    make(runs, "child", over=False, parent=str(loop), checkpoint_dir=str(loop))
    for name, saver in (("gone", runs / "none"), ("looped", loop / "run"), ("long", runs / ("x" * 300))):
        (make(runs, name).checkpoints / OWNER).write_text(str(saver))
    assert prune(runs) == 0
    assert names(runs) == {"child", "looped", "long"}


def test_a_named_run_stays_if_one_that_is_over_has_its_checkpoints_there(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after `resume` of a script with checkpoints of its own: the child saves in its parent's folder."""
    parent = make(runs, "parent")
    make(runs, "child", checkpoint_dir=str(parent.checkpoints))
    assert prune(parent.root, "--yes") == 1
    assert names(runs) == {"parent", "child"}
    assert f"{runs / 'child'} resumes from it" in capsys.readouterr().out
    assert prune(runs, "--yes", "--keep=0") == 0
    assert names(runs) == set()
