"""The course's own parts, for what you have not written before attention-multi_head.

From solutions/attention/scores.py and solutions/attention/self_attention.py.
attention-mine.ipynb takes them, and yours wherever there is one.
"""

# What each unit asks for.
EXERCISES = {
    "attention-scores": [
        "DotScore",
        "BilinearScore",
        "AdditiveScore",
        "ConcatScore",
        "masked_softmax",
        "context_vector",
        "AttentionDecoderStep",
        "attention_dropout",
    ],
    "attention-self_attention": [
        "scaled_dot_product_attention",
        "causal_mask",
        "padding_mask",
        "decoder_mask",
        "SelfAttention",
        "MaskedSelfAttention",
    ],
    "attention-multi_head": [
        "split_heads",
        "merge_heads",
        "MultiHeadAttention",
        "FusedMultiHeadAttention",
        "PerHeadAttention",
        "separate_to_fused",
        "separate_to_per_head",
        "separate_to_torch",
        "CrossAttention",
    ],
}

import math

import torch
from torch import Tensor, nn


class AdditiveScore(nn.Module):
    """Additive score e_ij = v^T tanh(W_q q_i + W_k k_j) (Bahdanau et al. 2015, appendix A.1.2).

    Layers, all without bias: ``query_projection`` query_dim -> hidden_dim, ``key_projection``
    key_dim -> hidden_dim, ``energy`` hidden_dim -> 1.
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int) -> None:
        """Create the three linear layers."""
        super().__init__()
        self.query_projection = nn.Linear(query_dim, hidden_dim, bias=False)
        self.key_projection = nn.Linear(key_dim, hidden_dim, bias=False)
        self.energy = nn.Linear(hidden_dim, 1, bias=False)

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        """Score every pair of a query and a key.

        Args:
            query: (B, Tq, query_dim).
            key: (B, Tk, key_dim).
            mask: bool, broadcastable to (B, Tq, Tk), True = may attend.

        Returns:
            (B, Tq, Tk) scores; -inf where the mask is False.
        """
        q = self.query_projection(query).unsqueeze(2)  # (B, Tq, 1, hidden)
        k = self.key_projection(key).unsqueeze(1)  # (B, 1, Tk, hidden)
        hidden = torch.tanh(q + k)  # (B, Tq, Tk, hidden)
        scores = self.energy(hidden).squeeze(-1)  # (B, Tq, Tk)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return scores


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


def context_vector(attn_weights: Tensor, values: Tensor) -> Tensor:
    """Weighted sum of the values, c_i = sum_j alpha_ij v_j (Bahdanau et al. 2015, equation 5).

    Args:
        attn_weights: (B, Tq, Tk).
        values: (B, Tk, Dv).

    Returns:
        (B, Tq, Dv).

    Raises:
        ValueError: if attn_weights and values disagree about Tk.
    """
    if attn_weights.shape[-1] != values.shape[-2]:
        raise ValueError(
            f"attn_weights for {attn_weights.shape[-1]} keys, but {values.shape[-2]} values"
        )
    return attn_weights @ values  # (B, Tq, Dv)


class AttentionDecoderStep(nn.Module):
    """One step of a recurrent decoder with additive attention (Bahdanau et al. 2015, section 3.1).

    Submodules: ``score`` = AdditiveScore(hidden_size, annotation_dim, attention_dim);
    ``cell`` = nn.GRUCell(embed_dim + annotation_dim, hidden_size), fed with [y_prev; context].
    """

    def __init__(
        self, embed_dim: int, hidden_size: int, annotation_dim: int, attention_dim: int
    ) -> None:
        """Create ``score`` and ``cell``."""
        super().__init__()
        self.score = AdditiveScore(hidden_size, annotation_dim, attention_dim)
        self.cell = nn.GRUCell(embed_dim + annotation_dim, hidden_size)

    def forward(
        self,
        y_prev: Tensor,
        s_prev: Tensor,
        annotations: Tensor,
        source_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attend with the previous state, then update it.

        Args:
            y_prev: (B, embed_dim), embedding of the previous output word.
            s_prev: (B, hidden_size), previous state of the decoder.
            annotations: (B, T, annotation_dim), states of the encoder.
            source_mask: (B, T) bool, True = real source token.

        Returns:
            The new state (B, hidden_size), the context (B, annotation_dim), the weights (B, T).
        """
        mask = None if source_mask is None else source_mask.unsqueeze(1)  # (B, 1, T)
        scores = self.score(s_prev.unsqueeze(1), annotations)  # (B, 1, T)
        attn_weights = masked_softmax(scores, mask)  # (B, 1, T)
        context = context_vector(attn_weights, annotations).squeeze(1)  # (B, annotation_dim)
        cell_input = torch.cat([y_prev, context], dim=-1)  # (B, embed_dim + annotation_dim)
        s = self.cell(cell_input, s_prev)  # (B, hidden_size)
        return s, context, attn_weights.squeeze(1)


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


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    training: bool = False,
) -> tuple[Tensor, Tensor]:
    """softmax(Q K^T / sqrt(d_k)) V with mask and dropout (Vaswani et al. 2017, section 3.2.1).

    Args:
        query: (..., Tq, D).
        key: (..., Tk, D).
        value: (..., Tk, Dv).
        mask: bool, broadcastable to (..., Tq, Tk), True = may attend.
        dropout: probability of dropping a weight, in training only.
        training: whether dropout acts.

    Returns:
        The output (..., Tq, Dv) and the weights before dropout (..., Tq, Tk). A fully masked row
        has weights 0 and output 0.

    Raises:
        ValueError: if query and key differ in width, key and value in length, or the mask is not
            bool or not broadcastable to the scores.
    """
    d_k = query.shape[-1]
    if key.shape[-1] != d_k:
        raise ValueError(f"query is {d_k} wide, but key is {key.shape[-1]} wide")
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"{key.shape[-2]} keys, but {value.shape[-2]} values")
    scores = query @ key.transpose(-2, -1) / math.sqrt(d_k)  # (..., Tq, Tk)
    attn_weights = masked_softmax(scores, mask)  # (..., Tq, Tk)
    dropped = attention_dropout(attn_weights, dropout, training)  # (..., Tq, Tk)
    return dropped @ value, attn_weights  # (..., Tq, Dv), (..., Tq, Tk)


class SelfAttention(nn.Module):
    """Self-attention with one head (Vaswani et al. 2017, sections 3.2.1 and 3.2.3).

    Layers, all without bias: ``q_proj``, ``k_proj``, ``v_proj``, each input_dim -> head_dim.
    """

    def __init__(self, input_dim: int, head_dim: int) -> None:
        """Create the three projections."""
        super().__init__()
        self.q_proj = nn.Linear(input_dim, head_dim, bias=False)
        self.k_proj = nn.Linear(input_dim, head_dim, bias=False)
        self.v_proj = nn.Linear(input_dim, head_dim, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Let every token attend to every token.

        Args:
            x: (B, T, input_dim).
            mask: bool, broadcastable to (B, T, T), True = may attend.

        Returns:
            The output (B, T, head_dim) and the weights (B, T, T).
        """
        q = self.q_proj(x)  # (B, T, head_dim)
        k = self.k_proj(x)  # (B, T, head_dim)
        v = self.v_proj(x)  # (B, T, head_dim)
        return scaled_dot_product_attention(q, k, v, mask)  # (B, T, head_dim), (B, T, T)
