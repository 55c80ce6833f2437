"""Checkpoints of real torchft trainings: bit-equal after restores, whole after kills, never blocking the training."""

import itertools
import json
import os
import shutil
import signal
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import loaded
import pytest
from checkpoints import part_of
from full_disk import fill, full_disk, make_room
from harness import SCRIPTS

from ftslurm.checkpoint import Checkpointer, CheckpointError, layout
from ftslurm.checkpoint.layout import Writer
from ftslurm.checkpoint.store import Store
from ftslurm.protocol import messages, outbox

os.environ.setdefault("RUST_LOG", "warn")  # read when torchft is imported
SAVING = SCRIPTS / "saving.py"
# Its saves take a while, as those of a large model: each waits when some of its files are written.
SLOWLY = f"""
import runpy, sys, time
from ftslurm.checkpoint import snapshot

write_tensors = snapshot._write_tensors
snapshot._write_tensors = lambda *words: (time.sleep(0.3), write_tensors(*words))
sys.argv[0] = {str(SAVING)!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
VARIABLES = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "REPLICA_GROUP_ID", "FTSLURM_HEALS", "WORLD_SIZE")


@contextmanager
def lighthouse(groups):
    from torchft.coordination import LighthouseServer

    server = LighthouseServer("127.0.0.1:0", groups, join_timeout_ms=100, quorum_tick_ms=20, heartbeat_timeout_ms=1000)
    try:
        yield "http://127.0.0.1:" + server.address().rpartition(":")[2]
    finally:
        server.shutdown()


class Training:
    """A replica group of one rank in this process, with a real manager, that commits steps on demand."""

    def __init__(self, address, folder, every=5, keep=2, seed=0, width=4, data=None, more=None, **manager):
        import torch
        import torchft

        torch.manual_seed(seed)
        self.torch = torch
        self.model = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Linear(width, 1))
        self.store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=10)),
            load_state_dict=self.model.load_state_dict,
            state_dict=self.model.state_dict,
            min_replica_size=1,
            replica_id="one",
            rank=0,
            world_size=1,
            store_addr="127.0.0.1",
            store_port=self.store.port,
            lighthouse_addr=address,
            hostname="localhost",
            **manager,
        )
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=0.1, amsgrad=True)
        self.optimizer = torchft.Optimizer(self.manager, self.inner)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.inner, 3)
        self.state = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, **(more or {})}
        self.checkpointer = Checkpointer(self.manager, self.state, data, dir=folder, every=every, keep=keep)

    def commit(self, steps=1, wait=True):
        """Train so many steps; with `wait`, finish each save before the next step."""
        last = self.manager.current_step() + steps
        while self.manager.current_step() < last:
            self.optimizer.zero_grad()
            self.model(self.torch.randn(2, 3)).square().mean().backward()
            for work in [self.manager.allreduce(p.grad) for p in self.model.parameters()]:
                work.wait()
            self.optimizer.step()
            self.scheduler.step()
            self.checkpointer.step()
            if wait and self.checkpointer._saving:
                self.checkpointer._saving.result()

    def bits(self):
        """Return the whole state, for comparison."""
        out = {}

        def walk(node, place):
            if isinstance(node, self.torch.Tensor):
                out[place] = (str(node.dtype), node.reshape(-1).view(self.torch.uint8).tolist())
            elif isinstance(node, dict):
                for key, value in node.items():
                    walk(value, (*place, key))
            elif isinstance(node, list):
                for index, value in enumerate(node):
                    walk(value, (*place, index))
            else:
                out[place] = (type(node), node)

        walk({name: item.state_dict() for name, item in self.state.items()}, ())
        walk(self.manager.state_dict(), ("manager",))
        return out

    def end(self):
        self.checkpointer.close()
        self.manager.shutdown(wait=False)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """A function that starts the next attempt of the same group."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    alive = []
    with lighthouse(1) as address:

        def begin(folder=tmp_path / "ckpt", kind=Training, **options):
            while alive:
                alive.pop().end()
            alive.append(kind(address, folder, **options))
            return alive[-1]

        yield begin
        while alive:
            alive.pop().end()


def steps_in(folder):
    found = list(Store(str(folder)).survey())
    assert not any(one.damage for one in found)
    return [one.step for one in reversed(found)]


def leftovers(folder):
    """Return the parts that no manifest names, and what else is hidden."""
    used = {part_of(folder, step).name for step in Store(str(folder)).steps()}
    return [path.name for path in folder.iterdir() if path.name.startswith((".", "data-")) and path.name not in used]


def test_all_comes_back_bit_by_bit_also_into_a_fresh_optimizer(start, tmp_path, capsys):
    first = start()
    assert first.checkpointer.restore() == 0
    first.commit(10)
    bits = first.bits()
    first.commit(3)
    second = start(seed=1)
    assert second.bits() != bits
    assert second.checkpointer.restore() == 10
    assert second.bits() == bits
    assert second.manager.state_dict() == {"step": 10, "batches_committed": 10}
    second.commit(7)
    assert steps_in(tmp_path / "ckpt") == [10, 15]  # keep=2
    assert not leftovers(tmp_path / "ckpt")
    assert "checkpoint of step 15 saved in" in capsys.readouterr().err
    for path in (tmp_path / "ckpt").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_what_is_saved_is_the_state_of_its_step_while_training_goes_on(start, monkeypatch):
    """The write is delayed until three more steps have changed every tensor."""
    from ftslurm.checkpoint import snapshot

    training = start()
    training.commit(4)
    go, write = threading.Event(), snapshot.write
    monkeypatch.setattr(snapshot, "write", lambda *arguments: (go.wait(30), write(*arguments))[1])
    training.commit(1, wait=False)
    bits = training.bits()
    training.commit(3, wait=False)
    go.set()
    again = start(seed=1)
    assert again.checkpointer.restore() == 5
    assert again.bits() == bits


def test_the_thread_that_writes_stays_on_the_gpu_of_its_rank(start, tmp_path, monkeypatch):
    """DCP waits there for the stream of the current device."""
    import torch
    from devices import Devices

    from ftslurm.checkpoint import snapshot

    training, used, write = start(), [], snapshot._write_tensors
    devices = Devices(monkeypatch)
    torch.accelerator.set_device_index(3)
    monkeypatch.setattr(snapshot, "_write_tensors", lambda *a: (used.append(devices.current()), write(*a))[1])
    training.checkpointer._start_saving(5)
    training.checkpointer._saving.result()
    assert used == [3]
    assert steps_in(tmp_path / "ckpt") == [5]


def test_a_save_that_is_slow_puts_the_next_one_off(start, tmp_path, monkeypatch, capsys):
    from ftslurm.checkpoint import snapshot

    training = start()
    go, write = threading.Event(), snapshot.write
    monkeypatch.setattr(snapshot, "write", lambda *arguments: (go.wait(30), write(*arguments))[1])
    training.commit(13, wait=False)
    assert capsys.readouterr().err.count("checkpoint of step 10 put off") == 1
    go.set()
    training.checkpointer._saving.result()
    training.commit(3)
    assert steps_in(tmp_path / "ckpt") == [14, 15]


def test_a_save_that_was_put_off_at_the_last_step_is_made_at_the_end(start, tmp_path, monkeypatch):
    from ftslurm.checkpoint import snapshot

    training = start()
    go, write = threading.Event(), snapshot.write
    monkeypatch.setattr(snapshot, "write", lambda *arguments: (go.wait(30), write(*arguments))[1])
    training.commit(11, wait=False)
    threading.Timer(0.2, go.set).start()
    training.checkpointer.close()
    assert steps_in(tmp_path / "ckpt") == [5, 11]
    bits = training.bits()
    again = start(seed=1)
    assert again.checkpointer.restore() == 11
    assert again.bits() == bits


def test_what_is_asked_for_is_saved_after_the_next_step_whatever_every_says(start, tmp_path, monkeypatch):
    training = start(every=0)
    training.commit(3)
    assert steps_in(tmp_path / "ckpt") == []
    monkeypatch.setattr(outbox, "wanted", lambda: 3)
    training.commit(4)
    assert steps_in(tmp_path / "ckpt") == [4]  # once
    monkeypatch.setattr(outbox, "wanted", lambda: 7)
    training.commit(2)
    assert steps_in(tmp_path / "ckpt") == [4, 8]
    bits = training.bits()
    again = start(seed=1, every=0)
    assert again.checkpointer.restore() == 8
    again.commit(1)
    assert again.bits() != bits
    assert steps_in(tmp_path / "ckpt") == [4, 8]  # what was asked of an earlier life is there


def test_a_save_that_is_asked_for_during_a_save_is_that_one_or_the_next(start, tmp_path, monkeypatch):
    from ftslurm.checkpoint import snapshot

    training = start(keep=0)
    go, write = threading.Event(), snapshot.write
    monkeypatch.setattr(snapshot, "write", lambda *arguments: (go.wait(30), write(*arguments))[1])
    training.commit(6, wait=False)  # step 5 is being saved
    monkeypatch.setattr(outbox, "wanted", lambda: 5)
    training.commit(1, wait=False)
    monkeypatch.setattr(outbox, "wanted", lambda: 7)
    training.commit(1, wait=False)
    go.set()
    training.checkpointer._saving.result()
    training.commit(1)
    assert steps_in(tmp_path / "ckpt") == [5, 9]


def test_a_place_in_the_data_is_kept_for_what_was_asked_for(start, monkeypatch):
    class Numbers:
        at = 0

        def state_dict(self):
            return self.at

        def load_state_dict(self, at):
            self.at = at

    monkeypatch.setattr("ftslurm.checkpoint.checkpointer.TRIM_EVERY", 4)
    numbers = Numbers()
    training = start(every=0, data=numbers)
    for _ in range(14):
        numbers.at += 10
        monkeypatch.setattr(outbox, "wanted", lambda: 5 if numbers.at > 50 else 0)
        training.commit()
    again = Numbers()
    assert start(every=0, data=again).checkpointer.restore() == 6
    assert again.at == 60


def test_torn_foreign_and_unreadable_ones_are_passed_over_aloud(start, tmp_path, capsys):
    folder = tmp_path / "ckpt"
    first = start(keep=0)
    first.commit(5)
    bits = first.bits()
    first.commit(15)
    first.end()
    data = next(part_of(folder, 20).glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-1])  # torn
    for step, name in ((15, ".metadata"), (10, "__0_0.distcp")):  # unreadable in spite of the manifest
        path = part_of(folder, step) / name
        path.write_bytes(bytes(path.stat().st_size))
    second = start(seed=1, keep=1)
    assert second.checkpointer.restore() == 5
    assert second.bits() == bits
    err = capsys.readouterr().err
    assert f"step-00000020.json: {data.parent.name}/__0_0.distcp has" in err
    assert "THE CHECKPOINT OF STEP 15 CANNOT BE READ" in err
    assert "THE CHECKPOINT OF STEP 10 CANNOT BE READ" in err
    second.commit(5)  # it replaces the unreadable one of that step, and the one of step 15 does not push it out
    bits = second.bits()
    third = start(seed=2)
    assert third.checkpointer.restore() == 10
    assert third.bits() == bits


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x40
    path.write_bytes(data)


def test_a_flipped_bit_is_not_trained_on(start, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "ckpt"
    first = start(keep=0)
    first.commit(5)
    bits = first.bits()
    first.commit(20)
    first.end()
    for step, name in ((25, "__0_0.distcp"), (20, "tree.pickle"), (15, ".metadata")):
        flip_a_bit(part_of(folder, step) / name)
    (folder / layout.name_of(10)).write_bytes(b"")
    assert set(Store(str(folder)).manifest(5).files) == {"__0_0.distcp", "tree.pickle", ".metadata"}
    said = []
    monkeypatch.setattr(outbox, "say", said.append)
    second = start(seed=1)
    assert second.checkpointer.restore() == 5
    assert second.bits() == bits
    path = str(folder / layout.name_of(5))
    assert said == [messages.CanSave(), messages.Restored(5, path)]
    err = capsys.readouterr().err
    for step, name in ((25, "__0_0.distcp"), (20, "tree.pickle"), (15, ".metadata")):
        assert f"THE CHECKPOINT OF STEP {step} CANNOT BE READ" in err
        assert f"{name} is not what was written" in err
    for step in range(1000, 1010):
        (folder / layout.name_of(step)).touch()
    third = start(seed=2)
    third.checkpointer.restore()
    assert said[-1] == messages.Restored(5, path)
    err = capsys.readouterr().err
    assert "step-00001009.json: it is no manifest of this step" in err
    assert err.count("CANNOT BE READ") == 5


def test_when_all_are_damaged_it_does_not_start_from_step_0(start, tmp_path):
    folder = tmp_path / "ckpt"
    start(keep=0).commit(20)
    (part_of(folder, 5) / "tree.pickle").unlink()
    (folder / "step-00000010.json").write_bytes(b"")
    linked = part_of(folder, 15).rename(tmp_path / "elsewhere")
    part_of(folder, 15).symlink_to(linked)
    flip_a_bit(part_of(folder, 20) / "__0_0.distcp")
    with pytest.raises(CheckpointError) as error:
        start().checkpointer.restore()
    text = str(error.value)
    whys = (
        "__0_0.distcp is not what was",
        "is neither a file nor a folder",
        "it is no manifest of this step",
        "tree.pickle is missing",
    )
    assert [text.index(why) for why in whys] == sorted(text.index(why) for why in whys)
    assert text.startswith("None of the checkpoints can be used")
    assert text.endswith("To start anew, move them away or set another checkpoint.dir")
    shutil.rmtree(folder)
    (folder / "step-00000025").mkdir(parents=True)
    (folder / "step-00000025" / "precious").write_text("data")  # nothing of ours
    assert start().checkpointer.restore() == 0


def test_when_none_can_be_read_it_does_not_start_from_step_0(start, tmp_path):
    start().commit(5)
    path = part_of(tmp_path / "ckpt", 5) / "tree.pickle"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CheckpointError, match=r"does not start from step 0.*step-00000005"):
        start().checkpointer.restore()


def test_another_script_than_the_one_that_saved_is_told_so(start):
    start().commit(5)
    import torch

    with pytest.raises(
        CheckpointError, match=r"holds \['model', 'optimizer', 'scheduler', 'torchft'\], this script restores .*'ema'"
    ):
        start(more={"ema": torch.nn.Linear(1, 1)}).checkpointer.restore()
    with pytest.raises(CheckpointError, match=r"None of the checkpoints can be used.*[Ss]ize mismatch"):
        start(width=5).checkpointer.restore()


def test_a_checkpoint_of_somebody_else_is_refused_with_what_to_do(start, tmp_path):
    start().commit(5)
    path = part_of(tmp_path / "ckpt", 5)
    path.chmod(0o770)
    with pytest.raises(CheckpointError, match=r"others can write into it \(mode 0770\); if nobody did: chmod -R go-w"):
        start().checkpointer.restore()
    path.chmod(0o700)
    (path / ".metadata").chmod(0o666)
    with pytest.raises(CheckpointError, match=r"\.metadata: others can write into it"):
        start().checkpointer.restore()
    if os.geteuid() == 0:
        (path / ".metadata").chmod(0o600)
        os.chown(path, 12345, 12345)
        with pytest.raises(CheckpointError, match=r"belongs to another user.*copy it"):
            start().checkpointer.restore()
        copy = tmp_path / "copy"
        shutil.copytree(path, copy / path.name)
        shutil.copy(tmp_path / "ckpt" / "step-00000005.json", copy)
        assert start(copy).checkpointer.restore() == 5


class Numbers:
    at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def test_a_group_that_heals_reads_no_weights_and_goes_on_in_its_data(start, monkeypatch):
    numbers = Numbers()
    first = start(data=numbers)
    for _ in range(8):
        numbers.at += 1
        first.commit()
    monkeypatch.setenv("FTSLURM_HEALS", "1")
    healed = Numbers()
    second = start(seed=1, data=healed)
    bits = second.bits()
    assert second.checkpointer.restore() == 0
    assert (second.bits(), healed.at) == (bits, 8)
    monkeypatch.setenv("FTSLURM_HEALS", "0")
    third = start(data=healed)
    assert (third.checkpointer.restore(), healed.at) == (5, 5)


def test_spares_and_all_groups_but_one_never_save(tmp_path, monkeypatch):
    from torchft.manager import WorldSizeMode

    with lighthouse(2) as address:
        groups = []
        for group in (0, 1):
            monkeypatch.setenv("REPLICA_GROUP_ID", str(group))
            groups.append(Training(address, tmp_path, data=Numbers(), world_size_mode=WorldSizeMode.FIXED_WITH_SPARES))
        threads = [threading.Thread(target=group.commit, args=[10], daemon=True) for group in groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        by_rank = {group.manager.participating_rank(): index for index, group in enumerate(groups)}
        assert set(by_rank) == {0, None}
        assert steps_in(tmp_path) == [5, 10]
        for step in (5, 10):
            manifest = json.loads((tmp_path / layout.name_of(step)).read_text())
            assert manifest["group"] == by_rank[0]
        assert [path.name for path in (tmp_path / layout.POSITIONS).iterdir()] == [f"group-000{by_rank[0]}-rank-0"]
        for group in groups:
            group.end()


class DiLoCoTraining(Training):
    """Two fragments with an outer optimizer each, synchronised in turn, every two steps."""

    def __init__(self, *arguments, **options):
        from torchft.local_sgd import DiLoCo

        super().__init__(*arguments, use_async_quorum=False, **options)
        outer = [self.torch.optim.SGD(part.parameters(), lr=0.7, momentum=0.9, nesterov=True) for part in self.model]
        self.diloco = DiLoCo(self.manager, list(self.model), self.inner, outer, sync_every=4)

    def sync(self, times):
        with self.diloco:
            while self.manager.current_step() < times:
                self.inner.zero_grad()
                self.model(self.torch.randn(2, 3)).square().mean().backward()
                self.inner.step()
                self.checkpointer.step()

    def bits(self):
        return [super().bits(), repr({key: state() for key, state in self.manager._user_state_dicts.items()})]


def test_diloco_comes_back_with_its_fragments(start):
    first = start(kind=DiLoCoTraining)
    first.sync(5)
    first.checkpointer.close()
    bits = first.bits()
    assert "momentum_buffer" in bits[1]
    second = start(kind=DiLoCoTraining, seed=1)
    assert second.checkpointer.restore() == 5
    assert second.bits() == bits
    with pytest.raises(CheckpointError, match=r"StreamingDiLoCoFragment_0.*\(DiLoCo\) before restore"):
        start().checkpointer.restore()


def test_restoring_after_the_first_quorum_is_refused(start):
    training = start()
    training.commit(1)
    with pytest.raises(CheckpointError, match="too late"):
        training.checkpointer.restore()


def test_a_disk_that_is_full_stops_neither_training_nor_older_checkpoints(start, tmp_path, capsys):
    with full_disk(tmp_path / "disk", kib=128) as disk:
        make_room(disk)
        training = start(disk, keep=1)
        training.commit(5)
        bits = training.bits()
        fill(disk)
        capsys.readouterr()
        training.commit(12)
        err = capsys.readouterr().err
        assert err.count("failed in") == 2, err  # steps 10 and 15, once each, and not at every step between
        assert err.count("No space left on device") == 2, err
        assert steps_in(disk) == [5]
        assert not leftovers(disk)
        make_room(disk)
        again = start(disk, seed=1, keep=1)
        assert again.checkpointer.restore() == 5
        assert again.bits() == bits
        again.commit(5)
        assert steps_in(disk) == [10]
        again.end()


def test_a_folder_in_the_way_or_gone_stops_nothing(start, tmp_path, capsys):
    folder = tmp_path / "ckpt"
    training = start()
    training.commit(5)
    shutil.rmtree(folder)
    training.commit(5)
    assert steps_in(folder) == [10]
    shutil.rmtree(folder)
    folder.write_text("in the way")
    training.commit(5)
    assert "checkpoint of step 15 failed" in capsys.readouterr().err
    folder.unlink()
    folder.mkdir()
    (folder / "step-00000020.json").write_text("precious")
    training.commit(5)
    assert "step-00000020.json is not replaced: it is no manifest" in capsys.readouterr().err
    assert (folder / "step-00000020.json").read_text() == "precious"
    training.commit(5)
    assert Store(str(folder)).newest().step == 25


def test_leftovers_of_earlier_attempts_go_and_those_of_others_stay(start, tmp_path, monkeypatch):
    folder = tmp_path / "ckpt"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "this")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    mine, others = (layout.part_name(9, Writer("this", group, 1), time.time_ns()) for group in (0, 1))
    for name in (mine, others):
        (folder / name).mkdir(parents=True)
        (folder / name / "half").touch()
    start().checkpointer.restore()
    assert leftovers(folder) == [others]
    (folder / others).rename(folder / layout.part_name(9, Writer("this", 1, 1), 0))
    start().commit(5)
    assert leftovers(folder) == []


def test_without_a_folder_and_steps_it_does_nothing(start, monkeypatch):
    monkeypatch.delenv("FTSLURM_CHECKPOINT_DIR", raising=False)
    training = start(None, every=0)
    assert training.checkpointer.restore() == 0
    training.commit(2)
    with pytest.raises(CheckpointError, match="no folder is set"):
        start(None, every=3)


def test_a_group_of_several_ranks_needs_a_process_group(start, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(CheckpointError, match=r"WORLD_SIZE=2, .* has 1: call init_process_group"):
        start()


# --- groups in processes of their own --------------------------------------------------------------------------------


def train(folder, address, groups=1, ranks=1, **options):
    """Train to the end; return the reports of each rank, by (group, rank)."""
    import torch

    report = folder / f"report{len(list(folder.glob('report*')))}"
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    stores, started = [], []
    for group in range(groups):
        stores.append(torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        for rank in range(ranks):
            environ = {"REPLICA_GROUP_ID": group, "RANK": rank, "WORLD_SIZE": ranks, "TORCHFT_LIGHTHOUSE": address}
            environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": stores[-1].port, "RUST_LOG": "warn"}
            environ |= {"TORCHELASTIC_USE_AGENT_STORE": True, "FTSLURM_CHECKPOINT_DIR": folder / "ckpt"}
            environ |= {"FTSLURM_CHECKPOINT_EVERY": 5, "FTSLURM_CHECKPOINT_KEEP": 2}
            words = ("--report", str(report), "--step-time", "0", "--wait", *flags)
            started.append(loaded.start(SAVING, *words, **{name: str(value) for name, value in environ.items()}))
    done = [one.result() for one in started]
    assert [one.returncode for one in done] == [0] * len(done), "\n".join(one.stderr for one in done)
    return {(g, r): reports(report, g, r) for g in range(groups) for r in range(ranks)}


def reports(path, group, rank=0):
    file = Path(f"{path}-{group}-{rank}")
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def bits_after(reported, step):
    return next(line["digest"] for line in reported if line["event"] == "step" and line["step"] == step)


def test_fsdp2_resumes_on_two_ranks_and_on_one_and_a_bad_file_concerns_both(tmp_path):
    folder = tmp_path / "ckpt"
    with lighthouse(1) as address:
        first = train(tmp_path, address, ranks=2, kind="fsdp", steps=12)
        assert {path.name for path in part_of(folder, 10).glob("*.distcp")} == {"__0_0.distcp", "__1_0.distcp"}
        bad = part_of(folder, 10) / "__1_0.distcp"
        bad.write_bytes(bytes(bad.stat().st_size))
        second = train(tmp_path, address, ranks=2, kind="fsdp", steps=6, seed=1)
        third = train(tmp_path, address, ranks=1, kind="fsdp", steps=6, seed=2)
    for restored in (second[0, 0][0], second[0, 1][0], third[0, 0][0]):
        assert restored["step"] == 5
        assert restored["digest"] == bits_after(first[0, 0], 5) == bits_after(first[0, 1], 5)
    assert [line[0]["at"] for line in (second[0, 0], second[0, 1], third[0, 0])] == [5, 5, 0]


def unfinished(folder):
    """Return the parts whose step has no manifest."""
    return [p.name for p in folder.glob("data-*") if not (folder / layout.name_of(int(p.name.split("-")[1]))).exists()]


def test_killed_while_saving_leaves_nothing_torn_and_the_next_group_saves_soon(local, tmp_path):
    """kill -9 hits the saving group during the save; if the save was faster than the kill, it is tried again."""
    report, end = tmp_path / "report", tmp_path / "end"
    overrides = ["groups.count=2", "checkpoint.every=10", "checkpoint.keep=2"]
    arguments = {"report": str(report), "until": str(end), "step-time": 0.05}
    run = local.start(*overrides, script=local.script(SLOWLY), args=arguments)
    folder = run.dir / "checkpoints"
    while True:
        run.until(lambda: unfinished(folder), "a save")
        (name, *_) = unfinished(folder) or [None]
        if name is None:
            continue
        step, group, attempt = int(name.split("-")[1]), *(int(text) for text in name.split("-")[-3:-1])
        os.kill(reports(report, group)[-1]["pid"], signal.SIGKILL)
        if (folder / name).exists():
            break
        run.wait_for("group_joined", group=group, attempt=attempt + 1)
    other = 1 - group
    store = Store(str(folder))
    run.until(lambda: (newest := store.newest()) and newest.step > step, "the next checkpoint")
    after = store.newest(upto=step + 9)
    assert after is not None
    assert after.step > step, "the next group waited for the next multiple"
    assert json.loads(Path(after.name).read_text())["group"] == other
    run.wait_for("group_joined", group=group, attempt=attempt + 1)
    assert not (folder / name).exists()
    end.write_text(str(reports(report, other)[-1]["step"] + 30))
    run.finish()
    assert len(steps_in(folder)) == 2
    assert not leftovers(folder)
    assert reports(report, 0)[-1] | {"time": 0, "pid": 0} == reports(report, 1)[-1] | {"time": 0, "pid": 0}
    assert run.named("checkpoint_saved", step=after.step, group=other, path=after.name)
    lives = [list(life) for _, life in itertools.groupby(reports(report, group), lambda line: line["pid"])]
    before, again = lives[-2:]
    assert again[0]["step"] == 0, "it has read weights, although a live group had newer ones"
    assert 0 <= again[0]["at"] - before[-1]["at"] <= 1, "it goes on in its data behind its own last step"
