"""`ftslurm inject`: ask the controller to inject one real fault, and print the result."""

from __future__ import annotations

import sys

from ftslurm.api import steered
from ftslurm.cli.run_argument import find_run, parser_for
from ftslurm.config.schema import AUTO
from ftslurm.config.validate import FAULTS
from ftslurm.errors import NotDone

HARM = {
    "kill": "SIGKILL to one rank, as the kernel or an admin would do it",
    "term": "SIGTERM to one rank",
    "stop": "SIGSTOP to one rank: it stands still until its group is found to hang (health.hang_after_s)",
    "node": "the node of one rank is lost: all that this run has there stops at once (locally it is back at once)",
    "cancel": "scancel of the whole step of one group; a local run has none and refuses",
    "lighthouse": "SIGKILL to the Lighthouse; no group should notice more than a pause",
}
HELP = "faults\n" + "\n".join(f"  {name:<11} {HARM[name]}" for name in FAULTS)


def main(words: list[str]) -> int:
    """Inject one fault."""
    about = "Do one real fault to a running run, to see it recover. On a terminal you are asked first."
    parser = parser_for("inject", about, HELP)
    parser.add_argument("fault", metavar="FAULT", help="one of those below")
    parser.add_argument("--group", type=int, metavar="N", help="of this group (default: the lowest one that runs)")
    parser.add_argument("--rank", type=int, metavar="R", help="this rank of the group, or its node (default: 0)")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    args = parser.parse_intermixed_args(words)
    steered.check_fault(args.fault)
    run = find_run(args)
    if not args.yes and sys.stdin.isatty():
        whom = "the lowest group that runs" if args.group is None else f"group {args.group}"
        print(f"{args.fault} for rank {args.rank or 0} of {whom} of {run.dir}? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise NotDone("nothing is done")
    print(run.inject(args.fault, args.group, args.rank))
    if args.fault == "stop" and run.config.health.hang_after_s == 0:
        print(
            "all groups may wait for it, and nobody looks for who hangs (health.hang_after_s=0): ftslurm inject kill "
            "on the same rank ends it",
            file=sys.stderr,
        )
    elif args.fault == "stop" and run.config.health.hang_after_s == AUTO:
        print(
            "it is found after the limit that `ftslurm status` shows (health.hang_after_s=auto, at least "
            f"{run.config.hang_least_s:g} s)",
            file=sys.stderr,
        )
    return 0
