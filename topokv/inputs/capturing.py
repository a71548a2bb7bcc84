"""Run a causal language model over a text and keep what its attention reads.

Every transformers model with pluggable attention hands its attention function the q, k and v of a
layer after the rotary embedding; this registers such a function, which computes the attention as
usual and records on the way. Needs the extra `capture`. No hub is ever asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from topokv.inputs.capture_file import Capture, CapturedLayer
from topokv.inputs.model import Model
from topokv.inputs.texts import Text

Progress = Callable[[str], None]

_ATTENTION = "topokv_capture"


@dataclass(slots=True)
class _Recorder:
    """What the attention function keeps: chosen layers as float16, and the reasons for the rest."""

    positions: Tensor
    wanted: Collection[int]
    progress: Progress
    layers: dict[int, CapturedLayer] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)

    def attend(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """The layer's attention output `[batch, q_len, num_q_heads, head_dim]`, recorded."""
        index = int(module.layer_idx)
        self.progress(f"layer {index}")
        if index in self.wanted:
            self._record(index, query, key, value, attention_mask, scaling, options)
        group = query.shape[1] // key.shape[1]
        # Repeated heads, since SDPA's enable_gqa needs memory quadratic in the tokens in float32.
        output = functional.scaled_dot_product_attention(
            query,
            key.repeat_interleave(group, 1),
            value.repeat_interleave(group, 1),
            attn_mask=attention_mask,
            is_causal=attention_mask is None,
            scale=scaling,
        )
        return output.transpose(1, 2).contiguous(), None

    def _record(
        self,
        index: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None,
        options: dict[str, Any],
    ) -> None:
        reason = _not_plain(query, key, value, attention_mask, options)
        if reason is not None:
            self.refused[index] = reason
            return
        q = query[:, :, self.positions.to(query.device)]
        if scaling is not None:
            q = q * (scaling * math.sqrt(query.shape[-1]))
        self.layers[index] = CapturedLayer(_stored(q), _stored(key), _stored(value))


def _not_plain(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: dict[str, Any]
) -> str | None:
    """Why a layer is not the softmax over all earlier tokens that a capture stands for, or None."""
    if mask is not None:
        return "it attends a sliding window or under a mask, not all earlier tokens"
    for option, what in (("softcap", "caps its logits"), ("s_aux", "has a learned sink")):
        if options.get(option) is not None:
            return f"it {what}, which is not plain softmax attention"
    if key.shape != value.shape or query.shape[-1] != key.shape[-1]:
        return "its q, k and v differ in head_dim"
    return None


def _stored(tensor: Tensor) -> Tensor:
    """`tensor` on the CPU in float16: bfloat16's 8 bits would move scores more than blocks do.

    bfloat16 where float16's range ends, since some models' keys have a few enormous channels.
    """
    fits = bool(tensor.abs().amax() < torch.finfo(torch.float16).max)
    return tensor.to("cpu", torch.float16 if fits else torch.bfloat16, copy=True)


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be captured of a text: so many tokens and queries, of all layers or of some.

    Raises ValueError for fewer than 2 tokens and for more queries than tokens.
    """

    num_tokens: int
    num_positions: int
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.num_tokens < 2:
            raise ValueError(f"tokens must be at least 2, got {self.num_tokens}")
        if not 1 <= self.num_positions <= self.num_tokens:
            raise ValueError(
                f"positions must be from 1 to tokens ({self.num_tokens}), got {self.num_positions}"
            )

    @property
    def metadata(self) -> dict[str, str]:
        """What a capture says of the part of the text and of the model that it holds."""
        named = "all" if self.layers is None else ",".join(map(str, sorted(set(self.layers))))
        return {"tokens": str(self.num_tokens), "layers": named}

    @property
    def positions(self) -> tuple[int, ...]:
        """Positions whose queries are kept: the last token, others even over the last quarter.

        Apart, so that they are different samples; in no step with a block size, so that partial
        last blocks are among them.
        """
        last = self.num_tokens - 1
        first = last + 1 - max(self.num_tokens // 4, self.num_positions)
        steps = max(self.num_positions - 1, 1)
        places = reversed(range(self.num_positions))
        return tuple(last - (last - first) * place // steps for place in places)


def capture_text(
    model: Model,
    text: Text,
    wish: Wish,
    progress: Progress = lambda _: None,
) -> tuple[Capture, dict[int, str]]:
    """What `model`'s attention read over the first `num_tokens` tokens of `text`.

    Beside it, why a layer was left out. Layers named one by one must all be plain softmax over all
    earlier tokens; with None, those that are not are left out. Raises ValueError where the text or
    the model's context is too short, or where no layer is left.
    """
    wanted = _wanted_layers(model, wish.layers)
    tokens = _tokens(model, text.content, wish.num_tokens)
    recorder = _Recorder(torch.tensor(wish.positions), wanted, progress)
    _prefill(model, tokens, recorder)
    if not recorder.layers or (wish.layers is not None and recorder.refused):
        index, reason = next(iter(recorder.refused.items()), (wanted[0], "the model never ran it"))
        raise ValueError(f"layer {index} of {model.name} can't be captured: {reason}")
    layers_kept = dict(sorted(recorder.layers.items()))
    metadata = {**model.metadata, **text.metadata, **wish.metadata}
    return Capture(text.name, wish.positions, layers_kept, metadata), recorder.refused


def _wanted_layers(model: Model, layers: Collection[int] | None) -> tuple[int, ...]:
    if layers is None:
        return tuple(range(model.num_layers))
    beyond = [index for index in layers if index not in range(model.num_layers)]
    if beyond:
        last = model.num_layers - 1
        raise ValueError(f"layer {beyond[0]} is not in {model.name}: its layers are 0 to {last}")
    return tuple(sorted(set(layers)))


def _tokens(model: Model, text: str, num_tokens: int) -> Tensor:
    """Token ids `[1, num_tokens]`: the text's first ones."""
    if model.context is not None and num_tokens > model.context:
        raise ValueError(
            f"tokens {num_tokens} exceeds the context of {model.name}, {model.context}"
        )
    ids: Tensor = model.tokenizer(text, return_tensors="pt", verbose=False)["input_ids"]
    if ids.shape[1] < num_tokens:
        raise ValueError(f"the text has {ids.shape[1]} tokens, fewer than tokens {num_tokens}")
    return ids[:, :num_tokens]


def _prefill(model: Model, tokens: Tensor, recorder: _Recorder) -> None:
    transformers: Any = import_module("transformers")
    masks: Any = import_module("transformers.masking_utils")
    transformers.AttentionInterface.register(_ATTENTION, recorder.attend)
    # This mask function returns None for attention to all earlier tokens: no quadratic mask.
    transformers.AttentionMaskInterface.register(_ATTENTION, masks.sdpa_mask)
    model.network.set_attn_implementation(_ATTENTION)
    with torch.inference_mode():
        # The decoder alone: logits over the vocabulary would be the largest tensor of all.
        model.network.base_model(tokens.to(model.network.device), use_cache=False)
