"""Graders of `seq2seq-text`: words, ids, padding."""

from __future__ import annotations

import torch

from autograder.graders.common import refuses
from autograder.graders.seq2seq.common import BOS, EOS, PAD, UNK, same_list
from autograder.judging import expectations
from autograder.judging.grader_marks import Mistake, exercise, hidden, promises

SPECIALS = ["<pad>", "<bos>", "<eos>", "<unk>"]


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


# --------------------------------------------------------------------------------------------
# build_vocabulary
# --------------------------------------------------------------------------------------------


@promises("order")
@exercise("build_vocabulary")
def test_vocabulary_counts(student, reference, draw):
    """The four special tokens come first, then the words, the most frequent first."""
    cases = [[["b", "a", "b"]], [["you", "see", "me"], ["me", "see"], ["me"]]]
    counts = draw.permutation(6).tolist()
    text = [
        word for word, count in zip("uvwxyz", counts, strict=True) for _ in range(3 * count + 1)
    ]
    cases.append([text[start::5] for start in range(5)])
    for number, sentences in enumerate(cases):
        mine = student.build_vocabulary(sentences)
        if number == 1 and isinstance(mine, list) and "b" in mine:
            raise Mistake(
                f'the vocabulary of {sentences} holds "b", a word of the call before.',
                "vocabulary_extends_specials",
            )
        same_list(
            mine,
            reference.build_vocabulary(sentences),
            what="the vocabulary",
            case=str(sentences) if len(sentences) < 4 else "61 to 96 words",
        )


@promises("order")
@exercise("build_vocabulary")
def test_vocabulary_ties(student, reference, draw):
    """Words that are equally frequent stand in alphabetical order, by code point."""
    for sentences in [
        [["b", "a"]],
        [["cat", "ant", "cow"], ["bee", "ant", "cow"]],
        [["ähre", "zoo", "apple", "Zug", "10", "9"]],
        [["b", "", "a"], [" ", "0", ""], ["<b>", "<PAD>", "pad"]],  # any string is a token
        [[word] for word in sentence(draw, 8, "hgfedcba")],
    ]:
        same_list(
            student.build_vocabulary(sentences),
            reference.build_vocabulary(sentences),
            what="the vocabulary",
            case=str(sentences),
        )


@promises("min-count")
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


@promises("max-size")
@exercise("build_vocabulary")
def test_vocabulary_max_size(student, reference, draw):
    """max_size is the size of the whole vocabulary, the special tokens included."""
    sentences = [["y", "z", "y", "x"], sentence(draw, 9, "defg")]
    for size in (4, 5, 7, 100):
        same_list(
            student.build_vocabulary(sentences, max_size=size),
            reference.build_vocabulary(sentences, max_size=size),
            what="the vocabulary",
            case=f"max_size={size}",
        )


@promises("bad-input")
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
@promises("specials-once")
@exercise("build_vocabulary")
def test_vocabulary_specials_in_the_text(student, reference, draw):
    """A special token that stands in the text is not entered twice, nor does it take an entry."""
    sentences = [["<unk>", "a", "<unk>"], ["<pad>", "b", "b", "<eos>", "<bos>"]]
    for size in (None, 5, 6):
        seen = student.observe("build_vocabulary", sentences, grad=False, max_size=size)
        expectations.unchanged(seen)
        same_list(
            seen.value,
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


@promises("ids")
@exercise("encode")
def test_encode_known(student, reference, draw):
    """Each token becomes its index in the vocabulary."""
    for tokens in [["cat"], ["the", "cat", "sat"], sentence(draw, 9, WORDS[4:])]:
        same_list(
            student.encode(tokens, WORDS),
            reference.encode(tokens, WORDS),
            what="the ids",
            case=str(tokens),
        )
        expectations.unchanged(student.observe("encode", tokens, WORDS, grad=False))


@promises("ids")
@exercise("encode")
def test_encode_unknown(student, reference, draw):
    """A token that is not in the vocabulary becomes UNK, and the vocabulary stays as it is."""
    for tokens in [
        ["dog"],
        ["the", "Cat", " cat"],
        sentence(draw, 8, ["mat", "dog", "on", "", "matt"]),
    ]:
        seen = student.observe("encode", tokens, WORDS, grad=False)
        expectations.unchanged(seen)
        same_list(
            seen.value,
            reference.encode(tokens, WORDS),
            what="the ids",
            case=str(tokens),
        )


@promises("bos-and-eos")
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


@promises("specials-first")
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
@promises("bos-and-eos")
@exercise("encode")
def test_encode_empty(student, reference):
    """No tokens give no ids but the marks that were asked for; others get them once more."""
    for bos, eos in [(False, False), (True, False), (False, True), (True, True)]:
        for tokens in ([], ["<bos>", "cat", "<eos>"]):
            same_list(
                student.encode(tokens, WORDS, bos, eos),
                reference.encode(tokens, WORDS, bos, eos),
                what="the ids",
                case=f"the tokens {tokens}, add_bos={bos} and add_eos={eos}",
            )


@hidden
@exercise("encode")
def test_encode_long(student, reference, draw):
    """Vocabularies and sentences of any length work, words in any order."""
    words = [f"w{index}" for index in draw.permutation(40).tolist()]
    tokens = [words[29], words[30], words[0], *sentence(draw, 50, words)]
    for case, known in [("", words[:30]), (" after another one", words[10:])]:
        vocabulary = [*SPECIALS, *known]
        same_list(
            student.encode(tokens, vocabulary),
            reference.encode(tokens, vocabulary),
            what="the ids",
            case=f"53 tokens and a vocabulary of 34{case}",
        )
    tokens = ["cat", *SPECIALS, "dog"]
    for vocabulary in (WORDS, SPECIALS):
        same_list(
            student.encode(tokens, vocabulary),
            reference.encode(tokens, vocabulary),
            what="the ids",
            case=f"{tokens} and a vocabulary of {len(vocabulary)}",
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
        case=f"the ids {ids}" + ("" if vocabulary is WORDS else f" and {vocabulary}"),
    )


@promises("dropped")
@exercise("decode")
def test_decode_words(student, reference, draw):
    """Each id becomes the word at its index; an unknown word stays visible as <unk>."""
    for ids in [[5], [4, 5, 6], [4, UNK, 9], [UNK, 4, UNK], draw.integers(3, 10, 8).tolist()]:
        same_text(student, reference, ids)
    same_text(student, reference, [5, 4, 7, 6, 8], [*SPECIALS, "", "a", " ", "<b>", "<pad"])


@promises("until-eos")
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


@promises("dropped")
@exercise("decode")
def test_decode_drops_marks(student, reference, draw):
    """PAD and BOS are dropped wherever they stand, and the text goes on after them."""
    for ids in [[4, PAD, BOS, 5], [BOS, 4, 5], [4, PAD, PAD], [BOS, 6, UNK, EOS, PAD], [PAD]]:
        same_text(student, reference, ids)


@promises("unknown-id")
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
    same_text(student, reference, [UNK, BOS, UNK], SPECIALS)


# --------------------------------------------------------------------------------------------
# pad_to_length
# --------------------------------------------------------------------------------------------


@promises("padded-right")
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


@promises("cut")
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
    given = [[2**40 + 1, 5], [-100, 6]]  # too large for int32 and float32, and no id but an int
    same_padded(
        student.pad_to_length(given, 3), reference.pad_to_length(given, 3), case=f"{given} to 3"
    )
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


@promises("bad-input")
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
            "the id 4.0, a float": ([[5], [6, 4.0]], 2),
            'the id "4", a string': ([["4"]], 2),
            "the id True, a bool": ([[4, True]], 2),
            "the id False, a bool": ([[4, False]], 2),
            "the id None": ([[4, None]], 2),
            "a float among the ids that are cut off": ([[4, 5, 6.5]], 2),
        },
    )


@hidden
@promises("mask-by-length")
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
@promises("empty-row")
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


@promises("longest")
@exercise("pad_batch")
def test_pad_batch_values(student, reference, draw):
    """Every row is as long as the longest sequence, padded on the right."""
    for lengths in ([2], [3], [2, 1, 6, 4]):
        given = sequences(draw, lengths)
        same_padded(student.pad_batch(given), reference.pad_batch(given), case=f"lengths {lengths}")
        expectations.unchanged(student.observe("pad_batch", given, grad=False))


@promises("empty-row")
@exercise("pad_batch")
def test_pad_batch_beside_empty(student, reference, draw):
    """An empty sequence beside others is a row of padding."""
    for lengths in ([4, 0], [0, 0, 3], [0, 1]):
        given = sequences(draw, lengths)
        same_padded(student.pad_batch(given), reference.pad_batch(given), case=f"lengths {lengths}")


@promises("bad-input")
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
            "the id True, a bool": ([[4, True]],),
            "the id False, a bool": ([[4, False]],),
            'the id "4", a string': ([["4"]],),
            "the id None": ([[4, None]],),
        },
    )


@hidden
@exercise("pad_batch")
def test_pad_batch_real_zeros(student, reference, draw):
    """An id of 0 inside a sequence is real, also at its end."""
    for given in ([[PAD, PAD]], [[5, 8, PAD], [6]], [[PAD, 7, PAD], [PAD, PAD], [8, 9, 4]]):
        same_padded(student.pad_batch(given), reference.pad_batch(given), case=str(given))


@hidden
@exercise("pad_batch")
def test_pad_batch_large(student, reference, draw):
    """A batch whose longest is very long, and one of many sequences of all lengths."""
    for lengths, case in (
        ([2, 1200], "lengths [2, 1200]"),
        (draw.integers(0, 30, 40).tolist(), "40 sequences"),
    ):
        given = sequences(draw, lengths, low=0)
        same_padded(student.pad_batch(given), reference.pad_batch(given), case=case)


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


@promises("starts", "mask")
@exercise("sliding_windows")
def test_windows_that_fit(student, reference, draw):
    """Windows start every `stride` ids; the last one ends with the sequence."""
    same_windows(student, reference, draw, [(2, 2, 1), (5, 3, 2), (9, 5, 2), (6, 3, 1)])


@promises("last-window", "mask")
@exercise("sliding_windows")
def test_windows_with_a_rest(student, reference, draw):
    """A last window that reaches beyond the end is padded on the right; no id is lost."""
    same_windows(student, reference, draw, [(4, 3, 2), (5, 4, 3), (11, 4, 3), (8, 5, 2)])


@promises("starts")
@exercise("sliding_windows")
def test_windows_that_touch(student, reference, draw):
    """With a stride of the length, windows touch and share no id."""
    same_windows(student, reference, draw, [(1, 1, 1), (4, 2, 2), (3, 2, 2), (8, 3, 3)])


@exercise("sliding_windows")
def test_windows_short_sequence(student, reference, draw):
    """A sequence that fits into one window gives one window, padded if need be."""
    same_windows(student, reference, draw, [(1, 3, 1), (2, 5, 3), (4, 6, 5)])


@promises("bad-input")
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
@promises("last-window")
@exercise("sliding_windows")
def test_windows_lose_nothing(student, draw):
    """The windows hold every id, however many, and what overlaps is where it should be."""
    sizes = [(11, 4, 3), (12, 4, 3), (13, 4, 3), (20, 7, 7), (17, 9, 1), (1200, 2, 1)]
    for total, length, stride in sizes:
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
    for length, stride in [(4, 3), (5, 2), (7, 2)]:
        same_padded(
            student.sliding_windows(given, length, stride),
            reference.sliding_windows(given, length, stride),
            case=f"{given}, length={length} and stride={stride}",
        )
