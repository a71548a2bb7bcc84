"""How hard the property tests try (`--hypothesis-profile=fuzz`: 20 times), and flex uncompiled."""

import os
import time
from functools import partial

import pytest
import torch
from hypothesis import settings
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from topokv.attention import flex

# Derandomised: the suite's verdict on a commit does not change from one run to the next.
settings.register_profile("suite", max_examples=50, deadline=None, derandomize=True, database=None)
settings.register_profile("fuzz", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile("suite")

STARTED = time.monotonic()
COMPILED = flex.compiled


@pytest.fixture(autouse=True)
def time_cap():
    """Skip what begins after TOPOKV_FUZZ_SECONDS, where that is set."""
    cap = float(os.environ.get("TOPOKV_FUZZ_SECONDS", "inf"))
    if time.monotonic() - STARTED > cap:
        pytest.skip(f"the time cap of {cap:g} s is reached")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On tensors as small as these, threads that wait for one another take most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="module")
def flex_as_listed():
    """Flex runs uncompiled, with a stand-in for its kernel that reads the block mask's lists too.

    Compiling takes seconds and a C++ compiler. FlexAttention's own uncompiled function would not
    do: it asks the mask alone, and so attends blocks that no list holds.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex, "compiled", lambda layout: partial(flex.attend, layout))
        patch.setattr(flex, "flex_attention", attend_as_listed)
        yield


@pytest.fixture
def flex_compiled(flex_as_listed):
    """Flex as users get it, for tests that have the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex, "compiled", COMPILED)
        patch.setattr(flex, "flex_attention", flex_attention)
        yield


def attend_as_listed(q, k, v, *, block_mask, enable_gqa, kernel_options):
    """Attention over the blocks listed; the mask is asked where a block is listed as masked."""
    masked = listed_tokens(block_mask.kv_num_blocks, block_mask.kv_indices, block_mask, q.shape[1])
    whole = torch.zeros_like(masked)
    if block_mask.full_kv_indices is not None:
        counts, indices = block_mask.full_kv_num_blocks, block_mask.full_kv_indices
        whole = listed_tokens(counts, indices, block_mask, q.shape[1])
    assert not bool((masked & whole).any()), "a block is in both lists"
    sizes = (*q.shape[:3], k.shape[2])
    places = torch.meshgrid(*map(torch.arange, sizes), indexing="ij")
    there = whole | (masked & block_mask.mask_mod(*places))
    k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for tensor in (k, v))
    return scaled_dot_product_attention(q, k, v, there)


def listed_tokens(counts, indices, block_mask, heads):
    """Which tokens are in the first `counts` blocks of `indices`, `[batch, heads, 1, kv_len]`."""
    listed = (torch.arange(indices.shape[-1]) < counts.unsqueeze(-1)).int()
    blocks = torch.zeros_like(indices).scatter_add(-1, indices.long(), listed)
    assert int(blocks.max()) <= 1, "a block is listed twice"
    tokens = blocks.bool().repeat_interleave(block_mask.BLOCK_SIZE[1], dim=-1)
    each = heads // indices.shape[1]
    return tokens[..., : block_mask.seq_lengths[1]].repeat_interleave(each, dim=1)
