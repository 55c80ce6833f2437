"""What three versions of Slurm print is read, also when a site prints more around it; what is damaged or new is
unknown, and nothing follows from it. tests/helpers/record_slurm.py has recorded tests/data/slurm.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz import tried
from hypothesis import given
from hypothesis import strategies as st
from slurm_answers import read, read_node_fates, read_queue

from ftslurm.checks.slurm_verdicts import read_records, read_settings
from ftslurm.config.schema import Config
from ftslurm.core.state.actions import AskJobs
from ftslurm.core.state.events import JobsSeen
from ftslurm.launchers.scheduler import AskOwnNodes
from ftslurm.launchers.srun import Slurm
from ftslurm.run import facts
from ftslurm.run.directory import RunDir
from ftslurm.slurm.evidence import job_ends, read_srun
from ftslurm.slurm.parse import (
    NO_OUTPUT,
    STATES,
    UNKNOWN_STATE,
    plain,
    read_job_id,
    read_jobs,
    read_partitions,
    read_rows,
    read_state,
    read_topology,
)

DATA = Path(__file__).parents[2] / "data/slurm"
VERSIONS = sorted(folder.name for folder in DATA.iterdir())
MARK = "ftslurm:run-12345678"
KNOWN = dict.fromkeys(("2", "3_0", "3_1", "4", "5", "6", "7", "8", "9"), 0)  # the jobs that the recorder gave our mark


def recorded(version: str, name: str) -> str:
    """Return what a command printed, without the command and its exit code."""
    return "".join((DATA / version / f"{name}.txt").read_text().splitlines(keepends=True)[1:-1])


def queue(text: str) -> set[Any]:
    return {(job.name, job.state, job.nodes) for job in read_queue(text, MARK, KNOWN)[0]}


# Each reader returns a set of what it has read. Those that get their text from client.call get it plain.
READERS: dict[str, Callable[[str], set[Any]]] = {
    "queue": queue,
    "jobs_of_users": lambda text: {(job.name, job.state, job.mark) for job in read_jobs(text)[0]},
    "job_found": lambda text: {(job.name, job.state, job.mark) for job in read_jobs(text)[0]},
    "job_state-running": lambda text: {read_state(text)},
    "job_state-pending": lambda text: {read_state(text)},
    "job_state-failed": lambda text: {read_state(text)},
    "job_nodes": lambda text: set(map(tuple, read_rows(text, 3)[0])),
    "node_records": lambda text: set(read_node_fates(plain(text))),
    "partitions": lambda text: {row.name for row in read_partitions(plain(text))},
    "partition_records": lambda text: {row.get("PartitionName") for row in read_records(plain(text))} - {None},
    "settings": lambda text: set(read_settings(plain(text)).items()),
    "topology": lambda text: set(read_topology(plain(text)).items()),
    "submit": lambda text: {read_job_id(text)},
    "submit-in_words": lambda text: {read_job_id(text)},
    **{
        f"srun-{name}": lambda text: set(map(read_srun, text.splitlines())) - {None}
        for name in ("exit_code", "killed", "segfault", "cancelled", "node_failure", "refused")
    },
}
CASES = [(version, name) for version in VERSIONS for name in READERS]


@pytest.mark.parametrize("version", VERSIONS)
def test_each_answer_is_read(version: str) -> None:
    def read(name: str) -> set[Any]:
        return READERS[name](recorded(version, name))

    states = {name: state for name, state, _ in queue(recorded(version, "queue"))}
    assert {states[name] for name in ("2", "3_0", "3_1")} == {"RUNNING"}
    assert (states["6"], states["9"]) == ("PENDING", "CANCELLED")
    assert {job[:2] for job in read("jobs_of_users") if job[2] == MARK} == set(states.items())
    assert read("job_state-running") == {("RUNNING", 0, "None")}
    assert read("job_state-failed") == {("FAILED", 0, "NonZeroExitCode")}
    assert read_state(recorded(version, "job_state-no_output"))[2].startswith(NO_OUTPUT)
    assert read("topology") == {("n1", "leaf1"), ("n2", "leaf1"), ("n3", "leaf2"), ("n4", "leaf2")}
    assert ("KillWait", "5 sec") in read("settings")
    assert (read("partitions"), read("partition_records")) == ({"gpu"}, {"gpu"})
    assert all(str(job).isdecimal() for job in read("submit") | read("submit-in_words"))
    (fate,) = read("node_records")
    assert (fate.node, fate.down, fate.drained) == ("n4", False, True)
    assert fate.why.partition(" [user@")[0] == "Slurm says idle+drain: fan broken | see ticket 7"
    assert {found.code for found in read("srun-exit_code")} == {3}
    assert {found.signal for found in read("srun-segfault")} == {11}
    assert any(found.node_lost for found in read("srun-node_failure"))
    assert any("(scancel)" in (found.error or "") for found in read("srun-cancelled"))


BANNERS = st.sampled_from(
    [
        "", "Welcome to the cluster", "CLUSTER: wice", "\x1b[1mCLUSTER: genius\x1b[0m", "slurm_info: 3 of 10 jobs",
        "| NEWS |", "+------+", "2026-11-25 maintenance tomorrow", "Maintenance: 4+ nodes, 1.5K cores", "²٣",
        "\x07\x00", "squeue: warning: unknown key 'x'", "module: loaded slurm/26.05", "*" * 60,
        "quota: unlimited (null) NO_VAL",
    ]
)  # fmt: skip
PAINTS = st.sampled_from(["{}", "\x1b[32m{}\x1b[0m", "{}\r", "\x07{}", "\x1b[1;31m{}", "{}\x00\x1b[K"])


@pytest.mark.parametrize(("version", "name"), CASES)
def test_banners_headings_colours_and_control_characters_change_nothing(version: str, name: str) -> None:
    text = recorded(version, name)
    before = READERS[name](text)
    assert before or name == "srun-refused"

    @tried(16)
    @given(data=st.data())
    def decorated(data: st.DataObject) -> None:
        lines = [data.draw(PAINTS).format(line) for line in text.splitlines()]
        if not name.startswith("settings"):
            lines = [line for one in lines for line in (data.draw(BANNERS), one)] + [data.draw(BANNERS)]
        told = "\n".join(lines) + "\n"
        assert READERS[name](told) == before
        if name == "queue":
            assert read_queue(told, MARK, KNOWN)[1]
        if name.startswith("job"):
            assert read_jobs(told)[1] or name not in ("jobs_of_users", "job_found")

    decorated()


CELLS = st.sampled_from(
    ["4+", "1.5K", "unlimited", "NO_VAL", "(null)", "²", "٣", "PONDERING", "", "n[1-", "N/A", "-1", "9" * 30, "--me"]
)


def damaged(data: st.DataObject, text: str) -> tuple[str, list[str]]:
    """Return a text with some lines cut, doubled or with another cell, in any order, and the lines that are whole."""
    lines, whole = list[str](), list[str]()
    for line in text.splitlines():
        how = data.draw(st.sampled_from(["whole", "whole", "cut", "twice", "cell", "more"]))
        sign = "|" if "|" in line else " "
        cells = line.split(sign)
        at = data.draw(st.integers(0, len(cells) - 1))
        lines += {
            "cut": [line[: data.draw(st.integers(1, max(1, len(line) - 1)))]],
            "twice": [line, line],
            "cell": [sign.join([*cells[:at], data.draw(CELLS), *cells[at + 1 :]])],
            "more": [f"{line}{sign}{data.draw(CELLS)}{sign}"],
        }.get(how, [line])
        whole += [line] if how in ("whole", "twice") else []
    return "\n".join(data.draw(st.permutations(lines))), whole


@pytest.mark.parametrize(("version", "name"), CASES)
def test_damaged_lines_raise_nothing_and_the_whole_ones_are_read(version: str, name: str) -> None:
    text = recorded(version, name)

    @tried(24)
    @given(data=st.data())
    def read(data: st.DataObject) -> None:
        told, whole = damaged(data, text)
        found = READERS[name](told)
        if not name.startswith(("node_records", "submit", "job_state")):  # one line, or the last of several
            one_by_one = {one for line in whole for one in READERS[name](line)}
            assert {str(one) for one in one_by_one} <= {str(one) for one in found} or name in ("topology", "settings")
        for line in told.splitlines():
            job_ends(line, "1")

    read()


@pytest.mark.parametrize("version", VERSIONS)
def test_no_job_is_gone_failed_or_without_nodes_because_its_line_is_damaged(version: str) -> None:
    text = recorded(version, "queue")
    before = {job.name: job for job in read_queue(text, MARK, KNOWN)[0]}

    @tried(200)
    @given(data=st.data())
    def read(data: st.DataObject) -> None:
        told, _ = damaged(data, text)
        jobs, whole = read_queue(told, MARK, KNOWN)
        now = {job.name: job for job in jobs}
        assert not whole or set(before) <= set(now)
        for name in set(before) & set(now):
            assert now[name].state == before[name].state
            assert bool(now[name].nodes) == bool(before[name].nodes) or now[name].state == "FAILED"

    read()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["running", "pending", "failed"])
def test_a_jobs_state_is_the_printed_one_or_unknown(version: str, name: str) -> None:
    text = recorded(version, f"job_state-{name}")
    known = read_state(text)

    @tried(100)
    @given(data=st.data())
    def read(data: st.DataObject) -> None:
        told, _ = damaged(data, text)
        state, restarts, _ = read_state(told)
        assert (state, restarts) in (known[:2], (UNKNOWN_STATE, 0))

    read()
    assert read_state(text.replace(known[0], "PONDERING"))[0] == UNKNOWN_STATE
    assert read_state("") == ("", 0, "")


@pytest.mark.parametrize("word", ["PONDERING", "POWER_UP_NODE", "RUNNIN", "running", "R"])
def test_a_state_that_is_new_leaves_the_job_as_it_was_and_is_told_once(
    word: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    slurm = Slurm(Config(), run)
    slurm.pools = dict(KNOWN)
    text = recorded(VERSIONS[-1], "queue").replace("|RUNNING|", f"|{word}|", 1)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            (seen,) = read(AskJobs(), text, slurm=slurm)
            assert isinstance(seen, JobsSeen)
            assert not seen.whole
            assert len(seen.jobs) == len(KNOWN) - 2
            assert all(STATES.fullmatch(job.state) for job in seen.jobs)
    assert len(caplog.messages) == 1
    assert word in caplog.messages[0]
    assert "squeue --all" in caplog.messages[0]


def test_a_run_is_not_lost_because_its_jobs_line_is_damaged() -> None:
    text = recorded(VERSIONS[-1], "jobs_of_users")
    assert facts.read_queue(["me"], text, 1.0).users == {"me"}
    assert facts.read_queue(["me"], text[:-30], 1.0).users == set()
    cut = re.sub(r"^2\|.*", "2", text, flags=re.MULTILINE)
    assert facts.read_queue(["me"], cut, 1.0).users == set()


def test_the_answers_about_one_node_and_the_own_nodes_are_read_between_other_lines() -> None:
    text = "CLUSTER: wice\nwarning: x\n" + recorded(VERSIONS[-1], "node_records")
    (fate,) = read_node_fates(plain(text))
    assert (fate.drained, fate.why.split(":")[0]) == (True, "Slurm says idle+drain")
    own = recorded(VERSIONS[-1], "job_nodes")
    (left,) = read(AskOwnNodes(), f"Welcome\n{own}")
    assert left.nodes == ("n1",)
    for cut in range(len(own) - len("RUNNING\n") - 1):
        assert read(AskOwnNodes(), own[:cut]) == []
