"""Right answers to `positional_encoding` by someone who writes everything as a loop.

Read as text, cell by cell, by `make_class`: `exercise` cells replace the stubs, `own`
cells are cells that the student added before the next exercise.
"""

# ruff: noqa: F821

import math

import torch
from torch import nn


# %% exercise="merge_pair"
def merge_pair(ids, pair, new_id):
    first, second = pair
    out = []
    skip = False
    for n in range(len(ids)):
        if skip:
            skip = False
        elif n + 1 < len(ids) and ids[n] == first and ids[n + 1] == second:
            out.append(new_id)
            skip = True
        else:
            out.append(ids[n])
    return out


# %% exercise="train_bpe"
def train_bpe(text, num_merges):
    if num_merges < 0:
        raise ValueError("num_merges is negative")
    parts = [list(chunk.encode("utf-8")) for chunk in chunks(text)]
    merges = []
    while len(merges) < num_merges:
        counts = {}
        for part in parts:
            for n in range(len(part) - 1):
                two = (part[n], part[n + 1])
                counts[two] = counts.get(two, 0) + 1
        best = None
        for two in counts:
            tie = best is not None and counts[two] == counts[best]
            if best is None or counts[two] > counts[best] or (tie and two < best):
                best = two
        if best is None:
            return merges
        for n in range(len(parts)):
            parts[n] = merge_pair(parts[n], best, 256 + len(merges))
        merges.append(best)
    return merges


# %% exercise="bpe_encode"
def bpe_encode(text, merges):
    ids = []
    for chunk in chunks(text):
        part = list(chunk.encode("utf-8"))
        # A later merge never brings back a pair of an earlier one, so one round is enough.
        for number in range(len(merges)):
            part = merge_pair(part, merges[number], 256 + number)
        for value in part:
            ids.append(value)
    return ids


# %% exercise="bpe_decode"
def bpe_decode(ids, merges):
    for value in ids:
        if value < 0 or value >= 256 + len(merges):
            raise ValueError(f"nothing is known of the id {value}")
    waiting = list(ids)[::-1]
    data = bytearray()
    while waiting:
        value = waiting.pop()
        if value < 256:
            data.append(value)
        else:
            left, right = merges[value - 256]
            waiting.append(right)
            waiting.append(left)
    return data.decode("utf-8", "replace")


# %% exercise="wordpiece_encode"
def wordpiece_encode(word, vocabulary, unknown="[UNK]", prefix="##", max_chars=100):
    if len(word) == 0:
        raise ValueError("no word")
    if len(word) > max_chars:
        return [unknown]
    pieces = []
    rest = word
    while rest:
        found = None
        for size in range(len(rest), 0, -1):
            candidate = rest[:size] if not pieces else prefix + rest[:size]
            if candidate in vocabulary:
                found = candidate
                rest = rest[size:]
                break
        if found is None:
            return [unknown]
        pieces.append(found)
    return pieces


# %% exercise="TokenEmbedding"
class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        if vocab_size <= 0 or d_model <= 0:
            raise ValueError("sizes are at least 1")
        self.table = nn.Embedding(vocab_size, d_model)

    def forward(self, ids):
        if ids.dtype not in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8):
            raise ValueError("ids are whole numbers")
        rows = ids.tolist()
        if not rows or not rows[0]:
            raise ValueError("nothing to embed")
        batch = []
        for row in rows:
            vectors = []
            for number in row:
                if number < 0 or number >= self.table.num_embeddings:
                    raise ValueError(f"{number} is not in the vocabulary")
                vectors.append(self.table.weight[number] * self.table.embedding_dim**0.5)
            batch.append(torch.stack(vectors))
        return torch.stack(batch)


# %% exercise="binary_code"
def binary_code(positions, bits):
    if bits < 1:
        raise ValueError("at least one bit")
    if positions.dtype not in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8):
        raise ValueError("positions are whole numbers")
    rows = []
    for position in positions.tolist():
        if position < 0 or position >= 2**bits:
            raise ValueError(f"{position} does not fit into {bits} bits")
        row = []
        for _ in range(bits):
            row.append(float(position % 2))
            position //= 2
        rows.append(row)
    return torch.tensor(rows)


# %% exercise="angular_frequencies"
def angular_frequencies(d_model, base=10000.0):
    if type(d_model) is not int or d_model < 1:
        raise ValueError("d_model is a whole number above 0")
    if base <= 1:
        raise ValueError("base must be above 1")
    found = []
    for two_k in range(0, d_model, 2):
        found.append(1 / base ** (two_k / d_model))
    return torch.tensor(found)


# %% exercise="position_vector"
def position_vector(position, d_model, base=10000.0):
    if type(position) is not int or position < 0:
        raise ValueError("position is a whole number, 0 or above")
    if type(d_model) is not int or d_model < 1:
        raise ValueError("d_model is a whole number above 0")
    vector = []
    for dimension in range(d_model):
        even = dimension - dimension % 2
        angle = position / base ** (even / d_model)
        if dimension % 2:
            vector.append(math.cos(angle))
        else:
            vector.append(math.sin(angle))
    return vector


# %% exercise="sinusoidal_table"
def sinusoidal_table(length, d_model, base=10000.0):
    if length < 1 or base <= 1:
        raise ValueError("at least one row, and a base above 1")
    return torch.tensor([position_vector(p, d_model, base) for p in range(length)])


# %% exercise="PositionalEncoding"
class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_length=5000, dropout=0.0):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.register_buffer("table", sinusoidal_table(max_length, d_model), persistent=False)

    def forward(self, x):
        if x.size(2) != self.table.size(1):
            raise ValueError("another width")
        if x.size(1) > len(self.table):
            raise ValueError("too long")
        tokens = []
        for t in range(x.size(1)):
            tokens.append(x[:, t] + self.table[t].to(x.dtype))
        return self.drop(torch.stack(tokens, dim=1))


# %% exercise="half_and_half_table"
def half_and_half_table(length, d_model, base=10000.0):
    if d_model % 2 or d_model < 2 or length < 1 or base <= 1:
        raise ValueError("d_model is even, length and base are large enough")
    table = torch.zeros(length, d_model)
    for p in range(length):
        for k in range(d_model // 2):
            angle = p * base ** (-2 * k / d_model)
            table[p, k] = math.sin(angle)
            table[p, k + d_model // 2] = math.cos(angle)
    return table


# %% exercise="interleaved_to_half"
def interleaved_to_half(d_model):
    if d_model % 2 or d_model < 2:
        raise ValueError("d_model is even")
    columns = []
    for start in (0, 1):
        for column in range(start, d_model, 2):
            columns.append(column)
    return torch.tensor(columns)


# %% exercise="offset_rotation"
def offset_rotation(offset, d_model, base=10000.0):
    if type(offset) is not int:
        raise ValueError("offset is a whole number")
    if d_model % 2 or d_model < 2 or base <= 1:
        raise ValueError("d_model is even, and base is above 1")
    matrix = torch.zeros(d_model, d_model)
    for first in range(0, d_model, 2):
        angle = offset * base ** (-first / d_model)
        matrix[first, first] = math.cos(angle)
        matrix[first, first + 1] = math.sin(angle)
        matrix[first + 1, first] = -math.sin(angle)
        matrix[first + 1, first + 1] = math.cos(angle)
    return matrix


# %% exercise="LearnedPositions"
class LearnedPositions(nn.Module):
    def __init__(self, max_length, d_model):
        super().__init__()
        self.table = nn.Embedding(max_length, d_model)

    def forward(self, x):
        if x.size(2) != self.table.embedding_dim:
            raise ValueError("another width")
        if x.size(1) > self.table.num_embeddings:
            raise ValueError("too long")
        examples = []
        for example in x:
            rows = [token + self.table.weight[t] for t, token in enumerate(example)]
            examples.append(torch.stack(rows))
        return torch.stack(examples)


# %% exercise="relative_indices"
def relative_indices(length, max_distance):
    if length < 1 or max_distance < 0:
        raise ValueError("length is at least 1, max_distance at least 0")
    rows = []
    for i in range(length):
        row = []
        for j in range(length):
            away = j - i
            if away > max_distance:
                away = max_distance
            if away < -max_distance:
                away = -max_distance
            row.append(away + max_distance)
        rows.append(row)
    return torch.tensor(rows)


# %% exercise="RelativeSelfAttention"
class RelativeSelfAttention(nn.Module):
    def __init__(self, d_model, num_heads, max_distance):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("num_heads divides d_model")
        self.heads, self.size, self.far = num_heads, d_model // num_heads, max_distance
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.key_offsets = nn.Parameter(torch.zeros(2 * max_distance + 1, self.size))
        self.value_offsets = nn.Parameter(torch.zeros(2 * max_distance + 1, self.size))

    def forward(self, x, mask=None):
        batch, length, width = x.shape
        if width != self.heads * self.size:
            raise ValueError("another width")
        if mask is None:
            mask = torch.ones(length, length, dtype=torch.bool)
        if mask.dtype is not torch.bool:
            raise ValueError("a mask holds True and False")
        try:
            mask = mask.expand(batch, length, length)
        except RuntimeError as error:
            raise ValueError("a mask of another shape") from error
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        index = relative_indices(length, self.far)
        outputs, maps = [], []
        for b in range(batch):
            joined, of_heads = [], []
            for h in range(self.heads):
                own = slice(h * self.size, (h + 1) * self.size)
                rows, results = [], []
                for i in range(length):
                    allowed = [j for j in range(length) if mask[b, i, j]]
                    row = torch.zeros(length, dtype=x.dtype)
                    z = torch.zeros(self.size, dtype=x.dtype)
                    if allowed:
                        scores = [
                            q[b, i, own].dot(k[b, j, own] + self.key_offsets[index[i, j]])
                            for j in allowed
                        ]
                        shares = torch.softmax(torch.stack(scores) / math.sqrt(self.size), 0)
                        row = row.index_put((torch.tensor(allowed),), shares)
                        for share, j in zip(shares, allowed):  # noqa: B905
                            z = z + share * (v[b, j, own] + self.value_offsets[index[i, j]])
                    rows.append(row)
                    results.append(z)
                of_heads.append(torch.stack(rows))
                joined.append(torch.stack(results))
            maps.append(torch.stack(of_heads))
            outputs.append(torch.cat(joined, dim=-1))
        return self.out_proj(torch.stack(outputs)), torch.stack(maps)


# %% exercise="RotaryEmbedding"
class RotaryEmbedding(nn.Module):
    def __init__(self, head_dim, base=10000.0, interleaved=False):
        super().__init__()
        if head_dim % 2 == 1:
            raise ValueError("a feature has no partner")
        self.head_dim = head_dim
        self.base = base
        self.pairs = []
        for i in range(head_dim // 2):
            self.pairs.append((2 * i, 2 * i + 1) if interleaved else (i, i + head_dim // 2))

    def tables(self, position_ids):
        cosines, sines = [], []
        for i in range(self.head_dim // 2):
            angle = position_ids * self.base ** (-2 * i / self.head_dim)
            cosines.append(torch.cos(angle))
            sines.append(torch.sin(angle))
        return torch.stack(cosines, dim=-1), torch.stack(sines, dim=-1)

    def forward(self, x, position_ids=None):
        if x.shape[-1] != self.head_dim:
            raise ValueError("another width")
        if position_ids is None:
            position_ids = torch.arange(x.shape[-2])
        cos, sin = self.tables(position_ids)
        features = [None] * self.head_dim
        for i, (first, second) in enumerate(self.pairs):
            a, b = x[..., first], x[..., second]
            features[first] = a * cos[..., i] - b * sin[..., i]
            features[second] = a * sin[..., i] + b * cos[..., i]
        return torch.stack(features, dim=-1).to(x.dtype)


# %% exercise="alibi_biases"
def alibi_biases(num_heads, length):
    if num_heads < 1 or length < 1:
        raise ValueError("at least one head and one position")
    power = 1
    while power * 2 <= num_heads:
        power = power * 2
    slopes = []
    for h in range(num_heads):
        if h < power:
            slopes.append(2.0 ** (-8 * (h + 1) / power))
        else:
            slopes.append(2.0 ** (-8 * (2 * (h - power) + 1) / (2 * power)))
    result = torch.zeros(num_heads, length, length)
    for h in range(num_heads):
        for i in range(length):
            for j in range(length):
                result[h, i, j] = -slopes[h] * abs(i - j)
    return result
