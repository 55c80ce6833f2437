"""A real run on a real Slurm for the chaos campaign: maps processes to units and checks the health of the run."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster import Cluster
from harness import Backend, Run, all_processes

LOST_AFTER_S, HANG_AFTER_S = 6.0, 10.0
STEP_S = 0.06
ENDED = threading.Event()  # set when the campaign is to end
GOES_ON = 3  # number of new steps after which a group counts as training
SOON = "health.lost_after_s=3"  # the default
SETTINGS = (
    *("restart.max_per_group=100000", "restart.backoff_s=0"),
    *(f"health.lost_after_s={LOST_AFTER_S}", f"health.hang_after_s={HANG_AFTER_S}"),
)
# Killing the job that the controller runs in must not reach its sruns (docs/controller.md); and a requeued job is held
# for cred_expire + 1 seconds, by default for two minutes.
CLUSTER = "ProctrackType=proctrack/pgid\nAuthInfo=socket=FOLDER/munge.sock,cred_expire=5"


@dataclass(frozen=True)
class Mode:
    """One configuration of a run."""

    groups: int
    nodes: int  # of the cluster
    settings: tuple[str, ...]
    standbys: int = 0
    wide: bool = False  # groups of two nodes
    array: bool = False
    hosts: bool = False  # each node is a host with its own cable


MODES = {
    "steps": Mode(4, 8, ("cluster.spare_nodes=2",)),
    "standby": Mode(3, 8, ("cluster.spare_nodes=2", "standby.count=1"), standbys=1),
    "wide": Mode(3, 10, ("cluster.spare_nodes=2", "groups.nodes=2"), wide=True),
    "array": Mode(4, 9, ("cluster.kind=array",), array=True),
    "hosts": Mode(4, 7, ("cluster.spare_nodes=2", SOON), hosts=True),
    "hosts-array": Mode(4, 8, ("cluster.kind=array", SOON), array=True, hosts=True),
}


@dataclass(frozen=True)
class Process:
    pid: int
    name: str
    parent: int
    environ: dict[str, str]
    words: tuple[str, ...]

    def send(self, number: int) -> None:
        """Send a signal; do nothing if the process has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


@dataclass
class Scene:
    """A cluster, the run on it, and the faults now in effect."""

    cluster: Cluster
    run: Run
    mode: Mode
    away: set[str] = field(default_factory=set)  # nodes that have been killed
    stopped: list[Process] = field(default_factory=list)
    network: ExitStack = field(default_factory=ExitStack)  # what mends it
    judged: int = 0  # events of the journal that have been judged
    explained: set[int] = field(default_factory=set)  # groups that the last fault may have ended

    @classmethod
    def start(cls, mode: Mode, folder: Path, out: Path, light: bool) -> Scene:
        """Start a cluster in `folder` and a run with its output in `out`.

        A light run has workers without torch and no checkpoints (light_worker.py). In array mode each node has one
        CPU, so that no two jobs share a node.
        """
        cpus = 1 if mode.array else 4
        cluster = Cluster.start(folder, nodes=mode.nodes, cpus=cpus, extra_conf=CLUSTER, hosts=mode.hosts)
        try:
            out.mkdir(parents=True)
            backend = Backend("slurm", cluster.env, out, light)
            backend.enter = cluster.enter()
            args: dict[str, object] = {"open-end": True, "step-time": STEP_S, "timeout": 4}
            saves = () if light else ("checkpoint.every=20",)
            run = backend.start(f"groups.count={mode.groups}", *SETTINGS, *saves, *mode.settings, args=args)
            return cls(cluster, run, mode)
        except BaseException:
            cluster.stop()
            raise

    def close(self) -> None:
        """Stop the run and the cluster."""
        try:
            self.run.abandon()
        finally:
            self.cluster.stop()

    # --- what the journal says -------------------------------------------------------------------------------------

    @property
    def groups(self) -> range:
        return range(self.mode.groups)

    def live(self) -> dict[str, dict[str, Any]]:
        """Return the last step_launched of every running unit."""
        live: dict[str, dict[str, Any]] = {}
        for e in self.run.events:
            if e["event"] == "step_launched":
                live.pop(str(e["standby"]).partition("/")[0], None)
                live[str(e["unit"])] = e
            elif e["event"] == "step_exited":
                live.pop(str(e["unit"]), None)
        return live

    def attempts(self) -> dict[int, int]:
        """Return the last attempt of each group."""
        return {int(e["group"]): int(e["attempt"]) for e in self._launched() if e["group"] is not None}

    def _launched(self) -> list[dict[str, Any]]:
        return self.run.named("step_launched")

    def nodes_of(self, group: int) -> list[str]:
        return list(self.live()[f"group-{group:04d}"]["nodes"])

    def groups_on(self, node: str) -> set[int]:
        return {int(e["group"]) for e in self.live().values() if e["group"] is not None and node in e["nodes"]}

    # --- processes -------------------------------------------------------------------------------------------------

    def processes(self) -> list[Process]:
        """Return all processes of this run and of its jobs."""
        found = []
        for pid, name, words in all_processes():
            env = dict(w.decode(errors="replace").partition("=")[::2] for w in words)
            ours = env.get("FTSLURM_RUN_DIR") == str(self.run.dir)
            if not ours and env.get("SLURM_CONF") != self.cluster.env["SLURM_CONF"]:
                continue
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
                found.append(Process(pid, name, parent(pid), env, tuple(line)))
        return found

    def step(self, unit: str) -> str:
        """Return the FTSLURM_STEP of a running unit's processes; a former standby keeps its standby's name."""
        launched = self.live()[unit]
        return str(launched["standby"] or f"{unit}/{launched['attempt']}")

    def tasks(self, unit: str) -> tuple[list[Process], list[Process]]:
        """Return the guards of a running unit, and their workers."""
        step = self.step(unit)
        mine = [p for p in self.processes() if p.environ.get("FTSLURM_STEP") == step and p.name != "srun"]
        pids = {p.pid for p in mine}
        return [p for p in mine if p.parent not in pids], [p for p in mine if p.parent in pids]

    def sruns(self, unit: str) -> tuple[list[Process], list[Process]]:
        """Return the sruns of a unit's step, mains and helpers; after an adoption, the ways to its guards."""
        step = self.step(unit)
        mine = [p for p in self.processes() if p.name == "srun"]
        ways = {f"--step={name}" for name in (step, f"{unit}/{self.live()[unit]['attempt']}")}  # after an adoption
        mine = [p for p in mine if p.environ.get("FTSLURM_STEP") == step or ways & set(p.words)]
        pids = {p.pid for p in mine}
        return [p for p in mine if p.parent not in pids], [p for p in mine if p.parent in pids]

    def slurm_step(self, unit: str) -> str:
        """Return the unit's Slurm step as JOB.STEP, for scancel."""
        guard = self.tasks(unit)[0][0].environ
        return f"{guard['SLURM_JOB_ID']}.{guard['SLURM_STEP_ID']}"

    def pilot(self, group: int) -> Process | None:
        """Return the batch process of the job that a group runs in; None: it has none."""
        (node,) = self.nodes_of(group)
        found = (
            p
            for p in self.processes()
            if p.environ.get("SLURMD_NODENAME") == node and p.words[0].startswith("ftslurm pilot: ")
        )
        return next(found, None)

    @property
    def controller(self) -> Process | None:
        """The leader's process; None: it has ended."""
        pid = int(str(self.run.named("run_started")[-1]["pid"]))
        return next((p for p in self.processes() if p.pid == pid), None)

    @property
    def controllers_node(self) -> str:
        leader = self.controller
        return "" if leader is None else leader.environ.get("SLURMD_NODENAME", "")

    def stop(self, processes: list[Process]) -> None:
        """Send SIGSTOP to these processes; `free` resumes them."""
        self.stopped += processes
        for process in processes:
            process.send(signal.SIGSTOP)

    def free(self) -> None:
        """Resume all stopped processes, and mend the network."""
        self.network.close()
        while self.stopped:
            self.stopped.pop().send(signal.SIGCONT)

    def lose(self, node: str) -> None:
        self.away.add(node)
        self.cluster.kill_node(node)

    def bring_back(self) -> None:
        """Start all lost nodes again."""
        for node in sorted(self.away):
            self.cluster.start_node(node)
            self.away.discard(node)

    # --- health ----------------------------------------------------------------------------------------------------

    def wrong(self, since: float) -> str | None:
        """Return what is wrong, as text; None: the run has a leader, and all groups have trained since then and
        since the last start or end of a step or a controller."""
        if self.run.process.poll() is not None:
            return f"the run has ended: {self.run.text[-2000:]}"
        live, last = self.live(), self.attempts()
        changes = ("run_started", "step_launched", "step_exited", "step_adopted")
        changed = max((float(str(e["time"])) for e in self.run.events if e["event"] in changes), default=0.0)
        for group in self.groups:
            unit = live.get(f"group-{group:04d}")
            if unit is None:
                return f"group {group} does not run"
            new = [s for s in self.run.steps(group) if s["time"] > max(since, changed) and s["attempt"] == last[group]]
            if len(new) < GOES_ON:
                return f"group {group} has committed {len(new)} steps in attempt {last[group]}"
        if "lighthouse" not in live:
            return "the Lighthouse does not run"
        if self.controller is None:
            return "nobody leads"
        if self.mode.array and (alone := [group for group in self.groups if self.pilot(group) is None]):
            return f"no pilot is there in the jobs of groups {alone}"
        return None

    def standbys_ready(self) -> bool:
        """Return whether all standbys are warm."""
        waiting = [u for u in self.live() if u.startswith("standby")]
        ready = [u for u in waiting if self.run.named("step_ready", unit=u, attempt=self.live()[u]["attempt"])]
        return len(ready) == self.mode.standbys

    def strays(self) -> list[str]:
        """Return the remaining processes of ended steps, as text."""
        live = {self.step(unit) for unit in self.live()}
        found = [p for p in self.processes() if p.environ.get("FTSLURM_STEP", "") not in {"", *live}]
        return [f"{p.pid} {p.name} of {p.environ['FTSLURM_STEP']}" for p in found]


def parent(pid: int) -> int:
    """Return the pid of a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_for(true: Callable[[], object], patience_s: float) -> bool:
    """Wait at most patience_s seconds for a condition; return whether it came true."""
    deadline = time.monotonic() + patience_s
    while not true():
        if time.monotonic() > deadline:
            return False
        pause(0.1)
    return True


def pause(seconds: float) -> None:
    """Sleep for some seconds.

    Raises:
        KeyboardInterrupt: the campaign is to end.
    """
    if ENDED.wait(seconds):
        raise KeyboardInterrupt
