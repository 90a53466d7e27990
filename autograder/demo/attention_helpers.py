"""Right answers to `attention` by someone who lets helpers, written first, do the work.

Masks by a large negative number and a second multiplication, modules by inheritance, later
exercises by way of earlier ones. Read as text, cell by cell, by `make_class`. Where an
exercise is not answered here, the reference's answer is taken.
"""

# ruff: noqa: F821

import math

import torch
from torch import Tensor, nn

# %% own="masks"
# I need the same four lines again and again, so here they are once.


def check_mask(mask: Tensor | None, shape: torch.Size) -> Tensor:
    if mask is None:
        return torch.ones((), dtype=torch.bool).expand(shape)
    if mask.dtype != torch.bool:
        raise ValueError("mask must be bool")
    if torch.broadcast_shapes(mask.shape, shape) != shape:
        raise ValueError("mask too large")
    return mask.expand(shape)


def safe_mask(mask: Tensor | None, shape: torch.Size) -> Tensor:
    try:
        return check_mask(mask, shape)
    except RuntimeError as problem:
        raise ValueError("mask does not broadcast") from problem


def hide(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return scores
    return scores.clone().masked_fill_(mask.logical_not(), -math.inf)


def per_head(mask: Tensor | None) -> Tensor | None:
    return mask[:, None] if mask is not None and len(mask.shape) == 3 else mask


# %% exercise="DotScore"
class DotScore(nn.Module):
    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        if query.size(-1) != key.size(-1):
            raise ValueError("different widths")
        return hide(torch.bmm(query, key.mT), mask)


# %% exercise="BilinearScore"
class BilinearScore(DotScore):
    def __init__(self, query_dim: int, key_dim: int) -> None:
        super().__init__()
        self.register_parameter("weight", nn.Parameter(torch.zeros(query_dim, key_dim)))
        nn.init.normal_(self.weight, std=0.1)

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(query.matmul(self.weight), key, mask)


# %% exercise="masked_softmax"
def masked_softmax(scores: Tensor, mask: Tensor | None = None, dim: int = -1) -> Tensor:
    may = safe_mask(mask, scores.shape) & (scores > -math.inf)
    small = torch.finfo(scores.dtype).min / 2
    filled = scores.masked_fill(~may, small)
    filled = filled - filled.detach().amax(dim, keepdim=True)
    # log-sum-exp of the row; of a row without entries it is a number that nobody will see.
    weights = (filled - filled.logsumexp(dim, keepdim=True)).exp()
    return weights.masked_fill(~may, 0)


# %% exercise="attention_dropout"
def attention_dropout(attn_weights: Tensor, dropout: float, training: bool) -> Tensor:
    if dropout < 0 or dropout > 1:
        raise ValueError("dropout is not between 0 and 1")
    if training and dropout == 1:
        return torch.zeros_like(attn_weights) * attn_weights
    if training and dropout:
        coins = torch.empty(attn_weights.shape, dtype=attn_weights.dtype).uniform_()
        return torch.where(
            coins < dropout, torch.zeros_like(attn_weights), attn_weights.div(1 - dropout)
        )
    return attn_weights


# %% own="a projection for each name"
class Projections(nn.Module):
    """Linear layers by name, the same for all modules below."""

    def add(self, bias: bool, **layers: tuple[int, int]) -> None:
        for name, (inputs, outputs) in layers.items():
            self.add_module(name, nn.Linear(inputs, outputs, bias=bias))

    def qkv(self, query: Tensor, memory: Tensor | None = None, value: Tensor | None = None):
        memory = query if memory is None else memory
        value = memory if value is None else value
        return self.q_proj(query), self.k_proj(memory), self.v_proj(value)


# %% exercise="SelfAttention"
class SelfAttention(Projections):
    def __init__(self, input_dim: int, head_dim: int) -> None:
        super().__init__()
        shape = (input_dim, head_dim)
        self.add(False, q_proj=shape, k_proj=shape, v_proj=shape)

    def forward(self, x: Tensor, mask: Tensor | None = None):
        return scaled_dot_product_attention(*self.qkv(x), mask=mask)


# %% exercise="MaskedSelfAttention"
class MaskedSelfAttention(SelfAttention):
    def forward(self, x: Tensor, padding_mask: Tensor | None = None):
        mask = causal_mask(x.size(1))
        return super().forward(x, mask if padding_mask is None else mask & padding_mask[:, None, :])


# %% exercise="MultiHeadAttention"
class MultiHeadAttention(Projections):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError("d_model must be a multiple of num_heads")
        self.num_heads, self.rate = num_heads, dropout
        shape = (d_model, d_model)
        self.add(True, q_proj=shape, k_proj=shape, v_proj=shape, out_proj=shape)

    def forward(self, query, key, value, mask=None):
        parts = [split_heads(part, self.num_heads) for part in self.qkv(query, key, value)]
        output, attn_weights = scaled_dot_product_attention(
            *parts, per_head(mask), self.rate, self.training
        )
        return self.out_proj(merge_heads(output)), attn_weights


# %% exercise="CrossAttention"
class CrossAttention(Projections):
    def __init__(self, query_dim: int, memory_dim: int, d_model: int, num_heads: int) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError("d_model must be a multiple of num_heads")
        self.num_heads = num_heads
        memory = (memory_dim, d_model)
        self.add(True, q_proj=(query_dim, d_model), k_proj=memory, v_proj=memory)
        self.add(True, out_proj=(d_model, query_dim))

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor | None = None):
        parts = [split_heads(part, self.num_heads) for part in self.qkv(x, memory)]
        mask = None if memory_mask is None else memory_mask[:, None, None, :]
        output, attn_weights = scaled_dot_product_attention(*parts, mask)
        return self.out_proj(merge_heads(output)), attn_weights
