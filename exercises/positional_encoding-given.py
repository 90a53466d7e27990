"""The course's own parts, for what you have not written before positional_encoding-relative.

From solutions/positional_encoding/tokens.py and solutions/positional_encoding/sinusoidal.py.
positional_encoding-mine.ipynb takes them, and yours wherever there is one.
"""

# What each unit asks for.
EXERCISES = {
    "positional_encoding-tokens": [
        "merge_pair",
        "train_bpe",
        "bpe_encode",
        "bpe_decode",
        "wordpiece_encode",
        "TokenEmbedding",
    ],
    "positional_encoding-sinusoidal": [
        "binary_code",
        "angular_frequencies",
        "position_vector",
        "sinusoidal_table",
        "PositionalEncoding",
        "half_and_half_table",
        "interleaved_to_half",
        "offset_rotation",
    ],
    "positional_encoding-relative": [
        "LearnedPositions",
        "relative_indices",
        "RelativeSelfAttention",
        "RotaryEmbedding",
        "alibi_biases",
    ],
}

import math

import torch
from torch import Tensor, nn


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


class TokenEmbedding(nn.Module):
    """Token embedding scaled by sqrt(d_model) (Vaswani et al. 2017, section 3.4).

    Layer: ``table`` = nn.Embedding(vocab_size, d_model).
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        """Create ``table``.

        Raises:
            ValueError: if vocab_size or d_model is smaller than 1.
        """
        super().__init__()
        if vocab_size < 1 or d_model < 1:
            raise ValueError(f"a table of {vocab_size} tokens and width {d_model} holds nothing")
        self.table = nn.Embedding(vocab_size, d_model)

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
    if length < 1 or d_model < 1:
        raise ValueError(f"length and d_model must be at least 1, but are {length} and {d_model}")
    if base <= 1:
        raise ValueError(f"base must be larger than 1, but is {base}")
    # In float64: with angles in float32, rows up to 5000 are off by up to 4e-4.
    positions = torch.arange(length, dtype=torch.float64)  # (length,)
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model  # (ceil(d_model/2),)
    angles = positions[:, None] * base**-exponents  # (length, ceil(d_model/2))
    table = torch.empty(length, d_model)  # (length, d_model)
    table[:, 0::2] = torch.sin(angles)
    table[:, 1::2] = torch.cos(angles[:, : d_model // 2])  # An odd width has one cosine less.
    return table


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
        self.register_buffer("table", sinusoidal_table(max_length, d_model), persistent=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Add the code of position t to every x[:, t].

        Args:
            x: (B, T, D).

        Returns:
            (B, T, D), of the dtype of x.

        Raises:
            ValueError: if x is longer than the table, or of another width.
        """
        max_length, d_model = self.table.shape
        if x.shape[-1] != d_model:
            raise ValueError(f"x is {x.shape[-1]} wide, but the position table is {d_model} wide")
        if x.shape[1] > max_length:
            raise ValueError(f"x has {x.shape[1]} positions, but the table ends after {max_length}")
        codes = self.table[: x.shape[1]].to(x.dtype)  # (T, D)
        return self.dropout(x + codes)  # (B, T, D)
