"""Every verb with its arguments and its help: one table, for the overview, the parsers, TAB and the pages.

It imports little beside argparse, so that `ftslurm --help` and a TAB are quick. What a verb does is imported when it is
chosen: the function `main` of `ftslurm/cli/NAME_verb.py`, or the method of `Run` that its row names.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftslurm.cli.option_types import count, folder, pattern, since
from ftslurm.cli.parser import Parser
from ftslurm.protocol.run_states import FAULTS

NEWEST, ONLY = "newest", "the only one that is going"  # the run that is meant without RUN; who steers must not guess
DONE = "\nExit code: 0 it is done, 1 the controller refuses or is silent, 2 no such group, node or controller.\n"
SHELLS = ("bash", "zsh", "fish")


Arg = Callable[[Any], object]  # adds one argument of a verb to its parser


@dataclass(frozen=True)
class Verb:
    """One verb."""

    name: str
    words: str  # its arguments in the overview
    line: str  # what it does, in the overview
    about: str  # the same, in its help
    epilog: str | None = None
    args: tuple[Arg | tuple[Arg, ...], ...] = ()  # inner ones exclude each other
    run: str = ""  # it takes RUN; without RUN it is about this one
    method: str = ""  # of Run, which does it all: it gets the arguments and returns what is printed


def arg(*names: str, **options: Any) -> Arg:
    """Return an argument, as add_argument has it."""
    return lambda parser: parser.add_argument(*names, **options)


def flag(*names: str, help: str) -> Arg:
    """Return an option without a value."""
    return arg(*names, action="store_true", help=help)


def number(*names: str, **options: Any) -> Arg:
    """Return an argument that is a whole number."""
    return arg(*names, **{"type": int, "metavar": "N"} | options)


def parser_of(verb: Verb) -> Parser:
    """Return the parser of a verb."""
    parser = Parser(
        prog=f"ftslurm {verb.name}",
        description=verb.about,
        epilog=verb.epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if verb.run:
        about = f"directory, id or its beginning, any of its Slurm jobs, name; default: {verb.run}"
        parser.add_argument("run", nargs="?", metavar="RUN", help=about)
    for one in verb.args:
        among: Any = parser.add_mutually_exclusive_group() if isinstance(one, tuple) else parser
        for each in one if isinstance(one, tuple) else (one,):
            each(among)
    if verb.run:
        ROOT(parser)
        parser.set_defaults(only=verb.run == ONLY)
    return parser


RUNS = {"type": folder, "default": Path("runs"), "metavar": "DIR"}  # which may not exist yet, if it is not named
ROOT = arg("--root", **RUNS, help="where run directories lie (run.root; default: runs)")
JSON = flag("--json", help="print it as JSON")
GROUP = number("--group", required=True, help="of this group")
RANK = number("--rank", default=0, metavar="R", help="this rank of the group (default: 0)")
FOLLOW = flag("-f", "--follow", help="go on until the run is over")
SINCE = arg("--since", type=since, default=0.0, metavar="TIME", help="only since: 10m, 14:30, 2026-11-23T14:30")
YES = flag("--yes", help="do not ask")
HYDRA = (
    arg("overrides", nargs="*", metavar="SETTING", help="section.name=value or section=preset: ftslurm help settings"),
    flag("-m", "--multirun", help="a sweep: one run for each combination of values"),
    arg("--cfg", choices=["job"], metavar="job", help="print the configuration that these words give, and do nothing"),
    arg("--config-dir", metavar="DIR", help="a folder with presets of your own: DIR/job/mine.yaml is job=mine"),
)

START = (
    Verb(
        "run",
        "[SETTING...]",
        "check the settings, submit, follow; the default verb",
        "Check the settings, submit the run and follow it. ftslurm job=ddp is ftslurm run job=ddp.",
        args=HYDRA,
    ),
    Verb(
        "plan",
        "[SETTING...]",
        "show what run would do: nodes, ranks, sbatch, srun",
        "Show what run would do with the same words: nodes, ranks, sbatch, srun. Nothing is submitted.",
        args=HYDRA,
    ),
    Verb(
        "resume",
        "[RUN] ...",
        "go on from the newest checkpoint, as a new run",
        "Start a new run with the configuration of one that is over, from its newest checkpoint.",
        """\
examples
  ftslurm resume                                 the newest run, as it was
  ftslurm resume ddp-20260801-1200-ab job.args.lr=0.001 cluster.time=4:00:00
                                                 with other values
  ftslurm resume RUN faults=none                 a preset replaces its section

An optimizer's state brings its learning rate back: job.args.lr counts only in a script that keeps its own, as the
examples do (`ftslurm help checkpoints`).

The new run has its own directory and id, and names its parent. It is given the parent's checkpoints as hard links and
saves into its own folder, so the parent can be resumed again, or deleted. Where checkpoint.dir was set, or the script
saves in a format of its own, both use the same folder. A run that goes on by itself after its time limit is not over:
it needs no resume. The code is the copy that the parent was submitted with (job.snapshot); after a correction take the
present code with --new-code. Drills of faults.plan are not repeated: name them again.
""",
        args=(
            arg("overrides", nargs="*", metavar="OVERRIDE", help="changes, as for ftslurm run"),
            flag("--from-scratch", help="begin at step 0, whatever has been saved"),
            flag("--new-code", help="take the code as it is now, not the run's own copy"),
        ),
        run=NEWEST,
    ),
    Verb(
        "templates",
        "DIR",
        "write batch scripts, to call sbatch yourself",
        "Write steps.sbatch and array.sbatch into a folder, to be submitted with sbatch.",
        """\
example
  ftslurm templates sbatch
  sbatch --nodes=4 sbatch/steps.sbatch job.script=train.py       one job, a group on each node
  sbatch --array=0-3 sbatch/array.sbatch job.script=train.py     a group in each task of an array

The scripts start ftslurm with the Python that writes them. Change them as you like.""",
        args=(arg("folder", metavar="DIR", type=Path, help="it is made if it is missing; no file is overwritten"),),
    ),
)
LOOK = (
    Verb(
        "list",
        "",
        "all runs under a folder, or --user U's",
        "Show all runs below a folder, or of a user's Slurm jobs, the newest first.",
        """\
states: running, waiting (its job is in the queue), silent (its controller is not
heard), unknown (it has not begun, and Slurm does not say how its job stands),
lost (its controller is gone, and the run has no end), succeeded, failed, stopped
(also: its job was cancelled in the queue), unreadable (another user's run that
you may not read)""",
        args=(
            (ROOT, arg("--user", metavar="U", help="the runs of this user's Slurm jobs, wherever they lie")),
            arg("--sweep", metavar="NAME", help="only the runs of this sweep"),
            JSON,
        ),
    ),
    Verb(
        "top",
        "[RUN]",
        "runs, groups, logs on one screen with keys",
        "Show all runs on one screen, or RUN: sort them, open them, read their logs.",
        run="all runs",
    ),
    Verb(
        "status",
        "[RUN]",
        "phase, step, node of each group; -w live",
        "Show how a run stands, once, or with -w until it ends.",
        args=(
            (flag("-w", "--watch", help="until the run ends or Ctrl-C: a live table on a terminal, else lines"), JSON),
        ),
        run=NEWEST,
    ),
    Verb(
        "logs",
        "[RUN]",
        "what the scripts printed, merged in time order",
        "Print what the scripts printed, in time order. Without --group: rank 0 of every group.",
        """\
Each line of several logs has a prefix: [g1.a0.r2] is rank 2 of group 1 in its attempt 0, that is, its first launch.
With --time it is [11-27 09:12:25 g1.a0.r2]: the line was written in the second before. No option changes the logs.

  ftslurm logs --failure                    why the last failed attempt has ended
  ftslurm logs --group 1 --tail 50 -f       the last lines of all ranks of group 1, and what comes
  ftslurm logs --since 10m --time --grep 'loss|lr'
""",
        args=(
            number("--group", help="only this group, all its ranks"),
            number("--rank", help="only this rank of each group"),
            number("--attempt", help="only this attempt of each group (default: all)"),
            (
                arg(
                    "--lighthouse",
                    action="store_const",
                    const="lighthouse",
                    dest="service",
                    help="the Lighthouse's log",
                ),
                arg(
                    "--controller",
                    action="store_const",
                    const="controller",
                    dest="service",
                    help="the controller's log",
                ),
                flag("--failure", help="the evidence of the last failure: its signs, traceback, stacks, log"),
            ),
            FOLLOW,
            arg("--tail", type=count, metavar="N", help="only the last N lines there are"),
            SINCE,
            arg("--grep", type=pattern, metavar="PATTERN", help="only lines that match (regex)"),
            flag("--raw", help="also the known noise of torch, torchft, Gloo and NCCL"),
            flag("--time", help="the time before each line"),
        ),
        run=NEWEST,
    ),
    Verb(
        "events",
        "[RUN]",
        "what has happened, as lines: --since 22:00, -f",
        "Print what has happened in a run, a line for each event.",
        """\
example
  ftslurm events --since 22:00          what happened last night
  ftslurm events -f | grep 'group 3'    what happens, until the run is over

The lines are those of the job's output file: failures with their causes, restarts, moves, checkpoints; with -f also how
far the run is, once a minute from now on. RUN/events.jsonl has every event with all its fields.
""",
        args=(FOLLOW, SINCE),
        run=NEWEST,
    ),
    Verb(
        "report",
        "[RUN]",
        "where the time went: goodput, failures, nodes",
        "Print where the time of a run went, and write it to RUN/report.html.",
        args=(JSON,),
        run=NEWEST,
    ),
    Verb(
        "wait",
        "[RUN]",
        "until it is over, with its exit code",
        "Wait until a run is over, and return its exit code.",
        """\
example
  ftslurm wait && ftslurm report        when the newest run has succeeded
  ftslurm wait 3f2a --timeout 3600      no longer than an hour

Exit code: 0 the run has succeeded, 1 it has failed, was stopped or is not over in time, 2 there is none, or it is lost.
""",
        args=(arg("--timeout", type=float, metavar="SECONDS", help="wait no longer (default: for ever)"),),
        run=NEWEST,
    ),
    Verb(
        "stacks",
        "[RUN] ...",
        "what a rank does now: --group N --rank R",
        "Print what a rank is doing now: the stacks of all its threads.",
        """\
example
  ftslurm stacks --group 1              rank 0 of group 1: every thread, innermost call first
  ftslurm stacks --group 1 --rank 3     rank 3
  ftslurm stacks --group 1 --all        every rank of the group

Python's faulthandler writes them, also while the rank is stuck in C; a stopped rank (SIGSTOP) is continued for a
moment. They are also in the rank's log: ftslurm logs --group 1.
Exit code: 0 they are printed, 1 there are none, 2 there is no such group or rank, or the run is over.
""",
        args=(GROUP, (RANK, flag("--all", help="every rank of the group"))),
        run=NEWEST,
    ),
    Verb(
        "attach",
        "[RUN] ...",
        "a shell beside a rank: --group N --rank R",
        "Start a shell beside a rank of a running run, with its environment.",
        """\
example
  ftslurm attach --group 1 --rank 3     a shell on the node of rank 3 of group 1: nvidia-smi, py-spy top, ls, ...
  ftslurm attach --group 1 --print      the command that this runs, without running it

The shell has the variables that the rank's script began with (RANK, MASTER_ADDR, CUDA_VISIBLE_DEVICES, secrets, ...)
and its working directory. On Slurm it is a step of its own in the same job (srun --overlap --pty); it takes no
resources from the rank. The shell outlives the rank and ends with the job. It is in the rank's container, if it
may be entered.
Exit code: that of the shell; 1 the group does not run, 2 there is no such group or rank, or the run is over.
""",
        args=(GROUP, RANK, flag("--print", help="print the command instead of running it")),
        run=NEWEST,
    ),
)
CHANGE = (
    Verb(
        "stop",
        "[RUN]",
        "end a run: SIGTERM, after stop.grace_s SIGKILL",
        "End a run: SIGTERM to the scripts, SIGKILL after stop.grace_s.",
        args=(
            arg("--sweep", metavar="NAME", help="end all runs of this sweep instead"),
            flag("--save", help="save a checkpoint before; if that fails, the run goes on"),
        ),
        run=ONLY,
    ),
    Verb(
        "save",
        "[RUN]",
        "save a checkpoint now, and wait for it",
        "Save a checkpoint of a running run now, and wait until it is complete.",
        """\
example
  ftslurm save                          save: checkpoint of step 1204: /.../checkpoints/step-00001204.json

The training goes on meanwhile. The checkpoint is that of the next committed step, whatever checkpoint.every is; the
command returns when it is complete. Only scripts with an ftslurm.checkpoint.Checkpointer can be asked to save
(`ftslurm help checkpoints`); Ctrl-C ends the wait, not the save.
Exit code: 0 it is saved, 1 it cannot be, 2 the run is over or has no controller.
""",
        run=ONLY,
        method="save",
    ),
    Verb(
        "restart",
        "[RUN] ...",
        "have one group leave and start again: --group N",
        "Have one group leave politely and start again. The others train on.",
        """\
example
  ftslurm restart --group 1             group 1 gets SIGTERM, and SIGKILL after stop.grace_s; then it starts again

A group starts again as a whole: its ranks share collectives, so no rank can leave alone. The others train on, and the
group heals from them. A warm standby takes over if there is one. It counts against no budget (restart.max_per_group)
and is done also with restart=never. It is refused if no other group holds the training's state.
To have it start on another node: ftslurm drain."""
        + DONE,
        args=(GROUP,),
        run=ONLY,
        method="restart",
    ),
    Verb(
        "drain",
        "[RUN] NODE",
        "move everything off a node, and leave it out",
        "Leave a node out of a running run: what runs there moves away politely.",
        """\
example
  ftslurm drain n3                      what the run has on n3 moves away, one group at a time; n3 gets nothing more
  ftslurm undrain n3                    n3 may be used again

Groups, warm standbys and the Lighthouse move to free nodes of the run. If none is free, the group stays there until one
is; with cluster.requeue (the default) a Slurm job is asked for. The answer names what is there. A move
counts against no budget (restart.max_per_group). Slurm knows nothing of it: other runs may use the node, and this run
keeps it in its allocation; in array mode the group's old job is given back. `ftslurm status` names drained nodes."""
        + DONE,
        args=(arg("node", metavar="NODE", help="as squeue and `ftslurm status` name it"),),
        run=ONLY,
        method="drain",
    ),
    Verb(
        "undrain",
        "[RUN] NODE",
        "use a drained node again",
        "Let a running run use a drained node again.",
        """\
example
  ftslurm undrain n3                    n3, which `ftslurm drain n3` has left out, may be used again

So may one that is left out because it has failed its check (health.preflight) or is broken, or a group has diverged or
failed again and again there; health.preflight, if set, checks it before. A node that others could not reach is used
again, and ftslurm never excludes it for that again.
Groups that have moved away stay where they are; one that waits for a node starts at once."""
        + DONE,
        args=(arg("node", metavar="NODE", help="one that is drained or left out, as `ftslurm status` names it"),),
        run=ONLY,
        method="undrain",
    ),
    Verb(
        "scale",
        "[RUN] N",
        "more groups or fewer while it trains",
        "Give a running run more groups, or fewer. The others train on meanwhile.",
        """\
example
  ftslurm run groups.count=2 groups.max=4 ...    start with two groups; up to four may be asked for later
  ftslurm scale 4                                two more: each gets its nodes, starts, and heals from a live group
  ftslurm scale 2                                groups 3 and 2 are told to stop (stop.grace_s), their nodes are free

Groups are numbered 0 to groups.max - 1 for the whole run, which scripts see as NUM_REPLICA_GROUPS; so groups.max is set
when the run starts. The last groups leave first, and never so many that fewer than groups.min are left.
Exit code: 0 it is done, 1 the controller refuses or does not answer, 2 this run can never have so many groups.
""",
        args=(number("groups", help="how many groups the run is to have from now on"),),
        run=ONLY,
        method="scale",
    ),
)
REST = (
    Verb(
        "doctor",
        "",
        "what will hurt a run on this cluster, with its fix",
        "Check this machine, Slurm and its nodes for what will hurt a training.",
        """\
A short job looks at a node of the partition (or at each of --nodes): python, torch, torchft, GPUs, network, clock, and
how the folder of runs behaves between that node and this machine. Without Slurm only this machine is looked at.

Exit code: 0 nothing fails, 1 something does, 2 bad arguments. `ftslurm help admin` explains each check.
""",
        args=(
            arg("--nodes", metavar="LIST", help="look at each of these nodes: a,b or n[1-4]"),
            arg("--partition", metavar="NAME", help="of the job (default: the default partition)"),
            arg("--root", default="runs", metavar="DIR", help="where run directories lie, or will (default: runs)"),
            arg(
                "--python",
                type=shlex.split,
                default=[sys.executable],
                metavar="CMD",
                help="the interpreter of your jobs (job.python)",
            ),
            arg(
                "--srun",
                type=shlex.split,
                default=[],
                metavar="OPTIONS",
                help="more options: --srun='--account=a --qos=b'",
            ),
            arg(
                "--wait",
                type=count,
                default=300,
                metavar="S",
                help="for the job to start (default: 300)",
            ),
            flag("--json", help="print one JSON object"),
            flag(
                "--site", help="print a site's file (/etc/ftslurm/site.yaml) that fits this cluster, and check nothing"
            ),
        ),
    ),
    Verb(
        "inject",
        "[RUN] FAULT",
        "do one real fault to a running run, to see it recover",
        "Do one real fault to a running run, to see it recover. On a terminal you are asked first.",
        "faults\n" + "\n".join(f"  {name:<11} {harm}" for name, harm in FAULTS.items()),
        args=(
            arg("fault", choices=FAULTS, metavar="FAULT", help="one of those below"),
            number("--group", help="of this group (default: the lowest one that runs)"),
            number("--rank", metavar="R", help="this rank of the group, or its node (default: 0)"),
            YES,
        ),
        run=ONLY,
    ),
    Verb(
        "prune",
        "",
        "remove runs that are over, with their checkpoints",
        "Remove runs that are over, with their checkpoints, code and logs. You are asked first.",
        """\
examples
  ftslurm prune --older-than 30d        runs that ended more than 30 days ago
  ftslurm prune runs/ddp-2026-ab        this one
  ftslurm prune --keep 5 --keep-logs    of all but the newest five: checkpoints and code; journal, logs, report stay

What would be removed is shown first, with its size. A run stays if it may be going (also if Slurm does not say), if it
is lost (resume it, or remove its folder by hand), if another run resumes from it or saves in its checkpoints, or if it
is not yours. Checkpoints in a checkpoint.dir outside of the run directory stay.
Exit code: 0 it is done, 1 you have said no, or something could not be removed, 2 it could not be asked.""",
        args=(
            arg("root", nargs="?", **RUNS, help="where run directories lie, or one of them; default: runs"),
            arg("--older-than", type=since, metavar="TIME", help="that ended before: 7d, 2026-11-23"),
            number("--keep", help="the newest N of those that are over stay"),
            flag("--keep-logs", help="remove checkpoints and code only"),
            YES,
        ),
    ),
    Verb(
        "completion",
        "SHELL",
        "code for bash, zsh or fish: TAB completes words",
        "Print the code with which a shell completes ftslurm's words.",
        """\
set-up
  bash   echo 'eval "$(ftslurm completion bash)"' >> ~/.bashrc
  zsh    echo 'eval "$(ftslurm completion zsh)"' >> ~/.zshrc      (after compinit)
  fish   ftslurm completion fish > ~/.config/fish/completions/ftslurm.fish

A TAB then completes verbs, options, run ids, settings (groups.co), presets (job=) and values.""",
        args=(arg("shell", choices=SHELLS),),
    ),
    Verb(
        "help",
        "[PAGE]",
        "the documentation; help settings: every setting",
        "Print a page of the documentation (Markdown), or the list of pages.",
        args=(
            arg("page", nargs="?", metavar="PAGE", help="a page or a verb; default: list the pages"),
            arg("section", nargs="?", metavar="SECTION", help="of the page settings: a section or a setting"),
        ),
    ),
)
VERBS_BY_PURPOSE = {
    "start a run": START,
    "look at runs": LOOK,
    "change a run that is going": CHANGE,
    "check, try out, tidy up": REST,
}
VERBS = {verb.name: verb for verbs in VERBS_BY_PURPOSE.values() for verb in verbs}
