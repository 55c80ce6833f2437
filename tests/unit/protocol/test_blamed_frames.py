"""The place that an exception names: the innermost call of the user's code, whatever library lies below or above it."""

from __future__ import annotations

import json
import traceback
from types import CodeType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftslurm.core.groups.verdict import describe
from ftslurm.core.state.model import Exit
from ftslurm.protocol.causes import Cause
from ftslurm.protocol.traces import added, blamed, frames, told

Call = tuple[str, str, int]  # the file, the function and the line
OURS = "/opt/env/lib/python3.11/site-packages/ftslurm/worker/script.py"
EDITABLE = "/home/me/src/ftslurm/ftslurm/guard/attach.py"
LIBRARIES = ("/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py", "/usr/lib/python3/dist-packages/x.py")
FILES = st.sampled_from(["/home/me/train.py", "/home/me/ftslurm/train.py", "/scratch/my code/a-b.py", "model/net.py"])
NAMES = st.from_regex(r"[a-z_]{1,9}", fullmatch=True).filter(lambda name: name.isidentifier() and name not in KEYWORDS)
KEYWORDS = {"if", "in", "is", "or", "as", "def", "del", "for", "not", "try", "and", "pass", "from", "with", "else"} | {
    *("elif", "raise", "while", "class", "break", "async", "await", "yield", "lambda", "global", "assert", "import"),
    *("return", "except", "finally", "inner", "match", "case", "type", "print"),
}


def call(file: str, function: str, line: int, last: bool) -> CodeType:
    body = "raise error" if last else "inner()"
    return compile("\n" * (line - 2) + f"def {function}():\n  {body}\n{function}()", file, "exec")


def raised(calls: list[Call], error: Exception) -> str:
    """Return the traceback of an exception that these calls lead to, each the file, the function and the line."""

    def run(n: int) -> None:
        file, function, line = calls[n]
        exec(call(file, function, line, n == len(calls) - 1), {"inner": lambda: run(n + 1), "error": error})

    try:
        run(0)
    except type(error) as caught:
        told = traceback.TracebackException.from_exception(caught)
        told.stack = traceback.StackSummary.from_list([one for one in told.stack if one.filename != __file__])
        return "".join(told.format())
    raise AssertionError


LINES = st.integers(2, 400)
CALLS = st.lists(st.tuples(FILES, NAMES, LINES), min_size=1, max_size=4)
OTHERS = st.lists(st.tuples(st.sampled_from([*LIBRARIES, OURS, EDITABLE]), NAMES, LINES), max_size=3)


@settings(max_examples=40, deadline=None)
@given(OTHERS, CALLS, OTHERS, st.sampled_from([lambda: ValueError("x"), lambda: OSError(28, "No\nspace"), KeyError]))
def test_the_innermost_call_of_the_user_is_named(
    above: list[Call],
    calls: list[Call],
    below: list[Call],
    error: Exception,
) -> None:
    trace = raised([*above, *calls, *below], error())
    frame, (file, function, line) = blamed(trace), calls[-1]
    assert frame is not None
    assert (frame.file, frame.line, frame.function) == (file, line, function)
    exit_ = Exit(0, 1.0, Cause.USER_ERROR, ("n1",), code=1, node="n1", rank=3, error="E: x", traceback=trace)
    assert describe(exit_) == f"the script failed on n1, rank 3: {file.rpartition('/')[2]}:{line} in {function}: E: x"


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.integers(0, 5), st.tuples(FILES, NAMES, LINES), min_size=2, max_size=4), st.data())
def test_of_several_ranks_only_the_one_that_failed_is_blamed(calls: dict[int, Call], data: st.DataObject) -> None:
    traces: tuple[tuple[int, str], ...] = ()
    for rank, one in calls.items():
        traces = added(traces, rank, raised([one], ValueError(f"of {rank}")))
    deciding = data.draw(st.sampled_from([*calls, 9]))
    frame = blamed(told(traces, deciding) or "")
    assert (frame and (frame.file, frame.function, frame.line)) == (
        None if deciding == 9 else (calls[deciding][0], calls[deciding][1], calls[deciding][2])
    )


@pytest.mark.parametrize("others", [(), (*LIBRARIES, OURS)])
def test_without_a_call_of_the_user_nobody_is_blamed(others: tuple[str, ...]) -> None:
    trace = raised([(file, "f", 3) for file in others], ValueError("x")) if others else "ValueError: x"
    assert blamed(trace) is None


def test_a_syntax_error_names_its_line_and_json_the_call_that_gave_it_nonsense() -> None:
    try:
        compile("x = (", "/home/me/conf.py", "exec")
    except SyntaxError as error:
        frame = blamed("".join(traceback.format_exception_only(error)))
    assert str(frame) == "conf.py:1"
    try:
        json.loads("{")
    except ValueError as error:
        trace = "".join(traceback.format_exception(error))
    assert [frame.file.rpartition("/")[2] for frame in frames(trace) if frame.users] == ["test_blamed_frames.py"]


@given(st.text(max_size=300))
def test_any_text_may_stand_in_a_journal(text: str) -> None:
    blamed(text)
