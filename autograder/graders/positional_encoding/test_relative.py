"""Graders of `positional_encoding-relative`: learned, relative and rotary positions, ALiBi."""

from __future__ import annotations

import torch

from autograder.graders.common import pair, same_gradients, same_parameters, same_results, sizes
from autograder.judging import expectations
from autograder.judging.grader_marks import exercise, hidden, promises

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


@promises("layer")
@exercise("LearnedPositions")
def test_learned_parameters(student):
    """There is one parameter, `table.weight`, with a row for each position."""
    same_parameters(
        student.module("LearnedPositions", max_length=7, d_model=3), {"table.weight": (7, 3)}
    )


@promises("sum", "second-dimension")
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


@promises("too-long")
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
    """A batch larger than the table, strides, train mode, long and then short inputs all work."""
    mine, theirs = learned_pair(student, reference, draw, 4, 5, dtype=torch.float64)
    x = draw.normal(7, 5, 3).double().transpose(1, 2)
    expectations.close(
        mine.train()(x), theirs(x), what="the sum", case="B=7, max_length=4, float64, train mode"
    )
    mine, theirs = learned_pair(student, reference, draw, 600, 1)
    for length, case in [(600, "T=max_length=600"), (7, "T=7, after a longer input")]:
        x = draw.normal(1, length, 1)
        expectations.close(mine(x), theirs(x), what="the sum", case=case)


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


@promises("clipped-distance", "rows-are-queries", "int64")
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


@promises("bad-input")
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


def relative_pair(student, reference, draw, d_model, heads, most, dtype=None, far=False, zero=()):
    state = relative_state(draw, d_model, heads, most)
    state |= {name: torch.zeros_like(state[name]) for name in zero}
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


@promises("layers", "offsets")
@exercise("RelativeSelfAttention")
def test_relative_parameters(student):
    """Four projections with bias, and two tables of 2k + 1 offsets as wide as one head."""
    shapes = {"key_offsets": (9, 2), "value_offsets": (9, 2)}
    for name in PROJECTIONS:
        shapes |= {f"{name}.weight": (6, 6), f"{name}.bias": (6,)}
    handle = student.module("RelativeSelfAttention", d_model=6, num_heads=3, max_distance=4)
    same_parameters(handle, shapes)


@promises("formula")
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


@promises("mask", "zero-weights")
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
    none = ("q_proj.weight", "q_proj.bias")
    mine, theirs = relative_pair(student, reference, draw, 6, 3, 2, zero=none)
    case = "a mask of shape (T, T), where all scores are 0"
    mask = draw.mask(5, 5, keep=0.6)
    same_results(mine(x, mask), theirs(x, mask), OUTPUT, case)


@promises("mask")
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
    # As much apart as float64 holds beside 2e7 and float32 does not.
    x[..., 0] = torch.where(real, 1e-7 * x[..., 0] - 1.0, 1.0)
    case = "float64, scores of about -2e7 beside masked ones of 2e7"
    mask = real.unsqueeze(1)
    same_results(mine(x, mask), theirs(x, mask), OUTPUT, case)


@promises("fully-masked-row")
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


@promises("bad-input")
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
    shapes = [(3, 4), (3, 3, 3), (4, 3), (2,), (1, 1, 3, 3), (2, 2, 3, 3)]
    # Beside one example, or one token, a larger mask is broadcast the other way round.
    larger = [(x[:1], (2, 3, 3)), (x[:, :1], (3,))]
    for given, shape in [(x, shape) for shape in shapes] + larger:
        expectations.raises(
            "ValueError",
            lambda given=given, shape=shape: mine(given, torch.ones(shape, dtype=torch.bool)),
            what=f"a mask of shape {shape} for x of shape {tuple(given.shape)}",
        )


@hidden
@promises("dtype-kept")
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
@promises("fully-masked-row")
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


# --------------------------------------------------------------------------------------------
# RotaryEmbedding
# --------------------------------------------------------------------------------------------

# What an angle computed in float32 may be off, as a share of the position; at 10,000 it is 0.002.
ANGLE_ERROR = 2e-7
PAIRINGS = (False, True)


def rotary_pair(student, reference, head_dim, dtype=None, **options):
    return pair(student, reference, "RotaryEmbedding", dtype=dtype, head_dim=head_dim, **options)


def turned(actual, expected, largest, what="the result", case=""):
    """Like `expectations.close`, with room for angles of positions up to `largest` in float32."""
    expectations.shape(actual, expected.shape, what=what, case=case)
    if actual.dtype == expected.dtype:
        scale = max(float(expected.abs().max()), 1.0)
        allowed = expectations.tolerance(expected) + 2 * ANGLE_ERROR * largest * scale
        if bool(((actual.double() - expected.double()).abs() <= allowed).all()):
            return
    expectations.close(actual, expected, what=what, case=case)


def same_tables(mine, theirs, position_ids, case):
    """`tables` returns cosine and sine, those of the reference."""
    got = expectations.items(mine.method("tables", position_ids), 2, what="what tables returns")
    largest = int(position_ids.abs().max())
    for what, actual, expected in zip(
        ("cos", "sin"), got, theirs.method("tables", position_ids), strict=True
    ):
        turned(actual, expected, largest, what=f"the {what} of tables", case=case)


@promises("tables-shape", "angles")
@exercise("RotaryEmbedding")
def test_rotary_tables(student, reference):
    """Cosine and sine of position times frequency, head_dim/2 of each, for any position_ids."""
    for positions, head_dim, base in [
        ([1], 2, 10000.0),
        ([0, 1, 2], 4, 100.0),
        ([3, 0, 7, 7], 6, 10000.0),
        ([[0, 1], [5, 6]], 8, 1e6),
        ([[[2, 1, 9]], [[0, 4, 3]]], 10, 50.0),
    ]:
        mine, theirs = rotary_pair(student, reference, head_dim, base=base)
        position_ids = torch.tensor(positions)
        case = sizes(position_ids=positions, head_dim=head_dim, base=base)
        same_tables(mine, theirs, position_ids, case)


def rotary_values(student, reference, draw, interleaved):
    for shape, base in [
        ((2, 2), 10000.0),
        ((3, 4), 100.0),
        ((2, 3, 6), 10000.0),
        ((1, 5, 8), 500.0),
        ((2, 3, 4, 10), 10000.0),
        ((3, 3, 3, 4), 10000.0),
        ((2, 1, 2, 3, 4), 10000.0),
    ]:
        mine, theirs = rotary_pair(
            student, reference, shape[-1], base=base, interleaved=interleaved
        )
        x = draw.normal(*shape)
        case = sizes(x=shape, base=base, interleaved=interleaved)
        seen = mine.observe(x, grad=False)
        turned(seen.value, theirs(x), shape[-2], what="the rotated x", case=case)
        expectations.unchanged(seen)
    mine, theirs = rotary_pair(student, reference, 6, interleaved=interleaved)
    x, case = draw.normal(2, 4, 6), "the default base"
    turned(mine(x), theirs(x), 4, what="the rotated x", case=case)


@promises("rotates", "same-place", "half-pairs", "default-positions")
@exercise("RotaryEmbedding")
def test_rotary_half(student, reference, draw):
    """By default features i and i + head_dim/2 are a pair, and positions are 0, 1, 2, …."""
    rotary_values(student, reference, draw, interleaved=False)
    mine, theirs = pair(student, reference, "RotaryEmbedding", head_dim=4)
    x = draw.normal(2, 3, 4)
    turned(mine(x), theirs(x), 3, what="the rotated x", case="interleaved not given")


@promises("rotates", "same-place", "interleaved-pairs", "default-positions")
@exercise("RotaryEmbedding")
def test_rotary_interleaved(student, reference, draw):
    """With interleaved=True the neighbours 2i and 2i + 1 are a pair."""
    rotary_values(student, reference, draw, interleaved=True)


@promises("given-positions")
@exercise("RotaryEmbedding")
def test_rotary_position_ids(student, reference, draw):
    """Given positions are used: shifted, in any order, different for each example, one alone."""
    for shape, position_ids, words in [
        ((2, 3, 4), torch.tensor([5, 6, 7]), "positions 5, 6, 7"),
        ((3, 1, 6), torch.tensor([9]), "position 9 alone"),
        ((2, 2, 4, 4), torch.tensor([2, 0, 3, 3]), "positions 2, 0, 3, 3"),
        ((2, 3, 4), torch.tensor([[0, 1, 2], [0, 0, 1]]), "positions (B, T)"),
        ((2, 3, 4, 4), torch.tensor([[[1, 2, 3, 4]], [[0, 0, 5, 1]]]), "positions (B, 1, T)"),
        ((3, 3, 3, 4), draw.integers(0, 12, 3, 1, 3), "positions (B, 1, T), where B = H = T"),
        ((2, 2, 3, 4), draw.integers(0, 12, 2, 2, 3), "positions (B, H, T)"),
        ((3, 2, 4, 4), draw.integers(0, 12, 2, 4), "positions (H, T)"),
        ((2, 3, 6), torch.tensor([6]), "position 6 for all"),
    ]:
        for interleaved in PAIRINGS:
            mine, theirs = rotary_pair(
                student, reference, shape[-1], base=50.0, interleaved=interleaved
            )
            x, case = draw.normal(*shape), f"{words}, {sizes(x=shape, interleaved=interleaved)}"
            seen, want = mine.observe(x, position_ids, grad=False), theirs(x, position_ids)
            turned(seen.value, want, int(position_ids.max()), what="the rotated x", case=case)
            expectations.unchanged(seen)
    mine, theirs = rotary_pair(student, reference, 4)
    for first in (0, 4):
        x, position_ids = draw.normal(2, 3, 4), torch.arange(first, first + 3)
        case = f"positions {position_ids.tolist()}, asked in turn"
        turned(mine(x, position_ids), theirs(x, position_ids), 6, "the rotated x", case)


@promises("nothing-saved")
@exercise("RotaryEmbedding")
def test_rotary_saves_nothing(student):
    """There are no parameters, and the state dict is empty."""
    mine = student.module("RotaryEmbedding", head_dim=6)
    same_parameters(mine, {})
    state = mine.state()
    expectations.true(
        not state,
        f"The state dict should be empty, but holds {', '.join(sorted(state))}; "
        "register the buffer with persistent=False.",
    )


@promises("odd-width", "other-width")
@exercise("RotaryEmbedding")
def test_rotary_refuses(student, draw):
    """An odd head_dim, and an x of another width, raise a ValueError."""
    for head_dim in (3, 1, 7):
        expectations.raises(
            "ValueError",
            lambda head_dim=head_dim: student.module("RotaryEmbedding", head_dim=head_dim),
            what=f"head_dim={head_dim}",
        )
    for interleaved in PAIRINGS:
        mine = student.module("RotaryEmbedding", head_dim=4, interleaved=interleaved)
        for shape in [(2, 3, 6), (3, 2), (2, 3, 1), (4, 5), (2, 4, 3, 8)]:
            expectations.raises(
                "ValueError",
                lambda shape=shape, mine=mine: mine(draw.normal(*shape)),
                what=f"x of shape {shape} with head_dim=4",
            )


@hidden
@promises("position-zero", "same-norm", "relative-only")
@exercise("RotaryEmbedding")
def test_rotary_relative(student, reference, draw):
    """Position 0 changes nothing, no length changes, and products depend on the distance only."""
    for interleaved in PAIRINGS:
        mine, theirs = rotary_pair(student, reference, 8, base=100.0, interleaved=interleaved)
        q, k = draw.normal(8), draw.normal(8)
        there = torch.arange(10)
        case = f"the same vector at positions 0 to 9, {sizes(interleaved=interleaved)}"
        got = [mine(vector.expand(10, 8), there) for vector in (q, k)]
        for rotated, vector in zip(got, (q, k), strict=True):
            turned(rotated, theirs(vector.expand(10, 8), there), 10, "the rotated x", case)
            turned(rotated[0], vector, 0, what="the vector at position 0", case=case)
            norms = rotated.norm(dim=-1)
            turned(norms, vector.norm().expand(10), 0, what="the lengths", case=case)
        products = got[0] @ got[1].T
        for distance in range(1, 4):
            same = products.diagonal(distance)
            turned(
                same,
                same[:1].expand(len(same)),
                10 * float(q.norm() * k.norm()),
                what=f"the products of queries and keys {distance} apart",
                case=case,
            )


@hidden
@promises("dtype-of-x", "angles-in-float32")
@exercise("RotaryEmbedding")
def test_rotary_dtypes(student, reference, draw):
    """float64 and bfloat16 stay what they are, and angles are exact enough after .to(bfloat16)."""
    for interleaved in PAIRINGS:
        for dtype in (torch.float64, torch.bfloat16):
            for converted in (None, dtype):
                mine, theirs = rotary_pair(
                    student, reference, 4, dtype=converted, base=100.0, interleaved=interleaved
                )
                words = "" if converted is None else ", in a module converted with .to"
                x = draw.normal(2, 5, 4).to(dtype)
                case = f"an x of {dtype}{words}, {sizes(interleaved=interleaved)}"
                turned(mine(x), theirs(x), 5, what="the rotated x", case=case)
        mine, _ = rotary_pair(student, reference, 4, interleaved=interleaved)
        x = draw.normal(1, 3, 4).double() / 3  # float32 can't hold it
        got = expectations.tensor(mine(x, torch.zeros(3, dtype=torch.int64)), "the rotated x")
        expectations.shape(got, x.shape, what="the rotated x")
        expectations.true(
            bool((got - x).abs().max() < 1e-9),
            "At position 0 an x of float64 loses digits; rotate it in its own dtype.",
            misconception="rotary_in_float32",
        )
    # Angles of at most 257, which float32 has to seven digits: a mistake is still recognised.
    mine, theirs = rotary_pair(student, reference, 4, dtype=torch.bfloat16, base=10.0)
    x, position_ids = draw.normal(1, 3, 4).bfloat16(), torch.tensor([257, 129, 201])
    case = "positions 257, 129 and 201 after .to(torch.bfloat16)"
    same_tables(mine, theirs, position_ids, case)
    turned(mine(x, position_ids), theirs(x, position_ids), 257, "the rotated x", case)


@hidden
@promises("far-positions")
@exercise("RotaryEmbedding")
def test_rotary_far(student, reference, draw):
    """Long inputs, positions up to 10,000, transposed, expanded and large inputs, in train mode."""
    far = torch.tensor([0, 2047, 2048, 4095, 4096, 8191, 8192, 10000])
    for interleaved in PAIRINGS:
        # The frequencies are 1, 1/2, 1/4, …: exact in float32, so a mistake is still recognised.
        mine, theirs = rotary_pair(student, reference, 16, base=256.0, interleaved=interleaved)
        same_tables(mine, theirs, far, "positions up to 10,000")
        x = draw.normal(2, 8, 16)
        case = f"positions up to 10,000, {sizes(interleaved=interleaved)}"
        turned(mine(x, far), theirs(x, far), 10000, what="the rotated x", case=case)
        x = draw.normal(1, 4000, 16)
        turned(mine.train()(x), theirs(x), 4000, what="the rotated x", case="T=4000, train mode")
        x = draw.normal(2, 4, 16, 3).transpose(-2, -1)
        turned(mine.eval()(x), theirs(x), 3, what="the rotated x", case="a transposed x, T=3")
        x = 100 * draw.normal(1, 5, 16).expand(3, 5, 16)
        turned(mine(x), theirs(x), 5, what="the rotated x", case="an expanded x of large numbers")


@hidden
@promises("rotates")
@exercise("RotaryEmbedding")
def test_rotary_gradients(student, reference, draw):
    """The gradient reaches x, rotated back; x and position_ids are left alone."""
    for interleaved in PAIRINGS:
        mine, theirs = rotary_pair(student, reference, 6, base=50.0, interleaved=interleaved)
        x, position_ids = draw.normal(2, 4, 6).double(), torch.tensor([0, 3, 1, 4])
        seen, wanted = mine.observe(x, position_ids), theirs.observe(x, position_ids)
        case = sizes(interleaved=interleaved)
        expectations.true(
            seen.grads.get("0") is not None,
            "No gradient reaches x; look for detach(), .data, .item() or no_grad().",
        )
        turned(seen.grads["0"], wanted.grads["0"], 4, what="the gradient of x", case=case)
        expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# alibi_biases
# --------------------------------------------------------------------------------------------


def same_biases(student, reference, num_heads, length):
    expectations.close(
        student.alibi_biases(num_heads, length),
        reference.alibi_biases(num_heads, length),
        what="the biases",
        case=sizes(num_heads=num_heads, length=length),
    )


@promises("biases-shape", "linear-in-distance", "power-of-two", "both-sides", "no-mask")
@exercise("alibi_biases")
def test_alibi_powers_of_two(student, reference):
    """1, 2, 4, 8, 16 heads: head h subtracts 2^(-8(h+1)/H) for each step to the left or right."""
    for num_heads, length in [(1, 3), (2, 3), (4, 2), (8, 4), (2, 5), (4, 4), (16, 3)]:
        same_biases(student, reference, num_heads, length)


@promises("other-numbers")
@exercise("alibi_biases")
def test_alibi_other_numbers(student, reference):
    """3, 5, 6 and 12 heads: the slopes for 2, 4 and 8, then every second of the next power's."""
    for num_heads, length in [(3, 2), (3, 3), (6, 3), (5, 4), (7, 2), (12, 3)]:
        same_biases(student, reference, num_heads, length)


@promises("linear-in-distance", "both-sides")
@exercise("alibi_biases")
def test_alibi_one_position(student, reference):
    """A position alone has the bias 0 in every head, and so has each with itself."""
    for num_heads, length in [(2, 1), (2, 2), (3, 1), (1, 1), (1, 2), (8, 8)]:
        same_biases(student, reference, num_heads, length)


@promises("no-heads", "no-length")
@exercise("alibi_biases")
def test_alibi_refuses(student):
    """Fewer than one head, and a length below 1, raise a ValueError."""
    for num_heads, length in [(0, 3), (-1, 3), (2, 0), (2, -2), (-4, 1), (1, -1)]:
        expectations.raises(
            "ValueError",
            lambda num_heads=num_heads, length=length: student.alibi_biases(num_heads, length),
            what=f"num_heads={num_heads}, length={length}",
        )


@hidden
@promises("power-of-two", "other-numbers")
@exercise("alibi_biases")
def test_alibi_many_heads(student, reference, draw):
    """Models have 20, 32, 40 or 71 heads, and any other number works too."""
    for num_heads, length in [
        (20, 3),
        (draw.choice([9, 10, 11, 13, 14, 15]), 4),
        (32, 5),
        (draw.choice(range(17, 31)), 2),
        (40, 6),
        (71, 3),
        (112, 2),
    ]:
        same_biases(student, reference, num_heads, length)


@hidden
@promises("linear-in-distance", "both-sides")
@exercise("alibi_biases")
def test_alibi_long(student, reference, draw):
    """Hundreds of positions: the penalty goes on growing with the distance, on both sides."""
    for num_heads, length in [(4, 9), (6, draw.choice(range(20, 60))), (8, 130), (3, 300)]:
        same_biases(student, reference, num_heads, length)
