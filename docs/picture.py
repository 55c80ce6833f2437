"""Draw docs/follow.svg, the picture in the README, from the journal of a real run: python docs/picture.py runs/RUN

The picture shows the terminal four seconds after the first restarted group has joined.
"""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ftslurm.monitor.sentences import describe
from ftslurm.monitor.status import RunStatus
from ftslurm.monitor.status_fold import StatusFold
from ftslurm.monitor.table import render
from ftslurm.run.directory import RunDir
from ftslurm.run.run_reader import RunReader


def main() -> None:
    run = RunDir(Path(sys.argv[1]).absolute())
    events = list(RunReader(run).iter_new())
    back = next(e for e in events if e["event"] == "group_joined" and e["attempt"] > 0)
    until = back["time"] + 4.0
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    console.print("$ python -m ftslurm job=ddp cluster=local groups.count=3 faults=kill_one", highlight=False)
    folding = StatusFold(RunStatus(run_id=run.root.name))
    status = folding.status
    for event in (e for e in events if e["time"] <= until):
        folding.apply(event)
        if line := describe(event, status):
            line = line.split(" - log: ")[0]
            style = {"step_exited": "red", "group_joined": "green", "fault_injected": "magenta"}.get(event["event"], "")
            console.print(Text(f"{time.strftime('%H:%M:%S', time.localtime(event['time']))} {line}", style=style))
    console.print()
    console.print(render(status, until, width=100))
    console.save_svg(str(Path(__file__).parent / "follow.svg"), title="ftslurm")


if __name__ == "__main__":
    main()
