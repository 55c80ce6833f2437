"""Why did a step end? A few words for a person, from its line in the journal."""

from __future__ import annotations

from ftslurm.run.journal import Event, integer, text

# Ends that were asked for: nobody has to look at a log.
ORDERLY = {"cancelled": "was stopped", "time_limit": "was stopped: time limit", "preempted": "was preempted"}


def mishap(event: Event) -> str:
    """What a person reads of an error that the controller has survived (`controller_error`)."""
    return (
        f"an error inside ftslurm, in the handling of {text(event, 'where') or 'something'}, which is dropped; the run "
        f"goes on: {text(event, 'error') or 'unknown'} (the traceback is in the controller's log; please report it)"
    )


def verdict(event: Event) -> str:
    """Why a step ended, for a person: "killed (signal 9) on n2"."""
    code, signal, node = integer(event, "code"), integer(event, "signal"), text(event, "node")
    sign = f" (signal {signal})" if signal is not None else f" (exit code {code})" if code is not None else ""
    cause = text(event, "cause") or "unknown"
    said = {
        "ok": "finished",
        "user_error": f"the script failed{sign}",
        "killed": f"killed{sign}",
        "out_of_memory": "out of memory",
        "node_lost": "node lost",
        "hang": "hung",
        "start_failed": f"could not start{sign}",
        "start_timeout": "took too long to start",
        "lighthouse_lost": "lost the Lighthouse",
        "preempted": "preempted",
        "cancelled": "ended from outside" if text(event, "error") else "stopped",
        "unknown": f"ended for no known reason{sign}",
    }.get(cause, cause.replace("_", " "))
    error = text(event, "error")
    if cause == "unknown" and error:
        return error + (f" on {node}" if node else "")
    return said + (f" on {node}" if node else "") + (f": {error}" if error else "")
