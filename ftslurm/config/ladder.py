"""The time-outs of a run in order, and which of them contradict each other.

Each layer mends what the layers below it cannot. A lower one whose time-out is longer, or a higher one whose time-out
is shorter, ends what the other would have mended. docs/timeouts.md explains every rung.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ftslurm.config.process_groups import HEARTBEAT, HEARTBEAT_S, nccl_variables, uses_nccl
from ftslurm.config.schema import AUTO, Config
from ftslurm.errors import ConfigError

WATCHDOG_S = 600.0  # torch's default for collectives of NCCL: init_process_group(timeout=...)


class Rung(NamedTuple):
    """One time-out: the setting with its value, or what it is called elsewhere."""

    name: str
    seconds: float
    ends: str  # what happens after it


class Violation(NamedTuple):
    """Two time-outs in the wrong order."""

    text: str
    breaks: bool  # the run would not work; else it only takes longer, or more than needed is restarted


def check(config: Config) -> None:
    """Refuse time-outs with which the run could not work.

    Raises:
        ConfigError: the message names both, and why.
    """
    for violation in violations(config):
        if violation.breaks:
            raise ConfigError(violation.text)


def rungs(config: Config, kill_wait_s: float | None = None) -> list[Rung]:
    """Return the time-outs of a run, shortest first."""
    found = [
        _heartbeats(config),
        *([] if config.lighthouse.kind == "none" else [_silent(config), _late(config)]),
        _lost(config),
        Rung(
            f"torchft.timeout_s={config.torchft.timeout_s}", config.torchft.timeout_s, "torchft gives up a collective"
        ),
        _quorum(config),
        _orphan(config),
        *_hang(config),
        *([_monitor(config), _watchdog()] if uses_nccl(config) else []),
        _join(config),
        Rung(f"stop.grace_s={config.stop.grace_s:g}", config.stop.grace_s, "scripts that were asked to end are killed"),
    ]
    if config.cluster.kind != "local":
        found.append(
            Rung(f"cluster.signal_s={config.cluster.signal_s}", config.cluster.signal_s, "before the time limit: save")
        )
    if kill_wait_s is not None:
        found.append(Rung("Slurm's KillWait", kill_wait_s, "Slurm kills the steps of a job that it ends"))
    return sorted((rung for rung in found if rung.seconds > 0), key=lambda rung: rung.seconds)


def violations(config: Config, kill_wait_s: float | None = None) -> list[Violation]:
    """Return the time-outs that contradict each other; first those with which the run could not work."""
    found = [*_of_ftslurm(config), *_of_torchft(config), *_of_nccl(config), *_of_slurm(config, kill_wait_s)]
    return sorted(found, key=lambda violation: not violation.breaks)


def _of_ftslurm(config: Config) -> Iterator[Violation]:
    beats, lost, orphan = _heartbeats(config), _lost(config), _orphan(config)
    yield from _longer(orphan, beats, "healthy workers would end themselves", breaks=True, equal=True)
    yield from _longer(lost, beats, "healthy nodes would count as lost", breaks=True, equal=True)
    yield from _longer(orphan, lost, "workers would end themselves before their node counts as lost", breaks=True)
    for hang in _hang(config):
        why = "a group would count as hung between two of its reports (health.hang_after_s=0 switches the search off)"
        yield from _longer(hang, beats, why, breaks=True, equal=True)


def _of_torchft(config: Config) -> Iterator[Violation]:
    torchft = Rung(f"torchft.timeout_s={config.torchft.timeout_s}", config.torchft.timeout_s, "")
    for hang in _hang(config):
        why = "a group would be restarted for a collective that torchft ends by itself"
        yield from _longer(hang, torchft, why)
    if config.lighthouse.kind == "none":
        return
    quorum = _quorum(config)
    why = "survivors would give up before the Lighthouse notices a death"
    yield from _longer(quorum, _silent(config), why, breaks=True)
    why = "while a quorum waits for a late group, the requests of the others would expire, which ends their scripts"
    yield from _longer(quorum, _late(config), why)
    if config.health.join_timeout_s:
        why = "a group that waits in its first quorum would be stopped"
        yield from _longer(_join(config), quorum, why)


def _of_nccl(config: Config) -> Iterator[Violation]:
    if not uses_nccl(config):
        return
    torchft = Rung(f"torchft.timeout_s={config.torchft.timeout_s}", config.torchft.timeout_s, "")
    why = "torch would kill the worker before torchft gives the collective up"
    yield from _longer(_watchdog(), torchft, why)
    yield from _longer(_monitor(config), torchft, why)
    for hang in _hang(config):
        why = "torch would kill the ranks that wait before it is known which one hangs"
        yield from _longer(_watchdog(), hang, why)


def _of_slurm(config: Config, kill_wait_s: float | None) -> Iterator[Violation]:
    if kill_wait_s is None or config.cluster.kind == "local":
        return
    kill_wait = Rung(f"Slurm's KillWait={kill_wait_s:g}", kill_wait_s, "")
    grace = Rung(f"stop.grace_s={config.stop.grace_s:g}", config.stop.grace_s, "")
    yield from _longer(kill_wait, grace, "Slurm would kill scripts of a job that it ends before their time is over")
    both = Rung(f"stop.grace_s + {kill_wait.name}", config.stop.grace_s + kill_wait_s, "")
    signal = Rung(f"cluster.signal_s={config.cluster.signal_s}", config.cluster.signal_s, "")
    yield from _longer(signal, both, "no time would be left to save a checkpoint before the job ends")


def _longer(upper: Rung, lower: Rung, why: str, *, breaks: bool = False, equal: bool = False) -> Iterator[Violation]:
    """Yield a violation unless `upper` is longer than `lower`, or as long where that is enough."""
    if upper.seconds > lower.seconds or (equal and upper.seconds == lower.seconds):
        return
    least = "at least as long as" if equal else "longer than"
    text = f"{upper.name} ({upper.seconds:g} s) must be {least} {lower.name} ({lower.seconds:g} s), else {why}"
    yield Violation(text, breaks)


def _heartbeats(config: Config) -> Rung:
    health = config.health
    return Rung(f"two heartbeats, health.heartbeat_s={health.heartbeat_s}", 2 * health.heartbeat_s, "a sign of life")


def _silent(config: Config) -> Rung:
    timeout_ms = config.lighthouse.heartbeat_timeout_ms
    name = f"lighthouse.heartbeat_timeout_ms={timeout_ms}"
    return Rung(name, timeout_ms / 1000, "the quorum is formed without a silent group")


def _late(config: Config) -> Rung:
    timeout_ms = config.lighthouse.join_timeout_ms
    return Rung(
        f"lighthouse.join_timeout_ms={timeout_ms}", timeout_ms / 1000, "the quorum is formed without a late one"
    )


def _lost(config: Config) -> Rung:
    return Rung(f"health.lost_after_s={config.health.lost_after_s}", config.health.lost_after_s, "its node is probed")


def _quorum(config: Config) -> Rung:
    timeout_s = config.torchft.quorum_timeout_s
    return Rung(f"torchft.quorum_timeout_s={timeout_s}", timeout_s, "a group that has found no quorum ends")


def _orphan(config: Config) -> Rung:
    limit_s = config.health.orphan_after_s
    return Rung(f"health.orphan_after_s={limit_s}", limit_s, "a worker without a controller ends itself")


def _join(config: Config) -> Rung:
    limit_s = config.health.join_timeout_s
    return Rung(f"health.join_timeout_s={limit_s:g}", limit_s, "a group that commits no step is launched again")


def _hang(config: Config) -> list[Rung]:
    """Return the limit for hangs, or with auto the least that it may become; none if it is off."""
    health, ends = config.health, "a group that stands still is launched again"
    if health.hang_after_s == AUTO:
        return [Rung(f"health.hang_least_s={health.hang_least_s:g}", health.hang_least_s, ends)]
    return (
        [Rung(f"health.hang_after_s={health.hang_after_s}", health.hang_after_s, ends)] if health.hang_after_s else []
    )


def _monitor(config: Config) -> Rung:
    value = nccl_variables(config)[HEARTBEAT]
    seconds = float(value) if value.isdecimal() else HEARTBEAT_S  # torch, too, refuses what is no number
    return Rung(f"{HEARTBEAT}={seconds:g}", seconds, "torch kills a worker whose watchdog is stuck")


def _watchdog() -> Rung:
    return Rung(f"NCCL's watchdog, {WATCHDOG_S:g} s", WATCHDOG_S, "torch kills a worker in a collective of its group")
