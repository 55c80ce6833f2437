"""How the cost of the Lighthouse's rules and of its encoding grows with the number of replica groups.

    python benchmarks/lighthouse_rules.py [--members 100 1000 10000]

For each number of members, in milliseconds of CPU time: one decision on a quorum, a heartbeat of all members, a join of
all (one request after the other until the quorum is issued) by the rules alone and by the server without gRPC,
announcements and evictions of all by the controller, and the encoded answer. scale_lighthouse.py measures it with
real connections, beside torchft's.

An answer lists all members, so all answers together have N * N entries. The join by the rules alone decides after each
request, which is N * N too; the server decides less often (Server.decide_soon).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

import manager_requests

from ftslurm.lighthouse import protobuf
from ftslurm.lighthouse.last_quorum import LastQuorum
from ftslurm.lighthouse.quorum import Member, Quorum, Rules
from ftslurm.lighthouse.registry import Book
from ftslurm.lighthouse.server import Server
from ftslurm.protocol import messages

RULES = Rules(min_replicas=1, join_timeout_s=1e9, heartbeat_timeout_s=1e9)


def member(number: int, step: int = 0) -> Member:
    name = f"group_{number}:8c2e7a4e-6b7c-4f1e-9a56-{number:012d}"
    return Member(name, f"http://node{number:05d}:31234", f"node{number:05d}:29400", step=step)


def timed_ms(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1000


def rules_alone(count: int) -> dict[str, float]:
    """Measure the registry and the rules, without event loop and encoding."""
    book = Book(RULES, 0.0)
    members = [member(number) for number in range(count)]
    for number, one in enumerate(members):
        book.announce(number, 0, one.store_address)
        book.beat(one.replica_id, 0.0)
    for one in members[:-1]:
        book.ask(one, 0.0)
    waiting = statistics.median(timed_ms(lambda: book.form(0.0)) for _ in range(5))
    book.ask(members[-1], 0.0)
    issued = timed_ms(lambda: book.form(0.0))
    assert book.last is not None
    assert len(book.last.members) == count

    def beat() -> None:
        for one in members:
            book.beat(one.replica_id, 1.0)

    def join() -> None:
        for number in range(count):
            book.ask(member(number, 1), 1.0)
            book.form(1.0)

    return {
        "decision, one is missing": waiting,
        "decision, issued": issued,
        "heartbeat of all": timed_ms(beat),
        "join of all, a decision each": timed_ms(join) if count <= 1000 else float("nan"),
    }


def wire(count: int) -> dict[str, float]:
    """Measure the time to read all requests and to encode an answer, and the size of the answer."""
    requests = [manager_requests.quorum(member(number)) for number in range(count)]
    read: list[Member] = []
    reading = timed_ms(lambda: read.extend(map(protobuf.read_request, requests)))
    answers: list[bytes] = []
    writing = timed_ms(lambda: answers.append(protobuf.write_quorum(Quorum(1, tuple(read)), 0.0)))
    return {"read all requests": reading, "encode the answer": writing, "answer, kB": len(answers[0]) / 1000}


async def server_alone(count: int) -> dict[str, float]:
    """Measure the server without gRPC: requests, orders and heartbeats arrive one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Book(RULES, time.monotonic()), LastQuorum(folder), 0.1, lambda _: None)
        ticking = asyncio.create_task(server.tick())

        async def feed(calls: Iterable[Callable[[], Any]]) -> float:
            start = time.process_time()
            for call in calls:
                call()
                await asyncio.sleep(0)
            return (time.process_time() - start) * 1000

        def order(number: int, message: Callable[..., messages.Order]) -> None:
            server.order(message(number, 0, member(number).store_address))

        async def join(step: int) -> float:
            requests = [manager_requests.quorum(member(number, step)) for number in range(count)]
            tasks: list[asyncio.Task[bytes]] = []
            start = time.process_time()
            await feed((lambda r=r: tasks.append(asyncio.create_task(server.quorum(r)))) for r in requests)  # type: ignore[misc]
            answers = await asyncio.gather(*tasks)
            assert len(protobuf.read_quorum(answers[0]).members) == count
            return (time.process_time() - start) * 1000

        announced = await feed((lambda n=n: order(n, messages.Member)) for n in range(count))  # type: ignore[misc]
        first, again = await join(0), await join(1)
        evicted = await feed((lambda n=n: order(n, messages.Evict)) for n in range(count))  # type: ignore[misc]
        ticking.cancel()
    return {
        "server: announcements of all": announced,
        "server: first join of all": first,
        "server: next quorum of all": again,
        "server: evictions of all": evicted,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--members", type=int, nargs="*", default=[100, 1000])
    parser.add_argument("--json", action="store_true", help="one JSON object per number of members")
    args = parser.parse_args()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the log of the server
    for count in sorted(args.members):
        found = rules_alone(count) | wire(count) | asyncio.run(server_alone(count))
        if args.json:
            print(json.dumps({"members": count, **found}), flush=True)
            continue
        print(f"{count} members")
        for name, value in found.items():
            print(f"  {name:<34}{value:>12.2f}", flush=True)


if __name__ == "__main__":
    main()
