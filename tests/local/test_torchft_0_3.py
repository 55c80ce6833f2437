"""What is new in torchft 0.3, with real Managers in processes on loopback."""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from loaded import LOADED
from process_groups import STABLE
from test_torchft_compat import lighthouse, one_rank_manager, until
from watched import manager_class

pytestmark = pytest.mark.skipif(STABLE, reason="in torchft 0.3 only")
GIVES_UP_S = 1.0  # the process group's own time-out is 10 s


def train(folder: Path, name: str, address: str) -> None:
    """Take steps, and wait for each average only for so long; note how long, whether it counted, and with how many.

    Group b stops in the sixth step, when the others wait for it.
    """
    import torch

    manager = one_rank_manager(address, name, torch.nn.Linear(1, 1), manager_class(), init_sync=False)
    with open(folder / name, "a", buffering=1) as told:
        while True:
            manager.start_quorum()
            if manager.num_participants() == 2 and name == "b" and manager.current_step() > 4:
                os.kill(os.getpid(), signal.SIGSTOP)
            started = time.monotonic()
            manager.allreduce(torch.ones(1)).wait(timedelta(seconds=GIVES_UP_S))
            waited = time.monotonic() - started
            print(json.dumps([waited, manager.should_commit(), manager.num_participants()]), file=told)
            time.sleep(0.05)


def test_a_script_that_gives_up_waiting_skips_the_step_and_trains_on_with_the_others(tmp_path: Path) -> None:
    def steps() -> list[list[Any]]:
        text = (tmp_path / "a").read_text() if (tmp_path / "a").exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    with lighthouse() as address:
        processes = [LOADED.Process(target=train, args=(tmp_path, name, address)) for name in "ab"]
        for process in processes:
            process.start()
        try:
            until(lambda: [True, 1] in [step[1:] for step in steps()[len(shared(steps())) :]], within_s=60)
        finally:
            for process in processes:
                process.kill()
                process.join()
    skipped = [waited for waited, counted, _ in steps() if not counted]
    assert skipped
    assert max(skipped) < 3 * GIVES_UP_S


def shared(steps: list[list[Any]]) -> list[list[Any]]:
    """Return the steps up to the first that was skipped; all, if none was."""
    return steps[: next((n for n, (_, counted, _) in enumerate(steps) if not counted), len(steps))]
