"""What sinfo shows of GPUs says whether groups get some; whether a partition holds the run, sbatch judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from programs import Programs

from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError
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
def test_what_may_choose_another_partition_leaves_the_judgement_to_sbatch(
    chooser: dict[str, Any], kind: str, programs: Programs
) -> None:
    config, notes = asked(programs, NERSC, groups_gpus=8, cluster_kind=kind, **chooser)
    assert (config.groups.gpus, notes) == (8, [])
    config, notes = asked(programs, NERSC, cluster_kind=kind, **chooser)
    assert config.groups.gpus == 0
    assert ["training on CPUs" in note and "groups.gpus=N" in note for note in notes] == [True]


def test_the_gpus_are_those_of_the_partition_that_is_named_or_of_the_default_one(programs: Programs) -> None:
    _, notes = asked(programs, NERSC)
    (note,) = notes
    assert note.startswith("training on CPUs: partition regular_milan shows too few GPUs")
    config, notes = asked(programs, NERSC, cluster_partition="gpu_ss11")
    assert (config.groups.gpus, notes) == (1, [])
    config, notes = asked(programs, NO_DEFAULT, cluster_sbatch={"partition": "cpu,gpu"})
    assert (config.groups.gpus, notes) == (1, [])
    config, notes = asked(programs, NO_DEFAULT)
    assert (config.groups.gpus, notes) == (1, [])
    assert asked(programs, NO_GRES)[1] == []  # a cluster without any


@pytest.mark.parametrize(
    "row", ["gpu*|up|4|64|gpu:4", "gpu*|up|4|64|gpu:a100:2,gpu:h100:2", "cpu|up|9|64|(null)\ngpu*|up|4|64|gpu:4"]
)
@pytest.mark.parametrize("kind", ["slurm", "array"])
def test_more_workers_than_gpus_on_a_node_are_refused_with_what_to_type(
    row: str, kind: str, programs: Programs
) -> None:
    with pytest.raises(ConfigError) as caught:
        asked(programs, row, groups_workers=8, cluster_kind=kind)
    said = str(caught.value)
    assert said.startswith("groups.workers=8 x groups.per_node=1: the nodes of partition gpu have no more than 4 GPUs")
    assert ("groups.gpus=0" in said, "groups.nodes" in said) == (True, True)
    assert asked(programs, row, groups_workers=8, groups_gpus=0, cluster_kind=kind)[1] == []
    assert asked(programs, row, groups_workers=4, cluster_kind=kind)[0].groups.gpus == 4
    cpu = asked(programs, f"cpu|up|9|64|(null)\n{row}", groups_workers=8, cluster_kind=kind, cluster_partition="cpu")
    assert cpu[0].groups.gpus == 0


ODD_GPUS = ("", "n/a", "N/A", "gpu:", "gpu:4294967294", "gpu:?", "gpu:a:-1", "nvme:1,gpu:")
CELLS = [(column, odd) for column in (2, 3) for odd in ODD] + [(4, odd) for odd in ODD_GPUS]


@pytest.mark.parametrize(("column", "odd"), CELLS)
def test_what_cannot_be_read_is_never_none(column: int, odd: str, programs: Programs) -> None:
    cells = ["gpu*", "up", "4", "64", "gpu:4"]
    cells[column] = odd
    asked(programs, "|".join(cells), groups_gpus=2)  # is not refused
    config, notes = asked(programs, "|".join(cells))
    assert config.groups.gpus == 1 or any("training on CPUs" in note for note in notes)


def test_where_sinfo_shows_nothing_a_run_that_asks_for_slurm_is_not_kept_from_it(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capabilities.client, "PATIENCE_S", 0.1)
    programs.add("sbatch", "srun")
    _, notes = asked(programs, "")
    assert [words in note for words, note in zip(("cannot check", "training on CPUs"), notes, strict=True)] == [
        True
    ] * 2


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
