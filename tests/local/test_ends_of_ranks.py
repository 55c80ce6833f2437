"""How a rank has ended is what its guard sees, whatever its Python says: os._exit, fork, exec, SIGTERM."""

from __future__ import annotations

import signal
import time

import pytest
from harness import Backend, Run

TRAIN = """
import os, signal, sys, time
from light_worker import Manager
G, R, A = (int(os.environ[name]) for name in ("REPLICA_GROUP_ID", "RANK", "FTSLURM_ATTEMPT"))
STEPS = int(sys.argv[1])
print("pid", os.getpid(), flush=True)
manager, told = Manager(), []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))

def train(until=STEPS):
    while manager.current_step() < until and not told:
        manager.start_quorum()
        manager.wait_quorum()
        time.sleep(0.02)
        manager.should_commit()
"""


def start(local: Backend, end: str, *overrides: str, groups: int = 2, steps: int = 20) -> Run:
    """Start a training whose script ends with these lines."""
    words = (f"groups.count={groups}", f"job.args=[{steps}]", "restart.backoff_s=0.1", *overrides)
    return local.start(*words, script=local.script(TRAIN + end))


def causes(run: Run) -> list[list[object]]:
    """Return how the attempts of each group have ended."""
    ends = [e for e in run.named("step_exited") if e["group"] is not None]
    return [[e["cause"] for e in ends if e["group"] == group] for group in sorted({int(str(e["group"])) for e in ends})]


@pytest.mark.light
@pytest.mark.parametrize("leaves", [0, 1, 2])
def test_ranks_that_say_nothing_at_their_end_hold_nobody_up(local: Backend, leaves: int) -> None:
    end = f"train()\nif R == {leaves}:\n    time.sleep(0.3)\n    os._exit(0)\n"  # rank 0 has the Manager's server
    run = start(local, end, "groups.workers=3", groups=1).finish()
    assert causes(run) == [["ok"]]


FORKS = """
import os, sys
codes = {"sys.exit(0)": 0, "sys.exit(3)": 3, "raise ValueError(1)": 1, "pass": 0}
for how, code in codes.items():
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code, how
        continue
    print("a child", flush=True)
    exec(how)
    break
else:
    print("parent", flush=True)
"""


@pytest.mark.light
def test_a_child_that_the_script_has_forked_ends_as_in_python_and_is_not_taken_for_the_rank(local: Backend) -> None:
    run = local.start("groups.count=2", "restart=never", script=local.script(FORKS)).finish()
    assert causes(run) == [["ok"], ["ok"]]
    assert [run.rank_log(0).count(word) for word in ("a child\n", "parent\n")] == [4, 1]


@pytest.mark.light
@pytest.mark.parametrize("code", [0, 3])
def test_a_script_that_becomes_another_program_is_told_of_and_its_end_is_the_programs(
    local: Backend, code: int
) -> None:
    program = f"import time; time.sleep(3); raise SystemExit({code})"
    script = local.script(f"import os, sys\nos.execv(sys.executable, [sys.executable, '-c', {program!r}])\n")
    run = local.start("groups.count=2", "restart=never", script=script)
    run.finish(int(code != 0), warns=True)
    assert causes(run) == [["user_error" if code else "ok"]] * 2
    assert "has replaced its process" in str(run.named("warning")[0]["text"])


MANAGER = """
def train():
    import torchft
    group = torchft.ProcessGroupGloo()
    torchft.Manager(pg=group, min_replica_size=1, state_dict=dict, load_state_dict=print).start_quorum()
if __name__ == "__main__":
    train()
"""
WRAPPERS = {
    "subprocess": "subprocess.run([sys.executable, 'training.py'], check=True)",
    "shell": "os.system(f'cd . && {sys.executable} training.py; true')",
    "spawn": "multiprocessing.get_context('spawn').Process(target=training.train).start()",
    "exec": "os.execv(sys.executable, [sys.executable, 'training.py'])",
}


@pytest.mark.parametrize("how", [*WRAPPERS])
def test_a_training_in_another_program_is_refused_at_once_and_the_summary_says_what_to_do(
    local: Backend, how: str
) -> None:
    script = local.script(
        f"import multiprocessing, os, subprocess, sys, training\nif __name__ == '__main__':\n    {WRAPPERS[how]}\n"
    )
    (script.parent / "training.py").write_text(MANAGER)
    run = local.start("groups.count=2", "restart=never", "job.longest_step_s=120", script=script)
    run.finish(1, warns=how == "exec")
    assert causes(run) == [["user_error"]] * 2
    summary = run.text.partition(" failed: every group failed before its first step")[2]
    assert ("(os.exec) with a training" if how == "exec" else "makes its Manager in a child process") in summary
    assert "runpy.run_path" in summary
    assert not run.named("quorum_refused")


# --- exit code 0 before the end of the training -----------------------------------------------------------------------

LEAVES = "train()\nsys.exit(0)\n"


def term(*groups: int) -> str:
    """Return the setting that sends SIGTERM to rank 0 of these groups at step 40."""
    return f"faults.plan=[{','.join(f'{{kind: term, group: {group}, at: 40}}' for group in groups)}]"


@pytest.mark.light
@pytest.mark.parametrize("total", [(), ("job.total_steps=400",)])
def test_a_group_that_leaves_after_sigterm_comes_back_and_the_training_is_whole(
    local: Backend, total: tuple[str, ...]
) -> None:
    run = start(local, LEAVES, *total, term(1), groups=3, steps=400).finish()
    assert causes(run) == [["ok"], ["left_on_sigterm", "ok"], ["ok"]]
    assert [e["step"] for e in run.named("step_exited", cause="ok") if e["group"] is not None] == [400] * 3


@pytest.mark.light
@pytest.mark.parametrize(
    ("end", "setting", "cause"),
    [
        pytest.param(LEAVES, term(0, 1), "left_on_sigterm", id="their guards know it"),
        pytest.param("train(40)\n", "job.total_steps=400", "left_early", id="by themselves"),
    ],
)
def test_groups_that_all_leave_early_have_not_succeeded(local: Backend, end: str, setting: str, cause: str) -> None:
    run = start(local, end, setting, steps=400).finish(1)
    (last,) = run.named("run_finished")
    assert "no group is left that holds the state" in str(last["reason"])
    assert {end for ends in causes(run) for end in ends} - {"cancelled", "killed"} == {cause}


@pytest.mark.light
def test_a_group_that_stops_early_by_itself_is_told_of_and_comes_back(local: Backend) -> None:
    run = start(local, "train(60 if (G, A) == (0, 0) else STEPS)\n", steps=250)
    run.wait_until_back(0)
    run.finish(warns=True)
    assert causes(run)[0] == ["ok", "left_early", "ok"]  # it had seemed to finish
    assert "group 0 ended with exit code 0 at step 60" in str(run.named("warning")[0]["text"])


@pytest.mark.light
def test_the_group_of_a_rank_that_leaves_early_is_restarted_and_that_rank_is_named(local: Backend) -> None:
    end = "train(30 if (G, R, A) == (0, 1, 0) else STEPS)\nos._exit(0) if R else None\n"
    run = start(local, end, "groups.workers=2", "job.total_steps=200", steps=200)
    run.wait_until_back(0)
    run.finish(warns=True)
    assert causes(run) == [["left_early", "ok"], ["ok"]]
    (left,) = run.named("step_exited", cause="left_early")
    assert (left["rank"], left["error"]) == (1, "exit code 0 at step 30 of 200")


ALONE = """
if (G, R, A) == (0, {rank}, 0):
    train(30)
    {leaves}
train()
"""


@pytest.mark.light
@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize(("rank", "leaves"), [(1, "os._exit(0)"), (0, "sys.exit(0)"), (0, "os._exit(0)")])
def test_a_rank_that_leaves_alone_brings_its_group_down_and_the_training_is_whole(
    local: Backend, groups: int, rank: int, leaves: str
) -> None:
    run = start(local, ALONE.format(rank=rank, leaves=leaves), "groups.workers=2", groups=groups, steps=200)
    run.wait_until_back(0)
    run.finish(warns=True)
    assert causes(run) == [["left_early", "ok"], *[["ok"]] * (groups - 1)]
    (left,) = run.named("step_exited", cause="left_early")
    assert (left["rank"], left["error"]) == (rank, "exit code 0 at step 30")


@pytest.mark.light
def test_a_rank_that_leaves_alone_after_sigterm_is_said_to_have(local: Backend) -> None:
    run = start(local, LEAVES, "groups.workers=2", term(1), steps=300).finish()
    assert causes(run) == [["ok"], ["left_on_sigterm", "ok"]]


@pytest.mark.light
@pytest.mark.parametrize("slow", [0, 1])
def test_a_rank_that_works_on_after_the_last_step_is_waited_for_although_it_has_asked_for_a_quorum(
    local: Backend, slow: int
) -> None:
    end = f"train()\nmanager.start_quorum()\nmanager.wait_quorum()\ntime.sleep(8 * (R == {slow}))\n"
    run = start(local, end, "groups.workers=2").finish()
    assert causes(run) == [["ok"], ["ok"]]


@pytest.mark.light
def test_a_group_that_works_on_after_the_end_of_its_manager_is_not_called_silent(local: Backend) -> None:
    end = "train()\nif G == 1:\n    manager.shutdown()\ntime.sleep(7)\n"
    run = start(local, end, groups=3).finish()
    assert not run.named("group_set_aside")
    assert causes(run) == [["ok"]] * 3


@pytest.mark.light
def test_a_group_that_was_away_while_the_others_finished_ends_the_run(local: Backend) -> None:
    settings = ("groups.count=3", "groups.min=1", "health.hang_after_s=0", "restart=never")
    run = local.start(*settings, args={"steps": 60, "step-time": 0.1})
    run.wait_for_steps(10, 3)
    run.kill(2, number=signal.SIGSTOP)
    for group in (0, 1):
        run.wait_for("step_exited", group=group)
    run.kill(2, number=signal.SIGCONT)
    since = time.monotonic()
    run.finish(4)
    assert time.monotonic() - since < 20
    assert "2 of 3 groups finished; group 2 did not" in run.text
    assert "it can heal from nobody: the others have finished" in str(run.named("step_exited", group=2)[0]["error"])


HOLDS = {
    "a thread": "import threading; threading.Thread(target=time.sleep, args=(600,), name='uploads').start()",
    "a child": "import multiprocessing as m; m.get_context('fork').Process(target=time.sleep, args=(600,)).start()",
    "atexit": "import atexit; atexit.register(time.sleep, 600)",
}


@pytest.mark.light
@pytest.mark.parametrize("what", HOLDS)
def test_a_process_that_its_own_script_holds_is_told_of_and_ended_at_last(what: str, local: Backend) -> None:
    soon = ("job.longest_step_s=1", "health.lost_after_s=1")
    run = start(local, f"{HOLDS[what]}\ntrain()\n", *soon).finish(warns=True)
    assert [end["cause"] for end in run.named("step_exited") if end["group"] is not None] == ["ok", "ok"]
    for warning in run.named("warning"):
        whom = "uploads" if what == "a thread" else "a child process or a function of atexit"
        assert f"Python waits for {whom}" in str(warning["text"])
