"""The verbs and their exit codes: 0 the run succeeded, 1 it failed, 2 bad input, 130 interrupted."""

from __future__ import annotations

import difflib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ftslurm import __version__
from ftslurm.cli import run_commands
from ftslurm.cli.run_commands import find, parser_for
from ftslurm.config.schema import Config, nodes_needed
from ftslurm.errors import EnvironmentProblem, FtslurmError
from ftslurm.run import configuration
from ftslurm.run.directory import RunDir
from ftslurm.security import secret_variables
from ftslurm.security.terminal import guarded_output

OVERVIEW = """\
ftslurm trains with torchft replica groups and restarts only the group that failed.

  ftslurm job=ddp                        run the example: on Slurm if it answers, else on this machine
  ftslurm job=ddp cluster=local groups.count=3 faults=kill_one
                                         three groups here; one is killed half way and comes back
  ftslurm job.script=train.py groups.count=4 groups.nodes=2 groups.workers=8 cluster.partition=gpu
                                         your script: 4 groups of 2 nodes with 8 workers each

verbs (none, and key=value arguments, means run)
  run    [OVERRIDE...]     compose the configuration, check it, submit, follow      `ftslurm run --help`
  plan   [OVERRIDE...]     show what run would do: nodes, ranks, sbatch and srun lines, what if a node died
  status [RUN]             the run's groups: phase, step, quorum, attempt, node     `--json`, `--once`
  logs   [RUN]             what the scripts printed, merged in time order           `--group N --rank N -f`
  stop   [RUN]             end a run: SIGTERM, stop.grace_s, SIGKILL
  scale  [RUN] N           more groups or fewer while it trains, up to groups.max   `ftslurm scale --help`
  inject [RUN] FAULT       do a running run real harm, to see it recover            `--group N --rank R`

RUN is a run directory, a run id or its beginning, or the Slurm job of its controller; without it, the newest run under
runs/ is meant (--root DIR: another folder).
"""


class Terminated(Exception):
    """SIGTERM or SIGHUP has reached the command line."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    with guarded_output():
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    verbs: dict[str, Callable[[list[str]], int]] = {
        "run": run_verb,
        "plan": plan_verb,
        "status": status_verb,
        "logs": logs_verb,
        "stop": run_commands.stop_verb,
        "scale": run_commands.scale_verb,
        "inject": run_commands.inject_verb,
    }
    try:
        if words[:1] in (["-h"], ["--help"], ["help"]) or not words:
            print(OVERVIEW, end="")
            return 0 if words else 2
        if words[0] == "--version":
            print(f"ftslurm {__version__}")
            return 0
        if words[0] in verbs:
            return verbs[words[0]](words[1:])
        if "=" in words[0] or words[0].startswith(("-", "~", "+")):
            return run_verb(words)
        near = difflib.get_close_matches(words[0].lower(), verbs, n=1)
        hint = f"did you mean {near[0]}? There" if near else "there"
        raise EnvironmentProblem(f"there is no verb {words[0]!r}; {hint} are: {', '.join(verbs)} (ftslurm --help)")
    except FtslurmError as error:
        print(f"ftslurm: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, Terminated):
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whoever read our output has gone; nothing is wrong
        return 0


# --- run and plan -----------------------------------------------------------------------------------------------------


def run_verb(words: list[str]) -> int:
    from ftslurm.config.compose import run_hydra

    if "--config" in words:  # repeat a run from its config.yaml
        return _repeat(words)
    _warn_of_exposed(words)
    sweep = any(word in ("-m", "--multirun") for word in words)
    return run_hydra(words, lambda config: start(config, sweep))


def _warn_of_exposed(words: list[str]) -> None:
    if names := secret_variables.exposed(words):
        print(f"ftslurm: {secret_variables.warning(names)}", file=sys.stderr)


def _repeat(words: list[str]) -> int:
    from ftslurm.config import compose

    at = words.index("--config")
    if len(words) != 2 or at != 0:
        raise EnvironmentProblem("`run --config RUN/config.yaml` repeats a run as it was and takes no overrides")
    config = compose.load(Path(words[1]))
    config.run.dir = None
    return start(compose.to_config(config), sweep=False)


def start(config: Config, sweep: bool) -> int:
    """Check, submit and follow one run; the exit code is the run's.

    Raises:
        FtslurmError: it cannot be started.
    """
    from ftslurm.submission import array_task, capabilities, pilots, submit

    config.cluster.pilots = array_task.array_of(config, os.environ) or config.cluster.pilots
    note = capabilities.resolve(config)
    if note:
        print(f"ftslurm: {note}", file=sys.stderr)
    secret_variables.check_submitter(config.job.secrets, os.environ, submit.exported(config, os.environ))
    if array_task.array_of(config, os.environ):
        return array_task.take_part(config)
    if config.cluster.controller == "here":
        return here(config)
    run = submit.create(config)
    if config.cluster.mode == "array":
        submit.unless_refused(run, lambda: pilots.try_out(config, run))
    submit.submit(config, run)
    local = config.cluster.kind == "local"
    print(f"run {run.root}" + ("" if local else f", Slurm job {run.job()}"), flush=True)
    follow = (
        config.follow if config.follow is not None else (local or sys.stdout.isatty()) and not (sweep and not local)
    )
    if not follow:
        print(f"follow it with: ftslurm status {run.root}")
        return 0
    return follow_run(config, run)


def here(config: Config) -> int:
    """Keep a controller below this process, in its allocation; a batch job that is started again goes on."""
    from ftslurm.launchers import srun
    from ftslurm.run.directory import replace_text
    from ftslurm.slurm import commands
    from ftslurm.submission import keeper, requeue, submit

    steps = config.cluster.kind == "slurm" and config.cluster.mode == "steps"
    for key in ("partition", "account", "qos") if steps else ():  # for jobs that replace a lost node
        setattr(config.cluster, key, getattr(config.cluster, key) or os.environ.get(f"SLURM_JOB_{key.upper()}"))
    before = requeue.of_this_job(config, os.environ) if steps else None
    if before is not None and before[1] in ("succeeded", "failed"):
        print(f"run {before[0].root} has {before[1]} before this job was started again")
        return int(before[1] == "failed")
    config = configuration.of_run(before[0]) if before is not None else config
    if steps:
        allocation = srun.allocation(config, os.environ)
        need, have = nodes_needed(config) - config.cluster.spare_nodes, len(allocation.nodes)
        if have < need:
            groups = config.groups
            raise EnvironmentProblem(
                f"{groups.count} groups of {groups.nodes} nodes, groups.per_node={groups.per_node}, need {need} nodes, "
                f"allocation {allocation.name} has {have}: ask for more (sbatch --nodes={need}), or change groups.count"
            )
    run = before[0] if before is not None else submit.create(config)
    if steps and commands.is_batch(os.environ):
        replace_text(run.job_id, os.environ["SLURM_JOB_ID"])
    print(f"run {run.root}" + (" goes on" if before is not None else ""), flush=True)
    return keeper.keep(config, run)


def plan_verb(words: list[str]) -> int:
    from ftslurm.config.compose import run_hydra

    def show(config: Config) -> int:
        from ftslurm.cli import plan
        from ftslurm.security import owned_files
        from ftslurm.submission import capabilities, submit

        note = capabilities.resolve(config, preview=True)
        if note:
            print(f"ftslurm: {note}", file=sys.stderr)
        secret_variables.check_submitter(config.job.secrets, os.environ, submit.exported(config, os.environ))
        owned_files.check_way(Path(config.run.dir or config.run.root), config.run.trust)
        for line in plan.plan(config):
            print(line)
        return 0

    _warn_of_exposed(words)
    return run_hydra(words, show)


# --- following -------------------------------------------------------------------------------------------------------


def follow_run(config: Config, run: RunDir) -> int:
    """Show the run to its end. Ctrl-C stops a local run, and leaves one on Slurm alone."""
    from ftslurm.monitor import summary, table
    from ftslurm.run import inbox, liveness
    from ftslurm.submission import submit

    console = table.console()
    there = submit.still_there(config, run)
    local = config.cluster.kind == "local"
    poll_s, silence = 0.2 if local else 0.5, partial(submit.silence, config, run, liveness.Watch())
    _raise_on(signal.SIGTERM, signal.SIGHUP)
    try:
        if not local:
            _wait_for_start(run, there)
        status = table.follow(run, console=console, until=lambda: not there(), poll_s=poll_s, note=silence)
    except BrokenPipeError:
        # Whoever read our output has gone. The run has not, and its exit code is still wanted.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = table.follow(run, console=console, until=lambda: not there(), poll_s=poll_s, note=silence)
    except (KeyboardInterrupt, Terminated):
        if not local:
            console.print(f"\nThe run goes on. Come back with: ftslurm status {run.root}")
            console.print(f"End it with: ftslurm stop {run.root}")
            return 130
        inbox.put(run.inbox, "stop")
        console.print(f"\nstopping (scripts have {config.stop.grace_s:g} s, stop.grace_s) ...")
        status = table.follow(run, console=console, until=lambda: not there(), poll_s=poll_s, history=0)
        console.print(summary.summary(status, run))
        return 130
    if status.outcome == "running":
        print(
            f"ftslurm: the controller of {run.root.name} is gone and left no verdict; its workers end by themselves. "
            f"See {run.controller_log} and the files in {run.submitit}",
            file=sys.stderr,
        )
        return 1
    if local:
        _wait_for_end(there)
    console.print(summary.summary(status, run))
    return 0 if status.outcome == "succeeded" else 1


def _wait_for_start(run: RunDir, there: Callable[[], bool]) -> None:
    """Say what the job waits for until its controller has written its first word."""
    from ftslurm.submission import submit

    told, asked = None, 0.0
    while not run.events.exists() and there():
        if time.monotonic() - asked >= submit.QUEUE_S:
            asked = time.monotonic()
            line = submit.in_queue(run)
            if line != told and not run.events.exists():
                told = line
                print(line, flush=True)
        time.sleep(0.2)


def _raise_on(*numbers: int) -> None:
    def terminate(number: int, _: Any) -> None:
        raise Terminated(signal.Signals(number).name)

    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, terminate)


def _wait_for_end(there: Callable[[], bool], seconds: float = 5.0) -> None:
    """The verdict is written a moment before the controller ends; leave nothing running behind the prompt."""
    deadline = time.monotonic() + seconds
    while there() and time.monotonic() < deadline:
        time.sleep(0.02)


# --- verbs on a run --------------------------------------------------------------------------------------------------


def status_verb(words: list[str]) -> int:
    parser = parser_for("status", "Show how a run stands. On a terminal the table lives until the run ends or Ctrl-C.")
    parser.add_argument("--once", action="store_true", help="print the table once")
    parser.add_argument("--json", action="store_true", help="print it as JSON, once")
    args = parser.parse_args(words)
    run = find(args)

    from ftslurm.config import compose
    from ftslurm.controller.resume_state import Story
    from ftslurm.monitor import status_json, summary, table
    from ftslurm.run import liveness
    from ftslurm.submission import submit

    config = compose.load(run.config, own=False)
    waiting = silent = None
    if config.cluster.kind == "slurm" and not run.events.exists():
        waiting = submit.in_queue(run)
    if args.json or args.once or not sys.stdout.isatty():
        story = Story(run)
        story.read()
        now = story.status if args.json else story.shown()  # JSON has escapes of its own
        now = replace(now, run_id=now.run_id or run.root.name)
        if now.outcome == "running" and now.started is not None:
            gone, silent = submit.abandoned(config, run), submit.silence(config, run)
            waiting = gone or silent
        moment = liveness.moment(config, run) if now.outcome == "running" else time.time()
        if args.json:
            print(json.dumps(status_json.to_json(now, moment) | {"note": waiting}, indent=2))
        elif waiting and now.started is None:
            print(f"{run.root.name}: {waiting}")
        else:
            console = table.console()
            console.print(table.render(now, moment, width=min(console.width, 120), height=10_000, note=waiting))
            if now.outcome != "running":
                console.print("", summary.summary(now, run), sep="\n")
                return 0
            signs = summary.failures(g for g in now.groups if g.down)
            if signs is not None:
                console.print("", signs, sep="\n")
        return 0
    there = submit.still_there(config, run)
    if config.cluster.kind == "slurm":
        _wait_for_start(run, there)
    console = table.console()
    silence = partial(submit.silence, config, run, liveness.Watch())
    shown = table.follow(run, console=console, until=lambda: not there(), history=10, note=silence)
    console.print(summary.summary(shown, run))
    return 0


def logs_verb(words: list[str]) -> int:
    parser = parser_for(
        "logs", "Print what the scripts printed, in time order. Without --group: rank 0 of every group."
    )
    parser.add_argument("--group", type=int, metavar="N", help="only this group, all its ranks")
    parser.add_argument("--rank", type=int, metavar="N", help="only this rank of each group")
    parser.add_argument("--attempt", type=int, metavar="N", help="only this attempt of each group (default: all)")
    parser.add_argument("--lighthouse", action="store_true", help="the Lighthouse's log")
    parser.add_argument("--controller", action="store_true", help="the controller's log")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    args = parser.parse_args(words)
    run = find(args)

    from ftslurm.config import compose
    from ftslurm.monitor import logs
    from ftslurm.submission import submit

    wanted = logs.Wanted(args.group, args.rank, args.attempt, args.lighthouse, args.controller)
    there = submit.still_there(compose.load(run.config, own=False), run)
    colours = sys.stdout.isatty()
    logs.show(run, wanted, sys.stdout.buffer, follow=args.follow, until=lambda: not there(), colours=colours)
    return 0
