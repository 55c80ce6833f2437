"""The line that is quoted from a log, of logs that end as real ones do."""

from __future__ import annotations

import os
import time
import traceback
from pathlib import Path

import pytest

from ftslurm.run.last_words import LONGEST, choose, first_line, of_log, telling_end

FRAMES = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n    ^^^^^^\n'
UNDESTROYED = (
    "[rank0]:[W1123 09:12:26.07 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called "
    "before program exit\n"
)
LEAKED = (
    "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 "
    "leaked semaphore objects to clean up at shutdown\n  warnings.warn('resource_tracker: %d error: '\n"
)
ENDINGS = {
    "key error": (f"step 3\n{FRAMES}KeyError: 'lr'\n", "KeyError: 'lr'"),
    "assertion without a text": (f"{FRAMES}AssertionError\n", "AssertionError"),
    "assertion": (f"{FRAMES}AssertionError: loss is nan\n", "AssertionError: loss is nan"),
    "class of the script": (f"{FRAMES}NoDataLeft: shard 7\n", "NoDataLeft: shard 7"),
    "chained": (
        f"{FRAMES}KeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\n"
        f"{FRAMES}ValueError: no a\n",
        "ValueError: no a",
    ),
    "GPU out of memory": (
        f"{FRAMES}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity "
        "of 79.15 GiB of which 1.56 GiB is free. Process 4 has 77.58 GiB memory in use.\n",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 "
        "GiB of wh...",
    ),
    "CUDA error": (
        f"{FRAMES}RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously "
        "reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing "
        "CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
        "RuntimeError: CUDA error: device-side assert triggered",
    ),
    "NCCL time-out": (
        "[rank1]:[E1123 09:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  [PG ID 0 Rank 1] Process group watchdog thread terminated with exception: time-out\n"
        "Exception raised from checkTimeout at ProcessGroupNCCL.cpp:632 (most recent call first):\n"
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f in libc10.so)\n"
        "frame #1: <unknown function> + 0x94ac3 (0x7f in libc.so.6)\n",
        "what():  [PG ID 0 Rank 1] Process group watchdog thread terminated with exception: time-out",
    ),
    "torch's prefix": ("".join(f"[rank0]: {line}\n" for line in f"{FRAMES}OSError: no".splitlines()), "OSError: no"),
    "a warning after the traceback": (f"{FRAMES}KeyError: 'lr'\n{UNDESTROYED}{LEAKED}", "KeyError: 'lr'"),
    "talk after the traceback": (f"{FRAMES}KeyError: 'lr'\nwandb: find logs at: ./wandb\n", "KeyError: 'lr'"),
    "sys.exit with a text": ("step 7\nno data in /data\n", ""),
    "a warning after a text": (f"no data in /data\n{LEAKED}", ""),
    "a warning alone": (LEAKED, ""),
    "a logged error": ("ERROR:root:loss is nan\nsaving\nbye\n", "ERROR:root:loss is nan"),
    "a value that Hydra cannot override": (
        "Could not override 'modle.dim'.\nTo append to your config use +modle.dim=1\nKey 'modle' is not in struct\n"
        "    full_key: modle\n    object_type=dict\n\n"
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n",
        "",
    ),
    "what a script says of a variable": ("set up\nuse of DATA_DIR is over\n", ""),
    "no error": ("no error found\n0 errors\nstep 9 loss 0.1\n", ""),
    "an error that names a warning": (
        "UserWarning: bad\nRuntimeError: warnings are errors\n",
        "RuntimeError: warnings are errors",
    ),
    "exception group": (
        '  + Exception Group Traceback (most recent call last):\n  |   File "a.py", line 1, in <module>\n'
        "  | ExceptionGroup: two (2 sub-exceptions)\n  +-+---------------- 1 ----------------\n"
        "    | ValueError: one\n    +------------------------------------\n",
        "ValueError: one",
    ),
    "crash": (
        "Fatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n  File x\n",
        "Fatal Python error: Segmentation fault",
    ),
    "crash in a call of the script": (
        'Fatal Python error: Bus error\n\nThread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n\n'
        'Current thread 0x2 (most recent call first):\n  File "/usr/lib/python3.11/ctypes.py", line 519 in string_at\n'
        '  File "/home/me/train.py", line 9 in load\n  File "/home/me/train.py", line 20 in <module>\n\n'
        "Extension modules: torch._C, numpy.error (total: 2)\n",
        "Fatal Python error: Bus error, in train.py:9 in load",
    ),
    "a child that aborted long ago": (
        "step 2\nFatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File x\n"
        "it goes on\nERROR: no data\n",
        "ERROR: no data",
    ),
    "aborted": (
        "ERROR: a retry, long ago\nfree(): invalid pointer\nterminate called after throwing\n  what():  no device\n"
        "Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File x\n",
        "what():  no device",
    ),
    "aborted by the C library": (
        "step 7\nfree(): invalid pointer\nFatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n"
        "  File x\n",
        "free(): invalid pointer",
    ),
    "progress bar": ("no ErrorLog here\n 10%\r 20%\r", ""),
    "nothing": ("\n\n", ""),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_line_that_says_why_is_quoted(ending: str) -> None:
    log, line = ENDINGS[ending]
    assert choose(log) == line
    assert len(line) <= LONGEST


PROGRESS = (
    "step {} | loss 0.277",
    "{}%",
    "epoch {}/9 saved",
    "loading shard-{}.bin",
    "no data in /data/{}",
    "{}",
    "bye {}",
)


@pytest.mark.parametrize("line", PROGRESS)
def test_progress_is_never_quoted_as_the_reason(line: str) -> None:
    shown = "".join(f"{line.format(number)}\n" for number in range(40))
    assert choose(shown) == ""
    assert choose(f"ERROR: no data\n{shown}") == "ERROR: no data"


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (b"Traceback ...\n  File x\nValueError: boom\nwill wait for others\n", "ValueError: boom"),
        (b"ERROR \x1b]0;mine\x07evil\n", "ERROR \\x1b]0;mine\\x07evil"),
        (b"ERROR \xff\xfe\n", "ERROR \ufffd\ufffd"),
        (b"ERROR " + b"x" * 500, "ERROR " + "x" * (LONGEST - 9) + "..."),
        (b"ERROR " + b"\x1b" * 500, ("ERROR " + "\\x1b" * LONGEST)[:LONGEST]),
        (b"RuntimeError: too long ago\n" + b"more\n" * 10_000, ""),
    ],
)
def test_only_the_end_of_a_log_is_read_and_nothing_in_it_steers_a_terminal(
    log: bytes, line: str, tmp_path: Path
) -> None:
    (tmp_path / "log").write_bytes(log)
    assert of_log(tmp_path / "log") == line


@pytest.mark.parametrize("error", ["Segmentation fault", "Aborted"])
def test_what_was_said_before_many_stacks_is_found(error: str, tmp_path: Path) -> None:
    frames = '  File "/opt/lib/python3.11/site-packages/torch/nn/modules/module.py", line 17 in _call_impl\n' * 90
    stacks = (
        f"Thread 0x1 (most recent call first):\n{frames}\n" * 9
        + f"Current thread 0x2 (most recent call first):\n{frames}"
    )
    said = "what():  CUDA error: uncorrectable ECC error encountered"
    text = f"{said}\nFatal Python error: {error}\n\n{stacks}\nExtension modules: {'numpy.error, ' * 500} (total: 500)\n"
    (tmp_path / "log").write_text(text)
    assert of_log(tmp_path / "log") == (said if error == "Aborted" else f"Fatal Python error: {error}")
    assert said in telling_end(tmp_path / "log")


@pytest.mark.parametrize("line", ["|      " * 40 + "| 12 |", "a." * 8192, "| " * 8192 + "x"])
def test_a_long_line_is_read_at_once(line: str) -> None:
    before = time.process_time()
    choose(f"{line}\n")
    assert time.process_time() - before < 2.0


def test_what_is_no_log_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to("secret")
    (tmp_path / "folder").mkdir()
    assert [of_log(tmp_path / name) for name in ("pipe", "link", "folder", "none")] == [""] * 4


def syntax_error() -> Exception:
    try:
        compile("a = (\n", "train.py", "exec")
    except SyntaxError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("two\nlines"), "ValueError: two"),
        (ValueError("\ntwo\nlines"), "ValueError: two"),
        (ValueError(), "ValueError"),
        (syntax_error(), "SyntaxError: '(' was never closed"),
    ],
)
def test_of_an_exception_the_first_line_is_told(error: Exception, line: str) -> None:
    assert first_line("".join(traceback.format_exception_only(error))) == line
