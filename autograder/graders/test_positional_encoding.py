"""Graders of the chapter `positional_encoding`: a plain pytest file, one group for each exercise.

Tests reach the code to judge through `student` only. Token lists and texts are short, and rich
enough that the usual mistakes (another order of merges, another clipping, another layout) give
different answers in the first case that fails. Inside a test the cases run from the smallest to
the largest.

Sines of large angles are compared with a tolerance that grows with the position, since an angle
held in float32 is right to one part in ten million and not better. Dropout is never compared
value by value; every statistical bound has a false-alarm rate of at most 1e-9.
"""

from __future__ import annotations

import torch

from autograder.graders.common import pair, same_gradients, same_parameters, same_results, sizes
from autograder.judging import expectations
from autograder.judging.grader_marks import exercise, hidden

# --------------------------------------------------------------------------------------------
# What the tests share
# --------------------------------------------------------------------------------------------


def near(actual, expected, largest=0, what="the table", case=""):
    """Like `expectations.close` for sines and cosines of the positions up to `largest`.

    An angle computed in float32 is off by up to 2e-7 of itself, and so is its sine.
    """
    expectations.shape(actual, expected.shape, what=what, case=case)
    if actual.dtype == expected.dtype and actual.is_floating_point():
        gap = (actual.double() - expected.double()).abs()
        if bool((gap <= 2e-5 + 2e-7 * largest).all()):
            return
    expectations.close(actual, expected, what=what, case=case)
    # Close enough for `close`, which allows no more than the line above: never reached.


def same_ids(actual, expected, what="the ids", case=""):
    """A list of Python integers; a tuple will do."""
    expectations.true(
        isinstance(actual, (list, tuple)),
        f"{what} should be a list of integers, but the result is a "
        f"{expectations.type_name(actual)}.",
    )
    odd = [value for value in actual if not isinstance(value, int) or isinstance(value, bool)]
    expectations.true(
        not odd,
        f"{what} should be Python integers, but one is a "
        f"{expectations.type_name((odd or [0])[0])}.",
    )
    expectations.equal(list(actual), list(expected), what=what, case=case)


def same_pairs(actual, expected, what="the merges", case=""):
    """A list of pairs of integers; each pair may be a tuple or a list."""
    expectations.true(
        isinstance(actual, (list, tuple)),
        f"{what} should be a list of pairs, but the result is a {expectations.type_name(actual)}.",
    )
    for entry in actual:
        good = isinstance(entry, (list, tuple)) and [type(value) for value in entry] == [int, int]
        expectations.true(
            good, f"{what} should be pairs of integers, but one of them is {entry!r}."
        )
    got = [tuple(entry) for entry in actual]
    expectations.equal(got, [tuple(entry) for entry in expected], what=what, case=case)


def quoted(text: str) -> str:
    """A text as a student would type it, shortened."""
    shown = repr(text)
    return shown if len(shown) <= 60 else shown[:57] + "...'"


def word(draw, letters, longest):
    """A random word of 1 to `longest` of the letters."""
    return "".join(draw.choice(letters) for _ in range(draw.choice(range(1, longest + 1))))


def text_of(draw, letters, words, longest=4, spaces=" "):
    """Random words with one of `spaces` between them."""
    text = word(draw, letters, longest)
    for _ in range(words - 1):
        text += draw.choice(spaces) + word(draw, letters, longest)
    return text


def merges_of(draw, letters, count):
    """`count` different merges over the bytes of `letters`, each of ids that exist by then."""
    known = sorted(set("".join(letters).encode()))
    found: list[tuple[int, int]] = []
    while len(found) < count:
        merge = (draw.choice(known), draw.choice(known))
        if merge not in found:
            known.append(256 + len(found))
            found.append(merge)
    return found


# --------------------------------------------------------------------------------------------
# merge_pair
# --------------------------------------------------------------------------------------------


@exercise("merge_pair")
def test_merge_pair_values(student, reference, draw):
    """Every occurrence of the pair becomes the new id, and everything else stays in its place."""
    cases = [
        ([3, 1, 2, 4, 1, 2, 1], (1, 2), 9),
        ([1, 2], (1, 2), 3),
        ([256, 97, 256, 97, 97], (256, 97), 257),
        ([*draw.integers(0, 3, 14).tolist(), 0, 1], (0, 1), 300),
    ]
    for ids, both, new in cases:
        same_ids(
            student.merge_pair(ids, both, new),
            reference.merge_pair(ids, both, new),
            case=f"ids={ids}, pair={both}, new_id={new}",
        )
        expectations.unchanged(student.observe("merge_pair", ids, both, new, grad=False))


@exercise("merge_pair")
def test_merge_pair_overlaps(student, reference):
    """Occurrences that overlap are taken from the left: (a, a) in aaa gives [new, a]."""
    for count in (3, 2, 4, 5, 7):
        ids = [7] * count
        same_ids(
            student.merge_pair(ids, (7, 7), 8),
            reference.merge_pair(ids, (7, 7), 8),
            case=f"ids={ids}, pair=(7, 7), new_id=8",
        )


@exercise("merge_pair")
def test_merge_pair_edges(student, reference):
    """The pair is found at both ends; reversed, apart, alone or in an empty list it is not."""
    for ids in ([5, 1, 2], [1, 2, 5], [1, 2, 1], [2, 1, 2], [2, 1], [1, 5, 2], [1], []):
        same_ids(
            student.merge_pair(ids, (1, 2), 6),
            reference.merge_pair(ids, (1, 2), 6),
            case=f"ids={ids}, pair=(1, 2), new_id=6",
        )


@hidden
@exercise("merge_pair")
def test_merge_pair_long(student, reference, draw):
    """A new id is never merged again, and ids are numbers, not digits; long lists work too."""
    for ids, both, new in [
        ([11, 2, 1, 22, 1, 2, 21, 2], (1, 2), 9),
        ([1, 2, 2, 1, 2], (1, 2), 1),
        ([1, 1, 2, 1, 2], (1, 2), 2),
        ([1, 1, 1, 1, 1], (1, 1), 1),
    ]:
        same_ids(
            student.merge_pair(ids, both, new),
            reference.merge_pair(ids, both, new),
            case=f"ids={ids}, pair={both}, new_id={new}",
        )
    for both in [(0, 1), (1, 1), (1, 0), (2, 2), (1, 2)]:
        ids = draw.integers(0, 3, 60).tolist() + list(both)
        same_ids(
            student.merge_pair(ids, both, 256),
            reference.merge_pair(ids, both, 256),
            case=f"60 random ids and the pair {both}",
        )


# --------------------------------------------------------------------------------------------
# train_bpe
# --------------------------------------------------------------------------------------------


def same_training(student, reference, text, count):
    same_pairs(
        student.train_bpe(text, count),
        reference.train_bpe(text, count),
        case=f"text={quoted(text)}, num_merges={count}",
    )


# Ties can hardly be avoided in long texts. Those of the first tests have none, so that a wrong
# choice among equals costs the tests that are about it, and not all.


@exercise("train_bpe")
def test_train_bpe_values(student, reference):
    """Each step merges the most frequent pair, and later merges build on earlier ones."""
    for text, count in [("abcab abcab cab", 3), ("ca cc cbcb ccc ccac abbc bbbbb cccbb ca c", 4)]:
        same_training(student, reference, text, count)


@exercise("train_bpe")
def test_train_bpe_ties(student, reference):
    """Among pairs that are equally frequent the smaller one, as a tuple of ints, is merged."""
    for text, count in [("bdzace", 1), ("za yb xc", 2), ("bca bca", 2), ("ba ca da ba ca da", 4)]:
        same_training(student, reference, text, count)


@exercise("train_bpe")
def test_train_bpe_within_chunks(student, reference):
    """A space opens a new chunk; no pair is counted and nothing is merged across the border."""
    for text, count in [
        ("ab ab abb aa a", 2),
        ("a  b\nab aaa aaa aa", 3),
        (" ab\n ab b \n\n", 3),
        ("\t\ta\t\t", 2),
    ]:
        same_training(student, reference, text, count)


@exercise("train_bpe")
def test_train_bpe_counts(student, reference):
    """A chunk counts as often as it occurs, and aaa holds the pair (a, a) twice."""
    for text, count in [("aba aaa ab aaa bba ba", 1), ("bbbb ba aaba bbca ba ccb", 3)]:
        same_training(student, reference, text, count)


@exercise("train_bpe")
def test_train_bpe_stops(student, reference):
    """Training ends early when no pair is left, even if each pair occurs only once until then."""
    for text, count in [("ab", 5), ("a", 3), ("", 2), ("abab", 0), ("abab", 9)]:
        same_training(student, reference, text, count)


@exercise("train_bpe")
def test_train_bpe_bytes(student, reference):
    """Tokens start as the bytes of UTF-8, so é is two of them."""
    for text, count in [("é", 1), ("aéé éé aaé a aa", 2), ("éé aaa ü aüü éaü a üaé", 4)]:
        same_training(student, reference, text, count)


@exercise("train_bpe")
def test_train_bpe_refuses(student):
    """A negative number of merges raises a ValueError."""
    for count in (-1, -7):
        expectations.raises(
            "ValueError",
            lambda count=count: student.train_bpe("abab", count),
            what=f"num_merges={count}",
        )


@hidden
@exercise("train_bpe")
def test_train_bpe_other_texts(student, reference, draw):
    """Other random texts, with repeated letters and all kinds of white space, are learned right."""
    for letters, count in [("ab", 12), ("abcé", 12), ("a", 4), ("你好a🙂", 8)]:
        text = text_of(draw, letters, 40, longest=6, spaces=[" ", " ", "  ", "\n", "\t "])
        same_training(student, reference, text, count)


@hidden
@exercise("train_bpe")
def test_train_bpe_to_the_end(student, reference, draw):
    """Asked for more merges than there are, it joins every chunk into one token and stops."""
    for words in (2, 6):
        text = text_of(draw, "abcd", words)
        same_training(student, reference, text, 200)


# --------------------------------------------------------------------------------------------
# bpe_encode and bpe_decode
# --------------------------------------------------------------------------------------------


def same_encoding(student, reference, text, merges):
    same_ids(
        student.bpe_encode(text, merges),
        reference.bpe_encode(text, merges),
        case=f"text={quoted(text)}, merges={merges if len(merges) < 5 else len(merges)}",
    )


A, B, C, D, SPACE = 97, 98, 99, 100, 32


@exercise("bpe_encode")
def test_bpe_encode_values(student, reference, draw):
    """Merges that are present are applied, later ones to the results of earlier ones."""
    for text, merges in [
        ("abcab", [(A, B)]),
        ("abcabd ab", [(A, B), (256, C), (SPACE, A), (257, 256)]),
        (text_of(draw, "abc", 12), merges_of(draw, "abc", 8)),
    ]:
        same_encoding(student, reference, text, merges)
        expectations.unchanged(student.observe("bpe_encode", text, merges, grad=False))


@exercise("bpe_encode")
def test_bpe_encode_order(student, reference):
    """The merge learned first goes first, wherever in the text it stands."""
    for text, merges in [
        ("abcbcd", [(C, D), (B, C), (A, B)]),
        ("abcd", [(B, C), (A, B), (C, D)]),
        ("abcbc", [(C, B), (B, C), (A, B)]),
        ("abab", [(B, A), (A, B), (256, B)]),
    ]:
        same_encoding(student, reference, text, merges)


@exercise("bpe_encode")
def test_bpe_encode_chunks(student, reference):
    """No merge reaches across a chunk's border, not even one that would fit there."""
    for text, merges in [
        ("ab ab", [(B, SPACE), (A, B)]),
        ("a  b\n\nab", [(A, SPACE), (SPACE, SPACE), (10, A), (10, 10)]),
        (" ab  ", [(SPACE, SPACE), (SPACE, A), (257, B)]),
    ]:
        same_encoding(student, reference, text, merges)


@exercise("bpe_encode")
def test_bpe_encode_overlaps(student, reference):
    """Occurrences that overlap are merged from the left, and all of them are."""
    for text, merges in [
        ("aaa", [(A, A)]),
        ("aaaaaaa", [(A, A), (256, A)]),
        ("abababa", [(A, B), (B, A), (256, 256)]),
    ]:
        same_encoding(student, reference, text, merges)


@exercise("bpe_encode")
def test_bpe_encode_bytes(student, reference):
    """The text is taken as its UTF-8 bytes; without merges these are the ids."""
    for text, merges in [
        ("é", []),
        ("aé 你", [(0xC3, 0xA9)]),
        ("🙂é", [(0xF0, 0x9F), (256, 0x99)]),
    ]:
        same_encoding(student, reference, text, merges)
    same_encoding(student, reference, "", [(A, B)])


@hidden
@exercise("bpe_encode")
def test_bpe_encode_drawn_merges(student, reference, draw):
    """Merges drawn at random, of any order and depth, are applied as they were learned."""
    for letters, count in [("ab", 6), ("abc", 15), ("abcd", 30)]:
        merges = merges_of(draw, [letters, " "], count)
        for _ in range(3):
            text = text_of(draw, letters, 12, longest=9)
            same_encoding(student, reference, text, merges)


@hidden
@exercise("bpe_encode")
def test_bpe_encode_learned_merges(student, reference, draw):
    """Merges learned from one text encode another, with symbols that the first did not have."""
    merges = reference.train_bpe(text_of(draw, "abcé", 60, longest=6), 25)
    merges = [tuple(merge) for merge in merges]
    for text in (text_of(draw, "abcé", 20), text_of(draw, "abéx你", 20, spaces=[" ", "\n ", "\t"])):
        same_encoding(student, reference, text, merges)


def same_text(student, reference, ids, merges, case=""):
    expectations.equal(
        student.bpe_decode(ids, merges),
        reference.bpe_decode(ids, merges),
        what="the text",
        case=case or f"ids={ids}, merges={merges}",
    )


@exercise("bpe_decode")
def test_bpe_decode_values(student, reference, draw):
    """Each id stands for its bytes: below 256 for itself, above for those of its two parts."""
    for ids, merges in [
        ([A, B, SPACE, C], []),
        ([256, C], [(A, B)]),
        ([257, SPACE, 256, 258], [(A, B), (256, C), (SPACE, 257)]),
        ([0, A, 10], [(A, B)]),
        ([], [(A, B)]),
    ]:
        same_text(student, reference, ids, merges)
        expectations.unchanged(student.observe("bpe_decode", ids, merges, grad=False))


@exercise("bpe_decode")
def test_bpe_decode_characters_across_tokens(student, reference):
    """The bytes of one character may stand in several tokens: join all bytes, then decode."""
    for ids, merges in [
        ([0xC3, 0xA9], []),
        ([256, 0xA0, A], [(0xE4, 0xBD)]),
        ([0xF0, 0x9F, 256, A], [(0x99, 0x82)]),
    ]:
        same_text(student, reference, ids, merges)


@exercise("bpe_decode")
def test_bpe_decode_broken_bytes(student, reference):
    """Bytes that are no UTF-8 become the replacement character, and nothing is raised."""
    for ids, merges in [([A, 0xFF, B], []), ([0xE4, 0xBD], []), ([A, 256], [(0xC3, SPACE)])]:
        same_text(student, reference, ids, merges)


@exercise("bpe_decode")
def test_bpe_decode_refuses(student):
    """An id below 0 or beyond the last merge raises a ValueError."""
    for ids, merges in [
        ([A, 256], []),
        ([258], [(A, B), (256, C)]),
        ([-1, A], [(A, B)]),
        ([999], []),
    ]:
        expectations.raises(
            "ValueError",
            lambda ids=ids, merges=merges: student.bpe_decode(ids, merges),
            what=f"ids={ids} with {len(merges)} merges",
        )


@hidden
@exercise("bpe_decode")
def test_bpe_decode_round_trip(student, reference, draw):
    """What was encoded comes back, whatever the script and the white space."""
    for letters in ("ab", "aé你🙂", "אבגñß"):
        text = text_of(draw, letters, 30, longest=6, spaces=[" ", "  ", "\n", "\u00a0", "\t"])
        merges = [tuple(merge) for merge in reference.train_bpe(text, 20)]
        ids = reference.bpe_encode(text, merges)
        expectations.equal(
            student.bpe_decode(ids, merges), text, what="the text", case=f"the text {quoted(text)}"
        )


@hidden
@exercise("bpe_decode")
def test_bpe_decode_deep_merges(student, reference, draw):
    """Tokens made of tokens made of tokens are taken apart in the right order."""
    merges = [(A, B)] + [(256 + k, A + k % 5) for k in range(12)] + [(D, 262), (268, 269)]
    ids = [*draw.integers(256, 256 + len(merges), 6).tolist(), 270, 255]
    same_text(student, reference, ids, merges, case="tokens of up to 20 bytes")
    merges = merges_of(draw, "abcd", 12)
    ids = [*draw.integers(256, 268, 8).tolist(), 267]
    same_text(student, reference, ids, merges, case="merges drawn at random")


# --------------------------------------------------------------------------------------------
# wordpiece_encode
# --------------------------------------------------------------------------------------------

PIECES = ["un", "##aff", "##able", "##a", "##b", "##ff", "a", "u", "##n", "able", "play", "##ing"]


def same_pieces(student, reference, word, vocabulary, **options):
    named = "".join(f", {name}={value!r}" for name, value in options.items())
    seen = student.observe("wordpiece_encode", word, vocabulary, grad=False, **options)
    expectations.unchanged(seen)
    actual = seen.value
    expectations.true(
        isinstance(actual, (list, tuple)),
        f"the pieces should be a list of strings, but the result is a "
        f"{expectations.type_name(actual)}.",
    )
    expectations.equal(
        list(actual),
        list(reference.wordpiece_encode(word, vocabulary, **options)),
        what="the pieces",
        case=f"word={quoted(word)}, vocabulary={vocabulary}{named}",
    )


@exercise("wordpiece_encode")
def test_wordpiece_longest_first(student, reference):
    """The longest piece that fits goes first; the pieces after it carry the prefix."""
    for given in ("unaffable", "playing", "abab", "aun", "u"):
        same_pieces(student, reference, given, PIECES)


@exercise("wordpiece_encode")
def test_wordpiece_unknown(student, reference):
    """If some rest has no piece, the whole word is unknown, and nothing is tried a second time."""
    for given, vocabulary in [
        ("unx", PIECES),
        ("abcd", ["ab", "a", "##bcd", "##c"]),
        ("xun", PIECES),
        ("ingable", PIECES),
        ("ing", PIECES),
        ("playun", PIECES),
    ]:
        same_pieces(student, reference, given, vocabulary)


@exercise("wordpiece_encode")
def test_wordpiece_too_long(student, reference):
    """A word longer than max_chars is unknown; one of just this length is not."""
    for length, most in [(4, 3), (3, 3), (2, 3)]:
        same_pieces(student, reference, "a" * length, ["a", "##a"], max_chars=most)
    for length in (100, 101):
        same_pieces(student, reference, "a" * length, ["a", "##a", "##" + "a" * 50])


@exercise("wordpiece_encode")
def test_wordpiece_refuses(student):
    """An empty word raises a ValueError."""
    expectations.raises(
        "ValueError", lambda: student.wordpiece_encode("", ["a", "##a"]), what="word=''"
    )


@hidden
@exercise("wordpiece_encode")
def test_wordpiece_own_marks(student, reference):
    """Other prefixes and unknown tokens are used; max_chars counts characters; case matters."""
    pieces = ["un", "_able", "##able", "_b", "able"]
    same_pieces(student, reference, "unable", pieces, prefix="_")
    same_pieces(student, reference, "unx", pieces, unknown="<unk>", prefix="_")
    same_pieces(student, reference, "unable", ["un", "able"], prefix="")
    same_pieces(student, reference, "ünöb", ["ü", "@@nö", "@@b", "@@n"], prefix="@@")
    same_pieces(student, reference, "abc", ["ab", "##c"], unknown="?", max_chars=2)
    same_pieces(student, reference, "ééé", ["é", "##é"], max_chars=3)
    same_pieces(student, reference, "Una", ["Un", "un", "##a"])
    same_pieces(student, reference, "UNa", ["Un", "un", "##a"])


@hidden
@exercise("wordpiece_encode")
def test_wordpiece_random_words(student, reference, draw):
    """Random vocabularies cut random words as the reference does."""
    for _ in range(4):
        pieces = {word(draw, "ab", 4) for _ in range(6)} | {
            "##" + word(draw, "ab", 3) for _ in "abcde"
        }
        vocabulary = [*sorted(pieces), "a", "b", "##a", "##ab"]
        for given in (word(draw, "ab", 4), word(draw, "ab", 9), word(draw, "abb", 12)):
            same_pieces(student, reference, given, vocabulary)


# --------------------------------------------------------------------------------------------
# TokenEmbedding
# --------------------------------------------------------------------------------------------


def embedding_pair(student, reference, draw, vocab_size, d_model, dtype=None):
    return pair(
        student,
        reference,
        "TokenEmbedding",
        {"table.weight": draw.normal(vocab_size, d_model)},
        dtype=dtype,
        vocab_size=vocab_size,
        d_model=d_model,
    )


@exercise("TokenEmbedding")
def test_embedding_parameters(student):
    """There is one parameter, `table.weight`, with a row for each id of the vocabulary."""
    same_parameters(
        student.module("TokenEmbedding", vocab_size=7, d_model=3), {"table.weight": (7, 3)}
    )


@exercise("TokenEmbedding")
def test_embedding_values(student, reference, draw):
    """Each id becomes its row of the table, multiplied by √d_model."""
    for batch, length, vocab_size, d_model in [(1, 2, 6, 3), (1, 1, 1, 1), (2, 4, 5, 8)]:
        mine, theirs = embedding_pair(student, reference, draw, vocab_size, d_model)
        ids = draw.integers(0, vocab_size, batch, length)
        case = sizes(B=batch, T=length, vocab_size=vocab_size, D=d_model)
        expectations.close(mine(ids), theirs(ids), what="the embeddings", case=case)


@exercise("TokenEmbedding")
def test_embedding_refuses_ids(student, draw):
    """Ids outside the vocabulary, and ids that are no integers, raise a ValueError."""
    mine = student.module("TokenEmbedding", vocab_size=4, d_model=2)
    for ids in ([[1, 9]], [[0, 4]], [[-1, 2]], [[1, 2], [3, 5]], [[0.0, 1.0]], [[True, False]]):
        expectations.raises(
            "ValueError", lambda ids=ids: mine(torch.tensor(ids)), what=f"ids={ids}"
        )


@exercise("TokenEmbedding")
def test_embedding_refuses_sizes(student):
    """A width or a vocabulary of 0 raises a ValueError as soon as the module is made."""
    for vocab_size, d_model in [(4, 0), (0, 4), (4, -1), (-2, 4)]:
        expectations.raises(
            "ValueError",
            lambda vocab_size=vocab_size, d_model=d_model: student.module(
                "TokenEmbedding", vocab_size=vocab_size, d_model=d_model
            ),
            what=f"vocab_size={vocab_size}, d_model={d_model}",
        )


@exercise("TokenEmbedding")
def test_embedding_refuses_empty(student):
    """A batch without sequences or without tokens raises a ValueError."""
    mine = student.module("TokenEmbedding", vocab_size=4, d_model=2)
    for shape in [(0, 3), (2, 0)]:
        expectations.raises(
            "ValueError",
            lambda shape=shape: mine(torch.zeros(shape, dtype=torch.int64)),
            what=f"ids of shape {shape}",
        )


@hidden
@exercise("TokenEmbedding")
def test_embedding_every_row(student, reference, draw):
    """Every id of the vocabulary has its row, in float64 and for ids that are not contiguous."""
    # A width of 4, whose root is exact, lets float64 be asked of a scale held in float32 too.
    mine, theirs = embedding_pair(student, reference, draw, 9, 4, dtype=torch.float64)
    ids = torch.arange(9).view(3, 3).t()
    expectations.close(mine(ids), theirs(ids), what="the embeddings", case="all ids, float64")
    ids = draw.integers(0, 9, 1, 6).expand(3, 6)
    seen = mine.observe(ids, grad=False)
    expectations.close(seen.value, theirs(ids), what="the embeddings", case="expanded ids")
    expectations.unchanged(seen)


@hidden
@exercise("TokenEmbedding")
def test_embedding_gradients(student, reference, draw):
    """The gradient of each row is the scaled sum over the places where its id stands."""
    mine, theirs = embedding_pair(student, reference, draw, 5, 4, dtype=torch.float64)
    ids = torch.tensor([[0, 2, 0], [4, 2, 0]])
    same_gradients(
        mine.observe(ids), theirs.observe(ids), {"parameter table.weight": "table.weight"}
    )


# --------------------------------------------------------------------------------------------
# binary_code
# --------------------------------------------------------------------------------------------


@exercise("binary_code")
def test_binary_code_values(student, reference):
    """Column k is the bit of value 2^k: column 0 alternates fastest."""
    for positions, bits in [([1, 6], 3), ([0, 1], 1), (list(range(8)), 3), ([5, 0, 12, 9], 4)]:
        positions = torch.tensor(positions)
        expectations.close(
            student.binary_code(positions, bits),
            reference.binary_code(positions, bits),
            what="the code",
            case=f"positions={positions.tolist()}, bits={bits}",
        )


@exercise("binary_code")
def test_binary_code_periods(student):
    """Column k repeats after 2^(k+1) positions and not before, and no two codes are equal."""
    bits = 4
    positions = torch.arange(2**bits)
    seen = student.observe("binary_code", positions, bits, grad=False)
    code = seen.value
    expectations.shape(code, (2**bits, bits), what="the code")
    for k in range(bits):
        column, period = code[:, k], 2 ** (k + 1)
        expectations.true(
            bool((column[: period // 2] == 0).all() and (column[period // 2 : period] == 1).all()),
            f"Column {k} should be 0 for {period // 2} positions and then 1 for as many.",
        )
        expectations.true(
            bool((column[period:] == column[:-period]).all()),
            f"Column {k} should repeat after {period} positions.",
        )
    expectations.true(
        len(set(map(tuple, code.tolist()))) == 2**bits, "Two positions have one code."
    )
    expectations.unchanged(seen)


@exercise("binary_code")
def test_binary_code_refuses(student):
    """Positions that are negative, too large or no integers, and bits < 1, raise a ValueError."""
    for positions, bits in [
        (torch.tensor([1, 8]), 3),
        (torch.tensor([0, -1]), 3),
        (torch.tensor([2, 0, 1, 9]), 3),
        (torch.tensor([3, 2, 1, -1]), 3),
        (torch.tensor([1.0, 2.0]), 3),
        (torch.tensor([True, False]), 3),
        (torch.tensor([0]), 0),
        (torch.tensor([0]), -2),
    ]:
        expectations.raises(
            "ValueError",
            lambda positions=positions, bits=bits: student.binary_code(positions, bits),
            what=f"positions={positions.tolist()} with {bits} bits",
        )


@hidden
@exercise("binary_code")
def test_binary_code_large(student, reference, draw):
    """Large positions, in any order, are written exactly, with leading zeros where needed."""
    for bits in (10, 20, 30):
        positions = draw.integers(0, 2**bits, 9)
        positions[3], positions[4] = 2**bits - 1, 0
        expectations.close(
            student.binary_code(positions, bits),
            reference.binary_code(positions, bits),
            what="the code",
            case=f"random positions below 2^{bits}",
        )


# --------------------------------------------------------------------------------------------
# angular_frequencies, position_vector, sinusoidal_table
# --------------------------------------------------------------------------------------------


@exercise("angular_frequencies")
def test_frequencies_values(student, reference):
    """Frequency k is 10000^(-2k/d_model), the first of them 1."""
    for d_model in (6, 2, 4, 8, 32):
        expectations.close(
            student.angular_frequencies(d_model),
            reference.angular_frequencies(d_model),
            what="the frequencies",
            case=f"d_model={d_model}",
        )


@exercise("angular_frequencies")
def test_frequencies_base(student, reference):
    """Another base gives other frequencies, for an odd width as well: there are ceil(d/2)."""
    for d_model, base in [(8, 100.0), (6, 2.0), (7, 10000.0), (1, 10000.0), (5, 1e6), (3, 10.0)]:
        expectations.close(
            student.angular_frequencies(d_model, base),
            reference.angular_frequencies(d_model, base),
            what="the frequencies",
            case=f"d_model={d_model}, base={base}",
        )


@exercise("angular_frequencies")
def test_frequencies_refuse(student):
    """A width below 1 or of no integer type, and a base of 1 or less, raise a ValueError."""
    for d_model, base in [
        (0, 10000.0),
        (-4, 10000.0),
        (4.0, 10000.0),
        (4, 1.0),
        (4, 0.5),
        (4, -10.0),
    ]:
        expectations.raises(
            "ValueError",
            lambda d_model=d_model, base=base: student.angular_frequencies(d_model, base),
            what=f"d_model={d_model}, base={base}",
        )


@hidden
@exercise("angular_frequencies")
def test_frequencies_ratio(student):
    """The frequencies form a geometric sequence that starts at 1, however wide the vector."""
    for d_model in (64, 511, 1024):
        frequencies = student.angular_frequencies(d_model)
        case = f"d_model={d_model}"
        expectations.shape(frequencies, ((d_model + 1) // 2,), what="the frequencies", case=case)
        expectations.true(
            frequencies.dtype == torch.float32,
            f"the frequencies should be float32, but are {frequencies.dtype}.",
        )
        values = frequencies.double()
        expectations.true(
            abs(float(values[0]) - 1) < 1e-6, f"The first frequency should be 1 for {case}."
        )
        ratio = 10000 ** (-2 / d_model)
        steps = values[1:] / values[:-1]
        expectations.true(
            bool(((steps - ratio).abs() < 1e-5).all()),
            f"Each frequency should be {ratio:.5f} times the one before it for {case}.",
        )
        last = 10000 ** (-2 * (len(values) - 1) / d_model)
        expectations.true(
            abs(float(values[-1]) / last - 1) < 1e-4,
            f"The last frequency should be {last:.3e} for {case}.",
        )


def same_vector(actual, expected, position, case):
    """A list of Python floats, as exact as float32 frequencies allow."""
    expectations.true(
        isinstance(actual, (list, tuple)),
        f"the vector should be a list of floats, but the result is a "
        f"{expectations.type_name(actual)}.",
    )
    odd = [value for value in actual if not isinstance(value, float)]
    expectations.true(
        not odd,
        f"the vector should hold Python floats, but one entry is a "
        f"{expectations.type_name((odd or [0])[0])}{' for ' + case if case else ''}.",
    )
    near(
        torch.tensor(actual, dtype=torch.float64),
        torch.tensor(expected, dtype=torch.float64),
        position,
        what="the vector",
        case=case,
    )


@exercise("position_vector")
def test_vector_values(student, reference):
    """Dimension 2i holds the sine, dimension 2i + 1 the cosine of one and the same angle."""
    for position, d_model in [(3, 4), (1, 2), (2, 6), (0, 4), (7, 8)]:
        same_vector(
            student.position_vector(position, d_model),
            reference.position_vector(position, d_model),
            position,
            case=f"position={position}, d_model={d_model}",
        )


@exercise("position_vector")
def test_vector_odd_width_and_base(student, reference):
    """An odd width ends with a sine; another base changes every frequency but the first."""
    for position, d_model, base in [(2, 5, 10000.0), (3, 1, 10000.0), (5, 6, 100.0), (4, 7, 50.0)]:
        same_vector(
            student.position_vector(position, d_model, base),
            reference.position_vector(position, d_model, base),
            position,
            case=f"position={position}, d_model={d_model}, base={base}",
        )


@exercise("position_vector")
def test_vector_refuses(student):
    """A position or width that is too small or no integer raises a ValueError."""
    for position, d_model in [(-1, 4), (1.5, 4), (2.0, 4), (1, 0), (1, -2), (1, 4.0)]:
        expectations.raises(
            "ValueError",
            lambda position=position, d_model=d_model: student.position_vector(position, d_model),
            what=f"position={position}, d_model={d_model}",
        )


@hidden
@exercise("position_vector")
def test_vector_far_away(student, reference, draw):
    """Positions in the hundreds and thousands, and wide vectors, are right too."""
    for position, d_model in [(draw.choice(range(20, 90)), 16), (611, 33), (4321, 64)]:
        same_vector(
            student.position_vector(position, d_model),
            reference.position_vector(position, d_model),
            position,
            case=f"position={position}, d_model={d_model}",
        )


@exercise("sinusoidal_table")
def test_table_values(student, reference):
    """Row p is the vector of position p: sines in the even columns, cosines in the odd ones."""
    for length, d_model in [(3, 4), (1, 2), (5, 6), (12, 8)]:
        near(
            student.sinusoidal_table(length, d_model),
            reference.sinusoidal_table(length, d_model),
            length,
            case=sizes(length=length, d_model=d_model),
        )


@exercise("sinusoidal_table")
def test_table_odd_width(student, reference):
    """With an odd width the last column is a sine, of a frequency of its own."""
    for length, d_model in [(3, 3), (4, 7), (3, 1)]:
        near(
            student.sinusoidal_table(length, d_model),
            reference.sinusoidal_table(length, d_model),
            length,
            case=sizes(length=length, d_model=d_model),
        )


@exercise("sinusoidal_table")
def test_table_base(student, reference):
    """The base sets the range of the frequencies."""
    for length, d_model, base in [(4, 6, 100.0), (6, 4, 10.0), (3, 5, 1e6), (5, 6, 1.5)]:
        near(
            student.sinusoidal_table(length, d_model, base),
            reference.sinusoidal_table(length, d_model, base),
            length,
            case=sizes(length=length, d_model=d_model, base=base),
        )


@exercise("sinusoidal_table")
def test_table_refuses(student):
    """A length or a width below 1, and a base of 1 or less, raise a ValueError."""
    for length, d_model, base in [
        (0, 4, 10000.0),
        (-3, 4, 10000.0),
        (3, 0, 10000.0),
        (3, -2, 10000.0),
        (3, 4, 1.0),
        (3, 4, 0.5),
        (3, 4, 0.0),
        (3, 4, -2.0),
    ]:
        expectations.raises(
            "ValueError",
            lambda length=length, d_model=d_model, base=base: student.sinusoidal_table(
                length, d_model, base
            ),
            what=f"length={length}, d_model={d_model}, base={base}",
        )


@hidden
@exercise("sinusoidal_table")
def test_table_long(student, reference):
    """Position 5000 is right to a thousandth, and the first row is (0, 1, 0, 1, ...)."""
    for length, d_model in [(40, 33), (5001, 16)]:
        near(
            student.sinusoidal_table(length, d_model),
            reference.sinusoidal_table(length, d_model),
            length,
            case=sizes(length=length, d_model=d_model),
        )
    first = student.sinusoidal_table(2, 512)[0]
    expectations.close(
        first, torch.tensor([0.0, 1.0] * 256), what="the first row", case="d_model=512"
    )


@hidden
@exercise("sinusoidal_table")
def test_table_products(student):
    """Sine and cosine of a pair belong to one angle, and products depend on distances alone."""
    table = student.sinusoidal_table(20, 10)
    expectations.shape(table, (20, 10), what="the table")
    squares = table[:, 0::2] ** 2 + table[:, 1::2] ** 2
    expectations.close(squares, torch.ones(20, 5), what="sin² + cos² of each pair")
    products = table @ table.t()
    for distance in (1, 3, 7):
        seen = products.diagonal(distance)
        expectations.true(
            bool(((seen - seen[0]).abs() < 1e-4).all()),
            f"The product of two rows should depend on their distance only, not as at {distance}.",
        )


# --------------------------------------------------------------------------------------------
# PositionalEncoding
# --------------------------------------------------------------------------------------------


@exercise("PositionalEncoding")
def test_encoding_values(student, reference, draw):
    """Row t of the table is added to token t of every example, whatever the batch size."""
    for batch, length, d_model in [(2, 4, 6), (1, 3, 4), (1, 1, 2), (3, 3, 5), (5, 2, 4)]:
        mine, theirs = pair(student, reference, "PositionalEncoding", d_model=d_model, max_length=8)
        x = draw.normal(batch, length, d_model)
        seen = mine.observe(x, grad=False)
        case = sizes(B=batch, T=length, D=d_model)
        near(seen.value, theirs(x), 8, what="the sum", case=case)
        expectations.unchanged(seen)


@exercise("PositionalEncoding")
def test_encoding_buffer(student):
    """The table is a buffer that is not saved: no parameters, and an empty state dict."""
    mine = student.module("PositionalEncoding", d_model=4, max_length=9)
    parameters, buffers, state = mine.parameters(), mine.buffers(), mine.state()
    expectations.true(
        not parameters, f"There should be no parameters; yours: {', '.join(sorted(parameters))}."
    )
    expectations.true(
        "table" in buffers,
        "There is no buffer called table; register it with self.register_buffer.",
    )
    expectations.true(
        tuple(buffers["table"]) == (9, 4),
        f"The buffer table has the shape {tuple(buffers['table'])}; it should be (9, 4), "
        "which is (max_length, d_model).",
    )
    rows = student.module("PositionalEncoding", d_model=2).buffers().get("table", [0])[0]
    expectations.true(rows == 5000, f"By default the table should have 5000 rows, but has {rows}.")
    expectations.true(
        not state,
        f"The state dict should be empty, but holds {', '.join(sorted(state))}; "
        "register the buffer with persistent=False.",
    )


@exercise("PositionalEncoding")
def test_encoding_dropout(student, reference, draw):
    """In train mode, dropout acts on the sum of embedding and position; in eval mode not at all."""
    p = 0.3
    mine, theirs = pair(
        student, reference, "PositionalEncoding", d_model=10, max_length=25, dropout=p
    )
    x = draw.normal(4, 24, 10)
    full = theirs(x)
    near(mine(x), full, 25, what="the sum", case=f"dropout={p} in eval mode")
    output = mine.train()(x)
    expectations.shape(output, full.shape, what="the sum")
    dropped = output == 0
    expectations.rate(
        int(dropped.sum()),
        dropped.numel(),
        p,
        what=f"the share of entries of the sum that are 0 at dropout={p}",
        false_alarm=2e-10,
    )
    near(
        torch.where(dropped, 0.0, output),
        torch.where(dropped, 0.0, full / (1 - p)),
        25,
        what="what is kept of the sum",
        case=f"dropout={p}",
    )
    # Two independent decisions agree with probability p² + (1-p)²; the pairs below are disjoint.
    for what, left, right in [
        ("neighbouring features", dropped[..., 0::2], dropped[..., 1::2]),
        ("neighbouring tokens", dropped[:, 0::2], dropped[:, 1::2]),
        ("two examples", dropped[0::2], dropped[1::2]),
    ]:
        expectations.rate(
            int((left == right).sum()),
            left.numel(),
            p**2 + (1 - p) ** 2,
            what=f"how often the decisions for {what} agree at dropout={p}",
            false_alarm=2e-10,
        )


@exercise("PositionalEncoding")
def test_encoding_refuses(student, draw):
    """A longer sequence, another width, and a table without rows or columns raise a ValueError."""
    for d_model, most in [(0, 3), (4, 0), (-2, 3), (4, -1)]:
        expectations.raises(
            "ValueError",
            lambda d_model=d_model, most=most: student.module(
                "PositionalEncoding", d_model=d_model, max_length=most
            ),
            what=f"d_model={d_model}, max_length={most}",
        )
    mine = student.module("PositionalEncoding", d_model=4, max_length=3)
    for shape in [(2, 4, 4), (1, 9, 4), (2, 3, 5), (2, 3, 1), (1, 2, 2)]:
        expectations.raises(
            "ValueError",
            lambda shape=shape: mine(draw.normal(*shape)),
            what=f"x of shape {shape} with d_model=4, max_length=3",
        )


@hidden
@exercise("PositionalEncoding")
def test_encoding_full_length(student, reference, draw):
    """A sequence of exactly max_length works, with a batch larger than that and an odd width."""
    mine, theirs = pair(student, reference, "PositionalEncoding", d_model=7, max_length=4)
    x = draw.normal(6, 4, 7)
    near(mine(x), theirs(x), 4, what="the sum", case="B=6, T=max_length=4, D=7")
    x = draw.normal(1, 3, 7).expand(2, 3, 7)
    near(mine(x), theirs(x), 4, what="the sum", case="an expanded input")
    mine, theirs = pair(student, reference, "PositionalEncoding", d_model=2)
    x = draw.normal(1, 70, 2)
    near(mine(x), theirs(x), 70, what="the sum", case="T=70 and the default max_length")
    mine = student.module("PositionalEncoding", d_model=2, max_length=3, dropout=0.0)
    x = draw.normal(2, 3, 2)
    near(mine.train()(x), mine.eval()(x), 3, what="the sum", case="dropout=0 in train mode")


@hidden
@exercise("PositionalEncoding")
def test_encoding_dtype(student, reference, draw):
    """The sum has the type of x, whatever the table's, and the default is no dropout."""
    for dtype in (torch.float64, torch.bfloat16):
        mine, theirs = pair(
            student, reference, "PositionalEncoding", dtype=dtype, d_model=4, max_length=6
        )
        x = draw.normal(2, 5, 4).to(dtype)
        got, want = mine.train()(x), theirs(x)
        expectations.true(
            isinstance(got, torch.Tensor) and got.dtype == dtype,
            f"After .to({dtype}) the sum should have this dtype; does the table follow the module?",
        )
        if dtype == torch.float64:
            near(got, want, 6, what="the sum", case="float64")
        else:
            expectations.close(got, want, what="the sum", case="bfloat16")
    for dtype, given in [(torch.float64, torch.float32), (torch.float32, torch.bfloat16)]:
        mine = student.module("PositionalEncoding", dtype=dtype, d_model=4, max_length=6)
        got = mine(draw.normal(2, 5, 4).to(given))
        expectations.true(
            isinstance(got, torch.Tensor) and got.dtype == given,
            f"For an x of {given} the sum should have this dtype, also after .to({dtype}).",
        )


@hidden
@exercise("PositionalEncoding")
def test_encoding_gradients(student, reference, draw):
    """The gradient passes to x unchanged; x itself is left as it was."""
    mine, theirs = pair(student, reference, "PositionalEncoding", d_model=4, max_length=6)
    x = draw.normal(2, 3, 4)
    seen, wanted = mine.observe(x), theirs.observe(x)
    near(seen.value, wanted.value, 6, what="the sum", case="B=2, T=3, D=4")
    same_gradients(seen, wanted, {"0": "x"})
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# half_and_half_table and interleaved_to_half
# --------------------------------------------------------------------------------------------


@exercise("half_and_half_table")
def test_half_table_values(student, reference):
    """All sines stand in the first half, all cosines in the second, in the same order."""
    for length, d_model in [(3, 6), (2, 2), (4, 4), (10, 8)]:
        near(
            student.half_and_half_table(length, d_model),
            reference.half_and_half_table(length, d_model),
            length,
            case=sizes(length=length, d_model=d_model),
        )


@exercise("half_and_half_table")
def test_half_table_base(student, reference):
    """The base sets the range of the frequencies here too."""
    for length, d_model, base in [(4, 6, 100.0), (3, 4, 1e6)]:
        near(
            student.half_and_half_table(length, d_model, base),
            reference.half_and_half_table(length, d_model, base),
            length,
            case=sizes(length=length, d_model=d_model, base=base),
        )


@exercise("half_and_half_table")
def test_half_table_refuses(student):
    """A width that is odd or below 2, no rows, and a base of 1 or less raise a ValueError."""
    for length, d_model, base in [
        (3, 5, 10000.0),
        (3, 1, 10000.0),
        (0, 4, 10000.0),
        (-1, 4, 10000.0),
        (3, 0, 10000.0),
        (3, -2, 10000.0),
        (3, 4, 1.0),
        (3, 4, 0.5),
    ]:
        expectations.raises(
            "ValueError",
            lambda length=length, d_model=d_model, base=base: student.half_and_half_table(
                length, d_model, base
            ),
            what=f"length={length}, d_model={d_model}, base={base}",
        )


@hidden
@exercise("half_and_half_table")
def test_half_table_long(student, reference):
    """Longer and wider tables agree with the interleaved one, column by column."""
    for length, d_model in [(60, 24), (2000, 10)]:
        table = student.half_and_half_table(length, d_model)
        expectations.shape(table, (length, d_model), what="the table")
        whole = reference.sinusoidal_table(length, d_model)
        half = d_model // 2
        case = sizes(length=length, d_model=d_model)
        near(table[:, :half], whole[:, 0::2], length, what="the first half", case=case)
        near(table[:, half:], whole[:, 1::2], length, what="the second half", case=case)


@exercise("interleaved_to_half")
def test_columns_values(student, reference):
    """The even columns come first, then the odd ones."""
    for d_model in (6, 2, 4, 8):
        expectations.close(
            student.interleaved_to_half(d_model),
            reference.interleaved_to_half(d_model),
            what="the columns",
            case=f"d_model={d_model}",
        )


@exercise("interleaved_to_half")
def test_columns_reorder_the_table(student, reference):
    """sinusoidal_table(n, d)[:, columns] is half_and_half_table(n, d)."""
    for d_model in (8, 12):
        columns = student.interleaved_to_half(d_model)
        expectations.shape(columns, (d_model,), what="the columns")
        expectations.true(
            columns.dtype == torch.int64 and sorted(columns.tolist()) == list(range(d_model)),
            "The columns should be the int64 numbers 0 to d_model - 1, each once.",
        )
        expectations.close(
            reference.sinusoidal_table(6, d_model)[:, columns],
            reference.half_and_half_table(6, d_model),
            what="the reordered table",
            case=f"d_model={d_model}",
        )


@exercise("interleaved_to_half")
def test_columns_refuse(student):
    """A width that is odd or below 2 raises a ValueError."""
    for d_model in (5, 1, 0, -2, -3):
        expectations.raises(
            "ValueError",
            lambda d_model=d_model: student.interleaved_to_half(d_model),
            what=f"d_model={d_model}",
        )


@hidden
@exercise("interleaved_to_half")
def test_columns_wide(student, reference, draw):
    """Wide vectors are reordered in the same way."""
    for d_model in (10, 2 * draw.choice(range(7, 40)), 512):
        expectations.close(
            student.interleaved_to_half(d_model),
            reference.interleaved_to_half(d_model),
            what="the columns",
            case=f"d_model={d_model}",
        )


# --------------------------------------------------------------------------------------------
# offset_rotation
# --------------------------------------------------------------------------------------------


@exercise("offset_rotation")
def test_rotation_values(student, reference):
    """Each pair has a block [[cos, sin], [-sin, cos]] of its own angle; all else is 0."""
    for offset, d_model in [(1, 4), (2, 2), (0, 4), (3, 6)]:
        near(
            student.offset_rotation(offset, d_model),
            reference.offset_rotation(offset, d_model),
            offset,
            what="the matrix",
            case=sizes(offset=offset, d_model=d_model),
        )


@exercise("offset_rotation")
def test_rotation_moves_every_position(student, reference):
    """One matrix takes the vector of every position p to that of p + offset."""
    for offset, d_model in [(2, 4), (5, 8)]:
        matrix = student.offset_rotation(offset, d_model)
        expectations.shape(matrix, (d_model, d_model), what="the matrix")
        table = reference.sinusoidal_table(12, d_model)
        near(
            table[:-offset] @ matrix.t(),
            table[offset:],
            12,
            what="the moved rows",
            case=sizes(offset=offset, d_model=d_model),
        )


@exercise("offset_rotation")
def test_rotation_negative_and_base(student, reference):
    """A negative offset leads back, and another base gives other angles."""
    for offset, d_model, base in [(-1, 4, 10000.0), (-6, 6, 10000.0), (2, 6, 100.0), (-3, 4, 1.5)]:
        near(
            student.offset_rotation(offset, d_model, base),
            reference.offset_rotation(offset, d_model, base),
            abs(offset),
            what="the matrix",
            case=sizes(offset=offset, d_model=d_model, base=base),
        )


@exercise("offset_rotation")
def test_rotation_refuses(student):
    """A width that is odd or below 2, an offset that is no integer, a base of 1: ValueError."""
    for offset, d_model, base in [
        (1, 3, 10000.0),
        (0, 1, 10000.0),
        (1.5, 4, 10000.0),
        (2.0, 4, 10000.0),
        (1, 0, 10000.0),
        (1, -2, 10000.0),
        (1, 4, 1.0),
        (1, 4, 0.5),
    ]:
        expectations.raises(
            "ValueError",
            lambda offset=offset, d_model=d_model, base=base: student.offset_rotation(
                offset, d_model, base
            ),
            what=f"offset={offset}, d_model={d_model}, base={base}",
        )


@hidden
@exercise("offset_rotation")
def test_rotation_composes(student, reference, draw):
    """Two offsets one after the other are their sum, there and back is nothing at all."""
    d_model, (there, more) = 8, draw.integers(1, 12, 2).tolist()
    one = student.offset_rotation(there, d_model)
    two = student.offset_rotation(more, d_model)
    back = student.offset_rotation(-there, d_model)
    for matrix in (one, two, back):
        expectations.shape(matrix, (d_model, d_model), what="the matrix")
    near(
        one,
        reference.offset_rotation(there, d_model),
        12,
        what="the matrix",
        case=f"offset={there}",
    )
    near(
        one @ two,
        reference.offset_rotation(there + more, d_model),
        24,
        what="the product of two matrices",
        case=f"offsets {there} and {more}",
    )
    near(back @ one, torch.eye(d_model), 12, what="there and back", case=f"offset={there}")


@hidden
@exercise("offset_rotation")
def test_rotation_far(student, reference, draw):
    """Large offsets and wide vectors work."""
    for offset, d_model in [(draw.choice(range(100, 999)), 32), (-2500, 12)]:
        near(
            student.offset_rotation(offset, d_model),
            reference.offset_rotation(offset, d_model),
            abs(offset),
            what="the matrix",
            case=sizes(offset=offset, d_model=d_model),
        )


# --------------------------------------------------------------------------------------------
# LearnedPositions
# --------------------------------------------------------------------------------------------


def learned_pair(student, reference, draw, max_length, d_model, dtype=None):
    return pair(
        student,
        reference,
        "LearnedPositions",
        {"table.weight": draw.normal(max_length, d_model)},
        dtype=dtype,
        max_length=max_length,
        d_model=d_model,
    )


@exercise("LearnedPositions")
def test_learned_parameters(student):
    """There is one parameter, `table.weight`, with a row for each position."""
    same_parameters(
        student.module("LearnedPositions", max_length=7, d_model=3), {"table.weight": (7, 3)}
    )


@exercise("LearnedPositions")
def test_learned_values(student, reference, draw):
    """Row t of the table, counted from its beginning, is added to token t of every example."""
    for batch, length, max_length, d_model in [
        (2, 3, 5, 4),
        (1, 2, 6, 3),
        (1, 1, 1, 1),
        (4, 4, 4, 2),
    ]:
        mine, theirs = learned_pair(student, reference, draw, max_length, d_model)
        x = draw.normal(batch, length, d_model)
        case = sizes(B=batch, T=length, max_length=max_length, D=d_model)
        seen = mine.observe(x, grad=False)
        expectations.close(seen.value, theirs(x), what="the sum", case=case)
        expectations.unchanged(seen)


@exercise("LearnedPositions")
def test_learned_refuses(student, draw):
    """A sequence longer than the table, or of another width, raises a ValueError."""
    mine = student.module("LearnedPositions", max_length=3, d_model=4)
    for shape in [(2, 4, 4), (1, 9, 4), (2, 3, 5), (2, 3, 1), (1, 2, 2)]:
        expectations.raises(
            "ValueError",
            lambda shape=shape: mine(draw.normal(*shape)),
            what=f"x of shape {shape} with max_length=3, d_model=4",
        )


@hidden
@exercise("LearnedPositions")
def test_learned_large_batch(student, reference, draw):
    """A batch larger than the table, strided inputs and train mode make no difference."""
    mine, theirs = learned_pair(student, reference, draw, 4, 5, dtype=torch.float64)
    x = draw.normal(7, 5, 3).double().transpose(1, 2)
    expectations.close(
        mine.train()(x), theirs(x), what="the sum", case="B=7, max_length=4, float64"
    )


@hidden
@exercise("LearnedPositions")
def test_learned_gradients(student, reference, draw):
    """The gradient reaches x and the rows that were used, and x is left as it was."""
    mine, theirs = learned_pair(student, reference, draw, 6, 3, dtype=torch.float64)
    x = draw.normal(2, 4, 3).double()
    seen, wanted = mine.observe(x), theirs.observe(x)
    same_gradients(seen, wanted, {"0": "x", "parameter table.weight": "table.weight"})
    expectations.unchanged(seen)


# --------------------------------------------------------------------------------------------
# relative_indices
# --------------------------------------------------------------------------------------------


@exercise("relative_indices")
def test_indices_values(student, reference):
    """Entry [i, j] is j - i, cut to -k..k and moved up by k: row i looks to the right by j - i."""
    for length, most in [(4, 2), (3, 1), (2, 3), (1, 2), (6, 3)]:
        expectations.close(
            student.relative_indices(length, most),
            reference.relative_indices(length, most),
            what="the indices",
            case=sizes(length=length, max_distance=most),
        )


@exercise("relative_indices")
def test_indices_extremes(student, reference):
    """max_distance=0 leaves one index for all; a large one cuts nothing."""
    for length, most in [(3, 9), (3, 0), (1, 0), (5, 4), (5, 5)]:
        expectations.close(
            student.relative_indices(length, most),
            reference.relative_indices(length, most),
            what="the indices",
            case=sizes(length=length, max_distance=most),
        )


@exercise("relative_indices")
def test_indices_refuse(student):
    """A length below 1 and a negative max_distance raise a ValueError."""
    for length, most in [(0, 2), (-1, 2), (3, -1), (3, -4)]:
        expectations.raises(
            "ValueError",
            lambda length=length, most=most: student.relative_indices(length, most),
            what=f"length={length}, max_distance={most}",
        )


@hidden
@exercise("relative_indices")
def test_indices_long(student, reference, draw):
    """Longer sequences with other distances give indices from 0 to 2k."""
    for length, most in [(9, draw.choice([1, 2, 3])), (draw.choice(range(20, 40)), 8), (30, 29)]:
        expectations.close(
            student.relative_indices(length, most),
            reference.relative_indices(length, most),
            what="the indices",
            case=sizes(length=length, max_distance=most),
        )


# --------------------------------------------------------------------------------------------
# RelativeSelfAttention
# --------------------------------------------------------------------------------------------

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
OUTPUT = ("output", "weights")


def relative_state(draw, d_model, heads, most):
    """Projections whose rows have unit variance, biases and offsets that are hard to overlook."""
    state = {}
    for name in PROJECTIONS:
        state[f"{name}.weight"] = draw.normal(d_model, d_model, scale=d_model**-0.5)
        state[f"{name}.bias"] = draw.normal(d_model, scale=0.5)
    for name in ("key_offsets", "value_offsets"):
        state[name] = draw.normal(2 * most + 1, d_model // heads)
    return state


def relative_pair(student, reference, draw, d_model, heads, most, dtype=None):
    return pair(
        student,
        reference,
        "RelativeSelfAttention",
        relative_state(draw, d_model, heads, most),
        dtype=dtype,
        d_model=d_model,
        num_heads=heads,
        max_distance=most,
    )


@exercise("RelativeSelfAttention")
def test_relative_parameters(student):
    """Four projections with bias, and two tables of 2k + 1 offsets as wide as one head."""
    shapes = {"key_offsets": (9, 2), "value_offsets": (9, 2)}
    for name in PROJECTIONS:
        shapes |= {f"{name}.weight": (6, 6), f"{name}.bias": (6,)}
    handle = student.module("RelativeSelfAttention", d_model=6, num_heads=3, max_distance=4)
    same_parameters(handle, shapes)


@exercise("RelativeSelfAttention")
def test_relative_values(student, reference, draw):
    """The offset of j from i is added to key j and to value j, in every head."""
    for batch, length, d_model, heads, most in [
        (1, 4, 3, 1, 2),
        (1, 1, 2, 1, 1),
        (2, 3, 4, 2, 1),
        (2, 5, 6, 3, 2),
        (1, 3, 4, 4, 6),
        (2, 4, 4, 2, 0),
    ]:
        mine, theirs = relative_pair(student, reference, draw, d_model, heads, most)
        x = draw.normal(batch, length, d_model)
        case = sizes(B=batch, T=length, D=d_model, H=heads, max_distance=most)
        same_results(mine(x), theirs(x), OUTPUT, case)


@exercise("RelativeSelfAttention")
def test_relative_mask_for_all(student, reference, draw):
    """A (T, T) mask holds for every example and head; True means may attend."""
    mine, theirs = relative_pair(student, reference, draw, 6, 3, 2)
    x = draw.normal(2, 5, 6)
    for mask, case in [
        (draw.mask(5, 5, keep=0.6), "a mask of shape (T, T)"),
        (torch.ones(5, 5).tril().bool(), "a causal mask"),
    ]:
        same_results(mine(x, mask), theirs(x, mask), OUTPUT, case)


@exercise("RelativeSelfAttention")
def test_relative_mask_for_each_example(student, reference, draw):
    """A (B, T, T) or (B, 1, T) mask holds for every head of its own example, (T,) for all keys."""
    for batch, heads in [(2, 2), (3, 1), (2, 4)]:
        mine, theirs = relative_pair(student, reference, draw, 4, heads, 1)
        x = draw.normal(batch, 3, 4)
        for shape in [(batch, 3, 3), (batch, 1, 3), (1, 3, 3), (3,)]:
            mask = draw.mask(*shape, keep=0.6)
            case = f"{sizes(B=batch, H=heads)}, mask of shape {shape}"
            same_results(mine(x, mask), theirs(x, mask), OUTPUT, case)


@exercise("RelativeSelfAttention")
def test_relative_fully_masked(student, reference, draw):
    """A position that may attend to nothing has weights 0, and its output is out_proj of 0."""
    mine, theirs = relative_pair(student, reference, draw, 4, 2, 1)
    x, mask = draw.normal(2, 4, 4), draw.mask(2, 4, 4)
    mask[1, 2] = False
    same_results(mine(x, mask), theirs(x, mask), OUTPUT, "position 2 of the second example masked")
    mask = torch.zeros(4, 4, dtype=torch.bool)
    same_results(mine(x, mask), theirs(x, mask), OUTPUT, "everything masked")
    mask = torch.tensor([True, False, True, True]).unsqueeze(1)
    case = "a mask of shape (T, 1) that masks the whole row 1"
    same_results(mine(x, mask), theirs(x, mask), OUTPUT, case)


@exercise("RelativeSelfAttention")
def test_relative_refuses(student, draw):
    """Heads that don't divide d_model, other widths, masks not bool or not fitting: ValueError."""
    for width, heads in [(6, 4), (4, 3)]:
        expectations.raises(
            "ValueError",
            lambda width=width, heads=heads: student.module(
                "RelativeSelfAttention", d_model=width, num_heads=heads, max_distance=2
            ),
            what=f"d_model={width} with {heads} heads",
        )
    mine = student.module("RelativeSelfAttention", d_model=4, num_heads=2, max_distance=2)
    for width in (5, 6, 2):
        x = draw.normal(2, 3, width)
        expectations.raises("ValueError", lambda x=x: mine(x), what=f"x of width {width}")
    x = draw.normal(2, 3, 4)
    for dtype in (torch.float32, torch.int64, torch.uint8):
        expectations.raises(
            "ValueError",
            lambda dtype=dtype: mine(x, torch.ones(3, 3, dtype=dtype)),
            what=f"a mask of dtype {dtype}",
        )
    for shape in [(3, 4), (3, 3, 3), (4, 3), (2,), (1, 1, 3, 3), (2, 2, 3, 3)]:
        expectations.raises(
            "ValueError",
            lambda shape=shape: mine(x, torch.ones(shape, dtype=torch.bool)),
            what=f"a mask of shape {shape} for x of shape (2, 3, 4)",
        )


@hidden
@exercise("RelativeSelfAttention")
def test_relative_strided_float64(student, reference, draw):
    """Transposed, expanded, large and float64 inputs, longer than the clipping distance, work."""
    # Heads of width 4, whose root is exact: a scale held in float32 is as good.
    mine, theirs = relative_pair(student, reference, draw, 12, 3, 3, dtype=torch.float64)
    x = draw.normal(2, 12, 9).double().transpose(1, 2)
    same_results(mine(x), theirs(x), OUTPUT, "float64, transposed, T=9")
    large = draw.normal(1, 4, 12).double() * 100
    same_results(mine(large), theirs(large), OUTPUT, "entries of the order of 100")
    x, mask = draw.normal(1, 5, 12).double().expand(3, 5, 12), draw.mask(1, 5, 5)
    got = mine.train()(x, mask)
    same_results(got, theirs(x, mask), OUTPUT, "an expanded input, mask (1, T, T), in train mode")


@hidden
@exercise("RelativeSelfAttention")
def test_relative_sees_offsets_only(student, reference, draw):
    """Equal tokens: weights depend on j - i only, and beyond the clipping distance not at all."""
    most, length = 2, 9
    mine, theirs = relative_pair(student, reference, draw, 4, 2, most)
    x = draw.normal(1, 1, 4).expand(1, length, 4)
    got, want = mine(x), theirs(x)
    same_results(got, want, OUTPUT, "a sequence of equal tokens")
    weights = got[1]
    middle = weights[0, :, 4]
    expectations.close(
        middle[:, : 4 - most + 1],
        middle[:, :1].expand(-1, 4 - most + 1),
        what="the weights beyond the clipping distance",
        case="a sequence of equal tokens",
    )


@hidden
@exercise("RelativeSelfAttention")
def test_relative_gradients(student, reference, draw):
    """Gradients flow to x and all parameters, past a fully masked row; inputs are left alone."""
    mine, theirs = relative_pair(student, reference, draw, 12, 3, 2, dtype=torch.float64)
    x, mask = draw.normal(2, 5, 12).double(), draw.mask(2, 5, 5)
    mask[1, 2] = False
    seen, wanted = mine.observe(x, mask), theirs.observe(x, mask)
    names = {"0": "x"} | {f"parameter {name}.weight": f"{name}.weight" for name in PROJECTIONS}
    # A bias of k_proj adds the same number to a whole row of scores: its gradient is zero.
    names |= {f"parameter {name}.bias": f"{name}.bias" for name in ("q_proj", "v_proj", "out_proj")}
    names |= {f"parameter {name}": name for name in ("key_offsets", "value_offsets")}
    same_gradients(seen, wanted, names)
    expectations.unchanged(seen)
