"""Texts about single events that do not depend on the rest of the run.

The status keeps these texts (a group's last error, the warnings); sentences.py builds whole lines from them.
"""

from __future__ import annotations

from ftslurm.protocol import records
from ftslurm.words import few

GROUPS_SHOWN = 3  # of no_first_step; the journal has more
SCRIPT_WAITS = {  # the stages of step_starting after script_begun
    "script": "its script to begin training",
    "quorum": "a quorum, or heals",
    "peers": "the other groups of its quorum",
    "step": "its first step",
}


def controller_error(error: records.ControllerError) -> str:
    """Return the text for an error that the controller survived."""
    return (
        f"an error inside ftslurm, in the handling of {error.where or 'something'}, which is dropped; the run "
        f"goes on: {error.error or 'unknown'} (the traceback is in the controller's log; please report it)"
    )


def no_first_step(stuck: records.NoFirstStep) -> str:
    """Return the warning that no step is committed, with what the first groups wait for."""
    told = [
        f"group {one.get('group')} waits for {SCRIPT_WAITS.get(str(one.get('stage')), 'its step')}"
        for one in stuck.groups
    ]
    groups = few(told, GROUPS_SHOWN, "more: see the logs", "; ")
    after = f"{stuck.seconds or 0:.0f} s after all scripts had begun"
    return f"no step has been committed {after}: {_why_no_step(stuck)}" + (f"; {groups}" if stuck.groups else "")


def _why_no_step(stuck: records.NoFirstStep) -> str:
    """Return the likeliest reason for no committed step, with what to check or change; likelier ones come first."""
    stages, running = stuck.stages, sum(stuck.stages.values())
    if stuck.aborted:
        return (
            f"{stuck.aborted} steps were tried and none was committed: an error inside the step (see the ranks' "
            "logs), or the script's min_replica_size is above the number of groups"
        )
    if running < stuck.least:
        return f"only {running} groups run, and no quorum comes with fewer than groups.min={stuck.least}"
    if stages.keys() <= {"script"}:
        return (
            "no script has asked for a quorum: it still loads its model or data or computes its first step (then raise "
            "job.longest_step_s), it has caught an error (see the ranks' logs), or it uses no Manager of torchft ("
            "ftslurm help fault-tolerant)"
        )
    if stages.keys() >= {"script", "quorum"}:
        return f"{stages['quorum']} of {running} groups ask for a quorum and may wait for the others, which have not"
    if stages.keys() == {"quorum"}:
        return (
            "all ask for a quorum. If lighthouse.log has none, see groups.min and the version of torchft, which may be "
            "one that ftslurm was not tried with (ftslurm help fault-tolerant); else connections between the nodes may "
            "be blocked, or take the wrong network (cluster.interface)"
        )
    if stages.keys() & {"quorum", "peers"}:
        return (
            "they have a quorum and wait for one another: connections between the nodes may be blocked, or take the "
            "wrong network (cluster.interface), or a rank has caught an error"
        )
    return "they have a quorum and compute: if the first step takes this long, raise job.longest_step_s"
