"""Captured caches: a real model's q, K and V in a safetensors file, every claim of it checked.

A file holds, for each captured layer i, `layers.{i}.q` `[1, num_q_heads, num_positions, head_dim]`
and `layers.{i}.k`, `layers.{i}.v` `[1, num_kv_heads, kv_len, head_dim]`, and once `positions`
`[num_positions]`: the query at position p attends tokens 0 to p. q and k are as attention meets
them, after the rotary embedding, and q is scaled so that 1/sqrt(head_dim) is attention's scale.
Only safetensors is ever opened: nothing in a capture can run code.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from topokv.core import replacing

FORMAT = "topokv-capture"
VERSION = "1"
SAMPLE = Path(__file__).parent / "data" / "smollm2-135m.safetensors"

_DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
_LAYER_TENSOR = re.compile(r"layers\.(0|[1-9]\d{0,5})\.([qkv])")


class CapturedLayer(NamedTuple):
    """One layer's q `[1, num_q_heads, num_positions, head_dim]` and k, v as in a KV cache."""

    q: Tensor
    k: Tensor
    v: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Capture:
    """What a model's attention read over one text: layers by number, positions of their queries.

    `name` is the file's stem; `metadata` says where the capture comes from.
    """

    name: str
    positions: tuple[int, ...]
    layers: Mapping[int, CapturedLayer]
    metadata: Mapping[str, str]

    @property
    def kv_len(self) -> int:
        return next(iter(self.layers.values())).k.shape[2]

    def layer(self, index: int) -> CapturedLayer:
        """Layer `index`; ValueError, with the layers that there are, where it was not captured."""
        if index not in self.layers:
            raise ValueError(_not_captured(self.name, index, self.layers))
        return self.layers[index]


def save_capture(path: Path, capture: Capture) -> None:
    """Write `capture` to `path`, whole or not at all."""
    tensors = {"positions": torch.tensor(capture.positions, dtype=torch.int64)}
    for index, layer in capture.layers.items():
        for part in "qkv":
            tensors[f"layers.{index}.{part}"] = getattr(layer, part).contiguous()
    metadata = {**capture.metadata, "format": FORMAT, "version": VERSION}
    with replacing(path) as beside:
        # The mode that any new file gets here: safetensors' own files are for their owner alone.
        beside.touch()
        mode = beside.stat().st_mode
        try:
            save_file(tensors, beside, metadata)
        except SafetensorError as error:
            raise OSError(f"{path}: can't be written: {error}") from error
        beside.chmod(mode)


def load_capture(path: Path, layers: Collection[int] | None = None) -> Capture:
    """The capture in the file at `path`; `layers` picks some of its layers, None all.

    The header is checked before any tensor is read, so that nothing larger than the file is ever
    allocated. Raises ValueError in one line for a file that is missing, truncated, not a capture,
    or whose tensors contradict one another; NaN and infinity count as damage.
    """
    header = read_header(path)
    chosen = header.chosen(layers)
    with _opened(path) as file:
        read = {
            i: CapturedLayer(*(file.get_tensor(f"layers.{i}.{p}") for p in "qkv")) for i in chosen
        }
    for index, layer in read.items():
        for part in "qkv":
            _require_finite(path, f"layers.{index}.{part}", getattr(layer, part))
    return Capture(path.stem, header.positions, read, header.metadata)


@dataclass(frozen=True, slots=True)
class CaptureHeader:
    """What a capture's file says that it holds, found consistent, without its tensors."""

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    positions: tuple[int, ...]
    metadata: Mapping[str, str]

    @property
    def layers(self) -> tuple[int, ...]:
        """Numbers of the captured layers, ascending."""
        return tuple(sorted({int(name.split(".")[1]) for name in self.shapes}))

    def chosen(self, layers: Collection[int] | None) -> tuple[int, ...]:
        """The captured layers among which `layers` picks, all where it is None."""
        missing = sorted(set(layers or ()) - set(self.layers))
        if missing:
            raise ValueError(_not_captured(str(self.path), missing[0], self.layers))
        return self.layers if layers is None else tuple(sorted(set(layers)))


def read_header(path: Path) -> CaptureHeader:
    """What the file at `path` holds, checked, without reading a layer's tensors.

    Raises ValueError in one line, as `load_capture` does.
    """
    with _opened(path) as file:
        metadata = file.metadata() or {}
        _require_format(path, metadata)
        names: list[str] = file.keys()
        shapes = {name: _checked_shape(path, name, file.get_slice(name)) for name in names}
        positions_shape = shapes.pop("positions", None)
        if positions_shape is None or not shapes:
            raise ValueError(f"{path}: a capture needs 'positions' and at least one layer")
        kv_lens = _checked_layers(path, shapes, positions_shape[0])
        positions = tuple(file.get_tensor("positions").tolist())
    _require_positions(path, positions, kv_lens)
    return CaptureHeader(path, shapes, positions, metadata)


def _not_captured(name: str, layer: int, held: Iterable[int]) -> str:
    return f"{name}: layer {layer} is not captured; it holds {', '.join(map(str, held))}"


def _opened(path: Path) -> Any:
    if not path.exists():
        raise ValueError(f"{path}: no such file")
    if not path.is_file():
        raise ValueError(f"{path}: not a regular file")
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a safetensors file: {error}") from error


def _require_format(path: Path, metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path}: not a capture: its metadata lacks format {FORMAT!r}")
    if metadata.get("version") != VERSION:
        found = metadata.get("version")
        raise ValueError(
            f"{path}: this topokv reads captures of version {VERSION!r}, not {found!r}"
        )


def _checked_shape(path: Path, name: str, tensor: Any) -> tuple[int, ...]:
    shape, dtype = tuple(tensor.get_shape()), tensor.get_dtype()
    if name == "positions":
        if dtype != "I64" or len(shape) != 1:
            raise ValueError(f"{path}: positions must be I64 of rank 1, got {dtype} {list(shape)}")
        return shape
    if not _LAYER_TENSOR.fullmatch(name):
        raise ValueError(f"{path}: unexpected tensor {name!r}; expected 'layers.0.q' and the like")
    if dtype not in _DTYPES:
        raise ValueError(f"{path}: {name} must be one of {', '.join(_DTYPES)}, got {dtype}")
    if len(shape) != 4 or shape[0] != 1 or 0 in shape:
        raise ValueError(f"{path}: {name} must be [1, heads, tokens, head_dim], got {list(shape)}")
    return shape


def _checked_layers(path: Path, shapes: Mapping[str, tuple[int, ...]], num_positions: int) -> int:
    """The number of tokens that every layer holds, their shapes found to agree."""
    kv_lens = set()
    for index in sorted({name.split(".")[1] for name in shapes}, key=int):
        parts = [shapes.get(f"layers.{index}.{part}") for part in "qkv"]
        kv_lens.add(_checked_layer(path, f"layers.{index}", parts, num_positions))
    if len(kv_lens) > 1:
        raise ValueError(f"{path}: layers hold {min(kv_lens)} and {max(kv_lens)} tokens")
    return kv_lens.pop()


def _checked_layer(
    path: Path, layer: str, parts: list[tuple[int, ...] | None], num_positions: int
) -> int:
    q, k, v = parts
    if q is None or k is None or v is None:
        missing = "qkv"[parts.index(None)]
        raise ValueError(f"{path}: {layer} has no {missing}")
    if k != v:
        raise ValueError(f"{path}: {layer}: k {list(k)} and v {list(v)} must have the same shape")
    if q[3] != k[3]:
        raise ValueError(
            f"{path}: {layer}: q has head_dim {q[3]} and k has {k[3]}; are they of one model?"
        )
    if q[1] % k[1]:
        raise ValueError(
            f"{path}: {layer}: num_q_heads ({q[1]}) must be a multiple of num_kv_heads ({k[1]})"
        )
    if q[2] != num_positions:
        raise ValueError(f"{path}: {layer}: q has {q[2]} positions, the file {num_positions}")
    return k[2]


def _require_positions(path: Path, positions: tuple[int, ...], kv_len: int) -> None:
    ascending = all(a < b for a, b in itertools.pairwise(positions))
    if not positions or not ascending or positions[0] < 0 or positions[-1] >= kv_len:
        shown = f"{list(positions[:8])}{'…' if len(positions) > 8 else ''}"
        raise ValueError(f"{path}: positions must ascend from 0 to {kv_len - 1}, got {shown}")


def _require_finite(path: Path, name: str, tensor: Tensor) -> None:
    # NaN and infinity both survive into the extremes, and no copy of the tensor is made.
    if not all(map(math.isfinite, (extreme.item() for extreme in tensor.aminmax()))):
        raise ValueError(f"{path}: {name} holds NaN or infinity; capture it again")
