"""Graders of `positional_encoding-relative`: learned and relative positions."""

from __future__ import annotations

import torch

from autograder.graders.common import pair, same_gradients, same_parameters, same_results, sizes
from autograder.judging import expectations
from autograder.judging.grader_marks import exercise, hidden

# --------------------------------------------------------------------------------------------
# LearnedPositions
# --------------------------------------------------------------------------------------------


def learned_pair(student, reference, draw, max_length, d_model, dtype=None):
    return pair(
        student,
        reference,
        "LearnedPositions",
        {"table.weight": draw.normal(max_length, d_model)},
        dtype=dtype,
        max_length=max_length,
        d_model=d_model,
    )


@exercise("LearnedPositions")
def test_learned_parameters(student):
    """There is one parameter, `table.weight`, with a row for each position."""
    same_parameters(
        student.module("LearnedPositions", max_length=7, d_model=3), {"table.weight": (7, 3)}
    )


@exercise("LearnedPositions")
def test_learned_values(student, reference, draw):
    """Row t of the table, counted from its beginning, is added to token t of every example."""
    for batch, length, max_length, d_model in [
        (2, 3, 5, 4),
        (1, 2, 6, 3),
        (2, 1, 5, 2),
        (1, 1, 1, 1),
        (4, 4, 4, 2),
    ]:
        mine, theirs = learned_pair(student, reference, draw, max_length, d_model)
        x = draw.normal(batch, length, d_model)
        case = sizes(B=batch, T=length, max_length=max_length, D=d_model)
        seen = mine.observe(x, grad=False)
        expectations.close(seen.value, theirs(x), what="the sum", case=case)
        expectations.unchanged(seen)


@exercise("LearnedPositions")
def test_learned_refuses(student, draw):
    """A sequence longer than the table, or of another width, raises a ValueError."""
    mine = student.module("LearnedPositions", max_length=3, d_model=4)
    for shape in [(2, 4, 4), (1, 9, 4), (2, 3, 5), (2, 3, 1), (1, 2, 2)]:
        expectations.raises(
            "ValueError",
            lambda shape=shape: mine(draw.normal(*shape)),
            what=f"x of shape {shape} with max_length=3, d_model=4",
        )


@hidden
@exercise("LearnedPositions")
def test_learned_large_batch(student, reference, draw):
    """A batch larger than the table, strided inputs, train mode and long tables are no matter."""
    mine, theirs = learned_pair(student, reference, draw, 4, 5, dtype=torch.float64)
    x = draw.normal(7, 5, 3).double().transpose(1, 2)
    expectations.close(
        mine.train()(x), theirs(x), what="the sum", case="B=7, max_length=4, float64"
    )
    mine, theirs = learned_pair(student, reference, draw, 600, 1)
    x = draw.normal(1, 600, 1)
    expectations.close(mine(x), theirs(x), what="the sum", case="T=max_length=600")


@hidden
@exercise("LearnedPositions")
def test_learned_gradients(student, reference, draw):
    """The gradient reaches x and the rows that were used, and x is left as it was."""
    mine, theirs = learned_pair(student, reference, draw, 6, 3, dtype=torch.float64)
    x = draw.normal(2, 4, 3).double()
    seen, wanted = mine.observe(x), theirs.observe(x)
    same_gradients(seen, wanted, {"0": "x", "parameter table.weight": "table.weight"})
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# relative_indices
# --------------------------------------------------------------------------------------------


@exercise("relative_indices")
def test_indices_values(student, reference):
    """Entry [i, j] is j - i, cut to -k..k and moved up by k: row i looks to the right by j - i."""
    for length, most in [(4, 2), (3, 1), (2, 3), (1, 2), (6, 3)]:
        expectations.close(
            student.relative_indices(length, most),
            reference.relative_indices(length, most),
            what="the indices",
            case=sizes(length=length, max_distance=most),
        )


@exercise("relative_indices")
def test_indices_extremes(student, reference):
    """max_distance=0 leaves one index for all; a large one cuts nothing."""
    for length, most in [(3, 9), (3, 0), (1, 0), (5, 4), (5, 5)]:
        expectations.close(
            student.relative_indices(length, most),
            reference.relative_indices(length, most),
            what="the indices",
            case=sizes(length=length, max_distance=most),
        )


@exercise("relative_indices")
def test_indices_refuse(student):
    """A length below 1 and a negative max_distance raise a ValueError."""
    for length, most in [(0, 2), (-1, 2), (3, -1), (3, -4)]:
        expectations.raises(
            "ValueError",
            lambda length=length, most=most: student.relative_indices(length, most),
            what=f"length={length}, max_distance={most}",
        )


@hidden
@exercise("relative_indices")
def test_indices_long(student, reference, draw):
    """Longer sequences with other distances give indices from 0 to 2k."""
    for length, most in [
        (9, draw.choice([1, 2, 3])),
        (draw.choice(range(20, 40)), 8),
        (30, 29),
        (150, 70),
    ]:
        expectations.close(
            student.relative_indices(length, most),
            reference.relative_indices(length, most),
            what="the indices",
            case=sizes(length=length, max_distance=most),
        )


# --------------------------------------------------------------------------------------------
# RelativeSelfAttention
# --------------------------------------------------------------------------------------------

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
OUTPUT = ("output", "attn_weights")


def relative_state(draw, d_model, heads, most):
    """Projections whose rows have unit variance, biases and offsets that are hard to overlook."""
    state = {}
    for name in PROJECTIONS:
        state[f"{name}.weight"] = draw.normal(d_model, d_model, scale=d_model**-0.5)
        state[f"{name}.bias"] = draw.normal(d_model, scale=0.5)
    for name in ("key_offsets", "value_offsets"):
        state[name] = draw.normal(2 * most + 1, d_model // heads)
    return state


def relative_pair(student, reference, draw, d_model, heads, most, dtype=None, far=False):
    state = relative_state(draw, d_model, heads, most)
    if far:
        # Queries of 2**12 and keys of 2**12 times feature 0, so that scores are about -2e7 where
        # it is -1: -10000 doesn't mask beside them, and -1e9, which many write, does.
        state["q_proj.weight"] = torch.zeros(d_model, d_model)
        state["q_proj.bias"] = torch.full((d_model,), 2.0**12)
        state["k_proj.weight"] = torch.zeros(d_model, d_model)
        state["k_proj.weight"][:, 0] = 2.0**12
        state["k_proj.bias"] = torch.zeros(d_model)
        state["key_offsets"] = torch.zeros(2 * most + 1, d_model // heads)
    return pair(
        student,
        reference,
        "RelativeSelfAttention",
        state,
        dtype=dtype,
        d_model=d_model,
        num_heads=heads,
        max_distance=most,
    )


@exercise("RelativeSelfAttention")
def test_relative_parameters(student):
    """Four projections with bias, and two tables of 2k + 1 offsets as wide as one head."""
    shapes = {"key_offsets": (9, 2), "value_offsets": (9, 2)}
    for name in PROJECTIONS:
        shapes |= {f"{name}.weight": (6, 6), f"{name}.bias": (6,)}
    handle = student.module("RelativeSelfAttention", d_model=6, num_heads=3, max_distance=4)
    same_parameters(handle, shapes)


@exercise("RelativeSelfAttention")
def test_relative_values(student, reference, draw):
    """The offset of j from i is added to key j and to value j, in every head."""
    for batch, length, d_model, heads, most in [
        (1, 4, 3, 1, 2),
        (1, 1, 2, 1, 1),
        (2, 3, 4, 2, 1),
        (2, 5, 6, 3, 2),
        (1, 3, 4, 4, 6),
        (2, 4, 4, 2, 0),
    ]:
        mine, theirs = relative_pair(student, reference, draw, d_model, heads, most)
        x = draw.normal(batch, length, d_model)
        case = sizes(B=batch, T=length, D=d_model, H=heads, max_distance=most)
        same_results(mine(x), theirs(x), OUTPUT, case)


@exercise("RelativeSelfAttention")
def test_relative_mask_for_all(student, reference, draw):
    """A (T, T) mask holds for every example and head; True means may attend."""
    mine, theirs = relative_pair(student, reference, draw, 6, 3, 2)
    x = draw.normal(5, 5, 6)  # as many rows as tokens
    for mask, case in [
        (draw.mask(5, 5, keep=0.6), "a mask of shape (T, T)"),
        (torch.ones(5, 5).tril().bool(), "a causal mask"),
    ]:
        same_results(mine(x, mask), theirs(x, mask), OUTPUT, case)


@exercise("RelativeSelfAttention")
def test_relative_mask_for_each_example(student, reference, draw):
    """A (B, T, T) or (B, 1, T) mask holds for every head of its own example, (T,) for all keys."""
    for batch, heads in [(2, 2), (3, 1), (2, 4)]:
        mine, theirs = relative_pair(student, reference, draw, 4, heads, 1)
        x = draw.normal(batch, 3, 4)
        for shape in [(batch, 3, 3), (batch, 1, 3), (1, 3, 3), (3,)]:
            mask = draw.mask(*shape, keep=0.6)
            case = f"{sizes(B=batch, H=heads)}, mask of shape {shape}"
            same_results(mine(x, mask), theirs(x, mask), OUTPUT, case)
    mine, theirs = relative_pair(student, reference, draw, 8, 2, 1, torch.float64, far=True)
    x, real = draw.normal(2, 5, 8).double(), draw.mask(2, 5)
    x[..., 0] = torch.where(real, -1.0, 1.0)
    case = "scores of about -2e7 beside masked ones of 2e7"
    mask = real.unsqueeze(1)
    same_results(mine(x, mask), theirs(x, mask), OUTPUT, case)


@exercise("RelativeSelfAttention")
def test_relative_fully_masked(student, reference, draw):
    """A position that may attend to nothing has weights 0, and its output is out_proj of 0."""
    mine, theirs = relative_pair(student, reference, draw, 4, 2, 1)
    x, mask = draw.normal(2, 4, 4), draw.mask(2, 4, 4)
    mask[1, 2] = False
    same_results(mine(x, mask), theirs(x, mask), OUTPUT, "position 2 of the second example masked")
    mask = torch.zeros(4, 4, dtype=torch.bool)
    same_results(mine(x, mask), theirs(x, mask), OUTPUT, "everything masked")
    mask = torch.tensor([True, False, True, True]).unsqueeze(1)
    case = "a mask of shape (T, 1) that masks the whole row 1"
    same_results(mine(x, mask), theirs(x, mask), OUTPUT, case)


@exercise("RelativeSelfAttention")
def test_relative_refuses(student, draw):
    """Heads that don't divide d_model, other widths, masks not bool or not fitting: ValueError."""
    for width, heads in [(6, 4), (4, 3)]:
        expectations.raises(
            "ValueError",
            lambda width=width, heads=heads: student.module(
                "RelativeSelfAttention", d_model=width, num_heads=heads, max_distance=2
            ),
            what=f"d_model={width} with {heads} heads",
        )
    mine = student.module("RelativeSelfAttention", d_model=4, num_heads=2, max_distance=2)
    for width in (5, 6, 2):
        x = draw.normal(2, 3, width)
        expectations.raises("ValueError", lambda x=x: mine(x), what=f"x of width {width}")
    x = draw.normal(2, 3, 4)
    for dtype in (torch.float32, torch.int64, torch.uint8):
        expectations.raises(
            "ValueError",
            lambda dtype=dtype: mine(x, torch.ones(3, 3, dtype=dtype)),
            what=f"a mask of dtype {dtype}",
        )
    for shape in [(3, 4), (3, 3, 3), (4, 3), (2,), (1, 1, 3, 3), (2, 2, 3, 3)]:
        expectations.raises(
            "ValueError",
            lambda shape=shape: mine(x, torch.ones(shape, dtype=torch.bool)),
            what=f"a mask of shape {shape} for x of shape (2, 3, 4)",
        )


@hidden
@exercise("RelativeSelfAttention")
def test_relative_strided_float64(student, reference, draw):
    """Transposed, expanded, large, long and float64 inputs work, one call after the other."""
    # Heads of width 4, whose root is exact: a scale held in float32 is as good.
    mine, theirs = relative_pair(student, reference, draw, 12, 3, 3, dtype=torch.float64)
    x = draw.normal(2, 12, 9).double().transpose(1, 2)
    same_results(mine(x), theirs(x), OUTPUT, "float64, transposed, T=9")
    large = draw.normal(1, 4, 12).double() * 100
    same_results(mine(large), theirs(large), OUTPUT, "entries of the order of 100")
    x, mask = draw.normal(1, 5, 12).double().expand(3, 5, 12), draw.mask(1, 5, 5)
    got = mine.train()(x, mask)
    same_results(got, theirs(x, mask), OUTPUT, "an expanded input, mask (1, T, T), in train mode")
    x = draw.normal(1, 150, 12).double()
    same_results(mine.eval()(x), theirs(x), OUTPUT, "T=150, after shorter inputs")


@hidden
@exercise("RelativeSelfAttention")
def test_relative_sees_offsets_only(student, reference, draw):
    """Equal tokens: weights depend on j - i only, and beyond the clipping distance not at all."""
    most, length = 2, 9
    mine, theirs = relative_pair(student, reference, draw, 4, 2, most)
    x = draw.normal(1, 1, 4).expand(1, length, 4)
    got, want = mine(x), theirs(x)
    same_results(got, want, OUTPUT, "a sequence of equal tokens")
    weights = got[1]
    middle = weights[0, :, 4]
    expectations.close(
        middle[:, : 4 - most + 1],
        middle[:, :1].expand(-1, 4 - most + 1),
        what="the weights beyond the clipping distance",
        case="a sequence of equal tokens",
    )


@hidden
@exercise("RelativeSelfAttention")
def test_relative_gradients(student, reference, draw):
    """Gradients flow to x and all parameters, past a fully masked row; inputs are left alone."""
    mine, theirs = relative_pair(student, reference, draw, 12, 3, 2, dtype=torch.float64)
    x, mask = draw.normal(2, 5, 12).double(), draw.mask(2, 5, 5)
    mask[1, 2] = False
    seen, wanted = mine.observe(x, mask), theirs.observe(x, mask)
    names = {"0": "x"} | {f"parameter {name}.weight": f"{name}.weight" for name in PROJECTIONS}
    # A bias of k_proj adds the same number to a whole row of scores: its gradient is zero.
    names |= {f"parameter {name}.bias": f"{name}.bias" for name in ("q_proj", "v_proj", "out_proj")}
    names |= {f"parameter {name}": name for name in ("key_offsets", "value_offsets")}
    same_gradients(seen, wanted, names)
    expectations.unchanged(seen)
