"""Each setting of Slurm that hurts is found, with its level, and a good cluster has no complaint."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftslurm.checks.finding import Level
from ftslurm.checks.slurm_verdicts import (
    SlurmFacts,
    check_slurm,
    read_accounts,
    read_records,
    read_settings,
)
from ftslurm.slurm.parse import Partition, read_partitions

CONFIG = """\
Configuration data as of 2026-11-23T09:18:05
AccountingStorageType   = accounting_storage/slurmdbd
AuthInfo                = (null)
AuthType                = auth/munge
InactiveLimit           = 0 sec
JobRequeue              = 1
KillOnBadExit           = 0
MaxArraySize            = 1001
AccountingStoreFlags    = job_comment
MaxStepCount            = 40000
MinJobAge               = 300 sec
PreemptMode             = OFF
PreemptType             = preempt/none
PrivateData             = none
ProctrackType           = proctrack/cgroup
ReturnToService         = 2
SLURM_VERSION           = 24.11.5
SlurmdTimeout           = 300 sec
SrunPortRange           = 0-0
TaskPlugin              = task/affinity,task/cgroup

Cgroup Support Configuration:
ConstrainDevices        = yes
"""
PARTITION = "PartitionName=gpu Default=YES DefaultTime=01:00:00 MaxNodes=16 MaxTime=1-00:00:00 State=UP PreemptMode=OFF"
GOOD = SlurmFacts(
    read_settings(CONFIG),
    read_records(PARTITION)[0],
    [Partition("gpu", default=True, gpus=4)],
    0.01,
)


def test_a_good_cluster_has_no_complaint() -> None:
    assert {finding.level for finding in check_slurm(GOOD)} == {Level.OK}
    assert not any(finding.fix for finding in check_slurm(GOOD))


def test_what_a_partition_leaves_open_is_as_in_all_of_slurm() -> None:
    facts = SlurmFacts({"PreemptMode": "SUSPEND", "Nothing": "(null)"}, {"PreemptMode": "(null)"}, [], 0.01)
    assert (facts.value("PreemptMode"), facts.value("Nothing"), facts.value("Else")) == ("SUSPEND", "", "")


@pytest.mark.parametrize(
    ("setting", "value", "check", "level"),
    [
        ("SLURM_VERSION", "20.11.8", "version", Level.WARN),
        ("MaxStepCount", "100", "limits", Level.FAIL),
        ("SrunPortRange", "60001-60302", "ports", Level.WARN),
        ("AccountingStoreFlags", "(null)", "AccountingStoreFlags", Level.WARN),
        ("AccountingStoreFlags", "job_comment,job_env", "AccountingStoreFlags", Level.WARN),
        ("JobRequeue", "0", "JobRequeue", Level.WARN),
        ("ReturnToService", "0", "ReturnToService", Level.WARN),
        ("SlurmdTimeout", "0 sec", "SlurmdTimeout", Level.WARN),
        ("ProctrackType", "proctrack/linuxproc", "ProctrackType", Level.WARN),
        ("ProctrackType", "proctrack/pgid", "ProctrackType", Level.WARN),
        ("TaskPlugin", "task/none", "cgroup", Level.WARN),
        ("ConstrainDevices", "no", "cgroup", Level.WARN),
        ("AccountingStorageType", "accounting_storage/none", "AccountingStorageType", Level.WARN),
        ("MinJobAge", "2 sec", "MinJobAge", Level.WARN),
        ("PrivateData", "jobs,nodes", "PrivateData", Level.WARN),
        ("SwitchType", "switch/hpe_slingshot", "SwitchType", Level.WARN),
    ],
)
def test_a_setting_that_hurts_is_found_with_its_fix(setting: str, value: str, check: str, level: Level) -> None:
    facts = replace(GOOD, config={**GOOD.config, setting: value})
    (bad,) = [finding for finding in check_slurm(facts) if finding.level is not Level.OK]
    assert (bad.check, bad.level) == (check, level)
    assert bad.fix


def test_a_partition_that_starts_no_job_fails() -> None:
    facts = replace(GOOD, chosen={**(GOOD.chosen or {}), "State": "DOWN"})
    (bad,) = [finding for finding in check_slurm(facts) if finding.level is Level.FAIL]
    assert "gpu is DOWN" in bad.what
    assert bad.fix


@pytest.mark.parametrize(
    ("reservation", "warned"),
    [
        ("ReservationName=up Flags=MAINT,SPEC_NODES Nodes=n[1-9] StartTime=2026-12-01T08:00:00", True),
        ("ReservationName=class Flags=SPEC_NODES Nodes=n1", False),
        ("No reservations in the system", False),
    ],
)
def test_a_maintenance_that_is_planned_is_a_warning(reservation: str, warned: bool) -> None:
    found = check_slurm(replace(GOOD, reservations=read_records(reservation)))
    assert [f.fix for f in found if f.check == "maintenance"] == [
        "set cluster.time so that the job ends before it"
    ] * warned


@pytest.mark.parametrize(
    ("mode", "level"),
    [("CANCEL", Level.WARN), ("SUSPEND,GANG", Level.WARN), ("REQUEUE", Level.OK), ("OFF", Level.OK)],
)
def test_preemption_of_the_partition_counts_that_suspends_or_cancels(mode: str, level: Level) -> None:
    config = {**GOOD.config, "PreemptType": "preempt/qos", "PreemptMode": "REQUEUE"}
    facts = replace(GOOD, config=config, chosen={**(GOOD.chosen or {}), "PreemptMode": mode})
    assert [f.level for f in check_slurm(facts) if f.check == "PreemptMode"] == [level]


def test_a_cluster_where_the_site_chooses_the_partition_does_not_fail() -> None:
    rows = [replace(GOOD.rows[0], name=name, default=False) for name in ("a", "b")]
    found = {f.check: f for f in check_slurm(replace(GOOD, chosen=None, rows=rows))}
    assert found["partition"].level is Level.WARN
    assert "a, b" in found["partition"].fix


def test_an_account_that_may_not_submit_a_second_job_is_a_warning() -> None:
    (one,) = read_accounts("lab|gpu|1", ("Account", "Partition", "MaxSubmit"))
    found = [f.level for f in check_slurm(replace(GOOD, accounts=[one])) if "account lab" in f.what]
    assert found == [Level.OK, Level.WARN]


def test_the_limits_of_the_qos_are_shown_and_the_ports_that_groups_need() -> None:
    said = [f.what for f in check_slurm(replace(GOOD, qos=[{"Name": "short", "MaxWall": "01:00:00", "GrpTRES": ""}]))]
    assert "QOS short: MaxWall 01:00:00" in said
    narrow = replace(GOOD, config={**GOOD.config, "SrunPortRange": "60001-60027"})
    (ports,) = [f for f in check_slurm(narrow) if f.check == "ports"]
    assert "enough for 4 groups, which need 6 ports for each group and 3" in ports.what


@pytest.mark.parametrize("text", ["", "no = sense\n|||\n", "\x00=\n= =\n"])
def test_nonsense_from_slurm_raises_nothing(text: str) -> None:
    rows = read_records(text)
    assert check_slurm(SlurmFacts(read_settings(text), rows[0] if rows else None, read_partitions(text)))
