"""`python -m ftslurm.observer.callback_process module.Class [RUN]`: calls a callback, in a process of its own.

Events come as JSON lines on the standard input, as hooks get them. A line on the descriptor that was the standard
output answers each of them, and before that the import: null, or how it has failed. What the callback prints goes to
the standard error. Without RUN the class is only imported, for the check before a run is submitted.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path

from ftslurm.observer.callbacks import ObservedRun, RunCallback
from ftslurm.protocol import occurrences
from ftslurm.run.journal_lines import read


def main(name: str, run: str | None = None) -> int:
    """Import the class; with a run, make an object and call it for each event."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path[:0] = [path for path in os.environ.get("FTSLURM_IMPORTS", "").split(os.pathsep) if path]
    try:
        callback = _class_of(name)
        if run is None:
            return 0
        told = callback()
    except Exception as error:
        print(_told(error), file=sys.stderr, flush=True)
        print(json.dumps(_told(error)), file=answers, flush=True)
        return 1
    told.run = ObservedRun(Path(run).name, Path(run))
    print("null", file=answers, flush=True)
    for line in sys.stdin:
        try:
            _call(told, json.loads(line))
            answer = None
        except Exception as error:
            traceback.print_exc()
            answer = _told(error)
        print(json.dumps(answer), file=answers, flush=True)
    return 0


def _class_of(name: str) -> type[RunCallback]:
    module, _, member = name.rpartition(".")
    found = getattr(import_module(module), member)
    if not (isinstance(found, type) and issubclass(found, RunCallback)):
        raise TypeError(f"{name} is no subclass of ftslurm.RunCallback")
    return found


def _call(callback: RunCallback, message: dict[str, object]) -> None:
    event = message["event"]
    occurrence = occurrences.of(read(event)) if isinstance(event, dict) else None
    if occurrence is not None:
        callback.on_event(occurrence, str(message["text"]))
        getattr(callback, f"on_{occurrence.kind}")(occurrence)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
