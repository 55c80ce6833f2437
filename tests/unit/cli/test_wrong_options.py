"""What no verb takes is refused, with how settings and scripts are written."""

from __future__ import annotations

import shlex
from itertools import combinations, product
from pathlib import Path

import pytest
from closed import closed

from ftslurm.cli import main
from ftslurm.cli.verbs import VERBS, parser_of
from ftslurm.config import compose
from ftslurm.config.schema import Config
from ftslurm.run.directory import RunDir


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
        ("train.py --lr 0.1", "there is no verb 'train.py'. To train with a script: ftslurm job.script=train.py"),
        ("src/drain.py", "there is no verb 'src/drain.py'. To train with a script: ftslurm job.script=src/drain.py"),
        ("torchrun --nproc-per-node 8 train.py", "there is no verb 'torchrun'"),
        ("run train.py", "'train.py' is no setting"),
        ("groups.count=3 train.py groups.nodes=2", "'train.py' is no setting"),
    ],
)
def test_a_script_leads_to_its_setting(line: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(line, capsys)
    assert says in said
    assert "job.script=" in said


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


APART = {  # options of a verb, of which those on both sides of a bar exclude each other
    "status": "--watch | --json",
    "logs": "--lighthouse | --controller | --failure",
    "logs ": "--lighthouse | --group=1 --rank=1 --attempt=1",
    "logs  ": "--controller | --group=1 --rank=1 --attempt=1",
    "logs   ": "--failure | --follow",
    "list": "--root=. | --user=me",
    "stacks --group=0": "--rank=1 | --all",
    "stop": "r | --sweep=s",
    "inject lighthouse": "| --group=0 --rank=0",
    "inject cancel": "| --rank=0",
    "help": "admin nothing status | section",
}
PAIRS = [
    " ".join([verb, one, other])
    for verb, options in APART.items()
    for left, right in combinations(options.split("|"), 2)
    for one, other in product(left.split() or [""], right.split())
]


@pytest.mark.parametrize("line", PAIRS)
def test_what_cannot_be_meant_together_is_refused(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDir(tmp_path / "runs/r")
    run.create()
    config = Config()
    config.job.script, config.cluster.kind = __file__, "local"
    run.config.write_text(compose.dump(config))
    (run.root / "alive").touch()
    (run.root / "events.jsonl").write_text('{"event": "run_started"}\n')
    monkeypatch.chdir(tmp_path)
    words = line.split()
    if words[0] in ("inject", "logs", "stacks"):
        words.append("--root=runs")
    said = refusal(shlex.join(words), capsys)
    assert "there is no run" not in said
    assert any(name.strip("-").partition("=")[0] in said for name in words[1:])
    assert list(run.inbox.iterdir()) == []


def folders() -> dict[str, str]:
    """Return the command lines that name a folder to look into."""
    lines = dict[str, str]()
    for verb in VERBS.values():
        for one in parser_of(verb)._actions:
            if one.metavar == "DIR" and verb.name not in ("templates", "doctor"):  # these two may make it
                option = "".join(one.option_strings[-1:])
                lines[f"{verb.name} {option}"] = f"{verb.name} {option and option + '='}"
    return lines


@pytest.mark.parametrize("named", folders())
def test_a_folder_that_does_not_exist_is_refused(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("typo", f"{tmp_path}/typo", "~/typo"):
        said = refusal(f"{folders()[named]}'{folder}'", capsys)
        assert "there is no " in said
        assert folder in said
    (tmp_path / "file").touch()
    assert "file" in refusal(f"{folders()[named]}file", capsys)


LONG = "a" * 300


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("plan cluster=local job.script={}/train.py", "no such file that you may read"),
        ("plan cluster=slurm job=ddp --config-dir {}/conf", "there is no such folder"),
        ("status {}/run", "run belongs to another user and is not readable for you"),
        ("templates {}/sbatch", "Permission denied"),
        (f"plan {LONG}=1", "there is no setting"),
        (f"resume job.args.prompt={LONG} --root {{}}/none", "--root: there is no folder"),
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
