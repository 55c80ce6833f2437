"""Texts about single events that do not depend on the rest of the run.

The status keeps these texts (a group's last error, the warnings); sentences.py builds whole lines from them.
"""

from __future__ import annotations

from ftslurm.protocol import records
from ftslurm.protocol.stages import Stage

GROUPS_SHOWN = 3  # of no_first_step; the journal has more


def controller_error(error: records.ControllerError) -> str:
    """Return the text for an error that the controller survived."""
    return (
        f"an error inside ftslurm, in the handling of {error.where or 'something'}, which is dropped; the run "
        f"goes on: {error.error or 'unknown'} (the traceback is in the controller's log; please report it)"
    )


def no_first_step(stuck: records.NoFirstStep) -> str:
    """Return the warning that no step is committed, with the stage of the first groups."""
    groups = [_stuck_group(group) for group in stuck.groups[:GROUPS_SHOWN]]
    if len(stuck.groups) > GROUPS_SHOWN:
        groups.append(f"and {len(stuck.groups) - GROUPS_SHOWN} more: see the logs")
    after = f"{stuck.seconds or 0:.0f} s after all scripts had begun"
    return "; ".join([f"no step has been committed {after}: {stuck.reason or 'unknown'}", *groups])


def _stuck_group(group: records.StuckGroup) -> str:
    stage, last = group.get("stage"), group.get("last")
    known = isinstance(stage, int) and 0 <= stage < len(Stage)
    doing = f"is {Stage(stage or 0).doing}" if known else "has not asked for a quorum"
    last_line = f', its last line: "{last}"' if isinstance(last, str) and last else ""
    return f"group {group.get('group')} {doing}{last_line}"
