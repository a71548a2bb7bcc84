"""Measures what docs/performance.md claims: what selection costs beside what it saves, on a CPU.

    python benchmarks/speed.py                  # all, under five minutes
    python benchmarks/speed.py --only update rows
    python benchmarks/speed.py --cpu-time       # one thread's own time, on a busy machine

Every ratio is taken between arms of the same shuffled rounds; `cold` calls follow a flush of the
caches, `warm` ones repeat the call at once. Prints the table, writes benchmarks/results/speed.json
and puts the table into docs/performance.md, unless others used more than a tenth of the processors.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from topokv.attention import attention_path_named, prepare_dense
from topokv.blocks import BlockSummary
from topokv.cache import KVCache
from topokv.environment import describe
from topokv.intervals import median, paired_ratios
from topokv.machine import cache_bytes
from topokv.record import read, write_json
from topokv.schedule import candidate_rows
from topokv.scheduler import Scheduler
from topokv.timing.cpu import CpuClock
from topokv.timing.faults import CpuTimes, foreign_load
from topokv.timing.rounds import Arm, Samples, StopRule, measure
from topokv.timing.sizes import cpu_flush_bytes

RESULT = Path(__file__).parent / "results" / "speed.json"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
HEAD = "| what | setting | target | cold | warm | |\n| --- | --- | --- | ---: | ---: | --- |"
SUMMARIES = ("centroid", "drift", "minimum", "maximum", "core", "witness", "variance")
HALF = (torch.bfloat16, torch.float16)
BLOCK = 64


# More than this used by others, and ratios between arms of two threads are theirs, not ours.
QUIET = 0.1


class ThreadClock(CpuClock):
    """The time that the calling thread ran: waiting for others to leave the processor is not."""

    def milliseconds(self, call: Callable[[], object]) -> float:
        start = time.thread_time_ns()
        call()
        return (time.thread_time_ns() - start) / 1e6


@dataclass(frozen=True, slots=True)
class Claim:
    """A target and what was measured; ratios unless `unit` says otherwise."""

    what: str
    setting: str
    target: str
    met: bool
    cold: float | None = None
    warm: float | None = None
    unit: str = "x"


Section = Callable[[CpuClock], Iterator[Claim]]


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    clock_type = ThreadClock if options.cpu_time else CpuClock
    clock = clock_type(cpu_flush_bytes(cache_bytes(2), cache_bytes(3)))
    claims: list[Claim] = []
    before = CpuTimes.now()
    with torch.inference_mode():
        for name in options.only or SECTIONS:
            for claim in SECTIONS[name](clock):
                claims.append(claim)
                print(_line(claim), flush=True)
    load = foreign_load(before, CpuTimes.now())
    print(f"processors used by others: {'unknown' if load is None else f'{load:.0%}'}")
    if not options.only and (options.cpu_time or (load or 0) <= QUIET):
        how = "one thread's own time" if options.cpu_time else f"{options.threads} threads"
        _write(claims, how, load)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="measure what docs/performance.md claims")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="sections; default: all")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads; default: 2")
    parser.add_argument("--cpu-time", action="store_true", help="one thread, its own time")
    options = parser.parse_args()
    options.threads = 1 if options.cpu_time else options.threads
    return options


def _line(claim: Claim) -> str:
    cold, warm = (
        "" if value is None else f"{value:.3g} {claim.unit}" for value in (claim.cold, claim.warm)
    )
    verdict = ("met" if claim.met else "**missed**") if claim.target else ""
    return f"| {claim.what} | {claim.setting} | {claim.target} | {cold} | {warm} | {verdict} |"


def _write(claims: Sequence[Claim], how: str, load: float | None) -> None:
    environment = describe(torch.device("cpu"), "cpu")
    created = datetime.now(UTC).isoformat(timespec="seconds")
    RESULT.parent.mkdir(exist_ok=True)
    found: dict[str, object] = {"created": created, "how": how, "foreign_load": load}
    found |= {"environment": environment, "claims": [asdict(claim) for claim in claims]}
    write_json(RESULT, found)
    machine = f"{created[:10]}, {environment['cpu_model']}, {how}, torch {environment['torch']}."
    table = "\n".join((machine, "", HEAD, *map(_line, claims)))
    begin, end = "<!-- speed: begin -->\n", "<!-- speed: end -->"
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(begin)[0], text.partition(end)[2]
    PAGE.write_text(f"{before}{begin}{table}\n{end}{after}", encoding="utf-8")


def _rounds(clock: CpuClock, arms: Sequence[Arm], rounds: int = 25) -> dict[str, Samples]:
    return measure(arms, clock, StopRule(rounds, 25.0), warmup=3)


def _ratio(samples: dict[str, Samples], top: str, bottom: str) -> tuple[float, float]:
    """Medians of paired ratios: cold, warm."""
    above, below = samples[top], samples[bottom]
    cold = median(paired_ratios(above.cold, below.cold))
    return cold, median(paired_ratios(above.warm, below.warm))


def _at_most(what: str, setting: str, most: float, cold: float, warm: float) -> Claim:
    return Claim(what, setting, f"at most {most:g}", cold <= most, cold, warm)


def _at_least(what: str, setting: str, least: float, cold: float, warm: float) -> Claim:
    return Claim(what, setting, f"at least {least:g}", cold >= least, cold, warm)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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
        setting = f"16 heads x 16,384 x 64, {_name(dtype)}"
        yield _at_most(
            "centroids and drift / copy of K", setting, few, *_ratio(samples, "drift", "copy")
        )
        yield _at_most(
            "every summary / copy of K", setting, all_of_them, *_ratio(samples, "all", "copy")
        )


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
        yield Claim(
            "update of every summary", setting, "at most 100 us", warm <= 100, cold, warm, "us"
        )
    _, warm = _ratio(samples, str(1 << 20), "16384")
    yield Claim(
        "update, 1M / 16K tokens", "8 KV heads", "0.8 to 1.25", 0.8 <= warm <= 1.25, None, warm
    )


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
        yield Claim(
            "all causal rows, 16 blocks wide",
            f"{tokens:,} tokens, {tokens // BLOCK:,} rows",
            f"under {limit:g} ms",
            taken[tokens] < limit,
            taken[tokens],
            median(times.warm),
            "ms",
        )
    growth = taken[1 << 20] / taken[131072]
    yield Claim("all causal rows, growth over 8 x the rows", "", "at most 16", growth <= 16, growth)


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
        yield _at_most(
            f"choosing by {name} / sparse decode", setting, limit, *_ratio(samples, name, "sparse")
        )


def _chosen(scheduler: Scheduler, q: Tensor) -> Tensor:
    return scheduler.schedule(q).token_ids


def attention(clock: CpuClock) -> Iterator[Claim]:
    """Sparse decode beside the same with an allocating index_select of token ids."""
    for dtype, least in ((torch.float32, 2.0), (torch.bfloat16, 1.3)):
        k, v, q = (_random(16, n, dtype, seed) for seed, n in enumerate((16384, 16384, 1)))
        cache, setting = KVCache(k, v), f"1,024 of 16,384, 16 heads, {_name(dtype)}"
        for selector in ("witness", "drift"):
            schedule = Scheduler(k, 1024, selector=selector).schedule(q)
            paths = ("gather", "blocks", "runs") if selector == "drift" else ("gather", "blocks")
            arms = [Arm.of("allocating", _allocating(q, k, v, schedule.token_ids), repeat=True)]
            arms.append(Arm.of("dense", prepare_dense(q, cache), repeat=True))
            for path in paths:
                call = attention_path_named(path).prepare(q, cache, schedule)
                arms.append(Arm.of(path, call, repeat=True))
            samples = _rounds(clock, arms, 40)
            for path in paths:
                gain = _ratio(samples, "allocating", path)
                yield _at_least(f"allocating / {path}, {selector}", setting, least, *gain)
            for path in paths:
                gain = _ratio(samples, "dense", path)
                yield Claim(f"dense / {path}, {selector}", setting, "", True, *gain)


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
        setting = f"1,024 of {tokens:,}, {kv_heads} KV heads, {q_heads} query heads, {_name(dtype)}"
        yield _at_least(
            "dense / step, witness", setting, least, *_ratio(samples, "dense", "witness")
        )
        speedup = _ratio(samples, "dense", "drift")
        yield Claim("dense / step, drift", setting, "", True, *speedup)


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
    finished = bool(rows_there) and all(row.status == "ok" for row in rows_there)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9
    setting = "1,048,576 tokens, 8 KV heads, 32 query heads, bfloat16"
    yield Claim(
        "whole benchmark row: peak memory",
        setting,
        f"at most {limit:.2f} GB",
        finished and peak <= limit,
        None,
        peak,
        "GB",
    )
    seconds = time.monotonic() - start
    yield Claim("whole benchmark row: time", setting, "finishes", finished, None, seconds, "s")
    for row in rows_there:
        gain = row.metrics.get("step_speedup")
        yield Claim(f"dense / step of that row, {row.attention}", setting, "", True, gain)


SECTIONS: dict[str, Section] = {
    "summaries": summaries,
    "update": update,
    "rows": rows,
    "selection": selection,
    "attention": attention,
    "steps": steps,
    "giant": giant,
}


if __name__ == "__main__":
    main()
