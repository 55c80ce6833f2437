"""Which loader trains each sample once, and what is lost or doubled with the others: the table of docs/data.md.

Three groups with real Managers and Checkpointers train in threads of this process, so that a fault comes at the same
place each time. The history that counts is computed from what each group gives to each vote.
"""

from __future__ import annotations

import io
import os
import tarfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from trained_ids import IDS, SEED, SIZE, Vote, counted, ids_of, loader, undisturbed

from ftslurm.checkpoint import Checkpointer
from ftslurm.data import Batches

os.environ.setdefault("RUST_LOG", "error")  # read when torchft is imported
PAGE = Path(__file__).parents[2] / "docs" / "data.md"
PACKAGES = {"S": "torchdata", "d": "datasets", "w": "webdataset"}  # by the first letter of a loader that needs one


class Died(Exception):
    """What a group raises where its process is to die."""


class Epochs:
    """The batches of a group's share, epoch after epoch, with a place that a Checkpointer can keep."""

    epoch = 0

    def __init__(self, loader: Any, set_epoch: Callable[[int], None], batch_size: int) -> None:
        self.loader, self.set_epoch, self.batch_size = loader, set_epoch, batch_size

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.set_epoch(self.epoch)
            yield from self.loader
            self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "loader": self.loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        self.set_epoch(self.epoch)
        self.loader.load_state_dict(state["loader"])


def numbers_of(shards: list[int]) -> Iterator[dict[str, int]]:
    yield from ({"id": number} for shard in shards for number in range(shard, SIZE, 12))


def epochs(kind: str, folder: Path, group: int, groups: int, batch_size: int) -> Epochs:
    """Return a loader as people have it, with the share of a group."""
    from torch.utils.data import DataLoader, DistributedSampler

    if kind.startswith("datasets"):
        from datasets import IterableDataset
        from datasets.distributed import split_dataset_by_node

        every = IterableDataset.from_generator(numbers_of, gen_kwargs={"shards": list(range(12))})
        stream = split_dataset_by_node(every.shuffle(seed=SEED, buffer_size=1), group, groups).batch(batch_size)
        return Epochs(stream, stream.set_epoch, batch_size)
    if kind == "webdataset":
        import webdataset

        mine = [str(folder / f"{shard}.tar") for shard in range(group, 12, groups)]
        web = webdataset.WebDataset(mine, shardshuffle=False).map(lambda one: {"id": int(one["txt"])})
        return Epochs(web.batched(batch_size), lambda _: None, batch_size)
    share = (1, 0) if kind.endswith("by rank") else (groups, group)
    sampler: DistributedSampler[int] = DistributedSampler(IDS, *share, seed=SEED)
    if kind.startswith("Stateful"):
        from torchdata.stateful_dataloader import StatefulDataLoader

        return Epochs(StatefulDataLoader(IDS, batch_size, sampler=sampler), sampler.set_epoch, batch_size)
    return Epochs(DataLoader(IDS, batch_size, sampler=sampler), sampler.set_epoch, batch_size)


class Group:
    """One attempt of a replica group."""

    def __init__(self, training: Training, number: int) -> None:
        import torch
        import torchft

        self.training, self.number, self.history = training, number, training.histories[-1]
        self.dies_at = ""
        self.model = torch.nn.Linear(2, 2)
        self.store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        mode = torchft.manager.WorldSizeMode
        self.manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=2)),
            state_dict=self.model.state_dict,
            load_state_dict=self.load,
            min_replica_size=2 if training.spares else 1,
            world_size_mode=mode.FIXED_WITH_SPARES if training.spares else mode.DYNAMIC,
            init_sync=False,
            use_async_quorum=False,
            replica_id=f"group_{number}",
            rank=0,
            world_size=1,
            store_addr="127.0.0.1",
            store_port=self.store.port,
            lighthouse_addr=training.address,
            hostname="localhost",
            timeout=timedelta(seconds=60),
        )
        kind, size = training.kind, training.batch_size
        self.own = None if kind == "Batches" else epochs(kind, training.folder, number, training.groups, size)
        if self.own is None:
            self.batches = Batches(loader(size), self.manager, seed=SEED)
        keeps = self.own if kind.startswith(("Stateful", "datasets")) else None
        self.checkpointer = Checkpointer(
            self.manager, data=keeps, dir=training.folder / "checkpoints", every=20, keep=0
        )
        self.restored = self.checkpointer.restore()
        self.next, self.ids = iter(self.own or ()), None

    def load(self, state: Any) -> None:
        if self.dies_at == "heal":
            raise Died
        self.model.load_state_dict(state)

    def step(self) -> None:
        import torch

        self.manager.start_quorum()
        step, rank = self.manager.current_step() + 1, self.manager.participating_rank()
        if self.ids is None or not self.training.kind.endswith("repeated"):
            self.ids = self.batches.take()[0] if self.own is None else next(self.next)
        if self.dies_at == "average":
            raise Died
        ids = self.ids["id"] if isinstance(self.ids, dict) else self.ids
        epoch = self.own.epoch if self.own else None
        vote = Vote(self.history, step, self.manager._quorum_id, rank or 0, self.number, epoch, [int(n) for n in ids])
        if rank is not None:
            self.training.votes.append(vote)
        self.manager.allreduce(torch.ones(2)).wait()
        if self.dies_at == "vote":
            raise Died
        if self.manager.should_commit():
            self.training.committed.add(vote[:3])
            self.ids = None if rank is not None else self.ids
        self.checkpointer.step()

    def end(self) -> None:
        self.checkpointer.close()
        self.manager.shutdown(wait=False)


class Training:
    """A training of three groups, perhaps of several runs."""

    batch_size, groups, spares, run = 4, 3, 0, 0

    def __init__(self, kind: str, address: str, folder: Path, environ: pytest.MonkeyPatch) -> None:
        self.kind, self.address, self.folder, self.environ = kind, address, folder, environ
        self.votes: list[Vote] = []
        self.committed: set[tuple[Any, ...]] = set()
        self.histories: list[int] = []
        self.began: dict[int, int] = {}  # the step at which each history began
        self.live: dict[int, Group] = {}
        self.error: Exception | None = None

    def start_all(self, *numbers: int, resumed: bool = False) -> None:
        """Have these groups begin a history from the newest checkpoint."""
        self.end()
        self.histories.append(len(self.histories))
        self.run += resumed
        self.start(*(numbers or range(self.groups)), heals=False)
        (self.began[self.histories[-1]],) = {group.restored for group in self.live.values()}

    def start(self, *numbers: int, heals: bool = True) -> None:
        for number in numbers:
            self.environ.setenv("REPLICA_GROUP_ID", str(number))
            self.environ.setenv("NUM_REPLICA_GROUPS", str(self.groups))
            self.environ.setenv("FTSLURM_HEALS", str(int(heals)))
            self.environ.setenv("TORCHELASTIC_RUN_ID", f"run{self.run}")
            self.environ.setenv("FTSLURM_HISTORY", str(self.histories[-1]))
            self.live[number] = Group(self, number)

    def kill(self, number: int, at: str = "") -> None:
        """End a group: between two steps, or while it heals, before the average or the vote of the next one."""
        if at:
            self.live[number].dies_at = at
            self.train(1)
        if number in self.live:
            self.live.pop(number).end()

    def train(self, steps: int) -> None:
        """Train so many steps, and a few more: until groups that heal are there, or have died of it."""
        last = max(group.manager.current_step() for group in self.live.values()) + steps
        self.end_step = 10**9  # no group may leave before the others know

        def go(number: int, group: Group) -> None:
            try:
                while group.manager.current_step() < self.end_step:
                    group.step()
                    reached = min(one.manager.current_step() for one in [*self.live.values()])
                    self.end_step = min(self.end_step, reached + 3 if reached >= last else 10**9)
                return
            except Died:
                pass
            except Exception as error:  # of the loader
                self.error = error
            group.end()
            del self.live[number]

        threads = [threading.Thread(target=go, args=one, daemon=True) for one in self.live.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(200)
            assert not thread.is_alive()
        for group in self.live.values():
            assert group.manager.current_step() == self.end_step
            if group.checkpointer._saving:
                group.checkpointer._saving.result()

    def end(self) -> None:
        for group in self.live.values():
            group.end()
        self.live.clear()

    def judge(self) -> dict[str, Any]:
        """Return how many samples of each complete epoch were trained on twice or never, and whether in order."""
        history = counted(self.votes, self.committed, self.began)
        ids = ids_of(history)
        if self.kind == "Batches":
            found = [ids[start : start + SIZE] for start in range(0, len(ids) - SIZE + 1, SIZE)]
        else:
            last = {vote.group: vote.epoch or 0 for vote in history}
            complete = range(min(last[number] for number in range(self.groups)))
            found = [ids_of([vote for vote in history if vote.epoch == epoch]) for epoch in complete]
        times = [Counter(epoch) for epoch in found]
        return {
            "missing": [SIZE - len(count) for count in times],
            "double": [sum(count.values()) - len(count) for count in times],
            "in order": ids == undisturbed(len(ids)),
        }


def three_kills(training: Training) -> None:
    training.start_all()
    for number in range(3):
        training.train(7)
        training.kill(number, "average")
        training.train(2)
        training.start(number)


def kill_in_a_heal(training: Training) -> None:
    training.start_all()
    training.train(7)
    training.kill(1)
    training.train(2)
    training.start(1)
    training.kill(1, "heal")
    training.train(2)
    training.start(1)


def all_dead_twice(training: Training) -> None:
    training.start_all()
    for steps in (27, 9, 9):  # a checkpoint at step 20, and no other
        training.train(steps)
        training.start_all()


def resumed(training: Training) -> None:
    training.start_all()
    training.train(27)
    training.start_all(resumed=True)


def resumed_with_two_groups(training: Training) -> None:
    training.start_all()
    training.train(27)
    training.groups = 2
    training.start_all(resumed=True)


def resumed_with_twice_the_batch(training: Training) -> None:
    training.start_all()
    training.train(27)
    training.batch_size = 8
    training.start_all(resumed=True)


def scaled_down_and_up(training: Training) -> None:
    training.start_all()
    training.train(7)
    training.kill(2)
    training.train(20)
    training.start(2)


def away_in_a_full_restart(training: Training) -> None:
    training.start_all()
    training.train(27)
    training.kill(2)
    training.start_all(0, 1)
    training.train(5)
    training.start(2)


def death_before_the_commit(training: Training) -> None:
    training.start_all()
    training.train(7)
    training.kill(1, "vote")
    training.train(2)
    training.start(1)


def spare(training: Training) -> None:
    training.spares = 1
    training.start_all()
    training.train(7)
    training.kill(0)
    training.train(7)
    training.start(0)


FAULTS = {
    "three kills": three_kills,
    "a kill in a heal": kill_in_a_heal,
    "a death between average and commit": death_before_the_commit,
    "all groups dead, twice": all_dead_twice,
    "resume": resumed,
    "resume with two groups": resumed_with_two_groups,
    "resume with twice the batch size": resumed_with_twice_the_batch,
    "a group away for 20 steps": scaled_down_and_up,
    "a group away in a full restart": away_in_a_full_restart,
    "a spare, a kill": spare,
}


def table() -> Iterator[tuple[str, str, str]]:
    """Yield loader, fault and result of each cell of the page's table."""
    rows = [line.strip("| \n").replace("`", "") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    (head,) = (row for row in cells if row[0] == "fault")
    for row in cells:
        for name, cell in zip(head[1:], row[1:], strict=False) if row[0] in FAULTS else ():
            if cell != "–":
                yield name, row[0], cell


def shards(folder: Path) -> None:
    """Write the ids as webdataset has them."""
    for shard in range(12):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for number in range(shard, SIZE, 12):
                member = tarfile.TarInfo(f"{number:04d}.txt")
                member.size = len(str(number))
                tar.addfile(member, io.BytesIO(str(number).encode()))


BY_DAY = ("Batches", "a kill in a heal")


@pytest.mark.parametrize(
    ("loader", "fault", "result"),
    [pytest.param(*cell, marks=[] if cell[:2] == BY_DAY else pytest.mark.nightly) for cell in table()],
)
def test_a_loader_gives_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: str, fault: str, result: str
) -> None:
    pytest.importorskip(PACKAGES.get(loader[0], "torch"))
    from torchft.coordination import LighthouseServer

    from ftslurm.checkpoint import snapshot  # noqa: F401 not while a step waits for it

    for name in ("TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    # Long: without a heartbeat for so long, a group that lives would train on alone.
    server = LighthouseServer("127.0.0.1:0", 1, join_timeout_ms=3000, quorum_tick_ms=10, heartbeat_timeout_ms=3000)
    shards(tmp_path)
    training = Training(loader, f"http://127.0.0.1:{server.address().rpartition(':')[2]}", tmp_path, monkeypatch)
    try:
        FAULTS[fault](training)
        training.train(110)
    finally:
        training.end()
        server.shutdown()
    if training.error:
        assert result == "fails", training.error
        return
    found = training.judge()
    print(loader, "|", fault, "|", found)
    assert found["missing"], "not one whole epoch"
    words = [word for word, key in (("skipped", "missing"), ("twice", "double")) if any(found[key])]
    assert (", ".join(words) or "once") == result, found
    assert loader != "Batches" or found["in order"]


def test_the_table_has_all_faults() -> None:
    assert {fault for _, fault, _ in table()} == {*FAULTS}
