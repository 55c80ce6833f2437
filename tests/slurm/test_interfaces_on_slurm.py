"""Nodes with several networks, of which the run's has IPv6 alone."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cluster import PATH, Cluster
from harness import Backend
from own_network import own_network

from ftslurm.guard import interfaces
from ftslurm.guard.interfaces import Reach

pytestmark = [pytest.mark.slurm, pytest.mark.light]
IP = shutil.which("ip", path=PATH)
FABRIC, STORAGE = "fd00:5::7", "192.0.2.7"  # the only address of each interface


@pytest.fixture
def networks() -> Iterator[None]:
    """Two networks beside that of the machine's name, for the test and what it starts."""
    if IP is None:
        pytest.skip("there is no `ip` here (Debian: apt install iproute2)")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(own_network())
        except OSError as error:
            pytest.skip(f"no network namespace can be made here: {error}")
        for words in (
            "link add fabric type veth peer name storage",
            "link set fabric up",
            "link set storage up",
            f"-6 addr add {FABRIC}/64 dev fabric nodad",
            f"addr add {STORAGE}/24 dev storage",
        ):
            subprocess.run([IP, *words.split()], check=True, timeout=30)
        yield


@pytest.fixture
def two_networks(networks: None, cluster_folder: Path, slurm_on: Callable[[Cluster], Backend]) -> Iterator[Backend]:
    """A cluster of two nodes on a machine with these networks."""
    cluster = Cluster.start(cluster_folder / "networks", nodes=2, gpus=0)
    yield slurm_on(cluster)
    cluster.stop()


def test_the_route_to_another_node_decides_where_the_own_name_is_loopback(networks: None) -> None:
    there = interfaces.known()
    assert (there["fabric"], there["storage"]) == ((FABRIC,), (STORAGE,))
    for other, expected in (
        ("192.0.2.9", Reach(STORAGE, interface="storage")),
        ("fd00:5::9", Reach(f"[{FABRIC}]", interface="fabric")),
        ("203.0.113.1", Reach("localhost")),  # there is no route
    ):
        assert interfaces.automatic("localhost", there, other) == expected
    environ = {interfaces.WANTED: "auto", "SLURM_LAUNCH_NODE_IPADDR": "192.0.2.9"}
    assert interfaces.reach(environ).variables({"NCCL_SOCKET_IFNAME": "x"}).keys() <= {
        "GLOO_SOCKET_IFNAME",
        "TP_SOCKET_IFNAME",
    }


def test_a_run_trains_and_heals_over_an_interface_that_has_ipv6_alone(two_networks: Backend) -> None:
    run = two_networks.start("cluster.interface=[ib0,fabric]", args={"open-end": True})
    run.wait_for_steps(3, groups=2)
    lighthouse = str(run.named("step_ready", unit="lighthouse")[0]["url"])
    assert lighthouse.startswith(f"http://[{FABRIC}]:")
    port = urlsplit(lighthouse).port
    assert port is not None
    socket.create_connection((FABRIC, port)).close()
    for other in (STORAGE, "127.0.0.1", "::1"):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((other, port))
    run.kill(1)
    run.wait_until_back(1)
    step = run.end_soon()
    run.finish()
    run.check_training(step, survivors={0}, returned={1})
    told = (run.dir / "logs/group-0001/attempt-001/step.log").read_text()
    assert "'GLOO_SOCKET_IFNAME': 'fabric'" in told
    assert "'NCCL_SOCKET_IFNAME': '=fabric'" in told

    run = two_networks.start("cluster.interface=ib0")
    run.finish(1, outcome="failed")
    assert "all in the same way" in run.text
    assert "RuntimeError: the node has no interface ib0 that is up and has an address" in run.text
