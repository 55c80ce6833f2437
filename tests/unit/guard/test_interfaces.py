"""Which address a node announces, and which interface Gloo and NCCL get."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from ftslurm.guard import interfaces
from ftslurm.guard.interfaces import Reach, automatic, named

THERE = {
    "lo": ("127.0.0.1", "::1"),
    "eth0": ("192.0.2.7", "198.51.100.3"),
    "ib0": ("2001:db8::7",),
    "down0": (),
}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What names stand for; the routes to all addresses begin with 192.0.2.7, or at 2001:db8::7."""
    known: dict[str, list[str]] = {}
    monkeypatch.setattr(interfaces, "resolve", lambda host: known.get(host, [host] if host[0].isdigit() else []))

    def route_to(address: str) -> str | None:
        if interfaces.is_loopback(address):
            return None
        return "2001:db8::7" if ":" in address else "192.0.2.7"

    monkeypatch.setattr(interfaces, "route_to", route_to)
    return known


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (["eth0"], Reach("192.0.2.7", "192.0.2.7", "eth0")),
        (["ib0"], Reach("[2001:db8::7]", "2001:db8::7", "ib0")),
        (["ib1", "down0", "eth0"], Reach("192.0.2.7", "192.0.2.7", "eth0")),
        (["ib"], Reach("[2001:db8::7]", "2001:db8::7", "ib0")),
        (["lo"], Reach("127.0.0.1", "127.0.0.1", "lo")),
    ],
)
def test_a_node_takes_the_first_interface_that_it_has(wanted: list[str], expected: Reach) -> None:
    assert named(wanted, THERE) == expected


def test_a_missing_interface_is_named_with_the_others_and_the_setting_in_words_for_every_node() -> None:
    with pytest.raises(RuntimeError) as caught:
        named(["ib9", "down0"], THERE)
    assert str(caught.value) == (
        "the node has no interface ib9 or down0 that is up and has an address; it has lo, eth0, ib0: set "
        "cluster.interface to one that every node has, to several in order, as [ib0,eth0], or to auto"
    )


def test_a_good_name_is_announced_and_gloo_stays_where_it_is(names: dict[str, list[str]]) -> None:
    names["n1"] = ["192.0.2.7"]
    assert automatic("n1", THERE, "203.0.113.1") == Reach("n1", interface="eth0")
    names["n1"] = ["198.51.100.3"]  # Gloo would take the first address of eth0
    assert automatic("n1", THERE, "") == Reach("n1", interface="eth0", gloo=False)
    names["n1"] = ["203.0.113.99"]  # of no interface here
    assert automatic("n1", THERE, "") == Reach("n1")


@pytest.mark.parametrize("own", [["127.0.1.1"], []])
def test_a_name_that_is_no_use_gives_way_to_the_route(names: dict[str, list[str]], own: list[str]) -> None:
    names["n1"] = own
    assert automatic("n1", THERE, "203.0.113.1") == Reach("192.0.2.7", interface="eth0")
    assert automatic("n1", THERE, "2001:db8::2") == Reach("[2001:db8::7]", interface="ib0")
    # Nobody else is known: a name that stands for something may be of use to others.
    assert automatic("n1", THERE, "127.0.0.1") == Reach("n1" if own else "192.0.2.7", interface="eth0")
    assert automatic("n1", {"lo": ("127.0.0.1",)}, "203.0.113.1") == Reach("n1")


@pytest.mark.parametrize("controller", ["", "127.0.0.1", "203.0.113.1", "2001:db8::2"])
@pytest.mark.parametrize("there", [THERE, {"lo": ("127.0.0.1",), "ib0": ("2001:db8::7",)}])
def test_a_name_that_stands_for_nothing_is_not_announced(
    controller: str, there: dict[str, tuple[str, ...]], names: dict[str, list[str]]
) -> None:
    names["n1"] = []
    found = automatic("n1", there, controller)
    assert found.host.strip("[]") in sum(there.values(), ())
    assert found.interface != "lo"


def test_the_user_s_own_variables_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Reach("192.0.2.7", "192.0.2.7", "eth0")
    assert found.variables({"GLOO_SOCKET_IFNAME": "ib0", "TP_SOCKET_IFNAME": ""}) == {
        "TP_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "=eth0",
    }
    monkeypatch.setattr(interfaces, "has_infiniband", lambda: True)
    assert "NCCL_SOCKET_IFNAME" in found.variables({})
    assert set(Reach("n1", interface="eth0").variables({})) == {"GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}
    assert Reach("n1").variables({}) == {}


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [
        ({"eth0": "100000", "eth1": "100000", "eth2": "100000"}, "=eth0,eth1,eth2"),
        ({"eth0": "1000", "eth1": "100000"}, "=eth0"),  # no rails: one may be that of the administrators
        ({"eth0": "100000", "eth1": "1000"}, "=eth0"),
        ({"eth0": "", "eth1": ""}, "=eth0,eth1"),  # a virtual machine's have none
        ({"eth0": "100000"}, "=eth0"),
        ({"eth0": "100000", "usb0": "100000"}, "=eth0"),  # of the node's own management controller: link-local
    ],
)
def test_nccl_gets_each_rail_that_is_found_and_only_the_one_that_is_named(
    speeds: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """docker0 is up and has no hardware behind it."""
    addresses = {"lo": "127.0.0.1", "docker0": "172.17.0.1", "usb0": "169.254.3.1"}
    there = {
        name: (addresses.get(name, f"192.0.2.{number}"),) for number, name in enumerate(("lo", "docker0", *speeds))
    }
    monkeypatch.setattr(interfaces, "known", lambda: there)
    monkeypatch.setattr(interfaces, "NET", str(tmp_path))
    for name, speed in speeds.items():
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "speed").write_text(speed)
    assert Reach("n1", interface="eth0").variables({})["NCCL_SOCKET_IFNAME"] == expected
    assert Reach("n1", interface="eth0").variables({})["GLOO_SOCKET_IFNAME"] == "eth0"
    assert Reach("192.0.2.2", "192.0.2.2", "eth0").variables({})["NCCL_SOCKET_IFNAME"] == "=eth0"


def test_this_machine_has_loopback_and_every_address_can_be_used() -> None:
    there = interfaces.known()
    assert "127.0.0.1" in there["lo"]
    for addresses in there.values():
        for address in addresses:
            kind: Any = socket.AF_INET6 if ":" in address else socket.AF_INET
            socket.create_server((address, 0), family=kind).close()
    assert interfaces.route_to("127.0.0.1") is None


def test_a_local_run_stays_on_loopback_and_null_announces_the_name() -> None:
    assert interfaces.reach({"FTSLURM_CLUSTER": "local"}) == Reach("127.0.0.1", "127.0.0.1")
    assert interfaces.reach({"FTSLURM_CLUSTER": "slurm"}) == Reach(socket.gethostname())
    assert interfaces.reach({interfaces.WANTED: "nope0,lo"}).interface == "lo"
