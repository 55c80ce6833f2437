"""Run the Slurm runner that torchft publishes, unchanged but for what it trains. For the interpreter with torchx.

    published_runner.py REPLICAS ENVIRONMENT SCRIPT ARGUMENT...

The module lies in torchft's package: its loop, its calls of torchx and its interval are its own. Only `_make_app` is
replaced, because the published one starts a file of torchtitan that is no more; ENVIRONMENT is a JSON object of what
torchx puts into the job's environment.
"""

from __future__ import annotations

import argparse
import json
import sys

from torchft.examples.slurm import runner
from torchx import specs
from torchx.components.dist import ddp


def main() -> None:
    replicas, environment, script, *arguments = sys.argv[1:]

    def make_app(replica_id: int, _: argparse.Namespace) -> specs.AppDef:
        env = json.loads(environment) | {"REPLICA_GROUP_ID": str(replica_id), "NUM_REPLICA_GROUPS": replicas}
        app = ddp(*arguments, name=f"ft_{replica_id}", env=env, script=script, j="1x1")
        app.roles[0].name = app.name
        return app

    runner._make_app = make_app
    sys.argv[1:] = ["--workspace-dir=.", "--nodes=1", "--nproc-per-node=1", f"--replica-count={replicas}"]
    runner.main()


if __name__ == "__main__":
    main()
