"""Ray Train with torchft's replica groups: a Ray head on the first node of an allocation, a Ray node on each other."""

from __future__ import annotations

import tempfile
from pathlib import Path

from contenders import install
from contenders.batch_job import SRUN, free_port, quoted_program, submit
from contenders.contender import Contender, Session
from contenders.scene import Scene

APART_S = 3  # between the starts of two nodes
STORE_BYTES = 80_000_000  # the least that Ray takes: no data goes through it
# Every Ray node is this machine: each gets a loopback address and free ports of its own. Ray looks for free ports and
# opens them later, so nodes that start together may get the same ones: they start one after the other. A node that has
# not come up within Ray's fixed 30 s is started again.
NODE = """#!/bin/bash
options="--object-store-memory={store} --disable-usage-stats --min-worker-port=0 --max-worker-port=0 --block"
options="$options --dashboard-agent-listen-port=0 --include-log-monitor=false"
address=127.77.{cluster}.$((SLURM_PROCID + 1))
if [ "$SLURM_PROCID" = 0 ]; then
    exec {ray} start --head --node-ip-address=$address --port={port} --ray-client-server-port={client} --num-cpus=2 \\
        --include-dashboard=false --temp-dir={folder} $options
fi
{wait}
sleep $((SLURM_PROCID * {apart}))
for attempt in 1 2 3; do
    {ray} start --address={head} --node-ip-address=$address --num-cpus=2 \
        --resources='{{"replica": 1}}' $options
done
"""


class RayTrain(Contender):
    """ray[train] with TorchftConfig."""

    name = "ray"
    what = "Ray Train's torchft replica groups (TorchftConfig): a failed group's worker is replaced, the others go on"
    adaptations = (
        "FailureConfig(max_failures=100000): its default of 0 restarts nothing",
        "a Ray head and a Ray node for each group are started by srun in one allocation, on loopback addresses of one "
        "machine; `ray symmetric-run`, which its documentation has for Slurm, would take every node for the head there",
        f"nodes start {APART_S} s apart: those that start together on one machine choose the same ports and end",
        "the dashboard and the log monitor are off, and the object store has 80 MB: no data goes through it",
        "the Lighthouse has Ray's defaults, bound to 127.0.0.1; Ray's own Manager settings are the script's",
        "at the start replica 0 commits a step before the others ask for a quorum: when all ask at once, torchft's "
        "Lighthouse with min_replicas=1 (as in Ray's example) lets groups train different weights side by side",
        "the script reports nothing to Ray and saves no checkpoints: the state comes from the other groups",
    )

    def missing(self) -> str | None:
        return install.missing("ray")

    def versions(self) -> dict[str, str]:
        return install.versions("ray", "ray")

    def start(self, scene: Scene) -> Session:
        python = install.python("ray")
        folder = Path(tempfile.mkdtemp(prefix="ray-", dir=scene.cluster.folder))  # short: Ray puts sockets there
        port = free_port()
        cluster = port % 250 + 1  # an address range for each Ray cluster on this machine
        head = f"127.77.{cluster}.1:{port}"
        node = scene.folder / "ray-node.sh"
        values = {"ray": python.with_name("ray"), "store": STORE_BYTES, "cluster": cluster, "folder": folder}
        wait = f"until (: < /dev/tcp/{head.replace(':', '/')}) 2> /dev/null; do sleep 0.2; done"
        node.write_text(NODE.format(port=port, client=free_port(), head=head, wait=wait, apart=APART_S, **values))
        node.chmod(0o755)
        script, *options = scene.script("torchft")
        driver = Path(__file__).with_name("ray_driver.py")
        program = quoted_program(
            python, str(driver), head, str(scene.groups), str(folder / "storage"), script, *options
        )
        nodes = len(scene.cluster.nodes)  # the head, one for each group, and any spare ones
        return submit(
            scene,
            nodes,
            f"{SRUN} --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 {node} &",
            wait,
            f"exec {program}",
        )
