"""TAB: what it offers, in a real bash, and that the options and keys it reads from the source are those there are."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftslurm.cli import completion
from ftslurm.cli.verbs import VERBS, parser_of
from ftslurm.config import setting_names

BIN = Path(sys.executable).parent


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: two runs under runs/, a script, a folder with a preset of the user's."""
    for name in ("ddp-1", "titan-2"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.yaml").touch()
    (tmp_path / "runs" / "no-run").mkdir()
    (tmp_path / "mine" / "job").mkdir(parents=True)
    (tmp_path / "mine" / "job" / "my_job.yaml").touch()
    (tmp_path / "my train.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def offered(*words: str) -> set[str]:
    *before, prefix = words
    first = before[0] if before else ""
    finder = completion.Finder(
        completion.parser(first),
        always_complete_options=False,
        default_completer=completion.complete,  # type: ignore[arg-type]
    )
    return set(finder._get_completions(["ftslurm", *before[first in VERBS :]], prefix, "'", None))


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (("",), {"run", "status", "resume", "completion", "job=", "cluster="}),
        (("st",), {"status", "stop", "stop.grace_s=", "standby=", "standby.count="}),
        (("groups.co",), {"groups.count="}),
        (("run", "cluster=a"), {"cluster=array", "cluster=auto"}),
        (("--config-dir", "mine", "job=m"), {"job=my_job"}),
        (("cluster.kind=",), {f"cluster.kind={kind}" for kind in ("auto", "local", "slurm", "array")}),
        (("follow=",), {"follow=true", "follow=false"}),
        (("job.script=my",), {"job.script=my train.py"}),
        (("status", ""), {"ddp-1", "titan-2"}),
        (("status", "--root", "mine", ""), set()),
        (("status", "--root", "ru"), {"runs/"}),
        (("logs", "--group", ""), set()),
        (("logs", "--fol"), {"--follow"}),
        (("resume", "ddp-1", "job.args"), {"job.args="}),
        (("run", "job=ddp", "--multirun", "job.args"), {"job.args="}),
        (("run", "--cfg", ""), {"job"}),
        (("prune", "r"), {"runs/"}),
        (("inject", "ddp-1", "k"), {"kill"}),
        (("inject", "k"), {"kill"}),
        (("completion", ""), {"bash", "zsh", "fish"}),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_word_may_become(words: tuple[str, ...], some: set[str]) -> None:
    found = offered(*words)
    assert found >= some
    assert len(found) == len(some) or words[0] in ("", "st")


def test_every_setting_is_offered() -> None:
    assert {word.removesuffix("=") for word in completion.settings("x", None)} >= set(setting_names.every_key())


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_a_verb_is_offered(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser_of(VERBS[verb]).parse_args(["--help"])
    shown = set(re.findall(r"(?<![\w-])--[\w-]+", capsys.readouterr().out.partition("\n\n")[0]))
    assert offered(verb, "--") >= shown


@pytest.mark.usefixtures("folder")
def test_a_tab_in_a_real_bash_completes_the_word() -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], os.environ | {"PS1": "READY>", "TERM": "dumb"})

    shown = ""

    def until(text: str) -> None:
        nonlocal shown
        deadline = time.monotonic() + 60
        while text not in shown:
            assert time.monotonic() < deadline, shown
            if select.select([terminal], [], [], 0.2)[0]:
                shown += os.read(terminal, 4096).decode(errors="replace").replace("\r", "")
        shown = shown.partition(text)[2]

    try:
        until("READY>")
        os.write(terminal, b'eval "$(ftslurm completion bash)"; echo set"up"\n')
        until("\nsetup")
        os.write(terminal, b"echo ftslurm status tit\x15ftslurm status tit\t")
        until("ftslurm status titan-2 ")
        os.write(terminal, b"\x15ftslurm run cluster.kin\t")
        until("cluster.kind=")
        os.write(terminal, b"ar\t")
        until("array ")
        os.write(terminal, b"job=torcht\tgroups.cou\t")
        until("job=torchtitan groups.count=")
        os.write(terminal, b"\x15exit\n")
    finally:
        os.close(terminal)
        os.waitpid(child, 0)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_code_for_other_shells_is_theirs(shell: str, folder: Path) -> None:
    code = subprocess.run(["ftslurm", "completion", shell], capture_output=True, text=True, check=True).stdout
    assert "ftslurm" in code
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    if shell == "fish":
        words = subprocess.run(
            ["fish", "-c", f"{code}\ncomplete -C 'ftslurm status tit'"], capture_output=True, text=True, timeout=60
        )
        assert "titan-2" in words.stdout
    else:
        ready = f"autoload -U compinit; compinit -u -d {folder}/dump\n{code}\necho $_comps[ftslurm]"
        done = subprocess.run(["zsh", "-f", "-c", ready], capture_output=True, text=True, timeout=60)
        assert "argcomplete" in done.stdout, done.stderr


def test_a_tab_imports_neither_torch_nor_hydra_nor_a_verb() -> None:
    code = (
        "import sys, ftslurm.cli.main; from ftslurm.cli import completion\n"
        "def tab(first='', *words):\n"
        "    finder = completion.Finder(completion.parser(first), default_completer=completion.complete)\n"
        "    finder._get_completions(['ftslurm', *words], '', '', None)\n"
        "for words in (['status'], ['inject'], ['logs', '--group']): tab(*words)\n"
        "assert 'ftslurm.config.schema' not in sys.modules\n"
        "for words in (['run'], []): tab(*words)\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    heavy = {"torch", "hydra", "omegaconf", "rich", "ftslurm.api.run"}
    assert not heavy & set(done.stdout.split())
