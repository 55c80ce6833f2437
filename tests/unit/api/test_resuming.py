"""What a run that resumes another one is composed of, decided from the parent's run directory alone."""

from __future__ import annotations

from pathlib import Path

import example_journal as ex
import pytest
from checkpoints import part_of, save, steps

from ftslurm.api.resuming import resume
from ftslurm.config import compose
from ftslurm.config.schema import Config, Fault
from ftslurm.errors import ConfigError, EnvironmentProblem
from ftslurm.run import configuration
from ftslurm.run.directory import RunDir
from ftslurm.submission import code_of_run


def parent(folder: Path, *lines: ex.Line, **checkpoint: object) -> RunDir:
    """Return a local run of this journal that was stopped."""
    run = ex.new_run(folder, [ex.started(2), *lines, ex.finished(9, "stopped")])
    run.root.chmod(0o700)
    config = Config()
    (folder / "train.py").touch()
    config.job.script, config.run.name, config.cluster.kind = str(folder / "train.py"), "ddp", "local"
    config.run.root = str(folder)
    config.faults.plan = [Fault("kill", 0, 3), Fault("kill", 1, 3), Fault("lighthouse", 0, 5), Fault("kill", 1, 8)]
    for name, value in checkpoint.items():
        setattr(config.checkpoint, name, value)
    run.config.write_text(compose.dump(config))
    run.checkpoints.mkdir(mode=0o700, exist_ok=True)
    return run


def test_drills_of_the_parents_plan_are_not_repeated_unless_they_are_named(tmp_path: Path) -> None:
    run = parent(tmp_path)
    save(run.checkpoints, 10)
    assert resume(run).config.faults.plan == []
    assert len(resume(run, ["faults.plan=[{kind: term, group: 0, at: 3}]"]).config.faults.plan) == 1


def test_a_checkpoint_that_was_saved_after_groups_differed_is_warned_of(tmp_path: Path) -> None:
    def told(folder: str, *lines: ex.Line) -> bool:
        run = parent(tmp_path / folder, *lines)
        save(run.checkpoints, 10)
        return "weights differ" in resume(run).begins

    def differ(step: int, equal: int = 0) -> ex.Line:
        fields = {"rank": 0, "groups": [0, 1], "nodes": ["n1", "n2"], "equal": equal, "since": step - 2}
        return ex.event(3, "replicas_differ", step=step, **fields, reason="weights differ")

    def undone(step: int) -> ex.Line:
        return ex.event(4, "full_restart", reason="x", step=20, checkpoint="x", checkpoint_step=step)

    assert told("after", differ(6))
    assert told("since they were equal", differ(11))
    assert not told("before", differ(12))
    assert not told("majority", differ(6, equal=2))
    assert not told("undone", differ(6), undone(4))
    assert told("not undone", differ(6), undone(5))


def test_checkpoints_of_a_scripts_own_format_are_shared(tmp_path: Path) -> None:
    run = parent(tmp_path)
    (run.checkpoints / "model.pt").touch()
    child = resume(run)
    assert child.config.checkpoint.dir == str(run.checkpoints)
    assert child.source is None
    assert "what its script finds in" in child.begins


def test_a_damaged_checkpoint_is_named_and_nothing_starts(tmp_path: Path) -> None:
    run = parent(tmp_path)
    save(run.checkpoints, 10)
    (part_of(run.checkpoints, 10) / "a").write_bytes(b"1234")
    with pytest.raises(EnvironmentProblem, match=r"no complete checkpoint .*step-00000010.json: data-.*/a has 4 bytes"):
        resume(run)
    assert resume(run, from_scratch=True).source is None


def test_places_in_the_data_that_are_links_are_not_handed_on_and_leave_no_run(tmp_path: Path) -> None:
    run = parent(tmp_path)
    save(run.checkpoints, 10)
    (run.checkpoints / "positions").mkdir(mode=0o700)
    (run.checkpoints / "positions/group-0000-rank-0").symlink_to("/etc/hostname")
    child, before = resume(run), {*tmp_path.iterdir()}
    with pytest.raises(EnvironmentProblem, match=r"cannot be given to .*neither a file nor a folder"):
        child.create(child.config)
    assert {*tmp_path.iterdir()} == before


def test_a_child_of_a_child_names_its_own_parent_and_has_its_own_directory(tmp_path: Path) -> None:
    run = parent(tmp_path)
    save(run.checkpoints, 10)
    config = compose.load(run.config)
    config.internal.parent, config.run.dir = "/elsewhere/first", str(run.root)
    run.config.write_text(compose.dump(config))
    child = resume(run)
    assert (child.config.internal.parent, child.config.run.dir) == (str(run.root), None)
    made = child.create(child.config)
    assert steps(made.checkpoints) == [10]


def test_a_resumed_run_keeps_its_name_unless_it_is_given_another(tmp_path: Path) -> None:
    run = parent(tmp_path)
    save(run.checkpoints, 10)
    assert resume(run).config.run.name == "ddp"
    assert resume(run, ["run.name=mine"]).config.run.name == "mine"


def test_a_folder_that_was_named_is_shared_unless_another_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "named"
    run = parent(tmp_path, dir=str(folder))
    save(folder, 10)
    child = resume(run)
    assert (child.source, child.config.checkpoint.dir) == (None, str(folder))
    assert resume(run, from_scratch=True).config.checkpoint.dir is None
    other = resume(run, [f"checkpoint.dir={tmp_path}/other"])
    assert (other.source, other.config.checkpoint.dir) == (folder, f"{tmp_path}/other")


def test_a_run_is_resumed_with_its_copy_of_the_code_also_if_the_script_is_gone(tmp_path: Path) -> None:
    run = parent(tmp_path)
    save(run.checkpoints, 10)
    script = tmp_path / "train.py"
    assert resume(run).code is None  # an older ftslurm has kept none
    script.write_text("old = 1\n")
    code_of_run.take(configuration.of_run(run), run)
    assert resume(run).code is not None
    script.write_text("new = 2\n")
    assert resume(run, new_code=True).code is None
    (tmp_path / "other.py").touch()
    assert resume(run, [f"job.script={tmp_path}/other.py"]).code is None

    def child(name: str, new_code: bool) -> str:
        resumption = resume(run, [f"run.dir={tmp_path}/{name}"], new_code=new_code)
        made = resumption.create(resumption.config)
        return (made.code / "train.py").read_text()

    assert child("new", True) == "new = 2\n"
    script.unlink()
    assert child("old", False) == "old = 1\n"
    with pytest.raises(ConfigError, match="no such file any more"):
        child("gone", True)
    assert not (tmp_path / "gone").exists()
