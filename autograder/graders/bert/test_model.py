"""Graders of `bert-model`: the input and the encoder."""

from __future__ import annotations

import torch

from autograder.graders.bert.common import (
    PAD,
    SPECIAL,
    bert_options,
    bert_state,
    embeddings_state,
    inputs,
    layer_state,
    real,
    same_default_sizes,
    same_names,
)
from autograder.graders.common import (
    EACH_ENTRY,
    attention_state,
    dropped,
    dropped_apart,
    labels,
    pair,
    refused_naming,
    refuses,
    rows_differ,
    same_gradients,
    same_parameters,
    sizes,
    within,
)
from autograder.graders.parts import alive, flows, same_by_parts
from autograder.judging import expectations
from autograder.judging.grader_marks import aspect, exercise, hidden, promises

# --------------------------------------------------------------------------------------------
# build_input
# --------------------------------------------------------------------------------------------


def some_ids(draw, length):
    return draw.integers(SPECIAL, 90, length).tolist()


def same_input(student, reference, *given, **more):
    """input_ids and token_type_ids are the reference's, both lists."""
    got = expectations.items(
        student.build_input(*given, **more), 2, what="the result (input_ids, token_type_ids)"
    )
    want = reference.build_input(*given, **more)
    shown = [f"{len(each)} tokens" if len(each) > 12 else str(each) for each in given if each]
    case = " and ".join(shown) + "".join(f", {key}={value}" for key, value in more.items())
    for name, actual, expected in zip(("input_ids", "token_type_ids"), got, want, strict=True):
        if isinstance(actual, list) and len(expected) > 30:  # A message cannot show all of it.
            numbers = enumerate(zip(actual, expected, strict=False))
            place = next((place for place, (one, other) in numbers if one != other), None)
            if place is not None:
                one, other, what = actual[place], expected[place], f"{name}[{place}]"
                expectations.equal(one, other, what=what, case=case)
            what = f"the length of {name}"
            expectations.equal(len(actual), len(expected), what=what, case=case)
        expectations.equal(actual, expected, what=f"the list of {name}", case=case)


@promises("one-or-two")
@exercise("build_input")
def test_input_single(student, reference, draw):
    """One sentence becomes [CLS] A [SEP], all of segment 0."""
    for length in (1, 3):
        same_input(student, reference, some_ids(draw, length))


@promises("one-or-two")
@exercise("build_input", 2)
def test_input_pair(student, reference, draw):
    """A pair becomes [CLS] A [SEP] B [SEP]; B and its [SEP] are segment 1, the rest segment 0."""
    for first, second in [(1, 1), (2, 3), (4, 2)]:
        same_input(student, reference, some_ids(draw, first), some_ids(draw, second))


@promises("truncation")
@exercise("build_input", 2)
def test_input_too_long(student, reference, draw):
    """Tokens go one at a time from the end of the longer one, of the second if equally long."""
    same_input(student, reference, some_ids(draw, 5), max_length=5)
    for first, second, limit in [(2, 5, 8), (5, 2, 8), (3, 3, 9), (3, 3, 8), (4, 6, 10), (7, 3, 6)]:
        given = some_ids(draw, first), some_ids(draw, second)
        same_input(student, reference, *given, max_length=limit)


@promises("no-room")
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
            "a single sentence with max_length=0": (one, None, 0),
            "a single sentence with max_length=-1": (one, None, -1),
            "a pair with max_length=4": (one, two, 4),
        },
    )
    same_input(student, reference, one, max_length=3)
    same_input(student, reference, one, two, max_length=5)


@hidden
@promises("truncation")
@exercise("build_input")
def test_input_long_pairs(student, reference, draw):
    """Long sentences of any lengths; 512 tokens unless told otherwise, be it more."""
    for _ in range(6):
        first, second = draw.integers(1, 30, 2).tolist()
        given = some_ids(draw, first), some_ids(draw, second)
        same_input(student, reference, *given, max_length=int(draw.integers(5, 50)))
    same_input(student, reference, some_ids(draw, 600))
    same_input(student, reference, some_ids(draw, 400), some_ids(draw, 200))
    same_input(student, reference, some_ids(draw, 600), max_length=602)
    same_input(student, reference, some_ids(draw, 400), some_ids(draw, 500), max_length=700)


@hidden
@promises("lists-unchanged")
@exercise("build_input")
def test_input_leaves_sentences(student, reference, draw):
    """The lists that are given stay as they are."""
    given = some_ids(draw, 6), some_ids(draw, 7)
    same_input(student, reference, *given)
    seen = student.observe("build_input", *given, grad=False, max_length=9)
    expectations.items(seen.value, 2, what="the result (input_ids, token_type_ids)")
    expectations.unchanged(seen, misconception="input_lists_changed")


# --------------------------------------------------------------------------------------------
# gelu
# --------------------------------------------------------------------------------------------


@promises("formula", "any-shape")
@exercise("gelu", 2)
def test_gelu_values(student, reference, draw):
    """x times the share of a normal distribution below x, between -3 and 3."""
    for shape in [(), (5,), (2, 3, 4), (0, 3)]:
        x = draw.uniform(*shape, low=-3, high=3)
        expectations.close(
            student.gelu(x), reference.gelu(x), what="gelu(x)", case=f"x of shape {shape}"
        )


@promises("exact-form")
@exercise("gelu")
def test_gelu_exact(student, reference, draw):
    """Exact, by the error function: in float64 every digit counts."""
    x = torch.linspace(-6, 6, 49, dtype=torch.float64)
    got, want = student.gelu(x), reference.gelu(x)
    expectations.close(got, want, what="gelu(x)", case="float64 from -6 to 6")
    # Room for a square root of 2 in float32, and for no fewer digits.
    worst = float((got - want).abs().max())
    expectations.true(
        worst < 3e-8,
        f"gelu(x) is up to {worst:.1g} off for float64 from -6 to 6; compute all of it in the type "
        "of x, with math.sqrt(2) and without shortcuts for large |x|.",
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
    state = embeddings_state(draw, vocabulary, width, length, more.get("type_vocab_size", 2))
    options = {"vocab_size": vocabulary, "d_model": width, "max_length": length, **more}
    return pair(student, reference, "BertEmbeddings", state, dtype, **options)


@aspect
@promises("submodules")
@exercise("BertEmbeddings")
def test_embeddings_parameters(student):
    """Three tables of one width, summed and not joined, and a norm of that width."""
    mine = student.module("BertEmbeddings", vocab_size=7, d_model=4)
    expected = {
        "token.weight": (7, 4),
        "position.weight": (512, 4),
        "segment.weight": (2, 4),
        "norm.weight": (4,),
        "norm.bias": (4,),
    }
    same_parameters(mine, expected)


@promises("normalised-sum", "positions-from-0")
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


@promises("no-segments")
@exercise("BertEmbeddings")
def test_embeddings_without_segments(student, reference, draw):
    """Without segment ids every token is of segment 0; more segments and positions work too."""
    mine, theirs = embeddings_pair(
        student, reference, draw, 9, 12, 5, type_vocab_size=3, dropout=0.4
    )
    ids = draw.integers(0, 9, 2, 5)
    for words, given in {
        f"{sizes(B=2, T=5)} and no segment ids": (ids,),
        f"{sizes(B=2, T=5)} and segment ids up to 2": (ids, ids % 3),
        "B=2, T=2, after an input of 5 tokens": (ids[:, :2], ids[:, :2] % 3),
    }.items():
        case = f"{words}, in eval mode"
        expectations.close(mine(*given), theirs(*given), what="the vectors", case=case)
    mine, theirs = embeddings_pair(student, reference, draw, 9, 8, 1030)
    ids = draw.integers(0, 9, 1, 1030)
    case = "1030 tokens where max_length is 1030"
    expectations.close(mine(ids), theirs(ids), what="the vectors", case=case)


@aspect
@promises("too-long")
@exercise("BertEmbeddings")
def test_embeddings_refusals(student, draw):
    """An input longer than max_length is refused with a ValueError, one of that length is not."""
    mine = student.module("BertEmbeddings", vocab_size=9, d_model=4, max_length=3)
    expectations.shape(mine(draw.integers(0, 9, 2, 3)), (2, 3, 4), what="the vectors")
    refuses(mine, {"4 tokens where max_length is 3": (draw.integers(0, 9, 2, 4),)})
    mine = student.module("BertEmbeddings", vocab_size=9, d_model=2, max_length=17)
    ids = draw.integers(0, 9, 1, 23)
    refused_naming(lambda: mine(ids), "23 tokens where max_length is 17", "23", "17")


@hidden
@exercise("BertEmbeddings")
def test_embeddings_dropout(student, reference, draw):
    """dropout acts after the norm, in train mode only."""
    mine = embeddings_pair(student, reference, draw, 9, 16, 8, dropout=0.4)[0]
    ids = draw.integers(0, 9, 4, 8)
    kept = expectations.tensor(mine(ids), what="the vectors")
    expectations.finite(kept, what="the vectors", case="eval mode")
    value = mine.train()(ids)
    dropped(value, kept, 0.4, "the vectors", axes=EACH_ENTRY)


@hidden
@exercise("BertEmbeddings")
def test_embeddings_gradients(student, reference, draw):
    """Vectors of small deviation (eps is 1e-12), float64, gradients of every table, PAD's row too.

    The id tensor is a strided one.
    """
    state = embeddings_state(draw, 6, 4, 5)
    for name in ("token", "position", "segment"):
        state[f"{name}.weight"] = 1e-3 * state[f"{name}.weight"]
    options = {"vocab_size": 6, "d_model": 4, "max_length": 5}
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
    options = {"d_model": width, "num_heads": heads, **more}
    return pair(student, reference, "SelfAttention", attention_state(draw, width), dtype, **options)


@promises("layers", "order-of-features", "scaled")
@exercise("SelfAttention", 2)
def test_attention_values(student, reference, draw):
    """Without a mask every position attends to all, in each head; in train mode too."""
    for batch, length, width, heads in [(1, 1, 2, 1), (1, 3, 4, 2), (2, 3, 3, 3), (2, 4, 6, 3)]:
        mine, theirs = attention_pair(student, reference, draw, width, heads)
        x = draw.normal(batch, length, width)
        case = f"{sizes(B=batch, T=length, D=width, H=heads)} without a mask"
        expectations.close(mine.train()(x), theirs(x), what="the output", case=case)
    x = x.index_fill(1, torch.tensor(1), 0.0)
    case = "a vector of zeros and no mask: it is a key like the others"
    expectations.close(mine(x), theirs(x), what="the output", case=case)


@promises("masked-keys")
@exercise("SelfAttention", 2)
def test_attention_masks(student, reference, draw):
    """A mask (B, T) hides keys from every query and head; padded queries get outputs too."""
    mine, theirs = attention_pair(student, reference, draw, 4, 2, dropout=0.3)
    for batch, mask in [(1, real([2], 3)), (3, real([5, 1, 3])), (3, real([3, 1, 2]))]:
        x = draw.normal(*mask.shape, 4)
        case = f"{sizes(B=batch, T=mask.shape[1], D=4, H=2)}, mask {mask.int().tolist()}, eval mode"
        expectations.close(mine(x, mask), theirs(x, mask), what="the output", case=case)
    case = f"{sizes(B=3, T=3, D=4, H=2)} without a mask, after a call with one, eval mode"
    expectations.close(mine(x), theirs(x), what="the output", case=case)


@hidden
@exercise("SelfAttention")
def test_attention_low_scores(student, reference, draw):
    """A hidden key gets the weight 0, however low the scores of the real ones are."""
    state = {name: torch.zeros_like(value) for name, value in attention_state(draw, 4).items()}
    for name in ("k_proj", "v_proj", "out_proj"):
        state[f"{name}.weight"] = torch.eye(4)
    state["v_proj.weight"][0, 0] = 0.0
    state["q_proj.bias"][0] = -1024.0
    options = {"d_model": 4, "num_heads": 1}
    mine, theirs = pair(student, reference, "SelfAttention", state, **options)
    others, mask = draw.normal(2, 4, 3), real([2, 3], 4)
    for seen, unseen in [(-2.0, -1.0), (-32768.0, 0.0), (-1048576.0, 0.0)]:
        x = torch.cat([torch.where(mask, seen, unseen).unsqueeze(2) / -512, others], dim=2)
        case = f"scores of {seen:g} at real keys and of {unseen:g} at padding"
        expectations.close(mine(x, mask), theirs(x, mask), what="the output", case=case)


@promises("heads-divide")
@exercise("SelfAttention")
def test_attention_refuses(student):
    """A width that the number of heads does not divide is refused with a ValueError."""
    refuses(
        lambda width, heads: student.module("SelfAttention", d_model=width, num_heads=heads),
        {"d_model=6 with 4 heads": (6, 4), "d_model=4 with 3 heads": (4, 3)},
    )


@hidden
@promises("dropout-on-weights")
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
    options = {"d_model": width, "num_heads": heads, "dropout": p}
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
    axes = ("two examples", "two queries", "two heads", "two keys")
    dropped(used, want.reshape(shown)[:, :, :, 0], p, "the weights", axes=axes)


@hidden
@promises("dtype-kept")
@exercise("SelfAttention")
def test_attention_gradients(student, reference, draw):
    """Gradients reach x and every parameter; strided float64 input; nothing changes in place."""
    mine, theirs = attention_pair(student, reference, draw, 6, 2, torch.float64)
    x, mask = draw.normal(2, 6, 4).double().mT, real([2, 3], 4)
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
    return {"d_model": width, "num_heads": heads, "d_ff": inner, **more}


def own_norm(x, state, name):
    """nn.LayerNorm as the chapter has it."""
    given = (state[f"{name}.{each}"].to(x.dtype) for each in ("weight", "bias"))
    return torch.nn.functional.layer_norm(x, x.shape[-1:], *given, eps=1e-12)


def layer_by_parts(parts, mine, state, options, x, mask):
    """A layer put together from the student's attention and gelu."""
    given = {name: options[name] for name in ("d_model", "num_heads")}
    own = within(state, "attention.")
    attention = parts.make("SelfAttention", state=own, dtype=x.dtype, **given)
    x = own_norm(x + attention(x, mask), state, "attention_norm")
    inner = alive(parts.proxy.gelu(parts.of(mine, "w_1")(x)))
    return own_norm(x + parts.of(mine, "w_2")(inner), state, "output_norm")


def same_layer(student, reference, draw, options, cases, train=False):
    """A layer is right on each case: words -> x, mask."""
    state = layer_state(draw, options["d_model"], options["d_ff"])
    mine, theirs = pair(student, reference, "BertLayer", state, **options)
    for case, given in cases.items():
        got = (mine.train() if train else mine)(*given)
        want = theirs(*given)
        x, mask = given if len(given) == 2 else (*given, None)

        def own(parts, x=x, mask=mask):
            return layer_by_parts(parts, mine, state, options, x, mask)

        same_by_parts(student, got, want, own, "the output", case=case)


@promises("formula", "submodules")
@exercise("BertLayer", 2)
def test_layer_values(student, reference, draw):
    """Attention, then w_1, gelu and w_2, each added to what came in and followed by its norm."""
    cases = {
        "one vector": (draw.normal(1, 1, 6),),
        "B=2, T=3 without a mask, dropout=0 in train mode": (draw.normal(2, 3, 6),),
    }
    same_layer(student, reference, draw, layer_options(6, 3, 5), cases, train=True)


@promises("mask")
@exercise("BertLayer")
def test_layer_masks(student, reference, draw):
    """The mask reaches the attention; dropout does nothing in eval mode."""
    cases = {
        "B=2, T=4, lengths 4 and 2, dropout=0.4 in eval mode": (draw.normal(2, 4, 4), real([4, 2])),
        "B=1, T=3, length 1, dropout=0.4 in eval mode": (draw.normal(1, 3, 4), real([1], 3)),
        "B=1, T=3, no mask, after calls with masks": (draw.normal(1, 3, 4),),
    }
    same_layer(student, reference, draw, layer_options(4, 2, 7, dropout=0.4), cases)


@promises("formula")
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
@promises("dropout")
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
        dropped_apart(gone, P, EACH_ENTRY)
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
        lambda parts: layer_by_parts(parts, mine, state, options, x, mask),
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
        lambda parts: layer_by_parts(parts, mine, state, options, x, None),
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
    given = layer_options(options["d_model"], options["num_heads"], options["d_ff"])
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


@promises("hidden-and-pooled")
@exercise("BertModel", 2)
def test_model_values(student, reference, draw):
    """Embeddings, then every layer in turn; the pooled vector is the tanh of pooler at [CLS]."""
    ids, segments, _ = inputs(draw, [4, 4])
    zeros = ids.clone()
    zeros[0, 2] = zeros[1, 1] = PAD
    cases = {
        "B=2, T=4, ids of 0 among them and no mask: all are real": (zeros,),
        "one token": (ids[:1, :1],),
        "B=2, T=4, two layers, dropout=0 in train mode": (ids,),
        "B=2, T=4, two layers and segment ids": (ids, segments),
    }
    same_model(student, reference, draw, bert_options(layers=2), cases, train=True)


@promises("mask")
@exercise("BertModel")
def test_model_masks(student, reference, draw):
    """The mask reaches every layer; dropout does nothing in eval mode."""
    options = bert_options(layers=2, heads=3, dropout=0.3, type_vocab_size=3)
    cases = {
        "B=3, T=5, lengths 5, 2 and 3, in eval mode": inputs(draw, [5, 2, 3], segments=3),
        "B=1, T=4, length 3, in eval mode": inputs(draw, [3], 4, segments=3),
    }
    ids, segments, mask = inputs(draw, [4, 3], segments=3)
    ids[0, 1] = PAD
    cases["B=2, T=4, an id of 0 where the mask is True"] = ids, segments, mask
    cases["B=2, T=4, lengths 4 and 3, no segment ids"] = ids, None, mask
    cases["B=2, T=4, no mask, after calls with masks"] = ids, segments
    same_model(student, reference, draw, options, cases)


@exercise("BertModel")
def test_model_parameters(student):
    """Embeddings, as many layers as asked for, and a pooler, each with parameters of its own."""
    width = 4
    given = {"vocab_size": 7, "d_model": width, "num_layers": 3, "num_heads": 2, "d_ff": 5}
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
@hidden
@exercise("BertModel")
def test_model_defaults(student):
    """Unless told otherwise it has BERT-base's sizes: 768 wide, 12 layers, 12 heads, d_ff 3072."""
    same_default_sizes(student, "BertModel")


@aspect
@exercise("BertModel")
def test_model_initial(student):
    """Weights begin as BERT's do: deviation 0.02, biases 0, norms that do nothing yet."""
    given = {"vocab_size": 50, "d_model": 32, "num_layers": 2, "num_heads": 2, "d_ff": 40}
    state = student.module("BertModel", **given).state()
    drawn = {"the tables": []}
    for name, value in state.items():
        if name.endswith("norm.weight"):
            expectations.close(value, torch.ones_like(value), what=f"{name} of a new model")
        elif name.endswith("bias"):
            expectations.close(value, torch.zeros_like(value), what=f"{name} of a new model")
        else:
            drawn.setdefault("the tables" if "embeddings" in name else name, []).append(
                value.flatten()
            )
            expectations.true(
                bool((value != 0).any(dim=-1).all()),
                f"A row of {name} begins with zeros; init_weights draws every row.",
            )
    one, other = (state.get(f"layers.{number}.w_1.weight") for number in range(2))
    expectations.true(
        one is None or other is None or not torch.equal(one, other),
        "Two layers begin with the same numbers; draw those of each for itself.",
    )
    for words, values in drawn.items():
        expectations.true(bool(values), "A new model has no tables.")
        got = float(torch.cat(values).double().std())
        # Of a thousand values or more; one fifth is nine times what chance does to it.
        expectations.true(
            0.016 < got < 0.024,
            f"The entries of {words} of a new model deviate by {got:.3g}; apply init_weights, "
            "which makes it 0.02.",
        )


@aspect
@hidden
@promises("dropout")
@exercise("BertModel")
def test_model_dropout(student, draw):
    """dropout, 0.1 unless told otherwise, reaches the embeddings and the layers."""
    options = bert_options(width=32, layers=1, inner=8)
    state = bert_state(draw, options)
    ids = draw.integers(SPECIAL, 9, 1, 8).expand(2, 8)
    plain = {name: value for name, value in options.items() if name != "dropout"}

    def made(**more):
        return student.module("BertModel", state=state, **plain, **more).train()

    rows_differ(made(dropout=0.5).method("embeddings", ids), "the result of embeddings", p=0.5)
    # Embeddings that are 0 whatever is dropped: what differs now differs by the layers.
    zeros = torch.zeros(32)
    state = {**state, "embeddings.norm.weight": zeros, "embeddings.norm.bias": zeros}
    got = expectations.items(made(dropout=0.5)(ids), 2, what=f"the result ({', '.join(BOTH)})")
    rows_differ(got[0], "what the layers return at dropout=0.5")
    # A layer that gives the bias of its norm whatever is dropped: what differs now differs by more.
    inside = [name for name in state if name.startswith("layers.") and "norm" not in name]
    state = state | {name: torch.zeros_like(state[name]) for name in inside}
    got = expectations.items(made(dropout=0.5)(ids), 2, what=f"the result ({', '.join(BOTH)})")
    for words, value, shape in zip(BOTH, got, [(2, 8, 32), (2, 32)], strict=True):
        expectations.shape(value, shape, what=f"the {words}")
        expectations.true(
            bool((value[0] - value[1]).abs().max() < 1e-5),
            f"In train mode with dropout=0.5 something is dropped from the {words} after the last "
            "layer; there is no dropout there.",
        )
    state = {**state, "embeddings.norm.weight": torch.ones(32)}
    rows_differ(made().method("embeddings", ids), "the result of embeddings, dropout not given,")


@hidden
@promises("submodules")
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
        return  # It is parts that decide what reaches real positions.
    change = (after[0] - before[0]).abs().amax(-1) > 1e-9
    expectations.true(
        not bool(change[given[2]].any()) and not bool((after[1] - before[1]).abs().max() > 1e-9),
        "Other tokens at the masked positions change what stands at real ones; the mask must reach "
        "every layer.",
    )


# --------------------------------------------------------------------------------------------
# count_parameters
# --------------------------------------------------------------------------------------------


def same_count(student, want, case, **given):
    expectations.equal(student.count_parameters(**given), want, what="the number", case=case)


LARGE = {"d_model": 1024, "num_layers": 24, "d_ff": 4096}


@promises("an-int")
@exercise("count_parameters", 2)
def test_count_published(student):
    """BERT-base has 109,482,240 parameters, BERT-large 335,141,888."""
    same_count(student, 109_482_240, "BERT-base")
    same_count(student, 335_141_888, "BERT-large", **LARGE)


@promises("heads")
@exercise("count_parameters", 2)
def test_count_heads(student):
    """With the heads of pre-training they have 110,106,428 and 336,226,108."""
    same_count(student, 110_106_428, "BERT-base with heads=True", heads=True)
    same_count(student, 336_226_108, "BERT-large with heads=True", heads=True, **LARGE)


@promises("biases-and-norms")
@exercise("count_parameters")
def test_count_small(student, reference):
    """Any sizes: each of them counts where it should."""
    for vocabulary, width, layers, inner, length, segments in [
        (1009, 37, 3, 101, 29, 5),
        (10, 4, 1, 8, 6, 2),
        (9, 5, 2, 7, 3, 2),
        (11, 64, 1, 64, 5, 2),
        (7, 64, 2, 96, 12, 1),
        (20, 128, 3, 40, 6, 4),
    ]:
        given = {
            "vocab_size": vocabulary,
            "d_model": width,
            "num_layers": layers,
            "d_ff": inner,
            "max_length": length,
            "type_vocab_size": segments,
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
        "RoBERTa-base": {"vocab_size": 50265, "max_length": 514, "type_vocab_size": 1},
        "BERT-mini": {"d_model": 256, "num_layers": 4, "d_ff": 1024},
        "BERT-tiny with heads": {
            "d_model": 128,
            "num_layers": 2,
            "d_ff": 512,
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


@promises("names", "same-tensors")
@exercise("rename_parameters", 2)
def test_rename_model(student, reference, draw):
    """The names of a plain model: embeddings, layers, pooler."""
    same_names(student, reference, checkpoint(draw, ()), "embeddings and pooler")
    same_names(student, reference, checkpoint(draw, (0, 1)), "a model of two layers")


@promises("names", "prefix")
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


@promises("left-out")
@exercise("rename_parameters")
def test_rename_left_out(student, reference, draw):
    """The tied table and the position ids are left out, whatever stands before them."""
    decoder = ["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"]
    for prefix, more in [
        ("", ["embeddings.position_ids"]),
        ("bert.", ["bert.embeddings.position_ids", *decoder]),
        ("bert.", ["bert.encoder.position_ids", "position_ids"]),
    ]:
        state = checkpoint(draw, (), prefix, more=more)
        same_names(student, reference, state, f"a checkpoint with {', '.join(more)}")


@promises("unknown-name")
@exercise("rename_parameters")
def test_rename_unknown(student, reference, draw):
    """Any other name is refused with a ValueError that says which."""
    same_names(student, reference, checkpoint(draw, ()), "embeddings and pooler")
    for name in [
        "encoder.layer.0.attention.self.distance_embedding.weight",
        "lm_head.weight",
        "pooler.dense.running_mean",
        "encoder.layer.0.crossattention.output.dense.weight",
        "bert.encoder.layer.0.output.adapter.weight",
        "embeddings.word_embeddings.base.weight",
    ]:
        state = checkpoint(draw, more=[name])
        refused_naming(
            lambda given=state: student.rename_parameters(given), f"a tensor called {name}", name
        )


@hidden
@promises("gamma-and-beta")
@exercise("rename_parameters")
def test_rename_old(student, reference, draw):
    """gamma and beta of old checkpoints become weight and bias, in the head too."""
    norm = "cls.predictions.transform.LayerNorm"
    more = [f"{norm}.gamma", f"{norm}.beta"]
    state = checkpoint(draw, (0,), "bert.", old=True, more=more)
    same_names(student, reference, state, "an old checkpoint with gamma and beta")


@hidden
@promises("same-tensors")
@exercise("rename_parameters")
def test_rename_layers(student, reference, draw):
    """Layers of two digits, any shape and dtype, the same tensors; the given dict stays."""
    decoder, ids = "cls.predictions.decoder.weight", "bert.embeddings.position_ids"
    state = checkpoint(draw, (1, 9, 10, 11, 21), "bert.", more=[decoder, ids])
    state["bert.pooler.dense.weight"] = draw.normal(3, 2).double()
    state["bert.pooler.dense.bias"] = draw.normal(3).to(torch.float16)
    same_names(student, reference, state, "bert. and layers 1, 9, 10, 11 and 21")
    seen = student.observe("rename_parameters", state)
    expectations.true(isinstance(seen.value, dict), "the result should be a dict.")
    expectations.unchanged(seen)
    lost = [
        label
        for label, got in seen.grads.items()
        if got is None and not label.endswith((decoder, ids))
    ]
    expectations.true(
        not lost,
        f"The result should hold the same tensors, but for {', '.join(lost[:2])} there is another "
        "one, without a history.",
    )
