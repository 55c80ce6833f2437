"""The checks of gpu.py of NCCL between groups that share one GPU.

Everything that crosses groups is real: communicators, collectives, aborts, heals. Only the wire is not: sockets on
loopback, where groups on other nodes would have InfiniBand or Ethernet, and GPUs of one group NVLink.
"""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import trend
from gpu_runs import DEADLINE, gpu_mb, need, output, run, says, trains

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from deaths import Kill
from harness import Run

BETWEEN = Path(__file__).with_name("gpu_between.py")
PAUSE_S = 20.0  # survivors that wait longer have waited for a time-out, which is 60 s
STEPS = 120
HEALS, HEALS_S = 100, 240.0  # as many as fit into this time
GLOO = False  # set by --gloo: the same checks without a GPU, with Gloo in place of NCCL

Death = tuple[str, int, int]  # kind, group, attempt, as gpu_between.py knows them


def undisturbed(groups: int, kind: str = "nccl") -> str:
    """Nobody dies: the mean over the groups is right in every bit of every step."""
    with started(groups, kind) as training:
        trains(training, *range(groups))
        end_soon(training, STEPS)
        return same_weights(training, groups)


def deaths(
    groups: int, planned: Sequence[Death], words: tuple[str, ...] = (), kind: str = "nccl", linger_s: float = 0.0
) -> str:
    """Groups die as planned, each when all train, heal, and all end with the weights of an undisturbed training.

    Args:
        linger_s: so long they train on. torch's watchdog, if it finds NCCL's error first, ends its process 60 s later.
    """
    with started(groups, kind, *planned, words=words) as training:
        training.kills += [Kill(f"group-{group:04d}", attempt) for _, group, attempt in planned]
        attempts = dict.fromkeys(range(groups), 0)
        for how, died, attempt in planned:
            if how in ("collective", "before"):
                all_train(training, attempts)
                (training.dir / f"die-{died}-{attempt}").touch()
            attempts[died] = attempt + 1
        all_train(training, attempts)
        time.sleep(0.0 if GLOO else linger_s)
        end_soon(training)
        said = same_weights(training, groups)
        return f"{len(planned)} deaths; {said}\n{pauses(training, attempts)}"


def heals(groups: int = 4) -> str:
    """One group after the other is killed and healed by a warm standby; what the survivor holds does not grow."""
    words = ("restart.max_per_group=1000000", "restart.backoff_s=0", f"standby.count={2 * groups}")
    with started(groups, "nccl", words=words) as training:
        trains(training, *range(groups))
        stop_s = min(HEALS_S, DEADLINE.left_s() - 30)
        began, readings, pid = time.monotonic(), list[dict[str, float]](), training.pid(0)
        attempts = dict.fromkeys(range(1, groups), 0)
        for group in itertools.islice(itertools.cycle(attempts), HEALS):
            if time.monotonic() > began + stop_s:
                break
            training.kill(group)
            attempts[group] += 1
            trains(training, group, attempt=attempts[group])
            time.sleep(0.3)  # what has been aborted ends
            readings.append(trend.reading(pid, gpu_mb()))
        took = time.monotonic() - began
        end_soon(training)
        said = same_weights(training, groups)
        few = "" if len(readings) == HEALS else f" of {HEALS}: the time was over"
        first = f"{len(readings)} heals{few}, one every {took / len(readings):.1f} s; {said}"
        untold = "" if GLOO or "GPU MB" in readings[0] else "; the driver does not tell GPU memory by process"
        return "\n".join([first, pauses(training, {0: 0}), f"the survivor: {trend.judged(readings)}{untold}"])


def from_gpu_to_gpu() -> str:
    """A heal by NCCL: torchft's PGTransport receives into the tensors of the model."""
    return deaths(2, [("collective", 1, 0)], words=("torchft.transport=process_group",))


# --- their parts ------------------------------------------------------------------------------------------------------


def started(groups: int, kind: str, *planned: Death, words: tuple[str, ...] = ()) -> AbstractContextManager[Run]:
    """Start a run of gpu_between.py; its deaths are still to come."""
    if not GLOO:
        need(1)
    args = [word for death in planned for word in ("--die", *map(str, death))]
    line = ["restart.backoff_s=0", "torchft.timeout_s=60", *words]
    line += [f"job.args=[{','.join(args)}]"] if args else []
    return run(*line, groups=groups, between="gloo" if GLOO else kind, script=BETWEEN)


def all_train(training: Run, attempts: Mapping[int, int]) -> None:
    """Wait until each group trains in this attempt."""
    for group, attempt in attempts.items():
        trains(training, group, attempt=attempt)


def end_soon(training: Run, steps: int = 60) -> None:
    """End the training so many steps from now, in all groups after the same step."""
    at = {path.name: path.read_text() for path in training.dir.glob("at-?")}
    last = max(map(int, at.values())) + steps
    (part := training.dir / "end.part").write_text(str(last))
    part.rename(training.dir / "end")


def same_weights(training: Run, groups: int) -> str:
    """Wait for the end; all groups must have the weights of as many steps without torchft and without NCCL."""
    training.until(lambda: training.process.poll() is not None, "the run ends")
    steps = int((training.dir / "end").read_text())
    weights = training.weights()
    assert sorted(weights) == [(group, 0) for group in range(groups)], (weights, training.text)
    alone = replayed(steps)
    assert set(weights.values()) == {alone}, f"after {steps} steps alone {alone}, in the run {weights}"
    attempt = max(int(str(e["attempt"])) for e in training.named("step_launched", group=0))
    between = says(training, r"between (\w+), (\d+) groups, on (\S+)", 0, attempt)
    assert int(between[2]) == groups, between
    assert training.process.returncode == 0, training.text
    return f"{between[1]} between {groups} groups on {between[3]}: {steps} steps, all weights as without communication"


def replayed(steps: int) -> str:
    said = output(sys.executable, str(BETWEEN), f"--replay={steps}")
    found = re.search(r"weights sha256=(\w+)", said)
    assert found, said
    return found[1]


def pauses(training: Run, attempts: Mapping[int, int]) -> str:
    """Return the longest time between two steps of an attempt of a group; that in which it dies is none.

    Raises:
        AssertionError: a group has waited for a time-out.
    """
    found = [0.0]
    for group, last in attempts.items():
        for attempt in range(last + 1):
            found += [float(s) for s in re.findall(r"came after ([\d.]+) s", training.rank_log(group, 0, attempt))]
    assert max(found) < PAUSE_S, f"a group has waited {max(found):.1f} s for a step"
    return f"the longest step of those who lived took {max(found):.1f} s" if max(found) else "no step took a second"
