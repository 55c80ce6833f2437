"""What a process prints into a file on a full disk is left out; nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from full_disk import full_disk

PRINTS = """
import sys
from ftslurm.run import full_disk
full_disk.outlive()
for _ in range(3):
    print("x" * 100_000)
    print("an error", file=sys.stderr)
sys.stdout.write("end")
"""


def test_a_process_prints_on_and_ends_well(tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk") as disk, (disk / "out").open("wb") as out:
        assert subprocess.run([sys.executable, "-c", PRINTS], stdout=out, stderr=out).returncode == 0


def test_all_is_printed_at_once_where_there_is_room() -> None:
    killed = f"{PRINTS}\nimport os\nos.kill(os.getpid(), 9)\n"
    done = subprocess.run([sys.executable, "-c", killed], capture_output=True, text=True)
    assert done.stdout == ("x" * 100_000 + "\n") * 3 + "end"
    assert done.stderr == "an error\n" * 3


def test_a_reader_that_is_gone_is_still_an_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", PRINTS], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    assert b"BrokenPipeError" in process.stderr.read()
    process.wait()
