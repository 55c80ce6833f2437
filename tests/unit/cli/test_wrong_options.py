"""What no verb takes is refused, with how settings and scripts are written."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from closed import closed

from ftslurm.cli import main


def refusal(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command line that must end with exit code 2, and return the last line that it printed."""
    try:
        code: object = main.main(shlex.split(line))
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("verb", ["run", "plan job=ddp", "resume"])
@pytest.mark.parametrize("given", ["--mutlirun", "--count=4", "--lr 0.1", "--weight-decay groups.count=2", "--/etc 1"])
def test_what_is_no_option_is_named_with_how_settings_are_written(
    verb: str, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(f"{verb} {given}", capsys)
    assert said.startswith(f"ftslurm: unrecognized arguments: {given.split()[0]}")
    assert "; settings are written key=value, without dashes" in said
    assert said.endswith(f" (ftslurm {verb.split()[0]} --help)")


@pytest.mark.parametrize("line", ["status --js", "list --swep=a", "inject kill --grup 3", "help --frobnicate"])
def test_other_verbs_name_what_is_no_option(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    verb, _, option = line.partition(" --")
    said = refusal(line, capsys)
    assert said == f"ftslurm: unrecognized arguments: --{option} (ftslurm {verb.split()[0]} --help)"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("train.py --lr 0.1", "there is no verb 'train.py'"),
        ("torchrun --nproc-per-node 8 train.py", "there is no verb 'torchrun'"),
        ("run train.py", "'train.py' is not in Hydra's notation"),
        ("groups.count=3 train.py groups.nodes=2", "'train.py' is not in Hydra's notation"),
    ],
)
def test_a_script_leads_to_its_setting(line: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(line, capsys)
    assert says in said
    assert "job.script=train.py" in said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("logs --group x", "ftslurm: --group: invalid int value: 'x' (ftslurm logs --help)"),
        ("scale run x", "ftslurm: N: invalid int value: 'x' (ftslurm scale --help)"),
        ("attach", "ftslurm: the following arguments are required: --group (ftslurm attach --help)"),
        ("run --cfg=x", "ftslurm: --cfg: invalid choice: 'x' (choose from "),
    ],
)
def test_a_wrong_value_is_refused_in_one_paragraph(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = main.main(shlex.split(line))
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    paragraph = capsys.readouterr().err
    assert paragraph.startswith(said)
    assert paragraph.count("\n") == 1


LONG = "a" * 300


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("plan cluster=local job.script={}/train.py", "no such file that you may read"),
        ("plan cluster=slurm job=ddp --config-dir {}/conf", "there is no such folder"),
        ("status {}/run", "run belongs to another user and is not readable for you"),
        ("templates {}/sbatch", "Permission denied"),
        (f"plan {LONG}=1", "there is no setting"),
        (f"resume job.args.prompt={LONG} --root {{}}.none", "there is no run under"),
        ("plan cluster=local job=ddp \"health.preflight=[['~nobody-here/check']]\"", "~nobody-here/check"),
        ("plan cluster=local job=ddp \"checkpoint.dir='{}/saved'\"", "must be a folder that you can read"),
    ],
)
def test_what_cannot_be_looked_at_is_told(
    line: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """pathlib's `exists` and its like raise errors there, until Python 3.14."""
    with closed(tmp_path):
        assert says in refusal(line.format(tmp_path), capsys)
