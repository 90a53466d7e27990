# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Tokens, embeddings and positions by hand

# %%
"""Tokens, embeddings and positions: BPE, WordPiece, sinusoids, learned and relative positions."""

# The options of a cell must stand on one line, however long it gets.
# ruff: noqa: E501

# %%
import itertools
import math
import re
from collections import Counter

import torch
from torch import Tensor, nn

# %% tags=["active-ipynb"]
# from autograder import checks_for
#
# check = checks_for("positional_encoding")

# %% [markdown]
# ## chunks


# %%
def chunks(text: str) -> list[str]:
    """Cut text into words, each with the space before it, and runs of other white space.

    Joined together again, the chunks are the text.
    """
    return re.findall(r" ?[^\s]+|\s+", text)


# %% [markdown]
# ### Exercise 1: `merge_pair`
#
# Write `merge_pair` as its docstring says.
#
# Book: section `pos-tokens`.


# %% exercise="merge_pair" points=1 section="pos-tokens"
def merge_pair(ids: list[int], pair: tuple[int, int], new_id: int) -> list[int]:
    """Replace each occurrence of two neighbouring ids by one id (Sennrich et al. 2016, 3.2).

    Args:
        ids: any length; left unchanged.
        pair: the two ids to replace.
        new_id: what stands in their place.

    Returns:
        A new list. Occurrences are replaced from left to right and don't overlap.
    """
    ### BEGIN SOLUTION
    merged = []
    position = 0
    while position < len(ids):
        if tuple(ids[position : position + 2]) == pair:
            merged.append(new_id)
            position += 2
        else:
            merged.append(ids[position])
            position += 1
    return merged
    ### END SOLUTION


# %% check="merge_pair" tags=["active-ipynb"]
# check("merge_pair")

# %% [markdown]
# ### Exercise 2: `train_bpe`
#
# Write `train_bpe` as its docstring says.
#
# Book: section `pos-bpe`.


# %% exercise="train_bpe" points=4 section="pos-bpe"
def train_bpe(text: str, num_merges: int) -> list[tuple[int, int]]:
    """Learn the merges of byte-pair encoding (Sennrich et al. 2016, 3.2; bytes: GPT-2, 2.2).

    Args:
        text: what to learn from; cut by chunks(text), and no merge crosses a chunk.
        num_merges: how many merges to learn at most.

    Returns:
        The merged pairs in the order in which they were learned; pair number m makes the id
        256 + m. Each is the most frequent one at its step, the smaller tuple on a tie; fewer than
        num_merges if no pair is left.

    Raises:
        ValueError: if num_merges is negative.
    """
    ### BEGIN SOLUTION
    if num_merges < 0:
        raise ValueError(f"num_merges must be at least 0, but is {num_merges}")
    # A chunk that occurs a thousand times is merged once and counted a thousand times.
    words = [(list(chunk.encode("utf-8")), n) for chunk, n in Counter(chunks(text)).items()]
    merges = []
    for new_id in range(256, 256 + num_merges):
        counts = Counter()
        for ids, n in words:
            for pair in itertools.pairwise(ids):
                counts[pair] += n
        if not counts:
            break
        best, _ = min(counts.items(), key=lambda item: (-item[1], item[0]))
        merges.append(best)
        words = [(merge_pair(ids, best, new_id), n) for ids, n in words]
    return merges
    ### END SOLUTION


# %% check="train_bpe" tags=["active-ipynb"]
# check("train_bpe")

# %% [markdown]
# ### Exercise 3: `bpe_encode`
#
# Write `bpe_encode` as its docstring says.
#
# Book: section `pos-bpe`.


# %% exercise="bpe_encode" points=3 section="pos-bpe"
def bpe_encode(text: str, merges: list[tuple[int, int]]) -> list[int]:
    """Turn text into ids by the learned merges, in the order in which they were learned.

    Args:
        text: any Unicode text; cut by chunks(text), and no merge crosses a chunk.
        merges: the result of train_bpe; pair number m makes the id 256 + m.

    Returns:
        The ids of all chunks, one after the other, each in 0 .. 255 + len(merges).
    """
    ### BEGIN SOLUTION
    rank = {pair: number for number, pair in enumerate(merges)}
    encoded = []
    for chunk in chunks(text):
        ids = list(chunk.encode("utf-8"))
        while len(ids) > 1:
            earliest = min(itertools.pairwise(ids), key=lambda pair: rank.get(pair, math.inf))
            if earliest not in rank:
                break
            ids = merge_pair(ids, earliest, 256 + rank[earliest])
        encoded += ids
    return encoded
    ### END SOLUTION


# %% check="bpe_encode" tags=["active-ipynb"]
# check("bpe_encode")

# %% [markdown]
# ### Exercise 4: `bpe_decode`
#
# Write `bpe_decode` as its docstring says.
#
# Book: section `pos-bpe`.


# %% exercise="bpe_decode" points=2 section="pos-bpe"
def bpe_decode(ids: list[int], merges: list[tuple[int, int]]) -> str:
    """Turn ids back into text; undoes bpe_encode for any Unicode text.

    Args:
        ids: each in 0 .. 255 + len(merges).
        merges: those that made the ids.

    Returns:
        The bytes of all ids joined, then read as UTF-8; bytes that are no UTF-8 become U+FFFD.

    Raises:
        ValueError: if an id is negative or larger than 255 + len(merges).
    """
    ### BEGIN SOLUTION
    pieces = [bytes([value]) for value in range(256)]
    for left, right in merges:
        pieces.append(pieces[left] + pieces[right])
    for number in ids:
        if not 0 <= number < len(pieces):
            raise ValueError(f"id {number} is outside 0..{len(pieces) - 1}")
    # Joined before decoding: a character's bytes may be spread over several ids.
    return b"".join(pieces[number] for number in ids).decode("utf-8", errors="replace")
    ### END SOLUTION


# %% check="bpe_decode" tags=["active-ipynb"]
# check("bpe_decode")

# %% [markdown]
# ### Exercise 5: `wordpiece_encode`
#
# Write `wordpiece_encode` as its docstring says.
#
# Book: section `pos-wordpiece`.


# %% exercise="wordpiece_encode" points=3 section="pos-wordpiece"
def wordpiece_encode(
    word: str,
    vocabulary: list[str],
    unknown: str = "[UNK]",
    prefix: str = "##",
    max_chars: int = 100,
) -> list[str]:
    """Cut a word greedily into the longest pieces of a vocabulary (BERT, Devlin et al. 2019).

    Args:
        word: one word, at least one character.
        vocabulary: the pieces; those that continue a word begin with prefix.
        unknown: what stands for a word that can't be cut.
        prefix: put before every piece but the first.
        max_chars: a longer word is unknown without being tried.

    Returns:
        The pieces, or [unknown] if some rest of the word begins with no piece or the word is
        longer than max_chars characters.

    Raises:
        ValueError: if word is empty.
    """
    ### BEGIN SOLUTION
    if not word:
        raise ValueError("word is empty; give at least one character")
    if len(word) > max_chars:
        return [unknown]
    known = set(vocabulary)
    pieces = []
    start = 0
    while start < len(word):
        lead = prefix if start > 0 else ""
        for end in range(len(word), start, -1):
            if lead + word[start:end] in known:
                break
        else:
            return [unknown]
        pieces.append(lead + word[start:end])
        start = end
    return pieces
    ### END SOLUTION


# %% check="wordpiece_encode" tags=["active-ipynb"]
# check("wordpiece_encode")

# %% [markdown]
# ### Exercise 6: `TokenEmbedding`
#
# Write `TokenEmbedding` as its docstring says.
#
# Book: section `pos-embedding`.


# %% exercise="TokenEmbedding" points=2 section="pos-embedding"
class TokenEmbedding(nn.Module):
    """Token embedding scaled by sqrt(d_model) (Vaswani et al. 2017, section 3.4).

    Layer: ``table`` = nn.Embedding(vocab_size, d_model).
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        """Create ``table``."""
        super().__init__()
        ### BEGIN SOLUTION
        self.table = nn.Embedding(vocab_size, d_model)
        ### END SOLUTION

    def forward(self, ids: Tensor) -> Tensor:
        """Look up every id and scale.

        Args:
            ids: (B, T) integers in 0 .. vocab_size - 1.

        Returns:
            (B, T, D).

        Raises:
            ValueError: if ids is not of an integer type, is empty (B = 0 or T = 0), or holds an id
                outside the vocabulary.
        """
        ### BEGIN SOLUTION
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise ValueError(f"ids must be integers, but are {ids.dtype}")
        if ids.numel() == 0:
            raise ValueError(f"ids {tuple(ids.shape)} holds no token; give at least one")
        size, width = self.table.weight.shape
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0 or highest >= size:
            wrong = lowest if lowest < 0 else highest
            raise ValueError(f"id {wrong} is outside the vocabulary, 0..{size - 1}")
        return self.table(ids.long()) * math.sqrt(width)  # (B, T, D)
        ### END SOLUTION


# %% check="TokenEmbedding" tags=["active-ipynb"]
# check("TokenEmbedding")

# %% [markdown]
# ### Exercise 7: `binary_code`
#
# Write `binary_code` as its docstring says.
#
# Book: section `pos-binary`.


# %% exercise="binary_code" points=2 section="pos-binary"
def binary_code(positions: Tensor, bits: int) -> Tensor:
    """Write positions as binary numbers, the least significant digit first.

    Args:
        positions: (T,) integers in 0 .. 2**bits - 1.
        bits: number of digits, at least 1.

    Returns:
        float32 (T, bits) of 0 and 1; column k has the period 2**(k + 1).

    Raises:
        ValueError: if bits is smaller than 1, positions is not of an integer type, or a position
            is negative or needs more digits.
    """
    ### BEGIN SOLUTION
    if bits < 1:
        raise ValueError(f"bits must be at least 1, but is {bits}")
    if positions.is_floating_point() or positions.is_complex() or positions.dtype == torch.bool:
        raise ValueError(f"positions must be integers, but are {positions.dtype}")
    for position in positions.tolist():
        if not 0 <= position < 2**bits:
            raise ValueError(f"position {position} can't be written with {bits} binary digits")
    digits = torch.arange(bits, device=positions.device)  # (bits,)
    return (positions.long()[:, None] >> digits & 1).float()  # (T, bits)
    ### END SOLUTION


# %% check="binary_code" tags=["active-ipynb"]
# check("binary_code")

# %% [markdown]
# ### Exercise 8: `angular_frequencies`
#
# Write `angular_frequencies` as its docstring says.
#
# Book: section `pos-frequencies`.


# %% exercise="angular_frequencies" points=1 section="pos-frequencies"
def angular_frequencies(d_model: int, base: float = 10000.0) -> Tensor:
    """The frequencies omega_k = base**(-2k / d_model) (Vaswani et al. 2017, section 3.5).

    Args:
        d_model: width of the position vectors, at least 1.
        base: larger than 1; the wavelengths 2 pi / omega_k stay below 2 pi base.

    Returns:
        float32 (ceil(d_model / 2),), for k = 0, 1, ...; the first is 1.

    Raises:
        ValueError: if d_model is not an int or is smaller than 1, or base is not larger than 1.
    """
    ### BEGIN SOLUTION
    if not isinstance(d_model, int) or d_model < 1:
        raise ValueError(f"d_model must be an integer of at least 1, but is {d_model!r}")
    if base <= 1:
        raise ValueError(f"base must be larger than 1, but is {base}")
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model  # (ceil(d_model/2),)
    return (base**-exponents).float()  # (ceil(d_model/2),)
    ### END SOLUTION


# %% check="angular_frequencies" tags=["active-ipynb"]
# check("angular_frequencies")

# %% [markdown]
# ### Exercise 9: `position_vector`
#
# Write `position_vector` as its docstring says.
#
# Book: section `pos-sinusoid`.


# %% exercise="position_vector" points=2 section="pos-sinusoid"
def position_vector(position: int, d_model: int, base: float = 10000.0) -> list[float]:
    """The sinusoidal code of one position, number by number (Vaswani et al. 2017, section 3.5).

    Args:
        position: 0, 1, 2, ...
        d_model: width, at least 1; an odd one ends with a sine.
        base: of the frequencies omega_i = base**(-2i / d_model).

    Returns:
        d_model Python floats: sin(position omega_i) at index 2i, cos(position omega_i) at 2i + 1.

    Raises:
        ValueError: if position is not an int or is negative, or d_model is not an int or is
            smaller than 1.
    """
    ### BEGIN SOLUTION
    if not isinstance(position, int) or position < 0:
        raise ValueError(f"position must be an integer of at least 0, but is {position!r}")
    if not isinstance(d_model, int) or d_model < 1:
        raise ValueError(f"d_model must be an integer of at least 1, but is {d_model!r}")
    vector = []
    for dimension in range(d_model):
        pair = dimension // 2
        angle = position * base ** (-2 * pair / d_model)
        vector.append(math.sin(angle) if dimension % 2 == 0 else math.cos(angle))
    return vector
    ### END SOLUTION


# %% check="position_vector" tags=["active-ipynb"]
# check("position_vector")

# %% [markdown]
# ### Exercise 10: `sinusoidal_table`
#
# Write `sinusoidal_table` as its docstring says.
#
# Book: section `pos-sinusoid`.


# %% exercise="sinusoidal_table" points=3 section="pos-sinusoid"
def sinusoidal_table(length: int, d_model: int, base: float = 10000.0) -> Tensor:
    """The sinusoidal codes of positions 0 .. length - 1 (Vaswani et al. 2017, section 3.5).

    Args:
        length: number of positions, at least 1.
        d_model: width, at least 1; an odd one ends with a sine.
        base: larger than 1.

    Returns:
        float32 (length, d_model); sines in the even columns, cosines in the odd ones.

    Raises:
        ValueError: if length or d_model is smaller than 1, or base is not larger than 1.
    """
    ### BEGIN SOLUTION
    if length < 1 or d_model < 1:
        raise ValueError(f"length and d_model must be at least 1, but are {length} and {d_model}")
    if base <= 1:
        raise ValueError(f"base must be larger than 1, but is {base}")
    # In float64: at position 5000 a frequency rounded to float32 is off by up to 3e-4.
    positions = torch.arange(length, dtype=torch.float64)  # (length,)
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model  # (ceil(d_model/2),)
    angles = positions[:, None] * base**-exponents  # (length, ceil(d_model/2))
    table = torch.empty(length, d_model)  # (length, d_model)
    table[:, 0::2] = torch.sin(angles)
    table[:, 1::2] = torch.cos(angles[:, : d_model // 2])  # An odd width has one cosine less.
    return table
    ### END SOLUTION


# %% check="sinusoidal_table" tags=["active-ipynb"]
# check("sinusoidal_table")

# %% [markdown]
# ## why_many_frequencies

# %% [markdown]
# ### Exercise 11: `PositionalEncoding`
#
# Write `PositionalEncoding` as its docstring says.
#
# Book: section `pos-module`.


# %% exercise="PositionalEncoding" points=4 section="pos-module"
class PositionalEncoding(nn.Module):
    """Add the sinusoidal code to the embeddings, then dropout (Vaswani et al. 2017, 3.5 and 5.4).

    No parameters and an empty state_dict. Buffer, not persistent: ``table`` (max_length, d_model).
    """

    def __init__(self, d_model: int, max_length: int = 5000, dropout: float = 0.0) -> None:
        """Create the buffer ``table`` and the dropout.

        Args:
            d_model: width, at least 1.
            max_length: number of positions in the table, at least 1.
            dropout: probability of dropping an entry of the sum, in train mode only.

        Raises:
            ValueError: if d_model or max_length is smaller than 1.
        """
        super().__init__()
        ### BEGIN SOLUTION
        self.register_buffer("table", sinusoidal_table(max_length, d_model), persistent=False)
        self.dropout = nn.Dropout(dropout)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Add the code of position t to every x[:, t].

        Args:
            x: (B, T, D).

        Returns:
            (B, T, D), of the dtype of x.

        Raises:
            ValueError: if x is longer than the table, or of another width.
        """
        ### BEGIN SOLUTION
        max_length, d_model = self.table.shape
        if x.shape[-1] != d_model:
            raise ValueError(f"x is {x.shape[-1]} wide, but the position table is {d_model} wide")
        if x.shape[1] > max_length:
            raise ValueError(f"x has {x.shape[1]} positions, but the table ends after {max_length}")
        codes = self.table[: x.shape[1]].to(x.dtype)  # (T, D)
        return self.dropout(x + codes)  # (B, T, D)
        ### END SOLUTION


# %% check="PositionalEncoding" tags=["active-ipynb"]
# check("PositionalEncoding")

# %% [markdown]
# ### Exercise 12: `half_and_half_table`
#
# Write `half_and_half_table` as its docstring says.
#
# Book: section `pos-layouts`.


# %% exercise="half_and_half_table" points=2 section="pos-layouts"
def half_and_half_table(length: int, d_model: int, base: float = 10000.0) -> Tensor:
    """The sinusoidal table with all sines first, then all cosines (as in tensor2tensor).

    Args:
        length: number of positions, at least 1.
        d_model: width, even and at least 2.
        base: larger than 1.

    Returns:
        float32 (length, d_model); column k is sin(p omega_k), column d_model/2 + k is
        cos(p omega_k), with the frequencies of sinusoidal_table.

    Raises:
        ValueError: if d_model is odd or smaller than 2, length is smaller than 1, or base is not
            larger than 1.
    """
    ### BEGIN SOLUTION
    if d_model < 2 or d_model % 2 != 0:
        raise ValueError(f"d_model must be even and at least 2, but is {d_model}")
    table = sinusoidal_table(length, d_model, base)  # (length, d_model)
    return torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)  # (length, d_model)
    ### END SOLUTION


# %% check="half_and_half_table" tags=["active-ipynb"]
# check("half_and_half_table")

# %% [markdown]
# ### Exercise 13: `interleaved_to_half`
#
# Write `interleaved_to_half` as its docstring says.
#
# Book: section `pos-layouts`.


# %% exercise="interleaved_to_half" points=2 section="pos-layouts"
def interleaved_to_half(d_model: int) -> Tensor:
    """The order of columns that turns the interleaved layout into the half-and-half layout.

    Args:
        d_model: width, even and at least 2.

    Returns:
        int64 (d_model,) columns, with sinusoidal_table(n, d_model)[:, columns] equal to
        half_and_half_table(n, d_model).

    Raises:
        ValueError: if d_model is odd or smaller than 2.
    """
    ### BEGIN SOLUTION
    if d_model < 2 or d_model % 2 != 0:
        raise ValueError(f"d_model must be even and at least 2, but is {d_model}")
    return torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])  # (d_model,)
    ### END SOLUTION


# %% check="interleaved_to_half" tags=["active-ipynb"]
# check("interleaved_to_half")

# %% [markdown]
# ### Exercise 14: `offset_rotation`
#
# Write `offset_rotation` as its docstring says.
#
# Book: section `pos-rotation`.


# %% exercise="offset_rotation" points=3 section="pos-rotation"
def offset_rotation(offset: int, d_model: int, base: float = 10000.0) -> Tensor:
    """The matrix that moves every position's code by one offset (Vaswani et al. 2017, 3.5).

    Args:
        offset: how many positions to move; may be negative.
        d_model: width, even and at least 2; the layout is that of sinusoidal_table.
        base: larger than 1.

    Returns:
        float32 (d_model, d_model) M with table[p + offset] = M @ table[p] for every position p.

    Raises:
        ValueError: if offset is not an int, d_model is odd or smaller than 2, or base is not
            larger than 1.
    """
    ### BEGIN SOLUTION
    if not isinstance(offset, int):
        raise ValueError(f"offset must be an integer, but is {offset!r}")
    if d_model < 2 or d_model % 2 != 0:
        raise ValueError(f"d_model must be even and at least 2, but is {d_model}")
    if base <= 1:
        raise ValueError(f"base must be larger than 1, but is {base}")
    even = torch.arange(0, d_model, 2)  # (d_model/2,)
    angles = offset * base ** (-even.double() / d_model)  # (d_model/2,), float64 as in the table
    matrix = torch.zeros(d_model, d_model)  # (d_model, d_model)
    matrix[even, even] = matrix[even + 1, even + 1] = torch.cos(angles).float()
    matrix[even, even + 1] = torch.sin(angles).float()
    matrix[even + 1, even] = -torch.sin(angles).float()
    return matrix
    ### END SOLUTION


# %% check="offset_rotation" tags=["active-ipynb"]
# check("offset_rotation")

# %% [markdown]
# ### Exercise 15: `LearnedPositions`
#
# Write `LearnedPositions` as its docstring says.
#
# Book: section `pos-learned`.


# %% exercise="LearnedPositions" points=2 section="pos-learned"
class LearnedPositions(nn.Module):
    """Add a learned vector per position (Gehring et al. 2017, section 3.1; BERT and GPT).

    Layer: ``table`` = nn.Embedding(max_length, d_model).
    """

    def __init__(self, max_length: int, d_model: int) -> None:
        """Create ``table``."""
        super().__init__()
        ### BEGIN SOLUTION
        self.table = nn.Embedding(max_length, d_model)
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Add row t of the table to every x[:, t].

        Args:
            x: (B, T, D).

        Returns:
            (B, T, D).

        Raises:
            ValueError: if x is longer than the table, or of another width.
        """
        ### BEGIN SOLUTION
        max_length, d_model = self.table.weight.shape
        if x.shape[-1] != d_model:
            raise ValueError(f"x is {x.shape[-1]} wide, but the position table is {d_model} wide")
        if x.shape[1] > max_length:
            raise ValueError(f"x has {x.shape[1]} positions, but the table ends after {max_length}")
        return x + self.table.weight[: x.shape[1]]  # (B, T, D)
        ### END SOLUTION


# %% check="LearnedPositions" tags=["active-ipynb"]
# check("LearnedPositions")

# %% [markdown]
# ## does_it_extrapolate

# %% [markdown]
# ### Exercise 16: `relative_indices`
#
# Write `relative_indices` as its docstring says.
#
# Book: section `pos-relative`.


# %% exercise="relative_indices" points=2 section="pos-relative"
def relative_indices(length: int, max_distance: int) -> Tensor:
    """Which offset vector belongs to each pair of positions (Shaw et al. 2018, section 3.2).

    Args:
        length: number of positions T, at least 1.
        max_distance: k, at least 0; pairs further apart count as k apart.

    Returns:
        int64 (T, T); entry [i, j] is clip(j - i, -k, k) + k, in 0 .. 2k.

    Raises:
        ValueError: if length is smaller than 1, or max_distance is negative.
    """
    ### BEGIN SOLUTION
    if length < 1:
        raise ValueError(f"length must be at least 1, but is {length}")
    if max_distance < 0:
        raise ValueError(f"max_distance must be at least 0, but is {max_distance}")
    positions = torch.arange(length)  # (T,)
    offsets = positions[None, :] - positions[:, None]  # (T, T), j - i
    return offsets.clamp(-max_distance, max_distance) + max_distance  # (T, T)
    ### END SOLUTION


# %% check="relative_indices" tags=["active-ipynb"]
# check("relative_indices")

# %% [markdown]
# ### Exercise 17: `RelativeSelfAttention`
#
# Write `RelativeSelfAttention` as its docstring says.
#
# Book: section `pos-relative`.


# %% exercise="RelativeSelfAttention" points=5 section="pos-relative"
class RelativeSelfAttention(nn.Module):
    """Multi-head self-attention with relative positions (Shaw et al. 2018, section 3.1).

    Layers, all with bias: ``q_proj``, ``k_proj``, ``v_proj``, ``out_proj``, each d_model ->
    d_model. Parameters shared by the heads: ``key_offsets`` and ``value_offsets``, each
    (2 max_distance + 1, d_model / num_heads).
    """

    def __init__(self, d_model: int, num_heads: int, max_distance: int) -> None:
        """Create the four projections and the two tables of offset vectors.

        Args:
            d_model: width of inputs and outputs.
            num_heads: H, a divisor of d_model.
            max_distance: k, at least 0; pairs further apart count as k apart.

        Raises:
            ValueError: if num_heads does not divide d_model.
        """
        super().__init__()
        ### BEGIN SOLUTION
        if d_model % num_heads != 0:
            raise ValueError(f"d_model={d_model} can't be split into {num_heads} equal heads")
        head_dim = d_model // num_heads
        self.num_heads = num_heads
        self.max_distance = max_distance
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        distances = 2 * max_distance + 1
        self.key_offsets = nn.Parameter(torch.randn(distances, head_dim) / math.sqrt(head_dim))
        self.value_offsets = nn.Parameter(torch.randn(distances, head_dim) / math.sqrt(head_dim))
        ### END SOLUTION

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Let every token attend to every token, aware of how far apart they are.

        Args:
            x: (B, T, D).
            mask: bool, broadcastable to (B, T, T), True = may attend; the same for all heads.

        Returns:
            The output (B, T, D) and the weights (B, H, T, T). A fully masked row has weights 0,
            and its output is the bias of out_proj.

        Raises:
            ValueError: if x is not d_model wide, or the mask is not bool or not broadcastable to
                (B, T, T).
        """
        ### BEGIN SOLUTION
        batch, length, width = x.shape
        if width != self.q_proj.in_features:
            raise ValueError(f"x is {width} wide, but d_model is {self.q_proj.in_features}")
        heads = (batch, length, self.num_heads, -1)
        q = self.q_proj(x).view(heads).transpose(1, 2)  # (B, H, T, Dh)
        k = self.k_proj(x).view(heads).transpose(1, 2)  # (B, H, T, Dh)
        v = self.v_proj(x).view(heads).transpose(1, 2)  # (B, H, T, Dh)
        index = relative_indices(length, self.max_distance).to(x.device)  # (T, T)
        key_offsets = self.key_offsets[index]  # (T, T, Dh)
        value_offsets = self.value_offsets[index]  # (T, T, Dh)

        scores = q @ k.transpose(-2, -1)  # (B, H, T, T)
        scores = scores + torch.einsum("bhid,ijd->bhij", q, key_offsets)  # (B, H, T, T)
        scores = scores / math.sqrt(q.shape[-1])
        if mask is None:
            weights = torch.softmax(scores, dim=-1)  # (B, H, T, T)
        else:
            if mask.dtype != torch.bool:
                raise ValueError(f"mask must be torch.bool, but is {mask.dtype}")
            try:
                hidden = ~mask.broadcast_to(batch, length, length).unsqueeze(1)  # (B, 1, T, T)
            except RuntimeError:
                raise ValueError(
                    f"mask {tuple(mask.shape)} can't be broadcast to {(batch, length, length)}"
                ) from None
            # Not -inf, which would make a fully masked row NaN in value and gradient.
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
            weights = torch.softmax(scores, dim=-1).masked_fill(hidden, 0.0)  # (B, H, T, T)

        z = weights @ v  # (B, H, T, Dh)
        z = z + torch.einsum("bhij,ijd->bhid", weights, value_offsets)  # (B, H, T, Dh)
        z = z.transpose(1, 2).reshape(batch, length, width)  # (B, T, D)
        return self.out_proj(z), weights
        ### END SOLUTION


# %% check="RelativeSelfAttention" tags=["active-ipynb"]
# check("RelativeSelfAttention")
