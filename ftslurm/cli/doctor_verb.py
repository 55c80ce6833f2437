"""`ftslurm doctor`: check this machine, Slurm and some nodes, one line a check with its fix."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from ftslurm.doctor import examine, node_checks
from ftslurm.doctor.examine import Options
from ftslurm.doctor.slurm_checks import SlurmFacts, check_slurm
from ftslurm.errors import Distrusted, EnvironmentProblem
from ftslurm.preflight.finding import Finding, Level, fail, ok, warn
from ftslurm.security import owned_files
from ftslurm.slurm import client


def main(args: argparse.Namespace) -> int:
    """Print the findings. Return 1 if something fails.

    Raises:
        EnvironmentProblem: there is no such partition or node, or the folder cannot be written.
    """
    found = list[Finding]()
    for finding in _findings(args):
        found.append(finding)
        if not args.json:
            print(_line(finding), flush=True)
    counts = {level: sum(finding.level is level for finding in found) for level in Level}
    if args.json:
        rows = [{"level": f.level.value, "check": f.check, "what": f.what, "fix": f.fix} for f in found]
        print(json.dumps({"checks": rows} | {level.value: count for level, count in counts.items()}, indent=2))
    else:
        print(", ".join(f"{count} {level.value}" for level, count in counts.items()))
    return int(counts[Level.FAIL] > 0)


def _findings(args: argparse.Namespace) -> Iterator[Finding]:
    """Yield the findings, as they come.

    Raises:
        EnvironmentProblem: as for `main`.
    """
    partitions, why_not = client.partitions()
    slurm = examine.ask_slurm(args.partition, partitions) if partitions else None
    nodes = examine.known_nodes(args.nodes, slurm) if slurm and args.nodes else []
    if slurm is None and (args.nodes or args.partition):
        raise EnvironmentProblem(f"--nodes and --partition need Slurm, but {why_not}")
    root = Path(os.path.abspath(Path(args.root).expanduser()))  # noqa: PTH100 links stay links
    try:
        python, extra = shlex.split(args.python), shlex.split(args.srun)
    except ValueError as error:
        raise EnvironmentProblem(f"--python or --srun: {error}") from error
    options = Options(root, python, nodes, args.partition, extra, args.gpus, args.wait)
    if slurm is None:
        finding = fail if client.installed() else warn
        yield finding("slurm", f"{why_not}: only this machine is looked at", "on a cluster, log in where sbatch works")
    else:
        yield from check_slurm(slurm)
    yield from _trust(root)
    yield from _look(options, slurm)


def _trust(root: Path) -> Iterator[Finding]:
    try:
        owned_files.check_way(root, [])
        yield ok("trust", f"{root}: no other user can replace your runs")
    except Distrusted as why:
        yield warn("trust", str(why), "set run.trust=[NAME] for those you trust, or run.root to a folder of your own")


def _look(options: Options, slurm: SlurmFacts | None) -> Iterator[Finding]:
    """Run the program on the nodes, or here, and yield what it finds."""
    prefixes: list[tuple[str, list[str]]] = [("this machine", [])]
    if slurm is not None:
        prefixes = [(node or "a node", examine.srun(options, slurm, node)) for node in options.nodes or [""]]
    with (
        examine.scratch_folder(options.root) as folder,
        examine.sessions_on(prefixes, options, folder) as sessions,
    ):
        failed = examine.await_start(sessions, options, lambda line: print(line, file=sys.stderr, flush=True))
        for name, why in failed.items():
            yield fail("job", f"{name}: {why}", "try another --partition, --nodes or --srun, or a longer --wait")
        ready = [session for session in sessions if session.seconds]
        for session in ready:
            where = f"Slurm job {session.job} started" if session.job else "the program started"
            yield ok("job", f"{session.name}: {where} after {session.seconds:.1f} s")
            yield from node_checks.check_folder(examine.measure_folder(session, folder), examine.PATIENCE_S)
        measured = examine.measure_nodes(ready, options)
        yield from node_checks.check_clocks(measured if slurm else [])
        several = slurm is not None and not slurm.one_machine
        for node in measured:
            yield from node_checks.check_node(node, examine.versions(), examine.required(), several)


def _line(finding: Finding) -> str:
    fix = f"; fix: {finding.fix}" if finding.fix else ""
    return f"{finding.level.value:<4}  {finding.check:<15} {finding.what}{fix}"
