"""Graders of `bert-pretraining`: masking, pairs, heads, losses."""

from __future__ import annotations

import itertools
import math

import torch
from torch.nn import functional as F

from autograder.graders.bert.common import (
    CLS,
    IGNORE,
    MASK,
    PAD,
    SEP,
    SPECIAL,
    UNK,
    same_default_sizes,
)
from autograder.graders.common import (
    State,
    linear,
    norm_state,
    pair,
    refuses,
    same_number,
    same_parameters,
    sizes,
)
from autograder.graders.parts import SLACK, Parts, alive, arrive, same_by_parts, same_values
from autograder.judging import expectations
from autograder.judging.grader_marks import Mistake, aspect, exercise, hidden, promises
from autograder.judging.proxy import StudentError, Todo

# --------------------------------------------------------------------------------------------
# What the tests of masking share
# --------------------------------------------------------------------------------------------


def share(count, trials, probability, what, likely=None, false_alarm=1e-9):
    """As `expectations.rate`; of the known mistakes `likely`, name -> share, the fitting is named.

    Random answers cannot be replayed, so that the test itself has to say which mistake it sees.
    """
    count, trials = int(count), int(trials)
    expectations.true(trials > 0, f"{what} cannot be told: there is none.")
    try:
        expectations.rate(count, trials, probability, what, false_alarm=false_alarm)
    except Mistake as mistake:
        fitting = [name for name, other in (likely or {}).items() if fits(count, trials, other)]
        nearest = min(fitting, key=lambda name: abs(count / trials - likely[name]), default=None)
        raise Mistake(str(mistake), nearest) from None


def fits(count, trials, probability):
    """Whether a share is what may well be seen with this probability."""
    try:
        expectations.rate(count, trials, probability, "the share", false_alarm=1e-2)
    except Mistake:
        return False
    return True


def unrefused(call, cases, misconception):
    """Each case, words -> arguments, is refused with a ValueError, or `misconception` was made."""
    for words, arguments in cases.items():
        expectations.raises(
            "ValueError",
            lambda given=arguments: call(*given),
            what=words,
            misconception=misconception,
        )


def ordinary_ids(draw, rows, length, vocabulary, special=0.2, alike=False):
    """Random ids; CLS at the front, and as many special ones in between as `special` says.

    `alike`: two ordinary ids in turn. What many wrong modules answer is kept in a file, which
    stays small where nothing is random but what is asked for.
    """
    ids = draw.integers(SPECIAL, vocabulary, rows, length)
    if alike:
        ids[:] = ids[0, 0].clone()
        ids[:, 1::2] = SPECIAL + (ids[0, 0] + 1 - SPECIAL) % (vocabulary - SPECIAL)
    if special:
        ids = torch.where(
            draw.uniform(rows, length) < special, draw.integers(0, SPECIAL, rows, length), ids
        )
        ids[:, 0] = CLS
    return ids


def masking(got, ids, vocabulary, prefix, case):
    """A masking is one by its form: what was chosen (bool), and the corrupted ids.

    Which tokens are chosen, and how often they become what, is left to chance and other tests.
    """
    corrupted, marks = expectations.pair(got, what="the result (corrupted, labels)")
    for tensor, what in ((corrupted, "corrupted"), (marks, "labels")):
        expectations.shape(tensor, ids.shape, what=what, case=case)
        expectations.true(
            tensor.dtype == torch.int64,
            f"{what} should have dtype int64, but has {tensor.dtype} for {case}.",
        )
    ordinary, chosen = ids >= SPECIAL, marks != IGNORE
    wrong = chosen & (marks != ids)
    kind = None
    if bool(wrong.any()):
        if bool((marks[wrong] == 0).all()):
            kind = "labels_zero"
        elif bool((marks[wrong] == corrupted[wrong]).all()):
            kind = "labels_corrupted"
    expectations.true(
        not bool(wrong.any()),
        f"labels should hold the original id where a token is chosen and IGNORE elsewhere; for "
        f"{case} there are others.",
        misconception=kind and f"{prefix}_{kind}",
    )
    everywhere = bool(chosen.all()) and not bool(ordinary.all())
    kind = "labels_everywhere" if everywhere else "specials_chosen"
    expectations.true(
        not bool((chosen & ~ordinary).any()),
        f"labels marks special tokens, with ids below {SPECIAL}, as chosen for {case}.",
        misconception=f"{prefix}_{kind}",
    )
    expectations.true(
        not bool((~chosen & (corrupted != ids)).any()),
        f"corrupted differs from the ids where labels says IGNORE for {case}.",
        misconception=f"{prefix}_all_tokens",
    )
    new = corrupted[chosen & (corrupted != ids) & (corrupted != MASK)]
    expectations.true(
        not bool((new < SPECIAL).any()),
        f"a token was replaced by a special one other than MASK for {case}.",
        misconception=f"{prefix}_random_special",
    )
    expectations.true(
        not bool((new >= vocabulary).any()),
        f"a token was replaced by an id of {int(new.max()) if len(new) else 0}, which is not "
        f"below vocab_size={vocabulary}, for {case}.",
    )
    return chosen, corrupted


def masked(student, ids, vocabulary, rate=None, case=""):
    """What the student's mask_tokens has chosen, and the corrupted ids; None: the default."""
    options = {} if rate is None else {"mask_prob": rate}
    case = case or f"ids of shape {tuple(ids.shape)}, mask_prob={0.15 if rate is None else rate}"
    seen = student.observe("mask_tokens", ids, vocabulary, grad=False, **options)
    expectations.unchanged(seen, misconception="mask_in_place")
    return masking(seen.value, ids, vocabulary, "mask", case)


def outcomes(chosen, corrupted, ids, vocabulary, prefix):
    """Of what is chosen 80 percent became MASK, 10 another id or perhaps the same, 10 stay."""
    count = int(chosen.sum())
    fresh = 0.1 / (vocabulary - SPECIAL)  # drawn at random, and the same
    kept = {"never_kept": 2 * fresh, "never_random": 0.2}
    if prefix == "mask":
        kept["rest_drawn_twice"] = 0.18
    now, before = corrupted[chosen], ids[chosen]
    new = now[(now != MASK) & (now != before)].unique()
    if 0 < len(new) <= 2:  # drawn from the batch, which may give the same, or drawn once
        kept = {}
    for found, probability, what, likely in (
        (now == MASK, 0.8, "the share of MASK", {"always": 1.0}),
        (now == before, 0.1 + fresh, "the share that stays as it is", kept),
    ):
        share(
            found.sum(),
            count,
            probability,
            f"{what} among the chosen tokens",
            {f"{prefix}_{name}": other for name, other in likely.items()},
        )


def random_ids_reach_far(chosen_of, case):
    """Random ids come from the upper half of a large vocabulary as often as from the lower one."""
    ids = torch.full((10, 200), SPECIAL)
    chosen, corrupted = chosen_of(ids, 60_000)
    new = corrupted[chosen & (corrupted != ids) & (corrupted != MASK)]
    share(
        (new >= 30_000).sum(),
        len(new),
        0.5,
        f"of the random ids of a vocabulary of 60000 the share from 30000 on {case}",
        false_alarm=1e-10,
    )


# --------------------------------------------------------------------------------------------
# mask_tokens
# --------------------------------------------------------------------------------------------


@promises("labels")
@exercise("mask_tokens")
def test_mask_form(student, draw):
    """Labels hold the original ids where a token is chosen, IGNORE elsewhere; ids are kept."""
    ids = ordinary_ids(draw, 6, 12, 30)
    masked(student, ids, 30, 0.5)
    chosen, corrupted = masked(student, ids, 30, 0.0)
    expectations.true(not bool(chosen.any()), "With mask_prob=0 some tokens are chosen.")
    chosen, corrupted = masked(student, ids, 30, 1.0)
    kept_unmarked = torch.equal(chosen, corrupted != ids) and bool(chosen.any())
    expectations.equal(
        chosen,
        ids >= SPECIAL,
        what="which tokens are chosen",
        case="mask_prob=1",
        misconception="mask_chosen_without_kept" if kept_unmarked else None,
    )
    expectations.true(not torch.equal(corrupted, ids), "With mask_prob=1 no token is masked.")


@promises("independent-choice")
@exercise("mask_tokens")
def test_mask_rate(student, draw):
    """Of the ordinary tokens 15 percent are chosen, if nothing else is said."""
    ids = ordinary_ids(draw, 60, 60, 20, special=0.1, alike=True)
    chosen, _ = masked(student, ids, 20)
    share(
        chosen.sum(),
        (ids >= SPECIAL).sum(),
        0.15,
        "the share of ordinary tokens that are chosen by default",
        {"mask_chosen_without_kept": 0.135},
    )


@promises("three-outcomes")
@exercise("mask_tokens", weight=2)
def test_mask_outcomes(student, draw):
    """A chosen token becomes MASK in 80 percent, a random one in 10, and stays in 10."""
    ids = ordinary_ids(draw, 70, 60, 25, special=0.05, alike=True)
    chosen, corrupted = masked(student, ids, 25, 0.6)
    what = "the share of ordinary tokens that are chosen at mask_prob=0.6"
    share(chosen.sum(), (ids >= SPECIAL).sum(), 0.6, what, {"mask_chosen_without_kept": 0.54})
    outcomes(chosen, corrupted, ids, 25, "mask")


@promises("bad-input")
@exercise("mask_tokens")
def test_mask_refusals(student):
    """A mask_prob outside 0 to 1 and a vocabulary of special ids alone are refused."""
    ids = torch.tensor([[CLS, 5, 5, SEP]])
    rates = {"mask_prob=-0.1": (ids, 9, -0.1), "mask_prob=1.5": (ids, 9, 1.5)}
    unrefused(student.mask_tokens, rates, "mask_rate_unchecked")
    vocabularies = {"vocab_size=5": (ids, 5), "vocab_size=3": (ids, 3)}
    unrefused(student.mask_tokens, vocabularies, "mask_vocabulary_unchecked")


@hidden
@promises("three-outcomes")
@exercise("mask_tokens")
def test_mask_random_ids(student, draw):
    """Random ids are uniform over all ordinary ones, the token's own among them."""
    low, high = SPECIAL, SPECIAL + 10
    ids = ordinary_ids(draw, 80, 100, high, special=0.0)
    chosen, corrupted = masked(student, ids, high, 1.0)
    new = chosen & (corrupted != ids) & (corrupted != MASK)
    expectations.true(
        len(corrupted[new].unique()) > 1,
        "All tokens that are replaced at random get the same id.",
        misconception="mask_one_random_id",
    )
    for token in range(low, high):
        could = new & (ids != token)
        share(
            (corrupted[could] == token).sum(),
            could.sum(),
            1 / 9,
            f"the share of id {token} among the random ids, of {low} to {high - 1},",
            {"mask_last_id_missing": 0.0} if token == high - 1 else None,
            false_alarm=1e-10,
        )
    ids = ordinary_ids(draw, 60, 100, SPECIAL + 2, special=0.0)
    chosen, corrupted = masked(student, ids, SPECIAL + 2, 1.0)
    share(
        (corrupted == ids).sum(),
        chosen.sum(),
        0.15,
        "the share of tokens that are as before, with two ordinary ids in the vocabulary,",
    )
    masked(student, torch.tensor([[CLS, 5, 5, SEP]]), SPECIAL + 1, 1.0)
    random_ids_reach_far(lambda *given: masked(student, *given, 1.0), "by mask_tokens")


@hidden
@promises("independent-choice")
@exercise("mask_tokens", weight=2)
def test_mask_independent(student, draw):
    """Each token is drawn on its own: no fixed number, no common fate in a row or a batch."""
    ids = ordinary_ids(draw, 1500, 4, 40, special=0.0)
    chosen, _ = masked(student, ids, 40)
    expectations.true(
        not bool((chosen == chosen[:1]).all()),
        "In all of 1500 rows the same positions are chosen.",
        misconception="mask_rows_alike" if bool(chosen.any()) else None,
    )
    share(
        (~chosen.any(1)).sum(),
        1500,
        0.85**4,
        "the share of rows of four tokens in which none is chosen",
        {"mask_fixed_number": 0.0, "mask_one_draw_per_row": 0.85},
    )
    for position in range(4):
        what = f"the share of tokens that are chosen at position {position} of 4"
        share(chosen[:, position].sum(), 1500, 0.15, what, false_alarm=1e-10)
    _, corrupted = masked(student, ids, 40, 1.0)
    share(
        (corrupted == MASK).all(1).sum(),
        1500,
        0.8**4,
        "the share of rows of four chosen tokens in which all become MASK",
        {"mask_one_fate_per_row": 0.8},
    )
    ids = ordinary_ids(draw, 1, 20, 40, special=0.0)
    exact = sum(int(masked(student, ids, 40, 0.5)[0].sum()) == 10 for _ in range(18))
    share(
        exact,
        18,
        math.comb(20, 10) / 2**20,
        "how often exactly 10 of 20 tokens are chosen at mask_prob=0.5",
        {"mask_fixed_number": 1.0},
    )
    chosen = sum(int(masked(student, ids[:, :1], 40, 0.5)[0].sum()) for _ in range(40))
    what = "how often the only token is chosen at mask_prob=0.5"
    share(chosen, 40, 0.5, what, {"mask_never_none": 1.0})


# --------------------------------------------------------------------------------------------
# mask_whole_words
# --------------------------------------------------------------------------------------------


def worded_ids(draw, rows, length, vocabulary, special=0.15, alike=False):
    """Random ids and where words start; rows begin with CLS, words have one piece or more."""
    ids = ordinary_ids(draw, rows, length, vocabulary, special, alike)
    ids[:, 0] = CLS
    ordinary = ids >= SPECIAL
    first = torch.cat([ordinary[:, :1], ~ordinary[:, :-1]], dim=1)  # behind a special token
    return ids, ordinary & (first | (draw.uniform(rows, length) < 0.45))


def masked_words(student, ids, starts, vocabulary, rate=None):
    """What the student's mask_whole_words has chosen, and the corrupted ids."""
    options = {} if rate is None else {"mask_prob": rate}
    case = f"ids of shape {tuple(ids.shape)}, mask_prob={0.15 if rate is None else rate}"
    seen = student.observe("mask_whole_words", ids, starts, vocabulary, grad=False, **options)
    expectations.unchanged(seen, misconception="words_in_place")
    return masking(seen.value, ids, vocabulary, "words", case)


def word_numbers(ids, starts):
    """For every ordinary piece the number of its word, and how many pieces each word has."""
    numbers = starts.flatten().long().cumsum(0).reshape(ids.shape)[ids >= SPECIAL] - 1
    return numbers, torch.bincount(numbers)


def words_chosen(chosen, ids, starts):
    """Which words are chosen, from which at least one piece is, and of how many pieces each is."""
    numbers, pieces = word_numbers(ids, starts)
    hit = torch.bincount(numbers, weights=chosen[ids >= SPECIAL].double()).long()
    partly = (hit > 0) & (hit < pieces)
    first_only = bool((hit[pieces > 1] <= 1).all())
    expectations.true(
        not bool(partly.any()),
        "Some pieces of a word are chosen and others are not; a word is chosen as a whole.",
        misconception="words_first_piece_only" if first_only else "words_by_pieces",
    )
    return hit > 0, pieces


@promises("whole-words")
@exercise("mask_whole_words")
def test_words_form(student, draw):
    """Whole words are chosen or none of their pieces; labels as in mask_tokens; ids are kept."""
    ids, starts = worded_ids(draw, 8, 14, 30)
    chosen, _ = masked_words(student, ids, starts, 30, 0.5)
    words_chosen(chosen, ids, starts)
    chosen, _ = masked_words(student, ids, starts, 30, 0.0)
    expectations.true(not bool(chosen.any()), "With mask_prob=0 some words are chosen.")
    chosen, _ = masked_words(student, ids, starts, 30, 1.0)
    expectations.equal(chosen, ids >= SPECIAL, what="which tokens are chosen", case="mask_prob=1")


def words_rate(words, pieces, rate):
    """Words are chosen at this rate, whatever their length."""
    for some, what in ((pieces == 1, "of one piece"), (pieces > 1, "of several pieces")):
        share(
            words[some].sum(),
            some.sum(),
            rate,
            f"the share of words {what} that are chosen at rate={rate}",
        )


@promises("whole-words")
@exercise("mask_whole_words")
def test_words_rate(student, draw):
    """Each word is chosen with the probability 0.15, if nothing else is said."""
    ids, starts = worded_ids(draw, 60, 60, 20, alike=True)
    chosen, _ = masked_words(student, ids, starts, 20)
    words_rate(*words_chosen(chosen, ids, starts), 0.15)


@promises("own-outcomes")
@exercise("mask_whole_words")
def test_words_outcomes(student, draw):
    """Each piece of a chosen word draws its own fate: 80, 10 and 10 percent."""
    ids, starts = worded_ids(draw, 70, 60, 25, special=0.1, alike=True)
    chosen, corrupted = masked_words(student, ids, starts, 25, 0.8)
    words, pieces = words_chosen(chosen, ids, starts)
    words_rate(words, pieces, 0.8)
    outcomes(chosen, corrupted, ids, 25, "words")
    # The first two pieces of the longer words.
    first = torch.cat([torch.zeros(1, dtype=torch.int64), pieces.cumsum(0)[:-1]])[
        words & (pieces > 1)
    ]
    gone = (corrupted == MASK)[ids >= SPECIAL]
    share(
        (gone[first] & gone[first + 1]).sum(),
        len(first),
        0.64,
        "the share of chosen words in which the first two pieces both become MASK",
        {"words_one_fate": 0.8},
    )


@promises("bad-input")
@exercise("mask_whole_words")
def test_words_refusals(student):
    """A mask_prob outside 0 to 1 and a vocabulary of special ids alone are refused."""
    ids = torch.tensor([[CLS, 5, 5, SEP]])
    starts = torch.tensor([[False, True, False, False]])
    unrefused(
        student.mask_whole_words,
        {
            "mask_prob=-0.1": (ids, starts, 9, -0.1),
            "mask_prob=1.5": (ids, starts, 9, 1.5),
            "vocab_size=5": (ids, starts, 5),
            "vocab_size=3": (ids, starts, 3),
        },
        "words_unchecked",
    )


@hidden
@promises("whole-words")
@exercise("mask_whole_words")
def test_words_independent(student, draw):
    """Words are drawn on their own, also at the ends of rows; no fixed number is chosen."""
    ids = ordinary_ids(draw, 1500, 4, 40, special=0.0)
    starts = torch.tensor([True, False, True, False]).expand(1500, 4)
    chosen, _ = masked_words(student, ids, starts, 40, 0.3)
    words, _ = words_chosen(chosen, ids, starts)
    expectations.true(
        not bool((chosen == chosen[:1]).all()),
        "In all of 1500 rows the same words are chosen.",
        misconception="words_rows_alike" if bool(chosen.any()) else None,
    )
    share(
        (~words.reshape(1500, 2).any(1)).sum(),
        1500,
        0.49,
        "the share of rows of two words in which none is chosen at mask_prob=0.3",
        {"words_fixed_number": 0.0, "words_one_draw_per_row": 0.7},
        false_alarm=5e-10,
    )
    share(
        (words[:-256] == words[256:]).sum(),
        len(words) - 256,
        0.58,
        "how often a word and the 256th after it share their fate at mask_prob=0.3",
        false_alarm=5e-10,
    )
    ids = ordinary_ids(draw, 1, 20, 40, special=0.0)
    ids[:, 0], starts = CLS, torch.ones(1, 20, dtype=torch.bool)
    starts[:, [0, 2]] = False
    exact = 0
    for _ in range(18):  # 18 words, the first of two pieces
        chosen, _ = masked_words(student, ids, starts, 40, 0.5)
        exact += int(words_chosen(chosen, ids, starts)[0].sum()) == 9
    share(
        exact,
        18,
        math.comb(18, 9) / 2**18,
        "how often exactly 9 of 18 words are chosen at mask_prob=0.5",
        {"words_fixed_number": 1.0},
    )


@hidden
@promises("word-boundaries")
@exercise("mask_whole_words")
def test_words_boundaries(student, draw):
    """A word ends with its row, and before a special token; what comes then is not part of it."""
    ids = ordinary_ids(draw, 1600, 6, 40, special=0.0)
    ids[:, 3] = SEP
    ids[::2, 3] = UNK
    starts = torch.tensor([False, False, True, False, False, False]).expand(1600, 6)
    chosen, _ = masked_words(student, ids, starts, 40, 0.5)
    rows = "the end of a row and the beginning of the next"
    specials = "the tokens before and after a special one"
    for before, after, what, likely in (
        (chosen[:-1, 5], chosen[1:, 0], rows, {"words_across_rows": 0.5}),
        (
            chosen[:, 2],
            chosen[:, 4],
            specials,  # of which every second is UNK
            {"words_across_specials": 0.5, "words_across_unknown": 0.375},
        ),
    ):
        share(
            (before & after).sum(),
            len(after),
            0.25,
            f"how often {what} are both chosen at mask_prob=0.5, without a word that starts there,",
            likely,
            false_alarm=5e-10,
        )
        share(
            after.sum(),
            len(after),
            0.5,
            f"how often the latter of {what} is chosen at mask_prob=0.5",
            false_alarm=5e-10,
        )


@hidden
@exercise("mask_whole_words")
def test_words_random_ids(student, draw):
    """Random ids are uniform over all ordinary ones, drawn piece by piece."""
    low, high = SPECIAL, SPECIAL + 4
    ids, starts = worded_ids(draw, 70, 60, high)
    chosen, corrupted = masked_words(student, ids, starts, high, 1.0)
    new = chosen & (corrupted != ids) & (corrupted != MASK)
    for token in range(low, high):
        could = new & (ids != token)
        share(
            (corrupted[could] == token).sum(),
            could.sum(),
            1 / 3,
            f"the share of id {token} among the random ids, of {low} to {high - 1},",
            {"words_last_id_missing": 0.0} if token == high - 1 else None,
            false_alarm=2e-10,
        )
    ids, starts = worded_ids(draw, 70, 60, SPECIAL + 2)
    chosen, corrupted = masked_words(student, ids, starts, SPECIAL + 2, 1.0)
    share(
        (corrupted == ids)[chosen].sum(),
        chosen.sum(),
        0.15,
        "the share of tokens that are as before, with two ordinary ids in the vocabulary,",
        false_alarm=1e-10,
    )

    def long_words(ids, high):
        starts = torch.zeros_like(ids, dtype=torch.bool)
        starts[:, 0] = True
        chosen, corrupted = masked_words(student, ids, starts, high, 1.0)
        new = [row[(row != SPECIAL) & (row != MASK)] for row in corrupted]
        expectations.true(
            any(len(row.unique()) > 1 for row in new),
            "All pieces of a long word that are replaced at random get the same id.",
            misconception="words_one_random_id",
        )
        return chosen, corrupted

    random_ids_reach_far(long_words, "by mask_whole_words")


# --------------------------------------------------------------------------------------------
# masking_epochs
# --------------------------------------------------------------------------------------------


def epochs_of(student, ids, vocabulary, epochs, duplicates=None, **options):
    """The maskings of all epochs: a list of (corrupted, labels), each of the ids' shape."""
    given = () if duplicates is None else (duplicates,)
    case = f"epochs={epochs}" + "".join(f", duplicates={number}" for number in given)
    seen = student.observe("masking_epochs", ids, vocabulary, epochs, *given, grad=False, **options)
    found = seen.value
    if isinstance(found, tuple):
        found = list(found)
    expectations.true(
        isinstance(found, list),
        f"the result should be a list, but is a {expectations.type_name(found)} for {case}.",
    )
    expectations.true(
        len(found) == epochs,
        f"the result should hold {epochs} maskings, one an epoch, but holds {len(found)} for "
        f"{case}.",
        misconception="epochs_times_duplicates"
        if len(found) == epochs * (duplicates or 1)
        else None,
    )
    parts = Parts(student)
    mine = parts.proxy.observe("mask_tokens", ids, vocabulary, grad=False, **options)
    for number, entry in enumerate(found):
        pair_ = expectations.pair(entry, what=f"the entry of epoch {number}")
        for tensor, what in zip(pair_, ("corrupted", "labels"), strict=True):
            expectations.shape(tensor, ids.shape, what=f"{what} of epoch {number}", case=case)
            expectations.true(
                tensor.dtype == torch.int64, f"{what} should have dtype int64 for {case}."
            )
    if _sound(mine, ids):
        for number, (corrupted, marks) in enumerate(found):
            expectations.true(
                bool((corrupted == ids)[marks == IGNORE].all())
                and bool((marks == ids)[marks != IGNORE].all()),
                f"corrupted and labels of epoch {number} are no masking of the ids for {case}.",
                misconception="epochs_masked_again" if number else "epochs_labels_apart",
            )
    expectations.unchanged(seen) if not mine.mutated else None
    return found


def _sound(seen, ids):
    """The student's own mask_tokens leaves the ids and marks all that it changes."""
    try:
        corrupted, marks = expectations.pair(seen.value)
        same = torch.where(marks == IGNORE, corrupted, marks)
        return not seen.mutated and torch.equal(same, ids)
    except Exception:
        return False


def alike(left, right):
    """Two maskings are the same in both tensors."""
    return all(torch.equal(one, two) for one, two in zip(left, right, strict=True))


def repeats(found):
    """For each epoch the number of the first epoch with the same masking."""
    return [next(early for early, other in enumerate(found) if alike(other, one)) for one in found]


@aspect
@promises("pairs", "dynamic")
@exercise("masking_epochs")
def test_epochs_dynamic(student, draw):
    """Without duplicates every epoch is masked anew."""
    ids = ordinary_ids(draw, 6, 60, 30, special=0.1)
    # Two maskings of 300 tokens or more are the same by chance once in 10**38.
    found = epochs_of(student, ids, 30, 5)
    first = repeats(found)
    expectations.true(
        first == list(range(5)),
        "Without duplicates all 5 epochs should differ, but some are the same.",
        misconception="epochs_drawn_once" if len(set(first)) == 1 else None,
    )


@promises("static")
@exercise("masking_epochs")
def test_epochs_static(student, draw):
    """With duplicates=k epoch e has masking e mod k, and these k differ."""
    ids = ordinary_ids(draw, 6, 60, 30, special=0.1)
    for epochs, duplicates in [(2, 1), (7, 3)]:
        first = repeats(epochs_of(student, ids, 30, epochs, duplicates))
        wanted = [epoch % duplicates for epoch in range(epochs)]
        expectations.true(
            first == wanted,
            f"With {epochs} epochs and duplicates={duplicates} the epochs should be as numbers "
            f"{wanted}, but are as {first}.",
            misconception=_order(first, duplicates),
        )


def _order(first, duplicates):
    """The known mistake behind an order of epochs, given by `repeats`."""
    count = range(len(first))
    if first == list(count):
        return "epochs_always_anew"
    if duplicates < 2:
        return None
    orders = {
        "epochs_store_exhausted": [min(epoch, duplicates - 1) for epoch in count],
        "epochs_store_too_small": [epoch % max(duplicates - 1, 1) for epoch in count],
    }
    for name, order in orders.items():
        if first == order:
            return name
    blocks = first == sorted(first) and first[:2] == [0, 0]
    return "epochs_in_blocks" if blocks else "epochs_drawn_from_store"


@aspect
@promises("bad-numbers")
@exercise("masking_epochs")
def test_epochs_refusals(student, draw):
    """Fewer than one epoch or one duplicate are refused with a ValueError."""
    ids = ordinary_ids(draw, 2, 5, 9)
    unrefused(
        student.masking_epochs,
        {
            "epochs=0": (ids, 9, 0),
            "epochs=-2": (ids, 9, -2),
            "duplicates=0": (ids, 9, 3, 0),
            "duplicates=-1": (ids, 9, 3, -1),
        },
        "epochs_unchecked",
    )
    epochs_of(student, ids, 9, 1, 1)


@aspect
@hidden
@exercise("masking_epochs")
def test_epochs_rate(student, draw):
    """mask_prob is passed on, with duplicates and without; it is 0.15 unless told otherwise."""
    ids = ordinary_ids(draw, 3, 40, 30)
    for duplicates in (None, 2):
        for rate in (0.0, 1.0):
            parts = Parts(student)
            own = parts.proxy.observe("mask_tokens", ids, 30, grad=False, mask_prob=rate)
            wanted = expectations.pair(own.value, what="what your mask_tokens returns")[1]
            found = epochs_of(student, ids, 30, 3, duplicates, mask_prob=rate)
            for _, marks in found[:1] if own.mutated else found:
                expectations.equal(
                    marks,
                    wanted,
                    what="labels",
                    case=f"mask_prob={rate:g}",
                    misconception=None if rate else "epochs_rate_forgotten",
                )
    ids = ordinary_ids(draw, 20, 60, 20, special=0.1, alike=True)
    ordinary = int((ids >= SPECIAL).sum())
    parts = Parts(student)
    own = parts.proxy.observe("mask_tokens", ids, 20, grad=False, mask_prob=0.15).value
    own = expectations.pair(own, what="what your mask_tokens returns")[1]
    if fits(int((own != IGNORE).sum()), ordinary, 0.15):
        found = epochs_of(student, ids, 20, 4)
        what = "the share of ordinary tokens that are chosen in an epoch by default"
        share(sum((marks != IGNORE).sum() for _, marks in found), 4 * ordinary, 0.15, what)


@hidden
@exercise("masking_epochs")
def test_epochs_more_duplicates(student, draw):
    """More duplicates than epochs are all different; many epochs turn round many times."""
    ids = ordinary_ids(draw, 6, 60, 30, special=0.1)
    for epochs, duplicates in [(3, 10), (20, 4)]:
        first = repeats(epochs_of(student, ids, 30, epochs, duplicates))
        expectations.true(
            first == [epoch % duplicates for epoch in range(epochs)],
            f"With {epochs} epochs and duplicates={duplicates} the epochs are as {first}.",
        )
    first = repeats(epochs_of(student, ids, 30, 24))
    expectations.true(
        first == list(range(24)),
        f"Without duplicates all 24 epochs should differ, but they are as {first}.",
    )


# --------------------------------------------------------------------------------------------
# next_sentence_pairs
# --------------------------------------------------------------------------------------------


def documents_of(*sizes, start=10):
    """Documents of so many sentences; no two sentences are alike, and some have two tokens."""
    documents, token = [], start
    for size in sizes:
        sentences = [[number] * (1 + number % 3) for number in range(token, token + size)]
        documents.append(sentences)
        token += size
    return documents


def pairs_of(student, documents, case):
    """Labels, and the positions (document, sentence) of both sentences of each pair.

    What is no question of chance is judged here: which pairs there are, and what they consist of.
    """
    seen = student.observe("next_sentence_pairs", documents, grad=False)
    expectations.unchanged(seen)
    found = seen.value
    if isinstance(found, tuple):
        found = list(found)
    expectations.true(
        isinstance(found, list),
        f"the result should be a list of pairs, but is a {expectations.type_name(found)} "
        f"for {case}.",
    )
    wanted = [
        (number, position)
        for number, document in enumerate(documents)
        for position in range(len(document) - 1)
    ]
    expectations.true(
        len(found) == len(wanted),
        f"there should be {len(wanted)} pairs, one for each sentence with a next one, but there "
        f"are {len(found)} for {case}.",
        misconception="pairs_across_documents"
        if len(found) - len(wanted) == sum(map(bool, documents)) - 1
        else None,
    )
    where = {
        tuple(sentence): (number, position)
        for number, document in enumerate(documents)
        for position, sentence in enumerate(document)
    }
    marks, firsts, seconds = [], [], []
    for entry in found:
        first, second, mark = expectations.items(entry, 3, what="an entry (first, second, label)")
        for sentence, what in ((first, "first"), (second, "second")):
            expectations.true(
                isinstance(sentence, list) and tuple(sentence) in where,
                f"the {what} sentence of a pair is none of the documents' for {case}.",
            )
        expectations.true(
            isinstance(mark, int) and mark in (0, 1),
            f"a label should be 0 or 1, but is {str(mark)[:40]} for {case}.",
        )
        marks.append(int(mark))
        firsts.append(where[tuple(first)])
        seconds.append(where[tuple(second)])
    drawn_first = all(
        first == (number, position) or (mark and second == (number, position + 1))
        for mark, first, second, (number, position) in zip(
            marks, firsts, seconds, wanted, strict=True
        )
    )
    expectations.true(
        firsts == wanted,
        f"the first sentences should be those that have a next one, in order, for {case}.",
        misconception="pairs_random_first" if drawn_first else None,
    )
    true_next = [
        second == (number, position + 1)
        for (number, position), second in zip(firsts, seconds, strict=True)
    ]
    same_document = [first[0] == second[0] for first, second in zip(firsts, seconds, strict=True)]
    said = [mark == 0 for mark in marks]
    swapped = len(marks) > 4 and all(a != b for a, b in zip(said, true_next, strict=True))
    expectations.true(
        not swapped,
        f"label 0 stands where the second sentence is not the next one, and 1 where it is, for "
        f"{case}.",
        misconception="pairs_labels_swapped",
    )
    for is_next, is_true, same in zip(said, true_next, same_document, strict=True):
        expectations.true(
            is_true or not is_next,
            f"a pair with label 0 does not consist of a sentence and its next one for {case}.",
        )
        expectations.true(
            is_next or not same,
            f"the second sentence of a pair with label 1 comes from the same document for {case}.",
            misconception="pairs_same_document",
        )
    return marks, firsts, seconds


@promises("triples")
@exercise("next_sentence_pairs")
def test_pairs_form(student):
    """A pair for each sentence with a next one, in order; label 0 and the true next, or 1."""
    for sizes_ in ([3, 2, 4], [4, 1, 3, 2]):
        pairs_of(student, documents_of(*sizes_), f"documents of {sizes_} sentences")


@promises("half-random")
@exercise("next_sentence_pairs")
def test_pairs_half(student):
    """Half of the pairs are true ones."""
    marks, _, _ = pairs_of(student, documents_of(*[51] * 40), "40 documents of 51 sentences")
    likely = {"pairs_always_next": 0.0, "pairs_never_next": 1.0}
    share(sum(marks), len(marks), 0.5, "the share of pairs with label 1", likely)


@promises("one-document")
@exercise("next_sentence_pairs")
def test_pairs_refusals(student):
    """Fewer than two documents with sentences are refused with a ValueError."""
    unrefused(
        student.next_sentence_pairs,
        {
            "no document": ([],),
            "one document": (documents_of(3),),
            "one document and an empty one": ([*documents_of(3), []],),
        },
        "pairs_unchecked",
    )
    pairs_of(student, documents_of(2, 1), "documents of 2 sentences and 1")


@hidden
@promises("half-random")
@exercise("next_sentence_pairs", weight=2)
def test_pairs_uniform(student):
    """Random sentences are uniform over the sentences of the other documents, first and last."""
    sizes_ = [2, 1500, 3, 1]
    marks, firsts, seconds = pairs_of(
        student, documents_of(*sizes_), f"documents of {sizes_} sentences"
    )
    drawn = [
        second
        for mark, first, second in zip(marks, firsts, seconds, strict=True)
        if mark and first[0] == 1
    ]
    expectations.true(
        bool(drawn),
        "Of the 1499 pairs of one document none is random.",
        misconception="pairs_coin_per_document",
    )
    positions = [(number, position) for number in (0, 2, 3) for position in range(sizes_[number])]
    counts = [drawn.count(one) for one in positions]
    kind = None
    if not any(count for count, (_, position) in zip(counts, positions, strict=True) if position):
        kind = "pairs_first_sentence_only"
    elif len({number for number, _ in drawn}) == 1:
        kind = "pairs_from_next_document"
    elif fits(counts[-1], len(drawn), 1 / 3):
        kind = "pairs_document_first"
    for (number, position), count in zip(positions, counts, strict=True):
        what = f"the share of sentence {position} of document {number} among 6 that may be drawn"
        try:
            expectations.rate(count, len(drawn), 1 / 6, what, false_alarm=1e-10)
        except Mistake as mistake:
            raise Mistake(str(mistake), kind) from None


@hidden
@promises("own-draw")
@exercise("next_sentence_pairs")
def test_pairs_independent(student):
    """Every pair is drawn on its own, and so is every random sentence."""
    case = "documents of 3 sentences and 1"
    found = [pairs_of(student, documents_of(3, 1), case)[0] for _ in range(40)]
    likely = {"pairs_fixed_number": 1.0, "pairs_coin_per_document": 0.0}
    if all(marks == found[0] for marks in found):
        likely = {"pairs_alternate": 1.0}
    what = "how often exactly one of two pairs is random"
    share(sum(sum(marks) == 1 for marks in found), 40, 0.5, what, likely)
    marks, _, seconds = pairs_of(
        student, documents_of(1, 600, 1), "documents of 1, 600 and 1 sentences"
    )
    changes = sum(one != two for one, two in itertools.pairwise(marks))
    what = "the share of pairs whose label differs from the one before"
    likely = {"pairs_alternate": 1.0, "pairs_coin_per_document": 0.0}
    share(changes, len(marks) - 1, 0.5, what, likely)
    drawn = [second[0] for mark, second in zip(marks, seconds, strict=True) if mark]
    changes = sum(one != two for one, two in itertools.pairwise(drawn))
    what = "the share of random sentences that differ from the one before, of two"
    share(changes, len(drawn) - 1, 0.5, what)


@exercise("next_sentence_pairs")
def test_pairs_small_documents(student):
    """Empty documents and those of one sentence give no pairs; single sentences may be drawn."""
    documents = [[], *documents_of(1, 300), [], *documents_of(1, start=400)]
    _, _, seconds = pairs_of(student, documents, "documents of 0, 1, 300, 0 and 1 sentences")
    expectations.true(
        {(1, 0), (4, 0)} <= set(seconds),
        "A document of one sentence is never drawn from in 299 pairs.",
    )


@hidden
@exercise("next_sentence_pairs")
def test_pairs_equal_documents(student):
    """Equal documents are different ones, and equal sentences are drawn each for itself."""
    first, second = [5, 6], [7]
    documents = [[list(first), *(list(second) for _ in range(4))] for _ in range(100)]
    found = student.next_sentence_pairs(documents)
    case = "100 equal documents of one sentence and four others that are equal"
    expectations.equal(len(found), 400, what="the number of pairs", case=case)
    drawn = []
    for number, entry in enumerate(found):
        one, two, mark = expectations.items(entry, 3, what="an entry (first, second, label)")
        expectations.true(
            one == (second if number % 4 else first)
            and two in ([first, second] if mark else [second]),
            f"for {case}, {first} and {second}, there is a pair {one}, {two} with label {mark}.",
        )
        drawn += [two == first] if mark else []
    share(len(drawn), 400, 0.5, f"the share of pairs with label 1 for {case}", false_alarm=5e-10)
    what = f"the share of the first sentence among the random ones for {case}"
    likely = {"pairs_equal_once": 0.5}
    share(sum(drawn), len(drawn), 0.2, what, likely, false_alarm=5e-10)


# --------------------------------------------------------------------------------------------
# What the tests of pre-training share
# --------------------------------------------------------------------------------------------

# Small: a step of training changes every parameter.
SMALL = {
    "vocab_size": 11,
    "d_model": 4,
    "num_layers": 1,
    "num_heads": 2,
    "d_ff": 6,
    "max_length": 8,
}


def head_state(draw, vocabulary, width, prefix="") -> State:
    """The parameters of a MaskedLanguageHead, the table among them."""
    return {
        f"{prefix}bias": draw.normal(vocabulary, scale=0.5),
        f"{prefix}token.weight": draw.normal(vocabulary, width),
        **linear(draw, f"{prefix}dense", width, width),
        **norm_state(draw, f"{prefix}norm", width),
    }


def pretraining_state(draw, num_layers=1, type_vocab_size=2, **changes) -> State:
    """The parameters of a small BertForPreTraining; one table under two names."""
    given = {**SMALL, **changes}
    width, inner = given["d_model"], given["d_ff"]
    state = {
        "bert.embeddings.position.weight": draw.normal(given["max_length"], width),
        "bert.embeddings.segment.weight": draw.normal(type_vocab_size, width),
        **norm_state(draw, "bert.embeddings.norm", width),
    }
    for number in range(num_layers):
        layer = f"bert.layers.{number}."
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            state |= linear(draw, f"{layer}attention.{name}", width, width)
        state |= norm_state(draw, f"{layer}attention_norm", width)
        state |= linear(draw, f"{layer}w_1", inner, width)
        state |= linear(draw, f"{layer}w_2", width, inner)
        state |= norm_state(draw, f"{layer}output_norm", width)
    state |= linear(draw, "bert.pooler", width, width)
    state |= head_state(draw, given["vocab_size"], width, "mlm.")
    state |= linear(draw, "nsp", 2, width)
    return state | {"bert.embeddings.token.weight": state["mlm.token.weight"]}


def sentence_batch(draw, lengths, segments=2, vocabulary=11):
    """Ids, segments and mask of rows of these lengths, padded behind."""
    longest = max(lengths)
    mask = torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)
    ids = draw.integers(SPECIAL, vocabulary, len(lengths), longest)
    ids[:, 0] = CLS
    parts = draw.integers(0, segments, len(lengths), longest).sort(1).values
    return ids.masked_fill(~mask, PAD), parts.masked_fill(~mask, 0), mask


def two_scores(got, what="the result (mlm scores, nsp scores)"):
    return [expectations.tensor(one, what="a score") for one in expectations.pair(got, what=what)]


def same_gradient_flow(mine, theirs, names, case=""):
    """Where the values are the reference's, so are the gradients."""
    if same_values(mine.value, theirs.value):
        arrive(mine, theirs, names, same=True, case=case)


# --------------------------------------------------------------------------------------------
# MaskedLanguageHead
# --------------------------------------------------------------------------------------------


class Heads:
    """A student's head and the reference's, each on a table of its own with the same values."""

    def __init__(self, student, reference, draw, vocabulary=7, width=4, dtype=torch.float32):
        state = head_state(draw, vocabulary, width)
        self.state = {name: value.to(dtype) for name, value in state.items()}
        table = {"weight": self.state["token.weight"]}
        self.student, self.tables, self.heads = student, [], []
        for proxy in (student, reference):
            token = proxy.module(
                "nn.Embedding",
                state=table,
                dtype=dtype,
                num_embeddings=vocabulary,
                embedding_dim=width,
            )
            self.tables.append(token)
            self.heads.append(
                proxy.module("MaskedLanguageHead", token=token, state=self.state, dtype=dtype)
            )
        self.mine, self.theirs = self.heads

    def own(self, hidden_states, table):
        """What the head should say with the student's own gelu."""

        def scores(parts):
            state = self.state
            inner = hidden_states @ state["dense.weight"].T + state["dense.bias"]
            inner = alive(parts.proxy.gelu(inner))
            width = inner.shape[-1:]
            inner = F.layer_norm(inner, width, state["norm.weight"], state["norm.bias"], 1e-12)
            return inner @ table.T + state["bias"]

        return scores

    def same(self, hidden_states, case, got=None, want=None, table=None):
        got = self.mine(hidden_states) if got is None else got
        want = self.theirs(hidden_states) if want is None else want
        table = self.state["token.weight"] if table is None else table
        own = self.own(hidden_states, table)
        same_by_parts(self.student, got, want, own, what="the scores", case=case)


@promises("formula", "any-axes")
@exercise("MaskedLanguageHead")
def test_head_values(student, reference, draw):
    """norm(gelu(dense(h))) times the table, plus the bias, for every position of any shape."""
    for shape, vocabulary, width in [
        ((1, 2), 3, 2),
        ((2, 3, 6), 9, 6),
        ((5,), 4, 5),
        ((2, 1, 2, 4), 4, 4),
    ]:
        heads = Heads(student, reference, draw, vocabulary, width)
        heads.same(draw.normal(*shape, scale=2.0), f"hidden states {shape}, V={vocabulary}")


@promises("submodules")
@exercise("MaskedLanguageHead")
def test_head_parameters(student, draw):
    """The parameters are dense, norm, bias and the table that was given."""
    token = student.module("nn.Embedding", num_embeddings=7, embedding_dim=4)
    head = student.module("MaskedLanguageHead", token=token)
    names = {name: tuple(value.shape) for name, value in head_state(draw, 7, 4).items()}
    same_parameters(head, names)
    expectations.close(head.state()["bias"], torch.zeros(7), what="the bias of a new head")


@aspect
@promises("tied")
@exercise("MaskedLanguageHead")
def test_head_object(student):
    """The head keeps the very nn.Embedding that it is given."""
    token = student.module("nn.Embedding", num_embeddings=7, embedding_dim=4)
    head = student.module("MaskedLanguageHead", token=token)
    # What is added to the embedding is seen in the head only where it is the very object.
    token.method("add_module", "added", student.module("nn.Linear", in_features=1, out_features=1))
    expectations.true(
        "token.added.weight" in head.state(),
        "token of the head should be the very nn.Embedding that is given, but is another one.",
        misconception=_another_embedding(student),
    )


def _another_embedding(student):
    """The known mistake of a head with another nn.Embedding: with the same weight or a copy."""
    return "head_weight_alone" if own_head_ties(student) else "head_untied"


@promises("tied")
@exercise("MaskedLanguageHead")
def test_head_tied(student, reference, draw):
    """The table is the very one of the embeddings: who changes it changes the scores."""
    heads = Heads(student, reference, draw, dtype=torch.float64)
    x = draw.normal(2, 4).double()
    heads.same(x, "before the table was changed")
    for table in heads.tables:
        table.step(torch.arange(7), lr=1.0)
    table = heads.tables[0].state()["weight"]
    heads.same(x, "a table that was changed after the head was made", table=table)


@hidden
@promises("dtype-kept", "tied")
@exercise("MaskedLanguageHead")
def test_head_gradients(student, reference, draw):
    """Gradients reach the hidden states, every parameter and the table, in float64."""
    heads = Heads(student, reference, draw, dtype=torch.float64)
    x = draw.normal(2, 3, 4).double().transpose(0, 1)
    seen, wanted = heads.mine.observe(x), heads.theirs.observe(x)
    heads.same(x, "strided float64 input", seen.value, wanted.value)
    names = {f"parameter {name}": name for name in heads.state}
    same_gradient_flow(seen, wanted, {"0": "the hidden states", **names})
    expectations.unchanged(seen)


@hidden
@exercise("MaskedLanguageHead")
def test_head_small_values(student, reference, draw):
    """The norm's eps is 1e-12: hidden states of order 1e-4 are scaled up like others."""
    heads = Heads(student, reference, draw, 6, 8, torch.float64)
    # Without a bias in the way the norm sees the small numbers themselves.
    state = {**heads.state, "dense.bias": torch.zeros(8, dtype=torch.float64)}
    heads.state = state
    heads.heads = []
    for proxy, token in zip((student, reference), heads.tables, strict=True):
        heads.heads.append(
            proxy.module("MaskedLanguageHead", token=token, state=state, dtype=torch.float64)
        )
    heads.mine, heads.theirs = heads.heads
    heads.same(draw.normal(3, 8, scale=1e-4).double(), "hidden states of order 1e-4")


# --------------------------------------------------------------------------------------------
# BertForPreTraining
# --------------------------------------------------------------------------------------------

SCORES = ("mlm scores", "nsp scores")


def own_scores(parts, model, *given):
    """What the student's own parts of a BertForPreTraining say, put together by the grader."""
    aside = parts.aside(model)
    states, pooled = expectations.pair(aside.method("bert", *given))
    return alive(aside.method("mlm", states)), alive(aside.method("nsp", pooled))


def same_scores(student, got, want, model, given, case):
    """Both scores are the reference's, or those of the student's own parts."""
    got = two_scores(got)
    for position, what in enumerate(SCORES):

        def own(parts, position=position):
            return own_scores(parts, model, *given)[position]

        same_by_parts(student, got[position], want[position], own, what=f"the {what}", case=case)


def pretrainers(student, reference, state, dtype=torch.float64, **changes):
    options = {**SMALL, **changes}
    return pair(student, reference, "BertForPreTraining", state, dtype, **options)


@promises("two-logits")
@exercise("BertForPreTraining")
def test_pretraining_values(student, reference, draw):
    """Scores for every token at every position, and two scores for the pair."""
    mine, theirs = pretrainers(student, reference, pretraining_state(draw), torch.float32)
    ids, *_ = sentence_batch(draw, [5, 5])
    same_scores(student, mine(ids), theirs(ids), mine, (ids,), "B=2, T=5, ids alone")


@exercise("BertForPreTraining")
def test_pretraining_segments_and_mask(student, reference, draw):
    """Segments and mask reach the encoder."""
    mine, theirs = pretrainers(student, reference, pretraining_state(draw))
    ids, parts, mask = sentence_batch(draw, [6, 3, 5])
    ids[:, 1] = SEP  # no segment begins after it unless token_type_ids says so
    for given, case in [
        ((ids, parts), "segments given"),
        ((ids, None, mask), "a mask given"),
        ((ids, parts, mask), "segments and mask given"),
    ]:
        same_scores(student, mine(*given), theirs(*given), mine, given, case)


def own_head_ties(student):
    """Whether the student's own head keeps the table that it is given; if not, it is to blame."""
    parts = Parts(student)
    try:
        token = parts.proxy.module("nn.Embedding", num_embeddings=3, embedding_dim=2)
        head = parts.proxy.module("MaskedLanguageHead", token=token)
        return torch.equal(
            token.step(torch.arange(3), lr=1.0)["weight"], head.state()["token.weight"]
        )
    except (StudentError, Todo, KeyError):
        return True


@promises("submodules")
@exercise("BertForPreTraining")
def test_pretraining_tied(student, draw):
    """One table serves the embeddings and the head, before and after a step of training."""
    state = pretraining_state(draw)
    mine = student.module("BertForPreTraining", state=state, dtype=torch.float64, **SMALL)
    ids, *_ = sentence_batch(draw, [4, 4])
    names = mine.parameters()
    expectations.true(
        "bert.embeddings.token.weight" in names,
        "The model has no parameter called bert.embeddings.token.weight.",
    )
    if not own_head_ties(student):
        return
    expectations.true(
        "mlm.token.weight" not in names,
        "The head has a table of its own; give it the model's own bert.embeddings.token.",
    )
    same_parameters(
        mine,
        {name: tuple(value.shape) for name, value in state.items() if name != "mlm.token.weight"},
    )
    after = mine.step(ids, lr=0.1)
    table = after["bert.embeddings.token.weight"]
    expectations.close(after["mlm.token.weight"], table, what="the head's table after a step")
    expectations.true(
        bool((table - state["mlm.token.weight"].double()).abs().max() > 1e-9),
        "A step of training leaves the table as it was.",
    )


@hidden
@promises("submodules")
@exercise("BertForPreTraining")
def test_pretraining_gradients(student, reference, draw):
    """Every parameter gets its gradient, the table from both of its uses."""
    state = pretraining_state(draw)
    mine, theirs = pretrainers(student, reference, state)
    given = sentence_batch(draw, [4, 6, 2])
    seen, wanted = mine.observe(*given), theirs.observe(*given)
    same_scores(student, seen.value, wanted.value, mine, given, "a padded batch in float64")
    names = [
        name for name in state if name != "mlm.token.weight" and not name.endswith("k_proj.bias")
    ]
    if own_head_ties(student):
        same_gradient_flow(seen, wanted, {f"parameter {name}": name for name in names})
    expectations.unchanged(seen)


@hidden
@exercise("BertForPreTraining")
def test_pretraining_sizes(student, reference, draw):
    """Layers, heads, widths, positions and segments are as many as asked for; dropout acts.

    By default it is 0.1.
    """
    sizes_ = {
        "vocab_size": 9,
        "d_model": 6,
        "num_layers": 2,
        "num_heads": 3,
        "d_ff": 5,
        "max_length": 4,
        "type_vocab_size": 3,
    }
    state = pretraining_state(draw, **sizes_)
    mine, theirs = pretrainers(student, reference, state, **sizes_, dropout=0.5)
    given = sentence_batch(draw, [4, 3], segments=3, vocabulary=9)
    same_scores(student, mine(*given), theirs(*given), mine, given, "2 layers of 3 heads")
    ids = given[0][:1].expand(8, -1)
    # Of 8 equal rows of 4 positions dropout does the same in all with a chance of less than 1e-9.
    noisy, _ = two_scores(mine.train()(ids))
    inner, _ = two_scores(mine.train().method("bert", ids))
    passed_on = bool((inner - inner[:1]).abs().max() > 1e-9)
    expectations.true(
        bool((noisy - noisy[:1]).abs().max() > 1e-9),
        "In train mode with dropout=0.5 equal rows get equal scores, so that nothing was dropped.",
        misconception=None if passed_on else "pretraining_dropout_lost",
    )
    state = pretraining_state(draw)
    mine = student.module("BertForPreTraining", state=state, dtype=torch.float64, **SMALL)
    noisy, _ = two_scores(mine.train()(ids[:, :3] % 9))
    expectations.true(
        bool((noisy - noisy[:1]).abs().max() > 1e-9),
        "In train mode equal rows get equal scores where dropout is not given; it is 0.1 then.",
    )


@aspect
@hidden
@exercise("BertForPreTraining")
def test_pretraining_defaults(student):
    """Unless told otherwise it has BERT-base's sizes: 768 wide, 12 layers, 12 heads, d_ff 3072."""
    same_default_sizes(student, "BertForPreTraining")


# --------------------------------------------------------------------------------------------
# pretraining_loss
# --------------------------------------------------------------------------------------------


def loss_inputs(draw, batch, length, vocabulary, kept=0.4, dtype=torch.float64):
    """Random scores, labels of which a share is not IGNORE, and which pairs are random."""
    marks = draw.integers(0, vocabulary, batch, length)
    marks = torch.where(draw.uniform(batch, length) < kept, marks, IGNORE)
    marks[0, 0] = SPECIAL % vocabulary
    marks[-1, -1] = IGNORE
    return (
        draw.normal(batch, length, vocabulary, scale=2.0).to(dtype),
        draw.normal(batch, 2, scale=2.0).to(dtype),
        marks,
        draw.integers(0, 2, batch),
    )


def same_pretraining_loss(student, reference, given, case):
    """Value and gradients are right; the inputs are left alone."""
    seen = student.observe("pretraining_loss", *given)
    wanted = reference.observe("pretraining_loss", *given)
    expectations.close(seen.value, wanted.value, what="the loss", case=case)
    for label, words in (("0", "the mlm scores"), ("1", "the nsp scores")):
        got, want = seen.grads.get(label), wanted.grads[label]
        if want is None or not bool(want.abs().max() > 0):
            expectations.true(
                got is None or not bool((got != 0).any()),  # NaN is not 0 either
                f"the gradient of {words} should be 0 for {case}.",
            )
            continue
        expectations.true(
            got is not None,
            f"No gradient reaches {words}; look for detach(), .data, .item() or no_grad().",
        )
        expectations.close(got, want, what=f"the gradient of {words}", case=case)
    expectations.unchanged(seen)


@promises("two-means", "mean-over-positions")
@exercise("pretraining_loss")
def test_loss_values(student, reference, draw):
    """The mean over the masked positions plus the mean over the pairs."""
    for batch, length, vocabulary in [(1, 1, 3), (2, 3, 6), (4, 5, 9)]:
        given = loss_inputs(draw, batch, length, vocabulary, dtype=torch.float32)
        given[2][0, 0] = 1
        case = sizes(B=batch, T=length, V=vocabulary)
        got, want = student.pretraining_loss(*given), reference.pretraining_loss(*given)
        expectations.close(got, want, what="the loss", case=case)


@promises("both-classes")
@exercise("pretraining_loss")
def test_loss_class_zero(student, reference, draw):
    """A true pair, class 0, counts like a random one: in the mean and in the gradient."""
    for is_random in ([0, 0, 0], [0, 1, 0]):
        given = loss_inputs(draw, 3, 4, 7)[:3]
        case = f"is_random={is_random}"
        same_pretraining_loss(student, reference, (*given, torch.tensor(is_random)), case)


@promises("nothing-chosen")
@exercise("pretraining_loss")
def test_loss_nothing_masked(student, reference, draw):
    """Without a masked position the loss is that of the pairs alone, and no gradient is NaN."""
    for batch in (1, 3):
        mlm, nsp, marks, is_random = loss_inputs(draw, batch, 4, 7)
        given = (mlm, nsp, torch.full_like(marks, IGNORE), is_random)
        same_pretraining_loss(student, reference, given, f"B={batch} and no masked position")


@hidden
@promises("mean-over-positions")
@exercise("pretraining_loss")
def test_loss_gradients(student, reference, draw):
    """Gradients at masked positions only; id 0 is a label like others; positions count alike."""
    mlm, nsp, marks, is_random = loss_inputs(draw, 4, 6, 8)
    marks[1] = torch.tensor([0, 0, IGNORE, 0, 3, 0])
    marks[2] = IGNORE
    given = (mlm.mT.contiguous().mT, nsp, marks, is_random)
    case = "a row of zeros, a row without masked positions"
    same_pretraining_loss(student, reference, given, case)


@hidden
@exercise("pretraining_loss")
def test_loss_extremes(student, reference, draw):
    """Scores in the thousands and in the millions overflow nothing, and none is cut off."""
    mlm, nsp, marks, is_random = loss_inputs(draw, 3, 3, 5)
    for times in (1000, 1_000_000):
        given = (times * mlm, times * nsp, marks, is_random)
        same_pretraining_loss(student, reference, given, f"scores times {times}")


# --------------------------------------------------------------------------------------------
# pretraining_step
# --------------------------------------------------------------------------------------------

NUMBERS = ("loss", "mlm", "nsp", "norm")


def step_batch(draw, lengths):
    """A batch to train on: ids, segments, mask, labels, is_random."""
    ids, parts, mask = sentence_batch(draw, lengths)
    marks = torch.where(mask & (draw.uniform(*ids.shape) < 0.5), ids, IGNORE)
    marks[0, 1] = ids[0, 1]
    return ids, parts, mask, marks, draw.integers(0, 2, len(lengths))


def step_of(proxy, model, batch, rate, *clip):
    """The four numbers of one step; the batch must stay as it was."""
    got = proxy.training("pretraining_step", model, *batch, rate, *clip)
    expectations.true(
        isinstance(got, dict),
        f"the result should be a dict, but is a {expectations.type_name(got)}.",
    )
    missing = sorted(set(NUMBERS) - set(got))
    expectations.true(not missing, f"the result has no entry {', '.join(missing)}.")
    extra = sorted(set(map(str, got)) - set(NUMBERS))
    expectations.true(not extra, f"the result has other entries than the four: {', '.join(extra)}.")
    mutated = {label.split(".")[0] for label in proxy.transcript[-1].outcome["mutated"]}
    expectations.true(not mutated, "your pretraining_step changes the batch in place.")
    return got


def _same_numbers(got, wanted):
    """A step that says what the reference's says needs no model or loss to excuse it."""
    return all(
        isinstance(got[name], float)
        and abs(got[name] - wanted[name]) <= 2e-5 * max(1.0, abs(wanted[name]))
        for name in NUMBERS
    )


class Trainees:
    """A student's small BertForPreTraining and the reference's, with the same parameters.

    A step answers for nobody's model and nobody's loss: where either says something else than the
    reference's, `right` is False, and the student's own gradient is measured by differences.
    """

    def __init__(self, student, reference, draw, put=None, **changes):
        self.student, self.reference, self.draw = student, reference, draw
        state = {**pretraining_state(draw, **changes), **(put or {})}
        self.state = {name: value.double() for name, value in state.items()}
        self.options = {**SMALL, **changes}
        self.mine, self.theirs = pretrainers(student, reference, self.state, **changes)
        self._right: bool | None = None

    def right(self, batch):
        """Whether the student's model and loss are the reference's.

        Asked once: whatever runs the model without training would clear old gradients, which a
        step has to do itself.
        """
        if self._right is None:
            self._right = self._same_losses(batch)
        return self._right

    def _same_losses(self, batch):
        # The reference is asked the same things whatever the student's code answers.
        wanted = self.theirs(*batch[:3])
        loss = self.reference.observe("pretraining_loss", *wanted, *batch[3:])
        parts = Parts(self.student)
        aside = parts.aside(self.mine)
        if "mlm.token.weight" in aside.parameters() or not all(
            map(expectations.close_enough, two_scores(aside(*batch[:3])), wanted)
        ):
            return False
        said = parts.proxy.observe("pretraining_loss", *wanted, *batch[3:])
        return expectations.close_enough(
            expectations.tensor(said.value, what="the loss"), loss.value
        ) and all(
            said.grads.get(label) is not None
            and expectations.close_enough(said.grads[label], gradient)
            for label, gradient in loss.grads.items()
            if gradient is not None
        )

    def loss_at(self, state, batch):
        """The student's loss of the student's model with other parameters."""
        parts = Parts(self.student)
        model = parts.proxy.module(
            "BertForPreTraining", state=state, dtype=torch.float64, **self.options
        )
        return float(parts.proxy.pretraining_loss(*two_scores(model(*batch[:3])), *batch[3:]))

    def same(self, batch, rate, *clip, case, last=True):
        """One step is right: what it returns, and after the last what became of the parameters."""
        right = self.right(batch)
        before = None if right else self.mine.state()
        wanted = step_of(self.reference, self.theirs, batch, rate, *clip)
        got = step_of(self.student, self.mine, batch, rate, *clip)
        if not right and not (_same_numbers(got, wanted) and self._same_state()):
            self.same_by_differences(batch, rate, *clip, before=before, got=got, case=case)
            return
        for name in NUMBERS:
            same_number(got[name], wanted[name], what=f'"{name}"', case=case)
        if not last:
            return
        after, want = self.mine.state(), self.theirs.state()
        for name, value in want.items():
            expectations.shape(after.get(name), value.shape, f"the parameter {name}", case=case)
            expectations.true(
                expectations.close_enough(after[name], value, SLACK),
                f"the parameter {name} is wrong after the step for {case}: the largest difference "
                f"is {float((after[name] - value).abs().max()):.3g}.",
            )

    def _same_state(self):
        after, want = self.mine.state(), self.theirs.state()
        return all(
            name in after and expectations.close_enough(after[name], value, SLACK)
            for name, value in want.items()
        )

    def same_by_differences(self, batch, rate, clip=1.0, *, before, got, case):
        """What the parameters were changed by is the gradient of the student's own loss."""
        loss = self.loss_at(before, batch)
        if not math.isfinite(loss):
            return  # What could a step make of that?
        same_number(got["loss"], loss, what='"loss"', case=case)
        same_number(got["mlm"] + got["nsp"], loss, what='"mlm" plus "nsp"', case=case)
        after = self.mine.state()
        norm = got["norm"]
        same_number(norm, norm, what='"norm"', case=case)
        scale = rate * min(1.0, clip / max(norm, 1e-12))
        gradients = {name: (before[name] - after[name]) / scale for name in self.mine.parameters()}
        total = math.sqrt(sum(float((one**2).sum()) for one in gradients.values()))
        expectations.true(
            abs(total - norm) <= 1e-4 * max(1.0, total),
            f'what the step has changed does not fit its "norm" of {norm:.5g} for {case}.',
        )
        for _ in range(2):
            way = {name: self.draw.normal(*value.shape).double() for name, value in before.items()}
            if "mlm.token.weight" not in gradients:
                way["mlm.token.weight"] = way["bert.embeddings.token.weight"]
            up, down = (
                self.loss_at(
                    {name: value + sign * 1e-6 * way[name] for name, value in before.items()},
                    batch,
                )
                for sign in (1, -1)
            )
            slope = (up - down) / 2e-6
            said = sum(float((one * way[name]).sum()) for name, one in gradients.items())
            expectations.true(
                abs(slope - said) <= 1e-4 * max(1.0, abs(slope)),
                f"the parameters were not changed by the gradient of this batch for {case}.",
            )


@promises("numbers")
@exercise("pretraining_step")
def test_step_numbers(student, reference, draw):
    """The losses and the norm of the gradient are those before the step, as floats."""
    models = Trainees(student, reference, draw)
    batch = step_batch(draw, [5, 3])
    right = models.right(batch)
    wanted = step_of(reference, models.theirs, batch, 0.1)
    got = step_of(student, models.mine, batch, 0.1)
    right = right or _same_numbers(got, wanted)
    case = "a batch of two rows, clip=1"
    for name in NUMBERS if right else ():
        same_number(got[name], wanted[name], what=f'"{name}"', case=case)
    loss = wanted["loss"] if right else models.loss_at(models.state, batch)
    if math.isfinite(loss):
        same_number(got["loss"], loss, what='"loss"', case=case)


@promises("step", "own-gradients")
@exercise("pretraining_step", weight=2)
def test_step_two_steps(student, reference, draw):
    """Without clipping every parameter loses lr times the gradient, of its own batch alone."""
    models = Trainees(student, reference, draw)
    for number, rate in enumerate((0.02, 0.05)):
        batch = step_batch(draw, [4, 6, 3])
        case = f"step {number + 1}, lr={rate}, no clipping"
        models.same(batch, rate, 1e6, case=case, last=number == 1)


@promises("clip")
@exercise("pretraining_step", weight=2)
def test_step_clipping(student, reference, draw):
    """A gradient longer than clip is scaled as a whole to that length; a shorter one is not."""
    models = Trainees(student, reference, draw)
    for clip in (0.3, 100.0):
        batch = step_batch(draw, [5, 4])
        models.same(batch, 0.5, clip, case=f"lr=0.5, clip={clip}", last=False)
    models.same(step_batch(draw, [3, 5]), 0.1, case="lr=0.1, clip as it is by default")


def nsp_of(proxy, models):
    """A linear layer with the parameters of the model's own."""
    state = {name: models.state[f"nsp.{name}"] for name in ("weight", "bias")}
    given = {"in_features": SMALL["d_model"], "out_features": 2}
    return proxy.module("nn.Linear", state=state, dtype=torch.float64, **given)


@aspect
@hidden
@exercise("pretraining_step")
def test_step_without_slope(student, reference, draw):
    """Where all gradients are 0, nothing moves and nothing is divided by 0."""
    ids, parts, mask, marks, _ = step_batch(draw, [4, 4])
    ids = ids[:1].expand(2, -1).clone()
    # The right answer has all the probability but e**-2000, which is 0.
    sure = torch.zeros(2, SMALL["d_model"]), torch.tensor([2000.0, 0.0])
    models = Trainees(
        student, reference, draw, dict(zip(("nsp.weight", "nsp.bias"), sure, strict=True))
    )
    nothing = torch.full_like(marks, IGNORE)
    batch = (ids, parts[:1].expand(2, -1), mask, nothing, torch.tensor([0, 0]))
    models.same(batch, 0.1, 1.0, case="gradients that are all 0")


@aspect
@hidden
@exercise("pretraining_step")
def test_step_without_length(student, reference, draw):
    """With clip=0 nothing moves, and neither with lr=0."""
    models = Trainees(student, reference, draw)
    batch = step_batch(draw, [5, 3])
    models.right(batch)
    for words, given in [("clip=0", (0.5, 0.0)), ("lr=0", (0.0, 1.0))]:
        step_of(student, models.mine, batch, *given)
        step_of(reference, models.theirs, batch, *given)
        after = models.mine.state()
        moved = [name for name, value in models.state.items() if not _same(after, name, value)]
        expectations.true(
            not moved,
            f"With {words} no parameter should change, but these do: {', '.join(moved[:2])}.",
        )


def _same(state, name, value):
    return name not in state or expectations.close_enough(state[name], value)


@promises("without-gradient")
@exercise("pretraining_step")
def test_step_without_gradient(student, reference, draw):
    """What is frozen, or without influence on the loss, has no gradient and stays as it is."""
    models = Trainees(student, reference, draw)
    state = {"weight": draw.normal(3, 2), "bias": draw.normal(3)}
    table = draw.normal(3, 2).double()
    for proxy, model in ((student, models.mine), (reference, models.theirs)):
        spare = proxy.module(
            "nn.Linear", state=state, dtype=torch.float64, in_features=2, out_features=3
        )
        model.method("__delattr__", "nsp")  # what is not used is to stand before it
        model.method("add_module", "spare", spare)
        frozen = proxy.module("nn.Embedding.from_pretrained", embeddings=table)
        model.method("add_module", "frozen", frozen)
        model.method("add_module", "nsp", nsp_of(proxy, models))
    batch = step_batch(draw, [4, 4])
    right = models.right(batch)
    step_of(reference, models.theirs, batch, 0.2, 0.5)
    want = models.theirs.state()["nsp.weight"]
    step_of(student, models.mine, batch, 0.2, 0.5)
    after = models.mine.state()
    for name, value in state.items():
        expectations.close(
            after[f"spare.{name}"], value.double(), what=f"the {name} of a part that is not used"
        )
    expectations.close(after["frozen.weight"], table, what="the weight of a part that is frozen")
    if right:
        expectations.close(
            after["nsp.weight"], want, what="nsp.weight", case="a part that is not used"
        )


@hidden
@exercise("pretraining_step")
def test_step_nothing_masked(student, reference, draw):
    """A batch without masked positions trains the pairs alone: "mlm" is 0, and nothing is NaN."""
    models = Trainees(student, reference, draw)
    ids, parts, mask, marks, is_random = step_batch(draw, [3, 4])
    batch = (ids, parts, mask, torch.full_like(marks, IGNORE), is_random)
    models.same(batch, 0.1, case="a batch without masked positions")


@hidden
@promises("mode-kept")
@exercise("pretraining_step")
def test_step_mode(student, reference, draw):
    """The model is used in the mode in which it comes: dropout acts in train mode only."""
    models = Trainees(student, reference, draw, dropout=0.5)
    batch = step_batch(draw, [6, 6])
    wanted = step_of(reference, models.theirs.eval(), batch, 0.0)
    got = step_of(student, models.mine.eval(), batch, 0.0)
    alike = _same_numbers(got, wanted)
    loss = wanted["loss"] if alike else models.loss_at(models.state, batch)
    if not math.isfinite(loss):
        return
    same_number(got["loss"], loss, what='"loss"', case="a model in eval mode")
    before = models.mine.train()(*batch[:3])
    got = step_of(student, models.mine.train(), batch, 0.0)
    works = not expectations.close_enough(before[0], models.mine.eval()(*batch[:3])[0])
    expectations.true(
        not works or abs(got["loss"] - loss) > 1e-9,
        "your pretraining_step switches dropout off; the mode of the model is the caller's "
        "business.",
    )


# --------------------------------------------------------------------------------------------
# pseudo_log_likelihood
# --------------------------------------------------------------------------------------------


def scorer(student, draw, dtype=torch.float64, length=14, scale=1.0):
    """The student's own model, whose scores depend on every position."""
    state = pretraining_state(draw, num_layers=1, max_length=length)
    state["mlm.bias"] = scale * state["mlm.bias"]
    options = {**SMALL, "max_length": length}
    return student.module("BertForPreTraining", state=state, dtype=dtype, **options)


def likelihood(student, model, ids):
    """The sum as the student's own model gives it, with one MASK at a time."""
    aside = Parts(student).aside(model)
    positions = (ids >= SPECIAL).nonzero().flatten()
    rows = ids.repeat(len(positions), 1)
    rows[torch.arange(len(positions)), positions] = MASK
    said = two_scores(aside(rows))[0].log_softmax(-1)
    return float(said[torch.arange(len(positions)), positions, ids[positions]].double().sum())


def same_likelihood(student, model, ids, case):
    seen = student.observe("pseudo_log_likelihood", model, ids, grad=False)
    wanted = likelihood(student, model, ids)
    same_number(seen.value, wanted, what="the pseudo-log-likelihood", case=case)
    expectations.unchanged(seen)


def sentence(*ids):
    return torch.tensor([CLS, *ids, SEP])


@promises("sum", "a-float")
@exercise("pseudo_log_likelihood")
def test_likelihood_one(student, draw):
    """A single token between CLS and SEP: its log-probability where MASK stands for it."""
    model = scorer(student, draw)
    for token in (7, 10):
        same_likelihood(student, model, sentence(token), f"the ids {sentence(token).tolist()}")


@promises("sum", "one-at-a-time")
@exercise("pseudo_log_likelihood")
def test_likelihood_values(student, draw):
    """Each token is masked alone, while all others are to be seen."""
    model = scorer(student, draw)
    for length in (2, 5):
        ids = sentence(*draw.integers(SPECIAL, 11, length).tolist())
        same_likelihood(student, model, ids, f"the ids {ids.tolist()}")


@promises("sum")
@exercise("pseudo_log_likelihood")
def test_likelihood_special(student, draw):
    """Special tokens are seen but not scored, wherever they stand."""
    model = scorer(student, draw)
    for ids in (sentence(6, 8, SEP, 5, 9), sentence(UNK, 7, MASK, 10)):
        same_likelihood(student, model, ids, f"the ids {ids.tolist()}")


@promises("no-ordinary-token")
@exercise("pseudo_log_likelihood")
def test_likelihood_refusals(student, draw):
    """An input without ordinary tokens is refused with a ValueError."""
    model = scorer(student, draw)
    refuses(
        student.pseudo_log_likelihood,
        {
            "CLS and SEP alone": (model, sentence()),
            "special tokens alone": (model, sentence(UNK, MASK)),
        },
    )


@hidden
@exercise("pseudo_log_likelihood")
def test_likelihood_long(student, draw):
    """Long inputs, repeated tokens, without special ones, in float32; the model stays."""
    model = scorer(student, draw, torch.float32)
    before = model.state()
    ids = draw.integers(SPECIAL, 11, 14)
    ids[3:6] = ids[2]
    same_likelihood(student, model, ids, "14 ids without special ones")
    for name, value in model.state().items():
        expectations.close(value, before[name], what=f"the parameter {name} afterwards")
    ids = draw.integers(SPECIAL, 11, 72)
    same_likelihood(student, scorer(student, draw, length=72), ids, "72 ids without special ones")


@hidden
@exercise("pseudo_log_likelihood")
def test_likelihood_unlikely(student, draw):
    """Tokens that are next to impossible count with their log-probability, which stays finite."""
    ids = sentence(*range(SPECIAL, 11))
    for scale in (60.0, 3000.0):
        model = scorer(student, draw, scale=scale)
        same_likelihood(student, model, ids, f"scores of about {scale:g}")
