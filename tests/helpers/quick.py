"""Command lines without the imports of each: they run in forks of one process that has what all of them need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from harness import Run

FORKS = """
import gc, json, os, pkgutil, signal, sys, tempfile, traceback
import hydra.main, hydra._internal.hydra, omegaconf, ftslurm.cli.main, ftslurm.submission.submit
from ftslurm.config import compose
for module in pkgutil.iter_modules(ftslurm.cli.__path__, "ftslurm.cli."):
    __import__(module.name)
compose.compose(["cluster=local", "job=ddp", "job.args={lr: 1, note: 'a b'}"])  # Hydra's parser learns as it reads

def run(words):
    try:
        return ftslurm.cli.main.main(words)
    except SystemExit as end:
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1

gc.freeze()
for line in sys.stdin:
    words, folder, env = json.loads(line)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        if (pid := os.fork()) == 0:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(env)
            for end, file in enumerate((open(os.devnull), out, err)):
                os.dup2(file.fileno(), end)
            signal.alarm(120)
            code = run(words)
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out.seek(0), err.seek(0)
        print(json.dumps([code, out.read(), err.read()]), flush=True)
"""


@cache
def _forks() -> subprocess.Popen[str]:
    """Start the process; it ends with this one, which holds its stdin."""
    command = [sys.executable, "-c", FORKS]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)


def ftslurm(*words: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command that starts nothing, as `python -m ftslurm WORDS` in this folder would."""
    forks = _forks()
    assert forks.stdin
    assert forks.stdout
    print(json.dumps([words, str(cwd), os.environ | {"COLUMNS": "200"} | environ]), file=forks.stdin, flush=True)
    return subprocess.CompletedProcess(words, *json.loads(forks.stdout.readline()))


def ask(run: Run, verb: str, *words: str) -> tuple[int, str]:
    """Run a verb on a run; return its exit code, and what it printed, errors last."""
    done = ftslurm(verb, str(run.dir), *words, cwd=run.root, **run.environ)
    return done.returncode, done.stdout + done.stderr
