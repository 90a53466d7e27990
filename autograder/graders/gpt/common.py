"""What the graders of several units of GPT share."""

from __future__ import annotations

import torch

from autograder.graders.common import State, linear, norm_state
from autograder.graders.parts import alive, by_parts
from autograder.judging import expectations

SPECIAL = 5  # ids below it are special


def fused_state(draw, width, prefix="") -> State:
    """The parameters of a CausalSelfAttention."""
    return linear(draw, f"{prefix}qkv", 3 * width, width) | linear(
        draw, f"{prefix}out_proj", width, width
    )


def ffn_state(draw, width, prefix="") -> State:
    """The parameters of a FeedForward."""
    return linear(draw, f"{prefix}w_1", 4 * width, width) | linear(
        draw, f"{prefix}w_2", width, 4 * width
    )


def block_state(draw, width, prefix="") -> State:
    """The parameters of a block, of either kind."""
    return {
        **fused_state(draw, width, f"{prefix}attention."),
        **norm_state(draw, f"{prefix}norm_1", width),
        **ffn_state(draw, width, f"{prefix}feed_forward."),
        **norm_state(draw, f"{prefix}norm_2", width),
    }


def gpt_options(vocabulary=9, context=8, width=6, layers=2, heads=2, **more):
    """The arguments of a small GPT, without dropout unless `more` says otherwise."""
    return {
        "vocab_size": vocabulary,
        "max_length": context,
        "d_model": width,
        "num_layers": layers,
        "num_heads": heads,
        "dropout": 0.0,
        **more,
    }


def gpt_state(draw, options, prefix="") -> State:
    """Random parameters of a GPT; none of them is 0 or 1."""
    width = options["d_model"]
    state = {
        f"{prefix}token.weight": draw.normal(options["vocab_size"], width),
        f"{prefix}position.weight": draw.normal(options["max_length"], width),
    }
    for number in range(options["num_layers"]):
        state |= block_state(draw, width, f"{prefix}blocks.{number}.")
    if options.get("norm_first", True):
        state |= norm_state(draw, f"{prefix}final_norm", width)
    return state


def drawn(model, layer, count):
    """The entries of one layer's matrices in all `count` blocks."""
    names = [f"blocks.{number}.{layer}.weight" for number in range(count)]
    found = [model.method("get_parameter", name) for name in names]
    for name, value in zip(names, found, strict=True):
        expectations.tensor(value, what=name)
    return torch.cat([value.flatten() for value in found])


def chained(proxy, *parts):
    """A model that applies the parts one after the other; a part may stand in it twice."""
    model = proxy.module("nn.Sequential")
    for position, part in enumerate(parts):
        model.method("add_module", str(position), part)
    return model


def fitting(student, name, options, state, prefix=""):
    """The parameters; if the student's own part `name` has others, what fits it of them.

    Args:
        options: with which the part is made.
        state: the parameters of a module in which the part's names begin with `prefix`.
    """

    def own(parts):
        made = parts.proxy.module(name, **options)
        return made.state(), made.parameters()

    found = by_parts(student, own)
    if found is None:
        return state
    values, parameters = found
    dtype = next(iter(state.values())).dtype
    fitted = {key: value for key, value in state.items() if not key.startswith(prefix)}
    for key, value in values.items():
        given = state.get(prefix + key)
        if given is not None and given.shape == value.shape:
            fitted[prefix + key] = given
        elif key in parameters:  # The same for everybody, and none of them is 0 or 1.
            value = torch.arange(1.0, 1 + value.numel()).cos().reshape(value.shape)
            fitted[prefix + key] = value.to(dtype)
    return fitted


def table(draw, vocabulary=9, positions=None):
    """Logits of the next token by the token before, and, with positions, by where that stands."""
    shape = (vocabulary, vocabulary) if positions is None else (positions, vocabulary, vocabulary)
    return draw.normal(*shape, scale=1.5)


def likely(parts):
    """Whether the student's own log_likelihood says anything; it raises if not."""
    logits = torch.arange(40.0).sin().reshape(2, 4, 5)
    ids = torch.tensor([[0, 1, 2, 3], [4, 2, 0, 1]])
    found = parts.proxy.log_likelihood(logits, ids, torch.ones(2, 4, dtype=torch.bool))
    return alive(found).shape == (2,)


def texts(draw, *lengths, high=9):
    return [draw.integers(SPECIAL, high, length).tolist() for length in lengths]
