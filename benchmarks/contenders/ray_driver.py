"""The program of the contender Ray, inside its job: Ray Train with a torchft replica group for each worker.

    ray_driver.py HEAD REPLICAS STORAGE training.py OPTIONS...

Runs in the interpreter that has Ray, and connects to the Ray whose head has this address. Each worker is a replica
group of one, and runs the training's script with these options.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def train(config: dict[str, object]) -> None:
    """Train in one of Ray's workers. Ray has set the address of the group's store, and TORCHFT_LIGHTHOUSE."""
    import ray.train

    # Ray's RANK counts over all groups; torchft's is the rank in the group, which is all that Ray's own example has.
    group = str(ray.train.get_context().get_world_rank())
    os.environ |= {"REPLICA_GROUP_ID": group, "RANK": "0", "WORLD_SIZE": "1"}
    script = Path(str(config["script"]))
    sys.path.insert(0, str(script.parent))
    arguments: Sequence[str] = config["arguments"]  # type: ignore[assignment]
    sys.argv = [script.name, *arguments]
    let_first_begin(group, arguments)
    import training

    training.main()


def let_first_begin(group: str, arguments: Sequence[str]) -> None:
    """Wait until replica 0 has committed a step, at most half a minute.

    Of groups that ask for their first quorum at the same moment, torchft's Lighthouse with min_replicas=1 may answer
    one alone, and the others without it. Both commit a first step, with different weights, and nothing joins them.
    """
    folder = Path(next(word for word in arguments if word.startswith("--folder=")).partition("=")[2])
    lines, deadline = folder / "lines-0", time.monotonic() + 30
    while group != "0" and time.monotonic() < deadline:
        if lines.exists() and '"step"' in lines.read_text():
            return
        time.sleep(0.2)


def connect(head: str) -> None:
    """Connect to Ray as a program on the head's node; wait for it while it starts."""
    import ray

    for attempt in range(20):
        try:
            ray.init(address=head, _node_ip_address=head.rpartition(":")[0])
            return
        except Exception as error:  # Ray raises plain Exceptions, too
            print(f"attempt {attempt} to reach Ray at {head}: {error}", flush=True)
            time.sleep(1)
    raise SystemExit(f"no Ray at {head}")


def main() -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.train.v2.torch.torchft_config import TorchftConfig

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("head")
    parser.add_argument("replicas", type=int)
    parser.add_argument("storage")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    connect(args.head)
    TorchTrainer(
        train,
        train_loop_config={"script": args.script, "arguments": args.arguments},
        scaling_config=ScalingConfig(num_workers=args.replicas, resources_per_worker={"CPU": 1, "replica": 1}),
        torch_config=TorchftConfig(lighthouse_kwargs={"bind": "127.0.0.1:0", "min_replicas": 1}, backend="gloo"),
        run_config=RunConfig(storage_path=args.storage, failure_config=FailureConfig(max_failures=100000)),
    ).fit()


if __name__ == "__main__":
    main()
