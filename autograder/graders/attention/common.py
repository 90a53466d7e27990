"""What the graders of several units of attention share.

Inputs are standard normal unless a test says otherwise, so that scores have a standard deviation
of a few units at most: no softmax saturates, and a missing, a wrong and a doubled scaling give
visibly different weights.
"""

from __future__ import annotations

import torch

from autograder.graders.common import same_results

FAR = 2.0**12


def linear(draw, name, outputs, inputs, bias=True):
    """The state of one `nn.Linear`: rows of unit variance, and a bias that is hard to overlook."""
    state = {f"{name}.weight": draw.normal(outputs, inputs, scale=inputs**-0.5)}
    if bias:
        state[f"{name}.bias"] = draw.normal(outputs, scale=0.5)
    return state


OUTPUT = ("output", "attn_weights")


def reading(weight, feature, axis=-1):
    """Like `weight`, but it reads one feature and nothing else, times 2**12."""
    only = torch.zeros_like(weight)
    only.select(axis, feature).fill_(FAR)
    return only


def marked(tokens, real):
    """float64 tokens whose feature 0 is -1 where they are real and 1 elsewhere; feature 1 is 1.

    With queries of 2**12 and keys of 2**12 times feature 0, scores are about -2e7 at real tokens
    and 2e7 at masked ones: -10000 doesn't mask beside them, and -1e9, which many write, does.
    """
    tokens = tokens.double()
    tokens[..., 0] = 1.0 - 2.0 * real.double()
    tokens[..., 1] = 1.0
    return tokens


BESIDE = "scores of about -2e7 beside masked ones of 2e7 (mask with -inf, not with a number)"


def same_beside(mine, theirs):
    """Results for `marked` tokens agree. Of another dtype, they say nothing of the mask."""
    values = mine if isinstance(mine, (tuple, list)) else (mine,)
    double = all(getattr(value, "dtype", torch.float64) == torch.float64 for value in values)
    same_results(mine, theirs, OUTPUT, BESIDE if double else "float64 inputs")
