"""Graders of `transformer-parts`: embeddings, attention, masks, norms."""

from __future__ import annotations

import torch

from autograder.graders.common import (
    EACH_ENTRY,
    attention_state,
    dropped_apart,
    labels,
    linear,
    pair,
    refuses,
    same_gradients,
    same_results,
    sizes,
)
from autograder.graders.parts import alive, same_by_parts, same_flow
from autograder.graders.transformer.common import (
    BOS,
    CONNECTIONS,
    EOS,
    PAD,
    UNK,
    ffn_state,
    norm_state,
    padded,
    standard_normal,
)
from autograder.judging import expectations
from autograder.judging.grader_marks import aspect, exercise, hidden, promises

# --------------------------------------------------------------------------------------------
# Embeddings
# --------------------------------------------------------------------------------------------


@promises("scaled-embedding", "any-batch")
@exercise("Embeddings", 2)
def test_embeddings_values(student, reference, draw):
    """Each id becomes its row of the embedding matrix times sqrt(d_model)."""
    for batch, length, size, width in [(1, 2, 1, 1), (2, 4, 5, 6)]:
        state = {"lut.weight": draw.normal(size, width)}
        options = {"vocab_size": size, "d_model": width}
        mine, theirs = pair(student, reference, "Embeddings", state, **options)
        ids = draw.integers(0, size, batch, length)
        case = sizes(B=batch, T=length, V=size, D=width)
        expectations.close(mine(ids), theirs(ids), what="the vectors", case=case)
    # Long rows, too: the rows of an embedding matrix are never rescaled.
    state = {"lut.weight": draw.normal(5, 6, scale=50.0)}
    mine, theirs = pair(student, reference, "Embeddings", state, **options)
    case += " and an embedding matrix of large numbers"
    expectations.close(mine(ids), theirs(ids), what="the vectors", case=case)


@aspect
@promises("initial-variance")
@exercise("Embeddings")
def test_embeddings_initial(student, draw):
    """Embeddings are drawn from a normal distribution; their variance is 1/D, or 1 when scaled."""
    for size, width in ((160, 16), (2560, 1)):
        mine = student.module("Embeddings", vocab_size=size, d_model=width)
        ids = torch.arange(size).reshape(8, -1)
        vectors = expectations.tensor(mine(ids), what="the vectors")
        expectations.shape(vectors, (*ids.shape, width), what="the vectors")
        standard_normal(vectors, f"the entries of the vectors, scaled, with d_model={width},")
    mine = student.module("Embeddings", vocab_size=2, d_model=2560)
    vector = expectations.tensor(mine(torch.tensor([[PAD]])), what="the vectors")
    standard_normal(vector, "the entries of PAD's vector, scaled, with d_model=2560,")


@promises("bad-sizes")
@exercise("Embeddings")
def test_embeddings_refusals(student):
    """A vocab_size or d_model below 1 raises a ValueError."""
    refuses(
        lambda size, width: student.module("Embeddings", vocab_size=size, d_model=width),
        {"vocab_size=0": (0, 4), "d_model=0": (4, 0), "d_model=-1": (4, -1)},
    )


@hidden
@promises("dtype-kept")
@exercise("Embeddings")
def test_embeddings_gradients(student, reference, draw):
    """Every embedding in use gets a gradient, PAD's too; float64 stays; a step changes it."""
    state = {"lut.weight": draw.normal(6, 3)}
    mine, theirs = pair(
        student, reference, "Embeddings", state, torch.float64, vocab_size=6, d_model=3
    )
    ids = torch.tensor([[PAD, 4, 2], [4, PAD, 5]])
    seen, wanted = mine.train().observe(ids), theirs.observe(ids)
    expectations.close(seen.value, wanted.value, what="the vectors", case="float64")
    same_gradients(seen, wanted, labels(state))
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# MultiHeadAttention
# --------------------------------------------------------------------------------------------


def attention_pair(student, reference, draw, width, heads, dtype=None, **options):
    return pair(
        student,
        reference,
        "MultiHeadAttention",
        attention_state(draw, width),
        dtype=dtype,
        d_model=width,
        num_heads=heads,
        **options,
    )


def attention_inputs(draw, batch, queries, keys, width):
    """Query, key and value, all different."""
    lengths = (queries, keys, keys)
    return tuple(draw.normal(batch, length, width) for length in lengths)


@promises("formula", "layers", "order-of-features")
@exercise("MultiHeadAttention", 2)
def test_attention_values(student, reference, draw):
    """Without a mask: project, split into heads, attend, merge, project; in training mode, too."""
    cases = [(1, 1, 1, 2, 1), (1, 2, 3, 4, 2), (2, 4, 5, 6, 3), (1, 2, 3, 3, 3)]
    for batch, queries, keys, width, heads in cases:
        mine, theirs = attention_pair(student, reference, draw, width, heads)
        inputs = attention_inputs(draw, batch, queries, keys, width)
        case = f"{sizes(B=batch, Tq=queries, Tk=keys, D=width, H=heads)} without a mask"
        expectations.close(mine.train()(*inputs), theirs(*inputs), what="the output", case=case)


@promises("mask")
@exercise("MultiHeadAttention", 2)
def test_attention_masks(student, reference, draw):
    """Masks for all examples, for each example, and for keys only act in every head."""
    mine, theirs = attention_pair(student, reference, draw, 4, 2)
    inputs = attention_inputs(draw, 2, 3, 5, 4)
    for shape in [(3, 5), (1, 3, 5), (2, 3, 5), (2, 1, 5)]:
        mask = draw.mask(*shape, keep=0.5)
        expectations.close(
            mine(*inputs, mask),
            theirs(*inputs, mask),
            what="the output",
            case=f"{sizes(B=2, Tq=3, Tk=5, H=2)} and a mask of shape {shape}",
        )
    case = f"{sizes(B=2, Tq=3, Tk=5, H=2)} without a mask, after calls with masks"
    expectations.close(mine(*inputs), theirs(*inputs), what="the output", case=case)
    # Where all sizes are alike, only the number of axes tells what an axis stands for.
    mine, theirs = attention_pair(student, reference, draw, 6, 3)
    inputs = attention_inputs(draw, 3, 3, 3, 6)
    for mask in (draw.mask(3, 3, keep=0.5), draw.mask(3, 3, 3, keep=0.5)):
        case = f"{sizes(B=3, Tq=3, Tk=3, H=3)} and a mask of shape {tuple(mask.shape)}"
        expectations.close(mine(*inputs, mask), theirs(*inputs, mask), what="the output", case=case)


@promises("project", "attend")
@exercise("MultiHeadAttention")
def test_attention_stages(student, reference, draw):
    """project returns keys and values split into heads; attend accepts any such keys and values."""
    mine, theirs = attention_pair(student, reference, draw, 6, 3)
    _, key, value = attention_inputs(draw, 2, 1, 4, 6)
    got, want = mine.method("project", key, value), theirs.method("project", key, value)
    same_results(got, want, ("keys", "values"), sizes(B=2, Tk=4, D=6, H=3))
    query, mask = draw.normal(2, 2, 6), draw.mask(2, 1, 5)
    heads = draw.normal(2, 3, 5, 2), draw.normal(2, 3, 5, 2)
    for words, given in [("no mask", ()), ("a mask of shape (2, 1, 5)", (mask,))]:
        expectations.close(
            mine.method("attend", query, *heads, *given),
            theirs.method("attend", query, *heads, *given),
            what="the output",
            case=f"attend with 2 queries, 5 keys and {words}",
        )


@promises("heads-divide")
@exercise("MultiHeadAttention")
def test_attention_refuses(student):
    """A num_heads that does not divide d_model raises a ValueError."""
    refuses(
        lambda width, heads: student.module("MultiHeadAttention", d_model=width, num_heads=heads),
        {"d_model=6 with 4 heads": (6, 4), "d_model=4 with 3 heads": (4, 3)},
    )


@hidden
@promises("dropout-on-weights")
@exercise("MultiHeadAttention")
def test_attention_dropout(student, reference, draw):
    """In training mode each weight is dropped with probability p, the others divided by 1 - p."""
    heads, keys, p = 2, 8, 0.3
    width = heads * 2 * keys
    state = attention_state(draw, width)
    # v_proj and out_proj do nothing, and the values of each head are two identity matrices side
    # by side: the output shows each weight that was used, twice.
    for name in ("v_proj", "out_proj"):
        state[f"{name}.weight"], state[f"{name}.bias"] = torch.eye(width), torch.zeros(width)
    mine, theirs = pair(
        student,
        reference,
        "MultiHeadAttention",
        state,
        d_model=width,
        num_heads=heads,
        dropout=p,
    )
    query, key = draw.normal(8, 12, width), draw.normal(8, keys, width)
    value = torch.eye(keys).repeat(1, 2 * heads).expand(8, keys, width)
    want = theirs(query, key, value)
    expectations.close(
        mine(query, key, value), want, what="the output", case=f"dropout={p} in evaluation mode"
    )
    output = expectations.tensor(mine.train()(query, key, value), what="the output")
    expectations.shape(output, (8, 12, width), what="the output")
    shown = (8, 12, heads, 2, keys)
    used, copy = output.reshape(shown).transpose(1, 2).unbind(dim=3)  # (8, heads, 12, keys)
    gone = used.abs() < 1e-9
    # A number of a value that is dropped is missing for every query.
    by_value = bool(gone.any()) and bool((gone == gone[:, :, :1]).all())
    weights = want.reshape(shown).transpose(1, 2)[:, :, :, 0]
    expectations.close(
        copy,
        used,
        what="the second half of each head's output",
        case="values that are given twice (drop weights, not outputs)",
        misconception=f"attention_dropout_on_{'values' if by_value else 'output'}",
    )
    expectations.rate(
        int(gone.sum()),
        gone.numel(),
        p,
        what=f"the share of weights that are dropped at p={p}",
        false_alarm=5e-10,
    )
    dropped_apart(gone, p, ("two examples", "two heads", "two queries", "two keys"))
    expectations.close(
        used[~gone],
        weights[~gone] / (1 - p),
        what="the surviving weights",
        case=f"dropout={p} in training mode",
    )


@hidden
@exercise("MultiHeadAttention")
def test_attention_gradients(student, reference, draw):
    """Gradients reach inputs and parameters; strided float64 inputs work and are not changed."""
    mine, theirs = attention_pair(student, reference, draw, 6, 2, torch.float64)
    query, key, value = attention_inputs(draw, 2, 3, 4, 6)
    inputs = query.double(), key.double().mT.contiguous().mT, value[:1].double().expand(2, 4, 6)
    mask = draw.mask(2, 3, 4)
    seen, wanted = mine.observe(*inputs, mask), theirs.observe(*inputs, mask)
    expectations.close(seen.value, wanted.value, what="the output", case="strided float64 inputs")
    names = labels(
        attention_state(draw, 1), ("0", "the query"), ("1", "the key"), ("2", "the value")
    )
    same_gradients(seen, wanted, names)
    expectations.unchanged(seen)


@hidden
@exercise("MultiHeadAttention")
def test_attention_extremes(student, reference, draw):
    """Scores in the thousands don't overflow; masked positions still have weight 0."""
    mine, theirs = attention_pair(student, reference, draw, 4, 1, torch.float64)
    query, key, value = (each.double() for each in attention_inputs(draw, 1, 3, 3, 4))
    given = 60 * query, 60 * key, value
    case = "inputs times 60, one head"
    expectations.close(mine(*given), theirs(*given), what="the output", case=case)
    # Queries and keys pass through as they are: every score is about -200000.
    state = attention_state(draw, 4)
    for name in ("q_proj", "k_proj"):
        state[f"{name}.weight"], state[f"{name}.bias"] = torch.eye(4), torch.zeros(4)
    options = {"d_model": 4, "num_heads": 1}
    mine, theirs = pair(student, reference, "MultiHeadAttention", state, torch.float64, **options)
    query = torch.full((1, 3, 4), 1000.0, dtype=torch.float64)
    given = query, draw.normal(1, 3, 4, scale=1e-3).double() - 100.0, value
    case = "float64 and all scores near -200000, which float32 can't tell apart"
    expectations.close(mine(*given), theirs(*given), what="the output", case=case)
    mask = torch.tensor([[True, True, False], [False, True, False], [True, False, True]])
    expectations.close(
        mine(*given, mask),
        theirs(*given, mask),
        what="the output",
        case="all scores near -200000 and a mask: a masked position has weight 0, so fill in -inf, "
        "not -10000",
    )


# --------------------------------------------------------------------------------------------
# pad_mask, subsequent_mask, make_std_mask
# --------------------------------------------------------------------------------------------


@promises("real-tokens")
@exercise("pad_mask")
def test_pad_mask_values(student, reference, draw):
    """True at real tokens, with an axis for the queries: (B, 1, T)."""
    for lengths in ([1], [2, 4, 1]):
        ids = padded(draw, lengths)
        case = f"ids {ids.tolist()}"
        expectations.close(
            student.pad_mask(ids), reference.pad_mask(ids), what="the mask", case=case
        )


@promises("real-tokens")
@exercise("pad_mask")
def test_pad_mask_anywhere(student, reference, draw):
    """Padding is found by its id, wherever it is, in whole rows, too; all other ids are real."""
    ids = torch.tensor([[PAD, BOS, 256, PAD, EOS], [UNK, 65536, PAD, PAD, 5], [PAD] * 5])
    case = f"ids {ids.tolist()}"
    expectations.close(student.pad_mask(ids), reference.pad_mask(ids), what="the mask", case=case)


@hidden
@promises("pad")
@exercise("pad_mask")
def test_pad_mask_other_id(student, reference, draw):
    """`pad` says which id is padding; 0 is then an id like any other."""
    ids = draw.integers(0, 4, 2, 6)
    ids[0, :2] = torch.tensor([0, 3])
    case = f"ids {ids.tolist()} and pad=3"
    got, want = student.pad_mask(ids, pad=3), reference.pad_mask(ids, pad=3)
    expectations.close(got, want, what="the mask", case=case)
    ids = torch.tensor([[100, 0, -100], [5, 100, -100]])
    case = f"ids {ids.tolist()} and pad=-100"
    got, want = student.pad_mask(ids, pad=-100), reference.pad_mask(ids, pad=-100)
    expectations.close(got, want, what="the mask", case=case)


@hidden
@exercise("pad_mask")
def test_pad_mask_leaves_ids(student, reference, draw):
    """The ids are not changed; strided ids and long rows work."""
    ids = draw.integers(0, 3, 30, 4).T
    seen = student.observe("pad_mask", ids, pad=2, grad=False)
    case = "4 rows of 30 ids and pad=2"
    expectations.close(seen.value, reference.pad_mask(ids, pad=2), what="the mask", case=case)
    expectations.unchanged(seen)


@aspect
@exercise("subsequent_mask")
def test_subsequent_one(student, reference):
    """A single position attends to itself."""
    expectations.close(
        student.subsequent_mask(1), reference.subsequent_mask(1), what="the mask", case="size=1"
    )


@promises("lower-triangle")
@exercise("subsequent_mask")
def test_subsequent_values(student, reference):
    """Position i attends to positions 0 to i: a lower triangle with its diagonal."""
    for size in (3, 5):
        got, want = student.subsequent_mask(size), reference.subsequent_mask(size)
        expectations.close(got, want, what="the mask", case=f"size={size}")
    got, want = student.subsequent_mask(2), reference.subsequent_mask(2)
    cut = isinstance(got, torch.Tensor) and bool(got.all())
    expectations.close(
        got,
        want,
        what="the mask",
        case="size=2, after size=5",
        misconception="subsequent_cut_from_last_rows" if cut else None,
    )


@promises("bad-size")
@exercise("subsequent_mask")
def test_subsequent_refusals(student):
    """A size below 1 raises a ValueError."""
    refuses(student.subsequent_mask, {"size=0": (0,), "size=-1": (-1,)})


@hidden
@exercise("subsequent_mask")
def test_subsequent_counts(student):
    """Of many positions, each attends to one more than the one before."""
    got = expectations.tensor(student.subsequent_mask(1100), what="the mask")
    expectations.shape(got, (1, 1100, 1100), what="the mask", case="size=1100")
    seen = got[0].sum(-1)
    expectations.equal(
        seen, torch.arange(1, 1101), what="how many positions each may attend to", case="size=1100"
    )
    expectations.true(
        bool(got[0].diagonal().all()) and not bool(got[0].triu(1).any()),
        "For size=1100 some position does not attend to itself, or attends to a later one.",
    )


def same_std_mask(student, reference, target, *pad):
    """The mask of a target, by the reference or by the student's own two masks."""

    def own(parts):
        proxy = parts.proxy
        alive(proxy.subsequent_mask(3))
        return proxy.pad_mask(target, *pad) & proxy.subsequent_mask(target.shape[1])

    ids = target.tolist() if target.numel() < 50 else f"of shape {tuple(target.shape)}"
    case = f"target {ids}" + (f" and pad={pad[0]}" if pad else "")
    seen = student.observe("make_std_mask", target, *pad, grad=False)
    want = reference.make_std_mask(target, *pad)
    same_by_parts(student, seen.value, want, own, what="the mask", case=case)
    return seen


@promises("both-masks")
@exercise("make_std_mask")
def test_std_mask_without_padding(student, reference, draw):
    """Without padding the mask of each row is the causal mask: (B, U, U)."""
    for lengths in ([3, 3], [1]):
        same_std_mask(student, reference, padded(draw, lengths))


@promises("both-masks")
@exercise("make_std_mask", 2)
def test_std_mask_with_padding(student, reference, draw):
    """No position attends to padding or to later positions."""
    for lengths in ([2, 4], [1, 3, 2]):
        same_std_mask(student, reference, padded(draw, lengths))


@promises("pad")
@exercise("make_std_mask")
def test_std_mask_other_id(student, reference, draw):
    """`pad` says which id is padding."""
    target = torch.where(torch.tensor([True, True, False, False]), draw.integers(0, 3, 2, 4), 3)
    same_std_mask(student, reference, target, 3)


@hidden
@promises("queries-at-padding")
@exercise("make_std_mask")
def test_std_mask_padding_in_front(student, reference, draw):
    """Padding on the left and in between is masked as a key, and only as a key."""
    target = torch.tensor([[PAD, PAD, BOS, 5, 6], [BOS, 7, PAD, 8, EOS]])
    same_std_mask(student, reference, target)


@hidden
@exercise("make_std_mask")
def test_std_mask_leaves_target(student, reference, draw):
    """The target is not changed; as many rows as positions work, and so do long targets."""
    target = padded(draw, [4, 2, 3, 1])
    expectations.unchanged(same_std_mask(student, reference, target))
    same_std_mask(student, reference, padded(draw, [290], 300))


# --------------------------------------------------------------------------------------------
# LayerNorm
# --------------------------------------------------------------------------------------------


def norm_pair(student, reference, draw, width, dtype=None, **options):
    state = norm_state(draw, width)
    return pair(student, reference, "LayerNorm", state, dtype, d_model=width, **options)


@promises("parameters")
@exercise("LayerNorm")
def test_norm_initial(student, reference, draw):
    """Initially gamma is 1 and beta is 0: every output vector has mean 0 and variance 1."""
    mine, theirs = pair(student, reference, "LayerNorm", d_model=6)
    x = draw.normal(2, 3, 6, scale=3.0)
    expectations.close(mine(x), theirs(x), what="the result", case="a new LayerNorm")
    state = mine.state()
    for name, value in (("gamma", torch.ones(6)), ("beta", torch.zeros(6))):
        expectations.true(
            name in state, f"There is no parameter called {name}; create it as an nn.Parameter."
        )
        expectations.close(state[name], value, what=f"the initial {name}")


@promises("own-mean-and-variance", "any-axes")
@exercise("LayerNorm", 2)
def test_norm_values(student, reference, draw):
    """Mean and variance of each vector by itself, however many axes there are."""
    mine, theirs = norm_pair(student, reference, draw, 4)
    for shape in [(4,), (3, 4), (2, 3, 4)]:
        x = draw.normal(*shape, scale=2.0) + 1.0
        expectations.close(mine(x), theirs(x), what="the result", case=f"x of shape {shape}")


@promises("biased-variance")
@exercise("LayerNorm")
def test_norm_eps(student, reference, draw):
    """eps is added to the variance inside the root; constant vectors become beta."""
    mine, theirs = norm_pair(student, reference, draw, 4)
    x = draw.normal(3, 4, scale=4e-3)
    x[1] = 1.0
    case = "x of variance 1.6e-5, and of 0 in row 1; eps=1e-5 by default"
    expectations.close(mine(x), theirs(x), what="the result", case=case)
    mine, theirs = norm_pair(student, reference, draw, 2, eps=0.5)
    x = draw.normal(3, 2)
    expectations.close(mine(x), theirs(x), what="the result", case="D=2 and eps=0.5")
    mine, theirs = norm_pair(student, reference, draw, 2, eps=0.0)
    x = torch.tensor([[0.001, 0.003]])
    case = "x = (0.001, 0.003) and eps=0, which is not the default"
    expectations.close(mine(x), theirs(x), what="the result", case=case)


@exercise("LayerNorm")
def test_norm_extremes(student, reference, draw):
    """Large numbers that are close together keep their differences; with D=1 the result is beta."""
    mine, theirs = norm_pair(student, reference, draw, 1)
    x = torch.tensor([[3.0], [-2.0]])
    expectations.close(mine(x), theirs(x), what="the result", case="D=1, whose variance is 0")
    case = "x = (10001, 10003), of mean 10002 and variance 1"
    mine, theirs = norm_pair(student, reference, draw, 2)
    x = torch.tensor([[10001.0, 10003.0]])
    expectations.close(mine(x), theirs(x), what="the result", case=case)
    mine, theirs = norm_pair(student, reference, draw, 3, torch.float64)
    x = torch.tensor([[10001.0003, 10003.0001, 10002.0004]], dtype=torch.float64)
    case = "float64 and x = (10001.0003, 10003.0001, 10002.0004), which float32 can't hold"
    expectations.close(mine(x), theirs(x), what="the result", case=case)


@promises("bad-sizes")
@exercise("LayerNorm")
def test_norm_refusals(student, draw):
    """A d_model below 1, or a last axis of another length, raises a ValueError."""

    def make(features):
        return student.module("LayerNorm", d_model=features)

    refuses(make, {"d_model=0": (0,), "d_model=-1": (-1,)})
    refuses(
        make(4),
        {
            "x of width 3 where d_model is 4": (draw.normal(2, 3),),
            "x of width 1 where d_model is 4": (draw.normal(4, 1),),
        },
    )
    refuses(make(1), {"x of width 3 where d_model is 1": (draw.normal(2, 3),)})


@hidden
@promises("own-mean-and-variance")
@exercise("LayerNorm")
def test_norm_each_alone(student, reference, draw):
    """A vector's result depends on no other vector, neither on padding nor on the batch."""
    mine, theirs = norm_pair(student, reference, draw, 5, torch.float64)
    x = draw.normal(3, 4, 5).double()
    x[0, 0] = 1.0
    want = theirs(x)
    expectations.close(mine.train()(x), want, what="the result", case="float64 in training mode")
    other = x.clone()
    other[1:, 2:] = 1e6 * draw.normal(2, 2, 5).double()
    after = expectations.tensor(mine(other), what="the result")
    expectations.shape(after, (3, 4, 5), what="the result")
    rows = torch.ones(3, 4, dtype=torch.bool)
    rows[1:, 2:] = False
    expectations.close(
        after[rows], want[rows], what="the result of a vector", case="other vectors changed"
    )


@hidden
@exercise("LayerNorm")
def test_norm_gradients(student, reference, draw):
    """Gradients reach x, gamma and beta; strided float64 inputs work; x is not changed."""
    mine, theirs = norm_pair(student, reference, draw, 3, torch.float64)
    x = torch.full((1, 3), 5.0, dtype=torch.float64)
    seen, wanted = mine.observe(x), theirs.observe(x)
    same_gradients(seen, wanted, {"0": "x"}, "x = (5, 5, 5), whose variance is 0")
    x = draw.normal(3, 4, 2).double().transpose(0, 2)
    seen, wanted = mine.observe(x), theirs.observe(x)
    expectations.close(seen.value, wanted.value, what="the result", case="strided float64 inputs")
    same_gradients(seen, wanted, labels(["gamma", "beta"], ("0", "x")))
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# PositionwiseFeedForward
# --------------------------------------------------------------------------------------------


def ffn_pair(student, reference, draw, width, inner, dtype=None, **options):
    state = ffn_state(draw, width, inner)
    return pair(
        student,
        reference,
        "PositionwiseFeedForward",
        state,
        dtype,
        d_model=width,
        d_ff=inner,
        **options,
    )


@promises("formula", "layers", "any-axes")
@exercise("PositionwiseFeedForward", 2)
def test_ffn_values(student, reference, draw):
    """w_2(relu(w_1(x))) at every position, for any inner width; in training mode, too."""
    for batch, length, width, inner in [(1, 1, 1, 2), (1, 2, 3, 2), (2, 3, 4, 7)]:
        mine, theirs = ffn_pair(student, reference, draw, width, inner)
        x = draw.normal(batch, length, width)
        case = sizes(B=batch, T=length, D=width, F=inner)
        expectations.close(mine.train()(x), theirs(x), what="the output", case=case)
    mine, theirs = ffn_pair(student, reference, draw, 4, 1)
    for shape in [(4,), (3, 4), (2, 1, 3, 4)]:
        x = draw.normal(*shape, scale=50.0)
        case = f"large x of shape {shape} and F=1"
        expectations.close(mine(x), theirs(x), what="the output", case=case)


@aspect
@exercise("PositionwiseFeedForward")
def test_ffn_positions(student, draw):
    """The vector at one position does not change the output at another."""
    state = ffn_state(draw, 8, 16)
    mine = student.module("PositionwiseFeedForward", state=state, d_model=8, d_ff=16)
    x = draw.normal(2, 3, 8)
    other = x.clone()
    other[0, 1] += 1.0
    both = [expectations.tensor(mine(each), what="the output") for each in (x, other)]
    for each in both:
        expectations.shape(each, x.shape, what="the output")
    changed = (both[0] - both[1]).abs().amax(-1) > 1e-5
    expectations.true(
        changed.nonzero().tolist() == [[0, 1]],
        "Another vector at one position changes the output at the positions "
        f"{changed.nonzero().tolist()}; it should change it at [[0, 1]] only.",
    )


@hidden
@promises("formula")
@exercise("PositionwiseFeedForward")
def test_ffn_dropout(student, draw):
    """Dropout acts on the inner layer, in training mode only, and divides the rest by 1 - p."""
    width, p = 16, 0.3
    # Nothing but dropout happens between x and the output, and biases show where it stands.
    state = {
        "w_1.weight": torch.eye(width),
        "w_1.bias": torch.full((width,), 4.0),
        "w_2.weight": torch.eye(width),
        "w_2.bias": torch.full((width,), 3.0),
    }
    mine = student.module(
        "PositionwiseFeedForward", state=state, d_model=width, d_ff=width, dropout=p
    )
    x = draw.uniform(8, 10, width, low=1.0, high=2.0)
    expectations.close(mine(x), x + 7.0, what="the output", case=f"dropout={p} in evaluation mode")
    output = expectations.tensor(mine.train()(x), what="the output")
    expectations.shape(output, x.shape, what="the output")
    gone = (output - 3.0).abs() < 1e-4
    expectations.rate(
        int(gone.sum()),
        gone.numel(),
        p,
        what=f"the share of inner values that are dropped at p={p}",
        false_alarm=5e-10,
    )
    dropped_apart(gone, p, EACH_ENTRY)
    expectations.close(
        output[~gone],
        ((x + 4.0) / (1 - p) + 3.0)[~gone],
        what="the output where nothing was dropped",
        case=f"dropout={p} in training mode",
    )


@hidden
@exercise("PositionwiseFeedForward")
def test_ffn_gradients(student, reference, draw):
    """Gradients reach x and every parameter; strided float64 inputs work; x is not changed."""
    mine, theirs = ffn_pair(student, reference, draw, 3, 5, torch.float64)
    x = draw.normal(3, 4, 2).double().transpose(0, 2)
    seen, wanted = mine.observe(x), theirs.observe(x)
    expectations.close(seen.value, wanted.value, what="the output", case="strided float64 inputs")
    same_gradients(seen, wanted, labels(ffn_state(draw, 1, 1), ("0", "x")))
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# ResidualBlock
# --------------------------------------------------------------------------------------------


def block_pair(student, reference, draw, width, dtype=None):
    state = linear(draw, "w_1", width, width, False) | linear(draw, "w_2", width, width, False)
    return pair(student, reference, "ResidualBlock", state, dtype, d_model=width)


@promises("formula", "no-bias")
@exercise("ResidualBlock", 2)
def test_block_values(student, reference, draw):
    """relu(w_2(relu(w_1(x))) + x), for one vector and for many; neither layer has a bias."""
    mine, theirs = block_pair(student, reference, draw, 4)
    for shape, scale in [((4,), 1.0), ((3, 4), 50.0), ((2, 3, 4), 1.0)]:
        x = draw.normal(*shape, scale=scale)
        expectations.close(mine(x), theirs(x), what="the output", case=f"x of shape {shape}")


@exercise("ResidualBlock")
def test_block_shortcut(student, draw):
    """If the layers output 0, the block returns relu(x): the residual connection skips both."""
    state = {"w_1.weight": draw.normal(5, 5), "w_2.weight": torch.zeros(5, 5)}
    mine = student.module("ResidualBlock", state=state, d_model=5)
    x = draw.normal(4, 5)
    expectations.close(mine(x), x.clamp(min=0), what="the output", case="a w_2 of zeros")


@aspect
@hidden
@exercise("ResidualBlock")
def test_block_not_negative(student, draw):
    """No entry of the output is negative, and some are 0: the outer ReLU acts on the sum."""
    state = linear(draw, "w_1", 8, 8, False) | linear(draw, "w_2", 8, 8, False)
    mine = student.module("ResidualBlock", state=state, d_model=8)
    output = expectations.tensor(mine(draw.normal(20, 8)), what="the output")
    expectations.shape(output, (20, 8), what="the output")
    expectations.true(
        bool((output >= 0).all()) and bool((output == 0).any()),
        "The output of ReLU is never negative and often 0, but yours "
        + ("has no 0 among 160 entries." if bool((output >= 0).all()) else "has negative entries."),
    )


@hidden
@exercise("ResidualBlock")
def test_block_gradients(student, reference, draw):
    """Gradients reach both weights, and x by both paths; x is not changed."""
    mine, theirs = block_pair(student, reference, draw, 3, torch.float64)
    x = draw.normal(3, 6).double().T
    seen, wanted = mine.train().observe(x), theirs.observe(x)
    expectations.close(seen.value, wanted.value, what="the output", case="strided float64 inputs")
    same_gradients(seen, wanted, labels(["w_1.weight", "w_2.weight"], ("0", "x")))
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# SublayerConnection
# --------------------------------------------------------------------------------------------


def connection_pair(student, reference, draw, width, dtype=None, **options):
    """The connections of both, and for each a sub-layer: a LayerNorm with other parameters."""
    mine, theirs = pair(
        student,
        reference,
        "SublayerConnection",
        norm_state(draw, width, "norm."),
        dtype,
        d_model=width,
        **options,
    )
    return (mine, theirs), norm_pair(student, reference, draw, width, dtype)


def same_connection(student, reference, draw, right, case, train=False, **options):
    """A connection agrees with the reference, or with the student's own norm by `right`."""
    (mine, theirs), (inner, outer) = connection_pair(student, reference, draw, 4, **options)
    for shape in [(1, 1, 4), (2, 3, 4)]:
        x = draw.normal(*shape, scale=1.5)
        got = (mine.train() if train else mine)(x, inner)

        def own(parts, x=x):
            return right(x, parts.of(inner, "forward"), parts.of(mine, "norm"))

        words = f"x of shape {shape}, {case}"
        same_by_parts(student, got, theirs(x, outer), own, what="the output", case=words)


@promises("two-orders", "norm-first", "own-norm")
@exercise("SublayerConnection", 2)
def test_connection_post(student, reference, draw):
    """By default norm(x + sublayer(x)): the norm acts on the sum; in training mode, too."""
    case = "norm_first not given"
    same_connection(student, reference, draw, CONNECTIONS[False], case, train=True)


@promises("two-orders", "norm-first")
@exercise("SublayerConnection", 2)
def test_connection_pre(student, reference, draw):
    """With norm_first x + sublayer(norm(x)): the residual connection has no norm."""
    case = "norm_first=True, dropout=0.4 in evaluation mode"
    options = {"norm_first": True, "dropout": 0.4}
    same_connection(student, reference, draw, CONNECTIONS[True], case, **options)


@promises("any-sublayer")
@exercise("SublayerConnection")
def test_connection_any_sublayer(student, draw):
    """Any module can be the sub-layer, here one that adds something to each position."""
    sublayer = student.module("PositionalEncoding", d_model=4, max_length=6)
    x = draw.normal(2, 3, 4)
    added = expectations.tensor(sublayer(torch.zeros(1, 3, 4)), what="the positional encoding")
    # With a gamma of 0 the norm returns beta for every input.
    beta = draw.normal(4)
    state = {"norm.gamma": torch.zeros(4), "norm.beta": beta}
    both = {
        norm_first: student.module(
            "SublayerConnection", state=state, d_model=4, norm_first=norm_first
        )
        for norm_first in (True, False)
    }
    for norm_first, want in [(True, x + beta + added), (False, beta.expand(2, 3, 4))]:
        mine = both[norm_first]
        case = f"norm_first={norm_first}, a norm of gamma 0, PositionalEncoding as the sub-layer"
        expectations.close(mine(x, sublayer), want, what="the output", case=case)


@aspect
@promises("called-once", "not-stored")
@exercise("SublayerConnection")
def test_connection_calls_once(student, draw):
    """The sub-layer is called once, in either order, and is not stored."""
    for norm_first in (False, True):
        mine = student.module("SublayerConnection", d_model=4, norm_first=norm_first)
        sublayer = student.module("nn.BatchNorm1d", num_features=3).train()  # It counts its calls.
        before = mine.parameters()
        mine(draw.normal(2, 3, 4), sublayer)
        calls = int(sublayer.state()["num_batches_tracked"])
        expectations.true(
            calls == 1,
            f"With norm_first={norm_first} the sub-layer is called {calls} times; it should be "
            "called once.",
        )
        expectations.true(
            mine.parameters() == before,
            "After a call your SublayerConnection has the sub-layer's parameters, too; don't store "
            "the sub-layer in self.",
        )


@hidden
@promises("two-orders")
@exercise("SublayerConnection")
def test_connection_dropout_pre(student, draw):
    """In pre-norm, dropout acts on the sub-layer's output, and not on its input or on x."""
    width, p = 16, 0.3
    # The norm returns beta for every input, to which the sub-layer adds something.
    state = {"norm.gamma": torch.zeros(width), "norm.beta": torch.full((width,), 5.0)}
    sublayer = student.module("PositionalEncoding", d_model=width, max_length=10)
    mine = student.module(
        "SublayerConnection", state=state, d_model=width, dropout=p, norm_first=True
    )
    x = draw.normal(8, 10, width)
    whole = expectations.tensor(mine(x, sublayer), what="the output in evaluation mode")
    output = expectations.tensor(mine.train()(x, sublayer), what="the output")
    for each in (whole, output):
        expectations.shape(each, x.shape, what="the output")
    added = output - x
    gone = added.abs() < 1e-4
    expectations.rate(
        int(gone.sum()),
        gone.numel(),
        p,
        what=f"the share of zeros in what is added to x, pre-norm, training mode, dropout={p},",
        false_alarm=5e-10,
    )
    dropped_apart(gone, p, EACH_ENTRY)
    expectations.close(
        output[~gone],
        (x + (whole - x) / (1 - p))[~gone],
        what="the output where nothing was dropped",
        case=f"norm_first=True, dropout={p} in training mode",
    )


@hidden
@promises("two-orders")
@exercise("SublayerConnection")
def test_connection_dropout_post(student, draw):
    """In post-norm, dropout acts on the sub-layer's output, and not on the residual connection."""
    width, p = 16, 0.3
    # The sub-layer returns 1 for every input.
    ones = {"gamma": torch.zeros(width), "beta": torch.ones(width)}
    sublayer = student.module("LayerNorm", state=ones, d_model=width)
    x = draw.normal(8, 10, width)
    # Of x = 0, two values are left in each vector, of which the norm makes one
    # negative and one positive.
    state = {"norm.gamma": torch.ones(width), "norm.beta": torch.full((width,), 0.5)}
    mine = student.module("SublayerConnection", state=state, d_model=width, dropout=p)
    output = expectations.tensor(mine.train()(torch.zeros_like(x), sublayer), what="the output")
    expectations.shape(output, x.shape, what="the output")
    gone = output < 0.499
    expectations.rate(
        int(gone.sum()),
        gone.numel(),
        p,
        what=f"the share of dropped entries, norm_first=False in training mode, dropout={p},",
        false_alarm=5e-10,
    )
    dropped_apart(gone, p, EACH_ENTRY[:2])
    # If the sub-layer returns 0, dropout changes nothing.
    nothing = {"gamma": torch.zeros(width), "beta": torch.zeros(width)}
    sublayer = student.module("LayerNorm", state=nothing, d_model=width)
    want = expectations.tensor(mine.eval()(x, sublayer), what="the output in evaluation mode")
    case = f"a sub-layer that returns 0, norm_first=False, dropout={p} in training mode: the "
    case += "residual connection has no dropout"
    expectations.close(mine.train()(x, sublayer), want, what="the output", case=case)


@hidden
@exercise("SublayerConnection")
def test_connection_gradients(student, reference, draw):
    """Gradients reach the norm, the sub-layer, and x by both paths; x is not changed."""
    for norm_first in (False, True):
        (mine, theirs), (inner, outer) = connection_pair(
            student, reference, draw, 3, torch.float64, norm_first=norm_first
        )
        x = draw.normal(3, 4, 2).double().transpose(0, 2)
        seen, wanted = mine.observe(x, inner), theirs.observe(x, outer)
        names = labels(["norm.gamma", "norm.beta", "gamma", "beta"], ("0", "x"))
        case = f"strided float64 inputs, norm_first={norm_first}"

        def own(parts, x=x, inner=inner, mine=mine, right=CONNECTIONS[norm_first]):
            return right(x, parts.of(inner, "forward"), parts.of(mine, "norm"))

        same_by_parts(student, seen.value, wanted.value, own, what="the output", case=case)
        same_flow(seen, wanted, names, case)
        expectations.unchanged(seen)
    mine, same = student.module("SublayerConnection", d_model=3), student.module("nn.Identity")
    seen = mine.observe(draw.normal(2, 4, 3), same, grad=False)
    expectations.unchanged(seen, "your code, with a sub-layer that returns its input,")
