"""Graders of `bert-relatives`: ALBERT, XLNet, ELECTRA, ELMo."""

from __future__ import annotations

import math

import torch

from autograder.graders.bert.common import (
    CLS,
    IGNORE,
    PAD,
    SEP,
    SPECIAL,
    arriving_gradients,
    at_real_places,
    lstm_state,
    parameters_of,
    real,
    strided,
)
from autograder.graders.common import (
    State,
    linear,
    pair,
    refuses,
    same_gradients,
    same_parameters,
    sizes,
)
from autograder.graders.parts import Parts, alive, same_by_parts
from autograder.judging import expectations
from autograder.judging.grader_marks import Mistake, aspect, exercise, hidden, promises
from autograder.judging.proxy import StudentError, Todo

# --------------------------------------------------------------------------------------------
# SharedEncoder
# --------------------------------------------------------------------------------------------


def shared_state(draw, width, inner) -> State:
    """The parameters of a SharedEncoder: those of its one BertLayer."""
    state = {}
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        state |= linear(draw, f"layer.attention.{name}", width, width)
    state |= linear(draw, "layer.w_1", inner, width) | linear(draw, "layer.w_2", width, inner)
    for name in ("attention_norm", "output_norm"):
        state[f"layer.{name}.weight"] = 1.0 + draw.normal(width, scale=0.4)
        state[f"layer.{name}.bias"] = draw.normal(width, scale=0.5)
    return state


def shared_options(layers, width, inner, **more):
    return {
        "num_layers": layers,
        "d_model": width,
        "num_heads": 2,
        "d_ff": inner,
        **more,
    }


def same_shared(student, reference, state, layers, x, mask, case, train=True, **more):
    """The student's own layer, applied again and again, stands for itself."""
    options = shared_options(layers, x.shape[2], len(state["layer.w_1.bias"]), **more)
    mine, theirs = pair(student, reference, "SharedEncoder", state, **options)
    got = (mine.train() if train else mine)(x, mask)

    def own(parts):
        layer, value = parts.of(mine, "layer"), x
        for _ in range(layers):
            value = layer(value, mask)
        return value

    same_by_parts(student, got, theirs(x, mask), own, "the output", case)


@exercise("SharedEncoder")
def test_shared_encoder_once(student, reference, draw):
    """With num_layers=1 it is the layer."""
    state = shared_state(draw, 4, 5)
    case = "num_layers=1, x of shape (1, 2, 4), no mask"
    same_shared(student, reference, state, 1, draw.normal(1, 2, 4), None, case)


@promises("applied-again")
@exercise("SharedEncoder", 2)
def test_shared_encoder_again(student, reference, draw):
    """The one layer reads what it returned, num_layers times, and sees the mask each time."""
    state, mask = shared_state(draw, 4, 5), real([3, 1])
    for layers in (2, 3):
        x = draw.normal(2, 3, 4)
        case = f"num_layers={layers}, x of shape (2, 3, 4)"
        same_shared(student, reference, state, layers, x, None, f"{case}, no mask")
        same_shared(student, reference, state, layers, x, mask, f"{case}, lengths [3, 1]")
    x = draw.normal(1, 3, 4).index_fill(1, torch.tensor(1), 0.0)
    case = "num_layers=2, x of shape (1, 3, 4) with a vector of zeros"
    same_shared(student, reference, state, 2, x, None, f"{case}, no mask")
    same_shared(student, reference, state, 2, x, real([2], 3), f"{case}, length 2")
    same_shared(student, reference, state, 15, x, None, "num_layers=15, x of shape (1, 3, 4)")


@promises("one-layer")
@exercise("SharedEncoder")
def test_shared_encoder_parameters(student, draw):
    """Twelve layers have the parameters of one, called layer."""
    state = shared_state(draw, 4, 6)
    mine = student.module("SharedEncoder", **shared_options(12, 4, 6))
    same_parameters(mine, {name: tuple(value.shape) for name, value in state.items()})


@promises("heads-divide")
@exercise("SharedEncoder")
def test_shared_encoder_refusals(student):
    """A number of heads that does not divide the width is refused, be it by the layer."""
    sizes_given = {"d_model": 6, "num_heads": 4, "d_ff": 5}
    try:
        refuses(
            lambda layers: student.module("SharedEncoder", num_layers=layers, **sizes_given),
            {"num_heads=4 for d_model=6": (2,)},
        )
    except Mistake:
        parts = Parts(student)
        try:
            parts.proxy.module("BertLayer", **sizes_given)
        except (StudentError, Todo):
            pass
        else:
            return  # The layer ought to have refused; that is another exercise.
        raise


@hidden
@exercise("SharedEncoder")
def test_shared_encoder_dropout(student, reference, draw):
    """dropout reaches the layer, acts in train mode only, and nowhere but in the layer."""
    state, x = shared_state(draw, 8, 6), draw.normal(1, 4, 8)
    case = "num_layers=2, dropout=0.5 in eval mode"
    same_shared(student, reference, state, 2, x, None, case, train=False, dropout=0.5)
    idle = {
        name: torch.zeros_like(value) if "out_proj" in name or "w_2" in name else value
        for name, value in state.items()
    }
    case = "a layer with nothing to drop, num_layers=2, dropout=0.5 in train mode"
    same_shared(student, reference, idle, 2, x, None, case, dropout=0.5)
    options = shared_options(1, 8, 6, dropout=0.5)
    mine = student.module("SharedEncoder", state=state, **options)
    value = expectations.tensor(mine.train()(x.expand(2, 4, 8)), what="the output")
    expectations.shape(value, (2, 4, 8), what="the output")
    # Two examples of 32 entries lose the same ones by chance once in 2**64.
    expectations.true(
        bool((value[0] - value[1]).abs().max() > 1e-3),
        "In train mode with dropout=0.5 two equal examples have the same output; pass dropout on "
        "to the layer.",
    )


@hidden
@exercise("SharedEncoder")
def test_shared_encoder_gradients(student, reference, draw):
    """All applications add to the gradients of the one layer; x is left as it was."""
    state, x = shared_state(draw, 4, 3), strided(draw.normal(2, 3, 4).double())[0]
    options = shared_options(2, 4, 3)
    mine, theirs = pair(student, reference, "SharedEncoder", state, torch.float64, **options)
    seen, wanted = mine.observe(x), theirs.observe(x)
    expectations.finite(seen.value, what="the output")
    # A bias of k_proj adds one number to a row of scores: its gradient is zero.
    names = parameters_of(state, without=("layer.attention.k_proj.bias",)) | {"0": "x"}
    arriving_gradients(seen, wanted, names, "num_layers=2, strided float64 input")
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# permutation_masks
# --------------------------------------------------------------------------------------------


MASKS = ("content", "query")
ORDERS = ([1, 0], [1, 2, 0], [2, 0, 1], [3, 0, 2, 1])


def same_masks(student, reference, order, names=MASKS):
    got = expectations.pair(student.permutation_masks(order), what="the result (content, query)")
    wanted = reference.permutation_masks(order)
    for name, mask, want in zip(MASKS, got, wanted, strict=True):
        if name in names:
            expectations.close(mask, want, what=f"the {name} mask", case=f"order {order.tolist()}")


@exercise("permutation_masks")
def test_permutation_masks_in_order(student, reference):
    """From left to right: content sees itself and what is before it, query only what is before."""
    for length in (2, 1, 4):
        same_masks(student, reference, torch.arange(length))


@promises("content-and-query")
@exercise("permutation_masks")
def test_permutation_masks_query(student, reference):
    """By query a position sees those before it in the order; rows stand at the positions' own."""
    for order in ORDERS:
        same_masks(student, reference, torch.tensor(order), names=("query",))


@promises("content-and-query")
@exercise("permutation_masks")
def test_permutation_masks_content(student, reference):
    """By content a position sees itself too."""
    for order in ORDERS:
        same_masks(student, reference, torch.tensor(order), names=("content",))


@promises("no-permutation")
@exercise("permutation_masks")
def test_permutation_masks_refusals(student):
    """What is no permutation of 0 .. T - 1 is refused with a ValueError."""
    refuses(
        student.permutation_masks,
        {
            f"the order {order}": (torch.tensor(order),)
            for order in (
                [0, 0, 1],
                [1, 2, 3],
                [0, 2],
                [-1, 0, 1],
                [1, 1, 1],
                [0, 2, 2],
                [0, 3, 3, 0],
            )
        },
    )


@hidden
@exercise("permutation_masks")
def test_permutation_masks_steps(student, draw):
    """The position predicted k-th sees the k before it; by content also itself, and no other."""
    order = draw.permutation(6)
    got = student.permutation_masks(order)
    content, query = expectations.pair(got, what="the result (content, query)")
    for mask, name in ((content, "content"), (query, "query")):
        expectations.shape(mask, (6, 6), what=f"the {name} mask")
        expectations.close(mask, mask.bool(), what=f"the {name} mask")
    for step, position in enumerate(order.tolist()):
        before = sorted(order[:step].tolist())
        seen = query[position].nonzero().flatten().tolist()
        words = f"in order {order.tolist()} position {position}, predicted at step {step},"
        expectations.equal(seen, before, what=f"what the query mask shows {words}")
        seen = content[position].nonzero().flatten().tolist()
        expectations.equal(
            seen, sorted([*before, position]), what=f"what the content mask shows {words}"
        )


@hidden
@exercise("permutation_masks")
def test_permutation_masks_random(student, reference, draw):
    """Long orders, one of them strided; the order is left as it was."""
    for length in (9, 16, 300):
        order = draw.permutation(length)
        same_masks(student, reference, order)
    order = torch.stack([order, order], dim=1)[:, 0]
    seen = student.observe("permutation_masks", order, grad=False)
    content, query = expectations.pair(seen.value, what="the result (content, query)")
    wanted = reference.permutation_masks(order)
    expectations.close(content, wanted[0], what="the content mask", case="a strided order")
    expectations.close(query, wanted[1], what="the query mask", case="a strided order")
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# RelativeAttention
# --------------------------------------------------------------------------------------------


def relative_state(draw, width, heads) -> State:
    state = {}
    for name in ("q_proj", "k_proj", "v_proj", "r_proj", "out_proj"):
        state |= linear(draw, name, width, width, bias=False)
    for name in ("content_bias", "position_bias"):
        state[name] = draw.normal(heads, width // heads, scale=0.7)
    return state


def relative_pair(student, reference, draw, width, heads, dtype=None, **more):
    options = {"d_model": width, "num_heads": heads, **more}
    state = relative_state(draw, width, heads)
    return state, *pair(student, reference, "RelativeAttention", state, dtype, **options)


@promises("formula")
@exercise("RelativeAttention", 2)
def test_relative_attention_values(student, reference, draw):
    """Without memory: causal attention whose scores know the distance."""
    for batch, length, width, heads in [
        (1, 1, 2, 1),
        (1, 3, 4, 1),
        (2, 4, 8, 2),
        (2, 3, 6, 2),
        (1, 2, 3, 3),
        (1, 3, 5, 1),
    ]:
        _, mine, theirs = relative_pair(student, reference, draw, width, heads)
        x = draw.normal(batch, length, width)
        case = sizes(B=batch, T=length, D=width, H=heads) + ", no memory"
        expectations.close(mine.train()(x), theirs(x), what="the output", case=case)


@promises("joined", "distances")
@exercise("RelativeAttention", 2)
def test_relative_attention_memory(student, reference, draw):
    """Keys and values come from the memory and x, queries from x; distances reach back into it."""
    for batch, before, length, width, heads in [(1, 2, 1, 4, 2), (2, 3, 2, 8, 2), (2, 1, 4, 6, 3)]:
        _, mine, theirs = relative_pair(student, reference, draw, width, heads, dropout=0.4)
        x, memory = draw.normal(batch, length, width), draw.normal(batch, before, width)
        case = sizes(B=batch, M=before, T=length, D=width, H=heads) + ", dropout=0.4 in eval mode"
        expectations.close(mine(x, memory), theirs(x, memory), what="the output", case=case)
    case = "a memory of 0 positions, as none"
    expectations.close(mine(x, memory[:, :0]), theirs(x), what="the output", case=case)
    zeros = torch.zeros_like(memory)
    case = "a memory of one position, of zeros: it is seen all the same"
    expectations.close(mine(x, zeros), theirs(x, zeros), what="the output", case=case)


@hidden
@exercise("RelativeAttention")
def test_relative_attention_far_back(student, reference, draw):
    """A memory of 1100 positions is seen to its beginning, and every distance has its own code."""
    _, mine, theirs = relative_pair(student, reference, draw, 4, 2, torch.float64)
    x, memory = draw.normal(1, 2, 4).double(), draw.normal(1, 1100, 4).double()
    case = "B=1, M=1100, T=2, D=4, H=2, float64"
    expectations.close(mine(x, memory), theirs(x, memory), what="the output", case=case)


@hidden
@exercise("RelativeAttention")
def test_relative_attention_low_scores(student, reference, draw):
    """A later position gets the weight 0, however low the scores of those before it are."""
    state = {name: torch.zeros_like(value) for name, value in relative_state(draw, 4, 1).items()}
    for name in ("k_proj", "v_proj", "out_proj"):
        state[f"{name}.weight"] = torch.eye(4)
    state["v_proj.weight"][0, 0] = 0.0
    state["content_bias"][0, 0] = -1024.0
    options = {"d_model": 4, "num_heads": 1}
    mine, theirs = pair(student, reference, "RelativeAttention", state, **options)
    for size in (64.0, 2048.0):
        first = size * torch.tensor([3.0, 2.0, 1.0, 0.0]).reshape(1, 4, 1)
        x = torch.cat([first, draw.normal(1, 4, 3)], dim=2)
        case = f"scores from {-1536 * size:g} at the first position to 0 at the last"
        expectations.close(mine(x), theirs(x), what="the output", case=case)


@aspect
@exercise("RelativeAttention")
def test_relative_attention_continues(student, draw):
    """A segment with the one before it as memory gives what one pass over both gives there."""
    options = {"d_model": 8, "num_heads": 2}
    state = relative_state(draw, 8, 2)
    mine = student.module("RelativeAttention", state=state, **options)
    x = draw.normal(2, 7, 8)
    whole = alive(mine(x))
    expectations.shape(whole, x.shape, what="the output")
    for cut in (2, 5):
        expectations.close(
            mine(x[:, cut:], x[:, :cut]),
            whole[:, cut:],
            what=f"the output of positions {cut} to 6 with positions 0 to {cut - 1} as memory",
        )


@promises("causal")
@exercise("RelativeAttention")
def test_relative_attention_is_causal(student, draw):
    """A position sees itself, what is before it and all of the memory, and nothing after it."""
    state = {name: value.double() for name, value in relative_state(draw, 8, 2).items()}
    options = {"d_model": 8, "num_heads": 2, "dtype": torch.float64}
    mine = student.module("RelativeAttention", state=state, **options)
    x, memory = draw.normal(1, 4, 8).double(), draw.normal(1, 2, 8).double()
    before = expectations.tensor(mine(x, memory), what="the output")
    expectations.shape(before, x.shape, what="the output")
    for words, position in [("the memory", 0), ("the memory", 1), ("x", 0), ("x", 2), ("x", 3)]:
        other, earlier = x.clone(), memory.clone()
        changed = earlier if words == "the memory" else other
        changed[0, position] = 3.0 * draw.normal(8).double()
        after = expectations.tensor(mine(other, earlier), what="the output")
        expectations.shape(after, x.shape, what="the output")
        reached = ((after - before).abs().amax(-1)[0] > 1e-10).nonzero().flatten().tolist()
        wanted = list(range(4)) if words == "the memory" else list(range(position, 4))
        expectations.true(
            reached == wanted,
            f"Another vector at position {position} of {words} changes the output at {reached}; it "
            f"should change it at {wanted}.",
        )


@promises("parameters")
@exercise("RelativeAttention")
def test_relative_attention_parameters(student):
    """Five projections without bias, and two biases (H, D/H) that begin with zeros."""
    mine = student.module("RelativeAttention", d_model=6, num_heads=3)
    names = "q_proj", "k_proj", "v_proj", "r_proj", "out_proj"
    biases = {"content_bias": (3, 2), "position_bias": (3, 2)}
    same_parameters(mine, {f"{name}.weight": (6, 6) for name in names} | biases)
    state = mine.state()
    for name in biases:
        expectations.close(state[name], torch.zeros(3, 2), what=f"the initial {name}")


@promises("heads-divide")
@exercise("RelativeAttention")
def test_relative_attention_refusals(student):
    """A number of heads that does not divide the width is refused with a ValueError."""
    refuses(
        lambda heads: student.module("RelativeAttention", d_model=6, num_heads=heads),
        {f"num_heads={heads} for d_model=6": (heads,) for heads in (4, 5, 12)},
    )


@hidden
@promises("no-gradient")
@exercise("RelativeAttention")
def test_relative_attention_no_gradient_to_memory(student, reference, draw):
    """Gradients reach x and every parameter, by way of the memory too, but never the memory."""
    state, mine, theirs = relative_pair(student, reference, draw, 4, 2, torch.float64, dropout=0.4)
    x, memory = strided(draw.normal(2, 3, 4).double(), draw.normal(2, 2, 4).double())
    seen, wanted = mine.observe(x, memory), theirs.observe(x, memory)
    case = "strided float64 inputs, dropout=0.4 in eval mode"
    expectations.close(seen.value, wanted.value, what="the output", case=case)
    reached = seen.grads.get("1")
    expectations.true(
        reached is None or not bool(reached.abs().max() > 0),
        "A gradient reaches the memory; detach it before anything is made of it.",
    )
    same_gradients(seen, wanted, parameters_of(state) | {"0": "x"}, case)
    expectations.unchanged(seen)


def same_in_a_head(value, heads):
    """The output by heads, (B, T, H): both features of each have the same value."""
    whole = value.unflatten(-1, (heads, 2))
    expectations.true(
        bool((whole[..., 0] - whole[..., 1]).abs().max() < 1e-4),
        "In train mode the features of one head lose different things; drop weights, after "
        "softmax, and not what is made with them.",
    )
    return whole[..., 0]


def weights_dropped(value, p):
    """Every weight is 0 or divided by 1 - p, each by itself.

    Args:
        value: (B, 3, H), sums of the values 1, 2 and 4 up to a position, whose weights are equal.
    """
    sums = value * (1 - p) * torch.tensor([[1.0], [2.0], [3.0]])
    most = torch.tensor([[1.0], [3.0], [7.0]])
    expectations.true(
        bool(((sums - sums.round().clamp(min=0).minimum(most)).abs() < 1e-2).all()),
        f"In train mode at dropout={p} the output is not made of weights that are 0 or divided by "
        "1 - p.",
    )
    kept = sums.round().long()
    weights = [kept[:, query] >> key & 1 for query in range(3) for key in range(query + 1)]
    gone = torch.stack(weights, dim=2) == 0  # (B, H, 6)
    expectations.rate(
        int(gone.sum()),
        gone.numel(),
        p,
        what=f"in train mode at dropout={p} the share of dropped weights",
        false_alarm=1e-10,
    )
    half = len(gone) // 2
    for words, one, other in [
        ("heads", gone[:, ::2], gone[:, 1::2]),
        ("examples of a batch", gone[:half], gone[half:]),
        ("keys of a query", gone[:, :, 1], gone[:, :, 2]),
        ("queries of a key", gone[:, :, 1], gone[:, :, 3]),
    ]:
        expectations.independent(
            one,
            other,
            p,
            what=f"in train mode at dropout={p}, where each weight is dropped by itself, how often "
            f"two {words} lose the same one",
            false_alarm=1e-10,
        )


@hidden
@promises("dropout-on-weights")
@exercise("RelativeAttention")
def test_relative_attention_dropout(student, draw):
    """In train mode dropout acts on the weights, on each by itself."""
    width, heads, p = 8, 4, 0.5
    # The first feature of a head holds its value, the second is 1 and makes the keys: all scores
    # are the same, and not 0.
    first, second = torch.arange(0, width, 2), torch.arange(1, width, 2)
    state = {f"{name}.weight": torch.zeros(width, width) for name in ("q_proj", "r_proj")}
    for name, source in (("k_proj", second), ("v_proj", first)):
        weight = torch.zeros(width, width)
        weight[first, source] = weight[second, source] = 1.0
        state[f"{name}.weight"] = weight
    state["out_proj.weight"] = torch.eye(width)
    state |= {"content_bias": torch.ones(heads, 2), "position_bias": torch.zeros(heads, 2)}
    options = {"d_model": width, "num_heads": heads, "dropout": p}
    mine = student.module("RelativeAttention", state=state, **options)
    x = torch.ones(80, 3, width)
    x[:, :, first] = torch.tensor([[1.0], [2.0], [4.0]])
    want = torch.tensor([[1.0], [3 / 2], [7 / 3]]).expand_as(x)
    plain = expectations.tensor(mine(x), what="the output")
    if expectations.close_enough(plain, want):
        value = expectations.tensor(mine.train()(x), what="the output")
        expectations.shape(value, x.shape, what="the output")
        weights_dropped(same_in_a_head(value, heads), p)
        return
    # It is not causal, say. Ones come out as ones all the same.
    state = {f"{name}.weight": torch.zeros(width, width) for name in ("q_proj", "k_proj", "r_proj")}
    state |= {f"{name}.weight": torch.eye(width) for name in ("v_proj", "out_proj")}
    state |= {name: torch.zeros(heads, 2) for name in ("content_bias", "position_bias")}
    options = {"d_model": width, "num_heads": heads, "dropout": p}
    mine = student.module("RelativeAttention", state=state, **options)
    x = torch.ones(80, 3, width)
    expectations.close(mine(x), x, what="the output", case="ones as values, eval mode, dropout=0.5")
    value = expectations.tensor(mine.train()(x), what="the output")
    expectations.shape(value, x.shape, what="the output")
    # The first position has one weight, which is dropped or doubled; each head decides by itself.
    first = same_in_a_head(value, heads)[:, 0]
    expectations.rate(
        int((first.abs() < 1e-4).sum()),
        first.numel(),
        p,
        what="in train mode at dropout=0.5 the share of dropped weights",
        false_alarm=5e-10,
    )
    left = first[first.abs() >= 1e-4]
    expectations.close(
        left,
        torch.full_like(left, 1 / (1 - p)),
        what="a weight of 1 that was not dropped",
        case="dropout=0.5 in train mode",
    )


# --------------------------------------------------------------------------------------------
# update_memory
# --------------------------------------------------------------------------------------------


def same_memory(student, reference, memory, hidden_states, length, case):
    expectations.close(
        student.update_memory(memory, hidden_states, length),
        reference.update_memory(memory, hidden_states, length),
        what="the memory",
        case=f"{case}, length={length}",
    )


@promises("last-positions")
@exercise("update_memory")
def test_update_memory_first(student, reference, draw):
    """Without a memory: the last positions of the new states, or all of them if there are fewer."""
    states = draw.normal(2, 4, 3)
    for length in (1, 3, 4, 6):
        same_memory(student, reference, None, states, length, "no memory, hidden (2, 4, 3)")


@promises("last-positions")
@exercise("update_memory", 2)
def test_update_memory_joins(student, reference, draw):
    """The last positions of memory and new states together, the memory first."""
    for before, new in [(2, 1), (3, 2)]:
        memory, states = draw.normal(2, before, 3), draw.normal(2, new, 3)
        case = f"memory (2, {before}, 3), hidden (2, {new}, 3)"
        for length in range(1, before + new + 2):
            same_memory(student, reference, memory, states, length, case)
    case = "a memory (2, 3, 3) of zeros, hidden (2, 2, 3)"
    same_memory(student, reference, torch.zeros(2, 3, 3), states, 4, case)
    memory, states = draw.normal(1, 600, 2), draw.normal(1, 8, 2)
    same_memory(student, reference, memory, states, 607, "memory (1, 600, 2), hidden (1, 8, 2)")


@promises("length-0")
@exercise("update_memory")
def test_update_memory_zero(student, reference, draw):
    """A memory of length 0 has no positions, (B, 0, D), and can be joined again."""
    memory, states = draw.normal(2, 3, 4), draw.normal(2, 2, 4)
    same_memory(student, reference, None, states, 0, "no memory, hidden (2, 2, 4)")
    same_memory(student, reference, memory, states, 0, "memory (2, 3, 4), hidden (2, 2, 4)")
    empty = memory[:, :0]
    same_memory(student, reference, empty, states, 1, "memory (2, 0, 4), hidden (2, 2, 4)")
    memory, states = memory.double(), states.double()
    same_memory(student, reference, memory, states, 0, "float64, memory (2, 3, 4)")


@promises("negative-length")
@exercise("update_memory")
def test_update_memory_refusals(student, draw):
    """A negative length is refused with a ValueError."""
    memory, states = draw.normal(1, 2, 3), draw.normal(1, 2, 3)
    refuses(
        student.update_memory,
        {"length=-1": (memory, states, -1), "length=-2 without a memory": (None, states, -2)},
    )


@hidden
@promises("detached")
@exercise("update_memory", 2)
def test_update_memory_is_detached(student, reference, draw):
    """The memory is cut off from the graph; float64 stays, and inputs are left as they were."""
    memory, states = strided(draw.normal(2, 3, 4).double(), draw.normal(2, 4, 4).double())
    for given, length in [((None, states), 2), ((memory, states), 5), ((memory, states), 9)]:
        seen = student.observe("update_memory", *given, length)
        wanted = reference.update_memory(*given, length)
        case = f"strided float64 inputs, length={length}"
        expectations.close(seen.value, wanted, what="the memory", case=case)
        reached = [grad is not None and bool((grad != 0).any()) for grad in seen.grads.values()]
        expectations.true(
            not any(reached),
            "A gradient passes through the new memory; detach it, or training would reach back "
            "through all earlier segments.",
        )
        expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# replace_tokens
# --------------------------------------------------------------------------------------------


def peaked(draw, ids, vocabulary, height=60.0, same=0.3):
    """Scores that leave no doubt which token is drawn: often, but not always, the original."""
    peaks = draw.integers(0, vocabulary, *ids.shape)
    peaks = torch.where(draw.uniform(*ids.shape) < same, ids, peaks)
    scores = draw.normal(*ids.shape, vocabulary)
    return scores.scatter(2, peaks.unsqueeze(2), height)


def chosen_labels(draw, ids, rate):
    """Labels as mask_tokens makes them: the original where chosen, IGNORE elsewhere."""
    return torch.where(draw.uniform(*ids.shape) < rate, ids, IGNORE)


def judge_replaced(student, given, case, grad=False, marked=True):
    """The tokens of a call: their form is right and, if that is asked, is_replaced too.

    Draws cannot be replayed, so that the test itself has to say which mistake it sees.
    """
    ids, labels = given[:2]
    seen = student.observe("replace_tokens", *given, grad=grad)
    expectations.unchanged(seen, misconception="replaced_in_place")
    replaced, marks = expectations.pair(seen.value, what="the result (replaced, is_replaced)")
    expectations.shape(replaced, ids.shape, what="replaced", case=case)
    expectations.true(
        replaced.dtype == torch.int64,
        f"replaced should have dtype int64, but has {replaced.dtype} for {case}.",
    )
    expectations.shape(marks, ids.shape, what="is_replaced", case=case)
    chosen = labels != IGNORE
    others = {
        "replaced_wherever_chosen": chosen,
        "replaced_compared_with_labels": replaced != labels,
        "replaced_marks_inverted": replaced == ids,
    }
    hints = [name for name, other in others.items() if torch.equal(marks, other)]
    if marked:
        expectations.close(
            marks,
            replaced != ids,
            what="is_replaced",
            case=case,
            misconception=hints[0] if hints else None,
        )
    expectations.true(
        torch.equal(replaced[~chosen], ids[~chosen]),
        f"Tokens change where labels is IGNORE, for {case}.",
        misconception="replaced_everywhere",
    )
    return replaced


def same_replaced(student, reference, given, case, grad=False):
    """The generator is sure, so that everything is settled."""
    replaced = judge_replaced(student, given, case, grad)
    expectations.close(replaced, reference.replace_tokens(*given)[0], what="replaced", case=case)


TOKENS = {5: 0.5, 6: 0.3, 7: 0.2}
ORIGINAL = 6
SHARES = "for a generator that gives 5, 6 and 7 the probabilities 0.5, 0.3 and 0.2"


def drawn_tokens(student, rows=40, columns=100):
    """Originals of 6, all chosen; 5, 6 and 7 have the probabilities of TOKENS, others none."""
    ids = torch.full((rows, columns), ORIGINAL)
    scores = torch.full((rows, columns, 8), -40.0)
    for token, probability in TOKENS.items():
        scores[..., token] = 2.0 + math.log(probability)
    given, case = (ids, ids.clone(), scores), SHARES.removeprefix("for ")
    return judge_replaced(student, given, case, marked=False)


@promises("replaced")
@exercise("replace_tokens", 2)
def test_replace_tokens_shares(student):
    """Tokens are drawn with the probabilities softmax(logits), the original among them."""
    replaced = drawn_tokens(student)
    counts = {token: int((replaced == token).sum()) for token in range(8)}
    total = replaced.numel()
    hint = None
    if max(counts.values()) == total:
        hint = "replaced_one_draw_for_all"
    elif not counts[ORIGINAL] and counts[5] + counts[7] == total:
        hint = "replaced_never_by_original"
    elif min(counts.values()) > total / 16:
        hint = "replaced_uniformly"
    for token, probability in TOKENS.items():
        expectations.rate(
            counts[token],
            total,
            probability,
            what=f"{SHARES} the share of token {token}",
            false_alarm=2e-10,
            misconception=hint,
        )
    # No other token, but for a rate of e**-42.
    rest = total - sum(counts[token] for token in TOKENS)
    expectations.true(
        rest == 0, f"{SHARES} {rest} of {total} draws are of other tokens.".capitalize()
    )


@promises("is-replaced")
@exercise("replace_tokens")
def test_replace_tokens_certain(student, reference, draw):
    """Where the generator is sure its token is drawn; a correct guess is not a replacement."""
    ids = torch.tensor([[CLS, 5, 6, 7, 8, SEP]])
    labels = torch.tensor([[IGNORE, 5, 6, IGNORE, 8, IGNORE]])
    guesses = torch.tensor([[8, 9, 6, 9, 5, 9]])
    scores = torch.zeros(1, 6, 10).scatter(2, guesses.unsqueeze(2), 60.0)
    case = (
        f"ids {ids.tolist()}, labels {labels.tolist()} and a generator that is sure of "
        f"{guesses.tolist()}"
    )
    same_replaced(student, reference, (ids, labels, scores), case)
    ids = draw.integers(SPECIAL, 12, 3, 7)
    given = ids, chosen_labels(draw, ids, 0.5), peaked(draw, ids, 12)
    same_replaced(student, reference, given, "B=3, T=7, V=12 and a generator that is sure")
    ids = torch.tensor([[PAD, PAD, 7, 7]])
    guesses = torch.tensor([[6, PAD, PAD, 7]])
    scores = torch.zeros(1, 4, 10).scatter(2, guesses.unsqueeze(2), 60.0)
    case = f"ids {ids.tolist()}, all chosen, and a generator that is sure of {guesses.tolist()}"
    same_replaced(student, reference, (ids, ids.clone(), scores), case)


@promises("replaced")
@exercise("replace_tokens")
def test_replace_tokens_none(student, reference, draw):
    """Where nothing was chosen nothing is replaced, whatever the scores say."""
    ids = draw.integers(0, 12, 2, 5)
    scores = peaked(draw, ids, 12, same=0.0)
    given = ids, torch.full_like(ids, IGNORE), scores
    same_replaced(student, reference, given, "no chosen position, B=2, T=5")


@hidden
@promises("own-draw")
@exercise("replace_tokens")
def test_replace_tokens_each_place(student):
    """Every position of every row has a draw of its own, among all tokens."""
    replaced = drawn_tokens(student)
    same = sum(probability**2 for probability in TOKENS.values())
    for words, one, two in [
        ("neighbours", replaced[:, ::2], replaced[:, 1::2]),
        ("rows, position by position,", replaced[::2], replaced[1::2]),
    ]:
        count = int((one == two).sum())
        expectations.rate(
            count,
            one.numel(),
            same,
            what=f"with the same scores everywhere the share of {words} that get the same token",
            false_alarm=5e-10,
            misconception="replaced_one_draw_for_all" if count == one.numel() else None,
        )
    # One of them is never drawn with a probability below 100 e**-38.
    ids = torch.full((40, 100), ORIGINAL)
    scores = (0.001 * torch.arange(100)).expand(40, 100, 100)
    given = ids, ids.clone(), scores
    drawn = judge_replaced(student, given, "100 tokens, all about as likely", marked=False)
    seen = len(drawn.unique())
    expectations.true(
        seen == 100,
        f"Of 100 tokens that are about equally likely only {seen} are ever drawn in 4000 draws.",
    )


@hidden
@exercise("replace_tokens")
def test_replace_tokens_inputs(student, reference, draw):
    """Strided ids, float64 scores of +-1000, a batch of one; inputs are left as they were."""
    for batch, dtype in [(1, torch.float32), (3, torch.float64)]:
        ids = draw.integers(SPECIAL, 9, batch, 6)
        labels = chosen_labels(draw, ids, 0.6)
        scores = peaked(draw, ids, 9, height=60.0)
        scores = torch.where(scores == 60.0, 1000.0, -1000.0).to(dtype)
        given = strided(ids, labels, scores)
        case = f"scores of 1000 and -1000 that require gradients, B={batch}, strided"
        same_replaced(student, reference, given, case, grad=True)
        for shift in (2000.0, -2000.0):
            # Only differences count: the sure token is 60 above the others.
            ids = draw.integers(SPECIAL, 9, batch, 6)
            labels = chosen_labels(draw, ids, 0.6)
            scores = peaked(draw, ids, 9).to(dtype) + shift
            case = f"scores of about {shift:g}, B={batch}"
            same_replaced(student, reference, (ids, labels, scores), case)


# --------------------------------------------------------------------------------------------
# replaced_token_loss
# --------------------------------------------------------------------------------------------


def same_detection(student, reference, scores, is_replaced, mask, case):
    expectations.close(
        student.replaced_token_loss(scores, is_replaced, mask),
        reference.replaced_token_loss(scores, is_replaced, mask),
        what="the loss",
        case=case,
    )


@promises("formula", "all-real-tokens")
@exercise("replaced_token_loss")
def test_replaced_token_loss_values(student, reference, draw):
    """The mean binary cross-entropy over all tokens, replaced or not."""
    for batch, length in [(1, 4), (1, 1), (2, 5)]:
        scores, is_replaced = draw.normal(batch, length), draw.uniform(batch, length) < 0.4
        is_replaced[0, 0], is_replaced[0, 1:2] = True, False
        mask = torch.ones(batch, length, dtype=torch.bool)
        case = f"is_replaced {is_replaced.int().tolist()}, no padding"
        same_detection(student, reference, scores, is_replaced, mask, case)
    for words, all_of in [("no token replaced", False), ("all tokens replaced", True)]:
        given = draw.normal(2, 3), torch.full((2, 3), all_of), torch.ones(2, 3, dtype=torch.bool)
        same_detection(student, reference, *given, f"{words}, no padding")


@promises("all-real-tokens")
@exercise("replaced_token_loss")
def test_replaced_token_loss_padding(student, reference, draw):
    """Padding counts neither in the sum nor in the number; every real token weighs the same."""
    for lengths, longest in [([1, 4], 4), ([3, 1, 5], 6), ([3, 1, 2], 3)]:
        mask = real(lengths, longest)
        scores = torch.where(mask, draw.normal(*mask.shape), 30.0 * draw.normal(*mask.shape))
        is_replaced = draw.uniform(*mask.shape) < 0.5
        case = f"lengths {lengths} of {longest}"
        same_detection(student, reference, scores, is_replaced, mask, case)


@promises("stable")
@exercise("replaced_token_loss")
def test_replaced_token_loss_is_stable(student, reference, draw):
    """Scores of +-1000, right or wrong, give a finite loss."""
    scores = torch.tensor([[1000.0, -1000.0, 1000.0, -1000.0, 0.5]])
    is_replaced = torch.tensor([[True, False, False, True, True]])
    mask = torch.ones(1, 5, dtype=torch.bool)
    same_detection(student, reference, scores, is_replaced, mask, f"scores {scores.tolist()}")
    scores = 1000.0 * scores
    same_detection(student, reference, scores, is_replaced, mask, f"scores {scores.tolist()}")


@hidden
@promises("dtype-kept")
@exercise("replaced_token_loss", 2)
def test_replaced_token_loss_gradients(student, reference, draw):
    """Gradients reach the real positions and no others; strided float64, inputs left alone."""
    mask = real([4, 2, 1], 5)
    is_replaced = draw.uniform(3, 5) < 0.3
    for words, height in [("of order 1", 1.0), ("of +-1000", 1000.0)]:
        scores = draw.normal(3, 5).double()
        scores = scores if height == 1.0 else torch.where(scores > 0, height, -height)
        given = strided(scores, is_replaced, mask)
        seen = student.observe("replaced_token_loss", *given)
        wanted = reference.observe("replaced_token_loss", *given)
        case = f"strided float64 scores {words}, lengths [4, 2, 1]"
        expectations.close(seen.value, wanted.value, what="the loss", case=case)
        same_gradients(seen, wanted, {"0": "the scores"}, case)
        expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# TwoDirections
# --------------------------------------------------------------------------------------------

ELMO = {"vocab_size": 8, "embed_dim": 2, "hidden_size": 3}


def elmo_state(draw) -> State:
    return {
        "embedding.weight": draw.normal(8, 2),
        **lstm_state(draw, "forward_lstm", 2, 3),
        **lstm_state(draw, "backward_lstm", 2, 3),
        **linear(draw, "output", 8, 3),
    }


def elmo_pair(student, reference, draw, dtype=None):
    state = elmo_state(draw)
    return state, *pair(student, reference, "TwoDirections", state, dtype, **ELMO)


def elmo_ids(draw, lengths, longest=None):
    mask = real(lengths, longest)
    return draw.integers(SPECIAL, 8, *mask.shape).masked_fill(~mask, PAD), mask


def elmo_loss(states, state, ids, mask):
    """The loss by the states (B, T, 2 hidden_size) that a student's forward gives."""
    weight, bias = state["output.weight"].to(states.dtype), state["output.bias"].to(states.dtype)
    both = mask[:, 1:]
    total = torch.zeros((), dtype=states.dtype)
    one, two = states.chunk(2, dim=2)
    for values, wanted in [(one[:, :-1], ids[:, 1:]), (two[:, 1:], ids[:, :-1])]:
        scores = values[both] @ weight.T + bias
        total = total + torch.nn.functional.cross_entropy(scores, wanted[both])
    return total


def same_elmo_loss(student, mine, theirs, state, given, case):
    ids = given[0]
    mask = given[1] if len(given) == 2 else torch.ones_like(ids, dtype=torch.bool)
    got = expectations.tensor(mine.method("loss", *given), what="the loss")

    def own(parts):
        return elmo_loss(parts.of(mine, "forward")(*given), state, ids, mask)

    same_by_parts(student, got, theirs.method("loss", *given), own, "the loss", case)


@promises("submodules", "two-states")
@exercise("TwoDirections")
def test_two_directions_states(student, reference, draw):
    """The state of the left-to-right LSTM, then that of the right-to-left one."""
    _, mine, theirs = elmo_pair(student, reference, draw)
    for shape, low in [((1, 1), SPECIAL), ((1, 4), SPECIAL), ((3, 3), SPECIAL), ((2, 5), PAD)]:
        ids = draw.integers(low, 8, *shape)
        ids[0, -2:] = low  # without a mask PAD is a token like others, also at the end
        case = f"ids {ids.tolist()}, no mask"
        expectations.close(mine(ids), theirs(ids), what="the states", case=case)


@promises("padding")
@exercise("TwoDirections", 2)
def test_two_directions_padding(student, reference, draw):
    """The backward LSTM begins at each row's last real token."""
    _, mine, theirs = elmo_pair(student, reference, draw)
    for lengths, longest in [([3, 1], 3), ([2, 4, 3], 4), ([2, 1], 4), ([3, 3], 5), ([2], 4)]:
        ids, mask = elmo_ids(draw, lengths, longest)
        ids[0, 1] = PAD  # where the mask is True
        case = f"lengths {lengths} of {longest}"
        at_real_places(mine(ids, mask), theirs(ids, mask), mask, "the states", case)


@exercise("TwoDirections")
def test_two_directions_never_meet(student, draw):
    """Each direction has read its own side and the token itself, and nothing of the other."""
    state = {name: value.double() for name, value in elmo_state(draw).items()}
    mine = student.module("TwoDirections", state=state, dtype=torch.float64, **ELMO)
    ids = draw.integers(SPECIAL, 8, 1, 5)
    before = expectations.tensor(mine(ids), what="the states")
    expectations.shape(before, (1, 5, 6), what="the states")
    for position in (2, 0, 4):
        other = ids.clone()
        other[0, position] = (ids[0, position] - SPECIAL + 1) % 3 + SPECIAL
        after = expectations.tensor(mine(other), what="the states")
        expectations.shape(after, before.shape, what="the states")
        changed = (after - before).abs().reshape(5, 2, 3).amax(-1) > 1e-10
        for direction, words, wanted in [
            (0, "left-to-right", list(range(position, 5))),
            (1, "right-to-left", list(range(position + 1))),
        ]:
            reached = changed[:, direction].nonzero().flatten().tolist()
            expectations.true(
                reached == wanted,
                f"Another token at position {position} changes the {words} states at {reached}; it "
                f"should change them at {wanted}.",
            )


@promises("loss")
@exercise("TwoDirections", 2)
def test_two_directions_loss(student, reference, draw):
    """Forward states predict the next token, backward states the previous one; both means add."""
    state, mine, theirs = elmo_pair(student, reference, draw)
    for shape in [(1, 2), (2, 4)]:
        ids = draw.integers(SPECIAL, 8, *shape)
        case = f"ids {ids.tolist()}, no mask"
        same_elmo_loss(student, mine, theirs, state, (ids,), case)
    ids = torch.tensor([[6, PAD, PAD, 5, PAD], [7, 5, 6, PAD, PAD]])
    case = f"ids {ids.tolist()}, no mask: all are real"
    same_elmo_loss(student, mine, theirs, state, (ids,), case)
    case = f"ids {ids.tolist()}, of which all and 3 are real by the mask"
    same_elmo_loss(student, mine, theirs, state, (ids, real([5, 3])), case)


@hidden
@promises("real-targets")
@exercise("TwoDirections", 2)
def test_two_directions_loss_padding(student, reference, draw):
    """No real token predicts padding, and padding predicts nothing; a row of one has no part."""
    state, mine, theirs = elmo_pair(student, reference, draw, torch.float64)
    for lengths, longest in [([3, 2], 3), ([2, 5, 1, 3], 6)]:
        given = elmo_ids(draw, lengths, longest)
        case = f"lengths {lengths} of {longest}, float64"
        same_elmo_loss(student, mine, theirs, state, given, case)
    ids, mask = given
    other = torch.where(mask, ids, draw.integers(SPECIAL, 8, *ids.shape))
    case = f"lengths {lengths} of {longest}, other ids at padding"
    same_elmo_loss(student, mine, theirs, state, (other, mask), case)
    seen = mine.observe(other, mask, grad=False)
    at_real_places(seen.value, theirs(ids, mask), mask, "the states", case)
    expectations.unchanged(seen)
    mine.train()
    for words in ("in train mode", "in train mode, asked again"):
        at_real_places(mine(ids, mask), theirs(ids, mask), mask, "the states", words)


@hidden
@exercise("TwoDirections")
def test_two_directions_gradients(student, reference, draw):
    """The loss trains every parameter; ids and mask are left as they were."""
    state, mine, theirs = elmo_pair(student, reference, draw, torch.float64)
    given = strided(*elmo_ids(draw, [2, 4, 1]))
    seen, wanted = (handle.observe_method("loss", *given) for handle in (mine, theirs))
    expectations.finite(seen.value, what="the loss")
    arriving_gradients(seen, wanted, parameters_of(state), "float64, lengths [2, 4, 1]")
    expectations.unchanged(seen)
