"""Right answers to `attention` by someone who writes every sum as a loop.

Read as text, cell by cell, by `make_class`: `exercise` cells replace the stubs, `own`
cells are cells that the student added before the next exercise.
"""

import torch
from torch import nn

# %% own="helpers"
NOTHING = float("-inf")


def allowed(mask, shape):
    """A mask of the given shape, everything allowed if there is none."""
    if mask is None:
        return torch.ones(shape, dtype=torch.bool)
    if mask.dtype is not torch.bool:
        raise ValueError("a mask holds True and False")
    try:
        return mask.expand(shape)
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def table(score, query, key, mask):
    """score(q, k) for every query and every key of every example."""
    batch, rows, columns = query.shape[0], query.shape[1], key.shape[1]
    may = allowed(mask, (batch, rows, columns))
    examples = []
    for b in range(batch):
        lines = []
        for i in range(rows):
            line = []
            for j in range(columns):
                if may[b, i, j]:
                    line.append(score(query[b, i], key[b, j]))
                else:
                    line.append(query.new_tensor(NOTHING))
            lines.append(torch.stack(line))
        examples.append(torch.stack(lines))
    return torch.stack(examples)


# %% exercise="DotScore"
class DotScore(nn.Module):
    def forward(self, query, key, mask=None):
        if query.size(-1) != key.size(-1):
            raise ValueError("queries and keys of different width")

        def score(q, k):
            total = q[0] * k[0]
            for d in range(1, len(q)):
                total = total + q[d] * k[d]
            return total

        return table(score, query, key, mask)


# %% exercise="BilinearScore"
class BilinearScore(nn.Module):
    def __init__(self, query_dim, key_dim):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(query_dim, key_dim))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, query, key, mask=None):
        return table(lambda q, k: q.dot(self.weight.mv(k)), query, key, mask)


# %% exercise="AdditiveScore"
class AdditiveScore(nn.Module):
    def __init__(self, query_dim, key_dim, hidden_dim):
        super().__init__()
        self.query_projection = nn.Linear(query_dim, hidden_dim, bias=False)
        self.key_projection = nn.Linear(key_dim, hidden_dim, bias=False)
        self.energy = nn.Linear(hidden_dim, 1, bias=False)

    def forward(self, query, key, mask=None):
        def score(q, k):
            return self.energy(torch.tanh(self.query_projection(q) + self.key_projection(k)))[0]

        return table(score, query, key, mask)


# %% exercise="ConcatScore"
class ConcatScore(nn.Module):
    def __init__(self, query_dim, key_dim, hidden_dim):
        super().__init__()
        self.projection = nn.Linear(query_dim + key_dim, hidden_dim, bias=False)
        self.energy = nn.Linear(hidden_dim, 1, bias=False)

    def forward(self, query, key, mask=None):
        def score(q, k):
            return self.energy(torch.tanh(self.projection(torch.cat((q, k)))))[0]

        return table(score, query, key, mask)


# %% exercise="masked_softmax"
def masked_softmax(scores, mask=None, dim=-1):
    may = allowed(mask, scores.shape)
    moved = scores.movedim(dim, -1)
    rows = moved.reshape(-1, moved.shape[-1])
    choice = may.movedim(dim, -1).reshape(rows.shape)
    done = []
    for row, yes in zip(rows, choice):  # noqa: B905
        weights = torch.zeros_like(row)
        where = torch.nonzero(yes & (row != NOTHING)).flatten()
        if len(where) > 0:
            picked = row[where]
            grown = (picked - picked.detach().max()).exp()
            weights = weights.index_put((where,), grown / grown.sum())
        done.append(weights)
    return torch.stack(done).reshape(moved.shape).movedim(-1, dim)


# %% exercise="context_vector"
def context_vector(attn_weights, values):
    if attn_weights.size(2) != values.size(1):
        raise ValueError("as many weights as values, please")
    contexts = []
    for b in range(len(attn_weights)):
        for i in range(attn_weights.shape[1]):
            total = torch.zeros_like(values[b, 0])
            for j in range(values.shape[1]):
                total = total + attn_weights[b, i, j] * values[b, j]
            contexts.append(total)
    return torch.stack(contexts).reshape(*attn_weights.shape[:2], -1)


# %% exercise="AttentionDecoderStep"
class AttentionDecoderStep(nn.Module):
    def __init__(self, embed_dim, hidden_size, annotation_dim, attention_dim):
        super().__init__()
        self.score = AdditiveScore(hidden_size, annotation_dim, attention_dim)
        self.cell = nn.GRUCell(embed_dim + annotation_dim, hidden_size)

    def forward(self, y_prev, s_prev, annotations, source_mask=None):
        states, contexts, all_weights = [], [], []
        for b in range(len(y_prev)):
            scores = self.score(s_prev[b : b + 1, None], annotations[b : b + 1])[0, 0]
            attn_weights = masked_softmax(scores, None if source_mask is None else source_mask[b])
            context = (attn_weights[:, None] * annotations[b]).sum(0)
            states.append(self.cell(torch.cat((y_prev[b], context)), s_prev[b]))
            contexts.append(context)
            all_weights.append(attn_weights)
        return torch.stack(states), torch.stack(contexts), torch.stack(all_weights)


# %% exercise="attention_dropout"
def attention_dropout(attn_weights, dropout, training):
    if dropout < 0 or dropout > 1:
        raise ValueError("dropout is a probability")
    if not training:
        return attn_weights.clone()
    flat = attn_weights.reshape(-1)
    chances = torch.rand(flat.shape)
    kept = []
    for index in range(len(flat)):
        if dropout < 1 and chances[index] >= dropout:
            kept.append(flat[index] / (1 - dropout))
        else:
            kept.append(flat[index] * 0)
    return torch.stack(kept).reshape(attn_weights.shape)


# %% exercise="scaled_dot_product_attention"
def scaled_dot_product_attention(query, key, value, mask=None, dropout=0.0, training=False):
    width = query.shape[-1]
    if key.shape[-1] != width:
        raise ValueError("query and key differ in width")
    if key.shape[-2] != value.shape[-2]:
        raise ValueError("key and value differ in length")
    front = query.shape[:-2]
    may = allowed(mask, (*front, query.shape[-2], key.shape[-2]))
    queries, keys, values = (x.reshape(-1, x.shape[-2], x.shape[-1]) for x in (query, key, value))
    may = may.reshape(-1, *may.shape[-2:])
    outputs, attn_weights = [], []
    for n in range(len(queries)):
        rows = []
        for i in range(queries.shape[1]):
            row = torch.stack([k.dot(queries[n, i]) for k in keys[n]]) / width**0.5
            rows.append(masked_softmax(row, may[n, i]))
        attn_weights.append(torch.stack(rows))
        outputs.append(attention_dropout(attn_weights[-1], dropout, training).mm(values[n]))
    return (
        torch.stack(outputs).reshape(*front, query.shape[-2], value.shape[-1]),
        torch.stack(attn_weights).reshape(*front, query.shape[-2], key.shape[-2]),
    )


# %% exercise="causal_mask"
def causal_mask(length):
    if type(length) is not int or length <= 0:
        raise ValueError("a length is a whole number above 0")
    return torch.tensor([[j <= i for j in range(length)] for i in range(length)])


# %% exercise="padding_mask"
def padding_mask(lengths, max_length=None):
    if lengths.dtype not in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8):
        raise ValueError("lengths are whole numbers")
    counts = lengths.tolist()
    width = max(counts) if max_length is None else max_length
    rows = []
    for count in counts:
        if not 0 <= count <= width:
            raise ValueError(f"{count} tokens do not fit into {width} places")
        rows.append([[True] * count + [False] * (width - count)])
    return torch.tensor(rows, dtype=torch.bool).reshape(len(counts), 1, width)


# %% exercise="decoder_mask"
def decoder_mask(lengths, max_length=None):
    real = padding_mask(lengths, max_length)
    size = real.shape[-1]
    mask = torch.zeros(len(lengths), size, size, dtype=torch.bool)
    for b in range(len(lengths)):
        for i in range(size):
            for j in range(i + 1):
                mask[b, i, j] = real[b, 0, j]
    return mask


# %% exercise="SelfAttention"
class SelfAttention(nn.Module):
    def __init__(self, input_dim, head_dim):
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self, name, nn.Linear(input_dim, head_dim, bias=False))

    def forward(self, x, mask=None):
        return scaled_dot_product_attention(self.q_proj(x), self.k_proj(x), self.v_proj(x), mask)


# %% exercise="MaskedSelfAttention"
class MaskedSelfAttention(nn.Module):
    def __init__(self, input_dim, head_dim):
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self, name, nn.Linear(input_dim, head_dim, bias=False))

    def forward(self, x, padding_mask=None):
        outputs, attn_weights = [], []
        for b in range(len(x)):
            mask = causal_mask(x.shape[1])
            if padding_mask is not None:
                for j in range(x.shape[1]):
                    mask[:, j] &= padding_mask[b, j]
            q, k, v = self.q_proj(x[b]), self.k_proj(x[b]), self.v_proj(x[b])
            output, weight = scaled_dot_product_attention(q, k, v, mask)
            outputs.append(output)
            attn_weights.append(weight)
        return torch.stack(outputs), torch.stack(attn_weights)


# %% exercise="split_heads"
def split_heads(x, num_heads):
    if x.shape[2] % num_heads:
        raise ValueError("the heads do not come out even")
    size = x.shape[2] // num_heads
    return torch.stack([x[:, :, h * size : (h + 1) * size] for h in range(num_heads)], dim=1)


# %% exercise="merge_heads"
def merge_heads(x):
    return torch.cat([x[:, h] for h in range(x.shape[1])], dim=-1)


# %% own="one head after the other"
def heads_one_by_one(q, k, v, mask, p=0.0, training=False):
    """Attention for each head alone; the heads stand in axis 1."""
    if mask is not None and mask.dim() < 4:
        mask = mask.reshape((1,) * (3 - mask.dim()) + tuple(mask.shape)).unsqueeze(1)
    outputs, weights = [], []
    for h in range(q.shape[1]):
        part = None
        if mask is not None:
            part = mask[:, h] if mask.shape[1] > 1 else mask[:, 0]
        output, weight = scaled_dot_product_attention(q[:, h], k[:, h], v[:, h], part, p, training)
        outputs.append(output)
        weights.append(weight)
    return torch.stack(outputs, 1), torch.stack(weights, 1)


# %% exercise="MultiHeadAttention"
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("d_model is no multiple of num_heads")
        self.heads, self.p = num_heads, dropout
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, query, key, value, mask=None):
        q = split_heads(self.q_proj(query), self.heads)
        k = split_heads(self.k_proj(key), self.heads)
        v = split_heads(self.v_proj(value), self.heads)
        output, attn_weights = heads_one_by_one(q, k, v, mask, self.p, self.training)
        return self.out_proj(merge_heads(output)), attn_weights


# %% exercise="FusedMultiHeadAttention"
class FusedMultiHeadAttention(nn.Module):
    def __init__(self, input_dim, d_model, num_heads):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("d_model is no multiple of num_heads")
        self.heads, self.size = num_heads, d_model // num_heads
        self.qkv_proj = nn.Linear(input_dim, 3 * d_model)
        self.o_proj = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        everything = self.qkv_proj(x)
        parts = []
        for which in range(3):
            heads = []
            for h in range(self.heads):
                start = (3 * h + which) * self.size
                heads.append(everything[..., start : start + self.size])
            parts.append(torch.stack(heads, 1))
        output, attn_weights = heads_one_by_one(*parts, mask)
        return self.o_proj(merge_heads(output)), attn_weights


# %% exercise="PerHeadAttention"
class PerHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("d_model is no multiple of num_heads")
        size = d_model // num_heads
        for name in ("w_q", "w_k", "w_v"):
            setattr(self, name, nn.Parameter(torch.randn(num_heads, d_model, size) / d_model**0.5))
        self.w_o = nn.Parameter(torch.randn(num_heads, size, d_model) / d_model**0.5)

    def forward(self, query, key, value, mask=None):
        heads = range(len(self.w_q))
        q = torch.stack([query @ self.w_q[h] for h in heads], 1)
        k = torch.stack([key @ self.w_k[h] for h in heads], 1)
        v = torch.stack([value @ self.w_v[h] for h in heads], 1)
        z, attn_weights = heads_one_by_one(q, k, v, mask)
        output = 0
        for h in heads:
            output = output + z[:, h] @ self.w_o[h]
        return output, attn_weights


# %% exercise="separate_to_fused"
def separate_to_fused(state, num_heads):
    size = len(state["q_proj.bias"]) // num_heads
    weight, bias = [], []
    for h in range(num_heads):
        for name in ("q_proj", "k_proj", "v_proj"):
            weight.append(state[name + ".weight"][h * size : (h + 1) * size])
            bias.append(state[name + ".bias"][h * size : (h + 1) * size])
    return {
        "qkv_proj.weight": torch.cat(weight),
        "qkv_proj.bias": torch.cat(bias),
        "o_proj.weight": state["out_proj.weight"].clone(),
        "o_proj.bias": state["out_proj.bias"].clone(),
    }


# %% exercise="separate_to_per_head"
def separate_to_per_head(state, num_heads):
    for name in state:
        if name.endswith(".bias") and (state[name] != 0).any():
            raise ValueError(f"{name} would be lost")
    size = len(state["q_proj.weight"]) // num_heads
    result = {}
    for old, new in (("q_proj", "w_q"), ("k_proj", "w_k"), ("v_proj", "w_v")):
        rows = state[old + ".weight"]
        result[new] = torch.stack([rows[h * size : (h + 1) * size].t() for h in range(num_heads)])
    out = state["out_proj.weight"]
    result["w_o"] = torch.stack([out[:, h * size : (h + 1) * size].t() for h in range(num_heads)])
    return result


# %% exercise="separate_to_torch"
def separate_to_torch(state):
    result = {}
    for kind in ("weight", "bias"):
        pieces = [state[f"{letter}_proj.{kind}"] for letter in "qkv"]
        result[f"in_proj_{kind}"] = torch.cat(pieces)
        result[f"out_proj.{kind}"] = state[f"out_proj.{kind}"].clone()
    return result


# %% exercise="CrossAttention"
class CrossAttention(nn.Module):
    def __init__(self, query_dim, memory_dim, d_model, num_heads):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("d_model is no multiple of num_heads")
        self.heads = num_heads
        self.q_proj = nn.Linear(query_dim, d_model)
        self.k_proj = nn.Linear(memory_dim, d_model)
        self.v_proj = nn.Linear(memory_dim, d_model)
        self.out_proj = nn.Linear(d_model, query_dim)

    def forward(self, x, memory, memory_mask=None):
        q = split_heads(self.q_proj(x), self.heads)
        k = split_heads(self.k_proj(memory), self.heads)
        v = split_heads(self.v_proj(memory), self.heads)
        mask = None if memory_mask is None else memory_mask[:, None]
        output, attn_weights = heads_one_by_one(q, k, v, mask)
        return self.out_proj(merge_heads(output)), attn_weights
