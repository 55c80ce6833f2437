"""Finds the file of job.module without importing anything."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

from ftslurm.config.schema import Config


def find(config: Config) -> str | None:
    """Return the file that `python -m MODULE` runs in the workers; None: this process cannot know it."""
    places = [os.getcwd()]
    given = config.job.env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    places += [part for part in str(given).split(os.pathsep) if part]
    own = config.job.python in (None, sys.executable)
    head, *rest = str(config.job.module).split(".")
    spec = PathFinder.find_spec(head, places + (sys.path if own else []))
    for finder in sys.meta_path if spec is None and own else ():
        spec = spec or finder.find_spec(head, None)
    if spec is None:
        return None
    if spec.submodule_search_locations is None:
        return spec.origin if not rest and spec.has_location else None
    for folder in spec.submodule_search_locations:
        below = os.path.join(folder, *rest)
        for file in (os.path.join(below, "__main__.py"), *([f"{below}.py"] if rest else [])):
            if os.path.isfile(file):
                return file
    return None
