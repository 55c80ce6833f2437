"""Finds the file of job.module without importing anything."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

from ftslurm.config.schema import Config


def find(config: Config) -> str | None:
    """Return the file that `python -m MODULE` runs in the workers; None: this process cannot know it."""
    given = config.job.env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    places = [os.getcwd(), *filter(None, str(given).split(os.pathsep))]
    names = str(config.job.module).split(".")
    spec = None
    finders = sys.meta_path if config.job.python in (None, sys.executable) else []  # sys.path, editable installations
    for name in (*names, "__main__"):
        spec = PathFinder.find_spec(name, places)
        if spec is None and name == names[0]:
            spec = next(filter(None, (finder.find_spec(name, None) for finder in finders)), None)
        if spec is None or spec.submodule_search_locations is None:
            break
        places = list(spec.submodule_search_locations)
    return spec.origin if spec is not None and spec.has_location and name in (names[-1], "__main__") else None
