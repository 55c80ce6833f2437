"""Tests that torchft still needs our patches and that they work, with real groups in processes on loopback.

Each test first shows the defect without the patch: if it fails there, torchft is fixed and the patch can be removed.
"""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from loaded import LOADED
from process_groups import STABLE, set_up
from watched import manager_class, mend, watchers

from ftslurm.protocol import messages

REPOSITORY = Path(__file__).parents[2]


@contextmanager
def lighthouse(min_replicas=1):
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        "127.0.0.1:0", min_replicas, join_timeout_ms=60_000, quorum_tick_ms=50, heartbeat_timeout_ms=1000
    )
    try:
        yield "http://127.0.0.1:" + server.address().rpartition(":")[2]
    finally:
        server.shutdown()


class Groups:
    """Replica groups of one process each; output, reports and exit code of a group are in files named after it."""

    def __init__(self, folder, address):
        self.folder = folder
        self.address = address
        self.processes = {}

    def start(self, name, **options):
        process = LOADED.Process(target=train, args=(self.folder, name, self.address), kwargs=options)
        process.start()
        self.processes[name] = process

    def exit_code(self, name):
        self.processes[name].join(30)
        return self.processes[name].exitcode

    def printed(self, name):
        return (self.folder / f"{name}.log").read_text()

    def reports(self, name):
        path = self.folder / f"{name}.reports"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def result(self, name):
        return json.loads((self.folder / f"{name}.result").read_text())


@pytest.fixture
def groups(tmp_path, request):
    with lighthouse(min_replicas=getattr(request, "param", 1)) as address:
        groups = Groups(tmp_path, address)
        yield groups
        for process in groups.processes.values():
            process.kill()
            process.join()


def train(folder, name, address, patched, wrapper="DistributedDataParallel", steps=10, step_s=0.05, dies_at=None):
    """One replica group: a small model on its own random data, until `steps` steps are committed.

    With `dies_at` it is killed inside the allreduce of that step, or of the first one after it that three groups share.
    """
    log = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    import torch
    import torchft
    import torchft.ddp

    if patched:
        mend()
    reports = open(folder / f"{name}.reports", "a", buffering=1)  # noqa: SIM115 as long as the process lives
    watching = watchers(lambda report: reports.write(messages.encode_report(report, 0).decode()))

    torch.set_num_threads(1)
    torch.manual_seed(0)  # every group starts with the same weights: no heal at step 0
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    manager = one_rank_manager(address, name, model, manager_class(watching), init_sync=False)
    torch.manual_seed(sum(name.encode()))
    if wrapper == "DistributedDataParallel":
        model = torchft.DistributedDataParallel(manager, model, bucket_cap_mb=0.0001)  # several allreduces a step
    else:
        model = getattr(torchft.ddp, wrapper)(manager, model)
    optimizer = torchft.Optimizer(manager, torch.optim.SGD(model.parameters(), lr=0.1))

    allreduce = manager.allreduce

    def deadly_allreduce(tensor):
        if manager.current_step() >= dies_at and manager.num_participants() == 3:
            time.sleep(0.5)  # the other groups are inside theirs by now
            os.kill(os.getpid(), signal.SIGKILL)
        return allreduce(tensor)

    if dies_at is not None:
        manager.allreduce = deadly_allreduce
    while manager.current_step() < steps:
        optimizer.zero_grad()
        time.sleep(step_s)
        model(torch.randn(32, 8)).square().mean().backward()
        optimizer.step()
    watching.flush()
    weights = repr([parameter.tolist() for parameter in model.parameters()])
    result = {"step": manager.current_step(), "weights": hashlib.sha256(weights.encode()).hexdigest()}
    (folder / f"{name}.result").write_text(json.dumps(result))
    manager.shutdown(wait=False)


def one_rank_manager(address, name, model, kind=None, **options):
    import torch
    import torchft

    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = (kind or torchft.Manager)(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        min_replica_size=1,
        replica_id=name,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=address,
        **options,
    )
    manager.kept = store
    return manager


def until(condition, within_s=30):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


# --- ddp-comm-hook (D1) -------------------------------------------------------------------------------------------


def kill_one_of_three_inside_the_allreduce(groups, patched):
    for name in ("a", "b", "victim"):
        groups.start(name, patched=patched, dies_at=3 if name == "victim" else None)
    assert groups.exit_code("victim") == -signal.SIGKILL


@pytest.mark.skipif(not STABLE, reason="mended in torchft 0.3")
@pytest.mark.parametrize("groups", [2], indirect=True)
def test_without_the_patch_a_kill_inside_the_allreduce_ends_every_survivor(groups):
    kill_one_of_three_inside_the_allreduce(groups, patched=False)
    assert [groups.exit_code(name) for name in "ab"] == [1, 1]
    assert all("AssertionError" in groups.printed(name) for name in "ab")


@pytest.mark.parametrize("groups", [2], indirect=True)
def test_with_the_patch_the_survivors_finish_with_equal_weights(groups):
    kill_one_of_three_inside_the_allreduce(groups, patched=True)
    assert [groups.exit_code(name) for name in "ab"] == [0, 0], groups.printed("a") + groups.printed("b")
    assert groups.result("a") == groups.result("b")
    last = groups.reports("a")[-1]
    assert (last["step"], last["participants"]) == (10, 2)
    assert last["aborted"] >= 1


# --- pure-ddp (D2) ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [2], indirect=True)
def test_without_the_patch_pure_ddp_trains_different_models_and_says_nothing(groups):
    for name, step_s in (("a", 0.01), ("b", 0.3)):  # b's gradients come after a's optimizer has stepped
        groups.start(name, patched=False, wrapper="PureDistributedDataParallel", steps=3, step_s=step_s)
    assert [groups.exit_code(name) for name in "ab"] == [0, 0]
    for name in "ab":
        last = groups.reports(name)[-1]
        assert (last["step"], last["participants"], last["aborted"]) == (3, 2, 0)
    assert groups.result("a")["weights"] != groups.result("b")["weights"]


def test_with_the_patch_pure_ddp_is_refused_and_the_error_says_why(groups):
    groups.start("a", patched=True, wrapper="PureDistributedDataParallel")
    assert groups.exit_code("a") == 1
    assert "silently train different models. Use torchft.DistributedDataParallel" in groups.printed("a")


# --- otel-force-flush (D8) ----------------------------------------------------------------------------------------


def run_python(code, **environment):
    """Run a new Python that imports torchft itself, for behaviour decided at import."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


OTEL = {"TORCHFT_USE_OTEL": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


def test_only_with_the_patch_torchft_can_be_imported_with_opentelemetry_and_logs_through_it():
    python = run_python(
        """
import sys
try:
    import torchft
except TypeError as error:
    print("without:", error)
for name in [name for name in sys.modules if name.startswith("torchft")]:
    del sys.modules[name]
from ftslurm.worker import torchft_patches
torchft_patches.before_import()
import logging, os, torchft.otel
logging.getLogger("torchft_commits").warning("a commit")
exporter = torchft.otel.TeeLogExporter([])
print("flushed", exporter.force_flush())
for provider in torchft.otel._LOGGER_PROVIDER.values():
    provider.force_flush(1000)
os._exit(0)  # nobody listens for OpenTelemetry here, and it would go on trying
""",
        **OTEL,
    )
    assert "without: Can't instantiate abstract class TeeLogExporter" in python.stdout, python.stderr
    assert "flushed True" in python.stdout, python.stderr
    assert '"body": "a commit"' in python.stdout


# --- connect-timeout (D9) -----------------------------------------------------------------------------------------


def measure_connecting(folder, patched):
    """Measure how long a Manager tries to reach a missing Lighthouse; the variable is 1 s, the argument 3 s."""
    import torch

    os.environ["TORCHFT_CONNECT_TIMEOUT_SEC"] = "1"
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        kind = manager_class() if patched else None
        started = time.monotonic()
        with pytest.raises(RuntimeError, match="failed to connect"):
            one_rank_manager(
                f"http://127.0.0.1:{closed.getsockname()[1]}",
                "a",
                torch.nn.Linear(1, 1),
                kind,
                connect_timeout=timedelta(seconds=3),
            )
        (folder / f"seconds-{patched}").write_text(str(time.monotonic() - started))


def test_the_connect_timeout_variable_is_honoured_only_with_the_patch(tmp_path):
    processes = [LOADED.Process(target=measure_connecting, args=(tmp_path, patched)) for patched in (False, True)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    without, patched = (float((tmp_path / f"seconds-{patched}").read_text()) for patched in (False, True))
    assert 1 <= patched < 3 <= without


# --- abort-on-error -----------------------------------------------------------------------------------------------


def hang_up(folder, patched):
    """Measure when a member of a Gloo group that waits for another learns of the other's error."""
    import threading

    import torch
    import torchft

    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    groups = [torchft.ProcessGroupGloo(timeout=timedelta(seconds=4)) for _ in range(2)]
    threads = [
        threading.Thread(target=set_up, args=(group, store.port, 3, rank, 2)) for rank, group in enumerate(groups)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kind = manager_class() if patched else torchft.Manager
    manager = kind.__new__(kind)
    manager._errored, manager._pg = None, groups[1]
    threading.Timer(0.5, manager.report_error, (RuntimeError("a neighbour died"),)).start()
    started = time.monotonic()
    with pytest.raises(RuntimeError):
        groups[0].allreduce([torch.zeros(4)], torch.distributed.ReduceOp.SUM).wait()
    (folder / f"seconds-{patched}").write_text(str(time.monotonic() - started))
    os._exit(0)


def test_a_peer_hears_at_once_of_an_error_only_with_the_patch(tmp_path):
    processes = [LOADED.Process(target=hang_up, args=(tmp_path, patched)) for patched in (False, True)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    without, patched = (float((tmp_path / f"seconds-{patched}").read_text()) for patched in (False, True))
    assert patched < 3 < without


# --- heartbeats -------------------------------------------------------------------------------------------------------


def intervals(folder):
    """Note the heartbeat intervals of three Managers: without the patch, with it, and with one that the script sets."""
    import torch
    import torchft

    os.environ["FTSLURM_MANAGER_HEARTBEAT_MS"] = "700"
    noted, real = [], torchft.manager.ManagerServer

    def server(*args, **kwargs):
        noted.append(kwargs["heartbeat_interval"].total_seconds())
        return real(*args, **kwargs)

    torchft.manager.ManagerServer = server
    with lighthouse() as address:
        model = torch.nn.Linear(1, 1)
        one_rank_manager(address, "a", model).shutdown(wait=False)
        kind = manager_class()
        one_rank_manager(address, "b", model, kind).shutdown(wait=False)
        one_rank_manager(address, "c", model, kind, heartbeat_interval=timedelta(milliseconds=50)).shutdown(wait=False)
    (folder / "intervals").write_text(json.dumps(noted))
    os._exit(0)


def test_managers_send_the_runs_heartbeats_unless_the_script_says_otherwise(tmp_path):
    process = LOADED.Process(target=intervals, args=(tmp_path,))
    process.start()
    process.join(60)
    assert json.loads((tmp_path / "intervals").read_text()) == [0.1, 0.7, 0.05]


# --- the hang at exit (D3), fixed by the module that runs the script ----------------------------------------------

FAILS_WHILE_WAITING_FOR_A_QUORUM = """
import sys
sys.path[:0] = TESTS
import torch
from test_torchft_compat import one_rank_manager, timedelta
address, quorum_timeout_s = sys.argv[1], float(sys.argv[2])
manager = one_rank_manager(
    address, "a", torch.nn.Linear(1, 1), quorum_timeout=timedelta(seconds=quorum_timeout_s)
)
manager.start_quorum()
print("failing", flush=True)
raise ValueError("the script's own error")
"""


def seconds_to_exit(command, folder, quorum_timeout_s):
    """Measure how long COMMAND SCRIPT ARGS runs after the script's uncaught error while it waits for a quorum."""
    script = folder / "fails.py"
    script.write_text(FAILS_WHILE_WAITING_FOR_A_QUORUM.replace("TESTS", repr(sys.path)))
    with lighthouse(min_replicas=2) as address:
        arguments = [*command, str(script), address, str(quorum_timeout_s)]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        with subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"failing\n"
            failed = time.monotonic()
            _, stderr = process.communicate(timeout=60)
            assert b"the script's own error" in stderr
            assert process.returncode != 0
            return time.monotonic() - failed


@pytest.mark.nightly
def test_without_our_runner_an_uncaught_error_hangs_until_the_quorum_times_out(tmp_path):
    assert seconds_to_exit([sys.executable], tmp_path, quorum_timeout_s=3) > 2.5


# --- the Observer, on real groups ---------------------------------------------------------------------------------


def told(reports, *keys):
    """Return the values of `keys`, without consecutive repeats."""
    values = [tuple(report[key] for key in keys) for report in reports]
    return [value for value, before in zip(values, [None, *values], strict=False) if value != before]


def test_the_observer_sees_steps_a_dying_group_and_the_heal_of_its_successor(groups):
    for name in ("stays", "leaves"):
        groups.start(name, patched=True, steps=10_000)
    until(lambda: any(report["participants"] == 2 and report["step"] > 5 for report in groups.reports("stays")))
    groups.processes["leaves"].kill()
    until(lambda: groups.reports("stays")[-1]["participants"] == 1)
    groups.start("joins", patched=True, steps=10_000)
    until(lambda: groups.reports("stays")[-1]["participants"] == 2)
    until(lambda: len(groups.reports("joins")) > 1)

    stays, joins = groups.reports("stays"), groups.reports("joins")
    assert [participants for (participants,) in told(stays, "participants")][-3:] == [2, 1, 2]
    assert [report["step"] for report in stays] == sorted(report["step"] for report in stays)
    assert stays[-1]["step"] >= stays[-1]["committed"] > 5
    assert max(report["gap_s"] or 0 for report in stays) > 0.5  # it waited for the dead group's heartbeat to expire
    assert joins[0]["committed"] == 1
    assert joins[0]["step"] > 5
    assert joins[-1]["participants"] == 2
    assert joins[-1]["quorum_id"] == stays[-1]["quorum_id"]
