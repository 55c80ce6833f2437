"""One training of recovery.py: started, given faults, and watched until each is overcome or a limit is reached."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster import Cluster, processes_in
from contenders.contender import Session
from contenders.scene import Scene
from deaths import crashed
from recovery_arms import Arm, Fault
from recovery_measures import Cost, cost, quiet_again

from ftslurm.run.journal import JournalReader

STEP_S = 0.1
CALM_STEPS = 5  # that all replicas commit together before a fault
START_LIMIT_S = 240.0
LIMIT_S = 120.0  # a training that has not recovered by then counts as not recovered
SETTLE_S = 2.0  # after a recovery, and before the next fault
AFTER_CONTROLLER_S = 2.0  # between the kill of the controller and that of a replica


class NotCalm(RuntimeError):
    """A training did not start, or did not come to rest."""


@dataclass
class Training:
    """A training on a Slurm of its own."""

    arm: Arm
    cluster: Cluster
    scene: Scene
    session: Session
    _journal: JournalReader | None = None
    _events: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def start(cls, arm: Arm, folder: Path, spares: int = 0) -> Training:
        """Start a Slurm with so many more nodes than the arm needs, and the training; do not wait for it."""
        folder.mkdir()
        cluster = Cluster.start(folder / "c", nodes=arm.nodes + spares, **arm.cluster)  # type: ignore[arg-type]
        try:
            scene = Scene.prepare(cluster, folder / "s", arm.groups, step_s=STEP_S)
            return cls(arm, cluster, scene, arm.contender.start(scene))
        except BaseException:
            cluster.stop()
            raise

    def close(self) -> None:
        """End the training and its Slurm."""
        with suppress(Exception):  # whatever it has left dies with its Slurm
            self.session.end()
        self.cluster.stop()

    def wait_until_calm(self, limit_s: float = LIMIT_S) -> None:
        """Wait until all replicas train together, and all warm standbys are ready.

        Raises:
            NotCalm: not within the limit.
        """
        since = time.time()

        def calm() -> bool:
            return quiet_again(self.scene.commits(), since, self.arm.groups, CALM_STEPS) and self._standbys_ready()

        if not self.scene.wait(lambda: self.session.ended() or calm(), limit_s) or self.session.ended():
            why = self.session.ended() or f"its {self.arm.groups} replicas did not train together within {limit_s:g} s"
            raise NotCalm(why)
        self.scene.wait(self.session.ended, SETTLE_S)

    def suffer(self, fault: Fault) -> tuple[Cost, str]:
        """Make a fault, and wait until it has been overcome; return its cost, and how it was not, or nothing."""
        at, killed = self._make(fault)
        victims = fault.victims

        def over() -> bool:
            commits = self.scene.commits()
            back_s = cost(commits, killed, victims, time.time()).back_s
            since = max(at + SETTLE_S, killed + (back_s or 0.0))
            return (back_s is not None or not victims) and quiet_again(commits, since, self.arm.groups, CALM_STEPS)

        time.sleep(SETTLE_S)
        recovered = self.scene.wait(lambda: self.session.ended() or over(), LIMIT_S)
        if ended := self.session.ended():
            note = f"ended after {time.time() - at:.0f} s: {ended}"
        else:
            note = "" if recovered else f"not all train again after {LIMIT_S:.0f} s"
        if crashes := crashed([event for event in self._read() if event["time"] >= at]):
            note = "; ".join(["a process has crashed", *crashes, *filter(None, [note])])
        until = time.time()
        back = cost(self.scene.commits(), killed, victims, until)
        rest = cost(self.scene.commits(), at, victims, until)
        return Cost(back.back_s, rest.pause_s, rest.restarted, rest.undone), note

    def _make(self, fault: Fault) -> tuple[float, float]:
        """Make a fault; return its time, and that of the kill of the replicas."""
        at = time.time()
        if fault is Fault.NODE:
            self.cluster.kill_node(self._node(1), dark=True)  # without power
        elif fault is Fault.PILOT:
            self._kill(self._pilot(self._node(1)))
        elif fault is Fault.LIGHTHOUSE:
            self._kill(self._with_word(self.arm.lighthouse))
        elif fault is Fault.CONTROLLER:
            self._kill(self._with_word(self.arm.controller) if self.arm.controller else self._leader())
            time.sleep(AFTER_CONTROLLER_S)
        if fault in (Fault.NODE, Fault.PILOT, Fault.LIGHTHOUSE):
            return at, at
        pids = [pid for victim in fault.victims if (pid := self.scene.pid(victim)) is not None]
        if fault is Fault.CONTROLLER and not pids:
            return at, at  # the controller's end has taken the replica along
        if len(pids) < len(fault.victims):
            raise NotCalm(f"of replicas {fault.victims} one has no process")
        killed = time.time()
        for pid in pids:
            self._kill(pid)
        return min(at, killed), killed

    def _kill(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _node(self, replica: int) -> str:
        environ = Path(f"/proc/{self.scene.pid(replica)}/environ").read_bytes().split(b"\0")
        return next(word for word in environ if word.startswith(b"SLURMD_NODENAME=")).decode().partition("=")[2]

    def _with_word(self, word: bytes) -> int:
        """Return the youngest process whose command line has this word: an older one is its guard."""
        return max(pid for pid, line in self._command_lines() if word in line and b"srun" not in line.split(b"\0")[0])

    def _pilot(self, node: str) -> int:
        lines = self._command_lines(node)
        return min(pid for pid, line in lines if line.startswith(b"ftslurm pilot: "))

    def _command_lines(self, node: str = "") -> list[tuple[int, bytes]]:
        found = []
        for pid in processes_in(self.cluster.folder, node):
            with suppress(OSError):
                found.append((pid, Path(f"/proc/{pid}/cmdline").read_bytes()))
        return found

    # --- what ftslurm's journal says ------------------------------------------------------------------------------

    def _leader(self) -> int:
        return int([event for event in self._read() if event["event"] == "run_started"][-1]["pid"])

    def _standbys_ready(self) -> bool:
        """Return whether all warm standbys of the arm are ready."""
        ready: set[str] = set()
        for event in self._read() if self.arm.standbys else ():
            unit = str(event.get("unit"))
            if event["event"] == "step_launched":
                ready.discard(str(event["standby"]).partition("/")[0])  # a group has taken it
            elif unit.startswith("standby") and event["event"] == "step_exited":
                ready.discard(unit)
            elif unit.startswith("standby") and event["event"] == "step_ready":
                ready.add(unit)
        return len(ready) >= self.arm.standbys

    def _read(self) -> list[dict[str, Any]]:
        if self._journal is None:
            for path in (self.scene.folder / "runs").glob("*/events.jsonl"):
                self._journal = JournalReader(path)
        self._events += list(self._journal.iter_new()) if self._journal else []
        return self._events
