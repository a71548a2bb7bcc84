"""Each selector against its formula written out in float64, block by block."""

import math

import pytest
import torch

from topokv import Scheduler, select_tokens
from topokv.inputs.workload import gaussian
from topokv.scheduling import SELECTORS
from topokv.scheduling.schedule import SHARINGS
from topokv.scheduling.selectors import selector_named

NAMES = [selector.name for selector in SELECTORS]


def logsumexp(*values):
    top = max(values)
    return top + math.log(sum(math.exp(value - top) for value in values))


def mean_pool(q, blocks):
    return [float(q @ block.mean(0)) for block in blocks]


def nsa(q, blocks):
    return torch.tensor(mean_pool(q, blocks)).div(len(q) ** 0.5).softmax(0).tolist()


def quest(q, blocks):
    return [float(torch.maximum(q * b.amin(0), q * b.amax(0)).sum()) for b in blocks]


def witness(q, blocks, weight=0.0):
    mass = []
    for block in blocks:
        mean = block.mean(0)
        far = int((block - mean).norm(dim=1).argmax())
        rest = torch.cat((block[:far], block[far + 1 :]))
        terms = [float(q @ block[far]) / len(q) ** 0.5]
        if len(rest):
            spread = weight * float(q @ q) * float((block - mean).square().mean()) / len(q)
            terms.append(float(q @ rest.mean(0)) / len(q) ** 0.5 + spread + math.log(len(rest)))
        mass.append(logsumexp(*terms))
    return torch.tensor(mass).softmax(0).tolist()


def witness_var(q, blocks):
    return witness(q, blocks, weight=0.5)


def discriminant(q, blocks):
    means = torch.stack([block.mean(0) for block in blocks])
    rest = torch.cat([block - block.mean(0) for block in blocks])
    scatter = rest.T @ rest
    noise = torch.linalg.pinv(scatter + 1e-4 * scatter.diagonal().diag())
    apart = means - means.mean(0)
    metric = noise @ apart.T @ apart @ noise
    far = [
        int(torch.tensor([r @ metric @ r for r in block - block.mean(0)]).argmax())
        for block in blocks
    ]
    others = [torch.cat((b[:i], b[i + 1 :])) for b, i in zip(blocks, far, strict=True)]
    rest = torch.cat([other - other.mean(0) for other in others if len(other)] or [q[:0, None]])
    freedom = max(1, sum(len(other) - 1 for other in others if len(other)))
    variance = float((rest @ q).square().sum() / freedom / len(q)) if len(rest) else 0.0
    mass = []
    for block, index, other in zip(blocks, far, others, strict=True):
        terms = [float(q @ block[index]) / len(q) ** 0.5]
        if len(other):
            limit = 2 * math.log(len(other))
            frozen = math.sqrt(variance * limit) - limit / 2
            gain = variance / 2 if variance < limit else frozen
            terms.append(float(q @ other.mean(0)) / len(q) ** 0.5 + gain + math.log(len(other)))
        mass.append(logsumexp(*terms))
    return torch.tensor(mass).softmax(0).tolist()


def oracle(q, blocks):
    weights = (torch.cat(blocks) @ q / len(q) ** 0.5).softmax(0)
    return [float(part.sum()) for part in weights.split([len(block) for block in blocks])]


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("mean-pool", mean_pool),
        ("nsa", nsa),
        ("quest", quest),
        ("witness", witness),
        ("witness-var", witness_var),
        ("discriminant", discriminant),
        ("oracle", oracle),
    ],
)
@pytest.mark.parametrize(("num_q_heads", "kv_len"), [(2, 12), (6, 13), (8, 1)])
def test_scores_equal_the_formula(name, formula, num_q_heads, kv_len):
    work = gaussian(
        batch=2,
        num_q_heads=num_q_heads,
        num_kv_heads=2,
        kv_len=kv_len,
        head_dim=6,
        dtype=torch.float64,
    )
    selector = selector_named(name)
    scores = selector.score(selector.summarise(work.cache.k, 4), work.q)
    for b in range(2):
        for h in range(num_q_heads):
            kv_head, member = divmod(h, num_q_heads // 2)
            blocks = list(work.cache.k[b, kv_head].split(4))
            expected = torch.tensor(formula(work.q[b, h, 0], blocks), dtype=torch.float64)
            torch.testing.assert_close(scores[b, kv_head, member], expected, rtol=1e-5, atol=1e-6)


def test_keydiff_prefers_the_block_that_points_away():
    keys = torch.tensor([[1.0, 0.1], [1, -0.1], [-1, 0.2], [1, 0]])[None, None]
    selector = selector_named("keydiff")
    scores = selector.score(selector.summarise(keys, 1), torch.ones(1, 1, 1, 2))
    assert scores.flatten().argmax() == 2
    assert scores.flatten()[2] > 0.9


def test_streaming_takes_the_newest_blocks():
    work = gaussian(num_q_heads=2, num_kv_heads=2, kv_len=20, head_dim=4)
    ids = select_tokens(work.q, work.cache.k, 12, selector="streaming", block_size=2)
    assert ids.tolist() == [[[0, 1, *range(10, 20)]]]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sharing", [None, *SHARINGS])
def test_every_selector_fills_the_budget_under_every_sharing(name, sharing):
    work = gaussian(batch=2, num_q_heads=6, num_kv_heads=2, kv_len=37, head_dim=4)
    ids = select_tokens(work.q, work.cache.k, 17, selector=name, block_size=4, sharing=sharing)
    groups = {"request": 1, "kv-head": 2, "q-head": 6}[sharing or selector_named(name).sharing]
    assert ids.shape == (2, groups, 17)
    assert ids.dtype == torch.int64
    assert (ids[..., 1:] > ids[..., :-1]).all()
    assert ids.min() >= 0 and ids.max() == 36


@pytest.mark.parametrize("name", [s.name for s in SELECTORS if not s.from_prompt])
def test_scheduler_that_grew_chooses_as_one_built_from_scratch(name):
    work = gaussian(batch=2, num_q_heads=4, num_kv_heads=2, kv_len=41, head_dim=8)
    k = work.cache.k
    grown = Scheduler(k[:, :, :3], 12, selector=name, block_size=4)
    for kv_len in range(4, 42):
        grown.append(k[:, :, kv_len - 1 : kv_len])
        scratch = Scheduler(k[:, :, :kv_len], 12, selector=name, block_size=4)
        got, expected = grown.schedule(work.q), scratch.schedule(work.q)
        assert torch.equal(got.token_ids, expected.token_ids), kv_len


def test_oracle_holds_more_attention_than_any_other_selector():
    work = gaussian(num_q_heads=2, num_kv_heads=2, kv_len=256, head_dim=16)
    q, k = work.q, work.cache.k
    weights = (q @ k.mT / 4).softmax(-1).squeeze(2)

    def recall(name):
        return float(
            weights.gather(
                -1, select_tokens(q, k, 96, selector=name, sharing="kv-head", block_size=16)
            ).sum()
        )

    assert all(recall("oracle") >= recall(name) for name in NAMES)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_discriminant_chooses_alike_when_queries_undo_a_scaling_of_the_keys(size):
    work = gaussian(num_q_heads=4, num_kv_heads=2, kv_len=64, head_dim=8, dtype=torch.float64)
    scale = size * torch.linspace(0.1, 10, 8, dtype=torch.float64)
    chosen = [
        select_tokens(q, k, 28, selector="discriminant", block_size=4)
        for q, k in ((work.q, work.cache.k), (work.q / scale, work.cache.k * scale))
    ]
    assert torch.equal(*chosen)


def test_discriminant_sees_a_needle_that_large_idle_dimensions_hide_from_witness():
    generator = torch.Generator().manual_seed(0)
    # Dimension 0 tells blocks apart and is what queries look along; the others are large noise.
    k = torch.randn(1, 1, 1024, 8, generator=generator) * torch.tensor([0.1] + [10.0] * 7)
    k[..., 0] += torch.randn(64, generator=generator).repeat_interleave(16)
    needle = 16 * 20 + 5
    k[0, 0, needle, 0] = 4
    q = torch.zeros(1, 1, 1, 8)
    q[..., 0] = 10

    def kept(name):
        return needle in select_tokens(q, k, 64, selector=name, block_size=16).flatten().tolist()

    assert kept("discriminant")
    assert not kept("witness")


def test_unknown_selector_is_answered_with_the_valid_ones():
    with pytest.raises(ValueError) as error:
        selector_named("driftt")
    expected = ", ".join(map(repr, NAMES))
    assert str(error.value) == f"unknown selector 'driftt'; expected one of {expected}"


def test_a_budget_over_the_cache_is_refused_by_name():
    work = gaussian(num_q_heads=2, num_kv_heads=2, kv_len=8, head_dim=4)
    with pytest.raises(ValueError, match="^selected_tokens 9 exceeds kv_len 8$"):
        select_tokens(work.q, work.cache.k, 9)
