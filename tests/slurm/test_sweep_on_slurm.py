"""A sweep that Optuna leads, on a real Slurm: its runs are there at the same time, and their values come back."""

from __future__ import annotations

import re

import pytest
from harness import Backend

from ftslurm.api import listing

pytestmark = [pytest.mark.slurm, pytest.mark.parametrize("backend", ["slurm"], indirect=True)]

SCRIPT = """
import os, sys, time
x = float(sys.argv[sys.argv.index("--x") + 1])
together = os.path.dirname(os.environ["FTSLURM_RUN_DIR"])
while sum(os.path.isdir(os.path.join(together, name, "results")) for name in os.listdir(together)) < 2:
    time.sleep(0.05)
with open(os.environ["FTSLURM_RESULT"], "w") as file:
    print((x - 3) ** 2, file=file)
"""


@pytest.mark.nightly
def test_optuna_gets_the_values_of_runs_that_were_on_slurm_together(backend: Backend) -> None:
    optuna = ("-m", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=2")
    script, root = backend.script(SCRIPT), backend.tmp_path / "runs0"
    run = backend.launch(
        *("run", "cluster=slurm", f"run.root={root}", f"job.script={script}", "groups.count=1", "groups.gpus=0"),
        *("lighthouse=none", "job.args.x=interval(0,5)", *optuna),
    )
    assert run.process.wait(120) == 0, run.text
    (name,) = set(re.findall(r"sweep (sweep-\S+) is over", run.text))
    rows = listing.under(root)
    assert [(one.state, one.sweep) for one in rows] == [("succeeded", name)] * 2
    best = min(one.value[0] for one in rows if one.value and one.value[0] is not None)
    assert f"best_value: {best}" in run.text
    assert "job.args.x: " in run.text
