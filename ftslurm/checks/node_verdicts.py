"""Judge a node: what was read there, and how the folder of runs behaves -> findings. Pure, but for the free space."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ftslurm.checks.finding import Finding, fail, ok, warn
from ftslurm.checks.node_facts import Hardware
from ftslurm.guard.interfaces import is_loopback
from ftslurm.words import plural

GB, LEAST_GB = 1 << 30, 1.0
ADMIN = "ask your administrator"
SHARED = "set run.root to a folder that all nodes share"
BUILD = (
    "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu128 (cu...: a CUDA that the "
    "driver has, see nvidia-smi; for AMD's GPUs rocm6.4)"
)
OTHER_PYTHON = "set job.python to an interpreter on the nodes that has torch, torchft and ftslurm (--python tries one)"
LATELY_S = 86_400.0  # an older sign in the log of the kernel does not count
SLOW_IMPORT_S = 20.0
SLOW_SEEN_S, PATIENCE_S = 2.0, 40.0  # for a file to be seen on the other side
SKEW_WARN_S, SKEW_FAIL_S = 1.0, 30.0


def silence(why: str, started: bool) -> Finding:
    """Return what is to be said of a node whose program does not answer, or has not begun."""
    if "No module named 'ftslurm" in why:
        return fail("ftslurm", f"ftslurm cannot be imported: {why}", OTHER_PYTHON)
    if not started:
        return fail("job", why, "try another --partition, --nodes or --srun, or a longer --wait")
    return fail("node", why, "log in there and try it by hand, or leave it out (--nodes)")


def folder(path: str, exclusive: bool, taken_s: Sequence[float]) -> Iterator[Finding]:
    """Yield what is wrong or well with the folder of runs, which a node shares with doctor's machine.

    Args:
        exclusive: a file that must not exist is refused to the node if it was made elsewhere.
        taken_s: how long durable writes have taken.
    """
    yield ok("folder", f"{path} is the same as here")
    if not exclusive:
        twice = "two machines can create the same file, so two controllers could lead one run"
        yield fail("folder", twice, f"{SHARED} and creates files exclusively (NFS 3 or newer, Lustre, GPFS)")
    middle = sorted(taken_s)[len(taken_s) // 2]
    taken = f"a durable write takes {1000 * middle:.1f} ms, at most {1000 * max(taken_s):.1f}"
    if middle > 0.1:
        slow = f"{taken}; the controller waits for one before each action"
        yield warn("latency", slow, "set run.root to a faster one")
    else:
        yield ok("latency", taken)


def caching(seen_s: float | None) -> Finding:
    """Return whether doctor's machine sees soon what a node has written; None: not within PATIENCE_S."""
    seen = f"not within {PATIENCE_S:g} s" if seen_s is None else f"after {seen_s:.3f} s"
    what = f"what it has written is seen here {seen}"
    if seen_s is not None and seen_s <= SLOW_SEEN_S:
        return ok("caching", what)
    fix = "mount the folder with actimeo=1 (NFS), or set run.root to another shared folder"
    return warn("caching", f"{what}: `status` and `logs` are so late, and commands to a run", fix)


def clock(ahead_s: float) -> Finding:
    """Return whether a node's clock agrees with this machine's. `ahead_s` includes the time of the comparison."""
    what, fix = f"its clock is {ahead_s:+.3f} s from this machine's", f"{ADMIN} for chrony or ntpd on the node"
    if abs(ahead_s) > SKEW_FAIL_S:
        return fail("clock", f"{what}: munge refuses credentials when clocks are minutes apart", fix)
    if abs(ahead_s) > SKEW_WARN_S:
        return warn("clock", f"{what}: `logs` and reports put lines of different nodes in the wrong order", fix)
    return ok("clock", what)


def space(check: str, path: str) -> Finding:
    """Return whether a folder has enough room for this user."""
    try:
        free = shutil.disk_usage(path).free / GB
    except OSError as error:
        return fail(check, f"{path}: {error.strerror or error}", "mount it, or name another folder")
    what = f"{path} has {free:.3g} GB free"
    if free < LEAST_GB:
        return fail(check, f"{what}, less than {LEAST_GB:g}", "remove what earlier jobs have left there")
    return ok(check, what)


def kernel(there: Hardware) -> Iterator[Finding]:
    """Yield the signs of broken hardware in the kernel log of the last day."""
    if there.kernel is None:
        yield ok("kernel", "the kernel log may not be read by this user: not checked")
        return
    since = there.uptime_s - LATELY_S
    new = [one for one in there.kernel if one.at is None or one.at >= since]
    for one in {(one.sign.name, one.gpu): one for one in new}.values():
        where = "" if one.gpu is None else f" (GPU {one.gpu})"
        yield fail("kernel", f"{one.sign.name}{where} in the kernel log: {one.sign.meaning}", one.sign.advice)
    if not new:
        yield ok("kernel", "no sign of broken hardware in the kernel log of the last day")


def package(name: str, found: Mapping[str, Any], here: str) -> Finding:
    """Return whether a package can be imported.

    Args:
        found: by node_facts.imported.
        here: the version of ftslurm on doctor's machine.
    """
    if "error" in found:
        return fail(name, f"import {name} fails: {found['error']}", OTHER_PYTHON)
    version, seconds = str(found["version"]), float(found["seconds"])
    what = f"{name} {version}, imported in {seconds:.1f} s"
    if name == "ftslurm" and version != here:
        return fail(name, f"{what}; here it is {here}", "install the same version on both")
    if seconds > SLOW_IMPORT_S:
        return warn(name, f"{what}; each restart waits for it", "set standby=one, or install on a faster file system")
    return ok(name, what)


def cuda(torch: Mapping[str, Any], count: int) -> Iterator[Finding]:
    """Yield whether torch works with the GPUs of a node.

    Args:
        torch: as found by node_facts.imported.
        count: of the GPUs that the job has, whoever makes them.
    """
    devices, build = torch.get("devices"), torch.get("build")
    has = f"it has {plural(count, 'GPU')}, and torch {torch.get('version')}"
    if error := torch.get("cuda_error"):
        yield fail("cuda", error, "compare the driver (nvidia-smi) with torch's CUDA version")
    elif devices:
        yield ok("cuda", f"torch for {build} sees {plural(devices, 'GPU')} of {count or devices}")
    elif count and build:
        yield warn("cuda", f"{has} for {build} sees none of them", "try a build that fits the driver")
    elif count and "version" in torch:
        yield warn("cuda", f"{has} is a CPU build: scripts would train on CPUs", BUILD)


def network(address: str, interfaces: Mapping[str, str], fast: Sequence[str], others: bool) -> Finding:
    """Return whether the name of a node leads other nodes to it.

    Args:
        address: what the name stands for.
        fast: devices for InfiniBand or RoCE.
        others: there are others.
    """
    shown = ", ".join(f"{name} {ip}" for name, ip in interfaces.items()) or "none but loopback"
    if fast:
        shown += f"; InfiniBand or RoCE: {', '.join(fast)}"
    if not others or (address and not is_loopback(address)):
        return ok("network", shown)
    what = f"its own name stands for {address or 'no address'}, so the route to the controller decides; {shown}"
    finding = warn if interfaces else fail
    return finding("network", what, f"set cluster.interface to one of: {', '.join(interfaces) or 'none is up'}")


def locked(limit_kb: int | None, fast: Sequence[str]) -> Iterator[Finding]:
    """Yield whether processes may lock too little memory.

    Args:
        limit_kb: None: there is no limit.
        fast: as for `network`.
    """
    if fast and limit_kb is not None:
        low = f"ulimit -l is {limit_kb} kB; NCCL registers more memory over InfiniBand"
        yield warn("memlock", low, f"{ADMIN} for LimitMEMLOCK=infinity of slurmd, or ulimit -l unlimited")


def filters(there: bool) -> Finding:
    """Judge whether the kernel keeps other users of the node from servers on loopback (guard/loopback_filter.py)."""
    if there:
        return ok("filters", "the kernel lets only a guard reach the servers of its worker")
    why = "the kernel has no socket filters: other users of the node reach torchft's manager and store"
    return warn("filters", why, "share no node with them, as with cluster.sbatch.exclusive=true")
