"""Right answers to `positional_encoding` by someone who thinks in whole tensors.

Read as text, cell by cell, by `make_class`.
"""

# ruff: noqa: F821

import math

import torch

# %% own="imports"
import torch.nn.functional as F
from torch import Tensor, nn

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


# %% exercise="merge_pair"
def merge_pair(ids: list[int], pair: tuple[int, int], new_id: int) -> list[int]:
    if len(ids) < 2:
        return ids[:]
    values = torch.tensor(ids)
    place = torch.arange(len(ids) - 1)
    here = (values[:-1] == pair[0]) & (values[1:] == pair[1])
    # In a run of overlapping occurrences every second one counts, from the left.
    start = torch.where(here, 0, place + 1).cummax(0).values
    here &= (place - start) % 2 == 0
    second = F.pad(here, (1, 0))
    return torch.where(F.pad(here, (0, 1)), new_id, values)[~second].tolist()


# %% exercise="train_bpe"
def train_bpe(text: str, num_merges: int) -> list[tuple[int, int]]:
    if num_merges < 0:
        raise ValueError(f"{num_merges} merges")
    merges: list[tuple[int, int]] = []
    # One long list; -1 stands between chunks and belongs to no pair.
    ids = [value for chunk in chunks(text) for value in [*chunk.encode(), -1]]
    for new_id in range(256, 256 + num_merges):
        values = torch.tensor(ids, dtype=torch.int64)
        pairs = torch.stack([values[:-1], values[1:]], dim=-1)
        pairs = pairs[(pairs >= 0).all(-1)]
        if len(pairs) == 0:
            break
        # Sorted, so that the first of the most frequent is the smallest.
        different, counts = pairs.unique(dim=0, return_counts=True)
        best = tuple(different[(counts == counts.max()).nonzero()[0, 0]].tolist())
        merges.append(best)
        ids = merge_pair(ids, best, new_id)
    return merges


# %% exercise="bpe_encode"
def bpe_encode(text: str, merges: list[tuple[int, int]]) -> list[int]:
    ids = [value for chunk in chunks(text) for value in [*chunk.encode(), -1]]
    for new_id, pair in enumerate(merges, start=256):
        ids = merge_pair(ids, pair, new_id)
    return [value for value in ids if value >= 0]


# %% exercise="bpe_decode"
def bpe_decode(ids: list[int], merges: list[tuple[int, int]]) -> str:
    if ids and not (min(ids) >= 0 and max(ids) < 256 + len(merges)):
        raise ValueError("an id outside the vocabulary")
    data = list(ids)
    for new_id in reversed(range(256, 256 + len(merges))):
        data = [
            part
            for value in data
            for part in (merges[new_id - 256] if value == new_id else [value])
        ]
    return bytes(data).decode(errors="replace")


# %% exercise="wordpiece_encode"
def wordpiece_encode(
    word: str,
    vocabulary: list[str],
    unknown: str = "[UNK]",
    prefix: str = "##",
    max_chars: int = 100,
) -> list[str]:
    if not word:
        raise ValueError("an empty word")
    pieces: list[str] = []
    start = 0
    while start < len(word) <= max_chars:
        lead = prefix * (start > 0)
        fitting = {
            p for p in vocabulary if (lead + word[start:]).startswith(p) and len(p) > len(lead)
        }
        fitting = {p for p in fitting if p.startswith(lead)}
        if not fitting:
            return [unknown]
        pieces.append(max(fitting, key=len))
        start += len(pieces[-1]) - len(lead)
    return pieces or [unknown]


# %% exercise="TokenEmbedding"
class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        if not (vocab_size >= 1 and d_model >= 1):
            raise ValueError("an empty table")
        self.table = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.table.weight, std=d_model**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        if ids.dtype not in INTEGERS or 0 in ids.shape:
            raise ValueError("ids must be integers, and some")
        size = self.table.num_embeddings
        if ((ids < 0) | (ids >= size)).any():
            raise ValueError("an id outside the vocabulary")
        hot = F.one_hot(ids.long(), size).to(self.table.weight.dtype)
        return hot @ (self.table.weight * math.sqrt(self.table.embedding_dim))


# %% exercise="binary_code"
def binary_code(positions: Tensor, bits: int) -> Tensor:
    if bits < 1 or positions.dtype not in INTEGERS:
        raise ValueError("integers, and at least one bit")
    if (positions < 0).any() or (positions >= 2**bits).any():
        raise ValueError("a position that does not fit")
    powers = 2 ** torch.arange(bits)
    return positions.unsqueeze(-1).bitwise_and(powers).ne(0).to(torch.float32)


# %% exercise="angular_frequencies"
def angular_frequencies(d_model: int, base: float = 10000.0) -> Tensor:
    if not isinstance(d_model, int) or d_model < 1 or base <= 1:
        raise ValueError("d_model is an int of at least 1, base is above 1")
    return torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(base) / d_model))


# %% exercise="position_vector"
def position_vector(position: int, d_model: int, base: float = 10000.0) -> list[float]:
    if not isinstance(position, int) or position < 0:
        raise ValueError("position")
    angles = position * angular_frequencies(d_model, base).double()
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten()[:d_model].tolist()


# %% exercise="sinusoidal_table"
def sinusoidal_table(length: int, d_model: int, base: float = 10000.0) -> Tensor:
    if length < 1:
        raise ValueError("a table needs a row")
    # Everything in float32, as most programs have it.
    angles = torch.outer(torch.arange(length).float(), angular_frequencies(d_model, base))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :d_model]


# %% exercise="PositionalEncoding"
class PositionalEncoding(nn.Module):
    def __init__(self, d_model: int, max_length: int = 5000, dropout: float = 0.0) -> None:
        super().__init__()
        self.rate = dropout
        self.register_buffer("table", sinusoidal_table(max_length, d_model), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if x.size(-1) != self.table.size(-1) or x.size(1) > self.table.size(0):
            raise ValueError(f"x {tuple(x.shape)} does not fit the table {tuple(self.table.shape)}")
        total = x + self.table.narrow(0, 0, x.size(1)).unsqueeze(0).type_as(x)
        return F.dropout(total, self.rate, self.training)


# %% exercise="half_and_half_table"
def half_and_half_table(length: int, d_model: int, base: float = 10000.0) -> Tensor:
    if d_model < 2 or d_model % 2 or length < 1:
        raise ValueError("d_model must be even, and length positive")
    angles = torch.outer(torch.arange(length).float(), angular_frequencies(d_model, base))
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


# %% exercise="interleaved_to_half"
def interleaved_to_half(d_model: int) -> Tensor:
    if d_model < 2 or d_model % 2:
        raise ValueError("d_model must be even")
    return torch.arange(d_model).view(-1, 2).t().flatten()


# %% exercise="offset_rotation"
def offset_rotation(offset: int, d_model: int, base: float = 10000.0) -> Tensor:
    if not isinstance(offset, int) or d_model % 2:
        raise ValueError("offset is an int, d_model is even")
    angles = offset * angular_frequencies(d_model, base).double()
    blocks = torch.stack([angles.cos(), angles.sin(), -angles.sin(), angles.cos()], dim=-1)
    return torch.block_diag(*blocks.float().view(-1, 2, 2))


# %% exercise="LearnedPositions"
class LearnedPositions(nn.Module):
    def __init__(self, max_length: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max_length, d_model)

    def forward(self, x: Tensor) -> Tensor:
        if x.size(-1) != self.table.embedding_dim or x.size(1) > self.table.num_embeddings:
            raise ValueError("x does not fit the table")
        return x + self.table(torch.arange(x.size(1), device=x.device).expand(x.shape[:2]))


# %% exercise="relative_indices"
def relative_indices(length: int, max_distance: int) -> Tensor:
    if length < 1 or max_distance < 0:
        raise ValueError("length or max_distance is too small")
    # Row i is a window of one long ramp, which starts at column length - 1 - i.
    ramp = torch.arange(1 - length, length).clamp(-max_distance, max_distance) + max_distance
    return ramp.unfold(0, length, 1).flip(0).contiguous()


# %% exercise="RelativeSelfAttention"
class RelativeSelfAttention(nn.Module):
    def __init__(self, d_model: int, num_heads: int, max_distance: int) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError(f"{num_heads} heads of {d_model} features")
        self.num_heads, self.max_distance = num_heads, max_distance
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(d_model, d_model) for _ in range(4)
        )
        shape = (2 * max_distance + 1, d_model // num_heads)
        self.key_offsets = nn.Parameter(torch.randn(shape) * 0.02)
        self.value_offsets = nn.Parameter(torch.randn(shape) * 0.02)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        batch, length, width = x.shape
        if width != self.q_proj.in_features:
            raise ValueError("another width")
        q, k, v = (
            layer(x).unflatten(-1, (self.num_heads, -1))
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        near = F.one_hot(relative_indices(length, self.max_distance), len(self.key_offsets))
        near = near.to(x.dtype)
        # Keys and values as each query sees them: (B, T, T, H, Dh).
        keys = k[:, None] + torch.einsum("ijr,rd->ijd", near, self.key_offsets)[None, :, :, None]
        values = (
            v[:, None] + torch.einsum("ijr,rd->ijd", near, self.value_offsets)[None, :, :, None]
        )
        scores = torch.einsum("bihd,bijhd->bhij", q, keys) / q.size(-1) ** 0.5
        if mask is not None:
            if mask.dtype != torch.bool:
                raise ValueError("mask must be bool")
            try:
                mask = mask.broadcast_to(batch, length, length)[:, None]
            except RuntimeError:
                raise ValueError("mask does not fit") from None
            scores = torch.where(mask, scores, -1e9)
        attn_weights = scores.softmax(-1)
        if mask is not None:
            attn_weights = attn_weights * mask
        output = torch.einsum("bhij,bijhd->bihd", attn_weights, values).flatten(2)
        return self.out_proj(output), attn_weights


# %% exercise="RotaryEmbedding"
class RotaryEmbedding(nn.Module):
    def __init__(self, head_dim: int, base: float = 10000.0, interleaved: bool = False) -> None:
        super().__init__()
        if head_dim % 2:
            raise ValueError("head_dim is even")
        self.head_dim = head_dim
        self.frequencies = torch.logspace(0, -1, head_dim // 2 + 1, base)[:-1]
        # Where the partner of each feature stands, with which sign, and which angle the pair has.
        feature, half = torch.arange(head_dim), head_dim // 2
        self.partner = feature ^ 1 if interleaved else (feature + half) % head_dim
        self.sign = torch.where(self.partner > feature, -1.0, 1.0)
        self.angle = feature // 2 if interleaved else feature % half

    def tables(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = torch.einsum("...t,i->...ti", position_ids.float(), self.frequencies)
        return angles.cos(), angles.sin()

    def forward(self, x: Tensor, position_ids: Tensor | None = None) -> Tensor:
        if x.shape[-1] != self.head_dim:
            raise ValueError("another width")
        if position_ids is None:
            position_ids = torch.arange(x.shape[-2])
        cos, sin = (table[..., self.angle] for table in self.tables(position_ids))
        return torch.addcmul(x * cos, x[..., self.partner] * self.sign, sin).to(x.dtype)


# %% exercise="alibi_biases"
def alibi_biases(num_heads: int, length: int) -> Tensor:
    if min(num_heads, length) < 1:
        raise ValueError("num_heads and length are at least 1")
    power = 1 << (num_heads.bit_length() - 1)
    head = torch.arange(num_heads)
    exponent = torch.where(head < power, 2 * head + 2, 2 * (head - power) + 1) * 4 / power
    # Row i is a window of one roof, whose ridge it has at column i.
    roof = -torch.arange(1 - length, length).abs().float()
    return torch.exp2(-exponent)[:, None, None] * roof.unfold(0, length, 1).flip(0)
