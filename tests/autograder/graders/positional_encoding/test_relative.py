"""The graders of `positional_encoding-relative`: right answers in any style earn full marks."""

from __future__ import annotations

import pytest

from autograder.sandbox.executor import Executor
from autograder.units.variants import (
    reference_namespace,
)
from tests.autograder.graders.positional_encoding.common import PositionalGraders
from tests.autograder.unit_graders import Styles

UNIT = "positional_encoding-relative"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add


style(
    "LearnedPositions",
    "the table looked up, zeros at first",
    """
class LearnedPositions(nn.Module):
    def __init__(self, max_length, d_model):
        super().__init__()
        self.max_length, self.d_model = max_length, d_model
        self.table = nn.Embedding(max_length, d_model)
        nn.init.zeros_(self.table.weight)

    def forward(self, x):
        if x.shape[1] > self.max_length or x.shape[2] != self.d_model:
            raise ValueError("shape")
        return x + self.table(torch.arange(x.shape[1]))
""",
)
style(
    "relative_indices",
    "minimum and maximum of lists",
    """
def relative_indices(length, max_distance):
    if length < 1 or max_distance < 0:
        raise ValueError("size")
    k, places = max_distance, range(length)
    return torch.tensor([[min(max(j - i, -k), k) + k for j in places] for i in places])
""",
)
style(
    "relative_indices",
    "sums of triangles",
    """
def relative_indices(length, max_distance):
    if length < 1 or max_distance < 0:
        raise ValueError("size")
    total = torch.zeros(length, length, dtype=torch.int64)
    ones = torch.ones(length, length, dtype=torch.int64)
    for step in range(-max_distance + 1, max_distance + 1):
        total += ones.triu(step)
    return total
""",
)
style(
    "RelativeSelfAttention",
    "offsets added to keys and values, -inf where no row is empty",
    """
class RelativeSelfAttention(nn.Module):
    def __init__(self, d_model, num_heads, max_distance):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("heads")
        self.h, self.dh, self.k = num_heads, d_model // num_heads, max_distance
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, nn.Linear(d_model, d_model))
        self.key_offsets = nn.Parameter(torch.zeros(2 * max_distance + 1, self.dh))
        self.value_offsets = nn.Parameter(torch.zeros(2 * max_distance + 1, self.dh))

    def forward(self, x, mask=None):
        B, T, D = x.shape
        if D != self.h * self.dh:
            raise ValueError("width")
        q, k, v = (
            f(x).reshape(B, T, self.h, self.dh).permute(0, 2, 1, 3)
            for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        index = relative_indices(T, self.k)
        keys = k.unsqueeze(2) + self.key_offsets[index]
        values = v.unsqueeze(2) + self.value_offsets[index]
        scores = (q.unsqueeze(3) * keys).sum(-1) / math.sqrt(self.dh)
        empty = None
        if mask is not None:
            if mask.dtype != torch.bool:
                raise ValueError("bool")
            try:
                mask = torch.broadcast_to(mask, (B, T, T)).unsqueeze(1)
            except RuntimeError as error:
                raise ValueError("shape") from error
            empty = ~mask.any(-1, keepdim=True)
            scores = scores.masked_fill(~(mask | empty), -torch.inf)
        attn_weights = torch.softmax(scores, -1)
        if empty is not None:
            attn_weights = attn_weights.masked_fill(empty, 0.0)
        z = (attn_weights.unsqueeze(-1) * values).sum(-2)
        return self.out_proj(z.permute(0, 2, 1, 3).reshape(B, T, D)), attn_weights
""",
)
style(
    "RelativeSelfAttention",
    "query times every offset once, then picked",
    """
class RelativeSelfAttention(nn.Module):
    def __init__(self, d_model, num_heads, max_distance):
        super().__init__()
        if d_model % num_heads != 0:
            raise ValueError("heads")
        self.num_heads, self.max_distance = num_heads, max_distance
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        shape = 2 * max_distance + 1, d_model // num_heads
        self.key_offsets = nn.Parameter(torch.randn(shape))
        self.value_offsets = nn.Parameter(torch.randn(shape))

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, x, mask=None):
        B, T, D = x.shape
        if D != self.q_proj.weight.shape[1]:
            raise ValueError("width")
        q = self.split(self.q_proj(x)) / math.sqrt(D // self.num_heads)
        k, v = self.split(self.k_proj(x)), self.split(self.v_proj(x))
        index = relative_indices(T, self.max_distance).expand(B, self.num_heads, T, T)
        scores = q @ k.mT + torch.gather(q @ self.key_offsets.T, 3, index)
        if mask is not None:
            if mask.dtype != torch.bool or mask.dim() > 3:
                raise ValueError("bool")
            if any(m not in (1, n) for m, n in zip(mask.shape[::-1], (T, T, B))):
                raise ValueError("shape")
            if mask.dim() == 3:
                mask = mask.unsqueeze(1)
            scores = scores + torch.zeros_like(scores).masked_fill(~mask, -1e9)
        attn_weights = scores.softmax(3)
        if mask is not None:
            attn_weights = attn_weights * mask
        near = torch.nn.functional.one_hot(index[0, 0], len(self.value_offsets)).to(x.dtype)
        shares = torch.einsum("bhij,ijr->bhir", attn_weights, near)
        z = attn_weights @ v + shares @ self.value_offsets
        return self.out_proj(z.transpose(1, 2).flatten(2)), attn_weights
""",
)
style(
    "LearnedPositions",
    "a product with one-hot rows",
    """
class LearnedPositions(nn.Module):
    def __init__(self, max_length, d_model):
        super().__init__()
        self.add_module("table", nn.Embedding(max_length, d_model))

    def forward(self, x):
        n, d = self.table.weight.shape
        if x.size(1) > n or x.size(2) != d:
            raise ValueError
        pick = torch.eye(n, dtype=x.dtype)[: x.size(1)]
        return torch.baddbmm(
            x, pick.expand(len(x), -1, -1), self.table.weight.expand(len(x), -1, -1)
        )
""",
)
style(
    "relative_indices",
    "NumPy",
    """
import numpy as np


def relative_indices(length, max_distance):
    if length < 1 or max_distance < 0:
        raise ValueError
    i, j = np.indices((length, length))
    return torch.from_numpy(np.clip(j - i, -max_distance, max_distance) + max_distance)
""",
)
style(
    "RelativeSelfAttention",
    "a loop over the heads, sqrt of a tensor",
    """
class RelativeSelfAttention(nn.Module):
    def __init__(self, d_model, num_heads, max_distance):
        super().__init__()
        if d_model % num_heads:
            raise ValueError
        self.h, self.k, self.d = num_heads, max_distance, d_model // num_heads
        for n in "vkq":
            self.add_module(n + "_proj", nn.Linear(d_model, d_model))
        self.out_proj = nn.Linear(d_model, d_model)
        for n in ("value", "key"):
            self.register_parameter(
                n + "_offsets", nn.Parameter(torch.zeros(2 * max_distance + 1, self.d))
            )
        self.scale = torch.sqrt(torch.tensor(self.d, dtype=torch.float32))

    def forward(self, x, mask=None):
        if x.shape[-1] != self.h * self.d:
            raise ValueError
        B, T, _ = x.shape
        m = torch.ones(B, T, T, dtype=torch.bool) if mask is None else mask
        if m.dtype != torch.bool:
            raise ValueError
        try:
            m = m.expand(B, T, T)
        except RuntimeError as e:
            raise ValueError(str(e))
        idx = relative_indices(T, self.k)
        outs, ws = [], []
        for q, k, v in zip(
            *(p(x).split(self.d, -1) for p in (self.q_proj, self.k_proj, self.v_proj))
        ):
            kk = k[:, None] + self.key_offsets[idx]
            vv = v[:, None] + self.value_offsets[idx]
            s = (q[:, :, None] * kk).sum(-1) / self.scale
            s = s.masked_fill(~m, -1e9)
            w = torch.softmax(s, -1) * m
            ws.append(w)
            outs.append((w[..., None] * vv).sum(2))
        return [self.out_proj(torch.cat(outs, -1)), torch.stack(ws, 1)]
""",
)
style(
    "RelativeSelfAttention",
    "one-hot distances, a softmax by hand",
    """
class RelativeSelfAttention(nn.Module):
    def __init__(self, d_model, num_heads, max_distance):
        super().__init__()
        if d_model // num_heads * num_heads != d_model:
            raise ValueError
        self.cfg = dict(d=d_model, h=num_heads, k=max_distance)
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(d_model, d_model) for _ in range(4)
        )
        self.key_offsets, self.value_offsets = (
            nn.Parameter(torch.empty(2 * max_distance + 1, d_model // num_heads).normal_())
            for _ in "kv"
        )

    def forward(self, x, mask=None):
        d, h, n = self.cfg["d"], self.cfg["h"], self.cfg["k"]
        if x.size(2) != d:
            raise ValueError
        B, T = x.shape[:2]
        if mask is not None:
            if mask.dtype is not torch.bool:
                raise ValueError
            if mask.dim() > 3 or any(
                a not in (1, b) for a, b in zip(reversed(mask.shape), (T, T, B))
            ):
                raise ValueError
        q, k, v = (
            nn.functional.linear(x, p.weight, p.bias).reshape(B, T, h, d // h)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        R = nn.functional.one_hot(relative_indices(T, n), 2 * n + 1).to(x.dtype)
        s = torch.einsum("bihd,bjhd->bhij", q, k) + torch.einsum(
            "bihd,rd,ijr->bhij", q, self.key_offsets, R
        )
        s = s * (d // h) ** -0.5
        keep = (
            torch.ones(B, T, T, dtype=x.dtype)
            if mask is None
            else mask.to(x.dtype).broadcast_to(B, T, T)
        )
        s = s.masked_fill(keep[:, None] == 0, torch.finfo(s.dtype).min)
        e = torch.exp(s - s.amax(-1, keepdim=True).detach()) * keep[:, None]
        total = e.sum(-1, keepdim=True)
        w = e / torch.where(total > 0, total, torch.ones_like(total))
        z = torch.einsum("bhij,bjhd->bihd", w, v) + torch.einsum(
            "bhij,ijr,rd->bihd", w, R, self.value_offsets
        )
        return self.out_proj(z.reshape(B, T, d)), w
""",
)

style(
    "RotaryEmbedding",
    "rotate_half and a cache that grows, as in Hugging Face's LLaMA",
    """
def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def rotate_every_two(x):
    x1 = x[..., ::2]
    x2 = x[..., 1::2]
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


class RotaryEmbedding(nn.Module):
    def __init__(self, head_dim, base=10000.0, interleaved=False):
        super().__init__()
        if head_dim % 2:
            raise ValueError("head_dim must be even")
        self.dim, self.base, self.interleaved = head_dim, base, interleaved

    @torch.no_grad()
    def tables(self, position_ids):
        inv_freq = 1.0 / (self.base ** (torch.arange(0, self.dim, 2, dtype=torch.float) / self.dim))
        freqs = position_ids[..., None].float() * inv_freq
        return freqs.cos(), freqs.sin()

    def forward(self, x, position_ids=None):
        if x.shape[-1] != self.dim:
            raise ValueError("width")
        if position_ids is None:
            position_ids = torch.arange(x.shape[-2])
        cos, sin = self.tables(position_ids)
        cos, sin = cos.to(dtype=x.dtype), sin.to(dtype=x.dtype)
        if self.interleaved:
            cos, sin = (torch.repeat_interleave(t, 2, -1) for t in (cos, sin))
            return x * cos + rotate_every_two(x) * sin
        cos, sin = (torch.cat((t, t), dim=-1) for t in (cos, sin))
        return x * cos + rotate_half(x) * sin
""",
)
style(
    "RotaryEmbedding",
    "complex numbers, as in Meta's LLaMA",
    """
class RotaryEmbedding(nn.Module):
    def __init__(self, head_dim, base=10000.0, interleaved=False):
        super().__init__()
        if head_dim % 2 == 1:
            raise ValueError(f"{head_dim} is odd")
        self.head_dim, self.theta, self.interleaved = head_dim, base, interleaved
        order = torch.arange(head_dim)
        if not interleaved:
            order = order.view(2, -1).T.flatten()
        self.register_buffer("order", order, persistent=False)
        self.register_buffer("back", order.argsort(), persistent=False)

    def freqs_cis(self, position_ids):
        freqs = 1.0 / self.theta ** (torch.arange(0, self.head_dim, 2).double() / self.head_dim)
        freqs = position_ids.unsqueeze(-1) * freqs
        return torch.polar(torch.ones_like(freqs), freqs)

    def tables(self, position_ids):
        cis = self.freqs_cis(position_ids).to(torch.complex64)
        return cis.real, cis.imag

    def forward(self, x, position_ids=None):
        if x.shape[-1] != self.head_dim:
            raise ValueError(x.shape)
        if position_ids is None:
            position_ids = torch.arange(x.shape[-2])
        wide = x[..., self.order].double().reshape(*x.shape[:-1], -1, 2)
        out = torch.view_as_real(torch.view_as_complex(wide) * self.freqs_cis(position_ids))
        return out.flatten(-2)[..., self.back].type_as(x)
""",
)
style(
    "RotaryEmbedding",
    "a cache built at the first call and stacked pairs, as in torchtune",
    """
class RotaryEmbedding(nn.Module):
    def __init__(self, head_dim, base=10000.0, interleaved=False, max_seq_len=64):
        super().__init__()
        if head_dim % 2 != 0:
            raise ValueError("head_dim")
        self.dim, self.base, self.interleaved = head_dim, base, interleaved
        self.length = 0
        self.build(max_seq_len)

    def build(self, length):
        exponent = torch.arange(0, self.dim, 2)[: self.dim // 2].float() / self.dim
        theta = 1.0 / (self.base**exponent)
        angles = torch.einsum("i,j->ij", torch.arange(length, dtype=theta.dtype), theta)
        self.cache, self.length = torch.stack([angles.cos(), angles.sin()], dim=-1), length

    def lookup(self, position_ids):
        need = int(position_ids.max()) + 1
        if need > self.length:
            self.build(2 * need)
        return self.cache[position_ids]

    def tables(self, position_ids):
        both = self.lookup(position_ids)
        return both[..., 0], both[..., 1]

    def forward(self, x, position_ids=None):
        if x.shape[-1] != self.dim:
            raise ValueError("width")
        if position_ids is None:
            position_ids = torch.arange(x.shape[-2])
        rope = self.lookup(position_ids)
        if self.interleaved:
            xs = x.reshape(*x.shape[:-1], -1, 2)
        else:
            xs = torch.stack(x.split(self.dim // 2, -1), -1)
        if x.dtype == torch.bfloat16:
            xs = xs.float()
        out = torch.stack(
            [
                xs[..., 0] * rope[..., 0] - xs[..., 1] * rope[..., 1],
                xs[..., 1] * rope[..., 0] + xs[..., 0] * rope[..., 1],
            ],
            -1,
        )
        out = out.flatten(-2) if self.interleaved else torch.cat(out.unbind(-1), -1)
        return out.type_as(x)
""",
)
style(
    "RotaryEmbedding",
    "a rotation matrix for every position, and einsum",
    """
class RotaryEmbedding(nn.Module):
    def __init__(self, head_dim, base=10000.0, interleaved=False):
        super().__init__()
        if head_dim & 1:
            raise ValueError("odd")
        self.n, self.neighbours = head_dim, interleaved
        self.omega = [math.exp(-math.log(base) * 2 * i / head_dim) for i in range(head_dim // 2)]

    def tables(self, position_ids):
        angle = position_ids.double()[..., None] * torch.tensor(self.omega, dtype=torch.float64)
        return torch.cos(angle).to(torch.float32), torch.sin(angle).to(torch.float32)

    def forward(self, x, position_ids=None):
        if x.shape[-1] != self.n:
            raise ValueError("n")
        if position_ids is None:
            position_ids = torch.arange(x.shape[-2])
        cos, sin = self.tables(position_ids)
        first = torch.arange(0, self.n, 2) if self.neighbours else torch.arange(self.n // 2)
        second = first + (1 if self.neighbours else self.n // 2)
        R = torch.zeros(*position_ids.shape, self.n, self.n)
        R[..., first, first] = cos
        R[..., second, second] = cos
        R[..., first, second] = -sin
        R[..., second, first] = sin
        wide = torch.promote_types(x.dtype, torch.float32)
        return torch.einsum("...ij,...j->...i", R.to(wide), x.to(wide)).to(x.dtype)
""",
)
style(
    "RotaryEmbedding",
    "written into an empty tensor, as in xformers",
    """
class RotaryEmbedding(nn.Module):
    def __init__(self, head_dim: int, base=10000.0, interleaved=False, *_, **__):
        super().__init__()
        if head_dim % 2:
            raise ValueError
        self._interleaved = interleaved
        self._inverse = base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / -head_dim)

    def tables(self, position_ids):
        t = position_ids.to(torch.float32)
        freqs = torch.einsum("...i,j->...ij", t, self._inverse)
        return freqs.cos(), freqs.sin()

    def forward(self, x, position_ids=None):
        width = 2 * len(self._inverse)
        if x.size(-1) != width:
            raise ValueError
        if position_ids is None:
            position_ids = torch.arange(x.size(-2), dtype=torch.int64)
        one = slice(0, None, 2) if self._interleaved else slice(0, width // 2)
        two = slice(1, None, 2) if self._interleaved else slice(width // 2, None)
        cos, sin = self.tables(position_ids)
        out = torch.empty_like(x)
        out[..., one] = (x[..., one] * cos - x[..., two] * sin).to(x.dtype)
        out[..., two] = (x[..., two] * cos + x[..., one] * sin).to(x.dtype)
        return out
""",
)
style(
    "alibi_biases",
    "slopes as in BLOOM, distances of both sides",
    """
def get_slopes(num_heads):
    closest = 2 ** math.floor(math.log2(num_heads))
    base = torch.tensor(2 ** (-(2 ** -(math.log2(closest) - 3))), dtype=torch.float32)
    slopes = torch.pow(base, torch.arange(1, 1 + closest, dtype=torch.int32))
    if closest != num_heads:
        extra = torch.tensor(2 ** (-(2 ** -(math.log2(2 * closest) - 3))), dtype=torch.float32)
        rest = min(closest, num_heads - closest)
        powers = torch.arange(1, 1 + 2 * rest, 2, dtype=torch.int32)
        slopes = torch.cat([slopes, torch.pow(extra, powers)], dim=0)
    return slopes


def alibi_biases(num_heads, length):
    if num_heads < 1 or length < 1:
        raise ValueError("too few")
    t = torch.arange(length)
    distance = torch.maximum(t[:, None], t[None, :]) - torch.minimum(t[:, None], t[None, :])
    return -get_slopes(num_heads).view(-1, 1, 1) * distance
""",
)
style(
    "alibi_biases",
    "slopes as in MPT, a Toeplitz matrix by index",
    """
def alibi_biases(num_heads, length):
    if num_heads <= 0:
        raise ValueError("num_heads")
    if length <= 0:
        raise ValueError("length")
    n = 2 ** math.ceil(math.log2(num_heads))
    slopes = 1.0 / torch.pow(2, torch.arange(1, n + 1).float() * (8 / n))
    if n != num_heads:
        slopes = torch.concat([slopes[1::2], slopes[::2]])[:num_heads]
    line = torch.arange(length - 1, -length, -1).abs()
    index = torch.arange(length)[:, None] - torch.arange(length)[None, :] + length - 1
    return torch.outer(slopes, -line.float())[:, index]
""",
)
style(
    "alibi_biases",
    "a list of heads, NumPy for the distances",
    """
import numpy as np


def alibi_biases(num_heads, length):
    if not (num_heads >= 1 and length >= 1):
        raise ValueError

    def slopes(n):
        if n & (n - 1) == 0:
            return [2 ** (-8 * k / n) for k in range(1, n + 1)]
        m = 1 << n.bit_length() - 1
        return slopes(m) + slopes(2 * m)[0::2][: n - m]

    i, j = np.indices((length, length))
    heads = [-m * np.abs(i - j) for m in slopes(num_heads)]
    return torch.from_numpy(np.stack(heads).astype(np.float32))
""",
)
style(
    "alibi_biases",
    "sums of triangles",
    """
def alibi_biases(num_heads, length):
    if num_heads < 1 or length < 1:
        raise ValueError("sizes")
    steps = torch.zeros(length, length)
    for k in range(1, length):
        steps -= torch.ones(length, length).triu(k) + torch.ones(length, length).tril(-k)
    n = 1
    while 2 * n <= num_heads:
        n *= 2
    exponents = [8 / n * k for k in range(1, n + 1)] + [4 / n * k for k in range(1, 2 * n, 2)]
    return torch.stack([steps / 2**e for e in exponents[:num_heads]])
""",
)


@pytest.mark.parametrize(
    ("exercise", "source", "name"),
    [
        (
            "relative_indices",
            """
def relative_indices(length, max_distance):
    if length < 1 or max_distance < 0:
        raise ValueError
    i = torch.arange(length)
    return (i.view(-1, 1) - i).clip(-max_distance, max_distance) + max_distance
""",
            "indices_i_minus_j",
        ),
    ],
)
def test_a_mistake_in_code_of_its_own_is_named(graders, exercise, source, name):
    namespace = dict(reference_namespace(UNIT))
    exec(source, namespace)
    result = graders.run(Executor(namespace).execute, exercises=[exercise])[exercise]
    assert result.points < result.max_points
    assert result.misconception == name


class TestGraders(PositionalGraders):
    unit = UNIT
    styles = STYLES
