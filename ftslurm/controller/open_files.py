"""The controller's limit of open files: it has three pipes and a log for each process that it starts."""

from __future__ import annotations

import logging
import resource

FILES_PER_PROCESS = 4
log = logging.getLogger("ftslurm.controller.loop")
OTHER_FILES = 200  # the journal, questions to Slurm, probes of nodes


def allow(processes: int) -> None:
    """Raise the soft limit if so many steps need it; warn if the hard limit is too low for them.

    A limit that is high enough is left alone: srun passes it on to the workers.
    """
    needed = FILES_PER_PROCESS * processes + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < needed:
        log.warning(
            "the controller may open %d files, and this run needs about %d: some groups cannot start. Raise the hard "
            "limit on the controller's node (ulimit -Hn, LimitNOFILE of slurmd), or use fewer, larger groups",
            hard,
            needed,
        )
