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


def test_a_worker_starts_whose_words_find_no_place(tmp_path: Path) -> None:
    folder = tmp_path / "step"
    folder.mkdir()
    (folder / "step.log").symlink_to("/dev/full")
    (folder / "here").write_text("no folder")
    env = {"LEFT_OUT": "left out for this torchft: the patch manager"}
    with guarded.step(folder, env=env) as task:
        task.wait = lambda *_: None  # type: ignore[method-assign]
        task.step_log = lambda: "full"  # type: ignore[method-assign]  # it can be read without end
        task.begin("pass", log_dir=str(folder / "here"))
        assert task.until("warning")["text"] == env["LEFT_OUT"]
        task.until("done")
        assert task.until("exited")["code"] == 0
