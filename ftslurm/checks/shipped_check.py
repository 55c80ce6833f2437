"""The command `ftslurm-preflight`: checks this node, and prints one line for each check."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence

from ftslurm.checks import gpu_trial, gpu_verdicts, node_facts, node_verdicts
from ftslurm.checks.finding import Finding, Level

CHECKS = ("gpus", "idle", "memory", "nvlink", "kernel", "shm", "disk", "matmul", "allreduce")
MOST_USED_MB = 2048  # memory in use of an idle GPU
TRIALS = ("matmul", "allreduce")
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
    used = os.environ.get("FTSLURM_PREFLIGHT_GPUS") or "0"
    must = "GPUs that must be there; default: those that the run uses on a node"
    add("--gpus", type=int, default=used, metavar="N", help=must)
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Run the checks. Return the exit code."""
    args = parser().parse_args(words)
    findings = list[Finding]()
    for finding in _findings(args):
        if finding.check in args.skip:
            continue
        findings.append(finding)
        print(finding, flush=True)
    failed = [one for one in findings if one.level is Level.FAIL]
    warned = sum(one.level is Level.WARN for one in findings)
    if failed:
        print(f"failed: {'; '.join(one.what for one in failed)}")
    else:
        print(f"passed: {len(findings) - warned} checks, {warned} warnings")
    return 1 if failed else 0


def _findings(args: argparse.Namespace) -> Iterator[Finding]:
    there = node_facts.of_hardware(os.environ.get("CUDA_VISIBLE_DEVICES"))
    yield from gpu_verdicts.state(there, args.gpus, MOST_USED_MB)
    yield from node_verdicts.kernel(there)
    yield node_verdicts.space("shm", "/dev/shm")  # noqa: S108 its free space is read
    for path in (os.environ.get("FTSLURM_RUN_DIR"), tempfile.gettempdir()):
        if path:
            yield node_verdicts.space("disk", path)
    if there.gpus and not {*TRIALS} <= {*args.skip}:
        yield from gpu_trial.run(there.gpus, args.skip)


if __name__ == "__main__":
    sys.exit(main())
