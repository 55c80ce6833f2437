"""Entries that other users leave where runs are searched: no verb acts on them or blocks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import example_journal as ex
import pytest

from ftslurm.checkpoint.layout import OWNER
from ftslurm.cli.main import main
from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.errors import Distrusted
from ftslurm.run import configuration, leadership, liveness
from ftslurm.run.checkpoint_owner import in_use
from ftslurm.run.directory import RunDir, replace_text
from ftslurm.run.find import find, newest
from ftslurm.run.stored_checkpoints import begin_with
from ftslurm.submission import array_task, requeue, submit

STRANGE = 54321
QUICK_S = 60.0  # what opened a named pipe would block for ever
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
ACTING = (["stop"], ["scale", "3"], ["inject", "kill"])


def planted(root: Path, name: str = "ddp-0930-k3", **cluster: object) -> RunDir:
    """A run that seems to train; it is ours until a test gives it away."""
    root.mkdir(parents=True, exist_ok=True)
    run = RunDir(root / name)
    run.create()
    ex.write(run, [line for line in ex.one_kill() if line["time"] < ex.START + 15.2])
    config = Config()
    config.job.script, config.run.name, config.cluster.kind, config.groups.max = "train.py", "ddp", "local", 4
    for key, value in cluster.items():
        setattr(config.cluster, key, value)
    replace_text(run.config, compose.dump(config))
    return run


def give_away(run: RunDir) -> None:
    """Make another user the owner of the run."""
    for path in (run.root, *run.root.rglob("*")):
        os.lchown(path, STRANGE, STRANGE)


def entered(*words: str) -> subprocess.CompletedProcess[str]:
    """Run what a submitted job runs."""
    command = [sys.executable, "-m", "ftslurm.entry", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=QUICK_S, check=False)


# --- where runs are made ----------------------------------------------------------------------------------------------


def test_no_run_is_made_where_everybody_may_put_another_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pub").mkdir()
    (tmp_path / "pub").chmod(0o777)
    (tmp_path / "train.py").write_text("")
    assert main(["cluster=local", "job.script=train.py", f"run.root={tmp_path}/pub/runs"]) == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert f"{tmp_path}/pub may be written by everybody (mode 0777)" in said
    assert "Take the right away (chmod go-w, chown); or choose another place with run.root=DIR" in said
    assert list((tmp_path / "pub").iterdir()) == []


@needs_root
def test_a_run_is_made_in_the_folder_of_a_group_that_is_trusted(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    os.chown(tmp_path / "lab", 0, STRANGE)
    (tmp_path / "lab").chmod(0o2770)
    config = Config()
    config.run.name, config.run.root = "ddp", str(tmp_path / "lab" / "runs")
    with pytest.raises(Distrusted, match=rf"run\.trust=\[{STRANGE}\]"):
        submit.create(config)
    config.run.trust = [str(STRANGE)]
    run = submit.create(config)
    assert configuration.of_run(run).run.trust == [str(STRANGE)]
    assert run.config.stat().st_mode & 0o777 == 0o600


def test_who_is_trusted_and_is_not_there_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    assert main(["cluster=local", "job.script=train.py", "run.trust=[no-such-lab]"]) == 2
    assert "run.trust=no-such-lab: there is neither a user nor a group of that name" in capsys.readouterr().err


# --- runs that are not ours alone -------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ACTING, ids=" ".join)
def test_nothing_is_done_to_a_run_that_others_could_have_put_there(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = planted(tmp_path / "pub")
    run.root.parent.chmod(0o777)
    assert main([words[0], str(run.root), *words[1:]]) == 2
    assert f"{tmp_path}/pub may be written by everybody" in capsys.readouterr().err
    assert list(run.inbox.iterdir()) == []
    assert main(["status", "--json", str(run.root)]) == 0  # reading does no harm


@pytest.mark.parametrize("words", ACTING, ids=" ".join)
@pytest.mark.parametrize("what", ["", "config.yaml", "events.jsonl", "submitit", "inbox"])
def test_nothing_is_done_to_a_run_of_which_others_can_write_a_part(
    what: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = planted(tmp_path)
    (run.root / what).chmod(0o777)
    assert main([words[0], str(run.root), *words[1:]]) == 2
    assert f"{run.root / what}: others can write into it (mode 0777)" in capsys.readouterr().err


@needs_root
@pytest.mark.parametrize("words", ACTING, ids=" ".join)
def test_nothing_is_done_to_a_run_of_another_user(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = planted(tmp_path)
    give_away(run)
    assert main([words[0], str(run.root), *words[1:]]) == 2
    assert f"it belongs to another user (uid {STRANGE}); only its owner can act on the run" in capsys.readouterr().err
    assert main(["status", "--json", str(run.root)]) == 0


@needs_root
@pytest.mark.parametrize("what", ["controller", "pilot"])
def test_a_job_does_not_begin_with_a_config_of_another_user(what: str, tmp_path: Path) -> None:
    run = planted(tmp_path)
    marked = tmp_path / "ran"
    config = compose.load(run.config)
    config.job.script, config.job.python = "x.py", ["touch", str(marked)]
    replace_text(run.config, compose.dump(config))
    os.chown(run.config, STRANGE, STRANGE)
    done = entered(what, str(run.root))
    assert done.returncode == 2
    assert f"{run.config}: it belongs to another user (uid {STRANGE})" in done.stderr
    assert "Traceback" not in done.stderr
    assert not marked.exists()


@needs_root
def test_a_requeued_job_does_not_go_on_with_a_run_that_another_user_has_put_there(tmp_path: Path) -> None:
    config = compose.load(planted(tmp_path, "own", kind="slurm").config)
    for name in ("own", "strange"):
        run = RunDir(tmp_path / name) if name == "own" else planted(tmp_path, name, kind="slurm")
        replace_text(run.job_id, "77")
    give_away(run)
    config.run.root = str(tmp_path)
    job = {"SLURM_JOB_ID": "77", "ENVIRONMENT": "BATCH", "SLURM_TASK_PID": "0", "SLURM_RESTART_COUNT": "1"}
    back = requeue.of_this_job(config, job)
    assert back is not None
    assert back.root == tmp_path / "own"


@needs_root
def test_a_task_of_an_array_does_not_join_a_run_that_another_user_has_put_there(tmp_path: Path) -> None:
    config = Config()
    config.run.name, config.run.root, config.internal.pilots = "ddp", str(tmp_path), "81"
    give_away(planted(tmp_path, "ddp-81", kind="slurm", pilots="81"))
    with pytest.raises(Distrusted, match=f"ddp-81 belongs to {STRANGE}"):
        array_task.join(config)


@needs_root
def test_a_newer_run_of_another_user_is_not_taken_for_ours(tmp_path: Path) -> None:
    planted(tmp_path, "a-own")
    strange = planted(tmp_path, "b-strange")
    for run in (RunDir(tmp_path / "a-own"), strange):
        replace_text(run.job_id, "77")
        run.events.unlink()  # which says that they are on this machine
    os.utime(strange.config, (9e9, 9e9))
    give_away(strange)
    assert [run.root.name for run in newest(tmp_path)] == ["a-own", "b-strange"]
    assert find(None, tmp_path).root.name == find("77", tmp_path).root.name == "a-own"
    assert find("b-strange", tmp_path).root == strange.root


# --- pipes and links --------------------------------------------------------------------------------------------------


@pytest.mark.timeout(QUICK_S)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)], ids=["pipe", "link"])
@pytest.mark.parametrize("what", ["config.yaml", "events.jsonl"])
@pytest.mark.parametrize("verb", ["status", "logs", "stop"])
def test_no_verb_waits_for_a_pipe_or_follows_a_link(
    what: str, verb: str, make: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = planted(tmp_path)
    (run.root / what).unlink()
    make(run.root / what)
    code = main([verb, str(run.root)])
    if verb == "logs" and what == "events.jsonl":
        return  # it needs no journal unless it follows
    assert code == 2
    assert str(run.root / what) in capsys.readouterr().err


def test_pipes_in_the_place_of_small_files_are_passed_over(tmp_path: Path) -> None:
    run = planted(tmp_path)
    run.leaders.mkdir()
    run.submitted.mkdir()
    run.id.unlink()
    for path in (run.id, run.job_id, run.alive, run.leaders / "0001", run.submitted / "81", run.inbox / "1.json"):
        os.mkfifo(path)
    assert run.mark() == f"ftslurm:{run.root.name}"
    assert run.job() is None
    assert run.pools() == {}
    assert liveness.age_s(run.alive) is None
    assert leadership.newest(run) == 1


def test_files_that_are_named_like_no_job_name_none(tmp_path: Path) -> None:
    run = planted(tmp_path)
    run.submitted.mkdir()
    for name in ("81", "82_3", "--me", "-u", "x"):
        (run.submitted / name).write_text("0")
    assert run.pools() == {"81": 0, "82_3": 0}
    for text, job in (("77\n", "77"), ("--me", None), ("-1", None), ("77 78", None), ("", None)):
        replace_text(run.job_id, text)
        assert run.job() == job


# --- checkpoint.dir ---------------------------------------------------------------------------------------------------


def test_a_pipe_for_the_owner_of_a_checkpoint_folder_is_replaced(tmp_path: Path) -> None:
    run, config = planted(tmp_path), Config()
    config.checkpoint.dir = str(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").mkdir()
    os.mkfifo(tmp_path / "checkpoints" / OWNER)
    os.mkfifo(tmp_path / "checkpoints" / f".{OWNER}.{os.getpid()}.part")  # the name that earlier versions used
    assert in_use(config) is None
    assert begin_with(config, run)[1] is None
    assert (tmp_path / "checkpoints" / OWNER).read_text() == str(run.root)


@needs_root
def test_what_another_user_says_of_a_checkpoint_folder_does_not_count(tmp_path: Path) -> None:
    run, other, config = planted(tmp_path / "a"), planted(tmp_path / "b"), Config()
    config.checkpoint.dir = str(tmp_path / "checkpoints")
    other.alive.touch()
    assert begin_with(config, other)[1] is None
    assert "is in use by" in str(begin_with(config, run)[1])
    assert "is in use by" in str(in_use(config))
    config.internal.parent = str(other.root)  # resumed after it was killed: its last sign of life is young
    assert in_use(config) is None
    os.chown(tmp_path / "checkpoints" / OWNER, STRANGE, STRANGE)
    assert begin_with(config, run)[1] is None
