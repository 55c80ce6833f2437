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
    names, spec = str(config.job.module).split("."), None
    places += sys.path if own else []
    for name in (*names, "__main__"):
        spec = PathFinder.find_spec(name, places)
        for finder in sys.meta_path if spec is None and own and name == names[0] else ():  # of editable installations
            spec = spec or finder.find_spec(name, None)
        if spec is None or spec.submodule_search_locations is None:
            break
        places = list(spec.submodule_search_locations)
    return spec.origin if spec is not None and spec.has_location and name in (names[-1], "__main__") else None
