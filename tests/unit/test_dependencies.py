"""The layers of the package (design section 10): a module imports from the lines above its own, from nowhere else."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import ftslurm

ROOT = Path(ftslurm.__file__).parent
MODULES = {".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path for path in sorted(ROOT.rglob("*.py"))}
LAYERS = """
    __init__ core.__init__
    errors names jsontext packed
    trust
    rundir saved core.saving capped terminal
    key
    config confidential
    sizes
    checks core.model core.past core.adoption
    core.actions core.events core.phases core.ranks core.units core.drills
    core.restart core.causes core.progress
    core.placement core.orders core.jobs
    core.drilling core.health core.standby core.supply
    core.echo core.fate core.hangs core.servers core.scale core.no_step
    core.ended core.adopt core.history
    core.rollover
    core.vacate
    core.launching
    core.observe
    core.decide
    channel slurm journal inbox wakeup runs heard
    skim
    past lead about no_step
    verdict
    positions agreement
    translate worker snapshot
    checkpoint
    lighthouse launchers.program launchers.aside launchers.children launchers.__init__
    launchers.local launchers.srun launchers.assignment
    jobs survive
    controller
    status_standbys status_jobs status_groups
    status compose cluster logs
    again story
    wording_jobs still
    wording
    submit status_json keeper
    candidate
    summary pilots
    plan
    view arraytask
    commands beside entry
    cli
    __main__
""".splitlines()
PURE = {
    "__future__",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "itertools",
    "math",
    "random",  # only random.Random(seed).random(), which is the same everywhere
    "re",
    "signal",  # only for the names
    "typing",
}


@cache
def imports(name: str) -> set[str]:
    """All that a module imports, at the top or in a function: of ftslurm the modules, of others the package."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & MODULES.keys()) or {str(node.module)}
    return {name if name in MODULES else name.split(".")[0] for name in found}


def closure(name: str) -> set[str]:
    """What it imports, and what that imports, and so on."""
    seen: set[str] = set()
    todo = {name}
    while todo:
        seen |= todo
        todo = {used for one in todo & MODULES.keys() for used in imports(one)} - seen
    return seen


def layer(name: str) -> int:
    """The line of LAYERS on which a module stands, or the folder it lies in."""
    inside = name.removeprefix("ftslurm.")
    (found,) = [n for n, line in enumerate(LAYERS) for word in line.split() if f"{inside}.".startswith(f"{word}.")]
    return found


@pytest.mark.parametrize("name", MODULES)
def test_imports_run_one_way_and_files_stay_short(name: str) -> None:
    for used in imports(name) & MODULES.keys():
        same_folder = used.split(".")[:2] == name.split(".")[:2] and layer(used) == layer(name)
        assert layer(used) < layer(name) or same_folder, f"{name} imports {used}"
    assert len(MODULES[name].read_text().splitlines()) <= 450


def test_the_core_imports_nothing_that_could_block_log_or_vary() -> None:
    used = {used for name in MODULES if name.startswith("ftslurm.core.") for used in imports(name)}
    assert {name for name in used - PURE if ".core." not in name} == {"ftslurm.config", "ftslurm.rundir"}


def test_only_the_worker_and_what_scripts_use_import_torch() -> None:
    users = {name for name in MODULES if imports(name) & {"torch", "torchft"}}
    assert {name.split(".")[1] for name in users} == {"worker", "snapshot", "agreement"}


@pytest.mark.parametrize(
    "name",
    [
        "controller",
        "lighthouse.stock",
        "lighthouse.server",
        "lighthouse.__main__",
        "worker.guard",
        "worker.look",
        "worker.attach",
        "cli",
    ],
)
def test_what_must_be_light_never_imports_torch(name: str) -> None:
    assert not closure(f"ftslurm.{name}") & {"torch", "torchft", "numpy"}


def test_workers_and_the_controller_need_nothing_of_the_command_line() -> None:
    parts = [
        name for name in MODULES if name.startswith(("ftslurm.worker", "ftslurm.lighthouse", "ftslurm.controller"))
    ]
    for name in parts:
        assert not closure(name) & {"hydra", "omegaconf", "submitit", "rich"}, name
