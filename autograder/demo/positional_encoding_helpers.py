"""Right answers to `positional_encoding` by someone who lets helpers, written first, do the work.

Ids travel as characters of a string, modules inherit from one base class, later exercises go by
way of earlier ones. Read as text, cell by cell, by `make_class`. Where an exercise is
not answered here, the reference's answer is taken.
"""

# ruff: noqa: F821

# %% own="imports"
import math
from collections import Counter
from itertools import pairwise

import torch
from torch import Tensor, nn

# %% own="refusing"
# One place for all the errors.


def demand(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def demand_integers(values: Tensor, low: int, high: int) -> None:
    kinds = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    demand(values.dtype in kinds, f"expected integers, not {values.dtype}")
    demand(bool((values >= low).all() and (values < high).all()), f"expected {low} to {high - 1}")


# %% own="ids as characters"
# str.replace does just what merging asks for: from the left, without overlap.


def pack(ids: list[int]) -> str:
    return "".join(map(chr, ids))


def unpack(text: str) -> list[int]:
    return [ord(character) for character in text]


# %% exercise="merge_pair"
def merge_pair(ids: list[int], pair: tuple[int, int], new_id: int) -> list[int]:
    return unpack(pack(ids).replace(pack(pair), chr(new_id)))


# %% exercise="train_bpe"
def train_bpe(text: str, num_merges: int) -> list[tuple[int, int]]:
    demand(num_merges >= 0, "num_merges must not be negative")
    words = Counter(pack(chunk.encode()) for chunk in chunks(text))
    merges = []
    for step in range(num_merges):
        pairs = Counter()
        for packed, count in words.items():
            for two in pairwise(packed):
                pairs[two] += count
        if not pairs:
            break
        most = max(pairs.values())
        best = min(two for two, count in pairs.items() if count == most)
        merges.append((ord(best[0]), ord(best[1])))
        merged = Counter()
        for packed, count in words.items():
            merged[packed.replace("".join(best), chr(256 + step))] += count
        words = merged
    return merges


# %% exercise="bpe_encode"
def bpe_encode(text: str, merges: list[tuple[int, int]]) -> list[int]:
    known = {}

    def encoded(chunk: str) -> list[int]:
        packed = pack(chunk.encode("utf-8"))
        for number, pair in enumerate(merges):
            packed = packed.replace(pack(pair), chr(256 + number))
        return unpack(packed)

    ids = []
    for chunk in chunks(text):
        if chunk not in known:
            known[chunk] = encoded(chunk)
        ids.extend(known[chunk])
    return ids


# %% exercise="bpe_decode"
def bpe_decode(ids: list[int], merges: list[tuple[int, int]]) -> str:
    def data(value: int) -> bytes:
        demand(0 <= value < 256 + len(merges), f"{value} is no id")
        if value < 256:
            return bytes((value,))
        left, right = merges[value - 256]
        return data(left) + data(right)

    return b"".join(map(data, ids)).decode("utf-8", errors="replace")


# %% exercise="wordpiece_encode"
def wordpiece_encode(word, vocabulary, unknown="[UNK]", prefix="##", max_chars=100):
    demand(word != "", "word is empty")
    pieces = set(vocabulary)

    def cut(rest: str, lead: str) -> list[str] | None:
        if not rest:
            return []
        ends = (end for end in range(len(rest), 0, -1) if lead + rest[:end] in pieces)
        end = next(ends, None)
        tail = None if end is None else cut(rest[end:], prefix)
        return None if tail is None else [lead + rest[:end], *tail]

    found = cut(word, "") if len(word) <= max_chars else None
    return [unknown] if found is None else found


# %% exercise="TokenEmbedding"
class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        demand(min(vocab_size, d_model) > 0, "there must be tokens, and numbers for each")
        self.vocab_size, self.scale = vocab_size, d_model**0.5
        self.table = nn.Embedding(vocab_size, d_model)

    def forward(self, ids: Tensor) -> Tensor:
        demand(len(ids) > 0 and ids.shape[1] > 0, "ids is empty")
        demand_integers(ids, 0, self.vocab_size)
        return self.scale * nn.functional.embedding(ids, self.table.weight)


# %% exercise="binary_code"
def binary_code(positions: Tensor, bits: int) -> Tensor:
    demand(bits >= 1, "bits must be at least 1")
    demand_integers(positions, 0, 2**bits)
    return torch.stack([positions // 2**k % 2 for k in range(bits)], dim=1).float()


# %% exercise="angular_frequencies"
def angular_frequencies(d_model: int, base: float = 10000.0) -> Tensor:
    demand(isinstance(d_model, int) and d_model >= 1, "d_model must be a positive int")
    demand(base > 1, "base must be above 1")
    return torch.tensor([math.pow(base, -2 * k / d_model) for k in range(math.ceil(d_model / 2))])


# %% own="angles"
def angles(positions: Tensor, d_model: int, base: float) -> Tensor:
    """(positions, ceil(d_model / 2)) in float64."""
    k = torch.arange((d_model + 1) // 2, dtype=torch.float64)
    return positions.double().unsqueeze(1) / torch.pow(base, 2 * k / d_model)


def interleaved(rows: Tensor, d_model: int) -> Tensor:
    table = torch.zeros(len(rows), d_model)
    table[:, ::2] = rows.sin()
    table[:, 1::2] = rows[:, : d_model // 2].cos()
    return table


# %% exercise="position_vector"
def position_vector(position: int, d_model: int, base: float = 10000.0) -> list[float]:
    demand(isinstance(position, int) and position >= 0, "position must be 0, 1, 2, ...")
    demand(isinstance(d_model, int) and d_model >= 1, "d_model must be a positive int")
    return interleaved(angles(torch.tensor([position]), d_model, base), d_model)[0].tolist()


# %% exercise="sinusoidal_table"
def sinusoidal_table(length: int, d_model: int, base: float = 10000.0) -> Tensor:
    demand(length >= 1 and d_model >= 1 and base > 1, "length, d_model or base is too small")
    return interleaved(angles(torch.arange(length), d_model, base), d_model)


# %% own="a base class for both modules that add something"
class Adding(nn.Module):
    def added(self, x: Tensor, table: Tensor) -> Tensor:
        demand(x.shape[2] == table.shape[1], f"x must be {table.shape[1]} wide")
        demand(x.shape[1] <= len(table), f"x must not be longer than {len(table)}")
        return x + table[None, : x.shape[1], :]


# %% exercise="PositionalEncoding"
class PositionalEncoding(Adding):
    def __init__(self, d_model: int, max_length: int = 5000, dropout: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("table", sinusoidal_table(max_length, d_model), persistent=False)
        self.after = nn.Sequential(nn.Identity(), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.added(x, self.table.type_as(x)))


# %% exercise="interleaved_to_half"
def interleaved_to_half(d_model: int) -> Tensor:
    demand(d_model > 1 and d_model % 2 == 0, "d_model must be even")
    return torch.tensor(sorted(range(d_model), key=lambda column: column % 2))


# %% exercise="offset_rotation"
def offset_rotation(offset: int, d_model: int, base: float = 10000.0) -> Tensor:
    demand(isinstance(offset, int), "offset must be an int")
    demand(d_model > 1 and d_model % 2 == 0, "d_model must be even")
    demand(base > 1, "base must be above 1")
    # e^(i angle) turns cos + i sin; here the sine comes first.
    turn = torch.polar(torch.ones(1), angles(torch.tensor([offset]), d_model, base).float())[0]
    matrix = torch.diag(turn.real.repeat_interleave(2))
    first = torch.arange(0, d_model, 2)
    matrix[first, first + 1], matrix[first + 1, first] = turn.imag, -turn.imag
    return matrix


# %% exercise="LearnedPositions"
class LearnedPositions(Adding):
    def __init__(self, max_length: int, d_model: int) -> None:
        super().__init__()
        self.add_module("table", nn.Embedding(max_length, d_model))

    def forward(self, x: Tensor) -> Tensor:
        return self.added(x, self.table.weight)


# %% exercise="relative_indices"
def relative_indices(length: int, max_distance: int) -> Tensor:
    demand(length >= 1, "length must be at least 1")
    demand(max_distance >= 0, "max_distance must not be negative")
    full = torch.cartesian_prod(torch.arange(length), torch.arange(length))
    moved = (full[:, 1] - full[:, 0] + max_distance).view(length, length)
    return moved.clamp(0, 2 * max_distance)


# %% exercise="RelativeSelfAttention"
class RelativeSelfAttention(nn.Module):
    def __init__(self, d_model: int, num_heads: int, max_distance: int) -> None:
        super().__init__()
        demand(d_model % num_heads == 0, "num_heads must divide d_model")
        self.num_heads, self.max_distance = num_heads, max_distance
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            self.add_module(name, nn.Linear(d_model, d_model))
        for name in ("key_offsets", "value_offsets"):
            table = torch.empty(2 * max_distance + 1, d_model // num_heads)
            self.register_parameter(name, nn.Parameter(nn.init.xavier_uniform_(table)))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        demand(x.shape[-1] == self.out_proj.out_features, "x has another width")
        may = self.allowed(x, mask)
        q, k, v = (part(x).chunk(self.num_heads, -1) for part in self.layers())
        index = relative_indices(x.shape[1], self.max_distance)
        heads, maps = [], []
        for one_q, one_k, one_v in zip(q, k, v, strict=True):
            # The query meets every offset once; `gather` picks those of each key.
            near = (one_q @ self.key_offsets.T).gather(-1, index.expand(len(x), -1, -1))
            scores = (one_q @ one_k.mT + near) * one_q.shape[-1] ** -0.5
            scores = scores.masked_fill(~may, torch.finfo(scores.dtype).min)
            shares = (scores - scores.detach().amax(-1, keepdim=True)).exp() * may
            attn_weights = shares / shares.sum(-1, keepdim=True).clamp(min=1e-30)
            # How much weight falls on each offset.
            falls = attn_weights.new_zeros(*attn_weights.shape[:2], len(self.value_offsets))
            falls = falls.scatter_add(-1, index.expand(len(x), -1, -1), attn_weights)
            heads.append(attn_weights @ one_v + falls @ self.value_offsets)
            maps.append(attn_weights)
        return self.out_proj(torch.cat(heads, dim=-1)), torch.stack(maps, dim=1)

    def layers(self) -> tuple[nn.Module, ...]:
        return self.q_proj, self.k_proj, self.v_proj

    @staticmethod
    def allowed(x: Tensor, mask: Tensor | None) -> Tensor:
        shape = (len(x), x.shape[1], x.shape[1])
        if mask is None:
            return torch.ones(shape, dtype=torch.bool)
        demand(mask.dtype == torch.bool, "mask must be bool")
        sizes = mask.shape[::-1]
        wanted = shape[::-1]
        fits = all(size in (1, want) for size, want in zip(sizes, wanted))  # noqa: B905
        demand(fits and len(sizes) <= 3, "mask does not fit")
        return mask.expand(shape)


# %% own="complex numbers"
# A pair of features is a complex number, and a rotation is a product.


def as_complex(a: Tensor, b: Tensor) -> Tensor:
    return torch.complex(a.contiguous(), b.contiguous())


# %% exercise="RotaryEmbedding"
class RotaryEmbedding(nn.Module):
    def __init__(self, head_dim: int, base: float = 10000.0, interleaved: bool = False) -> None:
        super().__init__()
        demand(head_dim % 2 == 0, "head_dim must be even")
        self.size, self.interleaved = head_dim, interleaved
        # A plain list: neither saved nor converted with the module.
        self.steps = [base ** (-2 * i / head_dim) for i in range(head_dim // 2)]

    def tables(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids.double().unsqueeze(-1) * torch.tensor(self.steps).double()
        turns = torch.polar(torch.ones_like(angles), angles)
        return turns.real.float(), turns.imag.float()

    def forward(self, x: Tensor, position_ids: Tensor | None = None) -> Tensor:
        demand(x.size(-1) == self.size, "x has another width")
        if position_ids is None:
            position_ids = torch.arange(x.size(-2))
        wide = x if x.dtype == torch.float64 else x.float()
        pairs = self.split(wide)
        cos, sin = (table.to(wide.dtype) for table in self.tables(position_ids))
        rotated = as_complex(pairs[..., 0], pairs[..., 1]) * as_complex(cos, sin)
        return self.join(torch.view_as_real(rotated)).to(x.dtype)

    def split(self, x: Tensor) -> Tensor:
        if self.interleaved:
            return x.unflatten(-1, (-1, 2))
        return x.unflatten(-1, (2, -1)).transpose(-1, -2)

    def join(self, pairs: Tensor) -> Tensor:
        return (pairs if self.interleaved else pairs.transpose(-1, -2)).flatten(-2)


# %% own="slopes of ALiBi"
def power_slopes(heads: int) -> list[float]:
    first = 2 ** (-8 / heads)
    return [first**step for step in range(1, heads + 1)]


def slopes_of(heads: int) -> list[float]:
    below = 2 ** int(math.log2(heads))
    if below == heads:
        return power_slopes(heads)
    return power_slopes(below) + slopes_of(2 * below)[::2][: heads - below]


# %% exercise="alibi_biases"
def alibi_biases(num_heads: int, length: int) -> Tensor:
    demand(num_heads >= 1, "num_heads must be at least 1")
    demand(length >= 1, "length must be at least 1")
    places = torch.arange(length, dtype=torch.float32)[:, None]
    return -torch.einsum(
        "h,ij->hij", torch.tensor(slopes_of(num_heads)), torch.cdist(places, places)
    )
