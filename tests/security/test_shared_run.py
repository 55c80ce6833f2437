"""run.share: a group reads a run, and steers it if it may; everybody else stays a stranger. With real users."""

from __future__ import annotations

import io
import json
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from unittest import mock

import pytest
from cluster import Cluster
from conftest import STRANGER  # type: ignore[import-not-found]
from harness import Backend, Run

from ftslurm.cli.main import main
from ftslurm.cli.verbs import VERBS

LAB = 54400  # a group without a name, of which the colleague is a member
COLLEAGUE, OTHER = STRANGER, STRANGER + 1
SHARE = f"run.share={LAB}"
WARM: set[tuple[str, ...]] = set()  # the commands that have been run in this process, with an environment
ENDLESS: dict[str, object] = {"open-end": True, "step-time": 0.1}


def as_user(uid: int, groups: list[int], *words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a command of ftslurm as another user; return its exit code, and what it printed, errors last."""
    _warm_up(words, env or {})
    with tempfile.TemporaryFile("w+") as sink:
        pid = os.fork()
        if pid == 0:
            code, out, err = 99, _text(), _text()
            try:
                os.environ.update(env or {}, USER="", LOGNAME="")
                os.setgroups(groups)
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
                with redirect_stdout(out), redirect_stderr(err):
                    code = main(list(words))
            except BaseException:
                err.write(traceback.format_exc())
            for stream in (out, err):
                stream.seek(0)
                sink.write(stream.read())
            sink.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sink.seek(0)
        return code, sink.read()


def _text() -> io.TextIOWrapper:
    """Return a text stream with a `buffer`, as a terminal's."""
    return io.TextIOWrapper(io.BytesIO(), write_through=True)


def _warm_up(words: tuple[str, ...], env: dict[str, str]) -> None:
    """Import what a command needs, the first time: the other user may not be able to read this Python."""
    if (words[0], *env) in WARM:
        return
    WARM.add((words[0], *env))
    verb = VERBS[words[0]]
    import_module("ftslurm.cli.run_argument" if verb.method else f"ftslurm.cli.{verb.name}_verb")
    reads = words if words[0] in ("status", "logs", "report", "list") else ("status", words[1])
    with redirect_stdout(_text()), redirect_stderr(_text()), mock.patch.dict(os.environ, env):
        main(list(reads))


@pytest.fixture
def reachable(second_uid: int) -> Iterator[Path]:
    """A folder that all users may enter."""
    with tempfile.TemporaryDirectory(prefix="ft-share-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def local(reachable: Path) -> Iterator[Backend]:
    backend = Backend("local", {}, reachable, light=True)
    yield backend
    for run in backend.runs:
        run.abandon()


def modes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.lstat().st_mode & 0o7777
        for path in folder.rglob("*")
        if not path.is_symlink()
    }


def check_reading(run: Run, env: dict[str, str] | None = None) -> None:
    """Check what a colleague and a stranger see of a run that is shared for reading."""
    where, root = str(run.dir), str(run.dir.parent)
    code, out = as_user(COLLEAGUE, [LAB], "status", where, "--json", env=env)
    assert code == 0, out
    assert json.loads(out)["outcome"] in ("running", "succeeded")
    code, out = as_user(COLLEAGUE, [LAB], "logs", where, "--group", "0", env=env)
    assert code == 0, out
    assert "step" in out
    code, out = as_user(COLLEAGUE, [LAB], "report", where, env=env)
    assert code == 0, out
    code, out = as_user(COLLEAGUE, [LAB], "list", "--root", root, "--json", env=env)
    assert [row["id"] for row in json.loads(out)["runs"]] == [run.dir.name]

    for verb in ("status", "logs", "report", "stop"):
        code, out = as_user(OTHER, [], verb, where, env=env)
        assert code == 2, out
        assert "and is not readable for you; run.share=GROUP lets a group read it" in out
    code, out = as_user(OTHER, [], "list", "--root", root, "--json", env=env)
    (row,) = json.loads(out)["runs"]
    assert (row["id"], row["state"]) == (run.dir.name, "unreadable")


def check_secrets(run: Run) -> None:
    """Check that nobody may write what is not an inbox, and that no secret is readable."""
    found = modes(run.dir)
    assert found["key"] == 0o600
    assert not found["checkpoints"] & 0o077
    assert not [name for name, mode in found.items() if mode & 0o022 and name != "inbox"]
    private = ("key", "leaders", "checkpoints", "inbox", "observer", "released")
    shown = {name: oct(mode) for name, mode in found.items() if not name.startswith(private)}
    closed = {name: mode for name, mode in shown.items() if not int(mode, 8) & 0o040}
    assert not {name for name in closed if name.startswith(("logs", "events", "config", "past", "alive"))}, closed


def test_a_group_reads_a_shared_local_run_and_strangers_do_not(local: Backend) -> None:
    run = local.start("groups.count=2", "standby.count=1", SHARE, args=ENDLESS)
    run.wait_for_steps(3, groups=2)
    run.kill(group=1)
    run.wait_until_back(1)
    check_reading(run)
    check_secrets(run)
    code, out = as_user(COLLEAGUE, [LAB], "stop", str(run.dir))
    assert code == 2, out
    assert "run.share=GROUP:steer" in out
    run.end_soon()
    run.finish()
    check_reading(run)


def test_a_group_steers_a_run_that_is_shared_so_and_the_journal_says_who(local: Backend) -> None:
    run = local.start("groups.count=2", f"{SHARE}:steer", args=ENDLESS)
    run.wait_for_steps(3, groups=2)
    assert as_user(OTHER, [], "stop", str(run.dir))[0] == 2
    code, out = as_user(COLLEAGUE, [LAB], "inject", str(run.dir), "kill", "--group", "1")
    assert code == 0, out
    run.wait_until_back(1)
    (drill,) = run.named("fault_injected")
    assert drill["by"] == COLLEAGUE
    check_secrets(run)
    code, out = as_user(COLLEAGUE, [LAB], "stop", str(run.dir))
    assert code == 0, out
    assert run.process.wait(60) == 1
    (asked,) = [line for line in run.named("command") if line["what"] == "stop"]
    assert asked["by"] == COLLEAGUE
    assert str(COLLEAGUE) in str(run.named("run_finished")[0]["reason"])


def test_a_member_cannot_speak_for_another_or_for_a_pilot(reachable: Path) -> None:
    from ftslurm.run import inbox
    from ftslurm.run.directory import RunDir

    run = RunDir(reachable / "run")
    run.create(LAB, steer=True)

    def leave(uid: int, groups: list[int], file: str, mode: int = 0o640, **fields: object) -> int:
        def write() -> int:
            path = run.inbox / file
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(number, json.dumps(fields).encode())
            os.fchmod(number, mode)
            return 0

        return in_child(uid, groups, write)

    assert leave(COLLEAGUE, [LAB], "1.json", what="stop", by=0, user="root") == 0
    assert leave(COLLEAGUE, [LAB], "2.json", what="leaving", name="81", signal="SIGTERM") == 0
    assert leave(COLLEAGUE, [LAB], "3.json", mode=0o666, what="stop") == 0
    assert leave(OTHER, [], "5.json", what="stop") != 0
    assert in_child(COLLEAGUE, [LAB], lambda: len(os.listdir(run.inbox))) == 98
    commands = inbox.read(run.inbox)
    told = [(c["what"], c["by"], c["user"]) for c in commands.values()]
    assert told == [("stop", COLLEAGUE, str(COLLEAGUE))]
    assert [path.name for path in run.inbox.iterdir()] == ["1.json"] == [*commands]
    assert inbox.remove(run.inbox, commands) == {"1.json"}
    assert list(run.inbox.iterdir()) == []
    assert run.inbox not in run.acted_on()


def in_child(uid: int, groups: list[int], act: Callable[[], int]) -> int:
    """Return what a function returns as another user; 98: it may not."""
    pid = os.fork()
    if pid == 0:
        code = 97
        try:
            os.setgroups(groups)
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            code = act()
        except PermissionError:
            code = 98
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.nightly
@pytest.mark.slurm
def test_a_group_reads_and_steers_a_shared_run_on_slurm(
    slurm_cluster: Cluster, reachable: Path, cluster_folder: Path
) -> None:
    env, closed = slurm_cluster.env, cluster_folder.stat().st_mode
    cluster_folder.chmod(0o711)  # all users of a cluster can ask its Slurm; one who cannot waits for it in vain
    backend = Backend("slurm", env, reachable, light=True)
    try:
        run = backend.start("groups.count=2", f"{SHARE}:steer", args=ENDLESS)
        run.wait_for_steps(3, groups=2)
        check_reading(run, env)
        check_secrets(run)
        code, out = as_user(COLLEAGUE, [LAB], "stop", str(run.dir), env=env)
        assert code == 0, out
        run.finish(1, "stopped")
    finally:
        for run in backend.runs:
            run.abandon()
        cluster_folder.chmod(closed)
