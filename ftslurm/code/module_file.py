"""Finds the file of job.module without importing anything."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

from ftslurm.config.schema import Config


def find(config: Config) -> str | None:
    """Return the file that `python -m MODULE` runs in the workers; None: this process cannot know it."""
    places = [os.getcwd()]
    given = config.job.env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    places += [part for part in str(given).split(os.pathsep) if part]
    own = config.job.python in (None, sys.executable)
    spec: ModuleSpec | None = None
    name = ""
    for part in str(config.job.module).split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, places + (sys.path if own and name == part else []))
        for finder in sys.meta_path if spec is None and own else ():
            spec = spec or finder.find_spec(name, None if name == part else places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or [])
    if spec is not None and spec.submodule_search_locations is not None:
        spec = PathFinder.find_spec(f"{name}.__main__", places)
    return spec.origin if spec is not None and spec.has_location else None
