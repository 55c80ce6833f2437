"""The list of contenders, in the order of the tables."""

from __future__ import annotations

from contenders.contender import Contender
from contenders.ftslurm_run import Cold, Warm
from contenders.nvrx import Nvrx
from contenders.ray_train import RayTrain
from contenders.submitit_requeue import SubmititRequeue
from contenders.torchft_runner import TorchftRunner
from contenders.torchrun import Torchrun

CONTENDERS: tuple[Contender, ...] = (
    Cold(),
    Warm(),
    TorchftRunner(),
    RayTrain(),
    Torchrun(),
    Nvrx(),
    SubmititRequeue(),
)
ALL = {contender.name: contender for contender in CONTENDERS}
