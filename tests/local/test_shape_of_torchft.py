"""A worker with another version of torchft, simulated by removing names from the installed one.

Each case is its own process, because a removed name stays removed; a fork server saves them the imports.
"""

from __future__ import annotations

import ast
import functools
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from loaded import LOADED
from process_groups import STABLE
from versions import MATRIX

from ftslurm.worker import patch_fit, session
from ftslurm.worker.private_names import Patch


def worker(missing: tuple[str, ...], then: str, output: str) -> None:
    """Import everything, as a worker does, without these names; then run more code."""
    file = os.open(output, os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    warnings.simplefilter("ignore")
    os.environ |= {"FTSLURM_COMPARE_EVERY": "1", "FTSLURM_COMPARE_PARTS": ""}
    for name in missing:
        module, _, path = name.partition(":")
        *owners, last = path.split(".")
        where = functools.reduce(getattr, owners, importlib.import_module(module))
        if hasattr(where, last):
            delattr(where, last)
    from ftslurm.protocol.position import Position
    from ftslurm.worker import session

    task = SimpleNamespace(gateway=SimpleNamespace(), position=Position())
    channel = SimpleNamespace(say=lambda _: None, warn=lambda _: None)
    for words in session.import_everything(task, channel).left_out:
        print("left out:", words)
    print("goes on", flush=True)
    exec(then, {"torchft": importlib.import_module("torchft")})


def start(*missing: str, then: str = "") -> str:
    """Run a worker without these names of torchft; return its output."""
    with tempfile.NamedTemporaryFile("r") as output:
        process = LOADED.Process(target=worker, args=(missing, then, output.name))
        process.start()
        process.join(120)
        process.kill()
        return output.read()


def test_every_patch_fits_the_installed_torchft() -> None:
    assert start() == "goes on\n"


def needs(patch: Patch, form: int) -> list[tuple[str, str]]:
    """Return the names of a patch, each with what it is in."""
    texts = patch.forms[form].items()
    return [(owner, name[0]) for owner, text in texts for name in re.finditer(r"[\w.]+(\([^)]*\))?", text)]


@pytest.mark.parametrize("patch", Patch, ids=lambda patch: patch.name)
def test_each_name_of_the_table_is_there_and_is_missed_when_it_is_not(patch: Patch) -> None:
    form = next(number for number, names in enumerate(patch.forms) if not patch_fit.missing(names))
    assert patch.without
    for owner, name in needs(patch, form):
        assert patch_fit.missing({owner: name}) == []
        with_a_typo = re.sub(r"\w+(\(|$)", r"no_such_name\1", name, count=1)
        assert patch_fit.missing({owner: with_a_typo}) == [f"{with_a_typo} in {owner}"]


NIGHTLY = """
from ftslurm.worker import patch_fit
from ftslurm.worker.private_names import Patch
for patch in Patch:
    patch_fit.check(patch)
print({patch.name for patch in Patch if patch_fit.missing(patch.forms[0])})
"""


@pytest.mark.nightly
def test_the_table_fits_the_nightly_of_torchft(tmp_path: Path) -> None:
    (row,) = [row for row in MATRIX if row.name == "nightly"]
    wheel = next(one for one in row.packages if one.startswith("torchft-nightly"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={tmp_path}", wheel]
    if subprocess.run(pip, check=False).returncode:
        pytest.skip(f"{wheel} cannot be installed here")
    environ = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(session.__file__).parents[2]}"}
    done = subprocess.run([sys.executable, "-c", NIGHTLY], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ast.literal_eval(done.stdout) == {"PROCESS_GROUPS"}


THEIRS = {"_exit", "_get_module_details", "_run_exitfuncs", "_replace"}  # of Python


def test_each_private_name_that_the_code_uses_is_in_the_table() -> None:
    """Those of ftslurm's own classes are defined in the folder."""
    trees = {path.name: ast.parse(path.read_text()) for path in Path(session.__file__).parent.glob("*.py")}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    ours = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    ours |= {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)} | {
        node.args[1].value
        for node in nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr")
        if isinstance(node.args[1], ast.Constant)
    }
    private = {name for name in used if re.match(r"_[a-z]", name)} - THEIRS
    table = {
        part for patch in Patch for form in patch.forms for text in form.values() for part in re.findall(r"\w+", text)
    }
    assert private - ours - table == {"_ftslurm"}
    assert private & table > {"_quorum_id", "_futures_lock", "_pg"}  # that it looks at the right thing


@pytest.mark.parametrize(
    ("missing", "patch", "means"),
    [
        ("torchft.process_group:create_store_client", "manager", "survivors of a death may wait"),
        ("torchft.manager:Manager._apply_pending_state_dict", "manager", "only the Lighthouse keeps"),
        ("torchft.manager:Manager.report_error", "manager", "may wait for the process group's time-out"),
        ("torch.optim.optimizer:register_optimizer_step_post_hook", "manager", "steps, quorums and hangs are not seen"),
        ("torchft.ddp:DistributedDataParallel._comm_hook", "comm hook", "may end the scripts of the others"),
        ("torchft.manager:Manager.disallow_state_dict_read", "compare", "groups are not compared"),
    ],
)
def test_a_patch_that_does_not_fit_is_left_out_and_said(missing: str, patch: str, means: str) -> None:
    said = start(missing, then="print(torchft.Manager.__name__)")
    (words,) = [line for line in said.splitlines() if f"the patch {patch};" in line]
    assert words.startswith("left out: left out for torchft")
    assert means in words
    assert re.split(r"[:.]", missing)[-1] in words
    assert said.endswith(f"goes on\n{'Manager' if patch == 'manager' else 'RunManager'}\n")


CLOSING = [
    "torchft.manager:ManagerServer",
    "torchft.manager:ManagerClient",
    "torchft.checkpointing.http_transport:HTTPTransport",
    "torchft.parameter_server:ParameterServer._handle_session",
    "torchft.parameter_server:_IPv6HTTPServer",
    "torchft.process_group:ProcessGroup.configure torchft.process_group:_rendezvous",  # of 0.2.0, of the nightly
]


@pytest.mark.parametrize("missing", CLOSING)
def test_a_torchft_that_cannot_be_closed_to_strangers_is_refused(missing: str) -> None:
    said = start(*missing.split())
    assert "goes on" not in said
    assert "cannot be closed to strangers" in said
    assert re.search(rf"no .*{re.split(r'[:.]', missing)[-1]}", said)
    assert "Install torchft 0.2.0" in said


OF_THE_RUN = """
from torchft import Manager
from torchft.manager import Manager as Other
import torchft.local_sgd
assert Manager is Other is torchft.Manager is torchft.manager.Manager is torchft.local_sgd.Manager
import inspect
assert Manager.__name__ == "RunManager" and "checkpoint_transport" in inspect.signature(Manager).parameters
print("everywhere", flush=True)
"""


def test_scripts_get_the_manager_of_the_run_wherever_they_import_it_from() -> None:
    assert start(then=OF_THE_RUN).splitlines()[-1] == "everywhere"


def test_a_process_group_may_not_host_a_store() -> None:
    said = start(then=HOST)
    assert said.splitlines()[-1] == "refused", said


HOST = """
try:
    torchft.process_group.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
except RuntimeError as error:
    print("refused" if "strangers" in str(error) else error, flush=True)
"""


HANDLE = """
from ftslurm.worker import closed_servers
group = torchft.process_group.ProcessGroupGloo()
if hasattr(group, "get_reconfigure_handle"):
    closed_servers.begin("127.0.0.1:5", "n1:7/store")
    print("handles:", group.get_reconfigure_handle(), group.get_reconfigure_handle(), sep="\\n", flush=True)
"""


@pytest.mark.skipif(STABLE, reason="in torchft 0.3 only")
def test_a_process_group_meets_the_others_in_the_groups_store_each_time_in_another_place() -> None:
    handles = [json.loads(line) for line in start(then=HANDLE).splitlines()[-2:]]
    assert [handle["store"] for handle in handles] == [
        f"n1:7/store/{handle['id']}/{n}" for n, handle in enumerate(handles)
    ]
