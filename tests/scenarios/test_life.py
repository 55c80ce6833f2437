"""How runs start, stop and fail, on this machine and on a real Slurm, with the same table."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import SCRIPTS, SLURM_BY_DAY, Backend, Run, all_processes

pytestmark = pytest.mark.light
IDLE = """
import os, signal, sys, time
{extra}
print("pid", os.getpid(), flush=True)
time.sleep(600)
"""

SLURM = pytest.param("slurm", marks=pytest.mark.slurm)
here = pytest.mark.parametrize("backend", ["local"], indirect=True)  # where the launcher makes no difference
on_slurm = pytest.mark.parametrize("backend", [SLURM], indirect=True)  # or where srun is the harder of the two


@pytest.mark.parametrize(
    ("backend", "text", "error"),
    [
        pytest.param("slurm", "exec('def broken(:')\n", "SyntaxError", marks=pytest.mark.slurm, id="syntax error"),
        pytest.param(
            "local",
            "import no_such_module\n",
            "No module named 'no_such_module'",
            marks=pytest.mark.nightly,
            id="missing module",
        ),
        pytest.param(
            "local", "open('/no/such/file')\n", "FileNotFoundError", marks=pytest.mark.nightly, id="missing file"
        ),
    ],
    indirect=["backend"],
)
def test_a_script_that_cannot_start_ends_the_run_at_once_with_its_words(
    backend: Backend, text: str, error: str
) -> None:
    run = backend.start("groups.count=2", script=backend.script(text)).finish(1)
    (end,) = run.named("run_finished")
    assert error in str(end["failure"])
    assert error in run.text
    assert len(run.named("step_launched")) <= 5  # no budget is wasted: at most one more launch each


@here
def test_a_group_whose_budget_is_used_up_is_given_up_and_the_others_go_on(backend: Backend) -> None:
    script = backend.script(
        "import os, runpy, sys\n"
        "if os.environ['REPLICA_GROUP_ID'] == '1':\n    sys.exit(7)\n"
        f"sys.argv[0] = {str(SCRIPTS / 'light.py')!r}\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    budget = ("restart.max_per_group=1", "restart.backoff_s=0.1")
    args: dict[str, object] = {"open-end": True, "steps-file": str(backend.tmp_path / "steps0")}
    run = backend.start("groups.count=2", *budget, script=script, args=args)
    run.wait_for("group_given_up", group=1)
    run.end_soon()
    run.finish(4)
    assert run.ask("wait")[0] == 4
    assert "without group 1" in run.text
    assert len(run.named("step_launched", group=1)) == 2
    assert len(run.named("step_launched", group=0)) == 1
    (given_up,) = run.named("group_given_up", group=1)
    assert "restart.max_per_group" in str(given_up["reason"])
    (end,) = run.named("run_finished")
    assert "1 of 2 groups finished" in str(end["reason"])


@here
def test_with_restart_never_and_too_few_groups_the_run_fails_and_names_the_setting(backend: Backend) -> None:
    script = backend.script(
        "import os, sys, time\nif os.environ['REPLICA_GROUP_ID'] == '1':\n    sys.exit(7)\ntime.sleep(600)\n"
    )
    run = backend.start("groups.count=2", "groups.min=2", "restart=never", script=script).finish(1)
    (end,) = run.named("run_finished")
    assert "groups.min=2" in str(end["reason"])
    assert "restart.max_per_group=0" in str(end["reason"])
    assert len(run.named("step_launched", group=1)) == 1


@here
def test_a_group_that_fails_after_another_has_finished_is_not_started_again(backend: Backend) -> None:
    script = backend.script(
        "import os, sys, time\nif os.environ['REPLICA_GROUP_ID'] == '0':\n    sys.exit(0)\n"
        "journal = os.path.join(os.environ['FTSLURM_RUN_DIR'], 'events.jsonl')\n"
        "while not any('step_exited' in line and '\"group\":0' in line for line in open(journal)):\n"
        "    time.sleep(0.05)\n"
        "sys.exit(5)\n"
    )
    run = backend.start("groups.count=2", script=script).finish(1)  # no step was committed: nobody did group 1's share
    assert len(run.named("step_launched", group=1)) == 1
    (given_up,) = run.named("group_given_up", group=1)
    assert "already finished" in str(given_up["reason"])


@here
@pytest.mark.nightly
def test_groups_train_on_without_one_that_has_left_early_although_they_are_fewer_than_the_least(
    backend: Backend,
) -> None:
    args: dict[str, object] = {
        "steps": 300,
        "step-time": 0.05,
        "fail-at": 10,
        "fail-group": 2,
        "fail-how": "exit0",
        "timeout": 60,
    }
    run = backend.start("groups.count=3", "groups.min=3", args=args).finish(warns=True)
    (end,) = run.named("run_finished")
    assert (end["outcome"], end["steps"]) == ("succeeded", 300)
    assert [len(run.named("step_launched", group=group)) for group in range(3)] == [1, 1, 2]
    assert [run.steps(group)[-1]["step"] for group in range(3)] == [300] * 3


@pytest.mark.parametrize(
    ("backend", "lighthouse"),
    [pytest.param("slurm", "ftslurm", marks=pytest.mark.slurm), ("local", "torchft")],
    indirect=["backend"],
)
def test_with_every_group_down_the_run_fails_and_never_restarts_from_step_0(backend: Backend, lighthouse: str) -> None:
    run = backend.start("groups.count=2", f"lighthouse={lighthouse}", args={"steps": 500, "step-time": 0.05})
    run.until(lambda: all(len(run.steps(g)) >= 5 for g in (0, 1)), "5 steps")
    for pid in [run.pid(0), run.pid(1)]:
        os.kill(pid, signal.SIGKILL)
    run.finish(1)
    (end,) = run.named("run_finished")
    assert "restart.on_state_loss" in str(end["reason"])
    assert all(int(s["attempt"]) == 0 for g in (0, 1) for s in run.steps(g))


@on_slurm
def test_stop_gives_scripts_their_grace_and_kills_those_that_ignore_sigterm(backend: Backend) -> None:
    choice = (
        "def bye(*_): print('bye', flush=True); sys.exit(0)\n"
        "polite = os.environ['REPLICA_GROUP_ID'] == '0'\n"
        "signal.signal(signal.SIGTERM, bye if polite else signal.SIG_IGN)"
    )
    run = backend.start("groups.count=2", script=backend.script(IDLE.format(extra=choice)))
    run.pid(0), run.pid(1)
    began = time.monotonic()
    stop(run)
    run.finish(1, outcome="stopped")
    assert time.monotonic() - began >= 2.0  # stop.grace_s, because one ignores SIGTERM
    assert "bye" in run.rank_log(0)
    assert run.named("command")
    assert {e["cause"] for e in run.named("step_exited") if e["group"] is not None} == {"cancelled"}


@on_slurm
def test_stop_while_the_workers_still_import_torch(backend: Backend) -> None:
    run = backend.start("groups.count=2", script=backend.script(IDLE.format(extra="")))
    run.wait_for("step_launched", group=1)
    stop(run)
    run.finish(1, outcome="stopped")


@on_slurm
def test_a_workers_children_die_with_it_whatever_session_they_are_in(backend: Backend) -> None:
    run = backend.start("groups.count=2", args={"open-end": True, "step-time": 0.1, "children": 2})
    run.until(lambda: all(len(run.steps(g)) >= 10 for g in (0, 1)), "10 steps")
    match = re.search(r"children (\d+) (\d+)", run.rank_log(1))
    assert match
    children = [int(match[1]), int(match[2])]
    assert all(Path(f"/proc/{pid}").exists() for pid in children)
    run.kill(group=1)
    run.wait_for("step_exited", group=1, attempt=0)
    run.until(lambda: not any(_lives(pid) for pid in children), "the children of the killed rank are gone", 10)
    run.wait_until_back(1)
    steps = run.end_soon()
    run.finish()  # and those of the ranks that ended well are gone too
    run.check_training(steps, survivors={0}, returned={1})


@on_slurm
def test_a_script_that_prints_a_megabyte_a_second_slows_nothing_down(backend: Backend) -> None:
    run = backend.start("groups.count=2", args={"steps": 60, "step-time": 0.05, "noise-mb-s": 2}).finish()
    run.check_training(60, survivors={0, 1})
    assert len(run.rank_log(0)) > 3_000_000


def test_paths_and_arguments_with_spaces_and_quotes_arrive_whole(backend: Backend, weird_tmp_path: Path) -> None:
    script = weird_tmp_path / "my script.py"
    script.write_text(
        "import json, os, sys\n"
        "print('ARGS', json.dumps(sys.argv), flush=True)\n"
        "print('ENV', json.dumps(os.environ['WEIRD']), flush=True)\n"
        "print('PATH0', sys.path[0], flush=True)\n"
    )
    number = len(backend.runs)
    root = backend.tmp_path / f"runs{number}"
    words = [f"run.dir='{_escape(str(root / 'run of mine'))}'"]
    words += ["job.env.WEIRD='a,b=\\'c\\' \"d\" $HOME'", "job.args.text='two words; echo \"$HOME\"'"]
    run = backend.start("groups.count=1", *words, script=script).finish()
    log = run.rank_log(0)
    assert r'"two words; echo \"$HOME\""' in log
    assert r"""ENV "a,b='c' \"d\" $HOME""" in log
    assert f"PATH0 {weird_tmp_path}" in log


@on_slurm
def test_scripts_find_the_world_as_under_torchrun(backend: Backend) -> None:
    script = backend.script(
        "import json, os, sys\n"
        "from multiprocessing import get_context\n"
        "def square(x): return x * x\n"
        "if __name__ == '__main__':\n"
        "    print('ENV', json.dumps(dict(os.environ)), flush=True)\n"
        "    print('STDIN', repr(sys.stdin.read()), flush=True)\n"
        "    for method in ('spawn', 'forkserver', 'fork'):\n"
        "        with get_context(method).Pool(2) as pool:\n"
        "            print(method, pool.map(square, [1, 2, 3]), flush=True)\n"
        "    print('no newline', end='')\n"
        "    sys.exit(0)\n"
    )
    run = backend.start("groups.count=2", "groups.workers=2", script=script).finish()
    seen = {}
    for group in (0, 1):
        for rank in (0, 1):
            log = run.rank_log(group, rank)
            assert "STDIN ''" in log
            assert all(f"{method} [1, 4, 9]" in log for method in ("spawn", "forkserver", "fork"))
            assert log.endswith("no newline")
            seen[group, rank] = json.loads(re.search(r"ENV (.*)", log)[1])  # type: ignore[index]
    one = seen[1, 1]
    expected = {
        "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_RANK": "1", "ROLE_WORLD_SIZE": "2", "REPLICA_GROUP_ID": "1", "NUM_REPLICA_GROUPS": "2",
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_USE_AGENT_STORE": "True", "FTSLURM_GLOBAL_RANK": "3",
        "FTSLURM_GLOBAL_WORLD_SIZE": "4", "FTSLURM_ATTEMPT": "0", "FTSLURM_RUN_DIR": str(run.dir),
        "FTSLURM_LEADER": "0",
    }  # fmt: skip
    assert {name: one[name] for name in expected} == expected
    assert [place for place, environ in seen.items() if environ["FTSLURM_LEADER"] == "1"] == [(0, 0)]
    assert {e["MASTER_ADDR"] for e in seen.values()} == {"127.0.0.1"}
    assert len({e["MASTER_PORT"] for e in seen.values()}) == 4  # each rank's own way to its group's store


@on_slurm
def test_groups_that_share_nodes_have_gpus_of_their_own(backend: Backend) -> None:
    backend.environ["CUDA_VISIBLE_DEVICES"] = "0,1,2,3"
    script = backend.script("import os\nprint('GPUS', os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n")
    run = backend.start("groups.count=2", "groups.per_node=2", "groups.gpus=2", script=script).finish()
    shares = [re.search(r"GPUS (.*)", run.rank_log(g))[1] for g in (0, 1)]  # type: ignore[index]
    assert shares == ["0,1", "2,3"]
    assert len({str(e["nodes"]) for e in run.named("step_launched") if e["group"] is not None}) == 1


def test_ctrl_c_stops_a_local_run_and_leaves_one_on_slurm_alone(backend: Backend) -> None:
    run = backend.start("groups.count=2", script=backend.script(IDLE.format(extra="")))
    run.pid(0), run.pid(1)
    os.killpg(run.process.pid, signal.SIGINT)  # what a terminal does
    if backend.name == "local":
        run.finish(130, outcome="stopped")
        return
    assert run.process.wait(30) == 130
    assert f"ftslurm status -w {run.dir}" in run.text
    assert run.processes()
    assert not run.named("run_finished")
    stop(run)
    run.until(lambda: run.named("run_finished"), "the stopped run ends")
    run.finish(130, outcome="stopped")


@here
def test_a_local_run_whose_processes_all_get_sigterm_shows_its_end(backend: Backend) -> None:
    run = backend.start("groups.count=2", script=backend.script(IDLE.format(extra="")))
    run.pid(0), run.pid(1)
    os.kill(run.process.pid, signal.SIGTERM)
    os.killpg(run.process.pid, signal.SIGTERM)  # what `timeout` does: first its child, then the group
    run.finish(130, outcome="stopped")
    assert re.search("^run .* was stopped", run.text, re.MULTILINE)


def test_workers_end_themselves_when_their_controller_is_gone(backend: Backend) -> None:
    quick = ("health.lost_after_s=2",)
    run = backend.start("groups.count=2", *quick, script=backend.script(IDLE.format(extra="")))
    workers = [run.pid(0), run.pid(1)]
    controller = int(str(run.wait_for("run_started")["pid"]))
    sruns = [p for p in run.processes() if _name(p) == "srun"]
    keeper = [_parent(controller)] if backend.name == "slurm" else []  # else the next controller adopts them
    for pid in [*keeper, controller, *sruns]:  # all of srun, its helper too: no process is left that could clean up
        _kill(pid)
    run.until(lambda: not any(_lives(pid) for pid in workers), "orphaned workers end", 30)
    run.until(lambda: not run.processes(), "everything of the run is gone", 30)
    run.process.wait(60)


@SLURM_BY_DAY
def test_start_timeout_kills_a_worker_that_never_gets_ready(backend: Backend) -> None:
    # An interpreter that hangs instead of importing: job.python is a list, so any prefix can come first.
    hang = backend.script("import time; time.sleep(600)\n", "hang.py")
    run = backend.start(
        "groups.count=1", "health.start_timeout_s=3", "restart.max_per_group=1", "restart.backoff_s=0.1",
        f"job.python=[{sys.executable}, {hang}]", script=backend.script("pass\n"),
    ).finish(1)  # fmt: skip
    assert [e["cause"] for e in run.named("step_exited", group=0)] == ["start_timeout"] * 2


@here
@pytest.mark.nightly
def test_a_node_where_all_have_finished_is_not_missed_while_another_rank_goes_on(backend: Backend) -> None:
    text = "import os, time\ntime.sleep(6 if os.environ['RANK'] == '0' else 0)\n"  # as one that evaluates at the end
    settings = ("groups.count=1", "groups.nodes=2", "health.lost_after_s=2")
    run = backend.start(*settings, script=backend.script(text)).finish()
    assert [e["cause"] for e in run.named("step_exited", group=0)] == ["ok"]


def stop(run: Run) -> None:
    subprocess.run([sys.executable, "-m", "ftslurm", "stop", str(run.dir)], check=True, capture_output=True, timeout=60)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _name(pid: int) -> str:
    return next((name for other, name, _ in all_processes() if other == pid), "")


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _escape(text: str) -> str:
    return text.replace("'", "\\'")
