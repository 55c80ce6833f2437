"""Real runs for tests: started as users start them, observed as users see them, checked for invariants."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from deaths import Kill, unplanned

from ftslurm.run.journal import JournalReader

SCRIPTS = Path(__file__).parent / "scripts"
STEPPING = ("toy.py", "light.py", "light_saving.py")  # these take --steps-file
LIGHT_WORKER = Path(__file__).parent.parent / "benchmarks" / "light_worker.py"
PATIENCE_S = 120.0  # limit for each wait; a bound for a hang, not a claim about speed
# Survivors of a death commit again within this: 1 s of heartbeat time-out, the rest for a loaded machine. A wait for a
# time-out of torchft or of a process group takes 10 s or more.
STALL_S = 9.0

SLURM_BY_DAY = pytest.mark.parametrize(  # by day on Slurm, by night on this machine, too
    "backend",
    [pytest.param("slurm", marks=pytest.mark.slurm), pytest.param("local", marks=pytest.mark.nightly)],
    indirect=True,
)


@dataclass
class Run:
    """A run in the background."""

    process: subprocess.Popen[str]
    out: Path
    root: Path
    steps_file: Path
    environ: dict[str, str]  # of its start
    kills: list[Kill] = field(default_factory=list)  # the ends that the test has caused
    _reader: JournalReader | None = None
    _events: list[dict[str, object]] = field(default_factory=list)
    _steps: dict[Path, tuple[int, list[dict[str, float]]]] = field(default_factory=dict)  # file -> (bytes read, lines)

    @property
    def text(self) -> str:
        """The run's output so far, stdout and stderr."""
        return self.out.read_text()

    @property
    def dir(self) -> Path:
        """The run directory."""
        found: list[Path] = []

        def there() -> bool:
            found[:] = [path.parent for path in self.root.glob("*/config.yaml")]
            return bool(found) or self.process.poll() is not None

        self.until(there, "the run directory")
        assert found, self.text
        return found[0]

    @property
    def events(self) -> list[dict[str, object]]:
        """The journal so far."""
        self._reader = self._reader or JournalReader(self.dir / "events.jsonl")
        self._events += list(self._reader.iter_new())
        return self._events

    @property
    def progress(self) -> list[dict[str, object]]:
        """What the groups have told of their progress so far."""
        return [*JournalReader(self.dir / "progress.jsonl").iter_new()]

    def named(self, event: str, **fields: object) -> list[dict[str, object]]:
        """Return the events of this name with these fields."""
        return [e for e in self.events if e["event"] == event and fields.items() <= e.items()]

    def node_of(self, group: int, attempt: int) -> str:
        """Return the node on which an attempt of a group of one node was launched."""
        (launched,) = self.named("step_launched", group=group, attempt=attempt)
        assert isinstance(launched["nodes"], list)
        (node,) = launched["nodes"]
        return str(node)

    def wait_for(self, event: str, **fields: object) -> dict[str, object]:
        """Wait for such an event; return the first."""
        self.until(lambda: self.named(event, **fields) or self.process.poll() is not None, f"{event} {fields}")
        found = self.named(event, **fields)
        assert found, f"the run ended without {event} {fields}:\n{self.text}"
        return found[0]

    def until(self, true: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while not true():
            assert time.monotonic() < deadline, f"{what}: not within {patience_s} s\n{self.text}"
            time.sleep(0.05)

    def finish(self, code: int = 0, outcome: str | None = None, warns: bool = False) -> Run:
        """Wait for the end; check exit code, outcome, invariants, and that no process is left.

        Args:
            warns: whether the run has a warning for its user.
        """
        try:
            got = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {PATIENCE_S} s:\n{self.text}") from None
        assert got == code, f"exit code {got}:\n{self.text}\n{self.log('controller.log')}"
        expected = outcome or {0: "succeeded", 1: "failed", 4: "succeeded"}.get(code)
        ends = self.named("run_finished")
        if expected is not None:
            assert [e["outcome"] for e in ends] == [expected], self.text
        self.until(lambda: not self.processes(), f"processes left behind: {self.processes()}", 10.0)
        self.check_invariants()
        assert bool(self.named("warning")) == warns, self.text  # no false alarms
        return self

    def check_invariants(self) -> None:
        """Check that no group has two live steps, no two groups share a part of a node, and attempts count up."""
        live: dict[str, dict[str, object]] = {}
        attempts: dict[str, int] = {}
        for e in self.events:
            if e["event"] == "step_launched":
                unit = str(e["unit"])
                if e["standby"]:
                    was = live.pop(str(e["standby"]).partition("/")[0])  # the standby's step becomes this step
                    assert set(was["nodes"]) == set(e["nodes"])  # type: ignore[call-overload]
                assert unit not in live, f"two live steps of {unit}"
                assert e["attempt"] == attempts.get(unit, -1) + 1
                attempts[unit] = int(str(e["attempt"]))
                if e["group"] is not None:
                    for other in (o for o in live.values() if o["group"] is not None):
                        shared = set(e["nodes"]) & set(other["nodes"])  # type: ignore[call-overload]
                        same = (e["slot"], e["allocation"]) == (other["slot"], other["allocation"])
                        assert not (shared and same), f"{unit} and {other['unit']} share a place"
                live[unit] = e
            elif e["event"] == "launch_refused":
                del live[str(e["unit"])]
                attempts[str(e["unit"])] = int(str(e["attempt"])) - 1
            elif e["event"] == "step_exited":
                live.pop(str(e["unit"]), None)  # it may have seemed to finish, and had left early
        if self.named("run_finished"):
            assert not live, f"still live at the end: {list(live)}"

    def log(self, name: str) -> str:
        path = self.dir / "logs" / name
        return path.read_text(errors="replace") if path.exists() else f"(no {name})"

    def rank_log(self, group: int, rank: int = 0, attempt: int = 0) -> str:
        return self.log(f"group-{group:04d}/attempt-{attempt:03d}/rank-{rank}.log")

    def pid(self, group: int, rank: int = 0, attempt: int = 0) -> int:
        """Return the pid of a rank, as toy.py prints it."""
        pattern = re.compile(r"^pid (\d+)", re.MULTILINE)
        self.until(lambda: pattern.search(self.rank_log(group, rank, attempt)), f"pid of {group}.{attempt}.{rank}")
        match = pattern.search(self.rank_log(group, rank, attempt))
        assert match
        return int(match[1])

    def kill(self, group: int, rank: int = 0, number: int = signal.SIGKILL) -> float:
        """Kill a rank of a group's current attempt; return the time."""
        attempt = max(int(str(e["attempt"])) for e in self.named("step_launched", group=group))
        pid = self.pid(group, rank, attempt)
        now = time.time()
        os.kill(pid, number)
        self.kills.append(Kill(f"group-{group:04d}", attempt, number=number))
        return now

    def check_deaths(self, *more: Kill) -> None:
        """Check that whatever has ended so far was killed by this check or by a fault of the run."""
        found = unplanned(self.events, [*self.kills, *more])
        assert not found, "\n".join(["not all deaths were planned:", *found])

    def wait_until_back(self, *groups: int, attempt: int = 1) -> None:
        """Wait until these groups have committed a step in this attempt."""
        for group in groups:
            self.wait_for("group_joined", group=group, attempt=attempt)

    def wait_until_back_at_last(self, *groups: int) -> None:
        """Wait until these groups have committed a step in any later attempt: attempts between may fail or move."""

        def there(group: int) -> bool:
            return any(e["attempt"] for e in self.named("group_joined", group=group))

        for group in groups:
            self.until(partial(there, group), f"group {group} is back")

    def wait_for_steps(self, steps: int, groups: int) -> None:
        """Wait until each of the first `groups` groups has committed `steps` steps."""
        self.until(lambda: all(len(self.steps(g)) >= steps for g in range(groups)), f"{steps} steps of {groups} groups")

    def ask(self, verb: str, *words: str) -> tuple[int, str]:
        """Run a verb on this run; return its exit code, and what it printed, errors last."""
        command = [sys.executable, "-m", "ftslurm", verb, str(self.dir), *words]
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, timeout=PATIENCE_S, cwd=self.root.parent
        )
        return done.returncode, done.stdout + done.stderr

    def tell(self, verb: str, *words: str) -> None:
        """Run a verb on this run, which must do what it is told."""
        code, said = self.ask(verb, *words)
        assert code == 0, said

    def kill_lighthouse(self) -> float:
        """Kill -9 the Lighthouse, not its guard, which is the older process; return the time."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"ftslurm.lighthouse" in line and b"srun" not in line:
                    found.append(pid)
        attempt = max(int(str(e["attempt"])) for e in self.named("step_launched", unit="lighthouse"))
        self.kills.append(Kill("lighthouse", attempt, number=None))
        now = time.time()
        os.kill(max(found), signal.SIGKILL)
        return now

    def kill_controller(self, number: int = signal.SIGKILL) -> int:
        """Kill the leader, not its keeper; return the number of controllers that have led so far."""
        leaders = self.named("run_started")
        os.kill(int(str(leaders[-1]["pid"])), number)
        return len(leaders)

    def longest_gap(self, group: int, since: float) -> float:
        """Return the longest time between two commits of a group since then."""
        times = [s["time"] for s in self.steps(group) if s["time"] >= since]
        return max((b - a for a, b in itertools.pairwise(times)), default=0.0)

    def processes(self) -> dict[int, str]:
        """Return all processes of this run, found by their environment; all nodes are on this machine."""
        mark = f"FTSLURM_RUN_DIR={self.dir}".encode()
        return {pid: name for pid, name, environ in all_processes() if mark in environ}

    def weights(self) -> dict[tuple[int, int], str]:
        """Return the digest that each rank printed at its end, by group and rank."""
        out = {}
        for path in sorted((self.dir / "logs").glob("group-*/attempt-*/rank-*.log")):
            if match := re.search(r"weights sha256=(\w+)", path.read_text(errors="replace")):
                group, _, rank = (int(n) for n in re.findall(r"(\d+)(?=/|\.log)", str(path))[-3:])
                out[group, rank] = match[1]
        return out

    def steps(self, group: int, rank: int = 0) -> list[dict[str, float]]:
        """Return the steps that a rank reports as committed, over all attempts."""
        path = Path(f"{self.steps_file}-{group}-{rank}")
        read, steps = self._steps.get(path, (0, []))
        if path.exists():
            new = path.read_bytes()[read:].rpartition(b"\n")[0]
            steps += [json.loads(line) for line in new.splitlines()]
            self._steps[path] = read + len(new) + bool(new), steps
        return list(steps)

    def end_soon(self, steps: int = 8) -> int:
        """End an open-ended training so many steps from now; return its last step."""
        groups = [int(str(e["group"])) for e in self.named("step_launched") if e["group"] is not None]
        self.until(lambda: any(map(self.steps, groups)), "a first step")
        last = max(int(s["step"]) for g in groups for s in self.steps(g)[-1:]) + steps
        part = Path(f"{self.steps_file}-end.part")
        part.write_text(str(last))
        part.rename(f"{self.steps_file}-end")
        return last

    def check_training(
        self,
        steps: int,
        survivors: set[int],
        returned: set[int] = frozenset(),  # type: ignore[assignment]
        ranks: int = 1,
        stall_s: float = STALL_S,
    ) -> None:
        """Check that survivors committed every step once and never stalled, and that all weights are bit-equal."""
        for group in survivors:
            committed = self.steps(group)
            numbers = [int(s["step"]) for s in committed]
            assert numbers == list(range(numbers[0], steps + 1)), f"group {group} committed {numbers}"
            gaps = [b["time"] - a["time"] for a, b in itertools.pairwise(committed)]
            assert max(gaps) < stall_s, f"group {group} stalled for {max(gaps):.1f} s"
        everybody = {int(s["step"]) for g in survivors | returned for s in self.steps(g)}
        assert everybody == set(range(1, steps + 1)), f"steps lost: {set(range(1, steps + 1)) - everybody}"
        for group in returned:
            last = [s for s in self.steps(group) if s["attempt"] > 0]
            assert last, f"group {group} never committed again"
            assert int(last[-1]["step"]) == steps
        weights = self.weights()
        assert set(weights) == {(g, r) for g in survivors | returned for r in range(ranks)}, weights
        assert len(set(weights.values())) == 1, f"weights differ: {weights}"

    def abandon(self) -> None:
        """End all processes that a failed test has left."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if not list(self.root.glob("*/config.yaml")) or not self.processes():
            return
        stop = [sys.executable, "-m", "ftslurm", "stop", str(self.dir)]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(stop, env=self.environ, capture_output=True, timeout=60)
        deadline = time.monotonic() + 15
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def busy_cores(count: int | None = None) -> Iterator[None]:
    """Run `count` busy loops meanwhile; None: one per core."""
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count or os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in load:
            process.kill()
            process.wait()


@dataclass
class Backend:
    """The place of runs: this machine, or a real Slurm."""

    name: str
    environ: dict[str, str]
    tmp_path: Path
    light: bool = False  # the runs are not about tensors: their workers do not import torch (marker `light`)
    enter: tuple[str, ...] = ()  # words before each command: the place where its user is
    runs: list[Run] = field(default_factory=list)

    def start(self, *overrides: str, script: str | Path = "toy.py", args: Mapping[str, object] | None = None) -> Run:
        """Start `ftslurm run` with a script in the background, and follow it."""
        number = len(self.runs)
        steps_file = self.tmp_path / f"steps{number}"
        if self.light:
            script = "light.py" if script == "toy.py" else script
            overrides = (light(), *overrides)
        path = script if isinstance(script, Path) else SCRIPTS / script
        flags = {"steps-file": str(steps_file)} if path.name in STEPPING else {}
        words = ["run", f"cluster={self.name}", f"run.root={quoted(self.tmp_path / f'runs{number}')}", "follow=true"]
        words += [f"job.script={quoted(path)}", "groups.gpus=0"]
        words += [f"job.args.{key}={quoted(value)}" for key, value in {**flags, **(args or {})}.items()]
        # Each run would copy this repository, in which the scripts lie; test_edited_script.py has its code copied.
        # Standbys come and go beside the groups; the tests that want them ask for them.
        words += ["stop.grace_s=2", "job.snapshot=none"]
        words += [] if any(word.startswith("standby") for word in overrides) else ["standby=none"]
        words += overrides
        return self.launch(*words, steps_file=steps_file)

    def launch(self, *words: str, steps_file: Path | None = None) -> Run:
        """Start ftslurm with any arguments. run.root must be runsN in the test's folder, N the number of the run."""
        number = len(self.runs)
        out = self.tmp_path / f"out{number}.txt"
        environ = {"TOY_DDP": "0"} | os.environ | {"COLUMNS": "200"} | self.environ
        with out.open("w") as sink:
            process = subprocess.Popen(
                [*self.enter, sys.executable, "-m", "ftslurm", *words],
                stdout=sink,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environ,
                cwd=self.tmp_path,
                text=True,
                start_new_session=True,
            )
        steps_file = steps_file or self.tmp_path / f"steps{number}"
        run = Run(process, out, self.tmp_path / f"runs{number}", steps_file, environ)
        self.runs.append(run)
        return run

    def script(self, text: str, name: str = "script.py") -> Path:
        """Write a script for this test; return its path."""
        path = self.tmp_path / name
        path.write_text(text)
        return path


def light() -> str:
    """Return the setting with which the workers do not import torch."""
    return f"job.python=[{quoted(sys.executable)},{quoted(LIGHT_WORKER)}]"


def quoted(value: object) -> str:
    """Quote a value for Hydra's override grammar."""
    if isinstance(value, (bool, int, float)):
        return str(value)
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def all_processes() -> Iterator[tuple[int, str, list[bytes]]]:
    """Yield (pid, name, environment) of every readable process but zombies."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environ = (path / "environ").read_bytes().split(b"\0")
            yield int(path.name), (path / "comm").read_text().strip(), environ
        except OSError:
            continue
