"""Graders of the chapter `gpt`: a plain pytest file, one group of tests for each exercise.

Tests reach the code to judge through `student` only. Inside a test the cases run from the smallest
to the largest, so that the first failure is the smallest one.

Modules are made of earlier exercises. What one answers is compared with the reference; where the
two differ, the student's own parts are asked aside, put together as the exercise says. A module
that does right by its parts earns its points, whatever became of the parts (`same_by_parts`).

Random answers are never compared value by value. Every statistical bound has a false-alarm rate
of at most 1e-9.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import nn
from torch.nn import functional as F

from autograder.graders.common import (
    State,
    dropped,
    labels,
    linear,
    norm_state,
    pair,
    refuses,
    same_gradients,
    same_number,
    same_parameters,
    sizes,
    within,
)
from autograder.graders.parts import (
    SLACK,
    alive,
    arrive,
    by_parts,
    flows,
    same_by_parts,
    same_flow,
    same_values,
    to_blame,
)
from autograder.judging import expectations
from autograder.judging.grader_marks import Mistake, aspect, exercise, hidden
from autograder.judging.proxy import Generator, StudentError, Todo
from autograder.sandbox.executor import GLOBAL_GENERATOR

# --------------------------------------------------------------------------------------------
# What the tests share
# --------------------------------------------------------------------------------------------

PAD, START, DELIMITER, EXTRACT, END = 0, 1, 2, 3, 4
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
        "context": context,
        "width": width,
        "num_layers": layers,
        "num_heads": heads,
        "dropout": 0.0,
        **more,
    }


def gpt_state(draw, options, prefix="") -> State:
    """Random parameters of a GPT; none of them is 0 or 1."""
    width = options["width"]
    state = {
        f"{prefix}token.weight": draw.normal(options["vocab_size"], width),
        f"{prefix}position.weight": draw.normal(options["context"], width),
    }
    for number in range(options["num_layers"]):
        state |= block_state(draw, width, f"{prefix}blocks.{number}.")
    if options.get("pre_norm", True):
        state |= norm_state(draw, f"{prefix}final_norm", width)
    return state


# --------------------------------------------------------------------------------------------
# causal_mask
# --------------------------------------------------------------------------------------------


def same_mask(student, reference, name, given, misconception=None):
    """The student's mask is the reference's; `given` are its arguments."""
    case = ", ".join(map(str, given))
    got, want = getattr(student, name)(*given), getattr(reference, name)(*given)
    expectations.close(
        got, want, what="the mask", case=f"{name}({case})", misconception=misconception
    )


@exercise("causal_mask", 2)
def test_causal_mask_values(student, reference):
    """Each place sees itself and what stands before it: a square of bool, True may look."""
    for length in (1, 2, 3, 5):
        same_mask(student, reference, "causal_mask", (length,))


@exercise("causal_mask", 2)
def test_causal_mask_past(student, reference):
    """With past places in front each new place sees all of those too."""
    for given in [(1, 1), (1, 3), (2, 1), (3, 2)]:
        same_mask(student, reference, "causal_mask", given)
    expectations.close(
        student.causal_mask(length=2, past=3),
        reference.causal_mask(2, 3),
        what="the mask",
        case="causal_mask(length=2, past=3)",
    )


@exercise("causal_mask")
def test_causal_mask_refusals(student, reference):
    """A length below 1 and a negative past are refused; no past at all is none of them."""
    same_mask(student, reference, "causal_mask", (2, 0))
    refuses(student.causal_mask, {"length=0": (0,), "length=-2": (-2, 3), "past=-1": (3, -1)})


@hidden
@exercise("causal_mask")
def test_causal_mask_long(student, reference, draw):
    """Any length, and more past places than new ones or fewer."""
    for _ in range(4):
        given = int(draw.integers(2, 12)), int(draw.integers(1, 15))
        same_mask(student, reference, "causal_mask", given)
    same_mask(student, reference, "causal_mask", (40,))


# --------------------------------------------------------------------------------------------
# window_mask
# --------------------------------------------------------------------------------------------


@exercise("window_mask", 2)
def test_window_mask_values(student, reference):
    """Each place sees itself and the window - 1 places before it."""
    for given in [(1, 1), (3, 2), (4, 3), (6, 2)]:
        same_mask(student, reference, "window_mask", given)


@exercise("window_mask")
def test_window_mask_borders(student, reference):
    """A window of one place is the place itself; one as long as the text is a causal mask."""
    for given in [(4, 1), (4, 4), (3, 5), (1, 3)]:
        same_mask(student, reference, "window_mask", given)


@exercise("window_mask")
def test_window_mask_refusals(student, reference):
    """A length or a window below 1 is refused; 1 is not."""
    same_mask(student, reference, "window_mask", (2, 1))
    refuses(
        student.window_mask,
        {"length=0": (0, 2), "window=0": (3, 0), "length=-1": (-1, 1), "window=-2": (4, -2)},
    )


@hidden
@exercise("window_mask")
def test_window_mask_long(student, reference, draw):
    """Any length and any window."""
    for _ in range(4):
        length = int(draw.integers(5, 20))
        same_mask(student, reference, "window_mask", (length, int(draw.integers(2, length))))


# --------------------------------------------------------------------------------------------
# CausalSelfAttention
# --------------------------------------------------------------------------------------------


def attribute(handle, name, want):
    """The module has an attribute of that name and value."""
    try:
        got = handle.method("__getattribute__", name)
    except StudentError:
        raise Mistake(f"The module has no attribute called {name}.") from None
    expectations.equal(got, want, what=f"the attribute {name}")


def fused_pair(student, reference, draw, width, heads, dtype=None, **more):
    """The student's attention, the reference's, and the parameters of both."""
    options = {"width": width, "num_heads": heads, **more}
    state = fused_state(draw, width)
    return *pair(student, reference, "CausalSelfAttention", state, dtype, **options), state


def own_mask(parts, length):
    """The student's causal_mask, whatever it shows; None if it is no mask at all."""
    alive(parts.proxy.causal_mask(4))
    mask = parts.proxy.causal_mask(length)
    of_kind = isinstance(mask, torch.Tensor) and mask.dtype == torch.bool
    return mask if of_kind and mask.shape == (length, length) else None


def right_mask(student, length):
    """Whether the student's causal_mask is right, so that nothing else is to blame."""
    mask = by_parts(student, lambda parts: own_mask(parts, length))
    return mask is not None and torch.equal(mask, torch.ones(length, length).tril() > 0)


def attention_by_parts(parts, state, heads, x, hide):
    """Attention with the student's causal_mask; `hide` is what scores are filled with."""
    given = {name: value.to(x.dtype) for name, value in state.items()}
    fused = F.linear(x, given["qkv.weight"], given["qkv.bias"])
    split = fused.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    query, key, value = split.unbind()
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    weights = scores.masked_fill(~own_mask(parts, x.shape[1]), hide).softmax(-1)
    joined = (weights @ value).transpose(1, 2).flatten(2)
    return F.linear(joined, given["out_proj.weight"], given["out_proj.bias"])


def same_attention(student, got, want, state, heads, x, case):
    """The reference's output, or what comes out with the student's own mask.

    A place that sees nothing gets NaN, or the mean of everything where scores are filled with a
    large number.
    """
    mistake = None
    for hide in (-math.inf, -1e9):
        try:
            same_by_parts(
                student,
                got,
                want,
                lambda parts, hide=hide: attention_by_parts(parts, state, heads, x, hide),
                "the output",
                case=case,
            )
            return
        except Mistake as found:
            mistake = found
    raise mistake


@aspect
@exercise("CausalSelfAttention")
def test_attention_parameters(student):
    """One layer makes queries, keys and values, one more the output; both have a bias."""
    mine = student.module("CausalSelfAttention", width=6, num_heads=2)
    expected = {
        "qkv.weight": (18, 6),
        "qkv.bias": (18,),
        "out_proj.weight": (6, 6),
        "out_proj.bias": (6,),
    }
    same_parameters(mine, expected)
    attribute(mine, "num_heads", 2)


@exercise("CausalSelfAttention", 2)
def test_attention_values(student, reference, draw):
    """Each head attends to all places up to its own; in train mode too where dropout is 0."""
    for batch, length, width, heads in [(1, 1, 2, 1), (1, 3, 4, 1), (1, 3, 4, 2), (2, 4, 6, 3)]:
        mine, theirs, state = fused_pair(student, reference, draw, width, heads)
        x = draw.normal(batch, length, width)
        case = sizes(B=batch, T=length, D=width, H=heads)
        same_attention(student, mine.train()(x), theirs(x), state, heads, x, case)


@exercise("CausalSelfAttention")
def test_attention_causal(student, reference, draw):
    """No place sees a later one, and each sees itself and the first; dropout is off in eval."""
    mine, theirs, state = fused_pair(student, reference, draw, 8, 2, dropout=0.4)
    x = draw.normal(1, 5, 8)
    before, want = mine(x), theirs(x)
    same_attention(student, before, want, state, 2, x, "dropout=0.4 in eval mode")
    if not expectations.close_enough(before, want):
        return  # It is the mask that decides what is seen.
    for place in (0, 2, 4):
        other = x.clone()
        other[0, place] += 1.0
        after = mine(other)
        expectations.shape(after, x.shape, what="the output")
        moved = ((after - before).abs().amax(-1) > 1e-6)[0].nonzero().flatten().tolist()
        expectations.true(
            moved == list(range(place, 5)),
            f"Another vector at place {place} of 5 changes the output at the places {moved}; "
            f"it should from place {place} on.",
        )


@exercise("CausalSelfAttention")
def test_attention_refuses(student):
    """A width that the number of heads does not divide is refused with a ValueError."""
    same_parameters(
        student.module("CausalSelfAttention", width=2, num_heads=2),
        {
            "qkv.weight": (6, 2),
            "qkv.bias": (6,),
            "out_proj.weight": (2, 2),
            "out_proj.bias": (2,),
        },
    )
    refuses(
        lambda width, heads: student.module("CausalSelfAttention", width=width, num_heads=heads),
        {"width=6 with 4 heads": (6, 4), "width=4 with 3 heads": (4, 3)},
    )


P = 0.4


def result_dropped(rows, p):
    """Entries of the result are 0 with probability p; a row has the same entry otherwise.

    Args:
        rows: (rows, n), each the sum of one query's weights, n times. Rows in which all weights
            were dropped are left out.
    """
    gone = rows.abs() < 1e-6
    some = ~gone.all(1)
    expectations.true(
        bool(some.any()), f"In train mode at dropout={p} nothing is left of the output."
    )
    expectations.rate(
        int(gone[some].sum()),
        gone[some].numel(),
        p,
        what=f"in train mode at dropout={p}, the share of zeros in the output",
        misconception="attention_result_not_dropped",
    )
    largest = rows.abs().amax(1, keepdim=True)
    expectations.true(
        bool((gone | ((rows - largest).abs() < 1e-3)).all()),
        f"In train mode at dropout={p} something else is dropped than the attention's weights and "
        "its result.",
    )


def weights_dropped(rows, places, p):
    """Of the `places` equal weights of each row's query some are dropped, with probability p."""
    kept = rows.abs().amax(1) * (1 - p) ** 2 * places  # how many of its weights a query has left
    expectations.true(
        bool(((kept - kept.round()).abs() < 1e-2).all()),
        f"In train mode at dropout={p} what is left is not divided by 1 - p, or weights are "
        "dropped before the softmax.",
        misconception="attention_weights_not_dropped",
    )
    expectations.rate(
        int(places.sum() - kept.round().clamp(min=0).minimum(places).sum()),
        int(places.sum()),
        p,
        what=f"in train mode at dropout={p}, the share of attention weights that are dropped",
        misconception="attention_weights_not_dropped",
    )


@hidden
@exercise("CausalSelfAttention")
def test_attention_dropout(student, draw):
    """In train mode dropout acts on each weight, and again on each entry of the result."""
    batch, length, heads, width = 4, 12, 2, 80
    half = width // heads
    # All scores are 0 and all values 1: a head's result is the sum of its weights, and out_proj
    # gives it to its half of the features.
    state = {name: torch.zeros_like(value) for name, value in fused_state(draw, width).items()}
    state["qkv.bias"][2 * width :] = 1.0
    for features in (slice(half), slice(half, width)):
        state["out_proj.weight"][features, features] = 1 / half
    options = {"width": width, "num_heads": heads}
    mine = student.module("CausalSelfAttention", state=state, dropout=P, **options)
    x = draw.normal(batch, length, width)
    want = torch.ones_like(x)
    same_attention(student, mine(x), want, state, heads, x, f"dropout={P} in eval mode")
    output = expectations.tensor(mine.train()(x), what="the output")
    expectations.shape(output, x.shape, what="the output")
    rows = output.reshape(batch, length, heads, half).transpose(1, 2).flatten(0, 2)
    places = torch.arange(1, length + 1).repeat(batch * heads)
    if right_mask(student, length):
        expectations.finite(output, what="the output")
        result_dropped(rows, P)
        weights_dropped(rows, places, P)
    else:  # Places that see nothing are not the attention's mistake.
        result_dropped(rows[rows.isfinite().all(1)], P)


@hidden
@exercise("CausalSelfAttention")
def test_attention_gradients(student, reference, draw):
    """Gradients reach x and every parameter; strided float64 input; nothing changes in place."""
    mine, theirs, state = fused_pair(student, reference, draw, 6, 2, torch.float64)
    x = draw.normal(2, 6, 4).double().mT
    seen, wanted = mine.observe(x), theirs.observe(x)
    same_attention(student, seen.value, wanted.value, state, 2, x, "a strided float64 input")
    names = labels(fused_state(draw, 1), ("0", "x"))
    arrive(seen, wanted, names, same_values(seen.value, wanted.value))
    expectations.unchanged(seen)
    mine, theirs, state = fused_pair(student, reference, draw, 4, 1, torch.float64)
    x = 30 * draw.normal(1, 3, 4).double()
    same_attention(student, mine(x), theirs(x), state, 1, x, "scores in the hundreds, one head")


# --------------------------------------------------------------------------------------------
# gelu
# --------------------------------------------------------------------------------------------


@exercise("gelu", 2)
def test_gelu_values(student, reference, draw):
    """Half of x times 1 plus a tanh, entry by entry, between -3 and 3."""
    for shape in [(), (5,), (2, 3, 4)]:
        x = draw.uniform(*shape, low=-3, high=3)
        expectations.close(
            student.gelu(x), reference.gelu(x), what="gelu(x)", case=f"x of shape {shape}"
        )


@exercise("gelu")
def test_gelu_form(student, reference):
    """The form with tanh: in float64 it differs from the exact one in the fourth place."""
    x = torch.linspace(-4, 4, 33, dtype=torch.float64)
    expectations.close(
        student.gelu(x), reference.gelu(x), what="gelu(x)", case="float64 from -4 to 4"
    )


@exercise("gelu")
def test_gelu_far_out(student, reference):
    """Far to the right it is x, far to the left 0, and it never overflows."""
    x = torch.tensor([-1e4, -50.0, -12.0, 0.0, 12.0, 50.0, 1e4])
    got = student.gelu(x)
    expectations.finite(got, what="gelu(x)", case=f"x = {x.tolist()}")
    expectations.close(got, reference.gelu(x), what="gelu(x)", case=f"x = {x.tolist()}")


@hidden
@exercise("gelu")
def test_gelu_gradients(student, reference, draw):
    """Gradients in float64, at 0 too; strided input; x is left as it was."""
    x = torch.cat([draw.normal(3, 4, scale=2).double(), torch.zeros(3, 1).double()], dim=1).mT
    seen, wanted = student.observe("gelu", x), reference.observe("gelu", x)
    expectations.close(seen.value, wanted.value, what="gelu(x)", case="a strided x in float64")
    same_gradients(seen, wanted, {"0": "x"})
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# FeedForward
# --------------------------------------------------------------------------------------------


def ffn_by_parts(parts, mine, x):
    """A feed-forward network put together from the student's gelu."""
    return parts.of(mine, "w_2")(alive(parts.proxy.gelu(parts.of(mine, "w_1")(x))))


@exercise("FeedForward")
def test_ffn_parameters(student):
    """The inner layer is four times as wide; both layers have a bias."""
    mine = student.module("FeedForward", width=3)
    expected = {"w_1.weight": (12, 3), "w_1.bias": (12,), "w_2.weight": (3, 12), "w_2.bias": (3,)}
    same_parameters(mine, expected)


@exercise("FeedForward", 2)
def test_ffn_values(student, reference, draw):
    """w_2(gelu(w_1(x))) at every place; in train mode too where dropout is 0."""
    for batch, length, width in [(1, 1, 2), (1, 2, 3), (2, 3, 4)]:
        mine, theirs = pair(student, reference, "FeedForward", ffn_state(draw, width), width=width)
        x = draw.normal(batch, length, width)
        same_by_parts(
            student,
            mine.train()(x),
            theirs(x),
            lambda parts, mine=mine, x=x: ffn_by_parts(parts, mine, x),
            "the output",
            case=sizes(B=batch, T=length, D=width),
        )


@exercise("FeedForward")
def test_ffn_eval(student, reference, draw):
    """Dropout does nothing in eval mode."""
    options = {"width": 4, "dropout": 0.5}
    mine, theirs = pair(student, reference, "FeedForward", ffn_state(draw, 4), **options)
    x = draw.normal(3, 2, 4)
    same_by_parts(
        student,
        mine(x),
        theirs(x),
        lambda parts: ffn_by_parts(parts, mine, x),
        "the output",
        case="dropout=0.5 in eval mode",
    )


@hidden
@exercise("FeedForward")
def test_ffn_dropout(student, draw):
    """In train mode the result is dropped, nothing before it, and the rest divided by 1 - p."""
    width = 16
    state = {name: torch.zeros_like(value) for name, value in ffn_state(draw, width).items()}
    state["w_1.bias"] += 20.0  # far out, where any gelu is x
    state["w_2.weight"] += 1.0 / (20.0 * 4 * width)
    state["w_2.bias"] += 1.0
    mine = student.module("FeedForward", state=state, width=width, dropout=P)
    x = draw.normal(8, 20, width)
    kept = expectations.tensor(mine(x), what="the output")
    expectations.shape(kept, x.shape, what="the output")
    expectations.finite(kept, what="the output")
    dropped(mine.train()(x), kept, P, "the output", misconception="ffn_not_dropped")


@hidden
@exercise("FeedForward")
def test_ffn_gradients(student, reference, draw):
    """Gradients reach x and every parameter; strided float64 input; x is left as it was."""
    mine, theirs = pair(
        student, reference, "FeedForward", ffn_state(draw, 3), torch.float64, width=3
    )
    x = draw.normal(3, 4, 2).double().transpose(0, 2)
    flows(
        student,
        mine,
        theirs,
        (x,),
        lambda parts: ffn_by_parts(parts, mine, x),
        "the output",
        "a strided float64 input",
    )


# --------------------------------------------------------------------------------------------
# PostNormBlock, PreNormBlock
# --------------------------------------------------------------------------------------------


def own_norm(x, state, name):
    """nn.LayerNorm as the chapter has it."""
    given = (state[f"{name}.{each}"].to(x.dtype) for each in ("weight", "bias"))
    return F.layer_norm(x, x.shape[-1:], *given)


def block_by_parts(parts, name, mine, state, x):
    """A block put together from the student's attention and feed-forward network."""
    attention, feed_forward = parts.of(mine, "attention"), parts.of(mine, "feed_forward")
    if name == "PostNormBlock":
        x = own_norm(x + attention(x), state, "norm_1")
        return own_norm(x + feed_forward(x), state, "norm_2")
    x = x + attention(own_norm(x, state, "norm_1"))
    return x + feed_forward(own_norm(x, state, "norm_2"))


def same_block(student, name, mine, theirs, state, cases, train=False):
    """A block is right on each case: words -> x."""
    for case, x in cases.items():
        same_by_parts(
            student,
            (mine.train() if train else mine)(x),
            theirs(x),
            lambda parts, x=x: block_by_parts(parts, name, mine, state, x),
            "the output",
            case=case,
        )


def steady(student, handle, *names):
    """Whether the submodules answer the same twice in eval mode."""

    def twice(parts):
        x = torch.sin(torch.arange(24.0)).reshape(2, 3, 4)
        return [[parts.aside(handle).method(name, x) for name in names] for _ in range(2)]

    got = by_parts(student, twice)
    if got is None or not all(isinstance(value, torch.Tensor) for value in got[0]):
        return True  # It is no part that could be to blame.
    return all(same_values(*both) for both in zip(*got, strict=True))


def own_block(student, state, options):
    """A block's parameters, or what fits the student's own attention and feed-forward network."""
    given = {"width": options["width"], "num_heads": options["num_heads"]}
    state = fitting(student, "CausalSelfAttention", given, state, "attention.")
    return fitting(student, "FeedForward", {"width": options["width"]}, state, "feed_forward.")


def block_pair(student, reference, name, state, dtype=None, **options):
    """The student's block, with parameters that fit its parts, and the reference's."""
    mine = pair(student, student, name, own_block(student, state, options), dtype, **options)[0]
    return mine, pair(reference, reference, name, state, dtype, **options)[0]


def block_values(student, reference, draw, name):
    cases = {
        "one vector": draw.normal(1, 1, 6),
        "B=2, T=3, D=6, H=3, dropout=0 in train mode": draw.normal(2, 3, 6),
    }
    state = block_state(draw, 6)
    mine, theirs = block_pair(student, reference, name, state, width=6, num_heads=3)
    same_block(student, name, mine, theirs, state, cases, train=True)
    cases = {"B=3, T=4, D=4, H=2, dropout=0.4 in eval mode": draw.normal(3, 4, 4)}
    state = block_state(draw, 4)
    mine, theirs = block_pair(student, reference, name, state, width=4, num_heads=2, dropout=P)
    try:
        same_block(student, name, mine, theirs, state, cases)
    except Mistake:
        if steady(student, mine, "attention", "feed_forward"):
            raise


def block_shapes(student, width):
    """The parameters of a block, by name; its parts have those that the student's own have."""
    shapes = {
        "attention.qkv.weight": (3 * width, width),
        "attention.qkv.bias": (3 * width,),
        "attention.out_proj.weight": (width, width),
        "attention.out_proj.bias": (width,),
        "feed_forward.w_1.weight": (4 * width, width),
        "feed_forward.w_1.bias": (4 * width,),
        "feed_forward.w_2.weight": (width, 4 * width),
        "feed_forward.w_2.bias": (width,),
    }
    blank = {name: torch.zeros(shape) for name, shape in shapes.items()}
    own = own_block(student, blank, {"width": width, "num_heads": 2})
    shapes = {name: tuple(value.shape) for name, value in own.items()}
    names = ("norm_1.weight", "norm_1.bias", "norm_2.weight", "norm_2.bias")
    return shapes | dict.fromkeys(names, (width,))


def own_block_shapes(student, name):
    """The parameters of the student's own block of width 4, which answers for them itself."""
    own = by_parts(student, lambda parts: parts.proxy.module(name, width=4, num_heads=2))
    if own is None:
        return block_shapes(student, 4)
    return {key: tuple(shape) for key, shape in own.parameters().items()}


def block_gradients(student, reference, draw, name):
    state = block_state(draw, 4)
    options = {"width": 4, "num_heads": 2}
    mine, theirs = block_pair(student, reference, name, state, torch.float64, **options)
    x = draw.normal(2, 4, 3).double().mT
    flows(
        student,
        mine,
        theirs,
        (x,),
        lambda parts: block_by_parts(parts, name, mine, state, x),
        "the output",
        "a strided float64 input",
    )
    # Little deviation before each norm, so that eps shows.
    small = {each: value if "norm" in each else 0.01 * value for each, value in state.items()}
    mine, theirs = block_pair(student, reference, name, small, torch.float64, **options)
    x = 0.002 * x.contiguous()
    same_by_parts(
        student,
        mine(x),
        theirs(x),
        lambda parts: block_by_parts(parts, name, mine, small, x),
        "the output",
        case="entries of x of about 0.002, in float64",
    )


def part_drops(student, reference, name, state, **options):
    """Whether the student's own part does as it should with these parameters, if it is written."""
    x = torch.ones(4, 40, options["width"])
    whole = {key: torch.ones_like(value) for key, value in state.items()}  # No entry is 0.
    try:
        proxy = student.aside()
        mine = proxy.module(name, state=state, **options)
        theirs = reference.module(name, state=state, **options)
        expectations.close(mine(x), theirs(x), what="a part")
        mine = proxy.module(name, state=whole, dropout=P, **options).train()
        value = expectations.tensor(mine(x), what="a part")
        expectations.finite(value, what="a part")
        expectations.rate(int((value.abs() < 1e-6).sum()), value.numel(), P, "a share")
    except Todo:
        return True  # The block answers for itself.
    except (Mistake, StudentError):
        return False
    return True


def block_dropout(student, reference, draw, name):
    """Dropout reaches both parts of a block, which itself drops nothing."""
    batch, length, width, heads = 6, 12, 64, 2
    zero = {each: torch.zeros_like(value) for each, value in block_state(draw, width).items()}
    state = {**zero, "norm_1.weight": torch.ones(width), "norm_2.weight": torch.ones(width)}
    # The attention adds 1 and its weights to features 16 to 39, the feed-forward network 1 to
    # features 40 to 63. All else is linear in each vector, and the first 16 features, which nothing
    # is added to, tell what it does.
    state["attention.qkv.bias"] = torch.cat([torch.zeros(2 * width), torch.ones(width)])
    state["attention.out_proj.weight"][16:40] = 1 / width
    state["attention.out_proj.bias"][16:40] = 1.0  # nothing is 0 but what is dropped at the end
    state["feed_forward.w_1.bias"] += 20.0  # far out, where any gelu is x
    state["feed_forward.w_2.weight"][40:] = 1 / (20 * 4 * width)
    x = torch.zeros(batch, length, width)
    x[:, :, 0:16:2], x[:, :, 1:16:2] = 1.0, -1.0
    options = {"width": width, "num_heads": heads}
    own = own_block(student, state, options)
    mine = student.module(name, state=own, dropout=P, **options)
    output = expectations.tensor(mine.train()(x), what="the output")
    expectations.shape(output, x.shape, what="the output")
    expectations.finite(output, what="the output")
    plus, minus = output[:, :, 0:16:2].mean(-1), output[:, :, 1:16:2].mean(-1)
    unit, zero_point = ((plus - minus) / 2).unsqueeze(-1), ((plus + minus) / 2).unsqueeze(-1)
    added = (output - zero_point) / unit
    parts = {
        "attention": ("CausalSelfAttention", options, added[:, :, 16:40]),
        "feed_forward": ("FeedForward", {"width": width}, added[:, :, 40:]),
    }
    if not all(
        part_drops(student, reference, kind, within(state, f"{part}."), **given)
        for part, (kind, given, _) in parts.items()
    ):
        return  # It is a part that is wrong.
    for part, (_, _, got) in parts.items():
        gone = got.abs() < 1e-3
        expectations.rate(
            int(gone.sum()),
            gone.numel(),
            P,
            what=f"in train mode at dropout={P}, the share of zeros in what {part} adds",
            false_alarm=1e-10,
        )


@exercise("PostNormBlock", 2)
def test_post_values(student, reference, draw):
    """Attention, then the feed-forward network: each is added to what came in, then normalised."""
    block_values(student, reference, draw, "PostNormBlock")


@exercise("PostNormBlock")
def test_post_parameters(student):
    """An attention, a feed-forward network and two norms."""
    mine = student.module("PostNormBlock", width=4, num_heads=2)
    same_parameters(mine, block_shapes(student, 4))


@exercise("PostNormBlock")
def test_post_normalised(student, draw):
    """What comes out has mean 0 and variance 1 where norm_2 has not learned yet."""
    state = block_state(draw, 8)
    state["norm_2.weight"], state["norm_2.bias"] = torch.ones(8), torch.zeros(8)
    options = {"width": 8, "num_heads": 2}
    own = own_block(student, state, options)
    mine = student.module("PostNormBlock", state=own, **options)
    value = expectations.tensor(mine(3 + draw.normal(2, 3, 8)), what="the output")
    expectations.shape(value, (2, 3, 8), what="the output")
    for what, got, want in [
        ("the mean of each output vector", value.mean(-1), 0.0),
        ("the variance of each output vector", value.var(-1, unbiased=False), 1.0),
    ]:
        expectations.true(
            bool((got - want).abs().max() < 1e-3),
            f"With a fresh norm_2 {what} should be {want:g}; it is the last step of this block.",
        )


@aspect
@hidden
@exercise("PostNormBlock")
def test_post_dropout(student, reference, draw):
    """dropout reaches attention and feed-forward network; the block itself drops nothing."""
    block_dropout(student, reference, draw, "PostNormBlock")


@hidden
@exercise("PostNormBlock")
def test_post_gradients(student, reference, draw):
    """Gradients reach x and every parameter, in float64; small deviations (eps is 1e-5)."""
    block_gradients(student, reference, draw, "PostNormBlock")


@exercise("PreNormBlock", 2)
def test_pre_values(student, reference, draw):
    """Attention and feed-forward network read normalised vectors, and are added to plain ones."""
    block_values(student, reference, draw, "PreNormBlock")


@exercise("PreNormBlock")
def test_pre_parameters(student):
    """An attention, a feed-forward network and two norms, as in the other block."""
    mine = student.module("PreNormBlock", width=4, num_heads=2)
    same_parameters(mine, block_shapes(student, 4))


@aspect
@exercise("PreNormBlock")
def test_pre_passes(student, draw):
    """Where the two parts add nothing, x comes out as it went in: no norm is in its way."""
    state = {
        name: value if name.startswith("norm") else torch.zeros_like(value)
        for name, value in block_state(draw, 6).items()
    }
    options = {"width": 6, "num_heads": 2}
    fitted = own_block(student, state, options)
    mine = student.module("PreNormBlock", state=fitted, **options)
    x = 3 + draw.normal(2, 3, 6)

    def own(parts):
        aside = parts.aside(mine)
        y = x + aside.method("attention", own_norm(x, state, "norm_1"))
        return y + aside.method("feed_forward", own_norm(y, state, "norm_2"))

    case = "parts whose parameters are all 0"
    same_by_parts(student, mine(x), x, own, "the output", case=case)


@aspect
@hidden
@exercise("PreNormBlock")
def test_pre_dropout(student, reference, draw):
    """dropout reaches attention and feed-forward network; the block itself drops nothing."""
    block_dropout(student, reference, draw, "PreNormBlock")


@hidden
@exercise("PreNormBlock")
def test_pre_gradients(student, reference, draw):
    """Gradients reach x and every parameter, in float64; small deviations (eps is 1e-5)."""
    block_gradients(student, reference, draw, "PreNormBlock")


# --------------------------------------------------------------------------------------------
# GPT
# --------------------------------------------------------------------------------------------

BLOCK = {True: "PreNormBlock", False: "PostNormBlock"}


def gpt_by_parts(parts, state, options, ids, head=True):
    """GPT put together from the student's blocks."""
    dtype, pre_norm = state["token.weight"].dtype, options.get("pre_norm", True)
    x = state["token.weight"][ids] + state["position.weight"][: ids.shape[1]]
    given = {"width": options["width"], "num_heads": options["num_heads"]}
    for number in range(options["num_layers"]):
        block = within(state, f"blocks.{number}.")
        x = parts.make(BLOCK[pre_norm], state=block, dtype=dtype, **given)(x)
    x = own_norm(x, state, "final_norm") if pre_norm else x
    return x @ state["token.weight"].mT if head else x


def own_blocks(student, state, options):
    """A GPT's parameters, or what fits the student's own blocks."""
    name = BLOCK[options.get("pre_norm", True)]
    given = {"width": options["width"], "num_heads": options["num_heads"]}
    for number in range(options["num_layers"]):
        state = fitting(student, name, given, state, f"blocks.{number}.")
    return state


def gpt_pair(student, reference, draw, options, dtype=None, scale=1.0):
    """The student's GPT, the reference's, and the parameters of the student's.

    With a large `scale` of the token vectors nothing depends on the eps of the blocks' norms.
    """
    state = gpt_state(draw, options)
    state["token.weight"] = scale * state["token.weight"]
    own = own_blocks(student, state, options)
    mine = pair(student, student, "GPT", own, dtype, **options)[0]
    theirs = pair(reference, reference, "GPT", state, dtype, **options)[0]
    return mine, theirs, {name: value.to(dtype or value.dtype) for name, value in own.items()}


def same_gpt(student, reference, draw, options, cases, train=False, methods=("forward",)):
    """GPT is right on each case: words -> ids."""
    mine, theirs, state = gpt_pair(student, reference, draw, options)
    for case, ids in cases.items():
        for method in methods:
            head = method == "forward"
            same_by_parts(
                student,
                (mine.train() if train else mine).method(method, ids),
                theirs.method(method, ids),
                lambda parts, ids=ids, head=head: gpt_by_parts(parts, state, options, ids, head),
                "the logits" if head else "the features",
                case=case,
            )


@aspect
@exercise("GPT")
def test_gpt_parameters(student):
    """Two tables, as many blocks as asked for, a last norm only with pre-norm, no other head."""
    given = {"vocab_size": 7, "context": 5, "width": 4, "num_layers": 3, "num_heads": 2}
    for pre_norm in (True, False):
        expected = {"token.weight": (7, 4), "position.weight": (5, 4)}
        block = own_block_shapes(student, BLOCK[pre_norm])
        for number in range(3):
            expected |= {f"blocks.{number}.{name}": shape for name, shape in block.items()}
        if pre_norm:
            expected |= {"final_norm.weight": (4,), "final_norm.bias": (4,)}
        mine = student.module("GPT", **given, pre_norm=pre_norm)
        same_parameters(mine, expected)
    attribute(mine, "context", 5)


@exercise("GPT", 3)
def test_gpt_pre(student, reference, draw):
    """Token plus position, every block in turn, a last norm, the token table as the head."""
    cases = {
        "one token": draw.integers(0, 9, 1, 1),
        "B=1, T=3, two blocks": draw.integers(0, 9, 1, 3),
        "B=3, T=5, two blocks, dropout=0 in train mode": draw.integers(0, 9, 3, 5),
        "B=2, T=8, as many as context": draw.integers(0, 9, 2, 8),
    }
    same_gpt(student, reference, draw, gpt_options(), cases, train=True)


@aspect
@exercise("GPT", 2)
def test_gpt_post(student, reference, draw):
    """With pre_norm=False the blocks are GPT-1's, and nothing is normalised after them."""
    cases = {
        "one token, pre_norm=False": draw.integers(0, 9, 1, 1),
        f"B=2, T=4, pre_norm=False, dropout={P} in eval mode": draw.integers(0, 9, 2, 4),
    }
    options = gpt_options(width=4, layers=3, dropout=P, pre_norm=False)
    try:
        same_gpt(student, reference, draw, options, cases, methods=("forward", "features"))
    except Mistake:
        block = student.aside().module("PostNormBlock", width=4, num_heads=2, dropout=P)
        if steady(student, block, "forward"):
            raise


@exercise("GPT")
def test_gpt_features(student, reference, draw):
    """features is what the head reads: (B, T, D), after the last norm."""
    cases = {"B=2, T=3, features": draw.integers(0, 9, 2, 3)}
    options = gpt_options(layers=1)
    same_gpt(student, reference, draw, options, cases, methods=("features",))


@aspect
@exercise("GPT")
def test_gpt_refusals(student, draw):
    """More tokens than context are refused with a ValueError, as many are not."""
    options = gpt_options(context=3, layers=1)
    mine = student.module("GPT", **options)
    expectations.shape(mine(draw.integers(0, 9, 2, 3)), (2, 3, 9), what="the logits")
    too_long = draw.integers(0, 9, 2, 4)
    words = {"4 tokens where context is 3": (too_long,)}
    refuses(mine, words)
    refuses(lambda ids: mine.method("features", ids), words)


def middle(value):
    """Of rows of two values, plus and minus, and what became of 0: how many are in the middle."""
    value = expectations.tensor(value, what="the features")
    expectations.finite(value, what="the features")
    high, low = value.amax(-1, keepdim=True), value.amin(-1, keepdim=True)
    gone = (value - (high + low) / 2).abs() < 0.01 * (high - low)
    return int(gone.sum()), gone.numel()


def alternating(*shape):
    """1 and -1 in turn along the last axis."""
    signs = torch.ones(shape)
    signs[..., 1::2] = -1.0
    return signs


@aspect
@hidden
@exercise("GPT")
def test_gpt_dropout(student, draw):
    """In train mode dropout, 0.1 if not given, acts on the embeddings and reaches the blocks."""
    width, length = 64, 20
    options = gpt_options(context=length, width=width, layers=1)
    empty = {name: torch.zeros_like(value) for name, value in gpt_state(draw, options).items()}
    for name in empty:
        if "norm" in name and name.endswith("weight"):
            empty[name] += 1.0
    ids = draw.integers(0, 9, 5, length)
    # Blocks that add nothing.
    state = {**empty, "token.weight": 0.5 * alternating(9, width)}
    state["position.weight"] = 0.5 * alternating(length, width)
    plain = {name: value for name, value in options.items() if name != "dropout"}
    given = {"width": width, "num_heads": options["num_heads"], "dropout": P}

    def idle(parts):
        block = parts.proxy.module("PreNormBlock", state=within(state, "blocks.0."), **given)
        x = state["token.weight"].unsqueeze(0)
        return same_values(block(x), x)

    if to_blame(student, idle):
        return
    for p, mine in [
        (0.1, student.module("GPT", state=state, **plain)),
        (P, student.module("GPT", state=state, **{**options, "dropout": P})),
    ]:
        got = mine.train().method("features", ids)
        expectations.shape(got, (*ids.shape, width), what="the features")
        words = "by default" if p == 0.1 else f"at dropout={p}"
        expectations.rate(
            *middle(got),
            p,
            what=f"in train mode {words}, the share of dropped entries of the embeddings",
            false_alarm=1e-10,
            misconception="gpt_embeddings_not_dropped",
        )
    # Embeddings that are 0 whatever is dropped, and one block that adds its last bias.
    state = {**empty, "blocks.0.feed_forward.w_2.bias": alternating(width)}

    def drops(parts):
        block = parts.proxy.module("PreNormBlock", state=within(state, "blocks.0."), **given)
        alone = block.train()(torch.zeros(5, length, width))
        expectations.rate(*middle(alone), P, "a share", false_alarm=1e-10)
        return True

    if to_blame(student, drops):
        return
    mine = student.module("GPT", state=state, **{**options, "dropout": P}).train()
    expectations.rate(
        *middle(mine.method("features", ids)),
        P,
        what=f"in train mode at dropout={P}, the share of zeros in what a block adds",
        false_alarm=1e-10,
        misconception="gpt_blocks_without_dropout",
    )


@hidden
@exercise("GPT")
def test_gpt_gradients(student, reference, draw):
    """Gradients reach every block's own parameters, and the token table by both ways."""
    for pre_norm in (True, False):
        options = gpt_options(width=4, context=5, pre_norm=pre_norm)
        mine, theirs, state = gpt_pair(student, reference, draw, options, torch.float64, 4.0)
        ids = draw.integers(0, 9, 4, 2).mT
        flows(
            student,
            mine,
            theirs,
            (ids,),
            lambda parts, state=state, options=options, ids=ids: gpt_by_parts(
                parts, state, options, ids
            ),
            "the logits",
            f"two blocks in float64, pre_norm={pre_norm}",
        )


# --------------------------------------------------------------------------------------------
# init_weights
# --------------------------------------------------------------------------------------------


def initialised(student, draw, layers=2, pre_norm=True, width=16):
    """A GPT of the student's after init_weights, and what that returned; None if no module.

    It is called as something that makes a module, which says of modules what it must. Before it
    no parameter is as it should be, unless the model has others than the exercise says.
    """
    given = gpt_options(30, 30, width, layers, pre_norm=pre_norm)
    before = {name: 2.0 + value for name, value in gpt_state(draw, given).items()}
    try:
        model = student.module("GPT", state=before, **given)
    except StudentError as error:
        if "StateMismatch" not in error.types:
            raise
        model = student.module("GPT", **given)
    try:
        back = student.module("init_weights", model=model)
    except StudentError as error:
        if "NotAModule" not in error.types:
            raise
        back = None
    return model, back


def has(model, name):
    """Whether the model has a parameter of that name."""
    try:
        model.method("get_parameter", name)
    except StudentError:
        return False
    return True


def blocks_of(model, most=7):
    """How many blocks the model has."""
    count = 0
    while count < most and has(model, f"blocks.{count}.norm_1.bias"):
        count += 1
    expectations.true(count > 0, "The model has no blocks.")
    return count


def deviates(values, want, what, likely):
    """Values are drawn from a normal distribution with mean 0 and deviation `want`.

    The bounds are missed by chance less than once in 1e9. Of the known mistakes `likely`,
    name -> deviation, the one that fits is named: random answers cannot be replayed.
    """
    values = values.double().flatten()
    expectations.finite(values, what=what)
    room = 6.5 / math.sqrt(2 * len(values))
    got = float(values.pow(2).mean().sqrt())
    if not abs(got / want - 1) < room:
        fitting = [name for name, other in likely.items() if abs(got / other - 1) < room]
        raise Mistake(
            f"The entries of {what} should have the deviation {want:.4g}, but have {got:.4g}.",
            fitting[0] if fitting else None,
        )
    expectations.true(
        abs(float(values.mean())) < 6.5 * want / math.sqrt(len(values)),
        f"The mean of {what} should be 0, but is {float(values.mean()):.4g}.",
    )
    # The fourth moment of a normal distribution is 3 times the square of its variance.
    fourth = float(values.pow(4).mean()) / want**4
    expectations.true(
        abs(fourth - 3) < 8 * math.sqrt(96 / len(values)),
        f"The entries of {what} have the deviation {want:.4g}, but are not normally distributed.",
        misconception="init_uniform",
    )


LAST_LAYERS = ("attention.out_proj", "feed_forward.w_2")
FIRST_LAYERS = ("attention.qkv", "feed_forward.w_1")
DEVIATION = 0.02


def drawn(model, layer, count):
    """The entries of one layer's matrices in all `count` blocks."""
    names = [f"blocks.{number}.{layer}.weight" for number in range(count)]
    found = [model.method("get_parameter", name) for name in names]
    for name, value in zip(names, found, strict=True):
        expectations.tensor(value, what=name)
    return torch.cat([value.flatten() for value in found])


def residual_deviates(model, count):
    """out_proj and w_2 have their deviation: divided by sqrt(2N) in a pre-norm model."""
    if has(model, "final_norm.bias"):
        want, words = DEVIATION / math.sqrt(2 * count), "a pre-norm GPT"
        likely = {
            "init_residual_by_root_of_n": DEVIATION / math.sqrt(count),
            "init_residual_not_scaled": DEVIATION,
            "init_residual_without_root": DEVIATION / (2 * count),
            "init_residual_enlarged": DEVIATION * math.sqrt(2 * count),
        }
    else:
        want, words = DEVIATION, "a post-norm GPT"
        likely = {"init_post_norm_scaled": DEVIATION / math.sqrt(2 * count)}
    for layer, values in [(layer, drawn(model, layer, count)) for layer in LAST_LAYERS]:
        what = f"all {layer}.weight of {words} with {count} block{'s' * (count > 1)}"
        deviates(values, want, what, likely)


def others_deviate(model, count):
    """qkv, w_1 and both tables have the deviation 0.02."""
    scaled = DEVIATION / math.sqrt(2 * count)
    likely = {"init_all_scaled": scaled, "init_variance": math.sqrt(DEVIATION)}
    for layer in FIRST_LAYERS:
        what = f"all {layer}.weight of {count} block{'s' * (count > 1)}"
        deviates(drawn(model, layer, count), DEVIATION, what, likely)
    likely = {"init_tables_left": 1.0, "init_variance": math.sqrt(DEVIATION)}
    for name in ("token.weight", "position.weight"):
        deviates(model.method("get_parameter", name), DEVIATION, name, likely)


def vectors_plain(model, count):
    """Biases are 0, weights of norms 1."""
    for number in range(count):
        for layer in (*FIRST_LAYERS, *LAST_LAYERS):
            name = f"blocks.{number}.{layer}.bias"
            if has(model, name):
                value = expectations.tensor(model.method("get_parameter", name), what=name)
                expectations.close(value, torch.zeros_like(value), what=name)
    names = [f"blocks.{number}.norm_{place}" for number in range(count) for place in (1, 2)]
    for name in [*names, *(["final_norm"] if has(model, "final_norm.bias") else [])]:
        value = expectations.tensor(model.method("get_parameter", f"{name}.weight"), what=name)
        expectations.close(value, torch.ones_like(value), what=f"{name}.weight")
        value = expectations.tensor(model.method("get_parameter", f"{name}.bias"), what=name)
        expectations.close(value, torch.zeros_like(value), what=f"{name}.bias")


@exercise("init_weights", 2)
def test_init_others(student, draw):
    """Of a pre-norm model qkv, w_1 and both tables are normal with mean 0 and deviation 0.02."""
    model, _ = initialised(student, draw)
    others_deviate(model, blocks_of(model))


@exercise("init_weights", 2)
def test_init_residual(student, draw):
    """Of a pre-norm model of N blocks out_proj and w_2 have 0.02 divided by sqrt(2N)."""
    model, _ = initialised(student, draw)
    residual_deviates(model, blocks_of(model))


@exercise("init_weights")
def test_init_vectors(student, draw):
    """Biases are 0, norms begin as 1 and 0, whatever stood there before."""
    for pre_norm in (True, False):
        model, _ = initialised(student, draw, pre_norm=pre_norm)
        vectors_plain(model, blocks_of(model))


@exercise("init_weights")
def test_init_returns(student, draw):
    """The model is changed in place and returned."""
    model, back = initialised(student, draw)
    deviates(drawn(model, FIRST_LAYERS[0], 1), DEVIATION, "qkv of the model that was given", {})
    expectations.true(back is not None, "init_weights should return the model.")
    ids = torch.arange(3)
    expectations.close(
        back.method("token", ids),
        model.method("token", ids),
        what="the token vectors of the model that init_weights returns",
    )


@hidden
@exercise("init_weights", 2)
def test_init_post(student, draw):
    """In a post-norm model, GPT-1, nothing is scaled: 0.02 everywhere."""
    model, _ = initialised(student, draw, pre_norm=False)
    count = blocks_of(model)
    others_deviate(model, count)
    residual_deviates(model, count)
    vectors_plain(model, count)


@hidden
@exercise("init_weights")
def test_init_deep(student, draw):
    """With more blocks the residual path begins smaller, the rest as before."""
    for layers in (6, 3):
        model, _ = initialised(student, draw, layers=layers, width=32)
        count = blocks_of(model)
        others_deviate(model, count)
        residual_deviates(model, count)
        vectors_plain(model, count)


# --------------------------------------------------------------------------------------------
# count_parameters
# --------------------------------------------------------------------------------------------


def same_count(student, want, case, *given, **more):
    got = student.count_parameters(*given, **more)
    expectations.equal(got, want, what="the number", case=case)


@exercise("count_parameters", 2)
def test_count_gpt2(student):
    """GPT-2 has 124,439,808, 354,823,168, 774,030,080 or 1,557,611,200 parameters."""
    for width, layers, want in [
        (768, 12, 124_439_808),
        (1024, 24, 354_823_168),
        (1280, 36, 774_030_080),
        (1600, 48, 1_557_611_200),
    ]:
        case = f"GPT-2, {sizes(V=50257, C=1024, D=width, N=layers)}"
        same_count(student, want, case, 50257, 1024, width, layers)


@exercise("count_parameters", 2)
def test_count_gpt1(student):
    """GPT-1, post-norm, has 116,534,784."""
    case = f"GPT-1, {sizes(V=40478, C=512, D=768, N=12)}, pre_norm=False"
    same_count(student, 116_534_784, case, 40478, 512, 768, 12, False)
    same_count(student, 116_534_784, case, 40478, 512, 768, 12, pre_norm=False)


@exercise("count_parameters")
def test_count_small(student, reference):
    """Any sizes: each of them counts where it should."""
    for vocabulary, context, width, layers in [(11, 5, 1, 1), (7, 12, 64, 2), (200, 30, 8, 3)]:
        for pre_norm in (True, False):
            given = (vocabulary, context, width, layers, pre_norm)
            case = f"{sizes(V=vocabulary, C=context, D=width, N=layers)}, pre_norm={pre_norm}"
            same_count(student, reference.count_parameters(*given), case, *given)


@hidden
@exercise("count_parameters")
def test_count_others(student, reference):
    """GPT-3, with its 174.6 thousand million, and the sizes of other published models."""
    for case, given in {
        "GPT-3": (50257, 2048, 12288, 96),
        "GPT-3 Small": (50257, 2048, 768, 12),
        "DistilGPT-2": (50257, 1024, 768, 6),
        "a model of bytes": (256, 1024, 512, 8),
    }.items():
        same_count(student, reference.count_parameters(*given), case, *given)


# --------------------------------------------------------------------------------------------
# rename_parameters
# --------------------------------------------------------------------------------------------

CONV_SHAPES = {
    "attn.c_attn": (2, 6),
    "attn.c_proj": (2, 2),
    "mlp.c_fc": (2, 8),
    "mlp.c_proj": (8, 2),
}


def checkpoint(draw, layers=(0,), prefix="", first=False, more=()):
    """Small tensors under the names of a Hugging Face checkpoint, of GPT-1 (`first`) or GPT-2."""
    tables = ("tokens_embed", "positions_embed") if first else ("wte", "wpe")
    shapes = {f"{tables[0]}.weight": (5, 2), f"{tables[1]}.weight": (3, 2)}
    for number in layers:
        for name, (rows, columns) in CONV_SHAPES.items():
            shapes[f"h.{number}.{name}.weight"] = (rows, columns)
            shapes[f"h.{number}.{name}.bias"] = (columns,)
        for name in ("ln_1", "ln_2"):
            shapes |= {f"h.{number}.{name}.{end}": (2,) for end in ("weight", "bias")}
    if not first:
        shapes |= {"ln_f.weight": (2,), "ln_f.bias": (2,)}
    shapes = {prefix + name: shape for name, shape in shapes.items()} | dict.fromkeys(more, (2, 2))
    return {name: draw.normal(*shape) for name, shape in shapes.items()}


def same_names(student, reference, state, case):
    """The reference's names, each with the tensor that belongs there."""
    got, want = student.rename_parameters(state), reference.rename_parameters(state)
    expectations.true(isinstance(got, dict), f"the result should be a dict for {case}.")
    missing, extra = sorted(set(want) - set(got)), sorted(map(str, set(got) - set(want)))
    expectations.true(
        not missing, f"There is no {', '.join(missing[:4])} in the result for {case}."
    )
    expectations.true(not extra, f"The result should not have {', '.join(extra[:4])} for {case}.")
    for name, value in want.items():
        expectations.close(got[name], value, what=f"the tensor called {name}", case=case)


@exercise("rename_parameters")
def test_rename_tables(student, reference, draw):
    """The tables and the last norm, with the prefix transformer. and without; ours have none."""
    same_names(student, reference, checkpoint(draw, ()), "GPT-2 without a block")
    state = checkpoint(draw, (), "transformer.")
    same_names(student, reference, state, "GPT-2 without a block, names with transformer.")


@exercise("rename_parameters", 3)
def test_rename_blocks(student, reference, draw):
    """Blocks: weights of the four c_ layers are transposed, all other tensors stay as they are."""
    same_names(student, reference, checkpoint(draw), "GPT-2 with one block")
    state = checkpoint(draw, (0, 1), "transformer.")
    same_names(student, reference, state, "GPT-2 with two blocks, names with transformer.")


@exercise("rename_parameters")
def test_rename_first(student, reference, draw):
    """GPT-1 calls its tables tokens_embed and positions_embed and has no last norm."""
    for prefix in ("", "transformer."):
        state = checkpoint(draw, (0,), prefix, first=True)
        case = f"GPT-1 with one block{', names with transformer.' if prefix else ''}"
        same_names(student, reference, state, case)


@exercise("rename_parameters")
def test_rename_left_out(student, reference, draw):
    """The tied head, the masks in the attention and the position ids are left out."""
    for prefix, more in [
        ("", ["lm_head.weight"]),
        ("", ["h.0.attn.bias", "h.0.attn.masked_bias"]),
        ("transformer.", ["transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"]),
        ("transformer.", ["lm_head.weight", "transformer.position_ids"]),
        ("", ["position_ids"]),
    ]:
        state = checkpoint(draw, (0,), prefix, "position_ids" in more, more=more)
        same_names(student, reference, state, f"a checkpoint with {' and '.join(more)}")


@exercise("rename_parameters")
def test_rename_unknown(student, reference, draw):
    """Any other name is refused with a ValueError."""
    same_names(student, reference, checkpoint(draw, ()), "GPT-2 without a block")
    for name in [
        "h.0.crossattention.c_attn.weight",
        "h.0.ln_3.weight",
        "transformer.h.0.attn.rotary_emb.inv_freq",
        "score.weight",
        "h.0.mlp.c_gate.weight",
        "decoder.0.ln_1.weight",
    ]:
        state = checkpoint(draw, more=[name])
        refuses(student.rename_parameters, {f"a tensor called {name}": (state,)})


@hidden
@exercise("rename_parameters")
def test_rename_layers(student, reference, draw):
    """Blocks of two digits in any order, any dtype; the given tensors stay as they are."""
    state = checkpoint(draw, (11, 1, 9, 10, 21), "transformer.", more=["lm_head.weight"])
    state["transformer.h.9.attn.c_attn.weight"] = draw.normal(3, 9).double()
    state["transformer.h.9.attn.c_attn.bias"] = draw.normal(9).to(torch.float16)
    state["transformer.h.10.mlp.c_proj.weight"] = draw.normal(2, 8).mT
    same_names(student, reference, state, "transformer. and blocks 1, 9, 10, 11 and 21")
    seen = student.observe("rename_parameters", state, grad=False)
    expectations.true(isinstance(seen.value, dict), "the result should be a dict.")
    expectations.unchanged(seen)


@hidden
@exercise("rename_parameters")
def test_rename_loads(student, reference, draw):
    """Checkpoints of whole small models, GPT-1 and GPT-2: square matrices are transposed too."""
    for first in (True, False):
        state = checkpoint(draw, (0, 1, 2), "transformer.", first)
        for number in range(3):
            state[f"transformer.h.{number}.mlp.c_fc.weight"] = draw.normal(4, 4)
            state[f"transformer.h.{number}.attn.c_attn.weight"] = draw.normal(3, 3)
        state["transformer.h.2.attn.c_proj.bias"] = draw.normal(4)
        case = f"GPT-{1 if first else 2} with three blocks and square matrices"
        same_names(student, reference, state, case)


# --------------------------------------------------------------------------------------------
# log_likelihood
# --------------------------------------------------------------------------------------------


def predictions(draw, batch, length, vocabulary, dtype=torch.float32):
    """Logits (B, T, V) and ids (B, T)."""
    logits = draw.normal(batch, length, vocabulary, scale=2).to(dtype)
    return logits, draw.integers(0, vocabulary, batch, length)


def some_targets(draw, batch, length):
    """A mask (B, T) over targets: no row is all True or all False after its first place."""
    mask = draw.uniform(batch, length) < 0.5
    mask[:, 0] = draw.uniform(batch) < 0.5
    for row in range(batch):
        places = 1 + draw.permutation(length - 1)[:2]
        mask[row, places[0]] = True
        if len(places) > 1:
            mask[row, places[1]] = False
    return mask


@exercise("log_likelihood", 2)
def test_likelihood_values(student, reference, draw):
    """Place t - 1 predicts token t; the first token is nobody's target; rows on their own."""
    for batch, length, vocabulary in [(1, 2, 3), (1, 4, 5), (3, 5, 7)]:
        given = predictions(draw, batch, length, vocabulary)
        got, want = student.log_likelihood(*given), reference.log_likelihood(*given)
        case = f"{sizes(B=batch, T=length, V=vocabulary)} without a mask"
        expectations.close(got, want, what="the result", case=case)


@exercise("log_likelihood", 2)
def test_likelihood_masks(student, reference, draw):
    """A target counts where the mask has True at its own place; what it says at place 0 is idle."""
    for batch, length, vocabulary in [(1, 3, 4), (3, 5, 6), (4, 6, 3)]:
        given = predictions(draw, batch, length, vocabulary)
        mask = some_targets(draw, batch, length)
        for first in (True, False):
            mask[:, 0] = first
            case = f"{sizes(B=batch, T=length)}, mask {mask.int().tolist()}"
            got = student.log_likelihood(*given, mask)
            want = reference.log_likelihood(*given, mask)
            expectations.close(got, want, what="the result", case=case)


@exercise("log_likelihood")
def test_likelihood_refusals(student, reference, draw):
    """A single token is refused with a ValueError, two are not."""
    given = predictions(draw, 2, 2, 4)
    got, want = student.log_likelihood(*given), reference.log_likelihood(*given)
    expectations.close(got, want, what="the result", case="T=2")
    for words, mask in {"without a mask": None, "with a mask": torch.ones(2, 1) > 0}.items():
        given = (*predictions(draw, 2, 1, 4), mask)
        refuses(student.log_likelihood, {f"T=1 {words}": given})


@hidden
@exercise("log_likelihood")
def test_likelihood_extremes(student, reference, draw):
    """Logits in the thousands overflow nothing; a row in which no target counts has the sum 0."""
    logits, ids = predictions(draw, 3, 4, 5)
    for case, many in {"300 more": logits + 300, "1000 times as large": 1000 * logits}.items():
        got, want = student.log_likelihood(many, ids), reference.log_likelihood(many, ids)
        expectations.close(got, want, what="the result", case=f"logits {case}")
    mask = some_targets(draw, 3, 4)
    mask[1] = torch.tensor([True, False, False, False])
    mask[2] = False
    got = student.log_likelihood(logits, ids, mask)
    want = reference.log_likelihood(logits, ids, mask)
    expectations.close(got, want, what="the result", case=f"mask {mask.int().tolist()}")


@hidden
@exercise("log_likelihood")
def test_likelihood_gradients(student, reference, draw):
    """Gradients reach the logits; float64 and strided input; nothing changes in place."""
    logits, ids = predictions(draw, 5, 4, 6, torch.float64)
    given = logits.mT.contiguous().mT, ids.mT.contiguous().mT, some_targets(draw, 5, 4)
    seen = student.observe("log_likelihood", *given)
    wanted = reference.observe("log_likelihood", *given)
    expectations.close(seen.value, wanted.value, what="the result", case="strided float64 logits")
    expectations.gradients(seen, wanted)
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# language_model_loss
# --------------------------------------------------------------------------------------------


def loss_by_parts(parts, logits, ids, mask=None):
    """The loss from the student's own log_likelihood."""
    counted = torch.ones_like(ids) if mask is None else mask.long()
    terms = parts.proxy.log_likelihood(logits, ids, mask)
    expectations.true(bool(terms.nan_to_num().any()), "A part answers nothing.")
    return -terms.sum() / max(int(counted[:, 1:].sum()), 1)


def same_lm_loss(student, reference, given, case):
    """The loss is the reference's, or right by the student's own log_likelihood."""
    seen = student.observe("language_model_loss", *given)
    wanted = reference.observe("language_model_loss", *given)
    same_by_parts(
        student,
        seen.value,
        wanted.value,
        lambda parts: loss_by_parts(parts, *given),
        "the loss",
        case=case,
    )
    if same_values(seen.value, wanted.value):
        own = by_parts(student, lambda parts: parts.proxy.observe("log_likelihood", *given))
        cut = own is not None and own.grads.get("0") is None
        if seen.grads.get("0") is not None or not cut:
            expectations.gradients(seen, wanted)
    expectations.unchanged(seen)


@exercise("language_model_loss", 2)
def test_lm_loss_values(student, reference, draw):
    """The mean over all targets of the batch; a scalar, at least 0."""
    for batch, length, vocabulary in [(1, 2, 3), (1, 4, 5), (3, 5, 7)]:
        given = predictions(draw, batch, length, vocabulary)
        case = f"{sizes(B=batch, T=length, V=vocabulary)} without a mask"
        same_lm_loss(student, reference, given, case)


@exercise("language_model_loss", 2)
def test_lm_loss_masks(student, reference, draw):
    """With a mask over targets the sum is divided by the number of those that count."""
    for batch, length in [(1, 3), (2, 4), (3, 6)]:
        logits, ids = predictions(draw, batch, length, 5)
        mask = some_targets(draw, batch, length)
        mask[0, 1:] = torch.arange(1, length) == 1  # rows with unlike numbers of targets
        for first in (True, False):
            mask[:, 0] = first
            case = f"{sizes(B=batch, T=length)}, mask {mask.int().tolist()}"
            same_lm_loss(student, reference, (logits, ids, mask), case)


@exercise("language_model_loss")
def test_lm_loss_nothing(student, reference, draw):
    """Where no target counts the loss is 0, and no gradient is NaN."""
    logits, ids = predictions(draw, 2, 3, 4)
    for first in (False, True):
        mask = torch.zeros(2, 3) > 0
        mask[:, 0] = first
        seen = student.observe("language_model_loss", logits, ids, mask)
        case = f"mask {mask.int().tolist()}"
        given = (logits, ids, mask)
        same_by_parts(
            student,
            seen.value,
            torch.zeros(()),
            lambda parts, given=given: loss_by_parts(parts, *given),
            "the loss",
            case=case,
        )
        gradient = seen.grads.get("0")
        if gradient is not None:
            expectations.finite(gradient, what="the gradient of the logits", case=case)
    same_lm_loss(student, reference, (logits, ids), "all targets")


@exercise("language_model_loss")
def test_lm_loss_refusals(student, reference, draw):
    """A single token is refused with a ValueError, two are not."""
    same_lm_loss(student, reference, predictions(draw, 2, 2, 4), "T=2")
    for words, more in {"without a mask": (), "with a mask": (torch.ones(2, 1) > 0,)}.items():
        given = (*predictions(draw, 2, 1, 4), *more)
        own = by_parts(student, lambda parts, given=given: parts.proxy.log_likelihood(*given))
        if own is None:  # Otherwise it is log_likelihood that lets it pass.
            refuses(student.language_model_loss, {f"T=1 {words}": given})


@hidden
@exercise("language_model_loss")
def test_lm_loss_extremes(student, reference, draw):
    """Logits in the thousands overflow nothing; rows without a target count for nothing."""
    logits, ids = predictions(draw, 4, 5, 6)
    same_lm_loss(student, reference, (1000 * logits, ids), "logits times 1000")
    mask = some_targets(draw, 4, 5)
    mask[1], mask[2] = False, True
    case = f"mask {mask.int().tolist()}"
    same_lm_loss(student, reference, (logits, ids, mask), case)


@hidden
@exercise("language_model_loss")
def test_lm_loss_gradients(student, reference, draw):
    """Gradients at the places that predict targets which count; float64 and strided logits."""
    logits, ids = predictions(draw, 3, 6, 5, torch.float64)
    given = logits.mT.contiguous().mT, ids.mT.contiguous().mT, some_targets(draw, 3, 6)
    same_lm_loss(student, reference, given, "strided float64 logits and a mask")


# --------------------------------------------------------------------------------------------
# sample_blocks
# --------------------------------------------------------------------------------------------


def telling_stream(draw, count):
    """A stream in which every token tells where it stands, and the place of each token."""
    order = draw.permutation(count)
    places = torch.empty_like(order)
    places[order] = torch.arange(count)
    return order, places


def rows_of(got, length, batch, case):
    """Inputs and targets, as they should look."""
    found = expectations.items(got, 2, what="the result (inputs, targets)")
    for words, value in zip(("the inputs", "the targets"), found, strict=True):
        expectations.shape(value, (batch, length), what=words, case=case)
        expectations.true(
            value.dtype == torch.int64,
            f"{words} should be int64, but are {value.dtype} for {case}.",
        )
    return found


def block_starts(student, draw, count, length, batch):
    """Where the blocks of one call begin; each is contiguous, its targets are one further."""
    case = sizes(M=count, T=length, B=batch)
    stream, places = telling_stream(draw, count)
    inputs, targets = rows_of(student.sample_blocks(stream, length, batch), length, batch, case)
    for words, value in (("the inputs", inputs), ("the targets", targets)):
        expectations.true(
            bool(((value >= 0) & (value < count)).all()),
            f"{words} should be tokens of the stream for {case}.",
        )
    begin = places[inputs][:, :1]  # (B, 1)
    steps = torch.arange(length)
    expectations.true(
        bool((places[inputs] == begin + steps).all()),
        f"each row of the inputs should be a contiguous block of the stream for {case}.",
    )
    expectations.true(
        bool((places[targets] == begin + steps + 1).all()),
        f"each row of the targets should be the same block one token further for {case}.",
    )
    return begin.squeeze(1)


@exercise("sample_blocks")
def test_blocks_rows(student, draw):
    """Each row is a contiguous block of the stream, and its targets stand one token further."""
    for count, length, batch in [(9, 1, 2), (12, 4, 3), (30, 7, 5)]:
        block_starts(student, draw, count, length, batch)


@exercise("sample_blocks", 2)
def test_blocks_starts(student, draw):
    """A block begins at each of the M - T possible places equally often, the last one included."""
    starts, trials = 5, 1200
    begin = block_starts(student, draw, starts + 2, 2, trials)
    for place in range(starts):
        expectations.rate(
            int((begin == place).sum()),
            trials,
            1 / starts,
            what=f"the share of blocks that begin at place {place} of a stream of 7 with T=2",
            false_alarm=2e-10,
        )


@exercise("sample_blocks")
def test_blocks_independent(student, draw):
    """Every row draws its place by itself: two rows begin at the same one now and then."""
    begin = block_starts(student, draw, 6, 2, 1200)
    expectations.rate(
        int((begin[0::2] == begin[1::2]).sum()),
        600,
        1 / 4,
        what="the share of neighbouring rows that begin at the same one of 4 places",
    )


@exercise("sample_blocks")
def test_blocks_refusals(student, draw):
    """A stream without one whole block and its last target is refused, and so are sizes below 1."""
    stream = draw.integers(0, 9, 6)
    refuses(
        student.sample_blocks,
        {
            "6 tokens for a block of 6": (stream, 6, 2),
            "6 tokens for a block of 9": (stream, 9, 1),
            "length=0": (stream, 0, 2),
            "batch_size=0": (stream, 2, 0),
        },
    )
    block_starts(student, draw, 6, 5, 1)


@hidden
@exercise("sample_blocks")
def test_blocks_only_one(student, draw):
    """A stream of T + 1 tokens has one block, which every row gets; the stream stays as it is."""
    for length, batch in [(1, 3), (8, 4)]:
        block_starts(student, draw, length + 1, length, batch)
    stream, _ = telling_stream(draw, 40)
    seen = student.observe("sample_blocks", stream, 5, 6, grad=False)
    rows_of(seen.value, 5, 6, "M=40, T=5, B=6")
    expectations.unchanged(seen)


@hidden
@exercise("sample_blocks")
def test_blocks_every_call(student, draw):
    """Every call draws anew, from a long stream too."""
    # That all of twenty blocks begin at the same of 900 places happens with 900 ** -19.
    begin = torch.cat([block_starts(student, draw, 903, 3, 1) for _ in range(20)])
    expectations.true(
        bool((begin != begin[0]).any()),
        "every call gives the same block; don't set a seed, and begin at a place that is drawn.",
    )
    expectations.true(
        int(begin.max()) - int(begin.min()) > 90,
        "blocks of twenty calls all begin in one tenth of a stream of 903 tokens.",
    )


# --------------------------------------------------------------------------------------------
# decay_groups
# --------------------------------------------------------------------------------------------


def chained(proxy, *parts):
    """A model that applies the parts one after the other; a part may stand in it twice."""
    model = proxy.module("nn.Sequential")
    for place, part in enumerate(parts):
        model.method("add_module", str(place), part)
    return model


def dense(proxy, state, rows, columns, dtype=None):
    options = {"in_features": columns, "out_features": rows}
    return proxy.module("nn.Linear", state=state, dtype=dtype, **options)


def same_groups(got, wanted, weight_decay, case):
    """Two groups with these parameters, in this order."""
    found = expectations.items(got, 2, what="the result (a list of two groups)")
    names = ("first", "second")
    decays = (weight_decay, 0.0)
    for which, group, parameters, decay in zip(names, found, wanted, decays, strict=True):
        expectations.true(
            isinstance(group, dict) and {"params", "weight_decay"} <= set(group),
            f'the {which} group should be a dict with "params" and "weight_decay" for {case}.',
        )
        given = group["params"]
        expectations.true(
            isinstance(given, (list, tuple)),
            f'"params" of the {which} group should be a list of parameters, but is a '
            f"{expectations.type_name(given)} for {case}.",
        )
        expectations.true(
            len(given) == len(parameters),
            f"the {which} group should have {len(parameters)} parameters, but has {len(given)} for "
            f"{case}.",
        )
        for place, (one, value) in enumerate(zip(given, parameters, strict=True)):
            what = f"parameter {place} of the {which} group"
            expectations.shape(one, value.shape, what=what, case=case)
            expectations.close(one, value, what=what, case=case)
        same_number(group["weight_decay"], decay, f'"weight_decay" of the {which} group', case)


@exercise("decay_groups", 2)
def test_groups_matrices(student, draw):
    """Matrices and tables are in the first group, biases and the weights of norms in the second."""
    table = {"weight": draw.normal(5, 3)}
    square, last = linear(draw, "x", 3, 3), linear(draw, "x", 4, 3)
    norm = norm_state(draw, "x", 3)
    parts = [within(each, "x.") for each in (square, norm, last)]
    model = chained(
        student,
        student.module("nn.Embedding", state=table, num_embeddings=5, embedding_dim=3),
        dense(student, parts[0], 3, 3),
        student.module("nn.LayerNorm", state=parts[1], normalized_shape=3),
        dense(student, parts[2], 4, 3),
    )
    first = [table["weight"], parts[0]["weight"], parts[2]["weight"]]
    second = [parts[0]["bias"], parts[1]["weight"], parts[1]["bias"], parts[2]["bias"]]
    for decay in (0.1, 0.25):
        case = f"a table, a linear layer, a norm and a linear layer, weight_decay={decay}"
        same_groups(student.decay_groups(model, decay), (first, second), decay, case)


@exercise("decay_groups")
def test_groups_axes(student, draw):
    """What counts is the number of axes: a weight with three of them decays too."""
    state = {"weight": draw.normal(2, 3, 4), "bias": draw.normal(2)}
    options = {"in1_features": 3, "in2_features": 4, "out_features": 2}
    model = student.module("nn.Bilinear", state=state, **options)
    case = "an nn.Bilinear, whose weight is (2, 3, 4)"
    wanted = ([state["weight"]], [state["bias"]])
    same_groups(student.decay_groups(model, 0.3), wanted, 0.3, case)


@exercise("decay_groups")
def test_groups_frozen(student, draw):
    """A parameter that requires no gradient is in neither group."""
    frozen, state = draw.normal(5, 3), within(linear(draw, "x", 4, 3), "x.")
    model = chained(
        student,
        student.module("nn.Embedding.from_pretrained", embeddings=frozen, freeze=True),
        dense(student, state, 4, 3),
    )
    wanted = ([state["weight"]], [state["bias"]])
    same_groups(student.decay_groups(model, 0.1), wanted, 0.1, "a frozen table and a linear layer")


@exercise("decay_groups")
def test_groups_refusals(student, draw):
    """A negative weight_decay is refused with a ValueError; 0 is not."""
    state = within(linear(draw, "x", 2, 3), "x.")
    model = dense(student, state, 2, 3)
    refuses(student.decay_groups, {"weight_decay=-0.1": (model, -0.1)})
    wanted = ([state["weight"]], [state["bias"]])
    same_groups(student.decay_groups(model, 0.0), wanted, 0.0, "weight_decay=0")


@hidden
@exercise("decay_groups")
def test_groups_shared(student, draw):
    """A parameter that stands in two places is in its group once."""
    table, state = draw.normal(5, 3), within(linear(draw, "x", 3, 3), "x.")
    shared = dense(student, state, 3, 3)
    options = {"num_embeddings": 5, "embedding_dim": 3}
    embedding = student.module("nn.Embedding", state={"weight": table}, **options)
    model = chained(student, embedding, shared, shared)
    wanted = ([table, state["weight"]], [state["bias"]])
    case = "a linear layer that stands in two places"
    same_groups(student.decay_groups(model, 0.1), wanted, 0.1, case)


@hidden
@exercise("decay_groups")
def test_groups_empty(student, draw):
    """There are always two groups, whatever is in them."""
    table, norm = draw.normal(4, 2), within(norm_state(draw, "x", 3), "x.")
    options = {"num_embeddings": 4, "embedding_dim": 2}
    model = student.module("nn.Embedding", state={"weight": table}, **options)
    same_groups(student.decay_groups(model, 0.1), ([table], []), 0.1, "a table alone")
    model = student.module("nn.LayerNorm", state=norm, normalized_shape=3)
    wanted = ([], [norm["weight"], norm["bias"]])
    same_groups(student.decay_groups(model, 0.1), wanted, 0.1, "a norm alone")


# --------------------------------------------------------------------------------------------
# adamw_step
# --------------------------------------------------------------------------------------------

ADAMW = ("new parameter", "new first mean", "new second mean")


def same_adamw(student, reference, tensors, step, rate, case, **options):
    seen = student.observe("adamw_step", *tensors, step, rate, grad=False, **options)
    wanted = reference.adamw_step(*tensors, step, rate, **options)
    expectations.items(seen.value, 3, what="the result (parameter, first, second)")
    # The means first: the parameter follows from them.
    for place in (1, 2, 0):
        expectations.close(seen.value[place], wanted[place], what=f"the {ADAMW[place]}", case=case)
    expectations.unchanged(seen)


def adamw_tensors(draw, *shape, dtype=torch.float64, scale=1.0):
    """A parameter, its gradient and two means as they are after some steps."""
    return (
        draw.normal(*shape).to(dtype),
        draw.normal(*shape, scale=scale).to(dtype),
        draw.normal(*shape, scale=0.5 * scale).to(dtype),
        draw.uniform(*shape, low=0.1 * scale**2, high=scale**2).to(dtype),
    )


@exercise("adamw_step")
def test_adamw_without_decay(student, reference, draw):
    """With weight_decay=0 it is Adam's step; the first moves each number by the rate."""
    parameter, gradient, *_ = adamw_tensors(draw, 2, 3)
    zeros = torch.zeros_like(parameter)
    given = (parameter, gradient, zeros, zeros)
    case = "step 1, means of 0, weight_decay=0"
    same_adamw(student, reference, given, 1, 0.1, case, weight_decay=0.0)
    case = "step 3, means of earlier steps, weight_decay=0"
    same_adamw(student, reference, adamw_tensors(draw, 3), 3, 0.1, case, weight_decay=0.0)


@exercise("adamw_step", 2)
def test_adamw_decay(student, reference, draw):
    """The old parameter also shrinks by rate * weight_decay of itself, past both means."""
    for rate, decay in [(0.1, 0.5), (0.02, 3.0)]:
        case = f"step 2, rate={rate}, weight_decay={decay}"
        tensors = adamw_tensors(draw, 2, 2)
        same_adamw(student, reference, tensors, 2, rate, case, weight_decay=decay)
    zeros = torch.zeros(3, dtype=torch.float64)
    given = (draw.normal(3).double(), zeros, zeros, zeros)
    case = "step 1, a gradient of 0, rate=0.1, weight_decay=0.4"
    same_adamw(student, reference, given, 1, 0.1, case, weight_decay=0.4)


@exercise("adamw_step", 2)
def test_adamw_later_steps(student, reference, draw):
    """Both means keep their share and are divided by 1 - beta ** step; the defaults are GPT's."""
    for step in (2, 30):
        tensors = adamw_tensors(draw, 3, 2)
        same_adamw(student, reference, tensors, step, 0.05, f"step {step}, all else by default")


@exercise("adamw_step")
def test_adamw_eps(student, reference, draw):
    """eps is added to the root of the corrected second mean, not under the root."""
    zeros = torch.zeros(2, dtype=torch.float64)
    same_adamw(student, reference, (zeros + 3, zeros, zeros, zeros), 1, 0.1, "a gradient of 0")
    tensors = adamw_tensors(draw, 3)
    same_adamw(student, reference, tensors, 4, 0.1, "step 4, eps=0.5", eps=0.5)


@exercise("adamw_step")
def test_adamw_refusals(student, draw):
    """A step below 1 is refused with a ValueError."""
    tensors = adamw_tensors(draw, 2)
    refuses(student.adamw_step, {"step=0": (*tensors, 0, 0.1), "step=-2": (*tensors, -2, 0.1)})


@hidden
@exercise("adamw_step")
def test_adamw_betas(student, reference, draw):
    """The first beta belongs to the mean of gradients, the second to that of their squares."""
    tensors = adamw_tensors(draw, 4)
    options = {"betas": (0.5, 0.8), "eps": 1e-8, "weight_decay": 0.2}
    same_adamw(student, reference, tensors, 3, 0.1, "step 3, betas=(0.5, 0.8)", **options)


@hidden
@exercise("adamw_step")
def test_adamw_shapes(student, reference, draw):
    """Any shape, float32, large and tiny gradients, and a step far into the training."""
    for shape, scale, step in [((), 1e-4, 2), ((2, 3, 2), 1e4, 100_000)]:
        tensors = adamw_tensors(draw, *shape, dtype=torch.float32, scale=scale)
        case = f"shape {shape}, gradients of order {scale:g}, step {step}"
        same_adamw(student, reference, tensors, step, 1e-3, case, weight_decay=0.3)


# --------------------------------------------------------------------------------------------
# cosine_rate
# --------------------------------------------------------------------------------------------


def same_rates(student, reference, steps, peak, warmup, total, floor=None):
    """The rate of each of the steps."""
    more = () if floor is None else (floor,)
    for step in steps:
        words = f"step={step}, peak={peak:g}, warmup={warmup}, total={total}"
        got = student.cosine_rate(step, peak, warmup, total, *more)
        want = reference.cosine_rate(step, peak, warmup, total, *more)
        case = words + (f", floor={floor:g}" if more else "")
        same_number(got, want, "the rate", case, least=peak)


@exercise("cosine_rate")
def test_rate_warmup(student, reference):
    """The first steps rise in a line, from peak / warmup at step 1 to peak at step warmup."""
    same_rates(student, reference, (1, 2, 5), 2.0, 5, 20)


@exercise("cosine_rate", 2)
def test_rate_cosine(student, reference):
    """After the warm-up half a cosine leads from peak down to 0 at step total."""
    same_rates(student, reference, (6, 12, 19, 20), 2.0, 5, 20)


@exercise("cosine_rate")
def test_rate_floor(student, reference):
    """With a floor the cosine ends there; the warm-up begins at 0 all the same."""
    same_rates(student, reference, (1, 4, 7, 11, 12), 0.6, 4, 12, 0.2)


@aspect
@exercise("cosine_rate")
def test_rate_refusals(student, reference):
    """A step below 1, and a warm-up that is negative or as long as the whole, are refused."""
    refuses(
        student.cosine_rate,
        {
            "step=0": (0, 1.0, 2, 10),
            "warmup=-1": (3, 1.0, -1, 10),
            "warmup=10 of total=10": (3, 1.0, 10, 10),
            "warmup=12 of total=10": (3, 1.0, 12, 10),
        },
    )
    same_rates(student, reference, (1,), 1.0, 0, 1)


@hidden
@exercise("cosine_rate")
def test_rate_beyond(student, reference):
    """From total on the rate stays at the floor."""
    same_rates(student, reference, (8, 9, 12, 16, 500), 1.5, 2, 8)
    same_rates(student, reference, (8, 9, 14, 16, 500), 1.5, 2, 8, 0.3)


@hidden
@exercise("cosine_rate")
def test_rate_real(student, reference, draw):
    """Rates as small as real ones, with and without warm-up, at any step."""
    steps = sorted(draw.integers(1, 4000, 6).tolist())
    same_rates(student, reference, steps, 2.5e-4, 1500, 4000)
    same_rates(student, reference, steps, 6e-4, 0, 4000, 6e-5)


# --------------------------------------------------------------------------------------------
# train
# --------------------------------------------------------------------------------------------

TRAINED, INNER = 7, 4  # the vocabulary and the width of a model to be trained


def trainee_state(draw, shared=False):
    """A table, two linear layers or one twice, a norm, and a linear layer to the logits."""
    inside = linear(draw, "2", INNER, INNER)
    again = {name.replace("2.", "4.", 1): value for name, value in inside.items()}
    state = {"0.weight": draw.normal(TRAINED, INNER), **inside}
    state |= again if shared else linear(draw, "4", INNER, INNER)
    state |= norm_state(draw, "5", INNER) | linear(draw, "6", TRAINED, INNER)
    return {name: value.double() for name, value in state.items()}


def is_shared(state):
    """Whether one layer stands in both places."""
    return torch.equal(state["2.weight"], state["4.weight"])


def trainee(proxy, state, dtype=torch.float64):
    """That model. None of it is the student's work."""

    def part(name, place, **options):
        return proxy.module(name, state=within(state, f"{place}."), dtype=dtype, **options)

    inside = part("nn.Linear", 2, in_features=INNER, out_features=INNER)
    again = part("nn.Linear", 4, in_features=INNER, out_features=INNER)
    return chained(
        proxy,
        part("nn.Embedding", 0, num_embeddings=TRAINED, embedding_dim=INNER),
        proxy.module("nn.Tanh"),
        inside,
        proxy.module("nn.Tanh"),
        inside if is_shared(state) else again,
        part("nn.LayerNorm", 5, normalized_shape=INNER),
        part("nn.Linear", 6, in_features=INNER, out_features=TRAINED),
    )


def losses_of(got, steps, case):
    """The result: a list of floats."""
    found = expectations.items(got, steps, what="the result (a list of losses)")
    for place, loss in enumerate(found):
        same_number(loss, loss, f"loss {place}", case)
        expectations.true(math.isfinite(loss), f"loss {place} is {loss} for {case}.")
    return found


def same_trained(losses, after, wanted, want_after, case):
    """The losses of all steps, and the parameters after the last."""
    for place, (got, want) in enumerate(zip(losses, wanted, strict=True)):
        same_number(got, want, f"the loss of step {place + 1}", case)
    for name, value in want_after.items():
        expectations.shape(after.get(name), value.shape, f"the parameter {name}", case=case)
        expectations.true(
            expectations.close_enough(after[name], value, SLACK),
            f"the parameter {name} is wrong after {case}: the largest difference is "
            f"{float((after[name].double() - value.double()).abs().max()):.3g}.",
        )


def same_training(student, reference, state, length, batch, case, runs, dtype=torch.float64):
    """Runs one after the other on one model, whose stream has a single block.

    Args:
        runs: for each the stream and the arguments behind batch_size.
    """
    # The reference is asked the same things whatever the student's code answers.
    theirs, wanted = trainee(reference, state, dtype), []
    for stream, *rest in runs:
        losses = reference.training("train", theirs, stream, rest[0], length, batch, *rest[1:])
        wanted.append((losses, theirs.state()))
    mine = trainee(student, state, dtype)
    for number, ((stream, *rest), (losses, after)) in enumerate(zip(runs, wanted, strict=True)):
        words = case if len(runs) == 1 else f"{case}, run {number + 1}"
        # The second run begins where the reference's first has ended: they agree up to rounding.
        before = state if number == 0 else wanted[number - 1][1]
        arguments = (stream, rest[0], length, batch, *rest[1:])
        try:
            got = student.training("train", mine, *arguments)
        except StudentError:
            if not _blocks_fail(student, stream, length, batch):
                raise
            even_training(student, state, arguments, case)
            return
        changed = student.transcript[-1].outcome["mutated"]
        expectations.true(not changed, "your train changes the stream in place.")
        got = losses_of(got, rest[0], words)
        now = mine.state()
        try:
            same_trained(got, now, losses, after, words)
        except Mistake:
            if not _right_by_parts(student, before, arguments, got, now, words):
                raise
            return


def _right_by_parts(student, state, arguments, losses, after, case):
    """Whether training from `state` gives this by the student's own earlier exercises."""
    own = by_parts(student, lambda parts: own_training(parts, state, arguments)) or ()
    return any(_as_trained(losses, after, one, case) for one in own)


def _as_trained(got, now, own, case):
    try:
        same_trained(got, now, *own, case)
    except Mistake:
        return False
    return True


def _blocks_fail(student, stream, length, batch):
    """Whether the student's own sample_blocks now and then fails on a stream of one block."""

    def own(parts):
        return [parts.proxy.sample_blocks(stream, length, batch) for _ in range(8)]

    return by_parts(student, own) is None


def even_training(student, state, arguments, case):
    """Training on a longer stream whose blocks are all alike is right by the student's parts."""
    stream, steps, length, batch, *more = arguments
    arguments = (stream[:1].repeat(length + 40), steps, length, batch, *more)
    mine = trainee(student, state, state["0.weight"].dtype)
    got = losses_of(student.training("train", mine, *arguments), steps, case)
    after = mine.state()
    expectations.true(
        _right_by_parts(student, state, arguments, got, after, case),
        f"the losses or the parameters are wrong for {case}, on a stream of one token repeated.",
    )


def _local(state):
    """The model of `trainee` in this process."""
    inside = nn.Linear(INNER, INNER)
    again = inside if is_shared(state) else nn.Linear(INNER, INNER)
    model = nn.Sequential(
        nn.Embedding(TRAINED, INNER), nn.Tanh(), inside, nn.Tanh(), again,
        nn.LayerNorm(INNER), nn.Linear(INNER, TRAINED),
    ).to(state["0.weight"].dtype)  # fmt: skip
    model.load_state_dict(state)
    return model


def own_training(parts, state, arguments):
    """What training gives by the student's own batches, groups, rates and, maybe, adamw_step."""
    stream, steps, length, batch, peak, warmup, *more = arguments
    weight_decay, clip = [*more, *(0.1, 1.0)[len(more) :]]
    inputs, targets = expectations.pair(parts.proxy.sample_blocks(stream, length, batch))
    dtype = state["0.weight"].dtype
    decays = {}
    for group in parts.proxy.decay_groups(trainee(parts.proxy, state, dtype), weight_decay):
        for value in group["params"]:
            names = [n for n in state if torch.equal(state[n].to(dtype), value.to(dtype))]
            decays |= {name: float(group["weight_decay"]) for name in names}
    rates = [float(parts.proxy.cosine_rate(n + 1, peak, warmup, steps)) for n in range(steps)]
    results = []
    for update in (_adamw, parts.proxy.adamw_step):
        model = _local(state)
        means = {name: (torch.zeros_like(p), torch.zeros_like(p))
                 for name, p in model.named_parameters()}  # fmt: skip
        losses = []
        for step, rate in enumerate(rates, start=1):
            with torch.enable_grad():
                logits = model(inputs)
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
                gradients = torch.autograd.grad(loss, list(model.parameters()))
            norm = math.sqrt(sum(float((one**2).sum()) for one in gradients))
            scale = min(1.0, clip / max(norm, 1e-12))
            with torch.no_grad():
                for (name, p), gradient in zip(model.named_parameters(), gradients, strict=True):
                    if name in decays:
                        given = (p.detach().clone(), scale * gradient, *means[name])
                        more = ((0.9, 0.95), 1e-8, decays[name])
                        new, *means[name] = update(*given, step, rate, *more)
                        p.copy_(new)
            losses.append(float(loss))
        results.append((losses, {name: p.clone() for name, p in model.state_dict().items()}))
    return results


def _adamw(parameter, gradient, first, second, step, rate, betas, eps, weight_decay):
    """Adam with decoupled decay."""
    first = betas[0] * first + (1 - betas[0]) * gradient
    second = betas[1] * second + (1 - betas[1]) * gradient**2
    root = (second / (1 - betas[1] ** step)).sqrt()
    new = (1 - rate * weight_decay) * parameter
    return new - rate * first / (1 - betas[0] ** step) / (root + eps), first, second


def one_block(draw, length):
    """A stream with a single block of that length."""
    return draw.integers(0, TRAINED, length + 1)


@exercise("train", 2)
def test_train_steps(student, reference, draw):
    """Each step: the loss before it, the gradients of its batch alone, and AdamW at its rate."""
    state = trainee_state(draw)
    # steps, peak, warmup, weight_decay, clip
    for steps, warmup in [(1, 0), (4, 0)]:
        case = f"{steps} step{'s' * (steps > 1)} without warm-up, decay or clipping"
        run = (one_block(draw, 6), steps, 0.1, warmup, 0.0, 1e6)
        same_training(student, reference, state, 6, 2, case, [run])


@exercise("train")
def test_train_schedule(student, reference, draw):
    """The rate rises for warmup steps and then falls to 0 at the last, counted from 1."""
    run = (one_block(draw, 5), 7, 0.3, 3, 0.0, 1e6)
    case = "7 steps, 3 of them warm-up"
    same_training(student, reference, trainee_state(draw), 5, 3, case, [run])


@exercise("train")
def test_train_decay(student, reference, draw):
    """Decay acts on weights with two axes, decoupled, and once on a layer that is used twice."""
    run = (one_block(draw, 5), 4, 0.1, 1, 1.5, 1e6)
    for shared in (False, True):
        case = f"4 steps with weight_decay=1.5{' and a layer that is used twice' * shared}"
        same_training(student, reference, trainee_state(draw, shared), 5, 2, case, [run])


@exercise("train")
def test_train_clip(student, reference, draw):
    """Gradients that are longer than clip, all together, are scaled to that length."""
    for clip in (0.4, 100.0):
        # Much is still to be learned: the gradients of the steps are of different lengths.
        run = (one_block(draw, 6), 6, 0.4, 1, 0.0, clip)
        case = f"6 steps with clip={clip}"
        same_training(student, reference, trainee_state(draw), 6, 1, case, [run])


@aspect
@exercise("train")
def test_train_mode(student, draw):
    """The model is trained in training mode, in whichever it came."""
    for mode in ("training", "evaluation"):
        bias = draw.normal(TRAINED).double()
        state = {"weight": draw.normal(TRAINED, INNER), "bias": bias}
        table = {"weight": draw.normal(TRAINED, INNER)}
        options = {"num_embeddings": TRAINED, "embedding_dim": INNER}
        model = chained(
            student,
            student.module("nn.Embedding", state=table, dtype=torch.float64, **options),
            student.module("nn.Dropout", p=1.0),  # In training mode nothing comes through.
            dense(student, state, TRAINED, INNER, torch.float64),
        )
        model = model.train() if mode == "training" else model.eval()
        stream = one_block(draw, 4)
        case = f"a model that comes in {mode} mode"
        got = losses_of(student.training("train", model, stream, 1, 4, 1, 0.1, 0), 1, case)
        want = float(torch.nn.functional.cross_entropy(bias.expand(4, -1), stream[1:]))
        expectations.true(
            abs(got[0] - want) <= 1e-4 * max(1.0, want) or _blocks_differ(student, stream, 4),
            f"the model should be in training mode, but its dropout does nothing for {case}.",
        )


def _blocks_differ(student, stream, length):
    """Whether the student's own sample_blocks gives another block than the only one."""

    def sound(parts):
        return torch.equal(parts.proxy.sample_blocks(stream, length, 1)[1].flatten(), stream[1:])

    return to_blame(student, sound)


HELD_OUT = 0.5  # Both halves of the stream are certain once learned; not knowing one costs over 2.


@aspect
@exercise("train")
def test_train_learns(student, draw):
    """Batches come from the whole stream: afterwards the loss is below 0.5 on both its halves."""
    tokens = draw.permutation(12)
    halves = [tokens[:6].repeat(20), tokens[6:].repeat(20)]  # each a circle of six tokens
    state = {"weight": draw.normal(12, 12, scale=0.1)}
    options = {"num_embeddings": 12, "embedding_dim": 12}
    model = student.module("nn.Embedding", state=state, dtype=torch.float64, **options)
    # Right answers come to 0.05 on each half, and hardly apart.
    given = (torch.cat(halves), 60, 8, 4, 0.15, 5)
    try:
        got = student.training("train", model, *given, 0.01)
    except StudentError:
        if not parts_to_blame(student, draw):
            raise
        return
    losses = expectations.items(got, 60, what="the result (a list of losses)")
    diverged = any(isinstance(loss, float) and not math.isfinite(loss) for loss in losses)
    if diverged and parts_to_blame(student, draw):
        return
    losses_of(losses, 60, "60 steps")
    for which, half in zip(("first", "second"), halves, strict=True):
        said = expectations.tensor(model(half[None, 3:10]), what="what the model says")
        loss = float(torch.nn.functional.cross_entropy(said[0], half[4:11]))
        expectations.true(
            loss < HELD_OUT or parts_to_blame(student, draw),
            f"after 60 steps on a simple stream the loss on its {which} half should be below "
            f"{HELD_OUT}, but is {loss:.3g}; the last step's was {losses[-1]:.3g}.",
        )


def parts_to_blame(student, draw):
    """Whether a part of training that is an earlier exercise is written, and wrong."""

    def sound(parts):
        rates = [parts.proxy.cosine_rate(step, 0.5, 5, 60) for step in (1, 5, 30)]
        weight = draw.normal(2, 3)
        options = {"in_features": 3, "out_features": 2, "bias": False}
        model = parts.proxy.module("nn.Linear", state={"weight": weight}, **options)
        groups = parts.proxy.decay_groups(model, 0.01)
        found = [block_starts(parts.proxy, draw, 40, 4, 4) for _ in range(12)]
        begin = torch.cat(found)
        want = [0.1, 0.5, 0.25 * (1 + math.cos(math.pi * 25 / 55))]
        return (
            all(abs(got - one) < 1e-6 for got, one in zip(rates, want, strict=True))
            and [len(group["params"]) for group in groups] == [1, 0]
            and float(groups[0]["weight_decay"]) == 0.01
            and int(begin.max()) - int(begin.min()) > 18
            and not all(torch.equal(one, found[0]) for one in found)
        )

    return to_blame(student, sound)


@hidden
@exercise("train")
def test_train_again(student, reference, draw):
    """A second run begins anew: neither old gradients nor old running means matter."""
    runs = [
        (one_block(draw, 5), 2, 0.2, 0, 0.1, 0.5),
        (one_block(draw, 5), 3, 0.1, 1, 0.1, 0.5),
    ]
    case = "two runs on one model"
    same_training(student, reference, trainee_state(draw), 5, 2, case, runs)


@hidden
@exercise("train")
def test_train_defaults(student, reference, draw):
    """weight_decay is 0.1 and clip 1 by default; a block of one token; a long run."""
    # A row of the table with a large gradient: clipping at 1 acts.
    state = trainee_state(draw)
    state["6.weight"] = 4 * state["6.weight"]
    case = "9 steps with everything by default"
    run = (one_block(draw, 7), 9, 0.3, 2)
    same_training(student, reference, state, 7, 2, case, [run])
    # A model that is next to certain has gradients of about 1e-5, where eps begins to matter.
    state = trainee_state(draw)
    state["6.weight"], state["6.bias"] = 0.01 * state["6.weight"], torch.zeros(TRAINED).double()
    state["6.bias"][2] = 12.0
    case = "3 steps of a model that is nearly certain of the one token that there is"
    same_training(student, reference, state, 3, 2, case, [(torch.full((4,), 2), 3, 0.1, 0)])
    case = "12 steps on blocks of one token"
    run = (one_block(draw, 1), 12, 0.05, 4)
    same_training(student, reference, trainee_state(draw), 1, 1, case, [run])


@hidden
@exercise("train")
def test_train_frozen(student, draw):
    """A parameter that requires no gradient stays as it is, and the others learn."""
    table = draw.normal(TRAINED, INNER).double()
    state = {"weight": draw.normal(TRAINED, INNER), "bias": draw.normal(TRAINED)}
    model = chained(
        student,
        student.module("nn.Embedding.from_pretrained", embeddings=table, freeze=True),
        dense(student, state, TRAINED, INNER, torch.float64),
    )
    case = "two steps with a frozen table"
    losses_of(student.training("train", model, one_block(draw, 5), 2, 5, 1, 0.1, 0, 0.5), 2, case)
    after = model.state()
    expectations.close(after["0.weight"], table, what="the frozen table", case=case)
    for name, value in state.items():
        got = expectations.tensor(after[f"1.{name}"], what=f"the {name}", case=case)
        expectations.true(
            bool((got - value).abs().max() > 1e-3), f"the {name} of the layer stays for {case}."
        )


@hidden
@exercise("train")
def test_train_every_batch(student, draw):
    """Every step draws a batch of its own, of batch_size blocks."""
    table = {"weight": torch.zeros(40, 40)}
    options = {"num_embeddings": 40, "embedding_dim": 40}
    model = student.module("nn.Embedding", state=table, dtype=torch.float64, **options)
    stream, _ = telling_stream(draw, 40)
    # At this rate, next to nothing is learned but which tokens have been seen.
    try:
        student.training("train", model, stream, 20, 2, 4, 1e-3, 0, 0.0)
    except StudentError:
        if not parts_to_blame(student, draw):
            raise
        return
    seen = (expectations.tensor(model.state()["weight"], what="the table").abs().amax(1) > 0).sum()
    # 38 places, 80 blocks: each token of the first 39 but the first and the last is left out
    # with a probability below (36 / 38) ** 76 < 0.017; 20 of them, with less than 1e-20.
    expectations.true(
        int(seen) > 20 or (int(seen) > 0 and parts_to_blame(student, draw)),
        f"20 steps of 4 blocks each saw {int(seen)} of 39 tokens; draw a batch in every step.",
    )


# --------------------------------------------------------------------------------------------
# scale_temperature
# --------------------------------------------------------------------------------------------


@exercise("scale_temperature", 2)
def test_temperature_values(student, reference, draw):
    """The logits divided by the temperature: above 1 they move together, below 1 apart."""
    for shape, temperature in [((4,), 2.0), ((2, 5), 0.5), ((2, 3, 4), 1.7)]:
        logits = draw.normal(*shape, scale=2)
        expectations.close(
            student.scale_temperature(logits, temperature),
            reference.scale_temperature(logits, temperature),
            what="the logits",
            case=f"shape {shape} and temperature={temperature}",
        )


@exercise("scale_temperature")
def test_temperature_impossible(student, reference, draw):
    """-inf stays -inf, and a temperature near 0 makes large numbers, no NaN."""
    logits = draw.normal(2, 4)
    logits[0, 1] = logits[1, 3] = -torch.inf
    for temperature in (0.01, 3.0):
        expectations.close(
            student.scale_temperature(logits, temperature),
            reference.scale_temperature(logits, temperature),
            what="the logits",
            case=f"two entries of -inf and temperature={temperature}",
        )


@exercise("scale_temperature")
def test_temperature_refusals(student, draw):
    """A temperature of 0 or less is refused with a ValueError."""
    logits = draw.normal(2, 3)
    refuses(
        student.scale_temperature,
        {"temperature=0": (logits, 0.0), "temperature=-1": (logits, -1.0)},
    )


@hidden
@exercise("scale_temperature")
def test_temperature_flow(student, reference, draw):
    """float64, a strided input that is left as it was, and gradients."""
    logits = draw.normal(3, 4).double().mT
    seen = student.observe("scale_temperature", logits, 0.3)
    wanted = reference.observe("scale_temperature", logits, 0.3)
    expectations.close(seen.value, wanted.value, what="the logits", case="a strided float64 input")
    same_gradients(seen, wanted, {"0": "the logits"})
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# keep_top_k
# --------------------------------------------------------------------------------------------


def distinct(draw, *shape):
    """Logits of which no two in a row are closer than 0.05."""
    rows = [draw.permutation(shape[-1]) for _ in range(math.prod(shape[:-1]))]
    steps = torch.stack(rows).reshape(shape).float()
    return 0.4 * steps - 1.0 + draw.uniform(*shape, low=0.0, high=0.35)


def same_kept(student, reference, name, logits, amount, case):
    got, want = getattr(student, name)(logits, amount), getattr(reference, name)(logits, amount)
    expectations.close(got, want, what="the logits", case=case)


@exercise("keep_top_k", 2)
def test_top_k_values(student, reference, draw):
    """The k largest logits stay as they are, all others become -inf."""
    for size, k in [(4, 1), (5, 2), (7, 6)]:
        case = f"a row of {size} and k={k}"
        same_kept(student, reference, "keep_top_k", distinct(draw, 1, size), k, case)


@exercise("keep_top_k", 2)
def test_top_k_rows(student, reference, draw):
    """Every row keeps its own k, whatever the axes before the last."""
    for shape, k in [((3, 6), 2), ((2, 4, 5), 3), ((5,), 2)]:
        case = f"logits of shape {shape} and k={k}"
        same_kept(student, reference, "keep_top_k", distinct(draw, *shape), k, case)


@exercise("keep_top_k")
def test_top_k_ties(student, reference):
    """What equals the k-th largest stays too."""
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0], [5.0, 5.0, 5.0, 1.0, 5.0, 0.0]])
    for k in (2, 3):
        same_kept(student, reference, "keep_top_k", logits, k, f"equal logits and k={k}")


@exercise("keep_top_k")
def test_top_k_bounds(student, reference, draw):
    """A k below 1 is refused with a ValueError; one as large as the row or larger keeps all."""
    logits = distinct(draw, 2, 4)
    refuses(student.keep_top_k, {"k=0": (logits, 0), "k=-1": (logits, -1)})
    for k in (3, 4, 5, 100):
        same_kept(student, reference, "keep_top_k", logits, k, f"a row of 4 and k={k}")


@hidden
@exercise("keep_top_k")
def test_top_k_impossible(student, reference, draw):
    """-inf on the input stays -inf, also where fewer than k are left; negative logits."""
    logits = distinct(draw, 3, 6) - 9.0
    logits[0, :4] = logits[1, 2] = logits[2, :5] = -torch.inf
    for k in (1, 3, 6):
        same_kept(student, reference, "keep_top_k", logits, k, f"entries of -inf and k={k}")


@hidden
@exercise("keep_top_k")
def test_top_k_flow(student, reference, draw):
    """float64 stays float64, and a strided input is left as it was."""
    logits = distinct(draw, 5, 4).double().mT + 0.01 * draw.normal(4, 5).double()
    seen = student.observe("keep_top_k", logits, 2, grad=False)
    want = reference.keep_top_k(logits, 2)
    expectations.close(seen.value, want, what="the logits", case="a strided float64 input and k=2")
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# keep_top_p
# --------------------------------------------------------------------------------------------


def spread(draw, *shape, avoid=(), scale=1.3):
    """Logits whose probabilities differ, and sum to nothing near the values to avoid."""
    rows = []
    for _ in range(math.prod(shape[:-1])):
        while True:
            row = draw.normal(shape[-1], scale=scale)
            sizes_ = row.double().softmax(-1).sort(descending=True).values
            sums = sizes_.cumsum(-1)[:-1]
            apart = bool((sizes_[:-1] - sizes_[1:] > 2e-3).all())
            if apart and all(bool(((sums - value).abs() > 3e-3).all()) for value in avoid):
                rows.append(row)
                break
    return torch.stack(rows).reshape(shape)


@exercise("keep_top_p", 2)
def test_top_p_values(student, reference):
    """The most probable tokens stay until they sum to p, the one that crosses it included."""
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log() + 1.0
    for p in (0.4, 0.6, 0.79, 0.9, 0.97):
        case = f"probabilities 0.5, 0.3, 0.15, 0.05 and p={p}"
        same_kept(student, reference, "keep_top_p", logits, p, case)


@exercise("keep_top_p", 2)
def test_top_p_order(student, reference, draw):
    """Tokens stay at their places, whatever their order."""
    for p in (0.3, 0.7, 0.92):
        logits = spread(draw, 1, 6, avoid=(p,))
        case = f"the logits {[round(one, 3) for one in logits[0].tolist()]} and p={p}"
        same_kept(student, reference, "keep_top_p", logits, p, case)


@exercise("keep_top_p", 2)
def test_top_p_rows(student, reference, draw):
    """Every row keeps as many as it needs, whatever the axes before the last."""
    for shape, p in [((4, 5), 0.6), ((2, 3, 5), 0.85), ((6,), 0.5)]:
        case = f"logits of shape {shape} and p={p}"
        same_kept(student, reference, "keep_top_p", spread(draw, *shape, avoid=(p,)), p, case)


@exercise("keep_top_p")
def test_top_p_bounds(student, reference, draw):
    """A p of 0 or less, or above 1, is refused; a tiny one keeps one token, and 1 keeps all."""
    logits = spread(draw, 3, 4, avoid=(0.9,), scale=0.7)
    refuses(
        student.keep_top_p,
        {"p=0": (logits, 0.0), "p=-0.5": (logits, -0.5), "p=1.01": (logits, 1.01)},
    )
    for p in (1e-4, 0.9, 1.0):
        same_kept(student, reference, "keep_top_p", logits, p, f"three rows of 4 and p={p}")


@hidden
@exercise("keep_top_p")
def test_top_p_impossible(student, reference, draw):
    """-inf on the input stays -inf; what is left has the probabilities."""
    logits = spread(draw, 3, 4, avoid=(0.7, 0.95))
    gap = torch.full((3, 1), -torch.inf)
    logits = torch.cat([logits[:, :2], gap, logits[:, 2:], gap], dim=1)
    for p in (0.7, 0.95, 1.0):
        same_kept(student, reference, "keep_top_p", logits, p, f"two entries of -inf and p={p}")
    alone = torch.tensor([[-torch.inf, 0.3, -torch.inf]])
    same_kept(student, reference, "keep_top_p", alone, 0.5, "one token that is possible and p=0.5")


@hidden
@exercise("keep_top_p")
def test_top_p_flow(student, reference, draw):
    """A large vocabulary, float64; a strided input is left as it was."""
    logits = spread(draw, 4, 9, avoid=(0.8,)).double().mT.contiguous().mT
    seen = student.observe("keep_top_p", logits, 0.8, grad=False)
    want = reference.keep_top_p(logits, 0.8)
    expectations.close(
        seen.value, want, what="the logits", case="a strided float64 input and p=0.8"
    )
    expectations.unchanged(seen)
    # The largest probabilities: 0.3, 0.25 and 0.2; a thousand others share the rest.
    rest = draw.uniform(1000, low=0.5, high=1.5)
    shares = torch.cat([0.25 * rest / rest.sum(), torch.tensor([0.3, 0.2, 0.25])])
    logits = shares.log()[draw.permutation(1003)].unsqueeze(0)
    for p in (0.4, 0.7):
        same_kept(student, reference, "keep_top_p", logits, p, f"1003 tokens and p={p}")


# --------------------------------------------------------------------------------------------
# sample_token
# --------------------------------------------------------------------------------------------


def shares_of(logits, temperature=1.0, top_k=None, top_p=None):
    """The probabilities (V,) with which a row's next token is drawn."""
    x = logits.double() / temperature
    if top_k is not None and top_k < len(x):
        x = x.masked_fill(x < x.topk(top_k).values[-1], -torch.inf)
    if top_p is not None:
        shares, order = x.softmax(-1).sort(descending=True)
        out = torch.zeros_like(x, dtype=torch.bool)
        out[order] = shares.cumsum(-1) - shares >= top_p
        x = x.masked_fill(out, -torch.inf)
    return x.softmax(-1)


def own_shares(parts, logits, temperature=1.0, top_k=None, top_p=None):
    """The same for every row (B, V) by the student's own three functions."""
    x = parts.proxy.scale_temperature(logits, temperature)
    if top_k is not None:
        x = parts.proxy.keep_top_k(x, top_k)
    if top_p is not None:
        x = parts.proxy.keep_top_p(x, top_p)
    shares = expectations.tensor(x, what="a part").double().softmax(-1)
    expectations.true(
        shares.ndim == 2 and shares.shape[1] <= logits.shape[1], "A part is of odd shape."
    )
    return torch.nn.functional.pad(shares, (0, logits.shape[1] - shares.shape[1]))


def spoilt(student, logits, **options):
    """Whether the student's own functions leave no token to some row, from which none can draw."""
    own = by_parts(student, lambda parts: own_shares(parts, logits, **options))
    return own is not None and bool(own.isnan().any())


def tokens_of(got, count, vocabulary, case, what="the tokens"):
    """(B,) int64, all in the vocabulary."""
    expectations.shape(got, (count,), what=what, case=case)
    expectations.true(
        got.dtype == torch.int64, f"{what} should be int64, but are {got.dtype} for {case}."
    )
    expectations.true(
        bool(((got >= 0) & (got < vocabulary)).all()),
        f"{what} should lie in the vocabulary for {case}.",
    )
    return got


def as_often(student, tokens, logits, case, whole=None, **options):
    """The tokens came as often as the logits (V,) of their rows say; returns how often that is.

    Args:
        whole: the logits (B, V) of all rows, as the student's own parts would get them.
    """

    def judge(shares):
        for token, share in enumerate(shares.tolist()):
            expectations.rate(
                int((tokens == token).sum()),
                len(tokens),
                share,
                what=f"the share of token {token} for {case}",
                false_alarm=1e-9 / len(shares),
            )
        return shares

    try:
        return judge(shares_of(logits, **options))
    except Mistake as mistake:
        whole = logits.repeat(len(tokens), 1) if whole is None else whole
        own = by_parts(student, lambda parts: own_shares(parts, whole, **options).mean(0))
        if own is None or bool(own.isnan().any()):
            raise
        try:
            return judge(own)
        except Mistake:
            raise mistake from None


DRAWS = 800


def same_shares(student, logits, **options):
    """Rows with the same logits (V,) draw each token as often as they should."""
    case = f"the probabilities {[round(one, 3) for one in logits.softmax(-1).tolist()]}" + "".join(
        f", {name}={value}" for name, value in options.items()
    )
    rows = logits.repeat(DRAWS, 1)
    try:
        got = student.sample_token(rows, **options)
    except StudentError:
        if not spoilt(student, rows, **options):
            raise
        return
    as_often(student, tokens_of(got, DRAWS, len(logits), case), logits, case, **options)


def certain(student, logits, case, **options):
    """Every row's token is the only possible one: that of the largest logit."""
    try:
        got = student.sample_token(logits, **options)
    except StudentError:
        if options.get("temperature", 1) == 0 or not spoilt(student, logits, **options):
            raise
        return
    got = tokens_of(got, *logits.shape, case)
    try:
        expectations.equal(got, logits.argmax(-1), what="the tokens", case=case)
    except Mistake:
        if options.get("temperature", 1) == 0:
            raise
        own = by_parts(student, lambda parts: own_shares(parts, logits, **options))
        # A wrong part may leave more than one possible, but not this token.
        if own is None or not bool((own.gather(1, got.unsqueeze(1)) > 0).all()):
            raise
        surest = own.amax(1) > 1 - 1e-9
        expectations.equal(got[surest], own.argmax(1)[surest], what="the tokens", case=case)


@exercise("sample_token")
def test_sample_greedy(student, draw):
    """Temperature 0 takes the largest logit, and the first of equal ones."""
    for batch in (1, 3):
        certain(student, distinct(draw, batch, 6), f"B={batch}, temperature=0", temperature=0.0)
    logits = torch.tensor([[1.0, 4.0, 4.0, 0.0], [2.0, 2.0, 2.0, 2.0], [-1.0, -3.0, -2.0, -1.0]])
    got = tokens_of(student.sample_token(logits, 0), 3, 4, "equal logits, temperature=0")
    expectations.equal(
        got, torch.tensor([1, 0, 0]), what="the tokens", case="equal logits, temperature=0"
    )


@aspect
@exercise("sample_token")
def test_sample_certain(student, draw):
    """Where one token alone is left, by -inf, top_k=1 or a tiny top_p, it is drawn."""
    logits = distinct(draw, 40, 5)
    certain(student, logits, "top_k=1, temperature=3", top_k=1, temperature=3.0)
    certain(student, logits, "top_p=0.01", top_p=0.01)
    alone = torch.where(logits == logits.amax(1, keepdim=True), logits, -torch.inf)
    certain(student, alone, "one entry that is not -inf")


@exercise("sample_token", 2)
def test_sample_shares(student):
    """Each token comes as often as the softmax says; the temperature sharpens or flattens it."""
    logits = torch.tensor([0.4, 0.1, 0.3, 0.2]).log()
    same_shares(student, logits)
    for temperature in (0.5, 2.5):
        same_shares(student, logits, temperature=temperature)


@exercise("sample_token")
def test_sample_filters(student):
    """top_k and top_p take away, and what is left is drawn in proportion."""
    logits = torch.tensor([0.05, 0.3, 0.4, 0.25]).log()
    same_shares(student, logits, top_k=2)
    same_shares(student, logits, top_p=0.8)


@exercise("sample_token")
def test_sample_generator(student):
    """Draws come from the generator that is given: its seed decides, and nothing else."""
    logits = torch.zeros(30, 9)
    # Two times 30 draws from 9 tokens are the same with 9 ** -30.
    seeds = (11, 11, 12)
    found = []
    for seed in seeds:
        seen = student.drawing("sample_token", logits, generator=Generator(seed))
        found.append(tokens_of(seen.value, 30, 9, "a generator"))
        expectations.true(
            GLOBAL_GENERATOR not in seen.mutated,
            "your sample_token draws from PyTorch's own generator although one is given.",
        )
    expectations.true(
        torch.equal(found[0], found[1]),
        "two generators with the same seed give different tokens; draw from the one that is given.",
    )
    expectations.true(
        not torch.equal(found[0], found[2]),
        "generators with different seeds give the same tokens.",
    )
    free = [tokens_of(student.sample_token(logits), 30, 9, "no generator") for _ in range(2)]
    expectations.true(
        not torch.equal(*free), "without a generator two calls give the same tokens; set no seed."
    )


@exercise("sample_token")
def test_sample_refusals(student, draw):
    """A negative temperature is refused with a ValueError."""
    logits = draw.normal(2, 3)
    refuses(student.sample_token, {"temperature=-0.5": (logits, -0.5)})


@hidden
@exercise("sample_token", 2)
def test_sample_order(student):
    """First the temperature, then top_k, then top_p on the probabilities of what is left."""
    logits = torch.tensor([0.1, 0.32, 0.14, 0.24, 0.2]).log()
    same_shares(student, logits, temperature=2.0, top_p=0.6)
    # top_p leaves 3 of the 6 that top_k has left; of all 8 it would leave 4.
    logits = torch.tensor([0.12, 0.04, 0.25, 0.08, 0.15, 0.2, 0.06, 0.1]).log()
    same_shares(student, logits, top_k=6, top_p=0.65)
    same_shares(student, logits, temperature=0.5, top_k=4, top_p=0.85)


@hidden
@exercise("sample_token")
def test_sample_rows(student, draw):
    """Every row draws from its own logits, float64 too, and they stay as they are."""
    first, second = torch.tensor([[0.7, 0.1, 0.2], [0.1, 0.6, 0.3]]).log().double()
    logits = torch.stack([first, second]).repeat(DRAWS, 1)
    seen = student.observe("sample_token", logits, grad=False)
    got = tokens_of(seen.value, 2 * DRAWS, 3, "two kinds of rows")
    shares = [
        as_often(student, got[place::2], row, f"row {place} of two kinds of rows")
        for place, row in enumerate((first, second))
    ]
    expectations.unchanged(seen)
    # Neighbours that draw the same token do so by chance only.
    expectations.rate(
        int((got[0::2] == got[1::2]).sum()),
        DRAWS,
        float(shares[0] @ shares[1]),
        what="the share of neighbouring rows with the same token",
    )
    seen = student.observe("sample_token", logits[:4], 0.0, grad=False)
    expectations.equal(
        seen.value, torch.tensor([0, 1, 0, 1]), what="the tokens", case="temperature=0"
    )
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# generate
# --------------------------------------------------------------------------------------------


def table_of(draw, vocabulary=6, places=0):
    """A table for a TableModel in which no two logits of a row are close."""
    shape = (places, vocabulary, vocabulary) if places else (vocabulary, vocabulary)
    return distinct(draw, *shape)


def table_pair(student, reference, table, **more):
    return pair(student, reference, "TableModel", table=table, **more)


def said_by(table, ids, context):
    """The logits of the next token (B, V) that a TableModel says."""
    ids = ids[:, -context:]
    return (
        table[ids[:, -1]]
        if table.ndim == 2
        else table[min(ids.shape[1], len(table)) - 1, ids[:, -1]]
    )


def own_text(parts, table, context, ids, count, stop=None, **options):
    """What the student's own sample_token writes; certain where each of its draws is."""
    over = torch.zeros(len(ids), dtype=torch.bool)
    for _ in range(count):
        token = parts.proxy.sample_token(said_by(table, ids, context), **options)
        tokens_of(token, len(ids), len(table[-1]), "a part")
        if stop is not None:
            token = token.masked_fill(over, stop)
            over |= token == stop
        ids = torch.cat([ids, token.unsqueeze(1)], dim=1)
        if stop is not None and bool(over.all()):
            break
    return ids


def text_of(got, ids, most, vocabulary, case):
    """(B, T + n) int64 with n <= most, all in the vocabulary, beginning with ids."""
    expectations.tensor(got, what="the text", case=case)
    expectations.true(
        got.dtype == torch.int64 and got.ndim == 2 and len(got) == len(ids),
        f"the text should be int64 with {len(ids)} rows, but is {got.dtype} of shape "
        f"{tuple(got.shape)} for {case}.",
    )
    expectations.true(
        ids.shape[1] <= got.shape[1] <= ids.shape[1] + most,
        f"the text should have {ids.shape[1]} tokens and at most {most} new ones, but has "
        f"{got.shape[1]} for {case}.",
    )
    expectations.equal(got[:, : ids.shape[1]], ids, what="the beginning of the text", case=case)
    expectations.true(
        bool(((got >= 0) & (got < vocabulary)).all()),
        f"the text should lie in the vocabulary for {case}.",
    )
    return got


def same_text(student, reference, table, ids, count, case, context=1024, **options):
    """A text of which every token is certain."""
    mine, theirs = table_pair(student, reference, table, context=context)
    want = reference.generate(theirs, ids, count, **options)
    try:
        seen = student.observe("generate", mine, ids, count, grad=False, **options)
    except StudentError:
        # Where the student's sample_token knows no temperature 0, top_k=1 is as certain.
        said = said_by(table, ids, context)
        if by_parts(student, lambda parts: parts.proxy.sample_token(said, 0.0)) is not None:
            raise
        options = {**options, "temperature": 1.0, "top_k": 1}
        seen = student.observe("generate", mine, ids, count, grad=False, **options)
    expectations.unchanged(seen)
    try:
        expectations.equal(seen.value, want, what="the text", case=case)
    except Mistake:
        own = by_parts(
            student, lambda parts: own_text(parts, table, context, ids, count, **options)
        )
        same = own is not None and isinstance(seen.value, torch.Tensor)
        if not (same and torch.equal(seen.value, own)):
            raise


def ending_circle(vocabulary, stop):
    """A table that counts on from token to token, and after the last begins anew at 0."""
    table = torch.full((vocabulary, vocabulary), -9.0)
    for token in range(vocabulary):
        table[token, (token + 1) % vocabulary] = 9.0
    table[stop, stop] = -9.0
    return table


@exercise("generate", 2)
def test_generate_greedy(student, reference, draw):
    """Each new token is made from the logits at the last place, and appended."""
    table = table_of(draw, places=5)
    for batch, length, count in [(1, 1, 1), (1, 3, 4), (3, 2, 6)]:
        ids = draw.integers(0, 6, batch, length)
        case = sizes(B=batch, T=length) + f", max_new_tokens={count}, temperature=0"
        same_text(student, reference, table, ids, count, case, temperature=0.0)


@exercise("generate")
def test_generate_context(student, reference, draw):
    """The model sees the last model.context tokens, no more and no fewer."""
    table = table_of(draw, places=8)
    for length, context, count in [(2, 4, 6), (7, 3, 4), (5, 5, 3)]:
        ids = draw.integers(0, 6, 2, length)
        case = f"T={length}, context={context}, max_new_tokens={count}, temperature=0"
        same_text(student, reference, table, ids, count, case, context, temperature=0.0)


@exercise("generate", 2)
def test_generate_stop(student, reference):
    """A row that wrote stop goes on with stop; when all have written it, writing ends."""
    table = ending_circle(6, 5)
    for rows, count in [([2], 9), ([1, 4, 2], 9), ([0, 3], 3)]:
        ids = torch.tensor([[row] for row in rows])
        case = f"rows that write stop after {[5 - row for row in rows]} tokens, at most {count}"
        same_text(student, reference, table, ids, count, case, stop=5, temperature=0.0)
    case = "the same without stop"
    same_text(student, reference, table, torch.tensor([[3], [1]]), 5, case, temperature=0.0)


@exercise("generate")
def test_generate_bounds(student, reference, draw):
    """No new tokens give the text as it is; fewer than none, and an empty text, are refused."""
    table, ids = table_of(draw), draw.integers(0, 6, 2, 3)
    mine = student.module("TableModel", table=table)
    refuses(
        student.generate,
        {
            "max_new_tokens=-1": (mine, ids, -1),
            "ids without a column": (mine, ids[:, :0], 3),
        },
    )
    for count in (1, 0):
        case = f"max_new_tokens={count}, temperature=0"
        same_text(student, reference, table, ids, count, case, temperature=0.0)


FREE = torch.tensor([0.2, 0.1, 0.4, 0.05, 0.25]).log()


def same_writing(student, **options):
    """Rows with one beginning write each token as often as they should, one by one."""
    model = student.module("TableModel", table=FREE.expand(5, 5))
    ids = torch.zeros(DRAWS // 2, 1, dtype=torch.int64)
    shown = "".join(f", {name}={value}" for name, value in options.items())
    case = f"the probabilities 0.2, 0.1, 0.4, 0.05, 0.25{shown}"
    as_written(student, model, ids, case, options, options)


def as_written(student, model, ids, case, given, options):
    """Two new tokens for each row come as often as they should, or as sample_token draws them."""
    rows = FREE.repeat(len(ids), 1)
    try:
        got = student.generate(model, ids, 2, **given)
    except StudentError:
        if not spoilt(student, rows, **options):
            raise
        return
    got = text_of(got, ids, 2, 5, case)
    expectations.shape(got, (len(ids), 3), what="the text", case=case)
    tokens = got[:, 1:].flatten()
    try:
        as_often(student, tokens, FREE, case, rows, **options)
    except Mistake:
        own = by_parts(student, lambda parts: own_draws(parts, rows, **options))
        if own is None or not alike(tokens, own, len(FREE)):
            raise


def own_draws(parts, rows, **options):
    """What the student's own sample_token draws for each row, some times."""
    drawn = [parts.proxy.sample_token(rows, **options) for _ in range(4)]
    return torch.cat([tokens_of(one, *rows.shape, "a part") for one in drawn])


def alike(some, others, count):
    """Whether two lists of tokens may well have been drawn with the same probabilities."""
    for token in range(count):
        counts = [int((one == token).sum()) for one in (some, others)]
        both = sum(counts) / (len(some) + len(others))
        try:
            for number, one in zip(counts, (some, others), strict=True):
                expectations.rate(number, len(one), both, "the share", false_alarm=1e-9)
        except Mistake:
            return False
    return True


@aspect
@exercise("generate")
def test_generate_shares(student):
    """Tokens are drawn, each row for itself, with temperature, top_k and top_p passed on."""
    same_writing(student)
    same_writing(student, temperature=0.5)
    same_writing(student, top_k=2)
    same_writing(student, top_p=0.7)


@aspect
@exercise("generate", 2)
def test_generate_seed(student):
    """The same seed writes the same text again, other seeds and no seed write others."""
    model = student.module("TableModel", table=torch.zeros(9, 9))
    ids = torch.zeros(3, 2, dtype=torch.int64)
    # 3 rows of 12 tokens out of 9: equal by chance with 9 ** -36.
    try:
        same_seeds(student, model, ids)
    except Mistake:
        if sound_draws(student):
            raise


def same_seeds(student, model, ids):
    """The seed decides, and nothing else."""
    texts = {}
    for name, seed in [("one", 5), ("again", 5), ("other", 6), ("zero", 0), ("zero again", 0)]:
        seen = student.drawing("generate", model, ids, 12, seed=seed)
        texts[name] = text_of(seen.value, ids, 12, 9, f"seed={seed}")
        expectations.shape(texts[name], (3, 14), what="the text", case=f"seed={seed}")
        expectations.true(
            GLOBAL_GENERATOR not in seen.mutated,
            "with a seed your generate changes the state of PyTorch's own generator; draw from a "
            "torch.Generator of your own.",
        )
    for one, other in [("one", "again"), ("zero", "zero again")]:
        expectations.true(
            torch.equal(texts[one], texts[other]), "the same seed writes a different text."
        )
    for one, other in [("one", "other"), ("one", "zero"), ("other", "zero")]:
        expectations.true(
            not torch.equal(texts[one], texts[other]), "different seeds write one text."
        )
    free = [text_of(student.generate(model, ids, 12), ids, 12, 9, "no seed") for _ in range(2)]
    expectations.true(not torch.equal(*free), "without a seed two calls write the same text.")
    text = texts["one"]
    expectations.true(
        not (torch.equal(text[0], text[1]) and torch.equal(text[0], text[2]))
        and bool((text[:, 2:] != text[:, 2:3]).any()),
        "with a seed, rows or steps repeat the same draws; make one generator before the loop.",
    )


def sound_draws(student):
    """Whether the student's own sample_token draws from the generator that it is given."""

    def own(parts):
        rows = torch.zeros(40, 9)
        drawn = [
            parts.proxy.sample_token(rows, generator=one)
            for one in (Generator(1), Generator(1), Generator(2), None, None)
        ]
        return [tokens_of(one, *rows.shape, "a part") for one in drawn]

    drawn = by_parts(student, own)
    if drawn is None:
        return True
    same, free = torch.equal(drawn[0], drawn[1]), torch.equal(drawn[3], drawn[4])
    one = bool((drawn[0] == drawn[0][0]).all())
    return same and not free and not one and not torch.equal(drawn[0], drawn[2])


@hidden
@exercise("generate")
def test_generate_mode(student, draw):
    """The model runs in the mode in which it comes: dropout acts in training mode only."""
    weight = distinct(draw, 5, 5)
    weight[:, 0] = weight[:, 4] = -9.0  # Neither the first nor the last of equal ones.
    for train in (False, True):
        table = {"weight": weight}
        model = chained(
            student,
            student.module("nn.Embedding", state=table, num_embeddings=5, embedding_dim=5),
            student.module("nn.Dropout", p=1.0),
        )
        model.method("__setattr__", "context", 8)
        model = model.train() if train else model.eval()
        ids = torch.tensor([[2], [4]])
        case = f"a model in {'training' if train else 'evaluation'} mode"
        got = text_of(student.generate(model, ids, 1, temperature=0.0), ids, 1, 5, case)
        same = got[:, 1:] == weight[ids[:, 0]].argmax(-1, keepdim=True)
        expectations.true(
            bool((same != train).all()),
            "your generate changes the mode of the model, which is the caller's business: "
            f"{case} writes what it should in the other.",
        )


@hidden
@exercise("generate")
def test_generate_stop_again(student, reference, draw):
    """stop may be 0 or stand in the beginning; a stopped row can't go on with anything else."""
    table = ending_circle(5, 0)
    ids = torch.tensor([[0, 3], [1, 2], [0, 1]])
    case = "stop=0, rows that begin with it"
    same_text(student, reference, table, ids, 8, case, stop=0, temperature=0.0)
    # The draw decides when a row ends, but what comes then is certain.
    model = student.module("TableModel", table=torch.zeros(4, 4))
    ids = torch.ones(40, 1, dtype=torch.int64)
    got = text_of(student.generate(model, ids, 10, stop=2), ids, 10, 4, "stop=2")[:, 1:]
    over = (got == 2).long().cumsum(1) > 0
    expectations.true(
        bool((got[over] == 2).all()),
        "a row that wrote stop should go on with stop and nothing else.",
    )
    expectations.true(
        got.shape[1] == 10 or bool(over[:, -1].all() & ~over[:, :-1].all(0).any()),
        "writing should end with the step in which the last row writes stop.",
    )


@aspect
@hidden
@exercise("generate")
def test_generate_seeded_shares(student):
    """With a seed too, temperature, top_k and top_p are passed on."""
    model = student.module("TableModel", table=FREE.expand(5, 5))
    ids = torch.zeros(DRAWS // 2, 1, dtype=torch.int64)
    options = {"temperature": 2.0, "top_k": 4, "top_p": 0.8}
    case = f"the probabilities 0.2, 0.1, 0.4, 0.05, 0.25, a seed, {options}"
    as_written(student, model, ids, case, {**options, "seed": 77}, options)


# --------------------------------------------------------------------------------------------
# attend_cached
# --------------------------------------------------------------------------------------------


class Attentions:
    """The student's CausalSelfAttention and the reference's, with the same parameters.

    A cache answers for nobody's attention: where the student's is another one than the
    reference's, `right` is False, and steps are compared with what the student's own says of the
    whole.
    """

    def __init__(self, student, reference, draw, width=6, heads=2, dtype=torch.float64, **more):
        self.student, self.reference = student, reference
        self.width, self.heads = width, heads
        options = {"width": width, "num_heads": heads, **more}
        self.state = {name: one.to(dtype) for name, one in fused_state(draw, width).items()}
        own = fitting(student, "CausalSelfAttention", options, self.state)
        self.mine = student.module("CausalSelfAttention", state=own, dtype=dtype, **options)
        self.theirs = reference.module(
            "CausalSelfAttention", state=self.state, dtype=dtype, **options
        )
        x = draw.normal(2, 3, width).to(dtype)
        want = self.theirs(x)
        own = self.whole(x)
        self.right = own is not None and expectations.close_enough(own, want)

    def whole(self, x):
        """What the student's own attention says without a cache."""
        return by_parts(self.student, lambda parts: alive(parts.aside(self.mine)(x)))

    def by_mask(self, x, past):
        """The output as the student's own causal_mask makes it; None if that one refuses."""
        state, shape = self.state, (len(x), -1, self.heads, self.width // self.heads)
        parts = (x @ state["qkv.weight"].T + state["qkv.bias"]).chunk(3, dim=-1)
        queries, keys, values = (part.reshape(shape).transpose(1, 2) for part in parts)
        if past is not None:
            keys, values = torch.cat([past[0], keys], 2), torch.cat([past[1], values], 2)

        def own(parts):
            alive(parts.proxy.causal_mask(4))
            mask = parts.proxy.causal_mask(x.shape[1], keys.shape[2] - x.shape[1])
            scores = queries @ keys.mT / math.sqrt(queries.shape[3])
            mixed = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ values
            return (
                mixed.transpose(1, 2).flatten(2) @ state["out_proj.weight"].T
                + state["out_proj.bias"]
            )

        return by_parts(self.student, own)

    def close(self, value, want, x, past, case):
        """The output is `want`, or what it is by the student's own mask."""
        try:
            expectations.close(value, want, what="the output", case=case)
        except Mistake:
            own = self.by_mask(x, past)
            if own is None or not same_values(value, own):
                raise

    def pair_of(self, got, rows, places, case):
        """The result and the cache, in the right shapes."""
        value, cache = expectations.pair(got, what="the result (output, cache)")
        shape = (rows, self.heads, places, self.width // self.heads)
        for words, part in zip(("keys", "values"), cached_pair(cache, case), strict=True):
            expectations.shape(part, shape, what=f"the cached {words}", case=case)
        return value, cache


def cached_pair(cache, case):
    """Keys and values of a cache."""
    expectations.true(
        isinstance(cache, (tuple, list)) and len(cache) == 2,
        f"a cache should be a pair (keys, values), but is a {expectations.type_name(cache)} "
        f"for {case}.",
    )
    return cache


def same_attended(both, x, past, case):
    """One call is the reference's, result and cache; `past` stays as it is."""
    want, want_cache = both.reference.attend_cached(both.theirs, x, past)
    seen = both.student.observe("attend_cached", both.mine, x, past, grad=False)
    places = x.shape[1] + (0 if past is None else past[0].shape[2])
    value, cache = both.pair_of(seen.value, len(x), places, case)
    expectations.unchanged(seen)
    expectations.shape(value, want.shape, what="the output", case=case)
    if both.right:
        for words, got, part in zip(("keys", "values"), cache, want_cache, strict=True):
            expectations.close(got, part, what=f"the cached {words}", case=case)
        both.close(value, want, x, past, case)
    return value, cache


def attended_in_steps(both, x, lengths, case):
    """Steps of the given lengths say what attention says of the whole."""
    whole = both.whole(x)
    wanted = both.theirs(x)
    cache, before = None, 0
    for length in lengths:
        step = x[:, before : before + length]
        words = f"{case}, places {before} to {before + length - 1}"
        got, past = both.student.attend_cached(both.mine, step, cache), cache
        value, cache = both.pair_of(got, len(x), before + length, words)
        want = wanted if both.right or whole is None else whole
        both.close(value, want[:, before : before + length], step, past, words)
        before += length


def random_past(draw, rows, heads, places, width, dtype=torch.float64):
    """A cache of random numbers: keys and values."""
    return tuple(draw.normal(rows, heads, places, width // heads).to(dtype) for _ in range(2))


@exercise("attend_cached")
def test_attend_from_nothing(student, reference, draw):
    """Without a past the result is that of the attention, and the cache holds all heads."""
    both = Attentions(student, reference, draw)
    for batch, length in [(1, 1), (2, 4)]:
        x = draw.normal(batch, length, 6).double()
        same_attended(both, x, None, sizes(B=batch, T=length, D=6, H=2) + " without a past")
        attended_in_steps(both, x, [length], "one step without a past")


@exercise("attend_cached", 2)
def test_attend_one_by_one(student, reference, draw):
    """Place by place the results are those of the attention on the whole."""
    both = Attentions(student, reference, draw, heads=3)
    attended_in_steps(both, draw.normal(2, 5, 6).double(), [1] * 5, "five steps of one place")


@exercise("attend_cached", 2)
def test_attend_in_pieces(student, reference, draw):
    """So they are in pieces of any length: the new places see each other causally too."""
    both = Attentions(student, reference, draw)
    for lengths in ([2, 3], [3, 1, 4], [1, 5, 2]):
        x = draw.normal(2, sum(lengths), 6).double()
        attended_in_steps(both, x, lengths, f"steps of {lengths} places")


@exercise("attend_cached")
def test_attend_past(student, reference, draw):
    """New keys and values come behind the old ones, which stay as they are."""
    both = Attentions(student, reference, draw, width=8, heads=2)
    for batch, length, places in [(1, 1, 3), (3, 2, 4)]:
        x, past = draw.normal(batch, length, 8).double(), random_past(draw, batch, 2, places, 8)
        case = sizes(B=batch, T=length, P=places, D=8, H=2)
        _, cache = same_attended(both, x, past, case)
        for words, got, part in zip(("keys", "values"), cache, past, strict=True):
            expectations.close(
                got[:, :, :places], part, what=f"the old part of the {words}", case=case
            )


@aspect
@hidden
@exercise("attend_cached")
def test_attend_without_dropout(student, reference, draw):
    """Dropout is left out, whatever the mode."""
    both = Attentions(student, reference, draw, dropout=0.6)
    x, past = draw.normal(2, 2, 6).double(), random_past(draw, 2, 2, 3, 6)
    quiet, _ = same_attended(both, x, past, "evaluation mode, dropout=0.6")
    got, _ = expectations.pair(student.attend_cached(both.mine.train(), x, past))
    expectations.close(got, quiet, what="the output", case="training mode, dropout=0.6")


@aspect
@hidden
@exercise("attend_cached")
def test_attend_float32(student, reference, draw):
    """float32 stays float32; a long past, one head, strided input."""
    both = Attentions(student, reference, draw, width=4, heads=1, dtype=torch.float32)
    x = draw.normal(2, 4, 3).mT
    past = random_past(draw, 2, 1, 20, 4, torch.float32)
    value, cache = same_attended(both, x, past, "float32, P=20, T=3, one head")
    for part in (value, *cache):
        expectations.true(
            part.dtype == torch.float32, f"the results should be float32, not {part.dtype}."
        )


# --------------------------------------------------------------------------------------------
# cached_forward
# --------------------------------------------------------------------------------------------


class Cached:
    """The student's GPT and the reference's, with the same parameters; see `Attentions`."""

    def __init__(self, student, reference, draw, dtype=torch.float64, **more):
        self.student, self.reference = student, reference
        self.options = gpt_options(**more)
        state = {name: value.to(dtype) for name, value in gpt_state(draw, self.options).items()}
        self.state = fitting(student, "GPT", self.options, state)
        self.mine = student.module("GPT", state=self.state, dtype=dtype, **self.options)
        self.theirs = reference.module("GPT", state=state, dtype=dtype, **self.options)
        ids = draw.integers(0, self.options["vocab_size"], 2, 4)
        want = self.theirs(ids)
        own = self.whole(ids)
        self.right = own is not None and expectations.close_enough(own, want)
        self.dtype = dtype

    def ids(self, draw, rows, length):
        return draw.integers(0, self.options["vocab_size"], rows, length)

    def past(self, draw, rows, places):
        """A list of random caches, one for each block."""
        heads, width = self.options["num_heads"], self.options["width"]
        count = self.options["num_layers"]
        return [random_past(draw, rows, heads, places, width, self.dtype) for _ in range(count)]

    def whole(self, ids):
        """What the student's own GPT says without a cache."""
        return by_parts(self.student, lambda parts: alive(parts.aside(self.mine)(ids)))

    def parts_of(self, got, ids, past, places, case):
        """The logits and the caches, in the right shapes."""
        rows = len(ids)
        logits, caches = expectations.pair(got, what="the result (logits, caches)")
        count, heads = self.options["num_layers"], self.options["num_heads"]
        expectations.true(
            isinstance(caches, (list, tuple)) and len(caches) == count,
            f"there should be a list of {count} caches, one for each block, for {case}.",
        )
        shape = (rows, heads, places, self.options["width"] // heads)
        try:
            for number, cache in enumerate(caches):
                for words, part in zip(("keys", "values"), cached_pair(cache, case), strict=True):
                    expectations.shape(
                        part, shape, what=f"the {words} of block {number}", case=case
                    )
        except Mistake:
            if not _own_caches(self, ids, past, caches):
                raise
        return logits, caches

    def close(self, logits, want, ids, past, case):
        """The logits are `want`, or what they are by the student's own attend_cached."""
        try:
            expectations.close(logits, want, what="the logits", case=case)
        except Mistake:
            for whole in (True, False):
                own = by_parts(
                    self.student,
                    lambda parts, whole=whole: self.by_parts(parts, ids, past, whole),
                )
                if own is not None and same_values(logits, own[0]):
                    return
            raise

    def by_parts(self, parts, ids, past, whole=True):
        """The network put together from the student's attend_cached and FeedForward.

        Without `whole` its two layers are applied as they should be, with the student's gelu.
        """
        options, state = self.options, self.state
        before = 0 if past is None else past[0][0].shape[2]
        x = state["token.weight"][ids] + state["position.weight"][before : before + ids.shape[1]]
        caches = []

        def norm(x, name):
            given = (state[f"{name}.weight"], state[f"{name}.bias"])
            return torch.nn.functional.layer_norm(x, x.shape[-1:], *given)

        for number in range(options["num_layers"]):
            block = f"blocks.{number}."
            attention = parts.proxy.module(
                "CausalSelfAttention",
                state=within(state, f"{block}attention."),
                dtype=self.dtype,
                width=options["width"],
                num_heads=options["num_heads"],
            )
            inner = within(state, f"{block}feed_forward.")
            forward = functools.partial(own_layers, parts, inner)
            if whole:
                forward = parts.make(
                    "FeedForward", state=inner, dtype=self.dtype, width=options["width"]
                )
            old = None if past is None else past[number]
            inside = norm(x, f"{block}norm_1") if options.get("pre_norm", True) else x
            value, cache = parts.proxy.attend_cached(attention, inside, old)
            caches.append(cache)
            x = x + alive(value)
            if options.get("pre_norm", True):
                x = x + forward(norm(x, f"{block}norm_2"))
            else:
                x = norm(x, f"{block}norm_1")
                x = norm(x + forward(x), f"{block}norm_2")
        if options.get("pre_norm", True):
            x = norm(x, "final_norm")
        return x @ state["token.weight"].T, caches


def own_layers(parts, state, x):
    """Two linear layers with the student's gelu between them."""
    inside = parts.proxy.gelu(x @ state["w_1.weight"].T + state["w_1.bias"])
    return inside @ state["w_2.weight"].T + state["w_2.bias"]


def same_forward(both, ids, past, case):
    """One call is the reference's, logits and caches; `past` stays as it is."""
    want, want_caches = both.reference.cached_forward(both.theirs, ids, past)
    seen = both.student.observe("cached_forward", both.mine, ids, past, grad=False)
    places = ids.shape[1] + (0 if past is None else past[0][0].shape[2])
    logits, caches = both.parts_of(seen.value, ids, past, places, case)
    if not _writes(both, past):
        expectations.unchanged(seen)
    expectations.shape(logits, want.shape, what="the logits", case=case)
    if past is not None:
        for number, (cache, old) in enumerate(zip(caches, past, strict=True)):
            for words, got, part in zip(("keys", "values"), cache, old, strict=True):
                what = f"the old part of the {words} of block {number}"
                got = got[:, :, : part.shape[2]]
                if not expectations.close_enough(got, part) and not _own_caches(
                    both, ids, past, caches
                ):
                    expectations.close(got, part, what=what, case=case)
    if not both.right:
        return logits
    try:
        for number, (cache, old) in enumerate(zip(caches, want_caches, strict=True)):
            for words, got, part in zip(("keys", "values"), cache, old, strict=True):
                expectations.close(got, part, what=f"the {words} of block {number}", case=case)
    except Mistake:
        if not _own_caches(both, ids, past, caches):
            raise
    both.close(logits, want, ids, past, case)
    return logits


def _writes(both, past):
    """Whether it is the student's own attend_cached that changes a past."""
    if past is None:
        return False
    width, heads = both.options["width"], both.options["num_heads"]
    inner = within(both.state, "blocks.0.attention.")

    def own(parts):
        given = {"state": inner, "dtype": both.dtype, "width": width, "num_heads": heads}
        attention = parts.proxy.module("CausalSelfAttention", **given)
        x = torch.ones(len(past[0][0]), 1, width, dtype=both.dtype)
        return parts.proxy.observe("attend_cached", attention, x, past[0], grad=False).mutated

    return bool(by_parts(both.student, own))


def _own_caches(both, ids, past, caches):
    """Whether the caches are those that the student's own attend_cached makes."""
    own = by_parts(both.student, lambda parts: both.by_parts(parts, ids, past))
    return own is not None and all(
        expectations.close_enough(got, want)
        for cache, made in zip(caches, own[1], strict=True)
        for got, want in zip(cache, made, strict=True)
    )


def forward_in_steps(both, ids, lengths, case):
    """Steps of the given lengths say what the model says of the whole."""
    whole, wanted = both.whole(ids), both.theirs(ids)
    past, before = None, 0
    for length in lengths:
        step = ids[:, before : before + length]
        words = f"{case}, places {before} to {before + length - 1}"
        got = both.student.cached_forward(both.mine, step, past)
        logits, caches = both.parts_of(got, step, past, before + length, words)
        want = wanted if both.right or whole is None else whole
        both.close(logits, want[:, before : before + length], step, past, words)
        past, before = caches, before + length


@exercise("cached_forward")
def test_cached_from_nothing(student, reference, draw):
    """Without a past the logits are the model's, and every block has a cache."""
    for pre_norm in (True, False):
        both = Cached(student, reference, draw, pre_norm=pre_norm)
        case = f"{'pre' if pre_norm else 'post'}-norm, B=2, T=4, without a past"
        ids = both.ids(draw, 2, 4)
        same_forward(both, ids, None, case)
        forward_in_steps(both, ids, [4], case)


@exercise("cached_forward", 2)
def test_cached_one_by_one(student, reference, draw):
    """With pre-norm, token by token the logits are those of the model on the whole."""
    both = Cached(student, reference, draw)
    forward_in_steps(both, both.ids(draw, 2, 5), [1] * 5, "pre-norm, five steps of one token")


@exercise("cached_forward", 2)
def test_cached_post_norm(student, reference, draw):
    """With post-norm too: the norms stand after the sums."""
    both = Cached(student, reference, draw, pre_norm=False, heads=3)
    forward_in_steps(both, both.ids(draw, 2, 6), [2, 1, 3], "post-norm, steps of 2, 1, 3 tokens")


@exercise("cached_forward")
def test_cached_bounds(student, reference, draw):
    """Cached and new places together may fill the context; more are refused with a ValueError."""
    both = Cached(student, reference, draw, context=5)
    refuses(
        lambda ids, past: student.cached_forward(both.mine, ids, past),
        {
            "6 tokens where context is 5": (both.ids(draw, 1, 6), None),
            "4 cached places and 2 tokens where context is 5": (
                both.ids(draw, 2, 2),
                both.past(draw, 2, 4),
            ),
        },
    )
    forward_in_steps(both, both.ids(draw, 2, 5), [3, 2], "context=5, steps of 3 and 2 tokens")


@hidden
@exercise("cached_forward", 2)
def test_cached_past(student, reference, draw):
    """Every block uses and prolongs its own cache, which stays as it was given."""
    for pre_norm, layers in [(True, 3), (False, 2)]:
        both = Cached(student, reference, draw, pre_norm=pre_norm, layers=layers)
        case = f"{'pre' if pre_norm else 'post'}-norm, {layers} blocks, P=3, T=2"
        same_forward(both, both.ids(draw, 2, 2), both.past(draw, 2, 3), case)


@hidden
@exercise("cached_forward")
def test_cached_without_dropout(student, reference, draw):
    """Dropout is left out, whatever the mode; a model in float32 gives float32."""
    both = Cached(student, reference, draw, dtype=torch.float32, dropout=0.5)
    ids, past = both.ids(draw, 2, 2), both.past(draw, 2, 3)
    quiet = same_forward(both, ids, past, "evaluation mode, dropout=0.5, float32")
    expectations.true(
        quiet.dtype == torch.float32, f"the logits should be float32, but are {quiet.dtype}."
    )
    got, _ = expectations.pair(student.cached_forward(both.mine.train(), ids, past))
    expectations.close(got, quiet, what="the logits", case="training mode, dropout=0.5")


# --------------------------------------------------------------------------------------------
# prompt_and_response
# --------------------------------------------------------------------------------------------


def some_ids(draw, length):
    """A list of ordinary ids, no two of them alike."""
    return (SPECIAL + draw.permutation(90)[:length]).tolist()


def same_response(student, reference, prompt, response, only=None):
    """Ids and mask are the reference's, both lists."""
    got = expectations.items(
        student.prompt_and_response(prompt, response), 2, "the result (ids, mask)"
    )
    want = reference.prompt_and_response(prompt, response)
    case = f"a prompt of {len(prompt)} and a response of {len(response)}"
    for name, actual, expected in zip(("ids", "mask"), got, want, strict=True):
        if only in (None, name):
            expectations.equal(actual, expected, what=f"the list {name}", case=case)
    kinds = {type(value) for value in got[1]}
    expectations.true(
        only == "ids" or kinds == {bool},
        f"the mask should hold True and False only for {case}.",
    )


@exercise("prompt_and_response", 2)
def test_response_ids(student, reference, draw):
    """The ids are [START] prompt [DELIMITER] response [END]."""
    for first, second in [(1, 1), (2, 3), (4, 2)]:
        same_response(student, reference, some_ids(draw, first), some_ids(draw, second), "ids")


@exercise("prompt_and_response", 2)
def test_response_mask(student, reference, draw):
    """The mask is True at every token of the response and at END, False before."""
    for first, second in [(1, 1), (3, 2), (2, 5)]:
        same_response(student, reference, some_ids(draw, first), some_ids(draw, second))


@exercise("prompt_and_response")
def test_response_refusals(student, reference, draw):
    """An empty prompt or response is refused with a ValueError, one token of each is not."""
    one, two = some_ids(draw, 1), some_ids(draw, 3)
    refuses(
        student.prompt_and_response,
        {
            "an empty prompt and an empty response": ([], []),
            "an empty prompt": ([], two),
            "an empty response": (two, []),
        },
    )
    same_response(student, reference, one, one)


@hidden
@exercise("prompt_and_response")
def test_response_repeated(student, reference, draw):
    """Tokens that stand in both parts, or twice in one, count by where they stand."""
    one, two = some_ids(draw, 5), some_ids(draw, 40)
    for prompt, response in [(one, one), (one * 2, one[::-1]), (two, two[:7]), (one[:1] * 4, one)]:
        same_response(student, reference, prompt, response)


@hidden
@exercise("prompt_and_response")
def test_response_leaves_lists(student, draw):
    """The lists that are given stay as they are."""
    given = some_ids(draw, 3), some_ids(draw, 4)
    seen = student.observe("prompt_and_response", *given, grad=False)
    ids, _ = expectations.items(seen.value, 2, what="the result (ids, mask)")
    expectations.equal(ids, [START, *given[0], DELIMITER, *given[1], END], what="the list ids")
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# entailment_input, similarity_inputs, choice_inputs: what they share
# --------------------------------------------------------------------------------------------


def own_inputs(student, pairs):
    """What the student's own entailment_input makes of the pairs; None if it makes no lists."""
    made = by_parts(student, lambda parts: [parts.proxy.entailment_input(*each) for each in pairs])
    sound = made and all(isinstance(each, list) and len(set(each)) > 2 for each in made)
    return made if sound else None


def same_inputs(student, got, want, pairs, case):
    """A list of inputs is the reference's, or what the student's own entailment_input makes."""
    rows = expectations.items(got, len(want), what=f"the result for {case}")
    if list(rows) == own_inputs(student, pairs):
        return
    for number, (actual, expected) in enumerate(zip(rows, want, strict=True)):
        expectations.equal(actual, expected, what=f"input {number} (counted from 0)", case=case)


def refuses_input(student, name, words, given, pairs):
    """Bad input is refused, unless the student's own entailment_input, used rightly, takes it."""
    try:
        expectations.raises("ValueError", lambda: getattr(student, name)(*given), what=words)
    except Mistake:
        made = own_inputs(student, pairs)
        answer = by_parts(student, lambda parts: getattr(parts.proxy, name)(*given))
        if made is None or not isinstance(answer, (list, tuple)) or list(answer) != made:
            raise


# --------------------------------------------------------------------------------------------
# entailment_input
# --------------------------------------------------------------------------------------------


def same_entailment(student, reference, draw, first, second):
    given = some_ids(draw, first), some_ids(draw, second)
    case = f"a premise of {first} and a hypothesis of {second} tokens"
    got, want = student.entailment_input(*given), reference.entailment_input(*given)
    expectations.equal(got, want, what="the list of ids", case=case)


@exercise("entailment_input", 2)
def test_entailment_small(student, reference, draw):
    """[START] premise [DELIMITER] hypothesis [EXTRACT]."""
    for first, second in [(1, 1), (2, 3), (4, 1)]:
        same_entailment(student, reference, draw, first, second)


@exercise("entailment_input")
def test_entailment_lengths(student, reference, draw):
    """Texts of any lengths, whole."""
    for first, second in [(1, 12), (20, 3), (30, 40)]:
        same_entailment(student, reference, draw, first, second)


@exercise("entailment_input")
def test_entailment_refusals(student, reference, draw):
    """An empty premise or hypothesis is refused with a ValueError."""
    text = some_ids(draw, 2)
    refuses(
        student.entailment_input,
        {
            "two empty texts": ([], []),
            "an empty premise": ([], text),
            "an empty hypothesis": (text, []),
        },
    )
    same_entailment(student, reference, draw, 1, 1)


@hidden
@exercise("entailment_input")
def test_entailment_leaves_lists(student, draw):
    """The lists that are given stay as they are; two equal texts are two."""
    text = some_ids(draw, 3)
    for given in [(text, some_ids(draw, 2)), (text, list(text))]:
        seen = student.observe("entailment_input", *given, grad=False)
        want = [START, *given[0], DELIMITER, *given[1], EXTRACT]
        expectations.equal(seen.value, want, what="the list of ids")
        expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# similarity_inputs
# --------------------------------------------------------------------------------------------


def same_similarity(student, reference, first, second):
    got, want = student.similarity_inputs(first, second), reference.similarity_inputs(first, second)
    pairs = [(first, second), (second, first)]
    case = f"texts of {len(first)} and {len(second)} tokens"
    same_inputs(student, got, want, pairs, case)


@exercise("similarity_inputs", 2)
def test_similarity_both_orders(student, reference, draw):
    """Two inputs: first [DELIMITER] second, and second [DELIMITER] first."""
    for first, second in [(1, 1), (3, 2), (2, 5)]:
        same_similarity(student, reference, some_ids(draw, first), some_ids(draw, second))


@exercise("similarity_inputs")
def test_similarity_lengths(student, reference, draw):
    """Texts of any lengths; both inputs are as long."""
    for first, second in [(1, 9), (25, 4)]:
        same_similarity(student, reference, some_ids(draw, first), some_ids(draw, second))


@exercise("similarity_inputs")
def test_similarity_refusals(student, reference, draw):
    """An empty text, be it the first or the second, is refused with a ValueError."""
    text = some_ids(draw, 3)
    for words, given in {"an empty first text": ([], text), "an empty second": (text, [])}.items():
        refuses_input(student, "similarity_inputs", words, given, [given, given[::-1]])
    same_similarity(student, reference, text, text[:1])


@hidden
@exercise("similarity_inputs")
def test_similarity_leaves_lists(student, reference, draw):
    """The lists that are given stay as they are; equal texts give two equal inputs."""
    text = some_ids(draw, 3)
    same_similarity(student, reference, text, list(text))
    given = text, some_ids(draw, 2)
    seen = student.observe("similarity_inputs", *given, grad=False)
    want = reference.similarity_inputs(*given)
    same_inputs(student, seen.value, want, [given, given[::-1]], "texts of 3 and 2 tokens")
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# choice_inputs
# --------------------------------------------------------------------------------------------


def same_choice(student, reference, context, answers):
    got, want = student.choice_inputs(context, answers), reference.choice_inputs(context, answers)
    lengths = ", ".join(str(len(each)) for each in answers)
    case = f"a context of {len(context)} and answers of {lengths} tokens"
    same_inputs(student, got, want, [(context, each) for each in answers], case)


@exercise("choice_inputs", 2)
def test_choice_each_answer(student, reference, draw):
    """One input per answer: [START] context [DELIMITER] answer [EXTRACT]."""
    for context, lengths in [(1, [1]), (3, [2, 1]), (2, [1, 4, 2])]:
        answers = [some_ids(draw, length) for length in lengths]
        same_choice(student, reference, some_ids(draw, context), answers)


@exercise("choice_inputs")
def test_choice_lengths(student, reference, draw):
    """Every answer stays as long as it is, in the order given."""
    answers = [some_ids(draw, length) for length in (7, 1, 12, 3)]
    same_choice(student, reference, some_ids(draw, 20), answers)


@exercise("choice_inputs")
def test_choice_refusals(student, reference, draw):
    """No context, no answers, or an answer without tokens: refused with a ValueError."""
    text, one, two = some_ids(draw, 3), some_ids(draw, 2), some_ids(draw, 1)
    refuses(student.choice_inputs, {"an empty list of answers": (text, [])})
    for words, context, answers in [
        ("an empty context", [], [one, two]),
        ("an empty only answer", text, [[]]),
        ("an empty first answer", text, [[], one]),
        ("an empty last answer", text, [one, two, []]),
    ]:
        pairs = [(context, each) for each in answers]
        refuses_input(student, "choice_inputs", words, (context, answers), pairs)
    same_choice(student, reference, text, [one])


@hidden
@exercise("choice_inputs")
def test_choice_leaves_lists(student, reference, draw):
    """The lists that are given stay as they are; equal answers keep their places."""
    context, one, two = some_ids(draw, 4), some_ids(draw, 2), some_ids(draw, 3)
    for answers in ([one, two, one], [two, two]):
        same_choice(student, reference, context, answers)
    seen = student.observe("choice_inputs", context, [one, two], grad=False)
    want = reference.choice_inputs(context, [one, two])
    pairs = [(context, one), (context, two)]
    same_inputs(student, seen.value, want, pairs, "answers of 2 and 3 tokens")
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# GPTClassifier
# --------------------------------------------------------------------------------------------

HEADS = ("scores", "logits")


def extract_rows(draw, lengths, high=9):
    """Rows [START] ... [EXTRACT] of the given lengths, PAD behind them."""
    ids = draw.integers(SPECIAL, high, len(lengths), max(lengths))
    ids[:, 0] = START
    for row, length in zip(ids, lengths, strict=True):
        row[length - 1] = EXTRACT
        row[length:] = PAD
    return ids


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


class Classifiers:
    """A classifier on a small GPT, the student's on the student's own, and the reference's."""

    def __init__(self, student, reference, draw, outputs, dtype=torch.float32, **more) -> None:
        rate = {"dropout": more.pop("head_dropout")} if "head_dropout" in more else {}
        self.student, self.dtype = student, dtype
        self.options = gpt_options(context=10, **more)
        state = gpt_state(draw, self.options, "gpt.")
        state |= linear(draw, "classifier", outputs, self.options["width"])
        state = {name: value.to(dtype) for name, value in state.items()}
        self.state = fitting(student, "GPT", self.options, state, "gpt.")
        self.given, self.mine = self.made(student, outputs, self.state, **rate)
        _, self.theirs = self.made(reference, outputs, state, **rate)

    def made(self, proxy, outputs, state, **rate):
        """A GPT and a classifier of `proxy` with these parameters."""
        inside = within(state, "gpt.")
        gpt = proxy.module("GPT", state=inside, dtype=self.dtype, **self.options)
        given = {"gpt": gpt, "num_labels": outputs, **rate}
        return gpt, proxy.module("GPTClassifier", state=state, dtype=self.dtype, **given)

    def own_gpt(self, parts):
        """The student's own GPT with the same parameters, asked aside."""
        inside = within(self.state, "gpt.")
        return parts.proxy.module("GPT", state=inside, dtype=self.dtype, **self.options)

    def by_parts(self, parts, ids, logits):
        """Scores and logits as the student's own GPT gives them.

        Logits may be the GPT's own or its features times its table. If the two differ, which they
        do in no right GPT, the pair is made with those that `logits` agrees with.
        """
        gpt = self.own_gpt(parts)
        features = alive(gpt.method("features", ids))
        head = self.state["classifier.weight"], self.state["classifier.bias"]
        scores = F.linear(features[ids == EXTRACT], *head)
        tied = F.linear(features, self.state["gpt.token.weight"])
        return scores, tied if same_values(logits, tied) else alive(gpt(ids))

    def same(self, ids, case, train=False):
        """Scores and logits are right."""
        got = (self.mine.train() if train else self.mine.eval())(ids)
        expectations.items(got, 2, what=f"the result ({', '.join(HEADS)})")
        same_by_parts(
            self.student,
            got,
            self.theirs(ids),
            lambda parts: self.by_parts(parts, ids, got[1]),
            HEADS,
            case=case,
        )


@exercise("GPTClassifier", 2)
def test_classifier_values(student, reference, draw):
    """Scores are a linear function of the features at EXTRACT; logits stand at every place."""
    both = Classifiers(student, reference, draw, 3)
    for lengths in ([3], [5, 5]):
        ids = extract_rows(draw, lengths)
        both.same(ids, f"{sizes(B=len(lengths), T=lengths[0], L=3)} without padding, in eval mode")


@exercise("GPTClassifier", 2)
def test_classifier_padding(student, reference, draw):
    """Each row is read at its own EXTRACT, wherever padding begins."""
    both = Classifiers(student, reference, draw, 2)
    for lengths in ([3, 6], [7, 3, 5, 6], [4, 4, 8]):
        both.same(extract_rows(draw, lengths), f"rows of {lengths} tokens and padding")


@exercise("GPTClassifier")
def test_classifier_parameters(student):
    """The GPT that is given, and a classifier with as many outputs as there are labels."""
    gpt = student.module("GPT", **gpt_options())
    mine = student.module("GPTClassifier", gpt=gpt, num_labels=4)
    expected = {f"gpt.{name}": tuple(shape) for name, shape in gpt.parameters().items()}
    expected |= {"classifier.weight": (4, 6), "classifier.bias": (4,)}
    same_parameters(mine, expected)


@aspect
@exercise("GPTClassifier")
def test_classifier_keeps_the_gpt(student, reference, draw):
    """It is the very GPT that is given which is trained, not a copy of it."""
    both = Classifiers(student, reference, draw, 2)
    after = both.mine.step(extract_rows(draw, [4, 3]), lr=0.5)
    given = both.given.state()
    expectations.true(
        all(
            torch.equal(value, after.get(f"gpt.{name}", value + 1)) for name, value in given.items()
        ),
        "A step of training leaves the GPT that was given as it was; keep the very model, no copy.",
        misconception="classifier_copies_gpt",
    )


@exercise("GPTClassifier")
def test_classifier_refusals(student, reference, draw):
    """A row without EXTRACT, or with two, is refused with a ValueError, alone or among others."""
    both = Classifiers(student, reference, draw, 2)
    ids = extract_rows(draw, [5, 4])
    none, two = ids.clone(), ids.clone()
    none[1, 3] = SPECIAL
    two[1, 2] = EXTRACT
    refuses(
        both.mine,
        {
            "a single row without EXTRACT": (none[1:],),
            "a row without EXTRACT in a batch": (none,),
            "a single row with two EXTRACT": (two[1:],),
            "a row with two EXTRACT in a batch": (two,),
            "a row with two EXTRACT and one without": (torch.stack([none[1], two[1]]),),
        },
    )
    both.same(ids, "rows of 5 and 4 tokens")


@hidden
@exercise("GPTClassifier")
def test_classifier_dropout(student, reference, draw):
    """dropout, 0.1 unless told otherwise, acts on what the classifier reads, and on nothing else.

    The classifier passes on what it gets, and the GPT drops nothing.
    """
    ids = extract_rows(draw, [4]).expand(40, 4).clone()
    ids[:, 1:3] = draw.integers(SPECIAL, 9, 40, 2)
    for p in (0.1, 0.5):
        rate = {} if p == 0.1 else {"head_dropout": p}
        both = Classifiers(student, reference, draw, 16, width=16, **rate)
        state = {
            **both.state,
            "classifier.weight": torch.eye(16),
            "classifier.bias": torch.ones(16),
        }
        if noisy(student, both, ids):
            return  # The student's own GPT drops something, or answers nothing.
        _, mine = both.made(student, 16, state, **({} if p == 0.1 else {"dropout": p}))
        kept = expectations.items(mine(ids), 2, what=f"the result ({', '.join(HEADS)})")
        value = expectations.items(mine.train()(ids), 2, what=f"the result ({', '.join(HEADS)})")
        expectations.finite(kept[0], what="the scores", case="eval mode")
        expectations.close(value[1], kept[1], what="the logits", case=f"train mode at dropout={p}")
        expectations.shape(value[0], (40, 16), what="the scores")
        dropped(value[0] - 1, kept[0] - 1, p, "the features at EXTRACT")


def noisy(student, both, ids):
    """Whether the student's own GPT, though told to drop nothing, answers otherwise in training."""

    def twice(parts):
        gpt = both.own_gpt(parts)
        still = alive(gpt.method("features", ids))
        return still, gpt.train().method("features", ids)

    return to_blame(student, lambda parts: same_values(*twice(parts)))


@aspect
@hidden
@exercise("GPTClassifier")
def test_classifier_one_pass(student, reference, draw):
    """One pass of the network serves both heads: in train mode both see the same dropout.

    The classifier has the table of tokens for its weight, so that it says at EXTRACT what the
    language model says there.
    """
    both = Classifiers(student, reference, draw, 9, dropout=0.3)
    state = {**both.state, "classifier.weight": both.state["gpt.token.weight"]}
    state["classifier.bias"] = torch.zeros(9)
    _, mine = both.made(student, 9, state, dropout=0.0)
    ids = extract_rows(draw, [6, 4, 6, 5])
    if not tied(student, both, ids):
        return
    for words, handle in [("eval", mine), ("train", mine.train())]:
        scores, logits = expectations.items(handle(ids), 2, what=f"the result ({', '.join(HEADS)})")
        expectations.shape(scores, (4, 9), what="the scores", case=f"{words} mode")
        expectations.shape(logits, (4, 6, 9), what="the logits", case=f"{words} mode")
        expectations.close(
            scores,
            logits[ids == EXTRACT],
            what="the scores",
            case=f"{words} mode, with the table of tokens as the classifier's weight: both heads "
            "read the features of one and the same pass",
        )


def tied(student, both, ids):
    """Whether the logits of the student's own GPT are its features times the table."""

    def ways(parts):
        gpt = both.own_gpt(parts)
        features = alive(gpt.method("features", ids))
        return F.linear(features, both.state["gpt.token.weight"]), gpt(ids)

    return not to_blame(student, lambda parts: same_values(*ways(parts)))


@hidden
@exercise("GPTClassifier", 2)
def test_classifier_gradients(student, reference, draw):
    """Fine-tuning trains all of it, of GPT-1 and of GPT-2: gradients reach every parameter."""
    for kind, pre_norm in [("pre-norm", True), ("post-norm", False)]:
        both = Classifiers(student, reference, draw, 3, torch.float64, pre_norm=pre_norm)
        ids = extract_rows(draw, [3, 5, 4])
        seen, wanted = both.mine.observe(ids), both.theirs.observe(ids)
        case = f"rows of 3, 5 and 4 tokens, {kind}, float64"
        expectations.items(seen.value, 2, what=f"the result ({', '.join(HEADS)})")
        same_by_parts(
            student,
            seen.value,
            wanted.value,
            lambda parts, both=both, ids=ids, seen=seen: both.by_parts(parts, ids, seen.value[1]),
            HEADS,
            case=case,
        )
        # A table that also goes by another name may have its gradient under that one. Of another
        # GPT than the reference's not each part need have any.
        names = {label: label.split()[-1] for label in wanted.grads if label in seen.grads}
        if not same_values(seen.value, wanted.value):
            reached = ("classifier.weight", "classifier.bias", "gpt.token.weight")
            names = {label: name for label, name in names.items() if name in reached}
        same_flow(seen, wanted, names, case)
        expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# joint_loss
# --------------------------------------------------------------------------------------------

LOSSES = ("L3", "L2", "L1")


def joint_inputs(draw, lengths, outputs=3, vocabulary=9, dtype=torch.float32):
    """Scores, labels, logits and ids of rows of the given lengths."""
    ids = extract_rows(draw, lengths, vocabulary)
    return (
        draw.normal(len(lengths), outputs, scale=2.0).to(dtype),
        draw.integers(0, outputs, len(lengths)),
        draw.normal(*ids.shape, vocabulary, scale=2.0).to(dtype),
        ids,
    )


def own_auxiliary(student, given, value):
    """What gradients the student's own earlier exercises have, either of them that says `value`.

    L1 may be made by language_model_loss, or by log_likelihood.
    """
    logits, ids = given[2:]
    mask = ids != PAD

    def loss(parts):
        seen = parts.proxy.observe("language_model_loss", logits, ids, mask)
        return seen.value, seen.grads.get("0")

    def likelihood(parts):
        seen = parts.proxy.observe("log_likelihood", logits, ids, mask)
        return -seen.value.sum() / mask[:, 1:].sum(), seen.grads.get("0")

    def says(own):
        if isinstance(own, torch.Tensor):
            return not bool(own.isnan().any()) and same_values(value, own)
        return isinstance(own, float) and isinstance(value, float) and math.isclose(own, value)

    found = (by_parts(student, own) for own in (loss, likelihood))
    return [own[1] for own in found if own is not None and says(own[0])]


def same_losses(student, got, want, given, weight, case):
    """L2 is the reference's, L1 too or the student's own parts', L3 what the two make."""
    expectations.items(got, 3, what=f"the result ({', '.join(LOSSES)})")
    expectations.close(got[1], want[1], what="L2, the loss of the labels", case=case)
    try:
        expectations.close(got[2], want[2], what="L1, the loss of the language model", case=case)
    except Mistake:
        if not own_auxiliary(student, given, got[2]):
            raise
    expectations.close(got[0], want[1] + weight * got[2], what="L3", case=case)


def same_joint(student, reference, given, case, weight=None):
    more = {} if weight is None else {"weight": weight}
    got, want = student.joint_loss(*given, **more), reference.joint_loss(*given, **more)
    weight = 0.5 if weight is None else weight
    same_losses(student, got, want, given, weight, f"{case}, weight={weight}")


@exercise("joint_loss", 2)
def test_joint_values(student, reference, draw):
    """L2 is the mean over the labels, L1 the mean over the targets, L3 = L2 + L1 / 2."""
    for lengths in ([2], [4, 4], [5, 5, 5]):
        given = joint_inputs(draw, lengths)
        same_joint(student, reference, given, sizes(B=len(lengths), T=lengths[0], L=3, V=9))


@exercise("joint_loss")
def test_joint_weights(student, reference, draw):
    """The weight scales L1 alone; 0 leaves it out of L3, and it may be more than 1."""
    for weight in (0.0, 0.25, 1.0, 3.0):
        given = joint_inputs(draw, [4, 4, 4])
        same_joint(student, reference, given, sizes(B=3, T=4), weight)


@exercise("joint_loss", 2)
def test_joint_padding(student, reference, draw):
    """Targets that are PAD do not count, neither in the sum nor in the number; all others do."""
    for lengths in ([3, 6], [6, 2, 4], [2, 8, 2, 3]):
        given = joint_inputs(draw, lengths, outputs=2)
        same_joint(student, reference, given, f"rows of {lengths} tokens and padding")


@exercise("joint_loss")
def test_joint_refusals(student, reference, draw):
    """A negative weight is refused with a ValueError, 0 is not."""
    given = joint_inputs(draw, [4, 3])
    refuses(
        student.joint_loss,
        {f"weight={weight}": (*given, weight) for weight in (-0.5, -1e-3, -2.0)},
    )
    same_joint(student, reference, given, "rows of 4 and 3 tokens", 0.0)


@hidden
@exercise("joint_loss", 2)
def test_joint_gradients(student, reference, draw):
    """Gradients reach scores and logits, in float64; none reaches logits before padding."""
    given = joint_inputs(draw, [5, 3, 2], dtype=torch.float64)
    given = (given[0], given[1], given[2].mT.contiguous().mT, given[3])
    both = [reference.observe("joint_loss", *given, weight) for weight in (0.5, 2.0)]
    total = gradients_of_total(given, both)
    for weight, wanted in zip((0.5, 2.0), both, strict=True):
        case = f"rows of 5, 3 and 2 tokens, weight={weight}, float64"
        seen = student.observe("joint_loss", *given, weight)
        same_losses(student, seen.value, wanted.value, given, weight, case)
        same = same_values(seen.value[2], wanted.value[2])
        for label, words, alone in zip("02", ("scores", "logits"), total[weight], strict=True):
            got = seen.grads.get(label)
            if (
                got is None
                and words == "logits"
                and None in own_auxiliary(student, given, seen.value[2])
            ):
                continue  # The student's own loss of a language model has none either.
            expectations.true(
                got is not None,
                f"No gradient reaches the {words}; look for detach(), .data, .item() or no_grad().",
            )
            if same and not expectations.close_enough(got, alone):
                want = wanted.grads[label]
                expectations.close(got, want, what=f"the gradient of the {words}", case=case)
        expectations.unchanged(seen)


def gradients_of_total(given, both):
    """By weight, what the gradients of scores and logits are if L2 and L1 are detached.

    They may be: they are reported, and L3 is what trains. `both` was seen of the reference at the
    weights 0.5 and 2, where the gradient of the logits differs by 1.5 times what L1 has in L3.
    """
    scores, marks, logits, ids = (each.detach() for each in given)
    scores, logits = scores.requires_grad_(), logits.requires_grad_()
    targets = torch.where(ids == PAD, -100, ids)[:, 1:]
    text = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten())
    (of_text,) = torch.autograd.grad(text, logits)
    (of_task,) = torch.autograd.grad(F.cross_entropy(scores, marks), scores)
    slope = (both[1].grads["2"] - both[0].grads["2"]) / 1.5
    share = (slope * of_text).sum() / of_text.square().sum()
    return {weight: (share * of_task, share * weight * of_text) for weight in (0.5, 2.0)}


@hidden
@exercise("joint_loss")
def test_joint_extremes(student, reference, draw):
    """What the logits are where PAD is the target does not matter; large ones overflow nothing."""
    scores, marks, logits, ids = joint_inputs(draw, [6, 3, 2])
    marks = torch.zeros_like(marks)  # a class like any other
    logits[1:, 3:] = 1e4 * draw.normal(2, 3, 9)
    logits[:, -1] = 50 * draw.normal(3, 9)
    same_joint(student, reference, (scores, marks, logits, ids), "large logits at padded places")
    given = (300 * scores, marks, 300 * logits[:, :2], ids[:, :2])
    same_joint(student, reference, given, "scores and logits times 300", 1.5)


# --------------------------------------------------------------------------------------------
# build_prompt
# --------------------------------------------------------------------------------------------

FRENCH = [
    ("sea otter", "loutre de mer"),
    ("peppermint", "menthe poivrée"),
    ("plush giraffe", "girafe en peluche"),
    ("cheese", "fromage"),
]
TASK = "Translate English to French:"


def same_prompt(student, reference, *given, **more):
    """The prompt is the reference's; what differs is said line by line."""
    got, want = student.build_prompt(*given, **more), reference.build_prompt(*given, **more)
    count = len(given[1])
    case = f"{count} example{'' if count == 1 else 's'}" + ("" if given[0] else " and no task")
    case += "".join(f", {key}={value!r}" for key, value in more.items())
    if not isinstance(got, str):
        expectations.equal(got, want, what="the prompt", case=case)
    if got == want:
        return
    mine, right = got.split("\n"), want.split("\n")
    for number, (actual, expected) in enumerate(zip(mine, right, strict=False), start=1):
        expectations.equal(actual, expected, what=f"line {number} of the prompt", case=case)
    raise Mistake(f"the prompt should have {len(right)} lines, but has {len(mine)} for {case}.")


@exercise("build_prompt")
def test_prompt_zero_shot(student, reference):
    """Without examples: the task's description and the query with its arrow, nothing behind it."""
    for query, _ in FRENCH[2:]:
        same_prompt(student, reference, TASK, [], query)


@exercise("build_prompt", 2)
def test_prompt_few_shot(student, reference):
    """One line `x => y` for each example, in order, between the task and the query."""
    for count in (1, 3):
        same_prompt(student, reference, TASK, FRENCH[:count], "cheese")


@exercise("build_prompt")
def test_prompt_without_task(student, reference):
    """An empty description is left out, with its line."""
    for count in (0, 2):
        same_prompt(student, reference, "", FRENCH[:count], "cheese")


@exercise("build_prompt")
def test_prompt_arrows(student, reference):
    """The arrow is the caller's: it stands right behind x, and one space before y."""
    for arrow in (" ->", ":", " means", " ⇒"):
        same_prompt(student, reference, TASK, FRENCH[1:3], "cheese", arrow=arrow)


@hidden
@exercise("build_prompt")
def test_prompt_many(student, reference, draw):
    """Many examples, twice the same, the query among them, and text with signs of its own."""
    words = [f"word {number}" for number in draw.permutation(30).tolist()]
    examples = list(zip(words[:15], words[15:], strict=True))
    same_prompt(student, reference, "Map each word to another.", examples * 2, words[0])
    odd = [("2 + 2 => 4", "yes"), ("{x} %s", "\\n"), ("a  b", "c")]
    same_prompt(student, reference, "Is {this} right?", odd, "{0} => %d")


@hidden
@exercise("build_prompt")
def test_prompt_leaves_examples(student, reference):
    """The list of examples stays as it is."""
    seen = student.observe("build_prompt", TASK, FRENCH[:2], "cheese", grad=False)
    want = reference.build_prompt(TASK, FRENCH[:2], "cheese")
    expectations.equal(seen.value, want, what="the prompt", case="2 examples")
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# answer_scores
# --------------------------------------------------------------------------------------------


def table(draw, vocabulary=9, places=None):
    """Logits of the next token by the token before, and, with places, by where that stands."""
    shape = (vocabulary, vocabulary) if places is None else (places, vocabulary, vocabulary)
    return draw.normal(*shape, scale=1.5)


class Tables:
    """The student's TableModel and the reference's, with the same table."""

    def __init__(self, student, reference, values, **more) -> None:
        self.student, self.reference = student, reference
        self.mine, self.theirs = (
            proxy.module("TableModel", table=values, **more) for proxy in (student, reference)
        )

    def same(self, prompt, answers, case, **more):
        """The scores are the reference's, or the student's own log_likelihood's."""
        got = self.student.answer_scores(self.mine, prompt, answers, **more)
        want = self.reference.answer_scores(self.theirs, prompt, answers, **more)
        case += "".join(f", {key}={value}" for key, value in more.items())
        given = prompt, answers, more.get("per_token", True)
        same_answers(self.student, got, want, lambda parts: self.theirs, *given, case)


def same_answers(student, got, want, make, prompt, answers, per_token, case):
    """The scores are the ones wanted, or those of the student's own log_likelihood.

    It is asked answer by answer and for all at once: what it should leave out it may count, so
    that the two need not be the same. `make(parts)` is the model.
    """
    longest = len(prompt) + max(map(len, answers))
    rows = [[*prompt, *answer] for answer in answers]
    inside = torch.arange(longest) >= len(prompt)
    counts = torch.tensor([len(answer) for answer in answers]) if per_token else 1

    def at_once(parts):
        ids = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
        mask = inside & (torch.arange(longest) < torch.tensor([[len(row)] for row in rows]))
        return parts.proxy.log_likelihood(make(parts)(ids), ids, mask) / counts

    def one_by_one(parts):
        model, found = make(parts), []
        for row in rows:
            ids = torch.tensor([row])
            found.append(parts.proxy.log_likelihood(model(ids), ids, inside[None, : len(row)]))
        return torch.cat(found) / counts

    try:
        expectations.close(got, want, what="the result", case=case)
    except Mistake:
        found = (by_parts(student, own) for own in (at_once, one_by_one))
        if not (by_parts(student, likely) and any(same_values(got, own) for own in found)):
            raise


def likely(parts):
    """Whether the student's own log_likelihood says anything; it raises if not."""
    logits = torch.arange(40.0).sin().reshape(2, 4, 5)
    ids = torch.tensor([[0, 1, 2, 3], [4, 2, 0, 1]])
    found = parts.proxy.log_likelihood(logits, ids, torch.ones(2, 4, dtype=torch.bool))
    return alive(found).shape == (2,)


def texts(draw, *lengths, high=9):
    return [draw.integers(SPECIAL, high, length).tolist() for length in lengths]


@exercise("answer_scores")
def test_answers_one_token(student, reference, draw):
    """Answers of one token: the log-probability of each after the last token of the prompt."""
    both = Tables(student, reference, table(draw))
    for length in (1, 3):
        (prompt,) = texts(draw, length)
        answers = [[5], [8], [6]]
        both.same(prompt, answers, f"a prompt of {length} and answers {answers}")


@exercise("answer_scores", 2)
def test_answers_mean(student, reference, draw):
    """Longer answers: the mean over their tokens, each after the prompt and those before it."""
    both = Tables(student, reference, table(draw))
    for lengths in ([2], [2, 2], [3, 1, 4]):
        prompt, *answers = texts(draw, 3, *lengths)
        both.same(prompt, answers, f"a prompt of 3 and answers of {lengths} tokens")


@exercise("answer_scores")
def test_answers_sum(student, reference, draw):
    """With per_token=False it is the sum."""
    both = Tables(student, reference, table(draw))
    for lengths in ([1], [3, 1, 2]):
        prompt, *answers = texts(draw, 2, *lengths)
        case = f"a prompt of 2 and answers of {lengths} tokens"
        both.same(prompt, answers, case, per_token=False)


@exercise("answer_scores")
def test_answers_refusals(student, reference, draw):
    """Empty prompts and answers, and more than the context, are refused; a full context is not."""
    both = Tables(student, reference, table(draw), context=6)
    prompt, one, two, long = texts(draw, 4, 1, 2, 3)
    refuses(
        lambda *given: student.answer_scores(both.mine, *given),
        {
            "an empty prompt": ([], [one, two]),
            "an empty list of answers": (prompt, []),
            "an empty answer": (prompt, [one, []]),
            "a prompt of 4 and an answer of 9 where the context is 6": (prompt, [long * 3]),
            "a prompt of 4 and answers of 1 and 3 where the context is 6": (prompt, [one, long]),
        },
    )
    both.same(prompt, [two, one], "a prompt of 4 and answers of 2 and 1 where the context is 6")


@hidden
@exercise("answer_scores")
def test_answers_places(student, reference, draw):
    """A model that looks at places: everything stands where it does in the whole text."""
    both = Tables(student, reference, table(draw, places=9), context=9)
    for length, lengths in [(1, [3, 1]), (5, [4, 2, 3]), (2, [1, 7])]:
        prompt, *answers = texts(draw, length, *lengths)
        for per_token in (True, False):
            case = f"a prompt of {length} and answers of {lengths} tokens"
            both.same(prompt, answers, case, per_token=per_token)


@hidden
@exercise("answer_scores")
def test_answers_order(student, reference, draw):
    """Scores stand in the order of the answers, equal ones too; the lists stay; nothing overflows.

    Logits are in the hundreds.
    """
    both = Tables(student, reference, 200 * table(draw))
    prompt, one, two, three = texts(draw, 3, 2, 4, 1)
    answers = [two, one, two, three, one]
    both.same(prompt, answers, "five answers, two of them twice, and logits in the hundreds")
    seen = student.observe("answer_scores", both.mine, prompt, answers, grad=False)
    expectations.shape(seen.value, (5,), what="the result")
    expectations.unchanged(seen)


@hidden
@exercise("answer_scores", 2)
def test_answers_gpt(student, reference, draw):
    """A GPT, up to its whole context: every answer is scored by itself, and without a gradient."""
    options = gpt_options(context=7, dropout=0.2)
    state = gpt_state(draw, options)
    prompt, *answers = texts(draw, 3, 2, 4, 1, 4)

    def model(parts):
        return parts.proxy.module("GPT", state=state, **options)

    own = own_gpt_scores(student, model, prompt, answers)
    if own is None:  # The student's own GPT is none that can be asked: a table is.
        both = Tables(student, reference, table(draw, places=7), context=7)
        both.same(prompt, answers, "a model of 7 places, a prompt of 3, answers of 2, 4, 1 and 4")
        return
    mine = student.module("GPT", state=state, **options)
    before = mine.state()
    for per_token, want in zip((True, False), own, strict=True):
        seen = student.observe("answer_scores", mine, prompt, answers, per_token)
        case = f"your GPT, a prompt of 3, answers of 2, 4, 1 and 4 tokens, per_token={per_token}"
        given = prompt, answers, per_token
        same_answers(student, seen.value, want, model, *given, case)
        expectations.true(
            all(grad is None for grad in seen.grads.values()),
            "The scores carry gradients that nobody needs; compute them under torch.no_grad().",
        )
        expectations.unchanged(seen)
    for name, value in mine.state().items():
        expectations.close(value, before[name], what=f"the parameter {name} afterwards")


def own_gpt_scores(student, model, prompt, answers):
    """Means and sums as the student's own GPT gives them; None unless it is causal.

    If it is not, they would depend on what else the network is shown, which is free.
    """

    def scores(parts):
        gpt = model(parts)
        sums = []
        for answer in answers:
            ids = torch.tensor([[*prompt, *answer]])
            logits = alive(gpt(ids))
            if not expectations.close_enough(gpt(ids[:, :-1]), logits[:, :-1]):
                return None
            places = torch.arange(len(prompt) - 1, ids.shape[1] - 1)
            sums.append(logits[0].log_softmax(-1)[places, ids[0, places + 1]].sum())
        return torch.stack(sums)

    sums = by_parts(student, scores)
    if sums is None:
        return None
    return sums / torch.tensor([len(answer) for answer in answers]), sums
