"""What the graders of several units of sequence to sequence share."""

from __future__ import annotations

import torch

from autograder.judging import expectations
from autograder.judging.grader_marks import Mistake

PAD, BOS, EOS, UNK = 0, 1, 2, 3


def same_list(actual, expected, what, case=""):
    """A list of ints or strings is the expected one; True is not taken for 1."""
    suffix = f" for {case}" if case else ""
    if not isinstance(actual, list):
        make = {torch.Tensor: "; .tolist() makes one.", tuple: "; list(...) makes one."}
        got = f"{expectations.type_name(actual)}{suffix}"
        raise Mistake(f"{what} should be a list, but is a {got}{make.get(type(actual), '.')}")
    kind = type(expected[0]) if expected else object
    for item in actual:
        # A subclass will do, such as NumPy's str_, but no bool for an int.
        if expected and not (isinstance(item, kind) and not isinstance(item, bool)):
            raise Mistake(
                f"{what} should hold {kind.__name__}s only, "
                f"but holds a {expectations.type_name(item)}{suffix}."
            )
    if list(actual) != list(expected):
        raise Mistake(f"{what} should be {expected}, but is {list(actual)}{suffix}.")


def right_padded(lengths, longest=None):
    """The mask of rows with the given numbers of real tokens."""
    return torch.arange(longest or max(lengths)) < torch.tensor(lengths).unsqueeze(1)


def gates(draw, prefix, count, inputs, width):
    """The parameters of a recurrent cell with `count` gates, named as PyTorch names them."""
    return {
        f"{prefix}weight_ih": draw.normal(count * width, inputs, scale=1.5 * inputs**-0.5),
        f"{prefix}weight_hh": draw.normal(count * width, width, scale=1.5 * width**-0.5),
        f"{prefix}bias_ih": draw.normal(count * width, scale=0.5),
        f"{prefix}bias_hh": draw.normal(count * width, scale=0.5),
    }


KINDS = {"rnn": 1, "gru": 3, "lstm": 4}


def encoder_state(draw, cell, vocabulary, embed, width, prefix=""):
    return {
        f"{prefix}embedding.weight": draw.normal(vocabulary, embed),
        **gates(draw, f"{prefix}cell.", KINDS[cell], embed, width),
    }


def translator_options(sources=7, targets=6, embed=2, width=3):
    return {
        "src_vocab_size": sources,
        "tgt_vocab_size": targets,
        "embed_dim": embed,
        "hidden_size": width,
    }
