"""Checks of a node and of the shared folder: what was measured -> findings. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ftslurm.guard.interfaces import is_loopback
from ftslurm.preflight import gpu_verdicts, node_verdicts
from ftslurm.preflight.finding import Finding, fail, ok, warn
from ftslurm.preflight.gpu_readings import GpuReading
from ftslurm.words import plural

SHARED = "set run.root to a folder that all nodes share"
BUILD = (
    "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu128 (cu...: a CUDA that the "
    "driver has, see nvidia-smi; for AMD's GPUs rocm6.4)"
)
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
LATELY_H = 24.0  # an older sign in the log of the kernel is only a warning
SLOW_IMPORT_S = 20.0
SLOW_SEEN_S = 2.0
SKEW_WARN_S, SKEW_FAIL_S = 1.0, 60.0


@dataclass
class NodeFacts:
    """What was measured on one node."""

    name: str
    said: Mapping[str, Any] = field(default_factory=dict)  # the answer to `facts`
    ahead_s: float | None = None  # of its clock before ours
    error_s: float = 0.0  # of that measurement
    problem: str = ""  # why something could not be measured
    tried: Mapping[str, str] = field(default_factory=dict)  # what a run does there -> why it fails, "" if it does not
    reached: Mapping[str, str] = field(default_factory=dict)  # another node -> why it was not reached, "" if it was
    gpus: Sequence[GpuReading] | str = ()  # those of NVIDIA, or why nvidia-smi says nothing of them
    kernel: Sequence[str] | None = None  # the lines of its log; None: it may not be read


@dataclass
class FolderFacts:
    """How the folder of runs behaves between this machine and one node."""

    node: str
    path: str
    shared: bool = False
    listing_s: float | None = None  # until the node lists a file that was made here; None: not within the limit
    size_s: float | None = None  # until this machine sees what the node has appended
    exclusive: bool = True  # whether a file that must not exist is refused to the node if it was made here
    locks: bool | None = None  # whether a lock that is held here is held for the node; None: locking is an error
    fsync_s: float = 0.0  # the median
    fsync_longest_s: float = 0.0
    problem: str = ""


def check_folder(facts: FolderFacts, patience_s: float) -> Iterator[Finding]:
    """Yield what is wrong or well with the folder of runs, seen from a node."""
    where = f"{facts.path} on {facts.node}"
    if facts.problem:
        yield fail("folder", f"{where}: {facts.problem}", f"{SHARED}, and that you may write")
        return
    if not facts.shared:
        yield fail("folder", f"{where} is not the folder of this machine: runs need one that is shared", SHARED)
        return
    yield ok("folder", f"{where} is the same as here")
    yield from _caching(facts, patience_s)
    if not facts.exclusive:
        twice = f"{where}: two machines can create the same file, so two controllers could lead one run"
        yield fail("locking", twice, f"{SHARED} and creates files exclusively (NFS 3 or newer, Lustre, GPFS)")
    elif not facts.locks:
        what = "fcntl locks are an error" if facts.locks is None else "fcntl locks hold for one machine only"
        fix = "ftslurm needs none; if your scripts lock files there, mount with locks (Lustre: -o flock)"
        yield warn("locking", f"{where}: {what}", fix)
    else:
        yield ok("locking", f"{where}: exclusive creation and fcntl locks hold between machines")
    taken = f"{where}: a durable write takes {1000 * facts.fsync_s:.1f} ms, at most {1000 * facts.fsync_longest_s:.0f}"
    if facts.fsync_s > 0.1:
        yield warn(
            "latency", f"{taken}; the controller waits for one before each action", "set run.root to a faster one"
        )
    else:
        yield ok("latency", taken)


def _caching(facts: FolderFacts, patience_s: float) -> Iterator[Finding]:
    fix = "mount it with actimeo=1 (NFS), or set run.root to another shared folder"
    for seconds, what, late in (
        (facts.listing_s, f"{facts.node} sees a file that was made here", "commands reach a run so late"),
        (facts.size_s, f"this machine sees what {facts.node} has written", "`status` and `logs` are so late"),
    ):
        if seconds is None:
            yield warn("caching", f"{what} not within {patience_s:g} s: {late}", fix)
        elif seconds > SLOW_SEEN_S:
            yield warn("caching", f"{what} after {seconds:.1f} s: {late}", fix)
        else:
            yield ok("caching", f"{what} after {1000 * seconds:.0f} ms")


def check_clocks(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Yield whether the clocks of the nodes agree with one another and with this machine's."""
    known = {node.name: node.ahead_s for node in nodes if node.ahead_s is not None}
    if not known:
        return
    error = max(node.error_s for node in nodes)
    early, late = min([*known.values(), 0.0]), max([*known.values(), 0.0])
    names = ", ".join(f"{name} {ahead:+.3f} s" for name, ahead in sorted(known.items()))
    what = f"clocks against this machine's: {names} (measured to {error:.3f} s)"
    fix = "ask your administrator for chrony or ntpd on these nodes"
    if late - early > SKEW_FAIL_S:
        yield fail("clocks", f"{what}; munge refuses credentials when clocks are minutes apart", fix)
    elif late - early > SKEW_WARN_S + error:
        yield warn("clocks", f"{what}; `logs` and reports put lines of different nodes in the wrong order", fix)
    else:
        yield ok("clocks", what)


def check_node(node: NodeFacts, here: Mapping[str, str], ranges: Mapping[str, str], several: bool) -> Iterator[Finding]:
    """Yield what is wrong or well with one node.

    Args:
        here: the versions of ftslurm, torch and torchft on this machine.
        ranges: the version ranges that ftslurm requires.
        several: whether the node must talk to other nodes.
    """
    if node.problem:
        yield fail("node", f"{node.name}: {node.problem}", "log in there and try it by hand, or leave it out (--nodes)")
        return
    said = node.said
    yield ok("python", f"{node.name}: {said.get('python')} is Python {said.get('python_version')}")
    for name, found in dict(said.get("imports") or {}).items():
        yield _import(node.name, name, found, here, ranges)
    for check, why in node.tried.items():
        finding, can, hurts, fix = TRIED[check]
        yield finding(check, f"{node.name}: {hurts}: {why}", fix) if why else ok(check, f"{node.name}: {can}")
    yield from _cuda(node.name, said)
    yield from _hardware(node)
    yield from _network(node, several)
    yield from _limits(node.name, said)


def within(version: str, wanted: str) -> bool:
    """Return whether a version is in a range such as ">=2.8,<2.15"; letters after the numbers are ignored."""
    number = _numbers(version)
    for sign, bound in re.findall(r"(>=|<)\s*([0-9.]+)", wanted):
        if (number >= _numbers(bound)) != (sign == ">="):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _import(
    node: str, name: str, found: Mapping[str, Any], here: Mapping[str, str], ranges: Mapping[str, str]
) -> Finding:
    if "error" in found:
        fix = "set job.python to an interpreter on the nodes that has torch, torchft and ftslurm (--python tries one)"
        return fail(name, f"{node}: import {name} fails: {found['error']}", fix)
    version, seconds = str(found.get("version")), float(found.get("seconds", 0.0))
    what = f"{node}: {name} {version}, imported in {seconds:.1f} s"
    if not within(version, ranges.get(name, "")):
        return warn(name, f"{what}; ftslurm was tried with {ranges[name]}", f"pip install '{name}{ranges[name]}'")
    if name == "ftslurm" and here.get(name, version) != version:
        return fail(name, f"{what}; here it is {here[name]}", "install the same version on both")
    if seconds > SLOW_IMPORT_S:
        return warn(name, f"{what}; each restart waits for it", "set standby=one, or install on a faster file system")
    return ok(name, what)


def _cuda(node: str, said: Mapping[str, Any]) -> Iterator[Finding]:
    torch = dict(dict(said.get("imports") or {}).get("torch") or {})
    devices, build, count = torch.get("devices"), torch.get("build"), said.get("gpu_files") or said.get("other_gpus")
    has = f"{node} has {plural(count or 0, 'GPU')}, and torch {torch.get('version')}"
    if torch.get("cuda_error"):
        yield fail(
            "cuda", f"{node}: {torch['cuda_error']}", "compare the driver (nvidia-smi) with torch's CUDA version"
        )
    elif devices:
        yield ok("cuda", f"{node}: torch for {build} sees {plural(devices, 'GPU')} of {count or devices}")
    elif count and build:
        yield warn("cuda", f"{has} for {build} sees none of them", "try --gpus 1, or a build that fits the driver")
    elif count and "version" in torch:
        yield warn("cuda", f"{has} is a CPU build: scripts would train on CPUs", BUILD)


def _hardware(node: NodeFacts) -> Iterator[Finding]:
    """Yield what `ftslurm-preflight` would say of the node's GPUs and of its kernel's log."""
    found = [*node_verdicts.kernel(node.kernel, float(node.said.get("uptime_s") or 0.0), LATELY_H)]
    if isinstance(node.gpus, str):
        found.append(warn("gpus", f"it has GPUs, and nvidia-smi fails: {node.gpus}", gpu_verdicts.RESET))
    elif node.gpus:
        found += gpu_verdicts.state(node.gpus, len(node.gpus), 0)
    for one in found:
        fix = one.fix and f"set cluster.sbatch.exclude={node.name} and tell your administrator: {one.fix}"
        yield replace(one, what=f"{node.name}: {one.what}", fix=fix)


def _network(node: NodeFacts, several: bool) -> Iterator[Finding]:
    said = node.said
    address = str(said.get("address", ""))
    found = dict(said.get("interfaces") or {})
    shown = ", ".join(f"{name} {ip}" for name, ip in found.items()) or "none but loopback"
    fast = ", ".join(said.get("infiniband") or [])
    shown += f"; InfiniBand or RoCE: {fast}" if fast else ""
    fix = f"set cluster.interface to one of: {', '.join(found) or 'none is up'}"
    if "interfaces" not in said:
        yield warn("network", f"{node.name}: not looked at, ftslurm is missing there", "see the line about its import")
    elif several and (not address or is_loopback(address)):
        to = address or "no address"
        known = f"{node.name}: its own name stands for {to}, so the route to the controller decides; {shown}"
        yield warn("network", known, fix) if found else fail("network", known, fix)
    elif len(found) > 1:
        several_are = f"{node.name}: Gloo takes the interface of {address}, NCCL the first that fits; up are {shown}"
        if address in found.values() and not fast:
            yield ok("network", several_are)
        else:
            yield warn("network", f"{several_are}: name the one to use", fix)
    else:
        yield ok("network", f"{node.name}: {shown}")
    for other, why in node.reached.items():
        if why:
            closed = f"{node.name} cannot connect to a free port of {other}: {why}"
            yield fail("ports", closed, "ask your administrator to open the ports between nodes to one another")
        else:
            yield ok("ports", f"{node.name} connects to a free port of {other}")


def _limits(node: str, said: Mapping[str, Any]) -> Iterator[Finding]:
    ports, files = dict(said.get("ports") or {}), int(said.get("files") or 0)
    if ports.get("bound", 64) < 64 or ports.get("range", 20000) < 4000:
        few = f"{node}: {ports.get('range')} free ports, {ports.get('bound')} of 64 sockets got one"
        yield fail("ports", few, "ask your administrator for a wider net.ipv4.ip_local_port_range")
    else:
        yield ok("ports", f"{node}: {ports.get('range')} ports for servers of groups")
    if 0 < files < 1024:
        low = f"{node}: ulimit -n is {files}; the controller needs about 20 files for each group"
        yield warn("files", low, "raise it where you submit (ulimit -n 4096): Slurm passes it on")
    if said.get("infiniband") and not said.get("unlimited"):
        low = f"{node}: ulimit -l is {said.get('locked_kb')} kB; NCCL registers more memory over InfiniBand"
        yield warn("memlock", low, "ask your administrator for LimitMEMLOCK=infinity of slurmd, or ulimit -l unlimited")
