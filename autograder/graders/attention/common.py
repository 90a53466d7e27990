"""What the graders of several units of attention share.

Inputs are standard normal unless a test says otherwise, so that scores have a standard deviation
of a few units at most: no softmax saturates, and a missing, a wrong and a doubled scaling give
visibly different weights.
"""

from __future__ import annotations


def linear(draw, name, outputs, inputs, bias=True):
    """The state of one `nn.Linear`: rows of unit variance, and a bias that is hard to overlook."""
    state = {f"{name}.weight": draw.normal(outputs, inputs, scale=inputs**-0.5)}
    if bias:
        state[f"{name}.bias"] = draw.normal(outputs, scale=0.5)
    return state


OUTPUT = ("output", "attn_weights")
