"""Right answers to `attention` by someone who writes every product as an einsum.

Read as text, cell by cell, by `make_class`.
"""

import math

import torch

# %% own="imports"
from torch import Tensor, einsum, nn


# %% exercise="DotScore"
class DotScore(nn.Module):
    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        if query.shape[-1] != key.shape[-1]:
            raise ValueError(f"widths {query.shape[-1]} and {key.shape[-1]}")
        e = einsum("bid,bjd->bij", query, key)
        return e if mask is None else torch.where(mask, e, -math.inf)


# %% exercise="BilinearScore"
class BilinearScore(nn.Module):
    def __init__(self, query_dim: int, key_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(query_dim, key_dim))

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        e = einsum("bip,pq,bjq->bij", query, self.weight, key)
        return e if mask is None else torch.where(mask, e, -math.inf)


# %% exercise="AdditiveScore"
class AdditiveScore(nn.Module):
    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.query_projection = nn.Linear(query_dim, hidden_dim, bias=False)
        self.key_projection = nn.Linear(key_dim, hidden_dim, bias=False)
        self.energy = nn.Linear(hidden_dim, 1, bias=False)

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        q = einsum("bid,hd->bih", query, self.query_projection.weight)
        k = einsum("bjd,hd->bjh", key, self.key_projection.weight)
        e = einsum("bijh,h->bij", (q[:, :, None] + k[:, None]).tanh(), self.energy.weight[0])
        return e if mask is None else torch.where(mask, e, -math.inf)


# %% exercise="ConcatScore"
class ConcatScore(nn.Module):
    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.query_dim = query_dim
        self.projection = nn.Linear(query_dim + key_dim, hidden_dim, bias=False)
        self.energy = nn.Linear(hidden_dim, 1, bias=False)

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        # W [q; k] = W_left q + W_right k, so the pairs need not be written out.
        left = self.projection.weight[:, : self.query_dim]
        right = self.projection.weight[:, self.query_dim :]
        q = einsum("bid,hd->bih", query, left)
        k = einsum("bjd,hd->bjh", key, right)
        e = einsum("bijh,h->bij", (q[:, :, None] + k[:, None]).tanh(), self.energy.weight[0])
        return e if mask is None else torch.where(mask, e, -math.inf)


# %% exercise="masked_softmax"
def masked_softmax(scores: Tensor, mask: Tensor | None = None, dim: int = -1) -> Tensor:
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    if mask.dtype != torch.bool:
        raise ValueError(f"a mask is bool, not {mask.dtype}")
    try:
        mask = torch.broadcast_to(mask, scores.shape)
    except RuntimeError:
        raise ValueError("the mask does not fit the scores") from None
    mask = mask & ~scores.isneginf()
    safe = torch.where(mask, scores, torch.zeros_like(scores))
    lowest = torch.finfo(scores.dtype).min
    top = torch.where(mask, scores.detach(), lowest).max(dim, keepdim=True).values
    top = torch.where(mask.any(dim, keepdim=True), top, torch.zeros_like(top))
    # Where masked the exponent is 0 rather than something large, so that nothing overflows.
    grown = torch.where(mask, safe - top, 0.0).exp() * mask
    total = grown.sum(dim, keepdim=True)
    return grown / torch.where(total > 0, total, 1.0)


# %% exercise="context_vector"
def context_vector(attn_weights: Tensor, values: Tensor) -> Tensor:
    if attn_weights.shape[-1] != values.shape[1]:
        raise ValueError("weights and values differ in length")
    return einsum("bij,bjv->biv", attn_weights, values)


# %% exercise="AttentionDecoderStep"
class AttentionDecoderStep(nn.Module):
    def __init__(
        self, embed_dim: int, hidden_size: int, annotation_dim: int, attention_dim: int
    ) -> None:
        super().__init__()
        self.score = AdditiveScore(hidden_size, annotation_dim, attention_dim)
        self.cell = nn.GRUCell(embed_dim + annotation_dim, hidden_size)

    def forward(self, y_prev, s_prev, annotations, source_mask=None):
        mask = None if source_mask is None else source_mask[:, None]
        a = masked_softmax(self.score(s_prev[:, None], annotations, mask))[:, 0]
        c = einsum("bt,bta->ba", a, annotations)
        return self.cell(torch.cat([y_prev, c], 1), s_prev), c, a


# %% exercise="attention_dropout"
def attention_dropout(attn_weights: Tensor, dropout: float, training: bool) -> Tensor:
    if not 0 <= dropout <= 1:
        raise ValueError(f"dropout={dropout} is no probability")
    keep = 1 - dropout if training else 1
    coins = torch.bernoulli(torch.full(attn_weights.shape, float(keep))).to(attn_weights)
    return attn_weights * coins / (keep or 1)


# %% exercise="scaled_dot_product_attention"
def scaled_dot_product_attention(query, key, value, mask=None, dropout=0.0, training=False):
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ValueError("the shapes of query, key and value do not fit")
    scores = einsum("...id,...jd->...ij", query * query.shape[-1] ** -0.5, key)
    attn_weights = masked_softmax(scores, mask)
    used = attention_dropout(attn_weights, dropout, training)
    return einsum("...ij,...jv->...iv", used, value), attn_weights


# %% exercise="causal_mask"
def causal_mask(length: int) -> Tensor:
    if not isinstance(length, int) or length < 1:
        raise ValueError("length must be a positive int")
    i = torch.arange(length)
    return i[:, None] >= i[None, :]


# %% exercise="padding_mask"
def padding_mask(lengths: Tensor, max_length: int | None = None) -> Tensor:
    if lengths.dtype == torch.bool or lengths.is_floating_point() or lengths.is_complex():
        raise ValueError("lengths must be integers")
    size = lengths.amax().item() if max_length is None else max_length
    if (lengths < 0).any() or (lengths > size).any():
        raise ValueError("a length is out of range")
    return (torch.arange(size) < lengths.unsqueeze(1)).unsqueeze(1)


# %% exercise="decoder_mask"
def decoder_mask(lengths: Tensor, max_length: int | None = None) -> Tensor:
    real = padding_mask(lengths, max_length)
    return real.expand(-1, real.shape[-1], -1).tril()


# %% exercise="SelfAttention"
class SelfAttention(nn.Module):
    def __init__(self, input_dim: int, head_dim: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(input_dim, head_dim, bias=False) for _ in range(3)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None):
        q, k, v = (einsum("btd,hd->bth", x, p.weight) for p in self.children())
        return scaled_dot_product_attention(q, k, v, mask)


# %% exercise="MaskedSelfAttention"
class MaskedSelfAttention(SelfAttention):
    def forward(self, x: Tensor, padding_mask: Tensor | None = None):
        mask = causal_mask(x.shape[1])
        if padding_mask is not None:
            mask = einsum("bj,ij->bij", padding_mask.int(), mask.int()).bool()
        return super().forward(x, mask)


# %% exercise="split_heads"
def split_heads(x: Tensor, num_heads: int) -> Tensor:
    if x.shape[-1] % num_heads != 0:
        raise ValueError("num_heads does not divide the width")
    return einsum("bthd->bhtd", x.unflatten(-1, (num_heads, -1)))


# %% exercise="merge_heads"
def merge_heads(x: Tensor) -> Tensor:
    return einsum("bhtd->bthd", x).flatten(2).contiguous()


# %% exercise="MultiHeadAttention"
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError("num_heads does not divide d_model")
        self.num_heads = num_heads
        self.dropout_p = dropout
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, query, key, value, mask=None):
        def heads(layer: nn.Linear, x: Tensor) -> Tensor:
            weight = layer.weight.unflatten(0, (self.num_heads, -1))
            bias = layer.bias.unflatten(0, (self.num_heads, -1))
            return einsum("btd,hkd->bhtk", x, weight) + bias[:, None]

        q, k, v = heads(self.q_proj, query), heads(self.k_proj, key), heads(self.v_proj, value)
        if mask is not None and mask.ndim == 3:
            mask = mask[:, None]
        z, attn_weights = scaled_dot_product_attention(q, k, v, mask, self.dropout_p, self.training)
        out = self.out_proj.weight.unflatten(1, (self.num_heads, -1))
        return einsum("bhtk,dhk->btd", z, out) + self.out_proj.bias, attn_weights


# %% exercise="FusedMultiHeadAttention"
class FusedMultiHeadAttention(nn.Module):
    def __init__(self, input_dim: int, d_model: int, num_heads: int) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError("num_heads does not divide d_model")
        self.num_heads = num_heads
        self.qkv_proj = nn.Linear(input_dim, 3 * d_model)
        self.o_proj = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, mask: Tensor | None = None):
        packed = self.qkv_proj(x).unflatten(-1, (self.num_heads, 3, -1))
        q, k, v = einsum("bthck->cbhtk", packed)
        if mask is not None and mask.ndim == 3:
            mask = mask[:, None]
        z, attn_weights = scaled_dot_product_attention(q, k, v, mask)
        return self.o_proj(einsum("bhtk->bthk", z).flatten(2)), attn_weights


# %% exercise="PerHeadAttention"
class PerHeadAttention(nn.Module):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError("num_heads does not divide d_model")
        size = d_model // num_heads
        self.w_q = nn.Parameter(0.02 * torch.randn(num_heads, d_model, size))
        self.w_k = nn.Parameter(0.02 * torch.randn(num_heads, d_model, size))
        self.w_v = nn.Parameter(0.02 * torch.randn(num_heads, d_model, size))
        self.w_o = nn.Parameter(0.02 * torch.randn(num_heads, size, d_model))

    def forward(self, query, key, value, mask=None):
        q = einsum("btd,hdk->bhtk", query, self.w_q)
        k = einsum("btd,hdk->bhtk", key, self.w_k)
        v = einsum("btd,hdk->bhtk", value, self.w_v)
        if mask is not None and mask.ndim == 3:
            mask = mask[:, None]
        z, attn_weights = scaled_dot_product_attention(q, k, v, mask)
        return einsum("bhtk,hkd->btd", z, self.w_o), attn_weights


# %% exercise="separate_to_fused"
def separate_to_fused(state: dict[str, Tensor], num_heads: int) -> dict[str, Tensor]:
    def interleave(kind: str) -> Tensor:
        parts = torch.stack([state[f"{name}_proj.{kind}"] for name in "qkv"])
        parts = parts.unflatten(1, (num_heads, -1))
        return einsum("chk...->hck...", parts).flatten(0, 2)

    return {
        "qkv_proj.weight": interleave("weight"),
        "qkv_proj.bias": interleave("bias"),
        "o_proj.weight": +state["out_proj.weight"].clone(),
        "o_proj.bias": +state["out_proj.bias"].clone(),
    }


# %% exercise="separate_to_per_head"
def separate_to_per_head(state: dict[str, Tensor], num_heads: int) -> dict[str, Tensor]:
    if any(bool(value.any()) for name, value in state.items() if "bias" in name):
        raise ValueError("there is no place for biases")
    result = {}
    for letter in "qkv":
        weight = state[f"{letter}_proj.weight"].unflatten(0, (num_heads, -1))
        result[f"w_{letter}"] = einsum("hkd->hdk", weight).contiguous()
    weight = state["out_proj.weight"].unflatten(1, (num_heads, -1))
    result["w_o"] = einsum("dhk->hkd", weight).contiguous()
    return result


# %% exercise="separate_to_torch"
def separate_to_torch(state: dict[str, Tensor]) -> dict[str, Tensor]:
    q, k, v, out = ("q_proj.", "k_proj.", "v_proj.", "out_proj.")
    return {
        "in_proj_weight": torch.vstack([state[f"{name}weight"] for name in (q, k, v)]),
        "in_proj_bias": torch.hstack([state[f"{name}bias"] for name in (q, k, v)]),
        "out_proj.weight": state[f"{out}weight"].clone(),
        "out_proj.bias": state[f"{out}bias"].clone(),
    }


# %% exercise="CrossAttention"
class CrossAttention(nn.Module):
    def __init__(self, query_dim: int, memory_dim: int, d_model: int, num_heads: int) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError("num_heads does not divide d_model")
        self.num_heads = num_heads
        self.q_proj = nn.Linear(query_dim, d_model)
        self.k_proj = nn.Linear(memory_dim, d_model)
        self.v_proj = nn.Linear(memory_dim, d_model)
        self.out_proj = nn.Linear(d_model, query_dim)

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor | None = None):
        def heads(y: Tensor) -> Tensor:
            return einsum("bthk->bhtk", y.unflatten(-1, (self.num_heads, -1)))

        mask = None if memory_mask is None else memory_mask[:, None, None]
        z, attn_weights = scaled_dot_product_attention(
            heads(self.q_proj(x)), heads(self.k_proj(memory)), heads(self.v_proj(memory)), mask
        )
        return self.out_proj(einsum("bhtk->bthk", z).flatten(2)), attn_weights
