"""Sites that refuse: memory for a step (a cli_filter), and sbatch below a slurmstepd, on nodes, in TACC's words."""

from __future__ import annotations

import os
import shutil

from cluster import PATH, Cluster
from programs import script

WORDS = "ERROR: Job submission is not allowed from this host"
WRAPPER = f"""
pid=$$
while [ "$pid" -gt 1 ]; do
  read -r name < "/proc/$pid/comm"
  case $name in slurmstepd*) echo "{WORDS}" >&2; exit 1;; esac
  pid=$(awk '/^PPid:/ {{print $2}}' "/proc/$pid/status")
done
exec {shutil.which("sbatch", path=PATH)} "$@"
"""


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


def refuse_memory(cluster: Cluster) -> None:
    """Refuse steps that ask for memory by node."""
    (cluster.folder / "cli_filter.lua").write_text(NO_MEM)
    with (cluster.folder / "slurm.conf").open("a") as conf:
        conf.write("CliFilterPlugins=cli_filter/lua\n")


def refuse_on_nodes(cluster: Cluster) -> None:
    """Put the wrapper in front of the PATH of all that uses this cluster."""
    script(cluster.folder / "bin/sbatch", WRAPPER)
    cluster.env["PATH"] = f"{cluster.folder / 'bin'}{os.pathsep}{cluster.env['PATH']}"
