"""The best of many scores, ties to the lower place, without sorting what is not returned."""

from __future__ import annotations

import torch
from torch import Tensor

# So few scores are sorted as fast as they are turned into keys for topk.
_SORTED_WHOLE = 4096


def best_first(scores: Tensor, count: int | None = None) -> Tensor:
    """Places of the `count` highest (or all) `scores` along the last size, best first.

    Ties go to the lower place; NaN counts as -inf.
    """
    num_places = scores.shape[-1]
    count = num_places if count is None else count
    if scores.device.type == "cpu" and count < num_places:
        values, places = scores.topk(count + 1)
        # Strictly falling values hold neither a tie to break nor NaN. A GPU would wait for this.
        if bool((values[..., 1:] < values[..., :-1]).all()):
            return places[..., :count]
    ranked = scores.nan_to_num(-torch.inf, torch.inf, -torch.inf)
    most = 4 * count > num_places or scores.numel() <= _SORTED_WHOLE
    if most or scores.dtype == torch.float64:
        return ranked.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return _tie_free(ranked).topk(count).indices


def _tie_free(scores: Tensor) -> Tensor:
    """Distinct int64 keys along the last size, in the order of `scores`, then of lower place.

    topk, unlike a stable sort, need not rank more than it returns, but it breaks ties anyhow.
    """
    # Adding 0 makes -0.0 and 0.0 one; a negative float's bits fall as it rises, so they are turned.
    bits = (scores.float() + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    place = torch.arange(scores.shape[-1], device=scores.device)
    return (ordered.long() << 32) - place
