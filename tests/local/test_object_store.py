"""Checkpoints in an object store: a real training over a real S3 server, and the rules over fsspec's memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import fsspec
import pytest
from harness import Backend, quoted
from quick import ftslurm
from s3_server import s3_server

from ftslurm.checkpoint import object_store
from ftslurm.checkpoint.layout import Writer
from ftslurm.checkpoint.object_store import ObjectStore
from ftslurm.checkpoint.store import Candidate, StoreRefused
from ftslurm.config import store_url

URL = "s3://bucket/team/run"
SECRETS = "job.secrets=[AWS_SECRET_ACCESS_KEY]"


@pytest.mark.nightly
def test_all_groups_are_lost_and_the_run_goes_on_from_s3_as_does_one_that_resumes_it(
    local: Backend, tmp_path: Path
) -> None:
    with s3_server("bucket") as environ:
        local.environ |= environ
        run = local.start(
            *("groups.count=2", f"checkpoint.dir={URL}/", "checkpoint.every=5", "checkpoint.keep=2", SECRETS),
            args={"open-end": True, "step-time": 0.2},
        )
        run.until(lambda: len(run.named("checkpoint_saved")) >= 3, "three checkpoints")
        for group in (0, 1):
            run.kill(group)
        run.wait_until_back_at_last(0, 1)  # a group may be stopped once more on the way
        (restart,) = run.named("full_restart")
        step = int(str(restart["checkpoint_step"]))
        assert step in [event["step"] for event in run.named("checkpoint_saved")]
        assert restart["checkpoint"] == f"{URL}/step-{step:08d}.json"
        assert run.named("checkpoint_restored")[0]["step"] == step
        before = len(run.named("checkpoint_saved"))
        run.until(lambda: len(run.named("checkpoint_saved")) >= before + 2, "two more: the first has removed old ones")
        assert run.ask("stop")[0] == 0
        run.process.wait(60)
        saved = [int(str(event["step"])) for event in run.named("checkpoint_saved")]
        code, said = run.ask("resume", "checkpoint.dir=/elsewhere")
        assert (code, "they are not copied to or from an object store" in said) == (2, True), said
        code, said = run.ask("resume", "job.args.steps=5", "job.args.open-end=false", "follow=true")
        assert code == 0, said
        assert f"step {max(saved)}, checkpoint.dir={URL} as before" in said
        written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        assert environ["AWS_SECRET_ACCESS_KEY"].encode() not in written
        store = fsspec.filesystem("s3", endpoint_url=environ["AWS_ENDPOINT_URL"], key="testing", secret="x")
        names = sorted(path.rpartition("/")[2] for path in store.ls("bucket/team/run", detail=False))
        # checkpoint.keep; a run that ends right after a save leaves the oldest one to the next save
        assert 2 <= sum(name.startswith("step-") for name in names) <= 3, names
        assert names[0] == ".owner"
    assert not list(tmp_path.glob("s3:*"))


@pytest.mark.nightly
def test_a_store_that_cannot_be_used_ends_the_run_before_it_trains(local: Backend) -> None:
    with s3_server("bucket") as environ:
        local.environ |= environ
        run = local.start(f"checkpoint.dir={URL.replace('bucket', 'gone')}", "checkpoint.every=5", args={"steps": 5})
        run.finish(1)
        assert "checkpoint.dir=s3://gone/team/run cannot be used: " in run.text
        assert "see that the bucket is there, and its credentials" in run.text
        assert not run.named("script_begun")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s4://bucket/x", "s4://...: is neither a folder nor an object store (abfs, "),
        ("s3://key:secret@bucket/x", "keys and other options belong into the environment"),
        ("s3:/bucket/x", "a URL has two slashes after the colon, as s3://bucket/folder"),
    ],
)
def test_what_is_no_store_is_refused_at_once(url: str, words: str, tmp_path: Path) -> None:
    done = ftslurm("run", "cluster=local", "job=ddp", f"checkpoint.dir={quoted(url)}", cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "secret@" not in done.stderr
    assert not list(tmp_path.iterdir())


# --- the rules -------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setattr(store_url, "STORES", {"memory"})
    return ObjectStore(f"memory://{request.node.name}")


ME = Writer("run-1", 0, 0)


def save(store: ObjectStore, step: int, me: Writer = ME, content: bytes = b"1234") -> str:
    part = store.begin(step, me)
    store._fs.pipe_file(f"{store._root}/{part}/a", content)
    return store.finish(part, step, me, 1, {"a": 4}, {"a": 0})


def steps(store: ObjectStore) -> list[int]:
    return [found.step for found in store.candidates()[0]]


def parts(store: ObjectStore) -> int:
    return sum(name.startswith("data-") for name in store._names())


def test_what_is_not_finished_or_damaged_is_no_checkpoint(store: ObjectStore) -> None:
    assert (steps(store), store.newest_step(10**9)) == ([], 0)
    store._fs.pipe_file(f"{store._root}/{store.begin(7, Writer('run-1', 0, 0))}/a", b"1234")
    save(store, 5)
    save(store, 6, content=b"123")
    store._fs.pipe_file(f"{store._root}/step-00000008.json", b"{}")
    complete, unusable = store.candidates()
    assert [(found.step, found.name) for found in complete] == [(5, f"{store.name}/step-00000005.json")]
    assert [found.step for found in unusable] == [8, 6]
    assert unusable[1].reason.endswith("/a has 3 bytes, 4 were written")
    assert (store.newest_step(10), store.newest_step(4)) == (5, 0)


def test_a_step_that_is_saved_again_replaces_its_files(store: ObjectStore) -> None:
    save(store, 5)
    save(store, 5)
    assert (steps(store), parts(store)) == ([5], 1)


def test_the_manifest_of_another_program_is_never_overwritten(store: ObjectStore) -> None:
    store._fs.pipe_file(f"{store._root}/step-00000005.json", b'{"format": "mine"}')
    with pytest.raises(StoreRefused, match="is not a checkpoint of ftslurm"):
        save(store, 5)


def test_the_newest_are_kept_and_higher_steps_are_not_counted(store: ObjectStore) -> None:
    for step in (5, 10, 15, 20):
        save(store, step)
    store.prune(15, 2, Writer("run-1", 0, 0), "")
    assert (steps(store), parts(store)) == ([20, 15, 10], 3)


def test_only_what_earlier_attempts_of_the_group_left_is_swept(store: ObjectStore) -> None:
    save(store, 5, Writer("run-1", 0, 0))
    for me in (Writer("run-1", 0, 0), Writer("run-1", 1, 0), Writer("run-2", 0, 0), Writer("run-1", 0, 1)):
        store._fs.pipe_file(f"{store._root}/{store.begin(9, me)}/a", b"1234")
    store.sweep(Writer("run-1", 0, 1))
    assert (steps(store), parts(store)) == ([5], 4)


def test_what_the_controller_is_told(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["object_store", *words])
        object_store.main()
        return capsys.readouterr().out

    url = store.name
    ask("take", url, "/runs/x")
    said = json.loads(ask("look", url))
    assert said == {"name": None, "step": None, "damaged": None, "others": False, "owner": "/runs/x", "url": url}
    store._fs.pipe_file(f"{store._root}/model.pt", b"")
    store._fs.pipe_file(f"{store._root}/step-00000003.json", b"[]")
    said = json.loads(ask("look", url))
    assert (said["others"], said["name"], said["step"]) == (True, f"{url}/step-00000003.json", None)
    assert isinstance(said["damaged"], str)


def test_a_candidate_names_where_its_files_are(store: ObjectStore) -> None:
    save(store, 5)
    (found,) = store.survey()
    assert isinstance(found, Candidate)
    assert str(found.place).startswith(f"{store.name}/data-00000005-run_1-0-0-")
