"""toy.py without torch, for benchmarks/light_worker.py: for tests that are not about tensors."""

import atexit
import os
import sys
import time

from light_worker import Manager

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # some tests run it from a script of their own
from toy_options import args, begin, fail_if_told, last_step, note, work

begin()
for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
    print(f"{name}={os.environ.get(name)}")
manager = Manager()
while (step := manager.current_step()) < last_step():
    manager.start_quorum()
    participants = manager.num_participants()
    fail_if_told(step)
    work()
    manager.allreduce(1.0)
    committed = manager.should_commit()
    assert "torch" not in sys.modules, "a light worker takes its first step in a tenth of the time that torch takes"
    if committed:
        now = manager.current_step()
        print(f"step {now} participants {participants}", flush=True)
        note(now, manager._quorum_id, participants, manager.digest)
    time.sleep(args.pause)

print(f"weights sha256={manager.digest}", flush=True)
atexit.register(os._exit, 0)
