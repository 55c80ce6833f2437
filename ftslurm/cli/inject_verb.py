"""`ftslurm inject`: ask the controller to inject one real fault, and print the result."""

from __future__ import annotations

import difflib
import sys

from ftslurm.cli import answers
from ftslurm.cli.run_argument import find_run, parser_for
from ftslurm.config.schema import Config, most_groups
from ftslurm.config.validate import FAULTS
from ftslurm.errors import EnvironmentProblem
from ftslurm.protocol.records import FaultInjected, FaultRefused, JournalEvent
from ftslurm.run import configuration, inbox
from ftslurm.run.journal import JournalReader

HARM = {
    "kill": "SIGKILL to one rank, as the kernel or an admin would do it",
    "term": "SIGTERM to one rank",
    "stop": "SIGSTOP to one rank: it stands still until its group is found to hang (health.hang_after_s)",
    "exit": "one rank ends with an error, as after an exception in the script",
    "oom": "one rank runs out of memory",
    "hang": "one rank computes for ever and steps no more (health.hang_after_s)",
    "node": "the node of one rank is lost: all that this run has there stops at once (locally it is back at once)",
    "cancel": "scancel of the whole step of one group; a local run has none and refuses",
    "lighthouse": "SIGKILL to the Lighthouse; no group should notice more than a pause",
}
HELP = "faults\n" + "\n".join(f"  {name:<11} {HARM[name]}" for name in FAULTS)


def main(words: list[str]) -> int:
    """Inject one fault.

    Raises:
        EnvironmentProblem: there is no such fault, group or rank, or the run has no controller.
    """
    about = "Do one real fault to a running run, to see it recover. It happens at once, without a question."
    parser = parser_for("inject", about, HELP)
    parser.add_argument("fault", metavar="FAULT", help="one of those below")
    parser.add_argument("--group", type=int, metavar="N", help="of this group (default: the lowest one that runs)")
    parser.add_argument("--rank", type=int, metavar="R", help="this rank of the group, or its node (default: 0)")
    args = parser.parse_intermixed_args(words)
    fault = _known_fault(args.fault)
    run = find_run(args)
    config, reader = configuration.of_run(run), JournalReader(run.events)
    _check_target(config, fault, args.group, args.rank)
    status = answers.status_of_running(config, run, reader, "there is nothing to harm")
    inbox.put(run.inbox, "inject", fault=fault, group=args.group, rank=args.rank or 0)

    def is_answer(record: JournalEvent) -> bool:
        return _is_answer(record, fault, args.group, args.rank or 0)

    code = answers.print_answer(run, reader, status, is_answer, done=FaultInjected)
    if code == 0 and fault in ("stop", "hang") and config.health.hang_after_s == 0:
        print(
            "all groups may wait for it, and nobody looks for who hangs (health.hang_after_s=0; a run that is started "
            "with health=hangs finds it by itself): ftslurm inject kill on the same rank ends it",
            file=sys.stderr,
        )
    return code


def _known_fault(fault: str) -> str:
    if fault not in FAULTS:
        near = difflib.get_close_matches(fault.lower(), FAULTS, n=1)
        hint = f"did you mean {near[0]}? There" if near else "there"
        raise EnvironmentProblem(f"{fault!r} is no fault; {hint} are {', '.join(FAULTS)} (ftslurm inject --help)")
    return fault


def _check_target(config: Config, fault: str, group: int | None, rank: int | None) -> None:
    """Refuse a group or rank that the run does not have, or the fault does not take."""
    if fault == "lighthouse" and (group is not None or rank is not None):
        raise EnvironmentProblem("the Lighthouse belongs to no group: leave out --group and --rank")
    if fault == "cancel" and rank is not None:
        raise EnvironmentProblem("cancel ends the whole step of a group: leave out --rank")
    groups, size = most_groups(config), config.groups.nodes * config.groups.workers
    if group is not None and not 0 <= group < groups:
        raise EnvironmentProblem(f"--group {group}: there is no such group; this run has {_numbered(groups, 'group')}")
    if rank is not None and not 0 <= rank < size:
        raise EnvironmentProblem(
            f"--rank {rank}: there is no such rank; a group of this run has {_numbered(size, 'rank')}"
        )


def _numbered(count: int, noun: str) -> str:
    return f"one {noun}, number 0" if count == 1 else f"{noun}s 0 to {count - 1}"


def _is_answer(record: JournalEvent, fault: str, group: int | None, rank: int) -> bool:
    """Return whether this record answers this command, and not another drill."""
    if not isinstance(record, (FaultInjected, FaultRefused)) or record.kind != fault or not answers.is_mine(record):
        return False
    if fault == "lighthouse":
        return True
    return group in (None, record.group) and (fault == "cancel" or record.rank in (None, rank))
