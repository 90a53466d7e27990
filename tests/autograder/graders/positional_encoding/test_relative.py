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
            if mask.dim() == 3:
                mask = mask.unsqueeze(1)
            try:
                scores = scores + torch.zeros_like(scores).masked_fill(~mask, -1e9)
            except RuntimeError:
                raise ValueError("shape")
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
