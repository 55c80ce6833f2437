"""Settings that people have read of, and that are none: what each is now."""

from __future__ import annotations

from collections.abc import Mapping

_STEP = "it follows from job.longest_step_s, the longest time that a group may take from one quorum to the next"
_LOST = "it follows from health.lost_after_s"
_RANDOM = "use 'faults.random={mean_s: 60, kinds: [kill], seed: 0}', or faults=random"

_CONSTANTS = (
    *("lighthouse.port", "lighthouse.quorum_tick_ms", "restart.window_s", "restart.backoff_max_s"),
    *("hooks.timeout_s", "metrics.every_s", "cluster.poll_s", "health.preflight_timeout_s"),
)
_OF_SBATCH = ("qos", "constraint", "exclude", "nodelist", "reservation", "switches", "segment")

REMOVED: Mapping[str, str] = {
    "job.name": "use run.name",
    "job.snapshot_max_mb": "a copy has at most 100 MiB; leave files out with job.snapshot_exclude",
    "job.on_code_change": "attempts run the copy of the code, or with job.snapshot=none what the files contain",
    **{f"cluster.{name}": f"use cluster.sbatch.{name}" for name in _OF_SBATCH},
    "cluster.mode": "use cluster=array, or cluster=slurm for one job with a step for each group",
    "cluster.replace": "use cluster.requeue=false, with which cluster=slurm asks for no other job either",
    "cluster.handover_s": "a job is replaced 900 s before its limit, or twice cluster.signal_s if that is longer",
    "cluster.controller_sbatch": "use 'cluster.ranges=[{groups: controller, sbatch: {mem: 8G}}]'",
    "cluster.container_workdir": "use 'cluster.srun=[--container-workdir=DIR]'",
    "lighthouse.lineage": "use lighthouse=torchft, which gives any quorum",
    "lighthouse.join_timeout_ms": _STEP,
    "torchft.quorum_timeout_s": _STEP,
    "torchft.quorum_retries": _STEP,
    "health.join_timeout_s": _STEP,
    "health.first_step_s": _STEP,
    "health.hang_least_s": "it follows from torchft.timeout_s; health.hang_after_s=N is a limit of your own",
    "lighthouse.heartbeat_timeout_ms": _LOST,
    "torchft.connect_timeout_s": _LOST,
    "health.heartbeat_s": _LOST,
    "health.orphan_after_s": _LOST,
    "restart.policy": "use restart=never (restart.max_per_group=0), or leave it out",
    "health.wait_timeout_s": "a group waits for a node until the run ends; `ftslurm scale` takes it out",
    "standby.cuda": "the group that takes a standby creates its CUDA context itself",
    "hooks.events": "an entry of hooks.on_event has its own, as {command: [./mail.sh], events: [run_finished]}",
    "faults.mean_s": _RANDOM,
    "faults.kinds": _RANDOM,
    "faults.seed": _RANDOM,
    "faults.count": _RANDOM,
    **dict.fromkeys(_CONSTANTS, "it is a constant now"),
}
