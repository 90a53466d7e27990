"""Graders of `gpt-model`: masks, attention, blocks, the model."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from autograder.graders.common import (
    dropped,
    labels,
    pair,
    refused_naming,
    refuses,
    same_gradients,
    same_parameters,
    sizes,
    within,
)
from autograder.graders.gpt.common import (
    block_state,
    ffn_state,
    fitting,
    fused_state,
    gpt_options,
    gpt_state,
)
from autograder.graders.parts import (
    alive,
    arrive,
    by_parts,
    flows,
    same_by_parts,
    same_values,
    to_blame,
)
from autograder.judging import expectations
from autograder.judging.grader_marks import Mistake, aspect, exercise, hidden, promises
from autograder.judging.proxy import StudentError, Todo

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


@promises("bool-mask", "itself")
@exercise("causal_mask", 2)
def test_causal_mask_values(student, reference):
    """Each position sees itself and what stands before it: a square of bool, True may look."""
    for length in (1, 2, 3, 5):
        same_mask(student, reference, "causal_mask", (length,))


@promises("past", "rows-are-queries")
@exercise("causal_mask", 2)
def test_causal_mask_past(student, reference):
    """With past positions in front each new position sees all of those too."""
    for given in [(1, 1), (1, 3), (2, 1), (3, 2)]:
        same_mask(student, reference, "causal_mask", given)
    expectations.close(
        student.causal_mask(length=2, past=3),
        reference.causal_mask(2, 3),
        what="the mask",
        case="causal_mask(length=2, past=3)",
    )


@promises("bad-sizes")
@exercise("causal_mask")
def test_causal_mask_refusals(student, reference):
    """A length below 1 and a negative past are refused; no past at all is none of them."""
    same_mask(student, reference, "causal_mask", (2, 0))
    refuses(student.causal_mask, {"length=0": (0,), "length=-2": (-2, 3), "past=-1": (3, -1)})


@hidden
@exercise("causal_mask")
def test_causal_mask_long(student, reference, draw):
    """Any length, and more past positions than new ones or fewer."""
    for _ in range(4):
        given = int(draw.integers(2, 12)), int(draw.integers(1, 15))
        same_mask(student, reference, "causal_mask", given)
    for given in [(40,), (600, 500)]:
        same_mask(student, reference, "causal_mask", given)


# --------------------------------------------------------------------------------------------
# window_mask
# --------------------------------------------------------------------------------------------


@promises("bool-mask", "window")
@exercise("window_mask", 2)
def test_window_mask_values(student, reference):
    """Each position sees itself and the window - 1 positions before it."""
    for given in [(1, 1), (3, 2), (4, 3), (6, 2)]:
        same_mask(student, reference, "window_mask", given)


@promises("window")
@exercise("window_mask")
def test_window_mask_borders(student, reference):
    """A window of one position is the position itself; one as long as the text is a causal mask."""
    for given in [(4, 1), (4, 4), (3, 5), (1, 3)]:
        same_mask(student, reference, "window_mask", given)


@promises("bad-sizes")
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
    same_mask(student, reference, "window_mask", (600, 550))


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
    options = {"d_model": width, "num_heads": heads, **more}
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

    A position that sees nothing gets NaN, or the mean of everything where scores are filled with a
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
@promises("layers")
@exercise("CausalSelfAttention")
def test_attention_parameters(student):
    """One layer makes queries, keys and values, one more the output; both have a bias."""
    mine = student.module("CausalSelfAttention", d_model=6, num_heads=2)
    expected = {
        "qkv.weight": (18, 6),
        "qkv.bias": (18,),
        "out_proj.weight": (6, 6),
        "out_proj.bias": (6,),
    }
    same_parameters(mine, expected)
    attribute(mine, "num_heads", 2)


@promises("causal-softmax", "order-of-features", "heads-joined")
@exercise("CausalSelfAttention", 2)
def test_attention_values(student, reference, draw):
    """Each head attends to all positions up to its own; in train mode too where dropout is 0."""
    for batch, length, width, heads in [(1, 1, 2, 1), (1, 3, 4, 1), (1, 3, 4, 2), (2, 4, 6, 3)]:
        mine, theirs, state = fused_pair(student, reference, draw, width, heads)
        x = draw.normal(batch, length, width)
        case = sizes(B=batch, T=length, D=width, H=heads)
        same_attention(student, mine.train()(x), theirs(x), state, heads, x, case)


@promises("causal-softmax")
@exercise("CausalSelfAttention")
def test_attention_causal(student, reference, draw):
    """No position sees a later one, and each sees itself and the first; dropout is off in eval."""
    mine, theirs, state = fused_pair(student, reference, draw, 8, 2, dropout=0.4)
    x = draw.normal(1, 5, 8)
    before, want = mine(x), theirs(x)
    same_attention(student, before, want, state, 2, x, "dropout=0.4 in eval mode")
    if not expectations.close_enough(before, want):
        return  # It is the mask that decides what is seen.
    for position in (0, 2, 4):
        other = x.clone()
        other[0, position] += 1.0
        after = mine(other)
        expectations.shape(after, x.shape, what="the output")
        moved = ((after - before).abs().amax(-1) > 1e-6)[0].nonzero().flatten().tolist()
        expectations.true(
            moved == list(range(position, 5)),
            f"Another vector at position {position} of 5 changes the output at positions {moved}; "
            f"it should from position {position} on.",
        )


@promises("heads-divide")
@exercise("CausalSelfAttention")
def test_attention_refuses(student):
    """A d_model that the number of heads does not divide is refused with a ValueError."""
    same_parameters(
        student.module("CausalSelfAttention", d_model=2, num_heads=2),
        {
            "qkv.weight": (6, 2),
            "qkv.bias": (6,),
            "out_proj.weight": (2, 2),
            "out_proj.bias": (2,),
        },
    )
    refuses(
        lambda width, heads: student.module("CausalSelfAttention", d_model=width, num_heads=heads),
        {
            "d_model=6 with 4 heads": (6, 4),
            "d_model=4 with 3 heads": (4, 3),
            "d_model=4 with 8 heads": (4, 8),
        },
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
    what = f"in train mode at dropout={p}, the share of zeros in the output"
    expectations.rate(int(gone[some].sum()), gone[some].numel(), p, what=what)
    largest = rows.abs().amax(1, keepdim=True)
    expectations.true(
        bool((gone | ((rows - largest).abs() < 1e-3)).all()),
        f"In train mode at dropout={p} something else is dropped than the attention's weights and "
        "its result.",
    )


def drawn_anew(differ):
    """Two calls in train mode, on the same, `differ` in what they drop."""
    expectations.true(
        bool(differ.any()), "In train mode two calls drop the same; every call draws anew."
    )


def weights_dropped(rows, positions, p):
    """Of the equal weights of each query some are dropped, each by itself with probability p.

    Args:
        rows: (B, H, T, n), as in `result_dropped`.
        positions: (T,), how many weights each query has.
    """
    kept = rows.abs().amax(3) * (1 - p) ** 2 * positions  # how many of its weights a query has left
    expectations.true(
        bool(((kept - kept.round()).abs() < 1e-2).all()),
        f"In train mode at dropout={p} the output is not made of weights that are 0 or divided by "
        "1 - p.",
    )
    kept = kept.round().clamp(min=0).minimum(positions)
    total = int(positions.sum()) * kept[:, :, 0].numel()
    what = f"in train mode at dropout={p}, the share of attention weights that are dropped"
    expectations.rate(total - int(kept.sum()), total, p, what=what)
    # By chance each of these happens less than once in 1e20 times.
    for axis, words in [(0, "examples of a batch"), (1, "heads")]:
        expectations.true(
            bool((kept.diff(dim=axis) != 0).any()),
            f"In train mode at dropout={p} all {words} lose the same attention weights; each "
            "weight is dropped by itself.",
        )
    expectations.true(
        bool((kept.diff(dim=2) < 0).any()) and bool(((kept > 0) & (kept < positions)).any()),
        f"In train mode at dropout={p} whole rows or columns of attention weights are dropped; "
        "each weight is dropped by itself.",
    )


@hidden
@promises("dropout-twice")
@exercise("CausalSelfAttention")
def test_attention_dropout(student, draw):
    """In train mode dropout acts on each weight, and again on each entry of the result."""
    batch, length, heads, width = 4, 12, 2, 80
    half = width // heads
    # Queries, keys and values are the mean of x, 1: all weights of a query are the same, a head's
    # result is their sum, and out_proj gives it to its half of the features.
    state = {name: torch.zeros_like(value) for name, value in fused_state(draw, width).items()}
    state["qkv.weight"] += 1 / width
    for features in (slice(half), slice(half, width)):
        state["out_proj.weight"][features, features] = 1 / half
    options = {"d_model": width, "num_heads": heads}
    mine = student.module("CausalSelfAttention", state=state, dropout=P, **options)
    x = want = torch.ones(batch, length, width)
    same_attention(student, mine(x), want, state, heads, x, f"dropout={P} in eval mode")
    output = expectations.tensor(mine.train()(x), what="the output")
    expectations.shape(output, x.shape, what="the output")
    rows = output.reshape(batch, length, heads, half).transpose(1, 2)
    if right_mask(student, length):
        expectations.finite(output, what="the output")
        result_dropped(rows.flatten(0, 2), P)
        weights_dropped(rows, torch.arange(1, length + 1), P)
        again = expectations.tensor(mine(x), what="the output")
        again = again.reshape(batch, length, heads, half).transpose(1, 2)
        drawn_anew(rows.abs().amax(3) != again.abs().amax(3))
        seen = (rows.abs().amax(3, True) > 1e-6) & (again.abs().amax(3, True) > 1e-6)
        drawn_anew(seen & ((rows.abs() < 1e-6) != (again.abs() < 1e-6)))
    else:  # Positions that see nothing are not the attention's mistake.
        rows = rows.flatten(0, 2)
        result_dropped(rows[rows.isfinite().all(1)], P)


@hidden
@promises("dtype-kept")
@exercise("CausalSelfAttention")
def test_attention_gradients(student, reference, draw):
    """Gradients reach x and every parameter; strided float64 input; nothing changes in place."""
    mine, theirs, state = fused_pair(student, reference, draw, 6, 2, torch.float64, dropout=P)
    x = draw.normal(2, 6, 4).double().mT
    seen, wanted = mine.observe(x), theirs.observe(x)
    case = f"a strided float64 input with gradients, dropout={P} in eval mode"
    same_attention(student, seen.value, wanted.value, state, 2, x, case)
    names = labels(fused_state(draw, 1), ("0", "x"))
    arrive(seen, wanted, names, same_values(seen.value, wanted.value))
    expectations.unchanged(seen)
    mine, theirs, state = fused_pair(student, reference, draw, 4, 1, torch.float64)
    x = 30 * draw.normal(1, 3, 4).double()
    same_attention(student, mine(x), theirs(x), state, 1, x, "scores in the hundreds, one head")


@hidden
@exercise("CausalSelfAttention")
def test_attention_far(student, reference, draw):
    """What lies ahead is hidden however low the visible scores are; B=T=H, and long inputs."""
    for batch, length, width, heads in [(3, 3, 6, 3), (1, 1030, 2, 1)]:
        mine, theirs, state = fused_pair(student, reference, draw, width, heads)
        x = draw.normal(batch, length, width)
        case = sizes(B=batch, T=length, D=width, H=heads)
        same_attention(student, mine(x), theirs(x), state, heads, x, case)
    # Queries are x, keys -x and values x: positions whose vectors are orthogonal score 0 with each
    # other, and far less with themselves.
    eye = torch.eye(4)
    state = {"qkv.weight": torch.cat([eye, -eye, eye]), "qkv.bias": torch.zeros(12)}
    state |= {"out_proj.weight": eye, "out_proj.bias": torch.zeros(4)}
    mine, theirs = pair(student, reference, "CausalSelfAttention", state, d_model=4, num_heads=1)
    for size in (150.0, 1500.0):
        x = size * eye[None, :3]
        case = f"scores of {-(size**2) / 2:.4g} at a position itself and 0 at positions ahead"
        same_attention(student, mine(x), theirs(x), state, 1, x, case)


# --------------------------------------------------------------------------------------------
# gelu
# --------------------------------------------------------------------------------------------


@promises("tanh-formula", "any-shape")
@exercise("gelu", 2)
def test_gelu_values(student, reference, draw):
    """Half of x times 1 plus a tanh, entry by entry, between -3 and 3."""
    for shape in [(), (5,), (2, 3, 4)]:
        x = draw.uniform(*shape, low=-3, high=3)
        expectations.close(
            student.gelu(x), reference.gelu(x), what="gelu(x)", case=f"x of shape {shape}"
        )


@promises("not-exact-form")
@exercise("gelu")
def test_gelu_form(student, reference):
    """The form with tanh: in float64 it differs from the exact one in the fourth position."""
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


@promises("layers")
@exercise("FeedForward")
def test_ffn_parameters(student):
    """The inner layer is four times as wide; both layers have a bias."""
    mine = student.module("FeedForward", d_model=3)
    expected = {"w_1.weight": (12, 3), "w_1.bias": (12,), "w_2.weight": (3, 12), "w_2.bias": (3,)}
    same_parameters(mine, expected)


@promises("two-layers", "any-axes")
@exercise("FeedForward", 2)
def test_ffn_values(student, reference, draw):
    """w_2(gelu(w_1(x))) at every position, of any axes; in train mode too where dropout is 0."""
    for *axes, width in [(1, 1, 2), (1, 2, 3), (2, 3, 4), (2, 3), (2, 1, 3, 2)]:
        mine, theirs = pair(
            student, reference, "FeedForward", ffn_state(draw, width), d_model=width
        )
        x = draw.normal(*axes, width)
        same_by_parts(
            student,
            mine.train()(x),
            theirs(x),
            lambda parts, mine=mine, x=x: ffn_by_parts(parts, mine, x),
            "the output",
            case=f"x of shape {tuple(x.shape)}",
        )


@exercise("FeedForward")
def test_ffn_eval(student, reference, draw):
    """Dropout does nothing in eval mode."""
    options = {"d_model": 4, "dropout": 0.5}
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
@promises("dropout-on-result")
@exercise("FeedForward")
def test_ffn_dropout(student, draw):
    """In train mode the result is dropped, nothing before it, and the rest divided by 1 - p."""
    width = 16
    state = {name: torch.zeros_like(value) for name, value in ffn_state(draw, width).items()}
    state["w_1.bias"] += 20.0  # far out, where any gelu is x
    state["w_1.weight"] += 1.0 / width
    state["w_2.weight"] += 1.0 / (20.0 * 4 * width)
    state["w_2.bias"] += 1.0
    mine = student.module("FeedForward", state=state, d_model=width, dropout=P)
    x = draw.normal(8, 20, width)
    kept = expectations.tensor(mine(x), what="the output")
    expectations.shape(kept, x.shape, what="the output")
    expectations.finite(kept, what="the output")
    output = expectations.tensor(mine.train()(x), what="the output")
    dropped(output, kept, P, "the output")
    drawn_anew(output != expectations.tensor(mine(x), what="the output"))


@hidden
@exercise("FeedForward")
def test_ffn_gradients(student, reference, draw):
    """Gradients reach x and every parameter; strided float64 input; x is left as it was."""
    mine, theirs = pair(
        student, reference, "FeedForward", ffn_state(draw, 3), torch.float64, d_model=3, dropout=P
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


def block_by_parts(parts, name, options, state, x):
    """A block put together from the student's attention and feed-forward network."""
    sizes = {"d_model": options["d_model"], "num_heads": options["num_heads"]}
    own = {part: within(state, f"{part}.") for part in ("attention", "feed_forward")}
    attention = parts.make("CausalSelfAttention", state=own["attention"], dtype=x.dtype, **sizes)
    feed_forward = parts.make(
        "FeedForward", state=own["feed_forward"], dtype=x.dtype, d_model=options["d_model"]
    )
    if name == "PostNormBlock":
        x = own_norm(x + attention(x), state, "norm_1")
        return own_norm(x + feed_forward(x), state, "norm_2")
    x = x + attention(own_norm(x, state, "norm_1"))
    return x + feed_forward(own_norm(x, state, "norm_2"))


def same_block(student, name, mine, theirs, options, state, cases, train=False):
    """A block is right on each case: words -> x."""
    for case, x in cases.items():
        same_by_parts(
            student,
            (mine.train() if train else mine)(x),
            theirs(x),
            lambda parts, x=x: block_by_parts(parts, name, options, state, x),
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
    given = {"d_model": options["d_model"], "num_heads": options["num_heads"]}
    state = fitting(student, "CausalSelfAttention", given, state, "attention.")
    return fitting(student, "FeedForward", {"d_model": options["d_model"]}, state, "feed_forward.")


def block_pair(student, reference, name, state, dtype=None, **options):
    """The student's block, the reference's, and the parameters of the student's."""
    own = own_block(student, state, options)
    mine = pair(student, student, name, own, dtype, **options)[0]
    return mine, pair(reference, reference, name, state, dtype, **options)[0], own


def block_values(student, reference, draw, name):
    cases = {
        "one vector": draw.normal(1, 1, 6),
        "B=2, T=3, D=6, H=3, dropout=0 in train mode": draw.normal(2, 3, 6),
    }
    options = {"d_model": 6, "num_heads": 3}
    mine, theirs, own = block_pair(student, reference, name, block_state(draw, 6), **options)
    same_block(student, name, mine, theirs, options, own, cases, train=True)
    cases = {"B=3, T=4, D=4, H=2, dropout=0.4 in eval mode": draw.normal(3, 4, 4)}
    options = {"d_model": 4, "num_heads": 2, "dropout": P}
    mine, theirs, own = block_pair(student, reference, name, block_state(draw, 4), **options)
    try:
        same_block(student, name, mine, theirs, options, own, cases)
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
    own = own_block(student, blank, {"d_model": width, "num_heads": 2})
    shapes = {name: tuple(value.shape) for name, value in own.items()}
    names = ("norm_1.weight", "norm_1.bias", "norm_2.weight", "norm_2.bias")
    return shapes | dict.fromkeys(names, (width,))


def own_block_shapes(student, name):
    """The parameters of the student's own block of width 4, which answers for them itself."""
    own = by_parts(student, lambda parts: parts.proxy.module(name, d_model=4, num_heads=2))
    if own is None:
        return block_shapes(student, 4)
    return {key: tuple(shape) for key, shape in own.parameters().items()}


def block_gradients(student, reference, draw, name):
    state = block_state(draw, 4)
    options = {"d_model": 4, "num_heads": 2}
    mine, theirs, own = block_pair(student, reference, name, state, torch.float64, **options)
    x = draw.normal(2, 4, 3).double().mT
    flows(
        student,
        mine,
        theirs,
        (x,),
        lambda parts: block_by_parts(parts, name, options, own, x),
        "the output",
        "a strided float64 input",
    )
    # Little deviation before each norm, so that eps shows.
    small = {each: value if "norm" in each else 0.01 * value for each, value in state.items()}
    mine, theirs, own = block_pair(student, reference, name, small, torch.float64, **options)
    x = 0.002 * x.contiguous()
    same_by_parts(
        student,
        mine(x),
        theirs(x),
        lambda parts: block_by_parts(parts, name, options, own, x),
        "the output",
        case="entries of x of about 0.002, in float64",
    )


def part_drops(student, reference, name, state, **options):
    """Whether the student's own part does as it should with these parameters, if it is written."""
    x = torch.ones(4, 40, options["d_model"])
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
    options = {"d_model": width, "num_heads": heads}
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
        "feed_forward": ("FeedForward", {"d_model": width}, added[:, :, 40:]),
    }
    if not all(
        part_drops(student, reference, kind, within(state, f"{part}."), **given)
        for part, (kind, given, _) in parts.items()
    ):
        return  # It is a part that is wrong.
    expectations.true(
        bool(((added - x)[:, :, :16].abs() < 1e-3).all()),
        f"In train mode at dropout={P} entries change that neither part adds to; the block has no "
        "dropout of its own.",
    )
    for part, (_, _, got) in parts.items():
        gone = got.abs() < 1e-3
        expectations.rate(
            int(gone.sum()),
            gone.numel(),
            P,
            what=f"in train mode at dropout={P}, the share of zeros in what {part} adds",
            false_alarm=1e-10,
        )


@promises("norm-after-sum")
@exercise("PostNormBlock", 2)
def test_post_values(student, reference, draw):
    """Attention, then the feed-forward network: each is added to what came in, then normalised."""
    block_values(student, reference, draw, "PostNormBlock")


@promises("submodules")
@exercise("PostNormBlock")
def test_post_parameters(student):
    """An attention, a feed-forward network and two norms."""
    mine = student.module("PostNormBlock", d_model=4, num_heads=2)
    same_parameters(mine, block_shapes(student, 4))


@promises("norm-after-sum")
@exercise("PostNormBlock")
def test_post_normalised(student, draw):
    """What comes out has mean 0 and variance 1 where norm_2 has not learned yet."""
    state = block_state(draw, 8)
    state["norm_2.weight"], state["norm_2.bias"] = torch.ones(8), torch.zeros(8)
    options = {"d_model": 8, "num_heads": 2}
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
@promises("dropout-in-parts")
@exercise("PostNormBlock")
def test_post_dropout(student, reference, draw):
    """dropout reaches attention and feed-forward network; the block itself drops nothing."""
    block_dropout(student, reference, draw, "PostNormBlock")


@hidden
@exercise("PostNormBlock")
def test_post_gradients(student, reference, draw):
    """Gradients reach x and every parameter, in float64; small deviations (eps is 1e-5)."""
    block_gradients(student, reference, draw, "PostNormBlock")


@promises("norm-inside-branch")
@exercise("PreNormBlock", 2)
def test_pre_values(student, reference, draw):
    """Attention and feed-forward network read normalised vectors, and are added to plain ones."""
    block_values(student, reference, draw, "PreNormBlock")


@promises("submodules")
@exercise("PreNormBlock")
def test_pre_parameters(student):
    """An attention, a feed-forward network and two norms, as in the other block."""
    mine = student.module("PreNormBlock", d_model=4, num_heads=2)
    same_parameters(mine, block_shapes(student, 4))


@aspect
@promises("residual-path")
@exercise("PreNormBlock")
def test_pre_passes(student, draw):
    """Where the two parts add nothing, x comes out as it went in: no norm is in its way."""
    state = {
        name: value if name.startswith("norm") else torch.zeros_like(value)
        for name, value in block_state(draw, 6).items()
    }
    options = {"d_model": 6, "num_heads": 2}
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
@promises("dropout-in-parts")
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
    dtype, norm_first = state["token.weight"].dtype, options.get("norm_first", True)
    x = state["token.weight"][ids] + state["position.weight"][: ids.shape[1]]
    given = {"d_model": options["d_model"], "num_heads": options["num_heads"]}
    for number in range(options["num_layers"]):
        block = within(state, f"blocks.{number}.")
        x = parts.make(BLOCK[norm_first], state=block, dtype=dtype, **given)(x)
    x = own_norm(x, state, "final_norm") if norm_first else x
    return x @ state["token.weight"].mT if head else x


def own_blocks(student, state, options):
    """A GPT's parameters, or what fits the student's own blocks."""
    name = BLOCK[options.get("norm_first", True)]
    given = {"d_model": options["d_model"], "num_heads": options["num_heads"]}
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
@promises("submodules", "own-parameters", "tied-output")
@exercise("GPT")
def test_gpt_parameters(student):
    """Two tables, as many blocks as asked for, a last norm only with pre-norm, no other head."""
    given = {"vocab_size": 7, "max_length": 5, "d_model": 4, "num_layers": 3, "num_heads": 2}
    for norm_first in (True, False):
        expected = {"token.weight": (7, 4), "position.weight": (5, 4)}
        block = own_block_shapes(student, BLOCK[norm_first])
        for number in range(3):
            expected |= {f"blocks.{number}.{name}": shape for name, shape in block.items()}
        if norm_first:
            expected |= {"final_norm.weight": (4,), "final_norm.bias": (4,)}
        mine = student.module("GPT", **given, norm_first=norm_first)
        same_parameters(mine, expected)
    attribute(mine, "max_length", 5)


@promises("formula", "both-orders")
@exercise("GPT", 3)
def test_gpt_pre(student, reference, draw):
    """Token plus position, every block in turn, a last norm, the token table as the head."""
    cases = {
        "one token": draw.integers(0, 9, 1, 1),
        "B=1, T=3, two blocks": draw.integers(0, 9, 1, 3),
        "B=3, T=5, two blocks, dropout=0 in train mode": draw.integers(0, 9, 3, 5),
        "B=2, T=8, as many as max_length": draw.integers(0, 9, 2, 8),
    }
    same_gpt(student, reference, draw, gpt_options(), cases, train=True)


@aspect
@promises("formula", "both-orders")
@exercise("GPT", 2)
def test_gpt_post(student, reference, draw):
    """With norm_first=False the blocks are GPT-1's, and nothing is normalised after them."""
    cases = {
        "one token, norm_first=False": draw.integers(0, 9, 1, 1),
        f"B=9, T=4, norm_first=False, dropout={P} in eval mode": draw.integers(0, 9, 9, 4),
    }
    options = gpt_options(width=4, layers=3, heads=4, dropout=P, norm_first=False)
    try:
        same_gpt(student, reference, draw, options, cases, methods=("forward", "features"))
    except Mistake:
        block = student.aside().module("PostNormBlock", d_model=4, num_heads=4, dropout=P)
        if steady(student, block, "forward"):
            raise


@promises("features")
@exercise("GPT")
def test_gpt_features(student, reference, draw):
    """features is what the head reads: (B, T, D), after the last norm."""
    cases = {"B=2, T=3, features": draw.integers(0, 9, 2, 3)}
    options = gpt_options(layers=1, heads=3)
    same_gpt(student, reference, draw, options, cases, methods=("features",))


@aspect
@promises("too-long")
@exercise("GPT")
def test_gpt_refusals(student, draw):
    """More tokens than max_length are refused, with both numbers in the message; as many not."""
    options = gpt_options(context=3, layers=1)
    mine = student.module("GPT", **options)
    expectations.shape(mine(draw.integers(0, 9, 2, 3)), (2, 3, 9), what="the logits")
    too_long = draw.integers(0, 9, 2, 4)
    words = {"4 tokens where max_length is 3": (too_long,)}
    refuses(mine, words)
    refuses(lambda ids: mine.method("features", ids), words)
    options = gpt_options(context=13, width=2, layers=1, heads=1)
    mine = student.module("GPT", **options)
    ids = draw.integers(0, 9, 1, 17)
    refused_naming(lambda: mine(ids), "17 tokens where max_length is 13", "17", "13")


@hidden
@exercise("GPT")
def test_gpt_ordinary(student, reference, draw):
    """Nothing masks PAD, which is an id like any other; as many rows as positions; long inputs."""
    ids = torch.tensor([[0, 0, 3, 0], [4, 0, 0, 8], [0, 8, 1, 2], [5, 0, 6, 0]])
    same_gpt(student, reference, draw, gpt_options(context=4), {"ids with many PAD, B=T=4": ids})
    options = gpt_options(context=1040, layers=1)
    cases = {"T=1030, one block": draw.integers(0, 9, 1, 1030)}
    same_gpt(student, reference, draw, options, cases)


def middle(value):
    """Of rows of two values, plus and minus, and what became of 0: which are in the middle."""
    value = expectations.tensor(value, what="the features")
    expectations.finite(value, what="the features")
    high, low = value.amax(-1, keepdim=True), value.amin(-1, keepdim=True)
    return (value - (high + low) / 2).abs() < 0.01 * (high - low)


def alternating(*shape):
    """1 and -1 in turn along the last axis."""
    signs = torch.ones(shape)
    signs[..., 1::2] = -1.0
    return signs


@aspect
@hidden
@promises("dropout")
@exercise("GPT")
def test_gpt_dropout(student, draw):
    """In train mode dropout, 0.1 if not given, acts on the embeddings and reaches the blocks."""
    width, length = 64, 20
    options = gpt_options(context=length, width=width)
    empty = {name: torch.zeros_like(value) for name, value in gpt_state(draw, options).items()}
    for name in empty:
        if "norm" in name and name.endswith("weight"):
            empty[name] += 1.0
    ids = draw.integers(0, 9, 5, length)
    # Blocks that add nothing.
    state = {**empty, "token.weight": 0.5 * alternating(9, width)}
    state["position.weight"] = 0.5 * alternating(length, width)
    plain = {name: value for name, value in options.items() if name != "dropout"}
    given = {"d_model": width, "num_heads": options["num_heads"], "dropout": P}

    def idle(parts):
        block = parts.proxy.module("PreNormBlock", state=within(state, "blocks.0."), **given)
        x = state["token.weight"].unsqueeze(0)
        return same_values(block(x), x)

    if to_blame(student, idle):
        return
    for p, mine in [
        (P, student.module("GPT", state=state, **{**options, "dropout": P})),
        (0.1, student.module("GPT", state=state, **plain)),
    ]:
        got = mine.train().method("features", ids)
        expectations.shape(got, (*ids.shape, width), what="the features")
        words = "by default" if p == 0.1 else f"at dropout={p}"
        gone = middle(got)
        expectations.rate(
            int(gone.sum()),
            gone.numel(),
            p,
            what=f"in train mode {words}, the share of dropped entries of the embeddings",
            false_alarm=1e-10,
        )
        expectations.independent(
            gone[:2],
            gone[2:4],
            p,
            what=f"in train mode {words}, where each entry is dropped by itself, how often two "
            "rows of a batch lose the same one",
            false_alarm=1e-10,
        )
    # Features that are the last norm's bias, whatever is dropped before it.
    bias = alternating(width)
    last = {"final_norm.weight": torch.zeros(width), "final_norm.bias": bias}
    state = {**empty, **last, "token.weight": draw.normal(9, width)}
    mine = student.module("GPT", state=state, **{**options, "dropout": P}).train()
    expectations.close(
        mine(ids),
        (state["token.weight"] @ bias).expand(*ids.shape, 9),
        what="the logits",
        case=f"train mode at dropout={P} and features that nothing dropped reaches",
    )
    # Embeddings that are 0 whatever is dropped, and blocks that add their last bias, one twice as
    # much as the other: 0 is left where both dropped it.
    state = {**empty, "blocks.0.feed_forward.w_2.bias": alternating(width)}
    state["blocks.1.feed_forward.w_2.bias"] = 2.0 * alternating(width)

    def drops(parts):
        block = parts.proxy.module("PreNormBlock", state=within(state, "blocks.0."), **given)
        alone = block.train()(torch.zeros(5, length, width))
        gone = middle(alone)
        expectations.rate(int(gone.sum()), gone.numel(), P, "a share", false_alarm=1e-10)
        return True

    if to_blame(student, drops):
        return
    mine = student.module("GPT", state=state, **{**options, "dropout": P}).train()
    gone = middle(mine.method("features", ids))
    expectations.rate(
        int(gone.sum()),
        gone.numel(),
        P**2,
        what=f"in train mode at dropout={P}, the share of zeros in what two blocks add together",
        false_alarm=1e-10,
    )


@hidden
@promises("own-parameters", "tied-output")
@exercise("GPT")
def test_gpt_gradients(student, reference, draw):
    """Gradients reach every block's own parameters, and the token table by both ways."""
    for norm_first in (True, False):
        options = gpt_options(width=4, context=5, norm_first=norm_first)
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
            f"two blocks in float64, norm_first={norm_first}",
        )
