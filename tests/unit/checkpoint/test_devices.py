"""Which workers use a GPU that is not theirs, and what is complete when the state on several GPUs is copied."""

from __future__ import annotations

from typing import Any

import loaded
import pytest
import torch
from devices import Devices

from ftslurm.checkpoint import devices, snapshot, trees
from ftslurm.worker import unhealed


@pytest.mark.parametrize(
    ("ranks", "own", "contexts", "named"),
    [
        (4, 1, {1}, None),
        (4, 1, {0, 1}, 0),
        (4, 0, {0, 2, 3}, 2),
        (4, 3, {0}, 0),  # "cuda" without an index
        (4, 2, set[int](), None),  # it trains on the CPU
        (2, 1, {2, 3}, None),  # two GPUs for each worker
        (8, 5, {1}, None),  # workers share GPUs
    ],
)
def test_a_worker_that_uses_the_gpu_of_another_rank_is_told_the_cure(
    ranks: int, own: int, contexts: set[int], named: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = Devices(monkeypatch)
    gpus.contexts = set(contexts)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    monkeypatch.setenv("LOCAL_RANK", str(own))
    told: list[str] = []
    watch = unhealed.Watch(told.append)
    for _ in range(3 * unhealed.STEPS):
        watch._stepped()
    assert told == ([] if named is None else [devices.MISPLACED.format(named)])
    assert gpus.contexts == contexts


def test_nothing_that_is_said_can_end_a_step_of_an_optimizer() -> None:
    def closed(_: str) -> None:
        raise BrokenPipeError

    watch = unhealed.Watch(closed)
    watch.over = False
    for _ in range(2 * unhealed.STEPS):
        watch._stepped()


class OnGpu:
    """A tensor on one of several GPUs. What is asked of a GPU is done when it is synchronized, the last thing first."""

    layout = torch.strided

    def __init__(self, gpus: Devices, index: int, value: float) -> None:
        self.gpus, self.device, self.data = gpus, torch.device("cuda", index), torch.zeros(4)
        gpus.queued.append((index, lambda: self.data.fill_(value)))  # by the optimizer, on a stream of its own

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, args: tuple[Any, ...], kwargs: Any = None) -> Any:
        buffer, own = args
        own.gpus.queued.append((own.device.index, lambda: function(buffer, own.data)))

    def __getattr__(self, name: str) -> Any:  # its shape
        return getattr(self.data, name)

    def detach(self) -> OnGpu:
        return self


@pytest.mark.parametrize("current", range(4))
def test_a_snapshot_is_complete_whichever_gpus_hold_the_state_and_is_current(
    current: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus, make = Devices(monkeypatch), torch.empty
    monkeypatch.setattr(trees, "_PLAIN", (OnGpu, torch.Tensor))
    monkeypatch.setattr(torch, "empty", lambda size, dtype, **_: make(size, dtype=dtype))
    torch.accelerator.set_device_index(current)
    values = {"a": 1.0, "b": 2.0, "c": 3.0}
    tree: dict[str, Any] = {name: OnGpu(gpus, n, value) for n, (name, value) in enumerate(values.items())}
    copied = snapshot.copy(tree | {"on the CPU": torch.ones(4)}, {}).pieces
    assert {name: piece.tensor.tolist() for name, piece in copied.items()} == {
        name: [value] * 4 for name, value in (values | {"on the CPU": 1.0}).items()
    }
    assert gpus.contexts == {0, 1, 2}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_contexts_of_this_process_are_found_and_none_is_made() -> None:
    said = loaded.run(
        "import torch; from ftslurm.checkpoint import devices\n"
        "torch.cuda.init(); before = devices.misplaced()\n"
        "torch.zeros(1, device='cuda'); print([before, devices.misplaced()])",
        LOCAL_RANK="-1",
        LOCAL_WORLD_SIZE=str(torch.cuda.device_count()),
    )
    assert said.stdout == f"{['', devices.MISPLACED.format(0)]}\n", said.stderr
