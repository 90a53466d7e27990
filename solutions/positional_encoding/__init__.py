"""Tokens, embeddings and positions: the reference modules of its units, and their names."""

from solutions.positional_encoding.relative import (
    LearnedPositions,
    RelativeSelfAttention,
    RotaryEmbedding,
    alibi_biases,
    fast_relative_self_attention,
    relative_indices,
)
from solutions.positional_encoding.sinusoidal import (
    PositionalEncoding,
    angular_frequencies,
    binary_code,
    half_and_half_table,
    interleaved_to_half,
    offset_rotation,
    position_vector,
    sinusoidal_table,
)
from solutions.positional_encoding.tokens import (
    TokenEmbedding,
    bpe_decode,
    bpe_encode,
    chunks,
    fast_train_bpe,
    merge_pair,
    train_bpe,
    wordpiece_encode,
)

__all__ = [
    "LearnedPositions",
    "PositionalEncoding",
    "RelativeSelfAttention",
    "RotaryEmbedding",
    "TokenEmbedding",
    "alibi_biases",
    "angular_frequencies",
    "binary_code",
    "bpe_decode",
    "bpe_encode",
    "chunks",
    "fast_relative_self_attention",
    "fast_train_bpe",
    "half_and_half_table",
    "interleaved_to_half",
    "merge_pair",
    "offset_rotation",
    "position_vector",
    "relative_indices",
    "sinusoidal_table",
    "train_bpe",
    "wordpiece_encode",
]
