"""Arbitrary output of srun, squeue, sinfo, a probe or a pilot is read, or refused as documented, quickly."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from fuzz import DEEP, NUMBERS, TEXTS, VALUES, spoilt, tried
from hypothesis import given
from hypothesis import strategies as st
from slurm_answers import read, read_node_fates, read_queue

from ftslurm.config.schema import Config
from ftslurm.controller.translate import read_attach
from ftslurm.core.state.actions import AskJobs, RequestJobs
from ftslurm.core.state.events import JobLeaving, JobsSeen, Submitted
from ftslurm.launchers.srun import Slurm
from ftslurm.protocol.causes import Cause
from ftslurm.run.directory import RunDir
from ftslurm.security.names import is_node
from ftslurm.slurm.evidence import (
    asked_by_slurm,
    job_ends,
    read_probe,
    read_srun,
)
from ftslurm.slurm.hosts import expand_hosts
from ftslurm.slurm.parse import read_gpus, read_partitions, read_state

HOSTS = st.one_of(
    st.text("n1-9[],", max_size=14),
    st.sampled_from(
        ["n[1-", "n[9-1]", "n[1-99999999999]", "n[[1-2]]", "n]1[", "n[]", "n[1-9]" * 5, "n[0-9999]x[0-9999]"]
    ),
    st.builds(lambda a, b: f"n[{a}-{b}]", NUMBERS, NUMBERS),
    st.sampled_from(["a" * 4000 + "[1-9999]", ",".join(["n[0-65000]"] * 50), "n[" + "0" * 4000 + "1-65000]"]),
)
LINES = st.one_of(
    st.builds("srun: error: Node failure on {}".format, HOSTS),
    st.builds("srun: error: {}: task {}: Exited with exit code {}".format, HOSTS, NUMBERS, NUMBERS),
    st.builds("srun: error: n1: task 0: {}".format, TEXTS),
    st.builds("srun: error: Task launch for 7.0 failed on node {}: {}".format, HOSTS, TEXTS),
    st.builds("*** STEP {} ON n1 CANCELLED AT x DUE TO {} ***".format, TEXTS, TEXTS),
    st.sampled_from(["srun: error: n1: task 0: Exited with exit code " + "9" * 5000]),
    TEXTS,
)
ROW = [
    "90_0",
    "91",
    "RUNNING",
    "None",
    "n1",
    "2026-01-01T00:00:00",
    "2026-01-02T00:00:00",
    "N/A",
    "90",
    "ftslurm:a-1:0",
]
ROWS = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.one_of(HOSTS, TEXTS, st.just("0001-01-01T00:00:00"))), max_size=2).map(
        lambda changed: "|".join({**dict(enumerate(ROW)), **dict(changed)}[n] for n in range(10)) + "|"
    ),
    max_size=3,
).map("\n".join)


@tried(400)
@given(text=HOSTS)
def test_a_host_list_is_read_or_refused_and_never_without_bound(text: str) -> None:
    began = time.monotonic()
    try:
        hosts = expand_hosts(text)
    except ValueError:
        hosts = []
    assert sum(map(len, hosts)) < 1 << 25
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("text", ["n[1-", "n[9-1]", "n[[1-2]]", "n]1[", "n[]", "n[1-2-3]", "n[a]", "n 1", "n[1-2],m["])
def test_broken_brackets_are_no_host_list(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        expand_hosts(text)


@tried(500)
@given(line=LINES)
def test_a_line_of_sruns_is_evidence_or_none(line: str) -> None:
    evidence = read_srun(line)
    job_ends(line, "7")
    if evidence is not None:
        assert evidence.node is None or is_node(evidence.node)
        assert evidence.code is None or 0 <= evidence.code <= 999
        assert read_attach(evidence) is None or isinstance(str(evidence), str)


@tried(200)
@given(words=st.lists(st.one_of(TEXTS, NUMBERS.map(str), st.just("9" * 5000)), max_size=3))
def test_what_squeue_says_of_the_jobs_end_is_understood_or_not(words: list[str]) -> None:
    assert all(asked.cause in Cause for asked in asked_by_slurm(read_state("|".join(words)), Config()))


@tried(200)
@given(
    text=st.one_of(spoilt({"steps": {"group-0000/1": "ST"}}).map(json.dumps), TEXTS, st.just(DEEP), st.just("{" + DEEP))
)
def test_what_a_probe_brings_back_is_a_look_or_a_refusal(text: str) -> None:
    looked = read_probe("n1", text)
    assert not (looked.refused and looked.reachable)
    assert all(type(word) is str for pair in looked.steps or () for word in pair)


@tried(300)
@given(text=ROWS)
def test_what_squeue_prints_is_read_or_refused(text: str) -> None:
    jobs, _ = read_queue(text, "ftslurm:a-1")
    assert all(is_node(node) for job in jobs for node in job.nodes)


@tried(200)
@given(cells=st.lists(st.one_of(TEXTS, NUMBERS.map(str)), min_size=5, max_size=5))
def test_what_sinfo_prints_is_read_or_passed_over(cells: list[str]) -> None:
    for row in read_partitions("|".join(cells)):
        assert row.gpus >= 0
    assert read_gpus(f"gpu:a:2,gpu:{cells[0]},{cells[1]}") >= 2


RECORD = st.one_of(
    TEXTS,
    *(st.just(f"{word} ") for word in ("NodeName=n1", "State=MIXED+DRAIN", "BootTime=x", "Reason=x", "[a", "@b]")),
)


@given(words=st.lists(RECORD, max_size=8), times=st.sampled_from([1, 3000]))
def test_what_scontrol_says_of_nodes_is_read_or_passed_over(words: list[str], times: int) -> None:
    began = time.monotonic()
    fates = read_node_fates("NodeName=n2 State=IDLE " + "".join(words)[:12] * times + "\nNodeName=n3 State=DOWN*\n")
    assert all(is_node(fate.node) and fate.why for fate in fates)
    assert fates[-1].down
    assert time.monotonic() < began + 2


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    run = RunDir(tmp_path / "run")
    run.create()
    return Slurm(Config(), run)


def test_an_answer_of_squeues_that_makes_no_sense_is_none(slurm: Slurm) -> None:
    row = "|".join([*ROW[:4], "n[1-", *ROW[5:9], f"{slurm.mark}:0"])
    (seen,) = read(AskJobs(), row, slurm=slurm)
    assert isinstance(seen, JobsSeen)
    assert not seen.jobs
    assert not seen.whole
    (event,) = read(AskJobs(), row.replace("n[1-", "n[1-2]"), slurm=slurm)
    assert isinstance(event, JobsSeen)


@pytest.mark.parametrize("text", ["7", "[7]", '{"a":1}', "[" * 5000, '["--me"]', "null", ""])
def test_what_sbatch_did_not_print_is_no_job(slurm: Slurm, text: str) -> None:
    (event,) = read(RequestJobs(0, 1), text, slurm=slurm)
    assert isinstance(event, Submitted)
    assert event.names == ()


def test_what_lies_in_the_inbox_is_a_command_or_none(slurm: Slurm) -> None:
    known = {"name": "90_0", "nodes": "n1", "job": "91", "ends": 1.0, "signal": "SIGTERM", "by": 1000}

    @tried(300)
    @given(what=st.just("leaving"), command=spoilt(known, st.one_of(VALUES, HOSTS)))
    def commanded(what: str, command: dict[str, Any]) -> None:
        slurm.pools, told = {"90_0": 0}, {**command, "what": what}
        assert all(isinstance(event, JobLeaving) for event in slurm.reported(told))

    commanded()
