"""The digest of a state sees every bit, and nothing but names, types, shapes and bits."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest
import torch
from torch.distributed.tensor import DTensor, Replicate

from ftslurm.worker.digest import BLOCK, ROW, chosen, digest, flip_bit, named

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.float8_e4m3fn)
TYPES = (*FLOATS, torch.int64, torch.uint8, torch.bool)
SIZES = (1, 1000, ROW, 2 * ROW + 7)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a tensor, to change it."""
    return tensor.detach().view(-1).view(INTEGERS[min(8, tensor.element_size())])


def some(dtype: torch.dtype, size: int, seed: int = 0) -> torch.Tensor:
    drawn = torch.randint(0, 100, (size,), generator=torch.Generator().manual_seed(seed))
    return (drawn / 7).to(dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", TYPES)
def test_each_flipped_bit_is_seen(dtype: torch.dtype, size: int) -> None:
    tensor, draw = some(dtype, size), random.Random(size)
    state = {"w": tensor, "b": some(torch.float32, 11, seed=1)}
    before = digest(state)
    words = bits(tensor)
    width = 8 * words.element_size() if dtype is not torch.bool else 1
    places = {0, size - 1, size // 2, *(draw.randrange(size) for _ in range(3))}
    for place in places:
        for bit in {0, width - 1, draw.randrange(width)}:
            flip = 1 << bit if bit < 8 * words.element_size() - 1 else -(1 << bit)
            words[place] ^= flip
            assert digest(state) != before, (place, bit)
            words[place] ^= flip
    assert digest(state) == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_two_changes_do_not_cancel_each_other(dtype: torch.dtype) -> None:
    tensor, draw = some(dtype, 2 * ROW + 100), random.Random(5)
    words, seen = bits(tensor), {digest({"w": tensor})}
    top = -(1 << (8 * words.element_size() - 1))
    for _ in range(50):
        one, other = draw.sample(range(len(words)), 2)
        for flip in (1, top):  # the same bit of two elements: of the sign, sums modulo 2**n would see nothing
            words[[one, other]] ^= flip
            seen.add(digest({"w": tensor}))
            words[[one, other]] ^= flip
    assert len(seen) == 1 + 2 * 50


def test_places_count_within_a_tensor_and_between_tensors() -> None:
    a, b = some(torch.float32, 3 * ROW + 5), some(torch.float32, 3 * ROW + 5, seed=1)
    states = [
        {"a": a, "b": b},
        {"a": b, "b": a},
        {"a": a, "c": b},
        {"a": a.roll(1), "b": b},
        {"a": a.roll(ROW), "b": b},
    ]
    states += [{"a": a.flip(0), "b": b}, {"a": a[:-1], "b": torch.cat([a[-1:], b])}, {"a": a.view(1, -1), "b": b}]
    states += [{"a": a.view(torch.int32), "b": b}, {"a": a}, {"a": a, "b": b, "z": a[:0]}, {}]
    assert len({digest(state) for state in states}) == len(states)


def test_nans_and_zeros_with_other_bits_are_other_values() -> None:
    quiet = torch.tensor([0x7FC00000, 0x7FC00001, 0, -(1 << 31)], dtype=torch.int32).view(torch.float32)
    assert len({digest({"w": quiet[n : n + 1]}) for n in range(4)}) == 4


def test_order_layout_offset_and_pieces_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = some(torch.bfloat16, 4 * ROW + 3).view(-1, 1), some(torch.float32, 600).view(20, 30)
    expected = digest({"a": a, "b": b})
    shifted = torch.cat([a[:1], a])[1:]  # begins at an odd address
    transposed = b.t().contiguous().t()
    assert not transposed.is_contiguous()
    assert digest({"b": transposed, "a": shifted}) == expected
    for rows in (1, 3, 64):
        monkeypatch.setitem(BLOCK, "cpu", rows * ROW)
        assert digest({"a": a, "b": b}) == expected


@pytest.mark.parametrize("dtype", TYPES)
def test_a_drill_flips_one_bit_of_the_largest_tensor(dtype: torch.dtype) -> None:
    tensors = {"b": some(dtype, 12).view(3, 4), "a": some(torch.float32, 2), "c": some(dtype, 12)}
    before, words = digest(tensors), bits(tensors["b"]).clone()
    assert flip_bit(tensors) == "b"
    changed = bits(tensors["b"]) ^ words
    assert changed.count_nonzero() == 1
    assert changed.sum() == 1
    assert digest(tensors) != before


def test_drills_of_several_groups_do_not_make_them_equal() -> None:
    drilled = list[str]()
    for _ in range(2):
        torch.manual_seed(0)
        random.seed(0)
        groups = {"w": some(torch.float32, 100_000).view(100, 1000)}
        flip_bit(groups)
        drilled.append(digest(groups))
    assert len(set(drilled)) == 2


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.frozen = torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(self.norm(self.body(x)))


def test_what_is_trained_is_compared_and_what_may_differ_is_not() -> None:
    net = Net()
    trained = [*net.body.parameters(), *net.norm.parameters()]
    optimizer = torch.optim.AdamW(trained)
    net(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    state = {
        "default": OrderedDict(model=net.state_dict(), optimizer=optimizer.state_dict()),
        "other": [torch.get_rng_state(), {"place": torch.tensor(7)}, torch.eye(3).to_sparse(), "text", None],
    }
    found = chosen(state, [optimizer], [])
    weights = {f"default.model.{name}" for name in ("body.weight", "body.bias", "norm.weight", "norm.bias")}
    moments = {f"default.optimizer.state.{n}.{key}" for n in range(4) for key in ("exp_avg", "exp_avg_sq", "step")}
    assert found.keys() == weights | moments
    assert chosen(state, [optimizer], ["*.frozen.*"]).keys() == {
        "default.model.frozen.weight",
        "default.model.frozen.bias",
    }
    assert chosen(state, [], []) == {}


def test_of_a_sharded_tensor_the_local_part_is_read(tmp_path: object) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        local = some(torch.float32, 12)
        sharded = DTensor.from_local(local, mesh, [Replicate()])
        ((name, tensor),) = named({"w": sharded})
        assert (name, tensor.data_ptr()) == ("w._local_tensor", local.data_ptr())
        optimizer = torch.optim.SGD([torch.nn.Parameter(sharded)])
        assert chosen({"w": sharded}, [optimizer], []).keys() == {"w._local_tensor"}
    finally:
        torch.distributed.destroy_process_group()
