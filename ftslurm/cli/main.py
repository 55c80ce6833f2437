"""The command line: find the verb, run it, and turn errors into one line and an exit code.

Exit codes: 0 the run succeeded, 1 it failed, 2 bad input, 130 interrupted. What a verb does is imported only when it is
asked for, so that `ftslurm --help` is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from ftslurm import __version__
from ftslurm.cli.verbs import VERBS, VERBS_BY_PURPOSE, parser_of
from ftslurm.errors import EnvironmentProblem, FtslurmError, NotDone
from ftslurm.monitor import closed_output
from ftslurm.security.terminal import guarded_output
from ftslurm.words import offer

OVERVIEW = """\
ftslurm trains with torchft replica groups and restarts only those that fail.

  ftslurm job=ddp          the example: on Slurm where there is one
  ftslurm job.script=train.py groups.count=4 groups.nodes=2 groups.workers=8
                           your script: 4 groups of 2 nodes with 8 workers
{verbs}
RUN is a run directory, a run id or its beginning, any of its Slurm jobs, or its
name; default: the newest under runs/ (--root DIR: another folder), for verbs
that change a run the only one that is going.
`ftslurm VERB --help` has the options of a verb.
"""


def overview() -> str:
    """Return the text of `ftslurm --help`: every verb below its purpose, at most 80 columns wide."""
    lines = list[str]()
    for purpose, verbs in VERBS_BY_PURPOSE.items():
        lines.append(f"to {purpose}")
        lines.extend(f"  {verb.name:<10} {verb.words:<13} {verb.line}" for verb in verbs)
    return OVERVIEW.format(verbs="\n".join(lines))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    if "_ARGCOMPLETE" in os.environ:
        import_module("ftslurm.cli.completion").answer()  # to a TAB; exits
    closed_output.open_missing()
    with guarded_output():
        try:
            return _dispatch(list(sys.argv[1:] if argv is None else argv), own=argv is None)
        except FtslurmError as error:
            print(f"ftslurm: {error}", file=sys.stderr)
            return 1 if isinstance(error, NotDone) else 2
        except KeyboardInterrupt:  # also SIGTERM and SIGHUP while a run is followed
            return 130
        except BrokenPipeError:
            closed_output.discard()  # the reader of the output has exited: no error
            return 0


def _dispatch(words: list[str], own: bool) -> int:
    """Run a verb. Return the exit code.

    Args:
        own: these are the words of this process, which may hand over to another ftslurm.
    """
    if not words or words[0] in ("-h", "--help"):
        print(overview(), end="")
        return 0 if words else 2
    if words[0] == "--version":
        print(f"ftslurm {__version__}")
        return 0
    try:
        os.getcwd()  # noqa: PTH109 verbs make names absolute
    except OSError as error:
        raise EnvironmentProblem(
            f"the folder in which ftslurm is started cannot be used: {error.strerror}; change to another one"
        ) from error
    verb = VERBS.get(words[0])
    name, rest = (verb.name, words[1:]) if verb is not None else ("run", words)
    end = rest.index("--") if "--" in rest and name in ("run", "plan", "resume") else len(rest)
    rest, of_script = rest[:end], rest[end + 1 :]
    if name in ("run", "plan") and {"-h", "--help"} & {*rest}:
        print(import_module("ftslurm.cli.settings_help").of_verb(name))
        return 0
    if verb is None and "=" not in words[0] and not words[0].startswith(("-", "~", "+")):
        script = words[0] if words[0].endswith(".py") else "train.py"
        verbs = "" if words[0] == script else f"; {offer(words[0], VERBS)} (ftslurm --help)"
        raise EnvironmentProblem(
            f"there is no verb {words[0]!r}{verbs}. To train with a script: ftslurm job.script={script} -- --lr 0.1"
        )
    args, method = parser_of(VERBS[name]).parse_intermixed_args(rest), VERBS[name].method
    args.words = words if own else None
    if of_script:
        quoted = map(import_module("ftslurm.config.notation").quoted, of_script)
        args.overrides.append(f"job.args=[{','.join(quoted)}]")
    if not method:
        code: int = import_module(f"ftslurm.cli.{name}_verb").main(args)
        return code
    run = import_module("ftslurm.cli.run_argument").find_run(args)
    given = {name: value for name, value in vars(args).items() if name not in ("run", "root", "only", "words")}
    print(getattr(run, method)(**given))
    return 0
