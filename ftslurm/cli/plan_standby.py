"""What `ftslurm plan` says of warm standbys beside the groups (standby.count=auto and each)."""

from __future__ import annotations

from ftslurm.config.schema import AUTO, Config, fixed_standbys, standby_each
from ftslurm.core.groups.standby import SPARE_SHARE, needs_mb
from ftslurm.core.state.units import independent
from ftslurm.guard.memory import available_mb

IMPORTED_MB = 150  # private memory of a worker that has imported torch 2.13 and torchft; a run measures its own
_UNITS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


def sentence(config: Config) -> str | None:
    """Return which groups will have a standby of their own, and why; None: the user has asked for a number."""
    count = config.standby.count
    if fixed_standbys(config) or count == 0:
        return None
    if not standby_each(config) or (independent(config) and count == AUTO):
        why = "in array mode each needs a Slurm job of its own (standby.count=1)"
        if independent(config):
            why = "without a quorum no step shows that a group trains; standby.count=each does not wait for one"
        if config.restart.max_per_group == 0:
            why = "restart.max_per_group=0"
        return f"none: {why} (standby.count={count})"
    mb = needs_mb(IMPORTED_MB, config)
    here = config.cluster.kind == "local"
    what = f"one warm process for each rank beside it once its group trains, about {_gib(mb)} "
    what += "on this machine" if here else "on each node"
    room = available_mb() if here else _memory_mb(config)
    whose = "that are free here" if here else f"of the groups there (groups.mem={config.groups.mem})"
    if count != AUTO:
        return f"{what}{f', of the {_gib(room)} {whose}' if room else ''} (standby.count={count})"
    if here and room is not None and mb > room * SPARE_SHARE:
        return f"none: they would take {_gib(mb)}, more than half of the {_gib(room)} {whose} (standby.count=auto)"
    known = f"; {_gib(room)} is {'free here' if here else 'all that they have (groups.mem)'}" if room else ""
    return f"{what}, if that is at most half of the memory left there then, as measured{known} (standby.count=auto)"


def _memory_mb(config: Config) -> int | None:
    """Return the memory of the groups on one node; None: that of the partition, which is not known here."""
    mem = config.groups.mem
    if mem is None:
        return None
    number, unit = mem.rstrip("KMGTkmgt"), mem.lstrip("0123456789").upper() or "M"
    return int(int(number) * _UNITS[unit]) * config.groups.per_node


def _gib(mb: float) -> str:
    return f"{mb / 1024:.1f} GiB"
