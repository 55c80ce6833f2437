"""Every option of sbatch and srun, and what becomes of one that a user sets. docs/jobs.md has this table, too.

An option that a run lives on is refused with the setting to use instead, because it would replace ftslurm's own. One
that is not here is of a newer Slurm or of a site's plugin: it is passed on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_STREAMS = "ftslurm needs srun's stdin, stdout and stderr for itself"
_PLACED = "ftslurm says where each group runs; use groups.nodes, groups.workers or cluster.sbatch.exclude"
_SINGLE = "ftslurm submits single jobs, and follows each by its id; leave it out"
_SIGNAL = (
    "it would replace the warning by which ftslurm saves before the time limit; cluster.signal_s=N is when that comes, "
    "and scripts get SIGTERM"
)
# Names of options, and what to do instead. To take one of these back would harm, too.
_SBATCH_OURS = {
    "signal": _SIGNAL,
    "requeue no-requeue": "use cluster.requeue",
    "no-kill": "a job of several groups outlives a lost node, and that of a single group does not",
    "nodes ntasks ntasks-per-gpu ntasks-per-node": (
        "it follows from groups.count, groups.nodes, groups.per_node, cluster.spare_nodes"
    ),
    "job-name": "use run.name",
    "output error open-mode": "the output of the jobs is in the run directory, in submitit/",
}
_SBATCH_NEVER = {
    "gpus gpus-per-socket gpus-per-task tres-per-task": "with it no step of a group can start; use groups.gpus",
    "array help test-only usage version wait wrap": _SINGLE,
    "container external": "the job runs the controller; cluster.container_image is for workers",
}
# Only for the job with which the run starts: one that replaces another job comes without delay.
ONCE = ("begin", "dependency", "hold")
_SBATCH_PASSED = """
    account acctg-freq batch bb bbf chdir cluster-constraint clusters comment consolidate-segments constraint
    contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot distribution
    exclude exclusive export export-file extra extra-node-info get-user-env gid gpu-bind gpu-freq gpus-per-node gres
    gres-flags hint ignore-pbs input kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind
    mem-per-cpu mem-per-gpu mincpus network nice nodefile nodelist ntasks-per-core ntasks-per-socket oom-kill-step
    overcommit oversubscribe parsable partition power prefer priority profile propagate qos quiet reboot reservation
    resv-ports segment sockets-per-node spread-job spread-segments stepmgr switches thread-spec threads-per-core
    time time-min tmp tres-bind uid use-min-nodes verbose wait-all-nodes wckey
"""

_SRUN = {
    "error input label multi-prog open-mode output pty unbuffered": _STREAMS,
    "quiet": "ftslurm reads from srun how a rank has ended",
    "exclude het-group job-name jobid no-allocate nodefile nodelist nodes ntasks ntasks-per-node relative": _PLACED,
    "exact exclusive": "the steps of a run overlap: one that does not may wait for ever",
    "disable-status kill-on-bad-exit no-kill wait": "ftslurm ends the ranks of a group that has failed",
    "immediate signal time": "it would end a group; use cluster.time, cluster.signal_s and stop.grace_s",
    "async external-launcher help test-only usage version": "ftslurm starts the workers as tasks, and waits for them",
}
_SRUN_PASSED = """
    accel-bind account acctg-freq bb bbf bcast bcast-exclude begin chdir cluster-constraint clusters comment compress
    constraint container container-id contiguous core-spec cores-per-socket cpu-bind cpu-freq cpus-per-gpu
    cpus-per-task deadline delay-boot dependency distribution epilog export export-file extra extra-node-info gid
    gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint hold interactive licenses
    mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus mpi msg-timeout network nice
    ntasks-per-core ntasks-per-gpu ntasks-per-socket oom-kill-step overcommit overlap oversubscribe partition power
    prefer preserve-env priority profile prolog propagate qos quit-on-interrupt reboot reservation resv-ports segment
    send-libs slurmd-debug sockets-per-node spread-job stepmgr switches task-epilog task-prolog thread-spec threads
    threads-per-core time-min tmp treewidth tres-bind tres-per-task uid use-min-nodes verbose wait-for-children wckey
    x11
"""
# Short names of srun's options, and those without a value, after which another may follow in the same word.
_SHORT = """
    e=error i=input l=label o=output u=unbuffered Q=quiet x=exclude J=job-name Z=no-allocate F=nodefile w=nodelist
    N=nodes n=ntasks r=relative X=disable-status K=kill-on-bad-exit k=no-kill W=wait I=immediate t=time h=help V=version
"""
_FLAGS = "EHOQVXZhlsuv"
_BARE = (
    "srun would run it as the program; write an option and its value as one word, in quotes if it has a comma, as in "
    "'cluster.srun=[--mpi=pmix,\"--export=ALL,A=1\"]'"
)


def _by_name(table: Mapping[str, str]) -> dict[str, str]:
    return {name: instead for names, instead in table.items() for name in names.split()}


OURS = _by_name(_SBATCH_OURS)
SBATCH = OURS | _by_name(_SBATCH_NEVER) | dict.fromkeys([*ONCE, *_SBATCH_PASSED.split()], "")
SRUN = _by_name(_SRUN) | dict.fromkeys(_SRUN_PASSED.split(), "")


def refusal(program: Mapping[str, str], name: str) -> str:
    """Return why an option may not be set, and what to do instead; empty: it is passed on.

    Args:
        program: SBATCH or SRUN.
        name: the option's long name, or a beginning of it, which Slurm takes, too.
    """
    if name in program:
        return program[name]
    full = sorted(other for other in program if other.startswith(name))
    return f"write the option's full name: {', '.join(full)}" if full else ""


def refused_of_sbatch(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with options of sbatch: the name, and why. One that is taken back is wrong if it is ours."""
    for name, value in options.items():
        if not str(value).isprintable():
            yield f"{name}={value!r:.80}", "an option of sbatch is one line"
        elif (name in OURS or (value is not None and value is not False)) and (why := refusal(SBATCH, name)):
            yield name, why


def refused_of_srun(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with arguments of srun: the word, and why."""
    for word in words:
        if not re.match("--?[A-Za-z]", word):
            yield word, _BARE
        for name in _names(word):
            if why := refusal(SRUN, name):
                yield word, why
        option, _, value = word.partition("=")
        if option == "--export" and value.split(",")[0] != "ALL":
            yield word, "the workers need their variables; set yours with job.env"


def _names(word: str) -> Iterator[str]:
    """Yield the long names of the options in a word of a command line."""
    if word.startswith("--"):
        yield word[2:].partition("=")[0].replace("_", "-")
    elif word.startswith("-"):
        short = dict(one.split("=") for one in _SHORT.split())
        for letter in word[1:]:
            if letter in short:
                yield short[letter]
            if letter not in _FLAGS:
                break
