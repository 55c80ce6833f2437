"""The lines of cluster.setup in bash: each runs as in a script, and one that ends it says so in the last line."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from fuzz import tried
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.errors import ConfigError
from ftslurm.submission import setup_lines

PYTHON = "exec /bin/sh -c 'echo PYTHON; env' || exit"


def run(*setup: str, last: str = PYTHON, profile: str = "") -> tuple[int, list[str]]:
    """Run these lines, then `last`. Return the exit code and the lines of the output."""
    text = "\n".join([*setup_lines.script(setup), last])
    done = subprocess.run(
        [setup_lines.SHELL, "-c", text],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PROFILE": profile, "PATH": "/usr/bin:/bin"},
    )
    return done.returncode, done.stdout.splitlines()


PASS: list[tuple[tuple[str, ...], str]] = [
    (("export T=1  # which nccl",), "T=1"),
    (("# a comment", "", "export T=2"), "T=2"),
    (("export T=a\\", "b"), "T=ab"),
    (("export T='it''s' \\",), "T=its"),
    (("if true; then", "  export T=3", "fi"), "T=3"),
    (("f() {", "  return 4", "}", "f || export T=$?"), "T=4"),
    (("read T <<EOF", "two words", "EOF", "export T"), "T=two words"),
    (
        (
            "export T='one",
            "two'",
        ),
        "T=one",
    ),
    (("set -u; set -C; IFS=,", "export T=5"), "T=5"),
    (("set -e", "source $PROFILE", "export T=6"), "T=6"),
    (('. "$PROFILE" # as everybody does', "export T=7"), "T=7"),
    (("module() { echo warning >&2; return 1; }", "module load x || true", "export T=8"), "T=8"),
    (("trap 'echo mine' EXIT", "export T=9"), "T=9"),
]


@pytest.mark.parametrize(("setup", "shown"), PASS, ids=str)
def test_the_lines_are_those_of_a_script(setup: tuple[str, ...], shown: str, tmp_path: Path) -> None:
    profile = tmp_path / "bashrc"
    profile.write_text('grep -q x /dev/null\nexport PS9=$UNSET\n[ -n "$PS1" ] && echo interactive\n')
    if "set -u" in setup[0]:
        profile.write_text("true\n")
    code, lines = run(*setup, profile=str(profile))
    assert code == 0, lines
    assert shown in lines[lines.index("PYTHON") :], lines


FAIL: list[tuple[tuple[str, ...], int, int]] = [  # the lines, the number of the one that ends it, the exit code
    (("true", "false"), 2, 1),
    (("exit 3",), 1, 3),
    (("true", "", "exit 0"), 3, 0),
    (("return 3",), 1, 2),
    (("nosuchprogram",), 1, 127),
    (("source /nonexistent/profile",), 1, 1),
    (("set -u", "echo $UNSET"), 2, 127),
    (("set -e", "f() { false; true; }", "f; false"), 3, 1),
    (("if true; then", "false", "fi"), 1, 1),
    (("trap 'echo mine' EXIT", "(exit 9)"), 2, 9),
    (("module() { echo ERROR: no such module >&2; return 1; }", "module load x"), 2, 1),
]


@pytest.mark.parametrize(("setup", "line", "code"), FAIL, ids=str)
def test_a_line_that_fails_ends_the_job_and_is_named_with_its_exit_code(
    setup: tuple[str, ...], line: int, code: int
) -> None:
    ended, lines = run(*setup)
    assert "PYTHON" not in lines
    assert lines[-1] == f"ftslurm: exit code {code}: cluster.setup, line {line}: {setup[line - 1]}"
    assert ended == code


def test_a_python_that_is_not_there_is_named() -> None:
    for setup in ((), ("true",)):
        code, lines = run(*setup, last="exec /nonexistent/python -u || exit")
        assert (code, lines[-1]) == (127, "ftslurm: exit code 127: the start of Python")
        assert "/nonexistent/python" in lines[-2]


@pytest.mark.parametrize("setup", [("fi",), ("true", "echo 'x"), ("cat <<EOF", "x"), ("for i in 1; do",), ("f() {",)])
def test_what_bash_does_not_understand_is_refused_with_its_words(setup: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=f"cluster.setup, line {1 + (setup[0] == 'true')}: .*: bash: "):
        list(setup_lines.commands(setup))


PIECES = st.sampled_from([
    *("true", "false", "# why", "", "export A=1", "if true; then", "fi", "f() {", "}", "f", "echo 'a", "b'", "x \\"),
    *("cat <<E", "E", "exit 4", "return", "set -e", "set -u", "set +e", "echo $NOT_SET", "kill -9 $$", "exec 2>&1"),
    *("source /etc/profile", "trap - EXIT", "shopt -u execfail", "unset A", "a=(1 2", ")", "[ -n x ] && true", '"'),
])  # fmt: skip
OURS = re.compile(r"ftslurm: (exit code [0-9]+: )?(cluster\.setup, line [0-9]+: |the start of Python)")


@tried(60)
@given(st.lists(PIECES, max_size=6))
def test_whatever_the_lines_are_the_shell_ends_in_python_or_with_a_word_about_why(setup: list[str]) -> None:
    try:
        list(setup_lines.commands(setup))
    except ConfigError:
        return
    _, lines = run(*setup)
    assert "PYTHON" in lines or [line for line in lines[-2:] if OURS.match(line)], (setup, lines)
