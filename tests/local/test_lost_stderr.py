"""A script whose stderr is full, closed or gone: its end is told all the same, and ftslurm's words do not end it."""

from __future__ import annotations

from pathlib import Path

import guarded
import pytest

BEGIN = "import os, sys\nprint('begins', flush=True)\n"
FORMS = {
    "full": "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
    "closed": "sys.stderr.close()",
    "without a descriptor": "os.close(2)",
    "a pipe that nobody reads": "r, w = os.pipe(); os.dup2(w, 2); os.close(r)",
    "none": "sys.stderr = None",
    "no stream": "sys.stderr = object()",
}
HOOK = "\ndef broken(*_): raise OSError(28, 'No space left on device')\nsys.excepthook = broken\n"


@pytest.mark.parametrize("form", FORMS)
def test_the_end_of_a_script_is_told(form: str, tmp_path: Path) -> None:
    for number, end in enumerate(("sys.exit('no data left')", f"{HOOK}raise ValueError('no data left')")):
        with guarded.step(tmp_path / str(number)) as task:
            task.begin(f"{BEGIN}{FORMS[form]}\n{end}\n")
            assert "no data left" in task.until("failed")["error"]
            assert task.until("exited")["code"] == 1
