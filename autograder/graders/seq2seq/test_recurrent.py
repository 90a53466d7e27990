"""Graders of `seq2seq-recurrent`: cells, encoders, the decoder."""

from __future__ import annotations

import torch

from autograder.graders.common import pair, refuses, same_gradients, same_parameters, sizes
from autograder.graders.seq2seq.common import (
    BOS,
    EOS,
    KINDS,
    PAD,
    UNK,
    encoder_state,
    gates,
    right_padded,
    translator_options,
)
from autograder.judging import expectations
from autograder.judging.grader_marks import aspect, exercise, hidden, promises


def same_states(mine, theirs, names, case=""):
    """A tuple of results agrees, in the order of the names; one of them may be a tuple itself."""
    expectations.items(mine, len(names), what=f"the result ({', '.join(names)})")
    for name, actual, expected in zip(names, mine, theirs, strict=True):
        if isinstance(expected, (tuple, list)):
            expectations.items(actual, len(expected), what=f"the {name}")
            for part, got, want in zip(("h", "c"), actual, expected, strict=True):
                expectations.close(got, want, what=f"{part} of the {name}", case=case)
        else:
            expectations.close(actual, expected, what=f"the {name}", case=case)


def gate_shapes(prefix, count, inputs, width):
    """The shapes of the same parameters."""
    return {
        f"{prefix}weight_ih": (count * width, inputs),
        f"{prefix}weight_hh": (count * width, width),
        f"{prefix}bias_ih": (count * width,),
        f"{prefix}bias_hh": (count * width,),
    }


def labels(state, *inputs):
    """What the gradients are asked for: inputs by position, then every parameter."""
    return dict(inputs) | {f"parameter {name}": name for name in state}


# --------------------------------------------------------------------------------------------
# RNNCell, GRUCell, LSTMCell
# --------------------------------------------------------------------------------------------


def cell_pair(student, reference, draw, name, inputs, width, dtype=None):
    state = gates(draw, "", GATES[name], inputs, width)
    return pair(student, reference, name, state, dtype=dtype, input_size=inputs, hidden_size=width)


GATES = {"RNNCell": 1, "GRUCell": 3, "LSTMCell": 4}
CELL_SIZES = [(1, 1, 1), (1, 2, 2), (2, 3, 3), (3, 4, 2), (2, 2, 5)]
CELL_LABELS = {"0": "x", "1": "h"}


def same_cell(student, reference, draw, name, cases, scale=1.0, dtype=None):
    """One step of a cell with one state agrees."""
    for batch, inputs, width in cases:
        mine, theirs = cell_pair(student, reference, draw, name, inputs, width, dtype)
        x, h = draw.normal(batch, inputs, scale=scale), draw.normal(batch, width, scale=0.7)
        x, h = x.to(dtype or x.dtype), h.to(dtype or h.dtype)
        case = sizes(B=batch, I=inputs, H=width)
        expectations.close(mine(x, h), theirs(x, h), what="the new state", case=case)


def same_cell_steps(student, reference, draw, name):
    """A few steps in a row, each with the state that the one before returned."""
    mine, theirs = cell_pair(student, reference, draw, name, 2, 3)
    left = right = torch.zeros(2, 3)
    for step in range(4):
        x = draw.normal(2, 2)
        left, right = mine(x, left), theirs(x, right)
        expectations.close(left, right, what="the state", case=f"step {step} from a state of zeros")


def cell_refusals(student, draw, name):
    """Inputs and states of other widths or batch sizes."""
    mine = student.module(name, input_size=3, hidden_size=4)
    refuses(
        mine,
        {
            "an x of width 2 where input_size is 3": (draw.normal(2, 2), draw.normal(2, 4)),
            "an x of width 1 where input_size is 3": (draw.normal(2, 1), draw.normal(2, 4)),
            "a state of width 5 where hidden_size is 4": (draw.normal(2, 3), draw.normal(2, 5)),
            "a state of width 1 where hidden_size is 4": (draw.normal(2, 3), draw.normal(2, 1)),
            "an x of batch size 3 with a state of batch size 2": (
                draw.normal(3, 3),
                draw.normal(2, 4),
            ),
            "an x of batch size 3 with a state of batch size 1": (
                draw.normal(3, 3),
                draw.normal(1, 4),
            ),
            "an x of batch size 1 with a state of batch size 3": (
                draw.normal(1, 3),
                draw.normal(3, 4),
            ),
        },
    )


def cell_gradients(student, reference, draw, name):
    """Gradients to x, h and the parameters; strided inputs; nothing is changed in place."""
    mine, theirs = cell_pair(student, reference, draw, name, 2, 3, dtype=torch.float64)
    x, h = draw.normal(2, 4).double().T, draw.normal(3, 4, scale=0.7).double().T
    seen, wanted = mine.observe(x, h), theirs.observe(x, h)
    expectations.close(
        seen.value, wanted.value, what="the new state", case="strided float64 inputs"
    )
    same_gradients(seen, wanted, labels(gate_shapes("", 1, 1, 1), *CELL_LABELS.items()))
    expectations.unchanged(seen)
    x = 10_000 * x
    seen, wanted = mine.observe(x, h), theirs.observe(x, h)
    case = "inputs of the order of 10000, which saturate"
    expectations.close(seen.value, wanted.value, what="the new state", case=case)
    same_gradients(seen, wanted, {"1": "h"}, case)


@promises("parameters")
@exercise("RNNCell")
def test_rnn_parameters(student):
    """There are weight_ih, weight_hh and two biases, with the shapes of torch.nn.RNNCell."""
    mine = student.module("RNNCell", input_size=2, hidden_size=3)
    same_parameters(mine, gate_shapes("", 1, 2, 3))


@promises("formula")
@exercise("RNNCell")
def test_rnn_values(student, reference, draw):
    """The new state is tanh(W_ih x + b_ih + W_hh h + b_hh)."""
    same_cell(student, reference, draw, "RNNCell", CELL_SIZES)


@promises("other-sizes")
@exercise("RNNCell")
def test_rnn_refusals(student, draw):
    """Other widths and batch sizes are refused with a ValueError."""
    cell_refusals(student, draw, "RNNCell")


@hidden
@exercise("RNNCell")
def test_rnn_steps(student, reference, draw):
    """Steps in a row give the states of a recurrent network; large inputs saturate."""
    same_cell_steps(student, reference, draw, "RNNCell")
    same_cell(student, reference, draw, "RNNCell", [(1, 3, 2)], scale=50.0)


@hidden
@exercise("RNNCell")
def test_rnn_gradients(student, reference, draw):
    """Gradients reach x, h and every parameter, and the inputs are left as they were."""
    cell_gradients(student, reference, draw, "RNNCell")


@promises("parameters")
@exercise("GRUCell")
def test_gru_parameters(student):
    """The parameters are those of torch.nn.GRUCell, three gates stacked in each."""
    mine = student.module("GRUCell", input_size=2, hidden_size=3)
    same_parameters(mine, gate_shapes("", 3, 2, 3))


@promises("formula")
@exercise("GRUCell")
def test_gru_values(student, reference, draw):
    """The new state mixes the old state and the candidate as the formulas say."""
    same_cell(student, reference, draw, "GRUCell", CELL_SIZES)


@promises("pytorch-form")
@exercise("GRUCell")
def test_gru_update_gate(student, reference, draw):
    """An update gate of 1 keeps the state, and one of 0 replaces it by the candidate."""
    for bias, words in [(30.0, "an update gate of 1"), (-30.0, "an update gate of 0")]:
        state = gates(draw, "", 3, 2, 3)
        state["bias_ih"][3:6] = bias
        mine, theirs = pair(student, reference, "GRUCell", state, input_size=2, hidden_size=3)
        x, h = draw.normal(2, 2), draw.normal(2, 3, scale=0.7)
        expectations.close(mine(x, h), theirs(x, h), what="the new state", case=words)


@promises("other-sizes")
@exercise("GRUCell")
def test_gru_refusals(student, draw):
    """Other widths and batch sizes are refused with a ValueError."""
    cell_refusals(student, draw, "GRUCell")


@hidden
@promises("pytorch-form")
@exercise("GRUCell")
def test_gru_reset_gate(student, reference, draw):
    """The reset gate scales W_hn h + b_hn, the bias included, after the product."""
    for bias, words in [(0.0, "a reset gate in between"), (-30.0, "a reset gate of 0")]:
        state = gates(draw, "", 3, 2, 3)
        state["bias_ih"][:3] += bias
        state["bias_ih"][3:6] = -30.0
        mine, theirs = pair(student, reference, "GRUCell", state, input_size=2, hidden_size=3)
        x, h = draw.normal(2, 2), draw.normal(2, 3)
        expectations.close(mine(x, h), theirs(x, h), what="the new state", case=words)


@hidden
@exercise("GRUCell")
def test_gru_steps(student, reference, draw):
    """Steps in a row give the states of a recurrent network; inputs and state may be large."""
    same_cell_steps(student, reference, draw, "GRUCell")
    same_cell(student, reference, draw, "GRUCell", [(1, 3, 2)], scale=50.0)
    mine, theirs = cell_pair(student, reference, draw, "GRUCell", 2, 3)
    x, h = draw.normal(2, 2), draw.normal(2, 3, scale=20.0)
    case = "a state with entries of the order of 20"
    expectations.close(mine(x, h), theirs(x, h), what="the new state", case=case)


@hidden
@exercise("GRUCell")
def test_gru_gradients(student, reference, draw):
    """Gradients reach x, h and every parameter, and the inputs are left as they were."""
    cell_gradients(student, reference, draw, "GRUCell")


def lstm_inputs(draw, batch, inputs, width, dtype=torch.float32):
    x, h = draw.normal(batch, inputs), draw.normal(batch, width, scale=0.7)
    return x.to(dtype), (h.to(dtype), draw.normal(batch, width, scale=1.5).to(dtype))


@promises("parameters")
@exercise("LSTMCell")
def test_lstm_parameters(student):
    """The parameters are those of torch.nn.LSTMCell, four gates stacked in each."""
    mine = student.module("LSTMCell", input_size=2, hidden_size=3)
    same_parameters(mine, gate_shapes("", 4, 2, 3))


@promises("formula", "pair")
@exercise("LSTMCell")
def test_lstm_values(student, reference, draw):
    """The new h and c follow from the gates in the order i, f, g, o."""
    for batch, inputs, width in CELL_SIZES:
        mine, theirs = cell_pair(student, reference, draw, "LSTMCell", inputs, width)
        x, state = lstm_inputs(draw, batch, inputs, width)
        case = sizes(B=batch, I=inputs, H=width)
        same_states(mine(x, state), theirs(x, state), ("new h", "new c"), case)


@exercise("LSTMCell")
def test_lstm_gates(student, reference, draw):
    """Each gate, opened or closed by its bias, does what its name says."""
    for gate, name in enumerate(("input", "forget", "candidate", "output")):
        for bias in (30.0, -30.0):
            state = gates(draw, "", 4, 2, 2)
            state["bias_ih"][2 * gate : 2 * gate + 2] = bias
            mine, theirs = pair(student, reference, "LSTMCell", state, input_size=2, hidden_size=2)
            x, before = lstm_inputs(draw, 1, 2, 2)
            case = f"a bias of {bias:g} in the {name} gate"
            same_states(mine(x, before), theirs(x, before), ("new h", "new c"), case)


@promises("other-sizes")
@exercise("LSTMCell")
def test_lstm_refusals(student, draw):
    """Other widths and batch sizes, of h and of c, are refused with a ValueError."""
    mine = student.module("LSTMCell", input_size=3, hidden_size=4)
    x, h, c = draw.normal(2, 3), draw.normal(2, 4), draw.normal(2, 4)
    refuses(
        mine,
        {
            "an x of width 2 where input_size is 3": (draw.normal(2, 2), (h, c)),
            "an h of width 5 where hidden_size is 4": (x, (draw.normal(2, 5), c)),
            "a c of width 5 where hidden_size is 4": (x, (h, draw.normal(2, 5))),
            "a c of width 1 where hidden_size is 4": (x, (h, draw.normal(2, 1))),
            "an h of batch size 1 with an x of batch size 2": (x, (draw.normal(1, 4), c)),
            "a c of batch size 1 with an x of batch size 2": (x, (h, draw.normal(1, 4))),
            "h and c of batch size 1 with an x of batch size 2": (x, (h[:1], c[:1])),
            "an x of batch size 3 with a state of batch size 2": (draw.normal(3, 3), (h, c)),
            "an x of batch size 1 with a state of batch size 2": (draw.normal(1, 3), (h, c)),
        },
    )


@hidden
@exercise("LSTMCell")
def test_lstm_steps(student, reference, draw):
    """Steps in a row, from a state of zeros, carry h and c on; large states are kept."""
    mine, theirs = cell_pair(student, reference, draw, "LSTMCell", 2, 3)
    left = right = (torch.zeros(2, 3), torch.zeros(2, 3))
    for step in range(4):
        x = draw.normal(2, 2)
        left, right = mine(x, left), theirs(x, right)
        same_states(left, right, ("new h", "new c"), f"step {step} from a state of zeros")
        left = tuple(left)
    x, (h, c) = lstm_inputs(draw, 2, 2, 3)
    given = x, (20 * h, 20 * c)
    case = "a state with entries of the order of 20"
    same_states(mine(*given), theirs(*given), ("new h", "new c"), case)
    state = gates(draw, "", 4, 2, 3)
    state["bias_ih"][3:6] = 30.0
    mine, theirs = pair(student, reference, "LSTMCell", state, input_size=2, hidden_size=3)
    given = x, (h, 20 * c.sign() + c)
    case = "an open forget gate and a memory with entries of the order of 20"
    same_states(mine(*given), theirs(*given), ("new h", "new c"), case)


@hidden
@promises("dtype-kept")
@exercise("LSTMCell")
def test_lstm_gradients(student, reference, draw):
    """Gradients reach x, h, c and every parameter; inputs are left as they were; float64 works."""
    mine, theirs = cell_pair(student, reference, draw, "LSTMCell", 2, 3, dtype=torch.float64)
    x, state = lstm_inputs(draw, 4, 2, 3, torch.float64)
    seen, wanted = mine.observe(x, state), theirs.observe(x, state)
    same_states(seen.value, wanted.value, ("new h", "new c"), "float64")
    names = {"0": "x", "1.0": "h", "1.1": "c"}
    same_gradients(seen, wanted, labels(gate_shapes("", 1, 1, 1), *names.items()))
    expectations.unchanged(seen)
    seen, wanted = mine.observe(10_000 * x, state), theirs.observe(10_000 * x, state)
    case = "inputs of the order of 10000, which saturate"
    same_states(seen.value, wanted.value, ("new h", "new c"), case)
    same_gradients(seen, wanted, {"1.0": "h", "1.1": "c"}, case)


# --------------------------------------------------------------------------------------------
# Encoder
# --------------------------------------------------------------------------------------------

ENCODED = ("states", "final state")


def ids_with_specials(draw, batch, length):
    """Ids below 7; of several rows of four the first holds PAD, BOS, EOS and UNK."""
    ids = draw.integers(UNK + 1, 7, batch, length)
    if batch > 1:
        ids[0] = draw.permutation(4)
    return ids


def encoder_pair(student, reference, draw, cell="gru", vocabulary=7, embed=2, width=3, dtype=None):
    return pair(
        student,
        reference,
        "Encoder",
        encoder_state(draw, cell, vocabulary, embed, width),
        dtype=dtype,
        vocab_size=vocabulary,
        embed_dim=embed,
        hidden_size=width,
        cell=cell,
    )


@promises("submodules")
@exercise("Encoder")
def test_encoder_parameters(student):
    """The parts are `embedding` and `cell`; the cell is a GRUCell unless told otherwise."""
    for cell, count in [(None, 3), ("rnn", 1), ("gru", 3), ("lstm", 4)]:
        options = {} if cell is None else {"cell": cell}
        mine = student.module("Encoder", vocab_size=7, embed_dim=2, hidden_size=3, **options)
        same_parameters(mine, {"embedding.weight": (7, 2), **gate_shapes("cell.", count, 2, 3)})


@promises("from-zeros", "states-and-final")
@exercise("Encoder")
def test_encoder_values(student, reference, draw):
    """Without a mask every token is real, PAD too; states and the last one, from zeros."""
    for cell in KINDS:
        for batch, length in [(1, 1), (1, 3), (3, 4)]:
            mine, theirs = encoder_pair(student, reference, draw, cell)
            ids = ids_with_specials(draw, batch, length)
            case = f'cell="{cell}", {sizes(B=batch, T=length)}'
            same_states(mine(ids), theirs(ids), ENCODED, case)


@promises("padding", "states-and-final")
@exercise("Encoder")
def test_encoder_padding(student, reference, draw):
    """Rows of padding are 0, and the final state is the one after the last real token."""
    for cell in KINDS:
        for lengths in ([1, 3], [3, 1, 4, 2]):
            mine, theirs = encoder_pair(student, reference, draw, cell)
            mask = right_padded(lengths)
            ids = draw.integers(0, 7, *mask.shape).masked_fill(~mask, PAD)
            case = f'cell="{cell}", lengths {lengths}'
            same_states(mine(ids, mask), theirs(ids, mask), ENCODED, case)


@promises("bad-input")
@exercise("Encoder")
def test_encoder_refusals(student, draw):
    """Empty batches, ids that are no ids, masks that do not fit: all refused with a ValueError."""
    mine = student.module("Encoder", vocab_size=6, embed_dim=2, hidden_size=3)
    ids = draw.integers(0, 6, 2, 3)
    full = torch.ones(2, 3, dtype=torch.bool)
    empty_row = full.clone()
    empty_row[1] = False
    first_empty, short = full.clone(), full.clone()
    first_empty[0], short[0, 1:] = False, False
    outside, below = ids.clone(), ids.clone()
    outside[0, 2], below[0, 1] = 6, -1
    refuses(
        mine,
        {
            "an empty batch": (torch.zeros(0, 3, dtype=torch.int64), None),
            "sequences of length 0": (torch.zeros(2, 0, dtype=torch.int64), None),
            "ids of dtype float32": (ids.float(), None),
            "ids of dtype bool": (full, None),
            "ids of dtype int32": (ids.int(), None),
            "the id -1": (torch.tensor([[1, -1, 2]]), None),
            "the id 6 where vocab_size is 6": (torch.tensor([[1, 2, 6]]), None),
            "the id 6 at a padded position": (outside, short),
            "the id -1 at a padded position": (below, short),
            "a mask of dtype float32": (ids, full.float()),
            "a mask of dtype int64": (ids, full.long()),
            "a mask of dtype uint8": (ids, full.byte()),
            "a mask of shape (2, 2) for ids of shape (2, 3)": (ids, full[:, :2]),
            "a mask of shape (1, 3) for ids of shape (2, 3)": (ids, full[:1]),
            "a mask of shape (3,) for ids of shape (2, 3)": (ids, full[0]),
            "a row without a real token": (ids, empty_row),
            "a first row without a real token": (ids, first_empty),
        },
    )


@promises("other-cell")
@exercise("Encoder")
def test_encoder_refuses_other_cells(student):
    """A cell that is none of "rnn", "gru" and "lstm" is refused when the module is created."""

    def make(cell):
        student.module("Encoder", vocab_size=6, embed_dim=2, hidden_size=3, cell=cell)

    make("rnn")
    refuses(make, {'cell="elman"': ("elman",), 'cell="GRU"': ("GRU",), 'cell=""': ("",)})


@hidden
@promises("padding")
@exercise("Encoder")
def test_encoder_ignores_padding(student, reference, draw):
    """What stands in the padding, and how much there is of it, changes nothing."""
    for cell in KINDS:
        mine, theirs = encoder_pair(student, reference, draw, cell)
        ids = draw.integers(0, 7, 3, 6)
        for longest in (4, 6):
            mask = right_padded([4, 1, 3], longest)
            given = ids[:, :longest].clone()
            given[~mask] = draw.integers(0, 7, int((~mask).sum()))
            want = theirs(given, mask)
            case = f'cell="{cell}", any ids in the padding up to length {longest}'
            same_states(mine(given, mask), want, ENCODED, case)


@hidden
@exercise("Encoder")
def test_encoder_any_mask(student, reference, draw):
    """Padding on the left and gaps carry the state over as well."""
    for cell in KINDS:
        mine, theirs = encoder_pair(student, reference, draw, cell)
        ids = draw.integers(0, 7, 4, 5)
        mask = draw.mask(4, 5, keep=0.6)
        mask[0] = torch.tensor([False, False, True, True, True])
        mask[1] = torch.tensor([True, False, False, True, False])
        for again in ("", ", asked again"):  # the second time from zeros too
            case = f'cell="{cell}", padding anywhere, in train mode{again}'
            same_states(mine.train()(ids, mask), theirs(ids, mask), ENCODED, case)
    ids = draw.integers(0, 7, 1, 130)
    same_states(mine(ids), theirs(ids), ENCODED, "T=130")


@hidden
@exercise("Encoder")
def test_encoder_gradients(student, reference, draw):
    """Gradients reach the embedding and every parameter of the cell; float64 stays float64."""
    for cell in KINDS:
        mine, theirs = encoder_pair(student, reference, draw, cell, dtype=torch.float64)
        ids, mask = draw.integers(0, 7, 2, 4), right_padded([4, 2])
        ids[0, 1] = PAD  # a real token like any other: its row learns too
        seen, wanted = mine.observe(ids, mask), theirs.observe(ids, mask)
        same_states(seen.value, wanted.value, ENCODED, f'cell="{cell}", float64')
        names = labels({"embedding.weight": 0, **gate_shapes("cell.", 1, 1, 1)})
        same_gradients(seen, wanted, names, f'cell="{cell}"')
        expectations.unchanged(seen)
        ids = draw.integers(0, 7, 1, 130)
        same_gradients(mine.observe(ids), theirs.observe(ids), names, f'cell="{cell}", T=130')


# --------------------------------------------------------------------------------------------
# BidirectionalEncoder
# --------------------------------------------------------------------------------------------

BIDIRECTIONAL = ("states", "state")
DIRECTIONS = ("forward_cell.", "backward_cell.")


def bidirectional_pair(student, reference, draw, embed=2, width=3, decoder=4, dtype=None):
    state = {"embedding.weight": draw.normal(7, embed)}
    for direction in DIRECTIONS:
        state |= gates(draw, direction, 3, embed, width)
    state["bridge.weight"] = draw.normal(decoder, 2 * width, scale=width**-0.5)
    state["bridge.bias"] = draw.normal(decoder, scale=0.5)
    return pair(
        student,
        reference,
        "BidirectionalEncoder",
        state,
        dtype=dtype,
        vocab_size=7,
        embed_dim=embed,
        hidden_size=width,
        decoder_size=decoder,
    )


@promises("submodules")
@exercise("BidirectionalEncoder")
def test_bidirectional_parameters(student):
    """The parts are `embedding`, `forward_cell`, `backward_cell` and `bridge`."""
    mine = student.module(
        "BidirectionalEncoder", vocab_size=7, embed_dim=2, hidden_size=3, decoder_size=4
    )
    same_parameters(
        mine,
        {
            "embedding.weight": (7, 2),
            **gate_shapes("forward_cell.", 3, 2, 3),
            **gate_shapes("backward_cell.", 3, 2, 3),
            "bridge.weight": (4, 6),
            "bridge.bias": (4,),
        },
    )


@promises("two-directions", "bridge", "states-and-state")
@exercise("BidirectionalEncoder")
def test_bidirectional_values(student, reference, draw):
    """Without a mask, PAD among the ids: states side by side, and the bridged final states."""
    for batch, length, decoder in [(1, 1, 3), (1, 3, 3), (3, 4, 5)]:
        mine, theirs = bidirectional_pair(student, reference, draw, decoder=decoder)
        ids = ids_with_specials(draw, batch, length)
        case = sizes(B=batch, T=length, decoder=decoder)
        same_states(mine(ids), theirs(ids), BIDIRECTIONAL, case)


@promises("padding")
@exercise("BidirectionalEncoder")
def test_bidirectional_padding(student, reference, draw):
    """Both directions leave the padding out: the backward one starts at the last real token."""
    for lengths in ([1, 3], [3, 1, 4, 2]):
        mine, theirs = bidirectional_pair(student, reference, draw)
        mask = right_padded(lengths)
        ids = draw.integers(0, 7, *mask.shape).masked_fill(~mask, PAD)
        same_states(mine(ids, mask), theirs(ids, mask), BIDIRECTIONAL, f"lengths {lengths}")


@exercise("BidirectionalEncoder")
def test_bidirectional_reads_everything(student, draw):
    """The first token reaches every forward state, and the last one every backward state."""
    state = {"embedding.weight": draw.normal(7, 2)}
    for direction in DIRECTIONS:
        state |= gates(draw, direction, 3, 2, 3)
    state |= {"bridge.weight": draw.normal(4, 6), "bridge.bias": draw.normal(4)}
    mine = student.module(
        "BidirectionalEncoder",
        state={name: value.double() for name, value in state.items()},
        dtype=torch.float64,
        vocab_size=7,
        embed_dim=2,
        hidden_size=3,
        decoder_size=4,
    )
    ids = draw.integers(0, 6, 1, 6)
    before = expectations.pair(mine(ids), what="the result (states, state)")[0]
    expectations.shape(before, (1, 6, 6), what="the states")
    for place, words, half, reached in [
        (0, "first", "forward", torch.ones(6, dtype=torch.bool)),
        (0, "first", "backward", torch.arange(6) == 0),
        (5, "last", "forward", torch.arange(6) == 5),
        (5, "last", "backward", torch.ones(6, dtype=torch.bool)),
    ]:
        other = ids.clone()
        other[0, place] = 6
        after = expectations.pair(mine(other), what="the result (states, state)")[0]
        expectations.shape(after, (1, 6, 6), what="the states")
        columns = slice(0, 3) if half == "forward" else slice(3, 6)
        changed = (after != before)[0, :, columns].any(-1)
        expectations.true(
            torch.equal(changed, reached),
            f"Another {words} token changes the {half} states at the positions "
            f"{changed.nonzero().flatten().tolist()} of 6; it should change them at "
            f"{reached.nonzero().flatten().tolist()}.",
        )


@promises("bad-input")
@exercise("BidirectionalEncoder")
def test_bidirectional_refusals(student, draw):
    """Empty batches, ids that are no ids, masks that do not fit: all refused with a ValueError."""
    mine = student.module(
        "BidirectionalEncoder", vocab_size=6, embed_dim=2, hidden_size=3, decoder_size=4
    )
    ids = draw.integers(0, 6, 2, 3)
    full = torch.ones(2, 3, dtype=torch.bool)
    empty_row = full.clone()
    empty_row[0] = False
    short = full.clone()
    short[0, 1:] = False
    outside, below = ids.clone(), ids.clone()
    outside[0, 2], below[0, 1] = 6, -1
    refuses(
        mine,
        {
            "an empty batch": (torch.zeros(0, 3, dtype=torch.int64), None),
            "sequences of length 0": (torch.zeros(2, 0, dtype=torch.int64), None),
            "ids of dtype float32": (ids.float(), None),
            "ids of dtype bool": (full, None),
            "ids of dtype int32": (ids.int(), None),
            "the id -1": (torch.tensor([[1, -1, 2]]), None),
            "the id 6 where vocab_size is 6": (torch.tensor([[1, 2, 6]]), None),
            "the id 6 at a padded position": (outside, short),
            "the id -1 at a padded position": (below, short),
            "a mask of dtype float32": (ids, full.float()),
            "a mask of dtype int64": (ids, full.long()),
            "a mask of dtype uint8": (ids, full.byte()),
            "a mask of shape (2, 2) for ids of shape (2, 3)": (ids, full[:, :2]),
            "a mask of shape (1, 3) for ids of shape (2, 3)": (ids, full[:1]),
            "a mask of shape (3,) for ids of shape (2, 3)": (ids, full[0]),
            "a row without a real token": (ids, empty_row),
        },
    )


@hidden
@exercise("BidirectionalEncoder")
def test_bidirectional_ignores_padding(student, reference, draw):
    """What stands in the padding, and how much there is of it, changes nothing."""
    mine, theirs = bidirectional_pair(student, reference, draw)
    ids = draw.integers(0, 7, 3, 7)
    for longest in (4, 7):
        mask = right_padded([4, 1, 3], longest)
        given = ids[:, :longest].clone()
        given[~mask] = draw.integers(0, 7, int((~mask).sum()))
        case = f"any ids in the padding up to length {longest}"
        same_states(mine(given, mask), theirs(given, mask), BIDIRECTIONAL, case)
    mask = draw.mask(3, 7, keep=0.6)
    mask[0, :2], mask[0, 2:5] = False, True
    for again in ("", ", asked again"):  # the second time from zeros too
        case = f"padding anywhere, in train mode{again}"
        same_states(mine.train()(ids, mask), theirs(ids, mask), BIDIRECTIONAL, case)


@hidden
@exercise("BidirectionalEncoder")
def test_bidirectional_sizes(student, reference, draw):
    """Widths that are all equal, and a decoder narrower than the encoder, are kept apart."""
    for embed, width, decoder in [(3, 3, 3), (4, 3, 1), (1, 1, 2)]:
        mine, theirs = bidirectional_pair(student, reference, draw, embed, width, decoder)
        mask = right_padded([3, 2, 1])
        ids = draw.integers(0, 7, 3, 3)
        case = sizes(embed=embed, hidden=width, decoder=decoder)
        same_states(mine(ids, mask), theirs(ids, mask), BIDIRECTIONAL, case)


@hidden
@exercise("BidirectionalEncoder")
def test_bidirectional_gradients(student, reference, draw):
    """Gradients reach the embedding, both cells and the bridge; float64 stays float64."""
    mine, theirs = bidirectional_pair(student, reference, draw, dtype=torch.float64)
    ids, mask = draw.integers(0, 7, 2, 4), right_padded([2, 4])
    ids[1, 2] = PAD  # a real token like any other: its row learns too
    seen, wanted = mine.observe(ids, mask), theirs.observe(ids, mask)
    same_states(seen.value, wanted.value, BIDIRECTIONAL, "float64")
    names = ["embedding.weight", "bridge.weight", "bridge.bias"]
    names += [name for direction in DIRECTIONS for name in gate_shapes(direction, 1, 1, 1)]
    same_gradients(seen, wanted, labels(names))
    expectations.unchanged(seen)
    ids = draw.integers(0, 7, 1, 130)
    same_gradients(mine.observe(ids), theirs.observe(ids), labels(names), "T=130")


# --------------------------------------------------------------------------------------------
# DecoderStep
# --------------------------------------------------------------------------------------------

STEP = ("logits", "state")


def decoder_state(draw, vocabulary, embed, width, context, prefix=""):
    joined = width + context
    return {
        f"{prefix}embedding.weight": draw.normal(vocabulary, embed),
        **gates(draw, f"{prefix}cell.", 3, embed + context, width),
        f"{prefix}output.weight": draw.normal(vocabulary, joined, scale=1.5 * joined**-0.5),
        f"{prefix}output.bias": draw.normal(vocabulary, scale=0.5),
    }


def decoder_shapes(vocabulary, embed, width, context, prefix=""):
    return {
        f"{prefix}embedding.weight": (vocabulary, embed),
        **gate_shapes(f"{prefix}cell.", 3, embed + context, width),
        f"{prefix}output.weight": (vocabulary, width + context),
        f"{prefix}output.bias": (vocabulary,),
    }


def decoder_pair(student, reference, draw, vocabulary, embed, width, context, dtype=None):
    return pair(
        student,
        reference,
        "DecoderStep",
        decoder_state(draw, vocabulary, embed, width, context),
        dtype=dtype,
        vocab_size=vocabulary,
        embed_dim=embed,
        hidden_size=width,
        context_size=context,
    )


def decoder_inputs(draw, batch, vocabulary, width, context, low=0):
    return (
        draw.integers(low, vocabulary, batch),
        draw.normal(batch, width, scale=0.7),
        draw.normal(batch, context, scale=0.7),
    )


@promises("submodules")
@exercise("DecoderStep")
def test_step_parameters(student):
    """The parts are `embedding`, `cell` on [embedding; context], `output` on [state; context]."""
    mine = student.module("DecoderStep", vocab_size=7, embed_dim=2, hidden_size=3, context_size=4)
    same_parameters(mine, decoder_shapes(7, 2, 3, 4))


@promises("formula", "new-state")
@exercise("DecoderStep")
def test_step_values(student, reference, draw):
    """Logits and new state agree."""
    for batch, vocabulary, embed, width, context in [
        (1, 5, 1, 1, 1),
        (1, 5, 3, 3, 3),
        (2, 7, 2, 3, 4),
        (4, 6, 3, 2, 1),
    ]:
        mine, theirs = decoder_pair(student, reference, draw, vocabulary, embed, width, context)
        inputs = decoder_inputs(draw, batch, vocabulary, width, context, low=UNK)
        if batch == 4:
            inputs[0][:] = draw.permutation(4)  # PAD, BOS, EOS and UNK are tokens like any other
        case = sizes(B=batch, V=vocabulary, embed=embed, H=width, C=context)
        got = mine(*inputs)
        expectations.items(got, 2, what="the result (logits, state)")
        want = theirs(*inputs)
        # The logits follow from the state, so the state is compared first.
        same_states(got[::-1], want[::-1], STEP[::-1], case)


@aspect
@exercise("DecoderStep")
def test_step_depends_on_all(student, draw):
    """Another previous token, another state or another context gives other logits."""
    state = decoder_state(draw, 6, 2, 3, 4)
    mine = student.module(
        "DecoderStep", state=state, vocab_size=6, embed_dim=2, hidden_size=3, context_size=4
    )
    token, hidden_state, context = decoder_inputs(draw, 1, 6, 3, 4)
    others = (token + 1) % 6, -hidden_state, -context
    result = expectations.items(
        mine(token, hidden_state, context), 2, what="the result (logits, state)"
    )
    before = expectations.tensor(result[0], what="the logits")
    for place, words in enumerate(("the previous token", "the state", "the context")):
        inputs = [token, hidden_state, context]
        inputs[place] = others[place]
        after = expectations.items(mine(*inputs), 2, what="the result (logits, state)")[0]
        expectations.shape(after, before.shape, what="the logits")
        expectations.true(
            not torch.equal(after, before),
            f"The logits stay the same when {words} changes; they depend on all three inputs.",
        )


@promises("bad-input")
@exercise("DecoderStep")
def test_step_refusals(student, draw):
    """Tokens that are no ids, and widths or batch sizes that differ, are refused."""
    mine = student.module("DecoderStep", vocab_size=6, embed_dim=2, hidden_size=3, context_size=4)
    token, state, context = decoder_inputs(draw, 2, 6, 3, 4)
    refuses(
        mine,
        {
            "the id 6 where vocab_size is 6": (torch.tensor([1, 6]), state, context),
            "the id -1": (torch.tensor([1, -1]), state, context),
            "a previous token of dtype float32": (token.float(), state, context),
            "a previous token of dtype bool": (token > 2, state, context),
            "a previous token of dtype int32": (token.int(), state, context),
            "a state of width 4 where hidden_size is 3": (token, draw.normal(2, 4), context),
            "a context of width 3 where context_size is 4": (token, state, draw.normal(2, 3)),
            "a state of batch size 3 with 2 tokens": (token, draw.normal(3, 3), context),
            "a state of batch size 1 with 2 tokens": (token, draw.normal(1, 3), context),
            "a context of batch size 1 with 2 tokens": (token, state, draw.normal(1, 4)),
            "a context of batch size 3 with 2 tokens": (token, state, draw.normal(3, 4)),
            "a state and a context of batch size 1 with 2 tokens": (token, state[:1], context[:1]),
            "a state and a context of batch size 3 with 2 tokens": (
                token,
                draw.normal(3, 3),
                draw.normal(3, 4),
            ),
        },
    )


@hidden
@exercise("DecoderStep")
def test_step_equal_widths(student, reference, draw):
    """Nothing is mixed up when all widths and the batch size are equal; several steps work."""
    mine, theirs = decoder_pair(student, reference, draw, 4, 4, 4, 4)
    token, state, context = decoder_inputs(draw, 4, 4, 4, 4)
    for step in range(3):
        got, want = mine.train()(token, state, context), theirs(token, state, context)
        same_states(got, want, STEP, f"all sizes 4, step {step}, in train mode")
        state, token = want[1], want[0].argmax(-1)


@hidden
@exercise("DecoderStep")
def test_step_gradients(student, reference, draw):
    """Gradients reach state, context and every parameter; float64 stays float64."""
    mine, theirs = decoder_pair(student, reference, draw, 6, 2, 3, 4, dtype=torch.float64)
    token, state, context = decoder_inputs(draw, 3, 6, 3, 4)
    token[1] = PAD  # a token like any other: its row learns too
    inputs = token, state.double(), context.double()
    seen, wanted = mine.observe(*inputs), theirs.observe(*inputs)
    same_states(seen.value, wanted.value, STEP, "float64")
    names = labels(decoder_shapes(1, 1, 1, 1), ("1", "the state"), ("2", "the context"))
    same_gradients(seen, wanted, names)
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# Seq2Seq
# --------------------------------------------------------------------------------------------


def translator_state(draw, sources=7, targets=6, embed=2, width=3):
    state = encoder_state(draw, "gru", sources, embed, width, "encoder.")
    state |= decoder_state(draw, targets, embed, width, width, "decoder.")
    # Logits with a standard deviation of a few units, so that the own choice of a step is clear.
    state["decoder.output.weight"] = state["decoder.output.weight"] * 3
    return state


def translator_pair(student, reference, draw, dtype=None, **options):
    given = translator_options(**options)
    state = translator_state(draw, **options)
    return pair(student, reference, "Seq2Seq", state, dtype=dtype, **given)


def translator_inputs(draw, batch, length, steps, sources=7, targets=6):
    target_in = draw.integers(0, targets, batch, steps)
    target_in[:, 0] = BOS
    return draw.integers(0, sources, batch, length), target_in


@promises("inputs")
@exercise("Seq2Seq")
def test_forcing_always(student, reference, draw):
    """With a ratio of 1, the default, the input of every step is the token of target_in."""
    for batch, length, steps in [(1, 1, 1), (1, 2, 3), (3, 4, 5), (1, 2, 130)]:
        mine, theirs = translator_pair(student, reference, draw)
        source, target_in = translator_inputs(draw, batch, length, steps)
        if batch > 1:
            source[0] = draw.permutation(4)  # without a mask PAD is real, too
            target_in[0, 1:] = draw.permutation(4)
        want = theirs(source, target_in)
        case = sizes(B=batch, T=length, U=steps)
        expectations.close(mine(source, target_in), want, what="the logits", case=case)
        got = mine(source, target_in, None, 1.0)
        expectations.close(got, want, what="the logits", case=f"{case}, a ratio of 1")


@promises("inputs")
@exercise("Seq2Seq")
def test_forcing_never(student, reference, draw):
    """With a ratio of 0 each step is fed the row's own argmax of the step before."""
    for batch, length, steps in [(1, 1, 1), (2, 2, 4), (1, 2, 5), (4, 3, 6)]:
        mine, theirs = translator_pair(student, reference, draw)
        source, target_in = translator_inputs(draw, batch, length, steps)
        for mode in ("train", "eval"):
            getattr(mine, mode)()
            got = mine(source, target_in, teacher_forcing_ratio=0.0)
            want = theirs(source, target_in, teacher_forcing_ratio=0.0)
            case = f"{sizes(B=batch, T=length, U=steps)}, a ratio of 0, in {mode} mode"
            expectations.close(got, want, what="the logits", case=case)
            # The tokens of target_in after the first are not looked at.
            target_in = target_in.clone()
            target_in[:, 1:] = draw.integers(0, 6, batch, steps - 1)


@promises("source-mask")
@exercise("Seq2Seq")
def test_forcing_source_mask(student, reference, draw):
    """The padding of the source is left out, whatever the ratio."""
    mine, theirs = translator_pair(student, reference, draw)
    source, target_in = translator_inputs(draw, 3, 4, 4)
    mask = right_padded([2, 4, 1])
    for ratio in (1.0, 0.0):
        expectations.close(
            mine(source, target_in, mask, teacher_forcing_ratio=ratio),
            theirs(source, target_in, mask, teacher_forcing_ratio=ratio),
            what="the logits",
            case=f"sources of 2, 4 and 1 tokens, a ratio of {ratio:g}",
        )


@promises("bad-input")
@exercise("Seq2Seq")
def test_forcing_refusals(student, draw):
    """A ratio outside [0, 1], and no step at all, are refused with a ValueError."""
    mine = student.module("Seq2Seq", **translator_options())
    source, target_in = translator_inputs(draw, 2, 3, 4)
    refuses(
        mine,
        {
            "a ratio of -0.1": (source, target_in, None, -0.1),
            "a ratio of 1.1": (source, target_in, None, 1.1),
            "a ratio of 50": (source, target_in, None, 50.0),
            "a target_in of length 0": (source, target_in[:, :0], None, 1.0),
        },
    )


# For tests of the ratio: a translator whose logits tell which token it was fed. The update gate is
# 0 and the candidate a copy of the embedding, which is one-hot, so that the state says nothing but
# the token. The next own choice after token k is FREE[k]: 6 or 7, which no target is.
FREE = [6, 7, 6, 7, 6, 7, 6, 7]


def telling_state(free):
    size = len(free)
    state = encoder_state_of_zeros(size)
    weight_ih = torch.zeros(3 * size, 2 * size)
    weight_ih[2 * size :, :size] = 3 * torch.eye(size)
    bias_ih = torch.zeros(3 * size)
    bias_ih[size : 2 * size] = -40.0
    output = torch.zeros(size, 2 * size)
    output[:, :size] = torch.eye(size)
    output[free, range(size)] += 5.0
    return state | {
        "decoder.embedding.weight": torch.eye(size),
        "decoder.cell.weight_ih": weight_ih,
        "decoder.cell.weight_hh": torch.zeros(3 * size, size),
        "decoder.cell.bias_ih": bias_ih,
        "decoder.cell.bias_hh": torch.zeros(3 * size),
        "decoder.output.weight": output,
        "decoder.output.bias": torch.zeros(size),
    }


def encoder_state_of_zeros(size):
    return {
        "encoder.embedding.weight": torch.zeros(4, size),
        "encoder.cell.weight_ih": torch.zeros(3 * size, size),
        "encoder.cell.weight_hh": torch.zeros(3 * size, size),
        "encoder.cell.bias_ih": torch.zeros(3 * size),
        "encoder.cell.bias_hh": torch.zeros(3 * size),
    }


def forced_steps(student, draw, batch, steps, ratio, training=False):
    """Which inputs of steps 1, 2, ... were the target's, (B, U - 1): told by the logits."""
    size = len(FREE)
    mine = student.module(
        "Seq2Seq", state=telling_state(FREE), **translator_options(4, size, size, size)
    )
    if training:
        mine.train()
    every = torch.stack([torch.full((size,), BOS), torch.arange(size)], dim=1)
    patterns = mine(torch.zeros(size, 1, dtype=torch.int64), every)
    expectations.shape(patterns, (size, 2, size), what="the logits")
    target_in = draw.integers(1, 6, batch, steps)
    target_in[:, 0] = BOS
    logits = mine(torch.zeros(batch, 2, dtype=torch.int64), target_in, teacher_forcing_ratio=ratio)
    expectations.shape(logits, (batch, steps, size), what="the logits")
    gaps = (logits.unsqueeze(2) - patterns[:, 1]).abs().amax(-1)  # (B, U, V)
    fed = gaps.argmin(-1)  # (B, U)
    known = bool((gaps.amin(-1) < 1e-3).all())
    own = torch.tensor(FREE)[fed[:, :-1]]  # (B, U - 1)
    forced = fed[:, 1:] == target_in[:, 1:]
    expectations.true(
        known and bool((forced | (fed[:, 1:] == own)).all()) and bool((fed[:, 0] == BOS).all()),
        "Some step was fed neither the token of target_in at that step nor the argmax of the "
        f"logits of the step before, with a ratio of {ratio}.",
    )
    return forced


@promises("all-steps")
@exercise("Seq2Seq")
def test_forcing_goes_on_after_eos(student, reference, draw):
    """There are U steps, each fed by the same rule, whether or not a row has produced EOS."""
    after = [6, EOS, 4, 7, EOS, 3, 5, 3]  # the own choice: BOS, EOS, 4, EOS, 4, ...
    size = len(after)
    mine, theirs = pair(
        student,
        reference,
        "Seq2Seq",
        telling_state(after),
        **translator_options(4, size, size, size),
    )
    target_in = torch.tensor([[BOS, EOS, PAD, PAD, PAD], [BOS, 5, 6, EOS, PAD]])
    source = torch.zeros(2, 3, dtype=torch.int64)
    for ratio in (0.0, 1.0):
        expectations.close(
            mine(source, target_in, teacher_forcing_ratio=ratio),
            theirs(source, target_in, teacher_forcing_ratio=ratio),
            what="the logits",
            case=f"rows in which EOS comes before the last step, a ratio of {ratio:g}",
        )


def drawn_for_many(forced):
    """The mistake that shows in draws: one for all rows of a step, if no row differs."""
    return "forcing_per_step" if torch.equal(forced, forced[:1].expand_as(forced)) else None


@promises("own-draws")
@exercise("Seq2Seq")
def test_forcing_rate(student, draw):
    """An input is the target's with the given probability, the own choice otherwise."""
    for ratio, batch in ((0.25, 24), (0.7, 24)):
        forced = forced_steps(student, draw, batch, 33, ratio, training=True)
        share = float(forced.float().mean())
        near = abs(share - (1 - ratio)) < 0.1
        expectations.rate(
            int(forced.sum()),
            forced.numel(),
            ratio,
            what=f"the share of inputs from target_in at a ratio of {ratio}",
            false_alarm=3e-10,
            misconception=drawn_for_many(forced) or ("forcing_inverted" if near else None),
        )


@hidden
@promises("own-draws")
@exercise("Seq2Seq")
def test_forcing_drawn_for_each(student, draw):
    """Every row, step and call is drawn for itself, at any ratio, not one draw for many."""
    # First, since one draw for a whole call may force what no draw at all would.
    # Of 39 draws 19 or 20, say, are forced with a probability below 0.26: 20 times once in 10**10.
    counts = [int(forced_steps(student, draw, 1, 40, 0.5).sum()) for _ in range(20)]
    seen = " or ".join(map(str, sorted(set(counts))))
    expectations.true(
        max(counts) - min(counts) > 1,
        f"Each of twenty calls with a ratio of 0.5 forces {seen} of 39 inputs; each should be "
        "drawn for itself, so that the number varies.",
    )
    forced = forced_steps(student, draw, 24, 33, 0.5)
    again = forced_steps(student, draw, 24, 33, 0.5)
    # By chance with a probability of 2 ** -768: the seed of PyTorch's generator is another one.
    expectations.true(
        not torch.equal(forced, again),
        "Two calls with a ratio of 0.5 force the same inputs; draw with PyTorch's global generator "
        "and don't set its seed in forward.",
    )
    for left, right, words in [
        (forced[::2], forced[1::2], "neighbouring rows in one step"),
        (forced[:, ::2], forced[:, 1::2], "neighbouring steps of one row"),
    ]:
        same = left == right
        expectations.rate(
            int(same.sum()),
            same.numel(),
            0.5,
            what=f"the share of equal draws for two {words} at a ratio of 0.5",
            false_alarm=4e-10,
            misconception=drawn_for_many(forced),
        )
    # Of 24 rows of 32 draws two are alike with a probability of 6e-8, two pairs with one of 2e-15.
    expectations.true(
        len(set(map(tuple, forced.tolist()))) >= 23,
        "Several rows share their draws at a ratio of 0.5; draw for every row on its own.",
    )
    rare = forced_steps(student, draw, 48, 33, 0.96)
    expectations.rate(
        int(rare.sum()),
        rare.numel(),
        0.96,
        what="the share of inputs from target_in at a ratio of 0.96",
        false_alarm=3e-10,
    )


@hidden
@exercise("Seq2Seq")
def test_forcing_gradients(student, reference, draw):
    """Gradients reach every parameter, with and without forcing; float64 stays float64."""
    mine, theirs = translator_pair(student, reference, draw, dtype=torch.float64)
    source, target_in = translator_inputs(draw, 2, 3, 4)
    mask = right_padded([3, 2])
    names = ["encoder.embedding.weight", *gate_shapes("encoder.cell.", 1, 1, 1)]
    names += decoder_shapes(1, 1, 1, 1, "decoder.")
    for ratio in (1.0, 0.0):
        seen = mine.observe(source, target_in, mask, ratio)
        wanted = theirs.observe(source, target_in, mask, ratio)
        case = f"float64, a ratio of {ratio:g}"
        expectations.close(seen.value, wanted.value, what="the logits", case=case)
        same_gradients(seen, wanted, labels(names), f"a ratio of {ratio:g}")
        expectations.unchanged(seen)
    given = translator_inputs(draw, 1, 2, 130)
    same_gradients(mine.observe(*given), theirs.observe(*given), labels(names), "U=130")
