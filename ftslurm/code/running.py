"""In a worker: has the script and what it imports come from the copy in the run directory.

Python looks for modules in more places than sys.path: finders of editable installations, .pth files, folders that the
script adds. So, besides sys.path and PYTHONPATH, every top-level module that would come from the copied tree is
redirected when it is found.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import MutableMapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from ftslurm.code import record


class RunCode:
    """The code of this worker's run; a finder that asks all others and redirects what lies in the copied tree."""

    def __init__(self, run: str) -> None:
        """Read what the run directory says of it.

        Raises:
            OSError: its record is damaged, or another user can have written it.
        """
        self._of = record.read(run)
        self._copy = os.path.join(run, record.FOLDER)

    def place(self, path: str) -> str:
        """Return where the code at a path is taken from: from the copy, or from the path itself.

        From itself: it is outside, or not copied (links lead back to the original).
        """
        real = os.path.realpath(path)
        if not os.path.isabs(path) or not Path(real).is_relative_to(self._of.root):  # no path is, to ""
            return path
        found = os.path.normpath(os.path.join(self._copy, os.path.relpath(real, self._of.root)))
        copied = Path(os.path.realpath(found)).is_relative_to(os.path.realpath(self._copy))
        return found if copied and os.path.exists(found) else path

    def script(self, script: str | None) -> str | None:
        """Return the script that is run instead of job.script."""
        return script if self._of.script is None else os.path.join(self._copy, self._of.script)

    def enter(self, environ: MutableMapping[str, str]) -> None:
        """Redirect sys.path, PYTHONPATH (for child processes) and imports to the copy."""
        if not self._of.root:
            return
        sys.path[:] = [self.place(entry) for entry in sys.path]
        if environ.get("PYTHONPATH"):
            parts = environ["PYTHONPATH"].split(os.pathsep)
            environ["PYTHONPATH"] = os.pathsep.join(self.place(part) for part in parts)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a top-level module is; a package then finds its modules beside itself."""
        if path is not None:
            return None
        for finder in sys.meta_path:
            if finder is not self and (find := getattr(finder, "find_spec", None)) is not None:
                spec: ModuleSpec | None = find(name, None, target)
                if spec is not None:
                    return self._redirected(spec)
        return None

    def _redirected(self, spec: ModuleSpec) -> ModuleSpec:
        folders = spec.submodule_search_locations
        places = None if folders is None else [self.place(folder) for folder in folders]
        origin = spec.origin if spec.has_location else None
        new = self.place(origin or "")
        if origin and new != origin:
            above = os.path.dirname(new if places is None else os.path.dirname(new))
            if above not in sys.path:
                sys.path.append(above)  # for child processes, which get sys.path and not this finder
            return importlib.util.spec_from_file_location(spec.name, new, submodule_search_locations=places) or spec
        if origin is None and folders and places != list(folders):
            spec.submodule_search_locations = places  # a package without __init__.py
        return spec
