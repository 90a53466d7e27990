"""A small language model built as those of today: the blocks of Llama and Mistral.

RMSNorm, SwiGLU, RoPE, grouped-query and sliding window attention, no biases, untied output layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """Divide each vector by its root mean square, then scale each feature (Zhang 2019)."""

    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_model) -> the same shape."""
        mean_square = x.square().mean(-1, keepdim=True)  # (..., 1)
        return self.weight * x * torch.rsqrt(mean_square + self.eps)


class SwiGLU(nn.Module):
    """A feed-forward network whose hidden units are multiplied by gates (Shazeer 2020)."""

    def __init__(self, d_model: int, d_ff: int, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.down_proj = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_model) -> the same shape."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def rotate(x: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    """RoPE: turn features i and i + head_dim/2 of x (..., T, head_dim) as a pair.

    The angle is position (T,) times frequency i (Su 2021).
    """
    half = x.shape[-1] // 2
    frequencies = base ** (-torch.arange(half) / half)  # (half,)
    angles = positions[:, None] * frequencies  # (T, half), radians
    a, b = x.chunk(2, dim=-1)  # (..., T, half) each
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Cache:
    """Rotated keys, and values, of one layer: (B, num_kv_heads, kept, head_dim); tokens seen."""

    def __init__(self) -> None:
        self.keys = self.values = torch.empty(0)
        self.seen = 0

    def append(self, keys: Tensor, values: Tensor, window: int | None) -> tuple[Tensor, Tensor]:
        """Return the kept ones and the new ones; keep those that a later query may attend to."""
        self.seen += keys.shape[2]
        if self.keys.numel():
            keys = torch.cat([self.keys, keys], dim=2)
            values = torch.cat([self.values, values], dim=2)
        last = slice(None) if window is None else slice(-window, None)
        self.keys, self.values = keys[:, :, last], values[:, :, last]
        return keys, values


class Attention(nn.Module):
    """Causal attention; base: of RoPE, or None. window: keys that a query may see, None for all."""

    def __init__(
        self, d_model: int, num_heads: int, num_kv_heads: int, window: int | None = None,
        base: float | None = 10_000.0, bias: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if d_model % num_heads or num_heads % num_kv_heads:
            raise ValueError("num_heads must divide d_model, and num_kv_heads num_heads")
        self.head_dim, self.window, self.base = d_model // num_heads, window, base
        self.q_proj = nn.Linear(d_model, num_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(d_model, num_kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(d_model, num_kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(d_model, d_model, bias=bias)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """(B, T, d_model) -> the same shape; with a cache, x are the tokens after those seen."""
        q, k, v = (
            proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )  # (B, num_heads, T, head_dim); k and v (B, num_kv_heads, T, head_dim)
        positions = torch.arange(x.shape[1]) + (cache.seen if cache else 0)  # (T,)
        if self.base is not None:
            q, k = rotate(q, positions, self.base), rotate(k, positions, self.base)
        if cache is not None:
            k, v = cache.append(k, v, self.window)
        groups = q.shape[1] // k.shape[1]  # query heads for each key and value head
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        kept = positions[-1] + 1 - torch.arange(k.shape[2], 0, -1)  # (keys,), their positions
        back = positions[:, None] - kept  # (T, keys), how far a key lies behind the query
        mask = back >= 0
        if self.window is not None:
            mask &= back < self.window
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
        return self.o_proj(mixed.flatten(2))  # from (B, T, num_heads, head_dim)


class Block(nn.Module):
    """Pre-norm block: attention, then SwiGLU, each with a residual connection."""

    def __init__(
        self, d_model: int, num_heads: int, num_kv_heads: int, d_ff: int, window: int | None = None
    ) -> None:
        super().__init__()
        self.attn_norm, self.mlp_norm = RMSNorm(d_model), RMSNorm(d_model)
        self.attn = Attention(d_model, num_heads, num_kv_heads, window)
        self.mlp = SwiGLU(d_model, d_ff)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """(B, T, d_model) -> the same shape."""
        x = x + self.attn(self.attn_norm(x), cache)
        return x + self.mlp(self.mlp_norm(x))


class ModernGPT(nn.Module):
    """Token embeddings, blocks, a last RMSNorm and an output layer of its own."""

    def __init__(
        self, vocab_size: int, d_model: int, num_layers: int, num_heads: int, num_kv_heads: int,
        d_ff: int, window: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.blocks = nn.ModuleList(
            Block(d_model, num_heads, num_kv_heads, d_ff, window) for _ in range(num_layers)
        )
        self.norm = RMSNorm(d_model)
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, ids: Tensor, caches: list[Cache] | None = None) -> Tensor:
        """ids (B, T) -> logits (B, T, vocab_size)."""
        x = self.embedding(ids)  # (B, T, d_model)
        for i, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[i])
        return self.lm_head(self.norm(x))
