"""How often does a run that trains in peace ask Slurm for something? On a throwaway Slurm started for it.

    python benchmarks/slurm_calls.py [-n SECONDS]

Wrappers at the front of the PATH of the controller, the pilots and the workers count every Slurm command.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from cluster import PATH, Cluster, scratch
from harness import Backend

COMMANDS = ("sbatch", "srun", "squeue", "scontrol", "sinfo", "scancel", "sacct", "salloc", "sstat")
MODES = {"steps": (), "array": ("cluster.kind=array",)}


def counted(folder: Path, log: Path) -> str:
    """Return a PATH on which each Slurm command records its name and then runs."""
    folder.mkdir()
    for name in COMMANDS:
        real = shutil.which(name, path=PATH)
        if real is not None:
            (folder / name).write_text(f'#!/bin/sh\necho {name} >> "{log}"\nexec {real} "$@"\n')
            (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{PATH}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-n", type=float, default=120.0, metavar="SECONDS", help="how long to look")
    args = parser.parse_args()
    print(f"{'mode':<8}{'groups':>7}   calls a minute, counted over {args.n:g} s of training")
    for mode, settings in MODES.items():
        with scratch() as folder, tempfile.TemporaryDirectory() as tmp:
            log = Path(tmp) / "calls"
            cluster = Cluster.start(folder / "c", nodes=5)
            environ = cluster.env | {"PATH": counted(Path(tmp) / "bin", log)}
            backend = Backend("slurm", environ, Path(tmp))
            run = backend.start("groups.count=4", *settings, args={"open-end": True, "step-time": 0.1})
            try:
                run.wait_for_steps(20, 4)
                run.process.send_signal(2)  # ends only the follower; the run goes on
                run.process.wait()
                time.sleep(5.0)
                before = len(log.read_text().splitlines())
                time.sleep(args.n)
                run.check_deaths()
                calls = Counter(log.read_text().splitlines()[before:])
            finally:
                run.abandon()
                cluster.stop()
        words = ", ".join(f"{name} {60 * count / args.n:.1f}" for name, count in calls.items()) or "none"
        print(f"{mode:<8}{4:>7}   {words}", flush=True)


if __name__ == "__main__":
    main()
