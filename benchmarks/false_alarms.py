"""Is a group that is well ever said to have other weights than the others (health.compare_every=1)?

    python benchmarks/false_alarms.py                                  5,000 steps of each training
    python benchmarks/false_alarms.py --arms localsgd --steps 500

Three groups train an example on this machine as fast as they can, and every step of all groups is compared, while one
group after the other dies and heals. In the end one bit of group 1 is flipped, which must be found: so the
steps before were compared. A step of LocalSGD and DiLoCo is a sync. A death that nobody has planned fails the campaign.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import torch
from harness import Backend, Run

import ftslurm

GPUS = torch.cuda.device_count()  # the groups share them
TOY = Path(__file__).parent.parent / "tests/scripts/toy.py"
SMALL = ("dim=16", "layers=1", "context=16", "batch-size=2", "max-mb=0.3", f"steps={10**9}")
EXAMPLE = tuple(f"job.args.{one}" for one in SMALL)
QUIET = ("job.args.eval-every=1000000000", "job.args.print-every=1000")
ARMS = {
    "ddp": ("job=ddp", *EXAMPLE, *QUIET),
    "spares": ("job=ddp", "groups.min=2", "job.args.active=2", *EXAMPLE, *QUIET),
    "asynchronous": (  # a group that heals computes beside it
        *("job=script", f"job.script={TOY}", f"job.args.steps={10**9}", "job.args.step-time=0", "job.args.beside=true"),
        "job.env.TOY_DDP='1'",
    ),
    "hsdp": ("job=hsdp", *EXAMPLE, *QUIET),
    "localsgd": ("job=localsgd", "job.args.sync-every=2", *EXAMPLE),
    "diloco": ("job=diloco", "job.args.sync-every=2", *EXAMPLE),
    "streaming": ("job=diloco", "job.args.sync-every=4", "job.args.fragments=2", *EXAMPLE),
}
FOR_EVER = ("restart.max_per_group=1000000", "restart.backoff_s=0", "checkpoint.every=1000", "job.snapshot=none")


def campaign(arm: str, steps: int, pause_s: float, folder: Path) -> str:
    """Run one training, and return what was seen; one group dies at a time."""
    words = ["groups.count=3", f"groups.gpus={min(GPUS, 1)}", "cluster=local", f"run.root={folder}/runs0"]
    words += ["health.compare_every=1", "torchft.process_group=gloo"]  # NCCL refuses two groups on one GPU
    run = Backend("local", shared_gpus(3), folder).launch("run", "follow=true", *ARMS[arm], *words, *FOR_EVER)
    try:
        until_joined(run, 3)
        steered = ftslurm.Run(run.dir)
        deaths = 0
        while (steered.status()["step"] or 0) < steps:
            steered.inject("kill" if deaths % 2 else "term", group=deaths % 3)
            deaths += 1
            until_joined(run, 3 + deaths)
            time.sleep(pause_s)
            run.check_deaths()
        alarms = run.named("replicas_differ")
        steered.inject("corrupt", group=1)
        run.until(lambda: len(run.named("replicas_differ")) > len(alarms), "the flipped bit is found")
        found = run.named("replicas_differ")[-1]
        run.check_deaths()
    finally:
        run.ask("stop")
        run.process.wait(60)
    assert not alarms, alarms
    assert (found["groups"], found["equal"]) == ([1], 2), found
    digests = 3 * steered.config.groups.workers * int(str(found["step"]))
    return (
        f"{arm}: at most {digests} digests of {found['step']} steps compared, {deaths} deaths and heals: "
        "no false alarm, no other death; one flipped bit, found"
    )


def shared_gpus(processes: int) -> dict[str, str]:
    """Return the variable that gives so many processes a GPU each, of those that there are; nothing without one."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(str(n % GPUS) for n in range(processes))} if GPUS else {}


def until_joined(run: Run, times: int) -> None:
    """Wait until groups have begun to train so many times."""
    run.until(lambda: len(run.named("group_joined")) >= times, "all groups train")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--pause", type=float, default=10, help="seconds between two deaths")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        for arm in args.arms:
            (place := Path(folder, arm)).mkdir()
            print(campaign(arm, args.steps, args.pause, place), flush=True)


if __name__ == "__main__":
    main()
