"""Runs on a node for `ftslurm doctor`: `python -m ftslurm.checks.on_node HERE OPTIONS SUBMIT VERSION`.

HERE is a file that doctor has made and looks at.
OPTIONS are srun's, SUBMIT is a command that tries to submit a job (none: that is refused everywhere), both as JSON.
VERSION is that of ftslurm on doctor's machine.

It prints a line of JSON when it has begun, one when it has written into the file, and one with all other findings.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, replace

from ftslurm.checks import gpu_verdicts, node_facts, node_verdicts
from ftslurm.checks.finding import Finding, Level, fail, ok, warn
from ftslurm.guard import processes
from ftslurm.guard.loopback_filter import FilteredListener
from ftslurm.slurm import client, commands

TRY_S = 60.0


def _append(path: str, text: str) -> float:
    """Append durably, as the journal does for each decision; return how long that takes."""
    begun = time.monotonic()
    with open(path, "a") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return time.monotonic() - begun


def _folder(here: str) -> Iterator[Finding]:
    """Look for the file of the other side, make it again, append to it; measure durable writes."""
    root = os.path.dirname(os.path.dirname(here))
    fix, exclusive = f"{node_verdicts.SHARED}, and that you may write", True
    try:
        if not os.path.exists(here):
            yield fail("folder", f"{root} is not the folder of this machine: runs need one that is shared", fix)
            return
        with suppress(FileExistsError):
            open(here, "x").close()
            exclusive = False
        taken_s = [_append(here, "x" * 200 + "\n") for _ in range(20)]
    except OSError as error:
        yield fail("folder", f"{root} cannot be used: {error.filename or 'it'}: {error.strerror}", fix)
    else:
        yield from node_verdicts.folder(root, exclusive, taken_s)


def _has(version: str, in_job: bool) -> Iterator[Finding]:
    """Look at everything that the node has."""
    yield ok("python", f"{sys.executable} is Python {sys.version.split()[0]}")
    imports = {name: node_facts.imported(name) for name in node_facts.PACKAGES}
    for name, found in imports.items():
        yield node_verdicts.package(name, found, version)
    there = node_facts.of_hardware(None)
    yield from node_verdicts.cuda(imports["torch"], there.gpus or int(os.environ.get("SLURM_GPUS_ON_NODE") or 0))
    for one in (*node_verdicts.kernel(there), *gpu_verdicts.state(there, 0, None)):
        yield replace(one, fix=one.fix and f"set cluster.sbatch.exclude to it and tell your administrator: {one.fix}")
    address, interfaces, fast = node_facts.network()
    yield node_verdicts.network(address, interfaces, fast, in_job)
    yield from node_verdicts.locked(node_facts.locked_kb(), fast)
    listener = FilteredListener(socket.create_server(("127.0.0.1", 0)))
    listener.listener.close()
    yield node_verdicts.filters(listener.filtered)


def _as_a_run(options: Sequence[str], submit: Sequence[str], job: str, node: str) -> Iterator[Finding]:
    """Start a step beside this one, and try to submit a job, as a controller here would."""
    environ = commands.scrubbed(os.environ)
    os.environ.clear()
    os.environ.update(environ)
    step = [*commands.srun_command(job, "ftslurm-doctor", [node], extra=commands.memory_of(options)), "true"]
    if why := _why_not(step):
        fix = "set cluster.srun to the options for which it asks, as cluster.srun=[--mem-per-cpu=1G]"
        yield fail("step", f"srun refuses the steps of a run: {why}", fix)
    else:
        yield ok("step", "a step with the options of a run starts")
    if submit and (why := _why_not(submit)):
        fix = "set cluster=slurm, with cluster.spare_nodes=1 in place of lost nodes"
        yield warn("sbatch", f"no job can be submitted from it, to begin or replace a group: {why}", fix)
    elif submit:
        yield ok("sbatch", "jobs can be submitted from it")


def _why_not(command: Sequence[str]) -> str:
    """Return why Slurm refuses; "": it does not."""
    answer = client.call(command, TRY_S)
    return "" if answer.ok else " ".join(answer.text.split())[-500:]


def _say(found: Iterable[Finding] = (), **answer: object) -> None:
    told = {"time": time.time(), "found": [*map(astuple, found)], **answer}
    print(json.dumps(told), flush=True)


def main(here: str, options: str, submit: str, version: str) -> None:
    """Look at everything."""
    node, job = processes.node_of(os.environ) or socket.gethostname(), os.environ.get("SLURM_JOB_ID", "")
    _say(node=node, job=job)
    found = [*_folder(here)]
    _say(found, written=found[0].level is Level.OK)
    found = [*_has(version, bool(job))]
    if job:
        found += _as_a_run(json.loads(options), json.loads(submit), job, node)
    _say(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
