"""The command `ftslurm-preflight`: checks this node, and prints one line for each check."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

from ftslurm.guard import kernel_log
from ftslurm.preflight import gpu_readings, gpu_trial, gpu_verdicts, node_verdicts
from ftslurm.preflight.finding import Finding, Level, fail, warn
from ftslurm.preflight.gpu_readings import GpuReading
from ftslurm.slurm import client

CHECKS = ("gpus", "idle", "memory", "nvlink", "speed", "kernel", "shm", "disk", "matmul", "allreduce")
SMI_S = 30.0  # longest time of a call of nvidia-smi
_EPILOG = """\
Exit code 0: the node is sound, warnings included. 1: a check has failed. The last line sums up.
On a node without GPUs their checks are left out, unless the run uses GPUs there.
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="ftslurm-preflight",
        description="Check the node on which this runs, before workers start there: health.preflight="
        "[[ftslurm-preflight]]. `ftslurm help admin` has more.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--skip", action="append", default=[], choices=CHECKS, metavar="CHECK", help=f"leave out: {', '.join(CHECKS)}")
    add("--gpus", type=int, metavar="N", help="GPUs that must be there; default: those that the run uses on a node")
    add("--allow-busy", action="store_true", help="others may use the GPUs")
    add("--max-used-mb", type=int, default=2048, metavar="MB", help="memory in use of an idle GPU (default 2048)")
    add("--slow-share", type=float, default=0.7, metavar="X", help="least share of the median speed (default 0.7)")
    add("--seconds", type=float, default=1.0, metavar="S", help="how long each GPU multiplies (default 1)")
    add("--trial-timeout-s", type=float, default=80.0, metavar="S", help="for matmul and allreduce (default 80)")
    add("--kernel-log-h", type=float, default=24.0, metavar="H", help="older errors only warn (default 24)")
    add("--min-shm-gb", type=float, default=1.0, metavar="GB", help="free space in /dev/shm (default 1)")
    add("--min-disk-gb", action="append", metavar="PATH:GB", help="free space; default: the run and /tmp, 1 each")
    add("--json", action="store_true", help="print the findings as JSON")
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Run the checks. Return the exit code."""
    made = parser()
    args = made.parse_args(words)
    try:
        disks = [_disk(word) for word in args.min_disk_gb or _disks()]
        args.gpus = int(os.environ.get("FTSLURM_PREFLIGHT_GPUS") or 0) if args.gpus is None else args.gpus
    except ValueError as error:
        made.error(str(error))
    findings = []
    for finding in _findings(args, disks):
        findings.append(finding)
        if not args.json:
            print(f"{finding.level.value:<4}  {finding.check:<9}  {finding.what}", flush=True)
            if finding.level is not Level.OK and finding.fix:
                print(f"{'':<17}{finding.fix}", flush=True)
    failed = [one for one in findings if one.level is Level.FAIL]
    if args.json:
        rows = [{"level": f.level.value, "check": f.check, "what": f.what, "fix": f.fix} for f in findings]
        print(json.dumps({"passed": not failed, "findings": rows}))
    warned = sum(one.level is Level.WARN for one in findings)
    if failed:
        print(f"failed: {'; '.join(one.what for one in failed)}", file=sys.stderr if args.json else sys.stdout)
    elif not args.json:
        print(f"passed: {len(findings) - warned} checks, {warned} warnings")
    return 1 if failed else 0


def _findings(args: argparse.Namespace, disks: Sequence[tuple[str, float]]) -> Iterator[Finding]:
    """Yield the findings of the checks that are not left out."""
    wanted = [check for check in CHECKS if check not in args.skip]
    files = len([name for name in os.listdir("/dev") if re.fullmatch("nvidia[0-9]+", name)])
    if files or args.gpus:
        yield from (one for one in _gpus(args, files) if one.check in wanted)
    if "kernel" in wanted:
        yield from node_verdicts.kernel(kernel_log.read(), time.clock_gettime(time.CLOCK_MONOTONIC), args.kernel_log_h)
    if "shm" in wanted:
        yield node_verdicts.space("shm", "/dev/shm", args.min_shm_gb)  # noqa: S108 its free space is read
    if "disk" in wanted:
        yield from (node_verdicts.space("disk", path, least) for path, least in disks)
    if (files or args.gpus or os.path.exists("/dev/kfd")) and {"matmul", "allreduce"} - {*args.skip}:
        skipped = [name for name in ("matmul", "allreduce") if name in args.skip]
        found = gpu_trial.run(skipped, args.seconds, args.trial_timeout_s)
        yield from gpu_trial.judge(found, args.slow_share)


def _gpus(args: argparse.Namespace, files: int) -> Iterator[Finding]:
    """Yield what nvidia-smi says of the GPUs."""
    gpus = list[GpuReading]()
    if files and shutil.which("nvidia-smi"):
        try:
            gpus = gpu_readings.read(_ask, os.environ.get("CUDA_VISIBLE_DEVICES"))
        except gpu_readings.NoAnswer as error:
            yield fail("gpus", f"nvidia-smi fails: {error}", gpu_verdicts.RESET)
            return
    elif files >= args.gpus or os.path.exists("/dev/kfd"):
        yield warn("gpus", "their state is not checked: there is no nvidia-smi here", "")
        return
    yield from gpu_verdicts.state(gpus, files, args.gpus)
    if not args.allow_busy:
        yield from gpu_verdicts.idle(gpus, args.max_used_mb)


def _ask(command: Sequence[str]) -> tuple[int, str]:
    answer = client.call(command, SMI_S)
    return int(not answer.ok), answer.text


def _disks() -> list[str]:
    run = os.environ.get("FTSLURM_RUN_DIR")
    return [*([f"{run}:1"] if run else []), f"{tempfile.gettempdir()}:1"]


def _disk(word: str) -> tuple[str, float]:
    """Read PATH:GB.

    Raises:
        ValueError: it is not that.
    """
    path, _, least = word.rpartition(":")
    try:
        gb = float(least)
    except ValueError:
        gb = -1.0
    if not path or not gb >= 0:
        raise ValueError(f"--min-disk-gb {word}: must be PATH:GB, as /scratch:20")
    return path, gb
