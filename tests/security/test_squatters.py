"""Another user waits for a part of the run to die, takes its port, and reads the connections to it.

The attacker answers as a checkpoint server, or relays the greeting of a live gate and the answer to it. The attacker
learns nothing, none of the attacker's data is unpickled, and no gate lets the attacker in.
"""

from __future__ import annotations

from pathlib import Path

from harness import Run
from victim import Stranger, latest, learnt_nothing, own_ports, pid_name, ranks, squat


def test_who_takes_the_ports_of_a_dead_group_learns_nothing(run: Run, stranger: Stranger, tmp_path: Path) -> None:
    ports = {port for port, pid in own_ports(run).items() if "group-0001" in pid_name(pid)}
    attack = squat(stranger, tmp_path / "loot", ports)
    attempt = latest(run)[1]
    run.kill(group=1)
    run.wait_until_back(1, attempt=attempt + 1)
    learnt_nothing(attack.result(), tmp_path / "loot")
    going_on(run)


def test_who_takes_the_port_of_a_dead_lighthouse_learns_nothing(run: Run, stranger: Stranger, tmp_path: Path) -> None:
    lighthouse = {port for port, pid in own_ports(run).items() if "lighthouse" in pid_name(pid)}
    assert lighthouse
    attack = squat(stranger, tmp_path / "loot", lighthouse)
    run.kill_lighthouse()
    run.wait_for("step_ready", unit="lighthouse", attempt=1)
    learnt_nothing(attack.result(), tmp_path / "loot")
    going_on(run)
    assert not run.named("step_exited", group=0)


def going_on(run: Run) -> None:
    """Wait until both groups train together."""
    assert len(ranks(run)) == 2
    before = [len(run.steps(group)) for group in (0, 1)]
    run.until(lambda: all(len(run.steps(g)) >= n + 5 for g, n in enumerate(before)), "the training goes on", 20.0)
    assert {run.steps(group)[-1]["participants"] for group in (0, 1)} == {2}


def test_afterwards_the_training_ends_as_if_nobody_had_listened(run: Run) -> None:
    steps = run.end_soon()
    run.finish()
    assert {int(run.steps(group)[-1]["step"]) for group in (0, 1)} == {steps}
    assert len(set(run.weights().values())) == 1, run.weights()
