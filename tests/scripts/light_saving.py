"""light.py with checkpoints of its digest in a store of ftslurm's own, for tests of who saves, restores and resumes."""

import os
import runpy
import sys
from pathlib import Path

import light_worker

from ftslurm.checkpoint.layout import Writer
from ftslurm.checkpoint.store import FolderStore
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
        self.store = FolderStore(Path(os.environ["FTSLURM_CHECKPOINT_DIR"]))
        outbox.say(messages.CanSave())
        complete, _ = self.store.candidates()
        if complete and os.environ["FTSLURM_HEALS"] != "1":
            self._step, self.digest = complete[0].step, (Path(complete[0].name) / "digest").read_text()
            outbox.say(messages.Restored(complete[0].step, complete[0].name))

    def should_commit(self) -> bool:
        committed = super().should_commit()
        due = (EVERY and self._step % EVERY == 0) or outbox.wanted() > self.saved
        if committed and GROUP == 0 and due:
            self.saved = self._step
            part = self.store.begin(self._step, self.me)
            file = Path(self.store.place(part)) / "digest"
            file.touch(mode=0o600)
            file.write_text(self.digest)
            name = self.store.finish(part, self._step, self.me, 1, {"digest": len(self.digest)}, {})
            outbox.say(messages.Checkpointed(self._step, name, 0.0, None))
            self.store.prune(self._step, KEEP, self.me, name)
        return committed


sys.modules["light_worker"].Manager = Manager
sys.argv[0] = str(Path(__file__).with_name("light.py"))
runpy.run_path(sys.argv[0], run_name="__main__")
