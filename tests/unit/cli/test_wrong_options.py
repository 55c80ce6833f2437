"""Options that no verb has are refused with what is probably meant."""

from __future__ import annotations

import shlex

import pytest

from ftslurm.cli import main


def refusal(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command line that must end with exit code 2, and return the last line that it printed."""
    try:
        code: object = main.main(shlex.split(line))
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("line", ["run --mutlirun", "plan job=ddp --mutlirun"])
def test_an_option_with_a_slip_is_refused_with_the_nearest(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(line, capsys)
    assert said.endswith("--mutlirun (did you mean --multirun?); settings are written key=value, without dashes")


@pytest.mark.parametrize("line", ["plan --count=4", "run --count=4", "resume --count=4"])
def test_a_setting_with_dashes_is_refused_with_how_it_is_written(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(line, capsys).endswith("settings are written key=value, without dashes: groups.count=4")


@pytest.mark.parametrize("verb", ["run", "plan job=ddp", "resume"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--lr 0.1", "job.args.lr=0.1"),
        ("--lr=1e-3", "job.args.lr=1e-3"),
        ("--batch_size 3 groups.count=2", "job.args.batch_size=3"),
        ("--weight-decay groups.count=2", "job.args.weight-decay=VALUE"),
        ("--faults kill_one", "faults=kill_one"),
        ("--/etc 1", "job.args./etc=1"),
        ("--time 3", "cluster.time=3"),
    ],
)
def test_an_option_of_the_script_leads_to_its_setting(
    verb: str, given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"{verb} {given}"
    assert refusal(line, capsys).endswith(f"settings are written key=value, without dashes: {said}")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("status --js", "--js (did you mean --json?)"),
        ("status --jsn", "--jsn (did you mean --json?)"),
        ("list --swep=a", "--swep (did you mean --sweep?)"),
        ("inject kill --grup 3", "--grup (did you mean --group?)"),
        ("doctor --note a", "--note (did you mean --nodes?)"),
        ("help --frobnicate", "--frobnicate"),
    ],
)
def test_other_verbs_name_the_option_that_is_meant(line: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    verb = line.split()[0]
    assert refusal(line, capsys) == f"ftslurm: there is no option {named} (ftslurm {verb} --help)"


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
