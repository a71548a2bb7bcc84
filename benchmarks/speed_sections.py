"""What benchmarks/speed.py measures, section by section: each yields claims with their targets."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from topokv.attention import ATTENTION_PATHS, attention_path_named, prepare_dense
from topokv.results import read
from topokv.scheduling import BlockSummary, Scheduler
from topokv.scheduling.candidate_rows import candidate_rows
from topokv.stats import median, paired_ratios
from topokv.tensors import KVCache, dtype_name
from topokv.timing import Arm, CpuClock, Samples, StopRule, measure

SUMMARIES = ("centroid", "drift", "box", "points", "variance")
HALF = (torch.bfloat16, torch.float16)
BLOCK = 64
MOST, LEAST = "at most", "at least"
# The ways to attend that are held against an allocating index_select.
OF_IDS = ("gather", "blocks", "csr")


@dataclass(frozen=True, slots=True)
class Claim:
    """What was measured, and the target that it is held to: `rule` is MOST, LEAST or empty.

    Ratios unless `unit` says otherwise. Judged by the cold figure unless `judged` says warm.
    """

    what: str
    setting: str
    rule: str = ""
    target: float = 0.0
    cold: float | None = None
    warm: float | None = None
    unit: str = "x"
    judged: str = "cold"

    @property
    def key(self) -> tuple[str, str]:
        """What the same claim has in every process."""
        return self.what, self.setting

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        value = self.cold if self.judged == "cold" else self.warm
        if not self.rule or value is None:
            return None
        return value <= self.target if self.rule == MOST else value >= self.target


Section = Callable[[CpuClock], Iterator[Claim]]


def _rounds(clock: CpuClock, arms: Sequence[Arm], rounds: int = 25) -> dict[str, Samples]:
    return measure(arms, clock, StopRule(rounds, 25.0), warmup=3)


def _ratio(samples: dict[str, Samples], top: str, bottom: str) -> tuple[float, float]:
    """Medians of paired ratios: cold, warm."""
    above, below = samples[top], samples[bottom]
    cold = median(paired_ratios(above.cold, below.cold))
    return cold, median(paired_ratios(above.warm, below.warm))


def _random(heads: int, tokens: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Keys or values, drawn head by head: a float32 copy of a large cache would not fit."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.empty(1, heads, tokens, 64, dtype=dtype)
    for head in range(heads):
        made[0, head] = torch.randn(tokens, 64, generator=generator)
    return made


def summaries(clock: CpuClock) -> Iterator[Claim]:
    """Building from all of K, beside a plain copy of K."""
    limits = {torch.float32: (0.6, 4.0)} | dict.fromkeys(HALF, (2.0, 6.0))
    for dtype, (few, all_of_them) in limits.items():
        k = _random(16, 16384, dtype, 0)
        into = torch.empty_like(k)
        parts = {"drift": ("drift",), "all": SUMMARIES}
        arms = [Arm.of("copy", partial(into.copy_, k), repeat=True)]
        arms += [
            Arm.of(name, partial(BlockSummary, k, BLOCK, p, shared_heads=True), repeat=True)
            for name, p in parts.items()
        ]
        samples = _rounds(clock, arms)
        setting = f"16 heads x 16,384 x 64, {dtype_name(dtype)}"
        what, found = "centroids and drift / copy of K", _ratio(samples, "drift", "copy")
        yield Claim(what, setting, MOST, few, *found)
        what, found = "every summary / copy of K", _ratio(samples, "all", "copy")
        yield Claim(what, setting, MOST, all_of_them, *found)


def update(clock: CpuClock) -> Iterator[Claim]:
    """One more token into every summary, at two lengths."""
    token = _random(8, 1, torch.bfloat16, 1)
    arms = []
    for tokens in (16384, 1 << 20):
        summary = BlockSummary(
            _random(8, tokens, torch.bfloat16, 0), BLOCK, SUMMARIES, shared_heads=True
        )
        arms.append(Arm.of(str(tokens), partial(summary.append, token), repeat=True))
    samples = _rounds(clock, arms, 200)
    for length, times in samples.items():
        cold, warm = (1000 * median(t) for t in (times.cold, times.warm))
        setting = f"{int(length):,} tokens, 8 KV heads"
        what = "update of every summary"
        yield Claim(what, setting, MOST, 100, cold, warm, unit="us", judged="warm")
    _, warm = _ratio(samples, str(1 << 20), "16384")
    what = "update, 1M / 16K tokens"
    yield Claim(what, "8 KV heads", MOST, 1.1, None, warm, judged="warm")


def rows(clock: CpuClock) -> Iterator[Claim]:
    """All causal rows of a schedule: 16 blocks each."""
    taken = {}
    for tokens, limit in ((131072, 50.0), (1 << 20, 1000.0)):
        scores = torch.randn(tokens // BLOCK, generator=torch.Generator().manual_seed(0))

        def build(scores: Tensor = scores) -> Tensor:
            return candidate_rows(
                scores, sink_blocks=1, local_blocks=2, salience_blocks=13, max_candidate_blocks=16
            )

        times = _rounds(clock, [Arm.of("rows", build, repeat=True)], 15)["rows"]
        taken[tokens] = median(times.cold)
        setting = f"{tokens:,} tokens, {tokens // BLOCK:,} rows"
        what, warm = "all causal rows, 16 blocks wide", median(times.warm)
        yield Claim(what, setting, MOST, limit, taken[tokens], warm, unit="ms")
    growth = taken[1 << 20] / taken[131072]
    yield Claim("all causal rows, growth over 8 x the rows", "", MOST, 16, growth)


def selection(clock: CpuClock) -> Iterator[Claim]:
    """Scoring, top-k and token ids, beside the sparse decode that they are for."""
    limits = {"drift": 0.1, "witness": 0.5, "quest": 0.5}
    k, v, q = (_random(16, n, torch.float32, seed) for seed, n in enumerate((16384, 16384, 1)))
    schedulers = {name: Scheduler(k, 1024, selector=name) for name in limits}
    attend = attention_path_named("gather").prepare(
        q, KVCache(k, v), schedulers["witness"].schedule(q)
    )
    arms = [Arm.of("sparse", attend, repeat=True)]
    for name, scheduler in schedulers.items():
        arms.append(Arm.of(name, partial(_chosen, scheduler, q), repeat=True))
    samples = _rounds(clock, arms, 50)
    for name, limit in limits.items():
        setting = "1,024 of 16,384, 16 heads, float32"
        what, found = f"choosing by {name} / sparse decode", _ratio(samples, name, "sparse")
        yield Claim(what, setting, MOST, limit, *found)


def _chosen(scheduler: Scheduler, q: Tensor) -> Tensor:
    return scheduler.schedule(q).token_ids


def attention(clock: CpuClock) -> Iterator[Claim]:
    """Every way to attend beside dense, and beside an allocating index_select of token ids."""
    for dtype, selector, samples in _attended(clock, _paths()):
        setting = f"{selector}, 1,024 of 16,384, 16 heads, {dtype_name(dtype)}"
        yield from _beside_allocating(samples, setting, dtype)
        for path in [name for name in samples if name not in ("allocating", "dense")]:
            yield Claim(f"dense / {path}", setting, "", 0, *_ratio(samples, "dense", path))


def handed_back(clock: CpuClock) -> Iterator[Claim]:
    """Beside an allocating index_select whose memory goes back at every call: see ENVIRONMENT."""
    for dtype, selector, samples in _attended(clock, OF_IDS):
        setting = f"{selector}, memory handed back, {dtype_name(dtype)}"
        yield from _beside_allocating(samples, setting, dtype)


def _paths() -> tuple[str, ...]:
    """The ways to attend that this machine can be asked for."""
    names = [path.name for path in ATTENTION_PATHS]
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        names.remove("flex")
    return tuple(names)


def _beside_allocating(
    samples: dict[str, Samples], setting: str, dtype: torch.dtype
) -> Iterator[Claim]:
    least = 1.3 if dtype in HALF else 2.0
    for path in OF_IDS:
        gain = _ratio(samples, "allocating", path)
        yield Claim(f"allocating / {path}", setting, LEAST, least, *gain)


def _attended(
    clock: CpuClock, paths: Sequence[str]
) -> Iterator[tuple[torch.dtype, str, dict[str, Samples]]]:
    """Rounds of dense, allocating and `paths`; `runs` only where heads share a schedule."""
    for dtype in (torch.float32, torch.bfloat16):
        k, v, q = (_random(16, n, dtype, seed) for seed, n in enumerate((16384, 16384, 1)))
        cache = KVCache(k, v)
        for selector in ("witness", "drift"):
            schedule = Scheduler(k, 1024, selector=selector).schedule(q)
            allocating = _allocating(q, k, v, schedule.token_ids)
            calls = {"dense": prepare_dense(q, cache), "allocating": allocating}
            for name in paths:
                if name != "runs" or selector == "drift":
                    calls[name] = attention_path_named(name).prepare(q, cache, schedule)
            arms = [Arm.of(name, call, repeat=True) for name, call in calls.items()]
            yield dtype, selector, _rounds(clock, arms, 40)


def _allocating(q: Tensor, k: Tensor, v: Tensor, token_ids: Tensor) -> Callable[[], Tensor]:
    """What the published benchmark did: index_select into new memory, one call for K, one for V."""
    heads, tokens = k.shape[1], k.shape[2]
    if token_ids.shape[1] == 1:
        ids = token_ids.flatten()
        return lambda: scaled_dot_product_attention(
            q, k.index_select(2, ids), v.index_select(2, ids)
        )
    first = torch.arange(heads).unsqueeze(-1) * tokens
    rows_of_heads = (token_ids[0] + first).flatten()
    shape = (1, heads, token_ids.shape[2], 64)

    def attend() -> Tensor:
        picked_k = k.view(-1, 64).index_select(0, rows_of_heads).view(shape)
        picked_v = v.view(-1, 64).index_select(0, rows_of_heads).view(shape)
        return scaled_dot_product_attention(q, picked_k, picked_v)

    return attend


class Growing:
    """A cache that grows by a token a step, and the whole of a sparse step over it."""

    def __init__(self, q: Tensor, store: KVCache, tokens: int, selector: str, path: str) -> None:
        self._q, self._store, self._tokens = q, store, tokens
        self._scheduler = Scheduler(store.k[:, :, :tokens], 1024, selector=selector)
        self._attend = attention_path_named(path).make()

    def step(self) -> Tensor:
        """Append a token, choose, gather and attend."""
        token = self._store.k[:, :, self._tokens : self._tokens + 1]
        self._tokens += 1
        self._scheduler.append(token)
        cache = KVCache(self._store.k[:, :, : self._tokens], self._store.v[:, :, : self._tokens])
        return self._attend.load(self._q, cache, self._scheduler.schedule(self._q))()


def steps(clock: CpuClock) -> Iterator[Claim]:
    """A decode step, selection and upkeep included, beside dense."""
    cases = ((torch.float32, 16, 16, 16384, 3.0), (torch.bfloat16, 32, 8, 131072, 12.0))
    for dtype, q_heads, kv_heads, tokens, least in cases:
        k, v = (_random(kv_heads, tokens + 1000, dtype, seed) for seed in (0, 1))
        q = _random(q_heads, 1, dtype, 2)
        dense = prepare_dense(q, KVCache(k[:, :, :tokens], v[:, :, :tokens]))
        arms = [Arm.of("dense", dense, repeat=True)]
        for selector in ("witness", "drift"):
            growing = Growing(q, KVCache(k, v), tokens, selector, "blocks")
            arms.append(Arm.of(selector, growing.step, repeat=True))
        samples = _rounds(clock, arms, 40)
        heads = f"{kv_heads} KV heads, {q_heads} query heads"
        setting = f"1,024 of {tokens:,}, {heads}, {dtype_name(dtype)}"
        witness, drift = (_ratio(samples, "dense", name) for name in ("witness", "drift"))
        yield Claim("dense / step, witness", setting, LEAST, least, *witness)
        yield Claim("dense / step, drift", setting, "", 0, *drift)


def giant(clock: CpuClock) -> Iterator[Claim]:
    """A whole benchmark row at a million tokens, in a process of its own."""
    tokens, kv_heads = 1 << 20, 8
    cache_gb = 2 * 2 * 64 * kv_heads * tokens / 1e9
    limit = 1.25 * cache_gb + 1
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "giant.json")
        command = f"bench --kv gaussian --seq-len {tokens} --heads 32 --kv-heads {kv_heads}"
        command += " --dtype bfloat16 --selector witness --selected-tokens 1024 --attention blocks"
        command += f" --processes 1 --rounds 5 --warmup 1 --output {output}"
        done = subprocess.run(
            [sys.executable, "-m", "topokv", *command.split()], capture_output=True, text=True
        )
        rows_there = read(output).rows if done.returncode == 0 else ()
    if not rows_there or any(row.status != "ok" for row in rows_there):
        raise RuntimeError(f"the benchmark of {tokens:,} tokens did not finish: {done.stderr}")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9
    setting = "1,048,576 tokens, 8 KV heads, 32 query heads, bfloat16"
    what = "whole benchmark row: peak memory"
    yield Claim(what, setting, MOST, limit, None, peak, unit="GB", judged="warm")
    seconds = time.monotonic() - start
    yield Claim("whole benchmark row: time", setting, warm=seconds, unit="s")
    for row in rows_there:
        gain = row.metrics.get("step_speedup")
        yield Claim(f"dense / step of that row, {row.attention}", setting, cold=gain)


SECTIONS: dict[str, Section] = {
    "summaries": summaries,
    "update": update,
    "rows": rows,
    "selection": selection,
    "attention": attention,
    "handed-back": handed_back,
    "steps": steps,
    "giant": giant,
}

# Whose figure a second process would not change.
ONCE = frozenset({"giant"})

# glibc hands freed memory back to the system until a large piece has been freed, which raises both
# thresholds for good; set, they stay as they begin. Without glibc this means nothing.
_FIRST = str(128 << 10)
ENVIRONMENT = {"handed-back": {"MALLOC_TRIM_THRESHOLD_": _FIRST, "MALLOC_MMAP_THRESHOLD_": _FIRST}}
