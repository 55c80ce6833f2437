"""The files that may be used, judged by stat results, and by real files, links, pipes and folders."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ftslurm.errors import Distrusted
from ftslurm.run.directory import RunDir, replace_text
from ftslurm.security import owned_files

ME, ROOT, STRANGER = 1000, 0, 1001
MINE, LAB = 100, 54322  # groups; the first is trusted
STRANGE = 54321  # a user, and a group, that this machine does not have
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


def found(mode: int, uid: int = ME, gid: int = MINE, kind: int = stat.S_IFDIR) -> os.stat_result:
    return os.stat_result((kind | mode, 1, 1, 1, uid, gid, 0, 0, 0, 0))


# --- the folders above ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "user", "group", "everybody"),
    [
        (found(0o700), None, None, False),
        (found(0o755, ROOT, LAB), None, None, False),
        (found(0o1777, ROOT, LAB), None, None, False),  # /tmp
        (found(0o775, ME, MINE), None, None, False),
        (found(0o2770, ROOT, LAB), None, LAB, False),  # the folder of a project
        (found(0o3770, ROOT, LAB), None, None, False),  # with the sticky bit: no user can remove files of others
        (found(0o777, ROOT, LAB), None, None, True),
        (found(0o707, ME, MINE), None, None, True),
        (found(0o755, STRANGER), STRANGER, None, False),
        (found(0o1777, STRANGER), STRANGER, None, False),  # the owner of a sticky folder can
        (found(0o2770, STRANGER, LAB), STRANGER, LAB, False),
        (found(0o777, ROOT, LAB, stat.S_IFLNK), None, None, False),  # a link's mode has no meaning
        (found(0o777, STRANGER, LAB, stat.S_IFLNK), STRANGER, None, False),
    ],
)
def test_who_else_could_replace_what_lies_in_a_folder(
    folder: os.stat_result, user: int | None, group: int | None, everybody: bool
) -> None:
    there = Path("/there")
    doubted = owned_files.doubt(there, folder, frozenset({ME, ROOT}), frozenset({MINE}))
    if (user, group, everybody) == (None, None, False):
        assert doubted is None
        return
    assert doubted is not None
    names = [*([owned_files.user_name(user)] if user is not None else []), *([str(group)] if group else [])]
    assert doubted.who == (() if everybody else tuple(names))
    assert all(name in doubted.words for name in names)
    assert ("everybody" in doubted.words) == everybody


def test_the_way_to_a_path_is_all_folders_and_links_that_lead_there(tmp_path: Path) -> None:
    (tmp_path / "real/inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real/up").symlink_to(tmp_path / "real/../real/inner")
    passed = [path for path, _ in owned_files.way(tmp_path / "link/up/run")]
    seen = [str(path.relative_to(tmp_path)) for path in passed if tmp_path in path.parents]
    assert seen == ["link", "real", "real/up", "real", "real", "real/inner"]
    assert [path for path, _ in owned_files.way(tmp_path / "missing/run")][-1] == tmp_path


def test_a_ring_of_links_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert len(list(owned_files.way(tmp_path / "a/run"))) < 100


def test_a_folder_that_everybody_may_write_is_never_trusted(tmp_path: Path) -> None:
    open_to_all = tmp_path / "pub"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    (open_to_all / "mine").mkdir(mode=0o755)
    run = open_to_all / "mine" / "runs" / "ddp"
    with pytest.raises(Distrusted, match=rf"{open_to_all} may be written by everybody \(mode 0777\).*chmod go-w"):
        owned_files.check_way(run, [])
    with pytest.raises(Distrusted):
        owned_files.check_way(run, ["0"])
    with pytest.raises(Distrusted, match=r"\(chmod go-w, chown\)$"):  # it is there: no other place can be chosen
        owned_files.check_way(run, [], made=True)
    (tmp_path / "hidden").symlink_to(open_to_all)
    with pytest.raises(Distrusted, match=f"{open_to_all} may be written"):
        owned_files.check_way(tmp_path / "hidden" / "mine" / "ddp", [])
    open_to_all.chmod(0o1777)
    owned_files.check_way(run, [])


@needs_root
def test_groups_and_users_above_are_refused_unless_they_are_named(tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    lab.mkdir()
    os.chown(lab, STRANGE, STRANGE)
    lab.chmod(0o2770)
    said = rf"{lab} belongs to {STRANGE} and may be written by the group {STRANGE} \(mode 2770\)"
    with pytest.raises(Distrusted, match=rf"{said}.*set run\.trust=\[{STRANGE}\]"):
        owned_files.check_way(lab / "runs/ddp", [])
    with pytest.raises(Distrusted, match=rf"write trust: \[{STRANGE}\] under run: in its config.yaml"):
        owned_files.check_way(lab / "runs/ddp", [], made=True)
    owned_files.check_way(lab / "runs/ddp", [str(STRANGE)])


@needs_root
def test_a_link_of_another_user_does_not_lead_to_a_run(tmp_path: Path) -> None:
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    (tmp_path / "mine").mkdir()
    link = tmp_path / "sticky" / "runs"
    link.symlink_to(tmp_path / "mine")
    owned_files.check_way(link / "ddp", [])
    os.lchown(link, STRANGE, STRANGE)
    with pytest.raises(Distrusted, match=f"{link} belongs to {STRANGE}"):
        owned_files.check_way(link / "ddp", [])


@needs_root
def test_in_a_container_everybody_outside_looks_the_same_and_may_be_root(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    os.chown(tmp_path / "home", STRANGE, STRANGE)
    code = "from pathlib import Path; from ftslurm.security.owned_files import check_way\n"
    code += f"check_way(Path({str(tmp_path)!r}, 'home/x'), [])"
    inside = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespace can be made here")
    assert b"Distrusted" in subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).stderr
    subprocess.run([*inside, sys.executable, "-c", code], check=True)
    (tmp_path / "home").chmod(0o777)
    done = subprocess.run([*inside, sys.executable, "-c", code], capture_output=True, check=False)
    assert b"may be written by everybody" in done.stderr


def test_who_is_trusted_must_be_there() -> None:
    assert owned_files.unknown(["root", "0", "4711"]) is None
    assert owned_files.unknown(["root", "no such user"]) == "no such user"


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_pipe_a_link_and_a_folder_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "folder").mkdir()
    assert owned_files.read_text(tmp_path / "file") == owned_files.read_text(tmp_path / "file", own=True) == "text"
    for name in ("pipe", "link", "folder"):
        with pytest.raises(OSError, match=r"no file|symbolic links") as caught:
            owned_files.read_text(tmp_path / name)
        assert caught.value.errno in owned_files.REFUSED


def test_a_pipe_or_a_link_is_not_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "target").write_text("")
    (tmp_path / "link").symlink_to("target")
    for name in ("pipe", "link"):
        for flags in (os.O_WRONLY | os.O_APPEND | os.O_CREAT, os.O_RDWR | os.O_CREAT):
            with pytest.raises(OSError, match=r"no file|symbolic links|No such device"):
                owned_files.open_fd(tmp_path / name, flags)


def test_only_our_own_files_are_own(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    path.chmod(0o644)
    assert owned_files.is_own(path)
    path.chmod(0o664)
    assert not owned_files.is_own(path)
    with pytest.raises(PermissionError, match=r"others can write into it \(mode 0664\)") as caught:
        owned_files.open_own(path)
    assert caught.value.errno == errno.EPERM
    (tmp_path / "link").symlink_to("file")
    assert not owned_files.is_own(tmp_path / "link")
    assert not owned_files.is_own(tmp_path / "missing")


@needs_root
def test_a_file_of_another_user_is_read_only_to_be_shown(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    os.chown(path, STRANGE, STRANGE)
    assert owned_files.read_text(path) == "text"
    with pytest.raises(PermissionError, match=f"belongs to another user \\(uid {STRANGE}\\)"):
        owned_files.read_text(path, own=True)
    with pytest.raises(Distrusted, match="only its owner can act on the run"):
        owned_files.check_own([tmp_path / "missing", path])


def test_a_file_too_long_to_be_ours_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(owned_files.MOST + 1)
    with pytest.raises(OSError, match="longer than"):
        owned_files.read_text(tmp_path / "file")


def test_a_planted_file_is_replaced_and_nobody_else_can_read_the_text(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".owner.{os.getpid()}.part").symlink_to(victim)
    (tmp_path / ".owner").symlink_to(victim)
    before = os.umask(0)
    try:
        replace_text(tmp_path / ".owner", "/runs/ddp")
    finally:
        os.umask(before)
    assert victim.read_text() == "precious"
    assert not (tmp_path / ".owner").is_symlink()
    assert (tmp_path / ".owner").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == [".owner", f".owner.{os.getpid()}.part", "victim"]


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_text(tmp_path / "taken", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_folders_for_runs_are_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        run = RunDir(tmp_path / "a" / "runs" / "ddp")
        run.create()
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "a", tmp_path / "a/runs", run.root, run.id)]
    assert modes == [0o755, 0o755, 0o700, 0o600]
