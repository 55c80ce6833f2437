"""Metrics as Prometheus reads them: from a textfile, from loopback and from a Unix socket."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import runpy
import socket
import stat
import time
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
from example_journal import event, finished, lost_node, one_kill, started
from folded import fold
from observed import Observed, observed, until
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ftslurm.config.receivers import endpoint
from ftslurm.errors import ConfigError
from ftslurm.monitor.status import RunStatus
from ftslurm.observer.metric_outputs import CLIENT_S, MOST_CLIENTS
from ftslurm.observer.metrics import METRICS, RECOVERY, RunCollector
from ftslurm.run.deliveries import Delivery

ROOT = Path(__file__).parents[3]
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Samples:
    """Return the samples by name and labels, without the label of the run."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels.pop("run") == "run-1"
            found[sample.name, frozenset(sample.labels.items())] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def of(*lines: dict[str, object], hooks: tuple[Delivery, ...] = ()) -> Samples:
    """Return the metrics after these lines, at the time of the last one."""
    status = replace(fold(RunStatus(), *lines), hooks=hooks)
    return parsed(generate_latest(RunCollector("run-1", status, status.updated or 0.0)).decode())


def test_the_metrics_of_a_run_with_one_failure() -> None:
    samples = of(*one_kill())
    status = fold(RunStatus(), *one_kill())
    assert value(samples, "ftslurm_training_step") == status.step
    assert value(samples, "ftslurm_run_outcome", outcome=status.outcome) == 1
    assert (
        sum(value(samples, "ftslurm_run_outcome", outcome=o) for o in ("running", "succeeded", "failed", "stopped"))
        == 1
    )
    assert value(samples, "ftslurm_restarts_total", cause="killed") == 1
    assert sum(n for (name, _), n in samples.items() if name == "ftslurm_group_restarts_total") == 1
    assert value(samples, "ftslurm_recovery_seconds_count") == 1
    assert value(samples, "ftslurm_recovery_seconds_sum") == pytest.approx(status.recoveries[0].seconds)
    assert value(samples, "ftslurm_recovery_seconds_bucket", le="+Inf") == 1
    assert sum(n for (name, _), n in samples.items() if name == "ftslurm_groups") == len(status.groups)


def test_lost_nodes_and_failing_hooks_are_counted() -> None:
    samples = of(*lost_node(), hooks=(Delivery("hook mail.sh", done=12, failed=3, dropped=1),))
    assert value(samples, "ftslurm_nodes_excluded") == 1
    for result, count in (("done", 9), ("failed", 3), ("dropped", 1)):
        assert value(samples, "ftslurm_hook_events_total", receiver="hook mail.sh", result=result) == count


def test_a_run_that_has_not_started_has_metrics_too() -> None:
    assert value(of(), "ftslurm_training_step") == 0


def test_every_metric_follows_prometheus_and_is_on_the_page_with_its_meaning() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "metrics.py"))["page"]()
    for one in METRICS:
        assert re.fullmatch(r"ftslurm_[a-z]+(_[a-z]+)*", one.name)
        assert not re.search(r"_(ms|minutes|hours|mb|percent)(_|$)", one.name)
        labels = ", ".join(f"`{label}`" for label in one.labels)
        assert f"| `{one.name}` | {one.kind} | {labels} | {one.help} |\n" in page
    known = {*(one.name for one in METRICS), RECOVERY}
    assert set(re.findall(r"\bftslurm_[a-z_]+[a-z]", page)) == known
    queries = set(re.findall(r"\bftslurm_[a-z_]+[a-z]", (ROOT / "docs" / "running.md").read_text()))
    assert queries
    assert queries <= {*known, f"{RECOVERY}_bucket"}


def test_every_metric_of_the_dashboard_exists() -> None:
    board = json.loads((ROOT / "docs" / "grafana.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    known = {*(one.name for one in METRICS), *(f"{RECOVERY}{end}" for end in ("_bucket", "_count", "_sum"))}
    assert len(queries) >= 10
    for query in queries:
        names = set(re.findall(r"ftslurm_[a-z_]+", query))
        assert names
        assert names <= known, query
    assert board["uid"] == "ftslurm"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


@pytest.mark.parametrize(
    ("end", "outcome"),
    [([finished(200)], "succeeded"), ([], "lost"), ([event(200, "run_requeued", reason="time_limit")], "running")],
    ids=["over", "its controller is gone", "it goes on in another job"],
)
def test_the_textfile_is_whole_readable_by_others_and_keeps_the_outcome(
    end: list[dict[str, object]], outcome: str, tmp_path: Path
) -> None:
    path = tmp_path / "ftslurm.prom"
    run = observed(tmp_path, metrics={"textfile": str(path), "every_s": 1.0})
    run.write(*(line for line in one_kill() if line["event"] != "run_finished"), *end)
    run.observe()
    text = path.read_text().replace('run="run"', 'run="run-1"')
    assert value(parsed(text), "ftslurm_run_outcome", outcome=outcome) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert not list(tmp_path.glob(".*.part"))
    assert run.told[f"metrics {path}"].failed == 0


def test_a_textfile_that_cannot_be_written_is_told_and_hooks_go_on(tmp_path: Path) -> None:
    run = observed(tmp_path, metrics={"textfile": f"{tmp_path}/absent/ftslurm.prom"}, hooks={"on_event": [["true"]]})
    run.write(started(2), finished(20))
    run.observe()
    told = run.told[f"metrics {tmp_path}/absent/ftslurm.prom"]
    assert told.failed > 0
    assert told.last_error == "No such file or directory"
    assert run.told["hook true"].done == 2


def test_prometheus_scrapes_a_port_of_loopback(tmp_path: Path) -> None:
    run = observed(tmp_path, metrics={"listen": "127.0.0.1:0"})
    run.write(*one_kill())
    with run.observer():
        until(lambda: run.told, "it listens")
        (name,) = run.told
        url = name.removeprefix("metrics ")
        with urlopen(url, timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            text = answer.read().decode().replace('run="run"', 'run="run-1"')
        assert value(parsed(text), "ftslurm_restarts_total", cause="killed") == 1
        host, port = url.removeprefix("http://").removesuffix("/metrics").split(":")
        client = http.client.HTTPConnection(host, int(port), timeout=60)
        client.request("GET", "/")
        assert client.getresponse().status == 404
        client.close()


def test_prometheus_scrapes_a_socket_that_only_this_user_can_use(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    run = observed(tmp_path, metrics={"listen": f"unix:{path}"})
    run.write(started(2))
    for _ in range(2):  # the second observer finds the socket of the first one
        with run.observer():
            until(lambda: run.told and path.exists(), "it listens")
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(60)

                def connected(client: socket.socket = client) -> bool:
                    try:
                        client.connect(str(path))
                    except ConnectionRefusedError:  # still that of the first one
                        return False
                    return True

                until(connected, "it answers")
                client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                text = b""
                while piece := client.recv(1 << 16):
                    text += piece
            assert b"ftslurm_groups" in text


def test_a_taken_port_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        run = observed(tmp_path, metrics={"listen": f"127.0.0.1:{taken.getsockname()[1]}"})
        run.write(started(2))
        run.observe()
    (told,) = run.told.values()
    assert "cannot listen: Address already in use (metrics.listen)" in str(told.last_error)


@pytest.mark.parametrize(
    "listen",
    ["0.0.0.0:9400", "9400", "host:9400", "127.0.0.1:x", "127.0.0.1:70000", "unix:m.sock", "unix:/" + "m" * 200],
)
def test_only_loopback_and_sockets_are_accepted(listen: str) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.listen"):
        endpoint(listen)


def address_of(run: Observed) -> tuple[str, int]:
    until(lambda: any("http://" in name for name in run.told), "it listens")
    (name,) = run.told
    host, port = name.removeprefix("metrics http://").removesuffix("/metrics").split(":")
    return host, int(port)


def scraped(address: tuple[str, int], *headers: str, version: str = "1.1") -> bytes:
    with socket.create_connection(address, 10) as client:
        lines = [f"GET /metrics HTTP/{version}", *headers, "", ""]
        client.sendall("\r\n".join(lines).encode())
        text = b""
        with contextlib.suppress(ConnectionResetError):  # it was closed before it had read all of a question
            while piece := client.recv(1 << 16):
                text += piece
    return text


@pytest.mark.nightly
def test_slow_and_silent_clients_hold_nobody_up_and_are_let_go(tmp_path: Path) -> None:
    run = observed(tmp_path, metrics={"listen": "127.0.0.1:0"})
    run.write(started(2))
    with run.observer(), contextlib.ExitStack() as held:
        address = address_of(run)
        slow = [held.enter_context(socket.create_connection(address, 10)) for _ in range(60)]
        deadline = time.monotonic() + 3 * CLIENT_S
        while slow and time.monotonic() < deadline:
            for client in list(slow):
                try:
                    client.sendall(b"X")  # a byte now and then: never silent, never done
                except OSError:
                    slow.remove(client)
            begun = time.monotonic()
            assert b"ftslurm_groups" in scraped(address, f"Host: 127.0.0.1:{address[1]}")
            assert time.monotonic() - begun < 2
            time.sleep(0.3)
        assert not slow


def test_so_many_clients_that_no_descriptor_would_be_left_are_turned_away(tmp_path: Path) -> None:
    run = observed(tmp_path, metrics={"listen": "127.0.0.1:0"})
    run.write(started(2))
    with run.observer() as process, contextlib.ExitStack() as held:
        address = address_of(run)
        for _ in range(MOST_CLIENTS + 100):
            held.enter_context(socket.create_connection(address, 10))

        def settled() -> bool:
            return MOST_CLIENTS / 2 < len(os.listdir(f"/proc/{process.pid}/fd")) < MOST_CLIENTS + 50

        until(settled, "those above the limit are closed")
        until(lambda: len(os.listdir(f"/proc/{process.pid}/fd")) < 50, "the others are let go")
        assert b"ftslurm_groups" in scraped(address, f"Host: 127.0.0.1:{address[1]}")


def test_a_page_of_a_browser_cannot_read_them_under_a_name_of_its_own(tmp_path: Path) -> None:
    run = observed(tmp_path, metrics={"listen": "127.0.0.1:0"})
    run.write(started(2))
    with run.observer():
        address = address_of(run)
        for host in ("evil.example", f"a.b:{address[1]}", "127.0.0.1.evil.example", "localhost.evil", "", "10.0.0.1"):
            answer = scraped(address, f"Host: {host}")
            assert answer.startswith(b"HTTP/1.1 403"), host
            assert b"ftslurm_" not in answer
        assert scraped(address, "Host: 127.0.0.1", "hOsT:evil.example").startswith(b"HTTP/1.1 403")
        for host in ("127.0.0.1", f"127.0.0.1:{address[1]}", "localhost:1", "localhost", "[::1]:9400", "127.1.2.3"):
            assert b"ftslurm_groups" in scraped(address, f"Host: {host}"), host
        assert b"ftslurm_groups" in scraped(address, version="1.0")
        assert scraped(address, "X: " + "y" * 200_000) == b""
