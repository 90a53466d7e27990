"""The graders of `attention`: every legitimate style earns full marks, known mistakes don't."""

from __future__ import annotations

import pytest

from autograder.sandbox.executor import Executor
from autograder.units.variants import load_variant, reference_namespace, source_of
from tests.autograder.chapter_graders import ChapterGraders, Styles

CHAPTER = "attention"

STYLES = Styles()
style = STYLES.add


# The four score functions ---------------------------------------------------------------------

style(
    "DotScore",
    "einsum and torch.where",
    """
class DotScore(nn.Module):
    def forward(self, query, key, mask=None):
        if query.size(2) != key.size(2):
            raise ValueError("widths")
        scores = torch.einsum("bqd,bkd->bqk", query, key)
        if mask is None:
            return scores
        return torch.where(mask, scores, torch.tensor(-math.inf, dtype=scores.dtype))
""",
)
style(
    "DotScore",
    "loops",
    """
class DotScore(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, query, key, mask=None):
        B, Tq, D = query.shape
        Tk = key.shape[1]
        if key.shape[2] != D:
            raise ValueError("widths")
        rows = []
        for b in range(B):
            for i in range(Tq):
                rows.append(torch.stack([(query[b, i] * key[b, j]).sum() for j in range(Tk)]))
        scores = torch.stack(rows).view(B, Tq, Tk)
        if mask is not None:
            allowed = mask.expand(B, Tq, Tk)
            scores[~allowed] = float("-inf")
        return scores
""",
)
style(
    "DotScore",
    "an additive mask of 0 and -inf, torch.bmm",
    """
class DotScore(nn.Module):
    def forward(self, query, key, mask=None):
        if query.shape[-1] != key.shape[-1]:
            raise ValueError("widths")
        scores = torch.bmm(query, key.permute(0, 2, 1))
        if mask is not None:
            bias = torch.zeros(mask.shape, dtype=scores.dtype)
            scores = scores + bias.masked_fill(mask.logical_not(), -torch.inf)
        return scores
""",
)
style(
    "BilinearScore",
    "the key projected first, Xavier",
    """
class BilinearScore(nn.Module):
    def __init__(self, query_dim, key_dim):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(query_dim, key_dim))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, query, key, mask=None):
        projected = nn.functional.linear(key, self.weight)
        scores = torch.matmul(query, projected.mT)
        return scores if mask is None else torch.where(mask, scores, -math.inf)
""",
)
style(
    "BilinearScore",
    "one einsum",
    """
class BilinearScore(nn.Module):
    def __init__(self, query_dim, key_dim):
        super().__init__()
        self.register_parameter("weight", nn.Parameter(torch.zeros(query_dim, key_dim)))

    def forward(self, query, key, mask=None):
        scores = torch.einsum("bia,ac,bjc->bij", query, self.weight, key)
        if mask is not None:
            scores = scores.masked_fill(mask == False, float("-inf"))
        return scores
""",
)
style(
    "AdditiveScore",
    "einsum with the energy's weight",
    """
class AdditiveScore(nn.Module):
    def __init__(self, query_dim, key_dim, hidden_dim):
        super().__init__()
        self.energy = nn.Linear(hidden_dim, 1, bias=False)
        self.key_projection = nn.Linear(key_dim, hidden_dim, bias=False)
        self.query_projection = nn.Linear(query_dim, hidden_dim, bias=False)

    def forward(self, query, key, mask=None):
        q, k = self.query_projection(query), self.key_projection(key)
        hidden = (q[:, :, None, :] + k[:, None, :, :]).tanh()
        scores = torch.einsum("bijh,h->bij", hidden, self.energy.weight[0])
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return scores
""",
)
style(
    "AdditiveScore",
    "a loop over the queries and a base class",
    """
class Masked(nn.Module):
    def masked(self, scores, mask):
        return scores if mask is None else scores.masked_fill(~mask, -torch.inf)

class AdditiveScore(Masked):
    def __init__(self, query_dim, key_dim, hidden_dim):
        super().__init__()
        self.query_projection = nn.Linear(query_dim, hidden_dim, False)
        self.key_projection = nn.Linear(key_dim, hidden_dim, False)
        self.energy = nn.Linear(hidden_dim, 1, False)

    def forward(self, query, key, mask=None):
        keys = self.key_projection(key)
        rows = []
        for i in range(query.size(1)):
            hidden = torch.tanh(self.query_projection(query[:, i : i + 1]) + keys)
            rows.append(self.energy(hidden)[..., 0])
        return self.masked(torch.stack(rows, dim=1), mask)
""",
)
style(
    "ConcatScore",
    "the projection cut into its query part and its key part",
    """
class ConcatScore(nn.Module):
    def __init__(self, query_dim, key_dim, hidden_dim):
        super().__init__()
        self.query_dim = query_dim
        self.projection = nn.Linear(query_dim + key_dim, hidden_dim, bias=False)
        self.energy = nn.Linear(hidden_dim, 1, bias=False)

    def forward(self, query, key, mask=None):
        weight = self.projection.weight
        w_q, w_k = weight[:, : self.query_dim], weight[:, self.query_dim :]
        hidden = torch.tanh((query @ w_q.T).unsqueeze(2) + (key @ w_k.T).unsqueeze(1))
        scores = (hidden * self.energy.weight.squeeze(0)).sum(-1)
        if mask is not None:
            scores = torch.where(mask, scores, torch.full_like(scores, -math.inf))
        return scores
""",
)
style(
    "ConcatScore",
    "repeat and loops",
    """
class ConcatScore(nn.Module):
    def __init__(self, query_dim, key_dim, hidden_dim):
        super().__init__()
        self.projection = nn.Linear(query_dim + key_dim, hidden_dim, bias=False)
        self.energy = nn.Linear(hidden_dim, 1, bias=False)

    def forward(self, query, key, mask=None):
        columns = []
        for j in range(key.shape[1]):
            repeated = key[:, j].unsqueeze(1).repeat(1, query.shape[1], 1)
            pair = torch.cat((query, repeated), 2)
            columns.append(self.energy(torch.tanh(self.projection(pair))))
        scores = torch.cat(columns, 2)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return scores
""",
)

# Softmax, context, decoder, dropout -------------------------------------------------------------

CHECKED = """
def checked(scores, mask):
    if mask is None:
        return torch.ones_like(scores, dtype=torch.bool)
    if mask.dtype is not torch.bool:
        raise ValueError("bool please")
    try:
        return torch.broadcast_to(mask, scores.shape)
    except RuntimeError as error:
        raise ValueError("shape") from error
"""
style(
    "masked_softmax",
    "a large negative number, then zeros",
    CHECKED
    + """
def masked_softmax(scores, mask=None, dim=-1):
    allowed = checked(scores, mask) & (scores != -math.inf)
    filled = scores.masked_fill(~allowed, -1e9)
    e = (filled - filled.max(dim, keepdim=True).values).exp() * allowed
    total = e.sum(dim, keepdim=True)
    return e / torch.where(total > 0, total, torch.ones_like(total))
""",
)
style(
    "masked_softmax",
    "logsumexp of the allowed scores",
    CHECKED
    + """
def masked_softmax(scores, mask=None, dim=-1):
    allowed = checked(scores, mask) & torch.isfinite(scores)
    some = allowed.any(dim, keepdim=True)
    filled = torch.where(allowed, scores, torch.finfo(scores.dtype).min)
    log_weights = filled - torch.logsumexp(filled, dim, keepdim=True)
    return torch.where(allowed & some, log_weights.exp(), 0.0)
""",
)
style(
    "masked_softmax",
    "loops over slices",
    CHECKED
    + """
def masked_softmax(scores, mask=None, dim=-1):
    allowed = checked(scores, mask) & (scores > -math.inf)
    moved, kept = scores.movedim(dim, -1), allowed.movedim(dim, -1)
    rows, flags = moved.reshape(-1, moved.shape[-1]), kept.reshape(-1, moved.shape[-1])
    result = []
    for row, flag in zip(rows, flags):
        weights = torch.zeros_like(row)
        if flag.any():
            chosen = row[flag]
            e = torch.exp(chosen - chosen.max())
            weights[flag] = e / e.sum()
        result.append(weights + 0 * torch.where(flag, row, 0.0))
    return torch.stack(result).view(moved.shape).movedim(-1, dim)
""",
)
style(
    "context_vector",
    "einsum",
    """
def context_vector(weights, values):
    if weights.size(-1) != values.size(1):
        raise ValueError("Tk")
    return torch.einsum("bqk,bkd->bqd", weights, values)
""",
)
style(
    "context_vector",
    "broadcasting and a sum",
    """
def context_vector(weights, values):
    batch, queries, keys = weights.shape
    if values.shape[1] != keys:
        raise ValueError("Tk")
    return (weights[..., None] * values[:, None]).sum(2)
""",
)
style(
    "context_vector",
    "a loop over the keys",
    """
def context_vector(weights, values):
    if weights.shape[2] != values.shape[1]:
        raise ValueError("Tk")
    total = 0
    for j in range(values.shape[1]):
        total = total + weights[:, :, j : j + 1] * values[:, j : j + 1, :]
    return total
""",
)
style(
    "AttentionDecoderStep",
    "the mask in the score, bmm, results in a list",
    """
class AttentionDecoderStep(nn.Module):
    def __init__(self, embed_dim, hidden_dim, annotation_dim, attention_dim):
        super().__init__()
        self.cell = nn.GRUCell(annotation_dim + embed_dim, hidden_dim)
        self.score = AdditiveScore(hidden_dim, annotation_dim, attention_dim)

    def forward(self, y_prev, s_prev, annotations, source_mask=None):
        mask = source_mask if source_mask is None else source_mask[:, None, :]
        weights = masked_softmax(self.score(s_prev[:, None], annotations, mask))
        context = torch.bmm(weights, annotations)[:, 0]
        return [self.cell(torch.hstack([y_prev, context]), s_prev), context, weights[:, 0]]
""",
)
style(
    "AttentionDecoderStep",
    "PyTorch's softmax with empty rows set to 0",
    """
class AttentionDecoderStep(nn.Module):
    def __init__(self, embed_dim, hidden_dim, annotation_dim, attention_dim):
        super().__init__()
        self.score = AdditiveScore(hidden_dim, annotation_dim, attention_dim)
        self.cell = nn.GRUCell(embed_dim + annotation_dim, hidden_dim)

    def forward(self, y_prev, s_prev, annotations, source_mask=None):
        e = self.score(s_prev.unsqueeze(1), annotations).squeeze(1)
        if source_mask is None:
            source_mask = torch.ones_like(e, dtype=torch.bool)
        e = e.masked_fill(~source_mask, -1e9)
        weights = torch.softmax(e, dim=1) * source_mask
        context = torch.einsum("bt,bta->ba", weights, annotations)
        return self.cell(torch.cat([y_prev, context], 1), s_prev), context, weights
""",
)
style(
    "attention_dropout",
    "bernoulli and torch.where",
    """
def attention_dropout(weights, p, training):
    if p < 0 or p > 1:
        raise ValueError("p")
    if not training:
        return weights
    if p == 1:
        return torch.zeros_like(weights)
    keep = torch.bernoulli(torch.full(weights.shape, 1 - p)).bool()
    return torch.where(keep, weights / (1 - p), torch.zeros((), dtype=weights.dtype))
""",
)
style(
    "attention_dropout",
    "a scaled mask in the dtype of the weights",
    """
def attention_dropout(weights, p, training):
    if not (0 <= p <= 1):
        raise ValueError("p")
    if training and p > 0:
        keep = 1.0 - p
        mask = (torch.rand(weights.shape) < keep).to(weights.dtype)
        return weights.clone() * (mask / keep if keep else mask)
    return weights.clone()
""",
)
style(
    "attention_dropout",
    "masked_fill of what is dropped",
    """
def attention_dropout(weights, p, training):
    if not 0 <= p <= 1:
        raise ValueError("p")
    if p == 1 and training:
        return weights.masked_fill(torch.ones_like(weights).bool(), 0)
    dropped = torch.empty(weights.shape).uniform_() < p * training
    return weights.masked_fill(dropped, 0.0).div(1 - p * training)
""",
)

# Scaled dot-product attention -------------------------------------------------------------------

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
def scaled_dot_product_attention(query, key, value, mask=None, dropout_p=0.0, training=False):
    refuse(query, key, value)
    q = query * query.shape[-1] ** -0.5
    weights = masked_softmax(torch.einsum("...qd,...kd->...qk", q, key), mask)
    used = nn.functional.dropout(weights, dropout_p, training)
    return torch.einsum("...qk,...kd->...qd", used, value), weights
""",
)
style(
    "scaled_dot_product_attention",
    "PyTorch's softmax over -inf, empty rows replaced",
    REFUSE
    + """
def scaled_dot_product_attention(query, key, value, mask=None, dropout_p=0.0, training=False):
    refuse(query, key, value)
    d_k = query.size(-1)
    scores = torch.matmul(query, key.mT).div(d_k**0.5)
    if mask is None:
        weights = scores.softmax(-1)
    else:
        if mask.dtype != torch.bool:
            raise ValueError("bool")
        try:
            mask = mask.expand(scores.shape)
        except RuntimeError:
            raise ValueError("shape")
        empty = ~mask.any(-1, keepdim=True)
        weights = scores.masked_fill(~mask & ~empty, -torch.inf).softmax(-1).masked_fill(empty, 0.0)
    if training and dropout_p:
        kept = torch.rand_like(weights) > dropout_p
        return (weights * kept / (1 - dropout_p)) @ value, weights
    return weights @ value, weights
""",
)
style(
    "scaled_dot_product_attention",
    "a loop over the queries, a large negative number and zeros",
    REFUSE
    + """
def scaled_dot_product_attention(query, key, value, mask=None, dropout_p=0.0, training=False):
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
        weights = torch.softmax(scores, -1)
        if mask is not None:
            weights = weights * mask[..., i, :]
        used = attention_dropout(weights, dropout_p, training)
        outputs.append((used.unsqueeze(-1) * value).sum(-2))
        maps.append(weights)
    return torch.stack(outputs, -2), torch.stack(maps, -2)
""",
)

# Masks ------------------------------------------------------------------------------------------

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
    if lengths.dtype != torch.int64:
        raise ValueError("int64")
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

# Self-attention ---------------------------------------------------------------------------------

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
        weights = masked_softmax(scores, mask)
        return torch.einsum("bij,bjd->bid", weights, v), weights
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
        weights = scores.softmax(-1)
        if mask is not None:
            weights = weights * mask
        return weights @ v, weights
""",
)
style(
    "MaskedSelfAttention",
    "a subclass of SelfAttention",
    """
class MaskedSelfAttention(SelfAttention):
    def forward(self, x, padding=None):
        mask = causal_mask(x.shape[1])
        if padding is not None:
            mask = mask.unsqueeze(0) & padding[:, None, :]
        return super().forward(x, mask)
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

    def forward(self, x, padding=None):
        batch, length, _ = x.shape
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if padding is None:
            padding = torch.ones(batch, length, dtype=torch.bool)
        outputs, rows = [], []
        for i in range(length):
            seen = slice(0, i + 1)
            scores = q[:, i : i + 1] @ k[:, seen].mT / math.sqrt(q.shape[-1])
            w = masked_softmax(scores, padding[:, None, seen])
            outputs.append(w @ v[:, seen])
            rows.append(nn.functional.pad(w, (0, length - i - 1)))
        return torch.cat(outputs, 1), torch.cat(rows, 1)
""",
)

# Heads ------------------------------------------------------------------------------------------

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
            weights = masked_softmax(q @ k.transpose(1, 2) / math.sqrt(self.head_dim), own)
            outputs.append(self.drop(weights) @ v)
            maps.append(weights)
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
        weights = scores.softmax(-1)
        if mask is not None:
            weights = weights * mask
        used = nn.functional.dropout(weights, self.p, self.training)
        joined = torch.einsum("bhqk,bkhd->bqhd", used, v).flatten(2)
        return self.out_proj(joined), weights
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
        out, weights = scaled_dot_product_attention(q, k, v, mask, self.dropout, self.training)
        out = merge_heads(out.unflatten(0, (B, self.num_heads)))
        return self.out_proj(out), weights.unflatten(0, (B, self.num_heads))
""",
)

# Layouts ----------------------------------------------------------------------------------------

style(
    "FusedMultiHeadAttention",
    "reshape to (B, T, H, 3, Dh)",
    """
class FusedMultiHeadAttention(nn.Module):
    def __init__(self, input_dim, embed_dim, num_heads):
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError("heads")
        self.num_heads, self.embed_dim = num_heads, embed_dim
        self.qkv_proj = nn.Linear(input_dim, 3 * embed_dim)
        self.o_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        B, T, _ = x.shape
        qkv = self.qkv_proj(x).reshape(B, T, self.num_heads, 3, -1).permute(3, 0, 2, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        if mask is not None and mask.ndim == 3:
            mask = mask[:, None]
        out, weights = scaled_dot_product_attention(q, k, v, mask)
        return self.o_proj(out.transpose(1, 2).reshape(B, T, self.embed_dim)), weights
""",
)
style(
    "FusedMultiHeadAttention",
    "three slices of the weight per head",
    """
class FusedMultiHeadAttention(nn.Module):
    def __init__(self, input_dim, embed_dim, num_heads):
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError("heads")
        self.num_heads, self.width = num_heads, embed_dim // num_heads
        self.qkv_proj = nn.Linear(input_dim, 3 * embed_dim)
        self.o_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        projected = self.qkv_proj(x)
        outputs, maps = [], []
        for h in range(self.num_heads):
            block = slice(3 * h * self.width, 3 * (h + 1) * self.width)
            q, k, v = projected[..., block].split(self.width, -1)
            own = mask
            if mask is not None and mask.dim() == 4:
                own = mask[:, h]
            out, weights = scaled_dot_product_attention(q, k, v, own)
            outputs.append(out)
            maps.append(weights)
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
            z, weights = scaled_dot_product_attention(
                query @ self.w_q[h], key @ self.w_k[h], value @ self.w_v[h], own
            )
            output = output + z @ self.w_o[h]
            maps.append(weights)
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
        z, weights = scaled_dot_product_attention(q, k, v, mask)
        return merge_heads(z) @ self.w_o.flatten(0, 1), weights
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
class CrossAttention(nn.Module):
    def __init__(self, query_dim, memory_dim, embed_dim, num_heads):
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError("heads")
        self.h = num_heads
        self.q_proj = nn.Linear(query_dim, embed_dim)
        self.k_proj, self.v_proj = (nn.Linear(memory_dim, embed_dim) for _ in range(2))
        self.out_proj = nn.Linear(embed_dim, query_dim)

    def forward(self, x, memory, memory_mask=None):
        q = self.q_proj(x).unflatten(2, (self.h, -1))
        k = self.k_proj(memory).unflatten(2, (self.h, -1))
        v = self.v_proj(memory).unflatten(2, (self.h, -1))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
        if memory_mask is not None:
            memory_mask = memory_mask.view(len(x), 1, 1, -1)
        weights = masked_softmax(scores, memory_mask)
        return self.out_proj(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2)), weights
""",
)
style(
    "CrossAttention",
    "a loop over examples and heads",
    """
class CrossAttention(nn.Module):
    def __init__(self, query_dim, memory_dim, embed_dim, num_heads):
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError("heads")
        self.num_heads = num_heads
        self.q_proj = nn.Linear(query_dim, embed_dim)
        self.k_proj = nn.Linear(memory_dim, embed_dim)
        self.v_proj = nn.Linear(memory_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, query_dim)

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
            maps.append(torch.stack([weights for _, weights in parts]))
        return self.out_proj(torch.stack(outputs)), torch.stack(maps)
""",
)


@pytest.mark.parametrize(
    ("exercise", "source", "name"),
    [
        (
            "attention_dropout",
            "def attention_dropout(w, p, training):\n"
            "    if not 0 <= p <= 1:\n        raise ValueError\n"
            "    return w if not training else w * torch.bernoulli(torch.full(w.shape, 1 - p))\n",
            "dropout_without_rescale",
        ),
        (
            "attention_dropout",
            "def attention_dropout(w, p, training):\n"
            "    if not 0 <= p <= 1:\n        raise ValueError\n"
            "    if p == 1:\n        return w * 0\n"
            "    return w * torch.bernoulli(torch.full(w.shape, 1 - p)) / (1 - p)\n",
            "dropout_in_evaluation",
        ),
    ],
)
def test_a_mistake_with_random_numbers_of_its_own_is_still_named(graders, exercise, source, name):
    namespace = dict(reference_namespace("attention"))
    exec(source, namespace)
    result = graders.run(Executor(namespace).execute, exercises=[exercise])[exercise]
    assert result.misconception == name


@pytest.mark.parametrize("seed", range(3))
def test_a_scale_kept_in_float32_is_right_for_float64_too(graders, seed):
    source = source_of("attention")
    assert source.count("/ math.sqrt(d_k)") == 1
    changed = source.replace("/ math.sqrt(d_k)", "/ torch.sqrt(torch.tensor(d_k))")
    namespace = load_variant(changed, "float32_scale")
    results = graders.run(Executor(namespace).execute, seed=seed, diagnose=False)
    assert {name: one.points for name, one in results.items()} == {
        name: one.max_points for name, one in results.items()
    }


class TestGraders(ChapterGraders):
    chapter = CHAPTER
    styles = STYLES
    notable = (
        "concat_linear",
        "bilinear_weight_per_position",
        "softmax_without_exp",
        "softmax_finite_fill",
        "softmax_nan_rows",
        "softmax_mask_zero_after",
        "context_own_value_only",
        "decoder_scores_new_state",
        "dropout_without_rescale",
        "attention_scaled_by_d_k",
        "attention_not_scaled",
        "attention_hard",
        "attention_softmax_over_queries",
        "attention_mask_zero_before",
        "attention_weights_after_dropout",
        "causal_inverted",
        "padding_on_queries",
        "decoder_mask_padding_only",
        "self_scaled_by_input",
        "masked_self_one_ahead",
        "split_by_view",
        "merge_without_transpose",
        "heads_mask_per_head",
        "heads_split_result",
        "heads_dropout_fixed",
        "fused_not_interleaved",
        "fused_width_overwritten",
        "per_head_concatenated",
        "to_fused_stacked",
        "to_per_head_not_transposed",
        "to_torch_order_k_q_v",
        "cross_queries_from_memory",
    )
