"""Asks Slurm, and runs a short job on the nodes, to learn what the checks need."""

from __future__ import annotations

import fcntl
import getpass
import grp
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from ftslurm.doctor.node_checks import FolderFacts, NodeFacts
from ftslurm.doctor.node_session import NodeSession, Silent, program
from ftslurm.doctor.slurm_checks import SlurmFacts, read_accounts, read_nodes, read_records, read_settings
from ftslurm.errors import EnvironmentProblem
from ftslurm.preflight import gpu_readings
from ftslurm.slurm import client, commands
from ftslurm.slurm.hosts import expand_hosts
from ftslurm.slurm.parse import Partition, read_gpus
from ftslurm.slurm.sbatch_variables import found
from ftslurm.words import meant, nearest, offer

PREFIX = ".ftslurm-doctor-"
STALE_S = 3600.0
MUNGE_S = 10.0
PATIENCE_S = 40.0  # for a file to be seen on the other side; NFS caches names for up to 30 s by default
FACTS_S = 400.0  # three imports that each may take two minutes
ACCOUNT = ("Account", "Partition", "MaxJobs", "MaxSubmit", "GrpTRES", "MaxTRES", "QOS")
STEP_S = 60.0
KERNEL = "dmesg 2>/dev/null | tail -n 4000"  # nothing: it may not be read
PACKAGES = ("torch", "torchft", "ftslurm")

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What the user has asked for."""

    root: Path
    python: Sequence[str]
    nodes: Sequence[str] = ()
    partition: str | None = None
    extra: Sequence[str] = ()  # options of srun: --account=..., --qos=...
    gpus: int | None = None
    wait_s: float = 300.0


def ask_slurm(partition: str | None, rows: Sequence[Partition]) -> SlurmFacts:
    """Ask Slurm about itself; `rows` are those of sinfo.

    Raises:
        EnvironmentProblem: there is no such partition, or Slurm does not answer.
    """
    begun = time.monotonic()
    config = read_settings(_answer(*commands.settings()))
    took = time.monotonic() - begun
    if partition is not None and partition not in (names := [row.name for row in rows]):
        raise EnvironmentProblem(f"--partition {partition}: no such partition; {offer(partition, names)}")
    name = partition or next((row.name for row in rows if row.default), None)
    chosen = read_records(_answer(*commands.records("partition", name))) if name else []
    nodes = read_nodes(_answer(*commands.nodes()))
    node = read_records(client.call(commands.node_records([nodes[0].name])).out)[:1] if nodes else []
    here = {"SLURM_CLUSTERS": os.environ.get("SLURM_CLUSTERS", ""), "SBATCH_*": " ".join(found(os.environ))}
    return SlurmFacts(
        {key: value for one in (*node, config, here) for key, value in one.items()},
        nodes,
        chosen[0] if chosen else None,
        rows,
        took,
        _munge(config),
        _accounts(config),
        read_records(client.call(commands.records("reservation")).out),
        getpass.getuser(),
        frozenset(_group(number) for number in os.getgroups()),
    )


def known_nodes(words: str, slurm: SlurmFacts) -> list[str]:
    """Expand a host list and check that Slurm has these nodes.

    Raises:
        EnvironmentProblem: it is no host list, or a node is unknown.
    """
    try:
        nodes = expand_hosts(words)
    except ValueError as error:
        raise EnvironmentProblem(f"--nodes {words}: {error}") from error
    there = list(dict.fromkeys(node.name for node in slurm.nodes))
    for node in nodes:
        if node not in there:
            near = nearest(node, there)
            hint = f"; {meant(near)}" if near else ""
            raise EnvironmentProblem(f"--nodes {node}: Slurm has no such node{hint}")
    return nodes


def srun(options: Options, slurm: SlurmFacts, node: str) -> list[str]:
    """Return the command line of the job on one node ("": any), without its program."""
    name = (slurm.chosen or {}).get("PartitionName", "")
    gpus = options.gpus
    if gpus is None:
        there = [one for one in slurm.nodes if one.partition == name and node in ("", one.name)]
        gpus = int(any(read_gpus(one.gres) for one in there))
    return commands.srun_alone("ftslurm-doctor", name, node, gpus, options.extra)


@contextmanager
def sessions_on(
    prefixes: Sequence[tuple[str, Sequence[str]]], options: Options, folder: Path
) -> Iterator[list[NodeSession]]:
    """Start the program with each command line, named; end them all at the end of the block."""
    environ = commands.scrubbed(os.environ)
    started = list[NodeSession]()
    try:
        for name, prefix in prefixes:
            started.append(NodeSession(name, [*prefix, *program(options.python, folder)], environ))
        yield started
    finally:
        for session in started:
            session.close()


def await_start(sessions: Sequence[NodeSession], options: Options, tell: Tell) -> dict[str, str]:
    """Wait until the program runs on each node. Return why it does not, by node, for those where it does not."""
    failed = dict[str, str]()
    deadline = time.monotonic() + options.wait_s
    for session in sessions:
        name = session.name
        try:
            while not session.hello(min(5.0, max(0.1, deadline - time.monotonic()))):
                state = _queue_state(session)
                if time.monotonic() > deadline:
                    failed[name] = f"its job has not started within {options.wait_s:g} s{state}"
                    break
                tell(f"waiting for the job on {name}{state}; Ctrl-C cancels it")
        except Silent as why:
            failed[name] = str(why)
    return failed


def _queue_state(session: NodeSession) -> str:
    for line in session.said:
        if found := re.search(r"job (\d{1,20}) queued", line):
            state, reason = client.job_state(found[1])
            return f": Slurm job {found[1]} is {state} ({reason})"
    return ""


def measure_nodes(sessions: Sequence[NodeSession], options: Options) -> list[NodeFacts]:
    """Collect the facts of all nodes, and measure their clocks and the way from each to the one before it."""
    found = [NodeFacts(session.name) for session in sessions]
    pairs = list(zip(sessions, found, strict=True))
    for session, facts in pairs:
        with _noting_silence(facts):
            session.send("facts")  # they import torch at the same time
    for session, facts in pairs:
        with _noting_silence(facts):
            facts.said = {} if facts.problem else session.answer(FACTS_S)
    for i, (session, facts) in enumerate(pairs):
        with _noting_silence(facts):
            facts.error_s, facts.ahead_s = (0.0, None) if facts.problem else min(_clock(session) for _ in range(5))
        with _noting_silence(facts):
            measure_hardware(session, facts)
        with _noting_silence(facts):
            facts.tried = _as_a_run(session, options) if session.job and not facts.problem else {}
        other, there = pairs[i - 1]
        if other is not session and not facts.problem and not there.problem:
            facts.reached = {other.name: _connect(session, other)}
    return found


def measure_hardware(session: NodeSession, facts: NodeFacts) -> None:
    """Note what nvidia-smi says of a node's GPUs, and what stands in the log of its kernel."""
    if facts.problem:
        return
    facts.kernel = _ran(session, ["sh", "-c", KERNEL])[1].splitlines() or None
    if facts.said.get("gpu_files"):
        try:
            facts.gpus = gpu_readings.read(partial(_ran, session), None)
        except gpu_readings.NoAnswer as why:
            facts.gpus = str(why)


def _ran(session: NodeSession, command: Sequence[str], **environ: object) -> tuple[int, str]:
    """Run a program on a node; return its exit code and what it has printed."""
    answer = session.ask("ran", STEP_S + 10, command=["timeout", f"{STEP_S:g}", *command], **environ)
    return int(answer["code"]), str(answer["said"])


@contextmanager
def _noting_silence(facts: NodeFacts) -> Iterator[None]:
    try:
        yield
    except Silent as why:
        facts.problem = str(why)


def _as_a_run(session: NodeSession, options: Options) -> dict[str, str]:
    """Start a step beside the program, and try to submit a job, as a controller on this node would.

    Return why it fails, "" if it does not, by check.
    """
    place, found = [f"--partition={options.partition}"] if options.partition else [], dict[str, str]()
    submit = commands.try_submission(*place, *options.extra, "--wrap=true")
    tried = {"step": [*commands.beside(session.job, "ftslurm-doctor", session.name, options.extra), "true"]}
    if client.call(submit).ok:  # else it is the job that is refused, not its place
        tried["sbatch"] = submit
    for check, command in tried.items():
        code, said = _ran(session, command, environ=commands.scrubbed(os.environ))
        found[check] = f"{' '.join(said.split())[-500:]} (exit code {code})" if code else ""
    return found


def _connect(session: NodeSession, other: NodeSession) -> str:
    """Return why a node cannot connect to a free port of another one, "" if it can."""
    try:
        server = other.ask("listen")
        session.ask("connect", host=str(server["host"]), port=server["port"])
    except Silent as why:
        return str(why)
    return ""


def _clock(session: NodeSession) -> tuple[float, float]:
    """Return the error and the offset of a node's clock, from one question and its answer."""
    before, begun = time.time(), time.monotonic()
    there = float(session.ask("clock")["time"])
    taken = time.monotonic() - begun
    return taken / 2, there - (before + taken / 2)


def measure_folder(session: NodeSession, folder: Path) -> FolderFacts:
    """Measure how a folder behaves between this machine and a node."""
    facts = FolderFacts(session.name, str(folder.parent))
    mark = secrets.token_hex(4)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        here = folder / f"here-{mark}"
        here.touch(mode=0o600, exist_ok=False)
        facts.shared = bool(session.ask("exists", path=str(here))["exists"])
        if not facts.shared:
            return facts
        session.ask("list", folder=str(folder))  # the listing is cached now
        session.send("see", folder=str(folder), name=f"new-{mark}", seconds=PATIENCE_S)
        (folder / f"new-{mark}").touch(mode=0o600)
        facts.listing_s = session.answer(PATIENCE_S + 20)["seconds"]
        facts.size_s = _until_seen(session, here)
        facts.exclusive = not session.ask("create", path=str(here))["made"]
        facts.locks = _locks(session, here)
        taken = session.ask("fsync", path=str(folder / f"sync-{mark}"))
        facts.fsync_s, facts.fsync_longest_s = float(taken["median"]), float(taken["longest"])
    except Silent as why:
        facts.problem = str(why)
    except OSError as error:
        facts.problem = f"{error.filename or 'it'} cannot be written here: {error.strerror}"
    return facts


def _until_seen(session: NodeSession, path: Path) -> float | None:
    """Return after how many seconds this machine sees what a node has appended to a file that was looked at before."""
    before = path.stat().st_size
    session.ask("append", path=str(path), text="seen\n")
    begun = time.monotonic()
    while path.stat().st_size == before:
        if time.monotonic() - begun > PATIENCE_S:
            return None
        time.sleep(0.002)
    return time.monotonic() - begun


def _locks(session: NodeSession, path: Path) -> bool | None:
    try:
        with path.open("r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return not session.ask("lock", path=str(path))["free"]
    except (OSError, Silent):
        return None


@contextmanager
def scratch_folder(root: Path) -> Iterator[Path]:
    """Yield a folder to make beside the runs, or where they will be; remove it, and old ones of killed doctors.

    The caller makes it when a program runs that removes it, too: `NodeSession.hello`.

    Raises:
        EnvironmentProblem: it cannot be made.
    """
    place = next(path for path in (root, *root.parents) if path.is_dir())
    for left in place.glob(f"{PREFIX}*"):
        with suppress(OSError):
            found = left.lstat()
            mine = found.st_uid == os.geteuid() and stat.S_ISDIR(found.st_mode)
            if mine and time.time() - found.st_mtime > STALE_S:
                shutil.rmtree(left)
    folder = place / f"{PREFIX}{secrets.token_hex(8)}"
    if not os.access(place, os.W_OK | os.X_OK):
        raise EnvironmentProblem(f"{place} cannot be written: set --root to a shared folder of your own")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def versions() -> dict[str, str]:
    """Return the installed versions of ftslurm, torch and torchft on this machine."""
    found = dict[str, str]()
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def required() -> dict[str, str]:
    """Return the version ranges of torch and torchft that ftslurm requires."""
    found = dict[str, str]()
    with suppress(metadata.PackageNotFoundError):
        for line in metadata.requires("ftslurm") or []:
            match = re.fullmatch(r"(torch|torchft)([<>=!~0-9., ]+)", line)
            if match:
                found[match[1]] = match[2].strip()
    return found


def _answer(*command: str) -> str:
    answer = client.call(command)
    if not answer.ok:
        raise EnvironmentProblem(f"{' '.join(command)}: {answer.text}")
    return answer.out


def _munge(config: dict[str, str]) -> str:
    """Return why a munge credential cannot be made and read here, "" if it can or Slurm does not use munge."""
    if config.get("AuthType") != "auth/munge" or not shutil.which("munge"):
        return ""
    found = re.search(r"socket=([^,\s]+)", config.get("AuthInfo", ""))
    pipe = ["sh", "-c", 'munge --no-input "$@" | unmunge "$@"', "munge", *([f"--socket={found[1]}"] if found else [])]
    answer = client.call(pipe, MUNGE_S)
    return "" if answer.ok else f"no credential can be made and read: {answer.text:.200}"


def _accounts(config: dict[str, str]) -> list[dict[str, str]]:
    if config.get("AccountingStorageType") != "accounting_storage/slurmdbd" or not shutil.which("sacctmgr"):
        return []
    fields = f"format={','.join(f'{name}%200' for name in ACCOUNT)}"
    command = [
        "sacctmgr",
        "--parsable2",
        "--noheader",
        "show",
        "association",
        "where",
        f"user={getpass.getuser()}",
        fields,
    ]
    answer = client.call(command)
    return read_accounts(answer.out, ACCOUNT) if answer.ok else []


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
