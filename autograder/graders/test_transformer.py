"""Graders of the chapter `transformer`: a plain pytest file, one group of tests for each exercise.

Tests reach the code to judge through `student` only. Inside a test the cases run from the smallest
to the largest, so that the first failure is the smallest one.

Layers are made of earlier exercises. What one answers is compared with the reference; where the two
differ, the student's own parts are asked aside, put together as the exercise says. A layer that
does right by its parts earns its points, whatever became of the parts (`same_by_parts`).

Random answers are never compared value by value. Every statistical bound has a false-alarm rate
of at most 1e-9.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from autograder.graders.common import (
    State,
    attention_state,
    labels,
    linear,
    pair,
    refuses,
    rows_differ,
    same_gradients,
    same_number,
    same_results,
    sizes,
    within,
)
from autograder.graders.parts import Parts, alive, flows, same_by_parts, same_flow
from autograder.judging import expectations
from autograder.judging.grader_marks import Mistake, aspect, exercise, hidden
from autograder.judging.proxy import StudentError, Todo

# --------------------------------------------------------------------------------------------
# What the tests share
# --------------------------------------------------------------------------------------------

PAD, BOS, EOS, UNK = 0, 1, 2, 3


def ffn_state(draw, width, inner, prefix="") -> State:
    return linear(draw, f"{prefix}w_1", inner, width) | linear(draw, f"{prefix}w_2", width, inner)


def norm_state(draw, width, prefix="") -> State:
    return {
        f"{prefix}gamma": 1.0 + draw.normal(width, scale=0.4),
        f"{prefix}beta": draw.normal(width, scale=0.5),
    }


ENCODER, DECODER = ("self_attn",), ("self_attn", "src_attn")


def layer_state(draw, attentions, width, inner, prefix="") -> State:
    state = {}
    for name in attentions:
        state |= attention_state(draw, width, f"{prefix}{name}.")
    state |= ffn_state(draw, width, inner, f"{prefix}feed_forward.")
    for place in range(len(attentions) + 1):
        state |= norm_state(draw, width, f"{prefix}sublayer.{place}.norm.")
    return state


def stack_state(draw, attentions, layers, width, inner, norm_first=False, prefix="") -> State:
    state = {}
    for number in range(layers):
        state |= layer_state(draw, attentions, width, inner, f"{prefix}layers.{number}.")
    return state | (norm_state(draw, width, f"{prefix}norm.") if norm_first else {})


def model_state(draw, sources, targets, layers, width, inner, norm_first=False) -> State:
    return {
        "src_embed.lut.weight": draw.normal(sources, width, scale=width**-0.5),
        "tgt_embed.lut.weight": draw.normal(targets, width, scale=width**-0.5),
        **stack_state(draw, ENCODER, layers, width, inner, norm_first, "encoder."),
        **stack_state(draw, DECODER, layers, width, inner, norm_first, "decoder."),
        **linear(draw, "generator.proj", targets, width),
    }


# What a connection may do with x, the sub-layer and the norm; the first two are right.
CONNECTIONS: tuple[Callable, ...] = (
    lambda x, sublayer, norm: norm(x + sublayer(x)),
    lambda x, sublayer, norm: x + sublayer(norm(x)),
    lambda x, sublayer, norm: x + norm(sublayer(x)),
    lambda x, sublayer, norm: norm(x) + sublayer(norm(x)),
    lambda x, sublayer, norm: norm(sublayer(x)),
    lambda x, sublayer, norm: sublayer(norm(x)),
    lambda x, sublayer, norm: x + sublayer(x),
    lambda x, sublayer, norm: norm(x + sublayer(norm(x))),
)


def own_connection(parts, width, norm_first) -> Callable:
    """The one of CONNECTIONS that the student's own SublayerConnection is."""
    wave = torch.arange(2.0 * width).reshape(1, 2, width)
    x, one, two = (torch.sin(wave + 1), torch.cos(wave[0, 0]), torch.cos(wave[0, 1]))
    try:
        mine = parts.proxy.module(
            "SublayerConnection",
            state={"norm.gamma": one, "norm.beta": two},
            d_model=width,
            norm_first=norm_first,
        )
        sublayer = parts.proxy.module(
            "LayerNorm", state={"gamma": two, "beta": one}, features=width
        )
        got = expectations.tensor(alive(mine(x, sublayer)), what="a part")
        norm = parts.of(mine, "norm")
        for connection in CONNECTIONS:
            if expectations.close_enough(got, connection(x, sublayer, norm)):
                return connection
    except (Mistake, StudentError, Todo):
        pass
    return CONNECTIONS[norm_first]


def as_loaded(parts, mine, state) -> State:
    """The parameters of a module; not those given where the student's clones share theirs."""
    copies = parts.proxy.module("clones", module=parts.proxy.module("LayerNorm", features=1), n=2)
    if len(copies.parameters()) == 4:
        return state
    return parts.aside(mine).state()


def layer_by_parts(parts, mine, state, norm_first, x, mask, memory=None, src_mask=None):
    """An encoder layer, or with `memory` a decoder layer, put together from the student's parts."""
    width = x.shape[-1]
    state = as_loaded(parts, mine, state)
    connect = own_connection(parts, width, norm_first)
    attend, look = parts.of(mine, "self_attn"), parts.of(mine, "src_attn")
    sublayers = [lambda x: attend(x, x, x, mask)]
    if memory is not None:
        sublayers.append(lambda x: look(x, memory, memory, src_mask))
    for place, sublayer in enumerate([*sublayers, parts.of(mine, "feed_forward")]):
        norm = within(state, f"sublayer.{place}.norm.")
        norm = parts.make("LayerNorm", state=norm, features=width, dtype=x.dtype)
        x = connect(x, sublayer, norm)
    return x


def stack_by_parts(parts, mine, state, name, norm_first, x, *given, **options):
    """A stack of two of the student's layers, each on what the one before returned."""
    state = as_loaded(parts, mine, state)
    for number in range(2):
        layer = parts.make(
            name,
            state=within(state, f"layers.{number}."),
            dtype=x.dtype,
            norm_first=norm_first,
            **options,
        )
        x = layer(x, *given)
    return parts.of(mine, "norm")(x) if norm_first else x


# Dropout in a layer: everything is set to constants, so that each sub-layer adds ones to a part of
# the features that no other sub-layer writes to. In train mode these parts show what was dropped.

P = 0.5
SEEN_KEYS, INNER = 10, 12


def dropout_state(attentions, width) -> State:
    """The parameters of such a layer, and which features each sub-layer writes to."""
    count = len(attentions) + 1
    share = width // count
    state: State = {}
    for place, name in enumerate([*attentions, "feed_forward"]):
        out = torch.zeros(width, width)
        out[place * share : (place + 1) * share] = 1.0
        if name == "feed_forward":
            state |= {
                "feed_forward.w_1.weight": torch.zeros(INNER, width),
                "feed_forward.w_1.bias": torch.ones(INNER),
                "feed_forward.w_2.weight": out[:, :1].expand(width, INNER) / INNER,
                "feed_forward.w_2.bias": torch.zeros(width),
            }
        else:
            for part in ("q_proj", "k_proj", "v_proj"):
                state[f"{name}.{part}.weight"] = torch.zeros(width, width)
                state[f"{name}.{part}.bias"] = torch.ones(width)
            state[f"{name}.out_proj.weight"] = torch.eye(width) * out
            state[f"{name}.out_proj.bias"] = torch.zeros(width)
        state[f"sublayer.{place}.norm.gamma"] = torch.ones(width)
        state[f"sublayer.{place}.norm.beta"] = torch.zeros(width)
    return state


def dropout_acts(added, places):
    """What each sub-layer has added, features last: dropped in the connection and inside."""
    for (name, inside, terms), part in zip(
        places, added.tensor_split(len(places), dim=-1), strict=True
    ):
        gone = part.abs() < 1e-4
        expectations.rate(
            int(gone.sum()),
            gone.numel(),
            P + (1 - P) * P**terms,
            what=f"in train mode at dropout=0.5, the share of zeros in what {name} adds",
            false_alarm=2e-10,
        )
        left = part[~gone]
        expectations.true(
            bool((left - left[0]).abs().max() > 1e-3),
            f"In train mode with dropout=0.5 nothing is dropped {inside}; pass dropout on to it.",
        )


# --------------------------------------------------------------------------------------------
# Embeddings
# --------------------------------------------------------------------------------------------


@exercise("Embeddings", 2)
def test_embeddings_values(student, reference, draw):
    """Each id becomes its row of the table times sqrt(d_model)."""
    for batch, length, size, width in [(1, 2, 1, 1), (2, 4, 5, 6)]:
        state = {"lut.weight": draw.normal(size, width)}
        options = {"vocab_size": size, "d_model": width}
        mine, theirs = pair(student, reference, "Embeddings", state, **options)
        ids = draw.integers(0, size, batch, length)
        case = sizes(B=batch, T=length, V=size, D=width)
        expectations.close(mine(ids), theirs(ids), what="the vectors", case=case)


@aspect
@exercise("Embeddings")
def test_embeddings_initial(student, draw):
    """The table is drawn from a normal distribution of variance 1/D: scaled, entries have 1."""
    mine = student.module("Embeddings", vocab_size=160, d_model=16)
    vectors = expectations.tensor(mine(torch.arange(160).reshape(8, 20)), what="the vectors")
    expectations.shape(vectors, (8, 20, 16), what="the vectors")
    standard_normal(vectors, "the entries of the vectors, scaled")


@exercise("Embeddings")
def test_embeddings_refusals(student):
    """A vocabulary or a width below 1 is refused with a ValueError."""
    refuses(
        lambda size, width: student.module("Embeddings", vocab_size=size, d_model=width),
        {"vocab_size=0": (0, 4), "d_model=0": (4, 0), "d_model=-1": (4, -1)},
    )


@hidden
@exercise("Embeddings")
def test_embeddings_gradients(student, reference, draw):
    """Every id that occurs has its row trained, PAD too; float64 stays; a step moves the table."""
    state = {"lut.weight": draw.normal(6, 3)}
    mine, theirs = pair(
        student, reference, "Embeddings", state, torch.float64, vocab_size=6, d_model=3
    )
    ids = torch.tensor([[PAD, 4, 2], [4, PAD, 5]])
    seen, wanted = mine.train().observe(ids), theirs.observe(ids)
    expectations.close(seen.value, wanted.value, what="the vectors", case="float64")
    same_gradients(seen, wanted, labels(state))
    expectations.unchanged(seen)


def drawn_as_embeddings(student, table, words):
    """A table times sqrt(D) is standard normal, or else no table of the student's Embeddings is."""
    size, width = table.shape
    try:
        standard_normal(math.sqrt(width) * table, words)
    except Mistake as mistake:
        try:
            made = Parts(student).proxy.module("Embeddings", vocab_size=size, d_model=width)
            standard_normal(math.sqrt(width) * made.state()["lut.weight"], words)
        except Mistake:
            return
        except (StudentError, Todo, KeyError):
            pass
        raise mistake


def standard_normal(values, words):
    """Many values have mean 0 and variance 1, and lie as a normal distribution has it."""
    values = values.double().flatten()
    count = values.numel()
    mean, variance = float(values.mean()), float((values**2).mean())
    # Laurent and Massart's bounds on the tails of chi squared, each of 5e-10.
    rare = math.log(2e9)
    low, high = 1 - 2 * math.sqrt(rare / count), 1 + 2 * math.sqrt(rare / count) + 2 * rare / count
    expectations.true(
        low <= variance <= high,
        f"The variance of {words} should be 1, but is {variance:.3g} over {count} values.",
    )
    expectations.true(
        abs(mean) <= math.sqrt(2 * rare / count),
        f"The mean of {words} should be 0, but is {mean:.3g} over {count} values.",
    )
    inside = math.erf(math.sqrt(0.5))
    expectations.rate(
        int((values.abs() < 1).sum()), count, inside, what=f"the share of {words} within (-1, 1)"
    )


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


@exercise("MultiHeadAttention", 2)
def test_attention_values(student, reference, draw):
    """Without a mask: project, split into heads, attend, merge, project; in train mode too."""
    for batch, queries, keys, width, heads in [(1, 1, 1, 2, 1), (1, 2, 3, 4, 2), (2, 4, 5, 6, 3)]:
        mine, theirs = attention_pair(student, reference, draw, width, heads)
        inputs = attention_inputs(draw, batch, queries, keys, width)
        case = f"{sizes(B=batch, Tq=queries, Tk=keys, D=width, H=heads)} without a mask"
        expectations.close(mine.train()(*inputs), theirs(*inputs), what="the output", case=case)


@exercise("MultiHeadAttention", 2)
def test_attention_masks(student, reference, draw):
    """Masks for all examples, for each example, and for keys only hold for every head."""
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


@exercise("MultiHeadAttention")
def test_attention_stages(student, reference, draw):
    """project makes keys and values by heads, and attend takes them from anywhere."""
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


@exercise("MultiHeadAttention")
def test_attention_refuses(student):
    """A d_model that the number of heads does not divide is refused with a ValueError."""
    refuses(
        lambda width, heads: student.module("MultiHeadAttention", d_model=width, num_heads=heads),
        {"d_model=6 with 4 heads": (6, 4), "d_model=4 with 3 heads": (4, 3)},
    )


@hidden
@exercise("MultiHeadAttention")
def test_attention_dropout(student, reference, draw):
    """In train mode each weight is dropped with probability p, the others divided by 1 - p."""
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
        mine(query, key, value), want, what="the output", case=f"dropout={p} in eval mode"
    )
    output = expectations.tensor(mine.train()(query, key, value), what="the output")
    expectations.shape(output, (8, 12, width), what="the output")
    shown = (8, 12, heads, 2, keys)
    used, copy = output.reshape(shown).transpose(1, 2).unbind(dim=3)  # (8, heads, 12, keys)
    weights = want.reshape(shown).transpose(1, 2)[:, :, :, 0]
    expectations.close(
        copy,
        used,
        what="the second half of each head's output",
        case="values that are given twice (drop weights, not outputs)",
        misconception="attention_dropout_on_output",
    )
    gone = used.abs() < 1e-9
    expectations.rate(
        int(gone.sum()),
        gone.numel(),
        p,
        what=f"the share of weights that are dropped at p={p}",
        false_alarm=5e-10,
    )
    expectations.rate(
        int((gone[:, 0] == gone[:, 1]).sum()),
        gone[:, 0].numel(),
        p**2 + (1 - p) ** 2,
        what=f"how often the decisions for two heads agree at p={p}",
        false_alarm=5e-10,
    )
    expectations.close(
        used[~gone],
        weights[~gone] / (1 - p),
        what="the surviving weights",
        case=f"dropout={p} in train mode",
    )


@hidden
@exercise("MultiHeadAttention")
def test_attention_gradients(student, reference, draw):
    """Gradients reach inputs and parameters; strided float64 inputs; nothing changes in place."""
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
    """Scores in the thousands overflow nothing, and one head is as good as many."""
    mine, theirs = attention_pair(student, reference, draw, 4, 1, torch.float64)
    query, key, value = (each.double() for each in attention_inputs(draw, 1, 3, 3, 4))
    given = 60 * query, 60 * key, value
    case = "inputs times 60, one head"
    expectations.close(mine(*given), theirs(*given), what="the output", case=case)


# --------------------------------------------------------------------------------------------
# pad_mask, subsequent_mask, make_std_mask
# --------------------------------------------------------------------------------------------


def padded(draw, lengths, longest=None, high=9):
    """Rows of random ids, BOS first, with PAD behind as many as `lengths` says."""
    ids = draw.integers(UNK + 1, high, len(lengths), longest or max(lengths))
    ids[:, 0] = BOS
    return ids.masked_fill(torch.arange(ids.shape[1]) >= torch.tensor(lengths).unsqueeze(1), PAD)


@exercise("pad_mask")
def test_pad_mask_values(student, reference, draw):
    """True where a real token stands, with an axis for the queries: (B, 1, T)."""
    for lengths in ([1], [2, 4, 1]):
        ids = padded(draw, lengths)
        case = f"ids {ids.tolist()}"
        expectations.close(
            student.pad_mask(ids), reference.pad_mask(ids), what="the mask", case=case
        )


@exercise("pad_mask")
def test_pad_mask_anywhere(student, reference, draw):
    """Padding is found by its id, wherever it stands; EOS and UNK are real tokens."""
    ids = torch.tensor([[PAD, BOS, 7, PAD, EOS], [UNK, 8, PAD, PAD, 5]])
    case = f"ids {ids.tolist()}"
    expectations.close(student.pad_mask(ids), reference.pad_mask(ids), what="the mask", case=case)


@hidden
@exercise("pad_mask")
def test_pad_mask_other_id(student, reference, draw):
    """`pad` says which id is padding; 0 is then an id like any other."""
    ids = draw.integers(0, 4, 2, 6)
    ids[0, :2] = torch.tensor([0, 3])
    case = f"ids {ids.tolist()} and pad=3"
    got, want = student.pad_mask(ids, pad=3), reference.pad_mask(ids, pad=3)
    expectations.close(got, want, what="the mask", case=case)


@hidden
@exercise("pad_mask")
def test_pad_mask_leaves_ids(student, reference, draw):
    """The ids are left as they are, also where they are strided; long rows work."""
    ids = draw.integers(0, 3, 30, 4).T
    seen = student.observe("pad_mask", ids, grad=False)
    case = "4 rows of 30 ids"
    expectations.close(seen.value, reference.pad_mask(ids), what="the mask", case=case)
    expectations.unchanged(seen)


@aspect
@exercise("subsequent_mask")
def test_subsequent_one(student, reference):
    """A single position attends to itself."""
    expectations.close(
        student.subsequent_mask(1), reference.subsequent_mask(1), what="the mask", case="size=1"
    )


@exercise("subsequent_mask")
def test_subsequent_values(student, reference):
    """Position i attends to positions 0 to i: a triangle with its diagonal."""
    for size in (2, 5):
        got, want = student.subsequent_mask(size), reference.subsequent_mask(size)
        expectations.close(got, want, what="the mask", case=f"size={size}")


@exercise("subsequent_mask")
def test_subsequent_refusals(student):
    """A size below 1 is refused with a ValueError."""
    refuses(student.subsequent_mask, {"size=0": (0,), "size=-1": (-1,)})


@hidden
@exercise("subsequent_mask")
def test_subsequent_counts(student):
    """Of many positions, each attends to one more than the one before."""
    got = expectations.tensor(student.subsequent_mask(70), what="the mask")
    expectations.shape(got, (1, 70, 70), what="the mask", case="size=70")
    seen = got[0].long().sum(-1)
    expectations.equal(
        seen, torch.arange(1, 71), what="how many positions each may attend to", case="size=70"
    )
    expectations.true(
        bool(got[0].diagonal().all()) and not bool(got[0].triu(1).any()),
        "For size=70 some position does not attend to itself, or attends to a later one.",
    )


def same_std_mask(student, reference, target, *pad):
    """The mask of a target, by the reference or by the student's own two masks."""

    def own(parts):
        proxy = parts.proxy
        alive(proxy.subsequent_mask(3))
        return proxy.pad_mask(target, *pad) & proxy.subsequent_mask(target.shape[1])

    case = f"target {target.tolist()}" + (f" and pad={pad[0]}" if pad else "")
    seen = student.observe("make_std_mask", target, *pad, grad=False)
    want = reference.make_std_mask(target, *pad)
    same_by_parts(student, seen.value, want, own, what="the mask", case=case)
    return seen


@exercise("make_std_mask")
def test_std_mask_without_padding(student, reference, draw):
    """Without padding the mask of each row is the triangle: (B, U, U)."""
    for lengths in ([1], [3, 3]):
        same_std_mask(student, reference, padded(draw, lengths))


@exercise("make_std_mask", 2)
def test_std_mask_with_padding(student, reference, draw):
    """Padded positions are attended to by none, later ones neither."""
    for lengths in ([2, 4], [1, 3, 2]):
        same_std_mask(student, reference, padded(draw, lengths))


@exercise("make_std_mask")
def test_std_mask_other_id(student, reference, draw):
    """`pad` says which id is padding."""
    target = torch.where(torch.tensor([True, True, False, False]), draw.integers(0, 3, 2, 4), 3)
    same_std_mask(student, reference, target, 3)


@hidden
@exercise("make_std_mask")
def test_std_mask_padding_in_front(student, reference, draw):
    """Padding in front and in between is masked as a key, and only as a key."""
    target = torch.tensor([[PAD, PAD, BOS, 5, 6], [BOS, 7, PAD, 8, EOS]])
    same_std_mask(student, reference, target)


@hidden
@exercise("make_std_mask")
def test_std_mask_leaves_target(student, reference, draw):
    """The target is left as it is; as many rows as positions are no problem."""
    target = padded(draw, [4, 2, 3, 1])
    expectations.unchanged(same_std_mask(student, reference, target))


# --------------------------------------------------------------------------------------------
# LayerNorm
# --------------------------------------------------------------------------------------------


def norm_pair(student, reference, draw, width, dtype=None, **options):
    state = norm_state(draw, width)
    return pair(student, reference, "LayerNorm", state, dtype, features=width, **options)


@exercise("LayerNorm")
def test_norm_initial(student, reference, draw):
    """At first gamma is 1 and beta is 0: every vector comes out with mean 0 and variance 1."""
    mine, theirs = pair(student, reference, "LayerNorm", features=6)
    x = draw.normal(2, 3, 6, scale=3.0)
    expectations.close(mine(x), theirs(x), what="the result", case="a new LayerNorm")
    state = mine.state()
    for name, value in (("gamma", torch.ones(6)), ("beta", torch.zeros(6))):
        expectations.true(name in state, f"There is no parameter called {name}.")
        expectations.close(state[name], value, what=f"the initial {name}")


@exercise("LayerNorm", 2)
def test_norm_values(student, reference, draw):
    """Mean and variance of each vector by itself, whatever axes there are in front."""
    mine, theirs = norm_pair(student, reference, draw, 4)
    for shape in [(4,), (3, 4), (2, 3, 4)]:
        x = draw.normal(*shape, scale=2.0) + 1.0
        expectations.close(mine(x), theirs(x), what="the result", case=f"x of shape {shape}")


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


@exercise("LayerNorm")
def test_norm_refusals(student, draw):
    """No features, and vectors of another width, are refused with a ValueError."""

    def make(features):
        return student.module("LayerNorm", features=features)

    refuses(make, {"features=0": (0,), "features=-1": (-1,)})
    refuses(
        make(4),
        {
            "x of width 3 where features is 4": (draw.normal(2, 3),),
            "x of width 1 where features is 4": (draw.normal(4, 1),),
        },
    )
    refuses(make(1), {"x of width 3 where features is 1": (draw.normal(2, 3),)})


@hidden
@exercise("LayerNorm")
def test_norm_each_alone(student, reference, draw):
    """A vector's result depends on no other vector: not on padding, not on the batch."""
    mine, theirs = norm_pair(student, reference, draw, 5, torch.float64)
    x = draw.normal(3, 4, 5).double()
    want = theirs(x)
    expectations.close(mine.train()(x), want, what="the result", case="float64 in train mode")
    other = x.clone()
    other[1:, 2:] = 100.0 * draw.normal(2, 2, 5).double()
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
    """Gradients reach x, gamma and beta; strided float64 inputs; x is left as it was."""
    mine, theirs = norm_pair(student, reference, draw, 3, torch.float64)
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


@exercise("PositionwiseFeedForward", 2)
def test_ffn_values(student, reference, draw):
    """w_2(relu(w_1(x))) at every position, for any inner width; in train mode too."""
    for batch, length, width, inner in [(1, 1, 1, 2), (1, 2, 3, 2), (2, 3, 4, 7)]:
        mine, theirs = ffn_pair(student, reference, draw, width, inner)
        x = draw.normal(batch, length, width)
        case = sizes(B=batch, T=length, D=width, F=inner)
        expectations.close(mine.train()(x), theirs(x), what="the output", case=case)


@aspect
@exercise("PositionwiseFeedForward")
def test_ffn_positions(student, draw):
    """What stands at one position changes nothing at another."""
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
        "Another vector at one position changes the output at the places "
        f"{changed.nonzero().tolist()}; it should at [[0, 1]] only.",
    )


@hidden
@exercise("PositionwiseFeedForward")
def test_ffn_dropout(student, draw):
    """Dropout acts on the inner layer, in train mode only, and divides what is left by 1 - p."""
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
    expectations.close(mine(x), x + 7.0, what="the output", case=f"dropout={p} in eval mode")
    output = expectations.tensor(mine.train()(x), what="the output")
    expectations.shape(output, x.shape, what="the output")
    gone = (output - 3.0).abs() < 1e-4
    expectations.rate(
        int(gone.sum()),
        gone.numel(),
        p,
        what=f"the share of inner values that are dropped at p={p}",
    )
    expectations.close(
        output[~gone],
        ((x + 4.0) / (1 - p) + 3.0)[~gone],
        what="the output where nothing was dropped",
        case=f"dropout={p} in train mode",
    )


@hidden
@exercise("PositionwiseFeedForward")
def test_ffn_gradients(student, reference, draw):
    """Gradients reach x and every parameter; strided float64 inputs; x is left as it was."""
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
    return pair(student, reference, "ResidualBlock", state, dtype, width=width)


@exercise("ResidualBlock", 2)
def test_block_values(student, reference, draw):
    """relu(w_2(relu(w_1(x))) + x), for one vector and for many; neither layer has a bias."""
    mine, theirs = block_pair(student, reference, draw, 4)
    for shape in [(4,), (3, 4), (2, 3, 4)]:
        x = draw.normal(*shape)
        expectations.close(mine(x), theirs(x), what="the output", case=f"x of shape {shape}")


@exercise("ResidualBlock")
def test_block_shortcut(student, draw):
    """Layers that answer 0 leave relu(x): the shortcut goes past both of them."""
    state = {"w_1.weight": draw.normal(5, 5), "w_2.weight": torch.zeros(5, 5)}
    mine = student.module("ResidualBlock", state=state, width=5)
    x = draw.normal(4, 5)
    expectations.close(mine(x), x.clamp(min=0), what="the output", case="a w_2 of zeros")


@aspect
@hidden
@exercise("ResidualBlock")
def test_block_not_negative(student, draw):
    """No entry of the output is negative, and some are 0: the outer ReLU acts on the sum."""
    state = linear(draw, "w_1", 8, 8, False) | linear(draw, "w_2", 8, 8, False)
    mine = student.module("ResidualBlock", state=state, width=8)
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
    """Gradients reach x by both ways, and both weights; x is left as it was."""
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


@exercise("SublayerConnection", 2)
def test_connection_post(student, reference, draw):
    """By default norm(x + sublayer(x)): the norm acts on the sum; in train mode too."""
    case = "norm_first not given"
    same_connection(student, reference, draw, CONNECTIONS[False], case, train=True)


@exercise("SublayerConnection", 2)
def test_connection_pre(student, reference, draw):
    """With norm_first x + sublayer(norm(x)): the shortcut is not normalised."""
    case = "norm_first=True, dropout=0.4 in eval mode"
    options = {"norm_first": True, "dropout": 0.4}
    same_connection(student, reference, draw, CONNECTIONS[True], case, **options)


@exercise("SublayerConnection")
def test_connection_any_sublayer(student, draw):
    """Any module can be the sub-layer, here one that adds something to each position."""
    sublayer = student.module("PositionalEncoding", d_model=4, max_length=6)
    x = draw.normal(2, 3, 4)
    added = expectations.tensor(sublayer(torch.zeros(1, 3, 4)), what="the code of positions")
    # With a gamma of 0 the norm answers beta, whatever it is given.
    beta = draw.normal(4)
    for norm_first, want in [(True, x + beta + added), (False, beta.expand(2, 3, 4))]:
        mine = student.module(
            "SublayerConnection",
            state={"norm.gamma": torch.zeros(4), "norm.beta": beta},
            d_model=4,
            norm_first=norm_first,
        )
        case = f"norm_first={norm_first}, a norm of gamma 0, PositionalEncoding as the sub-layer"
        expectations.close(mine(x, sublayer), want, what="the output", case=case)


@hidden
@exercise("SublayerConnection")
def test_connection_dropout(student, draw):
    """Dropout acts on what the sub-layer returns, and not on the shortcut."""
    width, p = 16, 0.3
    # The norm and the sub-layer answer beta, whatever they are given.
    ones = {"gamma": torch.zeros(width), "beta": torch.ones(width)}
    sublayer = student.module("LayerNorm", state=ones, features=width)
    state = {"norm.gamma": torch.zeros(width), "norm.beta": draw.normal(width)}
    mine = student.module(
        "SublayerConnection", state=state, d_model=width, dropout=p, norm_first=True
    )
    x = draw.normal(8, 10, width)
    output = expectations.tensor(mine.train()(x, sublayer), what="the output")
    expectations.shape(output, x.shape, what="the output")
    added = output - x
    gone = added.abs() < 1e-4
    expectations.rate(
        int(gone.sum()),
        gone.numel(),
        p,
        what=f"the share of zeros in what is added to x, norm_first=True, train mode, dropout={p}",
        false_alarm=5e-10,
    )
    expectations.close(
        added[~gone],
        torch.full_like(added[~gone], 1 / (1 - p)),
        what="what is added to x where nothing was dropped",
        case=f"a sub-layer that answers 1, dropout={p} in train mode",
    )
    # In post-norm, of x = 0, two values are left in each vector, of which the norm makes one
    # negative and one positive.
    state = {"norm.gamma": torch.ones(width), "norm.beta": torch.zeros(width)}
    mine = student.module("SublayerConnection", state=state, d_model=width, dropout=p)
    output = expectations.tensor(mine.train()(torch.zeros_like(x), sublayer), what="the output")
    expectations.shape(output, x.shape, what="the output")
    expectations.rate(
        int((output < -1e-3).sum()),
        output.numel(),
        p,
        what=f"the share of dropped entries, norm_first=False in train mode, dropout={p},",
        false_alarm=5e-10,
    )


@hidden
@exercise("SublayerConnection")
def test_connection_gradients(student, reference, draw):
    """Gradients reach x by both ways, the norm and the sub-layer; x is left as it was."""
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


# --------------------------------------------------------------------------------------------
# clones
# --------------------------------------------------------------------------------------------


def some_module(student, draw):
    """A module with parameters, the first that there is, and an input for it."""
    vectors, ids = draw.normal(2, 3), draw.integers(0, 4, 1, 5)
    for name, options, given in [
        ("Embeddings", {"vocab_size": 4, "d_model": 3}, ids),
        ("LayerNorm", {"features": 3}, vectors),
        ("PositionwiseFeedForward", {"d_model": 3, "d_ff": 2}, vectors),
        ("Generator", {"d_model": 3, "vocab_size": 2}, vectors),
    ]:
        try:
            module = student.module(name, **options)
        except (Todo, StudentError):
            continue
        return module, given
    raise Todo("There is no module yet of which copies could be made.")


@exercise("clones", 2)
def test_clones_are_separate(student, draw):
    """A list of n modules with parameters of their own, all of the original's values."""
    module, _ = some_module(student, draw)
    state = module.state()
    copies = student.module("clones", module=module, n=3)
    length = copies.method("__len__")
    expectations.true(length == 3, f"clones(module, 3) holds {length} modules; it should hold 3.")
    own = list(copies.parameters())
    for number in range(3):
        for name in state:
            expectations.true(
                f"{number}.{name}" in own,
                f"{name} of copy {number} is no parameter of its own: the three copies have the "
                f"parameters {', '.join(own)}. Make each with copy.deepcopy.",
            )
    for name, value in copies.state().items():
        original = name.split(".", 1)[1]
        expectations.true(original in state, f"A copy has {original}, which the original has not.")
        expectations.close(value, state[original], what=f"{original} of copy {name.split('.')[0]}")


@exercise("clones")
def test_clones_refusals(student, draw):
    """n below 1 is refused with a ValueError."""
    module, _ = some_module(student, draw)
    refuses(lambda n: student.module("clones", module=module, n=n), {"n=-1": (-1,), "n=0": (0,)})


@hidden
@exercise("clones")
def test_clones_one(student, draw):
    """A single copy is a list of one, and not the module itself: training one spares the other."""
    module, given = some_module(student, draw)
    copies = student.module("clones", module=module, n=1)
    expectations.true(copies.method("__len__") == 1, "clones(module, 1) should hold 1 module.")
    stays(module, given, copies)


def stays(module, given, copies):
    """Training the original leaves the copies as they were: none of them is the original."""
    before = module.state()
    module.step(given)
    for name, value in copies.state().items():
        original = name.split(".", 1)[1]
        expectations.true(original in before, f"A copy has {original}, which the original has not.")
        expectations.close(
            value, before[original], what=f"{name}", case="a step of training of the original"
        )


@hidden
@exercise("clones")
def test_clones_leave_the_original(student, draw):
    """The original is in none of the places, and buffers are copied too."""
    module, given = some_module(student, draw)
    stays(module, given, student.module("clones", module=module, n=3))
    table = student.module("TableModel", table=draw.normal(1, 2, 3, 3))
    copies = student.module("clones", module=table, n=2)
    expectations.true(copies.method("__len__") == 2, "clones(module, 2) should hold 2 modules.")
    expectations.equal(
        sorted(copies.buffers()),
        ["0.table", "1.table"],
        what="the buffers of two copies of a TableModel",
    )


# --------------------------------------------------------------------------------------------
# EncoderLayer
# --------------------------------------------------------------------------------------------


def layer_options(width, heads, inner, **more):
    return {"d_model": width, "num_heads": heads, "d_ff": inner, **more}


def triangle(size):
    """(size, size): every position sees itself and those before it."""
    return torch.ones(size, size, dtype=torch.bool).tril()


def key_mask(lengths, longest=None):
    """(B, 1, T): rows with the given numbers of real tokens."""
    return (torch.arange(longest or max(lengths)) < torch.tensor(lengths).unsqueeze(1)).unsqueeze(1)


def same_layer(student, reference, name, state, options, cases, train=False):
    """A layer is right on each case: words -> x, mask, or x, memory, src_mask, tgt_mask."""
    mine, theirs = pair(student, reference, name, state, **options)
    for case, given in cases.items():
        got = (mine.train() if train else mine)(*given)
        x, *rest = given
        memory, src_mask, mask = rest if len(rest) == 3 else (None, None, *rest)

        def own(parts, x=x, mask=mask, memory=memory, src_mask=src_mask):
            first = options.get("norm_first", False)
            return layer_by_parts(parts, mine, state, first, x, mask, memory, src_mask)

        same_by_parts(student, got, theirs(*given), own, what="the output", case=case)


@exercise("EncoderLayer", 2)
def test_encoder_layer_post(student, reference, draw):
    """Self-attention, then feed-forward, each followed by its norm; in train mode too."""
    cases = {
        "one vector, post-norm": (draw.normal(1, 1, 6), key_mask([1])),
        "B=2, S=4 and a mask, post-norm": (draw.normal(2, 4, 6), key_mask([4, 2])),
    }
    state, options = layer_state(draw, ENCODER, 6, 5), layer_options(6, 3, 5)
    same_layer(student, reference, "EncoderLayer", state, options, cases, train=True)


@exercise("EncoderLayer", 2)
def test_encoder_layer_pre(student, reference, draw):
    """With norm_first each sub-layer gets the norm of its input, for queries, keys and values."""
    case = "B=2, S=3 and a mask (B, S, S), norm_first=True, dropout=0.4 in eval mode"
    options = layer_options(4, 2, 7, dropout=0.4, norm_first=True)
    cases = {case: (draw.normal(2, 3, 4), draw.mask(2, 3, 3))}
    state = layer_state(draw, ENCODER, 4, 7)
    same_layer(student, reference, "EncoderLayer", state, options, cases)


@exercise("EncoderLayer")
def test_encoder_layer_mask(student, draw):
    """What stands at masked positions reaches no other position; real ones reach all."""
    mine = student.module("EncoderLayer", **layer_options(8, 2, 16, norm_first=True))
    x, mask = draw.normal(1, 5, 8), key_mask([3], 5)
    before = expectations.tensor(mine(x, mask), what="the output")
    expectations.shape(before, x.shape, what="the output")
    for place, words, reached in [
        (4, "a masked position", [4]),
        (1, "a real one", [0, 1, 2, 3, 4]),
    ]:
        other = x.clone()
        other[0, place] = 3.0 * draw.normal(8)
        changed = changes(mine(other, mask), before)
        expectations.true(
            changed == reached,
            f"With a mask that shows positions 0 to 2 of 5, another vector at {place}, {words}, "
            f"changes the output at {changed}; it should change it at {reached}.",
        )


def changes(after, before) -> list[int]:
    """The positions at which two outputs of one example differ by more than rounding."""
    expectations.shape(after, before.shape, what="the output")
    return ((after - before).abs().amax(-1)[0] > 1e-5).nonzero().flatten().tolist()


@hidden
@exercise("EncoderLayer")
def test_encoder_layer_dropout(student, draw):
    """dropout reaches attention weights, feed-forward and both connections."""
    mine = student.module(
        "EncoderLayer",
        state=dropout_state(ENCODER, 12),
        **layer_options(12, 3, INNER, dropout=P, norm_first=True),
    )
    x = draw.normal(6, SEEN_KEYS, 12)
    full = torch.ones(SEEN_KEYS, SEEN_KEYS, dtype=torch.bool)
    output = expectations.tensor(mine.train()(x, full), what="the output")
    expectations.shape(output, x.shape, what="the output")
    dropout_acts(output - x, DROPS[:1] + DROPS[2:])


DROPS = [
    ("self-attention", "among the weights of self_attn", SEEN_KEYS),
    ("source attention", "among the weights of src_attn", SEEN_KEYS),
    ("feed-forward", "in the inner layer of feed_forward", INNER),
]


@hidden
@exercise("EncoderLayer")
def test_encoder_layer_gradients(student, reference, draw):
    """Without a mask: gradients reach x and every parameter; x is left as it was."""
    state = layer_state(draw, ENCODER, 4, 3)
    options = layer_options(4, 2, 3, norm_first=True)
    mine, theirs = pair(student, reference, "EncoderLayer", state, torch.float64, **options)
    x = draw.normal(4, 3, 2).double().transpose(0, 2)

    def own(parts):
        return layer_by_parts(parts, mine, state, True, x, None)

    names, case = labels(state, ("0", "x")), "float64 without a mask, norm_first=True"
    flows(student, mine, theirs, (x,), own, "the output", case, names)


# --------------------------------------------------------------------------------------------
# Encoder
# --------------------------------------------------------------------------------------------


def same_stack(student, reference, draw, name, given, norm_first, case, train=False, **more):
    """A stack of two layers, and with norm_first a norm, is right by the reference or by parts."""
    attentions = ENCODER if name == "Encoder" else DECODER
    width = given[0].shape[-1]
    state = stack_state(draw, attentions, 2, width, 5, norm_first)
    options = layer_options(width, 2, 5)
    more |= {"norm_first": True} if norm_first else {}
    mine, theirs = pair(student, reference, name, state, num_layers=2, **options, **more)
    got = (mine.train() if train else mine)(*given)

    def own(parts):
        return stack_by_parts(parts, mine, state, f"{name}Layer", norm_first, *given, **options)

    same_by_parts(student, got, theirs(*given), own, what="the output", case=case)


@aspect
@exercise("Encoder", 2)
def test_encoder_post(student, reference, draw):
    """Each layer reads what the one before returned; post-norm layers need no final norm."""
    case = "two layers, x of shape (2, 3, 4), post-norm"
    given = draw.normal(2, 3, 4), key_mask([3, 1])
    same_stack(student, reference, draw, "Encoder", given, False, case, train=True)


@exercise("Encoder", 2)
def test_encoder_pre(student, reference, draw):
    """With norm_first a final norm acts on what the last layer returns."""
    given = draw.normal(2, 3, 4), key_mask([2, 3])
    case = "two layers, x of shape (2, 3, 4), norm_first=True, dropout=0.3 in eval mode"
    same_stack(student, reference, draw, "Encoder", given, True, case, dropout=0.3)


@exercise("Encoder")
def test_encoder_refusals(student):
    """A stack without layers is refused with a ValueError."""
    refuses(
        lambda count: student.module("Encoder", num_layers=count, **layer_options(4, 2, 5)),
        {"num_layers=0": (0,), "num_layers=-1": (-1,)},
    )


@hidden
@exercise("Encoder")
def test_encoder_padding(student, draw):
    """Through two layers nothing leaks from padding; dropout acts in train mode only."""
    mine = student.module(
        "Encoder", num_layers=2, **layer_options(8, 2, 16, dropout=0.5, norm_first=True)
    )
    x, mask = draw.normal(1, 8, 8), key_mask([6], 8)
    before = expectations.tensor(mine(x, mask), what="the output")
    expectations.shape(before, x.shape, what="the output")
    for place, reached in [(7, [7]), (0, [0, 1, 2, 3, 4, 5, 6, 7])]:
        other = x.clone()
        other[0, place] = 3.0 * draw.normal(8)
        changed = changes(mine(other, mask), before)
        expectations.true(
            changed == reached,
            f"With a mask that shows positions 0 to 5 of 8, another vector at {place} changes the "
            f"output of two layers at {changed}; it should change it at {reached}.",
        )
    twice = x.expand(2, 8, 8)
    rows_differ(mine.train()(twice), "the output", (2, 8, 8), p=0.5)


@hidden
@exercise("Encoder")
def test_encoder_gradients(student, reference, draw):
    """Every layer has parameters of its own, and gradients reach them all."""
    state = stack_state(draw, ENCODER, 2, 2, 3, norm_first=True)
    options = layer_options(2, 1, 3, norm_first=True)
    mine, theirs = pair(
        student, reference, "Encoder", state, torch.float64, num_layers=2, **options
    )
    x = draw.normal(2, 3, 2).double()

    def own(parts):
        more = layer_options(2, 1, 3)
        return stack_by_parts(parts, mine, state, "EncoderLayer", True, x, **more)

    names, case = labels(state, ("0", "x")), "two layers, float64 without a mask, norm_first=True"
    flows(student, mine, theirs, (x,), own, "the output", case, names)


# --------------------------------------------------------------------------------------------
# DecoderLayer
# --------------------------------------------------------------------------------------------


@exercise("DecoderLayer", 2)
def test_decoder_layer_post(student, reference, draw):
    """Queries come from the decoder, keys and values from memory, each step with its norm."""
    one = draw.normal(1, 1, 6), draw.normal(1, 2, 6), key_mask([1], 2), key_mask([1])
    many = draw.normal(2, 3, 6), 2.0 * draw.normal(2, 5, 6), key_mask([5, 3]), draw.mask(2, 3, 3)
    cases = {
        "B=1, U=1, S=2, both masks, post-norm": one,
        "B=2, U=3, S=5, both masks, post-norm": many,
    }
    state, options = layer_state(draw, DECODER, 6, 5), layer_options(6, 3, 5)
    same_layer(student, reference, "DecoderLayer", state, options, cases, train=True)


@exercise("DecoderLayer", 2)
def test_decoder_layer_pre(student, reference, draw):
    """With norm_first x is normalised before each sub-layer, and memory is used as it is."""
    x, memory = draw.normal(2, 3, 4), 2.0 * draw.normal(2, 3, 4) + 1.0
    given = x, memory, key_mask([3, 2]), triangle(3)
    case = "B=2, U=S=3, both masks, norm_first=True, dropout=0.4 in eval mode"
    state = layer_state(draw, DECODER, 4, 7)
    options = layer_options(4, 2, 7, dropout=0.4, norm_first=True)
    same_layer(student, reference, "DecoderLayer", state, options, {case: given})


@exercise("DecoderLayer")
def test_decoder_layer_causality(student, draw):
    """Under the mask of a target a position sees none that follows it."""
    mine = student.module("DecoderLayer", **layer_options(8, 2, 16, norm_first=True))
    x, memory = draw.normal(1, 4, 8), draw.normal(1, 6, 8)
    masks = key_mask([4], 6), triangle(4)
    before = expectations.tensor(mine(x, memory, *masks), what="the output")
    expectations.shape(before, x.shape, what="the output")
    x = x.clone()
    x[0, 2] = 3.0 * draw.normal(8)
    changed = changes(mine(x, memory, *masks), before)
    expectations.true(
        changed == [2, 3],
        f"Under the mask of a target, another vector at position 2 of 4 changes the output at "
        f"{changed}; it should change it at [2, 3].",
    )


@hidden
@exercise("DecoderLayer")
def test_decoder_layer_source_mask(student, draw):
    """Masked positions of memory reach nothing, the others every position."""
    mine = student.module("DecoderLayer", **layer_options(8, 2, 16))
    x, memory = draw.normal(1, 3, 8), draw.normal(1, 6, 8)
    masks = key_mask([4], 6), triangle(3)
    before = expectations.tensor(mine(x, memory, *masks), what="the output")
    expectations.shape(before, x.shape, what="the output")
    for place, reached in [(5, []), (3, [0, 1, 2])]:
        other = memory.clone()
        other[0, place] = 3.0 * draw.normal(8)
        changed = changes(mine(x, other, *masks), before)
        expectations.true(
            changed == reached,
            f"With a src_mask that shows positions 0 to 3 of 6, another vector of memory at "
            f"{place} changes the output at {changed}; it should change it at {reached}.",
        )


@hidden
@exercise("DecoderLayer")
def test_decoder_layer_dropout(student, draw):
    """dropout reaches both attentions, feed-forward and all three connections."""
    mine = student.module(
        "DecoderLayer",
        state=dropout_state(DECODER, 12),
        **layer_options(12, 3, INNER, dropout=P, norm_first=True),
    )
    x, memory = draw.normal(6, SEEN_KEYS, 12), draw.normal(6, SEEN_KEYS, 12)
    full = torch.ones(SEEN_KEYS, SEEN_KEYS, dtype=torch.bool)
    output = expectations.tensor(mine.train()(x, memory, full, full), what="the output")
    expectations.shape(output, x.shape, what="the output")
    dropout_acts(output - x, DROPS)


@hidden
@exercise("DecoderLayer")
def test_decoder_layer_gradients(student, reference, draw):
    """Without masks: gradients reach x, memory and every parameter; inputs are left alone."""
    state = layer_state(draw, DECODER, 4, 3)
    options = layer_options(4, 2, 3, norm_first=True)
    mine, theirs = pair(student, reference, "DecoderLayer", state, torch.float64, **options)
    x = draw.normal(4, 3, 2).double().transpose(0, 2)
    memory = draw.normal(2, 4, 4).double()

    def own(parts):
        return layer_by_parts(parts, mine, state, True, x, None, memory)

    names = labels(state, ("0", "x"), ("1", "the memory"))
    case = "float64 without masks, norm_first=True"
    flows(student, mine, theirs, (x, memory), own, "the output", case, names)


# --------------------------------------------------------------------------------------------
# Decoder
# --------------------------------------------------------------------------------------------


@aspect
@exercise("Decoder", 2)
def test_decoder_post(student, reference, draw):
    """Every layer reads the same memory; post-norm layers need no final norm."""
    case = "two layers, B=2, U=3, S=4, D=4, post-norm"
    given = draw.normal(2, 3, 4), draw.normal(2, 4, 4), key_mask([4, 2]), triangle(3)
    same_stack(student, reference, draw, "Decoder", given, False, case, train=True)


@exercise("Decoder", 2)
def test_decoder_pre(student, reference, draw):
    """With norm_first a final norm acts on what the last layer returns."""
    masks = key_mask([2, 3]), draw.mask(2, 3, 3)
    given = draw.normal(2, 3, 4), draw.normal(2, 3, 4), *masks
    case = "two layers, B=2, U=S=3, D=4, norm_first=True, dropout=0.3 in eval mode"
    same_stack(student, reference, draw, "Decoder", given, True, case, dropout=0.3)


@exercise("Decoder")
def test_decoder_refusals(student):
    """A stack without layers is refused with a ValueError."""
    refuses(
        lambda count: student.module("Decoder", num_layers=count, **layer_options(4, 2, 5)),
        {"num_layers=0": (0,), "num_layers=-1": (-1,)},
    )


@hidden
@exercise("Decoder")
def test_decoder_masks(student, draw):
    """Through two layers nothing leaks from later positions or masked memory; dropout acts."""
    mine = student.module(
        "Decoder", num_layers=2, **layer_options(8, 2, 16, dropout=0.5, norm_first=True)
    )
    x, memory = draw.normal(1, 8, 8), draw.normal(1, 5, 8)
    masks = key_mask([3], 5), triangle(8)
    before = expectations.tensor(mine(x, memory, *masks), what="the output")
    expectations.shape(before, x.shape, what="the output")
    later, hidden_memory = x.clone(), memory.clone()
    later[0, 5], hidden_memory[0, 4] = draw.normal(8), draw.normal(8)
    for words, given, reached in [
        ("another vector at position 5 of 8", (later, memory), [5, 6, 7]),
        ("another vector at a masked place of memory", (x, hidden_memory), []),
    ]:
        changed = changes(mine(*given, *masks), before)
        expectations.true(
            changed == reached,
            f"Under both masks {words} changes the output of two layers at {changed}; "
            f"it should change it at {reached}.",
        )
    twice = x.expand(2, 8, 8), memory.expand(2, 5, 8)
    rows_differ(mine.train()(*twice), "the output", (2, 8, 8), p=0.5)


@hidden
@exercise("Decoder")
def test_decoder_gradients(student, reference, draw):
    """Gradients reach memory from every layer, and every parameter."""
    state = stack_state(draw, DECODER, 2, 2, 3)
    mine, theirs = pair(
        student, reference, "Decoder", state, torch.float64, num_layers=2, **layer_options(2, 1, 3)
    )
    given = draw.normal(2, 3, 2).double(), draw.normal(2, 4, 2).double()

    def own(parts):
        more = layer_options(2, 1, 3)
        return stack_by_parts(parts, mine, state, "DecoderLayer", False, *given, **more)

    names = labels(state, ("0", "x"), ("1", "the memory"))
    case = "two layers, float64 without masks, post-norm"
    flows(student, mine, theirs, given, own, "the output", case, names)


# --------------------------------------------------------------------------------------------
# Generator
# --------------------------------------------------------------------------------------------


def generator_pair(student, reference, draw, width, vocabulary, dtype=None):
    state = linear(draw, "proj", vocabulary, width)
    return pair(student, reference, "Generator", state, dtype, d_model=width, vocab_size=vocabulary)


@exercise("Generator", 2)
def test_generator_values(student, reference, draw):
    """The log-probabilities are log_softmax(proj(h)) over the vocabulary."""
    for batch, length, width, vocabulary in [(1, 1, 2, 3), (3, 2, 4, 7)]:
        mine, theirs = generator_pair(student, reference, draw, width, vocabulary)
        hidden_state = draw.normal(batch, length, width)
        case = sizes(B=batch, U=length, D=width, V=vocabulary)
        got, want = mine(hidden_state), theirs(hidden_state)
        expectations.close(got, want, what="the log-probabilities", case=case)


@exercise("Generator")
def test_generator_sums(student, draw):
    """The probabilities of the tokens sum to 1 at every position."""
    mine = student.module("Generator", d_model=4, vocab_size=6)
    output = expectations.tensor(mine(draw.normal(2, 3, 4)), what="the log-probabilities")
    expectations.shape(output, (2, 3, 6), what="the log-probabilities")
    expectations.row_sums_one(output.exp(), "exp of each position's log-probabilities")


@hidden
@exercise("Generator")
def test_generator_large(student, reference, draw):
    """Improbable tokens keep a finite log-probability: the logarithm is not taken afterwards."""
    mine, theirs = generator_pair(student, reference, draw, 3, 5)
    hidden_state = 400.0 * draw.normal(2, 2, 3)
    got = mine(hidden_state)
    expectations.finite(got, what="the result", case="hidden states times 400")
    expectations.close(
        got, theirs(hidden_state), what="the log-probabilities", case="hidden states times 400"
    )


@hidden
@exercise("Generator")
def test_generator_gradients(student, reference, draw):
    """One vector by itself works too; gradients reach it and both parameters; float64 stays."""
    mine, theirs = generator_pair(student, reference, draw, 3, 4, torch.float64)
    for shape in [(3,), (2, 3)]:
        hidden_state = draw.normal(*shape).double()
        seen, wanted = mine.train().observe(hidden_state), theirs.observe(hidden_state)
        expectations.close(seen.value, wanted.value, what="the log-probabilities", case="float64")
        same_gradients(
            seen, wanted, labels(["proj.weight", "proj.bias"], ("0", "the hidden state"))
        )
        expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# EncoderDecoder
# --------------------------------------------------------------------------------------------


def model_options(sources, targets, layers, width, inner, heads, **more):
    return {
        "src_vocab": sources,
        "tgt_vocab": targets,
        "num_layers": layers,
        "d_model": width,
        "d_ff": inner,
        "num_heads": heads,
        **more,
    }


def translator_pair(student, reference, draw, layers=1, dtype=None, norm_first=False, **more):
    """EncoderDecoders for vocabularies of 8 and 9 words."""
    state = model_state(draw, 8, 9, layers, 6, 5, norm_first)
    options = model_options(8, 9, layers, 6, 5, 3, norm_first=norm_first, **more)
    return state, *pair(student, reference, "EncoderDecoder", state, dtype, **options)


def encode_by_parts(parts, mine, source, mask):
    x = parts.of(mine, "position")(parts.of(mine, "src_embed")(source))
    return parts.of(mine, "encoder")(x, mask)


def decode_by_parts(parts, mine, memory, src_mask, target, mask):
    x = parts.of(mine, "position")(parts.of(mine, "tgt_embed")(target))
    return parts.of(mine, "decoder")(x, memory, src_mask, mask)


def translate_by_parts(parts, mine, source, target):
    src_mask, mask = parts.proxy.pad_mask(source), parts.proxy.make_std_mask(target)
    memory = encode_by_parts(parts, mine, source, src_mask)
    hidden_state = decode_by_parts(parts, mine, memory, src_mask, target, mask)
    return parts.of(mine, "generator")(hidden_state)


@exercise("EncoderDecoder")
def test_model_encode(student, reference, draw):
    """encode embeds the source, adds positions up to max_length, runs the encoder under a mask."""
    _, mine, theirs = translator_pair(student, reference, draw, dropout=0.0, max_length=4)
    source = padded(draw, [4, 2], high=8)
    for words, mask in [("its mask", key_mask([4, 2])), ("no mask", None)]:
        same_by_parts(
            student,
            mine.train().method("encode", source, mask),
            theirs.method("encode", source, mask),
            lambda parts, mask=mask: encode_by_parts(parts, mine, source, mask),
            what="the memory",
            case=f"source {source.tolist()} and {words}, dropout=0 in train mode",
        )
    refuses(
        lambda ids: mine.method("encode", ids),
        {"a source of 5 tokens where max_length is 4": (padded(draw, [5], high=8),)},
    )


@exercise("EncoderDecoder")
def test_model_decode(student, reference, draw):
    """decode embeds the target, adds positions, and reads memory; the generator comes later."""
    _, mine, theirs = translator_pair(student, reference, draw, max_length=9)
    target = padded(draw, [2, 4])
    given = draw.normal(2, 3, 6), key_mask([3, 2]), target, draw.mask(2, 4, 4)
    same_by_parts(
        student,
        mine.method("decode", *given),
        theirs.method("decode", *given),
        lambda parts: decode_by_parts(parts, mine, *given),
        what="the result of decode",
        case=f"target {target.tolist()}, B=2, S=3, in eval mode",
    )


@exercise("EncoderDecoder", 2)
def test_model_forward(student, reference, draw):
    """forward makes the masks, encodes, decodes and generates: log-probabilities (B, U, V)."""
    _, mine, theirs = translator_pair(
        student, reference, draw, 2, norm_first=True, dropout=0.0, max_length=9
    )
    for lengths in [([3], [3]), ([4, 2, 5], [3, 5, 1])]:
        source, target = padded(draw, lengths[0], high=8), padded(draw, lengths[1])
        same_by_parts(
            student,
            mine.train()(source, target),
            theirs(source, target),
            lambda parts, given=(source, target): translate_by_parts(parts, mine, *given),
            what="the log-probabilities",
            case=f"source {source.tolist()}, target {target.tolist()}, norm_first=True",
        )


@hidden
@exercise("EncoderDecoder")
def test_model_padding(student, draw):
    """More padding, on either side, changes nothing, and a longer target nothing before it."""
    mine = student.module("EncoderDecoder", **model_options(8, 9, 1, 8, 16, 2, max_length=9))
    source, target = padded(draw, [4, 3], high=8), padded(draw, [4, 3])
    before = expectations.tensor(mine(source, target), what="the log-probabilities")
    expectations.shape(before, (2, 4, 9), what="the log-probabilities")
    wide = torch.nn.functional.pad(source, (0, 2))
    longer = torch.cat([target, draw.integers(UNK + 1, 9, 2, 2)], dim=1)
    for words, given in [
        ("two more columns of padding in the source", (wide, target)),
        ("two more tokens at the end of the target", (source, longer)),
    ]:
        after = expectations.tensor(mine(*given), what="the log-probabilities")
        expectations.shape(after, (2, given[1].shape[1], 9), what="the log-probabilities")
        same = (after[:, :4] - before).abs().amax(-1) < 1e-4
        expectations.true(
            bool(same[0].all()) and bool(same[1, :3].all()),
            f"With {words} the log-probabilities before it change; a mask is missing.",
        )
    source = source.clone()
    source[0, 1] = UNK
    after = expectations.tensor(mine(source, target), what="the log-probabilities")
    expectations.shape(after, before.shape, what="the log-probabilities")
    changed = (after - before).abs().amax(-1) > 1e-5
    expectations.true(
        bool(changed[0].all()) and not bool(changed[1].any()),
        "Another source token in row 0 should change all log-probabilities of row 0, and no other.",
    )


@aspect
@hidden
@exercise("EncoderDecoder")
def test_model_dropout(student, draw):
    """dropout reaches the positions, the encoder and the decoder, in train mode only."""
    mine = student.module("EncoderDecoder", **model_options(5, 6, 1, 8, 16, 2, dropout=0.5))
    x = draw.normal(1, 8, 8).expand(2, 8, 8)
    for name, given in [("position", (x,)), ("encoder", (x, None)), ("decoder", (x, x))]:
        rows_differ(mine.train().method(name, *given), f"the result of {name}", (2, 8, 8), p=0.5)
    ids = draw.integers(UNK + 1, 5, 1, 4).expand(2, 4)
    memory = mine.eval().method("encode", ids)
    expectations.shape(memory, (2, 4, 8), what="the memory")
    expectations.true(
        bool((memory[0] - memory[1]).abs().max() < 1e-5),
        "In eval mode the memory of two equal sources differs.",
    )


@hidden
@exercise("EncoderDecoder")
def test_model_gradients(student, reference, draw):
    """Gradients reach every parameter; the two tables and the generator are apart; float64."""
    state, mine, theirs = translator_pair(
        student, reference, draw, dtype=torch.float64, max_length=9
    )
    source, target = padded(draw, [4, 2], high=8), padded(draw, [3, 2])

    def own(parts):
        return translate_by_parts(parts, mine, source, target)

    names = labels(state)
    flows(student, mine, theirs, (source, target), own, "the output", "float64", names)


# --------------------------------------------------------------------------------------------
# make_model
# --------------------------------------------------------------------------------------------

TABLES = ("src_embed.lut.weight", "tgt_embed.lut.weight", "generator.proj.weight")


def new_state(student, reference, **options) -> State:
    """The parameters of a new model, whose names and shapes are the reference's."""
    mine = student.module("make_model", **options)
    theirs = reference.module("make_model", **options)
    state, wanted = mine.state(), theirs.state()
    for name, value in wanted.items():
        expectations.true(name in state, f"The model has no parameter {name}.")
        expectations.shape(state[name], value.shape, what=f"the parameter {name}")
    return state


@exercise("make_model", 2)
def test_make_model_assembles(student, reference, draw):
    """The arguments reach the EncoderDecoder, and dropout=0 is deterministic in train mode."""
    for targets, layers, norm_first in [(9, 1, False), (8, 2, True)]:
        state = model_state(draw, 8, targets, layers, 6, 5, norm_first)
        options = model_options(8, targets, layers, 6, 5, 3, dropout=0.0, norm_first=norm_first)
        mine, theirs = pair(student, reference, "make_model", state, **options)
        source, target = padded(draw, [4, 2], high=8), padded(draw, [3, 4], high=8)

        def own(parts, state=state, options=options, given=(source, target)):
            return parts.make("EncoderDecoder", state=state, **options)(*given)

        same_by_parts(
            student,
            mine.train()(source, target),
            theirs(source, target),
            own,
            what="the log-probabilities",
            case=f"vocabularies of 8 and {targets}, {layers} layer(s), norm_first={norm_first}, "
            "dropout=0 in train mode",
        )


@exercise("make_model", 2)
def test_make_model_initial(student, reference):
    """Linear weights by Xavier, biases 0, gamma 1 and beta 0; layers differ from each other."""
    options = model_options(10, 20, 2, 8, 24, 2, norm_first=True)
    state = new_state(student, reference, **options)
    kinds: dict[str, list[torch.Tensor]] = {}
    for name, value in state.items():
        if name.endswith((".bias", ".beta")):
            expectations.close(value, torch.zeros_like(value), what=f"the initial {name}")
        elif name.endswith(".gamma"):
            expectations.close(value, torch.ones_like(value), what=f"the initial {name}")
        elif "embed" not in name:
            limit = math.sqrt(6 / sum(value.shape))
            kinds.setdefault(name.split(".")[-2], []).append(value.flatten() / limit)
    for kind, values in kinds.items():
        joined = torch.cat(values).double()
        expectations.true(
            bool(joined.abs().max() <= 1.0001),
            f"The initial weights of {kind} exceed the bound of Xavier's uniform distribution, "
            "sqrt(6 / (inputs + outputs)).",
        )
        # The mean square of a uniform distribution on (-1, 1) is 1/3; Hoeffding's bound.
        count = joined.numel()
        margin = math.sqrt(math.log(2 * 7 / 1e-9) / (2 * count))
        mean = float((joined**2).mean())
        expectations.true(
            abs(mean - 1 / 3) <= margin,
            f"The initial weights of {kind} have {mean * 3:.3g} times the variance of Xavier's "
            "uniform distribution.",
        )
    weights = [
        (name, value) for name, value in state.items() if value.ndim == 2 and "embed" not in name
    ]
    for place, (name, value) in enumerate(weights):
        for other, second in weights[:place]:
            expectations.true(
                value.shape != second.shape or not torch.equal(value, second),
                f"{name} begins as a copy of {other}; draw every weight by itself.",
            )


@exercise("make_model")
def test_make_model_embeddings(student, reference):
    """Both tables are drawn from a normal distribution of variance 1/D, not by Xavier."""
    state = new_state(student, reference, **model_options(100, 110, 1, 8, 4, 2))
    for name in TABLES[:2]:
        drawn_as_embeddings(student, state[name], f"the entries of {name} times sqrt(D)")


@exercise("make_model", 2)
def test_make_model_shared(student, draw):
    """With shared=True both tables and the generator's weight are one parameter."""
    mine = student.module("make_model", **model_options(8, 8, 1, 4, 6, 2, shared=True))
    named = mine.parameters()
    ids = padded(draw, [3, 2], high=8)
    expectations.shape(mine(ids, ids), (2, 3, 8), what="the log-probabilities", case="shared=True")
    apart = [name for name in TABLES if name in named]
    expectations.true(
        len(apart) == 1,
        f"With shared=True {' and '.join(apart) or 'none'} are parameters of their own; let all "
        f"three names, {', '.join(TABLES)}, stand for one nn.Parameter.",
    )


@exercise("make_model")
def test_make_model_refusals(student):
    """With shared=True vocabularies of two sizes are refused with a ValueError."""
    refuses(
        lambda sources, targets: student.module(
            "make_model", **model_options(sources, targets, 1, 4, 6, 2, shared=True)
        ),
        {"shared=True with vocabularies of 8 and 9": (8, 9), "of 9 and 8": (9, 8)},
    )


@hidden
@exercise("make_model")
def test_make_model_shared_initial(student, reference):
    """The weight in common is drawn from a normal distribution of variance 1/D."""
    options = model_options(400, 400, 1, 16, 8, 2, shared=True)
    state = new_state(student, reference, **options)
    for name in TABLES:
        expectations.close(state[name], state[TABLES[0]], what=name, case="shared=True")
    words = "the entries of the weight in common times sqrt(D)"
    drawn_as_embeddings(student, state[TABLES[2]], words)
    bias = state["generator.proj.bias"]
    expectations.close(bias, torch.zeros(400), what="the generator's initial bias")


@hidden
@exercise("make_model")
def test_make_model_shared_gradient(student, reference, draw):
    """The weight in common learns from source, target and output."""
    state = model_state(draw, 8, 8, 1, 4, 6)
    state |= dict.fromkeys(TABLES, state[TABLES[0]])
    options = model_options(8, 8, 1, 4, 6, 2, shared=True)
    mine, theirs = pair(student, reference, "make_model", state, torch.float64, **options)
    source, target = padded(draw, [4, 2], high=8), padded(draw, [3, 2], high=8)
    seen, wanted = mine.observe(source, target), theirs.observe(source, target)
    label = f"parameter {TABLES[0]}"
    mine_label = next(
        (f"parameter {name}" for name in TABLES if f"parameter {name}" in seen.grads), label
    )
    seen.grads[label] = seen.grads.get(mine_label)
    expectations.tensor(seen.value, what="the result", case="shared=True")
    same_flow(seen, wanted, {label: "the weight in common"}, "shared=True")


@hidden
@exercise("make_model")
def test_make_model_dropout(student, draw):
    """dropout acts in train mode in the positions and in both stacks."""
    mine = student.module("make_model", **model_options(5, 6, 1, 8, 16, 2, dropout=0.5))
    x = draw.normal(1, 8, 8).expand(2, 8, 8)
    for name, given in [("position", (x,)), ("encoder", (x, None)), ("decoder", (x, x))]:
        rows_differ(mine.train().method(name, *given), f"the result of {name}", (2, 8, 8), p=0.5)


# --------------------------------------------------------------------------------------------
# What the tests of training and decoding share
# --------------------------------------------------------------------------------------------


def as_list(actual, what, case=""):
    """`actual`, which must be a list or a tuple."""
    suffix = f" for {case}" if case else ""
    expectations.true(
        isinstance(actual, (list, tuple)),
        f"{what} should be a list, but is a {expectations.type_name(actual)}{suffix}"
        + ("; .tolist() makes one." if isinstance(actual, torch.Tensor) else "."),
    )
    return list(actual)


def whole_number(actual, what, case=""):
    """`actual`, which must be an int; True is none."""
    suffix = f" for {case}" if case else ""
    expectations.true(
        isinstance(actual, int) and not isinstance(actual, bool),
        f"{what} should be an int, but is a {expectations.type_name(actual)}{suffix}"
        + ("; .item() makes one." if isinstance(actual, torch.Tensor) else "."),
    )
    return actual


def filled_up(rows, pad=PAD):
    """Lists of ids as a tensor, filled up with pad on the right."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows])


def sources_of(draw, lengths, vocabulary=7):
    """Padded rows of random ids of the given lengths."""
    return filled_up([draw.integers(UNK + 1, vocabulary, n).tolist() for n in lengths])


def targets_of(draw, lengths, vocabulary=8, pad=PAD):
    """Padded targets, BOS and EOS and as many random ids between them as the lengths say."""
    rows = [[BOS, *draw.integers(UNK + 1, vocabulary, n).tolist(), EOS] for n in lengths]
    return filled_up(rows, pad)


# What the small models are made with; each has a state of its own from `small_state`.
SMALL = {"src_vocab": 7, "tgt_vocab": 8, "d_model": 8, "d_ff": 12, "num_heads": 2, "dropout": 0.0}


def small(num_layers=1, norm_first=False, **changes):
    """The options of a small EncoderDecoder; a short table of positions is quickly made."""
    return {
        **SMALL,
        "num_layers": num_layers,
        "norm_first": norm_first,
        "max_length": 20,
        **changes,
    }


def small_state(draw, num_layers, norm_first=False, **sizes):
    """Random parameters of such a model, in float64; none of them is 0 or 1."""
    given = {**SMALL, **sizes}
    order = (given["src_vocab"], given["tgt_vocab"], num_layers, given["d_model"], given["d_ff"])
    return {name: value.double() for name, value in model_state(draw, *order, norm_first).items()}


class Models:
    """A student's small EncoderDecoder and the reference's, with the same parameters, in float64.

    What uses a model answers for nobody's layers: where the student's says something else than the
    reference's, `right` is False, and the student's own model is what counts.
    """

    def __init__(self, student, reference, draw, state, name="EncoderDecoder", **options):
        self.student, self.name, self.state, self.options = student, name, state, options
        self.mine, self.theirs = pair(student, reference, name, state, torch.float64, **options)
        start = sources_of(draw, [3, 2], 6), targets_of(draw, [2, 1], 6)
        said, wanted = self.mine(*start), self.theirs(*start)
        self.right = isinstance(said, torch.Tensor) and expectations.close_enough(said, wanted)

    def loss_at(self, state, source, target, smoothing):
        """The loss of the student's model with other parameters."""
        made = {"state": state, "dtype": torch.float64, **self.options}
        model = self.student.module(self.name, **made)
        return smoothed(model(source, target[:, :-1]), target, smoothing)


def uncached(model, source, target):
    """What a model says of the token after each one of target, by encode, decode and generator.

    Every mask is the grader's own, since a model's own forward makes masks that may be wrong.
    """
    mask = (source != PAD).unsqueeze(1)
    causal = triangle(target.shape[1])
    memory = expectations.tensor(
        model.method("encode", source, mask), what="the memory of your model"
    )
    states = model.method("decode", memory, mask, target, causal)
    said = expectations.tensor(model.method("generator", states), what="what your model says")
    expectations.true(not bool(said.isnan().all()), "Your model says nothing but NaN.")
    return memory, said


# --------------------------------------------------------------------------------------------
# shift_targets
# --------------------------------------------------------------------------------------------


def same_shift(student, reference, target, case, *pad):
    seen = student.observe("shift_targets", target, *pad, grad=False)
    mine = seen.value
    theirs = reference.shift_targets(target, *pad)
    expectations.items(mine, 3, what="the result (tgt_in, tgt_out, number)")
    expectations.close(mine[0], theirs[0], what="tgt_in", case=case)
    expectations.close(mine[1], theirs[1], what="tgt_out", case=case)
    number = whole_number(mine[2], "the number of real tokens", case)
    expectations.true(
        number == theirs[2],
        f"the number of real tokens should be {theirs[2]}, but is {number} for {case}.",
    )
    expectations.unchanged(seen)


@exercise("shift_targets")
def test_shift_values(student, reference, draw):
    """The decoder reads all but the last id and is to say all but the first."""
    same_shift(student, reference, torch.tensor([[BOS, 4, 5, EOS]]), "the target BOS, 4, 5, EOS")
    target = targets_of(draw, [4, 4])
    same_shift(student, reference, target, "two targets without padding")


@exercise("shift_targets")
def test_shift_padding(student, reference, draw):
    """The number counts the ids of tgt_out that are not padding, EOS among them."""
    target = targets_of(draw, [0, 5, 2])
    same_shift(student, reference, target, "0, 5 and 2 words between BOS and EOS")


@exercise("shift_targets")
def test_shift_refusals(student):
    """Rows of fewer than 2 ids are refused with a ValueError; 2 are enough."""
    refuses(
        student.shift_targets,
        {
            "rows of 1 id": (torch.tensor([[BOS], [BOS]]),),
            "rows of 0 ids": (torch.zeros(2, 0, dtype=torch.int64),),
        },
    )
    ids = student.shift_targets(torch.tensor([[BOS, EOS]]))
    expectations.items(ids, 3, what="the result (tgt_in, tgt_out, number)")
    expectations.equal(ids[1], torch.tensor([[EOS]]), what="tgt_out", case="the target BOS, EOS")


@hidden
@exercise("shift_targets", weight=2)
def test_shift_other_pad(student, reference, draw):
    """`pad` says which id is padding, wherever it stands; 0 is then a token."""
    for pad in (5, -100):
        target = targets_of(draw, [2, 4, 1], pad=pad)
        target[0, 1] = PAD
        target[1, 3] = pad
        same_shift(student, reference, target, f"pad={pad}", pad)


# --------------------------------------------------------------------------------------------
# token_batches
# --------------------------------------------------------------------------------------------


def same_batches(student, reference, lengths, max_tokens, words=""):
    case = words or f"the lengths {lengths} and max_tokens={max_tokens}"
    seen = student.observe("token_batches", lengths, max_tokens, grad=False)
    wanted = reference.token_batches(lengths, max_tokens)
    batches = [as_list(batch, "a batch", case) for batch in as_list(seen.value, "the result", case)]
    for batch in batches:
        for index in batch:
            whole_number(index, "an index in a batch", case)
    for place, (batch, right) in enumerate(zip(batches, wanted, strict=False)):
        expectations.true(
            batch == right, f"batch {place} should be {right}, but is {batch} for {case}."
        )
    expectations.true(
        len(batches) == len(wanted),
        f"there should be {len(wanted)} batches, but there are {len(batches)} for {case}.",
    )
    expectations.unchanged(seen)


@exercise("token_batches")
def test_batches_order(student, reference):
    """Sentences come by source length, then target length, then index."""
    lengths = [(3, 2), (1, 4), (6, 1), (1, 4), (2, 9)]
    same_batches(student, reference, lengths, 100)
    lengths = [(4, 4), (2, 3), (4, 3), (2, 2), (4, 4)]
    same_batches(student, reference, lengths, 8)


@exercise("token_batches")
def test_batches_count_padding(student, reference):
    """A batch holds count times its longest sentence, padding included, and may be full."""
    # Lengths add up to 9 and 12, but 4 sentences of the longest one's length take 16 places.
    same_batches(student, reference, [(1, 1), (2, 2), (2, 2), (4, 4)], 12)
    same_batches(student, reference, [(2, 2), (2, 2), (2, 2), (2, 2)], 6)


@exercise("token_batches")
def test_batches_both_sides(student, reference):
    """The limit holds for the source and for the target, each with its own longest sentence."""
    # A long target early in the order still pads the targets after it.
    same_batches(student, reference, [(1, 6), (2, 1), (2, 1), (3, 1)], 12)
    same_batches(student, reference, [(4, 1), (4, 1), (5, 1), (5, 1)], 10)
    # In each batch anew: the long one of the batch before does not count.
    same_batches(student, reference, [(1, 9), (2, 2), (2, 2), (3, 3), (3, 3)], 12)


@exercise("token_batches")
def test_batches_refusals(student):
    """A max_tokens below 1 and a sentence too long on either side are refused; it is named."""
    refuses(
        student.token_batches,
        {"max_tokens=0 and no sentences": ([], 0), "max_tokens=-3": ([(1, 1)], -3)},
    )
    for words, lengths in [
        ("a source of 41 tokens", [(2, 3), (3, 3), (5, 2), (41, 2), (2, 2)]),
        ("a target of 41 tokens", [(2, 3), (3, 3), (5, 2), (2, 41), (2, 2)]),
    ]:
        try:
            student.token_batches(lengths, 20)
        except StudentError as error:
            kinds = error.outcome.get("types", [])
            if error.kind != "error" or "ValueError" not in kinds:
                raise Mistake(
                    f"{words} with max_tokens=20 should raise ValueError, "
                    f"but ended in {kinds[0] if kinds else error.kind}."
                ) from None
            # Its index, counted from 0 or from 1, or its length.
            numbers = "".join(c if c.isdigit() else " " for c in error.outcome["message"]).split()
            expectations.true(
                bool({"3", "4", "41"} & set(numbers)),
                f"the ValueError for {words} should say which sentence it is: give its index, 3.",
                misconception="batches_too_long_unnamed",
            )
        else:
            raise Mistake(f"{words} with max_tokens=20 should raise ValueError, but was accepted.")


@hidden
@exercise("token_batches", weight=2)
def test_batches_random(student, reference, draw):
    """Fifty sentences of random lengths, for a tight limit and a generous one."""
    lengths = [tuple(pair) for pair in draw.integers(1, 13, 50, 2).tolist()]
    for limit in (12, 40):
        words = f"50 sentences of 1 to 12 tokens and max_tokens={limit}"
        same_batches(student, reference, lengths, limit, words)


@hidden
@exercise("token_batches")
def test_batches_of_one(student, reference):
    """One sentence makes one batch, even if it fills it exactly; no sentences make none."""
    same_batches(student, reference, [], 5)
    same_batches(student, reference, [(7, 5)], 7)
    same_batches(student, reference, [(1, 1), (1, 1)], 1)


# --------------------------------------------------------------------------------------------
# label_smoothing_loss
# --------------------------------------------------------------------------------------------


def distributions(draw, *shape, dtype=torch.float32):
    """Random log-probabilities over the last axis."""
    return draw.normal(*shape, scale=2.0).double().log_softmax(-1).to(dtype)


def tokens_to_say(draw, lengths, vocabulary, pad=PAD):
    """Targets (B, U) of the given lengths, filled up with pad; no real one is pad."""
    rows = []
    for length in lengths:
        row = draw.integers(1, vocabulary, length).tolist()
        rows.append([PAD if token == pad else token for token in row])
    return filled_up(rows, pad)


def same_smoothing(student, reference, log_probs, target, case, *arguments):
    expectations.close(
        student.label_smoothing_loss(log_probs, target, *arguments),
        reference.label_smoothing_loss(log_probs, target, *arguments),
        what="the loss",
        case=case,
    )


@exercise("label_smoothing_loss")
def test_smoothing_values(student, reference, draw):
    """The share eps is spread over all V tokens, the right one and PAD included."""
    for batch, steps, vocabulary in [(1, 1, 4), (2, 3, 5)]:
        log_probs = distributions(draw, batch, steps, vocabulary)
        target = draw.integers(1, vocabulary, batch, steps)
        case = f"smoothing=0.1 and V={vocabulary}"
        same_smoothing(student, reference, log_probs, target, case)
    same_smoothing(student, reference, log_probs, target, "smoothing=0.6", 0.6)


@exercise("label_smoothing_loss")
def test_smoothing_none(student, reference, draw):
    """Without smoothing it is the negative log-likelihood per real token."""
    log_probs = distributions(draw, 2, 4, 6)
    target = tokens_to_say(draw, [4, 2], 6)
    same_smoothing(student, reference, log_probs, target, "smoothing=0", 0.0)


@exercise("label_smoothing_loss")
def test_smoothing_padding(student, reference, draw):
    """Padding counts neither in the sum nor in the number; every real token weighs the same."""
    for lengths in ([1, 4], [5, 1, 2]):
        target = tokens_to_say(draw, lengths, 6)
        log_probs = distributions(draw, *target.shape, 6)
        case = f"{lengths} real tokens"
        same_smoothing(student, reference, log_probs, target, case)
    changed = torch.where((target == PAD).unsqueeze(-1), log_probs.flip(-1) - 40.0, log_probs)
    case = f"{lengths} real tokens, and other log-probabilities at the padding"
    same_smoothing(student, reference, changed, target, case, 0.3)


@exercise("label_smoothing_loss")
def test_smoothing_refusals(student, draw):
    """A smoothing outside [0, 1) and a batch of padding only are refused with a ValueError."""
    log_probs, target = distributions(draw, 2, 3, 5), draw.integers(1, 5, 2, 3)
    refuses(
        student.label_smoothing_loss,
        {
            "smoothing=-0.1": (log_probs, target, -0.1),
            "smoothing=1": (log_probs, target, 1.0),
            "a batch of padding only": (log_probs, torch.zeros_like(target)),
        },
    )


@hidden
@exercise("label_smoothing_loss")
def test_smoothing_other_pad(student, reference, draw):
    """`pad` says which id is padding; it may lie outside the vocabulary, and 0 is then a token."""
    for pad in (5, -100):
        target = tokens_to_say(draw, [2, 4], 6, pad)
        target[0, 0] = PAD
        log_probs = distributions(draw, *target.shape, 6)
        same_smoothing(student, reference, log_probs, target, f"pad={pad}", 0.2, pad)


@hidden
@exercise("label_smoothing_loss", weight=2)
def test_smoothing_gradients(student, reference, draw):
    """The gradient is right, 0 at padding, and the inputs are left as they were."""
    target = tokens_to_say(draw, [4, 1, 2], 5)
    log_probs = distributions(draw, 3, 4, 5, dtype=torch.float64)
    seen = student.observe("label_smoothing_loss", log_probs, target)
    wanted = reference.observe("label_smoothing_loss", log_probs, target)
    expectations.close(seen.value, wanted.value, what="the loss", case="float64")
    expectations.unchanged(seen)
    gradient = seen.grads.get("0")
    expectations.true(
        gradient is not None,
        "No gradient reaches the log-probabilities; look for detach(), .data, .item() or "
        "no_grad().",
    )
    # As it reaches the logits: whether they are normalised once more makes no difference there.
    gradient, right = (
        one - log_probs.exp() * one.sum(-1, keepdim=True) for one in (gradient, wanted.grads["0"])
    )
    expectations.close(gradient, right, what="the gradient at the logits", case="float64")


# --------------------------------------------------------------------------------------------
# learning_rate
# --------------------------------------------------------------------------------------------


def same_rate(student, reference, case, *arguments, **options):
    got = student.learning_rate(*arguments, **options)
    want = reference.learning_rate(*arguments, **options)
    same_number(got, want, what="the rate", case=case, least=0.0)


@exercise("learning_rate")
def test_rate_rises(student, reference):
    """During the warm-up the rate grows in proportion to the step."""
    for step in (1, 3000):
        same_rate(student, reference, f"step {step} of 4000 of warm-up, d_model=512", step)


@exercise("learning_rate")
def test_rate_falls(student, reference):
    """From the warm-up's last step on it falls with the inverse square root of the step."""
    for step in (4000, 16000):
        same_rate(student, reference, f"step {step} after 4000 of warm-up, d_model=512", step)


@exercise("learning_rate")
def test_rate_settings(student, reference):
    """d_model, warmup and factor enter as the formula says."""
    for step, width, warmup, factor in [(5, 64, 10, 1.0), (40, 64, 10, 2.5)]:
        case = f"step={step}, d_model={width}, warmup={warmup}, factor={factor}"
        same_rate(student, reference, case, step, width, warmup, factor)


@exercise("learning_rate")
def test_rate_refusals(student):
    """A step or a warmup below 1 is refused with a ValueError."""
    refuses(
        student.learning_rate,
        {
            "step=0": (0,),
            "step=-1": (-1,),
            "warmup=0": (1, 512, 0),
        },
    )


@hidden
@exercise("learning_rate", weight=2)
def test_rate_random(student, reference, draw):
    """Any settings, by name as well."""
    step, width, warmup = draw.integers(1, 900, 3).tolist()
    case = f"step={step}, d_model={width}, warmup={warmup}, factor=0.3"
    same_rate(student, reference, case, step, factor=0.3, warmup=warmup, d_model=width)


# --------------------------------------------------------------------------------------------
# adam_step
# --------------------------------------------------------------------------------------------

ADAM = ("new parameter", "new first mean", "new second mean")


def same_adam(student, reference, tensors, step, rate, case, **options):
    seen = student.observe("adam_step", *tensors, step, rate, grad=False, **options)
    wanted = reference.adam_step(*tensors, step, rate, **options)
    expectations.items(seen.value, 3, what="the result (parameter, first, second)")
    # The means first: the parameter follows from them.
    for place in (1, 2, 0):
        expectations.close(seen.value[place], wanted[place], what=f"the {ADAM[place]}", case=case)
    expectations.unchanged(seen)


def adam_tensors(draw, *shape, dtype=torch.float64, scale=1.0):
    """A parameter, its gradient and two means as they are after some steps."""
    return (
        draw.normal(*shape).to(dtype),
        draw.normal(*shape, scale=scale).to(dtype),
        draw.normal(*shape, scale=0.5 * scale).to(dtype),
        draw.uniform(*shape, low=0.1 * scale**2, high=scale**2).to(dtype),
    )


@exercise("adam_step")
def test_adam_first_step(student, reference, draw):
    """The first step, from means of 0, moves each number by the rate, whatever its gradient."""
    parameter, gradient, *_ = adam_tensors(draw, 2, 3)
    zeros = torch.zeros_like(parameter)
    tensors = (parameter, gradient, zeros, zeros)
    same_adam(student, reference, tensors, 1, 0.1, "step 1, means of 0")


@exercise("adam_step", weight=2)
def test_adam_later_steps(student, reference, draw):
    """Later steps keep their share of both means, and divide it by 1 - beta ** step."""
    for step in (2, 30):
        tensors = adam_tensors(draw, 3, 2)
        same_adam(student, reference, tensors, step, 0.05, f"step {step}, means of earlier steps")


@hidden
@exercise("adam_step")
def test_adam_betas(student, reference, draw):
    """The first beta belongs to the mean of gradients, the second to that of their squares."""
    tensors = adam_tensors(draw, 4)
    same_adam(
        student, reference, tensors, 3, 0.1, "step 3, betas=(0.5, 0.8)", betas=(0.5, 0.8), eps=1e-8
    )


@exercise("adam_step")
def test_adam_eps(student, reference, draw):
    """eps is added to the root of the corrected second mean, not under the root."""
    zeros = torch.zeros(2, dtype=torch.float64)
    same_adam(student, reference, (zeros + 3, zeros, zeros, zeros), 1, 0.1, "a gradient of 0")
    tensors = adam_tensors(draw, 3)
    same_adam(student, reference, tensors, 4, 0.1, "step 4, eps=0.5", eps=0.5)


@exercise("adam_step")
def test_adam_refusals(student, draw):
    """A step below 1 is refused with a ValueError."""
    tensors = adam_tensors(draw, 2)
    refuses(student.adam_step, {"step=0": (*tensors, 0, 0.1)})


@hidden
@exercise("adam_step", weight=2)
def test_adam_shapes(student, reference, draw):
    """Any shape, float32, large and tiny gradients, and a step far into the training."""
    for shape, scale, step in [((), 1e-4, 2), ((2, 3, 2), 1e4, 100_000)]:
        tensors = adam_tensors(draw, *shape, dtype=torch.float32, scale=scale)
        case = f"shape {shape}, gradients of order {scale:g}, step {step}"
        same_adam(student, reference, tensors, step, 1e-3, case)


# --------------------------------------------------------------------------------------------
# train_step
# --------------------------------------------------------------------------------------------


# Smaller still: a step's answer holds every parameter three times.
TINY = {"src_vocab": 6, "tgt_vocab": 6, "d_model": 4, "d_ff": 3}


def trainees(student, reference, draw, norm_first=False):
    """Two tiny models with the same parameters."""
    state = small_state(draw, 1, norm_first, **TINY)
    return Models(student, reference, draw, state, **small(1, norm_first, **TINY))


def batch_of(draw, sources, targets):
    """A batch for a tiny model."""
    return sources_of(draw, sources, 6), targets_of(draw, targets, 6)


def train(proxy, model, *arguments, **options):
    """The loss and the moments of one step; `moments`, the third argument, must stay as it was."""
    got = proxy.training("train_step", model, *arguments, **options)
    loss, moments = expectations.pair(got, what="the result (loss, moments)")
    changed = {label.split(".")[0] for label in proxy.transcript[-1].outcome["mutated"]}
    expectations.true(
        "3" not in changed,
        "your train_step changes the moments it was given; put the new ones into a new dict.",
    )
    expectations.true(not changed, "your train_step changes source or target in place.")
    return loss, moments


def own_model(student, draw, num_layers=1, norm_first=False, **changes):
    """A small model of the student's, in float64."""
    state = small_state(draw, num_layers, norm_first)
    options = small(num_layers, norm_first, **changes)
    return student.module("EncoderDecoder", state=state, dtype=torch.float64, **options)


def same_moments(mine, theirs, case):
    """The same means for the same parameters."""
    expectations.true(
        isinstance(mine, dict),
        f"the moments should be a dict, but are a {expectations.type_name(mine)}.",
    )
    for name, means in theirs.items():
        expectations.true(name in mine, f"the moments of {name} are missing for {case}.")
        pair_ = expectations.items(mine[name], 2, what=f"the entry of {name} in the moments")
        for words, got, want in zip(("first", "second"), pair_, means, strict=True):
            what = f"the {words} mean of {name}"
            expectations.shape(got, want.shape, what, case=case)
            expectations.true(
                expectations.close_enough(got, want, expectations.GRADIENT_SLACK),
                f"{what} is wrong for {case}: the largest difference is "
                f"{float((got.double() - want).abs().max()):.3g}.",
            )
    extra = sorted(set(mine) - set(theirs))
    expectations.true(
        not extra, f"the moments hold {', '.join(extra)}, no parameter with a gradient."
    )


def same_state(models, case):
    """The two models have the same parameters now."""
    want = models.theirs.state()
    if not models.right:
        return  # `own_training` has looked
    got = models.mine.state()
    for name, value in want.items():
        expectations.shape(got.get(name), value.shape, f"the parameter {name}", case=case)
        # A step divides by the root of the second mean, which may be next to nothing.
        expectations.true(
            expectations.close_enough(got[name], value, 10 * expectations.GRADIENT_SLACK),
            f"the parameter {name} is wrong after {case}: the largest difference is "
            f"{float((got[name] - value).abs().max()):.3g}.",
        )


def smoothed(log_probs, target, smoothing=0.1):
    """The loss of a model's own log-probabilities."""
    real = target[:, 1:] != PAD
    correct = -log_probs.gather(-1, target[:, 1:].unsqueeze(-1)).squeeze(-1)
    losses = (1 - smoothing) * correct - smoothing * log_probs.mean(-1)
    return float(losses[real].mean())


def same_training(student, reference, draw, models, batch, moments, step, rate, case, **options):
    """One step of training is the reference's; returns the new moments."""
    given = (*batch, moments, step, rate)
    wanted_loss, wanted = train(reference, models.theirs, *given, **options)
    before = {} if models.right else models.mine.state()
    loss, got = train(student, models.mine, *given, **options)
    if models.right:
        same_number(loss, wanted_loss, "the loss", case)
        same_moments(got, wanted, case)
    else:
        own_training(draw, models, before, given, loss, got, case, **options)
    return wanted if models.right else got


def own_training(draw, models, before, given, loss, got, case, smoothing=0.1):
    """A step is right for the student's own model, whose gradient is measured by differences.

    What a step made of the gradient is read from the moments, and so is the gradient itself.
    """
    source, target, moments, step, rate = given
    own_state = {name: before[name] for name in models.state}
    loss_there = models.loss_at(own_state, source, target, smoothing)
    same_number(loss, loss_there, "the loss", case)
    after, gradients = models.mine.state(), {}
    for name in before:
        if not (isinstance(got, dict) and name in got):
            continue
        first, second = expectations.items(got[name], 2, what=f"the entry of {name} in the moments")
        zero = torch.zeros_like(before[name])
        old = moments.get(name, (zero, zero))
        gradients[name] = gradient = (first - 0.9 * old[0]) / 0.1
        right = 0.98 * old[1] + 0.02 * gradient**2
        change = first / (1 - 0.9**step) / ((right / (1 - 0.98**step)).sqrt() + 1e-9)
        for what, value, wanted in (
            (f"the second mean of {name}", second, right),
            (f"the parameter {name}", after[name], before[name] - rate * change),
        ):
            close = expectations.close_enough(value, wanted, 10 * expectations.GRADIENT_SLACK)
            expectations.true(close, f"{what} is wrong for {case}.")
    for _ in range(2):
        way = {name: draw.normal(*value.shape).double() for name, value in own_state.items()}
        if models.options.get("shared"):
            shared = way["src_embed.lut.weight"]
            way |= {"tgt_embed.lut.weight": shared, "generator.proj.weight": shared}
        up, down = (
            models.loss_at(
                {name: value + sign * 1e-6 * way[name] for name, value in own_state.items()},
                source,
                target,
                smoothing,
            )
            for sign in (1, -1)
        )
        slope = (up - down) / 2e-6
        said = sum(float((gradients[name] * way[name]).sum()) for name in gradients if name in way)
        expectations.true(
            abs(slope - said) <= 1e-4 * max(1.0, abs(slope)),
            f"the gradient behind the moments is not that of the loss of this batch, for {case}.",
        )


def moments_of(draw, state):
    """Means as they may be after some steps, for every parameter."""
    return {
        name: (
            draw.normal(*value.shape, scale=0.1).double(),
            draw.uniform(*value.shape, low=0.01, high=0.1).double(),
        )
        for name, value in state.items()
    }


@exercise("train_step")
def test_train_loss(student, draw):
    """The loss is that of the model as it was before the step, on the shifted, padded target."""
    state = small_state(draw, 1, **TINY)
    options = small(1, **TINY)
    model = student.module("EncoderDecoder", state=state, dtype=torch.float64, **options)
    source, target = batch_of(draw, [4, 2, 3], [1, 4, 2])
    said = expectations.tensor(model(source, target[:, :-1]), what="what the model says")
    loss, _ = train(student, model, source, target, {}, 1, 0.5)
    same_number(loss, smoothed(said, target), "the loss", "a batch with padding")
    said = model(source, target[:, :-1])
    loss, _ = train(student, model, source, target, {}, 1, 0.5, smoothing=0.4)
    same_number(loss, smoothed(said, target, 0.4), "the loss", "the next step, smoothing=0.4")


@exercise("train_step", weight=2)
def test_train_two_steps(student, reference, draw):
    """Every parameter changes as adam_step says, by the gradient of its own batch alone."""
    models = trainees(student, reference, draw)
    moments = {}
    for step in (1, 2):
        batch = batch_of(draw, [2, 4], [3, 1])
        given = (models, batch, moments, step, 0.02, f"step {step}")
        # From the right moments: up to rounding they are the student's own.
        moments = same_training(student, reference, draw, *given)
    same_state(models, "two steps")


@exercise("train_step")
def test_train_settings(student, reference, draw):
    """Step, rate, smoothing and the given moments are used as they are; the moments stay."""
    models = trainees(student, reference, draw, norm_first=True)
    batch = batch_of(draw, [3, 2], [2, 3])
    moments = moments_of(draw, models.state)
    case = "step=7, rate=0.3, smoothing=0 and given moments"
    given = (models, batch, moments, 7, 0.3, case)
    same_training(student, reference, draw, *given, smoothing=0.0)
    same_state(models, f"a step with {case}")


@hidden
@exercise("train_step")
def test_train_without_gradient(student, reference, draw):
    """What the loss does not depend on has no gradient: it stays as it is and gets no moments."""
    models = trainees(student, reference, draw)
    state = {"proj.weight": draw.normal(3, 4), "proj.bias": draw.normal(3)}
    spare = pair(student, reference, "Generator", state, torch.float64, d_model=4, vocab_size=3)
    for model, part in zip((models.mine, models.theirs), spare, strict=True):
        model.method("add_module", "spare", part)
    batch = batch_of(draw, [2, 3], [3, 2])
    case = "a model with a part that is not used"
    same_training(student, reference, draw, models, batch, {}, 1, 0.1, case)
    same_state(models, f"a step of {case}")


@hidden
@exercise("train_step")
def test_train_shared(student, reference, draw):
    """A parameter that stands in three places is updated once."""
    options = {**SMALL, **TINY, "num_layers": 1, "norm_first": False, "shared": True}
    state = small_state(draw, 1, **TINY)
    table = state["src_embed.lut.weight"]
    state |= {"tgt_embed.lut.weight": table, "generator.proj.weight": table}
    models = Models(student, reference, draw, state, "make_model", **options)
    batch = batch_of(draw, [3, 2], [1, 3])
    case = "a model with shared embeddings"
    same_training(student, reference, draw, models, batch, {}, 1, 0.1, case)
    same_state(models, f"a step of {case}")


@hidden
@exercise("train_step")
def test_train_mode(student, draw):
    """The model is used in the mode in which it comes: dropout acts in training mode only."""
    model = own_model(student, draw, dropout=0.5)
    source, target = sources_of(draw, [4, 4]), targets_of(draw, [3, 3])
    said = expectations.tensor(model(source, target[:, :-1]), what="what the model says")
    noisy = model.train()(source, target[:, :-1])
    loss, _ = train(student, model.eval(), source, target, {}, 1, 0.0)
    same_number(loss, smoothed(said, target), "the loss", "a model in evaluation mode")
    loss, _ = train(student, model.train(), source, target, {}, 1, 0.0)
    whole = not expectations.close_enough(said, noisy)  # its dropout works
    expectations.true(
        not whole or abs(loss - smoothed(said, target)) > 1e-9,
        "your train_step switches dropout off; the mode of the model is the caller's business.",
    )


# --------------------------------------------------------------------------------------------
# What the searches share
# --------------------------------------------------------------------------------------------


def random_table(draw, sources=1, steps=4, vocabulary=6, scale=1.5):
    """A table of random logits: what is likely next depends on source, place and previous token."""
    return draw.normal(sources, steps, vocabulary, vocabulary, scale=scale).double()


def table_pair(student, reference, table):
    return pair(student, reference, "TableModel", table=table)


def first_tokens(*first):
    """Sources whose first tokens are given: a table needs no more."""
    return torch.tensor([[token] for token in first])


def misleading_table():
    """Token 4 looks best, 0.6 to 0.4 for 5, but 5 goes on to EOS with 0.95 and 4 with 0.5."""
    table = torch.full((1, 2, 6, 6), -20.0, dtype=torch.float64)
    table[0, 0, BOS, [4, 5]] = torch.tensor([0.6, 0.4], dtype=torch.float64).log()
    table[0, 1, 4, [EOS, 4, 5]] = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    table[0, 1, 5, [EOS, 4]] = torch.tensor([0.95, 0.05], dtype=torch.float64).log()
    return table


def ending_table(draw, ends, steps=6, vocabulary=6):
    """A random table in which source s ends after ends[s] tokens, or never for None."""
    table = random_table(draw, len(ends), steps, vocabulary)
    table[:, :, :, EOS] = -20.0
    for source, end in enumerate(ends):
        if end is not None:
            table[source, end - 1, :, EOS] = 20.0
    return table


def telling_state(draw):
    """Parameters of a Transformer that tells whether a search hides what it should hide.

    Most random Transformers write much the same for every source, mask or no mask. This one, the
    best of a thousand, writes something else for seven padded sources in ten as soon as one of the
    masks is missing. Its numbers are the same for every draw and do not depend on the order of the
    names; PAD is never likely, so that it makes no difference whether a search masks it.
    """
    state = {}
    for name, like in small_state(draw, 2, tgt_vocab=16).items():
        numbers = type(draw)(520, name)
        kind = name.split(".")[-1]
        if kind == "weight":
            scale = (4.0 if "lut" in name else 1.2) * like.shape[1] ** -0.5
        else:
            scale = 0.3 if kind == "bias" else 0.2
        state[name] = numbers.normal(*like.shape, scale=scale).double() + (kind == "gamma")
    state["generator.proj.bias"][PAD] = -60.0
    return state


class OwnModel:
    """The student's own Transformer; a table while there is none that runs.

    The searches must work with any model, but answer for nobody's layers: where the student's model
    says something else than the reference's, `right` is False, and what it says itself is asked
    for.
    """

    def __init__(self, student, reference, draw):
        state = telling_state(draw)
        self.table = random_table(draw, sources=7, vocabulary=16)
        self.table[..., PAD] = -60.0
        options = small(2, tgt_vocab=16)
        self.theirs = reference.module(
            "EncoderDecoder", state=state, dtype=torch.float64, **options
        )
        start = sources_of(draw, [4, 2]), draw.integers(UNK + 1, 16, 2, 3)
        wanted = self.theirs(*start)
        try:
            self.model = student.module(
                "EncoderDecoder", state=state, dtype=torch.float64, **options
            )
            said = self.model(*start)
            self.whole = isinstance(said, torch.Tensor) and said.shape == wanted.shape
        except (StudentError, Todo):
            self.whole = False
        self.right = self.whole and expectations.close_enough(said, wanted)
        if not self.whole:
            self.model = student.module("TableModel", table=self.table)

    def log_probs(self, source, ids):
        """What it says of the next token along the rows of ids: (B, n, V)."""
        fed = torch.cat([torch.full_like(ids[:, :1], BOS), ids[:, :-1]], dim=1)
        if self.whole:
            return uncached(self.model, source, fed)[1].double()
        place = torch.arange(fed.shape[1]).clamp(max=self.table.shape[1] - 1)
        return self.table[source[:, :1], place, fed].log_softmax(-1)


# --------------------------------------------------------------------------------------------
# greedy_decode
# --------------------------------------------------------------------------------------------


def same_greedy(student, reference, models, source, length, case):
    mine, theirs = models
    expectations.close(
        student.greedy_decode(mine, source, length),
        reference.greedy_decode(theirs, source, length),
        what="the ids",
        case=case,
    )


@exercise("greedy_decode")
def test_greedy_one_row(student, reference, draw):
    """From BOS, each step takes the likeliest token; EOS belongs to the result, BOS does not."""
    ends = [1, 4]
    models = table_pair(student, reference, ending_table(draw, ends))
    for row, end in enumerate(ends):
        case = f"one source, EOS at token {end}"
        same_greedy(student, reference, models, first_tokens(row), 6, case)


@hidden
@exercise("greedy_decode")
def test_greedy_max_length(student, reference, draw):
    """Without EOS the result has max_length tokens, and no more."""
    models = table_pair(student, reference, ending_table(draw, [None, 3]))
    for length in (1, 5):
        case = f"a source that never ends, max_length={length}"
        same_greedy(student, reference, models, first_tokens(0), length, case)
    case = "two sources of which one never ends, max_length=4"
    same_greedy(student, reference, models, first_tokens(0, 1), 4, case)


@exercise("greedy_decode", weight=2)
def test_greedy_rows_end_apart(student, reference, draw):
    """A row that has produced EOS gets PAD, while the others go on; the longest one ends it all."""
    ends = [2, 5, 1, 2, 3]
    table = ending_table(draw, ends)
    # After EOS this table would go on with token 5, EOS again and so on.
    table[:, :, EOS, 5] += 9.0
    models = table_pair(student, reference, table)
    for rows in ([2, 4], [0, 1, 2, 3, 4]):
        case = f"sources that end after {[ends[row] for row in rows]} tokens"
        same_greedy(student, reference, models, first_tokens(*rows), 8, case)


@exercise("greedy_decode")
def test_greedy_refusals(student, draw):
    """A max_length below 1 is refused with a ValueError."""
    mine = student.module("TableModel", table=random_table(draw))
    refuses(
        lambda length: student.greedy_decode(mine, first_tokens(0), length),
        {"max_length=0": (0,), "max_length=-3": (-3,)},
    )


@aspect
@exercise("greedy_decode", weight=2)
def test_greedy_transformer(student, reference, draw):
    """Every row follows the model's own argmax, and never sees the padding of its source."""
    own = OwnModel(student, reference, draw)
    source = sources_of(draw, [6, 2, 4, 1, 3, 4, 2, 3, 1, 2, 4, 3])
    case = "padded sources, a Transformer as the model"
    wanted = reference.greedy_decode(own.theirs, source, 7)
    seen = student.observe("greedy_decode", own.model, source, 7, grad=False)
    expectations.unchanged(seen)
    ids = expectations.tensor(seen.value, what="the ids")
    if own.right:
        expectations.close(ids, wanted, what="the ids", case=case)
        return
    expectations.true(
        ids.ndim == 2 and len(ids) == 12 and 1 <= ids.shape[1] <= 7 and ids.dtype == torch.int64,
        f"the ids should be int64 of the shape (12, at most 7), but are {ids.dtype} of "
        f"{tuple(ids.shape)} for {case}.",
    )
    expectations.true(
        bool(((ids >= 0) & (ids < 16)).all()), f"the ids should lie in the vocabulary for {case}."
    )
    over = torch.cumsum(ids == EOS, dim=1) - (ids == EOS).long() > 0  # after the first EOS
    expectations.true(
        not bool(over.all(0).any()) and (ids.shape[1] == 7 or bool((ids == EOS).any(1).all())),
        f"the ids should end when every row has produced EOS, or after 7 tokens, for {case}.",
    )
    wanted = own.log_probs(source, ids).argmax(-1).masked_fill(over, PAD)
    expectations.equal(ids, wanted, what="the ids", case=case)


@hidden
@exercise("greedy_decode", weight=3)
def test_greedy_random_tables(student, reference, draw):
    """Any table, any batch; PAD, BOS and UNK are tokens like others, and some are impossible."""
    table = random_table(draw, 5, 7, 7)
    table[:, :, :, PAD] += 1.0
    table[draw.uniform(*table.shape) < 0.2] = -torch.inf
    table[:, :, :, 5] = 0.0
    models = table_pair(student, reference, table)
    for batch, length in [(1, 20), (9, 9)]:
        source = draw.integers(0, 5, batch, 3)
        case = f"a random table, B={batch} and max_length={length}"
        same_greedy(student, reference, models, source, length, case)


# --------------------------------------------------------------------------------------------
# beam_search
# --------------------------------------------------------------------------------------------


def ids_of(found, what, case):
    """The ids of a hypothesis: a list of ints."""
    return [whole_number(token, what, case) for token in as_list(found, what, case)]


def same_hypotheses(got, want, case=""):
    """The same hypotheses with the same scores, best first; equal scores in any order."""
    pairs = []
    for place, entry in enumerate(as_list(got, "the result", case)):
        ids, score = expectations.pair(entry, what=f"entry {place} of the result")
        pairs.append((ids_of(ids, f"the ids of hypothesis {place}", case), score))
    left = [(list(ids), score) for ids, score in want]
    for place, (ids, score) in enumerate(pairs[: len(want)]):
        wanted = left[0]
        equal = [one for one in left if abs(one[1] - wanted[1]) <= 1e-9]
        wanted = next((one for one in equal if one[0] == ids), wanted)
        expectations.true(
            ids == wanted[0],
            f"the ids of hypothesis {place} should be {wanted[0]}, but are {ids} for {case}.",
        )
        same_number(score, wanted[1], what=f"the score of hypothesis {place}", case=case)
        left.remove(wanted)
    expectations.true(
        len(pairs) == len(want),
        f"the result should hold {len(want)} hypotheses, but holds {len(pairs)} for {case}.",
    )


def same_beam(student, reference, models, case, *arguments, source=0, **options):
    mine, theirs = models
    same_hypotheses(
        student.beam_search(mine, first_tokens(source), *arguments, **options),
        reference.beam_search(theirs, first_tokens(source), *arguments, **options),
        case,
    )


@exercise("beam_search")
def test_beam_of_one(student, reference, draw):
    """A beam of 1 is greedy search: one hypothesis, with its log-probability for alpha=0."""
    models = table_pair(student, reference, ending_table(draw, [3, None]))
    for source, words, length in [(0, "at token 3", 4), (1, "never", 3)]:
        case = f"a beam of 1, EOS {words}, max_length={length}, alpha=0"
        same_beam(student, reference, models, case, 1, length, 0.0, source=source)


@exercise("beam_search")
def test_beam_beats_greedy(student, reference):
    """A beam of 2 finds what greedy search misses: 0.4 · 0.95 against 0.6 · 0.5."""
    models = table_pair(student, reference, misleading_table())
    case = "0.4 · 0.95 against 0.6 · 0.5, a beam of 2, alpha=0"
    same_beam(student, reference, models, case, 2, 2, 0.0)


@exercise("beam_search")
def test_beam_values(student, reference, draw):
    """Hypotheses, their order and their scores, for beams of several sizes."""
    table = random_table(draw, 2, 5)
    table[:, 0, :, EOS] -= 3.0
    models = table_pair(student, reference, table)
    for beam, length, source in [(2, 3, 0), (6, 5, 1)]:
        case = f"a beam of {beam}, max_length={length}"
        same_beam(student, reference, models, case, beam, length, source=source)


@exercise("beam_search", weight=2)
def test_beam_finished_leave(student, reference, draw):
    """What ends in EOS leaves the beam, which shrinks; what is live at the end joins as it is."""
    table = random_table(draw, 2, 5)
    table[0, :, :, EOS] += 1.5
    table[1, :, :, EOS] = -20.0
    models = table_pair(student, reference, table)
    for beam, length in [(2, 2), (4, 5)]:
        case = f"hypotheses that end early, a beam of {beam}, max_length={length}"
        same_beam(student, reference, models, case, beam, length)
    case = "no hypothesis that ends, a beam of 3, max_length=3"
    same_beam(student, reference, models, case, 3, 3, source=1)


@exercise("beam_search", weight=2)
def test_beam_length_penalty(student, reference, draw):
    """The score is the log-probability divided by ((5 + len(ids)) / 6) ** alpha, EOS counted."""
    # exp(-1) at once against exp(-1.24) in three tokens: the order turns with alpha.
    table = torch.full((2, 5, 6, 6), -30.0, dtype=torch.float64)
    table[0, 0, BOS, [EOS, 4]] = torch.tensor([-1.0, -0.46], dtype=torch.float64)
    table[0, 1, 4, [5, 3]] = torch.tensor([-0.48, -0.97], dtype=torch.float64)
    table[0, 2, 5, [EOS, 4]] = torch.tensor([-0.3, -1.35], dtype=torch.float64)
    table[1] = random_table(draw, 1, 5)
    table[1, :, :, EOS] += 1.5
    models = table_pair(student, reference, table)
    for alpha in (0.0, 1.0):
        case = f"a short and a long hypothesis, alpha={alpha}"
        same_beam(student, reference, models, case, 2, 3, alpha)
    for alpha in (0.6, 5.0):
        case = f"a beam of 4, alpha={alpha}"
        same_beam(student, reference, models, case, 4, 5, source=1, alpha=alpha)


@exercise("beam_search")
def test_beam_refusals(student, draw):
    """A beam or max_length below 1, a negative alpha and several sources are refused."""
    mine = student.module("TableModel", table=random_table(draw, 2))
    one = first_tokens(0)
    refuses(
        student.beam_search,
        {
            "beam_size=0": (mine, one, 0, 3),
            "max_length=0": (mine, one, 2, 0),
            "alpha=-0.5": (mine, one, 2, 3, -0.5),
            "two sources": (mine, first_tokens(0, 1), 2, 3),
        },
    )


@exercise("beam_search")
def test_beam_transformer(student, reference, draw):
    """Each score is what a Transformer itself says of the hypothesis, for a padded source."""
    own = OwnModel(student, reference, draw)
    source = sources_of(draw, [5, 3])[1:]  # (1, 5), two of them padding
    case = "a padded source, a Transformer as the model"
    wanted = reference.beam_search(own.theirs, source, 4, 5)
    found = student.beam_search(own.model, source, 4, 5)
    if own.right:
        same_hypotheses(found, wanted, case)
        return
    found = as_list(found, "the result", case)
    expectations.true(
        len(found) == 4, f"the result should hold 4 hypotheses for a beam of 4 and {case}."
    )
    pairs = [expectations.pair(entry, what="a hypothesis") for entry in found]
    rows = [ids_of(ids, "the ids of a hypothesis", case) for ids, _ in pairs]
    expectations.true(
        all(1 <= len(ids) <= 5 and min(ids) >= 0 and max(ids) < 16 for ids in rows),
        f"the ids of a hypothesis should be 1 to max_length ids of the vocabulary for {case}.",
    )
    padded = torch.tensor([[*ids, *[PAD] * (5 - len(ids))] for ids in rows])
    said = own.log_probs(source.expand(4, -1), padded).gather(-1, padded.unsqueeze(-1))
    for ids, (_, score), steps in zip(rows, pairs, said.squeeze(-1), strict=True):
        total = float(steps[: len(ids)].sum()) / ((5 + len(ids)) / 6) ** 0.6
        same_number(score, total, what=f"the score of {ids}", case=case)
    scores = [score for _, score in pairs]
    expectations.true(
        scores == sorted(scores, reverse=True), "the hypotheses should stand best first."
    )


@hidden
@exercise("beam_search", weight=2)
def test_beam_wide(student, reference, draw):
    """A beam with room for everything finds all there is, the best first; alpha as well."""
    models = table_pair(student, reference, random_table(draw, 1, 3, 5))
    case = "a beam of 150, V=5, max_length=3, alpha=1"
    same_beam(student, reference, models, case, 150, 3, alpha=1.0)


@hidden
@exercise("beam_search", weight=2)
def test_beam_impossible_tokens(student, reference, draw):
    """What has the probability 0 is dropped, so that fewer than beam_size may be left."""
    table = random_table(draw, 1, 4, 6)
    table[:, :, :, [PAD, BOS, UNK]] = -torch.inf
    table[:, 0, :, 5] = -torch.inf
    table[:, 2, 4, :] = -torch.inf
    table[:, 2, 4, EOS] = 0.0
    models = table_pair(student, reference, table)
    for beam, length in [(3, 1), (8, 4)]:
        case = f"tokens of probability 0, a beam of {beam}, max_length={length}"
        same_beam(student, reference, models, case, beam, length)


@hidden
@exercise("beam_search", weight=2)
def test_beam_tiny_probabilities(student, reference, draw):
    """Log-probabilities are added, so that improbable hypotheses do not vanish; ties may stand."""
    table = random_table(draw, 2, 2, 5)
    table[0, :, :, 3:] -= 900.0
    table[0, :, :, EOS] -= 901.0
    table[0, :, :, BOS] -= 900.0
    # Two tokens that are equally probable, whatever comes before.
    table[1] = -torch.inf
    table[1, :, :, [EOS, 4]] = 0.0
    models = table_pair(student, reference, table)
    case = "tokens of probability exp(-900), a beam of 9"
    same_beam(student, reference, models, case, 9, 2)
    case = "tokens of equal probability, a beam of 5"
    same_beam(student, reference, models, case, 5, 2, source=1)


# --------------------------------------------------------------------------------------------
# What the tests of the cache share
# --------------------------------------------------------------------------------------------

CACHE = ("src_mask", "memory_keys", "memory_values", "keys", "values")


def heads(x, state, name, num_heads=2):
    """A linear layer of `state` applied to x (B, T, D), split into heads: (B, H, T, D/H)."""
    made = x @ state[f"{name}.weight"].T + state[f"{name}.bias"]
    return made.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def cache_of(memory, mask, state, num_layers, num_heads=2):
    """The cache before the first step, of a memory that is given."""
    layers = [f"decoder.layers.{index}.src_attn" for index in range(num_layers)]
    nothing = memory.new_zeros(len(memory), num_heads, 0, memory.shape[-1] // num_heads)
    return {
        "src_mask": mask,
        "memory_keys": [heads(memory, state, f"{name}.k_proj", num_heads) for name in layers],
        "memory_values": [heads(memory, state, f"{name}.v_proj", num_heads) for name in layers],
        "keys": [nothing.clone() for _ in layers],
        "values": [nothing.clone() for _ in layers],
    }


def whole_cache(cache, shapes, case):
    """A cache has the five entries, and its tensors the given shapes (or None), layer by layer."""
    expectations.true(
        isinstance(cache, dict),
        f"the cache should be a dict, but is a {expectations.type_name(cache)}.",
    )
    for key in CACHE:
        expectations.true(key in cache, f'the cache has no entry "{key}" for {case}.')
    extra = sorted(set(cache) - set(CACHE))
    expectations.true(not extra, f"the cache has other entries than the five: {', '.join(extra)}.")
    for key, shape in shapes.items():
        what = f'the entry "{key}"'
        if key == "src_mask":
            expectations.shape(cache[key], shape[0], what, case=case)
            expectations.true(cache[key].dtype == torch.bool, f"{what} should be bool for {case}.")
            continue
        parts = as_list(cache[key], what, case)
        expectations.true(
            len(parts) == len(shape),
            f"{what} should hold {len(shape)} tensors, one for each layer, "
            f"but holds {len(parts)} for {case}.",
        )
        for layer, (part, wanted) in enumerate(zip(parts, shape, strict=True)):
            expectations.shape(part, wanted, f"{what}, layer {layer},", case=case)


def same_cache(cache, wanted, case, keys=CACHE):
    """The entries of a cache are the wanted ones."""
    whole_cache(
        cache,
        {
            key: [tuple(wanted[key].shape)]
            if key == "src_mask"
            else [tuple(part.shape) for part in wanted[key]]
            for key in CACHE
        },
        case,
    )
    for key in keys:
        what = f'the entry "{key}"'
        if key == "src_mask":
            expectations.close(cache[key], wanted[key], what=what, case=case)
            continue
        for layer, (part, right) in enumerate(zip(cache[key], wanted[key], strict=True)):
            expectations.close(part, right, what=f"{what}, layer {layer},", case=case)


# --------------------------------------------------------------------------------------------
# start_cache
# --------------------------------------------------------------------------------------------


def started(student, draw, num_layers, lengths, norm_first=False, dtype=torch.float64, **sizes):
    """The student's cache at the start, and what it should be for the memory of their model."""
    options = small(num_layers, norm_first, **sizes)
    state = small_state(draw, num_layers, norm_first)
    state = {name: value.to(dtype) for name, value in state.items()}
    model = student.module("EncoderDecoder", state=state, dtype=dtype, **options)
    source = sources_of(draw, lengths)
    seen = student.observe("start_cache", model, source, grad=False)
    mask = (source != PAD).unsqueeze(1)
    memory = expectations.tensor(
        model.method("encode", source, mask), what="the memory of your model"
    )
    return seen, cache_of(memory, mask, state, num_layers, options["num_heads"])


@aspect
@exercise("start_cache")
def test_cache_contract(student, draw):
    """A dict of five entries, with one tensor a layer in each list and the stated shapes."""
    seen, wanted = started(student, draw, 2, [3, 4])
    same_cache(seen.value, wanted, "2 layers, B=2, S=4", keys=())
    expectations.unchanged(seen)


@exercise("start_cache")
def test_cache_memory(student, draw):
    """Each layer's own src_attn projects the memory, keys by k_proj and values by v_proj."""
    seen, wanted = started(student, draw, 2, [4, 4])
    same_cache(seen.value, wanted, "2 layers, sources of 4 tokens")


@exercise("start_cache")
def test_cache_padding(student, draw):
    """src_mask marks the padding, and the encoder gets it too."""
    seen, wanted = started(student, draw, 1, [2, 5, 3])
    same_cache(seen.value, wanted, "sources of 2, 5 and 3 tokens")


@hidden
@exercise("start_cache", weight=2)
def test_cache_other_models(student, draw):
    """Norms first, more heads, float32."""
    seen, wanted = started(
        student, draw, 2, [5, 1], norm_first=True, dtype=torch.float32, num_heads=4
    )
    same_cache(seen.value, wanted, "norms first, 4 heads, float32")


# --------------------------------------------------------------------------------------------
# decode_step
# --------------------------------------------------------------------------------------------


def random_cache(draw, num_layers, batch, length, sources, dtype=torch.float64):
    """A cache after `length` steps, of random numbers; `sources` are the lengths of the sources."""

    def parts(steps):
        return [draw.normal(batch, 2, steps, 4).to(dtype) for _ in range(num_layers)]

    longest = max(sources)
    return {
        "src_mask": (torch.arange(longest) < torch.tensor(sources).unsqueeze(1)).unsqueeze(1),
        "memory_keys": parts(longest),
        "memory_values": parts(longest),
        "keys": parts(length),
        "values": parts(length),
    }


def same_step(student, reference, models, token, cache, case):
    wanted, cache_after = reference.decode_step(models.theirs, token, cache)
    seen = student.observe("decode_step", models.mine, token, cache, grad=False)
    log_probs, after = expectations.pair(seen.value, what="the result (log_probs, cache)")
    if models.right:
        expectations.close(log_probs, wanted, what="the log-probabilities", case=case)
        same_cache(after, cache_after, case)
    expectations.unchanged(seen)


def steppers(student, reference, draw, num_layers, norm_first=False):
    """Two small models with the same parameters."""
    state = small_state(draw, num_layers, norm_first)
    return Models(student, reference, draw, state, **small(num_layers, norm_first))


@exercise("decode_step", weight=2)
def test_step_values(student, reference, draw):
    """A step attends to all cached keys and its own, at the position after them."""
    models = steppers(student, reference, draw, 2)
    cache = random_cache(draw, 2, 2, 0, [3, 3])
    same_step(student, reference, models, torch.tensor([BOS, BOS]), cache, "an empty cache")
    cache = random_cache(draw, 2, 3, 4, [2, 4, 3])
    same_step(student, reference, models, draw.integers(4, 8, 3), cache, "4 cached positions")
    if not models.right:  # Then the step is to agree with the student's own model.
        same_chain(student, models.mine, models.state, draw, 2, [3, 4], 3)


@exercise("decode_step", weight=2)
def test_step_norm_first(student, reference, draw):
    """With the norms first: keys and values come from the normalised input, and a norm ends it."""
    models = steppers(student, reference, draw, 2, norm_first=True)
    cache = random_cache(draw, 2, 2, 3, [4, 2])
    token = draw.integers(4, 8, 2)
    same_step(student, reference, models, token, cache, "3 cached positions, norms first")
    if not models.right:
        same_chain(student, models.mine, models.state, draw, 2, [3, 4], 3)


@exercise("decode_step")
def test_step_grows_the_cache(student, draw):
    """Keys and values grow by one position; all else stays, and so does the given cache."""
    model = own_model(student, draw, num_layers=2)
    cache = random_cache(draw, 2, 2, 3, [3, 4])
    seen = student.observe("decode_step", model, draw.integers(4, 8, 2), cache, grad=False)
    log_probs, after = expectations.pair(seen.value, what="the result (log_probs, cache)")
    case = "3 cached positions"
    expectations.shape(log_probs, (2, 8), what="the log-probabilities", case=case)
    longer = [(2, 2, 4, 4)] * 2
    whole_cache(after, {"keys": longer, "values": longer}, case)
    cut = {key: [part[:, :, :3] for part in after[key]] for key in ("keys", "values")}
    same_cache({**after, **cut}, cache, f"{case}, the old part")
    expectations.unchanged(seen)


@exercise("decode_step")
def test_step_source_mask(student, draw):
    """What src_mask hides does not matter; what it shows does, and so does every cached key."""
    model = own_model(student, draw)
    cache = random_cache(draw, 1, 2, 3, [2, 4])
    token = draw.integers(4, 8, 2)

    def log_probs(**changes):
        return expectations.tensor(
            expectations.pair(student.decode_step(model, token, {**cache, **changes}))[0],
            what="the log-probabilities",
        )

    before = log_probs()
    padding = ~cache["src_mask"].unsqueeze(-1)  # (2, 1, 4, 1)
    hidden_changed = {
        key: [torch.where(padding, part + 5.0, part) for part in cache[key]]
        for key in ("memory_keys", "memory_values")
    }
    expectations.close(
        log_probs(**hidden_changed),
        before,
        what="the log-probabilities",
        case="other memory at the padding",
    )
    for key, place in (("memory_values", 1), ("keys", 0)):
        changed = [part.clone() for part in cache[key]]
        changed[0][:, :, place] += draw.normal(2, 2, 4).double()
        gap = (log_probs(**{key: changed}) - before).abs().amax(-1)
        expectations.true(
            bool((gap > 1e-9).all()),
            f'the log-probabilities do not depend on entry {place} of "{key}" in the cache.',
        )


def same_chain(student, model, state, draw, num_layers, lengths, steps):
    """Steps with a cache give what the student's own model says without one."""
    source = sources_of(draw, lengths)
    target = draw.integers(4, 8, len(lengths), steps)
    target[:, 0] = BOS
    memory, said = uncached(model, source, target)
    cache = cache_of(memory, (source != PAD).unsqueeze(1), state, num_layers)
    for step in range(steps):
        got = student.decode_step(model, target[:, step], cache)
        log_probs, cache = expectations.pair(got, what="the result (log_probs, cache)")
        case = f"step {step} of {steps}, compared with the model without a cache"
        expectations.close(log_probs, said[:, step], what="the log-probabilities", case=case)


def chain(student, draw, num_layers, norm_first, lengths, steps):
    state = small_state(draw, num_layers, norm_first)
    options = small(num_layers, norm_first)
    model = student.module("EncoderDecoder", state=state, dtype=torch.float64, **options)
    same_chain(student, model, state, draw, num_layers, lengths, steps)


@hidden
@exercise("decode_step", weight=2)
def test_step_equals_uncached(student, draw):
    """Step by step the log-probabilities are those of the model without a cache."""
    chain(student, draw, 2, False, [4, 2, 3], 4)


@hidden
@exercise("decode_step")
def test_step_equals_uncached_norm_first(student, draw):
    """The same with the norms first, for one row."""
    chain(student, draw, 1, True, [3], 3)


@hidden
@exercise("decode_step")
def test_step_float32(student, draw):
    """Twelve cached positions, one row; a float32 model gives float32, and so does its cache."""
    state = {name: value.float() for name, value in small_state(draw, 1).items()}
    model = student.module("EncoderDecoder", state=state, dtype=torch.float32, **small())
    cache = random_cache(draw, 1, 1, 12, [2], torch.float32)
    got = student.decode_step(model, torch.tensor([6]), cache)
    log_probs, after = expectations.pair(got, what="the result (log_probs, cache)")
    case = "12 cached positions, float32"
    expectations.shape(log_probs, (1, 8), what="the log-probabilities", case=case)
    longer = [(1, 2, 13, 4)]
    whole_cache(after, {"keys": longer, "values": longer}, case)
    for tensor in (log_probs, after["keys"][0], after["values"][0]):
        expectations.true(
            tensor.dtype == torch.float32, f"the results should be float32, not {tensor.dtype}."
        )
    expectations.true(
        abs(float(log_probs.double().exp().sum()) - 1) < 1e-4,
        f"the log-probabilities should be those of a distribution, for {case}.",
    )
