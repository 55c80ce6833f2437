"""The attacked training, the attacker, and the checks during and after an attack."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import Backend, Run
from ports import Answer, knock_everywhere, of_processes
from stranger import OPENINGS

STEP_S = 0.1  # sleep per step: it sets the pace, and a busy machine changes it little
MOST_LOGS = 1_000_000  # most bytes that an attack may add to a run's logs
SQUAT_S = 7.0  # time for which a squatter holds the port of a part of the run
LONGEST_ANSWER = 200  # bytes, of an answer to a greeting; a longer one tells something of the run
GREETING = 48  # bytes, that a gate sends before it knows the caller
TRAINING = {"open-end": True, "step-time": STEP_S}
OPTIONS = ("groups.count=2", "restart.backoff_s=0.1")

# Journal events that show an effect on the training.
NOTICED = {
    *("step_exited", "restart_scheduled", "group_given_up", "node_excluded", "allocation_lost", "run_finished"),
    *("quorum_refused", "warning", "group_hung", "lighthouse_moved"),
}


@dataclass
class Attack:
    """A running attack: a process of the stranger."""

    process: subprocess.Popen[str]
    errors: Path  # its stderr, with all that it fails at

    def wait_until_ready(self) -> None:
        """Wait until the attack reports that it has begun; only for attacks that do."""
        assert self.process.stdout
        assert self.process.stdout.readline() == "ready\n", self.errors.read_text()

    def result(self, patience_s: float = 90.0) -> Any:
        """Wait for the end of the attack; return its result."""
        out, _ = self.process.communicate(timeout=patience_s)
        assert self.process.returncode == 0, f"the stranger himself failed: {self.errors.read_text()[-4000:]}"
        return json.loads(out.splitlines()[-1])

    @property
    def goes_on(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        if self.goes_on:
            self.process.kill()
        self.process.communicate()


@dataclass
class Stranger:
    """Another user of this machine, whose processes end with the test."""

    uid: int
    folder: Path
    attacks: list[Attack] = field(default_factory=list)

    def begin(self, attack: str, **arguments: object) -> Attack:
        """Start an attack; see tests/security/stranger.py."""
        command = [sys.executable, str(Path(__file__).with_name("stranger.py")), str(self.uid), attack]
        errors = self.folder / f"stranger-{len(self.attacks)}.txt"
        with errors.open("w") as sink:
            process = subprocess.Popen(
                [*command, json.dumps(arguments)],
                stdout=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                stderr=sink,
                text=True,
            )
        self.attacks.append(Attack(process, errors))
        return self.attacks[-1]

    def attack(self, name: str, **arguments: object) -> Any:
        """Make an attack and return its result."""
        return self.begin(name, **arguments).result()

    def stop(self) -> None:
        for attack in self.attacks:
            attack.stop()


@dataclass
class Field:
    """The runs of a module: the next test gets the same run, unless a test failed on it."""

    backend: Backend
    begin: Callable[[Backend], Run]
    run: Run | None = None

    def a_run(self) -> Run:
        if self.run is None or self.run.process.poll() is not None:
            self.run = self.begin(self.backend)
        return self.run

    def spoilt(self) -> None:
        if self.run is not None:
            self.run.abandon()
        self.run = None


def begin_training(backend: Backend) -> Run:
    """Start two groups of one rank, which train until they are stopped."""
    run = backend.start(*OPTIONS, args=TRAINING)
    run.wait_for_steps(5, groups=2)
    return run


# --- checks --------------------------------------------------------------------------------------------------------


def own_ports(run: Run) -> dict[int, int]:
    """Return port -> pid for the listening ports of this run; those of srun are Slurm's."""
    return of_processes(pid for pid, name in run.processes().items() if name not in ("srun", "slurmstepd"))


def ranks(run: Run) -> set[int]:
    """Return the pids of the ranks: children of guards."""
    own = {pid for pid, name in run.processes().items() if name != "srun"}
    return {pid for pid in own if "group-" in pid_name(pid) and _parent(pid) in own}


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    return 0


def latest(run: Run) -> dict[int, int]:
    """Return group -> current attempt."""
    launched = [e for e in run.named("step_launched") if e["group"] is not None]
    return {int(str(e["group"])): int(str(e["attempt"])) for e in launched}


def gloo_ports(run: Run) -> list[int]:
    """Return the ports for Gloo connections between ranks, which are silent to everyone, their owner too.

    torch opens them itself, on a port of its choice; docs/security.md says what an attacker can do there.
    """
    of_ranks = {port for port, pid in own_ports(run).items() if pid in ranks(run)}
    answers = knock_everywhere({name: OPENINGS[name] for name in ("HTTP/2", "model", "store")}, 1.0, of_ranks)
    speak = {answer.port for answer in answers if answer.said or answer.closed_s is not None or not answer.connected}
    return sorted(of_ranks - speak)


def logs_size(run: Run) -> int:
    return sum(path.stat().st_size for path in (run.dir / "logs").rglob("*") if path.is_file())


@contextlib.contextmanager
def unnoticed(run: Run, groups: int = 2) -> Iterator[None]:
    """Check that the training continues during and after the block, with the same quorum and members."""
    run.until(lambda: _in_one_quorum(run, groups), "the groups train together", 20.0)  # one may just have come back
    before = len(run.events)
    steps = [len(run.steps(group)) for group in range(groups)]
    quorum, size = run.steps(0)[-1]["quorum"], logs_size(run)
    yield
    now = [len(run.steps(group)) for group in range(groups)]
    run.until(lambda: all(len(run.steps(g)) >= n + 5 for g, n in enumerate(now)), "the training goes on", 20.0)
    noticed = [event for event in run.events[before:] if event["event"] in NOTICED]
    assert not noticed, noticed
    for group in range(groups):
        new = run.steps(group)[steps[group] :]
        assert {(s["quorum"], s["participants"], s["attempt"]) for s in new} == {(quorum, groups, latest(run)[group])}
        numbers = [s["step"] for s in new]
        assert numbers == list(range(int(numbers[0]), int(numbers[0]) + len(numbers))), numbers
    assert logs_size(run) - size < MOST_LOGS, f"{logs_size(run) - size} bytes of logs"


def _in_one_quorum(run: Run, groups: int) -> bool:
    last = [run.steps(group)[-1] for group in range(groups)]
    return {(step["quorum"], step["participants"]) for step in last} == {(last[0]["quorum"], groups)}


def nothing_said(run: Run, answers: list[Answer], gloo: list[int]) -> None:
    """Check that no port told a stranger anything: unreachable, closed at once, or closed after asking for a password.

    Args:
        gloo: ports that may stay open, as long as they are silent.
    """
    whose = {port: pid_name(pid) for port, pid in own_ports(run).items()}
    wrong: dict[str, list[str]] = {}
    for answer in answers:
        greeted = len(answer.said) == GREETING and answer.said.startswith(b"ftslurm")
        shut = not answer.connected or answer.closed_s is not None
        if (answer.said and not greeted) or not (shut or (answer.port in gloo and not answer.said)):
            place = f"{whose.get(answer.port, 'somebody')} at {answer.way} port {answer.port}"
            fate = "kept open" if answer.closed_s is None else f"closed after {answer.closed_s} s"
            wrong.setdefault(place, []).append(f"{answer.opening}: {answer.said[:32]!r}, {fate}")
    assert not wrong, "\n" + "\n  ".join(f"{place}: {'; '.join(said)}" for place, said in wrong.items())


def pid_name(pid: int) -> str:
    """Return a readable name of a process of a run."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        module = next((word for word in words if re.fullmatch(r"ftslurm(\.[a-z]\w*)*", word)), " ".join(words)[:40])
        folder = re.search(r"group-\d+/attempt-\d+", " ".join(words))
        return f"{module} {folder[0] if folder else ''} ({pid})"
    return str(pid)


def told_once(run: Run) -> None:
    """Check that some step's log reports the refusal, and that no log reports one kind more than once."""
    found = 0
    for path in (run.dir / "logs").rglob("*step.log"):
        lines = [line for line in path.read_text(errors="replace").splitlines() if line.startswith("ftslurm: ")]
        refusals = Counter(re.sub(r"\d+", "N", line) for line in lines if "refused" in line)
        found += len(refusals)
        assert not refusals or max(refusals.values()) == 1, f"{path}: {refusals}"
    assert found, "no step's log says that anybody was refused"


def squat(stranger: Stranger, folder: Path, wanted: Iterable[int]) -> Attack:
    """Let the stranger take these ports as soon as they are free; see `Squatter` in stranger.py."""
    folder.mkdir(mode=0o755)
    attack = stranger.begin("squat", wanted=sorted(wanted), folder=str(folder), seconds=SQUAT_S)
    attack.wait_until_ready()
    return attack


def learnt_nothing(found: dict[str, object], folder: Path) -> None:
    """Check that a squatter received at most answers to a greeting, and that nothing it sent was believed."""
    assert found["taken"], "he got none of the ports: this tests nothing"
    for call in found["calls"]:  # type: ignore[attr-defined]
        said = bytes.fromhex(call["said"])
        assert len(said) <= LONGEST_ANSWER, f"port {call['port']}: {said!r}"
        assert not said.startswith((b"PRI", b"GET")), f"port {call['port']}: {said!r}"
        assert not call["let_in"], f"passing on a greeting let him in: {call}"
    assert not list(folder.iterdir()), "what he sent was unpickled"
