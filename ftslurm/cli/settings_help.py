"""What `ftslurm run --help`, `ftslurm plan --help` and `ftslurm help settings` print about settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import fill, indent

from ftslurm.cli.verbs import VERBS, parser_of
from ftslurm.config import site
from ftslurm.config.described import Setting, described
from ftslurm.config.schema import shipped
from ftslurm.config.setting_names import no_setting, within

FIRST = (  # those that people set, in the order in which they are shown
    *("job.script", "job.module", "job.args", "job.env", "job.secrets", "job.python", "run.root", "run.name"),
    *("groups.count", "groups.nodes", "groups.workers", "groups.gpus", "groups.cpus_per_worker", "groups.mem"),
    *("cluster.partition", "cluster.account", "cluster.time", "cluster.sbatch", "cluster.setup", "cluster.spare_nodes"),
    *("checkpoint.every", "checkpoint.dir", "restart.max_per_group", "health.hang_after_s", "hooks.on_event"),
)
EXAMPLES = """\
examples
  ftslurm {verb} job=ddp                                  the example, here or on Slurm, whichever is there
  ftslurm {verb} job=ddp cluster=local groups.count=3 faults=kill_one
  ftslurm {verb} job.script=train.py job.args.lr=0.1 groups.count=4 groups.workers=8 cluster.partition=gpu
  ftslurm {verb} job=ddp job.secrets=[HF_TOKEN]           with a variable of this environment, written to no file
  ftslurm {verb} job=ddp job.args.lr=0.001,0.003 -m       a sweep: one run for each value
  ftslurm {verb} --config-dir my_conf job=mine            your own my_conf/job/mine.yaml
"""
END = "\nEvery setting: ftslurm help settings [SECTION]. Present values: --cfg job. What would happen: ftslurm plan."


def of_verb(verb: str) -> str:
    """Return the help of `run` or `plan`."""
    known, parser = {one.key: one for one in described()}, parser_of(VERBS[verb])
    text = f"{EXAMPLES.format(verb=verb)}\npresets, as section=preset\n"
    for section in sorted(path for path in shipped("conf").iterdir() if path.is_dir()):
        if names := sorted(path.stem for path in section.glob("*.yaml")):
            text += f"  {section.name:<12}{', '.join(names)}\n"
    text += "\nsettings, as key=value: those that most people use\n"
    for key in FIRST:
        sentence = re.split(r"(?<=[.;])\s|:\s", known[key].meaning)[0].rstrip(".;")
        text += f"  {_head(known[key]):<30}{sentence}\n"
    parser.epilog = text + END
    return parser.format_help()


def pages(wanted: str | None) -> Iterator[str]:
    """Generate a paragraph for each setting of a section, or for this setting; None: for all.

    Raises:
        ConfigError: there is no such section and no such setting.
    """
    found = [one for one in described() if wanted is None or within(one.key, wanted) or within(wanted, one.key)]
    if wanted is not None and not found:
        raise no_setting(wanted)
    local = site.read()
    for one in found:
        said = f"    {text}\n" if (text := local.said(one.key)) else ""
        yield f"{_head(one)}\n{said}{indent(fill(one.meaning, 88, break_on_hyphens=False), '    ')}"


def _head(one: Setting) -> str:
    return one.key if one.default in (None, "null", "[]", "{}") else f"{one.key}={one.default}"
