"""Graders of the chapter `bert`: a plain pytest file, one group of tests for each exercise.

Tests reach the code to judge through `student` only. Inside a test the cases run from the smallest
to the largest, so that the first failure is the smallest one.

Modules are made of earlier exercises. What one answers is compared with the reference; where the
two differ, the student's own parts are asked aside, put together as the exercise says. A module
that does right by its parts earns its points, whatever became of the parts (`same_by_parts`).

Random answers are never compared value by value. Every statistical bound has a false-alarm rate
of at most 1e-9.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch.nn import functional as F

from autograder.graders.common import (
    State,
    attention_state,
    dropped,
    labels,
    linear,
    norm_state,
    pair,
    refuses,
    rows_differ,
    same_gradients,
    same_number,
    same_parameters,
    sizes,
    within,
)
from autograder.graders.parts import (
    SLACK,
    Parts,
    alive,
    arrive,
    by_parts,
    flows,
    same_by_parts,
    same_values,
)
from autograder.judging import expectations
from autograder.judging.grader_marks import Mistake, aspect, exercise, hidden
from autograder.judging.proxy import StudentError, Todo

# --------------------------------------------------------------------------------------------
# What the tests share
# --------------------------------------------------------------------------------------------

PAD, UNK, CLS, SEP, MASK = 0, 1, 2, 3, 4
SPECIAL = 5  # ids below it are special
IGNORE = -100


def embeddings_state(draw, vocabulary, width, length, segments=2, prefix="") -> State:
    return {
        f"{prefix}token.weight": draw.normal(vocabulary, width),
        f"{prefix}position.weight": draw.normal(length, width),
        f"{prefix}segment.weight": draw.normal(segments, width),
        **norm_state(draw, f"{prefix}norm", width),
    }


def layer_state(draw, width, inner, prefix="") -> State:
    return {
        **attention_state(draw, width, f"{prefix}attention."),
        **norm_state(draw, f"{prefix}attention_norm", width),
        **linear(draw, f"{prefix}w_1", inner, width),
        **linear(draw, f"{prefix}w_2", width, inner),
        **norm_state(draw, f"{prefix}output_norm", width),
    }


def bert_options(vocabulary=9, width=6, layers=1, heads=2, inner=5, length=8, **more):
    return {
        "vocab_size": vocabulary,
        "hidden": width,
        "num_layers": layers,
        "num_heads": heads,
        "intermediate": inner,
        "max_length": length,
        "dropout": 0.0,
        **more,
    }


def bert_state(draw, options, prefix="") -> State:
    """Random parameters of a BertModel; none of them is 0 or 1."""
    width, inner = options["hidden"], options["intermediate"]
    state = embeddings_state(
        draw,
        options["vocab_size"],
        width,
        options["max_length"],
        options.get("segments", 2),
        f"{prefix}embeddings.",
    )
    for number in range(options["num_layers"]):
        state |= layer_state(draw, width, inner, f"{prefix}layers.{number}.")
    return state | linear(draw, f"{prefix}pooler", width, width)


def real(lengths, longest=None):
    """The mask (B, T) of rows with the given numbers of real tokens."""
    return torch.arange(longest or max(lengths)) < torch.tensor(lengths).unsqueeze(1)


def inputs(draw, lengths, longest=None, high=9, segments=2):
    """Ids, segments and mask of rows with the given numbers of tokens; PAD and 0 behind them."""
    mask = real(lengths, longest)
    ids = draw.integers(SPECIAL, high, *mask.shape).masked_fill(~mask, PAD)
    ids[:, 0] = CLS
    return ids, draw.integers(0, segments, *mask.shape).masked_fill(~mask, 0), mask


# --------------------------------------------------------------------------------------------
# build_input
# --------------------------------------------------------------------------------------------


def some_ids(draw, length):
    return draw.integers(SPECIAL, 90, length).tolist()


def same_input(student, reference, *given, **more):
    """Ids and segments are the reference's, both lists."""
    got = expectations.items(
        student.build_input(*given, **more), 2, what="the result (ids, segments)"
    )
    want = reference.build_input(*given, **more)
    shown = [f"{len(each)} tokens" if len(each) > 12 else str(each) for each in given if each]
    case = " and ".join(shown) + "".join(f", {key}={value}" for key, value in more.items())
    for name, actual, expected in zip(("ids", "segments"), got, want, strict=True):
        expectations.equal(actual, expected, what=f"the list of {name}", case=case)


@exercise("build_input")
def test_input_single(student, reference, draw):
    """One sentence becomes [CLS] A [SEP], all of segment 0."""
    for length in (1, 3):
        same_input(student, reference, some_ids(draw, length))


@exercise("build_input", 2)
def test_input_pair(student, reference, draw):
    """A pair becomes [CLS] A [SEP] B [SEP]; B and its [SEP] are segment 1, the rest segment 0."""
    for first, second in [(1, 1), (2, 3), (4, 2)]:
        same_input(student, reference, some_ids(draw, first), some_ids(draw, second))


@exercise("build_input", 2)
def test_input_too_long(student, reference, draw):
    """Tokens go one at a time from the end of the longer one, of the second if equally long."""
    same_input(student, reference, some_ids(draw, 5), max_length=5)
    for first, second, limit in [(2, 5, 8), (5, 2, 8), (3, 3, 9), (3, 3, 8), (4, 6, 10), (7, 3, 6)]:
        given = some_ids(draw, first), some_ids(draw, second)
        same_input(student, reference, *given, max_length=limit)


@exercise("build_input")
def test_input_refusals(student, reference, draw):
    """An empty sentence, and a max_length without room for a token of each, are refused."""
    one, two = some_ids(draw, 2), some_ids(draw, 3)
    refuses(
        lambda *given: student.build_input(*given),
        {
            "an empty first sentence": ([],),
            "an empty first sentence of a pair": ([], two),
            "an empty second sentence": (one, []),
            "a single sentence with max_length=2": (one, None, 2),
            "a pair with max_length=4": (one, two, 4),
        },
    )
    same_input(student, reference, one, max_length=3)
    same_input(student, reference, one, two, max_length=5)


@hidden
@exercise("build_input")
def test_input_long_pairs(student, reference, draw):
    """Long sentences of any lengths; 512 tokens unless told otherwise."""
    for _ in range(6):
        first, second = draw.integers(1, 30, 2).tolist()
        given = some_ids(draw, first), some_ids(draw, second)
        same_input(student, reference, *given, max_length=int(draw.integers(5, 50)))
    same_input(student, reference, some_ids(draw, 600))
    same_input(student, reference, some_ids(draw, 400), some_ids(draw, 200))


@hidden
@exercise("build_input")
def test_input_leaves_sentences(student, reference, draw):
    """The lists that are given stay as they are."""
    given = some_ids(draw, 6), some_ids(draw, 7)
    same_input(student, reference, *given)
    seen = student.observe("build_input", *given, grad=False, max_length=9)
    expectations.items(seen.value, 2, what="the result (ids, segments)")
    expectations.unchanged(seen, misconception="input_lists_changed")


# --------------------------------------------------------------------------------------------
# gelu
# --------------------------------------------------------------------------------------------


@exercise("gelu", 2)
def test_gelu_values(student, reference, draw):
    """x times the share of a normal distribution below x, between -3 and 3."""
    for shape in [(), (5,), (2, 3, 4)]:
        x = draw.uniform(*shape, low=-3, high=3)
        expectations.close(
            student.gelu(x), reference.gelu(x), what="gelu(x)", case=f"x of shape {shape}"
        )


@exercise("gelu")
def test_gelu_exact(student, reference, draw):
    """Exact, by the error function: in float64 every digit counts."""
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
# BertEmbeddings
# --------------------------------------------------------------------------------------------


def embeddings_pair(student, reference, draw, vocabulary, width, length, dtype=None, **more):
    state = embeddings_state(draw, vocabulary, width, length, more.get("segments", 2))
    options = {"vocab_size": vocabulary, "hidden": width, "max_length": length, **more}
    return pair(student, reference, "BertEmbeddings", state, dtype, **options)


@aspect
@exercise("BertEmbeddings")
def test_embeddings_parameters(student):
    """Three tables of one width, summed and not joined, and a norm of that width."""
    mine = student.module("BertEmbeddings", vocab_size=7, hidden=4)
    expected = {
        "token.weight": (7, 4),
        "position.weight": (512, 4),
        "segment.weight": (2, 4),
        "norm.weight": (4,),
        "norm.bias": (4,),
    }
    same_parameters(mine, expected)


@exercise("BertEmbeddings", 2)
def test_embeddings_values(student, reference, draw):
    """The norm of the sum of token, position and segment vectors; in train mode too."""
    for batch, length, width in [(1, 1, 6), (1, 3, 8), (3, 5, 12)]:
        mine, theirs = embeddings_pair(student, reference, draw, 9, width, 7)
        ids, segments = draw.integers(0, 9, batch, length), draw.integers(0, 2, batch, length)
        expectations.close(
            mine.train()(ids, segments),
            theirs(ids, segments),
            what="the vectors",
            case=sizes(B=batch, T=length, V=9, D=width),
        )


@exercise("BertEmbeddings")
def test_embeddings_without_segments(student, reference, draw):
    """Without segment ids every token is of segment 0; three kinds of segment work too."""
    mine, theirs = embeddings_pair(student, reference, draw, 9, 12, 5, segments=3, dropout=0.4)
    ids = draw.integers(0, 9, 2, 5)
    for words, given in [("no segment ids", ()), ("segment ids up to 2", (ids % 3,))]:
        case = f"{sizes(B=2, T=5)} and {words}, in eval mode"
        expectations.close(mine(ids, *given), theirs(ids, *given), what="the vectors", case=case)


@aspect
@exercise("BertEmbeddings")
def test_embeddings_refusals(student, draw):
    """An input longer than max_length is refused with a ValueError, one of that length is not."""
    mine = student.module("BertEmbeddings", vocab_size=9, hidden=4, max_length=3)
    expectations.shape(mine(draw.integers(0, 9, 2, 3)), (2, 3, 4), what="the vectors")
    refuses(mine, {"4 tokens where max_length is 3": (draw.integers(0, 9, 2, 4),)})


@hidden
@exercise("BertEmbeddings")
def test_embeddings_dropout(student, reference, draw):
    """dropout acts after the norm, in train mode only."""
    mine = embeddings_pair(student, reference, draw, 9, 16, 8, dropout=0.4)[0]
    ids = draw.integers(0, 9, 4, 8)
    kept = expectations.tensor(mine(ids), what="the vectors")
    expectations.finite(kept, what="the vectors", case="eval mode")
    dropped(mine.train()(ids), kept, 0.4, "the vectors")


@hidden
@exercise("BertEmbeddings")
def test_embeddings_gradients(student, reference, draw):
    """Vectors of small deviation (eps is 1e-12), float64, gradients of every table, PAD's row too.

    The id tensor is a strided one.
    """
    state = embeddings_state(draw, 6, 4, 5)
    for name in ("token", "position", "segment"):
        state[f"{name}.weight"] = 1e-3 * state[f"{name}.weight"]
    options = {"vocab_size": 6, "hidden": 4, "max_length": 5}
    mine, theirs = pair(student, reference, "BertEmbeddings", state, torch.float64, **options)
    ids = torch.tensor([[PAD, 4], [5, 2], [2, PAD]]).mT
    segments = torch.tensor([[0, 0, 1], [0, 1, 1]])
    seen, wanted = mine.observe(ids, segments), theirs.observe(ids, segments)
    case = "float64 and tables with entries of about 0.001"
    expectations.close(seen.value, wanted.value, what="the vectors", case=case)
    same_gradients(seen, wanted, labels(state))
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# SelfAttention
# --------------------------------------------------------------------------------------------


def attention_pair(student, reference, draw, width, heads, dtype=None, **more):
    options = {"hidden": width, "num_heads": heads, **more}
    return pair(student, reference, "SelfAttention", attention_state(draw, width), dtype, **options)


@exercise("SelfAttention", 2)
def test_attention_values(student, reference, draw):
    """Without a mask every position attends to all, in each head; in train mode too."""
    for batch, length, width, heads in [(1, 1, 2, 1), (1, 3, 4, 2), (2, 4, 6, 3)]:
        mine, theirs = attention_pair(student, reference, draw, width, heads)
        x = draw.normal(batch, length, width)
        case = f"{sizes(B=batch, T=length, D=width, H=heads)} without a mask"
        expectations.close(mine.train()(x), theirs(x), what="the output", case=case)


@exercise("SelfAttention", 2)
def test_attention_masks(student, reference, draw):
    """A mask (B, T) hides keys from every query and head; padded queries get outputs too."""
    mine, theirs = attention_pair(student, reference, draw, 4, 2, dropout=0.3)
    for batch, mask in [(1, real([2], 3)), (3, real([5, 1, 3]))]:
        x = draw.normal(*mask.shape, 4)
        case = f"{sizes(B=batch, T=mask.shape[1], D=4, H=2)}, mask {mask.int().tolist()}, eval mode"
        expectations.close(mine(x, mask), theirs(x, mask), what="the output", case=case)


@exercise("SelfAttention")
def test_attention_refuses(student):
    """A width that the number of heads does not divide is refused with a ValueError."""
    refuses(
        lambda width, heads: student.module("SelfAttention", hidden=width, num_heads=heads),
        {"hidden=6 with 4 heads": (6, 4), "hidden=4 with 3 heads": (4, 3)},
    )


@hidden
@exercise("SelfAttention")
def test_attention_dropout(student, reference, draw):
    """In train mode each weight is dropped with probability p, the others divided by 1 - p."""
    heads, keys, p = 2, 8, 0.3
    width = heads * 2 * keys
    state = attention_state(draw, width)
    # Position t begins with the t-th unit vector. v_proj gives it to each head twice, and out_proj
    # does nothing: the output shows each weight that was used, two times.
    state["v_proj.weight"] = torch.zeros(width, width)
    state["v_proj.weight"][:, :keys] = torch.eye(keys).repeat(2 * heads, 1)
    state["out_proj.weight"] = torch.eye(width)
    state["v_proj.bias"] = state["out_proj.bias"] = torch.zeros(width)
    options = {"hidden": width, "num_heads": heads, "dropout": p}
    mine, theirs = pair(student, reference, "SelfAttention", state, **options)
    x = draw.normal(8, keys, width, scale=0.5)
    x[:, :, :keys] = torch.eye(keys)
    want = theirs(x)
    expectations.close(mine(x), want, what="the output", case=f"dropout={p} in eval mode")
    output = expectations.tensor(mine.train()(x), what="the output")
    expectations.shape(output, want.shape, what="the output")
    shown = (8, keys, heads, 2, keys)
    used, copy = output.reshape(shown).unbind(dim=3)  # (8, queries, heads, keys)
    expectations.close(
        copy,
        used,
        what="the second half of each head's output",
        case="values that are given twice (drop weights, not outputs)",
        misconception="attention_dropout_on_output",
    )
    dropped(used, want.reshape(shown)[:, :, :, 0], p, "the weights")


@hidden
@exercise("SelfAttention")
def test_attention_gradients(student, reference, draw):
    """Gradients reach x and every parameter; strided float64 input; nothing changes in place."""
    mine, theirs = attention_pair(student, reference, draw, 6, 2, torch.float64)
    x, mask = draw.normal(2, 6, 4).double().mT, real([4, 3])
    seen, wanted = mine.observe(x, mask), theirs.observe(x, mask)
    expectations.close(seen.value, wanted.value, what="the output", case="a strided float64 input")
    same_gradients(seen, wanted, labels(attention_state(draw, 1), ("0", "x")))
    expectations.unchanged(seen)
    mine, theirs = attention_pair(student, reference, draw, 4, 1, torch.float64)
    x = 30 * draw.normal(1, 3, 4).double()
    expectations.close(
        mine(x), theirs(x), what="the output", case="scores in the hundreds, one head"
    )


# --------------------------------------------------------------------------------------------
# BertLayer
# --------------------------------------------------------------------------------------------


def layer_options(width, heads, inner, **more):
    return {"hidden": width, "num_heads": heads, "intermediate": inner, **more}


def own_norm(x, state, name):
    """nn.LayerNorm as the chapter has it."""
    given = (state[f"{name}.{each}"].to(x.dtype) for each in ("weight", "bias"))
    return torch.nn.functional.layer_norm(x, x.shape[-1:], *given, eps=1e-12)


def layer_by_parts(parts, mine, state, x, mask):
    """A layer put together from the student's attention and gelu."""
    x = own_norm(x + parts.of(mine, "attention")(x, mask), state, "attention_norm")
    inner = alive(parts.proxy.gelu(parts.of(mine, "w_1")(x)))
    return own_norm(x + parts.of(mine, "w_2")(inner), state, "output_norm")


def same_layer(student, reference, draw, options, cases, train=False):
    """A layer is right on each case: words -> x, mask."""
    state = layer_state(draw, options["hidden"], options["intermediate"])
    mine, theirs = pair(student, reference, "BertLayer", state, **options)
    for case, given in cases.items():
        got = (mine.train() if train else mine)(*given)
        want = theirs(*given)
        x, mask = given if len(given) == 2 else (*given, None)

        def own(parts, x=x, mask=mask):
            return layer_by_parts(parts, mine, state, x, mask)

        same_by_parts(student, got, want, own, "the output", case=case)


@exercise("BertLayer", 2)
def test_layer_values(student, reference, draw):
    """Attention, then w_1, gelu and w_2, each added to what came in and followed by its norm."""
    cases = {
        "one vector": (draw.normal(1, 1, 6),),
        "B=2, T=3 without a mask, dropout=0 in train mode": (draw.normal(2, 3, 6),),
    }
    same_layer(student, reference, draw, layer_options(6, 3, 5), cases, train=True)


@exercise("BertLayer")
def test_layer_masks(student, reference, draw):
    """The mask reaches the attention; dropout does nothing in eval mode."""
    cases = {
        "B=2, T=4, lengths 4 and 2, dropout=0.4 in eval mode": (draw.normal(2, 4, 4), real([4, 2])),
        "B=1, T=3, length 1, dropout=0.4 in eval mode": (draw.normal(1, 3, 4), real([1], 3)),
    }
    same_layer(student, reference, draw, layer_options(4, 2, 7, dropout=0.4), cases)


@exercise("BertLayer")
def test_layer_normalised(student, draw):
    """What comes out has mean 0 and variance 1 where output_norm has not learned yet."""
    state = layer_state(draw, 8, 6)
    state["output_norm.weight"], state["output_norm.bias"] = torch.ones(8), torch.zeros(8)
    mine = student.module("BertLayer", state=state, **layer_options(8, 2, 6))
    x = 3 + draw.normal(2, 3, 8, scale=0.1)
    value = expectations.tensor(mine(x), what="the output")
    expectations.shape(value, (2, 3, 8), what="the output")
    for what, got, want in [
        ("the mean of each output vector", value.mean(-1), 0.0),
        ("the variance of each output vector", value.var(-1, unbiased=False), 1.0),
    ]:
        expectations.true(
            bool((got - want).abs().max() < 1e-4),
            f"With a fresh output_norm {what} should be {want:g}; it is the last step of a layer.",
        )


P = 0.4


@hidden
@exercise("BertLayer")
def test_layer_dropout(student, draw):
    """In train mode dropout acts on attention weights and on what both sub-layers add."""
    keys, width, inner = 10, 24, 6
    state = {name: torch.zeros_like(value) for name, value in layer_state(draw, 24, 6).items()}
    state["attention_norm.weight"] = state["output_norm.weight"] = torch.ones(width)
    # Attention adds the sum of its weights to features 8 to 15, the rest 1 to features 16 to 23.
    # All else is linear in each vector: the first 8 features, which nothing is added to, tell how.
    state["attention.v_proj.bias"] = torch.ones(width)
    state["attention.out_proj.weight"][8:16] = 1 / width
    state["w_1.bias"] = torch.full((inner,), 20.0)  # far out, where any gelu is x
    state["w_2.weight"][16:] = 1 / (20 * inner)
    mine = student.module("BertLayer", state=state, **layer_options(width, 2, inner, dropout=P))
    x = torch.zeros(6, keys, width)
    x[:, :, 0:8:2], x[:, :, 1:8:2] = 1.0, -1.0
    output = expectations.tensor(mine.train()(x), what="the output")
    expectations.shape(output, x.shape, what="the output")
    expectations.finite(output, what="the output")
    plus, minus = output[:, :, 0:8:2].mean(-1), output[:, :, 1:8:2].mean(-1)
    unit, zero = ((plus - minus) / 2).unsqueeze(-1), ((plus + minus) / 2).unsqueeze(-1)
    added = (output - zero) / unit
    scale = torch.cat([x[:, :, :8], added[:, :, 8:16], torch.zeros(6, keys, 8)], dim=-1)
    scale = scale.std(-1, correction=0, keepdim=True)  # by which the first norm divided
    attention, feed_forward = added[:, :, 8:16], added[:, :, 16:] / scale
    for words, part in [("the attention", attention), ("the feed-forward part", feed_forward)]:
        gone = part.abs() < 1e-3
        expectations.rate(
            int(gone.sum()),
            gone.numel(),
            P,
            what=f"in train mode at dropout={P}, the share of zeros in what {words} adds",
            false_alarm=3e-10,
        )
    left = attention[attention.abs() >= 1e-3]
    expectations.true(
        bool((left - left[0]).abs().max() > 1e-2),
        f"In train mode with dropout={P} no attention weight is dropped; pass dropout on to it.",
    )
    left = feed_forward[feed_forward.abs() >= 1e-3]
    expectations.true(
        bool((left - left[0]).abs().max() < 1e-2),
        "In train mode something is dropped inside the feed-forward part; only what it returns is.",
    )


@hidden
@exercise("BertLayer")
def test_layer_gradients(student, reference, draw):
    """Gradients reach x and every parameter, in float64; small deviations (eps is 1e-12)."""
    state = layer_state(draw, 4, 3)
    options = layer_options(4, 2, 3)
    mine, theirs = pair(student, reference, "BertLayer", state, torch.float64, **options)
    x, mask = draw.normal(2, 4, 3).double().mT, real([3, 2])
    flows(
        student,
        mine,
        theirs,
        (x, mask),
        lambda parts: layer_by_parts(parts, mine, state, x, mask),
        "the output",
        "a strided float64 input",
    )
    # Next to no deviation before the first norm, and before the second.
    state = {name: 1e-4 * value for name, value in state.items()}
    state["output_norm.weight"] = torch.ones(4)
    mine, theirs = pair(student, reference, "BertLayer", state, torch.float64, **options)
    x = 1e-4 * x.contiguous()
    same_by_parts(
        student,
        mine(x),
        theirs(x),
        lambda parts: layer_by_parts(parts, mine, state, x, None),
        "the output",
        case="x and parameters of about 0.0001, in float64",
    )


# --------------------------------------------------------------------------------------------
# BertModel
# --------------------------------------------------------------------------------------------

BOTH = ("hidden states", "pooled vector")


def model_by_parts(parts, mine, state, options, ids, segments=None, mask=None):
    """BERT put together from the student's embeddings, layers and pooler."""
    x = parts.of(mine, "embeddings")(ids, segments)
    given = layer_options(options["hidden"], options["num_heads"], options["intermediate"])
    for number in range(options["num_layers"]):
        layer = within(state, f"layers.{number}.")
        x = parts.make("BertLayer", state=layer, dtype=x.dtype, **given)(x, mask)
    return x, torch.tanh(parts.of(mine, "pooler")(x[:, 0]))


def same_model(student, reference, draw, options, cases, train=False):
    """BERT is right on each case: words -> ids, segments, mask."""
    state = bert_state(draw, options)
    mine, theirs = pair(student, reference, "BertModel", state, **options)
    for case, given in cases.items():
        got, want = (mine.train() if train else mine)(*given), theirs(*given)

        def own(parts, given=given):
            return model_by_parts(parts, mine, state, options, *given)

        same_by_parts(student, got, want, own, BOTH, case=case)


@exercise("BertModel", 2)
def test_model_values(student, reference, draw):
    """Embeddings, then every layer in turn; the pooled vector is the tanh of pooler at [CLS]."""
    ids, segments, _ = inputs(draw, [4, 4])
    cases = {
        "one token": (ids[:1, :1],),
        "B=2, T=4, two layers, dropout=0 in train mode": (ids,),
        "B=2, T=4, two layers and segment ids": (ids, segments),
    }
    same_model(student, reference, draw, bert_options(layers=2), cases, train=True)


@exercise("BertModel")
def test_model_masks(student, reference, draw):
    """The mask reaches every layer; dropout does nothing in eval mode."""
    options = bert_options(layers=2, heads=3, dropout=0.3, segments=3)
    cases = {"B=3, T=5, lengths 5, 2 and 3, in eval mode": inputs(draw, [5, 2, 3], segments=3)}
    same_model(student, reference, draw, options, cases)


@exercise("BertModel")
def test_model_parameters(student):
    """Embeddings, as many layers as asked for, and a pooler, each with parameters of its own."""
    width = 4
    given = {"vocab_size": 7, "hidden": width, "num_layers": 3, "num_heads": 2, "intermediate": 5}
    mine = student.module("BertModel", **given)
    norm = {"weight": (width,), "bias": (width,)}
    square = {"weight": (width, width), "bias": (width,)}
    parts = {"embeddings.norm": norm, "pooler": square}
    for number in range(3):
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            parts[f"layers.{number}.attention.{name}"] = square
        parts[f"layers.{number}.attention_norm"] = parts[f"layers.{number}.output_norm"] = norm
        parts[f"layers.{number}.w_1"] = {"weight": (5, width), "bias": (5,)}
        parts[f"layers.{number}.w_2"] = {"weight": (width, 5), "bias": (width,)}
    tables = {"token": 7, "position": 512, "segment": 2}
    expected = {f"embeddings.{name}.weight": (rows, width) for name, rows in tables.items()}
    for name, part in parts.items():
        expected |= {f"{name}.{key}": shape for key, shape in part.items()}
    same_parameters(mine, expected)


@aspect
@exercise("BertModel")
def test_model_initial(student):
    """Weights begin as BERT's do: deviation 0.02, biases 0, norms that do nothing yet."""
    given = {"vocab_size": 50, "hidden": 16, "num_layers": 2, "num_heads": 2, "intermediate": 40}
    state = student.module("BertModel", **given).state()
    drawn = {"tables": [], "linear layers": []}
    for name, value in state.items():
        if name.endswith("norm.weight"):
            expectations.close(value, torch.ones_like(value), what=f"{name} of a new model")
        elif name.endswith("bias"):
            expectations.close(value, torch.zeros_like(value), what=f"{name} of a new model")
        else:
            drawn["tables" if "embeddings" in name else "linear layers"].append(value.flatten())
    for words, values in drawn.items():
        expectations.true(bool(values), f"A new model has no {words}.")
        got = float(torch.cat(values).double().std())
        # Of thousands of values; one fifth is more than ten times what chance does to it.
        expectations.true(
            0.016 < got < 0.024,
            f"The entries of the {words} of a new model deviate by {got:.3g}; apply init_weights, "
            "which makes it 0.02.",
        )


@aspect
@hidden
@exercise("BertModel")
def test_model_dropout(student, draw):
    """dropout, 0.1 unless told otherwise, reaches the embeddings and the layers."""
    options = bert_options(width=32, layers=1, inner=8)
    state = bert_state(draw, options)
    ids = draw.integers(SPECIAL, 9, 1, 8).expand(2, 8)
    plain = {name: value for name, value in options.items() if name != "dropout"}
    mine = student.module("BertModel", state=state, **plain).train()
    rows_differ(mine.method("embeddings", ids), "the result of embeddings at dropout=0.1")
    # Embeddings that are 0 whatever is dropped: what differs now differs by the layers.
    none = {f"embeddings.norm.{name}": torch.zeros(32) for name in ("weight", "bias")}
    state = {**state, **none}
    mine = student.module("BertModel", state=state, **{**options, "dropout": 0.5}).train()
    got = expectations.items(mine(ids), 2, what="the result (hidden states, pooled vector)")
    rows_differ(got[0], "what the layers return at dropout=0.5")


@hidden
@exercise("BertModel")
def test_model_gradients(student, reference, draw):
    """Padding leaks nowhere; gradients reach every layer's own parameters, in float64."""
    options = bert_options(layers=2, width=4, inner=3)
    state = bert_state(draw, options)
    mine, theirs = pair(student, reference, "BertModel", state, torch.float64, **options)
    given = inputs(draw, [4, 2])
    flows(
        student,
        mine,
        theirs,
        given,
        lambda parts: model_by_parts(parts, mine, state, options, *given),
        BOTH,
        "two layers, lengths 4 and 2, float64",
    )
    ids = given[0].clone()
    ids[1, 2:] = SPECIAL + 1  # padding that is no PAD
    before, after, wanted = mine(*given), mine(ids, *given[1:]), theirs(*given)
    if not expectations.close_enough(before[0], wanted[0]):
        return  # It is parts that decide what reaches real places.
    change = (after[0] - before[0]).abs().amax(-1) > 1e-9
    expectations.true(
        not bool(change[given[2]].any()) and not bool((after[1] - before[1]).abs().max() > 1e-9),
        "Other tokens at the masked places change what stands at real ones; the mask must reach "
        "every layer.",
    )


# --------------------------------------------------------------------------------------------
# count_parameters
# --------------------------------------------------------------------------------------------


def same_count(student, want, case, **given):
    expectations.equal(student.count_parameters(**given), want, what="the number", case=case)


LARGE = {"hidden": 1024, "num_layers": 24, "intermediate": 4096}


@exercise("count_parameters", 2)
def test_count_published(student):
    """BERT-base has 109,482,240 parameters, BERT-large 335,141,888."""
    same_count(student, 109_482_240, "BERT-base")
    same_count(student, 335_141_888, "BERT-large", **LARGE)


@exercise("count_parameters", 2)
def test_count_heads(student):
    """With the heads of pre-training they have 110,106,428 and 336,226,108."""
    same_count(student, 110_106_428, "BERT-base with heads=True", heads=True)
    same_count(student, 336_226_108, "BERT-large with heads=True", heads=True, **LARGE)


@exercise("count_parameters")
def test_count_small(student, reference):
    """Any sizes: each of them counts where it should."""
    for vocabulary, width, layers, inner, length, segments in [
        (11, 64, 1, 64, 5, 2),
        (7, 64, 2, 96, 12, 1),
        (20, 128, 3, 40, 6, 4),
    ]:
        given = {
            "vocab_size": vocabulary,
            "hidden": width,
            "num_layers": layers,
            "intermediate": inner,
            "max_length": length,
            "segments": segments,
        }
        for heads in (False, True):
            want = reference.count_parameters(heads=heads, **given)
            case = sizes(V=vocabulary, D=width, N=layers, F=inner, P=length, S=segments)
            same_count(student, want, f"{case}, heads={heads}", heads=heads, **given)


@hidden
@exercise("count_parameters")
def test_count_others(student, reference):
    """The sizes of other published models."""
    for case, given in {
        "RoBERTa-base": {"vocab_size": 50265, "max_length": 514, "segments": 1},
        "BERT-mini": {"hidden": 256, "num_layers": 4, "intermediate": 1024},
        "BERT-tiny with heads": {
            "hidden": 128,
            "num_layers": 2,
            "intermediate": 512,
            "heads": True,
        },
    }.items():
        same_count(student, reference.count_parameters(**given), case, **given)


# --------------------------------------------------------------------------------------------
# rename_parameters
# --------------------------------------------------------------------------------------------


def checkpoint(draw, layers=(0,), prefix="", old=False, more=()):
    """Small tensors under the names of a Hugging Face checkpoint."""
    ends = ("gamma", "beta") if old else ("weight", "bias")
    tables = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    names = [f"embeddings.{table}.weight" for table in tables]
    names += [f"embeddings.LayerNorm.{end}" for end in ends]
    for number in layers:
        layer = f"encoder.layer.{number}."
        for part in (
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
            "intermediate.dense",
            "output.dense",
        ):
            names += [f"{layer}{part}.weight", f"{layer}{part}.bias"]
        for norm in ("attention.output.LayerNorm", "output.LayerNorm"):
            names += [f"{layer}{norm}.{end}" for end in ends]
    names += ["pooler.dense.weight", "pooler.dense.bias"]
    return {name: draw.normal(2) for name in [*(prefix + name for name in names), *more]}


def same_names(student, reference, state, case):
    """The reference's names, each with the tensor that it had."""
    got, want = student.rename_parameters(state), reference.rename_parameters(state)
    expectations.true(isinstance(got, dict), f"the result should be a dict{f' for {case}'}.")
    missing, extra = sorted(set(want) - set(got)), sorted(map(str, set(got) - set(want)))
    expectations.true(
        not missing, f"There is no {', '.join(missing[:4])} in the result for {case}."
    )
    expectations.true(not extra, f"The result should not have {', '.join(extra[:4])} for {case}.")
    for name, value in want.items():
        expectations.close(got[name], value, what=f"the tensor called {name}", case=case)


@exercise("rename_parameters", 2)
def test_rename_model(student, reference, draw):
    """The names of a plain model: embeddings, layers, pooler."""
    same_names(student, reference, checkpoint(draw, ()), "embeddings and pooler")
    same_names(student, reference, checkpoint(draw, (0, 1)), "a model of two layers")


@exercise("rename_parameters", 2)
def test_rename_heads(student, reference, draw):
    """With the prefix bert. and heads: of pre-training, of a classifier, of a span finder."""
    transform = "cls.predictions.transform"
    heads = [f"{transform}.dense.weight", f"{transform}.dense.bias", "cls.predictions.bias"]
    heads += [f"{transform}.LayerNorm.weight", f"{transform}.LayerNorm.bias"]
    heads += ["cls.seq_relationship.weight", "cls.seq_relationship.bias"]
    for case, more in {
        "a checkpoint of pre-training": heads,
        "a classifier's checkpoint": ["classifier.weight", "classifier.bias"],
        "a span finder's checkpoint": ["qa_outputs.weight", "qa_outputs.bias"],
    }.items():
        same_names(student, reference, checkpoint(draw, (), "bert.", more=more), case)


@exercise("rename_parameters")
def test_rename_left_out(student, reference, draw):
    """The tied table and the position ids are left out, whatever stands before them."""
    decoder = ["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"]
    for prefix, more in [
        ("", ["embeddings.position_ids"]),
        ("bert.", ["bert.embeddings.position_ids", *decoder]),
    ]:
        state = checkpoint(draw, (), prefix, more=more)
        same_names(student, reference, state, f"a checkpoint with {', '.join(more)}")


@exercise("rename_parameters")
def test_rename_unknown(student, reference, draw):
    """Any other name is refused with a ValueError."""
    same_names(student, reference, checkpoint(draw, ()), "embeddings and pooler")
    for name in [
        "encoder.layer.0.attention.self.distance_embedding.weight",
        "lm_head.weight",
        "pooler.dense.running_mean",
        "encoder.layer.0.crossattention.output.dense.weight",
        "bert.encoder.layer.0.output.adapter.weight",
    ]:
        state = checkpoint(draw, more=[name])
        refuses(
            lambda given: student.rename_parameters(given), {f"a tensor called {name}": (state,)}
        )


@hidden
@exercise("rename_parameters")
def test_rename_old(student, reference, draw):
    """gamma and beta of old checkpoints become weight and bias, in the head too."""
    norm = "cls.predictions.transform.LayerNorm"
    more = [f"{norm}.gamma", f"{norm}.beta"]
    state = checkpoint(draw, (0,), "bert.", old=True, more=more)
    same_names(student, reference, state, "an old checkpoint with gamma and beta")


@hidden
@exercise("rename_parameters")
def test_rename_layers(student, reference, draw):
    """Layers of two digits, any shape and dtype; the given dict stays as it is."""
    state = checkpoint(draw, (1, 9, 10, 11, 21), "bert.")
    state["bert.pooler.dense.weight"] = draw.normal(3, 2).double()
    state["bert.pooler.dense.bias"] = draw.normal(3).to(torch.float16)
    same_names(student, reference, state, "bert. and layers 1, 9, 10, 11 and 21")
    seen = student.observe("rename_parameters", state, grad=False)
    expectations.true(isinstance(seen.value, dict), "the result should be a dict.")
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# What the tests of masking share
# --------------------------------------------------------------------------------------------


def share(count, trials, probability, what, likely=None, false_alarm=1e-9):
    """As `expectations.rate`; of the known mistakes `likely`, name -> share, the fitting is named.

    Random answers cannot be replayed, so that the test itself has to say which mistake it sees.
    """
    count, trials = int(count), int(trials)
    expectations.true(trials > 0, f"{what} cannot be told: there is none.")
    try:
        expectations.rate(count, trials, probability, what, false_alarm=false_alarm)
    except Mistake as mistake:
        fitting = [name for name, other in (likely or {}).items() if fits(count, trials, other)]
        nearest = min(fitting, key=lambda name: abs(count / trials - likely[name]), default=None)
        raise Mistake(str(mistake), nearest) from None


def fits(count, trials, probability):
    """Whether a share is what may well be seen with this probability."""
    try:
        expectations.rate(count, trials, probability, "the share", false_alarm=1e-2)
    except Mistake:
        return False
    return True


def unrefused(call, cases, misconception):
    """Each case, words -> arguments, is refused with a ValueError, or `misconception` was made."""
    for words, arguments in cases.items():
        expectations.raises(
            "ValueError",
            lambda given=arguments: call(*given),
            what=words,
            misconception=misconception,
        )


def ordinary_ids(draw, rows, length, vocabulary, special=0.2, alike=False):
    """Random ids; CLS at the front, and as many special ones in between as `special` says.

    `alike`: one ordinary id everywhere. What many wrong modules answer is kept in a file, which
    stays small where nothing is random but what is asked for.
    """
    ids = draw.integers(SPECIAL, vocabulary, rows, length)
    if alike:
        ids[:] = ids[0, 0].clone()
    if special:
        ids = torch.where(
            draw.uniform(rows, length) < special, draw.integers(0, SPECIAL, rows, length), ids
        )
        ids[:, 0] = CLS
    return ids


def masking(got, ids, vocabulary, prefix, case):
    """A masking is one by its form: what was chosen (bool), and the corrupted ids.

    Which tokens are chosen, and how often they become what, is left to chance and other tests.
    """
    corrupted, marks = expectations.pair(got, what="the result (corrupted, labels)")
    for tensor, what in ((corrupted, "corrupted"), (marks, "labels")):
        expectations.shape(tensor, ids.shape, what=what, case=case)
        expectations.true(
            tensor.dtype == torch.int64,
            f"{what} should have dtype int64, but has {tensor.dtype} for {case}.",
        )
    ordinary, chosen = ids >= SPECIAL, marks != IGNORE
    wrong = chosen & (marks != ids)
    kind = None
    if bool(wrong.any()):
        if bool((marks[wrong] == 0).all()):
            kind = "labels_zero"
        elif bool((marks[wrong] == corrupted[wrong]).all()):
            kind = "labels_corrupted"
    expectations.true(
        not bool(wrong.any()),
        f"labels should hold the original id where a token is chosen and IGNORE elsewhere; for "
        f"{case} there are others.",
        misconception=kind and f"{prefix}_{kind}",
    )
    everywhere = bool(chosen.all()) and not bool(ordinary.all())
    kind = "labels_everywhere" if everywhere else "specials_chosen"
    expectations.true(
        not bool((chosen & ~ordinary).any()),
        f"labels marks special tokens, with ids below {SPECIAL}, as chosen for {case}.",
        misconception=f"{prefix}_{kind}",
    )
    expectations.true(
        not bool((~chosen & (corrupted != ids)).any()),
        f"corrupted differs from the ids where labels says IGNORE for {case}.",
        misconception=f"{prefix}_all_tokens",
    )
    new = corrupted[chosen & (corrupted != ids) & (corrupted != MASK)]
    expectations.true(
        not bool((new < SPECIAL).any()),
        f"a token was replaced by a special one other than MASK for {case}.",
        misconception=f"{prefix}_random_special",
    )
    expectations.true(
        not bool((new >= vocabulary).any()),
        f"a token was replaced by an id of {int(new.max()) if len(new) else 0}, which is not "
        f"below vocab_size={vocabulary}, for {case}.",
    )
    return chosen, corrupted


def masked(student, ids, vocabulary, rate=None, case=""):
    """What the student's mask_tokens has chosen, and the corrupted ids; default rate for None."""
    options = {} if rate is None else {"rate": rate}
    case = case or f"ids of shape {tuple(ids.shape)}, rate={0.15 if rate is None else rate}"
    seen = student.observe("mask_tokens", ids, vocabulary, grad=False, **options)
    expectations.unchanged(seen, misconception="mask_in_place")
    return masking(seen.value, ids, vocabulary, "mask", case)


def outcomes(chosen, corrupted, ids, vocabulary, prefix):
    """Of what is chosen 80 percent became MASK, 10 another id or perhaps the same, 10 stay."""
    count = int(chosen.sum())
    fresh = 0.1 / (vocabulary - SPECIAL)  # drawn at random, and the same
    kept = {"never_kept": 2 * fresh, "never_random": 0.2}
    if prefix == "mask":
        kept["rest_drawn_twice"] = 0.18
    now, before = corrupted[chosen], ids[chosen]
    for found, probability, what, likely in (
        (now == MASK, 0.8, "the share of MASK", {"always": 1.0}),
        (now == before, 0.1 + fresh, "the share that stays as it is", kept),
    ):
        share(
            found.sum(),
            count,
            probability,
            f"{what} among the chosen tokens",
            {f"{prefix}_{name}": other for name, other in likely.items()},
        )


# --------------------------------------------------------------------------------------------
# mask_tokens
# --------------------------------------------------------------------------------------------


@exercise("mask_tokens")
def test_mask_form(student, draw):
    """Labels hold the original ids where a token is chosen, IGNORE elsewhere; ids are kept."""
    ids = ordinary_ids(draw, 6, 12, 30)
    masked(student, ids, 30, 0.5)
    chosen, corrupted = masked(student, ids, 30, 0.0)
    expectations.true(not bool(chosen.any()), "With rate=0 some tokens are chosen.")
    chosen, corrupted = masked(student, ids, 30, 1.0)
    kept_unmarked = torch.equal(chosen, corrupted != ids) and bool(chosen.any())
    expectations.equal(
        chosen,
        ids >= SPECIAL,
        what="which tokens are chosen",
        case="rate=1",
        misconception="mask_chosen_without_kept" if kept_unmarked else None,
    )
    expectations.true(not torch.equal(corrupted, ids), "With rate=1 no token is masked.")


@exercise("mask_tokens")
def test_mask_rate(student, draw):
    """Of the ordinary tokens 15 percent are chosen, if nothing else is said."""
    ids = ordinary_ids(draw, 60, 60, 20, special=0.1, alike=True)
    chosen, _ = masked(student, ids, 20)
    share(
        chosen.sum(),
        (ids >= SPECIAL).sum(),
        0.15,
        "the share of ordinary tokens that are chosen by default",
        {"mask_chosen_without_kept": 0.135},
    )


@exercise("mask_tokens", weight=2)
def test_mask_outcomes(student, draw):
    """A chosen token becomes MASK in 80 percent, a random one in 10, and stays in 10."""
    ids = ordinary_ids(draw, 70, 60, 25, special=0.05, alike=True)
    chosen, corrupted = masked(student, ids, 25, 0.6)
    what = "the share of ordinary tokens that are chosen at rate=0.6"
    share(chosen.sum(), (ids >= SPECIAL).sum(), 0.6, what, {"mask_chosen_without_kept": 0.54})
    outcomes(chosen, corrupted, ids, 25, "mask")


@exercise("mask_tokens")
def test_mask_refusals(student):
    """A rate outside 0 to 1 and a vocabulary of special ids alone are refused."""
    ids = torch.tensor([[CLS, 5, 5, SEP]])
    rates = {"rate=-0.1": (ids, 9, -0.1), "rate=1.5": (ids, 9, 1.5)}
    unrefused(student.mask_tokens, rates, "mask_rate_unchecked")
    vocabularies = {"vocab_size=5": (ids, 5), "vocab_size=3": (ids, 3)}
    unrefused(student.mask_tokens, vocabularies, "mask_vocabulary_unchecked")


@hidden
@exercise("mask_tokens")
def test_mask_random_ids(student, draw):
    """Random ids are uniform over all ordinary ones, the token's own among them."""
    low, high = SPECIAL, SPECIAL + 10
    ids = ordinary_ids(draw, 80, 100, high, special=0.0)
    chosen, corrupted = masked(student, ids, high, 1.0)
    new = chosen & (corrupted != ids) & (corrupted != MASK)
    expectations.true(
        len(corrupted[new].unique()) > 1,
        "All tokens that are replaced at random get the same id.",
        misconception="mask_one_random_id",
    )
    for token in range(low, high):
        could = new & (ids != token)
        share(
            (corrupted[could] == token).sum(),
            could.sum(),
            1 / 9,
            f"the share of id {token} among the random ids, of {low} to {high - 1},",
            {"mask_last_id_missing": 0.0} if token == high - 1 else None,
            false_alarm=1e-10,
        )
    ids = ordinary_ids(draw, 60, 100, SPECIAL + 2, special=0.0)
    chosen, corrupted = masked(student, ids, SPECIAL + 2, 1.0)
    share(
        (corrupted == ids).sum(),
        chosen.sum(),
        0.15,
        "the share of tokens that are as before, with two ordinary ids in the vocabulary,",
    )
    masked(student, torch.tensor([[CLS, 5, 5, SEP]]), SPECIAL + 1, 1.0)


@hidden
@exercise("mask_tokens", weight=2)
def test_mask_independent(student, draw):
    """Each token is drawn on its own: no fixed number, no common fate in a row or a batch."""
    ids = ordinary_ids(draw, 1500, 4, 40, special=0.0)
    chosen, _ = masked(student, ids, 40)
    share(
        (~chosen.any(1)).sum(),
        1500,
        0.85**4,
        "the share of rows of four tokens in which none is chosen",
        {"mask_fixed_number": 0.0, "mask_one_draw_per_row": 0.85},
    )
    for place in range(4):
        what = f"the share of tokens that are chosen at place {place} of 4"
        share(chosen[:, place].sum(), 1500, 0.15, what, false_alarm=1e-10)
    _, corrupted = masked(student, ids, 40, 1.0)
    share(
        (corrupted == MASK).all(1).sum(),
        1500,
        0.8**4,
        "the share of rows of four chosen tokens in which all become MASK",
        {"mask_one_fate_per_row": 0.8},
    )
    ids = ordinary_ids(draw, 1, 20, 40, special=0.0)
    exact = sum(int(masked(student, ids, 40, 0.5)[0].sum()) == 10 for _ in range(18))
    share(
        exact,
        18,
        math.comb(20, 10) / 2**20,
        "how often exactly 10 of 20 tokens are chosen at rate=0.5",
        {"mask_fixed_number": 1.0},
    )


# --------------------------------------------------------------------------------------------
# mask_whole_words
# --------------------------------------------------------------------------------------------


def worded_ids(draw, rows, length, vocabulary, special=0.15, alike=False):
    """Random ids and where words start; rows begin with CLS, words have one piece or more."""
    ids = ordinary_ids(draw, rows, length, vocabulary, special, alike)
    ids[:, 0] = CLS
    ordinary = ids >= SPECIAL
    first = torch.cat([ordinary[:, :1], ~ordinary[:, :-1]], dim=1)  # behind a special token
    return ids, ordinary & (first | (draw.uniform(rows, length) < 0.45))


def masked_words(student, ids, starts, vocabulary, rate=None):
    """What the student's mask_whole_words has chosen, and the corrupted ids."""
    options = {} if rate is None else {"rate": rate}
    case = f"ids of shape {tuple(ids.shape)}, rate={0.15 if rate is None else rate}"
    seen = student.observe("mask_whole_words", ids, starts, vocabulary, grad=False, **options)
    expectations.unchanged(seen, misconception="words_in_place")
    return masking(seen.value, ids, vocabulary, "words", case)


def word_numbers(ids, starts):
    """For every ordinary piece the number of its word, and how many pieces each word has."""
    numbers = starts.flatten().long().cumsum(0).reshape(ids.shape)[ids >= SPECIAL] - 1
    return numbers, torch.bincount(numbers)


def words_chosen(chosen, ids, starts):
    """Which words are chosen, from which at least one piece is, and of how many pieces each is."""
    numbers, pieces = word_numbers(ids, starts)
    hit = torch.bincount(numbers, weights=chosen[ids >= SPECIAL].double()).long()
    partly = (hit > 0) & (hit < pieces)
    first_only = bool((hit[pieces > 1] <= 1).all())
    expectations.true(
        not bool(partly.any()),
        "Some pieces of a word are chosen and others are not; a word is chosen as a whole.",
        misconception="words_first_piece_only" if first_only else "words_by_pieces",
    )
    return hit > 0, pieces


@exercise("mask_whole_words")
def test_words_form(student, draw):
    """Whole words are chosen or none of their pieces; labels as in mask_tokens; ids are kept."""
    ids, starts = worded_ids(draw, 8, 14, 30)
    chosen, _ = masked_words(student, ids, starts, 30, 0.5)
    words_chosen(chosen, ids, starts)
    chosen, _ = masked_words(student, ids, starts, 30, 0.0)
    expectations.true(not bool(chosen.any()), "With rate=0 some words are chosen.")
    chosen, _ = masked_words(student, ids, starts, 30, 1.0)
    expectations.equal(chosen, ids >= SPECIAL, what="which tokens are chosen", case="rate=1")


def words_rate(words, pieces, rate):
    """Words are chosen at this rate, whatever their length."""
    for some, what in ((pieces == 1, "of one piece"), (pieces > 1, "of several pieces")):
        share(
            words[some].sum(),
            some.sum(),
            rate,
            f"the share of words {what} that are chosen at rate={rate}",
        )


@exercise("mask_whole_words")
def test_words_rate(student, draw):
    """Each word is chosen with the probability 0.15, if nothing else is said."""
    ids, starts = worded_ids(draw, 60, 60, 20, alike=True)
    chosen, _ = masked_words(student, ids, starts, 20)
    words_rate(*words_chosen(chosen, ids, starts), 0.15)


@exercise("mask_whole_words")
def test_words_outcomes(student, draw):
    """Each piece of a chosen word draws its own fate: 80, 10 and 10 percent."""
    ids, starts = worded_ids(draw, 70, 60, 25, special=0.1, alike=True)
    chosen, corrupted = masked_words(student, ids, starts, 25, 0.8)
    words, pieces = words_chosen(chosen, ids, starts)
    words_rate(words, pieces, 0.8)
    outcomes(chosen, corrupted, ids, 25, "words")
    # The first two pieces of the longer words.
    first = torch.cat([torch.zeros(1, dtype=torch.int64), pieces.cumsum(0)[:-1]])[
        words & (pieces > 1)
    ]
    gone = (corrupted == MASK)[ids >= SPECIAL]
    share(
        (gone[first] & gone[first + 1]).sum(),
        len(first),
        0.64,
        "the share of chosen words in which the first two pieces both become MASK",
        {"words_one_fate": 0.8},
    )


@exercise("mask_whole_words")
def test_words_refusals(student):
    """A rate outside 0 to 1 and a vocabulary of special ids alone are refused."""
    ids = torch.tensor([[CLS, 5, 5, SEP]])
    starts = torch.tensor([[False, True, False, False]])
    unrefused(
        student.mask_whole_words,
        {
            "rate=-0.1": (ids, starts, 9, -0.1),
            "rate=1.5": (ids, starts, 9, 1.5),
            "vocab_size=5": (ids, starts, 5),
            "vocab_size=3": (ids, starts, 3),
        },
        "words_unchecked",
    )


@hidden
@exercise("mask_whole_words")
def test_words_independent(student, draw):
    """Words are drawn on their own, also at the ends of rows; no fixed number is chosen."""
    ids = ordinary_ids(draw, 1500, 4, 40, special=0.0)
    starts = torch.tensor([True, False, True, False]).expand(1500, 4)
    chosen, _ = masked_words(student, ids, starts, 40, 0.3)
    words, _ = words_chosen(chosen, ids, starts)
    share(
        (~words.reshape(1500, 2).any(1)).sum(),
        1500,
        0.49,
        "the share of rows of two words in which none is chosen at rate=0.3",
        {"words_fixed_number": 0.0, "words_one_draw_per_row": 0.7},
    )
    ids = ordinary_ids(draw, 1, 20, 40, special=0.0)
    ids[:, 0], starts = CLS, torch.ones(1, 20, dtype=torch.bool)
    starts[:, [0, 2]] = False
    exact = 0
    for _ in range(18):  # 18 words, the first of two pieces
        chosen, _ = masked_words(student, ids, starts, 40, 0.5)
        exact += int(words_chosen(chosen, ids, starts)[0].sum()) == 9
    share(
        exact,
        18,
        math.comb(18, 9) / 2**18,
        "how often exactly 9 of 18 words are chosen at rate=0.5",
        {"words_fixed_number": 1.0},
    )


@hidden
@exercise("mask_whole_words")
def test_words_boundaries(student, draw):
    """A word ends with its row, and before a special token; what comes then is not part of it."""
    ids = ordinary_ids(draw, 800, 6, 40, special=0.0)
    ids[:, 3] = SEP
    starts = torch.tensor([False, False, True, False, False, False]).expand(800, 6)
    chosen, _ = masked_words(student, ids, starts, 40, 0.5)
    for before, after, what in (
        (chosen[:-1, 5], chosen[1:, 0], "the end of a row and the beginning of the next"),
        (chosen[:, 2], chosen[:, 4], "the tokens before and after a special one"),
    ):
        name = "words_across_rows" if what.startswith("the end") else "words_across_specials"
        share(
            (before & after).sum(),
            len(after),
            0.25,
            f"how often {what} are both chosen at rate=0.5, without a word that starts there,",
            {name: 0.5},
            false_alarm=5e-10,
        )
        share(
            after.sum(),
            len(after),
            0.5,
            f"how often the latter of {what} is chosen at rate=0.5",
            false_alarm=5e-10,
        )


@hidden
@exercise("mask_whole_words")
def test_words_random_ids(student, draw):
    """Random ids are uniform over all ordinary ones, drawn piece by piece."""
    low, high = SPECIAL, SPECIAL + 4
    ids, starts = worded_ids(draw, 70, 60, high)
    chosen, corrupted = masked_words(student, ids, starts, high, 1.0)
    new = chosen & (corrupted != ids) & (corrupted != MASK)
    for token in range(low, high):
        could = new & (ids != token)
        share(
            (corrupted[could] == token).sum(),
            could.sum(),
            1 / 3,
            f"the share of id {token} among the random ids, of {low} to {high - 1},",
            {"words_last_id_missing": 0.0} if token == high - 1 else None,
            false_alarm=2e-10,
        )


# --------------------------------------------------------------------------------------------
# masking_epochs
# --------------------------------------------------------------------------------------------


def epochs_of(student, ids, vocabulary, epochs, duplicates=None, **options):
    """The maskings of all epochs: a list of (corrupted, labels), each of the ids' shape."""
    given = () if duplicates is None else (duplicates,)
    case = f"epochs={epochs}" + "".join(f", duplicates={number}" for number in given)
    seen = student.observe("masking_epochs", ids, vocabulary, epochs, *given, grad=False, **options)
    found = seen.value
    if isinstance(found, tuple):
        found = list(found)
    expectations.true(
        isinstance(found, list),
        f"the result should be a list, but is a {expectations.type_name(found)} for {case}.",
    )
    expectations.true(
        len(found) == epochs,
        f"the result should hold {epochs} maskings, one an epoch, but holds {len(found)} for "
        f"{case}.",
        misconception="epochs_times_duplicates"
        if len(found) == epochs * (duplicates or 1)
        else None,
    )
    parts = Parts(student)
    mine = parts.proxy.observe("mask_tokens", ids, vocabulary, grad=False, **options)
    for number, entry in enumerate(found):
        pair_ = expectations.pair(entry, what=f"the entry of epoch {number}")
        for tensor, what in zip(pair_, ("corrupted", "labels"), strict=True):
            expectations.shape(tensor, ids.shape, what=f"{what} of epoch {number}", case=case)
            expectations.true(
                tensor.dtype == torch.int64, f"{what} should have dtype int64 for {case}."
            )
    if _sound(mine, ids):
        for corrupted, marks in found:
            expectations.true(
                bool((corrupted == ids)[marks == IGNORE].all())
                and bool((marks == ids)[marks != IGNORE].all()),
                f"every epoch should mask the original ids; for {case} one masks something else.",
                misconception="epochs_masked_again",
            )
    expectations.unchanged(seen) if not mine.mutated else None
    return found


def _sound(seen, ids):
    """The student's own mask_tokens leaves the ids and marks all that it changes."""
    try:
        corrupted, marks = expectations.pair(seen.value)
        same = torch.where(marks == IGNORE, corrupted, marks)
        return not seen.mutated and torch.equal(same, ids)
    except Exception:
        return False


def alike(left, right):
    """Two maskings are the same in both tensors."""
    return all(torch.equal(one, two) for one, two in zip(left, right, strict=True))


def repeats(found):
    """For each epoch the number of the first epoch with the same masking."""
    return [next(early for early, other in enumerate(found) if alike(other, one)) for one in found]


@aspect
@exercise("masking_epochs")
def test_epochs_dynamic(student, draw):
    """Without duplicates every epoch is masked anew."""
    ids = ordinary_ids(draw, 6, 60, 30, special=0.1)
    # Two maskings of 300 tokens or more are the same by chance once in 10**38.
    found = epochs_of(student, ids, 30, 5)
    first = repeats(found)
    expectations.true(
        first == list(range(5)),
        "Without duplicates all 5 epochs should differ, but some are the same.",
        misconception="epochs_drawn_once" if len(set(first)) == 1 else None,
    )


@exercise("masking_epochs")
def test_epochs_static(student, draw):
    """With duplicates=k epoch e has masking e mod k, and these k differ."""
    ids = ordinary_ids(draw, 6, 60, 30, special=0.1)
    for epochs, duplicates in [(2, 1), (7, 3)]:
        first = repeats(epochs_of(student, ids, 30, epochs, duplicates))
        wanted = [epoch % duplicates for epoch in range(epochs)]
        expectations.true(
            first == wanted,
            f"With {epochs} epochs and duplicates={duplicates} the epochs should be as numbers "
            f"{wanted}, but are as {first}.",
            misconception=_order(first, duplicates),
        )


def _order(first, duplicates):
    """The known mistake behind an order of epochs, given by `repeats`."""
    count = range(len(first))
    if first == list(count):
        return "epochs_always_anew"
    if duplicates < 2:
        return None
    orders = {
        "epochs_store_exhausted": [min(epoch, duplicates - 1) for epoch in count],
        "epochs_store_too_small": [epoch % max(duplicates - 1, 1) for epoch in count],
    }
    for name, order in orders.items():
        if first == order:
            return name
    blocks = first == sorted(first) and first[:2] == [0, 0]
    return "epochs_in_blocks" if blocks else "epochs_drawn_from_store"


@aspect
@exercise("masking_epochs")
def test_epochs_refusals(student, draw):
    """Fewer than one epoch or one duplicate are refused with a ValueError."""
    ids = ordinary_ids(draw, 2, 5, 9)
    unrefused(
        student.masking_epochs,
        {
            "epochs=0": (ids, 9, 0),
            "epochs=-2": (ids, 9, -2),
            "duplicates=0": (ids, 9, 3, 0),
            "duplicates=-1": (ids, 9, 3, -1),
        },
        "epochs_unchecked",
    )
    epochs_of(student, ids, 9, 1, 1)


@aspect
@hidden
@exercise("masking_epochs")
def test_epochs_rate(student, draw):
    """The rate is passed on, with duplicates and without."""
    ids = ordinary_ids(draw, 3, 40, 30)
    for duplicates in (None, 2):
        for rate in (0.0, 1.0):
            parts = Parts(student)
            own = parts.proxy.observe("mask_tokens", ids, 30, grad=False, rate=rate)
            wanted = expectations.pair(own.value, what="what your mask_tokens returns")[1]
            found = epochs_of(student, ids, 30, 3, duplicates, rate=rate)
            for _, marks in found[:1] if own.mutated else found:
                expectations.equal(
                    marks,
                    wanted,
                    what="labels",
                    case=f"rate={rate:g}",
                    misconception="epochs_rate_forgotten",
                )


@hidden
@exercise("masking_epochs")
def test_epochs_more_duplicates(student, draw):
    """More duplicates than epochs are all different; many epochs turn round many times."""
    ids = ordinary_ids(draw, 6, 60, 30, special=0.1)
    for epochs, duplicates in [(3, 10), (20, 4)]:
        first = repeats(epochs_of(student, ids, 30, epochs, duplicates))
        expectations.true(
            first == [epoch % duplicates for epoch in range(epochs)],
            f"With {epochs} epochs and duplicates={duplicates} the epochs are as {first}.",
        )


# --------------------------------------------------------------------------------------------
# next_sentence_pairs
# --------------------------------------------------------------------------------------------


def documents_of(*sizes, start=10):
    """Documents of so many sentences; no two sentences are alike, and some have two tokens."""
    documents, token = [], start
    for size in sizes:
        sentences = [[number] * (1 + number % 3) for number in range(token, token + size)]
        documents.append(sentences)
        token += size
    return documents


def pairs_of(student, documents, case):
    """Labels, and the places (document, sentence) of both sentences of each pair.

    What is no question of chance is judged here: which pairs there are, and what they consist of.
    """
    seen = student.observe("next_sentence_pairs", documents, grad=False)
    expectations.unchanged(seen)
    found = seen.value
    if isinstance(found, tuple):
        found = list(found)
    expectations.true(
        isinstance(found, list),
        f"the result should be a list of pairs, but is a {expectations.type_name(found)} "
        f"for {case}.",
    )
    wanted = [
        (number, place)
        for number, document in enumerate(documents)
        for place in range(len(document) - 1)
    ]
    expectations.true(
        len(found) == len(wanted),
        f"there should be {len(wanted)} pairs, one for each sentence with a next one, but there "
        f"are {len(found)} for {case}.",
        misconception="pairs_across_documents" if len(found) > len(wanted) else None,
    )
    where = {
        tuple(sentence): (number, place)
        for number, document in enumerate(documents)
        for place, sentence in enumerate(document)
    }
    marks, firsts, seconds = [], [], []
    for entry in found:
        first, second, mark = expectations.items(entry, 3, what="an entry (first, second, label)")
        for sentence, what in ((first, "first"), (second, "second")):
            expectations.true(
                isinstance(sentence, list) and tuple(sentence) in where,
                f"the {what} sentence of a pair is none of the documents' for {case}.",
            )
        expectations.true(
            isinstance(mark, int) and mark in (0, 1),
            f"a label should be 0 or 1, but is {str(mark)[:40]} for {case}.",
        )
        marks.append(int(mark))
        firsts.append(where[tuple(first)])
        seconds.append(where[tuple(second)])
    expectations.true(
        firsts == wanted,
        f"the first sentences should be those that have a next one, in order, for {case}.",
        misconception="pairs_random_first" if any(marks) else None,
    )
    true_next = [
        second == (number, place + 1)
        for (number, place), second in zip(firsts, seconds, strict=True)
    ]
    same_document = [first[0] == second[0] for first, second in zip(firsts, seconds, strict=True)]
    said = [mark == 0 for mark in marks]
    swapped = len(marks) > 4 and all(a != b for a, b in zip(said, true_next, strict=True))
    expectations.true(
        not swapped,
        f"label 0 stands where the second sentence is not the next one, and 1 where it is, for "
        f"{case}.",
        misconception="pairs_labels_swapped",
    )
    for is_next, is_true, same in zip(said, true_next, same_document, strict=True):
        expectations.true(
            is_true or not is_next,
            f"a pair with label 0 does not consist of a sentence and its next one for {case}.",
        )
        expectations.true(
            is_next or not same,
            f"the second sentence of a pair with label 1 comes from the same document for {case}.",
            misconception="pairs_same_document",
        )
    return marks, firsts, seconds


@exercise("next_sentence_pairs")
def test_pairs_form(student):
    """A pair for each sentence with a next one, in order; label 0 and the true next, or 1."""
    for sizes_ in ([3, 2, 4], [4, 1, 3, 2]):
        pairs_of(student, documents_of(*sizes_), f"documents of {sizes_} sentences")


@exercise("next_sentence_pairs")
def test_pairs_half(student):
    """Half of the pairs are true ones."""
    marks, _, _ = pairs_of(student, documents_of(*[6] * 70), "70 documents of 6 sentences")
    likely = {"pairs_always_next": 0.0, "pairs_never_next": 1.0}
    share(sum(marks), len(marks), 0.5, "the share of pairs with label 1", likely)


@exercise("next_sentence_pairs")
def test_pairs_refusals(student):
    """Fewer than two documents with sentences are refused with a ValueError."""
    unrefused(
        student.next_sentence_pairs,
        {
            "no document": ([],),
            "one document": (documents_of(3),),
            "one document and an empty one": ([*documents_of(3), []],),
        },
        "pairs_unchecked",
    )
    pairs_of(student, documents_of(2, 1), "documents of 2 sentences and 1")


@hidden
@exercise("next_sentence_pairs", weight=2)
def test_pairs_uniform(student):
    """Random sentences are uniform over the sentences of the other documents, first and last."""
    sizes_ = [2, 900, 3, 1]
    marks, firsts, seconds = pairs_of(
        student, documents_of(*sizes_), f"documents of {sizes_} sentences"
    )
    drawn = [
        second
        for mark, first, second in zip(marks, firsts, seconds, strict=True)
        if mark and first[0] == 1
    ]
    places = [(number, place) for number in (0, 2, 3) for place in range(sizes_[number])]
    counts = [drawn.count(one) for one in places]
    kind = None
    if not any(count for count, (_, place) in zip(counts, places, strict=True) if place):
        kind = "pairs_first_sentence_only"
    elif len({number for number, _ in drawn}) == 1:
        kind = "pairs_from_next_document"
    elif fits(counts[-1], len(drawn), 1 / 3):
        kind = "pairs_document_first"
    for (number, place), count in zip(places, counts, strict=True):
        what = f"the share of sentence {place} of document {number} among 6 that may be drawn"
        try:
            expectations.rate(count, len(drawn), 1 / 6, what, false_alarm=1e-10)
        except Mistake as mistake:
            raise Mistake(str(mistake), kind) from None


@hidden
@exercise("next_sentence_pairs")
def test_pairs_independent(student):
    """Every pair is drawn on its own, and so is every random sentence."""
    marks, _, seconds = pairs_of(
        student, documents_of(1, 600, 1), "documents of 1, 600 and 1 sentences"
    )
    changes = sum(one != two for one, two in itertools.pairwise(marks))
    what = "the share of pairs whose label differs from the one before"
    likely = {"pairs_alternate": 1.0, "pairs_coin_per_document": 0.0}
    share(changes, len(marks) - 1, 0.5, what, likely)
    drawn = [second[0] for mark, second in zip(marks, seconds, strict=True) if mark]
    changes = sum(one != two for one, two in itertools.pairwise(drawn))
    what = "the share of random sentences that differ from the one before, of two"
    share(changes, len(drawn) - 1, 0.5, what)


@hidden
@exercise("next_sentence_pairs")
def test_pairs_small_documents(student):
    """Empty documents and those of one sentence give no pairs; single sentences may be drawn."""
    documents = [[], *documents_of(1, 300), [], *documents_of(1, start=400)]
    _, _, seconds = pairs_of(student, documents, "documents of 0, 1, 300, 0 and 1 sentences")
    expectations.true(
        {(1, 0), (4, 0)} <= set(seconds),
        "A document of one sentence is never drawn from in 299 pairs.",
    )


# --------------------------------------------------------------------------------------------
# What the tests of pre-training share
# --------------------------------------------------------------------------------------------

# Small: a step of training changes every parameter.
SMALL = {
    "vocab_size": 11,
    "hidden": 4,
    "num_layers": 1,
    "num_heads": 2,
    "intermediate": 6,
    "max_length": 8,
}


def normed(draw, name, width) -> State:
    """The parameters of a LayerNorm."""
    return {
        f"{name}.weight": 1.0 + draw.normal(width, scale=0.4),
        f"{name}.bias": draw.normal(width, scale=0.5),
    }


def head_state(draw, vocabulary, width, prefix="") -> State:
    """The parameters of a MaskedLanguageHead, the table among them."""
    return {
        f"{prefix}bias": draw.normal(vocabulary, scale=0.5),
        f"{prefix}token.weight": draw.normal(vocabulary, width),
        **linear(draw, f"{prefix}dense", width, width),
        **normed(draw, f"{prefix}norm", width),
    }


def pretraining_state(draw, num_layers=1, segments=2, **changes) -> State:
    """The parameters of a small BertForPreTraining; one table under two names."""
    given = {**SMALL, **changes}
    width, inner = given["hidden"], given["intermediate"]
    state = {
        "bert.embeddings.position.weight": draw.normal(given["max_length"], width),
        "bert.embeddings.segment.weight": draw.normal(segments, width),
        **normed(draw, "bert.embeddings.norm", width),
    }
    for number in range(num_layers):
        layer = f"bert.layers.{number}."
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            state |= linear(draw, f"{layer}attention.{name}", width, width)
        state |= normed(draw, f"{layer}attention_norm", width)
        state |= linear(draw, f"{layer}w_1", inner, width)
        state |= linear(draw, f"{layer}w_2", width, inner)
        state |= normed(draw, f"{layer}output_norm", width)
    state |= linear(draw, "bert.pooler", width, width)
    state |= head_state(draw, given["vocab_size"], width, "mlm.")
    state |= linear(draw, "nsp", 2, width)
    return state | {"bert.embeddings.token.weight": state["mlm.token.weight"]}


def sentence_batch(draw, lengths, segments=2, vocabulary=11):
    """Ids, segments and mask of rows of these lengths, padded behind."""
    longest = max(lengths)
    mask = torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)
    ids = draw.integers(SPECIAL, vocabulary, len(lengths), longest)
    ids[:, 0] = CLS
    parts = draw.integers(0, segments, len(lengths), longest).sort(1).values
    return ids.masked_fill(~mask, PAD), parts.masked_fill(~mask, 0), mask


def two_scores(got, what="the result (mlm scores, nsp scores)"):
    return [expectations.tensor(one, what="a score") for one in expectations.pair(got, what=what)]


def same_gradient_flow(mine, theirs, names, case=""):
    """Where the values are the reference's, so are the gradients."""
    if same_values(mine.value, theirs.value):
        arrive(mine, theirs, names, same=True, case=case)


# --------------------------------------------------------------------------------------------
# MaskedLanguageHead
# --------------------------------------------------------------------------------------------


class Heads:
    """A student's head and the reference's, each on a table of its own with the same values."""

    def __init__(self, student, reference, draw, vocabulary=7, width=4, dtype=torch.float32):
        state = head_state(draw, vocabulary, width)
        self.state = {name: value.to(dtype) for name, value in state.items()}
        table = {"weight": self.state["token.weight"]}
        self.student, self.tables, self.heads = student, [], []
        for proxy in (student, reference):
            token = proxy.module(
                "nn.Embedding",
                state=table,
                dtype=dtype,
                num_embeddings=vocabulary,
                embedding_dim=width,
            )
            self.tables.append(token)
            self.heads.append(
                proxy.module("MaskedLanguageHead", token=token, state=self.state, dtype=dtype)
            )
        self.mine, self.theirs = self.heads

    def own(self, hidden_states, table):
        """What the head should say with the student's own gelu."""

        def scores(parts):
            state = self.state
            inner = hidden_states @ state["dense.weight"].T + state["dense.bias"]
            inner = alive(parts.proxy.gelu(inner))
            width = inner.shape[-1:]
            inner = F.layer_norm(inner, width, state["norm.weight"], state["norm.bias"], 1e-12)
            return inner @ table.T + state["bias"]

        return scores

    def same(self, hidden_states, case, got=None, want=None, table=None):
        got = self.mine(hidden_states) if got is None else got
        want = self.theirs(hidden_states) if want is None else want
        table = self.state["token.weight"] if table is None else table
        own = self.own(hidden_states, table)
        same_by_parts(self.student, got, want, own, what="the scores", case=case)


@exercise("MaskedLanguageHead")
def test_head_values(student, reference, draw):
    """norm(gelu(dense(h))) times the table, plus the bias, for every place of any shape."""
    for shape, vocabulary, width in [((1, 2), 3, 2), ((2, 3, 6), 9, 6), ((5,), 4, 5)]:
        heads = Heads(student, reference, draw, vocabulary, width)
        heads.same(draw.normal(*shape, scale=2.0), f"hidden states {shape}, V={vocabulary}")


@exercise("MaskedLanguageHead")
def test_head_parameters(student, draw):
    """The parameters are dense, norm, bias and the table that was given."""
    token = student.module("nn.Embedding", num_embeddings=7, embedding_dim=4)
    head = student.module("MaskedLanguageHead", token=token)
    names = {name: tuple(value.shape) for name, value in head_state(draw, 7, 4).items()}
    same_parameters(head, names)
    expectations.close(head.state()["bias"], torch.zeros(7), what="the bias of a new head")


@exercise("MaskedLanguageHead")
def test_head_tied(student, reference, draw):
    """The table is the very one of the embeddings: who changes it changes the scores."""
    heads = Heads(student, reference, draw, dtype=torch.float64)
    x = draw.normal(2, 4).double()
    heads.same(x, "before the table was changed")
    for table in heads.tables:
        table.step(torch.arange(7), lr=1.0)
    table = heads.tables[0].state()["weight"]
    heads.same(x, "a table that was changed after the head was made", table=table)


@hidden
@exercise("MaskedLanguageHead")
def test_head_gradients(student, reference, draw):
    """Gradients reach the hidden states, every parameter and the table, in float64."""
    heads = Heads(student, reference, draw, dtype=torch.float64)
    x = draw.normal(2, 3, 4).double().transpose(0, 1)
    seen, wanted = heads.mine.observe(x), heads.theirs.observe(x)
    heads.same(x, "strided float64 input", seen.value, wanted.value)
    names = {f"parameter {name}": name for name in heads.state}
    same_gradient_flow(seen, wanted, {"0": "the hidden states", **names})
    expectations.unchanged(seen)


@hidden
@exercise("MaskedLanguageHead")
def test_head_small_values(student, reference, draw):
    """The norm's eps is 1e-12: hidden states of order 1e-4 are scaled up like others."""
    heads = Heads(student, reference, draw, 6, 8, torch.float64)
    # Without a bias in the way the norm sees the small numbers themselves.
    state = {**heads.state, "dense.bias": torch.zeros(8, dtype=torch.float64)}
    heads.state = state
    heads.heads = []
    for proxy, token in zip((student, reference), heads.tables, strict=True):
        heads.heads.append(
            proxy.module("MaskedLanguageHead", token=token, state=state, dtype=torch.float64)
        )
    heads.mine, heads.theirs = heads.heads
    heads.same(draw.normal(3, 8, scale=1e-4).double(), "hidden states of order 1e-4")


# --------------------------------------------------------------------------------------------
# BertForPreTraining
# --------------------------------------------------------------------------------------------

SCORES = ("mlm scores", "nsp scores")


def own_scores(parts, model, *given):
    """What the student's own parts of a BertForPreTraining say, put together by the grader."""
    aside = parts.aside(model)
    states, pooled = expectations.pair(aside.method("bert", *given))
    return alive(aside.method("mlm", states)), alive(aside.method("nsp", pooled))


def same_scores(student, got, want, model, given, case):
    """Both scores are the reference's, or those of the student's own parts."""
    got = two_scores(got)
    for place, what in enumerate(SCORES):

        def own(parts, place=place):
            return own_scores(parts, model, *given)[place]

        same_by_parts(student, got[place], want[place], own, what=f"the {what}", case=case)


def pretrainers(student, reference, state, dtype=torch.float64, **changes):
    options = {**SMALL, **changes}
    return pair(student, reference, "BertForPreTraining", state, dtype, **options)


@exercise("BertForPreTraining")
def test_pretraining_values(student, reference, draw):
    """Scores for every token at every place, and two scores for the pair."""
    mine, theirs = pretrainers(student, reference, pretraining_state(draw), torch.float32)
    ids, *_ = sentence_batch(draw, [5, 5])
    same_scores(student, mine(ids), theirs(ids), mine, (ids,), "B=2, T=5, ids alone")


@exercise("BertForPreTraining")
def test_pretraining_segments_and_mask(student, reference, draw):
    """Segments and mask reach the encoder."""
    mine, theirs = pretrainers(student, reference, pretraining_state(draw))
    ids, parts, mask = sentence_batch(draw, [6, 3, 5])
    for given, case in [
        ((ids, parts), "segments given"),
        ((ids, None, mask), "a mask given"),
        ((ids, parts, mask), "segments and mask given"),
    ]:
        same_scores(student, mine(*given), theirs(*given), mine, given, case)


def own_head_ties(student):
    """Whether the student's own head keeps the table that it is given; if not, it is to blame."""
    parts = Parts(student)
    try:
        token = parts.proxy.module("nn.Embedding", num_embeddings=3, embedding_dim=2)
        head = parts.proxy.module("MaskedLanguageHead", token=token)
        return torch.equal(
            token.step(torch.arange(3), lr=1.0)["weight"], head.state()["token.weight"]
        )
    except (StudentError, Todo, KeyError):
        return True


@exercise("BertForPreTraining")
def test_pretraining_tied(student, draw):
    """One table serves the embeddings and the head, before and after a step of training."""
    state = pretraining_state(draw)
    mine = student.module("BertForPreTraining", state=state, dtype=torch.float64, **SMALL)
    ids, *_ = sentence_batch(draw, [4, 4])
    names = mine.parameters()
    expectations.true(
        "bert.embeddings.token.weight" in names,
        "The model has no parameter called bert.embeddings.token.weight.",
    )
    if not own_head_ties(student):
        return
    expectations.true(
        "mlm.token.weight" not in names,
        "The head has a table of its own; give it the model's own bert.embeddings.token.",
    )
    same_parameters(
        mine,
        {name: tuple(value.shape) for name, value in state.items() if name != "mlm.token.weight"},
    )
    after = mine.step(ids, lr=0.1)
    table = after["bert.embeddings.token.weight"]
    expectations.close(after["mlm.token.weight"], table, what="the head's table after a step")
    expectations.true(
        bool((table - state["mlm.token.weight"].double()).abs().max() > 1e-9),
        "A step of training leaves the table as it was.",
    )


@hidden
@exercise("BertForPreTraining")
def test_pretraining_gradients(student, reference, draw):
    """Every parameter gets its gradient, the table from both of its uses."""
    state = pretraining_state(draw)
    mine, theirs = pretrainers(student, reference, state)
    given = sentence_batch(draw, [4, 6, 2])
    seen, wanted = mine.observe(*given), theirs.observe(*given)
    same_scores(student, seen.value, wanted.value, mine, given, "a padded batch in float64")
    names = [
        name for name in state if name != "mlm.token.weight" and not name.endswith("k_proj.bias")
    ]
    if own_head_ties(student):
        same_gradient_flow(seen, wanted, {f"parameter {name}": name for name in names})
    expectations.unchanged(seen)


@hidden
@exercise("BertForPreTraining")
def test_pretraining_sizes(student, reference, draw):
    """Layers, heads, widths, positions and segments are as many as asked for; dropout acts."""
    sizes_ = {
        "vocab_size": 9,
        "hidden": 6,
        "num_layers": 2,
        "num_heads": 3,
        "intermediate": 5,
        "max_length": 4,
        "segments": 3,
    }
    state = pretraining_state(draw, **sizes_)
    mine, theirs = pretrainers(student, reference, state, **sizes_, dropout=0.5)
    given = sentence_batch(draw, [4, 3], segments=3, vocabulary=9)
    same_scores(student, mine(*given), theirs(*given), mine, given, "2 layers of 3 heads")
    ids = given[0][:1].expand(8, -1)
    # Of 8 equal rows of 4 places dropout does the same in all with a chance of less than 1e-9.
    noisy, _ = two_scores(mine.train()(ids))
    expectations.true(
        bool((noisy - noisy[:1]).abs().max() > 1e-9),
        "In train mode with dropout=0.5 equal rows get equal scores; pass dropout on.",
        misconception="pretraining_dropout_lost",
    )


# --------------------------------------------------------------------------------------------
# pretraining_loss
# --------------------------------------------------------------------------------------------


def loss_inputs(draw, batch, length, vocabulary, kept=0.4, dtype=torch.float64):
    """Random scores, labels of which a share is not IGNORE, and which pairs are random."""
    marks = draw.integers(0, vocabulary, batch, length)
    marks = torch.where(draw.uniform(batch, length) < kept, marks, IGNORE)
    marks[0, 0] = SPECIAL % vocabulary
    marks[-1, -1] = IGNORE
    return (
        draw.normal(batch, length, vocabulary, scale=2.0).to(dtype),
        draw.normal(batch, 2, scale=2.0).to(dtype),
        marks,
        draw.integers(0, 2, batch),
    )


def same_pretraining_loss(student, reference, given, case):
    """Value and gradients are right; the inputs are left alone."""
    seen = student.observe("pretraining_loss", *given)
    wanted = reference.observe("pretraining_loss", *given)
    expectations.close(seen.value, wanted.value, what="the loss", case=case)
    for label, words in (("0", "the mlm scores"), ("1", "the nsp scores")):
        got, want = seen.grads.get(label), wanted.grads[label]
        if want is None or not bool(want.abs().max() > 0):
            expectations.true(
                got is None or not bool((got != 0).any()),  # NaN is not 0 either
                f"the gradient of {words} should be 0 for {case}.",
            )
            continue
        expectations.true(
            got is not None,
            f"No gradient reaches {words}; look for detach(), .data, .item() or no_grad().",
        )
        expectations.close(got, want, what=f"the gradient of {words}", case=case)
    expectations.unchanged(seen)


@exercise("pretraining_loss")
def test_loss_values(student, reference, draw):
    """The mean over the masked places plus the mean over the pairs."""
    for batch, length, vocabulary in [(1, 1, 3), (2, 3, 6), (4, 5, 9)]:
        given = loss_inputs(draw, batch, length, vocabulary, dtype=torch.float32)
        given[2][0, 0] = 1
        case = sizes(B=batch, T=length, V=vocabulary)
        got, want = student.pretraining_loss(*given), reference.pretraining_loss(*given)
        expectations.close(got, want, what="the loss", case=case)


@exercise("pretraining_loss")
def test_loss_class_zero(student, reference, draw):
    """A true pair, class 0, counts like a random one: in the mean and in the gradient."""
    for is_random in ([0, 0, 0], [0, 1, 0]):
        given = loss_inputs(draw, 3, 4, 7)[:3]
        case = f"is_random={is_random}"
        same_pretraining_loss(student, reference, (*given, torch.tensor(is_random)), case)


@exercise("pretraining_loss")
def test_loss_nothing_masked(student, reference, draw):
    """Without a masked place the loss is that of the pairs alone, and no gradient is NaN."""
    for batch in (1, 3):
        mlm, nsp, marks, is_random = loss_inputs(draw, batch, 4, 7)
        given = (mlm, nsp, torch.full_like(marks, IGNORE), is_random)
        same_pretraining_loss(student, reference, given, f"B={batch} and no masked place")


@hidden
@exercise("pretraining_loss")
def test_loss_gradients(student, reference, draw):
    """Gradients at masked places only; the id 0 is a label like others; rows count by place."""
    mlm, nsp, marks, is_random = loss_inputs(draw, 4, 6, 8)
    marks[1] = torch.tensor([0, 0, IGNORE, 0, 3, 0])
    marks[2] = IGNORE
    given = (mlm.mT.contiguous().mT, nsp, marks, is_random)
    same_pretraining_loss(student, reference, given, "a row of zeros, a row without masked places")


@hidden
@exercise("pretraining_loss")
def test_loss_extremes(student, reference, draw):
    """Scores in the thousands overflow nothing."""
    mlm, nsp, marks, is_random = loss_inputs(draw, 3, 3, 5)
    given = (1000 * mlm, 1000 * nsp, marks, is_random)
    same_pretraining_loss(student, reference, given, "scores times 1000")


# --------------------------------------------------------------------------------------------
# pretraining_step
# --------------------------------------------------------------------------------------------

NUMBERS = ("loss", "mlm", "nsp", "norm")


def step_batch(draw, lengths):
    """A batch to train on: ids, segments, mask, labels, is_random."""
    ids, parts, mask = sentence_batch(draw, lengths)
    marks = torch.where(mask & (draw.uniform(*ids.shape) < 0.5), ids, IGNORE)
    marks[0, 1] = ids[0, 1]
    return ids, parts, mask, marks, draw.integers(0, 2, len(lengths))


def step_of(proxy, model, batch, rate, *clip):
    """The four numbers of one step; the batch must stay as it was."""
    got = proxy.training("pretraining_step", model, *batch, rate, *clip)
    expectations.true(
        isinstance(got, dict),
        f"the result should be a dict, but is a {expectations.type_name(got)}.",
    )
    missing = sorted(set(NUMBERS) - set(got))
    expectations.true(not missing, f"the result has no entry {', '.join(missing)}.")
    extra = sorted(set(map(str, got)) - set(NUMBERS))
    expectations.true(not extra, f"the result has other entries than the four: {', '.join(extra)}.")
    mutated = {label.split(".")[0] for label in proxy.transcript[-1].outcome["mutated"]}
    expectations.true(not mutated, "your pretraining_step changes the batch in place.")
    return got


def _same_numbers(got, wanted):
    """A step that says what the reference's says needs no model or loss to excuse it."""
    return all(
        isinstance(got[name], float)
        and abs(got[name] - wanted[name]) <= 2e-5 * max(1.0, abs(wanted[name]))
        for name in NUMBERS
    )


class Trainees:
    """A student's small BertForPreTraining and the reference's, with the same parameters.

    A step answers for nobody's model and nobody's loss: where either says something else than the
    reference's, `right` is False, and the student's own gradient is measured by differences.
    """

    def __init__(self, student, reference, draw, **changes):
        self.student, self.reference, self.draw = student, reference, draw
        self.state = {
            name: value.double() for name, value in pretraining_state(draw, **changes).items()
        }
        self.options = {**SMALL, **changes}
        self.mine, self.theirs = pretrainers(student, reference, self.state, **changes)
        self._right: bool | None = None

    def right(self, batch):
        """Whether the student's model and loss are the reference's.

        Asked once: whatever runs the model without training would clear old gradients, which a
        step has to do itself.
        """
        if self._right is None:
            self._right = self._same_losses(batch)
        return self._right

    def _same_losses(self, batch):
        # The reference is asked the same things whatever the student's code answers.
        wanted = self.theirs(*batch[:3])
        loss = self.reference.observe("pretraining_loss", *wanted, *batch[3:])
        parts = Parts(self.student)
        aside = parts.aside(self.mine)
        if "mlm.token.weight" in aside.parameters() or not all(
            map(expectations.close_enough, two_scores(aside(*batch[:3])), wanted)
        ):
            return False
        said = parts.proxy.observe("pretraining_loss", *wanted, *batch[3:])
        return expectations.close_enough(
            expectations.tensor(said.value, what="the loss"), loss.value
        ) and all(
            said.grads.get(label) is not None
            and expectations.close_enough(said.grads[label], gradient)
            for label, gradient in loss.grads.items()
            if gradient is not None
        )

    def loss_at(self, state, batch):
        """The student's loss of the student's model with other parameters."""
        parts = Parts(self.student)
        model = parts.proxy.module(
            "BertForPreTraining", state=state, dtype=torch.float64, **self.options
        )
        return float(parts.proxy.pretraining_loss(*two_scores(model(*batch[:3])), *batch[3:]))

    def same(self, batch, rate, *clip, case, last=True):
        """One step is right: what it returns, and after the last what became of the parameters."""
        right = self.right(batch)
        before = None if right else self.mine.state()
        wanted = step_of(self.reference, self.theirs, batch, rate, *clip)
        got = step_of(self.student, self.mine, batch, rate, *clip)
        if not right and not (_same_numbers(got, wanted) and self._same_state()):
            self.same_by_differences(batch, rate, *clip, before=before, got=got, case=case)
            return
        for name in NUMBERS:
            same_number(got[name], wanted[name], what=f'"{name}"', case=case)
        if not last:
            return
        after, want = self.mine.state(), self.theirs.state()
        for name, value in want.items():
            expectations.shape(after.get(name), value.shape, f"the parameter {name}", case=case)
            expectations.true(
                expectations.close_enough(after[name], value, SLACK),
                f"the parameter {name} is wrong after the step for {case}: the largest difference "
                f"is {float((after[name] - value).abs().max()):.3g}.",
            )

    def _same_state(self):
        after, want = self.mine.state(), self.theirs.state()
        return all(
            name in after and expectations.close_enough(after[name], value, SLACK)
            for name, value in want.items()
        )

    def same_by_differences(self, batch, rate, clip=1.0, *, before, got, case):
        """What the parameters were changed by is the gradient of the student's own loss."""
        loss = self.loss_at(before, batch)
        if not math.isfinite(loss):
            return  # What could a step make of that?
        same_number(got["loss"], loss, what='"loss"', case=case)
        same_number(got["mlm"] + got["nsp"], loss, what='"mlm" plus "nsp"', case=case)
        after = self.mine.state()
        norm = got["norm"]
        same_number(norm, norm, what='"norm"', case=case)
        scale = rate * min(1.0, clip / max(norm, 1e-12))
        gradients = {name: (before[name] - after[name]) / scale for name in self.mine.parameters()}
        total = math.sqrt(sum(float((one**2).sum()) for one in gradients.values()))
        expectations.true(
            abs(total - norm) <= 1e-4 * max(1.0, total),
            f'what the step has changed does not fit its "norm" of {norm:.5g} for {case}.',
        )
        for _ in range(2):
            way = {name: self.draw.normal(*value.shape).double() for name, value in before.items()}
            if "mlm.token.weight" not in gradients:
                way["mlm.token.weight"] = way["bert.embeddings.token.weight"]
            up, down = (
                self.loss_at(
                    {name: value + sign * 1e-6 * way[name] for name, value in before.items()},
                    batch,
                )
                for sign in (1, -1)
            )
            slope = (up - down) / 2e-6
            said = sum(float((one * way[name]).sum()) for name, one in gradients.items())
            expectations.true(
                abs(slope - said) <= 1e-4 * max(1.0, abs(slope)),
                f"the parameters were not changed by the gradient of this batch for {case}.",
            )


@exercise("pretraining_step")
def test_step_numbers(student, reference, draw):
    """The losses and the norm of the gradient are those before the step, as floats."""
    models = Trainees(student, reference, draw)
    batch = step_batch(draw, [5, 3])
    right = models.right(batch)
    wanted = step_of(reference, models.theirs, batch, 0.1)
    got = step_of(student, models.mine, batch, 0.1)
    right = right or _same_numbers(got, wanted)
    case = "a batch of two rows, clip=1"
    for name in NUMBERS if right else ():
        same_number(got[name], wanted[name], what=f'"{name}"', case=case)
    loss = wanted["loss"] if right else models.loss_at(models.state, batch)
    if math.isfinite(loss):
        same_number(got["loss"], loss, what='"loss"', case=case)


@exercise("pretraining_step", weight=2)
def test_step_two_steps(student, reference, draw):
    """Without clipping every parameter loses rate times the gradient, of its own batch alone."""
    models = Trainees(student, reference, draw)
    for number, rate in enumerate((0.02, 0.05)):
        batch = step_batch(draw, [4, 6, 3])
        case = f"step {number + 1}, rate={rate}, no clipping"
        models.same(batch, rate, 1e6, case=case, last=number == 1)


@exercise("pretraining_step", weight=2)
def test_step_clipping(student, reference, draw):
    """A gradient longer than clip is scaled as a whole to that length; a shorter one is not."""
    models = Trainees(student, reference, draw)
    for clip in (0.3, 100.0):
        batch = step_batch(draw, [5, 4])
        models.same(batch, 0.5, clip, case=f"rate=0.5, clip={clip}", last=False)
    models.same(step_batch(draw, [3, 5]), 0.1, case="rate=0.1, clip as it is by default")


@hidden
@exercise("pretraining_step")
def test_step_without_gradient(student, reference, draw):
    """What the loss does not depend on has no gradient, and stays as it is."""
    models = Trainees(student, reference, draw)
    state = {"weight": draw.normal(3, 2), "bias": draw.normal(3)}
    for proxy, model in ((student, models.mine), (reference, models.theirs)):
        spare = proxy.module(
            "nn.Linear", state=state, dtype=torch.float64, in_features=2, out_features=3
        )
        model.method("add_module", "spare", spare)
    batch = step_batch(draw, [4, 4])
    right = models.right(batch)
    step_of(reference, models.theirs, batch, 0.2, 0.5)
    want = models.theirs.state()["nsp.weight"]
    step_of(student, models.mine, batch, 0.2, 0.5)
    after = models.mine.state()
    for name, value in state.items():
        expectations.close(
            after[f"spare.{name}"], value.double(), what=f"the {name} of a part that is not used"
        )
    if right:
        expectations.close(
            after["nsp.weight"], want, what="nsp.weight", case="a part that is not used"
        )


@hidden
@exercise("pretraining_step")
def test_step_nothing_masked(student, reference, draw):
    """A batch without masked places trains the pairs alone: "mlm" is 0, and nothing is NaN."""
    models = Trainees(student, reference, draw)
    ids, parts, mask, marks, is_random = step_batch(draw, [3, 4])
    batch = (ids, parts, mask, torch.full_like(marks, IGNORE), is_random)
    models.same(batch, 0.1, case="a batch without masked places")


@hidden
@exercise("pretraining_step")
def test_step_mode(student, reference, draw):
    """The model is used in the mode in which it comes: dropout acts in train mode only."""
    models = Trainees(student, reference, draw, dropout=0.5)
    batch = step_batch(draw, [6, 6])
    wanted = step_of(reference, models.theirs.eval(), batch, 0.0)
    got = step_of(student, models.mine.eval(), batch, 0.0)
    alike = _same_numbers(got, wanted)
    loss = wanted["loss"] if alike else models.loss_at(models.state, batch)
    if not math.isfinite(loss):
        return
    same_number(got["loss"], loss, what='"loss"', case="a model in eval mode")
    before = models.mine.train()(*batch[:3])
    got = step_of(student, models.mine.train(), batch, 0.0)
    works = not expectations.close_enough(before[0], models.mine.eval()(*batch[:3])[0])
    expectations.true(
        not works or abs(got["loss"] - loss) > 1e-9,
        "your pretraining_step switches dropout off; the mode of the model is the caller's "
        "business.",
    )


# --------------------------------------------------------------------------------------------
# pseudo_log_likelihood
# --------------------------------------------------------------------------------------------


def scorer(student, draw, dtype=torch.float64):
    """The student's own model, whose scores depend on every place."""
    state = pretraining_state(draw, num_layers=1, max_length=14)
    options = {**SMALL, "max_length": 14}
    return student.module("BertForPreTraining", state=state, dtype=dtype, **options)


def likelihood(student, model, ids):
    """The sum as the student's own model gives it, with one MASK at a time."""
    aside = Parts(student).aside(model)
    places = (ids >= SPECIAL).nonzero().flatten()
    rows = ids.repeat(len(places), 1)
    rows[torch.arange(len(places)), places] = MASK
    said = two_scores(aside(rows))[0].log_softmax(-1)
    return float(said[torch.arange(len(places)), places, ids[places]].double().sum())


def same_likelihood(student, model, ids, case):
    seen = student.observe("pseudo_log_likelihood", model, ids, grad=False)
    wanted = likelihood(student, model, ids)
    same_number(seen.value, wanted, what="the pseudo-log-likelihood", case=case)
    expectations.unchanged(seen)


def sentence(*ids):
    return torch.tensor([CLS, *ids, SEP])


@exercise("pseudo_log_likelihood")
def test_likelihood_one(student, draw):
    """A single token between CLS and SEP: its log-probability where MASK stands for it."""
    model = scorer(student, draw)
    for token in (7, 10):
        same_likelihood(student, model, sentence(token), f"the ids {sentence(token).tolist()}")


@exercise("pseudo_log_likelihood")
def test_likelihood_values(student, draw):
    """Each token is masked alone, while all others are to be seen."""
    model = scorer(student, draw)
    for length in (2, 5):
        ids = sentence(*draw.integers(SPECIAL, 11, length).tolist())
        same_likelihood(student, model, ids, f"the ids {ids.tolist()}")


@exercise("pseudo_log_likelihood")
def test_likelihood_special(student, draw):
    """Special tokens are seen but not scored, wherever they stand."""
    model = scorer(student, draw)
    for ids in (sentence(6, 8, SEP, 5, 9), sentence(UNK, 7, MASK, 10)):
        same_likelihood(student, model, ids, f"the ids {ids.tolist()}")


@exercise("pseudo_log_likelihood")
def test_likelihood_refusals(student, draw):
    """An input without ordinary tokens is refused with a ValueError."""
    model = scorer(student, draw)
    refuses(
        student.pseudo_log_likelihood,
        {
            "CLS and SEP alone": (model, sentence()),
            "special tokens alone": (model, sentence(UNK, MASK)),
        },
    )


@hidden
@exercise("pseudo_log_likelihood")
def test_likelihood_long(student, draw):
    """Long inputs, repeated tokens, without special ones, in float32; the model stays."""
    model = scorer(student, draw, torch.float32)
    before = model.state()
    ids = draw.integers(SPECIAL, 11, 14)
    ids[3:6] = ids[2]
    same_likelihood(student, model, ids, "14 ids without special ones")
    for name, value in model.state().items():
        expectations.close(value, before[name], what=f"the parameter {name} afterwards")


# --------------------------------------------------------------------------------------------
# SequenceClassifier, SpanFinder, Tagger: what they share
# --------------------------------------------------------------------------------------------


def task_pair(student, reference, draw, name, outputs, dtype=None, named=True, **more):
    """A model for a task on a small BERT, the student's on the student's, and its state.

    `more` goes to the task's model, but for the sizes of the BERT.
    """
    sizes_of = {key: more.pop(key) for key in ("width", "length") if key in more}
    options = bert_options(**sizes_of)
    state = bert_state(draw, options, "bert.")
    state |= linear(draw, "classifier", outputs, options["hidden"])
    if named:
        more["num_labels"] = outputs
    made = []
    for proxy in (student, reference):
        bert = proxy.module("BertModel", **options)
        given = {key: value.to(dtype) for key, value in state.items()} if dtype else state
        made.append(proxy.module(name, bert=bert, state=given, dtype=dtype, **more))
    return state, *made


def task_parameters(student, name, outputs, **more):
    """The task's model has the parameters of its BERT and a classifier, and no others."""
    bert = student.module("BertModel", **bert_options())
    mine = student.module(name, bert=bert, **more)
    own = {key: tuple(shape) for key, shape in bert.parameters().items()}
    expected = {f"bert.{key}": shape for key, shape in own.items()}
    same_parameters(
        mine, {**expected, "classifier.weight": (outputs, 6), "classifier.bias": (outputs,)}
    )


def cross_entropy_case(draw, *shape):
    """Scores and labels for a loss."""
    return draw.normal(*shape, scale=2).double(), draw.integers(0, shape[-1], *shape[:-1])


def same_loss(mine, theirs, given, case):
    """The loss is the reference's, with its gradient; a scalar, and no input is changed."""
    seen, wanted = (handle.observe_method("loss", *given) for handle in (mine, theirs))
    expectations.close(seen.value, wanted.value, what="the loss", case=case)
    for label, words in [("0", "the first argument"), ("1", "the second argument")]:
        want = wanted.grads.get(label)
        if want is not None and bool(want.abs().max() > 0):
            got = seen.grads.get(label)
            expectations.true(got is not None, f"No gradient of the loss reaches {words}.")
            expectations.close(got, want, what=f"the gradient of {words}", case=case)
        elif seen.grads.get(label) is not None:
            expectations.finite(seen.grads[label], what=f"the gradient of {words}", case=case)
    expectations.unchanged(seen, "your loss")


# --------------------------------------------------------------------------------------------
# SequenceClassifier
# --------------------------------------------------------------------------------------------


def classify_by_parts(parts, mine, *given):
    return parts.of(mine, "classifier")(parts.of(mine, "bert")(*given)[1])


@exercise("SequenceClassifier", 2)
def test_classifier_values(student, reference, draw):
    """Scores are a linear function of the pooled vector; segments and mask reach the BERT."""
    _, mine, theirs = task_pair(student, reference, draw, "SequenceClassifier", 3)
    ids, segments, mask = inputs(draw, [4, 2])
    for words, given in {
        "one sentence without padding": (ids[:1],),
        "a pair with segment ids": (ids[:1], segments[:1]),
        "B=2, lengths 4 and 2": (ids, segments, mask),
    }.items():
        same_by_parts(
            student,
            mine(*given),
            theirs(*given),
            lambda parts, given=given: classify_by_parts(parts, mine, *given),
            "the scores",
            case=f"{words}, L=3, in eval mode",
        )


@exercise("SequenceClassifier")
def test_classifier_loss(student, reference, draw):
    """The loss is the mean cross-entropy."""
    _, mine, theirs = task_pair(student, reference, draw, "SequenceClassifier", 3)
    for batch in (1, 4):
        given = cross_entropy_case(draw, batch, 3)
        same_loss(mine, theirs, given, f"labels {given[1].tolist()}")


@exercise("SequenceClassifier")
def test_classifier_parameters(student):
    """A BERT, and a classifier with as many outputs as there are labels."""
    task_parameters(student, "SequenceClassifier", 4, num_labels=4)


@hidden
@exercise("SequenceClassifier")
def test_classifier_dropout(student, reference, draw):
    """In train mode dropout acts on the pooled vector, with 0.1 unless told otherwise."""
    for p in (0.1, 0.5):
        more = {} if p == 0.1 else {"dropout": p}
        task_dropout(student, draw, "SequenceClassifier", (40,), 1, p, **more)


def task_dropout(student, draw, name, shape, place, p, **more):
    """dropout in front of the classifier: with a classifier that passes on what it gets."""
    options = bert_options(width=16)
    state = bert_state(draw, options, "bert.")
    state["classifier.weight"], state["classifier.bias"] = torch.eye(16), torch.ones(16)
    bert = student.module("BertModel", **options)
    mine = student.module(name, bert=bert, num_labels=16, state=state, **more)
    ids = draw.integers(SPECIAL, 9, *(shape if len(shape) == 2 else (*shape, 3)))
    kept = expectations.items(mine.method("bert", ids), 2, what="the result of bert")[place]
    what = ("the hidden states", "the pooled vector")[place]
    kept = expectations.tensor(kept, what=what)
    expectations.close(mine(ids), kept + 1, what="the scores", case="eval mode")
    value = expectations.tensor(mine.train()(ids), what="the scores")
    dropped(value - 1, kept, p, what)


@hidden
@exercise("SequenceClassifier")
def test_classifier_gradients(student, reference, draw):
    """Fine-tuning trains all of it: gradients reach every parameter, in float64."""
    _, mine, theirs = task_pair(student, reference, draw, "SequenceClassifier", 2, torch.float64)
    given = inputs(draw, [3, 5])
    flows(
        student,
        mine,
        theirs,
        given,
        lambda parts: classify_by_parts(parts, mine, *given),
        "the scores",
        "lengths 3 and 5, float64",
    )


# --------------------------------------------------------------------------------------------
# SpanFinder
# --------------------------------------------------------------------------------------------

ENDS = ("start scores", "end scores")


def spans_by_parts(parts, mine, *given):
    scores = parts.of(mine, "classifier")(parts.of(mine, "bert")(*given)[0])
    if len(given) > 2:
        least = torch.finfo(scores.dtype).min
        scores = scores.masked_fill(~given[2].unsqueeze(-1), least)
    return scores[..., 0], scores[..., 1]


def same_spans(student, got, want, mask, own, case):
    """Scores at real tokens are the reference's, those at padding the smallest number there is.

    They are compared apart: beside that number every score is small.
    """
    expectations.items(got, 2, what=f"the result ({', '.join(ENDS)})")
    for name, actual, expected in zip(ENDS, got, want, strict=True):
        expectations.shape(actual, expected.shape, what=f"the {name}", case=case)
        expectations.true(
            actual.dtype == expected.dtype and bool((actual[~mask] == expected[~mask]).all()),
            f"the {name} at padded places should be {expected[~mask][0]:.4g}, the smallest number "
            f"of their dtype, but are {actual[~mask].tolist()[:4]} for {case}.",
        )
    same_by_parts(
        student,
        tuple(each[mask] for each in got),
        tuple(each[mask] for each in want),
        lambda parts: tuple(each[mask] for each in own(parts)),
        ENDS,
        case=case,
    )


@exercise("SpanFinder", 2)
def test_spans_values(student, reference, draw):
    """Every position gets a score as the start and one as the end."""
    _, mine, theirs = task_pair(student, reference, draw, "SpanFinder", 2, named=False)
    ids, segments, _ = inputs(draw, [5, 5])
    for words, given in {
        "one sentence": (ids[:1],),
        "B=2, T=5 with segment ids": (ids, segments),
    }.items():
        same_by_parts(
            student,
            mine(*given),
            theirs(*given),
            lambda parts, given=given: spans_by_parts(parts, mine, *given),
            ENDS,
            case=f"{words}, no mask",
        )


@exercise("SpanFinder")
def test_spans_padding(student, reference, draw):
    """With a mask, padded places get the smallest finite number, and nothing leaks from them."""
    for dtype in (torch.float32, torch.float64):
        _, mine, theirs = task_pair(
            student, reference, draw, "SpanFinder", 2, dtype=dtype, named=False
        )
        given = inputs(draw, [2, 4, 3])
        # With gradients, by which a mask that does not reach the BERT is known from others.
        seen, wanted = mine.observe(*given), theirs.observe(*given)
        same_spans(
            student,
            seen.value,
            wanted.value,
            given[2],
            lambda parts, given=given, mine=mine: spans_by_parts(parts, mine, *given),
            f"lengths 2, 4 and 3, {str(dtype).removeprefix('torch.')}",
        )
        expectations.unchanged(seen)


def span_scores(draw, batch, length, padded=0):
    """Scores of starts and ends, in float64, the smallest number at padding."""
    scores = draw.normal(2, batch, length, scale=2).double()
    if padded:
        scores[:, 0, -padded:] = torch.finfo(torch.float64).min
    return scores[0], scores[1]


@exercise("SpanFinder", 2)
def test_spans_loss(student, reference, draw):
    """Half the sum of two cross-entropies over positions, each a mean over the batch."""
    _, mine, theirs = task_pair(student, reference, draw, "SpanFinder", 2, named=False)
    for batch, length in [(1, 3), (4, 6)]:
        starts = draw.integers(0, length - 1, batch)
        ends = starts + 1
        given = (*span_scores(draw, batch, length, padded=0), starts, ends)
        case = f"T={length}, starts {starts.tolist()}, ends {ends.tolist()}"
        same_loss(mine, theirs, given, case)


@hidden
@exercise("SpanFinder", 2)
def test_spans_cut_off(student, reference, draw):
    """Targets beyond the input are left out of the mean; none left is a loss of 0."""
    _, mine, theirs = task_pair(student, reference, draw, "SpanFinder", 2, named=False)
    for starts, ends in [
        ([2, 4, 1], [3, 5, 2]),
        ([0, 2, 3], [1, 4, 90]),
        ([3, IGNORE, 0], [-1, 2, 0]),
        ([4, 5, -1], [1, 2, 3]),
        ([4, 7, -1], [6, 4, 4]),
    ]:
        scores = (each.float() for each in span_scores(draw, 3, 4))
        given = (*scores, torch.tensor(starts), torch.tensor(ends))
        same_loss(mine, theirs, given, f"T=4, starts {starts}, ends {ends}")
    given = (*span_scores(draw, 2, 5, padded=2), torch.tensor([1, 4]), torch.tensor([2, 4]))
    same_loss(mine, theirs, given, "two padded places in the first row")


@hidden
@exercise("SpanFinder")
def test_spans_gradients(student, reference, draw):
    """Gradients reach every parameter that has a part in it, in float64; nothing is dropped."""
    state, mine, theirs = task_pair(
        student, reference, draw, "SpanFinder", 2, torch.float64, named=False
    )
    given = inputs(draw, [4, 4])[:2]
    flows(
        student,
        mine.train(),
        theirs,
        given,
        lambda parts: spans_by_parts(parts, mine, *given),
        ENDS,
        "T=4, float64, in train mode on a BERT without dropout",
    )
    same_names = {name: tuple(value.shape) for name, value in state.items()}
    same_parameters(mine, same_names)


# --------------------------------------------------------------------------------------------
# best_span
# --------------------------------------------------------------------------------------------


def same_span(student, reference, given, case, **more):
    got = expectations.items(student.best_span(*given, **more), 2, what="the span (i, j)")
    want = reference.best_span(*given, **more)
    for value in got:
        expectations.true(
            isinstance(value, int) and not isinstance(value, bool),
            f"the span should be two ints, but has a {expectations.type_name(value)} for {case}"
            + ("; .item() makes an int." if isinstance(value, torch.Tensor) else "."),
        )
    case += "".join(f", {key}={value:.4g}" for key, value in more.items())
    expectations.true(
        tuple(got) == tuple(want), f"the span should be {want}, but is {tuple(got)} for {case}."
    )


def question(draw, length, before, after=1, scale=2.0):
    """Scores of starts and ends, and a passage that begins at `before`; [SEP] behind it."""
    passage = torch.zeros(length, dtype=torch.bool)
    passage[before : length - after] = True
    start, end = draw.normal(2, length, scale=scale).unbind()
    return start, end, passage


@exercise("best_span", 2)
def test_best_span_small(student, reference):
    """The best sum of a start and an end that is not before it."""
    for start, end in [
        ([0.0, 0.0, 3.0], [0.0, 0.0, 1.0]),
        ([0.0, 1.0, 2.0, 4.0], [0.0, 5.0, 3.0, 1.0]),
        ([0.0, 3.0, 1.0, 2.0], [0.0, -1.0, 0.5, 2.0]),
        ([0.0, -3.0, -1.0, -2.0], [0.0, -4.0, -5.0, -2.5]),
        ([-9.0, 1.0, 5.0, 4.5, 0.0], [-9.0, 4.0, -9.0, 0.0, 0.2]),
    ]:
        passage = torch.tensor([False] + [True] * (len(start) - 1))
        case = f"start {start}, end {end}, where all but the first belong to the passage"
        same_span(student, reference, (torch.tensor(start), torch.tensor(end), passage), case)


@exercise("best_span", 2)
def test_best_span_passage(student, reference, draw):
    """Both ends lie in the passage, however high the scores are elsewhere."""
    for length, before, after in [(5, 2, 1), (9, 4, 2), (12, 3, 5)]:
        for _ in range(4):
            start, end, passage = question(draw, length, before, after)
            start[~passage] += 3.0
            end[~passage] += 3.0
            case = f"T={length}, passage from {before} to {length - after - 1}"
            same_span(student, reference, (start, end, passage), case)
    least = torch.finfo(torch.float32).min
    start, end, passage = question(draw, 8, 3, 2)
    start[6:], end[6:] = least, least
    same_span(student, reference, (start, end, passage), "T=8, the last two places padding")


@exercise("best_span")
def test_best_span_limit(student, reference, draw):
    """An answer has at most max_answer tokens."""
    start, end = torch.zeros(2, 12).unbind()
    start[2], start[6], end[3], end[10] = 5.0, 4.0, 3.0, 6.0
    passage = torch.arange(12) > 1
    same_span(student, reference, (start, end, passage), "T=12", max_answer=2)
    for limit in (1, 2, 3, 5):
        for _ in range(4):
            given = question(draw, 12, 3)
            same_span(student, reference, given, "T=12", max_answer=limit)


@exercise("best_span")
def test_best_span_refusals(student, reference, draw):
    """A passage without tokens and a max_answer below 1 are refused with a ValueError."""
    start, end, passage = question(draw, 5, 2)
    refuses(
        lambda *given: student.best_span(*given),
        {
            "a passage without any True": (start, end, torch.zeros(5, dtype=torch.bool)),
            "max_answer=0": (start, end, passage, 0),
        },
    )
    same_span(student, reference, (start, end, passage), "T=5", max_answer=1)


@hidden
@exercise("best_span", 2)
def test_best_span_null(student, reference, draw):
    """No answer is (0, 0): if the score of [CLS] beats the best span by more than the threshold."""
    for threshold in (1.0, -1.0):
        for above in (-1.5, -6.0, -0.5, 0.0, 0.5):
            same_null(student, reference, draw, threshold, above)


@hidden
@exercise("best_span")
def test_best_span_null_at_zero(student, reference, draw):
    """A threshold of 0 is one; without a threshold there always is an answer."""
    for above in (0.5, 0.0, -0.5):
        given = same_null(student, reference, draw, 0.0, above)
        same_span(student, reference, given, f"a [CLS] that is {above:g} better")


def same_null(student, reference, draw, threshold, above):
    """[CLS] is better than the best span by the threshold and as much as `above`."""
    # Integers and halves: sums and differences are exact.
    start, end = draw.integers(-8, 9, 2, 7).float().unbind()
    passage = torch.tensor([False, False, True, True, True, True, False])
    first, last = reference.best_span(start, end, passage)
    # start[0] alone is worth more, or less, than both together.
    start[0] = 40.0 if above < 0 else -40.0
    end[0] = start[first] + end[last] + threshold + above - start[0]
    case = f"a [CLS] that is {threshold + above:g} better than the best span"
    same_span(student, reference, (start, end, passage), case, null_threshold=threshold)
    return start, end, passage


@hidden
@exercise("best_span", 2)
def test_best_span_ties(student, reference, draw):
    """Of equal spans the first start counts, then the first end; 30 tokens at most by default."""
    for _ in range(8):
        start, end = draw.integers(0, 2, 2, 9).float().unbind()
        passage = draw.mask(9, keep=0.7)
        case = f"start {start.tolist()}, end {end.tolist()}, passage {passage.int().tolist()}"
        same_span(student, reference, (start, end, passage), case, max_answer=4)
    for place in (31, 32, 33):
        start, end, passage = question(draw, 45, 2, scale=0.1)
        start[3], end[place], end[10] = 9.0, 9.0, 3.0
        same_span(student, reference, (start, end, passage), f"the best end {place - 2} tokens on")
    start, end, passage = question(draw, 6, 2)
    seen = student.observe("best_span", start.double(), end.double(), passage, grad=False)
    expectations.items(seen.value, 2, what="the span (i, j)")
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# align_labels, word_tags
# --------------------------------------------------------------------------------------------

WORDS = [None, 0, 1, 1, 2, 3, 3, 3, None]


def same_labels(student, reference, given, words, what="the list of labels", **more):
    case = f"word_ids {words}"
    expectations.equal(
        student.align_labels(given, words), reference.align_labels(given, words), what, case=case
    )


@exercise("align_labels")
def test_align_whole(student, reference):
    """A word that is one token keeps its label; [CLS] and [SEP] have none."""
    same_labels(student, reference, [3], [0])
    same_labels(student, reference, [2, 5, 0], [None, 0, 1, 2, None])


@exercise("align_labels", 2)
def test_align_pieces(student, reference):
    """Of a word in pieces the first has the label, the others IGNORE."""
    same_labels(student, reference, [4, 2], [None, 0, 0, 1, None])
    same_labels(student, reference, [1, 7, 0, 2], WORDS)
    same_labels(student, reference, [5, 5, 5], [None, 0, 1, 1, 2, None])


@exercise("align_labels")
def test_align_refusals(student, reference):
    """A word without a label is refused with a ValueError."""
    same_labels(student, reference, [1, 2, 3], [None, 0, 1, 2, None])
    refuses(
        lambda *given: student.align_labels(*given),
        {
            "word 2 with two labels": ([1, 2], [None, 0, 1, 2, None]),
            "word 0 without labels": ([], [None, 0, None]),
        },
    )


@hidden
@exercise("align_labels")
def test_align_many(student, reference, draw):
    """Longer inputs, words that were cut off or left out, padding; the lists stay as they are."""
    for _ in range(4):
        counts = draw.integers(1, 4, 7).tolist()
        words = [None] + [word for word, count in enumerate(counts) for _ in range(count)]
        given = draw.integers(0, 4, 9).tolist()
        same_labels(student, reference, given, [*words, None, None])
        same_labels(student, reference, given, words[4:])
    same_labels(student, reference, [1, 2], [None, None])
    seen = student.observe("align_labels", [1, 2], [None, 0, 1, 1], grad=False)
    expectations.equal(seen.value, [IGNORE, 1, 2, IGNORE], what="the list of labels")
    expectations.unchanged(seen)


def same_tags(student, reference, scores, words):
    want = reference.word_tags(scores, words)
    got = student.word_tags(scores, words)
    expectations.equal(got, want, what="the list of tags", case=f"word_ids {words}")


@exercise("word_tags")
def test_tags_whole(student, reference, draw):
    """One tag for each word, and none for [CLS] and [SEP]."""
    same_tags(student, reference, draw.normal(1, 3), [0])
    for _ in range(3):
        same_tags(student, reference, draw.normal(5, 4), [None, 0, 1, 2, None])


@exercise("word_tags", 2)
def test_tags_pieces(student, reference, draw):
    """The first token of a word decides."""
    for _ in range(4):
        same_tags(student, reference, draw.normal(9, 5), WORDS)


@aspect
@exercise("word_tags")
def test_tags_same(student, reference, draw):
    """Two words in a row may have one tag."""
    scores = draw.normal(6, 3)
    scores[:, 1] += 9.0
    same_tags(student, reference, scores, [None, 0, 1, 1, 2, None])


@hidden
@exercise("word_tags")
def test_tags_many(student, reference, draw):
    """Longer inputs, more tags than tokens, no words at all; the scores stay as they are."""
    for _ in range(3):
        counts = draw.integers(1, 4, 6).tolist()
        words = [None] + [word for word, count in enumerate(counts) for _ in range(count)] + [None]
        same_tags(student, reference, draw.normal(len(words), 40).double(), words)
        same_tags(student, reference, draw.normal(len(words) - 3, 3), words[3:])
    same_tags(student, reference, draw.normal(2, 3), [None, None])
    seen = student.observe("word_tags", draw.normal(3, 4).mT.contiguous().mT, [None, 0, 1])
    expectations.true(isinstance(seen.value, list), "the tags should be a list.")
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# Tagger
# --------------------------------------------------------------------------------------------


def tag_by_parts(parts, mine, *given):
    return parts.of(mine, "classifier")(parts.of(mine, "bert")(*given)[0])


@exercise("Tagger", 2)
def test_tagger_values(student, reference, draw):
    """Every position gets a score for each label; segments and mask reach the BERT."""
    _, mine, theirs = task_pair(student, reference, draw, "Tagger", 3)
    ids, segments, mask = inputs(draw, [4, 2])
    for words, given in {
        "one sentence without padding": (ids[:1],),
        "with segment ids": (ids[:1], segments[:1]),
        "B=2, lengths 4 and 2": (ids, segments, mask),
    }.items():
        same_by_parts(
            student,
            mine(*given),
            theirs(*given),
            lambda parts, given=given: tag_by_parts(parts, mine, *given),
            "the scores",
            case=f"{words}, L=3, in eval mode",
        )


@exercise("Tagger", 2)
def test_tagger_loss(student, reference, draw):
    """The mean cross-entropy of the tokens with a label; without any it is 0."""
    _, mine, theirs = task_pair(student, reference, draw, "Tagger", 3)
    scores, targets = cross_entropy_case(draw, 2, 4, 3)
    ignored = targets.clone()
    ignored[0, 0] = ignored[1, 2:] = IGNORE
    for given in (targets[:1, :1], targets, ignored):
        case = f"labels {given.tolist()}"
        same_loss(mine, theirs, (scores[: len(given), : given.shape[1]], given), case)
    none = torch.full_like(targets, IGNORE)
    same_loss(mine, theirs, (scores.float(), none), "no label but IGNORE")


@exercise("Tagger")
def test_tagger_parameters(student):
    """A BERT, and a classifier with as many outputs as there are labels."""
    task_parameters(student, "Tagger", 4, num_labels=4)


@hidden
@exercise("Tagger")
def test_tagger_dropout(student, reference, draw):
    """In train mode dropout acts on the hidden states, with 0.1 unless told otherwise."""
    for p in (0.1, 0.5):
        more = {} if p == 0.1 else {"dropout": p}
        task_dropout(student, draw, "Tagger", (8, 5), 0, p, **more)


@hidden
@exercise("Tagger")
def test_tagger_gradients(student, reference, draw):
    """Gradients reach every parameter but the pooler's, in float64."""
    _, mine, theirs = task_pair(student, reference, draw, "Tagger", 2, torch.float64)
    given = inputs(draw, [3, 5])
    flows(
        student,
        mine,
        theirs,
        given,
        lambda parts: tag_by_parts(parts, mine, *given),
        "the scores",
        "lengths 3 and 5, float64",
    )


# --------------------------------------------------------------------------------------------
# What the tests of tagging, relatives and language models share
# --------------------------------------------------------------------------------------------


def lstm_state(draw, name, inputs, width, directions=("",)) -> State:
    """The parameters of an nn.LSTM of one layer; a direction is the end of their names."""
    state = {}
    for end in directions:
        state |= {
            f"{name}.weight_ih_l0{end}": draw.normal(4 * width, inputs, scale=0.8),
            f"{name}.weight_hh_l0{end}": draw.normal(4 * width, width, scale=0.8),
            f"{name}.bias_ih_l0{end}": draw.normal(4 * width, scale=0.5),
            f"{name}.bias_hh_l0{end}": draw.normal(4 * width, scale=0.5),
        }
    return state


def arriving_gradients(mine, theirs, names, case=""):
    """In float64: a gradient reaches each of `names`; it is right where the values are."""
    same = expectations.close_enough(
        expectations.tensor(mine.value, what="the result"), theirs.value
    )
    arrive(mine, theirs, names, same, case)


def parameters_of(state, without=()):
    """The labels of the gradients of a module's parameters."""
    return {f"parameter {name}": name for name in state if name not in without}


def at_real_places(got, want, mask, what, case):
    """Vectors (B, T, ...) agree at real places; what stands at padding is free."""
    expectations.shape(got, want.shape, what=what, case=case)
    for row, length in enumerate(mask.sum(dim=1).tolist()):
        expectations.close(
            got[row, :length],
            want[row, :length],
            what=f"{what} at the real places of row {row}",
            case=case,
        )


# --------------------------------------------------------------------------------------------
# crf_score
# --------------------------------------------------------------------------------------------


def crf_tables(draw, count, dtype=torch.float32):
    """Transitions (L, L), start (L,) and end (L,) scores."""
    sizes = (count, count), (count,), (count,)
    return tuple(draw.normal(*shape).to(dtype) for shape in sizes)


def crf_case(draw, lengths, count, longest=None, dtype=torch.float32):
    """Emissions, tags and a mask; what stands at padding is large and means nothing."""
    mask = real(lengths, longest)
    emissions = draw.normal(*mask.shape, count).to(dtype)
    emissions = torch.where(mask.unsqueeze(2), emissions, 7.0 + 30.0 * emissions)
    tags = draw.integers(0, count, *mask.shape).masked_fill(~mask, IGNORE)
    return emissions, tags, mask


def strided(*tensors):
    """The same values, laid out the other way round."""
    return tuple(value.mT.contiguous().mT for value in tensors)


def same_crf_score(student, reference, given, tables, case):
    arguments = (*given, *tables)
    expectations.close(
        student.crf_score(*arguments),
        reference.crf_score(*arguments),
        what="the scores",
        case=case,
    )


@exercise("crf_score")
def test_crf_score_values(student, reference, draw):
    """Start, emissions, transitions and end are added up."""
    for lengths, count in [([1], 2), ([2], 3), ([4, 4, 4], 3)]:
        case = f"B={len(lengths)}, T={lengths[0]}, L={count}, no padding"
        given, tables = crf_case(draw, lengths, count), crf_tables(draw, count)
        same_crf_score(student, reference, given, tables, case)


@exercise("crf_score")
def test_crf_score_transitions(student, reference):
    """Transitions are read from row to column, between real tokens only."""
    transitions = torch.tensor([[0.0, 1.0, 2.0], [4.0, 8.0, 16.0], [32.0, 64.0, 128.0]])
    nothing, mask = torch.zeros(3), real([2, 2, 3, 3], 3)
    tags = torch.tensor([[0, 1, 2], [1, 0, 0], [2, 0, 1], [1, 2, 0]])
    case = (
        f"transitions {transitions.tolist()}, tags {tags.tolist()}, rows of 2, 2, 3 and 3 real "
        "tokens, all else 0"
    )
    given = torch.zeros(4, 3, 3), tags, mask
    same_crf_score(student, reference, given, (transitions, nothing, nothing), case)


@exercise("crf_score", 2)
def test_crf_score_padding(student, reference, draw):
    """Nothing at padding counts, whatever the tags are there: IGNORE, or any other number."""
    for lengths, longest, filler in [([1, 3], 3, IGNORE), ([2, 4, 1], 5, IGNORE), ([3, 1], 4, 99)]:
        emissions, tags, mask = crf_case(draw, lengths, 3, longest)
        tags = tags.masked_fill(~mask, filler)
        case = f"lengths {lengths} of {longest}, tags at padding {filler}"
        same_crf_score(student, reference, (emissions, tags, mask), crf_tables(draw, 3), case)


@hidden
@exercise("crf_score")
def test_crf_score_gradients(student, reference, draw):
    """Gradients reach emissions and tables; strided float64 inputs are left as they were."""
    given = strided(*crf_case(draw, [3, 1, 4], 3, dtype=torch.float64))
    arguments = (*given, *crf_tables(draw, 3, torch.float64))
    seen = student.observe("crf_score", *arguments)
    wanted = reference.observe("crf_score", *arguments)
    case = "strided float64 inputs, lengths [3, 1, 4]"
    expectations.close(seen.value, wanted.value, what="the scores", case=case)
    names = {"0": "the emissions", "3": "the transitions"}
    names |= {"4": "the start scores", "5": "the end scores"}
    same_gradients(seen, wanted, names, case)
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# crf_partition
# --------------------------------------------------------------------------------------------


def same_partition(student, reference, emissions, mask, tables, case):
    got = student.crf_partition(emissions, mask, *tables)
    want = reference.crf_partition(emissions, mask, *tables)
    expectations.close(got, want, what="the result", case=case)


@exercise("crf_partition")
def test_crf_partition_values(student, reference, draw):
    """The logarithm of the sum over all tag sequences."""
    for lengths, count in [([1], 2), ([2], 2), ([4, 4], 3)]:
        emissions, _, mask = crf_case(draw, lengths, count)
        case = f"B={len(lengths)}, T={lengths[0]}, L={count}, no padding"
        same_partition(student, reference, emissions, mask, crf_tables(draw, count), case)


@exercise("crf_partition", 2)
def test_crf_partition_padding(student, reference, draw):
    """Each row ends at its own last real token, where its end scores are added."""
    for lengths, longest in [([1, 3], 3), ([2, 4, 1], 6)]:
        emissions, _, mask = crf_case(draw, lengths, 3, longest)
        case = f"lengths {lengths} of {longest}"
        same_partition(student, reference, emissions, mask, crf_tables(draw, 3), case)


@exercise("crf_partition")
def test_crf_partition_is_stable(student, reference, draw):
    """Scores of +-1000 neither overflow nor vanish."""
    transitions, *_ = crf_tables(draw, 3)
    nothing, mask = torch.zeros(3), real([3, 3, 2])
    signs = torch.tensor([1.0, -1.0, 1.0]).reshape(3, 1, 1)
    emissions = draw.normal(3, 3, 3)
    either = torch.where(draw.normal(3, 3, 3) > 0, 1000.0, -1000.0)
    large = torch.where(transitions > 0, 1000.0, -1000.0)
    for words, values, table in [
        ("emissions of about 1000, -1000 and 1000", emissions + 1000.0 * signs, transitions),
        ("emissions of 1000 or -1000", either, transitions),
        ("transitions of 1000 or -1000", emissions, large),
    ]:
        case = f"{words}, start and end of 0"
        same_partition(student, reference, values, mask, (table, nothing, nothing), case)


def path_score(emissions, tables, path):
    """The score of a path through the emissions (T, L) of one row, in float64."""
    transitions, start, end = (table.double() for table in tables)
    total = start[path[0]] + end[path[-1]]
    total = total + sum(emissions[place, tag].double() for place, tag in enumerate(path))
    return float(total + sum(transitions[a, b] for a, b in itertools.pairwise(path)))


@hidden
@exercise("crf_partition")
def test_crf_partition_sums_all_paths(student, draw):
    """It is the sum over all paths, written out, and more than any one of them."""
    lengths, tables = [3, 1, 2], crf_tables(draw, 2, torch.float64)
    emissions, _, mask = crf_case(draw, lengths, 2, 4, torch.float64)
    got = expectations.tensor(student.crf_partition(emissions, mask, *tables), what="the result")
    expectations.shape(got, (3,), what="the result")
    for row, length in enumerate(lengths):
        paths = itertools.product(range(2), repeat=length)
        scores = torch.tensor(
            [path_score(emissions[row], tables, path) for path in paths], dtype=torch.float64
        )
        expectations.true(
            bool(got[row] > scores.max()),
            f"For a row of {length} tokens the result is {float(got[row]):.5g}, but one path alone "
            f"scores {float(scores.max()):.5g}; the sum over all paths is larger than each.",
        )
        what = f"the result for a row of {length} tokens and its {len(scores)} paths"
        expectations.close(got[row], scores.logsumexp(0), what=what)


@hidden
@exercise("crf_partition")
def test_crf_partition_gradients(student, reference, draw):
    """Gradients are the tags' probabilities, and finite at +-1000; inputs stay as they were."""
    emissions, _, mask = crf_case(draw, [3, 1, 4], 3, dtype=torch.float64)
    tables = crf_tables(draw, 3, torch.float64)
    for scale, words in [(1.0, "strided float64 inputs"), (500.0, "float64 scores of +-1000")]:
        emissions, mask = strided(emissions * scale, mask)
        arguments = (emissions, mask, *(table * scale for table in tables))
        seen = student.observe("crf_partition", *arguments)
        wanted = reference.observe("crf_partition", *arguments)
        case = f"{words}, lengths [3, 1, 4]"
        expectations.close(seen.value, wanted.value, what="the result", case=case)
        names = {"0": "the emissions", "2": "the transitions"}
        names |= {"3": "the start scores", "4": "the end scores"}
        same_gradients(seen, wanted, names, case)
        expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# viterbi
# --------------------------------------------------------------------------------------------


def right_paths(paths, lengths, count, case):
    """A list for each row, of as many tags as it has real tokens; tags are ints."""
    expectations.true(
        isinstance(paths, (list, tuple)) and all(isinstance(path, (list, tuple)) for path in paths),
        f"The paths should be a list of lists of int, but are {_kind_of_paths(paths)}.",
    )
    found = [len(path) for path in paths]
    expectations.true(
        found == list(lengths),
        f"The paths should have as many tags as the rows have real tokens, {list(lengths)}; "
        f"yours have {found} for {case}.",
    )
    for tag in (tag for path in paths for tag in path):
        expectations.true(
            isinstance(tag, int) and not isinstance(tag, bool),
            f"A tag should be an int, but is a {expectations.type_name(tag)}; .item() makes one.",
        )
        expectations.true(
            0 <= tag < count,
            f"A path holds the tag {tag}; tags go from 0 to {count - 1} for {case}.",
        )


def _kind_of_paths(paths) -> str:
    if not isinstance(paths, (list, tuple)):
        return f"a {expectations.type_name(paths)}"
    return f"a list of {expectations.type_name(paths[0])}" if paths else "an empty list"


def best_paths(paths, best, emissions, mask, tables, case):
    """Each path scores as much as the best there is; which of several best ones is free."""
    right_paths(paths, mask.sum(dim=1).tolist(), emissions.shape[2], case)
    for row, path in enumerate(paths):
        score, most = path_score(emissions[row], tables, path), float(best[row])
        expectations.true(
            abs(score - most) <= 2e-5 * max(1.0, float(best.abs().max())),
            f"The path of row {row}, {list(path)}, scores {score:.5g}, but the best one scores "
            f"{most:.5g} for {case}.",
        )


def same_viterbi(student, reference, emissions, mask, tables, case):
    """Scores are the reference's; each path earns them."""
    got = student.viterbi(emissions, mask, *tables)
    paths, scores = expectations.pair(got, what="the result (paths, scores)")
    _, best = reference.viterbi(emissions, mask, *tables)
    best_paths(paths, best, emissions, mask, tables, case)
    expectations.close(scores, best, what="the scores", case=case)


@exercise("viterbi")
def test_viterbi_scores(student, reference, draw):
    """The score of the best path of each row."""
    for lengths, count in [([1], 2), ([2], 3), ([5, 5, 5], 3)]:
        emissions, _, mask = crf_case(draw, lengths, count)
        tables = crf_tables(draw, count)
        got = student.viterbi(emissions, mask, *tables)
        _, scores = expectations.pair(got, what="the result (paths, scores)")
        _, best = reference.viterbi(emissions, mask, *tables)
        case = f"B={len(lengths)}, T={lengths[0]}, L={count}, no padding"
        expectations.close(scores, best, what="the scores", case=case)


@exercise("viterbi")
def test_viterbi_paths(student, reference, draw):
    """The best path of each row, as ints; each token's best tag need not be on it."""
    for lengths, count in [([1], 2), ([2], 3), ([4, 4], 3)]:
        emissions, _, mask = crf_case(draw, lengths, count)
        tables = crf_tables(draw, count)
        case = f"B={len(lengths)}, T={lengths[0]}, L={count}, no padding"
        same_viterbi(student, reference, emissions, mask, tables, case)
    emissions = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    transitions = torch.full((3, 3), -4.0)
    transitions[1, 0] = transitions[0, 2] = 0.5
    for words, start, end in [
        ("start and end of 0", torch.zeros(3), torch.zeros(3)),
        ("end = [0, 6, 0]", torch.zeros(3), torch.tensor([0.0, 6.0, 0.0])),
        ("start = [0, 0, 6]", torch.tensor([0.0, 0.0, 6.0]), torch.zeros(3)),
    ]:
        case = f"the identity as emissions, transitions {transitions.tolist()} and {words}"
        tables = transitions, start, end
        same_viterbi(student, reference, emissions, torch.ones(1, 3).bool(), tables, case)


@exercise("viterbi", 2)
def test_viterbi_padding(student, reference, draw):
    """A path ends at its row's last real token, a row of one token included."""
    for lengths, longest in [([1, 3], 3), ([2, 5, 1, 4], 6)]:
        emissions, _, mask = crf_case(draw, lengths, 3, longest)
        case = f"lengths {lengths} of {longest}"
        same_viterbi(student, reference, emissions, mask, crf_tables(draw, 3), case)


@hidden
@exercise("viterbi")
def test_viterbi_ties(student, reference, draw):
    """Of several best paths any will do; scores of +-1000 make no difference."""
    tables = tuple(torch.zeros_like(table) for table in crf_tables(draw, 3))
    mask = real([4, 2])
    same_viterbi(student, reference, torch.zeros(2, 4, 3), mask, tables, "scores of 0 throughout")
    emissions = draw.integers(0, 2, 2, 4, 3).float()
    same_viterbi(student, reference, emissions, mask, tables, "emissions of 0 and 1")
    emissions = torch.where(draw.normal(2, 4, 3) > 0, 1000.0, -1000.0)
    tables = crf_tables(draw, 3)
    same_viterbi(student, reference, emissions, mask, tables, "emissions of 1000 or -1000")
    same_viterbi(student, reference, emissions - 3000.0, mask, tables, "negative scores only")


@hidden
@exercise("viterbi")
def test_viterbi_inputs(student, reference, draw):
    """Strided float64 inputs with many tags; none is changed."""
    emissions, _, mask = crf_case(draw, [6, 3, 1], 7, dtype=torch.float64)
    emissions, mask = strided(emissions, mask)
    tables = crf_tables(draw, 7, torch.float64)
    seen = student.observe("viterbi", emissions, mask, *tables, grad=False)
    paths, scores = expectations.pair(seen.value, what="the result (paths, scores)")
    _, best = reference.viterbi(emissions, mask, *tables)
    case = "strided float64 inputs, L=7, lengths [6, 3, 1]"
    best_paths(paths, best, emissions, mask, tables, case)
    expectations.close(scores, best, what="the scores", case=case)
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# BiLSTMCRF
# --------------------------------------------------------------------------------------------

BILSTM = {"vocab_size": 9, "embedding": 3, "hidden": 2, "num_tags": 3}


def bilstm_state(draw) -> State:
    state = {"embedding.weight": draw.normal(9, 3)}
    state |= lstm_state(draw, "lstm", 3, 2, ("", "_reverse"))
    state |= linear(draw, "emission", 3, 4)
    transitions, start, end = crf_tables(draw, 3)
    # Large, so that a token's best tag is seldom that of the best path.
    return state | {"crf.transitions": 3.0 * transitions, "crf.start": start, "crf.end": end}


def bilstm_pair(student, reference, draw, dtype=None):
    state = bilstm_state(draw)
    return state, *pair(student, reference, "BiLSTMCRF", state, dtype, **BILSTM)


def tagged(draw, lengths, longest=None):
    """Ids with PAD, tags with IGNORE after the end, and the mask."""
    mask = real(lengths, longest)
    ids = draw.integers(SPECIAL, 9, *mask.shape).masked_fill(~mask, PAD)
    return ids, draw.integers(0, 3, *mask.shape).masked_fill(~mask, IGNORE), mask


def own_crf(parts, state, dtype):
    """The CRF of the notebook, which uses the student's crf_score, crf_partition and viterbi."""
    tables = {
        name.removeprefix("crf."): value.to(dtype)
        for name, value in state.items()
        if name.startswith("crf.")
    }
    return parts.proxy.module("CRF", state=tables, dtype=dtype, num_tags=3)


@exercise("BiLSTMCRF")
def test_bilstm_crf_emissions(student, reference, draw):
    """Embedding, LSTM in both directions, linear layer: emissions (B, T, L)."""
    _, mine, theirs = bilstm_pair(student, reference, draw)
    for lengths in ([1], [4], [3, 3]):
        ids, _, mask = tagged(draw, lengths)
        case = f"ids {ids.tolist()}, no padding"
        expectations.close(mine(ids, mask), theirs(ids, mask), what="the emissions", case=case)


@exercise("BiLSTMCRF", 2)
def test_bilstm_crf_padding(student, reference, draw):
    """The backward direction begins at the last real token; the result is as long as the input."""
    _, mine, theirs = bilstm_pair(student, reference, draw)
    for lengths, longest in [([3, 1], 3), ([2, 4, 3], 4), ([2, 1], 4)]:
        ids, _, mask = tagged(draw, lengths, longest)
        case = f"lengths {lengths} of {longest}"
        at_real_places(mine(ids, mask), theirs(ids, mask), mask, "the emissions", case)


@exercise("BiLSTMCRF")
def test_bilstm_crf_loss(student, reference, draw):
    """The loss is that of the CRF on the emissions: mean over the batch, padding left out."""
    state, mine, theirs = bilstm_pair(student, reference, draw, torch.float64)
    for lengths, longest in [([3], 3), ([2, 4, 1], 5)]:
        given = tagged(draw, lengths, longest)

        def own(parts, given=given):
            ids, tags, mask = given
            crf = own_crf(parts, state, torch.float64)
            return crf.method("loss", parts.of(mine, "forward")(ids, mask), tags, mask)

        got = expectations.tensor(mine.method("loss", *given), what="the loss")
        want = theirs.method("loss", *given)
        case = f"lengths {lengths} of {longest}, float64"
        same_by_parts(student, got, want, own, "the loss", case)


@exercise("BiLSTMCRF")
def test_bilstm_crf_decode(student, reference, draw):
    """decode gives the best path of each row through the emissions."""
    state, mine, theirs = bilstm_pair(student, reference, draw)
    tables = state["crf.transitions"], state["crf.start"], state["crf.end"]
    ids, _, mask = tagged(draw, [2, 6, 1, 5], 7)
    got, emissions = mine.method("decode", ids, mask), theirs(ids, mask)
    _, best = reference.viterbi(emissions, mask, *tables)
    case = "lengths [2, 6, 1, 5] of 7"
    try:
        best_paths(got, best, emissions, mask, tables, case)
    except Mistake:

        def own(parts):
            crf = own_crf(parts, state, torch.float32)
            return crf.method("decode", parts.of(mine, "forward")(ids, mask), mask)

        if not as_own_paths(student, got, own):
            raise


def as_own_paths(student, got, own) -> bool:
    """Whether the paths are what the student's own earlier parts say, right or wrong."""

    def listed(said):
        return [[int(tag) for tag in path] for path in said]

    both = by_parts(student, lambda parts: (listed(own(parts)), listed(got)))
    return both is not None and both[0] == both[1] and bool(both[1]) and all(both[1])


@hidden
@exercise("BiLSTMCRF")
def test_bilstm_crf_ignores_padding(student, reference, draw):
    """Other ids at padding, more padding and other rows change nothing at real places."""
    _, mine, theirs = bilstm_pair(student, reference, draw, torch.float64)
    ids, _, mask = tagged(draw, [2, 4, 1])
    before = theirs(ids, mask)
    other = torch.where(mask, ids, draw.integers(SPECIAL, 9, 3, 4))
    wide, wider = torch.nn.functional.pad(ids, (0, 2)), torch.nn.functional.pad(mask, (0, 2))
    for case, given in [
        ("other ids at padding", (other, mask)),
        ("two more columns of padding", (wide, wider)),
        ("a row alone, with its padding", (ids[:1], mask[:1])),
    ]:
        got = expectations.tensor(mine(*given), what="the emissions")
        expectations.shape(got, (*given[0].shape, 3), what="the emissions", case=case)
        rows, length = len(got), 4
        want, where = before[:rows], mask[:rows]
        at_real_places(got[:, :length], want, where, "the emissions", f"{case}, float64")


@hidden
@exercise("BiLSTMCRF")
def test_bilstm_crf_gradients(student, reference, draw):
    """The loss trains every parameter, and padding no row of the embedding."""
    state, mine, theirs = bilstm_pair(student, reference, draw, torch.float64)
    given = strided(*tagged(draw, [2, 4, 1]))
    seen, wanted = (handle.observe_method("loss", *given) for handle in (mine, theirs))
    expectations.finite(seen.value, what="the loss")
    arriving_gradients(seen, wanted, parameters_of(state), "float64, lengths [2, 4, 1]")
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# SharedEncoder
# --------------------------------------------------------------------------------------------


def shared_state(draw, width, inner) -> State:
    """The parameters of a SharedEncoder: those of its one BertLayer."""
    state = {}
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        state |= linear(draw, f"layer.attention.{name}", width, width)
    state |= linear(draw, "layer.w_1", inner, width) | linear(draw, "layer.w_2", width, inner)
    for name in ("attention_norm", "output_norm"):
        state[f"layer.{name}.weight"] = 1.0 + draw.normal(width, scale=0.4)
        state[f"layer.{name}.bias"] = draw.normal(width, scale=0.5)
    return state


def shared_options(layers, width, inner, **more):
    return {
        "num_layers": layers,
        "hidden": width,
        "num_heads": 2,
        "intermediate": inner,
        **more,
    }


def same_shared(student, reference, state, layers, x, mask, case, **more):
    """The student's own layer, applied again and again, stands for itself."""
    options = shared_options(layers, x.shape[2], len(state["layer.w_1.bias"]), **more)
    mine, theirs = pair(student, reference, "SharedEncoder", state, **options)
    got = (mine if more else mine.train())(x, mask)

    def own(parts):
        layer, value = parts.of(mine, "layer"), x
        for _ in range(layers):
            value = layer(value, mask)
        return value

    same_by_parts(student, got, theirs(x, mask), own, "the output", case)


@exercise("SharedEncoder")
def test_shared_encoder_once(student, reference, draw):
    """With num_layers=1 it is the layer."""
    state = shared_state(draw, 4, 5)
    case = "num_layers=1, x of shape (1, 2, 4), no mask"
    same_shared(student, reference, state, 1, draw.normal(1, 2, 4), None, case)


@exercise("SharedEncoder", 2)
def test_shared_encoder_again(student, reference, draw):
    """The one layer reads what it returned, num_layers times, and sees the mask each time."""
    state, mask = shared_state(draw, 4, 5), real([3, 1])
    for layers in (2, 3):
        x = draw.normal(2, 3, 4)
        case = f"num_layers={layers}, x of shape (2, 3, 4)"
        same_shared(student, reference, state, layers, x, None, f"{case}, no mask")
        same_shared(student, reference, state, layers, x, mask, f"{case}, lengths [3, 1]")


@exercise("SharedEncoder")
def test_shared_encoder_parameters(student, draw):
    """Twelve layers have the parameters of one, called layer."""
    state = shared_state(draw, 4, 6)
    mine = student.module("SharedEncoder", **shared_options(12, 4, 6))
    same_parameters(mine, {name: tuple(value.shape) for name, value in state.items()})


@exercise("SharedEncoder")
def test_shared_encoder_refusals(student):
    """A number of heads that does not divide the width is refused, be it by the layer."""
    sizes_given = {"hidden": 6, "num_heads": 4, "intermediate": 5}
    try:
        refuses(
            lambda layers: student.module("SharedEncoder", num_layers=layers, **sizes_given),
            {"num_heads=4 for hidden=6": (2,)},
        )
    except Mistake:
        parts = Parts(student)
        try:
            parts.proxy.module("BertLayer", **sizes_given)
        except (StudentError, Todo):
            pass
        else:
            return  # The layer ought to have refused; that is another exercise.
        raise


@hidden
@exercise("SharedEncoder")
def test_shared_encoder_dropout(student, reference, draw):
    """dropout reaches the layer, and acts in train mode only."""
    state, x = shared_state(draw, 8, 6), draw.normal(1, 4, 8)
    case = "num_layers=2, dropout=0.5 in eval mode"
    same_shared(student, reference, state, 2, x, None, case, dropout=0.5)
    options = shared_options(1, 8, 6, dropout=0.5)
    mine = student.module("SharedEncoder", state=state, **options)
    value = expectations.tensor(mine.train()(x.expand(2, 4, 8)), what="the output")
    expectations.shape(value, (2, 4, 8), what="the output")
    # Two examples of 32 entries lose the same ones by chance once in 2**64.
    expectations.true(
        bool((value[0] - value[1]).abs().max() > 1e-3),
        "In train mode with dropout=0.5 two equal examples have the same output; pass dropout on "
        "to the layer.",
    )


@hidden
@exercise("SharedEncoder")
def test_shared_encoder_gradients(student, reference, draw):
    """All applications add to the gradients of the one layer; x is left as it was."""
    state, x = shared_state(draw, 4, 3), strided(draw.normal(2, 3, 4).double())[0]
    options = shared_options(2, 4, 3)
    mine, theirs = pair(student, reference, "SharedEncoder", state, torch.float64, **options)
    seen, wanted = mine.observe(x), theirs.observe(x)
    expectations.finite(seen.value, what="the output")
    # A bias of k_proj adds one number to a row of scores: its gradient is zero.
    names = parameters_of(state, without=("layer.attention.k_proj.bias",)) | {"0": "x"}
    arriving_gradients(seen, wanted, names, "num_layers=2, strided float64 input")
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# permutation_masks
# --------------------------------------------------------------------------------------------


MASKS = ("content", "query")
ORDERS = ([1, 0], [1, 2, 0], [2, 0, 1], [3, 0, 2, 1])


def same_masks(student, reference, order, names=MASKS):
    got = expectations.pair(student.permutation_masks(order), what="the result (content, query)")
    wanted = reference.permutation_masks(order)
    for name, mask, want in zip(MASKS, got, wanted, strict=True):
        if name in names:
            expectations.close(mask, want, what=f"the {name} mask", case=f"order {order.tolist()}")


@exercise("permutation_masks")
def test_permutation_masks_in_order(student, reference):
    """From left to right: content sees itself and what is before it, query only what is before."""
    for length in (1, 2, 4):
        same_masks(student, reference, torch.arange(length))


@exercise("permutation_masks")
def test_permutation_masks_query(student, reference):
    """By query a place sees those before it in the order; the mask stands at the places' own."""
    for order in ORDERS:
        same_masks(student, reference, torch.tensor(order), names=("query",))


@exercise("permutation_masks")
def test_permutation_masks_content(student, reference):
    """By content a place sees itself too."""
    for order in ORDERS:
        same_masks(student, reference, torch.tensor(order), names=("content",))


@exercise("permutation_masks")
def test_permutation_masks_refusals(student):
    """What is no permutation of 0 .. T - 1 is refused with a ValueError."""
    refuses(
        student.permutation_masks,
        {
            f"the order {order}": (torch.tensor(order),)
            for order in ([0, 0, 1], [1, 2, 3], [0, 2], [-1, 0, 1], [1, 1, 1])
        },
    )


@hidden
@exercise("permutation_masks")
def test_permutation_masks_steps(student, draw):
    """The place predicted k-th sees the k before it; by content also itself, and no other."""
    order = draw.permutation(6)
    got = student.permutation_masks(order)
    content, query = expectations.pair(got, what="the result (content, query)")
    for mask, name in ((content, "content"), (query, "query")):
        expectations.shape(mask, (6, 6), what=f"the {name} mask")
        expectations.close(mask, mask.bool(), what=f"the {name} mask")
    for step, place in enumerate(order.tolist()):
        before = sorted(order[:step].tolist())
        seen = query[place].nonzero().flatten().tolist()
        words = f"in order {order.tolist()} place {place}, predicted at step {step},"
        expectations.equal(seen, before, what=f"what the query mask shows {words}")
        seen = content[place].nonzero().flatten().tolist()
        expectations.equal(
            seen, sorted([*before, place]), what=f"what the content mask shows {words}"
        )


@hidden
@exercise("permutation_masks")
def test_permutation_masks_random(student, reference, draw):
    """Long orders, one of them strided; the order is left as it was."""
    for length in (9, 16):
        order = draw.permutation(length)
        same_masks(student, reference, order)
    order = torch.stack([order, order], dim=1)[:, 0]
    seen = student.observe("permutation_masks", order, grad=False)
    content, query = expectations.pair(seen.value, what="the result (content, query)")
    wanted = reference.permutation_masks(order)
    expectations.close(content, wanted[0], what="the content mask", case="a strided order")
    expectations.close(query, wanted[1], what="the query mask", case="a strided order")
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# RelativeAttention
# --------------------------------------------------------------------------------------------


def relative_state(draw, width, heads) -> State:
    state = {}
    for name in ("q_proj", "k_proj", "v_proj", "r_proj", "out_proj"):
        state |= linear(draw, name, width, width, bias=False)
    for name in ("content_bias", "position_bias"):
        state[name] = draw.normal(heads, width // heads, scale=0.7)
    return state


def relative_pair(student, reference, draw, width, heads, dtype=None, **more):
    options = {"hidden": width, "num_heads": heads, **more}
    state = relative_state(draw, width, heads)
    return state, *pair(student, reference, "RelativeAttention", state, dtype, **options)


@exercise("RelativeAttention", 2)
def test_relative_attention_values(student, reference, draw):
    """Without memory: causal attention whose scores know the distance."""
    for batch, length, width, heads in [(1, 1, 2, 1), (1, 3, 4, 1), (2, 4, 8, 2)]:
        _, mine, theirs = relative_pair(student, reference, draw, width, heads)
        x = draw.normal(batch, length, width)
        case = sizes(B=batch, T=length, D=width, H=heads) + ", no memory"
        expectations.close(mine.train()(x), theirs(x), what="the output", case=case)


@exercise("RelativeAttention", 2)
def test_relative_attention_memory(student, reference, draw):
    """Keys and values come from the memory and x, queries from x; distances reach back into it."""
    for batch, before, length, width, heads in [(1, 2, 1, 4, 2), (2, 3, 2, 8, 2), (2, 1, 4, 6, 3)]:
        _, mine, theirs = relative_pair(student, reference, draw, width, heads, dropout=0.4)
        x, memory = draw.normal(batch, length, width), draw.normal(batch, before, width)
        case = sizes(B=batch, M=before, T=length, D=width, H=heads) + ", dropout=0.4 in eval mode"
        expectations.close(mine(x, memory), theirs(x, memory), what="the output", case=case)
    expectations.close(
        mine(x, memory[:, :0]), theirs(x), what="the output", case="a memory of 0 places, as none"
    )


@aspect
@exercise("RelativeAttention")
def test_relative_attention_continues(student, draw):
    """A segment with the one before it as memory gives what one pass over both gives there."""
    options = {"hidden": 8, "num_heads": 2}
    state = relative_state(draw, 8, 2)
    mine = student.module("RelativeAttention", state=state, **options)
    x = draw.normal(2, 7, 8)
    whole = alive(mine(x))
    expectations.shape(whole, x.shape, what="the output")
    for cut in (2, 5):
        expectations.close(
            mine(x[:, cut:], x[:, :cut]),
            whole[:, cut:],
            what=f"the output of places {cut} to 6 with places 0 to {cut - 1} as memory",
        )


@exercise("RelativeAttention")
def test_relative_attention_is_causal(student, draw):
    """A place sees itself, what is before it and all of the memory, and nothing after it."""
    state = {name: value.double() for name, value in relative_state(draw, 8, 2).items()}
    options = {"hidden": 8, "num_heads": 2, "dtype": torch.float64}
    mine = student.module("RelativeAttention", state=state, **options)
    x, memory = draw.normal(1, 4, 8).double(), draw.normal(1, 2, 8).double()
    before = expectations.tensor(mine(x, memory), what="the output")
    expectations.shape(before, x.shape, what="the output")
    for words, place in [("the memory", 0), ("the memory", 1), ("x", 0), ("x", 2), ("x", 3)]:
        other, earlier = x.clone(), memory.clone()
        changed = earlier if words == "the memory" else other
        changed[0, place] = 3.0 * draw.normal(8).double()
        after = expectations.tensor(mine(other, earlier), what="the output")
        expectations.shape(after, x.shape, what="the output")
        reached = ((after - before).abs().amax(-1)[0] > 1e-10).nonzero().flatten().tolist()
        wanted = list(range(4)) if words == "the memory" else list(range(place, 4))
        expectations.true(
            reached == wanted,
            f"Another vector at place {place} of {words} changes the output at {reached}; it "
            f"should change it at {wanted}.",
        )


@exercise("RelativeAttention")
def test_relative_attention_parameters(student):
    """Five projections without bias, and two biases (H, D/H) that begin with zeros."""
    mine = student.module("RelativeAttention", hidden=6, num_heads=3)
    names = "q_proj", "k_proj", "v_proj", "r_proj", "out_proj"
    biases = {"content_bias": (3, 2), "position_bias": (3, 2)}
    same_parameters(mine, {f"{name}.weight": (6, 6) for name in names} | biases)
    state = mine.state()
    for name in biases:
        expectations.close(state[name], torch.zeros(3, 2), what=f"the initial {name}")


@exercise("RelativeAttention")
def test_relative_attention_refusals(student):
    """A number of heads that does not divide the width is refused with a ValueError."""
    refuses(
        lambda heads: student.module("RelativeAttention", hidden=6, num_heads=heads),
        {"num_heads=4 for hidden=6": (4,), "num_heads=5 for hidden=6": (5,)},
    )


@hidden
@exercise("RelativeAttention")
def test_relative_attention_no_gradient_to_memory(student, reference, draw):
    """Gradients reach x and every parameter, by way of the memory too, but never the memory."""
    state, mine, theirs = relative_pair(student, reference, draw, 4, 2, torch.float64)
    x, memory = strided(draw.normal(2, 3, 4).double(), draw.normal(2, 2, 4).double())
    seen, wanted = mine.observe(x, memory), theirs.observe(x, memory)
    case = "strided float64 inputs"
    expectations.close(seen.value, wanted.value, what="the output", case=case)
    reached = seen.grads.get("1")
    expectations.true(
        reached is None or not bool(reached.abs().max() > 0),
        "A gradient reaches the memory; detach it before anything is made of it.",
    )
    same_gradients(seen, wanted, parameters_of(state) | {"0": "x"}, case)
    expectations.unchanged(seen)


@hidden
@exercise("RelativeAttention")
def test_relative_attention_dropout(student, draw):
    """In train mode dropout acts on the weights, head by head."""
    width, heads, p = 8, 4, 0.5
    state = {f"{name}.weight": torch.zeros(width, width) for name in ("q_proj", "k_proj", "r_proj")}
    state |= {f"{name}.weight": torch.eye(width) for name in ("v_proj", "out_proj")}
    state |= {name: torch.zeros(heads, 2) for name in ("content_bias", "position_bias")}
    options = {"hidden": width, "num_heads": heads, "dropout": p}
    mine = student.module("RelativeAttention", state=state, **options)
    x = torch.ones(80, 3, width)
    expectations.close(mine(x), x, what="the output", case="ones as values, eval mode, dropout=0.5")
    value = expectations.tensor(mine.train()(x), what="the output")
    expectations.shape(value, x.shape, what="the output")
    whole = value.reshape(80, 3, heads, 2)
    expectations.true(
        bool((whole[..., 0] - whole[..., 1]).abs().max() < 1e-4),
        "In train mode the features of one head lose different things; drop weights, after "
        "softmax, and not what is made with them.",
    )
    # The first place has one weight, which is dropped or doubled; each head decides by itself.
    first = whole[:, 0, :, 0]
    expectations.rate(
        int((first.abs() < 1e-4).sum()),
        first.numel(),
        p,
        what="in train mode at dropout=0.5 the share of dropped weights",
        false_alarm=5e-10,
    )
    left = first[first.abs() >= 1e-4]
    expectations.close(
        left,
        torch.full_like(left, 1 / (1 - p)),
        what="a weight of 1 that was not dropped",
        case="dropout=0.5 in train mode",
    )


# --------------------------------------------------------------------------------------------
# update_memory
# --------------------------------------------------------------------------------------------


def same_memory(student, reference, memory, hidden_states, length, case):
    expectations.close(
        student.update_memory(memory, hidden_states, length),
        reference.update_memory(memory, hidden_states, length),
        what="the memory",
        case=f"{case}, length={length}",
    )


@exercise("update_memory")
def test_update_memory_first(student, reference, draw):
    """Without a memory: the last places of the new states, or all of them if there are fewer."""
    states = draw.normal(2, 4, 3)
    for length in (1, 3, 4, 6):
        same_memory(student, reference, None, states, length, "no memory, hidden (2, 4, 3)")


@exercise("update_memory", 2)
def test_update_memory_joins(student, reference, draw):
    """The last places of memory and new states together, the memory first."""
    for before, new in [(2, 1), (3, 2)]:
        memory, states = draw.normal(2, before, 3), draw.normal(2, new, 3)
        case = f"memory (2, {before}, 3), hidden (2, {new}, 3)"
        for length in range(1, before + new + 2):
            same_memory(student, reference, memory, states, length, case)


@exercise("update_memory")
def test_update_memory_zero(student, reference, draw):
    """A memory of length 0 has no places, (B, 0, D), and can be joined again."""
    memory, states = draw.normal(2, 3, 4), draw.normal(2, 2, 4)
    same_memory(student, reference, None, states, 0, "no memory, hidden (2, 2, 4)")
    same_memory(student, reference, memory, states, 0, "memory (2, 3, 4), hidden (2, 2, 4)")
    empty = memory[:, :0]
    same_memory(student, reference, empty, states, 1, "memory (2, 0, 4), hidden (2, 2, 4)")


@exercise("update_memory")
def test_update_memory_refusals(student, draw):
    """A negative length is refused with a ValueError."""
    memory, states = draw.normal(1, 2, 3), draw.normal(1, 2, 3)
    refuses(
        student.update_memory,
        {"length=-1": (memory, states, -1), "length=-2 without a memory": (None, states, -2)},
    )


@hidden
@exercise("update_memory", 2)
def test_update_memory_is_detached(student, reference, draw):
    """The memory is cut off from the graph; float64 stays, and inputs are left as they were."""
    memory, states = strided(draw.normal(2, 3, 4).double(), draw.normal(2, 4, 4).double())
    for given, length in [((None, states), 2), ((memory, states), 5), ((memory, states), 9)]:
        seen = student.observe("update_memory", *given, length)
        wanted = reference.update_memory(*given, length)
        case = f"strided float64 inputs, length={length}"
        expectations.close(seen.value, wanted, what="the memory", case=case)
        reached = [grad is not None and bool((grad != 0).any()) for grad in seen.grads.values()]
        expectations.true(
            not any(reached),
            "A gradient passes through the new memory; detach it, or training would reach back "
            "through all earlier segments.",
        )
        expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# replace_tokens
# --------------------------------------------------------------------------------------------


def peaked(draw, ids, vocabulary, height=60.0, same=0.3):
    """Scores that leave no doubt which token is drawn: often, but not always, the original."""
    peaks = draw.integers(0, vocabulary, *ids.shape)
    peaks = torch.where(draw.uniform(*ids.shape) < same, ids, peaks)
    scores = draw.normal(*ids.shape, vocabulary)
    return scores.scatter(2, peaks.unsqueeze(2), height)


def chosen_labels(draw, ids, rate):
    """Labels as mask_tokens makes them: the original where chosen, IGNORE elsewhere."""
    return torch.where(draw.uniform(*ids.shape) < rate, ids, IGNORE)


def judge_replaced(student, given, case, grad=False, marked=True):
    """The tokens of a call: their form is right and, if that is asked, is_replaced too.

    Draws cannot be replayed, so that the test itself has to say which mistake it sees.
    """
    ids, labels = given[:2]
    seen = student.observe("replace_tokens", *given, grad=grad)
    expectations.unchanged(seen, misconception="replaced_in_place")
    replaced, marks = expectations.pair(seen.value, what="the result (replaced, is_replaced)")
    expectations.shape(replaced, ids.shape, what="replaced", case=case)
    expectations.true(
        replaced.dtype == torch.int64,
        f"replaced should have dtype int64, but has {replaced.dtype} for {case}.",
    )
    expectations.shape(marks, ids.shape, what="is_replaced", case=case)
    chosen = labels != IGNORE
    others = {
        "replaced_wherever_chosen": chosen,
        "replaced_compared_with_labels": replaced != labels,
        "replaced_marks_inverted": replaced == ids,
    }
    hints = [name for name, other in others.items() if torch.equal(marks, other)]
    if marked:
        expectations.close(
            marks,
            replaced != ids,
            what="is_replaced",
            case=case,
            misconception=hints[0] if hints else None,
        )
    expectations.true(
        torch.equal(replaced[~chosen], ids[~chosen]),
        f"Tokens change where labels is IGNORE, for {case}.",
        misconception="replaced_everywhere",
    )
    return replaced


def same_replaced(student, reference, given, case, grad=False):
    """The generator is sure, so that everything is settled."""
    replaced = judge_replaced(student, given, case, grad)
    expectations.close(replaced, reference.replace_tokens(*given)[0], what="replaced", case=case)


TOKENS = {5: 0.5, 6: 0.3, 7: 0.2}
ORIGINAL = 6
SHARES = "for a generator that gives 5, 6 and 7 the probabilities 0.5, 0.3 and 0.2"


def drawn_tokens(student, rows=20, columns=100):
    """Originals of 6, all chosen; 5, 6 and 7 have the probabilities of TOKENS, others none."""
    ids = torch.full((rows, columns), ORIGINAL)
    scores = torch.full((rows, columns, 8), -40.0)
    for token, probability in TOKENS.items():
        scores[..., token] = 2.0 + math.log(probability)
    given, case = (ids, ids.clone(), scores), SHARES.removeprefix("for ")
    return judge_replaced(student, given, case, marked=False)


@exercise("replace_tokens", 2)
def test_replace_tokens_shares(student):
    """Tokens are drawn with the probabilities softmax(scores), the original among them."""
    replaced = drawn_tokens(student)
    counts = {token: int((replaced == token).sum()) for token in range(8)}
    total = replaced.numel()
    hint = None
    if max(counts.values()) == total:
        hint = "replaced_one_draw_for_all"
    elif not counts[ORIGINAL] and counts[5] + counts[7] == total:
        hint = "replaced_never_by_original"
    elif min(counts.values()) > total / 16:
        hint = "replaced_uniformly"
    for token, probability in TOKENS.items():
        expectations.rate(
            counts[token],
            total,
            probability,
            what=f"{SHARES} the share of token {token}",
            false_alarm=2e-10,
            misconception=hint,
        )
    # No other token, but for a rate of e**-42.
    rest = total - sum(counts[token] for token in TOKENS)
    expectations.true(
        rest == 0, f"{SHARES} {rest} of {total} draws are of other tokens.".capitalize()
    )


@exercise("replace_tokens")
def test_replace_tokens_certain(student, reference, draw):
    """Where the generator is sure its token is drawn; a correct guess is not a replacement."""
    ids = torch.tensor([[CLS, 5, 6, 7, 8, SEP]])
    labels = torch.tensor([[IGNORE, 5, 6, IGNORE, 8, IGNORE]])
    guesses = torch.tensor([[8, 9, 6, 9, 5, 9]])
    scores = torch.zeros(1, 6, 10).scatter(2, guesses.unsqueeze(2), 60.0)
    case = (
        f"ids {ids.tolist()}, labels {labels.tolist()} and a generator that is sure of "
        f"{guesses.tolist()}"
    )
    same_replaced(student, reference, (ids, labels, scores), case)
    ids = draw.integers(SPECIAL, 12, 3, 7)
    given = ids, chosen_labels(draw, ids, 0.5), peaked(draw, ids, 12)
    same_replaced(student, reference, given, "B=3, T=7, V=12 and a generator that is sure")


@exercise("replace_tokens")
def test_replace_tokens_none(student, reference, draw):
    """Where nothing was chosen nothing is replaced, whatever the scores say."""
    ids = draw.integers(0, 12, 2, 5)
    scores = peaked(draw, ids, 12, same=0.0)
    given = ids, torch.full_like(ids, IGNORE), scores
    same_replaced(student, reference, given, "no chosen place, B=2, T=5")


@hidden
@exercise("replace_tokens")
def test_replace_tokens_each_place(student):
    """Every place of every row has a draw of its own."""
    replaced = drawn_tokens(student)
    same = sum(probability**2 for probability in TOKENS.values())
    for words, one, two in [
        ("neighbours", replaced[:, ::2], replaced[:, 1::2]),
        ("rows, place by place,", replaced[::2], replaced[1::2]),
    ]:
        count = int((one == two).sum())
        expectations.rate(
            count,
            one.numel(),
            same,
            what=f"with the same scores everywhere the share of {words} that get the same token",
            false_alarm=5e-10,
            misconception="replaced_one_draw_for_all" if count == one.numel() else None,
        )


@hidden
@exercise("replace_tokens")
def test_replace_tokens_inputs(student, reference, draw):
    """Strided ids, float64 scores of +-1000, a batch of one; inputs are left as they were."""
    for batch, dtype in [(1, torch.float32), (3, torch.float64)]:
        ids = draw.integers(SPECIAL, 9, batch, 6)
        labels = chosen_labels(draw, ids, 0.6)
        scores = peaked(draw, ids, 9, height=60.0)
        scores = torch.where(scores == 60.0, 1000.0, -1000.0).to(dtype)
        given = strided(ids, labels, scores)
        case = f"scores of 1000 and -1000 that require gradients, B={batch}, strided"
        same_replaced(student, reference, given, case, grad=True)


# --------------------------------------------------------------------------------------------
# replaced_token_loss
# --------------------------------------------------------------------------------------------


def same_detection(student, reference, scores, is_replaced, mask, case):
    expectations.close(
        student.replaced_token_loss(scores, is_replaced, mask),
        reference.replaced_token_loss(scores, is_replaced, mask),
        what="the loss",
        case=case,
    )


@exercise("replaced_token_loss")
def test_replaced_token_loss_values(student, reference, draw):
    """The mean binary cross-entropy over all tokens, replaced or not."""
    for batch, length in [(1, 1), (1, 4), (2, 5)]:
        scores, is_replaced = draw.normal(batch, length), draw.uniform(batch, length) < 0.4
        is_replaced[0, 0] = True
        mask = torch.ones(batch, length, dtype=torch.bool)
        case = f"is_replaced {is_replaced.int().tolist()}, no padding"
        same_detection(student, reference, scores, is_replaced, mask, case)


@exercise("replaced_token_loss")
def test_replaced_token_loss_padding(student, reference, draw):
    """Padding counts neither in the sum nor in the number; every real token weighs the same."""
    for lengths, longest in [([1, 4], 4), ([3, 1, 5], 6)]:
        mask = real(lengths, longest)
        scores = torch.where(mask, draw.normal(*mask.shape), 30.0 * draw.normal(*mask.shape))
        is_replaced = draw.uniform(*mask.shape) < 0.5
        case = f"lengths {lengths} of {longest}"
        same_detection(student, reference, scores, is_replaced, mask, case)


@exercise("replaced_token_loss")
def test_replaced_token_loss_is_stable(student, reference, draw):
    """Scores of +-1000, right or wrong, give a finite loss."""
    scores = torch.tensor([[1000.0, -1000.0, 1000.0, -1000.0, 0.5]])
    is_replaced = torch.tensor([[True, False, False, True, True]])
    mask = torch.ones(1, 5, dtype=torch.bool)
    same_detection(student, reference, scores, is_replaced, mask, f"scores {scores.tolist()}")


@hidden
@exercise("replaced_token_loss", 2)
def test_replaced_token_loss_gradients(student, reference, draw):
    """Gradients reach the real places and no others; strided float64, inputs left alone."""
    mask = real([4, 2, 1], 5)
    is_replaced = draw.uniform(3, 5) < 0.3
    for words, height in [("of order 1", 1.0), ("of +-1000", 1000.0)]:
        scores = draw.normal(3, 5).double()
        scores = scores if height == 1.0 else torch.where(scores > 0, height, -height)
        given = strided(scores, is_replaced, mask)
        seen = student.observe("replaced_token_loss", *given)
        wanted = reference.observe("replaced_token_loss", *given)
        case = f"strided float64 scores {words}, lengths [4, 2, 1]"
        expectations.close(seen.value, wanted.value, what="the loss", case=case)
        same_gradients(seen, wanted, {"0": "the scores"}, case)
        expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# TwoDirections
# --------------------------------------------------------------------------------------------

ELMO = {"vocab_size": 8, "embedding": 2, "hidden": 3}


def elmo_state(draw) -> State:
    return {
        "embedding.weight": draw.normal(8, 2),
        **lstm_state(draw, "forward_lstm", 2, 3),
        **lstm_state(draw, "backward_lstm", 2, 3),
        **linear(draw, "output", 8, 3),
    }


def elmo_pair(student, reference, draw, dtype=None):
    state = elmo_state(draw)
    return state, *pair(student, reference, "TwoDirections", state, dtype, **ELMO)


def elmo_ids(draw, lengths, longest=None):
    mask = real(lengths, longest)
    return draw.integers(SPECIAL, 8, *mask.shape).masked_fill(~mask, PAD), mask


def elmo_loss(states, state, ids, mask):
    """The loss by the states (B, T, 2 hidden) that a student's forward gives."""
    weight, bias = state["output.weight"].to(states.dtype), state["output.bias"].to(states.dtype)
    both = mask[:, 1:]
    total = torch.zeros((), dtype=states.dtype)
    one, two = states.chunk(2, dim=2)
    for values, wanted in [(one[:, :-1], ids[:, 1:]), (two[:, 1:], ids[:, :-1])]:
        scores = values[both] @ weight.T + bias
        total = total + torch.nn.functional.cross_entropy(scores, wanted[both])
    return total


def same_elmo_loss(student, mine, theirs, state, given, case):
    ids = given[0]
    mask = given[1] if len(given) == 2 else torch.ones_like(ids, dtype=torch.bool)
    got = expectations.tensor(mine.method("loss", *given), what="the loss")

    def own(parts):
        return elmo_loss(parts.of(mine, "forward")(*given), state, ids, mask)

    same_by_parts(student, got, theirs.method("loss", *given), own, "the loss", case)


@exercise("TwoDirections")
def test_two_directions_states(student, reference, draw):
    """The state of the left-to-right LSTM, then that of the right-to-left one."""
    _, mine, theirs = elmo_pair(student, reference, draw)
    for shape in [(1, 1), (1, 4), (3, 3)]:
        ids = draw.integers(SPECIAL, 8, *shape)
        case = f"ids {ids.tolist()}, no mask"
        expectations.close(mine(ids), theirs(ids), what="the states", case=case)


@exercise("TwoDirections", 2)
def test_two_directions_padding(student, reference, draw):
    """The backward LSTM begins at each row's last real token."""
    _, mine, theirs = elmo_pair(student, reference, draw)
    for lengths, longest in [([3, 1], 3), ([2, 4, 3], 4), ([2, 1], 4)]:
        ids, mask = elmo_ids(draw, lengths, longest)
        case = f"lengths {lengths} of {longest}"
        at_real_places(mine(ids, mask), theirs(ids, mask), mask, "the states", case)


@exercise("TwoDirections")
def test_two_directions_never_meet(student, draw):
    """Each direction has read its own side and the token itself, and nothing of the other."""
    state = {name: value.double() for name, value in elmo_state(draw).items()}
    mine = student.module("TwoDirections", state=state, dtype=torch.float64, **ELMO)
    ids = draw.integers(SPECIAL, 8, 1, 5)
    before = expectations.tensor(mine(ids), what="the states")
    expectations.shape(before, (1, 5, 6), what="the states")
    for place in (2, 0, 4):
        other = ids.clone()
        other[0, place] = (ids[0, place] - SPECIAL + 1) % 3 + SPECIAL
        after = expectations.tensor(mine(other), what="the states")
        expectations.shape(after, before.shape, what="the states")
        changed = (after - before).abs().reshape(5, 2, 3).amax(-1) > 1e-10
        for direction, words, wanted in [
            (0, "left-to-right", list(range(place, 5))),
            (1, "right-to-left", list(range(place + 1))),
        ]:
            reached = changed[:, direction].nonzero().flatten().tolist()
            expectations.true(
                reached == wanted,
                f"Another token at place {place} changes the {words} states at {reached}; it "
                f"should change them at {wanted}.",
            )


@exercise("TwoDirections", 2)
def test_two_directions_loss(student, reference, draw):
    """Forward states predict the next token, backward states the previous one; both means add."""
    state, mine, theirs = elmo_pair(student, reference, draw)
    for shape in [(1, 2), (2, 4)]:
        ids = draw.integers(SPECIAL, 8, *shape)
        case = f"ids {ids.tolist()}, no mask"
        same_elmo_loss(student, mine, theirs, state, (ids,), case)


@hidden
@exercise("TwoDirections", 2)
def test_two_directions_loss_padding(student, reference, draw):
    """No real token predicts padding, and padding predicts nothing; a row of one has no part."""
    state, mine, theirs = elmo_pair(student, reference, draw, torch.float64)
    for lengths, longest in [([3, 2], 3), ([2, 5, 1, 3], 6)]:
        given = elmo_ids(draw, lengths, longest)
        case = f"lengths {lengths} of {longest}, float64"
        same_elmo_loss(student, mine, theirs, state, given, case)
    ids, mask = given
    other = torch.where(mask, ids, draw.integers(SPECIAL, 8, *ids.shape))
    case = f"lengths {lengths} of {longest}, other ids at padding"
    same_elmo_loss(student, mine, theirs, state, (other, mask), case)
    at_real_places(mine(other, mask), theirs(ids, mask), mask, "the states", case)


@hidden
@exercise("TwoDirections")
def test_two_directions_gradients(student, reference, draw):
    """The loss trains every parameter; ids and mask are left as they were."""
    state, mine, theirs = elmo_pair(student, reference, draw, torch.float64)
    given = strided(*elmo_ids(draw, [2, 4, 1]))
    seen, wanted = (handle.observe_method("loss", *given) for handle in (mine, theirs))
    expectations.finite(seen.value, what="the loss")
    arriving_gradients(seen, wanted, parameters_of(state), "float64, lengths [2, 4, 1]")
    expectations.unchanged(seen)
