"""Graders of `attention-self_attention`: scaled dot products, masks, self-attention."""

from __future__ import annotations

import torch

from autograder.graders.attention.common import BESIDE, FAR, OUTPUT, linear, marked, reading
from autograder.graders.common import pair, same_gradients, same_parameters, same_results, sizes
from autograder.judging import expectations
from autograder.judging.grader_marks import aspect, exercise, hidden, promises


def is_boolean(mask, shape):
    """The mask is a bool tensor of the given shape."""
    expectations.true(isinstance(mask, torch.Tensor), "The mask should be a tensor.")
    expectations.true(
        mask.dtype == torch.bool,
        f"The mask should hold True and False (torch.bool); yours has the dtype {mask.dtype}.",
    )
    expectations.shape(mask, shape, what="the mask")


# --------------------------------------------------------------------------------------------
# scaled_dot_product_attention
# --------------------------------------------------------------------------------------------


def attention_inputs(draw, leading, queries, keys, width, value_width):
    return (
        draw.normal(*leading, queries, width),
        draw.normal(*leading, keys, width),
        draw.normal(*leading, keys, value_width),
    )


@promises("scaled-softmax", "weighted-sum", "dtype-kept")
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


@promises("masked-weights", "true-may-attend")
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
    query, key, value = attention_inputs(draw, (1,), 2, 3, 4, 3)
    query, key = query.abs(), key.abs()
    key[:, 2] += 1000.0
    mask = torch.tensor([True, True, False])
    same_results(
        student.scaled_dot_product_attention(query, key, value, mask),
        reference.scaled_dot_product_attention(query, key, value, mask),
        OUTPUT,
        "a masked key with scores above 1000",
    )
    query = torch.full((1, 2, 4), FAR, dtype=torch.float64)
    key = FAR * torch.where(mask, -1.0, 1.0).double().view(1, 3, 1).expand(1, 3, 4)
    same_results(
        student.scaled_dot_product_attention(query, key, value.double(), mask),
        reference.scaled_dot_product_attention(query, key, value.double(), mask),
        OUTPUT,
        BESIDE,
    )


@promises("fully-masked-query", "fully-masked-row")
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
        "a mask that hides all keys from query 1 of the first example",
    )
    nothing = torch.zeros(2, 3, 4, dtype=torch.bool)
    same_results(
        student.scaled_dot_product_attention(*inputs, nothing),
        reference.scaled_dot_product_attention(*inputs, nothing),
        OUTPUT,
        "a mask that hides all keys from all queries",
    )


@promises("any-leading-dimensions")
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
    heads = [draw.normal(2, length, 3, 5).transpose(1, 2) for length in (2, 4, 4)]
    same_results(
        student.scaled_dot_product_attention(*heads),
        reference.scaled_dot_product_attention(*heads),
        OUTPUT,
        "heads made by a transpose, (2, 3, T, 5)",
    )


@promises("other-widths", "other-lengths", "bad-mask")
@exercise("scaled_dot_product_attention")
def test_attention_refuses_bad_shapes(student, draw):
    """Widths and lengths that differ, a mask of numbers, and one that doesn't fit: ValueErrors."""
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


@promises("dropout-in-training", "weights-before-dropout")
@exercise("scaled_dot_product_attention")
def test_attention_dropout_leaves_weights(student, reference, draw):
    """Dropout does nothing in evaluation, and the returned weights are those before dropout."""
    inputs = attention_inputs(draw, (2,), 4, 6, 4, 3)
    mask = draw.mask(2, 4, 6, keep=0.8)
    want = reference.scaled_dot_product_attention(*inputs, mask)
    got = student.scaled_dot_product_attention(*inputs, mask, 0.5, False)
    same_results(got, want, OUTPUT, "dropout=0.5, training=False")
    got = student.scaled_dot_product_attention(*inputs, mask, 0.0, True)
    same_results(got, want, OUTPUT, "dropout=0, training=True")
    got = student.scaled_dot_product_attention(*inputs, mask, 0.5, True)
    output, weights = expectations.pair(got)
    expectations.close(weights, want[1], what="the weights", case="dropout=0.5, training=True")
    expectations.shape(output, want[0].shape, what="the output")
    expectations.true(
        not torch.allclose(output, want[0], rtol=1e-4, atol=1e-6),
        "With dropout=0.5 and training=True the output is the same as without dropout.",
        misconception="attention_dropout_ignored",
    )


@hidden
@promises("mask-broadcasts")
@exercise("scaled_dot_product_attention")
def test_attention_broadcast_masks(student, reference, draw):
    """Masks that are broadcast over the batch, the heads or the queries work."""
    inputs = attention_inputs(draw, (2, 2), 4, 5, 6, 3)  # as many examples as heads
    for shape in [(5,), (4, 5), (2, 1, 1, 5), (2, 1, 4, 5), (2, 4, 5)]:
        mask = draw.mask(*shape, keep=0.6)
        same_results(
            student.scaled_dot_product_attention(*inputs, mask),
            reference.scaled_dot_product_attention(*inputs, mask),
            OUTPUT,
            f"scores of shape (2, 2, 4, 5), mask of shape {shape}",
        )


@hidden
@promises("dropout-on-weights")
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
        what=f"the share of weights that are dropped at dropout={p}",
        false_alarm=1e-9,
    )
    kept = used != 0
    expectations.close(
        used[kept],
        reference.scaled_dot_product_attention(query, key, value)[1][kept] / (1 - p),
        what="the surviving weights",
        case=f"dropout={p}, training=True",
    )


@hidden
@promises("fully-masked-query", "gradients", "finite-gradients")
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


@promises("bool-square", "itself-and-before")
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


@promises("length-not-int", "length-below-one")
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
@promises("itself-and-before")
@exercise("causal_mask")
def test_causal_mask_row_counts(student):
    """Row i has exactly i + 1 entries that are True, also for long sequences."""
    for length in (4, 37, 150, 520):
        mask = student.causal_mask(length)
        is_boolean(mask, (length, length))
        expectations.equal(
            mask.sum(dim=1),
            torch.arange(1, length + 1),
            what="the number of positions that each row may see",
            case=f"length {length}",
        )


@hidden
@promises("itself-and-before")
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


@promises("real-tokens", "bool-keys", "padded-length")
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


@promises("padded-length")
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


@promises("integer-lengths")
@exercise("padding_mask")
def test_padding_mask_integer_types(student, reference):
    """Lengths of any integer dtype do, not of torch.int64 alone."""
    for dtype in (torch.int32, torch.int16, torch.uint8):
        lengths = torch.tensor([3, 1, 4], dtype=dtype)
        mask = student.padding_mask(lengths, 6)
        is_boolean(mask, (3, 1, 6))
        want = reference.padding_mask(lengths, 6)
        expectations.equal(mask, want, what="the mask", case=f"lengths of {dtype}, max_length=6")


@promises("negative-length", "length-too-large", "lengths-not-integer")
@exercise("padding_mask")
def test_padding_mask_refuses(student):
    """Negative lengths, lengths above max_length and lengths that are not integers are refused."""
    for case, lengths, longest in [
        ("the lengths [2, -1]", torch.tensor([2, -1]), None),
        ("the lengths [2, 5] with max_length=4", torch.tensor([2, 5]), 4),
        ("the lengths [1, 3] with max_length=0", torch.tensor([1, 3]), 0),
        ("float lengths", torch.tensor([2.0, 3.0]), None),
        ("float64 lengths", torch.tensor([2.0, 3.0], dtype=torch.float64), None),
        ("float16 lengths", torch.tensor([2.0, 3.0], dtype=torch.float16), None),
        ("boolean lengths", torch.tensor([True, True]), None),
    ]:
        expectations.raises(
            "ValueError",
            lambda lengths=lengths, longest=longest: student.padding_mask(lengths, longest),
            what=case,
        )


@hidden
@promises("length-zero")
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
@promises("real-tokens")
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


@promises("bool-square", "past-and-real")
@exercise("decoder_mask")
def test_decoder_mask_values(student, reference):
    """Position i may see j when j is not later and j is a real token."""
    for lengths in ([1], [2, 1, 2], [2], [1, 2], [3, 1, 4]):
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


@promises("bool-square", "padded-queries")
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
@promises("past-and-real", "padded-queries")
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


@promises("bad-lengths")
@exercise("decoder_mask")
def test_decoder_mask_refuses(student):
    """What padding_mask refuses, raises a ValueError here too."""
    for case, lengths, longest in [
        ("the lengths [2, 5] with max_length=4", torch.tensor([2, 5]), 4),
        ("the lengths [1, 1] with max_length=0", torch.tensor([1, 1]), 0),
        ("the lengths [2, -1]", torch.tensor([2, -1]), None),
        ("float lengths", torch.tensor([2.0, 3.0]), None),
    ]:
        expectations.raises(
            "ValueError",
            lambda lengths=lengths, longest=longest: student.decoder_mask(lengths, longest),
            what=case,
        )


@hidden
@exercise("decoder_mask")
def test_decoder_mask_empty_sentence(student, reference):
    """A sentence of length 0 has no True at all."""
    lengths = torch.tensor([0, 3])
    expectations.equal(
        student.decoder_mask(lengths),
        reference.decoder_mask(lengths),
        what="the mask",
        case="lengths [0, 3]",
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


def same_beside_masked(student, reference, draw, name, real, mask):
    """Weights and output agree where scores are far below 0, and those of masked tokens far above.

    `mask` is what the module is given to say which tokens are `real`.
    """
    state = self_state(draw, 4, 4)
    state["q_proj.weight"] = reading(state["q_proj.weight"], 1)
    state["k_proj.weight"] = reading(state["k_proj.weight"], 0)
    mine, theirs = pair(
        student, reference, name, state, dtype=torch.float64, input_dim=4, head_dim=4
    )
    x = marked(draw.normal(*real.shape, 4), real)
    same_results(mine(x, mask), theirs(x, mask), OUTPUT, BESIDE)


SELF_NAMES = {"0": "x"} | {
    f"parameter {name}.weight": f"{name}.weight" for name in ("q_proj", "k_proj", "v_proj")
}


@promises("layers", "parameter-names")
@exercise("SelfAttention")
def test_self_parameters(student):
    """The layers are q_proj, k_proj and v_proj, none of them with a bias."""
    same_parameters(
        student.module("SelfAttention", input_dim=3, head_dim=5),
        {"q_proj.weight": (5, 3), "k_proj.weight": (5, 3), "v_proj.weight": (5, 3)},
    )


@promises("self-attention-formula", "returns")
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


@promises("masked-weights", "mask-broadcasts")
@exercise("SelfAttention")
def test_self_mask(student, reference, draw):
    """A mask that broadcasts to (B, T, T) is applied to the scores."""
    mine, theirs = self_pair(student, reference, draw, 4, 3)
    x = draw.normal(4, 4, 4)  # as many rows as tokens: (4, 4) is (T, T) all the same
    for shape in [(4, 4, 4), (4, 4), (4, 1, 4)]:
        mask = draw.mask(*shape, keep=0.6)
        same_results(mine(x, mask), theirs(x, mask), OUTPUT, f"mask of shape {shape}")
    same_results(mine(x), theirs(x), OUTPUT, "no mask, after calls with one")
    real = draw.mask(2, 4)
    same_beside_masked(student, reference, draw, "SelfAttention", real, real.unsqueeze(1))


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
@promises("fully-masked-query", "fully-masked-row", "dtype-kept")
@exercise("SelfAttention")
def test_self_fully_masked(student, reference, draw):
    """Queries without any key give 0; strided inputs and double precision work."""
    mine, theirs = self_pair(student, reference, draw, 4, 3, dtype=torch.float64)
    x = draw.normal(2, 4, 5).double().transpose(1, 2)
    mask = draw.mask(2, 5, 5)
    mask[1] = False
    got, want = mine(x, mask), theirs(x, mask)
    same_results(got, want, OUTPUT, "a mask that hides all keys in the second example")


@hidden
@promises("gradients", "finite-gradients")
@exercise("SelfAttention")
def test_self_gradients(student, reference, draw):
    """Gradients flow to x and the weights, past a fully masked row; inputs are left alone."""
    mine, theirs = self_pair(student, reference, draw, 4, 3, dtype=torch.float64)
    x, mask = draw.normal(2, 5, 4).double(), draw.mask(2, 5, 5)
    mask[1, 2] = False
    seen, wanted = mine.observe(x, mask), theirs.observe(x, mask)
    same_gradients(seen, wanted, SELF_NAMES)
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# MaskedSelfAttention
# --------------------------------------------------------------------------------------------


@promises("layers", "parameter-names")
@exercise("MaskedSelfAttention")
def test_masked_self_parameters(student):
    """The layers are q_proj, k_proj and v_proj, none of them with a bias."""
    same_parameters(
        student.module("MaskedSelfAttention", input_dim=4, head_dim=2),
        {"q_proj.weight": (2, 4), "k_proj.weight": (2, 4), "v_proj.weight": (2, 4)},
    )


@promises("causal", "returns")
@exercise("MaskedSelfAttention")
def test_masked_self_values(student, reference, draw):
    """Three projections of x attend, scaled, each position to itself and earlier ones only."""
    for batch, length, input_dim, head_dim in [(1, 1, 2, 2), (1, 3, 4, 4), (2, 5, 6, 3)]:
        mine, theirs = self_pair(
            student, reference, draw, input_dim, head_dim, name="MaskedSelfAttention"
        )
        x = draw.normal(batch, length, input_dim)
        case = sizes(B=batch, T=length, input_dim=input_dim, head_dim=head_dim)
        same_results(mine(x), theirs(x), OUTPUT, case)


@promises("padding", "causal", "padded-queries")
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
    same_results(mine(x), theirs(x), OUTPUT, "B=T=3, no padding_mask, after calls with one")
    same_beside_masked(student, reference, draw, "MaskedSelfAttention", padding, padding)


@aspect
@promises("no-future")
@exercise("MaskedSelfAttention")
def test_masked_self_no_future(student, reference, draw):
    """Changing later tokens changes no earlier output."""
    mine, _ = self_pair(student, reference, draw, 4, 3, name="MaskedSelfAttention")
    x = draw.normal(2, 6, 4)
    output, _ = expectations.pair(mine(x))
    expectations.shape(output, (2, 6, 3), what="the output")
    for position, scale in ((1, 1.0), (4, 1.0), (4, 1000.0)):
        changed = x.clone()
        changed[:, position:] = draw.normal(2, 6 - position, 4, scale=scale)
        after, _ = expectations.pair(mine(changed))
        expectations.shape(after, (2, 6, 3), what="the output")
        expectations.close(
            after[:, :position],
            output[:, :position],
            what="the output",
            case=f"tokens changed from position {position} on: the future leaks",
        )


@promises("fully-masked-query", "fully-masked-row")
@exercise("MaskedSelfAttention")
def test_masked_self_padding_first(student, reference, draw):
    """Padding at the start leaves rows without any key: output 0, not NaN."""
    mine, theirs = self_pair(student, reference, draw, 3, 4, name="MaskedSelfAttention")
    x = draw.normal(2, 4, 3)
    padding = torch.tensor([[False, False, True, True], [False, True, True, True]])
    same_results(mine(x, padding), theirs(x, padding), OUTPUT, "padding at the start")
    padding = torch.tensor([[False] * 4, [True, True, False, False]])
    same_results(mine(x, padding), theirs(x, padding), OUTPUT, "an example that is all padding")
    padding = torch.zeros(2, 4, dtype=torch.bool)
    same_results(mine(x, padding), theirs(x, padding), OUTPUT, "nothing but padding")


@hidden
@promises("dtype-kept")
@exercise("MaskedSelfAttention")
def test_masked_self_float64(student, reference, draw):
    """Double precision, strided inputs and a long sequence after a short one work."""
    mine, theirs = self_pair(
        student, reference, draw, 4, 4, dtype=torch.float64, name="MaskedSelfAttention"
    )
    x = draw.normal(2, 4, 5).double().transpose(1, 2)
    padding = draw.mask(2, 5, keep=0.7)
    same_results(mine(x, padding), theirs(x, padding), OUTPUT, "float64")
    x = draw.normal(1, 150, 4).double()
    same_results(mine(x), theirs(x), OUTPUT, "T=150")


@hidden
@promises("gradients", "finite-gradients")
@exercise("MaskedSelfAttention")
def test_masked_self_gradients(student, reference, draw):
    """Gradients flow to x and the weights, past padding at the start; inputs are left alone."""
    mine, theirs = self_pair(
        student, reference, draw, 4, 3, dtype=torch.float64, name="MaskedSelfAttention"
    )
    x, padding = draw.normal(2, 5, 4).double(), draw.mask(2, 5)
    padding[1, 0] = False
    seen, wanted = mine.observe(x, padding), theirs.observe(x, padding)
    same_gradients(seen, wanted, SELF_NAMES)
    expectations.unchanged(seen)
