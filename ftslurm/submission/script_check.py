"""Says what is wrong with a script before it runs: a module that is not there, or a syntax error.

This file has no imports of ftslurm and runs in any Python from 3.6 on: preflight.py also has the interpreter of the run
execute its text. It executes nothing of the script and writes no file.
"""

import importlib.machinery
import sys
import traceback
import warnings


def complaint(script: str, module: str, folder: str) -> str:
    """Return what is wrong with the script, or with the module as seen from a folder; empty: nothing is."""
    path = script
    if module:
        path, missing = _file_of(module, folder)
        if missing:
            return "no module named {!r}, seen from {}".format(missing, folder)  # noqa: UP032 for old interpreters
    if not path.endswith(".py") and module:
        return ""  # compiled code
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            source = file.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        at = "{}: line {}: {}".format(path, error.lineno, error.msg)  # noqa: UP032
        shown = traceback.format_exception_only(SyntaxError, error)
        return "\n".join([at] + "".join(shown).rstrip().splitlines()[1:-1])  # noqa: RUF005
    except ValueError as error:  # null bytes
        return "{}: {}".format(path, error)  # noqa: UP032
    except (OSError, RecursionError, MemoryError):
        pass
    return ""


def _file_of(module: str, folder: str) -> "tuple[str, str]":
    """Return the file that `python -m MODULE` runs, and the module that is missing, without importing anything."""
    places, name, parts = [folder] + sys.path, "", module.split(".")  # noqa: RUF005
    spec = None
    for part in parts:
        name = name + "." + part if name else part
        spec = _find(name, places, name == part)
        if spec is None:
            return "", name
        places = list(spec.submodule_search_locations or [])
    assert spec is not None
    if spec.submodule_search_locations is not None:
        spec = _find(name + ".__main__", places, False)
        if spec is None:
            return "", name + ".__main__"
    return spec.origin or "", ""


def _find(name: str, places: "list[str]", at_the_top: bool) -> "importlib.machinery.ModuleSpec | None":
    spec = importlib.machinery.PathFinder.find_spec(name, places)
    for finder in sys.meta_path if spec is None else ():  # those of editable installations
        spec = spec or finder.find_spec(name, None if at_the_top else places)
    return spec
