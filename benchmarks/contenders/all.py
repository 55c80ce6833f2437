"""The list of contenders, in the order of the tables."""

from __future__ import annotations

from contenders.contender import Contender
from contenders.ftslurm_run import Cold, Warm

ALL: dict[str, Contender] = {contender.name: contender for contender in (Cold(), Warm())}
