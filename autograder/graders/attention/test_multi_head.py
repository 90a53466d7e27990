"""Graders of `attention-multi_head`: heads and their layouts."""

from __future__ import annotations

import torch

from autograder.graders.attention.common import FAR, OUTPUT, linear, marked, reading, same_beside
from autograder.graders.common import pair, same_gradients, same_parameters, same_results, sizes
from autograder.judging import expectations
from autograder.judging.grader_marks import aspect, exercise, hidden, promises
from autograder.sandbox.executor import SCATTERED


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


# --------------------------------------------------------------------------------------------
# split_heads
# --------------------------------------------------------------------------------------------


@promises("heads-in-front", "blocks-of-features")
@exercise("split_heads")
def test_split_values(student, reference, draw):
    """Head h of a token is the h-th block of D/H features of that token."""
    for batch, length, width, heads in [
        (2, 2, 4, 2),
        (1, 3, 6, 2),
        (1, 1, 2, 2),
        (2, 3, 15, 3),
        (1, 10, 16, 8),
    ]:
        x = draw.normal(batch, length, width)
        expectations.close(
            student.split_heads(x, heads),
            reference.split_heads(x, heads),
            what="the heads",
            case=sizes(B=batch, T=length, D=width, H=heads),
        )


@promises("not-divisible")
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
@promises("blocks-of-features")
@exercise("split_heads")
def test_split_keeps_tokens_apart(student, draw):
    """Token t of every head comes from token t alone: no view that mixes positions."""
    x = torch.arange(10.0).view(1, 10, 1).expand(2, 10, 64)
    heads = student.split_heads(x, 8)
    expectations.shape(heads, (2, 8, 10, 8), what="the heads")
    expectations.close(
        heads,
        torch.arange(10.0).view(1, 1, 10, 1).expand(2, 8, 10, 8),
        what="the heads",
        case="every feature of token t is t",
    )


@hidden
@promises("dtype-kept", "gradients")
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


def same_merged(student, reference, x, case):
    """The heads are merged as by the reference, and the result is contiguous."""
    seen = student.placing("merge_heads", x)
    expectations.close(seen.value, reference.merge_heads(x), what="the merged heads", case=case)
    expectations.true(
        SCATTERED not in seen.mutated,
        f"The result should be contiguous in memory ({case}).",
        misconception="merge_not_contiguous",
    )


@promises("merged-shape", "contiguous")
@exercise("merge_heads")
def test_merge_values(student, reference, draw):
    """The heads of a token stand side by side again, head 0 first."""
    for batch, heads, length, width in [(1, 2, 3, 2), (1, 2, 1, 1), (2, 3, 4, 2), (1, 4, 4, 4)]:
        x = draw.normal(batch, heads, length, width)
        same_merged(student, reference, x, sizes(B=batch, H=heads, T=length, Dh=width))


@promises("undoes-split")
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
@promises("dtype-kept", "contiguous")
@exercise("merge_heads")
def test_merge_layout_dtype(student, reference, draw):
    """Strided and float64 inputs and single heads work, and the result is contiguous."""
    for case, x in [
        ("one head", draw.normal(2, 1, 3, 4)),
        ("one head, transposed", draw.normal(2, 1, 4, 3).transpose(2, 3)),
        ("one feature in each head", draw.normal(2, 3, 4, 1)),
        ("strided input", draw.normal(4, 3, 2, 5).transpose(0, 2)),
        ("expanded input", draw.normal(1, 2, 3, 2).expand(3, 2, 3, 2)),
        ("float64", draw.normal(2, 3, 4, 2).double()),
    ]:
        same_merged(student, reference, x, case)


@hidden
@promises("gradients")
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


def far_projections(state):
    """The state with queries of 2**12 and keys of 2**12 times feature 0 (see `marked`)."""
    return state | {
        "q_proj.weight": torch.zeros_like(state["q_proj.weight"]),
        "q_proj.bias": torch.full_like(state["q_proj.bias"], FAR),
        "k_proj.weight": reading(state["k_proj.weight"], 0),
        "k_proj.bias": torch.zeros_like(state["k_proj.bias"]),
    }


@promises("layers", "parameter-names")
@exercise("MultiHeadAttention")
def test_heads_parameters(student):
    """The layers are q_proj, k_proj, v_proj and out_proj, each with a bias."""
    shapes = {}
    for name in PROJECTIONS:
        shapes |= {f"{name}.weight": (6, 6), f"{name}.bias": (6,)}
    same_parameters(student.module("MultiHeadAttention", d_model=6, num_heads=3), shapes)


@promises("multi-head-formula", "scaled-by-head", "out-proj-applied", "returns")
@exercise("MultiHeadAttention")
def test_heads_values(student, reference, draw):
    """Each head attends with its own part of q, k and v; joined, they pass through out_proj."""
    for batch, queries, keys, width, heads in [
        (1, 2, 2, 4, 2),
        (1, 1, 1, 2, 2),
        (1, 3, 3, 4, 1),
        (2, 3, 5, 6, 3),
        (2, 5, 2, 4, 2),
    ]:
        mine, theirs = heads_pair(student, reference, draw, width, heads)
        inputs = heads_inputs(draw, batch, queries, keys, width)
        case = sizes(B=batch, Tq=queries, Tk=keys, D=width, H=heads)
        same_results(mine(*inputs), theirs(*inputs), OUTPUT, case)


@promises("mask-for-all", "mask-shapes", "true-may-attend")
@exercise("MultiHeadAttention")
def test_heads_mask_for_all(student, reference, draw):
    """A (Tq, Tk) mask holds for every example and head; a row without a key gets weight 0."""
    mine, theirs = heads_pair(student, reference, draw, 6, 3)
    inputs = heads_inputs(draw, 4, 4, 5, 6)  # as many rows as queries
    mask = draw.mask(4, 5, keep=0.6)
    got, want = mine(*inputs, mask), theirs(*inputs, mask)
    same_results(got, want, OUTPUT, "mask of shape (Tq, Tk)")
    mask = mask.clone()
    mask[1] = False
    got, want = mine(*inputs, mask), theirs(*inputs, mask)
    same_results(got, want, OUTPUT, "mask of shape (Tq, Tk), query 1 sees nothing")
    same_results(mine(*inputs), theirs(*inputs), OUTPUT, "no mask, after a call with one")


@promises("mask-for-each-example", "mask-shapes", "mask-broadcasts")
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
    tokens, mask = draw.normal(2, 4, 4), draw.mask(2, 1, 4, keep=0.6)
    mine, theirs = heads_pair(student, reference, draw, 4, 2)
    got, want = mine(tokens, tokens, tokens, mask), theirs(tokens, tokens, tokens, mask)
    case = "Tq=Tk=4, mask of shape (2, 1, 4): it hides keys, and every query attends"
    same_results(got, want, OUTPUT, case)
    mine, theirs = pair(
        student,
        reference,
        "MultiHeadAttention",
        far_projections(heads_state(draw, 8)),
        dtype=torch.float64,
        d_model=8,
        num_heads=2,
    )
    real = draw.mask(2, 5)
    query, key, value = heads_inputs(draw, 2, 3, 5, 8, torch.float64)
    given = query, marked(key, real), value, real.unsqueeze(1)
    same_beside(mine(*given), theirs(*given))


@promises("not-divisible")
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


@promises("dropout-in-training", "weights-before-dropout")
@exercise("MultiHeadAttention")
def test_heads_dropout_leaves_weights(student, reference, draw):
    """Dropout acts in training only, and the returned weights are those before dropout."""
    mine, theirs = heads_pair(student, reference, draw, 4, 2, dropout=0.5)
    inputs = heads_inputs(draw, 3, 4, 6, 4)
    want, case = theirs(*inputs), "dropout=0.5 in eval mode"
    output, weights = expectations.pair(mine(*inputs))
    expectations.close(weights, want[1], what="the attn_weights", case=case)
    expectations.close(
        output,
        want[0],
        what="the output",
        case=case,
        misconception="heads_dropout_in_evaluation",
    )
    output, weights = expectations.pair(mine.train()(*inputs))
    zeros = isinstance(weights, torch.Tensor) and bool((weights == 0).any())
    expectations.close(
        weights,
        want[1],
        what="the attn_weights",
        case="dropout=0.5 in train mode",
        misconception="heads_weights_after_dropout" if zeros else "heads_dropout_on_scores",
    )
    expectations.shape(output, want[0].shape, what="the output")
    expectations.true(
        not torch.allclose(output, want[0], rtol=1e-4, atol=1e-6),
        "In train mode with dropout=0.5 the output is the same as without dropout.",
        misconception="heads_dropout_ignored",
    )
    given = *heads_inputs(draw, 3, 2, 6, 4), draw.mask(2, 6, keep=0.6)
    output, want = expectations.pair(mine.train()(*given))[0], theirs(*given)[0]
    expectations.shape(output, want.shape, what="the output")
    expectations.true(
        not torch.allclose(output, want, rtol=1e-4, atol=1e-6),
        "In train mode with dropout=0.5 and a mask the output is the same as without dropout.",
        misconception="heads_dropout_lost_with_mask",
    )
    mine, theirs = heads_pair(student, reference, draw, 4, 2)
    got, want = mine.train()(*inputs), theirs(*inputs)
    same_results(got, want, OUTPUT, "no dropout given, in train mode")


@hidden
@promises("mask-shapes", "fully-masked-query", "fully-masked-row")
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
@promises("dropout-on-weights")
@exercise("MultiHeadAttention")
def test_heads_dropout_on_weights(student, reference, draw):
    """In train mode each weight of each head is dropped on its own with probability p."""
    heads, keys, p = 2, 8, 0.3
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
    gone = used == 0
    expectations.rate(
        int(gone.sum()),
        gone.numel(),
        p,
        what=f"the share of weights that are dropped at dropout={p}",
        false_alarm=2e-10,
        misconception="heads_dropout_keeps_p" if abs(gone.double().mean() - p) > 0.3 else None,
    )
    for what, one, other in [
        ("two heads", gone[:, 0], gone[:, 1]),
        ("two examples", gone[:2], gone[2:]),
        ("two queries", gone[:, :, ::2], gone[:, :, 1::2]),
        ("two keys", gone[..., ::2], gone[..., 1::2]),
    ]:
        expectations.independent(
            one,
            other,
            p,
            what=f"how often {what} are dropped or kept together at dropout={p}",
            false_alarm=2e-10,
            misconception="heads_dropout_shared",
        )
    as_they_were = expectations.close_enough(used[~gone], weights[~gone])
    expectations.close(
        used,
        (weights / (1 - p)).masked_fill(gone, 0.0),
        what="the remaining weights",
        case=f"dropout={p} in train mode",
        misconception="heads_dropout_not_rescaled" if as_they_were else None,
    )


@hidden
@promises("dtype-kept")
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
@promises("gradients", "finite-gradients")
@exercise("MultiHeadAttention")
def test_heads_gradients(student, reference, draw):
    """Gradients flow to all inputs and parameters, past a fully masked row; no input changes."""
    mine, theirs = heads_pair(student, reference, draw, 6, 2, dtype=torch.float64)
    inputs, mask = heads_inputs(draw, 2, 3, 4, 6, torch.float64), draw.mask(2, 3, 4)
    mask[1, 2] = False
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


def far_rows(draw, input_dim, embed_dim, heads):
    """A qkv_proj with queries of 2**12 and keys of 2**12 times feature 0 (see `marked`)."""
    state = linear(draw, "qkv_proj", 3 * embed_dim, input_dim)
    weight, bias = state["qkv_proj.weight"], state["qkv_proj.bias"]
    rows, numbers = weight.view(heads, 3, -1, input_dim), bias.view(heads, 3, -1)
    rows[:, 0], numbers[:, 0] = 0.0, FAR
    rows[:, 1], numbers[:, 1] = reading(rows[:, 1], 0), 0.0
    return state


def fused_pair(student, reference, draw, input_dim, embed_dim, heads, dtype=None, rows=None):
    state = {
        **linear(draw, "qkv_proj", 3 * embed_dim, input_dim),
        **linear(draw, "o_proj", embed_dim, embed_dim),
        **(rows or {}),
    }
    return pair(
        student,
        reference,
        "FusedMultiHeadAttention",
        state,
        dtype=dtype,
        input_dim=input_dim,
        d_model=embed_dim,
        num_heads=heads,
    )


@promises("layers", "parameter-names")
@exercise("FusedMultiHeadAttention")
def test_fused_parameters(student):
    """The layers are qkv_proj (input_dim to 3 d_model) and o_proj, each with a bias."""
    same_parameters(
        student.module("FusedMultiHeadAttention", input_dim=5, d_model=4, num_heads=2),
        {
            "qkv_proj.weight": (12, 5),
            "qkv_proj.bias": (12,),
            "o_proj.weight": (4, 4),
            "o_proj.bias": (4,),
        },
    )


@promises("interleaved", "attends", "returns")
@exercise("FusedMultiHeadAttention")
def test_fused_values(student, reference, draw):
    """All heads attend and pass through o_proj; rows of qkv_proj are q, k, v head by head."""
    for batch, length, width, heads in [(1, 3, 4, 2), (1, 1, 2, 1), (1, 3, 4, 1), (2, 5, 6, 3)]:
        mine, theirs = fused_pair(student, reference, draw, width, width, heads)
        x = draw.normal(batch, length, width)
        case = sizes(B=batch, T=length, d_model=width, H=heads)
        same_results(mine(x), theirs(x), OUTPUT, case)


@promises("other-input-width")
@exercise("FusedMultiHeadAttention")
def test_fused_other_input_width(student, reference, draw):
    """The input may be wider or narrower than d_model."""
    for input_dim, embed_dim, heads in [(3, 4, 2), (8, 4, 2), (1, 6, 3)]:
        mine, theirs = fused_pair(student, reference, draw, input_dim, embed_dim, heads)
        x = draw.normal(2, 4, input_dim)
        same_results(
            mine(x), theirs(x), OUTPUT, sizes(input_dim=input_dim, d_model=embed_dim, H=heads)
        )


@promises("mask-shapes")
@exercise("FusedMultiHeadAttention")
def test_fused_mask(student, reference, draw):
    """A (T, T), (B, T, T), (B, 1, T) or (B, H, T, T) mask works."""
    for batch, heads in [(2, 2), (4, 2)]:
        mine, theirs = fused_pair(student, reference, draw, 3, 4, heads)
        x = draw.normal(batch, 4, 3)
        for shape in [(4, 4), (batch, 4, 4), (batch, 1, 4), (batch, heads, 4, 4)]:
            mask = draw.mask(*shape, keep=0.6)
            case = f"{sizes(B=batch, H=heads)}, mask of shape {shape}"
            same_results(mine(x, mask), theirs(x, mask), OUTPUT, case)
        same_results(mine(x), theirs(x), OUTPUT, "no mask, after calls with one")
    far = far_rows(draw, 3, 8, 2)
    mine, theirs = fused_pair(student, reference, draw, 3, 8, 2, torch.float64, far)
    real = draw.mask(2, 4)
    x, mask = marked(draw.normal(2, 4, 3), real), real.unsqueeze(1)
    same_beside(mine(x, mask), theirs(x, mask))


@promises("not-divisible")
@exercise("FusedMultiHeadAttention")
def test_fused_refuses(student):
    """A d_model that the number of heads does not divide raises a ValueError."""
    for width, heads in [(6, 4), (4, 3)]:
        expectations.raises(
            "ValueError",
            lambda width=width, heads=heads: student.module(
                "FusedMultiHeadAttention", input_dim=12, d_model=width, num_heads=heads
            ),
            what=f"d_model={width} with {heads} heads",
        )


@hidden
@promises("fully-masked-query", "dtype-kept")
@exercise("FusedMultiHeadAttention")
def test_fused_fully_masked_and_float64(student, reference, draw):
    """Rows without a key, strided inputs and double precision work."""
    mine, theirs = fused_pair(student, reference, draw, 3, 6, 2, dtype=torch.float64)
    x = draw.normal(2, 3, 4).double().transpose(1, 2)
    mask = draw.mask(2, 4, 4)
    mask[0, 2] = False
    same_results(mine(x, mask), theirs(x, mask), OUTPUT, "query 2 sees nothing")


@hidden
@promises("gradients", "finite-gradients")
@exercise("FusedMultiHeadAttention")
def test_fused_gradients(student, reference, draw):
    """Gradients flow to x and the parameters, past a fully masked row; no input changes."""
    mine, theirs = fused_pair(student, reference, draw, 5, 6, 3, dtype=torch.float64)
    x, mask = draw.normal(2, 4, 5).double(), draw.mask(2, 4, 4)
    mask[1, 2] = False
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
    same_results(got, theirs(x), OUTPUT, sizes(B=1, T=7, input_dim=7, d_model=8, H=4))
    expectations.close(mine(x[:, order])[0], got[0][:, order], what="the output", case="reordered")


# --------------------------------------------------------------------------------------------
# PerHeadAttention
# --------------------------------------------------------------------------------------------


def per_head_pair(student, reference, draw, d_model, heads, dtype=None, far=False):
    width = d_model // heads
    state = {
        name: draw.normal(heads, d_model, width, scale=d_model**-0.5)
        for name in ("w_q", "w_k", "w_v")
    }
    state["w_o"] = draw.normal(heads, width, d_model, scale=d_model**-0.5)
    if far:  # see `marked`
        state["w_q"], state["w_k"] = reading(state["w_q"], 1, 1), reading(state["w_k"], 0, 1)
    return pair(
        student,
        reference,
        "PerHeadAttention",
        state,
        dtype=dtype,
        d_model=d_model,
        num_heads=heads,
    )


@promises("parameters", "parameter-names")
@exercise("PerHeadAttention")
def test_per_head_parameters(student):
    """w_q, w_k and w_v have the shape (H, d_model, d_model/H), w_o (H, d_model/H, d_model)."""
    same_parameters(
        student.module("PerHeadAttention", d_model=6, num_heads=3),
        {"w_q": (3, 6, 2), "w_k": (3, 6, 2), "w_v": (3, 6, 2), "w_o": (3, 2, 6)},
    )


@promises("per-head-formula", "from-the-right", "returns")
@exercise("PerHeadAttention")
def test_per_head_values(student, reference, draw):
    """Each head attends with its own matrices; the output sums what they give through w_o."""
    for batch, queries, keys, width, heads in [
        (1, 2, 2, 4, 2),
        (1, 1, 1, 2, 1),
        (2, 3, 5, 6, 3),
        (2, 3, 3, 4, 4),
        (2, 5, 2, 4, 2),
    ]:
        mine, theirs = per_head_pair(student, reference, draw, width, heads)
        inputs = heads_inputs(draw, batch, queries, keys, width)
        case = sizes(B=batch, Tq=queries, Tk=keys, D=width, H=heads)
        same_results(mine(*inputs), theirs(*inputs), OUTPUT, case)


@promises("mask-shapes")
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
        same_results(mine(*inputs), theirs(*inputs), OUTPUT, "no mask, after calls with one")
    tokens, mask = draw.normal(3, 4, 4), draw.mask(3, 1, 4, keep=0.6)
    got, want = mine(tokens, tokens, tokens, mask), theirs(tokens, tokens, tokens, mask)
    case = "Tq=Tk=4, mask of shape (3, 1, 4): it hides keys, and every query attends"
    same_results(got, want, OUTPUT, case)
    mine, theirs = per_head_pair(student, reference, draw, 8, 2, torch.float64, far=True)
    real = draw.mask(2, 5)
    query, key, value = heads_inputs(draw, 2, 3, 5, 8, torch.float64)
    query[..., 1] = 1.0
    given = query, marked(key, real), value, real.unsqueeze(1)
    same_beside(mine(*given), theirs(*given))


@promises("not-divisible")
@exercise("PerHeadAttention")
def test_per_head_refuses(student):
    """A d_model that the number of heads does not divide raises a ValueError."""
    for width, heads in [(6, 4), (4, 3)]:
        expectations.raises(
            "ValueError",
            lambda width=width, heads=heads: student.module(
                "PerHeadAttention", d_model=width, num_heads=heads
            ),
            what=f"d_model={width} with {heads} heads",
        )


@hidden
@promises("fully-masked-query", "dtype-kept")
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
@promises("gradients", "finite-gradients")
@exercise("PerHeadAttention")
def test_per_head_gradients(student, reference, draw):
    """Gradients flow to the inputs and to all four tensors; the inputs are left as they were."""
    mine, theirs = per_head_pair(student, reference, draw, 6, 3, dtype=torch.float64)
    inputs, mask = heads_inputs(draw, 2, 3, 4, 6, torch.float64), draw.mask(2, 3, 4)
    mask[1, 2] = False
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


@promises("names-and-shapes", "rows-interleaved")
@exercise("separate_to_fused")
def test_to_fused_values(student, reference, draw):
    """Weights and biases of q, k and v are interleaved head by head; out_proj's stay."""
    for width, heads in [(2, 1), (4, 2), (6, 3)]:
        state = heads_state(draw, width)
        same_state(
            student.separate_to_fused(state, heads),
            reference.separate_to_fused(state, heads),
            sizes(d_model=width, H=heads),
        )


@aspect
@exercise("separate_to_fused")
def test_to_fused_leaves_input(student, draw):
    """The given state is not changed."""
    expectations.unchanged(
        student.observe("separate_to_fused", heads_state(draw, 4), 2, grad=False)
    )


@hidden
@promises("rows-interleaved")
@exercise("separate_to_fused")
def test_to_fused_rows(student, draw):
    """With numbered rows, head h of q stands in rows 3hD' to 3hD' + D', then k, then v."""
    heads, head_dim = 3, 4
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
@promises("dtype-kept")
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


@promises("names-and-shapes", "same-function", "state-without-biases")
@exercise("separate_to_per_head")
def test_to_per_head_values(student, reference, draw):
    """Each head gets rows of q, k, v and columns of out_proj, transposed; biases of 0 or none."""
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


@promises("bias-not-zero")
@exercise("separate_to_per_head", 0.5)
def test_to_per_head_refuses_biases(student, draw):
    """A bias that is not zero cannot be represented and raises a ValueError."""
    for name in PROJECTIONS:
        for bias in (0.5, -0.5):
            state = no_biases(heads_state(draw, 4))
            state[f"{name}.bias"] = torch.tensor([0.0, 0.0, bias, 0.0])
            expectations.raises(
                "ValueError",
                lambda state=state: student.separate_to_per_head(state, 2),
                what=f"a state with {bias} in {name}.bias",
            )


@hidden
@promises("bias-not-zero")
@exercise("separate_to_per_head", 0.5)
def test_to_per_head_refuses_any_bias(student, draw):
    """Biases that sum to zero are refused too, and tiny ones, also where others are absent."""
    for name in PROJECTIONS:
        for bias in ([0.5, 0.0, 0.0, 0.0], [0.5, -0.5, 0.25, -0.25], [0.0, 1e-30, 0.0, 0.0]):
            state = no_biases(heads_state(draw, 4))
            state[f"{name}.bias"] = torch.tensor(bias)
            expectations.raises(
                "ValueError",
                lambda state=state: student.separate_to_per_head(state, 2),
                what=f"a state whose {name}.bias is {bias}",
            )
        alone = {key: value for key, value in state.items() if key.endswith("weight")}
        alone[f"{name}.bias"] = torch.tensor([0.0, 0.0, 0.0, 0.5])
        expectations.raises(
            "ValueError",
            lambda state=alone: student.separate_to_per_head(state, 2),
            what=f"a state whose only bias is a {name}.bias that is not 0",
        )


@hidden
@promises("dtype-kept")
@exercise("separate_to_per_head")
def test_to_per_head_leaves_input(student, reference, draw):
    """float64 and as many heads as features work; the given state is not changed."""
    state = {name: value.double() for name, value in no_biases(heads_state(draw, 4)).items()}
    seen = student.observe("separate_to_per_head", state, 4, grad=False)
    want = reference.observe("separate_to_per_head", state, 4, grad=False)
    same_state(seen.value, want.value, "float64, H = d_model")
    expectations.unchanged(seen)


@promises("names-and-shapes", "stacked")
@exercise("separate_to_torch")
def test_to_torch_values(student, reference, draw):
    """q, k and v are stacked in this order; out_proj keeps its name."""
    for width in (1, 2, 6):
        state = heads_state(draw, width)
        same_state(
            student.separate_to_torch(state), reference.separate_to_torch(state), f"d_model={width}"
        )


@aspect
@exercise("separate_to_torch")
def test_to_torch_leaves_input(student, draw):
    """The given state is not changed."""
    expectations.unchanged(student.observe("separate_to_torch", heads_state(draw, 4), grad=False))


@hidden
@promises("same-function")
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
@promises("dtype-kept")
@exercise("separate_to_torch")
def test_to_torch_float64(student, reference, draw):
    """float64 weights stay float64."""
    state = {name: value.double() for name, value in heads_state(draw, 3).items()}
    same_state(student.separate_to_torch(state), reference.separate_to_torch(state), "float64")


# --------------------------------------------------------------------------------------------
# CrossAttention
# --------------------------------------------------------------------------------------------


def cross_pair(
    student, reference, draw, query_dim, memory_dim, embed_dim, heads, dtype=None, far=False
):
    state = {
        **linear(draw, "q_proj", embed_dim, query_dim),
        **linear(draw, "k_proj", embed_dim, memory_dim),
        **linear(draw, "v_proj", embed_dim, memory_dim),
        **linear(draw, "out_proj", query_dim, embed_dim),
    }
    if far:
        state = far_projections(state)
    return pair(
        student,
        reference,
        "CrossAttention",
        state,
        dtype=dtype,
        query_dim=query_dim,
        memory_dim=memory_dim,
        d_model=embed_dim,
        num_heads=heads,
    )


@promises("layers", "parameter-names")
@exercise("CrossAttention")
def test_cross_parameters(student):
    """q_proj reads the decoder, k_proj and v_proj the memory, out_proj returns to query_dim."""
    same_parameters(
        student.module("CrossAttention", query_dim=3, memory_dim=5, d_model=4, num_heads=2),
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


@promises("queries-from-x", "scaled-by-head", "not-causal", "returns")
@exercise("CrossAttention")
def test_cross_values(student, reference, draw):
    """Heads attend with queries from x, keys and values from the memory, then out_proj."""
    for batch, queries, keys, query_dim, memory_dim, embed_dim, heads in [
        (1, 2, 2, 2, 2, 2, 1),
        (1, 1, 1, 1, 1, 1, 1),
        (1, 2, 3, 4, 4, 4, 2),
        (2, 3, 3, 6, 6, 6, 3),
        (2, 3, 5, 3, 5, 4, 2),
        (2, 5, 2, 5, 3, 4, 2),
    ]:
        mine, theirs = cross_pair(student, reference, draw, query_dim, memory_dim, embed_dim, heads)
        x, memory = draw.normal(batch, queries, query_dim), draw.normal(batch, keys, memory_dim)
        case = sizes(
            B=batch, Tq=queries, Tk=keys, query_dim=query_dim, memory_dim=memory_dim, H=heads
        )
        same_results(mine(x, memory), theirs(x, memory), OUTPUT, case)


@promises("memory-padding")
@exercise("CrossAttention")
def test_cross_mask(student, reference, draw):
    """Padded memory positions get the weight 0 in every head and for every query."""
    for batch, queries, keys, heads in [(1, 1, 2, 1), (2, 4, 4, 2), (3, 3, 3, 3), (2, 3, 5, 3)]:
        mine, theirs = cross_pair(student, reference, draw, 3, 4, 6, heads)
        x, memory = draw.normal(batch, queries, 3), draw.normal(batch, keys, 4)
        mask = draw.mask(batch, keys, keep=0.6)
        got, want = mine(x, memory, mask), theirs(x, memory, mask)
        same_results(got, want, OUTPUT, sizes(B=batch, Tq=queries, Tk=keys, H=heads))
    same_results(mine(x, memory), theirs(x, memory), OUTPUT, "no mask, after a call with one")
    mine, theirs = cross_pair(student, reference, draw, 3, 4, 8, 2, torch.float64, far=True)
    x, mask = draw.normal(2, 3, 3).double(), draw.mask(2, 5)
    memory = marked(draw.normal(2, 5, 4), mask)
    same_beside(mine(x, memory, mask), theirs(x, memory, mask))


@promises("not-divisible")
@exercise("CrossAttention")
def test_cross_refuses(student):
    """A d_model that the number of heads does not divide raises a ValueError."""
    for width, heads in [(6, 4), (4, 3)]:
        expectations.raises(
            "ValueError",
            lambda width=width, heads=heads: student.module(
                "CrossAttention", query_dim=12, memory_dim=12, d_model=width, num_heads=heads
            ),
            what=f"d_model={width} with {heads} heads",
        )


@hidden
@promises("memory-padding")
@exercise("CrossAttention")
def test_cross_ignores_padding(student, reference, draw):
    """What stands in the padding of the memory changes nothing."""
    mine, theirs = cross_pair(student, reference, draw, 4, 3, 4, 2)
    x, memory = draw.normal(2, 3, 4), draw.normal(2, 5, 3)
    mask = torch.tensor([[True, True, True, False, False], [True, True, True, True, True]])
    changed = memory.clone()
    changed[~mask] = draw.normal(2, 3, scale=10.0)
    want = theirs(x, memory, mask)
    same_results(mine(x, memory, mask), want, OUTPUT, "a padded memory and one that is full")
    same_results(mine(x, changed, mask), want, OUTPUT, "other vectors in the padding")


@hidden
@promises("not-causal", "empty-memory", "dtype-kept")
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
@promises("gradients", "finite-gradients")
@exercise("CrossAttention")
def test_cross_gradients(student, reference, draw):
    """Gradients flow to x, memory and parameters, past a memory that is all padding."""
    mine, theirs = cross_pair(student, reference, draw, 3, 5, 4, 2, dtype=torch.float64)
    x, memory, mask = draw.normal(2, 3, 3).double(), draw.normal(2, 4, 5).double(), draw.mask(2, 4)
    mask[1] = False
    seen, wanted = mine.observe(x, memory, mask), theirs.observe(x, memory, mask)
    names = {"0": "x", "1": "the memory"} | {
        f"parameter {name}.weight": f"{name}.weight" for name in PROJECTIONS
    }
    names |= {f"parameter {name}.bias": f"{name}.bias" for name in ("q_proj", "v_proj", "out_proj")}
    same_gradients(seen, wanted, names)
    expectations.unchanged(seen)
