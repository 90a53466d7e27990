"""What earlier units of this chapter have built, as far as attention-self_attention needs it.

From solutions/attention/scores.py. Nothing in this file is yours to write.
"""

import torch
from torch import Tensor


def masked_softmax(scores: Tensor, mask: Tensor | None = None, dim: int = -1) -> Tensor:
    """Softmax along ``dim`` over the positions that may be attended to.

    Args:
        scores: any shape, floating point; -inf counts as masked.
        mask: bool, broadcastable to the shape of scores, True = may attend.
        dim: the dimension along which the weights sum to 1.

    Returns:
        Weights of the shape and dtype of scores, exactly 0 where masked. A fully masked slice
        is all 0, with finite gradient.

    Raises:
        ValueError: if mask is not bool or not broadcastable to the shape of scores.
    """
    if mask is not None:
        if mask.dtype != torch.bool:
            raise ValueError(f"mask must be torch.bool, but is {mask.dtype}")
        try:
            mask = mask.broadcast_to(scores.shape)
        except RuntimeError:
            raise ValueError(
                f"mask {tuple(mask.shape)} can't be broadcast to scores {tuple(scores.shape)}"
            ) from None
        scores = scores.masked_fill(~mask, float("-inf"))
    # The maximum cancels in the quotient, so no gradient needs to flow through it.
    top = scores.detach().amax(dim=dim, keepdim=True)  # 1 along dim
    # A fully masked slice has the maximum -inf, and -inf - (-inf) would be NaN.
    top = top.masked_fill(top == float("-inf"), 0.0)
    numerator = torch.exp(scores - top)  # like scores; exp(-inf) is exactly 0
    denominator = numerator.sum(dim=dim, keepdim=True)  # 1 along dim
    # Replaced before the division: 0/0 would poison the gradient even if it was repaired later.
    denominator = denominator.masked_fill(denominator == 0.0, 1.0)
    return numerator / denominator


def attention_dropout(attn_weights: Tensor, dropout: float, training: bool) -> Tensor:
    """Inverted dropout: drop each weight with probability p, divide the survivors by 1 - p.

    Source: Srivastava et al. 2014, section 10, in the inverted form. Vaswani et al. 2017,
    section 5.4, does not list dropout on attention weights; implementations added it.

    Args:
        attn_weights: any shape.
        dropout: p, the probability of being dropped, in [0, 1].
        training: whether to drop at all.

    Returns:
        Tensor of the same shape and dtype; unchanged values if not training or dropout is 0,
        zeros if dropout is 1.

    Raises:
        ValueError: if dropout is outside [0, 1].
    """
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout must be between 0 and 1, but is {dropout}")
    if not training or dropout == 0.0:
        return attn_weights
    if dropout == 1.0:
        return attn_weights * 0.0
    # float32 whatever the dtype of the weights: in half precision rand is too coarse for small
    # rates.
    keep = torch.rand_like(attn_weights, dtype=torch.float32) >= dropout  # like attn_weights, bool
    return attn_weights * keep / (1.0 - dropout)
