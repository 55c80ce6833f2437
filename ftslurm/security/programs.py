"""How ftslurm starts its own programs and other interpreters: nothing from the folder in which they are started.

`python -m` and `python -c` look for modules in the working directory first: whoever may write there, and a logging.py
of the user's, would take the place of our modules and of Python's. (`-P` and PYTHONSAFEPATH are of Python 3.11, and a
script would inherit the latter.) The user's script keeps its own folder on sys.path, as with `python script.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

_SAFE = "import sys; sys.path[:1] = filter(None, sys.path[:1]); "  # the working directory is '' there
_ARCHIVE = (
    "import os; os.path.isfile({0!r}) or sys.exit('ftslurm: ' + {0!r} + ' is gone, the run\\'s copy "
    "of ftslurm; provenance.json beside it has the version and commit'); "
    "os.stat({0!r}).st_uid in (0, os.getuid()) or sys.exit('ftslurm: ' + {0!r} + ' is not yours'); "
    "sys.path.insert(0, {0!r}); import ftslurm; "
    "ftslurm.__file__.startswith({0!r}) or sys.exit('ftslurm: ' + {0!r} + ' is damaged'); "
)
_MODULE = "from runpy import run_module; run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
_CODE = "exec(sys.argv.pop(1))"
_HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # where the package lies
ARCHIVE = _HOME if os.path.isfile(_HOME) else ""  # a run's copy of ftslurm that this process uses (code/own_copy.py)
_PRIVATE = ("FTSLURM_", "SUBMITIT_")
COPY = "ftslurm.zip"  # the name of that copy in a run directory
TEST_KILL = "FTSLURM_TEST_KILL"  # see controller/kill_switch.py


def module(name: str, *words: str, python: Sequence[str] = (), archive: str = ARCHIVE) -> list[str]:
    """Return the command line for a module of ftslurm, as `python -m NAME WORDS` but without the working directory.

    Args:
        python: the interpreter, with what stands before it or its options; empty: this one.
        archive: the copy of ftslurm to import from; empty: what the interpreter has.
    """
    return [*(python or [sys.executable]), "-c", _start(archive) + _MODULE, name, *words]


def code(text: str, *words: str, archive: str = ARCHIVE) -> list[str]:
    """Return the command line for a program as text, as `python -c TEXT WORDS` but without the working directory.

    Args:
        archive: as for `module`.
    """
    return [sys.executable, "-c", _start(archive) + _CODE, text, *words]


def _start(archive: str) -> str:
    return _SAFE + (_ARCHIVE.format(archive) if archive else "")


def of_a_new_run(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with which a run is submitted: without what another run, or one of its hooks, has set."""
    return {name: value for name, value in environ.items() if name == TEST_KILL or not name.startswith(_PRIVATE)}
