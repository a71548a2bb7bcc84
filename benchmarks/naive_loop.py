"""The benchmark's loop as it was first published, to be held against: one warm loop for each arm.

    python benchmarks/naive_loop.py SEQ_LEN TOKENS ...

Prints a JSON object: the speedup by budget, from one process, at 16 heads and head_dim 64 in
float32. Dense runs first and alone, then sparse, each on inputs that its last call left in cache.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch
from torch.nn.functional import scaled_dot_product_attention as attend

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from topokv import select_tokens
from topokv.inputs.workload import gaussian

WARMUP, ROUNDS = 5, 30


def mean_ms(call: Callable[[], object]) -> float:
    for _ in range(WARMUP):
        call()
    start = perf_counter()
    for _ in range(ROUNDS):
        call()
    return (perf_counter() - start) / ROUNDS * 1e3


@torch.inference_mode()
def main() -> None:
    seq_len, *budgets = map(int, sys.argv[1:])
    work = gaussian(num_q_heads=16, num_kv_heads=16, kv_len=seq_len, head_dim=64)
    q, k, v = work.q, work.cache.k, work.cache.v
    speedups = {}
    for tokens in budgets:
        ids = select_tokens(q, k, tokens)[0, 0]
        dense = mean_ms(lambda: attend(q, k, v))
        sparse = mean_ms(lambda ids=ids: attend(q, k.index_select(2, ids), v.index_select(2, ids)))
        speedups[str(tokens)] = dense / sparse
    print(json.dumps(speedups))


if __name__ == "__main__":
    main()
