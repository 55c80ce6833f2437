"""The table of benchmarks/goodput.py shows who did not run and who gave up, with the reason."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from cluster import Cluster
from contenders.scene import Scene
from goodput_measures import Measures
from training import Settings

pytestmark = pytest.mark.nightly
CONDITIONS = {
    "date": "2026-01-01",
    "cores": 2,
    "load_1m_5m_15m": [0.5, 0.25, 1.0],
    "slurm": "22.05.8",
    "ftslurm": "0.2.0 aaa",
}


def data() -> dict[str, Any]:
    from goodput import Block, Plan  # not above: it imports torch

    measures = Measures(60.0, 5.0, 270, 30, 0.9, 0.75, 0.7, 4.5, 3, (1.5, 2.5), 1)
    blocks = [
        Block("ftslurm-warm", 0, "0.2.0 aaa", [1.0, 3.0], 8.0, None, 0, {"srun": 2}, 0, measures),
        Block("ftslurm-warm", 1, "0.2.0 bbb", [1.0, 2.0], 9.0, None, 1, {"srun": 4}, 2, measures),
        Block("torchrun", 0, "0.2.0 aaa", [1.0, 1.0], None, "did not train: it | has\nno <GPU>"),
    ]
    facts = {"what": "a program", "adaptations": ("with a <change>",), "versions": {"pkg": "1.2"}, "missing": None}
    return {
        "plan": asdict(Plan(4, 20.0, 2.0, 2, 30.0, 1, 0.2, 25)),
        "conditions": CONDITIONS,
        "contenders": {
            "torchrun": facts,
            "ftslurm-warm": facts,
            "ray": facts | {"missing": "no wheel for this Python"},
        },
        "blocks": [asdict(block) for block in blocks],
    }


def test_table_and_picture_name_every_contender_in_one_order(tmp_path: Path) -> None:
    from goodput_report import write

    write(tmp_path / "g.json", data())
    text = (tmp_path / "g.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| ftslurm-warm |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:6] == ["0.70 (0.70-0.70)", "0.90 (0.90-0.90)", "0.750 (0.750-0.750)", "60", "1.5 / 2.5"]
    assert cells[7:11] == ["6 (1)", "2", "3.0", "2"]
    assert "- ray: not run: no wheel for this Python" in text
    assert "- torchrun, block 1: did not train: it | has no <GPU>" in text
    assert "**ftslurm-warm**: a program (pkg 1.2)\n  - with a <change>" in text
    assert "- ftslurm-warm, block 2: ftslurm 0.2.0 bbb" in text
    assert "block 1: ftslurm" not in text
    assert "load average at the start 0.5/0.25/1" in text
    picture = ElementTree.parse(tmp_path / "g.svg").getroot()
    words = [element.text for element in picture.iter() if element.text]
    assert [word for word in words if word in ("ftslurm-warm", "torchrun", "ray", "did not train", "not run")] == [
        *("ftslurm-warm", "ray", "not run", "torchrun", "did not train")
    ]


def test_the_reason_of_an_end_is_the_last_error_of_the_log(tmp_path: Path) -> None:
    scene = Scene(cast(Cluster, None), tmp_path, 1, Settings(str(tmp_path)))
    assert scene.last_error() == ""
    lines = [
        "ValueError: early",
        "    raise result.error",
        "ray.train.ControllerError: failed due to:",
        "The actor died",
        "a",
    ]
    (tmp_path / "driver.log").write_text("\n".join(lines + ["node.py: received SIGTERM"] * 3))
    assert scene.last_error() == "ray.train.ControllerError: failed due to:\nThe actor died"
    (tmp_path / "driver.log").write_text("one\ntwo\nthree\n")
    assert scene.last_error() == "two\nthree"
