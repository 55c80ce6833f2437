"""light.py with checkpoints of its digest in a store of ftslurm's own, for tests of who saves, restores and resumes."""

import os
import runpy
import sys
import time
from pathlib import Path

import light_worker

from ftslurm.checkpoint import layout
from ftslurm.checkpoint.layout import Writer
from ftslurm.checkpoint.store import Store
from ftslurm.protocol import messages, outbox

GROUP, ATTEMPT, EVERY, KEEP = (
    int(os.environ[name])
    for name in ("REPLICA_GROUP_ID", "FTSLURM_ATTEMPT", "FTSLURM_CHECKPOINT_EVERY", "FTSLURM_CHECKPOINT_KEEP")
)


class Manager(light_worker.Manager):
    """Restores when it is made, and saves in group 0."""

    saved = 0

    def __init__(self) -> None:
        super().__init__()
        self.me = Writer(os.environ["FTSLURM_RUN_ID"], GROUP, ATTEMPT)
        self.store = Store(os.environ["FTSLURM_CHECKPOINT_DIR"])
        outbox.say(messages.CanSave())
        newest = self.store.newest()
        if newest and os.environ["FTSLURM_HEALS"] != "1":
            self._step, self.digest = newest.step, Path(self.store.path(newest.part, "digest")).read_text()
            outbox.say(messages.Restored(newest.step, newest.name))

    def should_commit(self) -> bool:
        committed = super().should_commit()
        due = (EVERY and self._step % EVERY == 0) or outbox.wanted() > self.saved
        if committed and GROUP == 0 and due:
            self.saved = self._step
            part = layout.part_name(self._step, self.me, time.time_ns())
            with self.store.files.open(self.store.path(part, "digest"), "wb") as file:
                file.write(self.digest.encode())
            name = self.store.finish(self._step, part, self.me, {"digest": (len(self.digest), [])})
            outbox.say(messages.Checkpointed(self._step, name, 0.0, None))
            self.store.prune(self._step, KEEP, self.me)
        return committed


vars(light_worker)["Manager"] = Manager
sys.argv[0] = str(Path(__file__).with_name("light.py"))
runpy.run_path(sys.argv[0], run_name="__main__")
