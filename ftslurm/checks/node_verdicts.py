"""Judge a node: what was read there, and how the folder of runs behaves -> findings. Pure, but for the free space."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from ftslurm import __version__
from ftslurm.checks import gpu_verdicts
from ftslurm.checks.finding import Finding, fail, ok, warn
from ftslurm.checks.node_facts import PATIENCE_S, Facts, FolderFacts, Hardware, NodeFacts
from ftslurm.guard import kernel_log
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
TRIED = {
    "step": (
        fail,
        "a step with the options of a run starts",
        "srun refuses the steps of a run",
        "set cluster.srun to the options for which it asks, as cluster.srun=[--mem-per-cpu=1G]",
    ),
    "sbatch": (
        warn,
        "jobs can be submitted from it",
        "no job can be submitted from it, to begin or replace a group",
        "set cluster=slurm, with cluster.spare_nodes=1 in place of lost nodes",
    ),
}
LATELY_S = 86_400.0  # an older sign in the log of the kernel does not count
SLOW_IMPORT_S = 20.0
SLOW_SEEN_S = 2.0
SKEW_WARN_S, SKEW_FAIL_S = 1.0, 30.0


def check_node(node: NodeFacts, ranges: Mapping[str, str], several: bool) -> Iterator[Finding]:
    """Yield what is wrong or well with a node, and with the folder seen from it.

    Args:
        ranges: the versions that ftslurm requires, by package.
        several: whether the node must talk to other nodes.
    """
    for one in _check_node(node, ranges, several):
        yield replace(one, what=f"{node.name}: {one.what}")


def _check_node(node: NodeFacts, ranges: Mapping[str, str], several: bool) -> Iterator[Finding]:
    if "No module named 'ftslurm" in node.problem:
        yield fail("ftslurm", f"ftslurm cannot be imported: {node.problem}", OTHER_PYTHON)
    elif not node.started_s:
        yield fail("job", node.problem, "try another --partition, --nodes or --srun, or a longer --wait")
    else:
        where = f"Slurm job {node.job}" if node.job else "the program"
        yield ok("job", f"{where} started after {node.started_s:.1f} s")
    if node.folder is not None:
        yield from check_folder(node.folder)
    if node.facts is not None:
        yield from clock(node.ahead_s) if node.job else ()
        yield from _facts(node.facts, ranges, several)
        for check, why in node.tried.items():
            finding, can, hurts, fix = TRIED[check]
            yield finding(check, f"{hurts}: {why}", fix) if why else ok(check, can)
    elif node.started_s:
        yield fail("node", node.problem, "log in there and try it by hand, or leave it out (--nodes)")


def check_reach(node: NodeFacts) -> Iterator[Finding]:
    """Yield whether a node connects to the others that were tried."""
    for other, why in node.reached.items():
        if why:
            closed = f"{node.name} cannot connect to a free port of {other}: {why}"
            yield fail("ports", closed, f"{ADMIN} to open the ports between nodes to one another")
        else:
            yield ok("ports", f"{node.name} connects to a free port of {other}")


def check_folder(facts: FolderFacts) -> Iterator[Finding]:
    """Yield what is wrong or well with the folder of runs."""
    if facts.problem:
        yield fail("folder", f"{facts.path} cannot be used: {facts.problem}", f"{SHARED}, and that you may write")
        return
    if not facts.shared:
        yield fail("folder", f"{facts.path} is not the folder of this machine: runs need one that is shared", SHARED)
        return
    yield ok("folder", f"{facts.path} is the same as here")
    seen = f"not within {PATIENCE_S:g} s" if facts.size_s is None else f"after {facts.size_s:.3f} s"
    what = f"what it has written is seen here {seen}"
    if facts.size_s is None or facts.size_s > SLOW_SEEN_S:
        fix = "mount the folder with actimeo=1 (NFS), or set run.root to another shared folder"
        yield warn("caching", f"{what}: `status` and `logs` are so late, and commands to a run", fix)
    else:
        yield ok("caching", what)
    if not facts.exclusive:
        twice = "two machines can create the same file, so two controllers could lead one run"
        yield fail("folder", twice, f"{SHARED} and creates files exclusively (NFS 3 or newer, Lustre, GPFS)")
    taken = f"a durable write takes {1000 * facts.fsync_s:.1f} ms, at most {1000 * facts.fsync_longest_s:.1f}"
    if facts.fsync_s > 0.1:
        slow = f"{taken}; the controller waits for one before each action"
        yield warn("latency", slow, "set run.root to a faster one")
    else:
        yield ok("latency", taken)


def clock(ahead_s: float) -> Iterator[Finding]:
    """Yield whether a node's clock agrees with this machine's. `ahead_s` includes the time of the comparison."""
    what = f"its clock is {ahead_s:+.3f} s from this machine's"
    if abs(ahead_s) > SKEW_FAIL_S:
        yield fail("clock", f"{what}: munge refuses credentials when clocks are minutes apart", _CHRONY)
    elif abs(ahead_s) > SKEW_WARN_S:
        yield warn("clock", f"{what}: `logs` and reports put lines of different nodes in the wrong order", _CHRONY)
    else:
        yield ok("clock", what)


_CHRONY = f"{ADMIN} for chrony or ntpd on the node"


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
    new = [one for one in kernel_log.parse(there.kernel) if one.at is None or one.at >= since]
    for one in {(one.sign.name, one.gpu): one for one in new}.values():
        where = "" if one.gpu is None else f" (GPU {one.gpu})"
        yield fail("kernel", f"{one.sign.name}{where} in the kernel log: {one.sign.meaning}", one.sign.advice)
    if not new:
        yield ok("kernel", "no sign of broken hardware in the kernel log of the last day")


def _facts(facts: Facts, ranges: Mapping[str, str], several: bool) -> Iterator[Finding]:
    yield ok("python", f"{facts.python} is Python {facts.python_version}")
    for name, found in facts.imports.items():
        yield _import(name, found, ranges.get(name, ""))
    yield from _cuda(facts)
    for one in (*kernel(facts.hardware), *gpu_verdicts.state(facts.hardware, 0, None)):
        yield replace(one, fix=one.fix and f"set cluster.sbatch.exclude to it and tell your administrator: {one.fix}")
    yield _network(facts, several)
    yield from _limits(facts)


def _import(name: str, found: Mapping[str, Any], wanted: str) -> Finding:
    if "error" in found:
        return fail(name, f"import {name} fails: {found['error']}", OTHER_PYTHON)
    version, seconds = str(found["version"]), float(found["seconds"])
    what = f"{name} {version}, imported in {seconds:.1f} s"
    if not _fits(version, wanted):
        return warn(name, f"{what}; ftslurm was tried with {wanted}", f"pip install '{name}{wanted}'")
    if name == "ftslurm" and version != __version__:
        return fail(name, f"{what}; here it is {__version__}", "install the same version on both")
    if seconds > SLOW_IMPORT_S:
        return warn(name, f"{what}; each restart waits for it", "set standby=one, or install on a faster file system")
    return ok(name, what)


def _fits(version: str, wanted: str) -> bool:
    try:
        return SpecifierSet(wanted).contains(version, prereleases=True)
    except InvalidVersion:
        return not wanted


def _cuda(facts: Facts) -> Iterator[Finding]:
    torch, count = facts.imports["torch"], facts.hardware.gpus or facts.slurm_gpus
    devices, build = torch.get("devices"), torch.get("build")
    has = f"it has {plural(count or 0, 'GPU')}, and torch {torch.get('version')}"
    if error := torch.get("cuda_error"):
        yield fail("cuda", error, "compare the driver (nvidia-smi) with torch's CUDA version")
    elif devices:
        yield ok("cuda", f"torch for {build} sees {plural(devices, 'GPU')} of {count or devices}")
    elif count and build:
        yield warn("cuda", f"{has} for {build} sees none of them", "try a build that fits the driver")
    elif count and "version" in torch:
        yield warn("cuda", f"{has} is a CPU build: scripts would train on CPUs", BUILD)


def _network(facts: Facts, several: bool) -> Finding:
    shown = ", ".join(f"{name} {ip}" for name, ip in facts.interfaces.items()) or "none but loopback"
    if facts.infiniband:
        shown += f"; InfiniBand or RoCE: {', '.join(facts.infiniband)}"
    if not several or (facts.address and not is_loopback(facts.address)):
        return ok("network", shown)
    what = f"its own name stands for {facts.address or 'no address'}, so the route to the controller decides; {shown}"
    finding = warn if facts.interfaces else fail
    return finding("network", what, f"set cluster.interface to one of: {', '.join(facts.interfaces) or 'none is up'}")


def _limits(facts: Facts) -> Iterator[Finding]:
    if facts.ports < 4000:
        yield fail("ports", f"{facts.ports} free ports", f"{ADMIN} for a wider net.ipv4.ip_local_port_range")
    else:
        yield ok("ports", f"{facts.ports} ports for servers of groups")
    if 0 < facts.files < 1024:
        low = f"ulimit -n is {facts.files}; the controller needs about 20 files for each group"
        yield warn("files", low, "raise it where you submit (ulimit -n 4096): Slurm passes it on")
    if facts.infiniband and facts.locked_kb is not None:
        low = f"ulimit -l is {facts.locked_kb} kB; NCCL registers more memory over InfiniBand"
        yield warn("memlock", low, f"{ADMIN} for LimitMEMLOCK=infinity of slurmd, or ulimit -l unlimited")
