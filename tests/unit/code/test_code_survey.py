"""The code of a run before it is submitted: found with a real git, and copied."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from closed import closed

from ftslurm.code import copying, record, selection
from ftslurm.code.survey import Survey, survey
from ftslurm.config.compose import absolute
from ftslurm.config.schema import Config, shipped
from ftslurm.errors import EnvironmentProblem
from ftslurm.run.directory import RunDir
from ftslurm.security import sharing


def git(folder: Path, *words: str) -> None:
    own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", "-C", str(folder), *own, *words], check=True, capture_output=True)


def write(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"# {path}\n")


def look(script: Path | None = None, **settings: object) -> Survey:
    config = Config()
    config.job.script = None if script is None else str(script)
    for name, value in settings.items():
        section, _, key = name.partition("__")
        setattr(getattr(config, section), key, value)
    return survey(absolute(config))


def kept(found: Survey, run: Path) -> Path:
    run.mkdir(mode=0o700)
    copying.keep(found, run)
    return run / record.FOLDER


def test_a_git_tree_is_copied_with_its_new_files_and_the_rest_are_links(tmp_path: Path) -> None:
    tree, other = tmp_path / "tree", tmp_path / "other"
    write(other, "inside.py")
    git(other, "init", "-q")
    git(other, "add", "-A")
    git(other, "commit", "-qm", "x")
    write(
        tree,
        "jobs/train.py",
        "lib/a.py",
        "lib/gone.py",
        "lib/_version.py",
        "data/x.npy",
        ".env",
        "lib/__pycache__/a.pyc",
    )
    for root in ("runs", "old"):
        RunDir(tree / root / "r").create()
        write(tree, f"{root}/r/config.yaml", f"{root}/r/code/train.py")
    (tree / ".gitignore").write_text("data/\n_version.py\n__pycache__\n")
    (tree / "lib/link.py").symlink_to("a.py")
    (tree / "lib/far.py").symlink_to(tmp_path / "far.py")
    (tmp_path / "far.py").write_text("far = 1\n")
    git(tree, "init", "-q")
    git(tree, "submodule", "add", "-q", str(other), "sub")
    git(tree, "add", "lib/gone.py", "lib/a.py")
    (tree / "lib/gone.py").unlink()
    (tree / "jobs/train.py").chmod(0o755)
    found = look(tree / "jobs/train.py", run__root=str(tree / "runs"))
    assert (found.script, found.root) == ("jobs/train.py", str(tree))
    assert f" MB, of git tree {tree}: every attempt" in found.sentence()
    copy = kept(found, tmp_path / "run")
    plain = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file() and not path.is_symlink()}
    assert plain == {
        *("jobs/train.py", "lib/a.py", "lib/_version.py", "sub/inside.py", ".gitignore", ".gitmodules"),
    }
    links = {str(path.relative_to(copy)): os.readlink(path) for path in copy.rglob("*") if path.is_symlink()}
    outside = {name: str(tree / name) for name in ("data", ".env", "old", "runs")}
    assert links == outside | {"lib/link.py": "a.py", "lib/far.py": str(tmp_path / "far.py")}
    modes = [(copy / name).stat().st_mode & 0o777 for name in ("jobs/train.py", "lib/a.py")]
    assert modes == [0o550, 0o440]
    assert (copy / "lib/a.py").stat().st_mtime == (tree / "lib/a.py").stat().st_mtime


def test_the_copy_of_a_run_inside_the_tree_does_not_link_to_itself(tmp_path: Path) -> None:
    write(tmp_path, "train.py")
    git(tmp_path, "init", "-q")
    (tmp_path / "runs").mkdir()
    copy = kept(look(tmp_path / "train.py", run__root=str(tmp_path / "runs")), tmp_path / "runs/r")
    assert [path.name for path in copy.iterdir()] == ["train.py"]


def test_without_git_it_is_the_package_or_the_scripts_folder(tmp_path: Path) -> None:
    write(
        tmp_path,
        "p/train.py",
        "p/conf/a.yaml",
        "p/lib/b.py",
        "p/.venv/pyvenv.cfg",
        "p/.venv/c.py",
        "p/d.csv",
        "p/wandb/w.py",
    )
    write(
        tmp_path, "p/env/pyvenv.cfg", "p/env/e.py", "q/pkg/__init__.py", "q/pkg/sub/__init__.py", "q/pkg/sub/train.py"
    )
    found = look(tmp_path / "p/train.py")
    assert found.files == {"train.py", "conf/a.yaml", "lib/b.py"}
    assert f" MB, of {tmp_path / 'p'}, and nothing outside it: every attempt" in found.sentence()
    copy = kept(found, tmp_path / "run")
    assert (copy / "d.csv").is_symlink()
    package = look(tmp_path / "q/pkg/sub/train.py")
    assert (package.root, package.script) == (str(tmp_path / "q"), "pkg/sub/train.py")


def test_without_git_and_without_a_git_tree_nothing_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "p/train.py")
    monkeypatch.setenv("PATH", "/nowhere")
    found = look(tmp_path / "p/train.py")
    assert not found.root
    assert "p is no git tree, and git cannot list its files: git cannot be run" in found.why


def test_a_folder_beside_the_script_may_be_closed(tmp_path: Path) -> None:
    write(tmp_path, "p/train.py", "p/lib/b.py", "p/lost+found/c.py")
    with closed(tmp_path / "p/lost+found"):
        found = look(tmp_path / "p/train.py")
        assert found.files == {"train.py", "lib/b.py"}
        assert (kept(found, tmp_path / "run") / "lost+found").is_symlink()


@pytest.mark.parametrize("in_git", [False, True])
def test_checkpoints_are_no_code(in_git: bool, tmp_path: Path) -> None:
    write(tmp_path, "train.py", "saved/step-00000010.json", "saved/data-00000010-a-0-0-1/tree.pickle", "savedata.json")
    if in_git:
        git(tmp_path, "init", "-q")
    found = look(tmp_path / "train.py", checkpoint__dir=str(tmp_path / "saved"))
    assert found.files == {"train.py", "savedata.json"}
    assert os.readlink(kept(found, tmp_path / "run") / "saved") == str(tmp_path / "saved")


def test_git_may_name_a_tree_in_which_the_script_does_not_lie(tmp_path: Path) -> None:
    write(tmp_path, "a/train.py", "b/other.py")
    for name in "ab":
        git(tmp_path / name, "init", "-q")
    git(tmp_path / "a", "config", "core.worktree", str(tmp_path / "b"))
    found = look(tmp_path / "a/train.py")
    assert (found.root, found.script, found.git, found.note) == (str(tmp_path / "a"), "train.py", False, "")


def test_what_is_not_copied_may_vanish_while_links_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "tree/train.py", "tree/a.log", "tree/b.log")
    (tmp_path / "tree/.gitignore").write_text("*.log")
    git(tmp_path / "tree", "init", "-q")
    found, scan = look(tmp_path / "tree/train.py"), os.scandir

    def scandir(folder: str) -> list[os.DirEntry[str]]:
        entries = list(scan(folder))
        if Path(folder).name == "tree":
            (tmp_path / "tree/a.log").unlink()
        return entries

    monkeypatch.setattr(copying.os, "scandir", scandir)
    assert {path.name for path in kept(found, tmp_path / "run").iterdir()} == {"train.py", ".gitignore", "b.log"}


def test_of_a_home_directory_nothing_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, "train.py", "thesis/plot.py")
    git(tmp_path, "init", "-q")  # dotfiles
    found = look(tmp_path / "train.py")
    assert not found.root
    assert "give the script a folder of its own" in found.why


def test_a_module_is_found_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "pkg/__init__.py", "pkg/train.py", "helper.py")
    monkeypatch.chdir(tmp_path)
    found = look(job__module="pkg.train")
    assert (found.script, found.root) == (None, str(tmp_path))
    assert found.files == {"pkg/__init__.py", "pkg/train.py", "helper.py"}
    elsewhere = look(job__module="hydra.main")
    assert not elsewhere.root
    assert "is installed in" in elsewhere.why
    assert not look(job__module="no_such").root


def test_an_example_is_copied_with_the_modules_beside_it() -> None:
    found = look(shipped("examples") / "train_ddp.py")
    assert found.files >= {"train_ddp.py", "gpt.py"}
    assert all("/" not in path for path in found.files)


def test_what_is_too_large_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "train.py", "lib/a.py")
    (tmp_path / "big.py").write_bytes(b"#" * (2 << 20))
    monkeypatch.setattr(selection, "MOST_MB", 1)
    git(tmp_path, "init", "-q")
    found = look(tmp_path / "train.py")
    assert not found.root
    assert "more than 1 MB" in found.why
    run = tmp_path / "run"
    assert not kept(found, run).exists()
    assert record.read(run) == record.CodeRecord()


def test_a_child_gets_the_copy_of_its_parent_whatever_has_changed_since(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    write(tree, "train.py", "lib/a.py", "d.csv")
    kept(look(tree / "train.py"), tmp_path / "run")
    old = record.read(tmp_path / "run")
    (tree / "lib/a.py").write_text("other")
    (tmp_path / "child").mkdir(mode=0o700)
    copying.hand_on(tmp_path / "run", tmp_path / "child", old)
    assert (tmp_path / "child/code/lib/a.py").read_text() == "# lib/a.py\n"
    assert os.readlink(tmp_path / "child/code/d.csv") == str(tree / "d.csv")
    assert record.read(tmp_path / "child") == old


@pytest.mark.parametrize("text", ["[]", "{", '{"kind": "odd"}'])
def test_a_damaged_record_is_an_error_and_not_no_record(tmp_path: Path, text: str) -> None:
    assert record.read(tmp_path) == record.CodeRecord()
    (tmp_path / record.NAME).write_text(text)
    (tmp_path / record.NAME).chmod(0o600)
    with pytest.raises(OSError, match="damaged"):
        record.read(tmp_path)


def test_what_git_ignores_and_a_clone_within_the_tree_are_links(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    write(
        tree, "train.py", "vendor/v.py", "lib/vendor/w.txt", "cache/c.txt", "clone/n.py", ".venv/pyvenv.cfg", "new.csv"
    )
    (tree / ".gitignore").write_text("vendor/\ncache/\n")
    for folder in (tree, tree / "clone"):
        git(folder, "init", "-q")
    found = look(tree / "train.py")
    assert found.files == {"train.py", ".gitignore"}
    copy = kept(found, tmp_path / "run")
    assert {path.name for path in copy.iterdir() if path.is_symlink()} == {
        "vendor",
        "lib",
        "cache",
        "clone",
        ".venv",
        "new.csv",
    }


def test_links_pipes_and_files_that_vanish_do_not_disturb_the_copy(tmp_path: Path) -> None:
    tree, far = tmp_path / "tree", tmp_path / "far"
    write(tree, "src/pkg/__init__.py", "gone.py")
    write(far, "train.py", "helper.py")
    (tree / "pkg").symlink_to("src/pkg")
    (tree / "loop").symlink_to("loop")
    (tree / "train.py").symlink_to("../far/train.py")
    (tree / "data").symlink_to(far)
    os.mkfifo(tree / "pipe.py")
    assert look(tree / "train.py").files == {"train.py", "helper.py"}  # Python looks for modules in that folder, too
    (tree / "train.py").unlink()
    write(tree, "train.py")
    found = look(tree / "train.py")
    (tree / "gone.py").unlink()
    copy = kept(found, tmp_path / "run")
    assert {path.name for path in copy.iterdir()} == {"src", "pkg", "train.py", "data"}
    assert (copy / "pkg").resolve() == copy / "src/pkg"
    assert (copy / "data").resolve() == far
    found = look(tree / "train.py")
    (tree / "train.py").unlink()
    with pytest.raises(EnvironmentProblem, match=r"cannot be copied.*No such file.*train\.py"):
        kept(found, tmp_path / "run2")


def test_a_link_below_a_link_leads_where_the_kernel_says(tmp_path: Path) -> None:
    write(tmp_path, "real/train.py", "real/deep/x", "train.py")
    (tmp_path / "real/deep/link.py").symlink_to("../deep/../train.py")
    (tmp_path / "short").symlink_to("real/deep")
    found = look(tmp_path / "short/link.py")
    assert (found.root, found.script) == (str(tmp_path / "real"), "train.py")


@pytest.mark.parametrize("share", [True, False])
def test_links_that_lead_outside_stay_links_and_the_group_of_a_shared_run_reads_the_copy(
    share: bool, tmp_path: Path
) -> None:
    tree, home, group = tmp_path / "tree", tmp_path / "home", os.getgid()
    write(home, "private.json")
    write(tree, "train.py", "conf.yaml", "run.sh")
    (tree / "run.sh").chmod(0o700)
    for number, real in enumerate((home / "private.json", Path("/proc/self/mem"), Path("/nowhere/at/all"), home)):
        (tree / f"{number}.json").symlink_to(real)
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    found, run, child = look(tree / "train.py"), tmp_path / "run", tmp_path / "child"
    for folder in (run, child):
        folder.mkdir(mode=0o700)
    if share:
        sharing.share(run, group)
    sharing.share(child, group)
    copying.keep(found, run)
    copying.hand_on(run, child, record.read(run))
    for folder in (run, child):
        copy = folder / record.FOLDER
        plain = {path.name for path in copy.iterdir() if not path.is_symlink()}
        assert plain == {"train.py", "conf.yaml", "run.sh"}
        assert os.readlink(copy / "0.json") == str(home / "private.json")
        assert (copy / "conf.yaml").stat().st_mode & 0o777 == 0o440
        assert (copy / "run.sh").stat().st_mode & 0o777 == 0o550


def test_files_that_are_equal_in_the_run_before_exist_once(tmp_path: Path) -> None:
    tree, runs = tmp_path / "tree", tmp_path / "runs"
    write(tree, "train.py", "other.py", "run.sh")
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    runs.mkdir()
    first = kept(look(tree / "train.py"), runs / "a")
    (tree / "other.py").write_text("# chang.py\n")
    (tree / "run.sh").chmod(0o700)
    second = kept(look(tree / "train.py"), runs / "b")
    assert (second / "other.py").read_text() == "# chang.py\n"
    assert (first / "other.py").read_text() == "# other.py\n"
    assert (second / "run.sh").stat().st_mode & 0o777 == 0o550
    once = {name for name in ("train.py", "other.py", "run.sh") if (second / name).samefile(first / name)}
    assert once == {"train.py"}


def test_of_the_shipped_examples_nobody_says_whether_they_are_in_a_git_tree() -> None:
    config = Config()
    config.job.script = str(shipped("examples") / "train_ddp.py")
    assert "git" not in survey(config).sentence()


def test_outside_of_git_a_run_is_no_code_from_its_first_moment(tmp_path: Path) -> None:
    write(tmp_path, "work/train.py", "work/lib/a.py")
    for name in ("waits", "new"):
        run = RunDir(tmp_path / "work/runs" / name)
        run.create()
        run.config.write_text("job: {}\n")
    assert look(tmp_path / "work/train.py").files == {"train.py", "lib/a.py"}
