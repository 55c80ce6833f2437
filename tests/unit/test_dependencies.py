"""Checks what each folder may import. FOLDERS is the rule; docs/architecture.md gives the purpose of each folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import ftslurm
from ftslurm.cli.verbs import VERBS
from ftslurm.config.schema import ClusterConfig
from ftslurm.protocol import job_states

ROOT = Path(ftslurm.__file__).parent
MODULES = {".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path for path in sorted(ROOT.rglob("*.py"))}
# A folder imports only from itself and from those before it.
FOLDERS = [
    "errors",
    "words",
    "security",
    "protocol",
    "config",
    "checkpoint",
    "tracking",
    "data",
    "core.state",
    "core.jobs",
    "core.groups",
    "core.health",
    "core.lineage",
    "core",
    "slurm",
    "run",
    "code",
    "monitor",
    "report",
    "guard",
    "checks",
    "observer",
    "worker",
    "frameworks",
    "lighthouse",
    "launchers",
    "controller",
    "submission",
    "api",
    "entry",
    "cli",
]
AT_THE_TOP = {"ftslurm.__init__", "ftslurm.__main__", "ftslurm.errors", "ftslurm.words"}
PURE = {
    "__future__",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "immutables",
    "itertools",
    "math",
    "random",  # only random.Random(seed).random(), which is the same everywhere
    # Not re: what Slurm, drivers and libraries say is read at the border (run/log_signs.py, slurm/evidence.py).
    "signal",  # only for the names
    "types",
    "typing",
    "typing_extensions",
}


@cache
def imports(name: str) -> set[str]:
    """Return all imports of a module, at the top or in functions: modules of ftslurm, packages of others."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & MODULES.keys()) or {
                name
                for name in (f"{node.module}.__init__", str(node.module))
                if name in MODULES or "ftslurm" not in name
            }
    return {name if name in MODULES else name.split(".")[0] for name in found}


def closure(name: str) -> set[str]:
    """Return all modules that a module imports, directly or not."""
    seen: set[str] = set()
    todo = {name}
    while todo:
        seen |= todo
        todo = {used for one in todo & MODULES.keys() for used in imports(one)} - seen
    return seen


def floor(module: str) -> int:
    """Return the index in FOLDERS of the innermost listed folder that holds a module."""
    inside = module.removeprefix("ftslurm.")
    found = [(len(folder), n) for n, folder in enumerate(FOLDERS) if f"{inside}.".startswith(f"{folder}.")]
    assert found, f"{module}: its folder has no place in FOLDERS"
    return max(found)[1]


@pytest.mark.parametrize("name", sorted(MODULES.keys() - AT_THE_TOP))
def test_a_folder_imports_only_from_those_before_it(name: str) -> None:
    for used in (imports(name) & MODULES.keys()) - {"ftslurm.__init__"}:
        assert floor(used) <= floor(name), f"{name} imports {used}"


def test_only_errors_lie_outside_of_the_folders() -> None:
    assert {name for name in MODULES if name.count(".") == 1} == AT_THE_TOP


def test_no_two_modules_have_the_same_name() -> None:
    names = [name.rpartition(".")[2] for name in MODULES]
    assert {name for name in names if names.count(name) > 1} <= {"__init__", "__main__"}


def test_the_core_imports_nothing_that_could_block_log_or_vary() -> None:
    used = {used for name in MODULES if name.startswith("ftslurm.core.") for used in imports(name)}
    assert {name for name in used - PURE if ".core." not in name} == {
        "ftslurm.config.schema",
        "ftslurm.config.store_url",
        "ftslurm.protocol.causes",
        "ftslurm.protocol.job_states",
        "ftslurm.protocol.records",
        "ftslurm.protocol.stages",
        "ftslurm.protocol.messages",
        "ftslurm.protocol.traces",
        "ftslurm.protocol.value_class",
        "ftslurm.words",
    }


def literals(tree: ast.AST) -> Iterator[str]:
    """Yield all strings in a module, but for the members of its enums, which are words of its own."""
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        yield tree.value
    if not (isinstance(tree, ast.ClassDef) and any("Enum" in ast.unparse(base) for base in tree.bases)):
        for node in ast.iter_child_nodes(tree):
            yield from literals(node)


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("ftslurm.core.")])
def test_the_core_knows_no_state_of_a_job_and_no_kind_of_cluster_by_name(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text())
    states = {word for word in vars(job_states).values() if isinstance(word, str)}.union(job_states.TABLE)
    assert not states.intersection(literals(tree))
    kinds = get_args(get_type_hints(ClusterConfig)["kind"])
    used = {word for node in ast.walk(tree) if isinstance(node, ast.Compare | ast.Match) for word in literals(node)}
    assert not used.intersection(kinds)
    assert ".cluster.kind" not in ast.unparse(tree)


def test_only_the_worker_and_what_scripts_use_import_torch() -> None:
    users = {name for name in MODULES if imports(name) & {"torch", "torchft"}}
    assert {name.split(".")[1] for name in users} == {"worker", "checkpoint", "data", "frameworks", "checks"}


@pytest.mark.parametrize(
    ("package", "adapters"),
    [("submitit", {"submission.submitit_adapter"}), ("hydra", {"config.hydra_adapter"})],
    ids=["submitit", "hydra"],
)
def test_only_an_adapter_uses_a_package_whose_private_functions_are_needed(package: str, adapters: set[str]) -> None:
    assert {name for name in MODULES if package in imports(name)} == {f"ftslurm.{adapter}" for adapter in adapters}


@pytest.mark.parametrize(
    "name",
    [
        "controller.loop",
        "lighthouse.stock",
        "lighthouse.server",
        "lighthouse.__main__",
        "guard.guard",
        "guard.probe",
        "guard.attach",
        "cli.main",
        *(f"cli.{verb.name}_verb" for verb in VERBS.values() if not verb.method),  # which cli.main imports by name
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
