"""Graders of `transformer-model`: layers, stacks, the model."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from autograder.graders.common import (
    State,
    labels,
    linear,
    pair,
    refuses,
    rows_differ,
    same_gradients,
    sizes,
    within,
)
from autograder.graders.parts import Parts, alive, flows, same_by_parts, same_flow
from autograder.graders.transformer.common import (
    CONNECTIONS,
    DECODER,
    ENCODER,
    UNK,
    changes,
    layer_state,
    model_state,
    padded,
    stack_state,
    standard_normal,
    triangle,
)
from autograder.judging import expectations
from autograder.judging.grader_marks import Mistake, aspect, exercise, hidden, promises
from autograder.judging.proxy import StudentError, Todo


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
        sublayer = parts.proxy.module("LayerNorm", state={"gamma": two, "beta": one}, d_model=width)
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
    copies = parts.proxy.module("clones", module=parts.proxy.module("LayerNorm", d_model=1), n=2)
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
        norm = parts.make("LayerNorm", state=norm, d_model=width, dtype=x.dtype)
        x = connect(x, sublayer, norm)
    return x


def stack_by_parts(parts, mine, state, name, norm_first, x, *given, count=2, **options):
    """A stack of the student's layers, each on what the one before returned."""
    state = as_loaded(parts, mine, state)
    for number in range(count):
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
# the features that no other sub-layer writes to. In training mode they show what was dropped.

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


def result_is_whole(output, misconception):
    """No entry of what a layer returns is 0: nothing is dropped outside of the connections."""
    expectations.true(
        not bool((output == 0).any()),
        "In training mode with dropout=0.5 entries of the layer's result are dropped; dropout acts "
        "on what a sub-layer adds.",
        misconception=misconception,
    )


def silenced(state) -> State:
    """The parameters of a stack whose sub-layers add nothing, so that dropout has no effect."""
    last = ("out_proj.weight", "out_proj.bias", "w_2.weight", "w_2.bias")
    return {
        name: torch.zeros_like(value) if name.endswith(last) else value
        for name, value in state.items()
    }


def drops_in_sublayers_only(student, draw, name, given, misconception):
    """A stack in training mode drops nothing but what its sub-layers add."""
    width = given[0].shape[-1]
    attentions = ENCODER if name == "Encoder" else DECODER
    state = silenced(stack_state(draw, attentions, 2, width, 5, norm_first=True))
    options = layer_options(width, 2, 5, dropout=P, norm_first=True)
    mine = student.module(name, state=state, num_layers=2, **options)
    calm = expectations.tensor(mine(*given), what="the output")
    expectations.close(
        mine.train()(*given),
        calm,
        what="the output",
        case="sub-layers that add nothing and dropout=0.5, in training mode",
        misconception=misconception,
    )


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
            what=f"in training mode at dropout=0.5, the share of zeros in what {name} adds",
            false_alarm=2e-10,
        )
        left = part[~gone]
        expectations.true(
            bool((left - left[0]).abs().max() > 1e-3),
            f"In training mode with dropout=0.5 nothing is dropped {inside}; pass dropout to it.",
        )


def drawn_as_embeddings(student, table, words, known_draws):
    """An embedding matrix times sqrt(D) is standard normal, if the student's Embeddings is."""
    size, width = table.shape
    try:
        standard_normal(math.sqrt(width) * table, words)
    except Mistake as mistake:
        square = float((table.double() ** 2).mean())
        for known, variance in known_draws.items():
            if abs(square / variance(size, width) - 1) < 0.15:
                mistake.misconception = known
        try:
            made = Parts(student).proxy.module("Embeddings", vocab_size=size, d_model=width)
            standard_normal(math.sqrt(width) * made.state()["lut.weight"], words)
        except Mistake:
            return
        except (StudentError, Todo, KeyError):
            pass
        raise mistake


# --------------------------------------------------------------------------------------------
# clones
# --------------------------------------------------------------------------------------------


def some_module(student, draw):
    """A module with parameters, the first that there is, and an input for it."""
    vectors, ids = draw.normal(2, 3), draw.integers(0, 4, 1, 5)
    for name, options, given in [
        ("Embeddings", {"vocab_size": 4, "d_model": 3}, ids),
        ("LayerNorm", {"d_model": 3}, vectors),
        ("PositionwiseFeedForward", {"d_model": 3, "d_ff": 2}, vectors),
        ("Generator", {"d_model": 3, "vocab_size": 2}, vectors),
    ]:
        try:
            module = student.module(name, **options)
        except (Todo, StudentError):
            continue
        return module, given
    raise Todo("There is no module yet that could be copied.")


@promises("own-parameters")
@exercise("clones", 2)
def test_clones_are_separate(student, draw):
    """A list of n modules with parameters of their own, equal to the original's."""
    module, _ = some_module(student, draw)
    state = module.state()
    copies = student.module("clones", module=module, n=3)
    length = copies.method("__len__")
    expectations.true(length == 3, f"clones(module, 3) holds {length} modules; it should hold 3.")
    expectations.true(
        copies.method("_get_name") != "Sequential",
        "The copies should be in an nn.ModuleList, but are in an nn.Sequential.",
        misconception="clones_sequential",
    )
    own = list(copies.parameters())
    for number in range(3):
        for name in state:
            expectations.true(
                f"{number}.{name}" in own,
                f"{name} of copy {number} is not a parameter of its own: the three copies have the "
                f"parameters {', '.join(own)}. Create each with copy.deepcopy.",
            )
    for name, value in copies.state().items():
        original = name.split(".", 1)[1]
        expectations.true(
            original in state, f"A copy has {original}, which the original doesn't have."
        )
        expectations.close(value, state[original], what=f"{original} of copy {name.split('.')[0]}")


@promises("bad-number")
@exercise("clones")
def test_clones_refusals(student, draw):
    """An n below 1 raises a ValueError."""
    module, _ = some_module(student, draw)
    refuses(lambda n: student.module("clones", module=module, n=n), {"n=-1": (-1,), "n=0": (0,)})


@hidden
@exercise("clones")
def test_clones_one(student, draw):
    """A single copy is a list of one, not the module itself: training one spares the other."""
    module, given = some_module(student, draw)
    copies = student.module("clones", module=module, n=1)
    expectations.true(copies.method("__len__") == 1, "clones(module, 1) should hold 1 module.")
    stays(module, given, copies)


def stays(module, given, copies):
    """Training the original does not change the copies: none of them is the original."""
    before = module.state()
    module.step(given)
    for name, value in copies.state().items():
        original = name.split(".", 1)[1]
        expectations.true(
            original in before, f"A copy has {original}, which the original doesn't have."
        )
        expectations.close(
            value, before[original], what=f"{name}", case="a step of training of the original"
        )


@hidden
@promises("own-parameters")
@exercise("clones")
def test_clones_leave_the_original(student, draw):
    """None of the entries is the original, and buffers are copied, too."""
    module, given = some_module(student, draw)
    stays(module, given, student.module("clones", module=module, n=3))
    table = student.module("PositionalEncoding", d_model=4, max_length=6)
    copies = student.module("clones", module=table, n=2)
    expectations.true(copies.method("__len__") == 2, "clones(module, 2) should hold 2 modules.")
    expectations.equal(
        sorted(copies.buffers()),
        ["0.table", "1.table"],
        what="the buffers of two copies of a PositionalEncoding",
    )


# --------------------------------------------------------------------------------------------
# EncoderLayer
# --------------------------------------------------------------------------------------------


def layer_options(width, heads, inner, **more):
    return {"d_model": width, "num_heads": heads, "d_ff": inner, **more}


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


@promises("two-sublayers", "submodules")
@exercise("EncoderLayer", 2)
def test_encoder_layer_post(student, reference, draw):
    """Self-attention, then feed-forward network, each followed by a norm; in training mode, too."""
    cases = {
        "one vector, post-norm": (draw.normal(1, 1, 6), key_mask([1])),
        "B=2, S=4 and a mask, post-norm": (draw.normal(2, 4, 6), key_mask([4, 2])),
        "B=2, S=4, post-norm, no mask after a call with one": (draw.normal(2, 4, 6), None),
    }
    state, options = layer_state(draw, ENCODER, 6, 5), layer_options(6, 3, 5)
    same_layer(student, reference, "EncoderLayer", state, options, cases, train=True)


@promises("norm-first")
@exercise("EncoderLayer", 2)
def test_encoder_layer_pre(student, reference, draw):
    """With norm_first each sub-layer gets the normalised input, for queries, keys and values."""
    case = "B=2, S=3 and a mask (B, S, S), norm_first=True, dropout=0.4 in evaluation mode"
    options = layer_options(4, 2, 7, dropout=0.4, norm_first=True)
    cases = {case: (draw.normal(2, 3, 4), draw.mask(2, 3, 3))}
    state = layer_state(draw, ENCODER, 4, 7)
    same_layer(student, reference, "EncoderLayer", state, options, cases)


@promises("mask")
@exercise("EncoderLayer")
def test_encoder_layer_mask(student, draw):
    """Vectors at masked positions change no other position; those at real ones change all."""
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


@hidden
@promises("dropout")
@exercise("EncoderLayer")
def test_encoder_layer_dropout(student, draw):
    """dropout reaches attention weights, feed-forward network and both connections."""
    mine = student.module(
        "EncoderLayer",
        state=dropout_state(ENCODER, 12),
        **layer_options(12, 3, INNER, dropout=P, norm_first=True),
    )
    x = draw.normal(6, SEEN_KEYS, 12)
    full = torch.ones(SEEN_KEYS, SEEN_KEYS, dtype=torch.bool)
    output = expectations.tensor(mine.train()(x, full), what="the output")
    expectations.shape(output, x.shape, what="the output")
    result_is_whole(output, "encoder_layer_result_dropped")
    dropout_acts(output - x, DROPS[:1] + DROPS[2:])


DROPS = [
    ("self-attention", "among the weights of self_attn", SEEN_KEYS),
    ("cross-attention", "among the weights of src_attn", SEEN_KEYS),
    ("feed-forward", "in the inner layer of feed_forward", INNER),
]


@hidden
@exercise("EncoderLayer")
def test_encoder_layer_gradients(student, reference, draw):
    """Without a mask: gradients reach x and every parameter; x is not changed."""
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


def same_stack(
    student, reference, draw, name, given, norm_first, case, train=False, count=2, **more
):
    """A stack of layers, and with norm_first a norm, is right by the reference or by parts."""
    attentions = ENCODER if name == "Encoder" else DECODER
    width = given[0].shape[-1]
    state = stack_state(draw, attentions, count, width, 5, norm_first)
    options = layer_options(width, 2, 5)
    more |= {"norm_first": True} if norm_first else {}
    mine, theirs = pair(student, reference, name, state, num_layers=count, **options, **more)
    got = (mine.train() if train else mine)(*given)

    def own(parts):
        layer = f"{name}Layer"
        return stack_by_parts(parts, mine, state, layer, norm_first, *given, count=count, **options)

    same_by_parts(student, got, theirs(*given), own, what="the output", case=case)


def refuses_number(student, name, misconception):
    """A stack of fewer layers than one is refused."""
    for count in (0, -1):
        expectations.raises(
            "ValueError",
            lambda count=count: student.module(name, num_layers=count, **layer_options(4, 2, 5)),
            what=f"num_layers={count}",
            misconception=misconception,
        )


@aspect
@promises("final-norm")
@exercise("Encoder", 2)
def test_encoder_post(student, reference, draw):
    """Each layer reads the output of the one before; post-norm stacks have no final norm."""
    case = "two layers, x of shape (2, 3, 4), post-norm"
    given = draw.normal(2, 3, 4), key_mask([3, 1])
    same_stack(student, reference, draw, "Encoder", given, False, case, train=True)


@promises("final-norm")
@exercise("Encoder", 2)
def test_encoder_pre(student, reference, draw):
    """With norm_first a final norm acts on the output of the last layer."""
    given = draw.normal(2, 3, 4), key_mask([2, 3])
    for count in (1, 3):
        case = f"{count} layer(s), x of shape (2, 3, 4), pre-norm, dropout=0.3 in evaluation mode"
        more = {"count": count, "dropout": 0.3}
        same_stack(student, reference, draw, "Encoder", given, True, case, **more)


@promises("bad-number")
@exercise("Encoder")
def test_encoder_refusals(student):
    """A num_layers below 1 raises a ValueError."""
    refuses_number(student, "Encoder", "encoder_layers_unchecked")


@hidden
@promises("mask")
@exercise("Encoder")
def test_encoder_padding(student, draw):
    """Two layers let nothing leak from padding; dropout acts in training mode only."""
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
    drops_in_sublayers_only(student, draw, "Encoder", (x, mask), "encoder_drops_by_itself")


@hidden
@promises("own-parameters")
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


@promises("cross-attention", "submodules")
@exercise("DecoderLayer", 2)
def test_decoder_layer_post(student, reference, draw):
    """Queries come from the decoder, keys and values from memory; each sub-layer has its norm."""
    two = draw.normal(1, 2, 6), draw.normal(1, 3, 6), key_mask([2], 3), triangle(2)
    many = draw.normal(2, 3, 6), 2.0 * draw.normal(2, 5, 6), key_mask([5, 3]), draw.mask(2, 3, 3)
    x, memory = draw.normal(2, 3, 6), draw.normal(2, 3, 6)
    cases = {
        "B=1, U=2, S=3, both masks, post-norm": two,
        "B=2, U=3, S=5, both masks, post-norm": many,
        "B=2, U=S=3, src_mask only, post-norm": (x, memory, key_mask([3, 2]), None),
        "B=2, U=S=3, tgt_mask only, post-norm": (x, memory, None, draw.mask(2, 3, 3)),
        "B=1, U=1, S=2, post-norm": (x[:1, :1], memory[:1, :2], key_mask([1], 2), key_mask([1])),
    }
    state, options = layer_state(draw, DECODER, 6, 5), layer_options(6, 3, 5)
    same_layer(student, reference, "DecoderLayer", state, options, cases, train=True)


@promises("memory-as-it-is")
@exercise("DecoderLayer", 2)
def test_decoder_layer_pre(student, reference, draw):
    """With norm_first x is normalised before each sub-layer, and memory is used as it is."""
    x, memory = draw.normal(2, 3, 4), 2.0 * draw.normal(2, 3, 4) + 1.0
    given = x, memory, key_mask([3, 2]), triangle(3)
    case = "B=2, U=S=3, both masks, norm_first=True, dropout=0.4 in evaluation mode"
    state = layer_state(draw, DECODER, 4, 7)
    options = layer_options(4, 2, 7, dropout=0.4, norm_first=True)
    same_layer(student, reference, "DecoderLayer", state, options, {case: given})


@promises("masks")
@exercise("DecoderLayer")
def test_decoder_layer_causality(student, draw):
    """With a causal mask no position sees later ones."""
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
        f"With a causal mask, another vector at position 2 of 4 changes the output at "
        f"{changed}; it should change it at [2, 3].",
    )


@hidden
@promises("masks")
@exercise("DecoderLayer")
def test_decoder_layer_source_mask(student, draw):
    """Masked positions of memory change nothing, the others change every position."""
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
@promises("dropout")
@exercise("DecoderLayer")
def test_decoder_layer_dropout(student, draw):
    """dropout reaches both attentions, the feed-forward network and all three connections."""
    mine = student.module(
        "DecoderLayer",
        state=dropout_state(DECODER, 12),
        **layer_options(12, 3, INNER, dropout=P, norm_first=True),
    )
    x, memory = draw.normal(6, SEEN_KEYS, 12), draw.normal(6, SEEN_KEYS, 12)
    full = torch.ones(SEEN_KEYS, SEEN_KEYS, dtype=torch.bool)
    output = expectations.tensor(mine.train()(x, memory, full, full), what="the output")
    expectations.shape(output, x.shape, what="the output")
    result_is_whole(output, "decoder_layer_result_dropped")
    dropout_acts(output - x, DROPS)


@hidden
@exercise("DecoderLayer")
def test_decoder_layer_gradients(student, reference, draw):
    """Without masks: gradients reach x, memory and every parameter; inputs are not changed."""
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
@promises("final-norm", "same-memory")
@exercise("Decoder", 2)
def test_decoder_post(student, reference, draw):
    """Every layer reads the same memory; post-norm stacks have no final norm."""
    case = "two layers, B=2, U=3, S=4, D=4, post-norm"
    given = draw.normal(2, 3, 4), draw.normal(2, 4, 4), key_mask([4, 2]), triangle(3)
    same_stack(student, reference, draw, "Decoder", given, False, case, train=True)


@promises("final-norm")
@exercise("Decoder", 2)
def test_decoder_pre(student, reference, draw):
    """With norm_first a final norm acts on the output of the last layer."""
    masks = key_mask([2, 3]), draw.mask(2, 3, 3)
    given = draw.normal(2, 3, 4), draw.normal(2, 3, 4), *masks
    for count in (1, 3):
        case = f"{count} layer(s), B=2, U=S=3, D=4, norm_first=True, dropout=0.3 in evaluation mode"
        more = {"count": count, "dropout": 0.3}
        same_stack(student, reference, draw, "Decoder", given, True, case, **more)


@promises("bad-number")
@exercise("Decoder")
def test_decoder_refusals(student):
    """A num_layers below 1 raises a ValueError."""
    refuses_number(student, "Decoder", "decoder_layers_unchecked")


@hidden
@promises("same-memory")
@exercise("Decoder")
def test_decoder_masks(student, draw):
    """Two layers let nothing leak from later positions or masked memory; dropout acts."""
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
        ("another vector at a masked position of memory", (x, hidden_memory), []),
    ]:
        changed = changes(mine(*given, *masks), before)
        expectations.true(
            changed == reached,
            f"With both masks {words} changes the output of two layers at {changed}; "
            f"it should change it at {reached}.",
        )
    twice = x.expand(2, 8, 8), memory.expand(2, 5, 8)
    rows_differ(mine.train()(*twice), "the output", (2, 8, 8), p=0.5)
    given = x, memory, *masks
    drops_in_sublayers_only(student, draw, "Decoder", given, "decoder_drops_by_itself")


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


@promises("log-softmax")
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
@promises("log-softmax")
@exercise("Generator")
def test_generator_large(student, reference, draw):
    """Improbable tokens have finite log-probabilities: use log_softmax, not log of softmax."""
    mine, theirs = generator_pair(student, reference, draw, 3, 5)
    hidden_state = 400.0 * draw.normal(2, 2, 3)
    got = mine(hidden_state)
    expectations.finite(got, what="the result", case="hidden states times 400")
    expectations.close(
        got, theirs(hidden_state), what="the log-probabilities", case="hidden states times 400"
    )


@hidden
@promises("any-axes", "dtype-kept")
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
        "src_vocab_size": sources,
        "tgt_vocab_size": targets,
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


@promises("encode")
@exercise("EncoderDecoder")
def test_model_encode(student, reference, draw):
    """encode embeds the source, adds positions up to max_length, runs the encoder with a mask."""
    _, mine, theirs = translator_pair(student, reference, draw, dropout=0.0, max_length=4)
    source = padded(draw, [4, 2], high=8)
    for words, mask in [("its mask", key_mask([4, 2])), ("no mask", None)]:
        same_by_parts(
            student,
            mine.train().method("encode", source, mask),
            theirs.method("encode", source, mask),
            lambda parts, mask=mask: encode_by_parts(parts, mine, source, mask),
            what="the memory",
            case=f"source {source.tolist()} and {words}, dropout=0 in training mode",
        )
    refuses(
        lambda ids: mine.method("encode", ids),
        {"a source of 5 tokens where max_length is 4": (padded(draw, [5], high=8),)},
    )


@promises("decode")
@exercise("EncoderDecoder")
def test_model_decode(student, reference, draw):
    """decode embeds the target, adds positions, and reads memory; it has no generator."""
    _, mine, theirs = translator_pair(student, reference, draw, max_length=4)
    target = padded(draw, [2, 4])
    given = draw.normal(2, 3, 6), key_mask([3, 2]), target, draw.mask(2, 4, 4)
    same_by_parts(
        student,
        mine.method("decode", *given),
        theirs.method("decode", *given),
        lambda parts: decode_by_parts(parts, mine, *given),
        what="the result of decode",
        case=f"target {target.tolist()}, B=2, S=3, in evaluation mode",
    )
    given = given[0], None, target, None
    same_by_parts(
        student,
        mine.method("decode", *given),
        theirs.method("decode", *given),
        lambda parts: decode_by_parts(parts, mine, *given),
        what="the result of decode",
        case="masks that are None, so that every position may be attended to",
    )


@promises("forward-and-its-masks", "submodules")
@exercise("EncoderDecoder", 2)
def test_model_forward(student, reference, draw):
    """forward makes the masks, encodes, decodes, applies the generator: (B, U, V)."""
    _, mine, theirs = translator_pair(
        student, reference, draw, 2, norm_first=True, dropout=0.0, max_length=9
    )
    for lengths, longest in [(([3], [3]), 4), (([4, 2, 5], [3, 5, 1]), 5)]:
        source, target = (padded(draw, given, longest, high=8) for given in lengths)
        same_by_parts(
            student,
            mine.train()(source, target),
            theirs(source, target),
            lambda parts, given=(source, target): translate_by_parts(parts, mine, *given),
            what="the log-probabilities",
            case=f"source {source.tolist()}, target {target.tolist()}, norm_first=True",
        )


@hidden
@promises("forward-and-its-masks")
@exercise("EncoderDecoder")
def test_model_padding(student, draw):
    """More padding changes nothing, and a longer target nothing at earlier positions."""
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
            f"With {words} the earlier log-probabilities change; a mask is missing.",
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
@promises("settings")
@exercise("EncoderDecoder")
def test_model_dropout(student, draw):
    """dropout reaches the positions, the encoder and the decoder, once, in training mode only."""
    mine = student.module("EncoderDecoder", **model_options(5, 6, 1, 8, 16, 2, dropout=0.5))
    x = draw.normal(1, 8, 8).expand(2, 8, 8)
    for name, given in [("position", (x,)), ("encoder", (x, None)), ("decoder", (x, x))]:
        rows_differ(mine.train().method(name, *given), f"the result of {name}", (2, 8, 8), p=0.5)
    ids = draw.integers(UNK + 1, 5, 1, 4).expand(2, 4)
    memory = mine.eval().method("encode", ids)
    expectations.shape(memory, (2, 4, 8), what="the memory")
    expectations.true(
        bool((memory[0] - memory[1]).abs().max() < 1e-5),
        "In evaluation mode the memory of two equal sources differs.",
    )
    # Embeddings far from 0, and layers that only normalise: what was dropped is below the mean.
    state = silenced(model_state(draw, 5, 6, 1, 16, 5))
    for name, value in state.items():
        if name.endswith((".lut.weight", ".gamma", ".beta")):
            state[name] = torch.full_like(value, 4.0 if "lut" in name else name.endswith("gamma"))
    mine = student.module(
        "EncoderDecoder", state=state, **model_options(5, 6, 1, 16, 5, 2, dropout=P)
    ).train()
    ids = draw.integers(UNK + 1, 5, 4, 8)
    x = draw.normal(4, 8, 16)
    for words, method, given in [
        ("the encoder", "encode", (ids,)),
        ("the decoder", "decode", (x, None, ids, None)),
    ]:
        read = expectations.tensor(mine.method(method, *given), what=f"the result of {method}")
        expectations.shape(read, (4, 8, 16), what=f"the result of {method}")
        gone = read < 0
        expectations.rate(
            int(gone.sum()),
            gone.numel(),
            P,
            what=f"in training mode at dropout=0.5, the share of zeros in what {words} reads",
            misconception="model_drops_twice" if gone.double().mean() > 0.6 else None,
        )
    # Two ways to the model whose first requests have the same seed.
    one, other = (mine.through(student.aside()).train().method("encode", ids) for _ in range(2))
    expectations.close(one, other, what="the memory", case="the same seed, in training mode")


@hidden
@exercise("EncoderDecoder")
def test_model_gradients(student, reference, draw):
    """Gradients reach every parameter; embeddings and generator are not tied; float64 works."""
    state, mine, theirs = translator_pair(
        student, reference, draw, dtype=torch.float64, max_length=9
    )
    source, target = padded(draw, [4, 2], high=8), padded(draw, [3, 2])

    def own(parts):
        return translate_by_parts(parts, mine, source, target)

    names = labels(state)
    flows(student, mine, theirs, (source, target), own, "the output", "float64", names)


def same_defaults(student, reference, draw, name):
    """The defaults are as documented: layers, heads, dropout, norms, positions."""
    given = {"src_vocab_size": 9, "tgt_vocab_size": 9, "d_model": 8, "d_ff": 4}
    documented = {"num_layers": 6, "num_heads": 8, "dropout": 0.1, "norm_first": False}
    words = f"the defaults ({sizes(**documented)})"
    # More or fewer layers, or other norms, have other parameters, which are refused here.
    state = model_state(draw, 9, 9, 6, 8, 4)
    mine, theirs = pair(student, reference, name, state, **given)
    missing = sorted(set(state) - set(mine.parameters()))
    alone = name == "EncoderDecoder" and missing == ["tgt_embed.lut.weight"]
    expectations.true(
        not missing,
        f"{' and '.join(missing)} should be a parameter of its own, also for vocabularies of equal "
        "size.",
        misconception="model_embeddings_are_one" if alone else None,
    )
    source, target = padded(draw, [3, 2], high=8), padded(draw, [2, 4])

    def own(parts):
        made = parts.proxy.module("EncoderDecoder", state=state, **given, **documented)
        if name == "make_model":
            return made(source, target)
        return translate_by_parts(parts, made, source, target)

    got, want = mine(source, target), theirs(source, target)
    same_by_parts(student, got, want, own, what="the log-probabilities", case=words)
    x = torch.full((1, 5000, 8), 9.0)
    if name == "make_model":
        words = "dropout=0.1 and the 5000 positions of EncoderDecoder by default"
    else:
        words = "dropout=0.1 and max_length=5000 by default"
    coded = expectations.tensor(mine.train().method("position", x), what="the result of position")
    expectations.shape(coded, x.shape, what="the result of position", case=words)
    expectations.rate(
        int((coded.abs() < 1e-9).sum()),
        coded.numel(),
        0.1,
        what=f"the share of entries that position drops in training mode, {words},",
    )


@exercise("EncoderDecoder")
def test_model_defaults(student, reference, draw):
    """The defaults: 6 layers, 8 heads, dropout=0.1, 5000 positions."""
    same_defaults(student, reference, draw, "EncoderDecoder")


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


@promises("dropout")
@exercise("make_model", 2)
def test_make_model_assembles(student, reference, draw):
    """The arguments reach the EncoderDecoder, and dropout=0 is deterministic in training mode."""
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
            "dropout=0 in training mode",
        )


@promises("xavier", "norms")
@exercise("make_model", 2)
def test_make_model_initial(student, reference):
    """Linear weights by Xavier, biases 0, gamma 1 and beta 0; layers differ from each other."""
    # In these sizes each of PyTorch's own distributions differs enough from Xavier's.
    options = model_options(10, 200, 3, 8, 48, 2, norm_first=True)
    state = new_state(student, reference, **options)
    kept = [name for name, value in state.items() if name.endswith(".bias") and value.any()]
    biases = [name for name in state if name.endswith(".bias")]
    layers = [state[f"encoder.layers.{number}.feed_forward.w_1.weight"] for number in (0, 1)]
    if kept and not torch.equal(*layers):
        left_out = kept == ["generator.proj.bias"]
        expectations.true(
            kept != biases and not left_out,
            f"The initial {kept[0]} should be 0.",
            misconception="make_model_generator_left_out" if left_out else "make_model_biases_kept",
        )
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
        mean = float((joined**2).mean())
        expectations.true(
            bool(joined.abs().max() <= 1.0001),
            f"The initial weights of {kind} exceed the bound of Xavier's uniform distribution, "
            "sqrt(6 / (inputs + outputs)).",
            misconception="make_model_xavier_normal" if abs(mean * 3 - 1) < 0.2 else None,
        )
        # The mean square of a uniform distribution on (-1, 1) is 1/3; Hoeffding's bound.
        count = joined.numel()
        margin = math.sqrt(math.log(2 * 7 / 1e-9) / (2 * count))
        halved = kind in ("q_proj", "k_proj", "v_proj") and abs(mean * 6 - 1) < 0.2
        expectations.true(
            abs(mean - 1 / 3) <= margin,
            f"The initial weights of {kind} have {mean * 3:.3g} times the variance of Xavier's "
            "uniform distribution.",
            misconception="make_model_attention_gain" if halved else None,
        )
    weights = [
        (name, value) for name, value in state.items() if value.ndim == 2 and "embed" not in name
    ]
    for place, (name, value) in enumerate(weights):
        for other, second in weights[:place]:
            expectations.true(
                value.shape != second.shape or not torch.equal(value, second),
                f"{name} is initially a copy of {other}; draw every weight by itself.",
            )


@promises("embeddings")
@exercise("make_model")
def test_make_model_embeddings(student, reference):
    """Both embedding matrices are drawn from a normal distribution of variance 1/D."""
    state = new_state(student, reference, **model_options(300, 300, 1, 8, 4, 2))
    known = {
        "make_model_embeddings_unit_variance": lambda size, width: 1.0,
        "make_model_embeddings_std": lambda size, width: width**-2.0,
    }
    for name in TABLES[:2]:
        rows = state[name].any(dim=1)
        expectations.true(
            bool(rows.all()),
            f"Row {int(rows.int().argmin())} of {name} is 0; draw every row, that of PAD, too.",
            misconception="make_model_padding_zero",
        )
        drawn_as_embeddings(student, state[name], f"the entries of {name} times sqrt(D)", known)
    source, target = (state[name] for name in TABLES[:2])
    expectations.true(
        not bool((source == target).all(-1).any()),
        "Without tie_embeddings the embedding matrices of source and target are initially equal; "
        "draw each by itself.",
    )


@promises("tied")
@exercise("make_model", 2)
def test_make_model_shared(student, draw):
    """With tie_embeddings=True both embedding matrices and generator.proj.weight are one."""
    options = model_options(8, 8, 1, 4, 6, 2, tie_embeddings=True)
    mine = student.module("make_model", **options)
    named = mine.parameters()
    ids = padded(draw, [3, 2], high=8)
    expectations.shape(
        mine(ids, ids), (2, 3, 8), what="the log-probabilities", case="tie_embeddings=True"
    )
    apart = [name for name in TABLES if name in named]
    expectations.true(
        len(apart) == 1,
        f"With tie_embeddings=True {' and '.join(apart) or 'none'} are parameters of their own; "
        f"make all three, {', '.join(TABLES)}, the same nn.Parameter.",
    )
    one, other = mine.state(), student.module("make_model", **options).state()
    expectations.true(
        not torch.equal(one[apart[0]], other[apart[0]]),
        "Two models made one after the other begin with the same weights; make a model and draw "
        "its weights in each call.",
    )


@promises("other-sizes")
@exercise("make_model")
def test_make_model_refusals(student):
    """With tie_embeddings=True vocabularies of different sizes raise a ValueError."""
    refuses(
        lambda sources, targets: student.module(
            "make_model", **model_options(sources, targets, 1, 4, 6, 2, tie_embeddings=True)
        ),
        {"tie_embeddings=True with vocabularies of 8 and 9": (8, 9), "of 9 and 8": (9, 8)},
    )


@hidden
@exercise("make_model")
def test_make_model_shared_initial(student, reference):
    """The shared weight is drawn from a normal distribution of variance 1/D."""
    options = model_options(400, 400, 1, 16, 8, 2, tie_embeddings=True)
    state = new_state(student, reference, **options)
    for name in TABLES:
        expectations.close(state[name], state[TABLES[0]], what=name, case="tie_embeddings=True")
    words = "the entries of the shared weight times sqrt(D)"
    known = {"make_model_shared_by_xavier": lambda size, width: 2.0 / (size + width)}
    drawn_as_embeddings(student, state[TABLES[2]], words, known)
    bias = state["generator.proj.bias"]
    expectations.close(bias, torch.zeros(400), what="the generator's initial bias")


@hidden
@exercise("make_model")
def test_make_model_shared_gradient(student, reference, draw):
    """The shared weight gets gradients from source, target and output."""
    state = model_state(draw, 8, 8, 1, 4, 6, norm_first=True)
    state |= dict.fromkeys(TABLES, state[TABLES[0]])
    options = model_options(8, 8, 1, 4, 6, 2, tie_embeddings=True, norm_first=True)
    mine, theirs = pair(student, reference, "make_model", state, torch.float64, **options)
    source, target = padded(draw, [4, 2], high=8), padded(draw, [3, 2], high=8)
    seen, wanted = mine.observe(source, target), theirs.observe(source, target)
    label = f"parameter {TABLES[0]}"
    mine_label = next(
        (f"parameter {name}" for name in TABLES if f"parameter {name}" in seen.grads), label
    )
    seen.grads[label] = seen.grads.get(mine_label)
    expectations.tensor(seen.value, what="the result", case="tie_embeddings=True")
    same_flow(seen, wanted, {label: "the shared weight"}, "tie_embeddings=True")


@hidden
@promises("dropout")
@exercise("make_model")
def test_make_model_dropout(student, draw):
    """dropout acts in training mode in the positions and in both stacks."""
    options = model_options(6, 6, 1, 8, 16, 2, dropout=0.5, tie_embeddings=True)
    mine = student.module("make_model", **options)
    x = draw.normal(1, 8, 8).expand(2, 8, 8)
    for name, given in [("position", (x,)), ("encoder", (x, None)), ("decoder", (x, x))]:
        rows_differ(mine.train().method(name, *given), f"the result of {name}", (2, 8, 8), p=0.5)


@hidden
@exercise("make_model")
def test_make_model_defaults(student, reference, draw):
    """The defaults: 6 layers, 8 heads, dropout=0.1, 5000 positions."""
    same_defaults(student, reference, draw, "make_model")
