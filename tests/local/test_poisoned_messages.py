"""Messages that a script sends over its worker's channel, on purpose or not, do not stop the training."""

from __future__ import annotations

import pytest
from harness import SCRIPTS, Backend

# Unknown tasks, impossible numbers, texts instead of numbers, endless nesting, no line end.
POISON = """
import json, os, runpy, sys

from ftslurm.protocol import messages as channel
from ftslurm.protocol import outbox as tell

encode_report = channel.encode_report
channel.encode_report = lambda report, task: report if isinstance(report, bytes) else encode_report(report, task)

BAD = [-1, 2**53, 10**30, True, float("nan"), float("inf"), "x" * 500, [[1]], {"a": {}}, None]
KINDS = {
    "alive": ["step", "stage", "since_s", "state"],
    "progress": ["step", "quorum_id", "participants", "committed", "aborted", "gap_s"],
    "checkpoint": ["step", "seconds", "path"],
    "served": ["step"],
    "store": ["addr", "port"],
    "hello": ["host", "slurm_step"],
    "restored": ["step", "path"],
    "exited": ["code", "signal", "oom", "error"],
    "adopted": ["step", "store"],
}
for bad in BAD:
    for kind, names in KINDS.items():
        for name in ("task", *names):
            tell.say(json.dumps({"type": kind, "task": 0, name: bad}).encode() + b"\\n")
tell.say(b'{"type":"ready","task":' + b"[" * 900 + b"]" * 900 + b"}\\n")
tell.say(channel.Notice("poison for the translation"))
tell.say(channel.Notice("poison for the core"))
sys.argv = [os.environ["SCRIPT"], *sys.argv[1:]]
runpy.run_path(os.environ["SCRIPT"], run_name="__main__")
"""

# Plants errors in the controller: Python imports this module before everything else.
BUGS = """
import importlib.abc, importlib.util, sys


class Planter(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "ftslurm.controller.loop":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        spec.loader = Planted(spec.loader)  # a run's copy of ftslurm has one loader for all modules
        return spec


class Planted(importlib.abc.Loader):
    def __init__(self, loader):
        self.loader = loader

    def exec_module(self, module):
        self.loader.exec_module(module)
        plant(module)


def plant(controller):
    from ftslurm.core import rules as decide

    translate, observe = controller.translate, decide.observe

    def broken_translate(step, message, *rest):
        if message.get("text") == "poison for the translation":
            raise IndexError("planted in the translation")
        return translate(step, message, *rest)

    def broken_observe(state, event, *rest):
        if getattr(getattr(event, "message", None), "text", None) == "poison for the core":
            raise ZeroDivisionError("planted in the core")
        return observe(state, event, *rest)

    controller.translate, decide.observe = broken_translate, broken_observe


sys.meta_path.insert(0, Planter())
"""


@pytest.mark.light
def test_a_poisoned_message_of_a_script_stops_no_training(local: Backend) -> None:
    bugs = local.tmp_path / "bugs"
    bugs.mkdir()
    (bugs / "sitecustomize.py").write_text(BUGS)
    script = local.script(POISON)
    local.environ |= {"PYTHONPATH": str(bugs), "SCRIPT": str(SCRIPTS / "light.py")}
    run = local.start("groups.count=2", script=script, args={"steps": 20, "steps-file": str(local.tmp_path / "steps0")})
    run.finish()
    run.check_training(steps=20, survivors={0, 1})
    errors = {(e["where"], e["error"]) for e in run.named("controller_error")}
    assert {error for _, error in errors} == {
        "IndexError: planted in the translation",
        "ZeroDivisionError: planted in the core",
    }
    assert len(run.named("controller_error")) == 2  # and not once for each group
    assert "planted in the core" in run.text
    assert "bad message" in run.log("controller.log")
    assert "Traceback" in run.log("controller.log")
    assert "NaN" not in (run.dir / "events.jsonl").read_text()
