"""The graders of `positional_encoding`: every legitimate style earns full marks, mistakes don't."""

from __future__ import annotations

import pytest
import torch

from autograder.judging.runner import Graders
from autograder.sandbox.executor import Executor
from autograder.units.variants import reference_namespace, wrong_namespace
from tests.autograder.chapter_graders import ChapterGraders, Styles, failures

CHAPTER = "positional_encoding"

# Right answers that look unlike the reference and unlike the three of `autograder/demo`:
# (exercise, style) -> source.
STYLES = Styles()
style = STYLES.add


# Tokens -----------------------------------------------------------------------------------------

style(
    "merge_pair",
    "a stack with a flag",
    """
def merge_pair(ids, pair, new_id):
    out, free = [], False
    for value in ids:
        if free and (out[-1], value) == pair:
            out[-1], free = new_id, False
        else:
            out.append(value)
            free = True
    return out
""",
)
style(
    "merge_pair",
    "list.index and slices",
    """
def merge_pair(ids, pair, new_id):
    out, start = [], 0
    while True:
        try:
            place = ids.index(pair[0], start)
        except ValueError:
            return out + ids[start:]
        if ids[place + 1 : place + 2] == [pair[1]]:
            out += ids[start:place] + [new_id]
            start = place + 2
        else:
            out += ids[start : place + 1]
            start = place + 1
""",
)
style(
    "train_bpe",
    "pairs as lists, ties by sorting",
    """
def train_bpe(text, num_merges):
    if num_merges < 0:
        raise ValueError("num_merges")
    parts = [list(bytearray(chunk, "utf8")) for chunk in chunks(text)]
    merges = []
    for m in range(num_merges):
        counts = Counter(pair for part in parts for pair in zip(part, part[1:]))
        ranked = sorted(counts, key=lambda pair: (-counts[pair], pair[0], pair[1]))
        if not ranked:
            break
        merges.append([*ranked[0]])
        parts = [merge_pair(part, ranked[0], m + 256) for part in parts]
    return merges
""",
)
style(
    "bpe_encode",
    "one occurrence at a time, the leftmost of the earliest merge",
    """
def bpe_encode(text, merges):
    ids = []
    for chunk in chunks(text):
        part = [*chunk.encode()]
        while True:
            places = [
                (merges.index(pair), place)
                for place, pair in enumerate(zip(part, part[1:]))
                if pair in merges
            ]
            if not places:
                break
            number, place = min(places)
            part[place : place + 2] = [256 + number]
        ids.extend(part)
    return ids
""",
)
style(
    "bpe_decode",
    "a dict of bytes that grows",
    """
def bpe_decode(ids, merges):
    table = {n: n.to_bytes(1, "big") for n in range(256)}
    for m, (left, right) in enumerate(merges):
        table[256 + m] = table[left] + table[right]
    data = b""
    for n in ids:
        if n not in table:
            raise ValueError(n)
        data += table[n]
    return str(data, "utf-8", "replace")
""",
)
style(
    "wordpiece_encode",
    "as BERT's own code has it, with is_bad",
    """
def wordpiece_encode(word, vocabulary, unknown="[UNK]", prefix="##", max_chars=100):
    chars = list(word)
    if not chars:
        raise ValueError("empty")
    if len(chars) > max_chars:
        return [unknown]
    is_bad, start, sub_tokens = False, 0, []
    while start < len(chars):
        end, cur = len(chars), None
        while start < end:
            substr = "".join(chars[start:end])
            if start > 0:
                substr = prefix + substr
            if substr in vocabulary:
                cur = substr
                break
            end -= 1
        if cur is None:
            is_bad = True
            break
        sub_tokens.append(cur)
        start = end
    return [unknown] if is_bad else sub_tokens
""",
)

# Embeddings and codes ---------------------------------------------------------------------------

style(
    "TokenEmbedding",
    "index_select, a small initialisation, errors of the table turned into a ValueError",
    """
class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        if vocab_size < 1 or d_model < 1:
            raise ValueError("sizes")
        self.table = nn.Embedding(vocab_size, d_model)
        nn.init.uniform_(self.table.weight, -0.1, 0.1)

    def forward(self, ids):
        if torch.is_floating_point(ids) or ids.dtype is torch.bool or not ids.numel():
            raise ValueError("ids")
        try:
            rows = torch.index_select(self.table.weight, 0, ids.reshape(-1))
        except (IndexError, RuntimeError) as error:
            raise ValueError("range") from error
        return rows.view(*ids.shape, -1) * rows.shape[-1] ** 0.5
""",
)
style(
    "binary_code",
    "texts of binary digits",
    """
def binary_code(positions, bits):
    if bits < 1 or positions.is_floating_point() or positions.dtype == torch.bool:
        raise ValueError("bits or positions")
    if positions.min() < 0 or positions.max() > 2**bits - 1:
        raise ValueError("range")
    rows = [[float(c) for c in reversed(format(p, f"0{bits}b"))] for p in positions.tolist()]
    return torch.tensor(rows, dtype=torch.float32)
""",
)
style(
    "angular_frequencies",
    "a product that goes on",
    """
def angular_frequencies(d_model, base=10000.0):
    if not isinstance(d_model, int) or d_model < 1 or base <= 1:
        raise ValueError("d_model or base")
    ratio, omega, found = base ** (-2 / d_model), 1.0, []
    while len(found) < (d_model + 1) // 2:
        found.append(omega)
        omega *= ratio
    return torch.tensor(found)
""",
)
style(
    "position_vector",
    "complex numbers",
    """
def position_vector(position, d_model, base=10000.0):
    import cmath

    if not isinstance(position, int) or position < 0:
        raise ValueError("position")
    if not isinstance(d_model, int) or d_model < 1:
        raise ValueError("d_model")
    vector = []
    for i in range(math.ceil(d_model / 2)):
        turn = cmath.exp(1j * position / base ** (2 * i / d_model))
        vector += [turn.imag, turn.real]
    return vector[:d_model]
""",
)
style(
    "position_vector",
    "through float32 frequencies",
    """
def position_vector(position, d_model, base=10000.0):
    if not isinstance(position, int) or position < 0:
        raise ValueError("position")
    omega = angular_frequencies(d_model, base).tolist()
    functions = (math.sin, math.cos)
    return [functions[j % 2](position * omega[j // 2]) for j in range(d_model)]
""",
)
style(
    "sinusoidal_table",
    "as most programs have it: exp and log in float32",
    """
def sinusoidal_table(length, d_model, base=10000.0):
    if min(length, d_model) < 1 or base <= 1:
        raise ValueError("size")
    pe = torch.zeros(length, d_model)
    position = torch.arange(0, length, dtype=torch.float).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(base) / d_model))
    pe[:, 0::2] = torch.sin(position * div_term)
    pe[:, 1::2] = torch.cos(position * div_term[: d_model // 2])
    return pe
""",
)
style(
    "sinusoidal_table",
    "a cosine is a shifted sine, column by column",
    """
def sinusoidal_table(length, d_model, base=10000.0):
    if length < 1 or d_model < 1 or base <= 1:
        raise ValueError("size")
    p = torch.arange(length, dtype=torch.float64)
    columns = [
        torch.sin(p / base ** ((j - j % 2) / d_model) + (j % 2) * math.pi / 2)
        for j in range(d_model)
    ]
    return torch.stack(columns, 1).float()
""",
)
style(
    "PositionalEncoding",
    "an embedding look-up, dropout by hand",
    """
class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_length=5000, dropout=0.0):
        super().__init__()
        if d_model < 1 or max_length < 1:
            raise ValueError("sizes")
        self.p = dropout
        self.register_buffer("table", torch.empty(max_length, d_model), persistent=False)
        self.table.copy_(sinusoidal_table(max_length, d_model))

    def forward(self, x):
        B, T, D = x.shape
        if D != self.table.shape[1] or T > self.table.shape[0]:
            raise ValueError("shape")
        total = x + nn.functional.embedding(torch.arange(T), self.table.to(x.dtype))
        if self.training and self.p > 0:
            total = total * torch.bernoulli(torch.full_like(total, 1 - self.p)) / (1 - self.p)
        return total
""",
)
style(
    "half_and_half_table",
    "the interleaved table, reshaped",
    """
def half_and_half_table(length, d_model, base=10000.0):
    if d_model % 2 or d_model < 2:
        raise ValueError("even")
    table = sinusoidal_table(length, d_model, base).view(length, -1, 2)
    return table.transpose(1, 2).reshape(length, d_model)
""",
)
style(
    "interleaved_to_half",
    "a formula for each place",
    """
def interleaved_to_half(d_model):
    if d_model < 2 or d_model % 2:
        raise ValueError("even")
    place = torch.arange(d_model)
    return 2 * (place % (d_model // 2)) + place // (d_model // 2)
""",
)
style(
    "offset_rotation",
    "the exponential of a generator",
    """
def offset_rotation(offset, d_model, base=10000.0):
    if not isinstance(offset, int) or d_model < 2 or d_model % 2 or base <= 1:
        raise ValueError("offset, d_model or base")
    generator = torch.zeros(d_model, d_model, dtype=torch.float64)
    for i in range(0, d_model, 2):
        omega = base ** (-i / d_model)
        generator[i, i + 1], generator[i + 1, i] = omega, -omega
    return torch.matrix_exp(offset * generator).float()
""",
)

# Learned and relative positions -----------------------------------------------------------------

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
        weights = torch.softmax(scores, -1)
        if empty is not None:
            weights = weights.masked_fill(empty, 0.0)
        z = (weights.unsqueeze(-1) * values).sum(-2)
        return self.out_proj(z.permute(0, 2, 1, 3).reshape(B, T, D)), weights
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
        weights = scores.softmax(3)
        if mask is not None:
            weights = weights * mask
        near = torch.nn.functional.one_hot(index[0, 0], len(self.value_offsets)).to(x.dtype)
        shares = torch.einsum("bhij,ijr->bhir", weights, near)
        z = weights @ v + shares @ self.value_offsets
        return self.out_proj(z.transpose(1, 2).flatten(2)), weights
""",
)

# Answers as unlike all others as the texts allow -------------------------------------------------

style(
    "merge_pair",
    "characters of a string",
    """
def merge_pair(ids, pair, new_id):
    text = "".join(map(chr, ids))
    return [ord(ch) for ch in text.replace(chr(pair[0]) + chr(pair[1]), chr(new_id))]
""",
)
style(
    "bpe_encode",
    "the merges one after the other",
    """
def bpe_encode(text, merges):
    out = []
    for c in chunks(text):
        ids = list(c.encode("utf-8"))
        for m, pair in enumerate(merges):
            ids = merge_pair(ids, tuple(pair), 256 + m)
        out.extend(ids)
    return out
""",
)
style(
    "bpe_decode",
    "a stack and a bytearray",
    """
def bpe_decode(ids, merges):
    top = 255 + len(merges)
    if ids and (min(ids) < 0 or max(ids) > top):
        raise ValueError
    stack, out = list(reversed(ids)), bytearray()
    while stack:
        i = stack.pop()
        if i > 255:
            stack += reversed(merges[i - 256])
        else:
            out.append(i)
    return str(out, "utf-8", "replace")
""",
)
style(
    "wordpiece_encode",
    "recursion over the pieces that fit",
    """
def wordpiece_encode(word, vocabulary, unknown="[UNK]", prefix="##", max_chars=100):
    if word == "":
        raise ValueError
    if len(word) > max_chars:
        return [unknown]

    def cut(rest, mark):
        if not rest:
            return []
        fits = [p for p in vocabulary if len(p) > len(mark) and (mark + rest).startswith(p)]
        if not fits:
            return None
        best = max(fits, key=len)
        tail = cut(rest[len(best) - len(mark) :], prefix)
        return None if tail is None else [best] + tail

    return cut(word, "") or [unknown]
""",
)
style(
    "TokenEmbedding",
    "indexing, a scale held as a tensor",
    """
class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size, d_model):
        if min(vocab_size, d_model) < 1:
            raise ValueError
        super().__init__()
        self.table = nn.Embedding(vocab_size, d_model)
        self.scale = torch.sqrt(torch.tensor(d_model))

    def forward(self, ids):
        if ids.dtype not in {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8}:
            raise ValueError
        if 0 in ids.shape:
            raise ValueError
        if ((ids < 0) | (ids >= self.table.num_embeddings)).any():
            raise ValueError
        return self.table.weight[ids.long()] * self.scale
""",
)
style(
    "binary_code",
    "a remainder column by column",
    """
def binary_code(positions, bits):
    if bits <= 0 or positions.dtype == torch.bool or positions.is_floating_point():
        raise ValueError
    rest, columns = positions.clone(), []
    for _ in range(bits):
        columns.append(rest.remainder(2))
        rest = torch.div(rest, 2, rounding_mode="floor")
    if rest.ne(0).any():
        raise ValueError
    return torch.stack(columns, -1).to(torch.float32)
""",
)
style(
    "offset_rotation",
    "a matrix exponential",
    """
def offset_rotation(offset, d_model, base=10000.0):
    if not isinstance(offset, int) or d_model <= 0 or d_model % 2 != 0 or not base > 1:
        raise ValueError
    g = torch.zeros(d_model, d_model, dtype=torch.float64)
    for k in range(d_model // 2):
        w = base ** (-2 * k / d_model)
        g[2 * k, 2 * k + 1] = w
        g[2 * k + 1, 2 * k] = -w
    return (
        torch.matrix_exp(g * offset).float()
        if abs(offset) < 50
        else torch.linalg.matrix_power(torch.matrix_exp(g), offset).float()
    )
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
    "interleaved_to_half",
    "a stable argsort",
    """
def interleaved_to_half(d_model):
    if d_model < 1 or d_model % 2 == 1:
        raise ValueError
    return torch.argsort(torch.arange(d_model) % 2, stable=True)
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
        e = torch.exp(s - s.amax(-1, keepdim=True).detach()) * keep[:, None]
        total = e.sum(-1, keepdim=True)
        w = e / torch.where(total > 0, total, torch.ones_like(total))
        z = torch.einsum("bhij,bjhd->bihd", w, v) + torch.einsum(
            "bhij,ijr,rd->bihd", w, R, self.value_offsets
        )
        return self.out_proj(z.reshape(B, T, d)), w
""",
)


# The same mistakes in code that shares no line with the reference.
@pytest.mark.parametrize(
    ("exercise", "source", "name"),
    [
        (
            "sinusoidal_table",
            """
def sinusoidal_table(length, d_model, base=10000.0):
    if length < 1 or d_model < 1 or base <= 1:
        raise ValueError
    pe = torch.zeros(length, d_model)
    for p in range(length):
        for j in range(d_model):
            angle = p / base ** (j / d_model)
            pe[p, j] = math.cos(angle) if j % 2 else math.sin(angle)
    return pe
""",
            "table_own_frequency",
        ),
        (
            "sinusoidal_table",
            """
def sinusoidal_table(length, d_model, base=10000.0):
    if length < 1 or d_model < 1 or base <= 1:
        raise ValueError
    pe = torch.zeros(length, d_model)
    position = torch.arange(length).float().unsqueeze(1)
    div_term = torch.exp(torch.arange(0, d_model, 2).float() * -(math.log(base) / d_model))
    pe[:, 0::2] = torch.sin(position * div_term)
    pe[:, 1::2] = torch.cos(position * div_term)
    return pe
""",
            "table_odd_fails",
        ),
        (
            "PositionalEncoding",
            """
class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_length=5000, dropout=0.0):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        self.register_buffer("table", sinusoidal_table(max_length, d_model), persistent=False)

    def forward(self, x):
        if x.shape[2] != self.table.shape[1]:
            raise ValueError
        return self.dropout(x + self.table[: x.size(0), None])
""",
            "encoding_batch_row",
        ),
        (
            "PositionalEncoding",
            """
class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_length=5000, dropout=0.0):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        self.table = nn.Parameter(sinusoidal_table(max_length, d_model), False)

    def forward(self, x):
        if x.shape[1] > len(self.table) or x.shape[2] != self.table.shape[1]:
            raise ValueError
        return self.dropout(x + self.table[: x.size(1)])
""",
            "encoding_frozen_parameter",
        ),
        (
            "train_bpe",
            """
def train_bpe(text, num_merges):
    if num_merges < 0:
        raise ValueError
    parts = [list(chunk.encode()) for chunk in chunks(text)]
    merges = []
    for m in range(num_merges):
        stats = {}
        for part in parts:
            for pair in zip(part, part[1:]):
                stats[pair] = stats.get(pair, 0) + 1
        if not stats:
            break
        merges.append(max(stats, key=stats.get))
        parts = [merge_pair(part, merges[-1], 256 + m) for part in parts]
    return merges
""",
            "bpe_ties_first_seen",
        ),
        (
            "bpe_decode",
            """
def bpe_decode(ids, merges):
    def data(n):
        if n < 0 or n > 255 + len(merges):
            raise ValueError
        return bytes([n]) if n < 256 else b"".join(map(data, merges[n - 256]))

    return "".join(data(n).decode("utf-8", "replace") for n in ids)
""",
            "decode_token_by_token",
        ),
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
    namespace = dict(reference_namespace(CHAPTER))
    exec(source, namespace)
    result = graders.run(Executor(namespace).execute, exercises=[exercise])[exercise]
    assert result.points < result.max_points
    assert result.misconception == name


def test_a_mistake_is_traced_to_the_exercise_where_it_was_made(graders):
    namespace = wrong_namespace(CHAPTER, "table_swapped")
    results = graders.run(
        Executor(namespace).execute, exercises=["sinusoidal_table", "PositionalEncoding"]
    )
    for result in results.values():
        assert result.misconception == "table_swapped"
    assert "follows from your sinusoidal_table" in results["PositionalEncoding"].message


# Cheats -----------------------------------------------------------------------------------------


def plain(value):
    """Something hashable that tells arguments apart."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), tuple(value.flatten().tolist())
    if isinstance(value, (list, tuple)):
        return type(value).__name__, tuple(map(plain, value))
    if isinstance(value, dict):
        return tuple((key, plain(item)) for key, item in sorted(value.items()))
    return type(value).__name__, value


def test_answers_learned_by_heart_from_the_visible_tests_miss_the_hidden_ones(graders):
    reference = reference_namespace(CHAPTER)
    functions = [
        e.name for e in graders.assignment.exercises if not isinstance(reference[e.name], type)
    ]
    learned: dict = {}

    def remembering(name):
        def function(*args, **kwargs):
            key = name, plain(args), plain(kwargs)
            try:
                learned[key] = reference[name](*args, **kwargs)
            except ValueError as error:
                learned[key] = error
                raise
            return learned[key]

        return function

    def reciting(name):
        def function(*args, **kwargs):
            value = learned.get((name, plain(args), plain(kwargs)))
            if isinstance(value, ValueError):
                raise value
            return value

        return function

    visible = Graders(CHAPTER, hidden=False)
    watched = reference | {name: remembering(name) for name in functions}
    assert failures(visible, watched, functions, 0) == []
    recited = reference | {name: reciting(name) for name in functions}
    assert failures(visible, recited, functions, 0) == []
    results = graders.run(Executor(recited).execute, seed=0, exercises=functions, diagnose=False)
    for name, result in results.items():
        hidden = [test for test in result.tests if test.hidden]
        assert [test.outcome for test in hidden] == ["failed"] * len(hidden), name


CONSTANTS = {
    "no list": "[]",
    "one id": "[256]",
    "an empty text": "''",
    "a zero": "torch.zeros(3, 3)",
    "NaN": "torch.full((2, 2), math.nan)",
    "its arguments": "(args, kwargs)",
    "itself": "args",
    "a million": "torch.zeros(1).expand(1000, 1000)",
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_an_answer_without_work_earns_nothing(graders, name):
    reference = reference_namespace(CHAPTER)
    namespace = dict(reference)
    for exercise in graders.assignment.exercises:
        if isinstance(reference[exercise.name], type):
            exec(
                f"class {exercise.name}(nn.Module):\n"
                "    def __init__(self, *args, **kwargs):\n        super().__init__()\n"
                f"    def forward(self, *args, **kwargs):\n        return {CONSTANTS[name]}\n",
                namespace,
            )
        else:
            exec(
                f"def {exercise.name}(*args, **kwargs):\n    return {CONSTANTS[name]}\n", namespace
            )
    results = graders.run(Executor(namespace).execute, diagnose=False)
    assert {exercise: r.points for exercise, r in results.items() if r.points} == {}


class TestGraders(ChapterGraders):
    chapter = CHAPTER
    styles = STYLES
    notable = (
        "merge_overlapping",
        "bpe_across_chunks",
        "bpe_ties_first_seen",
        "bpe_chunk_once",
        "encode_text_order",
        "encode_characters",
        "decode_token_by_token",
        "wordpiece_partial",
        "embedding_not_scaled",
        "binary_most_significant_first",
        "frequencies_from_one_to_d",
        "frequencies_up_to_base",
        "vector_first_pair_slow",
        "vector_angle_to_the_power",
        "vector_own_frequency",
        "table_odd_fails",
        "table_from_one",
        "encoding_batch_row",
        "encoding_parameter",
        "encoding_dropout_before_sum",
        "half_up_to_base",
        "columns_inverse",
        "rotation_transposed",
        "rotation_diagonal_only",
        "learned_from_the_end",
        "indices_i_minus_j",
        "indices_not_shifted",
        "relative_offsets_unscaled",
        "relative_without_value_offsets",
        "relative_mask_per_head",
    )
