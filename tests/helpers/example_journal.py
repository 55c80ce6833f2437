"""Example journals, as a controller writes them, for the tests of all readers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ftslurm.run.directory import RunDir

START = 1_790_000_000.0
Line = dict[str, Any]


def event(time: float, name: str, /, **fields: Any) -> Line:
    return {"time": START + time, "event": name, **fields}


def started(groups: int = 3, total_steps: int | None = 120, **fields: Any) -> Line:
    known = {"run_id": "ddp-0930-k3", "name": "ddp", "job_id": None, "workers": 1}
    where = {
        "mode": "local",
        "cluster": "local",
        "host": "n1",
        "pid": 2_000_000_000,  # no process has it
    }
    return event(0, "run_started", groups=groups, total_steps=total_steps, **known, **where, **fields)


PHASES: dict[str, float | None] = {
    "detect": 0.03,
    "end": 0.04,
    "wait": 0.0,
    "start": 0.2,
    "import": 0.9,
    "assign": 0.01,
    "join": 0.1,
}
PHASES["commit"] = 0.02  # of a restart; in a first start the first three are null
NEW_FIELDS = {"phases", "evidence", "traceback", "standby", "rank", "by"}  # missing in journals of 0.1.0


def launched(time: float, group: int, attempt: int = 0, node: str | None = None, **fields: Any) -> Line:
    node = node or f"n{group + 1}"
    known = {"unit": f"group-{group:04d}", "nodes": [node], "allocation": "local", **fields}
    known |= {"hosts": [node], "reason": "restart" if attempt else "start"}
    known = {"down_s": 0.1 if attempt else None, "standby": None} | known
    return event(time, "step_launched", group=group, attempt=attempt, **known)


def ready(time: float, group: int, attempt: int = 0) -> Line:
    return event(time, "step_ready", unit=f"group-{group:04d}", group=group, attempt=attempt, seconds=1.6)


def joined(time: float, group: int, step: int, attempt: int = 0, participants: int = 3, **fields: Any) -> Line:
    first: dict[str, float | None] = {"detect": None, "end": None, "wait": None}
    known: Line = {"quorum_id": 1 + 2 * attempt, "seconds": 2.4, "recovery_s": None}
    known |= {"phases": PHASES if attempt else PHASES | first, **fields}
    return event(time, "group_joined", group=group, attempt=attempt, step=step, participants=participants, **known)


def progress(time: float, group: int, step: int, attempt: int = 0, participants: int = 3, **fields: Any) -> Line:
    known: Line = {"quorum_id": 1, "committed": step, "aborted": 0, "gap_s": 0.22, **fields}
    return event(time, "progress", group=group, attempt=attempt, step=step, participants=participants, **known)


def exited(time: float, group: int, attempt: int = 0, cause: str = "killed", **fields: Any) -> Line:
    log = f"/scratch/runs/ddp-0930-k3/logs/group-{group:04d}/attempt-{attempt:03d}/rank-0.log"
    known: Line = {"unit": f"group-{group:04d}", "code": None, "signal": None, "node": None, "log": log, "error": None}
    known |= {"evidence": [], "traceback": None}
    if cause == "killed":
        known |= {"signal": 9, "node": f"n{group + 1}", "evidence": ["the guard of task 0: signal 9"]}
    if cause == "ok":
        known |= {"code": 0}
    return event(time, "step_exited", group=group, attempt=attempt, cause=cause, **(known | fields))


def injected(time: float, kind: str, group: int | None = None, rank: int = 0, **fields: Any) -> Line:
    known = {"attempt": 0, "node": "n1" if group is None else f"n{group + 1}", "step": None, "by": None}
    return event(time, "fault_injected", kind=kind, group=group, rank=rank, **(known | fields))


def standby(time: float, number: int = 0, attempt: int = 0, node: str = "n4", warm_s: float | None = 1.2) -> list[Line]:
    """Return the lines of a standby that is launched and is warm after warm_s; None: never."""
    known = {"unit": f"standby-{number:03d}", "group": None, "attempt": attempt}
    lines = [event(time, "step_launched", **known, nodes=[node], hosts=[], reason="start", down_s=None, standby=None)]
    return lines if warm_s is None else [*lines, event(time + warm_s, "step_ready", **known, seconds=warm_s)]


def finished(time: float, outcome: str = "succeeded", **fields: Any) -> Line:
    known = {"reason": "all 3 groups have finished", "steps": 120, "restarts": 1, **fields}
    return event(time, "run_finished", outcome=outcome, **known)


def lighthouse(time: float, attempt: int = 0) -> list[Line]:
    known = {"unit": "lighthouse", "group": None, "attempt": attempt}
    return [
        event(time, "step_launched", **known, nodes=["n1"], allocation="local", hosts=[], reason="start"),
        event(time + 0.4, "step_ready", **known, seconds=0.4),
    ]


def one_kill() -> list[Line]:
    """Return 120 steps of three groups at 5 a second; group 1 is killed at step 61 and back 2.1 s later at step 72."""
    lines = [
        started(),
        event(0.1, "allocation_granted", allocation="local", nodes=["n1", "n2", "n3"]),
        *lighthouse(0.2),
        *(launched(0.7, g) for g in range(3)),
        *(ready(2.5, g) for g in range(3)),
        *(joined(3.1 + g / 100, g, 1) for g in range(3)),
        injected(15.2, "kill", 1, step=61),
        exited(15.3, 1, noticed=START + 15.3, away_since=START + 15.27),
        event(15.3, "restart_scheduled", group=1, attempt=1, due=START + 15.3, reason="killed by signal 9 on n2"),
        launched(15.4, 1, attempt=1),
        ready(16.9, 1, attempt=1),
        joined(17.4, 1, 72, attempt=1, recovery_s=2.13, seconds=2.0),
    ]
    for second in range(1, 24):
        for group in range(3):
            time, attempt = 3.1 + second + group / 100, 0
            if group == 1 and time > 15.2:
                if time < 17.4:
                    continue
                attempt = 1
            size, quorum = (2, 2) if 15.3 < time < 17.4 else (3, 1 if time < 15.3 else 3)
            gap = 0.31 if 15.3 < time < 16.3 else 0.21
            lines.append(progress(time, group, 1 + 5 * second, attempt, size, quorum_id=quorum, gap_s=gap))
    lines += [progress(26.9, g, 120, attempt=1 if g == 1 else 0, quorum_id=3) for g in range(3)]
    lines += [exited(27.3 + g / 10, g, attempt=1 if g == 1 else 0, cause="ok") for g in range(3)]
    lines.sort(key=lambda line: line["time"])
    return [*lines, finished(27.6)]


def lost_node() -> list[Line]:
    """Return a run whose n2 is silent from step 61; the warm standby on n4 takes over group 1, another starts on n5."""
    lines = [line for line in one_kill() if line["time"] < START + 15.2]
    lines += [*standby(1.0), *standby(1.0, 1, node="n5", warm_s=None)]
    lines.sort(key=lambda line: line["time"])
    phases = PHASES | {"detect": 11.2, "start": None, "import": None}
    evidence = ["silent for 11 s", "the probe did not come back"]
    return [
        *lines,
        event(25.2, "node_silent", node="n2", seconds=10.0),
        event(26.4, "node_excluded", node="n2", reason="silent for 11 s, and no probe reaches it"),
        exited(26.4, 1, cause="node_lost", node="n2", evidence=evidence, away_since=START + 15.2),
        event(26.4, "restart_scheduled", group=1, attempt=1, due=START + 26.4, reason="node_lost on n2"),
        launched(26.45, 1, attempt=1, node="n4", standby="standby-000/0", down_s=11.25),
        ready(26.5, 1, attempt=1),
        joined(26.7, 1, 118, attempt=1, recovery_s=11.5, seconds=0.2, phases=phases),
    ]


def old(lines: Iterable[Line]) -> list[Line]:
    """Return the same journal as 0.1.0 writes it."""
    return [{key: value for key, value in line.items() if key not in NEW_FIELDS} for line in lines]


def write(run: RunDir, lines: Iterable[Line], torn: str = "") -> RunDir:
    """Append the lines to the files of the journal; create the run directory if it does not exist."""
    run.logs.mkdir(parents=True, exist_ok=True)
    seq = len(run.events.read_bytes().splitlines()) if run.events.exists() else 0
    with run.events.open("a") as events, run.progress.open("a") as progress:
        for line in lines:
            told = line.get("event") == "progress"
            seq += not told
            (progress if told else events).write(json.dumps({"seq": seq, **line}, separators=(",", ":")) + "\n")
        events.write(torn)
    return run


def new_run(folder: Path, lines: Iterable[Line] = (), torn: str = "") -> RunDir:
    return write(RunDir(folder / "ddp-0930-k3"), lines, torn)
