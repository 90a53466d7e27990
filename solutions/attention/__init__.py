"""Attention: the reference modules of its units, and their names."""

from solutions.attention.multi_head import (
    CrossAttention,
    FusedMultiHeadAttention,
    MultiHeadAttention,
    PerHeadAttention,
    fast_multi_head_attention,
    merge_heads,
    separate_to_fused,
    separate_to_per_head,
    separate_to_torch,
    split_heads,
)
from solutions.attention.scores import (
    AdditiveScore,
    AttentionDecoderStep,
    BilinearScore,
    ConcatScore,
    DotScore,
    attention_dropout,
    context_vector,
    masked_softmax,
)
from solutions.attention.self_attention import (
    MaskedSelfAttention,
    SelfAttention,
    causal_mask,
    decoder_mask,
    padding_mask,
    scaled_dot_product_attention,
)

__all__ = [
    "AdditiveScore",
    "AttentionDecoderStep",
    "BilinearScore",
    "ConcatScore",
    "CrossAttention",
    "DotScore",
    "FusedMultiHeadAttention",
    "MaskedSelfAttention",
    "MultiHeadAttention",
    "PerHeadAttention",
    "SelfAttention",
    "attention_dropout",
    "causal_mask",
    "context_vector",
    "decoder_mask",
    "fast_multi_head_attention",
    "masked_softmax",
    "merge_heads",
    "padding_mask",
    "scaled_dot_product_attention",
    "separate_to_fused",
    "separate_to_per_head",
    "separate_to_torch",
    "split_heads",
]
