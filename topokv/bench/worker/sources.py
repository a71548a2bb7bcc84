"""The workloads of a run: described first, loaded when their turn comes."""

from __future__ import annotations

from pathlib import Path

import torch

from topokv.bench import GAUSSIAN, SAMPLE, Settings, Source, gaussian_source
from topokv.bench.worker.device import free_bytes
from topokv.inputs import SAMPLE as SAMPLE_FILE
from topokv.inputs import Workload, captured, gaussian, load_capture, read_header


def describe(settings: Settings) -> list[Source]:
    """Every workload and layer of the run; a capture's header is read, not its tensors."""
    sources = []
    for kv in dict.fromkeys(settings.kv):
        if kv == GAUSSIAN:
            sources.append(gaussian_source(settings))
        else:
            sources += _captured(kv, settings)
    return sources


def _captured(kv: str, settings: Settings) -> list[Source]:
    header = read_header(capture_path(kv))
    found = []
    for layer in header.chosen(settings.layers or None):
        _, num_q_heads, _, head_dim = header.shapes[f"layers.{layer}.q"]
        batch, num_kv_heads, _, _ = header.shapes[f"layers.{layer}.k"]
        found.append(
            Source(
                name=header.path.stem,
                kv=kv,
                layer=layer,
                batch=batch,
                num_q_heads=num_q_heads,
                num_kv_heads=num_kv_heads,
                # The workload ends at its newest query: later keys have nobody who attends them.
                kv_len=header.positions[-1] + 1,
                head_dim=head_dim,
            )
        )
    return found


def capture_path(kv: str) -> Path:
    """The file that a `--kv` word names."""
    return SAMPLE_FILE if kv == SAMPLE else Path(kv)


def load(source: Source, seed: int, dtype: torch.dtype, device: torch.device) -> Workload:
    """The workload in memory; MemoryError, before any is asked for, where it can't fit.

    Linux grants memory that it does not have and kills a process, any process, when it is used.
    """
    needed, free = source.cache_bytes(dtype.itemsize), free_bytes(device)
    if free is not None and needed > free:
        raise MemoryError(f"K and V need {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")
    if source.layer is None:
        return gaussian(
            batch=source.batch,
            num_q_heads=source.num_q_heads,
            num_kv_heads=source.num_kv_heads,
            kv_len=source.kv_len,
            head_dim=source.head_dim,
            dtype=dtype,
            device=device,
            seed=seed,
        )
    capture = load_capture(capture_path(source.kv), (source.layer,))
    return captured(capture, source.layer, dtype=dtype, device=device)
