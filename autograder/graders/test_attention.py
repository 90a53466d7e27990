"""Graders of the chapter `attention`: a plain pytest file, one group of tests for each exercise.

Tests reach the code to judge through `student` only. Inputs are standard normal unless a test says
otherwise, so that scores have a standard deviation of a few units at most: no softmax saturates,
and a missing, a wrong and a doubled scaling give visibly different weights. Inside a test the
cases run from the smallest to the largest, so that the first failure is the smallest one.

Random answers are never compared value by value. Every statistical bound has a false-alarm rate
of at most 1e-9.
"""

from __future__ import annotations

import torch

from autograder.graders.common import pair, same_gradients, same_parameters, same_results, sizes
from autograder.judging import expectations
from autograder.judging.grader_marks import aspect, exercise, hidden

# --------------------------------------------------------------------------------------------
# What the tests share
# --------------------------------------------------------------------------------------------


def linear(draw, name, outputs, inputs, bias=True):
    """The state of one `nn.Linear`: rows of unit variance, and a bias that is hard to overlook."""
    state = {f"{name}.weight": draw.normal(outputs, inputs, scale=inputs**-0.5)}
    if bias:
        state[f"{name}.bias"] = draw.normal(outputs, scale=0.5)
    return state


def same_state(mine, theirs, case=""):
    """Two state dicts have the same names, shapes and values."""
    expectations.true(isinstance(mine, dict), "The result should be a dict from name to tensor.")
    expectations.true(
        sorted(mine) == sorted(theirs),
        f"The names in the dict should be {', '.join(sorted(theirs))}; "
        f"yours are {', '.join(map(str, sorted(mine))) or 'missing'}.",
    )
    for name, expected in theirs.items():
        expectations.close(mine[name], expected, what=name, case=case)


def is_boolean(mask, shape):
    """The mask is a bool tensor of the given shape."""
    expectations.true(isinstance(mask, torch.Tensor), "The mask should be a tensor.")
    expectations.true(
        mask.dtype == torch.bool,
        f"The mask should hold True and False (torch.bool); yours has the dtype {mask.dtype}.",
    )
    expectations.shape(mask, shape, what="the mask")


OUTPUT = ("output", "weights")

# --------------------------------------------------------------------------------------------
# DotScore
# --------------------------------------------------------------------------------------------


@exercise("DotScore")
def test_dot_score_values(student, reference, draw):
    """Each score is the inner product of one query with one key, and nothing is learned."""
    mine, theirs = pair(student, reference, "DotScore")
    for batch, queries, keys, width in [(1, 1, 1, 3), (1, 2, 3, 4), (2, 3, 5, 7)]:
        query, key = draw.normal(batch, queries, width), draw.normal(batch, keys, width)
        case = sizes(B=batch, Tq=queries, Tk=keys, D=width)
        expectations.close(mine(query, key), theirs(query, key), what="the scores", case=case)
    same_parameters(mine, {})


@exercise("DotScore")
def test_dot_score_mask(student, reference, draw):
    """Where the mask is False the score is -inf; where it is True nothing changes."""
    mine, theirs = pair(student, reference, "DotScore")
    for batch, queries, keys in [(1, 2, 2), (2, 3, 4)]:
        query, key = draw.normal(batch, queries, 3), draw.normal(batch, keys, 3)
        mask = draw.mask(batch, queries, keys, keep=0.6)
        expectations.close(
            mine(query, key, mask),
            theirs(query, key, mask),
            what="the masked scores",
            case=sizes(B=batch, Tq=queries, Tk=keys),
        )


@exercise("DotScore")
def test_dot_score_refuses_other_widths(student, draw):
    """Queries and keys of different widths are refused with a ValueError."""
    mine = student.module("DotScore")
    expectations.raises(
        "ValueError",
        lambda: mine(draw.normal(2, 3, 4), draw.normal(2, 3, 5)),
        what="a query of width 4 with a key of width 5",
    )
    expectations.raises(
        "ValueError",
        lambda: mine(draw.normal(1, 2, 1), draw.normal(1, 2, 3)),
        what="a query of width 1 with a key of width 3",
    )


@hidden
@exercise("DotScore")
def test_dot_score_broadcast_masks(student, reference, draw):
    """Masks that hold for every query or every batch entry, and rows without any key, work."""
    mine, theirs = pair(student, reference, "DotScore")
    query, key = draw.normal(3, 2, 5), draw.normal(3, 4, 5)
    for shape in [(3, 1, 4), (2, 4), (1, 2, 4)]:
        mask = draw.mask(*shape, keep=0.6)
        expectations.close(
            mine(query, key, mask),
            theirs(query, key, mask),
            what="the masked scores",
            case=f"mask of shape {shape}",
        )
    mask = draw.mask(3, 2, 4)
    mask[1] = False
    expectations.close(
        mine(query, key, mask),
        theirs(query, key, mask),
        what="the masked scores",
        case="one batch entry entirely masked",
    )


@hidden
@exercise("DotScore")
def test_dot_score_layout_and_dtype(student, reference, draw):
    """Wide, transposed, expanded and float64 inputs give the same scores in their own dtype."""
    mine, theirs = pair(student, reference, "DotScore")
    query, key = draw.normal(1, 2, 33), draw.normal(1, 3, 33)
    expectations.close(mine(query, key), theirs(query, key), what="the scores", case="D=33")
    query, key = draw.normal(2, 5, 3).transpose(1, 2), draw.normal(1, 4, 5).expand(2, 4, 5)
    expectations.close(
        mine(query, key), theirs(query, key), what="the scores", case="strided inputs"
    )
    query, key = draw.normal(2, 3, 4, dtype=torch.float64), draw.normal(2, 2, 4).double()
    expectations.close(mine(query, key), theirs(query, key), what="the scores", case="float64")


@hidden
@exercise("DotScore")
def test_dot_score_gradients(student, reference, draw):
    """Gradients flow to query and key, and the inputs are left as they were."""
    mine, theirs = pair(student, reference, "DotScore", dtype=torch.float64)
    query, key = draw.normal(2, 3, 4).double(), draw.normal(2, 5, 4).double()
    seen, wanted = mine.observe(query, key), theirs.observe(query, key)
    same_gradients(seen, wanted, {"0": "the query", "1": "the key"})
    expectations.unchanged(mine.observe(query, key, draw.mask(2, 3, 5), grad=False))


# --------------------------------------------------------------------------------------------
# BilinearScore
# --------------------------------------------------------------------------------------------


def bilinear_state(draw, query_dim, key_dim):
    return {"weight": draw.normal(query_dim, key_dim, scale=key_dim**-0.5)}


@exercise("BilinearScore")
def test_bilinear_parameter(student):
    """There is one parameter, `weight`, of shape (query_dim, key_dim)."""
    same_parameters(student.module("BilinearScore", query_dim=3, key_dim=5), {"weight": (3, 5)})


@exercise("BilinearScore")
def test_bilinear_values(student, reference, draw):
    """Each score is query · W · key, with the same W for every pair."""
    for batch, queries, keys, query_dim, key_dim in [
        (1, 1, 1, 1, 1),
        (1, 2, 3, 4, 4),
        (2, 3, 5, 4, 2),
    ]:
        mine, theirs = pair(
            student,
            reference,
            "BilinearScore",
            bilinear_state(draw, query_dim, key_dim),
            query_dim=query_dim,
            key_dim=key_dim,
        )
        query, key = draw.normal(batch, queries, query_dim), draw.normal(batch, keys, key_dim)
        case = sizes(B=batch, Tq=queries, Tk=keys, query_dim=query_dim, key_dim=key_dim)
        expectations.close(mine(query, key), theirs(query, key), what="the scores", case=case)


@exercise("BilinearScore")
def test_bilinear_mask(student, reference, draw):
    """Where the mask is False the score is -inf."""
    mine, theirs = pair(
        student, reference, "BilinearScore", bilinear_state(draw, 3, 4), query_dim=3, key_dim=4
    )
    query, key = draw.normal(2, 3, 3), draw.normal(2, 4, 4)
    for shape in [(2, 3, 4), (2, 1, 4)]:
        mask = draw.mask(*shape, keep=0.6)
        expectations.close(
            mine(query, key, mask),
            theirs(query, key, mask),
            what="the masked scores",
            case=f"mask of shape {shape}",
        )


@hidden
@exercise("BilinearScore")
def test_bilinear_longer_than_wide(student, reference, draw):
    """The same W serves sequences of any length and inputs of any memory layout."""
    mine, theirs = pair(
        student, reference, "BilinearScore", bilinear_state(draw, 2, 3), query_dim=2, key_dim=3
    )
    query, key = draw.normal(1, 2, 11).transpose(1, 2), draw.normal(1, 13, 3)
    expectations.close(mine(query, key), theirs(query, key), what="the scores", case="Tq=11, Tk=13")
    query, key = draw.normal(1, 4, 2).expand(3, 4, 2), draw.normal(5, 3, 3).transpose(0, 1)
    expectations.close(
        mine(query, key), theirs(query, key), what="the scores", case="strided inputs"
    )


@hidden
@exercise("BilinearScore")
def test_bilinear_float64(student, reference, draw):
    """In double precision the scores are float64."""
    mine, theirs = pair(
        student,
        reference,
        "BilinearScore",
        bilinear_state(draw, 3, 3),
        dtype=torch.float64,
        query_dim=3,
        key_dim=3,
    )
    query, key = draw.normal(2, 2, 3).double(), draw.normal(2, 4, 3).double()
    expectations.close(mine(query, key), theirs(query, key), what="the scores", case="float64")


@hidden
@exercise("BilinearScore")
def test_bilinear_gradients(student, reference, draw):
    """Gradients flow to query, key and weight, and the inputs are left as they were."""
    mine, theirs = pair(
        student,
        reference,
        "BilinearScore",
        bilinear_state(draw, 3, 4),
        dtype=torch.float64,
        query_dim=3,
        key_dim=4,
    )
    query, key = draw.normal(2, 3, 3).double(), draw.normal(2, 5, 4).double()
    seen, wanted = mine.observe(query, key), theirs.observe(query, key)
    names = {"0": "the query", "1": "the key", "parameter weight": "the parameter weight"}
    same_gradients(seen, wanted, names)
    expectations.unchanged(mine.observe(query, key, draw.mask(2, 3, 5), grad=False))


# --------------------------------------------------------------------------------------------
# AdditiveScore
# --------------------------------------------------------------------------------------------


def additive_state(draw, query_dim, key_dim, hidden_dim):
    return {
        **linear(draw, "query_projection", hidden_dim, query_dim, bias=False),
        **linear(draw, "key_projection", hidden_dim, key_dim, bias=False),
        **linear(draw, "energy", 1, hidden_dim, bias=False),
    }


def additive_pair(student, reference, draw, query_dim, key_dim, hidden_dim, dtype=None):
    return pair(
        student,
        reference,
        "AdditiveScore",
        additive_state(draw, query_dim, key_dim, hidden_dim),
        dtype=dtype,
        query_dim=query_dim,
        key_dim=key_dim,
        hidden_dim=hidden_dim,
    )


@exercise("AdditiveScore")
def test_additive_parameters(student):
    """The layers are query_projection, key_projection and energy, none of them with a bias."""
    same_parameters(
        student.module("AdditiveScore", query_dim=3, key_dim=4, hidden_dim=5),
        {
            "query_projection.weight": (5, 3),
            "key_projection.weight": (5, 4),
            "energy.weight": (1, 5),
        },
    )


@exercise("AdditiveScore")
def test_additive_values(student, reference, draw):
    """Each score is v · tanh(W_q query + W_k key)."""
    for batch, queries, keys, query_dim, key_dim, hidden_dim in [
        (1, 1, 1, 1, 1, 1),
        (1, 2, 2, 3, 3, 3),
        (2, 3, 5, 4, 2, 6),
    ]:
        mine, theirs = additive_pair(student, reference, draw, query_dim, key_dim, hidden_dim)
        query, key = draw.normal(batch, queries, query_dim), draw.normal(batch, keys, key_dim)
        case = sizes(
            B=batch, Tq=queries, Tk=keys, query_dim=query_dim, key_dim=key_dim, hidden=hidden_dim
        )
        expectations.close(mine(query, key), theirs(query, key), what="the scores", case=case)


@exercise("AdditiveScore")
def test_additive_mask(student, reference, draw):
    """Where the mask is False the score is -inf."""
    mine, theirs = additive_pair(student, reference, draw, 3, 4, 5)
    query, key = draw.normal(2, 3, 3), draw.normal(2, 4, 4)
    for shape in [(2, 3, 4), (2, 1, 4)]:
        mask = draw.mask(*shape, keep=0.6)
        expectations.close(
            mine(query, key, mask),
            theirs(query, key, mask),
            what="the masked scores",
            case=f"mask of shape {shape}",
        )


@hidden
@exercise("AdditiveScore")
def test_additive_square(student, reference, draw):
    """Queries and keys keep their roles when all lengths and widths are equal."""
    mine, theirs = additive_pair(student, reference, draw, 4, 4, 4)
    query, key = draw.normal(4, 4, 4), draw.normal(4, 4, 4)
    expectations.close(mine(query, key), theirs(query, key), what="the scores", case="all sizes 4")
    query, key = draw.normal(4, 3, 4).transpose(1, 2)[..., :3], draw.normal(4, 1, 4)
    query = torch.cat([query, query[..., :1]], dim=-1).transpose(0, 1)
    expectations.close(
        mine(query, key), theirs(query, key), what="the scores", case="strided inputs"
    )


@hidden
@exercise("AdditiveScore")
def test_additive_float64(student, reference, draw):
    """In double precision the scores are float64; large inputs saturate without trouble."""
    mine, theirs = additive_pair(student, reference, draw, 3, 3, 4, dtype=torch.float64)
    query, key = draw.normal(2, 2, 3).double(), draw.normal(2, 4, 3).double()
    expectations.close(mine(query, key), theirs(query, key), what="the scores", case="float64")
    query = query * 1000
    expectations.close(
        mine(query, key), theirs(query, key), what="the scores", case="large queries"
    )


@hidden
@exercise("AdditiveScore")
def test_additive_gradients(student, reference, draw):
    """Gradients flow to query, key and all three weights; the inputs are left as they were."""
    mine, theirs = additive_pair(student, reference, draw, 3, 4, 5, dtype=torch.float64)
    query, key = draw.normal(2, 3, 3).double(), draw.normal(2, 5, 4).double()
    seen, wanted = mine.observe(query, key), theirs.observe(query, key)
    names = {"0": "the query", "1": "the key"} | {
        f"parameter {name}.weight": f"{name}.weight"
        for name in ("query_projection", "key_projection", "energy")
    }
    same_gradients(seen, wanted, names)
    expectations.unchanged(mine.observe(query, key, draw.mask(2, 3, 5), grad=False))


# --------------------------------------------------------------------------------------------
# ConcatScore
# --------------------------------------------------------------------------------------------


def concat_pair(student, reference, draw, query_dim, key_dim, hidden_dim, dtype=None):
    state = {
        **linear(draw, "projection", hidden_dim, query_dim + key_dim, bias=False),
        **linear(draw, "energy", 1, hidden_dim, bias=False),
    }
    return pair(
        student,
        reference,
        "ConcatScore",
        state,
        dtype=dtype,
        query_dim=query_dim,
        key_dim=key_dim,
        hidden_dim=hidden_dim,
    )


@exercise("ConcatScore")
def test_concat_parameters(student):
    """The layers are projection (query_dim + key_dim to hidden_dim) and energy, without bias."""
    same_parameters(
        student.module("ConcatScore", query_dim=3, key_dim=4, hidden_dim=5),
        {"projection.weight": (5, 7), "energy.weight": (1, 5)},
    )


@exercise("ConcatScore")
def test_concat_values(student, reference, draw):
    """Each score is v · tanh(W [query; key]), the query first."""
    for batch, queries, keys, query_dim, key_dim, hidden_dim in [
        (1, 1, 1, 1, 1, 1),
        (1, 2, 2, 3, 3, 3),
        (2, 3, 5, 4, 2, 6),
    ]:
        mine, theirs = concat_pair(student, reference, draw, query_dim, key_dim, hidden_dim)
        query, key = draw.normal(batch, queries, query_dim), draw.normal(batch, keys, key_dim)
        case = sizes(
            B=batch, Tq=queries, Tk=keys, query_dim=query_dim, key_dim=key_dim, hidden=hidden_dim
        )
        expectations.close(mine(query, key), theirs(query, key), what="the scores", case=case)


@exercise("ConcatScore")
def test_concat_mask(student, reference, draw):
    """Where the mask is False the score is -inf."""
    mine, theirs = concat_pair(student, reference, draw, 3, 4, 5)
    query, key = draw.normal(2, 3, 3), draw.normal(2, 4, 4)
    for shape in [(2, 3, 4), (2, 1, 4)]:
        mask = draw.mask(*shape, keep=0.6)
        expectations.close(
            mine(query, key, mask),
            theirs(query, key, mask),
            what="the masked scores",
            case=f"mask of shape {shape}",
        )


@aspect
@hidden
@exercise("ConcatScore")
def test_concat_query_matters(student, draw):
    """After a softmax over the keys, two different queries get different weights."""
    state = {
        **linear(draw, "projection", 6, 8, bias=False),
        **linear(draw, "energy", 1, 6, bias=False),
    }
    mine = student.module("ConcatScore", state=state, query_dim=4, key_dim=4, hidden_dim=6)
    scores = mine(draw.normal(1, 2, 4), draw.normal(1, 6, 4))
    expectations.shape(scores, (1, 2, 6), what="the scores")
    weights = scores.softmax(dim=-1)
    expectations.true(
        bool((weights[0, 0] - weights[0, 1]).abs().max() > 1e-4),
        "Two different queries get identical attention weights: without tanh the query adds "
        "the same number to every score of its row, and the softmax cancels it.",
    )


@hidden
@exercise("ConcatScore")
def test_concat_layout_and_dtype(student, reference, draw):
    """Equal sizes, strided inputs and double precision work."""
    mine, theirs = concat_pair(student, reference, draw, 3, 3, 3)
    query, key = draw.normal(3, 3, 3), draw.normal(3, 3, 3)
    expectations.close(mine(query, key), theirs(query, key), what="the scores", case="all sizes 3")
    query, key = draw.normal(2, 3, 5).transpose(1, 2), draw.normal(1, 4, 3).expand(2, 4, 3)
    expectations.close(
        mine(query, key), theirs(query, key), what="the scores", case="strided inputs"
    )
    mine, theirs = concat_pair(student, reference, draw, 2, 3, 4, dtype=torch.float64)
    query, key = draw.normal(2, 2, 2).double(), draw.normal(2, 4, 3).double()
    expectations.close(mine(query, key), theirs(query, key), what="the scores", case="float64")


@hidden
@exercise("ConcatScore")
def test_concat_gradients(student, reference, draw):
    """Gradients flow to query, key and both weights; the inputs are left as they were."""
    mine, theirs = concat_pair(student, reference, draw, 3, 4, 5, dtype=torch.float64)
    query, key = draw.normal(2, 3, 3).double(), draw.normal(2, 5, 4).double()
    seen, wanted = mine.observe(query, key), theirs.observe(query, key)
    names = {"0": "the query", "1": "the key"} | {
        f"parameter {name}.weight": f"{name}.weight" for name in ("projection", "energy")
    }
    same_gradients(seen, wanted, names)
    expectations.unchanged(mine.observe(query, key, draw.mask(2, 3, 5), grad=False))


# --------------------------------------------------------------------------------------------
# masked_softmax
# --------------------------------------------------------------------------------------------


@exercise("masked_softmax")
def test_softmax_values(student, reference, draw):
    """Without a mask, the exponentials of each row are divided by their sum."""
    for shape in [(3,), (1, 1), (2, 3), (2, 3, 5)]:
        scores = draw.normal(*shape, scale=1.5)
        actual = student.masked_softmax(scores)
        expectations.close(
            actual,
            reference.masked_softmax(scores),
            what="the weights",
            case=f"scores of shape {shape}",
        )
        expectations.row_sums_one(actual)


@exercise("masked_softmax")
def test_softmax_mask(student, reference, draw):
    """Masked entries get exactly 0 and the others of their row still sum to 1."""
    for shape in [(1, 3), (2, 4), (2, 3, 5)]:
        scores, mask = draw.normal(*shape, scale=1.5), draw.mask(*shape, keep=0.6)
        seen = student.observe("masked_softmax", scores, mask, grad=False)
        actual = seen.value
        case = f"scores and mask of shape {shape}"
        expectations.close(
            actual, reference.masked_softmax(scores, mask), what="the weights", case=case
        )
        expectations.true(
            bool((actual[~mask] == 0).all()),
            "A masked entry has a weight that is small but not 0.",
        )
        expectations.unchanged(seen)


@exercise("masked_softmax")
def test_softmax_fully_masked_row(student, reference, draw):
    """A row in which everything is masked becomes all 0: not NaN, and not uniform."""
    for shape, row in [((1, 2), 0), ((3, 4), 1)]:
        scores, mask = draw.normal(*shape), draw.mask(*shape)
        mask[row] = False
        expectations.close(
            student.masked_softmax(scores, mask),
            reference.masked_softmax(scores, mask),
            what="the weights",
            case=f"row {row} of {shape[0]} fully masked",
        )


@exercise("masked_softmax")
def test_softmax_other_dim(student, reference, draw):
    """The sum runs over the dimension that `dim` names."""
    for shape, dim in [((2, 2), 0), ((2, 3, 4), 1), ((3, 2, 3), 0), ((2, 3, 4), -2)]:
        scores, mask = draw.normal(*shape), draw.mask(*shape, keep=0.8)
        case = f"scores of shape {shape}, dim={dim}"
        expectations.close(
            student.masked_softmax(scores, None, dim),
            reference.masked_softmax(scores, None, dim),
            what="the weights",
            case=case,
        )
        expectations.close(
            student.masked_softmax(scores, mask, dim),
            reference.masked_softmax(scores, mask, dim),
            what="the weights",
            case=case + ", with a mask",
        )


@exercise("masked_softmax")
def test_softmax_large_scores(student, reference, draw):
    """Scores of any size give finite weights, whatever stands in other rows or under the mask."""
    # float64, because a logarithm of a sum near 1000 has only four decimals in float32.
    scores = draw.normal(2, 4, dtype=torch.float64)
    for case, shift in [
        ("scores around 1000", [[1000.0], [1000.0]]),
        ("scores around -10000", [[-10000.0], [-10000.0]]),
        ("one row around 1000, one around -1000", [[1000.0], [-1000.0]]),
        ("scores from -1000 to 1000 in each row", [[-1000.0, 0.0, 1000.0, 1000.0]] * 2),
    ]:
        shifted = scores + torch.tensor(shift, dtype=torch.float64)
        expectations.close(
            student.masked_softmax(shifted),
            reference.masked_softmax(shifted),
            what="the weights",
            case=case,
        )
    scores = draw.normal(2, 4, dtype=torch.float64)
    scores[:, 1] += 1000
    mask = torch.ones(2, 4, dtype=torch.bool)
    mask[:, 1] = False
    expectations.close(
        student.masked_softmax(scores, mask),
        reference.masked_softmax(scores, mask),
        what="the weights",
        case="a masked score of about 1000",
    )


@exercise("masked_softmax")
def test_softmax_refuses_bad_masks(student, draw):
    """A mask that is not boolean, or does not broadcast to the scores, raises a ValueError."""
    scores = draw.normal(2, 3)
    for case, mask in [
        ("a mask of floats", torch.ones(2, 3)),
        ("a mask of integers", torch.ones(2, 3, dtype=torch.int64)),
        ("a mask of shape (2, 4) for scores of shape (2, 3)", torch.ones(2, 4).bool()),
        ("a mask with more dimensions than the scores", torch.ones(4, 2, 3).bool()),
    ]:
        expectations.raises(
            "ValueError", lambda mask=mask: student.masked_softmax(scores, mask), case
        )


@hidden
@exercise("masked_softmax")
def test_softmax_broadcast_masks(student, reference, draw):
    """A mask with fewer or size-1 dimensions holds for all that it is broadcast over."""
    scores = draw.normal(2, 3, 4, 5)
    for shape in [(5,), (4, 5), (2, 1, 1, 5), (2, 1, 4, 5), (1, 3, 1, 1), (2, 3, 4, 1)]:
        mask = draw.mask(*shape, keep=0.6, no_empty_rows=False)
        expectations.close(
            student.masked_softmax(scores, mask),
            reference.masked_softmax(scores, mask),
            what="the weights",
            case=f"scores of shape (2, 3, 4, 5), mask of shape {shape}",
        )


@exercise("masked_softmax")
def test_softmax_minus_infinity(student, reference, draw):
    """Scores of -inf count as masked, with and without a mask, whole rows included."""
    scores = draw.normal(3, 4)
    scores[0, 1] = scores[1, 2] = -torch.inf
    expectations.close(
        student.masked_softmax(scores),
        reference.masked_softmax(scores),
        what="the weights",
        case="two scores of -inf, no mask",
    )
    scores = scores.clone()  # inputs that a test has handed out stay as they were
    scores[2] = -torch.inf
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[0, :2] = False
    for case, given in [("a row of -inf, no mask", None), ("a row of -inf and a mask", mask)]:
        expectations.close(
            student.masked_softmax(scores, given),
            reference.masked_softmax(scores, given),
            what="the weights",
            case=case,
        )


@hidden
@exercise("masked_softmax")
def test_softmax_gradients(student, reference, draw):
    """The gradient is right, and finite also where a row is fully masked."""
    scores, mask = draw.normal(2, 3, 4).double(), draw.mask(2, 3, 4, keep=0.6)
    mask[1, 1] = False
    for case, given in [("no mask", None), ("a fully masked row", mask)]:
        seen = student.observe("masked_softmax", scores, given)
        wanted = reference.observe("masked_softmax", scores, given)
        same_gradients(seen, wanted, {"0": "the scores"}, case)
    scores = draw.normal(2, 4).double()
    scores[1] = -torch.inf
    seen = student.observe("masked_softmax", scores)
    wanted = reference.observe("masked_softmax", scores)
    same_gradients(seen, wanted, {"0": "the scores"}, "a row of -inf, no mask")


@hidden
@exercise("masked_softmax")
def test_softmax_layout_and_dtype(student, reference, draw):
    """Strided and float64 scores work, and neither the scores nor the mask are changed."""
    scores, mask = draw.normal(2, 5, 3).transpose(1, 2), draw.mask(5, 3).transpose(0, 1)
    seen = student.observe("masked_softmax", scores, mask, grad=False)
    wanted = reference.observe("masked_softmax", scores, mask, grad=False)
    expectations.close(seen.value, wanted.value, what="the weights", case="strided inputs")
    expectations.unchanged(seen)
    scores = draw.normal(2, 3, dtype=torch.float64)
    for case, given in [("float64", None), ("float64 with a mask", draw.mask(2, 3))]:
        expectations.close(
            student.masked_softmax(scores, given),
            reference.masked_softmax(scores, given),
            what="the weights",
            case=case,
        )


# --------------------------------------------------------------------------------------------
# context_vector
# --------------------------------------------------------------------------------------------


@exercise("context_vector")
def test_context_values(student, reference, draw):
    """Each context is the weighted sum of all values."""
    for batch, queries, keys, width in [(1, 1, 1, 1), (1, 2, 2, 3), (2, 3, 3, 4), (2, 3, 5, 4)]:
        weights = draw.normal(batch, queries, keys).softmax(dim=-1)
        values = draw.normal(batch, keys, width)
        expectations.close(
            student.context_vector(weights, values),
            reference.context_vector(weights, values),
            what="the context",
            case=sizes(B=batch, Tq=queries, Tk=keys, Dv=width),
        )


@exercise("context_vector")
def test_context_refuses_other_lengths(student, draw):
    """Weights for 4 positions with values at 5 positions raise a ValueError."""
    weights = draw.normal(2, 3, 4).softmax(dim=-1)
    for keys in (5, 1):
        values = draw.normal(2, keys, 2)
        expectations.raises(
            "ValueError",
            lambda values=values: student.context_vector(weights, values),
            what=f"weights for 4 positions with values at {keys}",
        )


@hidden
@exercise("context_vector")
def test_context_any_weights(student, reference, draw):
    """Rows of zeros give zeros, a one picks its value, and weights need not sum to 1."""
    values = draw.normal(2, 3, 2)
    picks = torch.eye(3).expand(2, 3, 3)
    for case, weights in [
        ("weights of zero", torch.zeros(2, 1, 3)),
        ("one weight is 1", picks),
        ("weights of any sum", draw.normal(2, 4, 3)),
    ]:
        expectations.close(
            student.context_vector(weights, values),
            reference.context_vector(weights, values),
            what="the context",
            case=case,
        )


@hidden
@exercise("context_vector")
def test_context_gradients_and_layout(student, reference, draw):
    """Strided and float64 inputs, gradients to weights and values, inputs unchanged."""
    weights = draw.normal(2, 5, 3).double().transpose(1, 2)
    values = draw.normal(1, 5, 4).double().expand(2, 5, 4)
    seen = student.observe("context_vector", weights, values)
    wanted = reference.observe("context_vector", weights, values)
    expectations.close(seen.value, wanted.value, what="the context", case="strided inputs")
    same_gradients(seen, wanted, {"0": "the weights", "1": "the values"})
    expectations.unchanged(seen)
    weights, values = draw.normal(1, 2, 3).double(), draw.normal(1, 3, 2).double()
    expectations.close(
        student.context_vector(weights, values),
        reference.context_vector(weights, values),
        what="the context",
        case="float64",
    )


# --------------------------------------------------------------------------------------------
# AttentionDecoderStep
# --------------------------------------------------------------------------------------------

DECODED = ("state", "context", "weights")


def decoder_pair(student, reference, draw, embed, hidden_dim, annotation, attention, dtype=None):
    state = {
        f"score.{name}": value
        for name, value in additive_state(draw, hidden_dim, annotation, attention).items()
    }
    # Scores with a standard deviation of about 1.5, so that the weights are far from uniform.
    state["score.energy.weight"] = state["score.energy.weight"] * 3
    state |= {
        "cell.weight_ih": draw.normal(3 * hidden_dim, embed + annotation, scale=0.6),
        "cell.weight_hh": draw.normal(3 * hidden_dim, hidden_dim, scale=0.6),
        "cell.bias_ih": draw.normal(3 * hidden_dim, scale=0.3),
        "cell.bias_hh": draw.normal(3 * hidden_dim, scale=0.3),
    }
    return pair(
        student,
        reference,
        "AttentionDecoderStep",
        state,
        dtype=dtype,
        embed_dim=embed,
        hidden_dim=hidden_dim,
        annotation_dim=annotation,
        attention_dim=attention,
    )


def decoder_inputs(draw, batch, length, embed, hidden_dim, annotation):
    return (
        draw.normal(batch, embed),
        draw.normal(batch, hidden_dim, scale=0.7),
        draw.normal(batch, length, annotation),
    )


@exercise("AttentionDecoderStep")
def test_decoder_parameters(student):
    """The parts are `score` (an AdditiveScore) and `cell` (a GRUCell on [y_prev; context])."""
    same_parameters(
        student.module(
            "AttentionDecoderStep", embed_dim=2, hidden_dim=3, annotation_dim=4, attention_dim=5
        ),
        {
            "score.query_projection.weight": (5, 3),
            "score.key_projection.weight": (5, 4),
            "score.energy.weight": (1, 5),
            "cell.weight_ih": (9, 6),
            "cell.weight_hh": (9, 3),
            "cell.bias_ih": (9,),
            "cell.bias_hh": (9,),
        },
    )


@exercise("AttentionDecoderStep")
def test_decoder_values(student, reference, draw):
    """Scores of s_prev, weights, context and new state agree when nothing is masked."""
    for batch, length, embed, hidden_dim, annotation in [
        (1, 1, 1, 1, 1),
        (1, 3, 3, 3, 3),
        (2, 5, 3, 4, 2),
    ]:
        mine, theirs = decoder_pair(student, reference, draw, embed, hidden_dim, annotation, 3)
        inputs = decoder_inputs(draw, batch, length, embed, hidden_dim, annotation)
        case = sizes(B=batch, T=length, embed=embed, hidden=hidden_dim, annotation=annotation)
        same_results(mine(*inputs, None), theirs(*inputs, None), DECODED, case)


@exercise("AttentionDecoderStep")
def test_decoder_mask(student, reference, draw):
    """Padded source positions get the weight 0 and do not enter the context."""
    for batch, length in [(1, 2), (3, 3), (3, 5)]:
        mine, theirs = decoder_pair(student, reference, draw, 2, 3, 4, 3)
        inputs = decoder_inputs(draw, batch, length, 2, 3, 4)
        mask = draw.mask(batch, length, keep=0.6)
        got, want = mine(*inputs, mask), theirs(*inputs, mask)
        same_results(got, want, DECODED, sizes(B=batch, T=length))


@exercise("AttentionDecoderStep")
def test_decoder_ignores_padding(student, reference, draw):
    """What stands in the padding of the source changes nothing."""
    mine, theirs = decoder_pair(student, reference, draw, 2, 3, 4, 3)
    word, state, annotations = decoder_inputs(draw, 2, 5, 2, 3, 4)
    mask = torch.tensor([[True, True, True, False, False], [True, True, True, True, False]])
    changed = annotations.clone()
    changed[~mask] = draw.normal(3, 4, scale=10.0)
    want = theirs(word, state, annotations, mask)
    same_results(mine(word, state, annotations, mask), want, DECODED, "two padded sources")
    same_results(mine(word, state, changed, mask), want, DECODED, "other vectors in the padding")


@hidden
@exercise("AttentionDecoderStep")
def test_decoder_empty_source(student, reference, draw):
    """A source of padding only gives weights 0, a context of 0 and a finite state."""
    mine, theirs = decoder_pair(student, reference, draw, 2, 3, 4, 3)
    inputs = decoder_inputs(draw, 2, 4, 2, 3, 4)
    # Several weights in the first source: with a single one, every softmax would be right.
    mask = torch.tensor([[True, True, True, False], [False, False, False, False]])
    got, want = mine(*inputs, mask), theirs(*inputs, mask)
    same_results(got, want, DECODED, "the second source is all padding")


@hidden
@exercise("AttentionDecoderStep")
def test_decoder_batch_and_length_agree(student, reference, draw):
    """Nothing is mixed up when the batch is as large as the source is long."""
    mine, theirs = decoder_pair(student, reference, draw, 4, 4, 4, 4)
    inputs = decoder_inputs(draw, 4, 4, 4, 4, 4)
    mask = draw.mask(4, 4, keep=0.6)
    for case, given in [("all sizes 4", None), ("all sizes 4, with a mask", mask)]:
        same_results(mine(*inputs, given), theirs(*inputs, given), DECODED, case)


@hidden
@exercise("AttentionDecoderStep")
def test_decoder_gradients(student, reference, draw):
    """Gradients flow to all inputs and parameters; the inputs are left as they were."""
    mine, theirs = decoder_pair(student, reference, draw, 2, 3, 4, 3, dtype=torch.float64)
    inputs = [tensor.double() for tensor in decoder_inputs(draw, 2, 5, 2, 3, 4)]
    mask = draw.mask(2, 5, keep=0.7)
    seen, wanted = mine.observe(*inputs, mask), theirs.observe(*inputs, mask)
    names = {"0": "y_prev", "1": "s_prev", "2": "the annotations"} | {
        f"parameter {name}": name
        for name in (
            "score.query_projection.weight",
            "score.key_projection.weight",
            "score.energy.weight",
            "cell.weight_ih",
            "cell.weight_hh",
            "cell.bias_ih",
        )
    }
    same_gradients(seen, wanted, names)
    expectations.unchanged(seen)


@hidden
@exercise("AttentionDecoderStep")
def test_decoder_float64(student, reference, draw):
    """In double precision, with strided annotations, all three results are float64."""
    mine, theirs = decoder_pair(student, reference, draw, 2, 3, 4, 3, dtype=torch.float64)
    word, state = draw.normal(2, 2).double(), draw.normal(2, 3).double()
    annotations = draw.normal(2, 4, 6).double().transpose(1, 2)
    mask = draw.mask(2, 6)
    got, want = mine(word, state, annotations, mask), theirs(word, state, annotations, mask)
    same_results(got, want, DECODED, "float64")


# --------------------------------------------------------------------------------------------
# attention_dropout
# --------------------------------------------------------------------------------------------


def positive(draw, *shape):
    """Weights that are never 0, so that a 0 in the answer was dropped."""
    return draw.uniform(*shape) + 0.1


@exercise("attention_dropout")
def test_dropout_off(student, draw):
    """In evaluation, and with p=0, the weights come back unchanged."""
    for shape in [(1, 1), (3, 4), (2, 3, 4, 5)]:
        weights = positive(draw, *shape)
        for p, training in [(0.5, False), (0.0, False), (1.0, False), (0.0, True)]:
            expectations.close(
                student.attention_dropout(weights, p, training),
                weights,
                what="the weights",
                case=f"shape {shape}, p={p}, training={training}",
                misconception="dropout_in_evaluation" if p and not training else None,
            )
    dropped = student.attention_dropout(positive(draw, 8, 20), 0.5, True)
    expectations.shape(dropped, (8, 20), what="the result")
    expectations.true(
        bool((dropped == 0).any()),
        "Nothing is dropped in training either: none of 160 weights became 0 at p=0.5.",
        misconception="dropout_never",
    )


@exercise("attention_dropout")
def test_dropout_rate(student, draw):
    """In training, each weight becomes 0 with probability p."""
    weights = positive(draw, 2, 20, 30)
    for p in (0.2, 0.7):
        dropped = student.attention_dropout(weights, p, True)
        expectations.shape(dropped, (2, 20, 30), what="the result")
        share = float((dropped == 0).float().mean())
        expectations.rate(
            int((dropped == 0).sum()),
            weights.numel(),
            p,
            what=f"the share of weights that are 0 at p={p}",
            false_alarm=5e-10,
            misconception="dropout_p_is_keep" if abs(share - (1 - p)) < 0.1 else None,
        )


@exercise("attention_dropout")
def test_dropout_scales_survivors(student, draw):
    """Weights that survive are divided by 1 - p, so that the expected value stays the same."""
    weights = positive(draw, 8, 20)
    for p in (0.5, 0.25):
        seen = student.observe("attention_dropout", weights, p, True, grad=False)
        dropped = seen.value
        expectations.shape(dropped, (8, 20), what="the result")
        expectations.unchanged(seen)
        kept = dropped != 0
        expectations.true(bool(kept.any()), f"Every one of 160 weights became 0 at p={p}.")
        same = bool(torch.isclose(dropped[kept], weights[kept]).all())
        expectations.close(
            dropped[kept],
            weights[kept] / (1 - p),
            what="the surviving weights",
            case=f"p={p}",
            misconception="dropout_without_rescale" if same else None,
        )


@exercise("attention_dropout")
def test_dropout_refuses_bad_probabilities(student, draw):
    """A p outside [0, 1] raises a ValueError, in training and in evaluation."""
    weights = positive(draw, 2, 3)
    for p in (-0.1, 1.1, 2.0):
        for training in (True, False):
            expectations.raises(
                "ValueError",
                lambda p=p, training=training: student.attention_dropout(weights, p, training),
                what=f"p={p}, training={training}",
            )


@exercise("attention_dropout")
def test_dropout_of_everything(student, draw):
    """With p=1 in training every weight is 0 and none is NaN; with p=0.9 some survive."""
    for shape in [(1, 1), (2, 3, 4)]:
        expectations.close(
            student.attention_dropout(positive(draw, *shape), 1.0, True),
            torch.zeros(shape),
            what="the weights",
            case=f"shape {shape}, p=1",
        )
    dropped = student.attention_dropout(positive(draw, 20, 30), 0.9, True)
    expectations.shape(dropped, (20, 30), what="the result")
    expectations.true(bool((dropped != 0).any()), "Every one of 600 weights became 0 at p=0.9.")


@hidden
@exercise("attention_dropout")
def test_dropout_is_independent(student, draw):
    """Each element is dropped on its own: in other columns, rows, heads, batches and calls."""
    p = 0.3
    # Two independent decisions agree with probability p² + (1-p)²; the pairs below are disjoint.
    agree = p**2 + (1 - p) ** 2
    weights = positive(draw, 2, 2, 10, 14)
    first = student.attention_dropout(weights, p, True)
    second = student.attention_dropout(weights, p, True)
    expectations.shape(first, weights.shape, what="the result")
    expectations.shape(second, weights.shape, what="the result")
    kept, again = first != 0, second != 0
    for what, left, right in [
        ("neighbouring columns", kept[..., 0::2], kept[..., 1::2]),
        ("neighbouring rows", kept[..., 0::2, :], kept[..., 1::2, :]),
        ("neighbouring heads", kept[:, 0::2], kept[:, 1::2]),
        ("neighbouring batch entries", kept[0::2], kept[1::2]),
        ("two calls", kept, again),
    ]:
        expectations.rate(
            int((left == right).sum()),
            left.numel(),
            agree,
            what=f"how often the decisions for {what} agree at p={p}",
            false_alarm=2e-10,
        )


@hidden
@exercise("attention_dropout")
def test_dropout_gradients(student, draw):
    """The gradient reaches the weights that survived and no others; inputs are unchanged."""
    weights = positive(draw, 10, 12)
    seen = student.observe("attention_dropout", weights, 0.5, True)
    gradient = seen.grads.get("0")
    expectations.true(
        gradient is not None,
        "No gradient reaches the weights; look for detach(), .data or no_grad().",
    )
    expectations.true(
        bool(((gradient != 0) == (seen.value != 0)).all()),
        "The gradient should be 0 exactly where the weight was dropped.",
    )
    kept = int((seen.value != 0).sum())
    expectations.true(0 < kept < 120, f"Of 120 weights {kept} survived at p=0.5.")
    expectations.unchanged(seen)


@hidden
@exercise("attention_dropout")
def test_dropout_layout_and_dtype(student, draw):
    """Strided and float64 weights keep their shape, dtype and values."""
    for case, weights in [
        ("float64", positive(draw, 6, 8).double()),
        ("transposed weights", positive(draw, 6, 8).transpose(0, 1)),
        ("expanded weights", positive(draw, 1, 8).expand(6, 8)),
    ]:
        dropped = student.attention_dropout(weights, 0.5, True)
        expectations.shape(dropped, weights.shape, what="the result")
        kept = (dropped != 0).to(weights.dtype)
        expectations.true(bool(kept.any()), f"Every weight became 0 at p=0.5 ({case}).")
        expectations.close(dropped, weights * kept * 2, what="the surviving weights", case=case)


# --------------------------------------------------------------------------------------------
# scaled_dot_product_attention
# --------------------------------------------------------------------------------------------


def attention_inputs(draw, leading, queries, keys, width, value_width):
    return (
        draw.normal(*leading, queries, width),
        draw.normal(*leading, keys, width),
        draw.normal(*leading, keys, value_width),
    )


@exercise("scaled_dot_product_attention")
def test_attention_values(student, reference, draw):
    """Output and weights are softmax(Q Kᵀ / √d_k) V and softmax(Q Kᵀ / √d_k)."""
    for batch, queries, keys, width, value_width in [
        (1, 1, 1, 2, 1),
        (1, 2, 2, 3, 3),
        (2, 3, 5, 6, 4),
        (2, 4, 4, 7, 7),
    ]:
        inputs = attention_inputs(draw, (batch,), queries, keys, width, value_width)
        case = sizes(B=batch, Tq=queries, Tk=keys, D=width, Dv=value_width)
        same_results(
            student.scaled_dot_product_attention(*inputs),
            reference.scaled_dot_product_attention(*inputs),
            OUTPUT,
            case,
        )
    inputs = [tensor.double() for tensor in inputs]
    same_results(
        student.scaled_dot_product_attention(*inputs),
        reference.scaled_dot_product_attention(*inputs),
        OUTPUT,
        "float64 inputs",
    )


@exercise("scaled_dot_product_attention")
def test_attention_mask(student, reference, draw):
    """Where the mask is False the weight is 0, and the rest of the row sums to 1."""
    for batch, queries, keys in [(1, 2, 2), (2, 3, 3), (2, 3, 5)]:
        inputs = attention_inputs(draw, (batch,), queries, keys, 4, 3)
        mask = draw.mask(batch, queries, keys, keep=0.6)
        got = student.scaled_dot_product_attention(*inputs, mask)
        want = reference.scaled_dot_product_attention(*inputs, mask)
        same_results(got, want, OUTPUT, sizes(B=batch, Tq=queries, Tk=keys))
        expectations.row_sums_one(got[1])


@exercise("scaled_dot_product_attention")
def test_attention_fully_masked_row(student, reference, draw):
    """A query that may attend to nothing gets the output 0 and the weights 0."""
    inputs = attention_inputs(draw, (2,), 3, 4, 4, 3)
    mask = draw.mask(2, 3, 4)
    mask[0, 1] = False
    same_results(
        student.scaled_dot_product_attention(*inputs, mask),
        reference.scaled_dot_product_attention(*inputs, mask),
        OUTPUT,
        "query 1 of the first batch entry is fully masked",
    )


@exercise("scaled_dot_product_attention")
def test_attention_leading_dimensions(student, reference, draw):
    """Any number of leading dimensions works: none, a batch, a batch and heads."""
    for leading in [(), (2, 3), (2, 1, 3)]:
        inputs = attention_inputs(draw, leading, 2, 4, 5, 3)
        same_results(
            student.scaled_dot_product_attention(*inputs),
            reference.scaled_dot_product_attention(*inputs),
            OUTPUT,
            f"query of shape {tuple(inputs[0].shape)}",
        )


@exercise("scaled_dot_product_attention")
def test_attention_refuses_bad_shapes(student, draw):
    """Different widths of query and key, or lengths of key and value, raise a ValueError."""
    query, key, value = attention_inputs(draw, (2,), 3, 4, 5, 6)
    expectations.raises(
        "ValueError",
        lambda: student.scaled_dot_product_attention(query[..., :4], key, value),
        what="a query of width 4 with a key of width 5",
    )
    expectations.raises(
        "ValueError",
        lambda: student.scaled_dot_product_attention(query, key, value[:, :3]),
        what="4 keys with 3 values",
    )
    expectations.raises(
        "ValueError",
        lambda: student.scaled_dot_product_attention(query, key, value, torch.ones(2, 3, 4)),
        what="a mask of floats",
    )
    expectations.raises(
        "ValueError",
        lambda: student.scaled_dot_product_attention(query, key, value, torch.ones(2, 3).bool()),
        what="a mask of shape (2, 3) for scores of shape (2, 3, 4)",
    )


@exercise("scaled_dot_product_attention")
def test_attention_dropout_leaves_weights(student, reference, draw):
    """Dropout does nothing in evaluation, and the returned weights are those before dropout."""
    inputs = attention_inputs(draw, (2,), 4, 6, 4, 3)
    mask = draw.mask(2, 4, 6, keep=0.8)
    want = reference.scaled_dot_product_attention(*inputs, mask)
    got = student.scaled_dot_product_attention(*inputs, mask, 0.5, False)
    same_results(got, want, OUTPUT, "dropout_p=0.5, training=False")
    got = student.scaled_dot_product_attention(*inputs, mask, 0.0, True)
    same_results(got, want, OUTPUT, "dropout_p=0, training=True")
    got = student.scaled_dot_product_attention(*inputs, mask, 0.5, True)
    output, weights = expectations.pair(got)
    expectations.close(weights, want[1], what="the weights", case="dropout_p=0.5, training=True")
    expectations.shape(output, want[0].shape, what="the output")
    expectations.true(
        not torch.allclose(output, want[0], rtol=1e-4, atol=1e-6),
        "With dropout_p=0.5 and training=True the output is the same as without dropout.",
        misconception="attention_dropout_ignored",
    )


@hidden
@exercise("scaled_dot_product_attention")
def test_attention_broadcast_masks(student, reference, draw):
    """Masks that are broadcast over the batch, the heads or the queries work."""
    inputs = attention_inputs(draw, (2, 3), 4, 5, 6, 3)
    for shape in [(5,), (4, 5), (2, 1, 1, 5), (2, 1, 4, 5), (3, 4, 5)]:
        mask = draw.mask(*shape, keep=0.6)
        same_results(
            student.scaled_dot_product_attention(*inputs, mask),
            reference.scaled_dot_product_attention(*inputs, mask),
            OUTPUT,
            f"scores of shape (2, 3, 4, 5), mask of shape {shape}",
        )


@hidden
@exercise("scaled_dot_product_attention")
def test_attention_dropout_on_weights(student, reference, draw):
    """In training each weight is dropped with probability p before it meets the values."""
    p, keys = 0.4, 18
    query, key, _ = attention_inputs(draw, (2,), keys, keys, 4, 1)
    # Two identity matrices side by side as values: the output shows each used weight twice.
    value = torch.eye(keys).repeat(1, 2).expand(2, keys, 2 * keys)
    output, weights = expectations.pair(
        student.scaled_dot_product_attention(query, key, value, None, p, True)
    )
    expectations.shape(output, (2, keys, 2 * keys), what="the output")
    expectations.shape(weights, (2, keys, keys), what="the weights")
    used, copy = output[..., :keys], output[..., keys:]
    expectations.close(
        copy,
        used,
        what="the second half of the output",
        case="values that are given twice (drop weights, not outputs)",
        misconception="attention_dropout_on_output",
    )
    expectations.rate(
        int((used == 0).sum()),
        used.numel(),
        p,
        what=f"the share of weights that are dropped at p={p}",
        false_alarm=1e-9,
    )
    kept = used != 0
    expectations.close(
        used[kept],
        reference.scaled_dot_product_attention(query, key, value)[1][kept] / (1 - p),
        what="the surviving weights",
        case=f"dropout_p={p}, training=True",
    )


@hidden
@exercise("scaled_dot_product_attention")
def test_attention_gradients_layout_dtype(student, reference, draw):
    """Gradients to all inputs, strided and float64 inputs, huge scores, inputs unchanged."""
    names = {"0": "the query", "1": "the key", "2": "the value"}
    query = draw.normal(2, 5, 3).double().transpose(1, 2)
    key = draw.normal(1, 4, 5).double().expand(2, 4, 5)
    value = draw.normal(4, 2, 3).double().transpose(0, 1)
    mask = draw.mask(2, 3, 4)
    mask[0, 0] = False
    seen = student.observe("scaled_dot_product_attention", query, key, value, mask)
    wanted = reference.observe("scaled_dot_product_attention", query, key, value, mask)
    same_results(seen.value, wanted.value, OUTPUT, "strided inputs")
    same_gradients(seen, wanted, names, "one fully masked row")
    expectations.unchanged(seen)
    inputs = tuple(tensor.double() for tensor in attention_inputs(draw, (2,), 3, 4, 5, 2))
    for case, scale in [("float64", 1.0), ("scores in the thousands", 50.0)]:
        scaled = (inputs[0] * scale, inputs[1] * scale, inputs[2])
        same_results(
            student.scaled_dot_product_attention(*scaled),
            reference.scaled_dot_product_attention(*scaled),
            OUTPUT,
            case,
        )


# --------------------------------------------------------------------------------------------
# causal_mask
# --------------------------------------------------------------------------------------------


@exercise("causal_mask")
def test_causal_mask_values(student, reference):
    """Position i may see 0, ..., i: True on the diagonal and below it, False above."""
    # 3 is the smallest length that tells all the usual mistakes apart.
    for length in (3, 1, 2, 5):
        mask = student.causal_mask(length)
        is_boolean(mask, (length, length))
        expectations.equal(
            mask, reference.causal_mask(length), what="the mask", case=f"length {length}"
        )


@exercise("causal_mask")
def test_causal_mask_refuses(student):
    """A length below 1, or one that is not an int, raises a ValueError."""
    for length in (0, -3, 2.0, 2.5, "3", None):
        expectations.raises(
            "ValueError",
            lambda length=length: student.causal_mask(length),
            what=f"the length {length!r}",
        )


@hidden
@exercise("causal_mask")
def test_causal_mask_row_counts(student):
    """Row i has exactly i + 1 entries that are True, also for long sequences."""
    for length in (4, 37, 64):
        mask = student.causal_mask(length)
        is_boolean(mask, (length, length))
        expectations.equal(
            mask.sum(dim=1),
            torch.arange(1, length + 1),
            what="the number of positions that each row may see",
            case=f"length {length}",
        )


@hidden
@exercise("causal_mask")
def test_causal_mask_hides_the_future(student):
    """No position sees a later one; each sees itself and the first."""
    mask = student.causal_mask(9)
    is_boolean(mask, (9, 9))
    expectations.true(
        not any(bool(mask[i, j]) for i in range(9) for j in range(i + 1, 9)),
        "Some position may see a later one: the future leaks.",
    )
    expectations.true(bool(mask.diagonal().all()), "Some position may not see itself.")
    expectations.true(bool(mask[:, 0].all()), "Some position may not see the first one.")


# --------------------------------------------------------------------------------------------
# padding_mask
# --------------------------------------------------------------------------------------------


@exercise("padding_mask")
def test_padding_mask_values(student, reference):
    """The first lengths[b] positions of row b are True; the shape is (B, 1, longest)."""
    for lengths in ([1], [2], [2, 3], [3, 1, 4]):
        lengths = torch.tensor(lengths)
        mask = student.padding_mask(lengths)
        is_boolean(mask, (len(lengths), 1, int(lengths.max())))
        expectations.equal(
            mask,
            reference.padding_mask(lengths),
            what="the mask",
            case=f"lengths {lengths.tolist()}",
        )


@exercise("padding_mask")
def test_padding_mask_longer(student, reference):
    """With max_length the mask has that many columns."""
    for lengths, longest in (([2], 3), ([3, 1], 3), ([3, 1], 6)):
        lengths = torch.tensor(lengths)
        mask = student.padding_mask(lengths, longest)
        is_boolean(mask, (len(lengths), 1, longest))
        expectations.equal(
            mask,
            reference.padding_mask(lengths, longest),
            what="the mask",
            case=f"lengths {lengths.tolist()}, max_length={longest}",
        )


@exercise("padding_mask")
def test_padding_mask_refuses(student):
    """Negative lengths, lengths above max_length and lengths that are not integers are refused."""
    for case, lengths, longest in [
        ("the lengths [2, -1]", torch.tensor([2, -1]), None),
        ("the lengths [2, 5] with max_length=4", torch.tensor([2, 5]), 4),
        ("float lengths", torch.tensor([2.0, 3.0]), None),
        ("boolean lengths", torch.tensor([True, True]), None),
    ]:
        expectations.raises(
            "ValueError",
            lambda lengths=lengths, longest=longest: student.padding_mask(lengths, longest),
            what=case,
        )


@hidden
@exercise("padding_mask")
def test_padding_mask_empty_sentence(student, reference, draw):
    """A sentence of length 0 has no True at all, and the lengths are left as they were."""
    for lengths in ([0, 2], [3, 0, 1]):
        lengths = torch.tensor(lengths)
        seen = student.observe("padding_mask", lengths, grad=False)
        is_boolean(seen.value, (len(lengths), 1, int(lengths.max())))
        expectations.equal(
            seen.value,
            reference.padding_mask(lengths),
            what="the mask",
            case=f"lengths {lengths.tolist()}",
        )
        expectations.unchanged(seen)


@hidden
@exercise("padding_mask")
def test_padding_mask_counts(student, draw):
    """Row b has exactly lengths[b] entries that are True, and they come first."""
    lengths = draw.integers(1, 20, 7)
    mask = student.padding_mask(lengths, 23)
    is_boolean(mask, (7, 1, 23))
    expectations.equal(mask.sum(dim=(1, 2)), lengths, what="the number of real tokens in each row")
    steps = mask[:, 0, 1:].int() - mask[:, 0, :-1].int()
    expectations.true(bool((steps <= 0).all()), "A real token stands behind padding.")


# --------------------------------------------------------------------------------------------
# decoder_mask
# --------------------------------------------------------------------------------------------


@exercise("decoder_mask")
def test_decoder_mask_values(student, reference):
    """Position i may see j when j is not later and j is a real token."""
    for lengths in ([1], [2], [1, 2], [3, 1, 4]):
        lengths = torch.tensor(lengths)
        longest = int(lengths.max())
        mask = student.decoder_mask(lengths)
        is_boolean(mask, (len(lengths), longest, longest))
        expectations.equal(
            mask,
            reference.decoder_mask(lengths),
            what="the mask",
            case=f"lengths {lengths.tolist()}",
        )


@exercise("decoder_mask")
def test_decoder_mask_longer(student, reference):
    """With max_length the mask is a square of that size."""
    for lengths, longest in (([1], 3), ([3, 1], 3), ([2, 4], 6)):
        lengths = torch.tensor(lengths)
        mask = student.decoder_mask(lengths, longest)
        is_boolean(mask, (len(lengths), longest, longest))
        expectations.equal(
            mask,
            reference.decoder_mask(lengths, longest),
            what="the mask",
            case=f"lengths {lengths.tolist()}, max_length={longest}",
        )


@hidden
@exercise("decoder_mask")
def test_decoder_mask_no_future_no_padding(student, draw):
    """Nothing later and no padding may be seen; all other keys may, by padded queries too."""
    lengths = draw.integers(1, 9, 5)
    mask = student.decoder_mask(lengths, 9)
    is_boolean(mask, (5, 9, 9))
    row, column = torch.arange(9).view(9, 1), torch.arange(9).view(1, 9)
    expectations.true(not bool((mask & (column > row)).any()), "A later position may be seen.")
    padding = column >= lengths.view(5, 1, 1)
    expectations.true(not bool((mask & padding).any()), "A padded position may be seen.")
    allowed = (column <= row) & ~padding
    expectations.true(bool(mask[allowed].all()), "A real, earlier token may not be seen.")


@hidden
@exercise("decoder_mask")
def test_decoder_mask_edges(student, reference):
    """An empty sentence is all False; one longer than max_length raises a ValueError."""
    lengths = torch.tensor([0, 3])
    expectations.equal(
        student.decoder_mask(lengths),
        reference.decoder_mask(lengths),
        what="the mask",
        case="lengths [0, 3]",
    )
    expectations.raises(
        "ValueError",
        lambda: student.decoder_mask(torch.tensor([2, 5]), 4),
        what="the lengths [2, 5] with max_length=4",
    )


# --------------------------------------------------------------------------------------------
# SelfAttention
# --------------------------------------------------------------------------------------------


def self_state(draw, input_dim, head_dim):
    return {
        **linear(draw, "q_proj", head_dim, input_dim, bias=False),
        **linear(draw, "k_proj", head_dim, input_dim, bias=False),
        **linear(draw, "v_proj", head_dim, input_dim, bias=False),
    }


def self_pair(student, reference, draw, input_dim, head_dim, dtype=None, name="SelfAttention"):
    return pair(
        student,
        reference,
        name,
        self_state(draw, input_dim, head_dim),
        dtype=dtype,
        input_dim=input_dim,
        head_dim=head_dim,
    )


SELF_NAMES = {"0": "x"} | {
    f"parameter {name}.weight": f"{name}.weight" for name in ("q_proj", "k_proj", "v_proj")
}


@exercise("SelfAttention")
def test_self_parameters(student):
    """The layers are q_proj, k_proj and v_proj, none of them with a bias."""
    same_parameters(
        student.module("SelfAttention", input_dim=3, head_dim=5),
        {"q_proj.weight": (5, 3), "k_proj.weight": (5, 3), "v_proj.weight": (5, 3)},
    )


@exercise("SelfAttention")
def test_self_values(student, reference, draw):
    """Queries, keys and values are three projections of x; scores are divided by √head_dim."""
    for batch, length, input_dim, head_dim in [
        (1, 1, 2, 2),
        (1, 3, 4, 4),
        (2, 5, 6, 3),
        (2, 4, 3, 7),
    ]:
        mine, theirs = self_pair(student, reference, draw, input_dim, head_dim)
        x = draw.normal(batch, length, input_dim)
        case = sizes(B=batch, T=length, input_dim=input_dim, head_dim=head_dim)
        same_results(mine(x), theirs(x), OUTPUT, case)


@exercise("SelfAttention")
def test_self_mask(student, reference, draw):
    """A mask that broadcasts to (B, T, T) is applied to the scores."""
    mine, theirs = self_pair(student, reference, draw, 4, 3)
    x = draw.normal(3, 4, 4)
    for shape in [(3, 4, 4), (4, 4), (3, 1, 4)]:
        mask = draw.mask(*shape, keep=0.6)
        same_results(mine(x, mask), theirs(x, mask), OUTPUT, f"mask of shape {shape}")


@hidden
@exercise("SelfAttention")
def test_self_equivariance(student, reference, draw):
    """Reordering the tokens reorders the outputs and changes nothing else."""
    mine, theirs = self_pair(student, reference, draw, 5, 4)
    x, order = draw.normal(2, 6, 5), draw.permutation(6)
    same_results(mine(x), theirs(x), OUTPUT, sizes(B=2, T=6, input_dim=5, head_dim=4))
    output, weights = mine(x)
    permuted_output, permuted_weights = expectations.pair(mine(x[:, order]))
    expectations.close(
        permuted_output, output[:, order], what="the output", case="tokens reordered"
    )
    expectations.close(
        permuted_weights,
        weights[:, order][:, :, order],
        what="the weights",
        case="tokens reordered",
    )
    expectations.row_sums_one(weights)


@hidden
@exercise("SelfAttention")
def test_self_fully_masked(student, reference, draw):
    """Queries without any key give 0; strided inputs and double precision work."""
    mine, theirs = self_pair(student, reference, draw, 4, 3, dtype=torch.float64)
    x = draw.normal(2, 4, 5).double().transpose(1, 2)
    mask = draw.mask(2, 5, 5)
    mask[1] = False
    got, want = mine(x, mask), theirs(x, mask)
    same_results(got, want, OUTPUT, "the second batch entry is fully masked")


@hidden
@exercise("SelfAttention")
def test_self_gradients(student, reference, draw):
    """Gradients flow to x and to the three weights; the inputs are left as they were."""
    mine, theirs = self_pair(student, reference, draw, 4, 3, dtype=torch.float64)
    x, mask = draw.normal(2, 5, 4).double(), draw.mask(2, 5, 5)
    seen, wanted = mine.observe(x, mask), theirs.observe(x, mask)
    same_gradients(seen, wanted, SELF_NAMES)
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# MaskedSelfAttention
# --------------------------------------------------------------------------------------------


@exercise("MaskedSelfAttention")
def test_masked_self_parameters(student):
    """The layers are q_proj, k_proj and v_proj, none of them with a bias."""
    same_parameters(
        student.module("MaskedSelfAttention", input_dim=4, head_dim=2),
        {"q_proj.weight": (2, 4), "k_proj.weight": (2, 4), "v_proj.weight": (2, 4)},
    )


@exercise("MaskedSelfAttention")
def test_masked_self_values(student, reference, draw):
    """Without padding, each position attends to itself and to earlier positions only."""
    for batch, length, input_dim, head_dim in [(1, 1, 2, 2), (1, 3, 4, 4), (2, 5, 6, 3)]:
        mine, theirs = self_pair(
            student, reference, draw, input_dim, head_dim, name="MaskedSelfAttention"
        )
        x = draw.normal(batch, length, input_dim)
        case = sizes(B=batch, T=length, input_dim=input_dim, head_dim=head_dim)
        same_results(mine(x), theirs(x), OUTPUT, case)


@exercise("MaskedSelfAttention")
def test_masked_self_padding(student, reference, draw):
    """Padded positions may not be attended to, and the future still may not."""
    mine, theirs = self_pair(student, reference, draw, 4, 3, name="MaskedSelfAttention")
    x = draw.normal(2, 4, 4)
    padding = torch.tensor([[True, True, True, False], [True, True, False, False]])
    same_results(mine(x, padding), theirs(x, padding), OUTPUT, "padding at the end")
    x = draw.normal(3, 3, 4)
    padding = torch.tensor([[True, True, True], [True, False, True], [True, False, False]])
    same_results(mine(x, padding), theirs(x, padding), OUTPUT, "B=T=3, padding in the middle")


@aspect
@exercise("MaskedSelfAttention")
def test_masked_self_no_future(student, reference, draw):
    """Changing later tokens changes no earlier output."""
    mine, _ = self_pair(student, reference, draw, 4, 3, name="MaskedSelfAttention")
    x = draw.normal(2, 6, 4)
    output, _ = expectations.pair(mine(x))
    expectations.shape(output, (2, 6, 3), what="the output")
    for position in (1, 4):
        changed = x.clone()
        changed[:, position:] = draw.normal(2, 6 - position, 4)
        after, _ = expectations.pair(mine(changed))
        expectations.shape(after, (2, 6, 3), what="the output")
        expectations.close(
            after[:, :position],
            output[:, :position],
            what="the output",
            case=f"tokens changed from position {position} on: the future leaks",
        )


@exercise("MaskedSelfAttention")
def test_masked_self_padding_first(student, reference, draw):
    """Padding at the start leaves rows without any key: output 0, not NaN."""
    mine, theirs = self_pair(student, reference, draw, 3, 4, name="MaskedSelfAttention")
    x = draw.normal(2, 4, 3)
    padding = torch.tensor([[False, False, True, True], [False, True, True, True]])
    same_results(mine(x, padding), theirs(x, padding), OUTPUT, "padding at the start")


@hidden
@exercise("MaskedSelfAttention")
def test_masked_self_float64(student, reference, draw):
    """Double precision and strided inputs work."""
    mine, theirs = self_pair(
        student, reference, draw, 4, 4, dtype=torch.float64, name="MaskedSelfAttention"
    )
    x = draw.normal(2, 4, 5).double().transpose(1, 2)
    padding = draw.mask(2, 5, keep=0.7)
    same_results(mine(x, padding), theirs(x, padding), OUTPUT, "float64")


@hidden
@exercise("MaskedSelfAttention")
def test_masked_self_gradients(student, reference, draw):
    """Gradients flow to x and to the three weights; the inputs are left as they were."""
    mine, theirs = self_pair(
        student, reference, draw, 4, 3, dtype=torch.float64, name="MaskedSelfAttention"
    )
    x, padding = draw.normal(2, 5, 4).double(), draw.mask(2, 5)
    seen, wanted = mine.observe(x, padding), theirs.observe(x, padding)
    same_gradients(seen, wanted, SELF_NAMES)
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# split_heads
# --------------------------------------------------------------------------------------------


@exercise("split_heads")
def test_split_values(student, reference, draw):
    """Head h of a token is the h-th block of D/H features of that token."""
    for batch, length, width, heads in [(1, 3, 6, 2), (1, 1, 2, 2), (2, 3, 6, 3), (1, 10, 16, 8)]:
        x = draw.normal(batch, length, width)
        expectations.close(
            student.split_heads(x, heads),
            reference.split_heads(x, heads),
            what="the heads",
            case=sizes(B=batch, T=length, D=width, H=heads),
        )


@exercise("split_heads")
def test_split_refuses(student, draw):
    """A width that the number of heads does not divide raises a ValueError."""
    for width, heads in [(6, 4), (2, 3)]:
        x = draw.normal(2, 3, width)
        expectations.raises(
            "ValueError",
            lambda x=x, heads=heads: student.split_heads(x, heads),
            what=f"D={width} with {heads} heads",
        )


@hidden
@exercise("split_heads")
def test_split_keeps_tokens_apart(student, draw):
    """Token t of every head comes from token t alone: no view that mixes positions."""
    x = torch.arange(10.0).view(1, 10, 1).expand(1, 10, 64)
    heads = student.split_heads(x, 8)
    expectations.shape(heads, (1, 8, 10, 8), what="the heads")
    expectations.close(
        heads,
        torch.arange(10.0).view(1, 1, 10, 1).expand(1, 8, 10, 8),
        what="the heads",
        case="every feature of token t is t",
    )


@hidden
@exercise("split_heads")
def test_split_layout_dtype_gradients(student, reference, draw):
    """Strided, float64 and square inputs work, gradients flow, and the input is unchanged."""
    for case, x, heads in [
        ("one head", draw.normal(2, 3, 4), 1),
        ("as many heads as features", draw.normal(2, 3, 4), 4),
        ("T = H", draw.normal(1, 4, 8), 4),
        ("transposed input", draw.normal(2, 6, 5).transpose(1, 2), 3),
        ("expanded input", draw.normal(1, 3, 6).expand(2, 3, 6), 2),
        ("float64", draw.normal(2, 3, 6).double(), 2),
    ]:
        seen = student.observe("split_heads", x, heads)
        wanted = reference.observe("split_heads", x, heads)
        expectations.close(seen.value, wanted.value, what="the heads", case=case)
        same_gradients(seen, wanted, {"0": "x"}, case)
        expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# merge_heads
# --------------------------------------------------------------------------------------------


@exercise("merge_heads")
def test_merge_values(student, reference, draw):
    """The heads of a token stand side by side again, head 0 first."""
    for batch, heads, length, width in [(1, 2, 1, 1), (1, 2, 3, 2), (2, 3, 4, 2), (1, 4, 4, 4)]:
        x = draw.normal(batch, heads, length, width)
        merged = student.merge_heads(x)
        case = sizes(B=batch, H=heads, T=length, Dh=width)
        expectations.close(merged, reference.merge_heads(x), what="the merged heads", case=case)
        expectations.true(
            merged.is_contiguous(),
            f"The result should be contiguous in memory ({case}).",
            misconception="merge_not_contiguous",
        )


@exercise("merge_heads")
def test_merge_undoes_split(student, draw):
    """Splitting and merging gives the tensor back."""
    for length, width, heads in [(2, 4, 2), (3, 6, 3), (10, 16, 8)]:
        x = draw.normal(2, length, width)
        parts = x.reshape(2, length, heads, width // heads).transpose(1, 2)
        expectations.close(
            student.merge_heads(parts),
            x,
            what="the merged heads",
            case=sizes(T=length, D=width, H=heads),
        )


@hidden
@exercise("merge_heads")
def test_merge_layout_dtype(student, reference, draw):
    """Strided and float64 inputs and single heads work."""
    for case, x in [
        ("one head", draw.normal(2, 1, 3, 4)),
        ("one feature in each head", draw.normal(2, 3, 4, 1)),
        ("strided input", draw.normal(4, 3, 2, 5).transpose(0, 2)),
        ("expanded input", draw.normal(1, 2, 3, 2).expand(3, 2, 3, 2)),
        ("float64", draw.normal(2, 3, 4, 2).double()),
    ]:
        expectations.close(
            student.merge_heads(x), reference.merge_heads(x), what="the merged heads", case=case
        )


@hidden
@exercise("merge_heads")
def test_merge_gradients(student, reference, draw):
    """Gradients flow to the heads, and the input is left as it was."""
    x = draw.normal(2, 3, 4, 2)
    seen, wanted = student.observe("merge_heads", x), reference.observe("merge_heads", x)
    same_gradients(seen, wanted, {"0": "the heads"})
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# MultiHeadAttention
# --------------------------------------------------------------------------------------------

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


def heads_state(draw, d_model):
    state = {}
    for name in PROJECTIONS:
        state |= linear(draw, name, d_model, d_model)
    return state


def heads_pair(student, reference, draw, d_model, heads, dtype=None, **kwargs):
    return pair(
        student,
        reference,
        "MultiHeadAttention",
        heads_state(draw, d_model),
        dtype=dtype,
        d_model=d_model,
        num_heads=heads,
        **kwargs,
    )


def heads_inputs(draw, batch, queries, keys, width, dtype=torch.float32):
    return (
        draw.normal(batch, queries, width, dtype=dtype),
        draw.normal(batch, keys, width, dtype=dtype),
        draw.normal(batch, keys, width, dtype=dtype),
    )


@exercise("MultiHeadAttention")
def test_heads_parameters(student):
    """The layers are q_proj, k_proj, v_proj and out_proj, each with a bias."""
    shapes = {}
    for name in PROJECTIONS:
        shapes |= {f"{name}.weight": (6, 6), f"{name}.bias": (6,)}
    same_parameters(student.module("MultiHeadAttention", d_model=6, num_heads=3), shapes)


@exercise("MultiHeadAttention")
def test_heads_values(student, reference, draw):
    """Each head attends on its own; their outputs are joined and pass through out_proj."""
    for batch, queries, keys, width, heads in [
        (1, 1, 1, 2, 2),
        (1, 3, 3, 4, 1),
        (1, 2, 2, 4, 2),
        (2, 3, 5, 6, 3),
    ]:
        mine, theirs = heads_pair(student, reference, draw, width, heads)
        inputs = heads_inputs(draw, batch, queries, keys, width)
        case = sizes(B=batch, Tq=queries, Tk=keys, D=width, H=heads)
        same_results(mine(*inputs), theirs(*inputs), OUTPUT, case)


@exercise("MultiHeadAttention")
def test_heads_mask_for_all(student, reference, draw):
    """A (Tq, Tk) mask holds for every example and head; a row without a key gets weight 0."""
    mine, theirs = heads_pair(student, reference, draw, 6, 3)
    inputs = heads_inputs(draw, 2, 4, 5, 6)
    mask = draw.mask(4, 5, keep=0.6)
    got, want = mine(*inputs, mask), theirs(*inputs, mask)
    same_results(got, want, OUTPUT, "mask of shape (Tq, Tk)")
    mask = mask.clone()
    mask[1] = False
    got, want = mine(*inputs, mask), theirs(*inputs, mask)
    same_results(got, want, OUTPUT, "mask of shape (Tq, Tk), query 1 sees nothing")


@exercise("MultiHeadAttention")
def test_heads_mask_for_each_example(student, reference, draw):
    """A (B, Tq, Tk) or (B, 1, Tk) mask holds for every head of its own example."""
    for batch, heads in [(2, 2), (2, 4), (3, 1)]:
        mine, theirs = heads_pair(student, reference, draw, 4, heads)
        inputs = heads_inputs(draw, batch, 3, 5, 4)
        for shape in [(batch, 3, 5), (batch, 1, 5)]:
            mask = draw.mask(*shape, keep=0.6)
            got, want = mine(*inputs, mask), theirs(*inputs, mask)
            case = f"{sizes(B=batch, H=heads)}, mask of shape {shape}"
            same_results(got, want, OUTPUT, case)


@exercise("MultiHeadAttention")
def test_heads_refuses(student):
    """A d_model that the number of heads does not divide raises a ValueError."""
    for width, heads in [(6, 4), (4, 3)]:
        expectations.raises(
            "ValueError",
            lambda width=width, heads=heads: student.module(
                "MultiHeadAttention", d_model=width, num_heads=heads
            ),
            what=f"d_model={width} with {heads} heads",
        )


@exercise("MultiHeadAttention")
def test_heads_dropout_leaves_weights(student, reference, draw):
    """Dropout acts in training only, and the returned weights are those before dropout."""
    mine, theirs = heads_pair(student, reference, draw, 4, 2, dropout=0.5)
    inputs = heads_inputs(draw, 3, 4, 6, 4)
    got, want = mine(*inputs), theirs(*inputs)
    same_results(got, want, OUTPUT, "dropout=0.5 in eval mode")
    output, weights = expectations.pair(mine.train()(*inputs))
    expectations.close(weights, want[1], what="the weights", case="dropout=0.5 in train mode")
    expectations.shape(output, want[0].shape, what="the output")
    expectations.true(
        not torch.allclose(output, want[0], rtol=1e-4, atol=1e-6),
        "In train mode with dropout=0.5 the output is the same as without dropout.",
        misconception="heads_dropout_ignored",
    )
    mine, theirs = heads_pair(student, reference, draw, 4, 2)
    got, want = mine.train()(*inputs), theirs(*inputs)
    same_results(got, want, OUTPUT, "no dropout given, in train mode")


@hidden
@exercise("MultiHeadAttention")
def test_heads_mask_for_each_head(student, reference, draw):
    """A (B, H, Tq, Tk) mask is used as it is; rows without a key leave out_proj's bias only."""
    mine, theirs = heads_pair(student, reference, draw, 6, 3)
    inputs = heads_inputs(draw, 2, 4, 5, 6)
    mask = draw.mask(2, 3, 4, 5, keep=0.6)
    mask[1, :, 2] = False
    got, want = mine(*inputs, mask), theirs(*inputs, mask)
    same_results(got, want, OUTPUT, "mask of shape (B, H, Tq, Tk), one query sees nothing")


@hidden
@exercise("MultiHeadAttention")
def test_heads_dropout_on_weights(student, reference, draw):
    """In train mode each weight of each head is dropped on its own with probability p."""
    heads, keys, p = 2, 8, 0.5
    width = heads * 2 * keys
    state = heads_state(draw, width)
    # v_proj and out_proj do nothing, and the values of each head are two identity matrices side
    # by side: the output shows each weight that was used, twice.
    for name in ("v_proj", "out_proj"):
        state[f"{name}.weight"], state[f"{name}.bias"] = torch.eye(width), torch.zeros(width)
    mine = student.module(
        "MultiHeadAttention", state=state, d_model=width, num_heads=heads, dropout=p
    )
    query, key = draw.normal(4, 12, width), draw.normal(4, keys, width)
    value = torch.eye(keys).repeat(1, 2 * heads).expand(4, keys, width)
    output, weights = expectations.pair(mine.train()(query, key, value))
    expectations.shape(output, (4, 12, width), what="the output")
    expectations.shape(weights, (4, heads, 12, keys), what="the weights")
    used, copy = output.reshape(4, 12, heads, 2, keys).transpose(1, 2).unbind(dim=3)
    expectations.close(
        copy,
        used,
        what="the second half of each head's output",
        case="values that are given twice (drop weights, not outputs)",
        misconception="heads_dropout_on_output",
    )
    expectations.rate(
        int((used == 0).sum()),
        used.numel(),
        p,
        what=f"the share of weights that are dropped at p={p}",
        false_alarm=5e-10,
    )
    expectations.rate(
        int(((used[:, 0] == 0) == (used[:, 1] == 0)).sum()),
        used[:, 0].numel(),
        p**2 + (1 - p) ** 2,
        what=f"how often the decisions for two heads agree at p={p}",
        false_alarm=5e-10,
    )
    kept = used != 0
    expectations.close(
        used[kept],
        weights[kept] / (1 - p),
        what="the surviving weights",
        case=f"dropout={p} in train mode",
    )


@hidden
@exercise("MultiHeadAttention")
def test_heads_key_order(student, reference, draw):
    """Reordering keys and values together changes no output; strided float64 inputs work."""
    mine, theirs = heads_pair(student, reference, draw, 4, 2, dtype=torch.float64)
    query = draw.normal(2, 4, 3).double().transpose(1, 2)
    key, value = draw.normal(1, 5, 4).double().expand(2, 5, 4), draw.normal(2, 5, 4).double()
    got, want = mine(query, key, value), theirs(query, key, value)
    same_results(got, want, OUTPUT, "float64")
    order = draw.permutation(5)
    expectations.close(
        mine(query, key[:, order], value[:, order])[0],
        got[0],
        what="the output",
        case="keys and values reordered together",
    )


@hidden
@exercise("MultiHeadAttention")
def test_heads_gradients(student, reference, draw):
    """Gradients flow to all inputs and parameters; the inputs are left as they were."""
    mine, theirs = heads_pair(student, reference, draw, 6, 2, dtype=torch.float64)
    inputs, mask = heads_inputs(draw, 2, 3, 4, 6, torch.float64), draw.mask(2, 3, 4)
    seen, wanted = mine.observe(*inputs, mask), theirs.observe(*inputs, mask)
    names = {"0": "the query", "1": "the key", "2": "the value"}
    for name in PROJECTIONS:
        names |= {f"parameter {name}.weight": f"{name}.weight"}
    # A bias of k_proj adds the same number to a whole row of scores: its gradient is zero.
    names |= {f"parameter {name}.bias": f"{name}.bias" for name in ("q_proj", "v_proj", "out_proj")}
    same_gradients(seen, wanted, names)
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# FusedMultiHeadAttention
# --------------------------------------------------------------------------------------------


def fused_pair(student, reference, draw, input_dim, embed_dim, heads, dtype=None):
    state = {
        **linear(draw, "qkv_proj", 3 * embed_dim, input_dim),
        **linear(draw, "o_proj", embed_dim, embed_dim),
    }
    return pair(
        student,
        reference,
        "FusedMultiHeadAttention",
        state,
        dtype=dtype,
        input_dim=input_dim,
        embed_dim=embed_dim,
        num_heads=heads,
    )


@exercise("FusedMultiHeadAttention")
def test_fused_parameters(student):
    """The layers are qkv_proj (input_dim to 3 embed_dim) and o_proj, each with a bias."""
    same_parameters(
        student.module("FusedMultiHeadAttention", input_dim=5, embed_dim=4, num_heads=2),
        {
            "qkv_proj.weight": (12, 5),
            "qkv_proj.bias": (12,),
            "o_proj.weight": (4, 4),
            "o_proj.bias": (4,),
        },
    )


@exercise("FusedMultiHeadAttention")
def test_fused_values(student, reference, draw):
    """The rows of qkv_proj are q, k, v of head 0, then q, k, v of head 1, and so on."""
    for batch, length, width, heads in [(1, 1, 2, 1), (1, 3, 4, 1), (1, 3, 4, 2), (2, 5, 6, 3)]:
        mine, theirs = fused_pair(student, reference, draw, width, width, heads)
        x = draw.normal(batch, length, width)
        case = sizes(B=batch, T=length, embed_dim=width, H=heads)
        same_results(mine(x), theirs(x), OUTPUT, case)


@exercise("FusedMultiHeadAttention")
def test_fused_other_input_width(student, reference, draw):
    """The input may be wider or narrower than embed_dim."""
    for input_dim, embed_dim, heads in [(3, 4, 2), (8, 4, 2), (1, 6, 3)]:
        mine, theirs = fused_pair(student, reference, draw, input_dim, embed_dim, heads)
        x = draw.normal(2, 4, input_dim)
        same_results(
            mine(x), theirs(x), OUTPUT, sizes(input_dim=input_dim, embed_dim=embed_dim, H=heads)
        )


@exercise("FusedMultiHeadAttention")
def test_fused_mask(student, reference, draw):
    """A (T, T), (B, T, T), (B, 1, T) or (B, H, T, T) mask works."""
    for batch, heads in [(2, 2), (3, 2)]:
        mine, theirs = fused_pair(student, reference, draw, 3, 4, heads)
        x = draw.normal(batch, 4, 3)
        for shape in [(4, 4), (batch, 4, 4), (batch, 1, 4), (batch, heads, 4, 4)]:
            mask = draw.mask(*shape, keep=0.6)
            case = f"{sizes(B=batch, H=heads)}, mask of shape {shape}"
            same_results(mine(x, mask), theirs(x, mask), OUTPUT, case)


@exercise("FusedMultiHeadAttention")
def test_fused_refuses(student):
    """An embed_dim that the number of heads does not divide raises a ValueError."""
    expectations.raises(
        "ValueError",
        lambda: student.module("FusedMultiHeadAttention", input_dim=4, embed_dim=6, num_heads=4),
        what="embed_dim=6 with 4 heads",
    )


@hidden
@exercise("FusedMultiHeadAttention")
def test_fused_fully_masked_and_float64(student, reference, draw):
    """Rows without a key, strided inputs and double precision work."""
    mine, theirs = fused_pair(student, reference, draw, 3, 6, 2, dtype=torch.float64)
    x = draw.normal(2, 3, 4).double().transpose(1, 2)
    mask = draw.mask(2, 4, 4)
    mask[0, 2] = False
    same_results(mine(x, mask), theirs(x, mask), OUTPUT, "query 2 sees nothing")


@hidden
@exercise("FusedMultiHeadAttention")
def test_fused_gradients(student, reference, draw):
    """Gradients flow to x and the parameters; the inputs are left as they were."""
    mine, theirs = fused_pair(student, reference, draw, 5, 6, 3, dtype=torch.float64)
    x, mask = draw.normal(2, 4, 5).double(), draw.mask(2, 4, 4)
    seen, wanted = mine.observe(x, mask), theirs.observe(x, mask)
    names = {"0": "x"} | {
        f"parameter {name}": name
        for name in ("qkv_proj.weight", "qkv_proj.bias", "o_proj.weight", "o_proj.bias")
    }
    same_gradients(seen, wanted, names)
    expectations.unchanged(seen)


@hidden
@exercise("FusedMultiHeadAttention")
def test_fused_equivariance(student, reference, draw):
    """Reordering the tokens reorders the outputs; many heads and an odd length work."""
    mine, theirs = fused_pair(student, reference, draw, 7, 8, 4)
    x, order = draw.normal(1, 7, 7), draw.permutation(7)
    got = mine(x)
    same_results(got, theirs(x), OUTPUT, sizes(B=1, T=7, input_dim=7, embed_dim=8, H=4))
    expectations.close(mine(x[:, order])[0], got[0][:, order], what="the output", case="reordered")


# --------------------------------------------------------------------------------------------
# PerHeadAttention
# --------------------------------------------------------------------------------------------


def per_head_pair(student, reference, draw, d_model, heads, dtype=None):
    width = d_model // heads
    state = {
        name: draw.normal(heads, d_model, width, scale=d_model**-0.5)
        for name in ("w_q", "w_k", "w_v")
    }
    state["w_o"] = draw.normal(heads, width, d_model, scale=d_model**-0.5)
    return pair(
        student,
        reference,
        "PerHeadAttention",
        state,
        dtype=dtype,
        d_model=d_model,
        num_heads=heads,
    )


@exercise("PerHeadAttention")
def test_per_head_parameters(student):
    """w_q, w_k and w_v have the shape (H, d_model, d_model/H), w_o (H, d_model/H, d_model)."""
    same_parameters(
        student.module("PerHeadAttention", d_model=6, num_heads=3),
        {"w_q": (3, 6, 2), "w_k": (3, 6, 2), "w_v": (3, 6, 2), "w_o": (3, 2, 6)},
    )


@exercise("PerHeadAttention")
def test_per_head_values(student, reference, draw):
    """The output is the sum of what each head contributes through its own w_o."""
    for batch, queries, keys, width, heads in [
        (1, 1, 1, 2, 1),
        (1, 2, 2, 4, 2),
        (2, 3, 5, 6, 3),
        (2, 3, 3, 4, 4),
    ]:
        mine, theirs = per_head_pair(student, reference, draw, width, heads)
        inputs = heads_inputs(draw, batch, queries, keys, width)
        case = sizes(B=batch, Tq=queries, Tk=keys, D=width, H=heads)
        same_results(mine(*inputs), theirs(*inputs), OUTPUT, case)


@exercise("PerHeadAttention")
def test_per_head_mask(student, reference, draw):
    """Masks of all four shapes are applied as in MultiHeadAttention."""
    for batch, heads in [(2, 2), (3, 2)]:
        mine, theirs = per_head_pair(student, reference, draw, 4, heads)
        inputs = heads_inputs(draw, batch, 3, 5, 4)
        for shape in [(3, 5), (batch, 3, 5), (batch, 1, 5), (batch, heads, 3, 5)]:
            mask = draw.mask(*shape, keep=0.6)
            got, want = mine(*inputs, mask), theirs(*inputs, mask)
            case = f"{sizes(B=batch, H=heads)}, mask of shape {shape}"
            same_results(got, want, OUTPUT, case)


@exercise("PerHeadAttention")
def test_per_head_refuses(student):
    """A d_model that the number of heads does not divide raises a ValueError."""
    expectations.raises(
        "ValueError",
        lambda: student.module("PerHeadAttention", d_model=6, num_heads=4),
        what="d_model=6 with 4 heads",
    )


@hidden
@exercise("PerHeadAttention")
def test_per_head_fully_masked_and_float64(student, reference, draw):
    """A query without any key gives 0; strided inputs and double precision work."""
    mine, theirs = per_head_pair(student, reference, draw, 6, 2, dtype=torch.float64)
    query = draw.normal(2, 6, 3).double().transpose(1, 2)
    key, value = draw.normal(1, 4, 6).double().expand(2, 4, 6), draw.normal(2, 4, 6).double()
    mask = draw.mask(2, 3, 4)
    mask[0, 1] = False
    got, want = mine(query, key, value, mask), theirs(query, key, value, mask)
    same_results(got, want, OUTPUT, "query 1 of the first example sees nothing")


@hidden
@exercise("PerHeadAttention")
def test_per_head_gradients(student, reference, draw):
    """Gradients flow to the inputs and to all four tensors; the inputs are left as they were."""
    mine, theirs = per_head_pair(student, reference, draw, 6, 3, dtype=torch.float64)
    inputs, mask = heads_inputs(draw, 2, 3, 4, 6, torch.float64), draw.mask(2, 3, 4)
    seen, wanted = mine.observe(*inputs, mask), theirs.observe(*inputs, mask)
    names = {"0": "the query", "1": "the key", "2": "the value"} | {
        f"parameter {name}": name for name in ("w_q", "w_k", "w_v", "w_o")
    }
    same_gradients(seen, wanted, names)
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# separate_to_fused, separate_to_per_head, separate_to_torch
# --------------------------------------------------------------------------------------------


def no_biases(state):
    return {
        name: torch.zeros_like(value) if name.endswith("bias") else value
        for name, value in state.items()
    }


@exercise("separate_to_fused")
def test_to_fused_values(student, reference, draw):
    """Weights and biases of q, k and v are interleaved head by head."""
    for width, heads in [(2, 1), (4, 2), (6, 3)]:
        state = heads_state(draw, width)
        same_state(
            student.separate_to_fused(state, heads),
            reference.separate_to_fused(state, heads),
            sizes(d_model=width, H=heads),
        )


@exercise("separate_to_fused")
def test_to_fused_leaves_input(student, reference, draw):
    """The result is a new dict, and the given state is not changed."""
    state = heads_state(draw, 4)
    seen = student.observe("separate_to_fused", state, 2, grad=False)
    same_state(seen.value, reference.separate_to_fused(state, 2), "d_model=4, H=2")
    expectations.unchanged(seen)


@hidden
@exercise("separate_to_fused")
def test_to_fused_rows(student, draw):
    """With numbered rows, head h of q stands in rows 3hD' to 3hD' + D', then k, then v."""
    heads, head_dim = 3, 2
    width = heads * head_dim
    state = heads_state(draw, width)
    for index, name in enumerate(("q_proj", "k_proj", "v_proj")):
        state[f"{name}.bias"] = 100.0 * (index + 1) + torch.arange(width)
    fused = student.separate_to_fused(state, heads)
    expectations.true(
        isinstance(fused, dict) and "qkv_proj.bias" in fused,
        "The result should be a dict with the entry qkv_proj.bias.",
    )
    expected = [
        100.0 * part + head * head_dim + row
        for head in range(heads)
        for part in (1, 2, 3)
        for row in range(head_dim)
    ]
    expectations.close(fused["qkv_proj.bias"], torch.tensor(expected), what="qkv_proj.bias")


@hidden
@exercise("separate_to_fused")
def test_to_fused_float64(student, reference, draw):
    """As many heads as features, float64 and strided weights work."""
    state = {name: value.double() for name, value in heads_state(draw, 4).items()}
    got, want = student.separate_to_fused(state, 4), reference.separate_to_fused(state, 4)
    same_state(got, want, "float64, H = d_model")
    state = {
        name: value.t() if value.dim() == 2 else value
        for name, value in heads_state(draw, 6).items()
    }
    got, want = student.separate_to_fused(state, 2), reference.separate_to_fused(state, 2)
    same_state(got, want, "transposed weights")


@exercise("separate_to_per_head")
def test_to_per_head_values(student, reference, draw):
    """Each head gets its rows of q, k, v and its columns of out_proj, transposed."""
    for width, heads in [(4, 2), (2, 1), (6, 3)]:
        state = no_biases(heads_state(draw, width))
        same_state(
            student.separate_to_per_head(state, heads),
            reference.separate_to_per_head(state, heads),
            sizes(d_model=width, H=heads),
        )
        weights = {name: value for name, value in state.items() if name.endswith("weight")}
        same_state(
            student.separate_to_per_head(weights, heads),
            reference.separate_to_per_head(weights, heads),
            "a state without biases",
        )


@exercise("separate_to_per_head")
def test_to_per_head_refuses_biases(student, draw):
    """A bias that is not zero cannot be represented and raises a ValueError."""
    for name in PROJECTIONS:
        state = no_biases(heads_state(draw, 4))
        state[f"{name}.bias"] = torch.tensor([0.0, 0.0, -0.5, 0.0])
        expectations.raises(
            "ValueError",
            lambda state=state: student.separate_to_per_head(state, 2),
            what=f"a state whose {name}.bias is not zero",
        )


@hidden
@exercise("separate_to_per_head")
def test_to_per_head_refuses_any_bias(student, draw):
    """Biases that sum to zero are refused too."""
    for name in PROJECTIONS:
        for bias in ([0.5, 0.0, 0.0, 0.0], [0.5, -0.5, 0.25, -0.25]):
            state = no_biases(heads_state(draw, 4))
            state[f"{name}.bias"] = torch.tensor(bias)
            expectations.raises(
                "ValueError",
                lambda state=state: student.separate_to_per_head(state, 2),
                what=f"a state whose {name}.bias is {bias}",
            )


@hidden
@exercise("separate_to_per_head")
def test_to_per_head_leaves_input(student, reference, draw):
    """float64 and as many heads as features work; the given state is not changed."""
    state = {name: value.double() for name, value in no_biases(heads_state(draw, 4)).items()}
    seen = student.observe("separate_to_per_head", state, 4, grad=False)
    want = reference.observe("separate_to_per_head", state, 4, grad=False)
    same_state(seen.value, want.value, "float64, H = d_model")
    expectations.unchanged(seen)


@exercise("separate_to_torch")
def test_to_torch_values(student, reference, draw):
    """q, k and v are stacked in this order; out_proj keeps its name."""
    for width in (1, 2, 6):
        state = heads_state(draw, width)
        same_state(
            student.separate_to_torch(state), reference.separate_to_torch(state), f"d_model={width}"
        )


@exercise("separate_to_torch")
def test_to_torch_leaves_input(student, reference, draw):
    """The result is a new dict, and the given state is not changed."""
    state = heads_state(draw, 4)
    seen = student.observe("separate_to_torch", state, grad=False)
    same_state(seen.value, reference.separate_to_torch(state), "d_model=4")
    expectations.unchanged(seen)


@hidden
@exercise("separate_to_torch")
def test_to_torch_same_outputs(student, reference, draw):
    """torch.nn.MultiheadAttention with the new state gives MultiHeadAttention's outputs."""
    state = heads_state(draw, 6)
    query, key, value = heads_inputs(draw, 2, 3, 5, 6)
    theirs = reference.module("MultiHeadAttention", state=state, d_model=6, num_heads=3)
    output, weights = theirs(query, key, value)
    converted = student.separate_to_torch(state)
    expectations.true(
        isinstance(converted, dict), "The result should be a dict from name to tensor."
    )
    library = torch.nn.MultiheadAttention(6, 3, batch_first=True).eval()
    same_state(
        {name: torch.zeros_like(value) for name, value in converted.items()},
        {name: torch.zeros_like(value) for name, value in library.state_dict().items()},
    )
    library.load_state_dict(converted)
    with torch.no_grad():
        got, maps = library(query, key, value, average_attn_weights=False)
    expectations.close(got, output, what="the output of torch.nn.MultiheadAttention")
    expectations.close(maps, weights, what="the weights of torch.nn.MultiheadAttention")


@hidden
@exercise("separate_to_torch")
def test_to_torch_float64(student, reference, draw):
    """float64 weights stay float64."""
    state = {name: value.double() for name, value in heads_state(draw, 3).items()}
    same_state(student.separate_to_torch(state), reference.separate_to_torch(state), "float64")


# --------------------------------------------------------------------------------------------
# CrossAttention
# --------------------------------------------------------------------------------------------


def cross_pair(student, reference, draw, query_dim, memory_dim, embed_dim, heads, dtype=None):
    state = {
        **linear(draw, "q_proj", embed_dim, query_dim),
        **linear(draw, "k_proj", embed_dim, memory_dim),
        **linear(draw, "v_proj", embed_dim, memory_dim),
        **linear(draw, "out_proj", query_dim, embed_dim),
    }
    return pair(
        student,
        reference,
        "CrossAttention",
        state,
        dtype=dtype,
        query_dim=query_dim,
        memory_dim=memory_dim,
        embed_dim=embed_dim,
        num_heads=heads,
    )


@exercise("CrossAttention")
def test_cross_parameters(student):
    """q_proj reads the decoder, k_proj and v_proj the memory, out_proj returns to query_dim."""
    same_parameters(
        student.module("CrossAttention", query_dim=3, memory_dim=5, embed_dim=4, num_heads=2),
        {
            "q_proj.weight": (4, 3),
            "q_proj.bias": (4,),
            "k_proj.weight": (4, 5),
            "k_proj.bias": (4,),
            "v_proj.weight": (4, 5),
            "v_proj.bias": (4,),
            "out_proj.weight": (3, 4),
            "out_proj.bias": (3,),
        },
    )


@exercise("CrossAttention")
def test_cross_values(student, reference, draw):
    """Queries come from x; keys and values come from the memory."""
    for batch, queries, keys, query_dim, memory_dim, embed_dim, heads in [
        (1, 2, 2, 2, 2, 2, 1),
        (1, 1, 1, 1, 1, 1, 1),
        (1, 2, 3, 4, 4, 4, 2),
        (2, 3, 3, 6, 6, 6, 3),
        (2, 3, 5, 3, 5, 4, 2),
    ]:
        mine, theirs = cross_pair(student, reference, draw, query_dim, memory_dim, embed_dim, heads)
        x, memory = draw.normal(batch, queries, query_dim), draw.normal(batch, keys, memory_dim)
        case = sizes(
            B=batch, Tq=queries, Tk=keys, query_dim=query_dim, memory_dim=memory_dim, H=heads
        )
        same_results(mine(x, memory), theirs(x, memory), OUTPUT, case)


@exercise("CrossAttention")
def test_cross_mask(student, reference, draw):
    """Padded memory positions get the weight 0 in every head and for every query."""
    for batch, queries, keys, heads in [(1, 1, 2, 1), (2, 4, 4, 2), (3, 3, 3, 3), (2, 3, 5, 3)]:
        mine, theirs = cross_pair(student, reference, draw, 3, 4, 6, heads)
        x, memory = draw.normal(batch, queries, 3), draw.normal(batch, keys, 4)
        mask = draw.mask(batch, keys, keep=0.6)
        got, want = mine(x, memory, mask), theirs(x, memory, mask)
        same_results(got, want, OUTPUT, sizes(B=batch, Tq=queries, Tk=keys, H=heads))


@exercise("CrossAttention")
def test_cross_refuses(student):
    """An embed_dim that the number of heads does not divide raises a ValueError."""
    expectations.raises(
        "ValueError",
        lambda: student.module(
            "CrossAttention", query_dim=4, memory_dim=8, embed_dim=6, num_heads=4
        ),
        what="embed_dim=6 with 4 heads",
    )


@hidden
@exercise("CrossAttention")
def test_cross_ignores_padding(student, reference, draw):
    """What stands in the padding of the memory changes nothing."""
    mine, theirs = cross_pair(student, reference, draw, 4, 3, 4, 2)
    x, memory = draw.normal(2, 3, 4), draw.normal(2, 5, 3)
    mask = torch.tensor([[True, True, True, False, False], [True, True, True, True, False]])
    changed = memory.clone()
    changed[~mask] = draw.normal(3, 3, scale=10.0)
    want = theirs(x, memory, mask)
    same_results(mine(x, memory, mask), want, OUTPUT, "two padded memories")
    same_results(mine(x, changed, mask), want, OUTPUT, "other vectors in the padding")


@hidden
@exercise("CrossAttention")
def test_cross_order_of_memory(student, reference, draw):
    """Reordering the memory changes no output; a fully padded memory leaves out_proj's bias."""
    mine, theirs = cross_pair(student, reference, draw, 3, 4, 4, 2, dtype=torch.float64)
    x, memory = draw.normal(2, 3, 4).double().transpose(1, 2), draw.normal(2, 5, 4).double()
    order = draw.permutation(5)
    output = mine(x, memory)[0]
    expectations.close(
        mine(x, memory[:, order])[0], output, what="the output", case="memory reordered"
    )
    mask = draw.mask(2, 5)
    mask[1] = False
    got, want = mine(x, memory, mask), theirs(x, memory, mask)
    same_results(got, want, OUTPUT, "float64, the second memory is all padding")


@hidden
@exercise("CrossAttention")
def test_cross_gradients(student, reference, draw):
    """Gradients flow to x, memory and parameters; the inputs are left as they were."""
    mine, theirs = cross_pair(student, reference, draw, 3, 5, 4, 2, dtype=torch.float64)
    x, memory, mask = draw.normal(2, 3, 3).double(), draw.normal(2, 4, 5).double(), draw.mask(2, 4)
    seen, wanted = mine.observe(x, memory, mask), theirs.observe(x, memory, mask)
    names = {"0": "x", "1": "the memory"} | {
        f"parameter {name}.weight": f"{name}.weight" for name in PROJECTIONS
    }
    names |= {f"parameter {name}.bias": f"{name}.bias" for name in ("q_proj", "v_proj", "out_proj")}
    same_gradients(seen, wanted, names)
    expectations.unchanged(seen)
