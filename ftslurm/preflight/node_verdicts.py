"""Judge what a node has beside its GPUs: readings -> findings. Pure, except for the reading of free space."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from ftslurm.guard import kernel_log
from ftslurm.preflight.finding import Finding, fail, ok, warn
from ftslurm.run.log_signs import Fault

GB = 1 << 30


def free_gb(path: str) -> float:
    """Return the space in a folder that this user may fill.

    Raises:
        OSError: there is no such folder.
    """
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize / GB


def space(check: str, path: str, least_gb: float) -> Finding:
    """Return whether a folder has enough room."""
    try:
        free = free_gb(path)
    except OSError as error:
        return fail(check, f"{path}: {error.strerror or error}", "mount it, or name another folder")
    what = f"{path} has {free:.3g} GB free"
    if free < least_gb:
        return fail(check, f"{what}, less than {least_gb:g}", "remove what earlier jobs have left there")
    return ok(check, what)


def kernel(lines: Sequence[str] | None, uptime_s: float, last_h: float) -> Iterator[Finding]:
    """Yield the signs of broken hardware in the kernel log.

    Args:
        lines: None: this user may not read it.
        uptime_s: how long the kernel runs.
        last_h: older signs only lead to a warning.
    """
    if lines is None:
        yield ok("kernel", "the kernel log may not be read by this user: not checked")
        return
    faults = [one for one in kernel_log.parse(lines) if one.sign.fault is Fault.NODE]
    since = uptime_s - 3600 * last_h
    new = [one for one in faults if one.at is None or one.at >= since]
    for one in {(one.sign.name, one.gpu): one for one in new or faults}.values():
        where = "" if one.gpu is None else f" (GPU {one.gpu})"
        what = f"{one.sign.name}{where} in the kernel log: {one.sign.meaning}"
        if new:
            yield fail("kernel", what, one.sign.advice)
        else:
            yield warn("kernel", f"{what}, more than {last_h:g} h ago", one.sign.advice)
    if not faults:
        yield ok("kernel", "no sign of broken hardware in the kernel log")
