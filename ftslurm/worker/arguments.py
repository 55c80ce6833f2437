"""Fills the values of the assignment into the script's arguments, such as job.args=--replica-id {REPLICA_GROUP_ID}."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

# The variables that the assignment or ftslurm has set. No others are filled in: a run's arguments are those in its
# config.yaml, and must not depend on the environment.
_OURS = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|REPLICA_GROUP_ID|NUM_REPLICA_GROUPS"
    r"|(FTSLURM|TORCHELASTIC|TORCHFT)_\w+"
)


def fill(args: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the arguments with every {NAME} of the assignment replaced by its value; all other braces stay."""
    known = {name: value for name, value in environ.items() if _OURS.fullmatch(name)}
    return [re.sub(r"\{(\w+)\}", lambda found: known.get(found[1], found[0]), arg) for arg in args]
