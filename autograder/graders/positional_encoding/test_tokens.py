"""Graders of `positional_encoding-tokens`: merges, pieces of words, embeddings.

Texts are short, and rich enough that the usual mistakes, such as another order of merges, give
different answers in the first case that fails.
"""

from __future__ import annotations

import torch

from autograder.graders.common import pair, same_gradients, same_parameters, sizes
from autograder.judging import expectations
from autograder.judging.grader_marks import exercise, hidden, promises

# Close enough for `close`, which allows no more than the line above: never reached.


def same_ids(actual, expected, what="the ids", case=""):
    """A list of Python integers."""
    expectations.true(
        isinstance(actual, list),
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
    """A list of pairs of integers, each a tuple."""
    expectations.true(
        isinstance(actual, list),
        f"{what} should be a list of pairs, but the result is a {expectations.type_name(actual)}.",
    )
    for entry in actual:
        good = isinstance(entry, (list, tuple)) and [type(value) for value in entry] == [int, int]
        expectations.true(
            good, f"{what} should be pairs of integers, but one of them is {entry!r}."
        )
        expectations.true(
            isinstance(entry, tuple),
            f"{what} should be tuples, which `bpe_encode` can look up, but {entry} is a list.",
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


@promises("new-list")
@exercise("merge_pair")
def test_merge_pair_values(student, reference, draw):
    """Every occurrence of the pair becomes the new id, and everything else stays in its place."""
    cases = [
        ([3, 1, 2, 4, 1, 2, 1], (1, 2), 9),
        ([1, 2], (1, 2), 3),
        ([300, 97, 300, 97, 97], (300, 97), 301),
        ([*draw.integers(0, 3, 14).tolist(), 0, 1], (0, 1), 300),
    ]
    for ids, both, new in cases:
        same_ids(
            student.merge_pair(ids, both, new),
            reference.merge_pair(ids, both, new),
            case=f"ids={ids}, pair={both}, new_id={new}",
        )
        expectations.unchanged(student.observe("merge_pair", ids, both, new, grad=False))


@promises("left-to-right")
@exercise("merge_pair")
def test_merge_pair_overlaps(student, reference):
    """Occurrences that overlap are taken from the left: (a, a) in aaa gives [new, a]."""
    for ids in ([7, 7, 7, 1, 7, 7], *([7] * count for count in (3, 2, 5, 4, 7))):
        same_ids(
            student.merge_pair(ids, (7, 7), 8),
            reference.merge_pair(ids, (7, 7), 8),
            case=f"ids={ids}, pair=(7, 7), new_id=8",
        )


@exercise("merge_pair")
def test_merge_pair_edges(student, reference):
    """The pair is found at both ends; reversed, apart, alone or in an empty list it is not."""
    at_the_ends = [1, 2, 5, 1, 2], [5, 1, 2], [1, 2, 5], [1, 2, 1], [2, 1, 2]
    for ids in (*at_the_ends, [2, 1], [1, 5, 2], [1], []):
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
        ([1, 2, 0, 1, 2], (1, 2), 0),
    ]:
        same_ids(
            student.merge_pair(ids, both, new),
            reference.merge_pair(ids, both, new),
            case=f"ids={ids}, pair={both}, new_id={new}",
        )
    # The last is longer than Python's recursion limit.
    for count, both in [(60, (0, 1)), (60, (1, 1)), (60, (1, 0)), (60, (2, 2)), (3000, (1, 2))]:
        ids = draw.integers(0, 3, count).tolist() + list(both)
        same_ids(
            student.merge_pair(ids, both, 256),
            reference.merge_pair(ids, both, 256),
            case=f"{count} random ids and the pair {both}",
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


@promises("merges-in-order")
@exercise("train_bpe")
def test_train_bpe_values(student, reference):
    """Each step merges the most frequent pair, and later merges build on earlier ones."""
    for text, count in [("abcab abcab cab", 3), ("ca cc cbcb ccc ccac abbc bbbbb cccbb ca c", 4)]:
        same_training(student, reference, text, count)


@promises("ties")
@exercise("train_bpe")
def test_train_bpe_ties(student, reference):
    """Among pairs that are equally frequent the smaller one, as a tuple of ints, is merged."""
    for text, count in [("bdzace", 1), ("za yb xc", 2), ("bca bca", 2), ("ba ca da ba ca da", 4)]:
        same_training(student, reference, text, count)


@promises("within-chunks")
@exercise("train_bpe")
def test_train_bpe_within_chunks(student, reference):
    """A space opens a new chunk; no pair is counted and nothing is merged across the border."""
    for text, count in [
        ("ab ab abb aa a", 2),
        (" ab\n ab b \n\n", 3),
        ("a  b\nab aaa aaa aa", 3),
        ("\t\ta\t\t", 2),
    ]:
        same_training(student, reference, text, count)


@promises("counts")
@exercise("train_bpe")
def test_train_bpe_counts(student, reference):
    """A chunk counts as often as it occurs, and aaa holds the pair (a, a) twice."""
    for text, count in [("bbbb ba aaba bbca ba ccb", 3), ("aba aaa ab aaa bba ba", 1)]:
        same_training(student, reference, text, count)


@promises("until-none-is-left")
@exercise("train_bpe")
def test_train_bpe_stops(student, reference):
    """Training ends early when no pair is left, even if each pair occurs only once until then."""
    for text, count in [("ab", 5), ("a", 3), ("", 2), ("abab", 0), ("abab", 9)]:
        same_training(student, reference, text, count)


@exercise("train_bpe")
def test_train_bpe_bytes(student, reference):
    """Tokens start as the bytes of UTF-8, so é is two of them."""
    for text, count in [
        ("aé é", 1),
        ("e\u0301", 1),  # two characters, drawn as one
        ("Aa aA Aa", 1),
        ("aéé éé aaé a aa", 2),
        ("éé aaa ü aüü éaü a üaé", 4),
        ("\r\n\r\n a", 2),  # line ends stay as they are
    ]:
        same_training(student, reference, text, count)


@promises("negative-number")
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
    letters = "".join(map(chr, range(A, A + 26)))
    text = "".join(draw.choice(letters) for _ in range(150))  # about 130 merges
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


@promises("new-ids", "one-flat-list")
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


@promises("earliest-first")
@exercise("bpe_encode")
def test_bpe_encode_order(student, reference):
    """The merge learned first goes first, wherever in the text it stands."""
    for text, merges in [
        ("bacacb", [(A, C), (C, B), (B, A)]),
        ("abcbcd", [(C, D), (B, C), (A, B)]),
        ("abcd", [(B, C), (A, B), (C, D)]),
        ("abcd", [(A, B), (C, D), (B, C)]),
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


@promises("earliest-first")
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
        ("e\u0301", []),  # two characters, drawn as one
        ("é", []),
        ("Ab aB", [(A, B)]),
        ("a\r\nb\r\n", [(A, B)]),
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
    every = [(left, right) for left in range(A, A + 26) for right in range(A, A + 26)]
    same_encoding(student, reference, "zyabzz ww", every)


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


@promises("bytes-first")
@exercise("bpe_decode")
def test_bpe_decode_characters_across_tokens(student, reference):
    """The bytes of one character may stand in several tokens: join all bytes, then decode."""
    for ids, merges in [
        ([0xC3, 0xA9, A], []),
        ([256, 0xA0, A], [(0xE4, 0xBD)]),
        ([0xF0, 0x9F, 256, A], [(0x99, 0x82)]),
    ]:
        same_text(student, reference, ids, merges)


@promises("damaged-text")
@exercise("bpe_decode")
def test_bpe_decode_broken_bytes(student, reference):
    """Bytes that are no UTF-8 become the replacement character, and nothing is raised."""
    for ids, merges in [([A, 0xFF, 0xFE, B], []), ([0xE4, 0xBD], []), ([A, 256], [(0xC3, SPACE)])]:
        same_text(student, reference, ids, merges)


@promises("unknown-id")
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
@promises("round-trip")
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
    for spaced in ([SPACE, 10, A, 13, 10, SPACE], [10, SPACE, A, SPACE, 13, 10]):
        same_text(student, reference, spaced, [], case=f"ids={spaced}, white space at both ends")
    marked = [0xEF, 0xBB, 0xBF, A]
    same_text(student, reference, marked, [], case=f"ids={marked}, U+FEFF and a")
    merges = [(A, B)] + [(256 + k, A + k % 5) for k in range(12)] + [(D, 262), (268, 269)]
    ids = [*draw.integers(256, 256 + len(merges), 6).tolist(), 270, 255]
    same_text(student, reference, ids, merges, case="tokens of up to 20 bytes")
    merges = merges_of(draw, "abcd", 12)
    ids = [*draw.integers(256, 268, 8).tolist(), 267]
    same_text(student, reference, ids, merges, case="merges drawn at random")


# --------------------------------------------------------------------------------------------
# wordpiece_encode
# --------------------------------------------------------------------------------------------

PIECES = ["u", "un", "##a", "##aff", "##able", "##b", "##ff", "a", "##n", "able", "play", "##ing"]


def same_pieces(student, reference, word, vocabulary, **options):
    named = "".join(f", {name}={value!r}" for name, value in options.items())
    seen = student.observe("wordpiece_encode", word, vocabulary, grad=False, **options)
    expectations.unchanged(seen)
    actual = seen.value
    expectations.true(
        isinstance(actual, list),
        f"the pieces should be a list of strings, but the result is a "
        f"{expectations.type_name(actual)}.",
    )
    expectations.equal(
        list(actual),
        list(reference.wordpiece_encode(word, vocabulary, **options)),
        what="the pieces",
        case=f"word={quoted(word)}, vocabulary={vocabulary}{named}",
    )


@promises("longest-first", "pieces")
@exercise("wordpiece_encode")
def test_wordpiece_longest_first(student, reference):
    """The longest piece that fits goes first; the pieces after it carry the prefix."""
    for given in ("unaffable", "playing", "abab", "aun", "u"):
        same_pieces(student, reference, given, PIECES)


@promises("whole-word-unknown")
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


@promises("too-long")
@exercise("wordpiece_encode")
def test_wordpiece_too_long(student, reference):
    """A word longer than max_chars is unknown; one of just this length is not."""
    for length, most in [(4, 3), (3, 3), (2, 3)]:
        same_pieces(student, reference, "a" * length, ["a", "##a"], max_chars=most)
    for length in (100, 101):
        same_pieces(student, reference, "a" * length, ["a", "##a", "##" + "a" * 50])


@promises("empty-word")
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
    same_pieces(student, reference, "a", ["a"], max_chars=0)
    for given in (" a", " "):
        same_pieces(student, reference, given, [" ", "a", "##a"])
    for pieces in (["un", "una", "##aff", "##able", "##ffable"], ["un", "##aff", "##able"]):
        same_pieces(student, reference, "unaffable", pieces)
    same_pieces(student, reference, "ax", ["a"], unknown="")
    same_pieces(student, reference, "[UNK]", ["[", "##UNK", "##]", "##U"])
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


@promises("layer")
@exercise("TokenEmbedding")
def test_embedding_parameters(student):
    """There is one parameter, `table.weight`, with a row for each id of the vocabulary."""
    same_parameters(
        student.module("TokenEmbedding", vocab_size=7, d_model=3), {"table.weight": (7, 3)}
    )


@promises("scaled-rows")
@exercise("TokenEmbedding")
def test_embedding_values(student, reference, draw):
    """Each id becomes its row of the table, multiplied by √d_model."""
    for batch, length, vocab_size, d_model in [(1, 2, 6, 3), (3, 1, 2, 2), (2, 4, 5, 8)]:
        mine, theirs = embedding_pair(student, reference, draw, vocab_size, d_model)
        ids = draw.integers(0, vocab_size, batch, length)
        case = sizes(B=batch, T=length, vocab_size=vocab_size, D=d_model)
        expectations.close(mine(ids), theirs(ids), what="the embeddings", case=case)


@promises("bad-ids")
@exercise("TokenEmbedding")
def test_embedding_refuses_ids(student, draw):
    """Ids outside the vocabulary, and ids that are no integers, raise a ValueError."""
    mine = student.module("TokenEmbedding", vocab_size=4, d_model=2)
    for ids in ([[1, 9]], [[0, 4]], [[-1, 2]], [[1, 2], [3, 5]], [[0.0, 1.0]], [[True, False]]):
        expectations.raises(
            "ValueError", lambda ids=ids: mine(torch.tensor(ids)), what=f"ids={ids}"
        )
    expectations.raises(
        "ValueError",
        lambda: mine(torch.tensor([[0.0, 1.0]], dtype=torch.float64)),
        what="ids=[[0.0, 1.0]] of type float64",
    )


@promises("bad-sizes")
@exercise("TokenEmbedding")
def test_embedding_refuses_sizes(student):
    """A width or a vocabulary of 0, and not one of 1, raises a ValueError in `__init__`."""
    for vocab_size, d_model in [(4, 0), (0, 4), (4, -1), (-2, 4)]:
        expectations.raises(
            "ValueError",
            lambda vocab_size=vocab_size, d_model=d_model: student.module(
                "TokenEmbedding", vocab_size=vocab_size, d_model=d_model
            ),
            what=f"vocab_size={vocab_size}, d_model={d_model}",
        )
    student.module("TokenEmbedding", vocab_size=1, d_model=1)


@promises("bad-ids")
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
@promises("dtype-kept")
@exercise("TokenEmbedding")
def test_embedding_every_row(student, reference, draw):
    """Every id has its row, in float64, for ids that are not contiguous and for int32."""
    # A width of 4, whose root is exact, lets float64 be asked of a scale held in float32 too.
    mine, theirs = embedding_pair(student, reference, draw, 9, 4, dtype=torch.float64)
    ids = torch.arange(9).view(3, 3).t()
    expectations.close(mine(ids), theirs(ids), what="the embeddings", case="all ids, float64")
    ids = draw.integers(0, 9, 1, 6).expand(3, 6)
    seen = mine.observe(ids, grad=False)
    expectations.close(seen.value, theirs(ids), what="the embeddings", case="expanded ids")
    expectations.unchanged(seen)
    expectations.close(mine(ids.int()), theirs(ids), what="the embeddings", case="ids of int32")


@hidden
@exercise("TokenEmbedding")
def test_embedding_gradients(student, reference, draw):
    """The gradient of each row is the scaled sum over the places where its id stands."""
    mine, theirs = embedding_pair(student, reference, draw, 5, 4, dtype=torch.float64)
    ids = torch.tensor([[0, 2, 0], [4, 2, 0]])
    same_gradients(
        mine.observe(ids), theirs.observe(ids), {"parameter table.weight": "table.weight"}
    )
