"""`ftslurm resume RUN job.args.lr=...`: the examples take the optimizers' settings from the command line.

With a learning rate of 0 the weights stay those of the checkpoint, in the group that restores and in one that heals.
"""

from __future__ import annotations

import pytest
from harness import SCRIPTS, Backend, quoted

from ftslurm.config.schema import shipped

STEPS, KILLED, HELD, END = 4, 6, 7, 9
SLOW = pytest.mark.nightly

pytestmark = pytest.mark.parametrize("backend", ["local"], indirect=True)


@pytest.mark.parametrize(
    ("example", "ranks", "rates", "args"),
    [
        ("train_ddp.py", 1, ["lr"], {}),
        pytest.param("train_ddp.py", 2, ["lr"], {}, marks=SLOW),
        pytest.param("train_hsdp.py", 2, ["lr"], {}, marks=SLOW),
        pytest.param("train_tracked.py", 1, ["lr"], {}, marks=SLOW),
        pytest.param("train_localsgd.py", 1, ["lr"], {"sync-every": 2}, marks=SLOW),
        pytest.param("train_diloco.py", 1, ["lr", "outer-lr"], {"sync-every": 2}, marks=SLOW),
        pytest.param("train_hf.py", 1, ["lr"], {"batch-size": 8}, marks=SLOW),
        pytest.param("train_lightning.py", 1, ["lr"], {"batch-size": 8}, marks=SLOW),
    ],
)
def test_the_learning_rate_of_a_resumed_run_is_that_of_its_command_line(
    backend: Backend, example: str, ranks: int, rates: list[str], args: dict[str, object]
) -> None:
    first = backend.start(
        *("groups.count=2", f"groups.workers={ranks}", f"checkpoint.every={STEPS}"),
        *(f"job.env.EXAMPLE={quoted(shipped('examples') / example)}", f'job.env.HOLD="{HELD}"'),
        f"job.env.KILL={quoted(f'1 0 {KILLED} should_commit')}",
        script=SCRIPTS / "example.py",
        args={"steps": STEPS, **args},
    ).finish()
    root = f"run.root={quoted(backend.tmp_path / 'runs1')}"
    zero = [f"job.args.{rate}=0" for rate in rates]
    second = backend.launch("resume", str(first.dir), f"job.args.steps={END}", *zero, root, "follow=true").finish()
    assert second.named("checkpoint_restored", step=STEPS)
    assert second.named("group_joined", group=1, attempt=1)  # healed by a peer
    assert len(first.weights()) == 2 * ranks
    assert second.weights() == first.weights()
