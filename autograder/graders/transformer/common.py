"""What the graders of several units of the Transformer share."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from autograder.graders.common import State, attention_state, linear, pair
from autograder.judging import expectations

PAD, BOS, EOS, UNK = 0, 1, 2, 3


def ffn_state(draw, width, inner, prefix="") -> State:
    return linear(draw, f"{prefix}w_1", inner, width) | linear(draw, f"{prefix}w_2", width, inner)


def norm_state(draw, width, prefix="") -> State:
    return {
        f"{prefix}gamma": 1.0 + draw.normal(width, scale=0.4),
        f"{prefix}beta": draw.normal(width, scale=0.5),
    }


ENCODER, DECODER = ("self_attn",), ("self_attn", "src_attn")


def layer_state(draw, attentions, width, inner, prefix="") -> State:
    state = {}
    for name in attentions:
        state |= attention_state(draw, width, f"{prefix}{name}.")
    state |= ffn_state(draw, width, inner, f"{prefix}feed_forward.")
    for place in range(len(attentions) + 1):
        state |= norm_state(draw, width, f"{prefix}sublayer.{place}.norm.")
    return state


def stack_state(draw, attentions, layers, width, inner, norm_first=False, prefix="") -> State:
    state = {}
    for number in range(layers):
        state |= layer_state(draw, attentions, width, inner, f"{prefix}layers.{number}.")
    return state | (norm_state(draw, width, f"{prefix}norm.") if norm_first else {})


def model_state(draw, sources, targets, layers, width, inner, norm_first=False) -> State:
    return {
        "src_embed.lut.weight": draw.normal(sources, width, scale=width**-0.5),
        "tgt_embed.lut.weight": draw.normal(targets, width, scale=width**-0.5),
        **stack_state(draw, ENCODER, layers, width, inner, norm_first, "encoder."),
        **stack_state(draw, DECODER, layers, width, inner, norm_first, "decoder."),
        **linear(draw, "generator.proj", targets, width),
    }


# What a connection may do with x, the sub-layer and the norm; the first two are right.
CONNECTIONS: tuple[Callable, ...] = (
    lambda x, sublayer, norm: norm(x + sublayer(x)),
    lambda x, sublayer, norm: x + sublayer(norm(x)),
    lambda x, sublayer, norm: x + norm(sublayer(x)),
    lambda x, sublayer, norm: norm(x) + sublayer(norm(x)),
    lambda x, sublayer, norm: norm(sublayer(x)),
    lambda x, sublayer, norm: sublayer(norm(x)),
    lambda x, sublayer, norm: x + sublayer(x),
    lambda x, sublayer, norm: norm(x + sublayer(norm(x))),
)


def standard_normal(values, words):
    """Many values have mean 0, variance 1 and the tails of a normal distribution."""
    values = values.double().flatten()
    count = values.numel()
    mean, variance = float(values.mean()), float((values**2).mean())
    # Laurent and Massart's bounds on the tails of chi squared, each of 5e-10.
    rare = math.log(2e9)
    low, high = 1 - 2 * math.sqrt(rare / count), 1 + 2 * math.sqrt(rare / count) + 2 * rare / count
    expectations.true(
        low <= variance <= high,
        f"The variance of {words} should be 1, but is {variance:.3g} over {count} values.",
    )
    expectations.true(
        abs(mean) <= math.sqrt(2 * rare / count),
        f"The mean of {words} should be 0, but is {mean:.3g} over {count} values.",
    )
    inside = math.erf(math.sqrt(0.5))
    expectations.rate(
        int((values.abs() < 1).sum()), count, inside, what=f"the share of {words} within (-1, 1)"
    )
    beyond = math.erfc(2.5 * math.sqrt(0.5))
    expectations.rate(
        int((values.abs() > 2.5).sum()), count, beyond, what=f"the share of {words} beyond 2.5"
    )


def padded(draw, lengths, longest=None, high=9):
    """Rows of random ids, BOS first, with PAD behind as many as `lengths` says."""
    ids = draw.integers(UNK + 1, high, len(lengths), longest or max(lengths))
    ids[:, 0] = BOS
    return ids.masked_fill(torch.arange(ids.shape[1]) >= torch.tensor(lengths).unsqueeze(1), PAD)


def triangle(size):
    """(size, size): the causal mask, without the batch axis."""
    return torch.ones(size, size, dtype=torch.bool).tril()


def changes(after, before) -> list[int]:
    """The positions at which two outputs of one example differ by more than rounding."""
    expectations.shape(after, before.shape, what="the output")
    return ((after - before).abs().amax(-1)[0] > 1e-5).nonzero().flatten().tolist()


# --------------------------------------------------------------------------------------------
# What the tests of training and decoding share
# --------------------------------------------------------------------------------------------


def as_list(actual, what, case=""):
    """`actual`, which must be a list or a tuple."""
    suffix = f" for {case}" if case else ""
    expectations.true(
        isinstance(actual, (list, tuple)),
        f"{what} should be a list, but is a {expectations.type_name(actual)}{suffix}"
        + ("; .tolist() makes one." if isinstance(actual, torch.Tensor) else "."),
    )
    return list(actual)


def whole_number(actual, what, case=""):
    """`actual`, which must be an int; True is none."""
    suffix = f" for {case}" if case else ""
    expectations.true(
        isinstance(actual, int) and not isinstance(actual, bool),
        f"{what} should be an int, but is a {expectations.type_name(actual)}{suffix}"
        + ("; .item() makes one." if isinstance(actual, torch.Tensor) else "."),
    )
    return actual


def filled_up(rows, pad=PAD):
    """Lists of ids as a tensor, filled up with pad on the right."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows])


def sources_of(draw, lengths, vocabulary=7):
    """Padded rows of random ids of the given lengths."""
    return filled_up([draw.integers(UNK + 1, vocabulary, n).tolist() for n in lengths])


def targets_of(draw, lengths, vocabulary=8, pad=PAD):
    """Padded targets, BOS and EOS and as many random ids between them as the lengths say."""
    rows = [[BOS, *draw.integers(UNK + 1, vocabulary, n).tolist(), EOS] for n in lengths]
    return filled_up(rows, pad)


# What the small models are made with; each has a state of its own from `small_state`.
SMALL = {
    "src_vocab_size": 7,
    "tgt_vocab_size": 8,
    "d_model": 8,
    "d_ff": 12,
    "num_heads": 2,
    "dropout": 0.0,
}


def small(num_layers=1, norm_first=False, **changes):
    """The options of a small EncoderDecoder; few positional encodings are quickly computed."""
    return {
        **SMALL,
        "num_layers": num_layers,
        "norm_first": norm_first,
        "max_length": 20,
        **changes,
    }


def small_state(draw, num_layers, norm_first=False, **sizes):
    """Random parameters of such a model, in float64; none of them is 0 or 1."""
    given = {**SMALL, **sizes}
    order = (
        given["src_vocab_size"],
        given["tgt_vocab_size"],
        num_layers,
        given["d_model"],
        given["d_ff"],
    )
    return {name: value.double() for name, value in model_state(draw, *order, norm_first).items()}


class Models:
    """A student's small EncoderDecoder and the reference's, with the same parameters, in float64.

    Mistakes in the layers cost nothing here: where the student's output differs from the
    reference's, `right` is False, and the student's own model is what counts.
    """

    def __init__(self, student, reference, draw, state, name="EncoderDecoder", **options):
        self.student, self.name, self.state, self.options = student, name, state, options
        self.mine, self.theirs = pair(student, reference, name, state, torch.float64, **options)
        start = sources_of(draw, [3, 2], 6), targets_of(draw, [2, 1], 6)
        said, wanted = self.mine(*start), self.theirs(*start)
        self.right = isinstance(said, torch.Tensor) and expectations.close_enough(said, wanted)

    def loss_at(self, state, source, target, smoothing):
        """The loss of the student's model with other parameters."""
        made = {"state": state, "dtype": torch.float64, **self.options}
        model = self.student.module(self.name, **made)
        return smoothed(model(source, target[:, :-1]), target, smoothing)


def train(proxy, model, *arguments, **options):
    """The loss and the moments of one step; `moments`, the third argument, must stay as it was."""
    got = proxy.training("train_step", model, *arguments, **options)
    loss, moments = expectations.pair(got, what="the result (loss, moments)")
    changed = {label.split(".")[0] for label in proxy.transcript[-1].outcome["mutated"]}
    expectations.true(
        "3" not in changed,
        "your train_step changes the moments it was given; put the new ones into a new dict.",
    )
    expectations.true(
        not changed, "your train_step changes source or target in place; create new tensors."
    )
    return loss, moments


def own_model(student, draw, num_layers=1, norm_first=False, **changes):
    """A small model of the student's, in float64."""
    state = small_state(draw, num_layers, norm_first)
    options = small(num_layers, norm_first, **changes)
    return student.module("EncoderDecoder", state=state, dtype=torch.float64, **options)


def smoothed(log_probs, target, smoothing=0.1):
    """The loss of a model's own log-probabilities."""
    real = target[:, 1:] != PAD
    correct = -log_probs.gather(-1, target[:, 1:].unsqueeze(-1)).squeeze(-1)
    losses = (1 - smoothing) * correct - smoothing * log_probs.mean(-1)
    return float(losses[real].mean())


def heads(x, state, name, num_heads=2):
    """A linear layer of `state` applied to x (B, T, D), split into heads: (B, H, T, D/H)."""
    made = x @ state[f"{name}.weight"].T + state[f"{name}.bias"]
    return made.unflatten(-1, (num_heads, -1)).transpose(1, 2)
