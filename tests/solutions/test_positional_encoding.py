"""The positional-encoding reference against implementations written by others, and its contract."""

import importlib
import itertools
import json
import keyword
import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn

from solutions import positional_encoding as pe
from tests.solutions.common import DTYPES, close, cotangent, same_with_gradients, within_rate

WIDTHS = pytest.mark.parametrize("d_model", [1, 2, 3, 4, 7, 16, 64, 513])
EVEN = pytest.mark.parametrize("d_model", [2, 4, 6, 16, 64, 512])
BASES = pytest.mark.parametrize("base", [10000.0, 10, 1.5, 1e6])
# Repeatable, and without a limit on the time of an example: this machine may be busy.
examples = settings(derandomize=True, deadline=None, database=None, max_examples=150)


# ---------------------------------------------------------------------------------- byte pairs

TEXT = (
    "The lower the newest, the slower the lowest: lower, lowest and slowest lows.\n\n"
    "  Größere Häuser, größte Häuser; die höhere Höhe.\tНизкий, ниже, нижайший.\n"
    "较低的、更低的、最低的。 😀😃 👩‍👩‍👧 e\u0301té aaaa aaaaaaa banananana \n"
)
# Text of few letters has many pairs that repeat, overlap and tie.
short_text = st.text(alphabet="ab \n", max_size=60)
any_text = st.one_of(short_text, st.text(), st.text(alphabet=st.sampled_from(TEXT), max_size=80))
few_ids = st.lists(st.integers(0, 3), max_size=40)


def as_string(ids: Sequence[int]) -> str:
    """Each id as one character, above the surrogates, so that ids can be searched as text."""
    return "".join(chr(0xF0000 + number) for number in ids)


@given(any_text)
@example(" ")
@example("  a")
@example("a  b\r\n\u3000 c\x1c\x85")
@examples
def test_chunks_lose_nothing_and_cut_between_words(text):
    cut = pe.chunks(text)
    assert "".join(cut) == text
    for chunk in cut:
        assert chunk.isspace() or not any(c.isspace() for c in chunk.removeprefix(" "))


@given(few_ids, st.tuples(st.integers(0, 3), st.integers(0, 3)))
@example([1, 1, 1], (1, 1))
@example([1, 1, 1, 1, 2, 1], (1, 1))
@examples
def test_merge_pair_replaces_as_text_is_replaced(ids, pair):
    before = list(ids)
    merged = pe.merge_pair(ids, pair, 7)
    assert as_string(merged) == as_string(ids).replace(as_string(pair), as_string([7]))
    assert ids == before
    assert merged is not ids


def brute_force_merges(text: str, num_merges: int) -> list[tuple[int, int]]:
    """The trainer by its definition: every chunk for itself, every pair counted at every step."""
    words = [as_string(chunk.encode()) for chunk in re.findall(r" ?[^\s]+|\s+", text)]
    merges = []
    for step in range(num_merges):
        pairs = [a + b for word in words for a, b in itertools.pairwise(word)]
        if not pairs:
            break
        # The order of the characters is the order of the ids.
        best = sorted(set(pairs), key=lambda pair: (-pairs.count(pair), pair))[0]
        merges.append((ord(best[0]) - 0xF0000, ord(best[1]) - 0xF0000))
        words = [word.replace(best, as_string([256 + step])) for word in words]
    return merges


@given(any_text, st.integers(0, 12))
@example("aaaaa aaaa aaa", 12)
@example("low low lower", 20)
@example("", 3)
@examples
def test_training_equals_brute_force(text, num_merges):
    expected = brute_force_merges(text, num_merges)
    assert pe.train_bpe(text, num_merges) == expected
    assert pe.fast_train_bpe(text, num_merges) == expected


def test_training_stops_when_every_chunk_is_one_token():
    merges = pe.train_bpe("low low lower", 1000)
    assert len(merges) == len(brute_force_merges("low low lower", 50)) < 50
    assert len(pe.bpe_encode("low low lower", merges)) == 3


def test_no_merge_crosses_a_chunk():
    merges = pe.train_bpe("ab ab ab\nab" * 20, 1000)
    pieces = [pe.bpe_decode([256 + m], merges) for m in range(len(merges))]
    assert pieces
    assert all(len(pe.chunks(piece)) == 1 for piece in pieces)


@pytest.mark.parametrize("train", [pe.train_bpe, pe.fast_train_bpe])
def test_training_refuses_a_negative_number_of_merges(train):
    with pytest.raises(ValueError, match="-1"):
        train(TEXT, -1)
    assert train(TEXT, 0) == []


@cache
def byte_letters() -> list[str]:
    """The letter that byte-level tokenizers write for each byte, asked from `tokenizers` itself."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters: dict[int, str] = {}
    # Every byte that occurs in UTF-8: leading bytes of each length, then all that follow.
    points = [*range(0x800), *range(0x800, 0xD800, 64), *range(0xE000, 0x110000, 0x1000)]
    for point in points:
        spelled = level.pre_tokenize_str(chr(point))[0][0]
        letters.update(zip(chr(point).encode(), spelled, strict=True))
    unused = sorted(set(range(256)) - set(letters))
    spare = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(letters.values()))
    letters.update(zip(unused, spare, strict=True))  # Bytes that occur in no text.
    return [letters[byte] for byte in range(256)]


def pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?[^\s]+|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def hugging_face(merges: Sequence[tuple[int, int]]) -> Tokenizer:
    """The tokenizer of Hugging Face with the same merges and the same ids."""
    spelled = list(byte_letters())
    for left, right in merges:
        spelled.append(spelled[left] + spelled[right])
    # It knows pieces by their spelling, so two ids with one spelling can't be compared.
    assume(len(set(spelled)) == len(spelled))
    model = models.BPE(
        vocab={piece: number for number, piece in enumerate(spelled)},
        merges=[(spelled[left], spelled[right]) for left, right in merges],
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def without_separators(text: str) -> str:
    """Python counts U+001C to U+001F as white space, the regular expressions there do not."""
    return re.sub("[\x1c-\x1f]", " ", text)


@cache
def trained(num_merges: int) -> tuple[tuple[int, int], ...]:
    return tuple(pe.train_bpe(TEXT, num_merges))


@pytest.mark.parametrize("num_merges", [0, 1, 20, 80, 400])
def test_encoding_equals_hugging_face_on_the_training_text(num_merges):
    merges = list(trained(num_merges))
    ids = pe.bpe_encode(TEXT, merges)
    assert ids == hugging_face(merges).encode(TEXT).ids
    assert max(ids) <= 255 + len(merges)
    assert pe.bpe_decode(ids, merges) == TEXT


@given(any_text, st.sampled_from([5, 40, 400]))
@examples
def test_encoding_equals_hugging_face_on_any_text(text, num_merges):
    text, merges = without_separators(text), list(trained(num_merges))
    assert pe.bpe_encode(text, merges) == hugging_face(merges).encode(text).ids


@st.composite
def invented_merges(draw) -> list[tuple[int, int]]:
    """Merges that no trainer would learn: any pair of earlier ids, in any order."""
    merges: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(0, 8))):
        known = [97, 98, 32, *range(256, 256 + len(merges))]
        pair = (draw(st.sampled_from(known)), draw(st.sampled_from(known)))
        if pair not in merges:
            merges.append(pair)
    return merges


@given(short_text, invented_merges())
@examples
def test_the_order_of_merges_decides_as_in_hugging_face(text, merges):
    assert pe.bpe_encode(text, merges) == hugging_face(merges).encode(text).ids


def test_training_equals_hugging_face():
    """One word a line, of visible ASCII: then its ids, and with them its ties, are in our order."""
    words = [*keyword.kwlist, *dir(str), *dir(dict), *dir(math), *dir(re)]
    trainer = trainers.BpeTrainer(
        vocab_size=256 + 300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer()
    tokenizer.train_from_iterator(["\n".join(words)], trainer)
    expected = json.loads(tokenizer.to_str())["model"]["merges"]
    merges = pe.train_bpe("\n".join(words), 300)
    spelled = [
        [pe.bpe_decode([left], merges), pe.bpe_decode([right], merges)] for left, right in merges
    ]
    assert len(merges) == 300
    assert spelled == expected


@given(any_text, st.one_of(invented_merges(), st.sampled_from([0, 40, 400])))
@example("\x1c\x1d \x00\U0010ffff\ufffd", 40)
@example(TEXT, 400)
@examples
def test_decoding_undoes_encoding_on_any_text(text, merges):
    merges = list(trained(merges)) if isinstance(merges, int) else merges
    assert pe.bpe_decode(pe.bpe_encode(text, merges), merges) == text


@given(st.lists(st.integers(0, 255 + len(trained(40))), max_size=30))
@example([195])
@example([226, 130, 97])
@examples
def test_decoding_of_any_ids_equals_hugging_face(ids):
    merges = list(trained(40))
    assert len(merges) == 40
    # Bytes that occur in no UTF-8 text have no letter of their own in byte_letters.
    assume(not any(number in (192, 193) or 245 <= number <= 255 for number in ids))
    assert pe.bpe_decode(ids, merges) == hugging_face(merges).decode(ids)


@pytest.mark.parametrize("ids", [[-1], [259], [97, 300], [256, -256]])
def test_decoding_refuses_ids_that_do_not_exist(ids):
    merges = [(108, 111), (256, 119), (32, 257)]
    assert pe.bpe_decode([258], merges) == " low"
    with pytest.raises(ValueError, match="outside"):
        pe.bpe_decode(ids, merges)


def test_a_lone_surrogate_is_not_text():
    with pytest.raises(ValueError, match="surrogate"):
        pe.bpe_encode("\ud83d", [])


# ----------------------------------------------------------------------------------- WordPiece


@given(
    st.text(alphabet="abc", min_size=1, max_size=12),
    st.sets(st.text(alphabet="abc", min_size=1, max_size=4), max_size=12),
    st.sets(st.text(alphabet="abc", min_size=1, max_size=4), max_size=12),
    st.sampled_from(["##", "@", "a"]),
    st.integers(1, 12),
)
@examples
def test_wordpiece_equals_hugging_face(word, first, later, prefix, max_chars):
    vocabulary = sorted(first | {prefix + piece for piece in later})
    ids = {piece: number for number, piece in enumerate([*vocabulary, "[UNK]"])}
    theirs = models.WordPiece(
        vocab=ids,
        unk_token="[UNK]",
        max_input_chars_per_word=max_chars,
        continuing_subword_prefix=prefix,
    )
    expected = [token.value for token in theirs.tokenize(word)]
    given_back = list(vocabulary)
    pieces = pe.wordpiece_encode(word, vocabulary, prefix=prefix, max_chars=max_chars)
    assert pieces == expected
    assert vocabulary == given_back


def test_wordpiece_counts_characters_and_names_the_unknown_as_told():
    assert pe.wordpiece_encode("höö", ["h", "##ö"], max_chars=3) == ["h", "##ö", "##ö"]
    assert pe.wordpiece_encode("höö", ["h", "##ö"], max_chars=2) == ["[UNK]"]
    assert pe.wordpiece_encode("hx", ["h"], unknown="<unk>") == ["<unk>"]
    assert pe.wordpiece_encode("a" * 100, ["a", "##a"])[:2] == ["a", "##a"]
    assert pe.wordpiece_encode("a" * 101, ["a", "##a"]) == ["[UNK]"]


def test_wordpiece_refuses_an_empty_word():
    with pytest.raises(ValueError, match="empty"):
        pe.wordpiece_encode("", ["a"])


# ----------------------------------------------------------------------------------- embeddings


@DTYPES
@pytest.mark.parametrize("ids_dtype", [torch.int64, torch.int32, torch.uint8])
def test_token_embedding_is_the_scaled_row(dtype, ids_dtype):
    module = pe.TokenEmbedding(7, 5).to(dtype)
    ids = torch.tensor([[0, 6, 3, 3], [1, 1, 6, 0]], dtype=ids_dtype)
    before = ids.clone()
    same_with_gradients(
        lambda: module(ids),
        lambda: F.one_hot(ids.long(), 7).to(dtype) @ module.table.weight * 5**0.5,
        [],
        list(module.parameters()),
    )
    assert torch.equal(ids, before)


@pytest.mark.parametrize(
    "ids",
    [
        torch.tensor([[0, 7]]),
        torch.tensor([[-1, 0]]),
        torch.tensor([[0.0, 1.0]]),
        torch.tensor([[True, False]]),
        torch.zeros(0, 3, dtype=torch.int64),
        torch.zeros(3, 0, dtype=torch.int64),
    ],
    ids=["too large", "negative", "float", "bool", "no example", "no token"],
)
def test_token_embedding_refuses_what_is_no_id(ids):
    with pytest.raises(ValueError, match="id"):
        pe.TokenEmbedding(7, 4)(ids)


@pytest.mark.parametrize(("vocab_size", "d_model"), [(0, 4), (7, 0), (7, -2)])
def test_an_embedding_of_no_size_is_refused(vocab_size, d_model):
    with pytest.raises(ValueError, match="holds nothing"):
        pe.TokenEmbedding(vocab_size, d_model)


PARAMETERS = {
    pe.TokenEmbedding: ({"vocab_size": 7, "d_model": 4}, {"table.weight": (7, 4)}),
    pe.PositionalEncoding: ({"d_model": 4}, {}),
    pe.LearnedPositions: ({"max_length": 7, "d_model": 4}, {"table.weight": (7, 4)}),
    pe.RotaryEmbedding: ({"head_dim": 4}, {}),
    pe.RelativeSelfAttention: (
        {"d_model": 6, "num_heads": 2, "max_distance": 4},
        {f"{n}_proj.weight": (6, 6) for n in ("q", "k", "v", "out")}
        | {f"{n}_proj.bias": (6,) for n in ("q", "k", "v", "out")}
        | {"key_offsets": (9, 3), "value_offsets": (9, 3)},
    ),
}


@pytest.mark.parametrize("cls", PARAMETERS, ids=lambda cls: cls.__name__)
def test_modules_have_exactly_the_named_parameters(cls):
    options, shapes = PARAMETERS[cls]
    module = cls(**options)
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == shapes
    assert set(module.state_dict()) == set(shapes)
    for name, parameter in module.named_parameters():
        assert parameter.std() > 0, f"{name} starts constant"


# ----------------------------------------------------------------------------------- binary code


@pytest.mark.parametrize("bits", [1, 3, 10, 62, 63, 70])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_binary_code_writes_the_number_backwards(bits, dtype):
    top = min(2**bits - 1, torch.iinfo(dtype).max)
    numbers = sorted({0, 1, top // 3, top // 2, top - 1, top})
    code = pe.binary_code(torch.tensor(numbers, dtype=dtype), bits)
    assert code.dtype == torch.float32
    assert code.tolist() == [[float(d) for d in f"{n:0{bits}b}"[::-1]] for n in numbers]


def test_binary_columns_have_their_periods_and_rows_differ():
    code = pe.binary_code(torch.arange(64), 6)
    for k in range(6):
        period = 2 ** (k + 1)
        assert torch.equal(code[period:, k], code[:-period, k])
        assert not torch.equal(code[period // 2 :, k], code[: 64 - period // 2, k])
    assert len(code.unique(dim=0)) == 64


@pytest.mark.parametrize(
    ("positions", "bits"),
    [
        (torch.tensor([0]), 0),
        (torch.tensor([0]), -1),
        (torch.tensor([0, 8]), 3),
        (torch.tensor([0, -1]), 3),
        (torch.tensor([0.0, 1.0]), 3),
        (torch.tensor([False, True]), 3),
    ],
    ids=["no bits", "negative bits", "too large", "negative", "float", "bool"],
)
def test_binary_code_refuses_what_it_cannot_write(positions, bits):
    with pytest.raises(ValueError, match=r"bits|digits|integers"):
        pe.binary_code(positions, bits)


# --------------------------------------------------------------------------------- sinusoidal code


def numpy_table(positions: Sequence[int], d_model: int, base: float) -> np.ndarray:
    """The code in float64 as points on circles: the cosine is the real part, the sine the other."""
    pairs = np.arange((d_model + 1) // 2)
    frequencies = np.exp(-np.log(base) * 2 * pairs / d_model)
    circles = np.exp(1j * np.outer(positions, frequencies))  # (length, pairs)
    table = np.stack([circles.imag, circles.real], axis=-1).reshape(len(positions), -1)
    return table[:, :d_model]


@WIDTHS
@BASES
def test_frequencies_are_the_geometric_sequence(d_model, base):
    frequencies = pe.angular_frequencies(d_model, base)
    count = (d_model + 1) // 2
    expected = np.exp(-np.log(base) * 2 * np.arange(count) / d_model)
    assert frequencies.dtype == torch.float32
    assert frequencies.shape == (count,)
    np.testing.assert_allclose(frequencies.numpy(), expected, rtol=1e-6)
    assert frequencies[0] == 1.0
    ratios = frequencies[1:] / frequencies[:-1]
    np.testing.assert_allclose(ratios.numpy(), base ** (-2 / d_model), rtol=1e-6)


def test_the_base_is_10000_unless_told():
    assert pe.angular_frequencies(4)[1].item() == pytest.approx(0.01)
    assert pe.position_vector(1, 4)[2] == pytest.approx(math.sin(0.01))
    assert pe.sinusoidal_table(2, 4)[1, 2].item() == pytest.approx(math.sin(0.01))
    assert pe.half_and_half_table(2, 4)[1, 1].item() == pytest.approx(math.sin(0.01))
    assert pe.offset_rotation(1, 4)[2, 3].item() == pytest.approx(math.sin(0.01))


@WIDTHS
@BASES
def test_position_vector_equals_numpy(d_model, base):
    positions = [0, 1, 2, 99, 5000]
    expected = numpy_table(positions, d_model, base)
    for position, row in zip(positions, expected, strict=True):
        vector = pe.position_vector(position, d_model, base)
        assert isinstance(vector, list)
        assert all(type(entry) is float for entry in vector)
        np.testing.assert_allclose(vector, row, rtol=0, atol=1e-11)


@WIDTHS
@BASES
def test_table_equals_numpy_at_every_position(d_model, base):
    table = pe.sinusoidal_table(5001, d_model, base)
    assert table.dtype == torch.float32
    assert table.shape == (5001, d_model)
    expected = numpy_table(range(5001), d_model, base)
    np.testing.assert_allclose(table.numpy(), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("length", [1, 2, 30])
def test_a_row_does_not_depend_on_the_length_of_the_table(length):
    long = pe.sinusoidal_table(100, 6)
    assert torch.equal(pe.sinusoidal_table(length, 6), long[:length])
    assert torch.equal(pe.half_and_half_table(length, 6), pe.half_and_half_table(100, 6)[:length])


def test_the_documents_matrix_as_corrected():
    """Document 001, section 2: its function, not its printed matrix (p/100 in place of p)."""
    rows = [[0.8415, 0.5403, 0.0100, 1.0000], [0.9093, -0.4161, 0.0200, 0.9998]]
    rows += [[0.1411, -0.9900, 0.0300, 0.9996]]
    np.testing.assert_allclose(pe.sinusoidal_table(4, 4)[1:].numpy(), rows, atol=5e-5)


def test_positions_are_far_apart_and_equal_gaps_equally_far():
    table = pe.sinusoidal_table(5000, 512).double()
    nearest = torch.cdist(table, table).fill_diagonal_(math.inf).min()
    assert nearest.item() == pytest.approx(3.71, abs=0.01)
    gaps = [(table[5] - table[0]).norm(), (table[511] - table[506]).norm()]
    assert [round(gap.item(), 3) for gap in gaps] == [11.524, 11.524]


@EVEN
@BASES
def test_half_and_half_equals_numpy_and_the_permutation_leads_to_it(d_model, base):
    table = pe.half_and_half_table(200, d_model, base)
    assert table.dtype == torch.float32
    frequencies = base ** (-2 * np.arange(d_model // 2) / d_model)
    angles = np.outer(np.arange(200), frequencies)
    expected = np.hstack([np.sin(angles), np.cos(angles)])
    np.testing.assert_allclose(table.numpy(), expected, rtol=0, atol=1e-7)
    columns = pe.interleaved_to_half(d_model)
    assert columns.dtype == torch.int64
    assert sorted(columns.tolist()) == list(range(d_model))
    assert torch.equal(pe.sinusoidal_table(200, d_model, base)[:, columns], table)


@EVEN
@BASES
@pytest.mark.parametrize("offset", [0, 1, -1, 7, -30, 1000])
def test_the_rotation_moves_every_position(d_model, base, offset):
    matrix = pe.offset_rotation(offset, d_model, base)
    assert matrix.dtype == torch.float32
    assert matrix.shape == (d_model, d_model)
    # Positions below 0 have a code too, which the table doesn't hold.
    here = numpy_table(range(-50, 2000), d_model, base)
    there = numpy_table(range(-50 + offset, 2000 + offset), d_model, base)
    np.testing.assert_allclose(here @ matrix.numpy().T, there, rtol=0, atol=5e-7)
    blocks = torch.block_diag(*[torch.ones(2, 2)] * (d_model // 2)).bool()
    assert torch.equal(matrix[~blocks], torch.zeros(d_model * (d_model - 2)))
    np.testing.assert_allclose((matrix @ matrix.T).numpy(), np.eye(d_model), atol=1e-6)


def test_rotations_add_up():
    there, back = pe.offset_rotation(13, 16), pe.offset_rotation(-13, 16)
    close(there @ back, torch.eye(16))
    close(there @ pe.offset_rotation(4, 16), pe.offset_rotation(17, 16))
    assert torch.equal(pe.offset_rotation(0, 16), torch.eye(16))


REFUSED = {
    "frequencies width 0": (lambda: pe.angular_frequencies(0), "d_model"),
    "frequencies width negative": (lambda: pe.angular_frequencies(-2), "d_model"),
    "frequencies width float": (lambda: pe.angular_frequencies(4.0), "d_model"),
    "frequencies width text": (lambda: pe.angular_frequencies("4"), "d_model"),
    "frequencies base 1": (lambda: pe.angular_frequencies(4, 1.0), "base"),
    "frequencies base negative": (lambda: pe.angular_frequencies(4, -10.0), "base"),
    "vector position negative": (lambda: pe.position_vector(-1, 4), "position"),
    "vector position float": (lambda: pe.position_vector(1.0, 4), "position"),
    "vector position tensor": (lambda: pe.position_vector(torch.tensor(1), 4), "position"),
    "vector width 0": (lambda: pe.position_vector(1, 0), "d_model"),
    "vector width float": (lambda: pe.position_vector(1, 4.0), "d_model"),
    "table length 0": (lambda: pe.sinusoidal_table(0, 4), "length"),
    "table length negative": (lambda: pe.sinusoidal_table(-1, 4), "length"),
    "table width 0": (lambda: pe.sinusoidal_table(3, 0), "d_model"),
    "table base 1": (lambda: pe.sinusoidal_table(3, 4, 1), "base"),
    "table base 0": (lambda: pe.sinusoidal_table(3, 4, 0.0), "base"),
    "module width 0": (lambda: pe.PositionalEncoding(0), "d_model"),
    "module length 0": (lambda: pe.PositionalEncoding(4, 0), "length"),
    "module dropout 2": (lambda: pe.PositionalEncoding(4, dropout=2.0), "dropout"),
    "half width odd": (lambda: pe.half_and_half_table(3, 5), "d_model"),
    "half width 0": (lambda: pe.half_and_half_table(3, 0), "d_model"),
    "half length 0": (lambda: pe.half_and_half_table(0, 4), "length"),
    "half base 1": (lambda: pe.half_and_half_table(3, 4, 1.0), "base"),
    "columns odd": (lambda: pe.interleaved_to_half(5), "d_model"),
    "columns 0": (lambda: pe.interleaved_to_half(0), "d_model"),
    "columns negative": (lambda: pe.interleaved_to_half(-2), "d_model"),
    "rotation odd": (lambda: pe.offset_rotation(1, 5), "d_model"),
    "rotation width 0": (lambda: pe.offset_rotation(1, 0), "d_model"),
    "rotation offset float": (lambda: pe.offset_rotation(1.0, 4), "offset"),
    "rotation offset tensor": (lambda: pe.offset_rotation(torch.tensor(1), 4), "offset"),
    "rotation base 1": (lambda: pe.offset_rotation(1, 4, 1.0), "base"),
    "indices length 0": (lambda: pe.relative_indices(0, 2), "length"),
    "indices distance negative": (lambda: pe.relative_indices(3, -1), "max_distance"),
    "heads do not divide": (lambda: pe.RelativeSelfAttention(10, 4, 2), "10"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_numbers_are_refused_by_name(name):
    function, named = REFUSED[name]
    with pytest.raises(ValueError, match=named):
        function()


# -------------------------------------------------------------------------------------- modules


@DTYPES
@pytest.mark.parametrize("d_model", [1, 5, 6])
def test_positional_encoding_adds_the_code_of_the_second_dimension(dtype, d_model):
    module = pe.PositionalEncoding(d_model, 12).to(dtype)
    codes = torch.tensor(numpy_table(range(9), d_model, 10000.0)).float().to(dtype)
    x = torch.randn(4, 9, d_model, dtype=dtype)
    same_with_gradients(module, lambda x: x + codes, [x])
    assert module(x[:, :1]).shape == (4, 1, d_model)
    assert module(torch.randn(2, 12, d_model, dtype=dtype)).shape == (2, 12, d_model)


def test_positional_encoding_leaves_its_input_alone():
    x = torch.randn(2, 3, 4)
    before = x.clone()
    for module in (pe.PositionalEncoding(4, dropout=0.5), pe.LearnedPositions(5, 4)):
        module(x)
        assert torch.equal(x, before)


def test_the_table_is_a_buffer_that_moves_and_is_not_saved():
    module = pe.PositionalEncoding(6, 10)
    assert dict(module.named_buffers()).keys() == {"table"}
    assert not module.table.requires_grad
    assert torch.equal(module.table, pe.sinusoidal_table(10, 6))
    assert module.state_dict() == {}
    assert pe.PositionalEncoding(6).table.shape == (5000, 6)
    assert module.to(torch.float64).table.dtype == torch.float64
    assert module.to("meta").table.device.type == "meta"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_sum_has_the_type_of_the_input_whatever_that_of_the_table(dtype):
    assert pe.PositionalEncoding(6)(torch.randn(2, 3, 6, dtype=dtype)).dtype == dtype


def test_dropout_acts_on_the_sum_in_train_mode_only():
    module = pe.PositionalEncoding(64, 200, dropout=0.25)
    x = torch.full((50, 200, 64), 3.0)  # No sum is 0.
    total = x + pe.sinusoidal_table(200, 64)
    dropped = module.train()(x)
    gone = dropped == 0
    assert within_rate(int(gone.sum()), gone.numel(), 0.25)
    close(dropped[~gone], (total / 0.75)[~gone])
    assert not torch.equal(dropped, module(x))
    assert torch.equal(module.eval()(x), total)
    assert torch.equal(pe.PositionalEncoding(64).train()(x), total)


@DTYPES
def test_learned_positions_add_the_first_rows_and_only_those_learn(dtype):
    module = pe.LearnedPositions(7, 4).to(dtype)
    same_with_gradients(
        module,
        lambda x: torch.stack([row + module.table(torch.arange(len(row))) for row in x]),
        [torch.randn(3, 5, 4, dtype=dtype)],
        list(module.parameters()),
    )
    module(torch.randn(3, 5, 4, dtype=dtype)).sum().backward()
    expected = torch.zeros(7, 4, dtype=dtype)
    expected[:5] = 3.0
    assert torch.equal(module.table.weight.grad, expected)
    assert module(torch.randn(1, 7, 4, dtype=dtype)).shape == (1, 7, 4)


@pytest.mark.parametrize("module", [pe.PositionalEncoding(4, 6), pe.LearnedPositions(6, 4)])
@pytest.mark.parametrize(
    ("shape", "named"),
    [((2, 7, 4), "7"), ((2, 3, 5), "5"), ((2, 3, 1), "1"), ((2, 7, 1), "1")],
    ids=["too long", "wider", "broadcastable", "both"],
)
def test_input_that_does_not_fit_the_table_is_refused(module, shape, named):
    with pytest.raises(ValueError, match=named):
        module(torch.randn(shape))


def test_without_positions_attention_is_equivariant_and_with_them_it_is_not():
    """What positions are for: order changes nothing without them (errata: equivariance)."""
    plain = nn.MultiheadAttention(8, 2, batch_first=True)
    x, order = torch.randn(2, 6, 8), torch.tensor([3, 0, 5, 1, 4, 2])
    close(plain(x[:, order], x[:, order], x[:, order])[0], plain(x, x, x)[0][:, order])
    for positions in (pe.PositionalEncoding(8), pe.LearnedPositions(6, 8)):
        moved, there = positions(x[:, order]), positions(x)
        difference = plain(moved, moved, moved)[0] - plain(there, there, there)[0][:, order]
        assert difference.abs().max() > 1e-2
    relative = pe.RelativeSelfAttention(8, 2, 3)
    assert (relative(x[:, order])[0] - relative(x)[0][:, order]).abs().max() > 1e-2


# -------------------------------------------------------------------------------------- relative


@pytest.mark.parametrize("length", [1, 2, 6])
@pytest.mark.parametrize("max_distance", [0, 1, 3, 5, 9])
def test_relative_indices_by_definition(length, max_distance):
    index = pe.relative_indices(length, max_distance)
    assert index.dtype == torch.int64
    k = max_distance
    for i in range(length):
        for j in range(length):
            assert index[i, j] == max(-k, min(k, j - i)) + k
    assert index.shape == (length, length)


def loops(module: pe.RelativeSelfAttention, heads: int, k: int, mask: Tensor | None) -> Callable:
    """Shaw et al. 2018, equations 3 and 4, one query, one key and one head at a time."""

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        batch, length, width = x.shape
        size = width // heads
        allowed = torch.ones(batch, length, length, dtype=torch.bool)
        if mask is not None:
            allowed = allowed & mask
        q, k_, v = (x @ p.weight.T + p.bias for p in (module.q_proj, module.k_proj, module.v_proj))
        zero = 0 * (x.sum() + sum(p.sum() for p in module.parameters()))  # In the graph.
        outputs, weights = [], []
        for b in range(batch):
            rows, tables = [], []
            for h in range(heads):
                part = slice(h * size, (h + 1) * size)
                head_rows, head_weights = [], []
                for i in range(length):
                    exponentials = []
                    for j in range(length):
                        offset = module.key_offsets[min(max(j - i, -k), k) + k]
                        e = q[b, i, part].dot(k_[b, j, part] + offset) / size**0.5
                        exponentials.append(torch.exp(e) if allowed[b, i, j] else zero)
                    total = sum(exponentials)
                    w = [e / total if allowed[b, i].any() else zero for e in exponentials]
                    z = torch.zeros(size, dtype=x.dtype) + zero
                    for j in range(length):
                        offset = module.value_offsets[min(max(j - i, -k), k) + k]
                        z = z + w[j] * (v[b, j, part] + offset)
                    head_rows.append(z)
                    head_weights.append(torch.stack(w))
                rows.append(torch.stack(head_rows))
                tables.append(torch.stack(head_weights))
            outputs.append(torch.cat(rows, dim=-1))
            weights.append(torch.stack(tables))
        joined = torch.stack(outputs)
        return joined @ module.out_proj.weight.T + module.out_proj.bias, torch.stack(weights)

    return forward


def masks(batch: int, length: int) -> dict[str, Tensor | None]:
    """One mask of every shape that broadcasts to (B, T, T); "empty" has fully masked rows."""
    empty = torch.rand(batch, length, length) < 0.5
    empty[0, -1] = False
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    keys = torch.rand(batch, 1, length) < 0.6
    keys[..., 0] = True
    return {
        "none": None,
        "causal": causal,
        "one for all": causal[None],
        "keys": keys,
        "one row": keys[0, 0],
        "examples": (torch.rand(batch, length, length) < 0.6) | torch.eye(length).bool(),
        "empty": empty,
        "nothing": torch.zeros(length, 1, dtype=torch.bool),
    }


KINDS = pytest.mark.parametrize("kind", list(masks(1, 1)))


@KINDS
@pytest.mark.parametrize(
    ("batch", "length", "heads", "k"), [(2, 4, 2, 1), (1, 5, 1, 9), (2, 1, 3, 2), (3, 3, 3, 0)]
)
def test_relative_attention_equals_the_loops(kind, batch, length, heads, k):
    module = pe.RelativeSelfAttention(6, heads, k).double()
    mask = masks(batch, length)[kind]
    x = torch.randn(batch, length, 6, dtype=torch.float64)
    reference = loops(module, heads, k, mask)
    parameters = list(module.parameters())
    same_with_gradients(lambda x: module(x, mask), reference, [x], parameters)


@KINDS
@DTYPES
@pytest.mark.parametrize(("batch", "heads"), [(3, 2), (2, 2), (1, 4)])
def test_with_zero_offsets_it_is_torchs_attention(kind, dtype, batch, heads):
    module = pe.RelativeSelfAttention(8, heads, 3).to(dtype)
    nn.init.zeros_(module.key_offsets)
    nn.init.zeros_(module.value_offsets)
    mask = masks(batch, 5)[kind]
    if kind in ("empty", "nothing"):
        mask = mask | torch.eye(5).bool()  # PyTorch gives NaN for fully masked rows.
    theirs = nn.MultiheadAttention(8, heads, batch_first=True).to(dtype)

    def packed(get: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        layers = [module.q_proj, module.k_proj, module.v_proj]
        return {
            "in_proj_weight": torch.cat([get(p.weight) for p in layers]),
            "in_proj_bias": torch.cat([get(p.bias) for p in layers]),
            "out_proj.weight": get(module.out_proj.weight),
            "out_proj.bias": get(module.out_proj.bias),
        }

    theirs.load_state_dict(packed(lambda p: p.detach()))
    blocked = None
    if mask is not None:
        blocked = ~mask.broadcast_to(batch, 5, 5).repeat_interleave(heads, dim=0)
    x = torch.randn(batch, 5, 8, dtype=dtype)
    same_with_gradients(
        lambda x: module(x, mask),
        lambda x: theirs(x, x, x, attn_mask=blocked, average_attn_weights=False),
        [x],
    )
    (module(x, mask)[0] * cotangent(x)).sum().backward()
    (theirs(x, x, x, attn_mask=blocked)[0] * cotangent(x)).sum().backward()
    expected = dict(theirs.named_parameters())
    for name, gradient in packed(lambda p: p.grad).items():
        close(gradient, expected[name].grad, name)


@KINDS
@DTYPES
@pytest.mark.parametrize("k", [0, 2, 9])
def test_the_fast_path_gives_the_same(kind, dtype, k):
    module = pe.RelativeSelfAttention(8, 2, k).to(dtype)
    mask = masks(2, 6)[kind]
    same_with_gradients(
        lambda x: pe.fast_relative_self_attention(module, x, mask),
        lambda x: module(x, mask)[0],
        [torch.randn(2, 6, 8, dtype=dtype)],
        list(module.parameters()),
    )


@DTYPES
def test_weights_are_zero_exactly_where_masked_and_rows_sum_to_one(dtype):
    module = pe.RelativeSelfAttention(8, 2, 3).to(dtype)
    x = torch.randn(2, 5, 8, dtype=dtype, requires_grad=True)
    mask = torch.rand(2, 5, 5) < 0.6
    mask[0, 3], mask[1, 0, 0] = False, True
    output, weights = module(x, mask)
    hidden = ~mask[:, None].expand(2, 2, 5, 5)
    assert torch.equal(weights == 0, hidden)
    close(weights.sum(-1), mask.any(-1)[:, None].expand(2, 2, 5).to(dtype))
    close(output[0, 3], module.out_proj.bias)
    output.sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in module.parameters())


def test_huge_scores_keep_the_mask_and_stay_finite():
    module = pe.RelativeSelfAttention(4, 1, 2)
    x = 1e10 * torch.randn(1, 4, 4)
    output, weights = module(x, torch.ones(4, 4, dtype=torch.bool).tril())
    assert output.isfinite().all()
    assert torch.equal(weights.triu(1), torch.zeros(1, 1, 4, 4))
    close(weights.sum(-1), torch.ones(1, 1, 4))


def test_only_distance_matters_so_a_shifted_sentence_gives_the_same():
    module = pe.RelativeSelfAttention(8, 2, 3).double()
    sentence = torch.randn(1, 5, 8, dtype=torch.float64)
    for shift in (1, 4, 30):
        padded = torch.cat([torch.randn(1, shift, 8, dtype=torch.float64), sentence], dim=1)
        real = torch.arange(shift + 5) >= shift
        close(module(padded, real)[0][:, shift:], module(sentence)[0])


@pytest.mark.parametrize(
    ("shape", "mask", "named"),
    [
        ((2, 5, 6), None, "6"),
        ((2, 5, 1), None, "1"),
        ((2, 5, 8), torch.ones(5, 5), "bool"),
        ((2, 5, 8), torch.ones(5, 5, dtype=torch.int64), "bool"),
        ((2, 5, 8), torch.ones(5, 4, dtype=torch.bool), "mask"),
        ((2, 5, 8), torch.ones(3, 5, 5, dtype=torch.bool), "mask"),
        ((2, 5, 8), torch.ones(2, 2, 5, 5, dtype=torch.bool), "mask"),
        ((2, 5, 8), torch.ones(1, 1, 5, 5, dtype=torch.bool), "mask"),
    ],
    ids=["width", "width 1", "float", "int", "keys", "batch", "per head", "four dimensions"],
)
def test_relative_attention_refuses_what_does_not_fit(shape, mask, named):
    with pytest.raises(ValueError, match=named):
        pe.RelativeSelfAttention(8, 2, 3)(torch.randn(shape), mask)


def test_inputs_of_attention_are_left_unchanged():
    x, mask = torch.randn(2, 5, 8), torch.rand(2, 5, 5) < 0.5
    before = x.clone(), mask.clone()
    pe.RelativeSelfAttention(8, 2, 3)(x, mask)
    assert torch.equal(x, before[0])
    assert torch.equal(mask, before[1])


# ----------------------------------------------------------------------------- RoPE and ALiBi


def model_of(name: str) -> ModuleType:
    """A model's module of Hugging Face's library, imported late because that takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


PAIRINGS = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])


def angles(position_ids: Tensor, head_dim: int, base: float) -> Tensor:
    """The formula in NumPy's float64."""
    omega = base ** (-2 * np.arange(head_dim // 2) / head_dim)
    return torch.from_numpy(position_ids.numpy()[..., None] * omega)


@pytest.mark.parametrize("head_dim", [2, 4, 6, 64, 128])
@pytest.mark.parametrize("base", [10000.0, 500000.0, 100, 1.5])
def test_rotary_tables_by_the_formula_up_to_position_10000(head_dim, base):
    module = pe.RotaryEmbedding(head_dim, base)
    position_ids = torch.tensor([[0, 1, 2], [257, 4096, 10000]])
    expected = angles(position_ids, head_dim, base)
    for converted in (module, module.to(torch.bfloat16), module.to(torch.float64)):
        cos, sin = converted.tables(position_ids)
        close(cos, expected.cos().float(), "cos")
        close(sin, expected.sin().float(), "sin")


@DTYPES
@pytest.mark.parametrize("head_dim", [2, 6, 16])
def test_pairs_of_halves_are_those_of_llama(dtype, head_dim):
    llama, module = model_of("llama"), pe.RotaryEmbedding(head_dim, 500.0)
    position_ids = torch.randint(0, 3000, (2, 5))
    turn = angles(position_ids, head_dim, 500.0)
    cos, sin = (torch.cat([t, t], dim=-1).float().to(dtype) for t in (turn.cos(), turn.sin()))
    q, k = torch.randn(2, 3, 5, head_dim, dtype=dtype), torch.randn(2, 1, 5, head_dim, dtype=dtype)
    same_with_gradients(
        lambda q, k: tuple(module(x, position_ids[:, None]) for x in (q, k)),
        lambda q, k: llama.apply_rotary_pos_emb(q, k, cos, sin),
        [q, k],
    )


def test_the_angles_are_those_of_llamas_own_module():
    llama = model_of("llama")
    config = llama.LlamaConfig(hidden_size=64, num_attention_heads=4)
    config.rope_parameters = {"rope_type": "default", "rope_theta": 10000.0}
    position_ids = torch.arange(40)[None]
    cos, sin = llama.LlamaRotaryEmbedding(config)(torch.zeros(1), position_ids)
    for theirs, ours in zip((cos, sin), pe.RotaryEmbedding(16).tables(position_ids), strict=True):
        assert (theirs - torch.cat([ours, ours], dim=-1)).abs().max() < 2e-7 * 40


@DTYPES
@pytest.mark.parametrize("head_dim", [2, 6, 16])
def test_pairs_of_neighbours_are_those_of_gptj(dtype, head_dim):
    gptj, module = model_of("gptj"), pe.RotaryEmbedding(head_dim, interleaved=True)
    position_ids = torch.randint(0, 3000, (2, 5))
    turn = angles(position_ids, head_dim, 10000.0)
    cos, sin = turn.cos().float().to(dtype), turn.sin().float().to(dtype)
    same_with_gradients(
        lambda x: module(x, position_ids[:, None]),
        # There heads stand behind the positions.
        lambda x: gptj.apply_rotary_pos_emb(x.transpose(1, 2), sin, cos).transpose(1, 2),
        [torch.randn(2, 3, 5, head_dim, dtype=dtype)],
    )
    table = gptj.create_sinusoidal_positions(40, head_dim)
    ours = torch.cat(module.tables(torch.arange(40))[::-1], dim=-1)
    assert (ours - table).abs().max() < 2e-7 * 40


@PAIRINGS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rotary_is_multiplication_by_complex_numbers(interleaved, dtype):
    module = pe.RotaryEmbedding(8, 50.0, interleaved)
    x = torch.randn(2, 3, 5, 8, dtype=dtype)
    before = x.clone()
    wide = x.double()
    pairs = wide.view(2, 3, 5, 4, 2) if interleaved else wide.view(2, 3, 5, 2, 4).mT
    turn = torch.polar(torch.ones(5, 4, dtype=torch.float64), angles(torch.arange(5), 8, 50.0))
    product = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    expected = (product if interleaved else product.mT).flatten(-2)
    result = module(x)
    assert result.dtype == dtype
    room = {torch.float32: 1e-6, torch.float64: 1e-6, torch.bfloat16: 2**-8 * 4}[dtype]
    assert (result.double() - expected).abs().max() < room
    assert torch.equal(x, before)


@PAIRINGS
def test_products_of_rotated_vectors_depend_on_the_distance_only(interleaved):
    module = pe.RotaryEmbedding(16, interleaved=interleaved)
    q, k = torch.randn(2, 16, dtype=torch.float64)
    positions = torch.arange(30)
    turned = [module(vector.expand(30, 16), positions) for vector in (q, k)]
    products = turned[0] @ turned[1].T
    for distance in range(-29, 30):
        row = products.diagonal(distance)
        assert (row - row[0]).abs().max() < 1e-6
    assert products.diagonal(0).sub(q @ k).abs().max() < 1e-6
    assert torch.equal(turned[0][0], q)
    assert (turned[0].norm(dim=-1) - q.norm()).abs().max() < 1e-6
    # A shift of all positions changes no score.
    assert (module(q[None], torch.tensor([7])) - turned[0][7]).abs().max() == 0


@pytest.mark.parametrize("head_dim", [1, 3, 63])
def test_an_odd_head_has_no_pairs(head_dim):
    with pytest.raises(ValueError, match=f"head_dim={head_dim}"):
        pe.RotaryEmbedding(head_dim)


@pytest.mark.parametrize("shape", [(2, 3, 6), (3, 2), (2, 3, 1)])
def test_rotary_refuses_another_width(shape):
    with pytest.raises(ValueError, match=f"{shape[-1]} wide"):
        pe.RotaryEmbedding(4)(torch.randn(shape))


HEADS = pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 31, 32, 71, 112])


@HEADS
@pytest.mark.parametrize("length", [1, 2, 9])
def test_alibi_by_definition(num_heads, length):
    def slopes(count: int) -> list[float]:
        return [2 ** (-8 * (h + 1) / count) for h in range(count)]

    below = max(2**e for e in range(8) if 2**e <= num_heads)
    expected = (slopes(below) + slopes(2 * below)[0::2])[:num_heads]
    biases = pe.alibi_biases(num_heads, length)
    assert biases.dtype == torch.float32
    assert biases.shape == (num_heads, length, length)
    for h in range(num_heads):
        for i in range(length):
            for j in range(length):
                assert biases[h, i, j].item() == pytest.approx(-expected[h] * abs(i - j), rel=1e-6)


@HEADS
@pytest.mark.parametrize("length", [1, 7])
def test_alibi_gives_the_attention_of_bloom_and_mpt(num_heads, length):
    """Theirs have one row for all queries: under a causal mask a shift of a row is nothing."""
    bloom = model_of("bloom").build_alibi_tensor(
        torch.ones(1, length, dtype=torch.int64), num_heads, torch.float32
    )
    mpt = model_of("mpt").build_mpt_alibi_tensor(num_heads, length)
    ours = pe.alibi_biases(num_heads, length)
    past = torch.ones(length, length, dtype=torch.bool).tril()
    scores = torch.randn(num_heads, length, length)

    def weights(biases: Tensor) -> Tensor:
        return (scores + biases).masked_fill(~past, -torch.inf).softmax(-1)

    for theirs in (bloom, mpt):
        shift = theirs - ours
        assert (shift - shift[..., :1]).masked_fill(~past, 0.0).abs().max() < 2e-5
        close(weights(ours), weights(theirs))


@pytest.mark.parametrize(("num_heads", "length"), [(0, 3), (-1, 3), (2, 0), (2, -5)])
def test_alibi_refuses_no_heads_and_no_positions(num_heads, length):
    with pytest.raises(ValueError, match="num_heads and length"):
        pe.alibi_biases(num_heads, length)


# ------------------------------------------------------------------------------ contract and text


def rounded(values: Tensor, digits: int) -> list:
    return torch.round(values.double(), decimals=digits).tolist()


def test_the_worked_examples_of_the_text():
    assert pe.merge_pair([97, 97, 97], (97, 97), 256) == [256, 97]
    merges = pe.train_bpe("low low lower", 3)
    assert merges == [(108, 111), (256, 119), (32, 257)]
    assert pe.bpe_encode("slow low", merges) == [115, 257, 258]
    assert pe.bpe_decode([195, 169], []) == "é"
    assert pe.bpe_decode([195], []) == "\ufffd"
    assert pe.bpe_decode([258, 101], merges) == " lowe"
    vocabulary = ["un", "una", "##aff", "##able", "##ffable"]
    assert pe.wordpiece_encode("unaffable", vocabulary) == ["una", "##ffable"]
    assert pe.wordpiece_encode("unaffable", [vocabulary[0], *vocabulary[2:]]) == [
        "un",
        "##aff",
        "##able",
    ]
    assert pe.wordpiece_encode("unaffable", vocabulary[:-1]) == ["[UNK]"]
    embedding = pe.TokenEmbedding(8, 4)
    with torch.no_grad():
        embedding.table.weight[7] = torch.tensor([0.5, 0.0, -1.0, 2.0])
    assert embedding(torch.tensor([[7]])).tolist() == [[[1.0, 0.0, -2.0, 4.0]]]
    assert pe.binary_code(torch.tensor([1, 6]), 3).tolist() == [[1, 0, 0], [0, 1, 1]]
    assert rounded(pe.angular_frequencies(4), 6) == [1, 0.01]
    assert rounded(pe.angular_frequencies(5), 6) == [1, 0.025119, 0.000631]
    vector = [round(entry, 4) for entry in pe.position_vector(1, 4)]
    assert vector == [0.8415, 0.5403, 0.01, 1.0]
    assert pe.position_vector(0, 4) == [0, 1, 0, 1]
    assert rounded(pe.sinusoidal_table(2, 3), 4) == [[0, 1, 0], [0.8415, 0.5403, 0.0022]]
    module = pe.PositionalEncoding(4).eval()
    expected = pe.sinusoidal_table(5000, 4)[:3].expand(2, 3, 4)
    assert torch.equal(module(torch.zeros(2, 3, 4)), expected)
    table = rounded(pe.half_and_half_table(2, 4), 5)
    assert table == [[0, 0, 1, 1], [0.84147, 0.01, 0.5403, 0.99995]]
    assert pe.interleaved_to_half(6).tolist() == [0, 2, 4, 1, 3, 5]
    turn = pe.offset_rotation(1, 2)
    assert rounded(turn, 4) == [[0.5403, 0.8415], [-0.8415, 0.5403]]
    assert rounded(turn @ torch.tensor([0.0, 1.0]), 4) == [0.8415, 0.5403]
    learned = pe.LearnedPositions(2, 2)
    learned.load_state_dict({"table.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]])})
    assert learned(torch.full((2, 2, 2), 10.0)).tolist() == [[[11, 12], [13, 14]]] * 2
    index = pe.relative_indices(4, 2)
    assert index.tolist() == [[2, 3, 4, 4], [1, 2, 3, 4], [0, 1, 2, 3], [0, 0, 1, 2]]
    attention = pe.RelativeSelfAttention(1, 1, 2)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.zero_()
        attention.q_proj.bias.fill_(1.0)
        attention.key_offsets[1] = math.log(2)
    _, weights = attention(torch.randn(1, 3, 1))
    third = 1 / 3
    expected = torch.tensor([[third, third, third], [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]])
    close(weights[0, 0].detach(), expected)
    x = torch.tensor([[9.0, 9, 9, 9], [1, 0, 0, 1]])
    halves, neighbours = (pe.RotaryEmbedding(4, 100.0, pairing)(x) for pairing in (False, True))
    assert rounded(pe.RotaryEmbedding(4, 100.0).tables(torch.tensor([1]))[1].asin(), 6) == [
        [1, 0.1]
    ]
    assert rounded(halves[1], 4) == [0.5403, -0.0998, 0.8415, 0.9950]
    assert rounded(neighbours[1], 4) == [0.5403, 0.8415, -0.0998, 0.9950]
    biases = pe.alibi_biases(2, 3)
    assert (biases[0] * 16).tolist() == [[0, -1, -2], [-1, 0, -1], [-2, -1, 0]]
    assert biases[1, 0, 1] == -1 / 256
    assert (-pe.alibi_biases(3, 2)[:, 0, 1]).log2().tolist() == [-4, -8, -2]


def test_indices_and_masks_are_made_where_the_inputs_are():
    """On the meta device, which refuses to mix with the CPU as any other device does."""
    x = torch.randn(2, 5, 8, device="meta")
    real = torch.ones(2, 1, 5, dtype=torch.bool, device="meta")
    relative = pe.RelativeSelfAttention(8, 2, 3).to("meta")
    outputs = [
        pe.PositionalEncoding(8, dropout=0.5).to("meta").train()(x),
        pe.LearnedPositions(6, 8).to("meta")(x),
        relative(x, real)[0],
        pe.RotaryEmbedding(8).to("meta")(x),
        pe.fast_relative_self_attention(relative, x, real),
    ]
    assert all(output.device.type == "meta" for output in outputs)
    with pytest.raises(RuntimeError, match=r"device|meta|cpu"):
        relative(x, torch.ones(5, 5, dtype=torch.bool))
