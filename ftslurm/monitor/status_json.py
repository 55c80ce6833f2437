"""The status as `status --json` prints it: what other programs read."""

from __future__ import annotations

from ftslurm.monitor.status import GroupStatus, JobStatus, RunStatus, aged


def to_json(status: RunStatus, now: float) -> dict[str, object]:
    """The status as `status --json` prints it. The keys are stable; new ones may be added.

    run_id, name, mode, job_id, job_starts (how many jobs, or starts of one, its controller has had);
    outcome (running, succeeded, failed, stopped) and reason; step, total_steps (or null),
    steps_per_s (null: not known, or nobody steps); started, updated, finished (unix seconds or null); restarts;
    longest_gap_s; excluded_nodes (those left out for now); draining_nodes (Slurm drains them);
    warnings (sentences for the user);
    checkpoint (the step of the newest, or null);
    lighthouse: phase, attempt, nodes; null if there is none (lighthouse=none);
    standbys, by name: name, phase, attempt, nodes, ready (it could take over at once);
    jobs (those that give groups their nodes, beside the controller's): name, pool (0, or i + 1 for cluster.ranges[i]),
    nodes (none: it waits), reason (Slurm's, why it waits, or null), ends (its time limit, unix seconds or null),
    leaving (why its group leaves it, or null); jobs_refused (by pool: what sbatch says);
    jobs_asked and jobs_lost (counts);
    groups, by id: group, role (or null), phase, step, participants, quorum_id, sessions (with a parameter server: a
    server's, those that are open; another group's, all it has had; or null), attempt, nodes, restarts, steps_per_s,
    still_s (how long it has stood still, or null), longest_gap_s, last_error, last_evidence (a list), last_traceback
    (its end, or null), waiting_for, job (in which it runs, ran last, or for which it waits; null: the controller's);
    recoveries, in order: group, attempt, seconds (null: it has not committed a step), cause, detail, phases (null, or
    seconds of detect, end, wait, start, import, assign, join, commit; each may be null).
    """
    status = aged(status, now)
    return {
        "run_id": status.run_id,
        "name": status.name,
        "mode": status.mode,
        "job_id": status.job_id,
        "job_starts": status.starts,
        "outcome": status.outcome,
        "reason": status.reason,
        "step": status.step,
        "total_steps": status.total_steps,
        "steps_per_s": _rounded(status.steps_per_s),
        "started": status.started,
        "updated": status.updated,
        "finished": status.finished,
        "restarts": status.restarts,
        "longest_gap_s": _rounded(status.longest_gap[0] if status.longest_gap else None),
        "excluded_nodes": list(status.excluded_nodes),
        "draining_nodes": list(status.draining_nodes),
        "warnings": list(status.cautions),
        "checkpoint": status.checkpoint,
        "lighthouse": status.lighthouse
        and {
            "phase": status.lighthouse.phase.value,
            "attempt": status.lighthouse.attempt,
            "nodes": list(status.lighthouse.nodes),
        },
        "standbys": [
            {"name": s.name, "phase": s.phase.value, "attempt": s.attempt, "nodes": list(s.nodes), "ready": s.ready}
            for s in status.standbys
        ],
        "jobs": [_job(job) for job in status.jobs.there],
        "jobs_refused": {str(pool): why for pool, why in status.jobs.refused.items()},
        "jobs_asked": status.jobs.asked,
        "jobs_lost": status.jobs.lost,
        "groups": [_group(group) for group in status.groups],
        "recoveries": [r._asdict() for r in status.recoveries],
    }


def _group(g: GroupStatus) -> dict[str, object]:
    return {
        "group": g.group,
        "role": g.role,
        "phase": g.phase.value,
        "step": g.step,
        "participants": g.participants,
        "quorum_id": g.quorum_id,
        "sessions": g.sessions,
        "attempt": g.attempt,
        "nodes": list(g.nodes),
        "restarts": g.restarts,
        "steps_per_s": _rounded(g.steps_per_s),
        "still_s": _rounded(g.still_s),
        "longest_gap_s": _rounded(g.longest_gap_s),
        "last_error": g.last_error,
        "last_evidence": list(g.last_evidence),
        "last_traceback": g.last_traceback,
        "waiting_for": g.waiting_for,
        "job": g.job,
    }


def _job(job: JobStatus) -> dict[str, object]:
    return {
        "name": job.name,
        "pool": job.pool,
        "nodes": list(job.nodes),
        "reason": job.reason,
        "ends": job.ends,
        "leaving": job.leaving,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
