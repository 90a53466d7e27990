"""The sequence-to-sequence reference against implementations written by others or another way."""

import itertools
import math
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import rnn

from solutions import seq2seq
from solutions.seq2seq import BOS, EOS, PAD, SPECIALS, UNK, NextTokenTable
from tests.solutions.common import DTYPES, close, cotangent, exercise_cells, within_rate

SOURCE = Path(seq2seq.__file__).parent  # a file a unit
INF = float("inf")


def gradients(outputs: Iterable[Tensor], wanted: Iterable[Tensor]) -> tuple[Tensor, ...]:
    loss = sum((o * cotangent(o)).sum() for o in outputs)
    return torch.autograd.grad(loss, list(wanted))


def same_with_gradients(
    ours: Iterable[Tensor],
    our_leaves: Iterable[Tensor],
    theirs: Iterable[Tensor],
    their_leaves: Iterable[Tensor],
) -> None:
    """Same outputs, and same gradients with respect to leaves that stand for each other."""
    ours, theirs = list(ours), list(theirs)
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        close(a, b, f"output {number}")
    pairs = zip(gradients(ours, our_leaves), gradients(theirs, their_leaves), strict=True)
    for number, (a, b) in enumerate(pairs):
        close(a, b, f"gradient {number}")


def ragged_mask(lengths: list[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


# ----------------------------------------------------------------------------------- words and ids

TOKENS = st.sampled_from(["a", "b", "Z", "é", "10", "", " ", "z", "<pad>", "<eos>", "<unk>"])
SENTENCES = st.lists(st.lists(TOKENS, max_size=6), min_size=1, max_size=5)


@given(SENTENCES, st.integers(1, 3), st.none() | st.integers(4, 9))
@settings(max_examples=100, deadline=None)
def test_vocabulary_equals_selecting_the_best_token_again_and_again(sentences, min_count, size):
    text = list(itertools.chain.from_iterable(sentences))
    left = {t for t in text if text.count(t) >= min_count} - set(SPECIALS)
    expected = list(SPECIALS)
    while left and len(expected) != size:
        top = max(text.count(t) for t in left)
        expected.append(min(t for t in left if text.count(t) == top))
        left.remove(expected[-1])
    assert seq2seq.build_vocabulary(sentences, min_count, size) == expected


@given(SENTENCES, st.booleans(), st.booleans())
@settings(max_examples=50, deadline=None)
def test_decode_undoes_encode_for_words_of_the_vocabulary(sentences, add_bos, add_eos):
    vocabulary = seq2seq.build_vocabulary(sentences)
    for sentence in sentences:
        words = [t for t in sentence if t not in SPECIALS]
        ids = seq2seq.encode(words, vocabulary, add_bos, add_eos)
        assert ids[add_bos : len(ids) - add_eos] == [vocabulary.index(t) for t in words]
        assert ids[:add_bos] == [BOS] * add_bos
        assert ids[len(ids) - add_eos :] == [EOS] * add_eos
        assert seq2seq.decode(ids, vocabulary) == words


def test_unknown_words_become_unk_and_stay_visible():
    vocabulary = [*SPECIALS, "x"]
    assert seq2seq.encode(["y", "x", "X"], vocabulary) == [UNK, 4, UNK]
    assert seq2seq.decode([UNK, 4], vocabulary) == ["<unk>", "x"]


def test_decode_stops_before_the_first_end_and_ignores_what_follows():
    vocabulary = [*SPECIALS, "x"]
    assert seq2seq.decode([BOS, PAD, 4, EOS, 4, 99, EOS], vocabulary) == ["x"]
    assert seq2seq.decode([EOS], vocabulary) == seq2seq.decode([], vocabulary) == []


def test_vocabulary_functions_leave_their_inputs_alone():
    sentences = [["b", "a"], ["<pad>"]]
    vocabulary = seq2seq.build_vocabulary(sentences)
    vocabulary.append("mine")
    assert SPECIALS == ["<pad>", "<bos>", "<eos>", "<unk>"]
    assert sentences == [["b", "a"], ["<pad>"]]
    assert seq2seq.build_vocabulary(sentences) == [*SPECIALS, "a", "b"]


# ----------------------------------------------------------------------------------------- padding

SEQUENCE = st.lists(st.integers(0, 50), max_size=8)


@given(st.lists(SEQUENCE, min_size=1, max_size=5), st.integers(1, 9), st.booleans())
@settings(max_examples=100, deadline=None)
def test_padding_equals_torchs_pad_sequence_of_the_cut_sequences(sequences, length, end):
    ids, mask = seq2seq.pad_to_length(sequences, length, "end" if end else "start")
    cut = [s[max(0, len(s) - length) :] if end else s[:length] for s in sequences]
    full = torch.full((length,), -1)  # makes torch pad to `length`
    rows = [torch.tensor(s, dtype=torch.int64) for s in cut]
    expected = rnn.pad_sequence([*rows, full], batch_first=True, padding_value=PAD)[:-1]
    assert ids.dtype == torch.int64
    assert torch.equal(ids, expected)
    real = rnn.pad_sequence(
        [*(torch.ones_like(r, dtype=torch.bool) for r in rows), full > 0], batch_first=True
    )[:-1]
    assert mask.dtype == torch.bool
    assert torch.equal(mask, real)


@given(st.lists(SEQUENCE, min_size=1, max_size=5).filter(any))
@settings(max_examples=50, deadline=None)
def test_a_batch_is_as_long_as_its_longest_sequence_and_loses_nothing(sequences):
    ids, mask = seq2seq.pad_batch(sequences)
    assert ids.shape == mask.shape == (len(sequences), max(map(len, sequences)))
    assert [row[real].tolist() for row, real in zip(ids, mask, strict=True)] == sequences
    assert (ids[~mask] == PAD).all()
    assert not (mask[:, 1:] & ~mask[:, :-1]).any(), "padding stands on the right"


@given(st.integers(1, 40), st.integers(1, 9), st.data())
@settings(max_examples=150, deadline=None)
def test_windows_are_those_of_unfold_and_cover_everything(n, length, data):
    stride = data.draw(st.integers(1, length))
    sequence = list(range(100, 100 + n))
    windows, mask = seq2seq.sliding_windows(sequence, length, stride)
    # torch's unfold yields the windows that fit: one more is needed if they leave a rest.
    padded = F.pad(torch.tensor(sequence), (0, length + stride), value=PAD)
    fitting = 0 if n < length else (n - length) // stride + 1
    covered = (fitting - 1) * stride + length if fitting else 0
    count = fitting + (covered < n)
    assert torch.equal(windows, padded.unfold(0, length, stride)[:count])
    assert windows.dtype == torch.int64
    assert torch.equal(mask, windows != PAD)
    assert set(windows[mask].tolist()) == set(sequence)
    # The overlap is exactly length - stride, so that the sequence can be put together again.
    again = windows[0][mask[0]].tolist()
    for row, real in zip(windows[1:], mask[1:], strict=True):
        assert row[: length - stride].tolist() == again[len(again) - (length - stride) :]
        again += row[real].tolist()[length - stride :]
    assert again == sequence


def test_a_real_zero_is_no_padding():
    _, mask = seq2seq.pad_batch([[0, 5], [0]])
    assert mask.tolist() == [[True, True], [True, False]]
    _, mask = seq2seq.sliding_windows([0, 0, 0], 2, 1)
    assert mask.all()


# ------------------------------------------------------------------------------------------- cells

CELLS = {
    "rnn": (seq2seq.RNNCell, nn.RNNCell, nn.RNN),
    "gru": (seq2seq.GRUCell, nn.GRUCell, nn.GRU),
    "lstm": (seq2seq.LSTMCell, nn.LSTMCell, nn.LSTM),
}
KINDS = pytest.mark.parametrize("kind", CELLS)


def tuple_of(state: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


@DTYPES
@KINDS
@pytest.mark.parametrize(("batch", "inputs", "hidden"), [(3, 4, 5), (1, 1, 1), (2, 5, 2)])
def test_cells_equal_torchs_in_value_and_gradient(kind, dtype, batch, inputs, hidden):
    our_class, their_class, _ = CELLS[kind]
    ours = our_class(inputs, hidden).to(dtype)
    theirs = their_class(inputs, hidden).to(dtype)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(batch, inputs, dtype=dtype, requires_grad=True)
    state = tuple(
        torch.randn(batch, hidden, dtype=dtype, requires_grad=True)
        for _ in range(2 if kind == "lstm" else 1)
    )
    argument = state if kind == "lstm" else state[0]
    same_with_gradients(
        tuple_of(ours(x, argument)),
        [x, *state, *(p for _, p in sorted(ours.named_parameters()))],
        tuple_of(theirs(x, argument)),
        [x, *state, *(p for _, p in sorted(theirs.named_parameters()))],
    )


@KINDS
def test_cells_pass_gradcheck_through_two_steps(kind):
    cell = CELLS[kind][0](2, 3).double()
    x = torch.randn(2, 2, 2, dtype=torch.float64, requires_grad=True)
    h = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    def two_steps(x: Tensor, h: Tensor) -> Tensor:
        state = (h, h.sin()) if kind == "lstm" else h
        return tuple_of(cell(x[1], cell(x[0], state)))[0]

    assert torch.autograd.gradcheck(two_steps, (x, h))


PARAMETERS = {
    seq2seq.RNNCell: (
        (4, 3),
        {"weight_ih": (3, 4), "weight_hh": (3, 3), "bias_ih": (3,), "bias_hh": (3,)},
    ),
    seq2seq.GRUCell: (
        (4, 3),
        {"weight_ih": (9, 4), "weight_hh": (9, 3), "bias_ih": (9,), "bias_hh": (9,)},
    ),
    seq2seq.LSTMCell: (
        (4, 3),
        {"weight_ih": (12, 4), "weight_hh": (12, 3), "bias_ih": (12,), "bias_hh": (12,)},
    ),
    seq2seq.Encoder: (
        (7, 4, 3),
        {
            "embedding.weight": (7, 4),
            "cell.weight_ih": (9, 4),
            "cell.weight_hh": (9, 3),
            "cell.bias_ih": (9,),
            "cell.bias_hh": (9,),
        },
    ),
    seq2seq.BidirectionalEncoder: (
        (7, 4, 3, 5),
        {"embedding.weight": (7, 4), "bridge.weight": (5, 6), "bridge.bias": (5,)}
        | {
            f"{way}_cell.{name}": shape
            for way in ("forward", "backward")
            for name, shape in [
                ("weight_ih", (9, 4)),
                ("weight_hh", (9, 3)),
                ("bias_ih", (9,)),
                ("bias_hh", (9,)),
            ]
        },
    ),
    seq2seq.DecoderStep: (
        (7, 4, 3, 2),
        {
            "embedding.weight": (7, 4),
            "cell.weight_ih": (9, 6),
            "cell.weight_hh": (9, 3),
            "cell.bias_ih": (9,),
            "cell.bias_hh": (9,),
            "output.weight": (7, 5),
            "output.bias": (7,),
        },
    ),
    seq2seq.Seq2Seq: (
        (8, 7, 4, 3),
        {
            "encoder.embedding.weight": (8, 4),
            "encoder.cell.weight_ih": (9, 4),
            "encoder.cell.weight_hh": (9, 3),
            "encoder.cell.bias_ih": (9,),
            "encoder.cell.bias_hh": (9,),
            "decoder.embedding.weight": (7, 4),
            "decoder.cell.weight_ih": (9, 7),
            "decoder.cell.weight_hh": (9, 3),
            "decoder.cell.bias_ih": (9,),
            "decoder.cell.bias_hh": (9,),
            "decoder.output.weight": (7, 6),
            "decoder.output.bias": (7,),
        },
    ),
}


@pytest.mark.parametrize("cls", PARAMETERS, ids=lambda cls: cls.__name__)
def test_modules_have_exactly_the_named_parameters(cls):
    options, shapes = PARAMETERS[cls]
    module = cls(*options)
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == shapes
    assert set(module.state_dict()) == set(shapes)
    for name, parameter in module.named_parameters():
        assert parameter.unique().numel() > 1, f"{name} starts constant"


@pytest.mark.parametrize("cls", list(PARAMETERS)[:3], ids=lambda cls: cls.__name__)
def test_cells_start_from_numbers_as_large_as_torchs(cls):
    """Uniform within 1 / sqrt(H) of 0, whatever the width of the input."""
    for hidden in (16, 100):
        for parameter in cls(7, hidden).parameters():
            assert 0.5 / math.sqrt(hidden) < parameter.abs().max() <= 1 / math.sqrt(hidden)
            assert parameter.min() < 0 < parameter.max()


@KINDS
def test_the_encoder_uses_the_cell_of_its_name(kind):
    assert type(seq2seq.Encoder(7, 4, 3, kind).cell) is CELLS[kind][0]


# ---------------------------------------------------------------------------------------- encoders

LENGTHS = [[3, 5, 1, 4], [2], [4, 4], [1, 6]]


def torch_layer(layer: type[nn.Module], cells: list[nn.Module], **options) -> nn.Module:
    """A layer of torch.nn with the weights of our cells: one, or forward and backward."""
    example = cells[0]
    inputs, hidden = example.weight_ih.shape[1], example.weight_hh.shape[1]
    theirs = layer(inputs, hidden, batch_first=True, **options).to(example.weight_ih.dtype)
    state = {}
    for suffix, cell in zip(("_l0", "_l0_reverse"), cells, strict=False):
        state |= {name + suffix: value for name, value in cell.state_dict().items()}
    theirs.load_state_dict(state)
    return theirs


def run_packed(layer: nn.Module, x: Tensor, mask: Tensor | None) -> tuple[Tensor, tuple]:
    """The padded states and the final states of a torch.nn layer, packed if there is a mask."""
    if mask is None:
        states, final = layer(x)
    else:
        packed = rnn.pack_padded_sequence(x, mask.sum(1), batch_first=True, enforce_sorted=False)
        states, final = layer(packed)
        states, _ = rnn.pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])
    return states, tuple_of(final)


@DTYPES
@KINDS
@pytest.mark.parametrize("lengths", [None, *LENGTHS], ids=str)
def test_encoder_equals_torchs_layer_on_packed_sequences(kind, dtype, lengths):
    ours = seq2seq.Encoder(9, 4, 5, kind).to(dtype)
    mask = None if lengths is None else ragged_mask(lengths)
    ids = torch.randint(9, (2, 5) if mask is None else mask.shape)
    embedding = nn.Embedding.from_pretrained(ours.embedding.weight.detach(), freeze=False)
    theirs = torch_layer(CELLS[kind][2], [ours.cell])
    states, final = ours(ids, mask)
    their_states, their_final = run_packed(theirs, embedding(ids), mask)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    same_with_gradients(
        [states, *tuple_of(final)],
        [ours.embedding.weight, *(getattr(ours.cell, n) for n in names)],
        [their_states, *(part[0] for part in their_final)],
        [embedding.weight, *(getattr(theirs, f"{n}_l0") for n in names)],
    )
    assert isinstance(final, tuple) == (kind == "lstm")
    if mask is not None:
        assert (states[~mask] == 0).all()


@DTYPES
@pytest.mark.parametrize("lengths", [None, *LENGTHS], ids=str)
def test_bidirectional_encoder_equals_torchs_layer_on_packed_sequences(dtype, lengths):
    ours = seq2seq.BidirectionalEncoder(9, 4, 5, 3).to(dtype)
    mask = None if lengths is None else ragged_mask(lengths)
    ids = torch.randint(9, (2, 5) if mask is None else mask.shape)
    embedding = nn.Embedding.from_pretrained(ours.embedding.weight.detach(), freeze=False)
    cells = [ours.forward_cell, ours.backward_cell]
    theirs = torch_layer(nn.GRU, cells, bidirectional=True)
    bridge = nn.Linear(10, 3).to(dtype)
    bridge.load_state_dict(ours.bridge.state_dict())
    states, state = ours(ids, mask)
    their_states, (final,) = run_packed(theirs, embedding(ids), mask)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    same_with_gradients(
        [states, state],
        [ours.embedding.weight, ours.bridge.weight, ours.bridge.bias]
        + [getattr(cell, n) for cell in cells for n in names],
        [their_states, torch.tanh(bridge(torch.cat([final[0], final[1]], dim=1)))],
        [embedding.weight, bridge.weight, bridge.bias]
        + [getattr(theirs, n + s) for s in ("_l0", "_l0_reverse") for n in names],
    )


@given(
    st.lists(st.lists(st.booleans(), min_size=6, max_size=6).filter(any), min_size=1, max_size=4)
)
@settings(max_examples=40, deadline=None)
def test_masked_places_anywhere_are_as_if_they_were_not_there(rows):
    mask = torch.tensor(rows)
    ids = torch.randint(9, mask.shape)
    for kind in CELLS:
        encoder = seq2seq.Encoder(9, 3, 4, kind).double()
        states, final = encoder(ids, mask)
        for b, real in enumerate(mask):
            alone, alone_final = encoder(ids[b : b + 1, real])
            close(states[b, real], alone[0])
            assert (states[b, ~real] == 0).all()
            for part, expected in zip(tuple_of(final), tuple_of(alone_final), strict=True):
                close(part[b], expected[0])
    both = seq2seq.BidirectionalEncoder(9, 3, 4, 2).double()
    states, state = both(ids, mask)
    for b, real in enumerate(mask):
        alone, alone_state = both(ids[b : b + 1, real])
        close(states[b, real], alone[0])
        assert (states[b, ~real] == 0).all()
        close(state[b], alone_state[0])


def test_what_stands_under_the_padding_changes_nothing_and_gets_no_gradient():
    mask = ragged_mask([3, 5])
    ids = torch.randint(8, (2, 5))
    other = torch.where(mask, ids, 8)
    for encoder in (seq2seq.Encoder(9, 3, 4, "lstm"), seq2seq.BidirectionalEncoder(9, 3, 4, 2)):
        for a, b in zip(encoder(ids, mask), encoder(other, mask), strict=True):
            assert all(map(torch.equal, tuple_of(a), tuple_of(b)))
        states, _ = encoder(other, mask)
        (gradient,) = gradients([states], [encoder.embedding.weight])
        assert (gradient[8] == 0).all()
        assert gradient[:8].any()


def test_each_direction_reads_the_whole_sequence():
    encoder = seq2seq.BidirectionalEncoder(9, 3, 4, 2)
    ids = torch.tensor([[4, 5, 6, 7, 8, 4]])
    before, _ = encoder(ids)
    for place, forward, backward in [(0, [0, 1, 2, 3, 4, 5], [0]), (5, [5], [0, 1, 2, 3, 4, 5])]:
        changed = ids.clone()
        changed[0, place] = 3
        after, _ = encoder(changed)
        differs = before != after
        assert differs[0, :, :4].any(-1).nonzero().flatten().tolist() == forward
        assert differs[0, :, 4:].any(-1).nonzero().flatten().tolist() == backward


# ----------------------------------------------------------------------------------------- decoder


def torch_decoder(ours: seq2seq.DecoderStep) -> tuple[nn.Embedding, nn.GRUCell, nn.Linear]:
    embedding = nn.Embedding.from_pretrained(ours.embedding.weight.detach(), freeze=False)
    inputs, hidden = ours.cell.weight_ih.shape[1], ours.cell.weight_hh.shape[1]
    cell = nn.GRUCell(inputs, hidden).to(ours.output.weight.dtype)
    cell.load_state_dict(ours.cell.state_dict())
    output = nn.Linear(ours.output.in_features, ours.output.out_features).to(cell.bias_ih.dtype)
    output.load_state_dict(ours.output.state_dict())
    return embedding, cell, output


@DTYPES
def test_decoder_step_equals_torchs_cell_and_layers(dtype):
    ours = seq2seq.DecoderStep(7, 4, 3, 2).to(dtype)
    theirs = torch_decoder(ours)
    embedding, cell, output = theirs
    previous = torch.tensor([6, 0, 3])
    state = torch.randn(3, 3, dtype=dtype, requires_grad=True)
    context = torch.randn(3, 2, dtype=dtype, requires_grad=True)
    new = cell(torch.cat([embedding(previous), context], 1), state)
    same_with_gradients(
        ours(previous, state, context),
        [state, context, *ours.parameters()],
        [output(torch.cat([new, context], 1)), new],
        [state, context, *(p for part in theirs for p in part.parameters())],
    )


def test_decoder_step_listens_to_each_of_its_three_inputs():
    step = seq2seq.DecoderStep(7, 4, 3, 2)
    previous, state, context = torch.tensor([5]), torch.randn(1, 3), torch.randn(1, 2)
    logits, _ = step(previous, state, context)
    for changed in (
        (previous - 1, state, context),
        (previous, state + 1, context),
        (previous, state, context + 1),
    ):
        assert not torch.allclose(step(*changed)[0], logits)


@DTYPES
@pytest.mark.parametrize("lengths", [None, [3, 5]], ids=str)
def test_teacher_forcing_equals_one_run_of_torchs_layer(dtype, lengths):
    model = seq2seq.Seq2Seq(9, 7, 4, 3).to(dtype)
    mask = None if lengths is None else ragged_mask(lengths)
    source, target_in = torch.randint(9, (2, 5)), torch.randint(7, (2, 6))
    read = nn.Embedding.from_pretrained(model.encoder.embedding.weight.detach(), freeze=False)
    encoder = torch_layer(nn.GRU, [model.encoder.cell])
    embedding, _, output = torch_decoder(model.decoder)
    decoder = torch_layer(nn.GRU, [model.decoder.cell])
    _, (final,) = run_packed(encoder, read(source), mask)
    context = final[0][:, None].expand(-1, 6, -1)
    states, _ = decoder(torch.cat([embedding(target_in), context], -1), final)
    same_with_gradients(
        [model(source, target_in, mask)],
        model.parameters(),
        [output(torch.cat([states, context], -1))],
        [p for m in (read, encoder, embedding, decoder, output) for p in m.parameters()],
    )


def test_free_running_feeds_back_its_own_tokens_and_ignores_the_targets():
    model = seq2seq.Seq2Seq(9, 7, 4, 3).double()
    source, mask = torch.randint(9, (3, 5)), ragged_mask([2, 5, 3])
    target_in = torch.randint(7, (3, 8))
    logits = model(source, target_in, mask, teacher_forcing_ratio=0.0)
    for b in range(3):
        state = model.start(source[b : b + 1], mask[b : b + 1])
        previous = target_in[b : b + 1, 0]
        for t in range(8):
            expected, state = model.step(previous, state)
            close(logits[b, t], expected[0])
            previous = expected.argmax(-1)
    other = target_in.clone()
    other[:, 1:] = 0
    assert torch.equal(model(source, other, mask, 0.0), logits)
    assert not torch.allclose(model(source, other, mask, 1.0), logits)


def forced_choices(rows: int, steps: int, ratio: float) -> tuple[Tensor, Tensor]:
    """Which inputs after the first came from the target, and where that is known: (rows, steps).

    The decoder is rigged so that its own choice is always the token that it was fed.
    """
    model = seq2seq.Seq2Seq(3, 3, 3, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.decoder.embedding.weight[:] = torch.tensor([[0.0], [1.0], [2.0]])
        # z = 0, so the old state is forgotten; n = tanh(5 * (id - 1)) is about -1, 0 or 1.
        model.decoder.cell.bias_ih[2:4] = -100.0
        model.decoder.cell.weight_ih[4:6, 0] = 5.0
        model.decoder.cell.bias_ih[4:6] = -5.0
        model.decoder.output.weight[:, 0] = torch.tensor([-1.0, 0.0, 1.0])
        model.decoder.output.bias[:] = torch.tensor([0.0, 0.5, 0.0])
    # Fed 0, 1, 2 the logits' argmax is 0, 1, 2: left alone, the model repeats its input.
    target_in = torch.arange(steps + 1).remainder(2).mul(2).expand(rows, -1)  # 0 2 0 2 ...
    fed = model(torch.zeros(rows, 1, dtype=torch.int64), target_in, None, ratio).argmax(-1)
    # A step is known to be forced where its input differs from that of the step before.
    forced = torch.zeros(rows, steps, dtype=torch.bool)
    known = torch.zeros(rows, steps, dtype=torch.bool)
    for t in range(steps):
        own, reference = fed[:, t], target_in[:, t + 1]
        known[:, t] = own != reference
        forced[:, t] = fed[:, t + 1] == reference
    return forced.where(known, torch.zeros_like(forced)), known


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.8])
def test_every_row_and_step_is_forced_on_its_own_at_the_ratio(ratio):
    forced, known = forced_choices(rows=4000, steps=8, ratio=ratio)
    assert known.sum(0).min() > 400
    assert within_rate(int(forced.sum()), int(known.sum()), ratio)
    for t in range(8):  # at every step, not only on average
        assert within_rate(int(forced[:, t].sum()), int(known[:, t].sum()), ratio)
    # Neighbouring rows, and neighbouring steps, agree as often as chance has it.
    both = known[1:] & known[:-1]
    agree = (forced[1:] == forced[:-1]) & both
    assert within_rate(int(agree.sum()), int(both.sum()), ratio**2 + (1 - ratio) ** 2)
    both = known[:, 1:] & known[:, :-1]
    agree = (forced[:, 1:] & forced[:, :-1]) & both
    assert within_rate(int(agree.sum()), int((both & forced[:, :-1]).sum()), ratio)


def test_teacher_forcing_is_repeatable_by_the_global_seed():
    model = seq2seq.Seq2Seq(9, 7, 4, 3)
    source, target_in = torch.randint(9, (6, 5)), torch.randint(7, (6, 9))
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(model(source, target_in, None, 0.5))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


# -------------------------------------------------------------------------------------- likelihood


@DTYPES
def test_log_likelihood_equals_torchs_cross_entropy(dtype):
    logits = (3 * torch.randn(4, 5, 6, dtype=dtype)).requires_grad_()
    targets = torch.randint(6, (4, 5))
    for mask in (None, torch.rand(4, 5) < 0.6, torch.zeros(4, 5, dtype=torch.bool)):
        ignored = targets if mask is None else targets.masked_fill(~mask, -100)
        terms = F.cross_entropy(
            logits.flatten(0, 1), ignored.flatten(), ignore_index=-100, reduction="none"
        )
        ours = seq2seq.sequence_log_prob(logits, ignored, mask)
        same_with_gradients([ours], [logits], [-terms.reshape(4, 5).sum(1)], [logits])


@DTYPES
@pytest.mark.parametrize("pad", [PAD, 3, -100])
def test_loss_equals_torchs_cross_entropy(dtype, pad):
    logits = torch.randn(4, 5, 6, dtype=dtype, requires_grad=True)
    targets = torch.randint(6, (4, 5)).masked_fill(~ragged_mask([1, 5, 2, 3]), pad)
    theirs = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=pad)
    ours = seq2seq.sequence_loss(logits, targets, pad)
    assert ours.shape == ()
    same_with_gradients([ours], [logits], [theirs], [logits])
    if pad == PAD:
        assert torch.equal(seq2seq.sequence_loss(logits, targets), ours)


def test_log_likelihood_survives_where_the_product_underflows():
    logits = torch.zeros(1, 4000, 10)
    targets = torch.zeros(1, 4000, dtype=torch.int64)
    assert torch.softmax(logits, -1)[..., 0].prod() == 0.0
    result = seq2seq.sequence_log_prob(logits, targets)
    assert result.item() == pytest.approx(4000 * math.log(0.1), rel=1e-5)
    unlikely = torch.tensor([[[0.0, -200.0]]])
    assert seq2seq.sequence_log_prob(unlikely, torch.ones(1, 1, dtype=torch.int64)) == -200.0


def test_impossible_targets_have_log_probability_minus_infinity():
    logits = torch.tensor([[[0.0, -INF], [0.0, 0.0]]])
    targets = torch.tensor([[1, 0]])
    assert seq2seq.sequence_log_prob(logits, targets).item() == -INF
    mask = torch.tensor([[False, True]])
    assert seq2seq.sequence_log_prob(logits, targets, mask).item() == pytest.approx(-math.log(2))


# ---------------------------------------------------------------------------------------- decoding


class Remembering(nn.Module):
    """A translator whose distribution depends on the source and on every token so far."""

    def __init__(self, size: int, vocab_size: int, spread: float = 2.0) -> None:
        super().__init__()
        table = spread * torch.randn(size, vocab_size, dtype=torch.float64)
        self.register_buffer("table", table)

    def start(self, source: Tensor, source_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        real = torch.ones_like(source) if source_mask is None else source_mask.long()
        return (source * real).sum(1) % len(self.table), torch.zeros(len(source), 2)

    def step(self, previous: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple]:
        code, other = state
        code = (code * 31 + previous * 7 + 3) % len(self.table)
        return self.table[code], (code, other + 1)


def some_table(vocab_size: int, steps: int = 3, holes: float = 0.0) -> NextTokenTable:
    """Random logits for 6 source tokens; a share `holes` of them is -inf, never that of EOS."""
    table = 2 * torch.randn(6, steps, vocab_size, vocab_size, dtype=torch.float64)
    hole = torch.rand(table.shape) < holes
    hole[..., EOS] = False
    return NextTokenTable(table.masked_fill(hole, -INF))


def translators() -> dict[str, nn.Module]:
    torch.manual_seed(5)
    return {
        "table": some_table(5),
        "holes": some_table(5, holes=0.5),
        "remembering": Remembering(101, 5),
        "seq2seq": seq2seq.Seq2Seq(6, 5, 4, 3).double(),
    }


TRANSLATORS = pytest.mark.parametrize("name", translators())


def log_prob(model: nn.Module, source: Tensor, ids: Iterable[int], mask=None) -> float:
    """The log-probability of a beginning, one token at a time."""
    state, previous, total = model.start(source, mask), BOS, 0.0
    for token in ids:
        logits, state = model.step(torch.tensor([previous]), state)
        weights = [math.exp(x) for x in logits[0].tolist()]
        total += math.log(weights[token] / sum(weights)) if weights[token] else -INF
        previous = token
    return total


def greedy_alone(model: nn.Module, source: Tensor, mask: Tensor | None, max_length: int) -> list:
    state, ids = model.start(source, mask), []
    while len(ids) < max_length and EOS not in ids:
        logits, state = model.step(torch.tensor([ids[-1] if ids else BOS]), state)
        row = logits[0].tolist()
        ids.append(row.index(max(row)))
    return ids


@TRANSLATORS
@pytest.mark.parametrize("max_length", [1, 2, 5, 12])
def test_greedy_decoding_equals_each_row_alone(name, max_length):
    model = translators()[name]
    source = torch.randint(1, 6, (7, 4))
    mask = ragged_mask([4, 2, 1, 3, 4, 4, 2])
    ids = seq2seq.greedy_decode(model, source, mask, max_length)
    rows = [greedy_alone(model, source[b, None], mask[b, None], max_length) for b in range(7)]
    longest = max(map(len, rows))
    assert ids.dtype == torch.int64
    assert ids.tolist() == [row + [PAD] * (longest - len(row)) for row in rows]


def test_greedy_rows_finish_at_different_steps():
    """The source token says after how many steps the end comes; without it, at max_length."""
    table = torch.zeros(6, 6, 6, 6)
    table[..., 5] = 1.0
    for s in range(1, 6):
        table[s, s - 1, :, EOS] = 2.0
    model = NextTokenTable(table)
    source = torch.tensor([[3], [1], [0], [2]])
    assert seq2seq.greedy_decode(model, source[[0, 1, 3]]).tolist() == [
        [5, 5, 2],
        [2, 0, 0],
        [5, 2, 0],
    ]
    ids = seq2seq.greedy_decode(model, source, max_length=4)
    assert ids.tolist() == [[5, 5, 2, 0], [2, 0, 0, 0], [5, 5, 5, 5], [5, 2, 0, 0]]
    assert seq2seq.greedy_decode(model, source).shape == (4, 20)


def all_finished(vocab_size: int, max_length: int) -> Iterable[tuple[int, ...]]:
    others = [token for token in range(vocab_size) if token != EOS]
    for length in range(max_length):
        for beginning in itertools.product(others, repeat=length):
            yield (*beginning, EOS)


@TRANSLATORS
@pytest.mark.parametrize("max_length", [1, 2, 4])
def test_exhaustive_search_equals_trying_all_sequences(name, max_length):
    model = translators()[name]
    for token in (1, 4):
        source = torch.tensor([[token, 2, 3]])
        mask = torch.tensor([[True, True, False]])
        best, at = max(
            (log_prob(model, source, ids, mask), ids) for ids in all_finished(5, max_length)
        )
        ids, total = seq2seq.exhaustive_search(model, source, max_length, mask)
        assert ids == list(at)
        assert total == pytest.approx(best, rel=1e-9)
        assert isinstance(total, float)
        assert all(type(i) is int for i in ids)


def test_the_probabilities_of_all_finished_sequences_sum_to_one():
    """If the end is certain at the last step, nothing is lost and nothing counted twice."""
    model = some_table(5, steps=4)
    model.table[:, -1] = -INF
    model.table[:, -1, :, EOS] = 0.0
    source = torch.tensor([[1]])
    finished = list(all_finished(5, 4))
    assert math.fsum(math.exp(log_prob(model, source, ids)) for ids in finished) == pytest.approx(1)
    best, total = seq2seq.exhaustive_search(model, source, 4)
    assert math.exp(total) == pytest.approx(
        max(math.exp(log_prob(model, source, i)) for i in finished)
    )
    # The loss of exercise 14 says the same as the search.
    state, previous, logits = model.start(source), torch.tensor([BOS]), []
    for token in best:
        row, state = model.step(previous, state)
        logits.append(row)
        previous = torch.tensor([token])
    result = seq2seq.sequence_log_prob(torch.stack(logits, 1), torch.tensor([best]))
    assert result.item() == pytest.approx(total)


def naive_beam(
    model: nn.Module, source: Tensor, beam_size: int, max_length: int, mask=None, alpha=0.0
) -> list[tuple[list[int], float]]:
    """Beam search on plain lists; every hypothesis is scored again from its beginning."""
    vocab_size = model.step(torch.tensor([BOS]), model.start(source, mask))[0].shape[1]
    live, done = [[]], []
    for _ in range(max_length):
        extensions = [[*ids, token] for ids in live for token in range(vocab_size)]
        extensions = [ids for ids in extensions if log_prob(model, source, ids, mask) > -INF]
        extensions.sort(key=lambda ids: log_prob(model, source, ids, mask), reverse=True)
        kept = extensions[: beam_size - len(done)]
        done += [ids for ids in kept if ids[-1] == EOS]
        live = [ids for ids in kept if ids[-1] != EOS]
    scored = [(ids, log_prob(model, source, ids, mask) / len(ids) ** alpha) for ids in done + live]
    return sorted(scored, key=lambda pair: -pair[1])


def same_hypotheses(ours: list, theirs: list) -> None:
    assert [ids for ids, _ in ours] == [ids for ids, _ in theirs]
    assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], rel=1e-9)
    assert all(isinstance(score, float) for _, score in ours)
    assert all(type(i) is int for ids, _ in ours for i in ids)


@TRANSLATORS
@pytest.mark.parametrize("beam_size", [1, 2, 3, 7])
@pytest.mark.parametrize("max_length", [1, 4])
def test_beam_search_equals_a_naive_one(name, beam_size, max_length):
    model = translators()[name]
    for token, alpha in itertools.product((1, 4), (0.0, 0.7, 2.0)):
        source, mask = torch.tensor([[token, 2, 3]]), torch.tensor([[True, True, False]])
        ours = seq2seq.beam_search(model, source, beam_size, max_length, mask, alpha)
        theirs = naive_beam(model, source, beam_size, max_length, mask, alpha)
        same_hypotheses(ours, theirs)
        assert len(ours) <= beam_size


@TRANSLATORS
def test_a_beam_that_drops_nothing_finds_what_exhaustive_search_finds(name):
    model = translators()[name]
    for token in (1, 2, 3):
        source = torch.tensor([[token, 4]])
        hypotheses = seq2seq.beam_search(model, source, 5**4, 4)
        finished = [pair for pair in hypotheses if pair[0][-1] == EOS]
        ids, total = seq2seq.exhaustive_search(model, source, 4)
        assert finished[0][0] == ids
        assert finished[0][1] == pytest.approx(total, rel=1e-9)
        # Nothing is missing and nothing is there twice.
        everything = {*all_finished(5, 4), *itertools.product([0, 1, 3, 4], repeat=4)}
        possible = {ids for ids in everything if log_prob(model, source, ids) > -INF}
        assert {tuple(ids) for ids, _ in hypotheses} == possible
        assert len(hypotheses) == len(possible)


@given(st.integers(0, 10**6), st.integers(4, 6), st.integers(1, 6), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_a_beam_of_one_is_greedy_and_a_wide_one_never_worse_than_none(
    seed, vocab_size, beam_size, max_length
):
    torch.manual_seed(seed)
    model = Remembering(211, vocab_size)
    source = torch.tensor([[seed % 7, 1]])
    greedy = greedy_alone(model, source, None, max_length)
    ((ids, score),) = seq2seq.beam_search(model, source, 1, max_length)
    assert ids == greedy
    assert score == pytest.approx(log_prob(model, source, greedy), rel=1e-9)
    hypotheses = seq2seq.beam_search(model, source, beam_size, max_length)
    assert len(hypotheses) <= beam_size
    _, total = seq2seq.exhaustive_search(model, source, max_length)
    for ids, score in hypotheses:
        assert score == pytest.approx(log_prob(model, source, ids), rel=1e-9)
        assert ids[-1] == EOS or len(ids) == max_length
        assert EOS not in ids[:-1]
        if ids[-1] == EOS:
            assert score <= total + 1e-9


def test_searches_end_when_nothing_is_left_to_extend():
    class Ending(NextTokenTable):
        def step(self, previous: Tensor, state: tuple) -> tuple:
            assert len(previous) > 0, "asked to extend nothing"
            return super().step(previous, state)

    table = torch.full((1, 3, 5, 5), -INF)
    table[0, 0, BOS, 4] = table[0, 1, 4, EOS] = 0.0
    source = torch.zeros(1, 1, dtype=torch.int64)
    assert seq2seq.exhaustive_search(Ending(table), source, 9) == ([4, 2], 0.0)
    assert seq2seq.beam_search(Ending(table), source, 3, 9) == [([4, 2], 0.0)]


def test_length_normalisation_orders_the_result_but_not_the_search():
    for token in range(6):
        model, source = some_table(5), torch.tensor([[token]])
        plain = seq2seq.beam_search(model, source, 4, 5)
        for alpha in (0.5, 1.0, 3.0):
            normed = seq2seq.beam_search(model, source, 4, 5, alpha=alpha)
            expected = [(ids, score / len(ids) ** alpha) for ids, score in plain]
            same_hypotheses(normed, sorted(expected, key=lambda pair: -pair[1]))


def test_decoding_works_in_single_precision_and_leaves_the_model_alone():
    model = seq2seq.Seq2Seq(6, 5, 4, 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    source = torch.tensor([[4, 5, 3]])
    original = source.clone()
    ids, total = seq2seq.exhaustive_search(model, source, 4)
    hypotheses = seq2seq.beam_search(model, source, 625, 4)
    finished = next(pair for pair in hypotheses if pair[0][-1] == EOS)
    assert finished[0] == ids
    assert finished[1] == pytest.approx(total, abs=1e-5)
    seq2seq.greedy_decode(model, source)
    assert torch.equal(source, original)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_table_reads_its_last_step_when_it_ends():
    table = torch.arange(2 * 3 * 4 * 4.0).reshape(2, 3, 4, 4)
    model = NextTokenTable(table)
    state = model.start(torch.tensor([[1, 0], [0, 1]]))
    for t, row in enumerate([0, 1, 2, 2, 2]):
        logits, state = model.step(torch.tensor([3, t % 4]), state)
        assert torch.equal(logits, torch.stack([table[1, row, 3], table[0, row, t % 4]]))
    assert list(model.state_dict()) == ["table"]
    assert not list(model.parameters())


# ---------------------------------------------------------------------------------------- refusals

IDS = torch.tensor([[4, 5, 0], [6, 0, 0]])
MASK = IDS != PAD
BAD_IDS = {
    "no row": (torch.zeros(0, 3, dtype=torch.int64), None),
    "no column": (torch.zeros(2, 0, dtype=torch.int64), None),
    "float ids": (IDS.float(), None),
    "bool ids": (MASK, None),
    "id too large": (IDS + 1, None),
    "id too large under the mask": (IDS.masked_fill(~MASK, 7), MASK),
    "negative id": (IDS - 1, None),
    "int mask": (IDS, MASK.long()),
    "float mask": (IDS, MASK.float()),
    "mask of another length": (IDS, MASK[:, :2]),
    "mask of one row": (IDS, MASK[:1]),
    "mask of one dimension": (IDS, MASK[0]),
    "row without a token": (IDS, torch.tensor([[True, False, False], [False] * 3])),
}


@pytest.mark.parametrize("case", BAD_IDS)
@pytest.mark.parametrize("kind", [*CELLS, "both"])
def test_encoders_refuse(kind, case):
    if kind == "both":
        encoder = seq2seq.BidirectionalEncoder(7, 2, 3, 4)
    else:
        encoder = seq2seq.Encoder(7, 2, 3, kind)
    encoder(IDS, MASK)
    with pytest.raises(ValueError, match=r"ids|mask"):
        encoder(*BAD_IDS[case])


@KINDS
def test_cells_refuse_other_widths_and_batch_sizes(kind):
    cell = CELLS[kind][0](4, 3)
    x, h = torch.randn(2, 4), torch.randn(2, 3)
    bad = [
        (torch.randn(2, 5), h),
        (torch.randn(2, 1), h),
        (torch.randn(3, 4), h),
        (x, torch.randn(2, 4)),
        (x, torch.randn(2, 1)),
        (x, torch.randn(1, 3)),
        (x, torch.randn(3)),
    ]
    for inputs, state in bad:
        with pytest.raises(ValueError, match="must be"):
            cell(inputs, (state, state) if kind == "lstm" else state)
        if kind == "lstm" and inputs is x:
            for pair in ((h, state), (state, h)):
                with pytest.raises(ValueError, match="must be"):
                    cell(x, pair)


def table() -> NextTokenTable:
    return NextTokenTable(torch.zeros(6, 2, 5, 5))


ONE, TWO = torch.tensor([[4, 5]]), torch.tensor([[4, 5], [4, 5]])
LOGITS, TARGETS = torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)
STEP = (torch.tensor([1, 6]), torch.zeros(2, 3), torch.zeros(2, 2))
NO_END = NextTokenTable(torch.zeros(6, 2, 5, 5).index_fill(3, torch.tensor([EOS]), -INF))


def step_with(place: int, value: Tensor) -> Tensor:
    inputs = [*STEP[:place], value, *STEP[place + 1 :]]
    return seq2seq.DecoderStep(7, 4, 3, 2)(*inputs)


def forward(ratio: float = 1.0, steps: int = 3, rows: int = 1, mask=None) -> Tensor:
    target_in = torch.ones(rows, steps, dtype=torch.int64)
    return seq2seq.Seq2Seq(6, 5, 4, 3)(ONE, target_in, mask, ratio)


s = seq2seq
REFUSALS = {
    "no sentences": lambda: s.build_vocabulary([]),
    "min_count 0": lambda: s.build_vocabulary([["a"]], min_count=0),
    "max_size 3": lambda: s.build_vocabulary([["a"]], max_size=3),
    "specials missing": lambda: s.encode(["a"], ["a", "b", "c", "d"]),
    "specials in another order": lambda: s.encode(["a"], [*SPECIALS[::-1], "a"]),
    "specials cut": lambda: s.encode([], SPECIALS[:3]),
    "id beyond the vocabulary": lambda: s.decode([5], [*SPECIALS, "a"]),
    "negative id": lambda: s.decode([-1], [*SPECIALS, "a"]),
    "no sequences": lambda: s.pad_to_length([], 3),
    "length 0": lambda: s.pad_to_length([[4]], 0),
    "keep": lambda: s.pad_to_length([[4]], 3, "middle"),
    "float id": lambda: s.pad_to_length([[4], [2.0]], 3),
    "bool id": lambda: s.pad_to_length([[4], [True]], 3),
    "bad id that would be cut": lambda: s.pad_to_length([[4, 5, 2.5]], 2),
    "no batch": lambda: s.pad_batch([]),
    "empty sequences": lambda: s.pad_batch([[], []]),
    "float id in a batch": lambda: s.pad_batch([[4, 2.0]]),
    "bool id in a batch": lambda: s.pad_batch([[4, False]]),
    "windows of nothing": lambda: s.sliding_windows([], 3, 1),
    "windows of length 0": lambda: s.sliding_windows([4], 0, 1),
    "stride 0": lambda: s.sliding_windows([4], 3, 0),
    "stride that loses ids": lambda: s.sliding_windows([4], 3, 4),
    "float id in a window": lambda: s.sliding_windows([4.0], 3, 1),
    "unknown cell": lambda: s.Encoder(7, 4, 3, "GRU"),
    "float token": lambda: step_with(0, torch.tensor([1.0, 2.0])),
    "bool token": lambda: step_with(0, torch.tensor([True, False])),
    "token too large": lambda: step_with(0, torch.tensor([1, 7])),
    "token negative": lambda: step_with(0, torch.tensor([-1, 2])),
    "more tokens": lambda: step_with(0, torch.tensor([1, 2, 3])),
    "state width": lambda: step_with(1, torch.zeros(2, 4)),
    "state batch": lambda: step_with(1, torch.zeros(1, 3)),
    "context width": lambda: step_with(2, torch.zeros(2, 3)),
    "context batch": lambda: step_with(2, torch.zeros(3, 2)),
    "ratio below 0": lambda: forward(-0.1),
    "ratio above 1": lambda: forward(1.1),
    "ratio nan": lambda: forward(float("nan")),
    "no step": lambda: forward(steps=0),
    "other batch": lambda: forward(rows=2),
    "other mask": lambda: forward(mask=torch.ones(1, 3, dtype=torch.bool)),
    "targets of another length": lambda: s.sequence_log_prob(LOGITS, TARGETS[:, :2]),
    "targets of another batch": lambda: s.sequence_log_prob(LOGITS, TARGETS[:1]),
    "float targets": lambda: s.sequence_log_prob(LOGITS, TARGETS.float()),
    "int mask": lambda: s.sequence_log_prob(LOGITS, TARGETS, TARGETS + 1),
    "mask shape": lambda: s.sequence_log_prob(LOGITS, TARGETS, torch.ones(2, 1) > 0),
    "real target too large": lambda: s.sequence_log_prob(LOGITS, TARGETS + 4),
    "real target negative": lambda: s.sequence_log_prob(LOGITS, TARGETS - 100, TARGETS == 0),
    "only padding": lambda: s.sequence_loss(LOGITS, TARGETS),
    "loss target too large": lambda: s.sequence_loss(LOGITS, TARGETS + 4),
    "loss shapes": lambda: s.sequence_loss(LOGITS, TARGETS[:, :2] + 1),
    "greedy length": lambda: s.greedy_decode(table(), TWO, max_length=0),
    "exhaustive batch": lambda: s.exhaustive_search(table(), TWO, 3),
    "exhaustive empty batch": lambda: s.exhaustive_search(table(), TWO[:0], 3),
    "exhaustive length": lambda: s.exhaustive_search(table(), ONE, 0),
    "exhaustive without an end": lambda: s.exhaustive_search(NO_END, ONE, 3),
    "beam batch": lambda: s.beam_search(table(), TWO, 2, 3),
    "beam empty batch": lambda: s.beam_search(table(), TWO[:0], 2, 3),
    "beam size": lambda: s.beam_search(table(), ONE, 0, 3),
    "beam length": lambda: s.beam_search(table(), ONE, 2, 0),
    "beam alpha": lambda: s.beam_search(table(), ONE, 2, 3, alpha=-0.5),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_input_is_refused_in_one_sentence(case):
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as caught:
        REFUSALS[case]()
    message = str(caught.value)
    assert 15 < len(message) < 150
    # A sentence of ours, not one that PyTorch or Python raised on the way.
    assert Path(caught.traceback[-1].path).parent == SOURCE


# ------------------------------------------------------------------------- the file as a notebook


def constant(module: nn.Module, **values: float) -> nn.Module:
    """The module in float64 with all parameters 0 but those given."""
    module = module.double()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.fill_(values.get(name, 0.0))
    return module


def number(value: float) -> Tensor:
    return torch.tensor([[value]], dtype=torch.float64)


def counter_example() -> NextTokenTable:
    """The tree of exercises 17 and 18: after 4 or 5 (0.6, 0.4) an end with 0.5 or 0.95."""
    table = torch.zeros(1, 2, 8, 8)
    table[0, 0, BOS, 4], table[0, 0, BOS, 5] = 0.6, 0.4
    table[0, 1, 4, EOS], table[0, 1, 4, 6], table[0, 1, 4, 7] = 0.5, 0.25, 0.25
    table[0, 1, 5, EOS], table[0, 1, 5, 6] = 0.95, 0.05
    return NextTokenTable(table.log())


def test_the_examples_of_the_exercise_texts_are_right():
    text = [["to", "be", "or"], ["not", "to", "be"]]
    assert s.build_vocabulary(text) == [*SPECIALS, "be", "to", "not", "or"]
    assert s.build_vocabulary(text, min_count=2) == [*SPECIALS, "be", "to"]
    assert s.build_vocabulary(text, max_size=5) == [*SPECIALS, "be"]
    vocabulary = [*SPECIALS, "be", "to"]
    assert s.encode(["to", "sleep", "be"], vocabulary, add_eos=True) == [5, 3, 4, 2]
    assert s.decode([1, 5, 3, 0, 4, 2, 5], vocabulary) == ["to", "<unk>", "be"]
    assert s.encode(["to", "be"], vocabulary, add_bos=True) == [1, 5, 4]
    assert s.encode(["to", "be"], vocabulary, add_eos=True) == [5, 4, 2]

    ids, mask = s.pad_to_length([[7, 8, 9], [5]], 2)
    assert (ids.tolist(), mask.long().tolist()) == ([[7, 8], [5, 0]], [[1, 1], [1, 0]])
    assert s.pad_to_length([[7, 8, 9], [5]], 2, "end")[0][0].tolist() == [8, 9]
    assert s.pad_batch([[7, 8, 9], [5], []])[0].tolist() == [[7, 8, 9], [5, 0, 0], [0, 0, 0]]
    windows, _ = s.sliding_windows(list(range(4, 11)), 4, 2)
    assert windows.tolist() == [[4, 5, 6, 7], [6, 7, 8, 9], [8, 9, 10, 0]]
    windows, mask = s.sliding_windows(list(range(4, 11)), 4, 3)
    assert len(windows) == 2
    assert mask.all()

    rnn_cell = constant(s.RNNCell(1, 1), weight_ih=1.0, weight_hh=0.5, bias_ih=0.5)
    assert rnn_cell(number(1.0), number(-1.0)).item() == pytest.approx(0.762, abs=5e-4)
    gru_cell = constant(s.GRUCell(1, 1))
    assert gru_cell(number(1.0), number(4.0)).item() == 2.0
    gru_cell.bias_hh.data[2] = 2.0
    assert gru_cell(number(1.0), number(4.0)).item() == pytest.approx(2.381, abs=5e-4)
    h, c = constant(s.LSTMCell(1, 1))(number(1.0), (number(9.0), number(4.0)))
    assert (h.item(), c.item()) == (pytest.approx(0.482, abs=5e-4), 2.0)
    states, final = s.Encoder(7, 2, 3)(ONE[:, [0, 1, 1]], torch.tensor([[True, True, False]]))
    assert not states[:, 2].any()
    assert torch.equal(final, states[:, 1])

    uniform, two = torch.zeros(1, 2, 4), torch.ones(1, 2, dtype=torch.int64)
    assert s.sequence_log_prob(uniform, two).item() == pytest.approx(-2.773, abs=5e-4)
    half = s.sequence_log_prob(uniform, two, torch.tensor([[True, False]]))
    assert half.item() == pytest.approx(-1.386, abs=5e-4)
    # Each token of the first row has log-probability -1, each of the second -2.
    per_token = torch.tensor([1.0, 2.0]).neg().exp()
    probabilities = torch.stack([1 - per_token, per_token], -1)[:, None].expand(2, 3, 2)
    targets = torch.tensor([[1, 0, 0], [1, 1, 1]])
    assert s.sequence_loss(probabilities.log(), targets).item() == pytest.approx(1.75)

    model, source = counter_example(), torch.zeros(1, 1, dtype=torch.int64)
    ids, total = s.exhaustive_search(model, source, 2)
    assert (ids, total) == ([5, 2], pytest.approx(-0.968, abs=5e-4))
    assert math.exp(total) == pytest.approx(0.38)
    assert s.greedy_decode(model, source).tolist() == [[4, 2]]
    assert s.beam_search(model, source, 1, 2) == [([4, 2], pytest.approx(-1.204, abs=5e-4))]
    assert s.beam_search(model, source, 2, 2) == [
        ([5, 2], pytest.approx(-0.968, abs=5e-4)),
        ([4, 2], pytest.approx(-1.204, abs=5e-4)),
    ]


RECURRENT = {"RNN", "GRU", "LSTM", "RNNCell", "GRUCell", "LSTMCell"}


def test_torchs_recurrent_modules_are_forbidden_wherever_a_cell_is_used():
    cells = exercise_cells(SOURCE)
    forbids = {name: set(c.metadata.get("forbids", "").split()) for name, c in cells.items()}
    using = {"Encoder", "BidirectionalEncoder", "DecoderStep", "Seq2Seq"}
    for name in {"RNNCell", "GRUCell", "LSTMCell", *using}:
        assert forbids[name] == RECURRENT
    for name in ("sequence_log_prob", "sequence_loss"):
        assert forbids[name] >= {"cross_entropy", "nll_loss"}
