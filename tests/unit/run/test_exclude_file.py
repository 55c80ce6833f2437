"""What runs tell each other of broken nodes (cluster.exclude_file), with real files and real processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftslurm.config.schema import Config
from ftslurm.errors import Distrusted
from ftslurm.run import exclude_file
from ftslurm.run.directory import RunDir

FIRST, SECOND = RunDir(Path("/runs/first")), RunDir(Path("/runs/second"))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    made = Config()
    made.cluster.exclude_file = str(tmp_path / "broken.jsonl")
    return made


def file_of(config: Config) -> Path:
    return Path(str(config.cluster.exclude_file))


def nodes(config: Config, run: RunDir = SECOND) -> list[str]:
    return exclude_file.read(config, run)[0]


def line(node: str, age_s: float = 0.0, reason: str = "XID 79", run: str = "first") -> str:
    return json.dumps({"node": node, "reason": reason, "run": run, "time": time.time() - age_s}) + "\n"


def test_what_one_run_writes_the_next_one_reads_and_the_writer_does_not(config: Config) -> None:
    assert exclude_file.read(config, SECOND) == ([], "")
    exclude_file.write(config, FIRST, "n1", "GPU lost")
    exclude_file.write(config, FIRST, "n2", "x" * 5000)
    notes, said = exclude_file.read(config, SECOND)
    assert notes == ["n2", "n1"]  # the newest first
    assert "n1 (GPU lost; first, " in said
    assert len(said) < 500
    assert nodes(config, FIRST) == []
    exclude_file.write(config, FIRST, "n1", "")  # it fails elsewhere too
    assert nodes(config) == ["n2"]
    assert file_of(config).stat().st_mode & 0o777 == 0o600


def test_a_note_is_forgotten_after_a_week_and_so_is_one_from_a_wrong_clock(config: Config) -> None:
    day = 86400.0
    file_of(config).write_text(line("n1", 7.1 * day) + line("n2", 6.9 * day) + line("n3", -8 * day))
    file_of(config).chmod(0o600)
    assert nodes(config) == ["n2"]


def test_only_the_newest_are_left_out(config: Config) -> None:
    file_of(config).write_text("".join(line(f"n{age}", age) for age in range(100, 0, -1)))
    file_of(config).chmod(0o600)
    assert nodes(config) == [f"n{age}" for age in range(1, exclude_file.MOST_NODES + 1)]


DAMAGED = st.text('{}[]":,!* =', max_size=60).map(lambda text: f"{{{text}".encode())


@given(st.lists(st.one_of(DAMAGED, st.sampled_from([b"{}", b"[]", b'{"node": "n1"}', b'"n1"', b"n[1-"])), max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_costs_the_damaged_lines_and_no_other(config: Config, junk: list[bytes]) -> None:
    text = b"".join(part.replace(b"\n", b"").replace(b"\r", b"") + b"\n" for part in junk)
    file_of(config).write_bytes(text + line("n7").encode())
    file_of(config).chmod(0o600)
    notes, said = exclude_file.read(config, SECOND)
    assert notes == ["n7"]
    assert ("damaged" in said) == bool(junk)
    said.encode()


@pytest.mark.parametrize(
    "what", ["for all", "a group's", "link", "pipe", "folder", "closed", "long", "in an open folder"]
)
def test_a_file_that_others_may_have_written_or_that_is_none_is_told_and_not_used(config: Config, what: str) -> None:
    file = file_of(config)
    file.write_text(line("n1"))
    file.chmod(0o600)
    assert nodes(config) == ["n1"]
    if what in ("for all", "a group's"):
        file.chmod(0o666 if what == "for all" else 0o660)
        os.chown(file, -1, 4242) if os.geteuid() == 0 and what == "a group's" else None
    elif what == "long":
        file.write_text(line("n1") * 20000)
    elif what == "in an open folder":
        file.parent.chmod(0o777)
    elif what == "closed":
        if os.geteuid() == 0:
            pytest.skip("root may read every file")
        file.chmod(0)
    else:
        file.unlink()
        if what == "link":
            other = file.with_name("other")
            other.write_text(line("n1"))
            file.symlink_to(other)
        else:
            os.mkfifo(file) if what == "pipe" else file.mkdir()
    notes, said = exclude_file.read(config, SECOND)
    assert notes == []
    assert "cluster.exclude_file" in said
    refused = contextlib.nullcontext() if what == "long" else pytest.raises((OSError, Distrusted))
    with refused:
        exclude_file.write(config, FIRST, "n2", "broken")


def test_a_group_that_is_trusted_may_share_the_file(config: Config) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    file_of(config).write_text(line("n1"))
    file_of(config).chmod(0o660)
    os.chown(file_of(config), -1, 4242)
    config.run.trust = ["4242"]
    assert nodes(config) == ["n1"]


def test_runs_that_write_at_the_same_time_lose_nothing(config: Config) -> None:
    code = """
import sys
from pathlib import Path
from ftslurm.config.schema import Config
from ftslurm.run import exclude_file
from ftslurm.run.directory import RunDir
config = Config()
config.cluster.exclude_file = sys.argv[1]
for number in range(200):
    exclude_file.write(config, RunDir(Path("/runs") / sys.argv[2]), f"{sys.argv[2]}-{number}", "x" * number)
"""
    writers = [subprocess.Popen([sys.executable, "-c", code, str(file_of(config)), name]) for name in ("a", "b", "c")]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    rows = [json.loads(row) for row in file_of(config).read_text().splitlines()]
    assert len({row["node"] for row in rows}) == len(rows) == 600


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("n5", ["n5"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n1,n3  # the fan is broken", ["n1", "n3"]),
        ("n1 n2", ["n1", "n2"]),
        ("  n4", ["n4"]),
        ("# all is well", []),
        ("", []),
    ],
)
def test_names_that_a_person_writes_are_excluded_until_they_are_removed(
    config: Config, written: str, meant: list[str]
) -> None:
    old = line("n9", 30 * 86400.0)
    file_of(config).write_text(f"{written}\n{old}{line('n8')}{line('n5', reason='')}")
    file_of(config).chmod(0o600)
    notes, said = exclude_file.read(config, SECOND)
    assert notes == [*meant, "n8"]
    assert ("excluded by hand" in said) == bool(meant)
    assert "damaged" not in said
    assert nodes(config, FIRST) == meant  # also of the run that notes others
