"""The graders of `attention-multi_head`: right answers in any style earn full marks."""

from __future__ import annotations

from tests.autograder.unit_graders import Styles, UnitGraders

UNIT = "attention-multi_head"

# Right answers that look unlike the reference and unlike those in autograder/demo.
STYLES = Styles()
style = STYLES.add


# Heads --------------------------------------------------------------------------------------------

style(
    "split_heads",
    "chunk and stack",
    """
def split_heads(x, num_heads):
    if x.shape[-1] % num_heads:
        raise ValueError("heads")
    return torch.stack(x.chunk(num_heads, dim=-1), dim=1)
""",
)
style(
    "split_heads",
    "unflatten and permute",
    """
def split_heads(x, num_heads):
    head_dim, rest = divmod(x.shape[-1], num_heads)
    if rest != 0:
        raise ValueError("heads")
    return x.unflatten(-1, (num_heads, head_dim)).permute(0, 2, 1, 3).contiguous()
""",
)
style(
    "merge_heads",
    "cat of the heads",
    """
def merge_heads(x):
    return torch.cat([x[:, h] for h in range(x.shape[1])], dim=-1)
""",
)
style(
    "merge_heads",
    "permute and flatten",
    """
def merge_heads(x):
    return x.permute(0, 2, 1, 3).flatten(2).contiguous()
""",
)
style(
    "MultiHeadAttention",
    "a loop over slices of the weights, nn.Dropout",
    """
from given import masked_softmax

class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        self.head_dim, rest = divmod(d_model, num_heads)
        if rest:
            raise ValueError("heads")
        self.num_heads = num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        outputs, maps = [], []
        for h in range(self.num_heads):
            rows = slice(h * self.head_dim, (h + 1) * self.head_dim)
            q = nn.functional.linear(query, self.q_proj.weight[rows], self.q_proj.bias[rows])
            k = nn.functional.linear(key, self.k_proj.weight[rows], self.k_proj.bias[rows])
            v = nn.functional.linear(value, self.v_proj.weight[rows], self.v_proj.bias[rows])
            own = mask[:, h] if mask is not None and mask.dim() == 4 else mask
            attn_weights = masked_softmax(q @ k.transpose(1, 2) / math.sqrt(self.head_dim), own)
            outputs.append(self.drop(attn_weights) @ v)
            maps.append(attn_weights)
        return self.out_proj(torch.cat(outputs, dim=-1)), torch.stack(maps, dim=1)
""",
)
style(
    "MultiHeadAttention",
    "einsum, the mask added as 0 and a large negative number, then zeros",
    """
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("heads")
        self.h, self.p = num_heads, dropout
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(d_model, d_model) for _ in range(4)
        )

    def forward(self, query, key, value, mask=None):
        q = self.q_proj(query).unflatten(-1, (self.h, -1))
        k = self.k_proj(key).unflatten(-1, (self.h, -1))
        v = self.v_proj(value).unflatten(-1, (self.h, -1))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        if mask is not None:
            if mask.dim() == 2:
                mask = mask[None, None]
            elif mask.dim() == 3:
                mask = mask[:, None]
            scores = scores + torch.where(mask, 0.0, -1e9).to(scores.dtype)
        attn_weights = scores.softmax(-1)
        if mask is not None:
            attn_weights = attn_weights * mask
        used = nn.functional.dropout(attn_weights, self.p, self.training)
        joined = torch.einsum("bhqk,bkhd->bqhd", used, v).flatten(2)
        return self.out_proj(joined), attn_weights
""",
)
style(
    "MultiHeadAttention",
    "heads folded into the batch",
    """
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        if d_model % num_heads != 0:
            raise ValueError("heads")
        self.num_heads, self.dropout = num_heads, dropout
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            self.add_module(name, nn.Linear(d_model, d_model))

    def fold(self, x):
        return split_heads(x, self.num_heads).flatten(0, 1)

    def forward(self, query, key, value, mask=None):
        B, Tq, D = query.shape
        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        q, k, v = map(self.fold, (q, k, v))
        if mask is not None:
            mask = mask.unsqueeze(1) if mask.dim() == 3 else mask
            mask = mask.broadcast_to(B, self.num_heads, Tq, key.shape[1]).flatten(0, 1)
        out, attn_weights = scaled_dot_product_attention(q, k, v, mask, self.dropout, self.training)
        out = merge_heads(out.unflatten(0, (B, self.num_heads)))
        return self.out_proj(out), attn_weights.unflatten(0, (B, self.num_heads))
""",
)

# Layouts ------------------------------------------------------------------------------------------

style(
    "FusedMultiHeadAttention",
    "reshape to (B, T, H, 3, Dh)",
    """
class FusedMultiHeadAttention(nn.Module):
    def __init__(self, input_dim, d_model, num_heads):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("heads")
        self.num_heads, self.embed_dim = num_heads, d_model
        self.qkv_proj = nn.Linear(input_dim, 3 * d_model)
        self.o_proj = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        B, T, _ = x.shape
        qkv = self.qkv_proj(x).reshape(B, T, self.num_heads, 3, -1).permute(3, 0, 2, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        if mask is not None and mask.ndim == 3:
            mask = mask[:, None]
        out, attn_weights = scaled_dot_product_attention(q, k, v, mask)
        return self.o_proj(out.transpose(1, 2).reshape(B, T, self.embed_dim)), attn_weights
""",
)
style(
    "FusedMultiHeadAttention",
    "three slices of the weight per head",
    """
class FusedMultiHeadAttention(nn.Module):
    def __init__(self, input_dim, d_model, num_heads):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("heads")
        self.num_heads, self.width = num_heads, d_model // num_heads
        self.qkv_proj = nn.Linear(input_dim, 3 * d_model)
        self.o_proj = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        projected = self.qkv_proj(x)
        outputs, maps = [], []
        for h in range(self.num_heads):
            block = slice(3 * h * self.width, 3 * (h + 1) * self.width)
            q, k, v = projected[..., block].split(self.width, -1)
            own = mask
            if mask is not None and mask.dim() == 4:
                own = mask[:, h]
            out, attn_weights = scaled_dot_product_attention(q, k, v, own)
            outputs.append(out)
            maps.append(attn_weights)
        return self.o_proj(torch.cat(outputs, -1)), torch.stack(maps, 1)
""",
)
style(
    "PerHeadAttention",
    "a loop over the heads",
    """
class PerHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("heads")
        width = d_model // num_heads
        self.w_q = nn.Parameter(torch.randn(num_heads, d_model, width))
        self.w_k = nn.Parameter(torch.randn(num_heads, d_model, width))
        self.w_v = nn.Parameter(torch.randn(num_heads, d_model, width))
        self.w_o = nn.Parameter(torch.randn(num_heads, width, d_model))

    def forward(self, query, key, value, mask=None):
        output, maps = torch.zeros_like(query), []
        for h in range(len(self.w_q)):
            own = mask[:, h] if mask is not None and mask.dim() == 4 else mask
            z, attn_weights = scaled_dot_product_attention(
                query @ self.w_q[h], key @ self.w_k[h], value @ self.w_v[h], own
            )
            output = output + z @ self.w_o[h]
            maps.append(attn_weights)
        return output, torch.stack(maps, dim=1)
""",
)
style(
    "PerHeadAttention",
    "einsum, heads joined and one output product",
    """
class PerHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        if d_model % num_heads != 0:
            raise ValueError("heads")
        shape = (num_heads, d_model, d_model // num_heads)
        self.w_q, self.w_k, self.w_v = (nn.Parameter(torch.rand(shape)) for _ in range(3))
        self.w_o = nn.Parameter(torch.rand(shape).transpose(1, 2).contiguous())

    def forward(self, query, key, value, mask=None):
        q, k, v = (
            torch.einsum("btd,hde->bhte", x, w)
            for x, w in ((query, self.w_q), (key, self.w_k), (value, self.w_v))
        )
        if mask is not None:
            mask = {2: mask[None, None], 3: mask[:, None], 4: mask}[mask.dim()]
        z, attn_weights = scaled_dot_product_attention(q, k, v, mask)
        return merge_heads(z) @ self.w_o.flatten(0, 1), attn_weights
""",
)
style(
    "separate_to_fused",
    "a loop over the heads",
    """
def separate_to_fused(state, num_heads):
    width = len(state["q_proj.bias"]) // num_heads
    weights, biases = [], []
    for h in range(num_heads):
        for name in ("q_proj", "k_proj", "v_proj"):
            weights.append(state[name + ".weight"][h * width : (h + 1) * width])
            biases.append(state[name + ".bias"][h * width : (h + 1) * width])
    return {
        "o_proj.weight": state["out_proj.weight"],
        "o_proj.bias": state["out_proj.bias"],
        "qkv_proj.weight": torch.cat(weights),
        "qkv_proj.bias": torch.cat(biases),
    }
""",
)
style(
    "separate_to_fused",
    "rows picked by an index",
    """
def separate_to_fused(state, num_heads):
    stacked = {
        kind: torch.cat([state[f"{name}_proj.{kind}"] for name in "qkv"])
        for kind in ("weight", "bias")
    }
    total = len(stacked["bias"])
    order = torch.arange(total).view(3, num_heads, -1).transpose(0, 1).flatten()
    result = {f"qkv_proj.{kind}": tensor[order] for kind, tensor in stacked.items()}
    result |= {f"o_proj.{kind}": state[f"out_proj.{kind}"].clone() for kind in stacked}
    return result
""",
)
style(
    "separate_to_per_head",
    "slices",
    """
def separate_to_per_head(state, num_heads):
    for name in state:
        if "bias" in name and bool((state[name] != 0).any()):
            raise ValueError(name)
    size = state["q_proj.weight"].shape[0] // num_heads
    blocks = [slice(h * size, (h + 1) * size) for h in range(num_heads)]
    result = {
        f"w_{n}": torch.stack([state[f"{n}_proj.weight"][rows].T for rows in blocks]) for n in "qkv"
    }
    result["w_o"] = torch.stack([state["out_proj.weight"][:, columns].T for columns in blocks])
    return result
""",
)
style(
    "separate_to_per_head",
    "views and permutations",
    """
def separate_to_per_head(state, num_heads):
    for n in ("q", "k", "v", "out"):
        if state.get(f"{n}_proj.bias", torch.zeros(1)).abs().max() > 0:
            raise ValueError("bias")
    D = state["q_proj.weight"].shape[1]
    new = {}
    for n in ("q", "k", "v"):
        weight = state[n + "_proj.weight"]
        new["w_" + n] = weight.reshape(num_heads, D // num_heads, D).permute(0, 2, 1)
    new["w_o"] = state["out_proj.weight"].reshape(D, num_heads, D // num_heads).permute(1, 2, 0)
    return new
""",
)
style(
    "separate_to_torch",
    "vstack and hstack",
    """
def separate_to_torch(state):
    new = {name: state[name] for name in ("out_proj.weight", "out_proj.bias")}
    new["in_proj_weight"] = torch.vstack([state[f"{n}_proj.weight"] for n in "qkv"])
    new["in_proj_bias"] = torch.hstack([state[f"{n}_proj.bias"] for n in "qkv"])
    return new
""",
)
style(
    "separate_to_torch",
    "filled row by row",
    """
def separate_to_torch(state):
    from collections import OrderedDict

    D = state["q_proj.weight"].shape[0]
    weight = state["q_proj.weight"].new_empty(3 * D, D)
    bias = state["q_proj.bias"].new_empty(3 * D)
    for i, n in enumerate(("q_proj", "k_proj", "v_proj")):
        weight[i * D : (i + 1) * D] = state[n + ".weight"]
        bias[i * D : (i + 1) * D] = state[n + ".bias"]
    return OrderedDict(
        [
            ("in_proj_weight", weight),
            ("in_proj_bias", bias),
            ("out_proj.weight", state["out_proj.weight"].clone()),
            ("out_proj.bias", state["out_proj.bias"].clone()),
        ]
    )
""",
)
style(
    "CrossAttention",
    "einsum",
    """
from given import masked_softmax


class CrossAttention(nn.Module):
    def __init__(self, query_dim, memory_dim, d_model, num_heads):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("heads")
        self.h = num_heads
        self.q_proj = nn.Linear(query_dim, d_model)
        self.k_proj, self.v_proj = (nn.Linear(memory_dim, d_model) for _ in range(2))
        self.out_proj = nn.Linear(d_model, query_dim)

    def forward(self, x, memory, memory_mask=None):
        q = self.q_proj(x).unflatten(2, (self.h, -1))
        k = self.k_proj(memory).unflatten(2, (self.h, -1))
        v = self.v_proj(memory).unflatten(2, (self.h, -1))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
        if memory_mask is not None:
            memory_mask = memory_mask.view(len(x), 1, 1, -1)
        attn_weights = masked_softmax(scores, memory_mask)
        return self.out_proj(
            torch.einsum("bhqk,bkhd->bqhd", attn_weights, v).flatten(2)
        ), attn_weights
""",
)
style(
    "CrossAttention",
    "a loop over examples and heads",
    """
class CrossAttention(nn.Module):
    def __init__(self, query_dim, memory_dim, d_model, num_heads):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("heads")
        self.num_heads = num_heads
        self.q_proj = nn.Linear(query_dim, d_model)
        self.k_proj = nn.Linear(memory_dim, d_model)
        self.v_proj = nn.Linear(memory_dim, d_model)
        self.out_proj = nn.Linear(d_model, query_dim)

    def forward(self, x, memory, memory_mask=None):
        outputs, maps = [], []
        for b in range(len(x)):
            heads = zip(*(
                layer(source[b]).chunk(self.num_heads, -1)
                for layer, source in
                ((self.q_proj, x), (self.k_proj, memory), (self.v_proj, memory))
            ))
            mask = None if memory_mask is None else memory_mask[b]
            parts = [scaled_dot_product_attention(q, k, v, mask) for q, k, v in heads]
            outputs.append(torch.cat([output for output, _ in parts], -1))
            maps.append(torch.stack([attn_weights for _, attn_weights in parts]))
        return self.out_proj(torch.stack(outputs)), torch.stack(maps)
""",
)


class TestGraders(UnitGraders):
    unit = UNIT
    styles = STYLES
