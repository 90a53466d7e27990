"""What known mistakes of several units of attention share."""

from __future__ import annotations

# What several cells have in common.
IF_MASK = "if mask is not None:"
ATTEND = "scaled_dot_product_attention(q, k, v, mask)"
SCORES = "q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])"
