"""What the graders of several units of attention share."""

from __future__ import annotations

# --------------------------------------------------------------------------------------------
# What the tests share
# --------------------------------------------------------------------------------------------


def linear(draw, name, outputs, inputs, bias=True):
    """The state of one `nn.Linear`: rows of unit variance, and a bias that is hard to overlook."""
    state = {f"{name}.weight": draw.normal(outputs, inputs, scale=inputs**-0.5)}
    if bias:
        state[f"{name}.bias"] = draw.normal(outputs, scale=0.5)
    return state


OUTPUT = ("output", "weights")
