"""Sites whose cli_filter refuses what ftslurm gives srun."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster import Cluster
from harness import Backend

pytestmark = [pytest.mark.slurm, pytest.mark.light]
NO_MEM = """
function slurm_cli_setup_defaults(o, e) return slurm.SUCCESS end
function slurm_cli_pre_submit(o, i)
  if i ~= nil and o["type"] == "srun" and o["mem"] ~= nil and o["mem"] ~= "-2" then
    slurm.log_error("Requesting memory by node is not supported. Use --mem-per-cpu.")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end
function slurm_cli_post_submit(o, j, s) return slurm.SUCCESS end
"""


def test_steps_without_mem_run_where_it_is_refused_and_else_the_sites_words_are_told(
    new_cluster: Callable[..., Cluster], slurm_on: Callable[[Cluster], Backend]
) -> None:
    cluster = new_cluster(nodes=3)
    (cluster.folder / "cli_filter.lua").write_text(NO_MEM)
    with (cluster.folder / "slurm.conf").open("a") as conf:
        conf.write("CliFilterPlugins=cli_filter/lua\n")
    backend = slurm_on(cluster)
    refused = backend.start("groups.count=2", "health.start_timeout_s=5", args={"steps": 5})
    refused.process.wait(60)
    print(refused.text)
    assert "Requesting memory by node is not supported. Use --mem-per-cpu." in refused.text
    assert "cluster.srun" in refused.text
    run = backend.start("groups.count=2", 'cluster.srun=["--mem-per-cpu=0"]', args={"steps": 20, "step-time": 0.1})
    run.wait_for_steps(3, groups=2)
    run.kill(1)
    assert run.process.wait(60) == 0, run.text
