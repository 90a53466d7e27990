"""Graders of `attention-scores`: the scores, the softmax and the decoder's step.

Among the sizes of a test large and unequal ones come first: with a single number much is the same,
and a mistake would be taken for another.
"""

from __future__ import annotations

import torch

from autograder.graders.attention.common import linear
from autograder.graders.common import pair, same_gradients, same_parameters, same_results, sizes
from autograder.judging import expectations
from autograder.judging.grader_marks import aspect, exercise, hidden, promises


def same_masked_scores(mine, theirs, query, key, masks):
    """With each mask, words -> mask, the scores agree, and then without one, for other queries."""
    for case, mask in masks.items():
        expectations.close(
            mine(query, key, mask), theirs(query, key, mask), what="the masked scores", case=case
        )
    other = query.flip(0)
    expectations.close(
        mine(other, key),
        theirs(other, key),
        what="the scores",
        case="no mask, after calls with one",
    )


def masks_of(draw, *shapes):
    """For each shape a mask with several entries True and several False."""
    return {f"mask of shape {shape}": draw.mask(*shape, keep=0.6) for shape in shapes}


def empty_rows(draw, batch, queries, keys):
    """Masks under which one query, or each, may attend to nothing."""
    mask = draw.mask(batch, queries, keys)
    mask[1, 0] = False
    nothing = torch.zeros(1, 1, keys, dtype=torch.bool)
    return {"one row fully masked": mask, "a mask that is False everywhere": nothing}


# --------------------------------------------------------------------------------------------
# DotScore
# --------------------------------------------------------------------------------------------


@promises("dot-products", "unscaled", "no-parameters")
@exercise("DotScore")
def test_dot_score_values(student, reference, draw):
    """Each score is the inner product of one query with one key, and nothing is learned."""
    mine, theirs = pair(student, reference, "DotScore")
    for batch, queries, keys, width in [(2, 3, 5, 7), (2, 1, 3, 4), (2, 3, 2, 1), (1, 1, 1, 3)]:
        query, key = draw.normal(batch, queries, width), draw.normal(batch, keys, width)
        case = sizes(B=batch, Tq=queries, Tk=keys, D=width)
        expectations.close(mine(query, key), theirs(query, key), what="the scores", case=case)
    same_parameters(mine, {})


@promises("masked-scores", "true-may-attend")
@exercise("DotScore")
def test_dot_score_mask(student, reference, draw):
    """Where the mask is False the score is -inf; where it is True nothing changes."""
    mine, theirs = pair(student, reference, "DotScore")
    for batch, queries, keys in [(2, 3, 4), (1, 2, 2)]:
        query, key = draw.normal(batch, queries, 5), draw.normal(batch, keys, 5)
        mask = draw.mask(batch, queries, keys, keep=0.6)
        expectations.close(
            mine(query, key, mask),
            theirs(query, key, mask),
            what="the masked scores",
            case=sizes(B=batch, Tq=queries, Tk=keys),
        )


@promises("other-widths")
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
    expectations.raises(
        "ValueError",
        lambda: mine(draw.normal(1, 2, 3), draw.normal(1, 2, 1)),
        what="a query of width 3 with a key of width 1",
    )


@hidden
@promises("mask-broadcasts")
@exercise("DotScore")
def test_dot_score_broadcast_masks(student, reference, draw):
    """Masks that hold for every query or every batch entry, and rows without any key, work."""
    mine, theirs = pair(student, reference, "DotScore")
    # As many rows as queries: a mask without a batch dimension is (Tq, Tk) all the same.
    query, key = draw.normal(3, 3, 5), draw.normal(3, 4, 5)
    masks = masks_of(draw, (3, 1, 4), (3, 4), (1, 3, 4)) | empty_rows(draw, 3, 3, 4)
    same_masked_scores(mine, theirs, query, key, masks)


@hidden
@promises("dtype-kept")
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
@promises("gradients")
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


@promises("weight", "parameter-names")
@exercise("BilinearScore")
def test_bilinear_parameter(student):
    """There is one parameter, `weight`, of shape (query_dim, key_dim)."""
    same_parameters(student.module("BilinearScore", query_dim=3, key_dim=5), {"weight": (3, 5)})


@promises("bilinear-form", "one-matrix", "unscaled")
@exercise("BilinearScore")
def test_bilinear_values(student, reference, draw):
    """Each score is query · W · key, with the same W for every pair."""
    for batch, queries, keys, query_dim, key_dim in [
        (2, 3, 5, 4, 2),
        (2, 1, 3, 4, 4),
        (1, 1, 1, 1, 1),
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


@promises("masked-scores", "mask-broadcasts")
@exercise("BilinearScore")
def test_bilinear_mask(student, reference, draw):
    """Where the mask is False the score is -inf, in rows without any key as well."""
    mine, theirs = pair(
        student, reference, "BilinearScore", bilinear_state(draw, 3, 4), query_dim=3, key_dim=4
    )
    # As many rows as queries: a mask without a batch dimension is (Tq, Tk) all the same.
    query, key = draw.normal(3, 3, 3), draw.normal(3, 4, 4)
    masks = masks_of(draw, (3, 3, 4), (3, 1, 4), (3, 4)) | empty_rows(draw, 3, 3, 4)
    same_masked_scores(mine, theirs, query, key, masks)


@hidden
@promises("one-matrix")
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
@promises("dtype-kept")
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
@promises("gradients")
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


@promises("layers", "parameter-names")
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


@promises("additive-formula", "unscaled")
@exercise("AdditiveScore")
def test_additive_values(student, reference, draw):
    """Each score is v · tanh(W_q query + W_k key)."""
    for batch, queries, keys, query_dim, key_dim, hidden_dim in [
        (2, 3, 5, 4, 2, 6),
        (2, 1, 2, 3, 3, 3),
        (1, 1, 1, 1, 1, 1),
    ]:
        mine, theirs = additive_pair(student, reference, draw, query_dim, key_dim, hidden_dim)
        query, key = draw.normal(batch, queries, query_dim), draw.normal(batch, keys, key_dim)
        case = sizes(
            B=batch, Tq=queries, Tk=keys, query_dim=query_dim, key_dim=key_dim, hidden=hidden_dim
        )
        expectations.close(mine(query, key), theirs(query, key), what="the scores", case=case)


@promises("masked-scores", "mask-broadcasts")
@exercise("AdditiveScore")
def test_additive_mask(student, reference, draw):
    """Where the mask is False the score is -inf, in rows without any key as well."""
    mine, theirs = additive_pair(student, reference, draw, 3, 4, 5)
    # As many rows as queries: a mask without a batch dimension is (Tq, Tk) all the same.
    query, key = draw.normal(3, 3, 3), draw.normal(3, 4, 4)
    masks = masks_of(draw, (3, 3, 4), (3, 1, 4), (3, 4)) | empty_rows(draw, 3, 3, 4)
    same_masked_scores(mine, theirs, query, key, masks)


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
@promises("dtype-kept")
@exercise("AdditiveScore")
def test_additive_float64(student, reference, draw):
    """In double precision the scores are float64; large inputs saturate without trouble."""
    mine, theirs = additive_pair(student, reference, draw, 3, 3, 4, dtype=torch.float64)
    query, key = draw.normal(2, 2, 3).double(), draw.normal(2, 4, 3).double()
    for case, given in [("float64", query), ("large queries", query * 1000)]:
        expectations.close(mine(given, key), theirs(given, key), what="the scores", case=case)


@hidden
@promises("gradients")
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


@promises("layers", "parameter-names")
@exercise("ConcatScore")
def test_concat_parameters(student):
    """The layers are projection (query_dim + key_dim to hidden_dim) and energy, without bias."""
    same_parameters(
        student.module("ConcatScore", query_dim=3, key_dim=4, hidden_dim=5),
        {"projection.weight": (5, 7), "energy.weight": (1, 5)},
    )


@promises("concat-formula", "query-first", "unscaled")
@exercise("ConcatScore")
def test_concat_values(student, reference, draw):
    """Each score is v · tanh(W [query; key]), the query first."""
    for batch, queries, keys, query_dim, key_dim, hidden_dim in [
        (2, 3, 5, 4, 2, 6),
        (2, 1, 2, 3, 3, 3),
        (1, 1, 1, 1, 1, 1),
    ]:
        mine, theirs = concat_pair(student, reference, draw, query_dim, key_dim, hidden_dim)
        query, key = draw.normal(batch, queries, query_dim), draw.normal(batch, keys, key_dim)
        case = sizes(
            B=batch, Tq=queries, Tk=keys, query_dim=query_dim, key_dim=key_dim, hidden=hidden_dim
        )
        expectations.close(mine(query, key), theirs(query, key), what="the scores", case=case)


@promises("masked-scores", "mask-broadcasts")
@exercise("ConcatScore")
def test_concat_mask(student, reference, draw):
    """Where the mask is False the score is -inf, in rows without any key as well."""
    mine, theirs = concat_pair(student, reference, draw, 3, 4, 5)
    # As many rows as queries: a mask without a batch dimension is (Tq, Tk) all the same.
    query, key = draw.normal(3, 3, 3), draw.normal(3, 4, 4)
    masks = masks_of(draw, (3, 3, 4), (3, 1, 4), (3, 4)) | empty_rows(draw, 3, 3, 4)
    same_masked_scores(mine, theirs, query, key, masks)


@aspect
@hidden
@promises("query-matters")
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
@promises("dtype-kept")
@exercise("ConcatScore")
def test_concat_layout_and_dtype(student, reference, draw):
    """Equal sizes, strided inputs, double precision and large queries work."""
    mine, theirs = concat_pair(student, reference, draw, 3, 3, 3)
    query, key = draw.normal(3, 3, 3), draw.normal(3, 3, 3)
    expectations.close(mine(query, key), theirs(query, key), what="the scores", case="all sizes 3")
    query, key = draw.normal(2, 3, 5).transpose(1, 2), draw.normal(1, 4, 3).expand(2, 4, 3)
    expectations.close(
        mine(query, key), theirs(query, key), what="the scores", case="strided inputs"
    )
    mine, theirs = concat_pair(student, reference, draw, 2, 3, 4, dtype=torch.float64)
    query, key = draw.normal(2, 2, 2).double(), draw.normal(2, 4, 3).double()
    for case, given in [("float64", query), ("large queries", query * 1000)]:
        expectations.close(mine(given, key), theirs(given, key), what="the scores", case=case)


@hidden
@promises("gradients")
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


@promises("softmax-along-dim", "same-shape")
@exercise("masked_softmax")
def test_softmax_values(student, reference, draw):
    """Without a mask, the exponentials of each row are divided by their sum; the scores stay."""
    for shape in [(2, 3, 5), (2, 3), (3,), (1, 1)]:
        scores = draw.normal(*shape, scale=3.0)  # some weights are small, but not 0
        seen = student.observe("masked_softmax", scores, grad=False)
        actual = seen.value
        expectations.close(
            actual,
            reference.masked_softmax(scores),
            what="the weights",
            case=f"scores of shape {shape}",
        )
        expectations.row_sums_one(actual)
        expectations.unchanged(seen)


@promises("masked-weights-zero", "true-may-attend")
@exercise("masked_softmax")
def test_softmax_mask(student, reference, draw):
    """Masked entries get exactly 0, the others of a row sum to 1, and the scores stay."""
    for shape in [(2, 3, 5), (2, 4), (1, 3)]:
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


@promises("fully-masked-slice", "fully-masked-row")
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


@promises("softmax-along-dim")
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


@promises("large-scores", "masked-scores-ignored")
@exercise("masked_softmax")
def test_softmax_large_scores(student, reference, draw):
    """Scores of any size give finite weights of their dtype, whatever is elsewhere or masked."""
    # float64, because a logarithm of a sum near 1000 has only four decimals in float32.
    scores = draw.normal(2, 4, dtype=torch.float64)
    for case, shift in [
        ("scores around 1000", [[1000.0], [1000.0]]),
        ("scores around 10000", [[10_000.0], [10_000.0]]),
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
    mask = torch.ones(2, 4, dtype=torch.bool)
    mask[:, 1] = False
    shifted = scores - 10_000
    expectations.close(
        student.masked_softmax(shifted, mask),
        reference.masked_softmax(shifted, mask),
        what="the weights",
        case="scores around -10000, one of them masked",
    )
    # Not lower: many write -1e9 where the mask is False.
    far = scores - 2e7
    expectations.close(
        student.masked_softmax(far, mask),
        reference.masked_softmax(far, mask),
        what="the weights",
        case="scores around -2e7, one of them masked (mask with -inf, not with a number)",
    )
    scores[:, 1] += 1000
    expectations.close(
        student.masked_softmax(scores, mask),
        reference.masked_softmax(scores, mask),
        what="the weights",
        case="a masked score of about 1000",
    )
    for under in (torch.inf, torch.nan):
        scores = scores.clone()  # inputs that a test has handed out stay as they were
        scores[:, 1] = under
        expectations.close(
            student.masked_softmax(scores, mask),
            reference.masked_softmax(scores, mask),
            what="the weights",
            case=f"a masked score of {under}",
        )


@promises("mask-not-bool", "mask-does-not-fit")
@exercise("masked_softmax")
def test_softmax_refuses_bad_masks(student, draw):
    """A mask that is not boolean, or does not broadcast to the scores, raises a ValueError."""
    scores = draw.normal(2, 3)
    types = ["uint8", "int8", "float16", "bfloat16", "int32", "int64", "float32", "float64"]
    for case, mask in [
        *((f"a mask of {name}", torch.ones(2, 3, dtype=getattr(torch, name))) for name in types),
        ("a mask of shape (2, 4) for scores of shape (2, 3)", torch.ones(2, 4).bool()),
        ("a mask of shape (4, 2, 3) for scores of shape (2, 3)", torch.ones(4, 2, 3).bool()),
        ("a mask of shape (1, 2, 3) for scores of shape (2, 3)", torch.ones(1, 2, 3).bool()),
    ]:
        expectations.raises(
            "ValueError", lambda mask=mask: student.masked_softmax(scores, mask), case
        )
    expectations.raises(
        "ValueError",
        lambda: student.masked_softmax(scores[:1], torch.ones(2, 3).bool()),
        "a mask of shape (2, 3) for scores of shape (1, 3), which can't hold it",
    )


@hidden
@promises("mask-broadcasts")
@exercise("masked_softmax")
def test_softmax_broadcast_masks(student, reference, draw):
    """A mask with fewer or size-1 dimensions holds for all that it is broadcast over."""
    scores = draw.normal(2, 2, 4, 5)
    for shape in [(5,), (4, 5), (2, 1, 1, 5), (2, 4, 5), (2, 1, 4, 5), (1, 2, 1, 1), (2, 2, 4, 1)]:
        mask = draw.mask(*shape, keep=0.6, no_empty_rows=False)
        expectations.close(
            student.masked_softmax(scores, mask),
            reference.masked_softmax(scores, mask),
            what="the weights",
            case=f"scores of shape (2, 2, 4, 5), mask of shape {shape}",
        )


@promises("minus-infinity-masked", "fully-masked-slice")
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
@promises("gradients", "fully-masked-gradient", "finite-gradients", "masked-gradient")
@exercise("masked_softmax")
def test_softmax_gradients(student, reference, draw):
    """The gradient is right, finite also where a row is fully masked, and 0 where masked."""
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
    scores, mask = draw.normal(2, 4).double(), torch.ones(2, 4, dtype=torch.bool)
    mask[0, 1] = mask[1, 2] = False
    scores[0, 1], scores[1, 2] = 1000.0, torch.nan
    seen = student.observe("masked_softmax", scores, mask)
    wanted = reference.observe("masked_softmax", scores, mask)
    same_gradients(seen, wanted, {"0": "the scores"}, "masked scores of 1000 and NaN")


@hidden
@promises("dtype-kept")
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


@promises("weighted-sum")
@exercise("context_vector")
def test_context_values(student, reference, draw):
    """Each context is the weighted sum of all values."""
    for batch, queries, keys, width in [(2, 3, 5, 4), (2, 3, 3, 4), (1, 2, 2, 3), (1, 1, 1, 1)]:
        weights = draw.normal(batch, queries, keys).softmax(dim=-1)
        values = draw.normal(batch, keys, width)
        expectations.close(
            student.context_vector(weights, values),
            reference.context_vector(weights, values),
            what="the context",
            case=sizes(B=batch, Tq=queries, Tk=keys, Dv=width),
        )


@promises("other-lengths")
@exercise("context_vector")
def test_context_refuses_other_lengths(student, draw):
    """Weights for 4 positions with values at 5, or at a single one, raise a ValueError."""
    for positions, keys in [(4, 5), (4, 1), (1, 4)]:
        weights, values = draw.uniform(2, 3, positions), draw.normal(2, keys, 2)
        expectations.raises(
            "ValueError",
            lambda weights=weights, values=values: student.context_vector(weights, values),
            what=f"weights for {positions} positions with values at {keys}",
        )


@hidden
@promises("weights-as-they-are")
@exercise("context_vector")
def test_context_any_weights(student, reference, draw):
    """Rows of zeros give zeros, a one picks its value, and weights need not sum to 1."""
    values = draw.normal(2, 3, 2)
    picks = torch.eye(3).expand(2, 3, 3)
    for case, weights in [
        ("weights of any sum", draw.normal(2, 4, 3)),
        ("one weight is 1", picks),
        ("weights of zero", torch.zeros(2, 1, 3)),
    ]:
        expectations.close(
            student.context_vector(weights, values),
            reference.context_vector(weights, values),
            what="the context",
            case=case,
        )


@hidden
@promises("gradients", "dtype-kept")
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

DECODED = ("state", "context", "attn_weights")


def decoder_pair(
    student, reference, draw, embed, hidden_dim, annotation, attention, dtype=None, scores=None
):
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
        state | (scores or {}),
        dtype=dtype,
        embed_dim=embed,
        hidden_size=hidden_dim,
        annotation_dim=annotation,
        attention_dim=attention,
    )


def decoder_inputs(draw, batch, length, embed, hidden_dim, annotation):
    return (
        draw.normal(batch, embed),
        draw.normal(batch, hidden_dim, scale=0.7),
        draw.normal(batch, length, annotation),
    )


@promises("submodules", "parameter-names")
@exercise("AttentionDecoderStep")
def test_decoder_parameters(student):
    """The parts are `score` (an AdditiveScore) and `cell` (a GRUCell on [y_prev; context])."""
    same_parameters(
        student.module(
            "AttentionDecoderStep", embed_dim=2, hidden_size=3, annotation_dim=4, attention_dim=5
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


@promises("attends-with-previous-state", "cell-input", "returns")
@exercise("AttentionDecoderStep")
def test_decoder_values(student, reference, draw):
    """Scores of s_prev, weights, context and new state agree when nothing is masked."""
    for batch, length, embed, hidden_dim, annotation in [
        (2, 5, 3, 4, 2),
        (1, 3, 3, 3, 3),
        (1, 1, 1, 1, 1),
    ]:
        mine, theirs = decoder_pair(student, reference, draw, embed, hidden_dim, annotation, 3)
        inputs = decoder_inputs(draw, batch, length, embed, hidden_dim, annotation)
        case = sizes(B=batch, T=length, embed=embed, hidden=hidden_dim, annotation=annotation)
        same_results(mine(*inputs, None), theirs(*inputs, None), DECODED, case)


@promises("masked-source")
@exercise("AttentionDecoderStep")
def test_decoder_mask(student, reference, draw):
    """Padded source positions get the weight 0 and do not enter the context."""
    for batch, length in [(3, 5), (3, 3), (1, 2)]:
        mine, theirs = decoder_pair(student, reference, draw, 2, 3, 4, 3)
        mask = draw.mask(batch, length, keep=0.6)
        for case, given in [("", mask), (", no mask, after a call with one", None)]:
            inputs = decoder_inputs(draw, batch, length, 2, 3, 4)
            got, want = mine(*inputs, given), theirs(*inputs, given)
            same_results(got, want, DECODED, sizes(B=batch, T=length) + case)


@promises("masked-source")
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
    mine, theirs = decoder_pair(
        student, reference, draw, 2, 3, 4, 4, torch.float64, reading_the_mask(draw)
    )
    word, state, annotations = (tensor.double() for tensor in (word, state, 0.02 * annotations))
    annotations[..., 0] += torch.where(mask, -1.0, 1.0).double()
    given = word, state, annotations, mask
    case = "scores of about 45 in the padding and -45 elsewhere (mask before the softmax)"
    same_results(mine(*given), theirs(*given), DECODED, case)


def reading_the_mask(draw, hidden_dim=3, annotation=4, attention=4):
    """A step whose scores are 60 · tanh of feature 0 of the annotations."""
    state = additive_state(draw, hidden_dim, annotation, attention)
    state["query_projection.weight"] = torch.zeros(attention, hidden_dim)
    state["key_projection.weight"] = torch.eye(annotation)[:1].expand(attention, annotation).clone()
    state["energy.weight"] = torch.full((1, attention), 15.0)
    return {f"score.{name}": value for name, value in state.items()}


def far_below(draw, hidden_dim=3, annotation=4, attention=4):
    """A step whose scores are all -4e7, as v · tanh(...) with tanh(...) = 1 and v = -1e7."""
    state = additive_state(draw, hidden_dim, annotation, attention)
    state["query_projection.weight"] = torch.full((attention, hidden_dim), 100.0)
    state["key_projection.weight"] = torch.zeros(attention, annotation)
    state["energy.weight"] = torch.full((1, attention), -1e7)
    return {f"score.{name}": value for name, value in state.items()}


@hidden
@promises("empty-source", "fully-masked-row")
@exercise("AttentionDecoderStep")
def test_decoder_empty_source(student, reference, draw):
    """A source of padding only gives weights 0, a context of 0 and a finite state."""
    mine, theirs = decoder_pair(student, reference, draw, 2, 3, 4, 3)
    inputs = decoder_inputs(draw, 2, 4, 2, 3, 4)
    # Several weights in the first source: with a single one, every softmax would be right.
    mask = torch.tensor([[True, True, True, False], [False, False, False, False]])
    got, want = mine(*inputs, mask), theirs(*inputs, mask)
    same_results(got, want, DECODED, "the second source is all padding")
    nothing = torch.zeros_like(mask)
    got, want = mine(*inputs, nothing), theirs(*inputs, nothing)
    same_results(got, want, DECODED, "every source is all padding")
    mine, theirs = decoder_pair(
        student, reference, draw, 2, 3, 4, 4, torch.float64, far_below(draw)
    )
    word, state, annotations = (tensor.double() for tensor in decoder_inputs(draw, 2, 4, 2, 3, 4))
    inputs = word, state.abs() + 0.5, annotations
    got, want = mine(*inputs, mask), theirs(*inputs, mask)
    same_results(got, want, DECODED, "scores of -4e7, the second source is all padding")


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
@promises("gradients", "finite-gradients")
@exercise("AttentionDecoderStep")
def test_decoder_gradients(student, reference, draw):
    """Gradients flow to all inputs and parameters, past a source that is all padding."""
    mine, theirs = decoder_pair(student, reference, draw, 2, 3, 4, 3, dtype=torch.float64)
    inputs = [tensor.double() for tensor in decoder_inputs(draw, 2, 5, 2, 3, 4)]
    mask = draw.mask(2, 5, keep=0.7)
    mask[1] = False
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
@promises("dtype-kept")
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


def _same(actual, expected):
    return actual.shape == expected.shape and bool(
        torch.isclose(actual.to(expected), expected).all()
    )


def seen_in_evaluation(still, weights):
    """Which mistake shows in 160 weights in evaluation at dropout=0.5."""
    if not isinstance(still, torch.Tensor) or still.shape != weights.shape:
        return None
    if _same(still, weights / 2):
        return "dropout_scaled_in_evaluation"
    if _same(still, weights * 2):
        return "dropout_divided_in_evaluation"
    return "dropout_in_evaluation" if 0 < int((still == 0).sum()) < 160 else None


def seen_in_training(dropped, weights):
    """Which mistake shows in 160 weights in training at dropout=0.25."""
    if not isinstance(dropped, torch.Tensor) or dropped.shape != weights.shape:
        return None
    kept = dropped != 0
    # Of 160 right decisions 88 or more drop a weight once in 10**15.
    if not 0 < int(kept.sum()) < 72:
        return None
    scaled = _same(dropped[kept], weights[kept] / 0.75)
    return "dropout_keeps_p_scales_right" if scaled else "dropout_p_is_keep"


@promises("off")
@exercise("attention_dropout")
def test_dropout_off(student, draw):
    """In evaluation, and with dropout=0, weights come back unchanged; in training some are 0."""
    many = positive(draw, 8, 20)
    still = student.attention_dropout(many, 0.5, False)
    dropped = student.attention_dropout(many, 0.25, True)
    in_evaluation, in_training = seen_in_evaluation(still, many), seen_in_training(dropped, many)
    for shape in [(1, 1), (3, 4), (2, 3, 4, 5)]:
        weights = positive(draw, *shape)
        for p, training in [(0.5, False), (0.0, False), (1.0, False), (0.0, True)]:
            expectations.close(
                student.attention_dropout(weights, p, training),
                weights,
                what="the weights",
                case=f"shape {shape}, dropout={p}, training={training}",
                misconception=in_training if training else in_evaluation,
            )
    expectations.close(still, many, what="the weights", case="shape (8, 20), training=False")
    expectations.shape(dropped, (8, 20), what="the result")
    expectations.true(
        bool((dropped == 0).any()),
        "Nothing is dropped in training either: none of 160 weights became 0 at dropout=0.25.",
        misconception="dropout_never",
    )


@promises("drop-probability")
@exercise("attention_dropout")
def test_dropout_rate(student, draw):
    """In training, each weight becomes 0 with probability dropout, also alone in its row."""
    for p, shape in [(0.2, (2, 20, 30)), (0.7, (2, 20, 30)), (0.4, (2, 600, 1))]:
        weights = positive(draw, *shape)
        dropped = student.attention_dropout(weights, p, True)
        expectations.shape(dropped, shape, what="the result")
        share = float((dropped == 0).float().mean())
        expectations.rate(
            int((dropped == 0).sum()),
            weights.numel(),
            p,
            what=f"the share of weights of shape {shape} that are 0 at dropout={p}",
            false_alarm=3e-10,
            misconception="dropout_p_is_keep" if abs(share - (1 - p)) < 0.06 else None,
        )


@promises("survivors-scaled", "not-normalised")
@exercise("attention_dropout")
def test_dropout_scales_survivors(student, draw):
    """Weights that survive are divided by 1 - dropout; those that are given stay as they are."""
    weights = positive(draw, 8, 20)
    for p in (0.5, 0.25, 0.8):
        seen = student.observe("attention_dropout", weights, p, True, grad=False)
        dropped = seen.value
        expectations.shape(dropped, (8, 20), what="the result")
        expectations.unchanged(seen)
        kept = dropped != 0
        expectations.true(bool(kept.any()), f"Every one of 160 weights became 0 at dropout={p}.")
        same = bool(torch.isclose(dropped[kept].to(weights), weights[kept]).all())
        expectations.close(
            dropped[kept],
            weights[kept] / (1 - p),
            what="the surviving weights",
            case=f"dropout={p}",
            misconception="dropout_without_rescale" if same else None,
        )


@promises("bad-probability")
@exercise("attention_dropout")
def test_dropout_refuses_bad_probabilities(student, draw):
    """A dropout rate outside [0, 1] raises a ValueError, in training and in evaluation."""
    weights = positive(draw, 2, 3)
    for p in (-0.1, 1.1, 2.0):
        for training in (True, False):
            expectations.raises(
                "ValueError",
                lambda p=p, training=training: student.attention_dropout(weights, p, training),
                what=f"dropout={p}, training={training}",
            )


@aspect
@promises("drops-everything")
@exercise("attention_dropout")
def test_dropout_of_everything(student, draw):
    """With dropout=1 in training every weight is 0, none NaN; with dropout=0.9 some survive."""
    for shape in [(1, 1), (2, 3, 4)]:
        expectations.close(
            student.attention_dropout(positive(draw, *shape), 1.0, True),
            torch.zeros(shape),
            what="the weights",
            case=f"shape {shape}, dropout=1",
        )
    dropped = student.attention_dropout(positive(draw, 20, 30), 0.9, True)
    expectations.shape(dropped, (20, 30), what="the result")
    expectations.true(
        bool((dropped != 0).any()), "Every one of 600 weights became 0 at dropout=0.9."
    )


@hidden
@promises("drop-probability")
@exercise("attention_dropout")
def test_dropout_rate_closely(student, draw):
    """The share of dropped weights is `dropout` to a hundredth, among large and small ones."""
    p, weights = 0.33, positive(draw, 2, 2000, 30)
    dropped = student.attention_dropout(weights, p, True)
    expectations.shape(dropped, weights.shape, what="the result")
    zero = dropped == 0
    for what, counted in [
        ("weights", zero),
        ("each row's largest weights", zero[weights == weights.amax(dim=-1, keepdim=True)]),
        ("each row's smallest weights", zero[weights == weights.amin(dim=-1, keepdim=True)]),
    ]:
        expectations.rate(
            int(counted.sum()),
            counted.numel(),
            p,
            what=f"the share of {what} that are 0 at dropout={p}",
            false_alarm=3e-10,
        )


@promises("independent-draws")
@exercise("attention_dropout")
def test_dropout_is_independent(student, draw):
    """Each element is dropped on its own: in other columns, rows, heads, batches and calls."""
    p = 0.3
    # The pairs below are disjoint.
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
        expectations.independent(
            left,
            right,
            p,
            what=f"how often the decisions for {what} agree at dropout={p}",
            false_alarm=2e-10,
        )
    # Each count has a probability below 0.04, so that all agree once in 10**11.
    weights = positive(draw, 20, 40)
    counts = [int((student.attention_dropout(weights, p, True) == 0).sum()) for _ in range(9)]
    expectations.true(
        len(set(counts)) > 1,
        f"Each of nine calls dropped {counts[0]} of 800 weights; each weight should be drawn for "
        "itself, so that the number varies.",
        misconception="dropout_exact_count",
    )


@hidden
@promises("gradients")
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
    expectations.true(0 < kept < 120, f"Of 120 weights {kept} survived at dropout=0.5.")
    expectations.unchanged(seen)


@hidden
@promises("same-shape", "dtype-kept")
@exercise("attention_dropout")
def test_dropout_layout_and_dtype(student, draw):
    """Strided and float64 weights keep their shape, dtype and values."""
    for case, weights in [
        ("float64", positive(draw, 6, 8).double()),
        ("weights with one dimension", positive(draw, 48)),
        ("transposed weights", positive(draw, 6, 8).transpose(0, 1)),
        ("expanded weights", positive(draw, 1, 8).expand(6, 8)),
    ]:
        dropped = student.attention_dropout(weights, 0.5, True)
        expectations.shape(dropped, weights.shape, what="the result")
        kept = (dropped != 0).to(weights.dtype)
        expectations.true(bool(kept.any()), f"Every weight became 0 at dropout=0.5 ({case}).")
        expectations.close(dropped, weights * kept * 2, what="the surviving weights", case=case)
