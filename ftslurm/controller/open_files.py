"""The controller's limit of open files: it has three pipes and a log for each process that it starts."""

from __future__ import annotations

import resource

FILES_PER_PROCESS = 4
OTHER_FILES = 200  # the journal, questions to Slurm, probes of nodes


def allow(processes: int) -> str | None:
    """Raise the soft limit if so many steps need it; return a warning if the hard limit is too low for them.

    A limit that is high enough is left alone: srun passes it on to the workers.
    """
    needed = FILES_PER_PROCESS * processes + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most == needed:
        return None
    return (
        f"the controller may open {hard} files, and this run needs about {needed}: some groups cannot start. Raise "
        f"the hard limit on the controller's node (ulimit -Hn, LimitNOFILE of slurmd), or use fewer, larger groups"
    )
