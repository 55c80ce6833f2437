"""A script that closes descriptors which it has not opened, as programs do that become daemons, and ends well."""

from __future__ import annotations

import sys

import pytest
from harness import SCRIPTS, Backend, quoted

ALL = "import os\nos.closerange(3, 1024)\n"
FORMS = {
    "all": f"{ALL}print('bye')\n",
    "each-second": "import os\nfor number in range(3, 64, 2):\n    try: os.close(number)\n    except OSError: pass\n",
    "before-torch": f"{ALL}import torch\nimport torch.distributed\nprint(torch.ones(2).sum())\n",
    "its-own-group": ALL
    + "import torch.distributed as dist\n"
    + "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
    + "dist.barrier()\ndist.destroy_process_group()\n",
    "and-the-standard-ones": "import os\nos.closerange(0, 1024)\nfor _ in range(3): os.open(os.devnull, os.O_RDWR)\n",
    "and-takes-their-numbers": f"{ALL}own = [os.open(__file__, os.O_RDONLY) for _ in range(60)]\n",
    "with-sys-exit": f"{ALL}raise SystemExit(0)\n",
}
DAY = ("all", "and-takes-their-numbers")
FORKS = """
import os
if child := os.fork():
    os.waitpid(child, 0)
else:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, 1024)
    os._exit(0)
"""


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=[] if form in DAY else [pytest.mark.nightly]) for form in FORMS]
)
def test_it_succeeds_and_the_loss_is_said(local: Backend, form: str) -> None:
    run = local.start("groups.count=2", script=local.script(FORMS[form])).finish(warns=True)
    assert {ended["cause"] for ended in run.named("step_exited") if ended["group"] is not None} == {"ok"}
    assert all("has closed descriptors" in str(line["text"]) for line in run.named("warning"))


@pytest.mark.nightly
def test_a_training_that_closes_them_at_its_end_has_succeeded(local: Backend) -> None:
    text = f"""
import atexit, gc, os, runpy, sys
sys.path.insert(0, {str(SCRIPTS)!r})
made = runpy.run_path({str(SCRIPTS / "toy.py")!r}, run_name="__main__")
made["manager"]._pg.shutdown()
made.clear()
gc.collect()  # ends Gloo's thread, which aborts the process when its descriptor is closed
atexit.unregister(os._exit)
"""
    run = local.start("groups.count=2", script=local.script(text + ALL, "toy.py"), args={"steps": 10})
    run.finish(warns=True).check_training(10, survivors={0, 1})


def test_a_daemon_that_closes_its_copies_harms_nobody(local: Backend) -> None:
    local.start("groups.count=1", script=local.script(FORKS)).finish()


def test_a_script_that_closes_them_and_fails_has_failed(local: Backend) -> None:
    script = local.script(f"{ALL}raise RuntimeError('on purpose')\n")
    run = local.start("groups.count=1", "restart.max_per_group=0", script=script).finish(code=1)
    assert "on purpose" in str(run.named("step_exited", group=0)[0]["error"])


SLOW_PROBE = """
import sys, time
from ftslurm.guard import guard
from ftslurm.worker import checkpoint_folder
del sys.argv[1:4]
checkpoint_folder.complaint = lambda environ: time.sleep(1)
guard.main("ftslurm.worker.session")
"""
MEETS = """
import os, time
import torch.distributed as dist
rank = int(os.environ["RANK"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = dist.TCPStore(*address, is_master=False, wait_for_workers=False)
store.set(f"here{rank}", "1")
for other in range(3):
    store.get(f"here{other}")
time.sleep((1.0, 0.2, 4.0)[rank])
if rank == 2:
    store.set("result", "1")
del store
"""


def test_a_rank_that_meets_the_others_while_checkpoint_dir_is_slow_is_not_blamed_for_what_they_close(
    local: Backend,
) -> None:
    """Rank 0 tries to write to checkpoint.dir when the others' scripts have begun, and are connected to its store."""
    worker = local.script(SLOW_PROBE, "worker.py")
    python = f"job.python=[{quoted(sys.executable)},{quoted(worker)}]"
    run = local.start("groups.count=1", "groups.workers=3", python, script=local.script(MEETS)).finish()
    assert [ended["cause"] for ended in run.named("step_exited", group=0)] == ["ok"]
