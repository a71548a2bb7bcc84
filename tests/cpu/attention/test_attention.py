"""Decode attention: sparse against dense, and what is refused before any time is taken."""

import itertools

import pytest
import torch

from topokv import KVCache, dense_decode, select_tokens, sparse_decode
from topokv.inputs.workload import gaussian


def reference(q, k, v, token_ids):
    """Attention over each row's tokens in float64, head by head."""
    out = torch.empty_like(q, dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for b, h in itertools.product(range(q.shape[0]), range(q.shape[1])):
        ids = token_ids[b, h * token_ids.shape[1] // q.shape[1]]
        keys, values = k[b, h // group, ids].double(), v[b, h // group, ids].double()
        weights = (keys @ q[b, h, 0].double() / q.shape[-1] ** 0.5).softmax(dim=0)
        out[b, h, 0] = weights @ values
    return out


def tensors(batch=2, num_q_heads=4, num_kv_heads=2, kv_len=13, head_dim=8, dtype=torch.float32):
    workload = gaussian(
        batch=batch,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        kv_len=kv_len,
        head_dim=head_dim,
        dtype=dtype,
    )
    return workload.q, workload.cache.k, workload.cache.v


@pytest.mark.parametrize("num_q_heads", [2, 6, 8])
@pytest.mark.parametrize("kv_len", [1, 13])
def test_dense_equals_float64_reference(num_q_heads, kv_len):
    q, k, v = tensors(num_q_heads=num_q_heads, kv_len=kv_len)
    everything = torch.arange(kv_len).expand(2, 1, -1)
    expected = reference(q, k, v, everything)
    torch.testing.assert_close(dense_decode(q, k, v).double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_q_heads", [2, 8])
@pytest.mark.parametrize("kv_len", [1, 13])
def test_full_budget_equals_dense(num_q_heads, kv_len):
    q, k, v = tensors(num_q_heads=num_q_heads, kv_len=kv_len)
    ids = select_tokens(q, k, kv_len, block_size=4)
    torch.testing.assert_close(sparse_decode(q, k, v, ids), dense_decode(q, k, v))


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_subset_equals_attention_over_that_subset(groups, dtype):
    q, k, v = tensors(dtype=dtype)
    generator = torch.Generator().manual_seed(3)
    ids = torch.rand(2, groups, 13, generator=generator).argsort(dim=-1)[..., :6]
    rtol, atol = (1e-5, 1e-6) if dtype == torch.float32 else (2e-2, 1e-2)
    expected = reference(q, k, v, ids)
    torch.testing.assert_close(sparse_decode(q, k, v, ids).double(), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_padding_is_not_attended(groups):
    q, k, v = tensors()
    ids = torch.stack([torch.arange(6).expand(groups, 6), torch.arange(5, 11).expand(groups, 6)])
    padded = torch.cat((ids, torch.full((2, groups, 3), -1)), dim=-1)
    torch.testing.assert_close(sparse_decode(q, k, v, padded), sparse_decode(q, k, v, ids))


def test_rows_may_be_padded_to_different_lengths():
    q, k, v = tensors(batch=1)
    ids = torch.tensor([[[3, 4, 5], [7, -1, -1]]])
    got = sparse_decode(q, k, v, ids)
    first = reference(q, k, v, torch.tensor([[[3, 4, 5]]]))[:, :2]
    second = reference(q, k, v, torch.tensor([[[7]]]))[:, 2:]
    torch.testing.assert_close(got.double(), torch.cat((first, second), 1), rtol=1e-5, atol=1e-6)


def test_token_ids_of_lower_rank_serve_all_heads():
    q, k, v = tensors()
    ids = torch.tensor([1, 5, 12])
    full = sparse_decode(q, k, v, ids.expand(2, 1, 3))
    assert torch.equal(sparse_decode(q, k, v, ids), full)
    assert torch.equal(sparse_decode(q, k, v, ids.expand(2, 3)), full)


def test_a_cache_that_is_a_view_is_read_as_it_is():
    q, k, v = tensors(kv_len=20)
    ids = torch.tensor([0, 4, 9])
    expected = sparse_decode(q, k[:, :, :13].contiguous(), v[:, :, :13].contiguous(), ids)
    assert torch.equal(sparse_decode(q, k[:, :, :13], v[:, :, :13], ids), expected)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "token_ids must be [batch, groups, width], none 0, got [0]"),
        ([[[[1]]]], "token_ids must be [batch, groups, width], none 0, got [1, 1, 1, 1]"),
        ([3, 5, 3], "token_ids must be distinct in each row, got 3 twice"),
        ([3, 13], "token_ids must be -1 or from 0 to 12, got 13"),
        ([3, -2], "token_ids must be -1 or from 0 to 12, got -2"),
        ([-1, -1], "token_ids must name at least one token in each row, got a row of padding"),
        ([[1], [2], [3]], "token_ids must have batch 2 and 1, 2 or 4 groups, got [3, 1]"),
    ],
)
def test_bad_token_ids_are_named(ids, message):
    q, k, v = tensors()
    with pytest.raises(ValueError) as error:
        sparse_decode(q, k, v, torch.tensor(ids, dtype=torch.int64))
    assert str(error.value) == message


def test_token_ids_must_be_whole_numbers():
    q, k, v = tensors()
    with pytest.raises(TypeError, match=r"^token_ids must be whole numbers, got torch\.float32$"):
        sparse_decode(q, k, v, torch.tensor([1.0]))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3, 1, 8), "num_q_heads (3) must be a multiple of num_kv_heads (2)"),
        ((2, 4, 2, 8), "q must hold one token (q_len 1), got q_len 2"),
        ((1, 4, 1, 8), "q must have k's batch and head_dim [2, 2, 13, 8], got [1, 4, 1, 8]"),
        (
            (4, 1, 8),
            "q must be [batch, num_q_heads, 1, head_dim], every size at least 1, got [4, 1, 8]",
        ),
    ],
)
def test_bad_queries_are_named(shape, message):
    _, k, v = tensors()
    with pytest.raises(ValueError) as error:
        dense_decode(torch.zeros(shape), k, v)
    assert str(error.value) == message


def test_keys_and_values_must_fit_together():
    k = torch.zeros(1, 2, 3, 4)
    with pytest.raises(
        ValueError, match=r"^v must have the shape of k \[1, 2, 3, 4\], got \[1, 2, 4, 4\]$"
    ):
        KVCache(k, torch.zeros(1, 2, 4, 4))
    with pytest.raises(
        ValueError, match=r"^v must have k's dtype torch.float32, got torch.float16$"
    ):
        KVCache(k, k.half())
    with pytest.raises(ValueError, match="^v must be on k's device cpu, got meta$"):
        KVCache(k, k.to("meta"))


def test_nothing_touches_the_global_random_state():
    before = torch.get_rng_state()
    q, k, v = tensors()
    for selector in ("drift", "random"):
        sparse_decode(q, k, v, select_tokens(q, k, 6, selector=selector, block_size=2))
    assert torch.equal(torch.get_rng_state(), before)


def test_one_seed_gives_the_same_inputs_and_selection():
    q, k, _ = tensors()
    again, k_again, _ = tensors()
    assert torch.equal(q, again) and torch.equal(k, k_again)

    def pick(seed):
        return select_tokens(q, k, 8, selector="random", block_size=1, seed=seed)

    assert torch.equal(pick(1), pick(1))
    assert not torch.equal(pick(1), pick(2))
