"""Summaries in pieces: the same at any size of piece, and nothing as large as K is made."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from topokv.scheduling import BlockSummary, summaries
from topokv.scheduling.block_summary import block_centroids

OF_KEYS = ("centroid", "box", "points", "variance")


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that an operator made, views aside."""

    def __init__(self):
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple) else (made,):
            if isinstance(tensor, torch.Tensor) and not func.is_view:
                self.num_bytes = max(self.num_bytes, tensor.numel() * tensor.element_size())
        return made


def keys(kv_len, dtype):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, kv_len, 8, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kv_len", [1, 7, 64, 67])
def test_pieces_do_not_show_in_what_is_kept(monkeypatch, dtype, kv_len):
    k = keys(kv_len, dtype)
    whole = BlockSummary(k, 8, OF_KEYS)
    monkeypatch.setattr(summaries, "_cpu_piece_bytes", lambda: 3 * 2 * 3 * 8 * 8 * 4)
    pieces = BlockSummary(k, 8, OF_KEYS)
    for part in OF_KEYS:
        assert torch.equal(pieces[part], whole[part])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("parts", [OF_KEYS, ("drift",), ("box",)], ids="+".join)
def test_nothing_as_large_as_the_keys_is_made(dtype, parts):
    k = torch.zeros(1, 16, 16384, 64, dtype=dtype)
    with Largest() as made:
        BlockSummary(k, 64, parts)
    assert 0 < made.num_bytes <= 16 * 2**20 < k.numel() * k.element_size()


def test_where_nothing_is_kept_of_keys_they_are_not_read():
    k = torch.zeros(1, 8, 16384, 64, dtype=torch.float16)
    with Largest() as made:
        BlockSummary(k, 64, ())
    assert made.num_bytes <= 8 * 64 * 64 * 4


def test_centroids_of_a_slice_of_a_larger_cache():
    k = keys(80, torch.bfloat16)
    sliced = k[:, :, 3:70]
    assert torch.equal(block_centroids(sliced, 8), block_centroids(sliced.contiguous(), 8))
