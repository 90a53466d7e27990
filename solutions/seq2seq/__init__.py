"""Sequence to sequence: the reference modules of its units, and their names."""

from solutions.seq2seq.decoding import (
    NextTokenTable,
    beam_search,
    exhaustive_search,
    greedy_decode,
    sequence_log_prob,
    sequence_loss,
)
from solutions.seq2seq.recurrent import (
    BidirectionalEncoder,
    DecoderStep,
    Encoder,
    GRUCell,
    LSTMCell,
    RNNCell,
    Seq2Seq,
)
from solutions.seq2seq.text import (
    BOS,
    EOS,
    PAD,
    SPECIALS,
    UNK,
    build_vocabulary,
    decode,
    encode,
    pad_batch,
    pad_to_length,
    sliding_windows,
)

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "SPECIALS",
    "UNK",
    "BidirectionalEncoder",
    "DecoderStep",
    "Encoder",
    "GRUCell",
    "LSTMCell",
    "NextTokenTable",
    "RNNCell",
    "Seq2Seq",
    "beam_search",
    "build_vocabulary",
    "decode",
    "encode",
    "exhaustive_search",
    "greedy_decode",
    "pad_batch",
    "pad_to_length",
    "sequence_log_prob",
    "sequence_loss",
    "sliding_windows",
]
