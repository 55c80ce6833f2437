"""What sinfo shows is judged where it is certain what a request means; elsewhere the judgement is a line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fuzz import tried
from hypothesis import given
from hypothesis import strategies as st
from programs import Programs

from ftslurm.config.schema import Config, Range
from ftslurm.errors import EnvironmentProblem
from ftslurm.slurm import offers
from ftslurm.slurm.parse import Partition, read_partitions
from ftslurm.submission import capabilities
from ftslurm.submission.capabilities import resolve

NERSC = "regular_milan*|up|3072|256|(null)\ngpu_ss11|up|1792|128|gpu:a100:4(S:0-3)"
NO_DEFAULT = "cpu|up|10|64|(null)\ngpu|up|6|64|gpu:4"
NO_GRES = "gh*|up|600|72|(null)\ngg|up|256|144|(null)"
ODD = ("0", "", "1.2K", "4294967294", "65534", "infinite", "UNLIMITED", "64+", "-", "?", "n/a", "(null)", "128 ")


def asked(programs: Programs, sinfo: str, **settings: Any) -> tuple[Config, list[str]]:
    """Resolve a configuration on a cluster with these rows; return it with the lines."""
    (programs.folder / "rows").write_text(sinfo + "\n")
    programs.add("sinfo", body=f"cat {programs.folder}/rows")
    config = Config()
    config.job.script, config.run.name, config.cluster.kind = "train.py", "train", "slurm"
    for key, value in settings.items():
        part, _, name = key.partition("_")
        setattr(getattr(config, part), name, value)
    return config, resolve(config)


CHOOSERS: list[dict[str, Any]] = [
    {"cluster_sbatch": {"constraint": "gpu"}},
    {"cluster_sbatch": {"qos": "debug"}},
    {"cluster_account": "m1234_g"},
    {"cluster_sbatch": {"reservation": "week"}},
    {"cluster_sbatch": {"clusters": "other"}},
    {"cluster_sbatch": {"clusters": "other"}, "cluster_partition": "there"},
    {"cluster_sbatch": {"licenses": "scratch"}},
    {"cluster_sbatch": {"of-a-later-slurm": True}},
]


@pytest.mark.parametrize("chooser", CHOOSERS, ids=str)
@pytest.mark.parametrize("kind", ["slurm", "array"])
def test_what_may_choose_another_partition_makes_no_refusal_of_a_guess(
    chooser: dict[str, Any], kind: str, programs: Programs
) -> None:
    config, notes = asked(programs, NERSC, groups_gpus=4, cluster_kind=kind, **chooser)
    assert (config.groups.gpus, notes) == (4, [])
    _, notes = asked(programs, NERSC, groups_gpus=8, cluster_kind=kind, **chooser)
    assert ["sbatch decides" in note and "groups.gpus=8" in note for note in notes] == [True]
    config, notes = asked(programs, NERSC, cluster_kind=kind, **chooser)
    assert config.groups.gpus == 0
    assert ["training on CPUs" in note and "groups.gpus=N" in note for note in notes] == [True]


def test_without_a_chooser_the_default_partition_is_certain(programs: Programs) -> None:
    harmless = {"mem-per-cpu": "2G", "exclusive": True, "of-a-later-slurm": False}
    with pytest.raises(EnvironmentProblem, match=r"regular_milan has 0 of these: 3072 nodes of 256 CPUs and 0 GPUs\."):
        asked(programs, NERSC, groups_gpus=4, cluster_sbatch=harmless)
    _, notes = asked(programs, NERSC)
    (note,) = notes
    assert note.startswith("training on CPUs: partition regular_milan shows too few GPUs")
    assert asked(programs, NO_GRES)[1] == []  # a cluster without any


def test_without_a_default_partition_sbatch_decides(programs: Programs) -> None:
    config, notes = asked(programs, NO_DEFAULT)
    assert (config.groups.gpus, notes) == (1, [])
    _, notes = asked(programs, NO_DEFAULT, groups_count=11)
    assert ["need 11 nodes" in note and "sbatch decides" in note for note in notes] == [True]


def test_of_several_partitions_one_must_hold_the_run(programs: Programs) -> None:
    assert asked(programs, NO_DEFAULT, cluster_partition="cpu,gpu", groups_count=10, groups_gpus=0)[1] == []
    with pytest.raises(EnvironmentProblem, match=r"need 11 nodes.*partition cpu, gpu has 10"):
        asked(programs, NO_DEFAULT, cluster_partition="cpu,gpu", groups_count=11, groups_gpus=0)
    with pytest.raises(EnvironmentProblem, match=r"=cpu,nope: there is no such partition; there are: cpu, gpu"):
        asked(programs, NO_DEFAULT, cluster_partition="cpu,nope")
    with pytest.raises(EnvironmentProblem, match="=nope: there is no such partition"):
        asked(programs, NO_DEFAULT, cluster_sbatch={"partition": "nope"}, cluster_partition="gpu")


def test_each_range_is_judged_by_its_own_options(programs: Programs) -> None:
    def ranges(**options: Any) -> list[str]:
        own = [Range(groups="1", **options)]
        return asked(programs, NO_DEFAULT, cluster_mode="array", cluster_partition="gpu", cluster_ranges=own)[1]

    assert ranges() == []
    with pytest.raises(EnvironmentProblem, match="partition cpu has 0 of these"):
        ranges(partition="cpu")
    with pytest.raises(EnvironmentProblem, match="groups=1, partition=nope: there is no such"):
        ranges(sbatch={"partition": "nope"})
    elsewhere = ranges(sbatch={"clusters": "other"})
    assert elsewhere == []


ODD_GPUS = ("", "n/a", "N/A", "gpu:", "gpu:4294967294", "gpu:?", "gpu:a:-1", "nvme:1,gpu:")
CELLS = [(column, odd) for column in (2, 3) for odd in ODD] + [(4, odd) for odd in ODD_GPUS]


@pytest.mark.parametrize(("column", "odd"), CELLS)
def test_what_cannot_be_read_is_never_none(column: int, odd: str, programs: Programs) -> None:
    cells = ["gpu*", "up", "4", "64", "gpu:4"]
    cells[column] = odd
    asked(programs, "|".join(cells), groups_gpus=2)  # is not refused
    config, notes = asked(programs, "|".join(cells))
    assert config.groups.gpus == 1 or any("training on CPUs" in note for note in notes)


CELL = st.sampled_from(["4", "64", "gpu:4", "(null)", "up", "down", *ODD])


@tried(300)
@given(cells=st.lists(st.lists(CELL, max_size=5), min_size=1, max_size=3), gpus=st.integers(1, 3))
def test_a_refusal_names_no_number_that_sinfo_has_not_shown(cells: list[list[str]], gpus: int) -> None:
    rows = read_partitions("\n".join("|".join([f"p{n}{'*' * (n == 0)}", *row]) for n, row in enumerate(cells)))
    config = Config()
    config.cluster.kind, config.groups.gpus = "slurm", gpus
    if not rows:
        return
    said, refused = list[str](), False
    try:
        said += capabilities._fit(config, rows, config.cluster)
    except EnvironmentProblem as refusal:
        said, refused = [str(refusal)], True
    assert not any(re.search(r"\binf\b|None", line) for line in said)
    for row in (row for row in rows if row.default and refused):
        numbers = [int(number) for number in re.findall(r"p0 has (\w+)", said[0])]
        assert numbers or "is not up" in said[0]
        assert all(number in (0, row.nodes) for number in numbers)
        assert 0 not in numbers or 0 in (row.nodes, row.cpus) or row.gpus < gpus


def test_where_sinfo_shows_nothing_a_run_that_asks_for_slurm_is_not_kept_from_it(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capabilities.client, "PATIENCE_S", 0.1)
    programs.add("sbatch", "srun")
    _, notes = asked(programs, "")
    assert [words in note for words, note in zip(("cannot check", "training on CPUs"), notes, strict=True)] == [
        True
    ] * 2


def test_gpus_that_slurm_does_not_know_are_named_and_pass(programs: Programs) -> None:
    with pytest.raises(EnvironmentProblem, match=r"cluster\.sbatch\.gpus-per-node=false"):
        asked(programs, NO_GRES, groups_gpus=4)
    for key in ("gpus-per-node", "gpus_per_node"):
        config, notes = asked(programs, NO_GRES, groups_gpus=4, cluster_sbatch={key: False})
        assert (config.groups.gpus, notes) == (4, [])


def test_a_variable_of_sbatch_is_told(programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SBATCH_QOS", "high")
    _, notes = asked(programs, NO_DEFAULT, groups_gpus=0, cluster_partition="gpu")
    assert notes == ["SBATCH_QOS becomes cluster.sbatch.qos=high"]


def test_what_only_slurm_needs_is_named_where_it_is_ignored(programs: Programs, tmp_path: Path) -> None:
    _, notes = asked(
        programs, "", cluster_kind="local", groups_gpus=0, cluster_partition="gpu", cluster_sbatch={"mail-type": "END"}
    )
    assert notes == ["cluster=local ignores cluster.partition, cluster.sbatch"]


def test_the_most_of_a_partition_is_not_the_sum_of_two() -> None:
    rows = [Partition(name, name == "a", True, 4, 8, 0) for name in ("a", "a", "b")]
    assert offers.meant(rows, "").nodes(8, 0) == 8
    assert offers.meant(rows, "a,b").nodes(8, 0) == 8
    assert offers.meant(rows, "b", ["account"]).certain
    assert not offers.meant(rows, "", ["account"]).certain
