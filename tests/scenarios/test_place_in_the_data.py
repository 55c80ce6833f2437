"""A loader that keeps its own place, with a group that is away while all others go back to a checkpoint."""

from __future__ import annotations

import os
import re
import signal

from harness import Backend

SCRIPT = """
import os, sys, time, torch
from torchft import Manager, ProcessGroupGloo
from ftslurm.checkpoint import Checkpointer

class Loader:
    '''Gives 1, 2, 3 and so on, and has no place before its first batch.'''
    at, begun = 0, False
    def batch(self):
        self.at, self.begun = self.at + 1, True
        return self.at
    def state_dict(self):
        return {"at": self.at if self.begun else 0}
    def load_state_dict(self, state):
        self.at = state["at"]

print("pid", os.getpid(), flush=True)
model, loader, group = torch.nn.Linear(1, 1), Loader(), os.environ["REPLICA_GROUP_ID"]
manager = Manager(pg=ProcessGroupGloo(), state_dict=model.state_dict, load_state_dict=model.load_state_dict,
                  min_replica_size=1, use_async_quorum=False, replica_id=group)
checkpointer = Checkpointer(manager, {"model": model}, loader)
checkpointer.restore()
while not os.path.exists(sys.argv[1]):
    manager.start_quorum()
    batch = loader.batch()
    manager.allreduce(torch.ones(1)).wait()
    time.sleep(0.05)
    if manager.should_commit():
        print("trained", manager.current_step(), batch, flush=True)
    checkpointer.step()
checkpointer.close()
manager.shutdown(wait=False)
os._exit(0)
"""


def test_a_group_that_was_away_continues_at_the_step_to_which_the_others_went_back(local: Backend) -> None:
    settings = ("groups.count=3", "groups.max=3", "checkpoint.keep=0", "restart.backoff_s=0")
    stop = local.tmp_path / "stop"
    run = local.start(*settings, f"job.args=[{stop}]", script=local.script(SCRIPT))

    def trained(group: int, *attempts: int) -> list[tuple[int, int]]:
        """Return the steps and batches of these attempts."""
        logs = [run.rank_log(group, attempt=attempt) for attempt in attempts]
        return [(int(s), int(b)) for log in logs for s, b in re.findall(r"^trained (\d+) (\d+)$", log, re.MULTILINE)]

    run.until(lambda: trained(2, 0), "a step")
    run.tell("save")
    saved = int(str(run.wait_for("checkpoint_saved")["step"]))
    run.until(lambda: trained(2, 0)[-1][0] > saved + 10, "steps after the checkpoint")
    run.tell("scale", "2")
    run.wait_for("step_exited", group=2)
    for group in (0, 1):
        os.kill(run.pid(group), signal.SIGKILL)
    assert run.wait_for("full_restart")["checkpoint_step"] == saved
    run.wait_until_back_at_last(0, 1)
    run.tell("scale", "3")
    run.wait_until_back_at_last(2)
    run.until(lambda: len(trained(2, 1)) > 20, "steps after its return")
    stop.touch()
    run.finish()
    for group in range(3):
        before, after = trained(group, 0), trained(group, 1, 2)
        kept = [batch for step, batch in before if step <= saved] + [batch for _, batch in after]
        assert kept == list(range(1, len(kept) + 1)), (group, saved, before, after)
