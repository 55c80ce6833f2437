"""Checkpoints in an object store: a real training over a real S3 server."""

from __future__ import annotations

import re
from pathlib import Path

import fsspec
import pytest
from harness import Backend, quoted
from quick import ftslurm
from s3_server import s3_server

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
        run.tell("stop")
        run.process.wait(60)
        saved = [int(str(event["step"])) for event in run.named("checkpoint_saved")]
        code, said = run.ask("resume", "checkpoint.dir=/elsewhere")
        assert (code, "they are not copied to or from an object store" in said) == (2, True), said
        code, said = run.ask("resume", "job.args.steps=5", "job.args.open-end=false", "follow=true")
        assert code == 0, said
        resumed = re.search(rf"from step (\d+), checkpoint.dir={re.escape(URL)} as before", said)
        assert resumed is not None, said
        assert int(resumed[1]) >= max(saved)  # what was saved while the run ended is not in its journal
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
        ("s3://key:secret@bucket/x", "must be SCHEME://BUCKET/FOLDER; keys: job.secrets"),
        ("s3:/bucket/x", "a URL has two slashes after the colon, as s3://bucket/folder"),
    ],
)
def test_what_is_no_store_is_refused_at_once(url: str, words: str, tmp_path: Path) -> None:
    done = ftslurm("run", "cluster=local", "job=ddp", f"checkpoint.dir={quoted(url)}", cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "secret@" not in done.stderr
    assert not list(tmp_path.iterdir())
