"""The arms of recovery.py: ftslurm in several modes, and the contenders, each with the faults that it can be given."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from contenders.all import ALL
from contenders.contender import Contender
from contenders.ftslurm_run import Cold, Warm


class Fault(enum.Enum):
    """What happens to a training. The value is its name in tables and on the command line."""

    ONE = "one"  # the process of one replica is killed
    TWO = "two"
    FOUR = "four"
    CONTROLLER = "controller"
    LIGHTHOUSE = "lighthouse"
    PILOT = "pilot"
    NODE = "node"

    @property
    def victims(self) -> tuple[int, ...]:
        """The replicas that lose their processes."""
        return {"two": (1, 2), "four": (1, 2, 3, 4), "lighthouse": ()}.get(self.value, (1,))

    @property
    def told(self) -> str:
        """What happens, for the table."""
        return {
            "one": "one replica is killed",
            "two": "two at once",
            "four": "four at once",
            "controller": "the controller is killed, and 2 s later one replica",
            "lighthouse": "the Lighthouse is killed",
            "pilot": "the batch process of a replica's job is killed",
            "node": "a node vanishes",
        }[self.value]


KILLS = (Fault.ONE, Fault.TWO, Fault.FOUR)
STOCK = ("lighthouse=torchft",)
STOCK_TIMING = ("health.lost_after_s=50", "job.longest_step_s=360")  # dead after 5 s of silence, late after 60 s


class StockLighthouse(Cold):
    name = "stock-lighthouse"
    what = "ftslurm with torchft's own Lighthouse (lighthouse=torchft), at ftslurm's timing for it"
    settings = (*Cold.settings, *STOCK)


class StockTiming(Cold):
    name = "stock-timing"
    what = "ftslurm with torchft's own Lighthouse at torchft's default timing: 5 s of silence until a group is dead"
    settings = (*StockLighthouse.settings, *STOCK_TIMING)


class Wide(Cold):
    name = "ftslurm-wide"
    what = "ftslurm with groups of two nodes; one rank of a group is killed"
    settings = (*Cold.settings, "groups.nodes=2")


class Array(Cold):
    name = "ftslurm-array"
    what = "ftslurm in array mode: a Slurm job for each group, and one for the controller"
    settings = (*Cold.settings, "cluster.kind=array")


@dataclass(frozen=True)
class Arm:
    """One contender, and how faults are made in it."""

    contender: Contender
    faults: tuple[Fault, ...] = (*KILLS, Fault.NODE)
    groups: int = 5
    nodes: int = 6  # of the cluster; one more for Fault.NODE
    lighthouse: bytes = b""  # what its command line contains
    controller: bytes = b""  # the same; none: it stands in ftslurm's journal
    cluster: dict[str, object] = field(default_factory=dict)  # further arguments of Cluster.start
    standbys: int = 0  # warm standbys that are ready before each fault

    @property
    def name(self) -> str:
        """The contender's."""
        return self.contender.name


EVERYTHING = (*KILLS, Fault.CONTROLLER, Fault.LIGHTHOUSE, Fault.NODE)
OURS = b"ftslurm.lighthouse"
# One CPU a node: no two jobs share one. And a requeued job would be held for cred_expire + 1 s, by default two minutes.
ARRAY: dict[str, object] = {
    "cpus": 1,
    "extra_conf": "ProctrackType=proctrack/pgid\nAuthInfo=socket=FOLDER/munge.sock,cred_expire=5",
}


def arms() -> dict[str, Arm]:
    """Return all arms, in the order of the table."""
    found = [
        Arm(Cold(), EVERYTHING, lighthouse=OURS),
        Arm(Warm(), EVERYTHING, lighthouse=OURS, standbys=5),
        Arm(StockLighthouse(), (Fault.ONE,)),
        Arm(StockTiming(), (Fault.ONE,)),
        Arm(Wide(), (Fault.ONE, Fault.TWO), groups=3, nodes=7),
        Arm(Array(), (Fault.PILOT,), groups=3, nodes=5, cluster=ARRAY),
    ]
    found += [_OTHERS.get(name, Arm)(contender) for name, contender in ALL.items() if not isinstance(contender, Cold)]
    return {arm.name: arm for arm in found}


_OTHERS: dict[str, Callable[[Contender], Arm]] = {
    "torchft-runner": partial(
        Arm, faults=EVERYTHING, lighthouse=b"torchft_lighthouse", controller=b"published_runner.py"
    ),
    "ray": partial(Arm, faults=EVERYTHING, lighthouse=b"ray::Lighthouse", controller=b"ray::TrainController"),
}
