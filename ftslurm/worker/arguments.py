"""Arguments that name the assignment: `--replica-id {REPLICA_GROUP_ID}` of job.args, filled in when it is known."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

# Of the worker's variables those that its assignment or ftslurm has set; what else the environment holds is no
# business of a run's arguments, which stand in its config.yaml.
_OURS = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|REPLICA_GROUP_ID|NUM_REPLICA_GROUPS"
    r"|(FTSLURM|TORCHELASTIC|TORCHFT)_\w+"
)


def fill(args: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The arguments with every {NAME} of the assignment replaced by its value; all other braces stay as they are."""
    known = {name: value for name, value in environ.items() if _OURS.fullmatch(name)}
    return [re.sub(r"\{(\w+)\}", lambda found: known.get(found[1], found[0]), arg) for arg in args]
