"""`python -m ftslurm.observer.callback_process module.Class FOLDERS`: a hook that streams, for a callback class.

The module is looked for in the folders, too. An empty event only imports it, for the check before a run is submitted.
What the callback prints goes to the standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path

from ftslurm.observer.callbacks import ObservedRun, RunCallback
from ftslurm.run.journal_lines import read


def main(name: str, *folders: str) -> None:
    """Call an object of the class for each event; answer with the reason if that fails."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path[:0] = folders
    callback: RunCallback | None = None
    for line in sys.stdin:
        told, why = json.loads(line), ""
        try:
            found = _class_of(name)
            if told:
                callback = found() if callback is None else callback
                callback.run = ObservedRun(told["run_id"], Path(told["run_dir"]))
                record = read(told["event"])
                callback.on_event(told["kind"], record, told["text"])
                getattr(callback, f"on_{told['kind']}")(record)
        except Exception as error:
            traceback.print_exc()
            why = " ".join(f"{type(error).__name__}: {error}".split())
        print(why, file=answers, flush=True)


def _class_of(name: str) -> type[RunCallback]:
    module, _, member = name.rpartition(".")
    found = getattr(import_module(module), member)
    if not (isinstance(found, type) and issubclass(found, RunCallback)):
        raise TypeError(f"{name} is no subclass of ftslurm.RunCallback")
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
