"""Runs an unchanged example; a rank dies by kill -9, and the other groups do not end before its group is back.

EXAMPLE  the script's path
KILL     GROUP RANK STEP METHOD: this rank's first attempt dies when it calls this method of its Manager at this step;
         GROUP may be `all`: all groups die as soon as there is a checkpoint
HOLD     STEP: from this step on no group asks for a quorum until all ranks of the next attempt are about to ask for
         one, and each waits a second per step until that attempt has joined
PACE     seconds that each step takes longer; default: 0
"""

import atexit
import contextlib
import os
import runpy
import signal
import sys
import time
from pathlib import Path

from torchft import Manager

group, rank, step, method = os.environ["KILL"].split()
mine = group in (os.environ["REPLICA_GROUP_ID"], "all") and rank == os.environ["RANK"]
attempt = int(os.environ["FTSLURM_ATTEMPT"])
back = [Path(os.environ["FTSLURM_RUN_DIR"]) / f"back-{r}" for r in range(int(os.environ["WORLD_SIZE"]))]
joined = Path(os.environ["FTSLURM_RUN_DIR"]) / "joined"
deadly, start_quorum = getattr(Manager, method), Manager.start_quorum


def die(manager: Manager, *args: object, **kwargs: object) -> object:
    manager.wait_quorum()  # from here on the other groups depend on this one
    if manager.current_step() == int(step):
        while group == "all" and not list(Path(os.environ["FTSLURM_CHECKPOINT_DIR"]).glob("step-*")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
    return deadly(manager, *args, **kwargs)


def hold(manager: Manager, *args: object, **kwargs: object) -> object:
    time.sleep(float(os.environ.get("PACE", "0")))
    if attempt > 0:
        with contextlib.suppress(FileNotFoundError):
            mark = back[int(os.environ["RANK"])]
            (joined if mark.exists() else mark).touch()
    elif manager.current_step() >= int(os.environ["HOLD"]):
        while not all(path.exists() for path in back):
            time.sleep(0.02)
        if not joined.exists():
            time.sleep(1)
    return start_quorum(manager, *args, **kwargs)


Manager.start_quorum = hold
if mine and attempt == 0:
    setattr(Manager, method, die)
sys.path[0] = str(Path(os.environ["EXAMPLE"]).parent)
runpy.run_path(os.environ["EXAMPLE"], run_name="__main__")
atexit.register(os._exit, 0)  # see toy.py
