"""Finds the code outside of the script's tree that its user edits, too: editable installations, and PYTHONPATH."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from importlib import metadata
from urllib.parse import unquote, urlsplit

from ftslurm.config.schema import Config


def folders(config: Config, root: str) -> Iterator[str]:
    """Yield folders that may hold modules of the run, besides the tree that is copied anyway, and ftslurm's own.

    Args:
        root: the tree that is copied.
    """
    if config.job.python not in (None, sys.executable) or config.cluster.container_image is not None:
        return  # the workers' packages are others
    own = os.path.dirname(os.path.dirname(os.path.realpath(sys.modules["ftslurm"].__file__ or "")))
    seen = {os.path.realpath(root), own}
    for folder in (*_editable(), *_on_the_path(config)):
        real = os.path.realpath(folder)
        if os.path.isdir(real) and not any((real + "/").startswith(place.rstrip("/") + "/") for place in seen):
            seen.add(real)
            yield os.path.abspath(folder)


def _editable() -> Iterator[str]:
    for one in metadata.distributions():
        try:
            origin = json.loads(one.read_text("direct_url.json") or "{}")
            url = urlsplit(origin.get("url") or "")
            if url.scheme == "file" and origin.get("dir_info", {}).get("editable"):
                yield unquote(url.path)
        except (ValueError, AttributeError, OSError):
            continue  # a damaged file of an installation that Python does without


def _on_the_path(config: Config) -> Iterator[str]:
    given = config.job.env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    installed = tuple(os.path.realpath(place) + "/" for place in (sys.prefix, sys.base_prefix))
    for folder in str(given).split(os.pathsep):
        try:
            mine = bool(folder) and os.stat(folder).st_uid == os.geteuid()
        except OSError:
            continue
        if mine and not (os.path.realpath(folder) + "/").startswith(installed):
            yield folder
