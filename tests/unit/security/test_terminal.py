"""Control characters in a log, a journal or a name never reach the reader's terminal."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import example_journal as ex
import pytest

from ftslurm.cli.main import main
from ftslurm.run.directory import RunDir
from ftslurm.security.terminal import log_text, readable, visible

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\u2066\x7f\x00\rover\nfake\ud800"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\u2066\x7f\x00\rover\nfake\ud800"
HARMFUL = {*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)} - {9, 10}


def test_control_characters_are_written_out_and_other_text_is_as_it_was() -> None:
    assert visible(EVIL) == SHOWN
    assert visible("a\nb", lines=True) == "a\nb"
    assert visible("größer\t日本 𝛼 שלום") == "größer\t日本 𝛼 שלום"
    assert {n for n in range(0xD800) if visible(chr(n), lines=True) != chr(n)} == HARMFUL


def test_of_an_event_every_text_is_harmless_and_only_a_traceback_has_lines() -> None:
    event = {"event": "x", "reason": EVIL, "nodes": [EVIL, 1], "phases": {EVIL: None}, "traceback": "a\nb\x1b"}
    assert readable(event) == {
        "event": "x",
        "reason": SHOWN,
        "nodes": [SHOWN, 1],
        "phases": {SHOWN: None},
        "traceback": "a\nb\\x1b",
    }


RAW = "a\tb\r\n10%\r20%\r\r\nред \x1b[1;31mred\x1b[0m \x1b[2J\x1b]8;;x\x07\u202e \x9b \x1b[3".encode() + b"\xff\x9b\xd1"
HARMLESS = "a\tb\n10%%\n20%%\nред %sred%s \\x1b[2J\\x1b]8;;x\\x07\\u202e \\x9b \\x1b[3\\xff\\x9b\\xd1"


def test_a_log_is_harmless() -> None:
    assert log_text(RAW, colours=True).decode() == HARMLESS % ("\x1b[1;31m", "\x1b[0m")
    assert log_text(RAW).decode() == HARMLESS % (r"\x1b[1;31m", r"\x1b[0m")


def hostile(folder: Path) -> RunDir:
    """A run directory that another user has made."""
    lines = [
        {**ex.started(), "run_id": EVIL, "name": EVIL, "job_id": EVIL},
        *ex.lighthouse(0.2),
        *(ex.launched(0.7, g, node=EVIL) for g in range(3)),
        ex.event(1, "warning", text=f"{EVIL}[link=http://x]y[/link]"),
        ex.event(1, "node_excluded", node=EVIL, reason=EVIL),
        ex.event(1, "fault_injected", kind=EVIL, group=1, node=EVIL),
        ex.event(1, EVIL, text=EVIL),
        ex.exited(2, 0, cause=EVIL, error=EVIL, log=EVIL, evidence=[EVIL], traceback=f"Traceback\n{EVIL}", node=EVIL),
        ex.event(3, "group_given_up", group=0, reason=EVIL),
        {**ex.finished(4, "failed"), "reason": EVIL},
    ]
    run = ex.new_run(folder, lines)
    run.config.write_text("cluster: {kind: local}\njob: {script: x.py}\n")
    path = run.rank_log("group-0000", 0, 0)
    path.parent.mkdir(parents=True)
    path.write_bytes(RAW)
    return run


def ftslurm(*words: str | Path) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run([sys.executable, "-m", "ftslurm", *map(str, words)], capture_output=True, timeout=60)
    assert b"Traceback (most recent call last)" not in done.stderr, done.stderr
    return done


def assert_harmless(text: str) -> None:
    assert not {c for c in text if ord(c) in HARMFUL}, repr(text)
    assert not [line for line in text.splitlines() if line.startswith("fake")], text


def test_another_users_run_can_be_looked_at(tmp_path: Path) -> None:
    run = hostile(tmp_path)
    status = ftslurm("status", run.root)
    assert status.returncode == 0
    assert_harmless(status.stdout.decode())
    assert r"\x1b]0;owned\x07" in status.stdout.decode()
    assert "[link=http://x]" in status.stdout.decode()
    logs = ftslurm("logs", run.root)
    assert (logs.returncode, logs.stdout.decode()) == (0, HARMLESS % (r"\x1b[1;31m", r"\x1b[0m") + "\n")


def on_a_terminal(*words: str | Path) -> str:
    """Return the output of ftslurm on a terminal."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "ftslurm", *map(str, words)]
    sent = bytearray()
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm"}):
        os.close(theirs)
        with contextlib.suppress(OSError):  # the terminal has no writer any more
            while data := os.read(ours, 65536):
                sent += data
    os.close(ours)
    return sent.decode()


def test_on_a_terminal_only_ours_and_the_colours_of_a_log_are_sent(tmp_path: Path) -> None:
    run = hostile(tmp_path)
    shown = on_a_terminal("status", run.root)
    assert "\x1b[" in shown  # the live table's own
    assert r"\x1b]0;owned\x07" in shown
    assert_harmless(re.sub("\x1b\\[[0-9;?]*[A-Za-z]|\r", "", shown))
    assert "\x1b[2J" not in shown
    logs = on_a_terminal("logs", run.root).replace("\r\n", "\n")
    assert logs == HARMLESS % ("\x1b[1;31m", "\x1b[0m") + "\n"


def test_json_has_what_was_written_in_escapes_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(hostile(tmp_path).root), "--json"]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert_harmless(out)
    assert json.loads(out)["reason"] == EVIL


def test_errors_that_quote_a_file_or_a_name_are_harmless(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = hostile(tmp_path)
    run.config.write_text('"\\e]0;owned\\a": 1\n')
    for words in (["status", str(run.root)], ["status", "no\x1b]0;owned\x07such"], ["no\x1b[2Jverb"]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert_harmless(said)
        assert r"\x1b" in said
