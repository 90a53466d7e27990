"""The graders of `attention-self_attention`: right answers in any style earn full marks."""

from __future__ import annotations

import pytest

from autograder.sandbox.executor import Executor
from autograder.units.variants import (
    load_variant,
    source_of,
)
from tests.autograder.unit_graders import Styles, UnitGraders

UNIT = "attention-self_attention"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add


# Scaled dot-product attention ---------------------------------------------------------------------

REFUSE = """
def refuse(query, key, value):
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ValueError("sizes")
"""
style(
    "scaled_dot_product_attention",
    "einsum, queries scaled first, PyTorch's dropout",
    REFUSE
    + """
def scaled_dot_product_attention(query, key, value, mask=None, dropout=0.0, training=False):
    refuse(query, key, value)
    q = query * query.shape[-1] ** -0.5
    attn_weights = masked_softmax(torch.einsum("...qd,...kd->...qk", q, key), mask)
    used = nn.functional.dropout(attn_weights, dropout, training)
    return torch.einsum("...qk,...kd->...qd", used, value), attn_weights
""",
)
style(
    "scaled_dot_product_attention",
    "PyTorch's softmax over -inf, empty rows replaced",
    REFUSE
    + """
def scaled_dot_product_attention(query, key, value, mask=None, dropout=0.0, training=False):
    refuse(query, key, value)
    d_k = query.size(-1)
    scores = torch.matmul(query, key.mT).div(d_k**0.5)
    if mask is None:
        attn_weights = scores.softmax(-1)
    else:
        if mask.dtype != torch.bool:
            raise ValueError("bool")
        try:
            mask = mask.expand(scores.shape)
        except RuntimeError:
            raise ValueError("shape")
        empty = ~mask.any(-1, keepdim=True)
        attn_weights = (
            scores.masked_fill(~mask & ~empty, -torch.inf).softmax(-1).masked_fill(empty, 0.0)
        )
    if training and dropout:
        kept = torch.rand_like(attn_weights) > dropout
        return (attn_weights * kept / (1 - dropout)) @ value, attn_weights
    return attn_weights @ value, attn_weights
""",
)
style(
    "scaled_dot_product_attention",
    "a loop over the queries, a large negative number and zeros",
    REFUSE
    + """
def scaled_dot_product_attention(query, key, value, mask=None, dropout=0.0, training=False):
    refuse(query, key, value)
    shape = (*query.shape[:-1], key.shape[-2])
    if mask is not None:
        if mask.dtype != torch.bool:
            raise ValueError("bool")
        try:
            mask = mask.broadcast_to(shape)
        except RuntimeError:
            raise ValueError("shape")
    outputs, maps = [], []
    for i in range(query.shape[-2]):
        scores = (query[..., i : i + 1, :] * key).sum(-1) / math.sqrt(query.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask[..., i, :], -1e9)
        attn_weights = torch.softmax(scores, -1)
        if mask is not None:
            attn_weights = attn_weights * mask[..., i, :]
        used = attention_dropout(attn_weights, dropout, training)
        outputs.append((used.unsqueeze(-1) * value).sum(-2))
        maps.append(attn_weights)
    return torch.stack(outputs, -2), torch.stack(maps, -2)
""",
)

# Masks --------------------------------------------------------------------------------------------

style(
    "causal_mask",
    "a comparison of positions",
    """
def causal_mask(length):
    if type(length) is not int or length <= 0:
        raise ValueError("length")
    positions = torch.arange(length)
    return positions[None, :] <= positions[:, None]
""",
)
style(
    "causal_mask",
    "the upper triangle, inverted",
    """
def causal_mask(length):
    if not isinstance(length, int):
        raise ValueError("length")
    if length < 1:
        raise ValueError("length")
    return torch.triu(torch.ones(length, length), diagonal=1) == 0
""",
)
style(
    "causal_mask",
    "loops",
    """
def causal_mask(length):
    try:
        if length != int(length) or isinstance(length, (float, str)) or length < 1:
            raise ValueError
    except TypeError:
        raise ValueError("length")
    return torch.tensor([[j <= i for j in range(length)] for i in range(length)])
""",
)
style(
    "padding_mask",
    "loops",
    """
def padding_mask(lengths, max_length=None):
    if lengths.dtype.is_floating_point or lengths.dtype == torch.bool:
        raise ValueError("integers")
    longest = max(lengths.tolist()) if max_length is None else max_length
    mask = torch.zeros(len(lengths), 1, longest, dtype=torch.bool)
    for b, n in enumerate(lengths.tolist()):
        if n < 0 or n > longest:
            raise ValueError("length")
        mask[b, 0, :n] = True
    return mask
""",
)
style(
    "padding_mask",
    "expand and unsqueeze",
    """
def padding_mask(lengths, max_length=None):
    if lengths.dtype not in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8):
        raise ValueError("integers")
    if max_length is None:
        max_length = lengths.max().item()
    if (lengths < 0).any() or (lengths > max_length).any():
        raise ValueError("length")
    return (lengths.unsqueeze(1) > torch.arange(max_length).expand(len(lengths), -1)).unsqueeze(1)
""",
)
style(
    "decoder_mask",
    "its own comparison",
    """
def decoder_mask(lengths, max_length=None):
    real = padding_mask(lengths, max_length)
    T = real.size(2)
    return torch.logical_and(real, torch.ones(T, T).tril().bool().unsqueeze(0))
""",
)
style(
    "decoder_mask",
    "a stack over the examples",
    """
def decoder_mask(lengths, max_length=None):
    padding = padding_mask(lengths, max_length)
    rows = []
    for real in padding:
        rows.append(torch.ones(real.shape[1], real.shape[1], dtype=torch.bool).tril() * real)
    return torch.stack(rows)
""",
)

# Self-attention -----------------------------------------------------------------------------------

style(
    "SelfAttention",
    "einsum and masked_softmax",
    """
class SelfAttention(nn.Module):
    def __init__(self, input_dim, head_dim):
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self, name, nn.Linear(input_dim, head_dim, bias=False))

    def forward(self, x, mask=None):
        q, k, v = (getattr(self, name)(x) for name in ("q_proj", "k_proj", "v_proj"))
        scores = torch.einsum("bid,bjd->bij", q, k) / q.size(-1) ** 0.5
        attn_weights = masked_softmax(scores, mask)
        return torch.einsum("bij,bjd->bid", attn_weights, v), attn_weights
""",
)
style(
    "SelfAttention",
    "one product with the stacked weights",
    """
class SelfAttention(nn.Module):
    def __init__(self, input_dim, head_dim):
        super().__init__()
        self.scale = head_dim**-0.5
        self.q_proj = nn.Linear(input_dim, head_dim, bias=False)
        self.k_proj = nn.Linear(input_dim, head_dim, bias=False)
        self.v_proj = nn.Linear(input_dim, head_dim, bias=False)

    def forward(self, x, mask=None):
        stacked = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        q, k, v = nn.functional.linear(x, stacked).chunk(3, -1)
        scores = q @ k.mT * self.scale
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e9)
        attn_weights = scores.softmax(-1)
        if mask is not None:
            attn_weights = attn_weights * mask
        return attn_weights @ v, attn_weights
""",
)
style(
    "MaskedSelfAttention",
    "a subclass of SelfAttention",
    """
class MaskedSelfAttention(SelfAttention):
    def forward(self, x, padding_mask=None):
        mask = causal_mask(x.shape[1])
        if padding_mask is not None:
            mask = mask.unsqueeze(0) & padding_mask[:, None, :]
        return super().forward(x, mask)
""",
)
style(
    "MaskedSelfAttention",
    "a stored mask and zeros for a start",
    """
class MaskedSelfAttention(nn.Module):
    def __init__(self, input_dim, head_dim):
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self, name, nn.Linear(input_dim, head_dim, bias=False))
            nn.init.zeros_(getattr(self, name).weight)
        self.register_buffer("past", torch.ones(512, 512).tril() == 1)
        self.register_buffer("scale", torch.tensor(head_dim**-0.5), persistent=False)

    def forward(self, x, padding_mask=None):
        mask = self.past[: x.shape[1], : x.shape[1]]
        if padding_mask is not None:
            mask = mask & padding_mask[:, None]
        scores = self.q_proj(x) @ self.k_proj(x).mT * self.scale.to(x.dtype)
        weights = masked_softmax(scores, mask)
        return weights @ self.v_proj(x), weights
""",
)
style(
    "MaskedSelfAttention",
    "token by token over the prefix",
    """
class MaskedSelfAttention(nn.Module):
    def __init__(self, input_dim, head_dim):
        super().__init__()
        self.q_proj = nn.Linear(input_dim, head_dim, bias=False)
        self.k_proj = nn.Linear(input_dim, head_dim, bias=False)
        self.v_proj = nn.Linear(input_dim, head_dim, bias=False)

    def forward(self, x, padding_mask=None):
        batch, length, _ = x.shape
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if padding_mask is None:
            padding_mask = torch.ones(batch, length, dtype=torch.bool)
        outputs, rows = [], []
        for i in range(length):
            seen = slice(0, i + 1)
            scores = q[:, i : i + 1] @ k[:, seen].mT / math.sqrt(q.shape[-1])
            w = masked_softmax(scores, padding_mask[:, None, seen])
            outputs.append(w @ v[:, seen])
            rows.append(nn.functional.pad(w, (0, length - i - 1)))
        return torch.cat(outputs, 1), torch.cat(rows, 1)
""",
)


@pytest.mark.parametrize("seed", range(3))
def test_a_scale_kept_in_float32_is_right_for_float64_too(graders, seed):
    source = source_of(UNIT)
    assert source.count("/ math.sqrt(d_k)") == 1
    changed = source.replace("/ math.sqrt(d_k)", "/ torch.sqrt(torch.tensor(d_k))")
    namespace = load_variant(changed, "float32_scale")
    results = graders.run(Executor(namespace).execute, seed=seed, diagnose=False)
    assert {name: one.points for name, one in results.items()} == {
        name: one.max_points for name, one in results.items()
    }


class TestGraders(UnitGraders):
    unit = UNIT
    styles = STYLES
