"""What is checked before anything is submitted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from histories import config

from ftslurm.config.schema import Config
from ftslurm.errors import ConfigError
from ftslurm.submission import preflight

BROKEN = "import os\n\ndef broken(:\n    pass\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def job(**fields: object) -> Config:
    return config(job={"script": None, **fields})


def test_a_syntax_error_has_its_file_line_and_place_and_leaves_no_file(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BROKEN)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError) as refused:
        preflight.check_script(job(script=str(script)))
    head, line, place = str(refused.value).splitlines()
    assert head.startswith(f"job.script: {script}: line 3: ")
    assert line.strip() == "def broken(:"
    assert line[place.index("^")] == ":"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("pkg.train", None),
        ("pkg", None),
        ("json.tool", None),
        ("pkg.gone", "job.module=pkg.gone: no module named 'pkg.gone', seen from"),
        ("gone.train", "job.module=gone.train: no module named 'gone.train', seen from"),
        ("pkg.train.more", "no module named 'pkg.train.more'"),
        ("pkg.sub", "no module named 'pkg.sub'"),
        ("pkg.broken", "broken.py: line 3: "),
    ],
)
def test_a_module_is_found_without_importing_its_package(module: str, said: str | None, tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    (package / "sub").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "sub/__init__.py").write_text("")
    (package / "__main__.py").write_text("")
    (package / "train.py").write_text("import no_such_module\n")
    (package / "broken.py").write_text(BROKEN)
    tried = job(module=module)
    if said is None:
        preflight.check_script(tried)
        return
    with pytest.raises(ConfigError) as refused:
        preflight.check_script(tried)
    assert said in str(refused.value)


@pytest.mark.parametrize("name", ["train.sh", "train", "run.sbatch", "train.py.bak"])
@pytest.mark.parametrize("head", ["#!/bin/bash\n", "#SBATCH --nodes=2\n", "set -e\n"])
def test_a_shell_script_is_named_as_such(name: str, head: str, tmp_path: Path) -> None:
    script = tmp_path / name
    script.write_text(f'{head}export A=1\npython train.py "$@"\n')
    with pytest.raises(ConfigError, match=rf"^job\.script: {script} is no Python: .* cluster\.setup"):
        preflight.check_script(job(script=str(script)))


@pytest.mark.parametrize(
    "python",
    [
        "/gone/python",
        ["env", "A=1", sys.executable],
        ["touch", "/gone"],
        ["apptainer", "exec", "a.sif", "python"],
    ],
)
def test_what_another_interpreter_will_run_passes(python: object, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BROKEN)
    preflight.check_script(job(script=str(script), python=python))


def test_a_module_that_the_setup_may_bring_passes() -> None:
    preflight.check_script(config(job={"script": None, "module": "gone"}, cluster={"setup": ["module load it"]}))
    preflight.check_script(job(module="gone", env={"PYTHONPATH": "/opt"}))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, True),
        ({"checkpoint": {"every": 10}}, False),
        ({"restart": {"on_state_loss": "checkpoint"}}, False),
        ({"lighthouse": {"kind": "none"}}, False),
    ],
)
def test_a_run_that_saves_nothing_is_told_so_once(fields: dict[str, dict[str, object]], told: bool) -> None:
    said = preflight.notes(config(**fields))
    assert [note.partition(":")[0] for note in said] == [
        "no checkpoint is saved unless you ask for one (ftslurm save)"
    ] * told
