"""Runs for the checks of gpu.py, and what the checks read in them."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from false_alarms import GPUS, shared_gpus
from harness import Backend, Run

ROOT = Path(__file__).parents[1]
TRAINING = Path(__file__).with_name("gpu_training.py")
LIMIT_S = 9 * 60.0  # of all checks: `make gpu` takes up to a minute to make its environment


class NotPossible(Exception):
    """This machine lacks what a check needs."""


class Deadline:
    """The end of the time that all checks have together."""

    def __init__(self) -> None:
        self.at = time.monotonic() + LIMIT_S

    def left_s(self) -> float:
        return self.at - time.monotonic()


DEADLINE = Deadline()


@contextlib.contextmanager
def run(
    *words: str, groups: int = 2, gpu: int = 1, standby: str = "none", between: str = "gloo", script: Path = TRAINING
) -> Iterator[Run]:
    """Start a run of groups that share the GPUs; stop it at the end, whatever it does.

    A death that nobody has planned fails the check.
    """
    with tempfile.TemporaryDirectory(prefix="ftslurm-gpu-", ignore_cleanup_errors=True) as folder:
        place = Backend("local", shared_gpus(groups * gpu), Path(folder))
        line = ["run", "cluster=local", f"run.root={folder}/runs0", "follow=true", f"groups.count={groups}"]
        line += [f"groups.gpus={gpu if GPUS else 0}", "stop.grace_s=5", "job.snapshot=none"]
        line += [f"job.script={script}", f"standby={standby}", f"torchft.process_group={between}"]
        training = place.launch(*line, *words)
        try:
            yield training
            training.check_deaths()
        except BaseException:
            keep(training)
            raise
        finally:
            if training.process.poll() is None:
                training.ask("stop")
                training.process.wait(60)
            training.abandon()


def keep(failed: Run) -> None:
    """Print the end of each log of a run that has failed a check: its folder goes."""
    print(f"--- {failed.text[-3000:]}", file=sys.stderr)
    for path in sorted((failed.dir / "logs").rglob("*.log")):
        print(f"--- {path.relative_to(failed.dir)}\n{path.read_text(errors='replace')[-20000:]}", file=sys.stderr)


def trains(training: Run, *groups: int, attempt: int = 0) -> None:
    for group in groups:
        training.wait_for("group_joined", group=group, attempt=attempt)


def phases(training: Run, group: int, attempt: int = 1) -> tuple[float, dict[str, float]]:
    """Wait for a group's return; return how long it took, and its parts."""
    joined = training.wait_for("group_joined", group=group, attempt=attempt)
    parts = {name: float(took or 0) for name, took in dict(joined["phases"]).items()}  # type: ignore[call-overload]
    return float(str(joined["recovery_s"])), parts


def back(training: Run, group: int, attempt: int = 1) -> str:
    """Wait for a group's return; say how long it took, and its longest parts."""
    took, parts = phases(training, group, attempt)
    return f"back after {took:.2f} s ({', '.join(f'{name} {s:.2f}' for name, s in parts.items() if s >= 0.05)})"


def says(training: Run, pattern: str, group: int, attempt: int = 0) -> re.Match[str]:
    """Wait until a rank's log has such a line."""
    found: list[re.Match[str]] = []

    def there() -> bool:
        found.extend(re.finditer(pattern, training.rank_log(group, 0, attempt)))
        return bool(found)

    training.until(there, f"group {group} says {pattern}")
    return found[0]


def output(*argv: str, code: int | None = 0, limit_s: float = 180) -> str:
    """Run a program; return what it printed."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=limit_s, cwd=ROOT)
    said = (done.stdout + done.stderr).strip().replace(str(ROOT), ".")
    assert code is None or done.returncode == code, f"{' '.join(argv)}: exit code {done.returncode}\n{said}"
    return said


def need(count: int) -> None:
    """Raise NotPossible if there are fewer GPUs."""
    if count > GPUS:
        raise NotPossible(f"it needs {count} GPUs, and there are {GPUS}" if GPUS else "there is no GPU")


def gpu_mb() -> dict[int, int]:
    """Return how many MB of the GPUs each process holds, by its pid, as the driver counts them."""
    if not GPUS:
        return {}
    rows = output("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    found: dict[int, int] = {}
    for pid, used in (row.split(",") for row in rows.splitlines() if row):
        if used.strip().isdigit():
            found[int(pid)] = found.get(int(pid), 0) + int(used)
    return found
