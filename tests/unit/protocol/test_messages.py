"""The control channel: lines pass through srun unchanged, and invalid lines do no harm."""

from __future__ import annotations

import json
import random

import pytest

from ftslurm.protocol import messages
from ftslurm.protocol.messages import LONGEST, Lines, Rank, encode, encode_report, encode_trace, parse

TEXTS = {
    "ascii": "x" * 5000,
    "accents": "é" * 5000,
    "emoji": "\U0001f600" * 3000,  # twelve bytes each
    "quotes and backslashes": '"\\' * 3000,
    "newlines": "a\nb\r\n" * 1000,
    "control characters": "\0\x1b[31m" * 1000,
    "broken surrogates": "\udce9" * 3000,  # what os.fsdecode leaves of a bad file name
    "mixed": "ValueError: größer als \U0001f600\n" * 300,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_line_to_the_controller_is_never_longer_than_srun_keeps_whole(text: str) -> None:
    line = encode_report(messages.Failed(text, started=True), 3)
    assert len(line) <= LONGEST
    assert line.count(b"\n") == 1
    message = parse(line)
    assert message is not None
    assert message["error"]
    assert text.endswith(message["error"])  # the end of a text is the most useful part


@pytest.mark.parametrize("length", [*range(860, 960, 7), 10_000, 100_000])
def test_as_much_of_the_text_is_kept_as_fits(length: int) -> None:
    line = encode_report(messages.Failed("x" * length, started=True), 3)
    assert min(length, 880) <= len(line) <= LONGEST


def test_a_short_line_is_not_touched() -> None:
    line = encode_report(messages.Failed("ValueError: größer", started=True), 1)
    assert messages.Report.decode(parse(line)) == messages.Failed("ValueError: größer", True, task=1)


ASSIGN = messages.Assign(
    group=3,
    attempt=1,
    lighthouse="http://n1:1",
    script=None,
    module="größer",
    args=("--note", "größer\n\U0001f600", "", "x" * 100_000),
    ranks=(Rank(0, "n1", 0, 0), Rank(1, "n2", 0, 1)),
    run_id="x",
    groups=4,
    max_restarts=3,
    role=messages.Role("worker", 1, 3),
)


@pytest.mark.parametrize(
    "order",
    [ASSIGN, messages.Begin("n1", 29500, heals=True), messages.Evict(0, 1, None), messages.Ping(7), messages.Kill()],
    ids=lambda order: order.kind,
)
def test_what_is_encoded_is_decoded(order: messages.Order) -> None:
    line = encode(order)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert messages.Order.decode(parse(line)) == messages.Order.decode(parse(line.rstrip())) == order


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"Downloading: 100%|####| 12/12",
        b"[rank0]: Traceback (most recent call last):",
        b'{"type":"ready","task":',  # torn
        b'{"task":0}',
        b'{"type":7}',
        b'{"type":null}',
        b'["type"]',
        b'"type"',
        b"7",
        b"null",
        b"NaN",
        b"\xff\xfe\x00{",
        b"\0" * 100,
        b'{"type":"a"}{"type":"b"}',  # two lines that were mixed
        b"[" * 100_000,
        b'{"type":' * 100_000,
        b"9" * 100_000,
    ],
    ids=lambda line: repr(line[:20]),
)
def test_garbage_is_no_message(line: bytes) -> None:
    assert parse(line) is None


def test_a_message_may_have_fields_of_a_later_version() -> None:
    line = b'{"type":"ready","task":0,"new":[1]}'
    assert messages.Report.decode(parse(line)) == messages.Ready(task=0)


def test_lines_come_out_whole_however_the_bytes_come_in() -> None:
    sent = [json.dumps({"type": "x", "n": n, "text": "é" * (n % 7)}).encode() for n in range(50)]
    data, dice = b"".join(line + b"\n" for line in sent), random.Random(1)
    for _ in range(20):
        lines, got, rest = Lines(), [], data
        while rest:
            size = dice.choice([1, 2, 10, 1000])
            got += lines.feed(rest[:size])
            rest = rest[size:]
        assert got == sent


def test_half_a_line_waits_for_the_other_half() -> None:
    lines = Lines()
    assert lines.feed(b"one\ntw") == [b"one"]
    assert lines.feed(b"") == []
    assert lines.feed(b"o\n\n") == [b"two", b""]


@pytest.mark.parametrize(
    "text", ["", "x", "line\n" * 700, "größer\n" * 400, "\U0001f600" * 500, '"\\' * 900, "\x1b" * 999]
)
def test_a_long_text_travels_in_pieces_that_fit(text: str) -> None:
    pieces = encode_trace(text, 1234)
    assert all(len(piece) <= LONGEST for piece in pieces)
    assert "".join(json.loads(piece)["text"] for piece in pieces) == text
    assert len(pieces) <= len(json.dumps(text)) // (LONGEST // 4) + 1
    assert {json.loads(piece)["task"] for piece in pieces} <= {1234}
