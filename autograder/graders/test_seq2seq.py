"""Graders of the chapter `seq2seq`: a plain pytest file, one group of tests for each exercise.

Tests reach the code to judge through `student` only. Inside a test the cases run from the smallest
to the largest, so that the first failure is the smallest one.

Decoding is judged on a `NextTokenTable`, a given translator whose answers stand in a table, so that
a search that is right earns its points whatever became of the encoder. Its state is the same for
every hypothesis, though, and it has no use for a mask: one test of each search asks the student's
own `Seq2Seq`, and compares with what that very model says, right or wrong.

Random answers are never compared value by value. Every statistical bound has a false-alarm rate
of at most 1e-9.
"""

from __future__ import annotations

import torch

from autograder.graders.common import (
    pair,
    refuses,
    same_gradients,
    same_number,
    same_parameters,
    sizes,
)
from autograder.judging import expectations
from autograder.judging.grader_marks import Mistake, aspect, exercise, hidden
from autograder.judging.proxy import StudentError, Todo

# --------------------------------------------------------------------------------------------
# What the tests share
# --------------------------------------------------------------------------------------------

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ["<pad>", "<bos>", "<eos>", "<unk>"]


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


def same_list(actual, expected, what, case=""):
    """A list (or tuple) of ints or strings is the expected one; True is not taken for 1."""
    suffix = f" for {case}" if case else ""
    if not isinstance(actual, (list, tuple)):
        raise Mistake(
            f"{what} should be a list, but is a {expectations.type_name(actual)}{suffix}"
            + ("; .tolist() makes one." if isinstance(actual, torch.Tensor) else ".")
        )
    kind = type(expected[0]) if expected else object
    for item in actual:
        # A subclass will do, such as NumPy's str_, but no bool for an int.
        if expected and not (isinstance(item, kind) and not isinstance(item, bool)):
            raise Mistake(
                f"{what} should hold {kind.__name__}s only, "
                f"but holds a {expectations.type_name(item)}{suffix}."
            )
    if list(actual) != list(expected):
        raise Mistake(f"{what} should be {expected}, but is {list(actual)}{suffix}.")


def same_padded(mine, theirs, case=""):
    """Ids and mask agree; the mask is boolean."""
    ids, mask = expectations.pair(mine, what="the result (ids, mask)")
    expectations.close(ids, theirs[0], what="the ids", case=case)
    expectations.close(mask, theirs[1], what="the mask", case=case)


def sentence(draw, length, words):
    """`length` random words out of `words`."""
    return [words[index] for index in draw.integers(0, len(words), length).tolist()]


def sequences(draw, lengths, low=UNK + 1, high=50):
    """Lists of random ids of the given lengths."""
    return [draw.integers(low, high, length).tolist() for length in lengths]


def right_padded(lengths, longest=None):
    """The mask of rows with the given numbers of real tokens."""
    return torch.arange(longest or max(lengths)) < torch.tensor(lengths).unsqueeze(1)


def gates(draw, prefix, count, inputs, width):
    """The parameters of a recurrent cell with `count` gates, named as PyTorch names them."""
    return {
        f"{prefix}weight_ih": draw.normal(count * width, inputs, scale=1.5 * inputs**-0.5),
        f"{prefix}weight_hh": draw.normal(count * width, width, scale=1.5 * width**-0.5),
        f"{prefix}bias_ih": draw.normal(count * width, scale=0.5),
        f"{prefix}bias_hh": draw.normal(count * width, scale=0.5),
    }


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
# build_vocabulary
# --------------------------------------------------------------------------------------------


@exercise("build_vocabulary")
def test_vocabulary_counts(student, reference, draw):
    """The four special tokens come first, then the words, the most frequent first."""
    cases = [[["b", "a", "b"]], [["you", "see", "me"], ["me", "see"], ["me"]]]
    counts = draw.permutation(6).tolist()
    text = [
        word for word, count in zip("uvwxyz", counts, strict=True) for _ in range(3 * count + 1)
    ]
    cases.append([text[start::5] for start in range(5)])
    for sentences in cases:
        same_list(
            student.build_vocabulary(sentences),
            reference.build_vocabulary(sentences),
            what="the vocabulary",
            case=str(sentences) if len(sentences) < 4 else "61 to 96 words",
        )


@exercise("build_vocabulary")
def test_vocabulary_ties(student, reference, draw):
    """Words that are equally frequent stand in alphabetical order, by code point."""
    for sentences in [
        [["b", "a"]],
        [["cat", "ant", "cow"], ["bee", "ant", "cow"]],
        [["ähre", "zoo", "apple", "Zug", "10", "9"]],
        [[word] for word in sentence(draw, 8, "hgfedcba")],
    ]:
        same_list(
            student.build_vocabulary(sentences),
            reference.build_vocabulary(sentences),
            what="the vocabulary",
            case=str(sentences),
        )


@exercise("build_vocabulary")
def test_vocabulary_min_count(student, reference, draw):
    """Words that occur less often than min_count are left out."""
    sentences = [["a", "b", "a"], ["c", "a", "c"], sentence(draw, 12, "defg")]
    for least in (1, 2, 3, 50):
        seen = student.observe("build_vocabulary", sentences, grad=False, min_count=least)
        expectations.unchanged(seen)
        same_list(
            seen.value,
            reference.build_vocabulary(sentences, min_count=least),
            what="the vocabulary",
            case=f"min_count={least}",
        )


@exercise("build_vocabulary")
def test_vocabulary_max_size(student, reference, draw):
    """max_size is the size of the whole vocabulary, the special tokens included."""
    sentences = [["b", "c", "b", "a"], sentence(draw, 9, "defg")]
    for size in (4, 5, 7, 100):
        same_list(
            student.build_vocabulary(sentences, max_size=size),
            reference.build_vocabulary(sentences, max_size=size),
            what="the vocabulary",
            case=f"max_size={size}",
        )


@exercise("build_vocabulary")
def test_vocabulary_refusals(student):
    """No sentences, min_count below 1 and max_size below 4 are refused with a ValueError."""
    refuses(
        student.build_vocabulary,
        {
            "an empty list of sentences": ([],),
            "min_count=0": ([["a"]], 0),
            "min_count=-1": ([["a"]], -1),
            "max_size=3": ([["a"]], 1, 3),
            "max_size=0": ([["a"]], 1, 0),
            "max_size=-1": ([["a"]], 1, -1),
        },
    )


@hidden
@exercise("build_vocabulary")
def test_vocabulary_specials_in_the_text(student, reference, draw):
    """A special token that stands in the text is not entered twice, nor does it take a place."""
    sentences = [["<unk>", "a", "<unk>"], ["<pad>", "b", "b", "<eos>", "<bos>"]]
    for size in (None, 5, 6):
        same_list(
            student.build_vocabulary(sentences, max_size=size),
            reference.build_vocabulary(sentences, max_size=size),
            what="the vocabulary",
            case=f"special tokens in the text and max_size={size}",
        )


@hidden
@exercise("build_vocabulary")
def test_vocabulary_min_count_and_max_size(student, reference, draw):
    """Both limits hold together, and an empty sentence does no harm."""
    words = [chr(97 + index) * (1 + index % 3) for index in range(20)]
    sentences = [sentence(draw, 15, words), [], sentence(draw, 25, words[:8])]
    for least, size in [(1, None), (2, 9), (3, 9), (3, 100), (2, 4)]:
        same_list(
            student.build_vocabulary(sentences, least, size),
            reference.build_vocabulary(sentences, least, size),
            what="the vocabulary",
            case=f"40 words, min_count={least} and max_size={size}",
        )
    for sentences in ([[]], [[], []]):
        case = f"{sentences}, sentences without words"
        same_list(student.build_vocabulary(sentences), SPECIALS, what="the vocabulary", case=case)


# --------------------------------------------------------------------------------------------
# encode
# --------------------------------------------------------------------------------------------

WORDS = [*SPECIALS, "the", "cat", "sat", "on", "a", "mat"]


@exercise("encode")
def test_encode_known(student, reference, draw):
    """Each token becomes its place in the vocabulary."""
    for tokens in [["cat"], ["the", "cat", "sat"], sentence(draw, 9, WORDS[4:])]:
        same_list(
            student.encode(tokens, WORDS),
            reference.encode(tokens, WORDS),
            what="the ids",
            case=str(tokens),
        )
        expectations.unchanged(student.observe("encode", tokens, WORDS, grad=False))


@exercise("encode")
def test_encode_unknown(student, reference, draw):
    """A token that is not in the vocabulary becomes UNK, and the vocabulary stays as it is."""
    for tokens in [["dog"], ["the", "Cat"], sentence(draw, 8, ["mat", "dog", "on", "", "matt"])]:
        seen = student.observe("encode", tokens, WORDS, grad=False)
        expectations.unchanged(seen)
        same_list(
            seen.value,
            reference.encode(tokens, WORDS),
            what="the ids",
            case=str(tokens),
        )


@exercise("encode")
def test_encode_marks(student, reference):
    """add_bos puts BOS in front and add_eos puts EOS behind, each by itself."""
    tokens = ["a", "cat"]
    for bos, eos in [(True, False), (False, True), (True, True), (False, False)]:
        seen = student.observe("encode", tokens, WORDS, grad=False, add_bos=bos, add_eos=eos)
        expectations.unchanged(seen)
        same_list(
            seen.value,
            reference.encode(tokens, WORDS, add_bos=bos, add_eos=eos),
            what="the ids",
            case=f"add_bos={bos} and add_eos={eos}",
        )


@exercise("encode")
def test_encode_refusals(student):
    """A vocabulary that does not begin with the special tokens is refused with a ValueError."""
    refuses(
        student.encode,
        {
            "a vocabulary without special tokens": (["a"], ["a", "b", "c", "d", "e"]),
            "a vocabulary with special tokens at its end": (["a"], ["a", *SPECIALS]),
            "a vocabulary of three special tokens": (["a"], SPECIALS[:3]),
            "an empty vocabulary": (["a"], []),
            "special tokens in another order": (["a"], ["<pad>", "<unk>", "<bos>", "<eos>", "a"]),
        },
    )


@hidden
@exercise("encode")
def test_encode_empty(student, reference):
    """No tokens give no ids but the marks that were asked for."""
    for bos, eos in [(False, False), (True, False), (False, True), (True, True)]:
        same_list(
            student.encode([], WORDS, bos, eos),
            reference.encode([], WORDS, bos, eos),
            what="the ids",
            case=f"no tokens, add_bos={bos} and add_eos={eos}",
        )


@hidden
@exercise("encode")
def test_encode_long(student, reference, draw):
    """Vocabularies and sentences of any length work, words in any order."""
    words = [f"w{index}" for index in draw.permutation(40).tolist()]
    vocabulary = [*SPECIALS, *words[:30]]
    tokens = [words[29], words[30], words[0], *sentence(draw, 50, words)]
    same_list(
        student.encode(tokens, vocabulary),
        reference.encode(tokens, vocabulary),
        what="the ids",
        case="53 tokens and a vocabulary of 34",
    )
    tokens = ["cat", *SPECIALS, "dog"]
    same_list(
        student.encode(tokens, WORDS), reference.encode(tokens, WORDS), "the ids", case=str(tokens)
    )


# --------------------------------------------------------------------------------------------
# decode
# --------------------------------------------------------------------------------------------


def same_text(student, reference, ids, vocabulary=WORDS):
    seen = student.observe("decode", ids, vocabulary, grad=False)
    expectations.unchanged(seen)
    same_list(
        seen.value,
        reference.decode(ids, vocabulary),
        what="the tokens",
        case=f"the ids {ids}",
    )


@exercise("decode")
def test_decode_words(student, reference, draw):
    """Each id becomes the word at its place; an unknown word stays visible as <unk>."""
    for ids in [[5], [4, 5, 6], [4, UNK, 9], [UNK, 4, UNK], draw.integers(3, 10, 8).tolist()]:
        same_text(student, reference, ids)


@exercise("decode")
def test_decode_stops(student, reference, draw):
    """The text ends before the first EOS, whatever follows: not even 99 or -1 is looked at."""
    for ids in [
        [4, 5, EOS, 6, 7],
        [4, EOS, 5, EOS, 6],
        [4, EOS],
        [EOS, 4],
        [EOS],
        [4, EOS, 99, -1],
    ]:
        same_text(student, reference, ids)


@exercise("decode")
def test_decode_drops_marks(student, reference, draw):
    """PAD and BOS are dropped wherever they stand, and the text goes on after them."""
    for ids in [[4, PAD, BOS, 5], [BOS, 4, 5], [4, PAD, PAD], [BOS, 6, UNK, EOS, PAD], [PAD]]:
        same_text(student, reference, ids)


@exercise("decode")
def test_decode_refusals(student):
    """An id outside the vocabulary, a negative one too, is refused with a ValueError."""
    refuses(
        student.decode,
        {
            "the id 10 with a vocabulary of 10 words": ([4, 10], WORDS),
            "the id 99 with a vocabulary of 10 words": ([99], WORDS),
            "the id -1": ([4, -1], WORDS),
            "the id -10 with a vocabulary of 10 words": ([-10, 4], WORDS),
            "the id 10 before EOS": ([4, 10, EOS], WORDS),
        },
    )


@hidden
@exercise("decode")
def test_decode_inverts_encode(student, reference, draw):
    """What a sentence is encoded to decodes to the sentence, marks and padding aside."""
    same_text(student, reference, [])
    words = [f"w{index}" for index in draw.permutation(25).tolist()]
    vocabulary = [*SPECIALS, *words]
    for length in (1, 6, 20):
        tokens = sentence(draw, length, words)
        ids = [BOS, *(vocabulary.index(token) for token in tokens), EOS, PAD, PAD]
        same_list(
            student.decode(ids, vocabulary),
            tokens,
            what="the tokens",
            case=f"a sentence of {length} words between BOS and EOS, padded",
        )


@hidden
@exercise("decode")
def test_decode_any_ids(student, reference, draw):
    """Ids in any order, special ones among them, decode by the same rules."""
    for length in (3, 5, 9, 14):
        same_text(student, reference, draw.integers(0, 10, length).tolist())


# --------------------------------------------------------------------------------------------
# pad_to_length
# --------------------------------------------------------------------------------------------


@exercise("pad_to_length")
def test_pad_shorter(student, reference, draw):
    """Shorter sequences get PAD on the right, and the mask says which ids are real."""
    for lengths, length in [([1], 2), ([2, 3], 4), ([5, 1, 4], 5)]:
        given = sequences(draw, lengths)
        same_padded(
            student.pad_to_length(given, length),
            reference.pad_to_length(given, length),
            case=f"lengths {lengths} to {length}",
        )


@exercise("pad_to_length")
def test_pad_longer(student, reference, draw):
    """Longer sequences are cut: their first ids stay, or their last with keep="end"."""
    for lengths, length in [([3], 2), ([5, 2, 7], 3), ([4, 9], 1)]:
        given = sequences(draw, lengths)
        for keep in ("start", "end"):
            seen = student.observe("pad_to_length", given, length, grad=False, keep=keep)
            expectations.unchanged(seen)
            same_padded(
                seen.value,
                reference.pad_to_length(given, length, keep=keep),
                case=f'lengths {lengths} to {length} and keep="{keep}"',
            )


@exercise("pad_to_length")
def test_pad_default_keeps_the_start(student, reference, draw):
    """Unless told otherwise the first ids are kept; short sequences are the same either way."""
    given = sequences(draw, [6, 2])
    same_padded(
        student.pad_to_length(given, 4),
        reference.pad_to_length(given, 4),
        case="lengths [6, 2] to 4",
    )
    same_padded(
        student.pad_to_length(given, 8, "end"),
        reference.pad_to_length(given, 8, "end"),
        case='lengths [6, 2] to 8 and keep="end"',
    )


@exercise("pad_to_length")
def test_pad_refusals(student):
    """No sequences, a length below 1, another keep, and ids that are no ints are refused."""
    refuses(
        student.pad_to_length,
        {
            "an empty list of sequences": ([], 3),
            "length=0": ([[4, 5]], 0),
            "length=-1": ([[4, 5]], -1),
            'keep="middle"': ([[4, 5]], 1, "middle"),
            'keep="last" with nothing to cut': ([[4, 5]], 5, "last"),
            "the id 4.0, a float": ([[5], [4.0]], 2),
            'the id "4", a string': ([["4"]], 2),
            "the id True, a bool": ([[4, True]], 2),
            "the id None": ([[4, None]], 2),
            "a float among the ids that are cut off": ([[4, 5, 6.5]], 2),
        },
    )


@hidden
@exercise("pad_to_length")
def test_pad_real_zeros(student, reference, draw):
    """The mask follows the lengths, not the ids: an id of 0 inside a sequence is real."""
    given = [[5, PAD, 6], [PAD, PAD], [7]]
    for length in (2, 3, 4):
        same_padded(
            student.pad_to_length(given, length),
            reference.pad_to_length(given, length),
            case=f"{given} to {length}",
        )


@hidden
@exercise("pad_to_length")
def test_pad_empty_sequences(student, reference, draw):
    """An empty sequence becomes a row of padding, alone and beside others, kept either way."""
    for lengths in ([0], [0, 3], [4, 0, 2, 6]):
        given = sequences(draw, lengths)
        for keep in ("start", "end"):
            same_padded(
                student.pad_to_length(given, 3, keep),
                reference.pad_to_length(given, 3, keep),
                case=f'lengths {lengths} to 3 and keep="{keep}"',
            )


# --------------------------------------------------------------------------------------------
# pad_batch
# --------------------------------------------------------------------------------------------


@exercise("pad_batch")
def test_pad_batch_values(student, reference, draw):
    """Every row is as long as the longest sequence, padded on the right."""
    for lengths in ([1], [3], [2, 3], [4, 1, 6, 6]):
        given = sequences(draw, lengths)
        same_padded(student.pad_batch(given), reference.pad_batch(given), case=f"lengths {lengths}")
        expectations.unchanged(student.observe("pad_batch", given, grad=False))


@exercise("pad_batch")
def test_pad_batch_beside_empty(student, reference, draw):
    """An empty sequence beside others is a row of padding."""
    for lengths in ([2, 0], [0, 0, 3], [0, 1]):
        given = sequences(draw, lengths)
        same_padded(student.pad_batch(given), reference.pad_batch(given), case=f"lengths {lengths}")


@exercise("pad_batch")
def test_pad_batch_refusals(student):
    """No sequences, only empty ones, and ids that are no ints are refused with a ValueError."""
    refuses(
        student.pad_batch,
        {
            "an empty list of sequences": ([],),
            "one empty sequence": ([[]],),
            "three empty sequences": ([[], [], []],),
            "the id 4.0, a float": ([[5, 6], [4.0]],),
            "the id False, a bool": ([[4, False]],),
            'the id "4", a string': ([["4"]],),
        },
    )


@hidden
@exercise("pad_batch")
def test_pad_batch_real_zeros(student, reference, draw):
    """An id of 0 inside a sequence is real, also at its end."""
    for given in ([[PAD]], [[5, PAD], [6]], [[PAD, 7, PAD], [PAD, PAD], [8, 9, 4]]):
        same_padded(student.pad_batch(given), reference.pad_batch(given), case=str(given))


@hidden
@exercise("pad_batch")
def test_pad_batch_large(student, reference, draw):
    """A batch of many sequences of all lengths."""
    given = sequences(draw, draw.integers(0, 30, 40).tolist(), low=0)
    same_padded(student.pad_batch(given), reference.pad_batch(given), case="40 sequences")


# --------------------------------------------------------------------------------------------
# sliding_windows
# --------------------------------------------------------------------------------------------


def same_windows(student, reference, draw, cases):
    for total, length, stride in cases:
        (given,) = sequences(draw, [total])
        same_padded(
            student.sliding_windows(given, length, stride),
            reference.sliding_windows(given, length, stride),
            case=f"{total} ids, length={length} and stride={stride}",
        )


@exercise("sliding_windows")
def test_windows_that_fit(student, reference, draw):
    """Windows start every `stride` ids; the last one ends with the sequence."""
    same_windows(student, reference, draw, [(1, 1, 1), (4, 2, 2), (5, 3, 2), (9, 5, 2), (6, 3, 1)])


@exercise("sliding_windows")
def test_windows_with_a_rest(student, reference, draw):
    """A last window that reaches beyond the end is padded on the right; no id is lost."""
    same_windows(student, reference, draw, [(3, 2, 2), (5, 4, 3), (7, 3, 3), (10, 4, 3), (8, 5, 2)])


@exercise("sliding_windows")
def test_windows_short_sequence(student, reference, draw):
    """A sequence that fits into one window gives one window, padded if need be."""
    same_windows(student, reference, draw, [(1, 3, 1), (3, 3, 1), (2, 5, 3), (4, 6, 6)])


@exercise("sliding_windows")
def test_windows_refusals(student):
    """An empty sequence, length or stride below 1, and a stride that skips ids are refused."""
    refuses(
        student.sliding_windows,
        {
            "an empty sequence": ([], 3, 1),
            "length=0": ([4, 5, 6], 0, 1),
            "stride=0": ([4, 5, 6], 2, 0),
            "stride=-1": ([4, 5, 6], 2, -1),
            "length=0 and stride=0": ([4, 5, 6], 0, 0),
            "length=2 with stride=3, which skips ids": ([4, 5, 6, 7], 2, 3),
            "length=5 with stride=6, though one window does": ([4, 5, 6], 5, 6),
        },
    )


@hidden
@exercise("sliding_windows")
def test_windows_lose_nothing(student, draw):
    """The windows hold every id, and what overlaps is where it should be."""
    for total, length, stride in [(11, 4, 3), (12, 4, 3), (13, 4, 3), (20, 7, 7), (17, 9, 1)]:
        (given,) = sequences(draw, [total])
        case = f"{total} ids, length={length} and stride={stride}"
        seen = student.observe("sliding_windows", given, length, stride, grad=False)
        expectations.unchanged(seen)
        windows, mask = expectations.pair(seen.value, what="the result (windows, mask)")
        count = 1 + max(0, -(-(total - length) // stride))
        expectations.shape(windows, (count, length), what="the windows", case=case)
        expectations.shape(mask, (count, length), what="the mask", case=case)
        place = stride * torch.arange(count).unsqueeze(1) + torch.arange(length)
        expectations.equal(mask, place < total, what="the mask", case=case)
        ids = torch.tensor(given + [PAD] * length)
        wanted = torch.where(place < total, ids[place.clamp(max=total)], PAD)
        expectations.equal(windows, wanted, what="the windows", case=case)


@hidden
@exercise("sliding_windows")
def test_windows_real_zeros(student, reference):
    """An id of 0 inside the sequence is real, not padding."""
    given = [PAD, 5, PAD, PAD, 6, PAD]
    for length, stride in [(2, 2), (4, 1), (4, 4), (7, 2)]:
        same_padded(
            student.sliding_windows(given, length, stride),
            reference.sliding_windows(given, length, stride),
            case=f"{given}, length={length} and stride={stride}",
        )


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


@exercise("RNNCell")
def test_rnn_parameters(student):
    """There are weight_ih, weight_hh and two biases, with the shapes of torch.nn.RNNCell."""
    mine = student.module("RNNCell", input_size=2, hidden_size=3)
    same_parameters(mine, gate_shapes("", 1, 2, 3))


@exercise("RNNCell")
def test_rnn_values(student, reference, draw):
    """The new state is tanh(W_ih x + b_ih + W_hh h + b_hh)."""
    same_cell(student, reference, draw, "RNNCell", CELL_SIZES)


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


@exercise("GRUCell")
def test_gru_parameters(student):
    """The parameters are those of torch.nn.GRUCell, three gates stacked in each."""
    mine = student.module("GRUCell", input_size=2, hidden_size=3)
    same_parameters(mine, gate_shapes("", 3, 2, 3))


@exercise("GRUCell")
def test_gru_values(student, reference, draw):
    """The new state mixes the old state and the candidate as the formulas say."""
    same_cell(student, reference, draw, "GRUCell", CELL_SIZES)


@exercise("GRUCell")
def test_gru_update_gate(student, reference, draw):
    """An update gate of 1 keeps the state, and one of 0 replaces it by the candidate."""
    for bias, words in [(30.0, "an update gate of 1"), (-30.0, "an update gate of 0")]:
        state = gates(draw, "", 3, 2, 3)
        state["bias_ih"][3:6] = bias
        mine, theirs = pair(student, reference, "GRUCell", state, input_size=2, hidden_size=3)
        x, h = draw.normal(2, 2), draw.normal(2, 3, scale=0.7)
        expectations.close(mine(x, h), theirs(x, h), what="the new state", case=words)


@exercise("GRUCell")
def test_gru_refusals(student, draw):
    """Other widths and batch sizes are refused with a ValueError."""
    cell_refusals(student, draw, "GRUCell")


@hidden
@exercise("GRUCell")
def test_gru_reset_gate(student, reference, draw):
    """The reset gate scales W_hn h + b_hn, the bias included, after the product."""
    for bias, words in [(-30.0, "a reset gate of 0"), (0.0, "a reset gate in between")]:
        state = gates(draw, "", 3, 2, 3)
        state["bias_ih"][:3] += bias
        state["bias_ih"][3:6] = -30.0
        mine, theirs = pair(student, reference, "GRUCell", state, input_size=2, hidden_size=3)
        x, h = draw.normal(2, 2), draw.normal(2, 3)
        expectations.close(mine(x, h), theirs(x, h), what="the new state", case=words)


@hidden
@exercise("GRUCell")
def test_gru_steps(student, reference, draw):
    """Steps in a row give the states of a recurrent network; large inputs saturate."""
    same_cell_steps(student, reference, draw, "GRUCell")
    same_cell(student, reference, draw, "GRUCell", [(1, 3, 2)], scale=50.0)


@hidden
@exercise("GRUCell")
def test_gru_gradients(student, reference, draw):
    """Gradients reach x, h and every parameter, and the inputs are left as they were."""
    cell_gradients(student, reference, draw, "GRUCell")


LSTM = ("h", "c")


def lstm_inputs(draw, batch, inputs, width, dtype=torch.float32):
    x, h = draw.normal(batch, inputs), draw.normal(batch, width, scale=0.7)
    return x.to(dtype), (h.to(dtype), draw.normal(batch, width, scale=1.5).to(dtype))


@exercise("LSTMCell")
def test_lstm_parameters(student):
    """The parameters are those of torch.nn.LSTMCell, four gates stacked in each."""
    mine = student.module("LSTMCell", input_size=2, hidden_size=3)
    same_parameters(mine, gate_shapes("", 4, 2, 3))


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
            "an x of batch size 3 with a state of batch size 2": (draw.normal(3, 3), (h, c)),
            "an x of batch size 1 with a state of batch size 2": (draw.normal(1, 3), (h, c)),
        },
    )


@hidden
@exercise("LSTMCell")
def test_lstm_steps(student, reference, draw):
    """Steps in a row, from a state of zeros, carry h and c on."""
    mine, theirs = cell_pair(student, reference, draw, "LSTMCell", 2, 3)
    left = right = (torch.zeros(2, 3), torch.zeros(2, 3))
    for step in range(4):
        x = draw.normal(2, 2)
        left, right = mine(x, left), theirs(x, right)
        same_states(left, right, ("new h", "new c"), f"step {step} from a state of zeros")
        left = tuple(left)


@hidden
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


# --------------------------------------------------------------------------------------------
# Encoder
# --------------------------------------------------------------------------------------------

KINDS = {"rnn": 1, "gru": 3, "lstm": 4}
ENCODED = ("states", "final state")


def encoder_state(draw, cell, vocabulary, embed, width, prefix=""):
    return {
        f"{prefix}embedding.weight": draw.normal(vocabulary, embed),
        **gates(draw, f"{prefix}cell.", KINDS[cell], embed, width),
    }


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


@exercise("Encoder")
def test_encoder_parameters(student):
    """The parts are `embedding` and `cell`; the cell is a GRUCell unless told otherwise."""
    for cell, count in [(None, 3), ("rnn", 1), ("gru", 3), ("lstm", 4)]:
        options = {} if cell is None else {"cell": cell}
        mine = student.module("Encoder", vocab_size=7, embed_dim=2, hidden_size=3, **options)
        same_parameters(mine, {"embedding.weight": (7, 2), **gate_shapes("cell.", count, 2, 3)})


@exercise("Encoder")
def test_encoder_values(student, reference, draw):
    """Without a mask: the state after each token, and the last one, from a state of zeros."""
    for cell in KINDS:
        for batch, length in [(1, 1), (1, 3), (3, 4)]:
            mine, theirs = encoder_pair(student, reference, draw, cell)
            ids = draw.integers(0, 7, batch, length)
            case = f'cell="{cell}", {sizes(B=batch, T=length)}'
            same_states(mine(ids), theirs(ids), ENCODED, case)


@exercise("Encoder")
def test_encoder_padding(student, reference, draw):
    """Rows of padding are 0, and the final state is the one after the last real token."""
    for cell in KINDS:
        for lengths in ([1, 2], [3, 1, 4, 2]):
            mine, theirs = encoder_pair(student, reference, draw, cell)
            mask = right_padded(lengths)
            ids = draw.integers(0, 7, *mask.shape).masked_fill(~mask, PAD)
            case = f'cell="{cell}", lengths {lengths}'
            same_states(mine(ids, mask), theirs(ids, mask), ENCODED, case)


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
            "the id 6 at a padded place": (outside, short),
            "the id -1 at a padded place": (below, short),
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


@exercise("Encoder")
def test_encoder_refuses_other_cells(student):
    """A cell that is none of "rnn", "gru" and "lstm" is refused when the module is created."""

    def make(cell):
        student.module("Encoder", vocab_size=6, embed_dim=2, hidden_size=3, cell=cell)

    make("rnn")
    refuses(make, {'cell="elman"': ("elman",), 'cell="GRU"': ("GRU",), 'cell=""': ("",)})


@hidden
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
        case = f'cell="{cell}", padding anywhere, in train mode'
        same_states(mine.train()(ids, mask), theirs(ids, mask), ENCODED, case)


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


@exercise("BidirectionalEncoder")
def test_bidirectional_values(student, reference, draw):
    """Without a mask: states of both directions side by side, and the bridged final states."""
    for batch, length, decoder in [(1, 1, 3), (1, 3, 3), (3, 4, 5)]:
        mine, theirs = bidirectional_pair(student, reference, draw, decoder=decoder)
        ids = draw.integers(0, 7, batch, length)
        case = sizes(B=batch, T=length, decoder=decoder)
        same_states(mine(ids), theirs(ids), BIDIRECTIONAL, case)


@exercise("BidirectionalEncoder")
def test_bidirectional_padding(student, reference, draw):
    """Both directions leave the padding out: the backward one starts at the last real token."""
    for lengths in ([1, 2], [3, 1, 4, 2]):
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
            "the id 6 at a padded place": (outside, short),
            "the id -1 at a padded place": (below, short),
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
    case = "padding anywhere, in train mode"
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


def decoder_inputs(draw, batch, vocabulary, width, context):
    return (
        draw.integers(0, vocabulary, batch),
        draw.normal(batch, width, scale=0.7),
        draw.normal(batch, context, scale=0.7),
    )


@exercise("DecoderStep")
def test_step_parameters(student):
    """The parts are `embedding`, `cell` on [embedding; context], `output` on [state; context]."""
    mine = student.module("DecoderStep", vocab_size=7, embed_dim=2, hidden_size=3, context_size=4)
    same_parameters(mine, decoder_shapes(7, 2, 3, 4))


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
        inputs = decoder_inputs(draw, batch, vocabulary, width, context)
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


def translator_options(sources=7, targets=6, embed=2, width=3):
    return {
        "source_size": sources,
        "target_size": targets,
        "embed_dim": embed,
        "hidden_size": width,
    }


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


@exercise("Seq2Seq")
def test_forcing_always(student, reference, draw):
    """With a ratio of 1, the default, the input of every step is the token of target_in."""
    for batch, length, steps in [(1, 1, 1), (1, 2, 3), (3, 4, 5)]:
        mine, theirs = translator_pair(student, reference, draw)
        source, target_in = translator_inputs(draw, batch, length, steps)
        want = theirs(source, target_in)
        case = sizes(B=batch, T=length, U=steps)
        expectations.close(mine(source, target_in), want, what="the logits", case=case)
        got = mine(source, target_in, None, 1.0)
        expectations.close(got, want, what="the logits", case=f"{case}, a ratio of 1")


@exercise("Seq2Seq")
def test_forcing_never(student, reference, draw):
    """With a ratio of 0 each step is fed the row's own argmax of the step before."""
    for batch, length, steps in [(1, 1, 1), (1, 2, 3), (4, 3, 6)]:
        mine, theirs = translator_pair(student, reference, draw)
        source, target_in = translator_inputs(draw, batch, length, steps)
        for _ in range(2):
            got = mine(source, target_in, teacher_forcing_ratio=0.0)
            want = theirs(source, target_in, teacher_forcing_ratio=0.0)
            case = f"{sizes(B=batch, T=length, U=steps)}, a ratio of 0"
            expectations.close(got, want, what="the logits", case=case)
            # The tokens of target_in after the first are not looked at.
            target_in = target_in.clone()
            target_in[:, 1:] = draw.integers(0, 6, batch, steps - 1)


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
    every = torch.arange(size).unsqueeze(0)
    if training:
        mine.train()
    patterns = mine(torch.zeros(1, 1, dtype=torch.int64), every)
    expectations.shape(patterns, (1, size, size), what="the logits")
    target_in = draw.integers(1, 6, batch, steps)
    target_in[:, 0] = BOS
    logits = mine(torch.zeros(batch, 2, dtype=torch.int64), target_in, teacher_forcing_ratio=ratio)
    expectations.shape(logits, (batch, steps, size), what="the logits")
    gaps = (logits.unsqueeze(2) - patterns[0]).abs().amax(-1)  # (B, U, V)
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


@exercise("Seq2Seq")
def test_forcing_rate(student, draw):
    """An input is the target's with the given probability, the own choice otherwise."""
    for ratio in (0.25, 0.7):
        forced = forced_steps(student, draw, 24, 33, ratio, training=True)
        share = float(forced.float().mean())
        near = abs(share - (1 - ratio)) < 0.1
        expectations.rate(
            int(forced.sum()),
            forced.numel(),
            ratio,
            what=f"the share of inputs from target_in at a ratio of {ratio}",
            false_alarm=5e-10,
            misconception="forcing_inverted" if near else None,
        )


@hidden
@exercise("Seq2Seq")
def test_forcing_drawn_for_each(student, draw):
    """Every row, step and call is drawn for itself, not one draw for many."""
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
        rows = words.endswith("in one step")
        expectations.rate(
            int(same.sum()),
            same.numel(),
            0.5,
            what=f"the share of equal draws for two {words} at a ratio of 0.5",
            false_alarm=4e-10,
            misconception="forcing_per_step" if rows and bool(same.all()) else None,
        )
    # Of 24 rows of 32 draws two are alike with a probability of 6e-8, two pairs with one of 2e-15.
    expectations.true(
        len(set(map(tuple, forced.tolist()))) >= 23,
        "Several rows share their draws at a ratio of 0.5; draw for every row on its own.",
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


# --------------------------------------------------------------------------------------------
# sequence_log_prob
# --------------------------------------------------------------------------------------------


@exercise("sequence_log_prob")
def test_log_prob_values(student, reference, draw):
    """For each row the log-probabilities of its targets are added up."""
    for batch, steps, vocabulary in [(1, 1, 2), (1, 3, 5), (2, 4, 4), (4, 4, 4), (3, 2, 7)]:
        logits = draw.normal(batch, steps, vocabulary, scale=2.0)
        targets = draw.integers(0, vocabulary, batch, steps)
        case = sizes(B=batch, U=steps, V=vocabulary)
        got = student.sequence_log_prob(logits, targets)
        want = reference.sequence_log_prob(logits, targets)
        expectations.close(got, want, what="the log-probability", case=case)


@exercise("sequence_log_prob")
def test_log_prob_mask(student, reference, draw):
    """Only steps where the mask is True count; a row without any has the log-probability 0."""
    for lengths in ([1, 2], [3, 0, 2]):
        mask = right_padded(lengths)
        logits = draw.normal(*mask.shape, 5, scale=2.0)
        targets = draw.integers(0, 5, *mask.shape)
        got = student.sequence_log_prob(logits, targets, mask)
        want = reference.sequence_log_prob(logits, targets, mask)
        expectations.close(got, want, what="the log-probability", case=f"{lengths} real steps")
    mask = torch.tensor([[True, False, True, True], [False, True, False, True]])
    logits, targets = draw.normal(2, 4, 5, scale=2.0), draw.integers(0, 5, 2, 4)
    got = student.sequence_log_prob(logits, targets, mask)
    want = reference.sequence_log_prob(logits, targets, mask)
    expectations.close(got, want, what="the log-probability", case="masked steps between real ones")


@exercise("sequence_log_prob")
def test_log_prob_masked_targets(student, reference, draw):
    """Where the mask is False any number may stand, -100 or one beyond the vocabulary."""
    mask = right_padded([2, 4, 1])
    logits = draw.normal(3, 4, 5, scale=2.0)
    targets = draw.integers(0, 5, 3, 4)
    for number in (0, 4, -100, 5, 1000):
        given = targets.masked_fill(~mask, number)
        got = student.sequence_log_prob(logits, given, mask)
        want = reference.sequence_log_prob(logits, given, mask)
        case = f"masked targets of {number}"
        expectations.close(got, want, what="the log-probability", case=case)


@exercise("sequence_log_prob")
def test_log_prob_refusals(student, draw):
    """Shapes that do not fit and real targets outside the vocabulary are refused."""
    logits, targets = draw.normal(2, 3, 4), draw.integers(0, 4, 2, 3)
    mask = torch.ones(2, 3, dtype=torch.bool)
    beyond, below = targets.clone(), targets.clone()
    beyond[1, 2], below[0, 1] = 4, -1
    refuses(
        student.sequence_log_prob,
        {
            "targets of shape (2, 2) for logits of shape (2, 3, 4)": (logits, targets[:, :2]),
            "targets of shape (1, 3) for logits of shape (2, 3, 4)": (logits, targets[:1]),
            "targets of shape (3, 3) for logits of shape (2, 3, 4)": (
                logits,
                torch.cat([targets, targets[:1]]),
            ),
            "a mask of shape (2, 2) for targets of shape (2, 3)": (logits, targets, mask[:, :2]),
            "a mask of shape (2, 1) for targets of shape (2, 3)": (logits, targets, mask[:, :1]),
            "a real target of 4 with a vocabulary of 4": (logits, beyond),
            "targets of shape (3,) for logits of shape (2, 3, 4)": (logits, targets[0]),
            "targets of shape (2, 4) for logits of shape (2, 3, 4)": (
                logits,
                torch.cat([targets, targets[:, :1]], dim=1),
            ),
            "a real target of -1": (logits, below, mask),
            "a real target of -100": (logits, below * 100),
        },
    )


@hidden
@exercise("sequence_log_prob")
def test_log_prob_other_types(student):
    """Targets that are no ids, and a mask that is not boolean, are refused with a ValueError."""
    logits, targets = torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.int64)
    refuses(
        student.sequence_log_prob,
        {
            "targets of dtype float32": (logits, targets.float()),
            "targets of dtype int32": (logits, targets.int()),
            "a mask of dtype float32": (logits, targets, torch.ones(2, 3)),
            "a mask of dtype int64": (logits, targets, targets),
        },
    )


@hidden
@exercise("sequence_log_prob")
def test_log_prob_extremes(student, reference, draw):
    """Large logits, long sequences and logits of -inf give finite numbers wherever there are."""
    logits, targets = draw.normal(2, 3, 4) * 1000, draw.integers(0, 4, 2, 3)
    long, many = draw.normal(1, 400, 8, scale=3.0), draw.integers(0, 8, 1, 400)
    closed = draw.normal(2, 3, 4)
    closed[:, :, PAD] = -torch.inf
    padded = torch.tensor([[1, 2, 3], [3, PAD, PAD]])
    zeros = torch.zeros(1, 2, dtype=torch.int64)
    for case, *given in [
        ("400 steps", long, many, None),
        ("logits of the order of 1000", logits, targets, None),
        ("logits of -inf for PAD", closed, padded, padded != PAD),
        ("a vocabulary of one token", draw.normal(1, 2, 1), zeros, right_padded([1], 2)),
    ]:
        got, want = student.sequence_log_prob(*given), reference.sequence_log_prob(*given)
        expectations.close(got, want, what="the log-probability", case=case)


@hidden
@exercise("sequence_log_prob")
def test_log_prob_gradients(student, reference, draw):
    """The gradient is right, 0 at masked steps, and the inputs are left as they were."""
    logits = draw.normal(4, 2, 3).double().transpose(0, 1)
    targets, mask = draw.integers(0, 3, 2, 4), right_padded([4, 1])
    targets[1, 3] = -100
    seen = student.observe("sequence_log_prob", logits, targets, mask)
    wanted = reference.observe("sequence_log_prob", logits, targets, mask)
    expectations.close(
        seen.value, wanted.value, what="the log-probability", case="float64, strided"
    )
    same_gradients(seen, wanted, {"0": "the logits"})
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# sequence_loss
# --------------------------------------------------------------------------------------------


def padded_targets(draw, lengths, vocabulary, pad=PAD):
    """Targets of the given lengths that are never `pad`, then `pad`."""
    mask = right_padded(lengths)
    targets = draw.integers(0, vocabulary - 1, *mask.shape)
    targets = targets + (targets >= pad) if 0 <= pad < vocabulary else targets
    return targets.masked_fill(~mask, pad)


@exercise("sequence_loss")
def test_loss_values(student, reference, draw):
    """Without padding: minus the mean log-probability of the targets, one number."""
    for batch, steps, vocabulary in [(1, 1, 3), (2, 3, 5), (4, 4, 4)]:
        logits = draw.normal(batch, steps, vocabulary, scale=2.0)
        targets = padded_targets(draw, [steps] * batch, vocabulary)
        got, want = student.sequence_loss(logits, targets), reference.sequence_loss(logits, targets)
        expectations.close(got, want, what="the loss", case=sizes(B=batch, U=steps, V=vocabulary))


@exercise("sequence_loss")
def test_loss_padding(student, reference, draw):
    """Padding does not count, and every real target of the batch counts the same."""
    for lengths in ([1, 3], [5, 1, 2], [4, 0]):
        targets = padded_targets(draw, lengths, 6)
        logits = draw.normal(*targets.shape, 6, scale=2.0)
        got, want = student.sequence_loss(logits, targets), reference.sequence_loss(logits, targets)
        expectations.close(got, want, what="the loss", case=f"{lengths} real targets")
    targets = padded_targets(draw, [4, 3], 6)
    targets[0, 1] = targets[1, 0] = PAD
    logits = draw.normal(2, 4, 6, scale=2.0)
    got, want = student.sequence_loss(logits, targets), reference.sequence_loss(logits, targets)
    expectations.close(got, want, what="the loss", case="padding between real targets")


@exercise("sequence_loss")
def test_loss_other_pad(student, reference, draw):
    """`pad` says which id is padding; it may lie outside the vocabulary, and 0 is then a target."""
    for pad in (5, 2, -100, 99):
        targets = padded_targets(draw, [2, 4], 6, pad)
        targets[0, 0] = PAD
        logits = draw.normal(2, 4, 6, scale=2.0)
        got = student.sequence_loss(logits, targets, pad)
        want = reference.sequence_loss(logits, targets, pad)
        expectations.close(got, want, what="the loss", case=f"pad={pad}")


@exercise("sequence_loss")
def test_loss_refusals(student, draw):
    """No real target, and whatever sequence_log_prob refuses, raise a ValueError."""
    logits, targets = draw.normal(2, 3, 5), draw.integers(1, 5, 2, 3)
    one_below = targets.clone()
    one_below[1, 1] = -100
    refuses(
        student.sequence_loss,
        {
            "a batch of padding only": (logits, torch.zeros_like(targets)),
            "a batch of -100 only with pad=-100": (logits, torch.full_like(targets, -100), -100),
            "targets of shape (2, 2) for logits of shape (2, 3, 5)": (logits, targets[:, :2]),
            "the real target 5 with a vocabulary of 5": (logits, torch.full_like(targets, 5)),
            "the real target -100 with pad=0": (logits, one_below),
            "targets of dtype float32": (logits, targets.float()),
            "targets of dtype int32": (logits, targets.int()),
        },
    )


@hidden
@exercise("sequence_loss")
def test_loss_long(student, reference, draw):
    """Long sequences and large logits do not underflow or overflow."""
    for case, scale, steps in [("600 steps", 2.0, 600), ("logits of order 1000", 1000.0, 4)]:
        logits = draw.normal(2, steps, 7, scale=scale)
        targets = padded_targets(draw, [steps, steps // 2], 7)
        got, want = student.sequence_loss(logits, targets), reference.sequence_loss(logits, targets)
        expectations.close(got, want, what="the loss", case=case)


@hidden
@exercise("sequence_loss")
def test_loss_gradients(student, reference, draw):
    """The gradient is right, 0 at padding, and the inputs are left as they were."""
    targets = padded_targets(draw, [4, 1, 2], 5)
    logits = draw.normal(3, 4, 5).double()
    seen = student.observe("sequence_loss", logits, targets)
    wanted = reference.observe("sequence_loss", logits, targets)
    expectations.close(seen.value, wanted.value, what="the loss", case="float64")
    same_gradients(seen, wanted, {"0": "the logits"})
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# What the three searches share
# --------------------------------------------------------------------------------------------


def random_table(draw, sources=1, steps=4, vocabulary=6, scale=1.5):
    """A table of random logits: what is likely next depends on source, step and previous token."""
    return draw.normal(sources, steps, vocabulary, vocabulary, scale=scale).double()


def table_pair(student, reference, table):
    return pair(student, reference, "NextTokenTable", table=table)


def misleading_table():
    """Token 4 looks best, 0.6 to 0.4 for 5, but 5 goes on to EOS with 0.95 and 4 with 0.5."""
    table = torch.full((1, 2, 6, 6), -20.0, dtype=torch.float64)
    table[0, 0, BOS, [4, 5]] = torch.tensor([0.6, 0.4], dtype=torch.float64).log()
    table[0, 1, 4, [EOS, 4, 5]] = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    table[0, 1, 5, [EOS, 4]] = torch.tensor([0.95, 0.05], dtype=torch.float64).log()
    return table


def sources_of(*first):
    """Sources whose first tokens are given: a table needs no more."""
    return torch.tensor([[token] for token in first])


def remembering_state(draw):
    """A Seq2Seq in which it matters whose state is whose.

    A state is the mean of the one before and of the token just read, so that every choice depends
    on all earlier ones. No token is certain, but EOS is: likely after 5, 5 and unlikely elsewhere.
    """
    size = 6
    state = encoder_state(draw, "gru", 7, size, size, "encoder.")
    state = {name: 0.4 * value for name, value in state.items()}
    weight_ih = torch.zeros(3 * size, 2 * size)
    weight_ih[2 * size :, :size] = 3 * torch.eye(size)
    output = torch.cat([draw.normal(size, size, scale=0.4), draw.normal(size, size)], dim=1)
    output[EOS] = 0.0
    output[EOS, 5] = 40.0
    bias = torch.zeros(size)
    bias[EOS] = -25.0
    state |= {
        "decoder.embedding.weight": torch.eye(size),
        "decoder.cell.weight_ih": weight_ih,
        "decoder.cell.weight_hh": torch.zeros(3 * size, size),
        "decoder.cell.bias_ih": torch.zeros(3 * size),
        "decoder.cell.bias_hh": torch.zeros(3 * size),
        "decoder.output.weight": output,
        "decoder.output.bias": bias,
    }
    return {name: value.double() for name, value in state.items()}


def own_translator(student, draw, batch):
    """The student's own Seq2Seq, a source and a mask; a table while there is no Seq2Seq that runs.

    The searches must work with any translator, but answer for nobody's encoder.
    """
    options = translator_options(7, 6, 6, 6)
    state = remembering_state(draw)
    table = random_table(draw, sources=7)
    source = draw.integers(0, 7, batch, 4)
    mask = right_padded([1 + row % 4 for row in range(batch)], 4)
    try:
        model = student.module("Seq2Seq", state=state, dtype=torch.float64, **options)
        model.method("step", source[:, 0] * 0 + BOS, tuple(model.method("start", source, mask)))
    except (StudentError, Todo, TypeError):
        model = student.module("NextTokenTable", table=table)
    return model, source, mask


def log_probs(model, source, mask, targets):
    """What the model itself says of each next token along the rows of targets: (B, U, V).

    One source serves any number of rows.
    """
    times = len(targets) // len(source)
    state = tuple(part.repeat_interleave(times, 0) for part in model.method("start", source, mask))
    previous = torch.full_like(targets[:, 0], BOS)
    steps = []
    for step in range(targets.shape[1]):
        logits, state = model.method("step", previous, tuple(state))
        steps.append(logits.double().log_softmax(-1))
        previous = targets[:, step]
    return torch.stack(steps, dim=1)


# --------------------------------------------------------------------------------------------
# greedy_decode
# --------------------------------------------------------------------------------------------


def same_greedy(student, reference, table, source, case, **options):
    mine, theirs = table_pair(student, reference, table)
    expectations.close(
        student.greedy_decode(mine, source, **options),
        reference.greedy_decode(theirs, source, **options),
        what="the ids",
        case=case,
    )


def ending_table(draw, ends, steps=6, vocabulary=6):
    """A random table in which source s ends after ends[s] tokens, or never for None."""
    table = random_table(draw, len(ends), steps, vocabulary)
    table[:, :, :, EOS] = -20.0
    for source, end in enumerate(ends):
        if end is not None:
            table[source, end - 1, :, EOS] = 20.0
    return table


@exercise("greedy_decode")
def test_greedy_one_row(student, reference, draw):
    """From BOS, each step takes the likeliest token; EOS belongs to the result, BOS does not."""
    for end in (1, 2, 4):
        table = ending_table(draw, [end])
        same_greedy(student, reference, table, sources_of(0), f"one source, EOS at token {end}")
    table = misleading_table()
    same_greedy(student, reference, table, sources_of(0), "a table in which token 4 looks best")


@exercise("greedy_decode")
def test_greedy_max_length(student, reference, draw):
    """Without EOS the result has max_length tokens, and no more."""
    table = ending_table(draw, [None, 3])
    for length in (1, 2, 5):
        case = f"a source that never ends, max_length={length}"
        same_greedy(student, reference, table, sources_of(0), case, max_length=length)
    case = "a source that never ends, and no max_length given"
    same_greedy(student, reference, table, sources_of(0), case)
    case = "two sources of which one never ends, max_length=5"
    same_greedy(student, reference, table, sources_of(0, 1), case, max_length=5)


@exercise("greedy_decode")
def test_greedy_rows_end_apart(student, reference, draw):
    """A row that has produced EOS gets PAD, while the others go on; the longest one ends it all."""
    for ends in ([1, 3], [4, 2, 3], [2, 5, 1, 2, 3]):
        table = ending_table(draw, ends)
        # After EOS this table would go on with token 5, EOS again and so on.
        table[:, :, EOS, 5] += 9.0
        same_greedy(
            student,
            reference,
            table,
            sources_of(*range(len(ends))),
            f"sources that end after {ends} tokens",
        )


@exercise("greedy_decode")
def test_greedy_refusals(student, draw):
    """A max_length below 1 is refused with a ValueError."""
    mine = student.module("NextTokenTable", table=random_table(draw))
    refuses(
        lambda length: student.greedy_decode(mine, sources_of(0), max_length=length),
        {"max_length=0": (0,), "max_length=-3": (-3,)},
    )


@hidden
@exercise("greedy_decode")
def test_greedy_random_tables(student, reference, draw):
    """Any table, any batch; PAD, BOS and UNK are tokens like others until EOS is there."""
    for batch in (1, 4, 9):
        table = random_table(draw, 5, 7, 7)
        table[:, :, :, PAD] += 1.0
        source = draw.integers(0, 5, batch, 3)
        case = f"a random table, {sizes(B=batch)}"
        same_greedy(student, reference, table, source, case)
        same_greedy(student, reference, table, source, f"{case}, max_length=4", max_length=4)


@aspect
@hidden
@exercise("greedy_decode")
def test_greedy_any_translator(student, draw):
    """Every row follows the model's own argmax, with the source's mask, also for a Seq2Seq."""
    model, source, mask = own_translator(student, draw, 12)
    for case, given in [("a source without a mask", None), ("a source with a mask", mask)]:
        ids = student.greedy_decode(model, source, source_mask=given, max_length=7)
        expectations.tensor(ids, what="the ids")
        expectations.true(
            ids.ndim == 2 and len(ids) == 12 and 1 <= ids.shape[1] <= 7,
            f"the ids should have shape (12, at most 7), but have {tuple(ids.shape)} for {case}.",
        )
        expectations.true(
            ids.dtype == torch.int64 and bool(((ids >= 0) & (ids < 6)).all()),
            f"the ids should be int64 and lie in the vocabulary, for {case}.",
        )
        best = log_probs(model, source, given, ids).argmax(-1)  # (6, n)
        over = torch.cumsum(ids == EOS, dim=1) - (ids == EOS).long() > 0  # after the first EOS
        wanted = best.masked_fill(over, PAD)
        expectations.equal(ids, wanted, what="the ids", case=f"{case}, a Seq2Seq as the translator")
        expectations.true(
            ids.shape[1] == 7 or bool((ids == EOS).any(1).all()),
            f"the ids end after {ids.shape[1]} tokens, though max_length is 7 and not every row "
            f"has produced EOS, for {case}.",
        )


# --------------------------------------------------------------------------------------------
# exhaustive_search
# --------------------------------------------------------------------------------------------


def same_search(got, want, case=""):
    ids, log_prob = expectations.pair(got, what="the result (ids, log_prob)")
    same_list(ids, want[0], what="the ids", case=case)
    same_number(log_prob, want[1], what="the log-probability", case=case)


def same_exhaustive(student, reference, table, case, length, source=None):
    mine, theirs = table_pair(student, reference, table)
    source = sources_of(0) if source is None else source
    same_search(
        student.exhaustive_search(mine, source, length),
        reference.exhaustive_search(theirs, source, length),
        case,
    )


@exercise("exhaustive_search")
def test_exhaustive_beats_greedy(student, reference):
    """The best sequence need not begin with the likeliest token: 0.4 · 0.95 against 0.6 · 0.5."""
    table = misleading_table()
    same_exhaustive(student, reference, table, "0.4 · 0.95 against 0.6 · 0.5", 2)


@exercise("exhaustive_search")
def test_exhaustive_values(student, reference, draw):
    """The best of all sequences that end in EOS, and its log-probability."""
    for vocabulary, length in [(5, 1), (5, 2), (6, 3), (5, 4)]:
        table = random_table(draw, 1, length, vocabulary)
        table[:, :, :, EOS] -= 1.0
        table[0, length - 1, :, EOS] += 5.0
        case = f"V={vocabulary}, max_length={length}"
        same_exhaustive(student, reference, table, case, length)


@exercise("exhaustive_search")
def test_exhaustive_looks_at_all(student, reference, draw):
    """The best sequence may look worse than all others of its length until its very last token."""
    for vocabulary, length in [(5, 3), (6, 4)]:
        table = random_table(draw, 1, length, vocabulary, scale=0.5)
        rare = vocabulary - 1
        table[:, :, :, EOS] = -30.0
        table[:, length - 2, :, rare] = -8.0
        table[:, length - 1, rare, EOS] = 30.0
        case = f"V={vocabulary}, max_length={length}, EOS likely only after the rare token {rare}"
        same_exhaustive(student, reference, table, case, length)


@exercise("exhaustive_search")
def test_exhaustive_length_limit(student, reference, draw):
    """A sequence counts only if its EOS is among the first max_length tokens."""
    table = ending_table(draw, [3], steps=4, vocabulary=5)
    for length in (1, 2, 3, 4):
        case = f"a table that wants EOS at token 3, max_length={length}"
        same_exhaustive(student, reference, table, case, length)


@exercise("exhaustive_search")
def test_exhaustive_refusals(student, draw):
    """Several sources, a max_length below 1, and no sequence that ends are refused."""
    table = random_table(draw, 2)
    mine = student.module("NextTokenTable", table=table)
    endless = table.clone()
    endless[:, :, :, EOS] = -torch.inf
    never = student.module("NextTokenTable", table=endless)
    refuses(
        student.exhaustive_search,
        {
            "two sources": (mine, sources_of(0, 1), 2),
            "max_length=0": (mine, sources_of(0), 0),
            "max_length=-1": (mine, sources_of(0), -1),
            "a model that gives EOS the probability 0": (never, sources_of(0), 3),
        },
    )


@hidden
@exercise("exhaustive_search")
def test_exhaustive_impossible_tokens(student, reference, draw):
    """Logits of -inf close a token, and EOS may be open at one step only."""
    for length in (1, 3, 4):
        table = random_table(draw, 1, 4, 6)
        table[draw.uniform(*table.shape) < 0.5] = -torch.inf
        table[:, :, :, EOS] = -torch.inf
        table[:, :, :, 4] = draw.normal(1, 4, 6).double()
        table[:, length - 1, :, EOS] = -1.0
        case = f"EOS possible at token {length} only"
        same_exhaustive(student, reference, table, case, 4)


@hidden
@exercise("exhaustive_search")
def test_exhaustive_tiny_probabilities(student, reference, draw):
    """Log-probabilities are added, so that a probability that no float can hold does no harm."""
    table = random_table(draw, 1, 3, 5)
    table[:, :, :, EOS] -= 900.0
    same_exhaustive(student, reference, table, "an EOS of probability exp(-900)", 3)
    one_step = table[:, :1].clone()
    same_exhaustive(student, reference, one_step, "an EOS of probability exp(-900)", 1)


@hidden
@exercise("exhaustive_search")
def test_exhaustive_any_translator(student, draw):
    """By the model's own account nothing is more probable, with a mask too, for a Seq2Seq."""
    model, sources, masks = own_translator(student, draw, 4)
    every = torch.cartesian_prod(*[torch.arange(6)] * 3)  # (216, 3)
    ends = (every == EOS) & ((every == EOS).cumsum(-1) == 1)
    for number in range(4):
        source, mask = sources[number : number + 1], masks[number : number + 1]
        mask = mask if number % 2 else None
        got = student.exhaustive_search(model, source, 3, source_mask=mask)
        said = log_probs(model, source, mask, every).gather(-1, every.unsqueeze(-1))
        total = said.squeeze(-1).cumsum(-1)  # (216, 3)
        row, step = divmod(int(total.masked_fill(~ends, -torch.inf).argmax()), 3)
        wanted = (every[row, : step + 1].tolist(), float(total[row, step]))
        words = "without a mask" if mask is None else "with a mask"
        same_search(got, wanted, f"a source {words}, a Seq2Seq as the translator")


# --------------------------------------------------------------------------------------------
# beam_search
# --------------------------------------------------------------------------------------------


def same_hypotheses(got, want, case=""):
    """The same hypotheses in the same order, with the same scores."""
    expectations.true(
        isinstance(got, (list, tuple)),
        f"the result should be a list of pairs (ids, score), but is a "
        f"{expectations.type_name(got)}.",
    )
    for place, (found, wanted) in enumerate(zip(got, want, strict=False)):
        ids, score = expectations.pair(found, what=f"entry {place} of the result")
        same_list(ids, list(wanted[0]), what=f"the ids of hypothesis {place}", case=case)
        same_number(score, wanted[1], what=f"the score of hypothesis {place}", case=case)
    expectations.true(
        len(got) == len(want),
        f"the result should hold {len(want)} hypotheses, but holds {len(got)} for {case}.",
    )


def same_beam(student, reference, table, case, *arguments, **options):
    mine, theirs = table_pair(student, reference, table)
    same_hypotheses(
        student.beam_search(mine, sources_of(0), *arguments, **options),
        reference.beam_search(theirs, sources_of(0), *arguments, **options),
        case,
    )


@exercise("beam_search")
def test_beam_of_one(student, reference, draw):
    """A beam of 1 is greedy search: one hypothesis, with its log-probability."""
    for end, length in [(1, 1), (2, 4), (None, 3), (3, 3)]:
        table = ending_table(draw, [end])
        words = "never" if end is None else f"at token {end}"
        case = f"a beam of 1, EOS {words}, max_length={length}"
        same_beam(student, reference, table, case, 1, length)


@exercise("beam_search")
def test_beam_beats_greedy(student, reference):
    """A beam of 2 finds what greedy search misses: 0.4 · 0.95 against 0.6 · 0.5."""
    table = misleading_table()
    same_beam(student, reference, table, "0.4 · 0.95 against 0.6 · 0.5, a beam of 2", 2, 2)


@exercise("beam_search")
def test_beam_values(student, reference, draw):
    """Hypotheses, their order and their scores, for beams of several sizes."""
    for beam, length, vocabulary in [(2, 2, 5), (2, 3, 6), (3, 4, 6), (4, 5, 6), (6, 5, 5)]:
        table = random_table(draw, 1, length, vocabulary)
        table[:, 0, :, EOS] -= 3.0
        case = f"a beam of {beam}, max_length={length}, V={vocabulary}"
        same_beam(student, reference, table, case, beam, length)


@exercise("beam_search")
def test_beam_finished_leave(student, reference, draw):
    """What ends in EOS leaves the beam, which shrinks; what is live at the end joins as it is."""
    for beam, length in [(2, 2), (3, 3), (3, 5), (5, 4)]:
        table = random_table(draw, 1, length)
        table[:, :, :, EOS] += 1.5
        case = f"hypotheses that end early, a beam of {beam}, max_length={length}"
        same_beam(student, reference, table, case, beam, length)
        table = ending_table(draw, [None])
        case = f"no hypothesis that ends, a beam of {beam}, max_length={length}"
        same_beam(student, reference, table, case, beam, length)


@exercise("beam_search")
def test_beam_length_normalised(student, reference, draw):
    """The score is the log-probability divided by len(ids) ** alpha, EOS counted."""
    for alpha in (1.0, 0.6, 2.0):
        table = random_table(draw, 1, 5)
        table[:, :, :, EOS] += 1.5
        case = f"a beam of 4, alpha={alpha}"
        same_beam(student, reference, table, case, 4, 5, alpha=alpha)
    # exp(-1) at once against exp(-1.2) in three tokens: the order turns with alpha.
    table = torch.full((1, 3, 6, 6), -30.0, dtype=torch.float64)
    table[0, 0, BOS, [EOS, 4]] = torch.tensor([-1.0, -0.46], dtype=torch.float64)
    table[0, 1, 4, [5, 3]] = torch.tensor([-0.48, -0.97], dtype=torch.float64)
    table[0, 2, 5, [EOS, 4]] = torch.tensor([-0.3, -1.35], dtype=torch.float64)
    for alpha in (0.0, 1.0):
        case = f"a short and a long hypothesis, alpha={alpha}"
        same_beam(student, reference, table, case, 2, 3, alpha=alpha)


@exercise("beam_search")
def test_beam_refusals(student, draw):
    """A beam or max_length below 1, a negative alpha and several sources are refused."""
    mine = student.module("NextTokenTable", table=random_table(draw, 2))
    one = sources_of(0)
    refuses(
        student.beam_search,
        {
            "beam_size=0": (mine, one, 0, 3),
            "beam_size=-2": (mine, one, -2, 3),
            "max_length=0": (mine, one, 2, 0),
            "max_length=-1": (mine, one, 2, -1),
            "alpha=-0.5": (mine, one, 2, 3, None, -0.5),
            "two sources": (mine, sources_of(0, 1), 2, 3),
        },
    )


@exercise("beam_search")
def test_beam_any_translator(student, draw):
    """Each score is what a Seq2Seq itself says of the hypothesis: state and mask are its own."""
    model, sources, masks = own_translator(student, draw, 4)
    for number in range(4):
        source, mask = sources[number : number + 1], masks[number : number + 1]
        mask = mask if number % 2 == 0 else None
        found = student.beam_search(model, source, 4, 5, source_mask=mask)
        expectations.true(
            isinstance(found, (list, tuple)) and len(found) == 4,
            "the result should be a list of 4 hypotheses for a beam of 4.",
        )
        pairs = [expectations.pair(entry, what="a hypothesis") for entry in found]
        for ids, _ in pairs:
            expectations.true(
                isinstance(ids, (list, tuple))
                and 1 <= len(ids) <= 5
                and all(type(token) is int and 0 <= token < 6 for token in ids),
                "the ids of a hypothesis should be a list of 1 to max_length ints.",
            )
        padded = torch.tensor([[*ids, *[PAD] * (5 - len(ids))] for ids, _ in pairs])
        said = log_probs(model, source, mask, padded).gather(-1, padded.unsqueeze(-1))
        words = "without a mask" if mask is None else "with a mask"
        for (ids, score), steps in zip(pairs, said.squeeze(-1), strict=True):
            wanted = float(steps[: len(ids)].sum())
            case = f"a source {words}, a Seq2Seq as the translator"
            same_number(score, wanted, what=f"the score of {list(ids)}", case=case)
        scores = [score for _, score in pairs]
        expectations.true(
            scores == sorted(scores, reverse=True),
            "the hypotheses should stand best first.",
        )


@hidden
@exercise("beam_search")
def test_beam_wide(student, reference, draw):
    """A beam with room for everything finds all there is, the best first; alpha as well."""
    for vocabulary, length in [(5, 1), (5, 2), (5, 3)]:
        table = random_table(draw, 1, length, vocabulary)
        for alpha in (0.0, 1.0):
            case = f"a beam of 150, V={vocabulary}, max_length={length}, alpha={alpha}"
            same_beam(student, reference, table, case, 150, length, alpha=alpha)


@hidden
@exercise("beam_search")
def test_beam_impossible_tokens(student, reference, draw):
    """What has the probability 0 is dropped, so that fewer than beam_size may be left."""
    for beam, length in [(3, 1), (4, 3), (8, 4)]:
        table = random_table(draw, 1, 4, 6)
        table[:, :, :, [PAD, BOS, UNK]] = -torch.inf
        table[:, 0, :, 5] = -torch.inf
        table[:, 2, 4, :] = -torch.inf
        table[:, 2, 4, EOS] = 0.0
        case = f"tokens of probability 0, a beam of {beam}, max_length={length}"
        same_beam(student, reference, table, case, beam, length)


@hidden
@exercise("beam_search")
def test_beam_tiny_probabilities(student, reference, draw):
    """Log-probabilities are added, so that long or improbable hypotheses do not vanish."""
    table = random_table(draw, 1, 40, 6)
    table[:, :, :, EOS] -= 30.0
    same_beam(student, reference, table, "40 tokens, a beam of 3", 3, 40)
    table = random_table(draw, 1, 2, 5)
    table[:, :, :, 3:] -= 900.0
    table[:, :, :, EOS] -= 901.0
    table[:, :, :, BOS] -= 900.0
    same_beam(student, reference, table, "tokens of probability exp(-900), a beam of 9", 9, 2)
