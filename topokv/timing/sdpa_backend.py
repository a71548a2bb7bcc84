"""Which kernel scaled_dot_product_attention chose, read off a profile of one untimed call."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

_PREFIX = "aten::_scaled_dot_product_"
_KNOWN = {
    "flash_attention": "flash",
    "flash_attention_for_cpu": "flash",
    "efficient_attention": "efficient",
    "cudnn_attention": "cudnn",
    "attention_math": "math",
    "attention_math_for_mps": "math",
}


def attention_backend(call: Callable[[], object]) -> str | None:
    """`flash`, `efficient`, `cudnn` or `math`; None where the call used no such kernel."""
    # The old profiler: it starts in milliseconds, and names of operators are all that is asked.
    with torch.autograd.profiler.profile(use_kineto=False) as profile:
        call()
    return backend_among(event.name for event in profile.function_events or ())


def backend_among(operators: Iterable[str]) -> str | None:
    """The backend that a profile's operator names tell of; an unknown one keeps its own name."""
    for operator in operators:
        if operator.startswith(_PREFIX):
            name = operator.removeprefix(_PREFIX)
            return _KNOWN.get(name, name)
    return None
