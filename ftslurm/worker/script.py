"""Runs the user's script in this process, as `python script.py` or `python -m module` would."""

from __future__ import annotations

import atexit
import contextlib
import importlib.machinery
import os
import re
import runpy
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

GOODBYE_S = 2.0  # longest time for the script's atexit functions after a failure
# The variables that ftslurm sets after job.env: that does not change them (submission/preflight.py).
OURS = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|REPLICA_GROUP_ID|NUM_REPLICA_GROUPS"
    r"|TORCHFT_LIGHTHOUSE|(FTSLURM|TORCHELASTIC)_\w+"
)


def fill(args: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the arguments with every {NAME} that ftslurm sets replaced by its value; all other braces stay.

    The user's own variables are not filled in: a run's arguments are those in its config.yaml.
    A backslash before it makes it text; backslashes before that count in pairs, as those before ${ in a setting.
    """

    def filled(found: re.Match[str]) -> str:
        backslashes, name = found[1], found[2]
        if name not in environ or not (OURS.fullmatch(name) or name.startswith("TORCHFT_")):
            return found[0]
        return backslashes[: len(backslashes) // 2] + (f"{{{name}}}" if len(backslashes) % 2 else environ[name])

    return [re.sub(r"(\\*)\{(\w+)\}", filled, arg) for arg in args]


def run(
    script: str | None,
    module: str | None,
    args: list[str],
    folder: str,
    on_failure: Callable[[BaseException], None],
    on_success: Callable[[], int | None],
) -> NoReturn:
    """Run the script as `__main__` and end the process as Python would, except that a failed script ends at once.

    Python would first join torchft's threads, which wait for a quorum for up to a minute. Meanwhile the dead rank's
    manager would still report to the Lighthouse that it is healthy, and the other groups would wait for it.

    Args:
        folder: where a module is looked for first.
        on_failure: called with the error before the script's atexit functions, which may never return; the traceback
            has no frames of this module.
        on_success: called when the script has returned or called sys.exit(0); returns the code to end with at once
            where an ordinary exit is not safe (it may wait for a quorum that never comes); None: it is.
    """
    rank = os.getpid()
    try:
        code, main = _load(script, module, folder)
        sys.argv = [script or main.__file__ or "", *args]
        exec(code, main.__dict__)  # noqa: S102 running the user's script is the purpose
    except SystemExit as leave:
        if os.getpid() != rank:
            raise
        if exit_code := _exit_code(leave.code):
            # Hydra, argparse and others print an exception that they handle, and leave with a number.
            handled = None if leave.__suppress_context__ else leave.__context__
            _end(exit_code, handled if isinstance(leave.code, int) else leave, on_failure)
    except BaseException as error:
        _print_traceback(error)
        if os.getpid() != rank:
            sys.exit(1)
        _end(1, error, on_failure)
    _flush()
    if os.getpid() != rank:
        sys.exit(0)  # a child that the script has forked has come to the script's end
    if (code_at_once := on_success()) is not None:
        _end(code_at_once, None, on_failure)
    sys.exit(0)  # threads are joined and atexit functions called, as always


def _load(script: str | None, module: str | None, folder: str) -> tuple[types.CodeType, types.ModuleType]:
    """Return the code and a new `__main__` to run it in, already in sys.modules (pickling and spawn need that)."""
    main = types.ModuleType("__main__")
    if script is not None:
        sys.path.insert(0, os.path.dirname(os.path.realpath(script) if os.path.islink(script) else script))
        loader = importlib.machinery.SourceFileLoader("__main__", script)
        main.__file__, main.__loader__ = script, loader
        code = compile(loader.get_data(script), script, "exec", dont_inherit=True)
    else:
        sys.path.insert(0, folder)
        _, spec, code = runpy._get_module_details(module)  # type: ignore[attr-defined]  # as `python -m` does
        main.__file__, main.__loader__, main.__spec__ = spec.origin, spec.loader, spec
        main.__package__ = spec.parent
    sys.modules["__main__"] = main
    return code, main


def _exit_code(code: object) -> int:
    """Return the exit code of sys.exit(code); print a message, as Python does."""
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    with contextlib.suppress(Exception):  # what is wrong with stderr hides no failure
        print(code, file=sys.stderr)
    return 1


def _print_traceback(error: BaseException) -> None:
    """Print a traceback without the frames of this module, through sys.excepthook, which the script may replace."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    error = error.with_traceback(trace)
    for hook in (sys.excepthook, sys.__excepthook__):
        with contextlib.suppress(Exception):
            hook(type(error), error, error.__traceback__)
            return


def _end(code: int, error: BaseException | None, on_failure: Callable[[BaseException], None]) -> NoReturn:
    """Report a failure, run the script's atexit functions for at most GOODBYE_S seconds, and end the process."""
    _flush()
    goodbye = threading.Timer(GOODBYE_S, os._exit, [code])
    goodbye.daemon = True
    goodbye.start()
    if error is not None:
        on_failure(error)
    atexit._run_exitfuncs()
    _flush()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the script may have closed it, or put something else there
            stream.flush()
